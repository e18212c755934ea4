//! The command line of smtp-source: the original's letters by getopt, after long options of our own.
use super::complaints::Misuse;
use crate::personality::extras::Extras;
use crate::personality::host_port::Family;
use crate::personality::{getopt, hostname, numbers};
use std::time::Duration;

/// The letters; one that is followed by a colon takes an argument.
const LETTERS: &str = "46AcC:df:F:l:Lm:M:Nor:R:s:S:t:T:vw:";

/// Limit of the wait for a reply, or for room to write: the original's `var_timeout`.
const PATIENCE: Duration = Duration::from_secs(300);

/// The way of numbering recipients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Dialect {
    /// Up to Postfix 3.8: the number comes before the address.
    Before39,
    /// From Postfix 3.9 on: the number ends the local part.
    #[default]
    Since39,
}

/// Pause between messages of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Delay {
    #[default]
    None,
    /// A fixed number of seconds.
    Fixed(u32),
    /// A random number of seconds, from zero to this.
    Random(u32),
}

/// All options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) dialect: Dialect,
    pub(super) extras: Extras,
    pub(super) patience: Duration,
    pub(super) family: Family,
    /// Warn of unexpected replies, and continue.
    pub(super) tolerates: bool,
    /// Print a running count.
    pub(super) counts: bool,
    pub(super) connect_attempts: u32,
    /// Keep the connection for the next message.
    pub(super) keeps: bool,
    pub(super) sender: Option<String>,
    pub(super) recipient: Option<String>,
    pub(super) file: Option<String>,
    /// Size of the body in bytes.
    pub(super) length: Option<u32>,
    pub(super) speaks_lmtp: bool,
    pub(super) messages: u32,
    pub(super) hostname: Option<String>,
    pub(super) numbers_recipients: bool,
    /// Send no greeting and no headers.
    pub(super) is_old: bool,
    pub(super) recipients: u32,
    pub(super) delay: Delay,
    pub(super) sessions: u32,
    pub(super) subject: Option<String>,
    /// Size of the socket's buffers in bytes.
    pub(super) window: Option<u32>,
    pub(super) is_verbose: bool,
    /// The server.
    pub(super) target: String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            dialect: Dialect::default(),
            extras: Extras::default(),
            patience: PATIENCE,
            family: Family::default(),
            tolerates: false,
            counts: false,
            connect_attempts: 1,
            keeps: false,
            sender: None,
            recipient: None,
            file: None,
            length: None,
            speaks_lmtp: false,
            messages: 1,
            hostname: None,
            numbers_recipients: false,
            is_old: false,
            recipients: 1,
            delay: Delay::default(),
            sessions: 1,
            subject: None,
            window: None,
            is_verbose: false,
            target: String::new(),
        }
    }
}

impl Options {
    /// Parses the command line; reports the first mistake as the original does.
    pub(super) fn parse(words: &[String]) -> Result<Self, Misuse> {
        let mut options = Self::default();
        let words = options.take_own(words)?;
        let (arguments, complaint) = getopt::parse_up_to_bad(LETTERS, words);
        for (letter, argument) in arguments.options {
            options.take(letter, argument.unwrap_or_default())?;
        }
        if let Some(bad) = complaint {
            return Err(Misuse::Usage(Some(bad)));
        }
        let [target] = <[String; 1]>::try_from(arguments.rest).map_err(|_| Misuse::Usage(None))?;
        options.target = target;
        Ok(options)
    }

    /// Parses our own options, which come first; returns the rest. A long option that is not ours is left for getopt to
    /// report, as in the original.
    fn take_own<'w>(&mut self, mut words: &'w [String]) -> Result<&'w [String], Misuse> {
        loop {
            words = self.extras.take_off(words);
            let [word, rest @ ..] = words else { return Ok(words) };
            let (name, joined) =
                word.split_once('=').map_or((word.as_str(), None), |(name, value)| (name, Some(value)));
            if !matches!(name, "--dialect" | "--timeout") {
                return Ok(words);
            }
            let (value, rest) = match (joined, rest) {
                (Some(value), rest) => (value, rest),
                (None, [value, rest @ ..]) => (value.as_str(), rest),
                (None, []) => return Err(Misuse::bad(format!("{name} requires an argument"))),
            };
            self.take_own_value(name, value)?;
            words = rest;
        }
    }

    fn take_own_value(&mut self, name: &str, value: &str) -> Result<(), Misuse> {
        if name == "--timeout" {
            let seconds = value.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
            let positive = seconds.filter(|time| !time.is_zero() && time.as_secs() < 1 << 31);
            self.patience = positive
                .ok_or_else(|| Misuse::bad(format!("bad timeout: {value}: use a number of seconds above 0")))?;
            return Ok(());
        }
        self.dialect = match value {
            "3.8" => Dialect::Before39,
            "3.9" => Dialect::Since39,
            _ => {
                return Err(Misuse::bad(format!(
                    "bad dialect: {value}: use 3.8 (Postfix 3.8 and older) or 3.9 (3.9 and newer)"
                )));
            }
        };
        Ok(())
    }

    fn take(&mut self, letter: char, argument: String) -> Result<(), Misuse> {
        match letter {
            '4' => self.family = Family::V4,
            '6' => self.family = Family::V6,
            'A' => self.tolerates = true,
            'c' => self.counts = true,
            'C' => self.connect_attempts = positive("connection count", &argument)?,
            'd' => self.keeps = true,
            'f' => self.sender = Some(argument),
            'F' => self.take_file(argument)?,
            'l' => self.take_length(&argument)?,
            'L' => self.speaks_lmtp = true,
            'm' => self.messages = positive("message count", &argument)?,
            'M' => self.take_hostname(argument)?,
            'N' => self.numbers_recipients = true,
            'o' => self.is_old = true,
            'r' => {
                self.recipients = positive("recipient count", &argument)?;
                self.numbers_recipients |= self.dialect == Dialect::Since39;
            }
            'R' => self.take_delay(Delay::Random, "random delay", &argument)?,
            's' => self.sessions = positive("session count", &argument)?,
            'S' => self.subject = Some(argument),
            't' => self.recipient = Some(argument),
            'T' => self.window = Some(positive("TCP window size", &argument)?),
            'v' => self.is_verbose = true,
            _ => self.take_delay(Delay::Fixed, "fixed delay", &argument)?,
        }
        Ok(())
    }

    fn take_file(&mut self, path: String) -> Result<(), Misuse> {
        if self.length.is_some() {
            return Err(either_length_or_file());
        }
        self.file = Some(path);
        Ok(())
    }

    fn take_length(&mut self, argument: &str) -> Result<(), Misuse> {
        if self.file.is_some() {
            return Err(either_length_or_file());
        }
        self.length = Some(positive("message length", argument)?);
        Ok(())
    }

    fn take_hostname(&mut self, name: String) -> Result<(), Misuse> {
        let (what, checked) = if name.starts_with('[') {
            ("bad address literal", hostname::check_literal(&name))
        } else {
            ("bad hostname", hostname::check_name(&name))
        };
        checked.map_err(|warning| Misuse::Bad { warning: Some(warning), fatal: format!("{what}: {name}") })?;
        self.hostname = Some(name);
        Ok(())
    }

    fn take_delay(&mut self, kind: fn(u32) -> Delay, what: &str, argument: &str) -> Result<(), Misuse> {
        let is_other_kind = match self.delay {
            Delay::None => false,
            Delay::Fixed(_) => kind(0) == Delay::Random(0),
            Delay::Random(_) => kind(0) == Delay::Fixed(0),
        };
        if is_other_kind {
            return Err(Misuse::bad("do not use -w and -R options at the same time".to_owned()));
        }
        self.delay = kind(positive(what, argument)?);
        Ok(())
    }
}

