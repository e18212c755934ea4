//! Ranks and medians of a metric's values, for the statistical tests. Equal numbers share the mean of their ranks.

/// Returns the rank of each number, counted from 1. Equal numbers get the mean of their ranks.
pub(crate) fn midranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|left, right| values[*left].total_cmp(&values[*right]));
    let mut ranks = vec![0.0; values.len()];
    let mut begin = 0;
    while begin < order.len() {
        let is_equal = |place: &&usize| values[**place] == values[order[begin]];
        let end = begin + order[begin..].iter().take_while(is_equal).count().max(1);
        // Equal numbers share the ranks from `begin` + 1 to `end`, so each of them gets the mean of these ranks.
        let mean = (begin + 1 + end) as f64 / 2.0;
        order[begin..end].iter().for_each(|place| ranks[*place] = mean);
        begin = end;
    }
    ranks
}

/// Returns the median of sorted numbers, or 0 if there are none.
pub(crate) fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

/// Returns the median of numbers in any order, or 0 if there are none.
pub fn middle(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    median(&sorted)
}

/// Returns the smallest and the largest number that remain after dropping `outside` numbers at each end, or `None` if
/// none remains. Such an interval assumes nothing about the distribution of the numbers.
pub(crate) fn inner_range(sorted: &[f64], outside: usize) -> Option<(f64, f64)> {
    let last = sorted.len().checked_sub(outside + 1)?;
    (outside <= last).then(|| (sorted[outside], sorted[last]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_numbers_share_a_rank() {
        assert_eq!(midranks(&[3.0, 1.0, 3.0, 2.0]), [3.5, 1.0, 3.5, 2.0]);
        assert_eq!(midranks(&[]), Vec::<f64>::new());
    }

    #[test]
    fn a_median_of_two_lies_between() {
        assert_eq!([median(&[]), median(&[4.0]), median(&[1.0, 2.0]), median(&[1.0, 2.0, 9.0])], [0.0, 4.0, 1.5, 2.0]);
    }
}
