//! Curves over a common time axis: throughput by stage with the depth of the queue, latency, errors, CPU use and
//! memory. Events and stalls are marked. Each value is the figure of a whole second or, in a long run, of several
//! seconds, so the curves are drawn as steps.
//!
//! The page contains each panel twice: as a static drawing for print and for browsers without scripts, and as numbers,
//! from which the script uPlot draws a plot with a cursor.
use super::escape::{escaped, isolated, json};
use super::plot::{self, CurveStyle, PlotScale};
use super::tables;
use super::tables::{PagePart, PageRuns};
use super::time_axis::{MAX_POINTS, TimeAxis};
use super::value::data;
use crate::figures::final_stage;
use crate::seconds::{load_end, step};
use mailrun_measurement::record::{EventKind, EventRow, PartyUsage, Record, Role, SeriesRow, UsageRow};
use mailrun_text::numbers::{count, counted, latency, rate};
use serde_json::{Value, json as value};
use std::collections::BTreeSet;

/// Maximum number of points per curve in the static drawing. The drawing needs fewer points than the script's plot,
/// because it is smaller.
const DRAWN_POINTS: usize = 160;
const HEIGHT: u32 = 150;
const MEBIBYTE: f64 = 1_048_576.0;
const MAX_EVENTS: usize = 100;
const MAX_STALLS: usize = 200;
/// Number of events that are visible at once. Further events are collapsed.
const SHOWN_EVENTS: usize = 6;
const MAX_PARTIES: usize = 6;
/// A source or sink that keeps fewer cores busy than this in every second has no curves of CPU use and memory, because
/// so little CPU use explains nothing.
const MIN_GENERATOR_CORES: f64 = 0.1;

#[derive(Clone, Copy, PartialEq, Eq)]
enum TimeUnit {
    PerSecond,
    Millis,
    Cores,
    Mebibytes,
}

impl TimeUnit {
    fn name(self) -> &'static str {
        match self {
            Self::PerSecond => "/s",
            Self::Millis => "ms",
            Self::Cores => "cores",
            Self::Mebibytes => "MiB",
        }
    }
}

struct TimeCurve {
    name: String,
    style: CurveStyle,
    rows: Vec<(u64, f64)>,
    /// True for the curve that shows the number of messages in the queue. This curve has its own axis on the right,
    /// because the other curves show rates.
    is_depth: bool,
    is_baseline: bool,
    /// Set if the page shows the curve only when the reader selects it.
    is_on_demand: bool,
}

impl TimeCurve {
    /// Returns the text for the legend: the median during the load, and the maximum of the whole run. After the load,
    /// the queue only drains, so the small values of that time would lower the median.
    fn summary(&self, unit: TimeUnit, record: &Record) -> String {
        let last = record.series[..load_end(record)].last().map_or(u64::MAX, |row| row.second);
        let finite = self.rows.iter().filter(|(_, value)| value.is_finite());
        let max = finite.clone().map(|(_, value)| *value).max_by(f64::total_cmp);
        let mut values: Vec<f64> = finite.filter(|(second, _)| *second <= last).map(|(_, value)| *value).collect();
        values.sort_by(f64::total_cmp);
        let text = |value: f64| if unit == TimeUnit::Millis { latency(value) } else { rate(value) };
        match (values.get(values.len() / 2), max) {
            (Some(median), Some(max)) if *median < max => format!("median {}, max {}", text(*median), text(max)),
            (_, Some(max)) => text(max),
            _ => "–".to_owned(),
        }
    }
}

struct TimePanel {
    id: &'static str,
    title: String,
    unit: TimeUnit,
    curves: Vec<TimeCurve>,
}

/// Returns the curves over time, with events and stalls. Returns `None` if fewer than two seconds have figures.
pub(super) fn part(runs: PageRuns<'_>) -> Option<PagePart> {
    let seconds = all_seconds(runs);
    if seconds.len() < 2 {
        return None;
    }
    let panels = panels(runs);
    let full = TimeAxis::new(seconds.iter().copied(), MAX_POINTS);
    let small = TimeAxis::new(seconds.iter().copied(), DRAWN_POINTS);
    let figures: String = panels.iter().map(|panel| figure(runs.record, panel, &small)).collect();
    let numbers = numbers(runs.record, &panels, &full);
    let body = format!(
        "{}<div class=\"panels\">{figures}</div><script type=\"application/json\" id=\"curves\">{numbers}</script>",
        note(runs.record, &full),
    );
    Some(PagePart { id: "time", title: "Over time", body })
}

fn all_seconds(runs: PageRuns<'_>) -> BTreeSet<u64> {
    let of = |record: &Record| record.series.iter().map(|row| row.second).collect::<BTreeSet<u64>>();
    let mut seconds = of(runs.record);
    seconds.extend(runs.baseline.map(of).unwrap_or_default());
    seconds
}

