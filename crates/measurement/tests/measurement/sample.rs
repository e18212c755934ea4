//! Sample records for tests: the records of a source and of a sink in the same run, in which nothing went wrong.
use mailrun_measurement::record::{LatencyMs, LedgerRow, Party, Record, Role, SeriesRow, StageRow, Workload};
use mailrun_measurement::stage::Stage;

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

pub(crate) fn run() -> Record {
    let ledger = LedgerRow { created: Some(100), accepted: Some(100), delivered: Some(100), ..LedgerRow::zero() };
    mailrun_measurement::merge::merge_records(source(), Some(sink()), ledger)
}

fn record() -> Record {
    Record {
        run_id: "000102030405060708090a0b0c0d0e0f".to_owned(),
        name: "sample".to_owned(),
        started_at: "2026-01-01T00:00:00Z".to_owned(),
        duration_s: 10.0,
        command: vec!["mailrun".to_owned()],
        version: "0.1.0".to_owned(),
        workload: Workload { recipients: 1, ..Workload::default() },
        ..Record::empty()
    }
}

pub(crate) fn party(role: Role, name: &str) -> Party {
    Party { user_s: Some(1.0), sys_s: Some(2.0), workers: Some(1), ..Party::new(role, name) }
}

pub(crate) fn stage(name: Stage, party: &str) -> StageRow {
    StageRow {
        count: 100,
        bytes: 40_000,
        rate_per_s: Some(10.0),
        duration_s: 10.0,
        since: Some(Stage::Created),
        latency_ms: Some(LatencyMs { p99: 1.0, ..LatencyMs::default() }),
        ..StageRow::new(name, party)
    }
}

pub(crate) fn second(second: u64) -> SeriesRow {
    SeriesRow { second, ..SeriesRow::default() }
}
