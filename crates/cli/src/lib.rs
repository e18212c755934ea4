//! Parses the command line into the options of each part, and turns verdicts and errors into the
//! exit status.
//!
//! ```text
//!   0  PASS
//!   1  FAIL
//!   2  it could not run, or a file with its results could not be written; one line says why
//!   3  INVALID or INCONCLUSIVE, where something was asked of the run: --threshold, --rate, --stage or --strict; else 0
//! 130  interrupted; the report is printed all the same, unless it was interrupted three times
//! ```
mod audit;
mod baseline;
mod bench;
mod bounce_domain;
mod busy_poll;
mod capabilities;
mod capacity;
mod capacity_arguments;
mod capacity_mades;
mod compare;
mod compare_live;
mod compare_output;
mod completions;
mod connection;
mod cpus;
mod disk;
#[cfg(test)]
mod examples;
mod exports;
mod health;
mod keep_awake;
mod links;
mod locust;
mod mades;
mod mades_bench;
mod mades_compare;
mod mades_effects;
mod mades_endpoint;
mod mades_ladder;
mod mades_queues;
mod man;
mod master;
mod merge;
mod misuse;
mod no_thresholds;
mod other_names;
mod profiles;
mod queue;
mod rare_options;
mod recipes;
mod relay;
mod relays;
mod results;
mod run_sides;
mod scenarios;
mod server;
mod shard;
mod sink;
mod source;
mod spool;
mod stored_runs;
mod summary;
mod values;
mod worker;
#[cfg(test)]
mod wrong_inputs;
#[cfg(test)]
mod wrong_inputs_mades;
#[cfg(test)]
mod wrong_inputs_relay;

use anyhow::{Result, bail};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use mailrun_bench::scenario::{RoundOrder, ScenarioSetting};
use mailrun_journey::judge;
use mailrun_journey::record::{Arrival, Cause, Ending, Outcome, Record};
use mailrun_journey::threshold::{MetricSource, Threshold};
use mailrun_journey::{RunId, Stage};
use mailrun_load::source::{OfferedRate, RateStage};
use mailrun_party::interrupt::{INTERRUPTED_STATUS, Interrupted};
use mailrun_party::live::LiveMode;
use mailrun_party::output_file;
use mailrun_party::output_file::cannot_write;
use mailrun_party::outputs::{FinishedRun, Outputs};
use mailrun_party::party_options::{OPTIONS_FROM_STDIN, PartyOptions};
use mailrun_text::printable::printable;
use results::{ReportArgs, write_all};
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Maximum number of errors in a configuration that are shown.
const MAX_ERROR_LINES: usize = 5;

/// Measures mail throughput and latency end to end, and checks that no message is lost, duplicated or changed.
#[derive(Debug, Parser)]
#[command(name = "mailrun", version, max_term_width = 100, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

impl Cli {
    fn parse_words(words: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<Self, clap::Error> {
        let words = rare_options::without_dashes(join_option_values(words));
        Self::from_arg_matches(&Self::commands(&words)?.try_get_matches_from(words)?)
    }

    /// Returns all commands. Unlike `command()`, includes the scenarios, which clap adds only when bench is invoked.
    fn all_commands() -> clap::Command {
        let mut whole = Self::command().disable_help_subcommand(true);
        whole.build();
        whole
    }

    /// Returns all commands, including that of a scenario file which the command line names.
    fn commands(words: &[OsString]) -> Result<clap::Command, clap::Error> {
        scenarios::add_scenario_file(Self::command(), words)
    }
}

const EXAMPLES: &str = "\
Examples:
  mailrun bench                               demonstration: source, relay and sink on this host
  mailrun bench mx.example                    your server, port 25
  sudo mailrun bench --relay postfix          a private Postfix on this host
  mailrun sink --listen 127.0.0.1:2525        accepts mail and counts it
  mailrun source 127.0.0.1:2525               sends mail and measures latency
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
    Scenario(scenarios::ScenarioFileArgs),
    Recipe(recipes::RecipeArgs),
    Source(Box<source::SourceArgs>),
    Sink(Box<sink::SinkArgs>),
    Relay(Box<relay::RelayArgs>),
    Mades(Box<mades::MadesArgs>),
    MadesEndpoint(Box<mades_endpoint::MadesEndpointArgs>),
    Report(stored_runs::StoredRunsArgs),
    Merge(merge::MergeArgs),
    Compare(Box<compare::CompareArgs>),
    Baseline(baseline::BaselineArgs),
    Queue(queue::QueueArgs),
    Spool(spool::SpoolArgs),
    Capacity(Box<capacity::CapacityArgs>),
    Disk(disk::DiskArgs),
    Locust(locust::LocustArgs),
    Health(health::HealthArgs),
    InstallLinks(links::InstallLinksArgs),
    Man(man::ManArgs),
    Completions(completions::CompletionsArgs),
}

