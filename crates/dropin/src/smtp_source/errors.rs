//! Messages of the program on standard error, in Postfix's format: the name it was called by, a label, one line.
use crate::getopt::BadOption;
use crate::stderr::StderrWriter;

/// A message while the run goes on.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Diagnostic {
    /// Information, with `-v` only.
    Info(String),
    /// A failure that does not end the run.
    Warning(String),
}

/// An error that ends the program with status 1.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct FatalError(pub(super) String);

/// An error in the command line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CommandLineError {
    /// An unknown option, or not exactly one address: the usage is printed.
    Usage(Option<BadOption>),
    /// A bad argument; a warning may come before it.
    BadArgument { warning: Option<String>, fatal: String },
}

impl Diagnostic {
    pub(super) fn print(&self, stderr: &StderrWriter) {
        match self {
            Self::Info(text) => stderr.print(text),
            Self::Warning(text) => stderr.warn(text),
        }
    }
}

impl CommandLineError {
    pub(super) fn bad_argument(fatal: String) -> Self {
        Self::BadArgument { warning: None, fatal }
    }

    pub(super) fn print(&self, stderr: &StderrWriter) {
        match self {
            Self::Usage(bad) => {
                bad.iter().for_each(|bad| stderr.print(bad.to_string()));
                stderr.fatal(&format!("usage: {} {USAGE}", stderr.program));
            }
            Self::BadArgument { warning, fatal } => {
                warning.iter().for_each(|warning| stderr.warn(warning));
                stderr.fatal(fatal);
            }
        }
    }
}

const USAGE: &str = "-cdLNov -s sess -l msglen -m msgs -C count -M myhostname -f from -t to -r rcptcount -R delay -w \
                     delay host[:port]";
