//! Private mailbox servers that the bench starts. The bench must account for all mail, must notice mail that a user
//! deletes or copies in a mailbox, and must not call mail lost that survives a crash of the server.
//!
//! `make test-slow PART=mailboxes` makes the Debian roots of these servers and runs this file.
use crate::party::{Bench, BenchRun, bench_as_typed, low_port, stage, wait_until, wait_within};
use crate::probe::Probe;
use crate::recipes::is_here;
use crate::secured::Files;
use crate::skipped::skip;
use mailrun_bench::recipe::Recipe;
use mailrun_measurement::Stage;
use mailrun_measurement::record::{Record, Role, Watched};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

/// Time to wait for mail after the server was killed. It is longer than the two minutes for which Dovecot waits for the
/// lock of a killed process.
const UNTIL_UNLOCKED: Duration = Duration::from_secs(150);

#[test]
#[ignore = "slow: make test-slow PART=mailboxes"]
fn dovecot_is_accounted_for() {
    account_for("dovecot");
}

#[test]
#[ignore = "slow: make test-slow PART=mailboxes"]
fn dovecot_of_debian_13_is_accounted_for() {
    account_for("dovecot-debian");
}

#[test]
#[ignore = "slow: make test-slow PART=mailboxes"]
fn cyrus_is_accounted_for() {
    account_for("cyrus");
}

fn account_for(recipe: &str) {
    if !is_here(recipe) {
        return;
    }
    delivers_all(recipe);
    is_asked(recipe);
    is_changed_by_hand(recipe);
    is_killed(recipe);
}

fn watched(record: &Record) -> &Watched {
    let sink = record.parties.iter().find(|party| party.role == Role::Sink).unwrap();
    sink.reception.as_ref().unwrap().mailboxes.as_ref().unwrap()
}

/// Prints figures for a person who runs this test by hand. The test expects nothing of the figures, because the
/// host may be busy.
fn tell(what: &str, run: &BenchRun) {
    let record = run.record();
    for name in [Stage::Accepted, Stage::Announced, Stage::Delivered] {
        let row = stage(&record, name);
        let times = row.latency_ms.unwrap();
        eprintln!(
            "{what}: {name:?} {}, p50 {:.1} ms, p90 {:.1} ms, p99 {:.1} ms",
            row.count, times.p50, times.p90, times.p99
        );
    }
}

fn delivers_all(recipe: &str) {
    let run = bench_as_typed(&["--relay", recipe, "--rate", "200", "--messages", "10000"]);
    tell(&format!("{recipe}, 10,000"), &run);
    let record = run.record();
    let ledger = &record.ledger;
    assert_eq!((ledger.delivered, ledger.duplicates), (Some(10_000), Some(0)), "{recipe}: {:?}", record.verdict);
    let watched = watched(&record);
    assert_eq!((watched.count, watched.idle, watched.broken), (100, 100, 0), "{recipe}: {watched:?}");
}

fn is_asked(recipe: &str) {
    let run = bench_as_typed(&["--relay", recipe, "--rate", "200", "--messages", "1000", "--poll", "1s"]);
    tell(&format!("{recipe}, asked every second"), &run);
    let record = run.record();
    assert_eq!((record.ledger.delivered, record.ledger.duplicates), (Some(1000), Some(0)), "{recipe}");
    assert_eq!((watched(&record).idle, watched(&record).poll_ms), (0, Some(1000.0)), "{recipe}");
}

fn is_changed_by_hand(recipe: &str) {
    // The test deletes one message as soon as it arrives. The sink looks into the mailbox only every 5 s, so it almost
    // never sees this message.
    let bench = Bench::start_as_typed(&[
        "--relay",
        recipe,
        "--rate",
        "200",
        "--messages",
        "2000",
        "--poll",
        "5s",
        "--lost-after",
        "12s",
    ]);
    let mut hand = Hand::log_in_as("user0", &imap_address(&bench));
    let last = wait_until("two messages", || Some(hand.exists()).filter(|count| *count >= 2));
    hand.say(&format!("STORE {last} +FLAGS.SILENT (\\Deleted)"));
    hand.say("EXPUNGE");
    hand.say("COPY 1 INBOX");
    let run = bench.finish();
    let ledger = run.record().ledger;
    assert_eq!(
        (ledger.delivered, ledger.not_delivered, ledger.lost, ledger.duplicates),
        (Some(1999), Some(1), None, Some(1)),
        "{recipe}: {:?}",
        run.ended
    );
}

