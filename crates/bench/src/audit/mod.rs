//! An audit: does a server keep the mail that it answered 250? Rounds of load, each with a fault, then a restart, an empty
//! queue, and the account.
//!
//! ```text
//! faults × rounds ─→ round: source → server → sink, the fault at a random moment, the server back, its queue empty
//!                      └→ summary: one record of all rounds, a row for each kind of fault, the verdict
//! ```
mod fault;
mod round;
mod summary;

use crate::BenchOutcome;
use crate::directory::RunDirectory;
use crate::programs::own_program;
use crate::recipe::Recipe;
use anyhow::{Result, ensure};
pub use fault::AuditFault;
use mailrun_journey::threshold::Threshold;
use mailrun_party::interrupt::{Interrupt, Interrupted, StopRequest};
use mailrun_party::live::LiveMode;
use round::{Round, RoundResult};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Options of an audit.
#[derive(Clone, Debug)]
pub struct AuditOptions {
    pub recipe: Recipe,
    /// Kinds of faults, one after the other in each round.
    pub faults: Vec<AuditFault>,
    /// Rounds of each kind.
    pub rounds: u32,
    /// Seed of the moments of the faults.
    pub seed: u64,
    /// Messages of a round.
    pub messages: u64,
    /// Pause in arrivals after which no more mail is expected from a server that does not tell whether its queue is empty,
    /// or does not empty it.
    pub lost_after: Duration,
    pub thresholds: Vec<Threshold>,
    /// Directory for all files; `None` for a new directory under `mailrun-results/`.
    pub out: Option<PathBuf>,
    pub live: LiveMode,
    /// The command line that was typed.
    pub command: Vec<String>,
}

/// Runs an audit to its end, or until SIGINT or SIGTERM; either way there is a report of the rounds that came to their end.
///
/// # Errors
/// If it could not run at all: the server did not start.
pub fn run(options: &AuditOptions) -> Result<BenchOutcome> {
    let program = own_program()?;
    options.recipe.check_host(&program)?;
    let (faults, left_out) = possible_faults(options);
    left_out.iter().for_each(|line| mailrun_party::tell!("{line}"));
    ensure!(!faults.is_empty(), "no fault is left to audit {} with", options.recipe);
    let options = &AuditOptions { faults, ..options.clone() };
    let started_at = jiff::Timestamp::now();
    let name = format!("audit-{}", options.recipe);
    let mut directory = RunDirectory::create(options.out.as_deref(), &name, started_at)?;
    let interrupt = Interrupt::watch()?;
    let rounds = run_rounds(options, &program, &directory, &interrupt).inspect_err(|_| directory.discard())?;
    ensure!(!rounds.is_empty(), Interrupted::BEFORE_LOAD);
    let is_interrupted = interrupt.requested() != StopRequest::Nothing;
    let record = summary::record(options, started_at, directory.path(), rounds, is_interrupted);
    let unwritten = directory.save(&record).err();
    Ok(BenchOutcome { unwritten, ..BenchOutcome::of_merge(record, directory.path().to_owned()) })
}

/// The faults that can be made here, and lines about the others.
fn possible_faults(options: &AuditOptions) -> (Vec<AuditFault>, Vec<String>) {
    let (possible, others): (Vec<_>, Vec<_>) =
        options.faults.iter().copied().partition(|fault: &AuditFault| !fault.needs_disk());
    let reason = match options.recipe.uses_state() {
        _ if others.is_empty() => None,
        false => Some("the recipe keeps no mail in {state}".to_owned()),
        true => mailrun_forgetful::obstacle(),
    };
    let Some(reason) = reason else { return (options.faults.clone(), Vec::new()) };
    let line = |fault: &AuditFault| format!("mailrun: {} is left out: {reason}", fault.name());
    (possible, others.iter().map(line).collect())
}

fn run_rounds(
    options: &AuditOptions,
    program: &Path,
    directory: &RunDirectory,
    interrupt: &Interrupt,
) -> Result<Vec<RoundResult>> {
    let mut results = Vec::new();
    for number in 1..=options.rounds {
        for fault in &options.faults {
            if interrupt.requested() != StopRequest::Nothing {
                return Ok(results);
            }
            let place = directory.path().join(format!("round-{number}-{}", fault.name()));
            let own = RunDirectory::create(Some(&place), "audit", jiff::Timestamp::now())?;
            let round = Round { options, program, directory: &own, fault: *fault, number: u64::from(number) };
            let result = match round.run() {
                // What was cut short by the user says nothing of the server.
                Err(_) if interrupt.requested() != StopRequest::Nothing => return Ok(results),
                result => result?,
            };
            if options.live.is_shown() {
                mailrun_party::tell!(
                    "mailrun: round {number} of {}, {}: {}",
                    options.rounds,
                    fault.name(),
                    result.line()
                );
            }
            // Only a round with something to look at keeps its files.
            if result.is_good() {
                fs::remove_dir_all(own.path())?;
            }
            results.push(result);
        }
    }
    Ok(results)
}
