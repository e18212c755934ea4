//! What the program says on standard error, in Postfix's way: the name it was called by, a label, one line.
use super::super::getopt::BadOption;
use crate::personality::printable::printable;
use std::io::{self, Write};

/// What is said while mail goes on.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Remark {
    /// Only with `-v`.
    Info(String),
    /// Something failed, and it goes on.
    Warning(String),
}

/// What ends the program with status 1.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Fatal(pub(super) String);

/// What is wrong with the command line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Misuse {
    /// No such option, or not one address: how it is used.
    Usage(Option<BadOption>),
    /// An argument is no good; a warning before may say more.
    Bad { warning: Option<String>, fatal: String },
}

impl Misuse {
    pub(super) fn bad(fatal: String) -> Self {
        Self::Bad { warning: None, fatal }
    }
}

/// Says it all.
#[derive(Debug)]
pub(super) struct Voice {
    called: String,
}

impl Voice {
    pub(super) fn new(called: &str) -> Self {
        Self { called: called.to_owned() }
    }

    pub(super) fn remark(&self, remark: &Remark) {
        match remark {
            Remark::Info(text) => self.say("", text),
            Remark::Warning(text) => self.say("warning: ", text),
        }
    }

    pub(super) fn fatal(&self, text: &str) {
        self.say("fatal: ", text);
    }

    pub(super) fn misuse(&self, misuse: &Misuse) {
        match misuse {
            Misuse::Usage(bad) => {
                if let Some(bad) = bad {
                    self.say("", &bad.to_string());
                }
                self.fatal(&format!("usage: {} {USAGE}", self.called));
            }
            Misuse::Bad { warning, fatal } => {
                if let Some(warning) = warning {
                    self.say("warning: ", warning);
                }
                self.fatal(fatal);
            }
        }
    }

    fn say(&self, label: &str, text: &str) {
        let line = format!("{}: {label}{}\n", self.called, printable(text.as_bytes()));
        // Without a standard error there is nobody to tell.
        let _ = io::stderr().write_all(line.as_bytes());
    }
}

const USAGE: &str = "-cdLNov -s sess -l msglen -m msgs -C count -M myhostname -f from -t to -r rcptcount -R delay -w \
                     delay host[:port]";
