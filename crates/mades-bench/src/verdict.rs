//! Judges a run, and explains the verdict in sentences: why messages are missing, why the figures
//! may be wrong, and what else the reader should know.
use super::run_state::GIVEN_UP;
use super::troubles::TroubleKind;
use mailrun_measurement::Stage;
use mailrun_measurement::account::{fates_sum, unsent};
use mailrun_measurement::judge::{
    MissedRate, behind_note, busy_share, decide, ending_reasons, has_threshold, lag_reason, missed_rate, pass_text,
    stall_reasons, threshold_reasons,
};
use mailrun_measurement::reason::Reason;
use mailrun_measurement::record::{
    AcknowledgementSender, Arrival, Cause, LedgerRow, Mades, MadesOutage, MadesTrouble, Record, StageRow, Verdict,
};
use mailrun_measurement::threshold::Fate;
use mailrun_measurement::validity::{limits, warnings};
use mailrun_text::words::{counted, grouped, listed};

/// If the 99th percentile of an open loop's lag exceeds this number of milliseconds, the verdict says that the bench
/// fell behind. The lag of a message is the time by which the bench itself created it too late, although the limit of
/// messages in flight allowed it.
const LAG_LIMIT_MS: f64 = 10.0;
/// If the mean number of a closed loop's messages in flight is at least this share of the limit (`--max-in-transit`),
/// the limit determines the latency, and the verdict says so.
const FULL_WINDOW_SHARE: f64 = 0.9;

/// If more than this share of an open loop's messages waited because too many messages were in flight, the verdict says
/// so.
const MAX_WAITED_SHARE: f64 = 0.01;

/// A time without credit or connection explains a missed rate if it is at least this share of the load's duration. A
/// shorter time cannot explain a rate below 95 % of the requested one.
const MIN_SHORTFALL_SHARE: f64 = 0.05;

/// If no message is left in the outbox, the endpoint counts as stopped only if at least this many messages were created
/// after its last answer. Fewer missing answers may be due to chance.
const MIN_UNANSWERED: u64 = 20;

/// Maximum number of error codes that a sentence of the verdict names. The report lists all of them.
const MAX_CODES: usize = 4;

/// Judges a run by its record, which must be complete except for the verdict.
pub(super) fn conclude(record: &Record, mades: &Mades) -> Verdict {
    let lost_connection = lost_connection(record, mades);
    let is_lost = lost_connection.is_some();
    let unanswered = unanswered(record, mades).filter(|_| !is_lost);
    let is_stopped = unanswered.as_ref().is_some_and(|reason| reason.cause == Cause::ServerGone);
    let is_lost = is_lost || is_stopped;
    let stopped = lost_connection.or(unanswered).or_else(|| given_up(record, mades));
    // Report a lost connection or a stopped endpoint first, because it explains why messages are missing.
    let is_explained = |cause: Cause| is_lost && matches!(cause, Cause::Lost | Cause::Missing);
    let mut reasons: Vec<Reason> = unread_queue(record, mades).into_iter().chain(stopped).collect();
    let new_reasons = faults(record, mades).into_iter();
    reasons.extend(new_reasons.map(|reason| match is_explained(reason.cause) {
        true => Reason { cause: Cause::ServerGone, ..reason },
        false => reason,
    }));
    reasons.extend(refusals(record, mades));
    // If the user has set a threshold for a fate such as `lost`, only the threshold decides. So remove the reason that
    // the built-in rule gave. Keep `Rejected` and `Failed`, because `refusals` already omits fates with a threshold.
    let is_left = |cause: Cause| Fate::ALL.into_iter().any(|fate| fate.cause() == cause && has_threshold(record, fate));
    reasons.retain(|reason| matches!(reason.cause, Cause::Rejected | Cause::Failed) || !is_left(reason.cause));
    reasons.extend(threshold_reasons(record));
    reasons.extend(validity(record));
    reasons.extend(ending_reasons(record));
    reasons.extend(stall_reasons(record));
    reasons.extend(notes(record, mades).into_iter().map(|text| Reason::new(Cause::Remark, text)));
    let mut verdict = decide(reasons, &pass_text(record));
    verdict.closed &= !is_lost || record.ledger.lost.unwrap_or_default() == 0;
    verdict
}

/// Detects an outbox that no endpoint reads: the broker accepted messages, but nothing ever answered them.
fn unread_queue(record: &Record, mades: &Mades) -> Option<Reason> {
    let settled = record.stages.iter().position(|row| row.name == Stage::Settled)?;
    let (before, after) = record.stages.split_at(settled + 1);
    let first = after.first()?;
    let is_silent = after.iter().all(|row| row.count == 0) && before.iter().all(|row| row.count > 0);
    let LedgerRow { rejected, expired, .. } = record.ledger;
    let is_told = rejected.unwrap_or_default() + expired.unwrap_or_default() > 0;
    // In mode `amqp`, no endpoint reads an outbox, so return `None`.
    let outbox = mades.queues.iter().find(|queue| queue.role == "outbox")?;
    let reader = if mades.mode == "toolbox" { "a toolbox" } else { "an endpoint" };
    (is_silent && !is_told && never_arrived(record) > 0).then(|| {
        let text = format!(
            "No message reached stage {}: does {reader} read {}? (--prefix, --mode)",
            first.name.name(),
            outbox.name
        );
        // If no message is lost, the messages that did not arrive are all still in the outbox, so no endpoint reads it.
        let cause = if record.ledger.lost > Some(0) { Cause::Lost } else { Cause::ServerGone };
        Reason::new(cause, text)
    })
}

