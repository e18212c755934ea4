//! Sends and counts acknowledgement documents about the messages of a run. In the role of the receiving business
//! application, the bench sends back one document for each message that arrives unchanged. Alternatively, the real
//! receiving application sends the documents, and the bench only waits for them.
//!
//! ```text
//! sender ──▶ outbox ─ ─ endpoints ─ ─▶ inbox ──▶ arrived ──→ due ──→ acknowledgement_sender
//!                                                                       │
//!                                                                       ▼
//! acknowledged ◀── sender's inbox ◀─ ─ ─ ─ ─ ─ endpoints ─ ─ ─ ─ receiver's outbox
//! ```
//! A document that the bench sends has the number of the acknowledged message, but another run id, so that the bench
//! does not take the document for a message of the run. A document of a real receiving application names the mRID, the
//! identifier in the acknowledged message's XML.
use super::acknowledgement_document::AcknowledgementText;
use super::document_id::DocumentId;
use super::options::AcknowledgementOptions;
use super::run_payloads::RunPayloads;
use mailrun_mades::Uuid;
use mailrun_mades::api::{Payload, RunMessageId};
use mailrun_measurement::RunId;
use mailrun_measurement::record::{AcknowledgementSender, MadesAcknowledgements};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use tokio::sync::Notify;

/// Maximum number of acknowledgements about messages of other runs or senders that the bench counts. The bench stores a
/// hash of each such acknowledgement, so that it does not count a redelivered document again.
const MAX_STRANGERS: usize = 16_384;

#[derive(Debug)]
pub(super) struct Acknowledgements {
    document: AcknowledgementText,
    about_run: Uuid,
    pub(super) options: AcknowledgementOptions,
    /// Component code to which acknowledgements are addressed: the sender code in the inbox messages, or the configured
    /// receiver if the messages have no sender code.
    receiver: RefCell<String>,
    due: RefCell<VecDeque<u64>>,
    due_notify: Notify,
    /// Numbers of the messages whose acknowledgement documents the broker has not confirmed yet.
    unsettled: RefCell<BTreeSet<u64>>,
    /// Documents about which the endpoint may still send events. Maps the hash of the id that the endpoint gave a
    /// document to the number of the acknowledged message.
    peer_ids: RefCell<HashMap<u64, u64>>,
    sent: Cell<u64>,
    /// The already counted acknowledgements that are not about this run. Each is stored as a hash of the mRID that the
    /// document names, or of the message's id if the document is unreadable.
    strangers: RefCell<HashSet<u64>>,
    pub(super) counts: AcknowledgementCounts,
}

#[derive(Debug, Default)]
pub(super) struct AcknowledgementCounts {
    pub(super) accepted: Cell<u64>,
    pub(super) returned: Cell<u64>,
    pub(super) refused: Cell<u64>,
    pub(super) failed: Cell<u64>,
    pub(super) corrupt: Cell<u64>,
    pub(super) rejecting: Cell<u64>,
    pub(super) unknown: Cell<u64>,
    pub(super) unreadable: Cell<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AcknowledgedMessage {
    /// The document names a message of this run by its index, counted from 0. The caller must check that the run has
    /// such a message.
    Own(u64),
    Preflight,
    Other,
}

/// Returns the run id of the preflight message. It differs from the id of the run, so that an acknowledgement of the
/// preflight message that arrives during the load is not taken for an acknowledgement of the load.
pub(super) fn preflight_run(run: RunId) -> RunId {
    let RunId(mut bytes) = run;
    bytes[0] ^= 1;
    RunId(bytes)
}

pub(super) fn count_one(count: &Cell<u64>) {
    count.set(count.get() + 1);
}

impl Acknowledgements {
    pub(super) fn new(options: AcknowledgementOptions, receiver: &str, run: Uuid, began: jiff::Timestamp) -> Self {
        Self {
            document: AcknowledgementText::new(run, began),
            about_run: run,
            options,
            receiver: RefCell::new(receiver.to_owned()),
            due: RefCell::default(),
            due_notify: Notify::new(),
            unsettled: RefCell::default(),
            peer_ids: RefCell::default(),
            sent: Cell::default(),
            strangers: RefCell::default(),
            counts: AcknowledgementCounts::default(),
        }
    }

    /// Returns the run id that the bench writes into the identities of its acknowledgements. It differs from the run id
    /// of the messages, so that an acknowledgement is never taken for a message.
    pub(super) fn run(&self) -> Uuid {
        self.document.run
    }

    /// Returns true if the bench only waits for acknowledgements, because a real receiving application sends them.
    pub(super) fn are_awaited(&self) -> bool {
        matches!(self.options, AcknowledgementOptions::Awaited { .. })
    }

