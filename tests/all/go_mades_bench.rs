//! Compares mailrun, called under the name `go-mades-bench`, with the original go-mades-bench. Both run the same
//! command lines at the same endpoint pair (`mailrun mades-endpoint --embedded`), and the tests compare their output,
//! exit status and messages.
//!
//! The original is a `go-mades-bench` on PATH. Numbers and times are masked, but the format of each line is compared.
//! Intended differences have their own tests below, and `docs/drop-in.md` names each.
use crate::mades::at_the_broker;
use crate::party::{Ended, Process, mailrun, peer, run, wait_until};
use crate::stand_in_endpoint::Endpoint;
use mailrun_mades::api::{DecodedMessage, OutgoingProperties, payload};
use mailrun_mades::{Broker, Connection, IncomingDelivery, ReceiverOptions, SenderOptions, Uuid};
use mailrun_mades_simulator::embedded::{Elements, Reader, Scalar};
use std::path::Path;
use std::thread;

/// Makes a link to mailrun with the original's name, and returns the link's path.
fn ours(place: &Path) -> String {
    let linked = mailrun(&["install-links", place.to_str().unwrap()]);
    assert_eq!(linked.code, Some(0), "{linked:?}");
    place.join("go-mades-bench").to_str().unwrap().to_owned()
}

/// Returns the arguments in `words`, with the options that set the URL of both brokers to `url`.
fn line<'w>(words: &'w str, url: &'w str) -> Vec<&'w str> {
    let (own, rest) = if words.starts_with("--timeout") { words.split_at(13) } else { ("", words) };
    let brokers = ["-outbox-addr", url, "-inbox-addr", url];
    own.split_whitespace().chain(brokers).chain(rest.split_whitespace()).collect()
}

fn bench(program: &str, url: &str, words: &str) -> Ended {
    run(program, &line(words, url))
}

/// Masks the numbers and times in a run's output, so that the output of two runs can be compared.
fn shape(text: &str) -> Vec<String> {
    text.lines().map(|line| line.split_whitespace().map(mask).collect::<Vec<_>>().join(" ")).collect()
}

/// Replaces each number by 9, and a duration by `T`.
fn mask(word: &str) -> String {
    let is_length = word.ends_with('s') && word.starts_with(|c: char| c.is_ascii_digit());
    if is_length && word.trim_end_matches('s').trim_end_matches(['m', 'µ', 'n']).ends_with(|c: char| c.is_ascii_digit())
    {
        return "T".to_owned();
    }
    let mut masked = String::new();
    for c in word.chars() {
        match c {
            '0'..='9' | '.' if masked.ends_with('9') => {}
            '0'..='9' => masked.push('9'),
            other => masked.push(other),
        }
    }
    masked
}

#[test]
fn masks_hide_numbers_and_nothing_else() {
    let line =
        "Sent to outbox    : 2492.119 msgs/s  7.476 mb/s  200/200 msgs   duration: 1m3.9s flight time: 0.012s (avg)";
    let masked = "Sent to outbox : 9 msgs/s 9 mb/s 9/9 msgs duration: T flight time: T (avg)";
    assert_eq!(shape(line), [masked]);
    assert_eq!(shape("Duration         : 999.999µs\n\n=== Statistics"), ["Duration : T", "", "=== Statistics"]);
    assert_eq!(mask("msgs"), "msgs");
    assert_eq!(mask("2022-11-22T11:16:58Z"), "9-9-9T9:9:9Z");
}

/// Returns the last report in a run's output, from the report's first horizontal rule on.
fn final_report(out: &str) -> &str {
    let rules: Vec<usize> = out.match_indices(RULE).map(|(at, _)| at).collect();
    assert!(
        rules.len() >= 4 && rules.len().is_multiple_of(2),
        "an intermediate report at least, and a final one: {out}"
    );
    &out[rules[rules.len() - 2]..]
}

const RULE: &str = "==============================================================================\n";

/// Returns each row of the report's table as its name, its number of messages, and the expected number of messages.
fn counts(out: &str) -> Vec<(String, u64, u64)> {
    let lines =
        final_report(out).lines().filter_map(|line| line.split_once(": ").filter(|(_, rest)| rest.contains("mb/s")));
    let count = |(name, rest): (&str, &str)| {
        let (count, limit) =
            rest.split_whitespace().find_map(|word| word.split_once('/').filter(|_| !word.ends_with('s'))).unwrap();
        (name.trim().to_owned(), count.parse().unwrap(), limit.parse().unwrap())
    };
    lines.map(count).collect()
}

