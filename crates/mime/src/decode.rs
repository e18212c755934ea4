//! Decoders for quoted-printable and base64. They accept the content in blocks of any size.

use super::encode::Encoding;

/// Decodes quoted-printable or base64. A malformed sequence, which other decoders skip, makes all of the content
/// invalid.
#[derive(Clone, Debug)]
pub struct Decoder {
    state: State,
    is_valid: bool,
}

#[derive(Clone, Debug)]
enum State {
    Base64(Base64Group),
    Quoted(QuotedState),
}

/// A group of four base64 characters, some of which have not arrived yet.
#[derive(Clone, Copy, Debug, Default)]
struct Base64Group {
    bits: u32,
    digits: u8,
    padding: u8,
    /// Set after a group of four characters that ended in padding (`=`), because no group may follow it.
    is_last: bool,
}

/// Incomplete sequence at the end of a block of quoted-printable. The next block may complete it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QuotedState {
    Nothing,
    /// The block ended after `=`, which begins an encoded byte or a soft line break.
    Equals,
    /// The block ended after `=` and one hexadecimal digit.
    Digit(u8),
    /// The block ended after `=` and CR, the beginning of a soft line break.
    Break,
}

impl Decoder {
    /// Creates a decoder for content in this encoding. The caller must pass the content from its first byte on.
    pub fn new(encoding: Encoding) -> Self {
        let state = match encoding {
            Encoding::Base64 => State::Base64(Base64Group::default()),
            Encoding::QuotedPrintable => State::Quoted(QuotedState::Nothing),
        };
        Self { state, is_valid: true }
    }

    /// Returns the encoding with which the decoder was created.
    pub fn encoding(&self) -> Encoding {
        match self.state {
            State::Base64(_) => Encoding::Base64,
            State::Quoted(_) => Encoding::QuotedPrintable,
        }
    }

    /// Returns true if all encoded sequences so far, such as `=C3` or a base64 group, were well-formed. A sequence that
    /// is cut off at the end of the last block is not malformed, because the next block may complete it.
    pub fn is_valid(&self) -> bool {
        self.is_valid
    }

    /// Decodes the next block, and appends the result to `out`. An incomplete sequence at the end waits for the next
    /// block.
    pub fn decode(&mut self, block: &[u8], out: &mut Vec<u8>) {
        match &mut self.state {
            State::Quoted(state) => *state = unquote(*state, block, &mut self.is_valid, out),
            State::Base64(group) => {
                for byte in block {
                    self.is_valid &= group.take(*byte, out);
                }
            }
        }
    }
}

impl Base64Group {
    /// Takes the next character, or returns false if the character is not allowed here.
    fn take(&mut self, byte: u8, out: &mut Vec<u8>) -> bool {
        match (sextet(byte), byte) {
            (None, b'\r' | b'\n') => return true,
            (Some(value), _) if self.padding == 0 && !self.is_last => {
                self.bits = self.bits << 6 | u32::from(value);
                self.digits += 1;
            }
            (None, b'=') if self.digits >= 2 => self.padding += 1,
            _ => return false,
        }
        if self.digits + self.padding == 4 {
            let bytes = (self.bits << (6 * u32::from(self.padding))).to_be_bytes();
            out.extend_from_slice(&bytes[1..4 - usize::from(self.padding)]);
            *self = Self { is_last: self.padding > 0, ..Self::default() };
        }
        true
    }
}

fn sextet(byte: u8) -> Option<u8> {
    match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}

fn unquote(mut state: QuotedState, block: &[u8], is_sound: &mut bool, out: &mut Vec<u8>) -> QuotedState {
    let mut rest = block;
    while let Some((first, after)) = rest.split_first() {
        state = match (state, first) {
            (QuotedState::Nothing, _) => {
                let plain = memchr::memchr(b'=', rest).unwrap_or(rest.len());
                out.extend_from_slice(&rest[..plain]);
                let Some(after) = rest.get(plain + 1..) else { return QuotedState::Nothing };
                rest = after;
                state = QuotedState::Equals;
                continue;
            }
            (QuotedState::Equals, b'\r') => QuotedState::Break,
            (QuotedState::Break, b'\n') => QuotedState::Nothing,
            (QuotedState::Equals, digit) if digit.is_ascii_hexdigit() => QuotedState::Digit(hex(*digit)),
            (QuotedState::Digit(high), digit) if digit.is_ascii_hexdigit() => {
                out.push(high << 4 | hex(*digit));
                QuotedState::Nothing
            }
            _ => {
                *is_sound = false;
                QuotedState::Nothing
            }
        };
        rest = after;
    }
    state
}

fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decoded(encoding: Encoding, text: &[u8], block: usize) -> Option<Vec<u8>> {
        let mut decoder = Decoder::new(encoding);
        let mut out = Vec::new();
        text.chunks(block).for_each(|block| decoder.decode(block, &mut out));
        decoder.is_valid().then_some(out)
    }

    #[test]
    fn what_no_encoder_writes_is_not_sound() {
        for text in ["=", "=4", "=\r", "a"] {
            assert!(decoded(Encoding::QuotedPrintable, text.as_bytes(), 1).is_some(), "cut off: {text}");
        }
        for text in ["=x", "=4x", "=\n", "=\rx"] {
            assert_eq!(decoded(Encoding::QuotedPrintable, text.as_bytes(), 1), None, "{text}");
        }
        for text in ["=", "A=", "AA==AA==", "AAA=A", "A A", "AA=====", "-"] {
            assert_eq!(decoded(Encoding::Base64, text.as_bytes(), 1), None, "{text}");
        }
    }

    fn any_content() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..40),
            proptest::collection::vec(b' '..b'~', 0..200),
            Just(b"\r\n".to_vec()),
            Just(b" \r\n".to_vec()),
            Just(b"--".to_vec()),
            Just(b"=".to_vec()),
        ];
        proptest::collection::vec(piece, 0..20).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        /// Encoding must yield short ASCII lines, and decoding them in blocks of any size must restore the content.
        #[test]
        fn decoding_undoes_encoding(content in any_content(), block in 1..100_usize) {
            for encoding in [Encoding::QuotedPrintable, Encoding::Base64] {
                let mut text = Vec::new();
                encoding.encode(&content, &mut text);
                for line in String::from_utf8(text.clone()).unwrap().split("\r\n") {
                    let is_sound = line.len() <= 76 && line.bytes().all(|byte| byte == b'\t' || (b' '..=b'~').contains(&byte));
                    prop_assert!(is_sound && !line.ends_with([' ', '\t']) && !line.starts_with('-'), "{:?}", line);
                }
                prop_assert_eq!(decoded(encoding, &text, block), Some(content.clone()));
            }
        }
    }
}
