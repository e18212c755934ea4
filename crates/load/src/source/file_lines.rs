//! Reads the lines of a file with line ends of any kind. To limit memory, only the beginning of an overlong line is
//! kept.
use std::io::{self, BufRead};

/// Maximum length of a line in bytes, without its end (RFC 5322 §2.1.1).
pub(super) const MAX_LINE_BYTES: usize = 998;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileLine<'a> {
    /// Text of the line without its end. A line that is too long is cut to [`MAX_LINE_BYTES`] + 1 bytes, so that the
    /// length of the text still shows that the line was too long.
    pub(super) text: &'a [u8],
    pub(super) bytes: u64,
    pub(super) number: u64,
    /// The character that ended the line: LF, or CR if no LF follows. `None` for the last line if
    /// the file ends without a line end.
    pub(super) end: Option<u8>,
}

/// Reads a file line by line. CR, LF or CR LF ends a line, and the last line needs no end. Several CRs before an LF
/// belong to one line end, because a file that was converted to CR LF twice has lines that end in CR CR LF.
#[derive(Debug)]
pub(super) struct FileLines<R> {
    reader: R,
    text: Vec<u8>,
    number: u64,
    /// Number of bare CRs that followed the last line. Each stands for an empty line that is still to be returned.
    bare_crs: u64,
}

impl<R: BufRead> FileLines<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { reader, text: Vec::with_capacity(MAX_LINE_BYTES + 1), number: 0, bare_crs: 0 }
    }

    pub(super) fn next(&mut self) -> io::Result<Option<FileLine<'_>>> {
        self.text.clear();
        if self.bare_crs > 0 {
            self.bare_crs -= 1;
            self.number += 1;
            return Ok(Some(FileLine { text: b"", bytes: 0, number: self.number, end: Some(b'\r') }));
        }
        let mut bytes = 0_u64;
        let mut crs = 0_u64;
        let mut end = None;
        let mut has_begun = false;
        loop {
            let block = match self.reader.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                block => block?,
            };
            if block.is_empty() || crs > 0 && !matches!(block[0], b'\r' | b'\n') {
                break;
            }
            has_begun = true;
            let end_at = memchr::memchr2(b'\r', b'\n', block);
            let part = &block[..end_at.unwrap_or(block.len())];
            bytes += part.len() as u64;
            let room = (MAX_LINE_BYTES + 1).saturating_sub(self.text.len());
            self.text.extend_from_slice(&part[..part.len().min(room)]);
            end = end_at.map(|at| block[at]);
            let used = part.len() + usize::from(end_at.is_some());
            self.reader.consume(used);
            crs += u64::from(end == Some(b'\r'));
            if end == Some(b'\n') {
                crs = 0;
                break;
            }
        }
        // If no LF follows the CRs, the first CR ends this line. Each further CR ends an empty line, which a later call
        // returns.
        self.bare_crs = crs.saturating_sub(1);
        self.number += u64::from(has_begun);
        let line = FileLine { text: &self.text, bytes, number: self.number, end };
        Ok(has_begun.then_some(line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::checks::lines::check;
    use proptest::prelude::*;
    use std::io::BufReader;

    fn all(text: &[u8], block: usize) -> Vec<(Vec<u8>, u64)> {
        let mut reader = FileLines::new(BufReader::with_capacity(block, text));
        let mut lines = Vec::new();
        while let Some(line) = reader.next().unwrap() {
            assert_eq!(line.number, lines.len() as u64 + 1);
            lines.push((line.text.to_vec(), line.bytes));
        }
        lines
    }

    #[test]
    fn lines_end_in_any_of_the_three_ways() {
        for block in [1, 2, 3, 100] {
            for (text, expected) in [
                (b"a\r\nb\nc\rd\n\n\nend".as_slice(), &["a", "b", "c", "d", "", "", "end"][..]),
                (b"a\r\r\nb\r\r\r\n\r\r\nc", &["a", "b", "", "c"]),
                (b"a\r\rb\r\r\r", &["a", "", "b", "", ""]),
                (b"\r\r\n\n\r", &["", "", ""]),
            ] {
                let texts: Vec<_> =
                    all(text, block).into_iter().map(|line| String::from_utf8(line.0).unwrap()).collect();
                assert_eq!(texts, expected, "{} {block}", text.escape_ascii());
            }
            assert!(all(b"", block).is_empty());
            assert_eq!(all(b"\n", block), [(Vec::new(), 0)]);
        }
    }

    #[test]
    fn an_endless_line_takes_no_memory() {
        let text = vec![b'x'; 1_000_000];
        let lines = all(&text, 100);
        assert_eq!((lines.len(), lines[0].0.len(), lines[0].1), (1, MAX_LINE_BYTES + 1, 1_000_000));
    }

    proptest! {
        #[test]
        fn the_same_however_it_is_read(text in "[ab\r\n]{0,60}", block in 1_u8..9) {
            check(&[text.as_bytes(), &[block]].concat());
        }
    }
}
