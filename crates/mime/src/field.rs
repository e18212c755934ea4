//! Values of the two header fields that decide how readers understand a part: Content-Type and
//! Content-Transfer-Encoding (RFC 2045 §5.1, §6.1).
use std::ops::Range;

/// Maximum length of a boundary in characters. RFC 2046 §5.1.1 allows 70, but some programs write longer boundaries.
const MAX_BOUNDARY_BYTES: usize = 200;

/// Error for the value of a header field that mail readers may interpret differently, or cannot interpret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AmbiguousValue;

/// Class of an entity's media type, which decides whether the entity may be encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MediaType {
    Text,
    /// `multipart/signed` and `multipart/encrypted` (RFC 1847), whose content must not be changed.
    Sealed,
    Multipart {
        boundary: Vec<u8>,
        is_digest: bool,
    },
    /// `message/rfc822`, which must not be encoded as a whole (RFC 2046 §5.2.1).
    Message,
    /// `message/partial` and other types for which only 7bit is allowed (RFC 2045 §6.4).
    FixedMessage,
    /// Any other type, such as `message/global` (RFC 6532 §3.7). The conversion may encode its content in base64.
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TransferEncoding {
    pub(crate) kind: TransferEncodingKind,
    /// Position of the encoding's name, such as `base64`, in the value of the field.
    pub(crate) word: Range<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransferEncodingKind {
    SevenBit,
    EightBit,
    Binary,
    QuotedPrintable,
    Base64,
    Unknown,
}

impl TransferEncodingKind {
    /// Returns true if the encoding leaves the content unchanged (RFC 2045 §6.2).
    pub(crate) fn is_identity(self) -> bool {
        matches!(self, Self::SevenBit | Self::EightBit | Self::Binary)
    }
}

pub(crate) fn media_type(value: &[u8]) -> Result<MediaType, AmbiguousValue> {
    let mut scanner = Scanner { text: value, at: 0 };
    scanner.skip_blanks()?;
    let main = scanner.word().to_ascii_lowercase();
    scanner.skip_blanks()?;
    let has_subtype = scanner.take(b'/');
    if has_subtype {
        scanner.skip_blanks()?;
    }
    let sub = if has_subtype { scanner.word().to_ascii_lowercase() } else { Vec::new() };
    match (main.as_slice(), sub.as_slice()) {
        (b"multipart" | b"message", b"") | (b"", _) => Err(AmbiguousValue),
        (b"multipart", b"signed" | b"encrypted") => Ok(MediaType::Sealed),
        (b"multipart", sub) => {
            let boundary = scanner.boundary()?.ok_or(AmbiguousValue)?;
            Ok(MediaType::Multipart { boundary, is_digest: sub == b"digest" })
        }
        (b"message", b"rfc822" | b"news") => Ok(MediaType::Message),
        (b"message", sub) if sub.starts_with(b"global") => Ok(MediaType::Other),
        (b"message", _) => Ok(MediaType::FixedMessage),
        (b"text", _) => Ok(MediaType::Text),
        _ => Ok(MediaType::Other),
    }
}

pub(crate) fn transfer_encoding(value: &[u8]) -> Result<TransferEncoding, AmbiguousValue> {
    let mut scanner = Scanner { text: value, at: 0 };
    scanner.skip_blanks()?;
    let begin = scanner.at;
    let kind = match scanner.word().to_ascii_lowercase().as_slice() {
        b"" => return Err(AmbiguousValue),
        b"7bit" => TransferEncodingKind::SevenBit,
        b"8bit" => TransferEncodingKind::EightBit,
        b"binary" => TransferEncodingKind::Binary,
        b"quoted-printable" => TransferEncodingKind::QuotedPrintable,
        b"base64" => TransferEncodingKind::Base64,
        _ => TransferEncodingKind::Unknown,
    };
    let word = begin..scanner.at;
    scanner.skip_blanks()?;
    if scanner.at < value.len() { Err(AmbiguousValue) } else { Ok(TransferEncoding { kind, word }) }
}

struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Scanner<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let is_there = self.peek() == Some(byte);
        self.at += usize::from(is_there);
        is_there
    }

    /// Skips white space, folded line ends, and nested comments.
    fn skip_blanks(&mut self) -> Result<(), AmbiguousValue> {
        let mut depth = 0_usize;
        while let Some(byte) = self.peek() {
            match byte {
                b'(' => depth += 1,
                b')' if depth > 0 => depth -= 1,
                b'\\' if depth > 0 => self.at += 1,
                b' ' | b'\t' | b'\r' | b'\n' => {}
                _ if depth > 0 => {}
                _ => return Ok(()),
            }
            self.at += 1;
        }
        if depth == 0 && self.at <= self.text.len() { Ok(()) } else { Err(AmbiguousValue) }
    }

    /// Reads a token, or returns an empty token if there is none.
    fn word(&mut self) -> &'a [u8] {
        let begin = self.at;
        while self.peek().is_some_and(is_token) {
            self.at += 1;
        }
        &self.text[begin..self.at]
    }

    fn value(&mut self) -> Result<Vec<u8>, AmbiguousValue> {
        if !self.take(b'"') {
            let word = self.word();
            return if word.is_empty() { Err(AmbiguousValue) } else { Ok(word.to_vec()) };
        }
        let mut text = Vec::new();
        while let Some(byte) = self.peek() {
            self.at += 1;
            match byte {
                b'"' => return Ok(text),
                b'\\' => {
                    text.push(self.peek().ok_or(AmbiguousValue)?);
                    self.at += 1;
                }
                _ => text.push(byte),
            }
        }
        Err(AmbiguousValue)
    }

    /// Returns the boundary parameter of a multipart. Fails if any parameter is malformed, because a reader that skips
    /// the mistake may find another boundary.
    fn boundary(&mut self) -> Result<Option<Vec<u8>>, AmbiguousValue> {
        let mut boundary = None;
        loop {
            self.skip_blanks()?;
            if self.at == self.text.len() {
                return Ok(boundary);
            }
            if !self.take(b';') {
                return Err(AmbiguousValue);
            }
            self.skip_blanks()?;
            let name = self.word().to_ascii_lowercase();
            self.skip_blanks()?;
            if name.is_empty() {
                continue;
            }
            if !self.take(b'=') {
                return Err(AmbiguousValue);
            }
            self.skip_blanks()?;
            let value = self.value()?;
            // Refuse a boundary that is split or has a charset (RFC 2231), because readers disagree about its value.
            if name.starts_with(b"boundary*") {
                return Err(AmbiguousValue);
            }
            if name == b"boundary" && boundary.replace(valid_boundary(value)?).is_some() {
                return Err(AmbiguousValue);
            }
        }
    }
}

