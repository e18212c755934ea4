//! The account of a run: records what happens to each message, in any order, and reports which messages are under way,
//! which are finished, and their fates. Pure: the time is an argument.
//!
//! ```text
//! create ─→ slot ── settled, replied, inbox, events ──→ finished ┐
//!                └─ time-out ─→ given up ────────────────────────┴→ the slot is free; the register keeps a byte
//! ```
use super::redelivery::Taken;
use super::register::Register;
use super::slots::{Slot, Slots};
use super::stages::{self, Facts, Fate, Mode, Stage, Watch};
use super::troubles::{Trouble, Troubles};
use super::waterfall::Waterfall;
use journey::record::LedgerRow;
use std::collections::HashMap;
use std::time::Duration;

/// A queue that the bench takes messages from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    Reply,
    Event,
    Inbox,
}

/// The endpoint's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer<'a> {
    /// Accepted; with the endpoint's own id of the message, shortened to a number, if it gave one.
    Taken { peer_id: u64 },
    /// Refused.
    Refused { code: &'a str, text: &'a str },
    /// Accepted and later given up.
    GaveUp { code: &'a str, text: &'a str },
}

/// Comparison of a message from the inbox with the one that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Intact,
    Corrupt,
}

/// The account of all messages.
#[derive(Debug)]
pub(super) struct Account {
    mode: Mode,
    timeout: Duration,
    slots: Slots,
    register: Register,
    pub(super) waterfall: Waterfall,
    pub(super) troubles: Troubles,
    next: u64,
    /// Every message below this number is finished.
    oldest: u64,
    unsettled: usize,
    corrupt: u64,
    redelivered: u64,
    /// Messages that were given up before the broker confirmed them.
    unanswered: u64,
    /// The highest number that has come out of the inbox, and the number of messages that came after a higher one.
    furthest: Option<u64>,
    reordered: u64,
    taken: [Taken; 3],
    /// Our numbers by the peer's ids; created when an event comes that carries no other id.
    by_peer_id: Option<HashMap<u64, u64>>,
    /// Integral of the messages under way over time, for the mean.
    load_s: f64,
    load_since: Duration,
}

/// The account at the end.
#[derive(Clone, Debug)]
pub(super) struct Balance {
    pub(super) ledger: LedgerRow,
    /// Messages that miss a stage, by the stage's number.
    pub(super) missing: [u64; Stage::ALL.len()],
}

impl Account {
    /// Creates an account in which at most `most` messages may be under way.
    pub(super) fn new(mode: Mode, most: usize, timeout: Duration) -> Self {
        Self {
            mode,
            timeout,
            slots: Slots::new(most),
            register: Register::new(mode.whole()),
            waterfall: Waterfall::new(mode),
            troubles: Troubles::default(),
            next: 0,
            oldest: 0,
            unsettled: 0,
            corrupt: 0,
            redelivered: 0,
            unanswered: 0,
            furthest: None,
            reordered: 0,
            taken: Default::default(),
            by_peer_id: None,
            load_s: 0.0,
            load_since: Duration::ZERO,
        }
    }

    pub(super) fn mode(&self) -> Mode {
        self.mode
    }

    /// Messages created.
    pub(super) fn created(&self) -> u64 {
        self.next
    }

    /// Messages under way.
    pub(super) fn in_transit(&self) -> usize {
        self.slots.count()
    }

    /// Messages whose transfer is not settled.
    pub(super) fn unsettled(&self) -> usize {
        self.unsettled
    }

    /// Messages that were given up before the broker confirmed them.
    pub(super) fn unanswered(&self) -> u64 {
        self.unanswered
    }

    /// Reports whether a message under way has not arrived. If all have arrived, it looks at every one of them.
    pub(super) fn awaits_arrival(&self) -> bool {
        self.slots.iter().any(|slot| slot.time(self.mode.arrival()).is_none())
    }

    /// Reports whether another message may be created.
    pub(super) fn has_room(&self) -> bool {
        self.slots.has_room()
    }

