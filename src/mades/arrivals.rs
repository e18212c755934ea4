//! Translates a message from a queue into facts for the account, and decides whether the message belongs to this run.
use super::account::{Answer, Content, Queue};
use super::books::Books;
use super::stages::{Mode, Stage};
use super::troubles::Trouble;
use ::mades::api::{Event, EventState, InboxMessage, Oddity, Received, Reply, ReplyOutcome};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

/// State in an EDX status of a message that will not arrive.
const FAILED: &str = "FAILED";

/// Decision about a message.
#[derive(Debug)]
pub(super) enum Decision {
    /// It belongs to this run and is recorded.
    Take,
    /// It belongs to another application.
    Leave,
    /// It names a message by the endpoint's id alone, which is not known yet.
    Ask(Stranger),
}

/// An event that waits until the message of its id is known.
#[derive(Debug)]
pub(super) struct Stranger {
    peer_id: u64,
    state: Option<EventState>,
    code: String,
    text: String,
    came: Duration,
}

/// Records the facts that a message carries.
pub(super) fn judge(books: &Books, queue: Queue, message: &Received, now: Duration) -> Decision {
    let decision = match queue {
        Queue::Reply => reply(books, message, now),
        Queue::Event => event(books, message, now),
        Queue::Inbox => inbox(books, message, now),
    };
    match decision {
        Decision::Take => books.hear(now),
        Decision::Leave => books.count_foreign(queue),
        Decision::Ask(_) => {}
    }
    decision
}

fn reply(books: &Books, message: &Received, now: Duration) -> Decision {
    let reply = Reply::read(message);
    let Some(sequence) = books.own(reply.identity()) else { return Decision::Leave };
    note_oddities(books, &reply.oddities);
    let mut account = books.account.borrow_mut();
    let peer_id = reply.message_id.as_deref().map_or(0, short);
    match &reply.outcome {
        ReplyOutcome::Taken | ReplyOutcome::Unclear => account.replied(sequence, now, Answer::Taken { peer_id }),
        ReplyOutcome::Refused(refusal) => {
            let code = refusal.code.as_deref().or(refusal.id.as_deref()).unwrap_or_default();
            let text = refusal.message.as_deref().or(refusal.details.as_deref()).unwrap_or_default();
            account.replied(sequence, now, Answer::Refused { code, text });
        }
        ReplyOutcome::Status(status) if status.last.value.eq_ignore_ascii_case(FAILED) => {
            let text = status.last.text.as_deref().unwrap_or_default();
            // A toolbox that never gave the message an id has not taken it.
            if status.original_message_id.is_some() {
                account.replied(sequence, now, Answer::GaveUp { code: "", text });
            } else {
                account.replied(sequence, now, Answer::Refused { code: FAILED, text });
            }
        }
        ReplyOutcome::Status(_) => account.replied(sequence, now, Answer::Taken { peer_id }),
    }
    Decision::Take
}

fn event(books: &Books, message: &Received, now: Duration) -> Decision {
    let event = Event::read(message);
    let text = |text: &Option<std::borrow::Cow<'_, str>>| text.as_deref().unwrap_or_default().to_owned();
    let state = event.state.clone();
    if let Some(sequence) = books.own(event.identity()) {
        note_oddities(books, &event.oddities);
        happened(books, sequence, state.as_ref(), &text(&event.error_code), &text(&event.error_message), now);
        return Decision::Take;
    }
    // An event that names a message of another run is not ours; one that names none may be.
    let Some(id) = event.message_id.as_deref().filter(|_| event.identity().is_none()) else { return Decision::Leave };
    let code = text(&event.error_code);
    let text = text(&event.error_message);
    let stranger = Stranger { peer_id: short(id), state, code, text, came: now };
    if recognise(books, &stranger) { Decision::Take } else { Decision::Ask(stranger) }
}

/// Records the event if the message of its id is known by now.
pub(super) fn recognise(books: &Books, stranger: &Stranger) -> bool {
    let Some(sequence) = books.account.borrow_mut().named_by_peer(stranger.peer_id) else { return false };
    happened(books, sequence, stranger.state.as_ref(), &stranger.code, &stranger.text, stranger.came);
    books.hear(stranger.came);
    true
}

fn happened(books: &Books, sequence: u64, state: Option<&EventState>, code: &str, text: &str, now: Duration) {
    let mut account = books.account.borrow_mut();
    let is_tracing = account.mode() == Mode::Tracing;
    match state {
        // go-mades-bench waits for DELIVERED where the protocol has TRACING.
        Some(EventState::Tracing | EventState::Delivered) if is_tracing => account.event(sequence, now, Stage::Traced),
        Some(EventState::Delivered) => account.event(sequence, now, Stage::Delivered),
        Some(EventState::Received) if !is_tracing => account.event(sequence, now, Stage::Received),
        Some(EventState::Failed) => account.failed(sequence, now, code, text),
        // Intermediate states: nothing waits for them.
        Some(EventState::Accepted | EventState::Transported) | None => {}
        Some(other) => {
            let text = format!("an event {other} of a message in mode {}", account.mode().name());
            account.troubles.add(Trouble::UnknownEvent, other.as_str(), &text);
        }
    }
}

fn inbox(books: &Books, message: &Received, now: Duration) -> Decision {
    let arrived = InboxMessage::read(message);
    let Some(sequence) = books.own(arrived.identity()) else { return Decision::Leave };
    note_oddities(books, &arrived.oddities);
    let is_intact = books.payloads.is_intact(sequence, arrived.content.octets());
    if !is_intact {
        books.trouble(Trouble::Corrupt, "", &format!("the payload of message {sequence} is not what was sent"));
    }
    let content = if is_intact { Content::Intact } else { Content::Corrupt };
    books.account.borrow_mut().arrived(sequence, now, content);
    Decision::Take
}

fn note_oddities(books: &Books, oddities: &[Oddity]) {
    for oddity in oddities {
        books.trouble(Trouble::Odd, &oddity.to_string(), "not as specified by the API");
    }
}

/// Shortens an id to a number that is never 0.
fn short(id: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish() | 1
}
