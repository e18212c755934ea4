//! Handles the application's answers to the questions of a session: sends the reply, and chooses
//! the next state.
use super::core::ServerCore;
use super::event::Event;
use super::state::{
    ChunkRefusal, ChunkedMessage, CommandState, DataMessage, DeliveryState, MessagePace, OpenQuestion, SkippedChunk,
    State, TransactionState, Transition,
};
use crate::command::Chunk;
use crate::reply::{Reply, say};
use crate::reply_reason::ReplyReason;
use crate::settings::Protocol;
use std::time::Duration;

impl DeliveryState {
    pub(super) fn ask<'a>(self) -> Transition<'a> {
        (State::Answer(OpenQuestion::Delivery(self)), Some(Event::Delivery { recipient: self.next }))
    }

    fn answered(self, core: &mut ServerCore) -> State {
        let next = self.next + 1;
        if next < self.recipients { State::Delivery(Self { next, ..self }) } else { core.settled() }
    }
}

/// Sends the application's answer, or the usual positive reply if there is none. Returns the reply
/// that was sent.
fn send<'a>(answer: Option<&'a Reply>, usual: &'a Reply, out: &mut Vec<u8>) -> &'a Reply {
    let reply = answer.unwrap_or(usual);
    out.extend_from_slice(reply.wire());
    reply
}

fn after(reply: &Reply, granted: CommandState, refused: CommandState) -> State {
    State::Command(if reply.is_positive() { granted } else { refused })
}

impl OpenQuestion {
    /// Returns the state that follows the application's answer. `None` means yes, with the usual
    /// reply. The answer is never 421, because `Server::answer` ends the session at a 421.
    pub(super) fn answered(
        self,
        answer: Option<&Reply>,
        now: Duration,
        core: &mut ServerCore,
        out: &mut Vec<u8>,
    ) -> State {
        match self {
            Self::Greeting => greeting_answered(answer, core, out),
            Self::Hello(kind, before) => {
                let reply = send(answer, core.hello_reply(kind), out);
                after(reply, CommandState::ExpectMail, before)
            }
            Self::Mail(transaction) => mail_answered(transaction, answer, core, out),
            Self::Recipient(transaction) => recipient_answered(transaction, answer, core, out),
            Self::Data(transaction) => data_answered(transaction, answer, now, core, out),
            Self::FirstChunk(transaction, chunk) => first_chunk_answered(transaction, chunk, answer, now, core),
            Self::Message { recipients } => message_answered(recipients, answer, core, out),
            Self::Delivery(delivery) => {
                send(answer, say!("250 2.0.0 Ok"), out);
                delivery.answered(core)
            }
            Self::Verify(state) => {
                send(answer, say!("252 2.5.2 Cannot VRFY user, but will take mail and try"), out);
                State::Command(state)
            }
            Self::Reset(before) => {
                let reply = send(answer, ReplyReason::Reset.reply(), out);
                after(reply, before.reset(), before)
            }
            Self::Noop(state) => {
                send(answer, ReplyReason::Noop.reply(), out);
                State::Command(state)
            }
            Self::Quit(before) => quit_answered(State::Command(before), answer, core, out),
            Self::QuitTurnedAway => quit_answered(State::ExpectQuit, answer, core, out),
            Self::StartTls => {
                let reply = send(answer, say!("220 2.0.0 Ready to start TLS"), out);
                if reply.is_positive() { State::ExpectTls } else { State::Command(CommandState::ExpectMail) }
            }
            Self::Nonce(request) => request.answered(answer, core, out),
            Self::Login(question) => question.answered(answer, core, out),
            Self::Xclient { is_logged_in, before } => {
                // If XCLIENT is granted, the session starts again with the greeting, now on behalf of
                // the client that the proxy has named.
                let reply = send(answer, &core.settings.greeting, out);
                core.is_authenticated = if reply.is_positive() { is_logged_in } else { core.is_authenticated };
                after(reply, CommandState::ExpectHello, before)
            }
        }
    }
}

