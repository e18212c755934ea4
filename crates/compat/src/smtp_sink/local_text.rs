//! Converts a message from the wire format to the format of local files. Removes each CR. Also removes a dot at the
//! start of a line, because SMTP clients put a dot in front of such lines (dot stuffing).

#[derive(Debug, Default)]
pub(super) struct LocalText {
    after: After,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum After {
    #[default]
    LineEnd,
    Cr,
    Text,
}

impl LocalText {
    /// Passes the next bytes of the message to `keep` in pieces, without CRs and without the dots of dot stuffing.
    pub(super) fn pass<E>(&mut self, octets: &[u8], mut keep: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let mut rest = octets;
        while let Some(first) = rest.first() {
            match (self.after, first) {
                (After::LineEnd, b'.') => {
                    self.after = After::Text;
                    rest = &rest[1..];
                }
                (After::Cr, b'\n') => {
                    self.after = After::LineEnd;
                    keep(b"\n")?;
                    rest = &rest[1..];
                }
                _ => {
                    let end = memchr::memchr(b'\r', rest);
                    keep(&rest[..end.unwrap_or(rest.len())])?;
                    self.after = if end.is_some() { After::Cr } else { After::Text };
                    rest = end.map_or(&[], |end| &rest[end + 1..]);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::convert::Infallible;

    fn local(blocks: &[&[u8]]) -> Vec<u8> {
        let mut text = LocalText::default();
        let mut kept = Vec::new();
        for block in blocks {
            let passed = text.pass(block, |piece| {
                kept.extend_from_slice(piece);
                Ok::<(), Infallible>(())
            });
            passed.unwrap();
        }
        kept
    }

    #[test]
    fn a_table_of_messages() {
        let rows: [(&[u8], &[u8]); 8] = [
            (b"a\r\nb\r\n.\r\n", b"a\nb\n\n"),
            (b".\r\n", b"\n"),
            (b"..a\r\n..\r\n.\r\n", b".a\n.\n\n"),
            (b"a\n.b\r\n.\r\n", b"a\n.b\n\n"),
            (b"a\rb\r\r\nc\r\n.\r\n", b"ab\nc\n\n"),
            (b"a\r\n.\rb\r\n.\r\n", b"a\nb\n\n"),
            (b"a\r\n.\r.\r\n.\r\n", b"a\n.\n\n"),
            (b"\0\xff\r\n.\r\n", b"\0\xff\n\n"),
        ];
        for (wire, expected) in rows {
            assert_eq!(local(&[wire]), expected, "{}", wire.escape_ascii());
            assert_eq!(local(&wire.chunks(1).collect::<Vec<_>>()), expected, "{}", wire.escape_ascii());
        }
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_same(
            wire in proptest::collection::vec(proptest::sample::select(b"\r\n.x".to_vec()), 0..40),
            cut in 0usize..40,
        ) {
            let cut = cut.min(wire.len());
            let whole = local(&[&wire]);
            prop_assert!(!whole.contains(&b'\r'));
            prop_assert_eq!(local(&[&wire[..cut], &wire[cut..]]), whole);
        }
    }
}
