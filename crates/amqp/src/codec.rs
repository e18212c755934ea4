//! Encodes and decodes the types of AMQP 1.0. Values are read in place, without copying them.
//!
//! A value consists of a constructor (a format code, possibly after a descriptor) and its content.
//! The high half of the format code determines the length of the content (AMQP 1.0 §1.2), so a
//! value that is not needed is skipped in one step, however deeply it is nested. Reading never
//! recurses, so no peer can exhaust the stack.
use thiserror::Error;

/// Reason why bytes that a peer has sent are not valid AMQP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The bytes end before the announced length of a value.
    #[error("the value ends before it is complete")]
    Truncated,
    /// AMQP 1.0 does not define this format code, the byte that gives the type of a value. The code 0 means that a
    /// descriptor stands where none is allowed.
    #[error("there is no type with the format code {0:#04x}")]
    NoSuchType(u8),
    /// A frame is longer than its receiver allows.
    #[error("a frame of {size} bytes, but max-frame-size is {max_size}")]
    FrameTooLarge {
        /// Size that the frame announces, in bytes.
        size: usize,
        /// Maximum size that the receiver allows, in bytes.
        max_size: usize,
    },
    /// The value is missing or has the wrong type. The string says what was expected, such as `a number`.
    #[error("expected {0}")]
    Expected(&'static str),
}

/// Format code of null (AMQP 1.0 §1.6.1).
const NULL: u8 = 0x40;
/// First byte of a value that has a descriptor. The descriptor follows this byte, and then the value itself.
const DESCRIBED: u8 = 0x00;

/// A decoded value, which borrows the bytes in which it was encoded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Value<'a> {
    /// Tells what the value means, such as 0x10 for an open frame. `None` if the value has no descriptor, or if the
    /// descriptor is a symbol that AMQP does not define.
    descriptor: Option<u64>,
    code: u8,
    /// Content of the value, without the constructor, the size and the count that precede it.
    body: &'a [u8],
    /// Number of elements of a list, map or array. Each key and each value of a map counts as an element.
    count: u32,
    /// The whole value as it was sent, from its constructor on.
    octets: &'a [u8],
}

