//! The source's side of a session: claims messages to send, decides what each reply means for them,
//! and measures their times.
use super::context::SourceContext;
use super::domains::{MessageDomains, RecipientDomains, UnitFate};
use super::envelopes::{EnvelopeBuffer, EnvelopeInput};
use super::message_set::MessageChoice;
use super::options::DialogueOutput;
use super::worker_state::{ClaimedMessage, ParkEntry, SourceWorkerState};
use mailrun_measurement::errors::ErrorEvent;
use mailrun_measurement::missing::MissingTransaction;
use mailrun_measurement::record::{MissingFate, Pipelining};
use mailrun_measurement::reply_text::ReplyText;
use mailrun_measurement::slowest::{MessagePhases, SlowTransaction};
use mailrun_measurement::{LatencyKind, Phase, SourceTally};
use mailrun_net::{Handshake, MessageSource, NextAction, Outbox, SessionEnd, Timer, clock};
use mailrun_process::outputs::SESSION_PANICKED;
use mailrun_process::planned_panic::planned_panic;
use mailrun_process::reason::reason;
use mailrun_schedule::distribution::RandomStream;
use mailrun_smtp::client::{Client, Event, GaveUp, Outcome, Verb, Violation};
use mailrun_smtp::dialogue::Dialogue;
use mailrun_smtp::{Extensions, ReceivedReply};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Write};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

#[derive(Debug)]
pub(super) struct OutgoingMessage {
    claim: ClaimedMessage,
    content: MessageChoice,
    /// Index, 0 or 1, of the message's envelope in the session's [`EnvelopeBuffer`].
    envelope_slot: usize,
    /// Time from which latency counts: when the message was created (closed loop) or due (open loop).
    since: Duration,
    /// Time at which the last byte of the message was handed to the kernel.
    sent: Option<Duration>,
    /// True once the peer has answered a command of the message. If the connection breaks after
    /// that, the message is given up instead of sent over another connection.
    answered: bool,
    /// True if the peer seemed to accept the message, but the connection ended before this was
    /// [certain](Event::settled). Such a message counts as failed and not as rejected, even if the peer then refused
    /// the session, because the peer may have accepted the message before.
    may_be_accepted: bool,
    /// One bit for each of the first 64 recipients, set if the peer has accepted the recipient.
    accepted: u64,
    /// The same bits for the recipients after the first 64, with 64 recipients in each word. Empty for messages with up
    /// to 64 recipients.
    accepted_beyond: Vec<u64>,
    rejected: u32,
    /// Only in LMTP, which replies to the end of the data once for each recipient: number of recipients whose reply has
    /// come, in the order of the envelope. For the recipients among them that `accepted` still marks, the peer has
    /// taken responsibility for the message (RFC 2033 §4.2).
    answered_recipients: usize,
    phases: MessagePhases,
    phase_ended_at: Duration,
    domains: MessageDomains,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessageFailure {
    /// The server refused the session or a command of the message with 4xx or 5xx.
    Rejected,
    /// The connection could not be established, broke, or took too long.
    Failed,
}

impl OutgoingMessage {
    fn new(claim: ClaimedMessage, setting: &SourceContext) -> Self {
        Self {
            claim,
            content: setting.messages.choose(claim.number),
            envelope_slot: 0,
            since: claim.since,
            sent: None,
            answered: false,
            may_be_accepted: false,
            accepted: 0,
            accepted_beyond: Vec::new(),
            rejected: 0,
            answered_recipients: 0,
            phases: MessagePhases::default(),
            phase_ended_at: claim.began,
            domains: setting
                .domains
                .as_ref()
                .map(|domains| recipient_domains(&claim, setting, domains))
                .unwrap_or_default(),
        }
    }

    /// Adds the time of a phase that ended at `now`, for example of RCPT, to the times of this message. The phase began
    /// at `since`, or at the end of the previous phase if that is later.
    fn add_phase(&mut self, phase: Phase, since: Duration, now: Duration) {
        // If several replies arrive in one read, only the first of them ends a phase. The other replies have the same
        // time, so they would add phases of zero length.
        if now == self.phase_ended_at {
            return;
        }
        self.phases.add(phase, now.saturating_sub(since.max(self.phase_ended_at)));
        self.phase_ended_at = now;
    }

