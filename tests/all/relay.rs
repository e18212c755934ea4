//! `mailrun relay` with its own configuration and spool: started, stopped, killed and restarted, and refusing to start.
use crate::party::{Ended, LIMIT, Process, Sink, bench, fates, is_root, mailrun, skip, undisturbed, wait_until};
use crate::secured::Files;
use crate::stand_in::{At, StandIn};
use crate::wire::Wire;
use mailrun_measurement::Stage;
use mailrun_measurement::record::Record;
use serde_json::Value;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::mpsc::channel;

pub(crate) const MAILRUN: &str = env!("CARGO_BIN_EXE_mailrun");

/// Short retry times, so that deferred mail is tried again soon.
pub(crate) const QUICK: &str = "retry.first = \"200ms\"\nretry.longest = \"500ms\"\n";

/// Directory of a relay. Its configuration and spool outlast the relay's processes.
#[derive(Debug)]
pub(crate) struct Den {
    pub(crate) files: Files,
}

impl Den {
    /// Writes a configuration that consists of `text` and, before it, defaults for the host name, spool and address.
    /// `text` must write the keys of sections with dots, for example `retry.first = "1s"`.
    pub(crate) fn new(text: &str) -> Self {
        Self::with(Files::new(), text)
    }

    pub(crate) fn with(files: Files, text: &str) -> Self {
        let listen = if text.contains("listen =") { "" } else { "listen = [\"127.0.0.1:0\"]\n" };
        let hostname = if text.contains("hostname =") { "" } else { "hostname = \"relay.example\"\n" };
        // Keep max_size small, because a relay fills an eighth of it with zeros when it starts.
        let max_size = if text.contains("spool.max_size =") { "" } else { "spool.max_size = \"64M\"\n" };
        files.keep("relay.toml", &format!("{hostname}spool.directory = \"spool\"\n{max_size}{listen}{text}"));
        Self { files }
    }

    /// Writes a configuration with `text`, the defaults, and a route that sends all mail to `server`.
    pub(crate) fn to(server: &str, text: &str) -> Self {
        Self::new(&format!("{text}{}", all_to(server)))
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.files.path(name)
    }

    pub(crate) fn open(&self) -> Relay {
        self.open_with(&[])
    }

    pub(crate) fn open_with(&self, words: &[&str]) -> Relay {
        let config = self.path("relay.toml");
        Relay::listening(Process::start(MAILRUN, &[&["relay", "--config", &config, "--live", "json"], words].concat()))
    }

    /// Runs a relay that must not start.
    pub(crate) fn fails(&self, words: &[&str]) -> Ended {
        mailrun(&[&["relay", "--config", &self.path("relay.toml"), "--live", "json"], words].concat())
    }

    /// Size of the spool's files in bytes.
    pub(crate) fn spool_bytes(&self) -> u64 {
        let files = fs::read_dir(self.path("spool")).unwrap().flatten();
        files.filter_map(|file| file.metadata().ok()).map(|data| data.len()).sum()
    }
}

pub(crate) fn all_to(server: &str) -> String {
    match server.strip_prefix("lmtp:") {
        Some(server) => format!("[[route]]\nto = \"*\"\nlmtp = \"{server}\"\n"),
        None => format!("[[route]]\nto = \"*\"\nsmtp = \"{server}\"\n"),
    }
}

/// A running relay. It is killed when dropped.
pub(crate) struct Relay {
    pub(crate) process: Process,
    /// The addresses for mail, in the order of the configuration.
    pub(crate) smtp: Vec<SocketAddr>,
}

impl Relay {
    pub(crate) fn listening(process: Process) -> Self {
        let listening: Value = wait_until("the relay to listen", || {
            let said = process.said();
            assert!(!process.complained().starts_with("mailrun: "), "{}", process.complained());
            said.lines().next().filter(|_| said.contains('\n')).map(|line| serde_json::from_str(line).unwrap())
        });
        let smtp = listening["smtp"].as_array().unwrap().iter().map(|one| one.as_str().unwrap().parse().unwrap());
        Self { smtp: smtp.collect(), process }
    }

    /// First address on which the relay accepts mail, as HOST:PORT.
    pub(crate) fn address(&self) -> String {
        self.smtp[0].to_string()
    }

    pub(crate) fn greeted(&self) -> Wire {
        Wire::greeted(self.smtp[0])
    }

    pub(crate) fn stop(self) -> Ended {
        self.process.terminate();
        let ended = self.process.finish();
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        ended
    }

