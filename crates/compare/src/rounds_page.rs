//! The page of a comparison of contestants: their figures, the rounds that did not count, and a sentence for each
//! verdict.
use crate::finding::MetricVerdict;
use crate::round_comparison::{ContestantComparison, PairedMetric, RoundComparison};
use crate::stored_runs::ComparisonOutcome;
use mailrun_measurement::record::Outcome;
use mailrun_report::comparison::{ComparedFigure, ComparedSide, ComparisonPage, percent};
use mailrun_text::numbers::{count, counted, figure, memory, octets, seconds};
use mailrun_text::table::plain;

const METHOD: [&str; 4] = [
    "A round is one run of each contestant, in blocks of ABBA BAAB, so that a host that drifts favours nobody; the first block \
     does not count.",
    "Ratio: median of the averages of all pairs of rounds, of logarithms (Hodges and Lehmann).",
    "Interval: inverted signed-rank test (Wilcoxon).",
    "Verdict: signs of whole rounds flipped, signed ranks, the greatest of all metrics (max-T; Westfall and Young): 5 % \
     false alarms.",
];

impl RoundComparison {
    /// Returns the comparison as a page. With a `limit`, which is the value of `--fail-on-regression`, the page also
    /// says whether a figure is worse by at least this share.
    pub fn page(&self, limit: Option<f64>) -> ComparisonPage {
        let names = std::iter::once(&self.reference).chain(self.comparisons.iter().map(|one| &one.contestant));
        let figures = self.comparisons.iter().enumerate().flat_map(|(place, one)| {
            let rows = one.metrics.iter();
            rows.map(move |row| self.shown(place + 1, one, row))
        });
        ComparisonPage {
            title: self.title(),
            outcome: limit.map(|limit| self.judged(limit)),
            is_paired: true,
            margin: self.margin,
            sides: names.map(|name| self.side(name)).collect(),
            figures: figures.collect(),
            refused: self.failures().collect(),
            remarks: self.remarks(),
            method: METHOD.map(str::to_owned).to_vec(),
        }
    }

    fn title(&self) -> String {
        let load = &self.load;
        if self.reference.is_empty() {
            return "No contestant could be run.".to_owned();
        }
        let others: Vec<&str> = self.comparisons.iter().map(|one| one.contestant.as_str()).collect();
        let names = match others.as_slice() {
            [] => self.reference.clone(),
            others => format!("{} against {}", others.join(", "), self.reference),
        };
        let sent = format!(
            " of {} of {} over {}",
            counted(load.messages, "message"),
            octets(load.message_bytes),
            counted(load.sessions.into(), "session")
        );
        plain(&format!(
            "{names}: {}{}, in {}{}",
            counted(self.course.rounds as u64, "round"),
            // In a comparison of a scenario, `messages` is 0, because the scenario defines its own load.
            if load.messages > 0 { &sent } else { "" },
            seconds(self.course.elapsed_s),
            self.course.keep_awake.map(|state| format!(", {}", state.words())).unwrap_or_default(),
        ))
    }

    fn side(&self, name: &str) -> ComparedSide {
        let row = self.contestants.iter().find(|contestant| contestant.name == name);
        let facts = row.map(|row| ("command", row.description.clone()));
        ComparedSide { name: name.to_owned(), facts: facts.into_iter().collect(), runs: Vec::new() }
    }

    fn values(&self, name: &str, metric: &str, rounds: usize) -> Vec<f64> {
        let row = self.contestants.iter().find(|contestant| contestant.name == name);
        let values = row.and_then(|row| row.values.get(metric));
        values.map(|values| values.iter().copied().take(rounds).collect()).unwrap_or_default()
    }

    fn shown(&self, side: usize, one: &ContestantComparison, row: &PairedMetric) -> ComparedFigure {
        ComparedFigure {
            name: row.name.clone(),
            side,
            higher_is_better: row.higher_is_better,
            reference_values: self.values(&self.reference, &row.name, one.rounds),
            values: self.values(&one.contestant, &row.name, one.rounds),
            reference_median: row.against_median,
            median: row.median,
            ratio: row.ratio,
            interval: row.interval,
            verdict: row.finding.verdict,
            is_beyond_margin: row.is_beyond_margin,
        }
    }

    fn judged(&self, limit: f64) -> (Outcome, String) {
        let share = percent(limit);
        match self.outcome(limit) {
            ComparisonOutcome::Regression => (Outcome::Fail, format!("a figure is worse by {share} or more")),
            ComparisonOutcome::NoRegression => (Outcome::Pass, format!("no figure is worse by {share} or more")),
            ComparisonOutcome::MetricMissing => {
                let missing: Vec<String> = self.missing().collect();
                let reason = format!(
                    "missing, 0 or beyond all times in some rounds, and in none of {}: {}",
                    self.reference,
                    missing.join("; ")
                );
                (Outcome::Fail, reason)
            }
            ComparisonOutcome::RunFailed => (Outcome::Inconclusive, "a contestant was given up".to_owned()),
            ComparisonOutcome::MailLost | ComparisonOutcome::Undecided => {
                (Outcome::Inconclusive, format!("a figure may be worse by {share} or more: make more rounds"))
            }
        }
    }

