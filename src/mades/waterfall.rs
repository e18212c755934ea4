//! Latencies by stage: for each stage the time to it, and for each pair of neighbours the time from one to the next,
//! every message counted, in histograms of three digits.
//!
//! ```text
//! created ─0.02─ sent ─0.4─ settled ─1.1─ replied ─22.0─ inbox ─3.1─ DELIVERED ─0.1─ RECEIVED
//! └──────────────────────────── 26.7 ms ────────────────────────────────────────┘
//! ```
//! An event may overtake the reply. Such a step counts as zero, and is counted as overtaken.
use super::slots::Slot;
use super::stages::{Mode, Stage};
use super::watcher::Watcher;
use journey::Latencies;
use journey::record::{MadesHop, MadesStage};
use std::rc::Rc;
use std::time::Duration;

/// The number of messages that reached a stage, and their times.
#[derive(Clone, Debug, Default)]
struct Reached {
    /// First arrivals, late ones included.
    count: u64,
    /// Arrivals after the first.
    again: u64,
    /// First arrivals after the time-out, which have no latency.
    late: u64,
    latency: Latencies,
    last: Option<Duration>,
    /// Time at which it was first reached since the last interval.
    recent_first: Option<Duration>,
}

impl Reached {
    /// Counts a first arrival.
    fn count_at(&mut self, now: Duration) {
        self.count += 1;
        self.last = self.last.max(Some(now));
        self.recent_first.get_or_insert(now);
    }
}

/// A step from one stage to the next.
#[derive(Clone, Debug, Default)]
struct Hop {
    latency: Latencies,
    overtaken: u64,
}

/// The times of a whole run.
#[derive(Clone, Debug)]
pub(super) struct Waterfall {
    mode: Mode,
    reached: [Reached; Stage::ALL.len()],
    /// Steps, by the place of the later stage on the path.
    hops: [Hop; Stage::ALL.len()],
    first_created: Option<Duration>,
    /// Latencies to the last stage since the last interval.
    recent: Latencies,
    pub(super) watcher: Option<Rc<dyn Watcher>>,
}

impl Waterfall {
    pub(super) fn new(mode: Mode) -> Self {
        let reached = Default::default();
        let hops = Default::default();
        Self { mode, reached, hops, first_created: None, recent: Latencies::default(), watcher: None }
    }

    /// Times a message that reaches a stage for the first time.
    pub(super) fn reach(&mut self, slot: &mut Slot, stage: Stage, now: Duration) {
        slot.reach(stage, now);
        let latency = now.saturating_sub(slot.since);
        let reached = &mut self.reached[stage as usize];
        reached.count_at(now);
        reached.latency.record(latency);
        if let Some(watcher) = &self.watcher {
            watcher.reached(stage, latency, now);
        }
        if stage == self.mode.last() {
            self.recent.record(latency);
        }
        self.step(slot, stage);
    }

    /// Records that a message is taken up.
    pub(super) fn create(&mut self, slot: &Slot) {
        self.first_created.get_or_insert(slot.since.min(slot.created));
        let reached = &mut self.reached[Stage::Created as usize];
        reached.count += 1;
        reached.latency.record(slot.created.saturating_sub(slot.since));
        reached.last = Some(slot.created);
    }

    /// Records that a message that is not waited for any more reaches a stage for the first time.
    pub(super) fn late(&mut self, stage: Stage, now: Duration) {
        let reached = &mut self.reached[stage as usize];
        reached.count_at(now);
        reached.late += 1;
    }

    /// Records that a message reaches a stage again.
    pub(super) fn again(&mut self, stage: Stage) {
        self.reached[stage as usize].again += 1;
    }

    pub(super) fn count(&self, stage: Stage) -> u64 {
        self.reached[stage as usize].count
    }

    pub(super) fn duplicates(&self, stage: Stage) -> u64 {
        self.reached[stage as usize].again
    }

    /// Time at which the first message was taken up, or was due.
    pub(super) fn began(&self) -> Option<Duration> {
        self.first_created
    }

    /// Latencies of messages to a stage.
    pub(super) fn latency(&self, stage: Stage) -> &Latencies {
        &self.reached[stage as usize].latency
    }

    /// Time at which the stage was last reached.
    pub(super) fn last(&self, stage: Stage) -> Option<Duration> {
        self.reached[stage as usize].last
    }

    /// The first and the last time at which the stage was reached since the last call.
    pub(super) fn take_span(&mut self, stage: Stage) -> Option<(Duration, Duration)> {
        let reached = &mut self.reached[stage as usize];
        reached.recent_first.take().zip(reached.last)
    }

    /// Time at which any stage was last reached.
    pub(super) fn last_of_all(&self) -> Option<Duration> {
        self.reached.iter().filter_map(|reached| reached.last).max()
    }

    /// Time from the first message to the last that reached the stage.
    pub(super) fn span(&self, stage: Stage) -> Duration {
        let last = self.reached[stage as usize].last;
        self.first_created.zip(last).map_or(Duration::ZERO, |(first, last)| last.saturating_sub(first))
    }

    /// Latencies to the last stage since the last call.
    pub(super) fn take_recent(&mut self, to: &mut Latencies) {
        to.merge(&self.recent);
        self.recent.clear();
    }

