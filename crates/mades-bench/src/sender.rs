//! Waits until a message is due and the limits of messages in flight allow it, and then sends it. While the sender
//! waits, it reads the broker's answers to earlier messages.
use super::pacer::PacerAction;
use super::run_state::MadesRunState;
use super::timer_fd::TimerFd;
use bytes::BytesMut;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use mailrun_mades::api::{AmqpMessage, OutgoingProperties, OutgoingTemplate, Payload};
use mailrun_mades::{Disposition, DispositionFuture, Error, SenderLink};
use mailrun_net::clock;
use std::collections::VecDeque;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::{error::Elapsed, timeout};

const SPARE_PAYLOAD_LIMIT: usize = 16;
/// Error code that is recorded for a message above the broker's size limit.
pub(super) const TOO_LARGE: &str = "too large";

pub(super) async fn send(
    run_state: Rc<MadesRunState>,
    mut sender: SenderLink,
    timer: Rc<TimerFd>,
) -> Result<(), Error> {
    let mut builder = MessageBuilder::new(&run_state);
    let mut transfers = Transfers::new(Rc::clone(&run_state), record_settlement);
    loop {
        let claimed = transfers.run_alongside(next_message(&run_state, &sender, &timer)).await;
        let Some(sequence) = claimed else { break };
        let message = builder.build(&run_state, sequence);
        let offered = transfers.run_alongside(offer(&run_state, &mut sender, message, sequence)).await;
        if let Err(error @ Error::TooLarge { .. }) = offered {
            // The message is too large, but the link still works, so give up only this message.
            run_state.unsent.set(None);
            let now = clock::now();
            run_state.tracker.borrow_mut().returned(sequence, now, TOO_LARGE, &error.to_string());
            run_state.record_arrival(now);
            // If every message is too large, this loop never waits, so let other tasks run here.
            tokio::task::yield_now().await;
            continue;
        }
        let Some(settling) = offered? else {
            // Do not send the message later. Either the run is over, or the broker gave no credit before the message's
            // time-out. In the second case, the tracker gives up the message.
            run_state.unsent.set(None);
            continue;
        };
        let now = clock::now();
        run_state.unsent.set(None);
        run_state.tracker.borrow_mut().sent(sequence, now);
        transfers.unsettled.push(await_settlement(sequence, settling, run_state.options.timeout));
    }
    transfers.run_alongside(run_state.ended()).await;
    // Ignore an error of the link here, because the tracker has already recorded it.
    let _ = sender.close().await;
    Ok(())
}

/// Sends a message, or returns `None` if the broker gives no credit before the message's time-out, or if the run is
/// over.
async fn offer(
    run_state: &MadesRunState,
    sender: &mut SenderLink,
    message: &AmqpMessage,
    sequence: u64,
) -> Result<Option<DispositionFuture>, Error> {
    // Most messages can be sent at once, so try that first, without reading the clock.
    if let Some(settling) = sender.send(message).now_or_never() {
        return settling.map(Some);
    }
    let began = clock::now();
    let has_credit = sender.has_credit();
    if !has_credit {
        run_state.credit.borrow_mut().wait(began);
    }
    let until = run_state.tracker.borrow().given_up_at(sequence);
    let outcome = tokio::select! {
        biased;
        settling = sender.send(message) => settling.map(Some),
        () = tokio::time::sleep(until.saturating_sub(began)) => Ok(None),
        () = run_state.ended() => Ok(None),
    };
    if !has_credit {
        run_state.credit.borrow_mut().end(clock::now());
    }
    outcome
}

/// Waits until the next message is due and the limits of messages in flight and of unconfirmed transfers allow it. Then
/// creates the message and returns its number. Returns `None` if there is nothing more to send.
async fn next_message(run_state: &MadesRunState, sender: &SenderLink, timer: &TimerFd) -> Option<u64> {
    if let Some(sequence) = run_state.unsent.get() {
        // Send the message that was being sent when the connection was lost, unless it has timed out since.
        if run_state.tracker.borrow().is_open(sequence) {
            return Some(sequence);
        }
        run_state.unsent.set(None);
    }
    let mut was_early = false;
    let mut has_waited = false;
    loop {
        let now = clock::now();
        let next = run_state.pacer.borrow().next(now);
        let has_room = sender.available_window() > 0 && run_state.tracker.borrow().has_room();
        match next {
            PacerAction::Stop => return None,
            PacerAction::Create(since) if has_room => {
                run_state.waited_for_room.set(run_state.waited_for_room.get() + u64::from(has_waited));
                return Some(create(run_state, since, now, was_early));
            }
            PacerAction::Wait(due) if has_room => {
                was_early = true;
                tokio::select! {
                    () = timer.sleep_until(due) => {}
                    () = run_state.room_notify.notified() => {}
                }
            }
            PacerAction::Create(_) | PacerAction::Wait(_) => {
                was_early = false;
                has_waited = has_waited || matches!(next, PacerAction::Create(_));
                run_state.room_notify.notified().await;
            }
        }
    }
}

