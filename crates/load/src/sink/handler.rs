//! Handles the mail of a session: reads the trace of each message, counts the message, and answers 250 unless a rule
//! asks for another reply.
use super::active_rules::Ruleset;
use super::dump::{DumpEnvelope, MessageDump, MessageWriter};
use super::lmtp_replies::{LmtpReplies, RecipientDecision, combine};
use super::rules::RuleCommand;
use super::session_rules::{CommandContext, DomainSlots, ReadStep, RuleDecision, RuleEffect, SessionRules};
use super::worker_state::{
    RunNotice, SinkContext, SinkMessage, SinkRecipient, SinkWorkerState, TallyTransfer, sequence,
};
use mailrun_measurement::errors::ErrorEvent;
use mailrun_measurement::record::Resource;
use mailrun_measurement::trace::NAME as TRACE_NAME;
use mailrun_measurement::{Phase, TraceReader, TraceResult};
use mailrun_mime::NoticeReader;
use mailrun_net::{
    Answer, CloseReason, Handler, Handshake, LoginOutcome, Peer, ReadLimit, ResourceExhausted, Service, clock,
};
use mailrun_process::outputs::SESSION_PANICKED;
use mailrun_process::planned_panic::planned_panic;
use mailrun_smtp::Path;
use mailrun_smtp::command::{Hello, Mail, Recipient};
use mailrun_smtp::login::Auth;
use mailrun_smtp::proxy::ProxyHeader;
use mailrun_smtp::reply_reason::ReplyReason;
use mailrun_smtp::sasl::Secret;
use mailrun_smtp::server::Protocol;
use mailrun_smtp::xclient::{ClientAddress, Xclient};
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

/// Creates the handlers of all mail sessions of one worker thread. At every timer tick, sends the worker's counts to
/// the collector.
pub(super) struct SinkService(Rc<SinkWorkerState>);

impl SinkService {
    pub(super) fn new(shared: Arc<SinkContext>, full: Sender<TallyTransfer>) -> Self {
        Self(Rc::new(SinkWorkerState::new(shared, full)))
    }
}

impl Service for SinkService {
    type Handler = SinkHandler;

    fn session(&self, peer: Peer) -> SinkHandler {
        self.0.tally.borrow_mut().connections += 1;
        self.0.context.first_connection.get_or_init(clock::now);
        let side = self.0.context.dump.is_some().then(Box::default);
        let reader = TraceReader::default();
        let recipients = Vec::new();
        SinkHandler {
            worker: Rc::clone(&self.0),
            client: peer.address,
            reader,
            recipients,
            phase: Phase::Connect,
            began: None,
            extended: side,
        }
    }

    /// Exempts every client from the server's limits, because the sink measures clients and must not limit them.
    fn is_exempt(&self, _client: std::net::IpAddr) -> bool {
        true
    }

    fn accept_failed(&self, error: &std::io::Error) {
        let resource = match ResourceExhausted::from_error(error, false) {
            Some(ResourceExhausted::Descriptors) => Resource::Descriptors,
            Some(ResourceExhausted::HostDescriptors) => Resource::HostDescriptors,
            // Ignore other errors, because they do not mean that descriptors have run out. For example, the client may
            // have disconnected already.
            Some(ResourceExhausted::Ports) | None => return,
        };
        self.0.tally.borrow_mut().exhausted.add(resource);
    }

    fn tick(&self, _now: Duration) {
        self.0.send_tally();
    }

    async fn drain(&self) {
        // Send the last counts even if the collector has not yet taken the earlier counts, because this worker ends.
        self.0.send_last_tally();
    }
}

pub(super) struct SinkHandler {
    worker: Rc<SinkWorkerState>,
    client: SocketAddr,
    reader: TraceReader,
    recipients: Vec<SinkRecipient>,
    /// Phase of the client's last command. The sink counts in which phase sessions end, to show where clients leave
    /// without delivering mail.
    phase: Phase,
    /// Time from which the transfer of the message is measured: the earliest time at which the client could begin to
    /// send it. `None` if the sink has rules, because a rule may delay the transfer.
    began: Option<Duration>,
    /// State that a session needs only if there are rules, if mail is stored, or if a message comes from <>.
    extended: Option<Box<ExtendedSession>>,
}

#[derive(Default)]
struct ExtendedSession {
    rules: Option<SessionRules>,
    /// State of the search for the byte that a `corrupt` rule changes. `None` if no byte has to be changed.
    corruption: Option<Corruption>,
    /// True once the rule has changed a byte of this message. Later bytes stay as they are.
    is_changed: bool,
    hello: String,
    message_writer: Option<MessageWriter>,
    /// Parser of a message with the empty sender <>. Such a message may be a notification about a message of the run.
    notice: Option<Box<NoticeReader>>,
    /// In LMTP, the complete message whose recipients are being answered one after another.
    lmtp_replies: Option<Rc<LmtpReplies>>,
}

