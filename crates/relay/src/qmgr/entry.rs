//! An entry of the queue: some recipients of one message that travel to one destination in one transaction.
use std::fmt;
use std::sync::Arc;

use crate::message::envelope::DeliveryRefusal;

/// A next hop, by its number. Numbers are small and dense: a number may be used again once the queue reports the
/// destination as idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct DestinationId(pub(crate) u32);

/// A message's number in the spool; as users see it, its queue id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct MessageId(pub(crate) u64);

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The most recipients of one transaction (RFC 5321 §4.5.3.1.8: the number that every server must take).
pub(crate) const TRANSACTION_RECIPIENTS: usize = 100;

/// Recipients by their numbers in the envelope. Most are a run of numbers, which takes no memory of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RecipientNumbers {
    /// That many from `first` on.
    Range { first: u16, count: u16 },
    /// The listed numbers.
    Listed(Box<[u16]>),
}

impl RecipientNumbers {
    /// The shortest form.
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

    /// The number at that place.
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

/// State of an entry.
///
/// ```text
///            ┌────────────── retry ──────────────┐
///  put ─▶ Ready ─ take ─▶ InFlight ─ 4xx ─▶ Deferred       any but InFlight ─ hold ─▶ Held ─ release ─▶ Ready
///            ▲               │ │ └─ 2xx ─▶ gone
///            └── not sent ───┘ └─── 5xx ─▶ AwaitingDsn ─ stored ─▶ gone     any of them, too old ─▶ AwaitingDsn
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryState {
    /// Waits for a connection.
    Ready,
    /// Waits for its time.
    Deferred,
    /// With a delivery agent.
    InFlight,
    /// Stopped by an operator.
    Held,
    /// Settled; waits until the DSN about it is in the spool.
    AwaitingDsn,
}

/// Number of states.
pub(super) const STATE_COUNT: usize = 5;

/// An entry's place in the table.
pub(super) type EntryIndex = u32;
/// No entry.
pub(super) const NO_ENTRY: EntryIndex = EntryIndex::MAX;

/// The neighbours in a list.
#[derive(Clone, Copy)]
pub(super) struct EntryLinks {
    pub(super) previous: EntryIndex,
    pub(super) next: EntryIndex,
}

/// The lists that an entry is in at the same time.
#[derive(Clone, Copy)]
pub(super) enum ListKind {
    /// Ready entries of a destination; deferred entries that are due at the same time; free places.
    State = 0,
    /// All entries whose age is checked at the same time.
    Age = 1,
    /// All entries of the destination, oldest first.
    Destination = 2,
    /// All entries of the message.
    Message = 3,
}

/// An entry. Times are milliseconds of the queue's clock.
pub(super) struct QueueEntry<M> {
    pub(super) links: [EntryLinks; 4],
    /// Its slots in the wheel, as `ListKind::State` and `ListKind::Age`.
    pub(super) slots: [u16; 2],
    pub(super) destination: DestinationId,
    pub(super) id: MessageId,
    pub(super) recipients: RecipientNumbers,
    /// The message, if it is in memory and not with a delivery agent.
    pub(super) message: Option<M>,
    pub(super) message_bytes: u32,
    pub(super) attempts: u32,
    /// The last refusal; shared with the destination's other entries, which mostly get the same one.
    pub(super) refusal: Option<Arc<DeliveryRefusal>>,
    pub(super) received_unix_s: u64,
    /// Time from which it may be tried again, while it is deferred.
    pub(super) due_ms: u64,
    /// Time at which to check its age next.
    pub(super) age_check_ms: u64,
    pub(super) expires_ms: u64,
    pub(super) state: EntryState,
    pub(super) flags: EntryFlags,
    /// Connections that gave it back, one after the other, without having sent it.
    pub(super) unsent_tries: u8,
}

/// Other marks of an entry.
#[derive(Clone, Copy, Default)]
pub(super) struct EntryFlags {
    /// Its message counts against the memory budget: here, or with a delivery agent.
    pub(super) in_budget: bool,
    /// Its message is being read from the spool.
    pub(super) loading: bool,
    /// The sender was notified of the delay.
    pub(super) delay_dsn_stored: bool,
    /// It is held when the delivery agent gives it back.
    pub(super) hold_requested: bool,
    /// It is forgotten when the delivery agent gives it back.
    pub(super) remove_requested: bool,
    /// It is on the wheel of age checks.
    pub(super) age_timer_set: bool,
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
        // With the index from id to entry (up to 36 bytes) it stays well below 250.
        let size = std::mem::size_of::<QueueEntry<Arc<[u8]>>>();
        assert!(size <= 152, "{size}");
    }
}
