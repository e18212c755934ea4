//! The listener without its sockets, for fuzz targets: takes bytes, and gives events, output and what is kept.
use super::buffers::EncodedMessage;
use super::frame::{DeliveryOutcome, LinkRole};
use super::queues::MemoryQueues;
use super::sasl::ListenerAuth;
use super::server_connection::{ConnectionError, ConnectionEvent, LinkId, ServerConnection};
use super::session::BrokerSession;
use bytes::{Buf, BytesMut};

/// Credit that a session grants a peer.
const CREDIT: u32 = 10;
/// Size of the messages that it sends: two frames where the peer takes the smallest.
const SENT_BYTES: usize = 600;

/// A connection that answers each event at once, and alike each time.
#[derive(Debug)]
pub struct FuzzConnection {
    connection: ServerConnection<u64>,
    input: BytesMut,
    receivers: Vec<LinkId>,
    next: u64,
    outcome: FuzzOutcome,
}

/// Events and output. They are the same however the input is split.
#[derive(Debug, Default, PartialEq)]
pub struct FuzzOutcome {
    events: Vec<ConnectionEvent<u64>>,
    error: Option<ConnectionError>,
    /// Output bytes.
    pub output: Vec<u8>,
    /// Messages that were sent and have not come back. There are never any.
    pub lost: u64,
}

impl FuzzConnection {
    /// A session with a peer that authenticates itself by `mechanisms`; messages of more than `most_bytes` end
    /// their link.
    pub fn new(mechanisms: ListenerAuth, max_message_bytes: u64) -> Self {
        Self {
            connection: ServerConnection::new(mechanisms, "rehearsal", max_message_bytes),
            input: BytesMut::new(),
            receivers: Vec::new(),
            next: 0,
            outcome: FuzzOutcome::default(),
        }
    }

    /// Feeds these bytes after those that it has received already.
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
                    self.connection.write_close(Some(("amqp:connection:framing-error", &fault.to_string())));
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
            ConnectionEvent::Settled { .. } | ConnectionEvent::Closed => {}
        }
    }

    /// Sends one message, over the first link that may have one; the others have all there is.
    fn send(&mut self) {
        for link in &self.receivers {
            if self.connection.may_send(*link) {
                self.next += 1;
                return self.connection.send(*link, EncodedMessage::from(vec![0; SENT_BYTES]), self.next);
            }
            self.connection.complete_drain(*link);
        }
    }

    /// Bytes that it keeps of messages that are not complete.
    pub fn incomplete_bytes(&self) -> u64 {
        self.connection.incomplete_bytes()
    }

    /// Ends the session and gives its result.
    pub fn finish(mut self) -> FuzzOutcome {
        self.connection.write_dispositions();
        let waiting = self.connection.output().remaining();
        self.outcome.output = self.connection.output().copy_to_bytes(waiting).to_vec();
        let returned = self.outcome.events.iter().map(|event| match event {
            ConnectionEvent::Settled { .. } => 1,
            ConnectionEvent::Detached { unsettled, .. } => unsettled.len(),
            _ => 0,
        });
        let returned: usize = returned.sum();
        let unsettled = self.connection.into_unsettled().len();
        self.outcome.lost = self.next - (returned + unsettled) as u64;
        self.outcome
    }
}

/// A connection at the queues.
pub struct FuzzSession {
    session: BrokerSession,
    input: BytesMut,
}

impl FuzzSession {
    /// A visit of a peer that authenticates itself by `mechanisms`.
    pub fn new(queues: MemoryQueues, mechanisms: ListenerAuth, max_message_bytes: u64) -> Self {
        Self { session: BrokerSession::new(queues, mechanisms, "rehearsal", max_message_bytes), input: BytesMut::new() }
    }

    /// Feeds these bytes, does what there is to do, and returns the output.
    pub fn feed(&mut self, octets: &[u8]) -> Vec<u8> {
        if !self.session.connection().is_closed() {
            self.input.extend_from_slice(octets);
            if let Err(fault) = self.session.process(&mut self.input) {
                self.session.connection().write_close(Some(("amqp:connection:framing-error", &fault.to_string())));
            }
        }
        let waiting = self.session.output().remaining();
        self.session.output().copy_to_bytes(waiting).to_vec()
    }

    /// Hangs up.
    pub fn hang_up(self) {
        self.session.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedded::QueueLimits;
    use std::path::Path;

    /// The seeds of the fuzz target, which are recorded conversations; the last byte is the target's own.
    fn seeds() -> Vec<(String, Vec<u8>)> {
        let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/mades_listener");
        let files = std::fs::read_dir(place).unwrap().map(|file| file.unwrap().path());
        let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
        files.map(|path| (name(&path), std::fs::read(&path).unwrap())).collect()
    }

    #[test]
    fn a_good_conversation_is_heard_to_its_end() {
        let seeds = seeds();
        assert!(seeds.len() >= 4, "{}", seeds.len());
        for (name, octets) in seeds {
            let mut connection = FuzzConnection::new(ListenerAuth::Any, 1000);
            connection.feed(&octets[..octets.len() - 1]);
            let outcome = connection.finish();
            assert_eq!((outcome.error, outcome.lost), (None, 0), "{name}");
            assert_eq!(outcome.events.last(), Some(&ConnectionEvent::Closed), "{name}");
            let any = |wanted: fn(&ConnectionEvent<u64>) -> bool| outcome.events.iter().any(wanted);
            assert!(any(|event| matches!(event, ConnectionEvent::Attached { .. })), "{name}");
            assert!(
                any(|event| matches!(event, ConnectionEvent::MessageReceived { .. } | ConnectionEvent::Settled { .. })),
                "{name}"
            );
        }
    }

    #[test]
    fn who_hangs_up_leaves_the_queues_as_they_were() {
        for (name, octets) in seeds() {
            for cut in 0..octets.len() {
                let queues = MemoryQueues::new(QueueLimits { messages: 8, bytes: 10_000 });
                let mut session = FuzzSession::new(queues.clone(), ListenerAuth::Any, 1000);
                octets[..cut].chunks(50).for_each(|piece| drop(session.feed(piece)));
                session.hang_up();
                for queue in queues.names() {
                    let counts = queues.counts(queues.get_or_create(&queue).unwrap());
                    assert_eq!(counts.held, 0, "{name} {cut} {queue}");
                    let gone = counts.accepted + counts.rejected;
                    assert_eq!(counts.put, counts.waiting as u64 + gone, "{name} {cut} {queue}");
                }
            }
        }
    }
}
