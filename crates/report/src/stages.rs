//! The stages in figures: how many messages reached each stage, the latencies, and the times of a session's phases.
use super::figures::Section;
use mailrun_measurement::Stage;
use mailrun_measurement::record::{Arrival, LatencyMs, Pipelining, Record, stage_named};
use mailrun_text::numbers::{count, counted, figure, latency};
use mailrun_text::table::{Align, Cell, Table, plain, right};

const MEBIBYTE: f64 = 1_048_576.0;
/// Columns that are left out one by one if the terminal is too narrow, in this order: the least important column first.
const OPTIONAL_TIMES: [&str; 8] = ["p95", "min", "p99.9", "mean", "p90", "since", "count", "max"];

pub(crate) fn reached(record: &Record) -> Option<Section> {
    let mut table = Table::new([
        ("stage", Align::Left),
        ("seen by", Align::Left),
        right("messages"),
        right("failed"),
        right("missing"),
        right("duplicates"),
        right("late"),
        right("msg/s"),
        right("MiB/s"),
        right("seconds"),
    ])
    .leave_out(&["seen by", "MiB/s", "seconds", "late", "duplicates", "missing", "failed"])
    .hide_zero(&["failed", "missing", "duplicates", "late", "MiB/s"]);
    let unknown = || Cell::from("–");
    for row in &record.stages {
        let bytes_per_s = row.bytes_per_s().filter(|_| row.bytes > 0);
        let mut cells = vec![Cell::from(row.name.name()), Cell::from(row.party.clone())];
        cells.extend([row.count, row.failed, row.missing, row.duplicates, row.late].map(Cell::Count));
        cells.push(row.rate_per_s.map_or_else(unknown, Cell::Figure));
        cells.push(bytes_per_s.map_or_else(unknown, |bytes| Cell::Figure(bytes / MEBIBYTE)));
        cells.push(Cell::Figure(row.duration_s));
        table.row(cells);
    }
    let note = "msg/s: from the first arrival until 95 % had arrived or the last message was due; seconds: from the first \
                message created to the last arrival";
    Section::figures("Stages", Some(note.to_owned()), table)
}

pub(crate) fn latencies(record: &Record) -> Option<Section> {
    let mut table = timed(&[("stage", Align::Left), ("since", Align::Left)]);
    let mut row = |name: &str, since: Stage, times: Option<LatencyMs>, beyond_ms: Option<f64>| {
        let Some(times) = times else { return };
        let names = [Cell::from(name), Cell::from(since.name())];
        table.row(names.into_iter().chain(time_cells(&times, beyond_ms)).collect());
    };
    for stage in &record.stages {
        let name = stage.name.name();
        row(name, stage.since.unwrap_or(Stage::Created), stage.latency_ms, stage.beyond_ms);
        row(&format!("{name} (service)"), Stage::Created, stage.service_ms, None);
    }
    let back = record.mades.as_ref().and_then(|mades| mades.acknowledgements.as_ref());
    row(Stage::Acknowledged.name(), Stage::Inbox, back.and_then(|back| back.way_back_ms), None);
    let lag = if record.mades.is_some() { "the bench's lag" } else { "source's lag" };
    row(lag, Stage::Scheduled, record.lag_ms, None);
    let note = match (record.workload.arrival, &record.mades) {
        (Arrival::Closed, None) => {
            "in ms; closed loop: each session waits for its reply, so a stall shows up in only one message per session"
        }
        (Arrival::Closed, Some(_)) => "in ms; closed loop: a new message waits for one that is done",
        _ => "in ms; open loop: counted from when the message was due, even if there was no room for it then",
    };
    let never = record.stages.iter().any(|row| row.beyond_ms.is_some());
    let never = never.then(|| "messages that never came count as longer than any".to_owned());
    let notes = std::iter::once(note.to_owned()).chain(never).chain(wake_ups(record));
    let note = Some(notes.collect::<Vec<_>>().join("; "));
    Section::figures("Latency", note, table)
}

/// Returns the section on the stages of the load. It shows how many messages of each stage were accepted and delivered,
/// how many failed or are missing, and the latencies.
pub(crate) fn of_load(record: &Record) -> Option<Section> {
    let mut table = timed(&[
        ("stage of the load", Align::Left),
        ("reached", Align::Left),
        right("messages"),
        right("failed"),
        right("missing"),
        right("msg/s"),
    ])
    .hide_zero(&["failed", "missing"]);
    for load_stage in &record.load_stages {
        let shown =
            [Stage::Accepted, Stage::Delivered].into_iter().filter_map(|name| stage_named(&load_stage.stages, name));
        for row in shown {
            let counts = [row.count, row.failed, row.missing].map(Cell::Count);
            let rate = row.rate_per_s.map_or_else(|| Cell::from("–"), Cell::Figure);
            let times = row.latency_ms.map(|times| time_cells(&times, row.beyond_ms));
            let times = times.map_or_else(|| vec![Cell::from("–"); 8], |times| times.to_vec());
            // Write the name of the load stage into both of its rows. The HTML page compares each row with the
            // baseline's row that has the same first two columns.
            let names = [Cell::from(plain(&load_stage.name)), Cell::from(row.name.name())];
            table.row(names.into_iter().chain(counts).chain([rate]).chain(times).collect());
        }
    }
    let others = record.workload.stages.len().saturating_sub(record.load_stages.len()) as u64;
    let others = (others > 0).then(|| format!("; without figures of their own: {} more", counted(others, "stage")));
    let note = "in ms; a message belongs to the stage in which it was due, however late it was sent";
    let note = format!("{note}{}", others.unwrap_or_default());
    Section::figures("Stages of the load", Some(note), table)
}

