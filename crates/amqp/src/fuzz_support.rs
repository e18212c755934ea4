//! A server's connection for fuzz targets, which answers each event at once. It takes the bytes of
//! a client, and returns events, output, and the size of the memory that it keeps.
use crate::buffers::EncodedMessage;
use crate::connection::{AmqpConnection, ConnectionError, ConnectionEvent, LinkId};
use crate::frame::{DeliveryOutcome, LinkRole};
use crate::sasl::ListenerAuth;
use bytes::{Buf, BytesMut};

/// Credit that the connection grants its peer.
const CREDIT: u32 = 10;
/// Size of the messages that the connection sends, in bytes. With the smallest frame size, they
/// need two frames.
const SENT_BYTES: usize = 600;

/// A connection that answers each event at once, and in the same way each time.
#[derive(Debug)]
pub struct FuzzConnection {
    connection: AmqpConnection<u64>,
    input: BytesMut,
    receivers: Vec<LinkId>,
    next: u64,
    outcome: FuzzOutcome,
}

/// Events and output of a connection. They must not depend on how the input is split.
#[derive(Debug, Default, PartialEq)]
pub struct FuzzOutcome {
    /// Events of the connection in the order in which they came.
    pub events: Vec<ConnectionEvent<u64>>,
    /// Reason why the connection could not continue.
    pub error: Option<ConnectionError>,
    /// Bytes that the connection has written.
    pub output: Vec<u8>,
    /// Number of messages that were sent and never came back with an event. It must be 0.
    pub lost: u64,
}

impl FuzzOutcome {
    pub(crate) fn returned(&self) -> usize {
        let returned = self.events.iter().map(|event| match event {
            ConnectionEvent::Settled { .. } => 1,
            ConnectionEvent::Detached { unsettled, .. } => unsettled.len(),
            _ => 0,
        });
        returned.sum()
    }
}

impl FuzzConnection {
    /// Creates a connection to a peer that must authenticate itself as `mechanisms` demands. A
    /// message of more than `max_message_bytes` ends its link.
    pub fn new(mechanisms: ListenerAuth, max_message_bytes: u64) -> Self {
        Self {
            connection: AmqpConnection::server(mechanisms, "rehearsal", max_message_bytes),
            input: BytesMut::new(),
            receivers: Vec::new(),
            next: 0,
            outcome: FuzzOutcome::default(),
        }
    }

    /// Passes more bytes from the peer to the connection.
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
            ConnectionEvent::Attached { link, address, .. } if address.starts_with("refuse") => {
                self.connection.refuse(*link, "amqp:not-found", "told to");
            }
            ConnectionEvent::Attached { link, peer, .. } => {
                self.connection.accept(*link);
                match peer {
                    LinkRole::Sender => self.connection.grant(*link, CREDIT),
                    LinkRole::Receiver => self.receivers.push(*link),
                }
            }
            ConnectionEvent::MessageReceived { link, delivery, settled, .. } => {
                if !settled {
                    let outcomes = [DeliveryOutcome::Accepted, DeliveryOutcome::Released, DeliveryOutcome::Rejected];
                    self.connection.settle(*link, *delivery, outcomes[*delivery as usize % outcomes.len()]);
                }
                if self.connection.credit(*link) <= CREDIT / 2 {
                    self.connection.grant(*link, CREDIT);
                }
            }
            ConnectionEvent::CreditChanged => self.send(),
            ConnectionEvent::Detached { link, .. } => self.receivers.retain(|receiver| receiver != link),
            ConnectionEvent::Opened
            | ConnectionEvent::Ended { .. }
            | ConnectionEvent::Drained { .. }
            | ConnectionEvent::Settled { .. }
            | ConnectionEvent::Closed { .. } => {}
        }
    }

    /// Sends one message over the first link that may send. Completes the drains of the links
    /// before it.
    fn send(&mut self) {
        for link in &self.receivers {
            if self.connection.may_send(*link) {
                self.next += 1;
                return self.connection.send(*link, EncodedMessage::from(vec![0; SENT_BYTES]), self.next);
            }
            self.connection.complete_drain(*link);
        }
    }

    /// Returns the number of bytes of incomplete messages that the connection keeps.
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
