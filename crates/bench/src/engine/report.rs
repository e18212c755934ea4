//! Writes the report of a comparison: columns of medians and spreads, ratios between runs of the
//! same round, a line for each run that went wrong, and the conclusion.
use super::conclusion::{Conclusion, Defects};
use super::ratio_verdict::{RatioColumn, RatioVerdict};
use super::runner::{ComparedRun, ComparisonResults, Contestant};
use super::spread::{MedianRange, shown};
use super::text_report::TextReport;
use mailrun_text::numbers::counted;
use mailrun_text::table::{Align, Table, plain};
use std::rc::Rc;

type CellText<'a, C, M> = Box<dyn Fn(&Contestant<C, M>) -> String + 'a>;

type RunText<'a, M> = Box<dyn Fn(&M) -> String + 'a>;

/// Column of a table that has one row for each compared case, such as a relay.
pub(crate) struct TableColumn<'a, C, M> {
    title: &'static str,
    align: Align,
    cell: CellText<'a, C, M>,
    /// Makes the cell for a single run in `runs_table`, which has a row for each run. `None` leaves the column out of
    /// that table.
    run: Option<RunText<'a, M>>,
}

impl<'a, C, M> TableColumn<'a, C, M> {
    /// Makes a left-aligned column of text. `cell` returns the text for each case.
    pub(crate) fn words(title: &'static str, cell: impl Fn(&Contestant<C, M>) -> String + 'a) -> Self {
        Self { title, align: Align::Left, cell: Box::new(cell), run: None }
    }

    /// Makes a right-aligned column of figures. `cell` returns the figure for each case.
    pub(crate) fn figure(title: &'static str, cell: impl Fn(&Contestant<C, M>) -> String + 'a) -> Self {
        Self { title, align: Align::Right, cell: Box::new(cell), run: None }
    }

    pub(crate) fn median(title: &'static str, value: impl Fn(&M) -> Option<f64> + 'a, show: fn(f64) -> String) -> Self {
        Self::of_runs(title, value, show, MedianRange::median)
    }

    /// Makes a column with the median over the case's runs, followed by the least and the greatest
    /// value.
    pub(crate) fn spread(title: &'static str, value: impl Fn(&M) -> Option<f64> + 'a, show: fn(f64) -> String) -> Self {
        Self::of_runs(title, value, show, MedianRange::render)
    }

    fn of_runs(
        title: &'static str,
        value: impl Fn(&M) -> Option<f64> + 'a,
        show: fn(f64) -> String,
        render: fn(MedianRange, fn(f64) -> String) -> String,
    ) -> Self {
        let value = Rc::new(value);
        let of_all = value.clone();
        let cell = Box::new(move |contestant: &Contestant<C, M>| render(contestant.spread(&*of_all), show));
        let run = Box::new(move |measured: &M| shown(value(measured), show));
        Self { title, align: Align::Right, cell, run: Some(run) }
    }
}

