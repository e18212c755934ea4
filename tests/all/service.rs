//! Relay and probe as systemd services: notifications, socket activation, the journal, and the unit files. systemd does
//! not run as process 1 where tests run, so the tests play the service manager.
use crate::party::{Process, Sink, is_root, low_port, peer, run, skip, wait_until};
use crate::relay::{Den, MAILRUN, Relay, await_recipients, introduced, submit};
use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

/// The service manager's end of the socket `NOTIFY_SOCKET`, to which a service reports its state.
struct Manager {
    socket: UnixDatagram,
    path: String,
    heard: Vec<String>,
}

impl Manager {
    fn new(den: &Den) -> Self {
        let path = den.path("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_nonblocking(true).unwrap();
        Self { socket, path, heard: Vec::new() }
    }

    /// Waits until the relay sends a further message that contains the line `line`.
    fn await_line(&mut self, line: &str) {
        wait_until(&format!("the relay to say {line}"), || {
            let mut bytes = [0; 4096];
            let read = self.socket.recv(&mut bytes).ok()?;
            let message = String::from_utf8_lossy(&bytes[..read]).into_owned();
            let is_it = message.lines().any(|one| one == line);
            self.heard.push(message);
            is_it.then_some(())
        });
    }
}

fn start_with(den: &Den, environment: &[String]) -> Relay {
    let config = den.path("relay.toml");
    let mut words: Vec<&str> = environment.iter().map(String::as_str).collect();
    words.extend([MAILRUN, "relay", "--config", &config, "--live", "json"]);
    Relay::listening(Process::start("env", &words))
}

#[test]
fn the_manager_hears_that_it_is_ready_reloads_lives_and_stops() {
    let den = Den::new("log = \"info\"\n[[route]]\nto = \"*\"\nsmtp = \"127.0.0.1:1\"\n");
    let mut manager = Manager::new(&den);
    let environment = [format!("NOTIFY_SOCKET={}", manager.path), "WATCHDOG_USEC=200000".to_owned()];
    let relay = start_with(&den, &environment);
    manager.await_line("READY=1");
    assert!(manager.heard[0].contains("STATUS=opening the spool"), "{:?}", manager.heard);
    (0..3).for_each(|_| manager.await_line("WATCHDOG=1"));
    relay.process.hang_up();
    manager.await_line("RELOADING=1");
    assert!(manager.heard.last().unwrap().contains("MONOTONIC_USEC="), "{:?}", manager.heard);
    manager.await_line("READY=1");
    fs::write(den.path("relay.toml"), "nonsense").unwrap();
    relay.process.hang_up();
    manager.await_line("RELOADING=1");
    manager.await_line("READY=1");
    assert!(manager.heard.last().unwrap().contains("the last reload failed"), "{:?}", manager.heard);
    relay.process.terminate();
    manager.await_line("STOPPING=1");
    assert_eq!(relay.process.finish().code, Some(0));
}

/// Opens a listening socket at an address (HOST:PORT or a path) and executes a program that inherits it as descriptor
/// 3.
const ACTIVATOR: &str = "
import os, socket, sys
where, program = sys.argv[1], sys.argv[2:]
if '/' in where:
    made = socket.socket(socket.AF_UNIX); made.bind(where)
else:
    host, port = where.rsplit(':', 1)
    made = socket.socket(); made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); made.bind((host, int(port)))
made.listen(16)
if made.fileno() != 3: os.dup2(made.fileno(), 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid()))
os.execv(program[0], program)
";

fn activated(den: &Den, address: &str) -> Process {
    let config = den.path("relay.toml");
    Process::start("python3", &["-c", ACTIVATOR, address, MAILRUN, "relay", "--config", &config, "--live", "json"])
}

#[test]
fn a_socket_that_the_manager_has_opened_is_served() {
    if peer("python3").is_none() {
        return;
    }
    let sink = Sink::start(&[]);
    let address = format!("127.0.0.1:{}", low_port());
    let route = format!("listen = [\"{address}\"]\n[[route]]\nto = \"*\"\nsmtp = \"{}\"\n", sink.address());
    let den = Den::new(&route);
    let relay = Relay::listening(activated(&den, &address));
    assert_eq!(relay.address(), address);
    // The service manager listens on this address, so the relay cannot listen on it as well. If the relay accepts mail
    // here, it must be using the manager's socket.
    submit(&mut introduced(&relay), "<ann@a.example>", &["<bob@b.example>"], "Subject: x\r\n\r\nx\r\n");
    await_recipients(&sink, 1);
    relay.stop();
}

