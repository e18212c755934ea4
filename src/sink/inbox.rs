//! A sink session's handling of mail: reads its trace, counts it, and answers 250, or as the rules order.
use super::conduct::{Bite, Conduct, Deed, Judgement, Moment, Seats};
use super::control::{Armed, Control, Ruleset};
use super::dump::{Draft, Dump, Envelope};
use super::handout::{CLOSING, Fate, Handout, join};
use super::rules::Command;
use crate::party::DEFECT;
use crate::planned_panic::planned_panic;
use crate::users::Users;
use journey::record::Resource;
use journey::trace::recipient_number;
use journey::{ClockId, Found, Mark, Phase, RunTally, SinkTally, Trace, TraceReader};
use net::{Answer, Appetite, Handler, Handshake, LoginOutcome, Parting, Peer, Service, Shortage, clock};
use smtp::command::{Hello, Mail};
use smtp::login::Auth;
use smtp::proxy::Header;
use smtp::sasl::Secret;
use smtp::server::Protocol;
use smtp::verdict::Verdict;
use smtp::xclient::Xclient;
use smtp::{Path, Reply};
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Reply if a message cannot be stored (RFC 5321 §4.2.3).
static NO_ROOM: Reply = Reply::fixed("452 4.3.1 Insufficient system storage\r\n");

/// A tally on its way to the collector, and the way back for it.
pub(super) type Parcel = (Box<SinkTally>, SyncSender<Box<SinkTally>>);

/// State that all workers share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) control: Arc<Control>,
    /// Storage of messages, if they are stored.
    dump: Option<Dump>,
    /// Users that may log in, if AUTH is offered.
    users: Option<Users>,
    /// Time at which the first client connected.
    first_connection: OnceLock<Duration>,
    /// Number of messages after which the sink ends.
    most: Option<u64>,
    /// Protocol: the end of a message has one answer in SMTP, and one for each recipient in LMTP.
    protocol: Protocol,
    answered: AtomicU64,
    monotonic: ClockId,
}

impl Shared {
    pub(super) fn new(
        control: Control,
        dump: Option<Dump>,
        users: Option<Users>,
        most: Option<u64>,
        protocol: Protocol,
    ) -> Self {
        Self {
            control: Arc::new(control),
            dump,
            users,
            first_connection: OnceLock::new(),
            most,
            protocol,
            answered: AtomicU64::new(0),
            monotonic: crate::party::monotonic_clock(),
        }
    }

    /// Reports whether it has received as many messages as it was asked to.
    pub(super) fn is_full(&self) -> bool {
        self.most.is_some_and(|most| self.answered.load(Ordering::Relaxed) >= most)
    }
}

/// A worker's tally, handed to the collector at every tick.
pub(super) struct Till(Rc<Books>);

/// Counts of a worker's sessions, and state that they look up.
pub(super) struct Books {
    shared: Arc<Shared>,
    tally: RefCell<Box<SinkTally>>,
    full: Sender<Parcel>,
    emptied: (SyncSender<Box<SinkTally>>, Receiver<Box<SinkTally>>),
    /// The rules in force at the last look, and their version then.
    rules: RefCell<Option<Arc<Ruleset>>>,
    version: Cell<u64>,
}

impl Till {
    pub(super) fn new(shared: Arc<Shared>, full: Sender<Parcel>) -> Self {
        let tally = RefCell::default();
        let rules = RefCell::default();
        let version = Cell::new(0);
        Self(Rc::new(Books { shared, tally, full, emptied: sync_channel(1), rules, version }))
    }
}

impl Service for Till {
    type Handler = Inbox;

    fn session(&self, peer: Peer) -> Inbox {
        self.0.tally.borrow_mut().connections += 1;
        self.0.shared.first_connection.get_or_init(clock::now);
        let side = self.0.shared.dump.is_some().then(Box::default);
        let reader = TraceReader::default();
        let numbers = Vec::new();
        Inbox { books: Rc::clone(&self.0), client: peer.address, reader, numbers, began: None, side }
    }

    /// No client is exempt: the sink measures and refuses none.
    fn is_exempt(&self, _client: std::net::IpAddr) -> bool {
        true
    }

