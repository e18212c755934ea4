//! mailrun: measures how fast mail really gets through, with every message accounted for.
//!
//! ```text
//! main → cli → { bench, compat, load, relay, mades, compare } → { process, report, schedule, net, spool }
//!      → { eventloop, smtp, measurement, tls-verify } → mime
//! ```
//! `bench` starts source, sink and relay as separate processes. Source, sink and relay do not import
//! each other.
use std::process::ExitCode;

fn main() -> ExitCode {
    let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    mailrun_compat::run_if_named(words).unwrap_or_else(mailrun_cli::main)
}
