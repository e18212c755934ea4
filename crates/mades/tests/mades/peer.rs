//! A peer in the test's own process: the acceptor of fe2o3-amqp. The address of a link says what the peer does with the
//! link: for example, the peer rejects all messages to the address `reject`.
use fe2o3_amqp::acceptor::{
    ConnectionAcceptor, LinkAcceptor, LinkEndpoint, SaslAcceptor, SaslAnonymousMechanism, SessionAcceptor,
};
use fe2o3_amqp::link::{Receiver, Sender};
use fe2o3_amqp_types::definitions::{self, AmqpError, ErrorCondition};
use fe2o3_amqp_types::messaging::{Body, Message, Modified};
use mailrun_mades::{Broker, Connection};
use mailrun_mades_simulator::embedded::{self, ListenOptions, ListenerAuth, MemoryQueues, QueueLimits};
use serde_amqp::Value;
use std::fmt::Debug;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) fn limited<F: Future<Output = ()>>(test: F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(TEST_TIMEOUT, test).await.expect("the test hangs") });
}

pub(crate) async fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// Returns the settings for a broker at this port of the local host, with a short time limit for each step.
pub(crate) fn broker(port: u16) -> Broker {
    let url = format!("amqp://127.0.0.1:{port}").parse().unwrap();
    Broker { step_timeout: Duration::from_secs(5), ..Broker::new(url, "test") }
}

/// Starts the simulator's embedded listener. Returns its port and its queues.
pub(crate) async fn our_own(limits: QueueLimits) -> (u16, MemoryQueues) {
    let (listener, port) = listener().await;
    let queues = MemoryQueues::new(limits);
    tokio::spawn(embedded::serve(listener, queues.clone(), ListenOptions::new(ListenerAuth::Any), Default::default()));
    (port, queues)
}

/// Connects to a peer that accepts everybody.
pub(crate) async fn connected() -> Connection {
    Connection::open(&broker(start().await)).await.unwrap()
}

/// Starts a peer that accepts everybody. Returns the port of the peer.
pub(crate) async fn start() -> u16 {
    let (listener, port) = listener().await;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, SaslAnonymousMechanism::new()));
        }
    });
    port
}

/// Starts a peer that authenticates clients with `sasl`. Returns the port of the peer.
pub(crate) async fn start_with<S>(sasl: S) -> u16
where
    S: SaslAcceptor + Send + Sync + 'static,
{
    let (listener, port) = listener().await;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve_plain(stream, sasl.clone()));
        }
    });
    port
}

async fn serve_plain<S: SaslAcceptor + Send + Sync + 'static>(stream: TcpStream, sasl: S) {
    serve(stream, sasl).await;
}

pub(crate) async fn serve<Io, S>(stream: Io, sasl: S)
where
    Io: AsyncRead + AsyncWrite + Debug + Send + Unpin + 'static,
    S: SaslAcceptor + Send + Sync + 'static,
{
    let acceptor = ConnectionAcceptor::builder().container_id("peer").sasl_acceptor(sasl).build();
    let Ok(mut connection) = acceptor.accept(stream).await else { return };
    let (hang_up, mut hung_up) = tokio::sync::mpsc::channel::<()>(1);
    let sessions = SessionAcceptor::new();
    loop {
        tokio::select! {
            session = sessions.accept(&mut connection) => {
                let Ok(mut session) = session else { return };
                let hang_up = hang_up.clone();
                tokio::spawn(async move {
                    while let Ok(link) = LinkAcceptor::new().accept(&mut session).await {
                        match link {
                            LinkEndpoint::Receiver(link) => receive(link, &hang_up).await,
                            LinkEndpoint::Sender(link) => send(link).await,
                        }
                    }
                });
            }
            _ = hung_up.recv() => {
                let error = definitions::Error::new(
                    definitions::ConnectionError::ConnectionForced, "going down".to_owned(), None);
                let _ = connection.close_with_error(error).await;
                return;
            }
        }
    }
}

/// Receives messages, and settles each of them as the address of the link says, for example `accept`.
async fn receive(mut link: Receiver, hang_up: &tokio::sync::mpsc::Sender<()>) {
    let address = link.target().as_ref().and_then(|target| target.address.clone()).unwrap_or_default();
    if let Some(condition) = address.strip_prefix("detach:") {
        let _ = link.close_with_error(error(condition)).await;
        return;
    }
    while let Ok(delivery) = link.recv::<Body<Value>>().await {
        let done = match address.as_str() {
            "accept" => link.accept(&delivery).await,
            "reject" => link.reject(&delivery, error("mades:refused")).await,
            "release" => link.release(&delivery).await,
            "modify" => {
                let modified =
                    Modified { delivery_failed: Some(true), undeliverable_here: None, message_annotations: None };
                link.modify(&delivery, modified).await
            }
            "detach-at-message" => {
                let _ = link.close_with_error(error("amqp:link:stolen")).await;
                return;
            }
            "hang-up" => {
                let _ = hang_up.send(()).await;
                // Keep the link until the connection has ended, because dropping the link would detach it.
                let _ = link.recv::<Body<Value>>().await;
                return;
            }
            // The only other address is "never". The peer never settles messages that are sent to it.
            _ => Ok(()),
        };
        if done.is_err() {
            return;
        }
    }
}

/// Sends ten messages, and then a message with the counts of their outcomes.
async fn send(mut link: Sender) {
    let mut verdicts = Vec::new();
    for number in 0..10_u32 {
        match link.send_batchable(Message::builder().value(Value::Uint(number)).build()).await {
            Ok(verdict) => verdicts.push(verdict),
            Err(_) => return,
        }
    }
    let mut counts = [0_u32; 4];
    for verdict in verdicts {
        use fe2o3_amqp_types::messaging::Outcome::{Accepted, Modified, Rejected, Released};
        match verdict.await {
            Ok(Accepted(_)) => counts[0] += 1,
            Ok(Rejected(_)) => counts[1] += 1,
            Ok(Released(_)) => counts[2] += 1,
            Ok(Modified(_)) => counts[3] += 1,
            Err(_) => return,
        }
    }
    let counts = format!("{counts:?}");
    if let Ok(verdict) = link.send_batchable(Message::builder().value(Value::String(counts)).build()).await {
        let _ = verdict.await;
    }
    let _ = link.on_detach().await;
}

fn error(condition: &str) -> definitions::Error {
    let condition = match condition {
        "amqp:not-found" => AmqpError::NotFound.into(),
        "amqp:resource-locked" => AmqpError::ResourceLocked.into(),
        "amqp:unauthorized-access" => AmqpError::UnauthorizedAccess.into(),
        "amqp:link:stolen" => definitions::LinkError::Stolen.into(),
        other => ErrorCondition::Custom(other.into()),
    };
    definitions::Error::new(condition, "says the peer".to_owned(), None)
}
