use crate::go::flags::{self, BadFlag, FlagKind, quoted};
use crate::go::numbers::{BadNumber, boolean, unsigned};
use crate::own_options::split_option;
use std::fmt::Write;
use std::time::Duration;

/// Maximum size of a payload in bytes. There is a limit because payloads are held in memory.
const MAX_PAYLOAD_BYTES: u64 = i32::MAX as u64;
/// Default of `--timeout`: the run is given up if no message arrives for this long.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);
const PASSWORD_MASK: &str = "****";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Options {
    /// `--timeout`: the run is given up if no message arrives for this long. go-mades-bench has no such option and
    /// waits forever.
    pub(super) progress_timeout: Duration,
    pub(super) is_verbose: bool,
    pub(super) payload_bytes: u64,
    pub(super) messages: u64,
    /// Maximum number of messages in transit, or 0 if there is no limit.
    pub(super) max_in_transit: u64,
    pub(super) goroutines: u64,
    pub(super) receiver: String,
    pub(super) message_type: String,
    pub(super) is_durable: bool,
    pub(super) send_event: String,
    pub(super) outbox_reply: String,
    pub(super) outbox: BrokerFlags,
    pub(super) inbox: BrokerFlags,
    pub(super) mode: String,
}

/// Flags of go-mades-bench for one broker. Their names begin with `inbox` or `outbox`, for example `inbox-addr`.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct BrokerFlags {
    pub(super) queue: String,
    pub(super) address: String,
    pub(super) user: String,
    pub(super) password: String,
}

impl std::fmt::Debug for BrokerFlags {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Broker")
            .field("queue", &self.queue)
            .field("address", &without_password(&self.address))
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

impl BrokerFlags {
    fn of_queue(queue: &str) -> Self {
        Self {
            queue: queue.to_owned(),
            address: "amqp://localhost:5672".to_owned(),
            user: "endpoint".to_owned(),
            password: "password".to_owned(),
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            progress_timeout: DEFAULT_TIMEOUT,
            is_verbose: false,
            payload_bytes: 1_000_000,
            messages: 10_000,
            max_in_transit: 1_000,
            goroutines: processors(),
            receiver: "ecp-endpoint".to_owned(),
            message_type: "TEST-MESSAGE".to_owned(),
            is_durable: true,
            send_event: "ecp.endpoint.send.event".to_owned(),
            outbox_reply: "ecp.endpoint.outbox.reply".to_owned(),
            outbox: BrokerFlags::of_queue("ecp.endpoint.outbox"),
            inbox: BrokerFlags::of_queue("ecp.endpoint.inbox"),
            mode: "endpoint".to_owned(),
        }
    }
}

/// Returns the number of processors that this process may use, as Go's runtime counts them.
fn processors() -> u64 {
    rustix::thread::sched_getaffinity(None).map_or(1, |set| u64::from(set.count()))
}

impl Options {
    pub(super) fn parse(words: &[String]) -> Result<Self, BadFlag> {
        let mut options = Self::default();
        let words = options.parse_own_options(words)?;
        flags::parse(words, kind, |name, value| options.set(name, value))?;
        options.check()
    }