fn either_length_or_file() -> Misuse {
    Misuse::bad("-l option cannot be used with -F".to_owned())
}

fn positive(what: &str, argument: &str) -> Result<u32, Misuse> {
    numbers::positive(argument).ok_or_else(|| Misuse::bad(format!("bad {what}: {argument}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::personality::getopt::BadOption;
    use proptest::prelude::*;

    fn read(line: &str) -> Result<Options, Misuse> {
        Options::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn defaults_are_the_manuals() {
        let expected = Options { target: "host".to_owned(), ..Options::default() };
        assert_eq!(read("host"), Ok(expected.clone()));
        assert_eq!((expected.messages, expected.sessions, expected.recipients), (1, 1, 1));
        assert_eq!((expected.connect_attempts, expected.patience), (1, Duration::from_secs(300)));
    }

    #[test]
    fn every_letter_is_read() {
        let line = "-46AcC2 -d -f a -F file -Lm 5x -M h -N -o -r 3 -R 4 -s 6 -S s -t b -T 7 -v unix:/x";
        let expected = Options {
            family: Family::V6,
            tolerates: true,
            counts: true,
            connect_attempts: 2,
            keeps: true,
            sender: Some("a".to_owned()),
            file: Some("file".to_owned()),
            speaks_lmtp: true,
            messages: 5,
            hostname: Some("h".to_owned()),
            numbers_recipients: true,
            is_old: true,
            recipients: 3,
            delay: Delay::Random(4),
            sessions: 6,
            subject: Some("s".to_owned()),
            recipient: Some("b".to_owned()),
            window: Some(7),
            is_verbose: true,
            target: "unix:/x".to_owned(),
            ..Options::default()
        };
        assert_eq!(read(line), Ok(expected));
        assert_eq!(read("-w 3 -l 9 host").map(|read| (read.delay, read.length)), Ok((Delay::Fixed(3), Some(9))));
    }

    #[test]
    fn our_own_options_come_first() {
        let read_own = read("--trace --dialect 3.8 --report --timeout=0.5 -r 2 host").unwrap();
        assert_eq!(read_own.extras, Extras { traces: true, reports: true });
        assert_eq!(read_own.dialect, Dialect::Before39);
        assert_eq!((read_own.patience, read_own.numbers_recipients), (Duration::from_millis(500), false));
        assert!(read("-r 2 host").unwrap().numbers_recipients, "since 3.9, -r implies -N");
        assert_eq!(read("-c --report host"), Err(Misuse::Usage(Some(BadOption::Unknown('-')))));
        assert_eq!(read("--dialect"), Err(Misuse::bad("--dialect requires an argument".to_owned())));
        for bad in ["--dialect 3.10 h", "--timeout 0 h", "--timeout -1 h", "--timeout x h", "--timeout 1e99 h"] {
            assert!(matches!(read(bad), Err(Misuse::Bad { .. })), "{bad}");
        }
    }

    #[test]
    fn the_first_mistake_is_the_one_complained_of() {
        assert_eq!(read("-m 0 -x h"), Err(Misuse::bad("bad message count: 0".to_owned())));
        assert_eq!(read("-x -m 0 h"), Err(Misuse::Usage(Some(BadOption::Unknown('x')))));
        assert_eq!(read(""), Err(Misuse::Usage(None)));
        assert_eq!(read("a b"), Err(Misuse::Usage(None)));
    }

    proptest! {
        #[test]
        fn any_words_are_read_or_refused(words in prop::collection::vec("[-46AcCdFlLmMNorRsStTvw0-9a=:\\[\\] é]{0,9}", 0..8)) {
            let _ = Options::parse(&words);
        }
    }
}
