//! Workloads as users order them: sizes, corpora, MIME, addresses, recipients, connections, pauses, stages, warm-up. In
//! each of them, every message is accounted for, and a recording server sees the values that the source drew.
use crate::party::{bench, fates, mailrun, source, stage, undisturbed};
use crate::stand_in::StandIn;
use mailrun_measurement::record::{Arrival, LedgerRow, Record, SeriesRow, StageRow};
use mailrun_measurement::trace::{TraceResult, WARM_UP_SEQUENCE};
use mailrun_measurement::{Phase, Stage, Trace, TraceReader};
use mailrun_net::{Answer, CloseReason, Handler, Peer, RunningServer, Server};
use mailrun_smtp::command::{Mail, Recipient};
use mailrun_smtp::dsn::{Notify, Return};
use mailrun_smtp::xtext::Xtext;
use mailrun_smtp::{Limits, Path};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A message as a server saw it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen {
    connection: u64,
    sender: String,
    declared: Option<u64>,
    recipients: Vec<String>,
    /// The notifications that MAIL and each RCPT asked for.
    asked: Vec<String>,
    text: Vec<u8>,
    number: u64,
}

impl Seen {
    /// Returns the values that the source drew at random, without times and connections.
    fn drawn(&self) -> (u64, u64, String, Vec<String>) {
        (self.number, self.text.len() as u64, self.sender.clone(), self.recipients.clone())
    }

    fn body(&self) -> &[u8] {
        let at = memchr::memmem::find(&self.text, b"\r\n\r\n").unwrap() + 4;
        &self.text[at..]
    }
}

struct Clerk {
    current: Seen,
    trace: TraceReader,
    book: Arc<Mutex<Vec<Seen>>>,
}

impl Handler for Clerk {
    fn mail(&mut self, mail: &Mail<'_>) -> Answer {
        self.current.recipients.clear();
        self.current.sender = String::from_utf8_lossy(mail.sender.as_bytes()).into_owned();
        self.current.declared = mail.size;
        let returns = mail.returns.map(Return::keyword);
        let id = mail.envelope_id.map(|id| String::from_utf8_lossy(&id.decode()).into_owned());
        self.current.asked = vec![format!("{returns:?} {id:?}")];
        Answer::Yes
    }

    fn recipient_with(&mut self, recipient: &Recipient<'_>) -> Answer {
        let notify = recipient.notify.map(Notify::render);
        let original = recipient.original.and_then(|it| Xtext::parse(it.address));
        let original = original.map(|it| String::from_utf8_lossy(&it.decode()).into_owned());
        self.current.asked.push(format!("{notify:?} {original:?}"));
        self.recipient(&recipient.path)
    }

    fn recipient(&mut self, recipient: &Path<'_>) -> Answer {
        self.current.recipients.push(String::from_utf8_lossy(recipient.as_bytes()).into_owned());
        Answer::Yes
    }

    fn block(&mut self, block: &[u8]) {
        self.current.text.extend_from_slice(block);
        self.trace.receive(block);
    }

    fn message(&mut self, bytes: u64, _now: Duration) -> Answer {
        match self.trace.finish() {
            TraceResult::Intact(Trace { sequence, .. }) => self.current.number = sequence,
            _ => return Answer::reply(554, "5.6.0 There is no trace in it that fits"),
        }
        assert_eq!(bytes, self.current.text.len() as u64);
        let seen = Seen { text: std::mem::take(&mut self.current.text), ..self.current.clone() };
        self.book.lock().unwrap().push(seen);
        Answer::Yes
    }

    fn disconnect(&mut self, _parting: CloseReason) {}
}

struct Office {
    server: RunningServer,
    book: Arc<Mutex<Vec<Seen>>>,
}

impl Office {
    fn open() -> Self {
        let book: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let connections = Arc::new(AtomicU64::new(0));
        let shared = Arc::clone(&book);
        let make = move || {
            let book = Arc::clone(&shared);
            let connections = Arc::clone(&connections);
            move |_peer: Peer| {
                let connection = connections.fetch_add(1, Ordering::Relaxed);
                let current = Seen { connection, ..Seen::default() };
                Clerk { current, trace: TraceReader::default(), book: Arc::clone(&book) }
            }
        };
        let limits = Limits { message_bytes: 100 << 20, ..Limits::default() };
        let server = Server::new(make).limits(limits).start(([127, 0, 0, 1], 0).into()).unwrap();
        Self { server, book }
    }

