//! The method in simulation, with a seed: how often it calls two equal programs different, and how often it finds a
//! difference that is there. The noise is a normal model, or that of 280 runs of one program against itself.
use journey::seeded::SeededRng;
use mailrun_compare::{CompareSettings, ComparedMetric, Gain, MetricVerdict, RoundRatios, compare_rounds};
use serde_json::Value;

const METRICS: [&str; 6] = ["rate", "p50", "p90", "p99", "src", "snk"];
/// Draws of flips: a tenth of the default, for many comparisons in a short time.
const DRAWS: usize = 2_000;

/// The values of the metrics of a run.
type RunFigures = [f64; METRICS.len()];

/// The measured runs, in the order in which they were made.
fn real_runs() -> Vec<RunFigures> {
    let data: Value = serde_json::from_str(include_str!("data/aa-noise.json")).expect("it is JSON");
    let rows = data["runs_of_10000"].as_array().expect("it has runs");
    rows.iter().map(|row| METRICS.map(|name| row[name].as_f64().expect("it has all metrics"))).collect()
}

/// Two runs of a round: neighbours in time among the measured ones.
fn real_pair(runs: &[RunFigures], random: &mut SeededRng) -> (RunFigures, RunFigures) {
    let at = random.below(runs.len() as u64 - 1) as usize;
    (runs[at], runs[at + 1])
}

/// Two measured runs of any times: a harder host.
fn independent_pair(runs: &[RunFigures], random: &mut SeededRng) -> (RunFigures, RunFigures) {
    let mut run = || runs[random.below(runs.len() as u64) as usize];
    (run(), run())
}

/// Two runs whose figures scatter by 3 %, half of it shared by all metrics of a run.
fn normal_pair(random: &mut SeededRng) -> (RunFigures, RunFigures) {
    let mut run = || {
        let common = normal(random);
        [(); METRICS.len()].map(|()| (0.03 * (common + normal(random)) / 2.0_f64.sqrt()).exp())
    };
    (run(), run())
}

/// A draw of the standard normal distribution (Box and Muller).
fn normal(random: &mut SeededRng) -> f64 {
    (-2.0 * random.unit().ln()).sqrt() * (std::f64::consts::TAU * random.unit()).cos()
}

/// A simulated comparison: `rounds` in ABBA blocks, the rate of B multiplied by `factor`, and all figures of each run by
/// (1 + drift) to the number of runs before it. Returns the verdicts.
fn verdicts(
    rounds: usize,
    factor: f64,
    drift: f64,
    seed: u64,
    pair: &mut dyn FnMut() -> (RunFigures, RunFigures),
) -> Vec<MetricVerdict> {
    let mut pairs = vec![Vec::with_capacity(rounds); METRICS.len()];
    for round in 0..rounds {
        let (first, second) = pair();
        // ABBA BAAB: A comes first in rounds 0, 3, 4, 7 and so on.
        let a_is_first = matches!(round % 4, 0 | 3);
        let (a, b) = if a_is_first { (first, second) } else { (second, first) };
        let drifted = |is_first: bool| (1.0 + drift).powi(2 * round as i32 + i32::from(!is_first));
        for (metric, pairs) in pairs.iter_mut().enumerate() {
            let effect = if metric == 0 { factor } else { 1.0 };
            pairs.push((a[metric] * drifted(a_is_first), b[metric] * effect * drifted(!a_is_first)));
        }
    }
    let family: Vec<RoundRatios> = METRICS.iter().zip(&pairs).map(|(name, pairs)| ratios(name, pairs)).collect();
    let settings = CompareSettings { draws: DRAWS, seed, ..CompareSettings::default() };
    compare_rounds(&family, &settings).iter().map(|finding| finding.verdict).collect()
}

fn ratios(name: &str, pairs: &[(f64, f64)]) -> RoundRatios {
    let gain = if name == "rate" { Gain::Higher } else { Gain::Lower };
    RoundRatios::new(ComparedMetric { name: name.to_owned(), gain }, pairs).expect("all are above 0")
}

fn is_different(verdict: &MetricVerdict) -> bool {
    matches!(verdict, MetricVerdict::Better | MetricVerdict::Worse)
}

/// The share of `count` comparisons of equal programs that call any metric different.
fn false_alarms(
    count: u64,
    rounds: usize,
    drift: f64,
    mut pair: impl FnMut(&mut SeededRng) -> (RunFigures, RunFigures),
) -> f64 {
    let alarms = (0..count).filter(|number| {
        let mut random = SeededRng::new(16, 1_u64, *number);
        verdicts(rounds, 1.0, drift, *number, &mut || pair(&mut random)).iter().any(is_different)
    });
    alarms.count() as f64 / count as f64
}

/// The share of `count` comparisons that find the rate of B lower, which it is by `factor`.
fn power(count: u64, rounds: usize, factor: f64, runs: &[RunFigures]) -> f64 {
    let found = (0..count).filter(|number| {
        let mut random = SeededRng::new(17, 1_u64, *number);
        verdicts(rounds, factor, 0.0, *number, &mut || real_pair(runs, &mut random))[0] == MetricVerdict::Worse
    });
    found.count() as f64 / count as f64
}

#[test]
fn equal_programs_are_called_different_in_six_of_a_hundred_comparisons_at_most() {
    let runs = real_runs();
    for (name, share) in [
        ("normal, 20 rounds", false_alarms(1_000, 20, 0.0, normal_pair)),
        ("normal, 40 rounds", false_alarms(1_000, 40, 0.0, normal_pair)),
        ("normal, 40 rounds, a drift of 1 % a run", false_alarms(1_000, 40, 0.01, normal_pair)),
        ("measured, 40 rounds", false_alarms(1_000, 40, 0.0, |random| real_pair(&runs, random))),
        ("measured, 80 rounds", false_alarms(1_000, 80, 0.0, |random| real_pair(&runs, random))),
        ("measured, a drift of 1 % a run", false_alarms(1_000, 40, 0.01, |random| real_pair(&runs, random))),
        ("measured at any times", false_alarms(1_000, 40, 0.0, |random| independent_pair(&runs, random))),
    ] {
        println!("{name}: {:.1} %", share * 100.0);
        assert!(share <= 0.06, "{name}: {share}");
    }
}

#[test]
fn a_difference_that_is_there_is_found() {
    let runs = real_runs();
    for (rounds, factor, least) in [(40, 1.0 / 1.10, 0.95), (80, 1.0 / 1.05, 0.90)] {
        let share = power(400, rounds, factor, &runs);
        println!("{rounds} rounds, {factor:.3}: {:.1} %", share * 100.0);
        assert!(share >= least, "{rounds} rounds, {factor}: {share}");
    }
}