fn note(record: &Record, axis: &TimeAxis) -> String {
    let thinned = match axis.per_bucket() {
        1 => String::new(),
        size => format!(" Two points stand for {}: the smallest and the largest value.", counted(size as u64, "row")),
    };
    let stalls = match record.stalls.as_slice() {
        [] => "",
        _ => " Shaded: times in which messages waited and none got through.",
    };
    format!("<p class=\"note\">Seconds since the load began.{stalls}{thinned}</p>")
}

fn panels(runs: PageRuns<'_>) -> Vec<TimePanel> {
    let panel = |id, title: &str, unit, of: fn(&Record) -> Vec<TimeCurve>| {
        let ghost = |curve: TimeCurve| TimeCurve { style: CurveStyle::GHOST, is_baseline: true, ..curve };
        let mut curves: Vec<TimeCurve> = runs.baseline.map(of).unwrap_or_default().into_iter().map(ghost).collect();
        curves.extend(of(runs.record));
        let own = |curve: &&TimeCurve| !curve.is_baseline;
        // Leave out a panel if all of this run's own curves are zero, because it would only take room.
        let is_used = curves.iter().filter(own).any(|curve| curve.rows.iter().any(|(_, value)| *value > 0.0));
        is_used.then(|| TimePanel { id, title: title.to_owned(), unit, curves })
    };
    let all = [
        panel("throughput", "Throughput by stage, and queue", TimeUnit::PerSecond, throughput),
        panel("latency", &latency_title(runs.record), TimeUnit::Millis, percentiles),
        panel("errors-over-time", "Errors", TimeUnit::PerSecond, errors),
        panel("cpu", "Processors used", TimeUnit::Cores, processors),
        panel("memory", "Memory", TimeUnit::Mebibytes, memory),
    ];
    all.into_iter().flatten().collect()
}

fn latency_title(record: &Record) -> String {
    let of = final_stage(record).map_or_else(String::new, |row| format!(" to {}", row.name.name()));
    format!("Latency{of}: p50, p95 and p99 of each second")
}

/// Returns a curve from the figures by second, or `None` if all its values are zero.
fn curve(record: &Record, name: &str, style: CurveStyle, read: impl Fn(&SeriesRow) -> f64) -> Option<TimeCurve> {
    let rows: Vec<(u64, f64)> = record.series.iter().map(|row| (row.second, read(row))).collect();
    let is_used = rows.iter().any(|(_, value)| *value > 0.0);
    let name = name.to_owned();
    is_used.then_some(TimeCurve { name, style, rows, is_depth: false, is_baseline: false, is_on_demand: false })
}

fn throughput(record: &Record) -> Vec<TimeCurve> {
    let step = step(&record.series) as f64;
    let style = CurveStyle::new;
    let depth = curve(record, "queued", style("queued", &[1, 3]), |row| row.queued as f64);
    let curves = [
        curve(record, "created", style("created", &[2, 2]), |row| row.created as f64 / step),
        curve(record, "sent", style("sent", &[6, 3]), |row| row.sent as f64 / step),
        curve(record, "accepted", style("accepted", &[]), |row| row.accepted as f64 / step),
        curve(record, "delivered", style("delivered", &[10, 2]), |row| row.delivered as f64 / step),
        depth.map(|curve| TimeCurve { is_depth: true, ..curve }),
    ];
    curves.into_iter().flatten().collect()
}

fn percentiles(record: &Record) -> Vec<TimeCurve> {
    // A second without messages has no latency. NaN interrupts the curve, but 0 would show a very fast second.
    let timed = |value: f64| if value > 0.0 { value } else { f64::NAN };
    let style = CurveStyle::new;
    let curves = [
        curve(record, "p50", style("delivered", &[]), |row| timed(row.p50_ms)),
        curve(record, "p95", style("accepted", &[8, 3]), |row| timed(row.p95_ms)),
        curve(record, "p99", style("sent", &[]), |row| timed(row.p99_ms)),
        curve(record, "p99.9", style("queued", &[4, 2]), |row| timed(row.p999_ms)).map(on_demand),
        curve(record, "max", style("failed", &[1, 3]), |row| timed(row.max_ms)).map(on_demand),
    ];
    curves.into_iter().flatten().collect()
}

fn on_demand(curve: TimeCurve) -> TimeCurve {
    TimeCurve { is_on_demand: true, ..curve }
}

fn errors(record: &Record) -> Vec<TimeCurve> {
    let step = step(&record.series) as f64;
    curve(record, "errors", CurveStyle::new("failed", &[]), |row| row.errors as f64 / step).into_iter().collect()
}