    fn not_accepted(&self, why: &std::io::Error) {
        let resource = match Shortage::of(why, false) {
            Some(Shortage::Descriptors) => Resource::Descriptors,
            Some(Shortage::HostDescriptors) => Resource::HostDescriptors,
            // A client that has disconnected already is no error.
            Some(Shortage::Ports) | None => return,
        };
        self.0.tally.borrow_mut().shortages.add(resource);
    }

    fn tick(&self, _now: Duration) {
        let empty = self.0.emptied.1.try_recv().unwrap_or_default();
        let full = std::mem::replace(&mut *self.0.tally.borrow_mut(), empty);
        // Without a collector nothing can be sent.
        let _ = self.0.full.send((full, self.0.emptied.0.clone()));
    }
}

/// One session's mail.
pub(super) struct Inbox {
    books: Rc<Books>,
    client: SocketAddr,
    reader: TraceReader,
    /// The recipients' numbers.
    numbers: Vec<u32>,
    /// Earliest time at which the message could begin; `None` if this end delays it on purpose.
    began: Option<Duration>,
    /// State of sessions under rules, and of those whose mail is stored.
    side: Option<Box<Side>>,
}

/// Further state of a session.
#[derive(Default)]
struct Side {
    conduct: Option<Conduct>,
    /// Set if the message being read is to be changed.
    corrupt: bool,
    /// Set once it has been changed.
    is_changed: bool,
    /// The name that the client gave in its greeting.
    hello: String,
    draft: Option<Draft>,
    /// LMTP: the message whose recipients are being answered.
    handout: Option<Rc<Handout>>,
}

/// A complete message.
struct Arrival {
    found: Found,
    numbers: Vec<u32>,
    bytes: u64,
    deed: Deed,
    draft: Option<Draft>,
    /// Set if a rule has changed it.
    is_changed: bool,
    /// Places that are held until the message is answered.
    _seats: Seats,
}

impl Drop for Inbox {
    /// Records a panic of the session among the errors.
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Ok(mut tally) = self.books.tally.try_borrow_mut()
        {
            tally.errors.add(Phase::Reply, 0, DEFECT);
        }
    }
}

impl Handler for Inbox {
    fn connect(&mut self, _now: Duration) -> Answer {
        self.ruled(Command::Connect, None).unwrap_or_else(|refusal| refusal)
    }

    fn hello(&mut self, hello: Hello, name: &[u8]) -> Answer {
        if let Some(side) = &mut self.side {
            side.hello = String::from_utf8_lossy(name).into_owned();
        }
        let command = match hello {
            Hello::Extended => Command::Ehlo,
            Hello::Plain => Command::Helo,
            Hello::Lmtp => Command::Lhlo,
        };
        self.ruled(command, None).unwrap_or_else(|refusal| refusal)
    }

    fn mail(&mut self, mail: &Mail<'_>) -> Answer {
        self.numbers.clear();
        if self.books.shared.is_full() {
            return Answer::Reply(Verdict::ShuttingDown.reply().clone());
        }
        match self.ruled(Command::Mail, Some(mail.sender)) {
            Ok(answer) => {
                self.begin_draft(&mail.sender);
                answer
            }
            Err(refusal) => refusal,
        }
    }

    fn recipient(&mut self, recipient: &Path<'_>) -> Answer {
        let answer = match self.ruled(Command::Recipient, Some(*recipient)) {
            Ok(answer) => answer,
            Err(refusal) => return refusal,
        };
        self.enter(recipient);
        self.numbers.push(recipient_number(recipient.as_bytes()));
        if let Some(draft) = self.side.as_mut().and_then(|side| side.draft.as_mut()) {
            draft.envelope().recipients.push(String::from_utf8_lossy(recipient.as_bytes()).into_owned());
        }
        answer
    }

    fn data(&mut self) -> Answer {
        let answer = self.ruled(Command::Data, None).unwrap_or_else(|refusal| refusal);
        if let Some(side) = &mut self.side
            && let Some(rules) = self.books.rules()
        {
            side.corrupt = side.conduct.as_ref().is_some_and(|conduct| conduct.corrupts(&rules));
        }
        self.began = (self.books.shared.control.version() == 0).then(clock::now);
        answer
    }

    fn block(&mut self, block: &[u8]) {
        match &mut self.side {
            None => self.reader.receive(block),
            Some(side) => side.receive(block, &mut self.reader, self.books.shared.dump.as_ref()),
        }
    }

