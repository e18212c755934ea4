//! Runs the contestants of a comparison in rounds, one run at a time, until the planned rounds or the time are used up,
//! or the user presses Ctrl-C. In each round, every contestant runs once, so that a slow minute affects all of them.
//!
//! If the report of a comparison is a table, the number of rounds is fixed. If a run fails, the report names it, and
//! the other runs go on. A live comparison repeats a round in which a run went wrong. It drops a contestant whose run
//! fails, or whose runs are faulty three times in a row.
use super::timed::{Costs, TimedChild};
use anyhow::{Result, bail, ensure};
use clap::ValueEnum;
use mailrun_compare::{RoundCourse, RoundPlan, RoundSchedule, RoundTurning};
use mailrun_dashboard::live_display::LiveDisplay;
use mailrun_process::host_sampler::HostSampler;
use mailrun_process::live::LiveMode;
use mailrun_process::live_line::{LiveLine, NonTerminalOutput};
use mailrun_text::numbers::{count, octets, seconds};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

/// Maximum number of bytes that a contestant may write to standard error. A contestant that writes
/// more is killed, because the output fills a file on disk.
const MAX_STDERR_BYTES: u64 = 64 << 20;
/// A live comparison drops a contestant after this many faulty runs without a sound run in between. A run that cannot
/// start, fails or hangs drops the contestant at once.
const MAX_FAULTS_IN_A_ROW: usize = 3;
/// A round of a live comparison is invalid if other guests of the hypervisor took at least this share of the CPU time.
const STEAL_LIMIT: f64 = 0.25;
/// Maximum number of different reasons for invalid rounds that are kept for the report.
const MAX_REASONS: usize = 10;

/// Order in which the programs to compare run within each round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum RoundOrder {
    /// Every other round has the opposite order, so that no program always runs first.
    #[default]
    Alternating,
    /// Every round runs the programs in their listed order.
    Fixed,
}

/// One kind of comparison: its cases, and how to run a case.
pub(crate) trait Comparison {
    /// Describes the program that a contestant runs, and the load.
    type Case;
    type Measurement;

    fn name(&self, case: &Self::Case) -> String;

    /// Makes one run of a case, or returns `None` if the user stopped it.
    ///
    /// # Errors
    /// Returns an error if the contestant cannot start, fails or hangs.
    fn run(&self, case: &Self::Case, turn: &mut RunTurn<'_>) -> Result<Option<ComparedRun<Self::Measurement>>>;

    /// Returns the line of progress that is shown during the next run.
    fn line(&self, contestants: &[Contestant<Self::Case, Self::Measurement>], run: &NextRun<'_>) -> LiveLine {
        LiveLine::of_runs(run.done, run.planned, &contestants[run.place].name, run.began)
    }

    /// Reports whether the result is certain, so that more rounds would not change it. The runner
    /// asks once, after the number of rounds in `RoundBudget::early_look`.
    fn is_decided(&self, _contestants: &[Contestant<Self::Case, Self::Measurement>]) -> bool {
        false
    }
}

/// Plan of a comparison with a fixed number of rounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunPlan {
    /// Size of a group of cases that are compared with each other. The cases of a group must be adjacent in the list.
    pub(crate) compared: usize,
    pub(crate) rounds: u32,
    pub(crate) order: RoundOrder,
    pub(crate) live: LiveMode,
}

/// Limits for the rounds and the time of a comparison, and the conditions that end it early.
#[derive(Clone, Debug)]
pub(crate) struct RoundBudget {
    pub(crate) schedule: RoundSchedule,
    /// Time limit after which no new round starts.
    pub(crate) time: Duration,
    /// After this number of rounds, the comparison ends if its result is already certain.
    pub(crate) early_look: Option<usize>,
    /// If set, a round in which a run went wrong does not count and is repeated.
    pub(crate) repeats_faulty: bool,
}

/// The run that comes next, for the line of progress.
pub(crate) struct NextRun<'a> {
    pub(crate) place: usize,
    /// Number of completed runs. Runs in rounds that did not count are left out.
    done: usize,
    planned: usize,
    pub(crate) schedule: &'a RoundSchedule,
    pub(crate) plan: &'a RoundPlan,
    pub(crate) began: Instant,
}

