//! Fuzz check that reads arbitrary bytes as BDAT chunks. The content must have the announced length. The content, and
//! the faults in its lines, must not depend on how the bytes are divided into chunks and reads.
use super::SplitMix64;
use crate::chunk::{ChunkPiece, ChunkReader, ContentKind};
use crate::command::Chunk;
use crate::data::LineFault;

const LINE_BYTES: usize = 10;

/// Reads a message that consists of the BDAT chunks `chunks`. `blocks` is the input, cut into pieces. Returns the
/// content, the fault found in its lines, and the number of bytes after the last chunk. Returns `None` if the input
/// ends before the last chunk does.
pub(crate) fn read(
    octets: ContentKind,
    chunks: &[Chunk],
    blocks: &[&[u8]],
) -> Option<(Vec<u8>, Option<LineFault>, usize)> {
    let mut reader = ChunkReader::new(octets, LINE_BYTES);
    let mut chunks = chunks.iter();
    let mut content = Vec::new();
    reader.begin(*chunks.next()?);
    let mut left: usize = blocks.iter().map(|block| block.len()).sum();
    // End with an empty block. If the last chunk is empty, the reader reports its end only in one more call.
    for block in blocks.iter().chain(&[b"".as_slice()]) {
        let mut input = *block;
        while let Some(piece) = reader.next(&mut input) {
            match piece {
                ChunkPiece::Content(bytes) => {
                    assert!(!bytes.is_empty());
                    left -= bytes.len();
                    content.extend_from_slice(bytes);
                }
                ChunkPiece::End(chunk) if chunk.last => {
                    assert_eq!(reader.bytes(), content.len() as u64);
                    return Some((content, reader.fault(), left));
                }
                ChunkPiece::End(_) => reader.begin(*chunks.next()?),
            }
        }
        assert!(input.is_empty(), "a block is read to its end");
    }
    None
}

pub fn check(data: &[u8]) {
    // The input begins with the sizes of at most eight chunks, one byte each. A zero ends the sizes if there are fewer
    // than eight. The rest of the input is the message.
    let (sizes, message) = match data.iter().take(8).position(|octet| *octet == 0) {
        Some(end) => (&data[..end], &data[end + 1..]),
        None => data.split_at(data.len().min(8)),
    };
    let mut chunks: Vec<Chunk> = sizes.iter().map(|size| Chunk { bytes: u64::from(size % 16), last: false }).collect();
    let Some(last) = chunks.last_mut() else { return };
    last.last = true;
    let total: u64 = chunks.iter().map(|chunk| chunk.bytes).sum();
    for octets in [ContentKind::Lines, ContentKind::Any] {
        let whole = read(octets, &chunks, &[message]);
        let length = total.min(message.len() as u64) as usize;
        assert_eq!(whole.is_some(), total <= message.len() as u64);
        if let Some((content, flaw, left)) = &whole {
            assert_eq!((content.as_slice(), *left), (&message[..length], message.len() - length));
            assert!(octets == ContentKind::Lines || flaw.is_none());
        }
        assert_eq!(read(octets, &chunks, &message.chunks(1).collect::<Vec<_>>()), whole);
        assert_eq!(read(octets, &chunks, &SplitMix64(total).cut(message)), whole);
        let one = [Chunk { bytes: total, last: true }];
        assert_eq!(read(octets, &one, &[message]), whole);
    }
}
