//! Measures the difference to another host's clock by exchanging messages with a sink there (`GET /clock`).
//!
//! The sink reads its clock at some time between question and answer. If this time is taken to be the middle of the
//! exchange, the error is at most half of the round trip, even if question and answer take different times. Of several
//! exchanges, the one with the shortest round trip is used, because its error is the smallest (NTP's clock filter, RFC
//! 5905 section 10).
//!
//! If chrony has synchronised both hosts, it estimates the error of each clock, and the clocks differ by at most the
//! sum of these errors. This bound is used if it is smaller than the bound from the exchange.
use crate::chrony;
use crate::http_client::{HttpAnswer, HttpClient, StatusCode};
use crate::outputs::clock_row;
use anyhow::Result;
use mailrun_measurement::record::SinkClockRow;
use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime};

/// Number of times that one measurement asks the sink for its clock. With more exchanges, it is more likely that one of
/// them has a short round trip, and so a small error.
const EXCHANGES: u32 = 16;

/// JSON in which a sink answers `GET /clock` with its host's boot ID and clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockAnswer {
    /// Boot ID of the host: 8 hexadecimal digits.
    pub boot: String,
    pub unix_ns: u64,
}

impl ClockAnswer {
    #[must_use]
    pub fn now() -> Self {
        Self { boot: clock_row().boot, unix_ns: nanoseconds(unix_time()) }
    }
}

/// JSON in which a sink answers `GET /clock/chrony` with the possible error of its host's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChronyAnswer {
    /// Largest possible error of the host's clock in nanoseconds, as chrony estimates it. `None` if
    /// there is no estimate.
    pub error_ns: Option<u64>,
}

impl ChronyAnswer {
    #[must_use]
    pub fn now() -> Self {
        Self { error_ns: chrony::clock_error().map(nanoseconds) }
    }
}

/// Difference between this host's clock and the clock of a sink's host, from one measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClockMeasurement {
    exchange: SinkClockRow,
    /// Sum of chrony's error bounds for the two hosts' clocks. `None` if chrony gives no bound.
    chrony_ns: Option<u64>,
}

/// Time at which the question was sent, on two clocks. The round trip is measured on `steady`,
/// because the Unix clock may be set in between.
#[derive(Clone, Copy, Debug)]
struct AskedAt {
    unix: Duration,
    steady: Duration,
}

impl AskedAt {
    fn now() -> Self {
        Self { unix: unix_time(), steady: mailrun_net::clock::now() }
    }
}

fn unix_time() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Measures how far the clock of the sink's host differs from this host's clock. Returns `None` if the sink is too old
/// for `/clock`.
///
/// # Errors
/// Fails if the sink cannot be reached.
pub fn measure(sink: &HttpClient) -> Result<Option<ClockMeasurement>> {
    let mut best: Option<SinkClockRow> = None;
    let mut count = 0;
    sink.get_repeatedly("/clock", EXCHANGES, AskedAt::now, |asked_at, answer| {
        let round_trip = mailrun_net::clock::now().saturating_sub(asked_at.steady);
        let Some(row) = exchange(asked_at, round_trip, &answer) else { return };
        count += 1;
        if best.as_ref().is_none_or(|best| row.error_ns < best.error_ns) {
            best = Some(row);
        }
    })?;
    let Some(best) = best else { return Ok(None) };
    let exchange = SinkClockRow { exchanges: count, ..best };
    let chrony_ns = if exchange.boot == clock_row().boot { None } else { chrony_bound(sink) };
    Ok(Some(ClockMeasurement { exchange, chrony_ns }))
}

/// Returns the sum of chrony's error bounds for the two clocks, which limits their difference.
/// Returns `None` if either host has no estimate.
fn chrony_bound(sink: &HttpClient) -> Option<u64> {
    let there_ns = chrony_error(&sink.get("/clock/chrony").ok()?)?;
    ChronyAnswer::now().error_ns?.checked_add(there_ns)
}

/// Reads the error of the sink's clock, as chrony estimates it, from the answer to `GET /clock/chrony`. Older sinks do
/// not have the path `/clock/chrony`, so any status but 200 means no estimate.
fn chrony_error(answer: &HttpAnswer) -> Option<u64> {
    let is_known = answer.status == StatusCode::OK;
    is_known.then(|| serde_json::from_slice::<ChronyAnswer>(&answer.body).ok())??.error_ns
}

fn exchange(asked_at: AskedAt, round_trip: Duration, answer: &HttpAnswer) -> Option<SinkClockRow> {
    if answer.status != StatusCode::OK {
        return None;
    }
    let sink_clock: ClockAnswer = serde_json::from_slice(&answer.body).ok()?;
    let half = round_trip / 2;
    let own_ns = nanoseconds(asked_at.unix + half);
    Some(SinkClockRow {
        boot: sink_clock.boot,
        difference_ns: i64::try_from(i128::from(sink_clock.unix_ns) - i128::from(own_ns)).ok()?,
        error_ns: nanoseconds(half),
        exchanges: 1,
        chrony_bound_ns: None,
    })
}

