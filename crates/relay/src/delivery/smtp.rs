//! Couriers: connections to next hops, kept from message to message, and the replies for each recipient.
//!
//! A courier asks the queue for the next message when the session is free, and once a message is on its way: the next
//! one's MAIL, RCPT and DATA then travel with it (RFC 2920 §3.1), one write and one read a message.
use crate::config::RefusedGreeting;
use crate::delivery::handles::{DeliveryGuard, NextMessage, SlotGuard};
use crate::delivery::maildir;
use crate::delivery::required_extensions::{self, DeliveryForm};
use crate::delivery::resolver::{MailServer, Unroutable};
use crate::delivery_log::DeliveryLog;
use crate::log_target::LOG_TARGET;
use crate::message::Message;
use crate::message::envelope::{Confirmation, DeliveryRefusal, EnvelopeRecipient};
use crate::qmgr::{DeliveryRequest, DeliveryResult, DisconnectReason, RecipientStatus};
use crate::routing::{Lmtp, NextHop, Smtp};
use crate::worker::{RelayWorker, SlotWaiter};
use net::{
    ClientSecurity, ClientSession, Endpoint, MessageSource, NextAction, Outbox, SessionEnd, Socket, Timer, clock,
};
use party::planned_panic::planned_panic;
use party::reason::reason;
use smtp::client::{self, BurstSize, Chunking, Client, Event, GaveUp, PipelineMode, Protocol, StartTls, Verb};
use smtp::command::BodyType;
use smtp::dsn::{self, Notify};
use smtp::reply::EnhancedStatusCode;
use smtp::{Envelope, Extensions, ReceivedReply};
use std::collections::VecDeque;
use std::fmt::{self, Write};
use std::future::poll_fn;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use trust::{HandshakeFault, Remedies};

/// Time-out of connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Time-out of a reply: RFC 5321 §4.5.3.2 has five minutes for most, ten for the last.
const REPLY_TIMEOUT: Duration = Duration::from_secs(300);
/// Time-out of the answer to QUIT: a slow peer keeps a connection from others, and nothing depends on the answer.
const QUIT_TIMEOUT: Duration = Duration::from_secs(10);
/// Messages that may be under way to a peer at a time, if they go by BDAT: one write and one read for all of them.
const MAX_BATCH: u32 = 8;
/// A peer that takes longer for a message gets one at a time: others can have another connection.
const FAST_REPLY_LIMIT: Duration = Duration::from_millis(10);
/// Time for which a peer that ended a session amid a burst gets one message at a time: it may want few messages a
/// connection.
const BATCH_RETRY_DELAY: Duration = Duration::from_secs(600);
/// The keys of a route against a certificate that is not accepted.
const REMEDIES: Remedies = Remedies { trust: "cacert = FILE", name: "tls_name = NAME", insecure: "insecure = true" };
/// Time for which an unused connection is kept.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs a courier from its being called to its return.
pub(crate) async fn run(office: Rc<RelayWorker>, courier: SlotGuard) {
    let hop = office.destinations.borrow().next_hop(courier.destination);
    match hop {
        NextHop::Discard => deliver_locally(&office, courier, discard).await,
        NextHop::Maildir(root) => {
            deliver_locally(&office, courier, async |office, letter, job| {
                deliver_to_maildir(office, &root, letter, job).await
            })
            .await
        }
        NextHop::Lmtp(lmtp) => deliver_by_lmtp(&office, courier, &lmtp).await,
        NextHop::Smtp(smtp) => deliver_by_smtp(&office, courier, &smtp).await,
    }
}

