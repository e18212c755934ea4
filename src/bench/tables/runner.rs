//! Runs a table's cases in their order, each with a new sink and a limit of time, until all are done or Ctrl-C.
use super::cases::{TableCase, cases, order};
use super::contestants::{MessageMarking, SinkTool, SourceTool, TableContestants, command};
use super::deliveries::Deliveries;
use super::sinks::{DumpMode, ReportedCounts, SinkLaunch, TableSink};
use super::timed::{Costs, TimedChild};
use super::{DeliveryCheck, TableOptions};
use anyhow::{Context, Result};
use party::interrupt::{Interrupt, StopRequest};
use party::live_line::{LiveDisplay, LiveLine, NonTerminalOutput};
use report::numbers::seconds;
use std::process::Stdio;
use std::time::Instant;

/// A run that was completed.
#[derive(Clone, Debug)]
pub(super) struct TableMeasurement {
    pub(super) source: Costs,
    pub(super) sink: Costs,
    /// Counts that the sink reports; smtp-sink reports none.
    pub(super) counts: Option<ReportedCounts>,
    /// Messages that it has kept, where it was asked to.
    pub(super) deliveries: Option<Deliveries>,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub(super) enum TableRun {
    Done(Box<TableMeasurement>),
    /// The run could not start, failed or hung, with the reason.
    Failed(String),
}

/// A case and its runs, one for each round that was begun.
#[derive(Clone, Debug)]
pub(super) struct TableSeries {
    pub(super) case: TableCase,
    pub(super) runs: Vec<TableRun>,
}

/// All that was run.
#[derive(Clone, Debug)]
pub(super) struct TableResults {
    pub(super) series: Vec<TableSeries>,
    pub(super) missing: Vec<&'static str>,
    pub(super) done: usize,
    pub(super) planned: usize,
}

/// Runs all there is to run.
pub(super) fn run_all(options: &TableOptions) -> Result<TableResults> {
    let field = TableContestants::find(options)?;
    let tools: Vec<SourceTool> = field.tools.iter().map(|(tool, _)| *tool).collect();
    let receivers: Vec<SinkTool> = field.receivers.iter().map(|(receiver, _)| *receiver).collect();
    let cases = cases(&tools, &receivers, &options.sessions, &options.recipients);
    let order = order(cases.len(), tools.len(), options.rounds, options.order);
    let planned = order.len();
    let mut lanes: Vec<TableSeries> = cases.into_iter().map(|case| TableSeries { case, runs: Vec::new() }).collect();
    let mut course = TableRunner {
        options,
        contestants: &field,
        interrupt: Interrupt::watch()?,
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
    Ok(TableResults { series: lanes, missing: field.missing, done, planned })
}

struct TableRunner<'o> {
    options: &'o TableOptions,
    contestants: &'o TableContestants,
    interrupt: Interrupt,
    display: LiveDisplay,
}

impl TableRunner<'_> {
    /// Measures one run; `None` if the user wants no more runs.
    fn run(&mut self, case: &TableCase, line: &LiveLine) -> Option<TableRun> {
        if self.interrupt.requested() != StopRequest::Nothing {
            return None;
        }
        match self.measure(case, line) {
            Ok(measured) => measured.map(|measured| TableRun::Done(Box::new(measured))),
            Err(error) => Some(TableRun::Failed(format!("{error:#}"))),
        }
    }

    fn measure(&mut self, case: &TableCase, line: &LiveLine) -> Result<Option<TableMeasurement>> {
        let (keeping, marking) = match self.options.check {
            DeliveryCheck::None => (DumpMode::Nothing, MessageMarking::AsPublished),
            DeliveryCheck::EveryDelivery => (DumpMode::Dump, MessageMarking::Unique),
        };
        let receiver = case.receiver;
        let program = self.contestants.receiver(receiver).context("the sink is not installed")?;
        let faults = &self.options.sink_options;
        let sink =
            TableSink::start(SinkLaunch { receiver, program, sessions: case.sessions, dump_mode: keeping, faults })?;
        let program = self.contestants.tool(case.tool).context("the source is not installed")?;
        let mut command = command(program, case, self.options.messages, marking, sink.address());
        command.stdout(Stdio::null());
        let mut source = TimedChild::start(command)?;
        while !source.poll_exit()? {
            self.display.show(|| line.clone());
            if self.interrupt.requested() != StopRequest::Nothing {
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
            let words = source.last_stderr_line();
            anyhow::bail!("it ended with {status}: {}", words.as_deref().unwrap_or("no output"));
        }
        let deliveries = (keeping == DumpMode::Dump).then(|| sink.deliveries(self.options.messages)).transpose()?;
        let (sink, counts) = sink.stop()?;
        Ok(Some(TableMeasurement { source: costs, sink, counts, deliveries }))
    }
}
