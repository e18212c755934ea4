use crate::snapshot::{MessageCounts, PartyLoad, RunSnapshot, StageTimes, ThresholdState, TimesMs};
use mailrun_measurement::Stage;
use mailrun_measurement::record::{LatencyMs, LedgerRow};
use mailrun_measurement::threshold::{MetricSource, RunningFigures, RunningStage, Threshold, format_row};
use mailrun_process::live::{LiveProgress, LiveTimes};
use mailrun_process::usage_sampler::UsageSampler;

/// Figures of a running bench, with which its thresholds are evaluated. A figure that no process has reported yet is
/// unknown.
pub struct LiveValues<'a> {
    pub source: &'a LiveProgress,
    /// Progress of the sink, or `None` if there is no sink or the sink has not reported yet.
    pub sink: Option<&'a LiveProgress>,
}

impl LiveValues<'_> {
    pub fn states(&self, thresholds: &[Threshold]) -> Vec<ThresholdState> {
        let LiveProgress { created, rejected, failed, due, .. } = *self.source;
        let ledger = || LedgerRow { rejected: Some(rejected), failed: Some(failed), ..LedgerRow::default() };
        let figures = RunningFigures {
            stages: &|of| self.stage(of),
            finished: due.max(created),
            created_units: created,
            ledger: &ledger,
        };
        threshold_states(thresholds, &figures)
    }

    fn stage(&self, of: MetricSource) -> Option<RunningStage> {
        let MetricSource::Stage(stage) = of else { return None };
        let source = self.source;
        let load_s = if source.goal_s > 0.0 { source.elapsed_s.min(source.goal_s) } else { source.elapsed_s };
        let (count, reported_per_s, elapsed_s, times) = match stage {
            Stage::Created => (source.created, 0.0, load_s, None),
            Stage::Sent => (source.sent, source.sent_per_s, load_s, None),
            Stage::Accepted => (source.accepted, source.accepted_per_s, load_s, Some(source.run)),
            Stage::Delivered => {
                let sink = self.sink?;
                (sink.delivered, sink.delivered_per_s, sink.elapsed_s, Some(sink.run))
            }
            _ => return None,
        };
        // If no rate was reported, for example by a sink on another host, divide the count by the elapsed time.
        let estimated_per_s = (elapsed_s > 0.0).then(|| count as f64 / elapsed_s);
        let rate_per_s = if reported_per_s > 0.0 { Some(reported_per_s) } else { estimated_per_s };
        let summary = times.filter(|times| times.max_ms > 0.0).map(|times| {
            let LiveTimes { p50_ms: p50, p95_ms: p95, p99_ms: p99, p999_ms: p999, max_ms: max } = times;
            let unknown = f64::NAN;
            LatencyMs { min: unknown, mean: unknown, p50, p90: unknown, p95, p99, p999, max }
        });
        Some(RunningStage { count, rate_per_s, times: None, summary })
    }
}

/// Evaluates the thresholds with the figures so far. Some thresholds, such as a minimum count, can still be met until
/// the run ends, so they are not reported as missed during the run.
pub fn threshold_states(thresholds: &[Threshold], figures: &RunningFigures<'_>) -> Vec<ThresholdState> {
    let state = |threshold: &Threshold| {
        let row = threshold.evaluate(figures);
        let is_decided = row.passed || (row.missed && !threshold.needs_the_end());
        ThresholdState { value: format_row(&row), passed: is_decided.then_some(row.passed), expression: row.expression }
    };
    thresholds.iter().map(state).collect()
}

/// Computes the figures of a load for the dashboard. Without a sink, deliveries are unknown. This function leaves the
/// title, the processes and the latest error empty, so the caller must set them.
pub fn load_figures(source: &LiveProgress, sink: Option<&LiveProgress>) -> RunSnapshot {
    let delivered = sink.map(|sink| sink.delivered);
    RunSnapshot {
        elapsed_s: source.elapsed_s,
        goal_messages: source.goal_messages,
        goal_s: source.goal_s,
        messages: MessageCounts { delivered, ..counts(source) },
        queue: delivered.map_or(source.open, |delivered| source.accepted.saturating_sub(delivered)),
        stages: std::iter::once(stage("accepted", source)).chain(sink.map(|sink| stage("delivered", sink))).collect(),
        errors: sink.map_or(source.errors, |sink| source.errors_with_sink(sink)),
        ..RunSnapshot::default()
    }
}

/// Computes the dashboard's figures of a MADES bench, whose single process is both source and sink.
pub fn mades_figures(progress: &LiveProgress) -> RunSnapshot {
    RunSnapshot {
        queue: progress.open,
        stages: vec![stage("delivered", progress)],
        messages: MessageCounts {
            delivered: Some(progress.delivered),
            in_transit: Some(progress.open),
            ..counts(progress)
        },
        ..load_figures(progress, None)
    }
}