    /// Describes the message for the list of the slowest messages. `reply` is the last reply to the message.
    fn summary(&self, reply: Option<ReplyText>) -> SlowTransaction {
        SlowTransaction {
            reply,
            message: self.claim.number,
            since: self.since,
            began: self.claim.began,
            phases: self.phases,
            bytes: self.content.bytes,
            recipients: self.claim.recipients,
        }
    }

    fn sequence(&self) -> u64 {
        self.claim.sequence
    }

    fn accept_recipient(&mut self, place: usize) {
        let bit = 1 << (place % 64);
        let Some(beyond) = (place / 64).checked_sub(1) else {
            self.accepted |= bit;
            return;
        };
        if self.accepted_beyond.len() <= beyond {
            self.accepted_beyond.resize(beyond + 1, 0);
        }
        self.accepted_beyond[beyond] |= bit;
    }

    /// Only in LMTP: records that the peer refuses the message for a recipient that it had accepted at RCPT.
    fn reject_recipient(&mut self, place: usize) {
        let bit = 1 << (place % 64);
        match (place / 64).checked_sub(1) {
            None => self.accepted &= !bit,
            Some(beyond) => self.accepted_beyond.iter_mut().skip(beyond).take(1).for_each(|word| *word &= !bit),
        }
    }

    /// Only in LMTP: records that the peer refuses the message for the recipients at these indices of the envelope.
    fn refuse_delivery(&mut self, places: Range<usize>) {
        for place in places {
            self.rejected += u32::from(self.has_accepted(place));
            self.reject_recipient(place);
            self.domains.reject(place);
        }
    }

    fn has_accepted(&self, place: usize) -> bool {
        let word = match (place / 64).checked_sub(1) {
            None => self.accepted,
            Some(beyond) => self.accepted_beyond.get(beyond).copied().unwrap_or(0),
        };
        word & (1 << (place % 64)) != 0
    }
}

/// State of one session of the load. When its connection ends, the session opens another one and keeps this state.
pub(super) struct LoadSession {
    context: Arc<SourceContext>,
    worker: Rc<SourceWorkerState>,
    park_entry: ParkEntry,
    /// Messages in transit, the oldest first. The next replies belong to the oldest message. There is a second message
    /// only if its commands are sent together with the content of the first.
    messages: VecDeque<OutgoingMessage>,
    /// Messages that seem to be answered, with their results and the time of the last reply. A result may be wrong
    /// until it is [certain](Event::settled), because the peer may have left out a reply.
    answered: VecDeque<(OutgoingMessage, Outcome, Duration)>,
    transactions: u64,
    commands_sent_at: Duration,
    data_accepted_at: Duration,
    /// True if the data that is being written contains a message, and not only commands.
    writing_message: bool,
    connected_at: Duration,
    /// Time at which AUTH was sent, or `None` outside a login.
    auth_sent_at: Option<Duration>,
    /// True if the peer has refused the session, by a 421 or by refusing the connection or EHLO.
    /// The refusal has already been counted as an error.
    is_rejected: bool,
    /// Maximum number of messages for this connection, or `None` without a limit.
    message_limit: Option<u64>,
    envelope_buffer: EnvelopeBuffer,
    dialogue: Option<DialoguePrinter>,
    pause: ThinkPause,
}

#[derive(Debug, Default)]
struct ThinkPause {
    until: Option<Duration>,
    timer: Timer,
    is_registered: bool,
}

impl LoadSession {
    pub(super) fn new(setting: Arc<SourceContext>, recorder: Rc<SourceWorkerState>) -> Self {
        let dialogue = (setting.options.dialogue == DialogueOutput::Stdout).then(DialoguePrinter::new);
        Self {
            dialogue,
            context: setting,
            worker: recorder,
            park_entry: ParkEntry::default(),
            messages: VecDeque::with_capacity(2),
            answered: VecDeque::new(),
            transactions: 0,
            commands_sent_at: Duration::ZERO,
            data_accepted_at: Duration::ZERO,
            writing_message: false,
            connected_at: Duration::ZERO,
            auth_sent_at: None,
            is_rejected: false,
            message_limit: None,
            envelope_buffer: EnvelopeBuffer::default(),
            pause: ThinkPause::default(),
        }
    }

    pub(super) fn has_message(&self) -> bool {
        !self.messages.is_empty()
    }

