//! The time axis that all curves of the run and of the baseline share. A curve has at most 800 points. If there are
//! more seconds, several seconds share two points, their minimum and their maximum, so that no peak disappears.
use std::collections::BTreeMap;

pub(super) const MAX_POINTS: usize = 800;

/// Horizontal axis of a plot. `places` maps each second since the load began to its index, and `points` is the maximum
/// number of points per curve.
pub(super) struct TimeAxis {
    places: BTreeMap<u64, usize>,
    points: usize,
}

impl TimeAxis {
    pub(super) fn new(seconds: impl Iterator<Item = u64>, points: usize) -> Self {
        let mut places: BTreeMap<u64, usize> = seconds.map(|second| (second, 0)).collect();
        places.values_mut().enumerate().for_each(|(at, place)| *place = at);
        Self { places, points }
    }

    /// Returns how many consecutive seconds are joined into two points, which show their minimum and maximum. Returns 1
    /// if each second has a point of its own.
    pub(super) fn per_bucket(&self) -> usize {
        if self.places.len() <= self.points { 1 } else { self.places.len().div_ceil((self.points / 2).max(1)) }
    }

    /// Returns the time of each point, in seconds. The curves are drawn as steps, so there is an extra point at the end
    /// of the last second.
    pub(super) fn times(&self) -> Vec<f64> {
        let seconds: Vec<u64> = self.places.keys().copied().collect();
        let size = self.per_bucket();
        let step = seconds.windows(2).map(|pair| pair[1] - pair[0]).min().unwrap_or(1);
        let end = seconds.last().map(|last| last.saturating_add(step) as f64);
        let pair = |bucket: &[u64]| {
            let first = bucket[0] as f64;
            let last = bucket[bucket.len() - 1] as f64;
            [first, f64::midpoint(first, last + 1.0)]
        };
        let times: Vec<f64> = match size {
            1 => seconds.iter().map(|second| *second as f64).collect(),
            size => seconds.chunks(size).flat_map(pair).collect(),
        };
        times.into_iter().chain(end).collect()
    }

    /// Returns the values of a curve, one for each point of the axis. The extra point at the end repeats the last
    /// value, and a second without a value gets NaN.
    pub(super) fn values(&self, rows: impl Iterator<Item = (u64, f64)>) -> Vec<f64> {
        let mut values = vec![f64::NAN; self.places.len()];
        for (second, value) in rows {
            if let Some(room) = self.places.get(&second).and_then(|at| values.get_mut(*at)) {
                *room = value;
            }
        }
        let mut values = match self.per_bucket() {
            1 => values,
            size => values.chunks(size).flat_map(extremes).collect(),
        };
        values.extend(values.last().copied());
        values
    }
}

/// Returns the minimum and the maximum in the order in which they occurred, so that a rise is not drawn as a fall.
fn extremes(values: &[f64]) -> [f64; 2] {
    let numbers = || values.iter().copied().enumerate().filter(|(_, value)| value.is_finite());
    let min = numbers().min_by(|one, other| one.1.total_cmp(&other.1));
    let max = numbers().max_by(|one, other| one.1.total_cmp(&other.1));
    match (min, max) {
        (Some(min), Some(max)) if min.0 <= max.0 => [min.1, max.1],
        (Some(min), Some(max)) => [max.1, min.1],
        _ => [f64::NAN; 2],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_extreme_is_lost(values in proptest::collection::vec(0.0..1e6_f64, 1..5_000), points in 2_usize..1_000) {
            let axis = TimeAxis::new(0..values.len() as u64, points);
            let thin = axis.values(values.iter().copied().enumerate().map(|(at, value)| (at as u64, value)));
            let times = axis.times();
            prop_assert_eq!(thin.len(), times.len());
            prop_assert!(thin.len() <= points.max(2) + 1, "{} of {points}", thin.len());
            prop_assert!(times.windows(2).all(|pair| pair[0] < pair[1]), "{times:?}");
            let largest = |values: &[f64]| values.iter().copied().fold(f64::MIN, f64::max);
            let smallest = |values: &[f64]| values.iter().copied().fold(f64::MAX, f64::min);
            prop_assert_eq!((largest(&thin), smallest(&thin)), (largest(&values), smallest(&values)));
        }
    }
}
