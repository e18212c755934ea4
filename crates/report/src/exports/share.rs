//! Describes a run for publication, with everything that a reader needs to judge its figures. A fact that the record
//! lacks is named as missing and not left out.
use super::private_words::{LEFT_OUT, public_command, public_sentence};
use crate::figures::final_stage;
use crate::figures::stage_latency;
use crate::headline::Headline;
use mailrun_measurement::record::{Arrival, Host, HostDisk, LatencyMs, Record, StageRow};
use mailrun_text::numbers::{count, counted, latency, memory, octets, rate, seconds};
use mailrun_text::table::{markdown_text, plain};

const MISSING: &str = "not recorded";
/// The record contains this text if a fact about the host, such as the processor model, is not known.
const UNKNOWN: &str = "unknown";
/// A sentence that was cut off may end in the middle of a private text. The private text is still recognised and
/// removed if the sentence contains at least this many characters of its beginning.
const CUT_TEXT_CHARS: usize = 12;
/// The output says how long each of these numbers of messages would take at the measured rate.
const COMPUTED_FOR: [u64; 3] = [1_000, 10_000, 100_000];

pub(super) fn share(record: &Record) -> String {
    let mut text = format!("### mailrun: {}\n\n", markdown_text(&outcome(record)));
    for (name, value) in items(record) {
        text.push_str(&format!("- **{name}**: {}\n", markdown_text(&value)));
    }
    let last = final_stage(record);
    text.push_str(&format!("\n**Results** ({})\n\n", markdown_text(&span(last))));
    for (name, value) in results(last) {
        text.push_str(&format!("- {name}: {}\n", markdown_text(&value)));
    }
    text
}

pub(super) fn share_short(record: &Record) -> String {
    let last = final_stage(record);
    let of = |names: &[&str], pairs: Vec<(String, String)>| {
        let chosen = pairs.into_iter().filter(|(name, _)| names.contains(&name.as_str()));
        chosen.map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
    };
    let host = &record.host;
    let results = results(last);
    let times: Vec<String> =
        COMPUTED_FOR.iter().map(|number| format!("{} in {}", count(*number), took(last, *number))).collect();
    let lines = [
        format!("mailrun {} (commit {}): {}", version(record), commit(record), outcome(record)),
        format!(
            "{}; {} RAM; {}; disk {}, {}",
            processor(host),
            ram(host),
            system(host),
            disk(host.disk.as_ref()),
            file_system(host.disk.as_ref())
        ),
        format!("{}; {}", command(record), workload(record)),
        format!("{}; {} (computed from the rate)", of(&["rate"], results.clone()), times.join(", ")),
        format!("{}: {}; left out: {}", span(last), of(&["avg", "p50", "p95", "max"], results), left_out()),
    ];
    lines.map(|line| plain(&line) + "\n").concat()
}

fn outcome(record: &Record) -> String {
    let reason = without_others_texts(record, record.verdict.why.clone());
    let reason = public_sentence(&reason, &record.workload.target);
    format!("{} {reason}", Headline::of(record).name()).trim_end().to_owned()
}

/// Removes replies of servers and the last output of programs from a sentence, because these texts may name recipients
/// and users.
fn without_others_texts(record: &Record, sentence: String) -> String {
    let replies = record.errors.iter().filter(|row| row.code > 0).map(|row| &row.text);
    let troubles = record.mades.iter().flat_map(|own| own.troubles.iter().map(|row| &row.text));
    let last_words = record.parties.iter().filter_map(|party| Some(&party.died.as_ref()?.said));
    let bounces = record.bounces.iter().map(|row| &row.text);
    replies.chain(bounces).chain(troubles).chain(last_words).fold(sentence, |sentence, text| without(sentence, text))
}

/// Replaces a private text, such as a server's reply, with `LEFT_OUT` in a sentence. A sentence that ends with `…` was
/// cut off, and may contain only the beginning of the text. In that case, replaces everything from this beginning on.
fn without(sentence: String, text: &str) -> String {
    let text = text.trim_end_matches(['…', '.']);
    if text.is_empty() {
        return sentence;
    }
    if sentence.contains(text) {
        return sentence.replace(text, LEFT_OUT);
    }
    let begin: String = text.chars().take(CUT_TEXT_CHARS).collect();
    match sentence.find(&begin) {
        Some(place) if sentence.ends_with('…') => format!("{}{LEFT_OUT}", &sentence[..place]),
        _ => sentence,
    }
}

fn items(record: &Record) -> Vec<(&'static str, String)> {
    let host = &record.host;
    vec![
        ("Version", version(record)),
        ("Commit", commit(record)),
        ("Date", known(&record.started_at)),
        ("CPU", processor(host)),
        ("RAM", ram(host)),
        ("OS", system(host)),
        ("Disk", disk(host.disk.as_ref())),
        ("File system", file_system(host.disk.as_ref())),
        ("Command", command(record)),
        ("Workload", workload(record)),
        ("Left out", left_out()),
    ]
}

