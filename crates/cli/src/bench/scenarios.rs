//! `mailrun bench SCENARIO` and `mailrun bench FILE.toml`: runs a scenario from its file.
//!
//! A scenario's file names a kind of measurement, for example `latency`. It also gives values for some options of this
//! measurement. These values become the defaults of the command that runs the scenario:
//!
//! ```text
//! FILE.toml ─→ KINDS: the options of its measurement ─→ each value parsed as if it were typed ─→ command
//! ```
use crate::bench::profiles::{LargeMessageArgs, ProfileArgs};
use crate::bench::relays::{BacklogArgs, LatencyArgs, RelayComparisonArgs, SoakArgs};
use crate::mades::bench::MadesBenchArgs;
use crate::mades::compare::MadesCompareArgs;
use crate::options::{Measurement, NoThresholdArgs, RoundsArgs, values};
use crate::report::results::{Strictness, TableReportArgs};
use anyhow::Result;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, Subcommand};
use mailrun_bench::scenario::{Scenario, ScenarioKey, ScenarioValue};
use mailrun_bench::tables::{self, SinkTool, SourceTool, TableOptions};
use mailrun_bench::{BUILT_IN, Conclusion, TextReport, is_toml_file, load_scenario};
use mailrun_process::toml_file::unknown_key;
use mailrun_text::table::{Align, Table};
use std::error::Error;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// Number of file descriptors that a process needs for everything other than sessions, such as files and pipes.
const SPARE_FILES: u64 = 64;
const LIST_WIDTH: usize = 160;

/// Name of the command `bench mades`. It has no scenario file, because it is a single run with a report of its own.
const MADES: &str = "mades";
/// Key of a scenario's file that lists the relays, sources or other programs to measure. For most kinds of measurement,
/// this key sets the option `--compare` or `--relay`.
const PARTIES: &str = "parties";
/// Options that a scenario's file must not set. `allow_public` is one of them, because a file from somebody else could
/// otherwise make the user load a public server.
const NO_KEYS: [&str; 6] = ["help", "version", "list", "write_file", "options", "allow_public"];

pub(crate) struct MeasurementKind {
    /// Name of this kind of measurement, which a scenario's file gives in its key `measure`.
    name: &'static str,
    /// Name of the option that gets the values of the key `parties`, for example `compare`.
    parties: &'static str,
    add_options: fn(Command) -> Command,
    read: fn(&ArgMatches) -> Result<Box<dyn Measurement>, clap::Error>,
}

const fn kind<M: Measurement + Args + 'static>(name: &'static str, parties: &'static str) -> MeasurementKind {
    MeasurementKind {
        name,
        parties,
        add_options: M::augment_args,
        read: |matches| Ok(Box::new(M::from_arg_matches(matches)?)),
    }
}

const KINDS: [MeasurementKind; 8] = [
    kind::<RelayComparisonArgs>("throughput", "compare"),
    kind::<LatencyArgs>("latency", "relay"),
    kind::<BacklogArgs>("backlog", "compare"),
    kind::<SoakArgs>("soak", "relay"),
    kind::<TableArgs>("sources", PARTIES),
    kind::<MadesCompareArgs>("mades", "compare"),
    kind::<ProfileArgs>("profile", "relay"),
    kind::<LargeMessageArgs>("large-message", "relay"),
];

impl MeasurementKind {
    /// Finds the kind of measurement that the key `measure` of a scenario's file names.
    ///
    /// # Errors
    /// Returns an error if the file names no kind or an unknown one. The error about an unknown kind gives the place in
    /// the file and lists the known kinds.
    fn of(scenario: &Scenario) -> Result<&'static Self, String> {
        let measure = scenario.measure.as_ref().ok_or_else(|| scenario.missing_key_error("measure"))?;
        KINDS.iter().find(|kind| kind.name == measure.text).ok_or_else(|| {
            let known: Vec<&str> = KINDS.iter().map(|kind| kind.name).collect();
            scenario.value_error(measure, &not_one_of(&measure.text, &known))
        })
    }

    /// Returns the name of the option that a key of a scenario's file sets. A key has the same name as its option,
    /// except `parties`, which sets for example `--compare`.
    fn option<'k>(&self, key: &'k str) -> &'k str
    where
        Self: 'k,
    {
        if key == PARTIES { self.parties } else { key }
    }
}

