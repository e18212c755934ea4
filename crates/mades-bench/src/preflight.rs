//! Sends one message before the load. The message proves that a program reads the outbox, and that replies, events and
//! the message itself come out of the expected queues. A wrong prefix, queue or mode is thus found within seconds, and
//! no load goes to a queue that nobody reads.
use super::acknowledgement::preflight_run;
use super::options::{Leftovers, MadesOptions, MadesPreflight};
use super::run_payloads::RunPayloads;
use super::run_state::MadesRunState;
use super::sender::TOO_LARGE;
use super::side::{self, RunSides};
use super::stages::{MadesMode, MessageStage};
use super::timer_fd::TimerFd;
use super::troubles::TroubleKind;
use anyhow::{Result, anyhow};
use mailrun_measurement::RunId;
use mailrun_measurement::record::Arrival;
use mailrun_net::clock;
use mailrun_process::interrupt::{Interrupt, Interrupted, StopRequest};
use mailrun_process::start_wait::StartWait;
use std::rc::Rc;
use std::time::Duration;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// After the answer to the message, the check also waits until the message has reached all stages, so that no event or
/// copy of the message is left in the queues. This wait ends at the latest this long after the start of the check.
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(10);
/// Time after which the bench tells the user what it waits for.
const NOTICE_DELAY: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Hint at the end of the error messages of the preflight check.
const SKIPS: &str = "(--no-preflight skips this check)";

/// Sends a message, waits for the endpoint's answer, and then waits until the message has reached all stages or
/// `COMPLETION_TIMEOUT` has passed.
///
/// # Errors
/// Fails if no answer comes, if the message is too large for the broker, if the queues cannot be used, or if the user
/// interrupts.
pub(super) async fn check(options: &MadesOptions, run: RunId, interrupt: &Interrupt, wait: StartWait) -> Result<()> {
    let run = preflight_run(run);
    let options = first_message(options);
    let payloads = RunPayloads::new(&options, run)?;
    let open = side::open_all(side::sides(&options), wait).await?;
    let run_state = Rc::new(MadesRunState::new(options, run, payloads, clock::now()));
    let sides = RunSides::start(open, &run_state, &Rc::new(TimerFd::new()?));
    let outcome = await_answer(&run_state, interrupt).await;
    sides.stop(&run_state, interrupt).await;
    outcome
}

fn first_message(options: &MadesOptions) -> MadesOptions {
    MadesOptions {
        messages: Some(1),
        duration: None,
        offer: None,
        market: None,
        arrival: Arrival::Closed,
        timeout: options.timeout.max(ANSWER_TIMEOUT + COMPLETION_TIMEOUT),
        leftovers: Leftovers::Kept,
        preflight: MadesPreflight::Off,
        acknowledgement: None,
        observer: None,
        ..options.clone()
    }
}

async fn await_answer(run_state: &MadesRunState, interrupt: &Interrupt) -> Result<()> {
    let began = run_state.began;
    let mut is_told = false;
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        if interrupt.requested() != StopRequest::Nothing {
            return Err(Interrupted::BEFORE_LOAD.into());
        }
        let waited = clock::now().saturating_sub(began);
        if let Some(reason) = run_state.give_up_reason() {
            return Err(anyhow!("{reason}"));
        }
        if let Some(text) = run_state.tracker.borrow().troubles.text(TroubleKind::Returned, TOO_LARGE) {
            return Err(anyhow!("{text} {SKIPS}"));
        }
        if is_ended(run_state) || (is_answered(run_state) && waited >= COMPLETION_TIMEOUT) {
            return Ok(());
        }
        if waited >= ANSWER_TIMEOUT {
            if !is_answered(run_state) {
                return Err(failure(run_state));
            }
            if let Some(queue) = unused_queue(run_state) {
                return Err(queue);
            }
        }
        if waited >= NOTICE_DELAY && !std::mem::replace(&mut is_told, true) {
            mailrun_process::tell!(
                "mailrun mades: waiting for the answer to a first message (--no-preflight skips it)"
            );
        }
    }
}

fn is_ended(run_state: &MadesRunState) -> bool {
    let tracker = run_state.tracker.borrow();
    tracker.created() > 0 && tracker.in_transit() == 0
}

/// Returns true if the endpoint has answered. A confirmation by the broker alone is not enough.
fn is_answered(run_state: &MadesRunState) -> bool {
    let answers = [MessageStage::Replied, MessageStage::Inbox, MessageStage::Delivered, MessageStage::Received];
    let tracker = run_state.tracker.borrow();
    tracker.waterfall.count(MessageStage::Traced) > 0 || answers.iter().any(|stage| tracker.waterfall.count(*stage) > 0)
}

/// Returns an error if the endpoint seems to use another queue than the bench. In this case, nothing comes out of the
/// bench's queue although the message has reached a later stage. If the message were only slow, it would not have
/// reached that stage.
fn unused_queue(run_state: &MadesRunState) -> Option<anyhow::Error> {
    let MadesOptions { mode, queues, .. } = &run_state.options;
    let tracker = run_state.tracker.borrow();
    let has = |stage: MessageStage| tracker.waterfall.count(stage) > 0;
    let has_event = has(MessageStage::Delivered) || has(MessageStage::Received);
    let events = queues.send_event.as_deref().filter(|_| *mode == MadesMode::Endpoint);
    let (passed, queue, option) = match mode {
        MadesMode::Endpoint if has_event && !has(MessageStage::Inbox) => {
            ("was delivered, as an event says", queues.inbox.as_str(), "--inbox")
        }
        MadesMode::Toolbox if has(MessageStage::Replied) && !has(MessageStage::Inbox) => {
            ("was delivered, as the reply says", queues.inbox.as_str(), "--inbox")
        }
        MadesMode::Endpoint if has(MessageStage::Inbox) && !has(MessageStage::Replied) => {
            ("arrived in the inbox", queues.reply.as_str(), "--outbox-reply")
        }
        MadesMode::Endpoint if has(MessageStage::Inbox) && !has_event => {
            ("arrived in the inbox", events?, "--send-event")
        }
        _ => return None,
    };
    Some(anyhow!(
        "a first message {passed}, and nothing came out of {queue} within {} s: check {option} {SKIPS}",
        ANSWER_TIMEOUT.as_secs()
    ))
}

fn failure(run_state: &MadesRunState) -> anyhow::Error {
    let MadesOptions { mode, queues, .. } = &run_state.options;
    let within = ANSWER_TIMEOUT.as_secs();
    let to = if *mode == MadesMode::Amqp { &queues.inbox } else { &queues.outbox };
    let reader = match mode {
        _ if run_state.tracker.borrow().waterfall.count(MessageStage::Settled) == 0 => {
            return anyhow!(
                "the broker did not take a first message for {to} within {within} s: is the queue or its disk full? {SKIPS}"
            );
        }
        MadesMode::Amqp => {
            return anyhow!(
                "a first message to {to} did not come back within {within} s: does another program read this queue? {SKIPS}"
            );
        }
        MadesMode::Endpoint | MadesMode::Tracing => "an endpoint",
        MadesMode::Toolbox => "a toolbox",
    };
    anyhow!(
        "no reply came to {} within {within} s: does {reader} read {to}? Check --prefix and --mode {}; a first message may be \
         left in {to} {SKIPS}",
        queues.reply,
        mode.name()
    )
}
