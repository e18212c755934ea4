//! A relay with too little memory for incoming mail, or with a disk that fails. Every message that got a 250 survives,
//! and messages that cannot be stored are refused for now.
use crate::party::{Ended, Process, Sink, peer, run, skip, source, wait_until};
use crate::relay::{Den, MAILRUN, QUICK, Relay, all_to, await_kept, await_recipients, expect, http, introduced, kept};
use crate::relay::{metric, submit};
use crate::secured::Files;
use crate::stand_in::{Act, At, StandIn};
use crate::wire::Wire;
use serde_json::Value;
use std::collections::HashSet;
use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

const DISCARD: &str = "[[route]]\nto = \"*\"\ndiscard = true\n";

/// A session ready for DATA or BDAT.
fn beginning(relay: &Relay, parameters: &str) -> Wire {
    let mut wire = introduced(relay);
    expect(&mut wire, &format!("MAIL FROM:<a@b.example>{parameters}"), "250");
    expect(&mut wire, "RCPT TO:<c@d.example>", "250");
    wire
}

/// Lines of 64 bytes each, and `bytes` bytes in total.
fn lines(bytes: usize) -> Vec<u8> {
    b"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcd\r\n".repeat(bytes / 64)
}

#[test]
fn sessions_that_send_at_once_share_the_memory_and_somebody_comes_to_the_end() {
    const SESSIONS: usize = 150;
    let den = Den::new(&format!("limits.max_message_size = \"4M\"\nlimits.max_incoming_size = \"8M\"\n{DISCARD}"));
    let relay = den.open_with(&["--http", "127.0.0.1:0"]);
    let mut wires: Vec<Wire> = (0..SESSIONS).map(|_| beginning(&relay, "")).collect();
    for wire in &mut wires {
        expect(wire, "DATA", "354");
        wire.send("Subject: long\r\n\r\n");
    }
    // Send 2 MB in each session. All sessions together send 300 MB, but the relay may hold only 8 MB.
    let half = lines(1 << 20);
    let quarter = lines(512 << 10);
    for piece in [&quarter, &quarter, &half] {
        wires.iter_mut().for_each(|wire| wire.send(piece));
    }
    assert!(metric(&relay, "incoming_bytes") <= metric(&relay, "incoming_limit_bytes"));
    let mut replies = Vec::new();
    for wire in &mut wires {
        wire.send(".\r\n");
        replies.push(wire.reply().unwrap());
    }
    let taken = replies.iter().filter(|reply| reply.starts_with("250 2.0.0")).count();
    let put_off = replies.iter().filter(|reply| reply.starts_with("452 4.3.1")).count();
    assert!(taken > 0 && put_off > SESSIONS / 2 && taken + put_off == SESSIONS, "{replies:?}");
    assert_eq!(metric(&relay, "crowded_total"), put_off as u64);
    // A client that got 452 must be able to send other mail at once.
    for wire in &mut wires {
        assert!(submit(wire, "<a@b.example>", &["<c@d.example>"], "x\r\n").starts_with("250 2.0.0"));
    }
    wait_until("everything to be given back", || (metric(&relay, "incoming_bytes") == 0).then_some(()));
    let peak = relay.process.peak_bytes();
    assert!(peak < 96 << 20, "{} MB, of 300 that were sent", peak >> 20);
    relay.stop();
}

/// A low memory limit for incoming mail, so that fewer than 200 messages fill the memory.
const NARROW: &str = "limits.max_message_size = \"256k\"\nlimits.max_incoming_size = \"1M\"\n";
/// Memory that a message needs before its first byte: 16 KiB, and the envelope.
const BEGINNING_BYTES: u64 = 20 << 10;

/// Begins as many messages as fit into the memory for incoming mail.
fn crowd(relay: &Relay) -> Vec<Wire> {
    let count = metric(relay, "incoming_limit_bytes") / BEGINNING_BYTES;
    assert!((50..200).contains(&count), "{count}");
    let mut inside: Vec<Wire> = (0..count).map(|_| beginning(relay, " SIZE=200000")).collect();
    inside.iter_mut().for_each(|wire| drop(expect(wire, "DATA", "354")));
    inside
}