    fn parse_own_options<'w>(&mut self, words: &'w [String]) -> Result<&'w [String], BadFlag> {
        let option = split_option(words, &["--timeout"]).map_err(BadFlag::OwnOption)?;
        let Some((_, seconds, rest)) = option else { return Ok(words) };
        let refused = |why: &'static str| BadFlag::Refused { name: "timeout", value: seconds.to_owned(), why };
        let number = unsigned(seconds).map_err(|_| refused("not a number of seconds"))?;
        if number == 0 {
            return Err(refused("must be above 0"));
        }
        self.progress_timeout = Duration::from_secs(number);
        Ok(rest)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), BadNumber> {
        match name {
            "durable" => self.is_durable = boolean(value)?,
            "goroutines" => self.goroutines = unsigned(value)?,
            "max-in-transit" => self.max_in_transit = unsigned(value)?,
            "n" => self.messages = unsigned(value)?,
            "size" => self.payload_bytes = unsigned(value)?,
            "v" => self.is_verbose = boolean(value)?,
            _ => value.clone_into(self.text_mut(name)),
        }
        Ok(())
    }

    fn text_mut(&mut self, name: &str) -> &mut String {
        match name {
            "inbox" => &mut self.inbox.queue,
            "inbox-addr" => &mut self.inbox.address,
            "inbox-pass" => &mut self.inbox.password,
            "inbox-user" => &mut self.inbox.user,
            "message-type" => &mut self.message_type,
            "mode" => &mut self.mode,
            "outbox" => &mut self.outbox.queue,
            "outbox-addr" => &mut self.outbox.address,
            "outbox-pass" => &mut self.outbox.password,
            "outbox-reply" => &mut self.outbox_reply,
            "outbox-send-event" => &mut self.send_event,
            "outbox-user" => &mut self.outbox.user,
            _ => &mut self.receiver,
        }
    }

    fn value(&self, name: &str) -> String {
        match name {
            "durable" => self.is_durable.to_string(),
            "goroutines" => self.goroutines.to_string(),
            "max-in-transit" => self.max_in_transit.to_string(),
            "n" => self.messages.to_string(),
            "size" => self.payload_bytes.to_string(),
            "v" => self.is_verbose.to_string(),
            _ => self.clone().text_mut(name).clone(),
        }
    }

    /// Refuses values with which go-mades-bench would hang forever or exhaust memory.
    fn check(self) -> Result<Self, BadFlag> {
        let refused = |name, value: u64, why| Err(BadFlag::Refused { name, value: value.to_string(), why });
        match () {
            () if self.goroutines == 0 => refused("goroutines", 0, "must be above 0"),
            () if self.messages == 0 && self.max_in_transit == 0 => {
                refused("max-in-transit", 0, "must be above 0 if -n is 0")
            }
            () if self.payload_bytes > MAX_PAYLOAD_BYTES => refused("size", self.payload_bytes, "value out of range"),
            () => Ok(self),
        }
    }

    /// Returns all flags and their values on one line. Passwords are masked.
    pub(super) fn flags_line(&self) -> String {
        FLAGS.iter().fold(String::new(), |mut line, (name, ..)| {
            let value = match *name {
                "inbox-pass" | "outbox-pass" => PASSWORD_MASK.to_owned(),
                "inbox-addr" | "outbox-addr" => without_password(&self.value(name)),
                _ => self.value(name),
            };
            let _ = write!(line, "-{name}={value} ");
            line
        })
    }
}

/// Masks the password in an address such as `amqp://user:password@host`.
fn without_password(address: &str) -> String {
    let begin = address.find("://").map_or(0, |at| at + 3);
    let authority = address[begin..].split(['/', '?', '#']).next().unwrap_or_default();
    let parts = authority.rsplit_once('@').and_then(|(user, host)| Some((user.split_once(':')?.0, host)));
    let Some((user, host)) = parts else { return address.to_owned() };
    format!("{}{user}:{PASSWORD_MASK}@{host}{}", &address[..begin], &address[begin + authority.len()..])
}

fn kind(name: &str) -> Option<FlagKind> {
    let (.., takes, _) = FLAGS.iter().find(|(flag, ..)| *flag == name)?;
    Some(if *takes == FlagType::Boolean { FlagKind::Boolean } else { FlagKind::Valued })
}

