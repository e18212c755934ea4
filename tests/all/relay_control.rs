//! A running relay: queue commands over the control socket, metrics and health over HTTP, reloads, the delivery log,
//! and the record of its run.
use crate::party::{Ended, Process, Sink, mailrun, wait_until};
use crate::relay::{Den, MAILRUN, Relay, await_recipients, http, introduced, metric, submit};
use mailrun_measurement::Stage;
use mailrun_measurement::record::{Record, Role};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Instant;

const REFUSED: &str = "rcpt to @busy.example: soft reject \"450 4.2.0 Come again\"";

/// A relay, and a sink that defers all mail to busy.example.
fn busy() -> (Den, Sink) {
    let sink = Sink::start(&["--fault", REFUSED]);
    let den = Den::to(&sink.address(), "log = \"info\"\n");
    (den, sink)
}

/// Makes the sink accept everything.
fn relent(sink: &Sink) {
    let agent: ureq::Agent = ureq::Agent::config_builder().proxy(None).build().into();
    agent.put(format!("{}/rules", sink.url())).send("{\"rules\": []}").unwrap();
}

/// Submits `count` messages for one recipient. Returns the queue ids of the messages.
fn send(relay: &Relay, to: &str, count: usize) -> Vec<String> {
    let mut wire = introduced(relay);
    let one = |_| {
        let answer = submit(&mut wire, "<ann@a.example>", &[to], "Subject: x\r\n\r\nx\r\n");
        answer.trim().rsplit(' ').next().unwrap().to_owned()
    };
    (0..count).map(one).collect()
}

fn queue(den: &Den, words: &[&str]) -> Ended {
    mailrun(&[&["queue", "--spool", &den.path("spool")], words].concat())
}

