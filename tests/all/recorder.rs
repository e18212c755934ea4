//! A server that records every byte it hears and answers by a script. Tests use it to compare two clients byte by byte.
use crate::party::wait_until;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, sockopt};
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

#[derive(Clone, Debug)]
enum Act {
    Say(Vec<u8>),
    Close,
    /// Closes with RST.
    Reset,
    /// Stops replying, but goes on reading.
    Silent,
    /// Repeats this reply until the client is gone.
    Repeat(Vec<u8>),
    /// Replies as usual, then stops reading for this time.
    Stall(Duration),
    /// Replies as usual, then stops reading until `go_on`.
    Hold,
}

/// Rules that replace the server's usual replies. Each rule applies to the `nth` time that its verb is heard in the
/// run, or to every time if `nth` is 0.
#[derive(Clone, Debug, Default)]
pub(crate) struct Script {
    rules: Vec<(&'static str, usize, Act)>,
}

impl Script {
    fn rule(mut self, verb: &'static str, nth: usize, act: Act) -> Self {
        self.rules.push((verb, nth, act));
        self
    }

    /// Adds a rule that sends `reply` and a line end. `verb` is `banner`, `.` or the first word of a command.
    pub(crate) fn say(self, verb: &'static str, nth: usize, reply: &str) -> Self {
        self.say_raw(verb, nth, format!("{reply}\r\n").as_bytes())
    }

    pub(crate) fn say_raw(self, verb: &'static str, nth: usize, reply: &[u8]) -> Self {
        self.rule(verb, nth, Act::Say(reply.to_owned()))
    }

    pub(crate) fn close(self, verb: &'static str, nth: usize) -> Self {
        self.rule(verb, nth, Act::Close)
    }

    pub(crate) fn reset(self, verb: &'static str, nth: usize) -> Self {
        self.rule(verb, nth, Act::Reset)
    }

    pub(crate) fn silent(self, verb: &'static str, nth: usize) -> Self {
        self.rule(verb, nth, Act::Silent)
    }

    pub(crate) fn repeat(self, verb: &'static str, nth: usize, reply: &[u8]) -> Self {
        self.rule(verb, nth, Act::Repeat(reply.to_owned()))
    }

    pub(crate) fn stall(self, verb: &'static str, nth: usize, time: Duration) -> Self {
        self.rule(verb, nth, Act::Stall(time))
    }

    pub(crate) fn hold(self, verb: &'static str, nth: usize) -> Self {
        self.rule(verb, nth, Act::Hold)
    }

