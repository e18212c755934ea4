//! The account: what became of every (message, recipient), and whether to believe the run.
//!
//! ```text
//! settle    books of both ends  → the ledger row: fates that sum to what was created
//! conclude  the whole record    → closed? valid? and the reasons, in sentences
//! held      the verdict         → exit status 0 or 1
//! ```
use crate::doubts::{disturbances, limits};
use crate::ledger::Ledger;
use crate::record::{Arrival, LedgerRow, Party, Record, Role, StageRow, Verdict};
use crate::stage::Stage;

/// Open loop: the 99th percentile of how late messages may start. More, and the source was not offering the load.
const LAG_LIMIT_MS: f64 = 10.0;
/// Open loop: the share of the asked rate that must have been offered.
const RATE_SHARE: f64 = 0.95;
/// The share of its threads' time that a source or sink may use before it counts as the limit itself.
const BUSY_SHARE: f64 = 0.90;

/// In less time than that, what a process used to begin and to end is most of what it used.
const LEAST_BUSY_S: f64 = 1.0;

/// What both ends wrote down.
#[derive(Clone, Copy, Debug)]
pub struct Books<'a> {
    /// Units that a session took up.
    pub recipients_created: u64,
    /// Units that the source heard 250 for.
    pub accepted: &'a Ledger,
    /// What arrived; `None` where nobody watched.
    pub arrivals: Option<Arrivals<'a>>,
    /// Units whose outcome the source had not heard when it stopped.
    pub open: u64,
    /// Accepted units that the source's ledger had no room for.
    pub overflow: u64,
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

/// What stood between source and sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Between {
    /// Nothing: source and sink measure each other.
    Nothing,
    /// The server under test.
    Server,
}

/// Settles the account: with accepted set A, delivered set D,
///
/// ```text
/// delivered = |D|   lost = |A \ D|   rejected = created − |A ∪ D| − in flight
/// ```
///
/// A unit that arrived though the source heard no 250 was still open, as far as any were: it is delivered and not
/// in flight. The fates then sum to what was created unless the books contradict each other.
pub fn settle(books: Books) -> LedgerRow {
    let Books { recipients_created: created, accepted, arrivals, open, overflow } = books;
    let Some(arrivals) = arrivals else {
        let in_flight = accepted.count() + open;
        return LedgerRow {
            created: Some(created),
            accepted: Some(accepted.count()),
            rejected: Some(created.saturating_sub(in_flight)),
            in_flight: Some(in_flight),
            overflow: Some(overflow),
            ..LedgerRow::default()
        };
    };
    let lost = accepted.count_without(arrivals.units);
    let delivered = arrivals.units.count();
    let unheard = arrivals.units.count_without(accepted);
    let in_flight = open.saturating_sub(unheard);
    LedgerRow {
        created: Some(created),
        accepted: Some(accepted.count()),
        delivered: Some(delivered),
        rejected: Some(created.saturating_sub(delivered + lost + in_flight)),
        expired: Some(0),
        lost: Some(lost),
        in_flight: Some(in_flight),
        duplicates: Some(arrivals.duplicates),
        corrupt: Some(arrivals.corrupt),
        converted: Some(arrivals.converted),
        foreign: Some(arrivals.foreign),
        untimed: Some(arrivals.untimed),
        overflow: Some(overflow + arrivals.overflow),
    }
}

/// Whether the known fates sum to what was created.
pub fn fates_sum(ledger: &LedgerRow) -> bool {
    ledger.created == Some(sum_of_fates(ledger))
}

/// Whether to believe the run, from all else that its record says.
pub fn conclude(record: &Record, between: Between) -> Verdict {
    let faults = faults(record);
    let doubts = doubts(record, between);
    let is_whole = ends(record).all(|party| defect(party).is_none());
    let closed = faults.is_empty() && is_whole && is_watched(&record.ledger);
    let valid = doubts.is_empty();
    let reasons = faults.into_iter().chain(doubts).chain(remarks(record, between)).collect();
    Verdict { closed, valid, reasons }
}

