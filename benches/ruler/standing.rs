//! Results of the contestants: medians and spreads of interleaved runs, and whether mailrun reached
//! its targets.

use mailrun_text::table::{Align, Table, right};

use super::contestants::{Contestant, LIMIT, MAILRUN_PAIR, POSTFIX_PAIR, Run};
use super::shapes::{Measure, Shape, Target};
use super::spread::Spread;

/// From this message size on, the table shows octets per second in addition to messages per second.
const LARGE_OCTETS: u64 = 16 * 1024;

/// The runs of one contestant. Run `i` of each contestant belongs to round `i`.
pub(crate) struct Lane {
    pub(crate) contestant: Contestant,
    pub(crate) runs: Vec<Run>,
}

pub(crate) struct Standing<'a> {
    pub(crate) shape: &'a Shape,
    pub(crate) lanes: Vec<Lane>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    Failed,
    /// The target was not judged, because a program was not measured, for example because it is not installed.
    Skipped,
}

impl Standing<'_> {
    pub(crate) fn lane(&self, contestant: Contestant) -> Option<&Lane> {
        self.lanes.iter().find(|lane| lane.contestant == contestant)
    }

    /// Divides the rate of a contestant by the rate of the contestant `to`, and returns the spread of these ratios.
    /// Each ratio is of two runs of the same round, so that a slow minute of the machine affects both rates.
    fn ratio(&self, lane: &Lane, to: Contestant) -> Option<Spread> {
        let other = self.lane(to)?;
        Spread::of(lane.runs.iter().zip(&other.runs).map(|(run, other)| run.rate_per_s / other.rate_per_s))
    }

    fn measured(&self, target: &Target) -> Option<Spread> {
        let lane = self.lane(MAILRUN_PAIR)?;
        match target.measure {
            Measure::OfLimit => self.ratio(lane, LIMIT),
            Measure::OfSmtpSource => self.ratio(lane, POSTFIX_PAIR),
            Measure::GigabytesPerSecond => {
                let octets = self.shape.message_octets as f64;
                Spread::of(lane.runs.iter().map(|run| run.rate_per_s * octets / 1e9))
            }
        }
    }

    pub(crate) fn outcomes(&self) -> impl Iterator<Item = Outcome> {
        self.shape.targets.iter().map(|target| outcome(target, self.measured(target)))
    }
}

fn outcome(target: &Target, measured: Option<Spread>) -> Outcome {
    match measured {
        None => Outcome::Skipped,
        Some(spread) if spread.median >= target.least => Outcome::Passed,
        Some(_) => Outcome::Failed,
    }
}

pub(crate) fn table(standings: &[Standing<'_>]) -> Table {
    let left = |title| (title, Align::Left);
    let figures = ["median msg/s", "min–max", "source says", "× limit (min–max)", "source µs/msg", "sink µs/msg"];
    let columns = [left("shape"), left("contestant")].into_iter().chain(figures.map(right));
    let mut table = Table::new(columns.chain([left("target"), left("verdict")]));
    for standing in standings {
        for (at, lane) in standing.lanes.iter().enumerate() {
            let shape = if at == 0 {
                let Shape { name, title, sessions, .. } = standing.shape;
                format!("{name}: {title}, {sessions} session{}", if *sessions == 1 { "" } else { "s" })
            } else {
                String::new()
            };
            table.row([shape].into_iter().chain(row(standing, lane)).collect());
        }
    }
    table
}

/// Returns a contestant's row of the table without the first cell, which names the shape of the load.
fn row(standing: &Standing<'_>, lane: &Lane) -> Vec<String> {
    let median = |value: fn(&Run) -> f64| Spread::of(lane.runs.iter().map(value)).map_or(f64::NAN, |s| s.median);
    let rate = Spread::of(lane.runs.iter().map(|run| run.rate_per_s));
    let reported = Spread::of(lane.runs.iter().filter_map(|run| run.reported_rate_per_s));
    let (targets, verdicts) = judged(standing, lane.contestant);
    vec![
        lane.contestant.name.to_owned(),
        rate.map_or_else(String::new, |rate| with_octets(standing.shape, rate.median)),
        rate.map_or_else(String::new, |rate| format!("{:.0}–{:.0}", rate.least, rate.most)),
        reported.map_or_else(|| "–".to_owned(), |rate| format!("{:.0}", rate.median)),
        standing.ratio(lane, LIMIT).map_or_else(String::new, in_words),
        microseconds(median(|run| run.source_microseconds)),
        microseconds(median(|run| run.sink_microseconds)),
        targets,
        verdicts,
    ]
}

fn judged(standing: &Standing<'_>, contestant: Contestant) -> (String, String) {
    let mut targets = Vec::new();
    let mut verdicts = Vec::new();
    for target in standing.shape.targets.iter().filter(|_| contestant == MAILRUN_PAIR) {
        let least = target.least;
        targets.push(match target.measure {
            Measure::OfLimit => format!("≥ {least:.2} of limit"),
            Measure::OfSmtpSource => format!("≥ {least:.1} × smtp-source"),
            Measure::GigabytesPerSecond => format!("≥ {least:.1} GB/s"),
        });
        verdicts.push(verdict(target, standing.measured(target)));
    }
    (targets.join("; "), verdicts.join("; "))
}

fn verdict(target: &Target, measured: Option<Spread>) -> String {
    let Some(spread) = measured else { return "skipped".to_owned() };
    let word = if outcome(target, measured) == Outcome::Passed { "PASS" } else { "FAIL" };
    let unsure = if (spread.least..spread.most).contains(&target.least) { ", within the spread" } else { "" };
    let goal = match target.goal {
        Some(goal) if spread.median >= goal => format!(", goal {goal:.2} met"),
        Some(_) | None => String::new(),
    };
    format!("{word} {:.2}{goal}{unsure}", spread.median)
}

fn with_octets(shape: &Shape, rate_per_s: f64) -> String {
    if shape.message_octets < LARGE_OCTETS {
        return format!("{rate_per_s:.0}");
    }
    format!("{rate_per_s:.0} ({:.2} GB/s)", rate_per_s * shape.message_octets as f64 / 1e9)
}

fn in_words(spread: Spread) -> String {
    format!("{:.3} ({:.3}–{:.3})", spread.median, spread.least, spread.most)
}

fn microseconds(value: f64) -> String {
    if value < 100.0 { format!("{value:.2}") } else { format!("{value:.0}") }
}
