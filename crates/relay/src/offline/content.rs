use crate::message::envelope::{MessageEnvelope, MessageProgress, RecipientFate, RecipientProgress};
use mailrun_spool::{Id, InspectedBody, InspectedMessage};
use serde::Serialize;

pub(super) struct SpooledMessage {
    pub(super) message: InspectedMessage,
    pub(super) envelope: MessageEnvelope,
    pub(super) progress: MessageProgress,
    /// True if a progress note of the message is unreadable, so that a delivery or a DSN may be repeated.
    pub(super) has_bad_note: bool,
}

/// A message whose envelope cannot be read, so that its sender and recipients are unknown.
#[derive(Debug)]
pub(super) struct UnreadableMessage {
    pub(super) id: Option<Id>,
    pub(super) body: Option<InspectedBody>,
    pub(super) why: String,
}

/// A message that is wholly or partly unreadable, with what is known about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    pub(crate) id: Option<String>,
    pub(crate) sender: Option<String>,
    /// Recipients who have not received the message.
    pub(crate) recipients: Vec<String>,
    pub(crate) why: String,
}

impl SpooledMessage {
    pub(super) fn new(message: InspectedMessage) -> Result<Self, UnreadableMessage> {
        let envelope = match MessageEnvelope::decode(&message.envelope) {
            Ok(envelope) => envelope,
            Err(error) => {
                let why = format!("its envelope cannot be read: {error}");
                return Err(UnreadableMessage { id: Some(message.id), body: Some(message.body), why });
            }
        };
        let mut progress = MessageProgress::new(envelope.recipients.len());
        let mut has_bad_note = false;
        for note in &message.notes {
            has_bad_note |= progress.apply_note(note).is_err();
        }
        Ok(Self { message, envelope, progress, has_bad_note })
    }

    /// Returns the content of the message, or `None` if the content is damaged.
    pub(super) fn sound_body(&self) -> Option<&[u8]> {
        match &self.message.body {
            InspectedBody::Sound(body) => Some(body),
            InspectedBody::Damaged(_) => None,
        }
    }

    /// Returns the recipients who have not received the message. Either the relay must still try
    /// them, or they have failed and their DSN is still to be sent.
    pub(super) fn undelivered(&self) -> impl Iterator<Item = &[u8]> {
        let recipients = self.envelope.recipients.iter().zip(&self.progress.recipients);
        recipients.filter(|(_, progress)| is_undelivered(progress)).map(|(recipient, _)| recipient.address.as_slice())
    }

    pub(super) fn left_out(&self, reason: &str) -> LeftOut {
        LeftOut {
            id: Some(self.message.id.to_string()),
            sender: Some(lossy(&self.envelope.sender)),
            recipients: self.undelivered().map(lossy).collect(),
            why: reason.to_owned(),
        }
    }
}

impl UnreadableMessage {
    pub(super) fn left_out(&self) -> LeftOut {
        let id = self.id.map(|id| id.to_string());
        LeftOut { id, sender: None, recipients: Vec::new(), why: self.why.clone() }
    }
}

fn is_undelivered(progress: &RecipientProgress) -> bool {
    progress.fate.is_none() || (progress.is_dsn_due() && progress.fate.as_ref().is_some_and(RecipientFate::is_failure))
}

pub(super) fn lossy(octets: &[u8]) -> String {
    String::from_utf8_lossy(octets).into_owned()
}
