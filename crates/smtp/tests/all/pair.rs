//! Client and server connected by a link in virtual time. Whatever the link and the application do, each message and
//! reply must arrive exactly once, or the session must end and both sides must notice.
use crate::link::SimulatedLink;
use mailrun_smtp::checks::SplitMix64;
use mailrun_smtp::client::{
    self, BurstSize, ChunkPosition, Chunking, Client, Notifications, Options, Outcome, PipelineMode, Protocol,
    StartTls, Verb, Want,
};
use mailrun_smtp::data;
use mailrun_smtp::envelope::Envelope;
use mailrun_smtp::limits::Limits;
use mailrun_smtp::reply::Reply;
use mailrun_smtp::sasl::{Credentials, Mechanism, Mechanisms, Secret};
use mailrun_smtp::server::{Event, Offer, Server, ServerSettings};
use mailrun_smtp::xclient::{Attribute, Attributes, XclientRequest};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Says how far the client pipelines, which means that it sends commands before it has the replies to earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendMode {
    /// The client waits for the reply to each command.
    LockStep,
    /// The client sends MAIL, RCPT and DATA together, and then waits for their replies.
    Group,
    /// The client sends the next message's MAIL, RCPT and DATA together with the content of the message before it.
    Stream,
    /// The client begins the next message as soon as the session permits it, even before the reply to a RSET.
    Eager,
}

impl SendMode {
    fn pipelining(self) -> PipelineMode {
        if self == Self::LockStep { PipelineMode::Off } else { PipelineMode::Group }
    }
}

/// Extensions that the server offers and the client uses, and whether both speak LMTP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Features {
    protocol: Protocol,
    /// Size of a chunk in bytes, if messages are sent with BDAT.
    chunk_bytes: Option<usize>,
    /// Maximum number of messages that the client may have begun and whose results are not certain yet
    /// (`BurstSize::messages`).
    burst: u32,
    tls: bool,
    mechanism: Option<Mechanism>,
    xclient: bool,
}

impl Features {
    fn options(self, pipelining: PipelineMode) -> Options {
        let introduction = XclientRequest::default().with_attribute(Attribute::Address, "192.0.2.1").unwrap();
        let credentials =
            self.mechanism.map(|mechanism| Credentials::new("user", "pencil").by(Mechanisms::NONE.with(mechanism)));
        Options {
            protocol: self.protocol,
            pipelining,
            tls: if self.tls { StartTls::Required } else { StartTls::Never },
            credentials,
            chunking: if self.chunk_bytes.is_some() { Chunking::IfOffered } else { Chunking::Never },
            xclient: self.xclient.then_some(introduction),
            notifications: Notifications::Unasked,
            burst: BurstSize::of(self.burst),
            quit_timeout: None,
            refuses_own_name: false,
            greeting_timeout: None,
            message_timeout: None,
            stop_after: None,
        }
    }

    fn offer(self, limits: &Limits) -> Offer {
        let mut offer = Offer::new(limits);
        offer.protocol = self.protocol;
        offer.extensions.starttls = self.tls;
        offer.requires.tls = self.tls;
        offer.extensions.auth = self.mechanism.map_or(Mechanisms::NONE, |mechanism| Mechanisms::NONE.with(mechanism));
        offer.requires.auth = self.mechanism.is_some();
        offer.extensions.xclient = if self.xclient { Attributes::ALL } else { Attributes::NONE };
        offer
    }
}

/// A single byte from the client, which stands for the whole TLS handshake.
const HANDSHAKE: u8 = 0x16;

/// Behaviour of the application behind the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AppBehavior {
    /// Accepts everything at once.
    Accepting,
    /// Sometimes refuses, and sometimes answers late.
    Flaky,
    /// Like `Flaky`, but sometimes answers 421.
    Closing,
}

