//! A connection to a next hop, which can deliver several messages. This module takes the messages from the queue, and
//! derives their results from the server's replies.
//!
//! The connection asks the queue for another message when no message is in transit, and also while one is being sent.
//! MAIL, RCPT and DATA of the next message then travel together with the current one (RFC 2920 §3.1), so a message
//! takes only one write and one read.
use crate::config::RefusedGreeting;
use crate::delivery::parameters::{mail_parameters, recipient_parameters};
use crate::delivery::pipeline::{PipelinedMessage, SendProgress};
use crate::delivery::required_extensions::{self, DeliveryForm};
use crate::delivery::result::{combine_statuses, fail_all};
use crate::delivery::slots::{IDLE_TIMEOUT, SlotWaiter};
use crate::delivery_log::DeliveryLog;
use crate::message::Message;
use crate::message::envelope::DeliveryRefusal;
use crate::qmgr::{DeliveryRequest, DeliveryResult, DestinationId, DisconnectReason, RecipientStatus};
use crate::worker::{DeliveryGuard, NextMessage, RelayWorker, SlotGuard};
use mailrun_net::{
    ClientSecurity, ClientSession, Endpoint, Handshake, MessageSource, NextAction, Outbox, SessionEnd, Socket, Timer,
    clock,
};
use mailrun_process::planned_panic::planned_panic;
use mailrun_process::reason::reason;
use mailrun_smtp::client::{self, Client, Event, GaveUp, StartTls, Verb};
use mailrun_smtp::reply::EnhancedStatusCode;
use mailrun_smtp::{Envelope, Extensions, ReceivedReply};
use mailrun_tls_verify::{HandshakeFault, Remedies};
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for the reply to a command (RFC 5321 §4.5.3.2). The reply to a message has a longer limit,
/// `MESSAGE_TIMEOUT`.
const REPLY_TIMEOUT: Duration = Duration::from_secs(300);
/// Time limit for the reply to a message (RFC 5321 §4.5.3.2.6). If the relay gave up earlier, a slow server would get
/// the message twice.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(600);
/// Time limits for connecting and for the greeting in the first attempt to reach a destination. They are short, because
/// the attempt occupies a connection that other destinations need. But they are longer than the 6 s by which Postfix's
/// postscreen delays its greeting. Later attempts wait for the greeting as long as RFC 5321 §4.5.3.2.1 recommends.
const FIRST_CONNECT_TIMEOUT: Duration = Duration::from_secs(8);
const FIRST_GREETING_TIMEOUT: Duration = Duration::from_secs(8);
/// Time limit for the reply to QUIT. It is short, because a slow peer occupies a connection that
/// other destinations need, and nothing depends on this reply.
pub(crate) const QUIT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of messages in transit to a peer that supports BDAT. One write sends all of them, and one read gets
/// all replies.
pub(crate) const MAX_BATCH: u32 = 8;
/// If a peer takes longer than this to answer a message, it gets one message at a time, even if it supports BDAT. Other
/// connections can then deliver the remaining messages.
const FAST_REPLY_LIMIT: Duration = Duration::from_millis(10);
/// If a peer ends a session while several messages are in transit, it gets only one message at a time for this long,
/// because it may limit the number of messages per connection.
const STREAM_RETRY_DELAY: Duration = Duration::from_secs(600);
/// Configuration keys that error messages about a rejected certificate suggest to the operator.
const REMEDIES: Remedies = Remedies { trust: "cacert = FILE", name: "tls_name = NAME", insecure: "insecure = true" };
pub(crate) enum ConnectionResult {
    Finished,
    Unreachable(DeliveryRefusal),
    /// The server sent a 5xx instead of a greeting, and the configuration says that messages to such a server bounce
    /// (`RefusedGreeting::Fail`).
    Refused(DeliveryRefusal),
    /// The server greets with this relay's own name, so mail would go in circles.
    Loop(DeliveryRefusal),
    /// The server offered TLS, but TLS failed. The next attempt may do without TLS, because TLS is optional.
    WithoutTls,
}

enum NextTransaction {
    Transaction(Arc<Envelope>),
    /// The queue has no message for this connection. The task is woken when there is a message.
    Wait,
    /// The message is being converted by another thread. The task is woken when the conversion is done.
    Convert,
    Quit,
}