fn create(run_state: &MadesRunState, since: Duration, now: Duration, was_early: bool) -> u64 {
    // The lag tells how late the sender wakes up, so record it only if the sender slept until the due time. Otherwise,
    // earlier messages or a limit of messages in flight have delayed this message.
    if was_early {
        run_state.lag.borrow_mut().record(now.saturating_sub(since));
    }
    run_state.pacer.borrow_mut().advance();
    run_state.due_seconds.borrow_mut().add(since, run_state.began);
    let sequence = run_state.tracker.borrow_mut().create(since, now);
    run_state.unsent.set(Some(sequence));
    sequence
}

/// Writes messages from templates. When a payload is no longer in use, its memory is reused for another payload.
struct MessageBuilder {
    /// One template for each `--shape`, because shapes can differ in message type. Without `--shape`, there is a single
    /// template.
    templates: Vec<OutgoingTemplate>,
    spare: VecDeque<Payload>,
}

impl MessageBuilder {
    fn new(run_state: &MadesRunState) -> Self {
        let options = &run_state.options;
        let template = |message_type: &str| {
            let outgoing = OutgoingProperties {
                is_durable: options.is_durable,
                priority: options.priority,
                is_tracing: options.mode == super::MadesMode::Tracing,
                sender_application: options.sender_application.clone(),
                ..OutgoingProperties::new(&options.receiver, message_type)
            };
            outgoing.template(run_state.uuid(), Payload::new())
        };
        let templates = match &options.market {
            Some(market) => {
                market.shapes.iter().map(|shape| template(shape.message_type(&options.message_type))).collect()
            }
            None => vec![template(&options.message_type)],
        };
        Self { templates, spare: VecDeque::new() }
    }

    fn build(&mut self, run_state: &MadesRunState, sequence: u64) -> &AmqpMessage {
        let since = run_state.tracker.borrow().since(sequence);
        let spare = self.spare.pop_front().unwrap_or_default();
        // Reuse the oldest buffer, unless it is still being sent.
        let mut buffer = spare.try_into_mut().unwrap_or_else(|_| BytesMut::new());
        run_state.payloads.render(sequence, since, &mut buffer);
        let body = buffer.freeze();
        if self.spare.len() < SPARE_PAYLOAD_LIMIT {
            self.spare.push_back(body.clone());
        }
        let created_at_ms = clock::wall().as_millis() as i64;
        self.templates[run_state.payloads.shape(sequence)].fill_with(
            run_state.options.first_number + sequence,
            created_at_ms,
            body,
        )
    }
}

pub(super) type SettledTransfer = (u64, Result<Result<Disposition, Error>, Elapsed>);

/// Waits for the broker's answer, but only until the message's time-out. Without the time-out, an unanswered message
/// would count against the limit of unconfirmed transfers forever.
pub(super) async fn await_settlement(sequence: u64, settling: DispositionFuture, limit: Duration) -> SettledTransfer {
    (sequence, timeout(limit, settling).await)
}

pub(super) struct Transfers<F> {
    run_state: Rc<MadesRunState>,
    pub(super) unsettled: FuturesUnordered<F>,
    record: fn(&MadesRunState, SettledTransfer),
}

impl<F: Future<Output = SettledTransfer>> Transfers<F> {
    pub(super) fn new(run_state: Rc<MadesRunState>, record: fn(&MadesRunState, SettledTransfer)) -> Self {
        Self { run_state, unsettled: FuturesUnordered::new(), record }
    }

    /// Awaits `other`, and records the broker's answers to earlier transfers in the meantime.
    pub(super) async fn run_alongside<T>(&mut self, other: impl Future<Output = T>) -> T {
        let mut other = pin!(other);
        loop {
            tokio::select! {
                biased;
                Some(settled) = self.unsettled.next(), if !self.unsettled.is_empty() => {
                    (self.record)(&self.run_state, settled);
                }
                done = &mut other => return done,
            }
        }
    }
}

fn record_settlement(run_state: &MadesRunState, (sequence, settled): SettledTransfer) {
    let now = clock::now();
    let mut tracker = run_state.tracker.borrow_mut();
    match settled {
        Ok(Ok(Disposition::Accepted)) => tracker.settled(sequence, now),
        Ok(Ok(Disposition::Rejected { condition, description })) => {
            tracker.returned(sequence, now, &condition, &description);
        }
        Ok(Ok(Disposition::Released)) => tracker.returned(sequence, now, "released", "the broker rejects it for now"),
        Ok(Ok(Disposition::Modified { .. })) => {
            tracker.returned(sequence, now, "modified", "the broker rejects it");
        }
        // Record nothing here. The tracker gives up an unsettled message by itself, at the message's time-out or when
        // the connection ends.
        Err(_) | Ok(Err(_)) => {}
    }
    drop(tracker);
    run_state.record_arrival(now);
}