/// Codes of the replies to one message's commands, and the outcomes that the client session reported for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct SentMessage {
    mail: Vec<u16>,
    recipients: Vec<Vec<u16>>,
    data: Vec<u16>,
    deliveries: Vec<Vec<u16>>,
    outcomes: Vec<Outcome>,
}

struct TestSender {
    client: Client,
    mode: SendMode,
    contents: Vec<Vec<u8>>,
    sent: Vec<SentMessage>,
    open: VecDeque<usize>,
    begun: usize,
    chunk_bytes: usize,
    chunked: usize,
    out: Vec<u8>,
}

impl TestSender {
    fn receive(&mut self, block: &[u8], now: Duration) {
        let mut input = block;
        let client = &mut self.client;
        while let Some(event) = client.next_event(&mut input, now, &mut self.out).expect("the server speaks SMTP") {
            note(&event, &mut self.open, &mut self.sent);
        }
        assert!(input.is_empty(), "a block is read to its end");
        self.act(now);
    }

    /// Sends the commands and messages that the session wants, until the session needs replies.
    fn act(&mut self, now: Duration) {
        loop {
            match self.client.wants() {
                Want::Transaction if self.begun < self.contents.len() => self.begin(now),
                Want::Transaction => self.client.quit(now, &mut self.out),
                Want::Message => self.message(now),
                Want::Chunk => self.chunk(now),
                Want::Tls => {
                    self.out.push(HANDSHAKE);
                    self.client.tls_started(now, &mut self.out);
                }
                Want::Replies if self.mode == SendMode::Eager && self.may_begin_early() => self.begin(now),
                Want::Replies | Want::Close => return,
            }
        }
    }

    fn may_begin_early(&self) -> bool {
        self.client.may_begin_early() && self.begun < self.contents.len()
    }

    fn begin(&mut self, now: Duration) {
        let recipients = (0..self.sent[self.begun].recipients.len()).map(|number| format!("r{number}@example.com"));
        let recipients: Vec<_> = recipients.collect();
        let sender = format!("s{}@example.com", self.begun);
        let envelope = Envelope::new(&sender, "", recipients.iter().map(String::as_str)).unwrap();
        self.client.begin(Arc::new(envelope), now, &mut self.out);
        self.open.push_back(self.begun);
        self.begun += 1;
        self.chunked = 0;
    }

    /// Sends the next chunk of the message that was begun last.
    fn chunk(&mut self, now: Duration) {
        let rest = &self.contents[self.begun - 1][self.chunked..];
        let chunk = &rest[..rest.len().min(self.chunk_bytes)];
        let part = if chunk.len() == rest.len() { ChunkPosition::Last } else { ChunkPosition::Middle };
        assert!(self.client.chunk(chunk.len() as u64, part, now, &mut self.out), "a chunk is wanted");
        self.out.extend_from_slice(chunk);
        self.chunked += chunk.len();
        if part == ChunkPosition::Last && self.mode == SendMode::Stream && self.may_begin_early() {
            self.begin(now);
        }
    }

    fn message(&mut self, now: Duration) {
        let number = *self.open.front().expect("the peer said 354 to something");
        data::stuff(&self.contents[number], &mut self.out);
        self.out.extend_from_slice(data::END_OF_DATA);
        self.client.message_sent(now);
        if self.mode == SendMode::Stream && self.may_begin_early() {
            self.begin(now);
        }
    }
}

/// Records a reply. Replies arrive in the order of their commands, so each belongs to the oldest
/// open message.
fn note(event: &client::Event<'_>, open: &mut VecDeque<usize>, sent: &mut [SentMessage]) {
    let code = event.reply.code();
    let oldest = open.front().copied();
    let of = |oldest: Option<usize>| oldest.expect("there is a message it can belong to");
    match event.to {
        Verb::Mail => sent[of(oldest)].mail.push(code),
        Verb::Recipient(number) => sent[of(oldest)].recipients[number as usize].push(code),
        Verb::Data => sent[of(oldest)].data.push(code),
        Verb::Delivery(number) => sent[of(oldest)].deliveries[number as usize].push(code),
        _ => {}
    }
    if let Some(outcome) = event.ends {
        sent[of(oldest)].outcomes.push(outcome);
        open.pop_front();
    }
}

