use mailrun_text::numbers::figure;
use mailrun_text::printable::printable;
use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum ExactChange {
    /// All runs of the contestant and of the reference have the same count, for example of syncs per message.
    #[serde(rename = "none")]
    None,
    /// All runs of the contestant have one count, and all runs of the reference another.
    #[serde(rename = "changed")]
    Changed,
    /// Runs of the same side have different counts, so the count is not exact.
    #[serde(rename = "not exact")]
    NotExact,
}

/// Comparison of an exact count, such as system calls or syncs per message, between a contestant and the reference.
/// Exact counts have no random part, so any difference is a change.
#[derive(Clone, Debug, Serialize)]
pub struct ExactRow {
    pub contestant: String,
    pub name: String,
    pub against_values: Vec<f64>,
    pub values: Vec<f64>,
    pub change: ExactChange,
}

impl ExactRow {
    /// Compares the counts of the contestant's and the reference's runs. Returns `None` if either side has no runs.
    pub fn new(contestant: &str, name: &str, against_values: Vec<f64>, values: Vec<f64>) -> Option<Self> {
        let (against, own) = (*against_values.first()?, *values.first()?);
        let is_exact = against_values.iter().all(|count| *count == against) && values.iter().all(|count| *count == own);
        let change = if !is_exact {
            ExactChange::NotExact
        } else if against == own {
            ExactChange::None
        } else {
            ExactChange::Changed
        };
        let contestant = printable(contestant).into_owned();
        Some(Self { contestant, name: name.to_owned(), against_values, values, change })
    }

    pub(crate) fn text(&self, reference: &str) -> String {
        let list = |values: &[f64]| values.iter().map(|value| figure(*value)).collect::<Vec<_>>().join(", ");
        let Self { contestant, name, change, .. } = self;
        let first = |values: &[f64]| values.first().map(|value| figure(*value)).unwrap_or_default();
        match change {
            ExactChange::None => format!("{name}: {contestant} {}, as {reference}.", first(&self.values)),
            ExactChange::Changed => {
                let against = first(&self.against_values);
                format!("{name}: {contestant} {}, {reference} {against}: changed.", first(&self.values))
            }
            ExactChange::NotExact => {
                let against = list(&self.against_values);
                format!("{name}: {contestant} {}; {reference} {against}: not exact.", list(&self.values))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_the_same_or_changed_or_none() {
        let row = |against: &[f64], values: &[f64]| {
            ExactRow::new("b", "system calls a message", against.into(), values.into())
        };
        let text = |against: &[f64], values: &[f64]| row(against, values).map(|row| row.text("a"));
        assert_eq!(text(&[8.0, 8.0], &[8.0, 8.0]).as_deref(), Some("system calls a message: b 8.000, as a."));
        assert_eq!(
            text(&[8.0, 8.0], &[9.5, 9.5]).as_deref(),
            Some("system calls a message: b 9.500, a 8.000: changed.")
        );
        assert_eq!(
            text(&[8.0, 8.5], &[9.5, 9.5]).as_deref(),
            Some("system calls a message: b 9.500, 9.500; a 8.000, 8.500: not exact.")
        );
        assert_eq!(text(&[], &[1.0]), None);
        assert_eq!(row(&[f64::NAN], &[1.0]).map(|row| row.change), Some(ExactChange::NotExact));
    }
}
