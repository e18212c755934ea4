//! Makes one run of a contestant in a round. Starts the contestant, watches it, and kills it if necessary. Then records
//! its costs, such as CPU time, and counts the messages at the sink.
use super::case::{LiveCase, LiveKind, RunLoad};
use super::round_sink::RoundSink;
use super::wire_counter::{WireBytes, WireCounter};
use crate::engine::{ComparedRun, Costs, RunTurn, TimedChild, miscount};
use crate::launch::strace::{self, SyscallCounts};
use anyhow::{Context, Result, ensure};
use mailrun_compare::{ComparedMetric, Gain, RoundLoad, RunFigure, defect};
use mailrun_measurement::record::Record;
use mailrun_measurement::stage::Stage;
use mailrun_text::numbers::count;
use std::cell::{Cell, RefCell};
use std::fs;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// While a contestant runs, the bench checks at this interval whether the sink has received too many messages.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// The bench kills a contestant that exceeds the requested number of messages by more than this.
const MAX_EXCESS: u64 = 1_000;

#[derive(Clone, Copy, Debug)]
pub(super) struct RoundCase<'o> {
    pub(super) contestant: &'o LiveCase,
    pub(super) load: RoundLoad,
    pub(super) limit: Duration,
    /// If set, the bench waits after the run until the sink receives no more messages. This finds contestants that send
    /// too many messages.
    pub(super) is_thorough: bool,
    /// Path of strace, if the run's system calls are counted.
    pub(super) strace: Option<&'o Path>,
    /// If set, a proxy counts the bytes of the run's connections.
    pub(super) counts_bytes: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct RoundRun {
    pub(super) elapsed_s: f64,
    pub(super) figures: Vec<RunFigure>,
    pub(super) max_rss_bytes: Option<u64>,
    pub(super) calls: Option<SyscallCounts>,
    pub(super) wire: Option<WireBytes>,
}

impl RoundRun {
    /// Makes the result of a run that went wrong and has no figures. The bench still runs the contestant in later
    /// rounds.
    pub(super) fn faulty(reason: String) -> ComparedRun<Self> {
        ComparedRun::Faulty(Self::default(), reason)
    }
}

pub(super) struct RoundRuns {
    /// The sink that counts deliveries, or `None` if the comparison has no sink.
    sink: Option<RefCell<RoundSink>>,
    to: Option<String>,
    directory: TempDir,
    /// Number of messages that the sink had received after the previous run. If the number has grown before the next
    /// run, messages have arrived late.
    last: Cell<Option<u64>>,
}

