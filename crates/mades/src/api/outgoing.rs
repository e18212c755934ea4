//! Messages that a business application hands to its endpoint: the very properties that go-mades-bench sends
//! (reference §1.3).
use super::reading::PropertyReader;
use super::{Message, MessageId, Oddity, Payload, RunMessageId, names};
use fe2o3_amqp::Sendable;
use fe2o3_amqp_types::messaging::{ApplicationProperties, Header, MESSAGE_FORMAT, Priority, Properties};
use fe2o3_amqp_types::primitives::{SimpleValue, Timestamp};
use std::borrow::Cow;
use uuid::Uuid;

/// Properties that all messages of a run have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutgoingProperties {
    /// The component code of the receiver.
    pub receiver_code: String,
    /// The type as ECP calls it.
    pub message_type: String,
    /// The type as EDX calls it.
    pub business_type: String,
    /// The program that sends.
    pub sender_application: String,
    /// Asks the broker to keep them.
    pub is_durable: bool,
    /// The priority that is written; without one nothing is, which means 4 (AMQP 1.0 part 3 §3.2.1).
    pub priority: Option<u8>,
    /// Marks them as tracing messages.
    pub is_tracing: bool,
}

impl OutgoingProperties {
    /// Durable messages of that type.
    pub fn new(receiver_code: &str, message_type: &str) -> Self {
        Self {
            receiver_code: receiver_code.to_owned(),
            message_type: message_type.to_owned(),
            business_type: message_type.to_owned(),
            sender_application: "mailrun".to_owned(),
            is_durable: true,
            priority: None,
            is_tracing: false,
        }
    }

    /// A template for the messages of that run.
    pub fn template(&self, run: Uuid, body: Payload) -> OutgoingTemplate {
        let text = |text: &str| SimpleValue::String(text.to_owned());
        let mut application = ApplicationProperties::default();
        application.insert(names::RECEIVER_CODE.to_owned(), text(&self.receiver_code));
        application.insert(names::MESSAGE_TYPE.to_owned(), text(&self.message_type));
        application.insert(names::BUSINESS_TYPE.to_owned(), text(&self.business_type));
        application.insert(names::BA_MESSAGE_ID.to_owned(), text(""));
        application.insert(names::IS_TRACING_MESSAGE.to_owned(), SimpleValue::Bool(self.is_tracing));
        application.insert(names::SENDER_APPLICATION.to_owned(), text(&self.sender_application));
        let message = Message {
            header: Some(Header {
                durable: self.is_durable,
                priority: self.priority.map_or_else(Priority::default, Priority),
                ..Header::default()
            }),
            delivery_annotations: None,
            message_annotations: None,
            properties: Some(Properties {
                correlation_id: Some(MessageId::String(String::new())),
                ..Properties::default()
            }),
            application_properties: Some(application),
            body,
            footer: None,
        };
        OutgoingTemplate { run, sendable: Sendable { message, message_format: MESSAGE_FORMAT, settled: None } }
    }
}

/// A message that is made anew for each sequence number by writing over the last one: nothing is allocated.
#[derive(Debug)]
pub struct OutgoingTemplate {
    run: Uuid,
    sendable: Sendable<Payload>,
}

impl OutgoingTemplate {
    /// The message of that number, made then (milliseconds since 1970), with the payload of the last one.
    pub fn fill(&mut self, sequence: u64, created_at_ms: i64) -> &Sendable<Payload> {
        let identity = RunMessageId { sequence, run: self.run };
        let message = &mut self.sendable.message;
        if let Some(properties) = &mut message.properties {
            properties.creation_time = Some(Timestamp::from_milliseconds(created_at_ms));
            if let Some(MessageId::String(text)) = &mut properties.correlation_id {
                identity.write_into(text);
            }
        }
        let application = message.application_properties.as_mut();
        if let Some(SimpleValue::String(text)) = application.and_then(|all| all.get_mut(names::BA_MESSAGE_ID)) {
            identity.write_into(text);
        }
        &self.sendable
    }

    /// Puts another payload in, for the messages from now on.
    pub fn set_payload(&mut self, payload: Payload) {
        self.sendable.message.body = payload;
    }

    /// The same message with a new number and a new payload.
    pub fn fill_with(&mut self, sequence: u64, created_at_ms: i64, payload: Payload) -> &Sendable<Payload> {
        self.set_payload(payload);
        self.fill(sequence, created_at_ms)
    }
}

/// A message that an endpoint takes from its outbox.
#[derive(Clone, Debug, PartialEq)]
pub struct Submission<'m> {
    /// The correlation-id, to be sent back as it came.
    pub correlation: Option<&'m MessageId>,
    /// The component code of the receiver.
    pub receiver_code: Option<Cow<'m, str>>,
    /// The type as ECP calls it.
    pub message_type: Option<Cow<'m, str>>,
    /// The type as EDX calls it.
    pub business_type: Option<Cow<'m, str>>,
    /// The id that the business application gave.
    pub ba_message_id: Option<Cow<'m, str>>,
    /// The conversation that it names.
    pub ba_correlation_id: Option<Cow<'m, str>>,
    /// The program that sent it.
    pub sender_application: Option<Cow<'m, str>>,
    /// Extension that the payload would have as a file.
    pub file_extension: Option<Cow<'m, str>>,
    /// Set for a tracing message.
    pub is_tracing: bool,
    /// Set if the broker was asked to keep it.
    pub is_durable: bool,
    /// Time of its creation, in milliseconds since 1970.
    pub created_at_ms: Option<i64>,
    /// Deviations from the reference.
    pub oddities: Vec<Oddity>,
}

