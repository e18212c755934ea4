//! Describes damaged parts of a spool, and the messages that are lost with them.
use crate::Id;
use std::fmt;

/// A part of a spool that is missing, or whose bytes differ from what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Name of the damaged file in the spool's directory. For [`DamageKind::MissingSegment`], this is the segment after
    /// the gap, because the name of the missing file is unknown.
    pub segment: String,
    /// Offset of the first damaged byte in the file.
    pub offset: u64,
    /// Length in bytes of the file's part that contains the damage. Intact bytes may lie between damaged ones.
    pub bytes: u64,
    /// Part that is damaged, and whether a crash can explain it. A torn end, for example, is normal after a crash.
    pub kind: DamageKind,
    /// Worst kind of loss that the damage causes. For example, lost messages are worse than lost notes.
    pub cost: Cost,
    /// Numbers of the lost messages, as far as the spool can tell. It reads some of these numbers in damaged records.
    /// Others are missing from the sequence of message numbers. The list has at most [`Damage::MAX_NAMED`] entries.
    pub messages: Vec<Id>,
    /// Upper bound of the number of lost messages that `messages` does not list, because the list is full.
    pub unnamed: u64,
    /// Set if an earlier start has reported this damage, and the quarantine has a copy of the same
    /// bytes.
    pub is_known: bool,
}

/// Tells which part of a spool is damaged, and whether a crash can explain the damage.
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
    /// The last batches of a log without syncs (`durability = "write"`) are incomplete, probably because of a crash.
    /// Messages that were answered 250 may be lost with them.
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
    /// Nobody can tell what the damaged part contained: perhaps only notes about messages, or perhaps a message that
    /// compaction had moved there from an older segment.
    Unknown,
    /// Messages are lost that had not been marked as done, so some of their recipients may not have got them.
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
