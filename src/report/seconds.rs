//! How the run went over time: a line of bars for each figure.
use super::numbers::{counted, figure};
use super::section::{Body, Section};
use super::spark::{Fold, sparkline};
use super::table::{Align, Table};
use journey::record::{Record, SeriesRow};

/// The course of the run, second by second, with at most `room` bars a line.
pub(crate) fn course(record: &Record, room: usize) -> Option<Section> {
    let rows = record.series.as_slice();
    if rows.len() < 2 {
        return None;
    }
    let step = step(rows);
    let mut table = Table::new([
        ("", Align::Left),
        ("over time", Align::Left),
        ("min", Align::Right),
        ("median", Align::Right),
        ("max", Align::Right),
    ]);
    for line in lines(rows, step as f64) {
        if line.values.iter().any(|value| *value > 0.0) {
            table.row(line.cells(room));
        }
    }
    let length = counted(rows.len() as u64 * step, "second");
    let note = match whole(rows).len() {
        kept if kept < rows.len() => {
            format!("{length}; min, median and max leave out the first and the last, which are part seconds")
        }
        _ => length,
    };
    (!table.is_empty()).then_some(Section { title: "Each second", note: Some(note), body: Body::Figures(table) })
}

/// A figure over time.
struct Line {
    name: &'static str,
    values: Vec<f64>,
    fold: Fold,
}

impl Line {
    fn cells(&self, room: usize) -> Vec<String> {
        let mut sorted = whole(&self.values).to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().map_or_else(String::new, figure);
        let bars = sparkline(&self.values, room, self.fold);
        vec![self.name.to_owned(), bars, at(0), at(sorted.len() / 2), at(sorted.len().saturating_sub(1))]
    }
}

fn lines(rows: &[SeriesRow], step: f64) -> Vec<Line> {
    let line = |name, fold, value: &dyn Fn(&SeriesRow) -> f64| {
        let values = rows.iter().map(value).collect();
        Line { name, values, fold }
    };
    vec![
        line("accepted/s", Fold::Mean, &|row| row.accepted as f64 / step),
        line("delivered/s", Fold::Mean, &|row| row.delivered as f64 / step),
        line("queued", Fold::Peak, &|row| row.queued as f64),
        line("errors/s", Fold::Peak, &|row| row.errors as f64 / step),
        line("p50 ms", Fold::Peak, &|row| row.p50_ms),
        line("p99 ms", Fold::Peak, &|row| row.p99_ms),
    ]
}

/// Seconds that a row stands for: 1, or more after the resolution of a very long run was halved.
fn step(rows: &[SeriesRow]) -> u64 {
    let apart = rows.windows(2).map(|pair| pair[1].second.saturating_sub(pair[0].second));
    apart.min().unwrap_or(1).max(1)
}

/// Without the part seconds at both ends, where that leaves anything to say.
fn whole<T>(rows: &[T]) -> &[T] {
    match rows.len() {
        0..3 => rows,
        length => &rows[1..length - 1],
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    fn text(record: &Record) -> String {
        match course(record, 40).expect("the sample has it").body {
            Body::Figures(table) => table.terminal(100),
            body => panic!("not a table: {body:?}"),
        }
    }

    #[test]
    fn part_seconds_do_not_count() {
        let text = text(&sample::held());
        let delivered = text.lines().find(|line| line.starts_with(" delivered/s")).expect("a line");
        assert!(delivered.contains("54,000") && delivered.contains("55,000"), "{text}");
        assert!(!delivered.contains("20,000"), "{text}");
    }

    #[test]
    fn lines_of_nothing_are_left_out() {
        let text = text(&sample::held());
        assert!(!text.contains("errors"), "{text}");
    }

    #[test]
    fn a_stall_shows_as_no_bar() {
        let mut record = sample::held();
        record.series[2].delivered = 0;
        let text = text(&record);
        let delivered = text.lines().find(|line| line.starts_with(" delivered/s")).expect("a line");
        assert!(delivered.contains('▁'), "{text}");
    }

    #[test]
    fn halved_resolution_is_still_a_rate() {
        let mut record = sample::held();
        for (index, row) in record.series.iter_mut().enumerate() {
            row.second = index as u64 * 2;
        }
        let text = text(&record);
        assert!(text.contains("27,000"), "{text}");
    }
}
