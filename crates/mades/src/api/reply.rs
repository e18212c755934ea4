//! Replies of an endpoint to a message in its outbox. A reply accepts the message, refuses it with a reason, or
//! contains a status document (EDX).
use super::reading::{BodyContent, PropertyReader, content, first_identity};
use super::{DecodedMessage, Oddity, RunMessageId, StatusDocument, names};
use std::borrow::Cow;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorReply<'m> {
    pub id: Option<Cow<'m, str>>,
    pub code: Option<Cow<'m, str>>,
    pub message: Option<Cow<'m, str>>,
    pub details: Option<Cow<'m, str>>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum ReplyOutcome<'m> {
    /// The endpoint accepted the message and gave it the id [`Reply::message_id`].
    Accepted,
    Refused(ErrorReply<'m>),
    Status(Box<StatusDocument>),
    /// The reply has neither an id nor an error nor a status, so it says nothing about the message.
    Unclear,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Reply<'m> {
    pub correlation: Option<Cow<'m, str>>,
    pub message_id: Option<Cow<'m, str>>,
    pub ba_message_id: Option<Cow<'m, str>>,
    pub outcome: ReplyOutcome<'m>,
    pub oddities: Vec<Oddity>,
}

impl<'m> Reply<'m> {
    pub fn read(message: &'m DecodedMessage) -> Self {
        let mut reader = PropertyReader::new(message);
        let message_id = reader.text(names::MESSAGE_ID);
        let ba_message_id = reader.text(names::BA_MESSAGE_ID);
        let correlation = reader.correlation();
        if correlation.is_none() && ba_message_id.is_none() {
            reader.oddities.push(Oddity::Missing("correlation-id"));
        }
        let outcome = match (refusal(&mut reader), status(message, &mut reader.oddities)) {
            (Some(refusal), _) => ReplyOutcome::Refused(refusal),
            (None, Some(status)) => ReplyOutcome::Status(Box::new(status)),
            (None, None) if message_id.is_some() => ReplyOutcome::Accepted,
            (None, None) => {
                reader.oddities.push(Oddity::Missing(names::MESSAGE_ID));
                ReplyOutcome::Unclear
            }
        };
        Self { correlation, message_id, ba_message_id, outcome, oddities: reader.oddities }
    }

    /// Returns the identity of the message that the reply answers. The correlation-id is tried
    /// first, and then the id of the business application.
    pub fn identity(&self) -> Option<RunMessageId> {
        first_identity(&[&self.correlation, &self.ba_message_id])
    }
}

fn refusal<'m>(reader: &mut PropertyReader<'m>) -> Option<ErrorReply<'m>> {
    let refusal = ErrorReply {
        id: reader.text(names::ERROR_ID),
        code: reader.text(names::ERROR_CODE),
        message: reader.text(names::ERROR_MESSAGE),
        details: reader.text(names::ERROR_DETAILS),
    };
    (refusal != ErrorReply::default()).then_some(refusal)
}

/// Reads the status document in the body, or returns `None` if the body is empty.
fn status(message: &DecodedMessage, oddities: &mut Vec<Oddity>) -> Option<StatusDocument> {
    let content = content(message);
    let octets: Cow<'_, [u8]> = match &content {
        BodyContent::Empty => return None,
        BodyContent::Data(sections) if sections.len() == 1 => Cow::Borrowed(sections[0]),
        BodyContent::Data(_) => Cow::Owned(content.octets().flatten().copied().collect()),
        other => {
            oddities.push(Oddity::WrongSection { expected: "data", found: other.section() });
            match other {
                BodyContent::Text(text) => Cow::Borrowed(text.as_bytes()),
                BodyContent::Binary(octets) => Cow::Borrowed(octets),
                _ => return None,
            }
        }
    };
    if octets.is_empty() {
        return None;
    }
    let document = StatusDocument::read(&octets);
    if document.is_err() {
        oddities.push(Oddity::BadStatusDocument);
    }
    document.ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::testing::message_of;

    #[test]
    fn a_reply_that_says_nothing_is_unclear_and_one_that_is_no_document_still_has_its_id() {
        let message = message_of(&[], b"\0\x53\x75\xa0\0");
        let read = Reply::read(&message);
        assert_eq!(read.outcome, ReplyOutcome::Unclear);
        assert_eq!(read.oddities, [Oddity::Missing("correlation-id"), Oddity::Missing("messageID")]);

        let ids = [(names::MESSAGE_ID, "id"), (names::BA_MESSAGE_ID, "ba")];
        let message = message_of(&ids, b"\0\x53\x75\xa0\x03<a>");
        let read = Reply::read(&message);
        assert_eq!((read.outcome, read.oddities), (ReplyOutcome::Accepted, vec![Oddity::BadStatusDocument]));
    }
}
