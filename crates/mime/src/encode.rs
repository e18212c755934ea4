//! Encoders for quoted-printable and base64. They write lines of at most 76 characters, which gateways pass on
//! unchanged.
use super::field::lines;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Maximum length of an encoded line, without its line end (RFC 2045 §6.7 rule 5, §6.8).
const MAX_LINE_BYTES: usize = 76;
/// Number of content bytes that a line of base64 encodes.
const BASE64_LINE_BYTES: usize = MAX_LINE_BYTES / 4 * 3;
/// Number of base64 lines that are encoded at a time, in a buffer of 4,864 bytes on the stack.
const BASE64_LINES: usize = 64;

/// Content-Transfer-Encoding of a part (RFC 2045 §6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Quoted-printable (RFC 2045 §6.7), which leaves most ASCII text readable.
    QuotedPrintable,
    /// Base64 (RFC 2045 §6.8), which suits any bytes.
    Base64,
}

impl Encoding {
    /// Chooses quoted-printable if people can still read the result, which means that at most a
    /// third of the bytes are `=` or not ASCII. Content with bare CR or LF, or with NUL, is not
    /// text, so it becomes base64.
    pub fn for_text(content: &[u8]) -> Self {
        let is_escaped = |byte: &&u8| !matches!(**byte, b' '..=b'<' | b'>'..=b'~' | b'\t' | b'\r' | b'\n');
        let escaped = content.iter().filter(is_escaped).count();
        let has_plain_ends = || {
            lines(content).all(|line| {
                let text = line.strip_suffix(b"\r\n").unwrap_or(line);
                memchr::memchr3(b'\r', b'\n', 0, text).is_none()
            })
        };
        if escaped <= content.len() / 3 && has_plain_ends() { Self::QuotedPrintable } else { Self::Base64 }
    }

    /// Returns the word for the field Content-Transfer-Encoding, such as `base64`.
    pub fn word(self) -> &'static str {
        match self {
            Self::QuotedPrintable => "quoted-printable",
            Self::Base64 => "base64",
        }
    }

    /// Encodes `content` and appends the result to `out`. Base64 has no line end after its last
    /// line. Quoted-printable ends in a line end if the content does.
    pub fn encode(self, content: &[u8], out: &mut Vec<u8>) {
        match self {
            Self::QuotedPrintable => quoted_printable(content, out),
            Self::Base64 => base64_lines(content, out),
        }
    }
}

fn base64_lines(content: &[u8], out: &mut Vec<u8>) {
    out.reserve(content.len().div_ceil(BASE64_LINE_BYTES) * (MAX_LINE_BYTES + 2));
    let mut text = [0; BASE64_LINES * MAX_LINE_BYTES];
    let mut end: &[u8] = b"";
    for block in content.chunks(BASE64_LINES * BASE64_LINE_BYTES) {
        let length = STANDARD.encode_slice(block, &mut text).expect("the text has room for the block");
        for line in text[..length].chunks(MAX_LINE_BYTES) {
            out.extend_from_slice(end);
            out.extend_from_slice(line);
            end = b"\r\n";
        }
    }
}

/// Encodes `content` as quoted-printable, in which CRLF remains a line end. A bare CR or LF is encoded like any other
/// byte.
fn quoted_printable(content: &[u8], out: &mut Vec<u8>) {
    let mut rest = content;
    let line_end = memchr::memmem::Finder::new(b"\r\n");
    loop {
        match line_end.find(rest) {
            Some(end) => {
                quote_line(&rest[..end], out);
                out.extend_from_slice(b"\r\n");
                rest = &rest[end + 2..];
            }
            None => return quote_line(rest, out),
        }
    }
}

fn quote_line(line: &[u8], out: &mut Vec<u8>) {
    let mut column = 0;
    for (at, byte) in line.iter().enumerate() {
        let is_last = at + 1 == line.len();
        let is_literal = match byte {
            b' ' | b'\t' => !is_last,
            b'=' => false,
            // Encode a hyphen at the start of a line, because the line must not look like a
            // delimiter.
            b'-' => column > 0,
            byte => byte.is_ascii_graphic(),
        };
        let width = if is_literal { 1 } else { 3 };
        // Reserve a column for the `=` of a soft line break. The last line does not need it, but treating all lines
        // alike is simpler.
        if column + width > MAX_LINE_BYTES - 1 {
            out.extend_from_slice(b"=\r\n");
            column = 0;
        }
        match (is_literal, byte) {
            // Encode this hyphen, because a soft line break has moved it to the start of a line, where it could look
            // like a delimiter.
            (true, b'-') if column == 0 => column += push_quoted(b'-', out),
            (true, byte) => {
                out.push(*byte);
                column += 1;
            }
            (false, byte) => column += push_quoted(*byte, out),
        }
    }
}

fn push_quoted(byte: u8, out: &mut Vec<u8>) -> usize {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    out.extend_from_slice(&[b'=', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quoted(content: &[u8]) -> String {
        let mut out = Vec::new();
        quoted_printable(content, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_table_of_quoted_printable() {
        let rows: [(&[u8], &str); 10] = [
            (b"", ""),
            (b"a\r\n", "a\r\n"),
            ("ä=\r\n\r\n".as_bytes(), "=C3=A4=3D\r\n\r\n"),
            (b"a \r\nb\t", "a=20\r\nb=09"),
            (b" a", " a"),
            (b"--x\r\n-", "=2D-x\r\n=2D"),
            (b"a\rb\nc\0", "a=0Db=0Ac=00"),
            (b"\r\r\n", "=0D\r\n"),
            (b"\x7f", "=7F"),
            (b".\r\n", ".\r\n"),
        ];
        for (content, expected) in rows {
            assert_eq!(quoted(content), expected);
        }
        assert_eq!(quoted(&[b'x'; 76]), format!("{}=\r\nx", "x".repeat(75)));
        let broken = [[b'x'; 75].as_slice(), b"--boundary"].concat();
        assert_eq!(quoted(&broken), format!("{}=\r\n=2D-boundary", "x".repeat(75)));
    }

    #[test]
    fn quoted_printable_is_for_text_that_stays_readable() {
        for (content, expected) in [
            ("a = b\tc\r\n", Encoding::QuotedPrintable),
            ("ein größerer Text\r\n", Encoding::QuotedPrintable),
            ("ωμέγα\r\n", Encoding::Base64),
            ("\x1b[1m\x1b[0m\x07\r\n", Encoding::QuotedPrintable),
            ("\x01\x02\x03a\r\n", Encoding::Base64),
            ("a\nb\r\n", Encoding::Base64),
        ] {
            assert_eq!(Encoding::for_text(content.as_bytes()), expected, "{content:?}");
        }
    }

    #[test]
    fn a_table_of_base64() {
        let encoded = |content: &[u8]| {
            let mut out = Vec::new();
            base64_lines(content, &mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!((encoded(b"").as_str(), encoded(b"f").as_str(), encoded(b"foo").as_str()), ("", "Zg==", "Zm9v"));
        assert_eq!(encoded(&[0; 58]), format!("{}\r\nAA==", "A".repeat(76)));
        let many = encoded(&[0; 57 * 200]);
        assert!(many.split("\r\n").all(|line| line == "A".repeat(76)) && many.split("\r\n").count() == 200);
    }
}