/// A message as the application behind the server gets it, with the recipients that the application accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct AcceptedMessage {
    sender: Vec<u8>,
    recipients: Vec<Vec<u8>>,
    content: Vec<u8>,
}

/// An answer that the application gives later.
struct DelayedAnswer {
    at: Duration,
    answer: Option<Reply>,
    asked: QuestionKind,
}

/// Subject of a question that the session asks the application. All except `Other` decide which recipients and messages
/// the application has accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
enum QuestionKind {
    Recipient(Vec<u8>),
    Message,
    /// In LMTP, the question whether the application accepts the message for this recipient.
    Delivery(usize),
    Other,
}

struct TestReceiver {
    server: Server,
    behavior: AppBehavior,
    rng: SplitMix64,
    pending_input: Vec<u8>,
    later: Option<DelayedAnswer>,
    protocol: Protocol,
    current: AcceptedMessage,
    /// In LMTP, set if the current message has been added to `taken` for an earlier recipient.
    is_delivered: bool,
    taken: Vec<AcceptedMessage>,
    out: Vec<u8>,
}

impl TestReceiver {
    fn receive(&mut self, block: &[u8], now: Duration) {
        let block = match block {
            [HANDSHAKE, rest @ ..] if self.server.wants_tls() => {
                self.server.tls_started(now);
                rest
            }
            block => block,
        };
        self.pending_input.extend_from_slice(block);
        self.go_on(now);
    }

    fn go_on(&mut self, now: Duration) {
        let backlog = std::mem::take(&mut self.pending_input);
        let mut input = backlog.as_slice();
        while let Some(event) = self.server.next_event(&mut input, now, &mut self.out) {
            let asks = event.asks();
            let question = take(&mut self.current, &event);
            let is_open = match event {
                // Always grant RSET, NOOP and QUIT here, because `clocks` tests what happens if they are refused.
                Event::Reset | Event::Noop | Event::Quit | Event::Proof(_) => {
                    self.server.grant(now, &mut self.out);
                    false
                }
                Event::Nonce => {
                    self.server.answer_nonce(&[5; 18], now, &mut self.out);
                    false
                }
                Event::Auth(auth) if auth.is_lookup() => {
                    assert_eq!(auth.name, "user");
                    let secret = Secret::Password("pencil".to_owned());
                    self.server.answer_secret(Some(&secret), now, &mut self.out);
                    false
                }
                _ => asks,
            };
            if is_open && !self.decide(question, now) {
                break;
            }
        }
        let held_up = self.later.is_some() || self.server.is_closed();
        assert!(held_up || input.is_empty(), "a block is read to its end");
        self.pending_input = input.to_vec();
    }

    /// Answers the question, or postpones the answer and returns false.
    fn decide(&mut self, asked: QuestionKind, now: Duration) -> bool {
        let answer = self.verdict();
        if self.behavior != AppBehavior::Accepting && self.rng.once_in(6) {
            let delay = Duration::from_micros(self.rng.below(2000));
            self.later = Some(DelayedAnswer { at: now + delay, answer, asked });
            return false;
        }
        self.answer(answer.as_ref(), asked, now);
        true
    }

    fn verdict(&mut self) -> Option<Reply> {
        if self.behavior == AppBehavior::Closing && self.rng.once_in(40) {
            return Some(Reply::new(421, "4.3.2 enough"));
        }
        let codes = [450, 451, 452, 550, 554];
        let no = self.behavior != AppBehavior::Accepting && self.rng.once_in(8);
        no.then(|| Reply::new(codes[self.rng.below(5) as usize], "no\nfor a reason of two lines"))
    }