/// Runs a queue command that must succeed, and returns the lines of its JSON output.
fn asked(den: &Den, words: &[&str]) -> Vec<Value> {
    let ended = queue(den, &[&["--json"], words].concat());
    assert_eq!(ended.code, Some(0), "{words:?}: {}", ended.err);
    ended.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn changed(den: &Den, words: &[&str]) -> u64 {
    asked(den, words).iter().map(|reply| reply["messages"].as_u64().unwrap()).sum()
}

fn count(den: &Den, state: &str) -> usize {
    asked(den, &["list", "--state", state]).len()
}

fn await_count(den: &Den, state: &str, number: usize) {
    wait_until(&format!("{number} that are {state}"), || (count(den, state) == number).then_some(()));
}

#[test]
fn what_waits_is_listed_and_shown_with_its_reason() {
    let (den, sink) = busy();
    let relay = den.open();
    let ids = send(&relay, "<bob@busy.example>", 3);
    await_count(&den, "deferred", 3);
    let entries = asked(&den, &["list"]);
    let mut listed: Vec<&str> = entries.iter().map(|entry| entry["id"].as_str().unwrap()).collect();
    listed.sort_unstable();
    assert_eq!(listed, ids);
    let hop = format!("smtp:{}", sink.address());
    for entry in &entries {
        assert_eq!((&entry["hop"], &entry["attempts"], &entry["recipients"]), (&json!(hop), &json!(1), &json!(1)));
        assert_eq!((&entry["refusal"]["code"], &entry["refusal"]["enhanced"]), (&json!(450), &json!("4.2.0")));
        let wait = entry["next_unix_s"].as_u64().unwrap() - entry["received_unix_s"].as_u64().unwrap();
        assert!((100..=600).contains(&wait), "five minutes, spread: {wait}");
    }
    assert_eq!(asked(&den, &["list", "--max-rows", "2"]).len(), 2);
    assert_eq!(asked(&den, &["list", "--hop", &hop]).len(), 3);
    assert_eq!(asked(&den, &["list", "--hop", "mx:nowhere.example"]).len(), 0);
    let table = queue(&den, &["list"]).out;
    assert_eq!(table.lines().count(), 4, "{table}");
    assert!(table.contains("LAST REFUSAL") && table.contains("450 4.2.0 Come again"), "{table}");
    let shown = queue(&den, &["show", &ids[1]]).out;
    for words in ["from      <ann@a.example>", "to <bob@busy.example>", "client.example [127.0.0.1]", "Come again"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    let missing = queue(&den, &["show", "00000000deadbeef"]);
    assert_eq!((missing.code, missing.out.as_str()), (Some(1), ""), "{missing:?}");
    assert!(missing.err.contains("no message 00000000deadbeef"), "{}", missing.err);
    relay.stop();
}

#[test]
fn what_waits_for_a_hop_that_is_down_says_why_and_how_long() {
    let address = format!("127.0.0.1:{}", crate::party::low_port());
    // The relay waits 1/60 of `retry.first` before it tries a hop again: here 30 s, plus or minus a quarter.
    let den = Den::to(&address, "retry.first = \"30m\"\n");
    let relay = den.open();
    let ids = send(&relay, "<bob@down.example>", 2);
    let down = || asked(&den, &["list", "--state", "ready"]).into_iter().filter(|entry| entry["hop_is_shut"] == true);
    let entries =
        wait_until("both to wait for the hop", || Some(down().collect::<Vec<_>>()).filter(|all| all.len() == 2));
    for entry in &entries {
        let text = entry["refusal"]["text"].as_str().unwrap();
        assert!(text.contains("refused") && entry["attempts"] == 0, "{entry}");
        let now = entry["received_unix_s"].as_u64().unwrap() + entry["age_s"].as_u64().unwrap();
        let wait = entry["next_unix_s"].as_u64().unwrap().saturating_sub(now);
        // The remaining wait may be as short as 5 s, because on a slow machine most of the 30 s may have passed.
        assert!((5..=38).contains(&wait), "{wait} s");
    }
    let table = queue(&den, &["list"]).out;
    let line = table.lines().find(|line| line.contains(&ids[0])).unwrap();
    assert!(line.contains(" ready ") && line.contains("refused") && !line.contains(" - "), "{table}");
    let shown = queue(&den, &["show", &ids[0]]).out;
    assert!(shown.contains("no connection attempt for") && shown.contains("refused"), "{shown}");
    let sink = Sink::start_at(&address, &[]);
    // Both messages wait for the same hop. If the first one is delivered at once, the second one may follow on the same
    // connection before the command counts it. So the command may report only one.
    assert!(changed(&den, &["retry", "all"]) >= 1);
    await_recipients(&sink, 2);
    relay.stop();
}

#[test]
fn a_retry_does_not_wait_for_the_schedule() {
    let (den, sink) = busy();
    let relay = den.open_with(&["--http", "127.0.0.1:0"]);
    let ids = send(&relay, "<bob@busy.example>", 3);
    await_count(&den, "deferred", 3);
    relent(&sink);
    assert_eq!(changed(&den, &["retry", &ids[0]]), 1);
    await_recipients(&sink, 1);
    await_count(&den, "deferred", 2);
    assert_eq!(changed(&den, &["retry", "--hop", &format!("smtp:{}", sink.address())]), 2);
    await_recipients(&sink, 3);
    wait_until("an empty queue", || asked(&den, &["list"]).is_empty().then_some(()));
    assert_eq!(metric(&relay, "deferred_total"), 3, "a command is no deferral");
    relay.stop();
    assert_eq!(sink.took().recipients, 3);
}

#[test]
fn what_is_held_stays_so_after_a_restart_until_it_is_released() {
    let (den, sink) = busy();
    let relay = den.open();
    let ids = send(&relay, "<bob@busy.example>", 3);
    await_count(&den, "deferred", 3);
    assert_eq!(changed(&den, &["hold", &ids[0], &ids[1]]), 2);
    assert_eq!(changed(&den, &["hold", &ids[0]]), 0, "it is held already");
    assert_eq!(changed(&den, &["remove", &ids[1]]), 1);
    assert_eq!((count(&den, "held"), count(&den, "deferred")), (1, 1));
    relent(&sink);
    relay.stop();
    let relay = den.open();
    await_count(&den, "held", 1);
    assert_eq!(asked(&den, &["list"]).len(), 2, "what was removed is gone for good");
    assert_eq!(changed(&den, &["retry", "all"]), 1, "what is held is not tried");
    await_recipients(&sink, 1);
    assert_eq!(count(&den, "held"), 1);
    let told = queue(&den, &["release", "all"]);
    assert_eq!((told.code, told.out.as_str()), (Some(0), "1 message released\n"));
    await_recipients(&sink, 2);
    relay.stop();
    assert_eq!(sink.took().recipients, 2);
}

#[test]
fn what_an_operator_was_told_is_changed_stays_so_when_the_relay_is_killed_at_once() {
    let (den, sink) = busy();
    let relay = den.open();
    let ids = send(&relay, "<bob@busy.example>", 4);
    await_count(&den, "deferred", 4);
    assert_eq!(changed(&den, &["hold", &ids[0], &ids[1]]), 2);
    relay.kill();
    let relay = den.open();
    await_count(&den, "held", 2);
    assert_eq!(changed(&den, &["release", &ids[0]]), 1);
    relay.kill();
    let relay = den.open();
    await_count(&den, "held", 1);
    relent(&sink);
    assert_eq!(changed(&den, &["remove", &ids[1], &ids[2]]), 2);
    relay.kill();
    let relay = den.open();
    // The relay tries released messages at once, but deferred messages only when they are due. So retry all now.
    changed(&den, &["retry", "all"]);
    await_recipients(&sink, 2);
    wait_until("an empty queue", || asked(&den, &["list"]).is_empty().then_some(()));
    relay.stop();
    assert_eq!(sink.took().recipients, 2, "what was removed is gone for good");
}

#[test]
fn what_is_removed_while_it_is_sent_is_not_sent_again_after_a_kill() {
    let [one, other] = [(); 2].map(|()| Sink::start(&["--fault", ".: delay 60s"]));
    let route = format!("[[route]]\nto = \"other.example\"\nsmtp = \"{}\"\n", other.address());
    let den = Den::to(&one.address(), &route);
    let relay = den.open();
    let removed = send(&relay, "<bob@slow.example>", 1).remove(0);
    let left = send(&relay, "<bob@other.example>", 1).remove(0);
    await_count(&den, "sending", 2);
    assert_eq!(changed(&den, &["remove", &removed]), 1);
    relay.kill();
    let relay = den.open();
    await_count(&den, "sending", 1);
    let listed = asked(&den, &["list"]);
    assert_eq!((listed.len(), &listed[0]["id"]), (1, &json!(left)));
    relay.kill();
}

#[test]
fn a_queue_of_many_pages_is_listed_and_changed_as_a_whole() {
    let (den, sink) = busy();
    let relay = den.open_with(&["--workers", "1"]);
    let many = 1_300;
    let to = "<bob@busy.example>";
    let ids = send(&relay, to, many);
    await_count(&den, "deferred", many);
    let listed: std::collections::HashSet<String> =
        asked(&den, &["list"]).iter().map(|entry| entry["id"].as_str().unwrap().to_owned()).collect();
    assert!(listed.len() == many && ids.iter().all(|id| listed.contains(id)));
    assert_eq!(changed(&den, &["hold", "all"]), many as u64);
    assert_eq!(changed(&den, &["remove", "--hop", &format!("smtp:{}", sink.address())]), many as u64);
    assert!(asked(&den, &["list"]).is_empty());
    relay.stop();
    let relay = den.open();
    assert!(asked(&den, &["list"]).is_empty(), "nothing comes back");
    relay.stop();
}

#[test]
fn numbers_are_told_in_all_and_by_hop() {
    let (den, _sink) = busy();
    let relay = den.open();
    send(&relay, "<bob@busy.example>", 2);
    await_count(&den, "deferred", 2);
    let stats = asked(&den, &["stats"]);
    assert_eq!(
        (&stats[0]["is"], &stats[0]["messages"], &stats[0]["accepted"]),
        (&json!("totals"), &json!(2), &json!(2))
    );
    assert_eq!((&stats[0]["durability"], &stats[0]["spool_messages"]), (&json!("sync"), &json!(2)));
    assert_eq!((&stats[1]["is"], &stats[1]["deferred"], &stats[1]["ready"]), (&json!("hop"), &json!(2), &json!(0)));
    let text = queue(&den, &["stats"]).out;
    assert!(text.contains("durability: sync") && text.contains("DEFERRED"), "{text}");
    relay.stop();
}

#[test]
fn the_socket_is_its_owners_and_a_dead_ones_is_taken_over() {
    let den = Den::new("[[route]]\nto = \"*\"\ndiscard = true\n");
    let path = den.path("spool/control.sock");
    let relay = den.open();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    relay.kill();
    assert!(fs::exists(&path).unwrap(), "what is killed leaves it behind");
    let nobody = queue(&den, &["list"]);
    assert_eq!((nobody.code, nobody.err.lines().count()), (Some(2), 1), "{nobody:?}");
    assert!(nobody.err.contains("check that it is running"), "{}", nobody.err);
    let relay = den.open();
    assert!(asked(&den, &["list"]).is_empty());
    let other = Den::new("[[route]]\nto = \"*\"\ndiscard = true\n");
    let refused = other.fails(&["--control", &path]);
    assert_eq!((refused.code, refused.err.lines().count()), (Some(2), 1), "{refused:?}");
    assert!(refused.err.contains("another relay"), "{}", refused.err);
    assert!(asked(&den, &["list"]).is_empty(), "the living one was left alone");
    relay.stop();
    assert!(!fs::exists(&path).unwrap());
}

#[test]
fn nonsense_on_the_socket_is_answered_and_does_no_harm() {
    let den = Den::new("[[route]]\nto = \"*\"\ndiscard = true\n");
    let relay = den.open();
    let long = "x".repeat(100_000);
    for line in ["hello", "{}", "{\"ask\":\"dance\"}", "[[[[[[[[", "\u{0}\u{7f}", &long] {
        let mut stream = UnixStream::connect(den.path("spool/control.sock")).unwrap();
        // Ignore errors, because the server may close the connection before it has read everything.
        let _ = stream.write_all(format!("{line}\n").as_bytes());
        let mut answer = String::new();
        let _ = BufReader::new(&mut stream).read_line(&mut answer);
        assert!(answer.starts_with("{\"is\":\"error\""), "{answer}");
    }
    // Clients that connect and send no request must not block others.
    let _silent: Vec<_> = (0..8).map(|_| UnixStream::connect(den.path("spool/control.sock")).unwrap()).collect();
    assert!(asked(&den, &["list"]).is_empty());
    relay.stop();
}

#[test]
fn a_command_succeeds_only_after_the_relays_answer() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("control.sock");
    let control = UnixListener::bind(&path).unwrap();
    // This thread imitates a relay that dies. It closes each connection at once, before or after the client has written
    // its request.
    std::thread::spawn(move || control.incoming().for_each(drop));
    for words in ["list", "list --json", "stats", "flush", "remove all", "hold 0000000000000001"].repeat(6) {
        let words: Vec<&str> = words.split(' ').chain(["--control", path.to_str().unwrap()]).collect();
        let ended = mailrun(&[&["queue"], &words[..]].concat());
        assert_eq!((ended.code, &*ended.out), (Some(2), ""), "{words:?}: {}", ended.err);
        assert!(ended.err.starts_with("mailrun: the relay has not answered the command ("), "{}", ended.err);
    }
}

#[test]
fn metrics_are_what_prometheus_reads() {
    let (den, _sink) = busy();
    let relay = den.open_with(&["--http", "127.0.0.1:0"]);
    assert_eq!(http(&relay, "/health"), (200, "ok\n".to_owned()));
    wait_until("it to be ready", || (http(&relay, "/ready").0 == 200).then_some(()));
    send(&relay, "<bob@busy.example>", 2);
    send(&relay, "<eve@free.example>", 1);
    await_count(&den, "deferred", 2);
    let metrics = wait_until("one to be delivered", || {
        let (status, text) = http(&relay, "/metrics");
        assert_eq!(status, 200);
        text.contains("mailrun_relay_delivered_total 1\n").then_some(text)
    });
    for line in metrics.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(name.starts_with("mailrun_relay_") && value.parse::<f64>().is_ok(), "{line}");
    }
    let has = |line: &str| assert!(metrics.lines().any(|found| found == line), "{line}\n{metrics}");
    has("mailrun_relay_accepted_total 3");
    has("mailrun_relay_queue_messages 2");
    let hop = den_hop(&metrics);
    has(&format!("mailrun_relay_queue_entries{{hop=\"{hop}\",state=\"deferred\"}} 2"));
    assert!(metrics.contains("durability=\"sync\""));
    assert_eq!(http(&relay, "/nowhere").0, 404);
    wait_until("what is done to leave the spool", || {
        http(&relay, "/metrics").1.contains("mailrun_relay_spool_messages 2\n").then_some(())
    });
    relay.stop();
}