fn greeting_answered(answer: Option<&Reply>, core: &mut ServerCore, out: &mut Vec<u8>) -> State {
    let reply = send(answer, &core.settings.greeting, out);
    if reply.is_positive() { State::Command(CommandState::ExpectHello) } else { State::ExpectQuit }
}

fn mail_answered(
    transaction: TransactionState,
    answer: Option<&Reply>,
    core: &mut ServerCore,
    out: &mut Vec<u8>,
) -> State {
    let reply = send(answer, say!("250 2.1.0 Ok"), out);
    if !reply.is_positive() {
        return State::Command(CommandState::ExpectMail);
    }
    core.has_open_mail = true;
    State::Command(CommandState::ExpectRecipient(transaction))
}

fn recipient_answered(
    mut transaction: TransactionState,
    answer: Option<&Reply>,
    core: &mut ServerCore,
    out: &mut Vec<u8>,
) -> State {
    let reply = send(answer, say!("250 2.1.5 Ok"), out);
    if reply.is_positive() {
        // An accepted recipient is progress, so its RCPT does not count towards `Limits::idle_commands`.
        // `Limits::recipients` already limits the number of accepted recipients.
        core.idle_commands -= 1;
        transaction.accepted += 1;
    } else {
        transaction.refuse_recipient(reply, core);
    }
    State::Command(CommandState::ExpectRecipient(transaction))
}

fn data_answered(
    transaction: TransactionState,
    answer: Option<&Reply>,
    now: Duration,
    core: &mut ServerCore,
    out: &mut Vec<u8>,
) -> State {
    let reply = send(answer, say!("354 End data with <CR><LF>.<CR><LF>"), out);
    match reply.code() / 100 {
        3 => DataMessage::begin(transaction, now, core),
        // If the application refuses DATA, keep the transaction open, so that the client can try
        // DATA again.
        _ => State::Command(CommandState::ExpectRecipient(transaction)),
    }
}

/// Handles the application's answer to the first BDAT. Begins to read the message or, after a refusal, skips the chunk.
/// Sends no reply yet, because the client gets the reply to BDAT only after the bytes of the chunk.
fn first_chunk_answered(
    transaction: TransactionState,
    chunk: Chunk,
    answer: Option<&Reply>,
    now: Duration,
    core: &mut ServerCore,
) -> State {
    match answer {
        // End the transaction, so that later chunks that the client has already pipelined are refused as well (RFC 3030
        // §2).
        Some(reply) if !reply.is_positive() => {
            let times = core.replies_to_chunk(chunk, transaction.accepted);
            let pace = MessagePace::begin(now, &core.settings.limits);
            SkippedChunk::state(chunk, pace, ChunkRefusal::Said(reply.clone(), times))
        }
        Some(_) | None => ChunkedMessage::begin(transaction, chunk, now, core),
    }
}

/// Sends the reply to the message. In LMTP, repeats the application's reply for each recipient. If the application
/// granted an LMTP message without a reply, asks it about each recipient separately.
fn message_answered(recipients: u32, answer: Option<&Reply>, core: &mut ServerCore, out: &mut Vec<u8>) -> State {
    match (core.settings.protocol, answer) {
        (Protocol::Smtp, answer) => {
            send(answer, say!("250 2.0.0 Ok"), out);
            core.settled()
        }
        (Protocol::Lmtp, Some(reply)) => {
            (0..recipients).for_each(|_| out.extend_from_slice(reply.wire()));
            core.settled()
        }
        (Protocol::Lmtp, None) => State::Delivery(DeliveryState { next: 0, recipients }),
    }
}

fn quit_answered(refused: State, answer: Option<&Reply>, core: &mut ServerCore, out: &mut Vec<u8>) -> State {
    let reply = send(answer, ReplyReason::Quit.reply(), out);
    if !reply.is_positive() {
        return refused;
    }
    core.has_quit = true;
    State::Closed
}
