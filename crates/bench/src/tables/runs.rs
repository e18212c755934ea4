//! One run of a table: starts a new sink, runs a source with a time limit, and takes the costs of
//! both.
use super::cases::TableCase;
use super::contestants::command;
use super::measurement::TableMeasurement;
use super::options::TableOptions;
use super::options::{SinkTool, SourceTool};
use super::sinks::TableSink;
use crate::engine::{ComparedRun, Comparison, RunTurn, TimedChild};
use crate::programs::InstalledPrograms;
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
        let sink = TableSink::start(case.receiver, self.sinks.path(case.receiver)?, case.sessions)?;
        let mut command = command(self.sources.path(case.tool)?, case, messages, sink.address());
        command.stdout(Stdio::null());
        let mut source = TimedChild::start(command)?;
        let Some((status, costs)) = turn.await_exit(&mut source, limit, || None)? else { return Ok(None) };
        if !status.success() {
            return Err(source.exit_error(status));
        }
        let (sink, arrived) = sink.stop()?;
        let measured = TableMeasurement { source: costs, sink, arrived };
        let fault = measured.shortfall(messages);
        Ok(Some(ComparedRun::of(measured, fault)))
    }
}
