//! Reserved segments: room that is kept for what must still be written when the spool is full.

/// Purposes of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reserve {
    /// New messages.
    Messages,
    /// Notes, and messages that let others end: these may use one segment more.
    Notes,
    /// Messages that are moved, which makes room: these may use all.
    Moves,
}

impl Reserve {
    /// Number of segments that are reserved from it. The last one is only for moves: if anything else could use it up,
    /// one message that waits at the beginning of a full log would block all the room behind it.
    pub(crate) fn reserved_segments(self) -> u64 {
        match self {
            Self::Messages => 2,
            Self::Notes => 1,
            Self::Moves => 0,
        }
    }
}
