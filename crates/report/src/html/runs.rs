use mailrun_measurement::record::Record;

#[derive(Clone, Copy)]
pub(super) struct PageRuns<'a> {
    pub(super) record: &'a Record,
    pub(super) baseline: Option<&'a Record>,
}

impl<'a> PageRuns<'a> {
    /// Applies `find` to the run and to the baseline. `None` if `find` returns `None` for the run.
    pub(super) fn both<T>(self, find: impl Fn(&'a Record) -> Option<T>) -> Option<(T, Option<T>)> {
        find(self.record).map(|own| (own, self.baseline.and_then(find)))
    }
}

pub(super) struct PagePart {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    pub(super) body: String,
}
