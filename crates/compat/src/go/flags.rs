//! Parses command lines as Go's flag package does: `-x v`, `-x=v` and `--x`. Unlike in getopt(3), letters cannot be
//! joined. The flags end at `--` or at the first word that is not a flag.
use super::numbers::BadNumber;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadFlag {
    /// A mistake in one of mailrun's own options, which the imitated program does not have.
    #[error("{0}")]
    OwnOption(String),
    #[error("bad flag syntax: {0}")]
    Syntax(String),
    #[error("flag provided but not defined: -{0}")]
    Unknown(String),
    #[error("flag needs an argument: -{0}")]
    NeedsArgument(String),
    #[error("invalid value {} for flag -{name}: {why}", quoted(.value.as_bytes()))]
    Value { name: String, value: String, why: BadNumber },
    #[error("invalid boolean value {} for -{name}: {why}", quoted(.value.as_bytes()))]
    Boolean { name: String, value: String, why: BadNumber },
    /// The user asked for the usage with `-h`, which is not a mistake.
    #[error("help requested")]
    Help,
    /// A value that mailrun refuses, because with it the imitated program would crash, hang or exhaust memory.
    #[error("invalid value \"{value}\" for flag -{name}: {why}")]
    Refused { name: &'static str, value: String, why: &'static str },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlagKind {
    Boolean,
    Valued,
}

/// Parses the flags in `words` up to `--` or the first word that is not a flag, and passes the name and the value of
/// each flag to `set`. Returns the remaining words.
pub(crate) fn parse(
    mut words: &[String],
    kind: impl Fn(&str) -> Option<FlagKind>,
    mut set: impl FnMut(&str, &str) -> Result<(), BadNumber>,
) -> Result<&[String], BadFlag> {
    while let Some((word, rest)) = words.split_first() {
        if word.len() < 2 || !word.starts_with('-') {
            break;
        }
        words = rest;
        if word == "--" {
            break;
        }
        let typed = word.strip_prefix("--").unwrap_or(&word[1..]);
        if typed.starts_with(['-', '=']) {
            return Err(BadFlag::Syntax(word.clone()));
        }
        let (name, value) = typed.split_once('=').map_or((typed, None), |(name, value)| (name, Some(value)));
        match kind(name) {
            None if name == "help" || name == "h" => return Err(BadFlag::Help),
            None => return Err(BadFlag::Unknown(name.to_owned())),
            Some(FlagKind::Boolean) => set(name, value.unwrap_or("true")).map_err(|why| {
                let value = value.unwrap_or_default().to_owned();
                BadFlag::Boolean { name: name.to_owned(), value, why }
            })?,
            Some(FlagKind::Valued) => {
                let value = match (value, words.split_first()) {
                    (Some(value), _) => value,
                    (None, Some((next, rest))) => {
                        words = rest;
                        next
                    }
                    (None, None) => return Err(BadFlag::NeedsArgument(name.to_owned())),
                };
                set(name, value).map_err(|why| BadFlag::Value {
                    name: name.to_owned(),
                    value: value.to_owned(),
                    why,
                })?;
            }
        }
    }
    Ok(words)
}

/// Puts a text in double quotes as Go's `%q` does. Bytes that are not valid UTF-8 are escaped one by one.
pub(crate) fn quoted(text: &[u8]) -> String {
    let mut out = String::from('"');
    for chunk in text.utf8_chunks() {
        chunk.valid().chars().for_each(|c| quote(c, '"', &mut out));
        chunk.invalid().iter().for_each(|octet| out.push_str(&format!("\\x{octet:02x}")));
    }
    out.push('"');
    out
}

/// Writes one character of a quoted text as Go does. `mark` is the quotation mark around the text. If `c` is this mark,
/// it is escaped.
pub(crate) fn quote(c: char, mark: char, out: &mut String) {
    let short = match c {
        '\u{7}' => 'a',
        '\u{8}' => 'b',
        '\u{c}' => 'f',
        '\n' => 'n',
        '\r' => 'r',
        '\t' => 't',
        '\u{b}' => 'v',
        _ if c == mark || c == '\\' => c,
        // Do not escape characters that Rust considers printable. Go disagrees about a few of them.
        _ if matches!(c, '\'' | '"') || c.escape_debug().len() == 1 => return out.push(c),
        _ => {
            let number = u32::from(c);
            return out.push_str(&match number {
                0..=0x7f => format!("\\x{number:02x}"),
                0x80..=0xffff => format!("\\u{number:04x}"),
                _ => format!("\\U{number:08x}"),
            });
        }
    };
    out.extend(['\\', short]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(words: &[&str]) -> (Vec<String>, Result<Vec<String>, String>) {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let kind = |name: &str| match name {
            "b" => Some(FlagKind::Boolean),
            "v" | "long-one" => Some(FlagKind::Valued),
            _ => None,
        };
        let mut seen = Vec::new();
        let rest = parse(&words, kind, |name, value| {
            seen.push(format!("{name}:{value}"));
            if value == "bad" { Err(BadNumber::Syntax) } else { Ok(()) }
        });
        let rest = rest.map(<[String]>::to_vec).map_err(|bad| bad.to_string());
        (seen, rest)
    }

    #[test]
    fn all_forms_of_a_flag() {
        let (seen, rest) = read(&["-b", "--b=0", "-v", "-x", "--v=a=b", "-long-one", "", "-v=", "host", "-b"]);
        assert_eq!(seen, ["b:true", "b:0", "v:-x", "v:a=b", "long-one:", "v:"]);
        assert_eq!(rest.unwrap(), ["host", "-b"]);
        assert_eq!(read(&["-b", "--", "-b"]).1.unwrap(), ["-b"]);
        assert_eq!(read(&["-"]).1.unwrap(), ["-"]);
        assert_eq!(read(&["-b", "x"]).1.unwrap(), ["x"], "a boolean's value is joined to it");
    }

    #[test]
    fn complaints_are_gos() {
        let rows: [(&[&str], &str); 10] = [
            (&["-x"], "flag provided but not defined: -x"),
            (&["-bv"], "flag provided but not defined: -bv"),
            (&["-v"], "flag needs an argument: -v"),
            (&["---b"], "bad flag syntax: ---b"),
            (&["-=b"], "bad flag syntax: -=b"),
            (&["--=b"], "bad flag syntax: --=b"),
            (&["-v", "bad"], "invalid value \"bad\" for flag -v: parse error"),
            (&["-b=bad"], "invalid boolean value \"bad\" for -b: parse error"),
            (&["-h"], "help requested"),
            (&["--help=x"], "help requested"),
        ];
        for (words, expected) in rows {
            assert_eq!(read(words).1.unwrap_err(), expected, "{words:?}");
        }
    }

    #[test]
    fn quotes_are_gos() {
        assert_eq!(quoted(b"a\"b'\\\r\n\x01\x7f\xffz"), r#""a\"b'\\\r\n\x01\x7f\xffz""#);
        assert_eq!(quoted("é\u{ad}".as_bytes()), "\"é\\u00ad\"");
    }

    proptest! {
        #[test]
        fn any_words_are_read_or_refused(words in "([-=dmRfxé\"]{0,4}|[-+0-9a-fxob_.]{0,12}|\n){0,9}") {
            crate::checks::go_flags::check(words.as_bytes());
        }
    }
}