struct Conversion {
    request: DeliveryGuard,
    /// The converted message, or `None` if the conversion panicked.
    form: Pin<Box<dyn Future<Output = Option<FormResult>>>>,
}

type FormResult = Result<DeliveryForm, DeliveryRefusal>;

pub(crate) struct SmtpDelivery {
    worker: Rc<RelayWorker>,
    slot: Option<SlotGuard>,
    waiter: SlotWaiter,
    /// Conversion of the next message, which another thread executes. It stays here until `next_transaction` takes its
    /// result.
    conversion: Option<Conversion>,
    /// Messages in transit, the oldest first.
    in_flight: VecDeque<PipelinedMessage>,
    /// Number of messages at the front of `in_flight` whose replies seem to have arrived. If the server omits a reply,
    /// all later replies belong to other messages than they seem to. The results of these messages are therefore
    /// reported only when it is certain that no reply is missing.
    answered: usize,
    host: Arc<str>,
    hostname: Arc<str>,
    idle_timer: Timer,
    idle_until: Option<Duration>,
    must_quit: bool,
    /// Set if several messages may be in transit to the peer at a time.
    may_batch: bool,
    /// Set if the peer answers fast enough to get several messages at a time.
    is_fast: bool,
    /// Start of the current speed measurement. The measurement starts when the previous message is answered. If no
    /// message is in transit then, it starts when the next message is begun.
    measured_since: Duration,
    /// Set if a session was established. The next hop then counts as reachable, however the session ends.
    is_reached: bool,
    /// The reply that ends the session, such as a 421, or a refusal of EHLO.
    closing_reply: Option<DeliveryRefusal>,
    /// Set if the peer sent `closing_reply` instead of a greeting.
    is_greeting_refused: bool,
    is_over_tls: bool,
    spare_envelopes: Vec<Arc<Envelope>>,
}

impl SmtpDelivery {
    pub(crate) fn new(worker: &Rc<RelayWorker>, slot: SlotGuard, host: Arc<str>) -> Self {
        Self {
            hostname: worker.hostname(),
            worker: Rc::clone(worker),
            slot: Some(slot),
            waiter: SlotWaiter::default(),
            conversion: None,
            in_flight: VecDeque::with_capacity(2),
            answered: 0,
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
            is_over_tls: false,
            spare_envelopes: Vec::new(),
        }
    }

    pub(crate) fn worker(&self) -> &Rc<RelayWorker> {
        &self.worker
    }

    pub(crate) fn destination(&self) -> DestinationId {
        self.slot.as_ref().expect("the connection is open").destination
    }

    pub(crate) fn is_reached(&self) -> bool {
        self.is_reached
    }

    pub(crate) fn set_host(&mut self, host: &Arc<str>) {
        self.host = Arc::clone(host);
    }

    pub(crate) async fn try_endpoint(
        &mut self,
        to: &Endpoint,
        security: Option<ClientSecurity>,
        options: client::Options,
    ) -> ConnectionResult {
        let mut timer = Timer::default();
        let is_first = self.slot.as_ref().is_some_and(|slot| slot.is_first_trial());
        let (connect_timeout, greeting_timeout) =
            if is_first { (FIRST_CONNECT_TIMEOUT, FIRST_GREETING_TIMEOUT) } else { (CONNECT_TIMEOUT, REPLY_TIMEOUT) };
        let options = client::Options {
            greeting_timeout: Some(greeting_timeout),
            message_timeout: Some(MESSAGE_TIMEOUT),
            ..options
        };
        let is_optional = options.tls == StartTls::IfOffered;
        self.closing_reply = None;
        self.is_greeting_refused = false;
        self.is_over_tls = false;
        let connecting = Box::pin(Socket::connect_to(None, to));
        let socket = match timer.timeout_at(clock::now() + connect_timeout, connecting).await {
            Some(Ok(socket)) => socket,
            Some(Err(error)) => return self.unreachable(&reason(&error)),
            None => return self.unreachable("no connection in time"),
        };
        self.worker.sink.counters.connections.add(1);
        let nonce = options.credentials.is_some().then(mailrun_net::nonce);
        let client = Client::with_options(Arc::clone(&self.hostname), Arc::new(options), nonce, clock::now());
        let buffers = self.worker.resources.buffers.clone();
        let session =
            ClientSession::new(socket, client, self, &mut timer, REPLY_TIMEOUT, buffers).with_security(security);
        let session_end = Box::pin(session.run()).await;
        self.end_session(session_end, is_optional, greeting_timeout)
    }