/// Command lines on which both programs must agree. Each row has a name, the endpoint's options, and the command line.
const MODES: [(&str, &[&str], &str); 4] = [
    ("endpoint", &["--mode", "endpoint"], "-n 200 -size 3000 -max-in-transit 20 -goroutines 8"),
    (
        "toolbox",
        &["--mode", "toolbox", "--prefix", "edx.endpoint"],
        "-n 200 -size 1000 -outbox edx.endpoint.outbox -outbox-reply edx.endpoint.reply -inbox edx.endpoint.inbox",
    ),
    ("tracing", &["--mode", "tracing", "--go-mades-bench-compat"], "-n 50 -size 1 -goroutines 3"),
    ("amqp", &[], "-n 30 -size 1000000 -max-in-transit 0 -durable=false -v"),
];

#[test]
fn every_mode_reports_as_the_original_does() {
    let Some(original) = peer("go-mades-bench") else { return };
    let place = tempfile::tempdir().unwrap();
    let ours = ours(place.path());
    thread::scope(|scope| {
        for (mode, plan, words) in MODES {
            let original = &original;
            let ours = &ours;
            scope.spawn(move || {
                let words = format!("-mode {mode} {words}");
                let endpoint = Endpoint::embedded(plan);
                let theirs = bench(original, &endpoint.url, &words);
                let own = bench(ours, &endpoint.url, &words);
                assert_eq!((theirs.code, own.code), (Some(0), Some(0)), "{mode}: {theirs:?}\n{own:?}");
                assert_eq!(counts(&own.out), counts(&theirs.out), "{mode}");
                // In mode tracing, the original always reports 1 byte, whatever it sends. So compare only the form of
                // the reports and not their numbers.
                assert_eq!(shape(final_report(&own.out)), shape(final_report(&theirs.out)), "{mode}");
                assert_eq!(listings(&own.out), listings(&theirs.out).map(|line| without_passwords(&line)), "{mode}");
                let last = [" ", " Ran with flags: ", " Final Report"];
                for ended in [&theirs, &own] {
                    let said: Vec<&str> = ended.err.lines().rev().take(3).map(|line| &line[19..]).collect();
                    assert!(said.iter().rev().eq(&last), "{mode}: {}", ended.err);
                    assert!(ended.err.contains("Intermediate Report #1\n"), "{mode}: {}", ended.err);
                    assert!(ended.err.contains("waiting a second for any out of order messages..."), "{}", ended.err);
                }
            });
        }
    });
}

/// Returns the two lines of a run's output that list the flags.
fn listings(out: &str) -> [String; 2] {
    let lines: Vec<&str> = out.lines().filter(|line| line.starts_with("-durable=")).collect();
    let [first, last] = lines.as_slice() else { panic!("two listings: {out}") };
    [first, last].map(|line| (*line).to_owned())
}

fn without_passwords(line: &str) -> String {
    line.replace("-pass=password ", "-pass=**** ")
}

#[test]
fn how_it_is_used_is_told_in_the_originals_words() {
    let Some(original) = peer("go-mades-bench") else { return };
    let place = tempfile::tempdir().unwrap();
    let ours = ours(place.path());
    let lines = "-h\n--h\n-x\n-n x\n-n -1\n-n +1\n-n\n-size 1e6\n-durable=maybe\n-=\n---n\n-goroutines 18446744073709551616\n\
                 -n 1 -max-in-transit=\n-v=x";
    for line in lines.split('\n') {
        let words: Vec<&str> = line.split_whitespace().collect();
        let theirs = run(&original, &words);
        let own = run(&ours, &words);
        let theirs_said = theirs.err.replace(&original, "go-mades-bench");
        assert_eq!(own.err.replace(&ours, "go-mades-bench"), theirs_said, "{line}");
        assert_eq!((own.code, own.out), (theirs.code, theirs.out), "{line}");
    }
    // The original panics at these command lines. Our exit status must be the same, but the text on standard error may
    // differ.
    for (line, code) in [
        ("-mode foo", 2),
        ("-inbox-addr amqp://127.0.0.1:1 -outbox-addr amqp://127.0.0.1:1", 1),
        ("-outbox-addr foo://127.0.0.1 -inbox-addr foo://127.0.0.1", 1),
    ] {
        let words: Vec<&str> = line.split_whitespace().collect();
        let theirs = run(&original, &words);
        let own = run(&ours, &words);
        assert_eq!((theirs.code, own.code), (Some(code), Some(code)), "{line}: {own:?}");
        assert_eq!(own.out, without_passwords(&theirs.out), "{line}");
    }
}

async fn connect(url: &str) -> Connection {
    let url = url
        .parse::<mailrun_mades::BrokerUrl>()
        .unwrap()
        .with_login("endpoint", mailrun_mades::Password::new("password"));
    Connection::open(&Broker::new(url, "test")).await.unwrap()
}

