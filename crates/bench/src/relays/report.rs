//! The tables of a comparison of relays: the figures with their spread, the ratios to a base relay, and notes.
use super::comparison::{RelayCase, RelayComparisonOptions, RelayContestant, RelayResults, SyscallsPerMessage};
use super::measure::RelayMeasurement;
use crate::engine::{
    self, ComparedRun, RatioColumn, RatioPair, ReportParts, ShownFigures, TableColumn, TextReport, bytes, ratio_table,
    rounds_text, run_remarks, whole,
};
use crate::relay::Relay;
use crate::stored::{audit_description, audit_outcome};
use mailrun_text::numbers::{count, figure, latency, megabytes, rate};
use mailrun_text::table::{Table, plain};

type Column<'a> = TableColumn<'a, RelayCase, RelayMeasurement>;

const RATIOS: [RatioColumn<RelayMeasurement>; 4] = [
    RatioColumn::higher("× accepted/s", |run| Some(run.figures.accepted_per_s)),
    RatioColumn::higher("× delivered/s", |run| Some(run.figures.delivered_per_s)),
    RatioColumn::lower("× CPU", |run| run.cpu_ms_per_1000),
    RatioColumn::lower("× disk", |run| run.disk_per_message),
];

pub(super) fn of(results: &RelayResults, options: &RelayComparisonOptions) -> TextReport {
    let (ratios, ratio_notes) = ratios(results);
    let mut notes = notes(results, options);
    notes.extend(ratio_notes);
    let rounds = rounds_text(options.rounds, ShownFigures::Spreads);
    let messages = count(options.messages);
    let load = options.shape.description(&options.contestants);
    results.report(ReportParts {
        title: format!("{}: {messages} {load}; {rounds}", options.scenario.name),
        tables: vec![figures(results), mailboxes(results), costs(results), times(results), ratios],
        runs: None,
        notes,
        pass: "no mail lost",
        wrong: results.defects(),
        is_strict: !options.scenario.thresholds.is_empty(),
    })
}

fn figures(results: &RelayResults) -> Table {
    let mut columns = vec![
        Column::words("relay", |contestant| contestant.name.clone()),
        Column::words("durability", |contestant| contestant.case.relay.durability()),
        Column::median("accept s", |run| Some(run.figures.accept_s), figure),
        Column::spread("accepted/s", |run| Some(run.figures.accepted_per_s), rate),
        Column::median("deliver s", |run| Some(run.figures.deliver_s), figure),
        Column::spread("delivered/s", |run| Some(run.figures.delivered_per_s), rate),
        Column::median("MB/s", |run| Some(run.figures.delivered_bytes_per_s), megabytes),
        Column::median("drain s", |run| Some(run.figures.drain_s()), figure),
        Column::spread("queue", |run| run.figures.deepest.map(|(messages, _)| messages as f64), whole),
        Column::words("ledger", ledger),
    ];
    let audited = |contestant: &RelayContestant| {
        let record = contestant.case.relay.last_audit()?;
        Some(audit_outcome(&record, record.audit.as_ref()?))
    };
    if results.contestants.iter().any(|contestant| audited(contestant).is_some()) {
        let outcome = move |contestant: &RelayContestant| audited(contestant).unwrap_or_else(|| "–".to_owned());
        columns.insert(2, Column::words("as audited", outcome));
    }
    let leave_out = ["queue", "drain s", "MB/s", "as audited", "durability", "accept s", "deliver s"];
    engine::table(&results.contestants, &columns, &leave_out)
}

fn has_mailboxes(contestant: &RelayContestant) -> bool {
    contestant.runs.iter().filter_map(ComparedRun::sound).any(|run| run.announced.is_some())
}

/// Builds the table for servers that deliver to mailboxes. It shows how long a message took until the server announced
/// it to the sink, and until the sink could read it.
fn mailboxes(results: &RelayResults) -> Table {
    let columns = [
        Column::words("mailboxes", |contestant| contestant.name.clone()),
        Column::spread("announced p50", |run| Some(run.announced?.p50), latency),
        Column::spread("announced p99", |run| Some(run.announced?.p99), latency),
        Column::spread("readable p50", |run| run.announced.and(run.delivered).map(|times| times.p50), latency),
        Column::spread("readable p99", |run| run.announced.and(run.delivered).map(|times| times.p99), latency),
    ];
    engine::table(results.contestants.iter().filter(|contestant| has_mailboxes(contestant)), &columns, &[])
}

