//! mailrun: measures how fast mail really gets through, with every message accounted for.
//!
//! ```text
//! main → cli → { bench, dropin, load, relay, mades, compare } → { party, report, workload, net, spool }
//!      → { eventloop, smtp, journey, trust } → mime
//! ```
//! `bench` starts source, sink and relay as separate processes. Source, sink and relay do not import
//! each other.
use std::process::ExitCode;

fn main() -> ExitCode {
    let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    mailrun_dropin::run_if_named(words).unwrap_or_else(mailrun_cli::main)
}