impl Drop for SinkHandler {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Ok(mut tally) = self.worker.tally.try_borrow_mut()
        {
            let error = ErrorEvent { phase: Phase::Reply, code: 0, text: SESSION_PANICKED, at: clock::now() };
            tally.count_error(error, || None);
        }
    }
}

impl Handler for SinkHandler {
    fn connect(&mut self, _now: Duration) -> Answer {
        self.phase = Phase::Banner;
        self.apply_rules(RuleCommand::Connect, None).unwrap_or_else(|refusal| refusal)
    }

    fn hello(&mut self, hello: Hello, name: &[u8]) -> Answer {
        self.phase = Phase::Ehlo;
        if let Some(side) = &mut self.extended {
            side.hello = String::from_utf8_lossy(name).into_owned();
        }
        let command = match hello {
            Hello::Extended => RuleCommand::Ehlo,
            Hello::Plain => RuleCommand::Helo,
            Hello::Lmtp => RuleCommand::Lhlo,
        };
        self.apply_rules(command, None).unwrap_or_else(|refusal| refusal)
    }

    fn mail(&mut self, mail: &Mail<'_>) -> Answer {
        self.phase = Phase::Mail;
        self.recipients.clear();
        if self.worker.context.has_enough() {
            return Answer::Reply(ReplyReason::ShuttingDown.reply().clone());
        }
        match self.apply_rules(RuleCommand::Mail, Some(mail.sender)) {
            Ok(answer) => {
                self.begin_notice(&mail.sender);
                self.begin_dump(&mail.sender);
                answer
            }
            Err(refusal) => refusal,
        }
    }

    fn recipient_with(&mut self, recipient: &Recipient<'_>) -> Answer {
        self.phase = Phase::Rcpt;
        let answer = match self.apply_rules(RuleCommand::Recipient, Some(recipient.path)) {
            Ok(answer) => answer,
            Err(refusal) => return refusal,
        };
        self.remember_recipient(recipient);
        self.recipients.push(self.worker.recipient(recipient));
        if let Some(draft) = self.extended.as_mut().and_then(|side| side.message_writer.as_mut()) {
            draft.envelope().recipients.push(String::from_utf8_lossy(recipient.as_bytes()).into_owned());
        }
        answer
    }

    fn data(&mut self) -> Answer {
        self.phase = Phase::Data;
        let answer = match self.apply_rules(RuleCommand::Data, None) {
            Ok(answer) => answer,
            Err(refusal) => return refusal,
        };
        if let Some(side) = &mut self.extended
            && let Some(rules) = self.worker.rules()
        {
            let is_hit = side.rules.as_ref().is_some_and(|session_rules| session_rules.corrupts_next(&rules));
            side.corruption = is_hit.then(Corruption::default);
        }
        self.began = (self.worker.context.active_rules.version() == 0).then(clock::now);
        self.reader.describe(self.worker.describes_untraced());
        answer
    }

    fn block(&mut self, block: &[u8]) {
        match &mut self.extended {
            None => self.reader.receive(block),
            Some(side) => side.receive(block, &mut self.reader, self.worker.context.dump.as_ref()),
        }
    }

    fn message(&mut self, bytes: u64, now: Duration) -> Answer {
        planned_panic("sink");
        self.phase = Phase::Reply;
        let result = self.reader.finish();
        if result == TraceResult::Absent && !self.may_be_notice() {
            self.worker.describe_untraced(self.reader.take_sample());
        }
        if let Some(began) = self.began.take() {
            self.worker.time_body(&result, began, now);
        }
        if self.only_counts() {
            self.worker.count_arrival(&result, &self.recipients, bytes, now, 1);
            return Answer::Yes;
        }
        self.handle_message(result, bytes, now)
    }

    fn delivery(&mut self, recipient: u32, now: Duration) -> Answer {
        let Some(replies) = self.extended.as_ref().and_then(|side| side.lmtp_replies.clone()) else {
            return Answer::Yes;
        };
        let place = recipient as usize;
        if replies.is_last(place)
            && let Some(side) = &mut self.extended
        {
            side.lmtp_replies = None;
        }
        let state = Rc::clone(&self.worker);
        let delay = replies.delay(place);
        if delay.is_zero() {
            return replies.answer(place, &state, now);
        }
        Answer::eventually(async move {
            pause(delay).await;
            replies.answer(place, &state, clock::now())
        })
    }

