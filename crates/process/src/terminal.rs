//! Finds out what a terminal can show: its width, characters beyond ASCII, and colours.
//!
//! ```text
//! letters   LC_ALL, else LC_CTYPE, else LANG names UTF-8   UTF-8        as the C library decides; C if none is set
//!           anything else, or TERM=dumb                     ASCII       one character for each: columns stay aligned
//! colour    --color always | never                          so
//!           auto: a terminal, no NO_COLOR, TERM not dumb    colour, else none
//! ```
use std::env;
use std::ffi::OsString;
use std::os::fd::AsFd;

/// Returns the width of a terminal in columns. Returns `None` if the stream is not a terminal or
/// its width is unknown.
pub fn width(stream: &impl AsFd) -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(stream).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Characters that may appear in an output, because the user's locale and terminal can display them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CharacterSet {
    #[default]
    Utf8,
    Ascii,
}

impl CharacterSet {
    pub fn of_environment() -> Self {
        Self::of(|name| env::var_os(name))
    }

    /// Returns the characters that the locale and the terminal support. `variable` returns the value of an environment
    /// variable, such as LANG or TERM.
    pub fn of(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set).unwrap_or_default();
        let locale = locale.to_string_lossy().to_ascii_lowercase();
        let names_utf8 = locale.contains("utf-8") || locale.contains("utf8");
        let is_dumb = variable("TERM").is_some_and(|term| term == "dumb");
        if names_utf8 && !is_dumb { Self::Utf8 } else { Self::Ascii }
    }

    /// Replaces the characters of `text` that cannot be displayed. Each of them becomes a single ASCII character, so
    /// that columns stay aligned.
    pub fn encode(self, text: &str) -> String {
        match self {
            Self::Utf8 => text.to_owned(),
            Self::Ascii => text.chars().map(ascii).collect(),
        }
    }
}

fn ascii(letter: char) -> char {
    match letter {
        letter if letter.is_ascii() => letter,
        '─' | '━' | '–' | '—' | '−' => '-',
        '·' | '•' => '*',
        '├' | '│' => '|',
        '└' => '`',
        '→' | '▶' => '>',
        '≤' => '<',
        '≥' => '>',
        '×' => 'x',
        'µ' | 'μ' => 'u',
        '…' => '~',
        '±' => '~',
        '\u{a0}' | '\u{202f}' => ' ',
        '▁' => '_',
        '▂' => '.',
        '▃' => ':',
        '▄' => '-',
        '▅' => '=',
        '▆' => '+',
        '▇' => '*',
        '█' => '#',
        _ => '?',
    }
}

/// When an output has colours (`--color`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Color {
    /// Colours on a terminal, unless NO_COLOR is set or TERM is dumb
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

impl Color {
    pub fn is_enabled(self, is_terminal: bool) -> bool {
        self.decide(is_terminal, |name| env::var_os(name))
    }

    fn decide(self, is_terminal: bool, variable: impl Fn(&str) -> Option<OsString>) -> bool {
        match self {
            Self::Always => true,
            Self::Never => false,
            Self::Auto => {
                let is_refused = variable("NO_COLOR").is_some_and(|value| !value.is_empty());
                is_terminal && !is_refused && variable("TERM").is_none_or(|term| term != "dumb")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<'a>(set: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<OsString> + 'a {
        |name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
    }

    #[test]
    fn letters_are_chosen_as_the_c_library_does() {
        let rows: [(&[(&str, &str)], CharacterSet); 10] = [
            (&[], CharacterSet::Ascii),
            (&[("LANG", "C.UTF-8")], CharacterSet::Utf8),
            (&[("LANG", "de_DE.utf8")], CharacterSet::Utf8),
            (&[("LANG", "de_DE@euro")], CharacterSet::Ascii),
            (&[("LANG", "C.UTF-8"), ("LC_ALL", "C")], CharacterSet::Ascii),
            (&[("LANG", "C.UTF-8"), ("LC_ALL", "")], CharacterSet::Utf8),
            (&[("LANG", "C.UTF-8"), ("LC_CTYPE", "POSIX")], CharacterSet::Ascii),
            (&[("LANG", "C"), ("LC_CTYPE", "en_US.UTF-8")], CharacterSet::Utf8),
            (&[("LANG", "C"), ("LC_CTYPE", "C"), ("LC_ALL", "en_US.UTF-8")], CharacterSet::Utf8),
            (&[("LANG", "C.UTF-8"), ("TERM", "dumb")], CharacterSet::Ascii),
        ];
        for (set, letters) in rows {
            assert_eq!(CharacterSet::of(of(set)), letters, "{set:?}");
        }
    }

    #[test]
    fn colours_are_for_terminals_that_have_them() {
        let plain: &[(&str, &str)] = &[("TERM", "xterm")];
        assert!(Color::Auto.decide(true, of(plain)) && !Color::Auto.decide(false, of(plain)));
        assert!(Color::Auto.decide(true, of(&[("NO_COLOR", "")])), "an empty NO_COLOR says nothing (no-color.org)");
        for set in [("NO_COLOR", "1"), ("TERM", "dumb")] {
            assert!(!Color::Auto.decide(true, of(&[set])), "{set:?}");
            assert!(Color::Always.decide(false, of(&[set])), "{set:?}");
        }
        assert!(!Color::Never.decide(true, of(plain)));
    }

    #[test]
    fn ascii_keeps_columns() {
        let text = "p50 850 µs · max ≤ 1 s – ▁▂▃▄▅▆▇█ → größer 漢…";
        let plain = CharacterSet::Ascii.encode(text);
        assert!(plain.is_ascii(), "{plain}");
        assert_eq!(plain.chars().count(), text.chars().count());
        assert!(plain.contains("850 us * max < 1 s - _.:-=+*# > gr??er"), "{plain}");
        assert_eq!(CharacterSet::Utf8.encode(text), text);
    }
}
