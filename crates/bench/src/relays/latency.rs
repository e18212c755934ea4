//! The scenario `relay-latency` measures how long a relay takes to answer 250 while it is not saturated, by default at
//! half the highest rate that it sustains.
//!
//! ```text
//! closed loop ─ estimate ─→ search: steps of open loop ─ highest that held ─→ half of it, open loop, in rounds
//! ```
//!
//! Each step of the search sends mail in an open loop at one rate. A relay sustains this rate if its queue has not
//! grown, that is, if it has accepted and delivered all messages of the step by shortly after the end of the step.
//! Latency is counted from the time at which a message was due.
use super::goals::{self, Goal, GoalResult};
use super::measure::RelayMeasurement;
use super::scenario::{LoadShape, ScenarioOptions, ScenarioRun};
use crate::engine::{MedianRange, TextReport, named_defects, shown};
use crate::launch;
use crate::plan::BenchOptions;
use crate::relay::Relay;
use anyhow::{Context, Result};
use mailrun_capacity::{
    CapacityGoal, CapacitySearch, SearchEnding, SearchResult, SearchSettings, TrialFigures, TrialLoad, TrialOutcome,
};
use mailrun_measurement::Stage;
use mailrun_measurement::record::{Arrival, LatencyMs, Record, Workload};
use mailrun_text::numbers::{count, figure, latency, rate, seconds};
use mailrun_text::table::{Align, Table};
use std::time::Duration;

/// Precision of the search, as a share of the rate. Steps of a few seconds allow no better precision.
const PRECISION: f64 = 0.05;

/// Limits that decide whether a relay sustains a rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SustainedLimits {
    /// Maximum time between the end of a step and its last delivery, in addition to `max_delay_share` of the step's
    /// length. Without this allowance, messages that are still on their way at the end of a step would look like a
    /// growing queue.
    pub max_delay: Duration,
    pub max_delay_share: f64,
    /// The source must have sent at least this share of the messages that were due in a step. The source sends fewer if
    /// the relay falls behind, because then all sessions are waiting for replies.
    pub min_sent: f64,
}

impl Default for SustainedLimits {
    fn default() -> Self {
        Self { max_delay: Duration::from_millis(100), max_delay_share: 0.05, min_sent: 0.98 }
    }
}

impl SustainedLimits {
    /// Returns the maximum time from the end of a step of `step_s` seconds until its last delivery.
    fn delay_s(&self, step_s: f64) -> f64 {
        step_s * self.max_delay_share + self.max_delay.as_secs_f64()
    }

    /// Returns `SUSTAINED`, or the reason why the relay did not sustain the step's rate.
    fn judge(&self, measure: &RelayMeasurement, record: &Record) -> &'static str {
        let load = &record.workload;
        let length_s = load.duration_limit_s.unwrap_or_default();
        let rate_per_s = load.rate_per_s.unwrap_or_default();
        let latest_s = length_s + self.delay_s(length_s);
        let created = record.ledger.created.unwrap_or_default() as f64;
        match &measure.figures {
            _ if measure.flaws.fault.is_some() => "not all were accepted",
            _ if created < rate_per_s * length_s * self.min_sent => "not all was sent",
            figures if figures.accept_s > latest_s => "accepting fell behind",
            figures if figures.deliver_s > latest_s => "the queue grew",
            _ => SUSTAINED,
        }
    }
}

#[derive(Clone, Debug)]
pub struct LatencyOptions {
    pub scenario: ScenarioOptions,
    pub relay: Relay,
    pub shape: LoadShape,
    /// Duration of each step of the search, and of the closed loop that precedes the search.
    pub step: Duration,
    /// Maximum number of steps of the search.
    pub steps: u32,
    pub sustained: SustainedLimits,
    /// If set, there is no search, and the latency is measured at this rate.
    pub rate_per_s: Option<f64>,
    pub arrival: Arrival,
    /// After a search, the latency is measured at this share of the highest sustained rate, for example 0.5.
    pub share: f64,
    /// Duration of each round in which the latency is measured.
    pub length: Duration,
    pub rounds: u32,
    /// Target for the 99th percentile (p99) of the time until acceptance. The p99 is computed for each round, and the
    /// median of the rounds must be below the target.
    pub accept_p99: Option<Duration>,
}

#[derive(Clone, Debug)]
struct LatencyRow {
    name: String,
    /// Rate of the open loop, or `None` if the run was a closed loop.
    offered_per_s: Option<f64>,
    measurement: RelayMeasurement,
    accept: LatencyMs,
    delivery: LatencyMs,
    verdict: &'static str,
}

