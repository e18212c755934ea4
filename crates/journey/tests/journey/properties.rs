//! Properties: what holds for every input, not just for the examples.
use journey::account::{Arrivals, Books, fates_sum, settle};
use journey::trace::{Checksum, MAX_RECIPIENTS, checksum, recipient_number};
use journey::{ClockId, Found, Ledger, Mark, RunId, Trace, TraceReader};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::HashSet;
use std::time::Duration;

type Unit = (u64, u32);

/// Units that collide often, on few pages and at page borders, and some from anywhere.
fn unit() -> impl Strategy<Value = Unit> {
    let sequence = prop_oneof![8 => 0..200u64, 4 => 32_700..32_800u64, 1 => any::<u64>()];
    (sequence, prop_oneof![8 => 0..3u32, 1 => 0..MAX_RECIPIENTS])
}

fn ledger(units: &[Unit]) -> Ledger {
    let mut ledger = Ledger::default();
    units.iter().for_each(|&(sequence, recipient)| _ = ledger.mark(sequence, recipient));
    ledger
}

fn set(units: &[Unit]) -> HashSet<Unit> {
    units.iter().copied().collect()
}

prop_compose! {
    fn trace()(run in any::<[u8; 16]>(), sequence in any::<u64>(), created in any::<u64>(), clock in any::<u32>(),
        checksum in any::<u32>()) -> Trace
    {
        Trace { run: RunId(run), sequence, created: Duration::from_nanos(created), clock: ClockId(clock), checksum }
    }
}

/// A piece of a message: what matters to the reader, and noise.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(b"\r\n".to_vec()),
        Just(b"X-Mailrun: ".to_vec()),
        Just(b"Subject: x\r\n".to_vec()),
        trace().prop_map(|trace| written(&trace).to_vec()),
        vec(any::<u8>(), 0..150),
    ]
}

fn written(trace: &Trace) -> [u8; Trace::HEADER_BYTES] {
    let mut header = [0; Trace::HEADER_BYTES];
    trace.write(&mut header);
    header
}

/// Reads a message in blocks of the given sizes and what is left in one.
fn read(message: &[u8], sizes: &[usize], reader: &mut TraceReader) -> Found {
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
    #[test]
    fn a_trace_is_read_as_it_was_written(trace in trace()) {
        prop_assert_eq!(Trace::parse(&written(&trace)), Some(trace));
        prop_assert_eq!(trace.run.to_string().parse(), Ok(trace.run));
    }

    #[test]
    fn no_line_makes_the_parser_panic(line in vec(any::<u8>(), 0..200)) {
        prop_assert_eq!(Trace::parse(&line), None);
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
    fn a_traced_body_is_intact_until_an_octet_changes(
        mut trace in trace(), body in vec(any::<u8>(), 1..400), at in any::<prop::sample::Index>(), flip in 1..=255u8
    ) {
        trace.checksum = checksum(&body);
        let mut message = [written(&trace).as_slice(), b"To: x\r\n\r\n", &body].concat();
        prop_assert_eq!(read(&message, &[], &mut TraceReader::default()), Found::Intact(trace));
        let first = message.len() - body.len();
        message[first + at.index(body.len())] ^= flip;
        prop_assert_eq!(read(&message, &[], &mut TraceReader::default()), Found::Corrupt(Some(trace)));
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
        prop_assert_eq!(recipient_number(address.as_bytes()), number);
        let padded = format!("{name}{number:04}@host7.example");
        prop_assert_eq!(recipient_number(padded.as_bytes()), number);
    }

    #[test]
    fn any_address_has_a_number_in_range(address in vec(any::<u8>(), 0..40)) {
        prop_assert!(recipient_number(&address) < MAX_RECIPIENTS);
    }

    #[test]
    fn a_ledger_is_a_set(units in vec(unit(), 0..300), probes in vec(unit(), 0..50)) {
        let (mut model, mut ledger) = (HashSet::new(), Ledger::default());
        for &(sequence, recipient) in &units {
            let expected = if model.insert((sequence, recipient)) { Mark::First } else { Mark::Again };
            prop_assert_eq!(ledger.mark(sequence, recipient), expected);
        }
        prop_assert_eq!(ledger.count(), model.len() as u64);
        for &(sequence, recipient) in units.iter().chain(&probes) {
            prop_assert_eq!(ledger.contains(sequence, recipient), model.contains(&(sequence, recipient)));
        }
    }

    #[test]
    fn ledgers_are_merged_and_compared_as_sets(ours in vec(unit(), 0..200), theirs in vec(unit(), 0..200)) {
        let (mut merged, other) = (ledger(&ours), ledger(&theirs));
        let (ours, theirs) = (set(&ours), set(&theirs));
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

    #[test]
    fn no_bytes_make_the_ledgers_reader_panic(bytes in vec(any::<u8>(), 0..100)) {
        let _ = Ledger::read_from([b"MRLEDGR1".as_slice(), &bytes].concat().as_slice());
    }

    /// Each unit is refused, accepted or left open, and arrives or does not, whatever the source heard.
    #[test]
    fn the_fates_of_any_run_sum_to_what_was_created(fates in vec((0..3u8, any::<bool>()), 0..300)) {
        let (mut accepted, mut arrived) = (Ledger::default(), Ledger::default());
        let mut open = 0;
        for (sequence, &(outcome, arrives)) in (0u64..).zip(&fates) {
            match outcome {
                0 => _ = accepted.mark(sequence, 0),
                1 => open += 1,
                _ => {}
            }
            if arrives {
                arrived.mark(sequence, 0);
            }
        }
        let arrivals =
            Arrivals { units: &arrived, duplicates: 0, corrupt: 0, converted: 0, foreign: 0, untimed: 0, overflow: 0 };
        for arrivals in [Some(arrivals), None] {
            let created = fates.len() as u64;
            let row = settle(Books { recipients_created: created, accepted: &accepted, arrivals, open, overflow: 0 });
            prop_assert!(fates_sum(&row), "{row:?}");
        }
    }
}
