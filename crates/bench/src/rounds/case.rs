//! The contestants of a live comparison: the syntax of `--contestant`, and the command that each of them runs.
use crate::built_in::{BUILT_IN, load_scenario};
use crate::programs::own_program;
use crate::toml_file::is_toml_file;
use anyhow::{Context, Result, bail};
use mailrun_text::printable::printable;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::process::Command;
use std::str::FromStr;

/// Placeholders that a command must contain. Without them, the command would not know where to send mail and how many
/// messages to send.
const REQUIRED: [&str; 2] = ["{port}", "{messages}"];
const MAX_NAME: usize = 40;

/// Schemes in the addresses of AMQP brokers. A comparison in rounds speaks only SMTP, so the error about a contestant
/// with such an address refers the user to `mailrun mades`.
const AMQP_SCHEMES: [&str; 2] = ["amqp://", "amqps://"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveCase {
    pub name: String,
    pub(super) work: LiveWork,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LiveWork {
    /// The user's load generator sends to the bench's sink.
    Command(Vec<String>),
    /// mailrun's own source sends to the bench's sink.
    OwnSource,
    /// mailrun's own source sends to the server with this address.
    Server(String),
    /// mailrun runs the scenario with this name. One run may take minutes.
    Scenario(String),
}

/// What a contestant is: a load generator, a server or a scenario. Contestants of different kinds have different
/// figures, so they cannot be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiveKind {
    Source,
    Server,
    Scenario,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct RunLoad<'a> {
    /// Address of the bench's sink, or `None` if the bench has not started a sink.
    pub(super) sink: Option<SocketAddr>,
    /// Address of the `WireCounter` that forwards to the server. `None` if no bytes are counted.
    pub(super) counter: Option<SocketAddr>,
    pub(super) to: Option<&'a str>,
    pub(super) sessions: u32,
    pub(super) messages: u64,
    pub(super) message_bytes: u64,
    /// Path of the source's record, or of the directory with a scenario's records.
    pub(super) record: &'a Path,
}

impl LiveCase {
    pub fn own_source() -> Self {
        Self { name: "mailrun source".to_owned(), work: LiveWork::OwnSource }
    }

    /// Returns a copy of the contestant with another name. Both do the same work, so comparing them shows the noise of
    /// the host.
    pub fn again(&self) -> Self {
        Self { name: format!("{} again", self.name), work: self.work.clone() }
    }

    pub(super) fn description(&self) -> String {
        match &self.work {
            LiveWork::Command(words) => words.join(" "),
            LiveWork::OwnSource => "mailrun source {host}:{port}".to_owned(),
            LiveWork::Server(address) => address.clone(),
            LiveWork::Scenario(name) => format!("mailrun bench {name}"),
        }
    }

    /// Checks that a scenario measures throughput, because only such scenarios can be compared. Contestants that are no
    /// scenarios always pass.
    ///
    /// # Errors
    /// Returns an error if the scenario cannot be read or does not measure throughput.
    pub fn check(&self) -> Result<()> {
        let LiveWork::Scenario(scenario) = &self.work else { return Ok(()) };
        let read = load_scenario(scenario).with_context(|| self.name.clone())?;
        if read.measure.is_none_or(|kind| kind.text != "throughput") {
            bail!(
                "{}: {scenario}: only scenarios that measure throughput can be compared, such as relay-400",
                self.name
            );
        }
        Ok(())
    }

    pub fn kind(&self) -> LiveKind {
        match self.work {
            LiveWork::Command(_) | LiveWork::OwnSource => LiveKind::Source,
            LiveWork::Server(_) => LiveKind::Server,
            LiveWork::Scenario(_) => LiveKind::Scenario,
        }
    }

    /// Returns the address to which the contestant sends. Returns `None` for a scenario, which may send to several
    /// addresses, and for a host name that cannot be resolved.
    pub(super) fn target(&self, sink: Option<SocketAddr>) -> Option<SocketAddr> {
        match &self.work {
            LiveWork::Command(_) | LiveWork::OwnSource => sink,
            LiveWork::Server(address) => split_scheme(address).1.to_socket_addrs().ok()?.next(),
            LiveWork::Scenario(_) => None,
        }
    }

    pub(super) fn has_record(&self) -> bool {
        matches!(self.work, LiveWork::OwnSource | LiveWork::Server(_))
    }

    pub(super) fn command(&self, load: &RunLoad<'_>) -> Result<Command> {
        match &self.work {
            LiveWork::Command(words) => {
                let sink = load.sink.context("a command needs the sink")?;
                let mut words = words.iter().map(|word| filled_in(word, load, sink));
                let mut command = Command::new(words.next().unwrap_or_default());
                command.args(words);
                Ok(command)
            }
            LiveWork::OwnSource => own_source(&load.sink.context("a source needs the sink")?.to_string(), load),
            LiveWork::Server(address) => {
                let counted = load.counter.map(|counter| format!("{}{counter}", split_scheme(address).0));
                own_source(counted.as_deref().unwrap_or(address), load)
            }
            LiveWork::Scenario(name) => {
                let mut command = Command::new(own_program()?);
                command.args(["bench", name, "--rounds", "1", "--report", "none", "--progress", "none", "--out"]);
                command.arg(load.record);
                Ok(command)
            }
        }
    }
}

/// Splits a server's address into the scheme, for example `smtp://`, and the rest. The scheme may be empty.
fn split_scheme(address: &str) -> (&str, &str) {
    address.find("://").map_or(("", address), |at| address.split_at(at + 3))
}

fn own_source(address: &str, load: &RunLoad<'_>) -> Result<Command> {
    let mut command = Command::new(own_program()?);
    command.args(["source", address, "--reuse", "--no-preflight", "--report", "none", "--progress", "none"]);
    command.args(["--messages", &load.messages.to_string(), "--sessions", &load.sessions.to_string()]);
    command.args(["--message-size", &load.message_bytes.to_string()]);
    command.args(load.to.iter().flat_map(|to| ["--to", to]));
    command.arg("--json").arg(load.record);
    Ok(command)
}

/// Replaces the placeholders in one word of a command.
fn filled_in(word: &str, load: &RunLoad<'_>, sink: SocketAddr) -> String {
    word.replace("{host}", &sink.ip().to_string())
        .replace("{port}", &sink.port().to_string())
        .replace("{sessions}", &load.sessions.to_string())
        .replace("{messages}", &load.messages.to_string())
        .replace("{size}", &load.message_bytes.to_string())
}

/// Interprets a contestant that is a single word: the name or the file of a scenario, or the
/// address of a server. Returns `None` if the word is a command.
fn one_word(word: &str) -> Option<LiveWork> {
    let is_scenario = is_toml_file(word) || BUILT_IN.iter().any(|scenario| scenario.name == word);
    if is_scenario {
        return Some(LiveWork::Scenario(word.to_owned()));
    }
    word.contains(':').then(|| LiveWork::Server(word.to_owned()))
}

impl FromStr for LiveCase {
    type Err = String;

    fn from_str(typed: &str) -> Result<Self, String> {
        let Some((name, work)) = typed.split_once('=') else {
            return Err(
                "a contestant is NAME=COMMAND, with {host}, {port} and {messages} in the command; or NAME=HOST:PORT"
                    .to_owned(),
            );
        };
        let name = name.trim();
        let is_plain = printable(name) == name;
        if name.is_empty() || !is_plain || name.chars().count() > MAX_NAME {
            return Err(format!("a contestant's name has 1 to {MAX_NAME} printable characters: NAME=COMMAND"));
        }
        let Some(words) = shlex::split(work).filter(|words| !words.is_empty()) else {
            return Err(format!("{name}: the command is empty, or a quotation mark in it is not closed"));
        };
        let named = |work| Self { name: name.to_owned(), work };
        if let Some(address) = words.iter().find(|word| AMQP_SCHEMES.iter().any(|scheme| word.starts_with(scheme))) {
            return Err(format!(
                "{name}: a comparison in rounds speaks SMTP. To compare {address}, store runs of each side with mailrun mades \
                 --broker {address} --out DIR, and compare them with mailrun compare DIR... --against DIR..."
            ));
        }
        if let [word] = words.as_slice()
            && !word.contains('{')
            && let Some(work) = one_word(word)
        {
            return Ok(named(work));
        }
        let placeholder = REQUIRED.iter().find(|needed| !words.iter().any(|word| word.contains(**needed)));
        if let Some(placeholder) = placeholder {
            return Err(format!(
                "{name}: the command has no {placeholder}; it must send {{messages}} messages to {{host}} port {{port}}"
            ));
        }
        Ok(named(LiveWork::Command(words)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load() -> RunLoad<'static> {
        let sink = SocketAddr::from(([127, 0, 0, 1], 2525));
        RunLoad {
            sink: Some(sink),
            counter: None,
            to: None,
            sessions: 7,
            messages: 90,
            message_bytes: 400,
            record: Path::new("/r.json"),
        }
    }

    fn words(contestant: &LiveCase) -> Vec<String> {
        let command = contestant.command(&load()).unwrap();
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        words.map(|word| word.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn words_are_split_as_a_shell_does_and_filled_in() {
        let typed = "a=smtp-source -s {sessions} -m {messages} -l {size} {host}:{port}";
        let contestant: LiveCase = typed.parse().unwrap();
        assert_eq!(words(&contestant).join(" "), "smtp-source -s 7 -m 90 -l 400 127.0.0.1:2525");
        let quoted: LiveCase = "b = sh -c 'for i in $(seq {messages}); do x \"{port}\"; done' a\\ b".parse().unwrap();
        assert_eq!(words(&quoted), ["sh", "-c", "for i in $(seq 90); do x \"2525\"; done", "a b"]);
        assert_eq!((quoted.name.as_str(), quoted.again().name.as_str()), ("b", "b again"));
    }

    #[test]
    fn what_is_no_contestant_is_refused_with_the_reason() {
        for (typed, reason) in [
            ("smtp-source", "a contestant is NAME=COMMAND"),
            ("=x {port} {messages}", "a contestant's name has 1 to 40"),
            ("a\u{1b}b=x {port} {messages}", "a contestant's name has 1 to 40"),
            ("a=", "a: the command is empty"),
            ("a='x {port}", "a: the command is empty, or a quotation mark"),
            ("a=x {messages}", "a: the command has no {port}"),
            ("a=x {port}", "a: the command has no {messages}"),
            ("a=x", "a: the command has no {port}"),
            (
                "a=amqp://127.0.0.1:5672",
                "a: a comparison in rounds speaks SMTP. To compare amqp://127.0.0.1:5672, store",
            ),
        ] {
            let error = typed.parse::<LiveCase>().unwrap_err();
            assert!(error.starts_with(reason), "{typed}: {error}");
        }
    }

    #[test]
    fn a_scenario_that_cannot_be_compared_is_refused_with_the_reason() {
        for (typed, reason) in [
            ("a=relay-soak", "a: relay-soak: only scenarios that measure throughput"),
            ("a=/no/such.toml", "a: cannot read /no/such.toml"),
        ] {
            let contestant: LiveCase = typed.parse().unwrap();
            let error = format!("{:#}", contestant.check().unwrap_err());
            assert!(error.starts_with(reason), "{typed}: {error}");
        }
    }

    #[test]
    fn a_word_is_a_server_or_a_scenario() {
        let server: LiveCase = "a=127.0.0.1:2525".parse().unwrap();
        assert_eq!((server.kind(), words(&server)[..2].join(" ").ends_with(" source")), (LiveKind::Server, true));
        assert!(words(&server).contains(&"127.0.0.1:2525".to_owned()));
        let scenario: LiveCase = "b=relay-400".parse().unwrap();
        assert_eq!(scenario.kind(), LiveKind::Scenario);
        assert!(words(&scenario)[1..].join(" ").starts_with("bench relay-400 --rounds 1 "), "{scenario:?}");
    }

    #[test]
    fn our_own_source_writes_its_record() {
        let own = LiveCase::own_source();
        assert!(own.has_record() && words(&own).ends_with(&["--json".to_owned(), "/r.json".to_owned()]));
    }

    #[test]
    fn the_bytes_of_a_server_are_counted_on_the_way_to_it() {
        let counter = Some(SocketAddr::from(([127, 0, 0, 1], 9_999)));
        for (typed, target, counted) in [
            ("a=127.0.0.1:2525", "127.0.0.1:2525", "127.0.0.1:9999"),
            ("a=lmtp://127.0.0.1:24", "127.0.0.1:24", "lmtp://127.0.0.1:9999"),
        ] {
            let server: LiveCase = typed.parse().unwrap();
            assert_eq!(server.target(None).map(|target| target.to_string()).as_deref(), Some(target));
            let command = server.command(&RunLoad { counter, ..load() }).unwrap();
            assert!(command.get_args().any(|word| word == counted), "{command:?}");
        }
    }
}
