//! Prints messages on standard error in Postfix's format: one line that begins with the word by which the program was
//! called and, for warnings and errors, a label. An example is `smtp-sink: warning: read timeout`.
use std::io::{self, Write};

#[derive(Debug)]
pub(super) struct StderrWriter {
    pub(super) program: String,
}

impl StderrWriter {
    pub(super) fn new(called: &str) -> Self {
        Self { program: called.to_owned() }
    }

    /// Prints a line, with `?` for each character that is not printable, so that no peer can control the terminal.
    pub(super) fn print(&self, text: impl AsRef<[u8]>) {
        let line = format!("{}: {}\n", self.program, printable(text.as_ref()));
        // Ignore the error, because there is no other place to report that standard error cannot be written.
        let _ = io::stderr().write_all(line.as_bytes());
    }

    pub(super) fn warn(&self, text: &str) {
        self.print(format!("warning: {text}"));
    }

    pub(super) fn fatal(&self, text: &str) {
        self.print(format!("fatal: {text}"));
    }
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct FatalError(pub(crate) String);

/// Keeps printable ASCII characters, and replaces every other byte with `?`, as Postfix does. This prevents a peer from
/// forging a line with a text that contains a line break.
pub(super) fn printable(octets: &[u8]) -> String {
    octets.iter().map(|octet| if (b' '..=b'~').contains(octet) { char::from(*octet) } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_ascii() {
        assert_eq!(printable(b"a \t\x7f\xc3\xa9~\0"), "a ????~?");
    }

    #[test]
    fn no_text_forges_a_line() {
        assert_eq!(printable("a\r\nb\tä~".as_bytes()), "a??b???~");
    }
}
