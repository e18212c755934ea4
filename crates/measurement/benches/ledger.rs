//! Marks the units (message-recipient pairs) of 100 million messages in a ledger, and reports the time and the memory.
//! Fails if the ledger takes 32 MiB of memory or more.
//!
//! The sequence numbers arrive as they would from 100 sessions at once, nearly in order: each session is a little ahead
//! of or behind the others.
#![allow(clippy::print_stdout)]
use mailrun_measurement::{Ledger, MarkResult};
use std::process::ExitCode;
use std::time::Instant;

const UNITS: u64 = 100_000_000;
const SESSIONS: u64 = 100;
const LIMIT_BYTES: u64 = 32 << 20;

fn main() -> ExitCode {
    let before = resident_bytes();
    let mut ledger = Ledger::default();
    let start = Instant::now();
    for round in 0..UNITS / SESSIONS {
        for session in 0..SESSIONS {
            // Mark the numbers of a round out of order. Each number comes once, because 37 and 100 are coprime.
            let sequence = round * SESSIONS + session * 37 % SESSIONS;
            assert_eq!(ledger.mark(sequence, 0), MarkResult::First);
        }
    }
    let took = start.elapsed();
    let grown = resident_bytes().saturating_sub(before);
    assert_eq!(ledger.count(), UNITS);
    println!("ledger: {UNITS} units marked in {:.2} s: {:.2} ns a mark", took.as_secs_f64(), nanoseconds(took));
    println!("ledger: {} bytes of pages, resident memory grew by {grown} bytes", ledger.bytes());
    let held = grown < LIMIT_BYTES && (ledger.bytes() as u64) < LIMIT_BYTES;
    println!("ledger: {} (limit {LIMIT_BYTES} bytes)", if held { "PASS" } else { "FAIL" });
    ExitCode::from(u8::from(!held))
}

fn nanoseconds(took: std::time::Duration) -> f64 {
    took.as_secs_f64() * 1e9 / UNITS as f64
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has /proc");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("every process has a VmRSS line");
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse().expect("VmRSS is a number of kB");
    kilobytes * 1024
}
