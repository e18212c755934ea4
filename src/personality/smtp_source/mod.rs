//! smtp-source: Postfix's test program, byte for byte, on our event loop. The differences and their reasons:
//! `docs/drop-in.md`.
//!
//! ```text
//! options ─▶ course (message, recipient, address, counts) ─▶ session × n ─ connection ─▶ the server
//!                                                              dialogue: reply in, command out
//! ```
mod complaints;
mod connection;
mod course;
mod dialogue;
mod message;
mod options;
mod recipient;
mod reply;
mod session;

use super::Call;
use super::fence::Public;
use super::voice::Voice;
use crate::reason::reason;
use complaints::Fatal;
use course::Course;
use options::Options;
use std::process::ExitCode;
use std::rc::Rc;

/// Descriptors used for other things than sessions.
const SPARE_FILES: u64 = 64;

/// Runs it. The exit status is 0 if all is done, 1 after an error that ended it.
pub(super) fn run(call: &Call) -> ExitCode {
    let voice = Voice::new(&call.called);
    let options = match Options::parse(&call.arguments) {
        Ok(options) => options,
        Err(misuse) => {
            misuse.say(&voice);
            return ExitCode::FAILURE;
        }
    };
    match send(options, voice) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fatal) => {
            Voice::new(&call.called).fatal(&fatal.to_string());
            ExitCode::FAILURE
        }
    }
}

fn send(options: Options, voice: Voice) -> Result<(), Fatal> {
    net::open_files::raise(u64::from(options.sessions.min(options.messages)) + SPARE_FILES);
    let course = Rc::new(Course::new(options, voice, Public::as_told())?);
    let sessions = course.begin();
    let shared = Rc::clone(&course);
    let work = |_| async move {
        for _ in 0..sessions {
            net::worker::spawn_local(session::run(Rc::clone(&shared)));
        }
        shared.ended().await
    };
    net::worker::run(work).map_err(|error| Fatal(format!("event loop: {}", reason(&error))))??;
    course.conclude();
    Ok(())
}
