//! Sections of a message, put together.
use super::{Message, MessageId};
use fe2o3_amqp_types::messaging::{ApplicationProperties, Header, Properties};
use fe2o3_amqp_types::primitives::{SimpleValue, Timestamp};

/// A message under construction. All that an endpoint writes is durable (reference §3.1).
pub(super) struct AmqpMessageBuilder {
    properties: Properties,
    application: ApplicationProperties,
}

impl AmqpMessageBuilder {
    /// Begins a message that answers to `correlation`, made then (milliseconds since 1970).
    pub(super) fn new(correlation: Option<MessageId>, created_at_ms: i64) -> Self {
        let properties = Properties {
            correlation_id: correlation,
            creation_time: Some(Timestamp::from_milliseconds(created_at_ms)),
            ..Properties::default()
        };
        Self { properties, application: ApplicationProperties::default() }
    }

    /// Gives it a message-id.
    pub(super) fn id(mut self, id: &str) -> Self {
        self.properties.message_id = Some(MessageId::String(id.to_owned()));
        self
    }

    /// Adds an application property.
    pub(super) fn with(mut self, name: &str, value: &str) -> Self {
        self.application.insert(name.to_owned(), SimpleValue::String(value.to_owned()));
        self
    }

    /// Adds an application property if there is a value for it.
    pub(super) fn with_some(self, name: &str, value: Option<&str>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// The message with that body.
    pub(super) fn body<B>(self, body: B) -> Message<B> {
        Message {
            header: Some(durable()),
            delivery_annotations: None,
            message_annotations: None,
            properties: Some(self.properties),
            application_properties: Some(self.application),
            body,
            footer: None,
        }
    }
}

/// The header of a message that a broker is to keep.
pub(super) fn durable() -> Header {
    Header { durable: true, ..Header::default() }
}
