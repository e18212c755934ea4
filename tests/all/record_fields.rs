//! The parts of a record that explain a run: figures of each second and domain, single messages, and the faults that
//! the user ordered.
use crate::party::mailrun;
use crate::secured::Files;
use mailrun_measurement::record::{EventKind, KeepAwake, Record, Role, SlowMessage};
use mailrun_measurement::{Latencies, Phase, Stage};
use std::fs;

/// Runs a bench and returns its record, whatever the verdict.
fn bench(words: &[&str]) -> Record {
    let files = Files::new();
    let out = files.path("out");
    let ended = mailrun(&[&["bench", "--out", &out, "--quiet"], words].concat());
    assert!(matches!(ended.code, Some(0 | 1 | 3)), "{ended:?}");
    serde_json::from_str(&fs::read_to_string(format!("{out}/run.json")).unwrap()).unwrap()
}

/// A run with two domains, an open loop, a warm-up, stages of the rate, and a sink that rejects, repeats and stalls.
fn faulted() -> Record {
    bench(&[
        "--relay",
        "none",
        "--to",
        "user{0..9}@{a.example:70,B.example:30}",
        "--recipients",
        "2",
        "--sessions",
        "20",
        "--stage",
        "2s:200/s",
        "--stage",
        "2s:100/s",
        "--warm-up",
        "500ms",
        "--fault",
        "rcpt to @b.example: hard reject \"550 5.1.1 unknown\" 20%",
        "--fault",
        ".: duplicate 10%",
        "--fault",
        "data: stall 800ms..1500ms",
    ])
}

#[test]
fn each_part_of_the_record_agrees_with_what_was_ordered() {
    let record = faulted();
    domains_sum_to_the_ledger(&record);
    slowest_are_sorted_and_whole(&record.slowest);
    errors_have_times_and_a_recipient(&record);
    seconds_add_up(&record);
    service_is_shorter_than_latency(&record);
    let duration_s = record.duration_s;
    for party in &record.parties {
        let usage = record.usage.iter().find(|usage| usage.party == party.name);
        let seconds = &usage.unwrap_or_else(|| panic!("no usage of {}: {:?}", party.name, record.usage)).seconds;
        assert!(seconds.len() as f64 >= duration_s - 2.0, "{}: {seconds:?}", party.name);
        assert!(seconds.iter().all(|row| row.cores >= 0.0 && row.rss_bytes > 0), "{seconds:?}");
        assert!(seconds.windows(2).all(|pair| pair[0].second < pair[1].second), "{seconds:?}");
    }
    let kinds: Vec<EventKind> = record.events.iter().map(|event| event.kind).collect();
    for kind in [EventKind::WarmUpEnded, EventKind::RateStage, EventKind::FaultOn, EventKind::FaultOff] {
        assert!(kinds.contains(&kind), "{kind:?} is missing: {:?}", record.events);
    }
    assert!(record.events.is_sorted_by(|one, other| one.at_s <= other.at_s), "{:?}", record.events);
}

fn domains_sum_to_the_ledger(record: &Record) {
    let names: Vec<&str> = record.domains.iter().map(|row| row.domain.as_str()).collect();
    assert_eq!(names, ["a.example", "b.example"], "the larger first");
    let ledger = &record.ledger;
    let sum =
        |part: fn(&mailrun_measurement::record::DomainRow) -> u64| Some(record.domains.iter().map(part).sum::<u64>());
    assert_eq!(sum(|row| row.created), ledger.created);
    assert_eq!(sum(|row| row.accepted), ledger.accepted);
    assert_eq!(sum(|row| row.delivered.unwrap()), ledger.delivered);
    assert_eq!(sum(|row| row.duplicates.unwrap()), ledger.duplicates);
    assert!(ledger.duplicates > Some(0), "{ledger:?}");
    for row in &record.domains {
        assert_eq!(row.created, row.accepted + row.rejected + row.failed + row.in_doubt, "{row:?}");
    }
    assert_eq!(record.domains[0].rejected, 0, "only the other was to be rejected");
    assert!(record.domains[1].rejected > 0, "{:?}", record.domains);
}

