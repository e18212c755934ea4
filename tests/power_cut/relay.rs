//! The relay as a process, with its spool on the disk that simulates power cuts.
use crate::next_hop::{Unit, name};
use mailrun_crashfs::{Disk, Plan};
use serde_json::Value;
use std::cell::Cell;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Maximum length of a wait, long enough for a slow machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

pub(crate) enum Beginning {
    Listening(SocketAddr),
    Cut,
    /// The relay ended by itself with this exit status.
    Ended(Option<i32>),
}

/// Directory for everything but mail: configuration, control socket, log.
pub(crate) struct Home {
    place: TempDir,
    configuration: String,
    started: usize,
}

/// A running relay. It is killed when dropped.
pub(crate) struct Relay {
    child: Child,
    home: PathBuf,
    /// Address of the HTTP server, known once the relay listens.
    http: Option<SocketAddr>,
}

/// Mail that has not arrived when the relay has nothing more to deliver.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Remainder {
    pub(crate) missing: Vec<Unit>,
    /// Queue entries that the relay holds because it cannot read their messages.
    pub(crate) held: u64,
}

#[derive(Debug, PartialEq)]
struct Queue {
    /// Entries that the relay still works on.
    open: u64,
    held: u64,
}

impl Home {
    /// Creates the directory. Its configuration has the addresses and paths that all relays here share, then `text`.
    pub(crate) fn new(disk: &Disk, text: &str) -> Self {
        let place = tempfile::tempdir().unwrap();
        let own = format!(
            "listen = [\"127.0.0.1:0\"]\nhttp = \"127.0.0.1:0\"\nworkers = 2\n\
             log = \"info\"\ncontrol = {:?}\nspool.directory = {:?}\n",
            place.path().join("control.sock"),
            disk.path().join("spool"),
        );
        Self { place, configuration: own + text, started: 0 }
    }

    /// Starts the next relay. Its host name contains its number, counted from 0.
    pub(crate) fn start(&mut self) -> Relay {
        let home = self.place.path().to_owned();
        let named = format!("hostname = {:?}\n{}", name(self.started), self.configuration);
        fs::write(home.join("relay.toml"), named).unwrap();
        let file = |name: &str| File::create(home.join(name)).unwrap();
        let log = file(&self.log_of(self.started));
        let child = Command::new(env!("CARGO_BIN_EXE_mailrun"))
            .args(["relay", "--live", "json", "--config"])
            .arg(home.join("relay.toml"))
            .current_dir(&home)
            .stdin(Stdio::null())
            .stdout(file("stdout"))
            .stderr(log)
            .spawn()
            .unwrap();
        self.started += 1;
        Relay { child, home, http: None }
    }

    /// Starts a relay that must listen, with no fault planned for the disk. Returns its address for mail.
    pub(crate) fn start_listening(&mut self, disk: &Disk) -> Result<(Relay, SocketAddr), String> {
        disk.plan(Plan::default());
        let mut relay = self.start();
        match relay.begin(disk)? {
            Beginning::Listening(smtp) => Ok((relay, smtp)),
            Beginning::Cut => Err("the power was cut without a plan".to_owned()),
            Beginning::Ended(code) => {
                Err(format!("it does not begin: exit status {code:?}: {}", self.logs().join("\n")))
            }
        }
    }

    fn log_of(&self, relay: usize) -> String {
        format!("log-{relay}")
    }

    pub(crate) fn logs(&self) -> Vec<String> {
        let read = |relay| fs::read(self.place.path().join(self.log_of(relay))).unwrap_or_default();
        (0..self.started).map(|relay| String::from_utf8_lossy(&read(relay)).into_owned()).collect()
    }
}

