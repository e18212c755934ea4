//! Imitates smtp-source, Postfix's test program, byte for byte. mailrun's event loop does the work. `docs/drop-in.md`
//! lists the differences and their reasons.
//!
//! ```text
//! options ─▶ run_state (message, recipient, address, counts) ─▶ source (sessions) ─▶ the server
//!                                          dialect: verdicts on replies, commands ─┘
//! ```
mod dialect;
mod message;
mod options;
mod recipient;
pub(crate) mod reply;
mod run_state;

use super::host_port::PublicTargets;
use super::own_options::Invocation;
use super::stderr::{FatalError, StderrWriter};
use crate::source;
use options::Options;
use run_state::SmtpSourceRun;
use std::process::ExitCode;
use std::rc::Rc;

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
    let own_options = options.own_options;
    let run = Rc::new(SmtpSourceRun::new(options, stderr, PublicTargets::from_environment())?);
    let sessions = run.assign_first_messages();
    source::run_sessions(&run, sessions.into(), own_options)?;
    run.print_end();
    Ok(())
}
