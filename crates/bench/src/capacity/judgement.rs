//! Converts the record of a trial to the figures that the capacity search needs: the loss for each goal, the growth of
//! the backlog, and whether the trial counts at all.
use crate::BenchOptions;
use crate::mades::MadesBenchOptions;
use anyhow::{Result, bail};
use mailrun_capacity::{
    BacklogSample, PlanningInputs, SearchSettings, SearchTrial, TrialFigures, TrialLoad, TrialOutcome, VoidCause,
    backlog_growth,
};
use mailrun_measurement::record::{Arrival, Cause, Outcome, Record, Role, StageRow};
use mailrun_measurement::threshold::{LossGoal, MetricValues as _};
use mailrun_measurement::{Stage, judge};
use mailrun_report::capacity::JudgedTrial;
use mailrun_schedule::offered_rate::OfferedRate;
use mailrun_schedule::pacing::ArrivalSchedule;
use std::path::Path;
use std::time::Duration;

/// Share of the due messages that may be unsent at the end of a trial without counting as lost. It applies only if the
/// trial is too short to measure the growth of its backlog.
const MAX_UNSENT: f64 = 0.01;
/// Length of the last part of a trial, as a share of the trial's duration. If the growth of the backlog is known,
/// unsent messages that fell due in this part are ignored, because they may only have waited for a session.
const MAX_WAIT: f64 = 0.1;
/// Time limit in seconds for delivering the backlog after the load has ended. After a shorter trial, the server gets
/// only as much time as the trial lasted.
const DRAIN_LIMIT_S: f64 = 5.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TrialSubject {
    /// The sink itself is measured, without a server in front of it.
    Sink,
    Server,
}

/// Decides from a trial's record whether the trial counts, is void, or ends the search.
///
/// # Errors
///
/// Returns an error if a goal is about a figure that the record does not have.
pub(super) fn judge_trial(
    record: &Record,
    goals: &[LossGoal],
    trial: SearchTrial,
    subject: TrialSubject,
    spent_s: f64,
) -> Result<JudgedTrial> {
    let last = last_stage(record);
    let delivered_per_s = last.and_then(|row| row.rate_per_s).unwrap_or_default();
    let (outcome, why) = match ending(record) {
        Some(ending) => ending,
        None => match void_cause(record, subject) {
            Some((cause, why)) => (TrialOutcome::Void { cause, delivered_per_s, spent_s }, why),
            None => {
                let figures = figures(record, goals, trial, delivered_per_s, spent_s)?;
                (TrialOutcome::Measured(figures), record.verdict.why.clone())
            }
        },
    };
    let stage = goals.iter().find_map(LossGoal::stage);
    let latency_ms = stage.map_or_else(|| last.and_then(|row| row.latency_ms), |stage| record.summary(stage));
    Ok(JudgedTrial { outcome, latency_ms, delivered_per_s, why })
}

/// Returns the figures of delivered messages if a sink counted them, and otherwise the figures of accepted messages.
fn last_stage(record: &Record) -> Option<&StageRow> {
    let delivered = record.ledger.delivered.and_then(|_| record.stage(Stage::Delivered));
    delivered.or_else(|| record.stage(Stage::Accepted))
}

/// Returns an outcome and its reason if the trial ends the search, because the user stopped it or because mail was
/// lost.
///
/// Mail that is still in the queue of our own relay counts as late, not as lost. The bench cannot read the queue of
/// another server, so it waits until no mail has arrived for `BenchOptions::lost_after`. Mail that arrives until then
/// counts as late. Mail that is still missing may be lost, so the search ends.
fn ending(record: &Record) -> Option<(TrialOutcome, String)> {
    let stopped =
        first_reason(record, |cause| cause == Cause::Interrupted).map(|(_, why)| (TrialOutcome::Stopped, why));
    stopped.or_else(|| loss_reason(record).map(|(_, why)| (TrialOutcome::MailLost, why)))
}

/// Returns the most serious reason why mail is or may be lost, together with its cause.
pub(super) fn loss_reason(record: &Record) -> Option<(Cause, String)> {
    let losses = [Cause::Lost, Cause::NotDelivered, Cause::Corrupt, Cause::Died, Cause::Defect, Cause::Unaccounted];
    first_reason(record, |cause| losses.contains(&cause))
}