#[derive(Clone, Debug)]
pub(crate) enum ComparedRun<M> {
    /// The run did all of its work, so its figures count.
    Sound(M),
    /// The run finished, but some of its work was not done. The string says what is missing.
    Faulty(M, String),
    /// The run finished, but mail is missing. This may not be a failure, because the mail may still be in a queue that
    /// cannot be read.
    Undecided(M, String),
    /// The run could not start, failed or hung. The string gives the reason.
    Failed(String),
}

impl<M> ComparedRun<M> {
    pub(crate) fn of(measured: M, fault: Option<String>) -> Self {
        match fault {
            None => Self::Sound(measured),
            Some(fault) => Self::Faulty(measured, fault),
        }
    }

    /// Returns the figures of a run that finished, whether or not it did all of its work.
    pub(crate) fn measurement(&self) -> Option<&M> {
        match self {
            Self::Sound(measured) | Self::Faulty(measured, _) | Self::Undecided(measured, _) => Some(measured),
            Self::Failed(_) => None,
        }
    }

    /// Returns the run's figures if the run is sound, that is, if it did all of its work. The figures of other runs do
    /// not count, because those runs did different work.
    pub(crate) fn sound(&self) -> Option<&M> {
        match self {
            Self::Sound(measured) => Some(measured),
            Self::Faulty(..) | Self::Undecided(..) | Self::Failed(_) => None,
        }
    }

    /// Returns the reason why the run went wrong, or `None` for a sound run.
    pub(crate) fn fault(&self) -> Option<&str> {
        match self {
            Self::Sound(_) => None,
            Self::Faulty(_, reason) | Self::Undecided(_, reason) | Self::Failed(reason) => Some(reason),
        }
    }
}

/// A case that takes part in the comparison, with its runs. Runs in warm-up rounds and in rounds that were repeated are
/// left out.
#[derive(Clone, Debug)]
pub(crate) struct Contestant<C, M> {
    pub(crate) case: C,
    pub(crate) name: String,
    /// One run for each round, in the order of the rounds.
    pub(crate) runs: Vec<ComparedRun<M>>,
    /// Reason why the contestant was dropped from all later rounds.
    pub(crate) failure: Option<String>,
}

impl<C, M> Contestant<C, M> {
    pub(crate) fn new(name: String, case: C) -> Self {
        Self { case, name, runs: Vec::new(), failure: None }
    }

    pub(crate) fn measurements(&self) -> impl Iterator<Item = &M> {
        self.runs.iter().filter_map(ComparedRun::measurement)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct ComparisonResults<C, M> {
    pub(crate) contestants: Vec<Contestant<C, M>>,
    pub(crate) done: usize,
    pub(crate) planned: usize,
}

pub(crate) struct RunTurn<'a> {
    /// Index of the case in the comparison, from 0.
    pub(crate) case: usize,
    pub(crate) round: usize,
    /// Name of the run with its place among all runs, such as `run 3 of 16: postfix`.
    pub(crate) title: String,
    line: LiveLine,
    display: &'a mut LiveDisplay,
    is_stopped: &'a dyn Fn() -> bool,
}

impl RunTurn<'_> {
    /// Waits until the contestant exits, and shows the progress of the comparison meanwhile. Then kills processes that
    /// the contestant has left running. Returns `None` if the user wants no more runs.
    ///
    /// # Errors
    /// Returns an error if `watch` fails, if the contestant writes too much to standard error, or if it takes longer
    /// than `limit`. In the last case, the error includes the text of `progress`.
    pub(crate) fn await_exit(
        &mut self,
        contestant: &mut TimedChild,
        limit: Duration,
        progress: impl Fn() -> Option<String>,
        mut watch: impl FnMut() -> Result<()>,
    ) -> Result<Option<(ExitStatus, Costs)>> {
        while !contestant.poll_exit()? {
            self.display.show(|| self.line.clone());
            if (self.is_stopped)() {
                return Ok(None);
            }
            watch()?;
            let is_flooding = contestant.stderr_bytes() > MAX_STDERR_BYTES;
            ensure!(!is_flooding, "it wrote more than {} on standard error and was killed", octets(MAX_STDERR_BYTES));
            if contestant.age() >= limit {
                let progress = progress().map(|words| format!(": {words}")).unwrap_or_default();
                bail!("it did not end within {} and was killed{progress}", seconds(limit.as_secs_f64()));
            }
        }
        contestant.kill_group();
        contestant.reap().map(Some)
    }
}

