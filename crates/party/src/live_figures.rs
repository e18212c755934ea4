//! Figures of the dashboard from what parties report of themselves.
use crate::live::{LiveProgress, LiveTimes};
use crate::usage_sampler::UsageSampler;
use mailrun_dashboard::{MessageCounts, StageTimes, TimesMs};
pub use mailrun_dashboard::{PartyLoad, RunSnapshot};

/// Figures of a load: the source's progress, and the sink's if there is one. Who calls adds title, parties and errors.
pub fn load_figures(source: &LiveProgress, sink: Option<&LiveProgress>) -> RunSnapshot {
    let delivered = sink.map(|sink| sink.delivered);
    RunSnapshot {
        elapsed_s: source.elapsed_s,
        goal_messages: source.goal_messages,
        goal_s: source.goal_s,
        messages: MessageCounts { delivered, ..counts(source) },
        queue: delivered.map_or(source.open, |delivered| source.accepted.saturating_sub(delivered)),
        stages: std::iter::once(stage("accepted", source)).chain(sink.map(|sink| stage("delivered", sink))).collect(),
        errors: source.errors + sink.map_or(0, |sink| sink.errors),
        ..RunSnapshot::default()
    }
}

/// Figures of a MADES bench, which is source and sink in one.
pub fn mades_figures(progress: &LiveProgress) -> RunSnapshot {
    RunSnapshot {
        queue: progress.open,
        stages: vec![stage("delivered", progress)],
        messages: MessageCounts { delivered: Some(progress.delivered), ..counts(progress) },
        ..load_figures(progress, None)
    }
}

/// Processors and memory of a party at its latest sample.
pub fn party_load(name: &str, usage: &UsageSampler) -> Option<PartyLoad> {
    let row = usage.latest()?;
    Some(PartyLoad { name: name.to_owned(), cores: row.cores, memory_bytes: row.rss_bytes })
}

fn counts(progress: &LiveProgress) -> MessageCounts {
    MessageCounts {
        created: progress.created,
        sent: progress.sent,
        accepted: progress.accepted,
        delivered: None,
        rejected: progress.rejected,
        failed: progress.failed,
    }
}

fn stage(name: &str, progress: &LiveProgress) -> StageTimes {
    let now = LiveTimes { p50_ms: progress.p50_ms, p99_ms: progress.p99_ms, ..progress.now };
    StageTimes { name: name.to_owned(), now: times(&now), run: times(&progress.run) }
}

fn times(times: &LiveTimes) -> TimesMs {
    TimesMs { p50: times.p50_ms, p95: times.p95_ms, p99: times.p99_ms, p999: times.p999_ms, max: times.max_ms }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_what_was_accepted_and_is_not_delivered() {
        let source = LiveProgress { created: 12, accepted: 10, open: 2, p50_ms: 1.5, ..LiveProgress::default() };
        let sink = LiveProgress { delivered: 7, errors: 1, p50_ms: 9.0, ..LiveProgress::default() };
        let alone = load_figures(&source, None);
        assert_eq!((alone.queue, alone.messages.delivered, alone.stages.len()), (2, None, 1));
        let both = load_figures(&source, Some(&sink));
        assert_eq!((both.queue, both.messages.delivered, both.errors), (3, Some(7), 1));
        assert_eq!(both.stages.iter().map(|stage| stage.now.p50).collect::<Vec<_>>(), [1.5, 9.0]);
        let mades = mades_figures(&LiveProgress { delivered: 4, ..source });
        assert_eq!((mades.queue, mades.messages.delivered, mades.stages[0].name.as_str()), (2, Some(4), "delivered"));
    }
}
