//! A connection to a broker: opened within a time limit, with its own socket, and an error that says what to do.
use crate::broker::Broker;
use crate::coalescing::{Coalescing, StreamStats};
use crate::error::{self, Error, OpenAttempt, REMEDIES, of_tls};
use crate::receiver::{ReceiverLink, ReceiverOptions};
use crate::sasl_external::{self, ExternalOutcome};
use crate::security::SaslMechanism;
use crate::sender::{SenderLink, SenderOptions};
use fe2o3_amqp::connection::{ConnectionHandle, Error as Engine, OpenError};
use fe2o3_amqp::sasl_profile::SaslProfile;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use trust::HandshakeFault;

/// An open connection. Dropped, it is closed without waiting for the broker's answer.
#[derive(Debug)]
pub struct Connection {
    handle: ConnectionHandle<()>,
    broker: Arc<Broker>,
    stats: StreamStats,
    links: u32,
}

impl Connection {
    /// Connects, begins TLS if the URL asks for it, authenticates, and opens the connection. To be called on a tokio
    /// runtime with IO and time.
    ///
    /// # Errors
    /// The reason why there is no connection; no error contains the URL's password.
    pub async fn open(broker: &Broker) -> Result<Self, Error> {
        let broker = Arc::new(broker.clone());
        let mechanism = broker.mechanism();
        let profile = broker.profile(mechanism)?;
        let mut stream = open_stream(&broker).await?;
        if mechanism == SaslMechanism::External {
            authenticate_external(&broker, &mut stream).await?;
        }
        let (stream, stats) = Coalescing::new(stream);
        let opening = tokio::spawn(open(Arc::clone(&broker), profile, stream));
        let abort = opening.abort_handle();
        let Ok(opened) = tokio::time::timeout(broker.step_timeout, opening).await else {
            abort.abort();
            let strange = error::of_first_bytes(&broker.url.address(), &stats.first_bytes());
            return Err(strange.unwrap_or_else(|| broker.timed_out("the AMQP handshake")));
        };
        let attempt = OpenAttempt {
            address: &broker.url.address(),
            user: broker.url.user().unwrap_or("an anonymous client"),
            mechanism: mechanism.name(),
            first_bytes: &stats.first_bytes(),
        };
        let handle = opened
            .map_err(|_| Error::PeerMisbehaved { why: "its AMQP handshake is invalid".to_owned() })?
            .map_err(|error| error::of_open(&attempt, &error))?;
        Ok(Self { handle, broker, stats, links: 0 })
    }

    /// Counters of the connection's traffic.
    pub fn stats(&self) -> &StreamStats {
        &self.stats
    }

    /// Attaches to a queue that messages are to go to.
    ///
    /// # Errors
    /// If there is no such queue, if we may not, if the broker does not answer in time.
    pub async fn attach_sender(&mut self, plan: &SenderOptions) -> Result<SenderLink, Error> {
        let name = self.link_name(&plan.queue);
        let broker = Arc::clone(&self.broker);
        let stats = self.stats.clone();
        let attach = SenderLink::attach(&mut self.handle, plan, name, (Arc::clone(&broker), stats));
        with_step_timeout(&broker, "attaching to the queue", attach).await
    }

    /// Attaches to a queue to receive from it.
    ///
    /// # Errors
    /// As for a sender link, and if another consumer holds the queue exclusively.
    pub async fn attach_receiver(&mut self, plan: &ReceiverOptions) -> Result<ReceiverLink, Error> {
        let name = self.link_name(&plan.queue);
        let broker = Arc::clone(&self.broker);
        let stats = self.stats.clone();
        let attach = ReceiverLink::attach(&mut self.handle, plan, name, (Arc::clone(&broker), stats));
        with_step_timeout(&broker, "attaching to the queue", attach).await
    }

    /// Waits until the connection has ended, and returns the reason.
    pub async fn closed(&mut self) -> Error {
        match self.handle.on_close().await {
            Ok(()) => Error::Closed { why: "no reason was given".to_owned() },
            Err(error) => self.stats.peer_error_or(error::of_connection(&error)),
        }
    }

    /// Reports whether the connection has ended.
    pub fn is_closed(&self) -> bool {
        self.handle.is_closed()
    }