    fn answer(&mut self, answer: Option<&Reply>, question: QuestionKind, now: Duration) {
        let yes = answer.is_none_or(Reply::is_positive);
        match answer {
            Some(reply) => self.server.answer(reply, now, &mut self.out),
            None => self.server.grant(now, &mut self.out),
        }
        match question {
            QuestionKind::Recipient(recipient) if yes => self.current.recipients.push(recipient),
            QuestionKind::Message if self.protocol == Protocol::Lmtp => self.is_delivered = false,
            QuestionKind::Message => {
                let message = std::mem::take(&mut self.current);
                self.taken.extend(yes.then_some(message));
            }
            QuestionKind::Delivery(number) if yes => {
                let recipient = self.current.recipients[number].clone();
                if !std::mem::replace(&mut self.is_delivered, true) {
                    self.taken.push(AcceptedMessage { recipients: Vec::new(), ..self.current.clone() });
                }
                self.taken.last_mut().expect("pushed above").recipients.push(recipient);
            }
            _ => {}
        }
    }

    fn answer_late(&mut self, now: Duration) {
        let later = self.later.take().expect("it was due");
        self.answer(later.answer.as_ref(), later.asked, now);
        self.go_on(now);
    }
}

/// Updates the current message with an event, and returns the kind of question that the event asks.
fn take(current: &mut AcceptedMessage, event: &Event<'_>) -> QuestionKind {
    match event {
        Event::Mail(mail) => {
            *current = AcceptedMessage { sender: mail.sender.as_bytes().to_vec(), ..AcceptedMessage::default() }
        }
        Event::Recipient(recipient) => return QuestionKind::Recipient(recipient.as_bytes().to_vec()),
        Event::Block(block) => current.content.extend_from_slice(block),
        Event::Reset | Event::Hello(..) | Event::Discarded(_) => *current = AcceptedMessage::default(),
        Event::Message { .. } => return QuestionKind::Message,
        Event::Delivery { recipient } => return QuestionKind::Delivery(*recipient as usize),
        _ => {}
    }
    QuestionKind::Other
}

#[derive(Clone, Debug)]
struct PairPlan {
    seed: u64,
    mode: SendMode,
    features: Features,
    behavior: AppBehavior,
    /// Number of recipients of each message.
    messages: Vec<usize>,
    /// Number of rejected commands that the server tolerates before it ends the session (`Limits::errors`).
    errors: u32,
    /// Number of bytes after which the link from the client to the server breaks. `down_breaks` is the same for the
    /// other direction.
    up_breaks: u64,
    down_breaks: u64,
}

impl PairPlan {
    fn new(seed: u64, mode: SendMode, temper: AppBehavior, messages: Vec<usize>) -> Self {
        let features = Features::default();
        let errors = u32::MAX;
        let breaks = u64::MAX;
        Self { seed, mode, features, behavior: temper, messages, errors, up_breaks: breaks, down_breaks: breaks }
    }

    /// Generates the content of a message. Some lines begin with dots, to test dot-stuffing, and the subject differs
    /// from message to message.
    fn content(number: usize, dice: &mut SplitMix64) -> Vec<u8> {
        let mut content = format!("Subject: {number}\r\n\r\n").into_bytes();
        for _ in 0..dice.below(8) {
            let line: [&[u8]; 6] = [b".", b"..", b"", b".x", b"text", b"a longer line of text."];
            content.extend_from_slice(line[dice.below(6) as usize]);
            content.extend_from_slice(b"\r\n");
        }
        content
    }
}

struct SessionPair {
    sender: TestSender,
    receiver: TestReceiver,
    up: SimulatedLink,
    down: SimulatedLink,
    now: Duration,
}

