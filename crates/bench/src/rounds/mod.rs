//! A live comparison runs the contestants (load generators, servers or scenarios) in many short rounds. In each round,
//! every load generator or server sends the same number of messages to the same sink.
//!
//! ```text
//! cases ─→ calibration ─→ (engine::run_rounds) ─→ round_run: start, wait4, count at the sink ─→ RoundComparison
//!          (messages of a round)
//! ```
mod calibration;
mod case;
mod counts;
mod round_run;
mod round_sink;
mod wire_counter;

use super::engine::{ComparedRun, Comparison, Contestant, NextRun, RoundBudget, RunTurn, RunTurns, run_rounds};
use anyhow::Result;
use calibration::{Calibration, RoundTimes, first_messages, next_step, time_limit};
pub use case::{LiveCase, LiveKind};
use counts::Counting;
use mailrun_compare::{
    CompareSettings, LookPlan, RoundComparison, RoundCourse, RoundLoad, RoundSamples, RoundSchedule, RoundTurning,
};
use mailrun_process::interrupt::{Interrupt, StopRequest};
use mailrun_process::keep_awake;
use mailrun_process::live::LiveMode;
use mailrun_process::live_line::LiveLine;
use mailrun_text::numbers::counted;
use round_run::{RoundCase, RoundRun, RoundRuns};
use round_sink::RoundSink;
pub use round_sink::RoundSinkPlace;
use std::cell::RefCell;
use std::time::Duration;

/// The calibration tries at most this many numbers of messages. If none of them is right, the rounds use the number
/// that the calibration would have tried next.
const MAX_CALIBRATION_STEPS: usize = 6;
/// Time limit for a contestant's first run of a scenario. The limit of a later run is computed from the duration of the
/// previous run.
const SCENARIO_LIMIT: Duration = Duration::from_secs(3_600);
/// Minimum number of rounds for a verdict on scenarios. It is low because their runs take minutes.
const SCENARIO_MIN_ROUNDS: usize = 6;

#[derive(Clone, Debug)]
pub struct RoundsOptions {
    /// At least two contestants. All of them must be load generators, all servers, or all scenarios.
    pub contestants: Vec<LiveCase>,
    /// Index of the contestant that the others are compared with.
    pub reference: usize,
    pub sessions: u32,
    pub message_bytes: u64,
    /// Recipient of the mail, for contestants that are servers.
    pub to: Option<String>,
    /// Sink that counts deliveries. Without a sink, the comparison measures only how the servers accept mail.
    pub sink: Option<RoundSinkPlace>,
    /// Number of messages that each contestant sends in a round. If it is `None`, the calibration chooses a number for
    /// which the fastest contestant takes 0.25 to 0.5 s.
    pub messages: Option<u64>,
    pub rounds: usize,
    /// Time limit after which no new round starts.
    pub budget: Duration,
    pub margin: f64,
    /// If set, the comparison ends after half of the rounds, provided that all verdicts are certain by then.
    pub is_until_decided: bool,
    /// If set, system calls and bytes are counted in runs after the rounds, because strace slows programs down.
    pub counts: bool,
    /// Set if a contestant is compared with itself, which shows the noise of the host.
    pub is_self: bool,
    pub live: LiveMode,
}

/// Runs rounds until all are done, the time is used up or the user stops. The comparison covers the completed rounds.
///
/// # Errors
///
/// Returns an error if the sink could not be started, or if no temporary directory could be created.
pub fn compare_live(options: &RoundsOptions) -> Result<RoundComparison> {
    let sink = options.sink.as_ref().map(RoundSink::new).transpose()?;
    let runs = RoundRuns::new(sink, options.to.clone())?;
    let interrupt = Interrupt::watch()?;
    let is_stopped = || interrupt.requested() != StopRequest::Nothing;
    let mut turns = RunTurns::new(options.live, &is_stopped);
    let mut live = LiveComparison::new(options, &runs);
    let named = |case: &LiveCase| Contestant::new(live.name(case), case.clone());
    let mut contestants: Vec<LiveContestant> = options.contestants.iter().map(named).collect();
    if options.kind() != LiveKind::Scenario {
        live.calibrate(&mut contestants, &mut turns);
    }
    let course = run_rounds(&live, &mut contestants, options.round_budget(), &mut turns);
    let mut comparison = live.comparison(&contestants, course, turns.began.elapsed());
    comparison.course.interrupted = is_stopped();
    if options.counts && !is_stopped() {
        let alive = contestants.iter().filter(|contestant| contestant.failure.is_none());
        let cases = alive.map(|contestant| &contestant.case).collect();
        let (kind, message_bytes) = (options.kind(), options.message_bytes);
        Counting { runs: &runs, kind, message_bytes, cases, turns: &mut turns }.add_to(&mut comparison);
    }
    turns.finish();
    Ok(comparison)
}

