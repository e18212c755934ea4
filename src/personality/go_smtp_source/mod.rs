//! go-smtp-source: nabeken's test program in Go, byte for byte, on our event loop. The differences and their reasons:
//! `docs/drop-in.md`.
//!
//! ```text
//! flags ─▶ options ─▶ course (message, target, pace, counts) ─▶ session × n ─ connection ─▶ the server
//!                                                                 dialogue: reply in, command out
//! ```
mod course;
mod dialogue;
mod dots;
mod message;
mod options;
mod pace;
mod reply;
mod session;
mod subject;
mod target;

use super::Call;
use super::fence::Public;
use super::go::{flags, numbers, voice};
use course::Course;
use options::Options;
use std::process::ExitCode;
use std::rc::Rc;
use voice::Fatal;

/// Descriptors used for other things than sessions.
const SPARE_FILES: u64 = 64;

/// Runs it. The exit status is 0 if all is done, 1 after an error that ended it or a message that was not sent, 2 after
/// a bad flag.
pub(super) fn run(call: &Call) -> ExitCode {
    let options = match Options::parse(&call.arguments) {
        Ok(options) => options,
        Err(bad) => return voice::explain(&bad, &options::usage(&call.called)),
    };
    match send(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fatal) => {
            voice::log(&fatal.to_string());
            ExitCode::FAILURE
        }
    }
}

fn send(options: Options) -> Result<(), Fatal> {
    let sessions = options.sessions_at_work();
    let course = Rc::new(Course::new(options, Public::as_told())?);
    net::open_files::raise(sessions.saturating_add(SPARE_FILES));
    let shared = Rc::clone(&course);
    let work = |_| async move {
        for number in 1..=sessions {
            net::worker::spawn_local(session::run(Rc::clone(&shared), number));
        }
        shared.verbose(|| "Waiting for the messages to be sent....".to_owned());
        shared.ended().await
    };
    net::worker::run(work).map_err(|error| Fatal(format!("event loop: {}", message::reason(&error))))??;
    conclude(&course)
}

/// Prints the end of the report: with `-v` in the original's words, for steps that ours takes elsewhere.
fn conclude(course: &Course) -> Result<(), Fatal> {
    course.verbose(|| "Client opening session context has been canceled".to_owned());
    if course.options.keeps {
        for step in [
            "Closing all the SMTP sessions...",
            "Waiting for the client session is done...",
            "clientSession is done",
            "Waiting for all the sessions are closed...",
            "All the sessions has been closed.",
        ] {
            course.verbose(|| step.to_owned());
        }
    }
    course.conclude()
}
