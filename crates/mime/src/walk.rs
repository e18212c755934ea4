//! Finds the structure of a message line by line, with bounded memory, because the depth of nested parts is limited.
//!
//! ```text
//! Header ─empty line─▶ Leaf | Gap (of a multipart, until its first delimiter) | Header (of a message/rfc822)
//!    ▲                                     │
//!    └───────────── delimiter ◀────────────┘        closing delimiter ─▶ Gap, until a delimiter of an outer multipart
//! ```
//! RFC 2046 §5.1.1 lets readers compare only the beginning of a line with a boundary, so readers may disagree whether a
//! line is a delimiter. The conversion refuses a message that contains such a line, or a header line that belongs to no
//! field.
use super::field::{self, MediaType, TransferEncoding, TransferEncodingKind};
use std::ops::Range;

/// Maximum depth of nested parts, half of what Postfix allows. Legitimate mail is not nested more deeply.
const MAX_DEPTH: usize = 50;
/// Maximum length in bytes of a Content-Type or Content-Transfer-Encoding value. A message with a longer value is not
/// converted.
const MAX_FIELD_BYTES: usize = 8 << 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LineKind {
    Header,
    /// The empty line that ends a header. The entity is the message or part to which the header belongs.
    EndOfHeader(Entity),
    Body,
    /// A line before the first part or after the last part, which readers ignore.
    Gap,
    Delimiter,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entity {
    pub(crate) content: EntityContent,
    pub(crate) transfer_encoding: Option<TransferEncodingField>,
    pub(crate) has_type: bool,
    pub(crate) has_version: bool,
    pub(crate) is_message: bool,
}

/// A Content-Transfer-Encoding field, with the offsets of the field and of the encoding's name in the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TransferEncodingField {
    pub(crate) kind: TransferEncodingKind,
    pub(crate) field: Range<usize>,
    pub(crate) word: Range<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntityContent {
    Multipart,
    Message,
    Text,
    Other,
    /// Content that the conversion must not encode, for example because it is signed or already encoded. If it has
    /// 8-bit bytes, the conversion fails with this error.
    Fixed(ConversionError),
}

#[derive(Clone, Debug)]
pub(crate) struct Walker {
    open: Vec<Multipart>,
    /// Indices into `open`, sorted by boundary. A binary search then finds the multipart to which a delimiter belongs.
    sorted: Vec<usize>,
    state: WalkState,
    header: HeaderParser,
    /// Number of nested messages (`message/rfc822`) that contain the current line. They count toward `MAX_DEPTH`.
    messages: usize,
    offset: usize,
    /// Set if the message's header contains a signature, such as DKIM's, that a conversion would invalidate.
    is_signed: bool,
}

#[derive(Clone, Debug)]
struct Multipart {
    boundary: Vec<u8>,
    is_digest: bool,
    messages: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WalkState {
    Header,
    Leaf,
    Gap,
}

#[derive(Clone, Debug, Default)]
struct HeaderParser {
    is_message: bool,
    is_outermost: bool,
    lines: usize,
    in_field: FieldKind,
    types: usize,
    media_type: Vec<u8>,
    labels: usize,
    label: Vec<u8>,
    /// Offsets at which the Content-Transfer-Encoding field begins, its value begins, and the field ends. They are
    /// counted from the beginning of the message.
    label_places: [usize; 3],
    has_version: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FieldKind {
    #[default]
    Other,
    Type,
    Label,
}

impl Walker {
    pub(crate) fn new() -> Self {
        Self {
            open: Vec::new(),
            sorted: Vec::new(),
            state: WalkState::Header,
            header: HeaderParser { is_message: true, is_outermost: true, ..HeaderParser::default() },
            messages: 0,
            offset: 0,
            is_signed: false,
        }
    }

    pub(crate) fn is_beyond_header(&self) -> bool {
        self.state != WalkState::Header || !self.header.is_outermost
    }

    pub(crate) fn is_signed(&self) -> bool {
        self.is_signed
    }

    /// Handles the next line, including its line end. `is_clean` tells whether the previous line ended in CRLF, as it
    /// must before a delimiter.
    pub(crate) fn line(&mut self, line: &[u8], is_clean: bool) -> Result<LineKind, ConversionError> {
        let begin = self.offset;
        self.offset += line.len();
        if line.starts_with(b"--") && self.is_delimiter(line, is_clean)? {
            return Ok(LineKind::Delimiter);
        }
        match self.state {
            WalkState::Leaf => Ok(LineKind::Body),
            WalkState::Gap => Ok(LineKind::Gap),
            WalkState::Header if line == b"\r\n" => self.end_header().map(LineKind::EndOfHeader),
            WalkState::Header => self.header_line(line, begin).map(|()| LineKind::Header),
        }
    }

    /// Returns true if the line is a delimiter of an open multipart. The following lines then belong to another part.
    fn is_delimiter(&mut self, line: &[u8], is_clean: bool) -> Result<bool, ConversionError> {
        let text = line[2..].trim_ascii_end();
        let boundary = |number: &usize| self.open[*number].boundary.as_slice();
        let mut looks_like_one = false;
        let mut matches = Vec::new();
        // At each step, `near` holds the open multiparts whose boundaries begin with the first `length` bytes of
        // `text`. They are sorted, so a binary search finds the boundaries that also match the next byte.
        let mut near = self.sorted.as_slice();
        for length in 0..=text.len() {
            let ended = near.partition_point(|number| boundary(number).len() == length);
            looks_like_one |= ended > 0;
            if let rest @ (b"" | b"--") = &text[length..] {
                matches.extend(near[..ended].iter().map(|number| (*number, rest.is_empty())));
            }
            let Some(byte) = text.get(length) else { break };
            let begin = near.partition_point(|number| boundary(number).get(length) < Some(byte));
            let end = near.partition_point(|number| boundary(number).get(length) <= Some(byte));
            near = &near[begin..end];
            if near.is_empty() {
                break;
            }
        }
        // If the line is a delimiter of two multiparts, readers may disagree about it, so do not convert the message.
        // For example, `--x--` closes a multipart with the boundary `x`, but begins a part of a multipart with the
        // boundary `x--`.
        if matches.len() > 1 {
            return Err(ConversionError::Delimiter);
        }
        let has_blanks_only = line[2 + text.len()..].iter().all(|byte| b" \t\r\n".contains(byte));
        match matches.first() {
            Some(&(number, is_open)) if is_clean && has_blanks_only => {
                self.at_delimiter(number, is_open);
                Ok(true)
            }
            _ if looks_like_one => Err(ConversionError::Delimiter),
            _ => Ok(false),
        }
    }

    fn open_multipart(&mut self, boundary: Vec<u8>, is_digest: bool) {
        let place = self.sorted.partition_point(|number| self.open[*number].boundary < boundary);
        self.sorted.insert(place, self.open.len());
        self.open.push(Multipart { boundary, is_digest, messages: self.messages });
    }

    fn at_delimiter(&mut self, number: usize, is_open: bool) {
        self.messages = self.open[number].messages;
        self.open.truncate(if is_open { number + 1 } else { number });
        self.sorted.retain(|number| *number < self.open.len());
        self.state = if is_open { WalkState::Header } else { WalkState::Gap };
        self.header = HeaderParser::default();
    }

    fn header_line(&mut self, line: &[u8], begin: usize) -> Result<(), ConversionError> {
        let header = &mut self.header;
        header.lines += 1;
        let is_continued = line.starts_with(b" ") || line.starts_with(b"\t");
        if is_continued && header.lines > 1 {
            return header.continue_field(line, begin);
        }
        let colon = memchr::memchr(b':', line).ok_or(ConversionError::Header)?;
        let name = line[..colon].trim_ascii_end();
        if name.is_empty() || !name.iter().all(u8::is_ascii_graphic) {
            return Err(ConversionError::Header);
        }
        header.in_field = FieldKind::Other;
        if name.eq_ignore_ascii_case(b"Content-Type") {
            header.types += 1;
            header.in_field = FieldKind::Type;
        } else if name.eq_ignore_ascii_case(b"Content-Transfer-Encoding") {
            header.labels += 1;
            header.in_field = FieldKind::Label;
            header.label_places = [begin, begin + colon + 1, begin + line.len()];
        } else if name.eq_ignore_ascii_case(b"MIME-Version") {
            header.has_version = true;
        } else if header.is_outermost && SIGNATURES.iter().any(|field| name.eq_ignore_ascii_case(field)) {
            self.is_signed = true;
        }
        header.keep(&line[colon + 1..])
    }

    fn end_header(&mut self) -> Result<Entity, ConversionError> {
        let is_in_digest = self.open.last().is_some_and(|multipart| multipart.is_digest);
        let header = std::mem::take(&mut self.header);
        if header.types > 1 || header.labels > 1 {
            return Err(ConversionError::Header);
        }
        let kind = match (header.types, is_in_digest && !header.is_message) {
            // Without a Content-Type, a part of a multipart/digest is a message (RFC 2046 §5.1.5).
            (0, true) => MediaType::Message,
            (0, false) => MediaType::Text,
            _ => field::media_type(&header.media_type).map_err(|_| ConversionError::Header)?,
        };
        let label = header.label()?;
        let is_identity = label.as_ref().is_none_or(|label| label.kind.is_identity());
        let content = match kind {
            MediaType::Sealed => EntityContent::Fixed(ConversionError::Sealed),
            MediaType::FixedMessage => EntityContent::Fixed(ConversionError::FixedMessage),
            _ if !is_identity => EntityContent::Fixed(ConversionError::Encoded),
            MediaType::Multipart { boundary, is_digest } => {
                self.open_multipart(boundary, is_digest);
                EntityContent::Multipart
            }
            MediaType::Message => {
                self.messages += 1;
                EntityContent::Message
            }
            MediaType::Text => EntityContent::Text,
            MediaType::Other => EntityContent::Other,
        };
        if self.open.len() + self.messages > MAX_DEPTH {
            return Err(ConversionError::Depth);
        }
        self.state = match content {
            EntityContent::Multipart => WalkState::Gap,
            EntityContent::Message => WalkState::Header,
            _ => WalkState::Leaf,
        };
        self.header.is_message = content == EntityContent::Message;
        let has_type = header.types > 0;
        let has_version = header.has_version;
        Ok(Entity { content, transfer_encoding: label, has_type, has_version, is_message: header.is_message })
    }
}

/// Fields with signatures that cover the body (RFC 6376, RFC 8617, RFC 4870).
const SIGNATURES: [&[u8]; 3] = [b"DKIM-Signature", b"ARC-Message-Signature", b"DomainKey-Signature"];

impl HeaderParser {
    fn continue_field(&mut self, line: &[u8], begin: usize) -> Result<(), ConversionError> {
        if self.in_field == FieldKind::Label {
            self.label_places[2] = begin + line.len();
        }
        self.keep(line)
    }

    /// Adds a line to the value of a Content-Type or Content-Transfer-Encoding field, which is parsed at the end of the
    /// header. Fails if the value becomes too long.
    fn keep(&mut self, more: &[u8]) -> Result<(), ConversionError> {
        let value = match self.in_field {
            FieldKind::Other => return Ok(()),
            FieldKind::Type => &mut self.media_type,
            FieldKind::Label => &mut self.label,
        };
        value.extend_from_slice(more);
        if value.len() > MAX_FIELD_BYTES { Err(ConversionError::Header) } else { Ok(()) }
    }

    fn label(&self) -> Result<Option<TransferEncodingField>, ConversionError> {
        if self.labels == 0 {
            return Ok(None);
        }
        let TransferEncoding { kind, word } =
            field::transfer_encoding(&self.label).map_err(|_| ConversionError::Header)?;
        let [begin, value, end] = self.label_places;
        Ok(Some(TransferEncodingField { kind, field: begin..end, word: value + word.start..value + word.end }))
    }
}

/// Reason why a message must not be converted to 7-bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConversionError {
    /// The body is signed, and the signature would no longer match.
    #[error("its body is signed")]
    Signed,
    /// Content of multipart/signed or multipart/encrypted is not 7-bit, but must not be changed (RFC 1847 §2.1).
    #[error("it has a part that is signed or encrypted but not 7-bit")]
    Sealed,
    /// Content of `message/partial` or a similar type is not 7-bit, although only the encoding 7bit is allowed for it
    /// (RFC 2045 §6.4).
    #[error("it has a part that is not 7-bit and may not be encoded")]
    FixedMessage,
    /// Content of a part is not 7-bit, although the part is declared as already encoded.
    #[error("it has a part that is not 7-bit although it is declared as encoded")]
    Encoded,
    /// A header contains 8-bit bytes instead of encoded words (RFC 2047), or it is malformed, so that readers may
    /// interpret it differently.
    #[error("it has a header that is not ASCII or not well-formed")]
    Header,
    /// A line before, between or after the parts is not 7-bit, and such lines cannot be encoded.
    #[error("it has text outside of its parts that is not 7-bit")]
    Outside,
    /// Some readers would take a line for a delimiter, and others would not.
    #[error("its parts cannot be separated reliably")]
    Delimiter,
    /// The result would be more than 64 KiB longer than twice the message, because many parts need new header fields.
    #[error("it has too many parts that need encoding")]
    Growth,
    /// The parts are nested more than 50 levels deep, which does not occur in legitimate mail.
    #[error("its parts are nested too deep")]
    Depth,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Compares the line with each boundary, to check the result of the faster search in `is_delimiter`.
    fn compared(boundaries: &[Vec<u8>], line: &[u8]) -> Result<Option<(usize, bool)>, ConversionError> {
        let text = line[2..].trim_ascii_end();
        let rest_of = |number: &usize| text.strip_prefix(boundaries[*number].as_slice());
        let near: Vec<usize> = (0..boundaries.len()).filter(|number| rest_of(number).is_some()).collect();
        let numbers: Vec<_> = near.iter().filter(|number| matches!(rest_of(number), Some(b"" | b"--"))).collect();
        match (&numbers[..], near.is_empty()) {
            ([number], _) => Ok(Some((**number, rest_of(number) == Some(b"")))),
            ([], true) => Ok(None),
            _ => Err(ConversionError::Delimiter),
        }
    }

    proptest! {
        #[test]
        fn delimiters_are_those_that_a_comparison_with_each_boundary_finds(
            boundaries in prop::collection::vec("[ab-]{1,4}", 1..8),
            text in "[ab-]{0,6}",
        ) {
            let boundaries: Vec<Vec<u8>> = boundaries.into_iter().map(String::into_bytes).collect();
            let mut walker = Walker::new();
            boundaries.iter().for_each(|boundary| walker.open_multipart(boundary.clone(), false));
            let line = format!("--{text}\r\n");
            let expected = compared(&boundaries, line.as_bytes());
            let is_delimiter = walker.is_delimiter(line.as_bytes(), true);
            prop_assert_eq!(&is_delimiter, &expected.map(|result| result.is_some()));
            if let Ok(Some((number, is_open))) = expected {
                prop_assert_eq!(walker.open.len(), number + usize::from(is_open));
            }
        }
    }
}