/// Result files of a source or a sink.
#[derive(Debug, Args)]
#[command(next_help_heading = "Results")]
struct OutputArgs {
    #[command(flatten)]
    report: ReportArgs,
    /// Write run.json, report.md, report.html, latency.hlog and the ledger into DIR.
    #[arg(long, value_name = "DIR", value_parser = values::directory)]
    out: Option<PathBuf>,
    /// Write the (message, recipient) pairs that were accepted, or that arrived, to FILE.
    #[arg(long, value_name = "FILE", conflicts_with = "out")]
    ledger: Option<PathBuf>,
    /// Write an HdrHistogram interval log to FILE.
    #[arg(long, value_name = "FILE", conflicts_with = "out")]
    hlog: Option<PathBuf>,
    /// Progress: a line on a terminal, JSON lines on standard output, or nothing.
    #[arg(long, value_enum, value_name = "HOW", default_value = "line", hide = true)]
    live: LiveMode,
    /// Run id, 32 hexadecimal digits.
    #[arg(long, value_name = "HEX", hide = true)]
    run_id: Option<RunId>,
}

impl OutputArgs {
    /// Returns the files that the party writes, and the kind of progress that it prints.
    ///
    /// # Errors
    ///
    /// If two outputs want standard output, or if a file cannot be written.
    fn outputs(&self) -> Result<Outputs> {
        let live = self.report.live(self.live);
        self.report.open(live)?;
        let Some(directory) = &self.out else {
            let json = self.report.json_file().map(Path::to_owned);
            return Ok(Outputs { json, ledger: self.ledger.clone(), hlog: self.hlog.clone(), live, http: None });
        };
        fs::create_dir_all(directory).map_err(|error| cannot_write(directory, &error))?;
        let file = |name: &str| Some(directory.join(name));
        Ok(Outputs { json: file("run.json"), ledger: file("ledger"), hlog: file("latency.hlog"), live, http: None })
    }
}

/// Returns the arrival process of a load. Without a rate or stages, it is a closed loop.
fn arrival_with(typed: Option<Arrival>, offer: Option<&OfferedRate>) -> Arrival {
    offer.map_or(Arrival::Closed, |_| typed.unwrap_or(Arrival::Constant))
}

/// Returns the rates offered in an open loop, or `None` in a closed loop.
///
/// # Errors
///
/// If the stages offer no messages.
fn offered_rate(rate: Option<f64>, stages: &[RateStage]) -> Result<Option<OfferedRate>> {
    if stages.is_empty() {
        return Ok(rate.map(OfferedRate::Constant));
    }
    if stages.iter().all(|stage| stage.from_per_s + stage.to_per_s == 0.0) {
        bail!("--stage: these stages offer no messages");
    }
    Ok(Some(OfferedRate::Stages(stages.to_vec())))
}

/// Refuses thresholds of the time until a message was created, because it is 0 in a closed loop.
fn check_closed_loop<'t>(mut thresholds: impl Iterator<Item = &'t Threshold>) -> Result<()> {
    let created = Some(MetricSource::Stage(Stage::Created));
    match thresholds.find(|threshold| threshold.is_of_time() && threshold.source() == created) {
        Some(threshold) => bail!(
            "{}: in a closed loop a message is due when it is created; say --rate, or ask for sent",
            threshold.expression()
        ),
        None => Ok(()),
    }
}

