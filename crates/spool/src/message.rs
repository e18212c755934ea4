//! Messages to store, proofs that messages are stored, and unfinished messages of an earlier run.
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

    /// Writes the id as text at this offset of a body, over the placeholder there. Does nothing if
    /// the body is too short.
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
    /// Everything to be stored with the message except its content. The spool does not interpret
    /// these bytes.
    pub envelope: Vec<u8>,
    /// Content of the message. The spool does not copy a large body.
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

/// A record that may be written with a later batch: a note, or the fact that a message is done. If
/// a crash loses the record, some work is only repeated.
#[derive(Debug)]
pub(crate) enum DeferredRecord {
    Note(Id, Box<[u8]>),
    Done(Id),
}

/// Purpose for which a segment is taken. Some segments are reserved, so that a full spool still has
/// room for the records that let it empty itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reserve {
    /// The segment is for new messages, which must leave two segments for notes and moved messages.
    Messages,
    /// The segment is for notes, and for notices without which other messages cannot be done. They
    /// may use one more segment than new messages.
    Notes,
    /// The segment is for moved messages. Moving them makes room, so they may use all segments.
    Moves,
}

impl Reserve {
    /// Number of segments that are not available for this purpose. The last segment is for moved
    /// messages only. Otherwise a single unfinished message in the oldest segment of a full log
    /// could keep all later segments in use.
    pub(crate) fn reserved_segments(self) -> u64 {
        match self {
            Self::Messages => 2,
            Self::Notes => 1,
            Self::Moves => 0,
        }
    }
}
