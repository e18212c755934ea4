//! The report of a capacity search as text and as JSON. It shows the goals, the loads that longer trials confirmed, the
//! latency at each offered rate, and the plan. For each goal, it shows a lower and an upper bound of the highest rate
//! at which the server meets the goal.
use crate::headline::Headline;
pub use crate::workload::search_facts;
use mailrun_capacity::{
    CapacityPlan, GoalFinding, PlanningInputs, SearchEnding, SearchResult, SearchTrial, TrialFigures, TrialLoad,
    TrialOutcome,
};
use mailrun_measurement::record::{LatencyMs, Outcome, Record};
use mailrun_measurement::threshold::{LossGoal, MetricSource, format_value};
use mailrun_text::numbers::{counted, latency, median, memory, rate, seconds};
use mailrun_text::table::{Align, Cell, Table, plain, right};
use mailrun_text::words::listed;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;

/// If at least this share of all processors is busy, the report says that the processors are the limit.
const FULL: f64 = 0.9;
/// The report names a process that does not belong to the run only if it keeps at least this number of cores busy.
const MIN_NAMED: f64 = 0.05;

#[derive(Clone, Debug)]
pub struct JudgedTrial {
    pub outcome: TrialOutcome,
    /// Latency of messages up to a stage such as `delivered`. This is the first stage that a goal names or, if no goal
    /// names a stage, the last observed stage.
    pub latency_ms: Option<LatencyMs>,
    /// Messages per second that reached the stage at which `latency_ms` ends, counted while load was offered.
    pub delivered_per_s: f64,
    pub why: String,
}

#[derive(Clone, Debug)]
pub struct CapacityTrial {
    pub trial: SearchTrial,
    pub judged: JudgedTrial,
    pub directory: PathBuf,
}

#[derive(Clone, Debug)]
pub struct ConfirmedLoad {
    pub share: f64,
    pub trial: CapacityTrial,
    pub resources: String,
}

#[derive(Clone, Debug)]
pub struct CapacityRun {
    pub command: Vec<String>,
    /// Facts about the server, the load and the host that the report shows, each with a name and a value.
    pub facts: Vec<(&'static str, String)>,
    /// Goals of the search. The result of a goal has the same index in `result.goals`.
    pub goals: Vec<LossGoal>,
    pub min_rate_per_s: f64,
    /// Input for the capacity plan, such as the peak rate that all servers together must handle. The `capacity_per_s`
    /// in it is ignored, because the plan uses the capacity in `result`.
    pub planning: PlanningInputs,
    pub result: SearchResult,
    pub trials: Vec<CapacityTrial>,
    /// Longer trials that checked the capacity after the search, in ascending order of load: 80 %, 100 % and so on.
    pub confirmation: Vec<ConfirmedLoad>,
    pub remarks: Vec<String>,
    /// Outcome and reason of the trial that ended the search because mail was lost, changed or not delivered.
    pub lost: Option<(Outcome, String)>,
    pub interrupted: bool,
    pub directory: PathBuf,
}

struct KneeRow {
    rate_per_s: f64,
    good: usize,
    bad: usize,
    void: usize,
    delivered_per_s: f64,
    p50_ms: Option<f64>,
    p99_ms: Option<f64>,
}

impl CapacityRun {
    /// Returns the highest rate at which every goal is met. Returns `None` if the search found no such rate, if longer
    /// trials disproved it, or if mail was lost.
    pub fn capacity_per_s(&self) -> Option<f64> {
        self.result.capacity_per_s().filter(|_| self.lost.is_none() && self.is_confirmed() != Some(false))
    }

    fn plan(&self) -> Option<Result<CapacityPlan, String>> {
        let planning = self.planning;
        let is_asked = planning.peak_per_s.is_some() || planning.messages_per_user.is_some();
        let capacity_per_s = self.capacity_per_s().filter(|_| is_asked)?;
        Some(PlanningInputs { capacity_per_s, ..planning }.plan().map_err(|error| error.to_string()))
    }

