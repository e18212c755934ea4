//! Defects of the program itself: a task that panics loses no message, and the run reports the panic. Only builds with
//! debug assertions have the planned panics that these tests use.
use crate::party::{Process, Sink, bench_within, mailrun, skip, wait_until};
use crate::relay::{Den, MAILRUN, QUICK, Relay, all_to, await_kept, await_recipients, http, introduced, kept, submit};
use crate::secured::Files;

const SAID: &str = "a test asked for this panic";

fn can_panic() -> bool {
    if !cfg!(debug_assertions) {
        skip("planned panics", "a release build has none");
    }
    cfg!(debug_assertions)
}

/// Starts a relay that panics once at `place`, for example in a `delivery`.
fn open(den: &Den, place: &str) -> Relay {
    let asked = format!("MAILRUN_PLANNED_PANIC={place}");
    let config = den.path("relay.toml");
    Relay::listening(Process::start("env", &[&asked, MAILRUN, "relay", "--config", &config, "--live", "json"]))
}

fn send(relay: &Relay, to: &str) {
    let reply = submit(&mut introduced(relay), "<sender@b.example>", &[to], "Subject: x\r\n\r\nx\r\n");
    assert!(reply.starts_with("250"), "{reply}");
}

fn await_panic(relay: &Relay) {
    wait_until("the panic", || relay.process.complained().contains(SAID).then_some(()));
}

#[test]
fn a_delivery_that_panics_gives_its_message_back_and_it_is_delivered_then() {
    if !can_panic() {
        return;
    }
    let sink = Sink::start(&[]);
    let den = Den::to(&sink.address(), &format!("{QUICK}http = \"127.0.0.1:0\"\n"));
    let relay = open(&den, "delivery");
    send(&relay, "<one@far.example>");
    await_panic(&relay);
    await_recipients(&sink, 1);
    // The panic of the first delivery must not affect other messages.
    send(&relay, "<two@far.example>");
    await_recipients(&sink, 2);
    let (_, metrics) = http(&relay, "/metrics");
    assert!(metrics.contains("mailrun_relay_panicked_tasks_total 1\n"), "{metrics}");
    let log = relay.process.complained();
    assert!(log.contains("the message goes back to the queue"), "{log}");
    relay.stop();
    assert_eq!(sink.took().recipients, 2);
}

#[test]
fn a_delivery_into_a_mailbox_that_panics_gives_its_message_back() {
    if !can_panic() {
        return;
    }
    let den = Den::new(&format!("{QUICK}[[route]]\nto = \"*\"\nmaildir = \"mail/{{user}}\"\n"));
    let relay = open(&den, "local delivery");
    send(&relay, "<one@far.example>");
    await_panic(&relay);
    wait_until("the message", || (crate::relay::mailbox(&den.path("mail/one")).len() == 1).then_some(()));
    relay.stop();
}

#[test]
fn a_notice_whose_task_panics_holds_its_message_and_the_next_is_written() {
    if !can_panic() {
        return;
    }
    let files = Files::new();
    let dump = files.path("dump");
    let home = Sink::start(&["--dump-file", &dump]);
    let far = Sink::start(&["--fault", "rcpt: hard reject \"554 5.7.7 Not here\""]);
    let route = format!("[[route]]\nto = \"far.example\"\nsmtp = \"{}\"\n", far.address());
    let den = Den::new(&format!("{QUICK}{route}{}", all_to(&home.address())));
    let relay = open(&den, "notice");
    send(&relay, "<one@far.example>");
    await_panic(&relay);
    let queue = |words: &[&str]| mailrun(&[&["queue", "--spool", &den.path("spool")], words].concat());
    wait_until("the message to be held", || {
        queue(&["--json", "list", "--state", "held"]).out.contains("\"held\"").then_some(())
    });
    send(&relay, "<two@far.example>");
    await_kept(&dump, 1);
    // After the release, the relay must try the message again and return it to its sender.
    assert_eq!(queue(&["release", "all"]).out, "1 message released\n");
    let all = await_kept(&dump, 2);
    assert!(all.iter().all(|notice| notice.recipients == ["sender@b.example"]));
    relay.stop();
}

#[test]
fn a_message_that_panics_at_a_restart_keeps_no_other_back_and_stays_for_the_next() {
    if !can_panic() {
        return;
    }
    let address = format!("127.0.0.1:{}", crate::party::low_port());
    let den = Den::to(&address, QUICK);
    let relay = den.open();
    send(&relay, "<one@far.example>");
    send(&relay, "<two@far.example>");
    relay.kill();
    let files = Files::new();
    let dump = files.path("dump");
    let sink = Sink::start_at(&address, &["--dump-file", &dump]);
    let relay = open(&den, "restart");
    await_panic(&relay);
    await_recipients(&sink, 1);
    relay.stop();
    let relay = den.open();
    await_recipients(&sink, 2);
    relay.stop();
    let mut all: Vec<String> = kept(&dump).into_iter().flat_map(|one| one.recipients).collect();
    all.sort();
    assert_eq!(all, ["one@far.example", "two@far.example"]);
}

#[test]
fn a_session_of_source_or_sink_that_panics_is_an_error_and_fails_the_run() {
    if !can_panic() {
        return;
    }
    for place in ["source", "sink"] {
        let ran = bench_within(&format!("MAILRUN_PLANNED_PANIC={place}"), &["--messages", "50", "--sessions", "5"]);
        let record = ran.record_of(1);
        let row = record.errors.iter().find(|row| row.text.contains("because of a bug in mailrun"));
        assert_eq!(row.map(|row| row.count), Some(1), "{place}: {:?}", record.errors);
        let party = record.parties.iter().find(|party| party.name == place).unwrap();
        assert_eq!(party.failed_sessions, Some(1), "{place}");
        assert!(!record.verdict.closed && !record.verdict.valid, "{place}: {:?}", record.verdict);
        let report = ran.file("report.md");
        assert!(
            report.contains("**FAIL**") && report.contains(&format!("of the {place} ended by a defect")),
            "{report}"
        );
    }
}
