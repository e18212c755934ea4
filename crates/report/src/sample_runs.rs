//! Sample runs of different lengths, from one second to an hour. Their records have all fields, so that tests can write
//! whole HTML pages.
use crate::sample;
use crate::sample_load::{RATE, SampleLoad, SampleTrouble, noise};
use mailrun_measurement::Latencies;
use mailrun_measurement::record::{
    Arrival, Cause, DomainRow, ErrorRow, EventKind, EventRow, LedgerRow, MissingFate, MissingMessage, OfferedStage,
    Outcome, PartyUsage, Record, SeriesRow, StallRow, Surroundings, ThresholdRow, UsageRow, Verdict,
};
use mailrun_measurement::stage::{Phase, Stage};
use std::time::Duration;

pub fn kinds() -> Vec<(&'static str, Record)> {
    vec![
        ("pass", passed()),
        ("fail", failed()),
        ("invalid", invalid()),
        ("second", second()),
        ("hour", hour()),
        ("mades", mades()),
        ("hostile", hostile()),
    ]
}

pub fn passed() -> Record {
    let load = SampleLoad::new(60, 0.75, SampleTrouble::default());
    let mut record = open_loop(&load);
    let p99 = load.delivered.quantile_ms(0.99);
    let rate = load.sum(|row| row.accepted) as f64 / load.series.len() as f64;
    record.thresholds = vec![
        threshold("delivered.p99 < 50ms", 50.0, p99, "ms", p99 < 50.0),
        threshold("accepted.rate > 900/s", 900.0, rate, "/s", rate > 900.0),
    ];
    record.verdict = judged(Outcome::Pass, "60,000 delivered, none lost, 2 of 2 thresholds passed", &[]);
    record
}

/// A run of a minute in which the server stalled, rejected mail, and lost some mail.
pub fn failed() -> Record {
    let trouble = SampleTrouble { stall: 20..24, rejected_per_s: 120, failed: 3, lost: 20 };
    let load = SampleLoad::new(60, 1.0, trouble);
    let mut record = open_loop(&load);
    record.name = "greylist at noon".to_owned();
    record.stalls = vec![StallRow { from_s: 20.0, to_s: 24.0, rejected: 480, failed: 3, ..StallRow::default() }];
    record.events = vec![
        event(10.0, EventKind::RateStage, "rate: 1,000 msg/s"),
        event(20.0, EventKind::FaultOn, "rcpt: soft reject 80%"),
        event(24.0, EventKind::FaultOff, "rcpt: soft reject 80%"),
        event(24.1, EventKind::ServerBack, "the server answered again"),
    ];
    record.errors = vec![
        error((Phase::Rcpt, 450), "4.2.0 Greylisted, try again in 300 seconds", 412, (20.1, 24.0)),
        error((Phase::Reply, 452), "4.3.1 Insufficient system storage", 68, (20.4, 23.7)),
        error((Phase::Connect, 0), "Connection refused", 3, (21.0, 21.2)),
    ];
    let p99 = load.delivered.quantile_ms(0.99);
    let share = 483.0 / 600.0;
    record.thresholds = vec![
        threshold("delivered.p99 < 50ms", 50.0, p99, "ms", p99 < 50.0),
        threshold("errors < 1%", 1.0, share, "%", share < 1.0),
        ThresholdRow { expression: "notified.p99 < 1s".to_owned(), unit: "ms".to_owned(), ..ThresholdRow::default() },
    ];
    let missing = |message, fate, reply: &str| MissingMessage {
        message,
        fate,
        reply: Some(reply.to_owned()),
        recipient_count: 1,
        ..MissingMessage::default()
    };
    record.missing = vec![
        missing(21_007, MissingFate::Rejected, "450 4.2.0 Greylisted, try again in 300 seconds"),
        missing(22_113, MissingFate::NotSeen, "250 2.0.0 Ok: queued as 4jZXTq1Xyz"),
    ];
    let reason = "20 of 60,000 messages were accepted and never arrived";
    record.verdict = judged(
        Outcome::Fail,
        reason,
        &["480 messages were rejected (450 at rcpt, 452 at reply).", "Nothing was accepted from 20.0 s to 24.0 s."],
    );
    record
}

