//! A connection for fuzz targets, which answers each event at once. A target passes any bytes to the connection as the
//! peer's output. It gets the connection's events and output, and the number of bytes that the connection buffers.
use crate::buffers::EncodedMessage;
use crate::connection::{AmqpConnection, ConnectionError, ConnectionEvent, ConnectionOptions, LinkId, LinkRequest};
use crate::frame::{DeliveryOutcome, LinkRole};
use crate::sasl::ListenerAuth;
use crate::sasl_client::ClientLogin;
use bytes::{Buf, Bytes, BytesMut};

const CREDIT: u32 = 10;
/// Size of each message that the connection sends, in bytes. With the smallest frame size of 512 bytes, a message needs
/// two frames.
const SENT_BYTES: usize = 600;

#[derive(Clone, Copy, Debug)]
enum Role {
    Client { max_message_bytes: u64 },
    Server,
}

/// A connection that always answers an event in the same way, so that two runs on the same bytes can be compared. As
/// soon as it may, a client begins a session and attaches a link in each direction.
#[derive(Debug)]
pub struct FuzzConnection {
    role: Role,
    connection: AmqpConnection<u64>,
    input: BytesMut,
    senders: Vec<LinkId>,
    next: u64,
    outcome: FuzzOutcome,
}

/// Events and output of a connection, which must not depend on how the input is split.
#[derive(Debug, Default, PartialEq)]
pub struct FuzzOutcome {
    /// Events of the connection in the order in which they came.
    pub events: Vec<ConnectionEvent<u64>>,
    /// Error that ended the connection, or `None` if it could continue until the end of the input.
    pub error: Option<ConnectionError>,
    /// Everything that the connection wrote for its peer.
    pub output: Vec<u8>,
    /// Number of sent messages that were never reported to the caller as settled or as unsettled. Must be 0.
    pub lost: u64,
}

impl FuzzOutcome {
    fn returned(&self) -> usize {
        let returned = self.events.iter().map(|event| match event {
            ConnectionEvent::Settled { .. } => 1,
            ConnectionEvent::Detached { unsettled, .. } => unsettled.len(),
            _ => 0,
        });
        returned.sum()
    }
}

impl FuzzConnection {
    /// Creates a client that logs in with `login`. A message of more than `max_message_bytes` ends
    /// its link.
    pub fn client(login: ClientLogin, max_message_bytes: u64) -> Self {
        let options = ConnectionOptions {
            container: "rehearsal".to_owned(),
            hostname: Some("host".to_owned()),
            max_frame_size: 64 << 10,
            idle_timeout_ms: 1000,
            max_message_bytes,
        };
        Self::new(Role::Client { max_message_bytes }, AmqpConnection::client(login, options))
    }

    /// Creates a server whose clients must log in as `mechanisms` demands. A message of more than `max_message_bytes`
    /// ends its link.
    pub fn server(mechanisms: ListenerAuth, max_message_bytes: u64) -> Self {
        Self::new(Role::Server, AmqpConnection::server(mechanisms, "rehearsal", max_message_bytes))
    }

    fn new(role: Role, connection: AmqpConnection<u64>) -> Self {
        let outcome = FuzzOutcome::default();
        Self { role, connection, input: BytesMut::new(), senders: Vec::new(), next: 0, outcome }
    }

    /// Passes more bytes from the peer to the connection, and answers the events that they cause. Does nothing after an
    /// error or a close.
    pub fn feed(&mut self, octets: &[u8]) {
        if self.outcome.error.is_some() || self.connection.is_closed() {
            return;
        }
        self.input.extend_from_slice(octets);
        loop {
            match self.connection.next_event(&mut self.input) {
                Ok(None) => return,
                Ok(Some(event)) => {
                    self.respond(&event);
                    self.outcome.events.push(event);
                }
                Err(fault) => {
                    self.outcome.error = Some(fault);
                    return;
                }
            }
        }
    }

