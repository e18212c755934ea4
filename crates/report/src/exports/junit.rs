//! Writes JUnit XML with one test suite for each run. A suite has one test case for the verdict and one for each
//! threshold.
use crate::headline::{self, Headline};
use crate::workload::quoted;
use mailrun_measurement::record::{Outcome, Record, ThresholdRow};
use mailrun_text::printable::printable;
use quick_xml::Writer;
use quick_xml::events::{BytesDecl, BytesText, Event};
use std::io;

#[derive(Clone, Debug)]
struct JunitProblem {
    kind: ProblemKind,
    word: &'static str,
    message: String,
    details: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProblemKind {
    /// The measured value missed the threshold, or the run failed.
    Failure,
    /// Nothing can be said about the server, because a measured value is too uncertain or the run is invalid.
    Error,
}

#[derive(Clone, Debug)]
struct JunitCase {
    name: String,
    seconds: f64,
    problem: Option<JunitProblem>,
}

impl JunitCase {
    fn is(&self, kind: ProblemKind) -> bool {
        self.problem.as_ref().is_some_and(|problem| problem.kind == kind)
    }
}

pub(super) fn junit(records: &[Record]) -> String {
    // Ignore errors, because writing to memory cannot fail.
    let bytes = document(records).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn document(records: &[Record]) -> io::Result<Vec<u8>> {
    let mut writer = Writer::new_with_indent(Vec::new(), b' ', 2);
    writer.write_event(Event::Decl(BytesDecl::new("1.0", Some("UTF-8"), None)))?;
    let cases: Vec<Vec<JunitCase>> = records.iter().map(cases).collect();
    let all: Vec<&JunitCase> = cases.iter().flatten().collect();
    let seconds = records.iter().map(|record| record.duration_s).sum();
    let suites = writer.create_element("testsuites").with_attribute(("name", "mailrun"));
    suites
        .with_attributes(totals(&all, seconds).iter().map(|(name, value)| (*name, value.as_str())))
        .write_inner_content(|writer| {
            for (record, cases) in records.iter().zip(&cases) {
                suite(writer, record, cases)?;
            }
            Ok(())
        })?;
    let mut bytes = writer.into_inner();
    bytes.push(b'\n');
    Ok(bytes)
}

fn totals(cases: &[&JunitCase], seconds: f64) -> Vec<(&'static str, String)> {
    let number = |kind| cases.iter().filter(|case| case.is(kind)).count().to_string();
    vec![
        ("tests", cases.len().to_string()),
        ("failures", number(ProblemKind::Failure)),
        ("errors", number(ProblemKind::Error)),
        ("skipped", "0".to_owned()),
        ("time", in_seconds(seconds)),
    ]
}

fn in_seconds(seconds: f64) -> String {
    format!("{:.3}", if seconds.is_finite() { seconds.max(0.0) } else { 0.0 })
}

fn suite(writer: &mut Writer<Vec<u8>>, record: &Record, cases: &[JunitCase]) -> io::Result<()> {
    let class = format!("mailrun.{}", legal(&record.name));
    let name = legal(&record.name);
    // Remove the final Z, because times in JUnit files have no time zone.
    let timestamp = legal(record.started_at.trim_end_matches('Z'));
    let totals = totals(&cases.iter().collect::<Vec<_>>(), record.duration_s);
    let suite = writer.create_element("testsuite");
    let suite = suite.with_attribute(("name", name.as_str())).with_attribute(("timestamp", timestamp.as_str()));
    suite.with_attributes(totals.iter().map(|(name, value)| (*name, value.as_str()))).write_inner_content(
        |writer| {
            properties(writer, record)?;
            for case in cases {
                write_case(writer, &class, case)?;
            }
            Ok(())
        },
    )?;
    Ok(())
}

fn properties(writer: &mut Writer<Vec<u8>>, record: &Record) -> io::Result<()> {
    let known = [
        ("run_id", record.run_id.clone()),
        ("command", quoted(&record.command)),
        ("version", record.version.clone()),
        ("commit", record.commit.clone().unwrap_or_default()),
        ("target", record.workload.target.clone()),
        ("outcome", Headline::of(record).name().to_owned()),
        ("figures", headline::figures(record)),
    ];
    writer.create_element("properties").write_inner_content(|writer| {
        for (name, value) in known.iter().filter(|(_, value)| !value.is_empty()) {
            let value = legal(value);
            let property = writer.create_element("property").with_attribute(("name", *name));
            property.with_attribute(("value", value.as_str())).write_empty()?;
        }
        Ok(())
    })?;
    Ok(())
}

fn write_case(writer: &mut Writer<Vec<u8>>, class: &str, case: &JunitCase) -> io::Result<()> {
    let name = legal(&case.name);
    let time = in_seconds(case.seconds);
    let element = writer.create_element("testcase").with_attribute(("name", name.as_str()));
    let element = element.with_attribute(("classname", class)).with_attribute(("time", time.as_str()));
    let Some(problem) = &case.problem else {
        element.write_empty()?;
        return Ok(());
    };
    element.write_inner_content(|writer| {
        let tag = match problem.kind {
            ProblemKind::Failure => "failure",
            ProblemKind::Error => "error",
        };
        let message = legal(&problem.message);
        let details: Vec<String> = problem.details.iter().map(|line| legal(line)).collect();
        let element = writer.create_element(tag).with_attribute(("message", message.as_str()));
        let element = element.with_attribute(("type", problem.word));
        element.write_text_content(BytesText::new(&details.join("\n")))?;
        Ok(())
    })?;
    Ok(())
}

fn cases(record: &Record) -> Vec<JunitCase> {
    let verdict = JunitCase { name: "verdict".to_owned(), seconds: record.duration_s, problem: verdict(record) };
    let thresholds = record.thresholds.iter().map(|row| JunitCase {
        name: row.expression.clone(),
        seconds: 0.0,
        problem: missed(row, record.verdict.outcome),
    });
    std::iter::once(verdict).chain(thresholds).collect()
}

fn verdict(record: &Record) -> Option<JunitProblem> {
    let headline = Headline::of(record);
    let kind = match headline {
        Headline::Judged(Outcome::Pass) | Headline::Received | Headline::Sent => return None,
        Headline::Judged(Outcome::Fail) => ProblemKind::Failure,
        Headline::Judged(Outcome::Invalid | Outcome::Inconclusive) => ProblemKind::Error,
    };
    // If the run only missed thresholds, report no problem here, because each threshold has a test case of its own.
    let message = headline::reason_beside_thresholds(record)?.to_owned();
    let mut details = vec![message.clone(), headline::counts(record), headline::figures(record)];
    details.extend(record.verdict.reasons.iter().filter(|reason| **reason != message).cloned());
    Some(JunitProblem { kind, word: headline.name(), message, details })
}

pub(super) fn missed_text(row: &ThresholdRow) -> String {
    let text = match (row.value, row.beyond) {
        (Some(value), _) => format!("it was {value} {}", row.unit),
        (None, Some(bound)) => format!("it was > {bound} {}", row.unit),
        (None, None) if row.missed => row.why.clone(),
        (None, None) => "could not be seen".to_owned(),
    };
    let text = match (row.value.or(row.beyond), row.missed) {
        (Some(_), true) if !row.why.is_empty() => format!("{}, as {}", text.trim_end(), row.why),
        (_, false) if !row.why.is_empty() => format!("{}, but {}", text.trim_end(), row.why),
        _ => text,
    };
    format!("{}: {}", row.expression, text.trim_end())
}

/// Returns the problem of a threshold, or `None` if it passed. In an invalid run, a missed threshold is an error and
/// not a failure, because the run says nothing about the server.
fn missed(row: &ThresholdRow, outcome: Option<Outcome>) -> Option<JunitProblem> {
    if row.passed {
        return None;
    }
    let message = missed_text(row);
    if outcome == Some(Outcome::Invalid) {
        return Some(JunitProblem { kind: ProblemKind::Error, word: "INVALID", message, details: Vec::new() });
    }
    if !row.missed {
        return Some(JunitProblem { kind: ProblemKind::Error, word: "INCONCLUSIVE", message, details: Vec::new() });
    }
    let quantity = |number: f64| format!("{number} {}", row.unit).trim_end().to_owned();
    let known = |number: Option<f64>| number.map_or_else(|| "unknown".to_owned(), quantity);
    let details = vec![
        format!("expression: {}", row.expression),
        format!("limit: {}", known(row.limit)),
        format!("value: {}", row.beyond.map_or_else(|| known(row.value), |bound| format!("> {}", quantity(bound)))),
        format!("margin: {}", known(row.margin)),
    ];
    Some(JunitProblem { kind: ProblemKind::Failure, word: "FAIL", message, details })
}

/// Puts a text on one line. Removes the characters that XML 1.0 forbids even if they are escaped.
fn legal(text: &str) -> String {
    printable(text).chars().filter(|letter| !matches!(letter, '\u{fffe}' | '\u{ffff}')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use mailrun_measurement::judge;
    use mailrun_measurement::reason::Reason;
    use mailrun_measurement::record::Cause;

    fn threshold(value: Option<f64>, passed: bool) -> ThresholdRow {
        ThresholdRow {
            expression: "accepted.p99 < 2ms".to_owned(),
            limit: Some(2.0),
            value,
            margin: value.map(|value| 2.0 - value),
            unit: "ms".to_owned(),
            passed,
            missed: !passed && value.is_some(),
            ..ThresholdRow::default()
        }
    }

    #[test]
    fn a_run_that_passed_has_no_problem() {
        let mut record = sample::held();
        record.thresholds = vec![threshold(Some(1.5), true)];
        let text = junit(&[record]);
        assert!(
            text.starts_with("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"mailrun\" tests=\"2\"")
        );
        assert!(text.contains("failures=\"0\" errors=\"0\""), "{text}");
        assert!(text.contains("<testcase name=\"accepted.p99 &lt; 2ms\" classname=\"mailrun.quick\""), "{text}");
        assert!(text.contains("timestamp=\"2026-11-21T03:00:12\""), "{text}");
    }

    #[test]
    fn a_missed_threshold_is_a_failure_and_an_unseen_one_an_error() {
        let mut record = sample::lossy();
        record.thresholds = vec![threshold(Some(3.5), false), threshold(None, false)];
        let text = junit(&[record.clone()]);
        assert!(text.contains("tests=\"3\" failures=\"2\" errors=\"1\""), "{text}");
        assert!(text.contains("message=\"accepted.p99 &lt; 2ms: it was 3.5 ms\" type=\"FAIL\""), "{text}");
        assert!(text.contains("margin: -1.5 ms"), "{text}");
        assert!(text.contains("type=\"INCONCLUSIVE\""), "{text}");
        record.thresholds = vec![ThresholdRow { beyond: Some(3_000.0), missed: true, ..threshold(None, false) }];
        let text = junit(&[record]);
        let failure = "accepted.p99 &lt; 2ms: it was &gt; 3000 ms\" type=\"FAIL\"";
        assert!(text.contains(failure) && text.contains("errors=\"0\""), "{text}");
    }

    #[test]
    fn a_missed_threshold_counts_once_and_the_command_keeps_its_quotes() {
        let mut record = sample::held();
        record.thresholds = vec![threshold(Some(3.5), false)];
        record.verdict = judge::decide(judge::threshold_reasons(&record), "");
        record.command = ["mailrun", "bench", "--threshold", "accepted.p99 < 2ms"].map(str::to_owned).to_vec();
        let text = junit(&[record]);
        assert!(text.contains("tests=\"2\" failures=\"1\" errors=\"0\""), "{text}");
        assert!(text.contains("value=\"mailrun bench --threshold &apos;accepted.p99 &lt; 2ms&apos;\""), "{text}");
        assert!(text.contains("name=\"outcome\" value=\"FAIL\""), "{text}");
    }

    #[test]
    fn a_cause_beside_a_missed_threshold_is_a_failure_of_its_own() {
        let mut record = sample::held();
        let missed = ThresholdRow {
            expression: "rejected <= 0.1%".to_owned(),
            limit: Some(0.1),
            unit: "%".to_owned(),
            ..threshold(Some(10.0), false)
        };
        record.thresholds = vec![missed];
        let bounced = Reason::new(Cause::Bounced, "76 of 300 messages bounced.".to_owned());
        let reasons = judge::threshold_reasons(&record).into_iter().chain([bounced]);
        record.verdict = judge::decide(reasons.collect(), "");
        assert!(record.verdict.why.contains("rejected <= 0.1%"), "the threshold is the main reason");
        let text = junit(&[record]);
        assert!(text.contains("tests=\"2\" failures=\"2\" errors=\"0\""), "{text}");
        assert!(text.contains("message=\"76 of 300 messages bounced.\" type=\"FAIL\""), "{text}");
    }

    #[test]
    fn an_invalid_run_is_an_error() {
        let mut record = sample::held();
        record.verdict.outcome = Some(Outcome::Invalid);
        record.verdict.why = "the source <was> the limit ]]> \u{0}\u{ffff}".to_owned();
        let text = junit(&[record]);
        assert!(text.contains("failures=\"0\" errors=\"1\"") && text.contains("type=\"INVALID\""), "{text}");
        assert!(text.contains("&lt;was&gt; the limit ]]&gt; \\u{0}\""), "{text}");
    }
}