    fn message(&mut self, bytes: u64, now: Duration) -> Answer {
        planned_panic("sink");
        let found = self.reader.finish();
        if let Some(began) = self.began.take() {
            self.books.time_body(&found, now.saturating_sub(began));
        }
        if self.is_plain() {
            self.books.arrive(&found, &self.numbers, bytes, now, 1);
            return Answer::Yes;
        }
        self.message_beside(found, bytes, now)
    }

    fn delivery(&mut self, recipient: u32, now: Duration) -> Answer {
        let Some(handout) = self.side.as_ref().and_then(|side| side.handout.clone()) else { return Answer::Yes };
        let place = recipient as usize;
        if handout.is_last(place)
            && let Some(side) = &mut self.side
        {
            side.handout = None;
        }
        let books = Rc::clone(&self.books);
        let delay = handout.delay(place);
        if delay.is_zero() {
            return handout.answer(place, &books, now);
        }
        Answer::eventually(async move {
            net::sleep(delay).await;
            handout.answer(place, &books, clock::now())
        })
    }

    fn verify(&mut self, _who: &[u8]) -> Answer {
        self.ruled(Command::Verify, None).unwrap_or_else(|refusal| refusal)
    }

    fn rset(&mut self) -> Answer {
        self.ruled(Command::Reset, None).unwrap_or_else(|refusal| refusal)
    }

    fn noop(&mut self) -> Answer {
        self.ruled(Command::Noop, None).unwrap_or_else(|refusal| refusal)
    }

    fn quit(&mut self) -> Answer {
        self.ruled(Command::Quit, None).unwrap_or_else(|refusal| refusal)
    }

    fn appetite(&mut self) -> Appetite {
        let Some(conduct) = self.side.as_mut().and_then(|side| side.conduct.as_mut()) else { return Appetite::All };
        match conduct.bite(clock::now) {
            Bite::All => Appetite::All,
            Bite::AtMost(most) => Appetite::AtMost(most),
            Bite::NotBefore(then) => Appetite::NotBefore(then),
            Bite::Over(deed, by) => {
                by.act();
                self.books.note(Command::Data, &deed, &by);
                Appetite::Nothing(answer(deed))
            }
        }
    }

    fn reset(&mut self, why: Option<Verdict>) {
        self.numbers.clear();
        self.reader = TraceReader::default();
        if let Some(side) = &mut self.side {
            side.draft = None;
            side.is_changed = false;
            side.conduct.as_mut().map(Conduct::close);
        }
        if let Some(verdict) = why {
            let reply = verdict.reply();
            let text = String::from_utf8_lossy(&reply.wire()[4..]).into_owned();
            self.books.tally.borrow_mut().errors.add(Phase::Reply, reply.code(), &text);
        }
    }

    fn proxied(&mut self, header: &Header) {
        if let Header::Proxied { source, .. } = header {
            self.client = *source;
        }
    }

    fn not_proxied(&mut self, why: &std::io::Error) {
        self.books.tally.borrow_mut().errors.add(Phase::Connect, 0, &why.to_string());
    }

    fn xclient(&mut self, xclient: &Xclient<'_>) -> Answer {
        if let Some(address) = xclient.address() {
            self.client.set_ip(address);
        }
        Answer::Yes
    }

    fn start_tls(&mut self) -> Answer {
        self.ruled(Command::StartTls, None).unwrap_or_else(|refusal| refusal)
    }

    fn handshake(&mut self) -> Answer {
        self.ruled(Command::Handshake, None).unwrap_or_else(|refusal| refusal)
    }

    fn encrypted(&mut self, handshake: &Handshake) {
        let mut tally = self.books.tally.borrow_mut();
        tally.handshakes.add(&handshake.version, &handshake.cipher, handshake.resumed);
    }

    fn not_encrypted(&mut self, why: &std::io::Error) {
        let mut tally = self.books.tally.borrow_mut();
        tally.handshakes.failed += 1;
        tally.errors.add(Phase::Tls, 0, &why.to_string());
    }

    fn login(&mut self, auth: &Auth<'_>) -> Answer {
        match self.ruled(Command::Auth, None) {
            Ok(_) if !self.books.knows(auth) => Answer::Reply(Verdict::NotAuthenticated.reply().clone()),
            Ok(answer) | Err(answer) => answer,
        }
    }

    fn secret(&mut self, auth: &Auth<'_>) -> Option<Secret> {
        self.books.shared.users.as_ref().and_then(|users| users.secret(auth))
    }