    /// Returns the messages that the server saw, sorted by number.
    fn close(self) -> Vec<Seen> {
        self.server.stop();
        let mut seen = self.book.lock().unwrap().clone();
        seen.sort_by_key(|message| message.number);
        seen
    }
}

/// Runs the source with the arguments `words`, and returns the messages that a recording server got.
fn seen(words: &[&str]) -> Vec<Seen> {
    let office = Office::open();
    let run = source(&office.server.address().to_string(), words);
    assert_eq!(run.ended.code, Some(0), "{words:?}: {:?}", run.ended);
    assert!(run.record.errors.is_empty(), "{words:?}: {:?}", run.record.errors);
    let seen = office.close();
    assert_eq!(Some(seen.len() as u64), run.record.workload.messages, "{words:?}");
    seen
}

/// Runs a bench whose ledger must close: every created message was delivered, and every byte arrived.
fn closed(words: &[&str]) -> Record {
    let run = bench(words);
    let record = run.record_of(0);
    let [created, delivered, others @ ..] = fates(&record.ledger);
    assert!(created > 0 && created == delivered && others == [0; 3], "{words:?}: {:?}", record.ledger);
    let accepted = stage(&record, Stage::Accepted);
    let arrived = stage(&record, Stage::Delivered);
    assert_eq!((accepted.count, accepted.bytes), (arrived.count, arrived.bytes), "{words:?}");
    assert_eq!(stage(&record, Stage::Sent).bytes, arrived.bytes, "{words:?}");
    assert!(record.verdict.closed, "{words:?}: {:?}", record.verdict);
    let validator = jsonschema::validator_for(&crate::manual::schema()).unwrap();
    assert!(validator.is_valid(&serde_json::from_str(&run.file("run.json")).unwrap()), "{words:?}");
    record
}

fn mean(numbers: impl ExactSizeIterator<Item = u64>) -> f64 {
    let count = numbers.len() as f64;
    numbers.map(|number| number as f64).sum::<f64>() / count
}

#[test]
fn sizes_vary_as_asked_and_are_declared() {
    for (sizes, expected, within, least, most) in [
        ("400..64k", 32_968.0, 0.1, 400, 65_536),
        ("400:80,64k:15,256k:5", 23_257.6, 0.25, 400, 262_144),
        ("lognormal:4k,1", 6_753.0, 0.15, 300, 409_600),
        ("400..402", 401.0, 0.01, 400, 402),
    ] {
        let seen = seen(&["--messages", "600", "--sessions", "8", "--reuse", "--message-size", sizes]);
        assert!(seen.iter().all(|message| message.declared == Some(message.text.len() as u64)), "{sizes}");
        let lengths = || seen.iter().map(|message| message.text.len() as u64);
        let mean = mean(lengths());
        assert!((mean / expected - 1.0).abs() < within, "{sizes}: {mean}");
        assert!(lengths().all(|length| (least..=most).contains(&length)), "{sizes}: {:?}", lengths().max());
    }
}

#[test]
fn the_ledger_closes_over_sizes_that_vary() {
    for (sizes, pipelining) in [("400..64k", "off"), ("lognormal:4k,1.5", "group"), ("330:9,20k..3M:1", "stream")] {
        let words =
            ["--messages", "200", "--sessions", "5", "--reuse", "--message-size", sizes, "--pipelining", pipelining];
        let record = closed(&words);
        let varied = record.workload.sizes_varied.as_ref().unwrap();
        assert_eq!(varied.expression, sizes);
        assert!(varied.least < varied.mean && varied.mean < varied.most);
        let mean = stage(&record, Stage::Delivered).bytes as f64 / 200.0;
        assert!((mean / record.workload.message_bytes as f64 - 1.0).abs() < 0.5, "{sizes}: {mean}");
    }
}