    /// Returns the plan as a line of text, or `None` if the user asked for no plan or if no capacity was found.
    pub(crate) fn plan_line(&self) -> Option<String> {
        let planning = self.planning;
        let plan = match self.plan()? {
            Err(reason) => return Some(format!("No plan: {reason}")),
            Ok(plan) => plan,
        };
        let stable = format_value(plan.stable_per_s, "/s");
        let mut parts = vec![format!("stable {stable} ({:.0} % of the capacity)", planning.safety * 100.0)];
        if let (Some(peak), Some(instances), Some(headroom)) = (planning.peak_per_s, plan.instances, plan.headroom) {
            let instances = counted(instances, "instance");
            let peak = format_value(peak, "/s");
            parts.push(format!("{instances} for a peak of {peak}, headroom {:.0} %", headroom * 100.0));
        }
        parts.extend(plan.users.map(|users| format!("{} per instance in the busy hour", counted(users, "user"))));
        let per_core = |per_s: f64| format!("{} per core", format_value(per_s, "/s"));
        parts.extend(plan.per_core_per_s.map(per_core));
        Some(format!("Plan: {}", parts.join("; ")))
    }

    pub(crate) fn goal_table(&self) -> Table {
        let mut table = Table::new([
            ("goal", Align::Left),
            right("lower bound"),
            right("upper bound"),
            right("throughput"),
            ("finding", Align::Left),
        ]);
        for (goal, goal_result) in self.goals.iter().zip(&self.result.goals) {
            let bound =
                |per_s: Option<f64>| per_s.map_or(Cell::from("–"), |per_s| Cell::Number(per_s, rate(per_s) + "/s"));
            let bounds = [goal_result.lower_per_s, goal_result.upper_per_s, goal_result.throughput_per_s].map(bound);
            let name = [Cell::from(goal.expression())];
            table.row(name.into_iter().chain(bounds).chain([Cell::from(finding_text(goal_result.finding))]).collect());
        }
        table
    }

    /// Returns the stage, such as `delivered`, at which the latencies in the tables end. This is the first stage that a
    /// goal names, so the tables show the latencies by which the search has judged the server. Returns `None` if no
    /// goal names a stage.
    pub(crate) fn timed_stage(&self) -> Option<&'static str> {
        self.goals.iter().find_map(LossGoal::stage).map(MetricSource::name)
    }

    pub(crate) fn knee_table(&self) -> Table {
        let titles = ["offered", "delivered", "p50 ms", "p99 ms", "good", "bad", "void"];
        let mut table = Table::new(titles.map(right));
        for row in self.knee() {
            let time = |ms: Option<f64>| ms.map_or(Cell::from("–"), Cell::Millis);
            let rates = [row.rate_per_s, row.delivered_per_s].map(|per_s| Cell::Number(per_s, rate(per_s)));
            let counts = [row.good, row.bad, row.void].map(|number| Cell::Count(number as u64));
            table.row(rates.into_iter().chain([time(row.p50_ms), time(row.p99_ms)]).chain(counts).collect());
        }
        table
    }

    pub(crate) fn compliance_table(&self) -> Table {
        let mut table = Table::new([
            right("load"),
            right("offered"),
            right("delivered"),
            right("p50 ms"),
            right("p99 ms"),
            right("in time"),
            ("complies", Align::Wrapped),
        ]);
        for load in &self.confirmation {
            let judged = &load.trial.judged;
            let time = |ms: Option<f64>| ms.map_or(Cell::from("–"), Cell::Millis);
            let offered = rate_of(&load.trial).unwrap_or_default();
            table.row(vec![
                Cell::Text(format!("{:.0} %", load.share * 100.0)),
                Cell::Number(offered, rate(offered)),
                Cell::Number(judged.delivered_per_s, rate(judged.delivered_per_s)),
                time(judged.latency_ms.map(|times| times.p50)),
                time(judged.latency_ms.map(|times| times.p99)),
                Cell::Text(in_time(&judged.outcome)),
                Cell::Text(compliance(self, load)),
            ]);
        }
        table
    }

    /// Returns one row for each rate that was offered, in ascending order.
    fn knee(&self) -> Vec<KneeRow> {
        let mut rates: Vec<f64> = self.trials.iter().filter_map(rate_of).collect();
        rates.sort_by(f64::total_cmp);
        rates.dedup();
        rates.into_iter().map(|rate| self.knee_row(rate)).collect()
    }

