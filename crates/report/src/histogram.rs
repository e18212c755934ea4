//! Draws the latency distributions of a run as bars of text on a logarithmic scale.
use mailrun_measurement::record::{Record, StageRow};
use mailrun_measurement::{Latencies, Stage};
use mailrun_text::numbers::{count, counted, latency, share};
use mailrun_text::table::plain;
use mailrun_text::wrap::{display_width, wrapped};

/// Three ways to divide a decade, such as 1 ms to 10 ms: into 3, 6 or 12 bins. Each number is the end of a bin, in
/// tenths of the decade's start. In this decade, for example, 15 means 1.5 ms.
const ENDS: [&[u64]; 3] = [&[10, 20, 50], &[10, 15, 20, 30, 50, 70], &[10, 12, 15, 18, 22, 27, 33, 39, 47, 56, 68, 82]];
const WANTED_BINS: usize = 10;
const MIN_BAR: usize = 10;
/// Start of the first decade of the scale, in nanoseconds. Shorter times count in the first bin.
const FIRST_DECADE_NS: u64 = 100;
/// Number of decades on the scale. From 100 ns, eleven decades reach beyond an hour.
const DECADES: u32 = 11;

/// Number of messages whose latency is shorter than `end_ns`, but not shorter than the end of the previous bin.
struct Bin {
    end_ns: u64,
    messages: u64,
}

/// Draws a histogram of the latencies of each stage, beginning with `accepted`. Lines have at most `width` columns.
pub fn histograms(record: &Record, width: usize) -> String {
    let drawn: Vec<String> = record
        .stages
        .iter()
        .filter(|row| ![Stage::Created, Stage::Sent].contains(&row.name))
        .filter_map(|row| Some(histogram(row, &Latencies::decode(row.histogram.as_deref()?)?, width)))
        .collect();
    match drawn.is_empty() {
        true => format!("{}: the record has no distribution of latencies\n", plain(&record.name)),
        false => drawn.join("\n"),
    }
}

fn histogram(stage: &StageRow, times: &Latencies, width: usize) -> String {
    let all = times.count();
    let since = stage.since.map_or_else(String::new, |since| format!(" since {}", since.name()));
    let percentiles = [("p50", 0.5), ("p99", 0.99), ("max", 1.0)]
        .map(|(name, quantile)| format!("{name} {}", latency(times.quantile_ms(quantile))))
        .join(" · ");
    let head = format!("{}{since}: {} · {percentiles}", stage.name.name(), counted(all, "message"));
    let mut text = wrapped(&head, "", "  ", width).join("\n") + "\n";
    let bins = bins(times);
    let max_messages = bins.iter().map(|bin| bin.messages).max().unwrap_or_default().max(1);
    let rows: Vec<String> = bins
        .iter()
        .map(|bin| format!("< {:>8} {:>11} {:>8}", end_text(bin.end_ns), count(bin.messages), share(bin.messages, all)))
        .collect();
    let label = rows.iter().map(|row| display_width(row)).max().unwrap_or_default();
    let room = width.saturating_sub(label + 3).max(MIN_BAR);
    for (bin, row) in bins.iter().zip(rows) {
        let length = (bin.messages as f64 / max_messages as f64 * room as f64).ceil() as usize;
        text += format!(" {row} {}", "█".repeat(length)).trim_end();
        text.push('\n');
    }
    text
}

/// Returns the bins from the first to the last one that contains messages. Of the three widths in `ENDS`, uses the
/// widest bins that give at least ten rows. If none of them gives so many rows, uses the narrowest.
fn bins(times: &Latencies) -> Vec<Bin> {
    let choices = ENDS.map(|ends| bins_of(times, ends));
    let finest = choices.len() - 1;
    let chosen = choices.iter().position(|bins| bins.len() >= WANTED_BINS).unwrap_or(finest);
    choices.into_iter().nth(chosen).unwrap_or_default()
}

fn bins_of(times: &Latencies, ends: &[u64]) -> Vec<Bin> {
    let decades = (0..DECADES).map(|decade| FIRST_DECADE_NS * 10_u64.pow(decade) / 10);
    let ends = decades.flat_map(|decade| ends.iter().map(move |end| decade * end)).chain([u64::MAX]);
    let mut bins: Vec<Bin> = ends.map(|end_ns| Bin { end_ns, messages: 0 }).collect();
    for (value_ns, messages) in times.buckets() {
        let at = bins.partition_point(|bin| bin.end_ns <= value_ns);
        if let Some(bin) = bins.get_mut(at) {
            bin.messages += messages;
        }
    }
    let is_used = |bin: &Bin| bin.messages > 0;
    let last = bins.iter().rposition(is_used).map_or(0, |last| last + 1);
    bins.truncate(last);
    let first = bins.iter().position(is_used).unwrap_or(last);
    bins.split_off(first)
}

/// Formats the end of a bin, for example `700 µs`, `1.5 ms` or `20 s`. For the last bin, which has no end, returns
/// `any`.
fn end_text(end_ns: u64) -> String {
    match end_ns {
        u64::MAX => "any".to_owned(),
        ns if ns < 1_000_000 => format!("{} µs", ns as f64 / 1e3),
        ns if ns < 1_000_000_000 => format!("{} ms", ns as f64 / 1e6),
        ns => format!("{} s", ns as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{sample, sample_runs};
    use proptest::prelude::*;
    use std::time::Duration;

    fn recorded(microseconds: &[u64]) -> Latencies {
        let mut times = Latencies::default();
        microseconds.iter().for_each(|time| times.record(Duration::from_micros(*time)));
        times
    }

    fn shown(times: &Latencies) -> Vec<(String, u64)> {
        bins(times).iter().map(|bin| (end_text(bin.end_ns), bin.messages)).collect()
    }

    #[test]
    fn bins_are_as_coarse_as_is_enough() {
        let wide = shown(&recorded(&[150, 900, 30_000, 2_000_000]));
        assert_eq!(wide.first(), Some(&("200 µs".to_owned(), 1)));
        assert_eq!(wide.last(), Some(&("5 s".to_owned(), 1)));
        assert_eq!(wide.len(), 14, "1, 2, 5: {wide:?}");
        let narrow = shown(&recorded(&[1_100, 1_300, 1_600]));
        let expected = [("1.2 ms", 1), ("1.5 ms", 1), ("1.8 ms", 1)];
        assert_eq!(narrow, expected.map(|(end, messages)| (end.to_owned(), messages)));
        assert!(shown(&Latencies::default()).is_empty());
    }

    #[test]
    fn acceptance_and_delivery_have_a_histogram_each() {
        let text = histograms(&sample_runs::failed(), 80);
        assert!(text.starts_with("accepted since scheduled: 59,517 messages · p50 "), "{text}");
        assert!(text.contains("\ndelivered since scheduled: ") && !text.contains("sent"), "{text}");
        assert!(text.lines().all(|line| display_width(line) <= 80), "{text}");
        assert!(text.contains(" < ") && text.contains("██"), "{text}");
    }

    #[test]
    fn a_record_without_distributions_says_so() {
        assert!(histograms(&sample::held(), 80).contains("no distribution"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn no_time_is_lost(times in prop::collection::vec(0_u64..4_000_000_000, 1..200), width in 50_usize..200) {
            let times = recorded(&times);
            prop_assert_eq!(bins(&times).iter().map(|bin| bin.messages).sum::<u64>(), times.count());
            let mut record = sample_runs::second();
            record.stages[1].histogram = times.encoded();
            for line in histograms(&record, width).lines().filter(|line| line.contains('█')) {
                prop_assert!(display_width(line) <= width, "{}", line);
            }
        }
    }
}