/// Delivers on this host, one message after the other, until there is none.
async fn deliver_locally(
    office: &Rc<RelayWorker>,
    mut courier: SlotGuard,
    deliver: impl AsyncFn(&Rc<RelayWorker>, &Message, &DeliveryRequest<Message>) -> DeliveryResult,
) {
    let mut place = SlotWaiter::default();
    let mut idle = Timer::default();
    loop {
        let mut until = None;
        let assignment = poll_fn(|cx| {
            let now = clock::now();
            if place.must_close() || office.is_closing() {
                return Poll::Ready(None);
            }
            match office.next_message(&mut courier, &mut place, cx.waker(), now) {
                NextMessage::Deliver(assignment) => Poll::Ready(Some(assignment)),
                NextMessage::Quit => Poll::Ready(None),
                NextMessage::Wait => idle.poll_due(Some(*until.get_or_insert(now + IDLE_TIMEOUT)), now).map(|()| None),
            }
        });
        let Some(assignment) = assignment.await else { break };
        planned_panic("local delivery");
        let letter = assignment.message.clone();
        let outcome = deliver(office, &letter, &assignment).await;
        office.finish_delivery(assignment, outcome);
    }
    place.cancel();
    office.connection_closed(courier, DisconnectReason::Finished);
}

async fn discard(office: &Rc<RelayWorker>, _letter: &Message, assignment: &DeliveryRequest<Message>) -> DeliveryResult {
    office.context.counters.delivered.add(assignment.recipients.len() as u64);
    DeliveryResult::Delivered
}

/// Puts a copy for each recipient into a Maildir.
async fn deliver_to_maildir(
    office: &Rc<RelayWorker>,
    root: &Arc<Path>,
    letter: &Message,
    assignment: &DeliveryRequest<Message>,
) -> DeliveryResult {
    let mut answers = Vec::new();
    for number in assignment.recipients.iter() {
        let recipient = letter.envelope.recipients[usize::from(number)].clone();
        let names = Arc::clone(&office.context.maildir_names);
        let root = Arc::clone(root);
        let letter = letter.clone();
        let address = recipient.address.clone();
        let delivered = office.context.maildir_pool.run(move || {
            let sheet =
                maildir::MaildirMessage { sender: &letter.envelope.sender, recipient: &address, message: &letter.body };
            maildir::deliver(&root, &names, clock::wall(), &sheet)
        });
        answers.push(match delivered.await {
            Some(Ok(_)) => accepted_status(&recipient, Confirmation::Delivered),
            Some(Err(failure)) => {
                if failure.needs_operator() {
                    tracing::error!(target: LOG_TARGET, %failure, "a mailbox cannot be written");
                }
                let (code, enhanced) = failure.code();
                RecipientStatus::Deferred(DeliveryRefusal::new(code, Some(enhanced), &failure.to_string(), ""))
            }
            None => RecipientStatus::Deferred(DeliveryRefusal::new(
                451,
                Some(EnhancedStatusCode(4, 3, 0)),
                "delivery failed because of a bug in mailrun",
                "",
            )),
        });
    }
    combine_statuses(office, answers)
}

/// The answer for a recipient that was accepted; its sender may want a notice (RFC 3461 §5.2.2).
fn accepted_status(recipient: &EnvelopeRecipient, how: Confirmation) -> RecipientStatus {
    let is_asked = recipient.notify.is_some_and(|notify| notify.wants(Notify::SUCCESS));
    if is_asked { RecipientStatus::Confirmed(how) } else { RecipientStatus::Delivered }
}

/// Sums up the answers: the usual outcome is one word.
fn combine_statuses(office: &RelayWorker, answers: Vec<RecipientStatus>) -> DeliveryResult {
    let census = &office.context.counters;
    for answer in &answers {
        match answer {
            RecipientStatus::Delivered | RecipientStatus::Confirmed(_) => census.delivered.add(1),
            RecipientStatus::Failed(_) => census.failed.add(1),
            // Counted by the queue's facts.
            RecipientStatus::Deferred(_) => {}
        }
    }
    if answers.iter().all(|answer| *answer == RecipientStatus::Delivered) {
        DeliveryResult::Delivered
    } else {
        DeliveryResult::Each(answers)
    }
}

async fn deliver_by_lmtp(office: &Rc<RelayWorker>, courier: SlotGuard, lmtp: &Lmtp) {
    let mut carrier = SmtpDelivery::new(office, courier, lmtp.endpoint.to_string().into());
    let options = client::Options {
        protocol: Protocol::Lmtp,
        pipelining: PipelineMode::Group,
        quit_timeout: Some(QUIT_TIMEOUT),
        ..Default::default()
    };
    let left = carrier.try_endpoint(&lmtp.endpoint, None, options).await;
    carrier.finish(left);
}

