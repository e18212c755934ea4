//! Converts tallies into the rows of a run record.
use crate::delayed_acks::DelayedAcks;
use crate::latencies::Latencies;
use crate::record::{PauseRow, PhaseRow, StageRow};
use crate::stage::{Phase, Stage};
use crate::tally::{RunTally, SourceTally};
use std::time::Duration;

impl SourceTally {
    /// Makes the stages that a source observes, without the warm-up. Latencies count from `since`,
    /// which is `Scheduled` in an open loop and `Created` in a closed loop. In an open loop, the
    /// latency of the created stage is the slip. `offered` is how long load was offered.
    pub fn stages(&self, party: &str, since: Stage, offered: Option<Duration>) -> Vec<StageRow> {
        let span = |last: Option<Duration>| span(self.first_created, last);
        let warm = &self.warm_up;
        let created = self.created - warm.created;
        let sent = self.sent - warm.sent;
        let unsent = created.saturating_sub(sent);
        let created = StageCounts { count: created, failed: 0, bytes: 0, took: span(self.last_created) };
        let bytes_sent = self.bytes_sent - warm.bytes_sent;
        let sent = StageCounts { count: sent, failed: unsent, bytes: bytes_sent, took: span(self.last_sent) };
        let accepted = StageCounts {
            count: self.accepted - warm.accepted,
            failed: self.rejected + self.failed - warm.rejected - warm.failed,
            bytes: self.bytes_accepted - warm.bytes_accepted,
            took: span(self.last_accepted),
        };
        let mut rows = vec![
            created.row(Stage::Created, party, Stage::Scheduled, &self.slip),
            with_service(sent.row(Stage::Sent, party, since, &self.sent_latency), &self.sent_service),
            with_service(accepted.row(Stage::Accepted, party, since, &self.accepted_latency), &self.accepted_service),
        ];
        let offered_s = offered.map(|offered| offered.as_secs_f64());
        rows.iter_mut().for_each(|row| row.offered_rate_per_s = offered_rate(row.count, offered_s));
        rows
    }

    /// Makes the rows of the phases that occurred, in the order of a dialogue.
    pub fn phase_rows(&self) -> Vec<PhaseRow> {
        let row = |(name, times): (Phase, &Latencies)| {
            let latency_ms = times.summary()?;
            Some(PhaseRow { name, count: times.count(), latency_ms, histogram: times.encoded() })
        };
        Phase::ALL.into_iter().zip(&self.phases.0).filter_map(row).collect()
    }
}

impl SourceTally {
    /// Makes rows for the phases that look like delayed ACKs. Only phases that end with data from
    /// the server count.
    pub fn delayed_acks(&self, party: &str) -> Vec<PauseRow> {
        // Connecting sends no segment that could be held back, and a message counts as sent as soon
        // as the kernel has it.
        let is_of_the_server = |phase: &Phase| !matches!(phase, Phase::Connect | Phase::Body);
        let row = |phase: Phase| {
            let place = phase as usize;
            DelayedAcks::from_latencies(&self.phases.0[place], self.pauses[place]).row(party, phase)
        };
        Phase::ALL.into_iter().filter(is_of_the_server).filter_map(row).collect()
    }
}

impl RunTally {
    /// Makes the row of the stage that a sink observes, without the warm-up.
    pub fn stage(&self, party: &str, since: Stage) -> StageRow {
        let took = span(self.first_created, self.last_counted);
        let count = self.messages - self.warm_up_messages;
        let bytes = self.bytes - self.warm_up_bytes;
        StageCounts { count, failed: 0, bytes, took }.row(Stage::Delivered, party, since, &self.delivered)
    }
}

/// Number of messages that reached a stage, and how long that took.
struct StageCounts {
    count: u64,
    failed: u64,
    bytes: u64,
    took: Duration,
}

impl StageCounts {
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
            offered_rate_per_s: None,
            since: latency_ms.map(|_| since),
            latency_ms,
            histogram: times.encoded(),
            service_ms: None,
            service_histogram: None,
        }
    }
}

/// Adds the service times to a stage, if they are known.
fn with_service(row: StageRow, service: &Latencies) -> StageRow {
    StageRow { service_ms: service.summary(), service_histogram: service.encoded(), ..row }
}

fn span(first: Option<Duration>, last: Option<Duration>) -> Duration {
    first.zip(last).map_or(Duration::ZERO, |(first, last)| last.saturating_sub(first))
}

