//! The exit status of a run.
use mailrun_measurement::record::{Cause, Ending, Outcome, Record};
use mailrun_process::interrupt::INTERRUPTED_STATUS;
use std::process::ExitCode;

/// Decides whether a verdict of INVALID or INCONCLUSIVE counts as success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strictness {
    /// It does, because neither a threshold nor a rate was asked for.
    Lenient,
    /// It does not, because of a threshold, a rate or `--strict`.
    Strict,
}

impl Strictness {
    pub(crate) fn of(is_strict: bool) -> Self {
        if is_strict { Self::Strict } else { Self::Lenient }
    }
}

/// Returns the exit status for a run record. A run never succeeds if mail was not delivered, if it
/// has no figure at all, or if it lacked a resource that it needed to send all of its mail.
pub(crate) fn exit_code(record: &Record, strictness: Strictness) -> ExitCode {
    let has_failed = record.ledger.failed > Some(0) || record.ledger.in_doubt > Some(0);
    let is_short = has_failed || record.parties.iter().any(|party| party.died.is_some());
    let is_never_success = record.verdict.causes.iter().any(|cause| match cause {
        Cause::NotDelivered | Cause::NothingTimed => true,
        Cause::Exhausted => is_short,
        _ => false,
    });
    let strictness = if is_never_success { Strictness::Strict } else { strictness };
    exit_status(record.verdict.outcome, record.ending == Some(Ending::Interrupted), strictness)
}

/// Returns the exit status for the outcome of a run, or of a scenario with many runs.
pub(crate) fn exit_status(outcome: Option<Outcome>, is_interrupted: bool, strictness: Strictness) -> ExitCode {
    match outcome {
        _ if is_interrupted => ExitCode::from(INTERRUPTED_STATUS),
        Some(Outcome::Pass) | None => ExitCode::SUCCESS,
        Some(Outcome::Fail) => ExitCode::from(1),
        Some(Outcome::Invalid | Outcome::Inconclusive) if strictness == Strictness::Lenient => ExitCode::SUCCESS,
        Some(Outcome::Invalid | Outcome::Inconclusive) => ExitCode::from(3),
    }
}
