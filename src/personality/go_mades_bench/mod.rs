//! go-mades-bench: vennekilde's bench of the MADES API, with the same flags and output lines, on our engine. The
//! differences and their reasons: `docs/drop-in.md`.
//!
//! ```text
//! flags ─▶ options ─▶ plan ─▶ mades::run ─▶ every stage of every message ─▶ follower (flight times) ─▶ report
//! ```
mod flight;
mod follower;
mod options;
mod plan;
mod report;
mod stages;

use super::Call;
use super::fence::Public;
use super::go::voice::{self, Fatal, MISUSED};
use crate::interrupt::Interrupt;
use crate::mades;
use follower::{Follower, Outcome};
use journey::record::Record;
use options::Options;
use std::process::ExitCode;
use std::rc::Rc;

/// Runs it. The exit status is 0 if all is done or it was interrupted, 1 after an error that ended it or a message that
/// did not get through, 2 after a bad flag.
pub(super) fn run(call: &Call) -> ExitCode {
    let options = match Options::parse(&call.arguments) {
        Ok(options) => options,
        Err(bad) => return voice::explain(&bad, &options::usage(&call.called)),
    };
    voice::tell(&(options.listing() + "\n"));
    let Some(mode) = stages::mode(&options.mode) else {
        voice::log(&format!("unknown mode {:?}: endpoint, toolbox, amqp or tracing", options.mode));
        return ExitCode::from(MISUSED);
    };
    bench(&options, mode).unwrap_or_else(|fatal| {
        voice::log(&fatal.to_string());
        ExitCode::FAILURE
    })
}

fn bench(options: &Options, mode: mades::Mode) -> Result<ExitCode, Fatal> {
    let fatal = |error: anyhow::Error| Fatal(format!("{error:#}"));
    let follower = Rc::new(Follower::new(options, mode));
    let plan = plan::plan(options, mode, Public::as_told(), Rc::clone(&follower) as Rc<dyn mades::Watcher>)?;
    let interrupt = Interrupt::watch().map_err(fatal)?;
    let record = mades::run(plan).map_err(fatal)?.record;
    follower.end();
    if follower.outcome() == Outcome::Interrupted {
        let signal = if interrupt.is_termination() { "Termination Signal" } else { "OS Interrupt" };
        voice::tell(&format!("Received {signal}\n"));
    }
    voice::log("");
    voice::log("Ran with flags: ");
    voice::tell(&(options.listing() + "\n"));
    voice::log("Final Report");
    voice::tell(&follower.report());
    Ok(conclude(options, &follower, &record))
}

/// Reports what the original's report omits: messages that are missing, were refused, or belong to other applications.
fn conclude(options: &Options, follower: &Follower, record: &Record) -> ExitCode {
    let outcome = follower.outcome();
    if outcome == Outcome::GivenUp {
        voice::log(&format!("gave up: nothing received for {} s", options.patience.as_secs()));
    }
    let missing = follower.missing();
    for (name, count) in &missing {
        voice::log(&format!("{name}: {count} of {} msgs missing", options.messages));
    }
    let mades = record.mades.as_ref();
    for trouble in mades.into_iter().flat_map(|mades| &mades.troubles) {
        let code = if trouble.code.is_empty() { String::new() } else { format!(" {}", trouble.code) };
        voice::log(&format!("{}{code}: {} times, first: {}", trouble.kind, trouble.count, trouble.text));
    }
    let duplicates: u64 = mades.into_iter().flat_map(|mades| &mades.stages).map(|stage| stage.duplicates).sum();
    let released = mades.map_or(0, |mades| mades.released);
    for (count, what) in
        [(duplicates, "received more than once"), (released, "not from this run: left in their queues")]
    {
        if count > 0 {
            voice::log(&format!("{count} msgs {what}"));
        }
    }
    let is_corrupt = record.ledger.corrupt.is_some_and(|corrupt| corrupt > 0);
    let held = outcome == Outcome::Interrupted || (missing.is_empty() && !is_corrupt);
    if held { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
