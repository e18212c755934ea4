//! Couriers: connections to next hops, kept from message to message, and the replies for each recipient.
//!
//! A courier asks the queue for the next message when the session is free, and once a message is on its way: the next
//! one's MAIL, RCPT and DATA then travel with it (RFC 2920 §3.1), one write and one read a message.
use super::config::RefusedGreeting;
use super::defect::{CourierInHand, InHand, Work};
use super::demands::{self, Form};
use super::envelope::{Confirmation, Recipient, Refusal};
use super::journal::Journal;
use super::letter::Letter;
use super::maildir;
use super::office::{Office, Place};
use super::queue::{Answer, Assignment, Closing, Outcome};
use super::resolver::{Destination, Unroutable};
use super::routing::{Hop, Lmtp, Smtp};
use crate::planned_panic::planned_panic;
use crate::reason::reason;
use net::{Alarm, Caller, ClientSecurity, Conversation, Ended, Endpoint, Next, Outbox, Socket, clock};
use smtp::client::{self, Chunking, Client, Event, GaveUp, Pipelining, Protocol, StartTls, Verb};
use smtp::command::BodyType;
use smtp::dsn::{self, Notify};
use smtp::reply::Enhanced;
use smtp::{Envelope, Extensions, Received};
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
const CONNECT_PATIENCE: Duration = Duration::from_secs(30);
/// Time-out of a reply: RFC 5321 §4.5.3.2 has five minutes for most, ten for the last.
const REPLY_PATIENCE: Duration = Duration::from_secs(300);
/// Time-out of the answer to QUIT: a slow peer keeps a connection from others, and nothing depends on the answer.
const QUIT_PATIENCE: Duration = Duration::from_secs(10);
/// Messages that may be under way to a peer at a time, if they go by BDAT: one write and one read for all of them.
const BURST: u32 = 8;
/// A peer that takes longer for a message gets one at a time: others can have another connection.
const QUICK: Duration = Duration::from_millis(10);
/// Time for which a peer that ended a session amid a burst gets one message at a time: it may want few messages a
/// connection.
const CURT: Duration = Duration::from_secs(600);
/// The keys of a route against a certificate that is not accepted.
const REMEDIES: Remedies = Remedies { trust: "cacert = FILE", name: "tls_name = NAME", insecure: "insecure = true" };
/// Time for which an unused connection is kept.
const IDLE: Duration = Duration::from_secs(5);

/// Runs a courier from its being called to its return.
pub(super) async fn run(office: Rc<Office>, courier: CourierInHand) {
    let hop = office.hops.borrow().hop(courier.hop);
    match hop {
        Hop::Discard => here(&office, courier, discard).await,
        Hop::Maildir(root) => {
            here(&office, courier, async |office, letter, job| mailbox(office, &root, letter, job).await).await
        }
        Hop::Lmtp(lmtp) => to_lmtp(&office, courier, &lmtp).await,
        Hop::Smtp(smtp) => to_smtp(&office, courier, &smtp).await,
    }
}

/// Delivers on this host, one message after the other, until there is none.
async fn here(
    office: &Rc<Office>,
    mut courier: CourierInHand,
    deliver: impl AsyncFn(&Rc<Office>, &Letter, &Assignment<Letter>) -> Outcome,
) {
    let mut place = Place::default();
    let mut idle = Alarm::default();
    loop {
        let mut until = None;
        let assignment = poll_fn(|cx| {
            let now = clock::now();
            if place.is_dismissed() || office.is_closing() {
                return Poll::Ready(None);
            }
            match office.take(&mut courier, &mut place, cx.waker(), now) {
                Work::Message(assignment) => Poll::Ready(Some(assignment)),
                Work::Leave => Poll::Ready(None),
                Work::Wait => idle.poll_due(Some(*until.get_or_insert(now + IDLE)), now).map(|()| None),
            }
        });
        let Some(assignment) = assignment.await else { break };
        planned_panic("local delivery");
        let letter = assignment.letter.clone();
        let outcome = deliver(office, &letter, &assignment).await;
        office.outcome(assignment, outcome);
    }
    place.leave();
    office.closed(courier, Closing::Finished);
}

