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

impl Section {
    /// A section of figures; `None` if there are none.
    pub(crate) fn figures(title: &'static str, note: Option<String>, table: Table) -> Option<Self> {
        (!table.is_empty()).then_some(Self { title, note, body: SectionBody::Figures(table) })
    }
}

/// Contents of a section.
#[derive(Clone, Debug)]
pub(crate) enum SectionBody {
    /// Figures.
    Figures(Table),
    /// Names, each with a text.
    Facts(Vec<(&'static str, String)>),
}
