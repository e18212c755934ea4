//! A section of a report: its title, a note, and figures or facts.
use super::table::Table;

/// A section with a title.
#[derive(Clone, Debug)]
pub(crate) struct Section {
    /// One to three words.
    pub(crate) title: &'static str,
    /// A note that the reader needs to understand it.
    pub(crate) note: Option<String>,
    /// Contents.
    pub(crate) body: SectionBody,
}

/// Contents of a section.
#[derive(Clone, Debug)]
pub(crate) enum SectionBody {
    /// Figures.
    Figures(Table),
    /// Names, each with a text.
    Facts(Vec<(&'static str, String)>),
}
