//! The published contest: a number of messages over 250 sessions to 5 domains, a new connection each; how long until
//! all are accepted, and until all are delivered. Several relays take turns, so that a slow minute affects all.
use super::contestant::Contestant;
use super::launch;
use super::measure::RelayMeasurement;
use super::report;
use super::scenario::{LoadShape, ScenarioOptions, ScenarioRun};
use super::strace::{self, SyscallCounts};
use crate::bench::plan::{BenchOptions, SyscallCounting};
use crate::bench::scenario::RoundOrder;
use crate::bench::tables::{self, TextReport};
use ::report::numbers::{count, rate, seconds};
use anyhow::{Context, Result};
use journey::record::{Record, Workload};
use std::path::Path;

/// Messages of the longer run under strace, which takes a tenth of a second for a hundred messages.
const TRACED_MESSAGES: u64 = 1_000;

/// Options of a contest.
#[derive(Clone, Debug)]
pub(crate) struct RelayComparisonOptions {
    pub(crate) scenario: ScenarioOptions,
    pub(crate) contestants: Vec<Contestant>,
    pub(crate) messages: u64,
    pub(crate) shape: LoadShape,
    /// Runs of each contestant.
    pub(crate) rounds: u32,
    pub(crate) order: RoundOrder,
    /// Says whether system calls are counted, in runs of their own.
    pub(crate) counts_syscalls: bool,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub(super) enum RelayRun {
    Done(Box<RelayMeasurement>),
    /// The run could not start or finish, with the reason.
    Failed(String),
}

/// System calls a message.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum SyscallsPerMessage {
    Counted {
        all: f64,
        syncs: f64,
    },
    /// Reason why there is no measurement.
    NotMeasured(String),
}

/// A contestant and its runs, one for each round that was begun.
#[derive(Clone, Debug)]
pub(super) struct RelaySeries {
    pub(super) contestant: Contestant,
    pub(super) runs: Vec<RelayRun>,
    pub(super) syscalls: SyscallsPerMessage,
}

/// All that was run.
#[derive(Clone, Debug)]
pub(super) struct RelayComparisonResults {
    pub(super) series: Vec<RelaySeries>,
    pub(super) done: usize,
    pub(super) planned: usize,
}

/// Runs a contest to its end, or until SIGINT or SIGTERM; either way there is a table of what was run.
///
/// # Errors
///
/// If it could not run at all. A relay that fails is named in the table.
pub(crate) fn run(options: &RelayComparisonOptions) -> Result<TextReport> {
    options.contestants.iter().try_for_each(launch::check)?;
    let contest = RelayComparison { options, scenario: ScenarioRun::prepare(&options.scenario)? };
    let mut finds = contest.run_all();
    if options.counts_syscalls {
        contest.count_syscalls(&mut finds.series);
    }
    contest.scenario.save(report::of(&finds, options))
}

struct RelayComparison<'o> {
    options: &'o RelayComparisonOptions,
    scenario: ScenarioRun,
}

impl RelayComparison<'_> {
    fn run_all(&self) -> RelayComparisonResults {
        let not_asked = || SyscallsPerMessage::NotMeasured("--syscalls was not said".to_owned());
        let lane = |contestant: &Contestant| RelaySeries {
            contestant: contestant.clone(),
            runs: Vec::new(),
            syscalls: not_asked(),
        };
        let mut lanes: Vec<RelaySeries> = self.options.contestants.iter().map(lane).collect();
        let contestants = lanes.len();
        let order = tables::order(contestants, contestants, self.options.rounds, self.options.order);
        let planned = order.len();
        let mut done = 0;
        for number in order {
            let round = done / contestants;
            let lane = &mut lanes[number];
            let name = format!("round-{}-{}-{}", round + 1, number + 1, lane.contestant.file_name());
            let title = Some(format!("run {} of {planned}: {}", done + 1, lane.contestant));
            let bench = BenchOptions { title, ..self.bench(&name, &lane.contestant, self.options.messages) };
            let Some(run) = self.measure(&bench) else { break };
            done += 1;
            self.scenario.print_line(&format!(
                "mailrun: run {done} of {planned}: {}: {}",
                lane.contestant,
                run.description()
            ));
            lane.runs.push(run);
        }
        RelayComparisonResults { series: lanes, done, planned }
    }

    fn bench(&self, place: &str, contestant: &Contestant, messages: u64) -> BenchOptions {
        let load = Workload { messages: Some(messages), ..Workload::default() };
        self.scenario.bench(place, contestant, &self.options.shape, load)
    }

    /// Measures one run; `None` if the user wants no more runs.
    fn measure(&self, bench: &BenchOptions) -> Option<RelayRun> {
        let outcome = self.scenario.run_complete(bench)?;
        let measure = outcome
            .and_then(|outcome| RelayMeasurement::of(&outcome.record, outcome.disk_bytes, self.options.messages));
        Some(
            measure.map_or_else(
                |error| RelayRun::Failed(format!("{error:#}")),
                |measure| RelayRun::Done(Box::new(measure)),
            ),
        )
    }

    /// Counts the system calls of each relay that the bench starts itself.
    fn count_syscalls(&self, lanes: &mut [RelaySeries]) {
        let strace = strace::find();
        for lane in lanes {
            lane.syscalls = match (&lane.contestant, &strace) {
                (Contestant::None, _) => SyscallsPerMessage::NotMeasured("there is no relay".to_owned()),
                (Contestant::Running { .. }, _) => SyscallsPerMessage::NotMeasured("it was already running".to_owned()),
                (_, None) => SyscallsPerMessage::NotMeasured("strace is not installed".to_owned()),
                (contestant, Some(strace)) => match self.syscalls_per_message(contestant, strace) {
                    Ok((all, syncs)) => SyscallsPerMessage::Counted { all, syncs },
                    Err(error) => SyscallsPerMessage::NotMeasured(format!("{error:#}")),
                },
            };
        }
    }

    fn syscalls_per_message(&self, contestant: &Contestant, strace: &Path) -> Result<(f64, f64)> {
        let messages = self.options.messages.min(TRACED_MESSAGES);
        let one = self.run_under_strace(contestant, strace, 1)?;
        let many = self.run_under_strace(contestant, strace, messages)?;
        Ok(strace::per_message(one, many, messages))
    }

    fn run_under_strace(&self, contestant: &Contestant, strace: &Path, messages: u64) -> Result<SyscallCounts> {
        let name = format!("syscalls-{messages}-{}", contestant.file_name());
        let mut bench = self.bench(&name, contestant, messages);
        bench.syscall_counting = SyscallCounting::Strace(strace.to_owned());
        let outcome = self.scenario.run_complete(&bench).context("it was interrupted")??;
        let is_closed = |record: &Record| record.verdict.closed && record.ledger.accepted == Some(messages);
        anyhow::ensure!(is_closed(&outcome.record), "messages were missing under strace");
        let counted = format!("mailrun: counted system calls of {contestant} for {} messages", count(messages));
        self.scenario.print_line(&counted);
        strace::read(&outcome.directory)
    }
}

impl RelayRun {
    fn description(&self) -> String {
        match self {
            Self::Done(measure) => {
                let passage = &measure.figures;
                let figures = format!(
                    "accepted in {}, delivered in {}, {} msg/s",
                    seconds(passage.accept_s),
                    seconds(passage.deliver_s),
                    rate(passage.delivered_per_s)
                );
                measure.fault.iter().fold(figures, |figures, fault| format!("{figures}; NOT OK: {fault}"))
            }
            Self::Failed(why) => format!("could not run: {why}"),
        }
    }
}