    fn verify(&mut self, _who: &[u8]) -> Answer {
        self.apply_rules(RuleCommand::Verify, None).unwrap_or_else(|refusal| refusal)
    }

    fn rset(&mut self) -> Answer {
        self.apply_rules(RuleCommand::Reset, None).unwrap_or_else(|refusal| refusal)
    }

    fn noop(&mut self) -> Answer {
        self.apply_rules(RuleCommand::Noop, None).unwrap_or_else(|refusal| refusal)
    }

    fn quit(&mut self) -> Answer {
        self.apply_rules(RuleCommand::Quit, None).unwrap_or_else(|refusal| refusal)
    }

    fn read_limit(&mut self) -> ReadLimit {
        let Some(session_rules) = self.extended.as_mut().and_then(|side| side.rules.as_mut()) else {
            return ReadLimit::All;
        };
        match session_rules.next_read(clock::now) {
            ReadStep::All => ReadLimit::All,
            ReadStep::AtMost(limit) => ReadLimit::AtMost(limit),
            ReadStep::NotBefore(then) => ReadLimit::NotBefore(then),
            ReadStep::Stop(effect, by) => {
                by.count_action();
                self.worker.count_effect(RuleCommand::Data, &effect, &by, None);
                ReadLimit::Close(effect.into_answer())
            }
        }
    }

    fn reset(&mut self, reason: Option<ReplyReason>) {
        self.recipients.clear();
        self.reader = TraceReader::default();
        if let Some(side) = &mut self.extended {
            side.message_writer = None;
            side.notice = None;
            side.corruption = None;
            side.is_changed = false;
            side.rules.as_mut().map(SessionRules::end_transaction);
        }
        if let Some(verdict) = reason {
            let reply = verdict.reply();
            let text = String::from_utf8_lossy(&reply.wire()[4..]).into_owned();
            self.worker.count_error(Phase::Reply, reply.code(), &text);
        }
    }

    fn proxy_header(&mut self, header: &ProxyHeader) {
        if let ProxyHeader::Proxied { source, .. } = header {
            self.client = *source;
        }
    }

    fn proxy_header_missing(&mut self, error: &std::io::Error) {
        self.worker.count_error(Phase::Connect, 0, &error.to_string());
    }

    fn xclient(&mut self, xclient: &Xclient<'_>) -> Answer {
        match xclient.address() {
            Some(ClientAddress::Known(address)) => self.client.set_ip(address),
            Some(ClientAddress::Unknown) => self.client.set_ip(Ipv4Addr::UNSPECIFIED.into()),
            None => {}
        }
        Answer::Yes
    }

    fn start_tls(&mut self) -> Answer {
        self.phase = Phase::Tls;
        self.apply_rules(RuleCommand::StartTls, None).unwrap_or_else(|refusal| refusal)
    }

    fn handshake(&mut self) -> Answer {
        self.phase = Phase::Tls;
        self.apply_rules(RuleCommand::Handshake, None).unwrap_or_else(|refusal| refusal)
    }

    fn tls_established(&mut self, handshake: &Handshake) {
        let mut tally = self.worker.tally.borrow_mut();
        tally.handshakes.add(&handshake.version, &handshake.cipher, handshake.resumed);
    }

    fn tls_failed(&mut self, error: &std::io::Error) {
        self.worker.tally.borrow_mut().handshakes.failed += 1;
        self.worker.count_error(Phase::Tls, 0, &error.to_string());
    }

    fn login(&mut self, auth: &Auth<'_>) -> Answer {
        self.phase = Phase::Auth;
        match self.apply_rules(RuleCommand::Auth, None) {
            Ok(_) if !self.worker.verify_login(auth) => Answer::Reply(ReplyReason::NotAuthenticated.reply().clone()),
            Ok(answer) | Err(answer) => answer,
        }
    }

    fn secret(&mut self, auth: &Auth<'_>) -> Option<Secret> {
        self.worker.context.users.as_ref().and_then(|users| users.secret(auth))
    }

    fn login_ended(&mut self, outcome: LoginOutcome) {
        if outcome == LoginOutcome::Failed {
            self.worker.count_error(Phase::Auth, 535, "a login failed");
        }
    }

    fn gave_up(&mut self, reason: ReplyReason) {
        let reply = reason.reply();
        let text = String::from_utf8_lossy(&reply.wire()[4..]).into_owned();
        self.worker.count_error(Phase::Reply, reply.code(), &text);
    }