fn wake_ups(record: &Record) -> Option<String> {
    let delays = record.parties.iter().find_map(|party| party.wake_up_ms)?;
    let [p50, p99] = [delays.p50, delays.p99].map(latency);
    Some(format!(
        "the source's workers woke {p50} (p50), {p99} (p99) after their timers, and latencies include such delays"
    ))
}

pub(crate) fn phases(record: &Record) -> Option<Section> {
    let mut table = timed(&[("phase", Align::Left), right("count")]);
    for row in &record.phases {
        let names = [Cell::from(row.name.name()), Cell::Count(row.count)];
        table.row(names.into_iter().chain(time_cells(&row.latency_ms, None)).collect());
    }
    let note = match record.workload.pipelining {
        Pipelining::Off => "in ms, as the source saw them",
        Pipelining::Group | Pipelining::Stream => {
            "in ms, as the source saw them; pipelined commands share a write, so their times overlap"
        }
    };
    let note = Some(note.to_owned());
    Section::figures("Phases", note, table)
}

/// Returns an empty table with these columns and a column for each statistic of the latencies. Of the statistics, only
/// the median and the 99th percentile remain on the narrowest terminal.
pub(super) fn timed(names: &[(&'static str, Align)]) -> Table {
    let times = ["min", "mean", "p50", "p90", "p95", "p99", "p99.9", "max"].map(right);
    Table::new([names, &times].concat()).leave_out(&OPTIONAL_TIMES)
}

/// Returns a cell for each statistic. If too many messages never arrived, a percentile is infinite. Its cell then shows
/// a lower bound in milliseconds, such as `> 3,000`.
fn time_cells(times: &LatencyMs, beyond_ms: Option<f64>) -> [Cell; 8] {
    [times.min, times.mean, times.p50, times.p90, times.p95, times.p99, times.p999, times.max]
        .map(|ms| time_cell(ms, beyond_ms))
}

pub(super) fn time_cell(ms: f64, beyond_ms: Option<f64>) -> Cell {
    match beyond_ms.filter(|_| ms == f64::INFINITY) {
        Some(bound) if bound >= 1.0 => Cell::from(format!("> {}", count(bound as u64))),
        Some(bound) if bound > 0.0 => Cell::from(format!("> {}", figure(bound))),
        Some(_) => Cell::from("never"),
        None => Cell::Millis(ms),
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;
    use crate::figures::SectionBody;
    use mailrun_measurement::record::{LoadStageRow, OfferedStage};

    fn text(section: Option<Section>) -> String {
        match section.expect("the sample has it").body {
            SectionBody::Figures(table) => table.terminal(100),
            body => panic!("not a table: {body:?}"),
        }
    }

    #[test]
    fn each_stage_has_its_count_and_rate() {
        let text = text(reached(&sample::held()));
        assert_eq!(text.lines().count(), 2 + 3, "{text}");
        for word in ["sent", "accepted", "delivered", "200,000", "54,321", "20.72", "3.684"] {
            assert!(text.contains(word), "{word} in\n{text}");
        }
    }

    #[test]
    fn each_latency_says_what_it_counts_from() {
        let text = text(latencies(&sample::held()));
        for word in ["since", "created", "p99.9", "1.420", "3.100", "12.500"] {
            assert!(text.contains(word), "{word} in\n{text}");
        }
    }

    #[test]
    fn the_note_has_the_delay_of_the_source_itself() {
        let mut record = sample::held();
        let note = |record: &Record| latencies(record).and_then(|section| section.note).expect("a note");
        assert!(!note(&record).contains("woke"));
        let delays = LatencyMs { p50: 0.058, p99: 1.2, ..LatencyMs::default() };
        record.parties[0].wake_up_ms = Some(delays);
        assert!(note(&record).contains("the source's workers woke 58 µs (p50), 1.20 ms (p99) after their timers"));
    }

    #[test]
    fn each_stage_of_the_load_has_its_rows() {
        let mut record = sample::held();
        assert!(of_load(&record).is_none());
        let stage = |number, name: &str| LoadStageRow {
            number,
            name: name.to_owned(),
            stages: sample::held().stages,
            ..LoadStageRow::default()
        };
        record.load_stages = vec![stage(1, "ramp"), stage(2, "<peak>")];
        record.workload.stages = vec![OfferedStage::default(); 4];
        let section = of_load(&record).expect("a section");
        assert!(section.note.is_some_and(|note| note.ends_with("without figures of their own: 2 stages more")));
        for text in [crate::markdown(&record), crate::page(&record, None)] {
            assert!(text.contains("Stages of the load") && text.contains("ramp") && !text.contains("<peak>"), "{text}");
        }
        let short = crate::render(&record, crate::ReportLength::Short, 80, crate::TextStyle::Plain, None);
        assert!(short.contains(" ramp "), "{short}");
        record.load_stages[1].stages.iter_mut().for_each(|row| row.count *= 2);
        let compared = crate::page(&record, Some(&record));
        assert!(!compared.contains(">2.00×<"), "each row is compared with the row of the same load stage: {compared}");
    }

    #[test]
    fn loops_are_told_apart() {
        let mut record = sample::held();
        let note = |record: &Record| latencies(record).and_then(|section| section.note).expect("a note");
        assert!(note(&record).contains("closed loop"));
        record.workload.arrival = Arrival::Poisson;
        assert!(note(&record).contains("open loop"));
    }

    #[test]
    fn untraced_stages_have_no_latency() {
        let mut record = sample::held();
        for row in &mut record.stages {
            row.latency_ms = None;
            row.since = None;
        }
        assert!(latencies(&record).is_none());
    }
}
