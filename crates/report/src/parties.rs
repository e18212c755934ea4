//! Reports what each process of a run cost: CPU time and memory.
use super::figures::Section;
use mailrun_measurement::record::{Party, Record, Role};
use mailrun_measurement::stage::Stage;
use mailrun_text::numbers::{fixed, memory};
use mailrun_text::table::{Align, Cell, Table, plain, right};

pub(crate) fn costs(record: &Record) -> Option<Section> {
    let mut table = Table::new([
        ("process", Align::Left),
        right("user s"),
        right("sys s"),
        right("CPU µs/msg"),
        right("cores"),
        right("peak memory"),
        right("workers"),
    ])
    .leave_out(&["workers", "sys s", "user s", "CPU µs/msg"]);
    let unseen = || Cell::from("–");
    for party in &record.parties {
        let messages = messages(record, party).filter(|number| *number > 0);
        let each = party.work_s().zip(messages).map(|(cpu, number)| cpu * 1e6 / number as f64);
        let places = |value: f64| Cell::Number(value, fixed(value, 2));
        table.row(vec![
            Cell::from(party.name.clone()),
            party.user_s.map_or_else(unseen, places),
            party.sys_s.map_or_else(unseen, places),
            each.map_or_else(unseen, Cell::Figure),
            cores(record, party).map_or_else(unseen, places),
            party.max_rss_bytes.map_or_else(unseen, |bytes| Cell::Number(bytes as f64, memory(bytes))),
            party.workers.map_or_else(unseen, |workers| Cell::Count(u64::from(workers))),
        ]);
    }
    let note = Some(note(record));
    Section::figures("Processes", note, table)
}

/// Returns the costs in short, for example `source 0.41 cores, 8.0 MiB; sink 0.03 cores, 7.0 MiB`. Returns `None` if no
/// process was observed.
pub(crate) fn costs_in_short(record: &Record) -> Option<String> {
    let texts = record.parties.iter().filter_map(|party| {
        let cores = cores(record, party).map(|cores| format!("{} cores", fixed(cores, 2)));
        let figures: Vec<String> = cores.into_iter().chain(party.max_rss_bytes.map(memory)).collect();
        (!figures.is_empty()).then(|| format!("{} {}", plain(&party.name), figures.join(", ")))
    });
    let texts: Vec<String> = texts.collect();
    (!texts.is_empty()).then(|| texts.join("; "))
}

/// Returns the number of cores that a process kept busy: its CPU time divided by the length of the run. Returns `None`
/// if the result exceeds the number of the host's cores. The process must then have run for longer than the measured
/// time.
fn cores(record: &Record, party: &Party) -> Option<f64> {
    let max_cores = f64::from(record.host.cores.max(1)) * 1.05;
    // Add the warm-up, because the processor time includes it and `duration_s` does not.
    let length_s = record.duration_s + record.warm_up.map_or(0.0, |warm_up| warm_up.length_s);
    let cores = party.work_s().map(|cpu| cpu / length_s);
    cores.filter(|cores| length_s > 0.0 && (record.host.cores == 0 || *cores <= max_cores))
}

fn note(record: &Record) -> String {
    let line = |party: &Party| format!("requested faults of the {}: {}", party.name, party.faults.join(" "));
    let faults = record.parties.iter().filter(|party| !party.faults.is_empty()).map(line);
    let always = "cores: processor time over the run's time".to_owned();
    let looks = record.parties.iter().filter_map(busy_poll);
    std::iter::once(always).chain(placement(record)).chain(looks).chain(faults).collect::<Vec<_>>().join("; ")
}

/// Names the processors to which processes were bound, for example `processors: source 0, sink 1`. Returns `None` if no
/// process was bound.
fn placement(record: &Record) -> Option<String> {
    let one = |party: &Party| Some(format!("{} {}", plain(&party.name), plain(party.cpus.as_ref()?)));
    let placed: Vec<String> = record.parties.iter().filter_map(one).collect();
    (!placed.is_empty()).then(|| format!("processors: {}", placed.join(", ")))
}

fn busy_poll(party: &Party) -> Option<String> {
    let row = party.busy_poll.as_ref()?;
    let looked = fixed(row.looked_s, 2);
    Some(format!(
        "busy polling of the {} ({}): {looked} s spent looking, part of user s and sys s, not of CPU µs/msg and cores",
        plain(&party.name),
        plain(&row.mode)
    ))
}

/// Returns the number of messages that a source sent, a sink received, or a relay accepted. The warm-up is included,
/// because the party's processor time includes it as well.
fn messages(record: &Record, party: &Party) -> Option<u64> {
    let own = record.stages.iter().filter(|row| row.party == party.name);
    let row = match party.role {
        Role::Source => own.clone().find(|row| row.name == Stage::Sent),
        // Search the rows of all parties, because the row `Accepted` belongs to the source, which counts the replies.
        Role::Relay => return record.stage(Stage::Accepted).map(|row| record.with_warm_up(row.count)),
        Role::Sink => own.clone().find(|row| row.name == Stage::Delivered),
    };
    let count = row.map(|row| row.count).or_else(|| own.map(|row| row.count).max())?;
    Some(record.with_warm_up(count))
}

