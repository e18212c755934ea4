//! What the program says on its standard error: each line begins with the word it was called by.
use crate::personality::printable::printable;
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
