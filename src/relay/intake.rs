//! Limit of the memory for incoming mail: what sessions hold of it until the spool has it.
//!
//! ```text
//!                          ┌──────────────── intake ────────────────┐
//! RCPT, bytes ── cover ──▶ │ strangers ▓▓▓▓▓▓▓░░░░░│ reserve ░░░░░░░ │ ── the receipt ──▶ given back
//! DATA, BDAT  ── enter ──▶ │ trusted ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓░░░░░░░░░░░ │
//!                  ▲       └────────────────────────────────────────┘
//!                  └─ no room: 354 waits in line for a while, then 452 4.3.1
//! ```
//! Bytes that have come are charged, and a little ahead. An announcement costs a client nothing: otherwise a client
//! that announces much and sends nothing would keep all others out. Strangers leave a reserve to clients of `networks`
//! and to those that have logged in. A stranger's address has a share: it may hold more only while a quarter of the
//! strangers' part is free (less, where that would not hold the longest message).
//!
//! New messages wait; those under way never do. If all that find no room waited, sessions with half a message each
//! would wait for each other until they time out. If all were rejected, a burst of a tenth of a second would send
//! clients away for the minutes until their next try (RFC 5321 §4.5.4.1). So the 354 is held back, within the two
//! minutes that a client waits for it (§4.5.3.2.5). A message that outgrows the free room releases its memory at once,
//! is read to its end and answered 452 (§4.2.2: insufficient system storage), and the others go on. Since each part
//! holds the longest message, one of them always finishes.
use net::recent::Shards;
use net::{Alarm, ClientKey, clock};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Bytes by which claims grow, so that a small message claims once.
const STEP: u64 = 4096;
/// Longest time that a message waits for room: longer than any burst, shorter than the time-out of clients that wait
/// less than RFC 5321 §4.5.3.2.5 asks.
const PATIENCE: Duration = Duration::from_secs(20);
/// Most bytes that a message claims before its first byte: the size of most messages.
const FIRST_BYTES: u64 = 16 << 10;
/// Divisor of the strangers' part: the share of one address when little is left. Sixteen of them fill it.
const STRANGER_SHARE: u64 = 16;

/// The bytes that sessions may hold, of all workers.
#[derive(Debug)]
pub(super) struct Intake {
    most: u64,
    used: AtomicU64,
    /// The strangers' limit, a part of `most`; `strangers_used` is their part of `used`.
    strangers_most: u64,
    /// Amount that strangers may use before an address is held to its share.
    unshared_most: u64,
    strangers_used: AtomicU64,
    /// Shares of the strangers that are connected.
    shares: Shards<HashMap<ClientKey, Arc<Share>>>,
    trusted: Queue,
    strangers: Queue,
}

/// Bytes that a stranger's address holds.
#[derive(Debug)]
struct Share {
    client: ClientKey,
    used: AtomicU64,
}

/// Owner of a claim.
#[derive(Clone, Debug, Default)]
enum Owner {
    /// A client of `networks`, or one that has logged in.
    #[default]
    Trusted,
    Stranger(Arc<Share>),
}

/// Messages that wait for room.
#[derive(Debug, Default)]
struct Queue {
    line: Mutex<Line>,
    /// Set while somebody waits: reading it costs less than the lock.
    has_line: AtomicBool,
}

/// The same, the first in front.
#[derive(Debug, Default)]
struct Line {
    waiting: VecDeque<(u64, Waker)>,
    numbers: u64,
}

/// Reason why bytes were not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lack {
    /// No room is left.
    Room,
    /// The address holds more than its share.
    Share,
}

/// Takes that many bytes of an amount, if they fit.
fn take_of(used: &AtomicU64, bytes: u64, most: u64) -> bool {
    let fits = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= most);
    used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fits).is_ok()
}

impl Intake {
    /// Makes the limit of that many bytes in all; each part has room for the longest message, even if that exceeds the
    /// limit.
    pub(super) fn new(most_bytes: u64, longest_message: u64) -> Arc<Self> {
        let three_quarters = most_bytes / 4 * 3 / STEP * STEP;
        let strangers_most = three_quarters.max(longest_message.next_multiple_of(STEP));
        let most = most_bytes.max(strangers_most / 3 * 4).next_multiple_of(STEP);
        Arc::new(Self {
            most,
            used: AtomicU64::new(0),
            strangers_most,
            unshared_most: (strangers_most / 4 * 3).max(longest_message).next_multiple_of(STEP).min(strangers_most),
            strangers_used: AtomicU64::new(0),
            shares: Shards::new(0, |_| HashMap::new()),
            trusted: Queue::default(),
            strangers: Queue::default(),
        })
    }

