//! Describes the offered load and the host on which it ran.
use super::disturbances;
use super::figures::{Section, SectionBody};
use mailrun_measurement::record::{Arrival, OfferedStage, Pipelining, Record, Role, Varied, Workload};
use mailrun_text::numbers::{count, counted, figure, latency, memory, octets, rate, seconds};
use mailrun_text::table::plain;

/// Envelope addresses that mailrun uses by default. A report leaves them out, because they tell the reader nothing.
const DEFAULT_ADDRESSES: [&str; 3] = ["", "from@example.com", "to@example.com"];
const MAX_LISTED_STAGES: usize = 8;

/// Returns the section about the offered load, or `None` for the record of a sink alone, because a sink does not know
/// what was sent.
pub(crate) fn offered(record: &Record) -> Option<Section> {
    record.parties.iter().find(|party| party.role == Role::Source)?;
    let workload = &record.workload;
    let mut facts = vec![("load", load(workload))];
    facts.extend(mail(workload).map(|mail| ("mail", mail)));
    facts.extend(addresses(workload).map(|addresses| ("addresses", addresses)));
    facts.extend(workload.dsn.as_ref().map(|dsn| ("DSN", plain(dsn))));
    facts.extend([("sessions", sessions(workload)), ("arrival", arrival(workload))]);
    facts.extend(warm_up(record).map(|warm_up| ("warm-up", warm_up)));
    facts.push(("target", target(workload)));
    Some(Section { title: "Workload", note: None, body: SectionBody::Facts(facts) })
}

/// Returns the section about the host, the version and the command line, with which a reader can repeat the run.
pub(crate) fn surroundings(record: &Record) -> Option<Section> {
    let commit = record.commit.as_ref().map_or_else(String::new, |commit| format!(" (commit {commit})"));
    let mut facts = vec![("host", machine(record))];
    facts.extend(disturbances::line(record).map(|line| ("other load", line)));
    facts.extend([
        ("mailrun", format!("{}{commit}", plain(&record.version))),
        ("command", plain(&quoted(&record.command))),
        ("run", format!("{} · started {}", plain(&record.run_id), plain(&record.started_at))),
    ]);
    if record.parties.iter().any(|party| party.role == Role::Source) {
        facts.push(("seed", record.workload.seed.to_string()));
    }
    Some(Section { title: "Host", note: None, body: SectionBody::Facts(facts) })
}

/// Returns what all trials of a capacity search have in common: the server, the load and the host. `record` is the
/// record of one of the trials.
pub fn search_facts(record: &Record, is_own_sink: bool) -> Vec<(&'static str, String)> {
    let workload = &record.workload;
    let started = record.parties.iter().find(|party| party.role == Role::Relay && party.name != workload.target);
    let server = match started {
        Some(party) => plain(&party.name),
        None if is_own_sink => "mailrun's own sink".to_owned(),
        None => target(workload),
    };
    let mail = mail(workload).map_or_else(String::new, |mail| format!(" · {mail}"));
    vec![
        ("server", server),
        ("load", format!("messages of {} to {} each{mail}", sizes(workload), recipients(workload))),
        ("sessions", sessions(workload)),
        ("host", machine(record)),
    ]
}

/// Describes the load in a few words, such as `200/s · 4.00 s · 400 B · 100 sessions`.
pub fn load_in_short(workload: &Workload) -> String {
    let whole = |rate: f64| if rate.fract() == 0.0 { count(rate as u64) } else { figure(rate) };
    let pace = match (workload.stages.as_slice(), workload.rate_per_s) {
        ([], Some(rate)) => Some(format!("{}/s", whole(rate))),
        ([], None) if workload.arrival == Arrival::Closed => Some("closed loop".to_owned()),
        ([], None) => None,
        (stages, _) => Some(counted(stages.len() as u64, "stage")),
    };
    let messages = workload.messages.map(|number| counted(number, "message"));
    let length = workload.duration_limit_s.map(seconds);
    let parts = pace.into_iter().chain(messages).chain(length);
    let sessions = match workload.protocol.as_str() {
        "mades" => format!("{} in transit at most", count(u64::from(workload.sessions))),
        _ => counted(u64::from(workload.sessions), "session"),
    };
    let size = (workload.message_bytes > 0).then(|| octets(workload.message_bytes));
    parts.chain(size).chain([sessions]).collect::<Vec<_>>().join(" · ")
}