    fn knee_row(&self, rate_per_s: f64) -> KneeRow {
        let at = || self.trials.iter().filter(|trial| rate_of(trial) == Some(rate_per_s));
        let count = |goodness| at().filter(|trial| self.is_good(trial) == goodness).count();
        let (good, bad, void) = (count(Some(true)), count(Some(false)), count(None));
        // Leave out the figures of void trials, because they say nothing about the server. But if all trials at this
        // rate were void, show their figures.
        let counting = || at().filter(|trial| good + bad == 0 || self.is_good(trial).is_some());
        KneeRow {
            rate_per_s,
            good,
            bad,
            void,
            delivered_per_s: median(counting().map(|trial| trial.judged.delivered_per_s).collect()).unwrap_or_default(),
            p50_ms: median(counting().filter_map(|trial| Some(trial.judged.latency_ms?.p50)).collect()),
            p99_ms: median(counting().filter_map(|trial| Some(trial.judged.latency_ms?.p99)).collect()),
        }
    }

    /// Returns true if the server met every goal in a trial and its backlog did not grow. Returns `None` for a void
    /// trial and for a trial without a fixed rate, because neither is judged.
    pub(crate) fn is_good(&self, trial: &CapacityTrial) -> Option<bool> {
        let rate_per_s = rate_of(trial)?;
        let TrialOutcome::Measured(figures) = &trial.judged.outcome else { return None };
        let is_met = |(lost, goal): (&f64, &LossGoal)| *lost <= goal.loss_ratio();
        let are_met = figures.loss_ratios.iter().zip(&self.goals).all(is_met);
        Some(are_met && !figures.is_backlogged(rate_per_s))
    }

    /// Returns true if the longer trials at 80 % and 100 % of the capacity were both good, and false if one of them was
    /// bad or void. Returns `None` if this is not known, because one or both of the trials have not run.
    fn is_confirmed(&self) -> Option<bool> {
        let mut counting = self.confirmation.iter().filter(|load| load.share < 1.1);
        let has_held = counting.clone().all(|load| self.is_good(&load.trial) == Some(true));
        (!has_held || counting.nth(1).is_some()).then_some(has_held)
    }

    /// Returns true if a trial with more load than the found capacity was good. The real capacity may then be higher.
    fn is_exceeded(&self) -> bool {
        self.confirmation.iter().any(|load| load.share > 1.1 && self.is_good(&load.trial) == Some(true))
    }
}

/// Returns the rate that a trial offered, or `None` if the trial sent as fast as possible.
pub(crate) fn rate_of(trial: &CapacityTrial) -> Option<f64> {
    match trial.trial.load {
        TrialLoad::FlatOut => None,
        TrialLoad::RatePerS(rate) => Some(rate),
    }
}

pub fn capacity_text(run: &CapacityRun) -> String {
    let mut text = String::new();
    push_goals(&mut text, run);
    push_compliance(&mut text, run);
    push_knee(&mut text, run);
    push_plan(&mut text, run);
    for remark in &run.remarks {
        let _ = writeln!(text, "{remark}");
    }
    let result = &run.result;
    let trials = counted(result.trials.len() as u64, "trial");
    let _ = writeln!(text, "{trials}, {}; {}", seconds(result.spent_s), run.directory.display());
    text + &capacity_verdict(run)
}

fn push_goals(text: &mut String, run: &CapacityRun) {
    text.push_str("goal                               lower bound  upper bound  throughput  finding\n");
    for (goal, goal_result) in run.goals.iter().zip(&run.result.goals) {
        let bound = |rate_per_s: Option<f64>| rate_per_s.map_or_else(|| "–".to_owned(), |per_s| rate(per_s) + "/s");
        let _ = writeln!(
            text,
            "{:<34} {:>11}  {:>11}  {:>10}  {}",
            goal.expression(),
            bound(goal_result.lower_per_s),
            bound(goal_result.upper_per_s),
            bound(goal_result.throughput_per_s),
            finding_text(goal_result.finding)
        );
    }
    if let Some(per_s) = run.result.flat_out_per_s {
        let _ = writeln!(text, "flat out (closed loop): {}/s", rate(per_s));
    }
    text.push('\n');
}