    /// Claims a message before connecting, so that the session connects only if it has something to send. Returns false
    /// if the session must end, because there are no more messages or too many sessions.
    pub(super) fn poll_claim(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        let now = clock::now();
        ready!(self.poll_pause(cx, now));
        let claim = ready!(self.worker.poll_claim(cx, &self.park_entry, now));
        claim.into_iter().for_each(|claim| self.begin_message(claim));
        Poll::Ready(claim.is_some())
    }

    fn begin_message(&mut self, claim: ClaimedMessage) {
        let message = OutgoingMessage::new(claim, &self.context);
        if self.context.domains.is_some() {
            self.worker.update_tally(|tally| message.domains.count_created(&mut tally.domains));
        }
        self.messages.push_back(message);
    }

    /// Adds an error to the tally. For an error at RCPT or later, the record also names a recipient as an example: the
    /// recipient at index `place` in the envelope of the oldest message in transit.
    fn count_error(&self, tally: &mut SourceTally, error: ErrorEvent<'_>, place: u32) {
        tally.count_error(error, self.context.zero, || {
            let message = self.messages.front().filter(|_| error.phase >= Phase::Rcpt)?;
            let recipients = self.context.envelopes.recipients_of(message.claim.number, message.claim.recipients);
            recipients.into_iter().nth(place as usize)
        });
    }

    /// Completes when the pause after the last message is over, or early when the run ends.
    fn poll_pause(&mut self, cx: &mut Context<'_>, now: Duration) -> Poll<()> {
        let Some(until) = self.pause.until else { return Poll::Ready(()) };
        if !self.context.plan.is_over(now) {
            if !std::mem::replace(&mut self.pause.is_registered, true) {
                self.worker.register_pause(cx);
            }
            ready!(self.pause.timer.poll_due(Some(until), now));
        }
        self.pause.until = None;
        Poll::Ready(())
    }

    /// Begins the pause after a finished message, if the options ask for one.
    fn begin_pause(&mut self, number: u64, now: Duration) {
        let options = &self.context.options;
        if let Some(think) = &options.think {
            self.pause.until =
                Some(now + Duration::from_nanos(think.sample(options.seed, RandomStream::Think, number)));
        }
    }

    pub(super) fn connection_established(&mut self, began: Duration, now: Duration) {
        if let Some(dialogue) = &mut self.dialogue {
            dialogue.event(&format!("Connected to {}", self.context.options.to));
        }
        self.connected_at = now;
        self.commands_sent_at = now;
        self.transactions = 0;
        self.is_rejected = false;
        let options = &self.context.options;
        let first = self.messages.front().map_or(0, |job| job.claim.number);
        self.message_limit = options.reuse.as_ref().map(|reuse| reuse.sample(options.seed, RandomStream::Reuse, first));
        self.messages.front_mut().into_iter().for_each(|message| message.add_phase(Phase::Connect, began, now));
        self.worker.update_tally(|tally| {
            tally.connections += 1;
            if now >= self.context.warm_up_until {
                tally.time(LatencyKind::Phase(Phase::Connect), now - began);
            }
        });
    }

    /// Gives up the message that was waiting for this connection.
    pub(super) fn connection_failed(&mut self, reason: &str) {
        if let Some(dialogue) = &mut self.dialogue {
            dialogue.event(&format!("No connection to {}: {reason}", self.context.options.to));
        }
        let error = ErrorEvent { phase: Phase::Connect, code: 0, text: reason, at: clock::now() };
        self.worker.update_tally(|tally| self.count_error(tally, error, 0));
        self.fail_messages(MessageFailure::Failed);
    }

