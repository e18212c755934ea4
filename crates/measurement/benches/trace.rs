//! Measures the cost of a trace: the checksum of small and large bodies, patching the trace header for the next
//! message, and finding and verifying the trace in a message.
#![allow(clippy::print_stdout)]
use mailrun_measurement::trace::{Checksum, RecipientNumbering, ZeroPhase, checksum};
use mailrun_measurement::{ClockId, RunId, Trace, TraceReader, TraceResult};
use std::hint::black_box;
use std::time::{Duration, Instant};

fn main() {
    let large = vec![b'x'; 10_000_000];
    let took = time(200, || black_box(checksum(black_box(&large))));
    println!("checksum: 10 MB at {:.1} GB/s", large.len() as f64 / took);
    let took = time(200, || large.chunks(131_072).for_each(|block| _ = black_box(in_blocks(black_box(block)))));
    println!("checksum: 10 MB in blocks of 128 KB at {:.1} GB/s", large.len() as f64 / took);
    let small = vec![b'x'; 300];
    println!("checksum: 300 bytes in {:.1} ns", time(5_000_000, || black_box(checksum(black_box(&small)))));
    println!(
        "checksum: 300 bytes, in blocks, in {:.1} ns",
        time(5_000_000, || black_box(in_blocks(black_box(&small))))
    );

    let mut message = message(&small);
    let took =
        time(5_000_000, || Trace::patch(black_box(&mut message), ZeroPhase::default(), 7, Duration::from_nanos(7)));
    println!("patch: {took:.1} ns");
    let mut reader = TraceReader::default();
    let took = time(5_000_000, || {
        reader.receive(black_box(&message));
        assert!(matches!(reader.finish(), TraceResult::Intact(_)));
    });
    println!("find and verify in a message of {} bytes: {took:.1} ns", message.len());
}

fn in_blocks(block: &[u8]) -> u32 {
    let mut checksum = Checksum::default();
    checksum.update(block);
    checksum.value()
}

fn message(body: &[u8]) -> Vec<u8> {
    let clock = ClockId::monotonic("boot");
    let trace = Trace {
        run: RunId([1; 16]),
        sequence: 1,
        zero: ZeroPhase::default(),
        numbering: RecipientNumbering::TAG,
        created: Duration::ZERO,
        clock,
        checksum: checksum(body),
    };
    let mut message = vec![0; Trace::HEADER_BYTES];
    trace.write(&mut message);
    message.extend_from_slice(b"From: <a@example.com>\r\nTo: <b@example.com>\r\nSubject: x\r\n\r\n");
    message.extend_from_slice(body);
    message
}

/// Returns the mean time of a call in nanoseconds.
fn time<T>(calls: u32, mut call: impl FnMut() -> T) -> f64 {
    let start = Instant::now();
    for _ in 0..calls {
        black_box(call());
    }
    start.elapsed().as_secs_f64() * 1e9 / f64::from(calls)
}
