//! A session's own side of the conversation: its messages, the meaning of each reply for them, and the times.
use super::Setting;
use super::chance::Purpose;
use super::envelopes::{Drafts, Occasion};
use super::mail::Pick;
use super::worker::{Claim, Recorder, Ticket};
use crate::party::DEFECT;
use crate::planned_panic::planned_panic;
use crate::reason::reason;
use journey::record::Pipelining;
use journey::trace::WARM_UP;
use journey::{Phase, Timed};
use net::{Alarm, Caller, Ended, Handshake, Next, Outbox, clock};
use smtp::Extensions;
use smtp::client::{Client, Event, GaveUp, Outcome, Verb, Violation};
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// A message under way.
#[derive(Debug)]
pub(super) struct Job {
    /// The claim: the message's number, its recipients, whether it counts.
    claim: Claim,
    /// The message's content.
    pick: Pick,
    /// The ledger's number of its recipient, if it has one recipient by a pattern.
    only_number: u32,
    /// Time at which it was created, or at open loop scheduled: latency counts from here.
    since: Duration,
    /// Time at which its last byte was handed over.
    sent: Option<Duration>,
    /// Set once the peer has answered any of its commands.
    touched: bool,
    /// Accepted ones of the first 64 recipients, a bit for each place.
    taken: u64,
    /// Accepted ones of the other recipients.
    taken_beyond: Vec<u64>,
    /// Recipients that the peer refused.
    refused: u32,
}

/// Reason why a message is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GivenUp {
    /// The server refused the session or a command of the message with 4xx or 5xx.
    Rejected,
    /// The connection could not be established, broke, or took too long.
    Failed,
}

impl Job {
    fn new(claim: Claim, setting: &Setting) -> Self {
        Self {
            claim,
            pick: setting.mail.pick(claim.number),
            only_number: 0,
            since: claim.since,
            sent: None,
            touched: false,
            taken: 0,
            taken_beyond: Vec::new(),
            refused: 0,
        }
    }

    /// Its number in trace and ledger.
    fn sequence(&self) -> u64 {
        if self.claim.is_warm_up { self.claim.number | WARM_UP } else { self.claim.number }
    }

    fn take(&mut self, place: usize) {
        let bit = 1 << (place % 64);
        let Some(beyond) = (place / 64).checked_sub(1) else {
            self.taken |= bit;
            return;
        };
        if self.taken_beyond.len() <= beyond {
            self.taken_beyond.resize(beyond + 1, 0);
        }
        self.taken_beyond[beyond] |= bit;
    }

    /// LMTP: the peer accepted the recipient, and then refused the message for it.
    fn drop_taken(&mut self, place: usize) {
        let bit = 1 << (place % 64);
        match (place / 64).checked_sub(1) {
            None => self.taken &= !bit,
            Some(beyond) => self.taken_beyond.iter_mut().skip(beyond).take(1).for_each(|word| *word &= !bit),
        }
    }

    fn has_taken(&self, place: usize) -> bool {
        let word = match (place / 64).checked_sub(1) {
            None => self.taken,
            Some(beyond) => self.taken_beyond.get(beyond).copied().unwrap_or(0),
        };
        word & (1 << (place % 64)) != 0
    }
}

/// State of a session during a connection, which it carries to the next one.
pub(super) struct Sender {
    setting: Arc<Setting>,
    recorder: Rc<Recorder>,
    ticket: Ticket,
    /// Messages under way, the oldest first: the next replies belong to it. At most two, and two only where the next
    /// message's commands travel with a message.
    jobs: VecDeque<Job>,
    /// Number of messages begun on this connection.
    begun: u64,
    /// Time at which the last commands had been handed over.
    asked: Duration,
    /// Time of the 354 reply.
    go_ahead: Duration,
    /// Set if the message is among the data being written.
    writing_message: bool,
    /// Time at which the connection was established.
    connected: Duration,
    /// Time at which AUTH was sent, until it is over.
    login_began: Option<Duration>,
    /// Set if the peer has refused the session: 421, or a refusal of the connection or of EHLO. It is counted already.
    has_farewell: bool,
    /// Number of messages for this connection; `None` for no limit.
    most_here: Option<u64>,
    drafts: Drafts,
    rest: Rest,
}

/// The pause that a session makes between messages.
#[derive(Debug, Default)]
struct Rest {
    until: Option<Duration>,
    alarm: Alarm,
    is_announced: bool,
}