#[test]
fn a_seed_gives_the_same_mail_whoever_sends_it() {
    let words = |seed, sessions, more: &[&'static str]| {
        let own = ["--messages", "150", "--message-size", "lognormal:2k,1", "--recipients", "1..5", "--seed", seed];
        let patterns = ["--from", "b{0..99}@x.example", "--to", "u{0..9999}@{a.example:3,b.example}"];
        let words = [own.as_slice(), &patterns, &["--sessions", sessions], more].concat();
        seen(&words).iter().map(Seen::drawn).collect::<Vec<_>>()
    };
    let one = words("7", "1", &[]);
    assert_eq!(one, words("7", "20", &["--reuse", "--pipelining", "stream", "--workers", "3"]));
    assert_ne!(one, words("8", "1", &[]));
}

#[test]
fn patterns_give_addresses_that_the_ledger_tells_apart() {
    let rcpt = "user{0..9999}@{a.example:70,b.example:20,c.example:10}";
    for recipients in ["1", "4", "1..5", "1:9,100:1"] {
        for pipelining in ["off", "stream"] {
            let words = ["--messages", "300", "--sessions", "6", "--reuse=10", "--pipelining", pipelining];
            let record = closed(&[words.as_slice(), &["--to", rcpt, "--recipients", recipients]].concat());
            assert_eq!(record.workload.rcpt, rcpt);
            assert_eq!(record.workload.recipients_varied.is_some(), recipients.contains(['.', ':']), "{recipients}");
        }
    }
    let seen = seen(&["--messages", "500", "--to", rcpt, "--recipients", "1..5", "--from", "{x,y}{1..9}@z.example"]);
    let mut domains = BTreeMap::new();
    for message in &seen {
        let different: BTreeSet<&String> = message.recipients.iter().collect();
        assert_eq!(different.len(), message.recipients.len(), "{:?}", message.recipients);
        assert!(!message.recipients.iter().any(|address| address.contains('+')), "{:?}", message.recipients);
        for address in &message.recipients {
            *domains.entry(address.rsplit_once('@').unwrap().1.to_owned()).or_insert(0_u64) += 1;
        }
    }
    let all: u64 = domains.values().sum();
    let counts: BTreeSet<usize> = seen.iter().map(|message| message.recipients.len()).collect();
    assert_eq!(counts, (1..=5).collect());
    for (domain, share) in [("a.example", 0.7), ("b.example", 0.2), ("c.example", 0.1)] {
        assert!((domains[domain] as f64 / all as f64 - share).abs() < 0.05, "{domains:?}");
    }
    let senders: BTreeSet<&str> = seen.iter().map(|message| message.sender.as_str()).collect();
    assert_eq!(senders.len(), 18);
}

#[test]
fn a_message_goes_to_each_of_several_patterns() {
    for more in
        [&["--relay", "none"][..], &["--relay", "none", "--lmtp", "--reuse"], &["--pipelining", "stream", "--reuse"]]
    {
        let words =
            ["--messages", "100", "--sessions", "4", "--to", "ann@a.example", "--to", "user{0..9999}@b.example"];
        let record = closed(&[words.as_slice(), more].concat());
        assert_eq!(fates(&record.ledger), [200, 200, 0, 0, 0], "{more:?}");
        assert_eq!((record.workload.recipients, stage(&record, Stage::Delivered).count), (2, 100), "{more:?}");
        assert_eq!(record.workload.rcpt, "ann@a.example, user{0..9999}@b.example");
    }
    for (typed, expected) in [
        (["ann@a.example", "bob@b.example"], ["ann@a.example", "bob@b.example"]),
        (["bob7@b.example", "ann@a.example"], ["bob7@b.example", "ann@a.example"]),
    ] {
        let seen = seen(&["--messages", "20", "--from", "<>", "--to", typed[0], "--to", typed[1]]);
        assert!(
            seen.iter().all(|message| message.recipients == expected && message.sender.is_empty()),
            "{:?}",
            seen[0]
        );
    }
}