    fn login_ended(&mut self, outcome: LoginOutcome) {
        if outcome == LoginOutcome::NotProved {
            self.books.tally.borrow_mut().errors.add(Phase::Auth, 535, "a login failed");
        }
    }

    fn gave_up(&mut self, why: Verdict) {
        let reply = why.reply();
        let text = String::from_utf8_lossy(&reply.wire()[4..]).into_owned();
        self.books.tally.borrow_mut().errors.add(Phase::Reply, reply.code(), &text);
    }

    fn disconnect(&mut self, parting: Parting) {
        if parting == Parting::Timeout {
            let reply = Verdict::Timeout.reply();
            self.books.tally.borrow_mut().errors.add(Phase::Reply, reply.code(), "a client was silent for too long");
        }
    }
}

impl Inbox {
    /// Reports whether messages are only counted: no rules, and no storage.
    fn is_plain(&self) -> bool {
        self.side.is_none() && self.books.shared.control.version() == 0
    }

    /// Applies the rules to a command: an answer that accepts it, or one that does not.
    fn ruled(&mut self, command: Command, address: Option<Path<'_>>) -> Result<Answer, Answer> {
        let Some(rules) = self.books.rules() else { return Ok(Answer::Yes) };
        let Judgement { delay, deed, by } = self.judge(&rules, command, address, None, clock::now());
        if let Some(by) = by {
            self.books.note(command, &deed, &by);
        }
        let is_granted = deed == Deed::Grant;
        let answer = held_back(delay, answer(deed));
        if is_granted { Ok(answer) } else { Err(answer) }
    }

    fn judge(
        &mut self,
        rules: &Ruleset,
        command: Command,
        address: Option<Path<'_>>,
        sequence: Option<u64>,
        now: Duration,
    ) -> Judgement {
        let shared = &self.books.shared;
        let since = now.saturating_sub(*shared.first_connection.get().unwrap_or(&now));
        let moment = Moment { command, client: self.client.ip(), address, sequence, now, since };
        let conduct = &mut self.side.get_or_insert_default().conduct;
        conduct.get_or_insert_with(|| Conduct::new(shared.control.number_session())).judge(rules, &moment)
    }

    /// Stores an accepted recipient, if a rule will be evaluated for it.
    fn enter(&mut self, recipient: &Path<'_>) {
        let place = self.numbers.len();
        if let Some(conduct) = self.side.as_mut().and_then(|side| side.conduct.as_mut())
            && self.books.rules().is_some_and(|rules| rules.ask_for_recipients())
        {
            conduct.enter_recipient(place, recipient);
        }
    }

    /// Decides a complete message by the rules, and, if they accept it, each of its recipients.
    fn judge_message(&mut self, sequence: Option<u64>, now: Duration) -> (Duration, Deed, Vec<Fate>) {
        let cut = self.side.as_mut().and_then(|side| side.conduct.as_mut()?.whole());
        let rules = self.books.rules();
        let Judgement { delay, deed, by } = match (cut, &rules) {
            (Some((deed, by)), _) => {
                by.act();
                Judgement { delay: Duration::ZERO, deed, by: Some(by) }
            }
            (None, Some(rules)) => self.judge(rules, Command::Dot, None, sequence, now),
            (None, None) => Judgement { delay: Duration::ZERO, deed: Deed::Grant, by: None },
        };
        if let Some(by) = by {
            self.books.note(Command::Dot, &deed, &by);
        }
        let fates = match rules.filter(|rules| deed == Deed::Grant && rules.ask_for_recipients()) {
            Some(rules) => self.judge_recipients(&rules, sequence, now),
            None => Vec::new(),
        };
        (delay, deed, fates)
    }

    /// Decides each recipient by the rules, up to the one that ends the session; empty if all are accepted at once.
    fn judge_recipients(&mut self, rules: &Ruleset, sequence: Option<u64>, now: Duration) -> Vec<Fate> {
        let shared = &self.books.shared;
        let since = now.saturating_sub(*shared.first_connection.get().unwrap_or(&now));
        let command = Command::Dot;
        let client = self.client.ip();
        let moment = Moment { command, client, address: None, sequence, now, since };
        let Some(conduct) = self.side.as_mut().and_then(|side| side.conduct.as_mut()) else { return Vec::new() };
        let mut fates = Vec::new();
        for place in 0..self.numbers.len() {
            let Judgement { delay, deed, by } = conduct.judge_recipient(rules, &moment, place);
            if let Some(by) = by {
                self.books.note(Command::Dot, &deed, &by);
            }
            let fate = Fate { delay, deed };
            let ends = fate.ends(shared.protocol);
            fates.push(fate);
            if ends {
                break;
            }
        }
        if fates.iter().all(Fate::is_plain) { Vec::new() } else { fates }
    }

