//! Computes when each message of a load with `--shape` is due. A message shape says at which times messages are due,
//! for example every 5 minutes. This module does no I/O: the caller passes the wall-clock time.
//!
//! Each message shape repeats after a time that divides a day into equal parts, because `--shape` accepts no other
//! time. All shapes together therefore repeat in a cycle that also divides a day into equal parts:
//!
//! ```text
//! minute   0       3       5       7.5     10      12      15 = the next cycle
//!          B…B r           r               r                       quarter-hour, every 5m
//!                  H               H               H               heartbeat 12m,7m30s,3m before quarter
//! ```
//! The first cycle of a day starts at midnight in the market's time zone. After a clock change, all cycles are shifted,
//! so a new `Span` begins. If the clocks move by a whole number of cycles, the old span goes on. The due time and the
//! shape of a message are computed from its number, so that no list of messages is stored.
use super::market::{DAY, MarketLoad, MarketShape, QUARTER_HOUR, ShapeTimes};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, tz};
use std::time::Duration;

/// Maximum number of clock changes that the schedule considers: two a year for a century.
const MAX_CLOCK_CHANGES: usize = 200;

#[derive(Debug)]
pub(super) struct ShapeSchedule {
    start: Timestamp,
    time_zone: TimeZone,
    acceleration: u32,
    cycle_ns: i128,
    /// Messages of one cycle in order: nanoseconds since the start of the cycle, and index of the message shape.
    cycle: Vec<(i128, usize)>,
    /// The spans between clock changes in order of time. There is at least one span.
    spans: Vec<Span>,
}

/// Part of the run in which no clock change shifts the cycles. Times are in nanoseconds of the market's time, which are
/// not divided by `acceleration`.
#[derive(Clone, Copy, Debug)]
struct Span {
    first: u64,
    /// Number of messages that are due from `origin_ns` until the span begins. The span does not contain them.
    place: u64,
    /// Time from the start of the run to the start of the cycle during which the span begins. It can be negative.
    origin_ns: i128,
}

impl ShapeSchedule {
    /// Makes the schedule of a run that begins at `start`. Messages that were due before `start`
    /// are left out.
    pub(super) fn new(load: &MarketLoad, start: Timestamp) -> Self {
        let periods = load.shapes.iter().map(|shape| period(shape).as_secs());
        let cycle_s = periods.fold(1, least_common_multiple);
        let mut cycle: Vec<(i128, usize)> = Vec::new();
        for (number, shape) in load.shapes.iter().enumerate() {
            for repetition in 0..cycle_s / period(shape).as_secs() {
                let begin = period(shape) * u32::try_from(repetition).expect("a day has fewer seconds");
                cycle.extend(times(shape).into_iter().map(|time| ((begin + time).as_nanos() as i128, number)));
            }
        }
        // The sort is stable, so shapes that are due at the same time stay in the order in which the user gave them.
        cycle.sort_by_key(|(time, _)| *time);
        let mut schedule = Self {
            start,
            time_zone: load.time_zone.clone(),
            acceleration: load.acceleration,
            cycle_ns: Duration::from_secs(cycle_s).as_nanos() as i128,
            cycle,
            spans: Vec::new(),
        };
        schedule.add_span(0, 0, load.time_zone.to_offset(start));
        for change in load.time_zone.following(start).take(MAX_CLOCK_CHANGES) {
            let at_ns = change.timestamp().as_nanosecond() - start.as_nanosecond();
            let last = schedule.spans[schedule.spans.len() - 1];
            if (schedule.origin_ns(at_ns, change.offset()) - last.origin_ns) % schedule.cycle_ns != 0 {
                let before = schedule.places_before(at_ns - last.origin_ns);
                schedule.add_span(last.first + before.saturating_sub(last.place), at_ns, change.offset());
            }
        }
        schedule
    }

