//! Summary of a figure over several runs: its least value, its median and its greatest value.

#[derive(Clone, Copy)]
pub(crate) struct Spread {
    pub(crate) least: f64,
    pub(crate) median: f64,
    pub(crate) most: f64,
}

impl Spread {
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let least = *sorted.first()?;
        let most = *sorted.last()?;
        let upper = sorted[sorted.len() / 2];
        let lower = sorted[(sorted.len() - 1) / 2];
        Some(Self { least, median: f64::midpoint(lower, upper), most })
    }
}
