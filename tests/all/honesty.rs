//! If the host limited a run, the run says so and says what to change: descriptors, ports, listen
//! queues, delayed ACKs.
use crate::party::{
    Ended, Process, Sink, is_root, low_port, may_be_believed, peer, run, skip, source, stage, wait_until,
};
use crate::stand_in::{At, StandIn};
use mailrun_measurement::record::{ExhaustedRow, Outcome, Record, Resource};
use mailrun_measurement::{Phase, Stage};
use rustix::event::{PollFd, PollFlags};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const MAILRUN: &str = env!("CARGO_BIN_EXE_mailrun");

/// Pause that simulates a delayed ACK. It is a little shorter than 40 ms, because a loaded machine makes it longer.
const ACK_DELAY: Duration = Duration::from_millis(39);

fn reason<'a>(record: &'a Record, words: &str) -> &'a str {
    let found = record.verdict.reasons.iter().find(|reason| reason.contains(words));
    found.unwrap_or_else(|| panic!("{words:?} is in none of {:?}", record.verdict))
}

/// Number of attempts to get a report of delayed ACKs, which take 40 ms. On a busy machine, delays
/// become so long that the report may not recognize them.
const LOOKS: usize = 12;

/// Called when none of the `LOOKS` attempts reported delayed ACKs. Fails unless the processors were overloaded in
/// each attempt, which would explain the missing report.
fn nobody_named_it(records: &[Record]) {
    let is_crowded = |record: &Record| {
        let around = record.surroundings.as_ref();
        around.is_some_and(|it| it.steal_share > Some(0.05) || it.busy_share > Some(0.8))
    };
    assert!(records.iter().all(is_crowded), "nobody named it: {:?}", records.last());
    skip("delayed ACKs", "this machine is too busy to tell them from others");
}

fn says(record: &Record, words: &str) -> bool {
    record.verdict.reasons.iter().any(|reason| reason.contains(words))
}

#[test]
fn replies_that_now_and_then_wait_for_an_ack_are_named() {
    let told = AtomicU64::new(0);
    let server = StandIn::start(move |moment| {
        if moment.at == At::Message && told.fetch_add(1, Ordering::Relaxed).is_multiple_of(20) {
            thread::sleep(ACK_DELAY);
        }
        None
    });
    let send = || source(&server.address(), &["--messages", "1200", "--sessions", "2", "--reuse"]).record;
    let mut records = Vec::new();
    while records.len() < LOOKS && !records.last().is_some_and(|record| says(record, "TCP_NODELAY")) {
        records.push(send());
    }
    let Some(record) = records.last().filter(|record| says(record, "TCP_NODELAY")) else {
        return nobody_named_it(&records);
    };
    let reason = reason(record, "TCP_NODELAY");
    assert!(reason.starts_with("The server's replies (reply): "), "{reason}");
    let row = &record.pauses[0];
    assert!((13..=60).contains(&row.count) && (row.of, row.phase) == (1200, Phase::Reply), "{row:?}");
    assert!(may_be_believed(record), "it is the server's doing: {:?}", record.verdict);
}

#[test]
fn replies_that_wait_for_something_else_are_not() {
    let told = AtomicU64::new(0);
    let server = StandIn::start(move |moment| {
        let number = told.fetch_add(1, Ordering::Relaxed);
        if moment.at == At::Message && number.is_multiple_of(4) {
            thread::sleep(Duration::from_millis(5 + number * 7 % 25));
        }
        None
    });
    let record = source(&server.address(), &["--messages", "400", "--sessions", "2", "--reuse"]).record;
    assert!(!says(&record, "TCP_NODELAY"), "{:?}", record.verdict);
}

/// A server without TCP_NODELAY that writes each reply in two pieces.
fn halting_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || serve_haltingly(&stream));
        }
    });
    address
}

fn serve_haltingly(mut stream: &TcpStream) -> std::io::Result<()> {
    stream.write_all(b"220 halting\r\n")?;
    let mut is_message = false;
    for line in BufReader::new(stream).split(b'\n') {
        let line = line?;
        let code: &[u8] = match &line[..] {
            b".\r" => b"250",
            _ if is_message => continue,
            line if line.starts_with(b"DATA") => b"354",
            line if line.starts_with(b"QUIT") => b"221",
            _ => b"250",
        };
        is_message = code == b"354";
        stream.write_all(code)?;
        stream.write_all(b" so it is\r\n")?;
    }
    Ok(())
}