fn not_one_of(text: &str, known: &[&str]) -> String {
    format!("{text:?} is not one of {}", known.join(", "))
}

#[derive(Debug)]
pub(crate) enum ScenarioCommand {
    Scenario(ChosenScenario),
    Mades(Box<MadesBenchArgs>),
}

#[derive(Debug)]
pub(crate) struct ChosenScenario {
    name: String,
    measurement: Box<dyn Measurement>,
}

impl Subcommand for ScenarioCommand {
    fn augment_subcommands(command: Command) -> Command {
        // Load the scenarios only when `bench` is invoked, because this takes a third of the program's start time, and
        // no other command needs them.
        command.defer(|command| {
            // Ignore errors, because a test below makes sure that all built-in scenarios can be read.
            let built_in = BUILT_IN.iter().filter_map(|built_in| {
                let scenario = load_scenario(built_in.name).ok()?;
                scenario_command(built_in.name, &scenario).ok()
            });
            built_in.fold(command, Command::subcommand).subcommand(MadesBenchArgs::augment_args(Command::new(MADES)))
        })
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        is_toml_file(name) || names().any(|known| known == name)
    }
}

impl FromArgMatches for ScenarioCommand {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let Some((name, matches)) = matches.subcommand() else {
            return Err(clap::Error::raw(ErrorKind::MissingSubcommand, "a scenario is required"));
        };
        if name == MADES {
            return MadesBenchArgs::from_arg_matches(matches).map(Box::new).map(Self::Mades);
        }
        let scenario = load_scenario(name).map_err(unreadable)?;
        let measurement = (MeasurementKind::of(&scenario).map_err(unreadable)?.read)(matches)?;
        let stem = Path::new(name).file_stem().filter(|_| is_toml_file(name));
        let name = stem.map_or_else(|| name.to_owned(), |stem| stem.to_string_lossy().into_owned());
        Ok(Self::Scenario(ChosenScenario { name, measurement }))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Returns the names of the built-in scenarios and of `bench mades`, which has no scenario file.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    BUILT_IN.iter().map(|built_in| built_in.name).chain([MADES])
}

pub(crate) fn unreadable(error: impl std::fmt::Display) -> clap::Error {
    clap::Error::raw(ErrorKind::Io, format!("{error:#}"))
}

/// Returns the file name in `mailrun bench FILE.toml`, or `None` for any other command line.
pub(crate) fn named_file(words: &[OsString]) -> Option<&str> {
    let [first, second] = words.get(1..3)? else { return None };
    second.to_str().filter(|file| first == "bench" && is_toml_file(file))
}

/// If the command line is `mailrun bench FILE.toml`, adds a subcommand of `bench` that runs the scenario in this file.
///
/// # Errors
///
/// Returns an error if the file cannot be read or contains a mistake.
pub(crate) fn add_scenario_file(commands: Command, words: &[OsString]) -> Result<Command, clap::Error> {
    let Some(file) = named_file(words) else { return Ok(commands) };
    let scenario = load_scenario(file).map_err(unreadable)?;
    check(&scenario).map_err(unreadable)?;
    let command = scenario_command(file, &scenario).map_err(unreadable)?;
    Ok(commands.mut_subcommand("bench", |bench| bench.subcommand(command)))
}

