//! The end of a report: the notes, the path of the file with the details, and the verdict. The verdict comes last, so
//! that it stands directly above the prompt of the shell.
use super::headline::{self, Headline};
use mailrun_measurement::record::{Outcome, Record};
use mailrun_text::table::plain;
use mailrun_text::wrap::{clipped_words, display_width, wrapped};

/// Maximum width of the verdict's sentence in columns. A wider sentence is cut off. A sentence is so wide only if it
/// quotes a long reply of a peer.
const MAX_VERDICT_WIDTH: usize = 400;
const MAX_VERDICT_LINES: usize = 8;

pub(super) fn all(record: &Record, width: usize, style: TextStyle, details: Option<&str>) -> Vec<String> {
    let mut lines: Vec<String> = notes(record).iter().flat_map(|text| note(text, width)).collect();
    lines.extend(wrapped(&plain(&headline::figures(record)), "", "", width));
    lines.extend(details.map(|file| format!("details: {file}")));
    lines.extend(verdict(record, width, style));
    lines
}

/// Returns the notes of a report: first the advice, which is the part of the verdict after its first sentence, and then
/// the other reasons for the verdict.
pub(crate) fn notes(record: &Record) -> Vec<String> {
    let (_, advice) = first_sentence(&record.verdict.why);
    let advice = (!advice.is_empty()).then(|| advice.to_owned());
    advice.into_iter().chain(headline::reasons(record).cloned()).collect()
}

/// Returns the notes that ask the reader to do something. The note that no server was measured is left out, because it
/// requires no action.
pub(super) fn notes_to_act_on(record: &Record) -> Vec<String> {
    notes(record).into_iter().filter(|text| text != mailrun_measurement::judge::NO_SERVER).collect()
}

/// Wraps a note into lines of at most `width` columns. A command in backticks gets a line of its own, so that the
/// reader can copy it.
pub(super) fn note(text: &str, width: usize) -> Vec<String> {
    let text = plain(text);
    let mut lines: Vec<String> = Vec::new();
    let mut rest = text.as_str();
    while let Some((before, command, after)) = split_command(rest) {
        let first = if lines.is_empty() { "! " } else { "  " };
        lines.extend(wrapped(before, first, "  ", width));
        lines.extend(wrapped(command, "    ", "    ", width));
        rest = after.strip_prefix(['.', ',', ';']).unwrap_or(after).trim_start();
    }
    if lines.is_empty() {
        return wrapped(rest, "! ", "  ", width);
    }
    if !rest.is_empty() {
        lines.extend(wrapped(rest, "  ", "  ", width));
    }
    lines
}

/// Finds the first command in backticks. Returns the text before it, the command, and the text after it. Backticks in
/// brackets do not count, because the text in brackets may come from a peer.
fn split_command(text: &str) -> Option<(&str, &str, &str)> {
    let mut depth = 0_usize;
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            '`' if depth == 0 => {
                let (command, after) = text[at + 1..].split_once('`')?;
                return Some((text[..at].trim_end(), command, after));
            }
            _ => {}
        }
    }
    None
}

pub(super) fn verdict(record: &Record, width: usize, style: TextStyle) -> Vec<String> {
    let (word, code) = word(record);
    let reason = plain(&record.verdict.why);
    let (sentence, _) = first_sentence(&reason);
    let first = format!("{word} ");
    let mut lines = wrapped(sentence, &first, &" ".repeat(display_width(&first)), width);
    let max_lines = MAX_VERDICT_WIDTH.div_ceil(width).min(MAX_VERDICT_LINES);
    if lines.len() > max_lines {
        lines.truncate(max_lines);
        let last = lines.pop().unwrap_or_default();
        lines.push(clipped_words(&format!("{last} …"), width));
    }
    // Add colour only after wrapping, because wrapping would count the escape sequences as columns.
    lines[0] = lines[0].replacen(word, &styled(word, code, style), 1);
    lines
}

/// Returns the verdict on one line, followed by the rate and the latency in brackets.
pub(super) fn verdict_alone(record: &Record, style: TextStyle) -> String {
    let (word, code) = word(record);
    let reason = plain(&record.verdict.why);
    let (sentence, _) = first_sentence(&reason);
    let figures = headline::rate_and_p99(record).map_or_else(String::new, |figures| format!(" ({figures})"));
    format!("{} {}{figures}\n", styled(word, code, style), sentence.trim_end_matches('.'))
}

