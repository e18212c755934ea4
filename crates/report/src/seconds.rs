//! The section that shows the run over time, with a line of bars for each figure, such as the rate and the latency.
use super::figures::Section;
use mailrun_measurement::record::{Record, SeriesRow};
use mailrun_text::numbers::{counted, decimals_of_figures, fixed};
use mailrun_text::spark::{Fold, sparkline};
use mailrun_text::table::{Align, Table, right};

/// Returns the section that shows the run over time, with at most `room` bars in a line. Returns `None` for a run of a
/// single second.
pub(crate) fn over_time(record: &Record, room: usize) -> Option<Section> {
    let rows = record.series.as_slice();
    if rows.len() < 2 {
        return None;
    }
    let step = step(rows);
    let columns = [("", Align::Left), ("over time", Align::Left), right("min"), right("median"), right("max")];
    let mut table = Table::new(columns).leave_out(&["min", "max", "over time"]);
    for line in lines(record) {
        if line.values.iter().any(|value| *value > 0.0) {
            table.row(line.cells(room));
        }
    }
    let length = counted(rows.len() as u64 * step, "second");
    let note = match whole(record).len() {
        kept if kept < rows.len() => {
            format!("{length}; min, median and max are of whole seconds of the load")
        }
        _ => length,
    };
    Section::figures("Over time", Some(note), table)
}

struct SparklineRow {
    name: &'static str,
    values: Vec<f64>,
    /// Values from which the minimum, the median and the maximum are computed. The time after the load is left out, and
    /// so is an incomplete last second of the load, because its rate would look too low.
    full_seconds: Vec<f64>,
    fold: Fold,
}

impl SparklineRow {
    fn cells(&self, room: usize) -> Vec<String> {
        let [smallest, median, largest] = self.spread();
        let decimals = decimals_of_figures(largest.unwrap_or_default());
        let shown = |value: Option<f64>| value.map_or_else(String::new, |value| fixed(value, decimals));
        let bars = sparkline(&self.values, room, self.fold);
        vec![self.name.to_owned(), bars, shown(smallest), shown(median), shown(largest)]
    }

    fn spread(&self) -> [Option<f64>; 3] {
        let mut sorted = self.full_seconds.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied();
        [at(0), at(sorted.len() / 2), at(sorted.len().saturating_sub(1))]
    }
}

/// Returns the cells of a row that shows the rate of accepted messages: name, bars, minimum, median and maximum. If no
/// message was accepted, the row shows the rate of delivered messages.
pub(crate) fn rate_over_time(record: &Record, room: usize) -> Option<[String; 5]> {
    let lines = if record.series.len() < 2 { Vec::new() } else { lines(record) };
    let line = lines.into_iter().take(2).find(|line| line.values.iter().any(|value| *value > 0.0))?;
    line.cells(room).try_into().ok()
}

pub(crate) fn seconds_of_errors(record: &Record) -> Option<(u64, u64)> {
    let with_errors = || record.series.iter().filter(|row| row.errors > 0).map(|row| row.second);
    Some((with_errors().next()?, with_errors().next_back()?))
}

fn lines(record: &Record) -> Vec<SparklineRow> {
    let rows = record.series.as_slice();
    let step = step(rows) as f64;
    let whole = whole(record).len();
    let line = |name, fold, value: &dyn Fn(&SeriesRow) -> f64| {
        let values: Vec<f64> = rows.iter().map(value).collect();
        let counted = values[..whole].to_vec();
        SparklineRow { name, values, full_seconds: counted, fold }
    };
    // Leave out seconds without messages, because counting their missing latency as 0 would lower the median.
    let latency = |name, value: &dyn Fn(&SeriesRow) -> f64| {
        let values: Vec<f64> = rows.iter().map(value).collect();
        let counted = values[..whole].iter().copied().filter(|value| *value > 0.0).collect();
        SparklineRow { name, values, full_seconds: counted, fold: Fold::Peak }
    };
    vec![
        line("accepted/s", Fold::Mean, &|row| row.accepted as f64 / step),
        line("delivered/s", Fold::Mean, &|row| row.delivered as f64 / step),
        line("queued", Fold::Peak, &|row| row.queued as f64),
        line("errors/s", Fold::Peak, &|row| row.errors as f64 / step),
        latency("p50 ms", &|row| row.p50_ms),
        latency("p99 ms", &|row| row.p99_ms),
    ]
}

/// Returns how many seconds each row covers. This is 1, except for a long run, in which neighbouring rows were merged
/// to limit their number.
pub(crate) fn step(rows: &[SeriesRow]) -> u64 {
    let distances = rows.windows(2).map(|pair| pair[1].second.saturating_sub(pair[0].second));
    distances.min().unwrap_or(1).max(1)
}

/// Returns the number of rows up to the end of the load, which is the last second in which a message was due. If the
/// record does not say when messages were due, as in the record of a sink alone, returns the number of all rows.
pub(crate) fn load_end(record: &Record) -> usize {
    record.series.iter().rposition(|row| row.created > 0).map_or(record.series.len(), |last| last + 1)
}

/// Returns the rows of the time series up to the end of the load. Leaves out the last row if it may cover only a part
/// of a second, because it would look like a drop in the rate.
pub(crate) fn whole(record: &Record) -> &[SeriesRow] {
    let rows = &record.series[..load_end(record)];
    let (Some(first), Some((last, others))) = (rows.first(), rows.split_last()) else { return rows };
    let length_s = last.second.saturating_add(step(rows)).saturating_sub(first.second) as f64;
    let is_whole = record.offered_s.is_some_and(|offered_s| offered_s >= length_s);
    if is_whole || rows.len() < 3 { rows } else { others }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;
    use crate::figures::SectionBody;

    fn text(record: &Record) -> String {
        match over_time(record, 40).expect("the sample has it").body {
            SectionBody::Figures(table) => table.terminal(100),
            body => panic!("not a table: {body:?}"),
        }
    }

    #[test]
    fn a_part_second_at_the_end_does_not_count() {
        let text = text(&sample::held());
        let delivered = text.lines().find(|line| line.starts_with(" delivered/s")).expect("a line");
        assert!(delivered.contains("54,000") && delivered.contains("55,000"), "{text}");
        assert!(!delivered.contains("36,500"), "{text}");
        let whole = Record { offered_s: Some(4.0), ..sample::held() };
        assert!(self::text(&whole).contains("36,500"), "load was offered for four seconds");
    }

    #[test]
    fn lines_of_nothing_are_left_out() {
        let text = text(&sample::held());
        assert!(!text.contains("errors"), "{text}");
    }

    #[test]
    fn a_second_without_messages_has_no_latency() {
        let mut record = sample::held();
        (record.series[2].delivered, record.series[2].p50_ms) = (0, 0.0);
        let line = text(&record);
        let line = line.lines().find(|line| line.starts_with(" p50 ms")).expect("a line");
        assert!(line.ends_with("1.400   1.400   1.400"), "{line}");
    }

    #[test]
    fn errors_have_their_time() {
        let mut record = sample::held();
        assert_eq!(seconds_of_errors(&record), None);
        record.series.iter_mut().for_each(|row| row.second += 7);
        (record.series[1].errors, record.series[3].errors) = (4, 1);
        assert_eq!(seconds_of_errors(&record), Some((8, 10)));
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
