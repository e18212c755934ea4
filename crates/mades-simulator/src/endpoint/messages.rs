//! Reads messages from the outbox, and writes the simulator's replies, inbox messages, events and status documents.
//! Payloads are passed on without a copy.
//!
//! If a part of a message cannot be read, the endpoint treats this part as missing. The endpoint therefore answers even
//! malformed messages that `DecodedMessage::decode` would refuse.
use crate::embedded::{DecodeError, EncodedMessage, Reader, Value, Writer};
use crate::model::{
    ConsumedMessage, DocumentKind, EndpointMode, RefusalReason, SendEventKind, SimulatorPlan, TracingValue, number_of,
};
use bytes::Bytes;
use mailrun_mades::api::message::{APPLICATION_PROPERTIES, DATA, HEADER, PROPERTIES, SectionFields, VALUE};
use mailrun_mades::api::status_document::{MessageStatus, StatusDocument};
use mailrun_mades::api::{RunMessageId, names};
use mailrun_mades::xml;
use quick_xml::events::Event;
use std::borrow::Cow;
use std::ops::Range;
use uuid::Uuid;

const MAX_TEXT_BYTES: usize = 1024;

/// Number of bytes at the beginning of the payload that are searched for the mRID, the identifier of a market document.
const DOCUMENT_HEAD_BYTES: usize = 4_096;

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct OutboxMessage {
    /// The correlation-id as the sender encoded it, because the reply must repeat it unchanged.
    correlation: Option<Bytes>,
    receiver_code: Option<Box<str>>,
    message_type: Option<Box<str>>,
    business_type: Option<Box<str>>,
    ba_message_id: Option<Box<str>>,
    ba_correlation_id: Option<Box<str>>,
    sender_application: Option<Box<str>>,
    /// Component code of the sender, or `None` to use the sender code in the plan.
    sender_code: Option<Box<str>>,
    tracing: bool,
    body: EncodedMessage,
    id: Uuid,
    payload_bytes: usize,
    /// Byte range of the content of the first data section within `body`.
    first_data: Range<usize>,
}

impl OutboxMessage {
    pub(super) fn read(mut message: EncodedMessage, id: Uuid) -> Self {
        let first = message.pieces().first().cloned().unwrap_or_default();
        let mut outbox_message = Self { id, ..Self::default() };
        let mut read = outbox_message.read_head(&first);
        if read == Err(DecodeError::Truncated) && message.pieces().len() > 1 {
            // The sections before the body are split over several pieces, so join the pieces and read again.
            message = EncodedMessage::from(message.whole());
            read = outbox_message.read_head(&message.whole());
        }
        if let Ok(Some(at)) = read {
            outbox_message.read_body(message, at);
        }
        outbox_message
    }

    /// Reads the sections before the body, and returns the position of the body if the body is
    /// data. The data itself may be in later pieces.
    fn read_head(&mut self, octets: &Bytes) -> Result<Option<usize>, DecodeError> {
        let mut reader = Reader::new(octets);
        loop {
            match reader.descriptor()?.and_then(|code| u8::try_from(code).ok()) {
                Some(DATA) => return Ok(Some(octets.len() - reader.rest().len())),
                Some(PROPERTIES) => self.read_properties(&reader.value()?, octets)?,
                Some(APPLICATION_PROPERTIES) => self.read_application_properties(&reader.value()?)?,
                Some(HEADER..PROPERTIES) => drop(reader.value()?),
                // Any other section means that the body is not binary data, or that the message is invalid.
                _ => return Ok(None),
            }
        }
    }

    fn read_properties(&mut self, section: &Value<'_>, octets: &Bytes) -> Result<(), DecodeError> {
        let mut fields = section.as_list().ok_or(DecodeError::Expected("properties"))?;
        fields.skip(5)?; // message-id, user-id, to, subject, reply-to
        let correlation = fields.field()?.filter(|id| id.octets().len() <= MAX_TEXT_BYTES);
        self.correlation = correlation.map(|id| octets.slice_ref(id.octets()));
        Ok(())
    }

    fn read_application_properties(&mut self, section: &Value<'_>) -> Result<(), DecodeError> {
        let mut entries = section.as_map().ok_or(DecodeError::Expected("application-properties"))?;
        while let Some(key) = entries.element()? {
            let Some(value) = entries.element()? else { break };
            let text = || value.as_string().filter(|text| text.len() <= MAX_TEXT_BYTES).map(Box::from);
            match key.as_text() {
                Some(names::RECEIVER_CODE) => self.receiver_code = text(),
                Some(names::MESSAGE_TYPE) => self.message_type = text(),
                Some(names::BUSINESS_TYPE) => self.business_type = text(),
                Some(names::BA_MESSAGE_ID) => self.ba_message_id = text(),
                Some(names::BA_CORRELATION_ID) => self.ba_correlation_id = text(),
                Some(names::SENDER_APPLICATION) => self.sender_application = text(),
                Some(names::IS_TRACING_MESSAGE) => self.tracing = value.as_bool().unwrap_or(false),
                _ => {}
            }
        }
        Ok(())
    }