impl RoundsOptions {
    pub fn kind(&self) -> LiveKind {
        self.contestants.first().map_or(LiveKind::Source, LiveCase::kind)
    }

    fn round_budget(&self) -> RoundBudget {
        RoundBudget {
            schedule: RoundSchedule::new(self.contestants.len(), self.rounds, RoundTurning::Blocks { seed: 1 }),
            time: self.budget,
            early_look: self.is_until_decided.then_some(self.rounds / 2),
            repeats_faulty: true,
        }
    }

    fn notes(&self, has_sink: bool) -> Vec<String> {
        let is_unseen = self.kind() == LiveKind::Server && !has_sink;
        let note = is_unseen.then(|| "Accepted only: nobody saw deliveries (--sink, --sink-listen).".to_owned());
        note.into_iter().collect()
    }
}

type LiveContestant = Contestant<LiveCase, RoundRun>;

/// Results from all runs of a contestant, including runs that do not count, such as the runs of the calibration.
#[derive(Clone, Debug, Default)]
struct LiveHistory {
    /// Number of messages and duration of the contestant's last successful run.
    took: Option<(u64, Duration)>,
    max_rss_bytes: Option<u64>,
    /// The contestant's last successful run during the calibration, before the first round. Its figures are shown if
    /// all other contestants failed, so that there are no rounds.
    warm_up: Option<RoundRun>,
}

struct LiveComparison<'o> {
    options: &'o RoundsOptions,
    runs: &'o RoundRuns,
    messages: u64,
    histories: RefCell<Vec<LiveHistory>>,
}

impl Comparison for LiveComparison<'_> {
    type Case = LiveCase;
    type Measurement = RoundRun;

    fn name(&self, case: &LiveCase) -> String {
        case.name.clone()
    }

    fn run(&self, case: &LiveCase, turn: &mut RunTurn<'_>) -> Result<Option<ComparedRun<RoundRun>>> {
        Ok(self.run_once(turn.case, case, turn, false))
    }

    /// Builds the progress line: the round, the share of the comparison that is done, and the ratios so far.
    fn line(&self, contestants: &[LiveContestant], run: &NextRun<'_>) -> LiveLine {
        let (planned, counted) = (self.options.rounds, run.schedule.counted());
        let spent_share = run.began.elapsed().as_secs_f64() / self.options.budget.as_secs_f64();
        let share = (counted as f64 / planned as f64).max(spent_share);
        let name = &contestants[run.place].name;
        let mut text = match run.plan.is_warm_up {
            true => format!("first block, which does not count: {name}"),
            false => format!("round {} of {planned}: {name}", counted + 1),
        };
        let samples: Vec<RoundSamples> = contestants.iter().map(samples).collect();
        let reference = &samples[self.options.reference];
        for other in samples.iter().filter(|other| !std::ptr::eq(*other, reference)) {
            if let Some((metric, ratio)) = other.ratio_so_far(reference) {
                let metric = metric.split(',').next().unwrap_or_default();
                text.push_str(&format!(" · {} {ratio:.2} × {metric}", other.name));
            }
        }
        LiveLine::sentence(Some(share), text)
    }

    fn is_decided(&self, contestants: &[LiveContestant]) -> bool {
        self.comparison(contestants, RoundCourse::default(), Duration::ZERO).is_decided()
    }
}

/// Collects the contestant's figures from the valid rounds after the warm-up.
fn samples(contestant: &LiveContestant) -> RoundSamples {
    RoundSamples {
        name: contestant.name.clone(),
        description: contestant.case.description(),
        runs: contestant.measurements().map(|run| run.figures.clone()).collect(),
        max_rss_bytes: None,
        failure: contestant.failure.clone(),
    }
}

impl<'o> LiveComparison<'o> {
    fn new(options: &'o RoundsOptions, runs: &'o RoundRuns) -> Self {
        let messages = match options.kind() {
            LiveKind::Scenario => 0,
            LiveKind::Source | LiveKind::Server => first_messages(options.messages, options.sessions),
        };
        let histories = RefCell::new(vec![LiveHistory::default(); options.contestants.len()]);
        Self { options, runs, messages, histories }
    }

    fn load(&self) -> RoundLoad {
        let RoundsOptions { sessions, message_bytes, .. } = *self.options;
        RoundLoad { messages: self.messages, sessions, message_bytes }
    }

    /// Finds the number of messages that each contestant sends in a round. The runs of the calibration are not part of
    /// the result.
    fn calibrate(&mut self, contestants: &mut [LiveContestant], turns: &mut RunTurns<'_>) {
        for _ in 0..MAX_CALIBRATION_STEPS {
            let times = self.warm_up_round(contestants, turns);
            let Some(times) = times.filter(|_| !(turns.is_stopped)()) else { return };
            match next_step(self.options.messages, self.options.sessions, self.messages, times) {
                Calibration::Done => return,
                Calibration::Try(messages) => self.messages = messages,
            }
        }
    }