#[test]
fn a_message_waits_for_room_before_it_begins_and_not_for_ever() {
    let den = Den::new(&format!("{NARROW}{DISCARD}"));
    let relay = den.open_with(&["--http", "127.0.0.1:0"]);
    let mut inside = crowd(&relay);
    let [mut by_data, mut by_bdat] = [(); 2].map(|()| beginning(&relay, " SIZE=200000"));
    by_data.send("DATA\r\n");
    assert!(!by_data.hears_within(Duration::from_millis(300)), "there is no room for one more");
    by_bdat.send("BDAT 3 LAST\r\nx\r\n");
    assert!(!by_bdat.hears_within(Duration::from_millis(300)), "nor for another");
    inside[0].send("x\r\n.\r\n");
    assert!(inside[0].reply().unwrap().starts_with("250 2.0.0"));
    assert!(by_data.reply().unwrap().starts_with("354"), "the first in line is let in");
    let mut late = beginning(&relay, " SIZE=200000");
    late.send("DATA\r\n");
    // After waiting 20 seconds for memory, both clients get 452 and have to retry.
    assert!(by_bdat.reply().unwrap().starts_with("452 4.3.1"));
    assert!(late.reply().unwrap().starts_with("452 4.3.1"));
    // The client `late` has sent no byte of its message, so it may continue its transaction. The client `by_bdat`
    // begins a new transaction.
    inside.clear();
    expect(&mut late, "DATA", "354");
    late.send("Subject: x\r\n\r\nx\r\n.\r\n");
    assert!(late.reply().unwrap().starts_with("250 2.0.0"));
    assert!(submit(&mut by_bdat, "<e@f.example>", &["<c@d.example>"], "x\r\n").starts_with("250 2.0.0"));
    relay.stop();
}

#[test]
fn what_waited_for_room_is_delivered_as_it_came() {
    let files = Files::new();
    let dump = files.path("dump");
    let sink = Sink::start(&["--dump-file", &dump]);
    let den = Den::to(&sink.address(), NARROW);
    let relay = den.open_with(&["--http", "127.0.0.1:0"]);
    let mut inside = crowd(&relay);
    let message = b"Subject: waited\r\n\r\nfor room\r\n";
    let mut late = beginning(&relay, " SIZE=200000");
    // While the session waits for memory, the whole message and the next command are already in its socket.
    late.send([format!("BDAT {} LAST\r\n", message.len()).as_bytes(), message, b"NOOP\r\n"].concat());
    assert!(!late.hears_within(Duration::from_millis(300)));
    inside.clear();
    assert!(late.reply().unwrap().starts_with("250 2.0.0") && late.reply().unwrap().starts_with("250"));
    assert_eq!(await_kept(&dump, 1)[0].as_sent(), message);
    relay.stop();
}

/// Starts a relay, and fills its spool while the next hop is absent. Also returns the number of accepted messages.
fn brimful(den: &Den) -> (Relay, u64) {
    let relay = den.open_with(&["--http", "127.0.0.1:0"]);
    let taken = fill(&relay);
    assert!(taken > 100, "{taken}");
    (relay, taken)
}

/// Sends until the spool is full. Returns the number of accepted messages.
fn fill(relay: &Relay) -> u64 {
    let mut wire = introduced(relay);
    let mut send = || submit(&mut wire, "<a@b.example>", &["<c@d.example>"], lines(16 << 10));
    let taken = std::iter::from_fn(|| Some(send()).filter(|reply| reply.starts_with("250"))).count();
    taken as u64
}

fn await_room(relay: &Relay) {
    let mut wire = introduced(relay);
    wait_until("room again", || {
        submit(&mut wire, "<a@b.example>", &["<c@d.example>"], "x\r\n").starts_with("250 2.0.0").then_some(())
    });
}

#[test]
fn one_message_that_is_held_does_not_keep_a_full_spool_full() {
    let next_hop = format!("127.0.0.1:{}", crate::party::low_port());
    let den = Den::to(&next_hop, &format!("{QUICK}spool.max_size = \"8M\"\nlimits.max_message_size = \"1M\"\n"));
    let (relay, taken) = brimful(&den);
    let held = run(MAILRUN, &["queue", "hold", "0000000000000001", "--config", &den.path("relay.toml")]);
    assert_eq!(held.code, Some(0), "{held:?}");
    // The relay also writes an operator's command to the spool. This must not make reserved space available to mail.
    wait_until("the note to be written", || (metric(&relay, "spool_commits_total") > taken).then_some(()));
    let taken = taken + (0..5).map(|_| fill(&relay)).sum::<u64>();
    let sink = Sink::start_at(&next_hop, &[]);
    await_recipients(&sink, taken - 1);
    await_room(&relay);
    assert_eq!(metric(&relay, &format!("queue_entries{{hop=\"smtp:{next_hop}\",state=\"held\"}}")), 1);
    relay.stop();
}

