//! Messages on standard error in Postfix's format: the word that the program was called by, a label
//! and one line.
use super::printable::printable;
use std::io::{self, Write};

#[derive(Debug)]
pub(super) struct StderrWriter {
    pub(super) program: String,
}

impl StderrWriter {
    pub(super) fn new(called: &str) -> Self {
        Self { program: called.to_owned() }
    }

    /// Prints a line. Characters that cannot be printed become `?`, so that no peer can control the
    /// terminal.
    pub(super) fn print(&self, text: impl AsRef<[u8]>) {
        let line = format!("{}: {}\n", self.program, printable(text.as_ref()));
        // If standard error cannot be written, there is no place to report that.
        let _ = io::stderr().write_all(line.as_bytes());
    }

    pub(super) fn warn(&self, text: &str) {
        self.print(format!("warning: {text}"));
    }

    pub(super) fn fatal(&self, text: &str) {
        self.print(format!("fatal: {text}"));
    }
}
