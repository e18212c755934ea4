//! Whole runs to test pages with: all fields that a record can have, for an hour, ten seconds or one.
use crate::sample;
use journey::Latencies;
use journey::record::{
    Arrival, Cause, DomainRow, ErrorRow, EventKind, EventRow, Outcome, PartyUsage, Record, SeriesRow, SlowMessage,
    SlowPhase, StallRow, Surroundings, ThresholdRow, UsageRow, Verdict,
};
use journey::stage::{Phase, Stage};
use std::time::Duration;

/// A run of each kind, with the name of its files.
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

/// A minute at an open loop that met all its thresholds.
pub fn passed() -> Record {
    let mut record = open_loop(60);
    record.thresholds = vec![
        threshold("delivered.p99 < 50ms", 50.0, 31.25, "ms", true),
        threshold("accepted.rate > 900/s", 900.0, 1_012.5, "/s", true),
    ];
    for row in &mut record.series {
        row.queued /= 2;
        for times in [&mut row.p50_ms, &mut row.p95_ms, &mut row.p99_ms, &mut row.p999_ms, &mut row.max_ms] {
            *times *= 0.75;
        }
    }
    for (stage, factor) in record.stages.iter_mut().zip([1, 2, 7]) {
        let times = latencies(factor);
        stage.latency_ms = times.summary();
        stage.histogram = times.encoded();
    }
    record.verdict = judged(Outcome::Pass, "60,000 delivered, none lost, 2 of 2 thresholds passed", &[]);
    record
}

/// A minute in which the server stood still, rejected mail and lost some.
pub fn failed() -> Record {
    let mut record = open_loop(60);
    record.name = "greylist at noon".to_owned();
    for row in &mut record.series[20..24] {
        row.accepted = 0;
        row.delivered = 0;
        row.errors = 120;
        row.p50_ms = 0.0;
        row.p95_ms = 0.0;
        row.p99_ms = 0.0;
        row.p999_ms = 0.0;
        row.max_ms = 0.0;
    }
    record.stalls = vec![StallRow { from_s: 20.0, to_s: 24.1, rejected: 480, ..StallRow::default() }];
    record.events = vec![
        event(10.0, EventKind::RateStage, "rate: 1,000 to 2,000 msg/s"),
        event(20.1, EventKind::FaultOn, "fault on: soft-reject-rcpt=80%"),
        event(24.0, EventKind::FaultOff, "fault off: soft-reject-rcpt"),
        event(24.4, EventKind::ServerBack, "the server answered again"),
    ];
    record.errors = vec![
        error((Phase::Rcpt, 450), "4.2.0 Greylisted, try again in 300 seconds", 412, (20.1, 24.0)),
        error((Phase::Reply, 452), "4.3.1 Insufficient system storage", 68, (20.4, 23.7)),
        error((Phase::Connect, 0), "Connection refused", 3, (21.0, 21.2)),
    ];
    record.thresholds = vec![
        threshold("delivered.p99 < 50ms", 50.0, 1_205.5, "ms", false),
        threshold("errors < 1%", 1.0, 0.805, "%", true),
        ThresholdRow { expression: "notified.p99 < 1s".to_owned(), unit: "ms".to_owned(), ..ThresholdRow::default() },
    ];
    for (stage, count) in record.stages.iter_mut().zip([60_000, 59_517, 59_497]) {
        stage.count = count;
    }
    record.ledger.accepted = Some(59_517);
    record.ledger.delivered = Some(59_497);
    record.ledger.rejected = Some(480);
    record.ledger.failed = Some(3);
    record.ledger.lost = Some(20);
    record.ledger.duplicates = Some(7);
    let why = "20 of 60,000 messages were accepted and never arrived";
    record.verdict = judged(
        Outcome::Fail,
        why,
        &["480 messages were rejected (450 at rcpt, 452 at reply).", "Nothing was accepted from 20.0 s to 24.1 s."],
    );
    record
}

/// A minute whose figures are the generator's.
pub fn invalid() -> Record {
    let mut record = open_loop(60);
    let why = "The generator offered 612 of 1,000 msg/s. Use more --workers, or run the source on another machine.";
    record.verdict = judged(Outcome::Invalid, why, &["The hypervisor gave 22 % of the CPU to others."]);
    record
}

/// A run of one second.
pub fn second() -> Record {
    let mut record = open_loop(1);
    record.usage = Vec::new();
    record.events = Vec::new();
    record.duration_s = 0.82;
    record.verdict = judged(Outcome::Pass, "1,000 delivered, none lost", &[]);
    record
}

