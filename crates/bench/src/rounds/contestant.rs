//! The contestants of a live comparison, in the words of `--contestant`.
use crate::built_in::{BUILT_IN, load_scenario};
use crate::programs::own_program;
use crate::scenario::Measure;
use crate::toml_file::is_toml_file;
use anyhow::{Context, Result, bail};
use mailrun_report::printable::printable;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::process::Command;
use std::str::FromStr;

/// Placeholders that a command must have: without them it cannot send that load to the sink.
const REQUIRED: [&str; 2] = ["{port}", "{messages}"];
/// Characters of the longest name.
const MAX_NAME: usize = 40;

/// A contestant: its name, and what it runs in a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveContestant {
    /// Name in reports.
    pub name: String,
    pub(super) work: ContestantWork,
}

/// The work of a contestant in a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ContestantWork {
    /// A load generator of the user's sends to the bench's sink.
    Command(Vec<String>),
    /// The source of this program sends to the bench's sink.
    OwnSource,
    /// The source of this program sends to a server.
    Server(String),
    /// A scenario of this program runs, for minutes perhaps.
    Scenario(String),
}

/// Kind of contestants: only those of one kind have the same figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContestantKind {
    Source,
    Server,
    Scenario,
}

/// The load of a run, and where it leaves its record.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunLoad<'a> {
    /// Address at which the bench's sink takes mail, if the bench has started one.
    pub(super) sink: Option<SocketAddr>,
    /// Address at which bytes are counted on their way to a server.
    pub(super) counter: Option<SocketAddr>,
    /// Recipient of the mail to a server.
    pub(super) to: Option<&'a str>,
    pub(super) sessions: u32,
    pub(super) messages: u64,
    pub(super) message_bytes: u64,
    /// The file of the source's record, or the directory of a scenario's.
    pub(super) record: &'a Path,
}

impl LiveContestant {
    pub fn own_source() -> Self {
        Self { name: "mailrun source".to_owned(), work: ContestantWork::OwnSource }
    }

    /// The same once more, for a comparison with itself.
    pub fn again(&self) -> Self {
        Self { name: format!("{} again", self.name), work: self.work.clone() }
    }

    /// The contestant as it was typed.
    pub(super) fn description(&self) -> String {
        match &self.work {
            ContestantWork::Command(words) => words.join(" "),
            ContestantWork::OwnSource => "mailrun source {host}:{port}".to_owned(),
            ContestantWork::Server(address) => address.clone(),
            ContestantWork::Scenario(name) => format!("mailrun bench {name}"),
        }
    }

    /// Reads the file of a scenario.
    ///
    /// # Errors
    /// If it cannot be read, or measures something that cannot be compared.
    pub fn check(&self) -> Result<()> {
        let ContestantWork::Scenario(scenario) = &self.work else { return Ok(()) };
        let read = load_scenario(scenario).with_context(|| self.name.clone())?;
        if !matches!(read.measure, Measure::Throughput(_)) {
            bail!(
                "{}: {scenario}: only scenarios that measure throughput can be compared, such as relay-400",
                self.name
            );
        }
        Ok(())
    }

    pub fn kind(&self) -> ContestantKind {
        match self.work {
            ContestantWork::Command(_) | ContestantWork::OwnSource => ContestantKind::Source,
            ContestantWork::Server(_) => ContestantKind::Server,
            ContestantWork::Scenario(_) => ContestantKind::Scenario,
        }
    }

    /// Address that its mail goes to; `None` where that is no one address: a scenario, or a name that is not known.
    pub(super) fn target(&self, sink: Option<SocketAddr>) -> Option<SocketAddr> {
        match &self.work {
            ContestantWork::Command(_) | ContestantWork::OwnSource => sink,
            ContestantWork::Server(address) => split_scheme(address).1.to_socket_addrs().ok()?.next(),
            ContestantWork::Scenario(_) => None,
        }
    }

    /// Reports whether its run leaves a record of the source's.
    pub(super) fn has_record(&self) -> bool {
        matches!(self.work, ContestantWork::OwnSource | ContestantWork::Server(_))
    }

    pub(super) fn command(&self, load: &RunLoad<'_>) -> Result<Command> {
        match &self.work {
            ContestantWork::Command(words) => {
                let sink = load.sink.context("a command needs the sink")?;
                let mut words = words.iter().map(|word| filled_in(word, load, sink));
                let mut command = Command::new(words.next().unwrap_or_default());
                command.args(words);
                Ok(command)
            }
            ContestantWork::OwnSource => own_source(&load.sink.context("a source needs the sink")?.to_string(), load),
            ContestantWork::Server(address) => {
                let counted = load.counter.map(|counter| format!("{}{counter}", split_scheme(address).0));
                own_source(counted.as_deref().unwrap_or(address), load)
            }
            ContestantWork::Scenario(name) => {
                let mut command = Command::new(own_program()?);
                command.args(["bench", name, "--rounds", "1", "--report", "none", "--progress", "none", "--out"]);
                command.arg(load.record);
                Ok(command)
            }
        }
    }
}

/// The scheme of a server's address, `smtp://` or nothing, and what follows it.
fn split_scheme(address: &str) -> (&str, &str) {
    address.find("://").map_or(("", address), |at| address.split_at(at + 3))
}

/// The command of the source of this program.
fn own_source(address: &str, load: &RunLoad<'_>) -> Result<Command> {
    let mut command = Command::new(own_program()?);
    command.args(["source", address, "--reuse", "--no-preflight", "--report", "none", "--progress", "none"]);
    command.args(["--messages", &load.messages.to_string(), "--sessions", &load.sessions.to_string()]);
    command.args(["--message-size", &load.message_bytes.to_string()]);
    command.args(load.to.iter().flat_map(|to| ["--to", to]));
    command.arg("--json").arg(load.record);
    Ok(command)
}

