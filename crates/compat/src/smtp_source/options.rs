//! Parses smtp-source's command line. mailrun's own long options must come first, before the letters of Postfix's
//! smtp-source.
use crate::getopt::{self, BadOption};
use crate::host_port::Family;
use crate::own_options::{OwnOptions, split_option};
use crate::stderr::StderrWriter;
use crate::{hostname, numbers};
use std::time::Duration;

/// The option letters of Postfix's smtp-source. A colon follows each letter that takes an argument.
const OPTION_LETTERS: &str = "46AcC:df:F:l:Lm:M:Nor:R:s:S:t:T:vw:";

/// Maximum time to wait for a reply, or until data can be written. Postfix's `var_timeout` has the same value.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Dialect {
    /// Up to Postfix 3.8, the number of a recipient comes before the address.
    Before39,
    /// Since Postfix 3.9, the number of a recipient is at the end of the local part.
    #[default]
    Since39,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SendDelay {
    #[default]
    None,
    Fixed(u32),
    /// Between two messages, a session waits for a random number of seconds, from zero to this value.
    Random(u32),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) dialect: Dialect,
    pub(super) own_options: OwnOptions,
    pub(super) timeout: Duration,
    pub(super) family: Family,
    pub(super) tolerates_errors: bool,
    pub(super) shows_count: bool,
    pub(super) connect_attempts: u32,
    pub(super) reuses_connection: bool,
    pub(super) sender: Option<String>,
    pub(super) recipient: Option<String>,
    pub(super) file: Option<String>,
    pub(super) length: Option<u32>,
    pub(super) speaks_lmtp: bool,
    pub(super) messages: u32,
    pub(super) hostname: Option<String>,
    pub(super) numbers_recipients: bool,
    pub(super) is_old_mode: bool,
    pub(super) recipients: u32,
    pub(super) delay: SendDelay,
    pub(super) sessions: u32,
    pub(super) subject: Option<String>,
    /// Size of the socket's buffers in bytes, or `None` for the kernel's default.
    pub(super) window: Option<u32>,
    pub(super) is_verbose: bool,
    pub(super) target: String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            dialect: Dialect::default(),
            own_options: OwnOptions::default(),
            timeout: DEFAULT_TIMEOUT,
            family: Family::default(),
            tolerates_errors: false,
            shows_count: false,
            connect_attempts: 1,
            reuses_connection: false,
            sender: None,
            recipient: None,
            file: None,
            length: None,
            speaks_lmtp: false,
            messages: 1,
            hostname: None,
            numbers_recipients: false,
            is_old_mode: false,
            recipients: 1,
            delay: SendDelay::default(),
            sessions: 1,
            subject: None,
            window: None,
            is_verbose: false,
            target: String::new(),
        }
    }
}

impl Options {
    /// Parses the command line, and reports the first mistake in the words of Postfix's smtp-source.
    pub(super) fn parse(words: &[String]) -> Result<Self, CommandLineError> {
        let mut options = Self::default();
        let words = options.parse_own_options(words)?;
        let (arguments, complaint) = getopt::parse_until_error(OPTION_LETTERS, words);
        for (letter, argument) in arguments.options {
            options.set_option(letter, argument.unwrap_or_default())?;
        }
        if let Some(error) = complaint {
            return Err(CommandLineError::Usage(Some(error)));
        }
        let [target] = <[String; 1]>::try_from(arguments.rest).map_err(|_| CommandLineError::Usage(None))?;
        options.target = target;
        Ok(options)
    }