    /// Handles the end of the connection, and gives up the messages in transit. However, the newest message is kept and
    /// sent over the next connection if the peer has neither answered its commands nor received its content. This does
    /// not apply to the first message of a connection, which is always given up.
    pub(super) fn connection_ended(&mut self, ended: &SessionEnd) {
        let (verb, what) = match ended {
            SessionEnd::Closed => (None, "the peer closed the session".to_owned()),
            SessionEnd::GaveUp(cause) => (Some(failed_verb(*cause)), cause.to_string()),
            SessionEnd::Lost(verb, error) if error.kind() == ErrorKind::UnexpectedEof => {
                (*verb, "connection closed".to_owned())
            }
            // In TLS 1.3, the server checks the client's certificate only after the client has completed the handshake.
            // So this late error still belongs to TLS.
            SessionEnd::Lost(_, error) if error.kind() == ErrorKind::InvalidData => {
                (Some(Verb::StartTls), reason(error))
            }
            SessionEnd::Lost(verb, error) => (*verb, format!("connection lost: {}", reason(error))),
            SessionEnd::Timeout(verb) => (*verb, format!("no reply within {:?}", self.context.options.timeout)),
            SessionEnd::Violated(_, injected @ Violation::Injected(_)) => (Some(Verb::StartTls), injected.to_string()),
            SessionEnd::Violated(verb, violation) => (*verb, violation.to_string()),
            SessionEnd::TlsFailed(error) => (Some(Verb::StartTls), reason(error)),
        };
        if let Some(dialogue) = self.dialogue.as_mut().filter(|_| !matches!(ended, SessionEnd::Closed)) {
            dialogue.event(&what);
        }
        self.writing_message = false;
        self.take_back_answered();
        let is_unheard =
            self.messages.back().is_some_and(|job| !job.answered && job.sent.is_none() && self.transactions > 1);
        let kept = if is_unheard { self.messages.pop_back() } else { None };
        let is_counted = self.is_rejected || matches!(ended, SessionEnd::GaveUp(cause) if was_rejected(*cause));
        let is_of_setup = matches!(verb, Some(Verb::Greeting | Verb::Hello | Verb::StartTls));
        if !is_counted && (!self.messages.is_empty() || is_of_setup) {
            let phase = phase_of(verb.unwrap_or(Verb::Message));
            let error = ErrorEvent { phase, code: 0, text: &what, at: clock::now() };
            self.worker.update_tally(|tally| self.count_error(tally, error, 0));
        }
        self.fail_messages(if is_counted { MessageFailure::Rejected } else { MessageFailure::Failed });
        self.messages.extend(kept);
    }

    /// Counts the results of all answered messages, including the message that this reply ends. Must be called when a
    /// reply has made these results certain.
    fn settle(&mut self, event: &Event<'_>, now: Duration) {
        while let Some((message, outcome, at)) = self.answered.pop_front() {
            self.finish_transaction(message, outcome, at);
        }
        if let Some(outcome) = event.ends
            && let Some(message) = self.messages.pop_front()
        {
            self.finish_transaction(message, outcome, now);
        }
    }

    /// Moves answered messages whose results are not certain yet back to the messages in transit. If the peer left out
    /// a reply, the later replies were assigned to the wrong commands. In LMTP, the session may have taken such replies
    /// for replies about recipients, so the number of answered recipients is reset.
    fn take_back_answered(&mut self) {
        let is_certain = self.answered.is_empty() && self.messages.len() == 1;
        for (mut message, outcome, _) in self.answered.drain(..).rev() {
            message.may_be_accepted = outcome == Outcome::Accepted;
            self.messages.push_front(message);
        }
        if !is_certain {
            self.messages.iter_mut().for_each(|message| message.answered_recipients = 0);
        }
    }

