//! `mailrun capacity` searches for the highest rate that a server sustains. Each trial that the
//! search asks for is a run of the bench. Afterwards, longer runs confirm the result.
//!
//! ```text
//! CapacitySearch ─→ trial ─→ mail_trials or mades_trials ─→ record ─→ judgement ─→ CapacitySearch
//!                └→ confirmation ─→ CapacityRun
//! ```
mod judgement;
mod mades_trials;
mod mail_trials;

use super::BenchTarget;
use super::directory::RunDirectory;
use anyhow::{Context, Result, bail};
pub use judgement::{CapacityOptions, MadesCapacityOptions, SearchCourse};
use judgement::{TrialOrder, TrialSeries, TrialSubject, judge_trial, loss_reason};
use mades_trials::MadesTrials;
use mail_trials::MailTrials;
use mailrun_capacity::{
    CONFIRMATION_SHARES, CapacityGoal, CapacitySearch, SearchEnding, SearchResult, SearchSettings, SearchTrial,
    TrialLoad, TrialOutcome, confirmation_trials,
};
use mailrun_measurement::record::{Outcome, Record};
use mailrun_measurement::threshold::{LossGoal, RunProtocol, Threshold};
use mailrun_process::interrupt::{Interrupt, Interrupted, StopRequest};
use mailrun_process::output_file;
use mailrun_report::capacity::{CapacityRun, CapacityTrial, ConfirmedLoad, resources_used, search_facts};
use mailrun_text::numbers::{latency, rate, seconds};
use std::path::Path;
use std::time::Instant;

/// A search confirms its result at most this many times. If a load at or below the capacity misses a goal in a
/// confirmation, the search continues at lower rates, and its new result is confirmed again.
const MAX_CONFIRMATIONS: u64 = 3;

/// Difference between the seeds of two consecutive trials. It is larger than the number of a source's workers, because
/// worker n adds n to the seed of its trial, and no seed should be used twice.
const SEED_STEP: u64 = 1 << 20;

/// Searches until the capacity is found, the user stops the search, or a trial cannot run. The report covers the trials
/// up to then. If a trial could not run, its error is returned together with the report.
///
/// # Errors
///
/// Returns an error if the first trial cannot run, or if the directory cannot be written to.
pub fn search(options: &CapacityOptions) -> Result<(CapacityRun, Option<anyhow::Error>)> {
    let directory = RunDirectory::create(options.bench.out.as_deref(), &options.bench.name, jiff::Timestamp::now())?;
    let trials = MailTrials::new(options, directory.path());
    let outcome =
        trials.and_then(|trials| CapacityRunner::new(&options.course, Box::new(trials), directory.path())?.run());
    outcome.inspect_err(|_| directory.discard())
}

/// Searches for the capacity of a MADES endpoint, in the same way as `search` does for a mail server.
///
/// # Errors
///
/// Returns an error if the first trial cannot run, or if the directory cannot be written to.
pub fn search_mades(options: &MadesCapacityOptions) -> Result<(CapacityRun, Option<anyhow::Error>)> {
    let directory = RunDirectory::create(options.bench.out.as_deref(), &options.bench.name, jiff::Timestamp::now())?;
    let trials = Box::new(MadesTrials::new(options));
    let runner = CapacityRunner::new(&options.course, trials, directory.path());
    runner.and_then(CapacityRunner::run).inspect_err(|_| directory.discard())
}

struct CapacityRunner<'a> {
    course: &'a SearchCourse,
    series: Box<dyn TrialSeries + 'a>,
    directory: &'a Path,
    interrupt: Interrupt,
    /// Number of trials so far, including the trials of confirmations.
    carried_out: u64,
    trials: Vec<CapacityTrial>,
    lost: Option<(Outcome, String)>,
    /// Error of the trial that ended the search early.
    failed: Option<anyhow::Error>,
    facts: Vec<(&'static str, String)>,
}

impl<'a> CapacityRunner<'a> {
    fn new(course: &'a SearchCourse, series: Box<dyn TrialSeries + 'a>, directory: &'a Path) -> Result<Self> {
        let interrupt = Interrupt::watch()?;
        Ok(Self {
            course,
            series,
            directory,
            interrupt,
            carried_out: 0,
            trials: Vec::new(),
            lost: None,
            failed: None,
            facts: Vec::new(),
        })
    }

