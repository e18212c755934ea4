//! Messages in the inbox of a business application (reference §2.5).
use super::reading::{BodyContent, PropertyReader, content, first_identity};
use super::writing::AmqpMessageBuilder;
use super::{AmqpMessage, AmqpMessageId, DecodedMessage, Oddity, Payload, RunMessageId, names};
use std::borrow::Cow;

#[derive(Clone, Debug, PartialEq)]
pub struct InboxMessage<'m> {
    pub correlation: Option<Cow<'m, str>>,
    /// The id that the sender's endpoint gave the message.
    pub message_id: Option<Cow<'m, str>>,
    /// The id that the sender's business application gave the message.
    pub ba_message_id: Option<Cow<'m, str>>,
    /// The conversation that the message belongs to.
    pub ba_correlation_id: Option<Cow<'m, str>>,
    pub sender_code: Option<Cow<'m, str>>,
    pub receiver_code: Option<Cow<'m, str>>,
    pub message_type: Option<Cow<'m, str>>,
    pub business_type: Option<Cow<'m, str>>,
    pub sender_application: Option<Cow<'m, str>>,
    /// Time in milliseconds since 1970 at which the sender's endpoint accepted the message.
    pub sent_at_ms: Option<i64>,
    pub content: BodyContent<'m>,
    pub oddities: Vec<Oddity>,
}

impl<'m> InboxMessage<'m> {
    pub fn read(message: &'m DecodedMessage) -> Self {
        let mut reader = PropertyReader::new(message);
        let content = content(message);
        if !matches!(content, BodyContent::Data(_)) {
            reader.oddities.push(Oddity::WrongSection { expected: "data", found: content.section() });
        }
        let ba_message_id = reader.text(names::BA_MESSAGE_ID);
        Self {
            // In the mode `amqp` no endpoint is involved, so the message has no id of an endpoint.
            message_id: reader.text(names::MESSAGE_ID),
            ba_message_id,
            correlation: reader.correlation(),
            ba_correlation_id: reader.text(names::BA_CORRELATION_ID),
            sender_code: reader.text(names::SENDER_CODE),
            receiver_code: reader.text(names::RECEIVER_CODE),
            message_type: reader.text(names::MESSAGE_TYPE),
            business_type: reader.text(names::BUSINESS_TYPE),
            sender_application: reader.text(names::SENDER_APPLICATION),
            sent_at_ms: reader.time_ms(names::SEND_TIMESTAMP),
            content,
            oddities: reader.oddities,
        }
    }

    pub fn identity(&self) -> Option<RunMessageId> {
        first_identity(&[&self.ba_message_id, &self.correlation])
    }
}

/// Reads the identity alone, for callers that need only the place of the message and its payload.
/// It is cheaper than reading the whole message.
pub fn identity(message: &DecodedMessage) -> Option<RunMessageId> {
    let mut reader = PropertyReader::new(message);
    let ba_message_id = reader.text(names::BA_MESSAGE_ID);
    let by_id = ba_message_id.as_deref().and_then(RunMessageId::read);
    by_id.or_else(|| reader.correlation().as_deref().and_then(RunMessageId::read))
}

#[derive(Clone, Debug)]
pub struct InboxDraft<'a> {
    pub correlation: Option<AmqpMessageId<'a>>,
    /// The id that the sender's endpoint gave the message.
    pub message_id: &'a str,
    /// The id that the sender's business application gave the message.
    pub ba_message_id: Option<&'a str>,
    /// The conversation that the message belongs to.
    pub ba_correlation_id: Option<&'a str>,
    pub sender_code: &'a str,
    pub receiver_code: Option<&'a str>,
    pub message_type: Option<&'a str>,
    pub business_type: Option<&'a str>,
    pub sender_application: Option<&'a str>,
    /// Time at which the sender's endpoint accepted the message, as text (RFC 3339).
    pub sent_at: Option<&'a str>,
}

impl InboxDraft<'_> {
    /// Builds the message with this payload. `created_at_ms` is in milliseconds since 1970.
    pub fn message(self, created_at_ms: i64, payload: Payload) -> AmqpMessage {
        AmqpMessageBuilder::new(self.correlation, created_at_ms)
            .id(self.message_id)
            .with(names::MESSAGE_ID, self.message_id)
            .with_some(names::BA_MESSAGE_ID, self.ba_message_id)
            .with_some(names::BA_CORRELATION_ID, self.ba_correlation_id)
            .with(names::SENDER_CODE, self.sender_code)
            .with_some(names::RECEIVER_CODE, self.receiver_code)
            .with_some(names::MESSAGE_TYPE, self.message_type)
            .with_some(names::BUSINESS_TYPE, self.business_type)
            .with_some(names::SENDER_APPLICATION, self.sender_application)
            .with_some(names::SEND_TIMESTAMP, self.sent_at)
            .data(payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::payload;
    use crate::api::testing::over_the_wire;
    use uuid::Uuid;

    #[test]
    fn what_is_written_is_read() {
        let identity = RunMessageId { sequence: 3, run: Uuid::from_u128(9) };
        let draft = InboxDraft {
            correlation: Some(AmqpMessageId::String("correlation".into())),
            message_id: "id",
            ba_message_id: Some(&identity.to_string()),
            ba_correlation_id: Some("conversation"),
            sender_code: "sender",
            receiver_code: Some("receiver"),
            message_type: Some("type"),
            business_type: Some("business"),
            sender_application: Some("application"),
            sent_at: Some("2026-11-21T12:00:00Z"),
        };
        let message = over_the_wire(&draft.message(5, payload("octets")));
        let read = InboxMessage::read(&message);
        assert_eq!(read.identity(), Some(identity));
        assert_eq!(super::identity(&message), Some(identity));
        assert_eq!(read.content.octets().collect::<Vec<_>>(), [b"octets"]);
        assert_eq!(read.sender_code.as_deref(), Some("sender"));
        assert_eq!(read.sent_at_ms, Some(1_795_262_400_000));
        assert_eq!(read.oddities, []);
    }
}
