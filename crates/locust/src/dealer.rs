//! A DEALER socket of ZeroMQ over one TCP connection: ZMTP 3 with mechanism NULL (RFC 23 of ZeroMQ). It does no I/O
//! itself: the caller passes the bytes of the connection in and out.
//!
//! ```text
//! ExpectGreeting ─ 64 bytes ─→ ExpectReady ─ READY ─→ Open ─ messages of one frame
//! ```
//! The peer is not trusted, so the length of frames and the number of unread messages are limited.
use std::collections::VecDeque;

/// Maximum length of a frame: 1 MiB. Locust's `spawn` message has only a few kilobytes.
const MAX_FRAME_BYTES: u64 = 1 << 20;
/// Maximum number of unread messages. A master sends a few per second.
const MAX_WAITING: usize = 4_096;

const GREETING_BYTES: usize = 64;
const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DealerFault {
    /// The first bytes that the peer sent are not a greeting of ZMTP 3. The port probably belongs to another program.
    #[error("the master does not speak ZeroMQ (ZMTP 3); check --master-port")]
    NotZmtp,
    /// The peer requires a security mechanism, but the worker supports only NULL.
    #[error("the master asks for a ZeroMQ security mechanism; Locust's own masters have none")]
    Mechanism,
    /// The peer announced a frame longer than 1 MiB. No master sends such a frame.
    #[error("the master sent a frame of {0} bytes")]
    TooLong(u64),
    /// A frame's flags, or the first command, violate ZMTP 3.
    #[error("the master broke the ZeroMQ protocol (ZMTP 3)")]
    Malformed,
    /// The peer sends messages faster than the worker reads them.
    #[error("the master sent thousands of messages at once")]
    Flood,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DealerState {
    ExpectGreeting,
    ExpectReady,
    Open,
}

#[derive(Debug)]
pub struct DealerConnection {
    state: DealerState,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Messages that the worker sent before the peer was ready. They are transmitted after the peer's READY.
    early: Vec<u8>,
    messages: VecDeque<Vec<u8>>,
    /// Set until the last frame of a multi-part message. Such messages are skipped, because Locust's messages have a
    /// single frame.
    in_parts: bool,
}

impl DealerConnection {
    /// Starts a connection, with the greeting and the READY command of ZMTP as the first bytes for the peer. `identity`
    /// must have 1 to 255 bytes.
    pub fn new(identity: &str) -> Self {
        let mut output = vec![0; GREETING_BYTES];
        output[0] = 0xFF;
        output[9] = 0x7F;
        output[10] = 3;
        output[12..16].copy_from_slice(b"NULL");
        let mut ready = b"\x05READY".to_vec();
        put_property(&mut ready, "Socket-Type", b"DEALER");
        put_property(&mut ready, "Identity", identity.as_bytes());
        put_frame(&mut output, COMMAND, &ready);
        Self {
            state: DealerState::ExpectGreeting,
            input: Vec::new(),
            output,
            early: Vec::new(),
            messages: VecDeque::new(),
            in_parts: false,
        }
    }

    /// Sends a message of one frame, or keeps it until the peer is ready.
    pub fn send(&mut self, message: &[u8]) {
        let to = if self.state == DealerState::Open { &mut self.output } else { &mut self.early };
        put_frame(to, 0, message);
    }

    /// Appends to `to` all bytes that the caller must now send to the peer.
    pub fn transmit(&mut self, to: &mut Vec<u8>) {
        to.append(&mut self.output);
    }

    /// Parses bytes from the peer. The caller can then fetch the complete messages with `next_message`.
    ///
    /// # Errors
    /// Returns an error if the peer violates ZMTP 3. The connection is then unusable.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), DealerFault> {
        self.input.extend_from_slice(bytes);
        let mut used = 0;
        while let Some(length) = self.step(used)? {
            used += length;
        }
        self.input.drain(..used);
        Ok(())
    }

    pub fn next_message(&mut self) -> Option<Vec<u8>> {
        self.messages.pop_front()
    }

    /// Parses the greeting or frame that starts at `from`. Returns its length, or `None` if it is incomplete.
    fn step(&mut self, from: usize) -> Result<Option<usize>, DealerFault> {
        let rest = &self.input[from..];
        if self.state == DealerState::ExpectGreeting {
            return self.read_greeting(from);
        }
        let Some(&flags) = rest.first() else { return Ok(None) };
        if flags & !(MORE | LONG | COMMAND) != 0 || flags & COMMAND != 0 && flags & MORE != 0 {
            return Err(DealerFault::Malformed);
        }
        let head = if flags & LONG == 0 { 2 } else { 9 };
        let Some(size) = rest.get(1..head) else { return Ok(None) };
        let size = size.iter().fold(0, |size: u64, byte| size << 8 | u64::from(*byte));
        if size > MAX_FRAME_BYTES {
            return Err(DealerFault::TooLong(size));
        }
        let end = head + size as usize;
        let Some(body) = rest.get(head..end).map(<[u8]>::to_vec) else { return Ok(None) };
        self.take_frame(flags, body)?;
        Ok(Some(end))
    }

    fn read_greeting(&mut self, from: usize) -> Result<Option<usize>, DealerFault> {
        let rest = &self.input[from..];
        let differs = |at: usize, byte: u8| rest.get(at).is_some_and(|actual| *actual != byte);
        if differs(0, 0xFF) || differs(9, 0x7F) || rest.get(10).is_some_and(|version| *version < 3) {
            return Err(DealerFault::NotZmtp);
        }
        let Some(greeting) = rest.get(..GREETING_BYTES) else { return Ok(None) };
        if !greeting[12..32].starts_with(b"NULL\0") {
            return Err(DealerFault::Mechanism);
        }
        self.state = DealerState::ExpectReady;
        Ok(Some(GREETING_BYTES))
    }

    fn take_frame(&mut self, flags: u8, body: Vec<u8>) -> Result<(), DealerFault> {
        match (self.state, flags & COMMAND != 0) {
            (DealerState::ExpectReady, true) if body.starts_with(b"\x05READY") => {
                self.state = DealerState::Open;
                self.output.append(&mut self.early);
            }
            (DealerState::ExpectReady, _) => return Err(DealerFault::Malformed),
            (_, true) => self.answer_ping(&body),
            (_, false) => {
                // Skip messages of several frames, because each message that a worker needs has only one frame.
                let is_whole = flags & MORE == 0 && !self.in_parts;
                self.in_parts = flags & MORE != 0;
                if is_whole {
                    self.messages.push_back(body);
                }
                if self.messages.len() > MAX_WAITING {
                    return Err(DealerFault::Flood);
                }
            }
        }
        Ok(())
    }

    /// Answers PING (ZMTP 3.1). PING has a name, a TTL of two bytes, and a context of at most 16 bytes, which PONG must
    /// return.
    fn answer_ping(&mut self, body: &[u8]) {
        let context = body.strip_prefix(b"\x04PING").and_then(|rest| rest.get(2..));
        if let Some(context) = context.filter(|context| context.len() <= 16) {
            let mut pong = b"\x04PONG".to_vec();
            pong.extend_from_slice(context);
            put_frame(&mut self.output, COMMAND, &pong);
        }
    }
}