pub(super) fn usage(program: &str) -> String {
    let defaults = Options::default();
    FLAGS.iter().fold(format!("Usage of {program}:\n"), |mut text, (name, takes, meaning)| {
        let value = defaults.value(name);
        let (kind, default) = match takes {
            FlagType::Boolean => ("", value.clone()),
            FlagType::Number => (" uint", value.clone()),
            FlagType::Text => (" string", quoted(value.as_bytes())),
        };
        // Like Go, print the help text of a one-letter flag on the flag's own line if the flag takes no value.
        let gap = if name.len() == 1 && kind.is_empty() { "\t" } else { "\n    \t" };
        let default = if value == "false" { String::new() } else { format!(" (default {default})") };
        let _ = writeln!(text, "  -{name}{kind}{gap}{meaning}{default}");
        text
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlagType {
    Boolean,
    Number,
    Text,
}

/// All flags, each with its type and help text. They are sorted by name, as in the usage texts of Go programs.
const FLAGS: [(&str, FlagType, &str); 19] = [
    ("durable", FlagType::Boolean, "Should AMQP messages sent to the API broker be persisted"),
    ("goroutines", FlagType::Number, "Number of go routines to use when sending"),
    ("inbox", FlagType::Text, "inbox queue"),
    ("inbox-addr", FlagType::Text, "Socket address to reach the internal broker"),
    ("inbox-pass", FlagType::Text, "Inbox broker username"),
    ("inbox-user", FlagType::Text, "Inbox broker password"),
    ("max-in-transit", FlagType::Number, "Max messages allowed in transit. max-in-transit <= 0 means unlimited"),
    ("message-type", FlagType::Text, "Message type to send messages with"),
    ("mode", FlagType::Text, "mode (endpoint, toolbox, amqp, tracing)"),
    ("n", FlagType::Number, "Number of messages to send"),
    ("outbox", FlagType::Text, "outbox queue"),
    ("outbox-addr", FlagType::Text, "Socket address to reach the internal broker"),
    ("outbox-pass", FlagType::Text, "Outbox broker password"),
    ("outbox-reply", FlagType::Text, "outbox reply queue"),
    ("outbox-send-event", FlagType::Text, "send event queue"),
    ("outbox-user", FlagType::Text, "Outbox broker username"),
    ("receiver", FlagType::Text, "Receiver Component Code"),
    ("size", FlagType::Number, "Incompressible payload size to generate"),
    ("v", FlagType::Boolean, "Print all message events"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Options, BadFlag> {
        Options::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn every_flag_and_its_default() {
        assert_eq!(read(""), Ok(Options::default()));
        let all = "--timeout 7 -v -size 1 -n 2 -max-in-transit=3 --goroutines 0x4 -receiver a -message-type b -durable=false \
                   -outbox-send-event c -outbox-reply d -outbox e -outbox-addr f -outbox-user g -outbox-pass h -inbox i \
                   -inbox-addr j -inbox-user k -inbox-pass l -mode m left over";
        let broker = |[queue, address, user, password]: [&str; 4]| BrokerFlags {
            queue: queue.to_owned(),
            address: address.to_owned(),
            user: user.to_owned(),
            password: password.to_owned(),
        };
        let expected = Options {
            progress_timeout: Duration::from_secs(7),
            is_verbose: true,
            payload_bytes: 1,
            messages: 2,
            max_in_transit: 3,
            goroutines: 4,
            receiver: "a".to_owned(),
            message_type: "b".to_owned(),
            is_durable: false,
            send_event: "c".to_owned(),
            outbox_reply: "d".to_owned(),
            outbox: broker(["e", "f", "g", "h"]),
            inbox: broker(["i", "j", "k", "l"]),
            mode: "m".to_owned(),
        };
        assert_eq!(read(all), Ok(expected));
    }

    #[test]
    fn every_flag_of_the_table_is_set_and_told() {
        for (name, takes, _) in FLAGS {
            let value = if takes == FlagType::Boolean { "true" } else { "77" };
            let options = Options::parse(&[format!("-{name}={value}")]).unwrap();
            assert_eq!(options.value(name), value, "{name}");
            let others = FLAGS.iter().filter(|(other, ..)| *other != name);
            others.for_each(|(other, ..)| assert_eq!(options.value(other), Options::default().value(other), "{name}"));
        }
        assert!(FLAGS.is_sorted_by_key(|(name, ..)| *name), "Go lists them in order");
    }

    #[test]
    fn numbers_with_which_the_original_hangs() {
        for line in ["-goroutines 0", "-n 0 -max-in-transit 0", "-size 2147483648", "--timeout 0", "--timeout x"] {
            assert!(matches!(read(line), Err(BadFlag::Refused { .. })), "{line}");
        }
        assert_eq!(read("--timeout"), Err(BadFlag::OwnOption("--timeout requires an argument".to_owned())));
        assert_eq!(read("--timeout=60").map(|options| options.progress_timeout), Ok(Duration::from_secs(60)));
        assert!(read("-n 0").is_ok() && read("-max-in-transit 0").is_ok() && read("-size 0").is_ok());
        assert_eq!(read("-n -1").unwrap_err().to_string(), "invalid value \"-1\" for flag -n: parse error");
    }

    #[test]
    fn no_password_is_told() {
        let options = read("-inbox-pass secret -outbox-pass secret -outbox-addr amqp://u:secret@h:1/x -v").unwrap();
        let listing = options.flags_line();
        assert!(!listing.contains("secret") && !format!("{options:?}").contains("secret"), "{listing}");
        let begin = "-durable=true -goroutines=";
        let end = " -outbox=ecp.endpoint.outbox -outbox-addr=amqp://u:****@h:1/x -outbox-pass=**** \
                   -outbox-reply=ecp.endpoint.outbox.reply -outbox-send-event=ecp.endpoint.send.event \
                   -outbox-user=endpoint -receiver=ecp-endpoint -size=1000000 -v=true ";
        assert!(listing.starts_with(begin) && listing.ends_with(end), "{listing}");
        for (address, expected) in [
            ("amqp://h", "amqp://h"),
            ("amqp://u@h", "amqp://u@h"),
            ("amqp://u:a@b:c@h", "amqp://u:****@h"),
            ("u:p@h", "u:****@h"),
            ("amqp://h/@:", "amqp://h/@:"),
            ("://:@", "://:****@"),
        ] {
            assert_eq!(without_password(address), expected);
        }
    }

    #[test]
    fn usage_is_the_originals() {
        let usage = usage("./go-mades-bench");
        let begin = "Usage of ./go-mades-bench:\n  -durable\n    \tShould AMQP messages sent to the API broker be persisted \
                     (default true)\n  -goroutines uint\n    \tNumber of go routines to use when sending (default ";
        assert!(usage.starts_with(begin), "{usage}");
        assert!(usage.contains("\n  -inbox string\n    \tinbox queue (default \"ecp.endpoint.inbox\")\n"), "{usage}");
        assert!(usage.ends_with("(default 1000000)\n  -v\tPrint all message events\n"), "{usage}");
    }
}
