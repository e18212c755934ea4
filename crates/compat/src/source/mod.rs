//! The engine that smtp-source and go-smtp-source share. Each of the two programs implements [`Dialect`].
//!
//! ```text
//! session ─ takes up messages, connects, and drives a connection: ReplyReader ─▶ Dialogue ─▶ PendingOutput
//!                                                                                  │ Dialect: verdicts, commands, order
//! ```
pub(crate) mod connect;
pub(crate) mod dialect;
pub(crate) mod dialogue;
pub(crate) mod message;
mod session;

use super::stderr::FatalError;
use crate::own_options::OwnOptions;
use dialect::Dialect;
use std::rc::Rc;
use tokio::sync::mpsc;

const RESERVED_DESCRIPTORS: u64 = 64;

pub(crate) fn run_sessions<D: Dialect>(run: &Rc<D>, sessions: u64, options: OwnOptions) -> Result<(), FatalError> {
    mailrun_net::open_files::raise(sessions.saturating_add(RESERVED_DESCRIPTORS));
    let run = Rc::clone(run);
    let work = |_| async move {
        // Each session holds a clone of the sender, so the receiver returns `None` once all sessions have ended.
        let (sessions_tx, mut fatal_errors) = mpsc::unbounded_channel();
        for number in 1..=sessions {
            mailrun_net::worker::spawn_local(session::run(Rc::clone(&run), number, sessions_tx.clone()));
        }
        drop(sessions_tx);
        fatal_errors.recv().await.map_or(Ok(()), Err)
    };
    mailrun_net::worker::run_with(options.worker_options(), work)
        .map_err(|error| FatalError(format!("event loop: {}", D::reason(&error))))?
}