fn processors(record: &Record) -> Vec<TimeCurve> {
    used(record, |row| row.cores)
}

fn memory(record: &Record) -> Vec<TimeCurve> {
    used(record, |row| row.rss_bytes as f64 / MEBIBYTE)
}

/// Returns one curve for each process of the run, but at most `MAX_PARTIES` curves. A source or sink that never kept
/// `MIN_GENERATOR_CORES` busy gets no curve.
fn used(record: &Record, read: fn(&UsageRow) -> f64) -> Vec<TimeCurve> {
    const STYLES: [CurveStyle; MAX_PARTIES] = [
        CurveStyle::new("accepted", &[]),
        CurveStyle::new("delivered", &[8, 3]),
        CurveStyle::new("sent", &[3, 3]),
        CurveStyle::new("queued", &[10, 2, 2, 2]),
        CurveStyle::new("failed", &[1, 3]),
        CurveStyle::new("created", &[5, 5]),
    ];
    let of = |(party, style): (&PartyUsage, CurveStyle)| TimeCurve {
        name: party.party.clone(),
        style,
        rows: party.seconds.iter().map(|row| (row.second, read(row))).collect(),
        is_depth: false,
        is_baseline: false,
        is_on_demand: false,
    };
    let is_generator = |name: &str| record.parties.iter().any(|party| party.name == name && party.role != Role::Relay);
    let is_busy = |party: &&PartyUsage| {
        !is_generator(&party.party) || party.seconds.iter().any(|row| row.cores >= MIN_GENERATOR_CORES)
    };
    record.usage.iter().filter(is_busy).zip(STYLES).map(of).collect()
}

fn figure(record: &Record, panel: &TimePanel, axis: &TimeAxis) -> String {
    let times = axis.times();
    let rates: Vec<&TimeCurve> = panel.curves.iter().filter(|curve| !curve.is_depth && !curve.is_on_demand).collect();
    let x = time_scale(times.last().copied().unwrap_or_default());
    let mut shapes = background(record, &x);
    let y = value_scale(panel.unit, &rates);
    for curve in &rates {
        let values = axis.values(curve.rows.iter().copied());
        shapes.push_str(&plot::steps(times.iter().copied().zip(values), &x, &y, curve.style));
    }
    let names = |curves: &[&TimeCurve]| {
        let named = curves.iter().filter(|curve| !curve.is_baseline);
        let rows: Vec<(String, CurveStyle)> = named
            .map(|curve| (format!("{}: {}", curve.name, curve.summary(panel.unit, record)), curve.style))
            .collect();
        plot::legend(rows.iter().map(|(text, style)| (text.as_str(), *style)))
    };
    let mut drawings = format!("{}{}", plot::plot(&spoken(panel), HEIGHT, &x, &y, &shapes), names(&rates));
    let depths: Vec<&TimeCurve> = panel.curves.iter().filter(|curve| curve.is_depth).collect();
    if !depths.is_empty() {
        let y = value_scale(TimeUnit::Cores, &depths);
        let mut shapes = background(record, &x);
        for curve in &depths {
            let values = axis.values(curve.rows.iter().copied());
            shapes.push_str(&plot::steps(times.iter().copied().zip(values), &x, &y, curve.style));
        }
        drawings.push_str(&plot::plot("Messages in the queue over time", HEIGHT / 2, &x, &y, &shapes));
        drawings.push_str(&names(&depths));
    }
    format!(
        "<figure class=\"panel\" id=\"panel-{}\"><figcaption>{} <span>{}</span></figcaption><div class=\"drawn\">{drawings}\
         </div></figure>",
        panel.id,
        escaped(&panel.title),
        panel.unit.name()
    )
}

/// Describes the panel in words for screen readers.
fn spoken(panel: &TimePanel) -> String {
    let names: Vec<&str> =
        panel.curves.iter().filter(|curve| !curve.is_baseline).map(|curve| curve.name.as_str()).collect();
    format!("{} over time: {}", panel.title, names.join(", "))
}

fn background(record: &Record, x: &PlotScale) -> String {
    let stalls = record.stalls.iter().take(MAX_STALLS).map(|stall| plot::shade(stall.from_s, stall.to_s, x));
    let events = record.events.iter().take(MAX_EVENTS).map(|event| plot::mark(event.at_s, x));
    stalls.chain(events).collect()
}

pub(super) fn time_scale(last: f64) -> PlotScale {
    let labels = (0..=4).map(|quarter| last * f64::from(quarter) / 4.0);
    let labels = labels.map(|at| if last >= 8.0 { at.round() } else { at });
    PlotScale::labelled(0.0, last, labels.map(|at| (at, plot::clock_label(at))).collect())
}