    /// Gives up all messages in transit, and counts them as rejected or failed. The caller must have counted the error
    /// already. A message that the peer may have accepted always counts as failed, because its result is unknown.
    fn fail_messages(&mut self, failure: MessageFailure) {
        self.take_back_answered();
        let Some(last) = self.messages.back().map(|job| job.claim.number) else { return };
        let now = clock::now();
        let mut ended = std::mem::take(&mut self.messages);
        self.worker.update_tally(|tally| {
            tally.last_ended = Some(now);
            for job in ended.drain(..) {
                let failure = if job.may_be_accepted { MessageFailure::Failed } else { failure };
                let warm_up = u64::from(job.claim.is_warm_up);
                let all = u64::from(job.claim.recipients);
                tally.time(LatencyKind::Ended, now.saturating_sub(job.since));
                let accepted_count = self.count_accepted(tally, &job, job.answered_recipients);
                let rest = all - accepted_count;
                // Rejected recipients count as rejected even if the connection fails later.
                let refused =
                    if failure == MessageFailure::Rejected { rest } else { u64::from(job.rejected).min(rest) };
                tally.recipients_rejected += refused;
                // If the whole message was sent, the server may have accepted it even though no reply arrived.
                let is_in_doubt = job.sent.is_some();
                if is_in_doubt {
                    tally.recipients_in_doubt += rest - refused;
                } else {
                    tally.recipients_failed += rest - refused;
                }
                if let Some(stage) = tally.of_load_stage(job.claim.load_stage) {
                    stage.recipients_accepted += accepted_count;
                    stage.recipients_rejected += refused;
                    *(if is_in_doubt { &mut stage.recipients_in_doubt } else { &mut stage.recipients_failed }) +=
                        rest - refused;
                    let unaccepted = u64::from(!job.claim.is_warm_up);
                    *(if refused == rest { &mut stage.rejected } else { &mut stage.failed }) += unaccepted;
                }
                let fate = match failure {
                    MessageFailure::Rejected => UnitFate::Rejected,
                    _ if is_in_doubt => UnitFate::InDoubt,
                    _ => UnitFate::Failed,
                };
                job.domains.count_ended(&mut tally.domains, |place| {
                    let is_accepted = place < job.answered_recipients && job.has_accepted(place);
                    if is_accepted { UnitFate::Accepted } else { fate }
                });
                if refused == rest {
                    tally.rejected += 1;
                    tally.warm_up.rejected += warm_up;
                    self.note_missing(tally, &job, MissingFate::Rejected);
                } else {
                    tally.failed += 1;
                    tally.warm_up.failed += warm_up;
                    let fate = if is_in_doubt { MissingFate::InDoubt } else { MissingFate::Failed };
                    self.note_missing(tally, &job, fate);
                }
            }
        });
        self.messages = ended;
        if self.context.options.think.is_some() {
            self.begin_pause(last, now);
        }
    }

    /// Lists a message that the server did not accept, with the server's last reply to it.
    fn note_missing(&self, tally: &mut SourceTally, job: &OutgoingMessage, fate: MissingFate) {
        if tally.missing.has_room() {
            tally.missing.push(MissingTransaction {
                message: job.claim.number,
                since: job.since,
                fate,
                recipients: job.claim.recipients,
                reply: self.worker.find_reply(job.sequence()).map(|reply| reply.text()),
            });
        }
    }

    /// Counts the accepted recipients among the first `recipients`, marks them in the ledger, and returns their number.
    fn count_accepted(&self, tally: &mut SourceTally, job: &OutgoingMessage, recipients: usize) -> u64 {
        let numbers = self.context.envelopes.recipient_numbers(&self.envelope_buffer, job.envelope_slot);
        let sequence = job.sequence();
        let mut accepted_count = 0;
        for place in (0..recipients).filter(|place| job.has_accepted(*place)) {
            accepted_count += 1;
            if tally.accepted_units.mark(sequence, numbers[place]) == mailrun_measurement::MarkResult::Full {
                tally.overflow += 1;
            }
        }
        tally.recipients_accepted += accepted_count;
        accepted_count
    }

    /// Counts the result of a message, whose last reply came at `now`.
    fn finish_transaction(&mut self, job: OutgoingMessage, outcome: Outcome, now: Duration) {
        self.begin_pause(job.claim.number, now);
        let all = job.claim.recipients as usize;
        let bytes = job.content.bytes;
        let is_open_loop = self.context.options.offered_rate.is_some();
        self.worker.update_tally(|tally| {
            tally.last_ended = Some(now);
            if outcome == Outcome::Refused {
                tally.rejected += 1;
                tally.warm_up.rejected += u64::from(job.claim.is_warm_up);
                tally.time(LatencyKind::Ended, now.saturating_sub(job.since));
                tally.recipients_rejected += all as u64;
                if let Some(stage) = tally.of_load_stage(job.claim.load_stage) {
                    stage.recipients_rejected += all as u64;
                    stage.rejected += u64::from(!job.claim.is_warm_up);
                }
                job.domains.count_ended(&mut tally.domains, |_| UnitFate::Rejected);
                self.note_missing(tally, &job, MissingFate::Rejected);
                return;
            }
            let accepted_count = self.count_accepted(tally, &job, all);
            tally.accepted += 1;
            tally.first_reply.get_or_insert(now);
            tally.last_reply = Some(now);
            tally.recipients_rejected += all as u64 - accepted_count;
            tally.bytes_accepted += bytes;
            if let Some(stage) = tally.of_load_stage(job.claim.load_stage) {
                stage.recipients_accepted += accepted_count;
                stage.recipients_rejected += all as u64 - accepted_count;
                if !job.claim.is_warm_up {
                    stage.accepted += 1;
                    stage.bytes_accepted += bytes;
                    stage.accepted_latency.record(now.saturating_sub(job.since));
                    stage.accepted_times.record(now, job.since);
                }
            }
            job.domains.count_ended(&mut tally.domains, |place| match job.has_accepted(place) {
                true => UnitFate::Accepted,
                false => UnitFate::Rejected,
            });
            if job.claim.is_warm_up {
                tally.warm_up.accepted += 1;
                tally.warm_up.bytes_accepted += bytes;
                return;
            }
            let latency = now.saturating_sub(job.since);
            tally.accept(latency, now, self.context.zero);
            if is_open_loop {
                tally.time(LatencyKind::AcceptedService, now.saturating_sub(job.claim.began));
            }
            if tally.slowest.admits(latency) {
                tally.slowest.insert(latency, job.summary(self.worker.find_reply(job.sequence())));
            }
            tally.accepted_times.record(now, job.since);
        });
    }

