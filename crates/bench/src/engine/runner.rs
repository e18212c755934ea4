//! Runs the cases of a comparison in rounds, one run at a time, until all are done or the user
//! presses Ctrl-C. Rounds are interleaved, so that a slow minute affects all cases. If a run fails,
//! the report names it, and the other runs go on.
use super::timed::{Costs, TimedChild};
use anyhow::{Result, bail, ensure};
use clap::ValueEnum;
use mailrun_dashboard::live_display::LiveDisplay;
use mailrun_party::live::LiveMode;
use mailrun_party::live_line::{LiveLine, NonTerminalOutput};
use mailrun_text::numbers::{octets, seconds};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

/// Limit of what a contestant may write to standard error. It is killed when it writes more,
/// because the output fills a file on disk.
const MAX_STDERR_BYTES: u64 = 64 << 20;

/// Order in which the parties run in each round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum RoundOrder {
    /// Every other round has the opposite order, so that no party always runs first.
    #[default]
    Alternating,
    /// Every round has the order of the list.
    Fixed,
}

/// What is special about one kind of comparison: its cases, and how to run one of them.
pub(crate) trait Comparison {
    /// Row of the result: a contestant, and the work that it does.
    type Case;
    type Measurement;

    /// Name of a case in the progress display and in reports.
    fn name(&self, case: &Self::Case) -> String;

