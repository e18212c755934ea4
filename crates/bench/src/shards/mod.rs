//! Merges the results of several machines into one run. Each machine has sent one part of the load. The merge combines
//! the records and the ledgers of the sources with the arrivals at the sinks, and gives one verdict on the whole load.
//!
//! ```text
//! run.json + ledger of each part ─→ parts ─→ union of records, of ledgers ─┐
//! sinks, running or ended        ─→ sinks ─→ union of records, of ledgers ─┴→ account → thresholds → verdict → files
//! ```
mod parts;
mod sinks;

use crate::directory::RunDirectory;
use crate::{BenchOutcome, gather};
use anyhow::{Result, ensure};
use jiff::Timestamp;
use mailrun_measurement::account::{ServerQueue, Topology};
use mailrun_measurement::clocks::clock_reason;
use mailrun_measurement::judge::{self, VerdictInputs, judge};
use mailrun_measurement::merge::merge_records;
use mailrun_measurement::record::{Cause, FORMAT, Record};
use mailrun_measurement::threshold::{RunProtocol, Threshold};
use mailrun_process::outputs;
use parts::Parts;
use sinks::{AllArrivals, Sinks};
use std::fs;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug)]
pub struct MergeOptions {
    pub directories: Vec<PathBuf>,
    /// Sinks of the load, each as the HTTP address of a running sink or as the directory of a sink that has ended.
    pub sinks: Vec<String>,
    /// Directory for the result, or `None` for a new directory under `mailrun-results/`.
    pub out: Option<PathBuf>,
    /// Name of the merged run, or `None` to use the name in the records of the parts.
    pub name: Option<String>,
    /// Thresholds that the merged run must meet in addition to the thresholds of its parts.
    pub thresholds: Vec<Threshold>,
}

/// Merges the parts of a load into a run, and writes the run's files.
///
/// # Errors
/// Returns an error if no part can be read, if the parts belong to different plans or runs, or if a
/// sink does not answer.
pub fn merge(options: &MergeOptions) -> Result<BenchOutcome> {
    check_directories(options)?;
    let parts = Parts::read(&options.directories)?;
    let sinks = Sinks::open(&options.sinks)?;
    let arrived = sinks.collect(&parts)?;
    let name = options.name.clone().unwrap_or_else(|| parts.source.name.clone());
    let mut directory = RunDirectory::create(options.out.as_deref(), &name, Timestamp::now())?;
    let record = run_record(options, name, parts, arrived);
    let unwritten = directory.save(&record).err();
    Ok(BenchOutcome { unwritten, ..BenchOutcome::of_merge(record, directory.path().to_owned()) })
}

/// Refuses an output directory with files of a part or a sink, because writing the result there would delete them.
fn check_directories(options: &MergeOptions) -> Result<()> {
    let Some(out) = options.out.as_ref().and_then(|out| fs::canonicalize(out).ok()) else { return Ok(()) };
    let is_out = |path: &Path| fs::canonicalize(path).is_ok_and(|path| path == out);
    let is_part = options.directories.iter().any(|path| is_out(path));
    ensure!(!is_part, "--out {} is the directory of a part: name another", out.display());
    let is_sink = options.sinks.iter().any(|place| is_out(Path::new(place)));
    ensure!(!is_sink, "--out {} is the directory of a sink: name another", out.display());
    Ok(())
}

fn run_record(options: &MergeOptions, name: String, mut parts: Parts, arrived: Option<AllArrivals>) -> Record {
    let sink_clocks = arrived.as_ref().map_or(&[][..], |arrived| &arrived.clocks[..]);
    let clocks = parts.clock_error(sink_clocks);
    let unknown_clocks = parts.unknown_clocks(sink_clocks);
    let mut arrived = arrived.map(|arrived| arrived.results);
    let ledger = gather::close_account(&mut parts.source, Some(&parts.units), arrived.as_mut(), ServerQueue::Unknown);
    let mut reasons = parts.reasons;
    let started_at = parts.plan.start_at.parse::<Timestamp>().unwrap_or_default();
    let source = Record { workload: parts.plan.workload, shard: None, ..parts.source };
    let merged = merge_records(source, arrived.and_then(|arrived| arrived.record), ledger);
    let mut record = Record {
        format: FORMAT.to_owned(),
        name,
        started_at: started_at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        command: outputs::command_line(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..merged
    };
    // The source of each part parsed these thresholds before its run. If a threshold cannot be parsed now, somebody has
    // edited the part's record. In that case, report the parse error as a reason of the merged verdict.
    let read = |text: &String| Threshold::parse(text, RunProtocol::Smtp);
    let (planned, unreadable): (Vec<_>, Vec<_>) = parts.plan.thresholds.iter().map(read).partition(Result::is_ok);
    reasons.extend(unreadable.into_iter().filter_map(Result::err).map(parts::threshold_reason));
    let thresholds: Vec<Threshold> = planned.into_iter().flatten().chain(options.thresholds.iter().cloned()).collect();
    record.thresholds = thresholds.iter().map(|threshold| threshold.evaluate_run(&record)).collect();
    let rate = record.workload.rate_per_s;
    // If parts of the load are missing or late, not all messages were offered on time. The server is not to blame for
    // this, so do not judge the rate.
    record.workload.rate_per_s = rate.filter(|_| reasons.iter().all(|reason| reason.cause != Cause::RateNotOffered));
    record.verdict = judge(&record, &VerdictInputs { topology: Topology::Server, ordered: None, quiet_timeout: None });
    record.workload.rate_per_s = rate;
    if let Some(reason) = clock_reason(&record, clocks) {
        reasons.push(reason);
        reasons.extend(unknown_clocks);
    }
    for reason in reasons {
        let pass = judge::pass_text(&record);
        judge::add_reason(&mut record.verdict, reason, &pass);
    }
    record
}
