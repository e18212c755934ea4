//! Relays under test: how one is started between source and sink, what it used, and the scenarios that measure relays.
//!
//! ```text
//! contestant ─→ launch ─→ (bench::supervisor) ─→ record    one run: source → relay → sink
//!   (words)      its recipe, or its command        tree: what its processes used
//!
//! comparison ─→ (engine::run_all) ─→ measure ─→ report     relay-400, relay-64k, relay-100k: time to accept, time to deliver
//!   strace: system calls a message, in short runs of their own
//!
//! scenario ─→ latency (search)                             relay-latency: accept p99 at half the highest sustainable rate
//!         ├─→ backlog (operation, disk_usage)              relay-backlog: a queue without a next hop, and a restart on it
//!         └─→ soak (memory)                                relay-soak: memory and disk over a million messages
//!             each with its goals: PASS or FAIL
//! ```
mod backlog;
mod comparison;
mod disk;
mod disk_usage;
mod goals;
mod latency;
mod launch;
mod listener;
mod measure;
mod memory;
mod operation;
mod port;
mod ready_signal;
mod report;
mod scenario;
mod search;
mod soak;
pub(crate) mod strace;
pub(super) mod tree;

use super::contestant;
pub use super::contestant::{Contestant, ContestantDurability, name_apart};
pub use backlog::{BacklogOptions, MemoryTarget, ReadyTarget, run as run_backlog};
pub use comparison::RelayComparisonOptions;
pub(super) use disk::DiskCounter;
pub(super) use disk_usage::{DiskUsage, used_bytes};
pub use latency::{LatencyOptions, SustainedLimits, run as run_latency};
pub(super) use launch::{check as check_relay, launch_server, prepare};
pub(super) use listener::CERTIFICATE_FILE;
pub use listener::{ListenerOptions, OwnCertificate, RelayLogin};
pub(super) use memory::MemoryCurve;
pub(super) use port::free as free_port;
pub(super) use ready_signal::{ReadySignal, RelayLaunch};
pub use scenario::{LoadShape, ScenarioOptions};
pub use soak::{MemoryGrowth, SoakOptions, run as run_soak};

use crate::directory::RunDirectory;
use crate::engine::TextReport;
use anyhow::{Context, Result, ensure};
use mailrun_journey::ledger::Ledger;
use mailrun_journey::record::{Party, Record, Role};
use mailrun_journey::trace::RunId;
use mailrun_party::cpus::CpuList;
pub(super) use scenario::ScenarioRun;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::process::{Command, Stdio};

/// File systems without permanent storage: tmpfs, ramfs (statfs(2)).
const MEMORY_FILESYSTEMS: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// Runs a comparison of relays to its end, or until SIGINT or SIGTERM; either way there is a table of what was run.
///
/// # Errors
///
/// If it could not run at all. A relay that fails is named in the table.
pub fn run(options: &RelayComparisonOptions) -> Result<TextReport> {
    options.contestants.iter().try_for_each(launch::check)?;
    let scenario = ScenarioRun::prepare(&options.scenario)?;
    let results = comparison::run_all(options, &scenario);
    scenario.save(report::of(&results, options))
}

/// The relay as a party of the run.
pub(super) fn party(contestant: &Contestant, cpus: Option<&CpuList>, own: Option<&Record>) -> Option<Party> {
    contestant.role()?;
    // Its own figures: our own relay writes a record.
    let known = own.and_then(|record| record.parties.iter().find(|party| party.role == Role::Relay));
    Some(Party {
        role: Role::Relay,
        name: contestant.to_string(),
        command: Vec::new(),
        user_s: None,
        sys_s: None,
        max_rss_bytes: None,
        write_bytes: None,
        durability: contestant.durability(),
        faults: Vec::new(),
        workers: known.and_then(|party| party.workers),
        failed_sessions: known.and_then(|party| party.failed_sessions),
        ordered: None,
        died: None,
        busy_poll: known.and_then(|party| party.busy_poll.clone()),
        cpus: cpus.map(ToString::to_string),
        wake_up_ms: None,
    })
}

/// Units of a run in the queue of our own relay, which has stopped.
///
/// # Errors
/// If the queue cannot be read.
pub(super) fn queued(program: &Path, directory: &RunDirectory, run: RunId) -> Result<Ledger> {
    let path = directory.file(Role::Relay, "ledger");
    let mut command = Command::new(program);
    command.args(["queue", "units", "--run-id", &run.to_string(), "--ledger"]).arg(&path);
    command.arg("--spool").arg(directory.spool()).stdin(Stdio::null()).stdout(Stdio::null());
    let ended = command.output().context("cannot start mailrun queue")?;
    let stderr = String::from_utf8_lossy(&ended.stderr);
    ensure!(ended.status.success(), "{}", stderr.trim().trim_start_matches("mailrun: "));
    let file = File::open(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ledger::read_from(BufReader::new(file)).with_context(|| format!("cannot read {}", path.display()))
}

/// Reports whether the files below that directory are in memory, so that a sync proves nothing.
pub(super) fn is_in_memory(directory: &Path) -> bool {
    rustix::fs::statfs(directory).is_ok_and(|filesystem| MEMORY_FILESYSTEMS.contains(&(filesystem.f_type as u64)))
}