fn finding_text(finding: GoalFinding) -> &'static str {
    match finding {
        GoalFinding::Found => "found",
        GoalFinding::HighestRateHeld => "the highest rate of the search holds",
        GoalFinding::GeneratorLimit => "above it source or sink are the limit",
        GoalFinding::LowestRateMissed => "missed at the lowest rate",
        GoalFinding::Void => "no rate could be offered",
        GoalFinding::Unfinished => "not finished",
    }
}

fn push_compliance(text: &mut String, run: &CapacityRun) {
    if run.confirmation.is_empty() {
        return;
    }
    push_stage(text, run, 48);
    text.push_str("load    offered  delivered        p50        p99  in time  complies\n");
    for load in &run.confirmation {
        let judged = &load.trial.judged;
        let times = judged.latency_ms;
        let _ = writeln!(
            text,
            "{:>4.0} %{:>9}  {:>9} {:>10} {:>10} {:>8}  {}",
            load.share * 100.0,
            rate(rate_of(&load.trial).unwrap_or_default()),
            rate(judged.delivered_per_s),
            times.map_or_else(|| "–".to_owned(), |times| latency(times.p50)),
            times.map_or_else(|| "–".to_owned(), |times| latency(times.p99)),
            in_time(&judged.outcome),
            compliance(run, load)
        );
    }
    text.push('\n');
    for load in run.confirmation.iter().filter(|load| load.share > 0.9) {
        let _ = writeln!(text, "at {:.0} %: {}", load.share * 100.0, load.resources);
    }
    text.push('\n');
}

/// Returns the share of the due messages that arrived in time, for example `99.98 %`. If there are several goals, each
/// has its own share, and this returns the lowest.
fn in_time(outcome: &TrialOutcome) -> String {
    let TrialOutcome::Measured(TrialFigures { loss_ratios, .. }) = outcome else { return "–".to_owned() };
    let worst = loss_ratios.iter().copied().fold(0.0, f64::max);
    // Round down, so that a single late message already prevents 100 %.
    match worst {
        0.0 => "100 %".to_owned(),
        worst => format!("{:.2} %", ((1.0 - worst) * 1e4).floor() / 1e2),
    }
}

fn compliance(run: &CapacityRun, load: &ConfirmedLoad) -> String {
    match (&load.trial.judged.outcome, run.is_good(&load.trial)) {
        (_, Some(true)) => "yes".to_owned(),
        (TrialOutcome::Measured(figures), _) => {
            let is_backlogged = figures.is_backlogged(rate_of(&load.trial).unwrap_or(f64::MAX));
            if is_backlogged { "no: the backlog grows".to_owned() } else { "no".to_owned() }
        }
        (TrialOutcome::MailLost, _) => format!("no: {}", load.trial.judged.why),
        _ => format!("void: {}", load.trial.judged.why),
    }
}

fn push_knee(text: &mut String, run: &CapacityRun) {
    let rows = run.knee();
    if rows.is_empty() {
        return;
    }
    push_stage(text, run, 42);
    text.push_str("  offered  delivered        p50        p99  good  bad  void\n");
    for row in rows {
        let time = |ms: Option<f64>| ms.map_or_else(|| "–".to_owned(), latency);
        let _ = writeln!(
            text,
            "{:>9}  {:>9} {:>10} {:>10} {:>5} {:>4} {:>5}",
            rate(row.rate_per_s),
            rate(row.delivered_per_s),
            time(row.p50_ms),
            time(row.p99_ms),
            row.good,
            row.bad,
            row.void
        );
    }
    text.push('\n');
}

/// Writes the title of the latency columns, such as `to delivered`, so that the title ends at column `width`.
fn push_stage(text: &mut String, run: &CapacityRun, width: usize) {
    if let Some(stage) = run.timed_stage() {
        let _ = writeln!(text, "{:>width$}", format!("to {stage}"));
    }
}

fn push_plan(text: &mut String, run: &CapacityRun) {
    if let Some(line) = run.plan_line() {
        let _ = writeln!(text, "{line}");
    }
}

