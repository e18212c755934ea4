//! Writes and reads the Acknowledgement_MarketDocument of IEC 62325-451-1, with which the receiver of a market document
//! accepts or rejects that document.
//!
//! ```xml
//! <Acknowledgement_MarketDocument xmlns="urn:iec62325.351:tc57wg16:451-1:acknowledgementdocument:8:1">
//!   <mRID>…</mRID> … <received_MarketDocument.mRID>…</received_MarketDocument.mRID> …
//!   <Reason><code>A01</code><text>Message fully accepted</text></Reason>
//! </Acknowledgement_MarketDocument>
//! ```
//! The reader ignores the XML namespace, which names the version of the schema, because operators use several versions.
//! The elements that the reader needs are the same in all versions.
use super::run_payloads::RunPayloads;
use mailrun_mades::Uuid;
use mailrun_mades::api::RunMessageId;
use mailrun_mades::xml;
use memchr::memmem;
use quick_xml::events::Event;
use quick_xml::reader::Reader;

const ROOT: &str = "Acknowledgement_MarketDocument";
/// Number of bytes at the beginning of a payload in which the name of the root element must appear. They leave room for
/// an XML declaration and comments before the root element.
const PROLOGUE_BYTES: usize = 1_024;
/// Maximum size of a document in bytes. Even a document that rejects thousands of time series, each
/// with its reasons, is smaller.
const MAX_BYTES: usize = 4 << 20;
/// Reason code for "Message fully accepted".
const ACCEPTED: &str = "A01";
const MAX_TEXT_CHARS: usize = 200;

/// Writes the acknowledgement documents that the bench sends. The elements are in the order of the schema, and the
/// market participants are invented.
#[derive(Debug)]
pub(super) struct AcknowledgementText {
    about_run: Uuid,
    pub(super) run: Uuid,
    created: String,
}

impl AcknowledgementText {
    pub(super) fn new(about_run: Uuid, created: jiff::Timestamp) -> Self {
        // The documents need an id that differs from the run's id, so flip one bit of it. The chance that another run
        // has the new id is 1 in 2^122.
        let run = Uuid::from_u128(about_run.as_u128() ^ 1);
        Self { about_run, run, created: created.strftime("%Y-%m-%dT%H:%M:%SZ").to_string() }
    }

    /// Writes the document that acknowledges a message. The document names the message by the mRID of its payload, or
    /// by the message's identity if the payload has no mRID.
    pub(super) fn render(&self, number: u64, sequence: u64, payloads: &RunPayloads) -> Vec<u8> {
        let Self { about_run, run, created } = self;
        let own = RunMessageId { sequence: number, run: *run };
        let received = payloads.document_id(sequence).map(|id| String::from_utf8_lossy(&id.text()).into_owned());
        let received = received.unwrap_or_else(|| RunMessageId { sequence: number, run: *about_run }.to_string());
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\r\n\
             <{ROOT} xmlns=\"urn:iec62325.351:tc57wg16:451-1:acknowledgementdocument:8:1\">\r\n\
             <mRID>{own}</mRID><createdDateTime>{created}</createdDateTime>\
             <sender_MarketParticipant.mRID codingScheme=\"A01\">10V000000000002V</sender_MarketParticipant.mRID>\
             <sender_MarketParticipant.marketRole.type>A34</sender_MarketParticipant.marketRole.type>\
             <receiver_MarketParticipant.mRID codingScheme=\"A01\">10V000000000001X</receiver_MarketParticipant.mRID>\
             <receiver_MarketParticipant.marketRole.type>A46</receiver_MarketParticipant.marketRole.type>\
             <received_MarketDocument.mRID>{received}</received_MarketDocument.mRID>\
             <received_MarketDocument.revisionNumber>1</received_MarketDocument.revisionNumber>\
             <Reason><code>{ACCEPTED}</code><text>Message fully accepted</text></Reason>\r\n\
             </{ROOT}>\r\n"
        )
        .into_bytes()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ReceivedAcknowledgement {
    pub(super) about: String,
    /// Code that says why the receiver accepted or rejected the message: A01 means fully accepted. If the document
    /// gives several reasons, the first code other than A01 is kept, because it shows that the message is not fully
    /// accepted.
    pub(super) code: String,
    pub(super) text: String,
}

impl ReceivedAcknowledgement {
    /// Reads a payload, or returns `None` if the payload is not an acknowledgement document.
    ///
    /// # Errors
    /// Fails if the payload is an acknowledgement document but cannot be read, for example because it has no reason
    /// code. The error says why.
    pub(super) fn read<'o>(octets: impl Iterator<Item = &'o [u8]>) -> Option<Result<Self, String>> {
        let sections: Vec<&[u8]> = octets.collect();
        let Some(front) = sections.first().filter(|first| first.len() >= 2 * PROLOGUE_BYTES || sections.len() == 1)
        else {
            return find_root(&sections.concat()).and_then(|whole| read_xml(whole).transpose());
        };
        find_root(front)?;
        match sections[..] {
            [whole] => read_xml(whole).transpose(),
            _ => read_xml(&sections.concat()).transpose(),
        }
    }

