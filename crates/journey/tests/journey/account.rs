//! The account: the books of both ends give the fates, and the verdict names what is amiss with its count.
use crate::sample;
use journey::account::{Arrivals, Between, Books, conclude, fates_sum, held, settle};
use journey::record::{
    Arrival, ExhaustedRow, LatencyMs, LedgerRow, PauseRow, Record, Resource, Role, Surroundings, ThresholdRow,
};
use journey::{Ledger, Phase, Stage};
use std::ops::Range;

fn ledger(sequences: Range<u64>) -> Ledger {
    let mut ledger = Ledger::default();
    sequences.for_each(|sequence| _ = ledger.mark(sequence, 0));
    ledger
}

fn arrivals(units: &Ledger) -> Arrivals<'_> {
    Arrivals { units, duplicates: 0, corrupt: 0, converted: 0, foreign: 0, untimed: 0, overflow: 0 }
}

fn settled(created: u64, accepted: &Ledger, delivered: &Ledger, open: u64) -> LedgerRow {
    let arrivals = Some(arrivals(delivered));
    settle(Books { recipients_created: created, accepted, arrivals, open, overflow: 0 })
}

/// The fates in the order delivered, rejected, lost, in flight.
fn fates(row: &LedgerRow) -> [u64; 4] {
    [row.delivered, row.rejected, row.lost, row.in_flight].map(|count| count.unwrap())
}

#[test]
fn what_was_accepted_and_did_not_arrive_is_lost() {
    let row = settled(12, &ledger(0..10), &ledger(0..7), 0);
    assert_eq!(fates(&row), [7, 2, 3, 0]);
    assert!(fates_sum(&row));
}

#[test]
fn what_arrived_though_no_reply_was_heard_is_delivered() {
    // 10 accepted; 10..12 arrived though their replies never came; 2 more are open.
    let row = settled(20, &ledger(0..10), &ledger(0..12), 4);
    assert_eq!(fates(&row), [12, 6, 0, 2]);
    // The peer took it and then the connection broke: the source counts it as given up, the sink has it.
    let row = settled(20, &ledger(0..10), &ledger(0..12), 0);
    assert_eq!(fates(&row), [12, 8, 0, 0]);
    assert!(fates_sum(&row));
}

#[test]
fn books_that_contradict_each_other_do_not_sum() {
    let row = settled(5, &ledger(0..5), &ledger(0..9), 0);
    assert!(!fates_sum(&row));
    let verdict = conclude(&with(row), Between::Nothing);
    assert!(!verdict.closed);
    assert!(verdict.reasons[0].contains("sum to 9 and not to the 5 messages created"), "{:?}", verdict.reasons);
}

#[test]
fn without_a_sink_delivery_is_unknown() {
    let books = Books { recipients_created: 12, accepted: &ledger(0..9), arrivals: None, open: 1, overflow: 0 };
    let row = settle(books);
    let unknown = [row.delivered, row.lost, row.duplicates, row.corrupt, row.foreign];
    assert_eq!(unknown, [None; 5]);
    assert_eq!((row.in_flight, row.rejected), (Some(10), Some(2)));
    assert!(fates_sum(&row));
    let mut record = with(row);
    record.verdict = conclude(&record, Between::Server);
    assert!(!record.verdict.closed && record.verdict.valid && held(&record));
    assert!(record.verdict.reasons[0].contains("Delivery is unknown"));
}

fn with(ledger: LedgerRow) -> Record {
    Record { ledger, ..sample::run() }
}

/// The verdict's first reason after a change to a run that closes.
fn changed(change: impl FnOnce(&mut Record), between: Between) -> (Record, String) {
    let mut record = sample::run();
    change(&mut record);
    record.verdict = conclude(&record, between);
    let reason = record.verdict.reasons.first().cloned().unwrap_or_default();
    (record, reason)
}

#[test]
fn a_run_that_closes_holds_and_says_that_nothing_stood_between() {
    let (record, reason) = changed(|_| (), Between::Nothing);
    assert!(record.verdict.closed && record.verdict.valid && held(&record));
    assert_eq!(reason, "No server stood between: this is the ceiling of source and sink on this host.");
    let (record, _) = changed(|_| (), Between::Server);
    assert_eq!(record.verdict.reasons, Vec::<String>::new());
}

