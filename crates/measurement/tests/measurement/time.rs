//! Tests of the times in records. The runs are simulated with a virtual clock, so the time of each event is known.
use crate::sample;
use mailrun_measurement::merge::merge_records;
use mailrun_measurement::record::{LedgerRow, Record, SeriesRow, StallRow};
use mailrun_measurement::seconds::second_of;
use mailrun_measurement::seeded::SeededRng;
use mailrun_measurement::stalls::{StallDetector, Tick};
use mailrun_measurement::trace::ZeroPhase;
use mailrun_measurement::{LatencyKind, RunId, RunTally, Series, SinkTally, SourceTally, Stage};
use std::time::Duration;

const TICK: Duration = Duration::from_millis(250);
const RUN: RunId = RunId([7; 16]);

/// Times at which a message is due, accepted by the server, and delivered to the sink.
#[derive(Clone, Copy)]
struct Message {
    due: Duration,
    accepted: Duration,
    delivered: Duration,
}

/// An event at a simulated source or sink.
#[derive(Clone, Copy)]
enum Event {
    Due(Duration),
    Accepted {
        due: Duration,
    },
    Delivered {
        due: Duration,
    },
    /// A worker hands over its tally to the collector.
    HandOver,
    /// The collector takes the tallies that were handed over, and evaluates them.
    Tick,
}

/// Returns a random delay of at most `most`.
fn later(rng: &mut SeededRng, most: Duration) -> Duration {
    most.mul_f64(rng.unit())
}

/// A simulated source or sink: the tallies of its workers, and its events. Each event has a time and the index of the
/// worker that counts it.
struct Party<T> {
    workers: Vec<T>,
    events: Vec<(Duration, usize, Event)>,
}

impl<T: Default + Clone> Party<T> {
    fn new(workers: usize) -> Self {
        Self { workers: vec![T::default(); workers], events: Vec::new() }
    }

    /// Returns all events in the order of their times, together with the ticks of the collector and the hand-overs of
    /// each worker. Until shortly after the last event, the collector and each worker have such an event about four
    /// times a second, each at its own moments.
    fn ordered(&self, rng: &mut SeededRng, began: Duration) -> Vec<(Duration, usize, Event)> {
        let mut events = self.events.clone();
        let end = events.iter().map(|(at, ..)| *at).max().unwrap() + 2 * TICK;
        for worker in 0..=self.workers.len() {
            let event = if worker < self.workers.len() { Event::HandOver } else { Event::Tick };
            let mut at = began + later(rng, TICK);
            while at < end + TICK {
                events.push((at, worker, event));
                // An event is due after each `TICK`. As on a busy host, it is late by up to half of this time.
                at += TICK + later(rng, TICK / 2);
            }
        }
        events.sort_by_key(|(at, ..)| *at);
        events
    }
}

/// Returns the record that a source makes of these messages. `zero` is the time at which the load begins.
fn source(rng: &mut SeededRng, zero: Duration, messages: &[Message]) -> Record {
    let mut party: Party<SourceTally> = Party::new(1 + rng.below(4) as usize);
    for message in messages {
        let worker = rng.below(party.workers.len() as u64) as usize;
        party.events.push((message.due, worker, Event::Due(message.due)));
        party.events.push((message.accepted, worker, Event::Accepted { due: message.due }));
    }
    let events = party.ordered(rng, zero);
    let mut series = Series::new(zero);
    let mut stalls = StallDetector::new(Stage::Accepted, zero, zero);
    let mut total = SourceTally::default();
    let mut since_tick = SourceTally::default();
    let mut end = zero;
    for (now, worker, event) in events {
        end = now;
        let mut nothing = SourceTally::default();
        let tally = party.workers.get_mut(worker).unwrap_or(&mut nothing);
        match event {
            Event::Due(due) => {
                tally.created += 1;
                tally.first_due.get_or_insert(due);
                tally.due_seconds.add(due, zero);
                tally.seconds.at(now, zero).sent += 1;
            }
            Event::Accepted { due } => {
                tally.accepted += 1;
                tally.first_reply.get_or_insert(now);
                tally.last_reply = Some(now);
                tally.accept(now - due, now, zero);
            }
            Event::HandOver => {
                tally.flush_times();
                tally.due_seconds.iter().for_each(|(begin, messages)| series.add_created(begin, messages));
                tally.seconds.iter().for_each(|second| series.add(second));
                since_tick.first_due = since_tick.first_due.into_iter().chain(tally.first_due).min();
                since_tick.merge(tally);
                total.merge(tally);
                tally.clear();
            }
            Event::Tick => {
                series.reach(now);
                stalls.add(Tick {
                    now,
                    first: since_tick.first_reply,
                    last: since_tick.last_reply,
                    first_open: since_tick.first_due,
                    open: total.open_messages(),
                    ..Tick::default()
                });
                since_tick = SourceTally::default();
            }
            Event::Delivered { .. } => {}
        }
    }
    assert_eq!(total.accepted, messages.len() as u64, "all was handed over");
    Record { origin_ns: ns(zero), series: series.rows(end), stalls: stalls.rows(), ..sample::source() }
}