/// Returns the CPU use and the memory of a process as last sampled, or `None` before the first sample.
pub fn party_load(name: &str, usage: &UsageSampler) -> Option<PartyLoad> {
    let row = usage.latest()?;
    Some(PartyLoad { name: name.to_owned(), cores: row.cores, memory_bytes: row.rss_bytes })
}

fn counts(progress: &LiveProgress) -> MessageCounts {
    MessageCounts {
        due: progress.due,
        created: progress.created,
        sent: progress.sent,
        accepted: progress.accepted,
        delivered: None,
        rejected: progress.rejected,
        failed: progress.failed,
        in_transit: None,
    }
}

fn stage(name: &str, progress: &LiveProgress) -> StageTimes {
    StageTimes { name: name.to_owned(), now: times(&progress.now), run: times(&progress.run) }
}

fn times(times: &LiveTimes) -> TimesMs {
    TimesMs { p50: times.p50_ms, p95: times.p95_ms, p99: times.p99_ms, p999: times.p999_ms, max: times.max_ms }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_have_a_state_while_the_run_lasts() {
        let run = LiveTimes { p50_ms: 1.0, p95_ms: 8.0, p99_ms: 20.0, p999_ms: 40.0, max_ms: 60.0 };
        let source = LiveProgress {
            elapsed_s: 10.0,
            created: 1_000,
            accepted: 900,
            rejected: 20,
            run,
            ..LiveProgress::default()
        };
        let values = LiveValues { source: &source, sink: None };
        let rows = [
            ("accepted.p99 < 50ms", "20 ms", Some(true)),
            ("accepted.p95 < 5ms", "8 ms", Some(false)),
            ("accepted.p90 < 50ms", "", None),
            ("accepted.rate > 50/s", "90/s", Some(true)),
            ("accepted.count >= 1000", "900", None),
            ("rejected < 1%", "2 %", Some(false)),
            ("delivered.p99 < 50ms", "", None),
            ("lost <= 0", "", None),
        ];
        for (expression, value, passed) in rows {
            let threshold = Threshold::parse(expression, mailrun_measurement::threshold::RunProtocol::Smtp).unwrap();
            let expected = ThresholdState { expression: expression.to_owned(), value: value.to_owned(), passed };
            assert_eq!(values.states(&[threshold]), [expected]);
        }
    }

    #[test]
    fn a_rate_does_not_grow_while_late_messages_arrive_after_the_load() {
        let source = LiveProgress {
            elapsed_s: 60.0,
            goal_s: 10.0,
            created: 3_000,
            sent: 3_000,
            sent_per_s: 150.0,
            accepted: 3_000,
            accepted_per_s: 60.0,
            ..LiveProgress::default()
        };
        // A sink on another host reports no rate, so expect its 3,000 messages divided by the elapsed 60 s.
        let remote = LiveProgress { elapsed_s: 60.0, delivered: 3_000, ..LiveProgress::default() };
        let own = LiveProgress { delivered_per_s: 48.0, ..remote };
        for (expression, sink, value) in [
            ("created.rate > 250/s", &own, "300/s"),
            ("sent.rate > 250/s", &own, "150/s"),
            ("accepted.rate > 250/s", &own, "60/s"),
            ("delivered.rate > 250/s", &own, "48/s"),
            ("delivered.rate > 250/s", &remote, "50/s"),
        ] {
            let threshold = Threshold::parse(expression, mailrun_measurement::threshold::RunProtocol::Smtp).unwrap();
            let states = LiveValues { source: &source, sink: Some(sink) }.states(&[threshold]);
            assert_eq!((states[0].value.as_str(), states[0].passed), (value, Some(value == "300/s")), "{expression}");
        }
    }

    #[test]
    fn a_queue_is_what_was_accepted_and_is_not_delivered() {
        let now = |p50_ms| LiveTimes { p50_ms, ..LiveTimes::default() };
        let source = LiveProgress { created: 12, accepted: 10, open: 2, now: now(1.5), ..LiveProgress::default() };
        let sink = LiveProgress { delivered: 7, errors: 1, now: now(9.0), ..LiveProgress::default() };
        let alone = load_figures(&source, None);
        assert_eq!((alone.queue, alone.messages.delivered, alone.stages.len()), (2, None, 1));
        let both = load_figures(&source, Some(&sink));
        assert_eq!((both.queue, both.messages.delivered, both.errors), (3, Some(7), 1));
        assert_eq!(both.stages.iter().map(|stage| stage.now.p50).collect::<Vec<_>>(), [1.5, 9.0]);
        let refused = mades_figures(&LiveProgress { created: 12, rejected: 7, delivered: 5, open: 0, ..source });
        assert_eq!((refused.messages.rejected, refused.messages.outstanding()), (7, 0));
        let mades = mades_figures(&LiveProgress { delivered: 4, ..source });
        assert_eq!((mades.queue, mades.messages.delivered, mades.stages[0].name.as_str()), (2, Some(4), "delivered"));
    }
}