    fn add_span(&mut self, first: u64, at_ns: i128, offset: tz::Offset) {
        let origin_ns = self.origin_ns(at_ns, offset);
        self.spans.push(Span { first, place: self.places_before(at_ns - origin_ns), origin_ns });
    }

    fn origin_ns(&self, at_ns: i128, offset: tz::Offset) -> i128 {
        let local_ns = self.start.as_nanosecond() + at_ns + i128::from(offset.seconds()) * 1_000_000_000;
        at_ns - local_ns.rem_euclid(self.cycle_ns)
    }

    fn places_before(&self, since_ns: i128) -> u64 {
        let within = self.cycle.partition_point(|(time, _)| *time < since_ns % self.cycle_ns);
        (since_ns / self.cycle_ns) as u64 * self.cycle.len() as u64 + within as u64
    }

    /// Returns the due time of a message and the index of its shape. The due time is in nanoseconds of the market's
    /// time since the start of the run, not divided by `acceleration`.
    fn message(&self, sequence: u64) -> (i128, usize) {
        let span = self.spans[self.spans.partition_point(|span| span.first <= sequence) - 1];
        let place = u128::from(span.place) + u128::from(sequence - span.first);
        let each = self.cycle.len() as u128;
        let (within_ns, shape) = self.cycle[(place % each) as usize];
        (span.origin_ns + (place / each) as i128 * self.cycle_ns + within_ns, shape)
    }

    pub(super) fn due(&self, sequence: u64) -> Duration {
        self.in_run(self.message(sequence).0)
    }

    pub(super) fn shape(&self, sequence: u64) -> usize {
        self.message(sequence).1
    }

    /// Returns the number of the quarter-hour in which the message is due. The quarter-hour in
    /// which the run began has the number 0.
    pub(super) fn window(&self, sequence: u64) -> usize {
        let of = |ns: i128| ns.div_euclid(QUARTER_HOUR.as_nanos() as i128);
        let start_ns = self.start.as_nanosecond();
        usize::try_from(of(start_ns + self.message(sequence).0) - of(start_ns)).unwrap_or(usize::MAX)
    }

    /// Returns the start of a quarter-hour as local time of the market (`2026-03-29T03:00:00+02:00`) and as time since
    /// the start of the run. The latter is zero for the quarter-hour in which the run began.
    pub(super) fn window_start(&self, window: usize) -> (String, Duration) {
        let quarter_s = QUARTER_HOUR.as_secs() as i64;
        let second = (self.start.as_second().div_euclid(quarter_s) + window as i64) * quarter_s;
        let begin = Timestamp::from_second(second).unwrap_or(Timestamp::MAX);
        let text = begin.to_zoned(self.time_zone.clone()).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string();
        (text, self.in_run(begin.duration_since(self.start).max(SignedDuration::ZERO).as_nanos()))
    }

    fn in_run(&self, market_ns: i128) -> Duration {
        u64::try_from(market_ns / i128::from(self.acceleration)).map_or(Duration::MAX, Duration::from_nanos)
    }
}

fn period(shape: &MarketShape) -> Duration {
    match shape.times {
        ShapeTimes::Burst(_) | ShapeTimes::BeforeQuarter(_) => QUARTER_HOUR,
        ShapeTimes::Every(time) => time,
    }
}

fn times(shape: &MarketShape) -> Vec<Duration> {
    match &shape.times {
        ShapeTimes::Burst(messages) => vec![Duration::ZERO; *messages as usize],
        ShapeTimes::BeforeQuarter(times) => times.iter().map(|time| QUARTER_HOUR - *time).collect(),
        ShapeTimes::Every(_) => vec![Duration::ZERO],
    }
}

fn least_common_multiple(one: u64, other: u64) -> u64 {
    let (mut divisor, mut rest) = (one, other);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    (one / divisor * other).min(DAY.as_secs())
}

#[cfg(test)]
mod tests {
    use super::super::market::MAX_ACCELERATION;
    use super::*;
    use proptest::prelude::*;

