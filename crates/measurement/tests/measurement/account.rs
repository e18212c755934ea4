//! Tests of the account of a run, which tells how many units had each fate, such as delivered or lost. A unit is a pair
//! of message and recipient. The account is computed from the counts of source and sink. The verdict must name each
//! fault and its count.
use crate::sample;
use mailrun_measurement::account::{AccountInputs, Arrivals, RelayInputs, ServerQueue, Topology, fates_sum, reconcile};
use mailrun_measurement::judge::{VerdictInputs, judge};
use mailrun_measurement::record::{
    Arrival, BounceRow, BusyPollRow, Cause, Ending, ErrorRow, ExhaustedRow, LatencyMs, LedgerRow, MadesShape, Ordered,
    Outcome, Party, PartyUsage, PauseRow, Record, Resource, RewriteRow, Role, ServerRow, StageRow, StallRow,
    Surroundings, ThresholdRow, UsageRow, Verdict, WarmUp,
};
use mailrun_measurement::threshold::{RunProtocol, Threshold, unseen_reason};
use mailrun_measurement::{Latencies, LatencyKind, Ledger, Phase, SourceTally, Stage};
use std::ops::Range;
use std::sync::LazyLock;
use std::time::Duration;

fn ledger(sequences: Range<u64>) -> Ledger {
    let mut ledger = Ledger::default();
    sequences.for_each(|sequence| _ = ledger.mark(sequence, 0));
    ledger
}

fn arrivals(units: &Ledger) -> Arrivals<'_> {
    static NONE: LazyLock<Ledger> = LazyLock::new(Ledger::default);
    Arrivals::unharmed(units, &NONE)
}

/// Numbers of units that the source counted as rejected, failed, in doubt or still open, and not as accepted.
#[derive(Default)]
struct SourceCounts {
    rejected: u64,
    failed: u64,
    in_doubt: u64,
    open: u64,
}

fn settled(accepted: &Ledger, delivered: &Ledger, counted: SourceCounts) -> LedgerRow {
    reconcile(account_inputs(accepted, Some(arrivals(delivered)), counted))
}

fn account_inputs<'a>(
    accepted: &'a Ledger,
    arrivals: Option<Arrivals<'a>>,
    counted: SourceCounts,
) -> AccountInputs<'a> {
    let SourceCounts { rejected, failed, in_doubt, open } = counted;
    let recipients_created = accepted.count() + rejected + failed + in_doubt + open;
    AccountInputs {
        recipients_created,
        accepted,
        rejected,
        failed,
        in_doubt,
        has_reply_for_each: false,
        open,
        overflow: 0,
        arrivals,
        queue: ServerQueue::Absent,
    }
}

/// Returns the numbers of units that were delivered, rejected, failed, lost or in flight, in this order.
fn fates(row: &LedgerRow) -> [u64; 5] {
    [row.delivered, row.rejected, row.failed, row.lost, row.in_flight].map(|count| count.unwrap())
}

#[test]
fn what_was_accepted_and_did_not_arrive_is_lost() {
    let row = settled(&ledger(0..10), &ledger(0..7), SourceCounts { rejected: 2, ..SourceCounts::default() });
    assert_eq!(fates(&row), [7, 2, 0, 3, 0]);
    assert!(fates_sum(&row));
}

#[test]
fn what_arrived_though_no_reply_was_heard_is_delivered() {
    // The source got a 250 for ten units (a unit is one recipient of a message). Two more units arrived, but their
    // replies were lost.
    let counted = |rejected, failed, open| SourceCounts { rejected, failed, open, ..SourceCounts::default() };
    let row = settled(&ledger(0..10), &ledger(0..12), counted(6, 0, 4));
    assert_eq!(fates(&row), [12, 6, 0, 0, 2]);
    // The connection broke after the peer had accepted two units. The source counts them as failed, but they arrived.
    let row = settled(&ledger(0..10), &ledger(0..12), counted(3, 7, 0));
    assert_eq!(fates(&row), [12, 3, 5, 0, 0]);
    // Only one unit failed, so the other must be a rejected unit that the peer delivered nevertheless.
    let row = settled(&ledger(0..10), &ledger(0..12), counted(3, 1, 0));
    assert_eq!(fates(&row), [12, 2, 0, 0, 0]);
    assert!(fates_sum(&row));
}

#[test]
fn what_is_in_the_relays_queue_is_not_lost() {
    let accepted = ledger(0..10);
    let delivered = ledger(0..6);
    let queued = ledger(5..9);
    let arrivals = Some(arrivals(&delivered));
    let with = |given_up| AccountInputs {
        queue: ServerQueue::Known(RelayInputs { queued: &queued, given_up }),
        ..account_inputs(&accepted, arrivals, SourceCounts::default())
    };
    let row = reconcile(with(0));
    assert_eq!((row.queued, row.lost, row.expired), (Some(3), Some(1), Some(0)));
    let row = reconcile(with(7));
    assert_eq!((row.lost, row.expired), (Some(0), Some(1)), "it has given up no more than is missing");
    assert!(fates_sum(&row));
}

#[test]
fn each_unit_has_the_fate_that_an_event_shows() {
    struct Situation {
        what: &'static str,
        accepted: Range<u64>,
        /// Number of units that the source counted as rejected, and number of units that it counted as failed because
        /// the connection broke.
        unheard: [u64; 2],
        delivered: Range<u64>,
        bounced: Range<u64>,
        /// Units in the queue of mailrun's relay, and the number of units on which the relay gave up. `None` if the
        /// queue cannot be read.
        relay: Option<(Range<u64>, u64)>,
        /// Expected numbers of units that are delivered, bounced, rejected, failed, expired, queued, and missing (lost
        /// or not delivered).
        fates: [u64; 7],
    }
    let plain = |what, delivered, bounced, relay, fates| Situation {
        what,
        accepted: 0..10,
        unheard: [0, 0],
        delivered,
        bounced,
        relay,
        fates,
    };
    for Situation { what, accepted, unheard, delivered, bounced, relay, fates } in [
        plain("nothing bounced", 0..10, 0..0, None, [10, 0, 0, 0, 0, 0, 0]),
        plain("the next hop refused two", 0..8, 8..10, None, [8, 2, 0, 0, 0, 0, 0]),
        plain("the next hop refused all", 0..0, 0..10, None, [0, 10, 0, 0, 0, 0, 0]),
        plain("a notice about a unit that arrived anyway", 0..9, 7..10, None, [9, 1, 0, 0, 0, 0, 0]),
        plain("some bounced, others are in no place that anybody can see", 0..6, 8..10, None, [6, 2, 0, 0, 0, 0, 2]),
        plain("our relay gave up on two, and both notices came", 0..8, 8..10, Some((0..0, 2)), [8, 2, 0, 0, 0, 0, 0]),
        plain("our relay gave up on two, and one notice came", 0..8, 9..10, Some((0..0, 2)), [8, 1, 0, 0, 1, 0, 0]),
        plain("our relay gave up on one and lost another", 0..8, 9..10, Some((0..0, 1)), [8, 1, 0, 0, 0, 0, 1]),
        plain("a notice that our relay sent before it noted so", 0..8, 8..9, Some((8..10, 1)), [8, 1, 0, 0, 0, 1, 0]),
        Situation {
            unheard: [0, 3],
            fates: [8, 3, 0, 2, 0, 0, 0],
            ..plain("one of them failed at the source, but the server had it", 0..8, 8..11, None, [0; 7])
        },
        Situation {
            unheard: [3, 0],
            fates: [8, 0, 3, 0, 0, 0, 2],
            ..plain("the server rewrote the recipients before it gave up", 0..8, 90..95, None, [0; 7])
        },
    ] {
        let [accepted, delivered, bounced] = [accepted, delivered, bounced].map(ledger);
        let queued = relay.clone().map(|(queued, _)| ledger(queued));
        let [rejected, failed] = unheard;
        let arrived = Arrivals { bounced: &bounced, ..arrivals(&delivered) };
        let queue = match (&queued, relay) {
            (Some(queued), Some((_, given_up))) => ServerQueue::Known(RelayInputs { queued, given_up }),
            _ => ServerQueue::Unknown,
        };
        let counted = SourceCounts { rejected, failed, ..SourceCounts::default() };
        let row = reconcile(AccountInputs { queue, ..account_inputs(&accepted, Some(arrived), counted) });
        let missing = row.lost.or(row.not_delivered);
        let found = [row.delivered, row.bounced, row.rejected, row.failed, row.expired, row.queued, missing];
        assert_eq!(found, fates.map(Some), "{what}");
        assert!(fates_sum(&row), "{what}: {row:?}");
    }
}