    fn count_reply(&mut self, event: &Event<'_>, now: Duration) {
        let phase = phase_of(event.to);
        let since = match event.to {
            Verb::Greeting => self.connected_at,
            Verb::Message => self.messages.front().and_then(|job| job.sent).unwrap_or(self.commands_sent_at),
            Verb::Auth => *self.auth_sent_at.get_or_insert(self.commands_sent_at),
            _ => self.commands_sent_at,
        };
        // A login may have several replies, but counts as one exchange. So record a time only for its last reply, and
        // not for the 334 replies before. The reply to STARTTLS counts together with the TLS handshake.
        let is_whole = event.reply.code() != 334 && event.to != Verb::StartTls;
        if is_whole && event.to == Verb::Auth {
            self.auth_sent_at = None;
        }
        self.worker.update_tally(|tally| {
            if is_whole && now >= self.context.warm_up_until {
                tally.reply_time(phase, since, now);
            }
            if !event.reply.is_positive() {
                let text = event.reply.text();
                let error = ErrorEvent { phase, code: event.reply.code(), text: &text, at: now };
                let place = match event.to {
                    Verb::Recipient(place) | Verb::Delivery(place) => place,
                    _ => 0,
                };
                self.count_error(tally, error, place);
            }
        });
        if is_whole && let Some(message) = self.messages.front_mut() {
            message.add_phase(phase, since, now);
        }
        match event.to {
            _ if event.reply.code() == 421 => self.is_rejected = true,
            Verb::Greeting if !event.reply.is_positive() => self.is_rejected = true,
            // The server may still accept HELO after it has refused EHLO, so the last reply decides.
            Verb::Hello => self.is_rejected = !event.reply.is_positive(),
            _ => {}
        }
    }
}

impl Drop for LoadSession {
    /// Records that the session has ended. During a panic, counts an error and gives up the messages in transit.
    fn drop(&mut self) {
        self.worker.session_ended(&self.park_entry);
        if !std::thread::panicking() {
            return;
        }
        let was_sent = self.messages.front().is_some_and(|job| job.sent.is_some());
        let phase = if was_sent { Phase::Reply } else { Phase::Mail };
        let error = ErrorEvent { phase, code: 0, text: SESSION_PANICKED, at: clock::now() };
        self.worker.update_tally(|tally| tally.count_error(error, self.context.zero, || None));
        self.fail_messages(MessageFailure::Failed);
    }
}

impl LoadSession {
    /// Returns the envelope of the newest message, or ends the session if there is no message.
    fn next_transaction(&mut self, extensions: &Extensions) -> NextAction {
        let Some(job) = self.messages.back_mut() else { return NextAction::Quit };
        let ClaimedMessage { number, recipients, .. } = job.claim;
        let input = EnvelopeInput { number, sequence: job.sequence(), recipients, content: job.content, extensions };
        let envelope = self.context.envelopes.envelope_for(input, &mut self.envelope_buffer);
        job.envelope_slot = self.envelope_buffer.current_slot();
        NextAction::Transaction(envelope)
    }
}

impl MessageSource for LoadSession {
    fn tls_established(&mut self, handshake: &Handshake) {
        if let Some(dialogue) = &mut self.dialogue {
            dialogue.tls_established(handshake);
        }
        // The server sends its greeting or its reply to EHLO only after the handshake, so begin to time that reply now.
        let now = clock::now();
        self.commands_sent_at = now;
        self.connected_at = now;
        self.messages.front_mut().into_iter().for_each(|message| message.add_phase(Phase::Tls, Duration::ZERO, now));
        self.worker.update_tally(|tally| {
            if now >= self.context.warm_up_until {
                tally.time(LatencyKind::Phase(Phase::Tls), handshake.took);
            }
            tally.handshakes.add(&handshake.version, &handshake.cipher, handshake.resumed);
        });
    }

