//! The top of the page: the verdict with its reason, the key figures, and the remarks on the run.
use super::escape::{escaped, isolated};
use super::tables::PageRuns;
use super::value;
use crate::ending::{first_sentence, notes};
use crate::figures::{errors_once, final_stage, stage_latency};
use crate::headline::{self, Headline};
use mailrun_measurement::record::{Outcome, Record};
use mailrun_text::numbers::{count, rate, seconds};

struct KeyFigure<'a> {
    name: &'a str,
    value: f64,
    text: String,
}

pub(super) fn top(runs: PageRuns<'_>) -> String {
    let record = runs.record;
    let headline = Headline::of(record);
    let (sentence, _) = first_sentence(&record.verdict.why);
    let (class, stamp) = stamp(headline, headline.name());
    format!(
        "<header class=\"top {class}\"><div class=\"head\"><div><p class=\"eyebrow\">mailrun {} · started {}</p><h1>{}</h1>\
         <p class=\"verdict\">{stamp} \
         <span class=\"why\">{}</span></p><p class=\"counts\">{}</p></div>{}</div>{}{}</header>",
        escaped(&record.version),
        escaped(&record.started_at),
        isolated(&record.name),
        isolated(sentence),
        isolated(&headline::counts(record)),
        tiles(runs),
        advice(record),
        baseline_line(runs),
    )
}

fn class(headline: Headline) -> &'static str {
    match headline {
        Headline::Judged(Outcome::Pass) => "pass",
        Headline::Judged(Outcome::Fail) => "fail",
        Headline::Judged(Outcome::Invalid) => "invalid",
        Headline::Judged(Outcome::Inconclusive) => "inconclusive",
        Headline::Received | Headline::Sent => "received",
    }
}

fn mark(headline: Headline) -> &'static str {
    match headline {
        Headline::Judged(Outcome::Pass) => "✓",
        Headline::Judged(Outcome::Fail) => "✗",
        Headline::Judged(Outcome::Invalid) => "!",
        Headline::Judged(Outcome::Inconclusive) => "?",
        Headline::Received | Headline::Sent => "·",
    }
}

/// Returns the CSS class for the top of the page, and the stamp that shows the outcome, such as `PASS`.
pub(super) fn stamp(headline: Headline, word: &str) -> (&'static str, String) {
    let stamp = format!(
        "<strong class=\"stamp\"><span aria-hidden=\"true\">{}</span> {}</strong>",
        mark(headline),
        escaped(word)
    );
    (class(headline), stamp)
}

fn advice(record: &Record) -> String {
    remark_list(&notes(record))
}

pub(super) fn remark_list(remarks: &[String]) -> String {
    let rows: String = remarks.iter().map(|text| format!("<li>{}</li>", isolated(text))).collect();
    if rows.is_empty() { rows } else { format!("<ul class=\"remarks\">{rows}</ul>") }
}

/// Returns a line that names the baseline, to which the ratios and the grey curves refer.
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
    let tile = |own: KeyFigure<'_>| {
        let other = others.iter().find(|other| other.name == own.name).map(|other| other.value);
        let number = value::compared(own.value, &own.text, other);
        format!("<div><dt>{}</dt><dd>{number}</dd></div>", escaped(own.name))
    };
    let tiles: String = key_figures(runs.record).into_iter().map(tile).collect();
    format!("<dl class=\"tiles\">{tiles}</dl>")
}

fn key_figures(record: &Record) -> Vec<KeyFigure<'_>> {
    let mut figures = Vec::new();
    let mut add = |name, value, text| figures.push(KeyFigure { name, value, text });
    if let Some(last) = final_stage(record) {
        add(last.name.name(), last.count as f64, count(last.count));
        if let Some(per_s) = last.rate_per_s {
            add("msg/s", per_s, rate(per_s));
        }
        if let Some(times) = last.latency_ms {
            for (name, ms) in [("p50", times.p50), ("p99", times.p99), ("max", times.max)] {
                add(name, ms, stage_latency(last, ms));
            }
        }
    }
    let errors = errors_once(record).fold(0_u64, |sum, row| sum.saturating_add(row.count));
    if record.mades.is_none() {
        add("errors", errors as f64, count(errors));
    }
    let length = record.offered_s.unwrap_or(record.duration_s);
    add("duration", length, seconds(length));
    figures
}
