//! Stores how a figure, such as a rate, changed during a run. Each bin gives the mean of the figure in one interval.
//! When all bins are used, neighbouring bins are merged, so the size stays bounded.

/// Maximum number of bins in a history. More bins would not be visible, because even a wide terminal has fewer columns.
const MAX_BINS: usize = 480;
/// Length of a bin in seconds at the start of a run. It doubles each time bins are merged.
const BIN_S: f64 = 0.25;
/// Maximum time of a value in seconds since the start of the run, about thirty years. Later values are recorded as if
/// they came at this time.
const MAX_ELAPSED_S: f64 = 1e9;

#[derive(Clone, Debug)]
pub(crate) struct History {
    bin_s: f64,
    bins: Vec<HistoryBin>,
}

#[derive(Clone, Copy, Debug, Default)]
struct HistoryBin {
    sum: f64,
    values: u32,
}

impl Default for History {
    fn default() -> Self {
        Self { bin_s: BIN_S, bins: Vec::new() }
    }
}

impl History {
    pub(crate) fn add(&mut self, at_s: f64, value: f64) {
        let at_s = at_s.clamp(0.0, MAX_ELAPSED_S);
        let mut index = (at_s / self.bin_s) as usize;
        while index >= MAX_BINS {
            self.halve();
            index = (at_s / self.bin_s) as usize;
        }
        if self.bins.len() <= index {
            self.bins.resize(index + 1, HistoryBin::default());
        }
        self.bins[index].sum += value;
        self.bins[index].values += 1;
    }

    fn halve(&mut self) {
        let pairs = self.bins.chunks(2);
        self.bins = pairs
            .map(|pair| HistoryBin {
                sum: pair.iter().map(|bin| bin.sum).sum(),
                values: pair.iter().map(|bin| bin.values).sum(),
            })
            .collect();
        self.bin_s *= 2.0;
    }

    /// Divides the first `span_s` seconds into `columns` columns of equal length, and returns the mean value of each
    /// column. Columns in the future are `None`. A column without a value repeats the mean of the previous column.
    pub(crate) fn columns(&self, span_s: f64, columns: usize) -> Vec<Option<f64>> {
        let column_s = span_s / columns.max(1) as f64;
        let mut before = None;
        (0..columns)
            .map(|column| {
                let first = (column as f64 * column_s / self.bin_s) as usize;
                let end = (((column + 1) as f64 * column_s / self.bin_s) as usize).max(first + 1);
                let bins = self.bins.get(first..end.min(self.bins.len())).filter(|bins| !bins.is_empty())?;
                let values: u32 = bins.iter().map(|bin| bin.values).sum();
                if values > 0 {
                    before = Some(bins.iter().map(|bin| bin.sum).sum::<f64>() / f64::from(values));
                }
                before
            })
            .collect()
    }
}

/// Returns the length of the time axis in seconds: the planned time of the run. If no time is planned, or if the run
/// takes longer, returns a round number above the elapsed time.
pub(crate) fn axis_span_s(elapsed_s: f64, goal_s: f64) -> f64 {
    if goal_s >= elapsed_s && goal_s > 0.0 {
        return goal_s;
    }
    let steps = [10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_200.0, 1_800.0, 3_600.0];
    let step = steps.into_iter().find(|step| *step >= elapsed_s);
    step.unwrap_or_else(|| (elapsed_s.min(MAX_ELAPSED_S) / 3_600.0).ceil() * 3_600.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn columns_are_means_and_the_future_is_empty() {
        let mut history = History::default();
        for quarter in 0..20_u32 {
            history.add(f64::from(quarter) * 0.25, f64::from(quarter / 4));
        }
        assert_eq!(history.columns(10.0, 5), [Some(0.5), Some(2.5), Some(4.0), None, None]);
        assert_eq!(history.columns(5.0, 2).len(), 2);
    }

    #[test]
    fn a_gap_repeats_what_was_before_it() {
        let mut history = History::default();
        history.add(0.0, 7.0);
        history.add(2.0, 9.0);
        assert_eq!(history.columns(2.25, 9)[..8], [Some(7.0); 8]);
    }

    #[test]
    fn an_axis_is_as_long_as_the_plan_or_a_round_number() {
        for (elapsed_s, goal_s, span_s) in
            [(3.0, 0.0, 10.0), (11.0, 0.0, 20.0), (5.0, 40.0, 40.0), (41.0, 40.0, 60.0), (7_300.0, 0.0, 10_800.0)]
        {
            assert_eq!(axis_span_s(elapsed_s, goal_s), span_s);
        }
    }

    proptest! {
        #[test]
        fn any_run_fits(steps in prop::collection::vec((0.0..1e7_f64, 0.0..1e9_f64), 1..200), columns in 1_usize..300) {
            let mut history = History::default();
            for (at_s, value) in &steps {
                history.add(*at_s, *value);
            }
            prop_assert!(history.bins.len() <= MAX_BINS);
            let span_s = axis_span_s(steps.iter().map(|(at_s, _)| *at_s).fold(0.0, f64::max), 0.0);
            let shown = history.columns(span_s, columns);
            prop_assert_eq!(shown.len(), columns);
            prop_assert!(shown.into_iter().flatten().all(|value| (0.0..=1e9).contains(&value)));
        }
    }
}