async fn deliver_by_smtp(office: &Rc<RelayWorker>, courier: SlotGuard, smtp: &Smtp) {
    let found = office.context.resolver.resolve(&smtp.target, office.next_seed()).await;
    let destinations = match found {
        Ok(destinations) => destinations,
        Err(why) => return handle_unroutable(office, courier, &why),
    };
    let mut carrier = SmtpDelivery::new(office, courier, "".into());
    let mut left = ConnectionResult::Unreachable(DeliveryRefusal::new(0, None, "no server", ""));
    for destination in &destinations {
        left = carrier.try_host(smtp, destination).await;
        if matches!(left, ConnectionResult::Finished | ConnectionResult::Refused(_)) || carrier.is_reached {
            break;
        }
    }
    carrier.finish(left);
}

/// Handles that no server can be found. A permanent error fails the messages at hand; a transient one shuts the hop for
/// a while.
fn handle_unroutable(office: &Rc<RelayWorker>, courier: SlotGuard, why: &Unroutable) {
    let (code, enhanced) = why.codes();
    let refusal = DeliveryRefusal::new(code, EnhancedStatusCode::parse(enhanced.as_bytes()), &why.to_string(), "");
    if why.is_transient() {
        return office.connection_closed(courier, DisconnectReason::Unreachable(refusal));
    }
    fail_all(office, courier, &refusal);
}

/// Fails the messages at hand.
fn fail_all(office: &Rc<RelayWorker>, mut courier: SlotGuard, refusal: &DeliveryRefusal) {
    let mut place = SlotWaiter::default();
    while let NextMessage::Deliver(assignment) =
        office.next_message(&mut courier, &mut place, std::task::Waker::noop(), clock::now())
    {
        office.context.counters.failed.add(assignment.recipients.len() as u64);
        office.finish_delivery(assignment, DeliveryResult::All(RecipientStatus::Failed(refusal.clone())));
    }
    place.cancel();
    office.connection_closed(courier, DisconnectReason::Finished);
}

/// Way in which a session ended.
enum ConnectionResult {
    /// The usual end.
    Finished,
    Unreachable(DeliveryRefusal),
    /// A 5xx in place of a greeting, if it is configured to fail messages.
    Refused(DeliveryRefusal),
    /// TLS was offered but failed, and is optional.
    WithoutTls,
}

/// Result of asking for the next message.
enum NextTransaction {
    /// The commands of the message.
    Transaction(Arc<Envelope>),
    /// No message now: the courier is called when there is one.
    Wait,
    /// The courier has to leave.
    Quit,
}

/// A message under way.
struct PipelinedMessage {
    request: DeliveryGuard,
    /// Message that is sent in place of the original, if that cannot be sent as it is.
    converted: Option<Message>,
    /// Recipients, by their numbers, that are not sent to the server.
    left_out: Vec<u16>,
    /// Reply to each of the others so far, in the assignment's order.
    refused: Vec<Option<DeliveryRefusal>>,
    progress: SendProgress,
    /// Recipients up to this place have had their answers to the message (LMTP).
    answered: usize,
    /// The next hop notifies the sender of a success itself.
    peer_sends_dsn: bool,
}

/// Progress of sending the message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SendProgress {
    NotSent,
    /// Part of the bytes that are being written.
    Buffered,
    /// Its last byte has been handed over.
    Sent,
}

impl PipelinedMessage {
    fn refuse_all(&mut self, refusal: &DeliveryRefusal) {
        self.refuse_from(0, refusal);
    }

    /// Refuses all from that place on, except those that were refused before.
    fn refuse_from(&mut self, place: usize, refusal: &DeliveryRefusal) {
        for place in self.refused.iter_mut().skip(place).filter(|place| place.is_none()) {
            *place = Some(refusal.clone());
        }
    }

    /// The message in the form that is sent.
    fn message(&self) -> &Message {
        self.converted.as_ref().unwrap_or(&self.request.message)
    }

