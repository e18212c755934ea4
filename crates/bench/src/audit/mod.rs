//! `mailrun audit` tests whether a server keeps the mail that it answered with 250. In each round,
//! the source sends mail, a fault strikes the server, the server starts again and empties its
//! queue, and every message is accounted for.
//!
//! ```text
//! queue_trial: does the recipe's command for the queue tell the truth?
//! faults × rounds ─→ round: source → server → sink, a fault, the server back, its queue empty
//!                      │    └→ reach: has the fault ended all of the server?
//!                      ├→ losses: what is missing, and the calls on the disk ─→ explain, story, restart
//!                      └→ summary: one record, a row for each kind of fault, the verdict
//! ```
mod explain;
mod fault;
mod losses;
mod options;
mod outage;
mod queue_trial;
mod reach;
mod restart;
mod round;
mod story;
mod summary;

use crate::BenchOutcome;
use crate::directory::RunDirectory;
use crate::programs::own_program;
use crate::recipe::leftovers;
use anyhow::{Context, Result, bail, ensure};
pub use explain::explain;
use fault::AuditCase;
pub use fault::AuditFault;
pub use mailrun_crashfs::Profile;
use mailrun_measurement::judge;
use mailrun_measurement::reason::Reason;
use mailrun_measurement::record::Cause;
use mailrun_process::interrupt::{Interrupt, Interrupted, StopRequest};
pub use options::{AuditLength, AuditOptions};
use round::{Round, RoundEnd, RoundLoad, RoundResult};
use std::fs;
use std::path::Path;
use std::time::Instant;

/// If the first three rounds of a fault were all void, the audit no longer tries this fault. A void round says nothing
/// about the server, for example because the fault did not end all of the server's processes.
const MAX_VOID_ROUNDS: usize = 3;

/// Runs an audit until it is complete, until SIGINT or SIGTERM, or until a round cannot run. In all
/// cases, the report covers the rounds that were completed.
///
/// # Errors
/// Fails if none of the faults can be caused on this host. Also fails if the first round cannot run, for example
/// because the server does not start or because the user interrupts the round.
pub fn run(options: &AuditOptions) -> Result<BenchOutcome> {
    let program = own_program()?;
    ensure!(
        options.recipe.mailboxes().is_none(),
        "{} delivers to mailboxes, and an audit needs a server that hands mail on to its sink",
        options.recipe
    );
    options.recipe.check_host(&program)?;
    let (faults, left_out) = possible_faults(options);
    left_out.iter().for_each(|line| mailrun_process::tell!("mailrun: {line}"));
    ensure!(!faults.is_empty(), "no fault is left to audit {} with", options.recipe);
    let options = &AuditOptions { faults, ..options.clone() };
    let started_at = jiff::Timestamp::now();
    let name = format!("audit-{}", options.recipe);
    let mut directory = RunDirectory::create(options.out.as_deref(), &name, started_at)?;
    let interrupt = Interrupt::watch()?;
    leftovers::adopt_orphans().context("cannot adopt the processes of the server")?;
    let queue_complaint =
        try_queue(options, &program, &directory).inspect_err(|_| directory.discard())?.map(str::to_owned);
    let mut rounds = Vec::new();
    let trusts_queue = options.recipe.knows_its_queue() && queue_complaint.is_none();
    let failed = run_rounds(options, (&program, trusts_queue), &directory, &interrupt, &mut rounds).err();
    if rounds.is_empty() {
        failed.map_or(Ok(()), Err).inspect_err(|_| directory.discard())?;
        bail!(Interrupted::BEFORE_LOAD);
    }
    let is_interrupted = interrupt.requested() != StopRequest::Nothing;
    let findings = summary::Findings { rounds, left_out, queue_complaint, is_interrupted };
    let mut record = summary::record(options, started_at, directory.path(), findings);
    if let Some(error) = &failed {
        let reason =
            Reason::new(Cause::Unfinished, format!("The audit ended early, because a round failed: {error:#}"));
        judge::add_reason(&mut record.verdict, reason, "");
    }
    let unwritten = failed.or(directory.save(&record).err());
    Ok(BenchOutcome { unwritten, ..BenchOutcome::of_merge(record, directory.path().to_owned()) })
}

/// Returns the faults that can be caused on this host, and for each of the others a line that says why it is left out.
fn possible_faults(options: &AuditOptions) -> (Vec<AuditFault>, Vec<String>) {
    let (possible, others): (Vec<_>, Vec<_>) =
        options.faults.iter().copied().partition(|fault: &AuditFault| !fault.needs_disk());
    let reason = match options.recipe.uses_state() {
        _ if others.is_empty() => None,
        false => Some("the recipe keeps no mail in {state}".to_owned()),
        true => mailrun_crashfs::obstacle().or_else(mailrun_crashfs::sync_calls_obstacle),
    };
    let Some(reason) = reason else { return (options.faults.clone(), Vec::new()) };
    let line = |fault: &AuditFault| format!("{} was left out: {reason}", fault.name());
    (possible, others.iter().map(line).collect())
}