    fn poll_next(&mut self, cx: &mut Context<'_>, client: &Client, early: bool, now: Duration) -> Poll<NextAction> {
        let is_new = self.messages.len() == usize::from(early);
        let options = &self.context.options;
        let is_full = self.message_limit.is_some_and(|limit| self.transactions >= limit);
        if is_full {
            return Poll::Ready(NextAction::Quit);
        }
        // Only a streaming session without pauses may begin a message before the previous message is answered.
        if early && (options.pipelining != Pipelining::Stream || options.think.is_some()) {
            return Poll::Ready(NextAction::Nothing);
        }
        if is_new {
            ready!(self.poll_pause(cx, now));
            match ready!(self.worker.poll_claim(cx, &self.park_entry, now)) {
                Some(claim) => self.begin_message(claim),
                None => return Poll::Ready(NextAction::Quit),
            }
        }
        self.transactions += 1;
        Poll::Ready(self.next_transaction(client.extensions()))
    }

    fn render(&mut self, outbox: &mut Outbox) {
        planned_panic("source");
        if let Some(job) = self.messages.front() {
            self.context.messages.render(job.content, job.sequence(), job.since, outbox);
            self.writing_message = true;
        }
    }

    fn message_bytes(&self) -> u64 {
        self.messages.front().map_or(0, |job| job.content.bytes)
    }

    fn render_chunk(&mut self, outbox: &mut Outbox) {
        if let Some(job) = self.messages.front() {
            self.context.messages.render_chunk(job.content, job.sequence(), job.since, outbox);
            self.writing_message = true;
        }
    }

    fn written(&mut self, now: Duration) {
        self.commands_sent_at = now;
        if !std::mem::take(&mut self.writing_message) {
            return;
        }
        let Some(job) = self.messages.front_mut() else { return };
        job.sent = Some(now);
        let since = job.since;
        let go_ahead = self.data_accepted_at;
        let bytes = job.content.bytes;
        let is_warm_up = job.claim.is_warm_up;
        let ClaimedMessage { began, load_stage, .. } = job.claim;
        let is_open_loop = self.context.options.offered_rate.is_some();
        let zero = self.context.zero;
        job.add_phase(Phase::Body, go_ahead, now);
        self.worker.update_tally(|tally| {
            tally.sent += 1;
            tally.bytes_sent += bytes;
            if let Some(stage) = tally.of_load_stage(load_stage).filter(|_| !is_warm_up) {
                stage.sent += 1;
                stage.bytes_sent += bytes;
                stage.sent_latency.record(now.saturating_sub(since));
                stage.sent_times.record(now, since);
            }
            if is_warm_up {
                tally.warm_up.sent += 1;
                tally.warm_up.bytes_sent += bytes;
                return;
            }
            tally.seconds.at(now, zero).sent += 1;
            tally.time(LatencyKind::Sent, now.saturating_sub(since));
            if is_open_loop {
                tally.time(LatencyKind::SentService, now.saturating_sub(began));
            }
            tally.time(LatencyKind::Phase(Phase::Body), now.saturating_sub(go_ahead));
            tally.sent_times.record(now, since);
        });
    }

    fn sending(&mut self, outbox: &Outbox) {
        if let Some(dialogue) = &mut self.dialogue {
            dialogue.sent(&outbox.to_vec());
        }
    }