    fn schedule(shapes: &[&str], acceleration: u32, zone: &str, start: &str) -> ShapeSchedule {
        let shapes = shapes.iter().map(|shape| shape.parse().unwrap()).collect();
        let time_zone = TimeZone::posix(zone).unwrap();
        ShapeSchedule::new(&MarketLoad { shapes, acceleration, time_zone }, start.parse().unwrap())
    }

    fn utc(shapes: &[&str], start: &str) -> ShapeSchedule {
        schedule(shapes, 1, "UTC0", start)
    }

    fn seconds(schedule: &ShapeSchedule, count: u64) -> Vec<f64> {
        (0..count).map(|sequence| schedule.due(sequence).as_secs_f64()).collect()
    }

    #[test]
    fn each_shape_has_its_times_by_the_clock() {
        for (shape, start, expected) in [
            ("quarter-hour:2x1", "2026-11-26T09:00:00Z", &[0.0, 0.0, 900.0, 900.0, 1_800.0][..]),
            // The run starts half a second after the burst of 09:00, so its first burst is at 09:15.
            ("quarter-hour:2x1", "2026-11-26T09:00:00.5Z", &[899.5, 899.5, 1_799.5]),
            ("quarter-hour:2x1", "2026-11-26T09:14:59Z", &[1.0, 1.0, 901.0]),
            ("heartbeat 12m,7m30s,3m before quarter", "2026-11-26T09:00:00Z", &[180.0, 450.0, 720.0, 1_080.0]),
            ("heartbeat 3m,12m,7m30s before quarter", "2026-11-26T09:05:00Z", &[150.0, 420.0, 780.0]),
            // At 09:08, the heartbeats 12 and 7.5 min before 09:15 are in the past. The first heartbeat is at 09:18,
            // which is 12 min before 09:30.
            ("heartbeat 12m,7m30s before quarter", "2026-11-26T09:08:00Z", &[600.0, 870.0, 1_500.0]),
            ("heartbeat 15m before quarter", "2026-11-26T09:15:00Z", &[0.0, 900.0]),
            ("heartbeat every 5m", "2026-11-26T09:07:00Z", &[180.0, 480.0, 780.0]),
            ("every 10s", "2026-11-26T09:07:03.25Z", &[6.75, 16.75]),
            ("every 24h", "2026-11-26T09:00:00Z", &[54_000.0, 140_400.0]),
        ] {
            assert_eq!(seconds(&utc(&[shape], start), expected.len() as u64), expected, "{shape} from {start}");
        }
    }

    #[test]
    fn shapes_are_merged_and_those_at_one_time_keep_the_order_of_the_options() {
        let all = ["heartbeat 12m,7m30s,3m before quarter", "quarter-hour:1x9", "heartbeat every 5m"];
        let schedule = utc(&all, "2026-11-26T09:00:00Z");
        assert_eq!(seconds(&schedule, 8), [0.0, 0.0, 180.0, 300.0, 450.0, 600.0, 720.0, 900.0]);
        assert_eq!((0..8).map(|number| schedule.shape(number)).collect::<Vec<_>>(), [1, 2, 0, 2, 0, 2, 0, 1]);
        let later = utc(&all, "2026-11-26T09:06:00Z");
        assert_eq!((0..4).map(|number| later.shape(number)).collect::<Vec<_>>(), [0, 2, 0, 1]);
        assert_eq!((0..7).map(|number| later.window(number)).collect::<Vec<_>>(), [0, 0, 0, 1, 1, 1, 1]);
    }

    #[test]
    fn acceleration_compresses_the_schedule_from_the_start_on() {
        let schedule = schedule(&["quarter-hour:1x1"], 60, "UTC0", "2026-11-26T09:10:00Z");
        assert_eq!(seconds(&schedule, 3), [5.0, 20.0, 35.0]);
        let start = |window| schedule.window_start(window);
        assert_eq!(start(0), ("2026-11-26T09:00:00+00:00".to_owned(), Duration::ZERO));
        assert_eq!(start(1), ("2026-11-26T09:15:00+00:00".to_owned(), Duration::from_secs(5)));
    }