fn value_scale(unit: TimeUnit, curves: &[&TimeCurve]) -> PlotScale {
    let values = curves.iter().flat_map(|curve| curve.rows.iter().map(|(_, value)| *value));
    if unit == TimeUnit::Millis {
        return PlotScale::log(values, plot::time_label);
    }
    PlotScale::linear(values.filter(|value| value.is_finite()).fold(0.0, f64::max), plot::number_label)
}

/// Returns a numbered list of the run's events, such as faults switched on or off, or `None` if there were no events.
/// The script marks each event in the plots with its number in this list.
pub(super) fn events(record: &Record) -> Option<PagePart> {
    let row = |event: &EventRow| {
        let at = data(event.at_s, &format!("{:.1} s", event.at_s));
        format!("<li>{at} {}</li>", isolated(&event_text(event)))
    };
    let list = |from: usize, events: &[EventRow]| {
        let rows: String = events.iter().map(row).collect();
        format!("<ol class=\"events\" start=\"{}\">{rows}</ol>", from + 1)
    };
    let events = &record.events[..record.events.len().min(MAX_EVENTS)];
    let (shown, others) = events.split_at(events.len().min(SHOWN_EVENTS));
    let others = match others.len() {
        0 => String::new(),
        number => tables::folded(&format!("{number} more"), &list(shown.len(), others)),
    };
    let more = match record.events.len().saturating_sub(MAX_EVENTS) {
        0 => String::new(),
        more => format!("<p class=\"note\">{} more in run.json.</p>", escaped(&count(more as u64))),
    };
    let body = list(0, shown) + &others + &more;
    (!shown.is_empty()).then_some(PagePart { id: "events", title: "Events", body })
}

/// Returns the text of an event. For a fault, the text in the record is only the rule for the fault, so this puts
/// `fault on:` or `fault off:` in front.
fn event_text(event: &EventRow) -> String {
    match event.kind {
        EventKind::FaultOn => format!("fault on: {}", event.text),
        EventKind::FaultOff => format!("fault off: {}", event.text),
        _ => event.text.clone(),
    }
}

fn numbers(record: &Record, panels: &[TimePanel], axis: &TimeAxis) -> String {
    let is_thin = axis.per_bucket() > 1;
    let events: Vec<Value> = record
        .events
        .iter()
        .take(MAX_EVENTS)
        .map(|event| value!({ "at": event.at_s, "text": mailrun_text::table::plain(&shortened(&event_text(event))) }))
        .collect();
    let stalls: Vec<[f64; 2]> = record.stalls.iter().take(MAX_STALLS).map(|stall| [stall.from_s, stall.to_s]).collect();
    let panels: Vec<Value> = panels.iter().map(|panel| panel_numbers(panel, record, axis, is_thin)).collect();
    json(&value!({ "x": rounded(&axis.times(), false), "events": events, "stalls": stalls, "panels": panels }))
}

fn panel_numbers(panel: &TimePanel, record: &Record, axis: &TimeAxis, is_thin: bool) -> Value {
    let is_short = is_thin || panel.unit != TimeUnit::Millis;
    let curve = |curve: &TimeCurve| {
        value!({
            "name": mailrun_text::table::plain(&shortened(&curve.name)),
            "colour": curve.style.colour,
            "dashes": curve.style.dashes,
            "depth": curve.is_depth,
            "hidden": curve.is_on_demand,
            "summary": curve.summary(panel.unit, record),
            "baseline": curve.is_baseline,
            "y": rounded(&axis.values(curve.rows.iter().copied()), is_short),
        })
    };
    let curves: Vec<Value> = panel.curves.iter().map(curve).collect();
    value!({ "id": panel.id, "title": panel.title, "unit": panel.unit.name(), "curves": curves })
}

fn shortened(text: &str) -> String {
    text.chars().take(120).collect()
}

/// Converts numbers to JSON with few characters. Whole numbers have no decimal point. If `is_short` is set, other
/// numbers are rounded to four digits or, from 1,000 on, to whole numbers.
fn rounded(values: &[f64], is_short: bool) -> Vec<Value> {
    let number = |value: &f64| match *value {
        value if !value.is_finite() => Value::Null,
        value if value.fract() == 0.0 && value.abs() < 9e15 => Value::from(value as i64),
        value if is_short && value.abs() >= 1_000.0 => Value::from(value.round() as i64),
        value if is_short && value.abs() >= 1e-9 => {
            let digits = 10_f64.powf(3.0 - value.abs().log10().floor());
            Value::from((value * digits).round() / digits)
        }
        value => Value::from(value),
    };
    values.iter().map(number).collect()
}
