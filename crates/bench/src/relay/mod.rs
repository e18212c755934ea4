//! The relay between source and sink, as the user names it with `--relay` or `--compare`, and the features that its
//! listener must offer for the load.
mod listener;

use super::directory::RESULTS_DIRECTORY;
use super::recipe::{self, MailboxKeys, Recipe};
use super::stored::last_audit;
use super::toml_file::is_toml_file;
pub(super) use listener::CERTIFICATE_FILE;
pub use listener::{ListenerOptions, OwnCertificate, RelayLogin};
use mailrun_measurement::record::{Record, Role};
use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// Placeholder in the command line of a relay for the address to which the relay must forward mail. Every such command
/// line must contain it.
const TO: &str = "{to}";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Relay {
    /// No relay, so that the source sends directly to the sink.
    None,
    /// Our own `mailrun relay`, which the bench starts without a recipe.
    Mailrun(RelayDurability),
    Recipe(Box<Recipe>),
    Command(RelayCommand),
    /// Server that is already running and forwards mail to `sink`.
    Running {
        /// `HOST:PORT` at which the server accepts mail.
        address: String,
        /// Address on which the bench's sink must listen.
        sink: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayCommand {
    /// Words of the command line. The placeholders `{listen}`, `{to}` and `{spool}` in them are replaced when the relay
    /// is started.
    pub(super) words: Vec<String>,
    /// Name in reports: the name of the program's file. If several relays have the same name, [`name_apart`] adds a
    /// part of the path or a number that distinguishes them.
    name: String,
}

impl RelayCommand {
    fn new(words: Vec<String>) -> Self {
        let name = words[0].rsplit('/').next().unwrap_or_default().to_owned();
        Self { words, name }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RelayDurability {
    /// The message is on disk when the relay answers 250.
    #[default]
    Sync,
    /// The kernel has the message when the relay answers 250. A crash of the host can lose it.
    Write,
    /// The message is only in the relay's memory when the relay answers 250. A crash of the relay can lose it.
    Memory,
}

impl RelayDurability {
    const ALL: [Self; 3] = [Self::Sync, Self::Write, Self::Memory];

    pub fn option_value(self) -> &'static str {
        match self {
            Self::Sync => "sync",
            Self::Write => "write",
            Self::Memory => "memory",
        }
    }
}

impl Relay {
    /// Returns true for mailrun's own relay with a spool on disk. The bench can read the queue of such a relay even
    /// after the relay has stopped.
    pub(super) fn is_own(&self) -> bool {
        matches!(self, Self::Mailrun(durability) if *durability != RelayDurability::Memory)
    }

    /// Says how durable a message is when the server answers 250, for example `sync`. Returns `unknown` if the user
    /// gave only a command line or the address of a running server, because neither of them tells the durability.
    pub(super) fn durability(&self) -> String {
        match self {
            Self::None => "none".to_owned(),
            Self::Mailrun(durability) => durability.option_value().to_owned(),
            Self::Recipe(recipe) => recipe.durability(),
            Self::Command(_) | Self::Running { .. } => "unknown".to_owned(),
        }
    }

    /// Returns the record of the last audit in which this version of the server ran with the same recipe. A bench
    /// starts mailrun's own relay without a recipe, but an audit starts it with a built-in recipe. For this relay, the
    /// audit must have used that recipe.
    pub(super) fn last_audit(&self) -> Option<Record> {
        let name = self.to_string();
        let (hash, version) = match self {
            Self::Mailrun(_) => (Recipe::load(&name).ok()?.hash(), concat!("mailrun ", env!("CARGO_PKG_VERSION"))),
            Self::Recipe(recipe) => (recipe.hash(), recipe.version()),
            Self::None | Self::Command(_) | Self::Running { .. } => return None,
        };
        last_audit(Path::new(RESULTS_DIRECTORY), &name, &hash, version)
    }

    /// Returns the name in a form that can be part of a path, cut to 40 characters.
    pub(super) fn file_name(&self) -> String {
        let letter = |c: char| if c.is_ascii_alphanumeric() || "-.".contains(c) { c } else { '-' };
        self.to_string().chars().take(40).map(letter).collect::<String>().trim_matches('-').to_owned()
    }

    /// Returns the mailboxes of a server that the bench starts, if the server delivers to mailboxes.
    pub(super) fn mailboxes(&self) -> Option<&MailboxKeys> {
        match self {
            Self::Recipe(recipe) => recipe.mailboxes(),
            Self::None | Self::Mailrun(_) | Self::Command(_) | Self::Running { .. } => None,
        }
    }

    pub fn has_mailboxes(&self) -> bool {
        self.mailboxes().is_some()
    }

    pub(super) fn role(&self) -> Option<Role> {
        (*self != Self::None).then_some(Role::Relay)
    }
}

/// Gives different names to programs and recipes whose files have the same name. Adds the part in which their paths
/// differ, or a number if even the paths are the same.
pub fn name_apart(relays: &mut [Relay]) {
    let names: Vec<String> = relays.iter().map(Relay::to_string).collect();
    let is_shared = |name: &String| names.iter().filter(|other| *other == name).count() > 1;
    let shared: BTreeSet<&String> = names.iter().filter(|name| is_shared(name)).collect();
    for name in shared {
        let files = relays.iter_mut().filter_map(|relay| match relay {
            Relay::Command(command) => Some((&mut command.name, command.words[0].clone())),
            Relay::Recipe(recipe) => recipe.name_of_file(),
            _ => None,
        });
        let mut alike: Vec<(&mut String, String)> = files.filter(|(own, _)| *own == name).collect();
        let mut paths: Vec<String> = alike.iter().map(|(_, path)| path.clone()).collect();
        let has_built_in = names.iter().filter(|other| *other == name).count() > paths.len();
        paths.extend(has_built_in.then(|| name.clone()));
        for ((own, path), part) in alike.iter_mut().zip(differing_parts(&paths)) {
            **own = match part.as_str() {
                "" if has_built_in && is_toml_file(path) => format!("{name} (file)"),
                "" if has_built_in => format!("{name} (command)"),
                "" => name.clone(),
                part => format!("{name} ({part})"),
            };
        }
        number_equal_names(alike.into_iter().map(|(own, _)| own).collect());
    }
}

/// Appends `#1`, `#2` and so on to equal names, for example if several relays are one program with different options.
fn number_equal_names(alike: Vec<&mut String>) {
    let names: Vec<String> = alike.iter().map(|name| (*name).clone()).collect();
    for (position, name) in alike.into_iter().enumerate() {
        let before = names[..position].iter().filter(|name| *name == &names[position]).count();
        let all = names.iter().filter(|name| *name == &names[position]).count();
        if all > 1 {
            *name = format!("{} #{}", names[position], before + 1);
        }
    }
}

/// Returns for each path the directories by which it differs from the other paths. Leading and trailing directories
/// that all paths share are removed, and so are the file names.
fn differing_parts(paths: &[String]) -> Vec<String> {
    let directories = |path: &String| {
        let mut parts: Vec<String> = path.split('/').map(str::to_owned).collect();
        parts.pop();
        parts
    };
    let mut all: Vec<Vec<String>> = paths.iter().map(directories).collect();
    let is_shared = |all: &[Vec<String>], choose: fn(&Vec<String>) -> Option<&String>| {
        let first = all.first().and_then(choose);
        first.is_some() && all.iter().all(|parts| choose(parts) == first)
    };
    while is_shared(&all, |parts| parts.last()) {
        all.iter_mut().for_each(|parts| _ = parts.pop());
    }
    while is_shared(&all, |parts| parts.first()) {
        all.iter_mut().for_each(|parts| _ = parts.remove(0));
    }
    all.iter().map(|parts| parts.join("/")).collect()
}

/// Returns true for the name of a built-in recipe, with or without a variant. Returns false for `mailrun` and
/// `mailrun:write`, because the bench starts its own relay without a recipe.
fn is_built_in(word: &str) -> bool {
    let name = word.split_once(':').map_or(word, |(name, _)| name);
    name != "mailrun" && recipe::names().any(|known| known == name)
}

impl FromStr for Relay {
    type Err = String;

    fn from_str(typed: &str) -> Result<Self, String> {
        match typed.trim() {
            "none" => return Ok(Self::None),
            "mailrun" => return Ok(Self::Mailrun(RelayDurability::Sync)),
            // A text with the placeholder for the sink's address is a command, even if it ends in `.toml`.
            word if is_built_in(word) || is_toml_file(word) && !word.contains(TO) => {
                return Recipe::load(word).map(Box::new).map(Self::Recipe).map_err(|error| format!("{error:#}"));
            }
            _ => {}
        }
        if let Some(word) = typed.trim().strip_prefix("mailrun:") {
            let known = RelayDurability::ALL.into_iter().find(|durability| durability.option_value() == word);
            return known.map(Self::Mailrun).ok_or_else(|| format!("{word} is not one of sync, write, memory"));
        }
        let words: Vec<String> = typed.split_whitespace().map(str::to_owned).collect();
        if !words.iter().any(|word| word.contains(TO)) {
            let (own, others): (Vec<_>, Vec<_>) =
                recipe::names_and_variants().into_iter().partition(|name| name.starts_with("mailrun"));
            return Err(format!(
                "{typed} is not one of {}, none, and no FILE.toml; a command must contain {TO} for the address to \
                 send mail to, {{listen}} for the address to listen on, and {{spool}} for its directory",
                [own, others].concat().join(", ")
            ));
        }
        Ok(Self::Command(RelayCommand::new(words)))
    }
}

impl fmt::Display for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Mailrun(RelayDurability::Sync) => f.write_str("mailrun"),
            Self::Mailrun(durability) => write!(f, "mailrun:{}", durability.option_value()),
            Self::Recipe(recipe) => recipe.fmt(f),
            Self::Command(command) => f.write_str(&command.name),
            Self::Running { address, .. } => f.write_str(address),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_means_one_and_is_written_as_it_is_read() {
        for (word, expected) in [
            ("none", Relay::None),
            ("mailrun", Relay::Mailrun(RelayDurability::Sync)),
            ("mailrun:write", Relay::Mailrun(RelayDurability::Write)),
            ("mailrun:memory", Relay::Mailrun(RelayDurability::Memory)),
            ("postfix", Relay::Recipe(Box::new(Recipe::load("postfix").unwrap()))),
            ("postfix:tuned", Relay::Recipe(Box::new(Recipe::load("postfix:tuned").unwrap()))),
        ] {
            let read: Relay = word.parse().unwrap();
            assert_eq!((&read, read.to_string().as_str()), (&expected, word));
        }
        assert_eq!("mailrun:sync".parse(), Ok(Relay::Mailrun(RelayDurability::Sync)));
        for durability in RelayDurability::ALL {
            let name = Relay::Mailrun(durability).to_string();
            assert!(Recipe::load(&name).is_ok(), "an audit of {name} has a recipe of that name");
        }
    }

    #[test]
    fn a_command_must_be_told_where_to_send() {
        let command: Relay = "/opt/mta --in {listen} --out {to}".parse().unwrap();
        assert_eq!(command.to_string(), "mta");
        assert_eq!(command.durability(), "unknown");
        for word in ["qmail", "", "mailrun:never", "  "] {
            assert!(word.parse::<Relay>().is_err(), "{word}");
        }
    }

    #[test]
    fn programs_of_one_name_are_named_apart() {
        let named = |typed: &[&str]| {
            let mut relays: Vec<Relay> = typed.iter().map(|typed| typed.parse().unwrap()).collect();
            name_apart(&mut relays);
            relays.iter().map(Relay::to_string).collect::<Vec<String>>()
        };
        assert_eq!(named(&["/opt/v1/bin/mta {to}", "/opt/v2/bin/mta {to}"]), ["mta (v1)", "mta (v2)"]);
        assert_eq!(named(&["/usr/sbin/mta {to}", "/opt/mta {to}", "b {to}"]), ["mta (usr/sbin)", "mta (opt)", "b"]);
        assert_eq!(named(&["mta {to}", "/opt/mta {to}"]), ["mta", "mta (/opt)"]);
        assert_eq!(named(&["/a/mta -x {to}", "/a/mta -y {to}"]), ["mta #1", "mta #2"]);
        assert_eq!(
            named(&["/a/mta -x {to}", "/b/mta {to}", "/a/mta -y {to}"]),
            ["mta (a) #1", "mta (b)", "mta (a) #2"]
        );
        assert_eq!(named(&["mailrun", "./mailrun {to}", "/x/mta {to}"]), ["mailrun", "mailrun (.)", "mta"]);
        assert_eq!(named(&["mailrun", "mailrun {to}"]), ["mailrun", "mailrun (command)"]);
        assert_eq!(named(&[]), [""; 0]);
    }

    #[test]
    fn recipes_of_one_file_name_are_named_apart() {
        let place = tempfile::tempdir().unwrap();
        let [first, second] = ["a/postfix.toml", "b/postfix.toml"].map(|path| place.path().join(path));
        for path in [&first, &second] {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, Recipe::built_in_text("postfix").unwrap()).unwrap();
        }
        let [first, second] = [first, second].map(|path| path.to_str().unwrap().to_owned());
        let named = |typed: &[&str]| {
            let mut relays: Vec<Relay> = typed.iter().map(|typed| typed.parse().unwrap()).collect();
            name_apart(&mut relays);
            relays.iter().map(Relay::to_string).collect::<Vec<String>>()
        };
        assert_eq!(named(&[&first, &second]), ["postfix (a)", "postfix (b)"]);
        assert_eq!(named(&[&first, &first]), ["postfix #1", "postfix #2"]);
        let beside = named(&["postfix", &first]);
        assert!(
            beside[0] == "postfix" && beside[1].starts_with("postfix (") && beside[1].ends_with("/a)"),
            "{beside:?}"
        );
    }

    #[test]
    fn a_name_is_fit_for_a_path() {
        let command: Relay = "../../x:y {to}".parse().unwrap();
        assert_eq!(command.file_name(), "x-y");
        assert_eq!(Relay::Mailrun(RelayDurability::Write).file_name(), "mailrun-write");
    }
}