#[test]
fn recipients_are_tagged_on_request() {
    closed(&["--messages", "50", "--from", "", "--to", "\"a b\"@a.example"]);
    let tagged = |words: &[&str]| -> BTreeSet<Vec<String>> {
        let words = [&["--messages", "60", "--tag-recipients"], words].concat();
        closed(&words);
        seen(&words).into_iter().map(|message| message.recipients).collect()
    };
    let one = tagged(&["--to", "u{0..9999}@a.example"]);
    assert!(one.iter().all(|recipients| !recipients[0].contains('+')), "{one:?}");
    let both = tagged(&["--to", "ann@a.example", "--to", "ann@a.example"]);
    assert_eq!(both.into_iter().collect::<Vec<_>>(), [["ann@a.example", "ann+1@a.example"]]);
    let copies = tagged(&["--to", "ann@a.example", "--recipients", "2"]);
    assert_eq!(copies.into_iter().collect::<Vec<_>>(), [["ann0@a.example", "ann1@a.example"]]);
}

const MBOX: &str = "From a@b Sat Nov 21 09:30:00 2026\nSubject: one\n\nfirst\n.\n..dots\n\n\
    From c@d Sat Nov 21 09:31:00 2026\nSubject: zwei\n\n>From dort grüßt man\n\n\
    From e@f Sat Nov 21 09:32:00 2026\nSubject: three\n\nthird\n";

const BODIES: [&str; 3] = ["first\r\n.\r\n..dots\r\n", "From dort grüßt man\r\n", "third\r\n"];

#[test]
fn a_corpus_is_sent_as_it_is_whatever_it_lies_in() {
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name);
    fs::write(path("box"), MBOX).unwrap();
    fs::create_dir_all(path("maildir/cur")).unwrap();
    fs::create_dir_all(path("maildir/new")).unwrap();
    fs::create_dir(path("files")).unwrap();
    for (number, (name, body)) in ["cur/1", "cur/2:2,S", "new/3"].into_iter().zip(BODIES).enumerate() {
        let text = format!("Subject: {number}\n\n{body}").replace("\r\n", "\n");
        fs::write(path("maildir").join(name), &text).unwrap();
        fs::write(path("files").join(format!("{number}.eml")), &text).unwrap();
    }
    for (name, kind) in [("box", "mbox"), ("maildir", "maildir"), ("files", "directory"), ("files/0.eml", "message")] {
        let path = path(name);
        let words = ["--messages", "90", "--sessions", "4", "--reuse", "--corpus", path.to_str().unwrap()];
        let record = closed(&words);
        let corpus = record.workload.corpus.as_ref().unwrap();
        assert_eq!((corpus.kind.as_str(), corpus.skipped), (kind, 0));
        let seen = seen(&words);
        let mut counts: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
        seen.iter().for_each(|message| *counts.entry(message.body().to_vec()).or_default() += 1);
        let expected: BTreeSet<Vec<u8>> =
            BODIES[..corpus.messages as usize].iter().map(|body| body.as_bytes().to_vec()).collect();
        assert_eq!(counts.keys().cloned().collect::<BTreeSet<_>>(), expected, "{name}");
        assert!(counts.values().all(|count| *count >= 10), "{name}: each is picked: {counts:?}");
        assert!(seen.iter().all(|message| message.declared == Some(message.text.len() as u64)), "{name}");
    }
}

#[test]
fn a_large_message_of_a_corpus_is_held_once() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("large.eml");
    let bytes = 40 << 20;
    let line = ".2345678 10 345678 20 345678 30 345678 40 345678 50 345678 60 345678 70 345678\n";
    fs::write(&path, ["Subject: large\n\n", &line.repeat(bytes / line.len())].concat()).unwrap();
    let path = path.to_str().unwrap();
    let record = closed(&["--messages", "2", "--sessions", "2", "--corpus", path]);
    assert!(stage(&record, Stage::Delivered).bytes > 2 * 40_000_000);
    let source = record.parties.iter().find(|party| party.name == "source").unwrap();
    let peak = source.max_rss_bytes.unwrap();
    assert!(peak < 3 * bytes as u64, "while it is read it is there twice, and never more: {peak}");
    let refused = mailrun(&["source", "127.0.0.1:1", "--corpus", path, "--max-corpus-size", "10M"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.err.contains("--max-corpus-size, 10485760 bytes"), "{}", refused.err);
}

