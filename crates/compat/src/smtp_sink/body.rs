//! Finds the end of a message in blocks of input. Only `<CRLF>.<CRLF>` ends a message, and it may be split between
//! blocks.
use memchr::memmem::Finder;
use std::sync::LazyLock;

const END: &[u8; 5] = b"\r\n.\r\n";

/// Searches for `<CRLF>.<CRLF>`. All sessions share the finder, because building a finder takes time: it selects code
/// for the processor's vector instructions.
static FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(END));

/// Finds the end of data (`<CRLF>.<CRLF>`), even if it is split between blocks. The input so far ends with the first
/// `matched` bytes of this sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndOfData {
    matched: usize,
}

impl EndOfData {
    /// Begins to search a new message for its end of data. The start of a message counts as the start of a line, as if
    /// CRLF preceded it.
    pub(super) fn new() -> Self {
        Self { matched: 2 }
    }

    /// Searches `block` for the end of data. If `block` contains it, returns how many bytes of the block belong to the
    /// message, including the end of data.
    pub(super) fn find(&mut self, block: &[u8]) -> Option<usize> {
        let mut at = 0;
        // The previous block may have ended with the beginning of a match. The finder below searches only one block, so
        // compare single bytes until this match is complete or broken.
        while self.matched > 0 {
            if self.passes(*block.get(at)?) {
                return Some(at + 1);
            }
            at += 1;
        }
        let rest = &block[at..];
        if let Some(offset) = FINDER.find(rest) {
            return Some(at + offset + END.len());
        }
        let tail = rest.len().saturating_sub(END.len() - 1);
        for octet in &rest[tail..] {
            self.passes(*octet);
        }
        None
    }

    /// Compares one byte of input with the next byte of `<CRLF>.<CRLF>`, and returns true if it completes this
    /// sequence. After a byte that breaks a match, a new match can begin only with CR.
    fn passes(&mut self, octet: u8) -> bool {
        self.matched = if octet == END[self.matched] { self.matched + 1 } else { usize::from(octet == b'\r') };
        self.matched == END.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn find(blocks: &[&[u8]]) -> Option<usize> {
        let mut end = EndOfData::new();
        let mut before = 0;
        for block in blocks {
            if let Some(length) = end.find(block) {
                return Some(before + length);
            }
            before += block.len();
        }
        None
    }

    #[test]
    fn a_table_of_messages_ends_the_same_however_it_is_cut() {
        let rows: [(&[u8], Option<usize>); 12] = [
            (b".\r\n", Some(3)),
            (b"a\r\n.\r\n", Some(6)),
            (b"a\r\n.\r\nQUIT\r\n", Some(6)),
            (b"\r\n.\r\n", Some(5)),
            (b"a\r\r\n.\r\n", Some(7)),
            (b"a\r\n.\r\r\n.\r\n", Some(10)),
            (b"a\r\n\r\n.\r\n", Some(8)),
            (b"a\n.\n", None),
            (b"a\n.\r\n", None),
            (b"a\r\n.\n", None),
            (b"a\r\n..\r\n", None),
            (b"a\r\n.\r\r\n", None),
        ];
        for (bytes, expected) in rows {
            assert_eq!(find(&[bytes]), expected, "{}", bytes.escape_ascii());
            assert_eq!(find(&bytes.chunks(1).collect::<Vec<_>>()), expected, "{}", bytes.escape_ascii());
            if expected.is_some() {
                assert_eq!(find(&[&[bytes, b"\r\n.\r\n".as_slice()].concat()]), expected);
            }
        }
    }

    proptest! {
        #[test]
        fn it_is_a_search_for_the_five_octets(
            bytes in proptest::collection::vec(proptest::sample::select(b"\r\n.x".to_vec()), 0..40),
            one in 0usize..40,
            two in 0usize..40,
        ) {
            let whole = [b"\r\n".as_slice(), &bytes].concat();
            let expected = memchr::memmem::find(&whole, END).map(|at| at + 3);
            let first = one.min(two).min(bytes.len());
            let second = one.max(two).min(bytes.len());
            prop_assert_eq!(find(&[&bytes[..first], &bytes[first..second], &bytes[second..]]), expected);
        }
    }
}