    /// Parses mailrun's own options, which come first, and returns the remaining words. An unknown long option is left
    /// to getopt, which reports it as Postfix's smtp-source does.
    fn parse_own_options<'w>(&mut self, mut words: &'w [String]) -> Result<&'w [String], CommandLineError> {
        loop {
            words = self.own_options.parse_front(words).map_err(CommandLineError::bad_argument)?;
            let option = split_option(words, &["--dialect", "--timeout"]).map_err(CommandLineError::bad_argument)?;
            let Some((name, value, rest)) = option else { return Ok(words) };
            self.set_own_option(name, value)?;
            words = rest;
        }
    }

    fn set_own_option(&mut self, name: &str, value: &str) -> Result<(), CommandLineError> {
        if name == "--timeout" {
            let seconds = value.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
            let positive = seconds.filter(|time| !time.is_zero() && time.as_secs() < 1 << 31);
            self.timeout = positive.ok_or_else(|| {
                CommandLineError::bad_argument(format!("bad timeout: {value}: use a number of seconds above 0"))
            })?;
            return Ok(());
        }
        self.dialect = match value {
            "3.8" => Dialect::Before39,
            "3.9" => Dialect::Since39,
            _ => {
                return Err(CommandLineError::bad_argument(format!(
                    "bad dialect: {value}: use 3.8 (Postfix 3.8 and older) or 3.9 (3.9 and newer)"
                )));
            }
        };
        Ok(())
    }

    fn set_option(&mut self, letter: char, argument: String) -> Result<(), CommandLineError> {
        match letter {
            '4' => self.family = Family::V4,
            '6' => self.family = Family::V6,
            'A' => self.tolerates_errors = true,
            'c' => self.shows_count = true,
            'C' => self.connect_attempts = positive("connection count", &argument)?,
            'd' => self.reuses_connection = true,
            'f' => self.sender = Some(argument),
            'F' => self.set_file(argument)?,
            'l' => self.set_length(&argument)?,
            'L' => self.speaks_lmtp = true,
            'm' => self.messages = positive("message count", &argument)?,
            'M' => self.set_hostname(argument)?,
            'N' => self.numbers_recipients = true,
            'o' => self.is_old_mode = true,
            'r' => {
                self.recipients = positive("recipient count", &argument)?;
                self.numbers_recipients |= self.dialect == Dialect::Since39;
            }
            'R' => self.set_delay(SendDelay::Random, "random delay", &argument)?,
            's' => self.sessions = positive("session count", &argument)?,
            'S' => self.subject = Some(argument),
            't' => self.recipient = Some(argument),
            'T' => self.window = Some(positive("TCP window size", &argument)?),
            'v' => self.is_verbose = true,
            _ => self.set_delay(SendDelay::Fixed, "fixed delay", &argument)?,
        }
        Ok(())
    }

    fn set_file(&mut self, path: String) -> Result<(), CommandLineError> {
        if self.length.is_some() {
            return Err(length_file_conflict());
        }
        self.file = Some(path);
        Ok(())
    }

    fn set_length(&mut self, argument: &str) -> Result<(), CommandLineError> {
        if self.file.is_some() {
            return Err(length_file_conflict());
        }
        self.length = Some(positive("message length", argument)?);
        Ok(())
    }

    fn set_hostname(&mut self, name: String) -> Result<(), CommandLineError> {
        let (what, checked) = if name.starts_with('[') {
            ("bad address literal", hostname::check_literal(&name))
        } else {
            ("bad hostname", hostname::check_name(&name))
        };
        checked.map_err(|warning| CommandLineError::BadArgument {
            warning: Some(warning),
            fatal: format!("{what}: {name}"),
        })?;
        self.hostname = Some(name);
        Ok(())
    }

    fn set_delay(&mut self, kind: fn(u32) -> SendDelay, what: &str, argument: &str) -> Result<(), CommandLineError> {
        let is_other_kind = match self.delay {
            SendDelay::None => false,
            SendDelay::Fixed(_) => kind(0) == SendDelay::Random(0),
            SendDelay::Random(_) => kind(0) == SendDelay::Fixed(0),
        };
        if is_other_kind {
            return Err(CommandLineError::bad_argument("do not use -w and -R options at the same time".to_owned()));
        }
        self.delay = kind(positive(what, argument)?);
        Ok(())
    }
}