fn machine(record: &Record) -> String {
    let host = &record.host;
    let machine = [
        host.os.clone(),
        format!("Linux {}", host.kernel),
        host.cpu_model.clone(),
        counted(u64::from(host.cores), "core"),
        memory(host.memory_bytes),
    ];
    let awake = host.keep_awake.map(|state| state.words().to_owned());
    plain(&machine.into_iter().chain(awake).collect::<Vec<_>>().join(" · "))
}

fn load(workload: &Workload) -> String {
    let each = format!("{} to {} each", sizes(workload), recipients(workload));
    match (workload.messages, workload.duration_limit_s) {
        (Some(number), Some(limit)) => {
            format!("{} of {each}, for at most {}", counted(number, "message"), seconds(limit))
        }
        (Some(number), None) => format!("{} of {each}", counted(number, "message")),
        (None, Some(limit)) => format!("messages of {each}, for {}", seconds(limit)),
        (None, None) => format!("messages of {each}, until stopped"),
    }
}

/// Returns the size of the messages, for example `400 B`. If the sizes vary, returns their mean and, unless they come
/// from a corpus, the distribution that the user gave, for example `12.4 KiB on average (400..64k)`.
pub(super) fn sizes(workload: &Workload) -> String {
    let mean = octets(workload.message_bytes);
    match (&workload.sizes_varied, &workload.corpus) {
        (Some(sizes), _) => format!("{mean} on average ({})", plain(&sizes.expression)),
        (None, Some(_)) => format!("{mean} on average"),
        (None, None) => mean,
    }
}

fn recipients(workload: &Workload) -> String {
    match &workload.recipients_varied {
        Some(varied) => format!("{} recipients", expected(varied)),
        None => counted(u64::from(workload.recipients), "recipient"),
    }
}

/// Formats a number that varies from message to message, with its mean, for example `1..5 (3.000 on average)`.
fn expected(varied: &Varied) -> String {
    format!("{} ({} on average)", plain(&varied.expression), figure(varied.mean))
}

/// Says where the content of the messages comes from: generated MIME messages, or the user's corpus. Returns `None` if
/// mailrun fills the messages with generated plain text instead.
fn mail(workload: &Workload) -> Option<String> {
    if let Some(made) = workload.mime_messages {
        return Some(format!("MIME with attachments, drawn from {} by seed", counted(made, "message")));
    }
    let corpus = workload.corpus.as_ref()?;
    let skipped = match corpus.skipped {
        0 => String::new(),
        number => format!(", {} left out because they cannot be sent", count(number)),
    };
    let held = counted(corpus.messages, "message");
    let bytes = octets(corpus.bytes);
    Some(format!(
        "{} ({}): {held} of {bytes} together{skipped}, drawn by seed",
        plain(&corpus.path),
        plain(&corpus.kind)
    ))
}

fn addresses(workload: &Workload) -> Option<String> {
    let are_usual = [&workload.from, &workload.rcpt].iter().all(|typed| DEFAULT_ADDRESSES.contains(&typed.as_str()));
    (!are_usual).then(|| format!("from {} to {}", plain(&workload.from), plain(&workload.rcpt)))
}

/// Says how many messages were created during the warm-up. The ledger counts them, but no rate or latency does.
fn warm_up(record: &Record) -> Option<String> {
    let warm_up = record.warm_up?;
    let length = seconds(warm_up.length_s);
    let created = counted(warm_up.created, "message");
    Some(format!("the first {length}: its {created} are in the ledger, but in no rate, latency or duration"))
}

fn sessions(workload: &Workload) -> String {
    let reuse = match (&workload.reuse_varied, workload.reuse) {
        (Some(varied), _) => format!("{} messages per connection", expected(varied)),
        (None, reuse) => connections(reuse),
    };
    let commands = match workload.pipelining {
        Pipelining::Off => "one command at a time",
        Pipelining::Group => "MAIL, RCPT and DATA in one write",
        Pipelining::Stream => "a message and the next MAIL, RCPT and DATA in one write",
    };
    let think = workload.think_ms.as_ref().map_or_else(String::new, |think| {
        format!(" · {} of pause after each message, {} on average", plain(&think.expression), latency(think.mean))
    });
    format!("{} · {reuse} · {commands}{think}", count(u64::from(workload.sessions)))
}

