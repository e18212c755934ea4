//! Replies, written by a server and read by a client (RFC 5321 §4.2), with enhanced status codes
//! (RFC 2034, RFC 3463).
use std::borrow::Cow;
use std::fmt;

/// Returns true if a reply with this code is about the session and not about the message, so that
/// another session may accept the same message. 421 closes the session. 500, 502 and 503 show that
/// the two sides disagree on its state. 530 demands TLS (RFC 3207 §4) or a login (RFC 4954 §6).
pub fn is_session_fault(code: u16) -> bool {
    matches!(code, 421 | 500 | 502 | 503 | 530)
}

/// Returns true if a reply with this code rejects a message or recipient for good. This is true for all 5yz codes,
/// except for codes about the session ([`is_session_fault`]).
pub fn is_permanent(code: u16) -> bool {
    code / 100 == 5 && !is_session_fault(code)
}

/// A server's reply, rendered as the bytes to send. A fixed text needs no allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    code: u16,
    wire: Cow<'static, [u8]>,
}

impl Reply {
    /// Makes a reply at compile time from its text, including `<CRLF>`, for example
    /// `Reply::fixed("250 2.0.0 Ok\r\n")`.
    pub const fn fixed(wire: &'static str) -> Self {
        let bytes = wire.as_bytes();
        assert!(bytes.len() > 5 && bytes[bytes.len() - 2] == b'\r' && bytes[bytes.len() - 1] == b'\n');
        let code = (bytes[0] - b'0') as u16 * 100 + (bytes[1] - b'0') as u16 * 10 + (bytes[2] - b'0') as u16;
        assert!(code >= 200 && code < 600);
        Self { code, wire: Cow::Borrowed(bytes) }
    }

    /// Makes a reply with a line for each line of `text`. An enhanced status code must be part of `text`, because this
    /// function adds none. Control characters become `?`, so that no text can forge a second reply. A code outside 200
    /// to 599 becomes 451.
    pub fn new(code: u16, text: &str) -> Self {
        let code = if (200..600).contains(&code) { code } else { 451 };
        let digits = [code / 100, code / 10 % 10, code % 10].map(|digit| b'0' + digit as u8);
        let mut wire = Vec::with_capacity(text.len() + 6);
        let mut lines = text.lines().peekable();
        if lines.peek().is_none() {
            wire.extend_from_slice(&digits);
            wire.extend_from_slice(b" \r\n");
        }
        while let Some(line) = lines.next() {
            wire.extend_from_slice(&digits);
            wire.push(if lines.peek().is_some() { b'-' } else { b' ' });
            wire.extend(line.bytes().map(|byte| if byte.is_ascii_control() { b'?' } else { byte }));
            wire.extend_from_slice(b"\r\n");
        }
        Self { code, wire: Cow::Owned(wire) }
    }

    /// Returns the code of the reply, which is from 200 to 599.
    pub fn code(&self) -> u16 {
        self.code
    }

    /// Returns true if the code is 2yz or 3yz, with which the server accepts a command.
    pub fn is_positive(&self) -> bool {
        self.code < 400
    }

    /// Returns all lines of the reply as bytes to send, including their `<CRLF>`.
    pub fn wire(&self) -> &[u8] {
        &self.wire
    }
}

/// Makes a `&'static Reply` at compile time, so that sending the reply needs no allocation.
macro_rules! say {
    ($text:literal) => {{
        static REPLY: $crate::reply::Reply = $crate::reply::Reply::fixed(concat!($text, "\r\n"));
        &REPLY
    }};
}
pub(crate) use say;

/// A received reply with all its lines, unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedReply<'a> {
    code: u16,
    wire: &'a [u8],
}

impl<'a> ReceivedReply<'a> {
    /// Returns the three-digit code of the last line, which counts for the whole reply.
    pub fn code(&self) -> u16 {
        self.code
    }

    /// Returns true if the code is 2yz or 3yz, with which the server accepts a command.
    pub fn is_positive(&self) -> bool {
        self.code < 400
    }

    /// Returns the bytes of the reply as they were received, including codes and line ends.
    pub fn wire(&self) -> &'a [u8] {
        self.wire
    }

    /// Returns the text of each line, without code and line end.
    pub fn lines(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.wire.split_inclusive(|&byte| byte == b'\n').map(|line| {
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            line.get(4..).unwrap_or_default()
        })
    }

    /// Returns the text of all lines in printable form. Lines are joined by a space, and control
    /// characters become `?`.
    pub fn text(&self) -> String {
        let lines: Vec<String> = self.lines().map(|line| String::from_utf8_lossy(line).into_owned()).collect();
        lines.join(" ").chars().map(|c| if c.is_control() { '?' } else { c }).collect()
    }

    /// Returns the subject of the enhanced status code in the first line, such as 1 in `250 2.1.0 Ok`. Returns `None`
    /// if there is no such code, or if its subject has more than one digit.
    pub(crate) fn subject(&self) -> Option<u8> {
        match self.wire.get(4..8) {
            Some([_, b'.', subject @ b'0'..=b'9', b'.']) => Some(subject - b'0'),
            _ => None,
        }
    }

    /// Returns the enhanced status code of the last line, if there is one (RFC 2034).
    pub fn enhanced(&self) -> Option<EnhancedStatusCode> {
        EnhancedStatusCode::parse(self.lines().last()?)
    }
}

