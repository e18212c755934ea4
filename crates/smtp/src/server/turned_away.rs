//! Handles a client that was refused at the greeting. Everything but QUIT gets 503 (RFC 5321 §3.1),
//! within the session's limits.
use super::core::ServerCore;
use super::event::Event;
use super::state::{ChunkRefusal, MessagePace, OpenQuestion, SkippedChunk, State, Transition};
use crate::command::{Chunk, Command};
use crate::reply_reason::ReplyReason;
use std::time::Duration;

pub(super) fn step<'a>(
    command: &Result<Command<'a>, ReplyReason>,
    now: Duration,
    core: &mut ServerCore,
    out: &mut Vec<u8>,
) -> Transition<'a> {
    if core.is_too_much(command, now) {
        return core.give_up(ReplyReason::TooManyCommands, out);
    }
    match command {
        Ok(Command::Quit) => (State::Answer(OpenQuestion::QuitTurnedAway), Some(Event::Quit)),
        Ok(Command::Chunk(chunk)) if core.offers().chunking => skip(*chunk, now, core, out),
        Err(reason @ (ReplyReason::BadChunk | ReplyReason::OtherProtocol)) => {
            core.refuse(State::ExpectQuit, *reason, out)
        }
        Ok(_) | Err(_) => refuse(core, out),
    }
}

pub(super) fn refuse<'a>(core: &mut ServerCore, out: &mut Vec<u8>) -> Transition<'a> {
    core.refuse(State::ExpectQuit, ReplyReason::NoService, out)
}

fn skip<'a>(chunk: Chunk, now: Duration, core: &mut ServerCore, out: &mut Vec<u8>) -> Transition<'a> {
    if chunk.bytes > core.most_bytes() {
        return core.overwhelmed(ReplyReason::MessageTooBig, out);
    }
    let pace = MessagePace::begin(now, &core.settings.limits);
    (SkippedChunk::state(chunk, pace, ChunkRefusal::TurnedAway), Some(Event::Answered))
}
