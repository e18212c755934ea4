//! Common parts of all scenarios of relays: a directory, the shape of the load, runs one after the other until Ctrl-C.
use crate::BenchOutcome;
use crate::contestant::Contestant;
use crate::directory::{self, RunDirectory};
use crate::engine::{BenchFigures, ComparedRun, RunTurn, TextReport};
use crate::plan::{BenchOptions, BenchTarget};
use crate::programs::own_program;
use anyhow::{Result, bail};
use mailrun_journey::judge;
use mailrun_journey::record::{Pipelining, Workload};
use mailrun_journey::threshold::Threshold;
use mailrun_party::interrupt::{Interrupt, StopRequest};
use mailrun_party::live::LiveMode;
use mailrun_party::party_options::PartyOptions;
use mailrun_report::numbers::{counted, octets};
use std::path::{Path, PathBuf};

/// Recipients of the mail: five domains with equally many each.
const RECIPIENTS: &str = "to@{one.example,two.example,three.example,four.example,five.example}";

/// Name, directory, thresholds and output of a scenario.
#[derive(Clone, Debug)]
pub struct ScenarioOptions {
    /// Its name in reports.
    pub name: String,
    /// Directory for all files; `None` for a new directory under `mailrun-results/`.
    pub out: Option<PathBuf>,
    /// The command line that was typed.
    pub command: Vec<String>,
    /// Thresholds that each measured run must meet.
    pub thresholds: Vec<Threshold>,
    /// Progress output while it runs.
    pub live: LiveMode,
}

/// Shape of the load.
#[derive(Clone, Debug)]
pub struct LoadShape {
    pub sessions: u32,
    /// Bytes of a message, header included.
    pub message_bytes: u64,
    /// Messages a connection carries; `None` for as many as there are.
    pub reuse: Option<u64>,
    pub pipelining: Pipelining,
}

impl LoadShape {
    /// The reuse of connections as an option of the source: 0 is without limit.
    pub(crate) fn reuse_option(&self) -> PartyOptions {
        PartyOptions::default().with("reuse", self.reuse.unwrap_or(0))
    }

    /// `messages of 400 B over 100 sessions, connections reused`
    pub(super) fn description(&self) -> String {
        let pipelining = match self.pipelining {
            Pipelining::Off => "",
            Pipelining::Group => ", commands in groups",
            Pipelining::Stream => ", one round trip per message",
        };
        let sessions = counted(u64::from(self.sessions), "session");
        let reuse = reuse_text(self.reuse);
        format!("messages of {} over {sessions} to 5 domains, {reuse}{pipelining}", octets(self.message_bytes))
    }
}

/// The reuse of connections, for the title of a report.
pub(crate) fn reuse_text(reuse: Option<u64>) -> String {
    match reuse {
        None => "connections reused".to_owned(),
        Some(1) => "a new connection per message".to_owned(),
        Some(messages) => format!("{} per connection", counted(messages, "message")),
    }
}

/// A scenario on its way: its program, its directory, and the user's requests.
#[derive(Debug)]
pub(crate) struct ScenarioRun {
    program: PathBuf,
    options: ScenarioOptions,
    directory: RunDirectory,
    interrupt: Interrupt,
}

impl ScenarioRun {
    /// Makes the directory, and hears Ctrl-C from now on.
    pub(crate) fn prepare(options: &ScenarioOptions) -> Result<Self> {
        let program = own_program()?;
        let directory = RunDirectory::create(options.out.as_deref(), &options.name, jiff::Timestamp::now())?;
        Ok(Self { program, options: options.clone(), directory, interrupt: Interrupt::watch()? })
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

    /// Reports whether the user wants no more runs.
    pub(crate) fn is_stopped(&self) -> bool {
        self.interrupt.requested() != StopRequest::Nothing
    }

    /// Options of a run that is kept in its own directory below the scenario's.
    pub(crate) fn bench(
        &self,
        place: &str,
        contestant: &Contestant,
        shape: &LoadShape,
        load: Workload,
    ) -> BenchOptions {
        let out = self.directory.path().join(place);
        self.options.bench(out, contestant, shape, load)
    }

    /// Runs it; `None` if the user wants no more runs.
    pub(crate) fn run(&self, bench: &BenchOptions) -> Option<Result<BenchOutcome>> {
        (!self.is_stopped()).then(|| ensure_complete(crate::run_with(&self.program, bench)?))
    }

    /// The same; `None` also if it was stopped in its middle: figures of half a run are none.
    pub(crate) fn run_complete(&self, bench: &BenchOptions) -> Option<Result<BenchOutcome>> {
        self.run(bench).filter(|_| !self.is_stopped())
    }

    /// Makes a run of a comparison and says in a line how it went; `None` if the user ended it.
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

    /// Says in a line how a run of a comparison went.
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

    /// Keeps the table beside the runs.
    pub(crate) fn save(&self, mut report: TextReport) -> Result<TextReport> {
        report.conclusion.is_interrupted |= self.is_stopped();
        self.directory.write("table.txt", &format!("{}\n\n{}\n", report.text, report.conclusion.line()))?;
        report.file = Some(self.directory.path().join("table.txt"));
        self.print_line(&format!("written to {}", self.directory.path().display()));
        Ok(report)
    }

    /// Prints a line on standard error, unless output is off.
    pub(crate) fn print_line(&self, line: &str) {
        if self.options.live.is_shown() {
            mailrun_party::tell!("{line}");
        }
    }
}

/// Fails unless the run has its files and no party died: others cannot be compared.
fn ensure_complete(outcome: BenchOutcome) -> Result<BenchOutcome> {
    let died = outcome.record.parties.iter().find_map(|party| Some((party.role, party.died.as_ref()?)));
    match (died, outcome.unwritten) {
        (Some((role, death)), _) => bail!("{}", judge::death_text(directory::name(role), death)),
        (None, Some(error)) => Err(error),
        (None, None) => Ok(BenchOutcome { unwritten: None, ..outcome }),
    }
}

impl ScenarioOptions {
    /// A run of it, in that directory.
    pub(super) fn bench(
        &self,
        out: PathBuf,
        contestant: &Contestant,
        shape: &LoadShape,
        load: Workload,
    ) -> BenchOptions {
        BenchOptions {
            name: self.name.clone(),
            out: Some(out),
            target: BenchTarget::of(contestant.clone()),
            workload: Workload { sessions: shape.sessions, pipelining: shape.pipelining, seed: 1, ..load },
            source_options: shape.reuse_option().with("message-size", shape.message_bytes).with("to", RECIPIENTS),
            thresholds: self.thresholds.clone(),
            live: self.live,
            command: self.command.clone(),
            ..BenchOptions::default()
        }
    }
}

/// Options of a scenario of that name, for tests.
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
            shape.description(),
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
        assert!(
            shape.description().ends_with("connections reused, one round trip per message"),
            "{}",
            shape.description()
        );
        let bench = options.bench("d".into(), &"postfix".parse().unwrap(), &shape, Workload::default());
        assert!(bench.source_options.words().contains(&"--reuse=0".to_owned()));
    }
}
