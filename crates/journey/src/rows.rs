//! Tallies made into the rows of a run record.
use crate::latencies::Latencies;
use crate::record::{PhaseRow, StageRow};
use crate::stage::{Phase, Stage};
use crate::tally::{RunTally, SourceTally};
use std::time::Duration;

impl SourceTally {
    /// The stages that a source sees. `since` is where its latencies count from: `Scheduled` at open loop, else
    /// `Created`. At open loop the created stage's latency is the slip.
    pub fn stages(&self, party: &str, since: Stage) -> Vec<StageRow> {
        let span = |last: Option<Duration>| span(self.first_created, last);
        let created = Passed { count: self.created, failed: 0, bytes: 0, took: span(self.last_created) };
        let unsent = self.created.saturating_sub(self.sent);
        let sent = Passed { count: self.sent, failed: unsent, bytes: self.bytes_sent, took: span(self.last_sent) };
        let accepted = Passed {
            count: self.accepted,
            failed: self.rejected,
            bytes: self.bytes_accepted,
            took: span(self.last_accepted),
        };
        vec![
            created.row(Stage::Created, party, Stage::Scheduled, &self.slip),
            sent.row(Stage::Sent, party, since, &self.sent_latency),
            accepted.row(Stage::Accepted, party, since, &self.accepted_latency),
        ]
    }

    /// The phases that occurred, in the order of a dialogue.
    pub fn phase_rows(&self) -> Vec<PhaseRow> {
        let row = |(name, times): (Phase, &Latencies)| {
            Some(PhaseRow { name, count: times.count(), latency_ms: times.summary()? })
        };
        Phase::ALL.into_iter().zip(&self.phases.0).filter_map(row).collect()
    }
}

impl RunTally {
    /// The stage that a sink sees.
    pub fn stage(&self, party: &str, since: Stage) -> StageRow {
        let took = span(self.first_created, self.last_delivered);
        Passed { count: self.messages, failed: 0, bytes: self.bytes, took }.row(
            Stage::Delivered,
            party,
            since,
            &self.delivered,
        )
    }
}

/// What reached a stage, and how long it took all of it.
struct Passed {
    count: u64,
    failed: u64,
    bytes: u64,
    took: Duration,
}

impl Passed {
    fn row(&self, name: Stage, party: &str, since: Stage, times: &Latencies) -> StageRow {
        let latency_ms = times.summary();
        StageRow {
            name,
            party: party.to_owned(),
            count: self.count,
            failed: self.failed,
            bytes: self.bytes,
            rate_per_s: per_second(self.count, self.took),
            bytes_per_s: per_second(self.bytes, self.took),
            duration_s: self.took.as_secs_f64(),
            since: latency_ms.map(|_| since),
            latency_ms,
        }
    }
}

fn span(first: Option<Duration>, last: Option<Duration>) -> Duration {
    first.zip(last).map_or(Duration::ZERO, |(first, last)| last.saturating_sub(first))
}

/// 0 where no time passed: one message in no time is no rate.
fn per_second(count: u64, took: Duration) -> f64 {
    if took.is_zero() { 0.0 } else { count as f64 / took.as_secs_f64() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tally::Timed;

    fn seconds(number: u64) -> Option<Duration> {
        Some(Duration::from_secs(number))
    }

    #[test]
    fn rates_count_from_the_first_message_created() {
        let tally = SourceTally {
            created: 12,
            sent: 11,
            accepted: 10,
            rejected: 1,
            bytes_accepted: 4_000,
            first_created: seconds(5),
            last_accepted: seconds(9),
            ..SourceTally::default()
        };
        let rows = tally.stages("source", Stage::Created);
        let accepted = rows.iter().find(|row| row.name == Stage::Accepted).unwrap();
        assert_eq!((accepted.count, accepted.failed, accepted.duration_s), (10, 1, 4.0));
        assert_eq!((accepted.rate_per_s, accepted.bytes_per_s), (2.5, 1000.0));
        assert_eq!((accepted.since, accepted.latency_ms), (None, None));
        assert_eq!(rows.iter().find(|row| row.name == Stage::Sent).map(|row| row.failed), Some(1));
    }

    #[test]
    fn phases_that_did_not_occur_have_no_row() {
        let mut tally = SourceTally::default();
        tally.time(Timed::Phase(Phase::Quit), Duration::from_millis(1));
        tally.time(Timed::Phase(Phase::Connect), Duration::from_millis(1));
        tally.settle();
        let names: Vec<_> = tally.phase_rows().iter().map(|row| row.name).collect();
        assert_eq!(names, [Phase::Connect, Phase::Quit]);
    }

    #[test]
    fn a_run_without_creation_times_has_a_count_and_no_rate() {
        let tally = RunTally { messages: 3, last_delivered: seconds(9), ..RunTally::default() };
        let row = tally.stage("sink", Stage::Created);
        assert_eq!((row.name, row.count, row.rate_per_s, row.since), (Stage::Delivered, 3, 0.0, None));
    }
}
