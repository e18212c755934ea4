//! Common parts of the scenarios: the directory for their files, the shape of the load, and the code that runs one
//! bench after another until the user presses Ctrl-C.
use crate::BenchOutcome;
use crate::directory::RunDirectory;
use crate::engine::{BenchFigures, COMPARISON_FILE, ComparedRun, RunTurn, TextReport};
use crate::plan::{BenchOptions, BenchTarget};
use crate::programs::own_program;
use crate::relay::Relay;
use anyhow::{Result, bail};
use mailrun_measurement::judge;
use mailrun_measurement::record::{Arrival, Pipelining, Workload};
use mailrun_measurement::threshold::Threshold;
use mailrun_process::interrupt::{Interrupt, StopRequest};
use mailrun_process::live::LiveMode;
use mailrun_process::party_options::PartyOptions;
use mailrun_text::numbers::{counted, octets};
use std::cell::RefCell;
use std::path::{Path, PathBuf};

/// Recipients of the mail. The source distributes the messages evenly among them.
pub(super) const RECIPIENTS: &str = "to@{one.example,two.example,three.example,four.example,five.example}";

#[derive(Clone, Debug)]
pub struct ScenarioOptions {
    pub name: String,
    /// Directory for all files, or `None` for a new one under `mailrun-results/`.
    pub out: Option<PathBuf>,
    pub command: Vec<String>,
    pub thresholds: Vec<Threshold>,
    pub live: LiveMode,
}

#[derive(Clone, Debug)]
pub struct LoadShape {
    pub sessions: u32,
    /// Size of a message in bytes, including its header.
    pub message_bytes: u64,
    /// Maximum number of messages per connection, or `None` for no limit.
    pub reuse: Option<u64>,
    pub pipelining: Pipelining,
}

impl LoadShape {
    /// Returns the source's `--reuse` option, in which 0 means no limit.
    pub(crate) fn reuse_option(&self) -> PartyOptions {
        PartyOptions::default().with("reuse", self.reuse.unwrap_or(0))
    }

    /// Describes the load for the titles of reports, for example `messages of 400 B over 100 sessions to 5 domains,
    /// connections reused`. If all relays deliver to mailboxes, it says `mailboxes` instead of `5 domains`.
    pub(super) fn description(&self, relays: &[Relay]) -> String {
        let pipelining = match self.pipelining {
            Pipelining::Off => "",
            Pipelining::Group => ", commands in groups",
            Pipelining::Stream => ", one round trip per message",
        };
        let sessions = counted(u64::from(self.sessions), "session");
        let reuse = reuse_text(self.reuse);
        let all_deliver = !relays.is_empty() && relays.iter().all(Relay::has_mailboxes);
        let to = if all_deliver { "mailboxes" } else { "5 domains" };
        format!("messages of {} over {sessions} to {to}, {reuse}{pipelining}", octets(self.message_bytes))
    }
}

pub(crate) fn reuse_text(reuse: Option<u64>) -> String {
    match reuse {
        None => "connections reused".to_owned(),
        Some(1) => "a new connection per message".to_owned(),
        Some(messages) => format!("{} per connection", counted(messages, "message")),
    }
}

/// Makes a load of `messages` messages, in an open loop if there is a rate and otherwise in a closed loop.
pub(super) fn offered(messages: u64, rate_per_s: Option<f64>) -> Workload {
    let arrival = if rate_per_s.is_some() { Arrival::Constant } else { Arrival::Closed };
    Workload { messages: Some(messages), rate_per_s, arrival, ..Workload::default() }
}

#[derive(Debug)]
pub(crate) struct ScenarioRun {
    program: PathBuf,
    options: ScenarioOptions,
    directory: RunDirectory,
    /// Names of the directories of the runs so far, for the record.
    run_directories: RefCell<Vec<String>>,
    interrupt: Interrupt,
}

