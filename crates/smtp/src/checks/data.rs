//! Fuzz check that reads any bytes as a message after DATA. Only CRLF.CRLF may end the message, and the reader must
//! report a message that contains a bare CR, a bare LF or NUL. The result must not depend on how the bytes are cut into
//! blocks. The last byte of the input is the seed of the random block sizes. Adding dot-stuffing to a message and
//! removing it must restore the message.
use super::SplitMix64;
use crate::data::{self, DataPiece, DataReader, LineFault};

const LINE_LIMIT: usize = 10;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) content: Vec<u8>,
    pub(crate) flaw: Option<LineFault>,
    /// Number of bytes up to and including the end of data (CRLF.CRLF), or `None` if the input does not contain it.
    pub(crate) length: Option<usize>,
}

pub(crate) fn read(blocks: &[&[u8]], line_limit: usize) -> Message {
    let mut reader = DataReader::new(line_limit);
    let mut content = Vec::new();
    let mut before = 0;
    for block in blocks {
        let mut input = *block;
        while let Some(piece) = reader.next(&mut input) {
            match piece {
                DataPiece::Content(bytes) => content.extend_from_slice(bytes),
                DataPiece::End => {
                    assert_eq!(reader.bytes(), content.len() as u64);
                    return Message { content, flaw: reader.fault(), length: Some(before + block.len() - input.len()) };
                }
            }
        }
        assert!(input.is_empty(), "a block is read to its end");
        before += block.len();
    }
    Message { content, flaw: reader.fault(), length: None }
}

/// Reads a message in a simple way that follows RFC 5321 §4.5.2 literally. [`DataReader`] must give the same result.
fn by_the_book(bytes: &[u8]) -> Message {
    let end = find(&[b"\r\n", bytes].concat(), b"\r\n.\r\n");
    let text = &bytes[..end.unwrap_or(bytes.len())];
    let bare = (0..text.len()).any(|at| match text[at] {
        0 => true,
        b'\n' => at == 0 || text[at - 1] != b'\r',
        b'\r' => text.get(at + 1).is_some_and(|next| *next != b'\n'),
        _ => false,
    });
    let content = [b"\r\n", text].concat();
    let content = replaced(&content, b"\r\n.", b"\r\n")[2..].to_vec();
    let long = content.split_inclusive(|octet| *octet == b'\n').any(|line| line.len() > LINE_LIMIT);
    let flaw = if bare { Some(LineFault::BareLineEnding) } else { long.then_some(LineFault::LineTooLong) };
    Message { content, flaw, length: end.map(|end| end + 3) }
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what)
}

fn replaced(text: &[u8], what: &[u8], by: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(at) = find(rest, what) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(by);
        rest = &rest[at + what.len()..];
    }
    [&out, rest].concat()
}

pub fn check(data: &[u8]) {
    let Some((&choice, bytes)) = data.split_last() else { return };
    let whole = read(&[bytes], LINE_LIMIT);
    let book = by_the_book(bytes);
    assert_eq!(whole.length, book.length);
    if whole.length.is_some() {
        assert_eq!(whole, book);
    }
    let single = read(&bytes.chunks(1).collect::<Vec<_>>(), LINE_LIMIT);
    let cut = read(&SplitMix64(u64::from(choice)).cut(bytes), LINE_LIMIT);
    assert_eq!(single, cut);
    assert_eq!(single, whole);
    let message: Vec<u8> =
        bytes.split(|octet| matches!(octet, b'\r' | b'\n')).flat_map(|line| [line, b"\r\n"].concat()).collect();
    let mut wire = Vec::new();
    data::stuff(&message, &mut wire);
    assert_eq!(data::unstuffed(&wire), message);
    let length = wire.len() + data::END_OF_DATA.len();
    wire.extend_from_slice(data::END_OF_DATA);
    wire.extend_from_slice(b"QUIT\r\n");
    let back = read(&[&wire], LINE_LIMIT);
    assert_eq!((back.content, back.length), (message, Some(length)));
}
