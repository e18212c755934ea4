//! Decides whether a message from a queue belongs to this run. If so, tells the tracker that a message of the run has
//! reached a stage or has failed.
use super::acknowledgement::{AcknowledgedMessage, Acknowledgements, count_one};
use super::acknowledgement_document::ReceivedAcknowledgement;
use super::run_state::MadesRunState;
use super::stages::{MadesMode, MessageFlags, MessageStage};
use super::tracker::{EndpointReply, PayloadIntegrity, ReceiveQueue};
use super::troubles::TroubleKind;
use mailrun_mades::api::{DecodedMessage, EventState, InboxMessage, Oddity, Reply, ReplyOutcome, SendEvent};
use std::cell::Cell;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

/// State that an EDX toolbox reports for a message that will not arrive.
const FAILED: &str = "FAILED";

#[derive(Debug)]
pub(super) enum Ownership {
    Own,
    Foreign,
    /// The event names its message only by the id that the endpoint gave it, and the bench does not know yet which
    /// message has this id.
    Unknown(UnmatchedEvent),
}

/// An event that contains only the id that the endpoint gave a message. The event waits until the bench learns which
/// message has this id.
#[derive(Debug)]
pub(super) struct UnmatchedEvent {
    peer_id: u64,
    state: Option<EventState>,
    code: String,
    text: String,
    received_at: Duration,
}

pub(super) fn classify(
    run_state: &MadesRunState,
    queue: ReceiveQueue,
    message: &DecodedMessage,
    now: Duration,
) -> Ownership {
    let decision = match queue {
        ReceiveQueue::Reply => reply(run_state, message, now),
        ReceiveQueue::Event => event(run_state, message, now),
        ReceiveQueue::Inbox => inbox(run_state, message, now),
    };
    match decision {
        Ownership::Own => run_state.record_arrival(now),
        Ownership::Foreign => run_state.count_foreign(queue),
        Ownership::Unknown(_) => {}
    }
    decision
}

fn reply(run_state: &MadesRunState, message: &DecodedMessage, now: Duration) -> Ownership {
    let reply = Reply::read(message);
    if let Some((acknowledgements, sequence)) = run_state.own_acknowledgement(reply.identity()) {
        reply_to_acknowledgement(run_state, acknowledgements, sequence, &reply);
        return Ownership::Own;
    }
    let Some(sequence) = run_state.own_sequence(reply.identity()) else { return Ownership::Foreign };
    record_oddities(run_state, &reply.oddities);
    let mut tracker = run_state.tracker.borrow_mut();
    let peer_id = reply.message_id.as_deref().map_or(0, hash_id);
    match &reply.outcome {
        ReplyOutcome::Accepted | ReplyOutcome::Unclear => {
            tracker.replied(sequence, now, EndpointReply::Accepted { peer_id })
        }
        ReplyOutcome::Refused(refusal) => {
            let code = refusal.code.as_deref().or(refusal.id.as_deref()).unwrap_or_default();
            let text = refusal.message.as_deref().or(refusal.details.as_deref()).unwrap_or_default();
            tracker.replied(sequence, now, EndpointReply::Refused { code, text });
        }
        ReplyOutcome::Status(status) if status.last.value.eq_ignore_ascii_case(FAILED) => {
            let text = status.last.text.as_deref().unwrap_or_default();
            // The toolbox gives an id to each message that it accepts, so FAILED without an id is a refusal.
            if status.original_message_id.is_some() {
                tracker.replied(sequence, now, EndpointReply::Failed { code: "", text });
            } else {
                tracker.replied(sequence, now, EndpointReply::Refused { code: FAILED, text });
            }
        }
        ReplyOutcome::Status(_) => tracker.replied(sequence, now, EndpointReply::Accepted { peer_id }),
    }
    Ownership::Own
}

