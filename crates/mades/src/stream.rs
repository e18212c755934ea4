//! Opens the stream below AMQP: a TCP connection, with TLS for an `amqps` URL. Errors name a remedy
//! if there is one, for example `--allow-public` for a public address.
use crate::broker::Broker;
use crate::error::{Error, REMEDIES, of_tls};
use mailrun_tls_verify::HandshakeFault;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

pub(crate) async fn open(broker: &Broker) -> Result<BrokerStream, Error> {
    let address = broker.url.address();
    let tls = broker
        .url
        .is_tls()
        .then(|| Ok::<_, Error>((broker.security.tls.config()?, broker.security.tls.name(broker.url.host())?)));
    let tls = tls.transpose()?;
    let tcp = broker.with_step_timeout("connecting", connect(broker)).await?;
    // Nagle's algorithm would hold back a single message until the peer's delayed ACK. This delay
    // of up to 40 ms would wrongly count as the peer's latency. Without Nagle's algorithm, small
    // writes could become small packets, but the driver gathers them.
    tcp.set_nodelay(true).map_err(|error| unreachable(&address, &error))?;
    let Some((config, name)) = tls else { return Ok(BrokerStream::Plain(tcp)) };
    let server = name.to_str().into_owned();
    let handshake = TlsConnector::from(config).connect(name, tcp);
    match tokio::time::timeout(broker.step_timeout, handshake).await {
        Ok(Ok(stream)) => Ok(BrokerStream::Tls(Box::new(stream))),
        Ok(Err(error)) => Err(of_server(&address, &server, &error)),
        Err(_) => Err(broker.timed_out("the TLS handshake")),
    }
}

async fn connect(broker: &Broker) -> Result<TcpStream, Error> {
    let host = broker.url.host();
    let address = broker.url.address();
    let addresses = tokio::net::lookup_host((host, broker.url.port())).await;
    let addresses: Vec<_> =
        addresses.map_err(|error| Error::NoAddress { host: host.to_owned(), why: error.to_string() })?.collect();
    if let Some(forbidden) = addresses.iter().find(|address| !(broker.is_address_allowed)(address.ip())) {
        let message = format!("{host} has the public address {}; add --allow-public to allow it", forbidden.ip());
        return Err(Error::Misuse(message));
    }
    match TcpStream::connect(addresses.as_slice()).await {
        Ok(stream) => Ok(stream),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Err(Error::Refused { address }),
        Err(error) => Err(unreachable(&address, &error)),
    }
}

fn unreachable(address: &str, error: &io::Error) -> Error {
    Error::Unreachable { address: address.to_owned(), why: error.to_string() }
}

fn closed_in_handshake(address: &str, error: &io::Error) -> Error {
    Error::PlainPeer {
        address: address.to_owned(),
        why: format!("it closed the connection during the TLS handshake: {error}"),
    }
}

fn of_server(address: &str, server: &str, error: &io::Error) -> Error {
    let complaint = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match complaint.and_then(|complaint| HandshakeFault::of(complaint, server)) {
        Some(HandshakeFault::NotTls) => {
            Error::PlainPeer { address: address.to_owned(), why: "what it says is not TLS".to_owned() }
        }
        Some(fault) => Error::Untrusted { address: address.to_owned(), why: fault.with_remedy(&REMEDIES) },
        None => of_tls(address, error).unwrap_or_else(|| closed_in_handshake(address, error)),
    }
}

#[derive(Debug)]
pub(crate) enum BrokerStream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl AsyncRead for BrokerStream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, into),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, into),
        }
    }
}

impl AsyncWrite for BrokerStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, octets: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, octets),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, octets),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Broker, Connection, Error};

    #[test]
    fn no_address_is_connected_to_that_may_not_be_reached() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let url = format!("amqp://localhost:{}", listener.local_addr().unwrap().port());
        let broker = Broker { is_address_allowed: |_| false, ..Broker::new(url.parse().unwrap(), "test") };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let error = runtime.block_on(Connection::open(&broker)).unwrap_err();
        assert!(matches!(&error, Error::Misuse(what) if what.contains("public address")), "{error}");
        assert!(listener.accept().is_err(), "nobody has come");
    }
}
