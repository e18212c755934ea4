//! A relay that is to be started, and the sign that it takes mail.
use crate::parties::PartyCommand;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A connection on this host stands at once or not at all; a greeting may take a process to be started first.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);

/// A relay that is to be started.
#[derive(Debug)]
pub(crate) struct RelayLaunch {
    pub(crate) command: PartyCommand,
    pub(crate) ready_signal: ReadySignal,
    /// Limit of the time until it is ready.
    pub(crate) ready_within: Duration,
}

/// The sign that a party takes mail.
#[derive(Debug)]
pub(crate) enum ReadySignal {
    /// It reports it on its standard output (`live::Event::Listening`).
    Reported,
    /// A connection to that address is greeted; or it reports that it listens.
    Greeting(SocketAddr),
}

impl ReadySignal {
    /// Its address, if a greeting of 220 comes from there.
    pub(crate) fn greeted_address(&self) -> Option<String> {
        let Self::Greeting(address) = self else { return None };
        let mut stream = TcpStream::connect(address).ok()?;
        stream.set_read_timeout(Some(GREETING_TIMEOUT)).ok()?;
        let mut greeting = [0; 512];
        let length = stream.read(&mut greeting).ok()?;
        stream.write_all(b"QUIT\r\n").ok()?;
        // Read to its end: a server that is hung up on might complain.
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
                // Until the client has sent QUIT or hung up.
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
