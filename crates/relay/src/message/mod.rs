//! A message in memory with its envelope, which is all that a delivery agent needs. Cloning a
//! message is cheap, because it only increments two reference counts.
pub(crate) mod envelope;
pub(crate) mod fetch;
pub(crate) mod received;
pub(crate) mod recipients;

use crate::message::envelope::MessageEnvelope;
use mailrun_net::Outbox;
use std::sync::Arc;
use std::time::Duration;

/// Size of a body, in bytes, below which it is copied into the outbox. The outbox refers to a larger body without
/// copying it.
const COPY_LIMIT: usize = 16 * 1024;

#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) envelope: Arc<MessageEnvelope>,
    /// Header and text without dot-stuffing. They begin with this relay's `Received:` field.
    pub(crate) body: Arc<[u8]>,
    /// Unix time at which the message was received.
    pub(crate) received: Duration,
}

impl Message {
    pub(crate) fn memory_bytes(&self) -> u32 {
        memory_bytes(self.body.len() as u64, &self.envelope)
    }

    /// Appends the message to `outbox` as DATA sends it: with dot-stuffing (RFC 5321 §4.5.2) and the end of data.
    pub(crate) fn render(&self, outbox: &mut Outbox) {
        let body = &self.body;
        if self.needs_dot_stuffing() {
            mailrun_smtp::data::stuff(body, outbox.bytes());
        } else if body.len() < COPY_LIMIT {
            outbox.bytes().extend_from_slice(body);
        } else {
            outbox.append_shared(body);
        }
        let end: &[u8] = if body.is_empty() || body.ends_with(b"\r\n") { b".\r\n" } else { b"\r\n.\r\n" };
        outbox.bytes().extend_from_slice(end);
    }

    /// Appends the message to `outbox` unchanged, as BDAT sends it (RFC 3030).
    pub(crate) fn render_raw(&self, outbox: &mut Outbox) {
        if self.body.len() < COPY_LIMIT {
            outbox.bytes().extend_from_slice(&self.body);
        } else {
            outbox.append_shared(&self.body);
        }
    }

    fn needs_dot_stuffing(&self) -> bool {
        self.body.first() == Some(&b'.') || memchr::memmem::find(&self.body, b"\n.").is_some()
    }
}

/// Returns the memory that a message takes together with its envelope, in bytes. The body need not be
/// in memory yet: after a restart, only its length is known.
pub(crate) fn memory_bytes(body_bytes: u64, envelope: &MessageEnvelope) -> u32 {
    const FIXED_BYTES: u64 = 512;
    let bytes = body_bytes.saturating_add(FIXED_BYTES).saturating_add(envelope.memory_bytes() as u64);
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn test_message(body: &[u8]) -> Message {
        let envelope = MessageEnvelope::local(b"a@b", Vec::new());
        Message { envelope: Arc::new(envelope), body: body.into(), received: Duration::ZERO }
    }

    proptest! {
        /// Wherever a message contains dots, it must be rendered with dot-stuffing for DATA, and unchanged for BDAT. A
        /// last line without a line end must get one only for DATA.
        #[test]
        fn what_is_rendered_is_the_message(
            lines in prop::collection::vec("[.a]{0,4}", 0..6),
            long in 0..2_usize,
            last in "a?",
        ) {
            let mut body = lines.join("\r\n").into_bytes();
            body.extend_from_slice(b"\r\n");
            body.extend(std::iter::repeat_n(b"x\r\n".as_slice(), long * 8000).flatten());
            body.extend_from_slice(last.as_bytes());
            let mut outbox = Outbox::default();
            test_message(&body).render(&mut outbox);
            let mut expected = Vec::new();
            mailrun_smtp::data::stuff(&body, &mut expected);
            expected.extend_from_slice(if last.is_empty() { b".\r\n" } else { b"\r\n.\r\n" });
            prop_assert_eq!(outbox.to_vec(), expected);
            let mut chunk = Outbox::default();
            test_message(&body).render_raw(&mut chunk);
            prop_assert_eq!(chunk.to_vec(), body);
        }
    }
}
