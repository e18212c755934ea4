//! Reserved segments: room for what must still be written when the spool is full.

/// What a segment is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reserve {
    /// New messages.
    Messages,
    /// Notes, and messages whose storing lets others end. They may use one segment more.
    Notes,
    /// Moved messages. They make room, so they may use all segments.
    Moves,
}

impl Reserve {
    /// Number of segments that are reserved from this purpose. The last one is for moves only. If anything else could
    /// use it up, a single waiting message at the start of a full log would block all room behind it.
    pub(crate) fn reserved_segments(self) -> u64 {
        match self {
            Self::Messages => 2,
            Self::Notes => 1,
            Self::Moves => 0,
        }
    }
}