    /// Kills the relay with SIGKILL. Everything that it wrote stays in the page cache.
    pub(crate) fn kill(self) {
        drop(self);
    }
}

pub(crate) fn introduced(relay: &Relay) -> Wire {
    let mut wire = relay.greeted();
    assert!(wire.say("EHLO client.example").starts_with("250"));
    wire
}

pub(crate) fn expect(wire: &mut Wire, line: &str, code: &str) -> String {
    let reply = wire.say(line);
    assert!(reply.starts_with(code), "{line}: {reply}");
    reply
}

/// Sends a message. Returns the last reply.
pub(crate) fn submit(wire: &mut Wire, from: &str, to: &[&str], message: impl AsRef<[u8]>) -> String {
    expect(wire, &format!("MAIL FROM:{from}"), "250");
    for to in to {
        expect(wire, &format!("RCPT TO:{to}"), "250");
    }
    expect(wire, "DATA", "354");
    wire.send(message);
    wire.send(".\r\n");
    wire.reply().expect("an answer to the message")
}

pub(crate) fn await_recipients(sink: &Sink, count: u64) {
    wait_until(&format!("{count} recipients at the sink"), || {
        (sink.ask("/status")["recipients"].as_u64().unwrap() >= count).then_some(())
    });
}

/// A message that a sink has written to its dump file.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) sender: String,
    pub(crate) recipients: Vec<String>,
    pub(crate) octets: Vec<u8>,
}

impl Kept {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.octets).into_owned()
    }

    /// The message without the relay's own `Received:` field.
    pub(crate) fn as_sent(&self) -> &[u8] {
        assert!(self.octets.starts_with(b"Received: from "), "{}", self.text());
        let lines = self.octets.split_inclusive(|byte| *byte == b'\n');
        let own = lines.enumerate().take_while(|(number, line)| *number == 0 || line.starts_with(b"\t"));
        &self.octets[own.map(|(_, line)| line.len()).sum()..]
    }
}

/// Messages in a sink's `--dump-file`.
pub(crate) fn kept(path: &str) -> Vec<Kept> {
    let bytes = fs::read(path).unwrap_or_default();
    let mut rest = &bytes[..];
    let mut all = Vec::new();
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let about: Value = serde_json::from_slice(&rest[..end]).unwrap();
        let length = about["bytes"].as_u64().unwrap() as usize;
        let Some(octets) = rest.get(end + 1..end + 1 + length) else { break };
        let recipients = about["recipients"].as_array().unwrap().iter();
        all.push(Kept {
            sender: about["sender"].as_str().unwrap().to_owned(),
            recipients: recipients.map(|one| one.as_str().unwrap().to_owned()).collect(),
            octets: octets.to_owned(),
        });
        rest = rest.get(end + 2 + length..).unwrap_or_default();
    }
    all
}

pub(crate) fn await_kept(path: &str, count: usize) -> Vec<Kept> {
    wait_until(&format!("{count} messages in {path}"), || Some(kept(path)).filter(|kept| kept.len() >= count))
}

pub(crate) fn mailbox(path: &str) -> Vec<String> {
    let files = fs::read_dir(Path::new(path).join("new")).into_iter().flatten().flatten();
    files.map(|file| String::from_utf8_lossy(&fs::read(file.path()).unwrap()).into_owned()).collect()
}

pub(crate) fn http(relay: &Relay, path: &str) -> (u16, String) {
    let listening: Value = serde_json::from_str(relay.process.said().lines().next().unwrap()).unwrap();
    let address = listening["http"].as_str().expect("the event names it").to_owned();
    let agent: ureq::Agent = ureq::Agent::config_builder().proxy(None).http_status_as_error(false).build().into();
    let mut response = agent.get(format!("http://{address}{path}")).call().unwrap();
    (response.status().as_u16(), response.body_mut().read_to_string().unwrap())
}

/// Returns the value of a metric without labels. Asks again if the relay did not answer, for example because a worker
/// got no processor time.
pub(crate) fn metric(relay: &Relay, name: &str) -> u64 {
    let (_, text) = undisturbed(|| http(relay, "/metrics"), |(status, _)| *status == 200);
    let value = |line: &str| line.strip_prefix(&format!("mailrun_relay_{name} ")).map(str::to_owned);
    text.lines().find_map(value).unwrap_or_else(|| panic!("{name}: {text}")).parse().unwrap()
}

