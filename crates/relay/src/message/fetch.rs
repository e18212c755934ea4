//! Reads messages from the spool, even damaged ones, and stores messages that the relay creates.
use crate::blocking_pool::BlockingPool;
use crate::message::Message;
use crate::message::envelope::{EnvelopeTooLarge, MessageEnvelope};
use mailrun_spool::{Id, NewMessage, Spool, Stored, StoredEnvelope};
use std::sync::Arc;
use std::time::Duration;

pub(crate) enum Fetched {
    Whole(Message),
    /// Only the envelope could be read, so the message has an empty body. The string says why the body is missing.
    EnvelopeOnly(Message, String),
    Unreadable(String),
}

/// Reads a message on a thread of `pool`, because the disk may block. If the body is damaged, reads
/// the envelope alone.
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

const RETRY_INTERVAL: Duration = Duration::from_secs(5);

impl Message {
    /// Converts the message to the form that the spool stores. Fails if the encoded envelope would
    /// exceed the limits of its format.
    pub(crate) fn to_spool(&self) -> Result<NewMessage, EnvelopeTooLarge> {
        Ok(NewMessage {
            received_ns: u64::try_from(self.received.as_nanos()).unwrap_or(u64::MAX),
            envelope: self.envelope.encode()?,
            body: Arc::clone(&self.body),
        })
    }
}

/// Stores a message without which the relay cannot finish another message, for example a DSN. If the spool is full for
/// other mail, the message may use reserved space. If the reserved space is used up as well, this function waits until
/// deliveries make room.
///
/// # Errors
/// Fails if the spool cannot store the message for a reason other than lack of space.
pub(crate) async fn store_from_reserve(spool: &Spool, message: NewMessage) -> Result<Stored, mailrun_spool::Error> {
    loop {
        match spool.store_from_reserve(message.clone()).await {
            Err(mailrun_spool::Error::Full) => mailrun_net::sleep(RETRY_INTERVAL).await,
            other => return other,
        }
    }
}