/// Makes the table of all runs for the record, with the figures of `columns` for each run. If a run went wrong, the
/// last column gives the reason.
pub(crate) fn runs_table<C, M>(contestants: &[Contestant<C, M>], columns: &[TableColumn<'_, C, M>]) -> Table {
    let figures: Vec<_> = columns.iter().filter_map(|column| Some((column.title, column.run.as_ref()?))).collect();
    let first = [("run of", Align::Left), ("round", Align::Right)];
    let titles = figures.iter().map(|(title, _)| (*title, Align::Right));
    let mut table = Table::new(first.into_iter().chain(titles).chain([("went wrong", Align::Left)]));
    for contestant in contestants {
        for (round, run) in contestant.runs.iter().enumerate() {
            let mut row = vec![contestant.name.clone(), (round + 1).to_string()];
            row.extend(figures.iter().map(|(_, text)| shown(run.measurement(), text)));
            row.push(run.fault().unwrap_or_default().to_owned());
            table.row(row);
        }
    }
    table
}

/// Makes a table with a row for each case, but leaves out cases without a run. On a narrow terminal, the columns named
/// in `leave_out` are omitted, in this order, until the table fits.
pub(crate) fn table<'s, C: 's, M: 's>(
    contestant: impl IntoIterator<Item = &'s Contestant<C, M>>,
    columns: &[TableColumn<'_, C, M>],
    leave_out: &[&'static str],
) -> Table {
    let mut table = Table::new(columns.iter().map(|column| (column.title, column.align))).leave_out(leave_out);
    for contestant in contestant.into_iter().filter(|contestant| !contestant.runs.is_empty()) {
        table.row(columns.iter().map(|column| (column.cell)(contestant)).collect::<Vec<String>>());
    }
    table
}

/// Row of a table of ratios, which compares a case with its `base`. The row begins with the texts in `cells`, such as
/// the names of both.
pub(crate) struct RatioPair<'s, C, M> {
    pub(crate) cells: Vec<String>,
    pub(crate) contestant: &'s Contestant<C, M>,
    pub(crate) base: &'s Contestant<C, M>,
}

pub(crate) const RATIO_NOTE: &str =
    "Ratios compare the two runs of the same round: median (least–most), from 6 rounds on the estimate (its interval).";

/// A note below a table begins with at most this many names of rows or runs. Further names are only counted.
const MAX_NAMES: usize = 3;

/// Makes a table of ratios, and notes that give the verdict for each row. `names` are the titles of the columns to the
/// left of the ratios.
pub(crate) fn ratio_table<C, M>(
    names: &[&'static str],
    pairs: Vec<RatioPair<'_, C, M>>,
    ratios: &[RatioColumn<M>],
) -> (Table, Vec<String>) {
    let names = names.iter().map(|name| (*name, Align::Left));
    let mut table = Table::new(names.chain(ratios.iter().map(|ratio| (ratio.title, Align::Right))));
    let mut verdicts = Vec::new();
    for RatioPair { cells: mut row, contestant, base } in pairs {
        let verdict = RatioVerdict::of(contestant, base, ratios);
        row.extend(ratios.iter().map(|ratio| verdict.cell(ratio, contestant, base)));
        table.row(row);
        verdicts.extend(verdict.note().map(|note| (contestant.name.as_str(), note)));
    }
    let mut notes = distinct_verdicts(&verdicts);
    if !table.is_empty() {
        notes.push(RATIO_NOTE.to_owned());
    }
    (table, notes)
}

/// Makes the notes below a table of ratios. Rows with the same verdict share a note, which begins with their names.
fn distinct_verdicts(verdicts: &[(&str, String)]) -> Vec<String> {
    let names_of = |verdict: &String| -> Vec<&str> {
        let mut names: Vec<&str> =
            verdicts.iter().filter(|(_, other)| other == verdict).map(|(name, _)| *name).collect();
        names.dedup();
        names
    };
    let mut notes = Vec::new();
    for (place, (_, verdict)) in verdicts.iter().enumerate() {
        if verdicts[..place].iter().any(|(_, other)| other == verdict) {
            continue;
        }
        notes.push(format!("{}: {verdict}.", first_names(&names_of(verdict))));
    }
    notes
}

fn first_names(names: &[&str]) -> String {
    let between = if names.iter().any(|name| name.contains(',')) { "; " } else { ", " };
    match names.len().checked_sub(MAX_NAMES) {
        None | Some(0) => names.join(between),
        Some(more) => format!("{} and {more} more", names[..MAX_NAMES].join(between)),
    }
}

/// Makes notes from remarks on single runs. Each note begins with the name of its run. If several remarks differ only
/// in their digits, keeps the first of them, with the names of all runs that have such a remark.
pub(super) fn distinct_remarks<'r>(remarks: impl Iterator<Item = (&'r str, &'r str)>) -> Vec<String> {
    let without_figures = |text: &str| text.replace(|c: char| c.is_ascii_digit(), "");
    let mut distinct: Vec<(String, &str, Vec<&str>)> = Vec::new();
    for (name, remark) in remarks {
        let kind = without_figures(remark);
        match distinct.iter_mut().find(|(known, ..)| *known == kind) {
            Some((.., names)) if names.contains(&name) => {}
            Some((.., names)) => names.push(name),
            None => distinct.push((kind, remark, vec![name])),
        }
    }
    let lines = distinct.iter().map(|(_, remark, names)| plain(&format!("{}: {remark}", first_names(names))));
    lines.collect()
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum ShownFigures {
    Medians,
    Spreads,
}

pub(crate) fn rounds_text(rounds: u32, figures: ShownFigures) -> String {
    match (rounds, figures) {
        (1, _) => "one round".to_owned(),
        (rounds, ShownFigures::Medians) => format!("medians of {rounds} rounds, interleaved"),
        (rounds, ShownFigures::Spreads) => format!("medians (least–most) of {rounds} rounds, interleaved"),
    }
}

pub(crate) struct ReportParts {
    pub(crate) title: String,
    pub(crate) tables: Vec<Table>,
    /// Table with the figures of each run, needed if the runs have no records of their own.
    pub(crate) runs: Option<Table>,
    pub(crate) notes: Vec<String>,
    /// Reason for a PASS, such as `no mail lost`. The report prints it after the number of runs.
    pub(crate) pass: &'static str,
    /// Defects of the comparison that the caller has found. `report` adds the runs that went wrong to these defects.
    pub(crate) wrong: Defects,
    pub(crate) is_strict: bool,
}

impl<C, M> ComparisonResults<C, M> {
    /// Returns each run that went wrong, with the name of its case and the reason.
    fn faults(&self) -> impl Iterator<Item = (&ComparedRun<M>, String)> {
        let runs =
            self.contestants.iter().flat_map(|contestant| contestant.runs.iter().map(move |run| (contestant, run)));
        runs.filter_map(|(contestant, run)| Some((run, plain(&format!("{}: {}", contestant.name, run.fault()?)))))
    }

    /// Returns a report that lists the runs that went wrong below its tables, followed by the notes.
    pub(crate) fn report(&self, parts: ReportParts) -> TextReport {
        let mut remarks: Vec<String> = self.faults().map(|(_, fault)| format!("NOT OK: {fault}")).collect();
        let mut defects = parts.wrong;
        let failed = self.faults().filter(|(run, _)| !matches!(run, ComparedRun::Undecided(..)));
        defects.failed.extend(failed.map(|(_, fault)| fault));
        let is_interrupted = self.done < self.planned;
        if is_interrupted {
            let planned = counted(self.planned as u64, "run");
            defects.unobserved.push(format!("it was stopped after {} of {planned}", self.done));
            remarks.push(format!("Stopped after {} of {planned}.", self.done));
        }
        remarks.extend(parts.notes);
        let pass = format!("{}, {}", counted(self.done as u64, "run"), parts.pass);
        let mut conclusion = Conclusion::of(&defects, &pass, parts.is_strict);
        conclusion.is_interrupted = is_interrupted;
        TextReport::new(&parts.title, parts.tables, remarks, conclusion).with_runs(parts.runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mailrun_text::numbers::figure;

    #[test]
    fn a_remark_of_several_runs_is_listed_once_with_their_names() {
        let remarks = [
            ("a", "Other processes used 20 % of the CPU."),
            ("a", "Other processes used 31 % of the CPU."),
            ("b", "Other processes used 25 % of the CPU."),
            ("c", "Other processes used 25 % of the CPU."),
            ("c", "A clock jumped."),
            ("d", "Other processes used 9 % of the CPU."),
        ];
        let expected = ["a, b, c and 1 more: Other processes used 20 % of the CPU.", "c: A clock jumped."];
        assert_eq!(distinct_remarks(remarks.into_iter()), expected);
    }

    fn contestant(name: &'static str, runs: Vec<ComparedRun<f64>>) -> Contestant<&'static str, f64> {
        Contestant { runs, ..Contestant::new(format!("tool {name}"), name) }
    }

    fn sound(values: &[f64]) -> Vec<ComparedRun<f64>> {
        values.iter().copied().map(ComparedRun::Sound).collect()
    }

    fn report(results: &ComparisonResults<&'static str, f64>) -> TextReport {
        type Column<'a> = TableColumn<'a, &'static str, f64>;
        let columns = [
            Column::words("tool", |contestant| contestant.case.to_owned()),
            Column::median("median", |value| Some(*value), figure),
            Column::spread("spread", |value| Some(*value), figure),
        ];
        let ratio = RatioColumn::higher("× speed", |value| Some(*value));
        let inverse = RatioColumn::lower("× time", |value| Some(1.0 / value));
        let pair = RatioPair {
            cells: vec!["a".to_owned()],
            contestant: &results.contestants[0],
            base: &results.contestants[1],
        };
        let (ratios, notes) = ratio_table(&["tool"], vec![pair], &[ratio, inverse]);
        results.report(ReportParts {
            title: "x: what".to_owned(),
            tables: vec![table(&results.contestants, &columns, &[]), ratios],
            runs: Some(runs_table(&results.contestants, &columns)),
            notes,
            pass: "none of which failed",
            wrong: Defects::default(),
            is_strict: false,
        })
    }

    #[test]
    fn a_table_has_medians_spreads_and_ratios_of_rounds() {
        let contestants = vec![contestant("a", sound(&[2.0, 4.0, 9.0])), contestant("b", sound(&[1.0, 1.0, 10.0]))];
        let report = report(&ComparisonResults { contestants, done: 6, planned: 6 });
        assert!(report.is_good() && report.conclusion.line().ends_with("6 runs, none of which failed"), "{report:?}");
        let row = report.text.lines().find(|line| line.starts_with(" a")).unwrap();
        assert!(row.contains("4.000  4.000 (2.000–9.000)"), "{}", report.text);
        assert!(report.text.contains("2.00 (0.90–4.00)"), "{}", report.text);
        assert!(report.text.contains("\ntool a: 3 rounds, too few for a verdict, which takes 6."), "{}", report.text);
    }

    #[test]
    fn a_verdict_that_concerns_several_rows_is_said_once() {
        let few = "3 rounds, too few for a verdict, which takes 6";
        let rows: Vec<(&str, String)> = ["a", "b", "c", "d", "e"].map(|name| (name, few.to_owned())).to_vec();
        assert_eq!(distinct_verdicts(&rows), [format!("a, b, c and 2 more: {few}.")]);
        let rows = [("a, x", "better".to_owned()), ("b", few.to_owned()), ("c", "better".to_owned())];
        assert_eq!(distinct_verdicts(&rows), ["a, x; c: better.".to_owned(), format!("b: {few}.")]);
        assert!(distinct_verdicts(&[]).is_empty());
    }

    #[test]
    fn a_run_whose_mail_may_be_queued_has_no_figures_and_has_not_failed() {
        let undecided = vec![ComparedRun::Undecided(1e9, "not delivered 1".to_owned()), ComparedRun::Sound(2.0)];
        let contestants = vec![contestant("a", undecided), contestant("b", sound(&[1.0, 1.0]))];
        let report = report(&ComparisonResults { contestants, done: 4, planned: 4 });
        assert!(report.text.contains("\nNOT OK: tool a: not delivered 1\n"), "{}", report.text);
        assert!(report.text.contains("  2.00") && !report.text.contains("1,000"), "{}", report.text);
        assert!(report.is_good(), "whatever the caller says of it decides: {}", report.text);
    }

    #[test]
    fn what_went_wrong_is_below_the_tables_in_no_figure_and_in_the_verdict() {
        let faulty = vec![ComparedRun::Faulty(1e9, "lost 1".to_owned()), ComparedRun::Sound(2.0)];
        let failed = vec![ComparedRun::Failed("no\nluck".to_owned()), ComparedRun::Sound(1.0)];
        let results = ComparisonResults {
            contestants: vec![contestant("a", faulty), contestant("b", failed)],
            done: 4,
            planned: 6,
        };
        let report = report(&results);
        assert!(!report.is_good() && report.conclusion.is_interrupted);
        let below =
            "\nNOT OK: tool a: lost 1\nNOT OK: tool b: no luck\nStopped after 4 of 6 runs.\ntool a: 1 round, too";
        assert!(report.text.contains(below), "{}", report.text);
        assert_eq!(report.conclusion.line(), "FAIL tool a: lost 1 (and 1 more)");
        assert!(report.text.contains("  2.00    0.50\n") && !report.text.contains("1,000"), "{}", report.text);
    }
}
