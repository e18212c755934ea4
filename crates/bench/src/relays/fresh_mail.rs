//! Sends fresh mail: messages at a steady rate while a relay delivers its backlog. Their latency shows how long a
//! message takes if a user sends it during that time.
use super::goals::{Goal, GoalResult};
use super::scenario::RECIPIENTS;
use crate::engine::{TimedChild, shown};
use crate::remote_sink::{PolledCount, RemoteSink};
use crate::supervisor::Supervisor;
use anyhow::{Context, Result};
use mailrun_measurement::record::{LatencyMs, Record};
use mailrun_measurement::stage::Stage;
use mailrun_measurement::trace::RunId;
use mailrun_process::outputs;
use mailrun_text::numbers::{count, latency, rate};
use mailrun_text::table::{Align, Table};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Time limit for the source to finish the messages that it has begun, after it is asked to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// A source that sends new mail to the relay while the relay delivers its backlog. The source's own run ID lets the
/// sink tell fresh messages from messages of the backlog.
#[derive(Debug)]
pub(super) struct FreshMail {
    run: RunId,
    source: TimedChild,
    record: PathBuf,
    sink: RemoteSink,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FreshFigures {
    accepted: u64,
    delivered: u64,
    per_s: Option<f64>,
    /// Latency until the relay's reply 250, and latency until delivery to the sink.
    until: [Option<LatencyMs>; 2],
}

impl FreshMail {
    /// Starts to send `per_s` messages per second to the relay.
    ///
    /// # Errors
    /// Returns an error if the source cannot be started.
    pub(super) fn start(program: &Path, directory: &Path, relay: &str, sink: RemoteSink, per_s: f64) -> Result<Self> {
        let run = outputs::new_run_id()?;
        let record = directory.join("fresh.json");
        let mut command = Command::new(program);
        command.args(["source", relay, "--rate", &per_s.to_string(), "--duration", "24h", "--to", RECIPIENTS]);
        command.args(["--run-id", &run.to_string(), "--reuse", "--no-preflight", "--report", "none"]);
        command.args(["--progress", "none", "--json"]).arg(&record).stdout(Stdio::null());
        Ok(Self { run, source: TimedChild::start(command)?, record, sink })
    }

    /// Ends the source, and waits until all its messages have arrived or no more arrive.
    ///
    /// # Errors
    /// Returns an error if the source left no record, or if the sink does not answer.
    pub(super) fn finish(mut self, supervisor: &mut Supervisor) -> Result<FreshFigures> {
        self.source.ensure_running("the source of fresh mail")?;
        self.source.stop(STOP_TIMEOUT)?;
        let text = fs::read(&self.record).context("the source of fresh mail left no record")?;
        let sent = Record::from_json(&text).context("the record of fresh mail cannot be read")?;
        let accepted = sent.ledger.accepted.unwrap_or_default();
        let mut arrived = PolledCount::new(Some((&self.sink, self.run)));
        supervisor.await_count(accepted, |_| arrived.settled())?;
        let delivered = self.sink.run_status(self.run)?.delivered;
        let arrived = self.sink.record(self.run)?;
        let of = |record: Option<&Record>, stage| record?.stage(stage)?.latency_ms;
        Ok(FreshFigures {
            accepted,
            delivered,
            per_s: sent.stage(Stage::Accepted).and_then(|row| row.rate_per_s),
            until: [of(Some(&sent), Stage::Accepted), of(arrived.as_ref(), Stage::Delivered)],
        })
    }
}

impl FreshFigures {
    pub(super) fn accepted_p99_ms(self) -> Option<f64> {
        Some(self.until[0]?.p99)
    }

    pub(super) fn delivered_p99_ms(self) -> Option<f64> {
        Some(self.until[1]?.p99)
    }

    pub(super) fn table(self) -> Table {
        let mut columns = vec![("fresh mail during the delivery", Align::Left)];
        columns.extend(["messages", "msg/s", "p50", "p99", "max"].map(|title| (title, Align::Right)));
        let mut table = Table::new(columns);
        let Self { accepted, delivered, per_s, until } = self;
        for ((name, messages), until) in [("accepted", accepted), ("delivered", delivered)].into_iter().zip(until) {
            let times = [until.map(|ms| ms.p50), until.map(|ms| ms.p99), until.map(|ms| ms.max)];
            let cells = [name.to_owned(), count(messages), shown(per_s, rate)];
            table.row(cells.into_iter().chain(times.map(|ms| shown(ms, latency))).collect());
        }
        table
    }

    pub(super) fn goal(self) -> Goal {
        let Self { accepted, delivered, .. } = self;
        if accepted == 0 {
            let reason = "none was accepted while the queue was delivered".to_owned();
            return Goal::new("fresh mail delivered", "all", GoalResult::Unknown(reason));
        }
        let value = format!("{} of {} delivered", count(delivered), count(accepted));
        Goal::condition("fresh mail delivered", delivered == accepted, value, "all")
    }
}

#[cfg(test)]
mod tests {
    use super::super::goals;
    use super::*;
    use crate::engine::Defects;

    #[test]
    fn fresh_mail_that_is_missing_misses_the_target() {
        let times = Some(LatencyMs { p50: 4.0, p99: 20.0, max: 30.0, ..LatencyMs::default() });
        let report = |accepted, delivered, until| {
            let figures = FreshFigures { accepted, delivered, per_s: Some(50.0), until };
            let report = goals::report("x", vec![figures.table()], &[figures.goal()], Defects::default(), Vec::new());
            (report.is_good(), report.text)
        };
        let (is_good, text) = report(500, 500, [times; 2]);
        assert!(is_good && text.contains("500 of 500 delivered"), "{text}");
        let row = text.lines().find(|line| line.starts_with(" delivered")).unwrap();
        let cells: Vec<&str> = row.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        assert_eq!(cells, ["delivered", "500", "50.00", "4.00 ms", "20.00 ms", "30.00 ms"]);
        let (is_good, text) = report(500, 499, [times, None]);
        assert!(!is_good && text.contains("499 of 500 delivered"), "{text}");
        let (is_good, text) = report(0, 0, [None; 2]);
        assert!(!is_good && text.contains("INCONCLUSIVE"), "nothing was measured: {text}");
    }
}
