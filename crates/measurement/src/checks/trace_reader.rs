//! Checks that a `TraceReader` finds the same trace whether it receives a message at once or in blocks. The last octet
//! of the input seeds the sizes of the blocks.
use crate::seeded::SeededRng;
use crate::trace::{ClockId, RecipientNumbering, RunId, Trace, TraceReader, TraceResult, ZeroPhase, checksum};
use std::time::Duration;

fn cut(choice: u8, mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut random = SeededRng::new(choice.into(), 0_u64, 0);
    let mut blocks = Vec::new();
    while !bytes.is_empty() {
        let most = if random.below(4) == 0 { 200 } else { 6 };
        let (block, after) = bytes.split_at(bytes.len().min(1 + random.below(most) as usize));
        blocks.push(block);
        bytes = after;
    }
    blocks
}

fn found(reader: &mut TraceReader, blocks: &[&[u8]]) -> TraceResult {
    blocks.iter().for_each(|block| reader.receive(block));
    reader.finish()
}

pub fn check(data: &[u8]) {
    let Some((&choice, message)) = data.split_last() else { return };
    let mut reader = TraceReader::default();
    let whole = found(&mut reader, &[message]);
    assert_eq!(found(&mut reader, &message.chunks(1).collect::<Vec<_>>()), whole);
    assert_eq!(found(&mut reader, &cut(choice, message)), whole);
    // Build a message with a trace field and the fuzzer's bytes as its body. The reader must report this message as
    // intact, and as corrupt if a bit of the body is changed.
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
    assert_eq!(found(&mut reader, &cut(choice, &wire)), TraceResult::Intact(trace));
    // If a relay converts the message to 7-bit, the reader must report the trace as `Converted`. If the message is
    // 7-bit already, `to_seven_bit` returns `None`, and the reader must report the trace as `Intact`.
    let relayed = [b"Received: by a\r\n", wire.as_slice()].concat();
    let converted = mailrun_mime::to_seven_bit(&relayed, "relay.example").expect("a text can be converted");
    let expected = if converted.is_some() { TraceResult::Converted(trace) } else { TraceResult::Intact(trace) };
    let relayed = converted.unwrap_or(relayed);
    assert_eq!(found(&mut reader, &cut(choice, &relayed)), expected);
    if !message.is_empty() {
        let first = wire.len() - message.len();
        wire[first + usize::from(choice) % message.len()] ^= 1 << (choice % 8);
        assert_eq!(found(&mut reader, &[&wire]), TraceResult::Corrupt(Some(trace)));
    }
}