/// Removes and returns the next message of a queue.
fn take(url: &str, queue: &str) -> DecodedMessage {
    at_the_broker(async {
        let mut connection = connect(url).await;
        let mut inlet = connection.attach_receiver(&ReceiverOptions::new(queue, 1)).await.unwrap();
        let IncomingDelivery::Delivery(delivery) = inlet.next().await.unwrap() else { panic!("it can be read") };
        inlet.accept(delivery.handle).unwrap();
        inlet.close().await.unwrap();
        delivery.message
    })
}

/// Puts a message that belongs to another application into a queue.
fn put(url: &str, queue: &str) {
    at_the_broker(async {
        let mut connection = connect(url).await;
        let mut outlet = connection.attach_sender(&SenderOptions::new(queue, 1)).await.unwrap();
        let outgoing =
            OutgoingProperties { sender_application: "somebody".to_owned(), ..OutgoingProperties::new("r", "t") };
        let mut template = outgoing.template(Uuid::from_bytes([7; 16]), payload(*b"somebody's"));
        let settled = outlet.send(template.fill(1, 0)).await.unwrap().await.unwrap();
        assert_eq!(settled, mailrun_mades::Disposition::Accepted);
        outlet.close().await.unwrap();
    });
}

/// Every section of a message, with id and time masked. Trailing null fields of a list are ignored, because they carry
/// no information.
fn sections(message: &DecodedMessage) -> String {
    let application = message.application_properties().unwrap();
    let id = application.iter().find(|(name, _)| *name == "baMessageID").unwrap().1;
    let Scalar::String(id) = id else { panic!("{id:?}") };
    assert!(id.len() == 38 && id.starts_with("1-"), "the first message of a run: {id}");
    let time = message.created_at_ms().unwrap().to_string();
    assert_eq!(time.len(), 13, "{time}");
    let mut application: Vec<String> = application.iter().map(|pair| format!("{pair:?}")).collect();
    application.sort_unstable();
    let mut lines = Vec::new();
    let mut reader = Reader::new(message.octets());
    while let Ok(section) = reader.value() {
        let code = section.descriptor().unwrap();
        lines.push(match code {
            0x70 => format!("{:?}", message.header()),
            0x73 => properties(section.as_list().unwrap()),
            0x74 => application.join("\n"),
            0x75 => "data".to_owned(),
            _ => format!("{code:#x}: {:?}", section.octets()),
        });
    }
    lines.join("\n").replace(id, "ID").replace(&time, "TIME")
}

fn properties(mut fields: Elements<'_>) -> String {
    let mut properties = Vec::new();
    while let Ok(Some(field)) = fields.element() {
        properties.push(field.as_scalar().unwrap());
    }
    while properties.pop_if(|last| *last == Scalar::Null).is_some() {}
    format!("{properties:?}")
}

#[test]
fn messages_have_the_originals_sections() {
    let Some(original) = peer("go-mades-bench") else { return };
    let place = tempfile::tempdir().unwrap();
    let programs = [original, ours(place.path())];
    thread::scope(|scope| {
        for words in [
            "-n 1 -size 7",
            "-n 1 -size 0 -durable=false -receiver a -message-type b",
            "-mode tracing -n 1 -size 70000",
            "-mode toolbox -n 1 -size 1",
        ] {
            let programs = &programs;
            scope.spawn(move || {
                let seen = programs.each_ref().map(|program| {
                    // No endpoint reads the program's outbox, so the test can take a message from it.
                    let endpoint = Endpoint::embedded(&["--prefix", "unattended"]);
                    let running = Process::start(program, &line(words, &endpoint.url));
                    let begun = |err: &str| err.contains("Intermediate Report #1\n");
                    wait_until("it to begin", || begun(&running.complained()).then_some(()));
                    let message = take(&endpoint.url, "ecp.endpoint.outbox");
                    running.terminate();
                    sections(&message)
                });
                assert_eq!(seen[1], seen[0], "{words}");
            });
        }
    });
}

/// Runs our program alone, for the differences in the table of `docs/drop-in.md`.
fn ours_against(plan: &[&str], words: &str) -> Ended {
    let place = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::embedded(plan);
    let ended = bench(&ours(place.path()), &endpoint.url, words);
    assert_eq!(endpoint.stop().code, Some(0));
    ended
}