/// Writes a recipe, the description of a server, to a file. Changes its command so that a shell starts the server again
/// whenever it has ended.
fn keep_restarted(files: &Files, recipe: &str) -> String {
    // Processes of the killed Cyrus may still hold a port for a moment. A new Cyrus would start without this port, so
    // the shell waits before each restart.
    let shell = "command = [\"sh\", \"-c\", \"trap 'kill $!; wait; exit' TERM; while :; do \\\"$@\\\" & wait $!; sleep 2; \
                 done\", \"sh\", ";
    files.keep("restarted.toml", &recipe.replacen("\ncommand = [", &format!("\n{shell}"), 1))
}

/// Kills all processes of a server. Its recipe comes from `keep_restarted`, so a shell starts the server again.
fn kill_server(bench: &Bench) {
    let servers = descendants(bench.process.id(), "while :; do");
    assert!(servers.len() > 5, "{servers:?}");
    for pid in &servers {
        // Ignore errors, because some processes may have ended by themselves after their master was killed.
        let _ = kill_process(Pid::from_raw(i32::try_from(*pid).unwrap()).unwrap(), Signal::KILL);
    }
}

fn is_killed(recipe: &str) {
    let files = Files::new();
    let file = keep_restarted(&files, Recipe::built_in_text(recipe).unwrap());
    let until_lost = format!("{}s", UNTIL_UNLOCKED.as_secs());
    let load = ["--rate", "200", "--messages", "2000", "--lost-after", &until_lost];
    let bench = Bench::start_as_typed(&[&["--relay", file.as_str()], load.as_slice()].concat());
    bench.await_accepted();
    kill_server(&bench);
    let run = bench.finish();
    let record = run.record();
    let ledger = &record.ledger;
    eprintln!("{recipe}, killed: {ledger:?}");
    assert!(watched(&record).broken >= 100, "{recipe}: {:?}", watched(&record));
    assert!(ledger.delivered > Some(500), "{recipe}: the server came back: {:?}", run.ended);
    // No mail may be missing. Missing mail counts as not delivered if the server may still have it in a queue, and
    // otherwise as lost. So add both numbers.
    let missing = ledger.lost.unwrap_or_default() + ledger.not_delivered.unwrap_or_default();
    assert_eq!((missing, ledger.duplicates), (0, Some(0)), "{recipe}: {:?}", run.ended);
}

