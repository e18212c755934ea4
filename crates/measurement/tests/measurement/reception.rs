//! Tests of verdicts on runs in which the sink did not simply accept the run's mail, for example because it rejected
//! mail or received messages without a trace. Each case has the sentence that the verdict must contain, and sentences
//! that it must not contain.
use super::sample;
use mailrun_measurement::Phase;
use mailrun_measurement::account::Topology;
use mailrun_measurement::judge::{VerdictInputs, judge};
use mailrun_measurement::record::{EndedRow, LedgerRow, Party, Reception, Record, Role, RuleRow, Watched};
use std::time::Duration;

/// Returns all reasons of the verdict on a run in which `missing` of 100 messages did not reach the sink. The content
/// of the server's queue is unknown, so these messages may still be there.
fn said(missing: u64, reception: Option<Reception>) -> String {
    let ledger = LedgerRow {
        created: Some(100),
        accepted: Some(100),
        delivered: Some(100 - missing),
        not_delivered: Some(missing),
        lost: None,
        ..LedgerRow::zero()
    };
    let mut record = Record { ledger, ..sample::run() };
    record.parties.retain(|party| party.role != Role::Sink);
    if reception.is_some() {
        record.parties.push(Party { reception, ..sample::party(Role::Sink, "sink") });
    }
    let quiet_timeout = Some(Duration::from_secs(10));
    judge(&record, &VerdictInputs { topology: Topology::Server, ordered: None, quiet_timeout }).reasons.join("\n")
}

fn rule(text: &str, count: u64) -> RuleRow {
    RuleRow { rule: text.to_owned(), count }
}

fn ended(phase: Phase, count: u64) -> EndedRow {
    EndedRow { phase, count }
}