    /// Returns the remarks below the figures: what was not compared, peak memory, how the rounds went, and one sentence
    /// with the verdict on each contestant.
    fn remarks(&self) -> Vec<String> {
        let mut lines = self.results_alone();
        for one in self.comparisons.iter().filter(|one| !one.not_compared.is_empty()) {
            let names = one.not_compared.join(", ");
            let reason = "missing, 0 or beyond all times in some rounds";
            lines.push(format!("{}: not compared, as it is {reason}: {names}.", one.contestant));
        }
        let peaks = self.contestants.iter().filter_map(|one| Some((one, one.max_rss_bytes?)));
        let peaks: Vec<String> = peaks.map(|(one, bytes)| format!("{} {}", one.name, memory(bytes))).collect();
        if !peaks.is_empty() {
            lines.push(format!("Peak memory: {}.", peaks.join(", ")));
        }
        lines.extend(self.course_lines());
        if self.comparisons.len() > 1 {
            lines.push(format!(
                "The risk of a false alarm, 5 %, is shared by {} comparisons: intervals of {:.1} %.",
                self.comparisons.len(),
                self.confidence_percent
            ));
        }
        lines.extend(self.counts.iter().map(|row| row.text(&self.reference)));
        lines.extend(self.comparisons.iter().map(|one| self.conclusion(one)));
        lines.extend(self.course.is_self.then(|| self.noise_floor()));
        lines.iter().map(|line| plain(line)).collect()
    }

    /// Returns the medians of each contestant if there is no comparison, for example because only one contestant has
    /// runs.
    fn results_alone(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for contestant in self.contestants.iter().filter(|_| self.comparisons.is_empty()) {
            let medians = contestant.medians().map(|(name, value)| format!("{name} {}", figure(value)));
            let medians: Vec<String> = medians.collect();
            if !medians.is_empty() {
                let runs = counted(contestant.rounds as u64, "run");
                lines.push(format!("{} alone, median of {runs}: {}", contestant.name, medians.join("; ")));
            }
        }
        lines
    }

    /// Returns lines about rounds that did not go as planned, for example because they were repeated.
    fn course_lines(&self) -> Vec<String> {
        let course = &self.course;
        let mut lines = Vec::new();
        if course.invalid_rounds > 0 {
            lines.push(format!(
                "{} did not count and {} repeated: {}",
                counted(course.invalid_rounds as u64, "round"),
                if course.invalid_rounds == 1 { "was" } else { "were" },
                course.invalid.join("; ")
            ));
        }
        lines.extend(course.notes.iter().cloned());
        let progress = format!("after {} of {}", course.rounds, counted(course.planned_rounds as u64, "round"));
        if course.interrupted {
            lines.push(format!("Interrupted {progress}."));
        } else if course.is_budget_spent {
            lines.push(format!("The time was over {progress}: give more with --budget."));
        }
        lines
    }

    fn conclusion(&self, one: &ContestantComparison) -> String {
        let Some(row) = one.metrics.first() else { return format!("{}: nothing to compare.", one.contestant) };
        let reference = &self.reference;
        let name = &one.contestant;
        let interval = row.interval.map_or_else(String::new, |(lower, upper)| format!(" ({lower:.3} to {upper:.3})"));
        let what = match row.name.split_once(", ") {
            Some((stage, "msg/s")) if stage != "rate" => format!("{stage} rate"),
            Some((figure, _)) => figure.to_owned(),
            None => row.name.clone(),
        };
        match row.finding.verdict {
            MetricVerdict::Better => {
                format!("{name} is faster than {reference}: {:.3} times its {what}{interval}.", row.ratio)
            }
            MetricVerdict::Worse => {
                format!("{name} is slower than {reference}: {:.3} times its {what}{interval}.", row.ratio)
            }
            MetricVerdict::Same => format!("{name} is as fast as {reference} within {}.", percent(self.margin)),
            MetricVerdict::Undecided { more_rounds } => {
                let more = count(more_rounds as u64);
                format!("{name} against {reference}: undecided; about {more} more rounds would decide the {what}.")
            }
            MetricVerdict::TooFew => {
                let rounds = counted(one.rounds as u64, "round");
                let min_rounds = self.min_rounds;
                format!("{name} against {reference}: {rounds}, too few for a verdict, which takes {min_rounds}.")
            }
        }
    }