#[test]
#[ignore = "slow: make test-slow PART=mailboxes"]
fn a_probe_accounts_for_its_mail_by_imap_and_pop3_although_dovecot_is_killed() {
    if !is_here("dovecot") {
        return;
    }
    if !Path::new("/usr/lib/dovecot/pop3").exists() {
        return skip("dovecot-pop3d", "Dovecot has no POP3 here");
    }
    let files = Files::new();
    let (lmtp, pop3) = (low_port(), low_port());
    let listener = |name: &str, port: u16| format!("inet_listener {name} {{\n    port = {port}\n  }}\n");
    let own_listeners = Recipe::built_in_text("dovecot")
        .unwrap()
        .replacen("protocols = imap lmtp", "protocols = imap pop3 lmtp", 1)
        .replacen("service lmtp {\n", &format!("service lmtp {{\n  {}", listener("probe", lmtp)), 1)
        .replacen(
            "service imap-login {",
            &format!("service pop3-login {{\n  {}}}\nservice imap-login {{", listener("pop3", pop3)),
            1,
        );
    let file = keep_restarted(&files, &own_listeners);
    // The bench only keeps the server running. Its mail goes to other users than the probe's mail.
    let bench = Bench::start_as_typed(&["--relay", &file, "--rate", "1", "--duration", "10m"]);
    let imap = imap_address(&bench);
    let password = files.keep("password", "secret\n");
    let text = |rate: &str| {
        let routes = [("imap", format!("imap://imap@{imap}")), ("pop3", format!("pop://pop3@127.0.0.1:{pop3}"))];
        let routes = routes.map(|(name, mailbox)| {
            format!(
                "[[route]]\nname = \"{name}\"\nserver = \"lmtp://127.0.0.1:{lmtp}\"\nto = \"{name}@mail.example\"\nrate = \"{rate}\"\n\
                 mailbox = \"{mailbox}\"\nmailbox_password_file = \"{password}\"\n"
            )
        });
        format!("state = \"state\"\nhttp = \"127.0.0.1:0\"\n{}", routes.concat())
    };
    let probe = Probe::start(&files.keep("probe.toml", &text("4/s")));
    let routes = ["imap", "pop3"];
    probe.await_value("delivered_total", &routes, 20.0);
    kill_server(&bench);
    probe.await_value("failed_total", &routes, 1.0);
    let before = probe.metrics();
    wait_within(UNTIL_UNLOCKED, "mail after the kill", || {
        let now = probe.metrics();
        let is_back = |route: &&str| now.of("delivered_total", route) >= before.of("delivered_total", route) + 20.0;
        routes.iter().all(is_back).then_some(())
    });
    files.keep("probe.toml", &text("1/h"));
    probe.hang_up();
    let quiet = wait_within(UNTIL_UNLOCKED, "all messages to have ended", || {
        let metrics = probe.metrics();
        let has_ended =
            |route: &&str| metrics.of("interval_seconds", route) >= 3_600.0 && metrics.of("in_flight", route) == 0.0;
        routes.iter().all(has_ended).then_some(metrics)
    });
    for route in routes {
        assert_eq!(quiet.of("created_total", route), quiet.fates(route), "{route}");
        assert_eq!((quiet.of("missing", route), quiet.of("repeated_total", route)), (0.0, 0.0), "{route}");
    }
    for route in routes {
        let mut hand = Hand::log_in_as(route, &imap);
        wait_until("the probe to delete its own mail", || (hand.exists() == 0).then_some(()));
    }
    bench.process.terminate();
    bench.finish();
}

/// Finds the child of the process `of` whose command line contains `word`. Returns all descendants of this child.
fn descendants(of: u32, word: &str) -> Vec<u32> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // Search for the last ")", because the process name in parentheses may contain any text.
        let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse::<u32>().ok());
        parents.extend(parent.map(|parent| (pid, parent)));
    }
    let is_shell = |pid: u32| {
        String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()).contains(word)
    };
    let shell = parents.iter().find(|(pid, parent)| *parent == of && is_shell(*pid)).unwrap().0;
    let mut found = vec![shell];
    let mut next = 0;
    while let Some(one) = found.get(next).copied() {
        found.extend(parents.iter().filter(|(_, parent)| *parent == one).map(|(pid, _)| *pid));
        next += 1;
    }
    found.split_off(1)
}

/// Returns the IMAP address of the server that a bench has started.
fn imap_address(bench: &Bench) -> String {
    wait_until("the sink to watch", || {
        let said = bench.file("sink.stderr");
        Some(said.split_once("imap://user0@")?.1.split_once(' ')?.0.to_owned())
    })
}

/// An IMAP client that changes a mailbox during a run, as the mailbox's user might.
struct Hand {
    replies: BufReader<TcpStream>,
    exists: u32,
}

impl Hand {
    fn log_in_as(user: &str, address: &str) -> Self {
        let mut hand = Self { replies: BufReader::new(TcpStream::connect(address).unwrap()), exists: 0 };
        hand.say(&format!("LOGIN {user} secret"));
        hand.say("SELECT INBOX");
        hand
    }

    fn exists(&mut self) -> u32 {
        self.say("NOOP");
        self.exists
    }

    /// Sends a command, and updates the number of messages in the mailbox from the replies.
    fn say(&mut self, command: &str) {
        self.replies.get_mut().write_all(format!("a {command}\r\n").as_bytes()).unwrap();
        loop {
            let mut line = String::new();
            self.replies.read_line(&mut line).unwrap();
            match line.trim_end().split(' ').collect::<Vec<_>>()[..] {
                ["*", count, "EXISTS"] => self.exists = count.parse().unwrap(),
                ["*", _, "EXPUNGE"] => self.exists -= 1,
                ["a", "OK", ..] => return,
                ["*", ..] => {}
                _ => panic!("{command}: {line:?}"),
            }
        }
    }
}