async fn discard(office: &Rc<Office>, _letter: &Letter, assignment: &Assignment<Letter>) -> Outcome {
    office.setting.census.delivered.add(assignment.recipients.len() as u64);
    Outcome::Delivered
}

/// Puts a copy for each recipient into a Maildir.
async fn mailbox(office: &Rc<Office>, root: &Arc<Path>, letter: &Letter, assignment: &Assignment<Letter>) -> Outcome {
    let mut answers = Vec::new();
    for number in assignment.recipients.iter() {
        let recipient = letter.envelope.recipients[usize::from(number)].clone();
        let (names, root, letter) = (Arc::clone(&office.setting.mailbox_names), Arc::clone(root), letter.clone());
        let address = recipient.address.clone();
        let delivered = office.setting.porters.done(move || {
            let sheet = maildir::Letter { sender: &letter.envelope.sender, recipient: &address, message: &letter.body };
            maildir::deliver(&root, &names, clock::wall(), &sheet)
        });
        answers.push(match delivered.await {
            Some(Ok(_)) => taken(&recipient, Confirmation::Delivered),
            Some(Err(failure)) => {
                if failure.is_loud() {
                    tracing::error!(%failure, "a mailbox cannot be written");
                }
                let (code, enhanced) = failure.code();
                Answer::Deferred(Refusal::new(code, Some(enhanced), &failure.to_string(), ""))
            }
            None => Answer::Deferred(Refusal::new(
                451,
                Some(Enhanced(4, 3, 0)),
                "delivery failed because of a bug in mailrun",
                "",
            )),
        });
    }
    summed(office, answers)
}

/// The answer for a recipient that was accepted; its sender may want a notice (RFC 3461 §5.2.2).
fn taken(recipient: &Recipient, how: Confirmation) -> Answer {
    let is_asked = recipient.notify.is_some_and(|notify| notify.wants(Notify::SUCCESS));
    if is_asked { Answer::Confirmed(how) } else { Answer::Delivered }
}

/// Sums up the answers: the usual outcome is one word.
fn summed(office: &Office, answers: Vec<Answer>) -> Outcome {
    let census = &office.setting.census;
    for answer in &answers {
        match answer {
            Answer::Delivered | Answer::Confirmed(_) => census.delivered.add(1),
            Answer::Failed(_) => census.failed.add(1),
            // Counted by the queue's facts.
            Answer::Deferred(_) => {}
        }
    }
    if answers.iter().all(|answer| *answer == Answer::Delivered) { Outcome::Delivered } else { Outcome::Each(answers) }
}

async fn to_lmtp(office: &Rc<Office>, courier: CourierInHand, lmtp: &Lmtp) {
    let mut carrier = Carrier::new(office, courier, lmtp.endpoint.to_string().into());
    let options = client::Options {
        protocol: Protocol::Lmtp,
        pipelining: Pipelining::Group,
        quit_patience: Some(QUIT_PATIENCE),
        ..Default::default()
    };
    let left = carrier.visit(&lmtp.endpoint, None, options).await;
    carrier.finish(left);
}

async fn to_smtp(office: &Rc<Office>, courier: CourierInHand, smtp: &Smtp) {
    let found = office.setting.resolver.destinations(&smtp.to, office.seed()).await;
    let destinations = match found {
        Ok(destinations) => destinations,
        Err(why) => return unroutable(office, courier, &why),
    };
    let mut carrier = Carrier::new(office, courier, "".into());
    let mut left = Left::Unreachable(Refusal::new(0, None, "no server", ""));
    for destination in &destinations {
        left = carrier.try_host(smtp, destination).await;
        if matches!(left, Left::Finished | Left::Refused(_)) || carrier.is_reached {
            break;
        }
    }
    carrier.finish(left);
}

