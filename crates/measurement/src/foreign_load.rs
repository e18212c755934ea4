//! Decides whether other programs on this host explain a missed limit.
//!
//! On a busy host, every program waits for a processor, so rates are too low and latencies too high through no fault of
//! the server. Such waits excuse a missed limit only if programs outside the run used much of the processor time, and
//! only up to the waiting time that the kernel has measured. The rest of a latency counts against the server, however
//! busy the host was.
use crate::record::{ForeignLoad, HostProcess, Record, Surroundings, WaitRow};
use crate::stage::Stage;

/// Programs outside the run excuse a missed limit only if they used at least this share of the processor time.
const MIN_FOREIGN_SHARE: f64 = 0.10;
/// Minimum share of the processor time that all programs together must use. While more than a tenth of the processor
/// time is idle, nobody waits long for a processor.
const MIN_BUSY_SHARE: f64 = 0.90;
/// Number of steps of the numerical integration in [`BusyHost::mean_delay_ms`].
const MEAN_STEPS: f64 = 1000.0;
/// A program is named only if it used at least this many processors on average.
const MIN_NAMED_CORES: f64 = 0.05;
const MAX_NAMED: usize = 4;

/// A host that foreign programs kept busy while load was offered.
#[derive(Clone, Copy, Debug)]
pub struct BusyHost<'a> {
    around: &'a Surroundings,
    foreign: &'a ForeignLoad,
    share: f64,
    busy_share: f64,
    cores: f64,
    messages_per_ms: f64,
}

impl<'a> BusyHost<'a> {
    /// Returns `None` if the host was not busy with foreign programs, or if that is unknown.
    pub fn of(record: &'a Record) -> Option<Self> {
        let around = record.surroundings.as_ref()?;
        let foreign = around.foreign.as_ref()?;
        let share = foreign.share.filter(|share| (MIN_FOREIGN_SHARE..=1.0).contains(share))?;
        let busy_share = busy_share(around)?;
        let created = record.stage(Stage::Created).map_or(0.0, |row| row.count as f64);
        let offered_ms = record.offered_s.unwrap_or(record.duration_s) * 1e3;
        let cores = f64::from(record.host.cores.max(1));
        Some(Self { around, foreign, share, busy_share, cores, messages_per_ms: created / offered_ms.max(1.0) })
    }

    /// Estimates what the rate `per_s` would have been without the foreign programs. Returns `per_s` unchanged if the
    /// server is on another host, because programs on this host do not use the server's processors.
    pub fn rate_without(&self, per_s: f64) -> f64 {
        let share = if self.foreign.server_elsewhere { 0.0 } else { self.share };
        per_s / (1.0 - share).max(f64::EPSILON)
    }

    /// Returns an upper bound, in milliseconds, of how long the slowest messages were delayed because processes waited
    /// for a processor. `share` is the share of these messages among all messages, and `latency_ms` is their latency.
    /// If `share` is 0, there is no such message, so the delay is 0.
    pub fn delay_ms(&self, share: f64, latency_ms: f64) -> f64 {
        if share <= 0.0 {
            return 0.0;
        }
        // The longer a delay is, the fewer messages can have suffered it. So search by bisection for the longest delay
        // that at least the fraction `share` of all messages can have suffered.
        let mut most = (0.0, latency_ms.max(0.0));
        // Halving an interval 50 times narrows even an hour to less than a nanosecond.
        for _ in 0..50 {
            let middle = (most.0 + most.1) / 2.0;
            most = if self.share_delayed(middle, latency_ms) >= share { (middle, most.1) } else { (most.0, middle) };
        }
        most.0
    }

    /// Returns an upper bound of how long messages were delayed on average, because processes waited for a processor.
    pub fn mean_delay_ms(&self, latency_ms: f64) -> f64 {
        let step_ms = latency_ms.max(0.0) / MEAN_STEPS;
        let shares =
            (0..MEAN_STEPS as u32).map(|step| self.share_delayed((f64::from(step) + 0.5) * step_ms, latency_ms));
        shares.sum::<f64>() * step_ms
    }

    /// Returns an upper bound of the share of messages that were delayed by more than `delay_ms`, because processes
    /// waited for a processor. A message with a latency of `latency_ms` may have been delayed by the waits of all
    /// measurement intervals that passed while it was under way.
    fn share_delayed(&self, delay_ms: f64, latency_ms: f64) -> f64 {
        let windows = (latency_ms / (self.foreign.window_s * 1e3).max(1.0)).ceil().max(1.0) as usize;
        let rows = &self.foreign.waits;
        let shares = (0..rows.len()).map(|first| {
            let rows = &rows[first..rows.len().min(first.saturating_add(windows))];
            self.share_above(delay_ms, rows)
        });
        shares.sum::<f64>() / rows.len().max(1) as f64
    }

    /// Computes the bound of [`Self::share_delayed`] from successive measurement intervals. For each interval, only the
    /// total length of all waits for a processor is known. The bound therefore assumes the worst case, in which all
    /// waits are just longer than `delay_ms`, because this delays the most messages. Each wait delays all messages that
    /// become due during the wait, and at least one message.
    fn share_above(&self, delay_ms: f64, rows: &[WaitRow]) -> f64 {
        let waited_ms: f64 = rows.iter().map(|row| row.waited_ms.max(0.0)).sum();
        if delay_ms >= waited_ms {
            return 0.0;
        }
        let waited_share = waited_ms / (rows.len() as f64 * self.foreign.window_s * 1e3).max(1.0);
        let messages_meanwhile = (self.messages_per_ms * delay_ms).min(1.0);
        (waited_share / messages_meanwhile.max(f64::EPSILON)).min(1.0)
    }

    /// Describes who was busy, for example
    /// `Other programs of this host used 51 % of its processors (sh 0.61, python3 0.40), and 99 % were busy`.
    pub fn text(&self) -> String {
        format!(
            "Other programs of this host used {:.0} % of its processors{}, and {:.0} % were busy",
            self.share * 100.0,
            self.names(),
            self.busy_share * 100.0
        )
    }

    /// Lists the busiest foreign programs, each with the number of processors that it used on average.
    fn names(&self) -> String {
        let length_s = self.around.load_processor_s.unwrap_or(f64::INFINITY) / self.cores;
        let used = |process: &HostProcess| process.processor_s / length_s;
        let foreign =
            self.around.processes.iter().filter(|process| process.foreign && used(process) >= MIN_NAMED_CORES);
        let names = foreign.take(MAX_NAMED).map(|process| format!("{} {:.2}", process.name, used(process)));
        let names: Vec<String> = names.collect();
        if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) }
    }
}

fn busy_share(around: &Surroundings) -> Option<f64> {
    around.used_share.filter(|share| *share >= MIN_BUSY_SHARE)
}

/// Explains that a busy host does not excuse a missed limit, because it is unknown how much processor time the foreign
/// programs used. Returns `None` if the host was not busy, or if this time is known.
pub(crate) fn unknown(record: &Record) -> Option<String> {
    let around = record.surroundings.as_ref()?;
    let reason = around.foreign.as_ref().map(|foreign| foreign.unknown.as_str()).filter(|reason| !reason.is_empty())?;
    let busy_share = busy_share(around)?;
    Some(format!(
        "The processors were {:.0} % busy, and it is unknown how much of that was the server itself ({reason}), so what was \
         missed counts against the server.",
        busy_share * 100.0
    ))
}