#[test]
fn a_sink_tells_what_it_did_and_saw() {
    const NOTHING: &str =
        "The sink has seen nothing of this run: does the server relay to it, or does it hold or discard this mail?";
    const REMOVED: &str = "does the server remove X-Mailrun?";
    let nobody = Reception::default();
    let clients = |connections, ended: &[EndedRow]| Reception { connections, ended: ended.to_vec(), ..nobody.clone() };
    let untraced = |untraced| Reception {
        untraced,
        untraced_from: Some("a@b.example".to_owned()),
        untraced_subject: Some("Hello (1".to_owned()),
        ..clients(3, &[])
    };
    let watched = |idle, poll_ms| {
        let mailboxes = Some(Watched { count: 100, idle, poll_ms, ..Watched::default() });
        Reception { mailboxes, ..clients(100, &[]) }
    };
    let unseen = |closed, renumbered| {
        let mailboxes = Some(Watched { count: 100, idle: 100, closed, renumbered, ..Watched::default() });
        Reception { mailboxes, ..clients(100, &[]) }
    };
    let with_rules = |rules: &[RuleRow], sink: Reception| Reception { rules: rules.to_vec(), ..sink };
    let reject = rule("rcpt: hard reject \"550 5.1.1 no\"", 300);
    let greylist = rule("rcpt: greylist 4s", 20);
    let many: Vec<RuleRow> = (1..=6).map(|n| rule(&format!("mail: delay {n}ms"), n)).collect();
    let mut wrong = Vec::new();
    for (situation, missing, sink, expected, unwanted) in [
        ("no sink has a record", 100, None, &[NOTHING][..], &[REMOVED][..]),
        ("nobody connected", 100, Some(nobody.clone()), &[NOTHING], &[REMOVED, "rules"]),
        (
            "row 23: it rejected every recipient",
            100,
            Some(with_rules(std::slice::from_ref(&reject), clients(20, &[ended(Phase::Rcpt, 19)]))),
            &[
                "The sink had 20 connections and took no message of this run, by its rules: rcpt: hard reject \"550 5.1.1 no\" (300 times).",
            ],
            &[NOTHING, "acted by its rules"],
        ),
        (
            "clients leave without mail",
            100,
            Some(clients(4, &[ended(Phase::Ehlo, 1), ended(Phase::Tls, 2)])),
            &[
                "The sink had 4 connections and took no message of this run: 2 ended at the TLS handshake and 1 ended after EHLO.",
            ],
            &[NOTHING, "rules"],
        ),
        (
            "nothing is in the mailboxes",
            100,
            Some(watched(100, None)),
            &["None of the 100 mailboxes has a message of this run: does the server deliver there?"],
            &[NOTHING, "asked for new mail", "connection"],
        ),
        (
            "two mailboxes could not be opened again",
            3,
            Some(unseen(2, 0)),
            &["2 of the 100 mailboxes were not open at the end, and missing mail may be there."],
            &[NOTHING, "does the server deliver there"],
        ),
        (
            "a mailbox was numbered anew",
            3,
            Some(unseen(0, 1)),
            &["1 of the 100 mailboxes was numbered anew during the run (UIDVALIDITY), and missing mail may be there."],
            &[NOTHING, "does the server deliver there"],
        ),
        ("a mailbox was closed at the end, and nothing is missing", 0, Some(unseen(1, 1)), &[], &["mailboxes"]),
        (
            "the mailboxes were asked for mail",
            0,
            Some(watched(0, Some(1000.0))),
            &[
                "asked for new mail every 1.00 s: announced and delivered are up to 1.00 s too late, and 500 ms on average.",
            ],
            &[NOTHING, "does the server deliver there"],
        ),
        (
            "one client is still connected",
            100,
            Some(clients(1, &[])),
            &["The sink had 1 connection and took no message of this run: none has ended."],
            &[NOTHING],
        ),
        (
            "row 24: all of it came without its header",
            100,
            Some(untraced(100)),
            &[
                "100 messages without a trace arrived (the first has From: a@b.example, Subject: Hello (1): does the server remove X-Mailrun?",
            ],
            &[NOTHING, "took no message"],
        ),
        (
            "some of it came without its header",
            1,
            Some(untraced(1)),
            &[
                "1 message without a trace arrived (From: a@b.example, Subject: Hello (1): does the server remove X-Mailrun?",
            ],
            &[NOTHING],
        ),
        (
            "strangers' mail explains nothing",
            100,
            Some(untraced(7)),
            &["7 messages without a trace arrived (the first has From: a@b.example, Subject: Hello (1)."],
            &[NOTHING, REMOVED],
        ),
        (
            "strangers' mail beside a whole run",
            0,
            Some(untraced(7)),
            &["7 messages without a trace arrived"],
            &[REMOVED],
        ),
        (
            "row 30: greylisted, and all arrived",
            0,
            Some(with_rules(std::slice::from_ref(&greylist), clients(20, &[]))),
            &["The sink acted by its rules: rcpt: greylist 4s (20 times)."],
            &["took no message"],
        ),
        (
            "greylisted, and some are missing",
            5,
            Some(with_rules(&[greylist], clients(20, &[]))),
            &["The sink acted by its rules: rcpt: greylist 4s (20 times)."],
            &["took no message", NOTHING],
        ),
        (
            "only the most frequent rules are named",
            0,
            Some(with_rules(&many, clients(1, &[]))),
            &[
                "mail: delay 6ms (6 times), mail: delay 5ms (5 times), mail: delay 4ms (4 times), mail: delay 3ms (3 times), 2 other rules.",
            ],
            &["delay 2ms"],
        ),
        ("row 26: no rule was active", 0, Some(clients(20, &[])), &[], &["rules", "connections"]),
        ("all arrived", 0, Some(clients(20, &[ended(Phase::Reply, 20)])), &[], &["ended", "sink"]),
    ] {
        let said = said(missing, sink);
        let is_right =
            expected.iter().all(|text| said.contains(text)) && !unwanted.iter().any(|text| said.contains(text));
        if !is_right {
            wrong.push(format!("{situation}: expected {expected:?}, and none of {unwanted:?}\n  found {said:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