    /// Runs each contestant once, or twice if the first run is faulty, and returns how long the runs took. Returns
    /// `None` if the user stopped a run or if no contestant succeeded.
    fn warm_up_round(&self, contestants: &mut [LiveContestant], turns: &mut RunTurns<'_>) -> Option<RoundTimes> {
        // A load generator may send more messages than it should. So if load generators are compared, wait after each
        // run until no more messages arrive. If servers are compared, mailrun's own source sends the load, and it never
        // sends too many messages.
        let is_thorough = self.options.kind() == LiveKind::Source;
        let mut times = Vec::new();
        for (place, contestant) in contestants.iter_mut().enumerate() {
            let mut fault = None;
            // Repeat a failed run of the warm-up once. But if the program is missing or hangs, do not repeat the run,
            // because it would fail again.
            for _ in 0..2 {
                if contestant.failure.is_some() || (turns.is_stopped)() {
                    break;
                }
                let text = format!("warm-up: {}, {}", contestant.name, counted(self.messages, "message"));
                let mut turn = turns.next(LiveLine::sentence(Some(0.0), text));
                let run = self.run_once(place, &contestant.case, &mut turn, is_thorough)?;
                fault = run.fault().map(str::to_owned);
                match run {
                    ComparedRun::Sound(run) => {
                        times.push(run.elapsed_s);
                        self.histories.borrow_mut()[place].warm_up = Some(run);
                        break;
                    }
                    ComparedRun::Failed(_) => contestant.failure = fault.take(),
                    ComparedRun::Faulty(..) | ComparedRun::Undecided(..) => {}
                }
            }
            contestant.failure = contestant.failure.take().or(fault);
        }
        let fastest_s = times.iter().copied().reduce(f64::min)?;
        let budget_s = self.options.budget.as_secs_f64();
        Some(RoundTimes { fastest_s, together_s: times.iter().sum(), budget_s })
    }

    /// Runs the contestant once, and remembers the run's duration and peak memory if the run was sound. Returns `None`
    /// if the user stopped the run.
    fn run_once(
        &self,
        place: usize,
        case: &LiveCase,
        turn: &mut RunTurn<'_>,
        is_thorough: bool,
    ) -> Option<ComparedRun<RoundRun>> {
        let last_run = self.histories.borrow()[place].took;
        let limit = match self.options.kind() {
            LiveKind::Scenario if last_run.is_none() => SCENARIO_LIMIT,
            LiveKind::Scenario | LiveKind::Source | LiveKind::Server => time_limit(last_run, self.messages),
        };
        let load = self.load();
        let round = RoundCase { contestant: case, load, limit, is_thorough, strace: None, counts_bytes: false };
        let run = self.runs.measure(&round, turn).transpose()?;
        let run = run.unwrap_or_else(|error| RoundRun::faulty(format!("{error:#}")));
        if let Some(run) = run.sound() {
            let history = &mut self.histories.borrow_mut()[place];
            history.took = Some((self.messages, Duration::from_secs_f64(run.elapsed_s)));
            history.max_rss_bytes = history.max_rss_bytes.max(run.max_rss_bytes);
        }
        Some(run)
    }

    fn comparison(&self, contestants: &[LiveContestant], course: RoundCourse, elapsed: Duration) -> RoundComparison {
        let RoundsOptions { margin, reference, is_self, is_until_decided, .. } = *self.options;
        let mut notes = self.options.notes(self.runs.has_sink());
        notes.extend(course.notes);
        let is_alone = contestants.iter().filter(|contestant| contestant.failure.is_none()).count() < 2;
        let has_rounds = contestants.iter().any(|contestant| !contestant.runs.is_empty());
        let mut all = Vec::new();
        for (contestant, history) in contestants.iter().zip(self.histories.borrow().iter()) {
            let mut samples = RoundSamples { max_rss_bytes: history.max_rss_bytes, ..samples(contestant) };
            if let Some(run) = history.warm_up.as_ref().filter(|_| !has_rounds && is_alone) {
                samples.runs = vec![run.figures.clone()];
                notes.push(format!("{} has its warm-up run only.", samples.name));
            }
            all.push(samples);
        }
        let keep_awake = keep_awake::state();
        let course = RoundCourse { is_self, keep_awake, notes, elapsed_s: elapsed.as_secs_f64(), ..course };
        let look = if is_until_decided { LookPlan::OneOfTwo } else { LookPlan::Only };
        let mut settings = CompareSettings { margin, look, ..CompareSettings::default() };
        if self.options.kind() == LiveKind::Scenario {
            settings.min_rounds = SCENARIO_MIN_ROUNDS;
        }
        RoundComparison::new(&all, reference, self.load(), course, &settings)
    }
}
