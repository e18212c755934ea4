//! Reads lines from blocks of bytes. Copies only lines that span blocks, and drops lines that exceed the limit.

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReadLine<'a> {
    /// A complete line, without its `<CRLF>`.
    Whole(&'a [u8]),
    /// A line that ended in a bare `<LF>`, without the `<LF>`.
    BareLf(&'a [u8]),
    /// The line was longer than the limit. Its bytes have been dropped.
    TooLong,
    Partial,
}

#[derive(Debug, Default)]
pub(crate) struct LineReader {
    held: Vec<u8>,
    overlong: bool,
    /// Set if `held` contains the line that the last call of `next` returned. The next call then clears `held`.
    spent: bool,
}

impl LineReader {
    /// Takes one line from the front of `input`. `limit` is in bytes and includes the CRLF.
    pub(crate) fn next<'s, 'i: 's>(&'s mut self, input: &mut &'i [u8], limit: usize) -> ReadLine<'s> {
        self.release();
        let Some(end) = memchr::memchr(b'\n', input) else {
            self.hold(input, limit);
            *input = &[];
            return ReadLine::Partial;
        };
        let (line, rest) = input.split_at(end + 1);
        *input = rest;
        if self.held.is_empty() && !self.overlong {
            return whole(line, limit);
        }
        self.hold(line, limit);
        self.spent = true;
        if std::mem::take(&mut self.overlong) { ReadLine::TooLong } else { whole(&self.held, limit) }
    }

    /// Frees the memory of the line that the last call of `next` returned, so that an idle session
    /// occupies none.
    pub(crate) fn release(&mut self) {
        if self.spent {
            self.held = Vec::new();
            self.spent = false;
        }
    }

    /// Returns true if the next byte begins a line, because all earlier lines are complete.
    pub(crate) fn is_at_start(&self) -> bool {
        !self.overlong && (self.held.is_empty() || self.spent)
    }

    #[cfg(test)]
    pub(crate) fn heap_bytes(&self) -> usize {
        self.held.capacity()
    }

    fn hold(&mut self, bytes: &[u8], limit: usize) {
        if self.overlong || self.held.len() + bytes.len() > limit {
            self.overlong = true;
            self.held = Vec::new();
        } else {
            self.held.extend_from_slice(bytes);
        }
    }
}

fn whole(line: &[u8], limit: usize) -> ReadLine<'_> {
    if line.len() > limit {
        return ReadLine::TooLong;
    }
    match line {
        [text @ .., b'\r', b'\n'] => ReadLine::Whole(text),
        _ => ReadLine::BareLf(line.strip_suffix(b"\n").unwrap_or(line)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(blocks: &[&[u8]], limit: usize) -> Vec<String> {
        let mut reader = LineReader::default();
        let mut seen = Vec::new();
        for block in blocks {
            let mut input = *block;
            while !input.is_empty() {
                match reader.next(&mut input, limit) {
                    ReadLine::Whole(line) => seen.push(String::from_utf8_lossy(line).into_owned()),
                    ReadLine::BareLf(line) => {
                        assert!(!line.contains(&b'\n'));
                        seen.push("bare".into());
                    }
                    ReadLine::TooLong => seen.push("long".into()),
                    ReadLine::Partial => {}
                }
            }
        }
        assert!(reader.held.len() <= limit, "memory stays bounded");
        seen
    }

    #[test]
    fn a_table_of_lines_reads_the_same_however_it_is_cut() {
        let rows: &[(&[u8], usize, &[&str])] = &[
            (b"EHLO a\r\nQUIT\r\n", 512, &["EHLO a", "QUIT"]),
            (b"\r\n", 512, &[""]),
            (b"QUIT\nNOOP\r\n", 512, &["bare", "NOOP"]),
            (b"12345678\r\n", 10, &["12345678"]),
            (b"123456789\r\nNOOP\r\n", 10, &["long", "NOOP"]),
            (b"a\rb\r\n", 10, &["a\rb"]),
        ];
        for (bytes, limit, expected) in rows {
            assert_eq!(read(&[bytes], *limit), *expected);
            let single: Vec<&[u8]> = bytes.chunks(1).collect();
            assert_eq!(read(&single, *limit), *expected, "byte by byte");
            let trailing = [bytes, b"partial".as_slice()].concat();
            assert_eq!(read(&[&trailing], *limit), *expected, "with trailing bytes");
        }
    }

    #[test]
    fn an_endless_line_holds_nothing() {
        let mut reader = LineReader::default();
        for _ in 0..1000 {
            let mut input = [b'x'; 100].as_slice();
            assert_eq!(reader.next(&mut input, 512), ReadLine::Partial);
        }
        assert!(reader.held.capacity() == 0 && !reader.is_at_start());
        let mut input = b"\r\nQUIT\r\n".as_slice();
        assert_eq!(reader.next(&mut input, 512), ReadLine::TooLong);
        assert_eq!(reader.next(&mut input, 512), ReadLine::Whole(b"QUIT"));
    }
}
