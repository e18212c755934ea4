//! Live comparisons. The contestants run in many short rounds. In each round, every contestant
//! sends the same number of messages to the same sink.
//!
//! ```text
//! contestants ─→ calibration ─→ BlockOrder ─→ round_run: start, wait4, count at the sink ─→ RoundComparison
//!                (messages of a round)         ↑ invalid: once more
//! ```
mod calibration;
mod contestant;
mod counts;
mod round_run;
mod round_sink;
mod wire_counter;

use super::engine::RunTurns;
use anyhow::Result;
use calibration::{Calibration, RoundTimes, first_messages, next_step, time_limit};
pub use contestant::{ContestantKind, LiveContestant};
use mailrun_compare::{
    BlockOrder, CompareSettings, LookPlan, RoundComparison, RoundContestant, RoundCourse, RoundLoad, RoundPlan,
    RunFigure,
};
use mailrun_party::host_sampler::HostSampler;
use mailrun_party::interrupt::{Interrupt, StopRequest};
use mailrun_party::keep_awake;
use mailrun_party::live::LiveMode;
use mailrun_party::live_line::LiveLine;
use mailrun_text::numbers::counted;
use round_run::{RoundCase, RoundRun, RoundRuns, RunFault};
use round_sink::RoundSink;
pub use round_sink::RoundSinkPlace;
use std::time::{Duration, Instant};

/// A contestant is given up after this many failed runs without a valid run in between.
const MAX_FAULTS_IN_A_ROW: usize = 3;
/// Maximum number of tries of the calibration. After that, the last number of messages is used.
const MAX_CALIBRATION_STEPS: usize = 6;
/// A round does not count if other guests of the hypervisor took at least this share of the CPU
/// time.
const STEAL_LIMIT: f64 = 0.25;
/// Number of different reasons for invalid rounds that are kept for the report.
const MAX_REASONS: usize = 10;

/// Time limit for the first run of a scenario.
const SCENARIO_LIMIT: Duration = Duration::from_secs(3_600);
/// Minimum number of rounds for a verdict on scenarios. It is low because their runs take minutes.
const SCENARIO_MIN_ROUNDS: usize = 6;

#[derive(Clone, Debug)]
pub struct RoundsOptions {
    /// At least two contestants, all of the same kind.
    pub contestants: Vec<LiveContestant>,
    /// Index of the contestant that the others are compared with.
    pub reference: usize,
    pub sessions: u32,
    pub message_bytes: u64,
    /// Recipient of the mail, for contestants that are servers.
    pub to: Option<String>,
    /// Sink that counts deliveries. Without a sink only acceptance by the servers is measured.
    pub sink: Option<RoundSinkPlace>,
    /// Messages in a round. `None` means a number with which a round takes 0.25 to 0.5 s.
    pub messages: Option<u64>,
    pub rounds: usize,
    /// Time limit after which no new round starts.
    pub budget: Duration,
    pub margin: f64,
    /// If set, the comparison ends after half of the rounds if everything is decided then.
    pub is_until_decided: bool,
    /// If set, system calls and bytes are counted after the rounds.
    pub counts: bool,
    /// Set if a contestant is compared with itself.
    pub is_self: bool,
    pub live: LiveMode,
}

/// Runs rounds until all are done, the time is used up or the user stops. In each case the
/// comparison covers the rounds that were run.
///
/// # Errors
///
/// Returns an error if the sink could not be started, or if no temporary directory could be
/// created.
pub fn compare_live(options: &RoundsOptions) -> Result<RoundComparison> {
    let sink = options.sink.as_ref().map(RoundSink::new).transpose()?;
    let runs = RoundRuns::new(sink, options.to.clone())?;
    let interrupt = Interrupt::watch()?;
    let is_stopped = || interrupt.requested() != StopRequest::Nothing;
    let mut rounds = Rounds::new(options, &runs, &is_stopped);
    if options.kind() != ContestantKind::Scenario {
        rounds.calibrate();
    }
    rounds.run_all();
    let mut comparison = rounds.comparison(is_stopped());
    if options.counts && !is_stopped() {
        rounds.add_counts(&mut comparison);
    }
    rounds.turns.finish();
    Ok(comparison)
}

impl RoundsOptions {
    pub fn kind(&self) -> ContestantKind {
        self.contestants.first().map_or(ContestantKind::Source, LiveContestant::kind)
    }

    /// Returns notes for the report about limits of this comparison.
    fn notes(&self, has_sink: bool) -> Vec<String> {
        let is_unseen = self.kind() == ContestantKind::Server && !has_sink;
        let note = is_unseen.then(|| "Accepted only: nobody saw deliveries (--sink, --sink-listen).".to_owned());
        note.into_iter().collect()
    }
}

struct Standing {
    contestant: RoundContestant,
    /// Number of messages and duration of the contestant's last successful run.
    took: Option<(u64, Duration)>,
    /// The contestant's last successful run of the calibration.
    warm_up: Option<RoundRun>,
    faults_in_a_row: usize,
}