/// Returns a description of the fault if the number of messages that arrived at the sink differs from the number of
/// messages that were sent.
pub(crate) fn miscount(arrived: u64, sent: u64) -> Option<String> {
    (arrived != sent).then(|| format!("the sink has {} of {} messages", count(arrived), count(sent)))
}

/// Makes runs one at a time, and shows their progress on the terminal.
pub(crate) struct RunTurns<'a> {
    display: LiveDisplay,
    pub(crate) is_stopped: &'a dyn Fn() -> bool,
    pub(crate) began: Instant,
}

impl<'a> RunTurns<'a> {
    /// `live` says how the progress is shown, and `is_stopped` reports whether the user wants no more runs.
    pub(crate) fn new(live: LiveMode, is_stopped: &'a dyn Fn() -> bool) -> Self {
        let display = LiveDisplay::on_stderr(live, NonTerminalOutput::Lines);
        Self { display, is_stopped, began: Instant::now() }
    }

    pub(crate) fn next(&mut self, line: LiveLine) -> RunTurn<'_> {
        let display = &mut self.display;
        RunTurn { case: 0, round: 0, title: String::new(), line, display, is_stopped: self.is_stopped }
    }

    pub(crate) fn finish(&mut self) {
        self.display.clear();
    }
}

/// Runs the cases as planned, until all are done or `is_stopped` reports that the user wants no more runs.
pub(crate) fn run_all<C: Comparison>(
    comparison: &C,
    cases: Vec<C::Case>,
    plan: RunPlan,
    is_stopped: &dyn Fn() -> bool,
) -> ComparisonResults<C::Case, C::Measurement> {
    let named = |case| Contestant::new(comparison.name(&case), case);
    let mut contestants: Vec<_> = cases.into_iter().map(named).collect();
    let turning = match plan.order {
        RoundOrder::Alternating => RoundTurning::Groups { size: plan.compared },
        RoundOrder::Fixed => RoundTurning::None,
    };
    let budget = RoundBudget {
        schedule: RoundSchedule::new(contestants.len(), plan.rounds as usize, turning),
        time: Duration::MAX,
        early_look: None,
        repeats_faulty: false,
    };
    let mut turns = RunTurns::new(plan.live, is_stopped);
    run_rounds(comparison, &mut contestants, budget, &mut turns);
    turns.finish();
    let done = contestants.iter().map(|contestant| contestant.runs.len()).sum();
    ComparisonResults { done, planned: contestants.len() * plan.rounds as usize, contestants }
}

/// Runs the contestants round by round, until the rounds or the time of `budget` are used up, or the user stops. A live
/// comparison drops contestants that keep failing, and also stops when fewer than two contestants are left. Returns the
/// number of rounds that count, and the reasons why other rounds were invalid.
pub(crate) fn run_rounds<C: Comparison>(
    comparison: &C,
    contestants: &mut [Contestant<C::Case, C::Measurement>],
    budget: RoundBudget,
    turns: &mut RunTurns<'_>,
) -> RoundCourse {
    let RoundBudget { schedule, time, early_look, repeats_faulty } = budget;
    let course = RoundCourse { planned_rounds: schedule.wanted(), ..RoundCourse::default() };
    let faults_in_a_row = vec![0; contestants.len()];
    let mut rounds = Rounds { comparison, contestants, faults_in_a_row, schedule, repeats_faulty, turns, course };
    while let Some(plan) = rounds.schedule.next_round() {
        let alive = rounds.contestants.iter().filter(|contestant| contestant.failure.is_none()).count();
        if (rounds.turns.is_stopped)() || repeats_faulty && alive < 2 {
            break;
        }
        if rounds.turns.began.elapsed() >= time {
            rounds.course.is_budget_spent = true;
            break;
        }
        let Some(is_valid) = rounds.round(&plan) else { break };
        let is_look = is_valid && Some(rounds.schedule.counted()) == early_look;
        if is_look && comparison.is_decided(rounds.contestants) {
            break;
        }
    }
    if rounds.course.rounds < rounds.schedule.wanted() && rounds.schedule.next_round().is_none() {
        rounds.course.notes.push("Too many rounds were invalid: it ended before its time.".to_owned());
    }
    rounds.course
}