#[test]
fn mime_messages_have_attachments_and_the_sizes_asked_for() {
    for (words, least, most) in [
        (["--message-size", "20k..200k"].as_slice(), 20_400, 204_800),
        (&["--message-size", "50k"], 51_120, 51_200),
        (&[], 600, 2_457_600),
    ] {
        let words = [&["--messages", "100", "--sessions", "4", "--reuse", "--mime"], words].concat();
        let record = closed(&words);
        assert_eq!(record.workload.mime_messages, Some(64));
        let seen = seen(&words);
        assert!(seen.iter().all(|message| (least..=most).contains(&message.text.len())), "{words:?}");
        assert!(seen.iter().all(|message| message.declared == Some(message.text.len() as u64)));
        let texts: Vec<String> = seen.iter().map(|message| String::from_utf8(message.text.clone()).unwrap()).collect();
        assert!(texts.iter().all(|text| text.contains("multipart/alternative") && text.contains("text/html")));
        assert!(texts.iter().filter(|text| text.contains("Content-Transfer-Encoding: base64")).count() > 50);
        let ids: BTreeSet<&str> =
            texts.iter().filter_map(|text| text.lines().find(|line| line.starts_with("Message-ID:"))).collect();
        assert_eq!(ids.len(), 100, "each has a Message-ID of its own");
    }
}

#[test]
fn connections_carry_as_many_messages_as_drawn() {
    let words = ["--messages", "600", "--sessions", "3", "--reuse=1..20"];
    let record = closed(&words);
    let connections = record.phases.iter().find(|row| row.name == Phase::Connect).unwrap().count;
    assert!((45..75).contains(&connections), "600 messages, 10.5 a connection in the mean: {connections}");
    assert_eq!(record.workload.reuse, Some(20));
    let mut carried: BTreeMap<u64, u64> = BTreeMap::new();
    seen(&words).iter().for_each(|message| *carried.entry(message.connection).or_default() += 1);
    assert!(carried.values().all(|count| (1..=20).contains(count)), "{carried:?}");
    assert!(carried.values().collect::<BTreeSet<_>>().len() > 8, "{carried:?}");
}

#[test]
fn sessions_rest_between_messages_and_not_beyond_the_end() {
    let record = closed(&["--messages", "12", "--sessions", "2", "--reuse", "--think-time", "100ms"]);
    // Each session sends six messages with five pauses of 100 ms between them.
    assert!(record.duration_s >= 0.5, "{}", record.duration_s);
    assert_eq!(record.workload.think_ms.as_ref().map(|think| think.mean), Some(100.0));
    // The end of a run must not wait for pausing sessions. A pause of an hour would exceed every time limit of a test.
    for reuse in ["--reuse", "--reuse=1"] {
        let record = closed(&["--messages", "3", "--sessions", "3", reuse, "--think-time", "1h"]);
        assert_eq!(record.ledger.delivered, Some(3));
    }
    let record =
        closed(&["--duration", "500ms", "--sessions", "2", "--reuse", "--pipelining", "stream", "--think-time", "1h"]);
    assert_eq!(record.ledger.delivered, Some(2));
}

#[test]
fn stages_are_offered_one_after_the_other() {
    let stages = ["--stage", "500ms:200/s", "--stage", "300ms:0/s", "--stage", "1s:100/s..300/s"];
    let look = || closed(&[stages.as_slice(), &["--sessions", "20", "--reuse"]].concat());
    let record = undisturbed(look, |record| {
        let created = stage(record, Stage::Created);
        // The three stages send 100, 0 and 200 messages.
        (260..=301).contains(&created.count) && (1.5..2.2).contains(&created.duration_s)
    });
    assert_eq!((record.workload.arrival, record.workload.stages.len()), (Arrival::Constant, 3));
    assert!((record.workload.rate_per_s.unwrap() - 300.0 / 1.8).abs() < 1e-6);
    assert_eq!(record.workload.stages[2].to_per_s, 300.0);
    let short = closed(&[stages.as_slice(), &["--messages", "50", "--", "--arrival", "poisson"]].concat());
    assert_eq!((short.ledger.created, short.workload.arrival), (Some(50), Arrival::Poisson));
}

