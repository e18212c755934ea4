//! Parses replies as Postfix's smtp-source does. Any three digits are a code, and anything else counts as code 0. A `-`
//! after the digits means that more lines follow.

/// Maximum number of bytes of a line that are read. The rest of the line is ignored.
const MAX_LINE_BYTES: usize = 10_240;
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reply<'a> {
    pub(crate) wire: &'a [u8],
}

impl<'a> Reply<'a> {
    /// Returns the code of the last line. Codes of earlier lines do not count.
    pub(crate) fn code(&self) -> u16 {
        let before = self.wire.strip_suffix(b"\n").unwrap_or(self.wire);
        let start = memchr::memrchr(b'\n', before).map_or(0, |at| at + 1);
        ReplyLineParts::of(line_text(&self.wire[start..])).code
    }

    /// Returns the lines without their line ends, each cut at the maximum length.
    pub(crate) fn lines(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.wire.split_inclusive(|&byte| byte == b'\n').map(line_text)
    }

    /// Returns the texts of all lines, without the codes, joined by line feeds.
    pub(crate) fn text(&self) -> Vec<u8> {
        let texts: Vec<&[u8]> = self.lines().map(|line| ReplyLineParts::of(line).text).collect();
        texts.join(&b'\n')
    }
}

/// Returns a line without its line end, cut at a NUL or at the maximum length.
fn line_text(line: &[u8]) -> &[u8] {
    let line = if line.len() > MAX_LINE_BYTES + b"\r\n".len() {
        &line[..MAX_LINE_BYTES]
    } else {
        let mut line = line.strip_suffix(b"\n").unwrap_or(line);
        while let Some(shorter) = line.strip_suffix(b"\r") {
            line = shorter;
        }
        line
    };
    &line[..memchr::memchr(0, line).unwrap_or(line.len())]
}

struct ReplyLineParts<'a> {
    code: u16,
    is_last: bool,
    text: &'a [u8],
}

impl<'a> ReplyLineParts<'a> {
    fn of(line: &'a [u8]) -> Self {
        let digits = line.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let code =
            if digits == 3 { line[..3].iter().fold(0, |code, digit| code * 10 + u16::from(digit - b'0')) } else { 0 };
        let is_last = line.get(digits) != Some(&b'-');
        let text = &line[digits + usize::from(!is_last)..];
        let blanks = text.iter().take_while(|byte| byte.is_ascii_whitespace() || **byte == 0x0b).count();
        Self { code, is_last, text: &text[blanks..] }
    }
}

pub(crate) fn is_last_line(line: &[u8]) -> bool {
    ReplyLineParts::of(line_text(line)).is_last
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reply_reader::{MAX_REPLY_BYTES, ReplyReader, ReplyTooLong};
    use proptest::prelude::*;

    type Read = Result<Vec<(u16, String)>, ReplyTooLong>;
    type ParseCase<'a> = (&'a [u8], &'a [(u16, &'a str)]);

    fn read<'a>(blocks: impl IntoIterator<Item = &'a [u8]>) -> Read {
        let mut reader = ReplyReader::default();
        let mut seen = Vec::new();
        for mut input in blocks {
            while !input.is_empty() {
                if let Some(wire) = reader.next(&mut input, |_, line| is_last_line(line))? {
                    let reply = Reply { wire };
                    seen.push((reply.code(), String::from_utf8_lossy(&reply.text()).into_owned()));
                }
            }
        }
        Ok(seen)
    }

    #[test]
    fn a_table_of_replies_reads_the_same_however_it_is_cut() {
        let rows: [ParseCase<'_>; 15] = [
            (b"250 2.0.0 Ok\r\n", &[(250, "2.0.0 Ok")]),
            (b"250\r\n", &[(250, "")]),
            (b"250-a\r\n250-b\r\n250 c\r\n354 go\r\n", &[(250, "a\nb\nc"), (354, "go")]),
            (b"220 x\n250 y\r\r\n", &[(220, "x"), (250, "y")]),
            (b"550-a\r\n220 b\r\n", &[(220, "a\nb")]),
            (b"hello\r\n", &[(0, "hello")]),
            (b"\r\n", &[(0, "")]),
            (b"99 x\r\n", &[(0, "x")]),
            (b"2500 x\r\n", &[(0, "x")]),
            (b"042 x\r\n", &[(42, "x")]),
            (b"250x\r\n", &[(250, "x")]),
            (b"550   x \r\n", &[(550, "x ")]),
            (b"-\r\n-5\r\n5-\r\n650 x\r\n", &[(650, "\n5\n\nx")]),
            (b"550 a\0b\r\n", &[(550, "a")]),
            (b"55\x000-a\r\n", &[(0, "")]),
        ];
        for (bytes, expected) in rows {
            let expected: Read = Ok(expected.iter().map(|(code, text)| (*code, (*text).to_owned())).collect());
            assert_eq!(read([bytes]), expected);
            assert_eq!(read(bytes.chunks(1)), expected, "byte by byte");
            assert_eq!(read([[bytes, b"25".as_slice()].concat().as_slice()]), expected, "with trailing bytes");
        }
    }

    #[test]
    fn a_long_line_is_cut_and_an_endless_reply_refused() {
        let line = |text: usize| [b"250 ".as_slice(), &vec![b'x'; text], b"\r\n"].concat();
        let seen = read([line(20_000).as_slice()]).unwrap();
        assert_eq!(seen, [(250, "x".repeat(MAX_LINE_BYTES - 4))]);
        assert!(read([line(MAX_REPLY_BYTES - 6).as_slice()]).is_ok());
        assert_eq!(read([line(MAX_REPLY_BYTES - 5).as_slice()]), Err(ReplyTooLong));
        assert_eq!(read(line(MAX_REPLY_BYTES - 5).chunks(9)), Err(ReplyTooLong));
        let more = b"250-and on\r\n".repeat(10_000);
        assert_eq!(read(more.chunks(4096)), Err(ReplyTooLong));
    }

    proptest! {
        #[test]
        fn any_octets_read_the_same_however_they_are_cut(
            bytes in prop::collection::vec(prop::sample::select(b"25-0 \r\n\0ax".to_vec()), 0..200),
            cut in 1_u8..20,
        ) {
            crate::checks::source_reply::check(&[bytes.as_slice(), &[cut]].concat());
        }
    }
}