/// Builds the table for servers that forward mail to the sink. It shows the latencies until acceptance and until
/// delivery.
fn times(results: &RelayResults) -> Table {
    let columns = [
        Column::words("relay", |contestant| contestant.name.clone()),
        Column::spread("accepted p50", |run| run.accepted.map(|times| times.p50), latency),
        Column::spread("accepted p99", |run| run.accepted.map(|times| times.p99), latency),
        Column::spread("delivered p50", |run| run.delivered.map(|times| times.p50), latency),
        Column::spread("delivered p99", |run| run.delivered.map(|times| times.p99), latency),
    ];
    engine::table(results.contestants.iter().filter(|contestant| !has_mailboxes(contestant)), &columns, &[])
}

fn costs(results: &RelayResults) -> Table {
    let columns = [
        Column::words("relay", |contestant| contestant.name.clone()),
        Column::spread("CPU ms/1,000", |run| run.cpu_ms_per_1000, figure),
        Column::figure("calls/msg", |contestant| syscalls(contestant, |all, _| all)),
        Column::figure("syncs/msg", |contestant| syscalls(contestant, |_, syncs| syncs)),
        Column::spread("written/msg", |run| run.written_per_message, bytes),
        Column::spread("disk/msg", |run| run.disk_per_message, bytes),
        Column::spread("max RSS", |run| run.max_rss_bytes.map(|bytes| bytes as f64), bytes),
    ];
    let relays = results.contestants.iter().filter(|contestant| contestant.case.relay != Relay::None);
    engine::table(relays, &columns, &["written/msg", "syncs/msg", "calls/msg", "max RSS"])
}

fn syscalls(contestant: &RelayContestant, choose: fn(f64, f64) -> f64) -> String {
    match contestant.case.syscalls {
        SyscallsPerMessage::Counted { all, syncs } => figure(choose(all, syncs)),
        SyscallsPerMessage::NotMeasured(_) => "not measured".to_owned(),
    }
}

fn ledger(contestant: &RelayContestant) -> String {
    let fault_count = contestant.runs.iter().filter(|run| run.fault().is_some()).count();
    match fault_count {
        0 => "closed".to_owned(),
        fault_count => format!("NOT OK in {fault_count} of {}", contestant.runs.len()),
    }
}

/// Returns the relay with which the others are compared: Postfix, or else the last relay that the user named. A row
/// without a relay never serves for this comparison, because in it the source sends directly to the sink.
fn base(results: &RelayResults) -> Option<&RelayContestant> {
    let postfix = results.contestants.iter().find(|contestant| contestant.name == "postfix");
    let last = || results.contestants.iter().rfind(|contestant| contestant.case.relay != Relay::None);
    postfix.or_else(last).filter(|_| results.contestants.len() > 1)
}

fn ratios(results: &RelayResults) -> (Table, Vec<String>) {
    let base = base(results);
    let is_other = |contestant: &&RelayContestant| {
        !contestant.runs.is_empty() && base.is_some_and(|base| !std::ptr::eq(*contestant, base))
    };
    let pairs = results.contestants.iter().filter(is_other).zip(base.into_iter().cycle());
    let pairs = pairs.map(|(contestant, base)| RatioPair {
        cells: vec![contestant.name.clone(), base.name.clone()],
        contestant,
        base,
    });
    ratio_table(&["relay", "against"], pairs.collect(), &RATIOS)
}

fn notes(results: &RelayResults, options: &RelayComparisonOptions) -> Vec<String> {
    let mut notes: Vec<String> =
        results.contestants.iter().flat_map(|contestant| run_remarks([contestant].into_iter())).collect();
    for contestant in results.contestants.iter().filter(|_| options.counts_syscalls) {
        if let SyscallsPerMessage::NotMeasured(reason) = &contestant.case.syscalls {
            notes.push(plain(&format!("calls of {}: not measured: {reason}.", contestant.name)));
        }
    }
    for contestant in &results.contestants {
        let record = contestant.case.relay.last_audit();
        let audit = record.as_ref().and_then(|record| Some((record, record.audit.as_ref()?)));
        notes
            .extend(audit.map(|(record, audit)| format!("{}: {}.", contestant.name, audit_description(record, audit))));
    }
    if !options.counts_syscalls {
        notes.push(
            "calls/msg, syncs/msg: not measured (--syscalls measures them in separate runs under strace).".to_owned(),
        );
    }
    let since = if options.rate_per_s.is_some() { "due" } else { "created" };
    if results.contestants.iter().any(has_mailboxes) {
        notes.push(format!(
            "announced, readable: from when a message was {since} until the server told of it, and until it was \
             fetched. Logins are in no figure."
        ));
    }
    if !results.contestants.iter().all(has_mailboxes) {
        notes.push(format!(
            "accepted p50, delivered p50: from when a message was {since}. As fast as a relay takes messages, these times \
             grow with the number of sessions; --rate shows those of a relay at ease."
        ));
    }
    notes.push(
        "accept s, deliver s: from the first message created to the last accepted, or delivered. queue: maximum of \
         messages accepted and not delivered, at the end of each second. CPU: user and system time of all processes \
         of the relay, from its start until it is idle. written: bytes that the kernel charged to the relay, which can \
         be far more than disk, because a small write is charged as a whole page or several. disk: bytes that the \
         device wrote for all processes of the host, including journals."
            .to_owned(),
    );
    notes
}

