//! `mailrun locust worker` with masters that are not Locust's: hostile ones, silent ones, and one that disappears.
use crate::party::{MAILRUN, Process, Sink, mailrun, wait_until};
use rmpv::Value;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// A peer that looks to a worker like the ZeroMQ ROUTER socket of a Locust master.
struct Router {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Router {
    /// Waits for a worker and greets it as libzmq does.
    fn accept(listener: &TcpListener) -> Self {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let mut greeting = vec![0; 64];
        greeting[0] = 0xFF;
        greeting[9] = 0x7F;
        greeting[10] = 3;
        greeting[11] = 1;
        greeting[12..16].copy_from_slice(b"NULL");
        greeting.extend_from_slice(b"\x04\x29\x05READY\x0bSocket-Type\0\0\0\x06ROUTER\x08Identity\0\0\0\0");
        stream.write_all(&greeting).unwrap();
        Self { stream, read: Vec::new() }
    }

    fn await_identity(&mut self) -> String {
        let property = b"\x08Identity\0\0\0";
        wait_until("an identity", || {
            self.read_more();
            let at = self.read.windows(property.len()).position(|window| window == property)? + property.len();
            let length = usize::from(*self.read.get(at)?);
            Some(String::from_utf8(self.read.get(at + 1..at + 1 + length)?.to_vec()).unwrap())
        })
    }

    fn read_more(&mut self) {
        let mut bytes = [0; 4096];
        if let Ok(length) = self.stream.read(&mut bytes) {
            self.read.extend_from_slice(&bytes[..length]);
        }
    }

    fn frame(&mut self, body: &[u8]) {
        let mut bytes = vec![2];
        bytes.extend_from_slice(&(body.len() as u64).to_be_bytes());
        bytes.extend_from_slice(body);
        self.stream.write_all(&bytes).unwrap();
    }

    fn send(&mut self, kind: &str, data: Value) {
        let mut bytes = Vec::new();
        rmpv::encode::write_value(&mut bytes, &Value::Array(vec![kind.into(), data, "w".into()])).unwrap();
        self.frame(&bytes);
    }

    fn spawn(&mut self, timestamp: f64, users: impl Into<Value>, host: Value) {
        self.spawn_with(timestamp, users.into(), host, Vec::new());
    }

    /// Sends a spawn message like a master with our locustfile, which adds the id of the run.
    fn spawn_of(&mut self, run: &str, timestamp: f64, users: u64) {
        self.spawn_with(timestamp, users.into(), Value::Nil, vec![("mailrun_run_id".into(), run.into())]);
    }

    fn spawn_with(&mut self, timestamp: f64, users: Value, host: Value, options: Vec<(Value, Value)>) {
        let classes = Value::Map(vec![("A".into(), users)]);
        let data = vec![
            ("timestamp".into(), timestamp.into()),
            ("user_classes_count".into(), classes),
            ("host".into(), host),
            ("parsed_options".into(), Value::Map(options)),
        ];
        self.send("spawn", Value::Map(data));
    }

    fn await_message(&mut self, kind: &str) {
        let mut name = vec![0x93, 0xa0 + kind.len() as u8];
        name.extend_from_slice(kind.as_bytes());
        wait_until(kind, || {
            self.read_more();
            let at = self.read.windows(name.len()).position(|window| window == name)?;
            self.read.drain(..at + name.len());
            Some(())
        });
    }
}

fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    (listener, port)
}

fn worker(sink: &Sink, port: &str, words: &[&str]) -> Process {
    let address = sink.address();
    Process::start(MAILRUN, &[&["locust", "worker", &address, "--master-port", port], words].concat())
}