/// Returns the record that a sink makes of these messages. The sink was started up to 100 s before the load. The traces
/// in the messages tell it at which fraction of a second each second of the run begins, but not when the load began.
fn sink(rng: &mut SeededRng, zero: Duration, messages: &[Message]) -> Record {
    let began = zero.saturating_sub(later(rng, Duration::from_secs(100)));
    let phase = ZeroPhase::of(zero).time();
    let mut party: Party<SinkTally> = Party::new(1 + rng.below(4) as usize);
    for message in messages {
        let worker = rng.below(party.workers.len() as u64) as usize;
        party.events.push((message.delivered, worker, Event::Delivered { due: message.due }));
    }
    let events = party.ordered(rng, began);
    let mut series = Series::new(second_of(began, phase));
    let end = events.last().unwrap().0;
    for (now, worker, event) in events {
        let Some(tally) = party.workers.get_mut(worker) else { continue };
        let run: &mut RunTally = tally.runs.open(RUN);
        match event {
            Event::Delivered { due } => {
                run.messages += 1;
                let second = run.seconds.at(now, phase);
                second.delivered += 1;
                second.latencies.record(now - due);
                second.arrive(now, due);
            }
            Event::HandOver => {
                run.seconds.iter().for_each(|second| series.add(second));
                run.clear();
            }
            _ => {}
        }
    }
    Record { origin_ns: ns(series.zero()), series: series.rows(end), ..sample::sink() }
}

fn ns(time: Duration) -> u64 {
    time.as_nanos() as u64
}

/// Returns a random time at which a run begins, on a clock that has run for at least 1,000 s.
fn zero(rng: &mut SeededRng) -> Duration {
    ZeroPhase::next_step(Duration::from_secs(1_000) + later(rng, Duration::from_secs(1_000_000)))
}

/// Returns the messages of a load with a constant rate. Each message is accepted after a random time, and delivered a
/// random time later. Both times are at most `most` plus 50 µs.
fn load(rng: &mut SeededRng, zero: Duration, rate: u32, length: Duration, most: Duration) -> Vec<Message> {
    let count = (f64::from(rate) * length.as_secs_f64()) as u32;
    let message = |number| {
        let due = zero + Duration::from_secs(1) * number / rate;
        let accepted = due + Duration::from_micros(50) + later(rng, most);
        Message { due, accepted, delivered: accepted + Duration::from_micros(50) + later(rng, most) }
    };
    (0..count).map(message).collect()
}

fn record(rng: &mut SeededRng, zero: Duration, messages: &[Message]) -> Record {
    let source = source(rng, zero, messages);
    let sink = sink(rng, zero, messages);
    merge_records(source, Some(sink), LedgerRow::default())
}

#[test]
fn a_steady_rate_is_the_same_in_each_second() {
    for seed in 0..20 {
        let rng = &mut SeededRng::new(seed, 1_u64, 0);
        let zero = zero(rng);
        let messages = load(rng, zero, 200, Duration::from_secs(3), Duration::from_micros(50));
        let record = record(rng, zero, &messages);
        let rows: Vec<_> = record
            .series
            .iter()
            .map(|row| (row.second, row.created, row.sent, row.accepted, row.delivered, row.queued))
            .collect();
        assert_eq!(rows, [0, 1, 2].map(|second| (second, 200, 200, 200, 200, 0)), "seed {seed}");
        let oldest: Vec<_> = record.series.iter().map(|row| row.oldest_ms.unwrap()).collect();
        assert!(oldest.iter().all(|ms| (4.9..5.3).contains(ms)), "a message comes each 5 ms: {oldest:?}");
    }
}