/// Results of the search and of the rounds so far. If the user stops the scenario, the report shows only these.
#[derive(Clone, Debug, Default)]
struct LatencyResults {
    rows: Vec<LatencyRow>,
    sustained_per_s: Option<f64>,
    /// Number of measured rounds, which are the last rows of `rows`. The rows before them belong to the search.
    rounds: u32,
}

/// Runs the search and the rounds until all are complete, or until SIGINT or SIGTERM. The report covers the completed
/// runs.
///
/// # Errors
/// Returns an error if a run fails.
pub fn run(options: &LatencyOptions) -> Result<TextReport> {
    launch::check(&options.relay)?;
    let latency_run = LatencyRun { options, scenario: ScenarioRun::prepare(&options.scenario)? };
    let mut results = LatencyResults::default();
    latency_run.run(&mut results)?;
    latency_run.scenario.save(report(&results, options))
}

struct LatencyRun<'o> {
    options: &'o LatencyOptions,
    scenario: ScenarioRun,
}

impl LatencyRun<'_> {
    fn run(&self, results: &mut LatencyResults) -> Result<()> {
        let rate_per_s = match self.options.rate_per_s {
            Some(rate_per_s) => rate_per_s,
            None => {
                let may_go_on = self.search(results)?;
                let Some(sustained) = results.sustained_per_s.filter(|_| may_go_on) else { return Ok(()) };
                sustained * self.options.share
            }
        };
        for round in 1..=self.options.rounds {
            let load = open(rate_per_s, self.options.arrival, self.options.length);
            let Some(row) = self.measure(&format!("round-{round}"), load, |_, _| "")? else { return Ok(()) };
            results.rows.push(row);
            results.rounds += 1;
        }
        Ok(())
    }

    /// Searches for the highest sustained rate. Returns false if the user asked to stop.
    fn search(&self, results: &mut LatencyResults) -> Result<bool> {
        let result = search(self.options.step, self.options.steps, |load| {
            let row = match load {
                TrialLoad::FlatOut => {
                    let step_s = self.options.step.as_secs_f64();
                    let closed = Workload { duration_limit_s: Some(step_s), ..Workload::default() };
                    self.measure("closed-loop", closed, |_, _| "estimate")?
                }
                TrialLoad::RatePerS(rate_per_s) => {
                    let load = open(rate_per_s, Arrival::Constant, self.options.step);
                    let name = format!("step-{}", results.rows.len());
                    self.measure(&name, load, |measure, record| self.options.sustained.judge(measure, record))?
                }
            };
            Ok(row.map(|row| {
                let figures = (row.measurement.figures.delivered_per_s, row.verdict == SUSTAINED);
                results.rows.push(row);
                figures
            }))
        })?;
        results.sustained_per_s = result.capacity_per_s();
        Ok(result.ending != SearchEnding::Stopped)
    }

    fn measure(
        &self,
        name: &str,
        load: Workload,
        judge: impl FnOnce(&RelayMeasurement, &Record) -> &'static str,
    ) -> Result<Option<LatencyRow>> {
        let offered_per_s = load.rate_per_s;
        let bench = self.scenario.bench(name, &self.options.relay, &self.options.shape, load);
        let bench = BenchOptions { title: Some(name.replace('-', " ")), ..bench };
        let Some(outcome) = self.scenario.run_complete(&bench) else { return Ok(None) };
        let outcome = outcome.with_context(|| format!("in {name}"))?;
        let record = &outcome.record;
        let measure = RelayMeasurement::of(record, outcome.disk_bytes, record.ledger.created.unwrap_or_default())?;
        let accept = times(record, Stage::Accepted)?;
        let delivery = times(record, Stage::Delivered)?;
        let row = LatencyRow {
            name: name.replace('-', " "),
            offered_per_s,
            verdict: judge(&measure, record),
            measurement: measure,
            accept,
            delivery,
        };
        self.scenario.print_line(&format!("mailrun: {}", row.description()));
        Ok(Some(row))
    }
}

fn times(record: &Record, stage: Stage) -> Result<LatencyMs> {
    let row = record.stage(stage);
    row.and_then(|row| row.latency_ms).with_context(|| format!("nothing was {stage:?}").to_lowercase())
}

fn open(rate_per_s: f64, arrival: Arrival, length: Duration) -> Workload {
    Workload {
        duration_limit_s: Some(length.as_secs_f64()),
        rate_per_s: Some(rate_per_s),
        arrival,
        ..Workload::default()
    }
}

