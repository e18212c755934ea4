//! `mailrun bench SCENARIO` and `mailrun bench FILE.toml`: the options of a scenario's measurement.
//! Their defaults come from the scenario's file.
use super::exit_status::Strictness;
use super::mades_bench::MadesBenchArgs;
use super::mades_compare::MadesCompareArgs;
use super::no_thresholds::NoThresholdArgs;
use super::profiles::{LargeMessageArgs, ProfileArgs};
use super::relays::{BacklogArgs, LatencyArgs, RelayComparisonArgs, SoakArgs};
use super::results::TableReportArgs;
use super::sink::SinkFaultArgs;
use super::values;
use super::values::round_order;
use anyhow::Result;
use clap::error::ErrorKind;
use clap::{ArgMatches, Args, Command, FromArgMatches, Subcommand};
use mailrun_bench::scenario::{
    BacklogScenario, LargeMessageScenario, LatencyScenario, MadesScenario, Measure, ProfileScenario, Scenario,
    SoakScenario, SourcesScenario, ThroughputScenario,
};
use mailrun_bench::tables::{self, DeliveryCheck, TableOptions};
use mailrun_bench::{BUILT_IN, BuiltInScenario, Conclusion, TextReport, is_toml_file, load_scenario};
use mailrun_party::party_options::{PartyOptions, TypedOptions};
use mailrun_text::table::{Align, Table};
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// File descriptors for everything except sessions.
const SPARE_FILES: u64 = 64;
const LIST_WIDTH: usize = 160;

/// Name of the command that is a single run with its own report, unlike the scenarios.
const MADES: &str = "mades";

#[derive(Debug)]
pub(super) enum ScenarioCommand {
    Scenario(Box<ChosenScenario>),
    Mades(Box<MadesBenchArgs>),
}

#[derive(Debug)]
pub(super) struct ChosenScenario {
    name: String,
    args: MeasureArgs,
}

/// The kinds of scenarios, each with the options of its measurement.
#[derive(Debug)]
enum MeasureArgs {
    Throughput(ThroughputScenario, RelayComparisonArgs),
    Latency(LatencyScenario, LatencyArgs),
    Backlog(BacklogScenario, BacklogArgs),
    Soak(SoakScenario, SoakArgs),
    Sources(SourcesScenario, TableArgs),
    SourceCheck(SourcesScenario, CheckArgs),
    Mades(MadesScenario, MadesCompareArgs),
    Profile(ProfileScenario, ProfileArgs),
    LargeMessage(LargeMessageScenario, LargeMessageArgs),
}