#[test]
fn a_lost_message_does_not_hang_it() {
    let ended = ours_against(&["--drop", "0.05", "--seed", "3"], "--timeout 003 -n 400 -size 200 -max-in-transit 10");
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.err.contains(" gave up: nothing received for 3 s\n"), "{}", ended.err);
    let counts = counts(&ended.out);
    let (last, received, limit) = counts.last().unwrap();
    assert!(last == "Received event" && *received > 0 && received < limit, "{counts:?}");
    let told = format!(" Received event: {} of 400 msgs missing\n", limit - received);
    assert!(ended.err.contains(&told), "{told}{}", ended.err);
    // Lost messages stay in transit. Ten of them fill the limit of ten, so the program sends no more after these.
    assert_eq!(counts[0].1 - received, 10, "{counts:?}");
}

#[test]
fn an_error_reply_does_not_kill_it() {
    let plan = ["--reject", "0.1", "--reject-code", "E-77", "--reject-message", "told to"];
    let ended = ours_against(&plan, "-n 300 -size 100 -goroutines 16");
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let counts = counts(&ended.out);
    assert_eq!((counts[0].1, counts[1].1), (300, 300), "a refusal is a reply: {counts:?}");
    let refused = 300 - counts[4].1;
    assert!(refused > 5, "{counts:?}");
    assert!(ended.err.contains(&format!(" error reply E-77: {refused} times, first: told to\n")), "{}", ended.err);
}

#[test]
fn events_of_the_protocol_and_doubled_messages_are_no_trouble() {
    let ended = ours_against(&["--mode", "tracing"], "-mode tracing -n 100 -size 10 -max-in-transit 5");
    assert_eq!(ended.code, Some(0), "the original waits for ever for TRACING: {ended:?}");
    let ended = ours_against(&["--duplicate", "0.2"], "-n 200 -size 500");
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.err.contains(" msgs received more than once\n"), "{}", ended.err);
    assert!(counts(&ended.out).iter().all(|(_, count, _)| *count == 200), "{}", ended.out);
}

#[test]
fn messages_of_others_stay_where_they_are() {
    let place = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::embedded(&[]);
    for queue in ["ecp.endpoint.inbox", "ecp.endpoint.outbox.reply", "ecp.endpoint.send.event"] {
        put(&endpoint.url, queue);
    }
    let ended = bench(&ours(place.path()), &endpoint.url, "-n 100 -size 100");
    assert_eq!(ended.code, Some(0), "{ended:?}");
    // The broker redelivers messages that the run has released, so a slow run may receive the three foreign messages
    // more than once.
    let line = ended.err.lines().find(|line| line.contains("msgs not from this run: received ")).unwrap_or_default();
    let times = line.split("received ").nth(1).map(|rest| crate::party::numbers(rest)[0]);
    assert!(times >= Some(3) && line.ends_with(" times and left in their queues"), "{}", ended.err);
    for queue in ["ecp.endpoint.inbox", "ecp.endpoint.outbox.reply", "ecp.endpoint.send.event"] {
        let message = take(&endpoint.url, queue);
        assert!(format!("{:?}", message.application_properties()).contains("somebody"), "{queue}");
    }
}

#[test]
fn an_interrupt_ends_it_with_a_report() {
    let place = tempfile::tempdir().unwrap();
    let ours = ours(place.path());
    let endpoint = Endpoint::embedded(&[]);
    for is_termination in [false, true] {
        let running =
            Process::start(&ours, &line("-n 0 -size 100 -max-in-transit 10 -outbox-pass geheim", &endpoint.url));
        wait_until("messages to come", || running.said().contains("mb/s").then_some(()));
        if is_termination {
            running.terminate()
        } else {
            running.interrupt_group()
        }
        let ended = running.finish();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let said = if is_termination { "Received Termination Signal\n" } else { "Received OS Interrupt\n" };
        assert!(ended.out.contains(said), "{}", ended.out);
        let report = final_report(&ended.out);
        assert!(!report.contains("Ended at") && report.contains("Sent to outbox"), "{report}");
        assert!(!format!("{ended:?}").contains("geheim"), "{ended:?}");
    }
}

#[test]
fn what_would_hang_is_refused_and_load_stays_at_home() {
    let place = tempfile::tempdir().unwrap();
    let ours = ours(place.path());
    for (words, code, said) in [
        ("-goroutines 0", 2, "invalid value \"0\" for flag -goroutines: must be above 0\nUsage of "),
        ("-n 0 -max-in-transit 0", 2, "for flag -max-in-transit: must be above 0 if -n is 0\n"),
        ("-inbox-addr amqp://8.8.8.8", 1, "8.8.8.8: public address"),
        ("-mode amqp -inbox-addr amqp://8.8.8.8", 1, "MAILRUN_ALLOW_PUBLIC=1"),
    ] {
        let ended = run(&ours, &words.split_whitespace().collect::<Vec<_>>());
        assert!(ended.code == Some(code) && ended.err.contains(said), "{words}: {ended:?}");
    }
}
