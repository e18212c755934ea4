//! Reads the properties of messages leniently. If a value has an unexpected type, the reader uses the value as far as
//! possible and reports the deviation.
use super::{AmqpMessageId, DecodedMessage, Oddity, RunMessageId};
use mailrun_amqp::Scalar;
use std::borrow::Cow;
use uuid::Uuid;

#[derive(Clone, Debug, PartialEq)]
pub enum BodyContent<'m> {
    Data(Vec<&'m [u8]>),
    Text(&'m str),
    /// An `amqp-value` section with a binary value, which some clients write instead of a `data` section.
    Binary(&'m [u8]),
    /// A body that the API does not use. The string names the section and, for an `amqp-value`, the type of the value.
    Other(&'static str),
    /// No body, or an `amqp-value` of null, which some clients write for an empty body.
    Empty,
}

impl<'m> BodyContent<'m> {
    /// Returns the bytes of the body: the bytes of each `data` section, or the string or the binary value of an
    /// `amqp-value` section.
    pub fn octets(&self) -> impl Iterator<Item = &'m [u8]> {
        let (sections, value): (&[&'m [u8]], _) = match self {
            Self::Data(sections) => (sections, None),
            Self::Text(text) => (&[], Some(text.as_bytes())),
            Self::Binary(octets) => (&[], Some(*octets)),
            Self::Other(_) | Self::Empty => (&[], None),
        };
        sections.iter().copied().chain(value)
    }

    pub(super) fn section(&self) -> &'static str {
        match self {
            Self::Data(_) => "data",
            Self::Text(_) => "amqp-value string",
            Self::Binary(_) => "amqp-value binary",
            Self::Other(what) => what,
            Self::Empty => "empty",
        }
    }
}

pub fn content(message: &DecodedMessage) -> BodyContent<'_> {
    if let Some(sections) = message.data() {
        return BodyContent::Data(sections.collect());
    }
    if message.has_sequence() {
        return BodyContent::Other("amqp-sequence");
    }
    match message.value().map(|value| value.as_scalar()) {
        Some(Some(Scalar::String(text))) => BodyContent::Text(text),
        Some(Some(Scalar::Symbol(_))) => BodyContent::Other("amqp-value symbol"),
        Some(Some(Scalar::Binary(octets))) => BodyContent::Binary(octets),
        Some(Some(Scalar::Null)) | None => BodyContent::Empty,
        Some(_) => BodyContent::Other("amqp-value of another type"),
    }
}

/// Returns an id of any type as text, or `None` if the id is binary and not UTF-8.
pub fn id_text<'m>(id: &AmqpMessageId<'m>) -> Option<Cow<'m, str>> {
    match id {
        AmqpMessageId::String(text) => Some(text.clone()),
        AmqpMessageId::Binary(octets) => std::str::from_utf8(octets).ok().map(|text| Cow::Owned(text.to_owned())),
        AmqpMessageId::Uuid(uuid) => Some(Cow::Owned(uuid.to_string())),
        AmqpMessageId::Ulong(number) => Some(Cow::Owned(number.to_string())),
    }
}

pub(super) struct PropertyReader<'m> {
    message: &'m DecodedMessage,
    application: Vec<(&'m str, Scalar<'m>)>,
    pub(super) oddities: Vec<Oddity>,
}

impl<'m> PropertyReader<'m> {
    pub(super) fn new(message: &'m DecodedMessage) -> Self {
        let application = message.application_properties().unwrap_or_default();
        Self { message, application, oddities: Vec::new() }
    }

    /// Returns the application property with this name. If several properties have this name, returns the last of them.
    fn get(&self, name: &str) -> Option<Scalar<'m>> {
        self.application.iter().rfind(|(key, _)| *key == name).map(|(_, value)| *value)
    }

    pub(super) fn text(&mut self, name: &'static str) -> Option<Cow<'m, str>> {
        let (text, found) = match self.get(name)? {
            Scalar::String(text) => return Some(Cow::Borrowed(text)),
            Scalar::Null => return None,
            Scalar::Symbol(symbol) => (Some(Cow::Borrowed(symbol)), "symbol"),
            Scalar::Binary(octets) => (std::str::from_utf8(octets).ok().map(Cow::Borrowed), "binary"),
            Scalar::Uuid(uuid) => (Some(Cow::Owned(Uuid::from_bytes(uuid).to_string())), "uuid"),
            Scalar::Ulong(number) => (Some(Cow::Owned(number.to_string())), "ulong"),
            Scalar::Long(number) => (Some(Cow::Owned(number.to_string())), "long"),
            Scalar::Uint(number) => (Some(Cow::Owned(number.to_string())), "uint"),
            Scalar::Int(number) => (Some(Cow::Owned(number.to_string())), "int"),
            Scalar::Boolean(truth) => (Some(Cow::Borrowed(if truth { "true" } else { "false" })), "boolean"),
            Scalar::Timestamp(_) => (None, "timestamp"),
            Scalar::Ubyte(_) | Scalar::Other => (None, "another type"),
        };
        self.oddities.push(Oddity::WrongType { property: name, found });
        text
    }

    pub(super) fn required(&mut self, name: &'static str) -> Option<Cow<'m, str>> {
        if self.get(name).is_none() {
            self.oddities.push(Oddity::Missing(name));
        }
        self.text(name)
    }

    /// Returns a boolean application property. The text "true" also counts as true. A missing property counts as false.
    pub(super) fn boolean(&mut self, name: &'static str) -> bool {
        match self.get(name) {
            Some(Scalar::Boolean(truth)) => truth,
            None | Some(Scalar::Null) => false,
            Some(_) => self.text(name).is_some_and(|text| text.eq_ignore_ascii_case("true")),
        }
    }

    /// Returns a time in milliseconds since 1970. It may be a timestamp, a long or a string, because senders write
    /// `sendTimestamp` with different types.
    pub(super) fn time_ms(&mut self, name: &'static str) -> Option<i64> {
        match self.get(name)? {
            Scalar::Timestamp(time) => Some(time),
            Scalar::Long(number) => Some(number),
            Scalar::String(text) => text.parse::<jiff::Timestamp>().ok().map(|time| time.as_millisecond()),
            _ => {
                self.oddities.push(Oddity::WrongType { property: name, found: "another type" });
                None
            }
        }
    }

    pub(super) fn correlation(&mut self) -> Option<Cow<'m, str>> {
        let id = self.message.correlation_id()?;
        let found = match id {
            AmqpMessageId::String(text) => return Some(text),
            AmqpMessageId::Binary(_) => "binary",
            AmqpMessageId::Uuid(_) => "uuid",
            AmqpMessageId::Ulong(_) => "ulong",
        };
        self.oddities.push(Oddity::WrongType { property: "correlation-id", found });
        id_text(&id)
    }
}

/// Returns the first id that has the form of a run's message id, `<sequence>-<run uuid>`.
pub(super) fn first_identity(ids: &[&Option<Cow<'_, str>>]) -> Option<RunMessageId> {
    ids.iter().filter_map(|id| id.as_deref()).find_map(RunMessageId::read)
}
