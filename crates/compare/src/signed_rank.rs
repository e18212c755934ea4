//! Estimates the difference between two contestants from paired rounds: the Hodges–Lehmann estimate and its confidence
//! interval. The interval contains the differences that Wilcoxon's signed-rank test does not reject (Hollander, Wolfe,
//! Chicken: Nonparametric statistical methods, §3.1 to §3.3).
use crate::ranks::{inner_range, median};

/// Maximum number of ratios for which the interval comes from the exact distribution of the signed-rank sum. With more
/// ratios, the normal approximation is used, whose error is below 0.2 % at 200 ratios.
const MAX_EXACT: usize = 200;

/// Returns the Walsh averages in ascending order. They are the means of all pairs of numbers, including the pair of
/// each number with itself.
fn walsh_averages(values: &[f64]) -> Vec<f64> {
    let mut averages = Vec::with_capacity(values.len() * (values.len() + 1) / 2);
    for (place, left) in values.iter().enumerate() {
        averages.extend(values[place..].iter().map(|right| (left + right) / 2.0));
    }
    averages.sort_by(f64::total_cmp);
    averages
}

/// Returns the Hodges–Lehmann estimate of the numbers' middle, and its confidence interval. The interval misses the
/// true middle with a probability of at most `risk`. It is `None` if there are too few numbers, for example fewer than
/// six at a risk of 5 %.
pub(crate) fn estimate(values: &[f64], risk: f64) -> (f64, Option<(f64, f64)>) {
    let averages = walsh_averages(values);
    let interval = outside(values.len(), risk).and_then(|outside| inner_range(&averages, outside));
    (median(&averages), interval)
}

/// Returns how many of the sorted Walsh averages of `count` numbers the confidence interval leaves out at each end.
/// Returns `None` if there are too few numbers for an interval.
fn outside(count: usize, risk: f64) -> Option<usize> {
    if count > MAX_EXACT {
        let n = count as f64;
        let spread = (n * (n + 1.0) * (2.0 * n + 1.0) / 24.0).sqrt();
        return Some((n * (n + 1.0) / 4.0 - normal_quantile(1.0 - risk / 2.0) * spread - 0.5).max(0.0) as usize);
    }
    largest_tail(&rank_sum_probabilities(count), risk)
}

/// Returns the number of values that a confidence interval leaves out at each end. This is the largest index for which
/// the probabilities up to this index add up to at most half of `risk`, because each end of the interval gets half of
/// the risk. Returns `None` if even the first probability is greater than that.
pub(crate) fn largest_tail(probabilities: &[f64], risk: f64) -> Option<usize> {
    let mut sum = 0.0;
    let within = probabilities.iter().take_while(|probability| {
        sum += **probability;
        sum <= risk / 2.0
    });
    within.count().checked_sub(1)
}

/// Returns a list whose element `s` is the probability that ranks add up to `s`, if each of the ranks from 1 to `count`
/// is included in the sum with a probability of 1/2.
fn rank_sum_probabilities(count: usize) -> Vec<f64> {
    let mut probabilities = vec![0.0; count * (count + 1) / 2 + 1];
    probabilities[0] = 1.0;
    let mut highest = 0;
    for rank in 1..=count {
        highest += rank;
        for sum in (0..=highest).rev() {
            let with = if sum >= rank { probabilities[sum - rank] } else { 0.0 };
            probabilities[sum] = (probabilities[sum] + with) / 2.0;
        }
    }
    probabilities
}

/// Returns the quantile of the standard normal distribution to nine digits, for probabilities from 0.5 to just below 1.
/// Uses P. J. Acklam's rational approximation.
pub(crate) fn normal_quantile(probability: f64) -> f64 {
    const A: [f64; 6] = [
        -3.969_683_028_665_376e1,
        2.209_460_984_245_205e2,
        -2.759_285_104_469_687e2,
        1.383_577_518_672_69e2,
        -3.066_479_806_614_716e1,
        2.506_628_277_459_239,
    ];
    const B: [f64; 5] = [
        -5.447_609_879_822_406e1,
        1.615_858_368_580_409e2,
        -1.556_989_798_598_866e2,
        6.680_131_188_771_972e1,
        -1.328_068_155_288_572e1,
    ];
    const C: [f64; 6] = [
        -7.784_894_002_430_293e-3,
        -3.223_964_580_411_365e-1,
        -2.400_758_277_161_838,
        -2.549_732_539_343_734,
        4.374_664_141_464_968,
        2.938_163_982_698_783,
    ];
    const D: [f64; 4] =
        [7.784_695_709_041_462e-3, 3.224_671_290_700_398e-1, 2.445_134_137_142_996, 3.754_408_661_907_416];
    const TAIL: f64 = 0.024_25;
    let polynomial = |factors: &[f64], x: f64| factors.iter().fold(0.0, |sum, factor| sum * x + factor);
    if probability > 1.0 - TAIL {
        let x = (-2.0 * (1.0 - probability).ln()).sqrt();
        return -polynomial(&C, x) / (polynomial(&D, x) * x + 1.0);
    }
    let from_middle = probability - 0.5;
    let square = from_middle * from_middle;
    polynomial(&A, square) * from_middle / (polynomial(&B, square) * square + 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_those_of_the_tables() {
        // Wilcoxon's table has P(W ≤ 0) = 1/64 for six numbers, and P(W ≤ 8) = 0.024 for ten numbers.
        assert!((rank_sum_probabilities(6)[0] - 1.0 / 64.0).abs() < 1e-12);
        let ten: f64 = rank_sum_probabilities(10)[..=8].iter().sum();
        assert!((ten - 0.0244).abs() < 1e-4, "{ten}");
        assert!((rank_sum_probabilities(80).iter().sum::<f64>() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn an_interval_takes_six_numbers() {
        let values: Vec<f64> = (1..=10).map(f64::from).collect();
        assert_eq!(estimate(&values[..5], 0.05), (3.0, None));
        assert_eq!(estimate(&values[..6], 0.05), (3.5, Some((1.0, 6.0))));
        // In R, `wilcox.test(1:10, conf.int = TRUE)` gives the same result. For numbers without ties, its interval
        // reaches from the 9th smallest to the 9th largest of the 55 averages of two numbers.
        let (middle, interval) = estimate(&values, 0.05);
        assert_eq!((middle, interval), (5.5, Some((3.0, 8.0))));
    }

    #[test]
    fn the_normal_approximation_meets_the_exact_count() {
        let exact = outside(200, 0.05).unwrap() as f64;
        let n = 200.0_f64;
        let near = n * (n + 1.0) / 4.0 - normal_quantile(0.975) * (n * (n + 1.0) * (2.0 * n + 1.0) / 24.0).sqrt() - 0.5;
        assert!((exact - near).abs() / exact < 0.002, "{exact} {near}");
        assert!((normal_quantile(0.975) - 1.959_963_985).abs() < 1e-7);
        assert!((normal_quantile(0.999) - 3.090_232_306).abs() < 1e-7);
    }
}