impl RoundRuns {
    pub(super) fn new(sink: Option<RoundSink>, to: Option<String>) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("mailrun-rounds-").tempdir();
        let directory = directory.context("cannot create a temporary directory")?;
        Ok(Self { sink: sink.map(RefCell::new), to, directory, last: Cell::new(None) })
    }

    pub(super) fn has_sink(&self) -> bool {
        self.sink.is_some()
    }

    /// Returns how many messages the sink has received in total before a run, or 0 if there is no sink. Fails if
    /// messages have arrived since the end of the previous run, because such messages cannot be attributed to a run.
    fn count_before(&self) -> Result<u64> {
        let Some(sink) = &self.sink else { return Ok(0) };
        sink.borrow_mut().ensure_running()?;
        let before = sink.borrow().messages()?;
        let late_count = before - self.last.replace(Some(before)).unwrap_or(before).min(before);
        ensure!(late_count == 0, "{} messages came after the end of the run before", count(late_count));
        Ok(before)
    }

    fn count_since(&self, before: u64) -> Result<Option<u64>> {
        let Some(sink) = &self.sink else { return Ok(None) };
        Ok(Some(sink.borrow().messages()?.saturating_sub(before)))
    }

    /// Waits until the sink receives no more mail, so that late messages do not count for the next run.
    fn await_quiet(&self) -> Result<()> {
        if let Some(sink) = &self.sink {
            self.last.set(Some(sink.borrow().await_quiet()?));
        }
        Ok(())
    }

    /// Returns an error if the contestant has sent far more messages than it should. The error
    /// makes the caller kill the contestant.
    fn check_excess(&self, before: u64, wanted: u64) -> Result<()> {
        let sent_count = self.count_since(before)?.unwrap_or_default();
        ensure!(
            sent_count <= wanted.saturating_add(MAX_EXCESS),
            "it sent {} messages instead of {} and was killed",
            count(sent_count),
            count(wanted)
        );
        Ok(())
    }

    /// Runs the contestant until it exits, or returns `None` if the user asked to stop.
    fn run(
        &self,
        case: &RoundCase<'_>,
        load: &RunLoad<'_>,
        before: u64,
        turn: &mut RunTurn<'_>,
    ) -> Result<Option<(ExitStatus, Costs, TimedChild)>> {
        let command = case.contestant.command(load)?;
        let mut command = match case.strace {
            Some(strace) => traced(&command, strace, &load.record.with_extension("strace")),
            None => command,
        };
        command.stdout(Stdio::null());
        let mut child = TimedChild::start(command)?;
        if case.contestant.kind() == LiveKind::Scenario {
            child = child.with_own_processes();
        }
        let mut looked_at = Instant::now();
        let progress = || {
            let sent_count = self.count_since(before).ok()??;
            Some(format!("the sink had {} of {} messages", count(sent_count), count(load.messages)))
        };
        let ended = turn.await_exit(&mut child, case.limit, progress, || {
            if looked_at.elapsed() < WATCH_INTERVAL {
                return Ok(());
            }
            looked_at = Instant::now();
            self.check_excess(before, load.messages)
        })?;
        Ok(ended.map(|(status, costs)| (status, costs, child)))
    }

    /// Counts the messages that the sink has received in a run. Returns a description of the fault if their number is
    /// wrong.
    fn count_fault(&self, before: u64, case: &RoundCase<'_>) -> Result<Option<String>> {
        let Some(sink) = &self.sink else { return Ok(None) };
        let sink = sink.borrow();
        let wanted = case.load.messages;
        let mut after = sink.await_messages(before + wanted)?;
        if case.is_thorough || after != before + wanted {
            after = sink.await_quiet()?;
        }
        self.last.set(Some(after));
        Ok(miscount(after.saturating_sub(before), wanted))
    }

    /// Returns the figures of a finished run, or the reason why the run has none.
    fn figures(&self, case: &RoundCase<'_>, costs: &Costs, record: &Path) -> Result<Vec<RunFigure>, String> {
        match case.contestant.kind() {
            LiveKind::Source => {
                let record = case.contestant.has_record().then(|| read_record(record)).flatten();
                Ok(source_figures(costs, case.load.messages, record.as_ref()))
            }
            LiveKind::Server => {
                let record = read_record(record).ok_or("the source left no record")?;
                let sink = self.sink.as_ref().and_then(|sink| sink.borrow().record(&record.run_id));
                server_figures(&record, sink.as_ref(), case.load.messages)
            }
            LiveKind::Scenario => scenario_figures(record),
        }
    }

    /// Makes one run and decides whether its figures count. The result is `Failed` if another run would fail as well,
    /// because the program is missing, hangs or sends far too many messages. Returns `None` if the user stopped the
    /// run.
    pub(super) fn measure(
        &self,
        case: &RoundCase<'_>,
        turn: &mut RunTurn<'_>,
    ) -> Result<Option<ComparedRun<RoundRun>>> {
        let before = self.count_before()?;
        let place = tempfile::tempdir_in(self.directory.path()).context("cannot create a temporary directory")?;
        let record = place.path().join("record");
        let sink = self.sink.as_ref().and_then(|sink| sink.borrow().address());
        let target = case.contestant.target(sink).filter(|_| case.counts_bytes);
        let counter = target.map(WireCounter::start).transpose()?;
        let counted = counter.as_ref().map(WireCounter::address);
        let load = RunLoad {
            sink: counted.or(sink),
            counter: counted,
            to: self.to.as_deref(),
            sessions: case.load.sessions,
            messages: case.load.messages,
            message_bytes: case.load.message_bytes,
            record: &record,
        };
        let (status, costs, mut child) = match self.run(case, &load, before, turn) {
            Ok(Some(ended)) => ended,
            Ok(None) => return Ok(None),
            Err(error) => {
                // Wait until the last messages of the failed contestant have arrived, because they must not be counted
                // for the next run.
                self.await_quiet()?;
                return Ok(Some(ComparedRun::Failed(format!("{error:#}"))));
            }
        };
        let miscount = self.count_fault(before, case)?;
        let figures = self.figures(case, &costs, &record);
        // If a server refused mail, the source's record says why. Report this reason, because it says more than the
        // exit status.
        let is_explained = case.contestant.kind() == LiveKind::Server && record.exists() && figures.is_err();
        if !status.success() && !is_explained {
            return Ok(Some(RoundRun::faulty(format!("{:#}", child.exit_error(status)))));
        }
        Ok(Some(match (figures, miscount) {
            (Err(reason), _) | (_, Some(reason)) => RoundRun::faulty(reason),
            (Ok(figures), None) => {
                let max_rss_bytes = costs.max_rss_bytes.filter(|_| case.contestant.kind() == LiveKind::Source);
                let calls = fs::read_to_string(record.with_extension("strace")).ok().map(|text| strace::parse(&text));
                let wire = counter.and_then(|counter| counter.finish().ok());
                ComparedRun::Sound(RoundRun { elapsed_s: costs.elapsed_s, figures, max_rss_bytes, calls, wire })
            }
        }))
    }
}

fn traced(command: &Command, strace: &Path, counts: &Path) -> Command {
    let mut traced = Command::new(strace);
    traced.args(["-f", "-c", "-o"]).arg(counts).arg(command.get_program()).args(command.get_args());
    traced
}

fn read_record(path: &Path) -> Option<Record> {
    Record::from_json(&fs::read(path).ok()?).ok()
}

fn figure(name: &str, gain: Gain, value: f64) -> RunFigure {
    RunFigure { metric: ComparedMetric { name: name.to_owned(), gain }, value }
}

