//! Measures the clocks of sinks on other hosts before and after the load, and records them.
use crate::plan::BenchOptions;
use crate::remote_sink::RemoteSink;
use anyhow::Result;
use mailrun_measurement::clocks::{ClockError, clock_reason};
use mailrun_measurement::judge;
use mailrun_measurement::record::{Record, SinkClockRow};
use mailrun_process::clock_exchange::{ClockMeasurement, before_and_after};

/// Sinks and their clocks before the load. `None` if a clock could not be measured.
pub(super) struct SinkClocks(Vec<(RemoteSink, Option<ClockMeasurement>)>);

impl SinkClocks {
    /// Measures the clocks before the load. Returns an error if a sink does not answer.
    pub(super) fn measure(options: &BenchOptions, remote_sink: Option<&RemoteSink>) -> Result<Self> {
        let named = options.clock_sinks.iter().map(|address| RemoteSink::connect(address));
        let sinks: Vec<RemoteSink> = remote_sink.cloned().map(Ok).into_iter().chain(named).collect::<Result<_>>()?;
        let measured = |sink: RemoteSink| {
            let clock = sink.clock();
            (sink, clock)
        };
        Ok(Self(sinks.into_iter().map(measured).collect()))
    }

    /// Measures the clocks again after the load, records those of other hosts, and judges whether
    /// the delivered times can be trusted.
    pub(super) fn finish(self, record: &mut Record, remote_sink: Option<&RemoteSink>) {
        let Some(own) = &mut record.clock else { return };
        let after = self.0.into_iter().map(|(sink, before)| before_and_after(before, sink.clock()));
        let rows: Vec<Option<SinkClockRow>> = after.collect();
        own.sinks = rows.iter().flatten().filter(|sink| sink.boot != own.boot).cloned().collect();
        // Without a remote sink, this run is a part of a load. Leave the judgement to `mailrun
        // merge`.
        if remote_sink.is_none() {
            return;
        }
        let error = match rows.first().cloned().flatten() {
            Some(sink) => ClockError::between(record, &sink.boot),
            None => ClockError::Unknown,
        };
        let pass = judge::pass_text(record);
        if let Some(reason) = clock_reason(record, error) {
            judge::add_reason(&mut record.verdict, reason, &pass);
        }
    }
}
