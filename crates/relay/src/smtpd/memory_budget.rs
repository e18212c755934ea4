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
use net::{ClientKey, Timer, clock};
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
const GROWTH_BYTES: u64 = 4096;
/// Longest time that a message waits for room: longer than any burst, shorter than the time-out of clients that wait
/// less than RFC 5321 §4.5.3.2.5 asks.
const ADMISSION_TIMEOUT: Duration = Duration::from_secs(20);
/// Most bytes that a message claims before its first byte: the size of most messages.
const INITIAL_BYTES_LIMIT: u64 = 16 << 10;
/// Divisor of the strangers' part: the share of one address when little is left. Sixteen of them fill it.
const CLIENT_SHARE_DIVISOR: u64 = 16;

/// The bytes that sessions may hold, of all workers.
#[derive(Debug)]
pub(crate) struct MemoryBudget {
    limit: u64,
    used: AtomicU64,
    /// The strangers' limit, a part of `most`; `strangers_used` is their part of `used`.
    untrusted_limit: u64,
    /// Amount that strangers may use before an address is held to its share.
    unshared_limit: u64,
    untrusted_used: AtomicU64,
    /// Shares of the strangers that are connected.
    shares: Shards<HashMap<ClientKey, Arc<ClientShare>>>,
    trusted: AdmissionQueue,
    untrusted: AdmissionQueue,
}

/// Bytes that a stranger's address holds.
#[derive(Debug)]
struct ClientShare {
    client: ClientKey,
    used: AtomicU64,
}

/// Owner of a claim.
#[derive(Clone, Debug, Default)]
enum ReservationOwner {
    /// A client of `networks`, or one that has logged in.
    #[default]
    Trusted,
    Untrusted(Arc<ClientShare>),
}

/// Messages that wait for room.
#[derive(Debug, Default)]
struct AdmissionQueue {
    waiters: Mutex<AdmissionWaiters>,
    /// Set while somebody waits: reading it costs less than the lock.
    has_waiters: AtomicBool,
}

/// The same, the first in front.
#[derive(Debug, Default)]
struct AdmissionWaiters {
    waiting: VecDeque<(u64, Waker)>,
    last_number: u64,
}

/// Reason why bytes were not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BudgetExceeded {
    /// No room is left.
    Room,
    /// The address holds more than its share.
    Share,
}

/// Takes that many bytes of an amount, if they fit.
fn try_add(used: &AtomicU64, bytes: u64, most: u64) -> bool {
    let fits = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= most);
    used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fits).is_ok()
}

impl MemoryBudget {
    /// Makes the limit of that many bytes in all; each part has room for the longest message, even if that exceeds the
    /// limit.
    pub(crate) fn new(most_bytes: u64, longest_message: u64) -> Arc<Self> {
        let three_quarters = most_bytes / 4 * 3 / GROWTH_BYTES * GROWTH_BYTES;
        let strangers_most = three_quarters.max(longest_message.next_multiple_of(GROWTH_BYTES));
        let most = most_bytes.max(strangers_most / 3 * 4).next_multiple_of(GROWTH_BYTES);
        Arc::new(Self {
            limit: most,
            used: AtomicU64::new(0),
            untrusted_limit: strangers_most,
            unshared_limit: (strangers_most / 4 * 3)
                .max(longest_message)
                .next_multiple_of(GROWTH_BYTES)
                .min(strangers_most),
            untrusted_used: AtomicU64::new(0),
            shares: Shards::new(0, |_| HashMap::new()),
            trusted: AdmissionQueue::default(),
            untrusted: AdmissionQueue::default(),
        })
    }

    /// Bytes held now.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Bytes that strangers hold.
    pub(crate) fn untrusted_bytes(&self) -> u64 {
        self.untrusted_used.load(Ordering::Relaxed)
    }

    /// Limit of the bytes held.
    pub(crate) fn limit_bytes(&self) -> u64 {
        self.limit
    }

    /// Limit of the bytes that strangers hold.
    pub(crate) fn untrusted_limit_bytes(&self) -> u64 {
        self.untrusted_limit
    }

    fn try_take(&self, owner: &ReservationOwner, bytes: u64) -> Result<(), BudgetExceeded> {
        let ReservationOwner::Untrusted(share) = owner else {
            return if try_add(&self.used, bytes, self.limit) { Ok(()) } else { Err(BudgetExceeded::Room) };
        };
        let own = share.used.fetch_add(bytes, Ordering::SeqCst).saturating_add(bytes);
        let is_modest = own <= self.untrusted_limit / CLIENT_SHARE_DIVISOR;
        let most = if is_modest { self.untrusted_limit } else { self.unshared_limit };
        let has_room = try_add(&self.untrusted_used, bytes, most);
        if has_room && try_add(&self.used, bytes, self.limit) {
            return Ok(());
        }
        share.used.fetch_sub(bytes, Ordering::SeqCst);
        if has_room {
            self.untrusted_used.fetch_sub(bytes, Ordering::SeqCst);
        }
        Err(if is_modest { BudgetExceeded::Room } else { BudgetExceeded::Share })
    }

