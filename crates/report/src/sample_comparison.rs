//! Sample comparisons for the tests of their page: one of stored runs, one of rounds, and one with hostile names.
use crate::comparison::{ComparedFigure, ComparedSide, ComparisonPage, MetricVerdict, RunCurves};
use crate::sample_load::noise;
use mailrun_measurement::Latencies;
use mailrun_measurement::record::Outcome;
use std::time::Duration;

pub fn comparisons() -> Vec<(&'static str, ComparisonPage)> {
    vec![("compared-runs", of_runs()), ("compared-rounds", of_rounds()), ("compared-hostile", hostile())]
}

pub fn of_runs() -> ComparisonPage {
    let figures = vec![
        figure(1, "delivered, msg/s", 7_513.0, 0.801, (0.781, 0.822), MetricVerdict::Worse),
        figure(1, "delivered p50, ms", 1.824, 1.025, (1.004, 1.047), MetricVerdict::Worse),
        figure(1, "delivered p90, ms", 2.217, 1.001, (0.991, 1.012), MetricVerdict::Same),
        figure(1, "delivered p99, ms", 7.027, 1.129, (0.944, 1.550), MetricVerdict::Undecided { more_rounds: 18 }),
        figure(1, "source CPU, µs/msg", 68.0, 0.902, (0.853, 0.941), MetricVerdict::Better),
    ];
    ComparisonPage {
        title: "after against before".to_owned(),
        outcome: Some((Outcome::Fail, "A figure is worse by 5 % or more: delivered, msg/s.".to_owned())),
        is_paired: false,
        margin: 0.02,
        sides: vec![side("before", 6, 1.0), side("after", 6, 1.25)],
        figures,
        refused: vec!["the number of sessions of after/7 is 7, that of before/0 is 20".to_owned()],
        remarks: vec!["Left out: after/4: 3 lost".to_owned()],
        method: vec!["The sides were measured at different times.".to_owned()],
    }
}

pub fn of_rounds() -> ComparisonPage {
    let mut page = of_runs();
    page.title = "smtp-source and go-smtp-source against mailrun".to_owned();
    page.outcome = None;
    page.is_paired = true;
    page.sides = vec![side("mailrun", 80, 1.0), side("smtp-source", 80, 1.1), side("go-smtp-source", 80, 1.6)];
    for place in 0..3 {
        page.figures[place].side = 1;
        let again = ComparedFigure { side: 2, ..page.figures[place].clone() };
        page.figures.push(again);
    }
    page.figures.iter_mut().for_each(|figure| {
        figure.reference_values = scatter(figure.reference_median, 80);
        figure.values = scatter(figure.median, 80);
    });
    page
}

/// A comparison whose names and remarks contain markup and whose figures are NaN, which the page must survive.
pub fn hostile() -> ComparisonPage {
    const MARKUP: &str = "</td><img src=x onerror=alert(1)><script>alert(2)</script>\u{202e}\u{1b}[2J\"'&";
    let mut page = of_runs();
    page.title = MARKUP.to_owned();
    page.outcome = Some((Outcome::Inconclusive, MARKUP.repeat(200)));
    page.refused = vec![MARKUP.to_owned(); 2];
    page.remarks = vec![MARKUP.to_owned(); 40];
    page.sides.iter_mut().for_each(|side| {
        side.name = MARKUP.to_owned();
        side.facts = vec![("host", MARKUP.to_owned())];
    });
    page.figures[0].name = MARKUP.to_owned();
    page.figures[1].ratio = f64::NAN;
    page.figures[2].interval = Some((0.0, f64::INFINITY));
    page.figures[3].values = vec![f64::NAN, -1.0, f64::INFINITY];
    page.figures[4].side = 99;
    page
}

fn figure(
    side: usize,
    name: &str,
    median: f64,
    ratio: f64,
    interval: (f64, f64),
    verdict: MetricVerdict,
) -> ComparedFigure {
    ComparedFigure {
        name: name.to_owned(),
        side,
        higher_is_better: name.ends_with("msg/s"),
        reference_values: scatter(median, 6),
        values: scatter(median * ratio, 6),
        reference_median: median,
        median: median * ratio,
        ratio,
        interval: Some(interval),
        verdict,
        is_beyond_margin: interval.0 > 1.02 || interval.1 < 1.0 / 1.02,
    }
}

fn scatter(middle: f64, count: u64) -> Vec<f64> {
    (0..count).map(|place| middle * (1.0 + 0.06 * unit(place * 7 + 3))).collect()
}

fn side(name: &str, runs: u64, slower: f64) -> ComparedSide {
    let run = |number: u64| {
        let mut times = Latencies::default();
        for place in 0..2_000_u64 {
            let spread = 1.0 + 3.0 * unit(place * 31 + number).abs().powi(4);
            times.record(Duration::from_secs_f64(0.001_5 * slower * spread));
        }
        let rate = |second: u64| (second, 7_500.0 / slower * (1.0 + 0.1 * unit(second * 13 + number)));
        RunCurves { latencies: Some(times), rates: (0..10).map(rate).collect() }
    };
    let facts = vec![("version", "0.1.0".to_owned()), ("host", "2 cores".to_owned())];
    ComparedSide { name: name.to_owned(), facts, runs: (0..runs).map(run).collect() }
}

/// Returns a pseudo-random number from -1 to 1.
fn unit(seed: u64) -> f64 {
    noise(seed) as f64 / (1_u64 << 47) as f64 - 1.0
}