    /// Handles a message of a session that does more than count.
    fn message_beside(&mut self, found: Found, bytes: u64, now: Duration) -> Answer {
        let (mut delay, mut deed, fates) = self.judge_message(sequence(&found), now);
        let mut numbers = std::mem::take(&mut self.numbers);
        let side = self.side.get_or_insert_default();
        let (draft, seats) = side.close();
        let is_changed = std::mem::take(&mut side.is_changed);
        if !fates.is_empty() {
            if self.books.shared.protocol == Protocol::Lmtp {
                self.books.note_changed(&found, u64::from(is_changed));
                side.handout = Some(Rc::new(Handout::new(found, bytes, numbers, fates, draft, seats)));
                return held_back(delay, Answer::Yes);
            }
            let count = |deed: &Deed| fates.iter().filter(|fate| fate.deed == *deed).count() as u64;
            let lost = count(&Deed::Drop);
            let duplicates = count(&Deed::Duplicate);
            let joined = join(fates, &mut numbers);
            if matches!(joined.deed, Deed::Grant | Deed::LoseReply | Deed::Drop) {
                self.books.note_units(&found, lost, duplicates);
            }
            delay += joined.delay;
            deed = joined.deed;
        }
        let arrival = Arrival { found, numbers, bytes, deed, draft, is_changed, _seats: seats };
        let books = Rc::clone(&self.books);
        if delay.is_zero() {
            return books.take_in(arrival, now);
        }
        // Only a message whose answer is about to be written counts.
        Answer::eventually(async move {
            net::sleep(delay).await;
            books.take_in(arrival, clock::now())
        })
    }

    /// Begins to store a message.
    fn begin_draft(&mut self, sender: &Path<'_>) {
        let Some(side) = self.side.as_mut().filter(|_| self.books.shared.dump.is_some()) else { return };
        let mut envelope = Envelope::default();
        envelope.client = self.client.to_string();
        envelope.hello.clone_from(&side.hello);
        envelope.sender = String::from_utf8_lossy(sender.as_bytes()).into_owned();
        side.draft = Some(Draft::new(envelope));
    }
}

impl Side {
    fn receive(&mut self, block: &[u8], reader: &mut TraceReader, dump: Option<&Dump>) {
        if let Some(conduct) = &mut self.conduct {
            conduct.read(block.len(), clock::now);
        }
        let corrupted = std::mem::take(&mut self.corrupt).then(|| changed(block));
        self.is_changed |= corrupted.is_some();
        let block = corrupted.as_deref().unwrap_or(block);
        if let Some((draft, dump)) = self.draft.as_mut().zip(dump) {
            draft.write(dump, block);
        }
        reader.receive(block);
    }

    /// Ends the transaction; returns the stored message, and the places that it holds.
    fn close(&mut self) -> (Option<Draft>, Seats) {
        let seats = self.conduct.as_mut().map(Conduct::close).unwrap_or_default();
        (self.draft.take(), seats)
    }
}

fn held_back(delay: Duration, answer: Answer) -> Answer {
    if delay.is_zero() {
        return answer;
    }
    Answer::eventually(async move {
        net::sleep(delay).await;
        answer
    })
}

/// The answer on the wire.
pub(super) fn answer(deed: Deed) -> Answer {
    match deed {
        Deed::Grant | Deed::Drop | Deed::Duplicate => Answer::Yes,
        Deed::Refuse(reply) => Answer::Reply(reply),
        Deed::HangUp(last_word) => Answer::HangUp(last_word),
        Deed::LoseReply => Answer::HangUp(None),
        Deed::Reset => Answer::Reset,
    }
}

fn sequence(found: &Found) -> Option<u64> {
    match found {
        Found::Intact(trace) | Found::Converted(trace) | Found::Corrupt(Some(trace)) => Some(trace.sequence),
        Found::Absent | Found::Corrupt(None) => None,
    }
}

