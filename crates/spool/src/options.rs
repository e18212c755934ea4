//! Options of a spool: its size, and the durability that its receipts promise.

/// Durability that a receipt promises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// The message survives power loss: it has been synced.
    #[default]
    Sync,
    /// The message survives the death of the process, not that of the host: it has been written.
    Write,
    /// The message survives nothing: it is only in memory, and the directory is not even opened.
    Memory,
}

/// Options of a spool: its size, and the durability that its receipts promise.
#[derive(Clone, Debug)]
pub struct Options {
    /// The size of a segment. A larger message has one of its own. It is reduced if `most_bytes` would hold fewer than
    /// eight.
    pub segment_bytes: u64,
    /// Disk space that the spool may use, free segments included. One segment's worth of it is reserved for notes and
    /// notices, and another for messages that are moved, so that a full spool can empty itself.
    pub max_bytes: u64,
    /// The largest body; at most 4 GiB less 64 KiB, the limit of a record.
    pub max_message_bytes: u64,
    /// Durability that a receipt promises.
    pub durability: Durability,
    /// Reaction to damage that is found when the spool is opened.
    pub on_damage: OnDamage,
}

/// Reactions to damage that is found when a spool is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDamage {
    /// The spool is opened with its sound parts; copies of the damaged bytes are kept in its directory `quarantine`.
    #[default]
    Quarantine,
    /// The spool is not opened ([`Error::DamageRefused`](crate::Error::DamageRefused)), and nothing is changed, unless
    /// all damage costs nothing or is in the quarantine already.
    Refuse,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            segment_bytes: 64 << 20,
            max_bytes: 16 << 30,
            max_message_bytes: 1 << 30,
            durability: Durability::default(),
            on_damage: OnDamage::default(),
        }
    }
}

impl Options {
    /// The smallest segment; every size is a whole number of blocks.
    pub const MIN_SEGMENT_BYTES: u64 = 64 << 10;
    /// The longest envelope, and the longest note.
    pub const MAX_ENVELOPE_BYTES: u64 = 16 << 20;

    /// Adjusts the values to each other.
    pub(crate) fn fitted(mut self) -> Self {
        let wanted = self.segment_bytes.min(self.max_bytes / 8).clamp(Self::MIN_SEGMENT_BYTES, 4 << 30);
        self.segment_bytes = wanted / Self::MIN_SEGMENT_BYTES * Self::MIN_SEGMENT_BYTES;
        self.max_bytes = self.max_bytes.max(4 * self.segment_bytes);
        self.max_message_bytes = self.max_message_bytes.min(u64::from(u32::MAX) - (64 << 10));
        self
    }
}