fn den_hop(metrics: &str) -> String {
    let line = metrics.lines().find(|line| line.starts_with("mailrun_relay_hop_couriers{")).unwrap();
    line.split('"').nth(1).unwrap().to_owned()
}

#[test]
fn a_hang_up_reads_the_file_again_and_a_mistake_changes_nothing() {
    let den = Den::new("log = \"info\"\nnetworks = [\"10.0.0.0/8\"]\n[[route]]\nto = \"*\"\ndiscard = true\n");
    let relay = den.open();
    let may_send = || {
        let mut wire = introduced(&relay);
        assert!(wire.say("MAIL FROM:<a@b.example>").starts_with("250"));
        wire.say("RCPT TO:<c@d.example>").starts_with("250")
    };
    assert!(!may_send(), "this host is no network of its own");
    let config = den.path("relay.toml");
    let good = fs::read_to_string(&config).unwrap();
    fs::write(&config, good.replace("discard = true", "discard = maybe")).unwrap();
    relay.process.hang_up();
    let said = wait_until("a complaint", || {
        Some(relay.process.complained()).filter(|text| text.contains("the configuration is unchanged"))
    });
    assert!(said.contains("relay.toml:9:11"), "{said}");
    assert!(!may_send());
    fs::write(&config, good.replace("10.0.0.0/8", "127.0.0.0/8").replace("log =", "workers = 7\nlog =")).unwrap();
    relay.process.hang_up();
    wait_until("this host to be let in", || may_send().then_some(()));
    wait_until("what needs a restart to be named", || {
        relay.process.complained().contains("keys=\"workers\"").then_some(())
    });
    fs::write(&config, good.replace("\"info\"", "\"error\"")).unwrap();
    relay.process.hang_up();
    wait_until("this host to be shut out", || (!may_send()).then_some(()));
    relay.stop();
}

