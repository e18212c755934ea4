//! Parses the command line into the options of each part of mailrun, and turns verdicts and errors into the exit
//! status.
//!
//! ```text
//!   0  PASS
//!   1  FAIL
//!   2  it could not run, or a file with its results could not be written; one line says why
//!   3  INVALID or INCONCLUSIVE, if something was asked of the run: --threshold, --rate, --stage or --strict; else 0
//! 130  interrupted; the report is printed all the same, unless it was interrupted three times
//! ```
mod audit;
mod bench;
mod capacity;
mod compare;
mod disk;
mod health;
mod help;
mod locust;
mod mades;
mod options;
mod probe;
mod relay;
mod report;
mod send;
mod sink;
mod source;
#[cfg(test)]
mod wrong_inputs;

use anyhow::Result;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use mailrun_process::interrupt::{INTERRUPTED_STATUS, Interrupted};
use mailrun_process::party_options::{OPTIONS_FROM_STDIN, PartyOptions};
use report::messages::{failure, say};
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

/// Measures mail throughput and latency end to end, and checks that no message is lost, duplicated or changed.
#[derive(Debug, Parser)]
#[command(name = "mailrun", version, max_term_width = 100, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

impl Cli {
    fn parse_words(words: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<Self, clap::Error> {
        let words = options::rare::without_dashes(join_option_values(words));
        let words = bench::load_file::expanded(words, bench::options)?;
        Self::from_arg_matches(&Self::commands(&words)?.try_get_matches_from(words)?)
    }

    /// Returns the top-level command with all subcommands. Calls `build`, because clap would otherwise add the
    /// scenarios only when `bench` is invoked.
    fn all_commands() -> clap::Command {
        let mut whole = Self::command().disable_help_subcommand(true);
        whole.build();
        whole
    }

    /// Returns the top-level command with its subcommands. If the command line names a scenario file, `bench` gets a
    /// subcommand for this scenario.
    fn commands(words: &[OsString]) -> Result<clap::Command, clap::Error> {
        bench::scenarios::add_scenario_file(Self::command(), words)
    }
}

const EXAMPLES: &str = "\
Examples:
  mailrun bench                               demonstration: source, relay and sink on this host
  mailrun bench mx.example                    your server, port 25
  sudo mailrun bench --relay postfix          a private Postfix on this host
  mailrun sink --listen 127.0.0.1:2525        accepts mail and counts it
  mailrun source 127.0.0.1:2525               sends mail and measures latency
  mailrun send ann@a.example                  sends one message, and shows the dialogue
  mailrun probe --config FILE                 watches mail servers for months
  mailrun relay --to HOST --spool DIR         stores and forwards mail
  mailrun report DIR --format html -o FILE    shows a stored run again
  mailrun compare --self                      the noise of this host, in rounds
  mailrun compare DIR... --against DIR...     compares stored runs
  mailrun baseline save NAME RUN...           keeps runs to compare others with
  mailrun merge DIR... --sink URL             joins what several machines sent
  mailrun queue list --spool DIR              shows the queue of a relay
  mailrun spool check DIR                     checks the spool of a stopped relay
  mailrun capacity SERVER                     the highest rate that meets a goal
  mailrun audit mailrun                       does a server keep what it answered 250?
  mailrun disk DIR                            what a disk can do for a relay
  mailrun locust worker SERVER                sends mail for a Locust master
  mailrun health URL                          whether a relay or sink works
  mailrun bench mades                         MADES (ECP, EDX) over AMQP 1.0
  mailrun mades --mode amqp --inbox QUEUE     an AMQP 1.0 broker alone

Exit status:
    0  PASS; also INVALID or INCONCLUSIVE if nothing was required (see 3)
    1  FAIL: mail was lost, duplicated, changed, rejected or given up, or a
       threshold was missed
    2  the run could not start, or a result file could not be written; one
       line says why
    3  INVALID or INCONCLUSIVE, with --threshold, --rate, --stage or --strict
  130  interrupted; the report is printed anyway";

#[derive(Debug, Subcommand)]
enum Command {
    Bench(Box<bench::BenchArgs>),
    Audit(Box<audit::AuditArgs>),
    Scenario(bench::files::ScenarioFileArgs),
    Recipe(bench::files::RecipeArgs),
    Source(Box<source::SourceArgs>),
    Send(Box<send::SendArgs>),
    Probe(Box<probe::ProbeArgs>),
    Sink(Box<sink::SinkArgs>),
    Relay(Box<relay::RelayArgs>),
    Mades(Box<mades::MadesArgs>),
    MadesEndpoint(Box<mades::endpoint::MadesEndpointArgs>),
    Report(report::StoredRunsArgs),
    Merge(report::merge::MergeArgs),
    Compare(Box<compare::CompareArgs>),
    Baseline(compare::baseline::BaselineArgs),
    Queue(relay::queue::QueueArgs),
    Spool(relay::spool::SpoolArgs),
    Capacity(Box<capacity::CapacityArgs>),
    Disk(disk::DiskArgs),
    Locust(locust::LocustArgs),
    Health(health::HealthArgs),
    InstallLinks(help::InstallLinksArgs),
    Man(help::man::ManArgs),
    Completions(help::completions::CompletionsArgs),
}

/// Runs the command that the arguments of this process select, and returns its exit status.
pub fn main() -> ExitCode {
    let words: Vec<OsString> = as_locust_worker(std::env::args_os()).collect();
    let words = match with_options(words) {
        Ok(words) => words,
        Err(error) => {
            mailrun_process::tell!("mailrun: --options: {error}");
            return ExitCode::from(2);
        }
    };
    let typed = match Cli::parse_words(&words) {
        Ok(typed) => typed,
        Err(error) => return report_misuse(&error, &words),
    };
    let ended = mailrun_process::output_file::report_size_limit_as_error().and_then(|()| run(typed.command));
    ended.unwrap_or_else(|error| {
        // Ignore the error, because there is no other place to report that standard error cannot be written.
        let _ = io::stderr().lock().write_all(failure(&error).as_bytes());
        let is_interrupted = error.downcast_ref::<Interrupted>().is_some();
        ExitCode::from(if is_interrupted { INTERRUPTED_STATUS } else { 2 })
    })
}

fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Bench(typed) => typed.run(),
        Command::Audit(typed) => typed.run(),
        Command::Scenario(typed) => typed.run(),
        Command::Recipe(typed) => typed.run(),
        Command::Source(typed) => typed.run(),
        Command::Send(typed) => typed.run(),
        Command::Probe(typed) => typed.run(),
        Command::Sink(typed) => typed.run(),
        Command::Relay(typed) => relay::run(&typed),
        Command::Mades(typed) => typed.run(),
        Command::MadesEndpoint(typed) => typed.run(),
        Command::Report(typed) => typed.run(),
        Command::Merge(typed) => typed.run(),
        Command::Compare(typed) => typed.run(),
        Command::Baseline(typed) => typed.run(),
        Command::Queue(typed) => typed.run(),
        Command::Spool(typed) => typed.run(),
        Command::Capacity(typed) => typed.run(),
        Command::Disk(typed) => typed.run(),
        Command::Locust(typed) => typed.run(),
        Command::Health(typed) => typed.run(),
        Command::InstallLinks(typed) => typed.run(),
        Command::Man(typed) => typed.run(&Cli::all_commands()),
        Command::Completions(typed) => typed.run(&mut Cli::command()),
    }
}

