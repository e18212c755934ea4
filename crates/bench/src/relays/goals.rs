//! Targets of a scenario. Each target has a wanted value, a measured value, and the verdict PASS, FAIL or INCONCLUSIVE.
use crate::engine::{Conclusion, Defects, MedianRange, TextReport};
use mailrun_text::numbers::counted;
use mailrun_text::table::{Align, Table};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Goal {
    what: String,
    wanted: String,
    result: GoalResult,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum GoalResult {
    /// The target was met, with this measured value.
    Pass(String),
    /// The target was missed, with this measured value.
    Missed(String),
    /// Mail is missing or was changed, so the run failed and its other figures do not count.
    Unaccounted(String),
    /// The target could not be judged. The string gives the reason, for example `stopped before` if the user stopped
    /// the scenario too early.
    Unknown(String),
}

impl Goal {
    pub(super) fn new(what: impl Into<String>, wanted: impl Into<String>, outcome: GoalResult) -> Self {
        Self { what: what.into(), wanted: wanted.into(), result: outcome }
    }

    /// Creates a target that is met if the median of several rounds is below a limit.
    pub(super) fn median_below(
        what: impl Into<String>,
        values: MedianRange,
        limit: f64,
        show: fn(f64) -> String,
    ) -> Self {
        let variant = if values.is_median_below(limit) { GoalResult::Pass } else { GoalResult::Missed };
        Self::new(what, format!("< {}", show(limit)), variant(values.render(show)))
    }

    pub(super) fn condition(what: impl Into<String>, is_so: bool, value: String, wanted: impl Into<String>) -> Self {
        Self::new(what, wanted, if is_so { GoalResult::Pass(value) } else { GoalResult::Missed(value) })
    }

    /// Creates a target that is met if all mail is accounted for. If this target is missed, the whole scenario has
    /// failed.
    pub(super) fn account(what: impl Into<String>, is_closed: bool, value: String, wanted: impl Into<String>) -> Self {
        Self::new(what, wanted, if is_closed { GoalResult::Pass(value) } else { GoalResult::Unaccounted(value) })
    }

    fn row(&self) -> Vec<String> {
        let (measured, verdict) = match &self.result {
            GoalResult::Pass(measured) => (measured, "PASS"),
            GoalResult::Missed(measured) | GoalResult::Unaccounted(measured) => (measured, "FAIL"),
            GoalResult::Unknown(reason) => (reason, "INCONCLUSIVE"),
        };
        vec![self.what.clone(), self.wanted.clone(), measured.clone(), verdict.to_owned()]
    }
}

/// Builds a scenario's report: its tables, the table of targets, and remarks. The scenario passes
/// if all targets are met and `defects` is empty.
pub(super) fn report(
    title: &str,
    mut tables: Vec<Table>,
    goals: &[Goal],
    mut defects: Defects,
    remarks: Vec<String>,
) -> TextReport {
    let columns = ["target", "wanted", "measured", "verdict"].map(|title| (title, Align::Wrapped));
    let mut table = Table::new(columns);
    goals.iter().for_each(|goal| table.row(goal.row()));
    tables.push(table);
    defects.extend(self::defects(goals));
    let pass = format!("all {} met", counted(goals.len() as u64, "target"));
    let conclusion = Conclusion::of(&defects, &pass, true);
    TextReport::new(title, tables, remarks, conclusion)
}

/// Returns the defects for the report's conclusion: targets that were missed, and targets that could not be judged.
pub(super) fn defects(goals: &[Goal]) -> Defects {
    let mut defects = Defects::default();
    for goal in goals {
        let Goal { what, wanted, result: outcome } = goal;
        match outcome {
            GoalResult::Pass(_) => {}
            GoalResult::Missed(value) => defects.missed.push(format!("{what}: wanted {wanted}, was {value}")),
            GoalResult::Unaccounted(value) => defects.failed.push(format!("{what}: wanted {wanted}, was {value}")),
            GoalResult::Unknown(reason) => defects.unobserved.push(format!("{what}: {reason}")),
        }
    }
    defects
}

#[cfg(test)]
mod tests {
    use super::*;
    use mailrun_text::numbers::latency;

    fn text(goals: &[Goal]) -> (String, bool) {
        let report = report("relay-x: what", Vec::new(), goals, Defects::default(), vec!["A remark.".to_owned()]);
        let is_good = report.is_good();
        (report.text, is_good)
    }

    #[test]
    fn each_target_has_its_verdict_and_one_missed_is_enough() {
        let p99 = |value| Goal::median_below("accept p99", MedianRange::of([value].into_iter()), 20.0, latency);
        let passed = p99(4.0);
        let missed = p99(20.0);
        let (all, is_good) = text(std::slice::from_ref(&passed));
        assert!(is_good && all.contains("< 20.00 ms") && all.contains("4.00 ms") && all.contains("PASS"), "{all}");
        let (all, is_good) = text(&[passed.clone(), missed]);
        assert!(!is_good && all.contains("FAIL") && all.ends_with("A remark."), "{all}");
        let unknown = Goal::new("drain", "all", GoalResult::Unknown("stopped before".to_owned()));
        let (all, is_good) = text(&[passed, unknown]);
        assert!(!is_good && all.contains("stopped before") && all.contains("INCONCLUSIVE"), "{all}");
    }
}
