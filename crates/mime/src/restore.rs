//! Restores the body of a converted message, in blocks of any size and with bounded memory. Decodes the parts that
//! `convert` or another relay encoded, and restores changed header fields. The output is meant only for checksums.
use super::decode::Decoder;
use super::encode::Encoding;
use super::field::TransferEncodingKind;
use super::walk::{EntityContent, LineKind, Walker};

/// Name of the header field that records a conversion. sendmail uses the same field.
pub const MARKER: &[u8] = b"X-MIME-Autoconverted:";

/// Prefix that the conversion puts before the name of a field that it replaces. The old field stays in the header under
/// this new name, so that the restorer finds it.
pub(crate) const ORIGINAL: &[u8] = b"X-Original-";

/// Maximum length of a line in a converted message, in bytes and including the line end (RFC 5322 §2.1.1).
const MAX_LINE_BYTES: usize = 1000;
/// Maximum length in bytes of a line in the outermost header. It exceeds `MAX_LINE_BYTES`, because other programs may
/// have added longer lines there after the conversion.
const MAX_HEADER_LINE_BYTES: usize = 64 << 10;

/// Undoes a conversion, and returns the original body. The input begins in the outermost header,
/// after the marker at its top.
///
/// If parts of the message already had a marker before the conversion, the body is not restored exactly, because the
/// restorer cannot tell which markers are from the conversion.
#[derive(Clone, Debug)]
pub struct Restorer {
    walker: Walker,
    line: Vec<u8>,
    out: Vec<u8>,
    edit: HeaderEdit,
    decoder: Option<Decoder>,
    /// Set if the outermost header says that the whole body is encoded. Some relays convert messages this way.
    /// Everything after the header is then decoded as one part, even if it looks like a multipart.
    is_simple: bool,
    is_valid: bool,
}

/// What the conversion has done to the header lines that come next. The restorer must undo this.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum HeaderEdit {
    #[default]
    Nothing,
    /// The conversion replaced a field: the next line is new, and the line after it is the old field, renamed with the
    /// prefix `X-Original-`.
    Changed,
    /// The next line is a field that the conversion renamed with the prefix `X-Original-`.
    Renamed,
    /// The conversion added all remaining lines of this header.
    Added,
}

impl Restorer {
    /// Creates a restorer for a converted message. The caller must leave out the first line, which is a marker field.
    pub fn new() -> Self {
        Self {
            walker: Walker::new(),
            line: Vec::new(),
            out: Vec::new(),
            edit: HeaderEdit::Nothing,
            decoder: None,
            is_simple: false,
            is_valid: true,
        }
    }

    /// Creates a restorer for a message whose whole body is in this encoding. The input begins in the outermost header,
    /// after its Content-Transfer-Encoding field.
    pub fn of_one_part(encoding: Encoding) -> Self {
        Self { decoder: Some(Decoder::new(encoding)), is_simple: true, ..Self::new() }
    }

    /// Returns false if the input so far cannot come from a conversion, for example because of malformed base64.
    pub fn is_valid(&self) -> bool {
        self.is_valid && self.decoder.as_ref().is_none_or(Decoder::is_valid)
    }

    /// Undoes the conversion in the next block of the message, and passes the original bytes of the body to `take`.
    pub fn receive(&mut self, block: &[u8], mut take: impl FnMut(&[u8])) {
        let mut rest = block;
        while let (Some(end), true) = (memchr::memchr(b'\n', rest), self.is_valid) {
            let (line, after) = rest.split_at(end + 1);
            rest = after;
            if self.line.is_empty() {
                self.read_line(line);
            } else {
                let mut whole = std::mem::take(&mut self.line);
                whole.extend_from_slice(line);
                self.read_line(&whole);
                whole.clear();
                self.line = whole;
            }
            if self.out.len() >= MAX_LINE_BYTES {
                take(&self.out);
                self.out.clear();
            }
        }
        self.keep(rest);
        take(&self.out);
        self.out.clear();
    }

    /// Handles the end of the message, and passes the remaining bytes of the body to `take`.
    pub fn finish(&mut self, mut take: impl FnMut(&[u8])) {
        let last = std::mem::take(&mut self.line);
        if !last.is_empty() && self.is_valid {
            self.read_line(&last);
        }
        take(&self.out);
        self.out.clear();
    }

