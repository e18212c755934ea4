//! mailrun: measures how fast mail really gets through, with every message accounted for.
//!
//! ```text
//! main → cli → { bench, source, sink, report } → net → { smtp, journey }
//! ```
//! `bench` starts source and sink as processes of their own; these know nothing of each other.
mod bench;
mod cli;
mod host;
mod interrupt;
mod live;
mod party;
mod report;
mod sink;
mod source;
mod usage;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