    fn replied(&mut self, event: &Event<'_>, now: Duration) {
        if let Some(dialogue) = &mut self.dialogue {
            dialogue.received(&event.reply);
        }
        self.count_reply(event, now);
        if let Some(job) = self.messages.front_mut() {
            job.answered |= !matches!(event.to, Verb::Greeting | Verb::Hello | Verb::Reset | Verb::Quit);
            let is_last = matches!(event.to, Verb::Message | Verb::Delivery(_));
            if is_last || job.answered && !event.reply.is_positive() {
                self.worker.record_reply(job.sequence(), now, &event.reply);
            }
            match event.to {
                Verb::Recipient(place) if event.reply.is_positive() => job.accept_recipient(place as usize),
                Verb::Recipient(place) => {
                    job.rejected += 1;
                    job.domains.reject(place as usize);
                }
                // After a 421, no replies follow, so count all remaining recipients as rejected.
                Verb::Delivery(place) if event.reply.code() == 421 => {
                    job.refuse_delivery(place as usize..job.claim.recipients as usize);
                }
                Verb::Delivery(place) => {
                    let place = place as usize;
                    job.answered_recipients = place + 1;
                    if !event.reply.is_positive() {
                        job.refuse_delivery(place..place + 1);
                    }
                }
                Verb::Data if event.reply.code() == 354 => self.data_accepted_at = now,
                _ => {}
            }
        }
        if event.settled > 0 {
            self.settle(event, now);
        } else if let Some(outcome) = event.ends {
            self.answered.extend(self.messages.pop_front().map(|message| (message, outcome, now)));
        }
    }
}

fn recipient_domains(claim: &ClaimedMessage, context: &SourceContext, domains: &RecipientDomains) -> MessageDomains {
    MessageDomains::new(context.envelopes.domains_of(claim.number, claim.recipients, domains))
}

/// Returns the phase that ends with a reply to the command `verb`. Commands without a phase of their own share the
/// phase of a related command, for example XCLIENT the phase of EHLO.
fn phase_of(verb: Verb) -> Phase {
    match verb {
        Verb::Greeting => Phase::Banner,
        Verb::Hello | Verb::Xclient => Phase::Ehlo,
        Verb::StartTls => Phase::Tls,
        Verb::Auth => Phase::Auth,
        Verb::Mail => Phase::Mail,
        Verb::Recipient(_) => Phase::Rcpt,
        Verb::Data => Phase::Data,
        Verb::Chunk | Verb::Message | Verb::Delivery(_) | Verb::Reset => Phase::Reply,
        Verb::Quit => Phase::Quit,
    }
}

/// Returns the command at which `cause` counts as an error. For example, a server that does not offer STARTTLS causes
/// an error at STARTTLS.
fn failed_verb(cause: GaveUp) -> Verb {
    match cause {
        GaveUp::NoTls | GaveUp::TlsRefused => Verb::StartTls,
        GaveUp::NoMechanism | GaveUp::NotAuthenticated | GaveUp::Exchange(_) => Verb::Auth,
        GaveUp::NoXclient | GaveUp::XclientRefused => Verb::Xclient,
        GaveUp::NoDsn | GaveUp::OwnName => Verb::Hello,
    }
}

/// Returns true if the session ended because of a negative reply. Such a reply was counted as an error when it came.
fn was_rejected(cause: GaveUp) -> bool {
    matches!(cause, GaveUp::TlsRefused | GaveUp::NotAuthenticated | GaveUp::XclientRefused)
}

/// Maximum number of lines of a message that the dialogue shows. It counts further lines without showing them.
const MAX_LINES: u64 = 200;

#[derive(Debug)]
pub(crate) struct DialoguePrinter {
    dialogue: Dialogue,
    /// Lines of the dialogue that are still to be printed. They are printed together in one write.
    shown: String,
}

impl DialoguePrinter {
    pub(crate) fn new() -> Self {
        Self { dialogue: Dialogue::new(MAX_LINES), shown: String::new() }
    }

    pub(crate) fn event(&mut self, text: &str) {
        Dialogue::event(text, &mut self.shown);
        self.print();
    }

    pub(crate) fn tls_established(&mut self, handshake: &Handshake) {
        self.dialogue.tls_started(&handshake.version, &handshake.cipher, &mut self.shown);
        self.print();
    }

    pub(crate) fn sent(&mut self, octets: &[u8]) {
        self.dialogue.client(octets, &mut self.shown);
        self.print();
    }

    pub(crate) fn received(&mut self, reply: &ReceivedReply<'_>) {
        self.dialogue.reply(reply, &mut self.shown);
        self.print();
    }

    fn print(&mut self) {
        // Ignore the error, because the run goes on if standard output is closed.
        let _ = io::stdout().lock().write_all(self.shown.as_bytes());
        self.shown.clear();
    }
}
