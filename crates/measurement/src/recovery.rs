use crate::record::{Recovery, SeriesRow};

/// A server has recovered in the first second in which it delivers at least this share of its full rate.
const FULL_SHARE: f64 = 0.9;

/// Finds the first second in which the server delivers at least 90 % of its full rate. The search begins with the
/// second that contains `back_s`, the time at which the next hop stopped holding mail back. Returns `None` if nothing
/// was delivered after that time.
///
/// To find the full rate, the function adds up the messages of the fastest seconds until it has half of all mail. The
/// full rate is the rate of the slowest of these seconds. The fastest second alone would be a matter of luck, and the
/// mean of all seconds would depend on how long the server waited before it tried again.
pub fn recovery(series: &[SeriesRow], back_s: f64) -> Option<Recovery> {
    let since = || series.iter().filter(|row| row.second as f64 + 1.0 > back_s);
    let mut rates: Vec<u64> = since().map(|row| row.delivered).collect();
    rates.sort_unstable_by(|a, b| b.cmp(a));
    let all: u64 = rates.iter().sum();
    let mut sum = 0;
    let full_rate = *rates.iter().find(|rate| {
        sum += **rate;
        2 * sum >= all
    })?;
    let first = since().find(|row| row.delivered as f64 >= FULL_SHARE * full_rate as f64)?;
    (all > 0).then(|| Recovery {
        back_s,
        full_rate_per_s: full_rate as f64,
        after_s: (first.second as f64 - back_s).max(0.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(delivered: &[u64], back_s: f64) -> Option<(f64, f64)> {
        let row = |(second, delivered): (usize, &u64)| SeriesRow {
            second: second as u64,
            delivered: *delivered,
            ..SeriesRow::default()
        };
        let series: Vec<SeriesRow> = delivered.iter().enumerate().map(row).collect();
        recovery(&series, back_s).map(|found| (found.after_s, found.full_rate_per_s))
    }

    #[test]
    fn the_full_rate_is_that_of_half_of_the_mail() {
        // The outage ends at 3.5 s, but the server sends nothing until its next retry at 9 s. This wait of 5.5 s is
        // part of the recovery.
        let waits = [10, 10, 10, 10, 0, 0, 0, 0, 0, 400, 410, 390, 20];
        assert_eq!(found(&waits, 3.5), Some((5.5, 400.0)));
        // A server recovers in the first whole second after the outage. Its full rate is 500, and not the 900 of its
        // fastest second.
        assert_eq!(found(&[0, 300, 500, 520, 480, 900, 500, 90], 1.25), Some((0.75, 500.0)));
        // A server reaches its full rate of 400 only 3 s after the outage.
        assert_eq!(found(&[0, 50, 100, 200, 400, 400, 400, 400, 400], 1.0), Some((3.0, 400.0)));
        // Deliveries before the outage ended do not count, however fast they were.
        assert_eq!(found(&[900, 900, 0, 0, 90, 90], 2.0), Some((2.0, 90.0)));
        // A server delivers all mail in the second in which the outage ends, so it recovers at once.
        assert_eq!(found(&[0, 0, 77], 2.9), Some((0.0, 77.0)));
        // A server delivers about 60 messages every third second. The seconds in between must not lower its full rate.
        assert_eq!(found(&[0, 0, 0, 60, 0, 0, 58, 0, 0, 61], 0.0), Some((3.0, 60.0)));
        // A server has recovered in the first second with at least 90 % of its full rate, here 90 of 100 messages.
        assert_eq!(found(&[0, 89, 90, 100, 100, 100], 0.0), Some((2.0, 100.0)));
    }

    #[test]
    fn without_deliveries_there_is_no_recovery() {
        assert_eq!(found(&[], 0.0), None);
        assert_eq!(found(&[5, 5, 0, 0], 2.0), None);
        assert_eq!(found(&[5, 5], 9.0), None);
    }
}
