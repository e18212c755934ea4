//! `mailrun disk`: measures how many messages per second a durable relay could store on a disk. It writes with the code
//! of the relay's spool, and therefore syncs as the relay does.
use crate::options::values;
use anyhow::Result;
use clap::Args;
use mailrun_measurement::record::{HostDisk, Outcome};
use mailrun_measurement::threshold::format_value;
use mailrun_process::interrupt::INTERRUPTED_STATUS;
use mailrun_process::live::LiveMode;
use mailrun_process::terminal::CharacterSet;
use mailrun_relay::disk_test::{DiskTestOptions, DiskTestResult, measure};
use mailrun_text::numbers::{count, counted, megabytes, memory, octets, rate};
use mailrun_text::printable::printable;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Measures how many messages per second the disk of DIR can store durably
///
/// Writes and syncs messages of 1, 4 and 64 KiB in groups of 1, 8 and 64, as the spool of mailrun's relay does. A
/// durable relay answers 250 only after a sync, so it cannot be faster than this. The measurement creates one file in
/// DIR, usually of 32 MiB, and removes it at the end.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct DiskArgs {
    /// Directory on the disk to measure, such as the spool.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Rate that the disk must sustain.
    #[arg(long, value_name = "RATE", value_parser = values::rate)]
    rate: Option<f64>,
    /// Size of the messages for which --rate must be sustained.
    #[arg(short = 'l', long, value_name = "BYTES", default_value = "4k", value_parser = message_bytes)]
    message_size: u64,
    /// Duration of the whole measurement.
    #[arg(short, long, value_name = "TIME", default_value = "10s", value_parser = values::some_duration)]
    duration: Duration,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Print the verdict alone.
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
}

const EXAMPLES: &str = "\
Examples:
  mailrun disk /var/lib/mailrun
  mailrun disk /var/lib/mailrun --rate 500/s --message-size 16k
  mailrun disk /var/lib/mailrun --json | jq .reachable

Exit status:
    0  the rate can be reached, or none was asked for
    1  the rate cannot be reached
    2  DIR cannot be written to, or is full
    3  a rate was asked for, and DIR is in memory (tmpfs)
  130  interrupted; what was measured is printed";

/// Largest `--message-size`: 16 MiB. The test writes up to 64 messages of this size at once, which are 1 GiB.
const MAX_MESSAGE_BYTES: u64 = 16 << 20;

fn message_bytes(text: &str) -> Result<u64, String> {
    match values::some_bytes(text)? {
        bytes if bytes > MAX_MESSAGE_BYTES => Err(format!("{text:?} is too large; at most 16M")),
        bytes => Ok(bytes),
    }
}

impl DiskArgs {
    pub(super) fn run(self) -> Result<ExitCode> {
        let live = if self.quiet || self.json { LiveMode::Off } else { LiveMode::Line };
        let options = DiskTestOptions {
            directory: self.directory,
            duration: self.duration,
            message_bytes: self.message_size,
            rate_per_s: self.rate,
            live,
        };
        let result = measure(&options)?;
        match (self.json, self.quiet) {
            (true, _) => crate::report::messages::say(&format!("{}\n", serde_json::to_string(&result)?))?,
            (false, true) => crate::report::messages::say(&CharacterSet::of_environment().encode(&verdict(&result)))?,
            (false, false) => crate::report::messages::say(&CharacterSet::of_environment().encode(&text(&result)))?,
        }
        Ok(match result.outcome {
            _ if result.interrupted => ExitCode::from(INTERRUPTED_STATUS),
            Some(Outcome::Fail) => ExitCode::from(1),
            Some(Outcome::Invalid | Outcome::Inconclusive) => ExitCode::from(3),
            Some(Outcome::Pass) | None => ExitCode::SUCCESS,
        })
    }
}

fn text(result: &DiskTestResult) -> String {
    let directory = printable(&result.directory).into_owned();
    let mut text = format!("{directory}: {}, a segment of {}\n\n", disk_name(result), memory(result.segment_bytes));
    text.push_str("message   group    syncs/s      msg/s     MB/s     p50 ms     p99 ms     max ms\n");
    for row in &result.rows {
        let _ = writeln!(
            text,
            "{:<9}{:>6} {:>10} {:>10} {:>8} {:>10.3} {:>10.3} {:>10.3}",
            octets(row.message_bytes),
            row.group,
            rate(row.syncs_per_s),
            rate(row.messages_per_s),
            megabytes(row.bytes_per_s),
            row.p50_ms,
            row.p99_ms,
            row.max_ms
        );
    }
    text.push('\n');
    for warning in &result.warnings {
        let _ = writeln!(text, "Note: {warning}");
    }
    text + &verdict(result)
}

/// Describes the disk, for example `ext4 on /dev/vda (Samsung 990)`. Parts that are unknown are left out.
fn disk_name(result: &DiskTestResult) -> String {
    let Some(HostDisk { file_system, device, model, rotational }) = &result.disk else {
        return "an unknown disk".to_owned();
    };
    let device = device.as_ref().map_or_else(String::new, |device| format!(" on {device}"));
    let model = model.as_ref().map_or_else(String::new, |model| format!(" ({model})"));
    let kind = if *rotational == Some(true) { ", rotating" } else { "" };
    printable(&format!("{file_system}{device}{model}{kind}")).into_owned()
}

fn verdict(result: &DiskTestResult) -> String {
    let Some(reachable) = result.reachable else {
        return "Interrupted before there was a figure for messages of that size.\n".to_owned();
    };
    let size = octets(reachable.message_bytes);
    let (rate, group) = (format_value(reachable.rate_per_s, "/s"), count(u64::from(reachable.group)));
    let can = format!("a durable relay can reach {rate} with messages of {size} here, {group} per sync");
    let required = result.required_rate_per_s.map(|required| format_value(required, "/s")).unwrap_or_default();
    match result.outcome {
        _ if result.interrupted => format!("Interrupted: as far as it was measured, {can}.\n"),
        None if !result.durable => "No verdict: these figures are those of memory.\n".to_owned(),
        None => format!("So {can}.\n"),
        Some(outcome @ (Outcome::Pass | Outcome::Fail)) => {
            let word = if outcome == Outcome::Pass { "PASS" } else { "FAIL" };
            let group = counted(u64::from(reachable.group), "message");
            format!("{word}  {rate} of {required} ({group} of {size} per sync)\n")
        }
        Some(Outcome::Invalid | Outcome::Inconclusive) => {
            format!("INVALID  {required} needed; these figures are those of memory.\n")
        }
    }
}