#[test]
fn recipients_that_a_server_rewrote_leave_an_open_account_that_names_the_remedy() {
    // The server rewrote 90 of 100 addresses, as Postfix does with canonical_maps. The sink computes a recipient's
    // number from the address, so 90 units have other numbers.
    let delivered: Ledger = {
        let mut units = ledger(0..10);
        units.merge(&ledger(1_000..1_090));
        units
    };
    for (recipients, is_named) in [(3, true), (1, false)] {
        let queue = ServerQueue::Unknown;
        let accepted = ledger(0..100);
        let inputs = account_inputs(&accepted, Some(arrivals(&delivered)), SourceCounts::default());
        let mut record = with(reconcile(AccountInputs { queue, ..inputs }));
        record.workload.recipients = recipients;
        let verdict = conclude(&record, Topology::Server);
        assert_eq!((verdict.outcome, verdict.causes[0]), (Some(Outcome::Fail), Cause::Unaccounted), "{verdict:?}");
        assert_eq!(verdict.why.contains("--tag-recipients"), is_named, "{}", verdict.why);
    }
}

/// Returns a ledger of these units. Each unit is given by the number of its message and the number of its recipient.
fn units(pairs: &[(u64, u32)]) -> Ledger {
    let mut ledger = Ledger::default();
    pairs.iter().for_each(|(sequence, recipient)| _ = ledger.mark(*sequence, *recipient));
    ledger
}

#[test]
fn recipients_that_the_source_did_not_name_stand_for_those_that_are_missing() {
    struct Situation {
        what: &'static str,
        accepted: &'static [(u64, u32)],
        in_doubt: u64,
        has_reply_for_each: bool,
        arrived: &'static [(u64, u32)],
        bounced: &'static [(u64, u32)],
        queued: Option<&'static [(u64, u32)]>,
        /// Expected numbers of units that are delivered, bounced, queued, missing and in doubt.
        fates: [u64; 5],
        /// Expected number of recipients whose address a server rewrote, and expected number of copies that the server
        /// sent to further recipients.
        beside: [u64; 2],
    }
    const TWO: &[(u64, u32)] = &[(1, 5), (1, 6), (2, 5), (2, 6)];
    let plain = |what, arrived, fates, beside| Situation {
        what,
        accepted: TWO,
        in_doubt: 0,
        has_reply_for_each: false,
        arrived,
        bounced: &[],
        queued: None,
        fates,
        beside,
    };
    const ONE_LACKS_A_REPLY: &[(u64, u32)] = &[(1, 5), (2, 5), (2, 6)];
    for Situation { what, accepted, in_doubt, has_reply_for_each, arrived, bounced, queued, fates, beside } in [
        plain("all arrived", TWO, [4, 0, 0, 0, 0], [0, 0]),
        plain("one is missing", &[(1, 5), (1, 6), (2, 6)], [3, 0, 0, 1, 0], [0, 0]),
        plain("one was rewritten", &[(1, 5), (1, 6), (2, 6), (2, 9)], [4, 0, 0, 0, 0], [1, 0]),
        plain("all were rewritten", &[(1, 7), (1, 8), (2, 7), (2, 8)], [4, 0, 0, 0, 0], [4, 0]),
        plain("a copy of each", &[(1, 5), (1, 6), (2, 5), (2, 6), (1, 9), (2, 9)], [4, 0, 0, 0, 0], [0, 2]),
        plain("two aliases of one", &[(1, 7), (1, 8), (1, 6), (2, 5), (2, 6)], [4, 0, 0, 0, 0], [1, 1]),
        plain("rewritten to the other recipient", &[(1, 6), (2, 5), (2, 6)], [3, 0, 0, 1, 0], [0, 0]),
        plain("another message's", &[(1, 5), (1, 6), (2, 5), (2, 6), (3, 9)], [5, 0, 0, 0, 0], [0, 0]),
        Situation {
            in_doubt: 1,
            ..plain("a message in doubt arrived", &[(1, 5), (1, 6), (2, 5), (2, 6), (3, 9)], [5, 0, 0, 0, 0], [0, 0])
        },
        Situation {
            accepted: ONE_LACKS_A_REPLY,
            in_doubt: 1,
            has_reply_for_each: true,
            ..plain("LMTP: a recipient in doubt arrived", TWO, [4, 0, 0, 0, 0], [0, 0])
        },
        Situation {
            accepted: ONE_LACKS_A_REPLY,
            in_doubt: 1,
            ..plain("SMTP: another message is in doubt, and this has a copy", TWO, [3, 0, 0, 0, 1], [0, 1])
        },
        Situation {
            bounced: &[(2, 9)],
            ..plain("rewritten, and then bounced", &[(1, 5), (1, 6), (2, 6)], [3, 1, 0, 0, 0], [0, 0])
        },
        Situation { bounced: &[(1, 9)], ..plain("the copy of a delivered one bounced", TWO, [4, 0, 0, 0, 0], [0, 0]) },
        Situation {
            bounced: &[(1, 9)],
            ..plain("the copy of a rewritten one bounced", &[(1, 7), (1, 6), (2, 5), (2, 6)], [4, 0, 0, 0, 0], [1, 0])
        },
        Situation {
            queued: Some(&[(1, 9), (2, 6)]),
            ..plain("a rewritten one is in the queue", &[(1, 6), (2, 5)], [2, 0, 2, 0, 0], [0, 0])
        },
    ] {
        let [accepted, arrived, bounced] = [accepted, arrived, bounced].map(units);
        let queued = queued.map(units);
        let queue = match &queued {
            Some(queued) => ServerQueue::Known(RelayInputs { queued, given_up: 0 }),
            None => ServerQueue::Unknown,
        };
        let arrivals = Arrivals { bounced: &bounced, ..arrivals(&arrived) };
        let counted = SourceCounts { in_doubt, ..SourceCounts::default() };
        let inputs = account_inputs(&accepted, Some(arrivals), counted);
        let row = reconcile(AccountInputs { queue, has_reply_for_each, ..inputs });
        let missing = row.lost.or(row.not_delivered);
        let found = [row.delivered, row.bounced, row.queued, missing, row.in_doubt];
        assert_eq!(found, fates.map(Some), "{what}");
        assert_eq!([row.rewritten, row.copied], beside.map(Some), "{what}");
        // The fates must add up to the number of created messages, unless a message arrived that was never created.
        assert_eq!(fates_sum(&row), what != "another message's", "{what}: {row:?}");
    }
}

