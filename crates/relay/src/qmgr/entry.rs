//! An entry of the queue: some recipients of one message, which travel to one destination in one
//! transaction.
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::message::envelope::DeliveryRefusal;

/// Number of a next hop, which is also its index in the queue's list of destinations. Once the queue reports the
/// destination as idle, its number may be given to another next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct DestinationId(pub(crate) u32);

/// Number that the spool assigns to a message. Users see it as the queue id, with 16 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct MessageId(pub(crate) u64);

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Maximum number of recipients per transaction. Every server must accept this number (RFC 5321
/// §4.5.3.1.8).
pub(crate) const TRANSACTION_RECIPIENTS: usize = 100;

/// Recipients of a queue entry or a delivery, as positions in the recipient list of the message's envelope. In most
/// entries, the positions are consecutive, so that they can be stored as a range, which needs no allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RecipientNumbers {
    Range { first: u16, count: u16 },
    Listed(Box<[u16]>),
}

impl RecipientNumbers {
    pub(crate) fn new(numbers: &[u16]) -> Self {
        let first = numbers.first().copied().unwrap_or(0);
        let is_run = numbers.iter().enumerate().all(|(at, number)| usize::from(first) + at == usize::from(*number));
        match u16::try_from(numbers.len()) {
            Ok(count) if is_run => Self::Range { first, count },
            _ => Self::Listed(numbers.into()),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Range { count, .. } => usize::from(*count),
            Self::Listed(numbers) => numbers.len(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn number(&self, at: usize) -> u16 {
        match self {
            Self::Range { first, .. } => first.wrapping_add(at as u16),
            Self::Listed(numbers) => numbers[at],
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        (0..self.len()).map(|at| self.number(at))
    }

    pub(crate) fn to_vec(&self) -> Vec<u16> {
        self.iter().collect()
    }
}

/// States of an entry, and the events that change its state.
///
/// ```text
///          ┌────────────── retry ─────────────┐
///          ▼                                  │
/// put ─▶ Ready ─ take ─▶ InFlight ─ 4xx ─▶ Deferred
///          ▲               │ │ └─── 2xx ─▶ gone
///          └── not sent ───┘ └───── 5xx ─▶ AwaitingDsn ─ stored ─▶ gone
///
/// Ready, Deferred ─ hold ─▶ Held ─ release ─▶ Ready
/// any state ─ too old ─▶ AwaitingDsn
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum EntryState {
    /// Waits for a connection
    Ready,
    /// Waits for its next try
    Deferred,
    /// A delivery is in progress
    #[serde(rename = "sending")]
    #[value(name = "sending")]
    InFlight,
    /// Waits until an operator releases it
    Held,
    /// Finished; its sender is being notified.
    #[serde(rename = "telling")]
    #[value(name = "telling")]
    AwaitingDsn,
}

impl EntryState {
    pub(crate) const ALL: [(Self, &'static str); STATE_COUNT] = [
        (Self::Ready, "ready"),
        (Self::Deferred, "deferred"),
        (Self::InFlight, "sending"),
        (Self::Held, "held"),
        (Self::AwaitingDsn, "telling"),
    ];

    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

pub(super) const STATE_COUNT: usize = 5;

pub(super) type EntryIndex = u32;
pub(super) const NO_ENTRY: EntryIndex = EntryIndex::MAX;

#[derive(Clone, Copy)]
pub(super) struct EntryLinks {
    pub(super) previous: EntryIndex,
    pub(super) next: EntryIndex,
}

/// Kinds of linked lists of queue entries. An entry has links for each kind, so it can be in one list of each kind at
/// the same time.
#[derive(Clone, Copy)]
pub(super) enum ListKind {
    /// List that depends on the entry's state: the ready entries of a destination, or the deferred entries that are due
    /// at the same time. In unused slots of the table, these links form the list of unused slots.
    State = 0,
    /// List of the entries that are checked at the same time for a delay notice or expiry.
    Age = 1,
    /// All entries of the destination, in the order in which they were added.
    Destination = 2,
    Message = 3,
}

/// Recipients of one message at one destination. Times in `_ms` are milliseconds of the queue's clock.
pub(super) struct QueueEntry<M> {
    pub(super) links: [EntryLinks; 4],
    /// Number of the entry's slot in each of the two timer wheels: the wheel for the next attempt (index 0), and the
    /// wheel for the age check (index 1).
    pub(super) slots: [u16; 2],
    pub(super) destination: DestinationId,
    pub(super) id: MessageId,
    pub(super) recipients: RecipientNumbers,
    /// The message, if it is in memory and not with a delivery agent.
    pub(super) message: Option<M>,
    pub(super) message_bytes: u32,
    pub(super) attempts: u32,
    pub(super) refusals: EntryRefusals,
    pub(super) received_unix_s: u64,
    /// Time from which a deferred entry may be tried again.
    pub(super) due_ms: u64,
    pub(super) age_check_ms: u64,
    pub(super) expires_ms: u64,
    pub(super) state: EntryState,
    pub(super) flags: EntryFlags,
    /// Number of sessions in a row that failed instead of delivering the entry.
    pub(super) unsent_tries: u8,
}

/// The last refusal of each recipient of an entry.
#[derive(Clone, Debug)]
pub(super) enum EntryRefusals {
    /// All recipients got this refusal. Other entries of the destination may share this copy of the refusal, because
    /// many entries of a destination get the same refusal.
    Same(Arc<DeliveryRefusal>),
    /// Recipients got different refusals, stored with the number of each refused recipient. Empty if no recipient has
    /// been refused.
    Each(Box<[(u16, Arc<DeliveryRefusal>)]>),
}

impl EntryRefusals {
    pub(super) fn new(refused: Vec<(u16, Arc<DeliveryRefusal>)>) -> Self {
        match refused.split_first() {
            Some(((_, first), others)) if others.iter().all(|(_, other)| other == first) => {
                Self::Same(Arc::clone(first))
            }
            _ => Self::Each(refused.into()),
        }
    }

    pub(super) fn get(&self, number: u16) -> Option<&Arc<DeliveryRefusal>> {
        match self {
            Self::Same(refusal) => Some(refusal),
            Self::Each(refused) => refused.iter().find(|(refused, _)| *refused == number).map(|(_, refusal)| refusal),
        }
    }

    /// Returns the refusal of the last refused recipient. `mailrun queue list` shows it for the whole entry.
    pub(super) fn last(&self) -> Option<&Arc<DeliveryRefusal>> {
        match self {
            Self::Same(refusal) => Some(refusal),
            Self::Each(refused) => refused.last().map(|(_, refusal)| refusal),
        }
    }
}

impl Default for EntryRefusals {
    fn default() -> Self {
        Self::Each(Box::default())
    }
}

#[derive(Clone, Copy, Default)]
pub(super) struct EntryFlags {
    /// Set while the message counts towards the limit on memory, even if a delivery agent has it.
    pub(super) in_budget: bool,
    pub(super) loading: bool,
    pub(super) delay_dsn_stored: bool,
    /// Set if the entry must be held when the delivery agent returns it.
    pub(super) hold_requested: bool,
    /// Set if the entry must be removed when the delivery agent returns it.
    pub(super) remove_requested: bool,
    pub(super) age_timer_set: bool,
}

/// End of a destination's list of ready entries at which the queue inserts an entry. An entry that was taken but not
/// sent returns to the front.
#[derive(Clone, Copy)]
pub(super) enum QueueEnd {
    Front,
    Back,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_shown_as_the_spool_shows_it() {
        assert_eq!(MessageId(0x1f).to_string(), "000000000000001f");
    }

    #[test]
    fn recipients_are_a_run_where_they_can_be() {
        let rows: [(&[u16], bool); 6] =
            [(&[], true), (&[7], true), (&[3, 4, 5], true), (&[3, 5], false), (&[4, 3], false), (&[65_535], true)];
        for (numbers, is_run) in rows {
            let recipients = RecipientNumbers::new(numbers);
            assert_eq!(matches!(recipients, RecipientNumbers::Range { .. }), is_run, "{numbers:?}");
            assert_eq!(recipients.to_vec(), numbers);
            assert_eq!((recipients.len(), recipients.is_empty()), (numbers.len(), numbers.is_empty()));
        }
    }

    #[test]
    fn an_entry_is_small() {
        // A queue may hold many entries, so each of them must need well below 250 bytes in total. In addition to the
        // size that is checked here, an entry needs up to 36 bytes in the index of message ids.
        let size = std::mem::size_of::<QueueEntry<Arc<[u8]>>>();
        assert!(size <= 152, "{size}");
    }
}
