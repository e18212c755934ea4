//! The verdict of a scenario with several runs. It uses the same words as the verdict of a single run, and ranks
//! defects in the same order. The most serious defect decides.
use mailrun_measurement::record::Outcome;
use mailrun_report::{TextStyle, outcome_word};

/// Defects of a scenario, from the most to the least serious. The first list that is not empty decides the
/// outcome.
#[derive(Clone, Debug, Default)]
pub(crate) struct Defects {
    /// Runs that failed or did not do all of their work.
    pub(crate) failed: Vec<String>,
    /// Runs in which the generator, the sink or the host was the bottleneck.
    pub(crate) invalid: Vec<String>,
    /// Targets and thresholds that were missed.
    pub(crate) missed: Vec<String>,
    /// Mail that was accepted but not delivered. Such mail may be lost, or may be in a queue that cannot be read, so a
    /// scenario with such mail never counts as a success.
    pub(crate) undelivered: Vec<String>,
    /// Thresholds that could not be evaluated, and runs that are missing because the user stopped.
    pub(crate) unobserved: Vec<String>,
}

impl Defects {
    pub(crate) fn extend(&mut self, more: Self) {
        self.failed.extend(more.failed);
        self.invalid.extend(more.invalid);
        self.missed.extend(more.missed);
        self.undelivered.extend(more.undelivered);
        self.unobserved.extend(more.unobserved);
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conclusion {
    pub outcome: Outcome,
    why: String,
    /// Set if the program must report failure even when the outcome is only invalid or inconclusive. The reason is that
    /// the user asked for targets or thresholds, or that mail was not delivered.
    pub is_strict: bool,
    pub is_interrupted: bool,
}

impl Conclusion {
    /// Returns the outcome of the most serious defect, or PASS with the reason `pass` if there are no defects. The
    /// caller must set `is_strict` if the user asked for targets or thresholds.
    pub(crate) fn of(defects: &Defects, pass: &str, is_strict: bool) -> Self {
        let lists = [
            (&defects.failed, Outcome::Fail),
            (&defects.invalid, Outcome::Invalid),
            (&defects.missed, Outcome::Fail),
            (&defects.undelivered, Outcome::Inconclusive),
            (&defects.unobserved, Outcome::Inconclusive),
        ];
        let first = lists.into_iter().find_map(|(list, outcome)| Some((outcome, list.first()?, list.len() - 1)));
        let (outcome, why) = match first {
            None => (Outcome::Pass, pass.to_owned()),
            Some((outcome, text, 0)) => (outcome, text.clone()),
            Some((outcome, text, more)) => (outcome, format!("{} (and {more} more)", text.trim_end_matches('.'))),
        };
        Self { outcome, why, is_strict: is_strict || !defects.undelivered.is_empty(), is_interrupted: false }
    }

    /// Restores the conclusion of an earlier comparison from the outcome and the reason in its record.
    pub(super) fn stored(outcome: Outcome, why: String) -> Self {
        Self { outcome, why, is_strict: false, is_interrupted: false }
    }

    pub(super) fn why(&self) -> &str {
        &self.why
    }

    /// Returns the last line of the scenario's report, such as `PASS all 3 targets met`.
    pub(crate) fn line(&self) -> String {
        format!("{} {}", outcome_word(self.outcome, TextStyle::Plain), self.why)
    }

    /// Returns the last line of the report for the screen, split by `wrap` and coloured according to `style`.
    pub(super) fn lines(&self, style: TextStyle, wrap: impl Fn(&str) -> Vec<String>) -> Vec<String> {
        let mut lines = wrap(&self.line());
        let plain = outcome_word(self.outcome, TextStyle::Plain);
        let painted = outcome_word(self.outcome, style);
        // Add colour only after wrapping, because wrapping would count the escape sequences as columns.
        if let Some(first) = lines.first_mut() {
            *first = first.replacen(&plain, &painted, 1);
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_weightiest_decides_as_it_does_for_a_run() {
        let texts = |text: &str| vec![text.to_owned()];
        let mut defects = Defects::default();
        let outcome = |defects: &Defects| Conclusion::of(defects, "all well", true).line();
        assert_eq!(outcome(&defects), "PASS all well");
        defects.unobserved = texts("stopped");
        assert_eq!(outcome(&defects), "INCONCLUSIVE stopped");
        assert!(!Conclusion::of(&defects, "all well", false).is_strict);
        defects.undelivered = texts("24 not delivered");
        assert_eq!(outcome(&defects), "INCONCLUSIVE 24 not delivered");
        assert!(Conclusion::of(&defects, "all well", false).is_strict, "whatever was asked for");
        defects.missed = vec!["p99.".to_owned(), "rate.".to_owned()];
        assert_eq!(outcome(&defects), "FAIL p99 (and 1 more)");
        defects.invalid = texts("busy");
        assert_eq!(outcome(&defects), "INVALID busy");
        defects.failed = texts("lost 1");
        assert_eq!(outcome(&defects), "FAIL lost 1");
    }
}
