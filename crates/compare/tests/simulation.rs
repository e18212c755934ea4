//! Simulates comparisons with fixed seeds, to measure how often a comparison calls two equal programs different (a
//! false alarm), and how often it finds a real difference. The noise is drawn from a normal distribution, or from 200
//! measured runs of one program.
use mailrun_compare::{
    CompareSettings, ComparedMetric, Gain, LookPlan, MetricFinding, MetricVerdict, RoundRatios, RunValues,
    compare_rounds, compare_runs,
};
use mailrun_measurement::seeded::SeededRng;
use serde_json::Value;

const METRICS: [&str; 6] = ["rate", "p50", "p90", "p99", "src", "snk"];
/// Number of random permutations per comparison: a tenth of the default, because there are many comparisons.
const DRAWS: usize = 2_000;

/// Returns the number of simulated comparisons for each measured share, such as the share of false alarms. The seed of
/// a comparison is its number, so the shares are the same in every run of the tests. More comparisons make the shares
/// more accurate: `make test-slow PART=statistics` simulates four times as many.
fn comparisons() -> u64 {
    std::env::var("MAILRUN_COMPARISONS").map_or(250, |number| number.parse().expect("it is a number"))
}

type RunFigures = [f64; METRICS.len()];

/// Reads the figures of 200 runs of one program with 10,000 messages each, in the order in which they were measured.
fn real_runs() -> Vec<RunFigures> {
    let data: Value = serde_json::from_str(include_str!("data/aa-noise.json")).expect("it is JSON");
    let rows = data["runs_of_10000"].as_array().expect("it has runs");
    rows.iter().map(|row| METRICS.map(|name| row[name].as_f64().expect("it has all metrics"))).collect()
}

/// Draws the two runs of a round: a random measured run, and the measured run that directly followed it.
fn real_pair(runs: &[RunFigures], random: &mut SeededRng) -> (RunFigures, RunFigures) {
    let at = random.below(runs.len() as u64 - 1) as usize;
    (runs[at], runs[at + 1])
}

/// Draws two measured runs independently of each other. They differ more than runs in direct succession, as on a less
/// stable host.
fn independent_pair(runs: &[RunFigures], random: &mut SeededRng) -> (RunFigures, RunFigures) {
    let mut run = || runs[random.below(runs.len() as u64) as usize];
    (run(), run())
}

/// Draws two runs whose figures have a standard deviation of 3 %. Half of the variance comes from a random number that
/// all metrics of a run share.
fn normal_pair(random: &mut SeededRng) -> (RunFigures, RunFigures) {
    let mut run = || {
        let common = normal(random);
        [(); METRICS.len()].map(|()| (0.03 * (common + normal(random)) / 2.0_f64.sqrt()).exp())
    };
    (run(), run())
}

/// Draws a number from the standard normal distribution (method of Box and Muller).
fn normal(random: &mut SeededRng) -> f64 {
    (-2.0 * random.unit().ln()).sqrt() * (std::f64::consts::TAU * random.unit()).cos()
}

#[derive(Clone, Copy)]
struct Simulation {
    rounds: usize,
    factor: f64,
    /// Relative change of all figures from each run to the next: a figure is multiplied by (1 + drift) once for each
    /// earlier run.
    drift: f64,
    look: LookPlan,
    seed: u64,
}

impl Simulation {
    fn new(rounds: usize, seed: u64) -> Self {
        Self { rounds, factor: 1.0, drift: 0.0, look: LookPlan::Only, seed }
    }

    fn findings(self, pair: &mut dyn FnMut() -> (RunFigures, RunFigures)) -> Vec<MetricFinding> {
        let mut pairs = vec![Vec::with_capacity(self.rounds); METRICS.len()];
        for round in 0..self.rounds {
            let (first, second) = pair();
            // The rounds have the order AB BA BA AB, so A comes first in rounds 0, 3, 4, 7 and so on.
            let a_is_first = matches!(round % 4, 0 | 3);
            let (a, b) = if a_is_first { (first, second) } else { (second, first) };
            let drifted = |is_first: bool| (1.0 + self.drift).powi(2 * round as i32 + i32::from(!is_first));
            for (metric, pairs) in pairs.iter_mut().enumerate() {
                let effect = if metric == 0 { self.factor } else { 1.0 };
                pairs.push((a[metric] * drifted(a_is_first), b[metric] * effect * drifted(!a_is_first)));
            }
        }
        let family: Vec<RoundRatios> = METRICS.iter().zip(&pairs).map(|(name, pairs)| ratios(name, pairs)).collect();
        let settings = CompareSettings { draws: DRAWS, seed: self.seed, look: self.look, ..CompareSettings::default() };
        compare_rounds(&family, &settings)
    }

