//! Writes and checks the payloads of messages. The bench writes a payload once and changes it in place for each
//! message, and the receiver checks that each payload arrived unchanged.
//!
//! ```text
//! random   X-Mailrun: v1 …CRLF CRLF  incompressible bytes
//! xml      <?xml …?> <Publication_MarketDocument> <mRID>…</mRID>
//!          <!-- X-Mailrun: v1 …CRLF CRLF --> … points … blanks </…>
//! file     the file, unchanged
//! ```
//! The trace has the same format as the trace in mail (crate `measurement`). It holds the run, the number, the time,
//! and a checksum of the bytes after it. A file, or a payload that is too small for a trace, has no checksum, so the
//! receiver compares all its bytes with what was sent. In an XML document, the receiver also compares the bytes before
//! the trace, which contain the mRID.
use super::document_id::{DOCUMENT_ID_BYTES, DocumentId};
use super::market_document::DocumentText;
use super::options::PayloadKind;
use anyhow::{Context, Result, bail};
use bytes::BytesMut;
use mailrun_mades::Uuid;
use mailrun_measurement::record::Varied;
use mailrun_measurement::trace::{Checksum, RecipientNumbering, ZeroPhase};
use mailrun_measurement::{RunId, Trace, TraceReader, TraceResult};
use mailrun_process::outputs;
use mailrun_schedule::distribution::{Distribution, RandomStream};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::time::Duration;

/// The checksum of the body is stored after each multiple of this number of bytes, so that the bench can compute the
/// checksum of a shorter body quickly.
const CHECKSUM_STRIDE: usize = 4_096;
const MAX_FILE_BYTES: u64 = 1 << 30;

/// The fixed texts of an XML payload, in their order. Between them stand the mRID, the trace and the body.
const XML_BEFORE_ID: &[u8] = b"<?xml version=\"1.0\" encoding=\"UTF-8\"?>\r\n<Publication_MarketDocument>\r\n<mRID>";
const XML_BEFORE_TRACE: &[u8] = b"</mRID>\r\n<!--\r\n";
const XML_AFTER: &[u8] = b"\r\n-->\r\n";
const XML_TAIL: &[u8] = b"</Publication_MarketDocument>\r\n";

#[derive(Debug)]
pub(super) struct Payloads {
    /// The bytes before the body, including the trace. Empty if the payload has no trace.
    head: Vec<u8>,
    /// Offset of the mRID in `head`, or `None` if the payload is not an XML document.
    id_at: Option<usize>,
    trace_at: usize,
    /// The body of a message of the maximum size. The bodies of smaller messages are prefixes of this body.
    body: Vec<u8>,
    /// A body is cut only at multiples of this number of bytes, so that no time series point is cut in two.
    unit: usize,
    tail: &'static [u8],
    /// The checksums of the body up to each multiple of [`CHECKSUM_STRIDE`] bytes. The checksum in a trace covers all
    /// bytes after the empty line behind the trace, so these checksums also cover the bytes of `head` after that line.
    checksums: Vec<Checksum>,
    sizes: Distribution,
    seed: u64,
    run: RunId,
}

impl Payloads {
    /// # Errors
    /// Fails if the file (`--payload`) cannot be read or exceeds 1 GiB, or if a payload does not fit into memory.
    pub(super) fn new(kind: &PayloadKind, sizes: &Distribution, seed: u64, run: RunId) -> Result<Self> {
        let max_bytes = usize::try_from(sizes.max()).context("--payload-size exceeds the memory of this machine")?;
        let payloads = |head: Vec<u8>, body: Vec<u8>, sizes: &Distribution| Self {
            checksums: prefix_checksums(head.get(Trace::HEADER_BYTES + 2..).unwrap_or_default(), &body),
            head,
            id_at: None,
            trace_at: 0,
            body,
            unit: 1,
            tail: &[],
            sizes: sizes.clone(),
            seed,
            run,
        };
        Ok(match kind {
            PayloadKind::Random => payloads(head(run, &[], b"\r\n"), random(seed, max_bytes), sizes),
            PayloadKind::Bare => payloads(Vec::new(), random(seed, max_bytes), sizes),
            PayloadKind::Xml => {
                let time_series = xml_points(seed, max_bytes);
                let text = DocumentText {
                    before_id: XML_BEFORE_ID.to_vec(),
                    head: XML_AFTER.to_vec(),
                    time_series,
                    tail: XML_TAIL,
                };
                Self { unit: POINT_BYTES, sizes: sizes.clone(), ..Self::document(text, seed, run) }
            }
            PayloadKind::File(path) => {
                let length = std::fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?.len();
                if length > MAX_FILE_BYTES {
                    bail!("{} has {length} bytes; a payload can have at most 1 GiB", path.display());
                }
                let body = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
                let sizes = Distribution::constant(body.len() as u64);
                payloads(Vec::new(), body, &sizes)
            }
        })
    }

