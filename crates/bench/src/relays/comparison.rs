//! Compares relays by the time until all messages are accepted and the time until all are delivered. Scenarios such as
//! `relay-400` send the messages as a published benchmark does: over 250 sessions to 5 domains, with a new connection
//! for each message. The relays take turns, so that a slow minute of the machine affects all of them.
use super::measure::RelayMeasurement;
use super::scenario::{LoadShape, ScenarioOptions, ScenarioRun, offered};
use crate::BenchOutcome;
use crate::engine::RoundOrder;
use crate::engine::{self, ComparedRun, Comparison, ComparisonResults, Contestant, RunPlan, RunTurn};
use crate::launch::strace::{self, SyscallCounts};
use crate::plan::{BenchOptions, SyscallCounting};
use crate::relay::Relay;
use anyhow::{Context, Result};
use mailrun_measurement::record::Record;
use mailrun_process::live::LiveMode;
use mailrun_text::numbers::{count, rate, seconds};
use std::path::Path;

/// Maximum number of messages in a run under strace. The number is low because strace slows the relay down. Under
/// strace, 100 messages take about a tenth of a second.
const TRACED_MESSAGES: u64 = 1_000;

#[derive(Clone, Debug)]
pub struct RelayComparisonOptions {
    pub scenario: ScenarioOptions,
    pub contestants: Vec<Relay>,
    pub messages: u64,
    /// If set, messages are offered at this rate instead of as fast as the relays take them.
    pub rate_per_s: Option<f64>,
    pub shape: LoadShape,
    pub rounds: u32,
    pub order: RoundOrder,
    /// If set, additional runs under strace count the system calls.
    pub counts_syscalls: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum SyscallsPerMessage {
    Counted {
        all: f64,
        syncs: f64,
    },
    /// The system calls were not counted. The string gives the reason.
    NotMeasured(String),
}

#[derive(Clone, Debug)]
pub(super) struct RelayCase {
    pub(super) relay: Relay,
    pub(super) syscalls: SyscallsPerMessage,
}

pub(super) type RelayContestant = Contestant<RelayCase, RelayMeasurement>;

pub(super) type RelayResults = ComparisonResults<RelayCase, RelayMeasurement>;

/// Runs all relays in turns and then, if requested, counts the system calls of each relay.
pub(super) fn run_all(options: &RelayComparisonOptions, scenario: &ScenarioRun) -> RelayResults {
    let comparison = RelayComparison { options, scenario };
    let case = |relay: &Relay| RelayCase {
        relay: relay.clone(),
        syscalls: SyscallsPerMessage::NotMeasured("--syscalls was not said".to_owned()),
    };
    let cases: Vec<RelayCase> = options.contestants.iter().map(case).collect();
    let plan = RunPlan {
        compared: cases.len(),
        rounds: options.rounds,
        order: options.order,
        // The runner shows no progress, because each run is a bench, which shows its own progress.
        live: LiveMode::Off,
    };
    let mut results = engine::run_all(&comparison, cases, plan, &|| scenario.is_stopped());
    if options.counts_syscalls {
        comparison.count_syscalls(&mut results.contestants);
    }
    results
}

struct RelayComparison<'o> {
    options: &'o RelayComparisonOptions,
    scenario: &'o ScenarioRun,
}

impl Comparison for RelayComparison<'_> {
    type Case = RelayCase;
    type Measurement = RelayMeasurement;

    fn name(&self, case: &RelayCase) -> String {
        case.relay.to_string()
    }

    fn run(&self, case: &RelayCase, turn: &mut RunTurn<'_>) -> Result<Option<ComparedRun<RelayMeasurement>>> {
        let relay = &case.relay;
        let place = format!("round-{}-{}-{}", turn.round + 1, turn.case + 1, relay.file_name());
        let bench = self.bench(&place, relay, self.options.messages);
        let measure =
            |outcome: BenchOutcome| RelayMeasurement::of(&outcome.record, outcome.disk_bytes, self.options.messages);
        self.scenario.run_compared(bench, turn, measure, description)
    }
}

impl RelayComparison<'_> {
    fn bench(&self, place: &str, relay: &Relay, messages: u64) -> BenchOptions {
        let load = offered(messages, self.options.rate_per_s);
        self.scenario.bench(place, relay, &self.options.shape, load)
    }

    fn count_syscalls(&self, contestants: &mut [RelayContestant]) {
        let strace = strace::find();
        for RelayCase { relay, syscalls } in contestants.iter_mut().map(|contestant| &mut contestant.case) {
            *syscalls = match (&*relay, &strace) {
                (Relay::None, _) => SyscallsPerMessage::NotMeasured("there is no relay".to_owned()),
                (Relay::Running { .. }, _) => SyscallsPerMessage::NotMeasured("it was already running".to_owned()),
                (_, None) => SyscallsPerMessage::NotMeasured("strace is not installed".to_owned()),
                (relay, Some(strace)) => match self.syscalls_per_message(relay, strace) {
                    Ok((all, syncs)) => SyscallsPerMessage::Counted { all, syncs },
                    Err(error) => SyscallsPerMessage::NotMeasured(format!("{error:#}")),
                },
            };
        }
    }

    fn syscalls_per_message(&self, relay: &Relay, strace: &Path) -> Result<(f64, f64)> {
        let messages = self.options.messages.min(TRACED_MESSAGES);
        let one = self.run_under_strace(relay, strace, 1)?;
        let many = self.run_under_strace(relay, strace, messages)?;
        Ok(strace::per_message(one, many, messages))
    }

    fn run_under_strace(&self, relay: &Relay, strace: &Path, messages: u64) -> Result<SyscallCounts> {
        let name = format!("syscalls-{messages}-{}", relay.file_name());
        let mut bench = self.bench(&name, relay, messages);
        bench.syscall_counting = SyscallCounting::Strace(strace.to_owned());
        let outcome = self.scenario.run_complete(&bench).context("it was interrupted")??;
        let is_closed = |record: &Record| record.verdict.closed && record.ledger.accepted == Some(messages);
        anyhow::ensure!(is_closed(&outcome.record), "messages were missing under strace");
        let counted = format!("mailrun: counted system calls of {relay} for {} messages", count(messages));
        self.scenario.print_line(&counted);
        strace::read(&outcome.directory)
    }
}

fn description(measured: &RelayMeasurement) -> String {
    let figures = &measured.figures;
    format!(
        "accepted in {}, delivered in {}, {} msg/s",
        seconds(figures.accept_s),
        seconds(figures.deliver_s),
        rate(figures.delivered_per_s)
    )
}