    /// Usually, the rest of the message is a single data section. Its pieces are then kept without parsing or copying
    /// them. Otherwise, all data sections are parsed.
    fn read_body(&mut self, mut message: EncodedMessage, at: usize) {
        message.cut(at);
        let front = message.pieces().first().cloned().unwrap_or_default();
        let mut reader = Reader::new(&front);
        if let Ok(length) = reader.binary_length()
            && let head = front.len() - reader.rest().len()
            && head + length == message.bytes()
        {
            (self.body, self.first_data, self.payload_bytes) = (message, head..head + length, length);
            return;
        }
        let octets = message.whole();
        let mut reader = Reader::new(&octets);
        let mut end = 0;
        while let Ok(section) = reader.value() {
            let Some(data) = section.as_binary().filter(|_| section.descriptor() == Some(DATA.into())) else { break };
            if end == 0 {
                self.first_data = section.octets().len() - data.len()..section.octets().len();
            }
            self.payload_bytes += data.len();
            end += section.octets().len();
        }
        self.body = EncodedMessage::from(octets.slice(..end));
    }

    /// Returns what `Simulator` must know to decide the fate of the message: the identity, the size, the kind and, if
    /// the message is invalid, the reason to refuse it.
    pub(super) fn consumed(&self, plan: &SimulatorPlan) -> ConsumedMessage {
        let id = self.ba_message_id.as_deref();
        let identity = id.and_then(RunMessageId::read).map(|identity| (identity.sequence, identity.run));
        let handle = id.map(str::as_bytes).or(self.correlation.as_deref()).unwrap_or_default();
        let kind = self.kind(identity);
        ConsumedMessage {
            identity,
            number: identity.map_or_else(|| number_of(handle), |(sequence, _)| kind.chance_number(sequence)),
            bytes: self.payload_bytes,
            tracing: self.tracing,
            kind,
            flaw: self.flaw(plan),
        }
    }

    /// Recognises the bench's acknowledgements by their `baCorrelationID`, which names the acknowledged message. An
    /// acknowledgement has the same number as the acknowledged message, but another run id.
    fn kind(&self, identity: Option<(u64, Uuid)>) -> DocumentKind {
        let named = self.ba_correlation_id.as_deref().and_then(RunMessageId::read);
        match (identity, named) {
            (Some((sequence, run)), Some(of)) if of.sequence == sequence && of.run != run => {
                DocumentKind::Acknowledgement
            }
            _ => DocumentKind::Message,
        }
    }

    fn flaw(&self, plan: &SimulatorPlan) -> Option<RefusalReason> {
        let receiver = self.receiver_code.as_deref().unwrap_or_default();
        let kind = match plan.mode {
            EndpointMode::Toolbox => self.business_type.as_deref(),
            _ => self.message_type.as_deref(),
        };
        if receiver.is_empty() {
            return Some(RefusalReason::NoReceiver);
        }
        // In EDX, a receiver code has the form endpoint@SERVICE-X. `receivers` may list only the part before the `@`.
        let endpoint = receiver.split('@').next().unwrap_or(receiver);
        // Endpoint A receives acknowledgement documents, so the plan need not list its code in `receivers`.
        let is_known = |known: &String| known == receiver || known == endpoint;
        if !plan.receivers.is_empty() && !plan.receivers.iter().chain([&plan.sender_code]).any(is_known) {
            return Some(RefusalReason::UnknownReceiver);
        }
        if kind.unwrap_or_default().is_empty() {
            return Some(RefusalReason::NoType);
        }
        if self.body.bytes() == 0 {
            return Some(RefusalReason::NoData);
        }
        (self.payload_bytes as u64 > plan.max_payload_size).then_some(RefusalReason::TooLong)
    }

