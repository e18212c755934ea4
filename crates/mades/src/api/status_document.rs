//! Writes and reads the StatusDocument of an EDX toolbox, which has the states of a message as XML.
//!
//! ```xml
//! <StatusDocument xmlns="edx.entsoe.eu.StatusDocument.xsd">
//!   <finalMessageStatus><status v="RECEIVED"/><changeTimestamp v="…"/><statusText v="…"/>
//!   </finalMessageStatus>
//!   <edxReplyMetadata><originalmessageID v="…"/><receiveTimestamp v="…"/></edxReplyMetadata>
//!   <statusHistory><messageStatus>…</messageStatus>…</statusHistory>
//! </StatusDocument>
//! ```
//!
//! `StatusDocument::read` refuses a document that is too large, is nested too deeply, or lists too many states in its
//! history. It also refuses document types with definitions, because entities can expand to any size.
use crate::xml;
use quick_xml::XmlVersion;
use quick_xml::escape::escape;
use quick_xml::events::{BytesStart, Event};
use quick_xml::reader::Reader;
use std::fmt::Write;

const NAMESPACE: &str = "edx.entsoe.eu.StatusDocument.xsd";
const MAX_BYTES: usize = 1024 * 1024;
const MAX_DEPTH: usize = 8;
const MAX_HISTORY: usize = 1000;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessageStatus {
    /// The state: `ACCEPTED`, `SENT`, `SUCCESSFULLY_SENT`, `DELIVERED`, `RECEIVED`, `FAILED`, or any text that a peer
    /// sends instead.
    pub value: String,
    /// Time at which the message reached this state, as written in the document: the text is not parsed.
    pub changed_at: Option<String>,
    pub text: Option<String>,
}