/// Returns the table of TLS handshakes by process, version and cipher suite. Returns `None` if there were none.
pub(crate) fn handshakes(record: &Record) -> Option<Section> {
    let mut table = Table::new([
        ("party", Align::Left),
        ("version", Align::Left),
        ("cipher suite", Align::Left),
        right("handshakes"),
        right("resumed"),
    ]);
    for row in &record.tls {
        let names = [&row.party, &row.version, &row.cipher].map(|text| Cell::from(text.as_str()));
        table.row(names.into_iter().chain([row.handshakes, row.resumed].map(Cell::Count)).collect());
    }
    let note = Some("how long they took is the phase tls".to_owned());
    Section::figures("TLS", note, table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::SectionBody;
    use crate::sample;
    use mailrun_measurement::record::{BusyPollRow, TlsRow, WarmUp};

    fn text(record: &Record) -> (String, String) {
        let section = costs(record).expect("the sample has parties");
        match section.body {
            SectionBody::Figures(table) => (section.note.unwrap_or_default(), table.terminal(100)),
            body => panic!("not a table: {body:?}"),
        }
    }

    #[test]
    fn busy_polling_is_said_and_left_out_of_the_cost_of_a_message() {
        let mut record = sample::held();
        let busy_poll = BusyPollRow { mode: "50us".to_owned(), looked_s: 2.0 };
        for party in &mut record.parties {
            party.busy_poll = (party.role == Role::Source).then(|| busy_poll.clone());
        }
        let (note, text) = text(&record);
        assert!(note.contains("busy polling of the source (50us): 2.00 s spent looking"), "{note}");
        let (_, without) = self::text(&sample::held());
        assert_ne!(text, without);
        record
            .parties
            .iter_mut()
            .for_each(|party| party.busy_poll = Some(BusyPollRow { looked_s: 1e9, ..busy_poll.clone() }));
        assert_eq!(record.parties.iter().find_map(Party::work_s), Some(0.0), "never less than nothing");
    }

    #[test]
    fn processors_of_placed_parties_are_named() {
        let mut record = sample::held();
        assert!(!text(&record).0.contains("processors:"));
        record.parties[0].cpus = Some("0,2-3".to_owned());
        assert!(text(&record).0.contains("processors: source 0,2-3"), "{}", text(&record).0);
        record.parties[1].cpus = Some("1".to_owned());
        assert!(text(&record).0.contains("processors: source 0,2-3, sink 1"), "{}", text(&record).0);
    }

    #[test]
    fn cpu_is_shared_out_over_messages() {
        // 1.0 s of user time and 2.0 s of system time for 200,000 messages are 15 µs per message.
        let (_, text) = text(&sample::held());
        assert!(text.contains("15.00"), "{text}");
        assert!(text.contains("12.0 MiB"), "{text}");
        let line = costs_in_short(&sample::held());
        assert_eq!(line.as_deref(), Some("source 0.81 cores, 12.0 MiB; sink 0.81 cores, 12.0 MiB"));
        let warm_up = Some(WarmUp { length_s: 3.684, created: 1, accepted: 1 });
        let line = costs_in_short(&Record { warm_up, ..sample::held() });
        assert_eq!(
            line.as_deref(),
            Some("source 0.41 cores, 12.0 MiB; sink 0.41 cores, 12.0 MiB"),
            "a warm-up as long"
        );
        let warm_up = Some(WarmUp { length_s: 3.684, created: 200_000, accepted: 200_000 });
        let (_, text) = self::text(&Record { warm_up, ..sample::held() });
        assert!(text.contains("7.50") && !text.contains("15.00"), "the processor time includes the warm-up: {text}");
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
        record.parties[1].faults = vec!["--fault".to_owned(), "drop 0.1%".to_owned()];
        let (note, _) = text(&record);
        assert!(note.contains("requested faults of the sink: --fault drop 0.1%"), "{note}");
    }

    #[test]
    fn handshakes_have_a_row_a_kind_and_no_section_without_tls() {
        let mut record = sample::held();
        assert!(handshakes(&record).is_none());
        let row = TlsRow {
            party: "source".to_owned(),
            version: "TLSv1.3".to_owned(),
            cipher: "TLS13_AES_256_GCM_SHA384".to_owned(),
            handshakes: 1200,
            resumed: 1100,
        };
        record.tls.push(row);
        let text = crate::markdown(&record);
        assert!(text.contains("## TLS") && text.contains("TLSv1.3") && text.contains("1,100"), "{text}");
    }
}
