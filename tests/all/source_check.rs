//! Each source must deliver every message to every recipient, once and unchanged. The sources are ours, and smtp-source
//! and go-smtp-source if they are installed. They send to every sink that can save its messages. bench_check.sh of
//! go-smtp-source checks less: it only counts the messages.
use crate::party::{MAILRUN, Sink, low_port, peer, run, wait_until};
use crate::smtp_pair::{Running, Who, user};
use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;
use tempfile::TempDir;

const MESSAGES: usize = 50;
/// Lines of text in every message of every source.
const TEXT: [&str; 4] = ["La de da de da 1.", "La de da de da 2.", "La de da de da 3.", "La de da de da 4."];
const SEPARATOR: &str = "== the next message ==";

/// A message that a sink has saved.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Saved {
    /// Message-Id and subject of the message. The subject is needed because go-smtp-source gives all messages the same
    /// Message-Id.
    name: String,
    recipients: Vec<String>,
    text: Vec<String>,
}

fn message(recipients: Vec<String>, lines: &[&str]) -> Saved {
    let end = lines.iter().position(|line| line.is_empty()).unwrap_or(lines.len());
    let is_name = |line: &&&str| {
        let line = line.to_ascii_lowercase();
        line.starts_with("message-id:") || line.starts_with("subject:")
    };
    let text = lines[end..].iter().skip(1).map(|line| (*line).to_owned()).collect();
    Saved { name: lines[..end].iter().filter(is_name).copied().collect(), recipients, text }
}

/// Reads the file of `smtp-sink -S SEPARATOR -D`, which adds an empty line to each message.
fn of_smtp_sink(dump: &str) -> Vec<Saved> {
    let separator = format!("{SEPARATOR}\n");
    let parts = dump.split(&separator).skip(1);
    parts
        .map(|part| {
            let lines: Vec<&str> = part.strip_suffix("\n\n").unwrap_or(part).lines().collect();
            let recipients = lines.iter().filter_map(|line| line.strip_prefix("X-Rcpt-Args: "));
            message(recipients.map(str::to_owned).collect(), &lines)
        })
        .collect()
}

/// Reads the file of `mailrun sink --dump-file`: a line of JSON before each message, and a line end after it.
fn of_mailrun(dump: &str) -> Vec<Saved> {
    let mut saved = Vec::new();
    let mut rest = dump;
    while let Some((envelope, after)) = rest.split_once('\n') {
        let Ok(envelope) = serde_json::from_str::<serde_json::Value>(envelope) else { break };
        let Some((text, after)) = after.split_at_checked(envelope["bytes"].as_u64().unwrap() as usize) else { break };
        let recipients = envelope["recipients"].as_array().unwrap().iter();
        let lines: Vec<&str> = text.lines().collect();
        saved.push(message(recipients.map(|one| one.as_str().unwrap().to_owned()).collect(), &lines));
        rest = after.strip_prefix('\n').unwrap_or_default();
    }
    saved
}

/// Describes the differences between the saved messages and the expected ones. Returns an empty text if there are none.
fn faults(saved: &[Saved], messages: usize, recipients: usize) -> String {
    let deliveries: Vec<(&str, &str)> =
        saved.iter().flat_map(|one| one.recipients.iter().map(|to| (one.name.as_str(), to.as_str()))).collect();
    let different: HashSet<_> = deliveries.iter().collect();
    let changed = saved.iter().filter(|one| one.text != TEXT).count();
    let figures = [
        ("messages", saved.len(), messages),
        ("deliveries", deliveries.len(), messages * recipients),
        ("different deliveries", different.len(), messages * recipients),
        ("changed messages", changed, 0),
    ];
    let wrong = figures.into_iter().filter(|(_, actual, expected)| actual != expected);
    wrong.map(|(what, actual, expected)| format!("{actual} of {expected} {what} ")).collect()
}

/// A sink that saves its messages to a file.
struct SavingSink {
    _process: (Option<(Sink, TempDir)>, Option<Running>),
    address: String,
    file: PathBuf,
    read: fn(&str) -> Vec<Saved>,
}