impl MessageStatus {
    pub fn of(value: &str) -> Self {
        Self { value: value.to_owned(), ..Self::default() }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatusDocument {
    pub last: MessageStatus,
    /// Id that the toolbox gave the message, or `None` if the toolbox refused the message before giving it an id.
    pub original_message_id: Option<String>,
    /// Time at which the receiver got the message, as written in the document: the text is not parsed.
    pub received_at: Option<String>,
    /// All states in the order in which they were reached.
    pub history: Vec<MessageStatus>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StatusDocumentError {
    /// The document is larger than any real status document.
    #[error("the status document has {0} bytes; at most {MAX_BYTES} are accepted")]
    TooLarge(usize),
    #[error("the status document is not well-formed XML: {0}")]
    Malformed(String),
    /// The document has a document type that defines something, such as entities.
    #[error("the document type of the status document defines entities or elements")]
    DocumentType,
    /// The nesting or the number of states in the history exceeds a limit that no real status document reaches.
    #[error("the status document is nested too deeply or its history is too long")]
    Excessive,
    /// The document is not a status document, or it has no final status.
    #[error("the document has no final status")]
    NoStatus,
}

impl StatusDocument {
    /// Reads a status document and skips unknown elements.
    ///
    /// # Errors
    /// Fails if the document has no final status, exceeds a limit, or is not well-formed XML.
    pub fn read(octets: &[u8]) -> Result<Self, StatusDocumentError> {
        if octets.len() > MAX_BYTES {
            return Err(StatusDocumentError::TooLarge(octets.len()));
        }
        let text = xml::decode(octets).map_err(StatusDocumentError::Malformed)?;
        let mut reader = Reader::from_str(&text);
        let mut parser = StatusParser::default();
        loop {
            match reader.read_event().map_err(malformed)? {
                Event::Start(element) => {
                    parser.open(&element)?;
                }
                Event::Empty(element) => {
                    parser.open(&element)?;
                    parser.path.pop();
                }
                Event::End(_) => {
                    parser.path.pop();
                }
                Event::DocType(document_type) if xml::defines_something(&document_type) => {
                    return Err(StatusDocumentError::DocumentType);
                }
                Event::Eof => break,
                _ => {}
            }
        }
        parser.finish()
    }

    pub fn write(&self) -> Vec<u8> {
        let mut xml = format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?><StatusDocument xmlns=\"{NAMESPACE}\">");
        write_status(&mut xml, "finalMessageStatus", &self.last);
        xml.push_str("<edxReplyMetadata>");
        write_value(&mut xml, "originalmessageID", self.original_message_id.as_deref());
        write_value(&mut xml, "receiveTimestamp", self.received_at.as_deref());
        xml.push_str("</edxReplyMetadata><statusHistory>");
        for status in &self.history {
            write_status(&mut xml, "messageStatus", status);
        }
        xml.push_str("</statusHistory></StatusDocument>");
        xml.into_bytes()
    }
}

fn write_status(xml: &mut String, name: &str, status: &MessageStatus) {
    let _ = write!(xml, "<{name}>");
    write_value(xml, "status", Some(&status.value));
    write_value(xml, "changeTimestamp", status.changed_at.as_deref());
    write_value(xml, "statusText", status.text.as_deref());
    let _ = write!(xml, "</{name}>");
}

fn write_value(xml: &mut String, name: &str, value: Option<&str>) {
    let Some(value) = value else { return };
    let _ = write!(xml, "<{name} v=\"");
    for character in escape(value).chars() {
        match character {
            // Write line breaks and tabs as character references. XML parsers replace unescaped line breaks and tabs in
            // attributes with spaces (XML 1.0 §3.3.3).
            '\n' | '\r' | '\t' => {
                let _ = write!(xml, "&#{};", u32::from(character));
            }
            other if !is_xml(other) => xml.push('\u{fffd}'),
            other => xml.push(other),
        }
    }
    xml.push_str("\"/>");
}

/// Returns true if XML can represent the character (XML 1.0 §2.2).
fn is_xml(character: char) -> bool {
    !matches!(character, '\0'..='\x08' | '\x0b' | '\x0c' | '\x0e'..='\x1f' | '\u{fffe}' | '\u{ffff}')
}

fn malformed(error: impl ToString) -> StatusDocumentError {
    StatusDocumentError::Malformed(error.to_string())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Element {
    Document,
    Last,
    Metadata,
    History,
    Entry,
    Status,
    ChangedAt,
    Text,
    OriginalId,
    ReceivedAt,
    Other,
}

impl Element {
    fn of(name: &str) -> Self {
        match name {
            "StatusDocument" => Self::Document,
            "finalMessageStatus" => Self::Last,
            "edxReplyMetadata" => Self::Metadata,
            "statusHistory" => Self::History,
            "messageStatus" => Self::Entry,
            "status" => Self::Status,
            "changeTimestamp" => Self::ChangedAt,
            "statusText" => Self::Text,
            "originalmessageID" => Self::OriginalId,
            "receiveTimestamp" => Self::ReceivedAt,
            _ => Self::Other,
        }
    }
}

#[derive(Default)]
struct StatusParser {
    path: Vec<Element>,
    has_status: bool,
    document: StatusDocument,
}

impl StatusParser {
    fn open(&mut self, element: &BytesStart<'_>) -> Result<(), StatusDocumentError> {
        if self.path.len() == MAX_DEPTH {
            return Err(StatusDocumentError::Excessive);
        }
        self.path.push(Element::of(element.local_name().as_ref()));
        let value = value(element)?;
        match (self.path.as_slice(), value) {
            ([Element::Document, Element::History, Element::Entry], _) => {
                if self.document.history.len() == MAX_HISTORY {
                    return Err(StatusDocumentError::Excessive);
                }
                self.document.history.push(MessageStatus::default());
            }
            ([Element::Document, Element::Last, field], Some(value)) => {
                self.has_status |= *field == Element::Status;
                set(&mut self.document.last, *field, value);
            }
            ([Element::Document, Element::History, Element::Entry, field], Some(value)) => {
                if let Some(entry) = self.document.history.last_mut() {
                    set(entry, *field, value);
                }
            }
            ([Element::Document, Element::Metadata, Element::OriginalId], Some(value)) => {
                self.document.original_message_id = Some(value);
            }
            ([Element::Document, Element::Metadata, Element::ReceivedAt], Some(value)) => {
                self.document.received_at = Some(value);
            }
            _ => {}
        }
        Ok(())
    }

    fn finish(self) -> Result<StatusDocument, StatusDocumentError> {
        if !self.path.is_empty() {
            return Err(StatusDocumentError::Malformed("it is truncated".to_owned()));
        }
        if self.has_status { Ok(self.document) } else { Err(StatusDocumentError::NoStatus) }
    }
}

fn set(status: &mut MessageStatus, field: Element, value: String) {
    match field {
        Element::Status => status.value = value,
        Element::ChangedAt => status.changed_at = Some(value),
        Element::Text => status.text = Some(value),
        _ => {}
    }
}

/// Returns the value of the attribute `v`, in which these documents keep their texts.
fn value(element: &BytesStart<'_>) -> Result<Option<String>, StatusDocumentError> {
    for attribute in element.attributes() {
        let attribute = attribute.map_err(malformed)?;
        if attribute.key.as_ref() == "v" {
            let value = attribute.normalized_value(XmlVersion::Implicit1_0).map_err(malformed)?;
            return match value.chars().find(|character| !is_xml(*character)) {
                None => Ok(Some(value.into_owned())),
                Some(other) => Err(malformed(format!("{other:?} is not allowed in XML"))),
            };
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_document_of_a_toolbox_is_read() {
        let xml = br#"<?xml version="1.0" encoding="UTF-8" standalone="yes"?>
            <ns2:StatusDocument xmlns:ns2="edx.entsoe.eu.StatusDocument.xsd">
              <ns2:finalMessageStatus>
                <ns2:status v="FAILED"/>
                <ns2:changeTimestamp v="2021-03-01T09:00:00Z"/>
                <ns2:statusText v="This toolbox has no relation to the service &quot;MYSERVICE&quot;."/>
              </ns2:finalMessageStatus>
              <ns2:edxReplyMetadata><ns2:receiveTimestamp v="2021-03-01T09:00:01Z"></ns2:receiveTimestamp></ns2:edxReplyMetadata>
              <ns2:statusHistory>
                <ns2:messageStatus><ns2:status v="ACCEPTED"/></ns2:messageStatus>
                <ns2:messageStatus><ns2:status v="FAILED"/></ns2:messageStatus>
              </ns2:statusHistory>
            </ns2:StatusDocument>"#;
        let read = StatusDocument::read(xml).unwrap();
        assert_eq!(read.last.value, "FAILED");
        assert_eq!(read.last.text.as_deref(), Some("This toolbox has no relation to the service \"MYSERVICE\"."));
        assert_eq!(read.original_message_id, None);
        assert_eq!(read.received_at.as_deref(), Some("2021-03-01T09:00:01Z"));
        assert_eq!(read.history, [MessageStatus::of("ACCEPTED"), MessageStatus::of("FAILED")]);
    }

    #[test]
    fn a_document_may_be_any_xml() {
        let plain = "<!DOCTYPE StatusDocument SYSTEM 'a.dtd'><StatusDocument><finalMessageStatus>\
                     <status v='&#82;ECEIVED'/></finalMessageStatus></StatusDocument>";
        let utf16: Vec<u8> = format!("\u{feff}{plain}").encode_utf16().flat_map(u16::to_le_bytes).collect();
        for octets in [plain.as_bytes(), format!("\u{feff}{plain}").as_bytes(), &utf16] {
            assert_eq!(StatusDocument::read(octets).unwrap().last, MessageStatus::of("RECEIVED"));
        }
    }

    #[test]
    fn what_is_no_status_document_is_refused() {
        let cases: [(Vec<u8>, &str); 10] = [
            (b"".to_vec(), "no final status"),
            (b"<StatusDocument/>".to_vec(), "no final status"),
            (b"<a><finalMessageStatus><status v='X'/></finalMessageStatus></a>".to_vec(), "no final status"),
            (b"<StatusDocument><finalMessageStatus>".to_vec(), "well-formed"),
            (b"<StatusDocument><status v=\"&e;\"/></StatusDocument>".to_vec(), "well-formed"),
            (b"<StatusDocument><status v=\"a\0\"/></StatusDocument>".to_vec(), "well-formed"),
            (b"<StatusDocument><status v=\"&#x1f;\"/></StatusDocument>".to_vec(), "well-formed"),
            (
                b"<!DOCTYPE a [<!ENTITY e 'x'>]><StatusDocument/>".to_vec(),
                "document type of the status document defines",
            ),
            (b"<a>".repeat(9), "nested too deeply"),
            (vec![b' '; MAX_BYTES + 1], "are accepted"),
        ];
        for (xml, complaint) in cases {
            let error = StatusDocument::read(&xml).unwrap_err().to_string();
            assert!(error.contains(complaint), "{error} for {:?}", String::from_utf8_lossy(&xml[..xml.len().min(80)]));
        }
        let entries = "<messageStatus/>".repeat(MAX_HISTORY + 1);
        let long = format!("<StatusDocument><statusHistory>{entries}</statusHistory></StatusDocument>");
        assert_eq!(StatusDocument::read(long.as_bytes()), Err(StatusDocumentError::Excessive));
    }

    fn status() -> impl Strategy<Value = MessageStatus> {
        let text = "[^\0-\u{8}\u{b}\u{c}\u{e}-\u{1f}\u{fffe}\u{ffff}]{0,20}";
        (text, proptest::option::of(text), proptest::option::of(text))
            .prop_map(|(value, changed_at, text)| MessageStatus { value, changed_at, text })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            last in status(),
            original_message_id in proptest::option::of(".{0,20}[a-z&<>\"']"),
            history in proptest::collection::vec(status(), 0..5),
        ) {
            let clean = |text: String| text.chars().filter(|c| !c.is_control() && !matches!(c, '\u{fffe}' | '\u{ffff}')).collect::<String>();
            let document = StatusDocument {
                last,
                original_message_id: original_message_id.map(clean),
                received_at: None,
                history,
            };
            prop_assert_eq!(StatusDocument::read(&document.write()), Ok(document));
        }
    }
}