struct Rounds<'r, 't, C: Comparison> {
    comparison: &'r C,
    contestants: &'r mut [Contestant<C::Case, C::Measurement>],
    /// Number of runs of each contestant that went wrong since its last sound run.
    faults_in_a_row: Vec<usize>,
    schedule: RoundSchedule,
    repeats_faulty: bool,
    turns: &'r mut RunTurns<'t>,
    course: RoundCourse,
}

impl<C: Comparison> Rounds<'_, '_, C> {
    /// Makes a round, in which each contestant that was not dropped runs once, and keeps the runs if they count.
    /// Returns true if the round is valid, and `None` if the user stopped the comparison.
    fn round(&mut self, plan: &RoundPlan) -> Option<bool> {
        let mut runs = Vec::new();
        let end = self.run_contestants(plan, &mut runs);
        let is_kept = match &end {
            Some(end) => end.is_ok() && !plan.is_warm_up,
            // The user has stopped the comparison within a round. For a table, keep the completed runs of this round,
            // although other contestants may have one run less. For a live comparison (`repeats_faulty`), drop these
            // runs, because it compares only complete rounds.
            None => !self.repeats_faulty,
        };
        for (place, run) in runs.into_iter().filter(|_| is_kept) {
            self.contestants[place].runs.push(run);
        }
        let reason = end?.err();
        let is_valid = reason.is_none();
        self.schedule.finish_round(is_valid);
        let RoundCourse { rounds, invalid_rounds, invalid, .. } = &mut self.course;
        (*rounds, *invalid_rounds) = (self.schedule.counted(), self.schedule.repeated());
        invalid.extend(reason.filter(|reason| invalid.len() < MAX_REASONS && !invalid.contains(reason)));
        Some(is_valid)
    }

    /// Runs each contestant once. If the comparison repeats faulty rounds, a run that goes wrong ends the round at
    /// once. Returns `None` if the user stopped the comparison, and an error with the reason if the round is invalid.
    fn run_contestants(
        &mut self,
        plan: &RoundPlan,
        runs: &mut Vec<(usize, ComparedRun<C::Measurement>)>,
    ) -> Option<Result<(), String>> {
        let host = self.repeats_faulty.then(HostSampler::start);
        for &place in &plan.order {
            if (self.turns.is_stopped)() {
                return None;
            }
            if self.contestants[place].failure.is_some() {
                continue;
            }
            let run = self.run(place, plan, runs.len())?;
            if let Some(fault) = run.fault().filter(|_| self.repeats_faulty) {
                self.faults_in_a_row[place] += 1;
                let contestant = &mut self.contestants[place];
                // Give up at once if the program is missing or hangs, because another run would fail in the same way.
                if matches!(run, ComparedRun::Failed(_)) || self.faults_in_a_row[place] >= MAX_FAULTS_IN_A_ROW {
                    contestant.failure = Some(fault.to_owned());
                }
                return Some(Err(format!("{}: {fault}", contestant.name)));
            }
            self.faults_in_a_row[place] = 0;
            runs.push((place, run));
        }
        let stolen = host.and_then(|host| host.finish().steal_share.filter(|share| *share >= STEAL_LIMIT));
        let reason = |share: f64| format!("the hypervisor gave {:.0} % of the CPU to others", share * 100.0);
        Some(stolen.map_or(Ok(()), |share| Err(reason(share))))
    }