/// Returns the verdict's first reason whose cause `is_wanted` accepts. This is the most serious of these reasons,
/// because the verdict lists the most serious reasons first.
fn first_reason(record: &Record, is_wanted: impl Fn(Cause) -> bool) -> Option<(Cause, String)> {
    let verdict = &record.verdict;
    let found = verdict.causes.iter().zip(&verdict.reasons).find(|(cause, _)| is_wanted(**cause));
    found.map(|(cause, why)| (*cause, why.clone()))
}

/// Returns the bottleneck if the source, the sink or the host limited the trial, and the reason for
/// it. Such a trial says nothing about the server.
fn void_cause(record: &Record, subject: TrialSubject) -> Option<(VoidCause, String)> {
    // If the sink itself is being measured, a rate that it cannot keep up with is a result and does
    // not void the trial.
    let is_direct = subject == TrialSubject::Sink;
    let counts = |cause: Cause| {
        cause.outcome() == Some(Outcome::Invalid)
            && cause != Cause::RelayDefect
            && !(is_direct && cause == Cause::RateNotOffered)
    };
    let Some((cause, why)) = first_reason(record, counts) else {
        return judge::behind_schedule(record).map(|why| (VoidCause::Generator, why));
    };
    let limit = match cause {
        Cause::Stolen | Cause::Exhausted | Cause::HostBusy => VoidCause::Host,
        Cause::Busy if busiest(record) == Some(Role::Sink) => VoidCause::Sink,
        _ => VoidCause::Generator,
    };
    Some((limit, why))
}

/// Returns the source or the sink, whichever used more CPU time per worker.
fn busiest(record: &Record) -> Option<Role> {
    let parties = record.parties.iter().filter(|party| party.role != Role::Relay);
    let share = |party: &&mailrun_measurement::record::Party| {
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

/// Counts the messages that were due. A message that was still unsent when the trial ended is left out if it fell due
/// so late that it could still have met the goal.
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
    record.stage(Stage::Created).map_or(0, |row| row.count)
}

/// Counts the messages that were due but that the source never began to send.
fn unsent(record: &Record, trial: SearchTrial) -> f64 {
    let TrialLoad::RatePerS(rate) = trial.load else { return 0.0 };
    (due_messages(record, rate, trial.duration_s) - created(record) as f64).max(0.0)
}

/// Counts the messages that fell due in the trial, after its warm-up. With random arrivals, the
/// count varies by chance, so this function repeats the schedules of the source's workers from
/// their seed.
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

/// Returns by how many messages per second the backlog grew. The backlog consists of the messages that were due but not
/// yet delivered.
///
/// By Little's law, a backlog is rate × latency. It cannot have grown by more messages than were left when the load
/// ended: the messages that the source never began to send, plus rate × drain time.
fn growth(record: &Record, trial: SearchTrial) -> Option<f64> {
    let TrialLoad::RatePerS(rate) = trial.load else { return None };
    record.ledger.delivered?;
    let growth = backlog_growth(&backlog_samples(record, rate), trial.duration_s)?;
    let half_s = trial.duration_s / 2.0;
    let left = unsent(record, trial) + rate * drain_s(record, trial.duration_s).max(0.0);
    Some(growth.min(left / half_s))
}

/// Estimates one backlog for each interval of the series, at the time when half of the interval's messages were due.
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

/// Returns the seconds from the end of the load to the last delivery, or to the last acceptance if
/// nobody observes deliveries.
fn drain_s(record: &Record, duration_s: f64) -> f64 {
    let offered_s = record.offered_s.unwrap_or(duration_s);
    last_stage(record).map_or(0.0, |row| row.duration_s) - offered_s
}

/// Reports whether everything was delivered soon after the load ended: within `DRAIN_LIMIT_S`, or within the duration
/// of the trial if that is shorter.
fn is_drained(record: &Record, duration_s: f64) -> bool {
    let is_left = record.verdict.causes.contains(&Cause::Unfinished) || record.ledger.lost.is_some_and(|lost| lost > 0);
    let is_unseen = record.ledger.delivered.is_none();
    // If nobody observes deliveries, all accepted messages count as unfinished. Ignore unfinished messages in this
    // case, because otherwise no trial would ever count as drained.
    (is_unseen || !is_left) && drain_s(record, duration_s) <= duration_s.min(DRAIN_LIMIT_S)
}

pub(super) struct TrialOrder<'a> {
    pub(super) trial: SearchTrial,
    pub(super) name: &'a str,
    /// Name of the trial in the progress line, for example `trial 3, 1,000/s`.
    pub(super) title: String,
    pub(super) directory: &'a Path,
    /// Arrival pattern of the messages. A trial without a rate ignores it, and sends as fast as it can.
    pub(super) arrival: Arrival,
    pub(super) seed: u64,
    pub(super) is_first: bool,
}

