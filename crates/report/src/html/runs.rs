//! The run of a page, the run that it is compared with, and a part of the page.
use mailrun_journey::record::Record;

/// The run, and its baseline.
#[derive(Clone, Copy)]
pub(super) struct PageRuns<'a> {
    /// The run that the page is about.
    pub(super) record: &'a Record,
    /// The run that it is compared with.
    pub(super) baseline: Option<&'a Record>,
}

impl<'a> PageRuns<'a> {
    /// Results of a function for the run and for the baseline; `None` if the run has none.
    pub(super) fn both<T>(self, find: impl Fn(&'a Record) -> Option<T>) -> Option<(T, Option<T>)> {
        find(self.record).map(|own| (own, self.baseline.and_then(find)))
    }
}

/// A part of the page with a title.
pub(super) struct PagePart {
    /// Anchor of the part.
    pub(super) id: &'static str,
    /// Title of the part.
    pub(super) title: &'static str,
    /// Contents in HTML.
    pub(super) body: String,
}
