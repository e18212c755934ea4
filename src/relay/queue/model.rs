//! The queue against a naive model: random lists of operations, after each of which the counts are checked. At the end
//! everything is delivered, and no message may be missing.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::entry::{NONE, STATES};
use super::*;
use crate::relay::envelope::{Fact, Fate, Progress, encode_note};

/// Small enough that everything happens: hops are full, memory is short, messages are late and expire.
const HOPS: u32 = 4;
const HOP_COURIERS: u32 = 3;
const COURIERS: u32 = 5;
const BUDGET: u64 = 1_000;
const MOST_LETTER: u32 = 400;

#[derive(Clone, Copy, Debug)]
enum Step {
    Put { hop: u32, recipients: u16, second: bool, bytes: u32, held: bool, notice: bool },
    Call,
    Take(u8),
    Answer(u8, u8),
    Close(u8, bool),
    Part(u8),
    Read(u8),
    Pass(u16),
    Order(u8, u8),
    Told(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (0..HOPS, 1..5_u16, any::<bool>(), 1..MOST_LETTER, 0..10_u8, 0..5_u8).prop_map(
            |(hop, recipients, second, bytes, held, notice)| {
                Step::Put { hop, recipients, second, bytes, held: held == 0, notice: notice == 0 }
            }
        ),
        6 => Just(Step::Call),
        4 => any::<u8>().prop_map(Step::Take),
        6 => (any::<u8>(), 0..12_u8).prop_map(|(which, how)| Step::Answer(which, how)),
        1 => (any::<u8>(), any::<bool>()).prop_map(|(which, dead)| Step::Close(which, dead)),
        1 => any::<u8>().prop_map(Step::Part),
        4 => any::<u8>().prop_map(Step::Read),
        2 => (0..3_000_u16).prop_map(Step::Pass),
        1 => (0..4_u8, any::<u8>()).prop_map(|(order, which)| Step::Order(order, which)),
        2 => any::<u8>().prop_map(Step::Told),
    ]
}

/// A recipient, as the model sees it.
#[derive(Debug, Default)]
struct Fated {
    hop: u32,
    in_flight: bool,
    not_before: Duration,
    settled: bool,
    /// Was answered 2xx.
    delivered: bool,
    /// A notice about it is being written.
    owed: bool,
}

#[derive(Debug)]
struct Message {
    recipients: Vec<Fated>,
    held: bool,
    removed: bool,
    done: bool,
    progress: Progress,
    expires: Duration,
}

/// A connection, and the messages that it carries.
struct Live {
    courier: Courier,
    waits: bool,
    parts: bool,
    hands: Vec<Assignment<Arc<u64>>>,
}

struct World {
    queue: Queue<Arc<u64>>,
    now: Duration,
    messages: BTreeMap<u64, Message>,
    live: Vec<Live>,
    tickets: Vec<(Ticket, Vec<u16>)>,
    reads: BTreeSet<u64>,
}

fn refusal(code: u16) -> Refusal {
    Refusal::new(code, None, "no", "hop.example")
}

fn options() -> Options {
    let backoff = Backoff { first: Duration::from_millis(800), longest: Duration::from_secs(4) };
    Options {
        schedule: Schedule {
            backoff,
            lifetime: Duration::from_secs(60),
            notice_lifetime: Duration::from_secs(30),
            delay_notice: Some(Duration::from_secs(10)),
        },
        reconnect: Backoff { first: Duration::from_millis(500), longest: Duration::from_secs(2) },
        hop_couriers: HOP_COURIERS,
        couriers: COURIERS,
        letter_bytes: BUDGET,
        seed: 5,
        origin_unix: Duration::from_secs(1_000_000),
    }
}

