//! Client and server joined by a link in virtual time: whatever the link and the application do, each message and
//! each reply arrives once, or the session ends and both know it.
use crate::host::Dice;
use crate::link::Link;
use proptest::prelude::*;
use smtp::client::{self, Client, Outcome, Pipelining, Verb, Want};
use smtp::data;
use smtp::envelope::Envelope;
use smtp::limits::Limits;
use smtp::reply::Reply;
use smtp::server::{Event, Identity, Server};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// How the sending side runs ahead of replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// One command at a time.
    LockStep,
    /// MAIL, RCPT and DATA together.
    Group,
    /// The next group with the message before it.
    Stream,
    /// The next group as soon as the session lets it go, behind RSET as well.
    Eager,
}

impl Mode {
    fn pipelining(self) -> Pipelining {
        if self == Self::LockStep { Pipelining::Off } else { Pipelining::Group }
    }
}

/// How the application behind the server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Temper {
    /// Yes, at once.
    Mild,
    /// Now and then no, now and then late.
    Fickle,
    /// That, and now and then 421.
    Rough,
}

/// One message as the sender sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Sent {
    mail: Vec<u16>,
    recipients: Vec<Vec<u16>>,
    data: Vec<u16>,
    outcomes: Vec<Outcome>,
}

struct Sender {
    client: Client,
    mode: Mode,
    contents: Vec<Vec<u8>>,
    sent: Vec<Sent>,
    open: VecDeque<usize>,
    begun: usize,
    out: Vec<u8>,
}

impl Sender {
    fn receive(&mut self, block: &[u8], now: Duration) {
        let mut input = block;
        let client = &mut self.client;
        while let Some(event) = client.next_event(&mut input, now, &mut self.out).expect("the server speaks SMTP") {
            note(&event, &mut self.open, &mut self.sent);
        }
        assert!(input.is_empty(), "a block is read to its end");
        self.act(now);
    }

    /// Does what the session wants until it wants replies.
    fn act(&mut self, now: Duration) {
        loop {
            match self.client.wants() {
                Want::Transaction if self.begun < self.contents.len() => self.begin(now),
                Want::Transaction => self.client.quit(now, &mut self.out),
                Want::Message => self.message(now),
                Want::Replies if self.mode == Mode::Eager && self.may_begin_early() => self.begin(now),
                Want::Replies | Want::Close | Want::Tls | Want::Chunk => return,
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
    }

    fn message(&mut self, now: Duration) {
        let number = *self.open.front().expect("the peer said 354 to something");
        data::stuff(&self.contents[number], &mut self.out);
        self.out.extend_from_slice(data::END);
        self.client.message_sent(now);
        if self.mode == Mode::Stream && self.may_begin_early() {
            self.begin(now);
        }
    }
}

/// Replies come in the order of their commands, so each belongs to the oldest open message.
fn note(event: &client::Event<'_>, open: &mut VecDeque<usize>, sent: &mut [Sent]) {
    let code = event.reply.code();
    let oldest = open.front().copied();
    let of = |oldest: Option<usize>| oldest.expect("there is a message it can belong to");
    match event.to {
        Verb::Mail => sent[of(oldest)].mail.push(code),
        Verb::Recipient(number) => sent[of(oldest)].recipients[number as usize].push(code),
        Verb::Data => sent[of(oldest)].data.push(code),
        _ => {}
    }
    if let Some(outcome) = event.ends {
        sent[of(oldest)].outcomes.push(outcome);
        open.pop_front();
    }
}

/// One message as the application behind the server sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Taken {
    sender: Vec<u8>,
    recipients: Vec<Vec<u8>>,
    content: Vec<u8>,
}

/// An answer that takes time.
struct Later {
    at: Duration,
    answer: Option<Reply>,
    is_message: bool,
}

struct Receiver {
    server: Server,
    temper: Temper,
    dice: Dice,
    backlog: Vec<u8>,
    later: Option<Later>,
    current: Taken,
    /// The recipient asked about, until it is known whether it is taken.
    asked: Option<Vec<u8>>,
    taken: Vec<Taken>,
    out: Vec<u8>,
}

impl Receiver {
    fn receive(&mut self, block: &[u8], now: Duration) {
        self.backlog.extend_from_slice(block);
        self.go_on(now);
    }

    fn go_on(&mut self, now: Duration) {
        let backlog = std::mem::take(&mut self.backlog);
        let mut input = backlog.as_slice();
        while let Some(event) = self.server.next_event(&mut input, now, &mut self.out) {
            // RSET, NOOP and QUIT are granted: what a refused one does is told in `clocks`.
            let asks = event.asks() && !matches!(event, Event::Reset | Event::Noop | Event::Quit);
            let is_granted = event.asks() && !asks;
            let is_message = matches!(event, Event::Message { .. });
            self.asked = take(&mut self.current, &event);
            if is_granted {
                self.server.answer(None, now, &mut self.out);
            }
            if asks && !self.decide(is_message, now) {
                break;
            }
        }
        let held_up = self.later.is_some() || self.server.is_closed();
        assert!(held_up || input.is_empty(), "a block is read to its end");
        self.backlog = input.to_vec();
    }