    fn unreachable(&self, reason: &str) -> ConnectionResult {
        ConnectionResult::Unreachable(DeliveryRefusal::new(0, Some(EnhancedStatusCode(4, 4, 1)), reason, &self.host))
    }

    /// Gives the messages in transit back to the queue after the session has ended. Returns whether the server was
    /// reached and, if not, why.
    fn end_session(
        &mut self,
        ended: SessionEnd,
        tls_is_optional: bool,
        greeting_timeout: Duration,
    ) -> ConnectionResult {
        let is_violated = matches!(ended, SessionEnd::Violated(..));
        // A server may omit the reply to one of several messages that were sent with BDAT. The client then assigns each
        // later reply to the previous message. For the last message, no reply is left, so the session ends with a
        // broken connection or a time-out.
        let may_miss_reply = is_violated || self.may_batch || matches!(ended, SessionEnd::Timeout(_));
        if self.in_flight.len() > 1 || (is_violated && !self.in_flight.is_empty()) {
            let destination = self.destination();
            let until = if is_violated { Duration::MAX } else { clock::now() + STREAM_RETRY_DELAY };
            self.worker.resources.destinations.borrow_mut().disable_streaming(destination, until);
            self.worker.set_batch_size(destination, 1);
        }
        let is_dismissed = self.closing_reply.as_ref().is_some_and(|refusal| refusal.code == 421);
        if let Some(Conversion { request, .. }) = self.conversion.take() {
            self.worker.finish_delivery(request, DeliveryResult::Unsent);
        }
        if !may_miss_reply {
            // Use the replies that arrived before the connection broke, because they are valid.
            while self.answered > 0 {
                self.finish_transaction();
            }
        }
        // Remove the messages one by one. If a call below panics, the messages that are still in `in_flight` go back to
        // the queue.
        while let Some(mut pipelined) = self.in_flight.pop_front() {
            let is_over = self.answered > 0;
            let is_ambiguous = may_miss_reply && (is_over || is_violated || !self.in_flight.is_empty());
            self.answered = self.answered.saturating_sub(1);
            let fault = if is_over { pipelined.session_fault() } else { None };
            let result = fault.unwrap_or_else(|| {
                pipelined.unfinished_result(is_dismissed && !is_over, is_ambiguous, &self.worker.sink.counters)
            });
            self.worker.finish_delivery(pipelined.request, result);
        }
        if self.is_reached {
            return ConnectionResult::Finished;
        }
        let text = match ended {
            SessionEnd::TlsFailed(_) if tls_is_optional => return ConnectionResult::WithoutTls,
            SessionEnd::Closed => match self.closing_reply.take() {
                // The server has refused the EHLO that follows STARTTLS. TLS is optional here, so try again without
                // TLS.
                Some(refusal) if tls_is_optional && self.is_over_tls && refusal.code != 421 => {
                    return ConnectionResult::WithoutTls;
                }
                Some(refusal) if self.is_refused_for_good(&refusal) => return ConnectionResult::Refused(refusal),
                Some(refusal) => return ConnectionResult::Unreachable(refusal),
                None => "the server closed the session".to_owned(),
            },
            SessionEnd::GaveUp(error @ GaveUp::OwnName) => {
                let loops = Some(EnhancedStatusCode(5, 4, 6));
                // Name no server as the author of this refusal, because the relay itself has detected the loop.
                let text = format!("{}: {error}", self.host);
                return ConnectionResult::Loop(DeliveryRefusal::new(554, loops, &text, ""));
            }
            SessionEnd::GaveUp(error) => self.give_up_text(error),
            SessionEnd::Lost(_, error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                "connection closed".to_owned()
            }
            SessionEnd::Lost(_, error) => format!("connection lost: {}", reason(&error)),
            SessionEnd::Timeout(Some(Verb::Greeting)) => format!("no greeting within {greeting_timeout:?}"),
            SessionEnd::Timeout(Some(Verb::Message | Verb::Delivery(_))) => {
                format!("no reply to a message within {MESSAGE_TIMEOUT:?}")
            }
            SessionEnd::Timeout(_) => format!("no reply within {REPLY_TIMEOUT:?}"),
            SessionEnd::Violated(_, violation) => violation.to_string(),
            SessionEnd::TlsFailed(error) => tls_failure(&error),
        };
        self.unreachable(&text)
    }

