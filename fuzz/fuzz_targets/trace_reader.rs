//! Any message, whole and cut: the same trace is found. The last octet of the input chooses the cuts.
#![no_main]
#[path = "../../crates/smtp/tests/all/host.rs"]
mod host;

use host::SplitMix64;
use libfuzzer_sys::fuzz_target;
use mailrun_journey::trace::{
    ClockId, RecipientNumbering, RunId, Trace, TraceReader, TraceResult, ZeroPhase, checksum,
};
use std::time::Duration;

fn found(reader: &mut TraceReader, blocks: &[&[u8]]) -> TraceResult {
    blocks.iter().for_each(|block| reader.receive(block));
    reader.finish()
}

fuzz_target!(|data: &[u8]| {
    let Some((&choice, message)) = data.split_last() else { return };
    let mut reader = TraceReader::default();
    let whole = found(&mut reader, &[message]);
    assert_eq!(found(&mut reader, &message.chunks(1).collect::<Vec<_>>()), whole);
    assert_eq!(found(&mut reader, &SplitMix64(u64::from(choice)).cut(message)), whole);
    // The same bytes as the body of a message of our own are intact, and one changed bit is not.
    let mut wire = vec![0; Trace::HEADER_BYTES];
    let run = RunId([choice; 16]);
    let created = Duration::from_nanos(7);
    let trace = Trace {
        run,
        sequence: 3,
        zero: ZeroPhase::default(),
        numbering: RecipientNumbering::TAG,
        created,
        clock: ClockId(9),
        checksum: checksum(message),
    };
    trace.write(&mut wire);
    wire.extend_from_slice(b"\r\n");
    wire.extend_from_slice(message);
    assert_eq!(found(&mut reader, &SplitMix64(u64::from(choice)).cut(&wire)), TraceResult::Intact(trace));
    // So it is when a relay has converted it; what is not 8-bit it leaves.
    let relayed = [b"Received: by a\r\n", wire.as_slice()].concat();
    let converted = mailrun_mime::to_seven_bit(&relayed, "relay.example").expect("a text can be converted");
    let expected = if converted.is_some() { TraceResult::Converted(trace) } else { TraceResult::Intact(trace) };
    let relayed = converted.unwrap_or(relayed);
    assert_eq!(found(&mut reader, &SplitMix64(u64::from(choice)).cut(&relayed)), expected);
    if let Some(last) = wire.last_mut().filter(|_| !message.is_empty()) {
        *last ^= 1;
        assert_eq!(found(&mut reader, &[&wire]), TraceResult::Corrupt(Some(trace)));
    }
});
