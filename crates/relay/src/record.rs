//! The report about a relay's run (format `mailrun-run/1`), and the progress that the relay reports to a bench during
//! the run. Both use only numbers that the workers count anyway, so they do not slow down the workers.
use crate::context::RelayContext;
use mailrun_measurement::record::{Record, Role, StageRow, Workload};
use mailrun_measurement::seconds::{SecondTally, second_of};
use mailrun_measurement::{MIN_ARRIVALS, Series, Stage};
use mailrun_measurement::{judge, validity};
use mailrun_net::clock;
use mailrun_process::host_sampler::HostSampler;
use mailrun_process::live::LiveProgress;
use mailrun_process::outputs;
use mailrun_process::usage_sampler::UsageSampler;
use mailrun_text::words::counted;
use std::collections::BTreeMap;
use std::time::Duration;

const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);
/// Maximum number of recorded queue lengths. A [`Series`] has the same limit for its rows, so that in a long run, a
/// queue length and a row cover the same number of seconds.
const MAX_LENGTHS: usize = 36_000;

pub(super) struct RunRecorder {
    began: Duration,
    started_at: jiff::Timestamp,
    host_sampler: HostSampler,
    usage_sampler: UsageSampler,
    series: Series,
    /// Numbers of accepted messages, delivered recipients and errors, in this order, at the last
    /// progress report.
    counted: [u64; 3],
    last_tick: Duration,
    queued: QueueLengths,
    accepted: ActivePeriod,
    delivered: ActivePeriod,
    next_tick: Duration,
}

/// Number of messages in the spool at the end of each second or, in a long run, of several seconds.
struct QueueLengths {
    /// Number of seconds that each entry of `lengths` covers. The key of an entry is the first of its seconds.
    width_s: u64,
    lengths: BTreeMap<u64, u64>,
}

impl Default for QueueLengths {
    fn default() -> Self {
        Self { width_s: 1, lengths: BTreeMap::new() }
    }
}

impl QueueLengths {
    fn record(&mut self, second: u64, messages: u64) {
        self.lengths.insert(second / self.width_s * self.width_s, messages);
        while self.lengths.len() > MAX_LENGTHS {
            self.width_s *= 2;
            let joined = std::mem::take(&mut self.lengths).into_iter();
            // Two lengths may get the same key. The later length remains, because the map yields the seconds in order.
            self.lengths = joined.map(|(second, messages)| (second / self.width_s * self.width_s, messages)).collect();
        }
    }

    fn at(&self, second: u64) -> u64 {
        self.lengths.range(..=second).next_back().map_or(0, |(_, messages)| *messages)
    }
}

/// Times at which the recorder first and last found that a counter, such as the number of accepted messages, had grown.
/// The rate of a stage is computed from these times. The counter may have grown up to one sampling interval earlier.
#[derive(Default)]
struct ActivePeriod {
    value: u64,
    first: Option<Duration>,
    last: Duration,
}

impl ActivePeriod {
    fn update(&mut self, value: u64, now: Duration) {
        if value > self.value {
            self.value = value;
            self.first.get_or_insert(now);
            self.last = now;
        }
    }
}

impl RunRecorder {
    pub(super) fn start() -> Self {
        let now = clock::now();
        Self {
            began: now,
            started_at: jiff::Timestamp::now(),
            host_sampler: HostSampler::start(),
            usage_sampler: UsageSampler::of_own_process(now),
            series: Series::new(now),
            counted: [0; 3],
            last_tick: now,
            queued: QueueLengths::default(),
            accepted: ActivePeriod::default(),
            delivered: ActivePeriod::default(),
            next_tick: now,
        }
    }

    pub(super) fn sample(&mut self, context: &RelayContext) -> Option<LiveProgress> {
        let now = clock::now();
        let counters = &context.counters;
        let accepted = counters.accepted.value();
        let delivered = counters.delivered.value();
        self.accepted.update(accepted, now);
        self.delivered.update(delivered, now);
        if now < self.next_tick {
            return None;
        }
        self.next_tick = now + PROGRESS_INTERVAL;
        let errors =
            counters.deferred.value() + counters.failed.value() + counters.full.value() + counters.refused.value();
        self.add_counts([accepted, delivered, errors], now);
        self.usage_sampler.sample_own(now);
        let queued = context.spool.stats().messages;
        self.queued.record((now - self.series.zero()).as_secs(), queued);
        Some(LiveProgress {
            elapsed_s: (now - self.began).as_secs_f64(),
            accepted,
            delivered,
            recipients: counters.accepted_recipients.value(),
            bytes: counters.accepted_bytes.value(),
            errors,
            open: queued,
            ..LiveProgress::default()
        })
    }

    /// Counts everything since the last progress report as if it had happened halfway between that report and now. The
    /// workers only keep totals, so the exact seconds are unknown.
    fn add_counts(&mut self, counts: [u64; 3], now: Duration) {
        let middle = now - (now - self.last_tick) / 2;
        let mut second = SecondTally::new(second_of(middle, self.began));
        let before = std::mem::replace(&mut self.counted, counts);
        [second.accepted, second.delivered, second.errors] =
            std::array::from_fn(|index| counts[index].saturating_sub(before[index]));
        self.series.add(&second);
        self.series.reach(now);
        self.last_tick = now;
    }

