//! Defines how a relay is started, and how the bench notices that the relay accepts mail.
use crate::parties::PartyCommand;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Time limit for the greeting that follows a connection. Some servers first start a process that serves the
/// connection.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct RelayLaunch {
    pub(crate) command: PartyCommand,
    pub(crate) ready_signal: ReadySignal,
    /// If the relay is not ready after this time, its start has failed.
    pub(crate) ready_within: Duration,
}

#[derive(Debug)]
pub(crate) enum ReadySignal {
    /// The process reports on its standard output that it listens (`LiveEvent::Listening`).
    Reported,
    /// The server counts as ready when it greets a client that connects to this address. If the server is a mailrun
    /// process, its own report that it listens counts as well.
    Greeting(SocketAddr),
}

impl ReadySignal {
    /// Returns the server's address if the server greets a test connection with 220.
    pub(crate) fn greeted_address(&self) -> Option<String> {
        let Self::Greeting(address) = self else { return None };
        let mut stream = TcpStream::connect(address).ok()?;
        stream.set_read_timeout(Some(GREETING_TIMEOUT)).ok()?;
        let mut greeting = [0; 512];
        let length = stream.read(&mut greeting).ok()?;
        stream.write_all(b"QUIT\r\n").ok()?;
        // Read the reply to QUIT, because a server might log a complaint about a client that hangs up first.
        let _ = stream.read(&mut [0; 512]);
        greeting[..length].starts_with(b"220").then(|| address.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn only_a_greeting_is_an_answer() {
        for (greeting, expected) in [("220 mx\r\n", true), ("554 no\r\n", false), ("", false)] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let server = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                stream.write_all(greeting.as_bytes()).unwrap();
                // Like a real server, read until the client has sent QUIT or has hung up.
                let _ = stream.shutdown(std::net::Shutdown::Write).and_then(|()| stream.read(&mut [0; 64]));
            });
            assert_eq!(
                ReadySignal::Greeting(address).greeted_address(),
                expected.then(|| address.to_string()),
                "{greeting:?}"
            );
            server.join().unwrap();
            assert_eq!(ReadySignal::Greeting(address).greeted_address(), None, "nobody listens now");
        }
        assert_eq!(ReadySignal::Reported.greeted_address(), None);
    }
}