#[test]
fn rewritten_recipients_and_copies_are_named_and_fail_a_run_only_by_a_threshold() {
    let row = |original: Option<&str>, address: &str, count| RewriteRow {
        original: original.map(str::to_owned),
        address: address.to_owned(),
        count,
    };
    let record = |[rewritten, copied]: [u64; 2], rewrites: &[RewriteRow], thresholds: &[&str]| {
        let ledger = LedgerRow {
            created: Some(100),
            accepted: Some(100),
            delivered: Some(100),
            rewritten: Some(rewritten),
            copied: Some(copied),
            ..LedgerRow::zero()
        };
        let mut record = with(ledger);
        record.rewrites = rewrites.to_vec();
        let evaluated =
            thresholds.iter().map(|text| Threshold::parse(text, RunProtocol::Smtp).unwrap().evaluate(&record));
        record.thresholds = evaluated.collect();
        record
    };
    let alias = [row(Some("to@a"), "x@b", 100), row(Some("to@a"), "y@b", 100)];
    let many: Vec<RewriteRow> = (0..5).map(|number| row(Some("to@a"), &format!("{number}@b"), 20)).collect();
    for (counts, rewrites, expected) in [
        ([0, 0], &[][..], &[][..]),
        ([100, 0], &alias[..1], &["100 recipients were rewritten: to@a → x@b."]),
        ([1, 0], &[row(Some("to@a"), "x@b", 1)], &["1 recipient was rewritten: to@a → x@b."]),
        (
            [100, 100],
            &alias,
            &[
                "100 recipients were rewritten: to@a → x@b, to@a → y@b.",
                "100 copies arrived for addresses that were no recipients: to@a → x@b, to@a → y@b.",
            ],
        ),
        (
            [0, 100],
            &[row(None, "audit@b", 100)],
            &["100 copies arrived for addresses that were no recipients: audit@b."],
        ),
        (
            [100, 0],
            &many,
            &["100 recipients were rewritten: to@a → 0@b (20), to@a → 1@b (20), to@a → 2@b (20), 2 other pairs."],
        ),
        (
            [100, 0],
            &[],
            &[
                "does not tell to what. It may do so if the source sends ORCPT (mailrun source --dsn-orcpt --dsn-notify failure).",
            ],
        ),
    ] {
        let verdict = conclude(&record(counts, rewrites, &[]), Topology::Server);
        assert_eq!((verdict.outcome, verdict.closed), (Some(Outcome::Pass), true), "{verdict:?}");
        for text in expected {
            assert!(verdict.reasons.iter().any(|reason| reason.contains(text)), "{text}: {verdict:?}");
        }
        let said = |word: &str| verdict.reasons.iter().filter(|reason| reason.contains(word)).count();
        assert_eq!(said("rewritten") + said("copies"), expected.len(), "{verdict:?}");
    }
    for (rewrites, is_named) in [(&[][..], true), (&alias, false)] {
        let mut doubtful = record([90, 0], rewrites, &[]);
        (doubtful.workload.recipients, doubtful.ledger.duplicates) = (3, Some(2));
        let verdict = conclude(&doubtful, Topology::Server);
        assert_eq!((verdict.causes[0], verdict.why.contains("--tag-recipients")), (Cause::Duplicates, is_named));
    }
    let verdict = conclude(&record([3, 2], &alias, &["rewritten <= 0", "copied <= 2"]), Topology::Server);
    assert_eq!((verdict.outcome, verdict.causes[0]), (Some(Outcome::Fail), Cause::Rewritten), "{verdict:?}");
    let verdict = conclude(&record([3, 2], &alias, &["rewritten <= 3%", "copied <= 0"]), Topology::Server);
    assert_eq!((verdict.outcome, verdict.causes[0]), (Some(Outcome::Fail), Cause::Copied), "{verdict:?}");
    let verdict = conclude(&record([3, 2], &alias, &["rewritten <= 3%", "copied <= 2"]), Topology::Server);
    assert_eq!(verdict.why, "100 delivered, none lost, 3 rewritten, 2 copied");
}

#[test]
fn a_unit_whose_reply_was_lost_is_in_doubt_until_somebody_has_it() {
    // Ten units were accepted. Four units were sent completely but got no reply, so they are in doubt. Two units
    // failed, because their connections broke earlier.
    let counted = || SourceCounts { in_doubt: 4, failed: 2, ..SourceCounts::default() };
    let (accepted, none) = (ledger(0..10), ledger(0..0));
    for (what, delivered, bounced, expected) in [
        ("the server has none of them", 0..10, 0..0, [10, 0, 4, 2]),
        ("the server has three of them", 0..13, 0..0, [13, 0, 1, 2]),
        ("two arrived, and one bounced", 0..12, 12..13, [12, 1, 1, 2]),
        ("it has all, and one whose connection broke earlier", 0..15, 0..0, [15, 0, 0, 1]),
    ] {
        let (delivered, bounced) = (ledger(delivered), ledger(bounced));
        let arrived = Arrivals { bounced: &bounced, ..arrivals(&delivered) };
        let row = reconcile(account_inputs(&accepted, Some(arrived), counted()));
        assert_eq!([row.delivered, row.bounced, row.in_doubt, row.failed], expected.map(Some), "{what}");
        assert!(fates_sum(&row), "{what}");
    }
    // The four units are in our relay's queue, so they are no longer in doubt. Without a sink, they stay in doubt.
    let queued = ledger(10..14);
    let queue = ServerQueue::Known(RelayInputs { queued: &queued, given_up: 0 });
    let row = reconcile(AccountInputs { queue, ..account_inputs(&accepted, Some(arrivals(&none)), counted()) });
    assert_eq!((row.queued, row.in_doubt, row.lost), (Some(4), Some(0), Some(10)));
    let row = reconcile(account_inputs(&accepted, None, counted()));
    assert_eq!((row.in_doubt, row.failed, fates_sum(&row)), (Some(4), Some(2), true));

    let ledger = LedgerRow {
        created: Some(100),
        accepted: Some(97),
        delivered: Some(97),
        in_doubt: Some(3),
        ..LedgerRow::zero()
    };
    let record = |thresholds: &[&str]| {
        let mut record = with(ledger.clone());
        let evaluated =
            thresholds.iter().map(|text| Threshold::parse(text, RunProtocol::Smtp).unwrap().evaluate(&record));
        record.thresholds = evaluated.collect();
        record
    };
    let verdict = conclude(&record(&[]), Topology::Server);
    assert_eq!((verdict.outcome, verdict.causes[0]), (Some(Outcome::Fail), Cause::InDoubt), "{verdict:?}");
    assert!(verdict.why.starts_with("In doubt: the connection of 3 of 100 messages broke"), "{}", verdict.why);
    let verdict = conclude(&record(&["in_doubt <= 3%", "failed <= 0"]), Topology::Server);
    assert_eq!((verdict.outcome, verdict.why.as_str()), (Some(Outcome::Pass), "97 of 100 delivered, 3 in doubt"));
}

#[test]
fn what_bounced_fails_a_run_unless_it_was_allowed_or_ordered() {
    let record = |bounced: u64, thresholds: &[&str]| {
        let ledger = LedgerRow {
            created: Some(100),
            accepted: Some(100),
            delivered: Some(100 - bounced),
            bounced: Some(bounced),
            ..LedgerRow::zero()
        };
        let row = |text: &str, count| BounceRow { text: text.to_owned(), count, ..BounceRow::default() };
        let mut record = with(ledger);
        record.bounces = vec![row("550 5.1.1 No such user.", bounced), row("554 5.7.1 Denied", 1)];
        let evaluated =
            thresholds.iter().map(|text| Threshold::parse(text, RunProtocol::Smtp).unwrap().evaluate(&record));
        record.thresholds = evaluated.collect();
        record
    };
    let faults = |replies| Some(Ordered { replies, ..Ordered::default() });
    for (bounced, thresholds, ordered, outcome, why) in [
        (0, &[][..], None, Outcome::Pass, "100 delivered, none lost"),
        (
            2,
            &[],
            None,
            Outcome::Fail,
            "Bounced: 2 of 100 messages were given up by the server, which notified the sender: 550 5.1.1 No such user.",
        ),
        (1, &[], None, Outcome::Fail, "Bounced: 1 of 100 messages was given up by the server"),
        (1, &["bounced <= 1%"], None, Outcome::Pass, "99 of 100 delivered, 1 bounced"),
        (2, &["bounced <= 1%"], None, Outcome::Fail, "Threshold missed: bounced <= 1%; it was 2 %."),
        (2, &[], faults(2), Outcome::Pass, "98 of 100 delivered, 2 bounced (as ordered)"),
        (3, &[], faults(2), Outcome::Fail, "550 5.1.1 No such user. At most 2 of them were asked for."),
    ] {
        let record = record(bounced, thresholds);
        let inputs = VerdictInputs { topology: Topology::Server, ordered, quiet_timeout: None };
        let verdict = judge(&record, &inputs);
        assert_eq!(verdict.outcome, Some(outcome), "{bounced} {thresholds:?}: {verdict:?}");
        assert!(verdict.why.contains(why), "{bounced} {thresholds:?}: {}", verdict.why);
        assert!(verdict.closed, "{verdict:?}");
    }
    let mut record = record(1, &[]);
    (record.ledger.delay_notices, record.ledger.repeated_notices) = (Some(3), Some(1));
    let reasons = conclude(&record, Topology::Server).reasons.join("\n");
    assert!(reasons.contains("3 delay notices arrived") && reasons.contains("1 further notice arrived"), "{reasons}");
}