/// A value of a primitive type (AMQP 1.0 §1.6).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar<'a> {
    /// The value null, which stands for a field that was left out (AMQP 1.0 §1.4, §1.6.1).
    Null,
    /// A boolean in any of its three encodings (AMQP 1.0 §1.6.2).
    Boolean(bool),
    /// An unsigned number of 8 bits (AMQP 1.0 §1.6.3).
    Ubyte(u8),
    /// An unsigned number of 32 bits (AMQP 1.0 §1.6.5).
    Uint(u32),
    /// An unsigned number of 64 bits (AMQP 1.0 §1.6.6).
    Ulong(u64),
    /// A signed number of 32 bits (AMQP 1.0 §1.6.9).
    Int(i32),
    /// A signed number of 64 bits (AMQP 1.0 §1.6.10).
    Long(i64),
    /// A point in time, in milliseconds since 1970.
    Timestamp(i64),
    /// The 16 bytes of a UUID, in the order in which they were sent (AMQP 1.0 §1.6.18).
    Uuid([u8; 16]),
    /// A sequence of bytes, for example the content of a data section (AMQP 1.0 §1.6.19).
    Binary(&'a [u8]),
    /// A text in UTF-8 (AMQP 1.0 §1.6.20).
    String(&'a str),
    /// A symbol, which is a text in ASCII (AMQP 1.0 §1.6.21).
    Symbol(&'a str),
    /// A value of another primitive type, such as a float or a character.
    Other,
}

/// Reads values from encoded bytes, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Creates a reader, which checks each value only when it reads the value.
    pub fn new(octets: &'a [u8]) -> Self {
        Self { rest: octets }
    }

    /// Returns the bytes that have not been read yet, for example the payload after a performative.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(bytes)
    }

    fn octet(&mut self) -> Result<u8, DecodeError> {
        self.take(1).map(|octets| octets[0])
    }

    fn length(&mut self, width: usize) -> Result<usize, DecodeError> {
        self.take(width).map(|octets| number(octets) as usize)
    }

    /// Reads the next value, together with its descriptor if it has one.
    pub fn value(&mut self) -> Result<Value<'a>, DecodeError> {
        let start = self.rest;
        let (descriptor, code) = self.constructor()?;
        let value = self.plain(code)?;
        let octets = &start[..start.len() - self.rest.len()];
        Ok(Value { descriptor, octets, ..value })
    }

    /// Reads a descriptor, if there is one, and the format code of the value.
    fn constructor(&mut self) -> Result<(Option<u64>, u8), DecodeError> {
        match self.octet()? {
            DESCRIBED => self.described(),
            code => Ok((None, code)),
        }
    }

    /// Reads the descriptor and format code after `DESCRIBED`. This rare case is kept out of `constructor`, so that the
    /// compiler inlines `constructor`, which runs for each of about sixty values in a message.
    fn described(&mut self) -> Result<(Option<u64>, u8), DecodeError> {
        let described_by = self.octet()?;
        Ok((self.plain(described_by)?.as_descriptor(), self.octet()?))
    }

    /// Returns the descriptor of the next value without reading the value, whose content may not have arrived yet.
    pub fn descriptor(mut self) -> Result<Option<u64>, DecodeError> {
        self.constructor().map(|(descriptor, _)| descriptor)
    }

    /// Reads the constructor and the length of a binary value, but not its content, which may not have arrived yet.
    pub fn binary_length(&mut self) -> Result<usize, DecodeError> {
        match self.constructor()?.1 {
            0xa0 => self.length(1),
            0xb0 => self.length(4),
            _ => Err(DecodeError::Expected("a binary value")),
        }
    }

    /// Reads a value whose format code has already been read.
    fn plain(&mut self, code: u8) -> Result<Value<'a>, DecodeError> {
        let (body, count) = match code >> 4 {
            0x4 => (self.take(0)?, 0),
            0x5 => (self.take(1)?, 0),
            0x6 => (self.take(2)?, 0),
            0x7 => (self.take(4)?, 0),
            0x8 => (self.take(8)?, 0),
            0x9 => (self.take(16)?, 0),
            0xa => (self.sized(1)?, 0),
            0xb => (self.sized(4)?, 0),
            0xc | 0xe => self.counted(1)?,
            0xd | 0xf => self.counted(4)?,
            _ => return Err(DecodeError::NoSuchType(code)),
        };
        Ok(Value { descriptor: None, code, body, count, octets: &[] })
    }

    fn sized(&mut self, width: usize) -> Result<&'a [u8], DecodeError> {
        let length = self.length(width)?;
        self.take(length)
    }

    /// Reads the content of a list, map or array, and returns the bytes of its elements and their number. The encoded
    /// size covers the count field as well as the elements.
    fn counted(&mut self, width: usize) -> Result<(&'a [u8], u32), DecodeError> {
        let all = self.sized(width)?;
        let (count, body) = all.split_at_checked(width).ok_or(DecodeError::Truncated)?;
        Ok((body, number(count) as u32))
    }
}

fn number(octets: &[u8]) -> u64 {
    octets.iter().fold(0, |number, octet| number << 8 | u64::from(*octet))
}

impl<'a> Value<'a> {
    /// Returns the number of the descriptor, or `None` if there is no descriptor or AMQP does not define its symbol.
    pub fn descriptor(&self) -> Option<u64> {
        self.descriptor
    }

