//! Decides the verdict of a run. Collects the reasons for the verdict, sorts them by weight, and derives the outcome
//! from the weightiest reason.
//!
//! ```text
//! lost, duplicate, corrupt, rejected, failed … mail beyond what thresholds allow or the user requested   FAIL
//! generator, sink or host was the limit                                                                  INVALID
//! a threshold was missed                                                                                 FAIL
//! a required figure was not measured, or mail may be lost or still in the server's queue                 INCONCLUSIVE
//! none of these                                                                                          PASS
//! ```
//!
//! Each reason has a [`Cause`]. Causes are ordered as in this table, and the first cause of a run decides its outcome.
use crate::account::{Topology, fates_sum, is_open_loop, is_watched, sum_of_fates, unsent};
use crate::foreign_load::BusyHost;
use crate::reason::Reason;
use crate::record::{
    Arrival, BounceRow, Cause, Death, EndedRow, Ending, ErrorRow, LedgerRow, Ordered, Outcome, Party, Reception,
    Record, RewriteRow, Role, RuleRow, SeriesRow, ShardRow, StageRow, StallRow, ThresholdRow, UsageRow, Verdict,
    Watched,
};
use crate::stage::{Phase, Stage};
use crate::threshold::{self, Fate};
use crate::validity::{limits, warnings};
use mailrun_text::words::{counted, grouped, listed};
use std::time::Duration;

/// Limit, in milliseconds, for the delay that a source in an open loop causes itself when it begins messages late
/// although a session is free. If more than 1 % of the messages have a longer delay, the verdict says that the source
/// fell behind its schedule.
const LAG_LIMIT_MS: f64 = 10.0;
/// In an open loop, the source must offer at least this share of the requested rate. Otherwise, the verdict reports a
/// missed rate.
const MIN_RATE_SHARE: f64 = 0.95;
/// A source or sink that was busy for more than this share of its threads' time may itself have been the limit, instead
/// of the server.
const MAX_BUSY_SHARE: f64 = 0.90;
/// Minimum length of a load for which busy threads are reported. During a shorter load, a process is mostly busy with
/// starting and ending.
const MIN_BUSY_S: f64 = 1.0;
/// Minimum length of a run for which a missed rate is judged. In a shorter run, the first connections dominate the
/// rate, so a missed rate says nothing about the server.
const MIN_RATE_S: f64 = 1.0;
/// Remark on a run in which the source sent directly to the sink. A short report leaves out this remark, because the
/// user need not do anything about it.
pub const NO_SERVER: &str = "There was no server: this is the limit of source and sink on this host.";
/// Deliveries count as slower than acceptance if their rate is below this share of the rate of accepted messages.
const BEHIND_SHARE: f64 = 0.9;
/// Queues shorter than this are ignored, because any server may have this many messages under way.
const MIN_QUEUE: u64 = 20;
const MAX_NAMED_STALLS: usize = 3;

impl Cause {
    /// Returns the outcome of a run whose weightiest reason has this cause, or `None` if a reason with this cause does
    /// not affect the outcome.
    pub fn outcome(self) -> Option<Outcome> {
        match self {
            Self::Defect
            | Self::Unaccounted
            | Self::Died
            | Self::Lost
            | Self::Duplicates
            | Self::Corrupt
            | Self::Missing
            | Self::NeverCame
            | Self::ServerGone
            | Self::Failed
            | Self::InDoubt
            | Self::Rejected
            | Self::Bounced
            | Self::Rewritten
            | Self::Copied
            | Self::Expired
            | Self::NothingAccepted
            | Self::RateMissed
            | Self::ThresholdMissed => Some(Outcome::Fail),
            Self::RelayDefect
            | Self::RateNotOffered
            | Self::Late
            | Self::Clocks
            | Self::Busy
            | Self::Exhausted
            | Self::Stolen
            | Self::HostBusy
            | Self::NothingTimed => Some(Outcome::Invalid),
            Self::SinkGone | Self::ThresholdUnseen | Self::NotDelivered | Self::Unfinished | Self::Interrupted => {
                Some(Outcome::Inconclusive)
            }
            Self::Ordered | Self::Stalled | Self::Remark => None,
        }
    }

    /// True if this cause means that messages are missing, duplicated or changed, or that the counts cannot be trusted.
    /// `Verdict::closed` is then false.
    fn keeps_open(self) -> bool {
        matches!(
            self,
            Self::Defect
                | Self::Unaccounted
                | Self::Lost
                | Self::NotDelivered
                | Self::Duplicates
                | Self::Corrupt
                | Self::Missing
        )
    }

    fn makes_invalid(self) -> bool {
        self == Self::Defect || self.outcome() == Some(Outcome::Invalid)
    }
}

/// Facts about a run that [`judge`] needs and that the run's record does not contain.
#[derive(Clone, Copy, Debug)]
pub struct VerdictInputs {
    pub topology: Topology,
    /// Faults that the sink caused because the user asked for them, or `None` if the user asked for none.
    pub ordered: Option<Ordered>,
    /// Set if the run stopped waiting for missing mail because no mail had arrived for this long.
    pub quiet_timeout: Option<Duration>,
}

/// Derives the verdict on a run from the other parts of its record. A part of a load (`--shard`) gets no verdict of its
/// own, because only all parts together can be judged.
pub fn judge(record: &Record, circumstances: &VerdictInputs) -> Verdict {
    if let Some(shard) = &record.shard {
        return part_verdict(shard);
    }
    let mut reasons = account_reasons(record);
    reasons.extend(death_reasons(record));
    reasons.extend(fate_reasons(record, circumstances));
    reasons.extend(validity_reasons(record, circumstances.topology));
    let is_our_fault = behind_schedule(record).is_some()
        || reasons.iter().any(|reason| reason.cause.outcome() == Some(Outcome::Invalid));
    reasons.extend(rate_reason(record, circumstances.topology, is_our_fault));
    reasons.extend(threshold_reasons(record));
    // If our source, sink or endpoint ran out of memory and died, messages may fail or seem lost because of that. Do
    // not report such messages, because they say nothing about the server.
    if lacked_memory(record) {
        reasons.retain(|reason| !follows_from_death(reason.cause));
    }
    reasons.extend(ending_reasons(record));
    reasons.extend(notes(record, circumstances));
    reasons.extend(sink_notes(record, &reasons).into_iter().map(|text| Reason::new(Cause::Remark, text)));
    let ledger = &record.ledger;
    let counts = [ledger.lost, ledger.not_delivered, ledger.duplicates, ledger.corrupt];
    let is_closed = is_watched(ledger) && counts.iter().all(is_nothing);
    let mut verdict = decide(reasons, &pass_text(record));
    verdict.closed &= is_closed;
    verdict
}

fn part_verdict(shard: &ShardRow) -> Verdict {
    let reason = format!("Part {}/{}: mailrun merge judges all parts together.", shard.index, shard.count);
    Verdict { why: reason.clone(), reasons: vec![reason], causes: vec![Cause::Remark], ..Verdict::default() }
}

/// Makes a verdict from reasons. Sorts the reasons by cause, the weightiest first, and takes the outcome from the first
/// reason. `pass` is the verdict's text if no reason changes the outcome.
pub fn decide(mut reasons: Vec<Reason>, pass: &str) -> Verdict {
    reasons.sort_by_key(|reason| reason.cause);
    let outcome = reasons.first().and_then(|reason| reason.cause.outcome());
    let is_ordered = reasons.iter().any(|reason| reason.cause == Cause::Ordered);
    let pass = if is_ordered { format!("{pass} (as ordered)") } else { pass.to_owned() };
    let why = reasons.first().filter(|_| outcome.is_some()).map_or(pass, |reason| reason.text.clone());
    Verdict {
        outcome: Some(outcome.unwrap_or(Outcome::Pass)),
        why,
        closed: !reasons.iter().any(|reason| reason.cause.keeps_open()),
        valid: !reasons.iter().any(|reason| reason.cause.makes_invalid()),
        causes: reasons.iter().map(|reason| reason.cause).collect(),
        reasons: reasons.into_iter().map(|reason| reason.text).collect(),
    }
}