struct Rounds<'o> {
    options: &'o RoundsOptions,
    runs: &'o RoundRuns,
    turns: RunTurns<'o>,
    is_stopped: &'o dyn Fn() -> bool,
    began: Instant,
    standings: Vec<Standing>,
    messages: u64,
    course: RoundCourse,
}

impl<'o> Rounds<'o> {
    fn new(options: &'o RoundsOptions, runs: &'o RoundRuns, is_stopped: &'o dyn Fn() -> bool) -> Self {
        let standing = |contestant: &LiveContestant| Standing {
            contestant: RoundContestant {
                name: contestant.name.clone(),
                description: contestant.description(),
                ..RoundContestant::default()
            },
            took: None,
            warm_up: None,
            faults_in_a_row: 0,
        };
        Self {
            options,
            runs,
            turns: RunTurns::new(options.live, is_stopped),
            is_stopped,
            began: Instant::now(),
            standings: options.contestants.iter().map(standing).collect(),
            messages: match options.kind() {
                ContestantKind::Scenario => 0,
                _ => first_messages(options.messages, options.sessions),
            },
            course: RoundCourse {
                planned_rounds: options.rounds,
                is_self: options.is_self,
                notes: options.notes(runs.has_sink()),
                keep_awake: keep_awake::state(),
                ..RoundCourse::default()
            },
        }
    }

    fn is_alive(&self, place: usize) -> bool {
        self.standings[place].contestant.failure.is_none()
    }

    fn alive(&self) -> usize {
        (0..self.standings.len()).filter(|place| self.is_alive(*place)).count()
    }

    fn load(&self) -> RoundLoad {
        let RoundsOptions { sessions, message_bytes, .. } = *self.options;
        RoundLoad { messages: self.messages, sessions, message_bytes }
    }

    /// Finds the number of messages of a round. The runs of the calibration are not part of the
    /// result.
    fn calibrate(&mut self) {
        for _ in 0..MAX_CALIBRATION_STEPS {
            let times = self.warm_up_round();
            let Some(times) = times.filter(|_| !(self.is_stopped)()) else { return };
            match next_step(self.options.messages, self.options.sessions, self.messages, times) {
                Calibration::Done => return,
                Calibration::Try(messages) => self.messages = messages,
            }
        }
    }

    /// Makes one run of each contestant. Returns their times, or `None` if the user stopped or
    /// nobody succeeded.
    fn warm_up_round(&mut self) -> Option<RoundTimes> {
        // A foreign load generator may send more messages than it should. mailrun's own source,
        // with which servers are measured, does not, so there is no need to wait for extra
        // messages.
        let is_thorough = self.options.kind() == ContestantKind::Source;
        let mut times = Vec::new();
        for place in 0..self.standings.len() {
            let mut fault = None;
            // Give a contestant a second try before giving it up.
            for _ in 0..2 {
                if !self.is_alive(place) || (self.is_stopped)() {
                    break;
                }
                let name = &self.options.contestants[place].name;
                let text = format!("warm-up: {name}, {}", counted(self.messages, "message"));
                let run = self.run_once(place, LiveLine::sentence(Some(0.0), text), is_thorough)?;
                fault = run.fault.clone();
                match &fault {
                    Some(fault) if fault.is_final => self.give_up(place, fault.why.clone()),
                    Some(_) => {}
                    None => {
                        times.push(run.elapsed_s);
                        self.standings[place].warm_up = Some(run);
                        break;
                    }
                }
            }
            if let Some(fault) = fault.filter(|_| self.is_alive(place)) {
                self.give_up(place, fault.why);
            }
        }
        let fastest_s = times.iter().copied().reduce(f64::min)?;
        let budget_s = self.options.budget.as_secs_f64();
        Some(RoundTimes { fastest_s, together_s: times.iter().sum(), budget_s })
    }

    /// Makes one run. Returns `None` if the user stopped it.
    fn run_once(&mut self, place: usize, line: LiveLine, is_thorough: bool) -> Option<RoundRun> {
        let last_run = self.standings[place].took;
        let limit = match self.options.kind() {
            ContestantKind::Scenario if last_run.is_none() => SCENARIO_LIMIT,
            _ => time_limit(last_run, self.messages),
        };
        let case = RoundCase {
            contestant: &self.options.contestants[place],
            load: self.load(),
            limit,
            is_thorough,
            strace: None,
            counts_bytes: false,
        };
        let run = self.runs.measure(&case, &mut self.turns.next(line)).transpose()?;
        let run = run.unwrap_or_else(|error| RoundRun::failed(format!("{error:#}"), false));
        let standing = &mut self.standings[place];
        if run.fault.is_none() {
            standing.took = Some((self.messages, Duration::from_secs_f64(run.elapsed_s)));
            standing.contestant.max_rss_bytes = standing.contestant.max_rss_bytes.max(run.max_rss_bytes);
        }
        Some(run)
    }

    fn give_up(&mut self, place: usize, reason: String) {
        self.standings[place].contestant.failure = Some(reason);
    }