impl SessionPair {
    fn new(plan: &PairPlan) -> Self {
        let mut dice = SplitMix64(plan.seed);
        let limits = Limits { errors: plan.errors, idle_commands: u32::MAX, ..Limits::default() };
        let features = plan.features;
        let offer = features.offer(&limits);
        let identity = Arc::new(ServerSettings::with_offer("server.example", limits, offer));
        let options = Arc::new(features.options(plan.mode.pipelining()));
        let sender = TestSender {
            client: Client::with_options("client.example".into(), options, Some([3; 18]), Duration::ZERO),
            mode: plan.mode,
            chunk_bytes: features.chunk_bytes.unwrap_or(0),
            chunked: 0,
            contents: (0..plan.messages.len()).map(|number| PairPlan::content(number, &mut dice)).collect(),
            sent: plan
                .messages
                .iter()
                .map(|many| SentMessage {
                    recipients: vec![Vec::new(); *many],
                    deliveries: vec![Vec::new(); *many],
                    ..SentMessage::default()
                })
                .collect(),
            open: VecDeque::new(),
            begun: 0,
            out: Vec::new(),
        };
        let receiver = TestReceiver {
            server: Server::new(identity, Duration::ZERO),
            behavior: plan.behavior,
            rng: SplitMix64(dice.below(u64::MAX)),
            pending_input: Vec::new(),
            later: None,
            protocol: features.protocol,
            current: AcceptedMessage::default(),
            is_delivered: false,
            taken: Vec::new(),
            out: Vec::new(),
        };
        let up = dice.below(u64::MAX);
        let down = dice.below(u64::MAX);
        let up = SimulatedLink::new(up, plan.up_breaks);
        let down = SimulatedLink::new(down, plan.down_breaks);
        Self { sender, receiver, up, down, now: Duration::ZERO }
    }

    /// Runs a client and a server until no bytes and no delayed answer are on their way.
    fn run(plan: &PairPlan) -> Self {
        let mut pair = Self::new(plan);
        // The application also decides about the greeting, at once or later.
        let put_off = !pair.receiver.decide(QuestionKind::Other, Duration::ZERO);
        assert_eq!(put_off, pair.receiver.later.is_some());
        while let Some(now) = pair.turn() {
            assert!(now < Duration::from_secs(60), "it comes to an end");
        }
        pair
    }

    /// Sends all output, and advances the virtual time to the next event: a block arrives, or the application gives a
    /// delayed answer. Returns the time of the event, or `None` if nothing is on its way.
    fn turn(&mut self) -> Option<Duration> {
        self.up.send(&mut self.sender.out, self.now);
        self.down.send(&mut self.receiver.out, self.now);
        let later = self.receiver.later.as_ref().map(|later| later.at);
        let now = [self.up.due(), self.down.due(), later].into_iter().flatten().min()?;
        self.now = now;
        if later.is_some_and(|at| at <= now) {
            self.receiver.answer_late(now);
        } else if let Some(block) = self.up.arrived(now) {
            self.receiver.receive(&block, now);
        } else if let Some(block) = self.down.arrived(now) {
            self.sender.receive(&block, now);
        }
        Some(now)
    }

    fn outcomes(&self) -> impl Iterator<Item = &Outcome> {
        self.sender.sent.iter().flat_map(|message| &message.outcomes)
    }

    fn is_over(&self) -> bool {
        self.sender.client.wants() == Want::Close && self.receiver.server.is_closed()
    }

    /// Returns the messages that the client session reported as accepted, in the form in which the receiver must have
    /// recorded them.
    fn accepted(&self) -> Vec<AcceptedMessage> {
        let accepted = self.sender.sent.iter().enumerate().filter(|(_, sent)| sent.outcomes == [Outcome::Accepted]);
        let is_lmtp = self.receiver.protocol == Protocol::Lmtp;
        let recipients = |sent: &SentMessage| {
            let replies = if is_lmtp { &sent.deliveries } else { &sent.recipients };
            let yes = replies.iter().enumerate().filter(|(_, codes)| codes.first().is_some_and(|code| *code < 300));
            yes.map(|(number, _)| format!("r{number}@example.com").into_bytes()).collect()
        };
        accepted
            .map(|(number, sent)| AcceptedMessage {
                sender: format!("s{number}@example.com").into_bytes(),
                recipients: recipients(sent),
                content: self.sender.contents[number].clone(),
            })
            .collect()
    }