fn slowest_are_sorted_and_whole(slowest: &[SlowMessage]) {
    // The sink keeps the 50 slowest arrivals. If a message arrived twice, it takes two of these places but is listed
    // once, so the list may be shorter than 50.
    assert!((40..=50).contains(&slowest.len()), "{}", slowest.len());
    assert!(slowest.is_sorted_by(|one, other| one.delivered_ms >= other.delivered_ms), "{slowest:?}");
    assert!(slowest.iter().all(|message| message.delivered_ms > Some(100.0)), "all arrived: {slowest:?}");
    assert!(slowest[0].delivered_ms > Some(300.0), "the stall shows: {:?}", slowest[0]);
    let has_dialogue = |message: &&SlowMessage| !message.phases.is_empty();
    assert!(slowest.iter().filter(has_dialogue).count() > 0, "most are also among the slowest to be accepted");
    for message in slowest {
        assert!(message.accepted_ms.is_some() && message.reply.is_some(), "{message:?}");
        assert_eq!((message.recipients.len(), message.recipient_count), (2, 2));
        assert!(message.recipients.iter().all(|recipient| recipient.ends_with(".example")), "{message:?}");
        assert!(message.bytes > 0 && message.created_s > 0.0, "{message:?}");
    }
    for message in slowest.iter().filter(has_dialogue) {
        let phases_ms: f64 = message.phases.iter().map(|phase| phase.ms).sum();
        assert!(phases_ms + message.waited_ms <= message.accepted_ms.unwrap() + 1.0, "{message:?}");
        assert!(message.phases.is_sorted_by_key(|phase| phase.name), "{message:?}");
        assert!(message.phases.iter().all(|phase| phase.ms > 0.0), "{message:?}");
    }
}

fn errors_have_times_and_a_recipient(record: &Record) {
    let last_s = record.series.last().unwrap().second as f64 + 1.0;
    let rejected = record.errors.iter().find(|row| row.code == 550 && row.phase == Phase::Rcpt).unwrap();
    assert!(rejected.sample.as_ref().is_some_and(|sample| sample.ends_with("@B.example")), "{rejected:?}");
    for row in &record.errors {
        assert!(row.first_s <= row.last_s && row.first_s >= Some(0.0) && row.last_s <= Some(last_s), "{row:?}");
    }
}

fn seconds_add_up(record: &Record) {
    let created = record.stage(Stage::Created).unwrap().count;
    assert_eq!(record.series.iter().map(|row| row.created).sum::<u64>(), created);
    for row in &record.series {
        let rising = [row.p50_ms, row.p95_ms, row.p99_ms, row.p999_ms, row.max_ms];
        assert!(rising.is_sorted(), "{row:?}");
    }
    assert!(record.series.iter().any(|row| row.max_ms > 300.0), "the stall shows: {:?}", record.series);
}

fn service_is_shorter_than_latency(record: &Record) {
    for row in record.stages.iter().filter(|row| matches!(row.name, Stage::Sent | Stage::Accepted)) {
        let service = row.service_ms.unwrap_or_else(|| panic!("open loop: {row:?}"));
        assert!(service.mean <= row.latency_ms.unwrap().mean, "{row:?}");
        assert_eq!(Latencies::decode(row.service_histogram.as_ref().unwrap()).unwrap().count(), row.count);
    }
}

