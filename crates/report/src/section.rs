use mailrun_text::table::Table;

#[derive(Clone, Debug)]
pub(crate) struct Section {
    /// A title of one to three words.
    pub(crate) title: &'static str,
    pub(crate) note: Option<String>,
    pub(crate) body: SectionBody,
}

impl Section {
    /// Returns a section of figures, or `None` if the table has no rows.
    pub(crate) fn figures(title: &'static str, note: Option<String>, table: Table) -> Option<Self> {
        (!table.is_empty()).then_some(Self { title, note, body: SectionBody::Figures(table) })
    }
}

#[derive(Clone, Debug)]
pub(crate) enum SectionBody {
    Figures(Table),
    Facts(Vec<(&'static str, String)>),
}
