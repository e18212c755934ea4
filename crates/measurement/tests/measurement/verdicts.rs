//! Property tests of verdicts and of the names in thresholds. The verdict on any record must follow the precedence that
//! docs/ci.md promises.
use crate::sample;
use mailrun_measurement::account::{Topology, fates_sum};
use mailrun_measurement::judge::{VerdictInputs, judge};
use mailrun_measurement::record::{
    Arrival, BusyPollRow, Cause, Death, Ending, LatencyMs, LedgerRow, Ordered, Outcome, Record, Role, StallRow,
    ThresholdRow, Verdict,
};
use mailrun_measurement::threshold::{Fate, RunProtocol, Threshold};
use mailrun_measurement::{Phase, Stage};
use proptest::collection::vec;
use proptest::prelude::*;

/// Returns zero in three of four cases, and otherwise a number below 20.
fn few() -> impl Strategy<Value = u64> {
    prop_oneof![3 => Just(0_u64), 1 => 1..20u64]
}

fn often_not() -> impl Strategy<Value = bool> {
    prop::bool::weighted(0.2)
}

prop_compose! {
    /// Returns a ledger row in which any fate may have occurred. If `off_by` is zero, the fates sum to the number of
    /// created units.
    fn ledger()(
        delivered in prop_oneof![4 => 1..200u64, 1 => Just(0)],
        counts in prop::array::uniform10(few()),
        (is_watched, has_unknown_queue) in (prop::bool::weighted(0.8), any::<bool>()),
        off_by in prop_oneof![9 => Just(0_u64), 1 => 1..3u64],
    ) -> LedgerRow {
        let [rejected, failed, in_doubt, bounced, expired, queued, lost, in_flight, duplicates, corrupt] = counts;
        let accepted = delivered + bounced + queued + lost + expired;
        let both = LedgerRow {
            created: Some(accepted + rejected + failed + in_doubt + in_flight + off_by),
            accepted: Some(accepted),
            rejected: Some(rejected),
            failed: Some(failed),
            in_doubt: Some(in_doubt),
            overflow: Some(0),
            ..LedgerRow::default()
        };
        if is_watched {
            LedgerRow {
                delivered: Some(delivered),
                bounced: Some(bounced),
                expired: Some(expired),
                queued: Some(queued),
                lost: (!has_unknown_queue || lost == 0).then_some(lost),
                not_delivered: Some(if has_unknown_queue { lost } else { 0 }),
                in_flight: Some(in_flight),
                duplicates: Some(duplicates),
                corrupt: Some(corrupt),
                ..both
            }
        } else {
            LedgerRow { in_flight: Some(accepted + in_flight), ..both }
        }
    }
}

prop_compose! {
    fn thresholds()(rows in vec((0..10usize, any::<bool>(), prop::bool::weighted(0.8)), 0..4)) -> Vec<ThresholdRow> {
        let names = ["lost", "not_delivered", "duplicates", "corrupt", "rejected", "failed", "in_doubt", "bounced", "accepted.p99", "delivered.rate"];
        rows.into_iter().map(|(name, passed, is_seen)| ThresholdRow {
            expression: format!("{} < 5", names[name]),
            limit: Some(5.0),
            value: is_seen.then_some(4.0),
            passed: passed && is_seen,
            missed: !passed && is_seen,
            ..ThresholdRow::default()
        }).collect()
    }
}

prop_compose! {
    fn record()(
        ledger in ledger(),
        thresholds in thresholds(),
        (is_open, is_late, is_busy, is_slow, has_defect, has_relay_defect) in
            (any::<bool>(), often_not(), often_not(), often_not(), often_not(), often_not()),
        stall in prop_oneof![3 => Just(None), 1 => (any::<bool>(), few(), few()).prop_map(Some)],
        ending in prop_oneof![
            4 => Just(Ending::Complete),
            1 => Just(Ending::Interrupted),
            1 => Just(Ending::SinkEnded),
            1 => Just(Ending::ServerEnded),
        ],
    ) -> Record {
        let mut record = Record { ledger, thresholds, ending: Some(ending), ..sample::run() };
        record.verdict = Verdict::default();
        record.parties = vec![sample::party(Role::Source, "source"), sample::party(Role::Relay, "relay")];
        for (party, is_faulty) in record.parties.iter_mut().zip([has_defect, has_relay_defect]) {
            party.failed_sessions = Some(u64::from(is_faulty));
        }
        record.parties[0].user_s = Some(if is_busy { 9.5 } else { 1.0 });
        if is_open {
            record.workload.arrival = Arrival::Constant;
            record.workload.rate_per_s = Some(10.0);
            let created = record.stages.iter_mut().find(|row| row.name == Stage::Created).unwrap();
            created.rate_per_s = Some(if is_slow { 5.0 } else { 10.0 });
            record.lag_ms = Some(LatencyMs { p99: if is_late { 50.0 } else { 1.0 }, ..LatencyMs::default() });
        }
        record.stalls.extend(stall.map(|(to_the_end, rejected, failed)| {
            StallRow { from_s: 1.0, to_s: 4.0, to_the_end, rejected, failed, ..StallRow::default() }
        }));
        record
    }
}

