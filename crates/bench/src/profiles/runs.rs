//! Measures a server at several message sizes. Each run is a bench that sends one message file again and again.
use super::measurement::ProfileMeasurement;
use super::message_file::BodyLines;
use super::smtplib::{Smtplib, SmtplibRun};
use crate::BenchOutcome;
use crate::engine::{ComparedRun, RunTurn, TextReport};
use crate::launch;
use crate::plan::{BenchOptions, BenchTarget};
use crate::relay::Relay;
use crate::relays::{LoadShape, ScenarioOptions, ScenarioRun};
use anyhow::Result;
use mailrun_measurement::record::Workload;
use mailrun_process::party_options::PartyOptions;
use mailrun_text::numbers::{latency, megabytes, rate};
use std::fs;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug)]
pub struct ProfiledServer {
    pub target: BenchTarget,
    pub recipient: String,
}

impl ProfiledServer {
    /// Returns the name of the server for the titles of reports, for example `mailrun's sink`.
    pub(super) fn description(&self) -> String {
        match &self.target {
            BenchTarget::OwnSink => "mailrun's sink".to_owned(),
            BenchTarget::Relay(relay) => format!("{relay} and mailrun's sink"),
            BenchTarget::Server { address, .. } => address.clone(),
        }
    }
}

pub(super) struct ProfileLoad<'l> {
    /// Name of the run's directory within the scenario's directory.
    pub(super) place: String,
    pub(super) file: &'l Path,
    pub(super) shape: LoadShape,
    pub(super) workload: Workload,
    /// Options for the source in addition to `--reuse`, `--file` and `--to`, which every run has.
    pub(super) source_options: PartyOptions,
    pub(super) sink_options: PartyOptions,
}

pub(super) struct ProfileRuns {
    scenario: ScenarioRun,
    server: ProfiledServer,
}

impl ProfileRuns {
    /// Checks that the relay, if there is one, can be started, and then creates the scenario's directory.
    pub(super) fn prepare(options: &ScenarioOptions, server: &ProfiledServer) -> Result<Self> {
        if let BenchTarget::Relay(relay) = &server.target {
            launch::check(relay)?;
        }
        Ok(Self { scenario: ScenarioRun::prepare(options)?, server: server.clone() })
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.scenario.is_stopped()
    }

    pub(super) fn path(&self, lines: BodyLines, body_bytes: u64) -> PathBuf {
        self.scenario.directory().path().join(lines.file_name(body_bytes))
    }

    /// Saves the tables and deletes the message files, which are large and can be made again.
    pub(super) fn save<'f>(&self, report: TextReport, files: impl Iterator<Item = &'f PathBuf>) -> Result<TextReport> {
        // Ignore errors, because several rows may share a file, and then the file is already deleted.
        files.for_each(|file| _ = fs::remove_file(file));
        self.scenario.save(report)
    }

    /// Makes one run with Python's smtplib as the client, or returns `None` if the user ended it.
    pub(super) fn run_smtplib(
        &self,
        smtplib: Smtplib,
        file: &Path,
        messages: u64,
        turn: &mut RunTurn<'_>,
    ) -> Result<Option<ComparedRun<ProfileMeasurement>>> {
        let ProfiledServer { target, recipient } = &self.server;
        let measured = SmtplibRun { smtplib, target, recipient, file, messages }.measure(turn).transpose();
        let measured = measured.filter(|_| !self.is_stopped());
        measured.map(|measured| self.scenario.compared(turn, measured, description)).transpose()
    }

    /// Makes one run with mailrun's source, or returns `None` if the user ended it.
    pub(super) fn run(
        &self,
        load: ProfileLoad<'_>,
        turn: &RunTurn<'_>,
    ) -> Result<Option<ComparedRun<ProfileMeasurement>>> {
        // Expect no fixed number of messages if the run has a time limit, because it may end before all are sent.
        let expected = load.workload.messages.filter(|_| load.workload.duration_limit_s.is_none());
        let measure = |outcome: BenchOutcome| ProfileMeasurement::of(&outcome.record, expected);
        self.scenario.run_compared(self.bench(load), turn, measure, description)
    }

    fn bench(&self, load: ProfileLoad<'_>) -> BenchOptions {
        let options = load.shape.reuse_option().with("file", load.file.display()).with("to", &self.server.recipient);
        let bench = self.scenario.bench(&load.place, &Relay::None, &load.shape, load.workload);
        let source_options = options.and(load.source_options);
        BenchOptions { target: self.server.target.clone(), source_options, sink_options: load.sink_options, ..bench }
    }
}

fn description(measured: &ProfileMeasurement) -> String {
    let line = format!("{} msg/s, {} MB/s", rate(measured.rate_per_s), megabytes(measured.bytes_per_s));
    let accept = measured.accept.iter();
    accept.fold(line, |line, accept| format!("{line}, p50 {}, p95 {}", latency(accept.p50), latency(accept.p95)))
}