    pub(super) fn redelivered(&self) -> u64 {
        self.redelivered
    }

    /// Messages that came out of the inbox after one that was created later.
    pub(super) fn reordered(&self) -> u64 {
        self.reordered
    }

    /// Mean number of messages under way, from the first message to `now`.
    pub(super) fn mean_in_transit(&mut self, now: Duration) -> f64 {
        self.weigh(now);
        let span_s = now.saturating_sub(self.waterfall.began().unwrap_or(now)).as_secs_f64();
        if span_s > 0.0 { self.load_s / span_s } else { 0.0 }
    }

    /// Creates a message and returns its number. There must be room.
    pub(super) fn create(&mut self, since: Duration, now: Duration) -> u64 {
        self.weigh(now);
        let sequence = self.next;
        self.next += 1;
        let mut slot = Slot::new(sequence, since, now);
        slot.is_unsettled = true;
        self.unsettled += 1;
        self.waterfall.create(&slot);
        self.slots.insert(slot);
        sequence
    }

    /// Records that the transfer was handed over.
    pub(super) fn sent(&mut self, sequence: u64, now: Duration) {
        match self.slots.find_mut(sequence) {
            Some(slot) => self.waterfall.reach(slot, Stage::Sent, now),
            None => self.waterfall.late(Stage::Sent, now),
        }
    }

    /// Records that the broker confirmed the transfer.
    pub(super) fn settled(&mut self, sequence: u64, now: Duration) {
        self.settle(sequence);
        if !self.register.facts(sequence).has(Stage::Settled) {
            self.reach(sequence, Stage::Settled, Facts::default(), now);
        }
    }

    /// Records that the broker returned the transfer.
    pub(super) fn returned(&mut self, sequence: u64, now: Duration, code: &str, text: &str) {
        self.settle(sequence);
        self.troubles.add(Trouble::Returned, code, text);
        self.learn(sequence, Facts::RETURNED, now);
    }

    /// Reports whether the number belongs to a message of this run.
    pub(super) fn is_known(&self, sequence: u64) -> bool {
        sequence < self.next
    }

    /// Reports whether the message is under way.
    pub(super) fn is_open(&self, sequence: u64) -> bool {
        self.slots.find(sequence).is_some()
    }

    /// Time from which the message's latencies count.
    pub(super) fn since(&self, sequence: u64) -> Duration {
        self.slots.find(sequence).map_or(Duration::ZERO, |slot| slot.since)
    }

    /// Time at which the message is given up.
    pub(super) fn given_up_at(&self, sequence: u64) -> Duration {
        self.slots.find(sequence).map_or(Duration::ZERO, |slot| slot.created + self.timeout)
    }

    /// Records that the sending connection was cut: of the messages under way, except the one in hand, it remains
    /// unknown whether the broker has them.
    pub(super) fn unsettle(&mut self, in_hand: Option<u64>) {
        for slot in self.slots.iter_mut().filter(|slot| slot.is_unsettled && Some(slot.sequence) != in_hand) {
            slot.is_unsettled = false;
            self.unsettled -= 1;
        }
    }

    /// Finds the message that has this id at the endpoint.
    pub(super) fn named_by_peer(&mut self, peer_id: u64) -> Option<u64> {
        let slots = &self.slots;
        let index = self.by_peer_id.get_or_insert_with(|| {
            slots.iter().filter(|slot| slot.peer_id != 0).map(|slot| (slot.peer_id, slot.sequence)).collect()
        });
        index.get(&peer_id).copied()
    }

    /// Records the endpoint's answer.
    pub(super) fn replied(&mut self, sequence: u64, now: Duration, answer: Answer<'_>) {
        if !self.is_news(sequence, Stage::Replied, Queue::Reply) {
            return;
        }
        let facts = match answer {
            Answer::Taken { peer_id } => {
                self.name(sequence, peer_id);
                Facts::default()
            }
            Answer::Refused { code, text } => {
                self.troubles.add(Trouble::ErrorReply, code, text);
                Facts::REFUSED
            }
            Answer::GaveUp { code, text } => {
                self.troubles.add(Trouble::Failed, code, text);
                Facts::FAILED
            }
        };
        self.reach(sequence, Stage::Replied, facts, now);
    }