pub fn add_reason(verdict: &mut Verdict, reason: Reason, pass: &str) {
    let closed = verdict.closed && !reason.cause.keeps_open();
    *verdict = Verdict { closed, ..decide(take_reasons(verdict).chain([reason]).collect(), pass) };
}

/// Removes the reasons from a verdict, so that the caller can change them and decide again.
pub fn take_reasons(verdict: &mut Verdict) -> impl Iterator<Item = Reason> + use<> {
    let texts = std::mem::take(&mut verdict.reasons).into_iter();
    texts.zip(std::mem::take(&mut verdict.causes)).map(|(text, cause)| Reason { cause, text })
}

/// Excuses all reasons that have one of these causes, because the user asked for such faults: their cause becomes
/// [`Cause::Ordered`]. Adds `reason`, which tells the reader what the user asked for.
pub fn accept_ordered(verdict: &mut Verdict, causes: &[Cause], reason: Reason, pass: &str) {
    let closed = verdict.closed;
    let known = take_reasons(verdict).map(|known| match causes.contains(&known.cause) {
        true => Reason { cause: Cause::Ordered, ..known },
        false => known,
    });
    // Put `reason` first: the user should read which faults were requested before the problems that they excuse.
    // `decide` keeps this order, because all these reasons have the same cause.
    let reasons = std::iter::once(reason).chain(known).collect();
    *verdict = Verdict { closed, ..decide(reasons, pass) };
}

/// Describes how many messages passed, as the text of a verdict with the outcome PASS.
pub fn pass_text(record: &Record) -> String {
    let ledger = &record.ledger;
    let created = ledger.created.unwrap_or_default();
    let of = |count: u64| if count == created { String::new() } else { format!(" of {}", grouped(created)) };
    let amiss = [
        (ledger.rejected, "rejected"),
        (ledger.failed, "failed"),
        (ledger.in_doubt, "in doubt"),
        (ledger.bounced, "bounced"),
        (ledger.queued, "queued"),
        (ledger.expired, "given up"),
        (ledger.lost, "lost"),
        (ledger.not_delivered, "not delivered"),
    ];
    let list = |counts: &[(Option<u64>, &str)]| -> String {
        let some = counts.iter().filter_map(|(count, word)| Some((count.filter(|count| *count > 0)?, word)));
        some.map(|(count, word)| format!(", {} {word}", grouped(count))).collect()
    };
    let amiss = list(&amiss);
    let flawed = list(&[
        (ledger.duplicates, "duplicate"),
        (ledger.corrupt, "corrupt"),
        (ledger.rewritten, "rewritten"),
        (ledger.copied, "copied"),
    ]);
    match ledger.delivered {
        Some(delivered) if amiss.is_empty() => {
            format!("{}{} delivered, none lost{flawed}", grouped(delivered), of(delivered))
        }
        Some(delivered) => format!("{}{} delivered{amiss}{flawed}", grouped(delivered), of(delivered)),
        None => {
            let accepted = ledger.accepted.unwrap_or_default();
            format!("{}{} accepted{amiss} (delivery not watched)", grouped(accepted), of(accepted))
        }
    }
}

/// Reports counts of source and sink that contradict each other, and mail whose fate is unknown because a ledger had
/// reached its memory limit.
fn account_reasons(record: &Record) -> Vec<Reason> {
    let ledger = &record.ledger;
    let noun = unit_noun(record);
    let mut reasons = Vec::new();
    if ledger.created.is_some() && ledger.overflow.unwrap_or_default() == 0 && !fates_sum(ledger) {
        let hint = if record.workload.recipients > 1 { TAG_RECIPIENTS } else { "" };
        let text = format!(
            "The fates sum to {} and not to the {} {noun} created: source and sink contradict each other.{hint}",
            grouped(sum_of_fates(ledger)),
            grouped(ledger.created.unwrap_or_default())
        );
        reasons.push(Reason::new(Cause::Unaccounted, text));
    }
    if let Some(overflow) = ledger.overflow.filter(|overflow| *overflow > 0) {
        let text = format!(
            "{} {noun} did not fit into the ledger, so their fates are unknown: send fewer in one run.",
            grouped(overflow)
        );
        reasons.push(Reason::new(Cause::Unaccounted, text));
    }
    reasons
}

fn death_reasons(record: &Record) -> Vec<Reason> {
    let reason = |party: &Party| {
        let death = party.died.as_ref()?;
        Some(match party.role {
            // The relay is under test, so its death always counts against it, even if it ran out of memory.
            Role::Relay => Reason::new(Cause::Died, death_text(relay_noun(party), death)),
            role @ (Role::Source | Role::Sink) => death_reason(role.name(), death),
        })
    };
    record.parties.iter().filter_map(reason).collect()
}

/// Returns the word with which texts refer to a relay: "relay" for mailrun's own relay, and "server" for any other.
fn relay_noun(party: &Party) -> &'static str {
    if party.name.starts_with("mailrun") { Role::Relay.name() } else { "server" }
}

/// Returns the reason for the verdict that our own source, sink or endpoint died. If that process ran out of memory,
/// the run is invalid instead of failed, because the server is not to blame.
pub fn death_reason(name: &str, death: &Death) -> Reason {
    let cause = if death.out_of_memory { Cause::Exhausted } else { Cause::Died };
    Reason::new(cause, death_text(name, death))
}

/// Formats a death, for example `The relay died at 1.5 s: signal 9 (SIGKILL).`
pub fn death_text(name: &str, death: &Death) -> String {
    let message = death.said.trim_end_matches('.');
    let message = if message.is_empty() { String::new() } else { format!("; its last message: {message}") };
    let ended = if death.out_of_memory { "ran out of memory" } else { "died" };
    format!("The {name} {ended} at {:.1} s: {}{message}.", death.at_s, death.how)
}

fn lacked_memory(record: &Record) -> bool {
    let ours = record.parties.iter().filter(|party| party.role != Role::Relay);
    ours.filter_map(|party| party.died.as_ref()).any(|death| death.out_of_memory)
}

/// True if the death of our own source or sink can explain a reason with this cause, for example mail that seems lost.
/// Such a reason then says nothing about the server.
fn follows_from_death(cause: Cause) -> bool {
    matches!(
        cause,
        Cause::Unaccounted
            | Cause::Lost
            | Cause::Missing
            | Cause::NeverCame
            | Cause::ServerGone
            | Cause::Failed
            | Cause::InDoubt
            | Cause::NothingAccepted
    )
}

fn has_death(record: &Record) -> bool {
    record.parties.iter().any(|party| party.died.is_some())
}

/// Reports lost, duplicate, corrupt, rejected, failed and expired mail. Leaves out fates for which the user set a
/// threshold, because [`threshold_reasons`] judges these. Faults that the user requested become [`Cause::Ordered`].
fn fate_reasons(record: &Record, circumstances: &VerdictInputs) -> Vec<Reason> {
    let bounds = OrderedBounds::of(record, circumstances);
    let fate_reasons = Fate::ALL.into_iter().filter_map(|fate| {
        let count = fate.count(&record.ledger).unwrap_or_default();
        match () {
            // If the user set a threshold on this fate, such as lost mail, add no reason here. `threshold_reasons` adds
            // a reason if the threshold is missed.
            () if has_threshold(record, fate) => None,
            () if count == 0 && bounds.min(fate) == 0 => None,
            () if !fate.is_fault() => None,
            () if bounds.contain(fate, count) => {
                Some(Reason::new(Cause::Ordered, format!("As ordered, {}: {}.", fate.name(), grouped(count))))
            }
            () if matches!(fate, Fate::Failed | Fate::InDoubt) && gone_server(record).is_some() => None,
            // All these messages failed because the source ran out of descriptors or ports. `validity::limits` reports
            // this.
            () if fate == Fate::Failed && count <= refused_by_ourselves(record) => None,
            () => Some(Reason::new(fate.cause(), fate_text(record, fate, count, &bounds))),
        }
    });
    let mut reasons: Vec<Reason> = fate_reasons.collect();
    // A threshold that allows failed connections is meant for occasional failures. So always report a server that has
    // disappeared, even if the threshold is met.
    if let Some(stall) = gone_server(record) {
        reasons.push(Reason::new(Cause::ServerGone, server_gone_text(record, stall)));
    }
    reasons.extend(expired_reason(record, circumstances));
    if record.ledger.accepted == Some(0) && !bounds.has_any() {
        reasons.push(Reason::new(Cause::NothingAccepted, "Nothing was accepted; see the errors."));
    }
    reasons
}

