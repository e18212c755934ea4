//! `mailrun audit` tests whether a server keeps the mail that it answered with 250. In each round,
//! the source sends mail, a fault strikes the server, the server starts again and empties its
//! queue, and every message is accounted for.
//!
//! ```text
//! faults × rounds ─→ round: source → server → sink, a fault, the server back, its queue empty
//!                      └→ summary: one record, a row for each kind of fault, the verdict
//! ```
mod fault;
mod round;
mod summary;

use crate::BenchOutcome;
use crate::directory::RunDirectory;
use crate::programs::own_program;
use crate::recipe::Recipe;
use anyhow::{Result, bail, ensure};
pub use fault::AuditFault;
use mailrun_journey::judge;
use mailrun_journey::reason::Reason;
use mailrun_journey::record::Cause;
use mailrun_journey::threshold::Threshold;
use mailrun_party::interrupt::{Interrupt, Interrupted, StopRequest};
use mailrun_party::live::LiveMode;
use round::{Round, RoundEnd, RoundResult};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct AuditOptions {
    pub recipe: Recipe,
    /// Each round runs once for each of these faults, in this order.
    pub faults: Vec<AuditFault>,
    /// Number of rounds for each kind of fault.
    pub rounds: u32,
    /// Seed of the random moments at which the faults occur.
    pub seed: u64,
    /// Messages that the source sends in each round.
    pub messages: u64,
    /// If no mail arrives for this long, the round stops waiting for more. This limit matters if
    /// the server cannot tell whether its queue is empty, or if it does not empty its queue.
    pub lost_after: Duration,
    pub thresholds: Vec<Threshold>,
    /// Directory for all files. `None` creates a new directory under `mailrun-results/`.
    pub out: Option<PathBuf>,
    pub live: LiveMode,
    /// Command line that the user typed, for the record.
    pub command: Vec<String>,
}

/// Runs an audit until it is complete, until SIGINT or SIGTERM, or until a round cannot run. In all
/// cases, the report covers the rounds that were completed.
///
/// # Errors
/// If none of the faults can be caused on this host, or if the first round cannot run, for example
/// because the server does not start, or because the user interrupts it.
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
    let mut rounds = Vec::new();
    let failed = run_rounds(options, &program, &directory, &interrupt, &mut rounds).err();
    if rounds.is_empty() {
        failed.map_or(Ok(()), Err).inspect_err(|_| directory.discard())?;
        bail!(Interrupted::BEFORE_LOAD);
    }
    let is_interrupted = interrupt.requested() != StopRequest::Nothing;
    let mut record = summary::record(options, started_at, directory.path(), rounds, is_interrupted);
    if let Some(error) = &failed {
        let reason =
            Reason::new(Cause::Unfinished, format!("The audit ended early, because a round failed: {error:#}"));
        judge::add_reason(&mut record.verdict, reason, "");
    }
    let unwritten = failed.or(directory.save(&record).err());
    Ok(BenchOutcome { unwritten, ..BenchOutcome::of_merge(record, directory.path().to_owned()) })
}

/// Splits the faults into those that can be caused on this host and the others. For each of the
/// others there is a line that says why it is left out.
fn possible_faults(options: &AuditOptions) -> (Vec<AuditFault>, Vec<String>) {
    let (possible, others): (Vec<_>, Vec<_>) =
        options.faults.iter().copied().partition(|fault: &AuditFault| !fault.needs_disk());
    let reason = match options.recipe.uses_state() {
        _ if others.is_empty() => None,
        false => Some("the recipe keeps no mail in {state}".to_owned()),
        true => mailrun_forgetful::obstacle().or_else(mailrun_forgetful::sync_calls_obstacle),
    };
    let Some(reason) = reason else { return (options.faults.clone(), Vec::new()) };
    let line = |fault: &AuditFault| format!("mailrun: {} is left out: {reason}", fault.name());
    (possible, others.iter().map(line).collect())
}

/// Runs all rounds, or those until the user interrupts the audit. Adds the results to `results`,
/// which keeps those of the rounds before an error.
fn run_rounds(
    options: &AuditOptions,
    program: &Path,
    directory: &RunDirectory,
    interrupt: &Interrupt,
    results: &mut Vec<RoundResult>,
) -> Result<()> {
    for number in 1..=options.rounds {
        for fault in &options.faults {
            if interrupt.requested() != StopRequest::Nothing {
                return Ok(());
            }
            let place = directory.path().join(format!("round-{number}-{}", fault.name()));
            let own = RunDirectory::create(Some(&place), "audit", jiff::Timestamp::now())?;
            let round = Round { options, program, directory: &own, fault: *fault, number: u64::from(number) };
            let result = round.run();
            // If the user interrupts a round, its failure says nothing about the server.
            let has_account = matches!(&result, Ok(RoundResult { end: RoundEnd::Account(_), .. }));
            if !has_account && interrupt.requested() != StopRequest::Nothing {
                return Ok(());
            }
            let result = result?;
            if options.live.is_shown() {
                mailrun_party::tell!(
                    "mailrun: round {number} of {}, {}: {}",
                    options.rounds,
                    fault.name(),
                    result.line()
                );
            }
            let is_good = result.is_good();
            results.push(result);
            // Delete the files of a good round. Only the files of rounds with a loss or a failure
            // are worth inspecting.
            if is_good {
                fs::remove_dir_all(own.path())?;
            }
        }
    }
    Ok(())
}