/// Returns the number of messages that the broker accepted and that did not arrive. They may be lost, or still in the
/// outbox.
fn never_arrived(record: &Record) -> u64 {
    record.ledger.lost.unwrap_or_default() + record.ledger.queued.unwrap_or_default()
}

/// If the endpoint answered some messages but not others, says why: the endpoint stopped, or it is too slow.
fn unanswered(record: &Record, mades: &Mades) -> Option<Reason> {
    let queued = record.ledger.queued.unwrap_or_default();
    let last_answer_s = mades.last_answer_s?;
    let outbox = mades.queues.iter().find(|queue| queue.role == "outbox")?;
    let end_s = record.observed_until_s.unwrap_or_default();
    let of = |count| format!("{} of {}", grouped(count), counted(record.ledger.created.unwrap_or_default(), "message"));
    let never_sent = match unsent(record) {
        0 => String::new(),
        count => format!(", and {} were never sent", grouped(count)),
    };
    // The endpoint has stopped if it answered nothing for a whole message time-out. If it answered other messages in
    // that time, it is only too slow.
    let is_silent = end_s - last_answer_s >= mades.timeout_s;
    let later = record.series.iter().filter(|row| row.second as f64 >= last_answer_s);
    let created_later = later.map(|row| row.created).fold(0, u64::saturating_add);
    let became_of = match queued {
        0 if created_later < MIN_UNANSWERED || never_arrived(record) == 0 => return None,
        0 => format!("{} did not arrive", of(never_arrived(record))),
        1 => format!("{} waits in {}", of(queued), outbox.name),
        _ => format!("{} wait in {}", of(queued), outbox.name),
    };
    if is_silent {
        let text =
            format!("The endpoint stopped answering at {last_answer_s:.1} s of {end_s:.1} s: {became_of}{never_sent}.");
        return Some(Reason::new(Cause::ServerGone, text));
    }
    let text = format!(
        "{became_of} after {} s{never_sent}: the endpoint takes fewer than were offered. Use a lower --rate or a longer \
         --message-timeout.",
        mades.timeout_s
    );
    (queued > 0).then(|| Reason::new(Cause::RateMissed, text))
}

fn faults(record: &Record, mades: &Mades) -> Vec<Reason> {
    let LedgerRow { created, lost, corrupt, .. } = record.ledger;
    let created = created.unwrap_or_default();
    let mut faults = Vec::new();
    let mut add = |cause: Cause, count: Option<u64>, text: &dyn Fn(u64) -> String| {
        faults.extend(count.filter(|count| *count > 0).map(|count| Reason::new(cause, text(count))));
    };
    add(Cause::Lost, lost, &|count| {
        let explanation = wrong_inbox(record, mades).unwrap_or_default();
        let were = if count == 1 { "was" } else { "were" };
        format!(
            "Lost: {} of {} {were} taken by the broker and never arrived{explanation}.",
            grouped(count),
            counted(created, "message")
        )
    });
    add(Cause::Corrupt, corrupt, &|count| {
        format!("Corrupt: {} arrived with a changed payload.", counted(count, "message"))
    });
    for row in &record.stages {
        let StageRow { missing, duplicates, .. } = *row;
        add(Cause::Duplicates, Some(duplicates), &|count| {
            format!("Duplicates: {} reached the stage {} more than once.", counted(count, "message"), row.name.name())
        });
        // A message that never arrived lacks all later stages as well, so do not report it again for each of them.
        add(Cause::Missing, Some(missing).filter(|missing| *missing != never_arrived(record)), &|count| {
            let explanation = missing_text(mades, row);
            format!("Missing: {} never reached the stage {}{explanation}", counted(count, "message"), row.name.name())
        });
    }
    let rejecting = mades.acknowledgements.as_ref().map(|back| back.rejecting);
    add(Cause::Rejected, rejecting, &|count| {
        let codes = codes_text(mades, &[TroubleKind::Declined]);
        format!("Rejected by acknowledgement documents: {}{codes}.", counted(count, "message"))
    });
    if !fates_sum(&record.ledger) {
        let text = format!(
            "The fates do not sum to the {} created: this is a defect of mailrun itself.",
            counted(created, "message")
        );
        faults.push(Reason::new(Cause::Unaccounted, text));
    }
    faults
}

/// If the bench seems to read the wrong inbox, returns a text that says so, for the end of the sentence about lost
/// messages. The sign of a wrong inbox is that no message came out of it although messages reached later stages.
fn wrong_inbox(record: &Record, mades: &Mades) -> Option<String> {
    let inbox = mades.queues.iter().find(|queue| queue.role == "inbox").filter(|_| mades.mode != "amqp")?;
    let at = record.stages.iter().position(|row| row.name == Stage::Inbox && row.count == 0)?;
    let later = record.stages[at + 1..].iter().find(|row| row.count > 0)?;
    Some(format!(" in {}, although {} came for {}: check --inbox", inbox.name, later.name.name(), grouped(later.count)))
}

