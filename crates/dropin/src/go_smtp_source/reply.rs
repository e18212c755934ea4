//! Replies as Go's net/textproto reads them: the first line's code counts, and the reply ends with the line that has
//! the same code and no hyphen.
use super::flags::quoted;

/// The longest reply accepted, all lines together. The original has no limit, and its memory grows.
pub(super) const MAX_REPLY_BYTES: usize = 64 * 1024;

/// A reply, or an error in one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ParsedReply<'a> {
    /// A reply: its code, and the texts of its lines with line feeds between them.
    Reply(u16, &'a [u8]),
    /// A line that is too short, or has neither blank nor hyphen after its code.
    TooShort(&'a [u8]),
    /// A line without a valid code.
    BadCode(&'a [u8]),
    /// A reply longer than [`MAX_REPLY_BYTES`].
    TooLong,
}

impl ParsedReply<'_> {
    /// The original's error text for an unexpected reply.
    pub(super) fn error_text(&self) -> String {
        match self {
            Self::Reply(code, text) => format!("{code:03} {}", quoted(text)),
            Self::TooShort(line) => format!("short response: {}", quoted(line)),
            Self::BadCode(line) => format!("invalid response code: {}", quoted(line)),
            Self::TooLong => "endless reply".to_owned(),
        }
    }
}

/// The kind of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplyLine {
    Coded { code: u16, is_last: bool },
    TooShort,
    BadCode,
}

impl ReplyLine {
    fn of(line: &[u8]) -> Self {
        let is_last = match line.get(3) {
            Some(b' ') => true,
            Some(b'-') => false,
            _ => return Self::TooShort,
        };
        if !line[..3].iter().all(u8::is_ascii_digit) || line[0] == b'0' {
            return Self::BadCode;
        }
        let code = line[..3].iter().fold(0, |code, digit| code * 10 + u16::from(digit - b'0'));
        Self::Coded { code, is_last }
    }
}

/// Assembles a reply's lines from blocks.
#[derive(Debug, Default)]
pub(super) struct GoReplyReader {
    /// An incomplete line.
    partial: Vec<u8>,
    /// The first line's code, once it has come.
    code: Option<u16>,
    text: Vec<u8>,
    is_consumed: bool,
}

impl GoReplyReader {
    /// Takes one whole reply from the front of `input`; `None` if it needs more bytes.
    pub(super) fn next<'s>(&'s mut self, input: &mut &[u8]) -> Option<ParsedReply<'s>> {
        if std::mem::take(&mut self.is_consumed) {
            self.text.clear();
            self.partial.clear();
        }
        while let Some(at) = memchr::memchr(b'\n', input) {
            self.partial.extend_from_slice(&input[..at]);
            *input = &input[at + 1..];
            if self.partial.last() == Some(&b'\r') {
                self.partial.pop();
            }
            if self.is_too_long() {
                return Some(ParsedReply::TooLong);
            }
            let line = ReplyLine::of(&self.partial);
            match (self.code, line) {
                (None, ReplyLine::Coded { code, .. }) => self.code = Some(code),
                (None, bad) => {
                    self.is_consumed = true;
                    let is_short = bad == ReplyLine::TooShort;
                    return Some(if is_short {
                        ParsedReply::TooShort(&self.partial)
                    } else {
                        ParsedReply::BadCode(&self.partial)
                    });
                }
                (Some(_), _) => self.text.push(b'\n'),
            }
            if self.add(line) {
                self.is_consumed = true;
                return self.code.take().map(|code| ParsedReply::Reply(code, self.text.as_slice()));
            }
        }
        self.partial.extend_from_slice(input);
        *input = &[];
        self.is_too_long().then_some(ParsedReply::TooLong)
    }

    /// Adds a line; returns true if it is the last.
    fn add(&mut self, line: ReplyLine) -> bool {
        let (from, is_last) = match line {
            ReplyLine::Coded { code, is_last } if Some(code) == self.code => (4, is_last),
            // A line in the middle with another code, or none, is text.
            _ => (0, false),
        };
        self.text.extend_from_slice(&self.partial[from..]);
        self.partial.clear();
        is_last
    }

    fn is_too_long(&self) -> bool {
        self.text.len() + self.partial.len() > MAX_REPLY_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(wire: &str, piece: usize) -> Vec<String> {
        let mut reader = GoReplyReader::default();
        let mut heard = Vec::new();
        for block in wire.as_bytes().chunks(piece) {
            let mut input = block;
            while let Some(reply) = reader.next(&mut input) {
                heard.push(reply.error_text());
            }
        }
        heard
    }

    #[test]
    fn a_table_of_replies() {
        let rows: [(&str, &[&str]); 9] = [
            ("250 ok\r\n", &["250 \"ok\""]),
            ("250 ok\n", &["250 \"ok\""]),
            ("250 \r\n", &["250 \"\""]),
            ("250-a\r\n250-b\r\n250 c\r\n", &["250 \"a\\nb\\nc\""]),
            ("550-a\r\nmore\r\n551 x\r\n550 c\r\n", &["550 \"a\\nmore\\n551 x\\nc\""]),
            ("250\r\n250 ok\r\n", &["short response: \"250\"", "250 \"ok\""]),
            ("\r\n", &["short response: \"\""]),
            ("abc d\r\n", &["invalid response code: \"abc d\""]),
            ("099-x\r\n220 a\r\n", &["invalid response code: \"099-x\"", "220 \"a\""]),
        ];
        for (wire, expected) in rows {
            assert_eq!(read(wire, wire.len()), expected, "{wire:?}");
            assert_eq!(read(wire, 1), expected, "{wire:?}");
            assert_eq!(read(&format!("{wire}250"), wire.len()), expected, "what is behind it waits: {wire:?}");
        }
    }

    #[test]
    fn an_endless_reply_ends() {
        for line in ["250-x\r\n", "x"] {
            let mut reader = GoReplyReader::default();
            let wire = line.repeat(MAX_REPLY_BYTES + 1);
            let mut input = wire.as_bytes();
            assert_eq!(reader.next(&mut input), Some(ParsedReply::TooLong));
        }
    }

    proptest! {
        #[test]
        fn however_it_is_cut_the_same_is_heard(wire in "[025 -a\r\n]{0,60}", piece in 1usize..9) {
            prop_assert_eq!(read(&wire, piece), read(&wire, wire.len().max(1)));
        }
    }
}