#[test]
fn mail_that_may_be_in_an_unknown_queue_is_not_delivered_and_never_called_lost() {
    let accepted = ledger(0..10);
    let (some, all) = (ledger(0..8), ledger(0..10));
    let inputs = |arrived| AccountInputs {
        queue: ServerQueue::Unknown,
        ..account_inputs(&accepted, Some(arrivals(arrived)), SourceCounts::default())
    };
    let all = reconcile(inputs(&all));
    assert_eq!((all.lost, all.not_delivered), (Some(0), Some(0)));
    let row = reconcile(inputs(&some));
    assert_eq!((row.lost, row.not_delivered), (None, Some(2)));
    assert!(fates_sum(&row));

    for (banner, name, command) in [
        ("mx.example ESMTP Postfix (Debian/GNU)", "Postfix", "`postqueue -p`"),
        ("mx.example ESMTP Exim 4.98 Thu, 26 Nov 2026", "Exim", "`exim -bp`"),
        ("mx.example ESMTP OpenSMTPD", "OpenSMTPD", "`smtpctl show queue`"),
        ("mx.example ESMTP Sendmail 8.18.1/8.18.1", "Sendmail", "`mailq`"),
    ] {
        let mut record = with(row.clone());
        record.server = Some(ServerRow { banner: banner.to_owned(), extensions: Vec::new() });
        let why = conclude(&record, Topology::Server).why;
        assert!(why.ends_with(&format!("still in {name}'s queue. Look into the queue with {command}.")), "{why}");
    }

    let thresholds: [(&[&str], Outcome, &str); 4] = [
        (
            &[],
            Outcome::Inconclusive,
            "2 of 10 messages were not delivered within 10 s: lost or still in the server's queue. A longer --lost-after waits for retries.",
        ),
        (&["not_delivered <= 0"], Outcome::Fail, "Threshold missed: not_delivered <= 0; it was 2."),
        (&["not_delivered <= 20%"], Outcome::Pass, "8 of 10 delivered, 2 not delivered"),
        (
            &["lost <= 0", "not_delivered <= 2"],
            Outcome::Inconclusive,
            "Threshold not measured: lost <= 0: mail was not delivered, and the server's queue is unknown; use not_delivered.",
        ),
    ];
    for (expressions, outcome, why) in thresholds {
        let mut record = with(row.clone());
        let evaluated =
            expressions.iter().map(|text| Threshold::parse(text, RunProtocol::Smtp).unwrap().evaluate(&record));
        record.thresholds = evaluated.collect();
        let inputs =
            VerdictInputs { topology: Topology::Server, ordered: None, quiet_timeout: Some(Duration::from_secs(10)) };
        let verdict = judge(&record, &inputs);
        assert_eq!((verdict.outcome, verdict.why.as_str()), (Some(outcome), why));
        assert!(!verdict.closed || expressions == ["not_delivered <= 20%"], "{verdict:?}");
    }
}

#[test]
fn messages_that_were_due_and_never_sent_are_late() {
    let mut record = sample::run();
    record.workload.arrival = Arrival::Constant;
    let mut times = Latencies::default();
    (0..100).for_each(|_| times.record(Duration::from_millis(5)));
    record.stages.iter_mut().for_each(|row| row.histogram = times.encoded());
    let judged = |record: &Record, expression: &str| {
        let row = Threshold::parse(expression, RunProtocol::Smtp).unwrap().evaluate(record);
        (row.passed, row.value.map(f64::round), row.beyond.is_some())
    };
    let created = record.stage(Stage::Created).unwrap().count;
    for due in [None, Some(created)] {
        record.due = due;
        assert_eq!(judged(&record, "delivered.within(30s) >= 100%"), (true, Some(100.0), false));
        assert!(judged(&record, "delivered.p99 < 30s").0 && judged(&record, "delivered.max < 30s").0);
    }
    record.due = Some(created * 4 / 3);
    assert_eq!(judged(&record, "delivered.within(30s) >= 100%"), (false, Some(75.0), false));
    assert!(judged(&record, "delivered.p50 < 30s").0, "half of those that were due came");
    for late in ["delivered.p99 < 30s", "delivered.max < 30s", "delivered.mean < 30s", "accepted.p95 < 30s"] {
        assert_eq!(judged(&record, late), (false, None, true), "{late}");
    }
    assert!(!judged(&record, "mail.p99 < 30s").2, "a phase is of what was sent");
    record.thresholds = vec![Threshold::parse("delivered.p99 < 30s", RunProtocol::Smtp).unwrap().evaluate(&record)];
    let verdict = conclude(&record, Topology::Server);
    let why = "Threshold missed: delivered.p99 < 30s; it was > 5.00 ms, as 33 of 133 messages did not come in time.";
    assert_eq!((verdict.outcome, verdict.why.as_str()), (Some(Outcome::Fail), why));
    assert!(verdict.reasons.iter().any(|reason| reason.ends_with("messages due were never sent: they count as late.")));
}

#[test]
fn books_that_contradict_each_other_do_not_sum() {
    let row = settled(&ledger(0..5), &ledger(0..9), SourceCounts::default());
    assert!(!fates_sum(&row));
    let verdict = conclude(&with(row), Topology::Direct);
    assert!(!verdict.closed && verdict.outcome == Some(Outcome::Fail));
    assert!(verdict.reasons[0].contains("sum to 9 and not to the 5 messages created"), "{:?}", verdict.reasons);
}

#[test]
fn without_a_sink_the_run_is_judged_by_what_was_accepted() {
    let accepted = ledger(0..9);
    let row = reconcile(account_inputs(&accepted, None, SourceCounts::default()));
    let unknown = [row.delivered, row.lost, row.duplicates, row.corrupt, row.foreign];
    assert_eq!(unknown, [None; 5]);
    assert_eq!((row.in_flight, row.rejected, row.failed), (Some(9), Some(0), Some(0)));
    assert!(fates_sum(&row));
    let verdict = conclude(&with(row), Topology::Server);
    assert!(!verdict.closed && verdict.valid && verdict.outcome == Some(Outcome::Pass));
    assert_eq!(verdict.why, "9 accepted (delivery not watched)");
    assert!(verdict.reasons[0].contains("Delivery is unknown"));
    let row = reconcile(account_inputs(&accepted, None, SourceCounts { rejected: 2, ..SourceCounts::default() }));
    assert_eq!(conclude(&with(row), Topology::Server).outcome, Some(Outcome::Fail));
}

fn conclude(record: &Record, between: Topology) -> Verdict {
    judge(record, &VerdictInputs { topology: between, ordered: None, quiet_timeout: None })
}