/// Handles that no server can be found. A permanent error fails the messages at hand; a transient one shuts the hop for
/// a while.
fn unroutable(office: &Rc<Office>, courier: CourierInHand, why: &Unroutable) {
    let (code, enhanced) = why.codes();
    let refusal = Refusal::new(code, Enhanced::parse(enhanced.as_bytes()), &why.to_string(), "");
    if why.is_transient() {
        return office.closed(courier, Closing::Unreachable(refusal));
    }
    fail_all(office, courier, &refusal);
}

/// Fails the messages at hand.
fn fail_all(office: &Rc<Office>, mut courier: CourierInHand, refusal: &Refusal) {
    let mut place = Place::default();
    while let Work::Message(assignment) = office.take(&mut courier, &mut place, std::task::Waker::noop(), clock::now())
    {
        office.setting.census.failed.add(assignment.recipients.len() as u64);
        office.outcome(assignment, Outcome::All(Answer::Failed(refusal.clone())));
    }
    place.leave();
    office.closed(courier, Closing::Finished);
}

/// Way in which a session ended.
enum Left {
    /// The usual end.
    Finished,
    Unreachable(Refusal),
    /// A 5xx in place of a greeting, if it is configured to fail messages.
    Refused(Refusal),
    /// TLS was offered but failed, and is optional.
    WithoutTls,
}

/// Result of asking for the next message.
enum Found {
    /// The commands of the message.
    Message(Arc<Envelope>),
    /// No message now: the courier is called when there is one.
    Nothing,
    /// The courier has to leave.
    Leave,
}

/// A message under way.
struct Job {
    assignment: InHand,
    /// Message that is sent in place of the original, if that cannot be sent as it is.
    converted: Option<Letter>,
    /// Recipients, by their numbers, that are not sent to the server.
    left_out: Vec<u16>,
    /// Reply to each of the others so far, in the assignment's order.
    refused: Vec<Option<Refusal>>,
    handed: Handed,
    /// Recipients up to this place have had their answers to the message (LMTP).
    answered: usize,
    /// The next hop notifies the sender of a success itself.
    notifies: bool,
}

/// Progress of sending the message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Handed {
    Nothing,
    /// Part of the bytes that are being written.
    Rendered,
    /// Its last byte has been handed over.
    All,
}

impl Job {
    fn refuse_all(&mut self, refusal: &Refusal) {
        self.refuse_from(0, refusal);
    }

    /// Refuses all from that place on, except those that were refused before.
    fn refuse_from(&mut self, place: usize, refusal: &Refusal) {
        for place in self.refused.iter_mut().skip(place).filter(|place| place.is_none()) {
            *place = Some(refusal.clone());
        }
    }

    /// The message in the form that is sent.
    fn letter(&self) -> &Letter {
        self.converted.as_ref().unwrap_or(&self.assignment.letter)
    }

    /// The answer of each recipient.
    fn answers(&mut self) -> Vec<Answer> {
        let recipients = &self.assignment.letter.envelope.recipients;
        let (notifies, left_out) = (self.notifies, &self.left_out);
        let mut refused = self.refused.drain(..);
        let answer = |number: u16| {
            if left_out.contains(&number) {
                return Answer::Failed(demands::without_utf8());
            }
            match refused.next().flatten() {
                None if notifies => Answer::Delivered,
                None => taken(&recipients[usize::from(number)], Confirmation::Relayed),
                Some(refusal) if (500..600).contains(&refusal.code) => Answer::Failed(refusal),
                Some(refusal) => Answer::Deferred(refusal),
            }
        };
        self.assignment.recipients.iter().map(answer).collect()
    }
}

