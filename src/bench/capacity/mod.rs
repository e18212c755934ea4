//! `mailrun capacity`: each trial that the search asks for is a run of the bench at open loop; then the confirmation.
//!
//! ```text
//! CapacitySearch ─→ trial ─→ bench::run_with ─→ record ─→ judgement ─→ CapacitySearch … ─→ confirmation ─→ CapacityRun
//! ```
mod judgement;

use super::directory::RunDirectory;
use super::{BenchOptions, BenchPreflight, BenchTarget, engine};
use ::capacity::{
    CapacityGoal, CapacitySearch, PlanningInputs, SearchEnding, SearchResult, SearchSettings, SearchStep, SearchTrial,
    TrialLoad, TrialOutcome, confirmation_trials,
};
use anyhow::{Context, Result, bail};
use journey::record::{Arrival, Record};
use journey::threshold::LossGoal;
use judgement::judge_trial;
use party::interrupt::{Interrupt, Interrupted, StopRequest};
use party::outputs::cannot_write;
use report::capacity::{CapacityRun, CapacityTrial, ConfirmedLoad, resources_used};
use report::numbers::rate;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Options of a search for a capacity.
#[derive(Clone, Debug)]
pub(crate) struct CapacityOptions {
    /// The load and its target; rate, length and directory are those of each trial.
    pub(crate) bench: BenchOptions,
    pub(crate) settings: SearchSettings,
    pub(crate) goals: Vec<LossGoal>,
    /// Length of each trial of the confirmation.
    pub(crate) confirm: Option<Duration>,
    /// Demand that is planned for; its capacity is not known yet.
    pub(crate) planning: PlanningInputs,
}

/// Searches, until it is found or the user stops it; either way there is a report.
///
/// # Errors
///
/// If a trial could not run, or the directory cannot be written to.
pub(crate) fn search(options: &CapacityOptions) -> Result<CapacityRun> {
    let directory = RunDirectory::create(options.bench.out.as_deref(), &options.bench.name, jiff::Timestamp::now())?;
    let outcome = CapacityRunner::new(options, directory.path())?.run();
    outcome.inspect_err(|_| directory.discard())
}

/// Carries out trials.
struct CapacityRunner<'a> {
    options: &'a CapacityOptions,
    program: PathBuf,
    directory: &'a Path,
    interrupt: Interrupt,
    trials: Vec<CapacityTrial>,
    lost: Option<String>,
}

impl<'a> CapacityRunner<'a> {
    fn new(options: &'a CapacityOptions, directory: &'a Path) -> Result<Self> {
        let program = engine::own_program()?;
        let interrupt = Interrupt::watch()?;
        Ok(Self { options, program, directory, interrupt, trials: Vec::new(), lost: None })
    }

    fn run(mut self) -> Result<CapacityRun> {
        let goals: Result<Vec<CapacityGoal>, _> =
            self.options.goals.iter().map(|goal| CapacityGoal::new(goal.loss_ratio())).collect();
        let mut search = CapacitySearch::new(self.options.settings.clone(), goals?)?;
        let result = loop {
            match search.next_step() {
                SearchStep::Finished(result) => break result,
                SearchStep::Measure(pending) => {
                    let outcome = self.search_trial(pending.trial())?;
                    search = pending.report(outcome);
                }
            }
        };
        let confirmation = self.confirm(&result)?;
        Ok(CapacityRun {
            command: self.options.bench.command.clone(),
            goals: self.options.goals.clone(),
            min_rate_per_s: self.options.settings.min_rate_per_s,
            planning: self.options.planning,
            interrupted: self.is_stopped(),
            result,
            trials: self.trials,
            confirmation,
            lost: self.lost,
            directory: self.directory.to_owned(),
        })
    }