    pub(super) fn is_accepted(&self) -> bool {
        self.code == ACCEPTED
    }
}

/// Returns the payload if its beginning contains the name of an acknowledgement's root element. This check avoids
/// parsing all other payloads, which may be megabytes long.
fn find_root(octets: &[u8]) -> Option<&[u8]> {
    let front = &octets[..octets.len().min(PROLOGUE_BYTES)];
    if xml::is_utf16(front) {
        // Remove the zero bytes of UTF-16, so that ASCII text can be searched for the name of the root element.
        let ascii: Vec<u8> = octets.iter().take(2 * PROLOGUE_BYTES).copied().filter(|octet| *octet != 0).collect();
        return memmem::find(&ascii, ROOT.as_bytes()).map(|_| octets);
    }
    memmem::find(front, ROOT.as_bytes()).map(|_| octets)
}

fn read_xml(octets: &[u8]) -> Result<Option<ReceivedAcknowledgement>, String> {
    if octets.len() > MAX_BYTES {
        return Err(format!("an acknowledgement document of {} bytes", octets.len()));
    }
    let malformed = |reason: &dyn ToString| format!("not well-formed XML: {}", reason.to_string());
    let text = xml::decode(octets).map_err(|error| malformed(&error))?;
    let mut reader = Reader::from_str(&text);
    let mut document = ReceivedAcknowledgement::default();
    let mut path: Vec<String> = Vec::new();
    let mut reason = ReceivedAcknowledgement::default();
    loop {
        match reader.read_event().map_err(|error| malformed(&error))? {
            Event::Start(element) => {
                let name = element.local_name().as_ref().to_owned();
                if path.is_empty() && name != ROOT {
                    return Ok(None);
                }
                path.push(name);
            }
            Event::End(_) => {
                // The text of an element may come in several pieces, so trim its end only after the last piece.
                if let Some(value) = field(&path, &mut document, &mut reason) {
                    value.truncate(value.trim_end().len());
                }
                if path.len() == 2 && path[1] == "Reason" {
                    let reason = std::mem::take(&mut reason);
                    if document.code.is_empty() || document.is_accepted() {
                        (document.code, document.text) = (reason.code, reason.text);
                    }
                }
                path.pop();
            }
            Event::Text(content) => append(field(&path, &mut document, &mut reason), &content.xml10_content()),
            Event::CData(content) => append(field(&path, &mut document, &mut reason), &content.xml10_content()),
            Event::GeneralRef(reference) => {
                let character = xml::referenced(&reference).map_err(|error| malformed(&error))?;
                append(field(&path, &mut document, &mut reason), character.encode_utf8(&mut [0; 4]));
            }
            Event::DocType(document_type) if xml::defines_something(&document_type) => {
                return Err("an acknowledgement document whose document type defines entities or elements".to_owned());
            }
            Event::Eof => break,
            _ => {}
        }
    }
    if !path.is_empty() {
        return Err(format!("not well-formed XML: it ends within {}", path[path.len() - 1]));
    }
    match (document.about.is_empty(), document.code.is_empty()) {
        (true, _) => Err("an acknowledgement document without received_MarketDocument.mRID".to_owned()),
        (false, true) => Err("an acknowledgement document without the code of a Reason".to_owned()),
        (false, false) => Ok(Some(document)),
    }
}

fn field<'d>(
    path: &[String],
    document: &'d mut ReceivedAcknowledgement,
    reason: &'d mut ReceivedAcknowledgement,
) -> Option<&'d mut String> {
    match path {
        [_, name] if name == "received_MarketDocument.mRID" => Some(&mut document.about),
        [_, parent, name] if parent == "Reason" && name == "code" => Some(&mut reason.code),
        [_, parent, name] if parent == "Reason" && name == "text" => Some(&mut reason.text),
        _ => None,
    }
}