/// Replaces `--worker` as the first argument with `locust worker`. The operator of Locust for Kubernetes starts the
/// image of a worker with arguments that begin with `--worker`.
fn as_locust_worker(words: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    words.enumerate().flat_map(|(place, word)| match place == 1 && word == "--worker" {
        true => vec!["locust".into(), "worker".into()],
        false => vec![word],
    })
}

/// Replaces the words `--options -` after the command with options that are read from standard input. A bench starts
/// its processes in this way. Other command lines are returned unchanged.
fn with_options(words: Vec<OsString>) -> Result<Vec<OsString>, String> {
    let (command, options) = words.split_at(words.len().min(2));
    if options != OPTIONS_FROM_STDIN {
        return Ok(words);
    }
    let options = PartyOptions::read(io::stdin().lock())?;
    Ok(command.iter().cloned().chain(options.words().into_iter().map(OsString::from)).collect())
}

/// Joins an option and its value with an equal sign if clap would not see that they belong together. `--reuse 5`
/// becomes `--reuse=5` and `--share short` becomes `--share=short`, because these options may also be followed by other
/// words. `--messages -1` is joined because clap would report `-1` as an unknown option, whereas the option's own
/// parser explains the mistake.
fn join_option_values(words: impl IntoIterator<Item = impl Into<OsString>>) -> Vec<OsString> {
    let mut joined: Vec<OsString> = Vec::new();
    for word in words.into_iter().map(Into::into) {
        let option = joined.last_mut().filter(|last| is_value_of(last.to_str(), word.to_str()));
        match option {
            Some(option) => {
                let is_long = option.as_encoded_bytes().starts_with(b"--");
                option.push(if is_long { "=" } else { "" });
                option.push(word);
            }
            None => joined.push(word),
        }
    }
    joined
}

