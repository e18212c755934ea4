//! One run of a table: starts a new sink, runs a source with a time limit, and takes the costs of
//! both.
use super::cases::{SinkTool, SourceTool, TableCase, TableOptions};
use super::contestants::command;
use super::sinks::TableSink;
use crate::engine::{ComparedRun, Comparison, Costs, RunTurn, TimedChild, miscount};
use crate::programs::InstalledPrograms;
use anyhow::Result;
use std::process::Stdio;

/// Figures of one run: the costs, and whether all messages arrived.
#[derive(Clone, Debug)]
pub(super) struct TableMeasurement {
    pub(super) source: Costs,
    pub(super) sink: Costs,
    /// Messages by the sink's own count. smtp-sink has none.
    pub(super) arrived: Option<u64>,
}

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
        let Some((status, costs)) = turn.await_exit(&mut source, limit, || None, || Ok(()))? else { return Ok(None) };
        if !status.success() {
            return Err(source.exit_error(status));
        }
        let (sink, arrived) = sink.stop()?;
        let measured = TableMeasurement { source: costs, sink, arrived };
        let fault = measured.arrived.and_then(|arrived| miscount(arrived, messages));
        Ok(Some(ComparedRun::of(measured, fault)))
    }
}
