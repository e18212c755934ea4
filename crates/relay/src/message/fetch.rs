//! Reads a message from the spool, or as much of it as can be read.
use crate::blocking_pool::BlockingPool;
use crate::message::Message;
use crate::message::envelope::MessageEnvelope;
use mailrun_spool::{Id, NewMessage, Spool, StoredEnvelope};
use std::sync::Arc;
use std::time::Duration;

pub(crate) enum Fetched {
    Whole(Message),
    /// The message with an empty body, and the reason why the body could not be read.
    EnvelopeOnly(Message, String),
    Unreadable(String),
}

/// Reads a message on a thread of `pool`.
pub(crate) async fn fetch(spool: &Spool, pool: &BlockingPool, id: Id) -> Fetched {
    let spool = spool.clone();
    let read = move || {
        spool.fetch(id).map_err(|error| {
            let envelope = spool.fetch_envelope(id);
            (error, envelope)
        })
    };
    let (stored, damage) = match pool.run(read).await {
        Some(Ok(stored)) => (stored, None),
        Some(Err((error, Ok(StoredEnvelope { received_ns, envelope })))) => {
            (NewMessage { received_ns, envelope, body: Arc::default() }, Some(error))
        }
        Some(Err((error, Err(_)))) => return Fetched::Unreadable(error.to_string()),
        None => return Fetched::Unreadable("the thread that read it failed".to_owned()),
    };
    let envelope = match MessageEnvelope::decode(&stored.envelope) {
        Ok(envelope) => Arc::new(envelope),
        Err(error) => return Fetched::Unreadable(error.to_string()),
    };
    let message = Message { envelope, body: stored.body, received: Duration::from_nanos(stored.received_ns) };
    match damage {
        None => Fetched::Whole(message),
        Some(error) => Fetched::EnvelopeOnly(message, error.to_string()),
    }
}
