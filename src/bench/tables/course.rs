//! Runs a table's cases in their order, each with a new sink and a limit of time, until all are done or Ctrl-C.
use super::cases::{Case, cases, order};
use super::contenders::{Field, Marking, Receiver, Tool, command};
use super::deliveries::Deliveries;
use super::sinks::{Counts, Keeping, Order, Sink};
use super::timed::{Costs, Timed};
use super::{Proof, TableOptions};
use crate::interrupt::{Asked, Interrupt};
use crate::live_line::{Display, Elsewhere, Line};
use crate::report::numbers::seconds;
use anyhow::{Context, Result};
use std::process::Stdio;
use std::time::Instant;

/// A run that was completed.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    pub(super) source: Costs,
    pub(super) sink: Costs,
    /// Counts that the sink reports; smtp-sink reports none.
    pub(super) counts: Option<Counts>,
    /// Messages that it has kept, where it was asked to.
    pub(super) deliveries: Option<Deliveries>,
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
    pub(super) missing: Vec<&'static str>,
    pub(super) done: usize,
    pub(super) planned: usize,
}

/// Runs all there is to run.
pub(super) fn follow(options: &TableOptions) -> Result<Finds> {
    let field = Field::survey()?;
    let tools: Vec<Tool> = field.tools.iter().map(|(tool, _)| *tool).collect();
    let receivers: Vec<Receiver> = field.receivers.iter().map(|(receiver, _)| *receiver).collect();
    let cases = cases(&tools, &receivers, &options.sessions, &options.recipients);
    let order = order(cases.len(), tools.len(), options.rounds);
    let planned = order.len();
    let mut lanes: Vec<Lane> = cases.into_iter().map(|case| Lane { case, runs: Vec::new() }).collect();
    let mut course = Course {
        options,
        field: &field,
        interrupt: Interrupt::watch()?,
        display: Display::on_stderr(options.live, Elsewhere::Lines),
    };
    let (began, mut done) = (Instant::now(), 0);
    for number in order {
        let lane = &mut lanes[number];
        let line = Line::of_runs(done, planned, &lane.case.words(), began);
        let Some(run) = course.run(&lane.case, &line) else { break };
        lane.runs.push(run);
        done += 1;
    }
    course.display.clear();
    Ok(Finds { lanes, missing: field.missing, done, planned })
}

struct Course<'o> {
    options: &'o TableOptions,
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
        let (keeping, marking) = match self.options.proof {
            Proof::None => (Keeping::Nothing, Marking::AsPublished),
            Proof::EveryDelivery => (Keeping::Dump, Marking::EachItsOwn),
        };
        let receiver = case.receiver;
        let program = self.field.receiver(receiver).context("the sink is not installed")?;
        let faults = &self.options.sink_options;
        let sink = Sink::start(Order { receiver, program, sessions: case.sessions, keeping, faults })?;
        let program = self.field.tool(case.tool).context("the source is not installed")?;
        let mut command = command(program, case, self.options.messages, marking, sink.address());
        command.stdout(Stdio::null());
        let mut source = Timed::start(command)?;
        while !source.ends()? {
            self.display.show(|| line.clone());
            if self.interrupt.asked() != Asked::Nothing {
                return Ok(None);
            }
            let limit = self.options.limit;
            anyhow::ensure!(
                source.age() < limit,
                "it did not end within {} and was killed",
                seconds(limit.as_secs_f64())
            );
        }
        let (status, costs) = source.reap()?;
        if !status.success() {
            let words = source.last_words();
            anyhow::bail!("it ended with {status}: {}", words.as_deref().unwrap_or("no output"));
        }
        let deliveries = (keeping == Keeping::Dump).then(|| sink.deliveries(self.options.messages)).transpose()?;
        let (sink, counts) = sink.stop()?;
        Ok(Some(Measured { source: costs, sink, counts, deliveries }))
    }
}
