//! Refuses `--threshold` in scenarios that have no runs for a threshold to judge.
use clap::Args;

/// `--threshold`, refused in a line that says why.
#[derive(Debug, Default, Args)]
pub(super) struct NoThresholdArgs {
    #[arg(long = "threshold", value_name = "EXPRESSION", hide = true, value_parser = refused_threshold)]
    _thresholds: Vec<String>,
}

fn refused_threshold(_: &str) -> Result<String, String> {
    Err("this scenario has no runs that a threshold could be asked of; \
         mailrun bench, bench mades, relay-400, relay-64k, relay-100k, relay-latency, relay-soak, kotlin-profile, sizes and large-message \
         take it"
        .to_owned())
}