#[test]
fn a_hostile_master_never_ends_a_worker() {
    let sink = Sink::start(&[]);
    let (listener, port) = listener();
    let worker = worker(&sink, &port, &["--max-sessions", "3", "--reuse", "--think-time", "1ms"]);
    // The worker's first peer is no master. The next peer is a master that breaks the protocol after its greeting. Both
    // times, the worker must connect again.
    let (mut stranger, _) = listener.accept().unwrap();
    stranger.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    let mut breaker = Router::accept(&listener);
    breaker.await_message("client_ready");
    breaker.stream.write_all(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff").unwrap();
    let mut master = Router::accept(&listener);
    master.await_message("client_ready");
    master.send("ack", Value::Map(vec![("index".into(), u64::MAX.into())]));
    master.await_message("heartbeat");
    for garbage in [&b""[..], b"\xc1", b"\xdd\xff\xff\xff\xff", &[0x91; 5_000], b"\x93\xa5spawn\xc0\xa1w"] {
        master.frame(garbage);
    }
    master.send("dance", Value::Map(vec![("music".into(), "loud".into())]));
    for users in [Value::from(-5), Value::from(f64::NAN), Value::from("many"), Value::Nil] {
        master.spawn(1.0, users, Value::Nil);
    }
    // The worker must refuse a host other than the configured one, and limit a huge number of users.
    master.spawn(2.0, 5, "192.0.2.7:25".into());
    master.await_message("exception");
    master.await_message("spawning_complete");
    master.send("stop", Value::Nil);
    master.await_message("client_ready");
    master.spawn(3.0, u64::MAX, Value::Nil);
    master.await_message("exception");
    wait_until("mail", || (sink.ask("/status")["messages"].as_u64() > Some(100)).then_some(()));
    master.send("quit", Value::Nil);
    master.await_message("stats");
    master.await_message("quit");
    let ended = worker.finish();
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let took = sink.took();
    // At most four connections are allowed: three sessions, and the trial connection before the load.
    assert!(took.messages > 100 && took.connections <= 4, "{took:?}");
}

#[test]
fn a_silent_master_is_left_and_tried_again() {
    let sink = Sink::start(&[]);
    let (listener, port) = listener();
    let worker = worker(&sink, &port, &[]);
    let mut silent = Router::accept(&listener);
    let old = silent.await_identity();
    silent.await_message("client_ready");
    silent.send("ack", Value::Map(vec![("index".into(), 0.into())]));
    silent.await_message("heartbeat");
    // This master answers one heartbeat and then falls silent, so the worker must connect again with a new identity.
    silent.send("heartbeat", Value::Nil);
    let mut master = Router::accept(&listener);
    assert_ne!(master.await_identity(), old);
    master.await_message("client_ready");
    master.send("ack", Value::Map(vec![("index".into(), 1.into())]));
    master.send("quit", Value::Nil);
    assert_eq!(worker.finish().code, Some(0));
}

#[test]
fn a_worker_drains_and_says_so_when_it_is_terminated() {
    let sink = Sink::start(&[]);
    let (listener, port) = listener();
    let worker = worker(&sink, &port, &["--reuse", "--think-time", "1ms"]);
    let mut master = Router::accept(&listener);
    master.await_message("client_ready");
    master.send("ack", Value::Map(vec![("index".into(), 0.into())]));
    master.spawn(1.0, 2, Value::Nil);
    wait_until("mail", || (sink.ask("/status")["messages"].as_u64() > Some(10)).then_some(()));
    worker.terminate();
    master.await_message("stats");
    master.await_message("quit");
    assert_eq!(worker.finish().code, Some(0));
}

#[test]
fn a_master_that_comes_back_meets_a_fresh_identity_and_its_test_is_another() {
    // The sink answers each message after 2 s, and the worker's drain lasts only 0.2 s. So the load of the old test is
    // still running when the new test begins.
    let sink = Sink::start(&["--fault", ".: delay 2s"]);
    let (listener, port) = listener();
    // A Kubernetes operator for Locust starts its image with these options.
    let words = ["--worker", "--master-host", "127.0.0.1", "--master-port", &port, &sink.address(), "--reuse"];
    let load = ["--rate", "200", "--sessions", "2", "--drain", "200ms"];
    let worker = Process::start(MAILRUN, &[&words[..], &load].concat());
    let mut first = Router::accept(&listener);
    let old = first.await_identity();
    first.await_message("client_ready");
    first.send("ack", Value::Map(vec![("index".into(), 0.into())]));
    first.spawn_of("0123456789abcdef0123456789abcdef", 1.0, 1);
    first.await_message("mailrun_clock");
    wait_until("mail", || (sink.ask("/status")["messages"].as_u64() > Some(0)).then_some(()));
    drop(first);
    let mut second = Router::accept(&listener);
    let new = second.await_identity();
    assert!(old != new && old.rsplit_once('-').unwrap().0 == new.rsplit_once('-').unwrap().0, "{old} {new}");
    second.await_message("client_ready");
    second.send("ack", Value::Map(vec![("index".into(), 0.into())]));
    let run = "fedcba9876543210fedcba9876543210";
    second.spawn_of(run, 1.0, 2);
    second.await_message("spawning_complete");
    wait_until("mail of the new test", || {
        let ledgers = sink.ask("/ledger");
        let of_run = ledgers.as_array().unwrap().iter().find(|ledger| ledger["run_id"] == run)?;
        (of_run["delivered"].as_u64() > Some(0)).then_some(())
    });
    second.send("quit", Value::Nil);
    second.await_message("stats");
    // The worker must send `client_stopped` and not `quit`, because the master may list the worker's older identity as
    // missing. At a `quit`, the master would subtract this identity from the number of remaining workers.
    second.await_message("client_stopped");
    assert_eq!(worker.finish().code, Some(0));
}

#[test]
fn a_worker_without_a_master_ends_and_says_what_to_check() {
    let ended = mailrun(&["locust", "worker", "127.0.0.1:25", "--master-port", "1", "--master-timeout", "1ms"]);
    assert_eq!(ended.code, Some(2));
    assert!(
        ended.err.contains("no Locust master at 127.0.0.1:1") && ended.err.contains("--master-host"),
        "{}",
        ended.err
    );
}

#[test]
fn a_public_server_is_refused_before_any_master_is_asked() {
    for words in [&["locust", "worker", "8.8.8.8"][..], &["locust", "worker", "127.0.0.1", "--allow-target", "8.8.8.8"]]
    {
        let ended = mailrun(words);
        assert_eq!(ended.code, Some(2));
        assert!(ended.err.contains("--allow-public"), "{}", ended.err);
    }
}

#[test]
fn a_master_without_locust_says_how_to_install_it() {
    let place = tempfile::tempdir().unwrap();
    let test = place.path().join("test.toml");
    let run = |text: &str| {
        std::fs::write(&test, text).unwrap();
        mailrun(&["locust", "master", test.to_str().unwrap(), "--locust", "no-such-locust"])
    };
    let ended = run("stages = [\"1s:1\"]");
    assert_eq!(ended.code, Some(2));
    assert!(ended.err.contains("pip install locust"), "{}", ended.err);
    for (text, complaint) in
        [("stages = []", "at least one"), ("users = 3", "test.toml:1:1: unknown key"), ("stages = 3", "test.toml:1")]
    {
        let ended = run(text);
        assert!(ended.code == Some(2) && ended.err.contains(complaint), "{text}: {}", ended.err);
    }
}