fn connections(reuse: Option<u64>) -> String {
    match reuse {
        None => "connections reused without limit".to_owned(),
        Some(1) => "one connection per message".to_owned(),
        Some(number) => format!("{} per connection", counted(number, "message")),
    }
}

pub(super) fn arrival(workload: &Workload) -> String {
    let paced = match workload.stages.as_slice() {
        [] => workload.rate_per_s.map_or_else(String::new, |pace| format!(" at {} msg/s", rate(pace))),
        stages => staged(stages),
    };
    match workload.arrival {
        Arrival::Closed => "closed loop: a session sends its next message when the last is answered".to_owned(),
        Arrival::Constant => format!("open loop{paced}, at even intervals"),
        Arrival::Poisson => format!("open loop{paced}, at random intervals (Poisson)"),
        Arrival::Market => "open loop, at the times of a market".to_owned(),
    }
}

/// Describes the stages of a load, for example ` in stages: 10.00 s at 100.0 msg/s, 60.00 s from 100.0 to 1,000 msg/s`.
fn staged(stages: &[OfferedStage]) -> String {
    let stage_text = |stage: &OfferedStage| {
        let name = stage.name.as_ref().map(|name| format!("{}: ", plain(name))).unwrap_or_default();
        let length = format!("{name}{}", seconds(stage.length_s));
        if stage.from_per_s == stage.to_per_s {
            return format!("{length} at {} msg/s", rate(stage.from_per_s));
        }
        format!("{length} from {} to {} msg/s", rate(stage.from_per_s), rate(stage.to_per_s))
    };
    let mut listed: Vec<String> = stages.iter().take(MAX_LISTED_STAGES).map(stage_text).collect();
    if stages.len() > MAX_LISTED_STAGES {
        listed.push(format!("{} more", stages.len() - MAX_LISTED_STAGES));
    }
    format!(" in stages: {}", listed.join(", "))
}

pub(super) fn security(workload: &Workload) -> String {
    match workload.tls.as_str() {
        "" | "none" => "no TLS".to_owned(),
        kind => format!("TLS: {}", plain(kind)),
    }
}

fn target(workload: &Workload) -> String {
    let security = security(workload);
    let transfer = if workload.chunking { ", BDAT" } else { "" };
    format!("{}, {}{transfer}, {security}", plain(&workload.target), plain(&workload.protocol).to_uppercase())
}