impl Sender {
    pub(super) fn new(setting: Arc<Setting>, recorder: Rc<Recorder>) -> Self {
        Self {
            setting,
            recorder,
            ticket: Ticket::default(),
            jobs: VecDeque::with_capacity(2),
            begun: 0,
            asked: Duration::ZERO,
            go_ahead: Duration::ZERO,
            writing_message: false,
            connected: Duration::ZERO,
            login_began: None,
            has_farewell: false,
            most_here: None,
            drafts: Drafts::default(),
            rest: Rest::default(),
        }
    }

    /// Reports whether a message waits for a connection.
    pub(super) fn has_job(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// Takes up a message before there is a connection for it; false if there are no more.
    pub(super) fn poll_take_up(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        let now = clock::now();
        ready!(self.poll_rested(cx, now));
        let claim = ready!(self.recorder.poll_claim(cx, &self.ticket, now));
        self.jobs.extend(claim.map(|claim| Job::new(claim, &self.setting)));
        Poll::Ready(claim.is_some())
    }

    /// Completes when the pause after the last message is over, or the run is.
    fn poll_rested(&mut self, cx: &mut Context<'_>, now: Duration) -> Poll<()> {
        let Some(until) = self.rest.until else { return Poll::Ready(()) };
        if !self.setting.plan.is_over(now) {
            if !std::mem::replace(&mut self.rest.is_announced, true) {
                self.recorder.will_rest(cx);
            }
            ready!(self.rest.alarm.poll_due(Some(until), now));
        }
        self.rest.until = None;
        Poll::Ready(())
    }

    /// Begins the pause after a finished message, if there is one.
    fn begin_rest(&mut self, number: u64, now: Duration) {
        let options = &self.setting.options;
        if let Some(think) = &options.think {
            self.rest.until = Some(now + Duration::from_nanos(think.of(options.seed, Purpose::Think, number)));
        }
    }

    /// Records that a connection was established.
    pub(super) fn connected(&mut self, began: Duration, now: Duration) {
        self.connected = now;
        self.asked = now;
        self.begun = 0;
        self.has_farewell = false;
        let options = &self.setting.options;
        let first = self.jobs.front().map_or(0, |job| job.claim.number);
        self.most_here = options.reuse.as_ref().map(|reuse| reuse.of(options.seed, Purpose::Reuse, first));
        self.recorder.tally(|tally| {
            tally.connections += 1;
            if now >= self.setting.warm_until {
                tally.time(Timed::Phase(Phase::Connect), now - began);
            }
        });
    }

    /// Gives up the message that waited for a connection, because none could be established.
    pub(super) fn not_connected(&mut self, why: &str) {
        self.recorder.tally(|tally| tally.errors.add(Phase::Connect, 0, why));
        self.give_up(GivenUp::Failed);
    }

    /// Handles the end of the connection: gives up the messages under way, except one of which the peer has received
    /// the commands at most; that one goes to the next connection.
    pub(super) fn ended(&mut self, ended: &Ended) {
        let (verb, what) = match ended {
            Ended::Closed => (None, "the peer closed the session".to_owned()),
            Ended::GaveUp(why) => (Some(gave_up_at(*why)), why.to_string()),
            Ended::Lost(verb, error) if error.kind() == ErrorKind::UnexpectedEof => {
                (*verb, "connection closed".to_owned())
            }
            // In TLS 1.3 the client finishes before the server has seen its certificate, so a refusal comes later.
            Ended::Lost(_, error) if error.kind() == ErrorKind::InvalidData => (Some(Verb::StartTls), reason(error)),
            Ended::Lost(verb, error) => (*verb, format!("connection lost: {}", reason(error))),
            Ended::Timeout(verb) => (*verb, format!("no reply within {:?}", self.setting.options.timeout)),
            Ended::Violated(_, injected @ Violation::Injected(_)) => (Some(Verb::StartTls), injected.to_string()),
            Ended::Violated(verb, violation) => (*verb, violation.to_string()),
            Ended::NotEncrypted(error) => (Some(Verb::StartTls), reason(error)),
        };
        self.writing_message = false;
        let is_unheard = self.jobs.back().is_some_and(|job| !job.touched && job.sent.is_none() && self.begun > 1);
        let kept = if is_unheard { self.jobs.pop_back() } else { None };
        let is_counted = self.has_farewell || matches!(ended, Ended::GaveUp(why) if was_refused(*why));
        let is_of_setup = matches!(verb, Some(Verb::Greeting | Verb::Hello | Verb::StartTls));
        if !is_counted && (!self.jobs.is_empty() || is_of_setup) {
            let phase = phase_of(verb.unwrap_or(Verb::Message));
            self.recorder.tally(|tally| tally.errors.add(phase, 0, &what));
        }
        self.give_up(if is_counted { GivenUp::Rejected } else { GivenUp::Failed });
        self.jobs.extend(kept);
    }

    /// Gives up every message under way; the reason has been counted.
    fn give_up(&mut self, why: GivenUp) {
        let Some(last) = self.jobs.back().map(|job| job.claim.number) else { return };
        let now = clock::now();
        self.recorder.tally(|tally| {
            tally.last_ended = Some(now);
            for job in self.jobs.drain(..) {
                let warm_up = u64::from(job.claim.is_warm_up);
                let all = u64::from(job.claim.recipients);
                // Recipients that the server has refused stay refused, whatever happens to the connection.
                let refused = if why == GivenUp::Rejected { all } else { u64::from(job.refused).min(all) };
                tally.recipients_rejected += refused;
                tally.recipients_failed += all - refused;
                if refused == all {
                    tally.rejected += 1;
                    tally.warm_up.rejected += warm_up;
                } else {
                    tally.failed += 1;
                    tally.warm_up.failed += warm_up;
                }
            }
        });
        if self.setting.options.think.is_some() {
            self.begin_rest(last, now);
        }
    }

    /// Ends the oldest message's transaction.
    fn conclude(&mut self, outcome: Outcome, now: Duration) {
        let Some(job) = self.jobs.pop_front() else { return };
        self.begin_rest(job.claim.number, now);
        let envelopes = &self.setting.envelopes;
        let all = job.claim.recipients as usize;
        let bytes = job.pick.bytes;
        self.recorder.tally(|tally| {
            tally.last_ended = Some(now);
            if outcome == Outcome::Refused {
                tally.rejected += 1;
                tally.warm_up.rejected += u64::from(job.claim.is_warm_up);
                tally.recipients_rejected += all as u64;
                return;
            }
            let sequence = job.sequence();
            let mut taken = 0;
            for place in (0..all).filter(|place| job.has_taken(*place)) {
                taken += 1;
                if tally.accepted_units.mark(sequence, envelopes.number(place, job.only_number)) == journey::Mark::Full
                {
                    tally.overflow += 1;
                }
            }
            tally.accepted += 1;
            tally.first_reply.get_or_insert(now);
            tally.last_reply = Some(now);
            tally.recipients_accepted += taken;
            tally.recipients_rejected += all as u64 - taken;
            tally.bytes_accepted += bytes;
            if job.claim.is_warm_up {
                tally.warm_up.accepted += 1;
                tally.warm_up.bytes_accepted += bytes;
                return;
            }
            tally.time(Timed::Accepted, now.saturating_sub(job.since));
            tally.last_accepted = tally.last_accepted.max(Some(now));
        });
    }

    /// Counts the time of a phase, and an error reply.
    fn note(&mut self, event: &Event<'_>, now: Duration) {
        let phase = phase_of(event.to);
        let since = match event.to {
            Verb::Greeting => self.connected,
            Verb::Message => self.jobs.front().and_then(|job| job.sent).unwrap_or(self.asked),
            Verb::Auth => *self.login_began.get_or_insert(self.asked),
            _ => self.asked,
        };
        // A login is one exchange of several replies; the cost of STARTTLS is the handshake.
        let is_whole = event.reply.code() != 334 && event.to != Verb::StartTls;
        if is_whole && event.to == Verb::Auth {
            self.login_began = None;
        }
        self.recorder.tally(|tally| {
            if is_whole && now >= self.setting.warm_until {
                tally.time(Timed::Phase(phase), now.saturating_sub(since));
            }
            if !event.reply.is_positive() {
                tally.errors.add(phase, event.reply.code(), &event.reply.text());
            }
        });
        match event.to {
            _ if event.reply.code() == 421 => self.has_farewell = true,
            Verb::Greeting if !event.reply.is_positive() => self.has_farewell = true,
            // A refused EHLO may be followed by an accepted HELO.
            Verb::Hello => self.has_farewell = !event.reply.is_positive(),
            _ => {}
        }
    }
}

impl Drop for Sender {
    /// Records a panic of the session among the errors, and gives up its messages under way.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let was_sent = self.jobs.front().is_some_and(|job| job.sent.is_some());
        let phase = if was_sent { Phase::Reply } else { Phase::Mail };
        self.recorder.tally(|tally| tally.errors.add(phase, 0, DEFECT));
        self.give_up(GivenUp::Failed);
    }
}

