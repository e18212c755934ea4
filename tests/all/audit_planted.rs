//! Audits of planted servers, each of which keeps or breaks the promise of its 250 in one way, for example by not
//! syncing. An audit must not accuse an honest server, and must find each dishonest one.
use crate::audit::{Audited, has_disk};
use crate::party::peer;
use crate::rows;
use mailrun_measurement::record::Outcome;
use std::fs;

const RELAY: &str = include_str!("../peers/planted_relay.py");

/// Prints how many messages the server has. While the server locks its SQLite database exclusively, the script cannot
/// read it, so the script also adds the number that the server writes to the file `count`.
const QUEUE: &str = r#"import os, sqlite3, sys
base = os.path.join(sys.argv[1], "base")
names = os.listdir(os.path.join(sys.argv[1], "spool"))
if os.path.exists(base):
    try:
        names += sqlite3.connect(base, timeout=0.5).execute("SELECT name FROM mail").fetchall()
    except sqlite3.OperationalError:
        pass
count = os.path.join(sys.argv[1], "count")
held = len(names) + (int(open(count).read() or 1) if os.path.exists(count) else 0)
print(held or "empty")
"#;

/// A server with or without a fault, and what its audit must find.
struct Planted {
    /// Last argument of planted_relay.py. It chooses how the server keeps or breaks its promise, for example `no sync`.
    way: &'static str,
    /// Words before the command of the relay, for example to start it in the background. The usual word is `exec`.
    start: &'static str,
    /// Fixed answer about the length of the queue, for example `empty`, whatever the queue contains. If `None`,
    /// [`QUEUE`] counts the messages.
    queue: Option<&'static str>,
    faults: &'static str,
    rounds: u32,
    /// The expected outcome, and a text that the verdict must contain.
    expected: (Outcome, &'static str),
}

impl Planted {
    const fn honest(way: &'static str) -> Self {
        let expected = (Outcome::Pass, "no loss in");
        Self { way, start: "exec", queue: None, faults: "kill,power-cut", rounds: 4, expected }
    }

    const fn liar(way: &'static str, faults: &'static str, rounds: u32) -> Self {
        Self { faults, rounds, expected: (Outcome::Fail, "are lost"), ..Self::honest(way) }
    }

    fn recipe(&self) -> String {
        let start = format!("{} python3 {{dir}}/relay.py {{listen}} {{to}} {{state}} '{}'", self.start, self.way);
        let start = if self.start == "exec" { start } else { format!("{start} & exec sleep 1000") };
        let queue = match self.queue {
            Some(text) => format!("[\"echo\", {text:?}]"),
            None => "[\"python3\", \"{dir}/pending.py\", \"{state}\"]".to_owned(),
        };
        format!(
            "durability = \"sync\"\ncommand = [\"sh\", \"-c\", {start:?}]\n[queue]\ncommand = {queue}\nempty = \
             \"empty\"\n[[file]]\npath = \"relay.py\"\ntext = '''\n{RELAY}'''\n[[file]]\npath = \"pending.py\"\ntext = \
             '''\n{QUEUE}'''\n"
        )
    }

    fn audit(&self, seed: u64, messages: &str) -> Audited {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("planted.toml");
        fs::write(&file, self.recipe()).unwrap();
        let (rounds, seed) = (self.rounds.to_string(), seed.to_string());
        let words = ["--rounds", &rounds, "--seed", &seed, "--inject", self.faults, "--messages", messages];
        let words = [&words[..], &["--lost-after", "5s"]].concat();
        Audited::of(file.to_str().unwrap(), &words)
    }

