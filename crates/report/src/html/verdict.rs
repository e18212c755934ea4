//! The top of the page: the verdict and its reason, the most important figures, remarks, and the buttons for copies.
use super::escape::{escaped, isolated};
use super::runs::PageRuns;
use super::value;
use crate::ending::{first_sentence, notes};
use crate::headline::{self, Headline};
use crate::numbers::{count, latency, rate, seconds};
use journey::record::{LatencyMs, Outcome, Record};

/// A figure at the top.
struct KeyFigure {
    name: &'static str,
    value: f64,
    text: String,
}

/// The top of the page.
pub(super) fn top(runs: PageRuns<'_>) -> String {
    let record = runs.record;
    let headline = Headline::of(record);
    let why = headline::why(record);
    let (sentence, _) = first_sentence(&why);
    format!(
        "<header class=\"top {}\"><p class=\"eyebrow\">mailrun {} · started {}</p><h1>{}</h1>\
         <p class=\"verdict\"><strong class=\"stamp\"><span aria-hidden=\"true\">{}</span> {}</strong> \
         <span class=\"why\">{}</span></p><p class=\"counts\">{}</p>{}{}{}{BUTTONS}</header>",
        class(headline),
        escaped(&record.version),
        escaped(&record.started_at),
        isolated(&record.name),
        mark(headline),
        headline.name(),
        isolated(sentence),
        isolated(&headline::counts(record)),
        advice(record),
        baseline_line(runs),
        tiles(runs),
    )
}

/// Buttons that scripts show.
const BUTTONS: &str = "<p class=\"actions\" hidden><button type=\"button\" data-copy=\"markdown\">Copy as Markdown</button> \
                       <button type=\"button\" data-copy=\"record\">Copy as JSON</button> <span role=\"status\"></span></p>";

fn class(headline: Headline) -> &'static str {
    match headline {
        Headline::Judged(Outcome::Pass) => "pass",
        Headline::Judged(Outcome::Fail) => "fail",
        Headline::Judged(Outcome::Invalid) => "invalid",
        Headline::Judged(Outcome::Inconclusive) => "inconclusive",
        Headline::Received => "received",
    }
}

fn mark(headline: Headline) -> &'static str {
    match headline {
        Headline::Judged(Outcome::Pass) => "✓",
        Headline::Judged(Outcome::Fail) => "✗",
        Headline::Judged(Outcome::Invalid) => "!",
        Headline::Judged(Outcome::Inconclusive) => "?",
        Headline::Received => "·",
    }
}

/// Advice and remarks besides the reason.
fn advice(record: &Record) -> String {
    let rows: String = notes(record).iter().map(|text| format!("<li>{}</li>", isolated(text))).collect();
    if rows.is_empty() { rows } else { format!("<ul class=\"remarks\">{rows}</ul>") }
}

/// The run that ratios and grey curves refer to.
fn baseline_line(runs: PageRuns<'_>) -> String {
    runs.baseline.map_or_else(String::new, |other| {
        format!(
            "<p class=\"against\">Compared with <b>{}</b> ({}, started {}, mailrun {}): a ratio such as \
             <small class=\"ratio\">1.08×</small> is this run's number divided by that run's; its curves are grey and \
             dashed.</p>",
            isolated(&other.name),
            Headline::of(other).name(),
            escaped(&other.started_at),
            escaped(&other.version)
        )
    })
}

fn tiles(runs: PageRuns<'_>) -> String {
    let others = runs.baseline.map(key_figures).unwrap_or_default();
    let tile = |own: KeyFigure| {
        let other = others.iter().find(|other| other.name == own.name).map(|other| other.value);
        let number = value::compared(own.value, &own.text, other);
        format!("<div><dt>{}</dt><dd>{number}</dd></div>", own.name)
    };
    let tiles: String = key_figures(runs.record).into_iter().map(tile).collect();
    format!("<dl class=\"tiles\">{tiles}</dl>")
}

/// The figures of the last stage that was observed, and of the run.
fn key_figures(record: &Record) -> Vec<KeyFigure> {
    let mut figures = Vec::new();
    let mut add = |name, value, text| figures.push(KeyFigure { name, value, text });
    if let Some((name, number, per_s, times)) = last_stage(record) {
        add(name, number as f64, count(number));
        add("msg/s", per_s, rate(per_s));
        if let Some(times) = times {
            add("p50", times.p50, latency(times.p50));
            add("p99", times.p99, latency(times.p99));
            add("max", times.max, latency(times.max));
        }
    }
    let errors = record.errors.iter().fold(0_u64, |sum, row| sum.saturating_add(row.count));
    if record.mades.is_none() {
        add("errors", errors as f64, count(errors));
    }
    let length = record.offered_s.unwrap_or(record.duration_s);
    add("duration", length, seconds(length));
    figures
}

/// Name, count, rate and latency of the last stage that was observed.
fn last_stage(record: &Record) -> Option<(&'static str, u64, f64, Option<LatencyMs>)> {
    if let Some(mades) = &record.mades {
        let last = mades.stages.iter().rev().find(|row| row.count > 0)?;
        return Some(("messages", last.count, last.offered_rate_per_s.unwrap_or(last.rate_per_s), last.latency_ms));
    }
    let last = headline::final_stage(record)?;
    Some((last.name.name(), last.count, last.offered_rate_per_s.unwrap_or(last.rate_per_s), last.latency_ms))
}