fn length_file_conflict() -> CommandLineError {
    CommandLineError::bad_argument("-l option cannot be used with -F".to_owned())
}

fn positive(what: &str, argument: &str) -> Result<u32, CommandLineError> {
    numbers::positive(argument).ok_or_else(|| CommandLineError::bad_argument(format!("bad {what}: {argument}")))
}

/// An error in the command line. It is printed in Postfix's format, for example `smtp-source: fatal: bad message count:
/// x`.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::getopt::BadOption;
    use proptest::prelude::*;

    fn read(line: &str) -> Result<Options, CommandLineError> {
        Options::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn defaults_are_the_manuals() {
        let expected = Options { target: "host".to_owned(), ..Options::default() };
        assert_eq!(read("host"), Ok(expected.clone()));
        assert_eq!((expected.messages, expected.sessions, expected.recipients), (1, 1, 1));
        assert_eq!((expected.connect_attempts, expected.timeout), (1, Duration::from_secs(300)));
    }

    #[test]
    fn every_letter_is_read() {
        let line = "-46AcC2 -d -f a -F file -Lm 5x -M h -N -o -r 3 -R 4 -s 6 -S s -t b -T 7 -v unix:/x";
        let expected = Options {
            family: Family::V6,
            tolerates_errors: true,
            shows_count: true,
            connect_attempts: 2,
            reuses_connection: true,
            sender: Some("a".to_owned()),
            file: Some("file".to_owned()),
            speaks_lmtp: true,
            messages: 5,
            hostname: Some("h".to_owned()),
            numbers_recipients: true,
            is_old_mode: true,
            recipients: 3,
            delay: SendDelay::Random(4),
            sessions: 6,
            subject: Some("s".to_owned()),
            recipient: Some("b".to_owned()),
            window: Some(7),
            is_verbose: true,
            target: "unix:/x".to_owned(),
            ..Options::default()
        };
        assert_eq!(read(line), Ok(expected));
        assert_eq!(read("-w 3 -l 9 host").map(|read| (read.delay, read.length)), Ok((SendDelay::Fixed(3), Some(9))));
    }

    #[test]
    fn our_own_options_come_first() {
        let read_own = read("--trace --dialect 3.8 --report --timeout=0.5 -r 2 host").unwrap();
        assert_eq!(read_own.own_options, OwnOptions { traces: true, reports: true, ..OwnOptions::default() });
        assert_eq!(read_own.dialect, Dialect::Before39);
        assert_eq!((read_own.timeout, read_own.numbers_recipients), (Duration::from_millis(500), false));
        assert!(read("-r 2 host").unwrap().numbers_recipients, "since 3.9, -r implies -N");
        assert_eq!(read("-c --report host"), Err(CommandLineError::Usage(Some(BadOption::Unknown('-')))));
        assert_eq!(read("--dialect"), Err(CommandLineError::bad_argument("--dialect requires an argument".to_owned())));
        for bad in ["--dialect 3.10 h", "--timeout 0 h", "--timeout -1 h", "--timeout x h", "--timeout 1e99 h"] {
            assert!(matches!(read(bad), Err(CommandLineError::BadArgument { .. })), "{bad}");
        }
    }

    #[test]
    fn the_first_mistake_is_the_one_complained_of() {
        assert_eq!(read("-m 0 -x h"), Err(CommandLineError::bad_argument("bad message count: 0".to_owned())));
        assert_eq!(read("-x -m 0 h"), Err(CommandLineError::Usage(Some(BadOption::Unknown('x')))));
        assert_eq!(read(""), Err(CommandLineError::Usage(None)));
        assert_eq!(read("a b"), Err(CommandLineError::Usage(None)));
    }

    proptest! {
        #[test]
        fn any_words_are_read_or_refused(words in prop::collection::vec("[-46AcCdFlLmMNorRsStTvw0-9a=:\\[\\] é]{0,9}", 0..8)) {
            let _ = Options::parse(&words);
        }
    }
}
