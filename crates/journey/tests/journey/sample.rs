//! Sample records for tests: a source's and a sink's of the same run, without faults.
use mailrun_journey::record::{
    FORMAT, Host, LatencyMs, LedgerRow, Party, Record, Role, SeriesRow, StageRow, Verdict, Workload,
};
use mailrun_journey::stage::Stage;

pub(crate) fn source() -> Record {
    Record {
        ledger: LedgerRow { created: Some(100), accepted: Some(100), ..LedgerRow::default() },
        parties: vec![party(Role::Source, "source")],
        stages: vec![stage(Stage::Created, "source"), stage(Stage::Accepted, "source")],
        ..record()
    }
}

pub(crate) fn sink() -> Record {
    Record { parties: vec![party(Role::Sink, "sink")], stages: vec![stage(Stage::Delivered, "sink")], ..record() }
}

/// A run whose account is closed.
pub(crate) fn run() -> Record {
    let ledger = LedgerRow {
        created: Some(100),
        accepted: Some(100),
        delivered: Some(100),
        rejected: Some(0),
        failed: Some(0),
        queued: Some(0),
        expired: Some(0),
        lost: Some(0),
        in_flight: Some(0),
        duplicates: Some(0),
        corrupt: Some(0),
        converted: Some(0),
        foreign: Some(0),
        untimed: Some(0),
        overflow: Some(0),
    };
    mailrun_journey::merge::merge_records(source(), Some(sink()), ledger)
}

fn record() -> Record {
    Record {
        format: FORMAT.to_owned(),
        run_id: "000102030405060708090a0b0c0d0e0f".to_owned(),
        name: "sample".to_owned(),
        started_at: "2026-01-01T00:00:00Z".to_owned(),
        origin_ns: 0,
        duration_s: 10.0,
        offered_s: None,
        command: vec!["mailrun".to_owned()],
        version: "0.1.0".to_owned(),
        commit: None,
        host: Host::default(),
        workload: Workload { recipients: 1, ..Workload::default() },
        parties: Vec::new(),
        stages: Vec::new(),
        phases: Vec::new(),
        lag_ms: None,
        surroundings: None,
        exhausted: Vec::new(),
        pauses: Vec::new(),
        tls: Vec::new(),
        warm_up: None,
        mades: None,
        series: Vec::new(),
        usage: Vec::new(),
        events: Vec::new(),
        slowest: Vec::new(),
        domains: Vec::new(),
        stalls: Vec::new(),
        ending: None,
        ledger: LedgerRow::default(),
        errors: Vec::new(),
        thresholds: Vec::new(),
        verdict: Verdict::default(),
    }
}

pub(crate) fn party(role: Role, name: &str) -> Party {
    Party {
        role,
        name: name.to_owned(),
        command: Vec::new(),
        user_s: Some(1.0),
        sys_s: Some(2.0),
        max_rss_bytes: None,
        write_bytes: None,
        durability: "none".to_owned(),
        faults: Vec::new(),
        failed_sessions: None,
        ordered: None,
        died: None,
        workers: Some(1),
    }
}

pub(crate) fn stage(name: Stage, party: &str) -> StageRow {
    StageRow {
        name,
        party: party.to_owned(),
        count: 100,
        failed: 0,
        bytes: 40_000,
        rate_per_s: 10.0,
        bytes_per_s: 4_000.0,
        duration_s: 10.0,
        offered_rate_per_s: None,
        since: Some(Stage::Created),
        latency_ms: Some(LatencyMs { p99: 1.0, ..LatencyMs::default() }),
        histogram: None,
        service_ms: None,
        service_histogram: None,
    }
}

pub(crate) fn second(second: u64) -> SeriesRow {
    SeriesRow { second, ..SeriesRow::default() }
}