    /// Sends a close and waits for the answer, for 5 s at most, and for no longer than any step may take.
    ///
    /// # Errors
    /// If the connection was lost before, or is not closed in time.
    pub async fn close(mut self) -> Result<(), Error> {
        let was_lost = self.is_closed();
        let limit = self.broker.close_timeout();
        match tokio::time::timeout(limit, self.handle.close()).await {
            // Frames that were under way when we sent our close, such as the answer to the end of a session, are out
            // of place for fe2o3-amqp 0.18.4. A peer that hangs up without a close of its own is another error.
            Ok(Err(Engine::IllegalState)) if !was_lost => Ok(()),
            Ok(Err(Engine::IllegalState)) => {
                Err(self.stats.peer_error_or(Error::Lost { why: "it had already ended".to_owned() }))
            }
            Ok(closed) => closed.map_err(|error| self.stats.peer_error_or(error::of_connection(&error))),
            Err(_) => Err(Error::TimedOut {
                address: self.broker.url.address(),
                what: "closing the connection",
                after: limit,
            }),
        }
    }

    /// A name that no other link of the container has.
    fn link_name(&mut self, queue: &str) -> String {
        self.links += 1;
        format!("{}:{queue}:{}", self.broker.container, self.links)
    }
}

async fn with_step_timeout<T>(
    broker: &Broker,
    what: &'static str,
    step: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    tokio::time::timeout(broker.step_timeout, step).await.unwrap_or_else(|_| Err(broker.timed_out(what)))
}

/// Opens a connection in a separate task. The task parses bytes of an unknown peer; if fe2o3-amqp panics on them, only
/// the task ends.
async fn open(
    broker: Arc<Broker>,
    profile: Option<SaslProfile>,
    stream: Coalescing<BrokerStream>,
) -> Result<ConnectionHandle<()>, OpenError> {
    let idle_ms = u32::try_from(broker.idle_timeout.as_millis()).unwrap_or(u32::MAX);
    let mut builder = fe2o3_amqp::Connection::builder()
        .container_id(broker.container.clone())
        .hostname(broker.url.host())
        .sasl_hostname(broker.url.host())
        .max_frame_size(broker.max_frame_size)
        .idle_time_out(idle_ms);
    if let Some(profile) = profile {
        builder = builder.sasl_profile(profile);
    }
    builder.open_with_stream(stream).await
}

async fn authenticate_external(broker: &Broker, stream: &mut BrokerStream) -> Result<(), Error> {
    let address = broker.url.address();
    let negotiated =
        tokio::time::timeout(broker.step_timeout, sasl_external::negotiate(stream, broker.url.host())).await;
    match negotiated.map_err(|_| broker.timed_out("authentication"))? {
        Ok(ExternalOutcome::Authenticated) => Ok(()),
        Ok(ExternalOutcome::NotOffered) => {
            Err(Error::NoSuchMechanism { address, mechanism: SaslMechanism::External.name() })
        }
        Ok(ExternalOutcome::Refused) => {
            Err(Error::WrongCredentials { address, who: "the owner of the client certificate".to_owned() })
        }
        Err(error) => Err(of_tls(&address, &error).unwrap_or_else(|| error::of_handshake_io(&address, &error))),
    }
}

/// Connects, and begins TLS if the URL asks for it.
async fn open_stream(broker: &Broker) -> Result<BrokerStream, Error> {
    let address = broker.url.address();
    let tls = broker
        .url
        .is_tls()
        .then(|| Ok::<_, Error>((broker.security.tls.config()?, broker.security.tls.name(broker.url.host())?)));
    let tls = tls.transpose()?;
    let tcp = with_step_timeout(broker, "connecting", connect(broker)).await?;
    // Nagle's algorithm would hold a lone message back for the other side's delayed ACK: 40 ms that belong to no
    // party's latency. Small writes are gathered before they reach the socket.
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
    let found = tokio::net::lookup_host((host, broker.url.port())).await;
    let found: Vec<_> =
        found.map_err(|error| Error::NoAddress { host: host.to_owned(), why: error.to_string() })?.collect();
    if let Some(forbidden) = found.iter().find(|found| !(broker.is_address_allowed)(found.ip())) {
        let what = format!("{host} has the public address {}; add --allow-public to allow it", forbidden.ip());
        return Err(Error::Misuse(what));
    }
    match TcpStream::connect(found.as_slice()).await {
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

/// Explains why there is no TLS with that server.
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

/// The stream under AMQP.
#[derive(Debug)]
enum BrokerStream {
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
    use super::*;

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
