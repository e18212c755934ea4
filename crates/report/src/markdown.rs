//! The report as Markdown, `report.md`. Its text is the same as on a terminal.
use super::figures::{Section, SectionBody};
use super::headline::{self, Headline};
use super::sections::sections;
use mailrun_measurement::record::Record;
use mailrun_text::table::markdown_text;

const BARS: usize = 60;

pub fn markdown(record: &Record) -> String {
    let mut text = format!("# mailrun: {}\n\n", markdown_text(&record.name));
    text.push_str(format!("**{}** {}", Headline::of(record).name(), markdown_text(&record.verdict.why)).trim_end());
    text.push_str(&format!("\n\n{}\n\n", markdown_text(&headline::counts(record))));
    text.push_str(&format!("**{}**\n", markdown_text(&headline::figures(record))));
    if headline::reasons(record).next().is_some() {
        text.push('\n');
    }
    for reason in headline::reasons(record) {
        text.push_str(&format!("- {}\n", markdown_text(reason)));
    }
    for section in sections(record, BARS) {
        push_section(&mut text, &section);
    }
    text
}

pub(crate) fn push_section(text: &mut String, section: &Section) {
    text.push_str(&format!("\n## {}\n\n", section.title));
    match &section.body {
        SectionBody::Figures(table) => text.push_str(&format!("{}\n", table.markdown())),
        SectionBody::Facts(facts) => {
            for (name, fact) in facts {
                text.push_str(&format!("- **{name}**: {}\n", markdown_text(fact)));
            }
        }
    }
    if let Some(note) = &section.note {
        text.push_str(&format!("\n*{}*\n", markdown_text(note)));
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn the_verdict_is_at_the_top() {
        let text = markdown(&sample::lossy());
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("# mailrun: quick"));
        assert!(text.lines().nth(2).is_some_and(|line| line.starts_with("**FAIL** ")));
        assert!(text.lines().nth(4).is_some_and(|line| line.starts_with("199,800 of 200,000")), "{text}");
    }

    #[test]
    fn every_section_is_there() {
        let text = markdown(&sample::held());
        let titles = ["Workload", "Stages", "Latency", "Over time", "Phases", "Ledger", "Processes"];
        for title in titles.into_iter().chain(["Host"]) {
            assert!(text.contains(&format!("\n## {title}\n")), "{title} in\n{text}");
        }
        assert!(text.contains("| fate"), "{text}");
    }

    #[test]
    fn a_stranger_cannot_write_markup() {
        let mut record = sample::lossy();
        record.verdict.reasons = vec!["<script> [x](y)\n# title".to_owned()];
        let text = markdown(&record);
        assert!(text.contains(r"\<script\> \[x\](y) \# title"), "{text}");
    }
}