    /// Makes one run of a case. Returns `None` if the user stopped it.
    ///
    /// # Errors
    /// If the contestant cannot start, fails or hangs.
    fn run(&self, case: &Self::Case, turn: &mut RunTurn<'_>) -> Result<Option<ComparedRun<Self::Measurement>>>;
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct RunPlan {
    /// Number of cases that are compared with each other. They must stand next to each other in the
    /// list of cases.
    pub(crate) compared: usize,
    pub(crate) rounds: u32,
    pub(crate) order: RoundOrder,
    pub(crate) live: LiveMode,
}

#[derive(Clone, Debug)]
pub(crate) enum ComparedRun<M> {
    /// The run did all of its work.
    Sound(M),
    /// The run finished, but some of its work was not done. The text says what is missing.
    Faulty(M, String),
    /// The run finished with a fault, but it may not have failed: the missing mail may still be in
    /// a queue that cannot be read.
    Undecided(M, String),
    /// The run could not start, failed or hung. The text is the reason.
    Failed(String),
}

impl<M> ComparedRun<M> {
    /// Classifies a run that finished. `fault` says which of its work was not done, if any.
    pub(crate) fn of(measured: M, fault: Option<String>) -> Self {
        match fault {
            None => Self::Sound(measured),
            Some(fault) => Self::Faulty(measured, fault),
        }
    }

    /// Figures of a run that finished, whether or not it did all of its work.
    pub(crate) fn measurement(&self) -> Option<&M> {
        match self {
            Self::Sound(measured) | Self::Faulty(measured, _) | Self::Undecided(measured, _) => Some(measured),
            Self::Failed(_) => None,
        }
    }

    /// Figures of a run that did all of its work. Those of other runs do not count, because they
    /// measure different work.
    pub(crate) fn sound(&self) -> Option<&M> {
        match self {
            Self::Sound(measured) => Some(measured),
            Self::Faulty(..) | Self::Undecided(..) | Self::Failed(_) => None,
        }
    }

    /// Reason why the run went wrong.
    pub(crate) fn fault(&self) -> Option<&str> {
        match self {
            Self::Sound(_) => None,
            Self::Faulty(_, reason) | Self::Undecided(_, reason) | Self::Failed(reason) => Some(reason),
        }
    }
}

/// A case and its runs, one for each round, in the order of the rounds.
#[derive(Clone, Debug)]
pub(crate) struct CaseSeries<C, M> {
    pub(crate) case: C,
    pub(crate) name: String,
    pub(crate) runs: Vec<ComparedRun<M>>,
}

impl<C, M> CaseSeries<C, M> {
    /// Figures of the runs that finished, whether or not they did all of their work.
    pub(crate) fn measurements(&self) -> impl Iterator<Item = &M> {
        self.runs.iter().filter_map(ComparedRun::measurement)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct ComparisonResults<C, M> {
    pub(crate) series: Vec<CaseSeries<C, M>>,
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
    /// Waits until the contestant exits, and shows the progress of all runs meanwhile. Returns
    /// `None` if the user wants no more runs.
    ///
    /// # Errors
    /// If the contestant takes longer than `limit`. The error then includes `progress`.
    pub(crate) fn await_exit(
        &mut self,
        contestant: &mut TimedChild,
        limit: Duration,
        progress: impl Fn() -> Option<String>,
    ) -> Result<Option<(ExitStatus, Costs)>> {
        let ended = self.watch_until_exit(contestant, limit, progress, || Ok(()))?;
        ended.then(|| contestant.reap()).transpose()
    }

    /// Waits like `await_exit`, and calls `watch` meanwhile. After the contestant has exited,
    /// processes that it has left running are killed.
    ///
    /// # Errors
    /// If the contestant takes longer than `limit`, or if `watch` fails.
    pub(crate) fn await_exit_watched(
        &mut self,
        contestant: &mut TimedChild,
        limit: Duration,
        progress: impl Fn() -> Option<String>,
        watch: impl FnMut() -> Result<()>,
    ) -> Result<Option<(ExitStatus, Costs)>> {
        let ended = self.watch_until_exit(contestant, limit, progress, watch)?;
        contestant.kill_group();
        ended.then(|| contestant.reap()).transpose()
    }

    /// Waits until the contestant exits. Returns false if the user wants no more runs.
    fn watch_until_exit(
        &mut self,
        contestant: &mut TimedChild,
        limit: Duration,
        progress: impl Fn() -> Option<String>,
        mut watch: impl FnMut() -> Result<()>,
    ) -> Result<bool> {
        while !contestant.poll_exit()? {
            self.display.show(|| self.line.clone());
            if (self.is_stopped)() {
                return Ok(false);
            }
            watch()?;
            let is_flooding = contestant.stderr_bytes() > MAX_STDERR_BYTES;
            ensure!(!is_flooding, "it wrote more than {} on standard error and was killed", octets(MAX_STDERR_BYTES));
            if contestant.age() >= limit {
                let progress = progress().map(|words| format!(": {words}")).unwrap_or_default();
                bail!("it did not end within {} and was killed{progress}", seconds(limit.as_secs_f64()));
            }
        }
        Ok(true)
    }
}

/// Makes runs one at a time, and shows their progress on the terminal.
pub(crate) struct RunTurns<'a> {
    display: LiveDisplay,
    is_stopped: &'a dyn Fn() -> bool,
}

impl<'a> RunTurns<'a> {
    /// `is_stopped` reports whether the user wants no more runs.
    pub(crate) fn new(live: LiveMode, is_stopped: &'a dyn Fn() -> bool) -> Self {
        Self { display: LiveDisplay::on_stderr(live, NonTerminalOutput::Lines), is_stopped }
    }

    /// Begins the next run. `line` is its line of progress.
    pub(crate) fn next(&mut self, line: LiveLine) -> RunTurn<'_> {
        let display = &mut self.display;
        RunTurn { case: 0, round: 0, title: String::new(), line, display, is_stopped: self.is_stopped }
    }

    pub(crate) fn finish(&mut self) {
        self.display.clear();
    }
}

/// Runs the cases as planned, until all are done or `is_stopped` reports that the user wants no
/// more runs.
pub(crate) fn run_all<C: Comparison>(
    comparison: &C,
    cases: Vec<C::Case>,
    plan: RunPlan,
    is_stopped: &dyn Fn() -> bool,
) -> ComparisonResults<C::Case, C::Measurement> {
    let order = order(cases.len(), plan);
    let planned = order.len();
    let named = |case| CaseSeries { name: comparison.name(&case), case, runs: Vec::new() };
    let mut series: Vec<CaseSeries<_, _>> = cases.into_iter().map(named).collect();
    let mut turns = RunTurns::new(plan.live, is_stopped);
    let began = Instant::now();
    let mut done = 0;
    for number in order {
        if is_stopped() {
            break;
        }
        let CaseSeries { case, name, runs } = &mut series[number];
        let mut turn = RunTurn {
            case: number,
            round: runs.len(),
            title: format!("run {} of {planned}: {name}", done + 1),
            ..turns.next(LiveLine::of_runs(done, planned, name, began))
        };
        match comparison.run(case, &mut turn).transpose() {
            None => break,
            Some(run) => runs.push(run.unwrap_or_else(|error| ComparedRun::Failed(format!("{error:#}")))),
        }
        done += 1;
    }
    turns.finish();
    ComparisonResults { series, done, planned }
}

/// Returns the order of the runs, as indices of cases. Each round runs all cases. With
/// `RoundOrder::Alternating`, every second round reverses the order of the cases that are compared
/// with each other.
fn order(cases: usize, plan: RunPlan) -> Vec<usize> {
    let compared = plan.compared.max(1);
    let round = |number: u32| {
        let groups = (0..cases).step_by(compared);
        groups.flat_map(move |first| {
            let group = first..(first + compared).min(cases);
            let is_forward = plan.order == RoundOrder::Fixed || number.is_multiple_of(2);
            let turned: Vec<usize> = if is_forward { group.collect() } else { group.rev().collect() };
            turned
        })
    };
    (0..plan.rounds).flat_map(round).collect()
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

    /// Comparison whose contestants are letters. It writes down the runs that are made.
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
    fn rounds_are_interleaved_and_turned() {
        let alternating = |cases, compared, rounds| order(cases, plan(compared, rounds, RoundOrder::Alternating));
        assert_eq!(alternating(4, 2, 1), [0, 1, 2, 3]);
        assert_eq!(alternating(4, 2, 2), [0, 1, 2, 3, 1, 0, 3, 2]);
        assert_eq!(alternating(2, 2, 3), [0, 1, 1, 0, 0, 1]);
        assert!(alternating(0, 0, 3).is_empty());
        assert_eq!(order(2, plan(2, 3, RoundOrder::Fixed)), [0, 1, 0, 1, 0, 1]);
    }

    #[test]
    fn each_case_has_its_runs_in_the_order_of_the_rounds() {
        let comparison = LetterComparison::default();
        let results = run_all(&comparison, vec!['a', 'b'], plan(2, 3, RoundOrder::Alternating), &|| false);
        assert_eq!(comparison.runs.take(), ["a0", "b0", "b1", "a1", "a2", "b2"]);
        assert_eq!((results.done, results.planned), (6, 6));
        let runs =
            |at: usize| results.series[at].runs.iter().filter_map(|run| run.sound().copied()).collect::<Vec<_>>();
        assert_eq!((runs(0), runs(1)), (vec![1, 4, 5], vec![2, 3, 6]));
    }

    #[test]
    fn who_fails_or_loses_is_named_and_the_others_run() {
        let comparison = LetterComparison::default();
        let results = run_all(&comparison, vec!['x', 'l', 'a'], plan(3, 1, RoundOrder::Fixed), &|| false);
        let [failed, lossy, good] = [0, 1, 2].map(|at: usize| &results.series[at].runs[0]);
        assert_eq!((failed.fault(), failed.measurement(), failed.sound()), (Some("out of luck"), None, None));
        assert_eq!((lossy.fault(), lossy.measurement(), lossy.sound()), (Some("lost 1"), Some(&2), None));
        assert_eq!((good.fault(), good.sound()), (None, Some(&3)));
        assert_eq!(results.series[0].name, "contestant x");
    }

    #[test]
    fn what_the_user_ends_is_no_run_and_the_last() {
        let ended_in_its_middle = LetterComparison { stopped_in: Some(3), ..LetterComparison::default() };
        let results = run_all(&ended_in_its_middle, vec!['a', 'b'], plan(2, 3, RoundOrder::Fixed), &|| false);
        assert_eq!((results.done, results.planned, ended_in_its_middle.runs.borrow().len()), (2, 6, 3));
        let ended_between = LetterComparison::default();
        let is_stopped = || ended_between.runs.borrow().len() == 3;
        let results = run_all(&ended_between, vec!['a', 'b'], plan(2, 3, RoundOrder::Fixed), &is_stopped);
        assert_eq!((results.done, results.series[0].runs.len(), results.series[1].runs.len()), (3, 2, 1));
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
            let ended = turn.await_exit(&mut child, self.0, || Some("at message 7".to_owned()))?;
            Ok(ended.map(|(status, costs)| ComparedRun::Sound((status.code(), costs))))
        }
    }

    #[test]
    fn a_contestant_is_awaited_until_its_limit_and_the_users_wish() {
        let quick = ShellComparison(Duration::from_secs(60));
        let once = plan(1, 1, RoundOrder::Fixed);
        let results = run_all(&quick, vec!["exit 3"], once, &|| false);
        assert_eq!(results.series[0].runs[0].sound().map(|(code, _)| *code), Some(Some(3)));
        let slow = ShellComparison(Duration::from_millis(100));
        let results = run_all(&slow, vec!["sleep 600"], once, &|| false);
        let hung = results.series[0].runs[0].fault().unwrap();
        assert_eq!(hung, "it did not end within 0.10 s and was killed: at message 7");
        let calls = RefCell::new(0);
        let is_stopped = || {
            *calls.borrow_mut() += 1;
            *calls.borrow() > 3
        };
        let results = run_all(&quick, vec!["sleep 600"], once, &is_stopped);
        assert_eq!((results.done, results.series[0].runs.len()), (0, 0));
    }
}
