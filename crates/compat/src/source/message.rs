//! The messages of a run in wire format. They share one body, which is rendered only once.
use crate::trace_header::TraceHeaderWriter;
use mailrun_net::Outbox;
use mailrun_smtp::data;
use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;

/// Maximum size in bytes of a body that is copied behind its header. A longer body is shared between messages instead.
const COPY_LIMIT: usize = 16 * 1024;

#[derive(Debug)]
pub(crate) struct Message {
    trace_header: Option<TraceHeaderWriter>,
    /// The body, including the end of data (`.` on a line of its own).
    body: Arc<[u8]>,
}

impl Message {
    /// Creates a message from its body, which must include the end of data. If messages are traced, `traced_head` must
    /// be the headers of one of them.
    ///
    /// # Errors
    ///
    /// Fails if `traced_head` contains an empty line, or if the system provides no random bytes for the trace.
    pub(crate) fn new(body: Vec<u8>, traced_head: Option<&[u8]>) -> Result<Self, String> {
        let content = body.strip_suffix(data::END_OF_DATA).unwrap_or(&body);
        let trace_header = traced_head.map(|head| TraceHeaderWriter::new(head, content)).transpose()?;
        Ok(Self { trace_header, body: body.into() })
    }

    pub(crate) fn render(&self, began: Option<Duration>, out: &mut Outbox, write_head: impl FnOnce(&mut Vec<u8>)) {
        if let Some(trace_header) = &self.trace_header {
            trace_header.write(began, out.bytes());
        }
        write_head(out.bytes());
        if self.body.len() <= COPY_LIMIT {
            out.bytes().extend_from_slice(&self.body);
        } else {
            out.append_shared(&self.body);
        }
    }
}

/// Encodes lines for the wire: replaces LF with CRLF, and doubles a dot at the start of a line (RFC 5321 §4.5.2).
/// `has_return` returns true if the text before an LF already ends in CR, so that no CR must be added. Any other CR
/// stays, as in the imitated programs.
pub(crate) fn encode(text: &[u8], has_return: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut lines = Vec::with_capacity(text.len() + text.len() / 32);
    for line in text.split_inclusive(|&byte| byte == b'\n') {
        match line.strip_suffix(b"\n") {
            Some(before) => {
                lines.extend_from_slice(before);
                lines.extend_from_slice(if has_return(before) { b"\n" } else { b"\r\n" });
            }
            None => lines.extend_from_slice(line),
        }
    }
    let mut wire = Vec::with_capacity(lines.len());
    data::stuff(&lines, &mut wire);
    wire
}

pub(crate) fn read_file(path: &str) -> Result<Vec<u8>, (&'static str, io::Error)> {
    let mut file = File::open(path).map_err(|error| ("open", error))?;
    let mut text = Vec::new();
    file.read_to_end(&mut text).map_err(|error| ("read", error))?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_get_their_ends_and_dots_at_their_beginning_are_doubled() {
        let rows: [(&[u8], &[u8]); 7] = [
            (b"", b""),
            (b".", b".."),
            (b"a\nb", b"a\r\nb"),
            (b".\n..x\na.\n", b"..\r\n...x\r\na.\r\n"),
            (b"\n\n.", b"\r\n\r\n.."),
            (b"a\r.b", b"a\r.b"),
            (b"a\r\n.b", b"a\r\r\n..b"),
        ];
        for (text, expected) in rows {
            assert_eq!(encode(text, |_| false), expected, "{:?}", String::from_utf8_lossy(text));
        }
        assert_eq!(encode(b"a\r\n.b", |before| before.ends_with(b"\r")), b"a\r\n..b");
    }

    proptest! {
        /// An encoded text must not contain the end of data. When a receiver has removed the added dots, it must have
        /// the original text with CRLF line ends.
        #[test]
        fn any_text_comes_out_as_it_went_in(text in "[.a\n]{0,30}") {
            let wire = encode(text.as_bytes(), |_| false);
            prop_assert_eq!(memchr::memmem::find(&[b"\r\n", wire.as_slice()].concat(), b"\r\n.\r\n"), None);
            prop_assert_eq!(data::unstuffed(&wire), text.replace('\n', "\r\n").into_bytes());
        }
    }
}
