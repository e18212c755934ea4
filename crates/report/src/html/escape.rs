//! Makes texts of peers harmless in HTML, and in JSON inside HTML.
//!
//! An escaped text cannot open an element, break out of an attribute, end a script, or change the writing direction of
//! other text.
use mailrun_text::table::plain;
use serde_json::Value;

/// Maximum number of characters of a peer's text on the page. `run.json` contains the whole text.
const MAX_TEXT_CHARS: usize = 300;

/// Escapes a text for use in an element or in an attribute with double quotes. Cuts a text that is longer than
/// `MAX_TEXT_CHARS`.
pub(super) fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len() + 8);
    for letter in plain(clipped(text)).chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            letter => safe.push(letter),
        }
    }
    if clipped(text).len() < text.len() {
        safe.push('…');
    }
    safe
}

/// Escapes a text of a peer and puts it into a `<bdi>` element, so that it cannot change the writing direction of the
/// text around it.
pub(super) fn isolated(text: &str) -> String {
    format!("<bdi>{}</bdi>", escaped(text))
}

fn clipped(text: &str) -> &str {
    text.char_indices().nth(MAX_TEXT_CHARS).map_or(text, |(end, _)| &text[..end])
}

/// Writes a JSON value for use in a `<script>` element. Characters of markup are escaped, and so are the line
/// separators of JavaScript.
pub(super) fn json(value: &Value) -> String {
    let text = value.to_string();
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => safe.push_str(&format!("\\u{:04x}", u32::from(letter))),
            letter => safe.push(letter),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn markup_is_text() {
        let shown = escaped("<img src=x onerror='alert(1)'> & \"quotes\"");
        assert_eq!(shown, "&lt;img src=x onerror=&#39;alert(1)&#39;&gt; &amp; &quot;quotes&quot;");
        assert_eq!(escaped("a\u{202e}b\u{1b}[0m"), "a\u{fffd}b [0m");
        let long = "x".repeat(10 << 20);
        assert_eq!(escaped(&long).chars().count(), MAX_TEXT_CHARS + 1);
    }

    #[test]
    fn json_cannot_end_its_script() {
        let value = Value::from("</script><!-- \u{2028} & <script>");
        let text = json(&value);
        assert!(!text.contains(['<', '>', '&', '\u{2028}']), "{text}");
        assert_eq!(serde_json::from_str::<Value>(&text).expect("it is JSON still"), value);
    }

    proptest! {
        #[test]
        fn no_mark_is_left(text in "[a-z<>&\"'/!\\u{202e}\\u{2028}\\n -]{0,60}|.*") {
            let safe = escaped(&text);
            prop_assert!(!safe.contains(['<', '>', '"', '\'']), "{safe}");
            prop_assert!(!safe.chars().any(mailrun_text::printable::is_hidden), "{safe:?}");
            let value = Value::from(text);
            let safe = json(&value);
            prop_assert!(!safe.contains(['<', '>', '&', '\u{2028}', '\u{2029}']), "{safe}");
            prop_assert_eq!(serde_json::from_str::<Value>(&safe).expect("it is JSON still"), value);
        }
    }
}
