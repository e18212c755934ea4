//! The end of a report, which appears next to the prompt: the notes, the path of the details, and
//! the verdict.
use super::headline::{self, Headline};
use super::table::plain;
use super::text_style::{TextStyle, styled};
use super::wrap::{clipped_words, display_width, wrapped};
use mailrun_journey::record::{Outcome, Record};

const MAX_VERDICT_LINES: usize = 2;

/// Returns the end of a full report: the notes, the figures, the path of the details, and the
/// verdict.
pub(super) fn all(record: &Record, width: usize, style: TextStyle, details: Option<&str>) -> Vec<String> {
    let mut lines: Vec<String> = notes(record).iter().flat_map(|text| note(text, width)).collect();
    lines.extend(wrapped(&plain(&headline::figures(record)), "", "", width));
    lines.extend(details.map(|file| format!("details: {file}")));
    lines.extend(verdict(record, width, style));
    lines
}

/// Returns the notes. The first note is the advice that belongs to the verdict.
pub(crate) fn notes(record: &Record) -> Vec<String> {
    let reason = headline::why(record);
    let (_, advice) = first_sentence(&reason);
    let advice = (!advice.is_empty()).then(|| advice.to_owned());
    advice.into_iter().chain(headline::reasons(record).cloned()).collect()
}

/// Returns the notes that ask the reader to do something.
pub(super) fn notes_to_act_on(record: &Record) -> Vec<String> {
    notes(record).into_iter().filter(|text| text != mailrun_journey::judge::NO_SERVER).collect()
}

pub(super) fn note(text: &str, width: usize) -> Vec<String> {
    wrapped(&plain(text), "! ", "  ", width)
}

/// Returns the verdict in lines: its word, and then its reason.
pub(super) fn verdict(record: &Record, width: usize, style: TextStyle) -> Vec<String> {
    let (word, code) = word(record);
    let reason = plain(&headline::why(record));
    let (sentence, _) = first_sentence(&reason);
    let first = format!("{word} ");
    let mut lines = wrapped(sentence, &first, &" ".repeat(display_width(&first)), width);
    if lines.len() > MAX_VERDICT_LINES {
        lines.truncate(MAX_VERDICT_LINES);
        let last = lines.pop().unwrap_or_default();
        lines.push(clipped_words(&format!("{last} …"), width));
    }
    // Colour is added after wrapping, because the wrapping would count the escape sequences as
    // columns.
    lines[0] = lines[0].replacen(word, &styled(word, code, style), 1);
    lines
}

/// Returns the verdict in one line, with the rate and the latency.
pub(super) fn verdict_alone(record: &Record, style: TextStyle) -> String {
    let (word, code) = word(record);
    let reason = plain(&headline::why(record));
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

/// Splits off the first sentence. A full stop in brackets does not end it, because text in brackets
/// may come from a peer.
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
    fn a_verdict_has_two_lines_at_most() {
        let mut record = sample::lossy();
        record.verdict.outcome = Some(Outcome::Fail);
        record.verdict.why = "word ".repeat(100);
        let lines = verdict(&record, 80, TextStyle::Plain);
        assert!(lines.len() == 2 && lines[1].ends_with('…'), "{lines:?}");
        assert!(lines.iter().all(|line| display_width(line) <= 80), "{lines:?}");
    }

    #[test]
    fn alone_it_has_its_figures_with_it() {
        let expected = "PASS 200,000 delivered, none lost (54,321 msg/s, p99 3.10 ms)\n";
        assert_eq!(verdict_alone(&sample::held(), TextStyle::Plain), expected);
    }
}
