//! Damage: parts of a spool that do not read as they were written, and which messages this costs.
use crate::Id;
use std::fmt;

/// A part of a spool that does not read as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The file's name in the spool's directory; for a segment that is missing, the name of the one after it.
    pub segment: String,
    /// The first byte that is damaged.
    pub offset: u64,
    /// Largest number of bytes that are damaged.
    pub bytes: u64,
    /// The damaged part.
    pub kind: DamageKind,
    /// The loss that it causes.
    pub cost: Cost,
    /// The lost messages whose numbers are known, from legible parts or because the numbers are missing in the
    /// sequence. At most [`Damage::MAX_NAMED`].
    pub messages: Vec<Id>,
    /// Number of messages that may be lost besides those that are named.
    pub unnamed: u64,
    /// An earlier start has reported this damage, and the same bytes are in the quarantine.
    pub is_known: bool,
}

/// Kinds of damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DamageKind {
    /// A header of a segment that is neither legible nor zeros, or zeros in place of a header that was written.
    Header,
    /// A segment is missing that must have existed.
    MissingSegment,
    /// The newest segment is missing; the damage has its name.
    MissingNewest,
    /// Two segments claim the same place in the log.
    DoubledSegment,
    /// Batches or records that had been synced. The sound ones between them are kept.
    Records,
    /// The content of a message whose envelope is sound. The message is known, and cannot be delivered.
    Body,
    /// The unsynced end of the log that a crash tore. If there was a crash, this is not damage.
    TornEnd,
}

/// Losses that damage causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cost {
    /// Nothing is lost: everything there was done, is also stored elsewhere, or was recovered.
    Nothing,
    /// Notes, or marks that messages are done. Some work may be repeated.
    Notes,
    /// It is unknown what is lost: notes, or a message that had been moved.
    Unknown,
    /// Messages that were not done.
    Messages,
}

impl Damage {
    /// Limit of messages that are named.
    pub const MAX_NAMED: usize = 10_000;

    /// Reports whether an administrator must act: the damage costs something, and does not merely result from a crash.
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
            Self::TornEnd => "the end is incomplete, as after a crash",
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
    /// Writes one line: where the damage is, what is damaged, and the cost.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { segment, offset, bytes, kind, cost, .. } = self;
        write!(f, "{segment}, offset {offset}, {bytes} bytes: {kind}; ")?;
        match kind {
            DamageKind::TornEnd => f.write_str("if there was a message, it had not been answered 250")?,
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
