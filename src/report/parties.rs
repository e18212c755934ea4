//! What each party cost: processor, memory, storage.
use super::numbers::{count, figure, memory};
use super::section::{Body, Section};
use super::table::{Align, Table};
use journey::record::{Party, Record, Role};
use journey::stage::Stage;

/// CPU and memory of each party.
pub(crate) fn costs(record: &Record) -> Option<Section> {
    let mut table = Table::new([
        ("party", Align::Left),
        ("user s", Align::Right),
        ("sys s", Align::Right),
        ("CPU µs/msg", Align::Right),
        ("cores", Align::Right),
        ("max RSS", Align::Right),
        ("written", Align::Right),
        ("workers", Align::Right),
    ]);
    let unseen = || "–".to_owned();
    for party in &record.parties {
        let cpu_s = party.user_s.zip(party.sys_s).map(|(user, sys)| user + sys);
        let messages = messages(record, party).filter(|number| *number > 0);
        let each = cpu_s.zip(messages).map(|(cpu, number)| cpu * 1e6 / number as f64);
        let cores = cpu_s.filter(|_| record.duration_s > 0.0).map(|cpu| cpu / record.duration_s);
        table.row(vec![
            party.name.clone(),
            party.user_s.map_or_else(unseen, |s| format!("{s:.2}")),
            party.sys_s.map_or_else(unseen, |s| format!("{s:.2}")),
            each.map_or_else(unseen, figure),
            cores.map_or_else(unseen, |cores| format!("{cores:.2}")),
            party.max_rss_bytes.map_or_else(unseen, memory),
            party.write_bytes.map_or_else(unseen, memory),
            party.workers.map_or_else(unseen, |workers| count(u64::from(workers))),
        ]);
    }
    let note = Some(note(record));
    (!table.is_empty()).then_some(Section { title: "Parties", note, body: Body::Figures(table) })
}

fn note(record: &Record) -> String {
    let told = |party: &Party| format!("the {} was told to misbehave: {}", party.name, party.faults.join(" "));
    let faults = record.parties.iter().filter(|party| !party.faults.is_empty()).map(told);
    let always = "cores: processor time over the run's time".to_owned();
    std::iter::once(always).chain(faults).collect::<Vec<_>>().join("; ")
}

/// The messages that a party's work was for: those a source sent, those a sink took, those that a relay did.
fn messages(record: &Record, party: &Party) -> Option<u64> {
    let stage = match party.role {
        Role::Source => Stage::Sent,
        // It is the source that saw it.
        Role::Relay => return record.stages.iter().find(|row| row.name == Stage::Accepted).map(|row| row.count),
        Role::Sink => Stage::Delivered,
    };
    let own = record.stages.iter().filter(|row| row.party == party.name);
    own.clone().find(|row| row.name == stage).map(|row| row.count).or_else(|| own.map(|row| row.count).max())
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    fn text(record: &Record) -> (String, String) {
        let section = costs(record).expect("the sample has parties");
        match section.body {
            Body::Figures(table) => (section.note.unwrap_or_default(), table.terminal(100)),
            body => panic!("not a table: {body:?}"),
        }
    }

    #[test]
    fn cpu_is_shared_out_over_messages() {
        // 1.0 s user + 2.0 s system over 200,000 messages is 15 µs each.
        let (_, text) = text(&sample::held());
        assert!(text.contains("15.00"), "{text}");
        assert!(text.contains("12.0 MiB"), "{text}");
    }

    #[test]
    fn a_party_that_could_not_be_seen_has_dashes() {
        let mut record = sample::held();
        record.parties[0].user_s = None;
        record.parties[0].max_rss_bytes = None;
        let (_, text) = text(&record);
        assert!(text.contains('–'), "{text}");
    }

    #[test]
    fn misbehaviour_on_purpose_is_named() {
        let mut record = sample::held();
        record.parties[1].faults = vec!["--drop".to_owned(), "0.001".to_owned()];
        let (note, _) = text(&record);
        assert!(note.contains("the sink was told to misbehave: --drop 0.001"), "{note}");
    }
}