impl Sender {
    /// The envelope of the newest message.
    fn transaction(&mut self, extensions: &Extensions) -> Next {
        let Some(job) = self.jobs.back_mut() else { return Next::Quit };
        let Claim { number, recipients, .. } = job.claim;
        let occasion = Occasion { number, recipients, pick: job.pick, extensions };
        let addressed = self.setting.envelopes.address(occasion, &mut self.drafts);
        job.only_number = addressed.only_number;
        Next::Transaction(addressed.envelope)
    }
}

impl Caller for Sender {
    fn encrypted(&mut self, handshake: &Handshake) {
        // The wait for the greeting, or for the reply to the next EHLO, begins here.
        let now = clock::now();
        self.asked = now;
        self.connected = now;
        self.recorder.tally(|tally| {
            tally.time(Timed::Phase(Phase::Tls), handshake.took);
            tally.handshakes.add(&handshake.version, &handshake.cipher, handshake.resumed);
        });
    }

    fn poll_next(&mut self, cx: &mut Context<'_>, client: &Client, early: bool, now: Duration) -> Poll<Next> {
        let is_new = self.jobs.len() == usize::from(early);
        let options = &self.setting.options;
        let is_full = self.most_here.is_some_and(|most| self.begun >= most);
        if is_full || (early && (options.pipelining != Pipelining::Stream || options.think.is_some())) {
            return Poll::Ready(Next::Quit);
        }
        if is_new {
            ready!(self.poll_rested(cx, now));
            match ready!(self.recorder.poll_claim(cx, &self.ticket, now)) {
                Some(claim) => self.jobs.push_back(Job::new(claim, &self.setting)),
                None => return Poll::Ready(Next::Quit),
            }
        }
        self.begun += 1;
        Poll::Ready(self.transaction(client.extensions()))
    }