/// Tests the recipe's queue command in a round of its own, because the audit calls mail lost only if this command says
/// that the queue is empty. Returns what is wrong with the command, or `None` if the round has shown no defect.
fn try_queue(options: &AuditOptions, program: &Path, directory: &RunDirectory) -> Result<Option<&'static str>> {
    let own = RunDirectory::create(Some(&directory.path().join("trial")), "audit", jiff::Timestamp::now())?;
    let case = AuditCase::new(AuditFault::Kill, None);
    let trial =
        Round { options, program, directory: &own, case, number: 0, load: RoundLoad::Trial, trusts_queue: true };
    let complaint = trial.try_queue();
    leftovers::reap_orphans();
    let complaint = complaint?;
    match complaint {
        Some(complaint) => mailrun_process::tell!("mailrun: the recipe's [queue] command {complaint}"),
        None => fs::remove_dir_all(own.path())?,
    }
    Ok(complaint)
}

/// Runs all rounds, or stops early if the user interrupts the audit. Adds the result of each round to `results`, so
/// that after an error the results of the earlier rounds are still there.
fn run_rounds(
    options: &AuditOptions,
    (program, trusts_queue): (&Path, bool),
    directory: &RunDirectory,
    interrupt: &Interrupt,
    results: &mut Vec<RoundResult>,
) -> Result<()> {
    let began = Instant::now();
    for number in 1.. {
        if options.length == AuditLength::Rounds(number - 1) {
            return Ok(());
        }
        let cases: Vec<AuditCase> = AuditCase::all(&options.faults, &options.file_systems)
            .into_iter()
            .filter(|case| !is_given_up(*case, results))
            .collect();
        if cases.is_empty() {
            return Ok(());
        }
        for case in cases.into_iter().filter(|case| case.is_due(number)) {
            // Run at least one round even if the time is already over, because an audit needs a result.
            let is_over = matches!(options.length, AuditLength::Time(time) if began.elapsed() >= time);
            if is_over && !results.is_empty() || interrupt.requested() != StopRequest::Nothing {
                return Ok(());
            }
            let place = directory.path().join(format!("round-{number}-{}", case.name().replace(' ', "-")));
            let own = RunDirectory::create(Some(&place), "audit", jiff::Timestamp::now())?;
            let round = Round {
                options,
                program,
                directory: &own,
                case,
                number: u64::from(number),
                load: load_of(number, case.fault),
                trusts_queue,
            };
            let result = round.run();
            leftovers::reap_orphans();
            // Drop a round that the user interrupted, because its failure says nothing about the server.
            let has_account = matches!(&result, Ok(RoundResult { end: RoundEnd::Account(_), .. }));
            if !has_account && interrupt.requested() != StopRequest::Nothing {
                return Ok(());
            }
            let result = result?;
            if options.live.is_shown() {
                let of = match options.length {
                    AuditLength::Rounds(rounds) => format!(" of {rounds}"),
                    AuditLength::Time(_) => String::new(),
                };
                mailrun_process::tell!("mailrun: round {number}{of}, {}: {}", case.name(), result.line());
            }
            let is_good = result.is_good();
            results.push(result);
            // Delete the files of a good round, because only the files of rounds with a loss or a failure are worth
            // inspecting.
            if is_good {
                fs::remove_dir_all(own.path())?;
            } else {
                options.recipe.remove_root(&own.spool())?;
            }
        }
    }
    Ok(())
}

/// Chooses whether a round sends many messages or a single one. If the fault can lose mail even when the server writes
/// nothing, every second round sends only a single message.
fn load_of(round: u32, fault: AuditFault) -> RoundLoad {
    if round.is_multiple_of(2) && fault.strikes_at_rest() { RoundLoad::Quiet } else { RoundLoad::Full }
}

fn is_given_up(case: AuditCase, results: &[RoundResult]) -> bool {
    let mut own = results.iter().filter(|result| result.case == case);
    own.clone().count() >= MAX_VOID_ROUNDS && own.all(RoundResult::is_void)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_least_a_third_of_the_rounds_have_a_single_message() {
        for rounds in 2..50_u32 {
            let loads = (1..=rounds).map(|round| load_of(round, AuditFault::Kill));
            let quiet = loads.filter(|load| *load == RoundLoad::Quiet).count();
            assert!(3 * quiet as u32 >= rounds, "{rounds}");
        }
        assert_eq!(load_of(2, AuditFault::DiskFull), RoundLoad::Full, "nothing would be written then");
    }
}