/// Appends a piece of an element's text to `value`. Drops white space at the beginning of the text, and cuts `value` to
/// `MAX_TEXT_CHARS` characters.
fn append(value: Option<&mut String>, piece: &str) {
    let Some(value) = value else { return };
    let piece = if value.is_empty() { piece.trim_start() } else { piece };
    value.extend(piece.chars().take(MAX_TEXT_CHARS.saturating_sub(value.chars().count())));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Option<Result<ReceivedAcknowledgement, String>> {
        let (front, back) = text.as_bytes().split_at(text.len() / 2);
        let whole = ReceivedAcknowledgement::read(std::iter::once(text.as_bytes()));
        assert_eq!(ReceivedAcknowledgement::read([front, back].into_iter()), whole, "in two sections");
        whole
    }

    fn document(inner: &str) -> String {
        format!("<?xml version=\"1.0\"?>\n<!-- Fingrid --><{ROOT} xmlns=\"urn:x\"><mRID>own</mRID>{inner}</{ROOT}>")
    }

    fn about(id: &str) -> String {
        format!("<received_MarketDocument.mRID>{id}</received_MarketDocument.mRID>")
    }

    const REASON: &str = "<Reason><code>A01</code></Reason>";

    #[test]
    fn it_is_known_by_what_it_acknowledges_and_by_its_reasons() {
        for (reasons, code, text) in [
            (REASON, "A01", ""),
            ("<Reason><code> A02 </code><text>after gate closure</text></Reason>", "A02", "after gate closure"),
            ("<Reason><code>A01</code></Reason><Reason><code>B08</code><text>late</text></Reason>", "B08", "late"),
            ("<Reason><code>A03</code></Reason><Reason><code>A01</code></Reason>", "A03", ""),
            (
                "<Rejected_TimeSeries><mRID>1</mRID><Reason><code>A59</code></Reason></Rejected_TimeSeries><Reason><code>A01</code></Reason>",
                "A01",
                "",
            ),
        ] {
            let read = read(&document(&format!("{}{reasons}", about("\n 17 ")))).unwrap().unwrap();
            let expected = ReceivedAcknowledgement { about: "17".into(), code: code.into(), text: text.into() };
            assert_eq!(read, expected, "{reasons}");
            assert_eq!(read.is_accepted(), code == "A01");
        }
        let prefixed = format!(
            "<a:{ROOT} xmlns:a=\"u\"><a:received_MarketDocument.mRID>5</a:received_MarketDocument.mRID><a:Reason><a:code>A01</a:code></a:Reason></a:{ROOT}>"
        );
        assert_eq!(read(&prefixed).unwrap().unwrap().about, "5");
    }

    #[test]
    fn it_may_be_any_xml() {
        let plain = document(&format!("{}<Reason><code>A01</code><text>a &amp; b</text></Reason>", about("17")));
        let expected = read(&plain).unwrap().unwrap();
        assert_eq!((&*expected.about, &*expected.code, &*expected.text), ("17", "A01", "a & b"));
        let utf16 = |unit: fn(u16) -> [u8; 2]| -> Vec<u8> {
            format!("\u{feff}{}", plain.replace("1.0", "1.0\" encoding=\"UTF-16"))
                .encode_utf16()
                .flat_map(unit)
                .collect()
        };
        for octets in [
            plain.replace("A01", "&#65;01").replace("17", "&#x31;7").into_bytes(),
            plain.replace(">A01<", "> <![CDATA[A01]]> <").replace("a &amp; b", "<![CDATA[a & b]]>").into_bytes(),
            plain.replace(">17<", ">1<!-- x --><![CDATA[7]]><").into_bytes(),
            plain.replace("<!-- Fingrid -->", &format!("<!DOCTYPE {ROOT} SYSTEM \"a.dtd\">")).into_bytes(),
            format!("\u{feff}{plain}").into_bytes(),
            utf16(u16::to_be_bytes),
            utf16(u16::to_le_bytes),
        ] {
            let whole = ReceivedAcknowledgement::read(std::iter::once(&octets[..]));
            assert_eq!(whole.unwrap().unwrap(), expected, "{:?}", String::from_utf8_lossy(&octets));
            let (front, back) = octets.split_at(octets.len() / 2);
            let halves = ReceivedAcknowledgement::read([front, back].into_iter());
            assert_eq!(halves.unwrap().unwrap(), expected, "in two sections");
        }
    }

    #[test]
    fn another_document_is_none_and_a_broken_one_is_named() {
        for other in ["", "octets", "<x/>", &format!("<x><!-- {ROOT} --></x>"), &" ".repeat(2_000)] {
            assert_eq!(read(other), None, "{other}");
        }
        let long = format!("{}<{ROOT}>", " ".repeat(2_000));
        assert_eq!(read(&long), None, "the root begins at the front");
        for (broken, reason) in [
            (document(&about("1")), "without the code of a Reason"),
            (document(REASON), "without received_MarketDocument.mRID"),
            (document("</a>"), "not well-formed XML"),
            (
                document("").replace("</Acknowledgement_MarketDocument>", ""),
                "ends within Acknowledgement_MarketDocument",
            ),
            (format!("<!DOCTYPE x [<!ENTITY e 'A01'>]><{ROOT}/>"), "whose document type defines"),
            (document("<Reason><code>&e;</code></Reason>"), "the entity \"e\" is not defined"),
            (document(&"x".repeat(MAX_BYTES)), "an acknowledgement document of 4194"),
        ] {
            let error = read(&broken).unwrap().unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_not(
            front in "(<|>|/|a|Reason|code|A01|&|;|!|\\[|\"){0,20}", octets in proptest::collection::vec(any::<u8>(), 0..60),
        ) {
            let text = [document(&front).as_bytes(), &octets].concat();
            if let Some(Ok(read)) = ReceivedAcknowledgement::read(std::iter::once(&text[..])) {
                prop_assert!(!read.about.is_empty() && read.about.len() <= 4 * MAX_TEXT_CHARS);
            }
        }
    }
}