impl Subcommand for ScenarioCommand {
    fn augment_subcommands(command: Command) -> Command {
        // Reading the scenarios takes a third of the program's start, and only this command needs them.
        command.defer(|command| {
            let built_in = BUILT_IN.iter().filter_map(|built_in| {
                // Built-in scenarios can always be read: a test in built_in.rs makes sure of that.
                load_scenario(built_in.name).ok().map(|scenario| scenario_command(built_in.name, &scenario))
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
        let scenario = load_scenario(name).map_err(|error| unreadable(&error))?;
        let args = match scenario.measure {
            Measure::Throughput(scenario) => {
                MeasureArgs::Throughput(scenario, RelayComparisonArgs::from_arg_matches(matches)?)
            }
            Measure::Latency(scenario) => MeasureArgs::Latency(scenario, LatencyArgs::from_arg_matches(matches)?),
            Measure::Backlog(scenario) => MeasureArgs::Backlog(scenario, BacklogArgs::from_arg_matches(matches)?),
            Measure::Soak(scenario) => MeasureArgs::Soak(scenario, SoakArgs::from_arg_matches(matches)?),
            Measure::Sources(scenario) => MeasureArgs::Sources(scenario, TableArgs::from_arg_matches(matches)?),
            Measure::SourceCheck(scenario) => MeasureArgs::SourceCheck(scenario, CheckArgs::from_arg_matches(matches)?),
            Measure::Mades(scenario) => MeasureArgs::Mades(scenario, MadesCompareArgs::from_arg_matches(matches)?),
            Measure::Profile(scenario) => MeasureArgs::Profile(scenario, ProfileArgs::from_arg_matches(matches)?),
            Measure::LargeMessage(scenario) => {
                MeasureArgs::LargeMessage(scenario, LargeMessageArgs::from_arg_matches(matches)?)
            }
        };
        let stem = Path::new(name).file_stem().filter(|_| is_toml_file(name));
        let name = stem.map_or_else(|| name.to_owned(), |stem| stem.to_string_lossy().into_owned());
        Ok(Self::Scenario(Box::new(ChosenScenario { name, args })))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Names of the scenarios that are built in.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    BUILT_IN.iter().map(|built_in| built_in.name).chain([MADES])
}

/// Converts a mistake in a scenario file into an error of the command line.
fn unreadable(error: &anyhow::Error) -> clap::Error {
    clap::Error::raw(ErrorKind::Io, format!("{error:#}"))
}

/// Adds the command of the scenario file, if the command line names one.
///
/// # Errors
///
/// If that file cannot be read.
pub(super) fn add_scenario_file(commands: Command, words: &[OsString]) -> Result<Command, clap::Error> {
    let Some([first, second]) = words.get(1..3) else { return Ok(commands) };
    let Some(file) = second.to_str().filter(|file| first == "bench" && is_toml_file(file)) else {
        return Ok(commands);
    };
    let scenario = load_scenario(file).map_err(|error| unreadable(&error))?;
    Ok(commands.mut_subcommand("bench", |bench| bench.subcommand(scenario_command(file, &scenario))))
}

/// Builds the command of a scenario: the options of its measurement, with the file's values as
/// defaults.
fn scenario_command(name: &str, scenario: &Scenario) -> Command {
    let command = Command::new(name.to_owned());
    let command = match &scenario.measure {
        Measure::Throughput(_) => RelayComparisonArgs::augment_args(command),
        Measure::Latency(_) => LatencyArgs::augment_args(command),
        Measure::Backlog(_) => BacklogArgs::augment_args(command),
        Measure::Soak(_) => SoakArgs::augment_args(command),
        Measure::Sources(_) => TableArgs::augment_args(command),
        Measure::SourceCheck(_) => CheckArgs::augment_args(command),
        Measure::Mades(_) => MadesCompareArgs::augment_args(command),
        Measure::Profile(_) => ProfileArgs::augment_args(command),
        Measure::LargeMessage(_) => LargeMessageArgs::augment_args(command),
    };
    let is_profile = matches!(scenario.measure, Measure::Profile(_) | Measure::LargeMessage(_));
    // Change all arguments in one call: changing them one by one would reorder the help text.
    let command = command.mut_args(|argument| {
        let option = argument.get_id().to_string();
        let Some(values) = preset(&option, scenario) else { return argument };
        // The help text of --relay already names the default.
        let is_named = option == "relay" && !is_profile;
        argument.required(false).hide_default_value(is_named).default_values(values)
    });
    match &scenario.title {
        Some(title) => command.about(title.clone()),
        None => command,
    }
}

/// Returns the default values of an option: those of the file's key with the same name.
fn preset(option: &str, scenario: &Scenario) -> Option<Vec<String>> {
    let of_key = |key: &str| scenario.values.get(key).filter(|values| !values.is_empty()).cloned();
    match (option, &scenario.measure) {
        ("compare", Measure::Throughput(_)) => Some(vec![of_key("parties")?.join(",")]),
        ("relay", Measure::Latency(_) | Measure::Soak(_) | Measure::Profile(_) | Measure::LargeMessage(_)) => {
            of_key("parties")
        }
        ("durability", Measure::Backlog(scenario)) => Some(vec![scenario.parties.value.option_value().to_owned()]),
        // No default: --max-in-transit is refused if it would have no effect, so the program must
        // see whether it was typed.
        ("max_in_transit", _) => None,
        ("thresholds", _) => of_key(option),
        _ => Some(vec![of_key(option)?.join(",")]),
    }
}

/// Returns the text of `mailrun bench --list`: each scenario and its measurement. Acceptance tests
/// of mailrun itself are listed only with `--all`.
pub(super) fn list_text(all: bool) -> String {
    let mut table = Table::new([("scenario", Align::Left), ("measure", Align::Left), ("", Align::Left)]);
    for built_in in BUILT_IN.iter().filter(|built_in| all || !built_in.is_acceptance_test) {
        if let Ok(scenario) = load_scenario(built_in.name) {
            let kind = scenario.kind();
            table.row(vec![built_in.name.to_owned(), kind, scenario.title.unwrap_or_default()]);
        }
    }
    table.terminal(LIST_WIDTH) + "\n"
}

/// Prints a scenario's file, to be changed and run as a scenario of one's own
#[derive(Debug, Args)]
#[command(after_help = SHOW_EXAMPLES, arg_required_else_help = true)]
pub(super) struct ScenarioFileArgs {
    #[command(subcommand)]
    command: ScenarioFileCommand,
}

#[derive(Debug, Subcommand)]
enum ScenarioFileCommand {
    /// Prints the file of a built-in scenario
    #[command(after_help = SHOW_EXAMPLES)]
    Show {
        /// Its name: mailrun bench --list lists them.
        #[arg(value_name = "NAME")]
        name: String,
    },
}

const SHOW_EXAMPLES: &str = "\
Examples:
  mailrun scenario show relay-400
  mailrun scenario show relay-400 > my.toml    then: mailrun bench my.toml

Exit status: 0 done; 2 no such scenario.";

impl ScenarioFileArgs {
    pub(super) fn run(&self) -> Result<ExitCode> {
        let ScenarioFileCommand::Show { name } = &self.command;
        super::messages::say(BuiltInScenario::named(name)?.text)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Measures smtp-source, go-smtp-source and `mailrun smtp-source` side by side
///
/// Prints the table of go-smtp-source's README: each installed source, at each number of sessions, with and without -d
/// (many messages per connection), against Postfix's smtp-sink and against `mailrun sink`. CPU time, memory and time
/// are those of the source; the ratios are to smtp-source in the same round. Ctrl-C ends the run and prints the table
/// so far. Exit status 1 if a run failed, hung or lost mail.
#[derive(Debug, Args)]
#[command(after_help = TABLE_EXAMPLES)]
pub(super) struct TableArgs {
    /// Messages per run.
    #[arg(short, long, visible_short_alias = 'n', value_name = "N", value_parser = values::scenario_messages)]
    messages: u64,
    #[command(flatten)]
    runs: TableRunArgs,
}

/// Checks that each source delivers every message to every recipient, once and unchanged
///
/// Does what go-smtp-source's bench_check.sh does, and more: counts messages and recipients in the sink's dump, and
/// checks that each delivery is there once, with the text that was sent. Exit status 1 if anything is not OK, 130
/// if the run was interrupted.
#[derive(Debug, Args)]
#[command(after_help = CHECK_EXAMPLES)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    typed: TypedOptions,
    /// Messages per run.
    #[arg(short, long, visible_short_alias = 'n', value_name = "N", value_parser = values::scenario_messages)]
    messages: u64,
    /// Recipients per message, a comma-separated list of numbers to run.
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = values::recipient_count)]
    recipients: Vec<u32>,
    #[command(flatten)]
    runs: TableRunArgs,
    #[command(flatten)]
    _faults: SinkFaultArgs,
}

const TABLE_EXAMPLES: &str = "\
Examples:
  mailrun bench smtp-source-table                            some minutes
  mailrun bench smtp-source-table --sessions 1,100 --messages 1000 --rounds 3";

const CHECK_EXAMPLES: &str = "\
Examples:
  mailrun bench smtp-source-check
  mailrun bench smtp-source-check --sessions 10 --recipients 1,3,50
  mailrun bench smtp-source-check --fault 'drop 1%'          the check finds what is missing";

#[derive(Debug, Args)]
struct TableRunArgs {
    /// Parallel sessions, a comma-separated list of numbers to run.
    #[arg(short, long, visible_short_alias = 'c', value_name = "N,N", value_delimiter = ',', value_parser = values::sessions)]
    sessions: Vec<u32>,
    /// Runs per row; the table shows medians.
    #[arg(long, value_name = "N", default_value = "3", value_parser = values::rounds)]
    rounds: u32,
    /// Time limit of a run; a run that exceeds it is killed and reported.
    #[arg(long, value_name = "TIME", default_value = "3m", value_parser = values::some_duration)]
    max_time: Duration,
    #[command(flatten)]
    no_thresholds: NoThresholdArgs,
    #[command(flatten)]
    tables: TableReportArgs,
}

impl ScenarioCommand {
    pub(super) fn run(self) -> Result<ExitCode> {
        match self {
            Self::Scenario(chosen) => chosen.run(),
            Self::Mades(typed) => typed.run(),
        }
    }
}

impl ChosenScenario {
    fn run(self) -> Result<ExitCode> {
        let tables = self.args.tables().clone();
        let name = self.name.as_str();
        let report = match self.args {
            MeasureArgs::Throughput(scenario, typed) => typed.run(name, &scenario),
            MeasureArgs::Latency(scenario, typed) => typed.run(name, &scenario),
            MeasureArgs::Backlog(scenario, typed) => typed.run(name, &scenario.targets),
            MeasureArgs::Soak(scenario, typed) => typed.run(name, &scenario.targets),
            MeasureArgs::Sources(scenario, typed) => {
                let recipients = scenario.matrix.recipients.iter().map(|number| number.value.0).collect();
                typed.runs.run_table(
                    &scenario,
                    typed.messages,
                    recipients,
                    DeliveryCheck::None,
                    PartyOptions::default(),
                )
            }
            MeasureArgs::SourceCheck(scenario, typed) => {
                let faults = typed.typed.of::<SinkFaultArgs>();
                let check = DeliveryCheck::EveryDelivery;
                typed.runs.run_table(&scenario, typed.messages, typed.recipients, check, faults)
            }
            MeasureArgs::Mades(scenario, typed) => typed.run(&scenario),
            MeasureArgs::Profile(scenario, typed) => typed.run(name, round_order(scenario.order.as_ref())),
            MeasureArgs::LargeMessage(scenario, typed) => typed.run(name, round_order(scenario.order.as_ref())),
        }?;
        tables.show(&report)?;
        let Conclusion { outcome, is_strict, is_interrupted, .. } = report.conclusion;
        Ok(super::exit_status::exit_status(Some(outcome), is_interrupted, Strictness::of(is_strict)))
    }
}

impl MeasureArgs {
    fn tables(&self) -> &TableReportArgs {
        match self {
            Self::Throughput(_, typed) => &typed.tables,
            Self::Latency(_, typed) => &typed.tables,
            Self::Backlog(_, typed) => &typed.tables,
            Self::Soak(_, typed) => &typed.tables,
            Self::Sources(_, typed) => &typed.runs.tables,
            Self::SourceCheck(_, typed) => &typed.runs.tables,
            Self::Mades(_, typed) => &typed.tables,
            Self::Profile(_, typed) => &typed.tables,
            Self::LargeMessage(_, typed) => &typed.tables,
        }
    }
}

impl TableRunArgs {
    fn run_table(
        self,
        scenario: &SourcesScenario,
        messages: u64,
        recipients: Vec<u32>,
        check: DeliveryCheck,
        sink_options: PartyOptions,
    ) -> Result<TextReport> {
        // Raise the limit here, so that all parties inherit it. Otherwise each party would raise
        // its own limit, some of them only during the run.
        let max_sessions = self.sessions.iter().copied().max().unwrap_or_default();
        mailrun_net::open_files::raise(u64::from(max_sessions) + SPARE_FILES);
        let _awake = self.tables.keep_awake.begin(true)?;
        tables::run(&TableOptions {
            messages,
            tools: scenario.parties.iter().map(|party| party.value).collect(),
            receivers: scenario.sinks.iter().map(|sink| sink.value).collect(),
            rounds: self.rounds,
            order: round_order(scenario.order.as_ref()),
            sessions: self.sessions,
            recipients,
            check,
            limit: self.max_time,
            sink_options,
            live: self.tables.live(),
        })
    }
}