    /// Times the steps to and from a stage whose other ends are known.
    fn step(&mut self, slot: &Slot, stage: Stage) {
        let path = self.mode.path();
        let Some(at) = path.iter().position(|other| *other == stage) else { return };
        for later in [at, at + 1] {
            let ends = later.checked_sub(1).and_then(|earlier| Some((path[earlier], *path.get(later)?)));
            let times = ends.and_then(|(from, to)| Some((slot.time(from)?, slot.time(to)?)));
            let Some((from, to)) = times else { continue };
            let hop = &mut self.hops[later];
            hop.overtaken += u64::from(to < from);
            hop.latency.record(to.saturating_sub(from));
        }
    }

    /// The stages as rows of the record; `missing` gives the messages that nothing explains, `offered_s` the time for
    /// which load was offered.
    pub(super) fn stage_rows(&self, offered_s: Option<f64>, missing: impl Fn(Stage) -> u64) -> Vec<MadesStage> {
        let row = |stage: Stage| {
            let reached = &self.reached[stage as usize];
            let duration_s = self.span(stage).as_secs_f64();
            MadesStage {
                name: stage.name().to_owned(),
                count: reached.count,
                missing: missing(stage),
                duplicates: reached.again,
                late: reached.late,
                rate_per_s: if duration_s > 0.0 { reached.count as f64 / duration_s } else { 0.0 },
                offered_rate_per_s: offered_s.map(|offered_s| reached.count as f64 / offered_s),
                duration_s,
                latency_ms: reached.latency.summary().filter(|_| stage != Stage::Created),
                histogram: reached.latency.encoded().filter(|_| stage != Stage::Created),
            }
        };
        self.mode.path().iter().copied().map(row).collect()
    }

    /// The steps as rows of the record.
    pub(super) fn hop_rows(&self) -> Vec<MadesHop> {
        let row = |(at, ends): (usize, &[Stage])| {
            let hop = &self.hops[at + 1];
            MadesHop {
                from: ends[0].name().to_owned(),
                to: ends[1].name().to_owned(),
                count: hop.latency.count(),
                overtaken: hop.overtaken,
                latency_ms: hop.latency.summary(),
            }
        };
        self.mode.path().windows(2).enumerate().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    /// A run in which each message reaches each stage that many milliseconds after its creation.
    fn run(mode: Mode, count: u64, times: impl Fn(u64) -> Vec<(Stage, u64)>) -> Waterfall {
        let mut waterfall = Waterfall::new(mode);
        for number in 0..count {
            let created = ms(1_000 + number);
            let mut slot = Slot::new(number, created, created);
            waterfall.create(&slot);
            for (stage, after) in times(number) {
                waterfall.reach(&mut slot, stage, created + ms(after));
            }
        }
        waterfall
    }

    fn near(value: f64, expected: f64) -> bool {
        (value - expected).abs() <= expected * 0.001 + 0.001
    }

    #[test]
    fn every_sample_counts_in_the_median() {
        // go-mades-bench's median ignores samples below the first one (reference §1.7.1): here it gave 0.
        let waterfall = run(Mode::Amqp, 2_000, |number| {
            let inbox = if number == 0 { 60 } else { 3 + number % 3 };
            vec![(Stage::Sent, 0), (Stage::Settled, 1), (Stage::Inbox, inbox)]
        });
        let rows = waterfall.stage_rows(None, |_| 0);
        let times = rows[3].latency_ms.unwrap();
        assert!(near(times.p50, 4.0) && near(times.max, 60.0) && near(times.min, 3.0), "{times:?}");
    }

    #[test]
    fn a_median_is_not_a_millisecond_wide() {
        // {1, 100, 100} gave 1 ms (§1.7.3).
        let waterfall = run(Mode::Amqp, 3, |number| vec![(Stage::Inbox, if number == 0 { 1 } else { 100 })]);
        assert!(near(waterfall.stage_rows(None, |_| 0)[3].latency_ms.unwrap().p50, 100.0));
    }

    #[test]
    fn the_mean_does_not_freeze() {
        // Half at 10 ms, then half at 14: the average that adds (d − average) / count in whole nanoseconds stayed at 10
        // (§1.7.2).
        let half = 100_000;
        let mut waterfall = Waterfall::new(Mode::Amqp);
        let mut slot = Slot::new(0, ms(1), ms(1));
        for number in 0..2 * half {
            waterfall.reach(
                &mut slot,
                Stage::Inbox,
                ms(1) + Duration::from_micros(if number < half { 10_000 } else { 14_000 }),
            );
        }
        let mean = waterfall.stage_rows(None, |_| 0)[3].latency_ms.unwrap().mean;
        assert!(near(mean, 12.0), "{mean}");
    }

    #[test]
    fn steps_sum_to_the_whole_way() {
        let stages = [Stage::Sent, Stage::Settled, Stage::Replied, Stage::Inbox, Stage::Delivered, Stage::Received];
        let waterfall = run(Mode::Endpoint, 500, |number| {
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
        let waterfall = run(Mode::Endpoint, 10, |_| {
            vec![(Stage::Sent, 0), (Stage::Inbox, 3), (Stage::Delivered, 4), (Stage::Settled, 5), (Stage::Replied, 6)]
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
    fn late_and_doubled_arrivals_have_no_latency() {
        let mut waterfall = run(Mode::Amqp, 2, |_| vec![(Stage::Inbox, 1)]);
        waterfall.late(Stage::Inbox, ms(9_000));
        waterfall.again(Stage::Inbox);
        let row = &waterfall.stage_rows(None, |stage| u64::from(stage == Stage::Inbox) * 7)[3];
        assert_eq!((row.count, row.late, row.duplicates, row.missing), (3, 1, 1, 7));
        assert!(row.latency_ms.unwrap().max < 2.0);
        assert!(near(row.duration_s, 8.0), "{row:?}");
    }
}