    fn is_refused_for_good(&self, refusal: &DeliveryRefusal) -> bool {
        let greeting_5xx = self.worker.resources.greeting_5xx;
        self.is_greeting_refused && refusal.is_permanent() && greeting_5xx == RefusedGreeting::Fail
    }

    fn give_up_text(&mut self, reason: GaveUp) -> String {
        self.closing_reply.take().map_or_else(|| reason.to_string(), |refusal| format!("{reason}: {}", refusal.text))
    }

    /// Sends QUIT and takes no more messages. The queue may open another connection at once, because the reply to QUIT
    /// may take long.
    fn begin_quit(&mut self) -> Poll<NextAction> {
        self.waiter.cancel();
        let slot = self.slot.as_mut().expect("the connection is open");
        self.worker.begin_quit(slot);
        Poll::Ready(NextAction::Quit)
    }

    /// Gives the connection back to the queue manager. If the server refused the session for good,
    /// or is this relay itself, all waiting messages fail first.
    pub(crate) fn finish(mut self, result: ConnectionResult) {
        self.waiter.cancel();
        let slot = self.slot.take().expect("it is given back once");
        let closing = match result {
            ConnectionResult::Refused(refusal) | ConnectionResult::Loop(refusal) => {
                return fail_all(&self.worker, slot, &refusal);
            }
            ConnectionResult::Unreachable(refusal) => DisconnectReason::Unreachable(refusal),
            ConnectionResult::Finished | ConnectionResult::WithoutTls => DisconnectReason::Finished,
        };
        self.worker.connection_closed(slot, closing);
    }

    /// Returns the envelope of the next message, adapted to the peer's extensions. A message that cannot be sent in any
    /// form fails at once.
    fn next_transaction(&mut self, cx: &mut Context<'_>, extensions: &Extensions, now: Duration) -> NextTransaction {
        loop {
            let (request, form) = match self.conversion.take() {
                Some(mut conversion) => match conversion.form.as_mut().poll(cx) {
                    Poll::Ready(Some(form)) => (conversion.request, form),
                    Poll::Ready(None) => {
                        conversion.request.panicked();
                        continue;
                    }
                    Poll::Pending => {
                        self.conversion = Some(conversion);
                        return NextTransaction::Convert;
                    }
                },
                None => {
                    let slot = self.slot.as_mut().expect("the connection is open");
                    let request = match self.worker.next_message(slot, &mut self.waiter, cx.waker(), now) {
                        NextMessage::Deliver(request) => request,
                        NextMessage::Wait => return NextTransaction::Wait,
                        NextMessage::Quit => return NextTransaction::Quit,
                    };
                    planned_panic("delivery");
                    if required_extensions::is_long_conversion(&request.message, extensions) {
                        // The next iteration polls the conversion. The conversion wakes this task when it is done.
                        self.conversion = Some(self.convert(request, extensions));
                        continue;
                    }
                    let recipients = request.recipients.iter();
                    let form = required_extensions::check(&request.message, recipients, extensions, &self.hostname);
                    (request, form)
                }
            };
            match form.and_then(|form| self.prepare_transaction(&request, form, extensions)) {
                Ok((envelope, form)) => {
                    self.in_flight.push_back(PipelinedMessage::new(request, form, extensions));
                    self.idle_until = None;
                    self.spare_envelopes.push(Arc::clone(&envelope));
                    return NextTransaction::Transaction(envelope);
                }
                Err(refusal) => {
                    self.worker.sink.counters.failed.add(request.recipients.len() as u64);
                    self.worker.finish_delivery(request, DeliveryResult::All(RecipientStatus::Failed(refusal)));
                }
            }
        }
    }

    /// Converts a message on another thread, because a long conversion would delay all sessions of the worker.
    fn convert(&self, request: DeliveryGuard, extensions: &Extensions) -> Conversion {
        let pool = self.worker.resources.converter_pool.clone();
        let message = request.message.clone();
        let recipients: Vec<u16> = request.recipients.iter().collect();
        let (extensions, hostname) = (extensions.clone(), Arc::clone(&self.hostname));
        let work = move || required_extensions::check(&message, recipients.into_iter(), &extensions, &hostname);
        Conversion { request, form: Box::pin(async move { pool.run(work).await }) }
    }
}

