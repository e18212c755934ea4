//! The account: what became of every (message, recipient).
//!
//! ```text
//! settle    books of both ends, and of the relay between  → the ledger row: fates that sum to what was created
//! ```
use crate::ledger::Ledger;
use crate::record::{Arrival, LedgerRow, Record};

/// What both ends wrote down.
#[derive(Clone, Copy, Debug)]
pub struct Books<'a> {
    /// Units that a session took up.
    pub recipients_created: u64,
    /// Units that the source heard 250 for.
    pub accepted: &'a Ledger,
    /// Units that the server refused, counted as the source heard it.
    pub rejected: u64,
    /// Units whose connection failed, counted as it did.
    pub failed: u64,
    /// Units whose outcome the source had not heard when it stopped.
    pub open: u64,
    /// Accepted units that the source's ledger had no room for.
    pub overflow: u64,
    /// What arrived; `None` where nobody watched.
    pub arrivals: Option<Arrivals<'a>>,
    /// What our relay between both ends still has; `None` where there was none.
    pub relay: Option<RelayBooks<'a>>,
}

/// What arrived at the sink.
#[derive(Clone, Copy, Debug)]
pub struct Arrivals<'a> {
    /// Distinct units of this run.
    pub units: &'a Ledger,
    /// Arrivals of a unit after its first.
    pub duplicates: u64,
    /// Messages whose checksum did not fit.
    pub corrupt: u64,
    /// Messages that a relay made 7-bit on their way.
    pub converted: u64,
    /// Messages without a trace of this run.
    pub foreign: u64,
    /// Messages without a usable creation time.
    pub untimed: u64,
    /// Units that the sink's ledger had no room for.
    pub overflow: u64,
}

/// What our relay knows at the end.
#[derive(Clone, Copy, Debug)]
pub struct RelayBooks<'a> {
    /// Units of this run in its queue.
    pub queued: &'a Ledger,
    /// Units that it gave up on, and said so to their senders.
    pub given_up: u64,
}

/// What stood between source and sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Between {
    /// Nothing: source and sink measure each other.
    Nothing,
    /// The server under test.
    Server,
}

/// Settles the account: with accepted set A, delivered set D and the relay's queue Q,
///
/// ```text
/// delivered = |D|    queued = |Q \ D|    lost = |A \ D \ Q|    rejected, failed, in flight: as the source counted them
/// ```
///
/// A unit that arrived, or is queued, though the source heard no 250 was one of those in flight, or failed: a reply that
/// got lost. Where it was none of these, the server has kept what it refused. Every number is counted by itself, so the
/// fates sum to what was created unless the books contradict each other.
pub fn settle(books: Books) -> LedgerRow {
    let Some(arrivals) = books.arrivals else { return unwatched(&books) };
    let nothing = Ledger::default();
    let relay = books.relay.unwrap_or(RelayBooks { queued: &nothing, given_up: 0 });
    let delivered = arrivals.units.count();
    let queued = relay.queued.count_without(arrivals.units);
    let mut whereabouts = arrivals.units.clone();
    let no_room = if queued > 0 { whereabouts.merge(relay.queued).full } else { 0 };
    let missing = books.accepted.count_without(&whereabouts);
    let expired = relay.given_up.min(missing);
    let unheard = Unheard::among(&books, whereabouts.count_without(books.accepted));
    LedgerRow {
        created: Some(books.recipients_created),
        accepted: Some(books.accepted.count()),
        delivered: Some(delivered),
        rejected: Some(books.rejected - unheard.rejected),
        failed: Some(books.failed - unheard.failed),
        expired: Some(expired),
        queued: Some(queued),
        lost: Some(missing - expired),
        in_flight: Some(books.open - unheard.open),
        duplicates: Some(arrivals.duplicates),
        corrupt: Some(arrivals.corrupt),
        converted: Some(arrivals.converted),
        foreign: Some(arrivals.foreign),
        untimed: Some(arrivals.untimed),
        overflow: Some(books.overflow + arrivals.overflow + no_room),
    }
}

/// What a source knows by itself.
fn unwatched(books: &Books) -> LedgerRow {
    let accepted = books.accepted.count();
    LedgerRow {
        created: Some(books.recipients_created),
        accepted: Some(accepted),
        rejected: Some(books.rejected),
        failed: Some(books.failed),
        in_flight: Some(accepted + books.open),
        overflow: Some(books.overflow),
        ..LedgerRow::default()
    }
}

/// Where the units are counted that arrived though the source heard no 250 for them.
struct Unheard {
    open: u64,
    failed: u64,
    rejected: u64,
}

impl Unheard {
    /// Those in flight first, then those whose connection failed, then those that the server said no to.
    fn among(books: &Books, units: u64) -> Self {
        let open = units.min(books.open);
        let failed = (units - open).min(books.failed);
        let rejected = (units - open - failed).min(books.rejected);
        Self { open, failed, rejected }
    }
}

/// Whether the known fates sum to what was created.
pub fn fates_sum(ledger: &LedgerRow) -> bool {
    ledger.created == Some(sum_of_fates(ledger))
}

/// The known fates together.
pub fn sum_of_fates(ledger: &LedgerRow) -> u64 {
    let fates = [
        ledger.delivered,
        ledger.rejected,
        ledger.failed,
        ledger.expired,
        ledger.queued,
        ledger.lost,
        ledger.in_flight,
    ];
    fates.into_iter().flatten().sum()
}

/// Whether both ends of the journey are known.
pub fn is_watched(ledger: &LedgerRow) -> bool {
    ledger.created.is_some() && ledger.delivered.is_some()
}

/// Whether messages were due at their times, whatever the server did.
pub fn is_open_loop(record: &Record) -> bool {
    record.workload.arrival != Arrival::Closed
}