    /// Audits the server. Returns a description of the verdict if it is not the expected one.
    fn complaint(&self, seed: u64) -> Option<String> {
        let audited = self.audit(seed, "200");
        let (outcome, why) = (audited.record.verdict.outcome, &audited.record.verdict.why);
        eprintln!("{} ({}), seed {seed}: {outcome:?}: {why}", self.way, self.start);
        let is_expected = outcome == Some(self.expected.0) && why.contains(self.expected.1);
        (!is_expected).then(|| format!("{} ({}), seed {seed}: {outcome:?}: {why}", self.way, self.start))
    }
}

const PLANTED: &[Planted] = &[
    Planted::honest("fsync"),
    Planted::honest("fdatasync"),
    Planted::honest("O_DSYNC"),
    Planted::honest("O_SYNC"),
    Planted::honest("RWF_DSYNC"),
    Planted::honest("sync"),
    Planted::honest("syncfs"),
    Planted::honest("sync_file_range"),
    Planted::honest("link"),
    Planted::honest("SQLite, WAL, FULL"),
    Planted::honest("SQLite, WAL, FULL, exclusive"),
    Planted::liar("250 first", "kill", 4),
    Planted::liar("no sync", "power-cut", 6),
    Planted::liar("no directory sync", "power-cut", 6),
    Planted::liar("delete first", "kill", 4),
    Planted::liar("one in 200", "kill", 2),
    Planted::liar("recovery", "kill", 15),
    Planted::liar("memory", "kill", 2),
    // The audit must also kill a process that has left the process group and the environment of its command. The audit
    // can find this process, because the audit becomes the parent of orphaned processes.
    Planted { start: "setsid env -i PATH=$PATH", ..Planted::liar("memory", "kill", 2) },
    Planted { start: "unshare --pid --fork", ..Planted::liar("memory", "kill", 2) },
    Planted {
        queue: Some("empty"),
        expected: (Outcome::Inconclusive, "[queue] command says that the queue is empty while mail waits"),
        ..Planted::honest("fsync")
    },
];

#[test]
fn a_sync_that_failed_explains_a_loss() {
    if peer("python3").is_none() || !has_disk() {
        return;
    }
    // A failed sync loses nothing if the kernel happens to have written the whole message before. So try up to four
    // seeds.
    let server = Planted::liar("fsync errors ignored", "sync-error", 2);
    let mut audits = (1..=4).map(|seed| server.audit(seed, "40"));
    let audited = audits.find(|audited| !audited.audit().losses.is_empty()).expect("8 failed syncs took nothing");
    let loss = &audited.audit().losses[0];
    let explained = audited.explained(&format!("round-{}-sync-error-on-ext4", loss.round), Some(loss.message));
    let lines: Vec<&str> = explained.out.lines().map(str::trim).collect();
    let position = |found: &dyn Fn(&str) -> bool| {
        lines.iter().position(|line| found(line)).unwrap_or_else(|| panic!("{explained:?}"))
    };
    let failed = position(&|line| line.contains("  fsync ") && line.ends_with(" failed: EIO"));
    let answered = position(&|line| line.ends_with(" s  250"));
    let cut = position(&|line| line.contains("the power is cut, after"));
    assert!(failed < answered && answered < cut, "{explained:?}");
    let missing =
        position(&|line| line.starts_with("the fsync of ") && line.contains(" failed, and there was no other"));
    assert!(cut < missing && explained.code == Some(0), "{explained:?}");
}

#[test]
fn copies_do_not_end_the_wait_for_other_mail() {
    if peer("python3").is_none() {
        return;
    }
    // Remove the command that reports the queue. The audit can then tell only from the arriving mail whether all mail
    // has come.
    let recipe = Planted::honest("copies first").recipe();
    let (command, rest) = recipe.split_once("[queue]").unwrap();
    let (_, files) = rest.split_once("[[file]]").unwrap();
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("copies.toml");
    fs::write(&file, format!("{command}[[file]]{files}")).unwrap();
    let words = ["--rounds", "1", "--inject", "kill", "--messages", "40", "--lost-after", "8s"];
    let audited = Audited::of(file.to_str().unwrap(), &words);
    let row = &audited.audit().faults[0];
    assert!(row.duplicates >= row.answered / 2, "{row:?}");
    assert_eq!((audited.record.verdict.outcome, row.not_delivered), (Some(Outcome::Pass), 0), "{:?}", audited.ended);
}

#[test]
#[ignore = "slow: make test-slow PART=planted"]
fn no_honest_server_is_accused_and_each_liar_is_found() {
    if peer("python3").is_none() || !has_disk() {
        return;
    }
    let first = std::env::var("MAILRUN_SEED").map_or(1, |text| text.parse::<u64>().unwrap());
    let seeds = std::env::var("MAILRUN_SEEDS").map_or(3, |text| text.parse::<u64>().unwrap());
    let only = std::env::var("MAILRUN_PLANTED").unwrap_or_default();
    let servers = PLANTED.iter().filter(|server| server.way.contains(&only));
    let audits: Vec<_> = servers.flat_map(|server| (first..first + seeds).map(move |seed| (server, seed))).collect();
    rows::all_hold_by(2, &audits, |(server, seed)| server.complaint(*seed));
}
