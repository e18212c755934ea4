//! go-smtp-source: nabeken's test program in Go, byte for byte, on our event loop. The differences and their reasons:
//! `docs/drop-in.md`.
//!
//! ```text
//! flags ─▶ options ─▶ run_state (message, target, pace, counts) ─▶ session × n ─ connection ─▶ the server
//!                                                                 dialogue: reply in, command out
//! ```
mod dialogue;
mod dot_stuffing;
mod message;
mod options;
mod rate_limiter;
mod reply;
mod run_state;
mod session;
mod subject;
mod target;

use super::Invocation;
use super::go::{flags, numbers, output, reason};
use super::targets::PublicTargets;
use options::Options;
use output::GoFatalError;
use run_state::GoSourceRun;
use std::process::ExitCode;
use std::rc::Rc;

/// Descriptors used for other things than sessions.
const RESERVED_DESCRIPTORS: u64 = 64;

/// Runs it. The exit status is 0 if all is done, 1 after an error that ended it or a message that was not sent, 2 after
/// a bad flag.
pub(super) fn run(call: &Invocation) -> ExitCode {
    let options = match Options::parse(&call.arguments) {
        Ok(options) => options,
        Err(bad) => return output::report_bad_flag(&bad, &options::usage(&call.program)),
    };
    match send(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fatal) => {
            output::log(&fatal.to_string());
            ExitCode::FAILURE
        }
    }
}

fn send(options: Options) -> Result<(), GoFatalError> {
    let sessions = options.active_sessions();
    let worker_options = options.own_options.worker_options();
    let run = Rc::new(GoSourceRun::new(options, PublicTargets::from_environment())?);
    mailrun_net::open_files::raise(sessions.saturating_add(RESERVED_DESCRIPTORS));
    let shared = Rc::clone(&run);
    let work = |_| async move {
        for number in 1..=sessions {
            mailrun_net::worker::spawn_local(session::run(Rc::clone(&shared), number));
        }
        shared.verbose(|| "Waiting for the messages to be sent....".to_owned());
        shared.wait_for_sessions().await
    };
    mailrun_net::worker::run_with(worker_options, work)
        .map_err(|error| GoFatalError(format!("event loop: {}", reason::reason(&error))))??;
    print_end(&run)
}

/// Prints the end of the report: with `-v` in the original's words, for steps that ours takes elsewhere.
fn print_end(run: &GoSourceRun) -> Result<(), GoFatalError> {
    run.verbose(|| "Client opening session context has been canceled".to_owned());
    if run.options.reuses_connection {
        for step in [
            "Closing all the SMTP sessions...",
            "Waiting for the client session is done...",
            "clientSession is done",
            "Waiting for all the sessions are closed...",
            "All the sessions has been closed.",
        ] {
            run.verbose(|| step.to_owned());
        }
    }
    run.finish()
}