    pub(super) fn document(text: DocumentText, seed: u64, run: RunId) -> Self {
        let id_at = text.before_id.len();
        let before = [&text.before_id, &[b'0'; DOCUMENT_ID_BYTES][..], XML_BEFORE_TRACE].concat();
        let head = head(run, &before, &text.head);
        let trace_at = before.len();
        let size = head.len() + text.time_series.len() + text.tail.len();
        Self {
            checksums: prefix_checksums(&head[trace_at + Trace::HEADER_BYTES + 2..], &text.time_series),
            head,
            id_at: Some(id_at),
            trace_at,
            body: text.time_series,
            unit: 1,
            tail: text.tail,
            sizes: Distribution::constant(size as u64),
            seed,
            run,
        }
    }

    pub(super) fn size(&self, sequence: u64) -> usize {
        self.sizes.sample(self.seed, RandomStream::Message, sequence) as usize
    }

    pub(super) fn mean_size(&self) -> f64 {
        self.sizes.mean()
    }

    pub(super) fn varied(&self) -> Option<Varied> {
        self.sizes.summary()
    }

    /// Writes the payload of a message into the buffer, which must be empty or hold an earlier payload of this run.
    pub(super) fn render(&self, sequence: u64, created: Duration, buffer: &mut BytesMut) {
        let size = self.size(sequence);
        let is_ready = buffer.len() == size && self.sizes.as_constant().is_some();
        if !self.is_traced(size) {
            if !is_ready {
                buffer.clear();
                buffer.extend_from_slice(&self.body[..size]);
            }
            return;
        }
        if !is_ready {
            self.render_whole(size, buffer);
        }
        if let Some(at) = self.id_at {
            buffer[at..at + DOCUMENT_ID_BYTES].copy_from_slice(&self.id(sequence).text());
        }
        let header = &mut buffer[self.trace_at..self.trace_at + Trace::HEADER_BYTES];
        Trace::patch(header, ZeroPhase::default(), sequence, created);
    }

    fn render_whole(&self, size: usize, buffer: &mut BytesMut) {
        let (cut, blanks) = self.cut(size);
        buffer.clear();
        buffer.reserve(size);
        buffer.extend_from_slice(&self.head);
        buffer.extend_from_slice(&self.body[..cut]);
        buffer.resize(buffer.len() + blanks, b' ');
        buffer.extend_from_slice(self.tail);
        let trace = &mut buffer[self.trace_at..self.trace_at + Trace::HEADER_BYTES];
        Trace::patch_checksum(trace, self.checksum(cut, blanks));
    }

