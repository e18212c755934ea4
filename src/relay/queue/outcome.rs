//! Effects of an answer, and of age: recipients are settled, wait for their next try, or are too old.
use std::sync::Arc;
use std::time::Duration;

use super::entry::{Entry, Index, Link, Marks, NONE, State, Thread};
use super::{Arrival, Assignment, End, MessageId, Queue, Recipients, millis};
use crate::relay::envelope::{Confirmation, Fact, Fate, Refusal};

/// Outcome of an assignment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All of it was accepted, and no notice is due.
    Delivered,
    /// The same answer for all.
    All(Answer),
    /// An answer for each recipient, in the order of the assignment. A missing one was not answered.
    Each(Vec<Answer>),
    /// The session was lost after the dot: perhaps delivered, so tried again (RFC 5321 §4.5.4.1: better twice than
    /// never).
    Unknown,
    /// The session was lost before the dot, or the courier had to go: as if it had not been taken.
    Unsent,
    /// The delivery task panicked: perhaps delivered, so tried again.
    Panicked(Refusal),
}

/// Outcome for one recipient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Delivered,
    /// Delivered, and the sender asked for a notice.
    Confirmed(Confirmation),
    /// A 5xx.
    Failed(Refusal),
    /// A 4xx, or no answer.
    Deferred(Refusal),
}

/// Duties of the driver to the spool and the sender, in this order: `facts` by `Spool::note`; the notice stored in the
/// spool, and then `Queue::told`; `done` by `Spool::done`.
#[must_use = "what is not written down is done again after a restart"]
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Effects {
    pub(crate) id: MessageId,
    pub(crate) facts: Vec<Fact>,
    pub(crate) notice: Option<Notice>,
    /// Nothing is left to do for the message.
    pub(crate) done: bool,
}

/// An event that the sender may have to be notified of; the caller decides whether it wants a notice, and can have one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// These are settled. The ticket goes to `Queue::told` when the notice is stored, or none is due.
    Settled { ticket: Ticket, fates: Vec<(u16, Fate)> },
    /// These are late; nothing waits for the notice.
    Late { recipients: Vec<u16>, refusal: Option<Arc<Refusal>>, expires_unix_s: u64 },
}

/// A message that is not done before its notice is stored.
#[must_use = "a ticket that does not come back keeps its message in the spool"]
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    at: Index,
    pub(crate) id: MessageId,
}

/// Times in succession that couriers may give a message back before it counts as tried: one that ends every session
/// must not stay at the head of its line for ever.
const GIVEN_BACK: u8 = 3;

impl<L: Clone> Queue<L> {
    /// Takes an assignment back.
    pub(crate) fn outcome(&mut self, assignment: Assignment<L>, outcome: Outcome, now: Duration) -> Effects {
        let Assignment { at, hop, letter, .. } = assignment;
        let now_ms = millis(now);
        let effects = match outcome {
            Outcome::Unsent => self.given_back(at, letter, now_ms),
            Outcome::Delivered => {
                self.heard_from(at);
                self.settle_alike(at, Fate::Delivered)
            }
            Outcome::All(answer) => {
                self.heard_from(at);
                let answers = vec![answer; self.entries[at].recipients.len()];
                self.answered(at, answers, now_ms)
            }
            Outcome::Each(answers) => {
                self.heard_from(at);
                self.answered(at, answers, now_ms)
            }
            Outcome::Unknown => self.answered(at, Vec::new(), now_ms),
            Outcome::Panicked(refusal) => {
                let answers = vec![Answer::Deferred(refusal); self.entries[at].recipients.len()];
                self.answered(at, answers, now_ms)
            }
        };
        self.heed(hop);
        effects
    }

    /// The hop has answered: it can be reached.
    fn heard_from(&mut self, at: Index) {
        self.entries[at].given_back = 0;
        let hop = self.entries[at].hop;
        let hop = self.hop(hop);
        (hop.failures, hop.fruitless) = (0, 0);
    }

    fn given_back(&mut self, at: Index, letter: L, now_ms: u64) -> Effects {
        let entry = &mut self.entries[at];
        entry.given_back = entry.given_back.saturating_add(1);
        let is_to_stay = !entry.marks.remove && !entry.marks.hold && entry.expires_ms > now_ms;
        let (id, hop, times) = (entry.id, entry.hop, entry.given_back);
        let fruitless = &mut self.hop(hop).fruitless;
        *fruitless = fruitless.saturating_add(1);
        if times >= GIVEN_BACK || !is_to_stay {
            self.entries[at].given_back = 0;
            let why = Refusal::new(0, None, "sessions end before the message is sent", "");
            let answers = vec![Answer::Deferred(why); self.entries[at].recipients.len()];
            return self.answered(at, answers, now_ms);
        }
        self.leave(at);
        self.entries[at].letter = Some(letter);
        self.make_ready(at, End::Front);
        Effects { id, facts: Vec::new(), notice: None, done: false }
    }

