//! Latencies by stage: the time to each stage, and the time between neighbouring stages. The histograms contain every
//! message that reached the stage before its time-out, with three digits of precision.
//!
//! ```text
//! created ─0.02─ sent ─0.4─ settled ─1.1─ replied ─22.0─ inbox ─3.1─ DELIVERED ─0.1─ RECEIVED
//! └──────────────────────────── 26.7 ms ────────────────────────────────────────┘
//! ```
//! A message may reach a stage before an earlier stage of the path, for example the inbox before the reply. The time
//! between the two stages then counts as zero, and the record says how often this happened.
use super::in_flight::InFlightEntry;
use super::shape_stats::{Reach, Reached, ShapeStats};
use super::stages::{MessagePath, MessageStage, RunObserver};
use mailrun_measurement::record::{MadesHop, StageRow};
use mailrun_measurement::seconds::Seconds;
use mailrun_measurement::{Latencies, Stage, StageFigures};
use std::rc::Rc;
use std::time::Duration;

#[derive(Clone, Debug, Default)]
struct StageStats {
    /// Messages that reached the stage, with their latencies. A message that reached the stage after its time-out has
    /// no latency.
    reached: Reached,
    repeats: u64,
    /// Times from the creation of the messages to the stage, recorded only in an open loop. All other latencies of an
    /// open loop begin when the message was due.
    service: Latencies,
    /// Time at which a message first reached the stage after the last call of `take_span`, which clears this time.
    recent_first: Option<Duration>,
}

#[derive(Clone, Debug, Default)]
struct StageHop {
    latency: Latencies,
    overtaken: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Waterfall {
    path: MessagePath,
    stages: [StageStats; MessageStage::ALL.len()],
    /// Times between neighbouring stages. The index is the position of the later stage in the path.
    hops: [StageHop; MessageStage::ALL.len()],
    /// Times from the arrival in the inbox to the acknowledgement, whatever events come in between.
    way_back: Latencies,
    first_created: Option<Duration>,
    /// Counts and latencies by second, which the monitor collects and clears.
    pub(super) seconds: Seconds,
    pub(super) zero: Duration,
    /// Latencies of the messages that have reached the last stage since the last call of `take_recent`.
    recent: Latencies,
    pub(super) observer: Option<Rc<dyn RunObserver>>,
    /// Figures for each `--shape` of the load and each quarter-hour, or `None` for a load without `--shape`.
    pub(super) shapes: Option<ShapeStats>,
    /// Set in an open loop, in which a message may be created later than it was due.
    pub(super) is_open_loop: bool,
}

impl Waterfall {
    pub(super) fn new(path: MessagePath) -> Self {
        let reached = Default::default();
        let hops = Default::default();
        Self {
            path,
            stages: reached,
            hops,
            way_back: Latencies::default(),
            first_created: None,
            seconds: Seconds::default(),
            zero: Duration::ZERO,
            recent: Latencies::default(),
            observer: None,
            shapes: None,
            is_open_loop: false,
        }
    }

    pub(super) fn reach(&mut self, entry: &mut InFlightEntry, stage: MessageStage, now: Duration) {
        entry.reach(stage, now);
        let latency = now.saturating_sub(entry.since);
        self.add(entry.sequence, stage, now, Reach { at: now, due: entry.since, latency: Some(latency) });
        if self.is_open_loop {
            self.stages[stage as usize].service.record(now.saturating_sub(entry.created));
        }
        if let Some(observer) = &self.observer {
            observer.stage_reached(stage, latency, now);
        }
        self.count_second(stage, now);
        let second = self.seconds.at(now, self.zero);
        if stage == self.path.last() {
            self.recent.record(latency);
            second.latencies.record(latency);
        }
        if stage == self.path.mode.arrival() {
            second.arrive(now, entry.since);
        }
        if stage == MessageStage::Acknowledged
            && let Some(arrived) = entry.time(MessageStage::Inbox)
        {
            self.way_back.record(now.saturating_sub(arrived));
        }
        self.step(entry, stage);
    }