fn ordered() -> impl Strategy<Value = Ordered> {
    [few(), few(), few(), few(), few(), few()].prop_map(|[replies, cuts, unanswered, lost, duplicates, corrupt]| {
        Ordered { replies, cuts, unanswered, lost, duplicates, corrupt }
    })
}

fn between() -> impl Strategy<Value = Topology> {
    prop_oneof![Just(Topology::Server), Just(Topology::Direct)]
}

fn rows_of(record: &Record, fate: Fate) -> Vec<&ThresholdRow> {
    record.thresholds.iter().filter(|row| row.expression.split(' ').next() == Some(fate.name())).collect()
}

fn of(record: &Record, fate: Fate) -> u64 {
    fate.count(&record.ledger).unwrap_or_default()
}

fn is_gone(record: &Record) -> bool {
    record.stalls.iter().any(|stall| stall.to_the_end && stall.failed > 0 && stall.rejected == 0)
}

/// Returns true if more mail was lost, changed, rejected or unaccounted for than the thresholds allow, or if the server
/// failed. Assumes that the user did not order the sink to cause any faults.
fn is_mail_amiss(record: &Record) -> bool {
    let beyond = |fate: Fate| match rows_of(record, fate).as_slice() {
        [] => fate.is_fault() && fate != Fate::NotDelivered && of(record, fate) > 0,
        rows => rows.iter().any(|row| !row.passed && row.value.is_some()),
    };
    let ledger = &record.ledger;
    Fate::ALL.into_iter().any(beyond)
        || !fates_sum(ledger)
        || ledger.expired.unwrap_or_default() > 0
        || ledger.accepted == Some(0)
        || is_gone(record)
        || record.ending == Some(Ending::ServerEnded)
        || record.parties[0].failed_sessions > Some(0)
}

fn is_open(record: &Record) -> bool {
    record.workload.arrival != Arrival::Closed
}

/// Returns true if mailrun itself limited the run, because its source was busy nearly all the time or sessions of its
/// relay failed. A rate that the source did not reach is judged separately.
fn is_limited_by_us(record: &Record, between: Topology) -> bool {
    let is_busy = record.parties[0].user_s > Some(9.0);
    (between == Topology::Server && is_busy) || record.parties[1].failed_sessions > Some(0)
}

/// Returns true if the source began messages late although a session was free. In the records of these tests, this
/// delay cannot be the reason why a threshold was missed.
fn is_behind(record: &Record) -> bool {
    is_open(record) && record.lag_ms.unwrap().p99 > 10.0
}

fn is_rate_missed(record: &Record) -> bool {
    let created = record.stage(Stage::Created).unwrap();
    is_open(record) && created.rate_per_s == Some(5.0) && record.ending == Some(Ending::Complete)
}