/// The sink loses some mail of each stage, and the first stage begins with a warm-up.
#[test]
fn each_stage_of_the_load_has_figures_and_an_account_of_its_own() {
    let load =
        ["--stage", "calm=600ms:100/s", "--stage", "500ms:200/s", "--warm-up", "200ms", "--sessions", "20", "--reuse"];
    let asked = ["stage calm: accepted.p99 < 1h", "stage 2: lost <= 0", "stage 2: delivered.max < 1h", "lost <= 100%"];
    let thresholds: Vec<&str> = asked.iter().flat_map(|text| ["--threshold", *text]).collect();
    let run = bench(&[&load[..], &["--fault", "drop 30%"], &thresholds].concat());
    let record = run.record_of(1);
    let rows = &record.load_stages;
    let names: Vec<_> = rows.iter().map(|row| (row.number, row.name.as_str(), row.end_s.round())).collect();
    assert_eq!(names, [(1, "calm", 1.0), (2, "2", 1.0)]);
    let sum = |count: fn(&LedgerRow) -> Option<u64>| rows.iter().map(|row| count(&row.ledger).unwrap()).sum::<u64>();
    let whole = &record.ledger;
    assert_eq!(Some(sum(|ledger| ledger.created)), whole.created);
    assert_eq!(Some(sum(|ledger| ledger.accepted)), whole.accepted);
    assert_eq!(Some(sum(|ledger| ledger.delivered)), whole.delivered);
    assert_eq!(Some(sum(|ledger| ledger.lost)), whole.lost);
    assert!(rows.iter().all(|row| row.ledger.lost > Some(0)), "{rows:?}");
    for name in [Stage::Created, Stage::Sent, Stage::Accepted, Stage::Delivered] {
        let counts = rows.iter().map(|row| row.stages.iter().find(|stage| stage.name == name).unwrap().count);
        assert_eq!(counts.sum::<u64>(), stage(&record, name).count, "{name:?}, without the warm-up");
    }
    let verdicts: Vec<_> = record.thresholds.iter().map(|row| (row.passed, row.missed)).collect();
    assert_eq!(verdicts, [(true, false), (false, true), (false, true), (true, false)]);
    assert!(run.file("report.md").contains("## Stages of the load"), "{}", run.file("report.md"));
    assert!(run.file("report.html").contains("id=\"load-stages\""));
    let path = run.path().join("run.json");
    let report = mailrun(&["report", path.to_str().unwrap(), "--format", "junit"]);
    assert!(report.out.contains("<testcase name=\"stage 2: lost &lt;= 0\""), "{}", report.out);
}

#[test]
fn notifications_are_asked_for_of_every_message_and_recipient() {
    let base = ["--messages", "20", "--sessions", "2", "--recipients", "2", "--to", "a+b@c", "--tag-recipients"];
    for pipelining in ["off", "stream"] {
        let words = [
            "--dsn-notify",
            "success,DELAY",
            "--dsn-ret",
            "hdrs",
            "--dsn-envid",
            "run 7/{n}",
            "--dsn-orcpt",
            "--reuse",
        ];
        for message in seen(&[&base, words.as_slice(), &["--pipelining", pipelining]].concat()) {
            let mail = format!("Some(\"HDRS\") Some(\"run 7/{}\")", message.number);
            let told = |place| format!("Some(\"SUCCESS,DELAY\") Some(\"a+b{place}@c\")");
            assert_eq!(message.asked, [mail, told(0), told(1)]);
        }
    }
    let plain = seen(&base);
    assert!(plain.iter().all(|message| message.asked == ["None None"; 3]));
    let never = closed(&["--messages", "20", "--sessions", "2", "--", "--dsn-notify", "never", "--dsn-envid", "x"]);
    assert_eq!(never.workload.dsn.as_deref(), Some("NOTIFY=NEVER ENVID=x"), "bench passes it on");
}