#[cfg(test)]
mod tests {
    use super::super::scenario::{LoadShape, sample_options};
    use super::*;
    use crate::engine::RoundOrder;
    use crate::relay::RelayDurability;
    use mailrun_measurement::record::{LatencyMs, Pipelining};
    use mailrun_report::sample;

    fn measure(deliver_s: f64, cpu_ms: f64) -> RelayMeasurement {
        let mut measure = RelayMeasurement::of(&sample::relayed(), Some(200_000 * 512), 200_000).unwrap();
        measure.figures.deliver_s = deliver_s;
        measure.figures.delivered_per_s = 1_000.0 / deliver_s;
        measure.cpu_ms_per_1000 = Some(cpu_ms);
        measure
    }

    type Run = ComparedRun<RelayMeasurement>;

    fn done(deliver_s: f64, cpu_ms: f64) -> Run {
        ComparedRun::Sound(measure(deliver_s, cpu_ms))
    }

    fn contestant(relay: Relay, runs: Vec<Run>) -> RelayContestant {
        let syscalls = SyscallsPerMessage::NotMeasured("--syscalls was not said".to_owned());
        RelayContestant { runs, ..RelayContestant::new(relay.to_string(), RelayCase { relay, syscalls }) }
    }

    fn results(ours: Vec<Run>, theirs: Vec<Run>) -> RelayResults {
        let done = ours.len() + theirs.len();
        let ours = contestant(Relay::Mailrun(RelayDurability::Sync), ours);
        RelayResults { contestants: vec![ours, contestant(postfix(), theirs)], done, planned: done }
    }

    fn dovecot() -> Relay {
        "dovecot".parse().unwrap()
    }

    fn postfix() -> Relay {
        "postfix".parse().unwrap()
    }

    fn options() -> RelayComparisonOptions {
        RelayComparisonOptions {
            scenario: sample_options("relay-64k"),
            contestants: Vec::new(),
            messages: 200_000,
            rate_per_s: None,
            shape: LoadShape { sessions: 250, message_bytes: 64 << 10, reuse: Some(1), pipelining: Pipelining::Off },
            rounds: 3,
            order: RoundOrder::Alternating,
            counts_syscalls: false,
        }
    }