/// Returns the end of the sentence about messages that never reached a stage. For the stage `acknowledged`, it says
/// what became of the acknowledgement documents. For all other stages, it is only a full stop.
fn missing_text(mades: &Mades, row: &StageRow) -> String {
    let is_acknowledged = row.name == Stage::Acknowledged;
    let Some(back) = mades.acknowledgements.as_ref().filter(|_| is_acknowledged) else {
        return ".".to_owned();
    };
    let fates =
        [(back.returned, "returned"), (back.refused, "rejected"), (back.failed, "FAILED"), (back.corrupt, "changed")];
    let fates: Vec<String> = fates
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, name)| format!("{} {name}", grouped(count)))
        .collect();
    if back.sender == AcknowledgementSender::Receiver {
        let inbox = mades.queues.iter().find(|queue| queue.role == "inbox").map_or("", |queue| queue.name.as_str());
        return match row.count + back.rejecting {
            0 => format!(": does {} send acknowledgement documents, and do they come into {inbox}?", back.receiver),
            count => format!(": {} came.", counted(count, "acknowledgement document")),
        };
    }
    let sent = counted(back.sent, "acknowledgement");
    match (row.count, fates.is_empty()) {
        (0, true) if back.sent > 0 => {
            format!(
                ": {sent} sent, and none came back: does an endpoint read {} and send to {}?",
                back.outbox, back.receiver
            )
        }
        (_, true) => format!(": {sent} sent."),
        (_, false) => format!(": {sent} sent, of which {}.", listed(&fates)),
    }
}

/// Returns how many seconds the bench was without a connection. The time in which outages overlap counts once.
fn without_connection_s(record: &Record, mades: &Mades) -> f64 {
    let end_s = record.duration_s.max(record.offered_s.unwrap_or_default());
    let span = |outage: &MadesOutage| {
        let until_s = outage.began_s + outage.lasted_s;
        (outage.began_s, if outage.to_the_end { until_s.min(end_s) } else { until_s })
    };
    let mut spans: Vec<(f64, f64)> = mades.outages.iter().map(span).collect();
    spans.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut seen_until = 0.0_f64;
    spans.iter().fold(0.0, |sum, (from, until)| {
        let new = (until - from.max(seen_until)).max(0.0);
        seen_until = seen_until.max(*until);
        sum + new
    })
}

/// Reports a connection that was lost and not restored, with the numbers of failed, missing and unsent messages.
fn lost_connection(record: &Record, mades: &Mades) -> Option<Reason> {
    let outages = mades.outages.iter().filter(|outage| outage.to_the_end);
    let first = outages.clone().min_by(|one, other| one.began_s.total_cmp(&other.began_s))?;
    let lasted_s = first.began_s + first.lasted_s;
    let mut sides: Vec<String> = outages.map(|outage| format!("the {}", outage.side)).collect();
    sides.sort_by_key(|side| !side.ends_with(&first.side));
    sides.dedup();
    let were = if sides.len() == 1 { "connection to" } else { "connections to" };
    let text = format!(
        "The {were} {} {} lost at {:.1} s of {lasted_s:.1} s and did not come back: {} ({}).",
        listed(&sides),
        if sides.len() == 1 { "was" } else { "were" },
        first.began_s,
        losses_text(record),
        first.why
    );
    Some(Reason::new(Cause::ServerGone, text))
}

/// Reports a run that the bench gave up, for example because the endpoint stopped answering.
fn given_up(record: &Record, mades: &Mades) -> Option<Reason> {
    let is_own = |row: &&MadesTrouble| TroubleKind::OWN_CODES.iter().any(|kind| kind.name() == row.kind);
    let row = mades.troubles.iter().filter(is_own).find(|row| row.code == GIVEN_UP)?;
    let text = format!("The run was given up ({}); {}.", row.text, losses_text(record));
    Some(Reason::new(Cause::ServerGone, text))
}

fn losses_text(record: &Record) -> String {
    let LedgerRow { created, failed, lost, .. } = record.ledger;
    let parts = [(failed, "failed"), (lost, "did not arrive"), (Some(unsent(record)), "were never sent")];
    let parts = parts.into_iter().filter_map(|(count, word)| Some((count.filter(|count| *count > 0)?, word)));
    let parts: Vec<String> = parts.map(|(count, word)| format!("{} {word}", grouped(count))).collect();
    let parts = if parts.is_empty() { "none failed".to_owned() } else { listed(&parts) };
    format!("of {} {parts}", counted(record.due.max(created).unwrap_or_default(), "message"))
}