/// Bench that runs the trials of a search, one after the other.
pub(super) trait TrialSeries {
    /// Runs a trial and returns its record, from which the caller judges the trial.
    ///
    /// # Errors
    /// Returns an error if the trial cannot run, or if its files cannot be written. The error is
    /// `Interrupted` if the user interrupted the trial before it had a record.
    fn run(&mut self, order: TrialOrder<'_>) -> Result<Record>;

    fn subject(&self) -> TrialSubject;

    /// Ends the series, for example by stopping its relay, and returns remarks for the report.
    ///
    /// # Errors
    /// Returns an error if the relay of the series is still running and cannot be stopped.
    fn finish(&mut self) -> Result<Vec<String>>;
}

#[derive(Clone, Debug)]
pub struct CapacityOptions {
    /// Options with which each trial runs the bench. Each trial replaces the rate, the duration and the directory.
    pub bench: BenchOptions,
    pub course: SearchCourse,
}

#[derive(Clone, Debug)]
pub struct MadesCapacityOptions {
    /// Options with which each trial runs the bench. Each trial replaces the rate, the duration and the directory.
    pub bench: MadesBenchOptions,
    pub course: SearchCourse,
}

/// Options of a search that apply to mail servers and MADES endpoints alike.
#[derive(Clone, Debug)]
pub struct SearchCourse {
    pub settings: SearchSettings,
    pub goals: Vec<LossGoal>,
    /// Duration of each trial of the confirmation. `None` skips the confirmation.
    pub confirm: Option<Duration>,
    pub arrival: Arrival,
    /// Seed of the first trial, and of the random order of the loads when the capacity is confirmed.
    pub seed: u64,
    /// Traffic for which the report computes the number of servers. The report replaces `capacity_per_s` by the
    /// capacity that the search has found.
    pub planning: PlanningInputs,
    /// Command line that the user typed, for the report.
    pub command: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use mailrun_measurement::reason::Reason;
    use mailrun_measurement::record::{SeriesRow, WarmUp};
    use mailrun_measurement::threshold::{RunProtocol, Threshold};
    use mailrun_report::sample;

    /// Makes the record of a trial that sent 1,000 messages/s through our relay for 2 s. Each row describes one second:
    /// the number of messages due, the number of messages delivered, and the median latency in ms.
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
    fn a_trial_that_does_not_count_gives_the_reason_for_that() {
        let mut record = trial_of(&[(1_000, 1_000, 8.0), (1_000, 1_000, 9.0)], 0.1);
        let verdict = |reasons: &[(Cause, &str)]| {
            let reasons = reasons.iter().map(|(cause, text)| Reason::new(*cause, (*text).to_owned()));
            judge::decide(reasons.collect(), "")
        };
        let judged = |record: &Record| {
            let judged = judge_trial(record, &[goal("rejected <= 5%")], TRIAL, TrialSubject::Server, 2.0).unwrap();
            (judged.outcome, judged.why)
        };
        record.verdict = verdict(&[(Cause::Rejected, "rejected"), (Cause::Busy, "busy")]);
        let (outcome, why) = judged(&record);
        assert!(matches!(outcome, TrialOutcome::Void { .. }) && why == "busy", "{outcome:?} {why}");
        record.verdict = verdict(&[(Cause::Rejected, "rejected"), (Cause::NotDelivered, "not delivered")]);
        assert_eq!(judged(&record), (TrialOutcome::MailLost, "not delivered".to_owned()));
        assert_eq!(loss_reason(&record).and_then(|(cause, _)| cause.outcome()), Some(Outcome::Inconclusive));
        record.verdict = verdict(&[(Cause::Rejected, "rejected")]);
        let (outcome, why) = judged(&record);
        assert!(matches!(outcome, TrialOutcome::Measured(_)) && why == "rejected", "{outcome:?} {why}");
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