    /// Writes the header, the properties and the application properties, with which every message
    /// of the simulator begins.
    fn begin_message(&self, id: Uuid, at_ms: i64, entries: &[(&str, Option<&str>)]) -> Vec<u8> {
        let mut octets = Vec::with_capacity(512);
        let mut text = Uuid::encode_buffer();
        let id: &str = id.hyphenated().encode_lower(&mut text);
        let head = SectionFields { is_durable: true, priority: None, message_id: Some(id), created_at_ms: at_ms };
        let correlation = |fields: &mut Writer<'_>| match (&self.correlation, &self.ba_message_id) {
            (Some(correlation), _) => fields.raw(correlation),
            (None, Some(id)) => fields.string(id),
            (None, None) => fields.null(),
        };
        head.write(&mut octets, correlation, |map| {
            for (key, value) in entries {
                if let Some(value) = value {
                    map.string(key);
                    map.string(value);
                }
            }
        });
        octets
    }

    fn id_text(&self) -> String {
        self.id.to_string()
    }

    pub(super) fn reply_accepted(&self, at_ms: i64) -> EncodedMessage {
        let mut octets = self.begin_message(self.id, at_ms, &[(names::MESSAGE_ID, Some(&self.id_text()))]);
        Writer::new(&mut octets).described_binary(DATA, b"");
        octets.into()
    }

    /// Writes the reply of an ECP endpoint that refuses the message. Clients recognise a refusal by
    /// the missing `messageID`.
    pub(super) fn reply_refused(&self, refusal: RefusalReason, plan: &SimulatorPlan, at_ms: i64) -> EncodedMessage {
        let (code, text) = error_text(refusal, plan);
        let entries = [
            (names::ERROR_ID, Some(&*self.id_text())),
            (names::ERROR_CODE, Some(code)),
            (names::ERROR_MESSAGE, Some(text)),
            (names::ERROR_DETAILS, Some("mailrun mades-endpoint")),
            (names::RECEIVER_CODE, self.receiver_code.as_deref()),
            (names::BA_MESSAGE_ID, self.ba_message_id.as_deref()),
        ];
        let mut octets = self.begin_message(self.id, at_ms, &entries);
        Writer::new(&mut octets).described_binary(DATA, b"");
        octets.into()
    }

    /// Writes the message that endpoint B puts into its inbox. If `changed` is set, changes one byte of the payload.
    /// The number in `changed` selects this byte.
    pub(super) fn inbox(&self, changed: Option<u64>, plan: &SimulatorPlan, at_ms: i64) -> EncodedMessage {
        let sent_at = jiff::Timestamp::from_millisecond(at_ms).map(|time| time.to_string()).unwrap_or_default();
        let entries = [
            (names::MESSAGE_ID, Some(&*self.id_text())),
            (names::BA_MESSAGE_ID, self.ba_message_id.as_deref()),
            (names::SENDER_CODE, Some(self.sender_code.as_deref().unwrap_or(&plan.sender_code))),
            (names::RECEIVER_CODE, self.receiver_code.as_deref()),
            (names::MESSAGE_TYPE, self.message_type.as_deref()),
            (names::BUSINESS_TYPE, self.business_type.as_deref()),
            (names::SENDER_APPLICATION, self.sender_application.as_deref()),
            (names::BA_CORRELATION_ID, self.ba_correlation_id.as_deref()),
            (names::SEND_TIMESTAMP, Some(&*sent_at)),
        ];
        let mut message = EncodedMessage::from(self.begin_message(self.id, at_ms, &entries));
        match changed {
            Some(draw) if !self.first_data.is_empty() => message.push(self.changed_body(draw)),
            _ => self.body.pieces().iter().cloned().for_each(|piece| message.push(piece)),
        }
        message
    }

    pub(super) fn payload_bytes(&self) -> usize {
        self.payload_bytes
    }

    /// Writes the acknowledgement document of B's application, with `id` as its mRID. Returns `None` if the message
    /// itself is an acknowledgement document. The acknowledgement identifies the message only by the mRID of the
    /// received document, or by the id of the message if the received document has no mRID.
    pub(super) fn acknowledgement(&self, id: Uuid, rejects: bool, plan: &SimulatorPlan, at_ms: i64) -> Option<Self> {
        let received = match self.document_head() {
            Some(DocumentHead { is_acknowledgement: true, .. }) => return None,
            Some(DocumentHead { mrid: Some(mrid), .. }) => mrid,
            _ => self.ba_message_id.as_deref().map_or_else(|| self.id_text(), str::to_owned),
        };
        let own = id.simple().to_string();
        let created = jiff::Timestamp::from_millisecond(at_ms).unwrap_or_default();
        let created = created.strftime("%Y-%m-%dT%H:%M:%SZ");
        let (code, text) = if rejects { ("A02", "Message fully rejected") } else { ("A01", "Message fully accepted") };
        let received = quick_xml::escape::escape(&received);
        let xml = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\
             <Acknowledgement_MarketDocument xmlns=\"urn:iec62325.351:tc57wg16:451-1:acknowledgementdocument:8:1\">\
             <mRID>{own}</mRID><createdDateTime>{created}</createdDateTime>\
             <sender_MarketParticipant.mRID codingScheme=\"A01\">10V000000000002V</sender_MarketParticipant.mRID>\
             <sender_MarketParticipant.marketRole.type>A04</sender_MarketParticipant.marketRole.type>\
             <receiver_MarketParticipant.mRID codingScheme=\"A01\">10V000000000001X</receiver_MarketParticipant.mRID>\
             <receiver_MarketParticipant.marketRole.type>A46</receiver_MarketParticipant.marketRole.type>\
             <received_MarketDocument.mRID>{received}</received_MarketDocument.mRID>\
             <received_MarketDocument.revisionNumber>1</received_MarketDocument.revisionNumber>\
             <Reason><code>{code}</code><text>{text}</text></Reason></Acknowledgement_MarketDocument>"
        );
        let mut body = Vec::new();
        Writer::new(&mut body).described_binary(DATA, xml.as_bytes());
        let first_data = body.len() - xml.len()..body.len();
        Some(Self {
            sender_code: self.receiver_code.clone(),
            receiver_code: Some(plan.sender_code.as_str().into()),
            message_type: self.message_type.clone(),
            business_type: self.business_type.clone(),
            ba_message_id: Some(own.into()),
            body: body.into(),
            id,
            payload_bytes: xml.len(),
            first_data,
            ..Self::default()
        })
    }

    /// Reads the head of the document in the payload, or returns `None` if the payload is not XML.
    fn document_head(&self) -> Option<DocumentHead> {
        let mut at = 0;
        let mut front = Vec::new();
        for piece in self.body.pieces() {
            let from = self.first_data.start.saturating_sub(at).min(piece.len());
            at += piece.len();
            let length = (piece.len() - from).min(DOCUMENT_HEAD_BYTES - front.len());
            front.extend_from_slice(&piece[from..from + length]);
        }
        DocumentHead::read(&front)
    }

    fn changed_body(&self, draw: u64) -> Bytes {
        let mut octets = self.body.whole().to_vec();
        let place = self.first_data.start + (draw % self.first_data.len() as u64) as usize;
        // An XOR with a number from 1 to 255 always changes the byte.
        octets[place] ^= 1 + (draw >> 32) as u8 % 255;
        octets.into()
    }

    pub(super) fn event(&self, event: SendEventKind, plan: &SimulatorPlan, at_ms: i64) -> EncodedMessage {
        let failure = error_text(RefusalReason::Injected, plan);
        let failed = event == SendEventKind::Failed;
        let entries = [
            (names::MESSAGE_ID, Some(&*self.id_text())),
            (names::BA_MESSAGE_ID, self.ba_message_id.as_deref()),
            (names::RECEIVER_CODE, self.receiver_code.as_deref()),
            (names::MESSAGE_TYPE, self.message_type.as_deref()),
            (names::ERROR_CODE, failed.then_some(failure.0)),
            (names::ERROR_MESSAGE, failed.then_some(failure.1)),
        ];
        // An event needs an id of its own, because some brokers treat messages with equal ids as duplicates.
        let id = Uuid::from_u128(self.id.as_u128() ^ (event as u128 + 1) << 64);
        let mut octets = self.begin_message(id, at_ms, &entries);
        let state = match (event, plan.tracing_value) {
            (SendEventKind::Delivered, _) | (SendEventKind::Traced, TracingValue::Delivered) => "DELIVERED",
            (SendEventKind::Received, _) => "RECEIVED",
            (SendEventKind::Failed, _) => "FAILED",
            (SendEventKind::Traced, TracingValue::Tracing) => "TRACING",
        };
        Writer::new(&mut octets).described_string(VALUE, state);
        octets.into()
    }

    /// Writes the reply of an EDX toolbox, which contains the final status.
    pub(super) fn status(
        &self,
        refusal: Option<RefusalReason>,
        failed: bool,
        plan: &SimulatorPlan,
        at_ms: i64,
    ) -> EncodedMessage {
        let time = jiff::Timestamp::from_millisecond(at_ms).map(|time| time.to_string()).unwrap_or_default();
        let states: &[&str] = match (refusal, failed) {
            (Some(_), _) => &["FAILED"],
            (None, true) => &["ACCEPTED", "SENT", "FAILED"],
            (None, false) => &["ACCEPTED", "SENT", "SUCCESSFULLY_SENT", "DELIVERED", "RECEIVED"],
        };
        let status = |value: &&str| MessageStatus { changed_at: Some(time.clone()), ..MessageStatus::of(value) };
        let mut last = status(&states[states.len() - 1]);
        if refusal.is_some() || failed {
            last.text = Some(error_text(refusal.unwrap_or(RefusalReason::Injected), plan).1.to_owned());
        }
        let document = StatusDocument {
            last,
            original_message_id: refusal.is_none().then(|| self.id_text()),
            received_at: Some(time.clone()),
            history: states.iter().map(status).collect(),
        };
        let entries =
            [(names::BA_MESSAGE_ID, self.ba_message_id.as_deref()), (names::MESSAGE_ID, Some(&*self.id_text()))];
        let mut octets = self.begin_message(self.id, at_ms, &entries);
        Writer::new(&mut octets).described_binary(DATA, &document.write());
        octets.into()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct DocumentHead {
    mrid: Option<String>,
    is_acknowledgement: bool,
}

impl DocumentHead {
    /// Reads the name of the root element and its child `mRID`, the document's identifier. `front` is the beginning of
    /// the document, and may be cut anywhere.
    fn read(front: &[u8]) -> Option<Self> {
        // The text may be cut in the middle of a character, so omit up to three bytes at its end.
        let text = match xml::is_utf16(front) {
            true => [0, 1, 2, 3].iter().find_map(|cut| xml::decode(&front[..front.len().checked_sub(*cut)?]).ok())?,
            false => Cow::Borrowed(front.utf8_chunks().next()?.valid().trim_start_matches('\u{feff}')),
        };
        let mut reader = quick_xml::Reader::from_str(&text);
        let mut head = None;
        let mut depth = 0_usize;
        let mut is_in_id = false;
        // The parser may return the text of an element in several pieces, so join them here.
        let mut id = String::new();
        loop {
            match reader.read_event() {
                Ok(Event::Start(element)) => {
                    let name = element.local_name();
                    is_in_id = depth == 1 && name.as_ref() == "mRID";
                    let is_acknowledgement = name.as_ref() == "Acknowledgement_MarketDocument";
                    head.get_or_insert(Self { mrid: None, is_acknowledgement });
                    depth += 1;
                }
                Ok(Event::End(_)) if is_in_id => {
                    if let Some(head) = &mut head {
                        head.mrid = Some(id.trim().to_owned()).filter(|id| !id.is_empty());
                    }
                    return head;
                }
                Ok(Event::End(_)) => depth = depth.saturating_sub(1),
                Ok(Event::Text(content)) if is_in_id => id.push_str(&content.xml10_content()),
                Ok(Event::CData(content)) if is_in_id => id.push_str(&content.xml10_content()),
                Ok(Event::GeneralRef(reference)) if is_in_id => match xml::referenced(&reference) {
                    Ok(character) => id.push(character),
                    Err(_) => return head,
                },
                Ok(Event::Eof) | Err(_) => return head,
                Ok(_) => {}
            }
        }
    }
}

/// Writes one message of each kind with which the simulator can answer an outbox message, such as replies and events.
/// Fuzz targets call this function with arbitrary bytes as the outbox message.
#[cfg(any(test, feature = "checks"))]
#[doc(hidden)]
pub fn fuzz_outbox_message(message: EncodedMessage, plan: &SimulatorPlan, draw: u64) -> Vec<EncodedMessage> {
    let outbox_message = OutboxMessage::read(message, Uuid::from_u128(draw.into()));
    let consumed = outbox_message.consumed(plan);
    let refusal = consumed.flaw.unwrap_or(RefusalReason::Injected);
    let event = [SendEventKind::Delivered, SendEventKind::Received, SendEventKind::Failed, SendEventKind::Traced];
    let mut written = vec![
        outbox_message.reply_accepted(0),
        outbox_message.reply_refused(refusal, plan, 0),
        outbox_message.inbox(None, plan, 0),
        outbox_message.inbox(Some(draw), plan, 0),
        outbox_message.status(consumed.flaw, false, plan, 0),
        outbox_message.status(None, true, plan, 0),
    ];
    let document = outbox_message.acknowledgement(Uuid::from_u128(1), draw.is_multiple_of(2), plan, 0);
    written.extend(document.map(|document| document.inbox(None, plan, 0)));
    written.extend(event.map(|kind| outbox_message.event(kind, plan, 0)));
    written
}

/// Returns the code and the text of a refusal. ECP's codes are not public, so these codes are the
/// simulator's own.
fn error_text(refusal: RefusalReason, plan: &SimulatorPlan) -> (&str, &str) {
    match refusal {
        RefusalReason::Injected => (&plan.faults.reject_code, &plan.faults.reject_message),
        RefusalReason::NoReceiver => ("ECP-STANDIN-101", "the message has no receiverCode"),
        RefusalReason::UnknownReceiver => ("ECP-STANDIN-102", "unknown receiverCode"),
        RefusalReason::NoType => ("ECP-STANDIN-103", "the message has no messageType or businessType"),
        RefusalReason::NoData => ("ECP-STANDIN-104", "the body is not a data section"),
        RefusalReason::TooLong => ("ECP-STANDIN-105", "the payload is larger than this endpoint accepts"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fe2o3_amqp_types::messaging::message::__private::{Deserializable, Serializable};
    use fe2o3_amqp_types::messaging::{ApplicationProperties, Body, Data, Message, MessageId, Properties};
    use fe2o3_amqp_types::primitives::{Binary, SimpleValue};
    use mailrun_mades::api::{
        DecodedMessage, EventState, InboxMessage, OutgoingProperties, ReplyOutcome, SendEvent, payload,
    };
    use proptest::prelude::*;

    const ID: Uuid = Uuid::from_u128(5);
    const RUN: Uuid = Uuid::from_u128(9);

    fn decoded_by_fe2o3(message: &EncodedMessage) -> Message<Body<serde_amqp::Value>> {
        serde_amqp::from_slice::<Deserializable<Message<_>>>(&message.whole()).unwrap().0
    }

    fn id() -> impl Strategy<Value = MessageId> {
        prop_oneof![
            ".{0,20}".prop_map(MessageId::String),
            any::<u64>().prop_map(MessageId::Ulong),
            any::<[u8; 16]>().prop_map(|octets| MessageId::Uuid(octets.into())),
            any::<Vec<u8>>().prop_map(|octets| MessageId::Binary(Binary::from(octets))),
        ]
    }

    fn submitted(payload_octets: &[u8]) -> Vec<u8> {
        let mut template = OutgoingProperties::new("ecp-endpoint", "TEST").template(RUN, payload(payload_octets));
        template.fill(12, 34).encoded().whole().to_vec()
    }

    fn outbox_message(payload_octets: &[u8]) -> OutboxMessage {
        OutboxMessage::read(EncodedMessage::from(submitted(payload_octets)), ID)
    }

    /// Decodes a message as the bench does, and checks that the independent library fe2o3-amqp can decode it too.
    fn read(message: &EncodedMessage) -> DecodedMessage {
        decoded_by_fe2o3(message);
        DecodedMessage::decode(message).unwrap()
    }

    fn pieces(octets: &[u8], length: usize) -> EncodedMessage {
        let mut message = EncodedMessage::default();
        octets.chunks(length).for_each(|piece| message.push(Bytes::copy_from_slice(piece)));
        message
    }

    #[test]
    fn what_the_bench_sends_is_understood() {
        let outbox_message = outbox_message(b"octets");
        let consumed = outbox_message.consumed(&SimulatorPlan::default());
        assert_eq!((consumed.identity, consumed.number, consumed.bytes), (Some((12, RUN)), 12, 6));
        assert_eq!((consumed.flaw, consumed.tracing), (None, false));
    }

    #[test]
    fn an_acknowledgement_is_known_by_the_message_that_it_names() {
        let kind_of = |run, about_run| {
            let outgoing = OutgoingProperties { about_run, ..OutgoingProperties::new("a", "t") };
            let mut template = outgoing.template(run, payload(*b"x"));
            let message = OutboxMessage::read(template.fill(12, 34).encoded(), ID);
            let consumed = message.consumed(&SimulatorPlan::default());
            (consumed.kind, consumed.number)
        };
        assert_eq!(kind_of(Uuid::from_u128(77), Some(RUN)), (DocumentKind::Acknowledgement, 12 | 1 << 63));
        assert_eq!(kind_of(RUN, None), (DocumentKind::Message, 12));
        assert_eq!(kind_of(RUN, Some(RUN)), (DocumentKind::Message, 12), "a conversation that it began itself");
    }

    #[test]
    fn what_is_written_the_bench_understands() {
        let outbox_message = outbox_message(b"octets");
        let plan = SimulatorPlan::default();
        let identity = Some(RunMessageId { sequence: 12, run: RUN });

        let message = read(&outbox_message.reply_accepted(5));
        let reply = mailrun_mades::api::Reply::read(&message);
        assert_eq!((&reply.outcome, reply.identity()), (&ReplyOutcome::Accepted, identity));
        assert_eq!((reply.message_id.as_deref(), reply.oddities), (Some(&*ID.to_string()), vec![]));

        let message = read(&outbox_message.reply_refused(RefusalReason::TooLong, &plan, 5));
        let reply = mailrun_mades::api::Reply::read(&message);
        let ReplyOutcome::Refused(refusal) = &reply.outcome else { panic!("{reply:?}") };
        assert_eq!((refusal.code.as_deref(), reply.identity()), (Some("ECP-STANDIN-105"), identity));
        assert_eq!(refusal.message.as_deref(), Some("the payload is larger than this endpoint accepts"));
        assert_eq!((reply.message_id, reply.oddities), (None, vec![]));

        for (kind, state) in [
            (SendEventKind::Delivered, EventState::Delivered),
            (SendEventKind::Received, EventState::Received),
            (SendEventKind::Failed, EventState::Failed),
            (SendEventKind::Traced, EventState::Tracing),
        ] {
            let message = read(&outbox_message.event(kind, &plan, 5));
            let event = SendEvent::read(&message);
            assert_eq!((event.identity(), event.oddities), (identity, vec![]));
            assert_eq!(event.error_code.is_some(), state == EventState::Failed);
            assert_eq!(event.state, Some(state));
        }

        let compatible = SimulatorPlan { tracing_value: TracingValue::Delivered, ..SimulatorPlan::default() };
        let message = read(&outbox_message.event(SendEventKind::Traced, &compatible, 5));
        assert_eq!(SendEvent::read(&message).state, Some(EventState::Delivered));
    }

    #[test]
    fn a_status_says_how_it_went() {
        let outbox_message = outbox_message(b"octets");
        let plan = SimulatorPlan::default();
        for (refusal, failed, last, states) in
            [(None, false, "RECEIVED", 5), (None, true, "FAILED", 3), (Some(RefusalReason::NoType), true, "FAILED", 1)]
        {
            let message = read(&outbox_message.status(refusal, failed, &plan, 5));
            let reply = mailrun_mades::api::Reply::read(&message);
            let ReplyOutcome::Status(status) = &reply.outcome else { panic!("{reply:?}") };
            assert_eq!((status.last.value.as_str(), status.history.len()), (last, states));
            assert_eq!(status.original_message_id.is_some(), refusal.is_none());
            assert_eq!(reply.ba_message_id, Some(format!("12-{RUN}").into()));
        }
    }

    #[test]
    fn a_payload_is_handed_on_octet_for_octet_or_with_one_changed() {
        let octets: Vec<u8> = (0..100_000u32).map(|number| number as u8).collect();
        for length in [1_000_000, 40_000, 7_000, 100] {
            let outbox_message = OutboxMessage::read(pieces(&submitted(&octets), length), ID);
            assert_eq!(outbox_message.consumed(&SimulatorPlan::default()).bytes, octets.len(), "in pieces of {length}");
            let message = read(&outbox_message.inbox(None, &SimulatorPlan::default(), 5));
            let inbox = InboxMessage::read(&message);
            assert_eq!(inbox.content.octets().collect::<Vec<_>>(), [&octets[..]]);
            let identity = Some(RunMessageId { sequence: 12, run: RUN });
            assert_eq!((inbox.identity(), mailrun_mades::api::inbox::identity(&message)), (identity, identity));
            assert_eq!((inbox.sent_at_ms, &inbox.oddities), (Some(5), &vec![]));
            let message = read(&outbox_message.inbox(Some(u64::MAX / 3), &SimulatorPlan::default(), 5));
            let changed = InboxMessage::read(&message).content.octets().next().unwrap().to_vec();
            let differences = changed.iter().zip(&octets).filter(|(a, b)| a != b).count();
            assert_eq!((changed.len(), differences), (octets.len(), 1));
        }
    }

    #[test]
    fn several_data_sections_stay_several_and_a_footer_goes() {
        let mut octets = Vec::new();
        let mut out = Writer::new(&mut octets);
        out.described_binary(DATA, b"abc");
        out.described_binary(DATA, b"de");
        out.described_map(0x78, |_| {});
        let outbox_message = OutboxMessage::read(EncodedMessage::from(octets), ID);
        assert_eq!(outbox_message.payload_bytes, 5);
        let message = read(&outbox_message.inbox(None, &SimulatorPlan::default(), 5));
        assert_eq!(InboxMessage::read(&message).content.octets().collect::<Vec<_>>(), [&b"abc"[..], b"de"]);
    }

    #[test]
    fn the_head_of_a_document_has_its_mrid() {
        let head = |text: &str| DocumentHead::read(text.as_bytes());
        for (text, mrid) in [
            ("<?xml version='1.0'?><!-- <mRID>0</mRID> --><a xmlns='u'>\n<mRID> 5 </mRID><x><mRID>6</mRID>", Some("5")),
            ("<n:a xmlns:n='u'><n:mRID>5</n:mRID></n:a>", Some("5")),
            ("<a><x><mRID>6</mRID></x><mRID>5</mRID></a>", Some("5")),
            ("<a><x><mRID>6</mRID></x></a>", None),
            ("<a><mRID></mRID></a>", None),
            ("<a><mRID> &#53;<!-- x --><![CDATA[1]]>\n</mRID></a>", Some("51")),
            ("<!DOCTYPE a SYSTEM 'a.dtd'><a><mRID>5</mRID></a>", Some("5")),
            ("<a><mRID>5&e;</mRID></a>", None),
            ("<a><mRID>5", None),
            ("<a><x", None),
        ] {
            let message = head(text).unwrap();
            assert_eq!((message.mrid.as_deref(), message.is_acknowledgement), (mrid, false), "{text}");
        }
        assert_eq!((head(""), head("octets"), head("<")), (None, None, None));
        let utf16: Vec<u8> =
            "\u{feff}<a><mRID>5</mRID>\u{1f600}</a>".encode_utf16().flat_map(u16::to_le_bytes).collect();
        let least = 2 * "?<a><mRID>5</mRID>".len();
        for cut in least..=utf16.len() {
            assert_eq!(DocumentHead::read(&utf16[..cut]).unwrap().mrid.as_deref(), Some("5"), "{cut}");
        }
        (0..least).for_each(|cut| drop(DocumentHead::read(&utf16[..cut])));
        assert!(head("<Acknowledgement_MarketDocument>").unwrap().is_acknowledgement);
    }

    #[test]
    fn an_acknowledgement_document_names_the_document_and_goes_the_other_way() {
        let plan = SimulatorPlan::default();
        for (payload, about) in [(&b"<a><mRID>x</mRID>"[..], "x"), (b"octets", &format!("12-{RUN}"))] {
            for (rejects, code) in [(false, "A01"), (true, "A02")] {
                let document = outbox_message(payload).acknowledgement(ID, rejects, &plan, 5_000).unwrap();
                assert_eq!(document.acknowledgement(ID, rejects, &plan, 5), None, "it is not acknowledged itself");
                let message = read(&document.inbox(None, &plan, 5_000));
                let inbox = InboxMessage::read(&message);
                assert_eq!((inbox.identity(), inbox.oddities), (None, vec![]));
                assert_eq!((inbox.sender_code.as_deref(), inbox.ba_correlation_id), (Some("ecp-endpoint"), None));
                assert_eq!(inbox.receiver_code.as_deref(), Some("mailrun-endpoint-a"));
                let xml = String::from_utf8(inbox.content.octets().flatten().copied().collect()).unwrap();
                assert_eq!(xml.len(), document.payload_bytes());
                for part in [
                    format!("<received_MarketDocument.mRID>{about}</received_MarketDocument.mRID>"),
                    format!("<Reason><code>{code}</code>"),
                    "<createdDateTime>1970-01-01T00:00:05Z</createdDateTime>".to_owned(),
                    format!("<mRID>{}</mRID>", ID.simple()),
                ] {
                    assert!(xml.contains(&part), "{part} in {xml}");
                }
            }
        }
    }

    #[test]
    fn flaws_are_found() {
        let with = |receiver: &str, kind: &str, write_body: fn(&mut Writer<'_>)| {
            let mut octets = Vec::new();
            let mut out = Writer::new(&mut octets);
            out.described_map(APPLICATION_PROPERTIES, |map| {
                [("receiverCode", receiver), ("messageType", kind)].iter().for_each(|(key, value)| {
                    map.string(key);
                    map.string(value);
                });
            });
            write_body(&mut out);
            OutboxMessage::read(EncodedMessage::from(octets), ID)
        };
        let data: fn(&mut Writer<'_>) = |out| out.described_binary(DATA, b"12345");
        let value: fn(&mut Writer<'_>) = |out| out.described_string(VALUE, "text");
        let plan = SimulatorPlan { receivers: vec!["b".to_owned()], max_payload_size: 4, ..SimulatorPlan::default() };
        for (receiver, kind, body, flaw) in [
            ("", "t", data, Some(RefusalReason::NoReceiver)),
            ("c", "t", data, Some(RefusalReason::UnknownReceiver)),
            ("b", "", data, Some(RefusalReason::NoType)),
            ("b", "t", value, Some(RefusalReason::NoData)),
            ("b@SERVICE", "t", data, Some(RefusalReason::TooLong)),
            // Endpoint A receives acknowledgement documents, so its code is valid even if `receivers` does not list it.
            ("mailrun-endpoint-a", "t", data, Some(RefusalReason::TooLong)),
        ] {
            assert_eq!(with(receiver, kind, body).consumed(&plan).flaw, flaw);
        }
        assert_eq!(with("b", "t", data).consumed(&SimulatorPlan::default()).flaw, None);
    }

    #[test]
    fn sections_may_be_described_by_symbols() {
        let plain = submitted(b"12345");
        let symbols = |data: &[u8]| {
            let mut octets = Vec::new();
            let mut reader = Reader::new(&plain);
            while !reader.rest().is_empty() {
                let section = reader.value().unwrap();
                let name: &[u8] = match section.descriptor().unwrap() as u8 {
                    HEADER => b"\0\xa3\x10amqp:header:list",
                    PROPERTIES => b"\0\xa3\x14amqp:properties:list",
                    APPLICATION_PROPERTIES => b"\0\xa3\x1famqp:application-properties:map",
                    DATA => data,
                    other => panic!("{other:#x}"),
                };
                octets.extend_from_slice(&[name, &section.octets()[3..]].concat());
            }
            octets
        };
        let expected = OutboxMessage::read(EncodedMessage::from(plain.clone()), ID);
        for data in [&b"\0\xa3\x10amqp:data:binary"[..], b"\0\xb3\0\0\0\x10amqp:data:binary"] {
            for length in [7, usize::MAX] {
                let octets = symbols(data);
                let read = OutboxMessage::read(pieces(&octets, length.min(octets.len())), ID);
                assert_eq!(read.consumed(&SimulatorPlan::default()).flaw, None);
                assert_eq!(read.consumed(&SimulatorPlan::default()), expected.consumed(&SimulatorPlan::default()));
            }
        }
    }

    #[test]
    fn a_correlation_id_of_any_type_comes_back_as_it_was() {
        let mut octets = Vec::new();
        let mut out = Writer::new(&mut octets);
        out.described_list(PROPERTIES, |fields| {
            (0..5).for_each(|_| fields.null());
            fields.ulong(77);
        });
        out.described_binary(DATA, b"x");
        let outbox_message = OutboxMessage::read(EncodedMessage::from(octets), ID);
        let reply = read(&outbox_message.reply_accepted(5));
        assert_eq!(reply.correlation_id(), Some(mailrun_mades::api::AmqpMessageId::Ulong(77)));
    }

    proptest! {
        #[test]
        fn what_fe2o3_writes_is_understood(
            correlation in proptest::option::of(id()), receiver in ".{0,20}", sections in proptest::collection::vec(any::<Vec<u8>>(), 1..3),
            length in 1usize..200,
        ) {
            let entries = [(names::RECEIVER_CODE.to_owned(), SimpleValue::String(receiver.clone()))];
            let data: Vec<Data> = sections.iter().cloned().map(Data::from).collect();
            let message = Message {
                header: None,
                delivery_annotations: None,
                message_annotations: None,
                properties: Some(Properties { correlation_id: correlation.clone(), ..Properties::default() }),
                application_properties: Some(ApplicationProperties(entries.into_iter().collect())),
                body: Body::<serde_amqp::Value>::Data(data.into()),
                footer: None,
            };
            let octets = serde_amqp::to_vec(&Serializable(&message)).unwrap();
            let outbox_message = OutboxMessage::read(pieces(&octets, length), ID);
            prop_assert_eq!(outbox_message.receiver_code.as_deref(), Some(&*receiver));
            let inbox = decoded_by_fe2o3(&outbox_message.inbox(None, &SimulatorPlan::default(), 5));
            prop_assert_eq!(inbox.body, message.body);
            prop_assert_eq!(inbox.properties.and_then(|properties| properties.correlation_id), correlation);
        }

        #[test]
        fn any_octets_are_a_letter_with_or_without_flaws(
            octets in proptest::collection::vec(any::<u8>(), 0..200), keep in 0usize..400, draw: u64,
        ) {
            let good = submitted(b"payload");
            let mut all = good[..keep.min(good.len())].to_vec();
            all.extend(octets);
            let outbox_message = OutboxMessage::read(pieces(&all, 50), ID);
            let consumed = outbox_message.consumed(&SimulatorPlan::default());
            prop_assert!(consumed.bytes <= all.len());
            for message in [outbox_message.inbox(Some(draw), &SimulatorPlan::default(), 5), outbox_message.reply_accepted(5)] {
                prop_assert!(message.bytes() > 0);
            }
        }
    }
}