pub fn capacity_verdict(run: &CapacityRun) -> String {
    match judged(run) {
        (Some(outcome), sentence) => format!("{}  {sentence}\n", word(outcome)),
        (None, sentence) => sentence + "\n",
    }
}

/// Returns the word with which the report names the outcome of a search. A pass is called `CAPACITY`, because a search
/// only finds a number and does not judge the server.
pub(crate) fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Pass => "CAPACITY",
        other => Headline::Judged(other).name(),
    }
}

/// Returns the outcome of a capacity search, and a sentence for the report. The outcome is a pass if a capacity was
/// found. It is `None` if the search was interrupted, or if it ended early because a trial could not run.
pub(crate) fn judged(run: &CapacityRun) -> (Option<Outcome>, String) {
    if let Some((outcome, reason)) = &run.lost {
        return (Some(*outcome), reason.clone());
    }
    let result = &run.result;
    let capacity = run.capacity_per_s().map(|per_s| format_value(per_s, "/s"));
    let void = || run.trials.iter().rev().find(|trial| matches!(trial.judged.outcome, TrialOutcome::Void { .. }));
    let stopped = if run.interrupted { "Interrupted" } else { "Ended early" };
    match (capacity, result.ending) {
        (Some(capacity), SearchEnding::Stopped) if result.has_capacity() => {
            (None, format!("{stopped}: {capacity} held in short trials{}", confirmed(run)))
        }
        (Some(capacity), SearchEnding::Stopped) => {
            (None, format!("{stopped}: at least {capacity}, as far as it was searched."))
        }
        (None, SearchEnding::Stopped) => (None, format!("{stopped} before a rate was found.")),
        (_, SearchEnding::Void) => {
            let cause = void().map_or_else(String::new, |trial| format!(": {}", trial.judged.why));
            (Some(Outcome::Invalid), format!("No rate could be offered{cause}"))
        }
        (None, _) if run.is_confirmed() == Some(false) => {
            let refuted =
                result.capacity_per_s().map_or_else(|| "The rate".to_owned(), |per_s| format_value(per_s, "/s"));
            let sentence = format!("{refuted} held in short trials, and longer ones did not confirm it: see the table");
            (Some(Outcome::Inconclusive), sentence)
        }
        (Some(capacity), SearchEnding::TimeLimit) => {
            (Some(Outcome::Pass), format!("at least {capacity}, not confirmed; the time was over"))
        }
        (Some(capacity), _) => {
            let is_limit = result.goals.iter().any(|goal| goal.finding == GoalFinding::GeneratorLimit);
            let prefix = if is_limit || run.is_exceeded() { "at least " } else { "" };
            (Some(Outcome::Pass), format!("{prefix}{capacity}{}", confirmed(run)))
        }
        (None, SearchEnding::TimeLimit) => {
            (Some(Outcome::Invalid), "The time was over before a rate was found.".to_owned())
        }
        (None, _) => {
            let missed_goals = run.goals.iter().zip(&result.goals);
            let missed_goals =
                missed_goals.filter(|(_, result)| !result.finding.has_capacity()).map(|(goal, _)| goal.expression());
            let min_rate = format_value(run.min_rate_per_s, "/s");
            (Some(Outcome::Fail), format!("Missed at {min_rate}: {}", missed_goals.collect::<Vec<_>>().join(", ")))
        }
    }
}

/// Returns the end of a sentence that says at which shares of the capacity longer trials confirmed it, for example
/// `, confirmed at 80 and 100 %`.
fn confirmed(run: &CapacityRun) -> String {
    let shares = run.confirmation.iter().filter(|load| run.is_good(&load.trial) == Some(true));
    let shares: Vec<String> = shares.map(|load| format!("{:.0}", load.share * 100.0)).collect();
    if shares.is_empty() { ", not confirmed".to_owned() } else { format!(", confirmed at {} %", listed(&shares)) }
}