    fn disconnect(&mut self, close_reason: CloseReason) {
        // If a panic has left the tally borrowed, count nothing: borrowing the tally again would cause a second panic.
        if let Ok(mut tally) = self.worker.tally.try_borrow_mut() {
            tally.ended[self.phase as usize] += 1;
        }
        if close_reason == CloseReason::Timeout {
            let reply = ReplyReason::Timeout.reply();
            self.worker.count_error(Phase::Reply, reply.code(), "a client was silent for too long");
        }
    }
}

impl SinkHandler {
    /// Returns true if the session only has to count messages, because the sink never had rules and stores no mail, and
    /// no message of the session came from <>.
    fn only_counts(&self) -> bool {
        self.extended.is_none() && self.worker.context.active_rules.version() == 0
    }

    /// Evaluates the rules for an SMTP command. Returns the answer, which is an `Err` if a rule refuses the command.
    fn apply_rules(&mut self, command: RuleCommand, address: Option<Path<'_>>) -> Result<Answer, Answer> {
        let Some(rules) = self.worker.rules() else { return Ok(Answer::Yes) };
        let RuleDecision { delay, effect, decided_by: by } = self.decide(&rules, command, address, None, clock::now());
        if let Some(by) = by {
            let recipient = address.filter(|_| command == RuleCommand::Recipient);
            self.worker.count_effect(command, &effect, &by, recipient.as_ref());
        }
        let is_granted = effect == RuleEffect::Accept;
        let answer = delay_answer(delay, effect.into_answer());
        if is_granted { Ok(answer) } else { Err(answer) }
    }

    fn decide(
        &mut self,
        rules: &Ruleset,
        command: RuleCommand,
        address: Option<Path<'_>>,
        sequence: Option<u64>,
        now: Duration,
    ) -> RuleDecision {
        let shared = &self.worker.context;
        let since = now.saturating_sub(*shared.first_connection.get().unwrap_or(&now));
        let context = CommandContext { command, client: self.client.ip(), address, sequence, now, since_start: since };
        let session_rules = &mut self.extended.get_or_insert_default().rules;
        session_rules
            .get_or_insert_with(|| SessionRules::new(shared.active_rules.next_session_number()))
            .decide(rules, &context)
    }

    /// Remembers an accepted recipient, but only if a rule must be evaluated for each recipient later.
    fn remember_recipient(&mut self, recipient: &Path<'_>) {
        let place = self.recipients.len();
        if let Some(session_rules) = self.extended.as_mut().and_then(|side| side.rules.as_mut())
            && self.worker.rules().is_some_and(|rules| rules.has_recipient_rules())
        {
            session_rules.add_recipient(place, recipient);
        }
    }

    /// Applies the rules to a complete message and, if they accept it, to each of its recipients.
    fn decide_message(
        &mut self,
        sequence: Option<u64>,
        now: Duration,
    ) -> (Duration, RuleEffect, Vec<RecipientDecision>) {
        let cut = self.extended.as_mut().and_then(|side| side.rules.as_mut()?.finish_message());
        let rules = self.worker.rules();
        let RuleDecision { delay, effect, decided_by: by } = match (cut, &rules) {
            (Some((effect, by)), _) => {
                by.count_action();
                RuleDecision { delay: Duration::ZERO, effect, decided_by: Some(by) }
            }
            (None, Some(rules)) => self.decide(rules, RuleCommand::Dot, None, sequence, now),
            (None, None) => RuleDecision { delay: Duration::ZERO, effect: RuleEffect::Accept, decided_by: None },
        };
        if let Some(by) = by {
            self.worker.count_effect(RuleCommand::Dot, &effect, &by, None);
        }
        let asks_recipients = |rules: &Arc<Ruleset>| effect == RuleEffect::Accept && rules.has_recipient_rules();
        let fates = match rules.filter(asks_recipients) {
            Some(rules) => self.decide_recipients(&rules, sequence, now),
            None => Vec::new(),
        };
        (delay, effect, fates)
    }

    /// Evaluates the rules for each recipient, until one ends the session or, in SMTP, refuses the message. Returns an
    /// empty list if all recipients are accepted without a delay.
    fn decide_recipients(&mut self, rules: &Ruleset, sequence: Option<u64>, now: Duration) -> Vec<RecipientDecision> {
        let shared = &self.worker.context;
        let since = now.saturating_sub(*shared.first_connection.get().unwrap_or(&now));
        let command = RuleCommand::Dot;
        let client = self.client.ip();
        let context = CommandContext { command, client, address: None, sequence, now, since_start: since };
        let Some(session_rules) = self.extended.as_mut().and_then(|side| side.rules.as_mut()) else {
            return Vec::new();
        };
        let mut fates = Vec::new();
        for place in 0..self.recipients.len() {
            let RuleDecision { delay, effect, decided_by: by } = session_rules.decide_recipient(rules, &context, place);
            if let Some(by) = by {
                self.worker.count_effect(RuleCommand::Dot, &effect, &by, None);
            }
            let fate = RecipientDecision { delay, effect };
            let ends = fate.ends_evaluation(shared.protocol);
            fates.push(fate);
            if ends {
                break;
            }
        }
        if fates.iter().all(RecipientDecision::is_unchanged) { Vec::new() } else { fates }
    }

