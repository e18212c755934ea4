//! A sample run for tests and pictures: a minute through a relay that greylists for four seconds. Every figure is
//! computed from one table of rates, so the figures are consistent.
use crate::snapshot::{MessageCounts, PartyLoad, RunSnapshot, StageTimes, ThresholdState, TimesMs};

/// Interval between snapshots in seconds. The monitor of a measured run reports at the same interval.
const INTERVAL_S: f64 = 0.25;
/// Number of snapshots. They cover 40 s of a run of about 60 s, so the pictures show an unfinished run.
const SNAPSHOTS: u64 = 160;
const GOAL_MESSAGES: u64 = 60_000;
/// Part of the run, in seconds since its start, in which greylisting makes the server reject four of five messages.
const GREYLISTED_S: std::ops::Range<f64> = 20.0..24.0;

pub fn snapshots() -> Vec<RunSnapshot> {
    let mut messages = MessageCounts { delivered: Some(0), ..MessageCounts::default() };
    let mut queue = 0_u64;
    let mut shown = Vec::new();
    let mut accepted_run = TimesMs::default();
    let mut delivered_run = TimesMs::default();
    for number in 1..=SNAPSHOTS {
        let elapsed_s = number as f64 * INTERVAL_S;
        let offered = 225 + noise(number) % 50;
        let is_greylisted = GREYLISTED_S.contains(&elapsed_s);
        let rejected = if is_greylisted { offered * 4 / 5 } else { 0 };
        let accepted = offered - rejected;
        // Deliver at a separate rate, because a relay empties its queue at its own pace.
        let delivered = (queue + accepted).min(180 + noise(number + 1) % 140);
        messages.due += offered;
        messages.created += offered;
        messages.sent += offered;
        messages.accepted += accepted;
        messages.rejected += rejected;
        messages.delivered = messages.delivered.map(|before| before + delivered);
        queue = queue + accepted - delivered;
        let mut now = snapshot(number, elapsed_s, messages, queue);
        for (stage, run) in now.stages.iter_mut().zip([&mut accepted_run, &mut delivered_run]) {
            *run = whole_run(*run, stage.now, number);
            stage.run = *run;
        }
        now.thresholds = thresholds(&now);
        shown.push(now);
    }
    shown
}

fn snapshot(number: u64, elapsed_s: f64, messages: MessageCounts, queue: u64) -> RunSnapshot {
    let jitter = (noise(number + 2) % 100) as f64 / 200.0;
    let queue_ms = queue as f64 / 1.04;
    let errors = messages.rejected;
    RunSnapshot {
        title: "bench · through the relay".to_owned(),
        subject: "127.0.0.1:2525 · 1,000/s · 60,000 messages".to_owned(),
        thresholds: Vec::new(),
        wait: None,
        elapsed_s,
        goal_messages: GOAL_MESSAGES,
        goal_s: 0.0,
        messages,
        queue,
        stages: vec![
            StageTimes { name: "accepted".to_owned(), now: times(0.9 + jitter), run: TimesMs::default() },
            StageTimes { name: "delivered".to_owned(), now: times(2.1 + jitter + queue_ms), run: TimesMs::default() },
        ],
        errors,
        last_error: match errors {
            0 => String::new(),
            _ => "450 at rcpt: 4.2.0 Greylisted, try again in 300 seconds".to_owned(),
        },
        parties: vec![
            party("source", 0.31 + jitter / 10.0, 14 << 20),
            party("relay", 0.92 + jitter / 5.0, (52 << 20) + queue * 2_048),
            party("sink", 0.17 + jitter / 20.0, 11 << 20),
        ],
    }
}

fn thresholds(now: &RunSnapshot) -> Vec<ThresholdState> {
    let p99 = now.stages[1].run.p99;
    let rejected = now.messages.rejected as f64 * 100.0 / now.messages.created as f64;
    let state = |expression: &str, value: String, passed| ThresholdState {
        expression: expression.to_owned(),
        value,
        passed: Some(passed),
    };
    vec![
        state("delivered.p99 < 50ms", format!("{p99:.1} ms"), p99 < 50.0),
        state("rejected < 10%", format!("{rejected:.2} %"), rejected < 10.0),
    ]
}

fn times(p50: f64) -> TimesMs {
    TimesMs { p50, p95: p50 * 2.0, p99: p50 * 3.1, p999: p50 * 5.6, max: p50 * 8.4 }
}

/// Updates the percentiles `before` of the run with the percentiles `now` of interval `number`. To keep the sample
/// simple, a percentile of the run is the mean over all intervals. Only the maximum is exact.
fn whole_run(before: TimesMs, now: TimesMs, number: u64) -> TimesMs {
    let mean = |before: f64, now: f64| before + (now - before) / number as f64;
    TimesMs {
        p50: mean(before.p50, now.p50),
        p95: mean(before.p95, now.p95),
        p99: mean(before.p99, now.p99),
        p999: mean(before.p999, now.p999),
        max: before.max.max(now.max),
    }
}

fn party(name: &str, cores: f64, memory_bytes: u64) -> PartyLoad {
    PartyLoad { name: name.to_owned(), cores, memory_bytes }
}

/// Returns a pseudo-random number (SplitMix64). The same seed always gives the same number, so the pictures never
/// change.
fn noise(seed: u64) -> u64 {
    let mixed = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ (mixed >> 27)) >> 16
}