/// Returns the report as JSON in the format `mailrun-capacity/1`, for other programs.
pub fn capacity_json(run: &CapacityRun) -> Value {
    let result = &run.result;
    let goals = run.goals.iter().zip(&result.goals).map(|(goal, goal_result)| {
        json!({
            "expression": goal.expression(),
            "loss_ratio": goal.loss_ratio(),
            "finding": goal_result.finding,
            "lower_per_s": goal_result.lower_per_s,
            "upper_per_s": goal_result.upper_per_s,
            "throughput_per_s": goal_result.throughput_per_s,
        })
    });
    let plan = run.plan().and_then(Result::ok).map(|plan| {
        json!({
            "stable_per_s": plan.stable_per_s,
            "instances": plan.instances,
            "headroom": plan.headroom,
            "users": plan.users,
            "per_core_per_s": plan.per_core_per_s,
        })
    });
    let confirmation = run.confirmation.iter().map(|load| {
        let mut row = trial_json(run, &load.trial);
        row["share"] = load.share.into();
        row["resources"] = load.resources.clone().into();
        row
    });
    json!({
        "format": "mailrun-capacity/1",
        "command": run.command,
        "version": env!("CARGO_PKG_VERSION"),
        "capacity": {
            "rate_per_s": run.capacity_per_s(),
            "confirmed": run.is_confirmed(),
            "ending": result.ending,
            "verdict": capacity_verdict(run).trim_end(),
        },
        "facts": run.facts.iter().map(|(name, value)| (*name, value.as_str())).collect::<BTreeMap<_, _>>(),
        "goals": goals.collect::<Vec<_>>(),
        "flat_out_per_s": result.flat_out_per_s,
        "confirmation": confirmation.collect::<Vec<_>>(),
        "plan": plan,
        "remarks": run.remarks,
        "trials": run.trials.iter().map(|trial| trial_json(run, trial)).collect::<Vec<_>>(),
        "spent_s": result.spent_s,
    })
}

fn trial_json(run: &CapacityRun, trial: &CapacityTrial) -> Value {
    let judged = &trial.judged;
    let figures = match &judged.outcome {
        TrialOutcome::Measured(figures) => Some(figures),
        _ => None,
    };
    let name = trial.directory.file_name().map(|name| name.to_string_lossy().into_owned());
    json!({
        "rate_per_s": rate_of(trial),
        "duration_s": trial.trial.duration_s,
        "good": run.is_good(trial),
        "loss_ratios": figures.map(|figures| figures.loss_ratios.clone()),
        "backlog_growth_per_s": figures.and_then(|figures| figures.backlog_growth_per_s),
        "drained": figures.map(|figures| figures.is_drained),
        "delivered_per_s": judged.delivered_per_s,
        "p50_ms": judged.latency_ms.map(|times| times.p50),
        "p99_ms": judged.latency_ms.map(|times| times.p99),
        "why": judged.why,
        "directory": name,
    })
}

/// Says how many cores each process kept busy during a run, and whether the processors were the limit. CPU time for
/// busy polling does not count, because a process stops polling as soon as there is other work.
pub fn resources_used(record: &Record) -> String {
    let surroundings = record.surroundings.as_ref();
    let cores = f64::from(record.host.cores.max(1));
    // Divide by the time of the whole load, because the CPU times include the warm-up, but `duration_s` does not.
    let length_s =
        surroundings.and_then(|surroundings| Some(surroundings.load_processor_s? / cores)).unwrap_or(record.duration_s);
    let length_s = length_s.max(f64::EPSILON);
    let parties = record.parties.iter().filter_map(|party| Some((party.name.as_str(), party.work_s()? / length_s)));
    let mut named: Vec<(&str, f64)> = parties.collect();
    let processes = surroundings.map_or(&[][..], |surroundings| &surroundings.processes);
    let processes = processes.iter().map(|process| (process.name.as_str(), process.processor_s / length_s));
    named.extend(processes.filter(|(_, used)| *used >= MIN_NAMED));
    let looked_s: f64 = record.parties.iter().filter_map(|party| Some(party.busy_poll.as_ref()?.looked_s)).sum();
    let host =
        surroundings.and_then(|surroundings| surroundings.used_share).map(|share| share * cores - looked_s / length_s);
    let known_cores: f64 = named.iter().map(|(_, used)| used).sum();
    let all = host.unwrap_or(known_cores).clamp(0.0, cores);
    if all - known_cores >= MIN_NAMED {
        named.push(("others", all - known_cores));
    }
    named.sort_by(|one, other| other.1.total_cmp(&one.1));
    let named: Vec<String> = named.iter().map(|(name, used)| format!("{} {used:.2}", plain(name))).collect();
    let is_elsewhere = !is_local(&record.workload.target);
    let what = match host {
        _ if all >= cores * FULL => "processors are the limit:",
        None => "it is not known whether processors are the limit: at least",
        Some(_) if is_elsewhere => "the server's processors are not known, this host's are free:",
        Some(_) => "processors are free:",
    };
    let written_bytes: u64 = record.parties.iter().filter_map(|party| party.write_bytes).sum();
    let written_bytes = match (written_bytes as f64 / length_s) as u64 {
        0 => String::new(),
        per_s => format!("; {} written per second", memory(per_s)),
    };
    format!("{what} {all:.2} of {cores:.0} cores ({}){written_bytes}", named.join(", "))
}