/// A courier on its way.
struct Carrier {
    office: Rc<Office>,
    courier: Option<CourierInHand>,
    place: Place,
    /// Oldest first: the next replies belong to the first.
    jobs: VecDeque<Job>,
    /// Host of the peer.
    host: Arc<str>,
    name: Arc<str>,
    idle: Alarm,
    idle_until: Option<Duration>,
    leaves: bool,
    /// Set if the peer lets messages follow each other without waiting.
    bursts: bool,
    /// Set if the peer answers fast enough for that.
    is_quick: bool,
    /// Time at which the oldest message under way was begun, or the one before it answered.
    since: Duration,
    /// A session was free for a message: the hop can be reached, however the session ends.
    is_reached: bool,
    /// The peer's reply that announced the close.
    farewell: Option<Refusal>,
    /// It came in place of a greeting.
    is_greeting_refused: bool,
    spare: Vec<Arc<Envelope>>,
}

impl Carrier {
    fn new(office: &Rc<Office>, courier: CourierInHand, host: Arc<str>) -> Self {
        Self {
            name: office.config().hostname.as_str().into(),
            office: Rc::clone(office),
            courier: Some(courier),
            place: Place::default(),
            jobs: VecDeque::with_capacity(2),
            host,
            idle: Alarm::default(),
            idle_until: None,
            leaves: false,
            bursts: false,
            is_quick: false,
            since: Duration::ZERO,
            is_reached: false,
            farewell: None,
            is_greeting_refused: false,
            spare: Vec::new(),
        }
    }

    async fn try_host(&mut self, smtp: &Smtp, destination: &Destination) -> Left {
        self.host = Arc::clone(&destination.name);
        let key = self.courier.as_ref().expect("it is out").hop;
        let security = self.office.hops.borrow_mut().security(key, &destination.name);
        let security = match security {
            Ok(security) => security,
            Err(why) => return Left::Unreachable(Refusal::new(0, None, &why, "")),
        };
        let endpoint = Endpoint::Tcp(destination.address);
        let options = client::Options {
            pipelining: Pipelining::Group,
            tls: smtp.security.start_tls(),
            credentials: smtp.credentials.clone(),
            chunking: Chunking::IfOffered,
            burst: if self.office.hops.borrow().may_burst(key, clock::now()) { BURST } else { 0 },
            quit_patience: Some(QUIT_PATIENCE),
            ..Default::default()
        };
        let left = self.visit(&endpoint, security, options.clone()).await;
        if !matches!(left, Left::WithoutTls) {
            return left;
        }
        // Opportunistic: better in the clear than not at all (RFC 7435 §3).
        self.visit(&endpoint, None, client::Options { tls: StartTls::Never, ..options }).await
    }

    async fn visit(&mut self, to: &Endpoint, security: Option<ClientSecurity>, options: client::Options) -> Left {
        let mut alarm = Alarm::default();
        let is_optional = options.tls == StartTls::IfOffered;
        self.farewell = None;
        self.is_greeting_refused = false;
        let connecting = Box::pin(Socket::connect_to(None, to));
        let socket = match alarm.limit(clock::now() + CONNECT_PATIENCE, connecting).await {
            Some(Ok(socket)) => socket,
            Some(Err(error)) => return self.unreachable(&reason(&error)),
            None => return self.unreachable("no connection in time"),
        };
        self.office.setting.census.connections.add(1);
        let nonce = options.credentials.is_some().then(net::nonce);
        let client = Client::with_options(Arc::clone(&self.name), Arc::new(options), nonce, clock::now());
        let desk = self.office.desk.clone();
        let talk = Conversation::new(socket, client, self, &mut alarm, REPLY_PATIENCE, desk).secured(security);
        let ended = Box::pin(talk.run()).await;
        self.ended(ended, is_optional)
    }

    fn unreachable(&self, why: &str) -> Left {
        Left::Unreachable(Refusal::new(0, Some(Enhanced(4, 4, 1)), why, &self.host))
    }

