//! `mailrun compare`: stored runs against stored runs.
use super::results::write_all;
use super::stored_runs::read_run;
use ::compare::{ComparisonOutcome, StoredComparison, compare_stored};
use anyhow::Result;
use clap::Args;
use party::outputs::cannot_write;
use party::terminal::CharacterSet;
use report::numbers::figure;
use report::table::{Align, Table, right};
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Compares stored runs with others: which figures are better, worse or the same, and by how much
///
/// The runs of both sides must be of one load and one host. From five runs a side there is a verdict: the probability that
/// anything is called different where nothing is, is 5 % for all metrics together (rank tests by permutation, max-T). Runs
/// that lost mail or were invalid do not count. The sides were measured at different times: what changed on the host in
/// between looks like a difference of the server.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct CompareArgs {
    /// Runs: run directories, or run.json files.
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<PathBuf>,
    /// Runs to compare them with.
    #[arg(long, value_name = "RUN", required = true, num_args = 1..)]
    against: Vec<PathBuf>,
    /// Share within which two figures count as the same.
    #[arg(long, value_name = "PERCENT", default_value = "2%", value_parser = percent)]
    margin: f64,
    /// Fail if a figure is worse by this share or more, and that is proven.
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    fail_on_regression: Option<f64>,
    /// With --fail-on-regression: exit status 3 if it cannot be decided.
    #[arg(long, requires = "fail_on_regression")]
    strict: bool,
    /// Write the comparison as JSON to FILE; - is standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  mailrun compare after/* --against before/*
  mailrun compare after/* --against before/* --fail-on-regression 5%
  mailrun compare after/* --against before/* --json - | jq .metrics

Exit status:
  0  compared; with --fail-on-regression nothing is proven to be that much worse
  1  a figure is worse by the share of --fail-on-regression, or with it: a run
     lost, duplicated or corrupted mail
  2  the runs could not be read, or are of different loads or hosts
  3  with --strict: a regression can neither be shown nor ruled out";

/// Columns of the table.
const WIDTH: usize = 100;

/// A share: `5%`, or `5`.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim().parse::<f64>().ok();
    let share = number.filter(|percent| percent.is_finite() && (0.0..=1_000.0).contains(percent));
    share.map(|percent| percent / 100.0).ok_or_else(|| format!("{text:?} is not a share such as 5%"))
}

impl CompareArgs {
    /// Compares and reports.
    ///
    /// # Errors
    /// If a run cannot be read, the runs cannot be compared, or the file cannot be written.
    pub(super) fn run(self) -> Result<ExitCode> {
        let read = |paths: &[PathBuf]| {
            let named = paths.iter().map(|path| Ok((path.display().to_string(), read_run(path)?)));
            named.collect::<Result<Vec<_>>>()
        };
        let runs = read(&self.runs)?;
        let against = read(&self.against)?;
        let comparison = compare_stored(&runs, &against, self.margin)?;
        let outcome = self.fail_on_regression.map(|limit| comparison.outcome(limit));
        let is_json_out = self.json.as_deref().is_some_and(|path| path == Path::new("-"));
        if let Some(path) = &self.json {
            let json = serde_json::to_string_pretty(&comparison)? + "\n";
            match is_json_out {
                true => write_all(&mut io::stdout().lock(), &json)?,
                false => fs::write(path, json).map_err(|error| cannot_write(path, &error))?,
            }
        }
        if !is_json_out {
            super::say(&CharacterSet::of_environment().encode(&self.text(&comparison, outcome)));
        }
        Ok(match outcome {
            Some(ComparisonOutcome::Regression | ComparisonOutcome::MailLost) => ExitCode::from(1),
            Some(ComparisonOutcome::Undecided) if self.strict => ExitCode::from(3),
            _ => ExitCode::SUCCESS,
        })
    }

    fn text(&self, comparison: &StoredComparison, outcome: Option<ComparisonOutcome>) -> String {
        let mut text = format!("stored runs: {}, against {}\n\n", comparison.runs, comparison.against);
        let mut table = Table::new([
            ("metric", Align::Left),
            right("against"),
            right("runs"),
            right("ratio"),
            right("95 % interval"),
            ("verdict", Align::Left),
        ]);
        for row in &comparison.metrics {
            let interval = |(lower, upper)| format!("{lower:.3} to {upper:.3}");
            let verdict = match (row.verdict, row.more_runs) {
                ("undecided", Some(more)) => format!("undecided: about {more} more runs a side"),
                ("better" | "worse", _) if !row.is_beyond_margin => {
                    format!("{}, perhaps within {}", row.verdict, shown_percent(comparison.margin))
                }
                ("same", _) => format!("same, within {}", shown_percent(comparison.margin)),
                (word, _) => word.to_owned(),
            };
            table.row(vec![
                row.name.clone(),
                figure(row.against_median),
                figure(row.median),
                format!("{:.3}", row.ratio),
                row.interval.map_or_else(|| "-".to_owned(), interval),
                verdict,
            ]);
        }
        text.push_str(&table.terminal(WIDTH));
        text.push_str("\n\n");
        for run in &comparison.left_out {
            let _ = writeln!(text, "Left out: {run}");
        }
        if !comparison.not_compared.is_empty() {
            let _ = writeln!(text, "Not compared, as not all runs have it: {}", comparison.not_compared.join(", "));
        }
        text.push_str(
            "The sides were measured at different times: a change of the host in between looks like a difference.\n",
        );
        match (outcome, self.fail_on_regression) {
            (Some(ComparisonOutcome::Regression), Some(limit)) => {
                let _ = writeln!(text, "FAIL a figure is worse by {} or more", shown_percent(limit));
            }
            (Some(ComparisonOutcome::MailLost), _) => {
                let _ =
                    writeln!(text, "FAIL {} of the runs lost, duplicated or corrupted mail", comparison.unsound_runs);
            }
            (Some(ComparisonOutcome::NoRegression), Some(limit)) => {
                let _ = writeln!(text, "PASS no figure is worse by {} or more", shown_percent(limit));
            }
            (Some(ComparisonOutcome::Undecided), Some(limit)) => {
                let limit = shown_percent(limit);
                let _ = writeln!(text, "INCONCLUSIVE a figure may be worse by {limit} or more: make more runs");
            }
            _ => {}
        }
        text
    }
}

fn shown_percent(share: f64) -> String {
    format!("{} %", (share * 1e4).round() / 1e2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_written_with_or_without_its_sign() {
        assert_eq!([percent("5%"), percent("2.5"), percent("0 %")], [Ok(0.05), Ok(0.025), Ok(0.0)]);
        for bad in ["", "%", "-1%", "nan", "inf", "x5%"] {
            assert!(percent(bad).is_err(), "{bad}");
        }
        assert_eq!([shown_percent(0.05), shown_percent(0.025)], ["5 %", "2.5 %"]);
    }
}