    fn line<'t>(text: &'t str, start: &str) -> &'t str {
        text.lines().find(|line| line.trim_start().starts_with(start)).unwrap_or_else(|| panic!("{start} in\n{text}"))
    }

    #[test]
    fn figures_have_their_spread_and_ratios_are_of_the_same_round() {
        // In the three rounds, mailrun is 2, 10 and 5 times as fast as Postfix. The report must show 5, the median of
        // these ratios. The ratio of the median times, 10 s and 4 s, would be 2.5 and wrong.
        let ours = vec![done(4.0, 10.0), done(1.0, 10.0), done(8.0, 10.0)];
        let theirs = vec![done(8.0, 100.0), done(10.0, 100.0), done(40.0, 100.0)];
        let report = of(&results(ours, theirs), &options());
        assert!(report.is_good(), "{}", report.text);
        assert!(
            line(&report.text, "mailrun ").contains("4.000")
                && line(&report.text, "mailrun ").contains("250.0 (125.0–1,000)"),
            "{}",
            report.text
        );
        let ratios = report.text.lines().find(|line| line.contains("mailrun") && line.contains("postfix")).unwrap();
        assert!(ratios.contains("5.00 (2.00–10.00)") && ratios.contains("0.10"), "{}", report.text);
        assert!(report.text.contains("200,000 messages of 64 KiB over 250 sessions"), "{}", report.text);
        assert!(report.text.contains("calls/msg, syncs/msg: not measured"), "{}", report.text);
    }

    #[test]
    fn a_run_that_does_not_close_is_marked_and_in_no_figure() {
        let mut lossy = measure(1.0, 1.0);
        lossy.flaws.fault = Some("lost 5".to_owned());
        let ours = vec![ComparedRun::Faulty(lossy, "lost 5".to_owned()), done(4.0, 10.0)];
        let report = of(&results(ours, vec![done(8.0, 100.0), done(8.0, 100.0)]), &options());
        assert!(!report.is_good() && report.text.contains("NOT OK: mailrun: lost 5"), "{}", report.text);
        let row = line(&report.text, "mailrun ");
        assert!(row.contains("NOT OK in 1 of 2") && !row.contains("1,000"), "{}", report.text);
        let ratios = report.text.lines().find(|line| line.contains("mailrun") && line.contains("postfix")).unwrap();
        assert!(ratios.contains(" 2.00 "), "the round that closed: {}", report.text);
    }

    #[test]
    fn mail_that_may_be_in_a_queue_leaves_the_comparison_open() {
        let mut open = measure(1.0, 1.0);
        (open.flaws.fault, open.flaws.undelivered) =
            (Some("not delivered 5".to_owned()), Some("5 were not".to_owned()));
        let theirs = vec![ComparedRun::Undecided(open, "not delivered 5".to_owned()), done(8.0, 100.0)];
        let conclusion = of(&results(vec![done(4.0, 10.0), done(4.0, 10.0)], theirs), &options()).conclusion;
        assert_eq!((conclusion.line().as_str(), conclusion.is_strict), ("INCONCLUSIVE postfix: 5 were not", true));
    }

    #[test]
    fn a_contestant_that_cannot_run_is_named() {
        let report = of(&results(vec![ComparedRun::Failed("no\nspool".to_owned())], vec![done(8.0, 1.0)]), &options());
        assert!(!report.is_good() && report.text.contains("NOT OK: mailrun: no spool"), "{}", report.text);
        assert!(line(&report.text, "mailrun ").contains("NOT OK in 1 of 1"), "{}", report.text);
    }

    #[test]
    fn no_difference_is_claimed_from_two_rounds() {
        let report =
            of(&results(vec![done(4.0, 9.0), done(6.0, 9.0)], vec![done(5.0, 10.0), done(5.0, 10.0)]), &options());
        assert!(report.text.contains("mailrun: 2 rounds, too few for a verdict, which takes 6."), "{}", report.text);
    }

    #[test]
    fn what_disturbed_several_rounds_is_said_once() {
        let disturbed = |percent: u32| {
            let mut measure = measure(4.0, 10.0);
            measure.flaws.notes = vec![format!("Other processes used {percent} % of it.")];
            ComparedRun::Sound(measure)
        };
        let report =
            of(&results(vec![disturbed(30), disturbed(40)], vec![done(8.0, 10.0), done(8.0, 10.0)]), &options());
        assert_eq!(report.text.matches("Other processes").count(), 1, "{}", report.text);
        assert!(
            report.is_good() && report.text.contains("mailrun: Other processes used 30 % of it."),
            "{}",
            report.text
        );
    }

    #[test]
    fn mailboxes_have_a_table_of_their_own() {
        let times = |p50| Some(LatencyMs { p50, p99: 2.0 * p50, ..LatencyMs::default() });
        let read = RelayMeasurement { announced: times(500.0), delivered: times(502.0), ..measure(4.0, 10.0) };
        let contestants =
            vec![contestant(postfix(), vec![done(4.0, 10.0)]), contestant(dovecot(), vec![ComparedRun::Sound(read)])];
        let report = of(&RelayResults { contestants, done: 2, planned: 2 }, &options());
        let rows: Vec<&str> = report.text.lines().skip_while(|line| !line.contains("announced p50")).take(4).collect();
        let cells = rows[2].split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(cells, "dovecot 500 ms 1.00 s 502 ms 1.00 s", "{}", report.text);
        assert!(rows[3].trim().is_empty(), "a relay without mailboxes has no row: {}", report.text);
        assert!(report.text.contains("from when a message was created"), "{}", report.text);
    }

    #[test]
    fn a_lone_relay_has_no_ratios() {
        let alone =
            RelayResults { contestants: vec![contestant(postfix(), vec![done(8.0, 1.0)])], done: 1, planned: 3 };
        let report = of(&alone, &options());
        assert!(!report.text.contains('×') && report.text.contains("Stopped after 1 of 3 runs."), "{}", report.text);
    }
}