    fn of_neighbours(self, runs: &[RunFigures]) -> Vec<MetricFinding> {
        let mut random = SeededRng::new(17, 1_u64, self.seed);
        self.findings(&mut || real_pair(runs, &mut random))
    }
}

fn metric(name: &str) -> ComparedMetric {
    let gain = if name == "rate" { Gain::Higher } else { Gain::Lower };
    ComparedMetric { name: name.to_owned(), gain }
}

fn ratios(name: &str, pairs: &[(f64, f64)]) -> RoundRatios {
    RoundRatios::new(metric(name), pairs).expect("all are above 0")
}

fn is_different(finding: &MetricFinding) -> bool {
    matches!(finding.verdict, MetricVerdict::Better | MetricVerdict::Worse)
}

/// Compares two equal programs many times. Returns the share of comparisons that call at least one metric different.
fn false_alarms(rounds: usize, drift: f64, mut pair: impl FnMut(&mut SeededRng) -> (RunFigures, RunFigures)) -> f64 {
    let count = comparisons();
    let alarms = (0..count).filter(|number| {
        let mut random = SeededRng::new(16, 1_u64, *number);
        let simulation = Simulation { drift, ..Simulation::new(rounds, *number) };
        simulation.findings(&mut || pair(&mut random)).iter().any(is_different)
    });
    alarms.count() as f64 / count as f64
}

/// Returns the share of comparisons that call B's rate worse than A's. B's rates are multiplied by `factor`, which is
/// below 1.
fn power(rounds: usize, factor: f64, runs: &[RunFigures]) -> f64 {
    let count = comparisons();
    let hits = (0..count).filter(|number| {
        let simulation = Simulation { factor, ..Simulation::new(rounds, *number) };
        simulation.of_neighbours(runs)[0].verdict == MetricVerdict::Worse
    });
    hits.count() as f64 / count as f64
}

#[test]
fn equal_programs_are_called_different_in_six_of_a_hundred_comparisons_at_most() {
    let runs = real_runs();
    for (name, share) in [
        ("normal, 20 rounds", false_alarms(20, 0.0, normal_pair)),
        ("normal, 40 rounds", false_alarms(40, 0.0, normal_pair)),
        ("normal, 40 rounds, a drift of 1 % a run", false_alarms(40, 0.01, normal_pair)),
        ("measured, 40 rounds", false_alarms(40, 0.0, |random| real_pair(&runs, random))),
        ("measured, 80 rounds", false_alarms(80, 0.0, |random| real_pair(&runs, random))),
        ("measured, a drift of 1 % a run", false_alarms(40, 0.01, |random| real_pair(&runs, random))),
        ("measured at any times", false_alarms(40, 0.0, |random| independent_pair(&runs, random))),
    ] {
        println!("{name}: {:.1} %", share * 100.0);
        assert!(share <= 0.06, "{name}: {share}");
    }
}

#[test]
fn a_difference_that_is_there_is_found() {
    let runs = real_runs();
    for (rounds, factor, least) in [(40, 1.0 / 1.10, 0.95), (80, 1.0 / 1.05, 0.90)] {
        let share = power(rounds, factor, &runs);
        println!("{rounds} rounds, {factor:.3}: {:.1} %", share * 100.0);
        assert!(share >= least, "{rounds} rounds, {factor}: {share}");
    }
}