impl Relay {
    /// Waits until the relay listens, the power is cut, or the relay has ended.
    pub(crate) fn begin(&mut self, disk: &Disk) -> Result<Beginning, String> {
        let limit = Instant::now() + LIMIT;
        while Instant::now() < limit {
            if disk.wait_for_cut(Duration::from_millis(2)) {
                return Ok(Beginning::Cut);
            }
            let said = fs::read_to_string(self.home.join("stdout")).unwrap_or_default();
            if let Some((line, _)) = said.split_once('\n') {
                let listening: Value = serde_json::from_str(line).map_err(|error| format!("{line}: {error}"))?;
                let address = |value: &Value| value.as_str().and_then(|text| text.parse().ok());
                if let (Some(smtp), Some(http)) = (address(&listening["smtp"][0]), address(&listening["http"])) {
                    self.http = Some(http);
                    return Ok(Beginning::Listening(smtp));
                }
                return Err(format!("no address to listen on: {line}"));
            }
            if let Some(status) = self.child.try_wait().map_err(|error| error.to_string())? {
                return Ok(Beginning::Ended(status.code()));
            }
        }
        Err("the relay neither listens nor ends".to_owned())
    }

    /// Waits until nothing is missing or the queue is empty. Mail that is still missing then is lost or held. `missing`
    /// returns the mail that has not arrived yet. Fails if the relay ends, or takes longer than [`LIMIT`].
    pub(crate) fn await_delivery(&mut self, missing: impl Fn() -> Vec<Unit>) -> Result<Remainder, String> {
        await_delivery(missing, || self.queue(), LIMIT)
    }

    /// The entries of the queue, or `None` if the relay does not answer in time or has not read its spool yet.
    fn queue(&mut self) -> Result<Option<Queue>, String> {
        if let Some(code) = self.wait(Duration::ZERO) {
            return Err(format!("it ended with {code:?} before it had delivered its mail"));
        }
        // Ask for `/ready` first. When its status is 200, a worker may still be queueing the last messages. The
        // worker answers `/metrics` only after that, so the metrics include these messages.
        if self.status("/ready") != Some(200) {
            return Ok(None);
        }
        Ok(self.get("/metrics").and_then(|(_, text)| Queue::parse(&text)))
    }

    /// Requests `path` over HTTP, and returns the status code, or `None` if the relay does not answer.
    pub(crate) fn status(&self, path: &str) -> Option<u16> {
        self.get(path).map(|(status, _)| status)
    }

    fn get(&self, path: &str) -> Option<(u16, String)> {
        let http = self.http?;
        let mut stream = TcpStream::connect(http).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {http}\r\nConnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some((answer.split(' ').nth(1)?.parse().ok()?, answer))
    }

    pub(crate) fn terminate(&self) {
        let id = rustix::process::Pid::from_child(&self.child);
        // Ignore the error, because the relay may have ended by itself.
        _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
    }

    /// Waits for the relay's exit status. Returns `None` if the relay still runs after `time`, and `Some(None)` if a
    /// signal ended it.
    pub(crate) fn wait(&mut self, time: Duration) -> Option<Option<i32>> {
        let limit = Instant::now() + time;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status.code()),
                _ if Instant::now() > limit => return None,
                _ => thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// Kills the relay, as a power cut does, and waits until it is gone. Meanwhile the disk must answer its pending
    /// requests, even if its power is off, because a process cannot end before.
    pub(crate) fn kill(&mut self, disk: &Disk) -> Result<(), String> {
        // Ignore the error, because the relay may have ended by itself.
        _ = self.child.kill();
        disk.release();
        self.wait(LIMIT).map(|_| ()).ok_or_else(|| "a relay that was killed does not end".to_owned())
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        _ = self.child.kill();
        // Wait only for a second. After a failed test, the relay may not end before its disk is unmounted, which
        // happens next.
        self.wait(Duration::from_secs(1));
    }
}