    /// Records that the message came out of the inbox.
    pub(super) fn arrived(&mut self, sequence: u64, now: Duration, content: Content) {
        if content == Content::Corrupt {
            self.corrupt += 1;
        }
        if self.is_news(sequence, Stage::Inbox, Queue::Inbox) {
            self.reordered += u64::from(self.furthest > Some(sequence));
            self.furthest = self.furthest.max(Some(sequence));
            self.reach(sequence, Stage::Inbox, Facts::default(), now);
        }
    }

    /// Records an event which says that the message reached a stage.
    pub(super) fn event(&mut self, sequence: u64, now: Duration, stage: Stage) {
        if self.is_news(sequence, stage, Queue::Event) {
            self.reach(sequence, stage, Facts::default(), now);
        }
    }

    /// Records that the endpoint gave up on the message.
    pub(super) fn failed(&mut self, sequence: u64, now: Duration, code: &str, text: &str) {
        if self.register.facts(sequence).holds(Facts::FAILED) {
            return;
        }
        self.troubles.add(Trouble::Failed, code, text);
        self.learn(sequence, Facts::FAILED, now);
    }

    /// Records that the connection to those queues was cut: the messages taken last may come again.
    pub(super) fn cut(&mut self, queues: &[Queue]) {
        queues.iter().for_each(|queue| self.taken[*queue as usize].cut());
    }

    /// Gives up on messages whose time-out is over. Call it often; it looks at one message if none is overdue.
    pub(super) fn expire(&mut self, now: Duration) {
        while self.oldest < self.next {
            match self.slots.find(self.oldest) {
                Some(slot) if now < slot.created + self.timeout => break,
                Some(_) => self.give_up(self.oldest, now),
                None => {}
            }
            self.oldest += 1;
        }
        self.register.is_over_below(self.oldest);
    }

    /// Balances the account: the fate of each message.
    pub(super) fn balance(&self) -> Balance {
        let mut fates = [0_u64; Fate::COUNT];
        let mut missing = [0_u64; Stage::ALL.len()];
        let mut accepted = 0;
        for sequence in 0..self.next {
            let facts = self.register.facts(sequence);
            let watch = if self.slots.find(sequence).is_some() { Watch::Open } else { Watch::Over };
            fates[stages::fate(self.mode, facts, watch) as usize] += 1;
            accepted += u64::from(facts.has(Stage::Settled));
            if facts != self.mode.whole() {
                self.mode.path().iter().for_each(|stage| {
                    missing[*stage as usize] += u64::from(stages::is_missing(self.mode, facts, watch, *stage));
                });
            }
        }
        let fate = |fate: Fate| Some(fates[fate as usize]);
        let ledger = LedgerRow {
            created: Some(self.waterfall.count(Stage::Created)),
            accepted: Some(accepted),
            delivered: fate(Fate::Delivered),
            rejected: fate(Fate::Rejected),
            failed: fate(Fate::Failed),
            queued: Some(0),
            expired: fate(Fate::Expired),
            lost: fate(Fate::Lost),
            in_flight: fate(Fate::InFlight),
            duplicates: Some(self.waterfall.duplicates(self.mode.arrival())),
            corrupt: Some(self.corrupt),
            converted: None,
            foreign: None,
            untimed: Some(0),
            overflow: Some(0),
        };
        Balance { ledger, missing }
    }