fn valid_boundary(boundary: Vec<u8>) -> Result<Vec<u8>, AmbiguousValue> {
    let is_sound = (1..=MAX_BOUNDARY_BYTES).contains(&boundary.len())
        && boundary.iter().all(|byte| matches!(byte, b' '..=b'~'))
        && !boundary.ends_with(b" ");
    if is_sound { Ok(boundary) } else { Err(AmbiguousValue) }
}

/// Returns true if a token may contain this byte (RFC 2045 §5.1).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_graphic() && !b"()<>@,;:\\\"/[]?=".contains(&byte)
}

/// Splits a text into lines, each with its LF and with the CR before the LF if there is one.
pub(crate) fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let end = memchr::memchr(b'\n', rest).map_or(rest.len(), |end| end + 1);
        let (line, after) = rest.split_at(end);
        rest = after;
        (!line.is_empty()).then_some(line)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn multipart(boundary: &str) -> Result<MediaType, AmbiguousValue> {
        Ok(MediaType::Multipart { boundary: boundary.as_bytes().to_vec(), is_digest: false })
    }

    #[test]
    fn a_table_of_content_types() {
        let rows: [(&str, Result<MediaType, AmbiguousValue>); 26] = [
            (" text/plain; charset=utf-8", Ok(MediaType::Text)),
            ("text", Ok(MediaType::Text)),
            ("TEXT/html;;junk", Ok(MediaType::Text)),
            (" image/png; name=\"a", Ok(MediaType::Other)),
            (" message/rfc822", Ok(MediaType::Message)),
            (" message/partial; id=1", Ok(MediaType::FixedMessage)),
            (" message/delivery-status", Ok(MediaType::FixedMessage)),
            (" message/global", Ok(MediaType::Other)),
            (" multipart/signed; boundary=a", Ok(MediaType::Sealed)),
            (" multipart/Encrypted", Ok(MediaType::Sealed)),
            (" multipart/mixed; boundary=a", multipart("a")),
            (" multipart/mixed;\r\n\tBoundary = \"a \\\"b\" ; x=y;", multipart("a \"b")),
            (" multipart (a (b) \\) c) / mixed (d);boundary=(e)a(f)", multipart("a")),
            (" multipart/mixed", Err(AmbiguousValue)),
            (" multipart; boundary=a", Err(AmbiguousValue)),
            (" message", Err(AmbiguousValue)),
            (" multipart/mixed; boundary=", Err(AmbiguousValue)),
            (" multipart/mixed; boundary=\"\"", Err(AmbiguousValue)),
            (" multipart/mixed; boundary=\"a \"", Err(AmbiguousValue)),
            (" multipart/mixed; boundary=\"a", Err(AmbiguousValue)),
            (" multipart/mixed; boundary=a; boundary=a", Err(AmbiguousValue)),
            (" multipart/mixed; boundary*0=a; boundary*1=b", Err(AmbiguousValue)),
            (" multipart/mixed; boundary=a b", Err(AmbiguousValue)),
            (" multipart/mixed (; boundary=a", Err(AmbiguousValue)),
            ("", Err(AmbiguousValue)),
            (" /plain", Err(AmbiguousValue)),
        ];
        for (value, expected) in rows {
            assert_eq!(media_type(value.as_bytes()), expected, "{value}");
        }
        assert_eq!(media_type(format!("multipart/x; boundary={}", "a".repeat(201)).as_bytes()), Err(AmbiguousValue));
        let digest = media_type(b"multipart/digest; boundary=a");
        assert!(matches!(digest, Ok(MediaType::Multipart { is_digest: true, .. })));
    }

    #[test]
    fn a_table_of_labels() {
        let rows: [(&str, Option<(TransferEncodingKind, &str)>); 9] = [
            (" 8bit\r\n", Some((TransferEncodingKind::EightBit, "8bit"))),
            ("8BIT", Some((TransferEncodingKind::EightBit, "8BIT"))),
            ("\r\n (8bit) 7bit (x)", Some((TransferEncodingKind::SevenBit, "7bit"))),
            (" Base64 ", Some((TransferEncodingKind::Base64, "Base64"))),
            (" quoted-printable", Some((TransferEncodingKind::QuotedPrintable, "quoted-printable"))),
            (" binary", Some((TransferEncodingKind::Binary, "binary"))),
            (" x-uuencode", Some((TransferEncodingKind::Unknown, "x-uuencode"))),
            (" 8bit;", None),
            ("  ", None),
        ];
        for (value, expected) in rows {
            let encoding = transfer_encoding(value.as_bytes()).ok();
            let encoding = encoding.as_ref().map(|label| (label.kind, &value[label.word.clone()]));
            assert_eq!(encoding, expected, "{value}");
        }
    }
}
