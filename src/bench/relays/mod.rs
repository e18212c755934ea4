//! Relays under test: how one is started between source and sink, what it used, and the published contest of several.
//!
//! ```text
//! contestant ─→ starting ─→ (bench::course) ─→ record      one run: source → relay → sink
//!   (words)     postfix: its private home      tree: what its processes used
//!
//! contest ─→ runs, interleaved ─→ measure ─→ sheet         relay-400, relay-64k: time to accept, time to deliver
//!   strace: system calls a message, in short runs of their own
//!
//! grounds ─→ latency (search)                              relay-latency: accept p99 at half the highest sustainable rate
//!        ├─→ backlog (operation, room)                     relay-backlog: a queue without a next hop, and a restart on it
//!        └─→ soak (memory)                                 relay-soak: memory and disk over a million messages
//!            each with its goals: PASS or MISSED
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
mod postfix;
mod report;
mod scenario;
mod search;
mod soak;
mod strace;
pub(super) mod tree;

use super::contestant;
pub(crate) use super::contestant::{Contestant, ContestantDurability};
pub(crate) use backlog::{BacklogOptions, MemoryTarget, ReadyTarget, run as run_backlog};
pub(crate) use comparison::{RelayComparisonOptions, run};
pub(super) use disk::DiskCounter;
pub(super) use disk_usage::{DiskUsage, used_bytes};
pub(crate) use latency::{LatencyOptions, run as run_latency};
pub(super) use launch::{ReadySignal, RelayLaunch, prepare};
pub(super) use listener::CERTIFICATE_FILE;
pub(crate) use listener::{ListenerOptions, OwnCertificate, RelayLogin};
pub(super) use memory::MemoryCurve;
pub(super) use report::MedianRange;
pub(crate) use scenario::{LoadShape, ScenarioOptions};
pub(crate) use soak::{MemoryGrowth, SoakOptions, run as run_soak};

use crate::bench::directory::RunDirectory;
use anyhow::{Context, Result, ensure};
use journey::ledger::Ledger;
use journey::record::{Party, Record, Role};
use journey::trace::RunId;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::process::{Command, Stdio};

/// File systems without permanent storage: tmpfs, ramfs (statfs(2)).
const MEMORY_FILESYSTEMS: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// The relay as a party of the run.
pub(super) fn party(contestant: &Contestant, own: Option<&Record>) -> Option<Party> {
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
        durability: contestant.durability().to_owned(),
        faults: Vec::new(),
        workers: known.and_then(|party| party.workers),
        failed_sessions: known.and_then(|party| party.failed_sessions),
        ordered: None,
        died: None,
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
    let said = String::from_utf8_lossy(&ended.stderr);
    ensure!(ended.status.success(), "{}", said.trim().trim_start_matches("mailrun: "));
    let file = File::open(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ledger::read_from(BufReader::new(file)).with_context(|| format!("cannot read {}", path.display()))
}

/// The last complaint in the log that a relay has in its directory. Postfix reports to no other place.
pub(super) fn last_log_error(directory: &RunDirectory) -> Option<String> {
    let log = std::fs::read(directory.spool().join("log")).ok()?;
    let log = String::from_utf8_lossy(&log);
    let is_complaint = |line: &&str| ["fatal:", "panic:", "error:"].iter().any(|word| line.contains(word));
    log.lines().rev().find(is_complaint).map(str::to_owned)
}

/// Reports whether the files below that directory are in memory, so that a sync proves nothing.
pub(super) fn is_in_memory(directory: &Path) -> bool {
    rustix::fs::statfs(directory).is_ok_and(|filesystem| MEMORY_FILESYSTEMS.contains(&(filesystem.f_type as u64)))
}
