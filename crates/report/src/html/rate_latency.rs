//! Draws latency against the offered rate, for loads that change their rate. Each point is one second or, in a long
//! run, a few seconds. If the server comes close to its limit, the points rise steeply.
use super::plot::{self, PlotScale};
use super::tables;
use super::tables::{PagePart, PageRuns};
use crate::seconds::{step, whole};
use mailrun_measurement::record::{Arrival, Record, SeriesRow};
use mailrun_text::numbers::counted;
use mailrun_text::table::{Align, Cell, Table, right};

const HEIGHT: u32 = 240;
/// Minimum number of points for a plot. Fewer points show no relation between rate and latency.
const MIN_POINTS: usize = 3;
const RANGES: usize = 4;

/// Returns a plot and a table of latency by offered rate. Each point of the plot is one second, with its rate and the
/// 99th percentile of its latencies. The table sums up these percentiles for each range of rates. Returns `None` if
/// there are too few seconds, or if the load had a single rate.
pub(super) fn part(runs: PageRuns<'_>) -> Option<PagePart> {
    let own = points(runs.record);
    if own.len() < MIN_POINTS || !is_varied(runs.record) {
        return None;
    }
    let ghosts = runs.baseline.map(points).unwrap_or_default();
    let all = || own.iter().chain(&ghosts);
    let x = PlotScale::linear(all().map(|(rate, _)| *rate).fold(0.0, f64::max), plot::number_label);
    let y = PlotScale::log(all().map(|(_, ms)| *ms), plot::time_label);
    let mut shapes = plot::dots(ghosts.iter().copied(), &x, &y, "ghost");
    shapes.push_str(&plot::dots(own.iter().copied(), &x, &y, "accepted"));
    let (rate, _) = offered(runs.record);
    let label = format!("99th percentile of each second against {rate} per second; the table below has the medians");
    let table = ranges(&own);
    let body = format!(
        "<figure class=\"panel\"><figcaption>p99 of each second <span>against messages {rate} per second</span></figcaption>\
         {}</figure>{}<p class=\"note\">{}, without a part second at the end.</p>",
        plot::plot(&label, HEIGHT, &x, &y, &shapes),
        tables::table("Latency by range of the offered rate", &table, None, None),
        counted(own.len() as u64, "second")
    );
    Some(PagePart { id: "rate", title: "Latency against offered rate", body })
}

/// Returns true if the offered rate changes. With a single rate, all points would lie on a vertical line.
fn is_varied(record: &Record) -> bool {
    let stages = &record.workload.stages;
    let rates = stages.iter().flat_map(|stage| [stage.from_per_s, stage.to_per_s]);
    let has_several = rates.clone().any(|rate| Some(rate) != rates.clone().next());
    has_several || record.workload.arrival == Arrival::Market
}

/// Chooses the messages from which the offered rate is computed: created messages or, in an older record that does not
/// count them, sent messages. Returns the word `created` or `sent`, and a function that reads the number of these
/// messages from a row.
fn offered(record: &Record) -> (&'static str, fn(&SeriesRow) -> u64) {
    let created: fn(&SeriesRow) -> u64 = |row| row.created;
    let sent: fn(&SeriesRow) -> u64 = |row| row.sent;
    if record.series.iter().any(|row| row.created > 0) { ("created", created) } else { ("sent", sent) }
}

/// Returns the rate and the 99th percentile of latency for each complete second in which both are known.
fn points(record: &Record) -> Vec<(f64, f64)> {
    let (_, read) = offered(record);
    let step = step(&record.series) as f64;
    let rows = whole(record).iter();
    let points = rows.map(|row| (read(row) as f64 / step, row.p99_ms));
    points.filter(|(rate, ms)| *rate > 0.0 && *ms > 0.0 && ms.is_finite()).collect()
}

/// Sorts the seconds by their rate and divides them into four quarters. Each second has a 99th percentile of its
/// latencies. For each quarter, the table shows the median and the maximum of these percentiles.
fn ranges(points: &[(f64, f64)]) -> Table {
    let mut table = Table::new([
        ("seconds", Align::Left),
        right("count"),
        right("lowest rate"),
        right("highest rate"),
        right("median p99 ms"),
        right("largest p99 ms"),
    ]);
    let names = ["lowest quarter", "second quarter", "third quarter", "highest quarter"];
    let mut sorted = points.to_vec();
    sorted.sort_by(|one, other| one.0.total_cmp(&other.0));
    let size = sorted.len().div_ceil(RANGES).max(1);
    for (name, seconds) in names.into_iter().zip(sorted.chunks(size)) {
        let mut times: Vec<f64> = seconds.iter().map(|(_, ms)| *ms).collect();
        times.sort_by(f64::total_cmp);
        let cells = [
            Cell::from(name),
            Cell::Count(seconds.len() as u64),
            Cell::Figure(seconds[0].0),
            Cell::Figure(seconds[seconds.len() - 1].0),
            Cell::Millis(times[times.len() / 2]),
            Cell::Millis(times[times.len() - 1]),
        ];
        table.row(cells.to_vec());
    }
    table
}
