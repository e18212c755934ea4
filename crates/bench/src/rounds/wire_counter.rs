//! Counts the bytes that a contestant and its server exchange. A proxy forwards each connection, and counts all bytes
//! that either side sends over TCP.
//!
//! ```text
//! contestant ── sent ─→ WireCounter ─→ server        bytes are counted when they are read from the sender
//!            ←─ received ─┘       ←───
//! ```
use anyhow::{Context, Result, ensure};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// If one side of a connection sends or takes nothing for this long, the connection has failed and
/// the counts are incomplete.
const QUIET_TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 60 });
const READ_BYTES: usize = 64 << 10;

/// Bytes of all connections of a run, without TCP and IP headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WireBytes {
    /// Bytes from the contestant to the server.
    pub(super) sent: u64,
    /// Bytes from the server to the contestant.
    pub(super) received: u64,
}

#[derive(Debug, Default)]
struct WireCounts {
    sent: AtomicU64,
    received: AtomicU64,
    is_over: AtomicBool,
    /// Set if a connection could not be made or ended with an error, so that the counts are incomplete.
    has_failed: AtomicBool,
}

/// Proxy that counts the bytes between a contestant and its server during one run.
#[derive(Debug)]
pub(super) struct WireCounter {
    address: SocketAddr,
    counts: Arc<WireCounts>,
    acceptor: Option<JoinHandle<()>>,
}

impl WireCounter {
    /// Listens on a free port and forwards connections to `server`.
    ///
    /// # Errors
    /// Returns an error if no port is free or no thread can be started.
    pub(super) fn start(server: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen on 127.0.0.1")?;
        let address = listener.local_addr().context("cannot listen on 127.0.0.1")?;
        let counts = Arc::new(WireCounts::default());
        let shared = Arc::clone(&counts);
        let acceptor = std::thread::Builder::new()
            .name("wire counter".to_owned())
            .spawn(move || accept(&listener, server, &shared))
            .context("cannot start a thread")?;
        Ok(Self { address, counts, acceptor: Some(acceptor) })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until all connections have ended, and returns how many bytes each side has sent in the run.
    ///
    /// # Errors
    /// Returns an error if a connection failed, because the counts are then incomplete.
    pub(super) fn finish(mut self) -> Result<WireBytes> {
        self.stop();
        ensure!(!self.counts.has_failed.load(Ordering::Relaxed), "a connection failed");
        Ok(WireBytes {
            sent: self.counts.sent.load(Ordering::Relaxed),
            received: self.counts.received.load(Ordering::Relaxed),
        })
    }

    fn stop(&mut self) {
        let Some(acceptor) = self.acceptor.take() else { return };
        self.counts.is_over.store(true, Ordering::Release);
        // Connect to wake the acceptor thread, because it checks `is_over` only when a client connects.
        let _ = TcpStream::connect(self.address);
        // Ignore a panic of the acceptor thread, because the run has already ended.
        let _ = acceptor.join();
    }
}

impl Drop for WireCounter {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Accepts connections until the run is over, and then waits until all connections have ended.
fn accept(listener: &TcpListener, server: SocketAddr, counts: &WireCounts) {
    std::thread::scope(|scope| {
        for client in listener.incoming() {
            if counts.is_over.load(Ordering::Acquire) {
                return;
            }
            scope.spawn(move || {
                if client.and_then(|client| serve(&client, server, counts)).is_err() {
                    counts.has_failed.store(true, Ordering::Relaxed);
                }
            });
        }
    });
}

fn serve(client: &TcpStream, server: SocketAddr, counts: &WireCounts) -> std::io::Result<()> {
    let upstream = TcpStream::connect_timeout(&server, QUIET_TIMEOUT)?;
    for stream in [client, &upstream] {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(QUIET_TIMEOUT))?;
        stream.set_write_timeout(Some(QUIET_TIMEOUT))?;
    }
    std::thread::scope(|scope| {
        let receiving = scope.spawn(|| copy(&upstream, client, &counts.received));
        let sending = copy(client, &upstream, &counts.sent);
        let receiving = receiving.join().unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into()));
        sending.and(receiving)
    })
}

/// Copies all bytes from `from` to `to` and counts them. Bytes that `to` no longer accepts are
/// counted as well, because `from` did send them.
fn copy(mut from: &TcpStream, mut to: &TcpStream, count: &AtomicU64) -> std::io::Result<()> {
    let mut buffer = vec![0; READ_BYTES];
    let mut is_taken = true;
    loop {
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => {
                count.fetch_add(length as u64, Ordering::Relaxed);
                is_taken = is_taken && to.write_all(&buffer[..length]).is_ok();
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            // A reset means that the sender closed the connection before it had read everything. So the sender sends no
            // more bytes.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
            Err(error) => return Err(error),
        }
    }
    // Ignore errors, because the receiver may already have closed its connection.
    let _ = to.shutdown(Shutdown::Write);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(greeting: &'static [u8]) -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let _ = stream.write_all(greeting).and_then(|()| stream.read_to_end(&mut Vec::new()));
            }
        });
        address
    }

    #[test]
    fn both_directions_of_all_connections_are_counted() {
        let counter = WireCounter::start(server(b"220 hello\r\n")).unwrap();
        for length in [0, 5, 200_000] {
            let mut client = TcpStream::connect(counter.address()).unwrap();
            client.write_all(&vec![b'x'; length]).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).unwrap();
            assert_eq!(answer, b"220 hello\r\n");
        }
        assert_eq!(counter.finish().unwrap(), WireBytes { sent: 200_005, received: 33 });
    }

    #[test]
    fn a_server_that_stops_reading_does_not_hold_up_the_end() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let counter = WireCounter::start(listener.local_addr().unwrap()).unwrap();
        let mut client = TcpStream::connect(counter.address()).unwrap();
        client.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
        let silent = listener.accept().unwrap();
        assert!(client.write_all(&vec![b'x'; 64 << 20]).is_err());
        drop(client);
        assert!(counter.finish().is_err());
        drop(silent);
    }

    #[test]
    fn a_server_that_is_away_is_an_error() {
        let away = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
        let counter = WireCounter::start(away).unwrap();
        let mut client = TcpStream::connect(counter.address()).unwrap();
        let _ = client.read(&mut [0; 1]);
        assert!(counter.finish().is_err());
    }
}
