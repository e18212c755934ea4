//! Input and output of a spool: drafts, receipts' content, unfinished messages of a former run.
use crate::reserve::Reserve;
use std::fmt;
use std::sync::Arc;

/// A message's number in the spool: it grows, and is never used again. Users see it as 16 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(pub u64);

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl Id {
    /// Bytes of its text.
    pub const TEXT_BYTES: usize = 16;

    /// Writes the id as text at that offset of a body, if the body is long enough.
    pub(crate) fn write_in(self, body: &mut Arc<[u8]>, at: usize) {
        if let Some(place) = Arc::make_mut(body).get_mut(at..at + Self::TEXT_BYTES) {
            let digits: [u8; Self::TEXT_BYTES] =
                std::array::from_fn(|at| b"0123456789abcdef"[(self.0 >> (60 - 4 * at)) as usize & 0xF]);
            place.copy_from_slice(&digits);
        }
    }
}

/// A message that is to be stored.
#[derive(Clone, Debug)]
pub struct NewMessage {
    /// Time at which it was received, in nanoseconds of Unix time.
    pub received_ns: u64,
    /// Everything to be stored of it besides its content; opaque to the spool.
    pub envelope: Vec<u8>,
    /// Its content. Not copied if it is large.
    pub body: Arc<[u8]>,
}

/// A stored message without its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEnvelope {
    /// Time at which it was received, in nanoseconds of Unix time.
    pub received_ns: u64,
    /// The draft's envelope.
    pub envelope: Vec<u8>,
}

/// Proves that a message is as durable as the spool's mode promises. Only the spool can create it, and does so only
/// after the message is durable.
#[derive(Debug, PartialEq, Eq)]
pub struct Stored {
    pub(crate) id: Id,
}

impl Stored {
    /// The number that identifies the message from now on.
    pub fn id(&self) -> Id {
        self.id
    }
}

/// An unfinished message, as opening a spool finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveredMessage {
    /// Its number.
    pub id: Id,
    /// Time at which it was received, in nanoseconds of Unix time.
    pub received_ns: u64,
    /// The draft's envelope.
    pub envelope: Vec<u8>,
    /// Its notes, oldest first.
    pub notes: Vec<Vec<u8>>,
    /// Length of its body; [`Spool::read`](crate::Spool::read) returns the body.
    pub body_bytes: u64,
    /// The body did not read as it was written when the spool was opened: it can be neither read nor delivered.
    pub is_body_damaged: bool,
}

/// A message with its id, on its way into the log.
#[derive(Debug)]
pub(crate) struct NumberedMessage {
    pub(crate) id: Id,
    pub(crate) body_crc: u32,
    pub(crate) message: NewMessage,
    pub(crate) reserve: Reserve,
}

/// A record that goes into some later batch.
#[derive(Debug)]
pub(crate) enum DeferredRecord {
    Note(Id, Box<[u8]>),
    Done(Id),
}
