//! Tests by permutation whether any of several metrics differs between the runs of A and the runs of B. If A and B are
//! equal, any division of the runs into A and B is equally likely. The p-value of a metric is the share of divisions in
//! which the largest statistic of *any* metric is at least as large as the statistic observed for this metric.
use crate::ranks::midranks;
use mailrun_measurement::seeded::SeededRng;

/// Maximum number of divisions of the runs into A and B for which the test tries all divisions. If there are more, it
/// draws random divisions.
const MAX_EXACT_DIVISIONS: u64 = 20_000;
/// Number that goes into the seed, so that random divisions into A and B are independent of the other random numbers.
const PURPOSE: u64 = 0x6c61_6265;
/// Difference up to which two statistics count as equal. Rounding can separate sums that are mathematically equal.
const TOLERANCE: f64 = 1e-9;

/// Returns the rank of each run's value among the values of all runs, for the runs of A and then the runs of B. The
/// ranks are shifted to a mean of 0 and scaled to a vector of length 1, so that all metrics can be compared.
fn scores(a: &[f64], b: &[f64]) -> Vec<f64> {
    let all: Vec<f64> = a.iter().chain(b).copied().collect();
    let mut scores = midranks(&all);
    let mean = scores.iter().sum::<f64>() / scores.len().max(1) as f64;
    scores.iter_mut().for_each(|score| *score -= mean);
    let length = scores.iter().map(|score| score * score).sum::<f64>().sqrt();
    if length > 0.0 {
        scores.iter_mut().for_each(|score| *score /= length);
    }
    scores
}

/// Returns the p-value of each metric, adjusted for the number of metrics. `family` has the values of each metric in
/// the runs of A and of B. All metrics must have the same number of runs.
pub(crate) fn adjusted_p(family: &[(&[f64], &[f64])], draws: usize, seed: u64) -> Vec<f64> {
    let Some((of_a, runs)) = family.first().map(|(a, b)| (a.len(), a.len() + b.len())) else { return Vec::new() };
    let tables: Vec<Vec<f64>> = family.iter().map(|(a, b)| scores(a, b)).collect();
    let statistic = |scores: &[f64], chosen: &[usize]| chosen.iter().map(|run| scores[*run]).sum::<f64>().abs();
    let first: Vec<usize> = (0..of_a).collect();
    let observed: Vec<f64> = tables.iter().map(|scores| statistic(scores, &first)).collect();
    let mut reached = vec![0_u64; tables.len()];
    let mut count = |chosen: &[usize]| {
        let greatest = tables.iter().map(|scores| statistic(scores, chosen)).fold(0.0, f64::max);
        for (reached, observed) in reached.iter_mut().zip(&observed) {
            *reached += u64::from(greatest >= observed - TOLERANCE);
        }
    };
    if let Some(all) = divisions(runs, of_a) {
        let mut chosen = first;
        loop {
            count(&chosen);
            if !next_division(&mut chosen, runs) {
                break;
            }
        }
        return reached.iter().map(|reached| *reached as f64 / all as f64).collect();
    }
    let mut order: Vec<usize> = (0..runs).collect();
    for draw in 0..draws as u64 {
        let mut random = SeededRng::new(seed, PURPOSE, draw);
        // Shuffle only the first `of_a` places (Fisher and Yates), because the order of the others does not matter.
        for place in 0..of_a {
            order.swap(place, place + random.below((runs - place) as u64) as usize);
        }
        count(&order[..of_a]);
    }
    // Add 1 for the observed result, which is itself one of the possible divisions. Otherwise, p could be 0.
    reached.iter().map(|reached| (reached + 1) as f64 / (draws + 1) as f64).collect()
}

/// Returns the number of ways to choose `of_a` of `runs` runs, or `None` if there are too many to try all.
fn divisions(runs: usize, of_a: usize) -> Option<u64> {
    let mut ways = 1_u64;
    for chosen in 0..of_a as u64 {
        ways = ways * (runs as u64 - chosen) / (chosen + 1);
        if ways > MAX_EXACT_DIVISIONS {
            return None;
        }
    }
    Some(ways)
}

/// Advances `chosen` to the next combination of runs in lexicographic order. Returns false after the last combination.
fn next_division(chosen: &mut [usize], runs: usize) -> bool {
    let count = chosen.len();
    let Some(place) = (0..count).rev().find(|place| chosen[*place] < runs - count + place) else { return false };
    chosen[place] += 1;
    for later in place + 1..count {
        chosen[later] = chosen[later - 1] + 1;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_against_five_apart_have_two_of_252_divisions() {
        let a = [1.0, 2.0, 3.0, 4.0, 5.0];
        let b = [6.0, 7.0, 8.0, 9.0, 10.0];
        assert_eq!(adjusted_p(&[(&a, &b)], 0, 1), [2.0 / 252.0]);
        assert_eq!(adjusted_p(&[(&a, &a)], 0, 1), [1.0]);
    }

    #[test]
    fn draws_come_near_to_all_divisions() {
        let a: Vec<f64> = (0..12).map(f64::from).collect();
        let b: Vec<f64> = (0..12).map(|run| f64::from(run) + 3.5).collect();
        assert!(divisions(24, 12).is_none());
        let [drawn] = adjusted_p(&[(&a, &b)], 20_000, 3)[..] else { panic!("one metric") };
        // In R, `wilcox.test(0:11, 0:11 + 3.5, exact = TRUE)` gives W = 36 of 144 and p = 0.03877 for these values.
        assert!((drawn - 0.0388).abs() < 0.006, "{drawn}");
    }
}