    /// The answer of each recipient.
    fn recipient_statuses(&mut self) -> Vec<RecipientStatus> {
        let recipients = &self.request.message.envelope.recipients;
        let notifies = self.peer_sends_dsn;
        let left_out = &self.left_out;
        let mut refused = self.refused.drain(..);
        let answer = |number: u16| {
            if left_out.contains(&number) {
                return RecipientStatus::Failed(required_extensions::smtputf8_missing());
            }
            match refused.next().flatten() {
                None if notifies => RecipientStatus::Delivered,
                None => accepted_status(&recipients[usize::from(number)], Confirmation::Relayed),
                Some(refusal) if (500..600).contains(&refusal.code) => RecipientStatus::Failed(refusal),
                Some(refusal) => RecipientStatus::Deferred(refusal),
            }
        };
        self.request.recipients.iter().map(answer).collect()
    }
}

/// A courier on its way.
struct SmtpDelivery {
    worker: Rc<RelayWorker>,
    slot: Option<SlotGuard>,
    waiter: SlotWaiter,
    /// Oldest first: the next replies belong to the first.
    in_flight: VecDeque<PipelinedMessage>,
    /// Host of the peer.
    host: Arc<str>,
    hostname: Arc<str>,
    idle_timer: Timer,
    idle_until: Option<Duration>,
    must_quit: bool,
    /// Set if the peer lets messages follow each other without waiting.
    may_batch: bool,
    /// Set if the peer answers fast enough for that.
    is_fast: bool,
    /// Time at which the oldest message under way was begun, or the one before it answered.
    measured_since: Duration,
    /// A session was free for a message: the hop can be reached, however the session ends.
    is_reached: bool,
    /// The peer's reply that announced the close.
    closing_reply: Option<DeliveryRefusal>,
    /// It came in place of a greeting.
    is_greeting_refused: bool,
    spare_envelopes: Vec<Arc<Envelope>>,
}

impl SmtpDelivery {
    fn new(office: &Rc<RelayWorker>, courier: SlotGuard, host: Arc<str>) -> Self {
        Self {
            hostname: office.config().hostname.as_str().into(),
            worker: Rc::clone(office),
            slot: Some(courier),
            waiter: SlotWaiter::default(),
            in_flight: VecDeque::with_capacity(2),
            host,
            idle_timer: Timer::default(),
            idle_until: None,
            must_quit: false,
            may_batch: false,
            is_fast: false,
            measured_since: Duration::ZERO,
            is_reached: false,
            closing_reply: None,
            is_greeting_refused: false,
            spare_envelopes: Vec::new(),
        }
    }

    async fn try_host(&mut self, smtp: &Smtp, destination: &MailServer) -> ConnectionResult {
        self.host = Arc::clone(&destination.name);
        let key = self.slot.as_ref().expect("it is out").destination;
        let security = self.worker.destinations.borrow_mut().security(key, &destination.name);
        let security = match security {
            Ok(security) => security,
            Err(why) => return ConnectionResult::Unreachable(DeliveryRefusal::new(0, None, &why, "")),
        };
        let endpoint = Endpoint::Tcp(destination.address);
        let may_batch = self.worker.destinations.borrow().may_batch(key, clock::now());
        let options = client::Options {
            pipelining: PipelineMode::Group,
            tls: smtp.security.start_tls(),
            credentials: smtp.credentials.clone(),
            chunking: Chunking::IfOffered,
            burst: BurstSize::of(if may_batch { MAX_BATCH } else { 0 }),
            quit_timeout: Some(QUIT_TIMEOUT),
            ..Default::default()
        };
        let left = self.try_endpoint(&endpoint, security, options.clone()).await;
        if !matches!(left, ConnectionResult::WithoutTls) {
            return left;
        }
        // Opportunistic: better in the clear than not at all (RFC 7435 §3).
        self.try_endpoint(&endpoint, None, client::Options { tls: StartTls::Never, ..options }).await
    }