    /// Makes one run, or returns `None` if the user stopped it. `in_round` is the number of earlier runs in this round.
    fn run(&mut self, place: usize, plan: &RoundPlan, in_round: usize) -> Option<ComparedRun<C::Measurement>> {
        let kept: usize = self.contestants.iter().map(|contestant| contestant.runs.len()).sum();
        let Contestant { case, name, runs, .. } = &self.contestants[place];
        let (done, planned) = (kept + in_round, self.contestants.len() * self.schedule.wanted());
        let next = NextRun { place, done, planned, schedule: &self.schedule, plan, began: self.turns.began };
        let mut turn = RunTurn {
            case: place,
            round: runs.len(),
            title: format!("run {} of {planned}: {name}", done + 1),
            ..self.turns.next(self.comparison.line(self.contestants, &next))
        };
        let run = self.comparison.run(case, &mut turn).transpose()?;
        Some(run.unwrap_or_else(|error| ComparedRun::Failed(format!("{error:#}"))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;
    use std::cell::RefCell;
    use std::process::{Command, Stdio};

    fn plan(compared: usize, rounds: u32, order: RoundOrder) -> RunPlan {
        RunPlan { compared, rounds, order, live: LiveMode::Off }
    }

    /// Simulated comparison, in which the contestant `x` always fails, and the contestant `l` loses a message.
    #[derive(Default)]
    struct LetterComparison {
        runs: RefCell<Vec<String>>,
        /// Number of the run that the user stops, counted from 1.
        stopped_in: Option<usize>,
    }

    impl Comparison for LetterComparison {
        type Case = char;
        type Measurement = usize;

        fn name(&self, case: &char) -> String {
            format!("contestant {case}")
        }

        fn run(&self, case: &char, turn: &mut RunTurn<'_>) -> Result<Option<ComparedRun<usize>>> {
            let mut runs = self.runs.borrow_mut();
            runs.push(format!("{case}{}", turn.round));
            match case {
                _ if self.stopped_in == Some(runs.len()) => Ok(None),
                'x' => bail!("out of luck"),
                _ => Ok(Some(ComparedRun::of(runs.len(), (*case == 'l').then(|| "lost 1".to_owned())))),
            }
        }
    }

    #[test]
    fn each_case_has_its_runs_in_the_order_of_the_rounds() {
        let comparison = LetterComparison::default();
        let results = run_all(&comparison, vec!['a', 'b'], plan(2, 3, RoundOrder::Alternating), &|| false);
        assert_eq!(comparison.runs.take(), ["a0", "b0", "b1", "a1", "a2", "b2"]);
        assert_eq!((results.done, results.planned), (6, 6));
        let runs =
            |at: usize| results.contestants[at].runs.iter().filter_map(|run| run.sound().copied()).collect::<Vec<_>>();
        assert_eq!((runs(0), runs(1)), (vec![1, 4, 5], vec![2, 3, 6]));
    }

    #[test]
    fn who_fails_or_loses_is_named_and_the_others_run() {
        let comparison = LetterComparison::default();
        let results = run_all(&comparison, vec!['x', 'l', 'a'], plan(3, 1, RoundOrder::Fixed), &|| false);
        let [failed, lossy, good] = [0, 1, 2].map(|at: usize| &results.contestants[at].runs[0]);
        assert_eq!((failed.fault(), failed.measurement(), failed.sound()), (Some("out of luck"), None, None));
        assert_eq!((lossy.fault(), lossy.measurement(), lossy.sound()), (Some("lost 1"), Some(&2), None));
        assert_eq!((good.fault(), good.sound()), (None, Some(&3)));
        assert_eq!(results.contestants[0].name, "contestant x");
    }

    /// Compares contestants named by `letters` in a live comparison, which repeats invalid rounds.
    fn repeated(
        letters: &str,
        rounds: usize,
        time: Duration,
        stopped_in: Option<usize>,
    ) -> (Vec<Contestant<char, usize>>, RoundCourse) {
        let comparison = LetterComparison { stopped_in, ..LetterComparison::default() };
        let mut contestants: Vec<_> =
            letters.chars().map(|letter| Contestant::new(letter.to_string(), letter)).collect();
        let schedule = RoundSchedule::new(letters.len(), rounds, RoundTurning::Blocks { seed: 1 });
        let budget = RoundBudget { schedule, time, early_look: None, repeats_faulty: true };
        let course = run_rounds(&comparison, &mut contestants, budget, &mut RunTurns::new(LiveMode::Off, &|| false));
        (contestants, course)
    }

    #[test]
    fn only_whole_rounds_count_and_who_fails_is_given_up() {
        let kept = |contestants: &[Contestant<char, usize>]| {
            let failed = |one: &Contestant<_, _>| one.failure.clone().unwrap_or_default();
            contestants.iter().map(|one| (one.runs.len(), failed(one))).collect::<Vec<_>>()
        };
        let none = String::new;
        for (letters, time_s, stopped_in, expected, course) in [
            ("ab", 600, None, [(4, none()), (4, none())], (4, 0, false)),
            // Contestant `x` cannot run and is dropped at once. This ends the comparison, because only `a` is left.
            ("ax", 600, None, [(0, none()), (0, "out of luck".to_owned())], (0, 1, false)),
            // Each run of contestant `l` loses mail. The comparison drops `l` only after three failed runs in a row.
            ("al", 600, None, [(0, none()), (0, "lost 1".to_owned())], (0, 3, false)),
            // Run 8 is in the second round after the warm-up. The user stops this run, so only the first round counts.
            ("ab", 600, Some(8), [(1, none()), (1, none())], (1, 0, false)),
            ("ab", 0, None, [(0, none()), (0, none())], (0, 0, true)),
        ] {
            let (contestants, went) = repeated(letters, 4, Duration::from_secs(time_s), stopped_in);
            assert_eq!(kept(&contestants), expected, "{letters}, {stopped_in:?}");
            assert_eq!((went.rounds, went.invalid_rounds, went.is_budget_spent), course, "{letters}, {stopped_in:?}");
        }
    }

    #[test]
    fn what_the_user_ends_is_no_run_and_the_last() {
        let ended_in_its_middle = LetterComparison { stopped_in: Some(3), ..LetterComparison::default() };
        let results = run_all(&ended_in_its_middle, vec!['a', 'b'], plan(2, 3, RoundOrder::Fixed), &|| false);
        assert_eq!((results.done, results.planned, ended_in_its_middle.runs.borrow().len()), (2, 6, 3));
        let ended_between = LetterComparison::default();
        let is_stopped = || ended_between.runs.borrow().len() == 3;
        let results = run_all(&ended_between, vec!['a', 'b'], plan(2, 3, RoundOrder::Fixed), &is_stopped);
        assert_eq!((results.done, results.contestants[0].runs.len(), results.contestants[1].runs.len()), (3, 2, 1));
    }

    /// Comparison whose contestants are shell scripts. The duration is the time limit of each run.
    struct ShellComparison(Duration);

    impl Comparison for ShellComparison {
        type Case = &'static str;
        type Measurement = (Option<i32>, Costs);

        fn name(&self, script: &&'static str) -> String {
            (*script).to_owned()
        }

        fn run(&self, script: &&'static str, turn: &mut RunTurn<'_>) -> Result<Option<ComparedRun<Self::Measurement>>> {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", script]).stdout(Stdio::null());
            let mut child = TimedChild::start(command)?;
            let ended = turn.await_exit(&mut child, self.0, || Some("at message 7".to_owned()), || Ok(()))?;
            Ok(ended.map(|(status, costs)| ComparedRun::Sound((status.code(), costs))))
        }
    }

    #[test]
    fn a_contestant_is_awaited_until_its_limit_and_the_users_wish() {
        let quick = ShellComparison(Duration::from_secs(60));
        let once = plan(1, 1, RoundOrder::Fixed);
        let results = run_all(&quick, vec!["exit 3"], once, &|| false);
        assert_eq!(results.contestants[0].runs[0].sound().map(|(code, _)| *code), Some(Some(3)));
        let slow = ShellComparison(Duration::from_millis(100));
        let results = run_all(&slow, vec!["sleep 600"], once, &|| false);
        let hung = results.contestants[0].runs[0].fault().unwrap();
        assert_eq!(hung, "it did not end within 0.10 s and was killed: at message 7");
        let calls = RefCell::new(0);
        let is_stopped = || {
            *calls.borrow_mut() += 1;
            *calls.borrow() > 3
        };
        let results = run_all(&quick, vec!["sleep 600"], once, &is_stopped);
        assert_eq!((results.done, results.contestants[0].runs.len()), (0, 0));
    }
}