fn put_property(to: &mut Vec<u8>, name: &str, value: &[u8]) {
    to.push(name.len() as u8);
    to.extend_from_slice(name.as_bytes());
    to.extend_from_slice(&(value.len() as u32).to_be_bytes());
    to.extend_from_slice(value);
}

fn put_frame(to: &mut Vec<u8>, flags: u8, body: &[u8]) {
    match u8::try_from(body.len()) {
        Ok(length) => to.extend_from_slice(&[flags, length]),
        Err(_) => {
            to.push(flags | LONG);
            to.extend_from_slice(&(body.len() as u64).to_be_bytes());
        }
    }
    to.extend_from_slice(body);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The bytes that a ROUTER of libzmq 4.3 sends before its first message.
    fn router_opening() -> Vec<u8> {
        let mut bytes = vec![0; GREETING_BYTES];
        bytes[0] = 0xFF;
        bytes[8] = 1;
        bytes[9] = 0x7F;
        bytes[10] = 3;
        bytes[11] = 1;
        bytes[12..16].copy_from_slice(b"NULL");
        bytes.extend_from_slice(b"\x04\x29\x05READY\x0bSocket-Type\0\0\0\x06ROUTER\x08Identity\0\0\0\0");
        bytes
    }

    #[test]
    fn any_split_gives_the_same_messages() {
        let mut stream = router_opening();
        put_frame(&mut stream, 0, b"short");
        put_frame(&mut stream, 0, &[7; 300]);
        put_frame(&mut stream, MORE, b"a part");
        put_frame(&mut stream, 0, b"its end");
        put_frame(&mut stream, 0, b"");
        for step in [1, 2, 7, 64, stream.len()] {
            let mut dealer = DealerConnection::new("host_1");
            stream.chunks(step).for_each(|chunk| dealer.receive(chunk).unwrap());
            let messages: Vec<_> = std::iter::from_fn(|| dealer.next_message()).collect();
            assert_eq!(messages, [b"short".to_vec(), vec![7; 300], Vec::new()], "{step}");
        }
    }

    #[test]
    fn a_message_waits_until_the_peer_is_ready() {
        let mut dealer = DealerConnection::new("host_1");
        dealer.send(b"first");
        let mut sent = Vec::new();
        dealer.transmit(&mut sent);
        assert!(!sent.ends_with(b"first") && sent.len() > GREETING_BYTES);
        dealer.receive(&router_opening()).unwrap();
        sent.clear();
        dealer.transmit(&mut sent);
        assert_eq!(sent, b"\x00\x05first");
    }

    #[test]
    fn a_ping_is_answered_with_its_context() {
        let mut dealer = DealerConnection::new("host_1");
        let mut stream = router_opening();
        put_frame(&mut stream, COMMAND, b"\x04PING\x00\x10abc");
        dealer.receive(&stream).unwrap();
        let mut sent = Vec::new();
        dealer.transmit(&mut sent);
        assert!(sent.ends_with(b"\x04\x08\x04PONGabc"));
    }

    #[test]
    fn other_peers_are_named() {
        let fault = |bytes: &[u8]| DealerConnection::new("i").receive(bytes).unwrap_err();
        assert_eq!(fault(b"220 mail.example ESMTP\r\n"), DealerFault::NotZmtp);
        let mut curve = router_opening();
        curve[12..17].copy_from_slice(b"CURVE");
        assert_eq!(fault(&curve), DealerFault::Mechanism);
        let mut long = router_opening();
        long.extend_from_slice(b"\x02\x7F\xFF\xFF\xFF\xFF\xFF\xFF\xFF");
        assert_eq!(fault(&long), DealerFault::TooLong(0x7FFF_FFFF_FFFF_FFFF));
        let mut flags = router_opening();
        flags.extend_from_slice(b"\x80\x00");
        assert_eq!(fault(&flags), DealerFault::Malformed);
    }

    proptest! {
        #[test]
        fn nothing_ends_the_process(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            crate::checks::locust_master::check(&bytes);
        }
    }
}
