//! Describes damaged parts of a spool, and the messages that are lost with them.
use crate::Id;
use std::fmt;

/// A part of a spool that is missing, or whose bytes differ from what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Name of the file in the spool's directory. For a missing segment, the name of the segment
    /// after it.
    pub segment: String,
    /// Offset of the first damaged byte in the file.
    pub offset: u64,
    /// Length of the damaged part in bytes. Some of these bytes may be intact.
    pub bytes: u64,
    /// Kind of the damage. Not every kind is a reason to worry: a torn end is normal after a crash.
    pub kind: DamageKind,
    /// Worst kind of loss that the damage causes. For example, lost messages are worse than lost notes.
    pub cost: Cost,
    /// Numbers of lost messages, as found in readable parts or as gaps in the sequence of numbers.
    /// The list has at most [`Damage::MAX_NAMED`] entries.
    pub messages: Vec<Id>,
    /// Upper limit of the number of lost messages that `messages` does not list.
    pub unnamed: u64,
    /// Set if an earlier start has reported this damage, and the quarantine has a copy of the same
    /// bytes.
    pub is_known: bool,
}

/// Kind of damage to a spool. It tells which part is affected, and whether a crash can explain the
/// damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DamageKind {
    /// The header of a segment is unreadable, or consists of zeros although a header was written.
    Header,
    /// One or more segments directly before this one are missing. Segments are numbered in the
    /// order in which they were begun, which reveals the gap.
    MissingSegment,
    /// The newest segment is missing, according to the file `newest`. [`Damage::segment`] is the
    /// name of the missing segment itself.
    MissingNewest,
    /// Two segments have the same generation, so both claim the same position in the log.
    DoubledSegment,
    /// Batches or records that had been synced are damaged. Intact records between them are kept.
    Records,
    /// The body of a message is damaged, but its envelope is intact. The message is known, but
    /// cannot be delivered.
    Body,
    /// The file is shorter than it was when it was made. A crash does not cause this, because a
    /// segment gets its full length before it is used.
    Shortened,
    /// The segment belongs to another spool, so nothing in it is used.
    Foreign,
    /// The unsynced end of the log is incomplete, as after a crash. No message in it had been
    /// answered 250, so this is normal after a crash and costs no mail.
    TornEnd,
    /// The end of a log without syncs (`durability = "write"`) is incomplete. A crash may have torn
    /// it, and messages that were answered 250 may be lost with it.
    UnsyncedEnd,
}

/// Loss that damage causes, from the smallest to the largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cost {
    /// Nothing is lost, because all messages in the damaged part were done, are also stored
    /// elsewhere, or were recovered.
    Nothing,
    /// The spool has lost notes about the progress of messages, or no longer knows that some are
    /// done. Some work may be repeated, for example a delivery.
    Notes,
    /// Nobody can tell what is lost. It may be only notes, or a message that compaction had moved.
    Unknown,
    /// Messages that were not done are lost, so their recipients may not have got them.
    Messages,
}

impl Damage {
    /// Maximum number of lost messages that [`Damage::messages`] lists. [`Damage::unnamed`] counts
    /// the others.
    pub const MAX_NAMED: usize = 10_000;

    /// Returns true if an administrator must act, because something is lost. A torn end is never
    /// alarming, because none of its messages had been answered 250.
    pub fn is_alarming(&self) -> bool {
        self.cost != Cost::Nothing && self.kind != DamageKind::TornEnd
    }
}

impl fmt::Display for DamageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Header => "the header is damaged",
            Self::MissingSegment => "the segment before it is missing",
            Self::MissingNewest => "this segment, the newest, is missing",
            Self::DoubledSegment => "another segment claims the same place",
            Self::Records => "records are damaged",
            Self::Body => "the content of a message is damaged",
            Self::Shortened => "the file was shortened",
            Self::Foreign => "this segment belongs to another spool",
            Self::TornEnd => "the end is incomplete, as after a crash",
            Self::UnsyncedEnd => "the end is incomplete, as after a crash, and was not synced",
        })
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "nothing is lost",
            Self::Notes => "delivery state is lost: some mail may be delivered twice",
            Self::Unknown => "the content is unknown",
            Self::Messages => "lost messages",
        })
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { segment, offset, bytes, kind, cost, .. } = self;
        write!(f, "{segment}, offset {offset}, {bytes} bytes: {kind}; ")?;
        match kind {
            DamageKind::TornEnd => f.write_str("if there was a message, it had not been answered 250")?,
            DamageKind::UnsyncedEnd => f.write_str("if there was a message, it may have been answered 250")?,
            _ => write!(f, "{cost}")?,
        }
        const SHOWN: usize = 20;
        for (number, id) in self.messages.iter().take(SHOWN).enumerate() {
            write!(f, "{}{id}", if number == 0 { ": " } else { ", " })?;
        }
        let more = self.unnamed + self.messages.len().saturating_sub(SHOWN) as u64;
        if more > 0 { write!(f, " and at most {more} more") } else { Ok(()) }
    }
}