    fn is_stopped(&self) -> bool {
        self.interrupt.requested() != StopRequest::Nothing
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

    /// Runs a trial; its outcome and its record, or `None` if it was interrupted before there was any.
    fn carry_out(&mut self, trial: SearchTrial, name: &str, title: String) -> Result<Option<(CapacityTrial, Record)>> {
        let mut options = self.options.bench.clone();
        let directory = self.directory.join(name);
        options.out = Some(directory.clone());
        options.name = name.to_owned();
        options.title = Some(title);
        options.workload.duration_limit_s = Some(trial.duration_s);
        (options.workload.arrival, options.workload.rate_per_s) = match trial.load {
            TrialLoad::FlatOut => (Arrival::Closed, None),
            TrialLoad::RatePerS(rate) => (Arrival::Constant, Some(rate)),
        };
        if !self.trials.is_empty() {
            // The first has shown that the server takes such mail; under load it may refuse to.
            options.preflight = BenchPreflight::Off;
        }
        let began = Instant::now();
        let outcome = match super::run_with(&self.program, &options) {
            Err(error) if error.downcast_ref::<Interrupted>().is_some() => return Ok(None),
            outcome => outcome?,
        };
        if let Some(error) = outcome.unwritten {
            return Err(error);
        }
        let spent_s = began.elapsed().as_secs_f64();
        let judged = judge_trial(&outcome.record, &self.options.goals, trial, &options.target, spent_s)?;
        if judged.outcome == TrialOutcome::MailLost {
            self.lost = Some(outcome.record.verdict.why.clone());
        }
        Ok(Some((CapacityTrial { trial, judged, directory }, outcome.record)))
    }

    /// Loads below, at and above the capacity, each for longer than a trial.
    fn confirm(&mut self, result: &SearchResult) -> Result<Vec<ConfirmedLoad>> {
        let is_found = result.ending == SearchEnding::Complete && result.has_capacity();
        let capacity = result.capacity_per_s().filter(|_| is_found);
        let (Some(capacity), Some(length)) = (capacity, self.options.confirm) else { return Ok(Vec::new()) };
        let mut confirmed = Vec::new();
        for step in confirmation_trials(capacity, length.as_secs_f64(), self.options.bench.workload.seed) {
            if self.is_stopped() {
                break;
            }
            let percent = (step.share * 100.0).round();
            let load = TrialLoad::RatePerS(step.rate_per_s);
            let trial = SearchTrial { load, duration_s: step.duration_s };
            let title = format!("confirming {percent} %, {}/s", rate(step.rate_per_s));
            let Some((trial, record)) = self.carry_out(trial, &format!("confirm-{percent:03}"), title)? else { break };
            if trial.judged.outcome != TrialOutcome::Stopped {
                confirmed.push(ConfirmedLoad { share: step.share, trial, resources: resources_used(&record) });
            }
        }
        confirmed.sort_by(|one, other| one.share.total_cmp(&other.share));
        Ok(confirmed)
    }
}

/// Writes `capacity.json` and `capacity.txt` beside the trials.
///
/// # Errors
///
/// If one cannot be written.
pub(crate) fn save(directory: &Path, json: &str, text: &str) -> Result<()> {
    for (name, content) in [("capacity.json", json), ("capacity.txt", text)] {
        let path = directory.join(name);
        fs::write(&path, content).map_err(|error| cannot_write(&path, &error))?;
    }
    Ok(())
}

/// Refuses goals that nobody would see met.
///
/// # Errors
///
/// If a goal is about delivery, and nobody watches it.
pub(crate) fn check_goals(goals: &[LossGoal], target: &BenchTarget) -> Result<()> {
    let is_watched = !matches!(target, BenchTarget::Server { sink: None, .. });
    let unseen = goals.iter().find(|goal| goal.expression().starts_with("delivered") && !is_watched);
    match unseen {
        Some(goal) => bail!(
            "{}: nobody sees deliveries; let the server deliver to a mailrun sink, and name it with --sink or --sink-listen",
            goal.expression()
        ),
        None => Ok(()),
    }
}

/// The goal where none was given: everything arrives within a minute (SPECmail's limit of a delivery).
///
/// # Errors
///
/// Never in practice: the expression is a threshold.
pub(crate) fn default_goal(target: &BenchTarget) -> Result<LossGoal> {
    let stage = if matches!(target, BenchTarget::Server { sink: None, .. }) { "accepted" } else { "delivered" };
    let expression = format!("{stage}.within(60s) >= 100%");
    let threshold = journey::threshold::Threshold::parse(&expression, journey::threshold::RunProtocol::Smtp);
    let threshold = threshold.map_err(|error| anyhow::anyhow!("{expression}: {error}"))?;
    threshold.loss_goal().context("a goal")
}