#[test]
fn each_blemish_keeps_the_ledger_open_and_is_named_with_its_count() {
    type Change = fn(&mut LedgerRow);
    let blemishes: [(Change, &str); 4] = [
        (
            |ledger| (ledger.delivered, ledger.lost) = (Some(98), Some(2)),
            "2 of 100 messages were accepted and never arrived: lost 2.",
        ),
        (|ledger| ledger.duplicates = Some(3), "3 of 100 messages arrived more than once: duplicates 3."),
        (
            |ledger| ledger.corrupt = Some(4),
            "4 messages arrived with a body that does not fit their checksum: corrupt 4.",
        ),
        (
            |ledger| ledger.overflow = Some(5),
            "5 messages did not fit into the ledger, so what became of them is unknown: send fewer in one run.",
        ),
    ];
    for (change, expected) in blemishes {
        let (record, reason) = changed(|record| change(&mut record.ledger), Between::Nothing);
        assert_eq!(reason, expected);
        assert!(!record.verdict.closed && record.verdict.valid && !held(&record), "{expected}");
    }
}

#[test]
fn several_recipients_make_copies() {
    let lose_two = |record: &mut Record| {
        record.workload.recipients = 3;
        (record.ledger.delivered, record.ledger.lost) = (Some(98), Some(2));
    };
    let (_, reason) = changed(lose_two, Between::Nothing);
    assert!(reason.starts_with("2 of 100 copies (message × recipient) were accepted"), "{reason}");
}

#[test]
fn remarks_do_not_keep_the_ledger_open() {
    let (record, _) = changed(
        |record| {
            record.ledger.untimed = Some(7);
            (record.ledger.delivered, record.ledger.in_flight) = (Some(90), Some(10));
        },
        Between::Server,
    );
    assert!(record.verdict.closed && record.verdict.valid && held(&record));
    assert_eq!(record.verdict.reasons[0], "10 messages were still in flight when the run ended.");
    assert!(record.verdict.reasons[1].starts_with("7 messages were dated by another host's clock"));
}

#[test]
fn a_run_in_which_nothing_was_accepted_does_not_hold() {
    let refuse_all = |record: &mut Record| {
        let ledger = &mut record.ledger;
        (ledger.accepted, ledger.delivered, ledger.rejected) = (Some(0), Some(0), Some(100));
    };
    let (record, reason) = changed(refuse_all, Between::Server);
    assert!(record.verdict.closed && !held(&record));
    assert_eq!(reason, "Nothing was accepted; see the errors.");
}

#[test]
fn a_missed_goal_does_not_hold() {
    let miss = |record: &mut Record| {
        record.thresholds.push(ThresholdRow { expression: "p99 < 1 ms".to_owned(), value: 2.0, passed: false });
    };
    let (record, _) = changed(miss, Between::Server);
    assert!(record.verdict.closed && !held(&record));
}

#[test]
fn a_sink_by_itself_holds_though_it_cannot_close_the_account() {
    let alone = |record: &mut Record| {
        record.ledger = LedgerRow { delivered: Some(5), duplicates: Some(0), ..LedgerRow::default() };
    };
    let (record, _) = changed(alone, Between::Server);
    assert!(!record.verdict.closed && record.verdict.valid && held(&record));
}

fn open_loop(arrival: Arrival, lag_p99_ms: f64, rate_per_s: f64) -> (Record, String) {
    changed(
        |record| {
            record.workload.arrival = arrival;
            record.workload.rate_per_s = Some(10.0);
            let created = record.stages.iter_mut().find(|row| row.name == Stage::Created).unwrap();
            created.rate_per_s = rate_per_s;
            record.lag_ms = Some(LatencyMs { p99: lag_p99_ms, ..LatencyMs::default() });
        },
        Between::Server,
    )
}

#[test]
fn a_source_that_falls_behind_its_schedule_makes_the_run_invalid() {
    assert!(open_loop(Arrival::Constant, 9.9, 9.6).0.verdict.valid);
    let (record, reason) = open_loop(Arrival::Constant, 10.1, 10.0);
    assert!(record.verdict.closed && !record.verdict.valid);
    assert!(reason.contains("started 10.1 ms late or later") && reason.contains("--workers"), "{reason}");
    let (record, reason) = open_loop(Arrival::Constant, 1.0, 9.4);
    assert!(!record.verdict.valid);
    assert!(reason.contains("offered 9 messages a second of the 10 asked for"), "{reason}");
    assert!(open_loop(Arrival::Poisson, 1.0, 9.4).0.verdict.valid, "100 Poisson arrivals scatter by a tenth");
    assert!(open_loop(Arrival::Closed, 99.0, 1.0).0.verdict.valid, "a closed loop has no schedule");
}