    fn run(mut self) -> Result<(CapacityRun, Option<anyhow::Error>)> {
        let goals: Result<Vec<CapacityGoal>, _> =
            self.course.goals.iter().map(|goal| CapacityGoal::new(goal.loss_ratio())).collect();
        let mut search = CapacitySearch::new(self.course.settings.clone(), goals?)?;
        let mut round = 1;
        let (mut result, confirmation) = loop {
            let result = search.run(|trial| self.search_trial(trial))?;
            let confirmation = self.confirm(&result, round)?;
            let has_held = take_confirmation(&mut search, &confirmation);
            if has_held || round == MAX_CONFIRMATIONS || self.is_stopped() || self.lost.is_some() {
                break (result, confirmation);
            }
            // The confirmation failed, so the search continues at lower rates. It also uses the confirmation's results,
            // so list the confirmation's trials as trials of the search.
            self.trials.extend(confirmation.into_iter().map(|load| load.trial));
            round += 1;
        };
        if self.is_stopped() && result.has_capacity() && confirmation.len() < CONFIRMATION_SHARES.len() {
            result.ending = SearchEnding::Stopped;
        }
        let mut remarks = match result.ending {
            SearchEnding::Stopped => Vec::new(),
            _ => limit_remarks(&self.course.goals, &self.course.settings, &self.trials),
        };
        match self.series.finish() {
            Ok(more) => remarks.extend(more),
            Err(error) => _ = self.failed.get_or_insert(error),
        }
        remarks.extend(self.failed.iter().map(|error| format!("The search ended early: {error:#}")));
        let run = CapacityRun {
            command: self.course.command.clone(),
            facts: self.facts,
            goals: self.course.goals.clone(),
            min_rate_per_s: self.course.settings.min_rate_per_s,
            planning: self.course.planning,
            interrupted: self.interrupt.requested() != StopRequest::Nothing,
            result,
            trials: self.trials,
            confirmation,
            remarks,
            lost: self.lost,
            directory: self.directory.to_owned(),
        };
        Ok((run, self.failed))
    }

    fn is_stopped(&self) -> bool {
        self.failed.is_some() || self.interrupt.requested() != StopRequest::Nothing
    }

    fn search_trial(&mut self, trial: SearchTrial) -> Result<TrialOutcome> {
        if self.is_stopped() {
            return Ok(TrialOutcome::Stopped);
        }
        let number = self.trials.len() + 1;
        let title = match trial.load {
            TrialLoad::FlatOut => format!("trial {number}, flat out"),
            TrialLoad::RatePerS(per_s) => format!("trial {number}, {}/s", rate(per_s)),
        };
        let Some((done, _)) = self.carry_out(trial, &format!("trial-{number:03}"), title)? else {
            return Ok(TrialOutcome::Stopped);
        };
        let outcome = done.judged.outcome.clone();
        self.trials.push(done);
        Ok(outcome)
    }

    /// Runs a trial and judges it. Returns `None` if the user interrupted the trial before it had a record, or if it
    /// could not run but there are earlier trials to report. If the first trial cannot run, returns its error.
    fn carry_out(&mut self, trial: SearchTrial, name: &str, title: String) -> Result<Option<(CapacityTrial, Record)>> {
        let directory = self.directory.join(name);
        // Give each trial its own seed, because the same seed would repeat the same random bursts.
        let seed = self.course.seed.wrapping_add(self.carried_out.wrapping_mul(SEED_STEP));
        let order = TrialOrder {
            trial,
            name,
            title,
            directory: &directory,
            arrival: self.course.arrival,
            seed,
            is_first: self.carried_out == 0,
        };
        self.carried_out += 1;
        let began = Instant::now();
        let record = match self.series.run(order) {
            Err(error) if error.is::<Interrupted>() => return Ok(None),
            Err(error) if !self.trials.is_empty() => {
                self.failed = Some(error);
                return Ok(None);
            }
            record => record?,
        };
        let spent_s = began.elapsed().as_secs_f64();
        self.facts = search_facts(&record, self.series.subject() == TrialSubject::Sink);
        let judged = judge_trial(&record, &self.course.goals, trial, self.series.subject(), spent_s)?;
        if judged.outcome == TrialOutcome::MailLost {
            self.lost = loss_reason(&record).map(|(cause, why)| (cause.outcome().unwrap_or(Outcome::Fail), why));
        }
        Ok(Some((CapacityTrial { trial, judged, directory }, record)))
    }