    /// Finds the message that a document acknowledges. `mrid` is the name by which the document refers to the message:
    /// the mRID of the message's payload, or the identity of the message if the receiver found no mRID in the payload.
    pub(super) fn find(&self, mrid: &str, first_number: u64) -> AcknowledgedMessage {
        let preflight = Uuid::from_bytes(preflight_run(RunId(self.about_run.into_bytes())).0);
        if let Some(id) = DocumentId::read(mrid) {
            return match () {
                () if id.is_of(self.about_run) => AcknowledgedMessage::Own(id.sequence),
                () if id.is_of(preflight) => AcknowledgedMessage::Preflight,
                () => AcknowledgedMessage::Other,
            };
        }
        match RunMessageId::read(mrid) {
            Some(id) if id.run == self.about_run => {
                AcknowledgedMessage::Own(id.sequence.checked_sub(first_number).unwrap_or(u64::MAX))
            }
            Some(id) if id.run == preflight => AcknowledgedMessage::Preflight,
            _ => AcknowledgedMessage::Other,
        }
    }

    /// Counts an acknowledgement document that is not about this run. Returns false if the document was counted before,
    /// or if `MAX_STRANGERS` documents were counted already. The caller then does not report the document. The same
    /// document can come again, because the bench returns documents that are not about this run to the queue.
    pub(super) fn count_stranger(&self, count: &Cell<u64>, mark: u64) -> bool {
        let mut strangers = self.strangers.borrow_mut();
        let is_new = strangers.len() < MAX_STRANGERS && strangers.insert(mark);
        if is_new {
            count_one(count);
        }
        is_new
    }

    pub(super) fn receiver(&self) -> String {
        self.receiver.borrow().clone()
    }

    pub(super) fn message_arrived(&self, sequence: u64, sender_code: Option<&str>) {
        let mut receiver = self.receiver.borrow_mut();
        if let Some(code) = sender_code.filter(|code| !code.is_empty() && *code != *receiver) {
            *receiver = code.to_owned();
        }
        self.due.borrow_mut().push_back(sequence);
        self.due_notify.notify_one();
    }

    /// Waits for a message that needs an acknowledgement, and returns its number. The message stays first in line until
    /// `handed_over` is called.
    pub(super) async fn next_due(&self) -> u64 {
        loop {
            let first = self.due.borrow().front().copied();
            match first {
                Some(sequence) => return sequence,
                None => self.due_notify.notified().await,
            }
        }
    }

    /// Removes the first message in line. Must be called when the acknowledgement of this message was sent. The
    /// document then counts as unsettled until `settled` or `take_unsettled` is called.
    pub(super) fn handed_over(&self) {
        self.unsettled.borrow_mut().extend(self.due.borrow_mut().pop_front());
        count_one(&self.sent);
    }

    pub(super) fn settled(&self, sequence: u64) {
        self.unsettled.borrow_mut().remove(&sequence);
    }

    /// Returns the messages whose documents the broker had not confirmed when the connection was lost, and clears the
    /// list, because no confirmation can arrive any more.
    pub(super) fn take_unsettled(&self) -> BTreeSet<u64> {
        self.unsettled.take()
    }

    /// Returns the document that acknowledges a message. `number` is the number in the identity of the message, and
    /// `sequence` is its place in the run, counted from 0.
    pub(super) fn payload(&self, number: u64, sequence: u64, payloads: &RunPayloads) -> Payload {
        Payload::from(self.document.render(number, sequence, payloads))
    }

    /// Returns true if a received document is byte for byte what the bench sent.
    pub(super) fn is_intact<'o>(
        &self,
        number: u64,
        sequence: u64,
        payloads: &RunPayloads,
        octets: impl Iterator<Item = &'o [u8]>,
    ) -> bool {
        let document = self.document.render(number, sequence, payloads);
        let mut rest = document.as_slice();
        for piece in octets {
            match rest.strip_prefix(piece) {
                Some(after) => rest = after,
                None => return false,
            }
        }
        rest.is_empty()
    }

    /// Stores the id that the endpoint gave a document, because later events may name the document by this id alone.
    pub(super) fn add_peer_id(&self, peer_id: u64, sequence: u64) {
        self.peer_ids.borrow_mut().insert(peer_id, sequence);
    }

    pub(super) fn find_by_peer_id(&self, peer_id: u64) -> Option<u64> {
        self.peer_ids.borrow().get(&peer_id).copied()
    }

    /// Forgets a document about which the endpoint will report nothing more.
    pub(super) fn remove_peer_id(&self, peer_id: u64) {
        self.peer_ids.borrow_mut().remove(&peer_id);
    }