/// Searches for the highest rate that the relay sustains, with one step for each rate. The caller's `measure` runs a
/// step and returns the delivered rate and whether the relay sustained the step's rate. It returns `None` if the user
/// asked to stop.
fn search(
    step: Duration,
    steps: u32,
    mut measure: impl FnMut(TrialLoad) -> Result<Option<(f64, bool)>>,
) -> Result<SearchResult> {
    let step_s = step.as_secs_f64();
    let settings = SearchSettings {
        trial_s: step_s,
        sum_s: step_s,
        exceed_ratio: 0.0,
        width: PRECISION,
        min_messages: 0.0,
        // After this time, the search starts no more steps. The search begins with a closed loop as long as a step, so
        // the last step starts after `steps` × `step_s`. Add half a step to allow for rounding errors.
        time_limit_s: step_s * (f64::from(steps) + 0.5),
        coarse_levels: 0,
        ..SearchSettings::default()
    };
    CapacitySearch::new(settings, vec![CapacityGoal::new(0.0)?])?.run(|trial| {
        Ok(measure(trial.load)?.map_or(TrialOutcome::Stopped, |(delivered_per_s, is_sustained)| {
            let loss_ratio = if is_sustained { 0.0 } else { 1.0 };
            TrialOutcome::Measured(TrialFigures::new(vec![loss_ratio], delivered_per_s))
        }))
    })
}

const SUSTAINED: &str = "sustained";

impl LatencyRow {
    fn description(&self) -> String {
        let figures = &self.measurement.figures;
        let offered =
            self.offered_per_s.map(|offered| format!("{} msg/s offered, ", rate(offered))).unwrap_or_default();
        let figures = format!(
            "{}: {offered}{} accepted, {} delivered, accept p99 {}",
            self.name,
            rate(figures.accepted_per_s),
            rate(figures.delivered_per_s),
            latency(self.accept.p99)
        );
        if self.verdict.is_empty() { figures } else { format!("{figures}: {}", self.verdict) }
    }
}

fn report(results: &LatencyResults, options: &LatencyOptions) -> TextReport {
    let title = format!(
        "{}: {} through {} (durability {})",
        options.scenario.name,
        options.shape.description(std::slice::from_ref(&options.relay)),
        options.relay,
        options.relay.durability()
    );
    let rounds = &results.rows[results.rows.len() - results.rounds as usize..];
    let mut remarks = vec![
        "Latency counts from when a message was due (closed loop: created). late: from the end of the offered load to \
         the last delivery."
            .to_owned(),
    ];
    if let Some(sustained) = results.sustained_per_s {
        let step_s = options.step.as_secs_f64();
        remarks.push(format!(
            "Highest sustainable rate found: {} msg/s; everything was accepted and delivered within {} after a step \
             of {}.",
            count(sustained as u64),
            seconds(options.sustained.delay_s(step_s)),
            seconds(step_s)
        ));
    }
    let faults = results
        .rows
        .iter()
        .filter_map(|row| Some(format!("NOT OK: {}: {}", row.name, row.measurement.flaws.fault.as_ref()?)));
    remarks.extend(faults);
    let notes =
        rounds.iter().flat_map(|row| row.measurement.flaws.notes.iter().map(|note| format!("{}: {note}", row.name)));
    remarks.extend(notes);
    let tables = vec![throughput(&results.rows), latencies(rounds, options)];
    // Report the defects of the rounds, but not of the search, because the search overloads the relay on purpose.
    let defects = named_defects(rounds.iter().map(|row| (&row.name, &row.measurement.flaws)));
    goals::report(&title, tables, &goals(results, rounds, options), defects, remarks)
}

fn throughput(rows: &[LatencyRow]) -> Table {
    let right = |title| (title, Align::Right);
    let mut table = Table::new([
        ("run", Align::Left),
        right("offered/s"),
        right("accepted/s"),
        right("delivered/s"),
        right("late"),
        right("queue"),
        right("accept p99"),
        ("", Align::Left),
    ])
    .leave_out(&["queue", "late", "accepted/s"]);
    for row in rows {
        let figures = &row.measurement.figures;
        let late = row.offered_per_s.map(|offered| figures.deliver_s - figures.accepted as f64 / offered);
        table.row(vec![
            row.name.clone(),
            shown(row.offered_per_s, rate),
            rate(figures.accepted_per_s),
            rate(figures.delivered_per_s),
            shown(late, |late| seconds(late.max(0.0))),
            shown(figures.deepest, |(messages, _)| count(messages)),
            latency(row.accept.p99),
            row.verdict.to_owned(),
        ]);
    }
    table
}