    /// Returns the value as it was sent, including its descriptor and format code, so that it can be written again.
    pub fn octets(&self) -> &'a [u8] {
        self.octets
    }

    /// Returns true if the value is null, which stands for a field that was left out (AMQP 1.0 §1.4).
    pub fn is_null(&self) -> bool {
        self.code == NULL
    }

    /// Returns the value of an unsigned number of any width, or `None` for another type.
    pub fn as_number(&self) -> Option<u64> {
        match self.code {
            0x43 | 0x44 => Some(0),
            0x50 | 0x52 | 0x53 | 0x60 | 0x70 | 0x80 => Some(number(self.body)),
            _ => None,
        }
    }

    /// Returns the value of a boolean in any of its encodings, or `None` for another type.
    pub fn as_bool(&self) -> Option<bool> {
        match (self.code, self.body) {
            (0x41, _) => Some(true),
            (0x42, _) => Some(false),
            (0x56, [octet]) => Some(*octet != 0),
            _ => None,
        }
    }

    /// Returns the text of a string, or `None` for a symbol and for text that is not UTF-8.
    pub fn as_string(&self) -> Option<&'a str> {
        match self.code {
            0xa1 | 0xb1 => std::str::from_utf8(self.body).ok(),
            _ => None,
        }
    }

    /// Returns true for a string or a symbol, even if its text is not valid UTF-8.
    pub fn is_text(&self) -> bool {
        matches!(self.code, 0xa1 | 0xb1 | 0xa3 | 0xb3)
    }

    /// Returns the text of a string or a symbol, or `None` if the text is not UTF-8.
    pub fn as_text(&self) -> Option<&'a str> {
        match self.code {
            0xa1 | 0xb1 | 0xa3 | 0xb3 => std::str::from_utf8(self.body).ok(),
            _ => None,
        }
    }

    /// Returns the value of a primitive type, or `None` for lists, maps, arrays, and text that is not UTF-8.
    pub fn as_scalar(&self) -> Option<Scalar<'a>> {
        let signed = || {
            let unused = 64 - 8 * self.body.len() as u32;
            ((number(self.body) << unused) as i64) >> unused
        };
        Some(match self.code {
            NULL => Scalar::Null,
            0x41 | 0x42 | 0x56 => Scalar::Boolean(self.as_bool()?),
            0x43 | 0x52 | 0x70 => Scalar::Uint(number(self.body) as u32),
            0x44 | 0x53 | 0x80 => Scalar::Ulong(number(self.body)),
            0x50 => Scalar::Ubyte(self.body[0]),
            0x54 | 0x71 => Scalar::Int(signed() as i32),
            0x55 | 0x81 => Scalar::Long(signed()),
            0x83 => Scalar::Timestamp(signed()),
            0x98 => Scalar::Uuid(self.body.try_into().ok()?),
            0xa0 | 0xb0 => Scalar::Binary(self.body),
            0xa1 | 0xb1 => Scalar::String(self.as_text()?),
            0xa3 | 0xb3 => Scalar::Symbol(self.as_text()?),
            0x51 | 0x60..0x70 | 0x72..0x80 | 0x82 | 0x84..0x98 => Scalar::Other,
            _ => return None,
        })
    }

    /// Returns the elements of an array of symbols, or `None` for a value of another type. A single symbol counts as an
    /// array with one element, because a field that permits several symbols may be sent in this way (AMQP 1.0 §1.4).
    pub fn as_symbols(&self) -> Option<Vec<&'a str>> {
        if !matches!(self.code, 0xe0 | 0xf0) {
            return self.as_text().map(|symbol| vec![symbol]);
        }
        let mut reader = Reader::new(self.body);
        let code = reader.octet().ok()?;
        let mut symbols = Vec::new();
        for _ in 0..self.count {
            // The sender's count may be too large. Each symbol takes at least one byte, so the loop then ends with an
            // error at the end of the input.
            symbols.push(reader.plain(code).ok()?.as_text()?);
        }
        Some(symbols)
    }

    /// Returns the bytes of a binary value, or `None` for another type, even for a string.
    pub fn as_binary(&self) -> Option<&'a [u8]> {
        matches!(self.code, 0xa0 | 0xb0).then_some(self.body)
    }

    /// Returns the elements of a list, which may be empty, or `None` for a value of another type.
    pub fn as_list(&self) -> Option<Elements<'a>> {
        matches!(self.code, 0x45 | 0xc0 | 0xd0).then(|| self.elements())
    }

    /// Returns the keys and values of a map, alternately, or `None` for a value of another type.
    pub fn as_map(&self) -> Option<Elements<'a>> {
        matches!(self.code, 0xc1 | 0xd1).then(|| self.elements())
    }

    fn elements(&self) -> Elements<'a> {
        Elements { reader: Reader::new(self.body), left: self.count }
    }

    fn as_descriptor(&self) -> Option<u64> {
        self.as_number().or_else(|| self.as_text().and_then(descriptor_named))
    }
}