/// Phase under which an error of that command is counted. Phases are those of the source: a command without one is
/// counted with the replies.
fn phase(command: Command) -> Phase {
    match command {
        Command::Connect => Phase::Banner,
        Command::Helo | Command::Ehlo | Command::Lhlo => Phase::Ehlo,
        Command::Mail => Phase::Mail,
        Command::Recipient => Phase::Rcpt,
        Command::Data => Phase::Data,
        Command::Dot | Command::Reset | Command::Noop | Command::Verify => Phase::Reply,
        Command::Quit => Phase::Quit,
        Command::StartTls | Command::Handshake => Phase::Tls,
        Command::Auth => Phase::Auth,
    }
}

/// Returns the block with the last byte before its line end changed: in a message of one block, a byte of the body.
fn changed(block: &[u8]) -> Vec<u8> {
    let mut changed = block.to_vec();
    let at = changed.iter().rposition(|octet| !octet.is_ascii_control()).unwrap_or(0);
    if let Some(octet) = changed.get_mut(at) {
        *octet ^= 1;
    }
    changed
}

/// Marks the units of a message in the ledger.
fn mark(run: &mut RunTally, trace: &Trace, numbers: &[u32]) {
    for number in numbers {
        match run.units.mark(trace.sequence, *number) {
            Mark::First => {}
            Mark::Again => run.duplicates += 1,
            Mark::Full => run.overflow += 1,
        }
    }
}

impl Books {
    fn knows(&self, auth: &Auth<'_>) -> bool {
        self.shared.users.as_ref().is_some_and(|users| users.knows(auth))
    }

    /// The rules in force, if there are any.
    fn rules(&self) -> Option<Arc<Ruleset>> {
        let version = self.shared.control.version();
        if version == 0 { None } else { self.rules_of(version) }
    }

    fn rules_of(&self, version: u64) -> Option<Arc<Ruleset>> {
        if self.version.replace(version) != version {
            self.rules.replace(self.shared.control.in_force());
        }
        self.rules.borrow().clone()
    }

    /// Counts a refusal or a cut by a rule among the errors.
    fn note(&self, command: Command, deed: &Deed, by: &Armed) {
        let code = match deed {
            Deed::Grant | Deed::Drop | Deed::Duplicate => return,
            Deed::Refuse(reply) | Deed::HangUp(Some(reply)) => reply.code(),
            Deed::HangUp(None) | Deed::LoseReply | Deed::Reset => 0,
        };
        let text = format!("on purpose: {}", by.rule.text());
        let tally = &mut **self.tally.borrow_mut();
        tally.errors.add(phase(command), code, &text);
        let is_cut = !matches!(deed, Deed::Refuse(_));
        tally.ordered.cuts += u64::from(is_cut || code == CLOSING);
        tally.ordered.replies += u64::from(code > 0);
    }

    /// Counts the recipients of a message that rules dropped, and those that rules counted twice.
    pub(super) fn note_units(&self, found: &Found, lost: u64, duplicates: u64) {
        if sequence(found).is_some() {
            let ordered = &mut self.tally.borrow_mut().ordered;
            ordered.lost += lost;
            ordered.duplicates += duplicates;
        }
    }

    /// Stores a message and counts it, as far as the rules say, and answers.
    fn take_in(&self, arrival: Arrival, now: Duration) -> Answer {
        let Arrival { found, numbers, bytes, deed, draft, is_changed, _seats } = arrival;
        let times = match deed {
            Deed::Refuse(_) | Deed::HangUp(_) | Deed::Reset => return answer(deed),
            Deed::Drop => 0,
            Deed::Grant | Deed::LoseReply => 1,
            Deed::Duplicate => 2,
        };
        if let Err(refusal) = self.keep(draft.filter(|_| times > 0)) {
            return refusal;
        }
        self.arrive(&found, &numbers, bytes, now, times);
        let all = numbers.len() as u64;
        self.note_units(&found, if times == 0 { all } else { 0 }, if times == 2 { all } else { 0 });
        self.note_changed(&found, if is_changed { u64::from(times) } else { 0 });
        if deed == Deed::LoseReply {
            self.tally.borrow_mut().ordered.unanswered += all;
        }
        answer(deed)
    }

    /// Counts a message that a rule has changed, as many times as the message itself counts.
    fn note_changed(&self, found: &Found, times: u64) {
        if sequence(found).is_some() {
            self.tally.borrow_mut().ordered.corrupt += times;
        }
    }