#[test]
fn the_managers_path_stays_when_the_relay_ends() {
    if peer("python3").is_none() {
        return;
    }
    let den = Den::with(crate::secured::Files::new(), "");
    let path = den.path("lmtp");
    let text = format!(
        "listen = [\"unix:{path}\"]\nspool.directory = \"spool\"\n[[route]]\nto = \"*\"\nsmtp = \"127.0.0.1:1\"\n"
    );
    fs::write(den.path("relay.toml"), text).unwrap();
    let process = activated(&den, &path);
    wait_until("it to listen", || process.said().contains("smtp").then_some(()));
    process.terminate();
    assert_eq!(process.finish().code, Some(0));
    assert!(Path::new(&path).exists(), "it is the manager's to remove");
}

#[test]
fn a_socket_that_the_configuration_does_not_name_is_refused() {
    if peer("python3").is_none() {
        return;
    }
    let den = Den::new("[[route]]\nto = \"*\"\nsmtp = \"127.0.0.1:1\"\n");
    let address = format!("127.0.0.1:{}", low_port());
    let ended = activated(&den, &address).finish();
    assert_eq!(ended.code, Some(2), "{}", ended.err);
    assert!(ended.err.contains(&format!("the service manager has opened {address}")), "{}", ended.err);
    assert!(TcpStream::connect(&address).is_err());
}

#[test]
fn lines_for_the_journal_have_a_priority_and_no_time() {
    let den = Den::new("log = \"info\"\n[[route]]\nto = \"*\"\nsmtp = \"127.0.0.1:1\"\n");
    let log = den.path("journal");
    let file = fs::File::create(&log).unwrap();
    let stream = file.metadata().map(|found| format!("JOURNAL_STREAM={}:{}", found.dev(), found.ino())).unwrap();
    let config = den.path("relay.toml");
    let words = [&stream, MAILRUN, "relay", "--config", &config, "--live", "json"];
    let relay = Relay::listening(Process::start_saying("env", &words, file.into()));
    relay.process.hang_up();
    wait_until("the reload to be logged", || {
        let said = fs::read_to_string(&log).unwrap();
        said.lines().any(|line| line.starts_with("<6>mailrun") && line.contains("was reloaded")).then_some(())
    });
    drop(relay);
}

#[test]
fn the_unit_files_hold() {
    if peer("systemd-analyze").is_none() {
        return;
    }
    let files = crate::secured::Files::new();
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/systemd");
    let paths = ["mailrun-relay.service", "mailrun-probe.service", "mailrun-relay.socket"].map(|name| {
        let text = fs::read_to_string(units.join(name)).unwrap();
        // The program and its man pages are not installed here. So leave out the lines that name man pages, and change
        // the path of the program.
        let is_here = |line: &&str| !line.starts_with("Documentation=man:");
        let here: Vec<&str> = text.lines().filter(is_here).collect();
        files.keep(name, &here.join("\n").replace("/usr/bin/mailrun", MAILRUN))
    });
    let [relay, probe, socket] = &paths;
    let verified = run("systemd-analyze", &["verify", "--man=no", relay, probe, socket]);
    assert_eq!((verified.code, verified.err.trim()), (Some(0), ""), "{}", verified.out);
    for unit in [relay, probe] {
        let secured = run("systemd-analyze", &["security", "--offline=true", "--threshold=20", unit]);
        assert_eq!(secured.code, Some(0), "{}", secured.out);
    }
}

#[test]
fn the_packaged_configuration_of_the_probe_is_valid() {
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/systemd/probe.toml");
    let ended = run(MAILRUN, &["probe", "--check", "--config", config.to_str().unwrap()]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "configuration OK: 1 route\n"), "{ended:?}");
}

#[test]
fn the_packaged_configuration_is_valid() {
    if !is_root() {
        return skip("root", "the packaged spool is in a directory of root's");
    }
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/systemd/relay.toml");
    let ended = run(MAILRUN, &["relay", "--check", "--config", config.to_str().unwrap()]);
    assert_eq!(ended.code, Some(0), "{}{}", ended.out, ended.err);
}