/// Handles the endpoint's reply to an acknowledgement document of the bench. If the reply reports a failure, records
/// it. If the endpoint has accepted the document, stores the endpoint's id of the document, because later events may
/// contain only this id.
fn reply_to_acknowledgement(
    run_state: &MadesRunState,
    acknowledgements: &Acknowledgements,
    sequence: u64,
    reply: &Reply<'_>,
) {
    record_oddities(run_state, &reply.oddities);
    let record_failure = |fact: MessageFlags, count: &Cell<u64>, code: &str, text: &str| {
        record_document_failure(run_state, sequence, fact, count, code, &format!("rejected or given up: {text}"));
    };
    let counts = &acknowledgements.counts;
    match &reply.outcome {
        ReplyOutcome::Refused(refusal) => {
            let code = refusal.code.as_deref().or(refusal.id.as_deref()).unwrap_or_default();
            let text = refusal.message.as_deref().or(refusal.details.as_deref()).unwrap_or_default();
            record_failure(MessageFlags::DOCUMENT_REFUSED, &counts.refused, code, text);
        }
        ReplyOutcome::Status(status) if status.last.value.eq_ignore_ascii_case(FAILED) => {
            let text = status.last.text.as_deref().unwrap_or_default();
            let (fact, count) = match status.original_message_id {
                Some(_) => (MessageFlags::DOCUMENT_FAILED, &counts.failed),
                None => (MessageFlags::DOCUMENT_REFUSED, &counts.refused),
            };
            record_failure(fact, count, FAILED, text);
        }
        ReplyOutcome::Accepted | ReplyOutcome::Unclear => {
            let peer_id = reply.message_id.as_deref().map(hash_id);
            peer_id.into_iter().for_each(|id| acknowledgements.add_peer_id(id, sequence));
        }
        ReplyOutcome::Status(_) => {}
    }
}

/// Records a failure of an acknowledgement document, unless it has been recorded already. The bench may hear of a
/// failure several times, because a broker may deliver a report again after a lost connection, and an endpoint may
/// report a failure both in its reply and in an event.
fn record_document_failure(
    run_state: &MadesRunState,
    sequence: u64,
    fact: MessageFlags,
    count: &Cell<u64>,
    code: &str,
    text: &str,
) {
    if run_state.tracker.borrow_mut().add_document_fact(sequence, fact) {
        count_one(count);
        run_state.record_trouble(TroubleKind::Acknowledgement, code, text);
    }
}

fn event(run_state: &MadesRunState, message: &DecodedMessage, now: Duration) -> Ownership {
    let event = SendEvent::read(message);
    let text = |text: &Option<std::borrow::Cow<'_, str>>| text.as_deref().unwrap_or_default().to_owned();
    let state = event.state.clone();
    if let Some((acknowledgements, sequence)) = run_state.own_acknowledgement(event.identity()) {
        record_oddities(run_state, &event.oddities);
        let peer_id = event.message_id.as_deref().map_or(0, hash_id);
        let code = text(&event.error_code);
        let text = text(&event.error_message);
        event_of_acknowledgement(run_state, acknowledgements, (sequence, peer_id), state.as_ref(), &code, &text);
        return Ownership::Own;
    }
    if let Some(sequence) = run_state.own_sequence(event.identity()) {
        record_oddities(run_state, &event.oddities);
        record_event(run_state, sequence, state.as_ref(), &text(&event.error_code), &text(&event.error_message), now);
        return Ownership::Own;
    }
    // An event that names a message of another run is foreign. An event without identity may belong to this run.
    let Some(id) = event.message_id.as_deref().filter(|_| event.identity().is_none()) else {
        return Ownership::Foreign;
    };
    let code = text(&event.error_code);
    let text = text(&event.error_message);
    let unmatched = UnmatchedEvent { peer_id: hash_id(id), state, code, text, received_at: now };
    if match_event(run_state, &unmatched) { Ownership::Own } else { Ownership::Unknown(unmatched) }
}