fn passed(record: &Record) -> bool {
    record.verdict.outcome == Some(Outcome::Pass)
}

fn failed(record: &Record) -> bool {
    record.verdict.outcome == Some(Outcome::Fail)
}

fn with(ledger: LedgerRow) -> Record {
    Record { ledger, ..sample::run() }
}

/// Applies `change` to the record of a faultless run. Returns the record with its verdict, and the verdict's first
/// reason.
fn changed(change: impl FnOnce(&mut Record), between: Topology) -> (Record, String) {
    let mut record = sample::run();
    change(&mut record);
    record.verdict = conclude(&record, between);
    let reason = record.verdict.reasons.first().cloned().unwrap_or_default();
    (record, reason)
}

#[test]
fn a_run_that_closes_holds_and_says_that_nothing_stood_between() {
    let (record, reason) = changed(|_| (), Topology::Direct);
    assert!(record.verdict.closed && record.verdict.valid && passed(&record));
    assert_eq!(reason, "There was no server: this is the limit of source and sink on this host.");
    let (record, _) = changed(|_| (), Topology::Server);
    assert_eq!((record.verdict.reasons, record.verdict.why.as_str()), (Vec::new(), "100 delivered, none lost"));
}

#[test]
fn a_sink_that_has_seen_nothing_is_asked_for() {
    let nothing_came = |record: &mut Record| {
        let ledger = &mut record.ledger;
        (ledger.delivered, ledger.lost, ledger.not_delivered) = (Some(0), None, Some(100));
    };
    let (_, reason) = changed(nothing_came, Topology::Server);
    let expected = "100 of 100 messages were not delivered: lost or still in the server's queue. The sink has seen nothing of \
        this run: does the server relay to it, or does it hold or discard this mail?";
    assert_eq!(reason, expected);
}

#[test]
fn each_blemish_keeps_the_ledger_open_and_is_named_with_its_count() {
    type LedgerChange = fn(&mut LedgerRow);
    let blemishes: [(LedgerChange, &str); 4] = [
        (
            |ledger| (ledger.delivered, ledger.lost) = (Some(98), Some(2)),
            "Lost: 2 of 100 messages were accepted and never arrived.",
        ),
        (|ledger| ledger.duplicates = Some(3), "Duplicates: 3 of 100 messages arrived more than once."),
        (|ledger| ledger.corrupt = Some(4), "Corrupt: 4 messages arrived with a changed body."),
        (
            |ledger| ledger.overflow = Some(5),
            "5 messages did not fit into the ledger, so their fates are unknown: send fewer in one run.",
        ),
    ];
    for (change, expected) in blemishes {
        let (record, reason) = changed(|record| change(&mut record.ledger), Topology::Direct);
        assert_eq!(reason, expected);
        assert!(!record.verdict.closed && record.verdict.valid && failed(&record), "{expected}");
        assert_eq!(record.verdict.why, expected);
    }
}

#[test]
fn several_recipients_make_copies() {
    let lose_two = |record: &mut Record| {
        record.workload.recipients = 3;
        (record.ledger.delivered, record.ledger.lost) = (Some(98), Some(2));
    };
    let (_, reason) = changed(lose_two, Topology::Direct);
    assert!(reason.starts_with("Lost: 2 of 100 copies were accepted"), "{reason}");
}

#[test]
fn remarks_do_not_keep_the_ledger_open() {
    let (record, _) = changed(
        |record| {
            record.ledger.untimed = Some(7);
            (record.ledger.delivered, record.ledger.in_flight) = (Some(90), Some(10));
        },
        Topology::Server,
    );
    assert!(record.verdict.closed && record.verdict.valid);
    assert_eq!(record.verdict.outcome, Some(Outcome::Inconclusive), "nobody saw what became of them");
    assert_eq!(record.verdict.reasons[0], "10 messages were still in transit when the run ended.");
    assert!(record.verdict.reasons[1].starts_with("7 messages were timed by another host's clock"));
}

#[test]
fn a_run_in_which_nothing_was_accepted_fails() {
    let refuse_all = |record: &mut Record| {
        let ledger = &mut record.ledger;
        (ledger.accepted, ledger.delivered, ledger.rejected) = (Some(0), Some(0), Some(100));
    };
    let (record, reason) = changed(refuse_all, Topology::Server);
    assert!(record.verdict.closed && failed(&record));
    assert_eq!(reason, "The server rejected 100 of 100 messages.");
    assert!(record.verdict.causes.contains(&Cause::NothingAccepted));
}

fn row(expression: &str, value: Option<f64>, passed: bool) -> ThresholdRow {
    ThresholdRow {
        expression: expression.to_owned(),
        value,
        passed,
        missed: !passed && value.is_some(),
        unit: "ms".to_owned(),
        ..ThresholdRow::default()
    }
}

#[test]
fn a_missed_threshold_fails_behind_an_invalid_run() {
    let miss = |record: &mut Record| record.thresholds.push(row("accepted.p99 < 1ms", Some(2.0), false));
    let (record, reason) = changed(miss, Topology::Server);
    assert!(record.verdict.closed && failed(&record));
    assert_eq!(reason, "Threshold missed: accepted.p99 < 1ms; it was 2 ms.");
    let both = |record: &mut Record| {
        miss(record);
        record.surroundings = Some(Surroundings { steal_share: Some(0.3), ..Surroundings::default() });
    };
    assert_eq!(changed(both, Topology::Server).0.verdict.outcome, Some(Outcome::Invalid));
}

#[test]
fn a_metric_has_the_value_of_its_row() {
    let mut record = sample::run();
    record.stages[1].latency_ms =
        Some(LatencyMs { min: 1.0, mean: 2.0, p50: 3.0, p90: 4.0, p95: 5.0, p99: 6.0, p999: 7.0, max: 8.0 });
    record.stages[1].rate_per_s = Some(12.5);
    let value = |record: &Record, metric: &str| {
        let limit = if matches!(metric, "rate" | "count") { "0" } else { "0ms" };
        let text = format!("accepted.{metric} > {limit}");
        Threshold::parse(&text, RunProtocol::Smtp).unwrap().evaluate(record).value
    };
    let metrics = ["min", "mean", "p50", "p90", "p95", "p99", "p999", "max", "rate", "count", "p42"];
    let values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 12.5, 100.0].map(Some);
    assert_eq!(metrics.map(|metric| value(&record, metric))[..], [&values[..], &[None]].concat());
}

#[test]
fn a_shape_of_a_market_is_judged_by_its_own_rate() {
    let created = StageRow { rate_per_s: Some(20.0), ..StageRow::new(Stage::Created, "mades") };
    let shape = MadesShape { stages: vec![created], ..MadesShape::default() };
    let row =
        Threshold::parse("created.rate > 19/s", RunProtocol::Mades).unwrap().evaluate(&shape.as_run(&sample::run()));
    assert_eq!((row.value, row.passed), (Some(20.0), true));
}

fn answer(code: u16, text: &str, count: u64) -> ErrorRow {
    ErrorRow { phase: Phase::Reply, code, text: text.to_owned(), count, ..ErrorRow::default() }
}

#[test]
fn the_most_frequent_answer_is_quoted() {
    let change = |record: &mut Record| {
        record.ledger.rejected = Some(3);
        record.ledger.failed = Some(2);
        record.errors = vec![answer(451, "rare", 1), answer(452, "full", 2), answer(0, "connection closed", 2)];
    };
    let reasons = changed(change, Topology::Server).0.verdict.reasons.join(" ");
    assert!(reasons.contains("(at reply: 452 full)") && reasons.contains("(at reply: connection closed)"), "{reasons}");
}

