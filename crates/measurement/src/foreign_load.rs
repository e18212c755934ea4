//! Whether other programs of this host explain a missed limit.
//!
//! On a busy host every program waits for a processor, so a rate is too low and a latency too high
//! without any fault of the server. That excuses a miss only if foreign programs had a part in it,
//! and only as far as the kernel's own account of the waits reaches. The rest of a latency is the
//! server's, however busy the host was.
use crate::record::{ForeignLoad, HostProcess, Record, Surroundings, WaitRow};
use crate::stage::Stage;

/// Foreign programs count from this share of the processor time on.
const MIN_FOREIGN_SHARE: f64 = 0.10;
/// Nobody waits long for a processor while more than a tenth of the processor time is idle.
const MIN_BUSY_SHARE: f64 = 0.90;
/// Steps in which a mean is added up.
const MEAN_STEPS: f64 = 1000.0;
/// A program that used less of a processor is not named.
const MIN_NAMED_CORES: f64 = 0.05;
/// Largest number of programs that a sentence names.
const MAX_NAMED: usize = 4;

/// A host that was busy with foreign programs while load was offered.
#[derive(Clone, Copy, Debug)]
pub struct BusyHost<'a> {
    around: &'a Surroundings,
    foreign: &'a ForeignLoad,
    share: f64,
    busy_share: f64,
    cores: f64,
    /// Messages per millisecond of the load.
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

    /// Returns the rate that there might have been without the foreign programs. If the server is
    /// elsewhere, they used none of its processors.
    pub fn rate_without(&self, per_s: f64) -> f64 {
        let share = if self.foreign.server_elsewhere { 0.0 } else { self.share };
        per_s / (1.0 - share).max(f64::EPSILON)
    }

    /// Returns the time by which waits for a processor may have delayed the slowest messages, if
    /// their share of all is `share`. These messages took `latency_ms`.
    pub fn delay_ms(&self, share: f64, latency_ms: f64) -> f64 {
        // The share of messages falls as their delay grows, so the delay is found by halving.
        let mut most = (0.0, latency_ms.max(0.0));
        for _ in 0..50 {
            let middle = (most.0 + most.1) / 2.0;
            most = if self.share_delayed(middle, latency_ms) >= share { (middle, most.1) } else { (most.0, middle) };
        }
        most.0
    }

    /// Returns the mean time by which waits for a processor may have delayed a message.
    pub fn mean_delay_ms(&self, latency_ms: f64) -> f64 {
        let step_ms = latency_ms.max(0.0) / MEAN_STEPS;
        let shares =
            (0..MEAN_STEPS as u32).map(|step| self.share_delayed((f64::from(step) + 0.5) * step_ms, latency_ms));
        shares.sum::<f64>() * step_ms
    }

    /// Returns the greatest share of messages that waits may have delayed by more than `delay_ms`.
    /// Messages that take `latency_ms` are under way in as many windows.
    fn share_delayed(&self, delay_ms: f64, latency_ms: f64) -> f64 {
        // A message that took several windows may have waited in each of them.
        let windows = (latency_ms / (self.foreign.window_s * 1e3).max(1.0)).ceil().max(1.0) as usize;
        let rows = &self.foreign.waits;
        let shares = (0..rows.len()).map(|first| {
            let rows = &rows[first..rows.len().min(first.saturating_add(windows))];
            self.share_above(delay_ms, rows)
        });
        shares.sum::<f64>() / rows.len().max(1) as f64
    }

    /// Returns the greatest share of the messages under way in these windows that waits of the
    /// processors can have delayed by more than `delay_ms`. Of the waits only the sum is known. They
    /// delay the most messages if each of them has just this length. Each delays one message, or all
    /// that come meanwhile if they come more often.
    fn share_above(&self, delay_ms: f64, rows: &[WaitRow]) -> f64 {
        let waited_ms: f64 = rows.iter().map(|row| row.waited_ms.max(0.0)).sum();
        if delay_ms >= waited_ms {
            return 0.0;
        }
        let waited_share = waited_ms / (rows.len() as f64 * self.foreign.window_s * 1e3).max(1.0);
        let messages_meanwhile = (self.messages_per_ms * delay_ms).min(1.0);
        (waited_share / messages_meanwhile.max(f64::EPSILON)).min(1.0)
    }

    /// Says who was busy, for example `Other programs of this host used 51 % of its processors (sh
    /// 0.61, python3 0.40), and 99 % were busy`.
    pub fn text(&self) -> String {
        format!(
            "Other programs of this host used {:.0} % of its processors{}, and {:.0} % were busy",
            self.share * 100.0,
            self.names(),
            self.busy_share * 100.0
        )
    }

    /// Names the foreign programs with the processors that they used.
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

/// Returns why nobody can say whether foreign programs explain a miss, although the host was busy.
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