/// Runs the command that the arguments of this process name, and returns its exit status.
pub fn main() -> ExitCode {
    let words: Vec<OsString> = as_locust_worker(std::env::args_os()).collect();
    let words = match with_options(words) {
        Ok(words) => words,
        Err(error) => {
            mailrun_party::tell!("mailrun: --options: {error}");
            return ExitCode::from(2);
        }
    };
    let typed = match Cli::parse_words(&words) {
        Ok(typed) => typed,
        Err(error) => return report_misuse(&error, &words),
    };
    let ended = mailrun_party::file_size_limit::make_an_error().and_then(|()| run(typed.command));
    ended.unwrap_or_else(|error| {
        // If standard error cannot be written, there is no other place to report the error.
        let _ = io::stderr().lock().write_all(failure(&error).as_bytes());
        let is_interrupted = error.downcast_ref::<Interrupted>().is_some();
        ExitCode::from(if is_interrupted { INTERRUPTED_STATUS } else { 2 })
    })
}

fn round_order(order: Option<&ScenarioSetting<RoundOrder>>) -> RoundOrder {
    order.map(|order| order.value).unwrap_or_default()
}

fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Bench(typed) => typed.run(),
        Command::Audit(typed) => typed.run(),
        Command::Scenario(typed) => typed.run(),
        Command::Recipe(typed) => typed.run(),
        Command::Source(typed) => typed.run(),
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
        Command::Man(typed) => typed.run(),
        Command::Completions(typed) => typed.run(),
    }
}

/// Replaces `--worker` as the first argument by `locust worker`. An operator of Locust passes
/// arguments that begin with `--worker` to the image of a worker.
fn as_locust_worker(words: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    words.enumerate().flat_map(|(place, word)| match place == 1 && word == "--worker" {
        true => vec!["locust".into(), "worker".into()],
        false => vec![word],
    })
}

/// Expands the command line of a party that a bench has started. Such a party reads its options
/// from standard input.
fn with_options(words: Vec<OsString>) -> Result<Vec<OsString>, String> {
    let (command, options) = words.split_at(words.len().min(2));
    if options != OPTIONS_FROM_STDIN {
        return Ok(words);
    }
    let options = PartyOptions::read(io::stdin().lock())?;
    Ok(command.iter().cloned().chain(options.words().into_iter().map(OsString::from)).collect())
}

/// Joins `--reuse 5` to `--reuse=5` and `--share short` to `--share=short`, because these options
/// take only such words as a separate value. Also joins `--messages -1`: clap would report `-1` as
/// an unknown option, while the option's own parser explains what is wrong.
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
        "--reuse" => is_negative || is_range || values::reuse(word).is_ok(),
        "--share" => ["short", "full"].contains(&word),
        _ => is_option && is_negative,
    }
}

/// Returns the error text of a command that could not run, one line for each complaint.
fn failure(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    let lines = text.lines().map(|line| without_error_numbers(&one_line(line)));
    let lines: Vec<String> = lines.filter(|line| !line.is_empty()).collect();
    let shown =
        lines.iter().take(MAX_ERROR_LINES).map(|line| printable(line).into_owned()).collect::<Vec<_>>().join("\n");
    let more = match lines.len().saturating_sub(MAX_ERROR_LINES) {
        0 => String::new(),
        more => format!("and {more} more\n"),
    };
    format!("mailrun: {shown}\n{more}")
}

/// Prints help and version as they are, and a mistake as one line.
fn report_misuse(error: &clap::Error, typed: &[OsString]) -> ExitCode {
    if !error.use_stderr() {
        match short_help(error, typed) {
            // Ignore a closed standard output.
            Some(text) => drop(say(&text)),
            None => drop(error.print()),
        }
        return ExitCode::SUCCESS;
    }
    if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = error.print();
        return ExitCode::from(2);
    }
    mailrun_party::tell!("mailrun: {}", misuse::sentence(error, typed));
    ExitCode::from(2)
}

