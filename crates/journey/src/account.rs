//! The account: the fate of every (message, recipient).
//!
//! ```text
//! settle    inputs of both ends, and of the relay between  → the ledger row: fates that sum to the created units
//! ```
use crate::ledger::Ledger;
use crate::record::{Arrival, LedgerRow, Record};
use crate::stage::Stage;

/// Counts of both ends.
#[derive(Clone, Copy, Debug)]
pub struct AccountInputs<'a> {
    /// Units that a session began.
    pub recipients_created: u64,
    /// Units that the source received 250 for.
    pub accepted: &'a Ledger,
    pub rejected: u64,
    pub failed: u64,
    pub open: u64,
    /// Accepted units for which the source's ledger had no room.
    pub overflow: u64,
    /// Arrivals; `None` if no sink counted them.
    pub arrivals: Option<Arrivals<'a>>,
    /// What is known about the queue between both ends.
    pub queue: ServerQueue<'a>,
}

/// The queue between both ends. It decides whether a unit that did not arrive is lost.
#[derive(Clone, Copy, Debug)]
pub enum ServerQueue<'a> {
    /// There is no server.
    Absent,
    /// A server whose queue cannot be read.
    Unknown,
    /// Our relay, whose queue is known.
    Known(RelayInputs<'a>),
}

#[derive(Clone, Copy, Debug)]
pub struct Arrivals<'a> {
    /// Distinct units of this run.
    pub units: &'a Ledger,
    /// Arrivals of a unit after its first.
    pub duplicates: u64,
    /// Messages whose checksum was wrong.
    pub corrupt: u64,
    /// Messages that a relay converted to 7-bit on their way.
    pub converted: u64,
    /// Messages without a trace of this run.
    pub foreign: u64,
    /// Messages without a usable creation time.
    pub untimed: u64,
    /// Messages that arrived before they were created, by the clocks of two hosts.
    pub negative: u64,
    /// Units for which the sink's ledger had no room.
    pub overflow: u64,
}

/// State of our relay at the end.
#[derive(Clone, Copy, Debug)]
pub struct RelayInputs<'a> {
    /// Units of this run in its queue.
    pub queued: &'a Ledger,
    /// Units that the relay gave up on and reported to their senders.
    pub given_up: u64,
}

/// Systems between source and sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// Nothing: source and sink are measured themselves.
    Direct,
    /// The server under test.
    Server,
}

/// Settles the account: with accepted set A, delivered set D and the relay's queue Q,
///
/// ```text
/// delivered = |D|    queued = |Q \ D|    lost = |A \ D \ Q|    rejected, failed, in flight: as the source counted them
/// ```
///
/// If the queue is unknown, A \ D is not delivered instead of lost.
///
/// A unit that arrived, or is queued, although the source received no 250 was one of those in flight, or failed: its
/// reply got lost. If it was none of these, the server has kept a unit that it rejected. Every number is counted by
/// itself, so the fates sum to the created units unless the inputs contradict each other.
pub fn reconcile(state: AccountInputs) -> LedgerRow {
    let Some(arrivals) = state.arrivals else { return source_only_row(&state) };
    let nothing = Ledger::default();
    let relay = match state.queue {
        ServerQueue::Known(relay) => relay,
        ServerQueue::Absent | ServerQueue::Unknown => RelayInputs { queued: &nothing, given_up: 0 },
    };
    let delivered = arrivals.units.count();
    let queued = relay.queued.count_without(arrivals.units);
    let mut known_units = arrivals.units.clone();
    let no_room = if queued > 0 { known_units.merge(relay.queued).full } else { 0 };
    let missing = state.accepted.count_without(&known_units);
    let expired = relay.given_up.min(missing);
    let unheard = Unheard::among(&state, known_units.count_without(state.accepted));
    let (lost, not_delivered) = match state.queue {
        ServerQueue::Unknown if missing > 0 => (None, missing),
        _ => (Some(missing - expired), 0),
    };
    LedgerRow {
        created: Some(state.recipients_created),
        accepted: Some(state.accepted.count()),
        delivered: Some(delivered),
        rejected: Some(state.rejected - unheard.rejected),
        failed: Some(state.failed - unheard.failed),
        expired: Some(expired),
        queued: Some(queued),
        lost,
        not_delivered: Some(not_delivered),
        in_flight: Some(state.open - unheard.open),
        duplicates: Some(arrivals.duplicates),
        corrupt: Some(arrivals.corrupt),
        converted: Some(arrivals.converted),
        foreign: Some(arrivals.foreign),
        untimed: Some(arrivals.untimed),
        negative: Some(arrivals.negative),
        // A sink on another host may report any numbers.
        overflow: Some(state.overflow.saturating_add(arrivals.overflow).saturating_add(no_room)),
    }
}

/// Makes the ledger row from the source's counts alone.
fn source_only_row(state: &AccountInputs) -> LedgerRow {
    let accepted = state.accepted.count();
    LedgerRow {
        created: Some(state.recipients_created),
        accepted: Some(accepted),
        rejected: Some(state.rejected),
        failed: Some(state.failed),
        in_flight: Some(accepted.saturating_add(state.open)),
        overflow: Some(state.overflow),
        ..LedgerRow::default()
    }
}

/// Units that arrived although the source got no 250 for them, by the fate that the source counted.
struct Unheard {
    open: u64,
    failed: u64,
    rejected: u64,
}

impl Unheard {
    /// Assigns such units first to those in flight, then to those whose connection failed, then to rejected ones.
    fn among(state: &AccountInputs, units: u64) -> Self {
        let open = units.min(state.open);
        let failed = (units - open).min(state.failed);
        let rejected = (units - open - failed).min(state.rejected);
        Self { open, failed, rejected }
    }
}

/// Reports whether the known fates sum to the created units.
pub fn fates_sum(ledger: &LedgerRow) -> bool {
    ledger.created == Some(sum_of_fates(ledger))
}

/// Sum of the known fates.
pub fn sum_of_fates(ledger: &LedgerRow) -> u64 {
    let fates = [
        ledger.delivered,
        ledger.rejected,
        ledger.failed,
        ledger.expired,
        ledger.queued,
        ledger.lost,
        ledger.not_delivered,
        ledger.in_flight,
    ];
    // Foreign records may contain any numbers.
    fates.into_iter().flatten().fold(0, u64::saturating_add)
}

/// Messages that were due and never sent.
pub fn unsent(record: &Record) -> u64 {
    let created = record.stages.iter().find(|row| row.name == Stage::Created).map_or(0, |row| row.count);
    record.due.unwrap_or_default().saturating_sub(created)
}

/// Reports whether both ends were observed.
pub fn is_watched(ledger: &LedgerRow) -> bool {
    ledger.created.is_some() && ledger.delivered.is_some()
}

/// Reports whether messages were due at fixed times, whatever the server did.
pub fn is_open_loop(record: &Record) -> bool {
    record.workload.arrival != Arrival::Closed
}
