//! Reads messages that arrive in chunks (RFC 3030). Each BDAT command announces how many bytes follow it, and these
//! bytes may have any value.
//!
//! Unless a message is declared as binary, it consists of lines. The rules of DATA for line ends
//! and line lengths then apply, because a message received by BDAT may have to be forwarded by
//! DATA.
use crate::command::Chunk;
use crate::data::{LineChecker, LineFault};

/// Kind of content, as MAIL declares it with BODY. It decides whether line endings and line lengths are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentKind {
    /// Text, in which line endings and line lengths are checked.
    Lines,
    /// Any bytes, which are not checked (BODY=BINARYMIME).
    Any,
}

/// What [`ChunkReader::next`] takes from its input: bytes of the message, or the end of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkPiece<'a> {
    /// Bytes of the message, which all belong to the current chunk.
    Content(&'a [u8]),
    /// The announced number of bytes has been read, so the chunk is complete.
    End(Chunk),
}

/// Reads a message that arrives in the chunks of BDAT (RFC 3030).
#[derive(Clone, Debug)]
pub struct ChunkReader {
    lines: LineChecker,
    content_kind: ContentKind,
    chunk: Chunk,
    left: u64,
    is_open: bool,
}

impl ChunkReader {
    /// Creates a reader for the start of a message. Lines of text may have at most `line_limit` bytes, including CRLF.
    pub fn new(content_kind: ContentKind, line_limit: usize) -> Self {
        let chunk = Chunk { bytes: 0, last: false };
        Self { lines: LineChecker::new(line_limit), content_kind, chunk, left: 0, is_open: false }
    }

    /// Starts to read the next `chunk.bytes` bytes of the input as content, even if they look like commands.
    pub fn begin(&mut self, chunk: Chunk) {
        (self.chunk, self.left, self.is_open) = (chunk, chunk.bytes, true);
    }

    /// Returns true from [`Self::begin`] until [`Self::next`] has returned the end of the chunk.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Returns the number of content bytes read so far, in all chunks of the message.
    pub fn bytes(&self) -> u64 {
        self.lines.bytes
    }

    /// Returns the worst fault found so far in the lines of the message, such as a line that is too long.
    pub fn fault(&self) -> Option<LineFault> {
        match self.content_kind {
            ContentKind::Any => None,
            // A CR at the end of the message is a bare CR, because no LF can follow it.
            ContentKind::Lines if !self.is_open && self.chunk.last && self.lines.previous == b'\r' => {
                Some(LineFault::BareLineEnding)
            }
            ContentKind::Lines => self.lines.fault,
        }
    }

    /// Takes the next piece from the front of `input`. Returns `None` if more bytes or a new chunk
    /// are needed.
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Option<ChunkPiece<'a>> {
        if !self.is_open {
            return None;
        }
        if self.left == 0 {
            self.is_open = false;
            return Some(ChunkPiece::End(self.chunk));
        }
        if input.is_empty() {
            return None;
        }
        let length = usize::try_from(self.left).map_or(input.len(), |left| left.min(input.len()));
        let (content, rest) = input.split_at(length);
        *input = rest;
        self.left -= length as u64;
        match self.content_kind {
            ContentKind::Lines => self.lines.check(content),
            ContentKind::Any => self.lines.bytes += length as u64,
        }
        Some(ChunkPiece::Content(content))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::chunk::{check, read};
    use proptest::prelude::*;

    const BARE: Option<LineFault> = Some(LineFault::BareLineEnding);

    #[test]
    fn a_table_of_messages_reads_the_same_however_it_is_cut() {
        let rows: &[(&[u64], &[u8], Option<LineFault>)] = &[
            (&[3], b"abc", None),
            (&[5], b"abc\r\n", None),
            (&[2, 3], b"abc\r\n", None),
            (&[4, 1], b"abc\r\n", None),
            (&[5, 0], b"abc\r\n", None),
            (&[0, 5, 0], b"abc\r\n", None),
            (&[5], b"\r\n.\r\n", None),
            (&[1, 1, 1, 1, 1], b"\r\n.\r\n", None),
            (&[10], b"12345678\r\n", None),
            (&[6, 5], b"123456789\r\n", Some(LineFault::LineTooLong)),
            (&[3], b"a\nb", BARE),
            (&[3], b"a\rb", BARE),
            (&[2, 1], b"a\rb", BARE),
            (&[2], b"a\r", BARE),
            (&[1, 1, 0], b"a\r", BARE),
            (&[3], b"a\0b", BARE),
            (&[13], b"123456789\r\na\n", BARE),
        ];
        for (sizes, wire, flaw) in rows {
            let chunks = |(at, &bytes)| Chunk { bytes, last: at + 1 == sizes.len() };
            let chunks: Vec<Chunk> = sizes.iter().enumerate().map(chunks).collect();
            for (octets, flaw) in [(ContentKind::Lines, *flaw), (ContentKind::Any, None)] {
                assert_eq!(read(octets, &chunks, &[wire]), Some((wire.to_vec(), flaw, 0)), "{sizes:?} {wire:?}");
            }
            // Write the size 0 as 16, because `check` takes sizes modulo 16, and a byte 0 would end its list of sizes.
            let mut input: Vec<u8> = sizes.iter().map(|size| if *size == 0 { 16 } else { *size as u8 }).collect();
            input.extend([b"\0", *wire, b"MAIL"].concat());
            check(&input);
        }
    }

    #[test]
    fn a_chunk_may_be_larger_than_memory_and_a_reader_waits_for_its_chunk() {
        let mut reader = ChunkReader::new(ContentKind::Any, 10);
        assert_eq!(reader.next(&mut b"x".as_slice()), None);
        assert!(!reader.is_open());
        reader.begin(Chunk { bytes: u64::MAX, last: true });
        let mut input = b"abc".as_slice();
        assert_eq!(reader.next(&mut input), Some(ChunkPiece::Content(b"abc")));
        assert_eq!((reader.next(&mut input), reader.is_open(), reader.bytes()), (None, true, 3));
    }

    proptest! {
        #[test]
        fn chunks_have_the_flaws_that_their_message_has_in_one(
            sizes in proptest::collection::vec(1_u8.., 1..6),
            wire in proptest::collection::vec(proptest::sample::select(b"\r\n.ab\0".to_vec()), 0..60),
        ) {
            check(&[sizes, vec![0], wire].concat());
        }
    }
}
