//! Options that several commands share, and the parsers of their values.
pub(crate) mod connection;
pub(crate) mod cpus;
pub(crate) mod keep_awake;
pub(crate) mod party_outputs;
pub(crate) mod rare;
pub(crate) mod server;
pub(crate) mod values;
use super::report::results::TableReportArgs;
use anyhow::{Result, bail};
use clap::Args;
use mailrun_bench::{RoundOrder, TextReport};
use mailrun_measurement::record::Workload;
use mailrun_process::live::LiveMode;
use mailrun_process::party_options::PartyOptions;
use mailrun_text::numbers::seconds;
use mailrun_text::words::listed;
use std::fmt;
use std::time::Duration;

/// If a run shows no progress and takes at least this long, the user is told at the start how long it takes.
const MIN_SILENCE: Duration = Duration::from_secs(60);

/// Tells the user on standard error how long a load takes, if it takes a minute or more and shows no progress. Without
/// this line, a long run would look like a program that hangs. A closed loop that ends after a number of messages is
/// not announced, because its duration is unknown.
pub(crate) fn announce_load(live: LiveMode, load: &Workload) {
    let all_due = load.messages.zip(load.rate_per_s).map(|(messages, per_s)| messages as f64 / per_s);
    let length_s = load.duration_limit_s.into_iter().chain(all_due).reduce(f64::min);
    if let Some(length) = length_s.and_then(|length_s| Duration::try_from_secs_f64(length_s).ok()) {
        announce(live, "this run takes", length);
    }
}

/// Tells the user on standard error how long work takes, if it takes a minute or more and shows no progress. `work` is
/// the beginning of the printed sentence, for example "this run takes".
pub(crate) fn announce(live: LiveMode, work: &str, length: Duration) {
    if let Some(text) = announcement(live, work, length) {
        mailrun_process::tell!("mailrun: {text}");
    }
}

fn announcement(live: LiveMode, work: &str, length: Duration) -> Option<String> {
    let is_silent = live == LiveMode::Off && length >= MIN_SILENCE;
    is_silent.then(|| format!("{work} {}, and shows no progress", seconds(length.as_secs_f64())))
}

/// Fails if any option in the list is marked `true`, because the user gave it although it has no effect. The error
/// reads "OPTION has no effect", followed by `reason`.
pub(crate) fn refuse_without_effect(options: &[(&str, bool)], reason: &str) -> Result<()> {
    refuse(options.iter().filter(|(_, is_idle)| *is_idle).map(|(name, _)| (*name).to_owned()), reason)
}

/// Returns an error if the list contains any options, because none of them would have an effect. The error reads
/// "OPTION has no effect", followed by `reason`.
pub(crate) fn refuse_all(options: &PartyOptions, reason: &str) -> Result<()> {
    refuse(options.names().map(|name| format!("--{name}")), reason)
}

fn refuse(idle: impl Iterator<Item = String>, reason: &str) -> Result<()> {
    match idle.collect::<Vec<String>>().as_slice() {
        [] => Ok(()),
        [name] => bail!("{name} has no effect {reason}"),
        names => bail!("{} have no effect {reason}", listed(names)),
    }
}

/// A scenario that is ready to run, with the options from its file and from the command line.
pub(crate) trait Measurement: fmt::Debug {
    fn run(self: Box<Self>, name: &str) -> Result<TextReport>;

    fn tables(&self) -> &TableReportArgs;
}

/// Options for the number and the order of the rounds of a measurement.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct RoundsArgs {
    /// Number of runs for each row; the tables show medians.
    #[arg(long, value_name = "N", default_value = "3", value_parser = values::rounds)]
    pub(crate) rounds: u32,
    /// Order of a round's runs, one per table row.
    #[arg(long, value_enum, default_value = "alternating", hide = true)]
    pub(crate) order: RoundOrder,
}

/// The hidden option `--threshold` of scenarios that judge no thresholds. It exists only so that the error can name the
/// commands that accept `--threshold`.
#[derive(Debug, Default, Args)]
pub(crate) struct NoThresholdArgs {
    #[arg(long = "threshold", value_name = "EXPRESSION", hide = true, value_parser = refused_threshold)]
    _thresholds: Vec<String>,
}

fn refused_threshold(_: &str) -> Result<String, String> {
    Err("this scenario has no runs that a threshold could be asked of; \
         mailrun bench, bench mades, relay-400, relay-64k, relay-100k, relay-latency, relay-soak, mailbox, filter, kotlin-profile, sizes and large-message \
         take it"
        .to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_long_silence_is_announced() {
        let said = |live, s| announcement(live, "this run takes", Duration::from_secs(s));
        assert_eq!(said(LiveMode::Off, 300).as_deref(), Some("this run takes 5 min 00 s, and shows no progress"));
        assert_eq!(said(LiveMode::Off, 60).as_deref(), Some("this run takes 60.00 s, and shows no progress"));
        assert_eq!(said(LiveMode::Off, 59), None);
        for live in [LiveMode::Line, LiveMode::Auto, LiveMode::Json] {
            assert_eq!(said(live, 300), None, "{live:?}");
        }
    }

    #[test]
    fn what_is_idle_is_named() {
        assert!(refuse_without_effect(&[("--a", false)], "without --b").is_ok());
        let said = |options: &[(&str, bool)]| refuse_without_effect(options, "without --b").unwrap_err().to_string();
        assert_eq!(said(&[("--a", true), ("--c", false)]), "--a has no effect without --b");
        assert_eq!(said(&[("--a", true), ("--c", true)]), "--a and --c have no effect without --b");
    }
}
