//! The listener without its sockets, for fuzz targets: takes bytes, and gives events, output and what is kept.
use super::conversation::{Conversation, Event, Fault, LinkId};
use super::desk::Desk;
use super::frame::{Outcome, Role};
use super::queues::Queues;
use super::rope::Message;
use super::sasl::Mechanisms;
use bytes::{Buf, BytesMut};

/// Credit that a rehearsal grants a peer.
const CREDIT: u32 = 10;
/// Size of the messages that it sends: two frames where the peer takes the smallest.
const SENT_BYTES: usize = 600;

/// A conversation that answers each event at once, and alike each time.
#[derive(Debug)]
pub struct Rehearsal {
    conversation: Conversation<u64>,
    input: BytesMut,
    receivers: Vec<LinkId>,
    next: u64,
    heard: Heard,
}

/// Events and output. They are the same however the input is split.
#[derive(Debug, Default, PartialEq)]
pub struct Heard {
    events: Vec<Event<u64>>,
    fault: Option<Fault>,
    /// Output bytes.
    pub said: Vec<u8>,
    /// Messages that were sent and have not come back. There are never any.
    pub lost: u64,
}

impl Rehearsal {
    /// A rehearsal with a peer that authenticates itself by `mechanisms`; messages of more than `most_bytes` end
    /// their link.
    pub fn new(mechanisms: Mechanisms, most_bytes: u64) -> Self {
        Self {
            conversation: Conversation::new(mechanisms, "rehearsal", most_bytes),
            input: BytesMut::new(),
            receivers: Vec::new(),
            next: 0,
            heard: Heard::default(),
        }
    }

    /// Feeds these bytes after those that it has received already.
    pub fn hear(&mut self, octets: &[u8]) {
        if self.heard.fault.is_some() || self.conversation.is_closed() {
            return;
        }
        self.input.extend_from_slice(octets);
        loop {
            match self.conversation.next_event(&mut self.input) {
                Ok(None) => return,
                Ok(Some(event)) => {
                    self.answer(&event);
                    self.heard.events.push(event);
                }
                Err(fault) => {
                    self.conversation.say_close(Some(("amqp:connection:framing-error", &fault.to_string())));
                    self.heard.fault = Some(fault);
                    return;
                }
            }
        }
    }

    fn answer(&mut self, event: &Event<u64>) {
        match event {
            Event::Attached { link, address, .. } if address.starts_with("refuse") => {
                self.conversation.refuse(*link, "amqp:not-found", "told to");
            }
            Event::Attached { link, peer, .. } => {
                self.conversation.accept(*link);
                match peer {
                    Role::Sender => self.conversation.grant(*link, CREDIT),
                    Role::Receiver => self.receivers.push(*link),
                }
            }
            Event::Arrived { link, delivery, settled, .. } => {
                if !settled {
                    let outcomes = [Outcome::Accepted, Outcome::Released, Outcome::Rejected];
                    self.conversation.settle(*link, *delivery, outcomes[*delivery as usize % outcomes.len()]);
                }
                if self.conversation.credit(*link) <= CREDIT / 2 {
                    self.conversation.grant(*link, CREDIT);
                }
            }
            Event::Flowed => self.send(),
            Event::Detached { link, .. } => self.receivers.retain(|receiver| receiver != link),
            Event::Settled { .. } | Event::Closed => {}
        }
    }

    /// Sends one message, over the first link that may have one; the others have all there is.
    fn send(&mut self) {
        for link in &self.receivers {
            if self.conversation.may_send(*link) {
                self.next += 1;
                return self.conversation.send(*link, Message::from(vec![0; SENT_BYTES]), self.next);
            }
            self.conversation.drained(*link);
        }
    }

    /// Bytes that it keeps of messages that are not complete.
    pub fn kept_bytes(&self) -> u64 {
        self.conversation.incomplete_bytes()
    }

    /// Ends the rehearsal and gives its result.
    pub fn end(mut self) -> Heard {
        self.conversation.say_settled();
        let waiting = self.conversation.out().remaining();
        self.heard.said = self.conversation.out().copy_to_bytes(waiting).to_vec();
        let returned = self.heard.events.iter().map(|event| match event {
            Event::Settled { .. } => 1,
            Event::Detached { unsettled, .. } => unsettled.len(),
            _ => 0,
        });
        let returned: usize = returned.sum();
        let unsettled = self.conversation.into_unsettled().len();
        self.heard.lost = self.next - (returned + unsettled) as u64;
        self.heard
    }
}

/// A connection at the queues.
pub struct Visit {
    desk: Desk,
    input: BytesMut,
}

impl Visit {
    /// A visit of a peer that authenticates itself by `mechanisms`.
    pub fn new(queues: Queues, mechanisms: Mechanisms, most_bytes: u64) -> Self {
        Self { desk: Desk::new(queues, mechanisms, "rehearsal", most_bytes), input: BytesMut::new() }
    }

    /// Feeds these bytes, does what there is to do, and returns the output.
    pub fn hear(&mut self, octets: &[u8]) -> Vec<u8> {
        if !self.desk.conversation().is_closed() {
            self.input.extend_from_slice(octets);
            if let Err(fault) = self.desk.turn(&mut self.input) {
                self.desk.conversation().say_close(Some(("amqp:connection:framing-error", &fault.to_string())));
            }
        }
        let waiting = self.desk.out().remaining();
        self.desk.out().copy_to_bytes(waiting).to_vec()
    }

    /// Hangs up.
    pub fn leave(self) {
        self.desk.close();
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
            let mut rehearsal = Rehearsal::new(Mechanisms::Anybody, 1000);
            rehearsal.hear(&octets[..octets.len() - 1]);
            let heard = rehearsal.end();
            assert_eq!((heard.fault, heard.lost), (None, 0), "{name}");
            assert_eq!(heard.events.last(), Some(&Event::Closed), "{name}");
            let any = |wanted: fn(&Event<u64>) -> bool| heard.events.iter().any(wanted);
            assert!(any(|event| matches!(event, Event::Attached { .. })), "{name}");
            assert!(any(|event| matches!(event, Event::Arrived { .. } | Event::Settled { .. })), "{name}");
        }
    }

    #[test]
    fn who_hangs_up_leaves_the_queues_as_they_were() {
        for (name, octets) in seeds() {
            for cut in 0..octets.len() {
                let queues = Queues::new(QueueLimits { messages: 8, bytes: 10_000 });
                let mut visit = Visit::new(queues.clone(), Mechanisms::Anybody, 1000);
                octets[..cut].chunks(50).for_each(|piece| drop(visit.hear(piece)));
                visit.leave();
                for queue in queues.names() {
                    let counts = queues.counts(queues.named(&queue).unwrap());
                    assert_eq!(counts.held, 0, "{name} {cut} {queue}");
                    let gone = counts.accepted + counts.rejected;
                    assert_eq!(counts.put, counts.waiting as u64 + gone, "{name} {cut} {queue}");
                }
            }
        }
    }
}
