//! The record of a trial, as the search has to know it: losses for each goal, backlog, and whether it counts at all.
use crate::bench::{BenchTarget, Contestant};
use ::capacity::{BacklogSample, SearchTrial, TrialFigures, TrialLoad, TrialOutcome, VoidCause, backlog_growth};
use anyhow::{Result, bail};
use journey::Stage;
use journey::record::{Cause, Outcome, Record, Role, StageRow};
use journey::threshold::LossGoal;
use report::capacity::JudgedTrial;

/// Share of the messages due that the source may have left undone at the end: they waited for a session for no longer than
/// a backlog may grow.
const MAX_UNSENT: f64 = 0.01;
/// Longest time in which a backlog has to be gone.
const DRAIN_LIMIT_S: f64 = 5.0;

/// Judges a trial.
///
/// # Errors
///
/// If a goal concerns something that the record does not have.
pub(super) fn judge_trial(
    record: &Record,
    goals: &[LossGoal],
    trial: SearchTrial,
    target: &BenchTarget,
    spent_s: f64,
) -> Result<JudgedTrial> {
    let last = last_stage(record);
    let delivered_per_s = last.map_or(0.0, |row| row.offered_rate_per_s.unwrap_or(row.rate_per_s));
    let outcome = match ending(record, target) {
        Some(outcome) => outcome,
        None => match void_cause(record, target) {
            Some(cause) => TrialOutcome::Void { cause, delivered_per_s, spent_s },
            None => TrialOutcome::Measured(figures(record, goals, trial, delivered_per_s, spent_s)?),
        },
    };
    let latency_ms = last.and_then(|row| row.latency_ms);
    Ok(JudgedTrial { outcome, latency_ms, delivered_per_s, why: record.verdict.why.clone() })
}

/// The last stage that somebody saw.
fn last_stage(record: &Record) -> Option<&StageRow> {
    let row = |name: Stage| record.stages.iter().find(|row| row.name == name);
    record.ledger.delivered.and_then(|_| row(Stage::Delivered)).or_else(|| row(Stage::Accepted))
}

/// An outcome that ends the search, if it is one.
///
/// The queue of a server that is not ours cannot be read: mail that has not come when nothing comes any more may be in it,
/// and is a loss of the trial. Mail of our own relay, or without a relay, is lost.
fn ending(record: &Record, target: &BenchTarget) -> Option<TrialOutcome> {
    let has = |cause: Cause| record.verdict.causes.contains(&cause);
    let is_queue_known = match target {
        BenchTarget::OwnSink => true,
        BenchTarget::Relay(contestant) => matches!(contestant, Contestant::Mailrun(_)),
        BenchTarget::Server { .. } => false,
    };
    match () {
        () if has(Cause::Interrupted) => Some(TrialOutcome::Stopped),
        () if has(Cause::Corrupt) || has(Cause::Died) || has(Cause::Defect) || has(Cause::Unaccounted) => {
            Some(TrialOutcome::MailLost)
        }
        () if has(Cause::Lost) && is_queue_known => Some(TrialOutcome::MailLost),
        () => None,
    }
}

/// The limit of a trial that says nothing about the server.
fn void_cause(record: &Record, target: &BenchTarget) -> Option<VoidCause> {
    // Without a server the sink is what is measured: a rate that it did not take is its own.
    let is_direct = *target == BenchTarget::OwnSink;
    let counts = |cause: &&Cause| {
        cause.outcome() == Some(Outcome::Invalid)
            && !matches!(cause, Cause::RelayDefect)
            && !(is_direct && **cause == Cause::RateNotOffered)
    };
    let cause = record.verdict.causes.iter().find(counts)?;
    Some(match cause {
        Cause::Stolen | Cause::Exhausted => VoidCause::Host,
        Cause::Busy if busiest(record) == Some(Role::Sink) => VoidCause::Sink,
        _ => VoidCause::Generator,
    })
}

/// The busier one of source and sink.
fn busiest(record: &Record) -> Option<Role> {
    let parties = record.parties.iter().filter(|party| party.role != Role::Relay);
    let share = |party: &&journey::record::Party| {
        Some((party.user_s? + party.sys_s?) / f64::from(party.workers.unwrap_or(1).max(1)))
    };
    let known = parties.filter_map(|party| Some((share(&party)?, party.role)));
    known.max_by(|one, other| one.0.total_cmp(&other.0)).map(|(_, role)| role)
}

fn figures(
    record: &Record,
    goals: &[LossGoal],
    trial: SearchTrial,
    delivered_per_s: f64,
    spent_s: f64,
) -> Result<TrialFigures> {
    let due = due(record, trial);
    let mut loss_ratios = Vec::new();
    for goal in goals {
        let Some(lost) = goal.lost_share(record, due) else {
            bail!("{}: the server's mail has no such figure", goal.expression());
        };
        loss_ratios.push(lost);
    }
    Ok(TrialFigures {
        loss_ratios,
        delivered_per_s,
        backlog_growth_per_s: growth(record, trial),
        is_drained: is_drained(record, trial.duration_s),
        spent_s,
    })
}

/// Messages that were due.
fn due(record: &Record, trial: SearchTrial) -> u64 {
    let created = record.stages.iter().find(|row| row.name == Stage::Created).map_or(0, |row| row.count);
    let TrialLoad::RatePerS(rate) = trial.load else { return created };
    let due = (rate * trial.duration_s).floor();
    if created as f64 >= due * (1.0 - MAX_UNSENT) { created } else { due as u64 }
}

/// Growth of what was accepted and not yet delivered.
///
/// The rows of the series count at the parties' reports, a quarter of a second apart: their difference is no backlog. But by
/// Little's law a backlog is rate × latency, and it cannot have grown by more than was left at the end: rate × drain time.
fn growth(record: &Record, trial: SearchTrial) -> Option<f64> {
    let TrialLoad::RatePerS(rate) = trial.load else { return None };
    record.ledger.delivered?;
    let first = record.series.iter().find(|row| row.created > 0)?.second;
    let timed = record.series.iter().filter(|row| row.delivered > 0 && row.p50_ms > 0.0);
    let sample = |row: &journey::record::SeriesRow| BacklogSample {
        at_s: (row.second + 1).saturating_sub(first) as f64,
        messages: row.p50_ms / 1e3 * rate,
    };
    let samples: Vec<BacklogSample> = timed.map(sample).collect();
    let growth = backlog_growth(&samples, trial.duration_s)?;
    let half_s = trial.duration_s / 2.0;
    Some(growth.min(rate * drain_s(record, trial.duration_s).max(0.0) / half_s))
}

/// Time from the end of the load to the last delivery.
fn drain_s(record: &Record, duration_s: f64) -> f64 {
    let offered_s = record.offered_s.unwrap_or(duration_s);
    last_stage(record).map_or(0.0, |row| row.duration_s) - offered_s
}

/// Reports whether everything was delivered soon after the load ended.
fn is_drained(record: &Record, duration_s: f64) -> bool {
    let is_left = record.verdict.causes.contains(&Cause::Unfinished) || record.ledger.lost.is_some_and(|lost| lost > 0);
    let is_unseen = record.ledger.delivered.is_none();
    // What nobody watches is in flight for ever.
    (is_unseen || !is_left) && drain_s(record, duration_s) <= duration_s.min(DRAIN_LIMIT_S)
}