    /// Reports whether a stage is new for a message. A repeated stage is counted; not as a duplicate if a cut
    /// connection explains it.
    fn is_news(&mut self, sequence: u64, stage: Stage, queue: Queue) -> bool {
        // A message has several events; each of them comes once.
        let mark = sequence * Stage::ALL.len() as u64 + stage as u64;
        let taken = &mut self.taken[queue as usize];
        if !self.register.facts(sequence).has(stage) {
            taken.take(mark);
            return true;
        }
        if taken.is_redelivery(mark) {
            self.redelivered += 1;
        } else {
            self.waterfall.again(stage);
        }
        false
    }

    /// Records that a message reaches a stage.
    fn reach(&mut self, sequence: u64, stage: Stage, facts: Facts, now: Duration) {
        match self.slots.find_mut(sequence) {
            Some(slot) => self.waterfall.reach(slot, stage, now),
            None => self.waterfall.late(stage, now),
        }
        self.learn(sequence, facts.with(stage), now);
    }

    /// Adds facts of a message. A message that expects no more facts is removed.
    fn learn(&mut self, sequence: u64, facts: Facts, now: Duration) {
        let (_, known) = self.register.add(sequence, facts);
        if stages::is_finished(self.mode, known) {
            self.leave(sequence, now);
        }
    }

    fn give_up(&mut self, sequence: u64, now: Duration) {
        let known = self.register.facts(sequence);
        let waited_for =
            self.mode.path()[2..].iter().find(|stage| !known.has(**stage)).map_or("", |stage| stage.name());
        self.troubles.add(Trouble::TimedOut, waited_for, &format!("nothing within {:?}", self.timeout));
        self.unanswered += u64::from(stages::fate(self.mode, known, Watch::Over) == Fate::Failed);
        self.leave(sequence, now);
    }

    fn leave(&mut self, sequence: u64, now: Duration) {
        self.weigh(now);
        self.settle(sequence);
        let left = self.slots.remove(sequence);
        if let (Some(slot), Some(index)) = (left, &mut self.by_peer_id) {
            index.remove(&slot.peer_id);
        }
    }

    /// Stops waiting for the confirmation of a transfer.
    fn settle(&mut self, sequence: u64) {
        if let Some(slot) = self.slots.find_mut(sequence).filter(|slot| slot.is_unsettled) {
            slot.is_unsettled = false;
            self.unsettled -= 1;
        }
    }

    /// Records the endpoint's own id of a message.
    fn name(&mut self, sequence: u64, peer_id: u64) {
        if let Some(slot) = self.slots.find_mut(sequence) {
            slot.peer_id = peer_id;
            if let Some(index) = self.by_peer_id.as_mut().filter(|_| peer_id != 0) {
                index.insert(peer_id, sequence);
            }
        }
    }