    /// Ends the session: messages under way go back to the queue.
    fn ended(&mut self, ended: Ended, tls_is_optional: bool) -> Left {
        if self.bursts && self.jobs.len() > 1 {
            let key = self.courier.as_ref().expect("it is out").hop;
            self.office.hops.borrow_mut().serve_singly(key, clock::now() + CURT);
            self.office.queue.borrow_mut().batch(key, 1);
        }
        // A peer that says 421 has accepted nothing that it had not answered before.
        let is_dismissed = self.farewell.as_ref().is_some_and(|refusal| refusal.code == 421);
        // One by one: the rest goes back by itself if this panics.
        while let Some(mut job) = self.jobs.pop_front() {
            let outcome = match (job.answered, job.handed == Handed::All && !is_dismissed) {
                (0, false) => Outcome::Unsent,
                (0, true) => Outcome::Unknown,
                // A recipient whose answer has come does not get the message again with each try for the others.
                (answered, _) => {
                    job.refuse_from(answered, &Refusal::new(0, None, "the session ended without an answer", ""));
                    summed(&self.office, job.answers())
                }
            };
            self.office.outcome(job.assignment, outcome);
        }
        if self.is_reached {
            return Left::Finished;
        }
        let text = match ended {
            Ended::NotEncrypted(_) if tls_is_optional => return Left::WithoutTls,
            Ended::Closed => match self.farewell.take() {
                Some(refusal) if self.is_refused_for_good(&refusal) => return Left::Refused(refusal),
                Some(refusal) => return Left::Unreachable(refusal),
                None => "the server closed the session".to_owned(),
            },
            Ended::GaveUp(why) => self.gave_up(why),
            Ended::Lost(_, error) if error.kind() == io::ErrorKind::UnexpectedEof => "connection closed".to_owned(),
            Ended::Lost(_, error) => format!("connection lost: {}", reason(&error)),
            Ended::Timeout(_) => format!("no reply within {REPLY_PATIENCE:?}"),
            Ended::Violated(_, violation) => violation.to_string(),
            Ended::NotEncrypted(error) => not_encrypted(&error),
        };
        self.unreachable(&text)
    }

    fn is_refused_for_good(&self, refusal: &Refusal) -> bool {
        let means = self.office.setting.first().delivery.greeting_5xx;
        self.is_greeting_refused && (500..600).contains(&refusal.code) && means == RefusedGreeting::Fail
    }

    fn gave_up(&mut self, why: GaveUp) -> String {
        self.farewell.take().map_or_else(|| why.to_string(), |refusal| format!("{why}: {}", refusal.text))
    }

    /// Quits. Until the peer has answered QUIT, this courier does not count as available.
    fn part(&mut self) -> Poll<Next> {
        self.place.leave();
        let courier = self.courier.as_mut().expect("it is out");
        self.office.queue.borrow_mut().parts(courier);
        Poll::Ready(Next::Quit)
    }

    /// Comes back from all visits.
    fn finish(mut self, left: Left) {
        self.place.leave();
        let courier = self.courier.take().expect("it comes back once");
        let closing = match left {
            Left::Refused(refusal) => return fail_all(&self.office, courier, &refusal),
            Left::Unreachable(refusal) => Closing::Unreachable(refusal),
            Left::Finished | Left::WithoutTls => Closing::Finished,
        };
        self.office.closed(courier, closing);
    }

    /// The next message, rendered for the peer's extensions. One that cannot be sent there fails at once.
    fn next(&mut self, cx: &Context<'_>, extensions: &Extensions, now: Duration) -> Found {
        loop {
            let courier = self.courier.as_mut().expect("it is out");
            let assignment = match self.office.take(courier, &mut self.place, cx.waker(), now) {
                Work::Message(assignment) => assignment,
                Work::Wait => return Found::Nothing,
                Work::Leave => return Found::Leave,
            };
            match self.rendered(&assignment, extensions) {
                Ok((envelope, Form { converted, left_out })) => {
                    let refused = vec![None; assignment.recipients.len() - left_out.len()];
                    self.jobs.push_back(Job {
                        assignment,
                        converted,
                        left_out,
                        refused,
                        handed: Handed::Nothing,
                        answered: 0,
                        notifies: extensions.dsn,
                    });
                    self.idle_until = None;
                    self.spare.push(Arc::clone(&envelope));
                    return Found::Message(envelope);
                }
                Err(refusal) => {
                    self.office.setting.census.failed.add(assignment.recipients.len() as u64);
                    self.office.outcome(assignment, Outcome::All(Answer::Failed(refusal)));
                }
            }
        }
    }
}