/// Returns the messages per second over the time in which load was offered.
pub(crate) fn offered_rate(count: u64, offered_s: Option<f64>) -> Option<f64> {
    offered_s.filter(|offered_s| *offered_s > 0.0).map(|offered_s| count as f64 / offered_s)
}

/// Returns the rate of `count` in this time. The rate is 0 if no time passed, because a message in
/// zero time is not a rate.
fn per_second(count: u64, elapsed: Duration) -> f64 {
    if elapsed.is_zero() { 0.0 } else { count as f64 / elapsed.as_secs_f64() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tally::{LatencyKind, WarmUpCounts};

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
        let rows = tally.stages("source", Stage::Created, Some(Duration::from_secs(5)));
        let accepted = rows.iter().find(|row| row.name == Stage::Accepted).unwrap();
        assert_eq!((accepted.count, accepted.failed, accepted.duration_s), (10, 1, 4.0));
        assert_eq!((accepted.rate_per_s, accepted.bytes_per_s), (2.5, 1000.0));
        assert_eq!(accepted.offered_rate_per_s, Some(2.0), "whenever the last was accepted");
        assert_eq!((accepted.since, accepted.latency_ms), (None, None));
        assert_eq!(rows.iter().find(|row| row.name == Stage::Sent).map(|row| row.failed), Some(1));
    }

    #[test]
    fn the_warm_up_is_in_no_stage() {
        let warm_up = WarmUpCounts {
            created: 5,
            sent: 5,
            accepted: 4,
            rejected: 1,
            failed: 0,
            bytes_sent: 500,
            bytes_accepted: 400,
        };
        let tally = SourceTally {
            created: 15,
            sent: 15,
            accepted: 14,
            rejected: 1,
            bytes_sent: 1_500,
            bytes_accepted: 1_400,
            warm_up,
            first_created: seconds(5),
            last_accepted: seconds(10),
            ..SourceTally::default()
        };
        let rows = tally.stages("source", Stage::Created, Some(Duration::from_secs(5)));
        let counts: Vec<_> = rows.iter().map(|row| (row.count, row.failed, row.bytes)).collect();
        assert_eq!(counts, [(10, 0, 0), (10, 0, 1_000), (10, 0, 1_000)]);
        assert_eq!(rows[2].rate_per_s, 2.0);
        let mut total = SourceTally::default();
        total.merge(&tally);
        total.merge(&tally);
        assert_eq!((total.warm_up.created, total.warm_up.bytes_accepted), (10, 800));
        let run = RunTally { messages: 9, bytes: 900, warm_up_messages: 2, warm_up_bytes: 200, ..RunTally::default() };
        let row = run.stage("sink", Stage::Created);
        assert_eq!((row.count, row.bytes), (7, 700));
    }

    #[test]
    fn phases_that_did_not_occur_have_no_row() {
        let mut tally = SourceTally::default();
        tally.time(LatencyKind::Phase(Phase::Quit), Duration::from_millis(1));
        tally.time(LatencyKind::Phase(Phase::Connect), Duration::from_millis(1));
        tally.flush_times();
        let names: Vec<_> = tally.phase_rows().iter().map(|row| row.name).collect();
        assert_eq!(names, [Phase::Connect, Phase::Quit]);
    }

    #[test]
    fn service_times_stand_beside_latencies_where_they_were_measured() {
        let mut tally = SourceTally::default();
        tally.time(LatencyKind::Accepted, Duration::from_millis(50));
        tally.time(LatencyKind::AcceptedService, Duration::from_millis(5));
        let mut total = SourceTally::default();
        total.merge(&tally);
        let rows = total.stages("source", Stage::Scheduled, None);
        let service: Vec<_> = rows.iter().map(|row| row.service_ms.map(|service| service.max.round())).collect();
        assert_eq!(service, [None, None, Some(5.0)]);
        assert_eq!(Latencies::decode(rows[2].service_histogram.as_ref().unwrap()).unwrap().count(), 1);
        tally.clear();
        tally.flush_times();
        assert!(tally.stages("source", Stage::Scheduled, None)[2].service_ms.is_none());
    }

    #[test]
    fn a_run_without_creation_times_has_a_count_and_no_rate() {
        let tally = RunTally { messages: 3, last_counted: seconds(9), ..RunTally::default() };
        let row = tally.stage("sink", Stage::Created);
        assert_eq!((row.name, row.count, row.rate_per_s, row.since), (Stage::Delivered, 3, 0.0, None));
    }
}