    /// Counts a message that reaches a stage. If the message is the first since the last call of `take_span`, the next
    /// call returns `first` as the start.
    fn add(&mut self, sequence: u64, stage: MessageStage, first: Duration, reach: Reach) {
        let stats = &mut self.stages[stage as usize];
        stats.reached.add(reach);
        stats.recent_first.get_or_insert(first);
        if let Some(shapes) = &mut self.shapes {
            shapes.reach(self.path, sequence, stage, reach);
        }
    }

    fn count_second(&mut self, stage: MessageStage, now: Duration) {
        let arrival = self.path.mode.arrival();
        let second = self.seconds.at(now, self.zero);
        second.sent += u64::from(stage == MessageStage::Sent);
        second.accepted += u64::from(stage == MessageStage::Settled);
        second.delivered += u64::from(stage == arrival);
    }

    pub(super) fn way_back(&self) -> &Latencies {
        &self.way_back
    }

    pub(super) fn create(&mut self, entry: &InFlightEntry) {
        self.first_created.get_or_insert(entry.since.min(entry.created));
        if let Some(shapes) = &mut self.shapes {
            shapes.due(entry.sequence);
        }
        let waited = entry.created.saturating_sub(entry.since);
        let reach = Reach { at: entry.created, due: entry.since, latency: Some(waited) };
        self.add(entry.sequence, MessageStage::Created, entry.since, reach);
    }

    /// Records that a message reaches a stage for the first time, but after its time-out.
    pub(super) fn late(&mut self, sequence: u64, stage: MessageStage, now: Duration) {
        // Use zero as the due time, because the bench forgets a message's due time when the message times out.
        self.add(sequence, stage, now, Reach { at: now, due: Duration::ZERO, latency: None });
        self.count_second(stage, now);
    }

    pub(super) fn repeat(&mut self, stage: MessageStage) {
        self.stages[stage as usize].repeats += 1;
    }

    pub(super) fn count(&self, stage: MessageStage) -> u64 {
        self.stages[stage as usize].reached.count
    }

    pub(super) fn duplicates(&self, stage: MessageStage) -> u64 {
        self.stages[stage as usize].repeats
    }

    /// Returns the time at which the first message was due or was created, whichever was earlier.
    pub(super) fn began(&self) -> Option<Duration> {
        self.first_created
    }

    pub(super) fn latency(&self, stage: MessageStage) -> &Latencies {
        &self.stages[stage as usize].reached.latency
    }

    /// Returns the rate at which messages have reached the stage, or `None` if too few messages have reached it.
    pub(super) fn rate_per_s(&self, stage: MessageStage) -> Option<f64> {
        self.stages[stage as usize].reached.arrivals.per_s()
    }

    pub(super) fn last(&self, stage: MessageStage) -> Option<Duration> {
        self.stages[stage as usize].reached.arrivals.last()
    }

    /// Returns the times at which the first and the last message since the previous call reached the stage. `None` if
    /// no message reached it.
    pub(super) fn take_span(&mut self, stage: MessageStage) -> Option<(Duration, Duration)> {
        let stats = &mut self.stages[stage as usize];
        stats.recent_first.take().zip(stats.reached.arrivals.last())
    }

    pub(super) fn last_overall(&self) -> Option<Duration> {
        self.stages.iter().filter_map(|stats| stats.reached.arrivals.last()).max()
    }

    /// Adds to `to` the latencies of the messages that have reached the last stage since the last call.
    pub(super) fn take_recent(&mut self, to: &mut Latencies) {
        to.merge(&self.recent);
        self.recent.clear();
    }

    /// Records the time from the previous stage to this stage, and from this stage to the next one.
    /// The message may have reached the next stage first, because events can overtake each other.
    fn step(&mut self, entry: &InFlightEntry, stage: MessageStage) {
        let path = self.path.stages();
        let Some(at) = path.iter().position(|other| *other == stage) else { return };
        for later in [at, at + 1] {
            let ends = later.checked_sub(1).and_then(|earlier| Some((path[earlier], *path.get(later)?)));
            let times = ends.and_then(|(from, to)| Some((entry.time(from)?, entry.time(to)?)));
            let Some((from, to)) = times else { continue };
            let hop = &mut self.hops[later];
            hop.overtaken += u64::from(to < from);
            hop.latency.record(to.saturating_sub(from));
        }
    }