    /// Checks that each command got one reply and each message one outcome, as after any session that ended normally.
    fn check_every_reply_came_once(&self) {
        // If the server refused EHLO, it has not offered PIPELINING, and the client sends commands one at a time.
        let extensions = self.sender.client.extensions();
        let grouped = self.sender.mode != SendMode::LockStep && extensions.pipelining;
        let by_data = self.sender.chunk_bytes == 0 || !extensions.chunking;
        for sent in &self.sender.sent {
            assert_eq!(sent.mail.len(), 1, "one reply to MAIL");
            assert_eq!(sent.outcomes.len(), 1, "one outcome");
            let count = usize::from(grouped || sent.mail[0] < 300);
            assert!(sent.recipients.iter().all(|codes| codes.len() == count), "one reply to each RCPT that was sent");
            let any = sent.recipients.iter().flatten().any(|code| *code < 300);
            assert_eq!(
                sent.data.len(),
                usize::from(by_data && (grouped || any)),
                "one reply to DATA where it was sent"
            );
            assert!(sent.deliveries.iter().all(|codes| codes.len() <= 1), "one reply for each recipient");
        }
    }
}

fn modes() -> impl Strategy<Value = SendMode> {
    prop_oneof![Just(SendMode::LockStep), Just(SendMode::Group), Just(SendMode::Stream), Just(SendMode::Eager)]
}

fn plans(temper: AppBehavior) -> impl Strategy<Value = PairPlan> {
    (any::<u64>(), modes(), proptest::collection::vec(1usize..6, 0..8))
        .prop_map(move |(seed, mode, messages)| PairPlan::new(seed, mode, temper, messages))
}

fn features() -> impl Strategy<Value = Features> {
    let protocol = prop_oneof![Just(Protocol::Smtp), Just(Protocol::Lmtp)];
    let chunk_bytes = proptest::option::of(1usize..60);
    let mechanism = proptest::option::weighted(0.3, proptest::sample::select(Mechanism::ALL.to_vec()));
    let tls = proptest::bool::weighted(0.3);
    let xclient = proptest::bool::weighted(0.3);
    let all = (protocol, chunk_bytes, 0u32..5, tls, mechanism, xclient);
    all.prop_map(|(protocol, chunk_bytes, burst, tls, mechanism, xclient)| Features {
        protocol,
        chunk_bytes,
        burst,
        tls,
        mechanism,
        xclient,
    })
}

/// Generates plans with any combination of extensions, over SMTP or LMTP.
fn extended(temper: AppBehavior) -> impl Strategy<Value = PairPlan> {
    (plans(temper), features()).prop_map(|(plan, features)| PairPlan { features, ..plan })
}