/// An enhanced status code (RFC 3463 §2): class, subject and detail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnhancedStatusCode(pub u8, pub u16, pub u16);

impl EnhancedStatusCode {
    /// Parses the first word of a reply's text, such as `5.1.1`. Returns `None` if the word is not
    /// a code of class 2, 4 or 5.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let word = text.split(|&byte| byte == b' ').next()?;
        let mut parts = std::str::from_utf8(word).ok()?.split('.');
        let class = parts.next()?;
        let subject = parts.next()?;
        let detail = parts.next()?;
        let is_number = |part: &&str| part.len() <= 3 && part.bytes().all(|byte| byte.is_ascii_digit());
        let number = |part: &str| Some(part).filter(is_number)?.parse::<u16>().ok();
        match (class, parts.next()) {
            ("2" | "4" | "5", None) => Some(Self(class.parse().ok()?, number(subject)?, number(detail)?)),
            _ => None,
        }
    }
}

impl fmt::Display for EnhancedStatusCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// Reason why a peer's reply is invalid, after which the session cannot continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// A line does not start with three digits from 200 to 599.
    #[error("the peer sent a line that is not an SMTP reply")]
    NoCode,
    /// The reply exceeds [`MAX_REPLY_BYTES`].
    #[error("the peer sent a reply of more than {MAX_REPLY_BYTES} bytes")]
    TooLong,
}

/// Maximum size of a reply in bytes, all lines together. EHLO replies of real servers stay below 2
/// KB.
pub const MAX_REPLY_BYTES: usize = 64 * 1024;

/// Reads replies from blocks of any size. Copies a reply only if it spans several blocks.
#[derive(Debug, Default)]
pub struct ReplyReader {
    held: Vec<u8>,
    spent: bool,
}

impl ReplyReader {
    /// Takes one complete reply off the front of `input`. Returns `None` if more bytes are needed. A bare `<LF>` also
    /// ends a line. A server must not permit this, because attackers could smuggle commands or messages. A client
    /// receives only replies, so a bare `<LF>` does no harm here.
    ///
    /// # Errors
    /// Returns a [`ReplyError`] if the reply is invalid. The caller must then end the session,
    /// because the reader cannot tell where the next reply begins.
    pub fn next<'s, 'i: 's>(&'s mut self, input: &mut &'i [u8]) -> Result<Option<ReceivedReply<'s>>, ReplyError> {
        self.release();
        if self.held.is_empty() {
            if let Some((code, length)) = whole_reply(&input[..input.len().min(MAX_REPLY_BYTES)])? {
                let (wire, rest) = input.split_at(length);
                *input = rest;
                return Ok(Some(ReceivedReply { code, wire }));
            }
            self.held.extend_from_slice(input);
            *input = &[];
            return if self.held.len() > MAX_REPLY_BYTES { Err(ReplyError::TooLong) } else { Ok(None) };
        }
        self.next_held(input)
    }

    /// Frees the memory of the reply that the last call of `next` returned, so that an idle session
    /// occupies none.
    pub(crate) fn release(&mut self) {
        if self.spent {
            self.held = Vec::new();
            self.spent = false;
        }
    }

    #[cfg(test)]
    pub(crate) fn heap_bytes(&self) -> usize {
        self.held.capacity()
    }

    /// Reads a reply that began in an earlier block. Copies one line at a time, so that bytes after
    /// the reply stay in `input`.
    fn next_held(&mut self, input: &mut &[u8]) -> Result<Option<ReceivedReply<'_>>, ReplyError> {
        while !input.is_empty() {
            let end = memchr::memchr(b'\n', input).map_or(input.len(), |at| at + 1);
            let (line, rest) = input.split_at(end);
            *input = rest;
            self.held.extend_from_slice(line);
            if self.held.len() > MAX_REPLY_BYTES {
                return Err(ReplyError::TooLong);
            }
            let start = memchr::memrchr(b'\n', &self.held[..self.held.len() - 1]).map_or(0, |at| at + 1);
            if let Some((code, _)) = whole_reply(&self.held[start..])? {
                self.spent = true;
                return Ok(Some(ReceivedReply { code, wire: &self.held }));
            }
        }
        Ok(None)
    }
}

