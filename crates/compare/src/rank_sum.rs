//! Estimates the difference between two sides from unpaired runs: the Hodges–Lehmann shift and its confidence interval.
//! The interval contains the differences that the Mann–Whitney test does not reject (Hollander, Wolfe, Chicken:
//! Nonparametric statistical methods, §4).
use crate::ranks::{inner_range, median};
use crate::signed_rank::{largest_tail, normal_quantile};

/// Maximum number of pairs of a run of A and a run of B for which the exact distribution of Mann and Whitney's U is
/// computed. With more pairs, the normal approximation is used.
const MAX_EXACT_PAIRS: usize = 2_500;

/// Returns the estimated shift from `a` to `b`, which is the median of all differences, and its confidence interval.
/// The interval misses the true shift with a probability of at most `risk`. It is `None` if there are too few numbers.
pub(crate) fn shift(a: &[f64], b: &[f64], risk: f64) -> (f64, Option<(f64, f64)>) {
    let mut differences: Vec<f64> = a.iter().flat_map(|a| b.iter().map(move |b| b - a)).collect();
    differences.sort_by(f64::total_cmp);
    let interval = outside(a.len(), b.len(), risk).and_then(|outside| inner_range(&differences, outside));
    (median(&differences), interval)
}

/// Returns the number of sorted differences that the confidence interval leaves out at each end, or `None` if there are
/// too few numbers for an interval.
fn outside(a: usize, b: usize, risk: f64) -> Option<usize> {
    if a * b > MAX_EXACT_PAIRS {
        let pairs = (a * b) as f64;
        let spread = (pairs * (a + b + 1) as f64 / 12.0).sqrt();
        return Some((pairs / 2.0 - normal_quantile(1.0 - risk / 2.0) * spread - 0.5).max(0.0) as usize);
    }
    largest_tail(&u_probabilities(a, b), risk)
}

/// Returns the distribution of Mann and Whitney's U for `a` values of A and `b` values of B, if A and B do not differ.
/// Every sort order of all values is then equally likely. U is the number of pairs in which B's value is greater than
/// A's. Element `u` of the result is the probability that U equals `u`.
fn u_probabilities(a: usize, b: usize) -> Vec<f64> {
    // After each pass of the outer loop, `with_b[k]` is the distribution of U for `from_a` values of A and `k` values
    // of B. The inner loop adds up two cases: either B or A has the greatest value.
    let mut with_b = vec![vec![1.0]; b + 1];
    for from_a in 1..=a {
        for from_b in 1..=b {
            let share_of_b = from_b as f64 / (from_a + from_b) as f64;
            let mut next = vec![0.0; from_a * from_b + 1];
            // If B has the greatest value, it is greater than all of A's, so the count U grows by `from_a` pairs.
            with_b[from_b - 1].iter().enumerate().for_each(|(u, chance)| next[u + from_a] += chance * share_of_b);
            // If A has the greatest value, no value of B is greater, so the count U does not grow.
            with_b[from_b].iter().enumerate().for_each(|(u, chance)| next[u] += chance * (1.0 - share_of_b));
            with_b[from_b] = next;
        }
    }
    with_b.pop().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_those_of_the_tables() {
        // Ten values, five of A and five of B, have 10! / (5! · 5!) = 252 orders. U is 0 in one of these orders, 1 in
        // one order, and 2 in two orders.
        let probabilities = u_probabilities(5, 5);
        assert!((probabilities[0] - 1.0 / 252.0).abs() < 1e-12);
        assert!((probabilities[..=2].iter().sum::<f64>() - 4.0 / 252.0).abs() < 1e-12);
        assert!((u_probabilities(7, 3).iter().sum::<f64>() - 1.0).abs() < 1e-12);
        assert_eq!(u_probabilities(7, 3).len(), 22);
    }

    #[test]
    fn a_shift_is_found_with_an_interval_around_it() {
        let a = [1.0, 2.0, 3.0, 4.0, 5.0];
        let b = [11.0, 12.0, 13.0, 14.0, 15.0];
        let (middle, interval) = shift(&a, &b, 0.05);
        // In R, `wilcox.test(b, a, conf.int = TRUE)` gives a 95 percent interval from 7 to 13. These are the third
        // smallest and the third largest of the 25 differences.
        let (lower, upper) = interval.unwrap();
        assert_eq!(middle, 10.0);
        assert!(lower < 10.0 && upper > 10.0 && (upper - 10.0 - (10.0 - lower)).abs() < 1e-12);
        assert_eq!(shift(&a[..2], &b[..2], 0.05).1, None);
    }
}
