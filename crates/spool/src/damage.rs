//! Damage: what a spool holds that does not read as it was written, and what that costs.
use crate::Id;
use std::fmt;

/// A part of a spool that does not read as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The file's name in the spool's directory; of a segment that is missing, of the one after it.
    pub segment: String,
    /// The first byte that is damaged.
    pub offset: u64,
    /// How many bytes are damaged, at most.
    pub bytes: u64,
    /// What is damaged.
    pub kind: DamageKind,
    /// What it costs.
    pub cost: Cost,
    /// The messages that it costs, as far as their numbers can be told: from what is legible of them, or because their
    /// numbers are missing in the row. At most [`Damage::MOST_NAMED`].
    pub messages: Vec<Id>,
    /// How many messages may be lost besides those that are named.
    pub unnamed: u64,
    /// The same bytes are in the quarantine from an earlier start, which said all this.
    pub is_known: bool,
}

/// What is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DamageKind {
    /// A header of a segment: neither legible nor zeros, or zeros where one was written.
    Header,
    /// A segment that must have been there is not.
    MissingSegment,
    /// Two segments claim the same place in the log.
    DoubledSegment,
    /// Batches or records that had been synced. What is sound between them is kept.
    Records,
    /// The content of a message whose envelope is sound. The message is known, and cannot be delivered.
    Body,
    /// The end of what a crash tore, which had not been synced. No damage, if there was a crash.
    TornEnd,
}

/// What a damage costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cost {
    /// All that stood there was done, stands elsewhere, or was found all the same.
    Nothing,
    /// Notes of messages, or marks that they are done: some of the work may be done twice.
    Notes,
    /// Nobody can tell what stood there: notes, or a message that had been moved.
    Unknown,
    /// Messages that were not done.
    Messages,
}

impl Damage {
    /// No more messages are named.
    pub const MOST_NAMED: usize = 10_000;

    /// Whether a person has to be told: it costs something, and is not what a crash leaves.
    pub fn is_alarming(&self) -> bool {
        self.cost != Cost::Nothing && self.kind != DamageKind::TornEnd
    }
}

impl fmt::Display for DamageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Header => "the header is damaged",
            Self::MissingSegment => "the segment before it is missing",
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
    /// One line: where, what, and what it costs.
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