proptest! {
    #[test]
    fn a_mild_server_takes_every_message_by_any_extension(plan in extended(AppBehavior::Accepting)) {
        let pair = SessionPair::run(&plan);
        prop_assert!(pair.is_over(), "no hang");
        prop_assert_eq!(pair.sender.client.gave_up(), None);
        pair.check_every_reply_came_once();
        prop_assert!(pair.outcomes().all(|outcome| *outcome == Outcome::Accepted));
        prop_assert_eq!(pair.accepted(), pair.receiver.taken);
        prop_assert_eq!(pair.receiver.server.is_over_tls(), plan.features.tls);
        prop_assert_eq!(pair.receiver.server.is_authenticated(), plan.features.mechanism.is_some());
        prop_assert_eq!(pair.receiver.server.injected_bytes(), 0);
    }

    #[test]
    fn a_fickle_server_agrees_by_any_extension(plan in extended(AppBehavior::Flaky)) {
        let pair = SessionPair::run(&plan);
        prop_assert!(pair.is_over(), "no hang");
        let greeted = pair.sender.begun == plan.messages.len();
        prop_assert!(greeted || pair.sender.begun == 0, "refused at the door, or served to the end");
        if greeted && pair.sender.client.gave_up().is_none() {
            pair.check_every_reply_came_once();
        }
        prop_assert_eq!(pair.accepted(), pair.receiver.taken);
    }

    #[test]
    fn a_rough_server_ends_any_session_and_nothing_else(plan in extended(AppBehavior::Closing), errors in 0u32..8) {
        let pair = SessionPair::run(&PairPlan { errors, ..plan });
        prop_assert!(pair.is_over(), "no hang");
        prop_assert!(pair.sender.sent.iter().all(|sent| sent.outcomes.len() <= 1));
        prop_assert_eq!(pair.accepted(), pair.receiver.taken);
    }

    #[test]
    fn a_mild_server_takes_every_message_once_and_in_order(plan in plans(AppBehavior::Accepting)) {
        let pair = SessionPair::run(&plan);
        prop_assert!(pair.is_over(), "no hang");
        pair.check_every_reply_came_once();
        prop_assert!(pair.outcomes().all(|outcome| *outcome == Outcome::Accepted));
        prop_assert_eq!(pair.accepted(), pair.receiver.taken);
    }

    #[test]
    fn a_fickle_server_and_its_client_agree_on_every_message(plan in plans(AppBehavior::Flaky)) {
        let pair = SessionPair::run(&plan);
        prop_assert!(pair.is_over(), "no hang");
        let greeted = pair.sender.begun == plan.messages.len();
        prop_assert!(greeted || pair.sender.begun == 0, "refused at the door, or served to the end");
        if greeted {
            pair.check_every_reply_came_once();
        }
        prop_assert_eq!(pair.accepted(), pair.receiver.taken);
    }

    #[test]
    fn a_rough_server_ends_the_session_and_nothing_else(plan in plans(AppBehavior::Closing), errors in 0u32..8) {
        let pair = SessionPair::run(&PairPlan { errors, ..plan });
        prop_assert!(pair.is_over(), "no hang");
        prop_assert!(pair.sender.sent.iter().all(|sent| sent.outcomes.len() <= 1));
        prop_assert_eq!(pair.accepted(), pair.receiver.taken);
    }
}

/// Checks a run whose link breaks. The receiver must have each message for which the client got 250. The receiver may
/// also have one message whose reply did not reach the client. With BDAT, a client in mode `Stream` or `Eager` may send
/// further messages before it gets this reply. The receiver may then have two messages without a reply, or as many as
/// `Features::burst` allows if this is more.
fn check_broken(plan: &PairPlan) {
    let is_ahead = plan.features.chunk_bytes.is_some() && matches!(plan.mode, SendMode::Stream | SendMode::Eager);
    let in_doubt = if is_ahead { plan.features.burst.max(2) as usize } else { 1 };
    let mut pair = SessionPair::run(plan);
    let accepted = pair.accepted();
    let messages = &pair.receiver.taken;
    assert!(messages.starts_with(&accepted), "what was accepted was taken");
    assert!(messages.len() <= accepted.len() + in_doubt, "no more messages are in doubt");
    assert!(pair.up.is_broken() || pair.down.is_broken() || pair.is_over(), "no hang without a break");
    if let Some(deadline) = pair.receiver.server.deadline() {
        pair.receiver.server.tick(deadline, &mut pair.receiver.out);
        assert!(pair.receiver.server.is_closed());
    }
}

#[test]
fn a_connection_cut_at_any_byte_leaves_at_most_one_message_in_doubt() {
    for mode in [SendMode::LockStep, SendMode::Group, SendMode::Stream, SendMode::Eager] {
        let whole = PairPlan::new(7, mode, AppBehavior::Accepting, vec![2, 1, 3]);
        let pair = SessionPair::run(&whole);
        assert!(pair.is_over() && pair.receiver.taken.len() == 3);
        (0..pair.up.carried).for_each(|up_breaks| check_broken(&PairPlan { up_breaks, ..whole.clone() }));
        (0..pair.down.carried).for_each(|down_breaks| check_broken(&PairPlan { down_breaks, ..whole.clone() }));
    }
}

