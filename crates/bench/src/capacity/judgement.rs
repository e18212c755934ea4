//! The record of a trial, as the search has to know it: losses for each goal, backlog, and whether it counts at all.
use anyhow::{Result, bail};
use mailrun_capacity::{BacklogSample, SearchTrial, TrialFigures, TrialLoad, TrialOutcome, VoidCause, backlog_growth};
use mailrun_journey::Stage;
use mailrun_journey::judge;
use mailrun_journey::record::{Arrival, Cause, Outcome, Record, Role, StageRow};
use mailrun_journey::threshold::{LossGoal, MetricValues as _};
use mailrun_report::capacity::JudgedTrial;
use mailrun_workload::offered_rate::OfferedRate;
use mailrun_workload::pacing::ArrivalSchedule;
use std::time::Duration;

/// Share of the messages due that the source may have left undone at the end of a trial that is too short for a growth.
const MAX_UNSENT: f64 = 0.01;
/// Share of a trial for which messages may have waited for a session at its end, if the backlog did not grow: the source ends
/// with the trial, and what waits then is no more late than what it sent last.
const MAX_WAIT: f64 = 0.1;
/// Longest time in which a backlog has to be gone.
const DRAIN_LIMIT_S: f64 = 5.0;

/// Target of the load of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TrialSubject {
    /// The sink, which is what is measured.
    Sink,
    Server,
}

/// Judges a trial.
///
/// # Errors
///
/// If a goal concerns something that the record does not have.
pub(super) fn judge_trial(
    record: &Record,
    goals: &[LossGoal],
    trial: SearchTrial,
    subject: TrialSubject,
    spent_s: f64,
) -> Result<JudgedTrial> {
    let last = last_stage(record);
    let delivered_per_s = last.map_or(0.0, |row| row.offered_rate_per_s.unwrap_or(row.rate_per_s));
    let outcome = match ending(record) {
        Some(outcome) => outcome,
        None => match void_cause(record, subject) {
            Some(cause) => TrialOutcome::Void { cause, delivered_per_s, spent_s },
            None => TrialOutcome::Measured(figures(record, goals, trial, delivered_per_s, spent_s)?),
        },
    };
    let stage = goals.iter().find_map(LossGoal::stage);
    let latency_ms = stage.map_or_else(|| last.and_then(|row| row.latency_ms), |stage| record.summary(stage));
    Ok(JudgedTrial { outcome, latency_ms, delivered_per_s, why: record.verdict.why.clone() })
}

/// The last stage that somebody saw.
fn last_stage(record: &Record) -> Option<&StageRow> {
    let row = |name: Stage| record.stages.iter().find(|row| row.name == name);
    record.ledger.delivered.and_then(|_| row(Stage::Delivered)).or_else(|| row(Stage::Accepted))
}

/// An outcome that ends the search, if it is one.
///
/// What is in the queue of our own relay is late. The queue of another server cannot be read: there mail is late if it comes
/// before a pause in arrivals of [`BenchOptions::lost_after`](crate::BenchOptions::lost_after), and else nothing is known.
fn ending(record: &Record) -> Option<TrialOutcome> {
    let has = |cause: Cause| record.verdict.causes.contains(&cause);
    let losses = [Cause::Lost, Cause::NotDelivered, Cause::Corrupt, Cause::Died, Cause::Defect, Cause::Unaccounted];
    match () {
        () if has(Cause::Interrupted) => Some(TrialOutcome::Stopped),
        () if losses.into_iter().any(has) => Some(TrialOutcome::MailLost),
        () => None,
    }
}

/// The limit of a trial that says nothing about the server.
fn void_cause(record: &Record, subject: TrialSubject) -> Option<VoidCause> {
    // A rate that the sink did not take is its own, where it is what is measured.
    let is_direct = subject == TrialSubject::Sink;
    let counts = |cause: &&Cause| {
        cause.outcome() == Some(Outcome::Invalid)
            && !matches!(cause, Cause::RelayDefect)
            && !(is_direct && **cause == Cause::RateNotOffered)
    };
    let Some(cause) = record.verdict.causes.iter().find(counts) else {
        return judge::behind_schedule(record).map(|_| VoidCause::Generator);
    };
    Some(match cause {
        Cause::Stolen | Cause::Exhausted => VoidCause::Host,
        Cause::Busy if busiest(record) == Some(Role::Sink) => VoidCause::Sink,
        _ => VoidCause::Generator,
    })
}