/// Returns the stall at the end of the run if the server stopped answering for good. Returns `None` if a process died
/// or the source ran out of descriptors or ports, because this explains the failed connections.
fn gone_server(record: &Record) -> Option<&StallRow> {
    final_stall(record).filter(|_| !has_death(record) && refused_by_ourselves(record) == 0)
}

/// Returns the number of recipients whose connection failed because the source itself ran out of descriptors or ports.
fn refused_by_ourselves(record: &Record) -> u64 {
    let of_source = |party: &str| record.parties.iter().any(|known| known.role == Role::Source && known.name == party);
    let times = record.exhausted.iter().filter(|row| of_source(&row.party)).map(|row| row.count);
    times.fold(0, u64::saturating_add).saturating_mul(u64::from(record.workload.recipients.max(1)))
}

fn expired_reason(record: &Record, circumstances: &VerdictInputs) -> Option<Reason> {
    let expired = record.ledger.expired.filter(|expired| *expired > 0)?;
    let is_ordered = circumstances.ordered.is_some_and(|ordered| ordered.replies.max(ordered.cuts) > 0);
    let text = format!("The relay gave up on {} and notified the sender.", units(record, expired));
    Some(Reason::new(if is_ordered { Cause::Ordered } else { Cause::Expired }, text))
}

/// Minimum and maximum count of each fate, such as lost, that the faults requested by the user can explain.
struct OrderedBounds {
    ordered: Option<Ordered>,
    topology: Topology,
    /// Fate of the mail that the sink was told to drop: lost or, if the server's queue cannot be read, not delivered.
    missing: Fate,
    quiet_timeout: Option<Duration>,
    /// Maximum number of recipients whose mail a single reply or connection can affect.
    each: u64,
    /// Number of recipients whose mail counts as neither delivered nor lost, but for example as rejected or in doubt.
    /// If the sink dropped or duplicated such mail on request, the mail does not count as lost or duplicate. `min`
    /// therefore subtracts `slack` from the number of requested faults.
    slack: u64,
}

impl OrderedBounds {
    fn of(record: &Record, circumstances: &VerdictInputs) -> Self {
        let ledger = &record.ledger;
        let LedgerRow { rejected, failed, in_doubt, bounced, queued, expired, in_flight, .. } = *ledger;
        let others = [rejected, failed, in_doubt, bounced, queued, expired, in_flight];
        let is_stream = record.workload.pipelining == crate::record::Pipelining::Stream;
        Self {
            ordered: circumstances.ordered,
            topology: circumstances.topology,
            quiet_timeout: circumstances.quiet_timeout,
            missing: if ledger.lost.is_none() { Fate::NotDelivered } else { Fate::Lost },
            // A streaming source begins a message before it has the reply to the previous message. If the connection is
            // cut, both messages can fail.
            each: u64::from(record.workload.recipients.max(1)) * if is_stream { 2 } else { 1 },
            // Records of other programs may contain any numbers, so the sum must not overflow.
            slack: others.into_iter().flatten().fold(0, u64::saturating_add),
        }
    }

    /// True if the faults that the user asked for can explain that this fate occurred `count` times.
    fn contain(&self, fate: Fate, count: u64) -> bool {
        (self.min(fate)..=self.max(fate)).contains(&count)
    }

    /// Returns the minimum count of this fate that must result from the faults that the sink caused on request.
    fn min(&self, fate: Fate) -> u64 {
        let Some(ordered) = self.ordered else { return 0 };
        match fate {
            Fate::Lost | Fate::NotDelivered if fate == self.missing => ordered.lost.saturating_sub(self.slack),
            Fate::Lost | Fate::NotDelivered => 0,
            Fate::Duplicates => ordered.duplicates.saturating_sub(self.slack),
            Fate::Corrupt => ordered.corrupt,
            // A requested fault of the sink need not make a message fail. For example, the sender may have tried again
            // with success, or the sink may have refused a command that belongs to no message.
            Fate::Rejected | Fate::Failed | Fate::InDoubt | Fate::Bounced | Fate::Rewritten | Fate::Copied => 0,
        }
    }

    fn max(&self, fate: Fate) -> u64 {
        let Some(ordered) = self.ordered else { return 0 };
        match fate {
            Fate::Lost | Fate::NotDelivered if fate == self.missing => ordered.lost,
            Fate::Lost | Fate::NotDelivered => 0,
            // `unanswered` messages arrived, but the sink did not answer 250. The sender may send them again, so they
            // may arrive twice.
            Fate::Duplicates => ordered.duplicates.saturating_add(ordered.unanswered),
            Fate::Corrupt => ordered.corrupt,
            // With a server in between, the source does not talk to the sink, so the sink cannot make messages of the
            // source fail.
            Fate::Rejected | Fate::Failed | Fate::InDoubt if self.topology == Topology::Server => 0,
            Fate::Rejected => ordered.replies.saturating_add(ordered.cuts).saturating_mul(self.each),
            Fate::Failed | Fate::InDoubt => ordered.cuts.saturating_mul(self.each),
            // Without a server in between, nobody sends notifications, so no message can bounce.
            Fate::Bounced if self.topology == Topology::Direct => 0,
            Fate::Bounced => ordered.replies.saturating_add(ordered.cuts).saturating_mul(self.each),
            Fate::Rewritten | Fate::Copied => 0,
        }
    }

    fn has_any(&self) -> bool {
        self.ordered.is_some_and(|ordered| ordered != Ordered::default())
    }
}

const NOTHING_CAME: &str =
    " The sink has seen nothing of this run: does the server relay to it, or does it hold or discard this mail?";
/// Advice for a run with rewritten recipients. The ledger identifies a recipient by its address, so a rewritten address
/// looks like another recipient, unless --tag-recipients numbers the recipients.
const TAG_RECIPIENTS: &str =
    " If the server rewrites recipients, add --tag-recipients, which tells them apart by a number.";
const MAX_NAMED_PAIRS: usize = 3;
const MAX_NAMED_RULES: usize = 4;

fn fate_text(record: &Record, fate: Fate, count: u64, bounds: &OrderedBounds) -> String {
    let noun = unit_noun(record);
    let amount = grouped(count);
    let of_created = of_created(record);
    let were = if count == 1 { "was" } else { "were" };
    let faults = if bounds.has_any() { String::new() } else { faults_behind(record, fate) };
    let text = match fate {
        Fate::Lost => format!("Lost: {amount}{of_created} {noun} {were} accepted and never arrived{faults}."),
        Fate::NotDelivered => not_delivered_text(record, count, bounds.quiet_timeout, &faults),
        Fate::Duplicates => {
            // Without ORCPT, the sink computes a recipient's number from the address. A rewritten address may yield the
            // number of another recipient. This recipient then seems to get the message twice.
            let is_doubtful = record.workload.recipients > 1
                && record.ledger.rewritten.is_some_and(|count| count > 0)
                && record.rewrites.is_empty();
            let hint = if is_doubtful { TAG_RECIPIENTS } else { "" };
            format!("Duplicates: {amount}{of_created} {noun} arrived more than once{faults}.{hint}")
        }
        Fate::Corrupt => format!("Corrupt: {} arrived with a changed body{faults}.", counted(count, "message")),
        Fate::Rejected => {
            let error = first_said(record, |row| row.code > 0);
            format!("{} rejected {amount}{of_created} {noun}{error}{faults}.", server_name(record))
        }
        Fate::Failed => {
            let error = first_said(record, |row| row.code == 0);
            format!("{amount}{of_created} {noun} failed{error}{faults}.")
        }
        Fate::InDoubt => {
            let error = first_said(record, |row| row.code == 0);
            format!(
                "In doubt: the connection of {amount}{of_created} {noun} broke after the last byte and before the reply, and \
                 the server may have them{error}{faults}."
            )
        }
        Fate::Bounced => {
            let reason = record.bounces.first().map_or_else(String::new, |row| format!(": {}", bounce_reason(row)));
            format!(
                "Bounced: {amount}{of_created} {noun} {were} given up by the server, which notified the sender{reason}{faults}."
            )
        }
        Fate::Rewritten => rewritten_text(record, count),
        Fate::Copied => copied_text(record, count),
    };
    let min = bounds.min(fate);
    let max = bounds.max(fate);
    match max {
        0 => text,
        _ if count > max => format!("{text} At most {} of them were asked for.", grouped(max)),
        _ => format!("{text} At least {} were asked for.", grouped(min)),
    }
}