#[test]
fn what_is_delivered_was_accepted_before_and_created_before_that() {
    for seed in 0..20 {
        let rng = &mut SeededRng::new(seed, 2_u64, 0);
        let zero = zero(rng);
        let rate = 20 + rng.below(500) as u32;
        let length = Duration::from_millis(500) + later(rng, Duration::from_secs(8));
        let messages = load(rng, zero, rate, length, Duration::from_millis(700));
        let record = record(rng, zero, &messages);
        let mut sums = SeriesRow::default();
        for row in &record.series {
            sums.created += row.created;
            sums.accepted += row.accepted;
            sums.delivered += row.delivered;
            assert!(sums.delivered <= sums.accepted && sums.accepted <= sums.created, "seed {seed}: {row:?}");
            assert_eq!(row.queued, sums.accepted - sums.delivered);
            let end = zero + Duration::from_secs(row.second + 1);
            let until = |read: fn(&Message) -> Duration| messages.iter().filter(|one| read(one) < end).count() as u64;
            let expected = (until(|one| one.due), until(|one| one.accepted), until(|one| one.delivered));
            assert_eq!((sums.created, sums.accepted, sums.delivered), expected, "seed {seed}: {row:?}");
            let slowest = messages.iter().filter(|one| (one.delivered - zero).as_secs() == row.second);
            let slowest_ms = slowest.map(|one| (one.delivered - one.due).as_secs_f64() * 1e3).fold(0.0, f64::max);
            assert!((row.max_ms - slowest_ms).abs() < 0.1 + slowest_ms / 500.0, "seed {seed}: {slowest_ms} {row:?}");
        }
        let all = messages.len() as u64;
        assert_eq!((sums.created, sums.accepted, sums.delivered), (all, all, all));
    }
}

#[test]
fn a_stall_has_its_beginning_and_its_end_to_a_tenth_of_a_second() {
    for seed in 0..20 {
        let rng = &mut SeededRng::new(seed, 3_u64, 0);
        let zero = zero(rng);
        let mut messages = load(rng, zero, 50, Duration::from_secs(12), Duration::from_millis(10));
        let from = zero + Duration::from_millis(500) + later(rng, Duration::from_secs(5));
        let to = from + Duration::from_millis(1_050) + later(rng, Duration::from_secs(4));
        for message in messages.iter_mut().filter(|one| (from..to).contains(&one.accepted)) {
            message.accepted = to + later(rng, Duration::from_millis(30));
        }
        let stalls = source(rng, zero, &messages).stalls;
        let [StallRow { from_s, to_s, to_the_end: false, .. }] = stalls[..] else { panic!("seed {seed}: {stalls:?}") };
        let expected = [from, to].map(|time| (time - zero).as_secs_f64());
        let is_exact = (from_s - expected[0]).abs() < 0.1 && (to_s - expected[1]).abs() < 0.1;
        assert!(is_exact, "seed {seed}: {from_s} to {to_s}, and not {expected:?}");
    }
}

#[test]
fn a_stall_of_an_idle_server_begins_with_the_first_message_that_waits() {
    for seed in 0..20 {
        let rng = &mut SeededRng::new(seed, 4_u64, 0);
        let zero = zero(rng);
        let message = |at: Duration, took: Duration| Message { due: at, accepted: at + took, delivered: at + took };
        let from = zero + Duration::from_secs(3) + later(rng, Duration::from_secs(2));
        let length = Duration::from_millis(1_100) + later(rng, Duration::from_secs(4));
        let messages =
            [message(zero, TICK / 10), message(from, length), message(from + 3 * length, Duration::from_millis(1))];
        let stalls = source(rng, zero, &messages).stalls;
        let [StallRow { from_s, to_s, .. }] = stalls[..] else { panic!("seed {seed}: {stalls:?}") };
        let expected = [from, from + length].map(|time| (time - zero).as_secs_f64());
        assert!((from_s - expected[0]).abs() < 0.1 && (to_s - expected[1]).abs() < 0.1, "{stalls:?} {expected:?}");
    }
}

#[test]
fn times_of_a_message_count_once_in_its_second_and_once_in_all() {
    let mut tally = SourceTally::default();
    let zero = Duration::from_millis(300);
    tally.accept(Duration::from_millis(5), Duration::from_millis(1_299), zero);
    tally.accept(Duration::from_millis(9), Duration::from_millis(1_300), zero);
    tally.time(LatencyKind::Sent, Duration::from_millis(1));
    tally.flush_times();
    let seconds: Vec<_> =
        tally.seconds.iter().map(|second| (second.accepted, second.latencies.summary().unwrap().max.round())).collect();
    assert_eq!(seconds, [(1, 5.0), (1, 9.0)]);
    assert_eq!(tally.accepted_latency.count(), 2);
}