/// The busier one of source and sink.
fn busiest(record: &Record) -> Option<Role> {
    let parties = record.parties.iter().filter(|party| party.role != Role::Relay);
    let share = |party: &&mailrun_journey::record::Party| {
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
    let growth = growth(record, trial);
    let mut loss_ratios = Vec::new();
    for goal in goals {
        let due = due(record, trial, goal, growth.is_some());
        let Some(lost) = goal.lost_share(record, due) else {
            bail!("{}: the server's mail has no such figure", goal.expression());
        };
        loss_ratios.push(lost);
    }
    Ok(TrialFigures {
        loss_ratios,
        delivered_per_s,
        backlog_growth_per_s: growth,
        is_drained: is_drained(record, trial.duration_s),
        spent_s,
    })
}

/// Messages that were due, without those that waited for a session at the end and would still have been in time.
fn due(record: &Record, trial: SearchTrial, goal: &LossGoal, has_growth: bool) -> u64 {
    let created = created(record);
    let TrialLoad::RatePerS(rate) = trial.load else { return created };
    let due = due_messages(record, rate, trial.duration_s);
    let unsent = unsent(record, trial);
    if !has_growth {
        return if unsent <= due * MAX_UNSENT { created } else { due as u64 };
    }
    let wait_s = trial.duration_s * MAX_WAIT;
    let wait_s = goal.limit().map_or(wait_s, |limit| wait_s.min(limit.as_secs_f64()));
    created + (unsent - rate * wait_s).max(0.0) as u64
}

fn created(record: &Record) -> u64 {
    record.stages.iter().find(|row| row.name == Stage::Created).map_or(0, |row| row.count)
}

/// Messages that were due and never begun.
fn unsent(record: &Record, trial: SearchTrial) -> f64 {
    let TrialLoad::RatePerS(rate) = trial.load else { return 0.0 };
    (due_messages(record, rate, trial.duration_s) - created(record) as f64).max(0.0)
}

/// Messages that fell due in the trial, after its warm-up. At random arrival their number scatters, and the schedules of the
/// source's workers are made once more from their seed.
fn due_messages(record: &Record, rate_per_s: f64, duration_s: f64) -> f64 {
    let source = record.parties.iter().find(|party| party.role == Role::Source);
    let workers = source.and_then(|party| party.workers).unwrap_or_default() as usize;
    if record.workload.arrival != Arrival::Poisson || workers == 0 {
        return (rate_per_s * duration_s).floor();
    }
    let begin_s = record.warm_up.map_or(0.0, |warm_up| warm_up.length_s);
    let due = |number: usize| {
        let offer = OfferedRate::Constant(rate_per_s);
        let schedule = || {
            let seed = record.workload.seed;
            ArrivalSchedule::new(Arrival::Poisson, offer.clone(), Duration::ZERO, number, workers, seed)
        };
        let [begin, end] = [begin_s, begin_s + duration_s].map(Duration::from_secs_f64);
        schedule().due_before(end) - schedule().due_before(begin)
    };
    (0..workers).map(due).sum::<u64>() as f64
}

/// Growth of what was due and not yet delivered.
///
/// By Little's law a backlog is rate × latency, and it cannot have grown by more than was left at the end: what was not begun,
/// and rate × drain time.
fn growth(record: &Record, trial: SearchTrial) -> Option<f64> {
    let TrialLoad::RatePerS(rate) = trial.load else { return None };
    record.ledger.delivered?;
    let growth = backlog_growth(&backlog_samples(record, rate), trial.duration_s)?;
    let half_s = trial.duration_s / 2.0;
    let left = unsent(record, trial) + rate * drain_s(record, trial.duration_s).max(0.0);
    Some(growth.min(left / half_s))
}

/// The backlog in the middle of each row: the messages due until then tell how much of the load is over.
fn backlog_samples(record: &Record, rate: f64) -> Vec<BacklogSample> {
    let mut samples = Vec::new();
    let mut due_before = 0.0;
    for row in &record.series {
        let due = row.created as f64;
        if due > 0.0 && row.delivered > 0 && row.p50_ms > 0.0 {
            let at_s = (due_before + due / 2.0) / rate;
            samples.push(BacklogSample { at_s, messages: row.p50_ms / 1e3 * rate });
        }
        due_before += due;
    }
    samples
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

#[cfg(test)]
mod tests {
    use super::*;
    use mailrun_journey::record::{SeriesRow, WarmUp};
    use mailrun_journey::threshold::{RunProtocol, Threshold};
    use mailrun_report::sample;

    /// A trial of 2 s through our relay at 1,000/s, as its record has it: by row messages due, delivered and their median time.
    fn trial_of(rows: &[(u64, u64, f64)], drain_s: f64) -> Record {
        let mut record = sample::held();
        let row = |(second, (created, delivered, p50_ms)): (usize, &(u64, u64, f64))| SeriesRow {
            second: second as u64,
            created: *created,
            delivered: *delivered,
            p50_ms: *p50_ms,
            ..SeriesRow::default()
        };
        record.series = rows.iter().enumerate().map(row).collect();
        record.offered_s = Some(2.0);
        let created = rows.iter().map(|row| row.0).sum();
        record.stages[0].name = Stage::Created;
        for stage in &mut record.stages {
            stage.count = created;
            stage.duration_s = 2.0 + drain_s;
        }
        record.ledger.created = Some(created);
        record
    }

    const TRIAL: SearchTrial = SearchTrial { load: TrialLoad::RatePerS(1_000.0), duration_s: 2.0 };

    fn goal(text: &str) -> LossGoal {
        Threshold::parse(text, RunProtocol::Smtp).unwrap().loss_goal().unwrap()
    }

    fn figures_of(record: &Record) -> TrialFigures {
        figures(record, &[goal("rejected <= 5%")], TRIAL, 1_000.0, 2.0).unwrap()
    }

    #[test]
    fn a_stall_at_the_end_is_neither_loss_nor_growth() {
        let record = trial_of(&[(560, 500, 8.0), (1_000, 1_000, 9.0), (390, 450, 60.0)], 0.06);
        let figures = figures_of(&record);
        assert!(!figures.is_backlogged(1_000.0), "{figures:?}");
        assert_eq!(due(&record, TRIAL, &goal("delivered.within(60s) >= 100%"), true), 1_950);
    }

    #[test]
    fn overload_grows_in_two_seconds_too() {
        let record = trial_of(&[(560, 430, 60.0), (1_000, 800, 210.0), (250, 580, 350.0)], 0.4);
        let figures = figures_of(&record);
        assert!(figures.is_backlogged(1_000.0), "{figures:?}");
        assert!(figures.backlog_growth_per_s.unwrap() > 150.0, "{figures:?}");
    }

    #[test]
    fn what_waits_longer_than_a_tenth_of_the_trial_is_lost() {
        let record = trial_of(&[(560, 500, 210.0), (1_000, 800, 200.0), (40, 200, 210.0)], 0.2);
        let figures = figures_of(&record);
        assert!(!figures.is_backlogged(1_000.0), "{figures:?}");
        assert_eq!(due(&record, TRIAL, &goal("delivered.p99 < 1s"), true), 1_800, "200 messages are a tenth");
        assert_eq!(due(&record, TRIAL, &goal("delivered.p99 < 100ms"), true), 1_900, "100 have missed the limit");
        assert_eq!(due(&record, TRIAL, &goal("delivered.p99 < 1s"), false), 2_000, "no growth is known");
    }

    #[test]
    fn at_random_arrival_as_much_is_due_as_the_workers_schedules_say() {
        let mut record = trial_of(&[(1_000, 1_000, 9.0), (1_000, 1_000, 9.0), (0, 0, 0.0)], 0.1);
        assert_eq!(due_messages(&record, 1_000.0, 2.0), 2_000.0);
        record.workload.arrival = Arrival::Poisson;
        let due: Vec<f64> = (0..8)
            .map(|seed| {
                record.workload.seed = seed << 20;
                due_messages(&record, 1_000.0, 2.0)
            })
            .collect();
        assert!(due.iter().all(|due| (due - 2_000.0).abs() < 5.0 * 2_000_f64.sqrt()), "{due:?}");
        assert!(due.iter().any(|one| *one != due[0]), "{due:?}");
        let in_three_s = due_messages(&record, 1_000.0, 3.0);
        record.warm_up = Some(WarmUp { length_s: 1.0, ..WarmUp::default() });
        let after_the_first = due_messages(&record, 1_000.0, 2.0);
        record.warm_up = None;
        assert_eq!(after_the_first, in_three_s - due_messages(&record, 1_000.0, 1.0));
    }
}