impl<'m> Submission<'m> {
    /// Reads a message, whatever its body.
    pub fn read<B>(message: &'m Message<B>) -> Self {
        let mut reader = PropertyReader::new(message);
        let properties = message.properties.as_ref();
        Self {
            correlation: reader.correlation_id(),
            receiver_code: reader.required(names::RECEIVER_CODE),
            message_type: reader.text(names::MESSAGE_TYPE),
            business_type: reader.text(names::BUSINESS_TYPE),
            ba_message_id: reader.text(names::BA_MESSAGE_ID),
            ba_correlation_id: reader.text(names::BA_CORRELATION_ID),
            sender_application: reader.text(names::SENDER_APPLICATION),
            file_extension: reader.text(names::FILE_EXTENSION),
            is_tracing: reader.boolean(names::IS_TRACING_MESSAGE),
            is_durable: message.header.as_ref().is_some_and(|header| header.durable),
            created_at_ms: properties.and_then(|all| all.creation_time.clone()).map(Timestamp::into_inner),
            oddities: reader.oddities,
        }
    }

    /// Identity of the message, if it is one of a run.
    pub fn identity(&self) -> Option<RunMessageId> {
        self.ba_message_id.as_deref().and_then(RunMessageId::read)
    }

    /// Correlation-id of the reply: the message's own as it came, or else the business application's id.
    pub fn reply_to(&self) -> Option<MessageId> {
        let fallback = || self.ba_message_id.as_deref().map(|id| MessageId::String(id.to_owned()));
        self.correlation.cloned().or_else(fallback)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::payload;

    #[test]
    fn a_filled_template_is_what_go_mades_bench_sends() {
        let run = Uuid::from_u128(7);
        let mut template = OutgoingProperties::new("ecp-endpoint", "TEST-MESSAGE").template(run, payload("octets"));
        template.fill(1, 2);
        let sent = template.fill(12, 34);
        let id = RunMessageId { sequence: 12, run }.to_string();
        let properties = sent.message.properties.as_ref().unwrap();
        assert_eq!(properties.correlation_id, Some(MessageId::String(id.clone())));
        assert_eq!(properties.creation_time, Some(Timestamp::from_milliseconds(34)));
        assert_eq!(
            Properties { correlation_id: None, creation_time: None, ..properties.clone() },
            Properties::default()
        );
        assert!(sent.message.header.as_ref().unwrap().durable);
        let mut written: Vec<_> = sent.message.application_properties.as_ref().unwrap().0.clone().into_iter().collect();
        written.sort();
        let text = |text: &str| SimpleValue::String(text.to_owned());
        let expected = [
            ("baMessageID", text(&id)),
            ("businessType", text("TEST-MESSAGE")),
            ("isTracingMessage", SimpleValue::Bool(false)),
            ("messageType", text("TEST-MESSAGE")),
            ("receiverCode", text("ecp-endpoint")),
            ("senderApplication", text("mailrun")),
        ];
        assert_eq!(written, expected.map(|(name, value)| (name.to_owned(), value)));
    }

    #[test]
    fn what_is_submitted_is_read_as_it_was_meant() {
        let run = Uuid::from_u128(7);
        let outgoing = OutgoingProperties { is_tracing: true, ..OutgoingProperties::new("receiver", "type") };
        let mut template = outgoing.template(run, payload("octets"));
        let message = &template.fill(12, 34).message;
        let read = Submission::read(message);
        assert_eq!(read.identity(), Some(RunMessageId { sequence: 12, run }));
        assert_eq!(read.receiver_code.as_deref(), Some("receiver"));
        assert_eq!(read.business_type.as_deref(), Some("type"));
        assert_eq!((read.is_tracing, read.is_durable, read.created_at_ms), (true, true, Some(34)));
        assert_eq!(read.oddities, []);
    }

    #[test]
    fn wrong_types_are_understood_and_named() {
        let application = ApplicationProperties::builder()
            .insert("receiverCode", SimpleValue::Symbol("code".into()))
            .insert("isTracingMessage", "TRUE".to_owned())
            .insert("baMessageID", 17_u64)
            .build();
        let message = Message::builder()
            .properties(Properties { correlation_id: Some(MessageId::Ulong(5)), ..Properties::default() })
            .application_properties(application)
            .value(0_u8)
            .build();
        let read = Submission::read(&message);
        assert_eq!(read.receiver_code.as_deref(), Some("code"));
        assert_eq!(read.ba_message_id.as_deref(), Some("17"));
        assert!(read.is_tracing);
        assert_eq!(read.reply_to(), Some(MessageId::Ulong(5)));
        assert_eq!(
            read.oddities,
            [
                Oddity::WrongType { property: "receiverCode", found: "symbol" },
                Oddity::WrongType { property: "baMessageID", found: "ulong" },
            ]
        );
        let bare = Message::builder().value(0_u8).build();
        assert_eq!(Submission::read(&bare).oddities, [Oddity::Missing("receiverCode")]);
    }
}