/// Runs a bench through a relay to a sink. Every recipient must get the message exactly once.
pub(crate) fn closes(relay: &Relay, sink: &Sink, words: &[&str], units: u64) {
    let record = bench(&[&[&relay.address(), "--sink", sink.url()], words].concat()).record_of(0);
    assert_eq!(fates(&record.ledger), [units, units, 0, 0, 0], "{words:?}");
    assert!(record.verdict.closed, "{words:?}: {:?}", record.verdict);
}

#[test]
fn three_flags_make_a_relay() {
    let sink = Sink::start(&[]);
    let place = tempfile::tempdir().unwrap();
    let spool = place.path().join("spool");
    let words = ["relay", "--listen", "127.0.0.1:0", "--to", &sink.address(), "--spool", spool.to_str().unwrap()];
    let relay = Relay::listening(Process::start(MAILRUN, &[&words[..], &["--live", "json"]].concat()));
    closes(&relay, &sink, &["--messages", "50", "--sessions", "5"], 50);
    relay.stop();
    assert_eq!(sink.took().recipients, 50);
}

#[test]
fn what_it_has_done_is_said_at_the_end() {
    let count = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.split_whitespace().nth(1) == Some(name)).unwrap();
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    let counts = |text: &str| ["accepted", "delivered", "failed", "spool_messages"].map(|name| count(text, name));
    let ended = ended_after_one_message(&[]);
    assert_eq!(counts(&ended.out), [1, 1, 0, 0], "{ended:?}");
    // If the record goes to standard output, nothing else may be there, so that a program can read it.
    let ended = ended_after_one_message(&["--json", "-"]);
    let record: Record = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(record.stage(Stage::Delivered).unwrap().count, 1);
    assert_eq!(counts(&ended.err), [1, 1, 0, 0], "{ended:?}");
}

/// Runs a relay without `--live json` until it has delivered a message.
fn ended_after_one_message(words: &[&str]) -> Ended {
    let sink = Sink::start(&[]);
    let den = Den::to(&sink.address(), "");
    let port = crate::party::low_port();
    let config = den.path("relay.toml");
    let text = fs::read_to_string(&config).unwrap().replace("127.0.0.1:0\"", &format!("127.0.0.1:{port}\""));
    fs::write(&config, text).unwrap();
    let process = Process::start(MAILRUN, &[&["relay", "--config", &config], words].concat());
    let address: SocketAddr = format!("127.0.0.1:{port}").parse().unwrap();
    wait_until("the relay to listen", || std::net::TcpStream::connect(address).ok());
    let mut wire = Wire::greeted(address);
    expect(&mut wire, "EHLO client.example", "250");
    assert!(submit(&mut wire, "<a@b.example>", &["<c@d.example>"], "Subject: x\r\n\r\nx\r\n").starts_with("250 2.0.0"));
    await_recipients(&sink, 1);
    process.terminate();
    let ended = process.finish();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    ended
}

#[test]
fn all_listeners_stop_taking_mail_while_deliveries_come_to_their_end() {
    let (began, waits) = channel();
    let (go_on, goes_on) = channel();
    let gate = Mutex::new((began, goes_on));
    // The next hop replies to the final dot only after both listeners are closed.
    let hop = StandIn::start(move |moment| {
        if moment.at == At::Message {
            let (began, goes_on) = &*gate.lock().unwrap();
            began.send(()).unwrap();
            goes_on.recv().unwrap();
        }
        None
    });
    let den = Den::to(&hop.address(), "listen = [\"127.0.0.1:0\", \"127.0.0.1:0\"]\n");
    let relay = den.open();
    assert!(submit(&mut introduced(&relay), "<a@b.example>", &["<c@d.example>"], "x\r\n").starts_with("250 2.0.0"));
    waits.recv_timeout(LIMIT).expect("a delivery");
    relay.process.terminate();
    for address in &relay.smtp {
        wait_until("the listener to be closed", || TcpStream::connect(address).is_err().then_some(()));
    }
    go_on.send(()).unwrap();
    let ended = relay.process.finish();
    // The delivery ended only after both listeners were closed. If the relay waited for deliveries before it closed the
    // second listener, it would have given up this delivery.
    assert!(ended.code == Some(0) && ended.err.contains("status=delivered"), "{}", ended.err);
}

#[test]
fn a_second_relay_on_a_spool_is_turned_away_in_a_line() {
    let den = Den::new("[[route]]\nto = \"*\"\ndiscard = true\n");
    let relay = den.open();
    let second = den.fails(&[]);
    assert_eq!((second.code, second.err.lines().count()), (Some(2), 1), "{second:?}");
    assert!(second.err.contains("spool"), "{}", second.err);
    expect(&mut relay.greeted(), "NOOP", "250");
    relay.stop();
    den.open().stop();
}