    /// Stores the message if it is to be stored, or refuses it.
    pub(super) fn keep(&self, draft: Option<Draft>) -> Result<(), Answer> {
        let Some((draft, dump)) = draft.zip(self.shared.dump.as_ref()) else { return Ok(()) };
        draft.keep(dump).map_err(|error| {
            let text = format!("the message could not be stored: {error}");
            self.tally.borrow_mut().errors.add(Phase::Reply, NO_ROOM.code(), &text);
            self.no_room()
        })
    }

    pub(super) fn no_room(&self) -> Answer {
        Answer::Reply(NO_ROOM.clone())
    }

    /// Counts further recipients of a message that is counted already.
    pub(super) fn arrive_for(&self, found: &Found, numbers: &[u32], now: Duration) {
        let tally = &mut **self.tally.borrow_mut();
        tally.recipients += numbers.len() as u64;
        tally.last_arrival = Some(now);
        if let Found::Intact(trace) | Found::Converted(trace) | Found::Corrupt(Some(trace)) = found {
            let run = tally.runs.open(trace.run);
            run.recipients += numbers.len() as u64;
            run.last_delivered = Some(now);
            if !trace.is_warm_up() {
                run.last_counted = Some(now);
            }
            mark(run, trace, numbers);
        }
    }

    /// Counts a message `times` times.
    pub(super) fn arrive(&self, found: &Found, numbers: &[u32], bytes: u64, now: Duration, times: u32) {
        self.shared.answered.fetch_add(1, Ordering::Relaxed);
        for _ in 0..times {
            self.count(found, numbers, bytes, now);
        }
    }

    /// Times the sender's transfer of a message: this shows whether ACKs delayed it.
    fn time_body(&self, found: &Found, took: Duration) {
        let tally = &mut **self.tally.borrow_mut();
        match found {
            Found::Intact(trace) | Found::Converted(trace) | Found::Corrupt(Some(trace)) => {
                tally.runs.open(trace.run).bodies.record(took);
            }
            Found::Absent | Found::Corrupt(None) => tally.bodies.record(took),
        }
    }

    fn count(&self, found: &Found, numbers: &[u32], bytes: u64, now: Duration) {
        let tally = &mut **self.tally.borrow_mut();
        tally.messages += 1;
        tally.recipients += numbers.len() as u64;
        tally.bytes += bytes;
        tally.first_arrival.get_or_insert(now);
        tally.last_arrival = Some(now);
        match found {
            Found::Absent | Found::Corrupt(None) => tally.untraced += 1,
            Found::Intact(trace) => self.count_traced(tally.runs.open(trace.run), trace, numbers, bytes, now),
            Found::Converted(trace) => {
                let run = tally.runs.open(trace.run);
                run.converted += 1;
                self.count_traced(run, trace, numbers, bytes, now);
            }
            Found::Corrupt(Some(trace)) => {
                let run = tally.runs.open(trace.run);
                run.corrupt += 1;
                self.count_traced(run, trace, numbers, bytes, now);
            }
        }
    }

    fn count_traced(&self, run: &mut RunTally, trace: &Trace, numbers: &[u32], bytes: u64, now: Duration) {
        run.messages += 1;
        run.recipients += numbers.len() as u64;
        run.bytes += bytes;
        run.last_delivered = Some(now);
        if trace.is_warm_up() {
            run.warm_up_messages += 1;
            run.warm_up_bytes += bytes;
        } else {
            run.last_counted = Some(now);
        }
        mark(run, trace, numbers);
        match self.created(trace, now) {
            Some(_) if trace.is_warm_up() => {}
            Some(created) => {
                run.delivered.record(now - created);
                run.first_created = Some(run.first_created.map_or(created, |first| first.min(created)));
                run.realtime |= trace.clock.is_realtime();
            }
            None => run.untimed += 1,
        }
    }

    /// Time at which the message was created, on this host's monotonic clock; `None` if the trace's clock cannot be
    /// compared with it, or the time lies in the future.
    fn created(&self, trace: &Trace, now: Duration) -> Option<Duration> {
        if trace.clock == self.shared.monotonic {
            return Some(trace.created).filter(|created| *created <= now);
        }
        if !trace.clock.is_realtime() {
            return None;
        }
        let age = clock::wall().checked_sub(trace.created)?;
        now.checked_sub(age)
    }
}