    pub(super) fn record(&mut self, context: &RelayContext, workers: usize) -> Record {
        self.next_tick = Duration::ZERO;
        self.sample(context);
        let config = context.initial_config();
        let target = config.listeners().map(ToString::to_string);
        let workload = Workload {
            protocol: "smtp".to_owned(),
            target: target.collect::<Vec<_>>().join(", "),
            ..Workload::default()
        };
        let mut record = outputs::new_record(None, "relay", self.started_at, workload, Some(&config.spool.directory));
        let mut own = outputs::own_party(Role::Relay, "relay", workers, Vec::new());
        own.durability = context.durability().to_owned();
        own.busy_poll = outputs::busy_poll_row(config.busy_poll);
        record.parties = vec![own];
        outputs::set_zero(&mut record, self.series.zero());
        record.series = self.series.rows(self.last_tick);
        for row in &mut record.series {
            row.queued = self.queued.at(row.second);
        }
        // The last queue length may belong to a second without a row. Put it into the last row of the series.
        if let Some(row) = record.series.last_mut() {
            row.queued = self.queued.at(u64::MAX);
        }
        record.usage = self.usage_sampler.party("relay", record.origin_ns).into_iter().collect();
        record.stages = self.stages(context);
        record.duration_s = record.stages.iter().map(|row| row.duration_s).fold(0.0, f64::max);
        record.surroundings = Some(self.host_sampler.finish());
        record.verdict.reasons = vec![summary(context)];
        record.verdict.reasons.extend(record.parties.iter().filter_map(judge::defect_text));
        record.verdict.reasons.extend(validity::warnings(&record));
        record
    }

    fn stages(&self, context: &RelayContext) -> Vec<StageRow> {
        let counters = &context.counters;
        let row = |name, span: &ActivePeriod, start: Duration, failed, bytes| {
            let duration_s = span.last.saturating_sub(start).as_secs_f64();
            let is_rated = span.value >= MIN_ARRIVALS && duration_s > 0.0;
            StageRow {
                count: span.value,
                failed,
                bytes,
                rate_per_s: is_rated.then(|| span.value as f64 / duration_s),
                duration_s,
                ..StageRow::new(name, "relay")
            }
        };
        let refused_count = counters.full.value() + counters.refused.value();
        let undelivered = counters.failed.value() + counters.expired.value();
        let accepted_from = self.accepted.first.unwrap_or_default();
        let delivered_from = start_of_deliveries(&self.accepted, &self.delivered);
        vec![
            row(Stage::Accepted, &self.accepted, accepted_from, refused_count, counters.accepted_bytes.value()),
            row(Stage::Delivered, &self.delivered, delivered_from, undelivered, 0),
        ]
    }
}

/// Returns the start of the time over which the delivery rate is computed. This is the first acceptance of a message.
/// If mail of a former run was delivered before that, it is the first delivery.
fn start_of_deliveries(accepted: &ActivePeriod, delivered: &ActivePeriod) -> Duration {
    [accepted.first, delivered.first].into_iter().flatten().min().unwrap_or_default()
}

/// Sums up the run in one sentence. Accepted mail is counted in messages, and delivered mail in
/// recipients.
fn summary(context: &RelayContext) -> String {
    let counters = &context.counters;
    let converted = match counters.converted.value() {
        0 => String::new(),
        converted => format!("{converted} converted to 7 bits; "),
    };
    format!(
        "Total: {} for {}, {}, over {}; {} delivered, {} rejected permanently, {} expired; {converted}{} left.",
        counted(counters.accepted.value(), "message"),
        counted(counters.accepted_recipients.value(), "recipient"),
        counted(counters.accepted_bytes.value(), "byte"),
        counted(counters.sessions.value(), "connection"),
        counted(counters.delivered.value(), "recipient"),
        counters.failed.value(),
        counters.expired.value(),
        counted(context.spool.stats().messages, "message"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_lengths_of_a_long_run_take_bounded_memory() {
        let mut queued = QueueLengths::default();
        for second in 0..200_000 {
            queued.record(second, second);
            assert!(queued.lengths.len() <= MAX_LENGTHS, "{second}");
        }
        // After 200,000 seconds, one length is kept for every 8 seconds. It must be the length in the last of these 8
        // seconds.
        assert_eq!([0, 7, 8, 100_003, u64::MAX].map(|second| queued.at(second)), [7, 7, 15, 100_007, 199_999]);
    }

    #[test]
    fn mail_of_an_earlier_run_is_delivered_before_any_is_accepted() {
        let period = |first, last| ActivePeriod {
            value: 1,
            first: Some(Duration::from_secs(first)),
            last: Duration::from_secs(last),
        };
        for (accepted, start) in [(period(100, 100), 2), (period(1, 100), 1), (ActivePeriod::default(), 2)] {
            assert_eq!(start_of_deliveries(&accepted, &period(2, 101)), Duration::from_secs(start));
        }
    }
}
