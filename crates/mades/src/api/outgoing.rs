//! Messages that a business application hands to its endpoint. They have the same properties as the messages of
//! go-mades-bench.
use super::message::{DATA, SectionFields};
use super::reading::PropertyReader;
use super::{AmqpMessage, AmqpMessageId, DecodedMessage, Oddity, Payload, RunMessageId, names};
use mailrun_amqp::Writer;
use std::borrow::Cow;
use uuid::Uuid;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutgoingProperties {
    pub receiver_code: String,
    pub message_type: String,
    pub business_type: String,
    pub sender_application: String,
    pub is_durable: bool,
    /// Priority of the messages. If this is `None`, messages have no priority field, which means priority 4 (AMQP 1.0
    /// part 3 §3.2.1).
    pub priority: Option<u8>,
    pub is_tracing: bool,
    /// For acknowledgements, the run whose messages they acknowledge. An acknowledgement has the same number as the
    /// acknowledged message, and names that message in `baCorrelationID`.
    pub about_run: Option<Uuid>,
}

impl OutgoingProperties {
    /// Creates the properties of durable messages of this type. The message type is also used as the business type.
    pub fn new(receiver_code: &str, message_type: &str) -> Self {
        Self {
            receiver_code: receiver_code.to_owned(),
            message_type: message_type.to_owned(),
            business_type: message_type.to_owned(),
            sender_application: "mailrun".to_owned(),
            is_durable: true,
            priority: None,
            is_tracing: false,
            about_run: None,
        }
    }

    pub fn template(&self, run: Uuid, body: Payload) -> OutgoingTemplate {
        let message = AmqpMessage { sections: Vec::new(), payload: body };
        OutgoingTemplate { properties: self.clone(), run, identity: String::new(), about: String::new(), message }
    }
}

/// A message that is rewritten in place for each sequence number without allocating memory.
#[derive(Debug)]
pub struct OutgoingTemplate {
    properties: OutgoingProperties,
    run: Uuid,
    identity: String,
    about: String,
    message: AmqpMessage,
}

impl OutgoingTemplate {
    /// Overwrites the ids and the creation time in the message, so that it becomes message number `sequence` of the
    /// run. The payload stays the same. `created_at_ms` is in milliseconds since 1970.
    pub fn fill(&mut self, sequence: u64, created_at_ms: i64) -> &AmqpMessage {
        RunMessageId { sequence, run: self.run }.write_into(&mut self.identity);
        let properties = &self.properties;
        if let Some(run) = properties.about_run {
            RunMessageId { sequence, run }.write_into(&mut self.about);
        }
        let id = self.identity.as_str();
        let sections = &mut self.message.sections;
        sections.clear();
        let head = SectionFields {
            is_durable: properties.is_durable,
            priority: properties.priority,
            message_id: None,
            created_at_ms,
        };
        let correlation = |fields: &mut Writer<'_>| fields.string(id);
        head.write(sections, correlation, |entries| {
            for (name, value) in [
                (names::RECEIVER_CODE, properties.receiver_code.as_str()),
                (names::MESSAGE_TYPE, &properties.message_type),
                (names::BUSINESS_TYPE, &properties.business_type),
                (names::BA_MESSAGE_ID, id),
                (names::SENDER_APPLICATION, &properties.sender_application),
            ] {
                entries.string(name);
                entries.string(value);
            }
            if properties.about_run.is_some() {
                entries.string(names::BA_CORRELATION_ID);
                entries.string(&self.about);
            }
            entries.string(names::IS_TRACING_MESSAGE);
            entries.boolean(properties.is_tracing);
        });
        Writer::new(sections).begin_described_binary(DATA, self.message.payload.len());
        &self.message
    }

    pub fn set_payload(&mut self, payload: Payload) {
        self.message.payload = payload;
    }

