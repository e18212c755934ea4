//! Reserved segments, so that a full spool still has room for records that let it empty itself.

/// Purpose for which a segment is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reserve {
    /// New messages.
    Messages,
    /// Notes, and messages such as notices that let other messages end. They may use one more
    /// segment than new messages.
    Notes,
    /// Moved messages. They make room, so they may use all segments.
    Moves,
}

impl Reserve {
    /// Number of segments that are not available for this purpose. The last segment is for moved
    /// messages only. Otherwise a single waiting message at the start of a full log could block all
    /// room behind it.
    pub(crate) fn reserved_segments(self) -> u64 {
        match self {
            Self::Messages => 2,
            Self::Notes => 1,
            Self::Moves => 0,
        }
    }
}
