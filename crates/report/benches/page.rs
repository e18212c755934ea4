//! Renders the HTML page of a run of one hour, and prints how long this took, the peak memory and the size of the page.
//! Fails if a value is not below its limit: 1 s, 100 MB or 300 KB.
#![allow(clippy::print_stdout)]
use mailrun_report::{page, sample_runs};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const LIMIT_TIME: Duration = Duration::from_secs(1);
const LIMIT_KILOBYTES: u64 = 100_000;
const LIMIT_BYTES: usize = 300_000;

fn main() -> ExitCode {
    let record = sample_runs::hour();
    let start = Instant::now();
    let text = page(&record, None);
    let elapsed = start.elapsed();
    let peak = peak_kilobytes();
    println!("page: an hour of series in {} ms, {} bytes, peak memory {peak} KB", elapsed.as_millis(), text.len());
    let held = elapsed < LIMIT_TIME && peak < LIMIT_KILOBYTES && text.len() < LIMIT_BYTES;
    println!("page: {}", if held { "PASS" } else { "FAIL" });
    ExitCode::from(u8::from(!held))
}

/// Returns the peak resident memory of this process in kilobytes, including the memory of the
/// record. It reads /proc, so it needs Linux.
fn peak_kilobytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has /proc");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("the kernel counts it");
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number")
}
