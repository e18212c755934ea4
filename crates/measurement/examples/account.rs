//! Passes a hundred messages through a simulated server that loses three, repeats one and damages one, and accounts for
//! all of them. To run the example: `cargo run -p mailrun-measurement --example account`.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]
use mailrun_measurement::{ClockId, Ledger, MarkResult, RunId, Trace, TraceReader, TraceResult, trace};
use std::time::Duration;

const BODY: &[u8] = b"hello\r\n";

/// Returns a message with a trace, by which the receiver recognises it.
fn message(run: RunId, sequence: u64) -> Vec<u8> {
    let clock = ClockId::monotonic("this host");
    let created = Duration::from_micros(sequence);
    let mut header = [0; Trace::HEADER_BYTES];
    Trace {
        run,
        sequence,
        zero: trace::ZeroPhase::default(),
        numbering: trace::RecipientNumbering::SINGLE,
        created,
        clock,
        checksum: trace::checksum(BODY),
    }
    .write(&mut header);
    [&header[..], b"Subject: hello\r\n\r\n", BODY].concat()
}

fn main() {
    let run = RunId([7; 16]);
    let mut accepted = Ledger::default();
    let mut arrived = Ledger::default();
    let mut duplicates = 0;
    let mut corrupt = 0;
    for sequence in 0..100 {
        let mut message = message(run, sequence);
        accepted.mark(sequence, 0);
        let copies = match sequence {
            10 | 20 | 30 => 0,
            40 => 2,
            _ => 1,
        };
        if sequence == 50 {
            message.extend_from_slice(b"An advertisement\r\n");
        }
        for _ in 0..copies {
            let mut reader = TraceReader::default();
            reader.receive(&message);
            match reader.finish() {
                TraceResult::Intact(trace) | TraceResult::Converted(trace) => {
                    duplicates += u64::from(arrived.mark(trace.sequence, 0) == MarkResult::Again);
                }
                TraceResult::Corrupt(_) | TraceResult::Absent => corrupt += 1,
            }
        }
    }
    println!("accepted {}, arrived intact {}", accepted.count(), arrived.count());
    println!("missing or corrupt {}, of these corrupt {corrupt}", accepted.count_without(&arrived));
    println!("duplicates {duplicates}");
}
