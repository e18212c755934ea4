//! What the program says on its standard error: each line begins with the word it was called by.
use std::io::{self, Write};

/// The name in front of every line.
#[derive(Debug)]
pub(super) struct Voice {
    called: String,
}

impl Voice {
    pub(super) fn new(called: &str) -> Self {
        Self { called: called.to_owned() }
    }

    /// Says a line; what cannot be printed becomes `?`, so that no client can write to the terminal.
    pub(super) fn say(&self, text: impl AsRef<[u8]>) {
        let mut line = printable(&[self.called.as_bytes(), b": ", text.as_ref()].concat());
        line.push('\n');
        // Nobody is left to be told of it.
        let _ = io::stderr().write_all(line.as_bytes());
    }

    pub(super) fn warn(&self, text: &str) {
        self.say(format!("warning: {text}"));
    }
}

/// Printable ASCII as it is, every other octet as `?`.
pub(super) fn printable(octets: &[u8]) -> String {
    octets.iter().map(|octet| if (b' '..=b'~').contains(octet) { char::from(*octet) } else { '?' }).collect()
}

/// What went wrong, as strerror(3) puts it: without the number that Rust adds.
pub(super) fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error ").next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_ascii() {
        assert_eq!(printable(b"a \t\x7f\xc3\xa9~\0"), "a ????~?");
    }

    #[test]
    fn reasons_are_the_systems_words() {
        assert_eq!(reason(&io::Error::from_raw_os_error(2)), "No such file or directory");
        assert_eq!(reason(&io::Error::other("disk on fire")), "disk on fire");
    }
}
