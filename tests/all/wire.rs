//! A client that can send any bytes, and reads replies.
use crate::dialog::take_reply;
use crate::party::LIMIT;
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

pub(crate) struct Wire {
    stream: TcpStream,
    unread: Vec<u8>,
    was_reset: bool,
}

impl Wire {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
        Self { stream, unread: Vec::new(), was_reset: false }
    }

    /// Connects to `address` from the local address `from`.
    pub(crate) fn connect_from(from: [u8; 4], address: SocketAddr) -> Self {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
        rustix::net::bind(&socket, &SocketAddr::from((from, 0))).unwrap();
        rustix::net::connect(&socket, &address).unwrap();
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
        Self { stream, unread: Vec::new(), was_reset: false }
    }

    pub(crate) fn greeted(address: SocketAddr) -> Self {
        let mut wire = Self::connect(address);
        let greeting = wire.reply().expect("a greeting");
        assert!(greeting.starts_with("220 "), "{greeting}");
        wire
    }

    /// Sends to a peer that must accept the bytes. Panics if the connection is broken.
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_send(bytes).unwrap();
    }

    /// Sends to a peer that may have closed the connection.
    pub(crate) fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream.write_all(bytes.as_ref())
    }

    pub(crate) fn say(&mut self, line: &str) -> String {
        self.send([line, "\r\n"].concat());
        self.reply().unwrap_or_else(|| panic!("{line}: the connection was closed"))
    }

    /// The next reply with all its lines, or `None` if the peer has closed.
    pub(crate) fn reply(&mut self) -> Option<String> {
        loop {
            if let Some(reply) = take_reply(&mut self.unread) {
                return Some(String::from_utf8_lossy(&reply).into_owned());
            }
            if !self.read() {
                return None;
            }
        }
    }

    /// All replies until the peer closes.
    pub(crate) fn replies(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.reply()).collect()
    }

    /// Returns false at the end of the connection, including a reset.
    fn read(&mut self) -> bool {
        let mut block = [0; 16 * 1024];
        match self.stream.read(&mut block) {
            Ok(count) => {
                self.unread.extend_from_slice(&block[..count]);
                count > 0
            }
            Err(error) if [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe].contains(&error.kind()) => {
                self.was_reset = true;
                false
            }
            Err(error) => panic!("no reply within {LIMIT:?}: {error}"),
        }
    }

    /// Reports whether the connection ended with RST.
    pub(crate) fn was_reset(&self) -> bool {
        self.was_reset
    }

    /// Reports whether the peer sends something or closes within this time.
    pub(crate) fn hears_within(&mut self, time: Duration) -> bool {
        self.stream.set_read_timeout(Some(time)).unwrap();
        let heard = self.stream.peek(&mut [0]).is_ok();
        self.stream.set_read_timeout(Some(LIMIT)).unwrap();
        heard
    }

    /// Reports whether the peer accepts all bytes within this time.
    pub(crate) fn takes_within(&mut self, bytes: impl AsRef<[u8]>, time: Duration) -> bool {
        self.stream.set_write_timeout(Some(time)).unwrap();
        let taken = self.stream.write_all(bytes.as_ref()).is_ok();
        self.stream.set_write_timeout(Some(LIMIT)).unwrap();
        taken
    }

    /// Waits for the end of the connection. The peer must send nothing before. Returns true if the connection ended
    /// with RST.
    pub(crate) fn is_cut(&mut self) -> bool {
        match self.stream.read(&mut [0; 1024]) {
            Ok(0) => false,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => true,
            other => panic!("no end within {LIMIT:?}: {other:?}"),
        }
    }

    /// Ends the output, and goes on reading.
    pub(crate) fn half_close(&self) {
        // Ignore the error, because the peer may have closed the connection already.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    pub(crate) fn reset(self) {
        set_socket_linger(&self.stream, Some(Duration::ZERO)).unwrap();
    }
}
