//! Checks the splitting of any input into lines. The lines, their numbers and their lengths must
//! not depend on the size of the blocks in which the input is read.
use crate::source::file_lines::{FileLines, MAX_LINE_BYTES};
use std::io::BufReader;

fn all(text: &[u8], block_bytes: usize) -> Vec<(Vec<u8>, u64, u64, Option<u8>)> {
    let mut reader = FileLines::new(BufReader::with_capacity(block_bytes, text));
    let mut lines = Vec::new();
    while let Some(line) = reader.next().expect("memory can be read") {
        lines.push((line.text.to_vec(), line.bytes, line.number, line.end));
    }
    lines
}

/// Splits a text into the lines that `FileLines` should return for it. Any number of CRs before an LF belong to that
/// line end. Any other CR is a line end of its own.
fn expected(text: &[u8]) -> Vec<(&[u8], Option<u8>)> {
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let length = rest.iter().position(|octet| matches!(octet, b'\r' | b'\n')).unwrap_or(rest.len());
        let (line, end) = rest.split_at(length);
        let crs = end.iter().take_while(|octet| **octet == b'\r').count();
        let (end_bytes, end_kind) = match end.get(crs) {
            Some(b'\n') => (crs + 1, Some(b'\n')),
            _ => (crs.min(1), end.first().copied()),
        };
        lines.push((line, end_kind));
        rest = &end[end_bytes..];
    }
    lines
}

pub fn check(data: &[u8]) {
    let Some((&block_bytes, text)) = data.split_last() else { return };
    let expected = expected(text);
    for block_bytes in [text.len().max(1), 1, usize::from(block_bytes).max(1)] {
        let lines = all(text, block_bytes);
        assert_eq!(lines.len(), expected.len());
        for (at, (line, (whole, end))) in lines.iter().zip(&expected).enumerate() {
            assert_eq!((line.1, line.2, line.3), (whole.len() as u64, at as u64 + 1, *end));
            assert_eq!(line.0, whole[..whole.len().min(MAX_LINE_BYTES + 1)]);
        }
    }
}