    /// Returns the section about acknowledgements for the run's record. `outbox` is the queue to which the bench sent
    /// acknowledgements, or `None` if it sent none.
    pub(super) fn record(&self, outbox: Option<&str>) -> MadesAcknowledgements {
        let counts = &self.counts;
        let AcknowledgementCounts { accepted, returned, refused, failed, corrupt, .. } = counts;
        let (sender, message_type) = match &self.options {
            AcknowledgementOptions::Sent { message_type, .. } => (AcknowledgementSender::Bench, message_type.clone()),
            AcknowledgementOptions::Awaited { .. } => (AcknowledgementSender::Receiver, String::new()),
        };
        MadesAcknowledgements {
            sender,
            outbox: outbox.unwrap_or_default().to_owned(),
            receiver: self.receiver(),
            message_type,
            sent: self.sent.get(),
            accepted: accepted.get(),
            returned: returned.get(),
            refused: refused.get(),
            failed: failed.get(),
            corrupt: corrupt.get(),
            rejecting: counts.rejecting.get(),
            unknown: counts.unknown.get(),
            unreadable: counts.unreadable.get(),
            way_back_ms: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::acknowledgement_document::ReceivedAcknowledgement;
    use super::super::options::PayloadKind;
    use super::super::payload::Payloads;
    use super::*;

    const RUN: RunId = RunId([6; 16]);

    fn acknowledgements() -> Acknowledgements {
        let options = AcknowledgementOptions::Sent { message_type: "t".to_owned(), far_outbox: None };
        Acknowledgements::new(options, "own", Uuid::from_bytes(RUN.0), jiff::Timestamp::UNIX_EPOCH)
    }

    fn payloads(kind: PayloadKind) -> RunPayloads {
        let sizes = mailrun_schedule::distribution::Distribution::constant(3_000);
        RunPayloads::of_one_form(Payloads::new(&kind, &sizes, 5, RUN).unwrap())
    }

    #[test]
    fn a_document_is_read_back_and_names_the_document_that_it_acknowledges() {
        let all = acknowledgements();
        for (kind, about) in [
            (PayloadKind::Xml, "06060606060686068000000000000004".to_owned()),
            (PayloadKind::Random, RunMessageId { sequence: 7, run: all.about_run }.to_string()),
        ] {
            let payloads = payloads(kind);
            let document = all.payload(7, 4, &payloads).to_vec();
            let read = ReceivedAcknowledgement::read(std::iter::once(&document[..])).unwrap().unwrap();
            assert_eq!((read.about.as_str(), read.is_accepted()), (about.as_str(), true));
            assert_eq!(all.find(&read.about, 3), AcknowledgedMessage::Own(4));
            let text = String::from_utf8(document).unwrap();
            assert!(text.contains(&format!("<mRID>7-{}</mRID>", all.run())), "{text}");
            assert!(all.run() != all.about_run && text.contains("<createdDateTime>1970-01-01T00:00:00Z<"), "{text}");
        }
    }

    #[test]
    fn one_changed_byte_or_another_number_is_no_acknowledgement() {
        let all = acknowledgements();
        let payloads = payloads(PayloadKind::Xml);
        let document = all.payload(7, 7, &payloads).to_vec();
        let (front, back) = document.split_at(100);
        assert!(all.is_intact(7, 7, &payloads, [front, back].into_iter()));
        assert!(!all.is_intact(8, 8, &payloads, std::iter::once(&document[..])));
        assert!(!all.is_intact(7, 7, &payloads, std::iter::once(front)), "cut off");
        let mut changed = document.clone();
        changed[300] ^= 1;
        assert!(!all.is_intact(7, 7, &payloads, std::iter::once(&changed[..])));
    }

    #[test]
    fn documents_of_others_are_told_apart_and_counted_once() {
        let all = acknowledgements();
        let first = Uuid::from_bytes(preflight_run(RUN).0);
        let id = |run, sequence| String::from_utf8(DocumentId::new(run, sequence).text().to_vec()).unwrap();
        assert_eq!(all.find(&id(first, 0), 0), AcknowledgedMessage::Preflight);
        assert_eq!(all.find(&format!("0-{first}"), 0), AcknowledgedMessage::Preflight);
        for other in [id(Uuid::from_u128(9), 0), format!("0-{}", Uuid::from_u128(9)), "DOC-1".to_owned(), String::new()]
        {
            assert_eq!(all.find(&other, 0), AcknowledgedMessage::Other, "{other}");
        }
        assert_eq!(
            all.find(&format!("1-{}", all.about_run), 5),
            AcknowledgedMessage::Own(u64::MAX),
            "before the first"
        );
        let unknown = &all.counts.unknown;
        assert!(all.count_stranger(unknown, 1) && !all.count_stranger(unknown, 1) && all.count_stranger(unknown, 2));
        let counted = (0..100_000).filter(|mark| all.count_stranger(unknown, *mark)).count();
        assert_eq!(counted, MAX_STRANGERS - 2);
        assert_eq!((unknown.get(), all.strangers.borrow().len()), (MAX_STRANGERS as u64, MAX_STRANGERS));
    }

    #[tokio::test]
    async fn they_go_in_the_order_of_arrival_to_whom_the_inbox_names() {
        let all = acknowledgements();
        all.message_arrived(3, None);
        assert_eq!(all.receiver(), "own");
        all.message_arrived(1, Some("a"));
        assert_eq!(all.receiver(), "a");
        assert_eq!((all.next_due().await, all.next_due().await), (3, 3), "it stays until it is handed over");
        all.handed_over();
        assert_eq!((all.next_due().await, all.record(Some("q")).sent), (1, 1));
        all.handed_over();
        all.settled(3);
        assert_eq!(
            all.take_unsettled(),
            BTreeSet::from([1]),
            "a lost connection puts only unsettled documents in doubt"
        );
        assert_eq!(all.take_unsettled(), BTreeSet::new());
    }
}