    /// Runs loads below, at and above the capacity, each for the duration that the user chose for
    /// confirmations. Runs nothing if no capacity was found.
    fn confirm(&mut self, result: &SearchResult, round: u64) -> Result<Vec<ConfirmedLoad>> {
        let is_found = result.ending == SearchEnding::Complete && result.has_capacity();
        let capacity = result.capacity_per_s().filter(|_| is_found);
        let (Some(capacity), Some(length)) = (capacity, self.course.confirm) else { return Ok(Vec::new()) };
        let mut confirmed = Vec::new();
        let seed = self.course.seed.wrapping_add(round - 1);
        for step in confirmation_trials(capacity, length.as_secs_f64(), seed) {
            if self.is_stopped() || self.lost.is_some() {
                break;
            }
            let percent = (step.share * 100.0).round();
            let load = TrialLoad::RatePerS(step.rate_per_s);
            let trial = SearchTrial { load, duration_s: step.duration_s };
            let title = format!("confirming {percent} %, {}/s", rate(step.rate_per_s));
            let name = match round {
                1 => format!("confirm-{percent:03}"),
                round => format!("confirm-{round}-{percent:03}"),
            };
            let Some((trial, record)) = self.carry_out(trial, &name, title)? else { break };
            if trial.judged.outcome != TrialOutcome::Stopped {
                confirmed.push(ConfirmedLoad { share: step.share, trial, resources: resources_used(&record) });
            }
        }
        confirmed.sort_by(|one, other| one.share.total_cmp(&other.share));
        Ok(confirmed)
    }
}

/// Passes the figures of a confirmation to the search, which takes them into account if it continues. Returns false if
/// a load at or below the capacity missed a goal.
fn take_confirmation(search: &mut CapacitySearch, confirmation: &[ConfirmedLoad]) -> bool {
    let mut has_held = true;
    for load in confirmation {
        if let TrialOutcome::Measured(figures) = &load.trial.judged.outcome {
            let is_met = search.take_confirmation(load.trial.trial, figures);
            has_held &= is_met || load.share > 1.0;
        }
    }
    has_held
}

/// Makes remarks on goals that half of the messages miss even at the lowest rate. Also makes remarks on goals that
/// cannot be tested, because the trials are too short for the goals' time limit.
fn limit_remarks(goals: &[LossGoal], settings: &SearchSettings, trials: &[CapacityTrial]) -> Vec<String> {
    let timed = goals.iter().find_map(LossGoal::stage);
    let with_rate = trials.iter().filter_map(|trial| match trial.trial.load {
        TrialLoad::FlatOut => None,
        TrialLoad::RatePerS(per_s) => Some((per_s, trial.judged.latency_ms?.p50)),
    });
    let slowest = with_rate.min_by(|one, other| one.0.total_cmp(&other.0));
    let remark = |goal: &LossGoal| {
        let limit_s = goal.limit()?.as_secs_f64();
        let missed = slowest.filter(|(_, p50_ms)| goal.stage() == timed && *p50_ms > limit_s * 1e3);
        if let Some((per_s, p50_ms)) = missed {
            return Some(format!("{}: even at {}/s half take {}", goal.expression(), rate(per_s), latency(p50_ms)));
        }
        short_trials_remark(goal, settings)
    };
    goals.iter().filter_map(remark).collect()
}

/// Returns a warning if the trials are too short to show that a growing backlog misses this goal.
pub fn short_trials_remark(goal: &LossGoal, settings: &SearchSettings) -> Option<String> {
    let limit_s = goal.limit()?.as_secs_f64();
    // Do not warn if the limit is at least as long as a whole trial (`trial_s`). Such a limit is meant as a deadline,
    // not as a goal for the latency.
    let is_long = !settings.holds_limit(limit_s) && limit_s < settings.trial_s;
    is_long.then(|| {
        format!(
            "{}: trials are too short for a goal of {}; use --trial {:.0}s",
            goal.expression(),
            seconds(limit_s),
            (limit_s * 20.0).ceil()
        )
    })
}

