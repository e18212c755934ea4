//! A server's reply in a fixed amount of memory, so that a reply can be kept for each message without an allocation.

/// Number of bytes of a reply that are kept. These are enough to find a message in the server's log, because servers
/// write the queue id near the beginning of a reply.
pub const MAX_REPLY_BYTES: usize = 119;

/// The first bytes of a reply, as the server sent them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyText {
    length: u8,
    octets: [u8; MAX_REPLY_BYTES],
}

impl ReplyText {
    #[inline]
    pub fn new(wire: &[u8]) -> Self {
        let mut octets = [0; MAX_REPLY_BYTES];
        let length = wire.len().min(MAX_REPLY_BYTES);
        octets[..length].copy_from_slice(&wire[..length]);
        Self { length: length as u8, octets }
    }

    /// Returns the reply in printable form with its lines joined, for example `250 2.0.0 Ok: queued as 4jZXTq1Xyz`.
    pub fn text(&self) -> String {
        let text = String::from_utf8_lossy(&self.octets[..usize::from(self.length)]);
        let mut joined = String::new();
        for line in text.lines() {
            match (joined.is_empty(), line.char_indices().nth(4)) {
                (true, _) => joined.push_str(&line.replacen('-', " ", usize::from(line.get(3..4) == Some("-")))),
                (false, Some((at, _))) => joined.extend([" ", &line[at..]]),
                (false, None) => {}
            }
        }
        joined.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_one_line_of_printable_text() {
        for (wire, expected) in [
            ("250 2.0.0 Ok: queued as 4jZXTq1Xyz\r\n", "250 2.0.0 Ok: queued as 4jZXTq1Xyz"),
            ("250-a-b\r\n250 c\x07\r\n", "250 a-b c?"),
            ("250\r\n", "250"),
            ("250-a\r\n25", "250 a"),
            ("", ""),
            ("\u{e4}\u{f6}\u{fc}\r\n\u{e4}\u{f6}\u{fc}\u{df}\u{e4}\r\n", "\u{e4}\u{f6}\u{fc} \u{e4}"),
        ] {
            assert_eq!(ReplyText::new(wire.as_bytes()).text(), expected, "{wire:?}");
        }
        assert_eq!(ReplyText::new("x".repeat(300).as_bytes()).text().len(), MAX_REPLY_BYTES);
    }
}