    async fn try_endpoint(
        &mut self,
        to: &Endpoint,
        security: Option<ClientSecurity>,
        options: client::Options,
    ) -> ConnectionResult {
        let mut alarm = Timer::default();
        let is_optional = options.tls == StartTls::IfOffered;
        self.closing_reply = None;
        self.is_greeting_refused = false;
        let connecting = Box::pin(Socket::connect_to(None, to));
        let socket = match alarm.timeout_at(clock::now() + CONNECT_TIMEOUT, connecting).await {
            Some(Ok(socket)) => socket,
            Some(Err(error)) => return self.unreachable(&reason(&error)),
            None => return self.unreachable("no connection in time"),
        };
        self.worker.context.counters.connections.add(1);
        let nonce = options.credentials.is_some().then(net::nonce);
        let client = Client::with_options(Arc::clone(&self.hostname), Arc::new(options), nonce, clock::now());
        let desk = self.worker.buffers.clone();
        let talk = ClientSession::new(socket, client, self, &mut alarm, REPLY_TIMEOUT, desk).with_security(security);
        let ended = Box::pin(talk.run()).await;
        self.end_session(ended, is_optional)
    }

    fn unreachable(&self, why: &str) -> ConnectionResult {
        ConnectionResult::Unreachable(DeliveryRefusal::new(0, Some(EnhancedStatusCode(4, 4, 1)), why, &self.host))
    }

    /// Ends the session: messages under way go back to the queue.
    fn end_session(&mut self, ended: SessionEnd, tls_is_optional: bool) -> ConnectionResult {
        if self.may_batch && self.in_flight.len() > 1 {
            let key = self.slot.as_ref().expect("it is out").destination;
            self.worker.destinations.borrow_mut().disable_batching(key, clock::now() + BATCH_RETRY_DELAY);
            self.worker.queue.borrow_mut().set_batch_size(key, 1);
        }
        // A peer that says 421 has accepted nothing that it had not answered before.
        let is_dismissed = self.closing_reply.as_ref().is_some_and(|refusal| refusal.code == 421);
        // One by one: the rest goes back by itself if this panics.
        while let Some(mut job) = self.in_flight.pop_front() {
            let outcome = match (job.answered, job.progress == SendProgress::Sent && !is_dismissed) {
                (0, false) => DeliveryResult::Unsent,
                (0, true) => DeliveryResult::Unknown,
                // A recipient whose answer has come does not get the message again with each try for the others.
                (answered, _) => {
                    job.refuse_from(
                        answered,
                        &DeliveryRefusal::new(0, None, "the session ended without an answer", ""),
                    );
                    combine_statuses(&self.worker, job.recipient_statuses())
                }
            };
            self.worker.finish_delivery(job.request, outcome);
        }
        if self.is_reached {
            return ConnectionResult::Finished;
        }
        let text = match ended {
            SessionEnd::TlsFailed(_) if tls_is_optional => return ConnectionResult::WithoutTls,
            SessionEnd::Closed => match self.closing_reply.take() {
                Some(refusal) if self.is_refused_for_good(&refusal) => return ConnectionResult::Refused(refusal),
                Some(refusal) => return ConnectionResult::Unreachable(refusal),
                None => "the server closed the session".to_owned(),
            },
            SessionEnd::GaveUp(why) => self.give_up_text(why),
            SessionEnd::Lost(_, error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                "connection closed".to_owned()
            }
            SessionEnd::Lost(_, error) => format!("connection lost: {}", reason(&error)),
            SessionEnd::Timeout(_) => format!("no reply within {REPLY_TIMEOUT:?}"),
            SessionEnd::Violated(_, violation) => violation.to_string(),
            SessionEnd::TlsFailed(error) => tls_failure(&error),
        };
        self.unreachable(&text)
    }

    fn is_refused_for_good(&self, refusal: &DeliveryRefusal) -> bool {
        let means = self.worker.context.initial_config().delivery.greeting_5xx;
        self.is_greeting_refused && (500..600).contains(&refusal.code) && means == RefusedGreeting::Fail
    }

    fn give_up_text(&mut self, why: GaveUp) -> String {
        self.closing_reply.take().map_or_else(|| why.to_string(), |refusal| format!("{why}: {}", refusal.text))
    }

    /// Quits. Until the peer has answered QUIT, this courier does not count as available.
    fn begin_quit(&mut self) -> Poll<NextAction> {
        self.waiter.cancel();
        let courier = self.slot.as_mut().expect("it is out");
        self.worker.queue.borrow_mut().begin_quit(courier);
        Poll::Ready(NextAction::Quit)
    }