/// Returns the text of `-h`, or `None` for `--help` and for `mailrun -h`, which clap prints itself.
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
    (!names.is_empty()).then(|| summary::of(command, &names))
}

/// Removes error numbers: `No such file or directory (os error 2)` becomes `No such file or
/// directory`.
fn without_error_numbers(line: &str) -> String {
    let mut parts = line.split(" (os error ");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(')') {
            Some((number, rest)) if number.bytes().all(|letter| letter.is_ascii_digit()) => plain.push_str(rest),
            _ => plain = format!("{plain} (os error {part}"),
        }
    }
    plain
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Decides whether a verdict of INVALID or INCONCLUSIVE counts as success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Strictness {
    /// It does, because neither a threshold nor a rate was asked for.
    Lenient,
    /// It does not, because of a threshold, a rate or `--strict`.
    Strict,
}

impl Strictness {
    fn of(is_strict: bool) -> Self {
        if is_strict { Self::Strict } else { Self::Lenient }
    }
}

/// Returns the exit status for a run record. A run never succeeds if mail was not delivered, if it
/// has no figure at all, or if it lacked a resource that it needed to send all of its mail.
fn exit_code(record: &Record, strictness: Strictness) -> ExitCode {
    let has_failed = record.ledger.failed > Some(0) || record.ledger.in_doubt > Some(0);
    let is_short = has_failed || record.parties.iter().any(|party| party.died.is_some());
    let is_never_success = record.verdict.causes.iter().any(|cause| match cause {
        Cause::NotDelivered | Cause::NothingTimed => true,
        Cause::Exhausted => is_short,
        _ => false,
    });
    let strictness = if is_never_success { Strictness::Strict } else { strictness };
    exit_status(judge::outcome(record), record.ending == Some(Ending::Interrupted), strictness)
}

/// Returns the exit status for the outcome of a run, or of a scenario with many runs.
fn exit_status(outcome: Option<Outcome>, is_interrupted: bool, strictness: Strictness) -> ExitCode {
    match outcome {
        _ if is_interrupted => ExitCode::from(INTERRUPTED_STATUS),
        Some(Outcome::Pass) | None => ExitCode::SUCCESS,
        Some(Outcome::Fail) => ExitCode::from(1),
        Some(Outcome::Invalid | Outcome::Inconclusive) if strictness == Strictness::Lenient => ExitCode::SUCCESS,
        Some(Outcome::Invalid | Outcome::Inconclusive) => ExitCode::from(3),
    }
}

/// Shows a party's own report, unless its output is for a program. `out` is the directory given on
/// the command line.
fn finish(
    finished: FinishedRun,
    report: &ReportArgs,
    live: LiveMode,
    strictness: Strictness,
    out: Option<&Path>,
) -> Result<ExitCode> {
    let FinishedRun { record, write_error: unwritten } = finished;
    let details = out.map(|directory| write_report(directory, &record)).transpose();
    if live != LiveMode::Json {
        match out {
            Some(_) => report.finish(&record, out)?,
            None => report.show(&record, None)?,
        }
    }
    details?;
    unwritten.map_or_else(|| Ok(exit_code(&record, strictness)), Err)
}

fn write_report(directory: &Path, record: &Record) -> Result<()> {
    let write = |name: &str, text: String| output_file::write(&directory.join(name), text);
    write("report.md", mailrun_report::markdown(record))?;
    write("report.html", mailrun_report::page(record, None))
}

/// Prints a result or the report of a command.
///
/// # Errors
///
/// If standard output cannot be written. A reader that closes the pipe causes no error.
fn say(text: &str) -> Result<()> {
    write_all(&mut io::stdout().lock(), text)
}

/// If a bench started this process, asks the kernel to terminate it when the bench dies, because
/// nobody would read its report.
fn exit_with_parent(live: LiveMode) {
    if live == LiveMode::Json {
        // If the kernel lacks this feature, a party without a bench runs until its own limits end
        // it.
        let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM));
    }
}
