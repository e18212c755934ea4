//! Writes the intermediate and the final report, byte for byte like go-mades-bench.
use super::latency::LatencyHistogram;
use crate::go::duration::{duration, rounded_to_milliseconds, timestamp};
use jiff::Zoned;
use std::fmt::{self, Write};
use std::time::Duration;

const SEPARATOR: &str = "==============================================================================";

#[derive(Debug)]
pub(super) struct GoBenchReport<'a> {
    pub(super) started: Zoned,
    pub(super) ended: Option<Zoned>,
    pub(super) duration: Duration,
    pub(super) message_bytes: u64,
    pub(super) stages: Vec<StageLine<'a>>,
}

#[derive(Debug)]
pub(super) struct StageLine<'a> {
    pub(super) name: &'static str,
    pub(super) latencies: &'a LatencyHistogram,
    pub(super) limit: u64,
    pub(super) event_bytes: u64,
    /// Time from the start of the run until all messages had reached this stage. If some messages have not reached it,
    /// the time until the end of the run, or until now if the run continues.
    pub(super) duration: Duration,
}

impl fmt::Display for GoBenchReport<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "{SEPARATOR}\nStarted at       : {}", timestamp(&self.started))?;
        if let Some(ended) = &self.ended {
            writeln!(out, "Ended at         : {}", timestamp(ended))?;
        }
        writeln!(out, "Duration         : {}", duration(self.duration))?;
        writeln!(out, "Msg size         : {} bytes\n\n=== Statistics", self.message_bytes)?;
        self.stages.iter().try_for_each(|stage| writeln!(out, "{stage}"))?;
        writeln!(out, "{SEPARATOR}")
    }
}

impl fmt::Display for StageLine<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.latencies.count();
        let per_s = count as f64 / self.duration.as_secs_f64();
        column(out, 18, self.name)?;
        column(out, 19, &format!(": {} msgs/s", GoFloat(per_s)))?;
        column(out, 12, &format!("{} mb/s", GoFloat(per_s * self.event_bytes as f64 / 1_000_000.0)))?;
        column(out, 20, &format!("{count}/{} msgs", self.limit))?;
        column(out, 20, &format!("duration: {}", rounded_to_milliseconds(self.duration)))?;
        column(out, 25, &format!("flight time: {:.3}s (avg)", self.latencies.mean().as_secs_f64()))?;
        write!(out, "{:.3}s (median)", self.latencies.median().as_secs_f64())
    }
}

/// Pads a text with blanks to the width of its column. A text that is too long is followed by one blank.
fn column(out: &mut fmt::Formatter<'_>, width: usize, text: &str) -> fmt::Result {
    out.write_str(text)?;
    let blanks = width.saturating_sub(text.len()).max(1);
    (0..blanks).try_for_each(|_| out.write_char(' '))
}

/// Number that is printed as Go's `%.3f` prints it, for example infinity as `+Inf`.
struct GoFloat(f64);

impl fmt::Display for GoFloat {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_infinite() { out.write_str("+Inf") } else { write!(out, "{:.3}", self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Final report that go-mades-bench (commit b243801) printed for the same numbers as in the first test below.
    const ORIGINALS: &str = "\
==============================================================================
Started at       : 2022-11-22T11:16:58+01:00
Ended at         : 2022-11-22T11:42:25+01:00
Duration         : 25m27.035791317s
Msg size         : 3000 bytes

=== Statistics
Sent to outbox    : 10.817 msgs/s    0.032 mb/s  10000/10000 msgs    duration: 15m24.466s flight time: 0.012s (avg) 0.012s (median)
Sent to broker    : 10.815 msgs/s    0.032 mb/s  10000/10000 msgs    duration: 15m24.681s flight time: 57.590s (avg) 57.590s (median)
Received in inbox : 7.321 msgs/s     0.022 mb/s  10000/10000 msgs    duration: 22m45.945s flight time: 339.900s (avg) 339.900s (median)
Delivery event    : 6.549 msgs/s     0.001 mb/s  10000/10000 msgs    duration: 25m26.948s flight time: 650.113s (avg) 650.113s (median)
Received event    : 6.549 msgs/s     0.001 mb/s  10000/10000 msgs    duration: 25m27.036s flight time: 650.170s (avg) 650.170s (median)
==============================================================================
";

    /// Report that go-mades-bench printed for extreme numbers, such as no elapsed time and a limit of 2⁶⁴ − 1 messages.
    const STRANGE: &str = "\
==============================================================================
Started at       : 2022-11-22T10:16:58Z
Duration         : 999.999µs
Msg size         : 0 bytes

=== Statistics
Sent to outbox    : NaN msgs/s       NaN mb/s    0/0 msgs            duration: 0s        flight time: 0.000s (avg) 0.000s (median)
Received in inbox : +Inf msgs/s      +Inf mb/s   3/18446744073709551615 msgs duration: 0s        flight time: 0.002s (avg) 0.002s (median)
Received reply    : 0.000 msgs/s     0.000 mb/s  3/7 msgs            duration: 3h0m0.001s flight time: 0.002s (avg) 0.002s (median)
==============================================================================
";

    fn latencies(count: u64, time_ms: u64) -> LatencyHistogram {
        let mut latencies = LatencyHistogram::default();
        (0..count).for_each(|_| latencies.record(Duration::from_millis(time_ms)));
        latencies
    }

    #[test]
    fn a_final_report_is_the_originals() {
        let rows = [
            ("Sent to outbox", 3000, 924_466, 12),
            ("Sent to broker", 3000, 924_681, 57_590),
            ("Received in inbox", 3000, 1_365_945, 339_900),
            ("Delivery event", 100, 1_526_948, 650_113),
            ("Received event", 100, 1_527_036, 650_170),
        ];
        let latencies = rows.map(|(.., time_ms)| latencies(10_000, time_ms));
        let stage = |((name, event_bytes, duration_ms, _), latencies)| StageLine {
            name,
            latencies,
            limit: 10_000,
            event_bytes,
            duration: Duration::from_millis(duration_ms),
        };
        let report = GoBenchReport {
            started: "2022-11-22T11:16:58.123+01:00[+01:00]".parse().unwrap(),
            ended: Some("2022-11-22T11:42:25.159+01:00[+01:00]".parse().unwrap()),
            duration: Duration::from_nanos(1_527_035_791_317),
            message_bytes: 3000,
            stages: rows.into_iter().zip(&latencies).map(stage).collect(),
        };
        assert_eq!(report.to_string(), ORIGINALS);
    }

    #[test]
    fn strange_numbers_are_written_as_go_writes_them() {
        let none = LatencyHistogram::default();
        let three = latencies(3, 2);
        let stage = |name, flights, limit, event_bytes, duration| StageLine {
            name,
            latencies: flights,
            limit,
            event_bytes,
            duration,
        };
        let report = GoBenchReport {
            started: "2022-11-22T10:16:58+00:00[+00:00]".parse().unwrap(),
            ended: None,
            duration: Duration::from_nanos(999_999),
            message_bytes: 0,
            stages: vec![
                stage("Sent to outbox", &none, 0, 0, Duration::ZERO),
                stage("Received in inbox", &three, u64::MAX, 1_000_000, Duration::ZERO),
                stage("Received reply", &three, 7, 100, Duration::from_micros(10_800_000_500)),
            ],
        };
        assert_eq!(report.to_string(), STRANGE);
    }
}