    fn give_back(&self, owner: &ReservationOwner, bytes: u64) {
        if bytes == 0 {
            return;
        }
        if let ReservationOwner::Untrusted(share) = owner {
            share.used.fetch_sub(bytes, Ordering::SeqCst);
            self.untrusted_used.fetch_sub(bytes, Ordering::SeqCst);
        }
        self.used.fetch_sub(bytes, Ordering::SeqCst);
        self.trusted.wake();
        self.untrusted.wake();
    }

    fn queue(&self, owner: &ReservationOwner) -> &AdmissionQueue {
        match owner {
            ReservationOwner::Trusted => &self.trusted,
            ReservationOwner::Untrusted(_) => &self.untrusted,
        }
    }

    /// The share of a stranger's address, the same for all its connections.
    fn share(&self, client: ClientKey) -> Arc<ClientShare> {
        let mut shares = self.shares.lock(&client);
        Arc::clone(shares.entry(client).or_insert_with(|| Arc::new(ClientShare { client, used: AtomicU64::new(0) })))
    }

    /// Forgets the share of an address that has no other connection.
    fn forget(&self, share: Arc<ClientShare>) {
        let mut shares = self.shares.lock(&share.client);
        // The table's and this one.
        if Arc::strong_count(&share) <= 2 {
            shares.remove(&share.client);
        }
    }
}

impl AdmissionQueue {
    /// Wakes the first in line to look for room. A message joins the line before it looks, so one of both sees the
    /// other.
    fn wake(&self) {
        if self.has_waiters.load(Ordering::SeqCst) {
            self.waiters().wake_first();
        }
    }

    fn waiters(&self) -> MutexGuard<'_, AdmissionWaiters> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one out of the line, and wakes the next.
    fn remove(&self, number: u64) {
        let mut line = self.waiters();
        line.waiting.retain(|(other, _)| *other != number);
        self.has_waiters.store(!line.waiting.is_empty(), Ordering::SeqCst);
        line.wake_first();
    }
}

impl AdmissionWaiters {
    fn wake_first(&self) {
        if let Some((_, waker)) = self.waiting.front() {
            waker.wake_by_ref();
        }
    }
}

/// Bytes that one session holds. Given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: Arc<MemoryBudget>,
    held: Cell<u64>,
    owner: RefCell<ReservationOwner>,
}

/// Result of asking to begin a message.
#[derive(Debug)]
pub(crate) enum AdmissionDecision {
    Admitted,
    /// The message has to wait.
    Wait(PendingAdmission),
    /// Its address holds too much already.
    Refused,
}

impl Reservation {
    /// Makes a claim of a trusted client, until it is [declared a stranger's](Claim::of_stranger).
    pub(crate) fn new(intake: &Arc<MemoryBudget>) -> Rc<Self> {
        Rc::new(Self { budget: Arc::clone(intake), held: Cell::new(0), owner: RefCell::default() })
    }

    /// Charges a trusted client from here on.
    pub(crate) fn charge_trusted(&self) {
        self.set_owner(ReservationOwner::Trusted);
    }

    /// Charges that address from here on.
    pub(crate) fn charge_untrusted(&self, client: ClientKey) {
        self.set_owner(ReservationOwner::Untrusted(self.budget.share(client)));
    }

    fn set_owner(&self, owner: ReservationOwner) {
        self.release();
        if let ReservationOwner::Untrusted(share) = self.owner.replace(owner) {
            self.budget.forget(share);
        }
    }

    /// Grows the claim to that many bytes in all; reports whether there is room.
    pub(crate) fn grow(&self, bytes: u64) -> bool {
        self.try_grow(bytes).is_ok()
    }

    fn try_grow(&self, bytes: u64) -> Result<(), BudgetExceeded> {
        let held = self.held.get();
        if bytes <= held {
            return Ok(());
        }
        let wanted = bytes.saturating_add(GROWTH_BYTES - 1) / GROWTH_BYTES * GROWTH_BYTES;
        self.budget.try_take(&self.owner.borrow(), wanted - held)?;
        self.held.set(wanted);
        Ok(())
    }

