//! The stages in figures: the number of messages, the latencies, and the times of a session's
//! phases.
use super::numbers::latency;
use super::section::Section;
use super::table::{Align, Cell, Table, right};
use mailrun_journey::Stage;
use mailrun_journey::record::{Arrival, LatencyMs, Pipelining, Record};

const MEBIBYTE: f64 = 1_048_576.0;
/// Columns of times that a narrow terminal leaves out, the least important first.
const OPTIONAL_TIMES: [&str; 8] = ["p95", "min", "p99.9", "mean", "p90", "since", "count", "max"];

pub(crate) fn reached(record: &Record) -> Option<Section> {
    let mut table = Table::new([
        ("stage", Align::Left),
        ("seen by", Align::Left),
        right("messages"),
        right("failed"),
        right("msg/s"),
        right("MiB/s"),
        right("seconds"),
    ])
    .leave_out(&["seen by", "MiB/s", "seconds", "failed"])
    .hide_zero(&["failed", "MiB/s"]);
    for row in &record.stages {
        let bytes = if row.bytes == 0 { Cell::from("–") } else { Cell::Figure(row.bytes_per_s / MEBIBYTE) };
        table.row(vec![
            Cell::from(row.name.name()),
            Cell::from(row.party.clone()),
            Cell::Count(row.count),
            Cell::Count(row.failed),
            Cell::Figure(row.rate_per_s),
            bytes,
            Cell::Figure(row.duration_s),
        ]);
    }
    let note = Some("from the first message created to the last that reached the stage".to_owned());
    Section::figures("Stages", note, table)
}

pub(crate) fn latencies(record: &Record) -> Option<Section> {
    let mut table = timed(&[("stage", Align::Left), ("since", Align::Left)]);
    for row in &record.stages {
        if let (Some(times), Some(since)) = (row.latency_ms, row.since) {
            let names = [Cell::from(row.name.name()), Cell::from(since.name())];
            table.row(names.into_iter().chain(time_cells(&times)).collect());
        }
        if let Some(times) = row.service_ms {
            let names = [Cell::from(format!("{} (service)", row.name.name())), Cell::from(Stage::Created.name())];
            table.row(names.into_iter().chain(time_cells(&times)).collect());
        }
    }
    if let Some(lag) = record.lag_ms {
        let names = [Cell::from("source's lag"), Cell::from(Stage::Scheduled.name())];
        table.row(names.into_iter().chain(time_cells(&lag)).collect());
    }
    let note = match record.workload.arrival {
        Arrival::Closed => {
            "in ms; closed loop: each session waits for its reply, so a stall shows up in only one message per session"
        }
        Arrival::Constant | Arrival::Poisson | Arrival::Market => {
            "in ms; open loop: counted from when the message was due, even if no session was free then"
        }
    };
    let note = Some(std::iter::once(note.to_owned()).chain(wake_ups(record)).collect::<Vec<_>>().join("; "));
    Section::figures("Latency", note, table)
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
        table.row(names.into_iter().chain(time_cells(&row.latency_ms)).collect());
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

/// Returns a table of times. A narrow terminal shows the median and the 99th percentile at least.
pub(super) fn timed(names: &[(&'static str, Align)]) -> Table {
    let times = ["min", "mean", "p50", "p90", "p95", "p99", "p99.9", "max"].map(right);
    Table::new([names, &times].concat()).leave_out(&OPTIONAL_TIMES)
}

pub(super) fn time_cells(times: &LatencyMs) -> [Cell; 8] {
    [times.min, times.mean, times.p50, times.p90, times.p95, times.p99, times.p999, times.max].map(Cell::Millis)
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::super::section::SectionBody;
    use super::*;

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
