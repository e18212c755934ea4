//! A session's own side of the conversation: which message is where, what each reply means for it, and the times.
use super::Setting;
use super::worker::{Claim, Recorder, Ticket};
use journey::record::Pipelining;
use journey::{Phase, Timed};
use net::{Caller, Ended, Next, Outbox, clock};
use smtp::Envelope;
use smtp::client::{Client, Event, Outcome, Verb};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// A message on its way.
#[derive(Debug)]
pub(super) struct Job {
    sequence: u64,
    /// When it was created, or at open loop when it was scheduled: latency counts from here.
    since: Duration,
    /// When its last byte was handed over.
    sent: Option<Duration>,
    /// Whether the peer has answered any of its commands.
    touched: bool,
    /// Which of the first 64 recipients the peer took, by their place.
    taken: u64,
    /// Which of the others.
    taken_beyond: Vec<u64>,
}

impl Job {
    fn new(claim: &Claim) -> Self {
        Self {
            sequence: claim.sequence,
            since: claim.since,
            sent: None,
            touched: false,
            taken: 0,
            taken_beyond: Vec::new(),
        }
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

    fn has_taken(&self, place: usize) -> bool {
        let word = match (place / 64).checked_sub(1) {
            None => self.taken,
            Some(beyond) => self.taken_beyond.get(beyond).copied().unwrap_or(0),
        };
        word & (1 << (place % 64)) != 0
    }
}

/// What a session knows while a connection lasts, and carries to the next one.
pub(super) struct Sender {
    setting: Arc<Setting>,
    recorder: Rc<Recorder>,
    ticket: Ticket,
    /// The oldest first: the one whose replies come next. At most two, and two only where the next message's
    /// commands travel with a message.
    jobs: VecDeque<Job>,
    /// Messages begun on this connection.
    begun: u64,
    /// When what was last written had been handed over.
    asked: Duration,
    /// When the 354 came.
    go_ahead: Duration,
    /// The message is in what is being written.
    writing_message: bool,
    /// When the connection stood.
    connected: Duration,
    /// The peer has said why it closes: 421, or a greeting that refuses. It is counted already.
    has_farewell: bool,
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
            has_farewell: false,
        }
    }

    /// Whether a message waits for a connection.
    pub(super) fn has_job(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// Takes a message up before there is a connection for it; false when there is no more to do.
    pub(super) fn poll_take_up(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        let claim = ready!(self.recorder.poll_claim(cx, &self.ticket, clock::now()));
        self.jobs.extend(claim.as_ref().map(Job::new));
        Poll::Ready(claim.is_some())
    }

    /// A connection stands.
    pub(super) fn connected(&mut self, began: Duration, now: Duration) {
        (self.connected, self.asked, self.begun, self.has_farewell) = (now, now, 0, false);
        self.recorder.tally(|tally| {
            tally.connections += 1;
            tally.time(Timed::Phase(Phase::Connect), now - began);
        });
    }

    /// No connection could be made: the message that waited for it is given up.
    pub(super) fn not_connected(&mut self, why: &str) {
        self.recorder.tally(|tally| tally.errors.add(Phase::Connect, 0, why));
        self.give_up();
    }

    /// The connection is over: what was under way on it is given up, but for a message of which the peer has not
    /// heard more than the commands; that one goes to the next connection.
    pub(super) fn ended(&mut self, ended: &Ended) {
        let (verb, what) = match ended {
            Ended::Closed => (None, "the peer closed the session".to_owned()),
            Ended::Lost(verb, error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                (*verb, "connection closed".to_owned())
            }
            Ended::Lost(verb, error) => (*verb, format!("connection lost: {}", plain(error))),
            Ended::Timeout(verb) => (*verb, format!("no reply within {:?}", self.setting.options.timeout)),
            Ended::Violated(verb, violation) => (*verb, violation.to_string()),
        };
        self.writing_message = false;
        let is_unheard = self.jobs.back().is_some_and(|job| !job.touched && job.sent.is_none() && self.begun > 1);
        let kept = if is_unheard { self.jobs.pop_back() } else { None };
        if !self.has_farewell && (!self.jobs.is_empty() || matches!(verb, Some(Verb::Greeting | Verb::Hello))) {
            let phase = phase_of(verb.unwrap_or(Verb::Message));
            self.recorder.tally(|tally| tally.errors.add(phase, 0, &what));
        }
        self.give_up();
        self.jobs.extend(kept);
    }

    /// Every message under way is given up; why has been counted.
    fn give_up(&mut self) {
        let recipients = self.setting.envelopes.recipients() as u64;
        let jobs = self.jobs.drain(..).count() as u64;
        self.recorder.tally(|tally| {
            tally.rejected += jobs;
            tally.recipients_rejected += jobs * recipients;
        });
    }

    /// The oldest message's transaction is over.
    fn conclude(&mut self, outcome: Outcome, now: Duration) {
        let Some(job) = self.jobs.pop_front() else { return };
        let envelopes = &self.setting.envelopes;
        let all = envelopes.recipients();
        let bytes = self.setting.template.bytes;
        self.recorder.tally(|tally| {
            if outcome == Outcome::Refused {
                tally.rejected += 1;
                tally.recipients_rejected += all as u64;
                return;
            }
            let mut taken = 0;
            for place in (0..all).filter(|place| job.has_taken(*place)) {
                taken += 1;
                if tally.accepted_units.mark(job.sequence, envelopes.number(place)) == journey::Mark::Full {
                    tally.overflow += 1;
                }
            }
            tally.accepted += 1;
            tally.recipients_accepted += taken;
            tally.recipients_rejected += all as u64 - taken;
            tally.bytes_accepted += bytes;
            tally.time(Timed::Accepted, now - job.since);
            tally.last_accepted = tally.last_accepted.max(Some(now));
        });
    }

    /// Counts the time of a phase, and an error reply.
    fn note(&mut self, event: &Event<'_>, now: Duration) {
        let phase = phase_of(event.to);
        let since = match event.to {
            Verb::Greeting => self.connected,
            Verb::Message => self.jobs.front().and_then(|job| job.sent).unwrap_or(self.asked),
            _ => self.asked,
        };
        self.recorder.tally(|tally| {
            tally.time(Timed::Phase(phase), now.saturating_sub(since));
            if !event.reply.is_positive() {
                tally.errors.add(phase, event.reply.code(), &event.reply.text());
            }
        });
        if event.reply.code() == 421 || (event.to == Verb::Greeting && !event.reply.is_positive()) {
            self.has_farewell = true;
        }
    }
}