/// Looks for the message of an event that names the message only by the endpoint's id. If the bench knows this id by
/// now, records the event and returns true.
pub(super) fn match_event(run_state: &MadesRunState, unmatched: &UnmatchedEvent) -> bool {
    let UnmatchedEvent { peer_id, state, code, text, received_at } = unmatched;
    if let Some(acknowledgements) = &run_state.acknowledgements
        && let Some(sequence) = acknowledgements.find_by_peer_id(*peer_id)
    {
        event_of_acknowledgement(run_state, acknowledgements, (sequence, *peer_id), state.as_ref(), code, text);
        run_state.record_arrival(*received_at);
        return true;
    }
    let Some(sequence) = run_state.tracker.borrow_mut().find_by_peer_id(unmatched.peer_id) else { return false };
    record_event(
        run_state,
        sequence,
        unmatched.state.as_ref(),
        &unmatched.code,
        &unmatched.text,
        unmatched.received_at,
    );
    run_state.record_arrival(unmatched.received_at);
    true
}

/// Handles an event about an acknowledgement document. If the event reports a failure, records it. Forgets the
/// document's id after FAILED and RECEIVED, because no more events about the document follow.
fn event_of_acknowledgement(
    run_state: &MadesRunState,
    acknowledgements: &Acknowledgements,
    (sequence, peer_id): (u64, u64),
    state: Option<&EventState>,
    code: &str,
    text: &str,
) {
    if state == Some(&EventState::Failed) {
        let count = &acknowledgements.counts.failed;
        let text = format!("FAILED: {text}");
        record_document_failure(run_state, sequence, MessageFlags::DOCUMENT_FAILED, count, code, &text);
    }
    if matches!(state, Some(EventState::Failed | EventState::Received)) {
        acknowledgements.remove_peer_id(peer_id);
    }
}

fn record_event(
    run_state: &MadesRunState,
    sequence: u64,
    state: Option<&EventState>,
    code: &str,
    text: &str,
    now: Duration,
) {
    let mut tracker = run_state.tracker.borrow_mut();
    let is_tracing = tracker.mode() == MadesMode::Tracing;
    match state {
        // The protocol sends TRACING, but accept DELIVERED as well, because go-mades-bench expects that event.
        Some(EventState::Tracing | EventState::Delivered) if is_tracing => {
            tracker.event(sequence, now, MessageStage::Traced)
        }
        Some(EventState::Delivered) => tracker.event(sequence, now, MessageStage::Delivered),
        Some(EventState::Received) if !is_tracing => tracker.event(sequence, now, MessageStage::Received),
        Some(EventState::Failed) => tracker.failed(sequence, now, code, text),
        // Ignore ACCEPTED and TRANSPORTED, because the report has no stage for these states.
        Some(EventState::Accepted | EventState::Transported) | None => {}
        Some(other) => {
            let text = format!("an event {other} of a message in mode {}", tracker.mode().name());
            tracker.troubles.add(TroubleKind::UnknownEvent, other.as_str(), &text);
        }
    }
}

fn inbox(run_state: &MadesRunState, message: &DecodedMessage, now: Duration) -> Ownership {
    let arrived = InboxMessage::read(message);
    // Look for an acknowledgement document first. A receiver may copy the identity of the bench's message into its
    // document, which would otherwise be taken for the message itself.
    if let Some(acknowledgements) = run_state.acknowledgements.as_ref().filter(|known| known.are_awaited())
        && let Some(document) = ReceivedAcknowledgement::read(arrived.content.octets())
    {
        return received_acknowledgement(run_state, acknowledgements, document, &arrived, now);
    }
    if let Some((acknowledgements, sequence)) = run_state.own_acknowledgement(arrived.identity()) {
        record_oddities(run_state, &arrived.oddities);
        let number = run_state.options.first_number + sequence;
        if acknowledgements.is_intact(number, sequence, &run_state.payloads, arrived.content.octets()) {
            run_state.tracker.borrow_mut().acknowledged(sequence, now);
        } else {
            // Count every changed copy, as the endpoint does, so that the report agrees with the endpoint's count.
            count_one(&acknowledgements.counts.corrupt);
            let text = format!("the acknowledgement of message {sequence} is not what was sent");
            run_state.record_trouble(TroubleKind::Acknowledgement, "corrupt", &text);
        }
        return Ownership::Own;
    }
    let Some(sequence) = run_state.own_sequence(arrived.identity()) else { return Ownership::Foreign };
    record_oddities(run_state, &arrived.oddities);
    let is_intact = run_state.payloads.is_intact(sequence, arrived.content.octets());
    if !is_intact {
        run_state.record_trouble(
            TroubleKind::Corrupt,
            "",
            &format!("the payload of message {sequence} is not what was sent"),
        );
    }
    let content = if is_intact { PayloadIntegrity::Intact } else { PayloadIntegrity::Corrupt };
    let is_new = run_state.tracker.borrow_mut().arrived(sequence, now, content);
    let acknowledgements = run_state.acknowledgements.as_ref().filter(|known| !known.are_awaited());
    if let Some(acknowledgements) = acknowledgements.filter(|_| is_new && is_intact) {
        acknowledgements.message_arrived(sequence, arrived.sender_code.as_deref());
    }
    Ownership::Own
}

