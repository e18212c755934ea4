//! One run of a table: starts a new sink, runs a source with a time limit, and takes the costs of
//! both.
use super::cases::TableCase;
use super::contestants::{MessageMarking, command};
use super::measurement::TableMeasurement;
use super::options::{DeliveryCheck, TableOptions};
use super::sinks::{DumpMode, SinkLaunch, TableSink};
use crate::engine::{ComparedRun, Comparison, RunTurn, TimedChild};
use crate::programs::InstalledPrograms;
use crate::scenario::{SinkTool, SourceTool};
use anyhow::Result;
use std::process::Stdio;

pub(super) struct TableComparison<'o> {
    pub(super) options: &'o TableOptions,
    pub(super) sources: InstalledPrograms<SourceTool>,
    pub(super) sinks: InstalledPrograms<SinkTool>,
}

impl Comparison for TableComparison<'_> {
    type Case = TableCase;
    type Measurement = TableMeasurement;

    fn name(&self, case: &TableCase) -> String {
        case.description()
    }

    fn run(&self, case: &TableCase, turn: &mut RunTurn<'_>) -> Result<Option<ComparedRun<TableMeasurement>>> {
        let TableOptions { messages, limit, .. } = *self.options;
        let (dump_mode, marking) = match self.options.check {
            DeliveryCheck::None => (DumpMode::Nothing, MessageMarking::AsPublished),
            DeliveryCheck::EveryDelivery => (DumpMode::Dump, MessageMarking::Unique),
        };
        let sink = TableSink::start(SinkLaunch {
            receiver: case.receiver,
            program: self.sinks.path(case.receiver)?,
            sessions: case.sessions,
            dump_mode,
            faults: &self.options.sink_options,
        })?;
        let mut command = command(self.sources.path(case.tool)?, case, messages, marking, sink.address());
        command.stdout(Stdio::null());
        let mut source = TimedChild::start(command)?;
        let Some((status, costs)) = turn.await_exit(&mut source, limit, || None)? else { return Ok(None) };
        if !status.success() {
            return Err(source.exit_error(status));
        }
        let deliveries = (dump_mode == DumpMode::Dump).then(|| sink.deliveries(messages)).transpose()?;
        let (sink, counts) = sink.stop()?;
        let measured = TableMeasurement { source: costs, sink, counts, deliveries };
        let fault = match self.options.check {
            DeliveryCheck::None => measured.shortfall(messages),
            DeliveryCheck::EveryDelivery => measured.delivery_fault(messages, case.recipients),
        };
        Ok(Some(ComparedRun::of(measured, fault)))
    }
}