impl Carrier {
    /// The transaction's envelope, and in which form the message follows it.
    fn rendered(
        &mut self,
        assignment: &Assignment<Letter>,
        extensions: &Extensions,
    ) -> Result<(Arc<Envelope>, Form), Refusal> {
        planned_panic("delivery");
        let letter = &assignment.letter;
        let form = demands::meet(letter, assignment.recipients.iter(), extensions, &self.name)?;
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
        let mut envelope = self.draft();
        let room = Arc::get_mut(&mut envelope).expect("a draft is nobody else's");
        room.rewrite_with(
            &letter.envelope.sender,
            parameters.as_bytes(),
            recipients.iter().map(|(address, parameters)| (*address, parameters.as_bytes())),
        )
        .map_err(|_| Refusal::new(553, Some(Enhanced(5, 1, 3)), "an address cannot be written", ""))?;
        Ok((envelope, form))
    }

    /// An envelope that is no longer used, or a new one.
    fn draft(&mut self) -> Arc<Envelope> {
        let free = self.spare.iter().position(|envelope| Arc::strong_count(envelope) == 1);
        match free {
            Some(at) => self.spare.swap_remove(at),
            None => Arc::new(Envelope::new("", "", ["a@b"]).expect("it is one")),
        }
    }

    /// The reply as it is kept.
    fn refusal(&self, reply: &Received<'_>) -> Refusal {
        Refusal::new(reply.code(), reply.enhanced(), &reply.text(), &self.host)
    }

    /// Measures the peer's speed, which decides whether it may have several messages at a time.
    fn judge(&mut self, now: Duration) {
        let is_quick = now.saturating_sub(self.since) < QUICK;
        self.since = now;
        self.is_quick = is_quick;
        if self.bursts {
            // Set each time: another of the hop's couriers may have measured something else.
            let hop = self.courier.as_ref().expect("it is out").hop;
            self.office.queue.borrow_mut().batch(hop, if is_quick { BURST } else { 1 });
        }
    }

    /// The oldest message's transaction is over.
    fn conclude(&mut self) {
        let Some(mut job) = self.jobs.pop_front() else { return };
        let answers = job.answers();
        let is_taken = || answers.iter().any(|answer| matches!(answer, Answer::Delivered | Answer::Confirmed(_)));
        if job.converted.is_some() && is_taken() {
            self.office.setting.census.converted.add(1);
        }
        let outcome = summed(&self.office, answers);
        self.office.outcome(job.assignment, outcome);
    }

