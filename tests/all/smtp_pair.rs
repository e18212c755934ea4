//! Runs Postfix's smtp-sink, and mailrun called under the name `smtp-sink`, with the same arguments and the same
//! clients. Compares everything that can be seen from outside.
use crate::party::{LIMIT, is_root, low_port, numbers, peer, wait_until};
use crate::rows::all_hold_by;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;
use tempfile::TempDir;

/// Placeholder for the port in a case's arguments.
pub(crate) const PORT: &str = "PORT";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Original,
    Ours,
}

/// A running sink: Postfix's smtp-sink, or mailrun called under this name. It runs in its own world-writable directory,
/// because it may switch to another user.
pub(crate) struct Running {
    child: Child,
    pub(crate) place: TempDir,
    streams: TempDir,
}

impl Running {
    pub(crate) fn start(who: Who, words: &[String]) -> Self {
        let place = tempfile::tempdir().unwrap();
        let streams = tempfile::tempdir().unwrap();
        fs::set_permissions(place.path(), Permissions::from_mode(0o777)).unwrap();
        let program = match who {
            Who::Original => peer("smtp-sink").expect("asked for before"),
            Who::Ours => env!("CARGO_BIN_EXE_mailrun").to_owned(),
        };
        let file = |name: &str| File::create(streams.path().join(name)).unwrap();
        let child = Command::new(program)
            .arg0("smtp-sink")
            .args(words)
            .current_dir(place.path())
            .env("TZ", "UTC")
            .stdin(Stdio::null())
            .stdout(file("out"))
            .stderr(file("err"))
            .spawn()
            .unwrap();
        Self { child, place, streams }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits for the exit status of the sink. Returns `None` if a signal ended the sink.
    pub(crate) fn code(&mut self) -> Option<i32> {
        wait_until("a sink to end", || self.child.try_wait().unwrap()).code()
    }

    /// Waits until the sink sleeps, so that it has finished its work after a connection.
    fn rest(&mut self) {
        let stat = format!("/proc/{}/stat", self.id());
        wait_until("a sink to rest", || {
            // If the file is missing, the sink has already ended, which counts as sleeping.
            let text = fs::read_to_string(&stat).unwrap_or_else(|_| ") S".to_owned());
            let is_idle = text.rsplit_once(") ")?.1.starts_with('S');
            (is_idle || self.has_ended()).then_some(())
        });
    }

    /// Returns the content of the sink's standard output (`out`) or standard error (`err`).
    pub(crate) fn said(&self, stream: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.streams.path().join(stream)).unwrap()).into_owned()
    }

    /// Largest resident memory of the sink so far (`VmHWM`).
    pub(crate) fn peak_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        numbers(status.lines().find(|line| line.starts_with("VmHWM:")).unwrap())[0] << 10
    }

    /// Connects once the sink listens. Returns `None` if the sink has ended.
    pub(crate) fn client(&mut self, address: &str) -> Option<Client> {
        wait_until("a sink to listen", || match Client::connect(address, self.place.path()) {
            Ok(client) => Some(Some(client)),
            Err(_) => self.has_ended().then_some(None),
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Ignore errors, because the sink may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A TCP or Unix-domain connection.
trait Stream: Read + Write {
    fn end_writing(&self) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn end_writing(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

impl Stream for UnixStream {
    fn end_writing(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

/// Errors that mean that the peer has reset the connection.
const CLOSED: [ErrorKind; 2] = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];

/// A client that keeps every byte it hears.
pub(crate) struct Client {
    stream: Box<dyn Stream>,
    pub(crate) heard: Vec<u8>,
    counted: usize,
}

impl Client {
    /// `address` is `unix:path`, relative to `place`, or HOST:PORT.
    pub(crate) fn connect(address: &str, place: &Path) -> io::Result<Self> {
        let stream: Box<dyn Stream> = match address.strip_prefix("unix:") {
            Some(path) => {
                let stream = UnixStream::connect(place.join(path))?;
                stream.set_read_timeout(Some(LIMIT))?;
                Box::new(stream)
            }
            None => {
                let stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(LIMIT))?;
                Box::new(stream)
            }
        };
        Ok(Self { stream, heard: Vec::new(), counted: 0 })
    }

    /// Sends to a peer that may have closed the connection. Returns false if sending fails.
    pub(crate) fn send(&mut self, octets: impl AsRef<[u8]>) -> bool {
        self.stream.write_all(octets.as_ref()).is_ok()
    }

    /// Waits for the end of a reply. Returns false if the peer has closed.
    pub(crate) fn reply(&mut self) -> bool {
        loop {
            let unread = &self.heard[self.counted..];
            if let Some(end) = memchr(unread) {
                let is_last = unread.get(3) != Some(&b'-');
                self.counted += end + 1;
                if is_last {
                    return true;
                }
            } else if !self.read() {
                return false;
            }
        }
    }

    pub(crate) fn say(&mut self, line: &str) -> bool {
        self.send([line, "\r\n"].concat()) && self.reply()
    }

    /// Ends the output and reads until the peer closes. Returns everything that the client has heard, escaped.
    pub(crate) fn finish(mut self) -> String {
        // Ignore the error, because the peer may have closed the connection already.
        let _ = self.stream.end_writing();
        while self.read() {}
        self.heard.escape_ascii().to_string()
    }

    /// Returns false at the end of the connection, including a reset.
    fn read(&mut self) -> bool {
        let mut block = [0; 16 * 1024];
        match self.stream.read(&mut block) {
            Ok(count) => {
                self.heard.extend_from_slice(&block[..count]);
                count > 0
            }
            Err(error) if CLOSED.contains(&error.kind()) => false,
            Err(error) => panic!("no reply within {LIMIT:?}: {error}"),
        }
    }
}

fn memchr(octets: &[u8]) -> Option<usize> {
    octets.iter().position(|octet| *octet == b'\n')
}

#[derive(Clone, Debug)]
pub(crate) enum Talk {
    /// Sends everything after the greeting, then ends its output.
    AtOnce(Vec<u8>),
    /// Sends piece by piece, each after the reply to the previous piece.
    InTurn(Vec<Vec<u8>>),
}

impl Talk {
    pub(crate) fn lines(lines: &[&str]) -> Self {
        Self::InTurn(lines.iter().map(|line| format!("{line}\r\n").into_bytes()).collect())
    }

    pub(crate) fn pipelined(lines: &[&str]) -> Self {
        Self::AtOnce(lines.iter().map(|line| format!("{line}\r\n")).collect::<String>().into_bytes())
    }

    fn hold(&self, mut client: Client) -> String {
        let mut is_open = client.reply();
        match self {
            Self::AtOnce(octets) => drop(client.send(octets)),
            Self::InTurn(pieces) => {
                for piece in pieces {
                    is_open = is_open && client.send(piece) && client.reply();
                }
            }
        }
        client.finish()
    }
}

/// A command line, and the clients' behaviour.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) words: Vec<String>,
    /// Address to which clients connect.
    pub(crate) at: String,
    pub(crate) talks: Vec<Talk>,
    /// Set if the sink must end by itself.
    pub(crate) ends: bool,
}

impl Case {
    /// A sink on 127.0.0.1. If root starts it, it switches to an unprivileged user.
    pub(crate) fn new(options: &[&str], talks: &[Talk]) -> Self {
        Self::at(options, "127.0.0.1:PORT", "127.0.0.1:PORT", talks)
    }

    pub(crate) fn at(options: &[&str], listen: &str, at: &str, talks: &[Talk]) -> Self {
        let words = [user(), options, &[listen, "10"]].concat();
        let words = words.into_iter().map(str::to_owned).collect();
        Self { words, at: at.to_owned(), talks: talks.to_vec(), ends: false }
    }

    /// A command line at which the sink must end at once.
    pub(crate) fn refused(words: &[&str]) -> Self {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        Self { words, at: String::new(), talks: Vec::new(), ends: true }
    }

    pub(crate) fn until_it_ends(mut self) -> Self {
        self.ends = true;
        self
    }
}

/// Arguments that the sink needs if root starts it.
pub(crate) fn user() -> &'static [&'static str] {
    if is_root() { &["-u", "nobody"] } else { &[] }
}

/// Everything that an observer outside the sink can see, for the comparison of two sinks.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) heard: Vec<String>,
    pub(crate) out: String,
    pub(crate) err: String,
    pub(crate) code: Option<i32>,
    pub(crate) files: Vec<(String, String)>,
}

fn observe(who: Who, case: &Case, port: u16) -> Seen {
    let fill = |word: &String| word.replace(PORT, &port.to_string());
    let words: Vec<String> = case.words.iter().map(fill).collect();
    let mut running = Running::start(who, &words);
    let at = fill(&case.at);
    let heard = case.talks.iter().map_while(|talk| Some(talk.hold(running.client(&at)?))).collect();
    if !case.ends {
        running.rest();
        // Ignore the error here: if the sink has ended although it should not have, its exit status shows that.
        let _ = kill_process(Pid::from_child(&running.child), Signal::TERM);
    }
    let code = running.code();
    let mut files = Vec::new();
    gather(running.place.path(), "", &mut files);
    files.sort();
    Seen { heard, out: running.said("out"), err: without_library_talk(&running.said("err")), code, files }
}

fn observe_both(case: &Case) -> (Seen, Seen) {
    let port = low_port();
    (observe(Who::Original, case, port), observe(Who::Ours, case, port))
}

/// Removes lines in which Postfix's libraries, with -v, report their own buffers and descriptors.
fn without_library_talk(err: &str) -> String {
    const LIBRARY: [&str; 4] = ["name_mask: ", "vstream_tweak_tcp: ", "fd=", "smtp_stream_setup: "];
    let is_ours = |line: &&str| !LIBRARY.iter().any(|talk| line.starts_with(&format!("smtp-sink: {talk}")));
    err.split_inclusive('\n').filter(is_ours).collect()
}

/// Adds the name, mode and content of every file below a directory to `files`, and masks numbers that vary.
fn gather(directory: &Path, name: &str, files: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = format!("{name}/{}", path.file_name().unwrap().to_str().unwrap());
        if path.is_dir() {
            gather(&path, &name, files);
        } else if path.is_file() {
            let mode = path.metadata().unwrap().permissions().mode();
            let start = name.len().checked_sub(8).filter(|at| name.is_char_boundary(*at)).unwrap_or(0);
            let is_id = name[start..].bytes().all(|octet| octet.is_ascii_hexdigit());
            let name = if is_id { format!("{}ID", &name[..start]) } else { name };
            files.push((format!("{name} {mode:o}"), masked(&fs::read(&path).unwrap())));
        }
    }
}

/// Masks the id of a Received field, and the digits of the date after it.
fn masked(content: &[u8]) -> String {
    let mut result = String::new();
    let mut is_date = false;
    for line in content.split_inclusive(|octet| *octet == b'\n') {
        let line = line.escape_ascii().to_string();
        if is_date {
            result.extend(line.chars().map(|c| if c.is_ascii_digit() { '#' } else { c }));
            is_date = false;
        } else if let Some((start, _)) = line.split_once(" id ").filter(|(start, _)| start.contains("(smtp-sink)")) {
            result.push_str(&format!("{start} id ID"));
            is_date = true;
        } else {
            result.push_str(&line);
        }
        result.push('\n');
    }
    result
}

/// Number of cases that run at the same time. There can be several, because a case mostly waits.
const AT_A_TIME: usize = 8;

/// Runs all cases with both programs, and fails with all differences. Prints how many cases were compared. Returns
/// false if the original is not installed.
pub(crate) fn compare(group: &str, cases: Vec<Case>) -> bool {
    if peer("smtp-sink").is_none() {
        return false;
    }
    all_hold_by(AT_A_TIME, &cases, |case| {
        let (mut theirs, mut ours) = observe_both(case);
        if theirs != ours {
            // Another process on this machine may have taken the port, so a difference counts only if it shows twice.
            (theirs, ours) = observe_both(case);
        }
        (theirs != ours).then(|| format!("{:?}\noriginal {theirs:#?}\nours {ours:#?}", case.words))
    });
    tell_compared(group, cases.len());
    true
}

/// Writes directly to the terminal, because the test harness shows the output of a test only if the test fails.
pub(crate) fn tell_compared(group: &str, count: usize) {
    let _ = writeln!(io::stderr(), "smtp-sink conformance, {group}: {count} cases identical");
}

/// Returns the seconds before the greeting and before the reply to each of these pieces, and everything that the client
/// has heard.
pub(crate) fn reply_times(who: Who, options: &[&str], pieces: &[&str]) -> (Vec<f64>, String) {
    let address = format!("127.0.0.1:{}", low_port());
    let words: Vec<String> = [user(), options, &[&address, "10"]].concat().into_iter().map(str::to_owned).collect();
    let mut running = Running::start(who, &words);
    let mut client = running.client(&address).expect("it runs");
    let mut times = Vec::new();
    let mut before = Instant::now();
    let mut lap = || {
        let now = Instant::now();
        times.push((now - before).as_secs_f64());
        before = now;
    };
    client.reply();
    lap();
    for piece in pieces {
        client.send(piece);
        client.reply();
        lap();
    }
    (times, client.finish())
}