/// Checks that a scenario's file has all required keys, and that all of its keys and values are valid.
///
/// # Errors
/// Returns an error with the first mistake and its place in the file.
fn check(scenario: &Scenario) -> Result<(), String> {
    let kind = MeasurementKind::of(scenario)?;
    let mut command = (kind.add_options)(Command::new("scenario"));
    command.build();
    let options = keys_of(&command);
    check_keys(scenario, &mut command, &options, Some(kind))?;
    let given: Vec<&str> = scenario
        .keys
        .iter()
        .filter_map(|key| option_of(&options, Some(kind), key))
        .map(|option| option.get_id().as_str())
        .collect();
    let has = |option: &str| given.contains(&option);
    let required = options.iter().filter(|option| option.is_required_set()).map(|option| option.get_id().as_str());
    match [kind.parties].into_iter().chain(required).find(|option| !has(option)) {
        Some(option) if option == kind.parties => Err(scenario.missing_key_error(PARTIES)),
        Some(option) => Err(scenario.missing_key_error(option)),
        None => Ok(()),
    }
}

/// Returns the options of a command that a scenario file or a load file may set, with a key of the option's name.
pub(crate) fn keys_of(command: &Command) -> Vec<Arg> {
    // Leave out options whose names begin with an underscore, because they exist only so that their use can be refused
    // with an explanation.
    let is_key =
        |option: &&Arg| !NO_KEYS.contains(&option.get_id().as_str()) && !option.get_id().as_str().starts_with('_');
    command.get_arguments().filter(is_key).cloned().collect()
}

/// Checks that each key is the name of an option, and that the option accepts its values.
///
/// # Errors
/// Returns an error with the first mistake and its place in the file.
pub(crate) fn check_keys(
    file: &Scenario,
    command: &mut Command,
    options: &[Arg],
    kind: Option<&MeasurementKind>,
) -> Result<(), String> {
    let parties = kind.map(|kind| kind.parties);
    let mut seen: Vec<(&Arg, &str)> = Vec::new();
    for key in &file.keys {
        let option = option_of(options, kind, key).ok_or_else(|| {
            let known = options.iter().filter(|option| Some(option.get_id().as_str()) != parties).map(key_name);
            let known: Vec<String> = kind.map(|_| PARTIES.to_owned()).into_iter().chain(known).collect();
            let words = match key.name.as_str() {
                "password" => "a password must not be in a file that others may read; use password_file".to_owned(),
                name => unknown_key(name, "", known.iter().map(String::as_str)),
            };
            file.key_error(key, &words)
        })?;
        if let Some((_, other)) = seen.iter().find(|(seen, _)| seen.get_id() == option.get_id()) {
            let words = format!("the key {:?} is there twice: {other:?} sets the same option", key.name);
            return Err(file.key_error(key, &words));
        }
        seen.push((option, key.name.as_str()));
        check_key(file, command, option, key)?;
    }
    Ok(())
}

/// Finds the option that a key sets. Two different keys may set the same option, because a key may be the long name or
/// the id of an option.
fn option_of<'o>(options: &'o [Arg], kind: Option<&MeasurementKind>, key: &ScenarioKey) -> Option<&'o Arg> {
    let name = kind.map_or(key.name.as_str(), |kind| kind.option(&key.name));
    options.iter().find(|option| is_named(option, name))
}

/// Returns the key of an option: its long name, with `_` in place of `-`.
pub(crate) fn key_name(option: &Arg) -> String {
    option.get_long().map_or_else(|| option.get_id().to_string(), |long| long.replace('-', "_"))
}

/// Returns true if the key is the long name or the id of this option. The id of a repeatable option is in the plural,
/// such as `thresholds` for `--threshold`.
pub(crate) fn is_named(option: &Arg, key: &str) -> bool {
    option.get_id() == key || key_name(option) == key
}

/// Checks the values of a key as if the user had typed them on the command line. Refuses a list if the option takes a
/// single value.
///
/// # Errors
/// Returns an error with the place of the rejected value in the file.
fn check_key(file: &Scenario, command: &mut Command, option: &Arg, key: &ScenarioKey) -> Result<(), String> {
    if !takes_several(option) {
        if key.name != PARTIES {
            file.single(key)?;
        } else if let Some(second) = key.values.get(1) {
            return Err(file.value_error(second, "this measurement is of one relay; remove the others"));
        }
    }
    let check = |value: &ScenarioValue| {
        check_value(command, option, &value.text).map_err(|words| file.value_error(value, &words))
    };
    key.values.iter().try_for_each(check)
}