/// Whether the run may exit 0: the ledger closes where both ends were watched, no session of source or sink ended by a
/// defect, no threshold failed, and something was accepted. Over MADES the broker takes a message before the endpoint says whether it does: there, something must have
/// arrived.
pub fn held(record: &Record) -> bool {
    let balanced = record.verdict.closed || !is_watched(&record.ledger);
    let fast = record.thresholds.iter().all(|threshold| threshold.passed);
    let is_whole = ends(record).all(|party| defect(party).is_none());
    let reached = if record.mades.is_some() { record.ledger.delivered } else { record.ledger.accepted };
    balanced && is_whole && fast && record.ledger.accepted != Some(0) && reached != Some(0)
}

/// Whether both ends of the journey are known.
fn is_watched(ledger: &LedgerRow) -> bool {
    ledger.created.is_some() && ledger.delivered.is_some()
}

fn sum_of_fates(ledger: &LedgerRow) -> u64 {
    [ledger.delivered, ledger.rejected, ledger.expired, ledger.lost, ledger.in_flight].into_iter().flatten().sum()
}

/// What keeps the ledger from closing.
fn faults(record: &Record) -> Vec<String> {
    let ledger = &record.ledger;
    let noun = unit_noun(record);
    let created = ledger.created.map_or(String::new(), |created| format!(" of {created}"));
    let counted = [
        (ledger.lost, format!("{created} {noun} were accepted and never arrived: lost")),
        (ledger.duplicates, format!("{created} {noun} arrived more than once: duplicates")),
        (ledger.corrupt, " messages arrived with a body that does not fit their checksum: corrupt".to_owned()),
    ];
    let mut faults: Vec<String> = counted
        .into_iter()
        .filter_map(|(count, text)| Some((count.filter(|count| *count > 0)?, text)))
        .map(|(count, text)| format!("{count}{text} {count}."))
        .collect();
    if is_watched(ledger) && !fates_sum(ledger) {
        faults.push(format!(
            "The fates sum to {} and not to the {} {noun} created: the books of source and sink contradict each other.",
            sum_of_fates(ledger),
            ledger.created.unwrap_or_default()
        ));
    }
    if let Some(overflow) = ledger.overflow.filter(|overflow| *overflow > 0) {
        faults.push(format!(
            "{overflow} {noun} did not fit into the ledger, so what became of them is unknown: send fewer in one run."
        ));
    }
    faults
}

/// What makes the figures say something else than they seem to.
fn doubts(record: &Record, between: Between) -> Vec<String> {
    let mut doubts: Vec<String> = warm_up_doubt(record).into_iter().collect();
    doubts.extend(record.parties.iter().filter_map(defect));
    if record.workload.arrival != Arrival::Closed {
        doubts.extend(lag_doubt(record));
        doubts.extend(rate_doubt(record));
    }
    if between == Between::Server {
        doubts.extend(record.parties.iter().filter_map(|party| busy_doubt(party, record.duration_s)));
    }
    doubts.extend(limits(record));
    doubts
}

/// Figures of no message are no figures.
fn warm_up_doubt(record: &Record) -> Option<String> {
    let warm_up = record.warm_up.filter(|warm_up| warm_up.created > 0)?;
    let counted = stage(record, Stage::Created)?.count;
    (counted == 0).then(|| {
        format!(
            "All {} messages were created within the warm-up of {} s, so there are no figures: let the run last longer \
             than that.",
            warm_up.created, warm_up.length_s
        )
    })
}

/// Source and sink: what a session of theirs had under way when it failed, nobody knows.
fn ends(record: &Record) -> impl Iterator<Item = &Party> {
    record.parties.iter().filter(|party| party.role != Role::Relay)
}

/// Says how many sessions of a party ended by a panic, if any did.
pub fn defect(party: &Party) -> Option<String> {
    let failed = party.failed_sessions.filter(|failed| *failed > 0)?;
    Some(format!(
        "{failed} session(s) of the {} ended by a defect of mailrun's own, and what they had under way is unaccounted \
         for: its standard error says where. Please report it.",
        party.name
    ))
}

