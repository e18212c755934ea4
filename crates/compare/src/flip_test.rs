//! Permutation test for paired rounds: does any metric differ between A and B? A flip exchanges A and B in some of the
//! rounds, for all metrics together. If A and B are equal, every flip is as likely as the measured rounds, so the
//! measured rounds should not stand out. For each flip, the test takes the largest statistic of *any* metric. A
//! metric's p-value is the share of flips in which this maximum reaches the metric's measured statistic (Westfall and
//! Young: Resampling-based multiple testing, 1993, max-T).
use crate::ranks::midranks;
use mailrun_measurement::seeded::SeededRng;

/// Maximum number of rounds for which the test tries all flips. With more rounds, there are too many flips, so the test
/// draws random flips.
const MAX_EXACT_ROUNDS: usize = 14;
/// Number that goes into the seed, so that the random flips are independent of other random numbers in the comparison.
const PURPOSE: u64 = 0x666c_6970;
/// Difference up to which two statistics count as equal. Rounding can separate sums that are mathematically equal.
const TOLERANCE: f64 = 1e-9;
/// Number of rounds that one lookup in a `FlipTable` covers. The signs of eight rounds fit into a byte.
const BITS: usize = 8;

/// Table for fast computation of a metric's test statistic, the sum of the signed ranks of its ratios. For every eight
/// rounds, the table has the partial sum for each of the 256 combinations of signs. A flip therefore needs only one
/// lookup for eight rounds.
struct FlipTable {
    sums: Vec<[f64; 1 << BITS]>,
    observed: f64,
}

impl FlipTable {
    fn new(logs: &[f64]) -> Self {
        let scores = scores(logs);
        let sums = scores.chunks(BITS).map(|chunk| {
            std::array::from_fn(|signs| {
                let signed = |(bit, score): (usize, &f64)| if signs >> bit & 1 == 0 { *score } else { -score };
                chunk.iter().enumerate().map(signed).sum()
            })
        });
        Self { sums: sums.collect(), observed: scores.iter().sum::<f64>().abs() }
    }

    /// Returns the test statistic after exchanging A and B in the rounds whose bits are set in `signs`.
    fn statistic(&self, signs: &[u8]) -> f64 {
        self.sums.iter().zip(signs).map(|(sums, bits)| sums[usize::from(*bits)]).sum::<f64>().abs()
    }
}

/// Returns the signed rank of each log-ratio: the rank of its size, with the sign of the log-ratio, or 0 if the ratio
/// is 1. The ranks are scaled to a vector of length 1, so that the statistics of all metrics have the same spread.
fn scores(logs: &[f64]) -> Vec<f64> {
    let sizes: Vec<f64> = logs.iter().map(|log| log.abs()).collect();
    let mut scores: Vec<f64> = midranks(&sizes).iter().zip(logs).map(|(rank, log)| rank * sign(*log)).collect();
    let length = scores.iter().map(|score| score * score).sum::<f64>().sqrt();
    if length > 0.0 {
        scores.iter_mut().for_each(|score| *score /= length);
    }
    scores
}

fn sign(log: f64) -> f64 {
    if log == 0.0 { 0.0 } else { log.signum() }
}

/// Returns the p-value of each metric, adjusted for the number of metrics. All metrics must have equally many rounds.
pub(crate) fn adjusted_p(family: &[&[f64]], draws: usize, seed: u64) -> Vec<f64> {
    let rounds = family.first().map_or(0, |logs| logs.len());
    let tables: Vec<FlipTable> = family.iter().map(|logs| FlipTable::new(logs)).collect();
    let mut reached = vec![0_usize; tables.len()];
    let mut count = |signs: &[u8]| {
        let greatest = tables.iter().map(|table| table.statistic(signs)).fold(0.0, f64::max);
        for (reached, table) in reached.iter_mut().zip(&tables) {
            *reached += usize::from(greatest >= table.observed - TOLERANCE);
        }
    };
    if rounds <= MAX_EXACT_ROUNDS {
        // Flipping all rounds only changes the sign of the sum, and the statistic ignores the sign. So each combination
        // of flips and its opposite give the same statistic. Count only the combinations that leave the last round
        // unchanged.
        let all = 1_u32 << rounds.saturating_sub(1);
        (0..all).for_each(|signs| count(&signs.to_le_bytes()));
        return reached.iter().map(|reached| *reached as f64 / f64::from(all)).collect();
    }
    let mut signs = vec![0; rounds.div_ceil(BITS)];
    for draw in 0..draws as u64 {
        let mut random = SeededRng::new(seed, PURPOSE, draw);
        signs.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&random.next_u64().to_le_bytes()[..chunk.len()]));
        count(&signs);
    }
    // Add 1 for the observed result, which is itself one of the possible flips. Otherwise, p could be 0.
    reached.iter().map(|reached| (reached + 1) as f64 / (draws + 1) as f64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_rounds_on_one_side_have_two_of_sixty_four_flips() {
        let logs = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6];
        assert_eq!(adjusted_p(&[&logs], 0, 1), [1.0 / 32.0]);
        let mixed = [0.1, -0.1, 0.1, -0.1, 0.1, -0.1];
        assert_eq!(adjusted_p(&[&mixed], 0, 1), [1.0]);
        assert_eq!(adjusted_p(&[&[0.0; 7]], 0, 1), [1.0]);
    }

    #[test]
    fn a_family_costs_its_metrics_something() {
        let strong: Vec<f64> = (1..=10).map(|round| f64::from(round) * 0.01).collect();
        let weak: Vec<f64> =
            (1..=10).map(|round| f64::from(round) * if round % 3 == 0 { -0.01 } else { 0.01 }).collect();
        let alone = adjusted_p(&[&weak], 0, 1)[0];
        let together = adjusted_p(&[&weak, &strong], 0, 1);
        assert!(together[0] >= alone && together[1] < together[0], "{alone} {together:?}");
    }

    #[test]
    fn draws_come_near_to_all_flips() {
        let logs: Vec<f64> = (0..14).map(|round| f64::from(round) * 0.01 - 0.03).collect();
        let exact = adjusted_p(&[&logs], 0, 1)[0];
        let more: Vec<f64> = logs.iter().copied().chain([0.0]).collect();
        let drawn = adjusted_p(&[&more], 20_000, 7)[0];
        assert!((exact - drawn).abs() < 0.01, "{exact} {drawn}");
    }
}