    /// Settles the recipients that have a final answer, and lets the others wait.
    fn answered(&mut self, at: Index, answers: Vec<Answer>, now_ms: u64) -> Effects {
        if self.entries[at].marks.remove {
            return self.settle_alike(at, Fate::Removed);
        }
        let numbers = self.entries[at].recipients.to_vec();
        let silence = || Answer::Deferred(Refusal::new(0, None, "the session ended without an answer", ""));
        let answers = answers.into_iter().chain(std::iter::repeat_with(silence));
        let (mut fates, mut waiting, mut last) = (Vec::new(), Vec::new(), None);
        for (number, answer) in numbers.into_iter().zip(answers) {
            match answer {
                Answer::Delivered => fates.push((number, Fate::Delivered)),
                Answer::Confirmed(how) => fates.push((number, Fate::Confirmed(how))),
                Answer::Failed(refusal) => fates.push((number, Fate::Failed(refusal))),
                Answer::Deferred(refusal) => {
                    waiting.push(number);
                    last = Some(refusal);
                }
            }
        }
        match last {
            None => self.settle(at, fates),
            Some(refusal) if self.entries[at].expires_ms <= now_ms => {
                fates.extend(waiting.into_iter().map(|number| (number, Fate::Expired(Some(refusal.clone())))));
                self.settle(at, fates)
            }
            Some(refusal) => self.wait_for(at, fates, &waiting, refusal, now_ms),
        }
    }

    /// The recipients that were put off come back without the others.
    fn wait_for(
        &mut self,
        at: Index,
        fates: Vec<(u16, Fate)>,
        waiting: &[u16],
        refusal: Refusal,
        now_ms: u64,
    ) -> Effects {
        self.leave(at);
        self.drop_letter(at);
        let (id, hop) = (self.entries[at].id, self.entries[at].hop);
        let shared = self.hop(hop).shared(refusal.clone());
        let entry = &mut self.entries[at];
        entry.recipients = Recipients::new(waiting);
        entry.refusal = Some(shared);
        entry.attempts = entry.attempts.saturating_add(1);
        let (attempts, is_held) = (entry.attempts, std::mem::take(&mut entry.marks.hold));
        // Entries of one message that fail together are retried at different times, like all others.
        let subject = id.0 ^ u64::from(hop.0).rotate_left(32);
        let wait = self.options.schedule.backoff.wait(self.options.seed, subject, attempts);
        let due_ms = now_ms.saturating_add(millis(wait));
        if is_held {
            self.enter(at, State::Held);
        } else {
            self.defer(at, due_ms);
        }
        let mut facts = facts_of(&fates);
        let next_unix_s = self.unix_s(due_ms);
        facts.push(Fact::Deferred { recipients: waiting.to_vec(), attempts, next_unix_s, refusal });
        let fates = told_of(fates);
        let notice = (!fates.is_empty()).then(|| {
            let part = self.part(at, &fates);
            Notice::Settled { ticket: Ticket { at: part, id }, fates }
        });
        Effects { id, facts, notice, done: false }
    }

    /// A part of an entry that is settled while the rest of it waits.
    fn part(&mut self, at: Index, fates: &[(u16, Fate)]) -> Index {
        let whole = &self.entries[at];
        let part = Entry {
            links: [Link { before: NONE, after: NONE }; 4],
            slots: [0; 2],
            hop: whole.hop,
            id: whole.id,
            recipients: numbers_of(fates),
            letter: None,
            letter_bytes: whole.letter_bytes,
            attempts: whole.attempts,
            refusal: None,
            received_unix_s: whole.received_unix_s,
            due_ms: 0,
            alarm_ms: 0,
            expires_ms: whole.expires_ms,
            state: State::Telling,
            marks: Marks { late_told: true, ..Marks::default() },
            given_back: 0,
        };
        let part = self.entries.insert(part);
        self.join(part);
        self.enter(part, State::Telling);
        part
    }

    /// Gives the whole entry one fate, without a notice.
    pub(super) fn settle_alike(&mut self, at: Index, fate: Fate) -> Effects {
        let id = self.entries[at].id;
        let is_last = self.messages.get(&id) == Some(&at) && self.entries.after(at, Thread::Message) == NONE;
        // A finished message needs no facts: the usual message costs no allocation here.
        let facts = if is_last {
            Vec::new()
        } else {
            vec![Fact::Settled { recipients: self.entries[at].recipients.to_vec(), fate }]
        };
        let done = self.forget(at);
        Effects { id, facts, notice: None, done }
    }

    /// Everyone of the entry is settled.
    fn settle(&mut self, at: Index, fates: Vec<(u16, Fate)>) -> Effects {
        let id = self.entries[at].id;
        let facts = facts_of(&fates);
        let fates = told_of(fates);
        if fates.is_empty() {
            let done = self.forget(at);
            return Effects { id, facts: if done { Vec::new() } else { facts }, notice: None, done };
        }
        self.leave(at);
        self.drop_letter(at);
        self.clear_alarm(at);
        self.entries[at].recipients = numbers_of(&fates);
        self.enter(at, State::Telling);
        Effects { id, facts, notice: Some(Notice::Settled { ticket: Ticket { at, id }, fates }), done: false }
    }