/// A run of one minute with the outcome INVALID, because the load generator was too slow.
pub fn invalid() -> Record {
    let mut record = open_loop(&SampleLoad::new(60, 1.0, SampleTrouble::default()));
    let reason = "The generator offered 612 of 1,000 msg/s. Use more --workers, or run the source on another machine.";
    record.verdict = judged(Outcome::Invalid, reason, &["The hypervisor gave 22 % of the CPU to others."]);
    record
}

pub fn second() -> Record {
    let mut record = open_loop(&SampleLoad::new(1, 1.0, SampleTrouble::default()));
    record.usage = Vec::new();
    record.events = Vec::new();
    record.duration_s = 0.82;
    record.verdict = judged(Outcome::Pass, "1,000 delivered, none lost", &[]);
    record
}

/// A run of an hour with many domains, events, stages and errors.
pub fn hour() -> Record {
    let mut record = open_loop(&SampleLoad::new(3_600, 1.0, SampleTrouble::default()));
    record.name = "soak".to_owned();
    let domain = |number: u64| DomainRow {
        domain: format!("customer-{number}.example"),
        created: 100_000 - number * 1_000,
        accepted: 99_900 - number * 1_000,
        rejected: 100,
        failed: 0,
        in_doubt: 0,
        delivered: Some(99_900 - number * 1_000),
        duplicates: Some(0),
    };
    record.domains = (0..40).map(domain).collect();
    record.events = (0..20).map(|at| event(f64::from(at) * 180.0, EventKind::RateStage, "rate: next stage")).collect();
    let stage = |at: u32| OfferedStage {
        name: None,
        length_s: 180.0,
        from_per_s: f64::from(at + 1) * 95.0,
        to_per_s: f64::from(at + 1) * 95.0,
    };
    record.workload.stages = (0..20).map(stage).collect();
    record.errors = (0..12)
        .map(|at| {
            error(
                (Phase::Rcpt, 450 + at),
                "4.7.1 Try again later, please, from mx.example",
                12,
                (f64::from(at), 3_500.5),
            )
        })
        .collect();
    record.verdict = judged(Outcome::Pass, "3,600,000 delivered, none lost", &[]);
    record
}

pub fn mades() -> Record {
    let mut record = sample::mades();
    record.series = mades_series(30);
    record.usage = usage(30);
    record
}

/// A record whose texts are long, contain markup and change the writing direction, to test that none of this harms the
/// page.
pub fn hostile() -> Record {
    const MARKUP: &str = "</script><img src=x onerror=alert(1)>\"'`<!--\u{202e}\u{2066}\u{1b}[2J\u{2028}&lt;b&gt;";
    let mut record = failed();
    record.name = MARKUP.to_owned();
    record.verdict.why = format!("{MARKUP}. {MARKUP}");
    record.verdict.reasons = vec![MARKUP.repeat(20)];
    record.workload.target = MARKUP.to_owned();
    record.command = vec!["mailrun".to_owned(), MARKUP.to_owned()];
    record.host.cpu_model = MARKUP.to_owned();
    record.events.push(event(30.0, EventKind::Died, MARKUP));
    record.errors.push(error((Phase::Data, 554), &format!("{MARKUP}{}", "x".repeat(10 << 20)), 1, (1.0, 2.0)));
    record.errors[0].sample = Some(MARKUP.to_owned());
    record.thresholds[0].expression = MARKUP.to_owned();
    record.parties.iter_mut().for_each(|party| party.name = MARKUP.to_owned());
    record.usage.iter_mut().for_each(|party| party.party = MARKUP.to_owned());
    record.slowest.iter_mut().for_each(|message| message.recipients = vec![MARKUP.repeat(9); 10]);
    record.domains.push(DomainRow { domain: MARKUP.to_owned(), ..DomainRow::default() });
    record
}