    fn render(&mut self, outbox: &mut Outbox) {
        planned_panic("source");
        if let Some(job) = self.jobs.front() {
            self.setting.mail.render(job.pick, job.sequence(), job.since, outbox);
            self.writing_message = true;
        }
    }

    fn message_bytes(&self) -> u64 {
        self.jobs.front().map_or(0, |job| job.pick.bytes)
    }

    fn render_chunk(&mut self, outbox: &mut Outbox) {
        if let Some(job) = self.jobs.front() {
            self.setting.mail.render_plain(job.pick, job.sequence(), job.since, outbox);
            self.writing_message = true;
        }
    }

    fn written(&mut self, now: Duration) {
        self.asked = now;
        if !std::mem::take(&mut self.writing_message) {
            return;
        }
        let Some(job) = self.jobs.front_mut() else { return };
        job.sent = Some(now);
        let since = job.since;
        let go_ahead = self.go_ahead;
        let bytes = job.pick.bytes;
        let is_warm_up = job.claim.is_warm_up;
        self.recorder.tally(|tally| {
            tally.sent += 1;
            tally.bytes_sent += bytes;
            if is_warm_up {
                tally.warm_up.sent += 1;
                tally.warm_up.bytes_sent += bytes;
                return;
            }
            tally.time(Timed::Sent, now.saturating_sub(since));
            tally.time(Timed::Phase(Phase::Body), now.saturating_sub(go_ahead));
            tally.last_sent = tally.last_sent.max(Some(now));
        });
    }

    fn replied(&mut self, event: &Event<'_>, now: Duration) {
        self.note(event, now);
        if let Some(job) = self.jobs.front_mut() {
            job.touched |= !matches!(event.to, Verb::Greeting | Verb::Hello | Verb::Reset | Verb::Quit);
            match event.to {
                Verb::Recipient(place) if event.reply.is_positive() => job.take(place as usize),
                Verb::Recipient(_) => job.refused += 1,
                Verb::Delivery(place) if !event.reply.is_positive() => {
                    job.drop_taken(place as usize);
                    job.refused += 1;
                }
                Verb::Data if event.reply.code() == 354 => self.go_ahead = now,
                _ => {}
            }
        }
        if let Some(outcome) = event.ends {
            self.conclude(outcome, now);
        }
    }
}

/// The phase that a reply ends.
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

/// The command that the session could not do with.
fn gave_up_at(why: GaveUp) -> Verb {
    match why {
        GaveUp::NoTls | GaveUp::TlsRefused => Verb::StartTls,
        GaveUp::NoMechanism | GaveUp::NotAuthenticated | GaveUp::Exchange(_) => Verb::Auth,
        GaveUp::NoXclient | GaveUp::XclientRefused => Verb::Xclient,
        GaveUp::NoDsn => Verb::Hello,
    }
}

/// Reports whether the peer's own reply was the reason: that has been counted.
fn was_refused(why: GaveUp) -> bool {
    matches!(why, GaveUp::TlsRefused | GaveUp::NotAuthenticated | GaveUp::XclientRefused)
}