/// Translates a descriptor's symbolic name to its number, for example `amqp:open:list` to 0x10. A peer may send either.
fn descriptor_named(name: &str) -> Option<u64> {
    Some(match name {
        "amqp:error:list" => 0x1d,
        "amqp:open:list" => 0x10,
        "amqp:begin:list" => 0x11,
        "amqp:attach:list" => 0x12,
        "amqp:flow:list" => 0x13,
        "amqp:transfer:list" => 0x14,
        "amqp:disposition:list" => 0x15,
        "amqp:detach:list" => 0x16,
        "amqp:end:list" => 0x17,
        "amqp:close:list" => 0x18,
        "amqp:received:list" => 0x23,
        "amqp:accepted:list" => 0x24,
        "amqp:rejected:list" => 0x25,
        "amqp:released:list" => 0x26,
        "amqp:modified:list" => 0x27,
        "amqp:source:list" => 0x28,
        "amqp:target:list" => 0x29,
        "amqp:coordinator:list" => 0x30,
        "amqp:sasl-mechanisms:list" => 0x40,
        "amqp:sasl-init:list" => 0x41,
        "amqp:sasl-challenge:list" => 0x42,
        "amqp:sasl-response:list" => 0x43,
        "amqp:sasl-outcome:list" => 0x44,
        "amqp:header:list" => 0x70,
        "amqp:delivery-annotations:map" => 0x71,
        "amqp:message-annotations:map" => 0x72,
        "amqp:properties:list" => 0x73,
        "amqp:application-properties:map" => 0x74,
        "amqp:data:binary" => 0x75,
        "amqp:amqp-sequence:list" => 0x76,
        "amqp:amqp-value:*" => 0x77,
        "amqp:footer:map" => 0x78,
        _ => return None,
    })
}

/// Decodes the elements of a list or a map, one at a time.
#[derive(Clone, Copy, Debug)]
pub struct Elements<'a> {
    reader: Reader<'a>,
    left: u32,
}

impl<'a> Elements<'a> {
    /// Returns the next field of the list. `None` means that the sender left the field out, either as null or by ending
    /// the list early (AMQP 1.0 §1.4).
    pub fn field(&mut self) -> Result<Option<Value<'a>>, DecodeError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        self.reader.value().map(|value| Some(value).filter(|value| !value.is_null()))
    }

    /// Skips the next `count` fields. Skipping past the end is no error, because fields at the end may be left out.
    pub fn skip(&mut self, count: u32) -> Result<(), DecodeError> {
        (0..count).try_for_each(|_| self.field().map(drop))
    }

    /// Returns the encoded bytes of the elements that have not been read yet, or `None` if all have been read.
    pub fn rest(&self) -> Option<&'a [u8]> {
        (self.left > 0).then(|| self.reader.rest())
    }

    /// Reads the next element, or returns `None` at the end. Unlike `field`, returns a null element as a value.
    pub fn element(&mut self) -> Result<Option<Value<'a>>, DecodeError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        self.reader.value().map(Some)
    }

    /// Reads the next field, which must be a number. Returns `absent` if the field is null or missing.
    pub fn number_or(&mut self, absent: u64) -> Result<u64, DecodeError> {
        self.number().map(|number| number.unwrap_or(absent))
    }

    /// Reads the next field, which must be a number. Returns `None` if the field is null or missing.
    pub fn number(&mut self) -> Result<Option<u64>, DecodeError> {
        self.field()?.map(|value| value.as_number().ok_or(DecodeError::Expected("a number"))).transpose()
    }

    /// Reads the next field, which must be a boolean. Returns false if the field is null or missing.
    pub fn boolean(&mut self) -> Result<bool, DecodeError> {
        let value = self.field()?;
        value.map_or(Ok(false), |value| value.as_bool().ok_or(DecodeError::Expected("true or false")))
    }
}

/// Appends encoded values to a buffer, and counts the elements of the list or map that is being written.
#[derive(Debug)]
pub struct Writer<'a> {
    out: &'a mut Vec<u8>,
    count: u32,
}

impl<'a> Writer<'a> {
    /// Creates a writer that appends to `out` and keeps its present content.
    pub fn new(out: &'a mut Vec<u8>) -> Self {
        Self { out, count: 0 }
    }

    fn octets(&mut self, octets: &[u8]) {
        self.out.extend_from_slice(octets);
        self.count += 1;
    }

    /// Writes null, which leaves out the field at this position.
    pub fn null(&mut self) {
        self.octets(&[NULL]);
    }