/// Returns the record of a run through a relay at 1,000 messages per second. Its counts and latencies come from the
/// messages of `load`.
fn open_loop(load: &SampleLoad) -> Record {
    let mut record = sample::relayed();
    let length = load.series.len() as u64;
    let created = load.sum(|row| row.created);
    let accepted = load.sum(|row| row.accepted);
    let delivered = load.sum(|row| row.delivered);
    let failed = load.trouble.failed;
    record.name = "through the relay".to_owned();
    record.duration_s = length as f64 + 0.25;
    record.offered_s = Some(length as f64);
    record.workload.arrival = Arrival::Poisson;
    record.workload.rate_per_s = Some(RATE as f64);
    record.workload.messages = Some(created);
    let counts = [accepted, accepted, delivered];
    for ((stage, times), count) in
        record.stages.iter_mut().zip([&load.sent, &load.accepted, &load.delivered]).zip(counts)
    {
        stage.count = count;
        stage.bytes = count * 400;
        stage.rate_per_s = Some(count as f64 / length as f64);
        stage.duration_s = record.duration_s;
        stage.since = Some(Stage::Scheduled);
        stage.latency_ms = times.summary();
        stage.histogram = times.encoded();
        if stage.name == Stage::Accepted {
            stage.service_ms = load.accepted_service.summary();
            stage.service_histogram = load.accepted_service.encoded();
        }
    }
    for (phase, factor) in record.phases.iter_mut().zip([7, 3, 2, 4, 3, 2, 12]) {
        let times = latencies(factor);
        phase.count = if phase.name == Phase::Reply { accepted } else { created - failed };
        phase.histogram = times.encoded();
        phase.latency_ms = times.summary().unwrap_or_default();
    }
    record.series.clone_from(&load.series);
    record.usage = usage(length);
    record.slowest.clone_from(&load.slowest);
    record.surroundings = Some(Surroundings { other_busy_share: Some(0.04), ..Surroundings::default() });
    record.ledger = LedgerRow {
        created: Some(created),
        accepted: Some(accepted),
        delivered: Some(delivered),
        rejected: Some(load.sum(|row| row.errors) - failed),
        failed: Some(failed),
        lost: Some(load.trouble.lost),
        ..record.ledger
    };
    record.domains = domains(&record.ledger);
    record
}

/// Returns two domains with half of the recipients each. All rejected, failed and lost messages belong to the first
/// domain.
fn domains(ledger: &LedgerRow) -> Vec<DomainRow> {
    let known = |count: Option<u64>| count.unwrap_or_default();
    let half = known(ledger.created) / 2;
    let first = DomainRow {
        domain: "example.com".to_owned(),
        created: known(ledger.created) - half,
        accepted: known(ledger.accepted) - half,
        rejected: known(ledger.rejected),
        failed: known(ledger.failed),
        in_doubt: 0,
        delivered: ledger.delivered.map(|delivered| delivered - half),
        duplicates: Some(0),
    };
    vec![
        first,
        DomainRow {
            domain: "example.net".to_owned(),
            created: half,
            accepted: half,
            delivered: Some(half),
            duplicates: Some(0),
            ..DomainRow::default()
        },
    ]
}

/// Returns a latency distribution in which one in a hundred messages is slow. All times are multiplied by `factor`.
fn latencies(factor: u64) -> Latencies {
    let mut times = Latencies::default();
    for at in 1..=20_000_u64 {
        let tail = if at.is_multiple_of(100) { at / 20 } else { 0 };
        times.record(Duration::from_micros(factor * (80 + noise(at) % 300 + tail)));
    }
    times
}

fn mades_series(length: u64) -> Vec<SeriesRow> {
    let row = |second: u64| {
        let created = 800 + noise(second) % 400;
        let busy = created as f64 / 1_000.0;
        SeriesRow {
            second,
            created,
            sent: created - noise(second + 1) % 10,
            accepted: created - noise(second + 2) % 20,
            delivered: created.saturating_sub(noise(second + 3) % 60),
            queued: 40 + noise(second + 4) % 200,
            errors: u64::from(second % 13 == 7),
            oldest_ms: None,
            p50_ms: busy * 1.4 + 0.001 * (noise(second + 5) % 100) as f64,
            p95_ms: busy.powi(3) * 6.2,
            p99_ms: busy.powi(4) * 12.0 + 0.01 * (noise(second + 6) % 300) as f64,
            p999_ms: busy.powi(4) * 31.0,
            max_ms: busy.powi(4) * 44.0 + (noise(second + 7) % 30) as f64,
        }
    };
    (0..length).map(row).collect()
}

