//! A message in the spool, with the relay's notes about it.
use super::{LeftOut, lossy};
use crate::relay::envelope::{Envelope, Fate, Progress, Standing};
use spool::{Body, Id, Message};

/// A message that is not done.
pub(super) struct Content {
    pub(super) message: Message,
    pub(super) envelope: Envelope,
    pub(super) progress: Progress,
    /// A note that could not be read: some of the work may be done again.
    pub(super) has_bad_note: bool,
}

/// A message of which too little can be read to find its sender and recipients.
#[derive(Debug)]
pub(super) struct Unreadable {
    pub(super) id: Option<Id>,
    /// Its content, if that can be read.
    pub(super) body: Option<Body>,
    pub(super) why: String,
}

impl Content {
    pub(super) fn new(message: Message) -> Result<Self, Unreadable> {
        let envelope = match Envelope::decode(&message.envelope) {
            Ok(envelope) => envelope,
            Err(error) => {
                let why = format!("its envelope cannot be read: {error}");
                return Err(Unreadable { id: Some(message.id), body: Some(message.body), why });
            }
        };
        let mut progress = Progress::new(envelope.recipients.len());
        let mut has_bad_note = false;
        for note in &message.notes {
            has_bad_note |= progress.read(note).is_err();
        }
        Ok(Self { message, envelope, progress, has_bad_note })
    }

    /// The content, if it is as it was received.
    pub(super) fn sound_body(&self) -> Option<&[u8]> {
        match &self.message.body {
            Body::Sound(body) => Some(body),
            Body::Damaged(_) => None,
        }
    }

    /// Recipients who do not have it: it is still to be delivered to them, or failed and their sender was not notified.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &[u8]> {
        let recipients = self.envelope.recipients.iter().zip(&self.progress.recipients);
        recipients.filter(|(_, standing)| is_waiting(standing)).map(|(recipient, _)| recipient.address.as_slice())
    }

    pub(super) fn left_out(&self, why: &str) -> LeftOut {
        LeftOut {
            id: Some(self.message.id.to_string()),
            sender: Some(lossy(&self.envelope.sender)),
            recipients: self.waiting().map(lossy).collect(),
            why: why.to_owned(),
        }
    }
}

impl Unreadable {
    pub(super) fn left_out(&self) -> LeftOut {
        let id = self.id.map(|id| id.to_string());
        LeftOut { id, sender: None, recipients: Vec::new(), why: self.why.clone() }
    }
}

fn is_waiting(standing: &Standing) -> bool {
    standing.fate.is_none() || (standing.is_owed() && standing.fate.as_ref().is_some_and(Fate::is_failure))
}