/// Returns true if a target is on this host, because it is a loopback address or a socket in the file system.
pub(crate) fn is_local(target: &str) -> bool {
    let host = target.rsplit_once("://").map_or(target, |(_, rest)| rest);
    let host = host.rsplit_once('@').map_or(host, |(_, rest)| rest);
    let host = host.split('/').next().unwrap_or_default();
    let host = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    let is_loopback = host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    is_loopback || host == "localhost" || target.starts_with("unix:")
}

#[cfg(test)]
mod tests {
    use super::*;
    use mailrun_capacity::VoidCause;
    use mailrun_measurement::record::{BusyPollRow, HostProcess, Surroundings};

    #[test]
    fn what_longer_trials_do_not_confirm_is_no_capacity() {
        let mut run = crate::sample_capacity::search("slow");
        assert_eq!(run.capacity_per_s(), Some(1_000.0));
        run.confirmation[1].trial.judged.outcome = TrialOutcome::Measured(TrialFigures::new(vec![0.3], 700.0));
        let text = "INCONCLUSIVE  1,000/s held in short trials, and longer ones did not confirm it: see the table\n";
        assert_eq!((run.capacity_per_s(), capacity_verdict(&run).as_str()), (None, text));
        assert!(run.plan_line().is_none(), "nothing is planned with it");
        run.confirmation[1].trial.judged.outcome =
            TrialOutcome::Void { cause: VoidCause::Generator, delivered_per_s: 1.0, spent_s: 2.0 };
        assert_eq!(capacity_verdict(&run), text, "a void trial confirms nothing");
        run.confirmation.clear();
        assert_eq!(capacity_verdict(&run), "CAPACITY  1,000/s, not confirmed\n", "the user wanted no confirmation");
    }

    #[test]
    fn an_interrupted_confirmation_is_none() {
        let mut run = crate::sample_capacity::search("slow");
        (run.interrupted, run.result.ending) = (true, SearchEnding::Stopped);
        let whole = std::mem::take(&mut run.confirmation);
        for (done, remark, is_confirmed) in
            [(0, "not confirmed", None), (1, "confirmed at 80 %", None), (2, "confirmed at 80 and 100 %", Some(true))]
        {
            run.confirmation = whole[..done].to_vec();
            let line = format!("Interrupted: 1,000/s held in short trials, {remark}\n");
            assert_eq!((capacity_verdict(&run), run.is_confirmed()), (line, is_confirmed));
        }
        run.confirmation[0].trial.judged.outcome = TrialOutcome::Measured(TrialFigures::new(vec![0.3], 700.0));
        assert_eq!(capacity_verdict(&run), "Interrupted before a rate was found.\n", "80 % did not hold");
        run.confirmation.clear();
        run.result.goals[0].finding = GoalFinding::Unfinished;
        assert_eq!(capacity_verdict(&run), "Interrupted: at least 1,000/s, as far as it was searched.\n");
    }

    #[test]
    fn the_times_have_the_stage_of_the_goal_above_them() {
        let text = capacity_text(&crate::sample_capacity::search("slow"));
        let lines: Vec<&str> = text.lines().collect();
        let titles = lines.iter().enumerate().filter(|(_, line)| line.contains("p50        p99"));
        let above: Vec<&str> = titles.map(|(at, _)| lines[at - 1].trim()).collect();
        assert_eq!(above, ["to delivered"; 2], "{text}");
    }

