//! Makes texts from peers safe to print, by escaping characters that move the cursor, break a line or change the
//! writing direction.
use std::borrow::Cow;
use std::fmt::Write;

/// Returns true if a character is invisible and affects other text: control characters (ECMA-48),
/// line and paragraph separators, direction marks and overrides (Unicode TR 9; CVE-2021-42574), and
/// the byte order mark.
pub fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{61c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(character, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
        || matches!(character, '\u{e0000}'..='\u{e007f}')
}

/// Replaces hidden characters of a text with Rust's escapes, for example `\n` or `\u{1b}`. The
/// result has one line, because line breaks count as hidden characters.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if is_hidden(character) {
            // Ignore the result, because writing to a `String` cannot fail.
            let _ = write!(shown, "{}", character.escape_default());
        } else {
            shown.push(character);
        }
    }
    Cow::Owned(shown)
}

/// Shortens a peer's text to at most `max_chars` characters, for records that keep many such texts.
/// Removes white space at both ends, and replaces control characters with spaces.
pub fn clipped(text: &str, max_chars: usize) -> String {
    text.trim().chars().take(max_chars).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_hides_is_written_out_and_nothing_else_changes() {
        for (text, shown) in [
            ("Grüße, 日本 🙂 \\n", "Grüße, 日本 🙂 \\n"),
            ("a\r\nb\tc", r"a\r\nb\tc"),
            ("\u{1b}[2J\u{9b}1m\u{7f}", r"\u{1b}[2J\u{9b}1m\u{7f}"),
            ("a\u{202e}b\u{2066}c\u{2069}\u{200f}", r"a\u{202e}b\u{2066}c\u{2069}\u{200f}"),
            ("\u{feff}\u{2028}\u{e0041}", r"\u{feff}\u{2028}\u{e0041}"),
        ] {
            assert_eq!(printable(text), shown);
        }
    }

    proptest! {
        #[test]
        fn nothing_hidden_is_left(text in "\\PC*|[\\x00-\\x7f]*|.*") {
            prop_assert!(!printable(&text).chars().any(is_hidden));
        }
    }
}
