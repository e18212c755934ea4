//! Sample records of runs with different outcomes, for the tests of reports.
use mailrun_measurement::record::{
    Cause, Host, LatencyMs, LedgerRow, Mades, MadesHop, MadesOutage, MadesQueue, MadesTrouble, Outcome, Party,
    PhaseRow, Record, Role, SeriesRow, StageRow, Surroundings, Verdict, Workload,
};
use mailrun_measurement::stage::{Phase, Stage};

const MESSAGES: u64 = 200_000;

/// A run of 200,000 messages, each delivered once.
pub fn held() -> Record {
    Record {
        run_id: "000102030405060708090a0b0c0d0e0f".to_owned(),
        name: "quick".to_owned(),
        started_at: "2026-11-21T03:00:12Z".to_owned(),
        origin_ns: 7_000_000_000,
        duration_s: 3.684,
        command: ["mailrun", "bench", "--messages", "200000", "--reuse"].map(str::to_owned).to_vec(),
        version: "0.1.0".to_owned(),
        commit: Some("0123abc".to_owned()),
        host: host(),
        workload: workload(),
        parties: vec![party(Role::Source, "source"), party(Role::Sink, "sink")],
        stages: [(Stage::Sent, "source"), (Stage::Accepted, "source"), (Stage::Delivered, "sink")].map(stage).to_vec(),
        phases: [Phase::Connect, Phase::Banner, Phase::Ehlo, Phase::Mail, Phase::Rcpt, Phase::Data, Phase::Reply]
            .map(phase)
            .to_vec(),
        series: [54_000, 55_000, 54_500, 36_500].into_iter().enumerate().map(second).collect(),
        ledger: LedgerRow {
            created: Some(MESSAGES),
            accepted: Some(MESSAGES),
            delivered: Some(MESSAGES),
            ..LedgerRow::zero()
        },
        verdict: Verdict {
            outcome: Some(Outcome::Pass),
            why: "200,000 delivered, none lost".to_owned(),
            closed: true,
            valid: true,
            ..Verdict::default()
        },
        ..Record::empty()
    }
}

/// A MADES run with a lost message, an error reply and a lost connection.
pub fn mades() -> Record {
    let stage = |name: Stage, p50: f64| StageRow {
        count: 9_999,
        missing: 1,
        bytes: 9_999 * 400,
        rate_per_s: Some(1_234.5),
        duration_s: 8.1,
        since: Some(Stage::Created),
        latency_ms: Some(LatencyMs {
            p50,
            p90: p50 * 1.5,
            p99: p50 * 2.0,
            p999: 700.0,
            max: 1_234.5,
            ..LatencyMs::default()
        }),
        ..StageRow::new(name, "mades")
    };
    let path = [
        Stage::Created,
        Stage::Sent,
        Stage::Settled,
        Stage::Replied,
        Stage::Inbox,
        Stage::DeliveredEvent,
        Stage::ReceivedEvent,
    ];
    let hop = |ends: &[Stage]| MadesHop {
        from: ends[0].name().to_owned(),
        to: ends[1].name().to_owned(),
        count: 9_999,
        overtaken: 3,
        latency_ms: Some(LatencyMs { mean: 1.5, p50: 1.2, p90: 1.7, p99: 3.4, max: 90.0, ..LatencyMs::default() }),
    };
    let queue = |role: &str, name: &str| MadesQueue { role: role.to_owned(), name: name.to_owned(), foreign: 0 };
    let trouble = |kind: &str, code: &str, text: &str| MadesTrouble {
        kind: kind.to_owned(),
        code: code.to_owned(),
        text: text.to_owned(),
        count: 1,
    };
    let outage = MadesOutage {
        side: "outbox".to_owned(),
        began_s: 3.2,
        lasted_s: 0.7,
        why: "reset".to_owned(),
        to_the_end: false,
    };
    let own = Mades {
        mode: "endpoint".to_owned(),
        outbox_url: "amqp://127.0.0.1:5672".to_owned(),
        inbox_url: "amqp://127.0.0.1:5672".to_owned(),
        queues: vec![queue("outbox", "ecp.endpoint.outbox"), queue("inbox", "ecp.endpoint.inbox")],
        receiver: "ecp-endpoint".to_owned(),
        message_type: "TEST-MESSAGE".to_owned(),
        durable: true,
        payload: "random".to_owned(),
        max_in_transit: 1_000,
        window: 128,
        timeout_s: 60.0,
        in_transit_mean: 987.6,
        hops: path.windows(2).map(hop).collect(),
        troubles: vec![trouble("error reply", "ECP-1034", "no such receiver"), trouble("time-out", "inbox", "60 s")],
        outages: vec![outage],
        ..Mades::default()
    };
    let stages = path.into_iter().zip(1..).map(|(name, number)| stage(name, f64::from(number) * 1.5)).collect();
    Record { mades: Some(own), phases: Vec::new(), stages, ..lossy() }
}

