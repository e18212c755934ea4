//! Acknowledgement documents: the bench is the receiving business application too, and sends one back for each message that
//! arrives unchanged.
//!
//! ```text
//! sender ──▶ outbox ─ ─ endpoints ─ ─▶ inbox ──▶ arrived ──→ due ──→ acknowledgement_sender ──▶ receiver's outbox ─ ─ ┐
//! acknowledged ◀── sender's inbox ◀─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ endpoints ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ┘
//! ```
//! The identities have the numbers of the messages and a run of their own, so that an acknowledgement is never taken for a
//! message, in whatever queue it comes.
use super::options::AcknowledgementOptions;
use crate::Uuid;
use crate::api::{Payload, RunMessageId};
use journey::record::MadesAcknowledgements;
use std::cell::{Cell, RefCell};
use std::collections::{HashSet, VecDeque};
use tokio::sync::Notify;

/// The acknowledgements of a run.
#[derive(Debug)]
pub(super) struct Acknowledgements {
    document: AcknowledgementDocument,
    pub(super) options: AcknowledgementOptions,
    /// Code that the inbox names as the sender of the messages; the receiver's own if it names none.
    receiver: RefCell<String>,
    /// Numbers of messages that are to be acknowledged.
    due: RefCell<VecDeque<u64>>,
    due_notify: Notify,
    /// The endpoint's ids of acknowledgements that it has taken and not reported on yet, shortened to numbers.
    peer_ids: RefCell<HashSet<u64>>,
    sent: Cell<u64>,
    pub(super) counts: AcknowledgementCounts,
}

/// Counts of what became of them.
#[derive(Debug, Default)]
pub(super) struct AcknowledgementCounts {
    pub(super) accepted: Cell<u64>,
    pub(super) returned: Cell<u64>,
    pub(super) refused: Cell<u64>,
    pub(super) failed: Cell<u64>,
    pub(super) corrupt: Cell<u64>,
}

/// Counts one more.
pub(super) fn count_one(count: &Cell<u64>) {
    count.set(count.get() + 1);
}

impl Acknowledgements {
    /// Acknowledgements of the messages of that run, made from then on.
    pub(super) fn new(options: AcknowledgementOptions, receiver: &str, run: Uuid, began: jiff::Timestamp) -> Self {
        Self {
            document: AcknowledgementDocument::new(run, began),
            options,
            receiver: RefCell::new(receiver.to_owned()),
            due: RefCell::default(),
            due_notify: Notify::new(),
            peer_ids: RefCell::default(),
            sent: Cell::default(),
            counts: AcknowledgementCounts::default(),
        }
    }

    /// The run in their identities.
    pub(super) fn run(&self) -> Uuid {
        self.document.run
    }

    /// The code that they are addressed to.
    pub(super) fn receiver(&self) -> String {
        self.receiver.borrow().clone()
    }

    /// Notes that a message arrived, and who sent it.
    pub(super) fn message_arrived(&self, sequence: u64, sender_code: Option<&str>) {
        let mut receiver = self.receiver.borrow_mut();
        if let Some(code) = sender_code.filter(|code| !code.is_empty() && *code != *receiver) {
            *receiver = code.to_owned();
        }
        self.due.borrow_mut().push_back(sequence);
        self.due_notify.notify_one();
    }

    /// Waits for a message that is to be acknowledged: its number. It stays the first until it is handed over.
    pub(super) async fn next_due(&self) -> u64 {
        loop {
            let first = self.due.borrow().front().copied();
            match first {
                Some(sequence) => return sequence,
                None => self.due_notify.notified().await,
            }
        }
    }

    /// Notes that the first of those that are due was handed over.
    pub(super) fn handed_over(&self) {
        self.due.borrow_mut().pop_front();
        count_one(&self.sent);
    }

    /// The document that acknowledges the message of that number.
    pub(super) fn payload(&self, number: u64) -> Payload {
        Payload::from(self.document.render(number))
    }

    /// Reports whether the bytes are the document that acknowledges the message of that number.
    pub(super) fn is_intact<'o>(&self, number: u64, octets: impl Iterator<Item = &'o [u8]>) -> bool {
        let document = self.document.render(number);
        let mut rest = document.as_slice();
        for piece in octets {
            match rest.strip_prefix(piece) {
                Some(after) => rest = after,
                None => return false,
            }
        }
        rest.is_empty()
    }

    /// Notes the endpoint's id of one: its events may carry no other.
    pub(super) fn add_peer_id(&self, peer_id: u64) {
        self.peer_ids.borrow_mut().insert(peer_id);
    }

    pub(super) fn has_peer_id(&self, peer_id: u64) -> bool {
        self.peer_ids.borrow().contains(&peer_id)
    }

    /// Notes that the endpoint reports nothing more about the one of that id.
    pub(super) fn remove_peer_id(&self, peer_id: u64) {
        self.peer_ids.borrow_mut().remove(&peer_id);
    }

    /// Their part of the record; `outbox` is the queue that they went into.
    pub(super) fn record(&self, outbox: &str) -> MadesAcknowledgements {
        let AcknowledgementCounts { accepted, returned, refused, failed, corrupt } = &self.counts;
        MadesAcknowledgements {
            outbox: outbox.to_owned(),
            receiver: self.receiver(),
            message_type: self.options.message_type.clone(),
            sent: self.sent.get(),
            accepted: accepted.get(),
            returned: returned.get(),
            refused: refused.get(),
            failed: failed.get(),
            corrupt: corrupt.get(),
            way_back_ms: None,
        }
    }
}

