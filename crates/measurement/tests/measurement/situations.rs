//! Situations that new users met, each with the conclusion that mailrun must draw from it. All events are simulated, so
//! no clock is read.
//!
//! The first test checks rates, and the others check verdicts. Some of their situations must *not* be blamed on the
//! server, or must *not* be excused.
use mailrun_measurement::account::{AccountInputs, Arrivals, ServerQueue, Topology, reconcile};
use mailrun_measurement::judge::{VerdictInputs, judge};
use mailrun_measurement::merge::merge_records;
use mailrun_measurement::record::{
    Arrival, ForeignLoad, HostProcess, LatencyMs, MissingMessage, Ordered, Outcome, Party, Record, Role, Surroundings,
    WaitRow, WarmUp, Workload,
};
use mailrun_measurement::threshold::{RunProtocol, Threshold};
use mailrun_measurement::{Latencies, LatencyKind, Ledger, MarkResult, RunTally, Series, SourceTally, Stage};
use std::time::Duration;

/// Time of the simulated clock at which the load begins. It is long after the clock's zero, because a `Duration` cannot
/// be negative.
const ZERO: Duration = Duration::from_secs(1_000);

fn s(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// What happens to a simulated message. Times are in seconds since the load began.
#[derive(Clone, Copy, Debug)]
struct Message {
    due: f64,
    /// The message was due before the end of the warm-up.
    is_warm_up: bool,
    /// Number of seconds by which the source began the message late. `None` if the message was never sent.
    lag: Option<f64>,
    /// Time at which the server would accept the message (250) if the source began it on time. The simulation adds
    /// `lag` to this time. `None` if the server rejected the message.
    accepted: Option<f64>,
    delivered: Option<f64>,
    /// Set if the message arrives twice at the sink.
    is_repeated: bool,
}

/// A simulated run, from which [`Run::record`] makes a record with a verdict.
#[derive(Clone, Debug)]
struct Run {
    messages: Vec<Message>,
    rate: f64,
    length_s: f64,
    /// Number of seconds for which the bench waited for outstanding messages after the load.
    waited_s: f64,
    has_unknown_queue: bool,
    /// Set if messages are missing because the user ordered the sink to drop them.
    is_ordered: bool,
    is_watched: bool,
    /// State of the host during the run, if the host was watched.
    host: Option<Surroundings>,
}

/// Returns a run with a constant rate, in which each message is accepted after 2 ms and delivered after 20 ms.
fn load(rate: f64, length_s: f64) -> Run {
    let message = |number: u32| {
        let due = f64::from(number) / rate;
        let (accepted, delivered) = (Some(due + 0.002), Some(due + 0.02));
        Message { due, is_warm_up: false, lag: Some(0.0), accepted, delivered, is_repeated: false }
    };
    Run {
        messages: (0..(rate * length_s).round() as u32).map(message).collect(),
        rate,
        length_s,
        waited_s: 2.0,
        has_unknown_queue: false,
        is_ordered: false,
        is_watched: true,
        host: None,
    }
}

/// Returns the state of a host with two processors. Foreign programs used `share` of the processor time, and all
/// programs together `used_share`. For each quarter of a second, `wait` returns how long source, sink and server waited
/// for a processor.
fn host(share: Option<f64>, used_share: f64, wait: impl Fn(u32) -> WaitRow) -> Surroundings {
    let process = |name: &str, processor_s: f64, foreign: bool| HostProcess {
        name: name.to_owned(),
        processes: 1,
        processor_s,
        rss_bytes: 1,
        foreign,
    };
    let foreign = ForeignLoad {
        share,
        unknown: if share.is_none() { "its process cannot be found".to_owned() } else { String::new() },
        server_elsewhere: false,
        window_s: 0.25,
        waits: (0..40).map(wait).collect(),
    };
    Surroundings {
        load_processor_s: Some(20.0),
        used_share: Some(used_share),
        processes: vec![process("sh", 6.1, true), process("smtpd", 5.0, false), process("python3", 4.0, true)],
        foreign: Some(foreign),
        ..Surroundings::default()
    }
}

/// Returns a function that makes rows with many short waits for a processor: 20 waits of `each_ms` in each row.
fn short(each_ms: f64) -> impl Fn(u32) -> WaitRow {
    move |_| WaitRow { waited_ms: 20.0 * each_ms }
}

/// Returns a function that makes rows with rare long waits for a processor: `long_ms` in every tenth row, and 0.1 ms in
/// the others.
fn long(long_ms: f64) -> impl Fn(u32) -> WaitRow {
    move |row| match row % 10 {
        0 => WaitRow { waited_ms: long_ms },
        _ => WaitRow { waited_ms: 0.1 },
    }
}

impl Run {
    /// Applies `change` to every nth message, where n is `every`.
    fn each(mut self, every: usize, change: impl Fn(&mut Message)) -> Self {
        self.messages.iter_mut().skip(every / 2).step_by(every).for_each(change);
        self
    }

    /// Limits the server to `per_s` deliveries per second, in the order of the messages.
    fn delivered_at(mut self, per_s: f64) -> Self {
        let mut free = 0.0_f64;
        for message in &mut self.messages {
            free = free.max(message.accepted.unwrap_or(message.due)) + 1.0 / per_s;
            message.delivered = Some(free);
        }
        self.waited_s = (free - self.length_s).max(0.0) + 2.0;
        self
    }

    fn beside(self, host: Surroundings) -> Self {
        Self { host: Some(host), ..self }
    }

    fn with(mut self, change: impl Fn(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Makes the record of the run, with its verdict, in the same steps as source, sink and bench in a real run.
    fn record(&self, thresholds: &[&str]) -> Record {
        let mut source = SourceTally::default();
        let mut sink = RunTally::default();
        let mut source_series = Series::new(ZERO);
        let mut sink_series = Series::new(ZERO);
        let mut arrived = Ledger::default();
        for (sequence, message) in self.messages.iter().enumerate() {
            let due = ZERO + s(message.due);
            let Some(lag) = message.lag else { continue };
            let warm = u64::from(message.is_warm_up);
            let began = due + s(lag);
            source.created += 1;
            source.recipients_created += 1;
            source.warm_up.created += warm;
            if warm == 0 {
                source.first_created.get_or_insert(due);
                source.created_times.record(began, due);
                source.time(LatencyKind::Slip, began - due);
                source.time(LatencyKind::Lag, began - due);
                source_series.add_created(due, 1);
            }
            match message.accepted {
                Some(accepted) => {
                    let at = ZERO + s(accepted) + s(lag);
                    source.accepted += 1;
                    source.warm_up.accepted += warm;
                    source.accepted_units.mark(sequence as u64, 0);
                    if warm == 0 {
                        source.accepted_times.record(at, due);
                        source.time(LatencyKind::Accepted, at - due);
                        let mut second = mailrun_measurement::seconds::SecondTally::new(at);
                        second.accepted = 1;
                        source_series.add(&second);
                    }
                }
                None => {
                    (source.rejected, source.recipients_rejected) =
                        (source.rejected + 1, source.recipients_rejected + 1)
                }
            }
            let delivered = message.delivered.filter(|_| message.accepted.is_some()).map(|at| ZERO + s(at));
            for at in delivered.into_iter().chain(delivered.filter(|_| message.is_repeated)) {
                sink.messages += 1;
                sink.recipients += 1;
                sink.warm_up_messages += warm;
                sink.duplicates += u64::from(arrived.mark(sequence as u64, 0) == MarkResult::Again);
                sink.last_delivered = Some(at);
                if warm == 0 {
                    sink.first_created.get_or_insert(due);
                    sink.delivered.record(at - due);
                    sink.delivered_times.record(at, due);
                    let mut second = mailrun_measurement::seconds::SecondTally::new(at);
                    (second.delivered, second.latencies) = (1, Latencies::default());
                    sink_series.add(&second);
                }
            }
        }
        source.flush_times();
        let end = ZERO + s(self.length_s + self.waited_s);
        let observed = Some(self.length_s + self.waited_s);
        let due = self.messages.iter().filter(|message| !message.is_warm_up).count() as u64;
        let is_warmed_up = self.messages.first().is_some_and(|message| message.is_warm_up);
        let warm_up = is_warmed_up.then(|| WarmUp {
            length_s: self.messages.iter().find(|message| !message.is_warm_up).unwrap().due,
            created: source.warm_up.created,
            accepted: source.warm_up.accepted,
        });
        let source_record = Record {
            workload: Workload {
                arrival: Arrival::Constant,
                rate_per_s: Some(self.rate),
                recipients: 1,
                ..Workload::default()
            },
            parties: vec![Party::new(Role::Source, "source")],
            origin_ns: ZERO.as_nanos() as u64,
            observed_until_s: observed,
            offered_s: Some(self.length_s - warm_up.map_or(0.0, |warm_up| warm_up.length_s)),
            warm_up,
            due: Some(due),
            duration_s: self.length_s,
            stages: source.stages("source", Stage::Scheduled, ZERO),
            lag_ms: source.lag.summary(),
            series: source_series.rows(end),
            ..Record::empty()
        };
        // A sink that has received nothing writes no record.
        let sink_record = (sink.messages > 0).then(|| Record {
            parties: vec![Party::new(Role::Sink, "sink")],
            origin_ns: ZERO.as_nanos() as u64,
            observed_until_s: observed,
            stages: vec![sink.stage("sink", Stage::Created, ZERO)],
            series: sink_series.rows(end),
            ..Record::empty()
        });
        let nothing = Ledger::default();
        let counts = |units| Arrivals { duplicates: sink.duplicates, ..Arrivals::unharmed(units, &nothing) };
        let ledger = reconcile(AccountInputs {
            recipients_created: source.recipients_created,
            accepted: &source.accepted_units,
            rejected: source.recipients_rejected,
            failed: 0,
            in_doubt: 0,
            has_reply_for_each: false,
            open: 0,
            overflow: 0,
            arrivals: self.is_watched.then(|| counts(&arrived)),
            queue: if self.has_unknown_queue { ServerQueue::Unknown } else { ServerQueue::Absent },
        });
        let lost = ledger.lost.or(ledger.not_delivered).unwrap_or_default();
        let mut record = merge_records(source_record, sink_record.filter(|_| self.is_watched), ledger);
        let answered = |(sequence, message): (usize, &Message)| MissingMessage {
            message: sequence as u64,
            answered_s: message.accepted,
            ..MissingMessage::default()
        };
        let unseen =
            self.messages.iter().enumerate().filter(|(_, one)| one.accepted.is_some() && one.delivered.is_none());
        record.missing = unseen.map(answered).collect();
        record.host.cores = 2;
        record.surroundings.clone_from(&self.host);
        let parse =
            |text: &&str| Threshold::parse(text, RunProtocol::Smtp).unwrap_or_else(|why| panic!("{text}: {why}"));
        record.thresholds = thresholds.iter().map(|text| parse(text).evaluate(&record)).collect();
        let topology = if self.has_unknown_queue { Topology::Server } else { Topology::Direct };
        let ordered = self.is_ordered.then(|| Ordered { lost, ..Ordered::default() });
        let quiet_timeout = Some(s(self.waited_s));
        record.verdict = judge(&record, &VerdictInputs { topology, ordered, quiet_timeout });
        record
    }
}

#[test]
fn each_stage_has_the_rate_at_which_messages_reached_it() {
    let retried = |run: Run, every, by: f64| {
        run.each(every, move |message| message.delivered = Some(message.due + by)).with(|run| run.waited_s = 70.0)
    };
    let burst = load(667.0, 100.0 / 667.0).delivered_at(100.0 / 9.4);
    let warm = load(50.0, 10.0).delivered_at(18.0).with(|run| {
        run.messages.iter_mut().filter(|message| message.due < 5.0).for_each(|message| message.is_warm_up = true);
    });
    let slower = load(1_000.0, 10.0).with(|run| {
        let slow = |second: u32| Message { due: 10.0 + f64::from(second), ..run.messages[0] };
        let slow = (0..100).map(slow).map(|one| Message {
            accepted: Some(one.due + 0.002),
            delivered: Some(one.due + 0.02),
            ..one
        });
        run.messages = run.messages.iter().copied().chain(slow).collect();
        run.length_s = 110.0;
    });
    for (situation, run, accepted, delivered, is_behind) in [
        ("a: a server that keeps up", load(50.0, 10.0), 50.0, 50.0, false),
        ("b: a server that delivers 18/s", load(50.0, 10.0).delivered_at(18.0), 50.0, 18.0, true),
        ("c: one of 500 is tried again after 30 s", retried(load(50.0, 10.0), 500, 30.0), 50.0, 50.0, false),
        ("d: accepted at once, delivered evenly", burst, 667.0, 10.6, true),
        ("e: a constant latency of 1 s", retried(load(50.0, 10.0), 1, 1.0), 50.0, 50.0, false),
        ("f: as b, with a warm-up", warm, 50.0, 18.0, true),
        ("g: 1,000/s, then 1/s", slower, 92.0, 92.0, false),
        ("h: 2 % are greylisted for a minute", retried(load(50.0, 10.0), 50, 60.0), 50.0, 49.0, false),
        (
            "a queue that is released at once",
            load(50.0, 10.0).with(|run| {
                let release =
                    |(number, message): (usize, &mut Message)| message.delivered = Some(20.0 + number as f64 / 5e3);
                run.messages.iter_mut().enumerate().for_each(release);
                run.waited_s = 12.0;
            }),
            50.0,
            5_000.0,
            true,
        ),
        (
            "a fifth is lost: it was in no queue",
            load(50.0, 10.0).each(5, |message| message.delivered = None),
            50.0,
            40.0,
            false,
        ),
    ] {
        let record = run.record(&[]);
        for (stage, expected) in [(Stage::Accepted, accepted), (Stage::Delivered, delivered)] {
            let rate = record.stage(stage).unwrap().rate_per_s.unwrap();
            assert!((rate / expected - 1.0).abs() < 0.02, "{situation}: {} {rate}/s, not {expected}/s", stage.name());
            // A threshold on the rate must be compared with the rate in the stage's row.
            let text = format!("{}.rate > {}/s", stage.name(), expected * 0.98);
            let row = Threshold::parse(&text, RunProtocol::Smtp).unwrap().evaluate(&record);
            assert_eq!((row.value, row.passed), (Some(rate), true), "{situation}");
        }
        let said = record.verdict.reasons.iter().find(|reason| reason.starts_with("Deliveries fell behind"));
        assert_eq!(said.is_some(), is_behind, "{situation}: {:?}", record.verdict.reasons);
    }
    let behind = load(50.0, 10.0).delivered_at(18.0).record(&[]).verdict.reasons;
    assert!(
        behind[0].starts_with("Deliveries fell behind: accepted 50.0/s, delivered 18.0/s,")
            && behind[0].ends_with("the queue grew to 312."),
        "{behind:?}"
    );
}

#[test]
fn each_situation_has_its_conclusion() {
    let mut wrong = Vec::new();
    const PASS: Outcome = Outcome::Pass;
    const FAIL: Outcome = Outcome::Fail;
    const INVALID: Outcome = Outcome::Invalid;
    const UNCLEAR: Outcome = Outcome::Inconclusive;
    let sound = || load(50.0, 10.0);
    let missing = |every: usize| load(50.0, 10.0).each(every, |message| message.delivered = None);
    let foreign =
        |run: Run, waited_s: f64| run.with(move |run| (run.has_unknown_queue, run.waited_s) = (true, waited_s));
    let ordered = |run: Run| run.with(|run| run.is_ordered = true);
    let late = |run: Run, lag: f64| run.each(20, move |message| message.lag = Some(lag));
    let rejected = |every: usize| load(50.0, 10.0).each(every, |message| message.accepted = None);
    let repeated = |run: Run| run.each(10, |message| message.is_repeated = true);
    // Two messages are missing: the message due at 1 s, in the warm-up, and the message due at `due`.
    let also_missing_at = |due: f64| {
        load(50.0, 10.0).with(move |run| {
            run.messages.iter_mut().filter(|message| message.due < 5.0).for_each(|message| message.is_warm_up = true);
            let missing = |message: &&mut Message| message.due == 1.0 || message.due == due;
            run.messages.iter_mut().filter(missing).for_each(|message| message.delivered = None);
        })
    };
    let unsent = |run: Run| {
        run.with(|run| {
            run.messages.iter_mut().filter(|message| message.due >= 7.0).for_each(|message| message.lag = None)
        })
    };
    let few = |count: usize| {
        load(50.0, 1.0).with(move |run| (run.messages.truncate(count), run.length_s = count as f64 / 50.0).0)
    };
    for (situation, run, thresholds, outcome, why) in [
        (
            "nothing is amiss",
            sound(),
            &["delivered.p99 < 1s", "delivered.within(1s) >= 100%"][..],
            PASS,
            "500 delivered, none lost",
        ),
        // In these situations, all mail arrives, so only the rate of delivery can miss a threshold.
        ("row 1", sound().delivered_at(18.0), &[], PASS, "500 delivered"),
        ("row 2", sound().delivered_at(10.3), &["delivered.rate > 40/s"], FAIL, "delivered.rate > 40/s; it was 10.3/s"),
        ("row 3", load(675.0, 100.0 / 675.0).delivered_at(10.6), &["delivered.rate > 300/s"], FAIL, "it was 10."),
        ("row 3, a rate that is reached", load(675.0, 1.0), &["delivered.rate > 300/s"], PASS, "675 delivered"),
        // In these situations, some messages never arrive, are rejected, or arrive twice.
        (
            "row 12: the sink drops 1 %, the source is late",
            late(ordered(missing(100)), 0.03),
            &["delivered.within(1h) >= 100%"],
            FAIL,
            "delivered.within(1h) >= 100%; it was 99 %",
        ),
        (
            "row 12: the same without an order",
            late(missing(100), 0.03),
            &["delivered.within(1h) >= 100%"],
            FAIL,
            "Lost: 5 of 500",
        ),
        (
            "row 12, percentiles",
            late(ordered(missing(50)), 0.03),
            &["delivered.p99 < 4s"],
            FAIL,
            "delivered.p99 < 4s; it was > 2,000 ms, as 10 of 500 messages did not come in time",
        ),
        (
            "row 12, the maximum",
            late(ordered(missing(500)), 0.03),
            &["delivered.max < 1h"],
            FAIL,
            "as 1 of 500 messages",
        ),
        (
            "row 12, the count",
            ordered(missing(100)),
            &["delivered.count >= 500"],
            FAIL,
            "delivered.count >= 500; it was 495",
        ),
        (
            "row 12, rejected",
            late(rejected(25), 0.03),
            &["accepted.within(60s) >= 99%", "rejected <= 10%"],
            FAIL,
            "it was 96 %",
        ),
        (
            "rejections that are allowed and too few to matter",
            rejected(500),
            &["accepted.p99 < 1s", "rejected <= 1%"],
            PASS,
            "1 rejected",
        ),
        (
            "row 13: one of 400 is missing",
            ordered(load(40.0, 10.0).each(400, |message| message.delivered = None)),
            &["delivered.within(10s) >= 100%"],
            FAIL,
            "it was 99.8 %",
        ),
        ("row 14: all are missing", ordered(missing(1)), &["delivered.within(10s) >= 100%"], FAIL, "it was 0 %"),
        (
            "row 14: percentiles",
            ordered(missing(1)),
            &["delivered.p50 < 10s"],
            FAIL,
            "as 500 of 500 messages did not come in time",
        ),
        (
            "a limit that allows what is missing",
            ordered(missing(100)),
            &["delivered.p95 < 1s", "delivered.within(1s) >= 98%"],
            PASS,
            "500 delivered",
        ),
        (
            "repeated arrivals make up for no message that never came",
            ordered(repeated(load(100.0, 10.0).each(20, |message| message.delivered = None))),
            &["delivered.within(60s) >= 96%", "duplicates <= 20%"],
            FAIL,
            "delivered.within(60s) >= 96%; it was 95.5 %",
        ),
        (
            "repeated arrivals, and all of them in time",
            repeated(load(100.0, 10.0)),
            &["delivered.within(60s) >= 100%", "duplicates <= 20%"],
            PASS,
            "1,000 delivered, none lost, 100 duplicate",
        ),
        // The server's queue cannot be read here, so missing mail may still be in the queue.
        (
            "nobody knows, and the limit is longer than the wait",
            foreign(missing(100), 2.0),
            &["delivered.within(1h) >= 100%"],
            UNCLEAR,
            "may still come in time",
        ),
        (
            "the same beside a message of the warm-up, which has waited long enough",
            foreign(also_missing_at(9.9), 2.0),
            &["delivered.within(5s) >= 100%"],
            UNCLEAR,
            "may still come in time",
        ),
        (
            "both have waited long enough",
            foreign(also_missing_at(6.0), 2.0),
            &["delivered.within(5s) >= 100%"],
            FAIL,
            "it was 99.6 %",
        ),
        (
            "the same for a percentile",
            foreign(missing(50), 2.0),
            &["delivered.p99 < 1h"],
            UNCLEAR,
            "may still come in time",
        ),
        (
            "the limit is shorter than the wait",
            foreign(missing(100), 20.0),
            &["delivered.within(5s) >= 100%"],
            FAIL,
            "it was 99 %",
        ),
        (
            "most of them have waited long enough",
            foreign(missing(10), 2.0),
            &["delivered.within(4s) >= 99%"],
            FAIL,
            "it was 90 %",
        ),
        ("without a threshold it is not delivered", foreign(missing(100), 2.0), &[], UNCLEAR, "not delivered"),
        ("a threshold grants it", foreign(missing(100), 2.0), &["not_delivered <= 2%"], PASS, "5 not delivered"),
        (
            "nobody watches the far end",
            sound().with(|run| run.is_watched = false),
            &["delivered.p99 < 1s"],
            UNCLEAR,
            "no sink watched",
        ),
        // The source's own delay must excuse a missed threshold only if it explains the miss.
        (
            "a miss that the source's delay explains",
            late(sound(), 0.3),
            &["accepted.p99 < 100ms"],
            INVALID,
            "The source itself was late",
        ),
        ("a limit far above the source's delay", late(sound(), 0.03), &["accepted.p99 < 2s"], PASS, "500 delivered"),
        (
            "a server that is slow whatever the source does",
            late(sound().each(2, |message| message.accepted = Some(message.due + 1.0)), 0.03),
            &["accepted.p99 < 100ms"],
            FAIL,
            "it was 1",
        ),
        (
            "the source did not send it all",
            unsent(late(sound(), 0.3)),
            &["accepted.within(60s) >= 100%"],
            INVALID,
            "The source",
        ),
        (
            "five messages have no rate",
            few(5),
            &["accepted.rate > 10/s"],
            UNCLEAR,
            "fewer than 20 messages have no rate",
        ),
        (
            "hardly any of many arrived",
            ordered(missing(1).each(50, |message| message.delivered = Some(message.due + 0.1))),
            &["delivered.rate > 10/s"],
            FAIL,
            "only 10 messages arrived, which is no rate",
        ),
        ("twenty messages have one", few(25), &["accepted.rate > 10/s"], PASS, "25 delivered"),
        ("row 16: late, and nothing was asked", late(sound(), 0.3), &[], PASS, "500 delivered"),
    ] {
        let record = run.record(thresholds);
        let verdict = &record.verdict;
        assert!(mailrun_measurement::account::fates_sum(&record.ledger) || !run.is_watched, "{situation}");
        if verdict.outcome != Some(outcome) || !verdict.why.contains(why) {
            wrong.push(format!(
                "{situation}: expected {outcome:?} {why:?}\n  found {:?} {:?}",
                verdict.outcome, verdict.reasons
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// If a threshold is missed while foreign programs keep the host busy, the host must count as an excuse only if the
/// recorded waits for a processor can have caused the delays.
#[test]
fn a_busy_host_excuses_what_it_explains() {
    const FAIL: Outcome = Outcome::Fail;
    const INVALID: Outcome = Outcome::Invalid;
    // Every twentieth message is accepted after `ms` milliseconds, and the others after 2 ms.
    let slow = |ms: f64| load(50.0, 10.0).each(20, move |message| message.accepted = Some(message.due + ms / 1e3));
    let all_slow = |ms: f64| {
        let slow = load(50.0, 10.0).each(1, move |message| message.accepted = Some(message.due + ms / 1e3));
        slow.each(100, |message| message.accepted = Some(message.due + 0.002))
    };
    let delivered_at = |per_s: f64| load(50.0, 10.0).delivered_at(per_s);
    let half = |wait: &dyn Fn(u32) -> WaitRow| host(Some(0.505), 0.99, wait);
    let elsewhere = |mut around: Surroundings| {
        around.foreign.as_mut().unwrap().server_elsewhere = true;
        around
    };
    // The source offered only 40/s of the requested 50/s, because the server accepted no more.
    let slow_server = || {
        load(40.0, 10.0).with(|run| {
            run.rate = 50.0;
            run.messages.iter_mut().for_each(|message| message.accepted = Some(message.due + 0.1));
        })
    };
    let p99 = &["accepted.p99 < 20ms"][..];
    let mut wrong = Vec::new();
    for (situation, run, around, thresholds, outcome, why) in [
        (
            "row 15: two busy loops, and waits as long as the latency",
            slow(131.0),
            half(&long(200.0)),
            p99,
            INVALID,
            "Other programs of this host used 50 % of its processors (sh 0.61, python3 0.40), and 99 % were busy, which may \
             have decided accepted.p99 < 20ms (it was 131",
        ),
        ("nobody watched the host", slow(131.0), Surroundings::default(), p99, FAIL, "accepted.p99 < 20ms"),
        ("many short waits", slow(40.0), half(&short(1.5)), p99, INVALID, "accepted.p99 < 20ms"),
        ("the waits are too short for the latency", slow(131.0), half(&short(1.5)), p99, FAIL, "it was 131"),
        ("a long wait is too short for it", slow(500.0), half(&long(200.0)), p99, FAIL, "it was 500"),
        ("nobody waited for a processor", slow(131.0), half(&short(0.0)), p99, FAIL, "it was 131"),
        ("foreign programs used 9 %", slow(131.0), host(Some(0.09), 0.99, long(200.0)), p99, FAIL, "it was 131"),
        ("they used 10 %", slow(131.0), host(Some(0.10), 0.99, long(200.0)), p99, INVALID, "used 10 %"),
        (
            "a ninth of the processors was idle",
            slow(131.0),
            host(Some(0.5), 0.89, long(200.0)),
            p99,
            FAIL,
            "it was 131",
        ),
        ("the server's processes are unknown", slow(131.0), host(None, 0.99, long(200.0)), p99, FAIL, "it was 131"),
        (
            "the median, and rare waits",
            all_slow(131.0),
            half(&long(200.0)),
            &["accepted.p50 < 20ms"],
            FAIL,
            "it was 131",
        ),
        ("the median, and waits always", all_slow(40.0), half(&short(7.0)), &["accepted.p50 < 20ms"], INVALID, "p50"),
        (
            "the median, and waits in less than half of the time",
            all_slow(40.0),
            half(&short(5.0)),
            &["accepted.p50 < 20ms"],
            FAIL,
            "it was 40",
        ),
        (
            "measured: four waits of a tick in a row, which delay one message each",
            load(200.0, 3.0).each(15, |message| message.accepted = Some(message.due + 0.0052)),
            half(&|_| WaitRow { waited_ms: 15.0 }),
            &["accepted.p99 < 4ms"],
            INVALID,
            "which may have decided accepted.p99 < 4ms",
        ),
        (
            "the same waits, and a server that is slower than all of them",
            load(200.0, 3.0).each(15, |message| message.accepted = Some(message.due + 0.0252)),
            half(&|_| WaitRow { waited_ms: 15.0 }),
            &["accepted.p99 < 4ms"],
            FAIL,
            "it was 25",
        ),
        ("the mean", all_slow(40.0), half(&short(5.0)), &["accepted.mean < 20ms"], INVALID, "mean"),
        (
            "the mean, and waits too short for it",
            all_slow(40.0),
            half(&short(0.5)),
            &["accepted.mean < 20ms"],
            FAIL,
            "mean",
        ),
        ("the maximum", slow(131.0), half(&long(200.0)), &["accepted.max < 20ms"], INVALID, "max"),
        ("the maximum of a slow server", slow(900.0), half(&long(200.0)), &["accepted.max < 20ms"], FAIL, "it was 900"),
        ("the slowest of all", slow(131.0), half(&long(200.0)), &["accepted.p100 < 20ms"], INVALID, "p100"),
        (
            "the slowest of all, of a slow server",
            slow(900.0),
            half(&long(200.0)),
            &["accepted.p100 < 20ms"],
            FAIL,
            "it was 900",
        ),
        (
            "a share of less than one message, of a slow server",
            slow(900.0),
            half(&long(200.0)),
            &["accepted.p99.99 < 20ms"],
            FAIL,
            "it was 900",
        ),
        (
            "a share in time",
            slow(131.0),
            half(&long(200.0)),
            &["accepted.within(20ms) >= 99%"],
            INVALID,
            "within(20ms)",
        ),
        (
            "a share in time, and no wait",
            slow(131.0),
            half(&short(0.0)),
            &["accepted.within(20ms) >= 99%"],
            FAIL,
            "95 %",
        ),
        (
            "the server is elsewhere: our own waits count",
            slow(131.0),
            elsewhere(half(&long(200.0))),
            p99,
            INVALID,
            "p99",
        ),
        (
            "a rate that half of the processors halved",
            delivered_at(18.0),
            half(&short(0.0)),
            &["delivered.rate > 30/s"],
            INVALID,
            "it was 18",
        ),
        (
            "a rate that was missed by more",
            delivered_at(18.0),
            half(&short(5.0)),
            &["delivered.rate > 40/s"],
            FAIL,
            "it was 18",
        ),
        (
            "a rate of a server elsewhere",
            delivered_at(18.0),
            elsewhere(half(&short(5.0))),
            &["delivered.rate > 30/s"],
            FAIL,
            "it was 18",
        ),
        (
            "the rate that was asked for",
            slow_server(),
            half(&short(0.0)),
            &[],
            INVALID,
            "and 99 % were busy. The server took 40/s of the 50/s asked for, and",
        ),
        (
            "the rate that was asked for, on an idle host",
            slow_server(),
            host(Some(0.05), 0.99, short(0.0)),
            &[],
            FAIL,
            "40/s of the 50/s",
        ),
        (
            "a rate above the one that was offered",
            delivered_at(18.0),
            host(Some(0.9), 0.99, short(0.0)),
            &["delivered.rate > 60/s"],
            FAIL,
            "it was 18",
        ),
        (
            "a limit that not even the fastest message met",
            all_slow(40.0),
            half(&short(5.0)),
            &["accepted.p99 < 1us"],
            FAIL,
            "accepted.p99 < 1us",
        ),
        (
            "the same as a share in time",
            all_slow(40.0),
            half(&short(5.0)),
            &["accepted.within(1us) >= 99%"],
            FAIL,
            "within(1us)",
        ),
        // A busy host never excuses these failures.
        (
            "a message that never came",
            slow(131.0).each(100, |message| message.delivered = None).with(|run| run.is_ordered = true),
            half(&long(200.0)),
            &["delivered.within(1h) >= 100%"],
            FAIL,
            "delivered.within(1h) >= 100%; it was 99 %",
        ),
        ("a count", slow(131.0), half(&long(200.0)), &["accepted.count > 10k"], FAIL, "accepted.count"),
        (
            "lost mail beside a latency that is explained",
            slow(131.0).each(100, |message| message.delivered = None),
            half(&long(200.0)),
            p99,
            FAIL,
            "Lost",
        ),
        (
            "two limits, and the host explains only one",
            slow(131.0),
            half(&long(200.0)),
            &["accepted.p99 < 20ms", "accepted.rate > 200/s"],
            FAIL,
            "Threshold missed",
        ),
        // If no threshold is missed, the run passes although the host is busy.
        (
            "a limit that held on a busy host",
            slow(131.0),
            half(&long(200.0)),
            &["accepted.p99 < 1s"],
            Outcome::Pass,
            "500 ",
        ),
        ("no limit on a busy host", slow(131.0), half(&long(200.0)), &[], Outcome::Pass, "500 delivered"),
    ] {
        let server = |run: &mut Run| run.has_unknown_queue = run.rate * run.length_s > run.messages.len() as f64 + 1.0;
        let verdict = run.beside(around).with(server).record(thresholds).verdict;
        if verdict.outcome != Some(outcome) || !verdict.why.contains(why) {
            wrong.push(format!(
                "{situation}: expected {outcome:?} {why:?}\n  found {:?} {:?}",
                verdict.outcome, verdict.reasons
            ));
        }
        // If foreign programs, such as `python3`, make the run invalid, the verdict must name them. Otherwise, it must
        // not name them.
        if verdict.why.contains("python3") != (outcome == INVALID) {
            wrong.push(format!("{situation}: {:?}", verdict.reasons));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let reasons = slow(131.0).beside(host(None, 0.99, long(200.0))).record(p99).verdict.reasons;
    let note = "it is unknown how much of that was the server itself (its process cannot be found)";
    assert!(reasons.iter().any(|reason| reason.contains(note)), "{reasons:?}");
}

#[test]
fn a_figure_among_messages_that_never_came_is_beyond_all_others() {
    let record = load(50.0, 10.0).each(50, |message| message.delivered = None).record(&[]);
    let row = record.stage(Stage::Delivered).unwrap();
    let times = row.latency_ms.unwrap();
    assert!((times.p90 - 20.0).abs() < 0.1 && times.p99.is_infinite() && times.max.is_infinite(), "{times:?}");
    assert_eq!((row.missing, row.beyond_ms), (10, Some(2_000.0)));
    // JSON has no infinite numbers. An infinite latency must be written as null, and null must be read as infinite.
    let json = record.to_json().unwrap();
    assert!(json.contains("\"p99\": null") && json.contains("\"beyond_ms\": 2000.0"), "{json}");
    assert_eq!(Record::from_json(json.as_bytes()).unwrap(), record);
    let all = LatencyMs { p99: f64::INFINITY, ..LatencyMs::default() };
    assert_eq!(serde_json::to_value(all).unwrap()["p99"], serde_json::Value::Null);
}