    /// Bytes held now.
    pub(super) fn used_bytes(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Bytes that strangers hold.
    pub(super) fn strangers_bytes(&self) -> u64 {
        self.strangers_used.load(Ordering::Relaxed)
    }

    /// Limit of the bytes held.
    pub(super) fn most_bytes(&self) -> u64 {
        self.most
    }

    /// Limit of the bytes that strangers hold.
    pub(super) fn strangers_most_bytes(&self) -> u64 {
        self.strangers_most
    }

    fn take(&self, owner: &Owner, bytes: u64) -> Result<(), Lack> {
        let Owner::Stranger(share) = owner else {
            return if take_of(&self.used, bytes, self.most) { Ok(()) } else { Err(Lack::Room) };
        };
        let own = share.used.fetch_add(bytes, Ordering::SeqCst).saturating_add(bytes);
        let is_modest = own <= self.strangers_most / STRANGER_SHARE;
        let most = if is_modest { self.strangers_most } else { self.unshared_most };
        let has_room = take_of(&self.strangers_used, bytes, most);
        if has_room && take_of(&self.used, bytes, self.most) {
            return Ok(());
        }
        share.used.fetch_sub(bytes, Ordering::SeqCst);
        if has_room {
            self.strangers_used.fetch_sub(bytes, Ordering::SeqCst);
        }
        Err(if is_modest { Lack::Room } else { Lack::Share })
    }

    fn give(&self, owner: &Owner, bytes: u64) {
        if bytes == 0 {
            return;
        }
        if let Owner::Stranger(share) = owner {
            share.used.fetch_sub(bytes, Ordering::SeqCst);
            self.strangers_used.fetch_sub(bytes, Ordering::SeqCst);
        }
        self.used.fetch_sub(bytes, Ordering::SeqCst);
        self.trusted.call();
        self.strangers.call();
    }

    fn queue(&self, owner: &Owner) -> &Queue {
        match owner {
            Owner::Trusted => &self.trusted,
            Owner::Stranger(_) => &self.strangers,
        }
    }

    /// The share of a stranger's address, the same for all its connections.
    fn share(&self, client: ClientKey) -> Arc<Share> {
        let mut shares = self.shares.lock(&client);
        Arc::clone(shares.entry(client).or_insert_with(|| Arc::new(Share { client, used: AtomicU64::new(0) })))
    }

    /// Forgets the share of an address that has no other connection.
    fn forget(&self, share: Arc<Share>) {
        let mut shares = self.shares.lock(&share.client);
        // The table's and this one.
        if Arc::strong_count(&share) <= 2 {
            shares.remove(&share.client);
        }
    }
}

impl Queue {
    /// Wakes the first in line to look for room. A message joins the line before it looks, so one of both sees the
    /// other.
    fn call(&self) {
        if self.has_line.load(Ordering::SeqCst) {
            self.line().call_first();
        }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one out of the line, and wakes the next.
    fn leave_line(&self, number: u64) {
        let mut line = self.line();
        line.waiting.retain(|(other, _)| *other != number);
        self.has_line.store(!line.waiting.is_empty(), Ordering::SeqCst);
        line.call_first();
    }
}

impl Line {
    fn call_first(&self) {
        if let Some((_, waker)) = self.waiting.front() {
            waker.wake_by_ref();
        }
    }
}

/// Bytes that one session holds. Given back when it is dropped.
#[derive(Debug)]
pub(super) struct Claim {
    intake: Arc<Intake>,
    held: Cell<u64>,
    owner: RefCell<Owner>,
}

/// Result of asking to begin a message.
#[derive(Debug)]
pub(super) enum Entry {
    In,
    /// The message has to wait.
    Wait(Turn),
    /// Its address holds too much already.
    Refused,
}

impl Claim {
    /// Makes a claim of a trusted client, until it is [declared a stranger's](Claim::of_stranger).
    pub(super) fn new(intake: &Arc<Intake>) -> Rc<Self> {
        Rc::new(Self { intake: Arc::clone(intake), held: Cell::new(0), owner: RefCell::default() })
    }

    /// Charges a trusted client from here on.
    pub(super) fn of_trusted(&self) {
        self.pass_to(Owner::Trusted);
    }