/// A run of an hour with everything that a record may have.
pub fn hour() -> Record {
    let mut record = open_loop(3_600);
    record.name = "soak".to_owned();
    let domain = |number: u64| DomainRow {
        domain: format!("customer-{number}.example"),
        created: 100_000 - number * 1_000,
        accepted: 99_900 - number * 1_000,
        rejected: 100,
        failed: 0,
        delivered: Some(99_900 - number * 1_000),
        duplicates: Some(0),
    };
    record.domains = (0..40).map(domain).collect();
    record.events = (0..20).map(|at| event(f64::from(at) * 180.0, EventKind::RateStage, "rate: next stage")).collect();
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

/// A run over MADES with its own stages and steps.
pub fn mades() -> Record {
    let mut record = sample::mades();
    record.series = series(30);
    record.usage = usage(30);
    record
}

/// A record whose texts try to be markup, to turn the writing direction, and to fill the page.
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

/// A run through a relay at 1,000 messages per second.
fn open_loop(length: u64) -> Record {
    let mut record = sample::relayed();
    let messages = length * 1_000;
    record.name = "through the relay".to_owned();
    record.duration_s = length as f64 + 0.25;
    record.offered_s = Some(length as f64);
    record.workload.arrival = Arrival::Poisson;
    record.workload.rate_per_s = Some(1_000.0);
    record.workload.messages = Some(messages);
    for (stage, factor) in record.stages.iter_mut().zip([1, 3, 9]) {
        let times = latencies(factor);
        stage.count = messages;
        stage.bytes = messages * 400;
        stage.rate_per_s = messages as f64 / record.duration_s;
        stage.bytes_per_s = stage.rate_per_s * 400.0;
        stage.duration_s = record.duration_s;
        stage.offered_rate_per_s = Some(1_000.0);
        stage.since = Some(Stage::Scheduled);
        stage.latency_ms = times.summary();
        stage.histogram = times.encoded();
        if stage.name == Stage::Accepted {
            let service = latencies(2);
            stage.service_ms = service.summary();
            stage.service_histogram = service.encoded();
        }
    }
    for (phase, factor) in record.phases.iter_mut().zip([7, 3, 2, 4, 3, 2, 12]) {
        let times = latencies(factor);
        phase.count = messages;
        phase.histogram = times.encoded();
        phase.latency_ms = times.summary().unwrap_or_default();
    }
    record.series = series(length);
    record.usage = usage(length);
    record.slowest = (0..50).map(slow).collect();
    record.surroundings = Some(Surroundings { other_busy_share: Some(0.04), ..Surroundings::default() });
    record.ledger.created = Some(messages);
    record.ledger.accepted = Some(messages);
    record.ledger.delivered = Some(messages);
    record.domains = [("example.com", messages / 2), ("example.net", messages - messages / 2)].map(domain).to_vec();
    record
}

fn domain((name, number): (&str, u64)) -> DomainRow {
    DomainRow {
        domain: name.to_owned(),
        created: number,
        accepted: number,
        delivered: Some(number),
        duplicates: Some(0),
        ..DomainRow::default()
    }
}

/// A distribution with a tail, its times as long as `factor` says.
fn latencies(factor: u64) -> Latencies {
    let mut times = Latencies::default();
    for at in 1..=20_000_u64 {
        let tail = if at.is_multiple_of(100) { at / 20 } else { 0 };
        times.record(Duration::from_micros(factor * (80 + noise(at) % 300 + tail)));
    }
    times
}

fn series(length: u64) -> Vec<SeriesRow> {
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

/// A number that looks like chance and is the same each time (SplitMix64).
fn noise(seed: u64) -> u64 {
    let mixed = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ (mixed >> 27)) >> 16
}

fn slow(number: u64) -> SlowMessage {
    let reply = 220.0 - number as f64 * 4.0;
    let waited = (noise(number) % 90) as f64;
    let phase = |name, ms| SlowPhase { name, ms };
    let phases = vec![
        phase(Phase::Mail, 0.8),
        phase(Phase::Rcpt, 1.2 + (noise(number + 9) % 40) as f64),
        phase(Phase::Data, 0.5),
        phase(Phase::Body, 0.25),
        phase(Phase::Reply, reply),
    ];
    let accepted_ms = waited + phases.iter().map(|phase| phase.ms).sum::<f64>();
    SlowMessage {
        message: 1_000 + number * 37,
        created_s: 0.25 + number as f64 / 100.0,
        accepted_ms,
        delivered_ms: Some(accepted_ms + 3.5),
        waited_ms: waited,
        phases,
        recipients: vec![format!("user-{number}@example.com")],
        recipient_count: 1 + u32::from(number.is_multiple_of(5)) * 9,
        bytes: 400,
    }
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

fn judged(outcome: Outcome, why: &str, reasons: &[&str]) -> Verdict {
    Verdict {
        outcome: Some(outcome),
        why: why.to_owned(),
        closed: outcome == Outcome::Pass,
        valid: outcome != Outcome::Invalid,
        reasons: reasons.iter().map(|text| (*text).to_owned()).collect(),
        causes: vec![Cause::Remark; reasons.len()],
    }
}