#[test]
fn each_delivery_has_a_line_at_info_and_none_at_warn() {
    let (den, _sink) = busy();
    let relay = den.open();
    let began = Instant::now();
    let ids = [send(&relay, "<bob@busy.example>", 1), send(&relay, "<eve@free.example>", 1)].concat();
    let lines = wait_until("two lines", || {
        let said = relay.process.complained();
        let lines: Vec<String> = said.lines().filter(|line| line.contains(" delivery ")).map(str::to_owned).collect();
        (lines.len() == 2).then_some(lines)
    });
    let line = |id: &str| lines.iter().find(|line| line.contains(&format!("id={id} "))).unwrap();
    let late = line(&ids[0]);
    for words in ["from=<ann@a.example> to=<bob@busy.example>", "status=deferred code=450", "Come again", "attempts=1"]
    {
        assert!(late.contains(words), "{words}: {late}");
    }
    let there = line(&ids[1]);
    let delay_s = there.split("delay_s=").nth(1).unwrap().split_whitespace().next().unwrap().parse::<f64>().unwrap();
    assert!(there.contains("status=delivered code=250") && delay_s <= began.elapsed().as_secs_f64() + 0.1, "{there}");
    relay.stop();
    let relay = den.open_with(&["--log", "warn"]);
    send(&relay, "<eve@free.example>", 1);
    wait_until("it to be delivered", || (asked(&den, &["list"]).len() == 1).then_some(()));
    let ended = relay.stop();
    assert!(!ended.err.contains(" delivery "), "{}", ended.err);
}

