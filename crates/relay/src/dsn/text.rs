//! Makes texts of other hosts safe for a DSN, so that none of their lines can be mistaken for a line of the DSN.
use std::fmt::Write;

/// Maximum length, in bytes, of another host's text in a DSN. It is more than a reply line, which has at most 512 bytes
/// (RFC 5321 §4.5.3.1.5), and less than a line of a message, which has at most 998 bytes.
const MAX_TEXT_BYTES: usize = 800;
const FOLD_COLUMN: usize = 76;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Charset {
    Ascii,
    Utf8,
}

/// Puts a text on one line. A run of spaces, line ends and other control characters becomes a
/// space, and a character outside of the charset becomes `?`. Long text is cut.
pub(crate) fn sanitize(text: &[u8], charset: Charset) -> String {
    let mut out = String::with_capacity(text.len().min(MAX_TEXT_BYTES));
    for chunk in text.utf8_chunks() {
        let spoiled = if chunk.invalid().is_empty() { None } else { Some('?') };
        for c in chunk.valid().chars().chain(spoiled) {
            match c {
                _ if out.len() >= MAX_TEXT_BYTES => {
                    out.push_str("...");
                    return out;
                }
                _ if c.is_control() || c.is_whitespace() => {
                    if !out.is_empty() && !out.ends_with(' ') {
                        out.push(' ');
                    }
                }
                _ if c.is_ascii() || charset == Charset::Utf8 => out.push(c),
                _ => out.push('?'),
            }
        }
    }
    out.truncate(out.trim_end().len());
    out
}

/// Replaces each character that a host name, an address literal or a queue id cannot contain by `_`, and cuts the text
/// after 255 characters.
pub(crate) fn sanitize_token(name: &str) -> String {
    let fit = |c: char| if c.is_ascii_alphanumeric() || "-._:[]".contains(c) { c } else { '_' };
    name.chars().map(fit).take(255).collect()
}

/// Converts an address to ASCII for servers without SMTPUTF8. For example, `ä` becomes `\x{E4}`
/// (utf-8-addr-xtext, RFC 6533 §3).
pub(crate) fn ascii_address(address: &[u8]) -> String {
    let mut out = String::new();
    for c in String::from_utf8_lossy(address).chars() {
        match c {
            '\\' | '+' | '=' | ' ' => write!(out, "\\x{{{:02X}}}", u32::from(c)),
            _ if c.is_ascii_graphic() => write!(out, "{c}"),
            _ => write!(out, "\\x{{{:02X}}}", u32::from(c)),
        }
        .expect("a String takes any text");
    }
    out
}

/// Appends a text to `out`, folded between words into lines of at most `FOLD_COLUMN` bytes. Only a single long word may
/// make a line longer. The first line begins with `first`, and all other lines with `next`.
pub(crate) fn fold(text: &str, first: &str, next: &str, out: &mut String) {
    out.push_str(first);
    let mut column = first.len();
    let mut is_first = true;
    for word in text.split(' ') {
        if !is_first && column + 1 + word.len() > FOLD_COLUMN {
            out.push_str("\r\n");
            out.push_str(next);
            column = next.len();
        } else if !is_first {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += word.len();
        is_first = false;
    }
    out.push_str("\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_table_of_plain_texts() {
        let rows: [(&[u8], &str, &str); 8] = [
            (b"", "", ""),
            (b"  a \t\r\n b\0c  ", "a b c", "a b c"),
            (b"\r\n.\r\n", ".", "."),
            ("zu groß".as_bytes(), "zu gro?", "zu groß"),
            (b"gro\xdf", "gro?", "gro?"),
            ("a\u{2028}b\u{85}c".as_bytes(), "a b c", "a b c"),
            (b"\r\n\r\n", "", ""),
            (b"\xc3", "?", "?"),
        ];
        for (text, ascii, utf8) in rows {
            assert_eq!(
                (sanitize(text, Charset::Ascii).as_str(), sanitize(text, Charset::Utf8).as_str()),
                (ascii, utf8)
            );
        }
        let long = sanitize(&[b'x'; 5000], Charset::Ascii);
        assert!(long.ends_with("x...") && long.len() == MAX_TEXT_BYTES + 3);
    }

    #[test]
    fn addresses_in_ascii_can_be_read_back() {
        assert_eq!(ascii_address("jürgen+x@beispiel.de".as_bytes()), "j\\x{FC}rgen\\x{2B}x@beispiel.de");
        assert_eq!(ascii_address(b"\"a b\\c\"@d"), "\"a\\x{20}b\\x{5C}c\"@d");
    }

    #[test]
    fn a_long_text_is_folded_at_its_blanks() {
        let mut out = String::new();
        fold("word ".repeat(20).trim_end(), "Name: ", "  ", &mut out);
        assert_eq!(out, format!("Name: {}\r\n  {}\r\n", ["word"; 14].join(" "), ["word"; 6].join(" ")));
    }

    proptest! {
        #[test]
        fn no_text_makes_a_line(text in proptest::collection::vec(any::<u8>(), 0..3000)) {
            for charset in [Charset::Ascii, Charset::Utf8] {
                let plain = sanitize(&text, charset);
                let is_line = !plain.contains(['\r', '\n', '\0']);
                prop_assert!(is_line && (charset == Charset::Utf8 || plain.is_ascii()));
                let mut out = String::new();
                fold(&plain, "Diagnostic-Code: smtp; 550 ", " ", &mut out);
                let fits = out.split("\r\n").all(|line| line.len() <= 998 && !line.contains(['\r', '\n']));
                prop_assert!(fits);
                let unfolded = out.replace("\r\n ", " ");
                let expected = format!("Diagnostic-Code: smtp; 550 {plain}");
                prop_assert_eq!(unfolded.trim_end(), expected.trim_end());
            }
        }
    }
}
