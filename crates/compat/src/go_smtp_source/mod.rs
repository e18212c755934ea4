//! Imitates go-smtp-source, nabeken's test program in Go, byte for byte. mailrun's event loop does the work.
//! `docs/drop-in.md` lists the differences and their reasons.
//!
//! ```text
//! flags ─▶ options ─▶ run_state (message, target, pace, counts) ─▶ source (sessions) ─▶ the server
//!                                          dialect: verdicts on replies, commands ─┘
//! ```
mod dialect;
mod message;
mod options;
mod rate_limiter;
pub(crate) mod reply;
mod run_state;
pub(crate) mod subject;
mod target;

use super::go;
use super::host_port::PublicTargets;
use super::own_options::Invocation;
use super::stderr::FatalError;
use crate::source;
use options::Options;
use run_state::GoSourceRun;
use std::process::ExitCode;
use std::rc::Rc;

pub(super) fn run(call: &Invocation) -> ExitCode {
    let options = match Options::parse(&call.arguments) {
        Ok(options) => options,
        Err(error) => return go::report_bad_flag(&error, &options::usage(&call.program)),
    };
    match send(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fatal) => {
            go::log(&fatal.to_string());
            ExitCode::FAILURE
        }
    }
}

fn send(options: Options) -> Result<(), FatalError> {
    let sessions = options.active_sessions();
    let own_options = options.own_options;
    let run = Rc::new(GoSourceRun::new(options, PublicTargets::from_environment())?);
    run.verbose(|| "Waiting for the messages to be sent....".to_owned());
    source::run_sessions(&run, sessions, own_options)?;
    print_end(&run)
}

/// Prints the line of `--report`, and fails if a message was not sent. With `-v`, first prints the messages with which
/// go-smtp-source describes its shutdown, although this program does not shut down in these steps.
fn print_end(run: &GoSourceRun) -> Result<(), FatalError> {
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