#[test]
fn a_server_that_really_waits_for_acks_is_named() {
    let words = ["--messages", "60", "--sessions", "3", "--reuse"];
    let mut records = Vec::new();
    for _ in 0..LOOKS {
        let record = source(&halting_server().to_string(), &words).record;
        let reply = record.phases.iter().find(|row| row.name == Phase::Reply).unwrap();
        if reply.latency_ms.p50 < 30.0 {
            return skip("delayed ACKs", "this kernel answers each segment at once");
        }
        if says(&record, "TCP_NODELAY") {
            let reason = reason(&record, "TCP_NODELAY");
            assert!(reason.starts_with("The server's replies (") && reason.contains("reply"), "{reason}");
            return;
        }
        records.push(record);
    }
    nobody_named_it(&records);
}

/// Sends each message in two pieces without TCP_NODELAY. Returns the longest time that a message
/// took.
fn send_haltingly(to: SocketAddr, messages: u64) -> Duration {
    let mut stream = TcpStream::connect(to).unwrap();
    let mut replies = BufReader::new(stream.try_clone().unwrap()).lines();
    let mut expect = |code: &str| assert!(replies.next().unwrap().unwrap().starts_with(code));
    expect("220");
    stream.write_all(b"HELO client\r\n").unwrap();
    expect("250");
    let mut longest = Duration::ZERO;
    for _ in 0..messages {
        for (command, code) in [("MAIL FROM:<a@b>", "250"), ("RCPT TO:<c@d>", "250"), ("DATA", "354")] {
            stream.write_all(format!("{command}\r\n").as_bytes()).unwrap();
            expect(code);
        }
        let began = Instant::now();
        stream.write_all(b"Subject: in pieces\r\n").unwrap();
        stream.write_all(b"\r\nand with Nagle's algorithm\r\n.\r\n").unwrap();
        expect("250");
        longest = longest.max(began.elapsed());
    }
    longest
}

#[test]
fn a_sender_that_waits_for_acks_is_named_by_the_sink() {
    let mut records = Vec::new();
    for _ in 0..LOOKS {
        let sink = Sink::start(&[]);
        let longest = send_haltingly(sink.smtp, 40);
        let record = sink.stop();
        if longest < Duration::from_millis(30) {
            return skip("delayed ACKs", "this kernel answers each segment at once");
        }
        if says(&record, "TCP_NODELAY") {
            let reason = reason(&record, "TCP_NODELAY");
            assert!(reason.starts_with("Messages as the sink read them: "), "{reason}");
            assert_eq!(record.pauses.iter().map(|row| (row.phase, row.of)).collect::<Vec<_>>(), [(Phase::Body, 40)]);
            return;
        }
        records.push(record);
    }
    nobody_named_it(&records);
}

/// The command line that runs `command` with a descriptor limit. It drops the capability with which root could raise
/// the limit.
fn with_descriptors(number: u32, command: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    if is_root() {
        words.extend([peer("setpriv")?, "--bounding-set=-sys_resource".to_owned()]);
    }
    let script = format!("ulimit -n {number} && exec {MAILRUN} {command}");
    words.extend(["sh".to_owned(), "-c".to_owned(), script]);
    Some(words)
}

fn start(words: &[String]) -> Process {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    Process::start(words[0], &words[1..])
}

fn record_in(path: &Path, ended: &Ended) -> Record {
    let text = fs::read_to_string(path).unwrap_or_else(|_| panic!("no record: {ended:?}"));
    serde_json::from_str(&text).unwrap()
}

fn row(record: &Record, resource: Resource) -> &ExhaustedRow {
    let row = record.exhausted.iter().find(|row| row.resource == resource);
    row.unwrap_or_else(|| panic!("{:?} of {:?}: {:?}", record.exhausted, record.errors, record.verdict))
}

