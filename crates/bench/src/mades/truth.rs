//! Compares the counts of the simulated endpoint with the counts of the MADES bench. After a complete run, all counts
//! must be equal. Each difference becomes a reason in the verdict.
use mailrun_measurement::judge::{self, has_threshold};
use mailrun_measurement::reason::Reason;
use mailrun_measurement::record::Cause;
use mailrun_measurement::record::{
    AcknowledgementSender, LatencyMs, Mades, MadesCount, MadesTimes, MadesTruth, Record, StageRow,
};
use mailrun_measurement::threshold::Fate;
use mailrun_measurement::{Latencies, Stage};
use mailrun_text::numbers::counted;
use serde::Deserialize;

/// Failures that injected faults of the simulated endpoint can cause. If the user ordered faults, these failures are
/// expected.
const FAULT_CAUSES: [Cause; 7] = [
    Cause::Lost,
    Cause::Duplicates,
    Cause::Corrupt,
    Cause::Missing,
    Cause::Rejected,
    Cause::Expired,
    Cause::NothingAccepted,
];

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StandInTotals {
    /// Messages that were still in the outbox when the simulated endpoint stopped. Messages that it had taken from the
    /// outbox but not finished are counted in `unfinished`.
    waiting: u64,
    unfinished: u64,
    consumed: u64,
    refused: u64,
    lost: u64,
    failed: u64,
    inboxed: u64,
    events: EventTotals,
    unanswered: u64,
    duplicated: u64,
    corrupt_copies: u64,
    failed_silently: u64,
    overtaken: u64,
    corrupted: u64,
    rejecting: u64,
    latency_ms: StandInLatencies,
    /// The same totals for acknowledgement documents. All other fields leave these documents out.
    acknowledgements: Option<Box<Self>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct EventTotals {
    delivered: u64,
    received: u64,
    tracing: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct StandInLatencies {
    replied: Option<LatencyMs>,
    inboxed: Option<LatencyMs>,
    delivered: Option<LatencyMs>,
    received: Option<LatencyMs>,
}

/// Puts the counts of the simulated endpoint into the record. For each count that differs from the bench's, adds a
/// reason to the verdict. If all counts agree, failures that the endpoint's injected `faults` can cause do not fail the
/// run, because the user asked for these faults.
pub(super) fn compare(record: &mut Record, totals: &StandInTotals, faults: &[String]) {
    let Some(mades) = &record.mades else { return };
    // In the mode `amqp`, only the broker is under test, so the simulated endpoint is idle and has no counts to
    // compare.
    if mades.mode == "amqp" {
        return;
    }
    let truth = MadesTruth { counts: counts(record, mades, totals), times: times(record, mades, totals) };
    let pass = judge::pass_text(record);
    let back = totals.acknowledgements.as_ref().map_or(0, |back| back.unfinished);
    let left = totals.waiting + totals.unfinished + back;
    // A message that was still under way at the end may have been counted only by the bench or only by the simulated
    // endpoint. So compare the counts only if neither of them has a message left. Ask both, because the endpoint may
    // still have messages for which the bench has stopped waiting.
    let is_whole = record.ledger.in_flight == Some(0) && left == 0;
    if left > 0 && record.ledger.in_flight == Some(0) {
        let text = format!("The stand-in still had {} when the run ended: counts differ.", counted(left, "message"));
        judge::add_reason(&mut record.verdict, Reason::new(Cause::Remark, text), &pass);
    }
    let is_true = truth.counts.iter().all(|row| row.done == row.seen);
    for row in truth.counts.iter().filter(|row| is_whole && row.done != row.seen) {
        let text = format!(
            "The bench counted {} where the stand-in counted {}: {}. Please report this bug of mailrun.",
            row.seen, row.done, row.name
        );
        judge::add_reason(&mut record.verdict, Reason::new(Cause::Unaccounted, text), &pass);
    }
    if is_whole && is_true && !faults.is_empty() {
        let ordered = format!("As ordered ({}): all counts of the bench and the stand-in agree.", faults.join(", "));
        // The user ordered these faults, so losses and other failures that they can cause do not fail the run. But if
        // the user has set a threshold for a failure, the threshold decides.
        let threshold_causes: Vec<Cause> =
            Fate::ALL.into_iter().filter(|fate| has_threshold(record, *fate)).map(Fate::cause).collect();
        let excused: Vec<Cause> = FAULT_CAUSES.into_iter().filter(|cause| !threshold_causes.contains(cause)).collect();
        judge::accept_ordered(&mut record.verdict, &excused, Reason::new(Cause::Ordered, ordered), &pass);
    }
    if let Some(mades) = &mut record.mades {
        mades.truth = Some(truth);
    }
}

fn counts(record: &Record, mades: &Mades, totals: &StandInTotals) -> Vec<MadesCount> {
    let stage = |name: Stage| record.stage(name).cloned().unwrap_or_else(|| StageRow::new(name, "mades"));
    let arrivals = |row: StageRow| row.count + row.duplicates;
    let troubles = |kind: &str| mades.troubles.iter().filter(|row| row.kind == kind).map(|row| row.count).sum::<u64>();
    let ledger = &record.ledger;
    let is_toolbox = mades.mode == "toolbox";
    // If a message fails silently in a toolbox, the bench hears nothing more of it, as if the toolbox had lost the
    // message. So count such a message as lost.
    let silent = if is_toolbox { totals.failed_silently } else { 0 };
    let lost = totals.lost + silent;
    let unanswered = totals.unanswered + if is_toolbox { totals.lost } else { 0 };
    let mut rows = vec![
        ("taken from the outbox", totals.consumed, ledger.accepted.unwrap_or_default()),
        ("refused", totals.refused, troubles("error reply")),
        ("failed", totals.failed - silent, troubles("FAILED")),
        // When the counts are compared, the simulated endpoint has no message left. So it must have lost the messages
        // that the bench still counts as queued in the outbox.
        ("lost", lost, ledger.lost.unwrap_or_default() + ledger.queued.unwrap_or_default()),
        ("not replied to", unanswered, stage(Stage::Replied).missing),
    ];
    if mades.mode == "tracing" {
        rows.push(("tested", totals.events.tracing, arrivals(stage(Stage::TracingEvent))));
    } else {
        rows.extend([
            ("put into the inbox", totals.inboxed, arrivals(stage(Stage::Inbox))),
            ("put there twice", totals.duplicated, stage(Stage::Inbox).duplicates),
            ("changed, each copy", totals.corrupt_copies, ledger.corrupt.unwrap_or_default()),
            ("overtaken", totals.overtaken, mades.reordered),
        ]);
    }
    if let Some(back) = mades.acknowledgements.as_ref().filter(|back| back.sender == AcknowledgementSender::Receiver) {
        let documents = totals.acknowledgements.as_deref().cloned().unwrap_or_default();
        let missing_documents = documents.refused + documents.failed + documents.lost;
        // The receiver acknowledges only messages that arrived unchanged. So changed messages (`totals.corrupted`)
        // count as not acknowledged.
        rows.extend([
            (
                "acknowledgements put into the inbox",
                documents.inboxed,
                arrivals(stage(Stage::Acknowledged)) + back.rejecting,
            ),
            ("acknowledgements put there twice", documents.duplicated, stage(Stage::Acknowledged).duplicates),
            ("rejecting acknowledgements", documents.rejecting, back.rejecting),
            ("not acknowledged", lost + totals.corrupted + missing_documents, stage(Stage::Acknowledged).missing),
        ]);
    } else if let Some(back) = &mades.acknowledgements {
        let totals = totals.acknowledgements.as_deref().cloned().unwrap_or_default();
        let silent = if is_toolbox { totals.failed_silently } else { 0 };
        rows.extend([
            ("acknowledgements taken", totals.consumed, back.accepted),
            ("acknowledgements refused", totals.refused, back.refused),
            ("acknowledgements failed", totals.failed - silent, back.failed),
            ("acknowledgements delivered", totals.inboxed, arrivals(stage(Stage::Acknowledged)) + back.corrupt),
            ("acknowledgements changed, each copy", totals.corrupt_copies, back.corrupt),
        ]);
    }
    if mades.mode == "endpoint" {
        rows.push(("reported DELIVERED", totals.events.delivered, arrivals(stage(Stage::DeliveredEvent))));
        rows.push(("reported RECEIVED", totals.events.received, arrivals(stage(Stage::ReceivedEvent))));
    }
    rows.into_iter().map(|(name, done, seen)| MadesCount { name: name.to_owned(), done, seen }).collect()
}

fn times(record: &Record, mades: &Mades, totals: &StandInTotals) -> Vec<MadesTimes> {
    let latencies = &totals.latency_ms;
    let by_stage = |name: Stage| match name {
        Stage::Replied => latencies.replied,
        Stage::Inbox => latencies.inboxed,
        Stage::DeliveredEvent | Stage::TracingEvent => latencies.delivered,
        Stage::ReceivedEvent => latencies.received,
        _ => None,
    };
    let row = |stage: &StageRow| {
        let done_ms = Some(by_stage(stage.name)?);
        // Take the bench's times from the histogram. Like the endpoint's times, the histogram contains only messages
        // that arrived. `latency_ms` also includes messages that never arrived.
        let seen_ms = stage.histogram.as_deref().and_then(Latencies::decode).and_then(|times| times.summary());
        Some(MadesTimes { stage: stage.name.name().to_owned(), done_ms, seen_ms: seen_ms.or(stage.latency_ms) })
    };
    let back = mades.acknowledgements.as_ref().map(|back| MadesTimes {
        stage: "inbox → acknowledged".to_owned(),
        done_ms: totals.acknowledgements.as_ref().and_then(|totals| totals.latency_ms.inboxed),
        seen_ms: back.way_back_ms,
    });
    record.stages.iter().filter_map(row).chain(back).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use mailrun_measurement::record::{MadesAcknowledgements, Outcome, Verdict};
    use mailrun_report::sample;

    /// Makes a run in which one message was lost and all others arrived, and the totals of the simulated endpoint for
    /// this run.
    fn run() -> (Record, StandInTotals) {
        let mut record = sample::mades();
        (record.ledger.accepted, record.ledger.lost, record.ledger.in_flight) = (Some(10_000), Some(1), Some(0));
        (record.ledger.corrupt, record.verdict.closed) = (Some(0), true);
        let mades = record.mades.as_mut().unwrap();
        mades.troubles.clear();
        record.stages.iter_mut().for_each(|row| row.missing = 0);
        let events = EventTotals { delivered: 9_999, received: 9_999, ..EventTotals::default() };
        let latency = LatencyMs { p50: 7.0, ..LatencyMs::default() };
        let latency_ms = StandInLatencies { inboxed: Some(latency), ..StandInLatencies::default() };
        let totals =
            StandInTotals { consumed: 10_000, lost: 1, inboxed: 9_999, events, latency_ms, ..StandInTotals::default() };
        (record, totals)
    }

    #[test]
    fn who_agrees_closes_the_account() {
        let (mut record, totals) = run();
        let reasons = record.verdict.reasons.len();
        compare(&mut record, &totals, &[]);
        let truth = record.mades.unwrap().truth.unwrap();
        assert!(truth.counts.iter().all(|row| row.done == row.seen), "{truth:?}");
        assert!(truth.counts.len() == 11 && truth.times.len() == 1, "{truth:?}");
        assert!(record.verdict.closed && record.verdict.reasons.len() == reasons);
    }

    #[test]
    fn what_was_ordered_and_told_is_no_failure() {
        let lost = Reason::new(Cause::Lost, "1 of 10,000 lost.");
        for (lost_count, outcome) in [(1, Outcome::Pass), (2, Outcome::Fail)] {
            let (mut record, mut totals) = run();
            record.verdict = judge::decide(vec![lost.clone()], "");
            totals.lost = lost_count;
            compare(&mut record, &totals, &["drop 0.1".to_owned()]);
            assert_eq!(record.verdict.outcome, Some(outcome), "{:?}", record.verdict);
        }
        let (mut record, totals) = run();
        record.verdict = judge::decide(vec![lost], "");
        compare(&mut record, &totals, &[]);
        assert_eq!(record.verdict.outcome, Some(Outcome::Fail), "nobody ordered it");
        assert_ne!(record.verdict, Verdict::default());
    }

    #[test]
    fn who_does_not_leaves_it_open_by_name() {
        type TotalsEdit = fn(&mut StandInTotals);
        let changes: [(TotalsEdit, &str); 4] = [
            (|totals| totals.lost = 2, "lost"),
            (|totals| totals.overtaken = 1, "overtaken"),
            (|totals| totals.refused = 5, "refused"),
            (|totals| totals.events.received = 9_998, "reported RECEIVED"),
        ];
        for (change, name) in changes {
            let (mut record, mut totals) = run();
            change(&mut totals);
            compare(&mut record, &totals, &[]);
            assert!(!record.verdict.closed, "{name}");
            assert!(record.verdict.reasons.iter().any(|reason| reason.contains(name)), "{:?}", record.verdict);
            assert_eq!(record.verdict.outcome, Some(Outcome::Fail));
            let (mut record, mut totals) = run();
            change(&mut totals);
            record.ledger.in_flight = Some(3);
            compare(&mut record, &totals, &[]);
            assert!(record.verdict.closed, "{name}: what is on its way is counted by one of them");
            let left: [TotalsEdit; 2] = [|totals| totals.waiting = 88, |totals| totals.unfinished = 88];
            for leave in left {
                let (mut record, mut totals) = run();
                change(&mut totals);
                leave(&mut totals);
                compare(&mut record, &totals, &[]);
                assert!(record.verdict.closed, "{name}: the bench gave up on messages that the stand-in had not done");
                let remark = "The stand-in still had 88 messages when the run ended: counts differ.";
                assert!(record.verdict.reasons.iter().any(|reason| reason == remark), "{:?}", record.verdict);
            }
        }
    }

    #[test]
    fn acknowledgements_are_held_to_counts_of_their_own() {
        let (mut record, mut totals) = run();
        let mades = record.mades.as_mut().unwrap();
        let back =
            MadesAcknowledgements { sent: 9_999, accepted: 9_999, corrupt: 1, ..MadesAcknowledgements::default() };
        mades.acknowledgements = Some(back);
        let row = StageRow::new(Stage::Acknowledged, "mades");
        record.stages.push(StageRow { count: 9_990, duplicates: 3, ..row });
        let latency = LatencyMs { p50: 4.0, ..LatencyMs::default() };
        let way_back = StandInTotals {
            consumed: 9_999,
            lost: 8,
            inboxed: 9_994,
            corrupt_copies: 1,
            latency_ms: StandInLatencies { inboxed: Some(latency), ..StandInLatencies::default() },
            ..StandInTotals::default()
        };
        totals.acknowledgements = Some(Box::new(way_back));
        compare(&mut record, &totals, &[]);
        let truth = record.mades.as_ref().unwrap().truth.as_ref().unwrap();
        assert!(truth.counts.iter().all(|row| row.done == row.seen) && truth.counts.len() == 16, "{truth:?}");
        assert_eq!(truth.times.last().unwrap().done_ms.map(|times| times.p50), Some(4.0));
        totals.acknowledgements.as_mut().unwrap().inboxed = 9_993;
        compare(&mut record, &totals, &[]);
        let reasons = &record.verdict.reasons;
        assert!(reasons.iter().any(|reason| reason.contains("acknowledgements delivered")), "{reasons:?}");
    }

    #[test]
    fn documents_of_the_receiver_are_held_to_what_came_and_what_did_not() {
        let (mut record, mut totals) = run();
        let mades = record.mades.as_mut().unwrap();
        let sender = AcknowledgementSender::Receiver;
        let back = MadesAcknowledgements { sender, rejecting: 7, ..MadesAcknowledgements::default() };
        mades.acknowledgements = Some(back);
        let row = StageRow::new(Stage::Acknowledged, "mades");
        // Of 10,000 messages, one was lost and two were changed, so the receiver acknowledges 9,997. Four of these
        // acknowledgements do not arrive. In total, acknowledgements of 3 + 4 = 7 messages are missing.
        record.stages.push(StageRow { count: 9_986, duplicates: 3, missing: 7, ..row });
        (totals.corrupted, totals.corrupt_copies) = (2, 2);
        record.ledger.corrupt = Some(2);
        let documents = StandInTotals {
            consumed: 9_997,
            refused: 1,
            lost: 2,
            failed: 1,
            inboxed: 9_996,
            duplicated: 3,
            rejecting: 7,
            ..StandInTotals::default()
        };
        totals.acknowledgements = Some(Box::new(documents));
        let disagreeing = |totals: &StandInTotals| {
            let rows = counts(&record, record.mades.as_ref().unwrap(), totals);
            let rows = rows.into_iter().filter(|row| row.done != row.seen);
            rows.map(|row| row.name).collect::<Vec<_>>()
        };
        assert_eq!(disagreeing(&totals), Vec::<String>::new());
        totals.acknowledgements.as_mut().unwrap().rejecting = 6;
        assert_eq!(disagreeing(&totals), ["rejecting acknowledgements"]);
        totals.corrupted = 1;
        totals.acknowledgements.as_mut().unwrap().rejecting = 7;
        assert_eq!(disagreeing(&totals), ["not acknowledged"]);
    }

    #[test]
    fn a_toolbox_that_is_silent_has_lost_the_message_as_far_as_anybody_sees() {
        let (mut record, mut totals) = run();
        (totals.lost, totals.failed, totals.failed_silently, totals.unanswered) = (2, 4, 1, 5);
        let mades = record.mades.as_mut().unwrap();
        mades.mode = "toolbox".to_owned();
        let counts = counts(&record, record.mades.as_ref().unwrap(), &totals);
        let done = |name: &str| counts.iter().find(|row| row.name == name).unwrap().done;
        assert_eq!((done("lost"), done("failed"), done("not replied to")), (3, 3, 7));
    }
}