    /// Answers, or puts the answer off: false.
    fn decide(&mut self, is_message: bool, now: Duration) -> bool {
        let answer = self.verdict();
        if self.temper != Temper::Mild && self.dice.once_in(6) {
            let delay = Duration::from_micros(self.dice.roll(2000));
            self.later = Some(Later { at: now + delay, answer, is_message });
            return false;
        }
        self.answer(answer.as_ref(), is_message, now);
        true
    }

    fn verdict(&mut self) -> Option<Reply> {
        if self.temper == Temper::Rough && self.dice.once_in(40) {
            return Some(Reply::new(421, "4.3.2 enough"));
        }
        let codes = [450, 451, 452, 550, 554];
        let no = self.temper != Temper::Mild && self.dice.once_in(8);
        no.then(|| Reply::new(codes[self.dice.roll(5) as usize], "no\nfor a reason of two lines"))
    }

    fn answer(&mut self, answer: Option<&Reply>, is_message: bool, now: Duration) {
        let yes = answer.is_none_or(Reply::is_positive);
        self.server.answer(answer, now, &mut self.out);
        if let Some(recipient) = self.asked.take().filter(|_| yes) {
            self.current.recipients.push(recipient);
        }
        if is_message {
            let message = std::mem::take(&mut self.current);
            self.taken.extend(yes.then_some(message));
        }
    }

    fn answer_late(&mut self, now: Duration) {
        let later = self.later.take().expect("it was due");
        self.answer(later.answer.as_ref(), later.is_message, now);
        self.go_on(now);
    }
}

/// Keeps what an event brings; gives the recipient that is asked about.
fn take(current: &mut Taken, event: &Event<'_>) -> Option<Vec<u8>> {
    match event {
        Event::Mail(mail) => *current = Taken { sender: mail.sender.as_bytes().to_vec(), ..Taken::default() },
        Event::Recipient(recipient) => return Some(recipient.as_bytes().to_vec()),
        Event::Block(block) => current.content.extend_from_slice(block),
        Event::Reset | Event::Hello(..) | Event::Discarded(_) => *current = Taken::default(),
        _ => {}
    }
    None
}

/// The whole of a run.
#[derive(Clone, Debug)]
struct Plan {
    seed: u64,
    mode: Mode,
    temper: Temper,
    /// Recipients of each message.
    messages: Vec<usize>,
    /// Refused commands that the server bears.
    errors: u32,
    /// Bytes after which each direction breaks.
    up_breaks: u64,
    down_breaks: u64,
}

impl Plan {
    fn new(seed: u64, mode: Mode, temper: Temper, messages: Vec<usize>) -> Self {
        Self { seed, mode, temper, messages, errors: u32::MAX, up_breaks: u64::MAX, down_breaks: u64::MAX }
    }

    /// Text with dots where they matter, different for each message.
    fn content(number: usize, dice: &mut Dice) -> Vec<u8> {
        let mut content = format!("Subject: {number}\r\n\r\n").into_bytes();
        for _ in 0..dice.roll(8) {
            let line: [&[u8]; 6] = [b".", b"..", b"", b".x", b"text", b"a longer line of text."];
            content.extend_from_slice(line[dice.roll(6) as usize]);
            content.extend_from_slice(b"\r\n");
        }
        content
    }
}

struct Pair {
    sender: Sender,
    receiver: Receiver,
    up: Link,
    down: Link,
    now: Duration,
}

impl Pair {
    fn new(plan: &Plan) -> Self {
        let mut dice = Dice(plan.seed);
        let limits = Limits { errors: plan.errors, idle_commands: u32::MAX, ..Limits::default() };
        let identity = Arc::new(Identity::new("server.example", limits));
        let sender = Sender {
            client: Client::new("client.example".into(), plan.mode.pipelining(), Duration::ZERO),
            mode: plan.mode,
            contents: (0..plan.messages.len()).map(|number| Plan::content(number, &mut dice)).collect(),
            sent: plan
                .messages
                .iter()
                .map(|many| Sent { recipients: vec![Vec::new(); *many], ..Sent::default() })
                .collect(),
            open: VecDeque::new(),
            begun: 0,
            out: Vec::new(),
        };
        let receiver = Receiver {
            server: Server::new(identity, Duration::ZERO),
            temper: plan.temper,
            dice: Dice(dice.roll(u64::MAX)),
            backlog: Vec::new(),
            later: None,
            current: Taken::default(),
            asked: None,
            taken: Vec::new(),
            out: Vec::new(),
        };
        let (up, down) = (dice.roll(u64::MAX), dice.roll(u64::MAX));
        let (up, down) = (Link::new(up, plan.up_breaks), Link::new(down, plan.down_breaks));
        Self { sender, receiver, up, down, now: Duration::ZERO }
    }

    /// Runs until nothing is under way any more.
    fn run(plan: &Plan) -> Self {
        let mut pair = Self::new(plan);
        // The greeting is an answer too.
        let put_off = !pair.receiver.decide(false, Duration::ZERO);
        assert_eq!(put_off, pair.receiver.later.is_some());
        while let Some(now) = pair.turn() {
            assert!(now < Duration::from_secs(60), "it comes to an end");
        }
        pair
    }