/// Like the sample run `held`, but the server lost 200 messages after it had accepted them.
pub fn lossy() -> Record {
    let mut record = held();
    record.ledger.delivered = Some(MESSAGES - 200);
    record.ledger.lost = Some(200);
    let reason = "Lost: 200 of 200,000 messages were accepted and never arrived.";
    record.verdict = Verdict {
        outcome: Some(Outcome::Fail),
        why: reason.to_owned(),
        valid: true,
        reasons: vec![reason.to_owned()],
        causes: vec![Cause::Lost],
        ..Verdict::default()
    };
    record
}

/// A sample run in which only the source is measured, so that nobody observes the deliveries.
pub fn unwatched() -> Record {
    let mut record = held();
    record.parties.truncate(1);
    record.stages.truncate(2);
    record.ledger = LedgerRow {
        created: Some(MESSAGES),
        accepted: Some(MESSAGES),
        rejected: Some(0),
        in_flight: Some(MESSAGES),
        ..LedgerRow::default()
    };
    record.verdict.closed = false;
    record.verdict.why = "200,000 accepted (delivery not watched)".to_owned();
    record
}

/// A sample run through a relay, which still delivers queued mail for 1.5 s after it has accepted the last message.
pub fn relayed() -> Record {
    let mut record = held();
    let relay = Party {
        user_s: Some(2.0),
        sys_s: Some(3.0),
        write_bytes: Some(MESSAGES * 1_024),
        durability: "sync".to_owned(),
        ..party(Role::Relay, "mailrun")
    };
    record.parties.insert(1, relay);
    record.surroundings = Some(Surroundings { disk_written_bytes: Some(MESSAGES * 1_049), ..Surroundings::default() });
    for row in record.stages.iter_mut().filter(|row| row.name == Stage::Delivered) {
        row.duration_s += 1.5;
    }
    for (row, queued) in record.series.iter_mut().zip([9_000, 12_000, 12_000, 0]) {
        row.queued = queued;
    }
    record
}

pub fn sink_alone() -> Record {
    let mut record = held();
    record.parties.remove(0);
    record.stages.drain(..2);
    record.phases.clear();
    record.workload = Workload::default();
    record.ledger = LedgerRow {
        delivered: Some(MESSAGES),
        duplicates: Some(0),
        corrupt: Some(0),
        converted: Some(0),
        foreign: Some(0),
        ..LedgerRow::default()
    };
    record.verdict = Verdict { closed: true, valid: true, ..Verdict::default() };
    record
}

fn host() -> Host {
    Host {
        os: "Debian GNU/Linux 12 (bookworm)".to_owned(),
        kernel: "6.18.44".to_owned(),
        cpu_model: "AMD EPYC".to_owned(),
        cores: 2,
        memory_bytes: 25_769_803_776,
        disk: None,
        keep_awake: None,
    }
}

fn workload() -> Workload {
    Workload {
        messages: Some(MESSAGES),
        recipients: 1,
        sessions: 100,
        message_bytes: 400,
        tls: "none".to_owned(),
        protocol: "smtp".to_owned(),
        target: "127.0.0.1:40001".to_owned(),
        seed: 1,
        ..Workload::default()
    }
}

fn party(role: Role, name: &str) -> Party {
    Party {
        command: vec!["mailrun".to_owned(), name.to_owned()],
        user_s: Some(1.0),
        sys_s: Some(2.0),
        max_rss_bytes: Some(12 << 20),
        write_bytes: Some(4_096),
        workers: Some(1),
        ..Party::new(role, name)
    }
}

fn latency() -> LatencyMs {
    LatencyMs { min: 0.012, mean: 1.5, p50: 1.42, p90: 2.2, p95: 2.5, p99: 3.1, p999: 5.25, max: 12.5 }
}

fn stage((name, party): (Stage, &str)) -> StageRow {
    StageRow {
        count: MESSAGES,
        bytes: MESSAGES * 400,
        rate_per_s: Some(54_321.0),
        duration_s: 3.684,
        since: Some(Stage::Created),
        latency_ms: Some(latency()),
        ..StageRow::new(name, party)
    }
}

fn phase(name: Phase) -> PhaseRow {
    PhaseRow { name, count: MESSAGES, latency_ms: latency(), histogram: None }
}

fn second((index, messages): (usize, u64)) -> SeriesRow {
    SeriesRow {
        second: index as u64,
        sent: messages,
        accepted: messages,
        delivered: messages,
        queued: 0,
        errors: 0,
        p50_ms: 1.4,
        p99_ms: 3.0 + index as f64 / 10.0,
        ..SeriesRow::default()
    }
}
