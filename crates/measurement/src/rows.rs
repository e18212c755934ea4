//! Converts the workers' tallies, which are counts and latencies of a run, into the rows of a run record.
use crate::delayed_acks::DelayedAcks;
use crate::latencies::Latencies;
use crate::record::{PauseRow, PhaseRow, StageRow};
use crate::stage::{Phase, Stage};
use crate::tally::{RunTally, SourceTally};
use crate::throughput::Throughput;
use std::time::Duration;

impl SourceTally {
    /// Makes a row for each stage that a source observes: `created`, `sent` and `accepted`. Messages of the warm-up are
    /// left out. Latencies count from `since`, which is `Scheduled` in an open loop and `Created` in a closed loop. In
    /// an open loop, the stage `created` has latencies as well, which tell how long after its due time a session began
    /// each message. Arrival times count from `origin`.
    pub fn stages(&self, party: &str, since: Stage, origin: Duration) -> Vec<StageRow> {
        let warm = &self.warm_up;
        let created = self.created - warm.created;
        let sent = self.sent - warm.sent;
        let row = |name, count, failed, bytes, arrivals, times, service, since| {
            let figures = StageFigures { count, failed, bytes, arrivals, times, service };
            figures.row(name, party, since, self.first_created, origin)
        };
        let none = &Latencies::default();
        vec![
            row(Stage::Created, created, 0, 0, &self.created_times, &self.slip, none, Stage::Scheduled),
            row(
                Stage::Sent,
                sent,
                created.saturating_sub(sent),
                self.bytes_sent - warm.bytes_sent,
                &self.sent_times,
                &self.sent_latency,
                &self.sent_service,
                since,
            ),
            row(
                Stage::Accepted,
                self.accepted - warm.accepted,
                self.rejected + self.failed - warm.rejected - warm.failed,
                self.bytes_accepted - warm.bytes_accepted,
                &self.accepted_times,
                &self.accepted_latency,
                &self.accepted_service,
                since,
            ),
        ]
    }

    /// Makes rows for the phases of the SMTP dialogue that occurred, in the order of the dialogue.
    pub fn phase_rows(&self) -> Vec<PhaseRow> {
        let row = |(name, times): (Phase, &Latencies)| {
            let latency_ms = times.summary()?;
            Some(PhaseRow { name, count: times.count(), latency_ms, histogram: times.encoded() })
        };
        Phase::ALL.into_iter().zip(&self.phases.0).filter_map(row).collect()
    }
}

impl SourceTally {
    /// Makes rows for the phases whose durations look like delayed ACKs. Only phases that end with data from the server
    /// are examined.
    pub fn delayed_acks(&self, party: &str) -> Vec<PauseRow> {
        // A delayed ACK cannot lengthen `Connect`, in which no data waits for an ACK. Nor can it lengthen `Body`, which
        // ends as soon as the kernel has buffered the body.
        let is_of_the_server = |phase: &Phase| !matches!(phase, Phase::Connect | Phase::Body);
        let row = |phase: Phase| {
            let place = phase as usize;
            DelayedAcks::from_latencies(&self.phases.0[place], self.pauses[place]).row(party, phase)
        };
        Phase::ALL.into_iter().filter(is_of_the_server).filter_map(row).collect()
    }
}

impl RunTally {
    /// Makes the row of the stage `delivered`, which a sink observes. Messages of the warm-up are left out. Arrival
    /// times count from `origin`.
    pub fn stage(&self, party: &str, since: Stage, origin: Duration) -> StageRow {
        let figures = StageFigures {
            count: self.messages - self.warm_up_messages,
            failed: 0,
            bytes: self.bytes - self.warm_up_bytes,
            arrivals: &self.delivered_times,
            times: &self.delivered,
            service: &Latencies::default(),
        };
        // The row counts duplicate messages, but `self.duplicates` counts duplicate recipients. The two numbers are
        // equal only if each message had one recipient.
        let duplicates = if self.recipients == self.messages { self.duplicates } else { 0 };
        StageRow { duplicates, ..figures.row(Stage::Delivered, party, since, self.first_created, origin) }
    }
}

impl RunTally {
    /// Makes the row of the stage `announced`, which a message reaches when the server of a watched mailbox reports it.
    /// Returns `None` if no server reported a message.
    pub fn told_stage(&self, party: &str, since: Stage, origin: Duration) -> Option<StageRow> {
        let figures = StageFigures {
            count: self.told_messages,
            failed: 0,
            bytes: 0,
            arrivals: &self.told_times,
            times: &self.told,
            service: &Latencies::default(),
        };
        (figures.count > 0).then(|| figures.row(Stage::Announced, party, since, self.first_created, origin))
    }
}

