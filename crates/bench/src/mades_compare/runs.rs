//! Makes one run of `mailrun bench mades-compare`: sets up a broker, runs a contestant under a time limit, and collects
//! its costs and results.
use super::contestants::{CompareCase, PERF_OUTPUT, QUIVER_OUTPUT, command, purge_command};
use super::environment::{BrokerAddress, CompareEnvironment};
use super::options::CompareOptions;
use super::options::MadesTool;
use super::reported::{self, ReportedResult};
use super::reported_amqp;
use crate::engine::{ComparedRun, Comparison, Costs, RunTurn, TimedChild};
use crate::programs::InstalledPrograms;
use anyhow::{Context, Result, bail, ensure};
use std::cell::Cell;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// If go-mades-bench has not exited this long after its last report, the bench kills it. With RabbitMQ it never exits,
/// because it waits for an answer to its AMQP detach frame.
const END_LIMIT: Duration = Duration::from_secs(5);
/// Interval at which the bench checks the output of go-mades-bench for its last report.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub(super) struct CompareMeasurement {
    pub(super) reported: ReportedResult,
    pub(super) costs: Costs,
    pub(super) stand_in_cpu_s: Option<f64>,
    /// Set if the tool was killed because it did not exit after its last report.
    pub(super) was_killed: bool,
}

pub(super) struct MadesComparison<'o> {
    pub(super) options: &'o CompareOptions,
    /// Path of the mailrun executable, which also runs as the simulated endpoint.
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
        if environment.address.is_shared && !case.tool.purges() {
            self.purge(&environment.address)?;
        }
        let output = directory.path().join("stdout");
        command.stdout(File::create(&output).context("cannot create a temporary file")?);
        let mut contestant = TimedChild::start(command)?;
        let printed = || fs::read_to_string(&output).unwrap_or_default();
        let was_killed = Cell::new(false);
        let mut end = AwaitedEnd::new(case.tool);
        let watch = || {
            was_killed.set(end.has_hung(printed));
            if was_killed.get() { bail!("it did not end after its report") } else { Ok(()) }
        };
        let max_time = self.options.max_time;
        let ended = turn.await_exit(&mut contestant, max_time, || reported::progress(&printed()), watch);
        let costs = if was_killed.get() {
            contestant.kill_group();
            contestant.reap()?.1
        } else {
            let Some((status, costs)) = ended? else { return Ok(None) };
            // Accept status 1 of our own program, because the run has then left a record. The record says what failed,
            // for example that messages were lost.
            if !(status.success() || case.tool == MadesTool::Mailrun && status.code() == Some(1)) {
                return Err(contestant.exit_error(status));
            }
            costs
        };
        let reported = match case.tool {
            MadesTool::GoMadesBench => reported::of_original(&printed())?,
            MadesTool::Mailrun => reported::of_own(directory.path())?,
            MadesTool::Quiver | MadesTool::QuiverPython => {
                reported_amqp::of_quiver(&directory.path().join(QUIVER_OUTPUT), self.options.messages)?
            }
            MadesTool::ArtemisPerf => {
                reported_amqp::of_perf(&directory.path().join(PERF_OUTPUT), self.options.messages)?
            }
        };
        let fault = reported.fault.clone();
        let stand_in_cpu_s = environment.stop()?;
        let measured = CompareMeasurement { reported, costs, stand_in_cpu_s, was_killed: was_killed.get() };
        Ok(Some(ComparedRun::of(measured, fault)))
    }
}

impl MadesComparison<'_> {
    /// Empties the queues, because some contestants would count messages that an earlier run left behind.
    fn purge(&self, broker: &BrokerAddress) -> Result<()> {
        let directory = tempfile::tempdir().context("cannot create a temporary directory")?;
        let mut command = purge_command(&self.own, self.options, broker, directory.path());
        let ended = command.stdin(Stdio::null()).output().context("cannot run mailrun mades")?;
        ensure!(
            ended.status.success(),
            "the queues could not be emptied: {}",
            String::from_utf8_lossy(&ended.stderr).trim_end()
        );
        Ok(())
    }
}

/// Finds out whether go-mades-bench has hung, that is, has not exited within `END_LIMIT` after it reported all of its
/// messages.
struct AwaitedEnd {
    is_watched: bool,
    checked_at: Instant,
    reported_at: Option<Instant>,
}

impl AwaitedEnd {
    fn new(tool: MadesTool) -> Self {
        Self { is_watched: tool == MadesTool::GoMadesBench, checked_at: Instant::now(), reported_at: None }
    }

    fn has_hung(&mut self, printed: impl Fn() -> String) -> bool {
        if self.is_watched && self.checked_at.elapsed() >= CHECK_INTERVAL {
            self.checked_at = Instant::now();
            let is_complete = reported::of_original(&printed()).is_ok_and(|reported| reported.fault.is_none());
            self.reported_at = self.reported_at.or(is_complete.then_some(self.checked_at));
        }
        self.reported_at.is_some_and(|at| at.elapsed() >= END_LIMIT)
    }
}