/// Combines the measurements of the clocks from before and after the load. Takes the measurement with the smaller
/// error. Increases this error by the change of the clocks' difference, because the clocks drifted apart by that much
/// during the load. Returns `None` if a measurement is missing, or if the sink's host was rebooted in between.
#[must_use]
pub fn before_and_after(before: Option<ClockMeasurement>, after: Option<ClockMeasurement>) -> Option<SinkClockRow> {
    let (Some(before), Some(after)) = (before, after) else { return None };
    let chrony_ns = before.chrony_ns.zip(after.chrony_ns).map(|(before, after)| before.max(after));
    let before = before.exchange;
    let after = after.exchange;
    if before.boot != after.boot {
        return None;
    }
    let change = before.difference_ns.abs_diff(after.difference_ns);
    let exchanges = before.exchanges + after.exchanges;
    let best = if after.error_ns < before.error_ns { after } else { before };
    let row = SinkClockRow { error_ns: best.error_ns.saturating_add(change), exchanges, ..best };
    let chrony_bound_ns = chrony_ns.filter(|bound| is_smaller_bound(*bound, &row));
    Some(SinkClockRow { chrony_bound_ns, ..row })
}

/// Returns true if chrony's bound is smaller than the largest difference of the clocks that is possible according to
/// the exchange. Returns false if the bound is below even the smallest possible difference, because it must then be
/// wrong.
fn is_smaller_bound(chrony_ns: u64, exchange: &SinkClockRow) -> bool {
    let difference_ns = exchange.difference_ns.unsigned_abs();
    let least_ns = difference_ns.saturating_sub(exchange.error_ns);
    (least_ns..difference_ns.saturating_add(exchange.error_ns)).contains(&chrony_ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http_client::Bytes;
    use proptest::prelude::*;

    fn answer(status: StatusCode, body: &str) -> HttpAnswer {
        HttpAnswer { status, body: Bytes::copy_from_slice(body.as_bytes()) }
    }

    fn row(difference_ns: i64, error_ns: u64) -> SinkClockRow {
        SinkClockRow { boot: "b".to_owned(), difference_ns, error_ns, exchanges: 16, chrony_bound_ns: None }
    }

    fn measured(exchange: SinkClockRow, chrony_ns: Option<u64>) -> Option<ClockMeasurement> {
        Some(ClockMeasurement { exchange, chrony_ns })
    }

    #[test]
    fn the_better_measurement_counts_and_the_change_is_an_error() {
        let joined = before_and_after(measured(row(100, 30), None), measured(row(90, 20), None));
        assert_eq!(joined, Some(SinkClockRow { exchanges: 32, ..row(90, 30) }));
        assert_eq!(before_and_after(measured(row(0, 1), None), None), None);
        let other = SinkClockRow { boot: "c".to_owned(), ..row(0, 1) };
        let joined = before_and_after(measured(row(0, 1), None), measured(other, None));
        assert_eq!(joined, None, "the sink's host was started anew");
    }

    #[test]
    fn chronys_bound_counts_where_it_is_smaller_and_not_refuted() {
        let counted = |before, after| {
            let joined = before_and_after(measured(row(-1000, 500), before), measured(row(-1000, 500), after));
            joined.unwrap().chrony_bound_ns
        };
        assert_eq!(counted(Some(900), Some(1200)), Some(1200), "the larger of the two");
        assert_eq!(counted(Some(500), Some(500)), Some(500));
        assert_eq!(counted(Some(1500), Some(1500)), None, "no smaller than that of the exchange");
        assert_eq!(counted(Some(499), Some(499)), None, "the clocks differ by 500 at least");
        assert_eq!(counted(Some(900), None), None, "not known after the load");
    }

    #[test]
    fn an_answer_without_an_estimate_is_none() {
        let read = |status, body: &str| chrony_error(&answer(status, body));
        assert_eq!(read(StatusCode::OK, "{\"error_ns\":70}"), Some(70));
        assert_eq!(read(StatusCode::NOT_FOUND, "{\"error_ns\":70}"), None);
        for body in ["", "{}", "[]", "{\"error_ns\":null}", "{\"error_ns\":-1}", "{\"error_ns\":\"1\"}"] {
            assert_eq!(read(StatusCode::OK, body), None, "{body}");
        }
    }

    #[test]
    fn what_tells_no_time_is_no_measurement() {
        let asked_at = AskedAt { unix: Duration::from_secs(1_000), steady: Duration::ZERO };
        let ask = |status, body: &str| exchange(asked_at, Duration::from_millis(2), &answer(status, body));
        assert_eq!(ask(StatusCode::NOT_FOUND, "no"), None);
        for body in ["", "{}", "{\"boot\":1,\"unix_ns\":2}", "{\"boot\":\"b\",\"unix_ns\":-2}", "[]"] {
            assert_eq!(ask(StatusCode::OK, body), None, "{body}");
        }
        let far = format!("{{\"boot\":\"b\",\"unix_ns\":{}}}", u64::MAX);
        assert_eq!(ask(StatusCode::OK, &far), None, "centuries ahead");
    }

    proptest! {
        #[test]
        fn the_truth_lies_within_the_bound(there_us in 0_u64..900_000, back_us in 0_u64..900_000, ahead_ns in -5_000_000_000_i64..5_000_000_000) {
            let asked_at = AskedAt { unix: Duration::from_secs(1_000), steady: Duration::ZERO };
            let answered_at = asked_at.unix + Duration::from_micros(there_us);
            let sink_ns = i64::try_from(answered_at.as_nanos()).unwrap() + ahead_ns;
            let body = serde_json::to_string(&ClockAnswer { boot: "b".to_owned(), unix_ns: sink_ns as u64 }).unwrap();
            let round_trip = Duration::from_micros(there_us + back_us);
            let row = exchange(asked_at, round_trip, &answer(StatusCode::OK, &body)).unwrap();
            prop_assert!(row.difference_ns.abs_diff(ahead_ns) <= row.error_ns, "{row:?}");
        }
    }
}
