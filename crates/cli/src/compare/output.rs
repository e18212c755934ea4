//! The output of a comparison of stored or live runs: its options, text, files and exit status.
use crate::report::results::write_all;
use anyhow::{Result, bail};
use clap::Args;
use mailrun_measurement::record::Outcome;
use mailrun_process::output_file::{self, is_standard_output};
use mailrun_process::terminal::CharacterSet;
use mailrun_report::comparison::ComparisonPage;
use mailrun_text::printable::printable;
use serde::Serialize;
use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

const WIDTH: usize = 100;

/// Options that say when a comparison fails, and where it writes its results.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Results")]
pub(crate) struct CompareOutputArgs {
    /// Largest difference at which two figures count as the same.
    #[arg(long, value_name = "PERCENT", default_value = "2%", value_parser = percent)]
    pub(crate) margin: f64,
    /// Fail if a figure is proven to be worse by this share or more, or if a run fails for a reason that the other side
    /// does not have. The exit status is 3 if this cannot be decided.
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub(crate) fail_on_regression: Option<f64>,
    /// Exit with status 3 if a figure is undecided, even without --fail-on-regression.
    #[arg(long)]
    strict: bool,
    /// Write the comparison as JSON to FILE; - is standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the comparison as an HTML page to FILE, with intervals and the overlaid curves of all sides.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Parses a percentage such as `5%` or `5`, and returns it as a fraction: 0.05.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim().parse::<f64>().ok();
    let share = number.filter(|percent| percent.is_finite() && (0.0..=1_000.0).contains(percent));
    share.map(|percent| percent / 100.0).ok_or_else(|| format!("{text:?} is not a share such as 5%"))
}

impl CompareOutputArgs {
    /// Returns true if the JSON goes to standard output. Text that is printed there would make the JSON invalid.
    pub(crate) fn is_json_out(&self) -> bool {
        self.json.as_deref().is_some_and(is_standard_output)
    }

    /// Checks before the comparison starts that its files can be written.
    ///
    /// # Errors
    ///
    /// Returns an error if a file cannot be written, or if the HTML page is to go to standard output.
    pub(crate) fn check(&self) -> Result<()> {
        if self.html.as_deref().is_some_and(is_standard_output) {
            bail!("a page is for a browser: name a file, --html compared.html");
        }
        let json = self.json.as_ref().filter(|path| !is_standard_output(path));
        json.into_iter().chain(&self.html).try_for_each(|path| output_file::check(path))
    }

    /// Writes the JSON and the HTML page, prints the comparison as text, and returns the exit status. Runs that were
    /// refused are listed on standard error.
    pub(crate) fn finish(&self, mut page: ComparisonPage, json: &impl Serialize) -> Result<ExitCode> {
        if self.strict && page.outcome.is_none() && !page.is_decided() {
            page.outcome = Some((Outcome::Inconclusive, page.summary()));
        }
        let page = &page;
        let is_json_out = self.is_json_out();
        for line in &page.refused {
            mailrun_process::tell!("mailrun: {}", printable(line));
        }
        if !is_json_out {
            crate::report::messages::say(&CharacterSet::of_environment().encode(&text(page)))?;
        }
        if let Some(path) = &self.json {
            let json = serde_json::to_string_pretty(json)? + "\n";
            match is_json_out {
                true => write_all(&mut io::stdout().lock(), &json)?,
                false => output_file::write(path, json)?,
            }
        }
        if let Some(path) = &self.html {
            output_file::write(path, mailrun_report::comparison_page(page))?;
        }
        Ok(match page.outcome {
            _ if !page.refused.is_empty() => ExitCode::from(2),
            Some((Outcome::Fail, _)) => ExitCode::from(1),
            Some((Outcome::Inconclusive | Outcome::Invalid, _)) => ExitCode::from(3),
            Some((Outcome::Pass, _)) | None => ExitCode::SUCCESS,
        })
    }
}

fn text(page: &ComparisonPage) -> String {
    let mut text = format!("{}\n\n", page.title);
    if !page.figures.is_empty() {
        let _ = writeln!(text, "{}\n", page.table().terminal(WIDTH));
    }
    for remark in page.remarks.iter().chain(page.method.first()) {
        let _ = writeln!(text, "{}", printable(remark));
    }
    if let Some((outcome, reason)) = &page.outcome {
        let _ = writeln!(text, "{} {}", outcome.name(), printable(reason));
    }
    text
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
    }
}