#[test]
fn all_times_of_a_run_with_a_warm_up_have_one_zero() {
    let record = bench(&[
        "--relay",
        "none",
        "--sessions",
        "4",
        "--rate",
        "200",
        "--duration",
        "5s",
        "--warm-up",
        "1s",
        "--fault",
        "data: stall 1500ms..3200ms",
        "--fault",
        "mail: soft reject 5%",
    ]);
    let at = |kind| {
        let event = record.events.iter().find(|event| event.kind == kind);
        event.unwrap_or_else(|| panic!("no {kind:?}: {:?}", record.events)).at_s
    };
    let warm_up_ended = at(EventKind::WarmUpEnded);
    assert_eq!(warm_up_ended, 1.0, "second 0 is the begin of the load");
    assert!(record.zero_at[..19] >= record.started_at[..19] && record.zero_at.ends_with('Z'), "{}", record.zero_at);
    let stall = record.stalls.iter().find(|stall| stall.to_s - stall.from_s > 1.2).expect("a stall");
    // The source records both the stall and the events ServerLost and ServerBack, so their times must be equal. If the
    // server rejected a message during the stall, it was still there, and there must be no such events.
    let has = |kind, at_s| record.events.iter().any(|event| event.kind == kind && event.at_s == at_s);
    assert_eq!(has(EventKind::ServerLost, stall.from_s), stall.rejected == 0, "{stall:?}: {:?}", record.events);
    assert_eq!(has(EventKind::ServerBack, stall.to_s), stall.rejected == 0, "{stall:?}: {:?}", record.events);
    // The sink counts the times of its rules from its first connection, which comes after the start of the run. The
    // fault may therefore end later than 3.2 s after the start of the run, but not earlier.
    let fault_off = at(EventKind::FaultOff);
    assert!(fault_off >= warm_up_ended + 2.2 - 0.001, "{:?}", record.events);
    assert!(stall.to_s >= fault_off - 0.001, "accepted again while the sink stalls: {stall:?}, {fault_off}");
    assert!(stall.from_s <= fault_off, "{stall:?}");
    let first = record.series.first().unwrap().second as f64;
    let last = record.series.last().unwrap().second as f64;
    assert!(first >= warm_up_ended, "the warm-up has no row: {first}");
    let mut undelivered = 0;
    for row in &record.series {
        undelivered += row.created;
        assert!(undelivered >= row.delivered, "delivered before it was created: {:?}", record.series);
        undelivered -= row.delivered;
    }
    assert!(record.events.iter().all(|event| event.at_s >= 0.0), "{:?}", record.events);
    assert!(record.slowest.iter().all(|message| message.created_s >= warm_up_ended - 0.001), "{:?}", record.slowest);
    for row in &record.errors {
        assert!(row.first_s >= Some(warm_up_ended - 1.001) && row.last_s <= Some(last + 1.0), "{row:?}");
    }
    assert!(record.usage.iter().all(|usage| usage.seconds.iter().all(|row| row.second as f64 <= last + 60.0)));
}

#[test]
fn every_record_with_a_directory_names_its_disk() {
    let files = Files::new();
    let out = files.path("out");
    let ended = mailrun(&["bench", "--out", &out, "--quiet", "--messages", "50"]);
    assert!(matches!(ended.code, Some(0 | 1 | 3)), "{ended:?}");
    let disk = |name: &str| {
        let text = fs::read_to_string(format!("{out}/{name}.json")).unwrap();
        serde_json::from_str::<Record>(&text).unwrap().host.disk
    };
    let of_run = disk("run");
    assert!(of_run.as_ref().is_some_and(|disk| !disk.file_system.is_empty()), "{of_run:?}");
    for party in ["source", "relay", "sink"] {
        assert_eq!(disk(party), of_run, "{party}: all of them write below {out}");
    }
}

#[test]
fn a_run_with_one_domain_and_a_closed_loop_has_neither_domains_nor_service_times() {
    let record = bench(&["--messages", "300", "--sessions", "5"]);
    assert!(record.domains.is_empty() && record.events.is_empty(), "{:?} {:?}", record.domains, record.events);
    assert!(record.stages.iter().all(|row| row.service_ms.is_none() && row.service_histogram.is_none()));
    assert_eq!(record.slowest.len(), 50);
    // Only messages that were also among the slowest to be accepted have the phases of their SMTP dialogue.
    for message in record.slowest.iter().filter(|message| !message.phases.is_empty()) {
        assert!(message.phases.iter().any(|phase| phase.name == Phase::Reply), "{message:?}");
    }
    let parties: Vec<&str> = record.usage.iter().map(|usage| usage.party.as_str()).collect();
    for party in &record.parties {
        assert!(parties.contains(&party.name.as_str()), "{parties:?} has no {}", party.name);
    }
}