fn is_value_of(option: Option<&str>, word: Option<&str>) -> bool {
    let (Some(option), Some(word)) = (option, word) else { return false };
    let is_option = option.len() > 1 && option.starts_with('-') && option != "--" && !option.contains('=');
    let is_digit = |c: char| c.is_ascii_digit();
    let is_negative = word.strip_prefix('-').is_some_and(|rest| rest.starts_with(is_digit));
    let is_range = word.starts_with(is_digit) && word.contains("..");
    match option {
        "--reuse" => is_negative || is_range || options::values::reuse(word).is_ok(),
        "--share" => ["short", "full"].contains(&word),
        _ => is_option && is_negative,
    }
}

/// Prints the help or the version if the user asked for it, and the help also if the user typed a command without the
/// arguments that it needs. Prints any other mistake as a single line.
fn report_misuse(error: &clap::Error, typed: &[OsString]) -> ExitCode {
    if let Some(text) = help::misuse::mistaken_help(error, typed, &Cli::all_commands()) {
        mailrun_process::tell!("mailrun: {text}");
        return ExitCode::from(2);
    }
    if !error.use_stderr() {
        match short_help(error, typed) {
            // Ignore the error, because nobody reads the help if standard output is closed.
            Some(text) => drop(say(&text)),
            None => drop(error.print()),
        }
        return ExitCode::SUCCESS;
    }
    if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = error.print();
        return ExitCode::from(2);
    }
    mailrun_process::tell!("mailrun: {}", help::misuse::sentence(error, typed, &Cli::all_commands()));
    ExitCode::from(2)
}

/// Returns the text of `-h`. Returns `None` for `--help` and for `mailrun -h`, because clap prints these itself.
fn short_help(error: &clap::Error, typed: &[OsString]) -> Option<String> {
    let words: Vec<String> = typed.iter().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    if error.kind() != clap::error::ErrorKind::DisplayHelp || words.iter().any(|word| word == "--help") {
        return None;
    }
    let mut whole = Cli::commands(typed).ok()?;
    whole.build();
    let mut command = &mut whole;
    let mut names = Vec::new();
    for word in words.iter().take_while(|word| !word.starts_with('-')) {
        if command.find_subcommand(word).is_none() {
            break;
        }
        command = command.find_subcommand_mut(word)?;
        names.push(word.as_str());
    }
    (!names.is_empty()).then(|| help::summary::of(command, &names))
}