    fn act(&self, verb: &str, nth: usize) -> Option<Act> {
        let rule = self.rules.iter().find(|(known, when, _)| *known == verb && (*when == 0 || *when == nth))?;
        Some(rule.2.clone())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listen {
    V4,
    V6,
    Unix,
    /// A Unix-domain socket with a listen backlog of only one or two connections.
    ShortUnix,
}

/// A server that runs until `finish`.
pub(crate) struct Recorder {
    /// TCP port, or 0 for a Unix-domain socket.
    pub(crate) port: u16,
    pub(crate) path: PathBuf,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

struct Shared {
    script: Script,
    heard: Mutex<Vec<(usize, Heard)>>,
    times: Mutex<HashMap<String, usize>>,
    is_held: AtomicBool,
    is_over: AtomicBool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Heard {
    pub(crate) octets: Vec<u8>,
    pub(crate) end: &'static str,
}

enum Door {
    Inet(TcpListener),
    Unix(UnixListener),
}

trait Wire: Read + Write + AsFd + Send {}
impl Wire for TcpStream {}
impl Wire for UnixStream {}

impl Door {
    fn accept(&self) -> std::io::Result<Box<dyn Wire>> {
        Ok(match self {
            Self::Inet(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                stream.set_nonblocking(false)?;
                Box::new(stream)
            }
            Self::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(false)?;
                Box::new(stream)
            }
        })
    }
}

impl Recorder {
    pub(crate) fn start(listen: Listen, script: Script, place: &Path) -> Self {
        let path = place.join("socket");
        let inet = |address: &str| {
            let listener = TcpListener::bind(address).unwrap();
            listener.set_nonblocking(true).unwrap();
            (listener.local_addr().unwrap().port(), Door::Inet(listener))
        };
        let (port, door) = match listen {
            Listen::V4 => inet("127.0.0.1:0"),
            Listen::V6 => inet("[::1]:0"),
            Listen::Unix => (0, Door::Unix(listen_at(&path, 128))),
            Listen::ShortUnix => (0, Door::Unix(listen_at(&path, 1))),
        };
        let (heard, times, is_over) = Default::default();
        let shared = Arc::new(Shared { script, heard, times, is_held: AtomicBool::new(true), is_over });
        let accepting = thread::spawn({
            let shared = Arc::clone(&shared);
            move || accept_all(&door, &shared)
        });
        Self { port, path, shared, accepting }
    }

    pub(crate) fn times(&self, verb: &str) -> usize {
        self.shared.times.lock().unwrap().get(verb).copied().unwrap_or_default()
    }

    /// Resumes reading after `Act::Hold`.
    pub(crate) fn go_on(&self) {
        self.shared.is_held.store(false, Ordering::Release);
    }

    /// Waits until the client has closed all connections. Returns what was heard on each, in the order in which they
    /// began.
    pub(crate) fn finish(self) -> Vec<Heard> {
        self.shared.is_over.store(true, Ordering::Release);
        self.accepting.join().unwrap();
        let mut heard = std::mem::take(&mut *self.shared.heard.lock().unwrap());
        heard.sort_by_key(|(number, _)| *number);
        heard.into_iter().map(|(_, heard)| heard).collect()
    }
}

fn listen_at(path: &Path, backlog: i32) -> UnixListener {
    // Remove the socket file that an earlier server may have left behind.
    let _ = std::fs::remove_file(path);
    let descriptor = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&descriptor, &SocketAddrUnix::new(path).unwrap()).unwrap();
    rustix::net::listen(&descriptor, backlog).unwrap();
    let listener = UnixListener::from(descriptor);
    listener.set_nonblocking(true).unwrap();
    listener
}

fn accept_all(door: &Door, shared: &Arc<Shared>) {
    let mut serving = Vec::new();
    loop {
        // Read this flag before `accept`, so that a client that connected before the end is still served.
        let is_over = shared.is_over.load(Ordering::Acquire);
        match door.accept() {
            Ok(wire) => {
                let shared = Arc::clone(shared);
                let number = serving.len();
                serving.push(thread::spawn(move || {
                    let heard =
                        Serving { wire, shared: &shared, octets: Vec::new(), accepted: 0, in_message: false }.serve();
                    shared.heard.lock().unwrap().push((number, heard));
                }));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock && is_over => break,
            Err(_) => thread::sleep(Duration::from_millis(1)),
        }
    }
    serving.into_iter().for_each(|thread| thread.join().unwrap());
}

struct Serving<'s> {
    wire: Box<dyn Wire>,
    shared: &'s Shared,
    octets: Vec<u8>,
    accepted: usize,
    in_message: bool,
}

impl Serving<'_> {
    fn serve(mut self) -> Heard {
        let end = self.converse();
        Heard { octets: self.octets, end }
    }

    fn converse(&mut self) -> &'static str {
        let mut looked_at = 0;
        if let Some(end) = self.answer("banner", "") {
            return end;
        }
        loop {
            while let Some(at) = self.octets[looked_at..].iter().position(|&byte| byte == b'\n') {
                let line = String::from_utf8_lossy(&self.octets[looked_at..looked_at + at]).trim_end().to_owned();
                looked_at += at + 1;
                if self.in_message && line != "." {
                    continue;
                }
                let verb = if self.in_message { "." } else { line.split(' ').next().unwrap_or_default() };
                self.in_message = false;
                if let Some(end) = self.answer(verb, &line) {
                    return end;
                }
            }
            if let Some(end) = self.hear() {
                return end;
            }
        }
    }