#[test]
fn busy_polling_and_its_cost_are_in_the_record_of_both_ends() {
    let record = bench(&["--sessions", "1", "--messages", "200", "--", "--busy-poll", "50us"]);
    for party in &record.parties {
        let row = party.busy_poll.as_ref().unwrap_or_else(|| panic!("{} says nothing: {party:?}", party.name));
        assert_eq!(row.mode, "50us");
        assert!(row.looked_s > 0.0, "{row:?}");
        let used_s = party.user_s.unwrap() + party.sys_s.unwrap();
        assert!(party.work_s().unwrap() <= used_s, "{party:?}");
    }
    let record = bench(&["--relay", "none", "--sessions", "1", "--messages", "20"]);
    assert!(record.parties.iter().all(|party| party.busy_poll.is_none()), "{:?}", record.parties);
}

#[test]
fn the_record_and_the_report_say_whether_the_processors_were_kept_awake() {
    let run = crate::party::bench(&["--keep-awake", "auto", "--sessions", "1", "--messages", "20"]);
    let state = run.record_of(0).host.keep_awake.expect("bench decides it");
    // The bench must at least have tried to keep the processors awake. The attempt may fail, because by default only
    // root may write to the device that this needs, and containers have no such device.
    assert_ne!(state, KeepAwake::Off, "the bench's own source and sink are no server under test");
    assert!(run.file("report.md").contains(state.words()), "{}", run.file("report.md"));
    if state == KeepAwake::On {
        let source: Record = serde_json::from_str(&run.file("source.json")).unwrap();
        assert_eq!(source.host.keep_awake, Some(state), "what the bench holds is seen by its parties");
    } else {
        let refused = mailrun(&["bench", "--keep-awake", "on", "--messages", "20"]);
        assert_eq!((refused.code, refused.err.lines().count()), (Some(2), 1), "{refused:?}");
    }
}

#[test]
fn parties_run_where_they_are_placed() {
    let available = mailrun_process::cpus::CpuList::available().unwrap();
    let numbers = available.numbers();
    let first = numbers[0].to_string();
    let last = numbers[numbers.len() - 1].to_string();
    let words = ["--sessions", "2", "--messages", "20", "--source-cpus", &first];
    let record = bench(&[&words[..], &["--relay-cpus", &last, "--sink-cpus", &available.to_string()]].concat());
    let placed = |role: Role| record.parties.iter().find(|party| party.role == role).unwrap();
    assert_eq!(placed(Role::Source).cpus, Some(first));
    assert_eq!((&placed(Role::Relay).cpus, placed(Role::Relay).workers), (&Some(last), Some(1)));
    let sink = placed(Role::Sink);
    assert_eq!((&sink.cpus, sink.workers), (&Some(available.to_string()), u32::try_from(numbers.len()).ok()));
    assert_eq!(record.host.cores as usize, numbers.len(), "the host has as many as before");
    let record = bench(&["--messages", "20", "--", "--workers", "1"]);
    assert!(record.parties.iter().all(|party| party.workers == Some(1)), "{:?}", record.parties);
    assert!(record.parties.iter().all(|party| party.cpus.is_none()), "{:?}", record.parties);
}

#[test]
fn the_source_says_how_late_its_workers_wake() {
    let record = bench(&["--relay", "none", "--sessions", "1", "--duration", "500ms"]);
    for party in &record.parties {
        assert_eq!(party.wake_up_ms.is_some(), party.role == Role::Source, "{party:?}");
    }
    let delays = record.parties.iter().find_map(|party| party.wake_up_ms).unwrap();
    assert!(delays.max > 0.0 && delays.p50 <= delays.p99 && delays.p99 <= delays.max, "{delays:?}");
}