/// Records an acknowledgement document that a real receiving application sent. The bench calls this only if it does not
/// send such documents itself. The document belongs to this run if it names the mRID of one of the run's documents.
fn received_acknowledgement(
    run_state: &MadesRunState,
    acknowledgements: &Acknowledgements,
    document: Result<ReceivedAcknowledgement, String>,
    arrived: &InboxMessage<'_>,
    now: Duration,
) -> Ownership {
    let counts = &acknowledgements.counts;
    let record_stranger = |count, mark: &str, code: &str, text: &str| {
        if acknowledgements.count_stranger(count, hash_id(mark)) {
            run_state.record_trouble(TroubleKind::Acknowledgement, code, text);
        }
    };
    let document = match document {
        Ok(document) => document,
        Err(reason) => {
            let id = arrived.message_id.as_deref().or(arrived.ba_message_id.as_deref());
            record_stranger(&counts.unreadable, id.unwrap_or_default(), "unreadable", &reason);
            return Ownership::Foreign;
        }
    };
    let named = acknowledgements.find(&document.about, run_state.options.first_number);
    match named {
        AcknowledgedMessage::Preflight => Ownership::Own,
        AcknowledgedMessage::Own(sequence) if run_state.tracker.borrow().is_known(sequence) => {
            record_oddities(run_state, &arrived.oddities);
            let mut tracker = run_state.tracker.borrow_mut();
            if document.is_accepted() {
                tracker.acknowledged(sequence, now);
            } else if tracker.declined(sequence, now, &document.code, &document.text) {
                count_one(&counts.rejecting);
            }
            Ownership::Own
        }
        AcknowledgedMessage::Own(_) | AcknowledgedMessage::Other => {
            let text = format!("acknowledges {}, which is no document of this run", document.about);
            record_stranger(&counts.unknown, &document.about, "unknown document", &text);
            if named == AcknowledgedMessage::Other { Ownership::Foreign } else { Ownership::Own }
        }
    }
}

fn record_oddities(run_state: &MadesRunState, oddities: &[Oddity]) {
    for oddity in oddities {
        run_state.record_trouble(TroubleKind::Odd, &oddity.to_string(), "not as specified by the API");
    }
}

/// Hashes an id to a number that is never 0, because 0 stands for a missing id.
fn hash_id(id: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish() | 1
}

#[cfg(test)]
mod tests {
    use super::super::options::{AcknowledgementOptions, Leftovers, MadesOptions, MadesPreflight, PayloadKind};
    use super::super::run_payloads::RunPayloads;
    use super::*;
    use mailrun_mades::Broker;
    use mailrun_mades::api::{EndpointQueueNames, RunMessageId, names};
    use mailrun_mades_simulator::embedded::{EncodedMessage, Writer};
    use mailrun_measurement::RunId;
    use mailrun_measurement::record::Arrival;
    use mailrun_process::live::LiveMode;
    use mailrun_schedule::distribution::Distribution;