    /// Handles the end of a message if the sink does more than count it, for example because the sink has rules.
    fn handle_message(&mut self, found: TraceResult, bytes: u64, now: Duration) -> Answer {
        let (mut delay, effect, fates) = self.decide_message(sequence(&found), now);
        let recipients = std::mem::take(&mut self.recipients);
        let side = self.extended.get_or_insert_default();
        let (message_writer, domain_slots) = side.end_transaction();
        let is_changed = std::mem::take(&mut side.is_changed);
        let reader = side.notice.take().filter(|_| found == TraceResult::Absent);
        let notice = reader.and_then(|reader| RunNotice::read(*reader)).map(Box::new);
        let mut arrival = SinkMessage {
            found,
            notice,
            recipients,
            bytes,
            effect,
            message_writer,
            is_changed,
            _domain_slots: domain_slots,
        };
        if !fates.is_empty() {
            if self.worker.context.protocol == Protocol::Lmtp {
                side.lmtp_replies = Some(Rc::new(LmtpReplies::new(arrival, fates)));
                return delay_answer(delay, Answer::Yes);
            }
            let joined = combine(&fates, &mut arrival.recipients, &mut arrival.message_writer);
            if joined.effect.copies().is_some() {
                self.worker.count_ordered(&arrival.found, fates.iter().map(|fate| &fate.effect));
            }
            delay += joined.delay;
            arrival.effect = joined.effect;
        }
        let state = Rc::clone(&self.worker);
        if delay.is_zero() {
            return state.accept_message(arrival, now);
        }
        // Count the message only when its answer is about to be written, because it is not accepted until then.
        Answer::eventually(async move {
            pause(delay).await;
            state.accept_message(arrival, clock::now())
        })
    }

    fn may_be_notice(&self) -> bool {
        self.extended.as_ref().is_some_and(|side| side.notice.is_some())
    }

    fn begin_notice(&mut self, sender: &Path<'_>) {
        if sender.is_null() {
            self.extended.get_or_insert_default().notice = Some(Box::new(NoticeReader::new(TRACE_NAME)));
        } else if let Some(side) = &mut self.extended {
            side.notice = None;
        }
    }

    fn begin_dump(&mut self, sender: &Path<'_>) {
        let Some(side) = self.extended.as_mut().filter(|_| self.worker.context.dump.is_some()) else { return };
        let mut envelope = DumpEnvelope::default();
        envelope.client = self.client.to_string();
        envelope.hello.clone_from(&side.hello);
        envelope.sender = String::from_utf8_lossy(sender.as_bytes()).into_owned();
        side.message_writer = Some(MessageWriter::new(envelope));
    }
}

impl ExtendedSession {
    fn receive(&mut self, block: &[u8], reader: &mut TraceReader, dump: Option<&MessageDump>) {
        if let Some(session_rules) = &mut self.rules {
            session_rules.record_read(block.len(), clock::now);
        }
        let corrupted = self.corruption.as_mut().and_then(|corruption| corruption.corrupt(block));
        if corrupted.is_some() {
            self.corruption = None;
            self.is_changed = true;
        }
        let block = corrupted.as_deref().unwrap_or(block);
        if let Some((draft, dump)) = self.message_writer.as_mut().zip(dump) {
            draft.write(dump, block);
        }
        if let Some(notice) = &mut self.notice {
            notice.receive(block);
        }
        reader.receive(block);
    }

    /// Ends the transaction, and returns the writer of the message and a guard. As long as the returned guard exists,
    /// `domain cap` rules count the transaction as open.
    fn end_transaction(&mut self) -> (Option<MessageWriter>, DomainSlots) {
        let domain_slots = self.rules.as_mut().map(SessionRules::end_transaction).unwrap_or_default();
        (self.message_writer.take(), domain_slots)
    }
}

/// Delays below this limit are exact to a microsecond, because the worker does not sleep near their end. Longer delays
/// are only as exact as the timer.
const SHORT_DELAY: Duration = Duration::from_millis(1);
/// Time that the kernel takes to wake a thread for a timer. On a virtual machine whose processors are awake, it takes
/// 15 to 20 µs.
const WAKE_UP: Duration = Duration::from_micros(20);

