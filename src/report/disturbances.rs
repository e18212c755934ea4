//! What the host did besides while the run lasted, in a line: all well, or what was not.
use super::numbers::count;
use super::table::plain;
use journey::record::{Record, Resource, Surroundings};

/// A line; nothing where nobody looked.
pub(crate) fn line(record: &Record) -> Option<String> {
    let around = record.surroundings.as_ref()?;
    let shares = [(around.other_busy_share, "other processes"), (around.steal_share, "steal")];
    let shares = shares.into_iter().filter_map(|(share, name)| Some(format!("{name} {}", percent(share?))));
    let parts: Vec<String> = shares.chain([queues(around), exhausted(record), pauses(record)]).collect();
    Some(parts.join(" · "))
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn queues(around: &Surroundings) -> String {
    let counts = [
        (around.listen_overflows, "listen queue overflows"),
        (around.listen_drops, "dropped by listeners"),
        (around.syn_drops, "SYNs dropped"),
    ];
    if counts.iter().all(|(number, _)| number.is_none()) {
        return "listen queues unknown".to_owned();
    }
    let some = counts.into_iter().filter_map(|(number, name)| Some((number.filter(|number| *number > 0)?, name)));
    let some: Vec<String> = some.map(|(number, name)| format!("{} {name}", count(number))).collect();
    if some.is_empty() { "no listen queue overflowed".to_owned() } else { format!("{} (host-wide)", some.join(", ")) }
}

fn exhausted(record: &Record) -> String {
    let name = |resource| match resource {
        Resource::Descriptors => "descriptors",
        Resource::HostDescriptors => "the host's descriptors",
        Resource::Ports => "ports",
    };
    let rows = record.exhausted.iter();
    let rows: Vec<String> = rows
        .map(|row| format!("{} short of {} × {}", plain(&row.party), name(row.resource), count(row.count)))
        .collect();
    if rows.is_empty() { "descriptors and ports sufficed".to_owned() } else { rows.join(", ") }
}

fn pauses(record: &Record) -> String {
    let rows = record.pauses.iter();
    let rows: Vec<String> = rows
        .map(|row| format!("40 ms pauses at the {} ({}) × {}", plain(&row.party), row.phase.name(), count(row.count)))
        .collect();
    if rows.is_empty() { "no 40 ms pauses".to_owned() } else { rows.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;
    use journey::record::{ExhaustedRow, PauseRow};
    use journey::stage::Phase;

    fn quiet() -> Record {
        let around = Surroundings {
            processor_s: Some(7.4),
            busy_share: Some(0.9),
            other_busy_share: Some(0.012),
            steal_share: Some(0.0),
            listen_overflows: Some(0),
            listen_drops: Some(0),
            syn_drops: Some(0),
            somaxconn: Some(4096),
        };
        Record { surroundings: Some(around), ..sample::held() }
    }

    #[test]
    fn one_line_where_all_is_well() {
        let expected = "other processes 1.2 % · steal 0.0 % · no listen queue overflowed · descriptors and ports \
                        sufficed · no 40 ms pauses";
        assert_eq!(line(&quiet()).as_deref(), Some(expected));
        assert_eq!(line(&sample::held()), None, "nobody looked");
        let unknown = Record { surroundings: Some(Surroundings::default()), ..sample::held() };
        assert!(line(&unknown).is_some_and(|line| line.starts_with("listen queues unknown")));
    }

    #[test]
    fn what_was_not_is_named() {
        let mut record = quiet();
        if let Some(around) = &mut record.surroundings {
            (around.listen_overflows, around.listen_drops) = (Some(1_200), Some(1_300));
        }
        let resource = Resource::Ports;
        record.exhausted =
            vec![ExhaustedRow { party: "source".to_owned(), resource, count: 7, limit: None, needed: None }];
        record.pauses = vec![PauseRow { party: "sink".to_owned(), phase: Phase::Body, count: 50, of: 1000 }];
        let text = line(&record).unwrap_or_default();
        assert!(text.contains("1,200 listen queue overflows, 1,300 dropped by listeners (host-wide)"), "{text}");
        assert!(text.contains("source short of ports × 7"), "{text}");
        assert!(text.ends_with("40 ms pauses at the sink (body) × 50"), "{text}");
        assert!(super::super::markdown(&record).contains("40 ms pauses at the sink"));
    }
}