    /// The notice is in the spool, or none is due.
    pub(crate) fn told(&mut self, ticket: Ticket) -> Effects {
        let Ticket { at, id } = ticket;
        let recipients = self.entries[at].recipients.to_vec();
        let done = self.forget(at);
        let facts = if done { Vec::new() } else { vec![Fact::Told { recipients }] };
        Effects { id, facts, notice: None, done }
    }

    /// Not even the envelope can be read, so there is no address to notify. Failed recipients are held, and do not
    /// expire: an operator retries or removes them. Nothing is left to do for delivered ones.
    pub(crate) fn cannot_tell(&mut self, ticket: Ticket, fates: &[(u16, Fate)]) -> Effects {
        let numbers = |has_failed: bool| -> Vec<u16> {
            fates.iter().filter(|(_, fate)| fate.is_failure() == has_failed).map(|(number, _)| *number).collect()
        };
        let (failed, delivered) = (numbers(true), numbers(false));
        if failed.is_empty() {
            return self.told(ticket);
        }
        let Ticket { at, id } = ticket;
        self.leave(at);
        self.entries[at].recipients = Recipients::new(&failed);
        self.enter(at, State::Held);
        let facts = if delivered.is_empty() { Vec::new() } else { vec![Fact::Told { recipients: delivered }] };
        Effects { id, facts, notice: None, done: false }
    }

    /// After a restart: takes in recipients that were settled before, but whose notice may not have been stored
    /// (`envelope::Standing::is_owed`). The arrival's hop is the one that they were for, or any.
    pub(crate) fn owe(&mut self, arrival: Arrival<L>, fates: Vec<(u16, Fate)>) -> Notice {
        let (id, hop) = (arrival.id, arrival.hop);
        if self.hops.len() <= hop.0 as usize {
            self.hops.resize_with(hop.0 as usize + 1, super::Hop::new);
        }
        let at = self.admit(Arrival { recipients: numbers_of(&fates), letter: None, ..arrival }, true);
        self.clear_alarm(at);
        self.enter(at, State::Telling);
        Notice::Settled { ticket: Ticket { at, id }, fates }
    }

    /// The entry's alarm: it is late, too old, or neither.
    pub(super) fn alarm(&mut self, at: Index, now_ms: u64) -> Option<Effects> {
        let entry = &self.entries[at];
        let (alarm_ms, expires_ms, is_late) = (entry.alarm_ms, entry.expires_ms, !entry.marks.late_told);
        if alarm_ms > now_ms {
            self.set_alarm(at, alarm_ms);
            return None;
        }
        if expires_ms <= now_ms {
            // A courier may just be delivering it; `outcome` looks again.
            return if entry.state == State::InFlight { None } else { Some(self.expire(at)) };
        }
        self.entries[at].marks.late_told = true;
        self.set_alarm(at, expires_ms);
        (is_late && !self.entries[at].marks.remove).then(|| self.late(at))
    }

    fn late(&self, at: Index) -> Effects {
        let entry = &self.entries[at];
        let recipients = entry.recipients.to_vec();
        let facts = vec![Fact::DelayTold { recipients: recipients.clone() }];
        let expires_unix_s = self.unix_s(entry.expires_ms);
        let notice = Notice::Late { recipients, refusal: self.reason(at), expires_unix_s };
        Effects { id: entry.id, facts, notice: Some(notice), done: false }
    }

    fn expire(&mut self, at: Index) -> Effects {
        let fate = Fate::Expired(self.reason(at).map(|refusal| (*refusal).clone()));
        let fates = self.entries[at].recipients.iter().map(|number| (number, fate.clone())).collect();
        self.settle(at, fates)
    }

    /// Reason why it has not been delivered: its own last refusal, or the failure to reach its hop.
    fn reason(&self, at: Index) -> Option<Arc<Refusal>> {
        let entry = &self.entries[at];
        let hop = &self.hops[entry.hop.0 as usize];
        let of_hop = hop.refusal.as_ref().filter(|_| hop.failures > 0);
        of_hop.or(entry.refusal.as_ref()).cloned()
    }
}

fn numbers_of(fates: &[(u16, Fate)]) -> Recipients {
    let numbers: Vec<u16> = fates.iter().map(|(number, _)| *number).collect();
    Recipients::new(&numbers)
}

fn told_of(mut fates: Vec<(u16, Fate)>) -> Vec<(u16, Fate)> {
    fates.retain(|(_, fate)| fate.is_told());
    fates
}

/// One fact for all that met the same fate.
fn facts_of(fates: &[(u16, Fate)]) -> Vec<Fact> {
    let mut groups: Vec<(&Fate, Vec<u16>)> = Vec::new();
    for (number, fate) in fates {
        match groups.iter_mut().find(|(group, _)| *group == fate) {
            Some((_, numbers)) => numbers.push(*number),
            None => groups.push((fate, vec![*number])),
        }
    }
    groups.into_iter().map(|(fate, recipients)| Fact::Settled { recipients, fate: fate.clone() }).collect()
}