#[test]
fn a_full_spool_whose_mail_nobody_takes_tells_all_senders_and_has_room_again() {
    let next_hop = format!("127.0.0.1:{}", crate::party::low_port());
    let files = Files::new();
    let dump = files.path("dump");
    let senders = Sink::start(&["--dump-file", &dump]);
    let text = format!(
        "{QUICK}spool.max_size = \"8M\"\nlimits.max_message_size = \"1M\"\n[[route]]\nto = \"b.example\"\nsmtp = \"{}\"\n{}",
        senders.address(),
        all_to(&next_hop)
    );
    let den = Den::new(&text);
    let (relay, taken) = brimful(&den);
    let _nobody = Sink::start_at(&next_hop, &["--fault", "rcpt: hard reject 100%"]);
    wait_until("every sender to be told", || (kept(&dump).len() as u64 == taken).then_some(()));
    await_room(&relay);
    relay.stop();
}

/// Every fault of the sink except `drop` and `corrupt`, which answer 250 and then lose or change the message.
const FAULTS: [&str; 22] = [
    "connect: hang up 20%",
    "connect: soft reject 20%",
    "ehlo: hang up 20%",
    "ehlo: soft reject 20%",
    "mail: soft reject 20%",
    "rcpt: soft reject 20%",
    "data: soft reject 20%",
    ".: soft reject 20%",
    ".: hang up 20%",
    "*: reset 5%",
    "*: delay 1ms..20ms",
    "*: stall 100ms..600ms",
    "*: tarpit 2ms up to 20ms",
    "mail: limit 50/s",
    "mail: limit 50/s \"421 4.7.0 Too fast\"",
    "rcpt: greylist 300ms",
    "rcpt: domain cap 1",
    "data: read 50k/s",
    "data: reset at 100 20%",
    ".: lose reply 20%",
    ".: duplicate 20%",
    "quit: hang up",
];

#[test]
fn whatever_a_next_hop_does_nothing_is_lost() {
    let sinks: Vec<Sink> = FAULTS.iter().map(|rule| Sink::start(&["--fault", rule])).collect();
    let route =
        |(at, sink): (usize, &Sink)| format!("[[route]]\nto = \"d{at}.example\"\nsmtp = \"{}\"\n", sink.address());
    let routes: String = sinks.iter().enumerate().map(route).collect();
    let den = Den::new(&format!("{QUICK}{routes}"));
    let relay = den.open();
    for at in 0..FAULTS.len() {
        let to = format!("x@d{at}.example");
        let words = ["--messages", "30", "--sessions", "5", "--reuse", "--message-size", "2k", "--to", &to];
        let ours = source(&relay.address(), &words);
        assert_eq!(ours.ended.code, Some(0), "{:?}", ours.ended);
    }
    for (rule, sink) in FAULTS.iter().zip(&sinks) {
        let run = wait_until(&format!("all in spite of {rule}"), || {
            let run = sink.ask("/ledger").as_array()?.first()?.clone();
            (run["delivered"] == 30).then_some(run)
        });
        assert_eq!((&run["corrupt"], &run["foreign"]), (&Value::from(0), &Value::from(0)), "{rule}");
    }
    relay.stop();
}

#[test]
fn a_message_without_end_costs_no_memory() {
    let den = Den::new(&format!("spool.max_size = \"1G\"\n{DISCARD}"));
    let relay = den.open();
    let mut wire = beginning(&relay, "");
    expect(&mut wire, "DATA", "354");
    wire.send("Subject: endless\r\n\r\n");
    let block = lines(4 << 20);
    // Send up to a gigabyte without a declared size. The relay discards everything beyond the limit, and closes the
    // connection after three times the limit.
    let taken = (0..256).take_while(|_| wire.try_send(&block).is_ok()).count();
    assert!((16..64).contains(&taken), "{taken} blocks of 4 MB");
    drop(wire);
    let mut wire = beginning(&relay, "");
    expect(&mut wire, "DATA", "354");
    wire.send("Subject: too long\r\n\r\n");
    (0..20).for_each(|_| wire.send(&block));
    wire.send(".\r\n");
    assert!(wire.reply().unwrap().starts_with("552 5.3.4"));
    assert!(submit(&mut wire, "<a@b.example>", &["<c@d.example>"], "x\r\n").starts_with("250 2.0.0"));
    // A message may have 64 MB, and the relay may hold one copy of it.
    let peak = relay.process.peak_bytes();
    assert!(peak < 160 << 20, "{} MB", peak >> 20);
    relay.stop();
}