    /// Asks to begin a message, with an envelope of that size: reports whether it may begin at once. If not, it has to
    /// wait for its [`PendingAdmission`].
    pub(crate) fn admit(self: &Rc<Self>, envelope_bytes: u64, announced: Option<u64>) -> AdmissionDecision {
        let first = announced.map_or(INITIAL_BYTES_LIMIT, |bytes| bytes.min(INITIAL_BYTES_LIMIT));
        let bytes = envelope_bytes.saturating_add(first);
        // A message that comes later does not pass those that wait.
        let has_line = self.budget.queue(&self.owner.borrow()).has_waiters.load(Ordering::SeqCst);
        if !has_line {
            match self.try_grow(bytes) {
                Ok(()) => return AdmissionDecision::Admitted,
                Err(BudgetExceeded::Share) => return AdmissionDecision::Refused,
                Err(BudgetExceeded::Room) => {}
            }
        }
        let until = clock::now() + ADMISSION_TIMEOUT;
        let alarm = Timer::default();
        AdmissionDecision::Wait(PendingAdmission { reservation: Rc::clone(self), bytes, number: None, until, alarm })
    }

    /// Gives all of it back.
    pub(crate) fn release(&self) {
        self.budget.give_back(&self.owner.borrow(), self.held.take());
    }

    /// Begins the session anew with nothing; its bytes are held for its last message still.
    pub(crate) fn detach(self: &Rc<Self>) -> DetachedReservation {
        DetachedReservation {
            bytes: self.held.take(),
            owner: self.owner.borrow().clone(),
            reservation: Rc::clone(self),
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.set_owner(ReservationOwner::Trusted);
    }
}

/// Bytes held by a message that waits for its receipt.
#[derive(Debug)]
pub(crate) struct DetachedReservation {
    bytes: u64,
    /// Dropped before the claim, which may then hold the last reference to it.
    owner: ReservationOwner,
    reservation: Rc<Reservation>,
}

impl Drop for DetachedReservation {
    fn drop(&mut self) {
        self.reservation.budget.give_back(&self.owner, self.bytes);
    }
}

/// A message in line: ready when it is admitted (`true`), or has waited long enough.
#[must_use = "a message is admitted only by waiting"]
#[derive(Debug)]
pub(crate) struct PendingAdmission {
    reservation: Rc<Reservation>,
    bytes: u64,
    /// Its number in the line.
    number: Option<u64>,
    until: Duration,
    alarm: Timer,
}

impl PendingAdmission {
    /// Joins the line, and reports whether it is first there.
    fn is_first(&mut self, waker: &Waker) -> bool {
        let owner = self.reservation.owner.borrow();
        let queue = self.reservation.budget.queue(&owner);
        let mut line = queue.waiters();
        let number = *self.number.get_or_insert_with(|| {
            line.last_number += 1;
            let number = line.last_number;
            line.waiting.push_back((number, waker.clone()));
            number
        });
        queue.has_waiters.store(true, Ordering::SeqCst);
        if let Some((_, known)) = line.waiting.iter_mut().find(|(other, _)| *other == number) {
            known.clone_from(waker);
        }
        line.waiting.front().is_some_and(|(first, _)| *first == number)
    }

    /// Tries to enter: true if it is admitted, false if it is refused, `None` while it waits.
    fn try_admit(&mut self, waker: &Waker) -> Option<bool> {
        if !self.is_first(waker) {
            return None;
        }
        match self.reservation.try_grow(self.bytes) {
            Ok(()) => Some(true),
            Err(BudgetExceeded::Room) => None,
            // Other clients of its address have taken more meanwhile: it must not keep the line waiting.
            Err(BudgetExceeded::Share) => Some(false),
        }
    }
}

impl Future for PendingAdmission {
    type Output = bool;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<bool> {
        let turn = &mut *self;
        if let Some(is_in) = turn.try_admit(cx.waker()) {
            return Poll::Ready(is_in);
        }
        turn.alarm.poll_due(Some(turn.until), clock::now()).map(|()| false)
    }
}

impl Drop for PendingAdmission {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.reservation.budget.queue(&self.reservation.owner.borrow()).remove(number);
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
    struct AdmissionWakes(AtomicUsize);

    impl Wake for AdmissionWakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// A session that tries to begin a message, and its result.
    struct AdmissionFixture {
        reservation: Rc<Reservation>,
        wakes: Arc<AdmissionWakes>,
        admission: Option<PendingAdmission>,
    }

    impl AdmissionFixture {
        fn new(intake: &Arc<MemoryBudget>) -> Self {
            Self { reservation: Reservation::new(intake), wakes: Arc::default(), admission: None }
        }

