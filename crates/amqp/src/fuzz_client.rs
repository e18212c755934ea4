//! A client for fuzz targets, which answers each event at once. It takes the bytes of a server, and
//! returns events, output, and the size of the memory that it keeps.
use crate::connection::{AmqpConnection, ConnectionEvent, ConnectionOptions, LinkId, LinkRequest};
use crate::frame::{DeliveryOutcome, LinkRole};
use crate::fuzz_support::FuzzOutcome;
use crate::sasl_client::ClientLogin;
use bytes::{Buf, Bytes, BytesMut};

/// Credit that the client grants.
const CREDIT: u32 = 10;
/// Size of the messages that the client sends, in bytes. With the smallest frame size, they need
/// two frames.
const SENT_BYTES: usize = 600;

/// A client that begins a session, and a link of each role, as soon as it may.
#[derive(Debug)]
pub struct FuzzClient {
    connection: AmqpConnection<u64>,
    input: BytesMut,
    max_message_bytes: u64,
    sender: Option<LinkId>,
    next: u64,
    outcome: FuzzOutcome,
}

impl FuzzClient {
    /// Creates a client that logs in with `login`. A message of more than `max_message_bytes` ends
    /// its link.
    pub fn new(login: ClientLogin, max_message_bytes: u64) -> Self {
        let options = ConnectionOptions {
            container: "rehearsal".to_owned(),
            hostname: Some("host".to_owned()),
            max_frame_size: 64 << 10,
            idle_timeout_ms: 1000,
            max_message_bytes,
        };
        Self {
            connection: AmqpConnection::client(login, options),
            input: BytesMut::new(),
            max_message_bytes,
            sender: None,
            next: 0,
            outcome: FuzzOutcome::default(),
        }
    }

    /// Passes more bytes from the server to the client.
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
        match event {
            ConnectionEvent::Opened => self.begin(),
            ConnectionEvent::Attached { link, peer: LinkRole::Sender, .. } => self.connection.grant(*link, CREDIT),
            ConnectionEvent::Attached { link, .. } => self.sender = Some(*link),
            ConnectionEvent::MessageReceived { link, delivery, settled, .. } => {
                if !settled {
                    match delivery % 3 {
                        0 => self.connection.settle(*link, *delivery, DeliveryOutcome::Accepted),
                        1 => self.connection.settle(*link, *delivery, DeliveryOutcome::Released),
                        _ => self.connection.reject(*link, *delivery, "test:no", "told to"),
                    }
                }
                if self.connection.credit(*link) <= CREDIT / 2 {
                    self.connection.grant(*link, CREDIT);
                }
            }
            ConnectionEvent::CreditChanged => self.send(),
            ConnectionEvent::Detached { link, .. } if self.sender == Some(*link) => self.sender = None,
            ConnectionEvent::Ended { .. } => self.connection.close(None),
            ConnectionEvent::Detached { .. }
            | ConnectionEvent::Settled { .. }
            | ConnectionEvent::Drained { .. }
            | ConnectionEvent::Closed { .. } => {}
        }
    }

    fn begin(&mut self) {
        let Ok(session) = self.connection.begin_session() else { return };
        for (name, role) in [("out", LinkRole::Sender), ("in", LinkRole::Receiver)] {
            let max_message_bytes = self.max_message_bytes;
            let request =
                LinkRequest { name, role, address: "q", capabilities: &["queue"], settled: false, max_message_bytes };
            self.connection.attach_link(session, &request);
        }
    }

    /// Sends one message, if the peer accepts one.
    fn send(&mut self) {
        if let Some(link) = self.sender.filter(|link| self.connection.may_send(*link)) {
            self.next += 1;
            self.connection.send_parts(link, &[0; 8], Bytes::from(vec![0; SENT_BYTES]), self.next);
        }
    }

    /// Returns the number of bytes of incomplete messages that the client keeps.
    pub fn incomplete_bytes(&self) -> u64 {
        self.connection.incomplete_bytes()
    }

    /// Ends the session and returns its result.
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
