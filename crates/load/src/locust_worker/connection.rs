use anyhow::{Context, Result, bail};
use mailrun_locust::DealerConnection;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit of a write to the master. A master reads all the time, so a write that takes longer
/// has failed.
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time limit of a read from the master. It is short, because the thread sends reports and
/// heartbeats only between two reads.
const READ_TIMEOUT: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(super) struct MasterConnection {
    stream: TcpStream,
    dealer: DealerConnection,
}

impl MasterConnection {
    pub(super) fn open(master: &str, identity: &str) -> Result<Self> {
        let addresses = master.to_socket_addrs().with_context(|| format!("cannot look up {master}"))?;
        let mut failure = None;
        for address in addresses {
            match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    stream.set_read_timeout(Some(READ_TIMEOUT))?;
                    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
                    return Ok(Self { stream, dealer: DealerConnection::new(identity) });
                }
                Err(error) => failure = Some(error),
            }
        }
        match failure {
            Some(error) => Err(error.into()),
            None => bail!("{master} has no address"),
        }
    }

    pub(super) fn send(&mut self, message: &[u8]) {
        self.dealer.send(message);
    }

    pub(super) fn flush(&mut self) -> Result<()> {
        let mut bytes = Vec::new();
        self.dealer.transmit(&mut bytes);
        Ok(self.stream.write_all(&bytes)?)
    }

    /// Waits up to `READ_TIMEOUT` for bytes, and returns the messages that are now complete.
    pub(super) fn receive(&mut self) -> Result<Vec<Vec<u8>>> {
        let mut bytes = [0; 16_384];
        match self.stream.read(&mut bytes) {
            Ok(0) => bail!("it has closed the connection"),
            Ok(length) => self.dealer.receive(&bytes[..length])?,
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(std::iter::from_fn(|| self.dealer.next_message()).collect())
    }
}