#[test]
fn a_threshold_without_a_value_has_a_reason() {
    let mut record = sample::run();
    record.ledger.not_delivered = Some(0);
    assert_eq!(unseen_reason(&record, &row("lost < 1", None, false)), "the run has no such value");
    record.ledger.not_delivered = Some(1);
    assert!(unseen_reason(&record, &row("lost < 1", None, false)).ends_with("use not_delivered"));
    record.ledger.delivered = None;
    assert!(unseen_reason(&record, &row("fresh(1s) >= 98%", None, false)).starts_with("no sink watched the far end"));
}

#[test]
fn a_threshold_that_nobody_sees_is_inconclusive() {
    let unseen = |record: &mut Record| {
        record.ledger.delivered = None;
        record.ledger.in_flight = Some(100);
        record.thresholds.push(row("delivered.p99 < 1ms", None, false));
    };
    let (record, reason) = changed(unseen, Topology::Server);
    assert_eq!(record.verdict.outcome, Some(Outcome::Inconclusive));
    assert!(reason.contains("no sink watched the far end"), "{reason}");
    let gone = |record: &mut Record| {
        unseen(record);
        record.ending = Some(Ending::SinkEnded);
    };
    let reasons = changed(gone, Topology::Server).0.verdict.reasons.join(" ");
    assert!(reasons.contains("the sink went away before the end of the run"), "{reasons}");
    assert!(!reasons.contains("no sink watched"), "{reasons}");
}

#[test]
fn a_threshold_grants_what_fails_by_default() {
    let reject = |passed| {
        move |record: &mut Record| {
            (record.ledger.rejected, record.ledger.delivered) = (Some(1), Some(99));
            record.ledger.accepted = Some(99);
            record.thresholds.push(row("rejected <= 1%", Some(1.0), passed));
        }
    };
    let (record, _) = changed(reject(true), Topology::Server);
    assert!(passed(&record), "{:?}", record.verdict);
    assert_eq!(record.verdict.why, "99 of 100 delivered, 1 rejected");
    // A rejection that misses its threshold must fail the run, even if a busy host makes the figures invalid.
    let both = |record: &mut Record| {
        reject(false)(record);
        record.surroundings = Some(Surroundings { steal_share: Some(0.3), ..Surroundings::default() });
    };
    let (record, reason) = changed(both, Topology::Server);
    assert!(failed(&record) && reason.starts_with("Threshold missed: rejected <= 1%"), "{reason}");
}

#[test]
fn what_was_ordered_passes_and_no_more() {
    let ordered = Ordered { lost: 2, replies: 3, ..Ordered::default() };
    let verdict = |lost, rejected, between| {
        let mut record = sample::run();
        (record.ledger.lost, record.ledger.rejected) = (Some(lost), Some(rejected));
        record.ledger.delivered = Some(100 - lost - rejected);
        judge(&record, &VerdictInputs { topology: between, ordered: Some(ordered), quiet_timeout: None })
    };
    let as_ordered = verdict(2, 3, Topology::Direct);
    assert_eq!(as_ordered.outcome, Some(Outcome::Pass));
    assert_eq!(as_ordered.why, "95 of 100 delivered, 3 rejected, 2 lost (as ordered)");
    assert!(as_ordered.reasons[0].contains("As ordered, lost: 2."), "{as_ordered:?}");
    for (lost, rejected, between) in [
        (3, 3, Topology::Direct),
        (2, 4, Topology::Direct),
        // The source talks to a server here, and not to the sink. So the sink's rules do not explain the rejections.
        (2, 3, Topology::Server),
    ] {
        assert_eq!(verdict(lost, rejected, between).outcome, Some(Outcome::Fail), "{lost} {rejected}");
    }
    let nothing_seen = verdict(0, 0, Topology::Direct);
    assert_eq!(nothing_seen.outcome, Some(Outcome::Fail), "two were forgotten, and none is missed");
    assert!(nothing_seen.why.contains("At least 2 were asked for"), "{nothing_seen:?}");
}

#[test]
fn a_verdict_on_ordered_faults_names_the_order() {
    for (rule, expected) in [
        (
            "'.: corrupt 0.02' (16 times)",
            "Corrupt: 16 messages arrived with a changed body (the sink was told to: corrupt 0.02).",
        ),
        ("rcpt: drop 1%", "Corrupt: 16 messages arrived with a changed body (the sink was told to: rcpt: drop 1%)."),
    ] {
        let change = |record: &mut Record| {
            record.ledger.corrupt = Some(16);
            let mut sink = record.parties[0].clone();
            sink.role = Role::Sink;
            sink.faults = vec![rule.to_owned()];
            sink.ordered = Some(Ordered { corrupt: 16, ..Ordered::default() });
            record.parties.push(sink);
        };
        let (record, reason) = changed(change, Topology::Server);
        assert!(failed(&record) && reason == expected, "{reason}");
    }
}

#[test]
fn a_server_that_went_away_is_named_with_the_second() {
    let stall = StallRow { from_s: 1.49, to_s: 4.0, to_the_end: true, failed: 9, ..StallRow::default() };
    let gone = |stall: StallRow| {
        move |record: &mut Record| {
            (record.ledger.failed, record.ledger.delivered) = (Some(9), Some(91));
            record.ledger.accepted = Some(91);
            record.stalls = vec![StallRow { from_s: 0.1, to_s: 1.2, ..StallRow::default() }, stall];
            record.errors = vec![answer(452, "full", 8), answer(0, "connection refused", 7)];
        }
    };
    let (record, reason) = changed(gone(stall), Topology::Server);
    assert!(failed(&record) && record.verdict.causes[0] == Cause::ServerGone);
    assert_eq!(
        reason,
        "The server stopped answering at 1.5 s of 4.0 s: 9 of 100 messages failed (at reply: connection refused)."
    );
    let (_, reason) = changed(
        move |record: &mut Record| {
            gone(stall)(record);
            record.surroundings = Some(Surroundings { listen_overflows: Some(86), ..Surroundings::default() });
        },
        Topology::Server,
    );
    let said = "connection refused); listen queues of this host were full 86 times.";
    assert!(reason.ends_with(said), "{reason}");
    let stalled = record.verdict.reasons.iter().find(|reason| reason.starts_with("Nothing was accepted"));
    assert_eq!(stalled.unwrap(), "Nothing was accepted from 0.1 s to 1.2 s.");
    let (record, reason) = changed(gone(StallRow { to_the_end: false, ..stall }), Topology::Server);
    assert!(failed(&record) && reason.starts_with("9 of 100 messages failed"), "{reason}");
    let (record, reason) = changed(
        move |record: &mut Record| {
            gone(stall)(record);
            let party = record.parties[0].name.clone();
            let row = ExhaustedRow { party, resource: Resource::Ports, count: 1, limit: None, needed: None };
            record.exhausted.push(row);
        },
        Topology::Server,
    );
    assert!(
        failed(&record) && reason.starts_with("9 of 100 messages failed"),
        "one of them for lack of a port: {reason}"
    );
    let (record, _) = changed(|record| record.stalls = vec![StallRow { failed: 0, ..stall }], Topology::Server);
    assert!(passed(&record), "a stall by itself is said, and is no failure");
}

#[test]
fn a_run_that_was_interrupted_is_inconclusive() {
    let (record, reason) = changed(|record| record.ending = Some(Ending::Interrupted), Topology::Server);
    assert_eq!(record.verdict.outcome, Some(Outcome::Inconclusive));
    assert!(reason.contains("interrupted"), "{reason}");
}

#[test]
fn mail_in_the_relays_queue_is_not_lost_and_not_delivered() {
    let queued = |record: &mut Record| (record.ledger.queued, record.ledger.delivered) = (Some(7), Some(93));
    let (record, reason) = changed(queued, Topology::Server);
    assert!(record.verdict.closed && record.verdict.outcome == Some(Outcome::Inconclusive));
    assert_eq!(reason, "7 of 100 messages are safe in the relay's queue and not delivered yet.");
}