fn lag_doubt(record: &Record) -> Option<String> {
    let lag = record.lag_ms?.p99;
    (lag > LAG_LIMIT_MS).then(|| {
        format!(
            "The source fell behind its schedule: 1 % of messages started {lag:.1} ms late or later though a session \
             was free (limit {LAG_LIMIT_MS} ms). Give it more --workers, a lower --rate, or an idle host."
        )
    })
}

/// Not the source's fault: the sessions were busy, which is the server's doing, or theirs for being so few.
fn wait_remark(record: &Record) -> Option<String> {
    let waited = stage(record, Stage::Created)?.latency_ms?.p99;
    (waited > LAG_LIMIT_MS).then(|| {
        format!(
            "1 % of messages waited {waited:.1} ms or longer for a free session: all {} were busy. The latencies count \
             from when messages were due, so the wait is in them; more --sessions would offer them to the server sooner.",
            record.workload.sessions
        )
    })
}

fn rate_doubt(record: &Record) -> Option<String> {
    let asked = record.workload.rate_per_s?;
    let created = stage(record, Stage::Created).filter(|row| row.duration_s > 0.0)?;
    // A Poisson count of n scatters by √n: two of these are chance.
    let chance = match record.workload.arrival {
        Arrival::Poisson => 2.0 / (created.count as f64).sqrt(),
        Arrival::Closed | Arrival::Constant => 0.0,
    };
    (created.rate_per_s < asked * (RATE_SHARE - chance)).then(|| {
        format!(
            "The source offered {:.0} messages a second of the {asked:.0} asked for. Give it more --sessions or a \
             lower --rate.",
            created.rate_per_s
        )
    })
}

fn busy_doubt(party: &Party, duration_s: f64) -> Option<String> {
    let workers = party.workers.filter(|_| party.role != Role::Relay && duration_s >= LEAST_BUSY_S)?;
    let share = (party.user_s? + party.sys_s?) / (duration_s * f64::from(workers));
    (share >= BUSY_SHARE).then(|| {
        format!(
            "The {} used {:.0} % of its {workers} worker(s)' time: it may have been the limit, and not the server. \
             Give it more --workers, or another host.",
            party.name,
            share * 100.0
        )
    })
}

/// What a reader must know besides.
fn remarks(record: &Record, between: Between) -> Vec<String> {
    let ledger = &record.ledger;
    let mut remarks = Vec::new();
    if ledger.created.is_some() && ledger.delivered.is_none() {
        remarks.push("Delivery is unknown: no mailrun sink was named at the far end (--sink http://ADDR).".to_owned());
    }
    if ledger.accepted == Some(0) {
        remarks.push("Nothing was accepted; see the errors.".to_owned());
    }
    if let Some(open) = ledger.in_flight.filter(|open| *open > 0 && ledger.delivered.is_some()) {
        remarks.push(format!("{open} {} were still in flight when the run ended.", unit_noun(record)));
    }
    if record.workload.arrival != Arrival::Closed {
        remarks.extend(wait_remark(record));
    }
    if let Some(untimed) = ledger.untimed.filter(|untimed| *untimed > 0) {
        remarks.push(format!(
            "{untimed} messages were dated by another host's clock and have no latency: the delivered latencies leave \
             them out."
        ));
    }
    remarks.extend(unheard_remark(record));
    remarks.extend(disturbances(record));
    if between == Between::Nothing && is_watched(ledger) {
        remarks.push("No server stood between: this is the ceiling of source and sink on this host.".to_owned());
    }
    remarks
}

/// What arrived is delivered, whatever the source heard; a reply that got lost is still worth a word.
fn unheard_remark(record: &Record) -> Option<String> {
    let LedgerRow { delivered, lost, accepted, .. } = record.ledger;
    let unheard = (delivered? + lost?).saturating_sub(accepted?);
    (unheard > 0).then(|| {
        format!(
            "{unheard} {} arrived though the source heard no 250 for them: a sender that tries again doubles them.",
            unit_noun(record)
        )
    })
}

fn stage(record: &Record, name: Stage) -> Option<&StageRow> {
    record.stages.iter().find(|row| row.name == name)
}

/// The ledger's unit in a reader's words.
fn unit_noun(record: &Record) -> &'static str {
    if record.workload.recipients > 1 { "copies (message × recipient)" } else { "messages" }
}