#[test]
fn waiting_for_a_busy_session_is_said_and_is_not_the_sources_fault() {
    let waiting = |record: &mut Record| {
        record.workload.arrival = Arrival::Constant;
        let created = record.stages.iter_mut().find(|row| row.name == Stage::Created).unwrap();
        created.latency_ms = Some(LatencyMs { p99: 950.0, ..LatencyMs::default() });
    };
    let (record, reason) = changed(waiting, Between::Server);
    assert!(record.verdict.valid && reason.contains("waited 950.0 ms or longer for a free session"), "{reason}");
}

#[test]
fn a_busy_source_or_sink_makes_a_servers_figures_invalid() {
    for (role, between, valid) in [
        (Role::Source, Between::Server, false),
        (Role::Sink, Between::Server, false),
        (Role::Relay, Between::Server, true),
        (Role::Source, Between::Nothing, true),
    ] {
        let busy = |record: &mut Record| {
            let mut party = sample::party(role, "one");
            (party.user_s, party.sys_s, party.workers) = (Some(8.0), Some(10.1), Some(2));
            record.parties.push(party);
        };
        let (record, reason) = changed(busy, between);
        assert_eq!(record.verdict.valid, valid, "{role:?} {between:?}");
        assert_eq!(reason.contains("The one used 90 % of its 2 worker(s)' time"), !valid, "{reason}");
    }
}

#[test]
fn what_ran_out_makes_figures_invalid_and_the_ledger_still_closes() {
    for resource in [Resource::Descriptors, Resource::HostDescriptors, Resource::Ports] {
        let row = ExhaustedRow { party: "source".to_owned(), resource, count: 1, limit: None, needed: None };
        let (record, reason) = changed(|record| record.exhausted.push(row), Between::Nothing);
        assert!(record.verdict.closed && !record.verdict.valid && held(&record), "{resource:?}");
        assert!(reason.contains("source"), "{reason}");
    }
}

#[test]
fn a_session_that_failed_by_a_defect_of_ours_fails_the_run_and_makes_figures_invalid() {
    for (failed, valid) in [(Some(2), false), (Some(0), true), (None, true)] {
        let fail = |record: &mut Record| record.parties[0].failed_sessions = failed;
        let (record, reason) = changed(fail, Between::Server);
        assert_eq!(record.verdict.valid, valid, "{failed:?}");
        assert_eq!((record.verdict.closed, held(&record)), (valid, valid), "{failed:?}");
        assert_eq!(reason.contains("2 session(s) of the source ended by a defect"), !valid, "{reason}");
    }
}

#[test]
fn what_may_have_disturbed_a_run_is_said_and_leaves_it_valid() {
    let around = |around: Surroundings| move |record: &mut Record| record.surroundings = Some(around);
    let pause = PauseRow { party: "source".to_owned(), phase: Phase::Reply, count: 50, of: 1000 };
    type Change = Box<dyn FnOnce(&mut Record)>;
    let cases: [(Change, bool, &str); 6] = [
        (Box::new(around(Surroundings { steal_share: Some(0.2), ..Default::default() })), true, "(steal)"),
        (Box::new(around(Surroundings { steal_share: Some(0.3), ..Default::default() })), false, "(steal)"),
        (Box::new(around(Surroundings { other_busy_share: Some(0.5), ..Default::default() })), true, "Other processes"),
        (Box::new(around(Surroundings { listen_drops: Some(1), ..Default::default() })), true, "somaxconn"),
        (Box::new(move |record| record.pauses.push(pause)), true, "TCP_NODELAY"),
        (
            Box::new(|record| record.lag_ms = Some(LatencyMs { max: 101.0, ..LatencyMs::default() })),
            true,
            "up to 101 ms late",
        ),
    ];
    for (change, valid, words) in cases {
        let (record, reason) = changed(change, Between::Server);
        assert_eq!(record.verdict.valid, valid, "{reason}");
        assert!(reason.contains(words) && record.verdict.reasons.len() == 1, "{reason}");
    }
}