    /// Writes a boolean, which takes a single byte.
    pub fn boolean(&mut self, truth: bool) {
        self.octets(&[if truth { 0x41 } else { 0x42 }]);
    }

    /// Writes a ubyte, an unsigned number of 8 bits, which takes two bytes with its format code.
    pub fn ubyte(&mut self, number: u8) {
        self.octets(&[0x50, number]);
    }

    /// Writes a ushort, an unsigned number of 16 bits, which always takes three bytes.
    pub fn ushort(&mut self, number: u16) {
        let [a, b] = number.to_be_bytes();
        self.octets(&[0x60, a, b]);
    }

    /// Writes a uint, an unsigned number of 32 bits, in its shortest form: one, two or five bytes.
    pub fn uint(&mut self, number: u32) {
        match number {
            0 => self.octets(&[0x43]),
            1..=255 => self.octets(&[0x52, number as u8]),
            _ => {
                let [a, b, c, d] = number.to_be_bytes();
                self.octets(&[0x70, a, b, c, d]);
            }
        }
    }

    /// Writes a ulong, an unsigned number of 64 bits, always with all of its eight bytes.
    pub fn ulong(&mut self, number: u64) {
        self.out.push(0x80);
        self.octets(&number.to_be_bytes());
    }

    /// Writes a timestamp in milliseconds since 1970.
    pub fn timestamp(&mut self, milliseconds: i64) {
        self.out.push(0x83);
        self.octets(&milliseconds.to_be_bytes());
    }

    /// Writes a string. Its length takes one byte, or four bytes if the text is longer than 255 bytes.
    pub fn string(&mut self, text: &str) {
        self.variable(0xa1, text.as_bytes());
    }

    /// Writes a symbol, whose text must be ASCII.
    pub fn symbol(&mut self, text: &str) {
        self.variable(0xa3, text.as_bytes());
    }

    /// Writes a binary value. Its length takes one byte, or four bytes if the value is longer than 255 bytes.
    pub fn binary(&mut self, octets: &[u8]) {
        self.variable(0xa0, octets);
    }

    fn variable(&mut self, short: u8, octets: &[u8]) {
        self.length(short, octets.len());
        self.octets(octets);
    }

    fn length(&mut self, short: u8, length: usize) {
        match u8::try_from(length) {
            Ok(length) => self.out.extend_from_slice(&[short, length]),
            Err(_) => {
                self.out.push(short + 0x10);
                self.out.extend_from_slice(&(length as u32).to_be_bytes());
            }
        }
    }

    /// Appends a value that is already encoded. For example, the answer to an attach repeats the source from the peer.
    pub fn raw(&mut self, octets: &[u8]) {
        self.octets(octets);
    }