#[test]
fn a_source_without_descriptors_says_how_many_it_needs() {
    let sink = Sink::start(&["--fault", "delay 20ms"]);
    let place = tempfile::tempdir().unwrap();
    let json = place.path().join("source.json");
    let command = format!("source {} --messages 300 --sessions 60 --json {}", sink.address(), json.display());
    let Some(words) = with_descriptors(40, &command) else { return };
    let ended = start(&words).finish();
    let record = record_in(&json, &ended);
    let row = row(&record, Resource::Descriptors);
    assert!(row.count > 0 && (row.limit, row.needed) == (Some(40), Some(124)), "{row:?}");
    let reason = reason(&record, "EMFILE");
    assert!(reason.starts_with("The source ran out of file descriptors ") && reason.contains("`ulimit -n 124`"));
    assert!(!record.verdict.valid && stage(&record, Stage::Accepted).count > 0, "{:?}", record.verdict);
    assert_eq!((ended.code, record.verdict.outcome), (Some(3), Some(Outcome::Invalid)), "{:?}", record.verdict);
    assert!(ended.out.contains("The source ran out of file descriptors"), "{}", ended.out);
}

#[test]
fn a_source_that_never_gets_a_descriptor_ends_and_says_why() {
    let sink = Sink::start(&[]);
    let command = format!("source {} --messages 50 --sessions 50 --workers 1", sink.address());
    // The error occurs only if exactly the right number of descriptors is permitted. With fewer descriptors, the event
    // loop cannot start. With more, a connection opens. Search for the number three times, because a file that is open
    // for a short time at the start may disturb a search.
    let mut seen = Vec::new();
    for number in (6..40).chain(6..40).chain(6..40) {
        let Some(words) = with_descriptors(number, &command) else { return };
        let ended = start(&words).finish();
        if ended.err.contains("cannot reach") {
            assert!(ended.code == Some(2) && ended.err.contains("open files. Raise `ulimit -n`."), "{ended:?}");
            return;
        }
        seen.push((number, ended.err));
    }
    panic!("no number of descriptors at which nothing can be reached: {seen:#?}");
}

/// Reports whether the command failed with a single line, which says that there are too few descriptors and what to do.
fn is_told(ended: &Ended) -> bool {
    let is_named = ended.err.contains("open files") && ended.err.contains("aise `ulimit -n`");
    ended.code == Some(2) && ended.out.is_empty() && ended.err.lines().count() == 1 && is_named
}

#[test]
fn a_worker_without_an_event_loop_ends_the_sink_with_what_to_do() {
    let mut refused = 0;
    for number in 10..60 {
        let Some(words) = with_descriptors(number, "sink --listen 127.0.0.1:0 --workers 3") else { return };
        let sink = start(&words);
        let is_listening = || sink.complained().contains("listening");
        wait_until("the sink to listen or to end", || (is_listening() || !sink.complained().is_empty()).then_some(()));
        if is_listening() {
            let serve = sink.threads().iter().filter(|name| name.starts_with("serve-")).count();
            assert_eq!(serve, 3, "with {number} descriptors");
            sink.terminate();
            assert_eq!(sink.finish().code, Some(0));
            assert!(refused > 0, "with 10 descriptors there was room");
            return;
        }
        let ended = sink.finish();
        assert!(is_told(&ended) || !ended.err.contains("cannot listen"), "with {number}: {ended:?}");
        assert_eq!(ended.code, Some(2), "with {number}: {ended:?}");
        refused += u32::from(is_told(&ended));
    }
    panic!("it never listened");
}

#[test]
fn workers_without_a_session_are_not_counted() {
    let sink = Sink::start(&[]);
    let load = ["--workers", "4", "--sessions", "2", "--rate", "200", "--messages", "20", "--arrival", "poisson"];
    let record = source(&sink.address(), &load).record;
    assert_eq!((record.parties[0].workers, record.ledger.accepted), (Some(2), Some(20)));
}