    const RUN: RunId = RunId([7; 16]);

    fn run_state() -> MadesRunState {
        let broker = Broker::new("amqp://localhost".parse().unwrap(), "test");
        let options = MadesOptions {
            name: String::new(),
            mode: MadesMode::Endpoint,
            outbox: broker.clone(),
            inbox: broker,
            queues: EndpointQueueNames::default(),
            messages: Some(1),
            duration: None,
            sizes: Distribution::constant(100),
            payload: PayloadKind::Random,
            receiver: "B".to_owned(),
            message_type: "T".to_owned(),
            sender_application: "mailrun".to_owned(),
            priority: None,
            first_number: 0,
            is_durable: false,
            max_in_transit: 1,
            window: 1,
            credit: 1,
            offer: None,
            market: None,
            arrival: Arrival::Closed,
            seed: 1,
            timeout: Duration::from_secs(1),
            linger: Duration::ZERO,
            reconnect: Duration::ZERO,
            leftovers: Leftovers::Kept,
            preflight: MadesPreflight::Off,
            acknowledgement: Some(AcknowledgementOptions::Sent { message_type: "A".to_owned(), far_outbox: None }),
            run: None,
            out: None,
            live: LiveMode::Off,
            http: None,
            observer: None,
            command: Vec::new(),
            thresholds: Vec::new(),
            abort_on: Vec::new(),
        };
        let payloads = RunPayloads::new(&options, RUN).unwrap();
        let run_state = MadesRunState::new(options, RUN, payloads, Duration::ZERO);
        run_state.tracker.borrow_mut().create(Duration::ZERO, Duration::ZERO);
        run_state
    }

    fn message(properties: &[(&str, &str)], write_body: impl FnOnce(&mut Writer<'_>)) -> DecodedMessage {
        let mut octets = Vec::new();
        let mut out = Writer::new(&mut octets);
        out.described_map(0x74, |entries| {
            properties.iter().flat_map(|(name, value)| [name, value]).for_each(|text| entries.string(text));
        });
        write_body(&mut out);
        DecodedMessage::decode(&EncodedMessage::from(octets)).unwrap()
    }

    #[test]
    fn a_failed_document_counts_once_however_often_that_is_reported() {
        let run_state = run_state();
        let acknowledgements = run_state.acknowledgements.as_ref().unwrap();
        let document = RunMessageId { sequence: 0, run: acknowledgements.run() }.to_string();
        let about = (names::BA_MESSAGE_ID, document.as_str());
        let refusal = message(&[about, (names::ERROR_CODE, "E1")], |body| body.described_binary(0x75, b""));
        let accepted = message(&[about, (names::MESSAGE_ID, "id-1")], |body| body.described_binary(0x75, b""));
        let failure = message(&[about], |body| body.described_string(0x77, "FAILED"));
        // This event names the document by `id-1`, the id from the endpoint's reply `accepted`. The event reports the
        // same failure as `failure`.
        let failure_by_id = message(&[(names::MESSAGE_ID, "id-1")], |body| body.described_string(0x77, "FAILED"));
        let steps = [
            (ReceiveQueue::Reply, &refusal, (1, 0)),
            (ReceiveQueue::Reply, &refusal, (1, 0)),
            (ReceiveQueue::Reply, &accepted, (1, 0)),
            (ReceiveQueue::Event, &failure_by_id, (1, 1)),
            (ReceiveQueue::Event, &failure, (1, 1)),
        ];
        for (number, (queue, message, expected)) in steps.into_iter().enumerate() {
            let ownership = classify(&run_state, queue, message, Duration::from_secs(1));
            assert!(matches!(ownership, Ownership::Own), "step {number}: {ownership:?}");
            let counts = &acknowledgements.counts;
            assert_eq!((counts.refused.get(), counts.failed.get()), expected, "step {number}");
        }
        let tracker = run_state.tracker.borrow();
        assert_eq!(tracker.troubles.count(TroubleKind::Acknowledgement), 2);
    }
}