#[test]
fn a_connection_cut_at_any_byte_leaves_at_most_one_message_in_doubt_by_any_extension() {
    let chunked = Features { chunk_bytes: Some(9), ..Features::default() };
    let rows = [
        chunked,
        Features { burst: 3, ..chunked },
        Features { burst: 2, protocol: Protocol::Lmtp, ..chunked },
        Features { protocol: Protocol::Lmtp, ..Features::default() },
        Features { protocol: Protocol::Lmtp, xclient: true, ..chunked },
        Features { tls: true, mechanism: Some(Mechanism::CramMd5), ..chunked },
        Features { tls: true, mechanism: Some(Mechanism::Login), xclient: true, ..Features::default() },
    ];
    for (features, mode) in rows.iter().flat_map(|features| {
        [SendMode::LockStep, SendMode::Group, SendMode::Stream, SendMode::Eager].map(|mode| (*features, mode))
    }) {
        let whole = PairPlan { features, ..PairPlan::new(7, mode, AppBehavior::Accepting, vec![2, 1, 3]) };
        let pair = SessionPair::run(&whole);
        assert!(pair.is_over() && pair.receiver.taken.len() == 3);
        (0..pair.up.carried).for_each(|up_breaks| check_broken(&PairPlan { up_breaks, ..whole.clone() }));
        (0..pair.down.carried).for_each(|down_breaks| check_broken(&PairPlan { down_breaks, ..whole.clone() }));
    }
}

#[test]
fn a_message_by_bdat_is_one_round_trip() {
    let features = Features { chunk_bytes: Some(1 << 20), ..Features::default() };
    let mut pair =
        SessionPair::new(&PairPlan { features, ..PairPlan::new(3, SendMode::Group, AppBehavior::Accepting, vec![2]) });
    let at = Duration::from_secs(1);
    pair.receiver.decide(QuestionKind::Other, at);
    let mut turns = Vec::new();
    while !pair.is_over() {
        let down = std::mem::take(&mut pair.receiver.out);
        pair.sender.receive(&down, at);
        let up = std::mem::take(&mut pair.sender.out);
        pair.receiver.receive(&up, at);
        turns.push(String::from_utf8(up).unwrap());
    }
    assert_eq!(turns.len(), 4, "EHLO, everything, QUIT, and the last reply: {turns:?}");
    assert!(turns[1].starts_with("MAIL FROM:<s0@example.com>\r\nRCPT TO:") && turns[1].contains(" LAST\r\n"));
    assert_eq!(pair.receiver.taken.len(), 1);
}

#[test]
fn a_burst_of_messages_is_one_round_trip() {
    let features = Features { chunk_bytes: Some(1 << 20), burst: 3, ..Features::default() };
    let mut pair = SessionPair::new(&PairPlan {
        features,
        ..PairPlan::new(3, SendMode::Stream, AppBehavior::Accepting, vec![1; 5])
    });
    let at = Duration::from_secs(1);
    pair.receiver.decide(QuestionKind::Other, at);
    let mut turns = Vec::new();
    while !pair.is_over() {
        let down = std::mem::take(&mut pair.receiver.out);
        pair.sender.receive(&down, at);
        let up = std::mem::take(&mut pair.sender.out);
        pair.receiver.receive(&up, at);
        turns.push(String::from_utf8(up).unwrap());
    }
    let counts: Vec<usize> = turns.iter().map(|turn| turn.matches(" LAST\r\n").count()).collect();
    assert_eq!(counts, [0, 3, 2, 0, 0], "EHLO, a burst, the rest, QUIT, and the last reply: {turns:?}");
    assert_eq!(turns[1].matches("RSET\r\nMAIL").count(), 2, "each but the first owes nothing to the one before");
    assert_eq!(pair.receiver.taken.len(), 5);
}
