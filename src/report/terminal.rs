//! The report on a terminal: headline first, at most 100 columns, colour only where a terminal is told.
use super::headline::{self, Headline};
use super::section::{Body, Section, sections};
use super::table::plain;
use journey::record::{Outcome, Record};

/// Lines longer than this are tiring to read.
const WIDEST: usize = 100;
/// Below this the tables would fold; a narrower terminal wraps them itself.
const NARROWEST: usize = 60;
/// What the per-second table needs beside its bars.
const BESIDE_BARS: usize = 46;

/// Whether escape sequences may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Ink {
    /// Text and nothing else: for files and pipes.
    #[default]
    Plain,
    /// Bold titles, faint notes, and the outcome in its colour: for terminals.
    Colour,
}

/// The report for `width` columns, without colour.
#[cfg(test)]
pub(crate) fn terminal(record: &Record, width: usize) -> String {
    terminal_in(record, width, Ink::Plain)
}

/// The report for `width` columns, in `ink`.
pub(crate) fn terminal_in(record: &Record, width: usize, ink: Ink) -> String {
    let width = width.clamp(NARROWEST, WIDEST);
    let mut text = format!("\n{}\n\n", title(record, width, ink));
    push_headline(&mut text, record, width, ink);
    for section in sections(record, width - BESIDE_BARS) {
        push_section(&mut text, &section, width, ink);
    }
    text
}

/// `── mailrun: quick ─────────────────── 2026-11-21T03:00:12Z ──`
fn title(record: &Record, width: usize, ink: Ink) -> String {
    let name = format!("── mailrun: {} ", plain(&record.name));
    let time = format!(" {} ──", plain(&record.started_at));
    let rule = width.saturating_sub(name.chars().count() + time.chars().count());
    bold(&format!("{name}{}{time}", "─".repeat(rule)), ink)
}

fn push_headline(text: &mut String, record: &Record, width: usize, ink: Ink) {
    let (mark, code) = mark(Headline::of(record));
    let first = format!("{mark} {}", Headline::of(record).name());
    let mut lines = String::new();
    push_wrapped(&mut lines, &plain(&headline::why(record)), &format!(" {first} "), "   ", width);
    // Painted after it is broken into lines: escape sequences have no width.
    text.push_str(&lines.replacen(&first, &painted(&first, code, ink), 1));
    for line in [headline::counts(record), headline::figures(record)] {
        push_wrapped(text, &plain(&line), "   ", "   ", width);
    }
    if headline::reasons(record).next().is_some() {
        text.push('\n');
    }
    for reason in headline::reasons(record) {
        push_wrapped(text, &plain(reason), " • ", "   ", width);
    }
}

fn push_section(text: &mut String, section: &Section, width: usize, ink: Ink) {
    text.push('\n');
    push_section_title(text, section, width, ink);
    match &section.body {
        Body::Figures(table) => {
            text.push_str(&table.terminal(width as u16));
            text.push('\n');
        }
        Body::Facts(facts) => push_facts(text, facts, width),
        Body::Sentence(sentence) => push_wrapped(text, &plain(sentence), " ", " ", width),
    }
}

/// `STAGES  what the reader must know`
fn push_section_title(text: &mut String, section: &Section, width: usize, ink: Ink) {
    let title = section.title.to_uppercase();
    let Some(note) = &section.note else {
        text.push_str(&format!("{}\n", bold(&title, ink)));
        return;
    };
    let first = format!("{title}  ");
    let mut lines = String::new();
    push_wrapped(&mut lines, &plain(note), &first, &" ".repeat(first.chars().count()), width);
    // Painted after it is broken into lines: escape sequences have no width.
    let notes = lines.strip_prefix(&title).unwrap_or(&lines);
    text.push_str(&bold(&title, ink));
    text.push_str(&painted(notes.trim_end_matches('\n'), "2", ink));
    text.push('\n');
}

fn push_facts(text: &mut String, facts: &[(&'static str, String)], width: usize) {
    let names = facts.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, fact) in facts {
        let first = format!(" {name:<names$}   ");
        push_wrapped(text, &plain(fact), &first, &" ".repeat(first.len()), width);
    }
}

/// Breaks `words` at spaces so that no line is wider than `width`, where a word is not itself.
fn push_wrapped(text: &mut String, words: &str, first: &str, rest: &str, width: usize) {
    let mut line = first.to_owned();
    let mut used = first.chars().count();
    let mut empty = true;
    for word in words.split(' ') {
        let letters = word.chars().count();
        if !empty && used + 1 + letters > width {
            text.push_str(line.trim_end());
            text.push('\n');
            line = rest.to_owned();
            used = rest.chars().count();
            empty = true;
        }
        if !empty {
            line.push(' ');
            used += 1;
        }
        line.push_str(word);
        used += letters;
        empty = false;
    }
    text.push_str(line.trim_end());
    text.push('\n');
}

fn bold(text: &str, ink: Ink) -> String {
    painted(text, "1", ink)
}

fn mark(headline: Headline) -> (&'static str, &'static str) {
    match headline {
        Headline::Judged(Outcome::Pass) => ("✔", "1;32"),
        Headline::Judged(Outcome::Fail) => ("✘", "1;31"),
        Headline::Judged(Outcome::Invalid) => ("!", "1;33"),
        Headline::Judged(Outcome::Inconclusive) => ("?", "1;33"),
        Headline::Received => ("•", "1"),
    }
}

fn painted(text: &str, code: &str, ink: Ink) -> String {
    match ink {
        Ink::Plain => text.to_owned(),
        Ink::Colour => format!("\u{1b}[{code}m{text}\u{1b}[0m"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn no_line_is_wider_than_asked() {
        for record in [sample::held(), sample::lossy(), sample::unwatched(), sample::sink_alone()] {
            for width in [80, 100, 300] {
                let text = terminal(&record, width);
                for line in text.lines() {
                    assert!(line.chars().count() <= width.min(WIDEST), "{width}: {line}\n{text}");
                }
            }
        }
    }

    #[test]
    fn the_outcome_comes_first() {
        let text = terminal(&sample::lossy(), 100);
        let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what} in\n{text}"));
        assert!(at("FAIL") < at("200 lost"));
        assert!(at("200 lost") < at("were accepted and never arrived"));
        assert!(at("were accepted and never arrived") < at("STAGES"));
    }

    #[test]
    fn plain_ink_has_no_escapes() {
        assert!(!terminal(&sample::held(), 100).contains('\u{1b}'));
        assert!(terminal_in(&sample::held(), 100, Ink::Colour).contains("\u{1b}[1;32m✔ PASS"));
    }

    #[test]
    fn a_hostile_record_moves_no_cursor() {
        let mut record = sample::lossy();
        record.name = "a\u{1b}[2Jb".to_owned();
        record.verdict.reasons = vec!["x\u{1b}[31m".to_owned()];
        record.workload.target = "\u{7}bell".to_owned();
        assert!(!terminal(&record, 100).contains(['\u{1b}', '\u{7}']));
    }

    #[test]
    fn long_words_are_left_whole() {
        let mut text = String::new();
        push_wrapped(&mut text, &format!("a {} b", "x".repeat(100)), "- ", "  ", 60);
        assert_eq!(text.lines().count(), 3, "{text}");
    }
}