impl ScenarioRun {
    /// Creates the scenario's directory, and starts to watch for SIGINT and SIGTERM.
    pub(crate) fn prepare(options: &ScenarioOptions) -> Result<Self> {
        let program = own_program()?;
        let directory = RunDirectory::create(options.out.as_deref(), &options.name, jiff::Timestamp::now())?;
        let (options, interrupt) = (options.clone(), Interrupt::watch()?);
        Ok(Self { program, options, directory, run_directories: RefCell::default(), interrupt })
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    pub(crate) fn directory(&self) -> &RunDirectory {
        &self.directory
    }

    pub(crate) fn into_directory(self) -> RunDirectory {
        self.directory
    }

    /// Returns true once the user has asked to stop, so no more runs should be started.
    pub(crate) fn is_stopped(&self) -> bool {
        self.interrupt.requested() != StopRequest::Nothing
    }

    /// Returns the options for a run. The run writes its files into the subdirectory `place`, or beside the report of
    /// the scenario if `place` is empty.
    pub(crate) fn bench(&self, place: &str, relay: &Relay, shape: &LoadShape, load: Workload) -> BenchOptions {
        let out = if place.is_empty() { self.directory.path().to_owned() } else { self.run_directory(place) };
        self.options.bench(out, relay, shape, load)
    }

    /// Returns the directory for a run, and remembers its name for the record of the scenario.
    pub(super) fn run_directory(&self, name: &str) -> PathBuf {
        self.run_directories.borrow_mut().push(name.to_owned());
        self.directory.path().join(name)
    }

    /// Makes a run, or returns `None` if the user has already asked to stop.
    pub(crate) fn run(&self, bench: &BenchOptions) -> Option<Result<BenchOutcome>> {
        (!self.is_stopped()).then(|| ensure_complete(crate::run_with(&self.program, bench)?))
    }

    /// Makes a run, and drops its results if the user stops it before its end. The figures of an incomplete run cannot
    /// be compared with others, so this returns `None` instead.
    pub(crate) fn run_complete(&self, bench: &BenchOptions) -> Option<Result<BenchOutcome>> {
        self.run(bench).filter(|_| !self.is_stopped())
    }

    /// Makes a run of a comparison and prints a line with its result. Returns `None` if the user stopped the run.
    pub(crate) fn run_compared<M: BenchFigures>(
        &self,
        bench: BenchOptions,
        turn: &RunTurn<'_>,
        measure: impl FnOnce(BenchOutcome) -> Result<M>,
        figures: impl FnOnce(&M) -> String,
    ) -> Result<Option<ComparedRun<M>>> {
        let bench = BenchOptions { title: Some(turn.title.clone()), ..bench };
        let Some(outcome) = self.run_complete(&bench) else { return Ok(None) };
        self.compared(turn, outcome.and_then(measure), figures).map(Some)
    }

    /// Classifies a run of a comparison, for example as sound or faulty, and prints a line with its result.
    pub(crate) fn compared<M: BenchFigures>(
        &self,
        turn: &RunTurn<'_>,
        measured: Result<M>,
        figures: impl FnOnce(&M) -> String,
    ) -> Result<ComparedRun<M>> {
        let line = match &measured {
            Ok(measured) => {
                let fault = measured.flaws().fault.iter();
                fault.fold(figures(measured), |line, fault| format!("{line}; NOT OK: {fault}"))
            }
            Err(error) => format!("could not run: {error:#}"),
        };
        self.print_line(&format!("mailrun: {}: {line}", turn.title));
        measured.map(ComparedRun::of_bench)
    }

    /// Saves the report as `table.txt` and its record in the scenario's directory.
    pub(crate) fn save(&self, report: TextReport) -> Result<TextReport> {
        let mut report = report.with_run_directories(self.run_directories.take());
        report.conclusion.is_interrupted |= self.is_stopped();
        self.directory.write("table.txt", &format!("{}\n\n{}\n", report.text, report.conclusion.line()))?;
        self.directory.write(COMPARISON_FILE, &report.to_json()?)?;
        report.file = Some(self.directory.path().join("table.txt"));
        self.print_line(&format!("written to {}", self.directory.path().display()));
        Ok(report)
    }

    /// Prints a line on standard error, unless progress output is off.
    pub(crate) fn print_line(&self, line: &str) {
        if self.options.live.is_shown() {
            mailrun_process::tell!("{line}");
        }
    }
}

/// Returns an error if a process of the run died or if the run's files could not be written, because the figures of
/// such a run cannot be compared with others.
fn ensure_complete(outcome: BenchOutcome) -> Result<BenchOutcome> {
    let died = outcome.record.parties.iter().find_map(|party| Some((party.role, party.died.as_ref()?)));
    match (died, outcome.unwritten) {
        (Some((role, death)), _) => bail!("{}", judge::death_text(role.name(), death)),
        (None, Some(error)) => Err(error),
        (None, None) => Ok(BenchOutcome { unwritten: None, ..outcome }),
    }
}

impl ScenarioOptions {
    pub(super) fn bench(&self, out: PathBuf, relay: &Relay, shape: &LoadShape, load: Workload) -> BenchOptions {
        BenchOptions {
            name: self.name.clone(),
            out: Some(out),
            target: BenchTarget::of(relay.clone()),
            workload: Workload { sessions: shape.sessions, pipelining: shape.pipelining, seed: 1, ..load },
            source_options: shape.reuse_option().with("message-size", shape.message_bytes).with("to", RECIPIENTS),
            thresholds: self.thresholds.clone(),
            live: self.live,
            command: self.command.clone(),
            ..BenchOptions::default()
        }
    }
}

#[cfg(test)]
pub(crate) fn sample_options(name: &str) -> ScenarioOptions {
    ScenarioOptions {
        name: name.to_owned(),
        out: None,
        command: Vec::new(),
        thresholds: Vec::new(),
        live: LiveMode::Off,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_is_said_to_the_source_and_to_the_reader() {
        let shape = LoadShape { sessions: 250, message_bytes: 65_536, reuse: Some(1), pipelining: Pipelining::Off };
        assert_eq!(
            shape.description(&[]),
            "messages of 64 KiB over 250 sessions to 5 domains, a new connection per message"
        );
        let options = sample_options("relay-64k");
        let bench = options.bench("d".into(), &"postfix".parse().unwrap(), &shape, Workload::default());
        let words = bench.source_options.words().join(" ");
        assert!(
            words.contains("--message-size=65536") && words.contains("--reuse=1") && words.contains("five.example")
        );
        assert_eq!((bench.workload.sessions, bench.workload.pipelining), (250, Pipelining::Off));
        assert_eq!(RECIPIENTS.matches(".example").count(), 5);
        let shape = LoadShape { reuse: None, pipelining: Pipelining::Stream, ..shape };
        let description = shape.description(&["dovecot".parse().unwrap()]);
        assert!(
            description.ends_with(" to mailboxes, connections reused, one round trip per message"),
            "{description}"
        );
        let bench = options.bench("d".into(), &"postfix".parse().unwrap(), &shape, Workload::default());
        assert!(bench.source_options.words().contains(&"--reuse=0".to_owned()));
    }
}