    fn max_line_bytes(&self) -> usize {
        if self.walker.is_beyond_header() { MAX_LINE_BYTES } else { MAX_HEADER_LINE_BYTES }
    }

    fn keep(&mut self, rest: &[u8]) {
        if self.line.len() + rest.len() > self.max_line_bytes() {
            self.is_valid = false;
        } else {
            self.line.extend_from_slice(rest);
        }
    }

    fn read_line(&mut self, line: &[u8]) {
        if line.len() > self.max_line_bytes() {
            self.is_valid = false;
            return;
        }
        if self.is_simple && self.walker.is_beyond_header() {
            return self.body(line);
        }
        let is_beyond = self.walker.is_beyond_header();
        match self.walker.line(line, true) {
            Ok(LineKind::Header) if is_beyond => self.header_line(line),
            Ok(LineKind::Header) => {}
            Ok(LineKind::EndOfHeader(entity)) => {
                self.end_header(is_beyond, &entity.content, entity.transfer_encoding.map(|label| label.kind));
            }
            Ok(LineKind::Body) => self.body(line),
            Ok(LineKind::Gap) => self.out.extend_from_slice(line),
            Ok(LineKind::Delimiter) => self.delimiter(line),
            Err(_) => self.is_valid = false,
        }
    }

    fn header_line(&mut self, line: &[u8]) {
        match self.edit {
            HeaderEdit::Added => {}
            HeaderEdit::Changed => self.edit = HeaderEdit::Renamed,
            HeaderEdit::Renamed => {
                let original = line.strip_prefix(ORIGINAL);
                self.is_valid &= original.is_some();
                self.out.extend_from_slice(original.unwrap_or_default());
                self.edit = HeaderEdit::Nothing;
            }
            HeaderEdit::Nothing => match marked(line) {
                Some((old, new)) => {
                    self.edit = if old == b"none" { HeaderEdit::Added } else { HeaderEdit::Changed };
                    self.expect(new);
                }
                None => self.out.extend_from_slice(line),
            },
        }
    }

    fn expect(&mut self, word: &[u8]) {
        self.decoder = match word {
            b"quoted-printable" => Some(Decoder::new(Encoding::QuotedPrintable)),
            b"base64" => Some(Decoder::new(Encoding::Base64)),
            _ => None,
        };
    }

    fn end_header(&mut self, is_inner: bool, content: &EntityContent, label: Option<TransferEncodingKind>) {
        if self.is_simple {
            return;
        }
        self.edit = HeaderEdit::Nothing;
        if is_inner {
            self.out.extend_from_slice(b"\r\n");
        } else if matches!(content, EntityContent::Fixed(_)) {
            // The marker of the outermost entity is the message's first line, which the caller has left out. So take
            // the encoding from the field Content-Transfer-Encoding.
            match label {
                Some(TransferEncodingKind::QuotedPrintable) => self.expect(b"quoted-printable"),
                Some(TransferEncodingKind::Base64) => self.expect(b"base64"),
                _ => {}
            }
        }
    }

    fn body(&mut self, line: &[u8]) {
        match &mut self.decoder {
            Some(decoder) => decoder.decode(line, &mut self.out),
            None => self.out.extend_from_slice(line),
        }
    }

    fn delimiter(&mut self, line: &[u8]) {
        self.edit = HeaderEdit::Nothing;
        if let Some(decoder) = self.decoder.take() {
            self.is_valid &= decoder.is_valid();
            if decoder.encoding() == Encoding::Base64 {
                // The base64 text does not encode the line end that precedes the delimiter, so add this line end here.
                self.out.extend_from_slice(b"\r\n");
            }
        }
        self.out.extend_from_slice(line);
    }
}

impl Default for Restorer {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the old and the new encoding in a part's marker field, or `None` if `convert` cannot have written this line.
fn marked(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let text = line.get(MARKER.len()..).filter(|_| line.starts_with(MARKER))?;
    let mut words = text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let from = words.next()?;
    let old = words.next()?;
    let to = words.next()?;
    let new = words.next()?;
    let is_ours = from == b"from" && to == b"to" && [b"7bit".as_slice(), b"quoted-printable", b"base64"].contains(&new);
    is_ours.then_some((old, new))
}