/// Describes which recipients a server rewrote, for example
/// `100 recipients were rewritten: to@a.example → other@b.example.`
fn rewritten_text(record: &Record, count: u64) -> String {
    let pairs = pairs_text(record.rewrites.iter().filter(|row| row.original.is_some()), count);
    // Advise the user to send both ORCPT and NOTIFY, because Exim drops ORCPT without NOTIFY.
    let asks = |parameter| record.workload.dsn.as_ref().is_some_and(|parameters| parameters.contains(parameter));
    let remedy = match asks("ORCPT") && asks("NOTIFY") {
        true => "",
        false => ". It may do so if the source sends ORCPT (mailrun source --dsn-orcpt --dsn-notify failure)",
    };
    let untold = || format!(". {} does not tell to what{remedy}", server_name(record));
    let pairs = pairs.map_or_else(untold, |pairs| format!(": {pairs}"));
    let were = if count == 1 { "was" } else { "were" };
    format!("{} {were} rewritten{pairs}.", counted(count, "recipient"))
}

/// Describes who got copies in addition to the recipients, for example
/// `100 copies arrived for addresses that were no recipients: audit@b.example.`
fn copied_text(record: &Record, count: u64) -> String {
    let added: u64 = record.rewrites.iter().filter(|row| row.original.is_none()).map(|row| row.count).sum();
    // List the addresses that the server added. If they do not account for all `count` copies, the server must also
    // have rewritten a recipient to several addresses. Then list rewritten recipients as well.
    let pairs = record.rewrites.iter().filter(|row| row.original.is_none() || added < count);
    let pairs = pairs_text(pairs, count).map_or_else(String::new, |pairs| format!(": {pairs}"));
    match count {
        1 => format!("1 copy arrived for an address that was no recipient{pairs}."),
        _ => format!("{} copies arrived for addresses that were no recipients{pairs}.", grouped(count)),
    }
}

/// Lists the most frequent pairs of addresses. A pair that accounts for all `count` arrivals is listed without a
/// number. Returns `None` if there is no pair to list.
fn pairs_text<'r>(rows: impl Iterator<Item = &'r RewriteRow>, count: u64) -> Option<String> {
    let rows: Vec<&RewriteRow> = rows.filter(|row| !row.address.is_empty()).collect();
    let text = |row: &&RewriteRow| {
        let number = if row.count == count { String::new() } else { format!(" ({})", grouped(row.count)) };
        match &row.original {
            Some(original) => format!("{original} → {}{number}", row.address),
            None => format!("{}{number}", row.address),
        }
    };
    let mut pairs: Vec<String> = rows.iter().take(MAX_NAMED_PAIRS).map(text).collect();
    let more = rows.len().saturating_sub(MAX_NAMED_PAIRS);
    if more > 0 {
        pairs.push(counted(more as u64, "other pair"));
    }
    (!pairs.is_empty()).then(|| pairs.join(", "))
}

/// Reports rewritten and copied recipients as remarks. A server may be meant to do both, so they count against it only
/// if a threshold says so.
fn rewrite_notes(record: &Record) -> impl Iterator<Item = String> {
    let fates = [(Fate::Rewritten, rewritten_text as fn(&Record, u64) -> String), (Fate::Copied, copied_text)];
    fates.into_iter().filter_map(|(fate, text)| {
        let count = fate.count(&record.ledger).filter(|count| *count > 0)?;
        Some(text(record, count))
    })
}

/// Names the faults that the user requested from the sink if they can have caused this fate, for example ` (the sink
/// was told to: drop 0.02)`.
fn faults_behind(record: &Record, fate: Fate) -> String {
    let number = |done: &Ordered| match fate {
        Fate::Lost | Fate::NotDelivered => done.lost,
        Fate::Duplicates => done.duplicates.saturating_add(done.unanswered),
        Fate::Corrupt => done.corrupt,
        Fate::Rejected => done.replies,
        Fate::Failed | Fate::InDoubt => done.cuts,
        Fate::Bounced => done.replies.saturating_add(done.cuts),
        Fate::Rewritten | Fate::Copied => 0,
    };
    let sinks = record.parties.iter().filter(|party| party.role == Role::Sink);
    let at_work = sinks.filter(|party| party.ordered.as_ref().is_some_and(|done| number(done) > 0));
    // A record contains a rule in the form `'.: drop 0.02' (15 times)`. Show only its fault, `drop 0.02`.
    let rule = |text: &String| {
        let rule = text.rsplit_once("' (").map_or(text.as_str(), |(rule, _)| rule).trim_matches('\'');
        rule.strip_prefix(".: ").unwrap_or(rule).to_owned()
    };
    if let Some(rules) = rules_text(at_work.clone()) {
        return format!(" (the sink was told to: {rules})");
    }
    let rules: Vec<String> = at_work.flat_map(|party| &party.faults).map(rule).collect();
    if rules.is_empty() { String::new() } else { format!(" (the sink was told to: {})", rules.join(", ")) }
}

/// Reports mail that a server accepted and that did not arrive, if the server's queue cannot be read. The server may
/// still deliver this mail later.
fn not_delivered_text(record: &Record, count: u64, quiet_timeout: Option<Duration>, faults: &str) -> String {
    let within = quiet_timeout.map(|time| format!(" within {} s", time.as_secs_f64()));
    let were = if count == 1 { "was" } else { "were" };
    let explanation = missing_explanation(record, count);
    let server = known_server(record);
    let shows = server.map_or_else(String::new, |(_, command)| format!(" Look into the queue with {command}."));
    // Suggest a longer --lost-after only if the run ended because no mail arrived for that time. If the run was stopped
    // for another reason, a longer time would not help.
    let waits = if quiet_timeout.is_some() { " A longer --lost-after waits for retries." } else { "" };
    let owner = server.map_or("the server", |(name, _)| name);
    format!(
        "{}{} {} {were} not delivered{}: lost or still in {owner}'s queue{faults}.{explanation}{shows}{waits}",
        grouped(count),
        of_created(record),
        unit_noun(record),
        within.unwrap_or_default()
    )
}

/// Explains why `count` deliveries may be missing, if the sink saw a sign of the cause, for example mail without a
/// trace. Otherwise, returns an empty text.
fn missing_explanation(record: &Record, count: u64) -> String {
    if let Some(untraced) = untraced_text(record, count) {
        return format!(" {untraced}");
    }
    if let Some(hidden) = receptions(record).find_map(|sink| hidden_text(sink.mailboxes.as_ref()?)) {
        return format!(" {hidden}");
    }
    // If the sink got any mail of the run, the server delivers to the right place, so do not blame its configuration.
    let has_seen = [record.ledger.bounced, record.ledger.copied].iter().flatten().any(|count| *count > 0);
    if record.ledger.delivered != Some(0) || has_seen {
        return String::new();
    }
    let seen: Vec<&Reception> = receptions(record).collect();
    if let Some(watched) = seen.iter().find_map(|sink| sink.mailboxes.as_ref()) {
        let none = match watched.count {
            1 => "The mailbox has no message".to_owned(),
            count => format!("None of the {} mailboxes has a message", grouped(count)),
        };
        return format!(" {none} of this run: does the server deliver there?");
    }
    let connections = seen.iter().map(|sink| sink.connections).fold(0, u64::saturating_add);
    if connections == 0 {
        return NOTHING_CAME.to_owned();
    }
    let had = format!("The sink had {} and took no message of this run", counted(connections, "connection"));
    if let Some(rules) = rules_text(sinks(record)) {
        return format!(" {had}, by its rules: {rules}.");
    }
    let mut ended: Vec<EndedRow> = seen.iter().flat_map(|sink| &sink.ended).copied().collect();
    ended.sort_by_key(|row| std::cmp::Reverse(row.count));
    let ended: Vec<String> =
        ended.iter().map(|row| format!("{} ended {}", grouped(row.count), last_command(row.phase))).collect();
    let ended = if ended.is_empty() { "none has ended".to_owned() } else { listed(&ended) };
    format!(" {had}: {ended}.")
}

