//! Types that describe a message at its stages: before it is stored, when it is stored, and after a restart.
use std::fmt;
use std::sync::Arc;

/// Number of a message in the spool. Each new message gets a higher number than all before it.
/// Users see a number as 16 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(pub u64);

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl Id {
    /// Length of an id as text, in bytes.
    pub const TEXT_BYTES: usize = 16;

    /// Writes the id as text over the placeholder at the offset `at` of a body. Does nothing if the body is too short.
    pub(crate) fn write_in(self, body: &mut Arc<[u8]>, at: usize) {
        if let Some(place) = Arc::make_mut(body).get_mut(at..at + Self::TEXT_BYTES) {
            let digits: [u8; Self::TEXT_BYTES] =
                std::array::from_fn(|at| b"0123456789abcdef"[(self.0 >> (60 - 4 * at)) as usize & 0xF]);
            place.copy_from_slice(&digits);
        }
    }
}

/// A message to be stored, with its envelope and the time at which it was received.
#[derive(Clone, Debug)]
pub struct NewMessage {
    /// Time at which the message was received, in nanoseconds of Unix time.
    pub received_ns: u64,
    /// Data that the caller wants to keep with the message, such as its sender and recipients. The spool does not
    /// interpret these bytes.
    pub envelope: Vec<u8>,
    /// Content of the message, without the envelope. It is shared, so that the spool need not copy a large body.
    pub body: Arc<[u8]>,
}

/// A stored message without its body. [`Spool::read`](crate::Spool::read) returns the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEnvelope {
    /// Time at which the message was received, in nanoseconds of Unix time.
    pub received_ns: u64,
    /// The bytes that were stored as [`NewMessage::envelope`].
    pub envelope: Vec<u8>,
}

/// Proof that a message is as durable as the spool's options promise. Only the spool can create it,
/// and does so only after the message is durable.
#[derive(Debug, PartialEq, Eq)]
pub struct Stored {
    pub(crate) id: Id,
}

impl Stored {
    /// Returns the number of the message, which identifies it in all later calls.
    pub fn id(&self) -> Id {
        self.id
    }
}

/// An unfinished message that was found when the spool was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveredMessage {
    /// Number of the message, for example for [`Spool::read`](crate::Spool::read).
    pub id: Id,
    /// Time at which the message was received, in nanoseconds of Unix time.
    pub received_ns: u64,
    /// The bytes that were stored as [`NewMessage::envelope`].
    pub envelope: Vec<u8>,
    /// Notes that [`Spool::note`](crate::Spool::note) has added to the message, from the oldest on.
    pub notes: Vec<Vec<u8>>,
    /// Length of the body in bytes. [`Spool::read`](crate::Spool::read) returns the body.
    pub body_bytes: u64,
    /// Set if the body was damaged when the spool was opened. Such a body can be neither read nor
    /// delivered.
    pub is_body_damaged: bool,
}

/// A message in the commit queue. It gets its number when it enters the queue.
#[derive(Debug)]
pub(crate) struct NumberedMessage {
    pub(crate) id: Id,
    pub(crate) body_crc: u32,
    pub(crate) message: NewMessage,
    pub(crate) reserve: Reserve,
}

/// A record that may be written with a later batch: a note, or the fact that a message is done. If a crash loses the
/// record, only some work is repeated, for example a delivery.
#[derive(Debug)]
pub(crate) enum DeferredRecord {
    Note(Id, Box<[u8]>),
    Done(Id),
}

/// Purpose of a record, which decides how much of the spool's size it may use. New messages must leave room for the
/// records without which a full spool could not empty itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reserve {
    /// New messages. They must leave room for two segments, because notes and moved messages may still need it.
    Messages,
    /// Notes about the progress of messages, and notices to senders. They must leave room for only one segment, because
    /// an undeliverable message can leave a full spool only after its notice is stored.
    Notes,
    /// Copies of messages that compaction moves from the oldest segment to the end of the log. They may use all
    /// segments, because the oldest one is freed after the move.
    Moves,
}

impl Reserve {
    /// Number of segments that records of this kind must leave free. The last segment is only for messages that
    /// compaction moves out of the oldest segment. Without it, one unfinished message in the oldest segment of a full
    /// log could keep all later segments in use.
    pub(crate) fn reserved_segments(self) -> u64 {
        match self {
            Self::Messages => 2,
            Self::Notes => 1,
            Self::Moves => 0,
        }
    }
}