fn validity(record: &Record) -> Vec<Reason> {
    let mut reasons = Vec::new();
    let behind = lag_text(record).filter(|_| record.workload.arrival != Arrival::Closed);
    let is_behind = behind.is_some();
    reasons.extend(lag_reason(record, behind));
    reasons.extend(cpu_validity(record).map(|text| Reason::new(Cause::Busy, text)));
    reasons.extend(limits(record));
    let is_our_fault = is_behind || reasons.iter().any(|reason| reason.cause != Cause::Remark);
    reasons.extend(rate_validity(record, is_our_fault));
    reasons
}

fn lag_text(record: &Record) -> Option<String> {
    let lag = record.lag_ms?.p99;
    (lag > LAG_LIMIT_MS).then(|| {
        format!(
            "The bench fell behind its schedule: 1 % of messages started {lag:.1} ms late or more although there was room \
             (limit {LAG_LIMIT_MS} ms). Use a lower --rate, or an idle host."
        )
    })
}

/// Reports a rate that was not reached. If `is_our_fault` is true, the bench could not offer the rate. Otherwise the
/// endpoint could not keep up with it.
fn rate_validity(record: &Record, is_our_fault: bool) -> Option<Reason> {
    if let Some(market) =
        record.mades.as_ref().and_then(|mades| mades.market.as_ref()).filter(|market| market.missed > 0)
    {
        let cause = if is_our_fault { Cause::RateNotOffered } else { Cause::RateMissed };
        let due_count: u64 = market.windows.iter().map(|window| window.due).sum();
        let text = format!(
            "{} of {} that were due were never sent{}",
            grouped(market.missed),
            counted(due_count, "message"),
            shortfall_text(record).unwrap_or_else(|| ".".to_owned())
        );
        return Some(Reason::new(cause, text));
    }
    // Return `None` for a single message, which has no rate: no time passes between the first and the last message.
    record.stage(Stage::Created).filter(|row| row.duration_s > 0.0)?;
    let sentence = match missed_rate(record, "The bench offered")? {
        // Something outside the bench, such as other programs on this host, may explain the missed rate. Also report
        // what the bench saw, such as missing credit, because this may be the real cause.
        MissedRate::Excused(Reason { cause, text }) => {
            let seen = shortfall(record).map(|seen| format!(" The bench saw that {seen}.")).unwrap_or_default();
            return Some(Reason::new(cause, format!("{text}{seen}")));
        }
        MissedRate::Missed(sentence) => sentence,
    };
    let cause = if is_our_fault { Cause::RateNotOffered } else { Cause::RateMissed };
    let advice = shortfall_text(record).unwrap_or_else(|| ". Use a lower --rate.".to_owned());
    Some(Reason::new(cause, format!("{sentence}{advice}")))
}

/// Returns the end of a sentence about a missed rate: the reason why due messages could not be sent. If the reason is
/// unknown but messages waited because too many were in flight, returns advice instead. Otherwise returns `None`.
fn shortfall_text(record: &Record) -> Option<String> {
    let waited_for_room = record.mades.as_ref()?.waited_for_room;
    shortfall(record).map(|seen| format!(": {seen}.")).or_else(|| {
        let advice = ". Raise --max-in-transit and --max-unsettled, or use a lower --rate.";
        (waited_for_room > 0).then(|| advice.to_owned())
    })
}

/// Says why the bench could not send the due messages: no credit, no connection, or no answers. Returns `None` if none
/// of these causes is known.
fn shortfall(record: &Record) -> Option<String> {
    let mades = record.mades.as_ref()?;
    let offered_s = record.offered_s.unwrap_or(record.duration_s);
    let is_long = |time_s: f64| time_s >= MIN_SHORTFALL_SHARE * offered_s;
    if let Some(credit) = mades.no_credit.filter(|credit| is_long(credit.total_s)) {
        return Some(format!(
            "the broker gave no credit for {:.1} s in all, first at {:.1} s. Its queue or its disk is full, or the endpoint \
             takes fewer messages",
            credit.total_s, credit.first_s
        ));
    }
    let without_s = without_connection_s(record, mades);
    if is_long(without_s) {
        return Some(format!("there was no connection for {without_s:.1} s"));
    }
    let is_full = mades.waited_for_room > 0 && record.ledger.queued > Some(0);
    is_full.then(|| "messages that the endpoint did not answer took all of --max-in-transit".to_owned())
}

fn cpu_validity(record: &Record) -> Option<String> {
    let share = busy_share(record, record.parties.first()?)?;
    Some(format!(
        "The bench used {:.0} % of its thread's time: it may have been the limit, and not the endpoint.",
        share * 100.0
    ))
}