        fn begins(&mut self, announced: Option<u64>) -> bool {
            self.admission = match self.reservation.admit(0, announced) {
                AdmissionDecision::Admitted => return true,
                AdmissionDecision::Wait(turn) => Some(turn),
                AdmissionDecision::Refused => return false,
            };
            self.is_admitted()
        }

        fn is_admitted(&mut self) -> bool {
            let waker = Waker::from(Arc::clone(&self.wakes));
            let turn = self.admission.as_mut().expect("it waits");
            // Before its time is up a turn's alarm is not polled in these tests: the line is full, or room is there.
            let looked = turn.try_admit(&waker);
            if looked.is_some() {
                self.admission = None;
            }
            looked == Some(true)
        }

        fn was_woken(&self) -> bool {
            self.wakes.0.swap(0, Ordering::SeqCst) > 0
        }
    }

    #[test]
    fn a_session_holds_what_it_covers_until_it_gives_it_back() {
        let intake = MemoryBudget::new(10 * GROWTH_BYTES, 0);
        let claim = Reservation::new(&intake);
        assert!(claim.grow(1) && claim.grow(GROWTH_BYTES), "one step for both");
        assert_eq!(intake.used_bytes(), GROWTH_BYTES);
        assert!(claim.grow(9 * GROWTH_BYTES + 1));
        assert_eq!(intake.used_bytes(), 10 * GROWTH_BYTES);
        assert!(!claim.grow(10 * GROWTH_BYTES + 1), "there is no more");
        assert!(claim.grow(10 * GROWTH_BYTES), "a refusal takes nothing away");
        let held = claim.detach();
        assert!(!claim.grow(1), "its next message is another one");
        drop(held);
        assert!(claim.grow(1));
        drop(claim);
        assert_eq!(intake.used_bytes(), 0);
    }

    #[test]
    fn later_messages_do_not_pass_waiting_ones() {
        let intake = MemoryBudget::new(8 * GROWTH_BYTES, 0);
        let full = Reservation::new(&intake);
        assert!(full.grow(8 * GROWTH_BYTES));
        let [mut first, mut second, mut third] = [(); 3].map(|()| AdmissionFixture::new(&intake));
        assert!(!first.begins(Some(GROWTH_BYTES)) && !second.begins(Some(GROWTH_BYTES)));
        full.release();
        assert!(first.was_woken() && !second.was_woken());
        assert!(!third.begins(Some(1)), "there is room, and there are others");
        assert!(!second.is_admitted() && first.is_admitted());
        assert!(second.was_woken() && second.is_admitted());
        // A message that leaves the line does not block the rest.
        assert!(third.was_woken());
        third.admission = None;
        assert!(AdmissionFixture::new(&intake).begins(Some(1)));
    }

    fn untrusted_client(last: u8) -> ClientKey {
        ClientKey::of(std::net::IpAddr::from([192, 0, 2, last]))
    }

    fn untrusted_session(intake: &Arc<MemoryBudget>, last: u8) -> AdmissionFixture {
        let session = AdmissionFixture::new(intake);
        session.reservation.charge_untrusted(untrusted_client(last));
        session
    }

    #[test]
    fn what_is_announced_costs_no_more_than_a_short_message() {
        let intake = MemoryBudget::new(1000 * INITIAL_BYTES_LIMIT, 0);
        let mut sessions: Vec<AdmissionFixture> = (0..100).map(|_| AdmissionFixture::new(&intake)).collect();
        assert!(sessions.iter_mut().all(|session| session.begins(Some(u64::MAX))));
        assert_eq!(intake.used_bytes(), 100 * INITIAL_BYTES_LIMIT);
        assert!(AdmissionFixture::new(&intake).begins(Some(1)) && AdmissionFixture::new(&intake).begins(None));
    }

    #[test]
    fn untrusted_clients_leave_a_reserve_for_logged_in_ones() {
        let intake = MemoryBudget::new(1600 * GROWTH_BYTES, 0);
        let strangers: Vec<AdmissionFixture> = (0..100).map(|last| untrusted_session(&intake, last)).collect();
        for session in &strangers {
            session.reservation.grow(12 * GROWTH_BYTES);
        }
        assert_eq!((intake.untrusted_bytes(), intake.used_bytes()), (1200 * GROWTH_BYTES, 1200 * GROWTH_BYTES));
        assert!(!untrusted_session(&intake, 101).reservation.grow(1));
        let trusted = AdmissionFixture::new(&intake);
        assert!(trusted.reservation.grow(399 * GROWTH_BYTES));
        let mut late = untrusted_session(&intake, 102);
        assert!(!late.begins(None));
        late.admission = None;
        late.reservation.charge_trusted();
        assert!(late.reservation.grow(GROWTH_BYTES) && !late.reservation.grow(2 * GROWTH_BYTES));
        drop((strangers, trusted, late));
        assert_eq!((intake.untrusted_bytes(), intake.used_bytes()), (0, 0));
        assert!(intake.shares.iter().all(|shares| shares.is_empty()), "who is gone takes no room");
    }