    /// Returns a row of the record for each stage. All times in the rows count from `origin`. `missing` must return how
    /// many messages should have reached a stage but did not. `bytes_each` is the mean size of a message.
    pub(super) fn stage_rows(
        &self,
        origin: Duration,
        bytes_each: f64,
        missing: impl Fn(MessageStage) -> u64,
    ) -> Vec<StageRow> {
        let since = if self.is_open_loop { Stage::Scheduled } else { Stage::Created };
        let row = |stage: MessageStage| {
            let StageStats { reached, repeats, service, .. } = &self.stages[stage as usize];
            let no_times = &Latencies::default();
            let is_timed = stage != MessageStage::Created || self.is_open_loop;
            let figures = StageFigures {
                count: reached.count,
                failed: 0,
                bytes: (reached.count as f64 * bytes_each).round() as u64,
                arrivals: &reached.arrivals,
                times: if is_timed { &reached.latency } else { no_times },
                service,
            };
            StageRow {
                missing: missing(stage),
                duplicates: *repeats,
                late: reached.late,
                ..figures.row(stage.stage(), "mades", since, self.first_created, origin)
            }
        };
        self.path.stages().iter().copied().map(row).collect()
    }

    pub(super) fn hop_rows(&self) -> Vec<MadesHop> {
        let row = |(at, ends): (usize, &[MessageStage])| {
            let hop = &self.hops[at + 1];
            MadesHop {
                from: ends[0].name().to_owned(),
                to: ends[1].name().to_owned(),
                count: hop.latency.count(),
                overtaken: hop.overtaken,
                latency_ms: hop.latency.summary(),
            }
        };
        self.path.stages().windows(2).enumerate().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::stages::{AcknowledgementMode, MadesMode};
    use super::*;

    fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    /// Makes the figures of a run in which each message reaches the stages at these times, in
    /// milliseconds after its creation.
    fn run(path: impl Into<MessagePath>, count: u64, times: impl Fn(u64) -> Vec<(MessageStage, u64)>) -> Waterfall {
        let mut waterfall = Waterfall::new(path.into());
        for number in 0..count {
            let created = ms(1_000 + number);
            let mut entry = InFlightEntry::new(number, created, created);
            waterfall.create(&entry);
            for (stage, after) in times(number) {
                waterfall.reach(&mut entry, stage, created + ms(after));
            }
        }
        waterfall
    }

    fn near(value: f64, expected: f64) -> bool {
        (value - expected).abs() <= expected * 0.001 + 0.001
    }

    #[test]
    fn every_sample_counts_in_the_median() {
        // When go-mades-bench computes a median, it ignores all samples that are smaller than its first sample. Here,
        // the first sample is 60 ms and all others are smaller, so go-mades-bench reports 0 instead of 4 ms.
        let waterfall = run(MadesMode::Amqp, 2_000, |number| {
            let inbox = if number == 0 { 60 } else { 3 + number % 3 };
            vec![(MessageStage::Sent, 0), (MessageStage::Settled, 1), (MessageStage::Inbox, inbox)]
        });
        let rows = waterfall.stage_rows(Duration::ZERO, 0.0, |_| 0);
        let times = rows[3].latency_ms.unwrap();
        assert!(near(times.p50, 4.0) && near(times.max, 60.0) && near(times.min, 3.0), "{times:?}");
    }

    #[test]
    fn a_median_is_not_a_millisecond_wide() {
        // The median of these times is 100 ms. go-mades-bench wrongly reports 1 ms.
        let waterfall =
            run(MadesMode::Amqp, 3, |number| vec![(MessageStage::Inbox, if number == 0 { 1 } else { 100 })]);
        assert!(near(waterfall.stage_rows(Duration::ZERO, 0.0, |_| 0)[3].latency_ms.unwrap().p50, 100.0));
    }

    #[test]
    fn the_mean_does_not_freeze() {
        // go-mades-bench adds (latency − average) / count to its average, in whole nanoseconds. If
        // the count is very large, the quotient is 0, so the average no longer changes.
        let half = 100_000;
        let mut waterfall = Waterfall::new(MadesMode::Amqp.into());
        let mut entry = InFlightEntry::new(0, ms(1), ms(1));
        for number in 0..2 * half {
            waterfall.reach(
                &mut entry,
                MessageStage::Inbox,
                ms(1) + Duration::from_micros(if number < half { 10_000 } else { 14_000 }),
            );
        }
        let mean = waterfall.stage_rows(Duration::ZERO, 0.0, |_| 0)[3].latency_ms.unwrap().mean;
        assert!(near(mean, 12.0), "{mean}");
    }

    #[test]
    fn steps_sum_to_the_whole_way() {
        let stages = [
            MessageStage::Sent,
            MessageStage::Settled,
            MessageStage::Replied,
            MessageStage::Inbox,
            MessageStage::Delivered,
            MessageStage::Received,
        ];
        let waterfall = run(MadesMode::Endpoint, 500, |number| {
            let times = [0, 2, 5, 30 + number % 7, 40, 41];
            stages.into_iter().zip(times).collect()
        });
        let hops = waterfall.hop_rows();
        let names: Vec<String> = hops.iter().map(|hop| format!("{}→{}", hop.from, hop.to)).collect();
        assert_eq!(names[3], "replied→inbox");
        assert_eq!(hops.len(), 6);
        let sum: f64 = hops.iter().map(|hop| hop.latency_ms.unwrap().mean).sum();
        assert!(near(sum, 41.0), "{sum}");
        assert!(hops.iter().all(|hop| hop.count == 500 && hop.overtaken == 0));
    }

    #[test]
    fn an_event_may_overtake_the_reply() {
        let waterfall = run(MadesMode::Endpoint, 10, |_| {
            vec![
                (MessageStage::Sent, 0),
                (MessageStage::Inbox, 3),
                (MessageStage::Delivered, 4),
                (MessageStage::Settled, 5),
                (MessageStage::Replied, 6),
            ]
        });
        let hops = waterfall.hop_rows();
        let inbox = hops.iter().find(|hop| hop.to == "inbox").unwrap();
        assert_eq!((inbox.count, inbox.overtaken), (10, 10));
        assert_eq!(inbox.latency_ms.unwrap().max, 0.0);
        let replied = hops.iter().find(|hop| hop.to == "replied").unwrap();
        assert!(near(replied.latency_ms.unwrap().p50, 1.0));
        assert_eq!(hops.iter().find(|hop| hop.to == "RECEIVED").map(|hop| hop.count), Some(0));
    }

    #[test]
    fn the_way_back_begins_at_the_inbox_whatever_comes_between() {
        let path = MessagePath { mode: MadesMode::Endpoint, acknowledgement: AcknowledgementMode::On };
        let waterfall = run(path, 100, |_| {
            let stages = [
                (MessageStage::Inbox, 30),
                (MessageStage::Delivered, 40),
                (MessageStage::Received, 41),
                (MessageStage::Acknowledged, 55),
            ];
            stages.to_vec()
        });
        let way_back = waterfall.way_back().summary().unwrap();
        assert!(near(way_back.p50, 25.0) && near(way_back.max, 25.0), "{way_back:?}");
        let row = waterfall.stage_rows(Duration::ZERO, 0.0, |_| 0).pop().unwrap();
        assert_eq!((row.name, row.count), (Stage::Acknowledged, 100));
        assert!(near(row.latency_ms.unwrap().p50, 55.0));
        assert!(near(waterfall.hop_rows().pop().unwrap().latency_ms.unwrap().p50, 14.0));
    }

    #[test]
    fn late_and_doubled_arrivals_have_no_latency() {
        let mut waterfall = run(MadesMode::Amqp, 2, |_| vec![(MessageStage::Inbox, 1)]);
        waterfall.late(0, MessageStage::Inbox, ms(9_000));
        waterfall.repeat(MessageStage::Inbox);
        let row = &waterfall.stage_rows(Duration::ZERO, 0.0, |stage| u64::from(stage == MessageStage::Inbox) * 7)[3];
        assert_eq!((row.count, row.late, row.duplicates, row.missing), (3, 1, 1, 7));
        assert!(row.latency_ms.unwrap().max < 2.0);
        assert!(near(row.duration_s, 8.0), "{row:?}");
    }
}
