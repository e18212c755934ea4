//! JSON documents with the options of a mailrun command. A bench uses them to pass its own options on to its child
//! processes.
//!
//! ```json
//! {"arguments": ["127.0.0.1:25"], "options": {"messages": ["200"], "mime": [], "to": ["a@b.example", "c@d.example"]}}
//! ```
//! A child reads the document from its standard input (`mailrun source --options -`) and parses the options as if they
//! had been typed. An option is therefore defined only once, by its clap argument.
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches, ValueEnum};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Read;

const MAX_BYTES: u64 = 1 << 20;

/// Words after the command's name that tell a child to read its options from standard input.
pub const OPTIONS_FROM_STDIN: [&str; 2] = ["--options", "-"];

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartyOptions {
    /// Words that are not options, such as the address of the server.
    arguments: Vec<String>,
    /// The values of each option by its long name. A flag has an empty list.
    options: BTreeMap<String, Vec<String>>,
}

impl PartyOptions {
    pub fn argument(mut self, value: impl ToString) -> Self {
        self.arguments.push(value.to_string());
        self
    }

    /// Sets an option to a single value, which replaces any earlier values.
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.options.insert(name.to_owned(), vec![value.to_string()]);
        self
    }

    /// Sets an option to a single value, or removes the option if `value` is `None`.
    pub fn with_some(mut self, name: &str, value: Option<impl ToString>) -> Self {
        self.options.remove(name);
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// Sets a flag if `is_set` is true, and otherwise leaves the options unchanged.
    pub fn flag(mut self, name: &str, is_set: bool) -> Self {
        if is_set {
            self.options.insert(name.to_owned(), Vec::new());
        }
        self
    }

    /// Adds the words and options of `more`. An option of `more` replaces an option of the same name.
    pub fn and(mut self, more: Self) -> Self {
        self.arguments.extend(more.arguments);
        self.options.extend(more.options);
        self
    }

    pub fn without(mut self, names: &[&str]) -> Self {
        self.options.retain(|name, _| !names.contains(&name.as_str()));
        self
    }

    pub fn has(&self, name: &str) -> bool {
        self.options.contains_key(name)
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.options.keys().map(String::as_str)
    }

    /// Returns the options with their values, in alphabetical order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[String])> {
        self.options.iter().map(|(name, values)| (name.as_str(), values.as_slice()))
    }

    /// Returns the words and options as a user would type them, for example `127.0.0.1:25 --messages=200`.
    pub fn words(&self) -> Vec<String> {
        let option = |(name, values): (&String, &Vec<String>)| match values.as_slice() {
            [] => vec![format!("--{name}")],
            values => values.iter().map(|value| format!("--{name}={value}")).collect(),
        };
        self.arguments.iter().cloned().chain(self.options.iter().flat_map(option)).collect()
    }

    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads a document that [`Self::to_json`] has made in the parent process.
    ///
    /// # Errors
    /// Returns an error if the text is longer than 1 MiB, or is not JSON in the form that [`Self::to_json`] writes.
    pub fn read(source: impl Read) -> Result<Self, String> {
        serde_json::from_reader(source.take(MAX_BYTES)).map_err(|error| error.to_string())
    }
}

/// Returns the word that users type for this value of an option, for example `constant`.
pub fn value_name(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// The values of the options that the user typed, by the ID of the option's clap argument. In a command's struct, the
/// field of this type must be the first. Clap fills the fields in order, and a value that another field has taken is no
/// longer in the matches.
#[derive(Clone, Debug, Default)]
pub struct TypedOptions(BTreeMap<String, Vec<String>>);

impl TypedOptions {
    /// Returns the options that the user typed and that belong to the argument group `A`.
    pub fn of<A: Args>(&self) -> PartyOptions {
        let command = A::augment_args(Command::new("options"));
        let typed = command.get_arguments().filter_map(|argument| {
            let values = self.0.get(argument.get_id().as_str())?;
            let is_flag = !argument.get_action().takes_values();
            Some((argument.get_long()?.to_owned(), if is_flag { Vec::new() } else { values.clone() }))
        });
        PartyOptions { arguments: Vec::new(), options: typed.collect() }
    }
}

impl FromArgMatches for TypedOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let is_typed = |id: &&str| matches.value_source(id) == Some(ValueSource::CommandLine);
        let values = |id: &str| -> Vec<String> {
            let raw = matches.try_get_raw(id).ok().flatten().into_iter().flatten();
            raw.map(|value| value.to_string_lossy().into_owned()).collect()
        };
        let ids = matches.ids().map(clap::Id::as_str).filter(is_typed);
        Ok(Self(ids.map(|id| (id.to_owned(), values(id))).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for TypedOptions {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Args, Debug)]
    struct Load {
        #[arg(long = "stage")]
        stages: Vec<String>,
        #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "0")]
        reuse: Option<u32>,
        #[arg(long, default_value = "100")]
        sessions: u32,
        #[arg(long)]
        mime: bool,
    }

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        typed: TypedOptions,
        server: Option<String>,
        #[arg(long)]
        out: Option<String>,
        #[command(flatten)]
        load: Load,
    }

    #[test]
    fn a_child_is_told_what_was_typed_and_nothing_else() {
        let line = Line::parse_from(["x", "a:1", "--stage", "1s:5", "--stage=2s:6", "--reuse", "--mime", "--out", "d"]);
        let options = line.typed.of::<Load>().argument("b:2").with("sessions", 7);
        let json = options.to_json();
        assert_eq!(
            json,
            r#"{"arguments":["b:2"],"options":{"mime":[],"reuse":["0"],"sessions":["7"],"stage":["1s:5","2s:6"]}}"#
        );
        let read = PartyOptions::read(json.as_bytes()).unwrap();
        assert_eq!(read, options);
        let again = Line::parse_from(std::iter::once("x".to_owned()).chain(read.words()));
        assert_eq!((again.server.as_deref(), again.out), (Some("b:2"), None));
        let Load { stages, reuse, sessions, mime } = again.load;
        assert_eq!((stages.len(), reuse, sessions, mime), (2, Some(0), 7, true));
    }

    #[test]
    fn options_are_replaced_and_removed_by_name() {
        let options = PartyOptions::default().with("rate", 5).flag("mime", true).flag("lmtp", false);
        let options = options.and(PartyOptions::default().with("rate", 6)).with_some("seed", None::<u64>);
        assert_eq!(options.words(), ["--mime", "--rate=6"]);
        assert!(options.has("mime") && options.names().eq(["mime", "rate"]));
        assert_eq!(options.without(&["mime", "rate"]), PartyOptions::default());
    }
}