    /// Charges that address from here on.
    pub(super) fn of_stranger(&self, client: ClientKey) {
        self.pass_to(Owner::Stranger(self.intake.share(client)));
    }

    fn pass_to(&self, owner: Owner) {
        self.release();
        if let Owner::Stranger(share) = self.owner.replace(owner) {
            self.intake.forget(share);
        }
    }

    /// Grows the claim to that many bytes in all; reports whether there is room.
    pub(super) fn cover(&self, bytes: u64) -> bool {
        self.try_cover(bytes).is_ok()
    }

    fn try_cover(&self, bytes: u64) -> Result<(), Lack> {
        let held = self.held.get();
        if bytes <= held {
            return Ok(());
        }
        let wanted = bytes.saturating_add(STEP - 1) / STEP * STEP;
        self.intake.take(&self.owner.borrow(), wanted - held)?;
        self.held.set(wanted);
        Ok(())
    }

    /// Asks to begin a message, with an envelope of that size: reports whether it may begin at once. If not, it has to
    /// wait for its [`Turn`].
    pub(super) fn enter(self: &Rc<Self>, envelope_bytes: u64, announced: Option<u64>) -> Entry {
        let first = announced.map_or(FIRST_BYTES, |bytes| bytes.min(FIRST_BYTES));
        let bytes = envelope_bytes.saturating_add(first);
        // A message that comes later does not pass those that wait.
        let has_line = self.intake.queue(&self.owner.borrow()).has_line.load(Ordering::SeqCst);
        if !has_line {
            match self.try_cover(bytes) {
                Ok(()) => return Entry::In,
                Err(Lack::Share) => return Entry::Refused,
                Err(Lack::Room) => {}
            }
        }
        let (until, alarm) = (clock::now() + PATIENCE, Alarm::default());
        Entry::Wait(Turn { claim: Rc::clone(self), bytes, number: None, until, alarm })
    }

    /// Gives all of it back.
    pub(super) fn release(&self) {
        self.intake.give(&self.owner.borrow(), self.held.take());
    }

    /// Begins the session anew with nothing; its bytes are held for its last message still.
    pub(super) fn hand_over(self: &Rc<Self>) -> Held {
        Held { bytes: self.held.take(), owner: self.owner.borrow().clone(), claim: Rc::clone(self) }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.pass_to(Owner::Trusted);
    }
}

/// Bytes held by a message that waits for its receipt.
#[derive(Debug)]
pub(super) struct Held {
    bytes: u64,
    /// Dropped before the claim, which may then hold the last reference to it.
    owner: Owner,
    claim: Rc<Claim>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.claim.intake.give(&self.owner, self.bytes);
    }
}

/// A message in line: ready when it is admitted (`true`), or has waited long enough.
#[must_use = "a message is admitted only by waiting"]
#[derive(Debug)]
pub(super) struct Turn {
    claim: Rc<Claim>,
    bytes: u64,
    /// Its number in the line.
    number: Option<u64>,
    until: Duration,
    alarm: Alarm,
}

impl Turn {
    /// Joins the line, and reports whether it is first there.
    fn is_first(&mut self, waker: &Waker) -> bool {
        let owner = self.claim.owner.borrow();
        let queue = self.claim.intake.queue(&owner);
        let mut line = queue.line();
        let number = *self.number.get_or_insert_with(|| {
            line.numbers += 1;
            let number = line.numbers;
            line.waiting.push_back((number, waker.clone()));
            number
        });
        queue.has_line.store(true, Ordering::SeqCst);
        if let Some((_, known)) = line.waiting.iter_mut().find(|(other, _)| *other == number) {
            known.clone_from(waker);
        }
        line.waiting.front().is_some_and(|(first, _)| *first == number)
    }