pub struct StageFigures<'a> {
    pub count: u64,
    pub failed: u64,
    pub bytes: u64,
    pub arrivals: &'a Throughput,
    /// Latencies of the messages; empty if no latency is known.
    pub times: &'a Latencies,
    /// Service times of the messages; empty if they equal the latencies or are unknown.
    pub service: &'a Latencies,
}

impl StageFigures<'_> {
    /// Converts the figures to a row of the run record. The duration in the row counts from `first_created`, the time
    /// at which the first message was created. The arrival times count from `origin`.
    pub fn row(
        &self,
        name: Stage,
        party: &str,
        since: Stage,
        first_created: Option<Duration>,
        origin: Duration,
    ) -> StageRow {
        let latency_ms = self.times.summary();
        let took = first_created.zip(self.arrivals.last()).map(|(first, last)| last.saturating_sub(first));
        StageRow {
            count: self.count,
            failed: self.failed,
            bytes: self.bytes,
            rate_per_s: self.arrivals.per_s(),
            duration_s: took.unwrap_or_default().as_secs_f64(),
            since: latency_ms.map(|_| since),
            latency_ms,
            histogram: self.times.encoded(),
            service_ms: self.service.summary(),
            service_histogram: self.service.encoded(),
            arrivals: self.arrivals.encoded(origin),
            ..StageRow::new(name, party)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::stage_named;
    use crate::tally::{LatencyKind, WarmUpCounts};

    fn seconds(number: u64) -> Option<Duration> {
        Some(Duration::from_secs(number))
    }

    fn arrivals(count: u32, first: Duration, length: Duration) -> Throughput {
        let mut times = Throughput::default();
        (0..count).map(|number| first + length * number / (count - 1)).for_each(|at| times.record(at, first));
        times
    }

    #[test]
    fn a_row_has_the_rate_of_its_stage_and_the_time_since_the_first_message_was_created() {
        let tally = SourceTally {
            created: 102,
            sent: 101,
            accepted: 100,
            rejected: 1,
            bytes_accepted: 40_000,
            first_created: seconds(5),
            accepted_times: arrivals(100, Duration::from_secs(6), Duration::from_millis(9_900)),
            ..SourceTally::default()
        };
        let rows = tally.stages("source", Stage::Created, Duration::ZERO);
        let accepted = stage_named(&rows, Stage::Accepted).unwrap();
        assert_eq!((accepted.count, accepted.failed, accepted.duration_s), (100, 1, 10.9));
        let rates = [accepted.rate_per_s.unwrap(), accepted.bytes_per_s().unwrap() / 400.0];
        assert!(rates.iter().all(|rate| (rate - 10.0).abs() < 0.02), "{rates:?}");
        assert_eq!((accepted.since, accepted.latency_ms), (None, None));
        assert_eq!(stage_named(&rows, Stage::Sent).map(|row| row.failed), Some(1));
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
            ..SourceTally::default()
        };
        let rows = tally.stages("source", Stage::Created, Duration::ZERO);
        let counts: Vec<_> = rows.iter().map(|row| (row.count, row.failed, row.bytes)).collect();
        assert_eq!(counts, [(10, 0, 0), (10, 0, 1_000), (10, 0, 1_000)]);
        let mut total = SourceTally::default();
        total.merge(&tally);
        total.merge(&tally);
        assert_eq!((total.warm_up.created, total.warm_up.bytes_accepted), (10, 800));
        let run = RunTally { messages: 9, bytes: 900, warm_up_messages: 2, warm_up_bytes: 200, ..RunTally::default() };
        let row = run.stage("sink", Stage::Created, Duration::ZERO);
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
        let rows = total.stages("source", Stage::Scheduled, Duration::ZERO);
        let service: Vec<_> = rows.iter().map(|row| row.service_ms.map(|service| service.max.round())).collect();
        assert_eq!(service, [None, None, Some(5.0)]);
        assert_eq!(Latencies::decode(rows[2].service_histogram.as_ref().unwrap()).unwrap().count(), 1);
        tally.clear();
        tally.flush_times();
        assert!(tally.stages("source", Stage::Scheduled, Duration::ZERO)[2].service_ms.is_none());
    }

    #[test]
    fn a_run_without_creation_times_has_a_count_and_no_rate() {
        let tally = RunTally { messages: 3, ..RunTally::default() };
        let row = tally.stage("sink", Stage::Created, Duration::ZERO);
        assert_eq!((row.name, row.count, row.rate_per_s, row.since), (Stage::Delivered, 3, None, None));
    }
}
