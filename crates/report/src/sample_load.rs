//! Simulates each message of a sample run. All figures of the run are computed from these messages, so the figures are
//! consistent.
use mailrun_measurement::Latencies;
use mailrun_measurement::record::{SeriesRow, SlowMessage, SlowPhase};
use mailrun_measurement::stage::Phase;
use std::ops::Range;
use std::time::Duration;

pub(crate) const RATE: u64 = 1_000;
/// Maximum number of messages that the server accepts per second while it catches up.
const MAX_RATE: u64 = 1_600;
/// Each message is sent after 40 % of its service time, accepted after 70 %, and delivered at the end.
const SENT_SHARE: f64 = 0.4;
const ACCEPTED_SHARE: f64 = 0.7;
/// In a run longer than this many seconds, only one message in ten is timed, so that the tests stay fast.
const LONG_RUN_S: u64 = 600;
const SLOWEST: usize = 50;

#[derive(Clone, Debug, Default)]
pub(crate) struct SampleTrouble {
    /// Seconds of the run in which the server accepts nothing.
    pub(crate) stall: Range<u64>,
    pub(crate) rejected_per_s: u64,
    /// Number of messages that fail because their connection breaks. This happens one second after the stall began.
    pub(crate) failed: u64,
    pub(crate) lost: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct SampleLoad {
    pub(crate) trouble: SampleTrouble,
    /// Only messages whose number is a multiple of this are timed. In long runs, timing every message would slow down
    /// the tests.
    timed_interval: u64,
    pub(crate) series: Vec<SeriesRow>,
    pub(crate) sent: Latencies,
    pub(crate) accepted: Latencies,
    /// Latencies from the moment when a session began to send a message until the server accepted the message.
    pub(crate) accepted_service: Latencies,
    pub(crate) delivered: Latencies,
    /// Messages with the longest latencies to acceptance, slowest first.
    pub(crate) slowest: Vec<SlowMessage>,
}

#[derive(Clone, Copy, Debug)]
struct SampleMessage {
    number: u64,
    due_s: f64,
    /// Time in milliseconds for which the message waited for a session, because the server stalled.
    waited_ms: f64,
    /// Time in milliseconds from the moment when a session began the message until the sink received it.
    service_ms: f64,
}

impl SampleMessage {
    fn at(&self, share: f64) -> Duration {
        Duration::from_nanos(((self.waited_ms + self.service_ms * share) * 1e6) as u64)
    }
}

impl SampleLoad {
    /// Simulates `length` seconds of load. All service times are multiplied by `pace`. For example, with a pace of
    /// 0.75, each message takes a quarter less time.
    pub(crate) fn new(length: u64, pace: f64, trouble: SampleTrouble) -> Self {
        let mut load = Self {
            series: counts(length, &trouble),
            trouble,
            timed_interval: if length > LONG_RUN_S { 10 } else { 1 },
            sent: Latencies::default(),
            accepted: Latencies::default(),
            accepted_service: Latencies::default(),
            delivered: Latencies::default(),
            slowest: Vec::new(),
        };
        let due: Vec<u64> = load.series.iter().map(|row| row.created - row.errors).collect();
        let mut slowest = Vec::new();
        let mut queue = DueQueue { due, second: 0, before: 0, taken: 0 };
        for second in 0..length {
            load.add_second(second, pace, &mut queue, &mut slowest);
        }
        load.slowest = slowest.iter().map(slow_message).collect();
        load
    }

    pub(crate) fn sum(&self, count: impl Fn(&SeriesRow) -> u64) -> u64 {
        self.series.iter().map(count).sum()
    }