impl SavingSink {
    fn ours(options: &[&str]) -> Self {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("dump");
        let sink = Sink::start(&[&["--dump-file", file.to_str().unwrap()], options].concat());
        Self { address: sink.address(), _process: (Some((sink, place)), None), file, read: of_mailrun }
    }

    fn smtp_sink(who: Who) -> Self {
        let address = format!("127.0.0.1:{}", low_port());
        let separator = format!("{SEPARATOR}\\n");
        let words = [user(), &["-S", &separator, "-D", "dump", &address, "100"]].concat();
        let mut running = Running::start(who, &words.into_iter().map(str::to_owned).collect::<Vec<_>>());
        drop(running.client(&address).expect("it listens"));
        let file = running.place.path().join("dump");
        Self { address, _process: (None, Some(running)), file, read: of_smtp_sink }
    }

    fn saved(&self) -> Vec<Saved> {
        (self.read)(&fs::read_to_string(&self.file).unwrap_or_default())
    }
}

/// Returns the installed sources, each with the options with which its messages differ from each other.
fn sources() -> Vec<(String, Vec<&'static str>)> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let go = std::env::split_paths(&path).map(|directory| directory.join("go-smtp-source")).find(|file| file.is_file());
    let named = ["-M", "smtp.example.com"];
    let ours = (MAILRUN.to_owned(), [&["smtp-source"][..], &named].concat());
    let original = peer("smtp-source").map(|program| (program, named.to_vec()));
    let go = go.map(|file| (file.to_str().unwrap().to_owned(), vec!["-resolve-once", "-S", "message %d"]));
    [Some(ours), original, go].into_iter().flatten().collect()
}

#[test]
fn every_recipient_receives_every_message_once_and_unchanged() {
    for (program, own) in sources() {
        for load in ["-s 1", "-s 5 -d", "-s 5 -r 3", "-s 1 -d -r 3"] {
            let recipients = if load.contains("-r 3") { 3 } else { 1 };
            let mut sinks = vec![SavingSink::ours(&[]), SavingSink::smtp_sink(Who::Ours)];
            if peer("smtp-sink").is_some() {
                sinks.push(SavingSink::smtp_sink(Who::Original));
            }
            for sink in &sinks {
                let load: Vec<&str> = load.split(' ').collect();
                let count = MESSAGES.to_string();
                let rest = ["-m", &count, "-f", "from@example.com", "-t", "to@example.com", &sink.address];
                let ended = run(&program, &[own.as_slice(), &load, &rest].concat());
                assert_eq!(ended.code, Some(0), "{program}: {ended:?}");
                // Wait, because a sink may save a message after it has sent its reply.
                let saved = wait_until("the messages to be saved", || {
                    let saved = sink.saved();
                    (saved.len() >= MESSAGES).then_some(saved)
                });
                assert_eq!(faults(&saved, MESSAGES, recipients), "", "{program} {load:?}");
            }
        }
    }
}

/// The check itself must find messages that a sink loses, changes or doubles.
#[test]
fn what_is_lost_changed_or_doubled_is_found() {
    for (fault, named) in [("drop 10%", "200 messages"), ("corrupt 10%", "changed messages")] {
        let sink = SavingSink::ours(&["--fault", fault]);
        let words = ["smtp-source", "-s", "5", "-m", "200", "-M", "smtp.example.com", &sink.address];
        assert_eq!(run(MAILRUN, &words).code, Some(0));
        wait_until(fault, || faults(&sink.saved(), 200, 1).contains(named).then_some(()));
    }
    let one = |name: &str| message(vec!["a@b".to_owned()], &[&[name, ""][..], &TEXT].concat());
    assert_eq!(faults(&[one("Subject: 1"), one("Subject: 2")], 2, 1), "");
    assert_eq!(faults(&[one("Subject: 1"), one("Subject: 1")], 2, 1), "1 of 2 different deliveries ");
}
