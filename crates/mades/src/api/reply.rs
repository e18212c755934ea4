//! Replies of an endpoint to a message in its outbox. A reply accepts the message, refuses it with
//! a reason, or has a status document (EDX).
use super::reading::{BodyContent, PropertyReader, content, first_identity};
use super::writing::AmqpMessageBuilder;
use super::{
    AmqpMessage, AmqpMessageId, DecodedMessage, Oddity, Payload, RunMessageId, StatusDocument, names, payload,
};
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
    /// The endpoint accepted the message under [`Reply::message_id`].
    Accepted,
    Refused(ErrorReply<'m>),
    Status(Box<StatusDocument>),
    /// The reply has neither an id nor an error nor a status.
    Unclear,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Reply<'m> {
    pub correlation: Option<Cow<'m, str>>,
    /// The id that the endpoint gave the message.
    pub message_id: Option<Cow<'m, str>>,
    /// The id that the business application gave the message.
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

/// Reads the status document in the body. `None` if the body is empty.
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

/// Builds the reply of an ECP endpoint that accepted a message.
pub fn accepted(correlation: Option<AmqpMessageId<'_>>, message_id: &str, created_at_ms: i64) -> AmqpMessage {
    AmqpMessageBuilder::new(correlation, created_at_ms)
        .id(message_id)
        .with(names::MESSAGE_ID, message_id)
        .data(Payload::new())
}

/// Contents of a refusal. A refusal has no `messageID`, and clients recognise it by that.
#[derive(Clone, Debug)]
pub struct ErrorReplyDraft<'a> {
    pub correlation: Option<AmqpMessageId<'a>>,
    pub refusal: ErrorReply<'a>,
    pub receiver_code: Option<&'a str>,
    /// The id that the business application gave the message.
    pub ba_message_id: Option<&'a str>,
}

impl ErrorReplyDraft<'_> {
    /// Builds the message. `created_at_ms` is in milliseconds since 1970.
    pub fn message(self, created_at_ms: i64) -> AmqpMessage {
        AmqpMessageBuilder::new(self.correlation, created_at_ms)
            .with_some(names::ERROR_ID, self.refusal.id.as_deref())
            .with_some(names::ERROR_CODE, self.refusal.code.as_deref())
            .with_some(names::ERROR_MESSAGE, self.refusal.message.as_deref())
            .with_some(names::ERROR_DETAILS, self.refusal.details.as_deref())
            .with_some(names::RECEIVER_CODE, self.receiver_code)
            .with_some(names::BA_MESSAGE_ID, self.ba_message_id)
            .data(Payload::new())
    }
}

/// Builds the reply of an EDX toolbox, which contains the state of the message.
pub fn status_reply(
    correlation: Option<AmqpMessageId<'_>>,
    message_id: &str,
    ba_message_id: Option<&str>,
    status: &StatusDocument,
    created_at_ms: i64,
) -> AmqpMessage {
    AmqpMessageBuilder::new(correlation, created_at_ms)
        .id(message_id)
        .with(names::MESSAGE_ID, message_id)
        .with_some(names::BA_MESSAGE_ID, ba_message_id)
        .data(payload(status.write()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::status_document::MessageStatus;
    use crate::api::testing::{over_the_wire, with_body};

    fn correlation() -> Option<AmqpMessageId<'static>> {
        Some(AmqpMessageId::String("correlation".into()))
    }

    #[test]
    fn what_is_written_is_read() {
        let message = over_the_wire(&accepted(correlation(), "id", 5));
        let read = Reply::read(&message);
        assert_eq!((read.outcome, read.message_id.as_deref()), (ReplyOutcome::Accepted, Some("id")));
        assert_eq!(read.oddities, []);

        let refusal =
            ErrorReply { code: Some("E-1".into()), message: Some("no such receiver".into()), ..ErrorReply::default() };
        let draft = ErrorReplyDraft {
            correlation: correlation(),
            refusal: refusal.clone(),
            receiver_code: Some("receiver"),
            ba_message_id: Some("ba"),
        };
        let message = over_the_wire(&draft.message(5));
        let read = Reply::read(&message);
        assert_eq!(read.outcome, ReplyOutcome::Refused(refusal));
        assert_eq!((read.message_id, read.ba_message_id.as_deref()), (None, Some("ba")));
        assert_eq!(read.oddities, []);

        let status = StatusDocument { last: MessageStatus::of("RECEIVED"), ..StatusDocument::default() };
        let message = over_the_wire(&status_reply(correlation(), "id", Some("ba"), &status, 5));
        let read = Reply::read(&message);
        assert_eq!(read.outcome, ReplyOutcome::Status(Box::new(status)));
        assert_eq!(read.oddities, []);
    }

    #[test]
    fn a_reply_that_says_nothing_is_unclear_and_one_that_is_no_document_still_has_its_id() {
        let message = over_the_wire(&AmqpMessageBuilder::new(None, 5).data(Payload::new()));
        let read = Reply::read(&message);
        assert_eq!(read.outcome, ReplyOutcome::Unclear);
        assert_eq!(read.oddities, [Oddity::Missing("correlation-id"), Oddity::Missing("messageID")]);

        let message = with_body(&accepted(correlation(), "id", 5), b"\0\x53\x75\xa0\x03<a>");
        let read = Reply::read(&message);
        assert_eq!((read.outcome, read.oddities), (ReplyOutcome::Accepted, vec![Oddity::BadStatusDocument]));
    }
}
