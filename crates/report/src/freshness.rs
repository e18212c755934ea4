//! A table of the time windows for which freshness thresholds are judged. For each window, it shows for which share of
//! the time mail was fresh. Mail is fresh while the newest message that has arrived is not older than the threshold
//! allows. If there are many windows, only the worst are shown.
use super::figures::Section;
use mailrun_measurement::record::{FreshWindow, Record, ThresholdRow};
use mailrun_text::numbers::counted;
use mailrun_text::table::{Align, Cell, Table, plain, right};

const MAX_WINDOWS: usize = 24;

pub(crate) fn windows(record: &Record) -> Option<Section> {
    let columns = [
        ("threshold", Align::Wrapped),
        right("from s"),
        right("to s"),
        right("due"),
        right("delivered"),
        right("slowest ms"),
        right("oldest s"),
        right("fresh %"),
    ];
    let mut table = Table::new(columns).leave_out(&["slowest ms", "delivered", "to s", "threshold"]);
    let mut left_out = 0;
    for threshold in &record.thresholds {
        let shown = worst(&threshold.windows);
        left_out += threshold.windows.len() - shown.len();
        shown.into_iter().for_each(|window| table.row(cells(threshold, window)));
    }
    let text = "the newest message that had arrived was younger than the limit; seconds since the load began";
    let note = if left_out > 0 {
        format!("{text}; the worst windows, without {}", counted(left_out as u64, "other"))
    } else {
        text.to_owned()
    };
    Section::figures("Freshness by window", Some(note), table)
}

/// Returns the windows in which mail was fresh for the smallest share of the time, at most `MAX_WINDOWS` of them,
/// sorted by time.
fn worst(windows: &[FreshWindow]) -> Vec<&FreshWindow> {
    let mut worst: Vec<&FreshWindow> = windows.iter().collect();
    worst.sort_by(|one, other| one.fresh_percent.total_cmp(&other.fresh_percent));
    worst.truncate(MAX_WINDOWS);
    worst.sort_by(|one, other| one.from_s.total_cmp(&other.from_s));
    worst
}

fn cells(threshold: &ThresholdRow, window: &FreshWindow) -> Vec<Cell> {
    vec![
        Cell::from(plain(&threshold.expression)),
        Cell::Figure(window.from_s),
        Cell::Figure(window.to_s),
        Cell::Count(window.created),
        Cell::Count(window.delivered),
        Cell::Figure(window.max_ms),
        Cell::Figure(window.oldest_ms / 1e3),
        Cell::Number(window.fresh_percent, format!("{:.2}", window.fresh_percent)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn the_worst_windows_are_shown_in_the_order_of_time() {
        let window = |at: u32| FreshWindow {
            from_s: f64::from(at),
            to_s: f64::from(at) + 1.0,
            fresh_percent: if at == 7 || at == 90 { 12.345 } else { 99.0 },
            ..FreshWindow::default()
        };
        let windows: Vec<FreshWindow> = (0..100).map(window).collect();
        let shown = worst(&windows);
        assert_eq!(shown.len(), MAX_WINDOWS);
        assert!(shown.is_sorted_by(|one, other| one.from_s < other.from_s));
        assert_eq!(shown.iter().filter(|window| window.fresh_percent < 50.0).count(), 2);
        let mut record = sample::held();
        assert!(super::windows(&record).is_none(), "no threshold, no section");
        record.thresholds =
            vec![ThresholdRow { expression: "fresh(1s) per 1s >= 98%".to_owned(), windows, ..ThresholdRow::default() }];
        let note = super::windows(&record).and_then(|section| section.note).unwrap_or_default();
        assert!(note.contains("without 76 others"), "{note}");
    }
}
