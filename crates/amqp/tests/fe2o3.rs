//! Tests of the client against an independent peer: the acceptor of fe2o3-amqp, over a stream in
//! memory.
#![allow(clippy::unwrap_used, reason = "a test may")]
use bytes::{Buf, Bytes, BytesMut};
use fe2o3_amqp::acceptor::scram::SingleScramCredential;
use fe2o3_amqp::acceptor::{
    ConnectionAcceptor, LinkAcceptor, LinkEndpoint, SaslAcceptor, SaslAnonymousMechanism, SaslPlainMechanism,
    SessionAcceptor,
};
use fe2o3_amqp::auth::scram::{ScramAuthenticator, ScramVersion};
use fe2o3_amqp::link::{Receiver, Sender};
use fe2o3_amqp_types::definitions::{self, AmqpError};
use fe2o3_amqp_types::messaging::{Body, Message, Outcome};
use mailrun_amqp::{
    AmqpConnection, ClientLogin, ConnectionError, ConnectionEvent, ConnectionOptions, DeliveryOutcome, LinkId,
    LinkRequest, LinkRole, LoginError, Password, ScramHash,
};
use serde_amqp::Value;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

/// A test that takes this long fails, because one side probably waits for the other forever.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);

fn limited<F: Future<Output = ()>>(test: F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(TEST_TIMEOUT, test).await.expect("the test hangs") });
}

struct Client {
    connection: AmqpConnection<u32>,
    stream: DuplexStream,
    input: BytesMut,
}

impl Client {
    fn new(login: ClientLogin, stream: DuplexStream) -> Self {
        let options = ConnectionOptions {
            container: "client".to_owned(),
            hostname: Some("localhost".to_owned()),
            max_frame_size: 4096,
            idle_timeout_ms: 60_000,
            max_message_bytes: 10 << 20,
        };
        Self { connection: AmqpConnection::client(login, options), stream, input: BytesMut::new() }
    }

    /// Writes the connection's output to the stream, and reads input from it, until the connection reports an event.
    async fn event(&mut self) -> Result<ConnectionEvent<u32>, ConnectionError> {
        loop {
            if let Some(event) = self.connection.next_event(&mut self.input)? {
                return Ok(event);
            }
            self.connection.write_dispositions();
            while self.connection.output().has_remaining() {
                self.stream.write_buf(self.connection.output()).await.unwrap();
            }
            assert!(self.stream.read_buf(&mut self.input).await.unwrap() > 0, "the peer hangs up");
        }
    }

    async fn attached(&mut self, role: LinkRole) -> LinkId {
        assert_eq!(self.event().await.unwrap(), ConnectionEvent::Opened);
        let session = self.connection.begin_session().unwrap();
        let request = LinkRequest {
            name: "link",
            role,
            address: "q",
            capabilities: &["queue", "durable"],
            settled: false,
            max_message_bytes: 1 << 20,
        };
        let link = self.connection.attach_link(session, &request).unwrap();
        loop {
            if let ConnectionEvent::Attached { link: attached, .. } = self.event().await.unwrap() {
                assert_eq!(attached, link);
                return link;
            }
        }
    }

    async fn closed(mut self, link: LinkId) {
        self.connection.detach_link(link);
        while !matches!(self.event().await.unwrap(), ConnectionEvent::Detached { .. }) {}
        self.connection.close(None);
        while !matches!(self.event().await.unwrap(), ConnectionEvent::Closed { error: None }) {}
        assert!(self.connection.is_closed());
    }
}

/// Starts a peer that checks logins with `sasl` and accepts one link, over which it then receives or sends messages.
/// Returns the client's end of the stream.
fn peer<S: SaslAcceptor + Send + Sync + 'static>(sasl: S) -> DuplexStream {
    let (ours, theirs) = duplex(64 << 10);
    tokio::spawn(async move {
        let acceptor = ConnectionAcceptor::builder().container_id("peer").sasl_acceptor(sasl).build();
        let Ok(mut connection) = acceptor.accept(theirs).await else { return };
        let Ok(mut session) = SessionAcceptor::new().accept(&mut connection).await else { return };
        match LinkAcceptor::new().accept(&mut session).await {
            Ok(LinkEndpoint::Receiver(link)) => settle_each(link).await,
            Ok(LinkEndpoint::Sender(link)) => send(link).await,
            Err(_) => return,
        }
        let _ = session.on_end().await;
        let _ = connection.on_close().await;
    });
    ours
}

/// Receives messages: accepts the first, rejects the second, releases the third, accepts the fourth, and so on.
async fn settle_each(mut link: Receiver) {
    let mut number = 0;
    while let Ok(delivery) = link.recv::<Body<Value>>().await {
        let settled = match number % 3 {
            0 => link.accept(&delivery).await,
            1 => {
                let error = definitions::Error::new(AmqpError::NotAllowed, "says the peer".to_owned(), None);
                link.reject(&delivery, error).await
            }
            _ => link.release(&delivery).await,
        };
        settled.unwrap();
        number += 1;
    }
    let _ = link.close().await;
}

