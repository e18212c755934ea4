//! Messages of the program on standard error, in Postfix's format: the name it was called by, a label, one line.
use crate::personality::getopt::BadOption;
use crate::personality::voice::Voice;

/// A message while the run goes on.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Remark {
    /// Information, with `-v` only.
    Info(String),
    /// A failure that does not end the run.
    Warning(String),
}

/// An error that ends the program with status 1.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Fatal(pub(super) String);

/// An error in the command line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Misuse {
    /// An unknown option, or not exactly one address: the usage is printed.
    Usage(Option<BadOption>),
    /// A bad argument; a warning may come before it.
    Bad { warning: Option<String>, fatal: String },
}

impl Remark {
    pub(super) fn say(&self, voice: &Voice) {
        match self {
            Self::Info(text) => voice.say(text),
            Self::Warning(text) => voice.warn(text),
        }
    }
}

impl Misuse {
    pub(super) fn bad(fatal: String) -> Self {
        Self::Bad { warning: None, fatal }
    }

    pub(super) fn say(&self, voice: &Voice) {
        match self {
            Self::Usage(bad) => {
                bad.iter().for_each(|bad| voice.say(bad.to_string()));
                voice.fatal(&format!("usage: {} {USAGE}", voice.called));
            }
            Self::Bad { warning, fatal } => {
                warning.iter().for_each(|warning| voice.warn(warning));
                voice.fatal(fatal);
            }
        }
    }
}

const USAGE: &str = "-cdLNov -s sess -l msglen -m msgs -C count -M myhostname -f from -t to -r rcptcount -R delay -w \
                     delay host[:port]";
