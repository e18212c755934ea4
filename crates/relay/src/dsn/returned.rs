//! The part of a DSN that returns the message: the whole message, or its header (RFC 3461 §4.3, RFC
//! 6522).
use super::facts::{DsnAction, DsnFacts};
use super::part::DsnPart;
use super::text::Charset;
use mailrun_smtp::dsn::Return;
use std::borrow::Cow;

/// Maximum size of a returned header in bytes. A longer header is cut at the end of a line.
const MAX_HEADER_BYTES: usize = 64 << 10;
/// Maximum length of a line in bytes, without its line end (RFC 5322 §2.1.1).
const MAX_LINE_BYTES: usize = 998;

#[derive(Debug)]
pub(crate) enum Returned<'a> {
    Whole(Cow<'a, [u8]>),
    Header(Vec<u8>),
    /// The message can no longer be read, so the DSN has no third part. RFC 6522 §3 permits this.
    Nothing,
}

impl<'a> Returned<'a> {
    /// Chooses what the DSN returns to the sender: the whole message or only its header. The whole message helps a
    /// sender most, but it is returned only for a failure, and only if the sender did not ask for the header alone. A
    /// message that is too large, or that cannot be sent unchanged, is not returned whole.
    pub(crate) fn choose(facts: &DsnFacts<'a>, gravest: DsnAction, whole_bytes: usize) -> Self {
        let message = facts.message;
        if message.is_empty() {
            return Self::Nothing;
        }
        let is_wanted = gravest == DsnAction::Failed && facts.returns != Some(Return::Header);
        let whole = if is_wanted && message.len() <= whole_bytes && is_sound(message) { whole(facts) } else { None };
        whole.map_or_else(|| Self::Header(sound_header(message)), Self::Whole)
    }

    fn header(&self) -> &[u8] {
        match self {
            Self::Whole(message) => &message[..header_bytes(message)],
            Self::Header(header) => header,
            Self::Nothing => &[],
        }
    }

    /// Returns true if the header is ASCII. Only a message sent with SMTPUTF8 may have other bytes
    /// in its header (RFC 6532), but faulty clients send them in any message.
    pub(crate) fn header_is_ascii(&self) -> bool {
        self.header().is_ascii()
    }

    pub(crate) fn part(&self, charset: Charset) -> Option<DsnPart<'_>> {
        // Check that the header is valid UTF-8, because some clients send other bytes, which must
        // not be declared as UTF-8.
        let is_global = charset == Charset::Utf8 && std::str::from_utf8(self.header()).is_ok();
        let (kind, description, body): (_, _, &[u8]) = match (self, is_global) {
            (Self::Whole(message), false) => ("message/rfc822", "Your message", message),
            (Self::Whole(message), true) => ("message/global", "Your message", message),
            (Self::Header(header), false) => ("text/rfc822-headers", "The header of your message", header),
            (Self::Header(header), true) => ("message/global-headers", "The header of your message", header),
            (Self::Nothing, _) => return None,
        };
        Some(DsnPart::new(kind, description, Cow::Borrowed(body)))
    }
}

/// Returns the whole message in a form that can be sent to any server, or `None` if no such form exists.
/// `message/rfc822` must not be encoded as a whole, so the parts of the message are encoded instead (RFC 2046 §5.2.1).
/// `message/global` may be encoded as a whole (RFC 6532 §3.7).
fn whole<'a>(facts: &DsnFacts<'a>) -> Option<Cow<'a, [u8]>> {
    let message = facts.message;
    let header = &message[..header_bytes(message)];
    if header.is_ascii() {
        let converted = mailrun_mime::to_seven_bit(message, facts.host).ok()?;
        return Some(converted.map_or(Cow::Borrowed(message), Cow::Owned));
    }
    let is_global = facts.smtp_utf8 && std::str::from_utf8(header).is_ok();
    is_global.then_some(Cow::Borrowed(message))
}

/// Splits a text into lines, including their ends. LF ends a line, with or without CR before it.
fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split_inclusive(|octet| *octet == b'\n')
}

fn without_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// Returns the length of the header in bytes, without the empty line after it.
fn header_bytes(message: &[u8]) -> usize {
    lines(message).take_while(|line| !without_end(line).is_empty()).map(<[u8]>::len).sum()
}