    #[test]
    fn a_row_of_a_rate_has_the_medians_of_the_trials_that_count() {
        let mut run = crate::sample_capacity::search("slow");
        let trial = |p99: f64, outcome| {
            let mut trial = run.trials.iter().find(|trial| rate_of(trial).is_some()).unwrap().clone();
            trial.judged.latency_ms = Some(LatencyMs { p99, ..LatencyMs::default() });
            trial.judged.delivered_per_s = p99;
            trial.judged.outcome = outcome;
            trial
        };
        let good = || TrialOutcome::Measured(TrialFigures::new(vec![0.0], 1e9));
        let void = || TrialOutcome::Void { cause: VoidCause::Generator, delivered_per_s: 1.0, spent_s: 2.0 };
        for (trials, expected) in [
            (vec![trial(20.0, good()), trial(2000.0, good())], 1010.0),
            (vec![trial(15.0, good()), trial(900.0, void())], 15.0),
            (vec![trial(900.0, void())], 900.0),
        ] {
            run.trials = trials;
            let row = &run.knee()[0];
            assert_eq!((row.p99_ms, row.delivered_per_s), (Some(expected), expected));
        }
    }

    /// Returns a run on a host with two processors. The source and the sink each used `each_s` seconds of CPU time.
    fn run_on_two_cores(each_s: f64, used_share: Option<f64>) -> Record {
        let mut record = crate::sample::held();
        record.host.cores = 2;
        record.duration_s = 5.0;
        record.surroundings =
            Some(Surroundings { load_processor_s: Some(20.0), used_share, ..Surroundings::default() });
        for party in &mut record.parties {
            (party.user_s, party.sys_s) = (Some(each_s), Some(0.0));
        }
        record
    }

    #[test]
    fn the_processors_are_those_of_the_whole_host() {
        let mut record = run_on_two_cores(1.0, Some(0.985));
        let process = |name: &str, processor_s| HostProcess {
            name: name.to_owned(),
            processes: 1,
            processor_s,
            rss_bytes: 0,
            foreign: false,
        };
        let around = record.surroundings.as_mut().unwrap();
        around.processes = vec![process("smtpd", 9.0), process("cleanup", 3.0), process("sshd", 0.01)];
        let sentence =
            "processors are the limit: 1.97 of 2 cores (smtpd 0.90, others 0.57, cleanup 0.30, source 0.10, sink 0.10)";
        assert!(resources_used(&record).starts_with(sentence), "{}", resources_used(&record));
        let set_share = |record: &mut Record, share| record.surroundings.as_mut().unwrap().used_share = share;
        set_share(&mut record, None);
        assert!(
            resources_used(&record).starts_with("it is not known whether processors are the limit: at least 1.40 of 2")
        );
        record.workload.target = "192.0.2.7:25".to_owned();
        set_share(&mut record, Some(0.2));
        assert!(
            resources_used(&record).starts_with("the server's processors are not known, this host's are free: 0.40")
        );
        let full = run_on_two_cores(9.5, None);
        assert!(
            resources_used(&full).starts_with("processors are the limit: 1.90 of 2 cores"),
            "known without the host's"
        );
    }

    #[test]
    fn a_target_is_local_by_its_address() {
        for target in [
            "127.0.0.1:25",
            "[::1]:25",
            "localhost:2525",
            "unix:/run/lmtp",
            "amqp://user@127.0.0.1:5672/",
            "amqp://[::1]",
        ] {
            assert!(is_local(target), "{target}");
        }
        for target in ["192.0.2.7:25", "mx.example:25", "amqp://localhost@mx.example:5672", ""] {
            assert!(!is_local(target), "{target}");
        }
    }

    #[test]
    fn busy_polling_uses_up_no_processor() {
        let mut record = run_on_two_cores(10.0, Some(1.0));
        assert!(resources_used(&record).starts_with("processors are the limit"), "{}", resources_used(&record));
        for party in &mut record.parties {
            party.busy_poll = Some(BusyPollRow { mode: "50us".to_owned(), looked_s: 9.0 });
        }
        assert!(resources_used(&record).starts_with("processors are free: 0.20"), "{}", resources_used(&record));
    }
}