/// Describes mailboxes that may hold missing mail, because they were renumbered or were not open at the end.
fn hidden_text(watched: &Watched) -> Option<String> {
    let whose = |count: u64, what: &str| {
        let (subject, verb) = match (watched.count, count) {
            (1, _) => ("The mailbox".to_owned(), "was"),
            (all, count) => (
                format!("{} of the {} mailboxes", grouped(count), grouped(all)),
                if count == 1 { "was" } else { "were" },
            ),
        };
        format!("{subject} {verb} {what}, and missing mail may be there.")
    };
    match watched {
        Watched { closed: 1.., .. } => Some(whose(watched.closed, "not open at the end")),
        Watched { renumbered: 1.., .. } => {
            Some(whose(watched.renumbered.min(watched.count), "numbered anew during the run (UIDVALIDITY)"))
        }
        _ => None,
    }
}

fn last_command(phase: Phase) -> &'static str {
    match phase {
        Phase::Connect => "before the greeting",
        Phase::Banner => "after the greeting",
        Phase::Ehlo => "after EHLO",
        Phase::Tls => "at the TLS handshake",
        Phase::Auth => "at AUTH",
        Phase::Mail => "at MAIL",
        Phase::Rcpt => "at RCPT",
        Phase::Data | Phase::Body => "at DATA",
        Phase::Reply => "after a message",
        Phase::Quit => "at QUIT",
    }
}

fn sinks(record: &Record) -> impl Iterator<Item = &Party> + Clone {
    record.parties.iter().filter(|party| party.role == Role::Sink)
}

fn receptions(record: &Record) -> impl Iterator<Item = &Reception> {
    sinks(record).filter_map(|party| party.reception.as_ref())
}

/// Lists the sink's rules that were applied, the most frequent first, for example `rcpt: greylist 4s (100 times)`.
/// Returns `None` if no rule was applied.
fn rules_text<'r>(sinks: impl Iterator<Item = &'r Party>) -> Option<String> {
    let mut rules: Vec<&RuleRow> =
        sinks.filter_map(|party| party.reception.as_ref()).flat_map(|sink| &sink.rules).collect();
    rules.sort_by_key(|rule| std::cmp::Reverse(rule.count));
    let more = rules.len().saturating_sub(MAX_NAMED_RULES);
    let text = |rule: &&RuleRow| {
        let action = rule.rule.strip_prefix(".: ").unwrap_or(&rule.rule);
        format!("{action} ({})", counted(rule.count, "time"))
    };
    let mut rules: Vec<String> = rules.iter().take(MAX_NAMED_RULES).map(text).collect();
    if more > 0 {
        rules.push(counted(more as u64, "other rule"));
    }
    (!rules.is_empty()).then(|| rules.join(", "))
}

/// Describes mail that reached the sink without a trace field (`X-Mailrun`). If at least as many such messages arrived
/// as are `missing`, the server has probably removed the field from the missing messages.
fn untraced_text(record: &Record, missing: u64) -> Option<String> {
    let untraced = receptions(record).map(|sink| sink.untraced).fold(0, u64::saturating_add);
    let first = receptions(record).find(|sink| sink.untraced > 0)?;
    let fields = [("From", &first.untraced_from), ("Subject", &first.untraced_subject)];
    let fields: Vec<String> =
        fields.into_iter().filter_map(|(name, value)| Some(format!("{name}: {}", value.as_ref()?))).collect();
    let fields = match (fields.as_slice(), untraced) {
        ([], _) => String::new(),
        (_, 1) => format!(" ({})", fields.join(", ")),
        _ => format!(" (the first has {})", fields.join(", ")),
    };
    let question = if missing > 0 && untraced >= missing { ": does the server remove X-Mailrun?" } else { "." };
    Some(format!("{} without a trace arrived{fields}{question}", counted(untraced, "message")))
}

/// Describes which of its rules the sink applied, and which mail arrived without a trace field (`X-Mailrun`). Leaves
/// out sentences that one of `reasons` already contains.
fn sink_notes(record: &Record, reasons: &[Reason]) -> Vec<String> {
    let is_new = |text: &String| !reasons.iter().any(|reason| reason.text.contains(text.as_str()));
    let rules = rules_text(sinks(record)).filter(is_new).map(|rules| format!("The sink acted by its rules: {rules}."));
    let ledger = &record.ledger;
    let missing = [ledger.lost, ledger.not_delivered].into_iter().flatten().fold(0, u64::saturating_add);
    let untraced = untraced_text(record, missing).filter(is_new);
    rules.into_iter().chain(untraced).collect()
}

/// Returns the name of the server and the command that shows its queue, if the server's greeting contains a known name.
fn known_server(record: &Record) -> Option<(&'static str, &'static str)> {
    let banner = record.server.as_ref()?.banner.to_ascii_lowercase();
    let known = [
        ("Postfix", "`postqueue -p`"),
        ("Exim", "`exim -bp`"),
        ("OpenSMTPD", "`smtpctl show queue`"),
        ("Sendmail", "`mailq`"),
    ];
    known.into_iter().find(|(name, _)| banner.contains(&name.to_ascii_lowercase()))
}

/// Returns the server's name for the beginning of a sentence. If the server's greeting contains no known name, returns
/// "The server".
fn server_name(record: &Record) -> &'static str {
    known_server(record).map_or("The server", |(name, _)| name)
}

fn of_created(record: &Record) -> String {
    record.ledger.created.map_or_else(String::new, |created| format!(" of {}", grouped(created)))
}

/// Quotes the most frequent error for which `is_meant` returns true, for example ` (at data: 452 4.3.1 Insufficient
/// system storage)`. Returns an empty text if there is no such error.
fn first_said(record: &Record, is_meant: impl Fn(&ErrorRow) -> bool) -> String {
    let row = record.errors.iter().filter(|row| is_meant(row)).max_by_key(|row| row.count);
    row.map_or_else(String::new, |row| {
        let code = if row.code == 0 { String::new() } else { format!("{} ", row.code) };
        format!(" (at {}: {code}{})", row.phase.name(), row.text)
    })
}

/// Returns the reply that explains a bounce, for example `550 5.1.1 No such user`, or its status code if there was no
/// reply.
fn bounce_reason(row: &BounceRow) -> &str {
    let reason = if row.text.is_empty() { &row.status } else { &row.text };
    reason.trim_end_matches('.')
}

/// Returns the last period in which no message was accepted, if it shows that the server is gone. This is so if the
/// period lasted until the end of the load and connections failed in it. If the server rejected mail in this period, it
/// was still running, so the result is `None`.
fn final_stall(record: &Record) -> Option<&StallRow> {
    let accepting = record.stalls.iter().rfind(|stall| stall.stage == Stage::Accepted);
    accepting.filter(|stall| stall.to_the_end && stall.failed > 0 && stall.rejected == 0)
}

fn server_gone_text(record: &Record, stall: &StallRow) -> String {
    let failed = record.ledger.failed.unwrap_or_default();
    let error = first_said(record, |row| row.code == 0);
    let noun = unit_noun(record);
    let time = format!("at {:.1} s of {:.1} s", stall.from_s, stall.to_s);
    let in_doubt = record.ledger.in_doubt.filter(|count| *count > 0);
    let in_doubt = in_doubt.map_or_else(String::new, |count| format!(", {} in doubt", grouped(count)));
    let ended = if record.ending == Some(Ending::GaveUp) { "; the run was given up (--give-up)" } else { "" };
    let overflows = record.surroundings.as_ref().and_then(|around| around.listen_overflows).unwrap_or_default();
    let full = match overflows {
        0 => String::new(),
        times => format!("; listen queues of this host were full {}", counted(times, "time")),
    };
    format!(
        "{} stopped answering {time}: {}{} {noun} failed{in_doubt}{error}{full}{ended}.",
        server_name(record),
        grouped(failed),
        of_created(record)
    )
}