/// Waits as long as rules delay a reply. Near the end of a short delay, the worker serves other sessions instead of
/// sleeping, because waking up would take too long.
async fn pause(delay: Duration) {
    let until = clock::now() + delay;
    if delay >= SHORT_DELAY {
        return mailrun_net::sleep_until(until).await;
    }
    mailrun_net::sleep_until(until.saturating_sub(WAKE_UP)).await;
    while clock::now() < until {
        mailrun_net::worker::yield_now().await;
    }
}

fn delay_answer(delay: Duration, answer: Answer) -> Answer {
    if delay.is_zero() {
        return answer;
    }
    Answer::eventually(async move {
        pause(delay).await;
        answer
    })
}

/// Finds and changes the first visible byte of a body. A change in the header would not be noticed, because the
/// checksum does not cover the header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Corruption {
    #[default]
    LineStart,
    /// A CR came at the start of a line. If an LF follows, this is the empty line that ends the header.
    EmptyLine,
    InLine,
    Body,
}

impl Corruption {
    /// Returns the block with one byte changed, or `None` if this block contains no byte that may be changed.
    fn corrupt(&mut self, block: &[u8]) -> Option<Vec<u8>> {
        for (at, octet) in block.iter().enumerate() {
            *self = match (*self, octet) {
                (Self::EmptyLine, b'\n') => Self::Body,
                (Self::LineStart, b'\r') => Self::EmptyLine,
                (Self::Body, octet) if octet.is_ascii_control() => Self::Body,
                (Self::Body, octet) => {
                    let mut changed = block.to_vec();
                    changed[at] = octet ^ 1;
                    return Some(changed);
                }
                (_, b'\n') => Self::LineStart,
                _ => Self::InLine,
            };
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::active_rules::ActiveRules;
    use super::super::rulebook::Rulebook;
    use super::super::rules::Rule;
    use super::*;

    #[test]
    fn a_message_whose_data_is_refused_is_not_corrupted() {
        for (data, times) in [("data: soft reject", 0), ("data: delay 1ms", 1)] {
            let rules = [data, ".: corrupt"].map(|text| Rule::parse(text).unwrap()).to_vec();
            let rules = ActiveRules::new(Rulebook { seed: None, rules }, 1);
            let context = Arc::new(SinkContext::new(rules, None, None, None, None, Protocol::Smtp));
            let service = SinkService::new(Arc::clone(&context), std::sync::mpsc::channel().0);
            service.session(Peer { address: ([127, 0, 0, 1], 1).into() }).data();
            let counts = context.active_rules.rule_counts();
            assert_eq!(counts.last().map(|count| count.count), Some(times), "{counts:?}");
        }
    }

    fn send(handler: &mut SinkHandler, sender: &[u8], message: &str) -> u16 {
        let code = |answer: Answer| match answer {
            Answer::Reply(reply) => reply.code(),
            _ => 250,
        };
        let sender = Path::mailbox(sender).unwrap();
        let mail = Mail {
            sender,
            size: None,
            body: Default::default(),
            smtp_utf8: false,
            returns: None,
            envelope_id: None,
            auth: None,
        };
        let recipient = Recipient { path: Path::mailbox(b"to@b").unwrap(), notify: None, original: None };
        let mut answer = code(handler.mail(&mail)).max(code(handler.recipient_with(&recipient)));
        if answer == 250 {
            answer = code(handler.data());
            message.as_bytes().chunks(11).for_each(|block| handler.block(block));
            answer = answer.max(code(handler.message(message.len() as u64, clock::now())));
        }
        handler.reset(None);
        answer
    }

    #[test]
    fn a_notification_counts_for_the_message_that_it_returns_and_not_as_mail() {
        let trace = |sequence| mailrun_measurement::Trace {
            run: mailrun_measurement::RunId([1; 16]),
            sequence,
            zero: Default::default(),
            numbering: mailrun_measurement::trace::RecipientNumbering::address_bits(20),
            created: Duration::ZERO,
            clock: mailrun_measurement::ClockId::realtime(""),
            checksum: mailrun_measurement::trace::checksum(b"x\r\n"),
        };
        let message = |sequence| {
            let mut header = [0; mailrun_measurement::Trace::HEADER_BYTES];
            trace(sequence).write(&mut header);
            format!("{}\r\nx\r\n", String::from_utf8_lossy(&header))
        };
        let notice = |sequence, to: &str, action: &str| {
            format!(
                "Content-Type: multipart/report; boundary=b\r\n\r\n--b\r\nContent-Type: message/delivery-status\r\n\r\n\
                 Reporting-MTA: dns; x\r\n\r\nFinal-Recipient: rfc822; {to}\r\nAction: {action}\r\nStatus: 5.1.1\r\n\
                 Diagnostic-Code: smtp; 550 5.1.1 No such user\r\n\r\n--b\r\nContent-Type: message/rfc822\r\n\r\n\
                 Received: from y\r\n{}--b--\r\n",
                message(sequence)
            )
        };
        let rules = |text: &str| vec![Rule::parse(text).unwrap()];
        for (protocol, rules, refusal) in [
            (Protocol::Smtp, Vec::new(), 250),
            (Protocol::Smtp, rules("rcpt: hard reject"), 554),
            (Protocol::Lmtp, Vec::new(), 250),
            // With rules, an LMTP sink counts mail for each recipient, but a notification must count only once.
            (Protocol::Lmtp, rules(". to other@b: delay 1ms"), 250),
        ] {
            let rules = ActiveRules::new(Rulebook { seed: None, rules }, 1);
            let context = Arc::new(SinkContext::new(rules, None, None, None, None, protocol));
            let service = SinkService::new(Arc::clone(&context), std::sync::mpsc::channel().0);
            let mut handler = service.session(Peer { address: ([127, 0, 0, 1], 1).into() });
            assert_eq!(send(&mut handler, b"a@b", &message(1)), refusal);
            for (sequence, to, action) in
                [(2, "one@b", "failed"), (2, "two@b", "failed"), (2, "ONE@b", "failed"), (3, "one@b", "delayed")]
            {
                assert_eq!(send(&mut handler, b"", &notice(sequence, to, action)), 250);
            }
            // A server may remove the trace from the returned message. The sink must then recognise the message by the
            // ENVID.
            let envelope_id = String::from_utf8_lossy(&trace(4).name().envelope_id()).into_owned();
            let bare = notice(4, "one@b", "failed").replace("X-Mailrun", "X-Removed");
            let bare = bare.replace("Reporting-MTA", &format!("Original-Envelope-Id: {envelope_id}\r\nReporting-MTA"));
            assert_eq!(send(&mut handler, b"", &bare), 250);
            // None of the next three messages counts as a notification: a message from <> with a trace header of its
            // own, a report from another sender, and an automatic reply.
            assert_eq!(send(&mut handler, b"", &message(5)), 250);
            assert_eq!(send(&mut handler, b"a@b", &notice(6, "one@b", "failed")), refusal);
            assert_eq!(send(&mut handler, b"", "Subject: away\r\n\r\nBack soon.\r\n"), 250);
            let tally = service.0.tally.borrow();
            let run = tally.runs.find(mailrun_measurement::RunId([1; 16])).unwrap();
            let bounces = &run.bounces;
            assert_eq!((bounces.units.count(), bounces.repeated, bounces.delayed, bounces.notices), (3, 1, 1, 5));
            let row = &bounces.rows()[0];
            assert_eq!((row.count, row.status.as_str(), row.text.as_str()), (3, "5.1.1", "550 5.1.1 No such user"));
            assert_eq!((run.messages, run.units.count()), if refusal == 250 { (2, 2) } else { (1, 1) });
            let foreign = tally.messages - run.messages - bounces.notices;
            assert_eq!(foreign, if refusal == 250 { 2 } else { 1 });
        }
    }

    #[test]
    fn mail_counts_for_the_recipient_that_the_source_named() {
        use mailrun_measurement::trace::{RecipientId, RecipientNumbering, Trace};
        use mailrun_smtp::command::Command;
        let single = RecipientNumbering::address_bits(16);
        let number = |address: &str| single.number(RecipientId::new(address.as_bytes()));
        // The array in each row holds the expected counts of delivered, rewritten, copied and duplicated mail.
        for (rcpt, numbering, expected, pairs) in [
            ("<to@x>", single, [1, 0, 0, 0], ""),
            ("<to@x> ORCPT=rfc822;To@X", single, [1, 0, 0, 0], ""),
            ("<a@y> ORCPT=rfc822;to@x", single, [1, 1, 0, 0], "to@x a@y"),
            ("<a@y> ORCPT=rfc822;t+6F@x NOTIFY=NEVER", single, [1, 1, 0, 0], "to@x a@y"),
            ("<b@y> ORCPT=rfc822;b@y NOTIFY=NEVER", single, [0, 0, 1, 0], "- b@y"),
            ("<b@y> NOTIFY=NEVER", single, [0, 0, 1, 0], "- b@y"),
            // NOTIFY=NEVER usually shows that a server has added the recipient. But this source sends NOTIFY=NEVER
            // itself, so the message must count as normal mail.
            ("<to@x> ORCPT=rfc822;to@x NOTIFY=NEVER", single.asking_never(), [1, 0, 0, 0], ""),
            ("<to@x> NOTIFY=NEVER", single.asking_never(), [1, 0, 0, 0], ""),
            // The sink ignores an ORCPT that does not contain a mail address, such as an X.400 address.
            ("<to@x> ORCPT=x400;to@x", single, [1, 0, 0, 0], ""),
            ("<to@x> ORCPT=rfc822;+22to+22", single, [1, 0, 0, 0], ""),
            ("<a@y> NOTIFY=FAILURE", RecipientNumbering::SINGLE, [1, 0, 0, 0], ""),
            ("<t\u{f6}@x> ORCPT=utf-8;t\\x{F6}@x", single, [1, 0, 0, 0], ""),
        ] {
            let trace = Trace {
                run: mailrun_measurement::RunId([1; 16]),
                sequence: 7,
                zero: Default::default(),
                numbering,
                created: Duration::ZERO,
                clock: mailrun_measurement::ClockId::realtime(""),
                checksum: mailrun_measurement::trace::checksum(b"x\r\n"),
            };
            let rules = ActiveRules::new(Rulebook { seed: None, rules: Vec::new() }, 1);
            let context = Arc::new(SinkContext::new(rules, None, None, None, None, Protocol::Smtp));
            let (tally_tx, tallies) = std::sync::mpsc::channel();
            let service = SinkService::new(Arc::clone(&context), tally_tx);
            let mut handler = service.session(Peer { address: ([127, 0, 0, 1], 1).into() });
            let line = format!("RCPT TO:{rcpt}");
            let Ok(Command::Recipient(recipient)) = Command::parse(line.as_bytes()) else { panic!("{line}") };
            handler.recipient_with(&recipient);
            handler.data();
            let mut header = [0; Trace::HEADER_BYTES];
            trace.write(&mut header);
            handler.block(&header);
            handler.block(b"\r\nx\r\n");
            handler.message(1, clock::now());
            let mut all = mailrun_measurement::SinkTally::default();
            service.0.send_tally();
            all.merge(&tallies.recv().unwrap().tally);
            let tally = all.runs.find(trace.run).unwrap();
            let rewrites = &tally.rewrites;
            let found = [tally.units.count(), rewrites.units.count(), rewrites.copied(), tally.duplicates];
            assert_eq!(found, expected, "{rcpt}");
            let to = if rcpt.contains('\u{f6}') { "t\u{f6}@x" } else { "to@x" };
            assert!(
                found[0] == 0 || numbering == RecipientNumbering::SINGLE || tally.units.contains(7, number(to)),
                "{rcpt}"
            );
            let rows = rewrites.rows();
            let rows: Vec<String> =
                rows.iter().map(|row| format!("{} {}", row.original.as_deref().unwrap_or("-"), row.address)).collect();
            assert_eq!(rows.concat(), pairs, "{rcpt}");
        }
    }

    #[test]
    fn no_delay_is_cut_short() {
        let work = async {
            for delay in [Duration::from_micros(5), Duration::from_micros(300), SHORT_DELAY] {
                let began = clock::now();
                pause(delay).await;
                assert!(clock::now() - began >= delay, "{delay:?}");
            }
        };
        mailrun_net::worker::run(|_| work).expect("a worker");
    }

    #[test]
    fn the_body_is_changed_however_the_message_arrives() {
        for (message, expected) in [
            ("X-Mailrun: v1\r\nSubject: x\r\n\r\n\r\nabc\r\n", "X-Mailrun: v1\r\nSubject: x\r\n\r\n\r\n`bc\r\n"),
            ("\r\nabc\r\n", "\r\n`bc\r\n"),
            ("a: \r\r\n\rb\r\n\r\n.\r\n", "a: \r\r\n\rb\r\n\r\n/\r\n"),
            ("no: body\r\n\r\n\r\n", "no: body\r\n\r\n\r\n"),
        ] {
            for size in 1..=message.len() {
                let mut corruption = Some(Corruption::default());
                let mut written = Vec::new();
                for block in message.as_bytes().chunks(size) {
                    let changed = corruption.as_mut().and_then(|corruption| corruption.corrupt(block));
                    corruption = corruption.filter(|_| changed.is_none());
                    written.extend(changed.unwrap_or_else(|| block.to_vec()));
                }
                assert_eq!(String::from_utf8(written).unwrap(), expected, "blocks of {size}");
            }
        }
    }
}