fn takes_several(option: &Arg) -> bool {
    option.get_value_delimiter().is_some() || matches!(option.get_action(), ArgAction::Append)
}

/// Checks a value by parsing it as if it had been typed on the command line.
fn check_value(command: &mut Command, option: &Arg, value: &str) -> Result<(), String> {
    if !option.get_action().takes_values() {
        return if ["true", "false"].contains(&value) { Ok(()) } else { Err(not_one_of(value, &["true", "false"])) };
    }
    if option.get_value_delimiter().is_some_and(|delimiter| value.contains(delimiter)) {
        return Err(format!("{value:?} must not contain a comma"));
    }
    let word = option.get_long().map_or_else(|| value.to_owned(), |long| format!("--{long}={value}"));
    let Err(error) = command.try_get_matches_from_mut(["mailrun", &word]) else { return Ok(()) };
    match error.kind() {
        ErrorKind::ValueValidation => Err(error.source().map_or_else(|| error.to_string(), ToString::to_string)),
        ErrorKind::InvalidValue => {
            let known = match error.get(ContextKind::ValidValue) {
                Some(ContextValue::Strings(known)) => known.iter().map(String::as_str).collect(),
                _ => Vec::new(),
            };
            Err(not_one_of(value, &known))
        }
        // Ignore all other errors, such as a missing option, because only this value is being checked.
        _ => Ok(()),
    }
}

/// Builds the command that runs a scenario. The command has all options of the scenario's kind of measurement. The
/// values in the scenario's file become the defaults of these options.
fn scenario_command(name: &str, scenario: &Scenario) -> Result<Command, String> {
    let kind = MeasurementKind::of(scenario)?;
    let command = (kind.add_options)(Command::new(name.to_owned()));
    // Change all arguments in a single call, because changing them one by one would reorder the help text.
    let command = command.mut_args(|option| {
        let key = scenario.keys.iter().find(|key| is_named(&option, kind.option(&key.name)));
        let Some(key) = key else { return option };
        let values = key.values.iter().map(|value| value.text.clone());
        let values: Vec<String> = match option.get_value_delimiter() {
            Some(delimiter) => vec![values.collect::<Vec<_>>().join(&delimiter.to_string())],
            None => values.collect(),
        };
        option.required(false).default_values(values)
    });
    Ok(match &scenario.title {
        Some(title) => command.about(title.clone()),
        None => command,
    })
}

/// Returns the text of `mailrun bench --list`, with the name, the kind and the title of each scenario.
pub(crate) fn list_text() -> String {
    let mut table = Table::new([("scenario", Align::Left), ("measure", Align::Left), ("", Align::Left)]);
    for built_in in BUILT_IN {
        if let Ok(scenario) = load_scenario(built_in.name) {
            let kind = scenario.measure.map(|kind| kind.text).unwrap_or_default();
            table.row(vec![built_in.name.to_owned(), kind, scenario.title.unwrap_or_default()]);
        }
    }
    table.terminal(LIST_WIDTH) + "\n"
}

