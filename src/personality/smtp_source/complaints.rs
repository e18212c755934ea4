//! What the program says on standard error, in Postfix's way: the name it was called by, a label, one line.
use crate::personality::getopt::BadOption;
use crate::personality::voice::Voice;

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
