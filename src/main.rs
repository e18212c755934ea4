//! mailrun: measures how fast mail really gets through, with every message accounted for.
//!
//! ```text
//! main → { cli, personality } → { bench, source, sink, relay, mades, report }
//!      → { net, crates/mades, spool } → { smtp, journey, trust } → mime
//! ```
//! Imports run from left to right only. `bench` starts source, sink and relay as processes of their own; these do not
//! import each other.
/// Writes a line on standard error. If that is full or closed, the line is lost; this is no reason to stop.
macro_rules! tell {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr().lock(), $($words)*);
    }};
}

mod bench;
mod cli;
mod host;
mod host_sampler;
mod http_server;
mod interrupt;
mod live;
mod live_line;
mod load;
mod local_address;
mod log_writer;
mod mades;
mod misspelling;
mod party;
mod personality;
mod planned_panic;
mod position;
mod printable;
mod process_usage;
mod quantities;
mod reason;
mod relay;
mod report;
mod sink;
mod source;
mod terminal;
mod tls_mode;
mod users;

use std::process::ExitCode;

fn main() -> ExitCode {
    let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    personality::run_if_named(words).unwrap_or_else(cli::main)
}
