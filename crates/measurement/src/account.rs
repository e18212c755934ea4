//! Computes the ledger row of a run: how many units were delivered, lost, rejected and so on. A unit is a pair of
//! message and recipient, because a server may deliver a message to one recipient and reject it for another.
use crate::ledger::Ledger;
use crate::record::{Arrival, LedgerRow, Record};
use crate::stage::Stage;
use std::borrow::Cow;

#[derive(Clone, Copy, Debug)]
pub struct AccountInputs<'a> {
    /// Number of message-recipient pairs of the messages that the source has begun to send.
    pub recipients_created: u64,
    /// Message-recipient pairs for which the source received a 250, so the server is responsible for them.
    pub accepted: &'a Ledger,
    pub rejected: u64,
    pub failed: u64,
    /// Number of message-recipient pairs that the server may have accepted, because the connection broke between the
    /// last byte of the message and the reply.
    pub in_doubt: u64,
    /// True if the server replies separately for each recipient of a message, as in LMTP. If the connection breaks
    /// between these replies, only the recipients without a reply are in doubt.
    pub has_reply_for_each: bool,
    pub open: u64,
    /// Number of accepted message-recipient pairs whose fates are unknown, because they did not fit into the memory of
    /// the source's ledger.
    pub overflow: u64,
    /// Counts of the sink, or `None` if no sink counted arrivals.
    pub arrivals: Option<Arrivals<'a>>,
    pub queue: ServerQueue<'a>,
}

/// What is known about the queue of the server between source and sink. A message that did not arrive for a recipient
/// is lost only if it is not in this queue.
#[derive(Clone, Copy, Debug)]
pub enum ServerQueue<'a> {
    /// There is no server, because the source sends directly to the sink.
    Absent,
    /// The server has a queue that cannot be read, so missing mail may still be in the queue.
    Unknown,
    /// The server is mailrun's relay, whose queue can be read.
    Known(RelayInputs<'a>),
}

#[derive(Clone, Copy, Debug)]
pub struct Arrivals<'a> {
    /// Message-recipient pairs of this run that have arrived. A pair that arrived twice is in the set only once.
    pub units: &'a Ledger,
    /// Message-recipient pairs that notifications reported as undeliverable, each of them only once.
    pub bounced: &'a Ledger,
    /// Number of reports in notifications which say that a delivery is delayed and will be tried again.
    pub delay_notices: u64,
    /// Number of further failure reports about mail that an earlier notification had reported as undeliverable.
    pub repeated_notices: u64,
    /// Number of recipients whose address the server rewrote. The sink learns the original address from ORCPT.
    pub rewritten: u64,
    /// Number of copies for recipients whom the server added. The sink recognises such copies by ORCPT and NOTIFY.
    pub copied: u64,
    /// Number of repeated arrivals of a message for the same recipient.
    pub duplicates: u64,
    /// Number of messages that arrived changed, or `None` if the sink has not seen their bodies.
    pub corrupt: Option<u64>,
    /// Messages that a relay converted to 7-bit on the way. They are intact and not included in `corrupt`.
    pub converted: u64,
    /// Messages that do not belong to this run, because they have no trace field (`X-Mailrun`) or it names another run.
    pub foreign: u64,
    /// Messages without a latency, because this host's clock cannot be compared with the clock of their creation time.
    pub untimed: u64,
    /// Messages that seem to arrive before their creation, because the hosts' clocks differ. They have no latency.
    pub negative: u64,
    /// Number of arrived message-recipient pairs that did not fit into the memory of the sink's ledger.
    pub overflow: u64,
}

