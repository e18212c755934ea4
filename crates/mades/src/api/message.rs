//! A message of AMQP 1.0 (part 3 §3.2). A received message is read in place, and a message to send
//! is written in one pass.
//!
//! ```text
//! header · delivery-annotations · message-annotations · properties · application-properties · body · footer
//! ```
//! The sections come in this order, each at most once. Only the `data` and `amqp-sequence` sections of a body may be
//! repeated. A message that breaks this rule, or has a property of the wrong type, cannot be decoded.
use super::Payload;
use bytes::Bytes;
use mailrun_amqp::{DecodeError, EncodedMessage, Reader, Scalar, Value, Writer};
use std::borrow::Cow;
use uuid::Uuid;

pub const HEADER: u8 = 0x70;
const DELIVERY_ANNOTATIONS: u8 = 0x71;
const MESSAGE_ANNOTATIONS: u8 = 0x72;
pub const PROPERTIES: u8 = 0x73;
pub const APPLICATION_PROPERTIES: u8 = 0x74;
pub const DATA: u8 = 0x75;
const SEQUENCE: u8 = 0x76;
pub const VALUE: u8 = 0x77;
const FOOTER: u8 = 0x78;
const DEFAULT_PRIORITY: u8 = 4;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AmqpMessageId<'m> {
    String(Cow<'m, str>),
    Binary(Cow<'m, [u8]>),
    Uuid(Uuid),
    Ulong(u64),
}

impl<'m> AmqpMessageId<'m> {
    fn read(value: &Value<'m>) -> Option<Self> {
        Some(match value.as_scalar()? {
            Scalar::String(text) => Self::String(text.into()),
            Scalar::Binary(octets) => Self::Binary(octets.into()),
            Scalar::Uuid(octets) => Self::Uuid(Uuid::from_bytes(octets)),
            Scalar::Ulong(number) => Self::Ulong(number),
            _ => return None,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageHeader {
    /// Set if the sender asks the broker to keep the message over a restart.
    pub is_durable: bool,
    pub priority: u8,
    /// Number of earlier deliveries that failed, according to the broker.
    pub delivery_count: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyKind {
    Data,
    Sequence,
    Value,
    Empty,
}

/// A received message whose sections have been checked. Clones are cheap, because they share the bytes of the message.
#[derive(Clone, Debug, PartialEq)]
pub struct DecodedMessage {
    octets: Bytes,
    header: Option<MessageHeader>,
    properties: Option<(usize, usize)>,
    application_properties: Option<(usize, usize)>,
    body: (usize, usize),
    body_kind: BodyKind,
}

impl DecodedMessage {
    /// Checks the sections of a received message, and records where each section begins and ends. The content of a
    /// section is read only when a caller asks for it.
    ///
    /// # Errors
    /// Fails if the bytes are not the sections of a message in the right order, or if a property has the wrong type.
    pub fn decode(message: &EncodedMessage) -> Result<Self, DecodeError> {
        let octets = message.whole();
        let mut reader = Reader::new(&octets);
        let mut decoded = Self {
            header: None,
            properties: None,
            application_properties: None,
            body: (0, 0),
            body_kind: BodyKind::Empty,
            octets: Bytes::new(),
        };
        let mut last = 0;
        while !reader.rest().is_empty() {
            let from = octets.len() - reader.rest().len();
            let section = reader.value()?;
            let to = octets.len() - reader.rest().len();
            last = next_section(last, &section)?;
            decoded.read_section(last, &section, (from, to))?;
        }
        decoded.octets = octets;
        Ok(decoded)
    }

    fn read_section(&mut self, code: u8, section: &Value<'_>, span: (usize, usize)) -> Result<(), DecodeError> {
        match code {
            HEADER => self.header = Some(read_header(section)?),
            DELIVERY_ANNOTATIONS | MESSAGE_ANNOTATIONS | FOOTER => {
                section.as_map().ok_or(DecodeError::Expected("a map of annotations"))?;
            }
            PROPERTIES => {
                check_properties(section)?;
                self.properties = Some(span);
            }
            APPLICATION_PROPERTIES => {
                check_application_properties(section)?;
                self.application_properties = Some(span);
            }
            _ => self.read_body(code, section, span)?,
        }
        Ok(())
    }

    fn read_body(&mut self, code: u8, section: &Value<'_>, (from, to): (usize, usize)) -> Result<(), DecodeError> {
        let is_valid = match code {
            DATA => section.as_binary().is_some(),
            SEQUENCE => section.as_list().is_some(),
            // A body value may have any AMQP type, so check only that a string or symbol is valid UTF-8.
            _ => !section.is_text() || section.as_text().is_some(),
        };
        if !is_valid {
            return Err(DecodeError::Expected("a body"));
        }
        self.body_kind = match code {
            DATA => BodyKind::Data,
            SEQUENCE => BodyKind::Sequence,
            _ => BodyKind::Value,
        };
        let start = if self.body.1 == 0 { from } else { self.body.0 };
        self.body = (start, to);
        Ok(())
    }

    pub fn octets(&self) -> &Bytes {
        &self.octets
    }

    pub fn header(&self) -> Option<MessageHeader> {
        self.header
    }

    fn section(&self, span: Option<(usize, usize)>) -> Option<Value<'_>> {
        let (from, to) = span?;
        Reader::new(&self.octets[from..to]).value().ok()
    }

    /// Returns a field of the section `properties` by its position, counted from 0.
    fn property(&self, number: u32) -> Option<Value<'_>> {
        let mut fields = self.section(self.properties)?.as_list()?;
        fields.skip(number).ok()?;
        fields.field().ok()?
    }

    pub fn correlation_id(&self) -> Option<AmqpMessageId<'_>> {
        AmqpMessageId::read(&self.property(5)?)
    }

    pub fn created_at_ms(&self) -> Option<i64> {
        match self.property(9)?.as_scalar()? {
            Scalar::Timestamp(time) => Some(time),
            _ => None,
        }
    }

    /// Returns the application properties in the order in which they came, or `None` if the message has no such
    /// section.
    pub fn application_properties(&self) -> Option<Vec<(&str, Scalar<'_>)>> {
        let mut entries = self.section(self.application_properties)?.as_map()?;
        let mut properties = Vec::with_capacity(16);
        while let (Ok(Some(key)), Ok(Some(value))) = (entries.element(), entries.element()) {
            properties.extend(key.as_text().zip(value.as_scalar()));
        }
        Some(properties)
    }

    /// Returns the bytes of each `data` section, or `None` if the body does not consist of such sections.
    pub(super) fn data(&self) -> Option<impl Iterator<Item = &[u8]>> {
        let mut reader = Reader::new(&self.octets[self.body.0..self.body.1]);
        (self.body_kind == BodyKind::Data)
            .then(|| std::iter::from_fn(move || reader.value().ok().and_then(|section| section.as_binary())))
    }

    /// Returns the value of the `amqp-value` section, or `None` if the body consists of other sections.
    pub(super) fn value(&self) -> Option<Value<'_>> {
        (self.body_kind == BodyKind::Value).then(|| self.section(Some(self.body)))?
    }

    pub(super) fn has_sequence(&self) -> bool {
        self.body_kind == BodyKind::Sequence
    }
}

/// Returns the descriptor of a section. Fails if the section may not follow the section with the descriptor `last`.
fn next_section(last: u8, section: &Value<'_>) -> Result<u8, DecodeError> {
    let code = section.descriptor().and_then(|code| u8::try_from(code).ok()).unwrap_or(0);
    let is_next = match code {
        HEADER..=APPLICATION_PROPERTIES => code > last,
        DATA | SEQUENCE => last <= APPLICATION_PROPERTIES || last == code,
        VALUE => last <= APPLICATION_PROPERTIES,
        FOOTER => last < FOOTER,
        _ => false,
    };
    if is_next { Ok(code) } else { Err(DecodeError::Expected("the next section of a message")) }
}

fn read_header(section: &Value<'_>) -> Result<MessageHeader, DecodeError> {
    let mut fields = section.as_list().ok_or(DecodeError::Expected("a header"))?;
    let is_durable = fields.boolean()?;
    let priority = fields.number_or(u64::from(DEFAULT_PRIORITY))?;
    fields.number()?; // ttl
    fields.boolean()?; // first-acquirer
    let delivery_count = fields.number_or(0)?;
    Ok(MessageHeader {
        is_durable,
        priority: u8::try_from(priority).map_err(|_| DecodeError::Expected("a priority"))?,
        delivery_count: u32::try_from(delivery_count).map_err(|_| DecodeError::Expected("a delivery-count"))?,
    })
}

/// Checks that every property has the type that the specification demands (part 3 §3.2.4).
fn check_properties(section: &Value<'_>) -> Result<(), DecodeError> {
    const FIELDS: [fn(&Scalar<'_>) -> bool; 13] = [
        is_id,
        |user_id| matches!(user_id, Scalar::Binary(_)),
        is_string, // to
        is_string, // subject
        is_string, // reply-to
        is_id,     // correlation-id
        is_symbol, // content-type
        is_symbol, // content-encoding
        is_time,   // absolute-expiry-time
        is_time,   // creation-time
        is_string, // group-id
        |group_sequence| matches!(group_sequence, Scalar::Uint(_)),
        is_string, // reply-to-group-id
    ];
    let mut fields = section.as_list().ok_or(DecodeError::Expected("properties"))?;
    for is_of_type in FIELDS {
        let Some(value) = fields.field()? else { continue };
        if !value.as_scalar().is_some_and(|value| is_of_type(&value)) {
            return Err(DecodeError::Expected("a property of its type"));
        }
    }
    Ok(())
}

fn is_id(value: &Scalar<'_>) -> bool {
    matches!(value, Scalar::String(_) | Scalar::Binary(_) | Scalar::Uuid(_) | Scalar::Ulong(_))
}

fn is_string(value: &Scalar<'_>) -> bool {
    matches!(value, Scalar::String(_))
}

fn is_symbol(value: &Scalar<'_>) -> bool {
    matches!(value, Scalar::Symbol(_))
}

fn is_time(value: &Scalar<'_>) -> bool {
    matches!(value, Scalar::Timestamp(_))
}

/// Checks that all keys are strings and that all values have simple types (§3.2.5).
fn check_application_properties(section: &Value<'_>) -> Result<(), DecodeError> {
    let mut entries = section.as_map().ok_or(DecodeError::Expected("application-properties"))?;
    while let Some(key) = entries.element()? {
        key.as_string().ok_or(DecodeError::Expected("the name of a property"))?;
        let value = entries.element()?.ok_or(DecodeError::Expected("the value of a property"))?;
        value.as_scalar().ok_or(DecodeError::Expected("a property of a simple type"))?;
    }
    Ok(())
}

/// A message to be sent: the encoded sections before the payload, and the payload. They are separate so that the
/// payload need not be copied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AmqpMessage {
    pub(crate) sections: Vec<u8>,
    pub(crate) payload: Payload,
}

impl AmqpMessage {
    pub fn bytes(&self) -> usize {
        self.sections.len() + self.payload.len()
    }

    pub fn encoded(&self) -> EncodedMessage {
        let mut message = EncodedMessage::from(self.sections.clone());
        message.push(self.payload.clone());
        message
    }
}

/// Fields of an outgoing message's header and properties. The header is written even if all its fields have their
/// default values.
#[derive(Clone, Debug, Default)]
pub struct SectionFields<'a> {
    pub is_durable: bool,
    /// Priority, or `None` for the default priority of 4.
    pub priority: Option<u8>,
    pub message_id: Option<&'a str>,
    pub created_at_ms: i64,
}

impl SectionFields<'_> {
    /// Writes the sections before the body. The closure `correlation` must write the correlation-id or null, and
    /// `entries` must write the keys and values of the application properties.
    pub fn write(
        &self,
        out: &mut Vec<u8>,
        correlation: impl FnOnce(&mut Writer<'_>),
        entries: impl FnOnce(&mut Writer<'_>),
    ) {
        let mut out = Writer::new(out);
        out.described_list(HEADER, |fields| {
            fields.boolean(self.is_durable);
            if let Some(priority) = self.priority {
                fields.ubyte(priority);
            }
        });
        out.described_list(PROPERTIES, |fields| {
            match self.message_id {
                Some(id) => fields.string(id),
                None => fields.null(),
            }
            (0..4).for_each(|_| fields.null()); // user-id, to, subject, reply-to
            correlation(fields);
            (0..3).for_each(|_| fields.null()); // content-type, content-encoding, absolute-expiry-time
            fields.timestamp(self.created_at_ms);
        });
        out.described_map(APPLICATION_PROPERTIES, entries);
    }
}
