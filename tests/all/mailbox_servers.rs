//! Private servers of mailboxes that the bench starts. All mail is accounted for; what somebody deletes or copies in a
//! mailbox is noticed; and what outlives a crash of the server is not called lost.
//!
//! `make test-slow PART=mailboxes` makes the Debian roots of these servers and runs this file.
use crate::party::{Bench, BenchRun, bench_as_typed, stage, wait_until};
use crate::recipes::is_here;
use crate::secured::Files;
use mailrun_bench::recipe::Recipe;
use mailrun_measurement::Stage;
use mailrun_measurement::record::{Record, Role, Watched};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

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

/// Prints figures for whoever runs this by hand. The host may be busy, so the test expects nothing of them.
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
    // The sink looks every 5 s, so a message that is deleted as soon as it is seen here is almost never seen by it.
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
    let mut hand = Hand::log_in(&bench);
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

fn is_killed(recipe: &str) {
    let files = Files::new();
    let file = files.path("restarted.toml");
    // A shell starts the server again whenever it has ended. Cyrus would go on without a port that one of its former
    // processes still holds, so the shell waits.
    let shell = "command = [\"sh\", \"-c\", \"trap 'kill $!; wait; exit' TERM; while :; do \\\"$@\\\" & wait $!; sleep 2; \
                 done\", \"sh\", ";
    let text = Recipe::built_in_text(recipe).unwrap().replacen("\ncommand = [", &format!("\n{shell}"), 1);
    fs::write(&file, text).unwrap();
    // Dovecot waits for two minutes for the lock of a process that was killed.
    let load = ["--rate", "200", "--messages", "2000", "--lost-after", "150s"];
    let bench = Bench::start_as_typed(&[&["--relay", file.as_str()], load.as_slice()].concat());
    bench.await_accepted();
    let servers = descendants(bench.process.id(), "while :; do");
    assert!(servers.len() > 10, "{recipe}: {servers:?}");
    for pid in &servers {
        // Some may have ended by themselves, because their master is gone.
        let _ = kill_process(Pid::from_raw(i32::try_from(*pid).unwrap()).unwrap(), Signal::KILL);
    }
    let run = bench.finish();
    let record = run.record();
    let ledger = &record.ledger;
    eprintln!("{recipe}, killed: {ledger:?}");
    assert!(watched(&record).broken >= 100, "{recipe}: {:?}", watched(&record));
    assert!(ledger.delivered > Some(500), "{recipe}: the server came back: {:?}", run.ended);
    // Whether mail is lost is known only if none is missing, because the server may have a queue.
    let missing = ledger.lost.unwrap_or_default() + ledger.not_delivered.unwrap_or_default();
    assert_eq!((missing, ledger.duplicates), (0, Some(0)), "{recipe}: {:?}", run.ended);
}

/// Returns the processes below the child of `of` whose command line contains `word`.
fn descendants(of: u32, word: &str) -> Vec<u32> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // The name in parentheses may contain anything.
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

/// Somebody who changes the first mailbox by IMAP.
struct Hand {
    replies: BufReader<TcpStream>,
    exists: u32,
}

impl Hand {
    fn log_in(bench: &Bench) -> Self {
        let address = wait_until("the sink to watch", || {
            let said = bench.file("sink.stderr");
            Some(said.split_once("imap://user0@")?.1.split_once(' ')?.0.to_owned())
        });
        let mut hand = Self { replies: BufReader::new(TcpStream::connect(address).unwrap()), exists: 0 };
        hand.say("LOGIN user0 secret");
        hand.say("SELECT INBOX");
        hand
    }

    fn exists(&mut self) -> u32 {
        self.say("NOOP");
        self.exists
    }

    /// Sends a command, and notes how many messages there are.
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
