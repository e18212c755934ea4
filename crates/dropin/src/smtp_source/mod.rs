//! smtp-source: Postfix's test program, byte for byte, on our event loop. The differences and their reasons:
//! `docs/drop-in.md`.
//!
//! ```text
//! options ─▶ run_state (message, recipient, address, counts) ─▶ session × n ─ connection ─▶ the server
//!                                                              dialogue: reply in, command out
//! ```
mod connection;
mod dialogue;
mod errors;
mod message;
mod options;
mod recipient;
mod reply;
mod run_state;
mod session;

use super::Invocation;
use super::stderr::StderrWriter;
use super::targets::PublicTargets;
use errors::FatalError;
use mailrun_party::reason::reason;
use options::Options;
use run_state::SmtpSourceRun;
use std::process::ExitCode;
use std::rc::Rc;

/// Descriptors used for other things than sessions.
const RESERVED_DESCRIPTORS: u64 = 64;

/// Runs it. The exit status is 0 if all is done, 1 after an error that ended it.
pub(super) fn run(call: &Invocation) -> ExitCode {
    let stderr = StderrWriter::new(&call.program);
    let options = match Options::parse(&call.arguments) {
        Ok(options) => options,
        Err(error) => {
            error.print(&stderr);
            return ExitCode::FAILURE;
        }
    };
    match send(options, stderr) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fatal) => {
            StderrWriter::new(&call.program).fatal(&fatal.to_string());
            ExitCode::FAILURE
        }
    }
}

fn send(options: Options, stderr: StderrWriter) -> Result<(), FatalError> {
    mailrun_net::open_files::raise(u64::from(options.sessions.min(options.messages)) + RESERVED_DESCRIPTORS);
    let worker_options = options.own_options.worker_options();
    let run = Rc::new(SmtpSourceRun::new(options, stderr, PublicTargets::from_environment())?);
    let sessions = run.assign_first_messages();
    let shared = Rc::clone(&run);
    let work = |_| async move {
        for _ in 0..sessions {
            mailrun_net::worker::spawn_local(session::run(Rc::clone(&shared)));
        }
        shared.wait_for_sessions().await
    };
    mailrun_net::worker::run_with(worker_options, work)
        .map_err(|error| FatalError(format!("event loop: {}", reason(&error))))??;
    run.print_end();
    Ok(())
}
