//! Options of a spool, such as its size and the durability that its receipts promise.
use crate::format::{BLOCK, RECORD_HEADER_BYTES, SEGMENT_OVERHEAD_BYTES};
use crate::message::Reserve;

/// Kind of failure that a message survives once its receipt has resolved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// The message has been synced, so it survives a power failure.
    #[default]
    Sync,
    /// The kernel has received the message, but need not have synced it. It survives the death of the process, but not
    /// a failure of the host.
    Write,
    /// The message is only in memory and does not survive the process. The spool does not even open
    /// its directory.
    Memory,
}

/// Settings with which [`Spool::open`](crate::Spool::open) opens a spool, such as its size and durability. Sizes that
/// contradict each other are adjusted.
#[derive(Clone, Debug)]
pub struct Options {
    /// Size of a segment in bytes. A message that does not fit gets a larger segment of its own.
    /// The size is reduced if `max_bytes` would hold fewer than eight segments.
    pub segment_bytes: u64,
    /// Disk space in bytes that the spool may use, including free segments. New messages must leave room for two
    /// segments. A full spool needs this room for notes, notices to senders and moved messages, without which it could
    /// not empty itself.
    pub max_bytes: u64,
    /// Maximum size of a body in bytes, at most 4 GiB less 64 KiB, which is the limit of a record.
    pub max_message_bytes: u64,
    /// Says what a message survives once its receipt has resolved: a power failure, the death of the process, or
    /// neither.
    pub durability: Durability,
    /// Says whether a damaged spool is opened with its intact parts, or not at all.
    pub on_damage: OnDamage,
}

/// Reaction to damage that is found when a spool is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDamage {
    /// The spool is opened with its intact parts. Copies of the damaged bytes are kept in its
    /// subdirectory `quarantine`.
    #[default]
    Quarantine,
    /// The spool is not opened ([`Error::DamageRefused`](crate::Error::DamageRefused)), and nothing is changed. Damage
    /// that loses nothing, or that an earlier start has copied to the quarantine, does not prevent opening.
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
    /// Minimum size of a segment in bytes. [`Options::segment_bytes`] is rounded down to a multiple of this size.
    pub const MIN_SEGMENT_BYTES: u64 = 64 << 10;
    /// Maximum size of an envelope or a note in bytes.
    pub const MAX_ENVELOPE_BYTES: u64 = 16 << 20;

    /// Returns the size of the largest message for which an empty spool always has room: the sum of its envelope and
    /// body in bytes. The spool refuses larger messages with [`Error::TooLarge`](crate::Error::TooLarge), because they
    /// might never fit.
    pub fn max_stored_bytes(&self) -> u64 {
        self.clone().fitted().max_stored_bytes_for(Reserve::Messages)
    }

    /// Returns the size of the largest message that fits into an empty spool. `reserve` decides how many segments the
    /// message must leave free. The caller must first adjust the options with [`Options::fitted`], because the reserve
    /// could otherwise exceed `max_bytes`.
    pub(crate) fn max_stored_bytes_for(&self, reserve: Reserve) -> u64 {
        let unreserved_bytes = self.max_bytes - reserve.reserved_segments() * self.segment_bytes;
        // The spool makes a segment for a large message while it still keeps the current segment. The current segment
        // may be just as large, so each of them may use half of the space that is not reserved.
        let segment_bytes = unreserved_bytes / 2 / BLOCK * BLOCK;
        // Records are padded to a multiple of 8 bytes, so subtract 7 bytes for the padding.
        segment_bytes - SEGMENT_OVERHEAD_BYTES - RECORD_HEADER_BYTES as u64 - 7
    }

    /// Adjusts options that contradict each other, for example a segment size that is too large for the spool's size.
    pub(crate) fn fitted(mut self) -> Self {
        let wanted = self.segment_bytes.min(self.max_bytes / 8).clamp(Self::MIN_SEGMENT_BYTES, 4 << 30);
        self.segment_bytes = wanted / Self::MIN_SEGMENT_BYTES * Self::MIN_SEGMENT_BYTES;
        self.max_bytes = self.max_bytes.max(4 * self.segment_bytes);
        self.max_message_bytes = self.max_message_bytes.min(u64::from(u32::MAX) - (64 << 10));
        self
    }
}
