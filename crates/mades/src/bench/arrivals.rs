//! Translates a message from a queue into facts for the account, and decides whether the message belongs to this run.
use super::run_state::MadesRunState;
use super::stages::{MadesMode, MessageStage};
use super::tracker::{EndpointReply, PayloadIntegrity, ReceiveQueue};
use super::troubles::TroubleKind;
use crate::api::{DecodedMessage, EventState, InboxMessage, Oddity, Reply, ReplyOutcome, SendEvent};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

/// State in an EDX status of a message that will not arrive.
const FAILED: &str = "FAILED";

/// Decision about a message.
#[derive(Debug)]
pub(super) enum Ownership {
    /// It belongs to this run and is recorded.
    Own,
    /// It belongs to another application.
    Foreign,
    /// It names a message by the endpoint's id alone, which is not known yet.
    Unknown(UnmatchedEvent),
}

/// An event that waits until the message of its id is known.
#[derive(Debug)]
pub(super) struct UnmatchedEvent {
    peer_id: u64,
    state: Option<EventState>,
    code: String,
    text: String,
    received_at: Duration,
}

/// Records the facts that a message carries.
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
            // A toolbox that never gave the message an id has not taken it.
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

fn event(run_state: &MadesRunState, message: &DecodedMessage, now: Duration) -> Ownership {
    let event = SendEvent::read(message);
    let text = |text: &Option<std::borrow::Cow<'_, str>>| text.as_deref().unwrap_or_default().to_owned();
    let state = event.state.clone();
    if let Some(sequence) = run_state.own_sequence(event.identity()) {
        record_oddities(run_state, &event.oddities);
        record_event(run_state, sequence, state.as_ref(), &text(&event.error_code), &text(&event.error_message), now);
        return Ownership::Own;
    }
    // An event that names a message of another run is not ours; one that names none may be.
    let Some(id) = event.message_id.as_deref().filter(|_| event.identity().is_none()) else {
        return Ownership::Foreign;
    };
    let code = text(&event.error_code);
    let text = text(&event.error_message);
    let unmatched = UnmatchedEvent { peer_id: hash_id(id), state, code, text, received_at: now };
    if match_event(run_state, &unmatched) { Ownership::Own } else { Ownership::Unknown(unmatched) }
}

/// Records the event if the message of its id is known by now.
pub(super) fn match_event(run_state: &MadesRunState, unmatched: &UnmatchedEvent) -> bool {
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
        // go-mades-bench waits for DELIVERED where the protocol has TRACING.
        Some(EventState::Tracing | EventState::Delivered) if is_tracing => {
            tracker.event(sequence, now, MessageStage::Traced)
        }
        Some(EventState::Delivered) => tracker.event(sequence, now, MessageStage::Delivered),
        Some(EventState::Received) if !is_tracing => tracker.event(sequence, now, MessageStage::Received),
        Some(EventState::Failed) => tracker.failed(sequence, now, code, text),
        // Intermediate states: nothing waits for them.
        Some(EventState::Accepted | EventState::Transported) | None => {}
        Some(other) => {
            let text = format!("an event {other} of a message in mode {}", tracker.mode().name());
            tracker.troubles.add(TroubleKind::UnknownEvent, other.as_str(), &text);
        }
    }
}

fn inbox(run_state: &MadesRunState, message: &DecodedMessage, now: Duration) -> Ownership {
    let arrived = InboxMessage::read(message);
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
    run_state.tracker.borrow_mut().arrived(sequence, now, content);
    Ownership::Own
}

fn record_oddities(run_state: &MadesRunState, oddities: &[Oddity]) {
    for oddity in oddities {
        run_state.record_trouble(TroubleKind::Odd, &oddity.to_string(), "not as specified by the API");
    }
}

/// Shortens an id to a number that is never 0.
fn hash_id(id: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish() | 1
}