    #[test]
    fn one_address_keeps_no_other_out_however_many_connections_it_has() {
        let intake = MemoryBudget::new(1600 * GROWTH_BYTES, 0);
        let greedy: Vec<AdmissionFixture> = (0..13).map(|_| untrusted_session(&intake, 1)).collect();
        for session in greedy.iter().cycle().take(13 * 1600) {
            session.reservation.grow(session.reservation.held.get() + GROWTH_BYTES);
        }
        assert_eq!(intake.untrusted_bytes(), 900 * GROWTH_BYTES, "a quarter of the strangers' part is left");
        assert!(matches!(greedy[0].reservation.admit(u64::from(u32::MAX), None), AdmissionDecision::Refused));
        assert!(untrusted_session(&intake, 2).begins(None) && AdmissionFixture::new(&intake).begins(None));
        // Others have their shares of the rest; a modest one is not delayed by a greedy one.
        let others: Vec<AdmissionFixture> = (2..6).map(|last| untrusted_session(&intake, last)).collect();
        assert!(others.iter().all(|session| session.reservation.grow(75 * GROWTH_BYTES)));
        let [mut modest, mut more] = [6, 7].map(|last| untrusted_session(&intake, last));
        assert!(!modest.begins(None) && !more.begins(None) && modest.admission.is_some());
        drop(others);
        assert!(modest.was_woken() && modest.is_admitted() && more.is_admitted());
    }

    #[test]
    fn each_part_holds_the_longest_message_and_a_message_alone_has_all_it_needs() {
        for (most, longest) in [(1000, 10), (1000, 1000), (1000, 900), (1000, 750)] {
            let intake = MemoryBudget::new(most * GROWTH_BYTES, longest * GROWTH_BYTES);
            assert!(untrusted_session(&intake, 1).reservation.grow(longest * GROWTH_BYTES), "{most} {longest}");
            assert!(AdmissionFixture::new(&intake).reservation.grow(longest * GROWTH_BYTES));
            assert!(intake.limit_bytes() - intake.untrusted_limit_bytes() >= intake.limit_bytes() / 4 - GROWTH_BYTES);
        }
    }

    proptest! {
        /// Tests that sessions grow, give up and come again in any order: no more is held than the limit, and the total
        /// is the sum of the sessions' bytes.
        #[test]
        fn bytes_are_accounted_for(steps in prop::collection::vec((0..6_usize, 0..6_u8, 0..20_000_u64), 0..200)) {
            let intake = MemoryBudget::new(64 << 10, 0);
            let claims: Vec<_> = (0..6).map(|_| Reservation::new(&intake)).collect();
            let mut held = Vec::new();
            for (which, what, bytes) in steps {
                match what {
                    0 => claims[which].release(),
                    1 => held.push(claims[which].detach()),
                    2 => drop(held.pop()),
                    3 if bytes % 3 == 0 => claims[which].charge_trusted(),
                    3 => claims[which].charge_untrusted(untrusted_client((bytes % 3) as u8)),
                    _ => {
                        let before = claims[which].held.get();
                        let is_covered = claims[which].grow(bytes);
                        prop_assert_eq!(is_covered, claims[which].held.get() >= bytes);
                        prop_assert!(is_covered || claims[which].held.get() == before);
                    }
                }
                let all = || {
                    let now = claims.iter().map(|claim| (claim.owner.borrow().clone(), claim.held.get()));
                    now.chain(held.iter().map(|held: &DetachedReservation| (held.owner.clone(), held.bytes)))
                };
                let sum = |bytes: &mut dyn Iterator<Item = u64>| bytes.sum::<u64>();
                prop_assert_eq!(intake.used_bytes(), sum(&mut all().map(|(_, bytes)| bytes)));
                let strangers = all().filter(|(owner, _)| matches!(owner, ReservationOwner::Untrusted(_)));
                prop_assert_eq!(intake.untrusted_bytes(), sum(&mut strangers.map(|(_, bytes)| bytes)));
                prop_assert!(intake.used_bytes() <= 64 << 10 && intake.untrusted_bytes() <= 48 << 10);
            }
        }
    }
}