fn left_out() -> String {
    format!(
        "names of hosts and users, addresses, paths and texts of servers, shown as {LEFT_OUT}; recipients, their domains, the \
         slowest and the missing messages, and samples of errors"
    )
}

fn results(last: Option<&StageRow>) -> Vec<(String, String)> {
    let messages = last.map_or_else(|| MISSING.to_owned(), |stage| count(stage.count));
    let per_s = last.and_then(|stage| stage.rate_per_s);
    let per_s = per_s.map_or_else(|| MISSING.to_owned(), |per_s| format!("{} msg/s", rate(per_s)));
    let mut rows = vec![("messages".to_owned(), messages), ("rate".to_owned(), per_s)];
    for number in COMPUTED_FOR {
        let name = format!("time for {}", count(number));
        rows.push((name, format!("{} (computed from the rate)", took(last, number))));
    }
    let times = last.and_then(|stage| Some((stage, stage.latency_ms?)));
    let shown = |read: fn(LatencyMs) -> f64| {
        times.map_or_else(|| MISSING.to_owned(), |(stage, times)| stage_latency(stage, read(times)))
    };
    rows.push(("avg".to_owned(), shown(|times| times.mean)));
    rows.push(("p50".to_owned(), shown(|times| times.p50)));
    rows.push(("p95".to_owned(), shown(|times| times.p95)));
    rows.push(("max".to_owned(), shown(|times| times.max)));
    rows
}

/// Returns the time that `messages` messages would take at the rate of the run.
fn took(last: Option<&StageRow>, messages: u64) -> String {
    let per_s = last.and_then(|stage| stage.rate_per_s).filter(|rate| rate.is_finite() && *rate > 0.0);
    per_s.map_or_else(|| MISSING.to_owned(), |per_s| brief(messages as f64 / per_s))
}

fn brief(time_s: f64) -> String {
    if time_s < 1.0 { latency(time_s * 1e3) } else { seconds(time_s) }
}

fn span(last: Option<&StageRow>) -> String {
    match last {
        Some(stage) => match stage.since {
            Some(since) => format!("{} to {}", since.name(), stage.name.name()),
            None => stage.name.name().to_owned(),
        },
        None => format!("latency {MISSING}"),
    }
}

fn known(text: &str) -> String {
    if text.is_empty() || text == UNKNOWN { MISSING.to_owned() } else { text.to_owned() }
}

fn version(record: &Record) -> String {
    known(&record.version)
}

fn commit(record: &Record) -> String {
    known(record.commit.as_deref().unwrap_or_default())
}

fn processor(host: &Host) -> String {
    let cores = counted(u64::from(host.cores), "core");
    let awake = host.keep_awake.map(|state| format!(", {}", state.words())).unwrap_or_default();
    format!("{}, {cores}{awake}", known(&host.cpu_model))
}

fn ram(host: &Host) -> String {
    if host.memory_bytes == 0 { MISSING.to_owned() } else { memory(host.memory_bytes) }
}

fn system(host: &Host) -> String {
    format!("{}, kernel {}", known(&host.os), known(&host.kernel))
}

fn disk(disk: Option<&HostDisk>) -> String {
    let Some(disk) = disk else { return MISSING.to_owned() };
    let kind = disk.rotational.map(|rotates| if rotates { "rotating" } else { "not rotating" }.to_owned());
    let parts: Vec<String> = [disk.model.clone(), disk.device.clone(), kind].into_iter().flatten().collect();
    if parts.is_empty() { MISSING.to_owned() } else { parts.join(", ") }
}

fn file_system(disk: Option<&HostDisk>) -> String {
    disk.map_or_else(|| MISSING.to_owned(), |disk| known(&disk.file_system))
}

fn command(record: &Record) -> String {
    known(&public_command(&record.command, &record.workload.target))
}

