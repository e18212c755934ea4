//! Any octets in any chunks: cut or whole they read the same, as many as were announced, and flawed where their lines are.
#![no_main]
#[path = "../../crates/smtp/tests/all/host.rs"]
mod host;

use host::SplitMix64;
use libfuzzer_sys::fuzz_target;
use mailrun_smtp::chunk::{ChunkPiece, ChunkReader, ContentKind};
use mailrun_smtp::command::Chunk;
use mailrun_smtp::data::LineFault;

const LINE_BYTES: usize = 12;

/// Content and flaw, and what is left behind the last chunk.
fn read(octets: ContentKind, chunks: &[Chunk], blocks: &[&[u8]]) -> Option<(Vec<u8>, Option<LineFault>, usize)> {
    let mut reader = ChunkReader::new(octets, LINE_BYTES);
    let mut chunks = chunks.iter();
    let mut content = Vec::new();
    reader.begin(*chunks.next()?);
    let mut left: usize = blocks.iter().map(|block| block.len()).sum();
    // An empty chunk ends without an octet more.
    for block in blocks.iter().chain(&[b"".as_slice()]) {
        let mut input = *block;
        while let Some(piece) = reader.next(&mut input) {
            match piece {
                ChunkPiece::Content(bytes) => {
                    assert!(!bytes.is_empty());
                    left -= bytes.len();
                    content.extend_from_slice(bytes);
                }
                ChunkPiece::End(chunk) if chunk.last => return Some((content, reader.fault(), left)),
                ChunkPiece::End(_) => reader.begin(*chunks.next()?),
            }
        }
        assert!(input.is_empty(), "a block is read to its end");
    }
    None
}

fuzz_target!(|data: &[u8]| {
    // One octet a chunk, up to the first that is nought; then the message.
    let (sizes, message) = data.split_at(data.iter().position(|octet| *octet == 0).unwrap_or(data.len()).min(8));
    let mut chunks: Vec<Chunk> = sizes.iter().map(|size| Chunk { bytes: u64::from(size % 16), last: false }).collect();
    let Some(last) = chunks.last_mut() else { return };
    last.last = true;
    let total: u64 = chunks.iter().map(|chunk| chunk.bytes).sum();
    for octets in [ContentKind::Lines, ContentKind::Any] {
        let whole = read(octets, &chunks, &[message]);
        let length = total.min(message.len() as u64) as usize;
        if let Some((content, flaw, left)) = &whole {
            assert_eq!((content.as_slice(), *left), (&message[..length], message.len() - length));
            assert!(octets == ContentKind::Lines || flaw.is_none());
        }
        assert_eq!(read(octets, &chunks, &message.chunks(1).collect::<Vec<_>>()), whole);
        assert_eq!(read(octets, &chunks, &SplitMix64(total).cut(message)), whole);
        let one = [Chunk { bytes: total, last: true }];
        assert_eq!(read(octets, &one, &[message]), whole.or_else(|| read(octets, &one, &[message])));
    }
});