/// Returns the outcome that the record must have. Applies the rules of docs/ci.md in their order.
fn expected(record: &Record, between: Topology) -> Outcome {
    let is_ours = is_limited_by_us(record, between);
    let is_rate_ours = is_rate_missed(record) && (is_ours || is_behind(record) || between == Topology::Direct);
    let missed = |row: &ThresholdRow| !row.passed && row.value.is_some();
    let ledger = &record.ledger;
    let is_watched = ledger.delivered.is_some();
    let is_not_delivered = ledger.not_delivered > Some(0) && rows_of(record, Fate::NotDelivered).is_empty();
    let is_unfinished = is_watched && (ledger.in_flight > Some(0) || ledger.queued > Some(0)) || is_not_delivered;
    let is_ended = matches!(record.ending, Some(Ending::Interrupted | Ending::SinkEnded));
    match () {
        () if is_mail_amiss(record) => Outcome::Fail,
        () if is_ours || is_rate_ours => Outcome::Invalid,
        () if is_rate_missed(record) || record.thresholds.iter().any(missed) => Outcome::Fail,
        () if record.thresholds.iter().any(|row| row.value.is_none()) || is_ended || is_unfinished => {
            Outcome::Inconclusive
        }
        () => Outcome::Pass,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn the_outcome_of_any_record_obeys_the_precedence(record in record(), between in between()) {
        let verdict = judge(&record, &VerdictInputs { topology: between, ordered: None, quiet_timeout: None });
        prop_assert_eq!(verdict.outcome, Some(expected(&record, between)), "{:?}", verdict);
    }

    #[test]
    fn a_pass_has_nothing_that_was_neither_granted_nor_ordered(
        record in record(), between in between(), ordered in prop::option::of(ordered())
    ) {
        let verdict = judge(&record, &VerdictInputs { topology: between, ordered, quiet_timeout: None });
        let ordered = ordered.unwrap_or_default();
        let each = u64::from(record.workload.recipients.max(1));
        let most = |fate: Fate| match fate {
            Fate::Lost | Fate::NotDelivered => ordered.lost,
            Fate::Duplicates => ordered.duplicates + ordered.unanswered,
            Fate::Corrupt => ordered.corrupt,
            Fate::Rejected | Fate::Failed | Fate::InDoubt if between == Topology::Server => 0,
            Fate::Rejected => (ordered.replies + ordered.cuts) * each,
            Fate::Failed | Fate::InDoubt => ordered.cuts * each,
            Fate::Bounced if between == Topology::Direct => 0,
            Fate::Bounced => (ordered.replies + ordered.cuts) * each,
            Fate::Rewritten | Fate::Copied => u64::MAX,
        };
        if verdict.outcome == Some(Outcome::Pass) {
            for fate in Fate::ALL {
                let rows = rows_of(&record, fate);
                let is_granted = !rows.is_empty() && rows.iter().all(|row| row.passed);
                prop_assert!(is_granted || of(&record, fate) <= most(fate), "{fate:?}: {verdict:?}");
            }
            prop_assert!(fates_sum(&record.ledger) && !is_gone(&record), "{verdict:?}");
            prop_assert!(record.thresholds.iter().all(|row| row.passed), "{verdict:?}");
            prop_assert!(record.ending == Some(Ending::Complete), "{verdict:?}");
        }
    }

    #[test]
    fn a_verdict_says_its_reasons_in_order_and_why_is_the_first(
        record in record(), between in between(), ordered in prop::option::of(ordered())
    ) {
        let verdict = judge(&record, &VerdictInputs { topology: between, ordered, quiet_timeout: None });
        prop_assert_eq!(verdict.causes.len(), verdict.reasons.len());
        prop_assert!(verdict.causes.is_sorted(), "{:?}", verdict);
        let first = verdict.causes.first().and_then(|cause| cause.outcome());
        prop_assert_eq!(first.unwrap_or(Outcome::Pass), verdict.outcome.unwrap());
        let why = first.map_or_else(|| verdict.why.clone(), |_| verdict.reasons[0].clone());
        prop_assert!(!why.is_empty() && why == verdict.why, "{:?}", verdict);
        prop_assert_eq!(verdict.causes.contains(&Cause::ServerGone), is_gone(&record) || record.ending == Some(Ending::ServerEnded));
    }

    #[test]
    fn every_name_with_every_figure_is_read(
        place in prop::sample::select(places()), figure in prop::sample::select(FIGURES.to_vec()), number in 0..100_000u32,
        comparison in prop::sample::select(vec!["<", "<=", ">", ">="]), gap in " {0,3}"
    ) {
        let (place, protocol, is_phase) = place;
        let (metric, unit) = figure;
        // Times longer than 1 h are not measured, so a threshold with such a time would be refused.
        let number = match unit {
            "%" => number % 101,
            "min" => number % 61,
            "s" => number % 3_601,
            _ => number,
        };
        let text = format!("{place}.{metric}{gap}{comparison}{gap}{number}{unit}");
        let threshold = Threshold::parse(&text, protocol);
        prop_assert_eq!(threshold.is_ok(), !(is_phase && metric == "rate"), "{}: {:?}", text, threshold);
    }

    #[test]
    fn one_slip_in_a_name_is_answered_with_the_name(
        place in prop::sample::select(places()), at in any::<prop::sample::Index>()
    ) {
        let (name, protocol, _) = place;
        let mut slip = name.to_owned();
        slip.remove(at.index(name.len()));
        let is_known = places().iter().any(|(other, of, _)| *other == slip && *of == protocol);
        prop_assume!(!is_known && name.len() > 3);
        let why = Threshold::parse(&format!("{slip}.p99 < 5ms"), protocol).unwrap_err();
        prop_assert!(why.contains("did you mean"), "{slip}: {why}");
    }
}

/// Figures that a threshold can name, each with a unit in which its limit can be given.
const FIGURES: [(&str, &str); 12] = [
    ("p50", "ms"),
    ("p99", "us"),
    ("p999", "s"),
    ("p99.95", "ms"),
    ("min", "ns"),
    ("mean", "ms"),
    ("max", "min"),
    ("rate", "/s"),
    ("rate", ""),
    ("count", ""),
    ("within(60s)", "%"),
    ("within( 1.5m )", "%"),
];

/// Returns the names of all stages and phases, each with its protocol and with `true` if it is a phase.
fn places() -> Vec<(&'static str, RunProtocol, bool)> {
    let stages = [Stage::Created, Stage::Sent, Stage::Accepted, Stage::Delivered].map(Stage::name);
    let of_mades = ["notified", "settled", "replied", "inbox", "delivered-event", "received-event", "tracing"];
    let of_mailboxes = Stage::Announced.name();
    let smtp = stages.iter().chain([&of_mailboxes]).map(|name| (*name, RunProtocol::Smtp, false));
    let mades = stages.iter().chain(&of_mades).map(|name| (*name, RunProtocol::Mades, false));
    let phases = Phase::ALL.into_iter().map(|phase| (phase.name(), RunProtocol::Smtp, true));
    smtp.chain(mades).chain(phases).collect()
}

#[test]
fn time_spent_looking_for_events_is_not_the_limit_of_a_source() {
    let is_limit = |looked_s| {
        let mut record = sample::run();
        record.parties = vec![sample::party(Role::Source, "source")];
        record.parties[0].user_s = Some(0.95 * record.duration_s * f64::from(record.parties[0].workers.unwrap()));
        record.parties[0].sys_s = Some(0.0);
        record.parties[0].busy_poll = Some(BusyPollRow { mode: "50us".to_owned(), looked_s });
        let verdict = judge(&record, &VerdictInputs { topology: Topology::Server, ordered: None, quiet_timeout: None });
        verdict.reasons.iter().any(|reason| reason.contains("may have been the limit"))
    };
    assert!(is_limit(0.0), "the source works nearly all the time");
    assert!(!is_limit(5.0), "half of that is looking");
}

#[test]
fn a_source_or_sink_without_memory_is_not_the_servers_failure() {
    for (role, party) in [(Role::Source, "source"), (Role::Sink, "sink"), (Role::Relay, "relay")] {
        let mut record = sample::run();
        let mut died = record.parties[0].clone();
        died.role = role;
        died.name = if role == Role::Relay { "mailrun" } else { party }.to_owned();
        died.died = Some(Death {
            at_s: 1.5,
            how: "signal 6 (SIGABRT)".to_owned(),
            said: "memory allocation of 24 bytes failed".to_owned(),
            out_of_memory: true,
        });
        record.parties = vec![died];
        // Messages fail because the process has died, and a threshold is missed. The verdict must still name the death
        // as the reason.
        record.ledger.created = record.ledger.created.map(|created| created + 20);
        record.ledger.failed = Some(20);
        record.thresholds.push(Threshold::parse("failed <= 1", RunProtocol::Smtp).unwrap().evaluate(&record));
        let verdict = judge(&record, &VerdictInputs { topology: Topology::Server, ordered: None, quiet_timeout: None });
        let outcome = if role == Role::Relay { Outcome::Fail } else { Outcome::Invalid };
        assert_eq!(verdict.outcome, Some(outcome), "{verdict:?}");
        assert!(verdict.why.starts_with(&format!("The {party} ran out of memory at 1.5 s: signal 6")), "{verdict:?}");
    }
}