    /// Returns a sentence with the smallest differences that a comparison with this many rounds can show.
    fn noise_floor(&self) -> String {
        let rows = self.comparisons.iter().flat_map(|one| &one.metrics);
        let floors = rows.filter_map(|row| Some(format!("{} {}", row.name, percent(row.resolution?))));
        let floors: Vec<String> = floors.collect();
        if floors.is_empty() {
            return "Too few rounds for the noise floor of this host.".to_owned();
        }
        format!("Noise floor of this host, the smallest difference that so many rounds show: {}.", floors.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use crate::round_comparison::RoundSamples;
    use crate::round_comparison::tests::{compare, contestant};
    use mailrun_measurement::record::{KeepAwake, Outcome};

    #[test]
    fn a_stranger_reads_who_is_faster() {
        let pair = [contestant("old", 40, 1000.0, 50.0), contestant("newer", 40, 2000.0, 50.0)];
        let page = compare(&pair).page(Some(0.05));
        assert_eq!(page.title, "newer against old: 40 rounds of 1,000 messages of 400 B over 10 sessions, in 97.00 s");
        assert_eq!(page.outcome.as_ref().map(|(outcome, _)| *outcome), Some(Outcome::Pass), "{page:?}");
        assert_eq!((page.sides.len(), page.figures.len(), page.figures[0].values.len()), (2, 2, 40));
        assert_eq!(page.verdict_text(&page.figures[0]), "better");
        assert_eq!(page.remarks[0], "Peak memory: old 4.0 MiB, newer 4.0 MiB.");
        let last = page.remarks.last().unwrap();
        assert!(last.starts_with("newer is faster than old: 2.0") || last.starts_with("newer is faster than old: 1.9"));
        assert!(last.contains(" times its rate ("), "{last}");
    }

    #[test]
    fn too_few_rounds_are_no_win() {
        let page = compare(&[contestant("a", 6, 1000.0, 50.0), contestant("bb", 6, 2000.0, 50.0)]).page(None);
        let last = page.remarks.last().unwrap();
        assert_eq!(last, "bb against a: 6 rounds, too few for a verdict, which takes 20.");
        assert!(page.figures.iter().all(|row| page.verdict_text(row) == "too few rounds"), "{page:?}");
    }

    #[test]
    fn failures_are_one_line_each_and_the_other_keeps_its_results() {
        let failed = RoundSamples {
            name: "b\u{1b}[31m".to_owned(),
            failure: Some("cannot start\nb".to_owned()),
            ..RoundSamples::default()
        };
        let page = compare(&[contestant("a", 1, 1000.0, 50.0), failed]).page(None);
        assert!(page.remarks[0].starts_with("a alone, median of 1 run: CPU, µs/msg "), "{page:?}");
        assert!(page.refused.len() == 1 && page.refused[0].contains(": cannot start"), "{page:?}");
        assert!(!page.refused[0].contains(['\u{1b}', '\n']), "{page:?}");
    }

    #[test]
    fn a_contestant_that_was_given_up_passes_nothing() {
        let failed =
            RoundSamples { name: "c".to_owned(), failure: Some("cannot start".to_owned()), ..RoundSamples::default() };
        let both = [contestant("a", 40, 1000.0, 50.0), contestant("b", 40, 1000.0, 50.0)];
        let outcome = |contestants: &[RoundSamples]| compare(contestants).page(Some(0.5)).outcome.unwrap().0;
        assert_eq!(outcome(&both), Outcome::Pass);
        let [a, b] = both;
        assert_eq!(outcome(&[a, b, failed]), Outcome::Inconclusive);
    }

    #[test]
    fn the_noise_floor_and_the_course_are_said() {
        let mut comparison = compare(&[contestant("a", 40, 1000.0, 50.0), contestant("a again", 40, 1000.0, 50.0)]);
        comparison.course.is_self = true;
        comparison.course.interrupted = true;
        comparison.course.invalid_rounds = 2;
        comparison.course.invalid = vec!["a: it ended with exit status: 1".to_owned()];
        comparison.course.keep_awake = Some(KeepAwake::On);
        let page = comparison.page(None);
        assert!(page.title.ends_with(", in 97.00 s, processors kept awake"), "{}", page.title);
        let remarks = page.remarks;
        let has = |line: &str| remarks.iter().any(|remark| remark == line);
        assert!(has("2 rounds did not count and were repeated: a: it ended with exit status: 1"), "{remarks:?}");
        assert!(has("Interrupted after 40 of 40 rounds."), "{remarks:?}");
        assert!(remarks.last().unwrap().starts_with("Noise floor of this host"), "{remarks:?}");
    }
}