#[test]
fn a_spool_that_cannot_be_written_is_said_in_a_line() {
    let den = Den::new("[[route]]\nto = \"*\"\ndiscard = true\n");
    // Put a file in place of the spool's directory, so that even root cannot write a spool there.
    fs::write(den.path("spool"), "no directory").unwrap();
    let ended = den.fails(&[]);
    assert_eq!((ended.code, ended.err.lines().count()), (Some(2), 1), "{ended:?}");
    assert!(ended.err.contains(&den.path("spool")), "{}", ended.err);
    fs::remove_file(den.path("spool")).unwrap();
    fs::create_dir(den.path("spool")).unwrap();
    fs::set_permissions(den.path("spool"), fs::Permissions::from_mode(0o500)).unwrap();
    if is_root() {
        // Root can write everywhere except on a read-only file system.
        let Some(_mount) = Mount::new(&den.path("spool"), "ro") else { return };
        let ended = den.fails(&[]);
        assert_eq!((ended.code, ended.err.lines().count()), (Some(2), 1), "{ended:?}");
    } else {
        let ended = den.fails(&[]);
        assert_eq!((ended.code, ended.err.lines().count()), (Some(2), 1), "{ended:?}");
    }
}

#[test]
fn an_address_that_is_taken_is_said_in_a_line() {
    let sink = Sink::start(&[]);
    let den = Den::new(&format!("listen = [\"{}\"]\n[[route]]\nto = \"*\"\ndiscard = true\n", sink.address()));
    let ended = den.fails(&[]);
    assert_eq!((ended.code, ended.err.lines().count()), (Some(2), 1), "{ended:?}");
    assert!(ended.err.contains(&sink.address()), "{}", ended.err);
}

#[test]
fn less_durability_is_told_to_everybody() {
    let den = Den::new("[[route]]\nto = \"*\"\ndiscard = true\n");
    for (how, is_told) in [("sync", false), ("write", true), ("memory", true)] {
        let relay = den.open_with(&["--durability", how]);
        let greeting = Wire::connect(relay.smtp[0]).reply().unwrap();
        assert_eq!(greeting.contains(&format!("durability {how}")), is_told, "{how}: {greeting}");
        let mut wire = introduced(&relay);
        assert!(submit(&mut wire, "<a@b.example>", &["<c@d.example>"], "x\r\n").starts_with("250 2.0.0"));
        relay.stop();
    }
}

#[test]
fn mistakes_of_a_file_are_told_with_their_places() {
    let den = Den::new(
        "local.domains = [\"a.example\"]\nlocal.aliases = \"aliases\"\nlocal.users = \"boxes\"\n\
                        local.maildir = \"m/{user}\"\n",
    );
    den.files.keep("boxes", "keeper\nthree\n");
    den.files.keep("aliases", "one: two\ntwo: three\nthree: one\npostmaster: three\n");
    let config = den.path("relay.toml");
    let checked = mailrun(&["relay", "--config", &config, "--check"]);
    assert_eq!(checked.code, Some(2), "{checked:?}");
    let places = ["relay.toml:6:17", "aliases:1:1: ", "one"];
    assert!(places.iter().all(|place| checked.out.contains(place)), "{checked:?}");
    let ended = den.fails(&[]);
    assert_eq!((ended.code, ended.err.lines().count()), (Some(2), 1), "{ended:?}");
    den.files.keep("aliases", "one: two\ntwo: three\npostmaster: one\n");
    let checked = mailrun(&["relay", "--config", &config, "--check"]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
}

/// A mounted file system. It is unmounted when dropped.
pub(crate) struct Mount(PathBuf);

impl Mount {
    /// Mounts a tmpfs. Returns `None`, and notes the skipped test, if that is not allowed here.
    pub(crate) fn new(at: &str, options: &str) -> Option<Self> {
        if !is_root() {
            skip("tmpfs", "only root may mount one");
            return None;
        }
        fs::create_dir_all(at).unwrap();
        let options = format!("mode=700,{options}");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs", at]).output();
        if !mounted.as_ref().is_ok_and(|mounted| mounted.status.success()) {
            skip("tmpfs", &format!("cannot be mounted here: {mounted:?}"));
            return None;
        }
        Some(Self(at.into()))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Unmount lazily: after a failed test, a relay may still have files open there.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
