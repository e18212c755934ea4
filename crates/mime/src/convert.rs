//! Converts a message in memory to 7-bit, for a server without 8BITMIME (RFC 6152 §3). Parts with
//! 8-bit bytes become quoted-printable or base64. Everything else stays unchanged.
//!
//! Each conversion is recorded in the header field that sendmail writes, so that `restore` can undo it:
//! ```text
//! X-MIME-Autoconverted: from 8bit to 7bit by relay.example          on top of the message
//! X-MIME-Autoconverted: from 8bit to base64 by relay.example        in a part whose encoding was changed
//! Content-Transfer-Encoding: base64
//! X-Original-Content-Transfer-Encoding: 8bit                        the field as it was, under another name
//! X-MIME-Autoconverted: from none to base64 by relay.example        before fields that were added at a header's end
//! ```
//! The result is ASCII, in lines of at most 998 bytes that end in CRLF. The conversion needs one
//! pass, and as much memory as the result.
use super::encode::Encoding;
use super::field::{TransferEncodingKind, lines};
use super::restore::{MARKER, ORIGINAL};
use super::walk::{ConversionError, Entity, EntityContent, LineKind, Walker};
use std::ops::Range;

/// Maximum length of a line in bytes, without its line end (RFC 5322 §2.1.1).
const MAX_LINE_BYTES: usize = 998;
/// The converted message may be this many bytes longer than twice the original message. Encoding usually does not
/// double the content, but each converted part also gets a few header lines.
const MAX_GROWTH_BYTES: usize = 64 << 10;
/// Maximum length of a Content-Transfer-Encoding field that the conversion replaces. The old field is kept with the
/// prefix `X-Original-`, and its line must not exceed `MAX_LINE_BYTES`.
const MAX_FIELD_BYTES: usize = MAX_LINE_BYTES - ORIGINAL.len();

/// Returns true if a message can be sent to any server unchanged, because it is ASCII without NUL or bare CR, in lines
/// of at most 998 bytes that end in CRLF. Only the last line may lack the CRLF.
pub fn is_seven_bit(message: &[u8]) -> bool {
    message.is_ascii() && memchr::memchr(0, message).is_none() && lines(message).all(|line| is_plain_line(line, true))
}

/// Converts a message for a server without 8BITMIME, or returns `None` if it needs no conversion. The header fields
/// that record the conversion name `host` as the converting host.
///
/// # Errors
/// Fails with the reason if the message must not be converted. The caller must then send it unchanged, or not at all.
pub fn to_seven_bit(message: &[u8], host: &str) -> Result<Option<Vec<u8>>, ConversionError> {
    if is_seven_bit(message) {
        return Ok(None);
    }
    let mut converter = Converter {
        message,
        host,
        out: Vec::with_capacity(message.len() + message.len() / 8 + 1024),
        header: 0,
        leaf: None,
    };
    converter.mark("8bit", "7bit");
    converter.run()?;
    Ok(Some(converter.out))
}

/// Returns true if the line may occur in a 7-bit message: at most 998 bytes of ASCII without NUL or bare CR, and then
/// CRLF. If `may_be_open` is set, the last line of a message may lack the CRLF.
fn is_plain_line(line: &[u8], may_be_open: bool) -> bool {
    let text = match line.strip_suffix(b"\r\n") {
        Some(text) => text,
        None if may_be_open && !line.ends_with(b"\n") => line,
        None => return false,
    };
    text.len() <= MAX_LINE_BYTES && text.is_ascii() && memchr::memchr2(b'\r', 0, text).is_none()
}

struct Converter<'a> {
    message: &'a [u8],
    host: &'a str,
    out: Vec<u8>,
    header: usize,
    leaf: Option<Leaf>,
}

struct Leaf {
    header: Range<usize>,
    entity: Entity,
    body: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum BodyEnd {
    Delimiter,
    Message,
}

impl<'a> Converter<'a> {
    fn run(&mut self) -> Result<(), ConversionError> {
        let mut walker = Walker::new();
        let mut at = 0;
        let mut is_clean = true;
        let message = self.message;
        for line in lines(message) {
            match walker.line(line, is_clean)? {
                LineKind::Header if is_plain_line(line, at + line.len() == message.len()) => {}
                LineKind::Header => return Err(ConversionError::Header),
                LineKind::EndOfHeader(_) if walker.is_signed() => return Err(ConversionError::Signed),
                LineKind::EndOfHeader(entity) => self.end_header(at, entity)?,
                LineKind::Body => {}
                LineKind::Gap if is_plain_line(line, true) => {
                    self.out.extend_from_slice(line);
                    self.header = at + line.len();
                }
                LineKind::Gap => return Err(ConversionError::Outside),
                LineKind::Delimiter => {
                    self.end_leaf(at, BodyEnd::Delimiter)?;
                    if !is_plain_line(line, true) {
                        return Err(ConversionError::Delimiter);
                    }
                    self.out.extend_from_slice(line);
                    self.header = at + line.len();
                }
            }
            at += line.len();
            is_clean = line.ends_with(b"\r\n");
        }
        self.end_leaf(at, BodyEnd::Message)
    }

    fn end_header(&mut self, at: usize, entity: Entity) -> Result<(), ConversionError> {
        let header = self.header..at;
        let next = at + 2;
        self.header = next;
        match entity.content {
            EntityContent::Multipart | EntityContent::Message => {
                self.write_header(&header, &entity, "7bit", b"")?;
            }
            _ => self.leaf = Some(Leaf { header, entity, body: next }),
        }
        Ok(())
    }

