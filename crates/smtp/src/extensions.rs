//! Renders and parses the extensions in a server's reply to EHLO (RFC 5321 §4.1.1.1).
use crate::sasl::Mechanisms;
use crate::xclient::Attributes;

/// Extensions that a server offers, as far as this crate knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extensions {
    /// The client need not wait for each reply (PIPELINING, RFC 2920).
    pub pipelining: bool,
    /// The message may contain bytes above 127 (8BITMIME, RFC 6152).
    pub eight_bit_mime: bool,
    /// Addresses and headers may be UTF-8 (SMTPUTF8, RFC 6531).
    pub smtp_utf8: bool,
    /// Replies contain codes such as 5.1.1 (ENHANCEDSTATUSCODES, RFC 2034).
    pub enhanced_status_codes: bool,
    /// Size in bytes of the largest message that the server accepts (SIZE, RFC 1870). 0 means no
    /// fixed limit.
    pub size: Option<u64>,
    /// The client may request notifications (DSN, RFC 3461).
    pub dsn: bool,
    /// The client may send messages with BDAT (CHUNKING, RFC 3030).
    pub chunking: bool,
    /// A message that is sent with BDAT may contain any bytes (BINARYMIME, RFC 3030).
    pub binary_mime: bool,
    /// The client may begin TLS (STARTTLS, RFC 3207).
    pub starttls: bool,
    /// Mechanisms with which the client may log in (AUTH, RFC 4954). If there are none, AUTH is not
    /// offered.
    pub auth: Mechanisms,
    /// Attributes that the client may set with XCLIENT, a Postfix extension. If there are none,
    /// XCLIENT is not offered.
    pub xclient: Attributes,
}

impl Extensions {
    /// Returns the extensions that a server of this crate offers by default. STARTTLS, AUTH and XCLIENT are not among
    /// them, because they need a certificate, a list of users or a trusted client.
    pub fn all(message_bytes: u64) -> Self {
        Self {
            pipelining: true,
            eight_bit_mime: true,
            smtp_utf8: true,
            enhanced_status_codes: true,
            size: Some(message_bytes),
            dsn: true,
            chunking: true,
            binary_mime: true,
            starttls: false,
            auth: Mechanisms::NONE,
            xclient: Attributes::NONE,
        }
    }

    /// Renders the text of an EHLO reply: the server's name, and a line for each extension.
    pub fn render(&self, name: &str) -> String {
        let mut lines = vec![name.to_owned()];
        let keywords = [
            (self.pipelining, "PIPELINING"),
            (self.eight_bit_mime, "8BITMIME"),
            (self.smtp_utf8, "SMTPUTF8"),
            (self.enhanced_status_codes, "ENHANCEDSTATUSCODES"),
            (self.dsn, "DSN"),
            (self.chunking, "CHUNKING"),
            (self.binary_mime, "BINARYMIME"),
            (self.starttls, "STARTTLS"),
        ];
        lines.extend(keywords.iter().filter(|(offered, _)| *offered).map(|(_, keyword)| (*keyword).to_owned()));
        lines.extend(self.size.map(|bytes| if bytes == 0 { "SIZE".to_owned() } else { format!("SIZE {bytes}") }));
        lines.extend((!self.auth.is_empty()).then(|| self.auth.render()));
        lines.extend((!self.xclient.is_empty()).then(|| self.xclient.render()));
        lines.join("\n")
    }

    /// Parses the lines of an EHLO reply. Skips the first line, which contains the server's name,
    /// and ignores unknown keywords.
    pub fn parse<'a>(lines: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut offered = Self::default();
        for line in lines.skip(1) {
            let line = line.trim_ascii();
            let (keyword, argument) = line.split_at(line.iter().position(|&byte| byte == b' ').unwrap_or(line.len()));
            offered.take(keyword, argument.trim_ascii());
        }
        offered
    }

    fn take(&mut self, keyword: &[u8], argument: &[u8]) {
        let is = |name: &[u8]| keyword.eq_ignore_ascii_case(name);
        self.pipelining |= is(b"PIPELINING");
        self.eight_bit_mime |= is(b"8BITMIME");
        self.smtp_utf8 |= is(b"SMTPUTF8");
        self.enhanced_status_codes |= is(b"ENHANCEDSTATUSCODES");
        self.dsn |= is(b"DSN");
        self.chunking |= is(b"CHUNKING");
        self.binary_mime |= is(b"BINARYMIME");
        self.starttls |= is(b"STARTTLS");
        if is(b"SIZE") {
            self.size = Some(number(argument).unwrap_or(0));
        } else if is(b"AUTH") {
            self.auth = Mechanisms::parse(argument);
        } else if is(b"XCLIENT") {
            self.xclient = Attributes::parse(argument);
        }
    }
}

/// Parses a decimal number of at most 20 digits (RFC 1870 §3). Numbers that exceed 64 bits become
/// the largest 64-bit number.
pub(crate) fn number(digits: &[u8]) -> Option<u64> {
    if !(1..=20).contains(&digits.len()) {
        return None;
    }
    digits.iter().try_fold(0u64, |sum, digit| {
        let digit = digit.is_ascii_digit().then(|| digit - b'0')?;
        Some(sum.saturating_mul(10).saturating_add(u64::from(digit)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_rendered_is_read_back() {
        for bits in 0u32..1 << 11 {
            let bit = |n: u8| bits & (1 << n) != 0;
            let offered = Extensions {
                pipelining: bit(0),
                eight_bit_mime: bit(1),
                smtp_utf8: bit(2),
                enhanced_status_codes: bit(3),
                size: bit(4).then_some(u64::from(bits)),
                dsn: bit(5),
                chunking: bit(6),
                binary_mime: bit(7),
                starttls: bit(8),
                auth: if bit(9) { Mechanisms::PASSWORD } else { Mechanisms::NONE },
                xclient: if bit(10) { Attributes::ALL } else { Attributes::NONE },
            };
            let text = offered.render("name");
            assert_eq!(Extensions::parse(text.lines().map(str::as_bytes)), offered);
        }
    }

    #[test]
    fn a_keyword_is_read_in_any_case_and_a_name_is_not_a_keyword() {
        let read = |lines: &[&str]| Extensions::parse(lines.iter().map(|line| line.as_bytes()));
        assert!(read(&["host", "Pipelining"]).pipelining);
        assert!(!read(&["PIPELINING"]).pipelining);
        assert_eq!(read(&["host", "SIZE"]).size, Some(0));
        assert_eq!(read(&["host", "SIZE 99999999999999999999999"]).size, Some(0));
        assert!(!read(&["host", "PIPELININGX", ""]).pipelining);
        assert_eq!(read(&["host", "auth GSSAPI plain"]).auth, Mechanisms::NONE.with(crate::sasl::Mechanism::Plain));
        assert!(read(&["host", "AUTH", "XCLIENT"]).xclient.is_empty());
    }

    #[test]
    fn twenty_digits_are_a_number_even_beyond_64_bits() {
        let rows: [(&[u8], Option<u64>); 6] = [
            (b"0", Some(0)),
            (b"18446744073709551615", Some(u64::MAX)),
            (b"99999999999999999999", Some(u64::MAX)),
            (b"100000000000000000000", None),
            (b"", None),
            (b"+1", None),
        ];
        for (digits, expected) in rows {
            assert_eq!(number(digits), expected);
        }
    }
}