fn word(record: &Record) -> (&'static str, &'static str) {
    let headline = Headline::of(record);
    (headline.name(), colour(headline))
}

fn colour(headline: Headline) -> &'static str {
    match headline {
        Headline::Judged(Outcome::Pass) => "1;32",
        Headline::Judged(Outcome::Fail) => "1;31",
        Headline::Judged(Outcome::Invalid | Outcome::Inconclusive) => "1;33",
        Headline::Received | Headline::Sent => "1",
    }
}

pub fn outcome_word(outcome: Outcome, style: TextStyle) -> String {
    let headline = Headline::Judged(outcome);
    styled(headline.name(), colour(headline), style)
}

/// Splits a text after its first sentence. A full stop in brackets does not end the sentence, because the text in
/// brackets may come from a peer and contain several sentences.
pub(crate) fn first_sentence(text: &str) -> (&str, &str) {
    let mut depth = 0_usize;
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            '.' if depth == 0 && text[at..].starts_with(". ") => return (&text[..=at], text[at + 1..].trim_start()),
            _ => {}
        }
    }
    (text, "")
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TextStyle {
    /// Text without escape sequences, for files and pipes.
    #[default]
    Plain,
    /// Text with bold titles, faint notes and coloured outcomes, for terminals.
    Colour,
}

pub(super) fn bold(text: &str, style: TextStyle) -> String {
    styled(text, "1", style)
}

/// Wraps `text` in the escape sequences for `code` (SGR, ECMA-48), unless the style is plain.
pub(super) fn styled(text: &str, code: &str, style: TextStyle) -> String {
    match style {
        TextStyle::Plain => text.to_owned(),
        TextStyle::Colour => format!("\u{1b}[{code}m{text}\u{1b}[0m"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn advice_is_a_remark_and_the_reason_a_sentence() {
        let text = "100 messages were rejected (at rcpt: 450 4.2.0 Busy. Try later). Use fewer --sessions. Or wait.";
        let (sentence, advice) = first_sentence(text);
        assert_eq!(sentence, "100 messages were rejected (at rcpt: 450 4.2.0 Busy. Try later).");
        assert_eq!(advice, "Use fewer --sessions. Or wait.");
        let mut record = sample::lossy();
        record.verdict.outcome = Some(Outcome::Fail);
        record.verdict.why = text.to_owned();
        assert_eq!(verdict(&record, 200, TextStyle::Plain), [format!("FAIL {sentence}")]);
        assert_eq!(notes(&record)[0], advice);
    }

    #[test]
    fn a_command_stands_on_a_line_of_its_own() {
        let lines = note("Mail is missing. Look into the queue with `postqueue -p`. A longer --lost-after waits.", 40);
        let expected =
            ["! Mail is missing. Look into the queue", "  with", "    postqueue -p", "  A longer --lost-after waits."];
        assert_eq!(lines, expected);
        assert_eq!(
            note("a (at rcpt: 550 `x` y) b", 80),
            ["! a (at rcpt: 550 `x` y) b"],
            "a peer's words are no command"
        );
        assert_eq!(note("Raise it: `ulimit -n 4096`.", 80), ["! Raise it:", "    ulimit -n 4096"]);
    }

    #[test]
    fn a_sentence_of_our_own_is_never_cut_and_an_endless_one_is() {
        let mut record = sample::lossy();
        record.verdict.outcome = Some(Outcome::Fail);
        record.verdict.why = "word ".repeat(60);
        let whole = verdict(&record, 80, TextStyle::Plain);
        assert!(whole.len() == 4 && !whole.concat().contains('…'), "{whole:?}");
        record.verdict.why = "word ".repeat(1000);
        let lines = verdict(&record, 80, TextStyle::Plain);
        assert!(lines.len() == 5 && lines[4].ends_with('…'), "{lines:?}");
        assert!(lines.iter().all(|line| display_width(line) <= 80), "{lines:?}");
    }

    #[test]
    fn alone_it_has_its_figures_with_it() {
        let expected = "PASS 200,000 delivered, none lost (54,321 msg/s, p99 3.10 ms)\n";
        assert_eq!(verdict_alone(&sample::held(), TextStyle::Plain), expected);
    }
}