    /// Returns true if the received bytes are the payload of the message. The time in a trace is not compared.
    pub(super) fn is_intact<'o>(&self, sequence: u64, octets: impl Iterator<Item = &'o [u8]>) -> bool {
        let size = self.size(sequence);
        if !self.is_traced(size) {
            return is_equal(octets, &self.body[..size]);
        }
        let mut reader = TraceReader::default();
        let mut length = 0;
        let mut is_before_intact = true;
        octets.for_each(|block| {
            reader.receive(block);
            is_before_intact &= self.is_before_intact(sequence, length, block);
            length += block.len();
        });
        match reader.finish() {
            TraceResult::Intact(trace) => {
                is_before_intact && trace.run == self.run && trace.sequence == sequence && length == size
            }
            TraceResult::Absent | TraceResult::Converted(_) | TraceResult::Corrupt(_) => false,
        }
    }

    /// Returns true if the bytes of a block that come before the trace are the bytes that the bench sent. `from` is the
    /// offset of the block in the payload.
    fn is_before_intact(&self, sequence: u64, from: usize, block: &[u8]) -> bool {
        let Some((id_at, before)) = self.id_at.zip(self.head[..self.trace_at].get(from..)) else { return true };
        let id = self.id(sequence).text();
        let expected = before
            .iter()
            .zip(from..)
            .map(|(octet, at)| at.checked_sub(id_at).and_then(|place| id.get(place)).unwrap_or(octet));
        block.iter().zip(expected).all(|(octet, expected)| octet == expected)
    }

    fn id(&self, sequence: u64) -> DocumentId {
        DocumentId::new(Uuid::from_bytes(self.run.0), sequence)
    }

    /// Returns the mRID of the message's document, or `None` if the payload is not an XML document or is too small to
    /// have an mRID.
    pub(super) fn document_id(&self, sequence: u64) -> Option<DocumentId> {
        (self.id_at.is_some() && self.is_traced(self.size(sequence))).then(|| self.id(sequence))
    }

    fn is_traced(&self, size: usize) -> bool {
        !self.head.is_empty() && size >= self.head.len() + self.tail.len()
    }

    /// Returns the length of the body and the number of blanks after it in a payload of this size. The blanks fill the
    /// space that is too short for another time series point.
    fn cut(&self, size: usize) -> (usize, usize) {
        let room = size - self.head.len() - self.tail.len();
        let length = room / self.unit * self.unit;
        (length, room - length)
    }

    fn checksum(&self, body_bytes: usize, blanks: usize) -> u32 {
        let at = body_bytes / CHECKSUM_STRIDE;
        let mut sum = self.checksums[at];
        sum.update(&self.body[at * CHECKSUM_STRIDE..body_bytes]);
        sum.update(&vec![b' '; blanks]);
        sum.update(self.tail);
        sum.value()
    }
}

/// Returns the bytes before a body: the text `before`, a trace, and the text `after`. The line end at the start of
/// `after` completes the empty line after the trace.
fn head(run: RunId, before: &[u8], after: &[u8]) -> Vec<u8> {
    let mut head = before.to_vec();
    let mut trace = [0; Trace::HEADER_BYTES];
    let clock = outputs::monotonic_clock();
    let (zero, numbering) = (ZeroPhase::default(), RecipientNumbering::TAG);
    Trace { run, sequence: 0, zero, numbering, created: Duration::ZERO, clock, checksum: 0 }.write(&mut trace);
    head.extend_from_slice(&trace);
    head.extend_from_slice(after);
    head
}

fn random(seed: u64, bytes: usize) -> Vec<u8> {
    let mut body = vec![0; bytes];
    StdRng::seed_from_u64(seed).fill_bytes(&mut body);
    body
}

const POINT_BYTES: usize = 72;

/// Returns a time series that compresses as well as the time series of real market documents.
fn xml_points(seed: u64, bytes: usize) -> Vec<u8> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut body = Vec::with_capacity(bytes + POINT_BYTES);
    let mut position = 0_u32;
    while body.len() < bytes {
        position = position % 99_999 + 1;
        let quantity = random.next_u32() % 1_000_000;
        let point = format!(
            "<Point><position>{position:05}</position><quantity>{:04}.{:02}</quantity></Point>",
            quantity / 100,
            quantity % 100
        );
        body.extend_from_slice(point.as_bytes());
        body.resize(body.len().next_multiple_of(POINT_BYTES) - 2, b' ');
        body.extend_from_slice(b"\r\n");
    }
    body
}

/// Returns the checksum of the body up to each multiple of [`CHECKSUM_STRIDE`] bytes. Each checksum also covers the
/// bytes `before` the body.
fn prefix_checksums(before: &[u8], body: &[u8]) -> Vec<Checksum> {
    let mut sum = Checksum::default();
    sum.update(before);
    let none = sum;
    let rest = body.chunks_exact(CHECKSUM_STRIDE).map(|block| {
        sum.update(block);
        sum
    });
    std::iter::once(none).chain(rest).collect()
}

