//! Output for GitHub Actions: the summary of a step in Markdown, and the annotations of a job.
use super::junit::missed_text;
use crate::headline::{self, Headline};
use crate::markdown::push_section;
use crate::sections::sections;
use mailrun_measurement::record::{Outcome, Record};
use mailrun_text::printable::printable;
use mailrun_text::table::markdown_text;

/// Sections of the report for GitHub's job summary. The summary must stay short, so other sections are left out.
const SUMMARY_SECTIONS: [&str; 5] = ["Thresholds", "Stages", "Latency", "Ledger", "Errors"];
/// GitHub shows at most this many annotations of each kind per step, so more are not written.
const MAX_ANNOTATIONS: usize = 10;

pub(super) fn summary(record: &Record) -> String {
    let outcome = Headline::of(record).name();
    let mut text = format!("## mailrun {}: {outcome}\n\n", markdown_text(&record.name));
    text.push_str(&format!("{}\n\n", markdown_text(&record.verdict.why)));
    text.push_str(&format!("{}\n\n", markdown_text(&headline::counts(record))));
    text.push_str(&format!("**{}**\n", markdown_text(&headline::figures(record))));
    if headline::reasons(record).next().is_some() {
        text.push('\n');
    }
    for reason in headline::reasons(record) {
        text.push_str(&format!("- {}\n", markdown_text(reason)));
    }
    // Width 0 leaves out the section `Over time`, because the summary has no room for its bars.
    let all = sections(record, 0);
    for title in SUMMARY_SECTIONS {
        all.iter().filter(|section| section.title == title).for_each(|section| push_section(&mut text, section));
    }
    text
}

/// Returns workflow commands (`::error title=…::…`) for the verdict and for each threshold that did not pass. GitHub
/// shows them on the page of the job. Returns an empty text if the run passed or was not judged.
pub fn annotations(record: &Record) -> String {
    let record = &super::bounded::bounded(record);
    let level = match Headline::of(record) {
        Headline::Judged(Outcome::Fail) => "error",
        Headline::Judged(Outcome::Invalid | Outcome::Inconclusive) => "warning",
        Headline::Judged(Outcome::Pass) | Headline::Received | Headline::Sent => return String::new(),
    };
    let title = format!("mailrun {}: {}", record.name, Headline::of(record).name());
    let missed = record.thresholds.iter().filter(|row| !row.passed);
    let missed = missed.map(missed_text);
    let reason = headline::reason_beside_thresholds(record).map(str::to_owned);
    let messages = reason.into_iter().chain(missed).take(MAX_ANNOTATIONS);
    messages.map(|message| annotation(level, &title, &message)).collect()
}

fn annotation(level: &str, title: &str, message: &str) -> String {
    format!("::{level} title={}::{}\n", property(title), data(message))
}

/// Escapes the message of a workflow command. The characters `%`, CR and LF have a special meaning in it.
fn data(text: &str) -> String {
    let text: String = printable(text).into_owned();
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// Escapes a property, such as the title, of a GitHub workflow command, because `:` and `,` end a property.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use mailrun_measurement::judge;
    use mailrun_measurement::reason::Reason;
    use mailrun_measurement::record::{Cause, ThresholdRow};

    #[test]
    fn a_run_that_passed_says_nothing() {
        assert_eq!(annotations(&sample::held()), "");
        assert_eq!(annotations(&sample::sink_alone()), "");
    }

    #[test]
    fn a_missed_threshold_is_annotated_once() {
        let mut record = sample::held();
        let missed = ThresholdRow {
            expression: "rejected <= 1".to_owned(),
            value: Some(2.0),
            missed: true,
            ..ThresholdRow::default()
        };
        record.thresholds = vec![missed];
        record.verdict = judge::decide(judge::threshold_reasons(&record), "");
        let of_threshold = "::error title=mailrun quick%3A FAIL::rejected <= 1: it was 2\n";
        assert_eq!(annotations(&record), of_threshold);
        // Bounced mail must get its own annotation, although the missed threshold is the more serious reason.
        let bounced = Reason::new(Cause::Bounced, "76 of 300 messages bounced.".to_owned());
        judge::add_reason(&mut record.verdict, bounced, "");
        let of_verdict = "::error title=mailrun quick%3A FAIL::76 of 300 messages bounced.\n";
        assert_eq!(annotations(&record), format!("{of_verdict}{of_threshold}"));
    }

    #[test]
    fn a_message_cannot_begin_a_command() {
        let mut record = sample::lossy();
        record.name = "a,b:c".to_owned();
        record.verdict.why = "100 %\r\n::set-output name=x::y".to_owned();
        let missed = ThresholdRow {
            expression: "lost <= 0".to_owned(),
            value: Some(200.0),
            missed: true,
            ..ThresholdRow::default()
        };
        record.thresholds = vec![missed];
        assert_eq!(
            annotations(&record),
            "::error title=mailrun a%2Cb%3Ac%3A FAIL::100 %25\\r\\n::set-output name=x::y\n\
             ::error title=mailrun a%2Cb%3Ac%3A FAIL::lost <= 0: it was 200\n"
        );
    }

    #[test]
    fn the_summary_has_the_verdict_and_its_tables() {
        let text = summary(&sample::lossy());
        assert!(text.starts_with("## mailrun quick: FAIL\n"), "{text}");
        assert!(text.contains("\n## Latency\n") && text.contains("\n## Ledger\n"), "{text}");
        assert!(!text.contains("\n## Host\n"), "{text}");
    }
}
