//! Property tests of traces, ledgers, records and thresholds. What they check must hold for any input, so the inputs
//! are random.
use crate::sample;
use mailrun_measurement::account::{AccountInputs, Arrivals, RelayInputs, ServerQueue, Topology, fates_sum, reconcile};
use mailrun_measurement::checks;
use mailrun_measurement::judge::{VerdictInputs, judge};
use mailrun_measurement::merge::merge_records;
use mailrun_measurement::record::{DomainRow, ErrorRow, Ordered, Record, SeriesRow, StallRow, Surroundings, WarmUp};
use mailrun_measurement::threshold::{RunProtocol, Threshold};
use mailrun_measurement::trace::{Checksum, MAX_RECIPIENTS, RecipientId, RecipientNumbering, ZeroPhase, checksum};
use mailrun_measurement::{ClockId, Latencies, Ledger, MarkResult, RunId, Stage, Trace, TraceReader, TraceResult};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::Value;
use std::collections::HashSet;
use std::time::Duration;

type LedgerUnit = (u64, u32);

/// Returns a unit for a ledger. Most units come from two small ranges of sequence numbers, so that they often collide.
/// The second range crosses the border between two pages of a ledger, at 32,768. A few units have any
/// sequence number.
fn unit() -> impl Strategy<Value = LedgerUnit> {
    let sequence = prop_oneof![8 => 0..200u64, 4 => 32_700..32_800u64, 1 => any::<u64>()];
    (sequence, prop_oneof![8 => 0..3u32, 1 => 0..MAX_RECIPIENTS])
}

fn ledger(units: &[LedgerUnit]) -> Ledger {
    let mut ledger = Ledger::default();
    units.iter().for_each(|&(sequence, recipient)| _ = ledger.mark(sequence, recipient));
    ledger
}

fn set(units: &[LedgerUnit]) -> HashSet<LedgerUnit> {
    units.iter().copied().collect()
}

prop_compose! {
    fn trace()(run in any::<[u8; 16]>(), sequence in 0..1_u64 << 49, zero in 0..1_000_000_000_u64, bits in 0..33_u32, created in any::<u64>(), clock in any::<u32>(),
        checksum in any::<u32>()) -> Trace
    {
        let numbering = RecipientNumbering::address_bits(bits);
        let zero = ZeroPhase::of(Duration::from_nanos(zero));
        Trace { run: RunId(run), sequence, zero, numbering, created: Duration::from_nanos(created), clock: ClockId(clock), checksum }
    }
}

/// Returns a piece of a message: text that matters to `TraceReader`, such as a trace or an empty line, or random bytes.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(b"\r\n".to_vec()),
        Just(b"X-Mailrun: ".to_vec()),
        Just(b"Subject: x\r\n".to_vec()),
        trace().prop_map(|trace| written(&trace).to_vec()),
        vec(any::<u8>(), 0..150),
    ]
}

fn tag(address: &[u8]) -> u32 {
    RecipientNumbering::TAG.number(RecipientId::new(address))
}

fn written(trace: &Trace) -> [u8; Trace::HEADER_BYTES] {
    let mut header = [0; Trace::HEADER_BYTES];
    trace.write(&mut header);
    header
}

/// Passes a message to `reader` in blocks of the given sizes, and the rest of the message as one block.
fn read(message: &[u8], sizes: &[usize], reader: &mut TraceReader) -> TraceResult {
    let mut rest = message;
    for &size in sizes {
        let (block, after) = rest.split_at(size.min(rest.len()));
        reader.receive(block);
        rest = after;
    }
    reader.receive(rest);
    reader.finish()
}