/// Measures smtp-source, go-smtp-source and `mailrun smtp-source` side by side
///
/// Prints the table of go-smtp-source's README: each installed source, at each number of sessions, with and without -d
/// (many messages per connection), against Postfix's smtp-sink and against `mailrun sink`. CPU time, memory and time
/// are measured for the source. The ratios compare it with smtp-source in the same round. Ctrl-C ends the run and
/// prints the table so far. Exit status 1 if a run failed, hung or lost mail.
#[derive(Debug, Args)]
#[command(after_help = TABLE_EXAMPLES)]
pub(crate) struct TableArgs {
    /// Messages per run.
    #[arg(short, long, visible_short_alias = 'n', value_name = "N", value_parser = values::scenario_messages)]
    messages: u64,
    /// Numbers of parallel sessions to measure, separated by commas.
    #[arg(short, long, visible_short_alias = 'c', value_name = "N,N", value_delimiter = ',', required = true,
          value_parser = values::sessions)]
    sessions: Vec<u32>,
    /// Recipients per message.
    #[arg(long, value_name = "N,N", value_delimiter = ',', required = true, hide = true,
          value_parser = values::recipient_count)]
    recipients: Vec<u32>,
    /// Programs to measure, which send the mail.
    #[arg(long, value_name = "TOOL,TOOL", value_delimiter = ',', value_enum, required = true, hide = true)]
    parties: Vec<SourceTool>,
    /// Sinks to which the sources send.
    #[arg(long, value_name = "TOOL,TOOL", value_delimiter = ',', value_enum, required = true, hide = true)]
    sinks: Vec<SinkTool>,
    #[command(flatten)]
    rounds: RoundsArgs,
    /// Time limit of a run; a run that exceeds it is killed and reported.
    #[arg(long, value_name = "TIME", default_value = "3m", value_parser = values::some_duration)]
    max_time: Duration,
    #[command(flatten)]
    no_thresholds: NoThresholdArgs,
    #[command(flatten)]
    tables: TableReportArgs,
}

const TABLE_EXAMPLES: &str = "\
Examples:
  mailrun bench smtp-source-table                            some minutes
  mailrun bench smtp-source-table --sessions 1,100 --messages 1000 --rounds 3";

impl ScenarioCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self {
            Self::Scenario(chosen) => chosen.run(),
            Self::Mades(typed) => typed.run(),
        }
    }
}

impl ChosenScenario {
    fn run(self) -> Result<ExitCode> {
        let tables = self.measurement.tables().clone();
        tables.open()?;
        let report = self.measurement.run(&self.name)?;
        tables.show(&report)?;
        let Conclusion { outcome, is_strict, is_interrupted, .. } = report.conclusion;
        Ok(crate::report::results::exit_status(Some(outcome), is_interrupted, Strictness::of(is_strict)))
    }
}

impl Measurement for TableArgs {
    fn run(self: Box<Self>, _name: &str) -> Result<TextReport> {
        // Raise the limit of open files now, so that the processes inherit it and need not raise it while measuring.
        let max_sessions = self.sessions.iter().copied().max().unwrap_or_default();
        mailrun_net::open_files::raise(u64::from(max_sessions) + SPARE_FILES);
        let _awake = self.tables.keep_awake.begin(true)?;
        tables::run(&TableOptions {
            messages: self.messages,
            tools: self.parties,
            receivers: self.sinks,
            rounds: self.rounds.rounds,
            order: self.rounds.order,
            sessions: self.sessions,
            recipients: self.recipients,
            limit: self.max_time,
            live: self.tables.live(),
        })
    }

    fn tables(&self) -> &TableReportArgs {
        &self.tables
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_scenarios_have_no_mistake() {
        for built_in in BUILT_IN {
            let scenario = load_scenario(built_in.name).unwrap();
            assert_eq!(check(&scenario), Ok(()), "{}", built_in.name);
            assert!(scenario_command(built_in.name, &scenario).is_ok());
        }
    }

    #[test]
    fn two_keys_that_set_the_same_option_are_refused() {
        let thresholds = "thresholds = [\"rejected <= 0.1%\"]\n[targets]\nthreshold = \"accepted.p99 < 1us\"\n";
        for (measure, keys, place, name) in [
            ("throughput", format!("parties = [\"mailrun\"]\n{thresholds}"), "3:1", "thresholds"),
            ("throughput", "compare = [\"mailrun:write\"]\nparties = [\"mailrun\"]\n".to_owned(), "3:1", "parties"),
            ("latency", "parties = [\"mailrun:write\"]\nrelay = \"mailrun\"\n".to_owned(), "3:1", "relay"),
        ] {
            let scenario = Scenario::read(&format!("measure = \"{measure}\"\n{keys}"), Path::new("my.toml")).unwrap();
            let error = check(&scenario).unwrap_err();
            assert!(error.starts_with(&format!("my.toml:{place}: the key {name:?} is there twice: ")), "{error}");
        }
    }
}