#[test]
fn a_sink_by_itself_cannot_close_the_account() {
    let alone = |record: &mut Record| {
        record.ledger = LedgerRow { delivered: Some(5), duplicates: Some(0), ..LedgerRow::default() };
    };
    let (record, _) = changed(alone, Topology::Server);
    assert!(!record.verdict.closed && record.verdict.valid && passed(&record));
}

fn open_loop(arrival: Arrival, lag_p99_ms: f64, rate_per_s: f64) -> (Record, String) {
    changed(
        |record| {
            record.workload.arrival = arrival;
            record.workload.rate_per_s = Some(10.0);
            let created = record.stages.iter_mut().find(|row| row.name == Stage::Created).unwrap();
            created.rate_per_s = Some(rate_per_s);
            record.lag_ms = Some(LatencyMs { p99: lag_p99_ms, ..LatencyMs::default() });
        },
        Topology::Server,
    )
}

#[test]
fn a_source_that_falls_behind_its_schedule_is_named_and_makes_a_missed_rate_its_own() {
    assert!(open_loop(Arrival::Constant, 9.9, 9.6).0.verdict.valid);
    let (record, _) = open_loop(Arrival::Constant, 10.1, 9.4);
    assert_eq!(record.verdict.outcome, Some(Outcome::Invalid), "the source was late itself");
    let (record, reason) = open_loop(Arrival::Constant, 10.1, 10.0);
    assert!(record.verdict.valid && passed(&record), "no threshold depends on it");
    assert!(reason.contains("over 10.1 ms late") && reason.contains("--workers"), "{reason}");
    let (record, reason) = open_loop(Arrival::Constant, 1.0, 9.4);
    assert!(record.verdict.valid && failed(&record), "the source was in time: it is the server's doing");
    assert_eq!(record.verdict.causes[0], Cause::RateMissed);
    assert!(reason.contains("The server took 9/s of the 10/s asked for"), "{reason}");
    let waited = |p99: f64| {
        let change = move |record: &mut Record| {
            record.workload.arrival = Arrival::Constant;
            record.workload.rate_per_s = Some(10.0);
            let created = record.stages.iter_mut().find(|row| row.name == Stage::Created).unwrap();
            (created.rate_per_s, created.latency_ms) = (Some(9.4), Some(LatencyMs { p99, ..LatencyMs::default() }));
        };
        changed(change, Topology::Server).1
    };
    assert_eq!(waited(3.0), "The server took 9/s of the 10/s asked for, although sessions were free.");
    assert!(waited(50.0).ends_with("try more --sessions."), "{}", waited(50.0));
    let parts = |sources: usize, wait_max_ms: f64, due: u64| {
        let change = move |record: &mut Record| {
            record.workload.arrival = Arrival::Constant;
            record.workload.rate_per_s = Some(10.0);
            (record.offered_s, record.due) = (Some(15.0), Some(due));
            let created = record.stages.iter_mut().find(|row| row.name == Stage::Created).unwrap();
            created.latency_ms = Some(LatencyMs { max: wait_max_ms, ..LatencyMs::default() });
            let source = record.parties.iter().find(|party| party.role == Role::Source).unwrap().clone();
            record.parties.extend(vec![source; sources - 1]);
        };
        let (record, reason) = changed(change, Topology::Server);
        (record.verdict.causes[0], reason)
    };
    let apart = "Only 7/s of the 10/s asked for were offered, although each message was sent when it was due: \
                 the 2 sources did not offer it at the same time. Start them together.";
    assert_eq!(parts(2, 3.0, 100), (Cause::RateNotOffered, apart.to_owned()), "100 in 15 s and not in 10");
    assert_eq!(parts(1, 3.0, 100).0, Cause::RateMissed, "one source cannot begin apart");
    assert_eq!(parts(2, 4900.0, 100).0, Cause::RateMissed, "a stall of 5 s at the end is the server's");
    assert_eq!(parts(2, 3.0, 150).0, Cause::RateMissed, "50 were never sent");
    let poisson = |rate_per_s| open_loop(Arrival::Poisson, 1.0, rate_per_s).0.verdict.causes;
    assert!(poisson(7.6).is_empty(), "100 Poisson arrivals scatter by a tenth");
    assert_eq!(poisson(7.3), [Cause::RateMissed]);
    assert!(open_loop(Arrival::Closed, 99.0, 1.0).0.verdict.valid, "a closed loop has no schedule");
}

#[test]
fn waiting_for_a_busy_session_is_said_and_is_not_the_sources_fault() {
    let waiting = |waited_ms: f64, lag_ms: f64| {
        let change = move |record: &mut Record| {
            record.workload.arrival = Arrival::Constant;
            record.lag_ms = Some(LatencyMs { p99: lag_ms, ..LatencyMs::default() });
            let created = record.stages.iter_mut().find(|row| row.name == Stage::Created).unwrap();
            created.latency_ms = Some(LatencyMs { p99: waited_ms, ..LatencyMs::default() });
        };
        changed(change, Topology::Server).0.verdict
    };
    let verdict = waiting(950.0, 0.0);
    let reason = &verdict.reasons[0];
    assert!(verdict.valid && reason.contains("waited 950.0 ms or longer for a free session"), "{reason}");
    for (waited_ms, lag_ms) in [(12.1, 12.1), (950.0, 12.1), (24.1, 12.1), (12.1, 9.0)] {
        let said = waiting(waited_ms, lag_ms).reasons.join(" ");
        let causes = [said.contains("The source fell behind its schedule"), said.contains("were busy")];
        assert!(causes[0] != causes[1], "one of them for {waited_ms} and {lag_ms}: {said}");
    }
}

#[test]
fn a_busy_source_or_sink_makes_a_servers_figures_invalid() {
    for (role, between, valid) in [
        (Role::Source, Topology::Server, false),
        (Role::Sink, Topology::Server, false),
        (Role::Relay, Topology::Server, true),
        (Role::Source, Topology::Direct, true),
    ] {
        let busy = |record: &mut Record| {
            let mut party = sample::party(role, "one");
            (party.user_s, party.sys_s, party.workers) = (Some(8.0), Some(10.1), Some(2));
            record.parties.push(party);
        };
        let (record, reason) = changed(busy, between);
        assert_eq!(record.verdict.valid, valid, "{role:?} {between:?}");
        assert_eq!(reason.contains("The one used 90 % of the time of its 2 workers"), !valid, "{reason}");
    }
    // The load lasts 10 s, and the source has one worker. `cores` lists the processors that the source used in each
    // second. The last message arrives after `duration_s`. `is_sampled` tells whether the record contains `cores`.
    for (situation, warm_up_s, cores, duration_s, is_sampled, valid) in [
        ("busy all the time", 0.0, vec![0.95; 10], 10.0, true, false),
        ("half busy", 0.0, vec![0.5; 10], 10.0, true, true),
        ("half busy, and a warm-up as long as the load", 10.0, vec![0.5; 20], 10.0, true, true),
        ("busy, and a warm-up as long as the load", 10.0, vec![0.95; 20], 10.0, true, false),
        ("busy in the warm-up, which is not judged", 10.0, [[1.0; 10], [0.5; 10]].concat(), 10.0, true, true),
        ("busy, and a late message", 0.0, [[0.95; 10].as_slice(), &[0.0; 60]].concat(), 70.0, true, false),
        ("busy only after the load", 0.0, [[0.5; 10].as_slice(), &[1.0; 60]].concat(), 70.0, true, true),
        ("half busy, a warm-up, and no samples", 10.0, vec![0.5; 20], 10.0, false, true),
        ("busy, a warm-up, and no samples", 10.0, vec![0.95; 20], 10.0, false, false),
    ] {
        let busy = |record: &mut Record| {
            let source = sample::party(Role::Source, "one");
            record.parties = vec![Party { user_s: Some(cores.iter().sum()), sys_s: Some(0.0), ..source }];
            (record.offered_s, record.duration_s) = (Some(10.0), duration_s);
            record.warm_up = Some(WarmUp { length_s: warm_up_s, created: 100, accepted: 100 });
            let row = |(second, cores): (usize, &f64)| UsageRow { second: second as u64, cores: *cores, rss_bytes: 1 };
            let usage = PartyUsage { party: "one".to_owned(), seconds: cores.iter().enumerate().map(row).collect() };
            record.usage = vec![usage].into_iter().filter(|_| is_sampled).collect();
        };
        let (record, reason) = changed(busy, Topology::Server);
        assert_eq!(record.verdict.valid, valid, "{situation}: {reason}");
    }
    let polling = |looked_s| {
        move |record: &mut Record| {
            let mut source = sample::party(Role::Source, "one");
            (source.user_s, source.sys_s) = (Some(10.0), Some(0.0));
            source.busy_poll = Some(BusyPollRow { mode: "50us".to_owned(), looked_s });
            record.parties = vec![source];
            let row = |second| UsageRow { second, cores: 1.0, rss_bytes: 1 };
            record.usage = vec![PartyUsage { party: "one".to_owned(), seconds: (0..10).map(row).collect() }];
        }
    };
    assert!(changed(polling(5.0), Topology::Server).0.verdict.valid, "half of the time it polled in vain");
    assert!(!changed(polling(0.5), Topology::Server).0.verdict.valid);
}