    fn run_all(&mut self) {
        let mut order = BlockOrder::new(self.standings.len(), self.options.rounds, 1);
        let first_look = self.options.rounds / 2;
        while let Some(plan) = order.next_round() {
            if (self.is_stopped)() || self.alive() < 2 {
                break;
            }
            if self.began.elapsed() >= self.options.budget {
                self.course.is_budget_spent = true;
                break;
            }
            let Some(round) = self.round(&plan, &order) else { break };
            let is_valid = round.is_ok();
            match round {
                Ok(figures) if !plan.is_warm_up => self.keep(figures),
                Ok(_) => {}
                Err(reason) => self.note_invalid(reason),
            }
            order.finish_round(is_valid);
            self.course.rounds = order.counted();
            self.course.invalid_rounds = order.repeated();
            let is_look = self.options.is_until_decided && is_valid && order.counted() == first_look;
            if is_look && self.comparison(false).is_decided() {
                break;
            }
        }
        let is_short = self.course.rounds < self.options.rounds;
        if is_short && order.next_round().is_none() {
            self.course.notes.push("Too many rounds were invalid: it ended before its time.".to_owned());
        }
    }

    /// Makes a round, in which each contestant runs once. The round ends at the first failed run.
    /// Returns `None` if the user stopped, and an error with the reason if the round does not
    /// count.
    fn round(&mut self, plan: &RoundPlan, order: &BlockOrder) -> Option<Result<Vec<(usize, RoundRun)>, String>> {
        let host = HostSampler::start();
        let mut figures = Vec::new();
        for place in plan.order.iter().copied() {
            if !self.is_alive(place) {
                continue;
            }
            let name = self.options.contestants[place].name.clone();
            let line = self.line(plan, order, &name);
            let run = self.run_once(place, line, false)?;
            let standing = &mut self.standings[place];
            let Some(RunFault { why, is_final }) = run.fault.clone() else {
                standing.faults_in_a_row = 0;
                figures.push((place, run));
                continue;
            };
            standing.faults_in_a_row += 1;
            if is_final || standing.faults_in_a_row >= MAX_FAULTS_IN_A_ROW {
                self.give_up(place, why.clone());
            }
            return Some(Err(format!("{name}: {why}")));
        }
        let stolen = host.finish().steal_share.filter(|share| *share >= STEAL_LIMIT);
        let reason = |share: f64| format!("the hypervisor gave {:.0} % of the CPU to others", share * 100.0);
        Some(stolen.map_or(Ok(figures), |share| Err(reason(share))))
    }

    /// Builds the progress line: the round, the elapsed share of the time, and the ratios so far.
    fn line(&self, plan: &RoundPlan, order: &BlockOrder, name: &str) -> LiveLine {
        let planned = self.options.rounds;
        let spent_share = self.began.elapsed().as_secs_f64() / self.options.budget.as_secs_f64();
        let share = (order.counted() as f64 / planned as f64).max(spent_share);
        let mut text = match plan.is_warm_up {
            true => format!("first block, which does not count: {name}"),
            false => format!("round {} of {planned}: {name}", order.counted() + 1),
        };
        let reference = &self.standings[self.options.reference].contestant;
        for other in self.standings.iter().map(|standing| &standing.contestant) {
            let contestant = Some(other).filter(|other| !std::ptr::eq(*other, reference));
            if let Some((metric, ratio)) = contestant.and_then(|other| other.ratio_so_far(reference)) {
                let metric = metric.split(',').next().unwrap_or_default();
                text.push_str(&format!(" · {} {ratio:.2} × {metric}", other.name));
            }
        }
        LiveLine::sentence(Some(share), text)
    }

    fn keep(&mut self, figures: Vec<(usize, RoundRun)>) {
        for (place, run) in figures {
            self.standings[place].contestant.runs.push(run.figures);
        }
    }

    fn note_invalid(&mut self, reason: String) {
        let reasons = &mut self.course.invalid;
        if reasons.len() < MAX_REASONS && !reasons.contains(&reason) {
            reasons.push(reason);
        }
    }

    fn comparison(&self, interrupted: bool) -> RoundComparison {
        let mut contestants: Vec<RoundContestant> = Vec::new();
        let mut course = self.course.clone();
        course.elapsed_s = self.began.elapsed().as_secs_f64();
        course.interrupted = interrupted;
        let has_rounds = self.standings.iter().any(|standing| !standing.contestant.runs.is_empty());
        for standing in &self.standings {
            let mut contestant = standing.contestant.clone();
            if let Some(run) = standing.warm_up.as_ref().filter(|_| !has_rounds && self.alive() < 2) {
                contestant.runs = Vec::<Vec<RunFigure>>::from([run.figures.clone()]);
                course.notes.push(format!("{} has its warm-up run only.", contestant.name));
            }
            contestants.push(contestant);
        }
        let look = if self.options.is_until_decided { LookPlan::OneOfTwo } else { LookPlan::Only };
        let mut settings = CompareSettings { margin: self.options.margin, look, ..CompareSettings::default() };
        if self.options.kind() == ContestantKind::Scenario {
            settings.min_rounds = SCENARIO_MIN_ROUNDS;
        }
        RoundComparison::new(&contestants, self.options.reference, self.load(), course, &settings)
    }
}
