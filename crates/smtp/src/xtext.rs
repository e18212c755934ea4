//! The encoding `xtext` for values of parameters (RFC 3461 §4), in which `+2B` is a plus.
use std::borrow::Cow;
use std::fmt;

/// A value in the encoding xtext (RFC 3461 §4) whose syntax has been checked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Xtext<'a>(&'a [u8]);

impl<'a> Xtext<'a> {
    /// Checks that `text` is xtext: printable ASCII without `=`, and two upper-case hexadecimal
    /// digits after each `+`.
    pub fn parse(text: &'a [u8]) -> Option<Self> {
        let mut rest = text;
        while let Some((&first, after)) = rest.split_first() {
            rest = match (first, after) {
                (b'+', [high, low, after @ ..]) if is_hex(*high) && is_hex(*low) => after,
                (b'!'..=b'~', _) if first != b'+' && first != b'=' => after,
                _ => return None,
            };
        }
        Some(Self(text))
    }

    /// Returns the encoded value, which can be passed on to another server unchanged.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.0
    }

    /// Decodes the value, which may then contain any bytes.
    pub fn decode(&self) -> Cow<'a, [u8]> {
        if !self.0.contains(&b'+') {
            return Cow::Borrowed(self.0);
        }
        let mut decoded = Vec::with_capacity(self.0.len());
        let mut octets = self.0.iter();
        while let Some(&octet) = octets.next() {
            decoded.push(match octet {
                b'+' => octets.by_ref().take(2).fold(0, |sum, digit| sum << 4 | nibble(*digit)),
                plain => plain,
            });
        }
        Cow::Owned(decoded)
    }
}

impl fmt::Debug for Xtext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(self.0))
    }
}

fn is_hex(octet: u8) -> bool {
    octet.is_ascii_digit() || (b'A'..=b'F').contains(&octet)
}

fn nibble(digit: u8) -> u8 {
    if digit.is_ascii_digit() { digit - b'0' } else { digit - b'A' + 10 }
}

/// Encodes `text` as xtext (RFC 3461 §4), which escapes `+`, `=` and all bytes outside of printable
/// ASCII.
pub fn encode(text: &[u8]) -> String {
    use fmt::Write;
    let mut encoded = String::with_capacity(text.len());
    for &octet in text {
        match octet {
            b'+' | b'=' => write!(encoded, "+{octet:02X}").expect("a String takes any text"),
            b'!'..=b'~' => encoded.push(char::from(octet)),
            _ => write!(encoded, "+{octet:02X}").expect("a String takes any text"),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_table_of_xtext() {
        let rows: [(&[u8], Option<&[u8]>); 14] = [
            (b"", Some(b"")),
            (b"QQ314159", Some(b"QQ314159")),
            (b"a@b", Some(b"a@b")),
            (b"a+2Bb", Some(b"a+b")),
            (b"+3D+00+FF", Some(b"=\0\xff")),
            (b"+2B2B", Some(b"+2B")),
            (b"a+b", None),
            (b"a+2", None),
            (b"a+", None),
            (b"a+2b", None),
            (b"a=b", None),
            (b"a b", None),
            (b"a\x7f", None),
            (b"\xc3\xa9", None),
        ];
        for (text, expected) in rows {
            assert_eq!(Xtext::parse(text).map(|xtext| xtext.decode().into_owned()).as_deref(), expected, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(text in proptest::collection::vec(any::<u8>(), 0..40)) {
            let encoded = encode(&text);
            let xtext = Xtext::parse(encoded.as_bytes()).expect("it is written as it is read");
            prop_assert_eq!(xtext.decode().into_owned(), text);
        }
    }
}