proptest! {
    /// No number in a record may cause an overflow, because the record may come from another host or from an edited
    /// file.
    #[test]
    fn no_numbers_of_others_overflow(
        numbers in vec(prop_oneof![Just(0), Just(1), Just(u64::MAX), Just(u64::MAX / 2), any::<u64>()], 1..60),
    ) {
        let source = record_of_numbers(&numbers);
        let sink = record_of_numbers(&numbers[numbers.len() / 2..]);
        let ledger = source.ledger.clone();
        let record = merge_records(source, Some(sink), ledger);
        for topology in [Topology::Direct, Topology::Server] {
            for ordered in [None, record.parties.iter().find_map(|party| party.ordered)] {
                judge(&record, &VerdictInputs { topology, ordered, quiet_timeout: None });
            }
        }
        for text in ["lost < 1", "rejected < 1%", "accepted.rate > 1", "delivered.p99 < 1ms"] {
            Threshold::parse(text, RunProtocol::Smtp).unwrap().evaluate(&record);
        }
    }

    #[test]
    fn a_trace_is_read_as_it_was_written(trace in trace()) {
        prop_assert_eq!(Trace::parse(&written(&trace)), Some(trace));
        prop_assert_eq!(trace.run.to_string().parse(), Ok(trace.run));
    }

    #[test]
    fn any_line_is_a_trace_or_none_and_any_address_has_a_number(line in vec(any::<u8>(), 0..200)) {
        checks::trace::check(&line);
    }

    #[test]
    fn one_wrong_octet_is_another_trace_or_none(trace in trace(), at in 0..98usize, octet in any::<u8>()) {
        let mut line = written(&trace);
        prop_assume!(!line[at].eq_ignore_ascii_case(&octet));
        line[at] = octet;
        prop_assert_ne!(Trace::parse(&line), Some(trace));
    }

    #[test]
    fn blocks_of_any_size_give_what_the_whole_gives(
        messages in vec((vec(piece(), 0..8), vec(0..130usize, 0..12)), 1..4)
    ) {
        let mut reader = TraceReader::default();
        for (pieces, sizes) in messages {
            let message = pieces.concat();
            let whole = read(&message, &[], &mut TraceReader::default());
            prop_assert_eq!(read(&message, &sizes, &mut reader), whole);
        }
    }

    #[test]
    fn a_traced_body_is_intact_until_an_octet_changes(body in vec(any::<u8>(), 1..400), choice: u8) {
        checks::trace_reader::check(&[body, vec![choice]].concat());
    }

    #[test]
    fn a_checksum_in_blocks_is_that_of_the_whole(blocks in vec(vec(any::<u8>(), 0..700), 0..5)) {
        let mut summed = Checksum::default();
        blocks.iter().for_each(|block| summed.update(block));
        prop_assert_eq!(summed.value(), checksum(&blocks.concat()));
    }

    #[test]
    fn a_numbered_recipient_is_told_from_all_others(number in 0..MAX_RECIPIENTS, name in "[a-z.+=-]{1,20}") {
        let address = format!("{name}{number}@host7.example");
        prop_assert_eq!(tag(address.as_bytes()), number);
        let padded = format!("{name}{number:04}@host7.example");
        prop_assert_eq!(tag(padded.as_bytes()), number);
    }

    #[test]
    fn a_ledger_is_a_set(units in vec(unit(), 0..300), probes in vec(unit(), 0..50)) {
        let mut model = HashSet::new();
        let mut ledger = Ledger::default();
        for &(sequence, recipient) in &units {
            let expected = if model.insert((sequence, recipient)) { MarkResult::First } else { MarkResult::Again };
            prop_assert_eq!(ledger.mark(sequence, recipient), expected);
        }
        prop_assert_eq!(ledger.count(), model.len() as u64);
        for &(sequence, recipient) in units.iter().chain(&probes) {
            prop_assert_eq!(ledger.contains(sequence, recipient), model.contains(&(sequence, recipient)));
        }
    }

    #[test]
    fn ledgers_are_merged_and_compared_as_sets(ours in vec(unit(), 0..200), theirs in vec(unit(), 0..200)) {
        let mut merged = ledger(&ours);
        let other = ledger(&theirs);
        let ours = set(&ours);
        let theirs = set(&theirs);
        prop_assert_eq!(merged.count_without(&other), ours.difference(&theirs).count() as u64);
        prop_assert_eq!(merged.merge(&other).again, ours.intersection(&theirs).count() as u64);
        prop_assert_eq!(merged.count(), ours.union(&theirs).count() as u64);
        prop_assert_eq!(other.count_without(&merged), 0);
    }

    #[test]
    fn a_ledger_is_read_as_it_was_written(units in vec(unit(), 0..100)) {
        let ledger = ledger(&units);
        let mut bytes = Vec::new();
        ledger.write_to(&mut bytes).unwrap();
        let read = Ledger::read_from(bytes.as_slice()).unwrap();
        prop_assert_eq!((read.count(), read.count_without(&ledger)), (ledger.count(), 0));
    }

    /// `reconcile`, which compares sets of units, must count the same fates as a model that assigns a fate to one unit
    /// at a time. The source counts each unit as accepted, rejected, failed, open or in doubt. In each of these cases,
    /// the unit may have arrived at the sink, or may be in the relay's queue.
    #[test]
    fn the_fates_of_any_run_are_those_of_its_units(
        units in vec((0..5u8, any::<bool>(), any::<bool>(), any::<bool>()), 0..300), given_up in 0..20u64
    ) {
        let [mut accepted, mut arrived, mut bounced, mut queued] = [(); 4].map(|()| Ledger::default());
        let mut counted = [0_u64; 5];
        let mut model = FateModel::default();
        for (sequence, &(outcome, arrives, bounces, is_queued)) in (0u64..).zip(&units) {
            // A server does not send bounces for mail that it rejected.
            let bounces = bounces && outcome != 1;
            counted[usize::from(outcome)] += 1;
            if outcome == 0 {
                accepted.mark(sequence, 0);
            }
            if arrives {
                arrived.mark(sequence, 0);
            }
            if bounces {
                bounced.mark(sequence, 0);
            }
            if is_queued {
                queued.mark(sequence, 0);
            }
            model.add(outcome, arrives, bounces, is_queued);
        }
        let [_, rejected, failed, open, in_doubt] = counted;
        let recipients_created = units.len() as u64;
        let overflow = 0;
        let alone = AccountInputs { recipients_created, accepted: &accepted, rejected, failed, in_doubt, has_reply_for_each: false, open, overflow, arrivals: None, queue: ServerQueue::Unknown };
        prop_assert!(fates_sum(&reconcile(alone)));
        let arrivals =
            Arrivals { units: &arrived, bounced: &bounced, delay_notices: 0, repeated_notices: 0, rewritten: 0, copied: 0, duplicates: 0, corrupt: Some(0), converted: 0, foreign: 0, untimed: 0, negative: 0, overflow: 0 };
        let watched = AccountInputs { arrivals: Some(arrivals), queue: ServerQueue::Known(RelayInputs { queued: &queued, given_up }), ..alone };
        let row = reconcile(watched);
        prop_assert!(fates_sum(&row), "{row:?}");
        let expired = given_up.saturating_sub(model.bounced).min(model.missing);
        let found = (row.delivered, row.bounced, row.queued);
        prop_assert_eq!(found, (Some(model.delivered), Some(model.bounced), Some(model.queued)));
        prop_assert_eq!((row.expired, row.lost), (Some(expired), Some(model.missing - expired)));
        // The source does not know which of the units without a 250 arrived. So check only the sum of their fates.
        let unheard: u64 = [row.rejected, row.failed, row.in_doubt, row.in_flight].into_iter().flatten().sum();
        prop_assert_eq!(unheard, model.nowhere);
        let no_more_than = [(row.rejected, rejected), (row.failed, failed), (row.in_doubt, in_doubt), (row.in_flight, open)];
        prop_assert!(no_more_than.into_iter().all(|(fate, counted)| fate.unwrap() <= counted));
        // If the source counts one created unit too few, the fates must not add up to the number of created units.
        if accepted.count() > 0 {
            let short = reconcile(AccountInputs { recipients_created: recipients_created - 1, ..watched });
            prop_assert!(!fates_sum(&short));
        }
    }

    /// Freshness, the share of time in which the newest message is younger than a limit, must be from 0 to 100 %, and
    /// must not fall if the limit rises. The windows in which it is computed must cover the load without a gap.
    #[test]
    fn freshness_is_a_share_that_grows_with_the_limit(
        seconds in vec((0..3u64, proptest::option::of(0.0..100e3_f64)), 1..100), age in 1..100u64, window in 1..50u64
    ) {
        let mut record = sample::run();
        let row = |(second, (created, oldest_ms)): (usize, &(u64, Option<f64>))| SeriesRow {
            second: second as u64, created: *created, oldest_ms: *oldest_ms, ..SeriesRow::default()
        };
        record.series = seconds.iter().enumerate().map(row).collect();
        record.ledger.delivered = Some(0);
        record.offered_s = None;
        let row = |age: u64| {
            let text = format!("fresh({age}s) per {window}s >= 98%");
            Threshold::parse(&text, RunProtocol::Smtp).unwrap().evaluate(&record)
        };
        let short = row(age);
        let long = row(age + 1);
        let due = |(created, _): &(u64, Option<f64>)| *created > 0;
        let first = seconds.iter().position(due);
        let length = first.map_or(0, |first| seconds.iter().rposition(due).unwrap() - first + 1);
        prop_assert_eq!(short.value.is_some(), length as u64 >= window);
        prop_assert!(short.value <= long.value, "{:?} {:?}", short, long);
        prop_assert!(short.value.is_none_or(|value| (0.0..=100.0).contains(&value)));
        prop_assert!(short.windows.windows(2).all(|pair| pair[0].to_s == pair[1].from_s));
        let created: u64 = seconds.iter().map(|(created, _)| created).sum();
        let judged = if short.value.is_some() { created } else { 0 };
        prop_assert_eq!(short.windows.iter().map(|window| window.created).sum::<u64>(), judged);
    }

    /// Thresholds in a valid form must be accepted, and their values must match the latencies that were recorded.
    #[test]
    fn thresholds_measure_what_was_timed(
        times in vec(1..10_000u64, 1..200), created in 0..300u64, percent in 1..100u32, limit in 1..20_000u64
    ) {
        let mut latencies = Latencies::default();
        times.iter().for_each(|ms| latencies.record(Duration::from_millis(*ms)));
        let created = created.max(times.len() as u64);
        let mut record = sample::run();
        record.stages.iter_mut().for_each(|row| row.count = created);
        let row = record.stages.iter_mut().find(|row| row.name == Stage::Accepted).unwrap();
        (row.count, row.histogram) = (times.len() as u64, latencies.encoded());
        let value = |expression: String| {
            let threshold = Threshold::parse(&expression, RunProtocol::Smtp).unwrap_or_else(|why| panic!("{expression}: {why}"));
            threshold.evaluate(&record)
        };
        let within = value(format!("accepted.within({limit}ms) >= {percent}%"));
        let in_time = times.iter().filter(|ms| **ms <= limit).count() as f64 * 100.0 / created as f64;
        // The histogram keeps only three digits. A time that differs from the limit by at most 1/500 may therefore
        // count as in time or as late.
        let near = times.iter().filter(|ms| ms.abs_diff(limit) * 500 <= limit).count() as f64 * 100.0 / created as f64;
        prop_assert!((within.value.unwrap() - in_time).abs() <= near + 1e-9, "{within:?} {in_time}");
        prop_assert_eq!(within.passed, within.value.unwrap() >= f64::from(percent));
        let quantile = value(format!("accepted.p{percent:02} < {limit}ms"));
        let mut sorted = times.clone();
        sorted.sort_unstable();
        let place = ((f64::from(percent) / 100.0 * created as f64).ceil() as usize).max(1);
        // `place` is computed in floating point and may be off by one. So accept the times before and after it as well.
        let near = &sorted[(place - 1).saturating_sub(1).min(times.len())..(place + 1).min(times.len())];
        match quantile.value {
            Some(value) => {
                let is_near = |expected: &u64| (value - *expected as f64).abs() <= *expected as f64 * 0.002 + 0.01;
                prop_assert!(near.iter().any(is_near), "{quantile:?} {near:?}");
                prop_assert!((quantile.margin.unwrap() - (limit as f64 - value)).abs() < 1e-9);
            }
            None => prop_assert!(quantile.missed && place + 1 > times.len(), "{quantile:?} {place} of {}", times.len()),
        }
        prop_assert_eq!(value(format!("accepted.count >= {created}")).passed, times.len() as u64 >= created);
    }
}