impl SmtpDelivery {
    /// Returns the envelope for the chosen form of the message, with only the parameters that the server understands,
    /// and without the recipients whose addresses the server does not accept.
    fn prepare_transaction(
        &mut self,
        request: &DeliveryRequest<Message>,
        form: DeliveryForm,
        extensions: &Extensions,
    ) -> Result<(Arc<Envelope>, DeliveryForm), DeliveryRefusal> {
        let message = &request.message;
        let sent = form.converted.as_ref().unwrap_or(message);
        let parameters = mail_parameters(sent, extensions)?;
        let recipients: Vec<(&[u8], String)> = request
            .recipients
            .iter()
            .filter(|number| !form.left_out.contains(number))
            .map(|number| {
                let recipient = &sent.envelope.recipients[usize::from(number)];
                (recipient.address.as_slice(), recipient_parameters(recipient, sent.envelope.smtp_utf8, extensions))
            })
            .collect();
        let mut envelope = self.unused_envelope();
        let room = Arc::get_mut(&mut envelope).expect("a draft is nobody else's");
        room.rewrite_with(
            &sent.envelope.sender,
            parameters.as_bytes(),
            recipients.iter().map(|(address, parameters)| (*address, parameters.as_bytes())),
        )
        .map_err(|_| {
            DeliveryRefusal::new(553, Some(EnhancedStatusCode(5, 1, 3)), "an address cannot be written", "")
        })?;
        Ok((envelope, form))
    }

    /// Returns an envelope with old or placeholder content, which the caller must replace. Reuses an envelope that the
    /// session no longer needs, if there is one, to save an allocation per message.
    fn unused_envelope(&mut self) -> Arc<Envelope> {
        let free = self.spare_envelopes.iter().position(|envelope| Arc::strong_count(envelope) == 1);
        match free {
            Some(at) => self.spare_envelopes.swap_remove(at),
            None => Arc::new(Envelope::new("", "", ["a@b"]).expect("it is one")),
        }
    }

    fn refusal(&self, reply: &ReceivedReply<'_>) -> DeliveryRefusal {
        DeliveryRefusal::new(reply.code(), reply.enhanced(), &reply.text(), &self.host)
    }

    /// Measures the peer's speed, which decides whether it may get several messages at a time.
    fn measure(&mut self, now: Duration) {
        let is_quick = now.saturating_sub(self.measured_since) < FAST_REPLY_LIMIT;
        self.measured_since = now;
        self.is_fast = is_quick;
        if self.may_batch {
            // Set the batch size after each message, because another connection to the destination
            // may have set a different one.
            let destination = self.destination();
            self.worker.set_batch_size(destination, if is_quick { MAX_BATCH } else { 1 });
        }
    }

    /// Reports the result of the oldest message in transit to the queue. The caller must be certain that no reply to
    /// the message is missing.
    fn finish_transaction(&mut self) {
        let Some(mut pipelined) = self.in_flight.pop_front() else { return };
        self.answered -= 1;
        if let Some(reply) = pipelined.accept_reply.take() {
            self.worker.sink.log.keep_reply(reply);
        }
        let statuses = pipelined.recipient_statuses();
        let is_taken = || {
            statuses.iter().any(|status| matches!(status, RecipientStatus::Delivered | RecipientStatus::Confirmed(_)))
        };
        if !Arc::ptr_eq(&pipelined.message().body, &pipelined.request.message.body) && is_taken() {
            self.worker.sink.counters.converted.add(1);
        }
        let result = combine_statuses(&self.worker.sink.counters, statuses);
        self.worker.finish_delivery(pipelined.request, result);
    }

    /// Returns the oldest message that still lacks replies. The next reply belongs to this message.
    fn current(&mut self) -> Option<&mut PipelinedMessage> {
        self.in_flight.get_mut(self.answered)
    }