    /// Comes back from all visits.
    fn finish(mut self, left: ConnectionResult) {
        self.waiter.cancel();
        let courier = self.slot.take().expect("it comes back once");
        let closing = match left {
            ConnectionResult::Refused(refusal) => return fail_all(&self.worker, courier, &refusal),
            ConnectionResult::Unreachable(refusal) => DisconnectReason::Unreachable(refusal),
            ConnectionResult::Finished | ConnectionResult::WithoutTls => DisconnectReason::Finished,
        };
        self.worker.connection_closed(courier, closing);
    }

    /// The next message, rendered for the peer's extensions. One that cannot be sent there fails at once.
    fn next_transaction(&mut self, cx: &Context<'_>, extensions: &Extensions, now: Duration) -> NextTransaction {
        loop {
            let courier = self.slot.as_mut().expect("it is out");
            let assignment = match self.worker.next_message(courier, &mut self.waiter, cx.waker(), now) {
                NextMessage::Deliver(assignment) => assignment,
                NextMessage::Wait => return NextTransaction::Wait,
                NextMessage::Quit => return NextTransaction::Quit,
            };
            match self.prepare_transaction(&assignment, extensions) {
                Ok((envelope, DeliveryForm { converted, left_out })) => {
                    let refused = vec![None; assignment.recipients.len() - left_out.len()];
                    self.in_flight.push_back(PipelinedMessage {
                        request: assignment,
                        converted,
                        left_out,
                        refused,
                        progress: SendProgress::NotSent,
                        answered: 0,
                        peer_sends_dsn: extensions.dsn,
                    });
                    self.idle_until = None;
                    self.spare_envelopes.push(Arc::clone(&envelope));
                    return NextTransaction::Transaction(envelope);
                }
                Err(refusal) => {
                    self.worker.context.counters.failed.add(assignment.recipients.len() as u64);
                    self.worker.finish_delivery(assignment, DeliveryResult::All(RecipientStatus::Failed(refusal)));
                }
            }
        }
    }
}

impl SmtpDelivery {
    /// The transaction's envelope, and in which form the message follows it.
    fn prepare_transaction(
        &mut self,
        assignment: &DeliveryRequest<Message>,
        extensions: &Extensions,
    ) -> Result<(Arc<Envelope>, DeliveryForm), DeliveryRefusal> {
        planned_panic("delivery");
        let letter = &assignment.message;
        let form = required_extensions::check(letter, assignment.recipients.iter(), extensions, &self.hostname)?;
        let parameters = mail_parameters(form.converted.as_ref().unwrap_or(letter), extensions)?;
        let recipients: Vec<(&[u8], String)> = assignment
            .recipients
            .iter()
            .filter(|number| !form.left_out.contains(number))
            .map(|number| {
                let recipient = &letter.envelope.recipients[usize::from(number)];
                (recipient.address.as_slice(), recipient_parameters(recipient, letter.envelope.smtp_utf8, extensions))
            })
            .collect();
        let mut envelope = self.unused_envelope();
        let room = Arc::get_mut(&mut envelope).expect("a draft is nobody else's");
        room.rewrite_with(
            &letter.envelope.sender,
            parameters.as_bytes(),
            recipients.iter().map(|(address, parameters)| (*address, parameters.as_bytes())),
        )
        .map_err(|_| {
            DeliveryRefusal::new(553, Some(EnhancedStatusCode(5, 1, 3)), "an address cannot be written", "")
        })?;
        Ok((envelope, form))
    }

    /// An envelope that is no longer used, or a new one.
    fn unused_envelope(&mut self) -> Arc<Envelope> {
        let free = self.spare_envelopes.iter().position(|envelope| Arc::strong_count(envelope) == 1);
        match free {
            Some(at) => self.spare_envelopes.swap_remove(at),
            None => Arc::new(Envelope::new("", "", ["a@b"]).expect("it is one")),
        }
    }

    /// The reply as it is kept.
    fn refusal(&self, reply: &ReceivedReply<'_>) -> DeliveryRefusal {
        DeliveryRefusal::new(reply.code(), reply.enhanced(), &reply.text(), &self.host)
    }