#[test]
fn a_worker_without_an_event_loop_ends_the_source_at_once() {
    let mut refused = 0;
    for number in 10..60 {
        let sink = Sink::start(&[]);
        // The load lasts an hour, so the source ends in time only if the failure of one worker stops the others.
        let command = format!("source {} --workers 3 --sessions 3 --rate 1 --duration 1h", sink.address());
        let Some(words) = with_descriptors(number, &command) else { return };
        let source = start(&words);
        let has_workers = || source.threads().iter().filter(|name| name.starts_with("load-")).count() == 3;
        let stands = wait_until("the source to begin or to end", || match source.complained().is_empty() {
            // Wait for all workers, because the first one may connect before the last one has started.
            true => (sink_has_sessions(&sink) && has_workers()).then_some(true),
            false => Some(false),
        });
        if stands {
            assert!(refused > 0, "with 10 descriptors there was room");
            return;
        }
        let ended = source.finish();
        assert!(is_told(&ended) || !ended.err.contains("a worker"), "with {number}: {ended:?}");
        assert_eq!(ended.code, Some(2), "with {number}: {ended:?}");
        refused += u32::from(is_told(&ended) && ended.err.contains("a worker could not start"));
    }
    panic!("it never began");
}

fn sink_has_sessions(sink: &Sink) -> bool {
    sink.ask("/status")["connections"].as_u64() > Some(0)
}

#[test]
fn a_sink_without_descriptors_is_the_limit() {
    let place = tempfile::tempdir().unwrap();
    let port = low_port();
    let json = place.path().join("sink.json");
    let address = format!("127.0.0.1:{port}");
    let command = format!("sink --listen {address} --max-sessions 500 --workers 1 --json {}", json.display());
    let Some(words) = with_descriptors(40, &command) else { return };
    let sink = start(&words);
    wait_until("the sink to listen", || TcpStream::connect(&address).ok());
    let record = source(&address, &["--messages", "300", "--sessions", "60", "--duration", "4s"]).record;
    assert!(stage(&record, Stage::Accepted).count > 0, "those that were accepted went on: {:?}", record.errors);
    // Use up the sink's descriptors with idle connections.
    let _held: Vec<_> = (0..60).map(|_| TcpStream::connect(&address).unwrap()).collect();
    wait_until("the sink to have none left", || (sink.descriptors() >= 40).then_some(()));
    sink.terminate();
    let ended = sink.finish();
    let record = record_in(&json, &ended);
    let row = row(&record, Resource::Descriptors);
    assert!(row.count > 0 && (row.limit, row.needed) == (Some(40), Some(564)), "{row:?}");
    assert!(reason(&record, "EMFILE").contains("The sink ran out of file descriptors"));
}

/// The host's counter of listen queue overflows.
fn listen_overflows() -> Option<u64> {
    let text = fs::read_to_string("/proc/net/netstat").ok()?;
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let names = lines.next()?;
    let values = lines.next()?;
    let (_, value) = names.split(' ').zip(values.split(' ')).find(|(name, _)| *name == "ListenOverflows")?;
    value.parse().ok()
}

#[test]
fn a_full_listen_queue_is_named() {
    if listen_overflows().is_none() {
        return skip("ListenOverflows", "this kernel does not count them");
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // Listen again with a queue for at most two clients, so that the queue overflows.
    rustix::net::listen(&listener, 1).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        // Listeners of other tests may cause overflows as well, but the source counts overflows only after its start.
        // So wait until the source connects before waiting for an overflow.
        rustix::event::poll(&mut [PollFd::new(&listener, PollFlags::IN)], None).unwrap();
        let before = listen_overflows();
        wait_until("the queue to overflow", || (listen_overflows() != before).then_some(()));
        let serve = |stream: TcpStream| thread::spawn(move || serve_whole(&stream));
        listener.incoming().map_while(Result::ok).for_each(|stream| drop(serve(stream)));
    });
    // With SYN cookies, a client may believe that it is connected but get no greeting. It then has to time out.
    let run = source(&address.to_string(), &["--messages", "12", "--sessions", "12", "--timeout", "2s"]);
    let around = run.record.surroundings.as_ref().unwrap();
    assert!(around.listen_overflows.is_some_and(|count| count > 0), "{around:?}");
    let reason = reason(&run.record, "net.core.somaxconn");
    assert!(reason.contains("host-wide") && reason.contains("backlog"), "{reason}");
    assert!(may_be_believed(&run.record), "it may be another listener's: {:?}", run.record.verdict);
    assert!(run.ended.out.contains("Listen queues of this host were full "), "{}", run.ended.out);
}

