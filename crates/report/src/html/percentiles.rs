//! Draws latency by percentile on logarithmic scales. All stages are in one plot, each with a curve of its latency and
//! a curve of its service time, which is the latency without the wait for a free session.
use super::plot::{self, CurveStyle, PlotScale};
use super::tables;
use super::tables::{PagePart, PageRuns};
use crate::stages;
use mailrun_measurement::Latencies;
use mailrun_measurement::record::{LatencyMs, Record};

/// The percentile axis ends at this number of nines: five nines are 99.999 %.
const MAX_NINES: f64 = 5.0;
const HEIGHT: u32 = 280;

/// Curve of latencies by percentile. Each point is a position on the percentile axis and a latency in milliseconds.
pub(super) struct PercentileCurve {
    pub(super) name: String,
    pub(super) style: CurveStyle,
    pub(super) points: Vec<(f64, f64)>,
}

/// Returns the table of latencies, and the plot of all percentiles, which is collapsed. Returns `None` if no latency is
/// known.
pub(super) fn part(runs: PageRuns<'_>) -> Option<PagePart> {
    let (own, other) = runs.both(stages::latencies)?;
    let table = tables::section(&own, other.as_ref(), None);
    let drawing = drawing(runs).map_or_else(String::new, |figure| tables::folded("All percentiles as curves", &figure));
    Some(PagePart { id: "percentiles", title: "Latency by stage", body: table + &drawing })
}

fn drawing(runs: PageRuns<'_>) -> Option<String> {
    let own = curves(runs.record);
    if own.is_empty() {
        return None;
    }
    let mut shown: Vec<PercentileCurve> = runs.baseline.map(curves).unwrap_or_default();
    shown.iter_mut().for_each(|ghost| ghost.style = CurveStyle::GHOST);
    let names: Vec<&str> = own.iter().map(|curve| curve.name.as_str()).collect();
    let label =
        format!("Latency by percentile, both scales logarithmic: {}. The table has the figures.", names.join(", "));
    let legend = plot::legend(own.iter().map(|curve| (curve.name.as_str(), curve.style)));
    shown.extend(own);
    Some(figure(&label, &shown, &legend))
}

/// Draws the curves in one plot. The first curve lies behind the others, because it is drawn first.
pub(super) fn figure(label: &str, curves: &[PercentileCurve], legend: &str) -> String {
    let all = || curves.iter().flat_map(|curve| curve.points.iter());
    let y = PlotScale::log(all().map(|(_, ms)| *ms), plot::time_label);
    let max = all().map(|(at, _)| *at).fold(2.0, f64::max);
    let labels = [(0.5, "p50"), (0.9, "p90"), (0.99, "p99"), (0.999, "p99.9"), (0.9999, "p99.99")];
    let labels = labels.into_iter().map(|(share, text)| (nines(share), text.to_owned()));
    let x = PlotScale::labelled(0.0, max, labels.filter(|(at, _)| *at <= max + 1e-6).collect());
    let draw = |curve: &PercentileCurve| plot::curve(curve.points.iter().copied(), &x, &y, curve.style);
    let shapes: String = curves.iter().map(draw).collect();
    format!("<figure class=\"panel\">{}{legend}</figure>", plot::plot(label, HEIGHT, &x, &y, &shapes))
}

fn curves(record: &Record) -> Vec<PercentileCurve> {
    const STYLES: [CurveStyle; 8] = [
        CurveStyle::new("sent", &[6, 3]),
        CurveStyle::new("accepted", &[]),
        CurveStyle::new("delivered", &[10, 2]),
        CurveStyle::new("queued", &[3, 3]),
        CurveStyle::new("failed", &[8, 2, 2, 2]),
        CurveStyle::new("created", &[2, 2]),
        CurveStyle::new("accepted", &[1, 3]),
        CurveStyle::new("delivered", &[4, 4]),
    ];
    let mut curves = Vec::new();
    let mut add = |name: String, times: Option<LatencyMs>, histogram: Option<&String>, count: u64| {
        if let Some(times) = times {
            let style = STYLES[curves.len() % STYLES.len()];
            curves.push(PercentileCurve { name, style, points: points(&times, histogram, count) });
        }
    };
    for row in &record.stages {
        add(row.name.name().to_owned(), row.latency_ms, row.histogram.as_ref(), row.count);
        let service = format!("{} (service)", row.name.name());
        add(service, row.service_ms, row.service_histogram.as_ref(), row.count);
    }
    curves
}

/// Returns the points of a stage's latency curve. They are computed from the histogram or, if the record has none, from
/// the few percentiles in `times`.
fn points(times: &LatencyMs, histogram: Option<&String>, count: u64) -> Vec<(f64, f64)> {
    let end = last_place(count);
    let mut points = match histogram.and_then(|text| Latencies::decode(text)).filter(|times| times.count() > 0) {
        Some(all) => histogram_points(&all, end),
        None => {
            let known = [(0.0, times.min), (0.5, times.p50), (0.9, times.p90), (0.95, times.p95), (0.99, times.p99)];
            let known = known.into_iter().chain([(0.999, times.p999)]);
            known.map(|(share, ms)| (nines(share), ms)).filter(|(at, _)| *at < end).collect()
        }
    };
    points.push((end, times.max));
    points.retain(|(_, ms)| *ms > 0.0 && ms.is_finite());
    points
}

/// Returns the points of the curve that shows the latencies of a histogram. The points are at equal distances on the
/// percentile axis, up to the position `end`.
pub(super) fn histogram_points(all: &Latencies, end: f64) -> Vec<(f64, f64)> {
    let places = (0..).map(|at| f64::from(at) * 0.05).take_while(|at| *at < end);
    places.map(|at| (at, all.quantile_ms(1.0 - 10_f64.powf(-at)))).collect()
}

/// Returns the position on the percentile axis at which the curve of `count` messages ends, because higher percentiles
/// need more messages. For example, the curve of 1,000 messages ends at 99.9 %, which is position 3.
pub(super) fn last_place(count: u64) -> f64 {
    (count.max(2) as f64).log10().min(MAX_NINES)
}

/// Returns the position of a percentile on the axis, which is its number of nines. For example, 0.9 is at position 1,
/// and 0.99 at position 2.
fn nines(share: f64) -> f64 {
    -(1.0 - share).log10()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_histogram_gives_more_points_than_its_summary() {
        let mut all = Latencies::default();
        (1..=10_000).for_each(|at| all.record(Duration::from_micros(at)));
        let times = all.summary().expect("10,000 times");
        let text = all.encoded();
        let fine = points(&times, text.as_ref(), 10_000);
        assert!(fine.len() > 70 && fine.iter().any(|(at, ms)| (*at - 2.0).abs() < 0.01 && (*ms - 9.9).abs() < 0.1));
        assert!(fine.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{fine:?}");
        let coarse = points(&times, None, 10_000);
        assert_eq!(coarse.len(), 7);
        assert_eq!(points(&times, Some(&"no histogram".to_owned()), 10_000).len(), 7);
    }
}