impl World {
    fn new() -> Self {
        Self {
            queue: Queue::new(options()),
            now: Duration::from_secs(1),
            messages: BTreeMap::new(),
            live: Vec::new(),
            tickets: Vec::new(),
            reads: BTreeSet::new(),
        }
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Put { hop, recipients, second, bytes, held, notice } => {
                self.put(hop, recipients, second, bytes, held, notice);
            }
            Step::Call => self.calls(),
            Step::Take(which) => self.take(which),
            Step::Answer(which, how) => self.answer(which, how),
            Step::Close(which, dead) => self.close(which, dead),
            Step::Part(which) => self.part(which),
            Step::Read(most) => self.read(usize::from(most % 4)),
            Step::Pass(ms) => self.pass(Duration::from_millis(u64::from(ms))),
            Step::Order(order, which) => self.order(order, which),
            Step::Told(which) => self.told(which),
        }
    }

    fn put(&mut self, hop: u32, count: u16, second: bool, bytes: u32, held: bool, notice: bool) {
        let id = self.messages.len() as u64 + 1;
        let received_unix_s = 1_000_000 + self.now.as_secs();
        let lifetime = if notice { 30 } else { 60 };
        // Even recipients to one hop, odd ones to the next, or all to one.
        let hop_of = |number: u16| if second { (hop + u32::from(number % 2)) % HOPS } else { hop };
        let fated = (0..count).map(|number| Fated { hop: hop_of(number), ..Fated::default() }).collect::<Vec<_>>();
        let mut progress = Progress::new(fated.len());
        progress.held = held;
        for hop in (0..HOPS).map(HopKey) {
            let numbers: Vec<u16> = (0..count).filter(|number| hop_of(*number) == hop.0).collect();
            let arrival = Arrival {
                id: MessageId(id),
                hop,
                recipients: Recipients::new(&numbers),
                letter: Some(Arc::new(id)),
                letter_bytes: bytes,
                received_unix_s,
                kind: if notice { Kind::Notice } else { Kind::Mail },
                before: Before { held, ..Before::default() },
            };
            self.queue.put(arrival, self.now);
        }
        let expires = Duration::from_secs(self.now.as_secs() + lifetime);
        self.messages.insert(id, Message { recipients: fated, held, removed: false, done: false, progress, expires });
    }

    fn calls(&mut self) {
        while let Some(call) = self.queue.wants_courier(self.now) {
            match call {
                Call::Open(courier) => {
                    let of_hop = self.live.iter().filter(|live| live.courier.hop == courier.hop).count();
                    assert!(of_hop < HOP_COURIERS as usize, "a hop's limit is kept");
                    assert!(self.live.len() < COURIERS as usize, "the limit of all is kept");
                    self.live.push(Live { courier, waits: false, parts: false, hands: Vec::new() });
                }
                Call::Wake(hop) => {
                    let at = self.waiting(hop);
                    self.live[at].waits = false;
                    self.take_at(at);
                }
                Call::Dismiss(hop) => {
                    let at = self.waiting(hop);
                    self.close_at(at, Closing::Finished);
                }
            }
        }
    }

    fn waiting(&self, hop: HopKey) -> usize {
        let mut all = self.live.iter();
        all.position(|live| live.courier.hop == hop && live.waits).expect("only who waits is called")
    }

    fn take(&mut self, which: u8) {
        if !self.live.is_empty() {
            self.take_at(usize::from(which) % self.live.len());
        }
    }

    fn take_at(&mut self, at: usize) {
        if self.live[at].hands.len() >= 2 || self.live[at].parts {
            return;
        }
        self.live[at].waits = false;
        match self.queue.take(&mut self.live[at].courier, self.now) {
            Taken::Message(assignment) => {
                let message = self.messages.get_mut(&assignment.id.0).unwrap();
                assert!(!message.held && !message.removed && !message.done);
                assert_eq!(*assignment.letter, assignment.id.0, "the message is the one");
                for number in assignment.recipients.iter() {
                    let fated = &mut message.recipients[usize::from(number)];
                    assert!(!fated.settled && !fated.in_flight, "nobody is in two couriers' hands, or delivered again");
                    assert_eq!(fated.hop, assignment.hop.0);
                    assert!(fated.not_before <= self.now, "not before its time");
                    fated.in_flight = true;
                }
                self.live[at].hands.push(assignment);
            }
            Taken::Wait => self.live[at].waits = true,
            Taken::Leave => self.close_at(at, Closing::Finished),
        }
    }

    fn answer(&mut self, which: u8, how: u8) {
        let busy: Vec<usize> = (0..self.live.len()).filter(|at| !self.live[*at].hands.is_empty()).collect();
        if !busy.is_empty() {
            self.answer_at(busy[usize::from(which) % busy.len()], how);
        }
    }

    fn answer_at(&mut self, at: usize, how: u8) {
        let assignment = self.live[at].hands.remove(0);
        let count = assignment.recipients.len();
        let mixed = [
            Answer::Delivered,
            Answer::Deferred(refusal(451)),
            Answer::Failed(refusal(550)),
            Answer::Confirmed(crate::relay::envelope::Confirmation::Relayed),
        ];
        let each = |from: usize| (0..count).map(|at| mixed[(at + from) % 4].clone()).collect::<Vec<_>>();
        let outcome = match how {
            0..=3 => Outcome::Delivered,
            4 => Outcome::All(Answer::Deferred(refusal(450))),
            5 => Outcome::All(Answer::Failed(refusal(554))),
            6 => Outcome::Unknown,
            7 => Outcome::Unsent,
            8 => Outcome::Each(each(1)[..count - 1].to_vec()),
            9 => Outcome::Panicked(refusal(0)),
            _ => Outcome::Each(each(usize::from(how))),
        };
        let answers = match &outcome {
            Outcome::Delivered => vec![Answer::Delivered; count],
            Outcome::All(answer) => vec![answer.clone(); count],
            Outcome::Each(answers) => answers.clone(),
            Outcome::Unknown | Outcome::Unsent | Outcome::Panicked(_) => Vec::new(),
        };
        let (id, attempts) = (assignment.id, assignment.attempts + 1);
        let wait = options().schedule.backoff.wait(5, id.0 ^ u64::from(assignment.hop.0).rotate_left(32), attempts);
        let message = self.messages.get_mut(&id.0).unwrap();
        for (at, number) in assignment.recipients.iter().enumerate() {
            let fated = &mut message.recipients[usize::from(number)];
            fated.in_flight = false;
            match answers.get(at) {
                Some(Answer::Delivered | Answer::Confirmed(_)) => fated.delivered = true,
                Some(Answer::Failed(_)) => {}
                None if outcome == Outcome::Unsent => {}
                Some(Answer::Deferred(_)) | None => {
                    fated.not_before = Duration::from_millis((self.now + wait).as_millis() as u64);
                }
            }
        }
        let effects = self.queue.outcome(assignment, outcome, self.now);
        self.write_down(effects);
    }

    fn close(&mut self, which: u8, dead: bool) {
        if !self.live.is_empty() {
            let closing = if dead { Closing::Unreachable(refusal(421)) } else { Closing::Finished };
            self.close_at(usize::from(which) % self.live.len(), closing);
        }
    }

    fn part(&mut self, which: u8) {
        if !self.live.is_empty() {
            let at = usize::from(which) % self.live.len();
            let live = &mut self.live[at];
            (live.waits, live.parts) = (false, true);
            self.queue.parts(&mut live.courier);
        }
    }

    fn close_at(&mut self, at: usize, closing: Closing) {
        while !self.live[at].hands.is_empty() {
            self.answer_at(at, 7);
        }
        let live = self.live.remove(at);
        self.queue.closed(live.courier, closing, self.now);
    }

    fn read(&mut self, most: usize) {
        let mut ids = Vec::new();
        self.queue.wants_letters(&mut ids);
        assert!(ids.is_sorted(), "in the order of the log");
        self.reads.extend(ids.iter().map(|id| id.0));
        for _ in 0..most {
            let Some(id) = self.reads.pop_first() else { break };
            self.queue.loaded(MessageId(id), &Arc::new(id));
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        let mut all = Vec::new();
        while self.queue.deadline().is_some_and(|deadline| deadline <= self.now) {
            self.queue.tick(self.now, &mut all);
        }
        all.into_iter().for_each(|effects| self.write_down(effects));
        // An entry that is too old is no longer in flight, wherever it was; late by a grain at most.
        let grain = Duration::from_millis(50);
        for (id, message) in self.messages.iter().filter(|(_, message)| message.expires + grain <= self.now) {
            let waits = message.recipients.iter().any(|fated| !fated.settled && !fated.in_flight);
            assert!(!waits || message.removed, "{id} is {message:?} at {:?}", self.now);
        }
    }

    fn order(&mut self, order: u8, which: u8) {
        let order = [Order::Hold, Order::Release, Order::Remove, Order::Retry][usize::from(order)];
        let which = match which {
            0..20 => Which::All,
            20..40 => Which::Hop(HopKey(u32::from(which) % HOPS)),
            _ => Which::Message(MessageId(u64::from(which) % (self.messages.len() as u64 + 1))),
        };
        if order == Order::Remove && which == Which::All {
            return;
        }
        let mut all = Vec::new();
        let changed = self.queue.order(order, which, self.now, |effects| all.push(effects));
        assert_eq!(changed, all.len());
        for effects in all {
            let message = self.messages.get_mut(&effects.id.0).unwrap();
            match order {
                Order::Hold => message.held = true,
                Order::Release => message.held = false,
                Order::Remove => message.removed = true,
                Order::Retry => {}
            }
            if matches!(order, Order::Release | Order::Retry) {
                message.recipients.iter_mut().for_each(|fated| fated.not_before = Duration::ZERO);
            }
            self.write_down(effects);
        }
    }

    fn told(&mut self, which: u8) {
        if !self.tickets.is_empty() {
            let (ticket, recipients) = self.tickets.remove(usize::from(which) % self.tickets.len());
            let message = self.messages.get_mut(&ticket.id.0).unwrap();
            recipients.iter().for_each(|number| message.recipients[usize::from(*number)].owed = false);
            let effects = self.queue.told(ticket);
            self.write_down(effects);
        }
    }

    /// Does what the driver would write into the spool, and updates the model by it.
    fn write_down(&mut self, effects: Effects) {
        let message = self.messages.get_mut(&effects.id.0).unwrap();
        assert!(!message.done, "nothing follows after `done`");
        message.progress.read(&encode_note(&effects.facts).unwrap()).unwrap();
        for fact in &effects.facts {
            if let Fact::Settled { recipients, .. } = fact {
                recipients.iter().for_each(|number| message.recipients[usize::from(*number)].settled = true);
            }
        }
        match effects.notice {
            Some(Notice::Settled { ticket, fates }) => {
                for (number, fate) in &fates {
                    let fated = &mut message.recipients[usize::from(*number)];
                    assert!(fate.is_told() && fated.settled);
                    assert_eq!(matches!(fate, Fate::Confirmed(_)), fated.delivered);
                    fated.owed = true;
                }
                self.tickets.push((ticket, fates.iter().map(|(number, _)| *number).collect()));
            }
            Some(Notice::Late { recipients, .. }) => {
                assert!(recipients.iter().all(|number| !message.recipients[usize::from(*number)].settled));
            }
            None => {}
        }
        if effects.done {
            message.done = true;
            // `done` replaces the facts that it makes superfluous.
            for fated in &mut message.recipients {
                assert!(!fated.in_flight && !fated.owed, "done before its time");
                assert!(fated.settled || fated.delivered || message.removed, "done with somebody left: {fated:?}");
                fated.settled = true;
            }
        } else {
            let stands = message.progress.recipients.iter().zip(&message.recipients);
            for (standing, fated) in stands {
                assert_eq!(standing.fate.is_some(), fated.settled, "the notes tell how far it is");
            }
        }
    }

    /// Compares the counts with the table.
    fn audit(&self) {
        let queue = &self.queue;
        let mut counts = vec![[0_u32; STATES]; HOPS as usize];
        let (mut asked, mut bytes, mut live) = (vec![0; HOPS as usize], vec![0; HOPS as usize], 0);
        for at in (0..queue.entries.places()).filter(|at| queue.entries.is_live(*at)) {
            let entry = &queue.entries[at];
            let hop = entry.hop.0 as usize;
            live += 1;
            counts[hop][entry.state as usize] += 1;
            asked[hop] += u32::from(entry.marks.asked);
            bytes[hop] += if entry.marks.counted { u64::from(entry.letter_bytes) } else { 0 };
            assert!(entry.letter.is_none() || entry.marks.counted, "what is in memory is counted");
            assert!(entry.letter.is_none() || entry.state == State::Ready, "only who is ready keeps a letter");
        }
        assert_eq!(live, queue.entries.len());
        for (key, hop) in queue.hops.iter().enumerate() {
            assert_eq!((hop.counts, hop.asked, hop.letter_bytes), (counts[key], asked[key], bytes[key]), "hop {key}");
            let mine = || self.live.iter().filter(|live| live.courier.hop.0 as usize == key);
            assert_eq!(hop.couriers as usize, mine().count());
            assert_eq!(hop.parting as usize, mine().filter(|live| live.parts).count());
            assert_eq!(hop.resting() as usize, mine().filter(|live| live.waits).count());
            let mut at = hop.ready.first;
            let mut ready = 0;
            while at != NONE {
                ready += 1;
                at = queue.entries.after(at, Thread::State);
            }
            assert_eq!(ready, hop.count(State::Ready));
        }
        assert_eq!(queue.letters.used_bytes, bytes.iter().sum::<u64>());
        // One letter per hop may be read beyond the budget, and another be in flight meanwhile for each courier.
        let most = BUDGET + u64::from(MOST_LETTER) * u64::from(HOPS + 2 * COURIERS);
        assert!(queue.letters.used_bytes <= most, "{} bytes in memory", queue.letters.used_bytes);
    }

    /// Delivers everything to hops that accept all messages, and checks that none is missing.
    fn drive_home(&mut self) {
        self.order(1, 0);
        while let Some(at) = self.live.iter().position(|live| live.parts) {
            self.close_at(at, Closing::Finished);
        }
        for _ in 0..200 {
            for _ in 0..200 {
                self.calls();
                self.read(usize::MAX);
                for at in (0..self.live.len()).rev() {
                    while !self.live[at].hands.is_empty() {
                        self.answer_at(at, 0);
                    }
                    // It may be dismissed, and then it is gone.
                    self.take_at(at);
                }
                while !self.tickets.is_empty() {
                    self.told(0);
                }
                self.audit();
            }
            if self.messages.values().all(|message| message.done) {
                break;
            }
            self.pass(Duration::from_millis(1_000));
        }
        for (id, message) in &self.messages {
            assert!(message.done, "{id} is lost: {message:?}\n{:?}", self.queue.show(MessageId(*id), self.now));
        }
        assert_eq!((self.queue.totals().messages, self.queue.totals().letter_bytes), (0, 0));
        for at in (0..self.live.len()).rev() {
            self.close_at(at, Closing::Finished);
        }
        self.pass(Duration::from_secs(10));
        assert!((0..HOPS).all(|hop| self.queue.is_idle(HopKey(hop), self.now)), "nothing is left to remember");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_and_nothing_is_done_twice(steps in prop::collection::vec(step(), 1..120)) {
        let mut world = World::new();
        for step in steps {
            world.apply(step);
            world.audit();
        }
        world.drive_home();
    }
}