/// Small segments, so that preparing them takes one or two syncs. The eighth sync or write, which [`fails_for_good`]
/// makes fail, then belongs to a batch.
const SMALL: &str = "spool.max_size = \"16M\"\n";

/// Starts a relay under strace(1), which makes a system call fail. Returns `None`, and notes the skipped test, if
/// processes cannot be traced here.
fn failing(den: &Den, inject: &str, words: &[&str]) -> Option<Relay> {
    let strace = peer("strace")?;
    let call = inject.split(':').next().unwrap();
    let trace = format!("trace={call}");
    let inject = format!("inject={inject}");
    let probe = run(&strace, &["-f", "-qq", "-e", &trace, "-e", &inject, "true"]);
    if probe.code != Some(0) {
        skip("strace", &format!("it may not trace here: {}", probe.err.trim()));
        return None;
    }
    let log = den.path("trace");
    let config = den.path("relay.toml");
    let own = ["-f", "--seccomp-bpf", "-qq", "-o", &log, "-e", &trace, "-e", &inject, MAILRUN];
    let relay = ["relay", "--config", &config, "--live", "json"];
    Some(Relay::listening(Process::start(&strace, &[&own[..], &relay, words].concat())))
}

/// Numbers of the accepted messages, and numbers of the refused messages.
struct Told {
    kept: HashSet<usize>,
    refused: HashSet<usize>,
}

/// Sends messages on several sessions in turn, until three times as many messages as sessions have been refused. After
/// the first refusal, all must be refused.
fn until_it_fails(wires: &mut [Wire], to: &str) -> Told {
    let mut told = Told { kept: HashSet::new(), refused: HashSet::new() };
    for number in 0..200 {
        let at = number % wires.len();
        let reply = submit(&mut wires[at], "<a@b.example>", &[to], format!("Subject: number {number}\r\n\r\nx\r\n"));
        match reply.get(..4) {
            Some("250 ") => {
                assert!(told.refused.is_empty(), "{number} is taken by a spool that has failed: {reply}");
                told.kept.insert(number);
            }
            _ => {
                assert!(reply.starts_with("451 4.3.0"), "{number}: {reply}");
                told.refused.insert(number);
            }
        }
        if told.refused.len() >= 3 * wires.len() {
            return told;
        }
    }
    panic!("nothing has failed: {}", told.kept.len());
}

/// Numbers of the messages that a sink got.
fn numbered(dump: &str) -> HashSet<usize> {
    let number = |text: String| text.split("Subject: number ").nth(1)?.split("\r\n").next()?.parse().ok();
    kept(dump).iter().filter_map(|one| number(one.text())).collect()
}

/// Makes a system call fail once during work and succeed afterwards, as with real disks (fsyncgate). The relay must not
/// trust the disk again.
fn fails_for_good(call: &str, errno: &str, words: &str) {
    let inject = &format!("{call}:error={errno}:when=8");
    let files = Files::new();
    let dump = files.path("dump");
    let sink = Sink::start(&["--dump-file", &dump]);
    // The stand-in never greets its first client, so one delivery is still waiting when the relay shuts down. This
    // delays the shutdown.
    let slow = StandIn::start(|moment| (moment.at == At::Greeting && moment.connection == 0).then_some(Act::Silence));
    let text = format!(
        "http = \"127.0.0.1:0\"\n{SMALL}{QUICK}[[route]]\nto = \"slow.example\"\nsmtp = \"{}\"\n{}",
        slow.address(),
        all_to(&sink.address())
    );
    let den = Den::new(&text);
    let Some(relay) = failing(&den, inject, &[]) else { return };
    let mut wires: Vec<Wire> = (0..4).map(|_| introduced(&relay)).collect();
    let reply = submit(&mut wires[0], "<a@b.example>", &["<c@slow.example>"], "Subject: slow\r\n\r\nx\r\n");
    assert!(reply.starts_with("250 2.0.0"), "{reply}");
    assert_eq!(http(&relay, "/health").0, 200);
    let told = until_it_fails(&mut wires, "<c@d.example>");
    assert!(!told.kept.is_empty());
    assert_eq!(http(&relay, "/health"), (503, "the spool has failed\n".to_owned()));
    assert_eq!(http(&relay, "/ready").0, 503);
    assert_eq!((metric(&relay, "spool_failed"), metric(&relay, "refused_total")), (1, told.refused.len() as u64));
    drop(wires);
    let Ended { code, err, .. } = relay.process.finish();
    assert_eq!(code, Some(2), "{err}");
    assert_eq!(err.matches("a message could not be stored").count(), 1, "{err}");
    let last = err.lines().last().unwrap();
    let words = ["mailrun: the spool's disk failed", words, "after a restart"];
    assert!(words.iter().all(|word| last.contains(word)), "{last}");
    let relay = den.open();
    wait_until("the slow one to have its own", || (slow.taken() == 1).then_some(()));
    wait_until("all that was answered 250", || told.kept.is_subset(&numbered(&dump)).then_some(()));
    // A refused message may have reached the disk and may then be delivered, because a duplicate is better than a loss.
    assert!(numbered(&dump).iter().all(|number| told.kept.contains(number) || told.refused.contains(number)));
    assert!(submit(&mut introduced(&relay), "<a@b.example>", &["<c@d.example>"], "x\r\n").starts_with("250 2.0.0"));
    let arrived = numbered(&dump).len() as u64;
    await_recipients(&sink, arrived + 1);
    relay.stop();
}