#[test]
fn who_asks_for_notifications_sends_nothing_to_a_server_without() {
    let server = StandIn::start(|_| None);
    let run = source(&server.address(), &["--messages", "4", "--sessions", "1", "--dsn-notify", "never"]);
    assert_eq!((run.ended.code, server.taken()), (Some(1), 0), "{:?}", run.ended);
    let errors: Vec<_> = run.record.errors.iter().map(|row| (row.phase, row.count, row.text.as_str())).collect();
    assert_eq!(errors, [(Phase::Ehlo, 4, "the server does not offer DSN")]);
}

#[test]
fn the_warm_up_is_in_the_ledger_and_in_no_figure() {
    let words = ["--rate", "200", "--duration", "1500ms", "--warm-up", "500ms", "--sessions", "10", "--reuse"];
    let stages = [Stage::Created, Stage::Sent, Stage::Accepted, Stage::Delivered];
    // Repeat the run if the machine stalls, because the source then sends less and takes longer.
    let (run, record) = undisturbed(
        || {
            let run = bench(&words);
            let record = run.record_of(0);
            (run, record)
        },
        |(_, record)| {
            let warm_up = record.warm_up.as_ref().unwrap().created;
            let created = record.ledger.created.unwrap();
            let is_timed = |row: &StageRow| {
                (0.8..1.5).contains(&row.duration_s)
                    && row.rate_per_s.is_some_and(|rate| (130.0..250.0).contains(&rate))
            };
            let are_timed = stages.iter().all(|name| is_timed(stage(record, *name)));
            (85..=115).contains(&warm_up) && (260..=300).contains(&created) && are_timed
        },
    );
    let warm_up = record.warm_up.unwrap();
    let created = record.ledger.created.unwrap();
    for name in stages {
        assert_eq!(stage(&record, name).count, created - warm_up.created, "{name:?}");
    }
    assert_eq!((warm_up.accepted, warm_up.length_s), (warm_up.created, 0.5));
    let sum = |count: fn(&SeriesRow) -> u64| record.series.iter().map(count).sum::<u64>();
    let counted = created - warm_up.created;
    assert_eq!([sum(|row| row.sent), sum(|row| row.accepted), sum(|row| row.delivered)], [counted; 3]);
    assert_eq!(fates(&record.ledger), [created, created, 0, 0, 0]);
    assert!(record.verdict.closed, "{:?}", record.verdict);
    let data = record.phases.iter().find(|row| row.name == Phase::Data).unwrap();
    assert!((created / 3..created).contains(&data.count), "phases leave the warm-up out too: {}", data.count);
    let said = format!("its {} messages are in the ledger", warm_up.created);
    assert!(run.file("report.md").contains(&said), "{}", run.file("report.md"));
}

#[test]
fn a_run_that_never_got_warm_has_no_figures_and_says_so() {
    let run = bench(&["--messages", "100", "--sessions", "4", "--warm-up", "1h"]);
    let record = run.record_of(0);
    assert_eq!(fates(&record.ledger), [100, 100, 0, 0, 0]);
    assert_eq!((stage(&record, Stage::Accepted).count, record.warm_up.unwrap().accepted), (0, 100));
    assert!(record.verdict.closed && !record.verdict.valid, "{:?}", record.verdict);
    assert!(
        record.verdict.reasons.iter().any(|reason| reason.contains("of 100 messages was created within")),
        "{:?}",
        record.verdict
    );
    let office = Office::open();
    let to = office.server.address().to_string();
    source(&to, &["--messages", "10", "--warm-up", "1h"]);
    assert!(office.close().iter().enumerate().all(|(at, message)| message.number == WARM_UP_SEQUENCE + at as u64));
}

#[test]
fn a_plain_run_says_nothing_of_what_does_not_vary() {
    let record = closed(&["--messages", "100", "--sessions", "3"]);
    let workload = &record.workload;
    assert_eq!((workload.message_bytes, workload.recipients, workload.reuse), (400, 1, Some(1)));
    assert!(workload.sizes_varied.is_none() && workload.recipients_varied.is_none() && workload.reuse_varied.is_none());
    assert!(workload.think_ms.is_none() && workload.corpus.is_none() && workload.stages.is_empty());
    assert!(record.warm_up.is_none() && workload.mime_messages.is_none());
}