fn notes(record: &Record, mades: &Mades) -> Vec<String> {
    let mut notes = Vec::new();
    let mut add = |count: u64, text: &dyn Fn() -> String| {
        if count > 0 {
            notes.push(text());
        }
    };
    let answers: u64 = record.stages.iter().map(|row| row.late).sum();
    add(answers, &|| {
        let limit = mades.timeout_s;
        format!("{} came after the time-out of {limit} s: they count, but have no latency.", counted(answers, "answer"))
    });
    if let Some(asked_s) = mades.asked_timeout_s {
        let limit_s = mades.timeout_s;
        add(1, &|| {
            format!(
                "Messages had {limit_s} s and not the {asked_s} s of --message-timeout, because a threshold asks for it."
            )
        });
    }
    if let Some(back) = &mades.acknowledgements {
        add(back.unknown, &|| {
            let count = counted(back.unknown, "acknowledgement document");
            format!("{count} named no document of this run; see the errors.")
        });
        add(back.unreadable, &|| {
            format!("{} could not be read; see the errors.", counted(back.unreadable, "acknowledgement document"))
        });
    }
    add(mades.redelivered, &|| {
        let count = counted(mades.redelivered, "message");
        format!(
            "Sent again by the broker after a lost connection, as it must: {count}. They do not count as duplicates."
        )
    });
    let lasted = without_connection_s(record, mades);
    add(mades.outages.len() as u64, &|| {
        let times = counted(mades.outages.len() as u64, "time");
        format!("The connection was lost {times}, for {lasted:.1} s in all: the figures include that.")
    });
    add(mades.reordered, &|| {
        format!(
            "Reordered: {} came out of the inbox after one that was created later.",
            counted(mades.reordered, "message")
        )
    });
    add(mades.released, &|| {
        format!("Messages of others were received from the queues {} and given back.", counted(mades.released, "time"))
    });
    add(mades.purged, &|| format!("--purge removed {} before the run.", counted(mades.purged, "message")));
    notes.extend(behind_note(record));
    notes.extend(window_note(record, mades));
    // Remove the lag from the record, because `lag_text` has already reported it, and `warnings` would report it again.
    notes.extend(warnings(&Record { lag_ms: None, ..record.clone() }));
    notes
}

/// Describes, with the error codes, the messages that the broker did not answer, that were rejected, or that the
/// endpoint gave up. The fate of these messages is known, so they do not count as missing. Leaves out failed and
/// rejected messages if the user set a threshold for their fate.
fn refusals(record: &Record, mades: &Mades) -> Option<Reason> {
    if record.ledger.accepted == Some(0) {
        return Some(Reason::new(Cause::NothingAccepted, "The broker took nothing; see the errors."));
    }
    let LedgerRow { created, delivered, rejected, failed, expired, .. } = record.ledger;
    let unasked = |count: Option<u64>, fate: Fate| count.filter(|_| !has_threshold(record, fate));
    let fates = [
        (unasked(failed, Fate::Failed), "not answered by the broker", Cause::Failed),
        (unasked(rejected, Fate::Rejected), "rejected", Cause::Rejected),
        (expired, "given up by the endpoint", Cause::Expired),
    ];
    let fates =
        fates.into_iter().filter_map(|(count, name, cause)| Some((count.filter(|count| *count > 0)?, name, cause)));
    let fates: Vec<(u64, &str, Cause)> = fates.collect();
    let is_nothing = delivered == Some(0);
    let Some((_, _, cause)) = fates.first().copied() else {
        return is_nothing.then(|| Reason::new(Cause::NothingAccepted, "Nothing was delivered."));
    };
    let nothing = if is_nothing { "Nothing was delivered: of" } else { "Of" };
    let created = created.unwrap_or_default();
    let parts: Vec<String> = fates.into_iter().map(|(count, name, _)| format!("{} {name}", grouped(count))).collect();
    let text = format!(
        "{nothing} {}, {}{}.",
        counted(created, "message"),
        listed(&parts),
        codes_text(mades, &[TroubleKind::Returned, TroubleKind::ErrorReply, TroubleKind::Failed])
    );
    Some(Reason::new(cause, text))
}

/// Returns a text such as ` (error reply ECP-1034 5 times)` with the most frequent errors of these kinds, or an empty
/// text if there are none.
fn codes_text(mades: &Mades, kinds: &[TroubleKind]) -> String {
    let is_given = |trouble: &&MadesTrouble| kinds.iter().any(|kind| kind.name() == trouble.kind);
    let mut troubles: Vec<&MadesTrouble> = mades.troubles.iter().filter(is_given).collect();
    troubles.sort_by_key(|trouble| std::cmp::Reverse(trouble.count));
    let more = troubles.len().saturating_sub(MAX_CODES);
    let mut parts: Vec<String> = troubles
        .into_iter()
        .take(MAX_CODES)
        .map(|MadesTrouble { kind, code, count, .. }| {
            format!("{} {}", format!("{kind} {code}").trim_end(), counted(*count, "time"))
        })
        .collect();
    if more > 0 {
        parts.push(format!("{more} other codes"));
    }
    if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) }
}