/// A word of a command with the placeholders replaced.
fn filled_in(word: &str, load: &RunLoad<'_>, sink: SocketAddr) -> String {
    word.replace("{host}", &sink.ip().to_string())
        .replace("{port}", &sink.port().to_string())
        .replace("{sessions}", &load.sessions.to_string())
        .replace("{messages}", &load.messages.to_string())
        .replace("{size}", &load.message_bytes.to_string())
}

/// The work of one word: the name of a scenario or of its file, or the address of a server; `None` if it is a command.
fn one_word(word: &str) -> Option<ContestantWork> {
    let is_scenario = is_toml_file(word) || BUILT_IN.iter().any(|scenario| scenario.name == word);
    if is_scenario {
        return Some(ContestantWork::Scenario(word.to_owned()));
    }
    word.contains(':').then(|| ContestantWork::Server(word.to_owned()))
}

impl FromStr for LiveContestant {
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
        if let [word] = words.as_slice()
            && !word.contains('{')
            && let Some(work) = one_word(word)
        {
            return Ok(named(work));
        }
        let lacking = REQUIRED.iter().find(|needed| !words.iter().any(|word| word.contains(**needed)));
        if let Some(lacking) = lacking {
            return Err(format!(
                "{name}: the command has no {lacking}; it must send {{messages}} messages to {{host}} port {{port}}"
            ));
        }
        Ok(named(ContestantWork::Command(words)))
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

    fn words(contestant: &LiveContestant) -> Vec<String> {
        let command = contestant.command(&load()).unwrap();
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        words.map(|word| word.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn words_are_split_as_a_shell_does_and_filled_in() {
        let typed = "a=smtp-source -s {sessions} -m {messages} -l {size} {host}:{port}";
        let contestant: LiveContestant = typed.parse().unwrap();
        assert_eq!(words(&contestant).join(" "), "smtp-source -s 7 -m 90 -l 400 127.0.0.1:2525");
        let quoted: LiveContestant =
            "b = sh -c 'for i in $(seq {messages}); do x \"{port}\"; done' a\\ b".parse().unwrap();
        assert_eq!(words(&quoted), ["sh", "-c", "for i in $(seq 90); do x \"2525\"; done", "a b"]);
        assert_eq!((quoted.name.as_str(), quoted.again().name.as_str()), ("b", "b again"));
    }

    #[test]
    fn what_is_no_contestant_is_refused_with_the_reason() {
        for (typed, why) in [
            ("smtp-source", "a contestant is NAME=COMMAND"),
            ("=x {port} {messages}", "a contestant's name has 1 to 40"),
            ("a\u{1b}b=x {port} {messages}", "a contestant's name has 1 to 40"),
            ("a=", "a: the command is empty"),
            ("a='x {port}", "a: the command is empty, or a quotation mark"),
            ("a=x {messages}", "a: the command has no {port}"),
            ("a=x {port}", "a: the command has no {messages}"),
            ("a=x", "a: the command has no {port}"),
        ] {
            let error = typed.parse::<LiveContestant>().unwrap_err();
            assert!(error.starts_with(why), "{typed}: {error}");
        }
    }

    #[test]
    fn a_scenario_that_cannot_be_compared_is_refused_with_the_reason() {
        for (typed, why) in [
            ("a=relay-soak", "a: relay-soak: only scenarios that measure throughput"),
            ("a=/no/such.toml", "a: cannot read /no/such.toml"),
        ] {
            let contestant: LiveContestant = typed.parse().unwrap();
            let error = format!("{:#}", contestant.check().unwrap_err());
            assert!(error.starts_with(why), "{typed}: {error}");
        }
    }

    #[test]
    fn a_word_is_a_server_or_a_scenario() {
        let server: LiveContestant = "a=127.0.0.1:2525".parse().unwrap();
        assert_eq!((server.kind(), words(&server)[..2].join(" ").ends_with(" source")), (ContestantKind::Server, true));
        assert!(words(&server).contains(&"127.0.0.1:2525".to_owned()));
        let scenario: LiveContestant = "b=relay-400".parse().unwrap();
        assert_eq!(scenario.kind(), ContestantKind::Scenario);
        assert!(words(&scenario)[1..].join(" ").starts_with("bench relay-400 --rounds 1 "), "{scenario:?}");
    }

    #[test]
    fn our_own_source_writes_its_record() {
        let own = LiveContestant::own_source();
        assert!(own.has_record() && words(&own).ends_with(&["--json".to_owned(), "/r.json".to_owned()]));
    }

    #[test]
    fn the_bytes_of_a_server_are_counted_on_the_way_to_it() {
        let counter = Some(SocketAddr::from(([127, 0, 0, 1], 9_999)));
        for (typed, target, counted) in [
            ("a=127.0.0.1:2525", "127.0.0.1:2525", "127.0.0.1:9999"),
            ("a=lmtp://127.0.0.1:24", "127.0.0.1:24", "lmtp://127.0.0.1:9999"),
        ] {
            let server: LiveContestant = typed.parse().unwrap();
            assert_eq!(server.target(None).map(|target| target.to_string()).as_deref(), Some(target));
            let command = server.command(&RunLoad { counter, ..load() }).unwrap();
            assert!(command.get_args().any(|word| word == counted), "{command:?}");
        }
    }
}