    /// Tries to enter: true if it is admitted, false if it is refused, `None` while it waits.
    fn look(&mut self, waker: &Waker) -> Option<bool> {
        if !self.is_first(waker) {
            return None;
        }
        match self.claim.try_cover(self.bytes) {
            Ok(()) => Some(true),
            Err(Lack::Room) => None,
            // Other clients of its address have taken more meanwhile: it must not keep the line waiting.
            Err(Lack::Share) => Some(false),
        }
    }
}

impl Future for Turn {
    type Output = bool;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<bool> {
        let turn = &mut *self;
        if let Some(is_in) = turn.look(cx.waker()) {
            return Poll::Ready(is_in);
        }
        turn.alarm.poll_due(Some(turn.until), clock::now()).map(|()| false)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.claim.intake.queue(&self.claim.owner.borrow()).leave_line(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    /// Counts how often it was woken.
    #[derive(Default)]
    struct Bell(AtomicUsize);

    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// A session that tries to begin a message, and its result.
    struct Session {
        claim: Rc<Claim>,
        bell: Arc<Bell>,
        turn: Option<Turn>,
    }

    impl Session {
        fn new(intake: &Arc<Intake>) -> Self {
            Self { claim: Claim::new(intake), bell: Arc::default(), turn: None }
        }

        fn enters(&mut self, announced: Option<u64>) -> bool {
            self.turn = match self.claim.enter(0, announced) {
                Entry::In => return true,
                Entry::Wait(turn) => Some(turn),
                Entry::Refused => return false,
            };
            self.is_let_in()
        }

        fn is_let_in(&mut self) -> bool {
            let waker = Waker::from(Arc::clone(&self.bell));
            let turn = self.turn.as_mut().expect("it waits");
            // Before its time is up a turn's alarm is not polled in these tests: the line is full, or room is there.
            let looked = turn.look(&waker);
            if looked.is_some() {
                self.turn = None;
            }
            looked == Some(true)
        }

        fn was_woken(&self) -> bool {
            self.bell.0.swap(0, Ordering::SeqCst) > 0
        }
    }

    #[test]
    fn a_session_holds_what_it_covers_until_it_gives_it_back() {
        let intake = Intake::new(10 * STEP, 0);
        let claim = Claim::new(&intake);
        assert!(claim.cover(1) && claim.cover(STEP), "one step for both");
        assert_eq!(intake.used_bytes(), STEP);
        assert!(claim.cover(9 * STEP + 1));
        assert_eq!(intake.used_bytes(), 10 * STEP);
        assert!(!claim.cover(10 * STEP + 1), "there is no more");
        assert!(claim.cover(10 * STEP), "a refusal takes nothing away");
        let held = claim.hand_over();
        assert!(!claim.cover(1), "its next message is another one");
        drop(held);
        assert!(claim.cover(1));
        drop(claim);
        assert_eq!(intake.used_bytes(), 0);
    }

    #[test]
    fn who_comes_later_does_not_pass_those_who_wait() {
        let intake = Intake::new(8 * STEP, 0);
        let full = Claim::new(&intake);
        assert!(full.cover(8 * STEP));
        let [mut first, mut second, mut third] = [(); 3].map(|()| Session::new(&intake));
        assert!(!first.enters(Some(STEP)) && !second.enters(Some(STEP)));
        full.release();
        assert!(first.was_woken() && !second.was_woken());
        assert!(!third.enters(Some(1)), "there is room, and there are others");
        assert!(!second.is_let_in() && first.is_let_in());
        assert!(second.was_woken() && second.is_let_in());
        // A message that leaves the line does not block the rest.
        assert!(third.was_woken());
        third.turn = None;
        assert!(Session::new(&intake).enters(Some(1)));
    }

    fn stranger(last: u8) -> ClientKey {
        ClientKey::of(std::net::IpAddr::from([192, 0, 2, last]))
    }

    fn of_stranger(intake: &Arc<Intake>, last: u8) -> Session {
        let session = Session::new(intake);
        session.claim.of_stranger(stranger(last));
        session
    }

    #[test]
    fn what_is_announced_costs_no_more_than_a_short_message() {
        let intake = Intake::new(1000 * FIRST_BYTES, 0);
        let mut sessions: Vec<Session> = (0..100).map(|_| Session::new(&intake)).collect();
        assert!(sessions.iter_mut().all(|session| session.enters(Some(u64::MAX))));
        assert_eq!(intake.used_bytes(), 100 * FIRST_BYTES);
        assert!(Session::new(&intake).enters(Some(1)) && Session::new(&intake).enters(None));
    }

    #[test]
    fn strangers_leave_a_reserve_and_whoever_logs_in_may_use_it() {
        let intake = Intake::new(1600 * STEP, 0);
        let strangers: Vec<Session> = (0..100).map(|last| of_stranger(&intake, last)).collect();
        for session in &strangers {
            session.claim.cover(12 * STEP);
        }
        assert_eq!((intake.strangers_bytes(), intake.used_bytes()), (1200 * STEP, 1200 * STEP));
        assert!(!of_stranger(&intake, 101).claim.cover(1));
        let trusted = Session::new(&intake);
        assert!(trusted.claim.cover(399 * STEP));
        let mut late = of_stranger(&intake, 102);
        assert!(!late.enters(None));
        late.turn = None;
        late.claim.of_trusted();
        assert!(late.claim.cover(STEP) && !late.claim.cover(2 * STEP));
        drop((strangers, trusted, late));
        assert_eq!((intake.strangers_bytes(), intake.used_bytes()), (0, 0));
        assert!(intake.shares.iter().all(|shares| shares.is_empty()), "who is gone takes no room");
    }

    #[test]
    fn one_address_keeps_no_other_out_however_many_connections_it_has() {
        let intake = Intake::new(1600 * STEP, 0);
        let greedy: Vec<Session> = (0..13).map(|_| of_stranger(&intake, 1)).collect();
        for session in greedy.iter().cycle().take(13 * 1600) {
            session.claim.cover(session.claim.held.get() + STEP);
        }
        assert_eq!(intake.strangers_bytes(), 900 * STEP, "a quarter of the strangers' part is left");
        assert!(matches!(greedy[0].claim.enter(u64::from(u32::MAX), None), Entry::Refused));
        assert!(of_stranger(&intake, 2).enters(None) && Session::new(&intake).enters(None));
        // Others have their shares of the rest; a modest one is not delayed by a greedy one.
        let others: Vec<Session> = (2..6).map(|last| of_stranger(&intake, last)).collect();
        assert!(others.iter().all(|session| session.claim.cover(75 * STEP)));
        let [mut modest, mut more] = [6, 7].map(|last| of_stranger(&intake, last));
        assert!(!modest.enters(None) && !more.enters(None) && modest.turn.is_some());
        drop(others);
        assert!(modest.was_woken() && modest.is_let_in() && more.is_let_in());
    }

    #[test]
    fn each_part_holds_the_longest_message_and_a_message_alone_has_all_it_needs() {
        for (most, longest) in [(1000, 10), (1000, 1000), (1000, 900), (1000, 750)] {
            let intake = Intake::new(most * STEP, longest * STEP);
            assert!(of_stranger(&intake, 1).claim.cover(longest * STEP), "{most} {longest}");
            assert!(Session::new(&intake).claim.cover(longest * STEP));
            assert!(intake.most_bytes() - intake.strangers_most_bytes() >= intake.most_bytes() / 4 - STEP);
        }
    }

    proptest! {
        /// Tests that sessions grow, give up and come again in any order: no more is held than the limit, and the total
        /// is the sum of the sessions' bytes.
        #[test]
        fn books_are_kept(steps in prop::collection::vec((0..6_usize, 0..6_u8, 0..20_000_u64), 0..200)) {
            let intake = Intake::new(64 << 10, 0);
            let claims: Vec<_> = (0..6).map(|_| Claim::new(&intake)).collect();
            let mut held = Vec::new();
            for (which, what, bytes) in steps {
                match what {
                    0 => claims[which].release(),
                    1 => held.push(claims[which].hand_over()),
                    2 => drop(held.pop()),
                    3 if bytes % 3 == 0 => claims[which].of_trusted(),
                    3 => claims[which].of_stranger(stranger((bytes % 3) as u8)),
                    _ => {
                        let before = claims[which].held.get();
                        let is_covered = claims[which].cover(bytes);
                        prop_assert_eq!(is_covered, claims[which].held.get() >= bytes);
                        prop_assert!(is_covered || claims[which].held.get() == before);
                    }
                }
                let all = || {
                    let now = claims.iter().map(|claim| (claim.owner.borrow().clone(), claim.held.get()));
                    now.chain(held.iter().map(|held: &Held| (held.owner.clone(), held.bytes)))
                };
                let sum = |bytes: &mut dyn Iterator<Item = u64>| bytes.sum::<u64>();
                prop_assert_eq!(intake.used_bytes(), sum(&mut all().map(|(_, bytes)| bytes)));
                let strangers = all().filter(|(owner, _)| matches!(owner, Owner::Stranger(_)));
                prop_assert_eq!(intake.strangers_bytes(), sum(&mut strangers.map(|(_, bytes)| bytes)));
                prop_assert!(intake.used_bytes() <= 64 << 10 && intake.strangers_bytes() <= 48 << 10);
            }
        }
    }
}