fn latencies(rounds: &[LatencyRow], options: &LatencyOptions) -> Table {
    let right = |title| (title, Align::Right);
    let rate = match options.rate_per_s {
        Some(_) => "at that rate",
        None if options.share == 0.5 => "at half of it",
        None => "at that share of it",
    };
    let mut table = Table::new([
        (rate, Align::Left),
        ("until", Align::Left),
        right("p50"),
        right("p99"),
        right("p99.9"),
        right("max"),
    ])
    .leave_out(&["p99.9", "max"]);
    for row in rounds {
        for (until, times) in [("accepted", &row.accept), ("delivered", &row.delivery)] {
            let cells = [times.p50, times.p99, times.p999, times.max].map(latency);
            table.row([row.name.clone(), until.to_owned()].into_iter().chain(cells).collect());
        }
    }
    table
}

fn goals(results: &LatencyResults, rounds: &[LatencyRow], options: &LatencyOptions) -> Vec<Goal> {
    let is_open = |row: &LatencyRow| row.measurement.flaws.fault.is_some();
    let is_faulty = |row: &LatencyRow| is_open(row) && row.measurement.flaws.undelivered.is_none();
    let offered = rounds.first().and_then(|row| row.offered_per_s).map(figure).unwrap_or_default();
    let what = match options.rate_per_s {
        Some(_) => format!("accept p99 at {offered} msg/s, median of the rounds"),
        None => format!(
            "accept p99 at {offered} msg/s, {} the highest sustainable rate, median of the rounds",
            share_words(options.share)
        ),
    };
    let account = match () {
        () if results.rows.iter().any(is_faulty) => GoalResult::Unaccounted("NOT OK, see below".to_owned()),
        () if results.rows.iter().any(is_open) => GoalResult::Unknown("mail may still be in a queue".to_owned()),
        () => GoalResult::Pass("nothing lost".to_owned()),
    };
    let account = Goal::new("the account of every run", "closes", account);
    let Some(limit) = options.accept_p99 else { return vec![account] };
    let limit_ms = limit.as_secs_f64() * 1e3;
    let p99 = MedianRange::of(rounds.iter().map(|row| row.accept.p99));
    let unknown =
        |text: &str| Goal::new("accept p99", format!("< {}", latency(limit_ms)), GoalResult::Unknown(text.to_owned()));
    let p99 = match rounds.len() {
        0 if results.rows.len() > 1 && results.sustained_per_s.is_none() => unknown("no rate was sustained"),
        0 => unknown("stopped before"),
        done if done < options.rounds as usize => unknown("interrupted before all rounds were run"),
        _ => Goal::median_below(what, p99, limit_ms, latency),
    };
    vec![p99, account]
}

/// Describes a share of the highest sustainable rate, for example `half` or `80 %`.
fn share_words(share: f64) -> String {
    if share == 0.5 { "half".to_owned() } else { format!("{} %", figure(share * 100.0)) }
}

#[cfg(test)]
mod tests {
    use super::super::scenario::sample_options;
    use super::*;
    use mailrun_report::sample;
    use proptest::prelude::*;

    /// Searches for the highest rate of a simulated relay that sustains `limit`, but delivers `estimate` in the closed
    /// loop. Returns the rate that the search found, if any, and the number of steps.
    fn found(limit: f64, estimate: f64, steps: u32) -> (Option<f64>, usize) {
        let result = search(Duration::from_secs(4), steps, |load| {
            Ok(Some(match load {
                TrialLoad::FlatOut => (estimate, false),
                TrialLoad::RatePerS(rate) => (rate.min(limit), rate <= limit),
            }))
        });
        let result = result.unwrap();
        (result.capacity_per_s(), result.trials.len() - 1)
    }

    #[test]
    fn a_good_estimate_needs_few_steps() {
        let (rate, steps) = found(10_000.0, 10_000.0, 20);
        assert!(rate.is_some_and(|rate| (9_500.0..=10_000.0).contains(&rate)) && steps <= 6, "{rate:?} {steps}");
        assert_eq!(found(1.5, 1_000_000.0, 2), (None, 2), "it gives up");
    }

    #[test]
    fn what_was_sustained_before_the_user_stopped_it_is_kept() {
        let mut rates = vec![Some((1_000.0, false)), Some((1_000.0, true)), None].into_iter();
        let result = search(Duration::from_secs(4), 9, |_| Ok(rates.next().unwrap())).unwrap();
        assert_eq!((result.capacity_per_s(), result.ending), (Some(1_000.0), SearchEnding::Stopped));
    }

    proptest! {
        /// Whatever the relay's limit is, the search must find a rate that the relay sustains and
        /// that is within `PRECISION` of the limit.
        #[test]
        fn a_rate_that_is_found_held_and_is_near(limit in 10.0..100_000.0_f64, off in 0.2..4.0_f64) {
            let (rate, steps) = found(limit, limit * off, 40);
            let rate = rate.expect("forty steps are enough");
            prop_assert!(rate <= limit && rate >= limit * (1.0 - PRECISION) * 0.9999, "{rate} of {limit} in {steps} steps");
            prop_assert!(steps <= 16);
        }
    }