    /// Adds the number under way since the last call to the integral.
    fn weigh(&mut self, now: Duration) {
        self.load_s += self.slots.count() as f64 * now.saturating_sub(self.load_since).as_secs_f64();
        self.load_since = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const TIMEOUT: Duration = Duration::from_millis(50);

    fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    fn account(mode: Mode) -> Account {
        Account::new(mode, 8, TIMEOUT)
    }

    /// Takes a message through all that an endpoint reports.
    fn get_through(account: &mut Account, sequence: u64, now: Duration) {
        account.sent(sequence, now);
        account.settled(sequence, now);
        account.replied(sequence, now, Answer::Taken { peer_id: 100 + sequence });
        account.arrived(sequence, now, Content::Intact);
        account.event(sequence, now, Stage::Delivered);
        account.event(sequence, now, Stage::Received);
    }

    #[test]
    fn a_message_that_gets_through_frees_its_slot() {
        let mut account = account(Mode::Endpoint);
        let sequence = account.create(ms(1), ms(1));
        assert_eq!((account.in_transit(), account.unsettled()), (1, 1));
        get_through(&mut account, sequence, ms(2));
        assert_eq!((account.in_transit(), account.unsettled()), (0, 0));
        let balance = account.balance();
        assert_eq!((balance.ledger.delivered, balance.ledger.lost), (Some(1), Some(0)));
        assert_eq!(balance.missing, [0; 8]);
    }

    #[test]
    fn one_lost_message_does_not_hold_its_place_for_ever() {
        // go-mades-bench hangs here (reference §1.6).
        let mut account = account(Mode::Endpoint);
        for round in 0..100 {
            let now = ms(1 + round * 100);
            account.expire(now);
            while account.has_room() {
                let sequence = account.create(now, now);
                account.settled(sequence, now);
                if !sequence.is_multiple_of(10) {
                    get_through(&mut account, sequence, now);
                }
                assert!(account.created() < 10_000);
                if account.created().is_multiple_of(500) {
                    break;
                }
            }
        }
        account.expire(ms(1_000_000));
        let balance = account.balance();
        assert_eq!(account.in_transit(), 0);
        assert_eq!(balance.ledger.lost, Some(account.created().div_ceil(10)));
        assert_eq!(balance.missing[Stage::Replied as usize], account.created().div_ceil(10));
    }

    #[test]
    fn an_error_reply_is_an_outcome() {
        // go-mades-bench dies of it (§1.7.10).
        let mut account = account(Mode::Endpoint);
        let sequence = account.create(ms(1), ms(1));
        account.replied(sequence, ms(2), Answer::Refused { code: "ECP-1", text: "no such receiver" });
        assert_eq!(account.in_transit(), 1, "its transfer is not settled yet");
        account.settled(sequence, ms(3));
        assert_eq!((account.in_transit(), account.balance().ledger.rejected), (0, Some(1)));
        let row = &account.troubles.rows()[0];
        assert_eq!((row.kind.as_str(), row.code.as_str(), row.count), ("error reply", "ECP-1", 1));
        assert_eq!(account.balance().missing, [0; 8], "nothing was to be expected any more");
    }

    #[test]
    fn what_comes_late_is_delivered_and_not_lost() {
        let mut account = account(Mode::Amqp);
        let sequence = account.create(ms(1), ms(1));
        account.settled(sequence, ms(2));
        account.expire(ms(60));
        assert_eq!((account.in_transit(), account.balance().ledger.lost), (0, Some(1)));
        account.arrived(sequence, ms(70), Content::Intact);
        let balance = account.balance();
        assert_eq!((balance.ledger.lost, balance.ledger.delivered), (Some(0), Some(1)));
        assert_eq!(account.waterfall.stage_rows(None, |_| 0)[3].late, 1);
    }

    #[test]
    fn a_broker_that_restarts_may_say_things_twice() {
        let mut account = account(Mode::Amqp);
        let sequence = account.create(ms(1), ms(1));
        account.arrived(sequence, ms(2), Content::Intact);
        account.cut(&[Queue::Inbox]);
        account.unsettle(None);
        assert_eq!(account.unsettled(), 0, "its place in the window is free again");
        account.arrived(sequence, ms(3), Content::Intact);
        account.arrived(sequence, ms(4), Content::Intact);
        assert_eq!((account.redelivered(), account.balance().ledger.duplicates), (1, Some(1)));
    }

    #[test]
    fn events_without_our_id_find_their_message_by_the_endpoints() {
        let mut account = account(Mode::Endpoint);
        let first = account.create(ms(1), ms(1));
        account.replied(first, ms(2), Answer::Taken { peer_id: 77 });
        assert_eq!(account.named_by_peer(77), Some(first));
        let second = account.create(ms(3), ms(3));
        assert_eq!(account.named_by_peer(78), None);
        account.replied(second, ms(4), Answer::Taken { peer_id: 78 });
        assert_eq!(account.named_by_peer(78), Some(second));
        get_through(&mut account, first, ms(5));
        assert_eq!(account.named_by_peer(77), None, "the index shrinks with the messages under way");
    }

    #[test]
    fn what_is_overtaken_counts_once_and_a_copy_does_not() {
        let mut account = account(Mode::Amqp);
        let sequences: Vec<u64> = (0..4).map(|number| account.create(ms(number), ms(number))).collect();
        for at in [2, 0, 0, 3, 1] {
            account.arrived(sequences[at], ms(10), Content::Intact);
        }
        assert_eq!(account.reordered(), 2);
    }

    #[test]
    fn the_mean_in_transit_is_littles_law() {
        let mut account = account(Mode::Amqp);
        // Four messages are under way all the time, each for 4 ms.
        for number in 0..1_000 {
            let now = ms(10 + number);
            if number >= 4 {
                account.settled(number - 4, now);
                account.arrived(number - 4, now, Content::Intact);
            }
            account.create(now, now);
        }
        let mean = account.mean_in_transit(ms(1_010));
        assert!((mean - 4.0).abs() < 0.05, "{mean}");
    }

    /// An event in a message's life.
    #[derive(Clone, Copy, Debug)]
    enum Happening {
        Settled,
        Returned,
        Unheard,
        Taken,
        Refused,
        GaveUp,
        Arrived(Content),
        Event(Stage),
        Failed,
    }

    fn happening() -> impl Strategy<Value = Happening> {
        prop_oneof![
            3 => Just(Happening::Settled),
            1 => Just(Happening::Returned),
            1 => Just(Happening::Unheard),
            3 => Just(Happening::Taken),
            1 => Just(Happening::Refused),
            1 => Just(Happening::GaveUp),
            3 => Just(Happening::Arrived(Content::Intact)),
            1 => Just(Happening::Arrived(Content::Corrupt)),
            3 => Just(Happening::Event(Stage::Delivered)),
            3 => Just(Happening::Event(Stage::Received)),
            1 => Just(Happening::Failed),
        ]
    }

    /// A naive model of a message: its first fate, and a set of stages.
    #[derive(Debug, Default)]
    struct Naive {
        created_ms: u64,
        stages: BTreeSet<Stage>,
        again: Vec<Stage>,
        late: Vec<Stage>,
        is_returned: bool,
        is_refused: bool,
        is_failed: bool,
        is_over: bool,
        is_settled: bool,
    }

    impl Naive {
        /// Adds a stage; reports whether it is new.
        fn reach(&mut self, stage: Stage) -> bool {
            if !self.stages.insert(stage) {
                self.again.push(stage);
                return false;
            }
            if self.is_over {
                self.late.push(stage);
            }
            true
        }

        fn suffer(&mut self, happening: Happening) {
            match happening {
                Happening::Settled => self.settle(),
                Happening::Returned => (self.is_returned, self.is_settled) = (true, true),
                // The remaining happenings.
                Happening::Unheard => {}
                Happening::Taken => drop(self.reach(Stage::Replied)),
                Happening::Refused => self.is_refused |= self.reach(Stage::Replied),
                Happening::GaveUp => self.is_failed |= self.reach(Stage::Replied),
                Happening::Arrived(_) => drop(self.reach(Stage::Inbox)),
                Happening::Event(stage) => drop(self.reach(stage)),
                Happening::Failed => self.is_failed = true,
            }
            let has = |stage| self.stages.contains(&stage);
            let all = [Stage::Settled, Stage::Replied, Stage::Inbox, Stage::Delivered, Stage::Received];
            let given_up = self.is_refused || (self.is_failed && has(Stage::Replied));
            self.is_over |= self.is_returned || all.into_iter().all(has) || (has(Stage::Settled) && given_up);
        }

        fn settle(&mut self) {
            self.is_settled = true;
            // A broker settles once; later settlements are ignored.
            if self.stages.insert(Stage::Settled) && self.is_over {
                self.late.push(Stage::Settled);
            }
        }

        fn fate(&self) -> &'static str {
            let has = |stage| self.stages.contains(&stage);
            match () {
                () if has(Stage::Inbox) => "delivered",
                () if self.is_returned || self.is_refused => "rejected",
                () if self.is_failed => "expired",
                () if !self.is_over => "in flight",
                () if has(Stage::Settled) => "lost",
                () => "failed",
            }
        }
    }

