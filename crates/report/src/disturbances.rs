use mailrun_measurement::record::{Record, Resource, Surroundings};
use mailrun_text::numbers::count;
use mailrun_text::table::plain;

/// Returns a line about activity on the host that can distort the results, or `None` if there was no such activity or
/// the host was not observed.
pub(crate) fn line(record: &Record) -> Option<String> {
    let surroundings = record.surroundings.as_ref()?;
    let shares = [
        (surroundings.other_busy_share, "of the CPU used by other processes"),
        (surroundings.steal_share, "of the CPU stolen"),
    ];
    let shares = shares.into_iter().filter_map(|(share, name)| Some(format!("{} {name}", percent(share?)?)));
    let parts: Vec<String> =
        shares.chain(queues(surroundings)).chain(exhausted(record)).chain(pauses(record)).collect();
    (!parts.is_empty()).then(|| parts.join(" · "))
}

/// Formats a share, for example `1.2 %`. Returns `None` if the share rounds to zero, because a remark about 0.0 % would
/// only distract.
fn percent(share: f64) -> Option<String> {
    (share >= 0.000_5).then(|| format!("{:.1} %", share * 100.0))
}

fn queues(surroundings: &Surroundings) -> Option<String> {
    let counts = [
        (surroundings.listen_overflows, "listen queue overflows"),
        (surroundings.listen_drops, "dropped by listeners"),
        (surroundings.syn_drops, "SYNs dropped"),
    ];
    let some = counts.into_iter().filter_map(|(number, name)| Some((number.filter(|number| *number > 0)?, name)));
    let some: Vec<String> = some.map(|(number, name)| format!("{} {name}", count(number))).collect();
    (!some.is_empty()).then(|| format!("{} (on the whole host)", some.join(", ")))
}

fn exhausted(record: &Record) -> Option<String> {
    let name = |resource| match resource {
        Resource::Descriptors => "descriptors",
        Resource::HostDescriptors => "the host's descriptors",
        Resource::Ports => "ports",
    };
    let rows = record.exhausted.iter();
    let rows: Vec<String> =
        rows.map(|row| format!("{} out of {} × {}", plain(&row.party), name(row.resource), count(row.count))).collect();
    (!rows.is_empty()).then(|| rows.join(", "))
}

fn pauses(record: &Record) -> Option<String> {
    let rows = record.pauses.iter();
    let rows: Vec<String> = rows
        .map(|row| format!("40 ms pauses at the {} ({}) × {}", plain(&row.party), row.phase.name(), count(row.count)))
        .collect();
    (!rows.is_empty()).then(|| rows.join(", "))
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;
    use mailrun_measurement::record::{ExhaustedRow, PauseRow};
    use mailrun_measurement::stage::Phase;

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
            ..Surroundings::default()
        };
        Record { surroundings: Some(around), ..sample::held() }
    }

    #[test]
    fn what_is_zero_is_not_said() {
        assert_eq!(line(&quiet()).as_deref(), Some("1.2 % of the CPU used by other processes"));
        assert_eq!(line(&sample::held()), None, "nobody looked");
        let unknown = Record { surroundings: Some(Surroundings::default()), ..sample::held() };
        assert_eq!(line(&unknown), None);
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
        assert!(
            text.contains("1,200 listen queue overflows, 1,300 dropped by listeners (on the whole host)"),
            "{text}"
        );
        assert!(text.contains("source out of ports × 7"), "{text}");
        assert!(text.ends_with("40 ms pauses at the sink (body) × 50"), "{text}");
        assert!(super::super::markdown(&record).contains("40 ms pauses at the sink"));
    }
}