/// Text of the documents: an Acknowledgement_MarketDocument with the elements of IEC 62325-451-1 in their order, and
/// invented parties. It names the received document by the id that its application gave.
#[derive(Debug)]
struct AcknowledgementDocument {
    /// The run of the messages.
    about_run: Uuid,
    /// The run in the identities of the acknowledgements.
    run: Uuid,
    created: String,
}

impl AcknowledgementDocument {
    fn new(about_run: Uuid, created: jiff::Timestamp) -> Self {
        // One bit differs: a random run has this id by a chance of 1 in 2^122.
        let run = Uuid::from_u128(about_run.as_u128() ^ 1);
        Self { about_run, run, created: created.strftime("%Y-%m-%dT%H:%M:%SZ").to_string() }
    }

    fn render(&self, number: u64) -> Vec<u8> {
        let Self { about_run, run, created } = self;
        let own = RunMessageId { sequence: number, run: *run };
        let received = RunMessageId { sequence: number, run: *about_run };
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\r\n\
             <Acknowledgement_MarketDocument xmlns=\"urn:iec62325.351:tc57wg16:451-1:acknowledgementdocument:8:1\">\r\n\
             <mRID>{own}</mRID><createdDateTime>{created}</createdDateTime>\
             <sender_MarketParticipant.mRID codingScheme=\"A01\">10V000000000002V</sender_MarketParticipant.mRID>\
             <sender_MarketParticipant.marketRole.type>A34</sender_MarketParticipant.marketRole.type>\
             <receiver_MarketParticipant.mRID codingScheme=\"A01\">10V000000000001X</receiver_MarketParticipant.mRID>\
             <receiver_MarketParticipant.marketRole.type>A46</receiver_MarketParticipant.marketRole.type>\
             <received_MarketDocument.mRID>{received}</received_MarketDocument.mRID>\
             <received_MarketDocument.revisionNumber>1</received_MarketDocument.revisionNumber>\
             <Reason><code>A01</code><text>Message fully accepted</text></Reason>\r\n\
             </Acknowledgement_MarketDocument>\r\n"
        )
        .into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: Uuid = Uuid::from_u128(0x8000_0006);

    fn acknowledgements() -> Acknowledgements {
        let options = AcknowledgementOptions { message_type: "t".to_owned(), far_outbox: None };
        Acknowledgements::new(options, "own", RUN, jiff::Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn a_document_is_xml_and_names_what_it_acknowledges() {
        let all = acknowledgements();
        let text = String::from_utf8(all.payload(7).to_vec()).unwrap();
        let mut reader = quick_xml::Reader::from_str(&text);
        let mut depth = 0;
        loop {
            match reader.read_event().unwrap() {
                quick_xml::events::Event::Eof => break,
                quick_xml::events::Event::Start(_) => depth += 1,
                quick_xml::events::Event::End(_) => depth -= 1,
                _ => {}
            }
        }
        assert_eq!(depth, 0);
        assert!(
            text.contains(&format!("<received_MarketDocument.mRID>7-{RUN}</received_MarketDocument.mRID>")),
            "{text}"
        );
        assert!(text.contains(&format!("<mRID>7-{}</mRID>", all.run())) && all.run() != RUN, "{text}");
        assert!(text.contains("<createdDateTime>1970-01-01T00:00:00Z<"), "{text}");
    }

    #[test]
    fn one_changed_byte_or_another_number_is_no_acknowledgement() {
        let all = acknowledgements();
        let document = all.payload(7).to_vec();
        let (front, back) = document.split_at(100);
        assert!(all.is_intact(7, [front, back].into_iter()));
        assert!(!all.is_intact(8, std::iter::once(&document[..])));
        assert!(!all.is_intact(7, std::iter::once(front)), "cut off");
        let mut changed = document.clone();
        changed[300] ^= 1;
        assert!(!all.is_intact(7, std::iter::once(&changed[..])));
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
        assert_eq!((all.next_due().await, all.record("q").sent), (1, 1));
    }
}