/// Finds reasons why the figures may not describe the server.
fn validity_reasons(record: &Record, between: Topology) -> Vec<Reason> {
    let reason = |cause: Cause| move |text: String| Reason::new(cause, text);
    let mut reasons: Vec<Reason> = warm_up_text(record).into_iter().map(reason(Cause::NothingTimed)).collect();
    reasons.extend(record.parties.iter().filter_map(|party| {
        let cause = if party.role == Role::Relay { Cause::RelayDefect } else { Cause::Defect };
        Some(Reason::new(cause, defect_text(party)?))
    }));
    reasons.extend(lag_reason(record, behind_schedule(record)));
    if between == Topology::Server {
        let busy = record.parties.iter().filter_map(|party| busy_text(record, party));
        reasons.extend(busy.map(reason(Cause::Busy)));
    }
    reasons.extend(limits(record));
    reasons
}

/// Reports that all messages were created during the warm-up, so that no message is left for the figures.
fn warm_up_text(record: &Record) -> Option<String> {
    let warm_up = record.warm_up.filter(|warm_up| warm_up.created > 0)?;
    let counted = record.stage(Stage::Created)?.count;
    (counted == 0).then(|| {
        format!(
            "The load of {} was created within the warm-up of {} s, so there are no figures: use a longer run.",
            self::counted(warm_up.created, "message"),
            warm_up.length_s
        )
    })
}

/// Reports sessions that ended in a panic, for example in the source. The fates of their messages are unknown.
pub fn defect_text(party: &Party) -> Option<String> {
    let failed = party.failed_sessions.filter(|failed| *failed > 0)?;
    Some(format!(
        "{} of the {} ended by a defect of mailrun itself, and the fates of their messages are unknown. Its standard \
         error says where: please report it.",
        counted(failed, "session"),
        party.name
    ))
}

/// Reports that the source fell behind its schedule in an open loop although a session was free. The measured times
/// include this delay, so they are longer than the server's own times.
pub fn behind_schedule(record: &Record) -> Option<String> {
    let lag = record.lag_ms.filter(|_| is_open_loop(record))?.p99;
    (lag > LAG_LIMIT_MS && !waits_outweigh(record, lag)).then(|| {
        format!(
            "The source fell behind its schedule: it sent 1 % of messages over {lag:.1} ms late (limit {LAG_LIMIT_MS} ms). \
             Use a lower --rate, an idle host, or more --workers (mailrun source)."
        )
    })
}

/// True if the 99th percentile of the messages' whole wait is more than twice `lag_ms`, the 99th percentile of the
/// delay that the source itself caused. Messages then waited mostly for a free session. This is not the source's fault,
/// because sessions are busy only while the server works.
fn waits_outweigh(record: &Record, lag_ms: f64) -> bool {
    record.stage(Stage::Created).and_then(|row| row.latency_ms).is_some_and(|waited| waited.p99 > 2.0 * lag_ms)
}

/// Judges the delay that the source itself caused. If this delay may have decided whether a threshold was met, the run
/// is invalid, unless the server certainly missed another threshold. In all other cases, the sentence `behind`, which
/// is the result of [`behind_schedule`], becomes a remark.
pub fn lag_reason(record: &Record, behind: Option<String>) -> Option<Reason> {
    let is_undecided = |row: &&ThresholdRow| threshold::is_undecided_by_lag(record, row, LAG_LIMIT_MS);
    let host = BusyHost::of(record);
    let is_certainly_missed =
        |row: &ThresholdRow| row.missed && !is_undecided(&row) && !is_explained(record, row, host.as_ref());
    let rows = &record.thresholds;
    let undecided =
        rows.iter().find(is_undecided).filter(|_| is_open_loop(record) && !rows.iter().any(is_certainly_missed));
    match undecided {
        Some(row) => {
            let lag = record.lag_ms.unwrap_or_default();
            let value = threshold::format_row(row);
            let text = format!(
                "The source itself was late by {:.1} ms or more with 1 % of messages (at most {:.1} ms), which may have \
                 decided {}; it was {value}. Use an idle host, a lower --rate, or more --workers (mailrun source).",
                lag.p99, lag.max, row.expression
            );
            Some(Reason::new(Cause::Late, text))
        }
        None => behind.map(|text| Reason::new(Cause::Remark, text)),
    }
}

fn busy_text(record: &Record, party: &Party) -> Option<String> {
    let share = busy_share(record, party).filter(|_| party.role != Role::Relay)?;
    Some(format!(
        "The {} used {:.0} % of the time of its {}: it may have been the limit, and not the server. Use more --workers \
         (mailrun {}), or another host.",
        party.name,
        share * 100.0,
        counted(u64::from(party.workers?), "worker"),
        if party.role == Role::Sink { "sink" } else { "source" }
    ))
}

/// Returns the share of the load's time in which the workers of a source or sink were busy. Returns `None` if the share
/// is too small for the workers to have been the limit, or if the load was too short to judge it.
pub fn busy_share(record: &Record, party: &Party) -> Option<f64> {
    let offered_s = record.offered_s.unwrap_or(record.duration_s);
    let workers = party.workers.filter(|_| offered_s >= MIN_BUSY_S)?;
    let warm_up_s = record.warm_up.map_or(0.0, |warm_up| warm_up.length_s);
    // The processor time of the whole process includes the warm-up, so divide it by the length of warm-up and load.
    let of_process = || Some(party.work_s()? / (warm_up_s + offered_s));
    let cores = cores_from(record, party, warm_up_s, warm_up_s + offered_s).or_else(of_process)?;
    let share = cores / f64::from(workers);
    (share >= MAX_BUSY_SHARE).then_some(share)
}

/// Returns the average number of processors that a source or sink used between two times of the run, counting only
/// whole seconds. Returns `None` if no such second was observed, or if the workers busy-polled, because their idle
/// polling is known only for the whole run and cannot be subtracted from each second.
fn cores_from(record: &Record, party: &Party, begin_s: f64, end_s: f64) -> Option<f64> {
    let usage = record.usage.iter().find(|usage| usage.party == party.name && party.busy_poll.is_none())?;
    let is_within = |row: &&UsageRow| row.second as f64 >= begin_s && row.second as f64 + 1.0 <= end_s;
    let cores: Vec<f64> = usage.seconds.iter().filter(is_within).map(|row| row.cores).collect();
    (!cores.is_empty()).then(|| cores.iter().sum::<f64>() / cores.len() as f64)
}

/// A requested rate that was not offered, and whether the server or the load generator is to blame.
pub enum MissedRate {
    /// Neither a slow server nor a slow load generator caused the miss. For example, the load was too short to judge a
    /// rate, or other programs kept the host busy.
    Excused(Reason),
    /// The server or the load generator was too slow. The caller must add to the text which of them it was.
    Missed(String),
}

/// Compares the offered rate with the requested rate. Returns `None` if enough was offered, if the run had a closed
/// loop, or if it ended early. The text in the result starts with `party_offered`, for example `The source offered`.
pub fn missed_rate(record: &Record, party_offered: &str) -> Option<MissedRate> {
    let requested = record.workload.rate_per_s.filter(|_| is_open_loop(record))?;
    let created = record.stage(Stage::Created)?;
    let offered_s = record.offered_s.filter(|offered_s| *offered_s > 0.0);
    // Compute the rate from `offered_s`, the length of the load. The rate of the stage `created` counts until the last
    // message was created, so it is too low if the source created this message late.
    let offered = offered_s.map(|offered_s| created.count as f64 / offered_s).or(created.rate_per_s)?;
    // A Poisson count of n has a standard deviation of √n, so a deviation of up to 2√n may be chance.
    let tolerance = match record.workload.arrival {
        Arrival::Poisson => 2.0 / (created.count.max(1) as f64).sqrt(),
        Arrival::Closed | Arrival::Constant | Arrival::Market => 0.0,
    };
    if offered >= requested * (MIN_RATE_SHARE - tolerance)
        || record.ending.is_some_and(|ending| ending != Ending::Complete)
    {
        return None;
    }
    let shares =
        format!("{}/s of the {}/s asked for", grouped(offered.round() as u64), grouped(requested.round() as u64));
    let missed = format!("{party_offered} {shares}");
    let host = BusyHost::of(record);
    if let Some(host) = host.filter(|host| host.rate_without(offered) >= requested * (MIN_RATE_SHARE - tolerance)) {
        let text =
            format!("{}. {missed}, and these programs explain that. Repeat the run on an idle host.", host.text());
        return Some(MissedRate::Excused(Reason::new(Cause::HostBusy, text)));
    }
    if let Some(sources) = sources_apart(record, created, requested) {
        let text = format!(
            "Only {shares} were offered, although each message was sent when it was due: the {sources} sources did not \
             offer it at the same time. Start them together."
        );
        return Some(MissedRate::Excused(Reason::new(Cause::RateNotOffered, text)));
    }
    if created.duration_s >= MIN_RATE_S {
        return Some(MissedRate::Missed(missed));
    }
    let text =
        format!("{missed}, in {:.2} s: too short a time to judge a rate. Send more messages.", created.duration_s);
    Some(MissedRate::Excused(Reason::new(Cause::RateNotOffered, text)))
}

