//! What every measurement of a scenario has: the trait that runs it, and options that several share.
use crate::options::values;
use crate::report::results::TableReportArgs;
use anyhow::Result;
use clap::Args;
use mailrun_bench::{RoundOrder, TextReport};
use std::fmt;

/// The options of a scenario's measurement, as the file and the command line set them.
pub(crate) trait Measurement: fmt::Debug {
    /// Measures. `name` is the scenario's name.
    fn run(self: Box<Self>, name: &str) -> Result<TextReport>;

    /// Returns the options that say where the report goes.
    fn tables(&self) -> &TableReportArgs;
}

/// Rounds of a measurement.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct RoundsArgs {
    /// Runs of each row; the tables show medians.
    #[arg(long, value_name = "N", default_value = "3", value_parser = values::rounds)]
    pub(crate) rounds: u32,
    /// Order of the rows in a round.
    #[arg(long, value_enum, default_value = "alternating", hide = true)]
    pub(crate) order: RoundOrder,
}

/// `--threshold` of a scenario that has no runs for a threshold to judge. It is refused in a line that says why.
#[derive(Debug, Default, Args)]
pub(crate) struct NoThresholdArgs {
    #[arg(long = "threshold", value_name = "EXPRESSION", hide = true, value_parser = refused_threshold)]
    _thresholds: Vec<String>,
}

fn refused_threshold(_: &str) -> Result<String, String> {
    Err("this scenario has no runs that a threshold could be asked of; \
         mailrun bench, bench mades, relay-400, relay-64k, relay-100k, relay-latency, relay-soak, mailbox, kotlin-profile, sizes and large-message \
         take it"
        .to_owned())
}