/// Writes `capacity.json`, `capacity.txt` and `capacity.html` beside the trials.
///
/// # Errors
///
/// Returns an error if a file cannot be written.
pub fn save(run: &CapacityRun, json: &str, text: &str) -> Result<()> {
    let page = mailrun_report::capacity_page(run);
    for (name, content) in [("capacity.json", json), ("capacity.txt", text), ("capacity.html", &page)] {
        output_file::write(&run.directory.join(name), content)?;
    }
    Ok(())
}

/// Refuses goals about deliveries if nobody observes deliveries.
///
/// # Errors
///
/// Returns an error if a goal is about deliveries, and the bench has no sink behind the server.
pub fn check_goals(goals: &[LossGoal], target: &BenchTarget) -> Result<()> {
    let is_watched = !matches!(target, BenchTarget::Server { sink: None, .. });
    let unseen_goal = goals.iter().find(|goal| goal.expression().starts_with("delivered") && !is_watched);
    match unseen_goal {
        Some(goal) => bail!(
            "{}: nobody sees deliveries; let the server deliver to a mailrun sink, and name it with --sink or --sink-listen",
            goal.expression()
        ),
        None => Ok(()),
    }
}

/// Returns the goal to use if the user gave no goal: all mail must be delivered within a minute, which is SPECmail's
/// limit for a delivery. If nobody observes deliveries, all mail must be accepted within a minute.
///
/// # Errors
///
/// Fails only if the goal's text cannot be parsed. This never happens, because the text is built in and valid.
pub fn default_goal(target: &BenchTarget) -> Result<LossGoal> {
    let stage = if matches!(target, BenchTarget::Server { sink: None, .. }) { "accepted" } else { "delivered" };
    within_a_minute(stage, RunProtocol::Smtp)
}

/// Returns the goal to use for a MADES endpoint if the user gave no goal: all messages must be delivered within a
/// minute.
///
/// # Errors
///
/// Fails only if the goal's text cannot be parsed. This never happens, because the text is built in and valid.
pub fn default_mades_goal() -> Result<LossGoal> {
    within_a_minute("delivered", RunProtocol::Mades)
}

fn within_a_minute(stage: &str, protocol: RunProtocol) -> Result<LossGoal> {
    let expression = format!("{stage}.within(60s) >= 100%");
    let threshold =
        Threshold::parse(&expression, protocol).map_err(|error| anyhow::anyhow!("{expression}: {error}"))?;
    threshold.loss_goal().context("a goal")
}

#[cfg(test)]
mod tests {
    use super::*;
    use mailrun_capacity::TrialFigures;
    use mailrun_measurement::record::LatencyMs;
    use mailrun_report::capacity::JudgedTrial;

    #[test]
    fn a_goal_that_half_miss_at_the_lowest_rate_needs_no_longer_trials() {
        let goal = |text: &str| Threshold::parse(text, RunProtocol::Mades).unwrap().loss_goal().unwrap();
        let goals = [goal("RECEIVED.p99 < 1s")];
        let trial = |rate: f64, p50: f64| CapacityTrial {
            trial: SearchTrial { load: TrialLoad::RatePerS(rate), duration_s: 5.0 },
            judged: JudgedTrial {
                outcome: TrialOutcome::Measured(TrialFigures::new(vec![1.0], rate)),
                latency_ms: Some(LatencyMs { p50, ..LatencyMs::default() }),
                delivered_per_s: rate,
                why: String::new(),
            },
            directory: "trial-001".into(),
        };
        let remarks = |trials: &[CapacityTrial]| limit_remarks(&goals, &SearchSettings::default(), trials);
        let too_slow = ["RECEIVED.p99 < 1s: even at 10.00/s half take 1.60 s"];
        assert_eq!(remarks(&[trial(20.0, 2_000.0), trial(10.0, 1_600.0)]), too_slow);
        let too_short = ["RECEIVED.p99 < 1s: trials are too short for a goal of 1.00 s; use --trial 20s"];
        assert_eq!(remarks(&[trial(20.0, 2_000.0), trial(10.0, 600.0)]), too_short);
        assert_eq!(remarks(&[]), too_short);
    }
}