    fn apply_reply(&mut self, to: Verb, reply: &ReceivedReply<'_>) {
        if is_accepted(to, reply) {
            return;
        }
        let refusal = self.refusal(reply);
        if reply.code() == 421 || matches!(to, Verb::Greeting | Verb::Hello | Verb::StartTls | Verb::Auth) {
            self.closing_reply = Some(refusal.clone());
            self.is_greeting_refused = to == Verb::Greeting;
        }
        if let Some(pipelined) = self.current() {
            pipelined.apply_refusal(to, &refusal);
        }
    }
}

/// Explains why TLS failed, and what to change in the route.
fn tls_failure(error: &io::Error) -> String {
    let fault = error.get_ref().and_then(|inner| inner.downcast_ref::<HandshakeFault>());
    match fault {
        Some(fault @ HandshakeFault::NotTls) => format!("{fault}: check tls and the port of the route"),
        Some(fault) => fault.with_remedy(&REMEDIES),
        None => reason(error),
    }
}

/// Returns true if a reply accepts its command. MAIL, RCPT and the message itself are accepted only with a 2xx, and
/// other commands, such as DATA, also with a 3xx.
fn is_accepted(to: Verb, reply: &ReceivedReply<'_>) -> bool {
    match to {
        Verb::Mail | Verb::Recipient(_) | Verb::Chunk | Verb::Message | Verb::Delivery(_) => reply.code() / 100 == 2,
        _ => reply.is_positive(),
    }
}

impl MessageSource for SmtpDelivery {
    fn tls_established(&mut self, _handshake: &Handshake) {
        self.is_over_tls = true;
    }

    fn poll_next(&mut self, cx: &mut Context<'_>, client: &Client, early: bool, now: Duration) -> Poll<NextAction> {
        self.is_reached = true;
        self.must_quit |= self.waiter.must_close() || self.worker.is_closing();
        if self.must_quit {
            return self.begin_quit();
        }
        let destination = self.destination();
        self.may_batch = client.bursts();
        if early && ((self.may_batch && !self.is_fast) || !self.worker.next_is_loaded(destination)) {
            return Poll::Ready(NextAction::Nothing);
        }
        if self.in_flight.is_empty() {
            self.measured_since = now;
        }
        match self.next_transaction(cx, client.extensions(), now) {
            NextTransaction::Transaction(envelope) => return Poll::Ready(NextAction::Transaction(envelope)),
            NextTransaction::Quit => self.must_quit = true,
            NextTransaction::Wait | NextTransaction::Convert if early => return Poll::Ready(NextAction::Nothing),
            NextTransaction::Convert => return Poll::Pending,
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
        if let Some(pipelined) = self.in_flight.back_mut() {
            pipelined.message().render(outbox);
            pipelined.progress = SendProgress::Buffered;
        }
    }

    fn message_bytes(&self) -> u64 {
        self.in_flight.back().map_or(0, |pipelined| pipelined.message().body.len() as u64)
    }

    fn render_chunk(&mut self, outbox: &mut Outbox) {
        if let Some(pipelined) = self.in_flight.back_mut() {
            pipelined.message().render_raw(outbox);
            pipelined.progress = SendProgress::Buffered;
        }
    }

    fn written(&mut self, _now: Duration) {
        for pipelined in self.in_flight.iter_mut().filter(|pipelined| pipelined.progress == SendProgress::Buffered) {
            pipelined.progress = SendProgress::Sent;
        }
    }

    fn replied(&mut self, event: &Event<'_>, now: Duration) {
        self.apply_reply(event.to, &event.reply);
        if let (Verb::Delivery(place), Some(pipelined)) = (event.to, self.current()) {
            pipelined.answered = place as usize + 1;
        }
        if event.ends == Some(client::Outcome::Refused) {
            // The transaction has failed, so refuse all recipients even if this reply is positive. A 3xx never accepts
            // a message. A 2xx means nothing if the server has refused MAIL, every RCPT or a chunk before.
            let refusal = self.refusal(&event.reply);
            self.current().into_iter().for_each(|pipelined| pipelined.refuse_all(&refusal));
        }
        if event.ends.is_some() {
            if DeliveryLog::is_enabled() && event.reply.is_positive() {
                let reply = self.refusal(&event.reply);
                self.current().into_iter().for_each(|pipelined| pipelined.accept_reply = Some(reply.clone()));
            }
            self.answered += 1;
            self.measure(now);
        }
        (0..event.settled).for_each(|_| self.finish_transaction());
    }
}