/// Sends 20 messages, the last of which needs many frames. Then sends a message that contains the number of messages
/// that the client accepted.
async fn send(mut link: Sender) {
    let mut accepted = 0_u32;
    for number in 0..20_u32 {
        let text = "x".repeat(if number == 19 { 100_000 } else { number as usize });
        let outcome = link.send(Message::builder().value(Value::String(text)).build()).await.unwrap();
        accepted += u32::from(matches!(outcome, Outcome::Accepted(_)));
    }
    let _ = link.send(Message::builder().value(Value::Uint(accepted)).build()).await;
    let _ = link.on_detach().await;
    let _ = link.close().await;
}

#[test]
fn what_a_client_sends_is_settled_one_way_or_the_other() {
    limited(async {
        let mut client = Client::new(ClientLogin::Anonymous, peer(SaslAnonymousMechanism::new()));
        let link = client.attached(LinkRole::Sender).await;
        let mut settled = Vec::new();
        let mut sent = 0;
        while settled.len() < 9 {
            while sent < 9 && client.connection.may_send(link) {
                // The third message is longer than a frame that the peer accepts, and longer than the stream's buffer.
                let length = if sent == 2 { 1_500_000_u32 } else { 10 };
                let section = [&[0, 0x53, 0x75, 0xb0][..], &length.to_be_bytes()].concat();
                client.connection.send_parts(link, &section, Bytes::from(vec![7; length as usize]), sent);
                sent += 1;
            }
            if let ConnectionEvent::Settled { sent, outcome, error } = client.event().await.unwrap() {
                settled.push((sent, outcome, error.map(|error| error.to_string())));
            }
        }
        let turn = |number| match number % 3 {
            0 => (number, DeliveryOutcome::Accepted, None),
            1 => (number, DeliveryOutcome::Rejected, Some("amqp:not-allowed: says the peer".to_owned())),
            _ => (number, DeliveryOutcome::Released, None),
        };
        assert_eq!(settled, (0..9).map(turn).collect::<Vec<_>>());
        client.closed(link).await;
    });
}

#[test]
fn what_a_client_receives_comes_whole_within_its_credit() {
    limited(async {
        let mut client = Client::new(ClientLogin::Anonymous, peer(SaslAnonymousMechanism::new()));
        let link = client.attached(LinkRole::Receiver).await;
        client.connection.grant(link, 2);
        let mut lengths = Vec::new();
        while lengths.len() < 21 {
            let event = client.event().await.unwrap();
            let ConnectionEvent::MessageReceived { link: of, delivery, message, settled } = event else { continue };
            assert_eq!((of, settled), (link, false));
            lengths.push(message.whole());
            client.connection.settle(link, delivery, DeliveryOutcome::Accepted);
            if client.connection.credit(link) == 0 {
                client.connection.grant(link, 2);
            }
        }
        assert!(lengths[19].len() > 100_000 && lengths[0].len() < 10);
        // The last message contains the number of accepted messages, 20, as a smalluint in an amqp-value section.
        assert_eq!(&lengths[20][..], [0, 0x53, 0x77, 0x52, 20]);
        client.closed(link).await;
    });
}

#[test]
fn each_mechanism_lets_the_right_password_in_and_no_other() {
    limited(async {
        let plain = |password: &str| ClientLogin::Plain { user: "user".to_owned(), password: Password::new(password) };
        let sasl = || SaslPlainMechanism::new("user", "right");
        assert_eq!(Client::new(plain("right"), peer(sasl())).event().await, Ok(ConnectionEvent::Opened));
        let rejected = Err(ConnectionError::Login(LoginError::Rejected));
        assert_eq!(Client::new(plain("wrong"), peer(sasl())).event().await, rejected);
        let not_offered = Err(ConnectionError::Login(LoginError::NotOffered));
        assert_eq!(Client::new(ClientLogin::Anonymous, peer(sasl())).event().await, not_offered);
        for (hash, version) in [
            (ScramHash::Sha1, ScramVersion::Sha1),
            (ScramHash::Sha256, ScramVersion::Sha256),
            (ScramHash::Sha512, ScramVersion::Sha512),
        ] {
            let credential = Arc::new(SingleScramCredential::new("user", "right", version).unwrap());
            let sasl = || ScramAuthenticator::new(Arc::clone(&credential));
            let login = |password: &str| ClientLogin::Scram {
                hash,
                user: "user".to_owned(),
                password: Password::new(password),
                nonce: "fyko+d2lbbFgONRv9qkxdawL".to_owned(),
            };
            assert_eq!(
                Client::new(login("right"), peer(sasl())).event().await,
                Ok(ConnectionEvent::Opened),
                "{hash:?}"
            );
            assert_eq!(Client::new(login("wrong"), peer(sasl())).event().await, rejected, "{hash:?}");
        }
    });
}