    /// Rewrites the message for this sequence number as [`fill`](Self::fill) does, and replaces the payload.
    pub fn fill_with(&mut self, sequence: u64, created_at_ms: i64, payload: Payload) -> &AmqpMessage {
        self.set_payload(payload);
        self.fill(sequence, created_at_ms)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Submission<'m> {
    /// Correlation-id of the message, which the reply must carry unchanged.
    pub correlation: Option<AmqpMessageId<'m>>,
    pub receiver_code: Option<Cow<'m, str>>,
    pub message_type: Option<Cow<'m, str>>,
    pub business_type: Option<Cow<'m, str>>,
    pub ba_message_id: Option<Cow<'m, str>>,
    pub ba_correlation_id: Option<Cow<'m, str>>,
    pub sender_application: Option<Cow<'m, str>>,
    pub file_extension: Option<Cow<'m, str>>,
    pub is_tracing: bool,
    pub is_durable: bool,
    pub created_at_ms: Option<i64>,
    pub oddities: Vec<Oddity>,
}

impl<'m> Submission<'m> {
    pub fn read(message: &'m DecodedMessage) -> Self {
        let mut reader = PropertyReader::new(message);
        Self {
            correlation: message.correlation_id(),
            receiver_code: reader.required(names::RECEIVER_CODE),
            message_type: reader.text(names::MESSAGE_TYPE),
            business_type: reader.text(names::BUSINESS_TYPE),
            ba_message_id: reader.text(names::BA_MESSAGE_ID),
            ba_correlation_id: reader.text(names::BA_CORRELATION_ID),
            sender_application: reader.text(names::SENDER_APPLICATION),
            file_extension: reader.text(names::FILE_EXTENSION),
            is_tracing: reader.boolean(names::IS_TRACING_MESSAGE),
            is_durable: message.header().is_some_and(|header| header.is_durable),
            created_at_ms: message.created_at_ms(),
            oddities: reader.oddities,
        }
    }

    /// Returns the identity of the message, or `None` if the message does not come from a run of the bench.
    pub fn identity(&self) -> Option<RunMessageId> {
        self.ba_message_id.as_deref().and_then(RunMessageId::read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::payload;
    use crate::api::testing::{decoded_by_fe2o3, over_the_wire};
    use fe2o3_amqp_types::messaging::{Body, MessageId as PeerMessageId, Properties};
    use fe2o3_amqp_types::primitives::{SimpleValue, Timestamp};

    #[test]
    fn a_filled_template_is_what_go_mades_bench_sends() {
        let run = Uuid::from_u128(7);
        let mut template = OutgoingProperties::new("ecp-endpoint", "TEST-MESSAGE").template(run, payload("octets"));
        template.fill(1, 2);
        let sent = decoded_by_fe2o3(&template.fill(12, 34).encoded());
        let id = RunMessageId { sequence: 12, run }.to_string();
        let properties = sent.properties.as_ref().unwrap();
        assert_eq!(properties.correlation_id, Some(PeerMessageId::String(id.clone())));
        assert_eq!(properties.creation_time, Some(Timestamp::from_milliseconds(34)));
        assert_eq!(
            Properties { correlation_id: None, creation_time: None, ..properties.clone() },
            Properties::default()
        );
        assert!(sent.header.as_ref().unwrap().durable);
        assert!(matches!(&sent.body, Body::Data(sections) if sections[0].0.as_slice() == b"octets"));
        let mut written: Vec<_> = sent.application_properties.unwrap().0.into_iter().collect();
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
        let outgoing =
            OutgoingProperties { is_tracing: true, priority: Some(7), ..OutgoingProperties::new("receiver", "type") };
        let message = over_the_wire(outgoing.template(run, payload(vec![7; 300])).fill(12, 34));
        assert_eq!(message.header().map(|header| header.priority), Some(7));
        let read = Submission::read(&message);
        assert_eq!(read.identity(), Some(RunMessageId { sequence: 12, run }));
        assert_eq!(read.receiver_code.as_deref(), Some("receiver"));
        assert_eq!(read.business_type.as_deref(), Some("type"));
        assert_eq!((read.is_tracing, read.is_durable, read.created_at_ms), (true, true, Some(34)));
        assert_eq!(read.oddities, []);
    }

    #[test]
    fn wrong_types_are_understood_and_named() {
        let mut octets = Vec::new();
        let correlation = |fields: &mut Writer<'_>| fields.ulong(5);
        SectionFields::default().write(&mut octets, correlation, |entries| {
            entries.string("receiverCode");
            entries.symbol("code");
            entries.string("isTracingMessage");
            entries.string("TRUE");
            entries.string("baMessageID");
            entries.ulong(17);
        });
        let message = DecodedMessage::decode(&octets.into()).unwrap();
        let read = Submission::read(&message);
        assert_eq!(read.receiver_code.as_deref(), Some("code"));
        assert_eq!(read.ba_message_id.as_deref(), Some("17"));
        assert!(read.is_tracing);
        assert_eq!(read.correlation, Some(AmqpMessageId::Ulong(5)));
        assert_eq!(
            read.oddities,
            [
                Oddity::WrongType { property: "receiverCode", found: "symbol" },
                Oddity::WrongType { property: "baMessageID", found: "ulong" },
            ]
        );
        let bare = DecodedMessage::decode(&Vec::new().into()).unwrap();
        assert_eq!(Submission::read(&bare).oddities, [Oddity::Missing("receiverCode")]);
    }
}