impl<'a> Arrivals<'a> {
    /// Creates the counts of a sink at which each message-recipient pair in `units` arrived exactly once and unchanged.
    pub fn unharmed(units: &'a Ledger, bounced: &'a Ledger) -> Self {
        Self {
            units,
            bounced,
            delay_notices: 0,
            repeated_notices: 0,
            rewritten: 0,
            copied: 0,
            duplicates: 0,
            corrupt: Some(0),
            converted: 0,
            foreign: 0,
            untimed: 0,
            negative: 0,
            overflow: 0,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct RelayInputs<'a> {
    /// Message-recipient pairs of this run that are still in the relay's queue.
    pub queued: &'a Ledger,
    /// Number of message-recipient pairs that the relay gave up on, whether or not it sent a bounce for them.
    pub given_up: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// The source sends to the sink without a server in between, so the run measures source and sink themselves.
    Direct,
    Server,
}

/// Computes the ledger row from four sets of message-recipient pairs: A was accepted, D was delivered, B was reported
/// as undeliverable by notifications, and Q is still in the relay's queue:
///
/// ```text
/// delivered = |D|    bounced = |B \ D|    queued = |Q \ D \ B|    lost = |A \ D \ B \ Q|
/// rejected, failed, in doubt, in flight: as the source counted them
/// ```
///
/// Before the sets are compared, [`Matched`] replaces each address that the server rewrote with the address that the
/// source named. Otherwise, such a recipient would count twice: as delivered and as lost.
///
/// If it is unknown what is still in the queue (Q), a missing message may be there. Accepted pairs that neither arrived
/// nor bounced (A \ D \ B) then count as not delivered instead of lost.
/// Missing pairs that the relay gave up on without a bounce count as expired instead of lost.
///
/// Some pairs arrive, bounce or are queued although the source received no 250. Usually the 250 got lost. The source
/// has then counted the pair as in doubt, in flight or failed, so the pair is subtracted from these counts. If there
/// are more such pairs than these counts contain, the server has kept mail that it rejected, and the remaining pairs
/// are subtracted from `rejected`.
///
/// Source, sink and relay count independently of each other, so the fates sum to the created pairs only if the three
/// agree. Bounces of recipients that the source did not name are left out, such as the bounce of a copy.
pub fn reconcile(state: AccountInputs) -> LedgerRow {
    let Some(arrivals) = state.arrivals else { return source_only_row(&state) };
    let nothing = Ledger::default();
    let relay = match state.queue {
        ServerQueue::Known(relay) => relay,
        ServerQueue::Absent | ServerQueue::Unknown => RelayInputs { queued: &nothing, given_up: 0 },
    };
    let matched = Matched::new(state.accepted, arrivals.units, arrivals.bounced, relay.queued);
    let arrivals = Arrivals { units: &matched.arrived, bounced: &matched.bounced, ..arrivals };
    let relay = RelayInputs { queued: &matched.queued, ..relay };
    // An LMTP server replies for each recipient. If it rewrites a recipient's address and the reply is lost, the
    // delivery looks like a copy to an added recipient. So for each lost reply, count one copy as a delivery.
    let doubtful = if state.has_reply_for_each { matched.copied.min(state.in_doubt) } else { 0 };
    let delivered = arrivals.units.count() + doubtful;
    let reported = arrivals.bounced.count_without(arrivals.units);
    let mut known_units = arrivals.units.clone();
    let mut no_room = if reported > 0 { known_units.merge(arrivals.bounced).full } else { 0 };
    let queued = relay.queued.count_without(&known_units);
    no_room += if queued > 0 { known_units.merge(relay.queued).full } else { 0 };
    let missing = state.accepted.count_without(&known_units);
    let heard_of = known_units.count_without(state.accepted) + doubtful;
    let strangers = strangers(&state, &arrivals);
    let bounced = reported - strangers;
    // `given_up` includes bounced mail. Subtract bounced mail, so that it does not count as expired as well.
    let expired = relay.given_up.saturating_sub(bounced).min(missing);
    let unheard = Unheard::among(&state, heard_of - strangers);
    let (lost, not_delivered) = match state.queue {
        ServerQueue::Unknown if missing > 0 => (None, missing),
        _ => (Some(missing - expired), 0),
    };
    LedgerRow {
        created: Some(state.recipients_created),
        accepted: Some(state.accepted.count()),
        delivered: Some(delivered),
        bounced: Some(bounced),
        rejected: Some(state.rejected - unheard.rejected),
        failed: Some(state.failed - unheard.failed),
        in_doubt: Some(state.in_doubt - unheard.in_doubt),
        expired: Some(expired),
        queued: Some(queued),
        lost,
        not_delivered: Some(not_delivered),
        in_flight: Some(state.open - unheard.open),
        duplicates: Some(arrivals.duplicates),
        rewritten: Some(arrivals.rewritten.saturating_add(matched.rewritten)),
        copied: Some(arrivals.copied.saturating_add(matched.copied - doubtful)),
        corrupt: arrivals.corrupt,
        converted: Some(arrivals.converted),
        foreign: Some(arrivals.foreign),
        delay_notices: Some(arrivals.delay_notices),
        repeated_notices: Some(arrivals.repeated_notices),
        untimed: Some(arrivals.untimed),
        negative: Some(arrivals.negative),
        // A sink on another host may report any numbers, so the sums must not overflow.
        overflow: Some(state.overflow.saturating_add(arrivals.overflow).saturating_add(no_room)),
    }
}

/// Arrived, bounced and queued pairs, in which each address that the server rewrote is replaced by the address that the
/// source named.
///
/// A server may rewrite recipients without passing on ORCPT. If a message then arrives for an unknown recipient but not
/// for one of the named recipients, the server has probably rewritten the address of this named recipient. If the
/// message has arrived for all named recipients, the server has made a copy. Unknown recipients in notifications and in
/// the relay's queue are replaced by the same rule. In messages that got no 250, no recipient is replaced, because
/// nobody knows which recipients the server accepted.
#[derive(Debug)]
pub struct Matched<'a> {
    pub arrived: Cow<'a, Ledger>,
    pub bounced: Cow<'a, Ledger>,
    pub queued: Cow<'a, Ledger>,
    rewritten: u64,
    copied: u64,
}

impl<'a> Matched<'a> {
    pub fn new(accepted: &Ledger, arrived: &'a Ledger, bounced: &'a Ledger, queued: &'a Ledger) -> Self {
        let [mut known_arrivals, mut known_bounces, mut known_queue] = [arrived, bounced, queued].map(Cow::Borrowed);
        let is_settled = |arrived: &Ledger, bounced: &Ledger, sequence, recipient| {
            [arrived, bounced, queued].iter().any(|units| units.contains(sequence, recipient))
        };
        let strangers =
            strange_units(accepted, arrived, |sequence, recipient| is_settled(arrived, bounced, sequence, recipient));
        let (rewritten, copied) = replace(&mut known_arrivals, &strangers);
        let strangers = strange_units(accepted, bounced, |sequence, recipient| {
            is_settled(&known_arrivals, bounced, sequence, recipient)
        });
        replace(&mut known_bounces, &strangers);
        let strangers = strange_units(accepted, queued, |sequence, recipient| {
            is_settled(&known_arrivals, &known_bounces, sequence, recipient)
        });
        replace(&mut known_queue, &strangers);
        Self { arrived: known_arrivals, bounced: known_bounces, queued: known_queue, rewritten, copied }
    }
}

/// Returns the number of accepted message-recipient pairs that have neither arrived nor bounced. The array is the
/// result of [`Ledger::read_arrivals`]: arrived pairs, bounced pairs, and a third ledger that is not needed here.
pub fn unsettled(accepted: &Ledger, [arrived, bounced, _]: &[Ledger; 3]) -> u64 {
    let nothing = Ledger::default();
    let matched = Matched::new(accepted, arrived, bounced, &nothing);
    let mut settled = matched.arrived.into_owned();
    settled.merge(&matched.bounced);
    accepted.count_without(&settled)
}

/// A pair of an accepted message and a recipient that the source did not name. If the message is still missing for one
/// of its named recipients, `meant` is this recipient, because the server has probably rewritten the recipient's
/// address.
struct StrangeUnit {
    sequence: u64,
    recipient: u32,
    meant: Option<u32>,
}

fn strange_units(accepted: &Ledger, units: &Ledger, is_settled: impl Fn(u64, u32) -> bool) -> Vec<StrangeUnit> {
    let mut found = Vec::new();
    units.for_each_stranger(accepted, |sequence, strangers, named| {
        let mut missing = named.iter().copied().filter(|recipient| !is_settled(sequence, *recipient));
        found.extend(strangers.iter().map(|recipient| StrangeUnit {
            sequence,
            recipient: *recipient,
            meant: missing.next(),
        }));
    });
    found
}

/// Replaces the unknown recipient of each pair in `strangers` with `meant`, whose address the server has rewritten.
/// Removes the pair if `meant` is `None`, because it is a copy. Returns how many pairs it replaced and removed.
fn replace(units: &mut Cow<'_, Ledger>, strangers: &[StrangeUnit]) -> (u64, u64) {
    let [mut matched, mut others] = [0, 0];
    for StrangeUnit { sequence, recipient, meant } in strangers {
        let units = units.to_mut();
        units.unmark(*sequence, *recipient);
        match meant {
            Some(meant) => {
                units.mark(*sequence, *meant);
                matched += 1;
            }
            None => others += 1,
        }
    }
    (matched, others)
}

/// Estimates how many bounces concern recipients that the source never named. These are the bounces of pairs for which
/// the source received no 250, minus the mail in doubt, in flight or failed, which the server may have accepted and
/// then bounced. Rejected mail never bounces.
fn strangers(state: &AccountInputs, arrivals: &Arrivals) -> u64 {
    if arrivals.bounced.count() == 0 {
        return 0;
    }
    let mut others = state.accepted.clone();
    others.merge(arrivals.units);
    arrivals
        .bounced
        .count_without(&others)
        .saturating_sub(state.in_doubt.saturating_add(state.open).saturating_add(state.failed))
}

/// Computes the ledger row of a run without a sink from the source's counts alone. All accepted mail counts as in
/// flight, because nobody saw whether it arrived.
fn source_only_row(state: &AccountInputs) -> LedgerRow {
    let accepted = state.accepted.count();
    LedgerRow {
        created: Some(state.recipients_created),
        accepted: Some(accepted),
        rejected: Some(state.rejected),
        failed: Some(state.failed),
        in_doubt: Some(state.in_doubt),
        in_flight: Some(accepted.saturating_add(state.open)),
        overflow: Some(state.overflow),
        ..LedgerRow::default()
    }
}

/// Message-recipient pairs that arrived, bounced or are queued although the source received no 250. Each field counts
/// the pairs for which the source recorded the fate in the field's name.
struct Unheard {
    in_doubt: u64,
    open: u64,
    failed: u64,
    rejected: u64,
}

impl Unheard {
    /// Divides `units` pairs among the fates that the source recorded for mail without a 250. Mail in doubt comes
    /// first, then mail in flight, failed mail and rejected mail, because a lost 250 is most likely for mail in doubt
    /// and least likely for rejected mail.
    fn among(state: &AccountInputs, units: u64) -> Self {
        let mut rest = units;
        let mut assign = |most: u64| {
            let count = rest.min(most);
            rest -= count;
            count
        };
        Self {
            in_doubt: assign(state.in_doubt),
            open: assign(state.open),
            failed: assign(state.failed),
            rejected: assign(state.rejected),
        }
    }
}

/// True if the counts of all fates sum to the created count. If they do not, source and sink contradict each other.
pub fn fates_sum(ledger: &LedgerRow) -> bool {
    ledger.created == Some(sum_of_fates(ledger))
}

pub fn sum_of_fates(ledger: &LedgerRow) -> u64 {
    let fates = [
        ledger.delivered,
        ledger.bounced,
        ledger.rejected,
        ledger.failed,
        ledger.in_doubt,
        ledger.expired,
        ledger.queued,
        ledger.lost,
        ledger.not_delivered,
        ledger.in_flight,
    ];
    // Records of other programs may contain any numbers, so the sum must not overflow.
    fates.into_iter().flatten().fold(0, u64::saturating_add)
}

/// Returns the number of messages that were due but never sent, for example because the load ended early.
pub fn unsent(record: &Record) -> u64 {
    let created = record.stage(Stage::Created).map_or(0, |row| row.count);
    record.due.unwrap_or_default().saturating_sub(created)
}

/// True if both the source and the sink have counted their mail, so that the number of deliveries is known.
pub fn is_watched(ledger: &LedgerRow) -> bool {
    ledger.created.is_some() && ledger.delivered.is_some()
}

/// True if messages were due at fixed times that do not depend on the server's replies.
pub fn is_open_loop(record: &Record) -> bool {
    record.workload.arrival != Arrival::Closed
}
