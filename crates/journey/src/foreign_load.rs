//! Whether other programs of this host explain a missed limit.
//!
//! On a busy host every program waits for a processor, so a rate is too low and a latency too high
//! without any fault of the server. That excuses a miss only if foreign programs had a part in it,
//! and only as far as the kernel's own account of the waits reaches. The rest of a latency is the
//! server's, however busy the host was.
use crate::record::{ForeignLoad, HostProcess, Record, Surroundings, WaitRow};

/// Foreign programs count from this share of the processor time on.
const MIN_FOREIGN_SHARE: f64 = 0.10;
/// Nobody waits long for a processor while more than a tenth of the processor time is idle.
const MIN_BUSY_SHARE: f64 = 0.90;
/// How often a message wakes each program on its way. This is an assumption that nobody has
/// measured: once for each step of an SMTP dialogue (connection, EHLO, MAIL, RCPT, DATA, message,
/// QUIT), and once to begin. A session that is reused, pipelining and MADES need fewer steps, so for
/// these the assumption excuses more than it should.
const WAKE_UPS: f64 = 8.0;
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
}

impl<'a> BusyHost<'a> {
    /// Returns `None` if the host was not busy with foreign programs, or if that is unknown.
    pub fn of(record: &'a Record) -> Option<Self> {
        let around = record.surroundings.as_ref()?;
        let foreign = around.foreign.as_ref()?;
        let share = foreign.share.filter(|share| (MIN_FOREIGN_SHARE..=1.0).contains(share))?;
        let busy_share = busy_share(around)?;
        Some(Self { around, foreign, share, busy_share, cores: f64::from(record.host.cores.max(1)) })
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
        let waits: Vec<Wait> = self.waits(latency_ms).collect();
        let delayed = |ms: f64| waits.iter().map(|wait| wait.share_above(ms)).sum::<f64>() / waits.len().max(1) as f64;
        // `delayed` falls as the delay grows, so the largest delay of so many messages is found by
        // halving.
        let mut most = (0.0, latency_ms.max(0.0));
        for _ in 0..50 {
            let middle = (most.0 + most.1) / 2.0;
            most = if delayed(middle) >= share { (middle, most.1) } else { (most.0, middle) };
        }
        most.0
    }

    /// Returns the mean time by which waits for a processor may have delayed a message.
    pub fn mean_delay_ms(&self, latency_ms: f64) -> f64 {
        let mean = self.waits(latency_ms).map(|wait| wait.mean_ms.min(wait.most_ms)).sum::<f64>();
        mean / self.foreign.waits.len().max(1) as f64
    }

    fn waits(&self, latency_ms: f64) -> impl Iterator<Item = Wait> {
        // A message that took several windows may have waited in each of them.
        let windows = (latency_ms / (self.foreign.window_s * 1e3).max(1.0)).ceil().max(1.0) as usize;
        let rows = &self.foreign.waits;
        (0..rows.len()).map(move |first| Wait::of(&rows[first..rows.len().min(first.saturating_add(windows))]))
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

/// Waits of messages that began in one window.
#[derive(Clone, Copy, Debug)]
struct Wait {
    mean_ms: f64,
    /// No message waits longer than all programs on its way together.
    most_ms: f64,
}

impl Wait {
    fn of(rows: &[WaitRow]) -> Self {
        let longest_ms = rows.iter().map(|row| row.each_ms).fold(0.0, f64::max);
        Self { mean_ms: longest_ms * WAKE_UPS, most_ms: rows.iter().map(|row| row.waited_ms.max(0.0)).sum() }
    }

    /// Returns the share of messages that waited longer. Waits of a queue are distributed
    /// exponentially.
    fn share_above(self, ms: f64) -> f64 {
        if ms >= self.most_ms { 0.0 } else { (-ms / self.mean_ms.max(f64::EPSILON)).exp() }
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
