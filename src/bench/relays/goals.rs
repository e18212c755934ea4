//! Targets of a scenario: what is wanted, what was measured, and PASS or MISSED.
use super::sheet::{self, Spread};
use crate::bench::tables::Sheet;
use crate::report::table::{Align, Table};

/// A target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Goal {
    what: String,
    wanted: String,
    found: Found,
}

/// How it stands with a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It was reached, by this.
    Pass(String),
    /// It was not.
    Missed(String),
    /// Nobody knows; why.
    Unknown(String),
}

impl Goal {
    pub(super) fn new(what: impl Into<String>, wanted: impl Into<String>, found: Found) -> Self {
        Self { what: what.into(), wanted: wanted.into(), found }
    }

    /// A figure of several rounds whose middle is to stay below a limit.
    pub(super) fn median_below(what: impl Into<String>, values: Spread, limit: f64, show: fn(f64) -> String) -> Self {
        let found = if values.is_median_below(limit) { Found::Pass } else { Found::Missed };
        Self::new(what, format!("< {}", show(limit)), found(values.shown(show)))
    }

    /// That something is so.
    pub(super) fn that(what: impl Into<String>, is_so: bool, found: String, wanted: impl Into<String>) -> Self {
        Self::new(what, wanted, if is_so { Found::Pass(found) } else { Found::Missed(found) })
    }

    fn row(&self) -> Vec<String> {
        let (measured, verdict) = match &self.found {
            Found::Pass(measured) => (measured, "PASS"),
            Found::Missed(measured) => (measured, "MISSED"),
            Found::Unknown(why) => (why, "NOT MEASURED"),
        };
        vec![self.what.clone(), self.wanted.clone(), measured.clone(), verdict.to_owned()]
    }
}

/// A scenario's sheet: its tables, the targets below them, and what must be known besides. Good if all targets are
/// reached.
pub(super) fn sheet(title: &str, mut tables: Vec<Table>, goals: &[Goal], remarks: Vec<String>) -> Sheet {
    let columns = ["target", "wanted", "measured", "verdict"].map(|title| (title, Align::Left));
    let mut table = Table::new(columns);
    goals.iter().for_each(|goal| table.row(goal.row()));
    tables.push(table);
    let is_good = goals.iter().all(|goal| matches!(goal.found, Found::Pass(_)));
    Sheet { text: sheet::laid_out(title, &tables, remarks), is_good }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::numbers::latency;

    fn text(goals: &[Goal]) -> (String, bool) {
        let sheet = sheet("relay-x: what", Vec::new(), goals, vec!["A remark.".to_owned()]);
        (sheet.text, sheet.is_good)
    }

    #[test]
    fn each_target_has_its_verdict_and_one_missed_is_enough() {
        let p99 = |value| Goal::median_below("accept p99", Spread::of([value].into_iter()), 20.0, latency);
        let (passed, missed) = (p99(4.0), p99(20.0));
        let (all, is_good) = text(std::slice::from_ref(&passed));
        assert!(is_good && all.contains("< 20.00 ms") && all.contains("4.00 ms") && all.contains("PASS"), "{all}");
        let (all, is_good) = text(&[passed.clone(), missed]);
        assert!(!is_good && all.contains("MISSED") && all.ends_with("A remark."), "{all}");
        let unknown = Goal::new("drain", "all", Found::Unknown("stopped before".to_owned()));
        let (all, is_good) = text(&[passed, unknown]);
        assert!(!is_good && all.contains("stopped before") && all.contains("NOT MEASURED"), "{all}");
    }
}
