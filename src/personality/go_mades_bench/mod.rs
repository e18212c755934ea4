//! go-mades-bench: vennekilde's bench of the MADES API, flag by flag and line by line, on our engine. What differs and
//! why: `docs/drop-in.md`.
mod flight;
mod options;
mod report;

use super::Call;
use super::go::flags::BadFlag;
use super::go::voice;
use options::Options;
use std::process::ExitCode;

/// What Go's flag package exits with after a bad flag.
const MISUSED: u8 = 2;

/// Runs it: 0 when all is done or it was interrupted, 1 after anything that ended it before or a message that is
/// missing, 2 after a bad flag.
pub(super) fn run(call: &Call) -> ExitCode {
    let options = match Options::parse(&call.arguments) {
        Ok(options) => options,
        Err(bad) => {
            if bad != BadFlag::Help {
                voice::say(&bad.to_string());
            }
            voice::say(options::usage(&call.called).trim_end());
            return if bad == BadFlag::Help { ExitCode::SUCCESS } else { ExitCode::from(MISUSED) };
        }
    };
    println!("{}", options.listing());
    ExitCode::SUCCESS
}