/// Returns the median and the p99 of the time until messages reached a stage, such as delivery. The list is empty if no
/// message reached the stage.
fn times(record: Option<&Record>, stage: Stage) -> Vec<RunFigure> {
    let row = record.and_then(|record| record.stage(stage).filter(|row| row.count > 0));
    let Some(times) = row.and_then(|row| row.latency_ms) else { return Vec::new() };
    let named = |quantile: &str, ms: f64| figure(&format!("{} {quantile}, ms", stage.name()), Gain::Lower, ms);
    vec![named("p50", times.p50), named("p99", times.p99)]
}

/// Computes the rate and the CPU time of a load generator. If the generator is mailrun's source, its
/// record also supplies the latency until the reply 250.
fn source_figures(costs: &Costs, messages: u64, record: Option<&Record>) -> Vec<RunFigure> {
    let messages = messages as f64;
    let mut figures = vec![
        figure("rate, msg/s", Gain::Higher, messages / costs.elapsed_s),
        figure("CPU, µs/msg", Gain::Lower, costs.cpu_s() * 1e6 / messages),
    ];
    figures.extend(times(record, Stage::Accepted));
    figures
}

/// Computes the rate and the latency of a server from the record of mailrun's source. If there is a
/// sink, its record also supplies the latency until delivery.
fn server_figures(record: &Record, sink: Option<&Record>, messages: u64) -> Result<Vec<RunFigure>, String> {
    let accepted = record.ledger.accepted.unwrap_or_default();
    if accepted != messages {
        let error = record.errors.first().map(|error| format!(", first error: {} {}", error.code, error.text));
        let error = error.unwrap_or_default();
        return Err(format!("it accepted {} of {} messages{error}", count(accepted), count(messages)));
    }
    let row = record.stage(Stage::Accepted).ok_or("the record has no accepted messages")?;
    let rate = row.rate_per_s.map(|per_s| figure("rate, msg/s", Gain::Higher, per_s));
    let mut figures: Vec<RunFigure> = rate.into_iter().collect();
    figures.extend(times(Some(record), Stage::Accepted));
    figures.extend(times(sink, Stage::Delivered));
    Ok(figures)
}

/// Returns the figures of a scenario's run, or an error if the scenario made several runs.
fn scenario_figures(directory: &Path) -> Result<Vec<RunFigure>, String> {
    let mut records = vec![directory.join("run.json")];
    let runs = fs::read_dir(directory).into_iter().flatten().flatten();
    records.extend(runs.map(|entry| entry.path().join("run.json")));
    records.retain(|path| path.is_file());
    match records.as_slice() {
        [one] => {
            let record = read_record(one).ok_or("its record cannot be read")?;
            defect(&record).map_or_else(|| Ok(mailrun_compare::figures(&record)), Err)
        }
        [] => Err("the scenario left no record".to_owned()),
        several => Err(format!("the scenario made {} runs: name one party in it", several.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mailrun_report::sample;

    #[test]
    fn a_run_has_its_rate_its_costs_and_our_source_its_times() {
        let costs = Costs { user_s: 0.2, sys_s: 0.3, elapsed_s: 0.5, ..Costs::default() };
        let plain = source_figures(&costs, 1_000, None);
        assert_eq!(plain.iter().map(|figure| figure.value).collect::<Vec<_>>(), [2_000.0, 500.0]);
        let own = source_figures(&costs, 1_000, Some(&sample::held()));
        assert_eq!(own.last().map(|figure| figure.metric.name.as_str()), Some("accepted p99, ms"));
    }

    #[test]
    fn a_server_that_accepts_all_has_figures_and_another_a_reason() {
        let record = sample::held();
        let names = |figures: Vec<RunFigure>| {
            figures.into_iter().map(|figure| figure.metric.name).collect::<Vec<_>>().join("; ")
        };
        let all = names(server_figures(&record, Some(&record), 200_000).unwrap());
        assert_eq!(all, "rate, msg/s; accepted p50, ms; accepted p99, ms; delivered p50, ms; delivered p99, ms");
        let reason = server_figures(&record, None, 200_001).unwrap_err();
        assert!(reason.starts_with("it accepted 200,000 of 200,001 messages"), "{reason}");
    }

    #[test]
    fn a_scenario_has_one_run() {
        let place = tempfile::tempdir().unwrap();
        assert_eq!(scenario_figures(place.path()).unwrap_err(), "the scenario left no record");
        let write = |name: &str, text: &str| {
            fs::create_dir_all(place.path().join(name)).unwrap();
            fs::write(place.path().join(name).join("run.json"), text).unwrap();
        };
        write("round-1", "{");
        assert_eq!(scenario_figures(place.path()).unwrap_err(), "its record cannot be read");
        write("round-1", &sample::held().to_json().unwrap());
        assert_eq!(scenario_figures(place.path()).unwrap()[0].metric.name, "delivered, msg/s");
        write("round-2", "");
        assert!(scenario_figures(place.path()).unwrap_err().starts_with("the scenario made 2 runs"));
    }
}