    /// Applies a reply to the oldest message.
    fn heed(&mut self, to: Verb, reply: &Received<'_>) {
        if is_yes(to, reply) {
            return;
        }
        let refusal = self.refusal(reply);
        if reply.code() == 421 || matches!(to, Verb::Greeting | Verb::Hello | Verb::StartTls | Verb::Auth) {
            self.farewell = Some(refusal.clone());
            self.is_greeting_refused = to == Verb::Greeting;
        }
        let Some(job) = self.jobs.front_mut() else { return };
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
fn not_encrypted(error: &io::Error) -> String {
    let fault = error.get_ref().and_then(|inner| inner.downcast_ref::<HandshakeFault>());
    match fault {
        Some(fault @ HandshakeFault::NotTls) => format!("{fault}: check tls and the port of the route"),
        Some(fault) => fault.with_remedy(&REMEDIES),
        None => reason(error),
    }
}

/// Reports whether a reply accepts its command: a 3xx accepts neither sender, recipient nor message.
fn is_yes(to: Verb, reply: &Received<'_>) -> bool {
    match to {
        Verb::Mail | Verb::Recipient(_) | Verb::Chunk | Verb::Message | Verb::Delivery(_) => reply.code() / 100 == 2,
        _ => reply.is_positive(),
    }
}

/// Parameters of MAIL.
fn mail_parameters(letter: &Letter, extensions: &Extensions) -> Result<String, Refusal> {
    let envelope = &letter.envelope;
    let mut words = String::with_capacity(64);
    let mut say = |word: fmt::Arguments<'_>| {
        let blank = if words.is_empty() { "" } else { " " };
        write!(words, "{blank}{word}").expect("a String takes any text");
    };
    if let Some(most) = extensions.size {
        let bytes = letter.body.len() as u64;
        if most > 0 && bytes > most {
            return Err(Refusal::new(
                552,
                Some(Enhanced(5, 3, 4)),
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
fn recipient_parameters(recipient: &Recipient, smtp_utf8: bool, extensions: &Extensions) -> String {
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

impl Caller for Carrier {
    fn poll_next(&mut self, cx: &mut Context<'_>, client: &Client, early: bool, now: Duration) -> Poll<Next> {
        self.is_reached = true;
        self.leaves |= self.place.is_dismissed() || self.office.is_closing();
        if self.leaves {
            return self.part();
        }
        let hop = self.courier.as_ref().expect("it is out").hop;
        self.bursts = client.bursts();
        if early && ((self.bursts && !self.is_quick) || !self.office.queue.borrow().has_letter(hop)) {
            return Poll::Ready(Next::Quit);
        }
        if self.jobs.is_empty() {
            self.since = now;
        }
        match self.next(cx, client.extensions(), now) {
            Found::Message(envelope) => return Poll::Ready(Next::Transaction(envelope)),
            Found::Leave => self.leaves = true,
            Found::Nothing if early => return Poll::Ready(Next::Quit),
            Found::Nothing => {
                let until = *self.idle_until.get_or_insert(now + IDLE);
                self.leaves = self.idle.poll_due(Some(until), now).is_ready();
                if !self.leaves {
                    return Poll::Pending;
                }
            }
        }
        self.part()
    }

    fn render(&mut self, outbox: &mut Outbox) {
        if let Some(job) = self.jobs.back_mut() {
            job.letter().render(outbox);
            job.handed = Handed::Rendered;
        }
    }

    fn message_bytes(&self) -> u64 {
        self.jobs.back().map_or(0, |job| job.letter().body.len() as u64)
    }

    fn render_chunk(&mut self, outbox: &mut Outbox) {
        if let Some(job) = self.jobs.back_mut() {
            job.letter().render_as_it_is(outbox);
            job.handed = Handed::Rendered;
        }
    }

    fn written(&mut self, _now: Duration) {
        for job in self.jobs.iter_mut().filter(|job| job.handed == Handed::Rendered) {
            job.handed = Handed::All;
        }
    }

    fn replied(&mut self, event: &Event<'_>, now: Duration) {
        self.heed(event.to, &event.reply);
        if let (Verb::Delivery(place), Some(job)) = (event.to, self.jobs.front_mut()) {
            job.answered = place as usize + 1;
        }
        if event.ends == Some(client::Outcome::Refused) {
            // The peer's reply does not accept the message, whatever it says: a 250 to DATA, say.
            let refusal = self.refusal(&event.reply);
            self.jobs.iter_mut().take(1).for_each(|job| job.refuse_all(&refusal));
        }
        if event.ends.is_some() {
            if Journal::is_kept() && event.reply.is_positive() {
                self.office.journal.heard(self.refusal(&event.reply));
            }
            self.judge(now);
            self.conclude();
        }
    }
}