/// Returns true if a message may be sent unchanged (RFC 5322 §2.1.1, §2.3). For example, a message
/// with a bare CR, or with a line that is too long, may not.
fn is_sound(message: &[u8]) -> bool {
    lines(message).all(|line| {
        let text = line.strip_suffix(b"\r\n").unwrap_or(line);
        text.len() <= MAX_LINE_BYTES && memchr::memchr3(b'\r', b'\n', 0, text).is_none()
    })
}

/// Returns the message's header, changed so that each line is valid in a DSN. Long lines are cut, CR and NUL become
/// `?`, and a header above [`MAX_HEADER_BYTES`] is cut at the end of a line.
fn sound_header(message: &[u8]) -> Vec<u8> {
    let mut header = Vec::new();
    for line in lines(message).map(without_end).take_while(|line| !line.is_empty()) {
        let line = &line[..character_boundary(line, MAX_LINE_BYTES)];
        if header.len() + line.len() + 2 > MAX_HEADER_BYTES {
            break;
        }
        header.extend(line.iter().map(|octet| if matches!(octet, b'\r' | 0) { b'?' } else { *octet }));
        header.extend_from_slice(b"\r\n");
    }
    header
}

/// Returns the number of bytes of a line to keep: at most `limit`, without cutting a UTF-8
/// character.
fn character_boundary(line: &[u8], limit: usize) -> usize {
    let is_inner = |at: usize| line.get(at).is_some_and(|octet| octet & 0xC0 == 0x80);
    if line.len() <= limit {
        line.len()
    } else {
        (limit.saturating_sub(3)..=limit).rev().find(|at| !is_inner(*at)).unwrap_or(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_table_of_headers() {
        let rows: [(&[u8], &[u8]); 9] = [
            (b"A: b\r\n\r\nbody\r\n", b"A: b\r\n"),
            (b"A: b\r\n\tc\r\n\r\n", b"A: b\r\n\tc\r\n"),
            (b"\r\nbody", b""),
            (b"", b""),
            (b"A: b", b"A: b\r\n"),
            (b"A: b\nC: d\n\nbody", b"A: b\r\nC: d\r\n"),
            (b"A: b\rC\0: d\r\n\r\n", b"A: b?C?: d\r\n"),
            (b"A: b\r\r\n\r\n", b"A: b?\r\n"),
            (b"A: b\r\n\nbody", b"A: b\r\n"),
        ];
        for (message, expected) in rows {
            assert_eq!(sound_header(message), expected, "{}", String::from_utf8_lossy(message));
        }
    }

    #[test]
    fn a_header_bomb_comes_back_cut() {
        let many = sound_header(&b"A: 0123456789\r\n".repeat(100_000));
        assert!(many.len() <= MAX_HEADER_BYTES && many.len() > MAX_HEADER_BYTES - 20 && many.ends_with(b"\r\n"));
        let long = [b"A: ".as_slice(), "ä".repeat(50_000).as_bytes()].concat();
        let cut = sound_header(&long);
        assert_eq!((cut.len(), std::str::from_utf8(&cut).is_ok()), (MAX_LINE_BYTES - 1 + 2, true));
    }

    #[test]
    fn a_message_is_sound_or_not() {
        let line = |length: usize| [vec![b'x'; length], b"\r\n".to_vec()].concat();
        let rows = [
            (b"".to_vec(), true),
            (b"a\r\n\r\nb".to_vec(), true),
            (line(998), true),
            (line(999), false),
            (vec![b'x'; 999], false),
            (b"a\nb\r\n".to_vec(), false),
            (b"a\rb\r\n".to_vec(), false),
            (b"a\r\r\n".to_vec(), false),
            (b"a\0b\r\n".to_vec(), false),
            (b"a\r".to_vec(), false),
        ];
        for (message, expected) in rows {
            assert_eq!(is_sound(&message), expected, "{}", String::from_utf8_lossy(&message));
        }
    }

    proptest! {
        #[test]
        fn any_header_comes_back_sound(message in proptest::collection::vec(
            prop_oneof![Just(b'\r'), Just(b'\n'), Just(0), Just(b'a'), any::<u8>()], 0..400)) {
            let header = sound_header(&message);
            prop_assert!(is_sound(&header) && header_bytes(&header) == header.len());
        }
    }
}