/// Returns the number of sources if the rate was missed only because the sources started at different times. The load
/// then lasted longer, although every message was sent when it was due. Returns `None` if a message waited for more
/// than half of the additional time, because the server may then have stalled.
fn sources_apart(record: &Record, created: &StageRow, requested_per_s: f64) -> Option<usize> {
    let sources = record.parties.iter().filter(|party| party.role == Role::Source).count();
    let excess_s = record.offered_s? - created.count as f64 / requested_per_s;
    let is_on_time = created.count >= record.due? && created.latency_ms?.max / 1e3 < excess_s / 2.0;
    (sources > 1 && is_on_time).then_some(sources)
}

/// Reports a requested rate that was not offered. The miss counts against the generator if the generator was the limit,
/// and otherwise against the server.
fn rate_reason(record: &Record, between: Topology, is_our_fault: bool) -> Option<Reason> {
    let is_our_fault = is_our_fault || between == Topology::Direct;
    let took = format!("{} took", server_name(record));
    let missed = match missed_rate(record, if is_our_fault { "The source offered" } else { &took })? {
        MissedRate::Excused(reason) => return Some(reason),
        MissedRate::Missed(missed) => missed,
    };
    if is_our_fault {
        return Some(Reason::new(Cause::RateNotOffered, format!("{missed}. Use more --sessions or a lower --rate.")));
    }
    let waited = record.stage(Stage::Created).and_then(|row| row.latency_ms);
    let text = match waited.is_none_or(|waited| waited.p99 > LAG_LIMIT_MS) {
        true => format!(
            "{missed}: all {} were waiting for it. If it can take more at a time, try more --sessions.",
            counted(u64::from(record.workload.sessions), "session")
        ),
        false => format!("{missed}, although sessions were free."),
    };
    Some(Reason::new(Cause::RateMissed, text))
}

/// Reports thresholds that were missed, and thresholds whose value was not measured, for example because no sink was
/// watched. A missed threshold on a fate, such as lost mail, has the same weight in the verdict as the fate itself.
pub fn threshold_reasons(record: &Record) -> Vec<Reason> {
    let open = record.thresholds.iter().filter(|row| !row.passed);
    let reason = |row: &ThresholdRow| match (row.missed, threshold::fate_of(&row.expression)) {
        (true, Some(fate)) => {
            let cause = if fate == Fate::NotDelivered { Cause::Missing } else { fate.cause() };
            let text = missed_text(row);
            Reason::new(cause, format!("{}{}.", text.trim_end_matches('.'), faults_behind(record, fate)))
        }
        (true, None) if threshold::is_decided_by_absence(record, row) => {
            Reason::new(Cause::NeverCame, missed_text(row))
        }
        (true, None) => Reason::new(Cause::ThresholdMissed, missed_text(row)),
        (false, _) if !row.why.is_empty() => {
            let value = threshold::format_row(row);
            let value = if value.is_empty() { value } else { format!("it was {value}, but ") };
            Reason::new(Cause::ThresholdUnseen, format!("Threshold undecided: {}; {value}{}.", row.expression, row.why))
        }
        (false, _) => {
            let explanation = threshold::unseen_reason(record, row);
            Reason::new(Cause::ThresholdUnseen, format!("Threshold not measured: {}: {explanation}.", row.expression))
        }
    };
    open.map(reason).chain(host_reason(record)).collect()
}

/// Reports that other programs kept the host busy, if this may explain a missed threshold on latency or rate. If the
/// server certainly missed another of these thresholds, it is to blame in any case, so the result is `None`.
fn host_reason(record: &Record) -> Option<Reason> {
    let host = BusyHost::of(record)?;
    let is_of_time = |row: &&ThresholdRow| {
        row.missed && threshold::fate_of(&row.expression).is_none() && !threshold::is_decided_by_absence(record, row)
    };
    let missed: Vec<&ThresholdRow> = record.thresholds.iter().filter(is_of_time).collect();
    let (explained, others): (Vec<&ThresholdRow>, Vec<&ThresholdRow>) =
        missed.into_iter().partition(|row| is_explained(record, row, Some(&host)));
    let is_late =
        |row: &&ThresholdRow| is_open_loop(record) && threshold::is_undecided_by_lag(record, row, LAG_LIMIT_MS);
    if explained.is_empty() || !others.iter().all(is_late) {
        return None;
    }
    let values: Vec<String> =
        explained.iter().map(|row| format!("{} (it was {})", row.expression, threshold::format_row(row))).collect();
    let text = format!("{}, which may have decided {}. Repeat the run on an idle host.", host.text(), listed(&values));
    Some(Reason::new(Cause::HostBusy, text))
}

fn is_explained(record: &Record, row: &ThresholdRow, host: Option<&BusyHost<'_>>) -> bool {
    host.is_some_and(|host| threshold::is_explained_by_host(record, row, host))
}

/// True if the user set a threshold on this fate, which then decides how often the fate may occur. Without a threshold,
/// a fate that is a fault, such as lost mail, must not occur at all.
pub fn has_threshold(record: &Record, fate: Fate) -> bool {
    record.thresholds.iter().any(|row| threshold::fate_of(&row.expression) == Some(fate))
}

/// Formats a missed threshold, for example `Threshold missed: accepted.p99 < 50ms; it was 61.2 ms.`
fn missed_text(row: &ThresholdRow) -> String {
    let value = threshold::format_row(row);
    let value = if value.is_empty() { value } else { format!("it was {value}") };
    let parts: Vec<&str> = [value.as_str(), row.why.as_str()].into_iter().filter(|part| !part.is_empty()).collect();
    format!("Threshold missed: {}; {}.", row.expression, parts.join(", as "))
}

/// Explains why the run ended early, if it did, and reports how much mail was still in transit.
pub fn ending_reasons(record: &Record) -> Vec<Reason> {
    let ledger = &record.ledger;
    let mut reasons = Vec::new();
    match record.ending {
        Some(Ending::Interrupted) => {
            reasons.push(Reason::new(Cause::Interrupted, "The run was interrupted before its end."))
        }
        Some(Ending::SinkEnded) => {
            reasons.push(Reason::new(Cause::SinkGone, "The sink went away, so what arrived after that is unknown."))
        }
        Some(Ending::ServerEnded) if !has_death(record) => {
            reasons.push(Reason::new(Cause::ServerGone, "The server ended in the middle of the run."))
        }
        _ => {}
    }
    if let Some(open) = ledger.in_flight.filter(|open| *open > 0 && ledger.delivered.is_some()) {
        let were = if open == 1 { "was" } else { "were" };
        let text = format!("{} {were} still in transit when the run ended.", units(record, open));
        reasons.push(Reason::new(Cause::Unfinished, text));
    }
    reasons
}