fn usage(length: u64) -> Vec<PartyUsage> {
    let row = |second: u64, base: u64| UsageRow {
        second,
        cores: (base * 100 + noise(second + base) % 200) as f64 / 1_000.0,
        rss_bytes: ((base * 12) << 20) + second * 1_024 + noise(second) % 65_536,
    };
    let party = |(name, base): (&str, u64)| PartyUsage {
        party: name.to_owned(),
        seconds: (0..length).map(|second| row(second, base)).collect(),
    };
    [("source", 2), ("mailrun", 6), ("sink", 1)].map(party).to_vec()
}

fn threshold(expression: &str, limit: f64, value: f64, unit: &str, passed: bool) -> ThresholdRow {
    let distance = (limit - value).abs();
    ThresholdRow {
        expression: expression.to_owned(),
        limit: Some(limit),
        value: Some(value),
        margin: Some(if passed { distance } else { -distance }),
        unit: unit.to_owned(),
        passed,
        missed: !passed,
        ..ThresholdRow::default()
    }
}

fn event(at_s: f64, kind: EventKind, text: &str) -> EventRow {
    EventRow { at_s, kind, text: text.to_owned() }
}

fn error((phase, code): (Phase, u16), text: &str, count: u64, (first, last): (f64, f64)) -> ErrorRow {
    ErrorRow {
        phase,
        code,
        text: text.to_owned(),
        count,
        first_s: Some(first),
        last_s: Some(last),
        sample: Some("user-17@example.com".to_owned()),
    }
}

fn judged(outcome: Outcome, reason: &str, reasons: &[&str]) -> Verdict {
    Verdict {
        outcome: Some(outcome),
        why: reason.to_owned(),
        closed: outcome == Outcome::Pass,
        valid: outcome != Outcome::Invalid,
        reasons: reasons.iter().map(|text| (*text).to_owned()).collect(),
        causes: vec![Cause::Remark; reasons.len()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_run_of_the_gallery_agrees_with_itself() {
        for record in [passed(), failed(), invalid(), second()] {
            let sum = |count: fn(&SeriesRow) -> u64| record.series.iter().map(count).sum::<u64>();
            let ledger = &record.ledger;
            assert_eq!(Some(sum(|row| row.created)), ledger.created, "{}", record.name);
            assert_eq!(Some(sum(|row| row.accepted)), ledger.accepted);
            assert_eq!(Some(sum(|row| row.delivered)), ledger.delivered);
            assert_eq!(Some(sum(|row| row.errors)), ledger.rejected.zip(ledger.failed).map(|(one, other)| one + other));
            assert_eq!(ledger.accepted, ledger.delivered.zip(ledger.lost).map(|(delivered, lost)| delivered + lost));
            let ends = [ledger.accepted, ledger.rejected, ledger.failed];
            assert_eq!(ledger.created, ends.into_iter().sum());
            let domains = |count: fn(&DomainRow) -> u64| Some(record.domains.iter().map(count).sum::<u64>());
            assert_eq!(domains(|row| row.created), ledger.created);
            assert_eq!(domains(|row| row.delivered.unwrap()), ledger.delivered);
            for (stage, count) in record.stages.iter().zip([ledger.accepted, ledger.accepted, ledger.delivered]) {
                assert_eq!(Some(stage.count), count, "{:?}", stage.name);
            }
            let delivered = record.stages[2].latency_ms.unwrap();
            let longest = record.series.iter().map(|row| row.max_ms).fold(0.0, f64::max);
            assert!((longest / delivered.max - 1.0).abs() < 0.01, "{longest} {delivered:?}");
            let slowest = record.slowest[0].accepted_ms.unwrap();
            assert!((slowest / record.stages[1].latency_ms.unwrap().max - 1.0).abs() < 0.01, "{slowest}");
            for row in record.thresholds.iter().filter(|row| row.expression.starts_with("delivered.p99")) {
                assert_eq!(row.value, Some(delivered.p99));
            }
            let errors: u64 = record.errors.iter().map(|row| row.count).sum();
            assert_eq!(errors, if record.errors.is_empty() { 0 } else { sum(|row| row.errors) });
        }
    }
}
