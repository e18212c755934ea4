//! Parses replies as Go's net/textproto does. The code of a reply is the code of its first line. The reply ends with
//! the first line in which a blank, not a hyphen, follows this code.
use crate::go::flags::quoted;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParsedReply<'a> {
    Reply(u16, &'a [u8]),
    /// The first line of the reply is too short, or it has neither a blank nor a hyphen after the code.
    TooShort(&'a [u8]),
    BadCode(&'a [u8]),
}

impl<'a> ParsedReply<'a> {
    pub(crate) fn parse(wire: &'a [u8]) -> Self {
        let first = lines(wire).next().unwrap_or_default();
        match ReplyLine::parse(first) {
            ReplyLine::Coded { code, .. } => Self::Reply(code, wire),
            ReplyLine::TooShort => Self::TooShort(first),
            ReplyLine::BadCode => Self::BadCode(first),
        }
    }

    /// Returns the error text that go-smtp-source prints for an unexpected reply.
    pub(crate) fn error_text(&self) -> String {
        match self {
            Self::Reply(code, wire) => {
                let texts: Vec<&[u8]> = texts(*code, wire).collect();
                format!("{code:03} {}", quoted(&texts.join(&b'\n')))
            }
            Self::TooShort(line) => format!("short response: {}", quoted(line)),
            Self::BadCode(line) => format!("invalid response code: {}", quoted(line)),
        }
    }
}

pub(crate) fn is_last_line(first: &[u8], line: &[u8]) -> bool {
    match (ReplyLine::parse(first), ReplyLine::parse(line)) {
        (ReplyLine::Coded { code: expected, .. }, ReplyLine::Coded { code, is_last }) => code == expected && is_last,
        (ReplyLine::Coded { .. }, _) => false,
        _ => true,
    }
}

/// Returns the texts of a reply's lines, without the code. A line with another code or without code is returned whole.
pub(crate) fn texts(code: u16, wire: &[u8]) -> impl Iterator<Item = &[u8]> {
    lines(wire).map(move |line| match ReplyLine::parse(line) {
        ReplyLine::Coded { code: its_code, .. } if its_code == code => &line[4..],
        _ => line,
    })
}

fn lines(wire: &[u8]) -> impl Iterator<Item = &[u8]> {
    wire.split_inclusive(|&byte| byte == b'\n').map(without_end)
}

fn without_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplyLine {
    Coded { code: u16, is_last: bool },
    TooShort,
    BadCode,
}

impl ReplyLine {
    fn parse(line: &[u8]) -> Self {
        let is_last = match without_end(line).get(3) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reply_reader::{MAX_REPLY_BYTES, ReplyReader, ReplyTooLong};
    use proptest::prelude::*;

    fn read(wire: &str, piece: usize) -> Vec<String> {
        let mut reader = ReplyReader::default();
        let mut texts = Vec::new();
        for block in wire.as_bytes().chunks(piece) {
            let mut input = block;
            while let Some(reply) = reader.next(&mut input, is_last_line).unwrap() {
                texts.push(ParsedReply::parse(reply).error_text());
            }
        }
        texts
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
            let mut reader = ReplyReader::default();
            let wire = line.repeat(MAX_REPLY_BYTES + 1);
            let mut input = wire.as_bytes();
            assert_eq!(reader.next(&mut input, is_last_line), Err(ReplyTooLong));
        }
    }

    proptest! {
        #[test]
        fn however_it_is_cut_the_same_is_heard(wire in "[025 -a\r\n]{0,60}", piece in 1_u8..9) {
            crate::checks::go_reply::check(&[wire.as_bytes(), &[piece]].concat());
        }
    }
}