/// Returns the code and the length of the complete reply at the start of `bytes`, if there is one.
fn whole_reply(bytes: &[u8]) -> Result<Option<(u16, usize)>, ReplyError> {
    let mut start = 0;
    while let Some(at) = memchr::memchr(b'\n', &bytes[start..]) {
        let line = &bytes[start..start + at];
        let code = code_of(line).ok_or(ReplyError::NoCode)?;
        start += at + 1;
        if line.get(3) != Some(&b'-') {
            return Ok(Some((code, start)));
        }
    }
    Ok(None)
}

fn code_of(line: &[u8]) -> Option<u16> {
    let [a @ b'2'..=b'5', b @ b'0'..=b'9', c @ b'0'..=b'9', rest @ ..] = line else { return None };
    if !matches!(rest.first(), None | Some(b' ' | b'-' | b'\r')) {
        return None;
    }
    Some(u16::from(a - b'0') * 100 + u16::from(b - b'0') * 10 + u16::from(c - b'0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    type ReplyParseCase<'a> = (&'a [u8], Result<&'a [(u16, &'a str)], ReplyError>);

    fn read(blocks: &[&[u8]]) -> Result<Vec<(u16, String)>, ReplyError> {
        let mut reader = ReplyReader::default();
        let mut seen = Vec::new();
        for block in blocks {
            let mut input = *block;
            while !input.is_empty() {
                if let Some(reply) = reader.next(&mut input)? {
                    seen.push((reply.code(), reply.text()));
                }
            }
        }
        Ok(seen)
    }

    #[test]
    fn a_table_of_replies_reads_the_same_however_it_is_cut() {
        let rows: &[ReplyParseCase<'_>] = &[
            (b"250 2.0.0 Ok\r\n", Ok(&[(250, "2.0.0 Ok")])),
            (b"250\r\n", Ok(&[(250, "")])),
            (b"250-a\r\n250-b\r\n250 c\r\n354 go\r\n", Ok(&[(250, "a b c"), (354, "go")])),
            (b"220 x\n250 y\r\n", Ok(&[(220, "x"), (250, "y")])),
            (b"250-a\r\n550 b\r\n", Ok(&[(550, "a b")])),
            (b"250 a\x07b\r\n", Ok(&[(250, "a?b")])),
            (b"hello\r\n", Err(ReplyError::NoCode)),
            (b"99 x\r\n", Err(ReplyError::NoCode)),
            (b"2500 x\r\n", Err(ReplyError::NoCode)),
            (b"\r\n", Err(ReplyError::NoCode)),
            (b"650 x\r\n", Err(ReplyError::NoCode)),
        ];
        for (bytes, expected) in rows {
            let expected =
                expected.map(|list| list.iter().map(|(code, text)| (*code, (*text).to_owned())).collect::<Vec<_>>());
            assert_eq!(read(&[bytes]), expected);
            let single: Vec<&[u8]> = bytes.chunks(1).collect();
            assert_eq!(read(&single), expected, "byte by byte");
            let trailing = [bytes, b"25".as_slice()].concat();
            assert_eq!(read(&[&trailing]), expected, "with trailing bytes");
        }
    }

    #[test]
    fn an_endless_reply_is_an_error_and_not_memory() {
        let mut reader = ReplyReader::default();
        let outcome = (0..100_000).find_map(|_| reader.next(&mut b"250-and on\r\n".as_slice()).err());
        assert_eq!(outcome, Some(ReplyError::TooLong));
        let mut reader = ReplyReader::default();
        let outcome = (0..100_000).find_map(|_| reader.next(&mut b"250 on and".as_slice()).err());
        assert_eq!(outcome, Some(ReplyError::TooLong));
    }

    #[test]
    fn a_reply_above_the_limit_is_refused_whole_as_well_as_cut() {
        let reply = |text: usize| [b"250 ".as_slice(), &vec![b'x'; text], b"\r\n"].concat();
        assert!(read(&[&reply(MAX_REPLY_BYTES - 6)]).is_ok());
        let long = reply(MAX_REPLY_BYTES - 5);
        assert_eq!(read(&[&long]), Err(ReplyError::TooLong));
        assert_eq!(read(&[&long[..9], &long[9..]]), Err(ReplyError::TooLong));
    }

    #[test]
    fn text_cannot_forge_a_second_reply() {
        assert_eq!(Reply::new(250, "a\r250 b").wire(), b"250 a?250 b\r\n");
        assert_eq!(Reply::new(250, "a\nb").wire(), b"250-a\r\n250 b\r\n");
        assert_eq!(Reply::new(999, "").wire(), b"451 \r\n");
    }

    #[test]
    fn enhanced_codes_are_read_strictly() {
        assert_eq!(EnhancedStatusCode::parse(b"5.7.1 no"), Some(EnhancedStatusCode(5, 7, 1)));
        for text in [b"no".as_slice(), b"3.1.1 x", b"5.7 x", b"5.7.1.2", b"5.9999.1", b"5.+1.1", b""] {
            assert_eq!(EnhancedStatusCode::parse(text), None);
        }
    }
}