    /// Measures the peer's speed, which decides whether it may have several messages at a time.
    fn measure(&mut self, now: Duration) {
        let is_quick = now.saturating_sub(self.measured_since) < FAST_REPLY_LIMIT;
        self.measured_since = now;
        self.is_fast = is_quick;
        if self.may_batch {
            // Set each time: another of the hop's couriers may have measured something else.
            let hop = self.slot.as_ref().expect("it is out").destination;
            self.worker.queue.borrow_mut().set_batch_size(hop, if is_quick { MAX_BATCH } else { 1 });
        }
    }

    /// The oldest message's transaction is over.
    fn finish_transaction(&mut self) {
        let Some(mut job) = self.in_flight.pop_front() else { return };
        let answers = job.recipient_statuses();
        let is_taken = || {
            answers.iter().any(|answer| matches!(answer, RecipientStatus::Delivered | RecipientStatus::Confirmed(_)))
        };
        if job.converted.is_some() && is_taken() {
            self.worker.context.counters.converted.add(1);
        }
        let outcome = combine_statuses(&self.worker, answers);
        self.worker.finish_delivery(job.request, outcome);
    }

    /// Applies a reply to the oldest message.
    fn apply_reply(&mut self, to: Verb, reply: &ReceivedReply<'_>) {
        if is_accepted(to, reply) {
            return;
        }
        let refusal = self.refusal(reply);
        if reply.code() == 421 || matches!(to, Verb::Greeting | Verb::Hello | Verb::StartTls | Verb::Auth) {
            self.closing_reply = Some(refusal.clone());
            self.is_greeting_refused = to == Verb::Greeting;
        }
        let Some(job) = self.in_flight.front_mut() else { return };
        match to {
            Verb::Recipient(place) | Verb::Delivery(place) => {
                let is_end = reply.code() == 421 && matches!(to, Verb::Delivery(_));
                if let Some(slot) = job.refused.get_mut(place as usize) {
                    slot.get_or_insert_with(|| refusal.clone());
                }
                if is_end {
                    job.refuse_from(place as usize, &refusal);
                }
            }
            Verb::Mail | Verb::Data | Verb::Chunk | Verb::Message => job.refuse_all(&refusal),
            _ => {}
        }
    }
}

/// Explains why there is no TLS, and what to change in the route.
fn tls_failure(error: &io::Error) -> String {
    let fault = error.get_ref().and_then(|inner| inner.downcast_ref::<HandshakeFault>());
    match fault {
        Some(fault @ HandshakeFault::NotTls) => format!("{fault}: check tls and the port of the route"),
        Some(fault) => fault.with_remedy(&REMEDIES),
        None => reason(error),
    }
}

/// Reports whether a reply accepts its command: a 3xx accepts neither sender, recipient nor message.
fn is_accepted(to: Verb, reply: &ReceivedReply<'_>) -> bool {
    match to {
        Verb::Mail | Verb::Recipient(_) | Verb::Chunk | Verb::Message | Verb::Delivery(_) => reply.code() / 100 == 2,
        _ => reply.is_positive(),
    }
}

/// Parameters of MAIL.
fn mail_parameters(letter: &Message, extensions: &Extensions) -> Result<String, DeliveryRefusal> {
    let envelope = &letter.envelope;
    let mut words = String::with_capacity(64);
    let mut say = |word: fmt::Arguments<'_>| {
        let blank = if words.is_empty() { "" } else { " " };
        write!(words, "{blank}{word}").expect("a String takes any text");
    };
    if let Some(most) = extensions.size {
        let bytes = letter.body.len() as u64;
        if most > 0 && bytes > most {
            return Err(DeliveryRefusal::new(
                552,
                Some(EnhancedStatusCode(5, 3, 4)),
                "the message is larger than the next hop accepts",
                "",
            ));
        }
        say(format_args!("SIZE={bytes}"));
    }
    if envelope.body == BodyType::EightBitMime && extensions.eight_bit_mime {
        say(format_args!("BODY=8BITMIME"));
    }
    if envelope.smtp_utf8 && extensions.smtp_utf8 {
        say(format_args!("SMTPUTF8"));
    }
    if extensions.dsn {
        if let Some(returns) = envelope.returns {
            say(format_args!("RET={}", returns.keyword()));
        }
        if let Some(id) = envelope.envelope_id.as_deref() {
            say(format_args!("ENVID={}", String::from_utf8_lossy(id)));
        }
    }
    Ok(words)
}

