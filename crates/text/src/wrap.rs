//! Wraps text between words. A number stays on the same line as its unit if both fit on one line.
//! A word that is wider than a line is broken, so that no line is too wide.
use std::collections::VecDeque;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Units, which stay on the same line as the number before them.
const UNITS: [&str; 18] = [
    "%", "B", "KiB", "MiB", "GiB", "TiB", "s", "ms", "µs", "min", "h", "msg/s", "MiB/s", "cores", "core", "messages",
    "message", "seconds",
];
/// Minimum number of columns for words in each line. If a line prefix leaves fewer columns, the prefix is left out.
const MIN_TEXT_WIDTH: usize = 12;

pub fn display_width(text: &str) -> usize {
    text.width()
}

/// Cuts `text` to at most `width` columns. The mark `…` replaces the rest.
pub fn clipped(text: &str, width: usize) -> String {
    if display_width(text) <= width {
        return text.to_owned();
    }
    let (head, _) = split_at(text, width.saturating_sub(1));
    format!("{head}…")
}

/// Cuts a text like `clipped`, but between words if possible.
pub fn clipped_words(text: &str, width: usize) -> String {
    if display_width(text) <= width {
        return text.to_owned();
    }
    let (head, _) = split_at(text, width.saturating_sub(1));
    let whole =
        if text[head.len()..].starts_with(' ') { Some(head) } else { head.rsplit_once(' ').map(|(words, _)| words) };
    match whole.map(str::trim_end).filter(|words| !words.is_empty()) {
        Some(words) => format!("{words}…"),
        None => format!("{head}…"),
    }
}

/// Returns `words` in lines of at most `width` columns. The first line begins with `first`, and the
/// others begin with `rest`.
pub fn wrapped(words: &str, first: &str, rest: &str, width: usize) -> Vec<String> {
    if display_width(first) >= width {
        return wrapped(&format!("{first}{words}"), "", rest, width);
    }
    // Leave out the prefix of further lines if it would leave too few columns for the words.
    let rest = if width < display_width(rest) + MIN_TEXT_WIDTH { "" } else { rest };
    let mut lines = Vec::new();
    let mut line = first.to_owned();
    let mut is_empty = true;
    let mut words: VecDeque<String> = words_with_units(words).into();
    while let Some(word) = words.pop_front() {
        let space = if is_empty { "" } else { " " };
        if display_width(&line) + space.len() + display_width(&word) <= width {
            line.push_str(space);
            line.push_str(&word);
            is_empty = false;
            continue;
        }
        if !is_empty || !line.trim().is_empty() {
            lines.push(std::mem::take(&mut line).trim_end().to_owned());
        }
        line = if display_width(rest) + display_width(&word) <= width { rest.to_owned() } else { String::new() };
        is_empty = true;
        if display_width(&line) + display_width(&word) <= width {
            words.push_front(word);
        } else if let Some((number, unit)) = word.split_once(' ') {
            words.push_front(unit.to_owned());
            words.push_front(number.to_owned());
        } else {
            // Take at least two columns, so that even a wide character fits. Otherwise the loop would never end.
            let (head, tail) = split_at(&word, width.max(2));
            lines.push(head.to_owned());
            words.push_front(tail.to_owned());
        }
    }
    if !is_empty || lines.is_empty() {
        lines.push(line.trim_end().to_owned());
    }
    lines
}

pub fn longest_word(text: &str) -> usize {
    text.split(' ').map(display_width).max().unwrap_or(0)
}

/// Splits a text at its spaces. A number and its unit count as one word, so that no line break separates them.
fn words_with_units(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let bare = word.trim_end_matches([',', '.', ';', ':', ')', '…']);
        let follows_number =
            words.last().is_some_and(|last| last.ends_with(|character: char| character.is_ascii_digit()));
        match words.last_mut() {
            Some(last) if follows_number && UNITS.contains(&bare) => {
                last.push(' ');
                last.push_str(word);
            }
            _ => words.push(word.to_owned()),
        }
    }
    words
}

fn split_at(text: &str, width: usize) -> (&str, &str) {
    let mut columns = 0;
    for (at, character) in text.char_indices() {
        columns += character.width().unwrap_or(0);
        if columns > width {
            return text.split_at(at);
        }
    }
    (text, "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_number_stays_with_its_unit() {
        let lines = wrapped("it took 12.5 ms, then 4 s.", " ! ", "   ", 16);
        assert_eq!(lines, [" ! it took", "   12.5 ms, then", "   4 s."]);
    }

    #[test]
    fn a_word_that_is_too_long_is_broken_and_an_indent_that_is_too_wide_left_out() {
        assert_eq!(wrapped("abcdefghijklmnop", "", "", 6), ["abcdef", "ghijkl", "mnop"]);
        assert_eq!(wrapped("one two", "name:         ", "              ", 16), ["name:", "one two"]);
        assert_eq!(
            wrapped("1,234,567 messages lost", "FAIL ", "     ", 17),
            ["FAIL", "1,234,567", "     messages", "     lost"]
        );
        assert_eq!(wrapped("", "x ", "  ", 10), ["x"]);
    }

    #[test]
    fn clipping_counts_columns_and_not_letters() {
        assert_eq!(clipped("abc", 3), "abc");
        assert_eq!(clipped("abcd", 3), "ab…");
        assert_eq!(clipped("日本語", 4), "日…", "each takes two columns");
        assert_eq!(clipped_words("450 4.2.0 Busy", 10), "450 4.2.0…");
        assert_eq!(clipped_words("450 4.2.0 Busy", 8), "450…");
        assert_eq!(clipped_words("abcdefgh", 4), "abc…");
    }

    proptest! {
        #[test]
        fn no_line_is_too_wide_and_no_word_is_lost(words in "([a-z0-9]{1,30} |日本 |[0-9]{1,3} ms ){0,12}", width in 20usize..120) {
            let lines = wrapped(&words, " • ", "   ", width);
            for line in &lines {
                prop_assert!(display_width(line) <= width, "{line}");
            }
            let characters = |text: &str| text.replace([' ', '•'], "");
            prop_assert_eq!(characters(&lines.concat()), characters(&words));
        }
    }
}
