//! Writes the output directories of a simulated one-hour load that was divided into many parts, to measure the cost of
//! merging the parts:
//!
//! ```sh
//! cargo run --release -p mailrun-measurement --example shards -- DIR 1000
//! /usr/bin/time -v mailrun merge DIR/* --out whole --report none
//! ```
use mailrun_measurement::record::{ClockRow, Ending, LedgerRow, Party, PartyUsage, Record, Role, SeriesRow, ShardRow};
use mailrun_measurement::record::{UsageRow, Workload};
use mailrun_measurement::tally::{LatencyKind, SourceTally};
use mailrun_measurement::{Ledger, Phase, Stage};
use std::fs;
use std::path::Path;
use std::time::Duration;

const SECONDS: u64 = 3_600;
const MESSAGES_PER_S: u64 = 10;
const MESSAGES: u64 = SECONDS * MESSAGES_PER_S;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().collect();
    let [_, directory, count] = words.as_slice() else {
        return Err("usage: shards DIR COUNT".into());
    };
    let count: u32 = count.parse()?;
    for index in 0..count {
        write(&Path::new(directory).join(format!("part-{index:04}")), index, count)?;
    }
    Ok(())
}

fn write(directory: &Path, index: u32, count: u32) -> Result<(), Box<dyn std::error::Error>> {
    fs::create_dir_all(directory)?;
    let mut tally = SourceTally::default();
    tally.first_created = Some(Duration::from_secs(1));
    let mut units = Ledger::default();
    for message in 0..MESSAGES {
        // Make up latencies that differ between the parts. Most of them are short, and few are very long.
        let draw = (message * 7_919 + u64::from(index) * 104_729) % 10_007;
        let took = Duration::from_micros(300 + draw * draw / 500);
        tally.created += 1;
        tally.sent += 1;
        tally.accepted += 1;
        tally.time(LatencyKind::Sent, took / 2);
        tally.time(LatencyKind::Accepted, took);
        let due = Duration::from_secs(1) + Duration::from_secs(SECONDS) * message as u32 / MESSAGES as u32;
        tally.accepted_times.record(due + took, due);
        Phase::ALL.into_iter().for_each(|phase| tally.time(LatencyKind::Phase(phase), took / 10));
        units.mark(u64::from(index) * MESSAGES + message, 0);
    }
    tally.flush_times();
    let record = record(&tally, index, count);
    fs::write(directory.join("run.json"), record.to_json()?)?;
    units.write_to(fs::File::create(directory.join("ledger"))?)?;
    Ok(())
}

fn record(tally: &SourceTally, index: u32, count: u32) -> Record {
    let offered = Duration::from_secs(SECONDS);
    let second = |second: u64| SeriesRow {
        second,
        created: MESSAGES_PER_S,
        sent: MESSAGES_PER_S,
        accepted: MESSAGES_PER_S,
        p50_ms: 1.25,
        p99_ms: 17.125,
        ..SeriesRow::default()
    };
    let usage = |second: u64| UsageRow { second, cores: 0.125, rss_bytes: 40 << 20 };
    let own = Workload { messages: Some(MESSAGES), sessions: 10, ..Workload::default() };
    let all = MESSAGES * u64::from(count);
    Record {
        run_id: "0123456789abcdef0123456789abcdef".to_owned(),
        name: "shards".to_owned(),
        origin_ns: 1_000_000_000_000,
        clock: Some(ClockRow {
            boot: format!("{index:08x}"),
            unix_offset_ns: 1_795_000_000_000_000_000,
            sinks: Vec::new(),
        }),
        offered_s: Some(offered.as_secs_f64()),
        shard: Some(ShardRow {
            index,
            count,
            plan: "0".repeat(64),
            start_at: "2026-11-23T12:00:00Z".to_owned(),
            first_message: u64::from(index) * MESSAGES,
            messages: Some(MESSAGES),
            workload: Workload { messages: Some(all), sessions: 10 * count, ..own.clone() },
            ..ShardRow::default()
        }),
        workload: own,
        parties: vec![Party::new(Role::Source, "source")],
        stages: tally.stages("source", Stage::Created, Duration::from_secs(1)),
        phases: tally.phase_rows(),
        series: (0..SECONDS).map(second).collect(),
        usage: vec![PartyUsage { party: "source".to_owned(), seconds: (0..SECONDS).map(usage).collect() }],
        ledger: LedgerRow {
            created: Some(MESSAGES),
            accepted: Some(MESSAGES),
            rejected: Some(0),
            failed: Some(0),
            in_flight: Some(MESSAGES),
            ..LedgerRow::default()
        },
        ending: Some(Ending::Complete),
        ..Record::empty()
    }
}
