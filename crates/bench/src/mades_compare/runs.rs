//! One run of the comparison. It has a broker of its own, and a contestant with a time limit, whose
//! costs and results are collected.
use super::CompareOptions;
use super::contestants::{CompareCase, command};
use super::environment::CompareEnvironment;
use super::reported::{self, ReportedResult};
use crate::engine::{ComparedRun, Comparison, Costs, RunTurn, TimedChild};
use crate::programs::InstalledPrograms;
use crate::scenario::MadesTool;
use anyhow::{Context, Result};
use std::fs::{self, File};
use std::path::PathBuf;

#[derive(Clone, Debug)]
pub(super) struct CompareMeasurement {
    pub(super) reported: ReportedResult,
    pub(super) costs: Costs,
    /// CPU time of the stand-in, if there was one.
    pub(super) stand_in_cpu_s: Option<f64>,
}

pub(super) struct MadesComparison<'o> {
    pub(super) options: &'o CompareOptions,
    /// Path of this program, which is also the stand-in.
    pub(super) own: PathBuf,
    pub(super) programs: InstalledPrograms<MadesTool>,
}

impl Comparison for MadesComparison<'_> {
    type Case = CompareCase;
    type Measurement = CompareMeasurement;

    fn name(&self, case: &CompareCase) -> String {
        case.description()
    }

    fn run(&self, case: &CompareCase, turn: &mut RunTurn<'_>) -> Result<Option<ComparedRun<CompareMeasurement>>> {
        let directory = tempfile::Builder::new().prefix("mailrun-compare-").tempdir();
        let directory = directory.context("cannot create a temporary directory")?;
        let environment = CompareEnvironment::prepare(&self.own, self.options, directory.path())?;
        let program = self.programs.path(case.tool)?;
        let mut command = command(program, case, self.options, &environment.address, directory.path());
        let output = directory.path().join("stdout");
        command.stdout(File::create(&output).context("cannot create a temporary file")?);
        let mut contestant = TimedChild::start(command)?;
        let progress = || reported::progress(&fs::read_to_string(&output).unwrap_or_default());
        let Some((status, costs)) = turn.await_exit(&mut contestant, self.options.max_time, progress)? else {
            return Ok(None);
        };
        // Status 1 of our own program means that the account does not close. The run's record has
        // the reason.
        if !(status.success() || case.tool == MadesTool::Mailrun && status.code() == Some(1)) {
            return Err(contestant.exit_error(status));
        }
        let reported = match case.tool {
            MadesTool::GoMadesBench => reported::of_original(&fs::read_to_string(&output)?)?,
            MadesTool::Mailrun => reported::of_own(directory.path())?,
        };
        let fault = reported.fault.clone();
        Ok(Some(ComparedRun::of(CompareMeasurement { reported, costs, stand_in_cpu_s: environment.stop()? }, fault)))
    }
}
