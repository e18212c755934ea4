//! Writes the commands that the user selected with `-s` to the system log, as syslog(3) does.
use crate::stderr::printable;
use jiff::Zoned;
use jiff::tz::TimeZone;
use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

/// Priority of all lines in the log: facility LOG_MAIL and severity LOG_INFO.
const PRIORITY: u8 = (2 << 3) | 6;
const SOCKET_PATH: &str = "/dev/log";
const MAX_ARGUMENT_BYTES: usize = 100;

/// Connection to the system log. It is opened when the first line is written, after the switch to the root directory of
/// `-R`. As in Postfix's smtp-sink, that directory must therefore contain the socket `dev/log`.
#[derive(Debug)]
pub(super) struct Syslog {
    name: String,
    zone: TimeZone,
    socket: RefCell<Option<UnixDatagram>>,
}

impl Syslog {
    /// Creates the log without connecting. Each line of the log contains the last component of the path `program`.
    pub(super) fn new(program: &str, zone: TimeZone) -> Self {
        let name = Path::new(program).file_name().and_then(OsStr::to_str).unwrap_or(program);
        Self { name: name.to_owned(), zone, socket: RefCell::default() }
    }

    /// Logs a client's command and its arguments. As with syslog(3), the line is lost if no system logger listens.
    pub(super) fn log(&self, word: &[u8], rest: &[u8]) {
        let now = Zoned::new(jiff::Timestamp::now(), self.zone.clone());
        let line = line(&self.name, &now.strftime("%b %e %H:%M:%S").to_string(), word, rest);
        let mut socket = self.socket.borrow_mut();
        if socket.as_ref().is_some_and(|socket| socket.send(&line).is_ok()) {
            return;
        }
        *socket = open();
        if let Some(socket) = &*socket {
            // Ignore the error, because another attempt is pointless if even a new socket fails.
            let _ = socket.send(&line);
        }
    }
}

fn open() -> Option<UnixDatagram> {
    let socket = UnixDatagram::unbound().ok()?;
    socket.set_nonblocking(true).ok()?;
    socket.connect(SOCKET_PATH).ok()?;
    Some(socket)
}

fn line(name: &str, date: &str, word: &[u8], rest: &[u8]) -> Vec<u8> {
    let rest = printable(&rest[..rest.len().min(MAX_ARGUMENT_BYTES)]);
    let start = format!("<{PRIORITY}>{date} {name}[{}]: ", std::process::id());
    [start.as_bytes(), word, b" ", rest.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_cut_and_made_printable() {
        let start = format!("<22>Nov  1 00:00:00 x[{}]: ", std::process::id());
        let long = [b"a\t".as_slice(), &[b'b'; 200]].concat();
        let logged = line("x", "Nov  1 00:00:00", b"noop", &long);
        assert_eq!(String::from_utf8(logged).unwrap(), format!("{start}noop a?{}", "b".repeat(98)));
        assert_eq!(Syslog::new("/usr/sbin/smtp-sink", TimeZone::UTC).name, "smtp-sink");
    }
}
