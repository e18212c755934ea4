//! The relay as a process with its spool on the disk that forgets.
use crate::mount::{Disk, Plan};
use crate::next_hop::name;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The longest that anything takes, on however slow a machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// How a relay's beginning ended.
pub(crate) enum Beginning {
    /// It takes mail at the first address and tells of itself at the second.
    Listening(SocketAddr, SocketAddr),
    /// The power was cut before.
    Cut,
    /// It ended by itself, with that exit status.
    Ended(Option<i32>),
}

/// Where relays keep what is no mail: configuration, control socket, log.
pub(crate) struct Home {
    place: TempDir,
    configuration: String,
    started: usize,
}

/// A relay that runs; killed when dropped.
pub(crate) struct Relay {
    child: Child,
    home: PathBuf,
}

impl Home {
    /// With that configuration besides the places and addresses that every relay here has.
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

    /// Starts a relay; the first is number 0.
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
        Relay { child, home }
    }

    /// Starts one that must listen, while nothing is planned for the disk; gives its address for mail.
    pub(crate) fn start_listening(&mut self, disk: &Disk) -> Result<(Relay, SocketAddr), String> {
        disk.plan(Plan::default());
        let mut relay = self.start();
        match relay.begin(disk)? {
            Beginning::Listening(smtp, _) => Ok((relay, smtp)),
            Beginning::Cut => Err("the power was cut without a plan".to_owned()),
            Beginning::Ended(code) => {
                Err(format!("it does not begin: exit status {code:?}: {}", self.logs().join("\n")))
            }
        }
    }

    fn log_of(&self, relay: usize) -> String {
        format!("log-{relay}")
    }

    /// What each relay wrote to its log, in their order.
    pub(crate) fn logs(&self) -> Vec<String> {
        let read = |relay| fs::read(self.place.path().join(self.log_of(relay))).unwrap_or_default();
        (0..self.started).map(|relay| String::from_utf8_lossy(&read(relay)).into_owned()).collect()
    }
}

impl Relay {
    /// Waits until it listens, the power is cut or it has ended.
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
                    return Ok(Beginning::Listening(smtp, http));
                }
                return Err(format!("no address to listen on: {line}"));
            }
            if let Some(status) = self.child.try_wait().map_err(|error| error.to_string())? {
                return Ok(Beginning::Ended(status.code()));
            }
        }
        Err("the relay neither listens nor ends".to_owned())
    }

    /// Asks it to stop.
    pub(crate) fn terminate(&self) {
        let id = rustix::process::Pid::from_child(&self.child);
        // It may have ended by itself.
        _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
    }

    /// Waits for its end, and gives its exit status; `None` inside after a signal.
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

    /// Kills it, as a power cut does too, and waits until nothing of it is left. What it had asked of a disk that is off
    /// is answered meanwhile: a process does not end before.
    pub(crate) fn kill(&mut self, disk: &Disk) -> Result<(), String> {
        // It may have ended by itself.
        _ = self.child.kill();
        disk.release();
        self.wait(LIMIT).map(|_| ()).ok_or_else(|| "a relay that was killed does not end".to_owned())
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        _ = self.child.kill();
        // Not for ever: a test that has failed leaves it to the disk, which is about to be unmounted.
        self.wait(Duration::from_secs(1));
    }
}

/// The status that a relay gives for a path over HTTP; `None`, if it does not answer.
pub(crate) fn status(http: SocketAddr, path: &str) -> Option<u16> {
    let mut stream = TcpStream::connect(http).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {http}\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.split(' ').nth(1)?.parse().ok()
}