    fn end_leaf(&mut self, at: usize, end: BodyEnd) -> Result<(), ConversionError> {
        let message = self.message;
        let Some(Leaf { header, entity, body }) = self.leaf.take() else {
            // There is no body to convert, so copy the rest of the header unchanged.
            self.out.extend_from_slice(&message[self.header.min(at)..at]);
            self.header = at;
            return Ok(());
        };
        self.header = at;
        // Leave out the line end before a delimiter, because it belongs to the delimiter (RFC 2046 §5.1.1).
        let content = match end {
            BodyEnd::Delimiter => &message[body..at.saturating_sub(2).max(body)],
            BodyEnd::Message => &message[body..at],
        };
        match entity.content {
            _ if is_seven_bit(content) => {
                if let EntityContent::Fixed(_) = entity.content {
                    self.out.extend_from_slice(&message[header.start..body]);
                } else {
                    self.write_header(&header, &entity, "7bit", content)?;
                }
                self.out.extend_from_slice(content);
            }
            EntityContent::Fixed(obstacle) => return Err(obstacle),
            kind => self.encode(kind, &header, &entity, content, end)?,
        }
        self.out.extend_from_slice(&message[body + content.len()..at]);
        let limit = message.len().saturating_mul(2).saturating_add(MAX_GROWTH_BYTES);
        if self.out.len() > limit { Err(ConversionError::Growth) } else { Ok(()) }
    }

    fn encode(
        &mut self,
        kind: EntityContent,
        header: &Range<usize>,
        entity: &Entity,
        content: &[u8],
        end: BodyEnd,
    ) -> Result<(), ConversionError> {
        let encoding = if kind == EntityContent::Text { Encoding::for_text(content) } else { Encoding::Base64 };
        self.write_header(header, entity, encoding.word(), content)?;
        encoding.encode(content, &mut self.out);
        match (end, encoding) {
            (BodyEnd::Delimiter, _) => {}
            // The converted message must end with a line end, even if the content does not. In quoted-printable, add a
            // soft line break, which decoders remove.
            (BodyEnd::Message, Encoding::QuotedPrintable) if content.ends_with(b"\r\n") => {}
            (BodyEnd::Message, Encoding::QuotedPrintable) => self.out.extend_from_slice(b"=\r\n"),
            (BodyEnd::Message, Encoding::Base64) => self.out.extend_from_slice(b"\r\n"),
        }
        Ok(())
    }

    /// Writes a part's header, with `word` as its Content-Transfer-Encoding, and the empty line after the header.
    fn write_header(
        &mut self,
        header: &Range<usize>,
        entity: &Entity,
        word: &str,
        content: &[u8],
    ) -> Result<(), ConversionError> {
        let message = self.message;
        let is_outermost = header.start == 0;
        match &entity.transfer_encoding {
            Some(place) if !says(place.kind, word) => {
                if place.field.len() > MAX_FIELD_BYTES {
                    return Err(ConversionError::Header);
                }
                self.out.extend_from_slice(&message[header.start..place.field.start]);
                if !is_outermost {
                    let old = String::from_utf8_lossy(&message[place.word.clone()]);
                    self.mark(&old, word);
                }
                self.out.extend_from_slice(format!("Content-Transfer-Encoding: {word}\r\n").as_bytes());
                if !is_outermost {
                    self.out.extend_from_slice(ORIGINAL);
                    self.out.extend_from_slice(&message[place.field.clone()]);
                }
                self.out.extend_from_slice(&message[place.field.end..header.end]);
            }
            None if word != "7bit" => {
                self.out.extend_from_slice(&message[header.clone()]);
                if !is_outermost {
                    self.mark("none", word);
                }
                self.add_fields(entity, word, content);
            }
            _ => self.out.extend_from_slice(&message[header.clone()]),
        }
        self.out.extend_from_slice(b"\r\n");
        Ok(())
    }

    /// Adds the MIME fields that readers need to decode the content. Called if the part's header states no encoding.
    fn add_fields(&mut self, entity: &Entity, word: &str, content: &[u8]) {
        let mut add = |field: &[u8]| self.out.extend_from_slice(field);
        if entity.is_message && !entity.has_version {
            add(b"MIME-Version: 1.0\r\n");
        }
        if !entity.has_type {
            // Bytes that are valid UTF-8 are almost certainly UTF-8 text. For other text without a declared charset,
            // RFC 1428 §3 defines `unknown-8bit`.
            let charset = if std::str::from_utf8(content).is_ok() { "utf-8" } else { "unknown-8bit" };
            add(format!("Content-Type: text/plain; charset={charset}\r\n").as_bytes());
        }
        add(format!("Content-Transfer-Encoding: {word}\r\n").as_bytes());
    }

    fn mark(&mut self, old: &str, new: &str) {
        let host: String = self.host.chars().filter(char::is_ascii_graphic).take(255).collect();
        self.out.extend_from_slice(MARKER);
        self.out.extend_from_slice(format!(" from {old} to {new} by {host}\r\n").as_bytes());
    }
}

/// Returns true if a part can keep a Content-Transfer-Encoding field that states `kind` after the conversion has given
/// its body the encoding `word`.
fn says(kind: TransferEncodingKind, word: &str) -> bool {
    match kind {
        TransferEncodingKind::SevenBit => word == "7bit",
        _ => !kind.is_identity(),
    }
}

#[cfg(test)]
mod tests;