impl Caller for Sender {
    fn poll_next(&mut self, cx: &mut Context<'_>, client: &Client, early: bool, now: Duration) -> Poll<Next> {
        let is_new = self.jobs.len() == usize::from(early);
        let options = &self.setting.options;
        let is_full = options.reuse.is_some_and(|most| self.begun >= most);
        if is_full || (early && options.pipelining != Pipelining::Stream) {
            return Poll::Ready(Next::Quit);
        }
        if is_new {
            match ready!(self.recorder.poll_claim(cx, &self.ticket, now)) {
                Some(claim) => self.jobs.push_back(Job::new(&claim)),
                None => return Poll::Ready(Next::Quit),
            }
        }
        self.begun += 1;
        let envelope: Arc<Envelope> = Arc::clone(self.setting.envelopes.choose(client.extensions()));
        Poll::Ready(Next::Transaction(envelope))
    }

    fn render(&mut self, outbox: &mut Outbox) {
        if let Some(job) = self.jobs.front() {
            self.setting.template.render(job.sequence, job.since, outbox);
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
        let (since, go_ahead, bytes) = (job.since, self.go_ahead, self.setting.template.bytes);
        self.recorder.tally(|tally| {
            tally.sent += 1;
            tally.bytes_sent += bytes;
            tally.time(Timed::Sent, now - since);
            tally.time(Timed::Phase(Phase::Body), now - go_ahead);
            tally.last_sent = tally.last_sent.max(Some(now));
        });
    }

    fn replied(&mut self, event: &Event<'_>, now: Duration) {
        self.note(event, now);
        if let Some(job) = self.jobs.front_mut() {
            job.touched |= matches!(event.to, Verb::Mail | Verb::Recipient(_) | Verb::Data | Verb::Message);
            match event.to {
                Verb::Recipient(place) if event.reply.is_positive() => job.take(place as usize),
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
        Verb::Hello => Phase::Ehlo,
        Verb::Mail => Phase::Mail,
        Verb::Recipient(_) => Phase::Rcpt,
        Verb::Data => Phase::Data,
        Verb::Message | Verb::Reset => Phase::Reply,
        Verb::Quit => Phase::Quit,
    }
}

/// An error's own words, without the number behind them.
pub(super) fn plain(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}