/// Returns a note if the limits of messages in flight affected the latencies. If a closed loop always reaches its
/// limit, the latency is this limit divided by the rate (Little's law), whatever the endpoint does.
fn window_note(record: &Record, mades: &Mades) -> Option<String> {
    let last = record.stages.last()?;
    let is_full = mades.in_transit_mean >= FULL_WINDOW_SHARE * mades.max_in_transit as f64;
    let rate_per_s = last.rate_per_s.filter(|rate| *rate > 0.0);
    let created = record.ledger.created.unwrap_or_default();
    let waited = mades.waited_for_room;
    match record.workload.arrival {
        Arrival::Closed => rate_per_s.filter(|_| is_full && mades.max_in_transit > 1).map(|rate_per_s| {
            format!(
                "Nearly {} messages were in transit all the time, so the latency is mostly the bench's own queue: {} in \
                 transit at {} msg/s are {:.1} ms (Little's law). Use a smaller --max-in-transit, or --rate, to see what \
                 the endpoint takes.",
                grouped(mades.max_in_transit),
                grouped(mades.in_transit_mean.round() as u64),
                grouped(rate_per_s.round() as u64),
                mades.in_transit_mean / rate_per_s * 1e3
            )
        }),
        Arrival::Constant | Arrival::Poisson | Arrival::Market => (waited as f64 > MAX_WAITED_SHARE * created as f64).then(|| {
            format!(
                "{} of {} were due and waited for room, because --max-in-transit or --max-unsettled was full. The latencies \
                 include this wait.",
                grouped(waited),
                counted(created, "message")
            )
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mailrun_measurement::record::{
        MadesAcknowledgements, MadesMarket, MadesWindow, Outcome, PartyUsage, ThresholdRow, UsageRow,
    };
    use mailrun_report::sample;

    fn verdict(change: impl Fn(&mut Record, &mut Mades)) -> Verdict {
        let Record { stages, mades, .. } = sample::mades();
        let mut record = Record { verdict: Verdict::default(), lag_ms: None, stages, ..sample::held() };
        let mut mades = mades.unwrap();
        record.stages.iter_mut().for_each(|row| row.missing = 0);
        (mades.outages, mades.in_transit_mean) = (Vec::new(), 5.0);
        record.parties.truncate(1);
        (record.parties[0].user_s, record.parties[0].sys_s) = (Some(0.1), Some(0.1));
        change(&mut record, &mut mades);
        conclude(&record, &mades)
    }

    #[test]
    fn a_whole_run_closes() {
        let verdict = verdict(|_, _| {});
        assert!(verdict.closed && verdict.valid && verdict.reasons.is_empty(), "{verdict:?}");
    }

    #[test]
    fn what_is_missing_doubled_or_corrupt_keeps_it_open_and_is_named_once() {
        type RecordEdit = fn(&mut Record, &mut Mades);
        let cases: [(RecordEdit, &str); 5] = [
            (
                |record, _| (record.ledger.lost, record.ledger.delivered) = (Some(7), Some(199_993)),
                "Lost: 7 of 200,000 messages",
            ),
            (|record, _| record.ledger.corrupt = Some(3), "Corrupt: 3 messages"),
            (
                |record, _| record.stages[3].duplicates = 2,
                "Duplicates: 2 messages reached the stage replied more than once.",
            ),
            (|record, _| record.stages[6].missing = 9, "Missing: 9 messages never reached the stage RECEIVED"),
            (|record, _| record.ledger.created = Some(1), "a defect of mailrun itself"),
        ];
        for (change, expected) in cases {
            let verdict = verdict(change);
            assert!(!verdict.closed && verdict.reasons.len() == 1, "{verdict:?}");
            assert!(verdict.reasons[0].contains(expected), "{verdict:?}");
        }
        let lost = verdict(|record, _| {
            (record.ledger.lost, record.ledger.delivered) = (Some(7), Some(199_993));
            record.stages[4..].iter_mut().for_each(|row| row.missing = 7);
        });
        assert_eq!(lost.reasons.len(), 1, "what is lost lacks all that follows: {lost:?}");
    }

    #[test]
    fn a_threshold_decides_about_the_fate_that_it_names() {
        type RecordEdit = fn(&mut Record, &mut Mades);
        let cases: [(&str, RecordEdit, Cause); 5] = [
            ("lost", |record, _| record.ledger.lost = Some(9), Cause::Lost),
            ("corrupt", |record, _| record.ledger.corrupt = Some(9), Cause::Corrupt),
            ("duplicates", |record, _| record.stages[3].duplicates = 9, Cause::Duplicates),
            ("rejected", |record, _| record.ledger.rejected = Some(9), Cause::Rejected),
            ("failed", |record, _| record.ledger.failed = Some(9), Cause::Failed),
        ];
        for (fate, change, cause) in cases {
            let of = |threshold: Option<(&str, bool)>| {
                verdict(move |record, mades| {
                    change(record, mades);
                    // The fates must add up to the number of created messages, or the verdict
                    // reports a defect of mailrun.
                    let LedgerRow { lost, rejected, failed, .. } = record.ledger;
                    let others: u64 = [lost, rejected, failed].into_iter().flatten().sum();
                    record.ledger.delivered = Some(200_000 - others);
                    record.thresholds.extend(threshold.map(|(name, passed)| ThresholdRow {
                        expression: format!("{name} <= 10"),
                        value: Some(9.0),
                        passed,
                        missed: !passed,
                        ..ThresholdRow::default()
                    }));
                })
            };
            let alone = of(None);
            assert_eq!((alone.outcome, alone.causes.first()), (Some(Outcome::Fail), Some(&cause)), "{alone:?}");
            let granted = of(Some((fate, true)));
            assert_eq!(granted.outcome, Some(Outcome::Pass), "{granted:?}");
            let missed = of(Some((fate, false)));
            assert_eq!((missed.outcome, missed.reasons.len()), (Some(Outcome::Fail), 1), "{missed:?}");
            assert!(missed.why.starts_with(&format!("Threshold missed: {fate} <= 10; it was ")), "{missed:?}");
            let other = of(Some(("accepted.p99", true)));
            assert_eq!((other.outcome, other.causes.first()), (Some(Outcome::Fail), Some(&cause)), "{other:?}");
        }
    }

    #[test]
    fn a_missing_acknowledgement_fails_the_run_with_what_is_known_of_it() {
        let missing = |count, back: MadesAcknowledgements| {
            verdict(move |record, mades| {
                let row = StageRow::new(Stage::Acknowledged, "mades");
                record.stages.push(StageRow { count, missing: 9, ..row });
                mades.acknowledgements = Some(back.clone());
            })
        };
        let back = MadesAcknowledgements {
            outbox: "b.outbox".to_owned(),
            receiver: "A".to_owned(),
            sent: 9,
            ..MadesAcknowledgements::default()
        };
        let nobody = missing(0, back.clone());
        assert_eq!((nobody.outcome, nobody.causes.clone()), (Some(Outcome::Fail), vec![Cause::Missing]));
        let expected = "Missing: 9 messages never reached the stage acknowledged: 9 acknowledgements sent, and none came back: \
                        does an endpoint read b.outbox and send to A?";
        assert_eq!(nobody.reasons, [expected]);
        let some = missing(5, MadesAcknowledgements { sent: 14, refused: 3, corrupt: 1, ..back });
        assert!(some.reasons[0].ends_with("14 acknowledgements sent, of which 3 rejected and 1 changed."), "{some:?}");
    }

    #[test]
    fn an_outbox_that_nobody_reads_is_named() {
        let silent = |change: fn(&mut Record, &mut Mades)| {
            verdict(|record, mades| {
                (record.ledger.lost, record.ledger.delivered) = (Some(200_000), Some(0));
                record.stages[3..].iter_mut().for_each(|row| (row.count, row.missing) = (0, 200_000));
                mades.queues[0].name = "wrong.outbox".to_owned();
                change(record, mades);
            })
        };
        let sentence = "No message reached stage replied: does an endpoint read wrong.outbox? (--prefix, --mode)";
        let nobody = silent(|_, _| {});
        assert_eq!((nobody.why.as_str(), nobody.outcome), (sentence, Some(Outcome::Fail)), "{nobody:?}");
        for change in [
            // After each of these changes, an unread outbox does not explain the run: a reply arrives, messages are
            // rejected, the broker accepts no message, or there is no outbox.
            (|record, _| record.stages[3].count = 1) as fn(&mut Record, &mut Mades),
            |record, _| (record.ledger.lost, record.ledger.rejected) = (Some(1), Some(199_999)),
            |record, _| record.stages[2].count = 0,
            |_, mades| mades.queues.retain(|queue| queue.role != "outbox"),
        ] {
            let other = silent(change);
            assert!(!other.reasons.iter().any(|reason| reason == sentence), "{other:?}");
        }
    }

    #[test]
    fn an_error_reply_keeps_nothing_open_and_fails() {
        let verdict = verdict(|record, _| (record.ledger.rejected, record.ledger.delivered) = (Some(5), Some(199_995)));
        assert!(verdict.closed && verdict.valid && verdict.outcome == Some(Outcome::Fail), "{verdict:?}");
        assert_eq!(verdict.causes, [Cause::Rejected]);
    }

    #[test]
    fn an_endpoint_cannot_say_that_the_run_was_given_up() {
        let reasons = |kind: TroubleKind| {
            let code = GIVEN_UP.to_owned();
            let row = MadesTrouble { kind: kind.name().to_owned(), code, text: "x".to_owned(), count: 1 };
            verdict(|_, mades| mades.troubles.push(row.clone())).reasons.join(" ")
        };
        for kind in TroubleKind::OWN_CODES {
            assert!(reasons(kind).contains("The run was given up (x)"), "{kind:?}");
        }
        assert!(!reasons(TroubleKind::ErrorReply).contains("The run was given up"));
    }

    #[test]
    fn what_was_refused_is_said_with_its_codes() {
        let trouble = |trouble: TroubleKind, code: &str, count| MadesTrouble {
            kind: trouble.name().to_owned(),
            code: code.to_owned(),
            text: "no such receiver".to_owned(),
            count,
        };
        let troubles = vec![
            trouble(TroubleKind::Connection, "", 9),
            trouble(TroubleKind::ErrorReply, "ECP-7", 3),
            trouble(TroubleKind::ErrorReply, "ECP-8", 199_995),
            trouble(TroubleKind::Failed, "", 2),
        ];
        let refused = |delivered, rejected, expired| {
            verdict(|record, mades| {
                record.ledger.delivered = Some(delivered);
                (record.ledger.rejected, record.ledger.expired) = (Some(rejected), Some(expired));
                mades.troubles.clone_from(&troubles);
            })
        };
        let codes = "(error reply ECP-8 199,995 times, error reply ECP-7 3 times, FAILED 2 times).";
        let all = refused(0, 199_998, 2);
        assert!(all.closed && all.valid && all.outcome == Some(Outcome::Fail), "{all:?}");
        let expected = "Nothing was delivered: of 200,000 messages, 199,998 rejected and 2 given up by the endpoint";
        assert_eq!(all.reasons, [format!("{expected} {codes}")]);
        let some = refused(1, 199_999, 0);
        assert_eq!(some.reasons, [format!("Of 200,000 messages, 199,999 rejected {codes}")]);
        assert_eq!(some.why, some.reasons[0]);
    }

    #[test]
    fn a_full_window_is_littles_law() {
        let full = verdict(|record, mades| {
            record.workload.arrival = Arrival::Closed;
            mades.in_transit_mean = 998.0;
        });
        assert!(
            full.valid && full.reasons.len() == 1 && full.reasons[0].contains("808.4 ms (Little's law)"),
            "{full:?}"
        );
    }

    #[test]
    fn at_open_loop_who_waited_for_room_is_told_and_who_came_late_by_himself_is_not() {
        let waited = |number| {
            verdict(move |record, mades| {
                record.workload.arrival = Arrival::Constant;
                mades.waited_for_room = number;
            })
        };
        assert!(waited(0).reasons.is_empty() && waited(100).reasons.is_empty());
        let full = waited(50_000);
        assert!(full.closed && full.reasons.len() == 1 && full.reasons[0].contains("waited for room"), "{full:?}");
    }

    #[test]
    fn messages_of_a_market_that_were_never_sent_fail_the_run() {
        let window = MadesWindow { due: 40, created: 37, ..MadesWindow::default() };
        let market = MadesMarket { missed: 3, windows: vec![window], ..MadesMarket::default() };
        let missed = verdict(move |record, _| {
            record.workload.arrival = Arrival::Market;
            record.mades = Some(Mades { market: Some(market.clone()), ..Mades::default() });
        });
        assert_eq!((missed.outcome, missed.causes.clone()), (Some(Outcome::Fail), vec![Cause::RateMissed]));
        assert!(missed.why.starts_with("3 of 40 messages that were due were never sent"), "{missed:?}");
    }

    #[test]
    fn a_bench_that_was_the_limit_is_said_to_be() {
        let busy = verdict(|record, _| record.parties[0].user_s = Some(4.0));
        assert!(!busy.valid && busy.reasons[0].contains("its thread's time"), "{busy:?}");
        let waited = verdict(|record, _| {
            let row = |second| UsageRow { second, cores: if second < 10 { 1.0 } else { 0.0 }, rss_bytes: 1 };
            let party = record.parties[0].name.clone();
            record.usage = vec![PartyUsage { party, seconds: (0..70).map(row).collect() }];
            (record.offered_s, record.duration_s) = (Some(10.0), 70.0);
        });
        assert!(!waited.valid, "the wait for a late message does not make it idle: {waited:?}");
        let outage = MadesOutage { lasted_s: 0.7, ..MadesOutage::default() };
        let lost = verdict(|_, mades| mades.outages = vec![outage.clone(), outage.clone()]);
        assert!(lost.closed && lost.reasons[0].contains("2 times, for 0.7 s"), "both at a time: {lost:?}");
        let outage = |began_s, lasted_s, to_the_end| MadesOutage { began_s, lasted_s, to_the_end, ..outage.clone() };
        let spent = |outages: Vec<MadesOutage>| {
            let record = Record { duration_s: 2.9, offered_s: Some(3.0), ..sample::mades() };
            without_connection_s(&record, &Mades { outages, ..Mades::default() })
        };
        let both = spent(vec![outage(2.9, 3.0, true), outage(2.8, 3.1, true)]);
        assert!((both - 0.2).abs() < 1e-9, "no longer than the run: {both}");
        let apart = spent(vec![outage(1.0, 0.5, false), outage(0.2, 0.3, false), outage(1.2, 0.4, false)]);
        assert!((apart - 0.9).abs() < 1e-9, "{apart}");
    }

    #[test]
    fn a_connection_that_was_lost_for_good_is_the_reason_for_what_is_missing() {
        let verdict = verdict(|record, mades| {
            (record.ledger.lost, record.ledger.delivered) = (Some(159), Some(199_841));
            (record.stages[0].name, record.stages[0].count) = (Stage::Created, 200_000);
            record.due = Some(200_102);
            record.stages.iter_mut().for_each(|row| row.missing = 159);
            mades.outages = vec![MadesOutage {
                side: "sender".to_owned(),
                began_s: 1.9,
                lasted_s: 3.1,
                to_the_end: true,
                why: "connection reset".to_owned(),
            }];
        });
        assert_eq!(
            (verdict.outcome, verdict.causes[0], verdict.closed),
            (Some(Outcome::Fail), Cause::ServerGone, false)
        );
        let text = "The connection to the sender was lost at 1.9 s of 5.0 s and did not come back: of 200,102 messages 159 did not \
                   arrive and 102 were never sent (connection reset).";
        assert_eq!(verdict.why, text);
    }
}