impl Queue {
    /// Returns `None` if the metrics are missing, or truncated because the relay ended.
    fn parse(metrics: &str) -> Option<Self> {
        let (_, rest) = metrics.split_once("# TYPE mailrun_relay_queue_entries gauge")?;
        let (samples, _next_family) = rest.split_once("\n# ")?;
        let mut queue = Self { open: 0, held: 0 };
        for sample in samples.lines().skip(1) {
            let (labels, count) = sample.rsplit_once(' ')?;
            let sum = if labels.ends_with("state=\"held\"}") { &mut queue.held } else { &mut queue.open };
            *sum += count.parse::<u64>().ok()?;
        }
        Some(queue)
    }
}

fn await_delivery(
    missing: impl Fn() -> Vec<Unit>,
    mut queue: impl FnMut() -> Result<Option<Queue>, String>,
    limit: Duration,
) -> Result<Remainder, String> {
    let began = Instant::now();
    loop {
        let waiting = missing();
        if waiting.is_empty() {
            return Ok(Remainder::default());
        }
        let queue = queue()?;
        if let Some(Queue { open: 0, held }) = queue {
            // Look again: mail may have arrived after the first look and before the queue was empty.
            return Ok(Remainder { missing: missing(), held });
        }
        if began.elapsed() > limit {
            let count = waiting.len();
            return Err(format!(
                "did not finish in {limit:?}; nothing is proven lost: {count} missing, queue: {queue:?}"
            ));
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn mail_is_lost_only_if_the_queue_is_empty_and_it_has_not_arrived() {
    const UNIT: Unit = (1, 0);
    let queue = |open, held| Some(Queue { open, held });
    // In each case, the mail arrives when the relay has answered `arrives_after` times.
    let wait = |limit, arrives_after, answers: Vec<Option<Queue>>| {
        let answered = Cell::new(0);
        let mut answers = answers.into_iter();
        let next = || {
            answered.set(answered.get() + 1);
            Ok(answers.next().unwrap_or(queue(1, 0)))
        };
        let missing = || if answered.get() < arrives_after { vec![UNIT] } else { Vec::new() };
        await_delivery(missing, next, limit)
    };
    let rest = |missing: &[Unit], held| Ok(Remainder { missing: missing.to_vec(), held });
    assert_eq!(wait(LIMIT, 0, vec![]), rest(&[], 0), "nobody is asked if nothing is missing");
    assert_eq!(wait(LIMIT, 3, vec![None, queue(1, 0)]), rest(&[], 0));
    assert_eq!(wait(LIMIT, 1, vec![queue(0, 0)]), rest(&[], 0), "it arrived just before the queue was empty");
    assert_eq!(wait(LIMIT, 9, vec![None, queue(1, 1), queue(0, 0)]), rest(&[UNIT], 0));
    assert_eq!(wait(LIMIT, 9, vec![queue(0, 1)]), rest(&[UNIT], 1), "held mail is not going to be delivered");
    let slow = wait(Duration::ZERO, 9, vec![]).unwrap_err();
    assert!(slow.contains("nothing is proven lost: 1 missing, queue: Some(Queue { open: 1"), "{slow}");
}

#[test]
fn held_entries_are_counted_apart_and_metrics_that_were_cut_off_are_no_empty_queue() {
    let family = "# TYPE mailrun_relay_queue_entries gauge\n";
    let samples = "mailrun_relay_queue_entries{hop=\"smtp:a b\",state=\"deferred\"} 3\n\
                   mailrun_relay_queue_entries{hop=\"smtp:a b\",state=\"sending\"} 4\n\
                   mailrun_relay_queue_entries{hop=\"smtp:a b\",state=\"held\"} 2\n";
    let next = "# HELP mailrun_relay_hop_couriers connections by hop\n";
    assert_eq!(Queue::parse(&[family, samples, next].concat()), Some(Queue { open: 7, held: 2 }));
    assert_eq!(Queue::parse(&[family, next].concat()), Some(Queue { open: 0, held: 0 }));
    assert_eq!(Queue::parse(family), None);
    assert_eq!(Queue::parse("the workers do not answer\n"), None);
}