    #[test]
    fn days_begin_at_midnight_of_the_zone_and_clocks_change() {
        const OSLO: &str = "CET-1CEST,M3.5.0,M10.5.0/3";
        let hours = |start: &str, shape: &str, count| {
            seconds(&schedule(&[shape], 1, OSLO, start), count).into_iter().map(|s| s / 3_600.0).collect::<Vec<_>>()
        };
        // The expected times are 00:00, 06:00, 12:00 and 18:00 in Oslo, on days with 23, 24 and 25 hours.
        assert_eq!(hours("2026-03-28T23:00:00Z", "every 6h", 5), [0.0, 5.0, 11.0, 17.0, 23.0]);
        assert_eq!(hours("2026-06-01T22:00:00Z", "every 6h", 5), [0.0, 6.0, 12.0, 18.0, 24.0]);
        assert_eq!(hours("2026-10-24T22:00:00Z", "every 6h", 5), [0.0, 7.0, 13.0, 19.0, 25.0]);
        // When the clocks in Oslo change, 02:00 is skipped in spring and occurs twice in autumn.
        assert_eq!(hours("2026-03-28T23:00:00Z", "every 2h", 4), [0.0, 3.0, 5.0, 7.0]);
        assert_eq!(hours("2026-10-24T22:00:00Z", "every 2h", 5), [0.0, 2.0, 3.0, 5.0, 7.0]);
        // The clocks change by one hour, which is a multiple of this cycle of 15 minutes. So a single span must be
        // enough for the times before and after the change.
        let quarters = schedule(&["every 5m", "quarter-hour:1x1"], 1, OSLO, "2026-03-29T00:50:00Z");
        assert_eq!(seconds(&quarters, 6), [0.0, 300.0, 600.0, 600.0, 900.0, 1_200.0]);
        assert_eq!(quarters.spans.len(), 1);
        let start = |window| quarters.window_start(window).0;
        assert_eq!((start(0), start(1)), ("2026-03-29T01:45:00+01:00".into(), "2026-03-29T03:00:00+02:00".into()));
        let half = schedule(&["every 1h"], 1, "<+0530>-5:30", "2026-11-26T09:00:00Z");
        assert_eq!(seconds(&half, 2), [1_800.0, 5_400.0], "Indian hours begin at half past");
    }

    #[test]
    fn the_schedule_has_no_end() {
        let schedule = utc(&["every 1s"], "2026-11-26T09:00:00Z");
        assert_eq!(schedule.due(1 << 33), Duration::from_secs(1 << 33));
        assert_eq!(schedule.due(u64::MAX), Duration::MAX);
    }

    proptest! {
        #[test]
        fn times_never_go_back_and_each_shape_keeps_its_rate(
            start in 0_i64..2_000_000_000, acceleration in 1..=MAX_ACCELERATION, every in 1_u64..5,
        ) {
            let every = [1_u64, 10, 300, 21_600, 43_200][every as usize];
            let shapes = [&format!("every {every}s"), "heartbeat 12m,3m before quarter", "quarter-hour:3x1"];
            let start = Timestamp::from_second(start).unwrap().to_string();
            let schedule = schedule(&shapes, acceleration, "CET-1CEST,M3.5.0,M10.5.0/3", &start);
            let messages: Vec<(i128, usize)> = (0..2_000).map(|sequence| schedule.message(sequence)).collect();
            prop_assert!(messages.is_sorted_by_key(|(time, _)| *time) && messages[0].0 >= 0);
            let of = |shape: usize| messages.iter().filter(move |(_, of)| *of == shape);
            prop_assert!(of(2).count().abs_diff(of(1).count() * 3 / 2) <= 3);
        }
    }
}