#[test]
fn the_record_says_what_was_accepted_and_delivered() {
    let sink = Sink::start(&[]);
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    let words =
        ["relay", "--listen", "127.0.0.1:0", "--to", &sink.address(), "--spool", &path("spool"), "--live", "json"];
    let more = ["--durability", "write", "--json", &path("relay.json")];
    let relay = Relay::listening(Process::start(MAILRUN, &[&words[..], &more].concat()));
    send(&relay, "<eve@free.example>", 5);
    await_recipients(&sink, 5);
    // Wait until the relay's queue is empty, because the sink counts a message before the relay reads its reply.
    let list = ["queue", "list", "--json", "--spool", &path("spool")];
    wait_until("an empty queue", || mailrun(&list).out.is_empty().then_some(()));
    let ended = relay.stop();
    assert!(ended.out.lines().last().unwrap().contains("done"), "{}", ended.out);
    let mut text = String::new();
    fs::File::open(path("relay.json")).unwrap().read_to_string(&mut text).unwrap();
    let record: Record = serde_json::from_str(&text).unwrap();
    let party = &record.parties[0];
    assert_eq!((party.role, party.durability.as_str()), (Role::Relay, "write"));
    assert!(party.max_rss_bytes.is_some());
    for stage in [Stage::Accepted, Stage::Delivered] {
        let row = record.stage(stage).unwrap();
        assert_eq!((row.count, row.failed, row.party.as_str()), (5, 0, "relay"), "{stage:?}");
    }
    assert_eq!(
        record
            .series
            .iter()
            .map(|row| (row.accepted, row.delivered))
            .fold((0, 0), |sum, row| (sum.0 + row.0, sum.1 + row.1)),
        (5, 5)
    );
    assert_eq!(record.series.last().unwrap().queued, 0);
}

