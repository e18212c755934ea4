//! Keeps samples of a process's resident memory over time, and finds their peak or draws them as a curve.
use mailrun_text::spark::{Fold, sparkline};
use rustix::time::{ClockId, clock_gettime};
use std::fmt::Write;

/// Maximum number of samples in a curve of memory use. If a curve has more samples, every second sample is dropped. A
/// run of a day, with four samples per second, would otherwise have five times as many samples as this limit.
const MAX_SAMPLES: usize = 65_536;
const BARS: usize = 60;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemoryCurve {
    samples: Vec<MemorySample>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MemorySample {
    /// Time of the sample in nanoseconds of CLOCK_MONOTONIC, the clock of `origin_ns` in run records.
    at_ns: u64,
    bytes: u64,
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or_default() * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or_default()
}

impl MemoryCurve {
    pub(crate) fn add(&mut self, bytes: Option<u64>) {
        let sample = bytes.map(|bytes| MemorySample { at_ns: now_ns(), bytes });
        self.samples.extend(sample);
        if self.samples.len() > MAX_SAMPLES {
            let mut keeps = false;
            self.samples.retain(|_| {
                keeps = !keeps;
                keeps
            });
        }
    }

    /// Appends the samples of a process that ran later, for example the same server after a restart.
    pub(crate) fn then(mut self, later: Self) -> Self {
        self.samples.extend(later.samples);
        self
    }

    /// Returns the highest sample from `from_ns` to `to_ns` inclusive. Returns `None` if there is
    /// no sample in that time.
    pub(crate) fn peak(&self, from_ns: u64, to_ns: u64) -> Option<u64> {
        let within = self.samples.iter().filter(|sample| (from_ns..=to_ns).contains(&sample.at_ns));
        within.map(|sample| sample.bytes).max()
    }

    /// Draws the curve with at most 60 bars. Each bar shows the highest of its samples, so that no
    /// peak is hidden.
    pub(crate) fn bars(&self) -> String {
        let values: Vec<f64> = self.samples.iter().map(|sample| sample.bytes as f64).collect();
        sparkline(&values, BARS, Fold::Peak)
    }

    /// Writes one line per sample: the seconds since the first sample, a tab, and the bytes.
    pub(crate) fn lines(&self) -> String {
        let began_ns = self.samples.first().map_or(0, |sample| sample.at_ns);
        let mut text = "seconds\trss_bytes\n".to_owned();
        for MemorySample { at_ns, bytes } in &self.samples {
            let _ = writeln!(text, "{:.3}\t{bytes}", (at_ns - began_ns) as f64 / 1e9);
        }
        text
    }
}

#[cfg(test)]
pub(crate) fn curve(samples: &[(u64, u64)]) -> MemoryCurve {
    MemoryCurve {
        samples: samples.iter().map(|(at_ns, bytes)| MemorySample { at_ns: *at_ns, bytes: *bytes }).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_is_found_in_its_time() {
        let curve = curve(&[(0, 5), (10, 50), (20, 7), (30, 9)]);
        assert_eq!((curve.peak(0, 9), curve.peak(0, 10), curve.peak(11, u64::MAX)), (Some(5), Some(50), Some(9)));
        assert_eq!(curve.peak(40, 50), None);
        assert_eq!(curve.bars().chars().count(), 4);
        assert!(curve.lines().ends_with("0.000\t9\n"), "{}", curve.lines());
    }

    #[test]
    fn however_long_it_lasts_it_stays_bounded_and_keeps_its_time() {
        let mut long = MemoryCurve::default();
        long.add(None);
        (0..MAX_SAMPLES as u64 + 10).for_each(|bytes| long.add(Some(bytes)));
        assert!((MAX_SAMPLES / 2..=MAX_SAMPLES).contains(&long.samples.len()), "{}", long.samples.len());
        assert!(long.samples.is_sorted_by_key(|sample| sample.at_ns));
        let joined = curve(&[(0, 1)]).then(long.clone());
        assert_eq!(joined.peak(0, u64::MAX), long.peak(0, u64::MAX));
    }
}