/// Returns a record with rows of many kinds, whose whole numbers are taken from `numbers` in turn.
fn record_of_numbers(numbers: &[u64]) -> Record {
    let mut record = sample::run();
    record.series = vec![sample::second(0), sample::second(1)];
    record.domains = ["a", "b"].map(|domain| DomainRow { domain: domain.to_owned(), ..DomainRow::default() }).to_vec();
    record.errors = vec![ErrorRow::default()];
    record.stalls = vec![StallRow { to_the_end: true, failed: 1, ..StallRow::default() }];
    record.surroundings = Some(Surroundings { listen_drops: Some(1), syn_drops: Some(1), ..Surroundings::default() });
    record.warm_up = Some(WarmUp::default());
    record.parties[1].ordered = Some(Ordered::default());
    for units in [&mut record.ledger.expired, &mut record.ledger.queued, &mut record.ledger.in_flight] {
        *units = Some(0);
    }
    let mut next = numbers.iter().copied().cycle();
    let mut json = serde_json::to_value(&record).unwrap();
    set_numbers(&mut json, &mut next);
    serde_json::from_value(json).unwrap()
}

/// Replaces all whole numbers in a record. Leaves out fields of less than 64 bits, because they could not hold the new
/// numbers.
fn set_numbers(json: &mut Value, next: &mut impl Iterator<Item = u64>) {
    match json {
        Value::Object(fields) => {
            let is_wide = |name: &str| !["recipients", "sessions", "workers", "cores", "code"].contains(&name);
            fields.iter_mut().filter(|(name, _)| is_wide(name)).for_each(|(_, value)| set_numbers(value, next));
        }
        Value::Array(values) => values.iter_mut().for_each(|value| set_numbers(value, next)),
        Value::Number(number) if number.is_u64() => *json = next.next().expect("a cycle").into(),
        _ => {}
    }
}

#[derive(Default)]
struct FateModel {
    delivered: u64,
    bounced: u64,
    queued: u64,
    /// Number of accepted units that were neither delivered nor bounced nor queued.
    missing: u64,
    /// Number of units that were not accepted, and neither delivered nor bounced nor queued.
    nowhere: u64,
}

impl FateModel {
    fn add(&mut self, outcome: u8, arrives: bool, bounces: bool, is_queued: bool) {
        *match (outcome, arrives, bounces, is_queued) {
            (_, true, _, _) => &mut self.delivered,
            (_, false, true, _) => &mut self.bounced,
            (_, false, false, true) => &mut self.queued,
            (0, false, false, false) => &mut self.missing,
            (_, false, false, false) => &mut self.nowhere,
        } += 1;
    }
}
