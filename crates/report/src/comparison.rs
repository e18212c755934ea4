//! Results of comparing runs, from which the HTML page and the text table are written. The compared runs are either
//! stored runs, or runs of several programs that were made in rounds, with one run of each program per round.
use crate::figures::final_stage;
use crate::seconds::step;
use mailrun_measurement::record::{Outcome, Record, SeriesRow};
use mailrun_measurement::{Latencies, Stage};
use mailrun_text::numbers::{count, counted};
use mailrun_text::table::{Align, Cell, Table, right};

/// If the estimated number of further runs is larger than this, the report says only `over 1,000`, because such an
/// estimate is too rough to be useful.
const MAX_MORE: usize = 1_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricVerdict {
    Better,
    Worse,
    /// The difference is not larger than the margin, so the two sides count as equal.
    Same,
    Undecided {
        /// Estimated number of further rounds, or of further runs per side, that would decide whether the sides differ.
        more_rounds: usize,
    },
    TooFew,
}

impl MetricVerdict {
    /// Returns the verdict as a word, such as `better`. If there are too few values, returns `too_few`, a text from the
    /// caller, because only the caller knows whether runs or rounds are missing.
    pub fn word(self, too_few: &'static str) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Same => "same",
            Self::Undecided { .. } => "undecided",
            Self::TooFew => too_few,
        }
    }

    pub fn more_rounds(self) -> Option<usize> {
        match self {
            Self::Undecided { more_rounds } => Some(more_rounds),
            _ => None,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct ComparisonPage {
    pub title: String,
    /// Outcome for `--fail-on-regression`, and the reason. The outcome depends on whether a figure got worse by at
    /// least the option's limit. `None` without this option.
    pub outcome: Option<(Outcome, String)>,
    /// Set if the runs were made in rounds, with one run of each side per round. Figures are then compared within each
    /// round.
    pub is_paired: bool,
    /// Relative difference up to which two figures count as the same. For example, 0.02 means 2 %.
    pub margin: f64,
    /// The compared sides, of which the first is the reference for all others.
    pub sides: Vec<ComparedSide>,
    /// Figures of every side except the first, each compared with the same figure of the first side.
    pub figures: Vec<ComparedFigure>,
    /// One line for each run that could not be read or compared, with the reason.
    pub refused: Vec<String>,
    /// Remarks that the reader must know, for example that some runs do not count.
    pub remarks: Vec<String>,
    /// Sentences that describe the statistical method, for the foot of the page.
    pub method: Vec<String>,
}

#[derive(Clone, Debug, Default)]
pub struct ComparedSide {
    pub name: String,
    /// Facts about this side for the report, such as the command and the host, each with a name and a value.
    pub facts: Vec<(&'static str, String)>,
    pub runs: Vec<RunCurves>,
}

#[derive(Clone, Debug, Default)]
pub struct RunCurves {
    /// Latencies up to the last stage that messages reached, or `None` if the record has no histogram of them.
    pub latencies: Option<Latencies>,
    /// Each second of the run, with the number of messages per second that reached the last stage. Empty if the record
    /// has no figures by second.
    pub rates: Vec<(u64, f64)>,
}

#[derive(Clone, Debug)]
pub struct ComparedFigure {
    /// Name of the figure, including its unit.
    pub name: String,
    pub side: usize,
    pub higher_is_better: bool,
    /// Values of the figure for the first side, one for each run or, in a paired comparison, for each round.
    pub reference_values: Vec<f64>,
    pub values: Vec<f64>,
    pub reference_median: f64,
    pub median: f64,
    /// Median of this side divided by the median of the reference. A ratio above 1 means that this side has the larger
    /// value.
    pub ratio: f64,
    /// Confidence interval of the ratio, or `None` if there are too few runs.
    pub interval: Option<(f64, f64)>,
    pub verdict: MetricVerdict,
    /// Set if the whole confidence interval is outside the margin, so the difference very probably exceeds the margin.
    pub is_beyond_margin: bool,
}

impl RunCurves {
    pub fn of(record: &Record) -> Self {
        let Some(stage) = final_stage(record) else { return Self::default() };
        let reached: fn(&SeriesRow) -> u64 = match stage.name {
            Stage::Accepted => |row| row.accepted,
            Stage::Sent => |row| row.sent,
            _ => |row| row.delivered,
        };
        let step = step(&record.series) as f64;
        let rate = |row: &SeriesRow| (row.second, reached(row) as f64 / step);
        Self {
            latencies: stage.histogram.as_deref().and_then(Latencies::decode).filter(|times| times.count() > 0),
            rates: record.series.iter().map(rate).collect(),
        }
    }
}

impl ComparisonPage {
    pub fn noun(&self) -> &'static str {
        if self.is_paired { "round" } else { "run" }
    }

    pub fn verdict_text(&self, figure: &ComparedFigure) -> String {
        let within = || percent(self.margin);
        let aside = if self.is_paired { "" } else { " a side" };
        match figure.verdict {
            MetricVerdict::Better if figure.is_beyond_margin => "better".to_owned(),
            MetricVerdict::Worse if figure.is_beyond_margin => "worse".to_owned(),
            MetricVerdict::Better => format!("better, perhaps within {}", within()),
            MetricVerdict::Worse => format!("worse, perhaps within {}", within()),
            MetricVerdict::Same => format!("same, within {}", within()),
            MetricVerdict::Undecided { more_rounds } if more_rounds > MAX_MORE => {
                format!("undecided: over {} more {}s{aside}", count(MAX_MORE as u64), self.noun())
            }
            MetricVerdict::Undecided { more_rounds } => {
                format!("undecided: about {more_rounds} more {}s{aside}", self.noun())
            }
            MetricVerdict::TooFew => format!("too few {}s", self.noun()),
        }
    }

    /// Returns true if there is at least one figure, and no figure is undecided or has too few runs.
    pub fn is_decided(&self) -> bool {
        let is_open =
            |figure: &ComparedFigure| matches!(figure.verdict, MetricVerdict::Undecided { .. } | MetricVerdict::TooFew);
        !self.figures.is_empty() && !self.figures.iter().any(is_open)
    }

    pub fn summary(&self) -> String {
        let kinds = ["worse", "better", "the same", "undecided", "with too few runs"];
        let number = |name: &str| self.figures.iter().filter(|figure| kind(figure.verdict) == name).count();
        let some = kinds.into_iter().map(|name| (number(name), name)).filter(|(count, _)| *count > 0);
        let parts: Vec<String> = some.map(|(count, name)| format!("{count} {name}")).collect();
        match parts.as_slice() {
            [] => "Nothing could be compared.".to_owned(),
            parts => format!("{}: {}.", counted(self.figures.len() as u64, "figure"), parts.join(", ")),
        }
    }

    /// Returns a table with a row for each compared figure. The column with the names of the sides is left out if there
    /// is only one side besides the reference.
    pub fn table(&self) -> Table {
        let columns = [
            ("side", Align::Left),
            ("metric", Align::Left),
            right("against"),
            right(if self.is_paired { "this" } else { "runs" }),
            right("ratio"),
            right("95 % interval"),
            ("verdict", Align::Left),
        ];
        let has_sides = self.sides.len() > 2;
        let mut table = Table::new(columns.into_iter().skip(usize::from(!has_sides)));
        for row in &self.figures {
            let side = self.sides.get(row.side).map_or_else(String::new, |side| side.name.clone());
            let cells = vec![
                Cell::Text(side),
                Cell::Text(row.name.clone()),
                Cell::Number(row.reference_median, mailrun_text::numbers::figure(row.reference_median)),
                Cell::Number(row.median, mailrun_text::numbers::figure(row.median)),
                Cell::Number(row.ratio, ratio_text(row.ratio)),
                Cell::Text(interval_text(row.interval)),
                Cell::Text(self.verdict_text(row)),
            ];
            table.row(cells.into_iter().skip(usize::from(!has_sides)).collect());
        }
        table
    }
}

fn kind(verdict: MetricVerdict) -> &'static str {
    match verdict {
        MetricVerdict::Worse => "worse",
        MetricVerdict::Better => "better",
        MetricVerdict::Same => "the same",
        MetricVerdict::Undecided { .. } => "undecided",
        MetricVerdict::TooFew => "with too few runs",
    }
}

fn ratio_text(ratio: f64) -> String {
    format!("{ratio:.3}")
}

fn interval_text(interval: Option<(f64, f64)>) -> String {
    interval.map_or_else(|| "-".to_owned(), |(lower, upper)| format!("{lower:.3} to {upper:.3}"))
}

pub fn percent(share: f64) -> String {
    format!("{} %", (share * 1e4).round() / 1e2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample_comparison;

    #[test]
    fn verdicts_are_words_with_what_they_need() {
        let page = sample_comparison::of_runs();
        let texts: Vec<String> = page.figures.iter().map(|figure| page.verdict_text(figure)).collect();
        let expected = [
            "worse",
            "worse, perhaps within 2 %",
            "same, within 2 %",
            "undecided: about 18 more runs a side",
            "better",
        ];
        assert_eq!(texts, expected);
        assert_eq!(page.summary(), "5 figures: 2 worse, 1 better, 1 the same, 1 undecided.");
        let paired = ComparisonPage { is_paired: true, ..page };
        assert_eq!(paired.verdict_text(&paired.figures[3]), "undecided: about 18 more rounds");
        assert_eq!([percent(0.05), percent(0.025)], ["5 %", "2.5 %"]);
    }

    #[test]
    fn a_third_side_has_its_name_in_the_table() {
        let two = sample_comparison::of_runs();
        assert!(!two.table().terminal(120).contains("side  "));
        let three = sample_comparison::of_rounds();
        assert!(three.table().terminal(140).lines().any(|line| line.trim_start().starts_with("smtp-source")));
    }

    #[test]
    fn the_curves_of_a_run_are_those_of_its_last_stage() {
        let run = RunCurves::of(&crate::sample_runs::passed());
        assert!(run.latencies.is_some_and(|times| times.count() > 1_000) && run.rates.len() > 50);
        assert!(RunCurves::of(&Record::empty()).latencies.is_none());
    }
}