    fn respond(&mut self, event: &ConnectionEvent<u64>) {
        match (event, self.role) {
            (ConnectionEvent::Opened, Role::Client { max_message_bytes }) => self.begin(max_message_bytes),
            (ConnectionEvent::Attached { link, address, .. }, Role::Server) if address.starts_with("refuse") => {
                self.connection.refuse(*link, "amqp:not-found", "told to");
            }
            (ConnectionEvent::Attached { link, peer, .. }, role) => {
                if matches!(role, Role::Server) {
                    self.connection.accept(*link);
                }
                match peer {
                    LinkRole::Sender => self.connection.grant(*link, CREDIT),
                    LinkRole::Receiver => self.senders.push(*link),
                }
            }
            (ConnectionEvent::MessageReceived { link, delivery, settled, .. }, role) => {
                if !settled {
                    match (delivery % 3, role) {
                        (0, _) => self.connection.settle(*link, *delivery, DeliveryOutcome::Accepted),
                        (1, _) => self.connection.settle(*link, *delivery, DeliveryOutcome::Released),
                        (_, Role::Client { .. }) => self.connection.reject(*link, *delivery, "test:no", "told to"),
                        (_, Role::Server) => self.connection.settle(*link, *delivery, DeliveryOutcome::Rejected),
                    }
                }
                if self.connection.credit(*link) <= CREDIT / 2 {
                    self.connection.grant(*link, CREDIT);
                }
            }
            (ConnectionEvent::CreditChanged, _) => self.send(),
            (ConnectionEvent::Detached { link, .. }, _) => self.senders.retain(|sender| sender != link),
            (ConnectionEvent::Ended { .. }, Role::Client { .. }) => self.connection.close(None),
            (
                ConnectionEvent::Opened
                | ConnectionEvent::Ended { .. }
                | ConnectionEvent::Drained { .. }
                | ConnectionEvent::Settled { .. }
                | ConnectionEvent::Closed { .. },
                _,
            ) => {}
        }
    }

    fn begin(&mut self, max_message_bytes: u64) {
        let Ok(session) = self.connection.begin_session() else { return };
        for (name, role) in [("out", LinkRole::Sender), ("in", LinkRole::Receiver)] {
            let request =
                LinkRequest { name, role, address: "q", capabilities: &["queue"], settled: false, max_message_bytes };
            self.connection.attach_link(session, &request);
        }
    }

    /// Sends one message over the first link on which `may_send` allows it. If a server may not send on a link and the
    /// peer has asked for a drain, the server returns the link's unused credit.
    fn send(&mut self) {
        for link in &self.senders {
            match (self.connection.may_send(*link), self.role) {
                (true, Role::Client { .. }) => {
                    self.next += 1;
                    let body = Bytes::from(vec![0; SENT_BYTES]);
                    return self.connection.send_parts(*link, &[0; 8], body, self.next);
                }
                (true, Role::Server) => {
                    self.next += 1;
                    return self.connection.send(*link, EncodedMessage::from(vec![0; SENT_BYTES]), self.next);
                }
                (false, Role::Client { .. }) => {}
                (false, Role::Server) => self.connection.complete_drain(*link),
            }
        }
    }

    /// Returns the number of bytes of incomplete messages that the connection keeps.
    pub fn incomplete_bytes(&self) -> u64 {
        self.connection.incomplete_bytes()
    }

    /// Ends the run and returns its outcome. Messages for which no outcome has arrived do not count as lost, because
    /// the connection can still return their tokens.
    pub fn finish(mut self) -> FuzzOutcome {
        self.connection.write_dispositions();
        let waiting = self.connection.output().remaining();
        self.outcome.output = self.connection.output().copy_to_bytes(waiting).to_vec();
        let returned = self.outcome.returned();
        let unsettled = self.connection.take_unsettled().len();
        self.outcome.lost = self.next - (returned + unsettled) as u64;
        self.outcome
    }
}
