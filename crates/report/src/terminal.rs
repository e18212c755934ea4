//! The full report on a terminal: all tables, then the notes, and last the verdict, directly above the prompt of the
//! shell.
//!
//! Sentences take at most 100 columns, because longer lines are tiring to read. Tables take as many columns as they
//! need, up to the width of the terminal.
use super::ending::{TextStyle, bold, styled};
use super::figures::{Section, SectionBody};
use super::sections::sections;
use super::{ending, short};
use mailrun_measurement::record::Record;
use mailrun_text::table::plain;
use mailrun_text::wrap::{display_width, wrapped};

const MAX_SENTENCE_WIDTH: usize = 100;
const MIN_WIDTH: usize = 20;
/// Columns reserved for text, such as the median, in each line of the table over time. The bars get the rest.
const BARS_MARGIN: usize = 46;
const MIN_BARS: usize = 8;

#[cfg(test)]
pub(crate) fn terminal(record: &Record, width: usize) -> String {
    full(record, width, TextStyle::Plain, None)
}

pub(crate) fn full(record: &Record, width: usize, style: TextStyle, details: Option<&str>) -> String {
    let width = width.max(MIN_WIDTH);
    let mut text = format!("\n{}\n", title(record, width.min(MAX_SENTENCE_WIDTH), style));
    for section in sections(record, width.min(MAX_SENTENCE_WIDTH).saturating_sub(BARS_MARGIN).max(MIN_BARS)) {
        push_section(&mut text, &section, width, style);
    }
    text.push('\n');
    for line in short::not_seen(record).iter().flat_map(|line| wrapped(line, "", "  ", width.min(MAX_SENTENCE_WIDTH))) {
        text.push_str(&format!("{line}\n"));
    }
    for line in ending::all(record, width.min(MAX_SENTENCE_WIDTH), style, details) {
        text.push_str(&format!("{line}\n"));
    }
    text
}

/// Returns the title line, for example `── mailrun: quick ─────────────────── 2026-11-21T03:00:12Z ──`.
fn title(record: &Record, width: usize, style: TextStyle) -> String {
    let name = format!("── mailrun: {} ", plain(&record.name));
    let time = format!(" {} ──", plain(&record.started_at));
    let rule = width.saturating_sub(display_width(&name) + display_width(&time));
    if rule == 0 {
        return bold(&wrapped(&format!("mailrun: {}", plain(&record.name)), "", "", width).join("\n"), style);
    }
    bold(&format!("{name}{}{time}", "─".repeat(rule)), style)
}

fn push_section(text: &mut String, section: &Section, width: usize, style: TextStyle) {
    text.push('\n');
    push_section_title(text, section, width.min(MAX_SENTENCE_WIDTH), style);
    match &section.body {
        SectionBody::Figures(table) => {
            text.push_str(&table.terminal(width));
            text.push('\n');
        }
        SectionBody::Facts(facts) => push_facts(text, facts, width.min(MAX_SENTENCE_WIDTH)),
    }
}

/// Writes the title of a section in capitals, followed by the section's note, for example the unit of its figures.
fn push_section_title(text: &mut String, section: &Section, width: usize, style: TextStyle) {
    let title = section.title.to_uppercase();
    let Some(note) = &section.note else {
        text.push_str(&format!("{}\n", bold(&title, style)));
        return;
    };
    let first = format!("{title}  ");
    let lines = wrapped(&plain(note), &first, &" ".repeat(display_width(&first)), width).join("\n");
    // Add colour only after wrapping, because wrapping would count the escape sequences as columns.
    let notes = lines.strip_prefix(&title).unwrap_or(&lines);
    text.push_str(&format!("{}{}\n", bold(&title, style), styled(notes, "2", style)));
}

fn push_facts(text: &mut String, facts: &[(&'static str, String)], width: usize) {
    let names = facts.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, fact) in facts {
        let first = format!(" {name:<names$}   ");
        for line in wrapped(&plain(fact), &first, &" ".repeat(first.len()), width) {
            text.push_str(&format!("{line}\n"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn no_line_is_wider_than_asked() {
        let samples = [sample::held(), sample::lossy(), sample::unwatched(), sample::sink_alone(), sample::relayed()];
        for record in samples {
            for width in (20..=120).chain([200, 300]) {
                let text = terminal(&record, width);
                for line in text.lines() {
                    assert!(display_width(line) <= width, "{width}: {line}\n{text}");
                }
            }
        }
    }

    #[test]
    fn the_verdict_comes_last_and_what_is_to_be_known_before_it() {
        let mut record = sample::lossy();
        record.verdict.reasons.push("More.".to_owned());
        let text = full(&record, 100, TextStyle::Plain, Some("d/report.md"));
        let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what} in\n{text}"));
        assert!(at("PROCESSES") < at("! More."));
        assert!(at("! More.") < at("details: d/report.md") && at("details:") < at("FAIL Lost: 200 of 200,000"));
        assert!(text.lines().last().is_some_and(|line| line.starts_with("FAIL ")), "{text}");
    }

    #[test]
    fn a_message_to_look_for_in_the_servers_log_is_named_in_both_reports() {
        let record = crate::sample_runs::failed();
        let line = short::not_seen(&record).unwrap();
        assert!(line.starts_with("not seen by the sink: message 22113, 250 2.0.0 Ok: queued as 4jZXTq1Xyz"), "{line}");
        assert!(terminal(&record, 300).contains("not seen by the sink: message 22113"));
    }

    #[test]
    fn a_section_without_anything_to_say_is_left_out() {
        let text = terminal(&sample::held(), 100);
        assert!(!text.contains("ERRORS") && !text.contains("THRESHOLDS") && !text.contains("lost 0"), "{text}");
    }

    #[test]
    fn plain_ink_has_no_escapes() {
        assert!(!terminal(&sample::held(), 100).contains('\u{1b}'));
        assert!(full(&sample::held(), 100, TextStyle::Colour, None).contains("\u{1b}[1;32mPASS\u{1b}[0m"));
    }

    #[test]
    fn a_hostile_record_moves_no_cursor() {
        let mut record = sample::lossy();
        record.name = "a\u{1b}[2Jb".to_owned();
        record.verdict.reasons = vec!["x\u{1b}[31m".to_owned()];
        record.workload.target = "\u{7}bell".to_owned();
        assert!(!terminal(&record, 100).contains(['\u{1b}', '\u{7}']));
    }
}
