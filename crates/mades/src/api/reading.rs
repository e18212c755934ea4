//! Reading what came, whatever it is: text where text is meant, and an oddity where it is not quite that.
use super::{DecodedMessage, Message, MessageId, Oddity, RunMessageId};
use fe2o3_amqp_types::messaging::{ApplicationProperties, Body, Data, Properties};
use fe2o3_amqp_types::primitives::SimpleValue;
use serde_amqp::Value;
use std::borrow::Cow;
use uuid::Uuid;

/// The body of a message.
#[derive(Clone, Debug, PartialEq)]
pub enum BodyContent<'m> {
    /// One or more `data` sections.
    Data(&'m [Data]),
    /// An `amqp-value` that is text.
    Text(&'m str),
    /// Anything else; which section and type.
    Other(&'static str),
    /// No body, or an `amqp-value` of null, which is how some clients write no body.
    Empty,
}

impl<'m> BodyContent<'m> {
    /// The bytes of the `data` sections, one section after the other.
    pub fn octets(&self) -> impl Iterator<Item = &'m [u8]> + use<'m> {
        let sections: &'m [Data] = match self {
            Self::Data(sections) => sections,
            _ => &[],
        };
        sections.iter().map(|section| section.0.as_slice())
    }

    /// Number of bytes in `data` sections.
    pub fn data_bytes(&self) -> usize {
        self.octets().map(<[u8]>::len).sum()
    }

    pub(super) fn section(&self) -> &'static str {
        match self {
            Self::Data(_) => "data",
            Self::Text(_) => "amqp-value string",
            Self::Other(what) => what,
            Self::Empty => "empty",
        }
    }
}

/// Reads the body of a message.
pub fn content(message: &DecodedMessage) -> BodyContent<'_> {
    match &message.body {
        Body::Data(sections) => BodyContent::Data(sections),
        Body::Value(value) => match &value.0 {
            Value::String(text) => BodyContent::Text(text),
            Value::Null => BodyContent::Empty,
            Value::Symbol(_) => BodyContent::Other("amqp-value symbol"),
            Value::Binary(_) => BodyContent::Other("amqp-value binary"),
            _ => BodyContent::Other("amqp-value of another type"),
        },
        Body::Sequence(_) => BodyContent::Other("amqp-sequence"),
        Body::Empty => BodyContent::Empty,
    }
}

/// An id as text, whichever of its four types it has; `None` if it is binary and not UTF-8.
pub fn id_text(id: &MessageId) -> Option<Cow<'_, str>> {
    match id {
        MessageId::String(text) => Some(Cow::Borrowed(text)),
        MessageId::Binary(octets) => std::str::from_utf8(octets).ok().map(Cow::Borrowed),
        MessageId::Uuid(uuid) => Some(Cow::Owned(Uuid::from_bytes(*uuid.as_inner()).to_string())),
        MessageId::Ulong(number) => Some(Cow::Owned(number.to_string())),
    }
}

/// Reads the sections of one message and notes what is odd.
pub(super) struct PropertyReader<'m> {
    properties: Option<&'m Properties>,
    application: Option<&'m ApplicationProperties>,
    pub(super) oddities: Vec<Oddity>,
}

impl<'m> PropertyReader<'m> {
    pub(super) fn new<B>(message: &'m Message<B>) -> Self {
        Self {
            properties: message.properties.as_ref(),
            application: message.application_properties.as_ref(),
            oddities: Vec::new(),
        }
    }

    /// An application property as text.
    pub(super) fn text(&mut self, name: &'static str) -> Option<Cow<'m, str>> {
        let value = self.application?.get(name)?;
        let (text, found) = match value {
            SimpleValue::String(text) => return Some(Cow::Borrowed(text)),
            SimpleValue::Null => return None,
            SimpleValue::Symbol(symbol) => (Some(Cow::Borrowed(symbol.0.as_str())), "symbol"),
            SimpleValue::Binary(octets) => (std::str::from_utf8(octets).ok().map(Cow::Borrowed), "binary"),
            SimpleValue::Uuid(uuid) => (Some(Cow::Owned(Uuid::from_bytes(*uuid.as_inner()).to_string())), "uuid"),
            SimpleValue::Ulong(number) => (Some(Cow::Owned(number.to_string())), "ulong"),
            SimpleValue::Long(number) => (Some(Cow::Owned(number.to_string())), "long"),
            SimpleValue::Uint(number) => (Some(Cow::Owned(number.to_string())), "uint"),
            SimpleValue::Int(number) => (Some(Cow::Owned(number.to_string())), "int"),
            SimpleValue::Bool(truth) => (Some(Cow::Borrowed(if *truth { "true" } else { "false" })), "boolean"),
            SimpleValue::Timestamp(_) => (None, "timestamp"),
            _ => (None, "another type"),
        };
        self.oddities.push(Oddity::WrongType { property: name, found });
        text
    }

    /// An application property that has to be there.
    pub(super) fn required(&mut self, name: &'static str) -> Option<Cow<'m, str>> {
        let is_there = self.application.is_some_and(|all| all.contains_key(name));
        if !is_there {
            self.oddities.push(Oddity::Missing(name));
        }
        self.text(name)
    }

    /// An application property that is true or false; text of that kind is understood too.
    pub(super) fn boolean(&mut self, name: &'static str) -> bool {
        match self.application.and_then(|all| all.get(name)) {
            Some(SimpleValue::Bool(truth)) => *truth,
            None | Some(SimpleValue::Null) => false,
            Some(_) => self.text(name).is_some_and(|text| text.eq_ignore_ascii_case("true")),
        }
    }

    /// The time in an application property that should be one, as milliseconds since 1970: sendTimestamp is written as
    /// either of two types.
    pub(super) fn time_ms(&mut self, name: &'static str) -> Option<i64> {
        match self.application?.get(name)? {
            SimpleValue::Timestamp(time) => Some(time.clone().into_inner()),
            SimpleValue::Long(number) => Some(*number),
            SimpleValue::String(text) => text.parse::<jiff::Timestamp>().ok().map(|time| time.as_millisecond()),
            _ => {
                self.oddities.push(Oddity::WrongType { property: name, found: "another type" });
                None
            }
        }
    }

    /// The correlation-id as it is, to be sent back as it came.
    pub(super) fn correlation_id(&self) -> Option<&'m MessageId> {
        self.properties?.correlation_id.as_ref()
    }

    /// The correlation-id as text.
    pub(super) fn correlation(&mut self) -> Option<Cow<'m, str>> {
        let id = self.correlation_id()?;
        let found = match id {
            MessageId::String(text) => return Some(Cow::Borrowed(text)),
            MessageId::Binary(_) => "binary",
            MessageId::Uuid(_) => "uuid",
            MessageId::Ulong(_) => "ulong",
        };
        self.oddities.push(Oddity::WrongType { property: "correlation-id", found });
        id_text(id)
    }
}

/// The first of those ids that is one of ours.
pub(super) fn first_identity(ids: &[&Option<Cow<'_, str>>]) -> Option<RunMessageId> {
    ids.iter().filter_map(|id| id.as_deref()).find_map(RunMessageId::read)
}