fn serve_whole(mut stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.write_all(b"220 hurried\r\n")?;
    let mut is_message = false;
    for line in BufReader::new(stream).split(b'\n') {
        let reply: &[u8] = match &line?[..] {
            b".\r" => b"250 ok\r\n",
            _ if is_message => continue,
            line if line.starts_with(b"DATA") => b"354 go on\r\n",
            line if line.starts_with(b"QUIT") => b"221 bye\r\n",
            _ => b"250 ok\r\n",
        };
        is_message = reply.starts_with(b"354");
        stream.write_all(reply)?;
    }
    Ok(())
}

/// Runs a bench in its own network namespace with a limited range of ports.
fn bench_with_ports(ports: &str, out: &Path, words: &str) -> Option<Ended> {
    let unshare = peer("unshare")?;
    let script = format!(
        "ip link set lo up && echo '{ports}' > /proc/sys/net/ipv4/ip_local_port_range && echo begun && \
         exec {MAILRUN} bench --out {} {words}",
        out.display()
    );
    let ended = run(&unshare, &["--user", "--map-root-user", "--net", "sh", "-c", &script]);
    if !ended.out.starts_with("begun") {
        skip("a network namespace", ended.err.trim());
        return None;
    }
    Some(ended)
}

#[test]
fn ports_that_run_out_are_named() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("run");
    let words = "--messages 400 --sessions 40 --fault 'delay 20ms'";
    let Some(ended) = bench_with_ports("20000 20019", &out, words) else { return };
    let record = record_in(&out.join("run.json"), &ended);
    let row = row(&record, Resource::Ports);
    assert!(row.count > 0 && row.limit == Some(20) && row.party == "source", "{row:?}");
    let reason = reason(&record, "EADDRNOTAVAIL");
    assert!(
        ["--bind 127.0.0.2-127.0.0.50", "--reuse", "net.ipv4.ip_local_port_range"].iter().all(|w| reason.contains(w))
    );
    assert!(!record.verdict.valid && record.verdict.closed, "{:?}", record.verdict);
}

#[test]
fn a_bench_tells_what_the_host_did_meanwhile() {
    // Keep the host busy, so that other processes have a share to report.
    let _other = Process::start("nice", &["-n", "19", "sh", "-c", "while :; do :; done"]);
    let run = crate::party::bench(&["--duration", "2s", "--sessions", "4", "--reuse"]);
    let around = run.record_of(0).surroundings.unwrap();
    let shares = [around.busy_share, around.other_busy_share, around.steal_share].map(Option::unwrap);
    assert!(shares.iter().all(|share| (0.0..=1.0).contains(share)), "{around:?}");
    assert!(around.processor_s.unwrap() >= 2.0 && around.busy_share.unwrap() > 0.0, "{around:?}");
    assert!(around.other_busy_share <= around.busy_share, "{around:?}");
    assert!(run.file("report.md").contains("of the CPU used by other processes"), "the report has the line");
}

#[test]
fn what_others_on_the_host_use_is_named() {
    let cores = thread::available_parallelism().unwrap().get();
    // Start a busy process for every third processor. These processes have a low priority (`nice`), and are killed when
    // dropped.
    let busy = || Process::start("nice", &["-n", "19", "sh", "-c", "while :; do :; done"]);
    let _others: Vec<_> = (0..cores.div_ceil(3)).map(|_| busy()).collect();
    let words = ["--duration", "2s", "--rate", "50", "--sessions", "2", "--reuse"];
    let record = crate::party::bench(&words).record_of(0);
    let share = record.surroundings.as_ref().unwrap().other_busy_share.unwrap();
    assert!(share >= 0.1, "{:?}", record.surroundings);
    assert!(reason(&record, "Other processes used ").contains("idle machine"), "{:?}", record.verdict);
    assert!(record.verdict.closed, "{:?}", record.verdict);
}