    /// Sends what there is to send, then lets the next thing happen.
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

    /// Messages that the sender was told are taken, as the receiver must have them.
    fn accepted(&self) -> Vec<Taken> {
        let accepted = self.sender.sent.iter().enumerate().filter(|(_, sent)| sent.outcomes == [Outcome::Accepted]);
        let recipients = |sent: &Sent| {
            let yes = sent.recipients.iter().enumerate().filter(|(_, codes)| codes[0] < 300);
            yes.map(|(number, _)| format!("r{number}@example.com").into_bytes()).collect()
        };
        accepted
            .map(|(number, sent)| Taken {
                sender: format!("s{number}@example.com").into_bytes(),
                recipients: recipients(sent),
                content: self.sender.contents[number].clone(),
            })
            .collect()
    }

    /// What must hold where both sides came to an end in good order.
    fn check_every_reply_came_once(&self) {
        // A server whose EHLO was refused has not offered PIPELINING.
        let grouped = self.sender.mode != Mode::LockStep && self.sender.client.extensions().pipelining;
        for sent in &self.sender.sent {
            assert_eq!(sent.mail.len(), 1, "one reply to MAIL");
            assert_eq!(sent.outcomes.len(), 1, "one outcome");
            let asked = usize::from(grouped || sent.mail[0] < 300);
            assert!(sent.recipients.iter().all(|codes| codes.len() == asked), "one reply to each RCPT that was sent");
            let any = sent.recipients.iter().flatten().any(|code| *code < 300);
            assert_eq!(sent.data.len(), usize::from(grouped || any), "one reply to DATA where it was sent");
        }
    }
}

fn modes() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(Mode::LockStep), Just(Mode::Group), Just(Mode::Stream), Just(Mode::Eager)]
}

fn plans(temper: Temper) -> impl Strategy<Value = Plan> {
    (any::<u64>(), modes(), proptest::collection::vec(1usize..6, 0..8))
        .prop_map(move |(seed, mode, messages)| Plan::new(seed, mode, temper, messages))
}

proptest! {
    #[test]
    fn a_mild_server_takes_every_message_once_and_in_order(plan in plans(Temper::Mild)) {
        let pair = Pair::run(&plan);
        prop_assert!(pair.is_over(), "no hang");
        pair.check_every_reply_came_once();
        prop_assert!(pair.outcomes().all(|outcome| *outcome == Outcome::Accepted));
        prop_assert_eq!(pair.accepted(), pair.receiver.taken);
    }

    #[test]
    fn a_fickle_server_and_its_client_agree_on_every_message(plan in plans(Temper::Fickle)) {
        let pair = Pair::run(&plan);
        prop_assert!(pair.is_over(), "no hang");
        let greeted = pair.sender.begun == plan.messages.len();
        prop_assert!(greeted || pair.sender.begun == 0, "refused at the door, or served to the end");
        if greeted {
            pair.check_every_reply_came_once();
        }
        prop_assert_eq!(pair.accepted(), pair.receiver.taken);
    }

    #[test]
    fn a_rough_server_ends_the_session_and_nothing_else(plan in plans(Temper::Rough), errors in 0u32..8) {
        let pair = Pair::run(&Plan { errors, ..plan });
        prop_assert!(pair.is_over(), "no hang");
        prop_assert!(pair.sender.sent.iter().all(|sent| sent.outcomes.len() <= 1));
        prop_assert_eq!(pair.accepted(), pair.receiver.taken);
    }
}

/// A run whose link breaks: whatever the client heard 250 for is there, and at most the one message whose reply
/// was under way is there besides.
fn check_broken(plan: &Plan) {
    let mut pair = Pair::run(plan);
    let (accepted, taken) = (pair.accepted(), &pair.receiver.taken);
    assert!(taken.starts_with(&accepted), "what was accepted was taken");
    assert!(taken.len() <= accepted.len() + 1, "one message at most is in doubt");
    assert!(pair.up.is_broken() || pair.down.is_broken() || pair.is_over(), "no hang without a break");
    if let Some(deadline) = pair.receiver.server.deadline() {
        pair.receiver.server.tick(deadline, &mut pair.receiver.out);
        assert!(pair.receiver.server.is_closed());
    }
}

#[test]
fn a_connection_cut_at_any_byte_leaves_at_most_one_message_in_doubt() {
    for mode in [Mode::LockStep, Mode::Group, Mode::Stream, Mode::Eager] {
        let whole = Plan::new(7, mode, Temper::Mild, vec![2, 1, 3]);
        let pair = Pair::run(&whole);
        assert!(pair.is_over() && pair.receiver.taken.len() == 3);
        (0..pair.up.carried).for_each(|up_breaks| check_broken(&Plan { up_breaks, ..whole.clone() }));
        (0..pair.down.carried).for_each(|down_breaks| check_broken(&Plan { down_breaks, ..whole.clone() }));
    }
}