    /// Writes a list with a descriptor, such as an open frame (0x10). The closure `fields` must write its elements.
    pub fn described_list(&mut self, descriptor: u8, fields: impl FnOnce(&mut Writer<'_>)) {
        self.out.extend_from_slice(&[DESCRIBED, 0x53, descriptor]);
        self.compound(0xd0, fields);
    }

    /// Writes a map that has a descriptor. The closure `entries` must write each key, directly followed by its value.
    pub fn described_map(&mut self, descriptor: u8, entries: impl FnOnce(&mut Writer<'_>)) {
        self.out.extend_from_slice(&[DESCRIBED, 0x53, descriptor]);
        self.compound(0xd1, entries);
    }

    /// Writes a map without a descriptor. The closure `entries` must write each key, directly followed by its value.
    pub fn map(&mut self, entries: impl FnOnce(&mut Writer<'_>)) {
        self.compound(0xd1, entries);
    }

    /// Writes a string that has a descriptor, for example the amqp-value section of a message.
    pub fn described_string(&mut self, descriptor: u8, text: &str) {
        self.out.extend_from_slice(&[DESCRIBED, 0x53, descriptor]);
        self.string(text);
    }

    /// Writes a binary value that has a descriptor, for example the data section of a message.
    pub fn described_binary(&mut self, descriptor: u8, octets: &[u8]) {
        self.out.extend_from_slice(&[DESCRIBED, 0x53, descriptor]);
        self.binary(octets);
    }

    /// Writes the constructor and the length of a binary value that has a descriptor. The caller must send the content,
    /// which has `length` bytes, after the bytes of this writer.
    pub fn begin_described_binary(&mut self, descriptor: u8, length: usize) {
        self.out.extend_from_slice(&[DESCRIBED, 0x53, descriptor]);
        self.length(0xa0, length);
        self.count += 1;
    }

    /// Writes an array of symbols, each of at most 255 bytes.
    pub fn symbols(&mut self, names: &[&str]) {
        let length: usize = names.iter().map(|name| name.len() + 1).sum();
        self.out.push(0xf0);
        self.out.extend_from_slice(&(length as u32 + 5).to_be_bytes());
        self.out.extend_from_slice(&(names.len() as u32).to_be_bytes());
        self.out.push(0xa3);
        for name in names {
            self.out.push(name.len() as u8);
            self.out.extend_from_slice(name.as_bytes());
        }
        self.count += 1;
    }

    /// Writes a list or a map. Its size and its number of elements come first, but are filled in last, because they are
    /// known only after the elements have been written.
    fn compound(&mut self, code: u8, fields: impl FnOnce(&mut Writer<'_>)) {
        self.out.push(code);
        let at = self.out.len();
        self.out.extend_from_slice(&[0; 8]);
        let mut inner = Writer::new(self.out);
        fields(&mut inner);
        let count = inner.count;
        let size = (self.out.len() - at - 4) as u32;
        self.out[at..at + 4].copy_from_slice(&size.to_be_bytes());
        self.out[at + 4..at + 8].copy_from_slice(&count.to_be_bytes());
        self.count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_are_read_by_their_types() {
        let cases: [(&[u8], Option<Scalar<'_>>); 20] = [
            (&[0x40], Some(Scalar::Null)),
            (&[0x41], Some(Scalar::Boolean(true))),
            (&[0x56, 0], Some(Scalar::Boolean(false))),
            (&[0x50, 200], Some(Scalar::Ubyte(200))),
            (&[0x43], Some(Scalar::Uint(0))),
            (&[0x52, 7], Some(Scalar::Uint(7))),
            (&[0x70, 1, 0, 0, 0], Some(Scalar::Uint(1 << 24))),
            (&[0x44], Some(Scalar::Ulong(0))),
            (&[0x80, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], Some(Scalar::Ulong(u64::MAX))),
            (&[0x54, 0xff], Some(Scalar::Int(-1))),
            (&[0x71, 0x80, 0, 0, 0], Some(Scalar::Int(i32::MIN))),
            (&[0x55, 0x80], Some(Scalar::Long(-128))),
            (&[0x81, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe], Some(Scalar::Long(-2))),
            (&[0x83, 0, 0, 0, 0, 0, 0, 1, 0], Some(Scalar::Timestamp(256))),
            (&[0xa0, 2, 1, 2], Some(Scalar::Binary(&[1, 2]))),
            (&[0xa1, 2, b'h', b'i'], Some(Scalar::String("hi"))),
            (&[0xa3, 2, b'h', b'i'], Some(Scalar::Symbol("hi"))),
            (&[0x73, 0, 0, 0, b'x'], Some(Scalar::Other)),
            (&[0xa1, 1, 0xff], None),
            (&[0x45], None),
        ];
        for (octets, expected) in cases {
            assert_eq!(Reader::new(octets).value().unwrap().as_scalar(), expected, "{octets:x?}");
        }
        let uuid = [&[0x98][..], &[7; 16]].concat();
        assert_eq!(Reader::new(&uuid).value().unwrap().as_scalar(), Some(Scalar::Uuid([7; 16])));
    }
    use proptest::prelude::*;

    fn written(write: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut Writer::new(&mut out));
        out
    }

    #[test]
    fn what_is_written_is_read() {
        let octets = written(|out| {
            out.described_list(0x10, |fields| {
                fields.string("a");
                fields.null();
                fields.uint(0);
                fields.uint(7);
                fields.uint(70_000);
                fields.ulong(u64::MAX);
                fields.boolean(true);
                fields.binary(&[1; 300]);
                fields.symbols(&["queue", "shared"]);
                fields.symbol("s");
            });
        });
        let mut reader = Reader::new(&octets);
        let list = reader.value().unwrap();
        assert!(reader.rest().is_empty());
        assert_eq!((list.descriptor(), list.octets()), (Some(0x10), &octets[..]));
        let mut fields = list.as_list().unwrap();
        assert_eq!(fields.field().unwrap().and_then(|value| value.as_string()), Some("a"));
        assert_eq!(fields.field(), Ok(None));
        assert_eq!(fields.number(), Ok(Some(0)));
        assert_eq!(fields.number_or(1), Ok(7));
        assert_eq!(fields.number(), Ok(Some(70_000)));
        assert_eq!(fields.number(), Ok(Some(u64::MAX)));
        assert_eq!(fields.boolean(), Ok(true));
        assert_eq!(fields.field().unwrap().and_then(|value| value.as_binary()), Some(&[1; 300][..]));
        let symbols = fields.element().unwrap().and_then(|value| value.as_symbols());
        assert_eq!(symbols, Some(vec!["queue", "shared"]));
        assert_eq!(fields.field().unwrap().and_then(|value| value.as_text()), Some("s"));
        assert_eq!((fields.field(), fields.number_or(3), fields.boolean()), (Ok(None), Ok(3), Ok(false)));
    }

    #[test]
    fn what_is_no_value_is_said_to_be_none() {
        for (octets, error) in [
            (&[][..], DecodeError::Truncated),
            (&[0x70, 1, 2][..], DecodeError::Truncated),
            (&[0xa1, 5, b'a'][..], DecodeError::Truncated),
            (&[0xb0, 0xff, 0xff, 0xff, 0xff, 1][..], DecodeError::Truncated),
            (&[0xc0, 0][..], DecodeError::Truncated),
            (&[0x00, 0x53][..], DecodeError::Truncated),
            (&[0x00, 0x00, 0x53, 1, 0x40][..], DecodeError::NoSuchType(0)),
            (&[0x00, 0x53, 1, 0x00, 0x53, 1, 0x40][..], DecodeError::NoSuchType(0)),
            (&[0x13][..], DecodeError::NoSuchType(0x13)),
        ] {
            assert_eq!(Reader::new(octets).value(), Err(error), "{octets:x?}");
        }
    }

    #[test]
    fn a_value_is_known_before_its_content_is_there() {
        for head in [
            &[0, 0x53, 0x75, 0xa0, 200][..],
            &[0, 0x80, 0, 0, 0, 0, 0, 0, 0, 0x75, 0xb0, 0, 0, 0, 200],
            b"\0\xa3\x10amqp:data:binary\xa0\xc8",
        ] {
            let mut reader = Reader::new(head);
            assert_eq!((reader.descriptor(), reader.value()), (Ok(Some(0x75)), Err(DecodeError::Truncated)));
            let mut reader = Reader::new(head);
            assert_eq!((reader.binary_length(), reader.rest()), (Ok(200), &[][..]));
        }
        assert_eq!(Reader::new(&[0, 0x53]).descriptor(), Err(DecodeError::Truncated));
        assert_eq!(Reader::new(&[0xa1, 1, b'a']).binary_length(), Err(DecodeError::Expected("a binary value")));
        let written = written(|out| out.begin_described_binary(0x75, 300));
        assert_eq!(Reader::new(&written).binary_length(), Ok(300));
    }

    #[test]
    fn nesting_costs_nothing() {
        // Nest 200,000 lists, which would overflow the stack of a recursive reader. Each list begins with the size of
        // its content, so build the innermost list first. Append all bytes in reverse order, and reverse them at the
        // end.
        let mut octets = vec![0x45];
        for _ in 0..200_000 {
            let size = (octets.len() as u32 + 4).to_be_bytes();
            octets.extend_from_slice(&[1, 0, 0, 0]);
            octets.extend(size.iter().rev());
            octets.push(0xd0);
        }
        octets.reverse();
        let list = Reader::new(&octets).value().unwrap();
        assert_eq!(list.octets().len(), octets.len());
    }

    proptest! {
        #[test]
        fn any_octets_are_read_or_refused(octets in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut reader = Reader::new(&octets);
            while let Ok(value) = reader.value() {
                prop_assert!(!value.octets().is_empty());
                let _ = value.as_symbols();
                let mut elements = value.as_list().or_else(|| value.as_map());
                while let Some(Ok(Some(_))) = elements.as_mut().map(Elements::element) {}
            }
        }
    }
}