/// Lists queued mail, stalls, and remarks that do not affect the outcome but that a reader must know.
fn notes(record: &Record, circumstances: &VerdictInputs) -> Vec<Reason> {
    let ledger = &record.ledger;
    let mut reasons: Vec<Reason> = queued_reason(record, circumstances).into_iter().collect();
    reasons.extend(stall_reasons(record));
    let mut notes = Vec::new();
    let is_sink_gone = record.ending == Some(Ending::SinkEnded) || has_death(record);
    if ledger.created.is_some() && ledger.delivered.is_none() && !is_sink_gone {
        notes.push(
            "Delivery is unknown: let the server relay to a mailrun sink, and name it with mailrun bench --sink http://ADDR."
                .to_owned(),
        );
    }
    if is_open_loop(record) {
        notes.extend(wait_note(record));
        notes.extend(unsent_note(record));
    }
    if let Some(untimed) = ledger.untimed.filter(|untimed| *untimed > 0) {
        notes.push(format!(
            "{} {} timed by another host's clock: in no delivered latency.",
            counted(untimed, "message"),
            if untimed == 1 { "was" } else { "were" }
        ));
    }
    if let Some(negative) = ledger.negative.filter(|negative| *negative > 0) {
        notes.push(format!(
            "{} had a negative delivered time, because the clocks of the hosts differ: in no latency.",
            counted(negative, "message")
        ));
    }
    notes.extend(behind_note(record));
    notes.extend(rewrite_notes(record));
    notes.extend(notice_notes(record));
    notes.extend(unheard_note(record));
    notes.extend(warnings(record));
    if circumstances.topology == Topology::Direct && is_watched(ledger) {
        notes.push(NO_SERVER.to_owned());
    }
    reasons.extend(notes.into_iter().map(|text| Reason::new(Cause::Remark, text)));
    reasons
}

/// Reports mail that is still in the relay's queue. Such mail is safe, but was not delivered before the run ended.
fn queued_reason(record: &Record, circumstances: &VerdictInputs) -> Option<Reason> {
    let queued = record.ledger.queued.filter(|queued| *queued > 0)?;
    let is_ordered = circumstances.ordered.is_some_and(|ordered| ordered.replies.max(ordered.cuts) > 0);
    let text = format!(
        "{}{} {} {} safe in the relay's queue and not delivered yet.",
        grouped(queued),
        of_created(record),
        unit_noun(record),
        if queued == 1 { "is" } else { "are" }
    );
    Some(Reason::new(if is_ordered { Cause::Ordered } else { Cause::Unfinished }, text))
}

/// Reports stalls, for example `Nothing was accepted from 1.5 s to 4.0 s.`
pub fn stall_reasons(record: &Record) -> Vec<Reason> {
    let is_gone = final_stall(record).is_some();
    let stages = [Stage::Accepted, Stage::Delivered];
    stages.into_iter().filter_map(|stage| stage_stall_reason(record, stage, is_gone)).collect()
}

fn stage_stall_reason(record: &Record, stage: Stage, is_gone: bool) -> Option<Reason> {
    let of_it = record.stalls.iter().filter(|stall| stall.stage == stage);
    let stalls = of_it.filter(|stall| !(is_gone && stall.to_the_end));
    let spans: Vec<String> = stalls.map(|stall| format!("from {:.1} s to {:.1} s", stall.from_s, stall.to_s)).collect();
    let more = spans.len().saturating_sub(MAX_NAMED_STALLS);
    let mut named: Vec<String> = spans.into_iter().take(MAX_NAMED_STALLS).collect();
    if named.is_empty() {
        return None;
    }
    if more > 0 {
        named.push(counted(more as u64, "more time"));
    }
    Some(Reason::new(Cause::Stalled, format!("Nothing was {} {}.", stage.name(), listed(&named))))
}

/// Reports how long messages waited because all sessions were busy. Such a wait is not the source's fault: the server
/// was slow, or there were too few sessions.
fn wait_note(record: &Record) -> Option<String> {
    let waited = record.stage(Stage::Created)?.latency_ms?.p99;
    (waited > LAG_LIMIT_MS && behind_schedule(record).is_none()).then(|| {
        format!(
            "1 % of messages waited {waited:.1} ms or longer for a free session, because all {} were busy. The latencies \
             include this wait; more --sessions make it shorter.",
            grouped(u64::from(record.workload.sessions))
        )
    })
}

/// Reports that deliveries fell behind acceptance, for example
/// `Deliveries fell behind: accepted 50/s, delivered 18/s, and the queue grew to 345.` The rates alone do not always
/// show this, because a server that holds mail back and then delivers its whole queue at once has a high rate.
pub fn behind_note(record: &Record) -> Option<String> {
    let accepted = record.stage(Stage::Accepted)?;
    let delivered = record.stage(Stage::Delivered)?;
    // Messages that never arrived may be lost instead of queued, so subtract them from the length of the queue.
    let never = accepted.count.saturating_sub(delivered.count);
    let queued = |rows: &[SeriesRow]| rows.iter().map(|row| row.queued).max().unwrap_or_default().saturating_sub(never);
    let deepest = queued(&record.series);
    let load_end = record.series.iter().rposition(|row| row.accepted > 0)?;
    let (early, late) = record.series[..=load_end].split_at(load_end.div_ceil(3).min(load_end));
    let is_slower = delivered.rate_per_s? < BEHIND_SHARE * accepted.rate_per_s?;
    // A long queue alone does not show that deliveries fall behind, because a long but constant latency has the same
    // effect. The queue must be more than twice as long in the rest of the load as in its first third.
    let has_grown = !early.is_empty() && queued(late) / 2 > queued(early).max(MIN_QUEUE);
    let is_long = deepest >= MIN_QUEUE.max(accepted.count / 20);
    (is_long && (is_slower || has_grown)).then(|| {
        let rate = |row: &StageRow| threshold::format_value(row.rate_per_s.unwrap_or_default(), "/s");
        format!(
            "Deliveries fell behind: {} {}, {} {}, and the queue grew to {}.",
            accepted.name.name(),
            rate(accepted),
            delivered.name.name(),
            rate(delivered),
            grouped(deepest)
        )
    })
}

/// Reports notifications that do not change the fate of a message: notifications of a delay, and further notifications
/// about mail that had already bounced.
fn notice_notes(record: &Record) -> impl Iterator<Item = String> {
    let texts = [
        (record.ledger.delay_notices, "delay notice", "the server tries this mail again"),
        (record.ledger.repeated_notices, "further notice", "each bounced recipient counts once"),
    ];
    let occurred = texts.into_iter().filter(|(count, ..)| count.is_some_and(|count| count > 0));
    occurred.map(|(count, noun, text)| format!("{} arrived: {text}.", counted(count.unwrap_or_default(), noun)))
}

/// Reports messages that were due but that no session had begun to send when the load ended.
fn unsent_note(record: &Record) -> Option<String> {
    let count = unsent(record);
    (count > 0).then(|| {
        format!(
            "{} of the {} due {} never sent: they count as late.",
            grouped(count),
            counted(record.due.unwrap_or_default(), "message"),
            if count == 1 { "was" } else { "were" }
        )
    })
}

/// Reports mail that arrived although the source received no 250 for it. Such mail counts as delivered, but a sender
/// that retries would send it again.
fn unheard_note(record: &Record) -> Option<String> {
    let LedgerRow { delivered, bounced, lost, not_delivered, accepted, queued, expired, .. } = record.ledger;
    let missing = lost.or(not_delivered)?;
    let [bounced, queued, expired] = [bounced, queued, expired].map(Option::unwrap_or_default);
    let fates = [delivered?, missing, bounced, queued, expired];
    let known = fates.into_iter().fold(0, u64::saturating_add);
    let unheard = known.saturating_sub(accepted?);
    (unheard > 0).then(|| {
        format!(
            "{} arrived although the source got no 250 for them: a sender that retries makes duplicates of them.",
            units(record, unheard)
        )
    })
}

fn is_nothing(count: &Option<u64>) -> bool {
    count.unwrap_or_default() == 0
}

/// Returns the noun for what the ledger counts: messages if each message has one recipient, and copies otherwise. The
/// noun is singular if only one message was created, as in "1 of 1 message".
fn unit_noun(record: &Record) -> &'static str {
    match record.workload.recipients {
        0 | 1 if record.ledger.created == Some(1) => "message",
        0 | 1 => "messages",
        _ => "copies",
    }
}

/// Formats a number of messages or copies: `1 copy` if messages have several recipients, and `1 message` otherwise.
fn units(record: &Record, count: u64) -> String {
    match record.workload.recipients {
        0 | 1 => counted(count, "message"),
        _ if count == 1 => "1 copy".to_owned(),
        _ => format!("{} copies", grouped(count)),
    }
}
