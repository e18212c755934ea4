//! The journey in figures: how many reached each stage, how long it took them, and where a session's time went.
use super::numbers::{count, figure, megabytes, rate, seconds};
use super::section::{Body, Section};
use super::table::{Align, Table};
use journey::Stage;
use journey::record::{Arrival, LatencyMs, Pipelining, Record};

/// How many messages reached each stage and how fast.
pub(crate) fn reached(record: &Record) -> Option<Section> {
    let mut table = Table::new([
        ("stage", Align::Left),
        ("seen by", Align::Left),
        ("messages", Align::Right),
        ("failed", Align::Right),
        ("msg/s", Align::Right),
        ("MB/s", Align::Right),
        ("over", Align::Right),
    ]);
    for row in &record.stages {
        table.row(vec![
            row.name.name().to_owned(),
            row.party.clone(),
            count(row.count),
            count(row.failed),
            rate(row.rate_per_s),
            megabytes(row.bytes_per_s),
            seconds(row.duration_s),
        ]);
    }
    let note = Some("from the first message created to the last that reached the stage".to_owned());
    (!table.is_empty()).then_some(Section { title: "Stages", note, body: Body::Figures(table) })
}

/// How long messages took to each stage.
pub(crate) fn latencies(record: &Record) -> Option<Section> {
    let mut table = Table::new(timed([("stage", Align::Left), ("since", Align::Left)]));
    for row in &record.stages {
        if let (Some(times), Some(since)) = (row.latency_ms, row.since) {
            let names = vec![row.name.name().to_owned(), since.name().to_owned()];
            table.row(names.into_iter().chain(cells(&times)).collect());
        }
    }
    if let Some(lag) = record.lag_ms {
        let names = vec!["source's lag".to_owned(), Stage::Scheduled.name().to_owned()];
        table.row(names.into_iter().chain(cells(&lag)).collect());
    }
    let note = match record.workload.arrival {
        Arrival::Closed => "in ms; closed loop: the load waits for the server, so a stall costs a message a session",
        Arrival::Constant | Arrival::Poisson => {
            "in ms; open loop: counted from when the message was due, whether or not a session was free"
        }
    };
    let note = Some(note.to_owned());
    (!table.is_empty()).then_some(Section { title: "Latency", note, body: Body::Figures(table) })
}

/// How long each phase of the dialogue took.
pub(crate) fn phases(record: &Record) -> Option<Section> {
    let mut table = Table::new(timed([("phase", Align::Left), ("count", Align::Right)]));
    for row in &record.phases {
        let names = vec![row.name.name().to_owned(), count(row.count)];
        table.row(names.into_iter().chain(cells(&row.latency_ms)).collect());
    }
    let note = match record.workload.pipelining {
        Pipelining::Off => "in ms, as the source saw them",
        Pipelining::Group | Pipelining::Stream => {
            "in ms, as the source saw them; pipelined commands share a write, so their times overlap"
        }
    };
    let note = Some(note.to_owned());
    (!table.is_empty()).then_some(Section { title: "Phases", note, body: Body::Figures(table) })
}

fn timed(names: [(&'static str, Align); 2]) -> [(&'static str, Align); 10] {
    let [first, second] = names;
    let right = |title| (title, Align::Right);
    [
        first,
        second,
        right("min"),
        right("mean"),
        right("p50"),
        right("p90"),
        right("p95"),
        right("p99"),
        right("p99.9"),
        right("max"),
    ]
}

fn cells(times: &LatencyMs) -> [String; 8] {
    [times.min, times.mean, times.p50, times.p90, times.p95, times.p99, times.p999, times.max].map(figure)
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    fn text(section: Option<Section>) -> String {
        match section.expect("the sample has it").body {
            Body::Figures(table) => table.terminal(100),
            body => panic!("not a table: {body:?}"),
        }
    }

    #[test]
    fn each_stage_has_its_count_and_rate() {
        let text = text(reached(&sample::held()));
        assert_eq!(text.lines().count(), 2 + 3, "{text}");
        for word in ["sent", "accepted", "delivered", "200,000", "54,321", "21.73", "3.68 s"] {
            assert!(text.contains(word), "{word} in\n{text}");
        }
    }

    #[test]
    fn each_latency_says_what_it_counts_from() {
        let text = text(latencies(&sample::held()));
        for word in ["since", "created", "p99.9", "1.420", "3.100", "12.50"] {
            assert!(text.contains(word), "{word} in\n{text}");
        }
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
