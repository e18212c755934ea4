//! The load of a profile's runs: each is a bench of its own, with a message from a file, against one server.
use super::measurement::ProfileMeasurement;
use super::message_file::BodyLines;
use super::smtplib::SmtplibRun;
use crate::BenchOutcome;
use crate::contestant::Contestant;
use crate::engine::{ComparedRun, RunTurn, TextReport};
use crate::launch;
use crate::plan::{BenchOptions, BenchTarget};
use crate::relays::{LoadShape, ScenarioOptions, ScenarioRun};
use anyhow::Result;
use mailrun_journey::record::Workload;
use mailrun_party::party_options::PartyOptions;
use mailrun_report::numbers::{latency, megabytes, rate};
use std::fs;
use std::path::{Path, PathBuf};

/// The server that is profiled.
#[derive(Clone, Debug)]
pub struct ProfiledServer {
    pub target: BenchTarget,
    /// Recipient of all messages.
    pub recipient: String,
}

impl ProfiledServer {
    /// `mailrun's sink`
    pub(super) fn description(&self) -> String {
        match &self.target {
            BenchTarget::OwnSink => "mailrun's sink".to_owned(),
            BenchTarget::Relay(relay) => format!("{relay} and mailrun's sink"),
            BenchTarget::Server { address, .. } => address.clone(),
        }
    }
}

/// A run of a profile.
pub(super) struct ProfileLoad<'l> {
    /// Name of its directory.
    pub(super) place: String,
    /// The message.
    pub(super) file: &'l Path,
    pub(super) shape: LoadShape,
    pub(super) workload: Workload,
    /// More options for the source.
    pub(super) source_options: PartyOptions,
}

/// A profile on its way.
pub(super) struct ProfileRuns {
    scenario: ScenarioRun,
    server: ProfiledServer,
}

impl ProfileRuns {
    /// Makes the directory of all files.
    pub(super) fn prepare(options: &ScenarioOptions, server: &ProfiledServer) -> Result<Self> {
        if let BenchTarget::Relay(relay) = &server.target {
            launch::check(relay)?;
        }
        Ok(Self { scenario: ScenarioRun::prepare(options)?, server: server.clone() })
    }

    /// Reports whether the user wants no more runs.
    pub(super) fn is_stopped(&self) -> bool {
        self.scenario.is_stopped()
    }

    /// Path of a message in the scenario's directory.
    pub(super) fn path(&self, lines: BodyLines, body_bytes: u64) -> PathBuf {
        self.scenario.directory().path().join(lines.file_name(body_bytes))
    }

    /// Keeps the tables; the messages, which are large and can be made again, are removed.
    pub(super) fn save<'f>(&self, report: TextReport, files: impl Iterator<Item = &'f PathBuf>) -> Result<TextReport> {
        // Rows share files: one that is not there any more was removed before.
        files.for_each(|file| _ = fs::remove_file(file));
        self.scenario.save(report)
    }

    /// Makes one run of smtplib's; `None` if the user ended it.
    pub(super) fn run_smtplib(
        &self,
        file: &Path,
        messages: u64,
        turn: &mut RunTurn<'_>,
    ) -> Result<Option<ComparedRun<ProfileMeasurement>>> {
        let ProfiledServer { target, recipient } = &self.server;
        let measured = SmtplibRun { target, recipient, file, messages }.measure(turn).transpose();
        let measured = measured.filter(|_| !self.is_stopped());
        measured.map(|measured| self.scenario.compared(turn, measured, description)).transpose()
    }

    /// Makes one run; `None` if the user ended it.
    pub(super) fn run(
        &self,
        load: ProfileLoad<'_>,
        turn: &RunTurn<'_>,
    ) -> Result<Option<ComparedRun<ProfileMeasurement>>> {
        // A run that a time ends sends as many as it can.
        let expected = load.workload.messages.filter(|_| load.workload.duration_limit_s.is_none());
        let measure = |outcome: BenchOutcome| ProfileMeasurement::of(&outcome.record, expected);
        self.scenario.run_compared(self.bench(load), turn, measure, description)
    }

    fn bench(&self, load: ProfileLoad<'_>) -> BenchOptions {
        let told = load.shape.reuse_option().with("file", load.file.display()).with("to", &self.server.recipient);
        let bench = self.scenario.bench(&load.place, &Contestant::None, &load.shape, load.workload);
        BenchOptions { target: self.server.target.clone(), source_options: told.and(load.source_options), ..bench }
    }
}

/// The figures of a run in a line.
fn description(measured: &ProfileMeasurement) -> String {
    let line = format!("{} msg/s, {} MB/s", rate(measured.rate_per_s), megabytes(measured.bytes_per_s));
    let accept = measured.accept.iter();
    accept.fold(line, |line, accept| format!("{line}, p50 {}, p95 {}", latency(accept.p50), latency(accept.p95)))
}