fn is_equal<'o>(blocks: impl Iterator<Item = &'o [u8]>, expected: &[u8]) -> bool {
    let mut rest = expected;
    for block in blocks {
        match rest.split_at_checked(block.len()) {
            Some((here, after)) if here == block => rest = after,
            _ => return false,
        }
    }
    rest.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::PathBuf;

    const RUN: RunId = RunId([7; 16]);

    fn payloads(kind: &PayloadKind, sizes: &str) -> Payloads {
        let sizes = Distribution::parse(sizes, mailrun_text::quantities::bytes).unwrap();
        Payloads::new(kind, &sizes, 5, RUN).unwrap()
    }

    fn rendered(payloads: &Payloads, sequence: u64) -> BytesMut {
        let mut buffer = BytesMut::new();
        payloads.render(sequence, Duration::from_secs(3), &mut buffer);
        buffer
    }

    #[test]
    fn every_size_is_that_size_and_known_again() {
        for kind in [PayloadKind::Random, PayloadKind::Xml] {
            for size in (0..700).chain([4_095, 4_096, 4_198, 10_000, 65_536]) {
                let payloads = payloads(&kind, &size.to_string());
                let payload = rendered(&payloads, 9);
                assert_eq!(payload.len(), size);
                assert!(payloads.is_intact(9, [&payload[..]].into_iter()), "{kind:?} {size}");
                let (one, other) = payload.split_at(size / 3);
                assert!(payloads.is_intact(9, [one, other].into_iter()), "in two sections");
                if size > 300 {
                    assert!(!payloads.is_intact(8, [&payload[..]].into_iter()), "it is another message's");
                }
            }
        }
    }

    #[test]
    fn a_buffer_is_patched_and_the_result_is_the_same() {
        for (kind, sizes) in [(PayloadKind::Random, "3000"), (PayloadKind::Xml, "3000"), (PayloadKind::Xml, "0..9000")]
        {
            let payloads = payloads(&kind, sizes);
            let mut buffer = BytesMut::new();
            for sequence in 0..50 {
                payloads.render(sequence, Duration::from_secs(3), &mut buffer);
                assert_eq!(buffer, rendered(&payloads, sequence));
                assert!(payloads.is_intact(sequence, [&buffer[..]].into_iter()), "{kind:?} {sequence}");
            }
        }
    }

    #[test]
    fn xml_is_a_document() {
        let payload = rendered(&payloads(&PayloadKind::Xml, "2000"), 1);
        let text = String::from_utf8(payload.to_vec()).unwrap();
        assert!(
            text.contains("<Publication_MarketDocument>\r\n<mRID>07070707070787078000000000000001</mRID>"),
            "{text}"
        );
        assert!(text.starts_with("<?xml") && text.ends_with("</Publication_MarketDocument>\r\n"), "{text}");
        let comment = &text[text.find("<!--").unwrap() + 4..text.find("-->").unwrap()];
        assert!(!comment.contains("--"), "XML 1.0 §2.5");
        assert!(text.contains("</quantity></Point>"));
    }

    #[test]
    fn a_file_goes_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("document.xml");
        std::fs::write(&path, "<x>ü</x>").unwrap();
        let payloads = payloads(&PayloadKind::File(path), "1M");
        let payload = rendered(&payloads, 3);
        assert_eq!(payload[..], *"<x>ü</x>".as_bytes());
        assert!(payloads.is_intact(3, [&payload[..]].into_iter()));
        assert!(!payloads.is_intact(3, [&payload[1..]].into_iter()));
        let missing = PayloadKind::File(PathBuf::from("/nowhere/x"));
        let error = Payloads::new(&missing, &Distribution::constant(1), 1, RUN).unwrap_err();
        assert!(error.to_string().contains("/nowhere/x"), "{error}");
    }

    proptest! {
        #[test]
        fn a_changed_octet_is_seen(size in 1_usize..3_000, at: prop::sample::Index, change in 1_u8..=255, xml: bool) {
            let kind = if xml { PayloadKind::Xml } else { PayloadKind::Random };
            let payloads = payloads(&kind, &size.to_string());
            let mut payload = rendered(&payloads, 4);
            let at = at.index(payload.len());
            payload[at] ^= change;
            let intact = payloads.is_intact(4, [&payload[..]].into_iter());
            // The checksum does not cover the trace. So the check misses some changes in the trace: another time,
            // another clock, or a hexadecimal digit in the other case.
            let trace = payloads.trace_at..payloads.trace_at + Trace::HEADER_BYTES;
            prop_assert!(!intact || trace.contains(&at), "octet {} of {}", at, size);
        }

        #[test]
        fn a_payload_cut_short_is_seen(size in 1_usize..3_000, cut: prop::sample::Index) {
            let payloads = payloads(&PayloadKind::Random, &size.to_string());
            let payload = rendered(&payloads, 4);
            let part = &payload[..cut.index(payload.len())];
            prop_assert!(!payloads.is_intact(4, [part].into_iter()));
        }
    }
}