    fn apply(account: &mut Account, sequence: u64, happening: Happening, now: Duration) {
        match happening {
            Happening::Settled => account.settled(sequence, now),
            Happening::Returned => account.returned(sequence, now, "", ""),
            Happening::Unheard => account.unsettle(Some(sequence)),
            Happening::Taken => account.replied(sequence, now, Answer::Taken { peer_id: 0 }),
            Happening::Refused => account.replied(sequence, now, Answer::Refused { code: "", text: "" }),
            Happening::GaveUp => account.replied(sequence, now, Answer::GaveUp { code: "", text: "" }),
            Happening::Arrived(content) => account.arrived(sequence, now, content),
            Happening::Event(stage) => account.event(sequence, now, stage),
            Happening::Failed => account.failed(sequence, now, "", ""),
        }
    }

    proptest! {
        /// For any order and number of happenings, the account agrees with a naive model.
        #[test]
        fn the_books_are_those_of_a_naive_observer(
            steps in proptest::collection::vec((0_u64..40, happening(), 0_u64..4), 1..400),
        ) {
            let mut account = Account::new(Mode::Endpoint, 8, TIMEOUT);
            let mut naive: Vec<Naive> = Vec::new();
            let mut now_ms = 1_u64;
            let mut corrupt = 0;
            for (number, happening, passes_ms) in steps {
                now_ms += passes_ms;
                account.expire(ms(now_ms));
                naive.iter_mut().filter(|one| now_ms >= one.created_ms + 50).for_each(|one| {
                    (one.is_over, one.is_settled) = (true, true);
                });
                if account.has_room() {
                    prop_assert_eq!(account.create(ms(now_ms), ms(now_ms)), naive.len() as u64);
                    naive.push(Naive { created_ms: now_ms, ..Naive::default() });
                }
                let sequence = naive.len().saturating_sub(1 + number as usize);
                corrupt += u64::from(matches!(happening, Happening::Arrived(Content::Corrupt)));
                naive[sequence].suffer(happening);
                if let Happening::Unheard = happening {
                    let others = naive.iter_mut().enumerate().filter(|(number, _)| *number != sequence);
                    others.for_each(|(_, one)| one.is_settled = true);
                }
                apply(&mut account, sequence as u64, happening, ms(now_ms));
                prop_assert_eq!(account.in_transit(), naive.iter().filter(|one| !one.is_over).count());
                let unsettled = naive.iter().filter(|one| !one.is_over && !one.is_settled).count();
                prop_assert_eq!(account.unsettled(), unsettled);
            }
            let balance = account.balance();
            let fates = |fate: &str| Some(naive.iter().filter(|one| one.fate() == fate).count() as u64);
            prop_assert_eq!(balance.ledger.delivered, fates("delivered"));
            prop_assert_eq!(balance.ledger.rejected, fates("rejected"));
            prop_assert_eq!(balance.ledger.failed, fates("failed"));
            prop_assert_eq!(balance.ledger.expired, fates("expired"));
            prop_assert_eq!(balance.ledger.lost, fates("lost"));
            prop_assert_eq!(balance.ledger.in_flight, fates("in flight"));
            prop_assert!(journey::account::fates_sum(&balance.ledger));
            prop_assert_eq!(balance.ledger.corrupt, Some(corrupt));
            for row in account.waterfall.stage_rows(None, |_| 0).iter().skip(2) {
                let stage = Stage::ALL.into_iter().find(|stage| stage.name() == row.name).unwrap();
                let count = |of: &dyn Fn(&Naive) -> usize| naive.iter().map(of).sum::<usize>() as u64;
                prop_assert_eq!(row.count, count(&|one| usize::from(one.stages.contains(&stage))));
                prop_assert_eq!(row.duplicates, count(&|one| one.again.iter().filter(|other| **other == stage).count()));
                prop_assert_eq!(row.late, count(&|one| one.late.iter().filter(|other| **other == stage).count()), "{}", row.name);
            }
        }
    }
}
