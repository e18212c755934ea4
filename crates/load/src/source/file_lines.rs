//! Lines of a file with line ends of any kind, in bounded memory: of a line above the limit only the beginning is kept.
use std::io::{self, BufRead};

/// Octets of a line that SMTP allows, without its end (RFC 5322 §2.1.1).
pub(super) const MAX_LINE_BYTES: usize = 998;

/// A line without its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileLine<'a> {
    /// The line's text, up to one byte more than [`MAX_LINE_BYTES`].
    pub(super) text: &'a [u8],
    /// Length of the line.
    pub(super) bytes: u64,
    /// Its number, from 1.
    pub(super) number: u64,
}

/// The lines of a reader. CR, LF and CR LF end one; the last needs no end.
#[derive(Debug)]
pub(super) struct FileLines<R> {
    reader: R,
    text: Vec<u8>,
    number: u64,
    /// Set if the last line ended in CR: an LF that follows belongs to it.
    after_cr: bool,
}

impl<R: BufRead> FileLines<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { reader, text: Vec::with_capacity(MAX_LINE_BYTES + 1), number: 0, after_cr: false }
    }

    /// The next line; `None` at the end.
    pub(super) fn next(&mut self) -> io::Result<Option<FileLine<'_>>> {
        self.text.clear();
        let mut bytes = 0_u64;
        let mut has_begun = false;
        loop {
            let block = match self.reader.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                block => block?,
            };
            if block.is_empty() {
                break;
            }
            if std::mem::take(&mut self.after_cr) && block[0] == b'\n' {
                self.reader.consume(1);
                continue;
            }
            has_begun = true;
            let end = memchr::memchr2(b'\r', b'\n', block);
            let part = &block[..end.unwrap_or(block.len())];
            bytes += part.len() as u64;
            let room = (MAX_LINE_BYTES + 1).saturating_sub(self.text.len());
            self.text.extend_from_slice(&part[..part.len().min(room)]);
            self.after_cr = end.is_some_and(|at| block[at] == b'\r');
            let used = part.len() + usize::from(end.is_some());
            self.reader.consume(used);
            if end.is_some() {
                break;
            }
        }
        self.number += u64::from(has_begun);
        Ok(has_begun.then_some(FileLine { text: &self.text, bytes, number: self.number }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::BufReader;

    fn all(text: &[u8], block: usize) -> Vec<(Vec<u8>, u64)> {
        let mut lines = FileLines::new(BufReader::with_capacity(block, text));
        let mut found = Vec::new();
        while let Some(line) = lines.next().unwrap() {
            assert_eq!(line.number, found.len() as u64 + 1);
            found.push((line.text.to_vec(), line.bytes));
        }
        found
    }

    #[test]
    fn lines_end_in_any_of_the_three_ways() {
        for block in [1, 2, 3, 100] {
            let texts: Vec<Vec<u8>> = all(b"a\r\nb\nc\rd\r\r\n\n\nend", block).into_iter().map(|line| line.0).collect();
            assert_eq!(texts, [b"a".as_slice(), b"b", b"c", b"d", b"", b"", b"", b"end"], "{block}");
            assert!(all(b"", block).is_empty());
            assert_eq!(all(b"\n", block), [(Vec::new(), 0)]);
        }
    }

    #[test]
    fn an_endless_line_takes_no_memory() {
        let text = vec![b'x'; 1_000_000];
        let found = all(&text, 100);
        assert_eq!((found.len(), found[0].0.len(), found[0].1), (1, MAX_LINE_BYTES + 1, 1_000_000));
    }

    proptest! {
        #[test]
        fn the_same_however_it_is_read(text in "[ab\r\n]{0,60}", block in 1_usize..9) {
            let found = all(text.as_bytes(), block);
            let normal = text.replace("\r\n", "\n").replace('\r', "\n");
            let expected: Vec<&str> = normal.split_inclusive('\n').map(|line| line.trim_end_matches('\n')).collect();
            let texts: Vec<String> = found.into_iter().map(|(text, _)| String::from_utf8(text).unwrap()).collect();
            prop_assert_eq!(texts, expected);
        }
    }
}
