//! Runs the comparison's cases in their order, each on a ground of its own and within a time limit, until all are
//! done or Ctrl-C.
use super::CompareOptions;
use super::contestants::{CompareCase, MadesContestants, MadesTool, cases, command};
use super::environment::CompareEnvironment;
use super::reported::{self, ReportedResult};
use crate::bench::tables::{Costs, TimedChild, order};
use anyhow::{Context, Result, bail};
use party::interrupt::{Interrupt, StopRequest};
use party::live_line::{LiveDisplay, LiveLine, NonTerminalOutput};
use report::numbers::seconds;
use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant};

/// A run that was completed.
#[derive(Clone, Debug)]
pub(super) struct CompareMeasurement {
    pub(super) reported: ReportedResult,
    pub(super) costs: Costs,
    /// CPU time of the stand-in, where there was one.
    pub(super) stand_in_cpu_s: Option<f64>,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub(super) enum CompareRun {
    Done(Box<CompareMeasurement>),
    /// The run could not start, failed or hung, with the reason.
    Failed(String),
}

/// A case and its runs, one for each round that was begun.
#[derive(Clone, Debug)]
pub(super) struct CompareSeries {
    pub(super) case: CompareCase,
    pub(super) runs: Vec<CompareRun>,
}

/// All that was run.
#[derive(Clone, Debug)]
pub(super) struct CompareResults {
    pub(super) series: Vec<CompareSeries>,
    pub(super) has_original: bool,
    /// Set if go-mades-bench was asked for and is not installed.
    pub(super) lacks_original: bool,
    pub(super) done: usize,
    pub(super) planned: usize,
}

/// Runs all there is to run.
pub(super) fn run_all(options: &CompareOptions) -> Result<CompareResults> {
    let field = MadesContestants::find()?;
    let tools = field.installed(&options.tools)?;
    let cases = cases(&tools, &options.windows);
    let order = order(cases.len(), tools.len(), options.rounds, options.order);
    let planned = order.len();
    let mut lanes: Vec<CompareSeries> =
        cases.into_iter().map(|case| CompareSeries { case, runs: Vec::new() }).collect();
    let interrupt = Interrupt::watch()?;
    let mut course = CompareRunner {
        options,
        contestants: &field,
        interrupt,
        display: LiveDisplay::on_stderr(options.live, NonTerminalOutput::Lines),
    };
    let began = Instant::now();
    let mut done = 0;
    for number in order {
        let lane = &mut lanes[number];
        let line = LiveLine::of_runs(done, planned, &lane.case.description(), began);
        let Some(run) = course.run(&lane.case, &line) else { break };
        lane.runs.push(run);
        done += 1;
    }
    course.display.clear();
    let has_original = tools.contains(&MadesTool::GoMadesBench);
    let lacks_original = !has_original && options.tools.contains(&MadesTool::GoMadesBench);
    Ok(CompareResults { series: lanes, has_original, lacks_original, done, planned })
}

struct CompareRunner<'o> {
    options: &'o CompareOptions,
    contestants: &'o MadesContestants,
    interrupt: Interrupt,
    display: LiveDisplay,
}

impl CompareRunner<'_> {
    /// Measures one run; `None` if the user wants no more runs.
    fn run(&mut self, case: &CompareCase, line: &LiveLine) -> Option<CompareRun> {
        if self.interrupt.requested() != StopRequest::Nothing {
            return None;
        }
        match self.measure(case, line) {
            Ok(measured) => measured.map(|measured| CompareRun::Done(Box::new(measured))),
            Err(error) => Some(CompareRun::Failed(format!("{error:#}"))),
        }
    }

    fn measure(&mut self, case: &CompareCase, line: &LiveLine) -> Result<Option<CompareMeasurement>> {
        let place = tempfile::Builder::new().prefix("mailrun-compare-").tempdir();
        let place = place.context("cannot create a temporary directory")?;
        let ground = CompareEnvironment::prepare(&self.contestants.own, self.options, place.path())?;
        let program = self.contestants.program(case.tool).context("it is not installed")?;
        let mut command = command(program, case, self.options, &ground.address, place.path());
        let said = place.path().join("said");
        command.stdout(File::create(&said).context("cannot create a temporary file")?);
        let mut contestant = TimedChild::start(command)?;
        while !contestant.poll_exit()? {
            self.display.show(|| line.clone());
            if self.interrupt.requested() != StopRequest::Nothing {
                return Ok(None);
            }
            if contestant.age() >= self.options.max_time {
                bail!("{}", time_limit_message(self.options.max_time, &said));
            }
        }
        let (status, costs) = contestant.reap()?;
        // Our status 1 means that the account does not close: the run's record has the reason.
        if !(status.success() || case.tool == MadesTool::Mailrun && status.code() == Some(1)) {
            let words = contestant.last_stderr_line();
            bail!("it ended with {status}: {}", words.as_deref().unwrap_or("no output"));
        }
        let findings = match case.tool {
            MadesTool::GoMadesBench => reported::of_original(&fs::read_to_string(&said)?)?,
            MadesTool::Mailrun => reported::of_own(place.path())?,
        };
        Ok(Some(CompareMeasurement { reported: findings, costs, stand_in_cpu_s: ground.stop()? }))
    }
}

/// Describes a contestant that was killed at the time limit.
fn time_limit_message(limit: Duration, said: &Path) -> String {
    let said = fs::read_to_string(said).unwrap_or_default();
    let progress = reported::progress(&said).map(|words| format!(": {words}")).unwrap_or_default();
    format!("it did not end within {} and was killed{progress}", seconds(limit.as_secs_f64()))
}