#[test]
fn what_ran_out_makes_figures_invalid_and_the_ledger_still_closes() {
    for resource in [Resource::Descriptors, Resource::HostDescriptors, Resource::Ports] {
        let row = ExhaustedRow { party: "source".to_owned(), resource, count: 1, limit: None, needed: None };
        let (record, reason) = changed(|record| record.exhausted.push(row), Topology::Direct);
        assert!(record.verdict.closed && record.verdict.outcome == Some(Outcome::Invalid), "{resource:?}");
        assert!(reason.contains("source"), "{reason}");
    }
    for (failed, outcome) in [(7, Outcome::Invalid), (8, Outcome::Fail)] {
        let row = ExhaustedRow {
            party: "source".to_owned(),
            resource: Resource::Descriptors,
            count: 7,
            limit: None,
            needed: None,
        };
        let lacking = |record: &mut Record| {
            record.exhausted.push(row);
            (record.ledger.delivered, record.ledger.failed) = (Some(100 - failed), Some(failed));
            record.ledger.accepted = Some(100 - failed);
        };
        let (record, reason) = changed(lacking, Topology::Server);
        assert_eq!(record.verdict.outcome, Some(outcome), "the server refused none of 7: {reason}");
    }
}

#[test]
fn a_session_that_failed_by_a_defect_of_ours_fails_the_run_and_makes_figures_invalid() {
    for (failed, valid) in [(Some(2), false), (Some(0), true), (None, true)] {
        let fail = |record: &mut Record| record.parties[0].failed_sessions = failed;
        let (record, reason) = changed(fail, Topology::Server);
        assert_eq!(record.verdict.valid, valid, "{failed:?}");
        assert_eq!(
            (record.verdict.closed, passed(&record), record.verdict.outcome == Some(Outcome::Fail)),
            (valid, valid, !valid),
            "{failed:?}"
        );
        assert_eq!(reason.contains("2 sessions of the source ended by a defect"), !valid, "{reason}");
    }
}

#[test]
fn what_may_have_disturbed_a_run_is_said_and_leaves_it_valid() {
    let around = |around: Surroundings| move |record: &mut Record| record.surroundings = Some(around);
    let pause = PauseRow { party: "source".to_owned(), phase: Phase::Reply, count: 50, of: 1000 };
    type RecordChange = Box<dyn FnOnce(&mut Record)>;
    let cases: [(RecordChange, bool, &str); 6] = [
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
        let (record, reason) = changed(change, Topology::Server);
        assert_eq!(record.verdict.valid, valid, "{reason}");
        assert!(reason.contains(words) && record.verdict.reasons.len() == 1, "{reason}");
    }
}

/// Returns the verdict on a simulated load of 600 messages at 150/s, with the thresholds `expressions`. The source
/// begins the messages late, by each delay of `lags_ms` in turn. The server takes `server_ms` to accept a message.
fn replayed(lags_ms: &[f64], server_ms: f64, expressions: &[&str]) -> Verdict {
    let ms = |ms: f64| Duration::from_secs_f64(ms / 1e3);
    let mut tally = SourceTally::default();
    for number in 0..600 {
        let due = ms(number as f64 * 1e3 / 150.0);
        let began = due + ms(lags_ms[number % lags_ms.len()]);
        let accepted = began + ms(server_ms);
        tally.created += 1;
        tally.first_created.get_or_insert(due);
        tally.created_times.record(began, due);
        tally.accepted_times.record(accepted, due);
        tally.time(LatencyKind::Lag, began - due);
        tally.time(LatencyKind::Slip, began - due);
        tally.accepted += 1;
        tally.first_reply.get_or_insert(accepted);
        tally.last_reply = Some(accepted);
        tally.time(LatencyKind::Accepted, accepted - due);
    }
    tally.flush_times();
    let mut record = sample::run();
    record.workload.arrival = Arrival::Constant;
    record.workload.rate_per_s = Some(150.0);
    record.offered_s = Some(4.0);
    record.stages = tally.stages("source", Stage::Scheduled, Duration::ZERO);
    record.lag_ms = tally.lag.summary();
    let evaluated = expressions.iter().map(|text| Threshold::parse(text, RunProtocol::Smtp).unwrap().evaluate(&record));
    record.thresholds = evaluated.collect();
    conclude(&record, Topology::Server)
}

#[test]
fn the_sources_own_delay_makes_a_run_invalid_only_if_it_may_have_decided_a_threshold() {
    // These are the source's delays in ms (median, p90, p95, p99 and maximum) in three runs on two processors with a
    // load of 5 to 7. The command was `nice mailrun bench --rate 150 --duration 4s --relay none`.
    let recorded: [&[f64]; 3] =
        [&[0.05, 1.73, 3.49, 9.75, 20.19], &[0.03, 4.09, 13.59, 34.5, 63.34], &[13.63, 238.29, 340.53, 486.54, 519.83]];
    for lags in recorded {
        let outcome = |server_ms: f64, expressions: &[&str]| replayed(lags, server_ms, expressions).outcome.unwrap();
        for limit in ["accepted.p99 < 2s", "accepted.max < 2s", "accepted.within(2s) >= 100%", "accepted.mean < 2s"] {
            assert_eq!(outcome(50.0, &[limit]), Outcome::Pass, "{limit} {lags:?}");
            assert_eq!(outcome(5_000.0, &[limit]), Outcome::Fail, "{limit} {lags:?}");
        }
        assert_eq!(outcome(100.0, &["accepted.p99 < 1us"]), Outcome::Fail, "{lags:?}");
        assert_eq!(outcome(100.0, &["accepted.p99 < 1ms"]), Outcome::Fail, "{lags:?}");
        // The server takes 5,000 ms, so it would meet the limit of 5,010 ms without the source's own delay.
        let undecided = replayed(lags, 5_000.0, &["accepted.max < 5010ms"]);
        assert_eq!(undecided.outcome, Some(Outcome::Invalid), "{lags:?}");
        assert!(undecided.why.ends_with("or more --workers (mailrun source)."), "{undecided:?}");
        assert_eq!(
            outcome(5_000.0, &["accepted.max < 5010ms", "accepted.p50 < 40ms"]),
            Outcome::Fail,
            "one is certain"
        );
        assert_eq!(outcome(50.0, &[]), Outcome::Pass, "nothing was asked about time");
    }
}