fn workload(record: &Record) -> String {
    let load = &record.workload;
    if load.protocol.is_empty() {
        return MISSING.to_owned();
    }
    let pace = match (load.arrival, load.rate_per_s) {
        (Arrival::Closed, _) => "closed loop".to_owned(),
        (Arrival::Market, _) => "open loop at the times of a market".to_owned(),
        (_, Some(per_s)) => format!("open loop at {} msg/s", rate(per_s)),
        (_, None) => "open loop in stages".to_owned(),
    };
    let reuse = match load.reuse {
        Some(1) => "one connection per message".to_owned(),
        Some(number) => format!("{} per connection", counted(number, "message")),
        None => "connections reused".to_owned(),
    };
    let parts = [
        load.protocol.to_uppercase(),
        format!("messages of {}", octets(load.message_bytes)),
        counted(u64::from(load.recipients), "recipient"),
        counted(u64::from(load.sessions), "session"),
        reuse,
        pace,
        format!("TLS {}", known(&load.tls)),
    ];
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use mailrun_measurement::record::{
        BounceRow, Death, DomainRow, ErrorRow, EventKind, EventRow, MissingMessage, SlowMessage,
    };
    use mailrun_measurement::stage::Phase;

    #[test]
    fn every_item_is_there_and_a_missing_one_is_named() {
        let text = share(&sample::held());
        for line in [
            "### mailrun: PASS 200,000 delivered, none lost",
            "- **Version**: 0.1.0",
            "- **Commit**: 0123abc",
            "- **CPU**: AMD EPYC, 2 cores",
            "- **RAM**: 24.0 GiB",
            "- **Disk**: not recorded",
            "- **File system**: not recorded",
            "**Results** (created to delivered)",
            "- rate: 54,321 msg/s",
            "- time for 10,000: 184 ms (computed from the rate)",
            "- avg: 1.50 ms",
            "- p95: 2.50 ms",
            "- max: 12.50 ms",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} in\n{text}");
        }
        let mut bare = sample::held();
        bare.stages.clear();
        bare.commit = None;
        bare.host.cpu_model = UNKNOWN.to_owned();
        let text = share(&bare);
        for name in [
            "- **Commit**: not recorded",
            "- rate: not recorded",
            "- p50: not recorded",
            "- **CPU**: not recorded, 2 cores",
        ] {
            assert!(text.lines().any(|line| line == name), "{name} in\n{text}");
        }
    }

    #[test]
    fn in_short_it_has_five_lines() {
        for record in [sample::held(), sample::mades(), sample::sink_alone(), sample::lossy()] {
            let text = share_short(&record);
            assert_eq!(text.lines().count(), 5, "{text}");
        }
        let text = share_short(&sample::held());
        assert!(text.contains("disk not recorded") && text.contains("1,000 in 18.41 ms"), "{text}");
    }

    /// A record in which every text that could identify somebody contains the word "private", for tests to find.
    fn telling() -> Record {
        let mut record = sample::relayed();
        record.name = "private run".to_owned();
        record.workload.target = "smtp://mx.private.example:25".to_owned();
        let words = "/home/private/mailrun source mx.private.example:25 --user=private --to x@private.example --out /srv/private";
        record.command = words.split(' ').map(str::to_owned).collect();
        record.errors = vec![ErrorRow {
            phase: Phase::Rcpt,
            code: 550,
            text: "5.1.1 no user private in the house of private".to_owned(),
            count: 3,
            sample: Some("private@a.example".to_owned()),
            ..ErrorRow::default()
        }];
        record.bounces = vec![BounceRow { text: record.errors[0].text.clone(), ..BounceRow::default() }];
        record.slowest =
            vec![SlowMessage { recipients: vec!["private@b.example".to_owned()], ..SlowMessage::default() }];
        record.missing =
            vec![MissingMessage { reply: Some("250 queued as private".to_owned()), ..MissingMessage::default() }];
        record.domains = vec![DomainRow { domain: "private.example".to_owned(), ..DomainRow::default() }];
        record.events =
            vec![EventRow { at_s: 1.0, kind: EventKind::ServerLost, text: "private.example went away".to_owned() }];
        for party in &mut record.parties {
            party.command = vec!["/home/private/mailrun".to_owned(), "--hostname".to_owned(), "private".to_owned()];
        }
        record
    }

    #[test]
    fn no_text_that_identifies_somebody_is_published() {
        let reply = "5.1.1 no user private in the house of private";
        let whys = [
            format!("The server rejected 3 of 200,000 messages (at rcpt: 550 {reply})."),
            format!("The server rejected 3 of 200,000 messages (at rcpt: 550 {}…", &reply[..30]),
            format!("Bounced: 3 of 200,000 messages were given up by the server: 550 {reply}."),
            "The relay died at 1.5 s: signal 9; its last message: cannot open the mailbox of private.".to_owned(),
            "No answer from gw.private.example at 1.4 s; see /var/private/log.".to_owned(),
        ];
        for reason in whys {
            let mut record = telling();
            record.verdict.outcome = Some(mailrun_measurement::record::Outcome::Fail);
            record.verdict.why.clone_from(&reason);
            record.parties[0].died = Some(Death {
                at_s: 1.5,
                how: "signal 9".to_owned(),
                said: "cannot open the mailbox of private.".to_owned(),
                out_of_memory: false,
            });
            for text in [share(&record), share_short(&record)] {
                assert!(!text.contains("private"), "{reason}\n{text}");
                assert!(text.contains(&reason[..12]) && text.to_lowercase().contains("left out"), "{reason}\n{text}");
                assert!(text.contains("samples of errors") && text.contains("domains"), "{text}");
            }
        }
    }

    #[test]
    fn no_name_of_a_host_a_user_or_a_recipient_is_published() {
        let mut record = sample::held();
        record.workload.target = "mx.private.example:25".to_owned();
        let words = "/home/private/mailrun bench mx.private.example:25 --user private --to private@a.example";
        record.command = words.split(' ').map(str::to_owned).collect();
        record.verdict.why = "mx.private.example:25 stopped answering private@a.example.".to_owned();
        for text in [share(&record), share_short(&record)] {
            assert!(!text.contains("private") && text.contains(LEFT_OUT), "{text}");
        }
        assert!(share(&record).contains("**Left out**"));
    }
}