    /// Computes the latencies of the messages that the server accepts in this second, in the order in which they were
    /// due.
    fn add_second(&mut self, second: u64, pace: f64, queue: &mut DueQueue, slowest: &mut Vec<SampleMessage>) {
        let row = &mut self.series[second as usize];
        let busy = row.created as f64 / RATE as f64;
        let mut times = Latencies::default();
        for index in 0..row.accepted {
            let (number, due_s) = queue.take();
            if !number.is_multiple_of(self.timed_interval) {
                continue;
            }
            let began_s = second as f64 + index as f64 / row.accepted as f64;
            let message = SampleMessage {
                number,
                due_s,
                waited_ms: ((began_s - due_s) * 1e3).max(0.0),
                service_ms: pace * quantile_ms(busy, noise(number) % 100_000),
            };
            self.sent.record(message.at(SENT_SHARE));
            self.accepted.record(message.at(ACCEPTED_SHARE));
            self.accepted_service.record(SampleMessage { waited_ms: 0.0, ..message }.at(ACCEPTED_SHARE));
            times.record(message.at(1.0));
            slowest.push(message);
        }
        // These percentiles include the lost messages, which are too few to change them.
        row.p50_ms = times.quantile_ms(0.5);
        row.p95_ms = times.quantile_ms(0.95);
        row.p99_ms = times.quantile_ms(0.99);
        row.p999_ms = times.quantile_ms(0.999);
        row.max_ms = times.quantile_ms(1.0);
        self.delivered.merge(&times);
        slowest.sort_by_key(|message| std::cmp::Reverse(message.at(ACCEPTED_SHARE)));
        slowest.truncate(SLOWEST);
    }
}

struct DueQueue {
    due: Vec<u64>,
    second: usize,
    before: u64,
    taken: u64,
}

impl DueQueue {
    /// Returns the number of the next message, and the time in seconds at which it was due.
    fn take(&mut self) -> (u64, f64) {
        while self.second + 1 < self.due.len() && self.taken >= self.before + self.due[self.second] {
            self.before += self.due[self.second];
            self.second += 1;
        }
        let share = (self.taken - self.before) as f64 / self.due[self.second].max(1) as f64;
        self.taken += 1;
        (self.taken, self.second as f64 + share)
    }
}

fn counts(length: u64, trouble: &SampleTrouble) -> Vec<SeriesRow> {
    let mut waiting = 0;
    let mut queued = 0;
    let mut rows = Vec::new();
    for second in 0..length {
        let is_stalled = trouble.stall.contains(&second);
        let is_last = second + 1 == length;
        // The load varies, but its average must be exactly `RATE` messages per second. So if an even second has ten
        // messages more than `RATE`, the next second has ten messages less.
        let difference = if length % 2 == 1 && is_last { 0 } else { noise(second / 2) % 200 };
        let created = if second % 2 == 0 { RATE + difference } else { RATE - difference };
        let failed = if trouble.stall.start + 1 == second { trouble.failed } else { 0 };
        let errors = if is_stalled { trouble.rejected_per_s + failed } else { 0 };
        waiting += created - errors;
        let accepted = if is_stalled { 0 } else { waiting.min(MAX_RATE.max(created)) };
        waiting -= accepted;
        let in_queue = queued + accepted;
        queued = if is_last { 0 } else { in_queue.min(40 + noise(second + 4) % 200) };
        let lost = if is_last { trouble.lost } else { 0 };
        rows.push(SeriesRow {
            second,
            created,
            sent: accepted,
            accepted,
            delivered: in_queue - queued - lost,
            queued,
            errors,
            ..SeriesRow::default()
        });
    }
    rows
}

/// Returns the time, in milliseconds, within which `rank` of 100,000 messages are delivered. `busy` is the load as a
/// multiple of the usual load. A higher load makes all but the fastest messages slower.
fn quantile_ms(busy: f64, rank: u64) -> f64 {
    let curve = [
        (0.0, 0.3),
        (50_000.0, busy * 1.4),
        (95_000.0, busy.powi(3) * 6.2),
        (99_000.0, busy.powi(4) * 12.0),
        (99_900.0, busy.powi(4) * 31.0),
        (100_000.0, busy.powi(4) * 44.0),
    ];
    let rank = rank as f64;
    let next = curve.iter().position(|(end, _)| rank < *end).unwrap_or(curve.len() - 1).max(1);
    let (from, low) = curve[next - 1];
    let (to, high) = curve[next];
    low * (high / low).powf((rank - from) / (to - from))
}

fn slow_message(message: &SampleMessage) -> SlowMessage {
    let phase = |name, share: f64| SlowPhase { name, ms: message.service_ms * ACCEPTED_SHARE * share };
    let number = message.number;
    SlowMessage {
        message: number,
        created_s: message.due_s,
        accepted_ms: Some(message.at(ACCEPTED_SHARE).as_secs_f64() * 1e3),
        delivered_ms: Some(message.at(1.0).as_secs_f64() * 1e3),
        waited_ms: message.waited_ms,
        phases: vec![
            phase(Phase::Mail, 0.04),
            phase(Phase::Rcpt, 0.16),
            phase(Phase::Data, 0.04),
            phase(Phase::Body, 0.01),
            phase(Phase::Reply, 0.75),
        ],
        recipients: vec![format!("user-{number}@example.com")],
        recipient_count: 1,
        bytes: 400,
        reply: Some(format!("250 2.0.0 Ok: queued as {number:X}")),
    }
}

/// Returns a pseudo-random number (SplitMix64). The same seed always gives the same number, so the samples never
/// change.
pub(crate) fn noise(seed: u64) -> u64 {
    let mixed = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ (mixed >> 27)) >> 16
}