pub fn quoted(command: &[String]) -> String {
    let safe = |word: &str| !word.is_empty() && word.chars().all(|c| c.is_alphanumeric() || "-_=./:@,+%[]".contains(c));
    let word = |word: &String| if safe(word) { word.clone() } else { format!("'{}'", word.replace('\'', r"'\''")) };
    command.iter().map(word).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;
    use mailrun_measurement::record::{CorpusRow, KeepAwake, WarmUp};

    #[test]
    fn the_machine_is_named_with_the_sleep_of_its_processors() {
        let mut record = sample::held();
        let without = "Debian GNU/Linux 12 (bookworm) · Linux 6.18.44 · AMD EPYC · 2 cores · 24.0 GiB";
        assert_eq!(machine(&record), without);
        record.host.keep_awake = Some(KeepAwake::On);
        assert_eq!(machine(&record), format!("{without} · processors kept awake"));
    }

    #[test]
    fn the_load_is_said_in_words() {
        let workload = sample::held().workload;
        assert_eq!(load(&workload), "200,000 messages of 400 B to 1 recipient each");
        assert_eq!(sessions(&workload), "100 · connections reused without limit · one command at a time");
        assert_eq!(target(&workload), "127.0.0.1:40001, SMTP, no TLS");
        let timed = Workload { messages: None, duration_limit_s: Some(10.0), ..workload };
        assert_eq!(load(&timed), "messages of 400 B to 1 recipient each, for 10.00 s");
    }

    #[test]
    fn a_load_in_short_has_its_pace_first() {
        let closed = sample::held().workload;
        assert_eq!(load_in_short(&closed), "closed loop · 200,000 messages · 400 B · 100 sessions");
        let open = Workload {
            arrival: Arrival::Constant,
            rate_per_s: Some(200.0),
            messages: None,
            duration_limit_s: Some(4.0),
            ..closed
        };
        assert_eq!(load_in_short(&open), "200/s · 4.00 s · 400 B · 100 sessions");
        let mades = Workload { protocol: "mades".to_owned(), sessions: 1_000, rate_per_s: Some(2.5), ..open };
        assert_eq!(load_in_short(&mades), "2.500/s · 4.00 s · 400 B · 1,000 in transit at most");
    }

    fn varied(expression: &str, mean: f64) -> Option<Varied> {
        Some(Varied { expression: expression.to_owned(), least: 1.0, mean, most: 5.0 * mean })
    }

    #[test]
    fn what_varies_is_said_as_typed_and_with_its_mean() {
        let workload = Workload {
            message_bytes: 32_968,
            sizes_varied: varied("400..64k", 32_968.0),
            recipients_varied: varied("1..5", 3.0),
            reuse_varied: varied("1..20", 10.5),
            think_ms: varied("50ms..2s", 1_025.0),
            from: "from@example.com".to_owned(),
            rcpt: "user{0..9}@b".to_owned(),
            ..sample::held().workload
        };
        let expected = "200,000 messages of 32.2 KiB on average (400..64k) to 1..5 (3.000 on average) recipients each";
        assert_eq!(load(&workload), expected);
        let expected = "100 · 1..20 (10.50 on average) messages per connection · one command at a time · \
                        50ms..2s of pause after each message, 1.02 s on average";
        assert_eq!(sessions(&workload), expected);
        assert_eq!(addresses(&workload).as_deref(), Some("from from@example.com to user{0..9}@b"));
        assert_eq!(addresses(&sample::held().workload), None);
    }

    #[test]
    fn a_corpus_and_mime_are_named() {
        let corpus =
            CorpusRow { path: "a.mbox".to_owned(), kind: "mbox".to_owned(), messages: 3, bytes: 900, skipped: 1 };
        let workload = Workload { corpus: Some(corpus), ..sample::held().workload };
        let expected =
            "a.mbox (mbox): 3 messages of 900 B together, 1 left out because they cannot be sent, drawn by seed";
        assert_eq!(mail(&workload).as_deref(), Some(expected));
        assert_eq!(load(&workload), "200,000 messages of 400 B on average to 1 recipient each");
        let workload = Workload { mime_messages: Some(64), ..sample::held().workload };
        assert_eq!(mail(&workload).as_deref(), Some("MIME with attachments, drawn from 64 messages by seed"));
        assert_eq!(mail(&sample::held().workload), None);
    }

    #[test]
    fn stages_and_warm_up_are_said() {
        let stage = |from_per_s, to_per_s| OfferedStage { name: None, length_s: 10.0, from_per_s, to_per_s };
        let stages = vec![stage(100.0, 100.0), stage(100.0, 1_000.0)];
        let workload = Workload { arrival: Arrival::Constant, stages, ..sample::held().workload };
        let expected =
            "open loop in stages: 10.00 s at 100.0 msg/s, 10.00 s from 100.0 to 1,000 msg/s, at even intervals";
        assert_eq!(arrival(&workload), expected);
        assert!(staged(&vec![stage(1.0, 2.0); 20]).ends_with(", 12 more"));
        let warm = WarmUp { length_s: 5.0, created: 1_234, accepted: 1_200 };
        let record = Record { warm_up: Some(warm), ..sample::held() };
        let expected = "the first 5.00 s: its 1,234 messages are in the ledger, but in no rate, latency or duration";
        assert_eq!(warm_up(&record).as_deref(), Some(expected));
    }

    #[test]
    fn open_loop_names_its_pace() {
        let workload = Workload { arrival: Arrival::Poisson, rate_per_s: Some(1_000.0), ..sample::held().workload };
        assert_eq!(arrival(&workload), "open loop at 1,000 msg/s, at random intervals (Poisson)");
    }

    #[test]
    fn a_command_can_be_typed_again() {
        let command = ["mailrun", "bench", "--label", "two words", "it's"].map(str::to_owned);
        assert_eq!(quoted(&command), r"mailrun bench --label 'two words' 'it'\''s'");
    }

    #[test]
    fn a_sink_alone_has_no_workload() {
        assert!(offered(&sample::sink_alone()).is_none());
        assert!(surroundings(&sample::sink_alone()).is_some());
    }
}
