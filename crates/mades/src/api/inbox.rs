//! Reads messages from the inbox of a business application.
use super::reading::{BodyContent, PropertyReader, content, first_identity};
use super::{DecodedMessage, Oddity, RunMessageId, names};
use std::borrow::Cow;

#[derive(Clone, Debug, PartialEq)]
pub struct InboxMessage<'m> {
    pub correlation: Option<Cow<'m, str>>,
    pub message_id: Option<Cow<'m, str>>,
    pub ba_message_id: Option<Cow<'m, str>>,
    /// Id of the conversation to which the message belongs, for example the id of the message that it answers.
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
            // A missing id is not an error. In the mode `amqp`, no endpoint takes part that could assign an id.
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

/// Reads only the identity of a message. This is cheaper than reading the whole message, and it is enough for a caller
/// that needs only the message's number and payload.
pub fn identity(message: &DecodedMessage) -> Option<RunMessageId> {
    let mut reader = PropertyReader::new(message);
    let ba_message_id = reader.text(names::BA_MESSAGE_ID);
    let by_id = ba_message_id.as_deref().and_then(RunMessageId::read);
    by_id.or_else(|| reader.correlation().as_deref().and_then(RunMessageId::read))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::testing::message_of;

    #[test]
    fn a_payload_in_another_section_is_read_and_named() {
        for (body, oddity) in [
            (&b"\0\x53\x75\xa0\x05hello"[..], None),
            (b"\0\xa3\x10amqp:data:binary\xa0\x05hello", None),
            (b"\0\x53\x77\xa0\x05hello", Some("amqp-value binary")),
            (b"\0\x53\x77\xa1\x05hello", Some("amqp-value string")),
        ] {
            let message = message_of(&[], body);
            let read = InboxMessage::read(&message);
            let octets: Vec<&[u8]> = read.content.octets().collect();
            assert_eq!(octets, [b"hello"]);
            let oddity = oddity.map(|found| Oddity::WrongSection { expected: "data", found });
            assert_eq!(read.oddities, Vec::from_iter(oddity));
        }
    }
}
