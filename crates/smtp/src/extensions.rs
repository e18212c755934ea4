//! What a server offers in its reply to EHLO (RFC 5321 §4.1.1.1), written and read by the same table.

/// The extensions this crate speaks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extensions {
    /// PIPELINING (RFC 2920): commands need not wait for replies.
    pub pipelining: bool,
    /// 8BITMIME (RFC 6152): octets above 127 in the message.
    pub eight_bit_mime: bool,
    /// SMTPUTF8 (RFC 6531): UTF-8 in addresses and headers.
    pub smtp_utf8: bool,
    /// ENHANCEDSTATUSCODES (RFC 2034).
    pub enhanced_status_codes: bool,
    /// SIZE (RFC 1870) and the largest message taken; 0 is announced for no fixed limit.
    pub size: Option<u64>,
}

impl Extensions {
    /// All of them, as a server of this crate offers them.
    pub fn all(message_bytes: u64) -> Self {
        Self {
            pipelining: true,
            eight_bit_mime: true,
            smtp_utf8: true,
            enhanced_status_codes: true,
            size: Some(message_bytes),
        }
    }

    /// The text of an EHLO reply: the server's name, then a line a keyword.
    pub fn render(&self, name: &str) -> String {
        let mut lines = vec![name.to_owned()];
        let keywords = [
            (self.pipelining, "PIPELINING"),
            (self.eight_bit_mime, "8BITMIME"),
            (self.smtp_utf8, "SMTPUTF8"),
            (self.enhanced_status_codes, "ENHANCEDSTATUSCODES"),
        ];
        lines.extend(keywords.iter().filter(|(offered, _)| *offered).map(|(_, keyword)| (*keyword).to_owned()));
        lines.extend(self.size.map(|bytes| if bytes == 0 { "SIZE".to_owned() } else { format!("SIZE {bytes}") }));
        lines.join("\n")
    }

    /// Reads the lines of an EHLO reply; the first, the server's name, is passed over. What is unknown is ignored.
    pub fn parse<'a>(lines: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut offered = Self::default();
        for line in lines.skip(1) {
            let line = line.trim_ascii();
            let (keyword, argument) = line.split_at(line.iter().position(|&byte| byte == b' ').unwrap_or(line.len()));
            let is = |name: &[u8]| keyword.eq_ignore_ascii_case(name);
            if is(b"SIZE") {
                offered.size = Some(number(argument.trim_ascii()).unwrap_or(0));
            }
            offered.pipelining |= is(b"PIPELINING");
            offered.eight_bit_mime |= is(b"8BITMIME");
            offered.smtp_utf8 |= is(b"SMTPUTF8");
            offered.enhanced_status_codes |= is(b"ENHANCEDSTATUSCODES");
        }
        offered
    }
}

/// A decimal number of at most 20 digits (RFC 1870 §3); one beyond 64 bits is the largest there is.
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
        for bits in 0u8..32 {
            let bit = |n: u8| bits & (1 << n) != 0;
            let offered = Extensions {
                pipelining: bit(0),
                eight_bit_mime: bit(1),
                smtp_utf8: bit(2),
                enhanced_status_codes: bit(3),
                size: bit(4).then_some(u64::from(bits)),
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
