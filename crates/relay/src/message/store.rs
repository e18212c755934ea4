use crate::message::Message;
use crate::message::envelope::EnvelopeTooLarge;
use mailrun_spool::{NewMessage, Spool, Stored};
use std::sync::Arc;
use std::time::Duration;

/// Pause before storing is tried again after the spool was full.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

impl Message {
    /// Converts the message to the form that the spool stores.
    ///
    /// # Errors
    /// Fails if the envelope is too long.
    pub(crate) fn to_spool(&self) -> Result<NewMessage, EnvelopeTooLarge> {
        Ok(NewMessage {
            received_ns: u64::try_from(self.received.as_nanos()).unwrap_or(u64::MAX),
            envelope: self.envelope.encode()?,
            body: Arc::clone(&self.body),
        })
    }
}

/// Stores a message that lets another message end. A full spool has a reserve for such messages. If
/// the reserve is used up, this waits until deliveries make room.
///
/// # Errors
/// Fails if the spool has failed.
pub(crate) async fn store_from_reserve(spool: &Spool, message: NewMessage) -> Result<Stored, mailrun_spool::Error> {
    loop {
        match spool.store_from_reserve(message.clone()).await {
            Err(mailrun_spool::Error::Full) => mailrun_net::sleep(RETRY_INTERVAL).await,
            other => return other,
        }
    }
}