    fn row(rate_per_s: f64, deliver_s: f64, p99: f64) -> LatencyRow {
        let mut record = sample::relayed();
        record.workload = open(rate_per_s, Arrival::Constant, Duration::from_secs(4));
        let mut measure = RelayMeasurement::of(&record, None, 200_000).unwrap();
        measure.figures.deliver_s = deliver_s;
        let accept = LatencyMs { p99, ..LatencyMs::default() };
        let verdict = SustainedLimits::default().judge(&measure, &record);
        LatencyRow {
            name: "round 1".to_owned(),
            offered_per_s: Some(rate_per_s),
            measurement: measure,
            accept,
            delivery: accept,
            verdict,
        }
    }

    #[test]
    fn a_rate_is_sustained_if_nothing_is_left_when_it_is_over() {
        // The sample sends 200,000 messages in 4 s. This is enough for a rate of 50,000/s, but 60,000/s would need
        // 240,000 messages. The last message is accepted after 3.7 s, so acceptance never falls behind.
        assert_eq!(row(50_000.0, 4.2, 1.0).verdict, SUSTAINED);
        assert_eq!(row(50_000.0, 4.4, 1.0).verdict, "the queue grew");
        assert_eq!(row(60_000.0, 4.0, 1.0).verdict, "not all was sent");
        let mut lossy = row(50_000.0, 4.0, 1.0);
        lossy.measurement.flaws.fault = Some("lost 1".to_owned());
        let limits = SustainedLimits::default();
        assert_eq!(limits.judge(&lossy.measurement, &sample::relayed()), "not all were accepted");
    }

    #[test]
    fn the_scenario_says_what_sustained_means() {
        let late = row(50_000.0, 4.4, 1.0);
        let mut record = sample::relayed();
        record.workload = open(50_000.0, Arrival::Constant, Duration::from_secs(4));
        let limits = SustainedLimits::default();
        assert_eq!(limits.judge(&late.measurement, &record), "the queue grew");
        for wider in [
            SustainedLimits { max_delay: Duration::from_millis(300), ..limits },
            SustainedLimits { max_delay_share: 0.08, ..limits },
        ] {
            assert_eq!(wider.judge(&late.measurement, &record), SUSTAINED, "{wider:?}");
        }
        record.workload.rate_per_s = Some(60_000.0);
        let fewer = SustainedLimits { min_sent: 0.8, max_delay: Duration::from_secs(1), ..limits };
        assert_eq!(fewer.judge(&late.measurement, &record), SUSTAINED);
    }

    fn options(rounds: u32) -> LatencyOptions {
        LatencyOptions {
            scenario: sample_options("relay-latency"),
            relay: "postfix".parse().unwrap(),
            shape: LoadShape { sessions: 1, message_bytes: 400, reuse: None, pipelining: Default::default() },
            step: Duration::from_secs(4),
            steps: 5,
            sustained: SustainedLimits::default(),
            rate_per_s: None,
            arrival: Arrival::Poisson,
            length: Duration::from_secs(4),
            rounds,
            share: 0.5,
            accept_p99: Some(Duration::from_millis(20)),
        }
    }

    #[test]
    fn the_median_round_decides() {
        let results = |p99s: &[f64]| LatencyResults {
            rows: p99s.iter().map(|p99| row(50_000.0, 4.0, *p99)).collect(),
            sustained_per_s: Some(100_000.0),
            rounds: p99s.len() as u32,
        };
        let good = report(&results(&[42.0, 3.0, 19.0]), &options(3));
        assert!(good.is_good() && good.text.contains("PASS"), "{}", good.text);
        assert!(good.text.contains("19.00 ms (3.00 ms–42.00 ms)"), "{}", good.text);
        assert!(good.text.contains("100,000 msg/s"), "{}", good.text);
        let bad = report(&results(&[3.0, 21.0, 22.0]), &options(3));
        assert!(!bad.is_good() && bad.text.contains("FAIL") && bad.text.contains("21.00 ms"), "{}", bad.text);
        let cut = report(&results(&[3.0, 3.0]), &options(3));
        assert!(!cut.is_good() && cut.text.contains("INCONCLUSIVE"), "{}", cut.text);
        let none = report(&LatencyResults::default(), &options(3));
        assert!(!none.is_good() && none.text.contains("stopped before"), "{}", none.text);
    }
}
