use crate::go::flags::{self, BadFlag, FlagKind};
use crate::go::numbers::{BadNumber, boolean, float, integer};
use crate::own_options::OwnOptions;

/// Maximum size of a body in bytes. There is a limit because bodies are held in memory.
const MAX_BODY_BYTES: i64 = i32::MAX as i64;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Options {
    pub(super) own_options: OwnOptions,
    pub(super) messages: i64,
    pub(super) body_bytes: i64,
    pub(super) sessions: i64,
    pub(super) sender: String,
    /// The subject, as a format string of Go's `Printf`. Its argument is the number of the message.
    pub(super) subject: String,
    pub(super) reuses_connection: bool,
    pub(super) is_verbose: bool,
    pub(super) recipient: String,
    pub(super) recipients: i64,
    pub(super) uses_tls: bool,
    pub(super) resolves_once: bool,
    /// Maximum number of recipients per second in all sessions together. Zero or a negative value means no limit.
    pub(super) rate: f64,
    pub(super) file: Option<String>,
    pub(super) target: String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            own_options: OwnOptions::default(),
            messages: 1,
            body_bytes: 0,
            sessions: 1,
            sender: "from@example.com".to_owned(),
            subject: "from go-smtp-source".to_owned(),
            reuses_connection: false,
            is_verbose: false,
            recipient: "to@example.com".to_owned(),
            recipients: 1,
            uses_tls: false,
            resolves_once: false,
            rate: 0.0,
            file: None,
            target: String::new(),
        }
    }
}

impl Options {
    pub(super) fn parse(words: &[String]) -> Result<Self, BadFlag> {
        let mut options = Self::default();
        let words = options.own_options.parse_front(words).map_err(BadFlag::OwnOption)?;
        let rest = flags::parse(words, kind, |name, value| options.set(name, value))?;
        options.target = rest.first().cloned().unwrap_or_default();
        options.check()
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), BadNumber> {
        match name {
            "m" => self.messages = integer(value)?,
            "l" => self.body_bytes = integer(value)?,
            "s" => self.sessions = integer(value)?,
            "f" => value.clone_into(&mut self.sender),
            "S" => value.clone_into(&mut self.subject),
            "d" => self.reuses_connection = boolean(value)?,
            "v" => self.is_verbose = boolean(value)?,
            "t" => value.clone_into(&mut self.recipient),
            "r" => self.recipients = integer(value)?,
            "tls" => self.uses_tls = boolean(value)?,
            "resolve-once" => self.resolves_once = boolean(value)?,
            "q" => self.rate = float(value)?,
            _ => self.file = Some(value.to_owned()).filter(|path| !path.is_empty()),
        }
        Ok(())
    }

    /// Refuses values with which go-smtp-source would panic or exhaust memory.
    fn check(self) -> Result<Self, BadFlag> {
        let refused = |name, value: i64, why| Err(BadFlag::Refused { name, value: value.to_string(), why });
        match () {
            () if self.messages < 0 => refused("m", self.messages, "must not be negative"),
            () if self.sessions < 0 => refused("s", self.sessions, "must not be negative"),
            () if self.body_bytes > MAX_BODY_BYTES => refused("l", self.body_bytes, "value out of range"),
            () => Ok(self),
        }
    }

    /// Returns the number of recipients per transaction. Zero and negative numbers also mean one recipient.
    pub(super) fn recipients_each(&self) -> i64 {
        self.recipients.max(1)
    }

    /// Returns the number of sessions to start. It is never higher than the number of messages, because further
    /// sessions would have nothing to send.
    pub(super) fn active_sessions(&self) -> u64 {
        self.sessions.max(1).min(self.messages).unsigned_abs()
    }
}

fn kind(name: &str) -> Option<FlagKind> {
    match name {
        "d" | "v" | "tls" | "resolve-once" => Some(FlagKind::Boolean),
        "m" | "l" | "s" | "f" | "S" | "t" | "r" | "q" | "F" => Some(FlagKind::Valued),
        _ => None,
    }
}

pub(super) fn usage(program: &str) -> String {
    format!("Usage of {program}:\n{FLAGS}")
}

const FLAGS: &str = "  -F string
    \tsend a preformatted header and message specified in the file.
  -S string
    \tspecify a subject. [default: from go-smtp-source] (default \"from go-smtp-source\")
  -d\tdo not disconnect after sending a message; send the next message over the same connection. [default: false]
  -f string
    \tspecify a sender address. [default: from@example.com] (default \"from@example.com\")
  -l int
    \tspecify the size of the body. [default: 0]
  -m int
    \tspecify a number of messages to send. [default: 1] (default 1)
  -q float
    \tspecify a queries per second. [default: no rate limit]
  -r int
    \tspecify the number of recipients to send per transaction. Recipient names are generated by prepending a number to \
                     the recipient address. [default: 1] (default 1)
  -resolve-once
    \tresolve the hostname only once. [default: false]
  -s int
    \tspecify a number of concurrent sessions. [default: 1] (default 1)
  -t string
    \tspecify a recipient address. [default: to@example.com] (default \"to@example.com\")
  -tls
    \tspecify if STARTTLS is needed. [default: false]
  -v\tenable verbose mode. [default: false]
";

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Options, BadFlag> {
        Options::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn every_flag_and_its_default() {
        assert_eq!(read(""), Ok(Options::default()));
        let all = "--report --trace -m 2 -l 3 -s 4 -f a -S %d -d -v -t b -r 5 -tls -resolve-once -q 6.5 -F g h:1 i";
        let expected = Options {
            own_options: OwnOptions { traces: true, reports: true, ..OwnOptions::default() },
            messages: 2,
            body_bytes: 3,
            sessions: 4,
            sender: "a".to_owned(),
            subject: "%d".to_owned(),
            reuses_connection: true,
            is_verbose: true,
            recipient: "b".to_owned(),
            recipients: 5,
            uses_tls: true,
            resolves_once: true,
            rate: 6.5,
            file: Some("g".to_owned()),
            target: "h:1".to_owned(),
        };
        assert_eq!(read(all), Ok(expected));
        assert_eq!(read("-d -d=false -F= -m 9 -m 1"), Ok(Options::default()), "the last one counts");
    }

    #[test]
    fn numbers_at_which_the_original_panics() {
        for line in ["-m -1", "-s -1", "-l 2147483648"] {
            assert!(matches!(read(line), Err(BadFlag::Refused { .. })), "{line}");
        }
        let error = read("-m=-1").unwrap_err().to_string();
        assert_eq!(error, "invalid value \"-1\" for flag -m: must not be negative");
        assert!(read("-l -1 -r -1 -q -1 -m 0 -s 0").is_ok());
    }

    #[test]
    fn sessions_and_recipients_there_is_work_for() {
        let of = |line: &str| read(line).map(|options| (options.active_sessions(), options.recipients_each())).unwrap();
        assert_eq!(of("-s 5 -m 3 -r 4"), (3, 4));
        assert_eq!(of("-s 0 -m 3 -r 0"), (1, 1));
        assert_eq!(of("-m 0 -r -2"), (0, 1));
    }

    #[test]
    fn usage_names_every_flag() {
        let usage = usage("x/go-smtp-source");
        assert!(usage.starts_with("Usage of x/go-smtp-source:\n  -F string\n    \tsend a"));
        for line in usage.lines().filter(|line| line.starts_with("  -")) {
            let name = line[3..].split([' ', '\t']).next().unwrap();
            assert!(kind(name).is_some(), "{line}");
        }
        assert_eq!(usage.matches("\n  -").count(), 13);
    }
}