#[test]
fn deliveries_into_maildirs_are_counted_once_a_recipient() {
    let files = crate::secured::Files::new();
    files.keep("boxes", "ann\nbob\npostmaster\n");
    let json = files.path("relay.json");
    let text = "local.domains = [\"home.example\"]\nlocal.users = \"boxes\"\nlocal.maildir = \"mail/{user}\"\n";
    let den = Den::with(files, text);
    let relay = den.open_with(&["--http", "127.0.0.1:0", "--json", &json]);
    let to = ["<ann@home.example>", "<bob@home.example>"];
    let answer = submit(&mut introduced(&relay), "<a@b.example>", &to, "Subject: x\r\n\r\nx\r\n");
    assert!(answer.starts_with("250 2.0.0"), "{answer}");
    wait_until("it to be done", || (metric(&relay, "spool_messages") == 0).then_some(()));
    let counts = ["accepted_total", "accepted_recipients_total", "delivered_total", "deferred_total", "failed_total"];
    assert_eq!(counts.map(|name| metric(&relay, name)), [1, 2, 2, 0, 0]);
    for name in ["ann", "bob"] {
        assert_eq!(crate::relay::mailbox(&den.path(&format!("mail/{name}"))).len(), 1, "{name}");
    }
    relay.stop();
    let record: Record = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    let row = record.stage(Stage::Delivered).unwrap();
    assert_eq!((row.count, row.failed), (2, 0));
    assert_eq!(record.series.iter().map(|row| row.delivered).sum::<u64>(), 2);
}

#[test]
fn the_manual_shows_every_key_of_the_file() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |name: &str| fs::read_to_string(root.join(name)).unwrap();
    assert!(read("docs/relay.md").contains(&read("crates/relay/src/config/example.toml")));
}

#[test]
fn a_queue_that_has_nothing_of_it_says_so() {
    let (den, sink) = busy();
    let relay = den.open();
    let empty = queue(&den, &["list"]);
    assert_eq!((empty.code, empty.out.as_str(), empty.err.as_str()), (Some(0), "Mail queue is empty\n", ""));
    assert_eq!(queue(&den, &["list", "--hop", "mx:x.example"]).out, "Mail queue is empty\n");
    let silent = queue(&den, &["list", "--json"]);
    assert_eq!((silent.code, silent.out.as_str(), silent.err.as_str()), (Some(0), "", ""));
    let nobody = queue(&den, &["hold", "--hop", "mx:x.example"]);
    assert_eq!(nobody.code, Some(1), "{nobody:?}");
    assert_eq!(nobody.err, "mailrun: no messages for the hop \"mx:x.example\"; the queue is empty\n");
    let flushed = queue(&den, &["flush"]);
    assert_eq!((flushed.code, flushed.out.as_str()), (Some(0), "0 messages scheduled for an immediate retry\n"));
    send(&relay, "<bob@busy.example>", 2);
    await_count(&den, "deferred", 2);
    let why = format!("mailrun: no messages for the hop \"mx:x.example\"; the queue has smtp:{}\n", sink.address());
    for (words, code) in [(["list", "--hop"], 0), (["retry", "--hop"], 1), (["remove", "--hop"], 1)] {
        let ended = queue(&den, &[&words[..], &["mx:x.example"]].concat());
        assert_eq!((ended.code, ended.out.as_str(), ended.err.as_str()), (Some(code), "", why.as_str()), "{words:?}");
    }
    let held = queue(&den, &["list", "--state", "held"]);
    assert_eq!(held.err, "mailrun: no entry is in the state held; the queue has 2 entries\n");
    assert_eq!((held.code, held.out.as_str()), (Some(0), ""));
    relent(&sink);
    assert_eq!(queue(&den, &["flush"]).out, "2 messages scheduled for an immediate retry\n");
    await_recipients(&sink, 2);
    relay.stop();
}