    /// Reads once. Returns how the connection ended, if it did.
    fn hear(&mut self) -> Option<&'static str> {
        let mut room = vec![0; 256 * 1024];
        match self.wire.read(&mut room) {
            Ok(0) => Some("closed"),
            Ok(count) => {
                self.octets.extend_from_slice(&room[..count]);
                None
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Some("reset"),
            Err(error) => panic!("the recorder cannot read: {error}"),
        }
    }

    fn answer(&mut self, verb: &str, line: &str) -> Option<&'static str> {
        let nth = {
            let mut times = self.shared.times.lock().unwrap();
            let nth = times.entry(verb.to_owned()).or_default();
            *nth += 1;
            *nth
        };
        let act = self.shared.script.act(verb, nth);
        match act.unwrap_or_else(|| Act::Say(self.honest(verb, line))) {
            Act::Say(reply) => self.say(verb, &reply),
            Act::Close => return Some("hung up"),
            Act::Reset => {
                sockopt::set_socket_linger(&self.wire, Some(Duration::ZERO)).unwrap();
                return Some("cut");
            }
            Act::Repeat(reply) => while self.wire.write_all(&reply).is_ok() {},
            Act::Silent => {}
            Act::Stall(time) => {
                self.say(verb, &self.honest(verb, line));
                thread::sleep(time);
            }
            Act::Hold => {
                self.say(verb, &self.honest(verb, line));
                wait_until("to be told to go on", || (!self.shared.is_held.load(Ordering::Acquire)).then_some(()));
            }
        }
        None
    }

    fn honest(&self, verb: &str, line: &str) -> Vec<u8> {
        let lmtp = self.octets.starts_with(b"LHLO");
        let reply = match verb {
            "banner" => "220 peer.example ESMTP\r\n".to_owned(),
            "HELO" | "LHLO" => "250-peer.example\r\n250 HELP\r\n".to_owned(),
            "MAIL" => "250 2.1.0 Ok\r\n".to_owned(),
            "RCPT" => "250 2.1.5 Ok\r\n".to_owned(),
            "DATA" => "354 End data with <CR><LF>.<CR><LF>\r\n".to_owned(),
            "." => "250 2.0.0 Ok\r\n".repeat(if lmtp { self.accepted } else { 1 }),
            "RSET" => "250 2.0.0 Ok\r\n".to_owned(),
            "QUIT" => "221 2.0.0 Bye\r\n".to_owned(),
            _ => format!("500 5.5.2 not known: {line}\r\n"),
        };
        reply.into_bytes()
    }

    /// Sends a reply, and updates the transaction accordingly.
    fn say(&mut self, verb: &str, reply: &[u8]) {
        match verb {
            "MAIL" => self.accepted = 0,
            "RCPT" if reply.starts_with(b"2") => self.accepted += 1,
            "DATA" => self.in_message = reply.starts_with(b"354"),
            _ => {}
        }
        // Ignore the error: if the client is gone, the next read notices that.
        let _ = self.wire.write_all(reply);
    }
}

/// A port that is bound but does not listen, so connections to it are refused and nobody else can take it.
pub(crate) struct Deaf {
    pub(crate) port: u16,
    _held: [OwnedFd; 2],
}

impl Deaf {
    pub(crate) fn bind() -> Self {
        let bind = |address: SocketAddr| {
            let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
            let descriptor = rustix::net::socket(family, SocketType::STREAM, None).unwrap();
            rustix::net::bind(&descriptor, &address).map(|()| descriptor)
        };
        loop {
            let first = bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
            let port = SocketAddr::try_from(rustix::net::getsockname(&first).unwrap()).unwrap().port();
            if let Ok(second) = bind((Ipv6Addr::LOCALHOST, port).into()) {
                return Self { port, _held: [first, second] };
            }
        }
    }
}