#[test]
fn two_looks_cry_wolf_no_more_often_than_one() {
    let runs = real_runs();
    let alarms = |rounds: usize, look: LookPlan| {
        let is_alarm = |seed: &u64| {
            let at = |rounds| Simulation { look, ..Simulation::new(rounds, *seed) };
            let differs = |rounds| at(rounds).of_neighbours(&runs).iter().any(is_different);
            differs(rounds) || differs(2 * rounds)
        };
        (0..comparisons()).filter(is_alarm).count() as f64 / comparisons() as f64
    };
    for rounds in [20, 40] {
        let share = alarms(rounds, LookPlan::OneOfTwo);
        println!("looks at {rounds} and {}: {share:.3}", 2 * rounds);
        assert!(share <= 0.06, "{rounds}: {share}");
    }
    let uncorrected = alarms(20, LookPlan::Only);
    println!("the same at 20 and 40, uncorrected: {uncorrected:.3}");
    assert!(uncorrected > 0.06, "two looks need the correction: {uncorrected}");
}

#[test]
fn undecided_differences_are_decided_by_the_rounds_that_are_asked_for() {
    let runs = real_runs();
    let mut alone = Vec::new();
    let mut all = Vec::new();
    for seed in 0..comparisons() {
        let first = Simulation { factor: 1.0 / 1.06, ..Simulation::new(20, seed) };
        let finding = first.of_neighbours(&runs).remove(0);
        let MetricVerdict::Undecided { more_rounds } = finding.verdict else { continue };
        let later = Simulation { rounds: 20 + more_rounds.min(400), ..first };
        let is_decided = !matches!(later.of_neighbours(&runs)[0].verdict, MetricVerdict::Undecided { .. });
        all.push(is_decided);
        // If the metric's own interval excludes 1, the metric is undecided only because all metrics are tested
        // together.
        if finding.interval.is_some_and(|(_, upper)| upper < 1.0) {
            alone.push(is_decided);
        }
    }
    let share = |decided: &[bool]| decided.iter().filter(|decided| **decided).count() as f64 / decided.len() as f64;
    println!("by the family alone: {:.3} of {}, all: {:.3} of {}", share(&alone), alone.len(), share(&all), all.len());
    assert!(alone.len() >= 10 && share(&alone) >= 0.65, "{:.3} of {}", share(&alone), alone.len());
    assert!(share(&all) >= 0.65, "{:.3} of {}", share(&all), all.len());
}

/// Simulates a comparison of stored runs. For each side, draws `count` measured runs at random, and multiplies the
/// rates of side B by `factor`.
fn stored_findings(count: usize, factor: f64, seed: u64, runs: &[RunFigures]) -> Vec<MetricFinding> {
    let mut random = SeededRng::new(18, 1_u64, seed);
    let mut side =
        || -> Vec<RunFigures> { (0..count).map(|_| runs[random.below(runs.len() as u64) as usize]).collect() };
    let a = side();
    let b = side();
    let family: Vec<RunValues> = METRICS
        .iter()
        .enumerate()
        .map(|(place, name)| {
            let effect = if place == 0 { factor } else { 1.0 };
            let of_a: Vec<f64> = a.iter().map(|run| run[place]).collect();
            let of_b: Vec<f64> = b.iter().map(|run| run[place] * effect).collect();
            RunValues::new(metric(name), &of_a, &of_b).expect("all are above 0")
        })
        .collect();
    compare_runs(&family, &CompareSettings { draws: DRAWS, seed, ..CompareSettings::default() })
}

#[test]
fn stored_runs_of_equal_programs_are_seldom_called_different_and_twenty_a_side_find_ten_percent() {
    let runs = real_runs();
    for (count, least) in [(5, 0.20), (6, 0.25), (10, 0.55), (20, 0.90)] {
        let share = |is_hit: &dyn Fn(u64) -> bool| {
            (0..comparisons()).filter(|seed| is_hit(*seed)).count() as f64 / comparisons() as f64
        };
        let alarms = share(&|seed| stored_findings(count, 1.0, seed, &runs).iter().any(is_different));
        let power = share(&|seed| stored_findings(count, 1.0 / 1.10, seed, &runs)[0].verdict == MetricVerdict::Worse);
        println!("{count} stored runs a side: {alarms:.3} false, 10 % found in {power:.3}");
        assert!(alarms <= 0.06, "{count} a side: {alarms}");
        assert!(power >= least, "{count} a side: {power}");
    }
}