// A few errors are enough here, because the spool's own tests cover every operation with every error.
#[test]
fn a_sync_that_fails_is_the_last_thing_that_the_relay_trusts() {
    fails_for_good("fdatasync", "EIO", "Input/output error");
}

/// ENOSPC in the middle of a segment is a disk failure and not a full spool, because segments are allocated whole.
#[test]
fn a_write_that_fails_is_the_last_thing_that_the_relay_trusts() {
    fails_for_good("pwritev", "ENOSPC", "No space left on device");
}

#[test]
fn a_disk_that_fails_while_no_mail_comes_is_noticed_all_the_same() {
    let address = format!("127.0.0.1:{}", crate::party::low_port());
    let den = Den::to(&address, &format!("{SMALL}{QUICK}"));
    // The failing write records a delivery attempt, so no client is waiting for a reply.
    let Some(relay) = failing(&den, "pwritev:error=EIO:when=3+", &[]) else { return };
    // strace counts the calls of each thread separately. Wait until another thread creates the first segment. Otherwise
    // the thread that writes the log might create it, and reach the failing call too early.
    wait_until("a segment", || (den.spool_bytes() > 0).then_some(()));
    let mut wire = introduced(&relay);
    assert!(
        submit(&mut wire, "<a@b.example>", &["<c@d.example>"], "Subject: number 1\r\n\r\nx\r\n").starts_with("250")
    );
    let files = Files::new();
    let dump = files.path("dump");
    let sink = Sink::start_at(&address, &["--dump-file", &dump, "--fault", "rcpt: soft reject 100%"]);
    let Ended { code, err, .. } = relay.process.finish();
    assert_eq!(code, Some(2), "{err}");
    assert!(err.lines().last().unwrap().contains("the spool's disk failed"), "{err}");
    let agent: ureq::Agent = ureq::Agent::config_builder().proxy(None).build().into();
    agent.put(format!("{}/rules", sink.url())).send("{\"rules\": []}").unwrap();
    let relay = den.open();
    wait_until("the message", || numbered(&dump).contains(&1).then_some(()));
    relay.stop();
}

#[test]
fn servers_that_never_greet_leave_connections_to_those_that_do() {
    let sink = Sink::start(&[]);
    let port: u16 = sink.address().rsplit(':').next().unwrap().parse().unwrap();
    let den = Den::new(&format!(
        "http = \"127.0.0.1:0\"\nworkers = 1\ndelivery.overall = 40\n[[route]]\nto = \"*\"\nmx = true\nport = {port}\n"
    ));
    let relay = den.open();
    let mut wire = introduced(&relay);
    let mut send = |address: &str| {
        let reply = submit(&mut wire, "<a@b.example>", &[&format!("<c@[{address}]>")], "x\r\n");
        assert!(reply.starts_with("250 2.0.0"), "{reply}");
    };
    send("127.0.0.1");
    await_recipients(&sink, 1);
    // Wait until the relay has closed its connection to the sink. Otherwise it would reuse this connection below.
    wait_until("no connection", || (metric(&relay, "couriers") == 0).then_some(()));
    // The kernel accepts these connections, but nobody sends a greeting.
    let silent: Vec<_> =
        (1..=80).map(|host| TcpListener::bind((Ipv4Addr::new(127, 0, 3, host), port)).unwrap()).collect();
    (1..=80).for_each(|host| send(&format!("127.0.3.{host}")));
    wait_until("as many attempts as there may be", || (metric(&relay, "couriers") == 30).then_some(()));
    send("127.0.0.1");
    // If the silent servers took all connections, this delivery would wait five minutes, the time limit of a greeting.
    await_recipients(&sink, 2);
    drop(silent);
    relay.stop();
}
