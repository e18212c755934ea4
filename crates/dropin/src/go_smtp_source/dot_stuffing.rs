//! A message on the wire: line feeds become line ends, leading dots are doubled (RFC 5321 §4.5.2), and the end of data
//! is added. A lone carriage return stays, as in the original.

/// Position in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DotWriterState {
    Begin,
    BeginLine,
    CarriageReturn,
    Data,
}

/// Appends `text` to `out`; returns the position after it.
pub(super) fn encode(text: &[u8], mut place: DotWriterState, out: &mut Vec<u8>) -> DotWriterState {
    out.reserve(text.len());
    for &octet in text {
        if place != DotWriterState::CarriageReturn {
            let is_beginning = matches!(place, DotWriterState::Begin | DotWriterState::BeginLine);
            match octet {
                b'.' if is_beginning => out.push(b'.'),
                b'\n' => out.push(b'\r'),
                _ => {}
            }
        }
        place = match octet {
            b'\n' => DotWriterState::BeginLine,
            b'\r' if place != DotWriterState::CarriageReturn => DotWriterState::CarriageReturn,
            _ => DotWriterState::Data,
        };
        out.push(octet);
    }
    place
}

/// Appends the end of the last line, if it has none, and the end of data.
pub(super) fn end(place: DotWriterState, out: &mut Vec<u8>) {
    out.extend_from_slice(match place {
        DotWriterState::BeginLine => b".\r\n".as_slice(),
        DotWriterState::CarriageReturn => b"\n.\r\n",
        DotWriterState::Begin | DotWriterState::Data => b"\r\n.\r\n",
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn wire(text: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let place = encode(text, DotWriterState::Begin, &mut out);
        end(place, &mut out);
        out
    }

    #[test]
    fn a_table_of_texts() {
        let rows: [(&[u8], &[u8]); 9] = [
            (b"", b"\r\n.\r\n"),
            (b"a", b"a\r\n.\r\n"),
            (b"a\n", b"a\r\n.\r\n"),
            (b"a\r\nb\r\n", b"a\r\nb\r\n.\r\n"),
            (b".\n..a\n", b"..\r\n...a\r\n.\r\n"),
            (b"a\r", b"a\r\n.\r\n"),
            (b"a\r.b\n", b"a\r.b\r\n.\r\n"),
            (b"a\r\r\n", b"a\r\r\r\n.\r\n"),
            (b"\n\n", b"\r\n\r\n.\r\n"),
        ];
        for (text, expected) in rows {
            assert_eq!(wire(text), expected, "{:?}", String::from_utf8_lossy(text));
        }
    }

    proptest! {
        /// Encoded in pieces or at once, no text ends the data early.
        #[test]
        fn the_end_is_at_the_end(text in "[.a\r\n]{0,30}", cut in 0usize..30) {
            let text = text.as_bytes();
            let all = wire(text);
            let (front, back) = text.split_at(cut.min(text.len()));
            let mut out = Vec::new();
            let place = encode(front, DotWriterState::Begin, &mut out);
            let place = encode(back, place, &mut out);
            end(place, &mut out);
            prop_assert_eq!(&out, &all);
            let first = memchr::memmem::find(&all, b"\r\n.\r\n").map_or(0, |at| at + 5);
            prop_assert_eq!(if all == b".\r\n" { 3 } else { first }, all.len());
        }
    }
}