/// Parameters of RCPT. SMTPUTF8 was declared for the message, or was not.
fn recipient_parameters(recipient: &EnvelopeRecipient, smtp_utf8: bool, extensions: &Extensions) -> String {
    if !extensions.dsn || (recipient.notify.is_none() && recipient.original.is_none()) {
        return String::new();
    }
    let notify = recipient.notify.map(|notify| format!("NOTIFY={}", notify.render()));
    let original = recipient.original.as_ref().and_then(|original| {
        let may_be_utf8 = smtp_utf8 && extensions.smtp_utf8;
        let value = dsn::forwarded_original_recipient(&original.kind, &original.address, may_be_utf8)?;
        Some(format!("ORCPT={value}"))
    });
    let words: Vec<String> = notify.into_iter().chain(original).collect();
    words.join(" ")
}

impl MessageSource for SmtpDelivery {
    fn poll_next(&mut self, cx: &mut Context<'_>, client: &Client, early: bool, now: Duration) -> Poll<NextAction> {
        self.is_reached = true;
        self.must_quit |= self.waiter.must_close() || self.worker.is_closing();
        if self.must_quit {
            return self.begin_quit();
        }
        let hop = self.slot.as_ref().expect("it is out").destination;
        self.may_batch = client.bursts();
        if early && ((self.may_batch && !self.is_fast) || !self.worker.queue.borrow().next_is_loaded(hop)) {
            return Poll::Ready(NextAction::Nothing);
        }
        if self.in_flight.is_empty() {
            self.measured_since = now;
        }
        match self.next_transaction(cx, client.extensions(), now) {
            NextTransaction::Transaction(envelope) => return Poll::Ready(NextAction::Transaction(envelope)),
            NextTransaction::Quit => self.must_quit = true,
            NextTransaction::Wait if early => return Poll::Ready(NextAction::Nothing),
            NextTransaction::Wait => {
                let until = *self.idle_until.get_or_insert(now + IDLE_TIMEOUT);
                self.must_quit = self.idle_timer.poll_due(Some(until), now).is_ready();
                if !self.must_quit {
                    return Poll::Pending;
                }
            }
        }
        self.begin_quit()
    }

    fn render(&mut self, outbox: &mut Outbox) {
        if let Some(job) = self.in_flight.back_mut() {
            job.message().render(outbox);
            job.progress = SendProgress::Buffered;
        }
    }

    fn message_bytes(&self) -> u64 {
        self.in_flight.back().map_or(0, |job| job.message().body.len() as u64)
    }

    fn render_chunk(&mut self, outbox: &mut Outbox) {
        if let Some(job) = self.in_flight.back_mut() {
            job.message().render_raw(outbox);
            job.progress = SendProgress::Buffered;
        }
    }

    fn written(&mut self, _now: Duration) {
        for job in self.in_flight.iter_mut().filter(|job| job.progress == SendProgress::Buffered) {
            job.progress = SendProgress::Sent;
        }
    }

    fn replied(&mut self, event: &Event<'_>, now: Duration) {
        self.apply_reply(event.to, &event.reply);
        if let (Verb::Delivery(place), Some(job)) = (event.to, self.in_flight.front_mut()) {
            job.answered = place as usize + 1;
        }
        if event.ends == Some(client::Outcome::Refused) {
            // The peer's reply does not accept the message, whatever it says: a 250 to DATA, say.
            let refusal = self.refusal(&event.reply);
            self.in_flight.iter_mut().take(1).for_each(|job| job.refuse_all(&refusal));
        }
        if event.ends.is_some() {
            if DeliveryLog::is_enabled() && event.reply.is_positive() {
                self.worker.delivery_log.keep_reply(self.refusal(&event.reply));
            }
            self.measure(now);
            self.finish_transaction();
        }
    }
}
