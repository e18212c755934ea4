//! Runs the comparison's cases in their order, each on a ground of its own and within a time limit, until all are
//! done or Ctrl-C.
use super::CompareOptions;
use super::contestants::{Case, Field, Tool, cases, command};
use super::findings::{self, Findings};
use super::ground::Ground;
use crate::bench::tables::{Costs, Timed, order};
use crate::interrupt::{Asked, Interrupt};
use crate::live_line::{Display, Elsewhere, Line};
use crate::report::numbers::seconds;
use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant};

/// A run that was completed.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    pub(super) findings: Findings,
    pub(super) costs: Costs,
    /// CPU time of the stand-in, where there was one.
    pub(super) stand_in_cpu_s: Option<f64>,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub(super) enum Run {
    Done(Box<Measured>),
    /// The run could not start, failed or hung, with the reason.
    Failed(String),
}

/// A case and its runs, one for each round that was begun.
#[derive(Clone, Debug)]
pub(super) struct Lane {
    pub(super) case: Case,
    pub(super) runs: Vec<Run>,
}

/// All that was run.
#[derive(Clone, Debug)]
pub(super) struct Finds {
    pub(super) lanes: Vec<Lane>,
    pub(super) has_original: bool,
    pub(super) done: usize,
    pub(super) planned: usize,
}

/// Runs all there is to run.
pub(super) fn follow(options: &CompareOptions) -> Result<Finds> {
    let field = Field::survey()?;
    let tools = field.tools();
    let cases = cases(&tools, &options.windows);
    let order = order(cases.len(), tools.len(), options.rounds);
    let planned = order.len();
    let mut lanes: Vec<Lane> = cases.into_iter().map(|case| Lane { case, runs: Vec::new() }).collect();
    let interrupt = Interrupt::watch()?;
    let mut course =
        Course { options, field: &field, interrupt, display: Display::on_stderr(options.live, Elsewhere::Lines) };
    let (began, mut done) = (Instant::now(), 0);
    for number in order {
        let lane = &mut lanes[number];
        let line = Line::of_runs(done, planned, &lane.case.words(), began);
        let Some(run) = course.run(&lane.case, &line) else { break };
        lane.runs.push(run);
        done += 1;
    }
    course.display.clear();
    Ok(Finds { lanes, has_original: tools.contains(&Tool::GoMadesBench), done, planned })
}

struct Course<'o> {
    options: &'o CompareOptions,
    field: &'o Field,
    interrupt: Interrupt,
    display: Display,
}

impl Course<'_> {
    /// Measures one run; `None` if the user wants no more runs.
    fn run(&mut self, case: &Case, line: &Line) -> Option<Run> {
        if self.interrupt.asked() != Asked::Nothing {
            return None;
        }
        match self.measure(case, line) {
            Ok(measured) => measured.map(|measured| Run::Done(Box::new(measured))),
            Err(error) => Some(Run::Failed(format!("{error:#}"))),
        }
    }

    fn measure(&mut self, case: &Case, line: &Line) -> Result<Option<Measured>> {
        let place = tempfile::Builder::new().prefix("mailrun-compare-").tempdir();
        let place = place.context("cannot create a temporary directory")?;
        let ground = Ground::prepare(&self.field.own, self.options, place.path())?;
        let program = self.field.program(case.tool).context("it is not installed")?;
        let mut command = command(program, case, self.options, &ground.address, place.path());
        let said = place.path().join("said");
        command.stdout(File::create(&said).context("cannot create a temporary file")?);
        let mut contestant = Timed::start(command)?;
        while !contestant.ends()? {
            self.display.show(|| line.clone());
            if self.interrupt.asked() != Asked::Nothing {
                return Ok(None);
            }
            if contestant.age() >= self.options.max_time {
                bail!("{}", hung(self.options.max_time, &said));
            }
        }
        let (status, costs) = contestant.reap()?;
        // Our status 1 means that the account does not close: the run's record has the reason.
        if !(status.success() || case.tool == Tool::Mailrun && status.code() == Some(1)) {
            let words = contestant.last_words();
            bail!("it ended with {status}: {}", words.as_deref().unwrap_or("no output"));
        }
        let findings = match case.tool {
            Tool::GoMadesBench => findings::of_original(&fs::read_to_string(&said)?)?,
            Tool::Mailrun => findings::of_own(place.path())?,
        };
        Ok(Some(Measured { findings, costs, stand_in_cpu_s: ground.clear()? }))
    }
}

/// Describes a contestant that was killed at the time limit.
fn hung(limit: Duration, said: &Path) -> String {
    let said = fs::read_to_string(said).unwrap_or_default();
    let progress = findings::progress(&said).map(|words| format!(": {words}")).unwrap_or_default();
    format!("it did not end within {} and was killed{progress}", seconds(limit.as_secs_f64()))
}
