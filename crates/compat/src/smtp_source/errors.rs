//! Command-line errors in Postfix's format: the name that the program was called by, a label and
//! one line.
use crate::getopt::BadOption;
use crate::stderr::StderrWriter;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum CommandLineError {
    Usage(Option<BadOption>),
    BadArgument { warning: Option<String>, fatal: String },
}

impl CommandLineError {
    pub(super) fn bad_argument(fatal: String) -> Self {
        Self::BadArgument { warning: None, fatal }
    }

    pub(super) fn print(&self, stderr: &StderrWriter) {
        match self {
            Self::Usage(error) => {
                error.iter().for_each(|error| stderr.print(error.to_string()));
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
