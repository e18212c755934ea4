//! Limits the memory for incoming mail, which sessions hold until the spool has stored it.
//!
//! ```text
//!                          ┌───────────── MemoryBudget ──────────────┐
//! RCPT, bytes ── grow ───▶ │ untrusted ▓▓▓▓▓▓▓░░░░░│ reserve ░░░░░░░ │ ── receipt ──▶ given back
//! DATA, BDAT  ── admit ──▶ │ trusted ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓░░░░░░░░░░░ │
//!                 ▲        └─────────────────────────────────────────┘
//!                 └─ no room: 354 waits for a while, then 452 4.3.1
//! ```
//! Sessions are charged for the bytes that they have received, and for a little in advance. The size that a client
//! announces is not charged as a whole, because a client that announces much and sends nothing would keep all others
//! out. Untrusted clients cannot use all of the memory: a reserve is left for clients in `networks` and for clients
//! that have logged in. Each untrusted address has a share of the memory for untrusted clients. An address may exceed
//! its share only while a quarter of that memory stays free, or less if the longest message would otherwise not fit.
//!
//! If there is no room, new messages wait, but messages in progress do not. If messages in progress waited, sessions
//! with half a message each would wait for each other until they time out. If new messages were rejected at once, a
//! burst of mail that lasts a tenth of a second would delay the rejected messages by minutes, because clients wait that
//! long before they try again (RFC 5321 §4.5.4.1). The relay therefore delays its reply 354 to DATA, within the two
//! minutes that a client waits for it (§4.5.3.2.5).
//!
//! A message in progress that outgrows the free room releases its memory at once. It is read to its end and gets 452
//! (§4.2.2: insufficient system storage), while the other messages continue. Because the longest message fits even into
//! the memory for untrusted clients, at least one message always finishes.
use mailrun_lock::lock;
use mailrun_net::recent::Shards;
use mailrun_net::{ClientKey, Timer, clock};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Reservations grow in steps of this many bytes, so that a session has to reserve only once for a small message.
const GROWTH_BYTES: u64 = 4096;
/// Maximum time that a message waits for room. It is longer than a burst of mail. It is shorter than the two minutes
/// that clients must wait (RFC 5321 §4.5.3.2.5), because some clients give up earlier.
const ADMISSION_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum number of bytes that are reserved for a message before its first byte arrives. Most messages are not longer.
const INITIAL_BYTES_LIMIT: u64 = 16 << 10;
/// The share of one untrusted address is 1/16 of the memory for untrusted clients. When little of that memory is free,
/// each address is limited to its share, so that no single address can use up everything.
const CLIENT_SHARE_DIVISOR: u64 = 16;

/// Limits the bytes of incoming mail that the sessions of all workers may hold together, and counts the bytes in
/// use.
#[derive(Debug)]
pub(crate) struct MemoryBudget {
    limit: u64,
    used: AtomicU64,
    /// Maximum number of bytes that untrusted clients may hold together. Their bytes count both in `untrusted_used` and
    /// in `used`.
    untrusted_limit: u64,
    /// Number of bytes that untrusted clients may use before each address is limited to its share.
    unshared_limit: u64,
    untrusted_used: AtomicU64,
    /// For each untrusted address that is connected, the memory that its sessions hold.
    shares: Shards<HashMap<ClientKey, Arc<ClientShare>>>,
    trusted: AdmissionQueue,
    untrusted: AdmissionQueue,
}

#[derive(Debug)]
struct ClientShare {
    client: ClientKey,
    used: AtomicU64,
}

#[derive(Clone, Debug, Default)]
enum ReservationOwner {
    /// A client whose address the configuration lists in `networks`, or a client that has logged in.
    #[default]
    Trusted,
    Untrusted(Arc<ClientShare>),
}

#[derive(Debug, Default)]
struct AdmissionQueue {
    waiters: Mutex<AdmissionWaiters>,
    /// Set while a message waits for room. Reading this flag is cheaper than taking the lock.
    has_waiters: AtomicBool,
}

#[derive(Debug, Default)]
struct AdmissionWaiters {
    waiting: VecDeque<(u64, Waker)>,
    last_number: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BudgetExceeded {
    Room,
    Share,
}

fn try_add(used: &AtomicU64, bytes: u64, limit: u64) -> bool {
    let fits = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= limit);
    used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fits).is_ok()
}

impl MemoryBudget {
    /// Creates a budget of `limit_bytes`. The budget is larger if its part for untrusted clients could otherwise not
    /// hold a message of the maximum length, `longest_message`.
    pub(crate) fn new(limit_bytes: u64, longest_message: u64) -> Arc<Self> {
        let three_quarters = limit_bytes / 4 * 3 / GROWTH_BYTES * GROWTH_BYTES;
        let untrusted_limit = three_quarters.max(longest_message.next_multiple_of(GROWTH_BYTES));
        let limit = limit_bytes.max(untrusted_limit / 3 * 4).next_multiple_of(GROWTH_BYTES);
        Arc::new(Self {
            limit,
            used: AtomicU64::new(0),
            untrusted_limit,
            unshared_limit: (untrusted_limit / 4 * 3)
                .max(longest_message)
                .next_multiple_of(GROWTH_BYTES)
                .min(untrusted_limit),
            untrusted_used: AtomicU64::new(0),
            shares: Shards::new(0, |_| HashMap::new()),
            trusted: AdmissionQueue::default(),
            untrusted: AdmissionQueue::default(),
        })
    }

    pub(crate) fn used_bytes(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    pub(crate) fn untrusted_bytes(&self) -> u64 {
        self.untrusted_used.load(Ordering::Relaxed)
    }

    pub(crate) fn limit_bytes(&self) -> u64 {
        self.limit
    }

    pub(crate) fn untrusted_limit_bytes(&self) -> u64 {
        self.untrusted_limit
    }

    fn try_take(&self, owner: &ReservationOwner, bytes: u64) -> Result<(), BudgetExceeded> {
        let ReservationOwner::Untrusted(share) = owner else {
            return if try_add(&self.used, bytes, self.limit) { Ok(()) } else { Err(BudgetExceeded::Room) };
        };
        let own = share.used.fetch_add(bytes, Ordering::SeqCst).saturating_add(bytes);
        let is_modest = own <= self.untrusted_limit / CLIENT_SHARE_DIVISOR;
        let limit = if is_modest { self.untrusted_limit } else { self.unshared_limit };
        let has_room = try_add(&self.untrusted_used, bytes, limit);
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

    fn share(&self, client: ClientKey) -> Arc<ClientShare> {
        let mut shares = self.shares.lock(&client);
        Arc::clone(shares.entry(client).or_insert_with(|| Arc::new(ClientShare { client, used: AtomicU64::new(0) })))
    }

    /// Removes the share of an address, unless another connection or message of the address still uses the share.
    fn forget(&self, share: Arc<ClientShare>) {
        let mut shares = self.shares.lock(&share.client);
        // The table `shares` and this function hold one reference each. A third reference belongs to another connection
        // or message of the address.
        if Arc::strong_count(&share) <= 2 {
            shares.remove(&share.client);
        }
    }
}

impl AdmissionQueue {
    /// Wakes the first waiting message, which then looks for room. The caller must release the room before it calls
    /// this. No wake-up is lost, because a message joins the queue before it looks for room: either the message sees
    /// the released room, or this call sees the message.
    fn wake(&self) {
        if self.has_waiters.load(Ordering::SeqCst) {
            self.waiters().wake_first();
        }
    }

    fn waiters(&self) -> MutexGuard<'_, AdmissionWaiters> {
        lock(&self.waiters)
    }

    /// Removes a message from the queue. Then wakes the first message in the queue, because there may already be room
    /// for it.
    fn remove(&self, number: u64) {
        let mut waiters = self.waiters();
        waiters.waiting.retain(|(other, _)| *other != number);
        self.has_waiters.store(!waiters.waiting.is_empty(), Ordering::SeqCst);
        waiters.wake_first();
    }
}

impl AdmissionWaiters {
    fn wake_first(&self) {
        if let Some((_, waker)) = self.waiting.front() {
            waker.wake_by_ref();
        }
    }
}

/// Memory that one session has reserved for incoming mail. It is released when this value is dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: Arc<MemoryBudget>,
    held: Cell<u64>,
    owner: RefCell<ReservationOwner>,
}

#[derive(Debug)]
pub(crate) enum AdmissionDecision {
    Admitted,
    Wait(PendingAdmission),
    Refused,
}

impl Reservation {
    /// Creates a reservation without bytes. The session counts as trusted until [`Self::charge_untrusted`] is called.
    pub(crate) fn new(budget: &Arc<MemoryBudget>) -> Rc<Self> {
        Rc::new(Self { budget: Arc::clone(budget), held: Cell::new(0), owner: RefCell::default() })
    }

    /// Makes the session trusted: gives back its bytes, and from now on lets it use the reserve for trusted clients.
    pub(crate) fn charge_trusted(&self) {
        self.set_owner(ReservationOwner::Trusted);
    }

    /// Makes the session untrusted: gives back its bytes, and counts later bytes towards the share of this address.
    pub(crate) fn charge_untrusted(&self, client: ClientKey) {
        self.set_owner(ReservationOwner::Untrusted(self.budget.share(client)));
    }

    fn set_owner(&self, owner: ReservationOwner) {
        self.release();
        if let ReservationOwner::Untrusted(share) = self.owner.replace(owner) {
            self.budget.forget(share);
        }
    }

    /// Grows the reservation to this many bytes in total. Returns false if there is not enough room.
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

    /// Asks for room to begin a message: for its envelope and for the announced size of its content, but at most
    /// `INITIAL_BYTES_LIMIT` for the content. If there is no room, the result tells the session to wait for the
    /// [`PendingAdmission`] or to refuse the message.
    pub(crate) fn admit(self: &Rc<Self>, envelope_bytes: u64, announced: Option<u64>) -> AdmissionDecision {
        let first = announced.map_or(INITIAL_BYTES_LIMIT, |bytes| bytes.min(INITIAL_BYTES_LIMIT));
        let bytes = envelope_bytes.saturating_add(first);
        // If other messages wait, let this message wait behind them, even if there is room for it.
        let has_waiters = self.budget.queue(&self.owner.borrow()).has_waiters.load(Ordering::SeqCst);
        if !has_waiters {
            match self.try_grow(bytes) {
                Ok(()) => return AdmissionDecision::Admitted,
                Err(BudgetExceeded::Share) => return AdmissionDecision::Refused,
                Err(BudgetExceeded::Room) => {}
            }
        }
        let until = clock::now() + ADMISSION_TIMEOUT;
        let timer = Timer::default();
        AdmissionDecision::Wait(PendingAdmission { reservation: Rc::clone(self), bytes, number: None, until, timer })
    }

    pub(crate) fn release(&self) {
        self.budget.give_back(&self.owner.borrow(), self.held.take());
    }

    /// Moves the session's bytes to a separate reservation for the received message, so that the session's next message
    /// starts with an empty reservation.
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

/// Memory that is reserved for a received message until the spool has stored the message.
#[derive(Debug)]
pub(crate) struct DetachedReservation {
    bytes: u64,
    /// This field must stay before `reservation`, so that its reference to the client's share is dropped first.
    /// Dropping `reservation` may call `MemoryBudget::forget`, which would otherwise see this reference and keep the
    /// share forever.
    owner: ReservationOwner,
    reservation: Rc<Reservation>,
}

impl Drop for DetachedReservation {
    fn drop(&mut self) {
        self.reservation.budget.give_back(&self.owner, self.bytes);
    }
}

/// A message that waits for room in the memory budget. The future is ready when the message is admitted (`true`) or
/// refused (`false`). A message is refused if it has waited too long, or if its client's share is used up.
#[must_use = "a message is admitted only by waiting"]
#[derive(Debug)]
pub(crate) struct PendingAdmission {
    reservation: Rc<Reservation>,
    bytes: u64,
    number: Option<u64>,
    until: Duration,
    timer: Timer,
}

impl PendingAdmission {
    /// Puts the message into the queue if it is not there yet. Returns true if the message is the first in the queue.
    fn is_first(&mut self, waker: &Waker) -> bool {
        let owner = self.reservation.owner.borrow();
        let queue = self.reservation.budget.queue(&owner);
        let mut waiters = queue.waiters();
        let number = *self.number.get_or_insert_with(|| {
            waiters.last_number += 1;
            let number = waiters.last_number;
            waiters.waiting.push_back((number, waker.clone()));
            number
        });
        queue.has_waiters.store(true, Ordering::SeqCst);
        if let Some((_, known)) = waiters.waiting.iter_mut().find(|(other, _)| *other == number) {
            known.clone_from(waker);
        }
        waiters.waiting.front().is_some_and(|(first, _)| *first == number)
    }

    /// Reserves memory for the message if it is the first in the queue and the budget has enough room. Returns true if
    /// the message is admitted, false if it is refused, and `None` while it must wait.
    fn try_admit(&mut self, waker: &Waker) -> Option<bool> {
        if !self.is_first(waker) {
            return None;
        }
        match self.reservation.try_grow(self.bytes) {
            Ok(()) => Some(true),
            Err(BudgetExceeded::Room) => None,
            // While the message waited, other connections of its client address have used up the client's share.
            // Refuse the message, because messages of other clients wait behind it.
            Err(BudgetExceeded::Share) => Some(false),
        }
    }
}

impl Future for PendingAdmission {
    type Output = bool;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<bool> {
        let pending = &mut *self;
        if let Some(is_in) = pending.try_admit(cx.waker()) {
            return Poll::Ready(is_in);
        }
        pending.timer.poll_due(Some(pending.until), clock::now()).map(|()| false)
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

    #[derive(Default)]
    struct AdmissionWakes(AtomicUsize);

    impl Wake for AdmissionWakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    struct AdmissionFixture {
        reservation: Rc<Reservation>,
        wakes: Arc<AdmissionWakes>,
        admission: Option<PendingAdmission>,
    }

    impl AdmissionFixture {
        fn new(budget: &Arc<MemoryBudget>) -> Self {
            Self { reservation: Reservation::new(budget), wakes: Arc::default(), admission: None }
        }

        fn begins(&mut self, announced: Option<u64>) -> bool {
            self.admission = match self.reservation.admit(0, announced) {
                AdmissionDecision::Admitted => return true,
                AdmissionDecision::Wait(pending) => Some(pending),
                AdmissionDecision::Refused => return false,
            };
            self.is_admitted()
        }

        fn is_admitted(&mut self) -> bool {
            let waker = Waker::from(Arc::clone(&self.wakes));
            let pending = self.admission.as_mut().expect("it waits");
            // Call `try_admit` instead of polling the future, because a poll would also check the time limit.
            let looked = pending.try_admit(&waker);
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
        let budget = MemoryBudget::new(10 * GROWTH_BYTES, 0);
        let reservation = Reservation::new(&budget);
        assert!(reservation.grow(1) && reservation.grow(GROWTH_BYTES), "one step for both");
        assert_eq!(budget.used_bytes(), GROWTH_BYTES);
        assert!(reservation.grow(9 * GROWTH_BYTES + 1));
        assert_eq!(budget.used_bytes(), 10 * GROWTH_BYTES);
        assert!(!reservation.grow(10 * GROWTH_BYTES + 1), "there is no more");
        assert!(reservation.grow(10 * GROWTH_BYTES), "a refusal takes nothing away");
        let held = reservation.detach();
        assert!(!reservation.grow(1), "its next message is another one");
        drop(held);
        assert!(reservation.grow(1));
        drop(reservation);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn later_messages_do_not_pass_waiting_ones() {
        let budget = MemoryBudget::new(8 * GROWTH_BYTES, 0);
        let full = Reservation::new(&budget);
        assert!(full.grow(8 * GROWTH_BYTES));
        let [mut first, mut second, mut third] = [(); 3].map(|()| AdmissionFixture::new(&budget));
        assert!(!first.begins(Some(GROWTH_BYTES)) && !second.begins(Some(GROWTH_BYTES)));
        full.release();
        assert!(first.was_woken() && !second.was_woken());
        assert!(!third.begins(Some(1)), "there is room, and there are others");
        assert!(!second.is_admitted() && first.is_admitted());
        assert!(second.was_woken() && second.is_admitted());
        // A message that gives up waiting must not block the messages behind it.
        assert!(third.was_woken());
        third.admission = None;
        assert!(AdmissionFixture::new(&budget).begins(Some(1)));
    }

    fn untrusted_client(last: u8) -> ClientKey {
        ClientKey::of(std::net::IpAddr::from([192, 0, 2, last]))
    }

    fn untrusted_session(budget: &Arc<MemoryBudget>, last: u8) -> AdmissionFixture {
        let session = AdmissionFixture::new(budget);
        session.reservation.charge_untrusted(untrusted_client(last));
        session
    }

    #[test]
    fn what_is_announced_costs_no_more_than_a_short_message() {
        let budget = MemoryBudget::new(1000 * INITIAL_BYTES_LIMIT, 0);
        let mut sessions: Vec<AdmissionFixture> = (0..100).map(|_| AdmissionFixture::new(&budget)).collect();
        assert!(sessions.iter_mut().all(|session| session.begins(Some(u64::MAX))));
        assert_eq!(budget.used_bytes(), 100 * INITIAL_BYTES_LIMIT);
        assert!(AdmissionFixture::new(&budget).begins(Some(1)) && AdmissionFixture::new(&budget).begins(None));
    }

    #[test]
    fn untrusted_clients_leave_a_reserve_for_logged_in_ones() {
        let budget = MemoryBudget::new(1600 * GROWTH_BYTES, 0);
        let untrusted: Vec<AdmissionFixture> = (0..100).map(|last| untrusted_session(&budget, last)).collect();
        for session in &untrusted {
            session.reservation.grow(12 * GROWTH_BYTES);
        }
        assert_eq!((budget.untrusted_bytes(), budget.used_bytes()), (1200 * GROWTH_BYTES, 1200 * GROWTH_BYTES));
        assert!(!untrusted_session(&budget, 101).reservation.grow(1));
        let trusted = AdmissionFixture::new(&budget);
        assert!(trusted.reservation.grow(399 * GROWTH_BYTES));
        let mut late = untrusted_session(&budget, 102);
        assert!(!late.begins(None));
        late.admission = None;
        late.reservation.charge_trusted();
        assert!(late.reservation.grow(GROWTH_BYTES) && !late.reservation.grow(2 * GROWTH_BYTES));
        drop((untrusted, trusted, late));
        assert_eq!((budget.untrusted_bytes(), budget.used_bytes()), (0, 0));
        assert!(budget.shares.iter().all(|shares| shares.is_empty()), "who is gone takes no room");
    }

    #[test]
    fn one_address_keeps_no_other_out_however_many_connections_it_has() {
        let budget = MemoryBudget::new(1600 * GROWTH_BYTES, 0);
        let greedy: Vec<AdmissionFixture> = (0..13).map(|_| untrusted_session(&budget, 1)).collect();
        for session in greedy.iter().cycle().take(13 * 1600) {
            session.reservation.grow(session.reservation.held.get() + GROWTH_BYTES);
        }
        assert_eq!(budget.untrusted_bytes(), 900 * GROWTH_BYTES, "a quarter of the untrusted clients' part is left");
        assert!(matches!(greedy[0].reservation.admit(u64::from(u32::MAX), None), AdmissionDecision::Refused));
        assert!(untrusted_session(&budget, 2).begins(None) && AdmissionFixture::new(&budget).begins(None));
        // Other clients must still get their shares of the remaining memory. When these clients release the memory, the
        // waiting clients must be admitted.
        let others: Vec<AdmissionFixture> = (2..6).map(|last| untrusted_session(&budget, last)).collect();
        assert!(others.iter().all(|session| session.reservation.grow(75 * GROWTH_BYTES)));
        let [mut modest, mut more] = [6, 7].map(|last| untrusted_session(&budget, last));
        assert!(!modest.begins(None) && !more.begins(None) && modest.admission.is_some());
        drop(others);
        assert!(modest.was_woken() && modest.is_admitted() && more.is_admitted());
    }

    #[test]
    fn each_part_holds_the_longest_message_and_a_message_alone_has_all_it_needs() {
        for (limit, longest) in [(1000, 10), (1000, 1000), (1000, 900), (1000, 750)] {
            let budget = MemoryBudget::new(limit * GROWTH_BYTES, longest * GROWTH_BYTES);
            assert!(untrusted_session(&budget, 1).reservation.grow(longest * GROWTH_BYTES), "{limit} {longest}");
            assert!(AdmissionFixture::new(&budget).reservation.grow(longest * GROWTH_BYTES));
            assert!(budget.limit_bytes() - budget.untrusted_limit_bytes() >= budget.limit_bytes() / 4 - GROWTH_BYTES);
        }
    }

    proptest! {
        /// Sessions reserve and give back memory in random order. The number of used bytes must never exceed the limit,
        /// and must always equal the sum of the sessions' bytes.
        #[test]
        fn bytes_are_accounted_for(steps in prop::collection::vec((0..6_usize, 0..6_u8, 0..20_000_u64), 0..200)) {
            let budget = MemoryBudget::new(64 << 10, 0);
            let reservations: Vec<_> = (0..6).map(|_| Reservation::new(&budget)).collect();
            let mut held = Vec::new();
            for (which, what, bytes) in steps {
                match what {
                    0 => reservations[which].release(),
                    1 => held.push(reservations[which].detach()),
                    2 => drop(held.pop()),
                    3 if bytes % 3 == 0 => reservations[which].charge_trusted(),
                    3 => reservations[which].charge_untrusted(untrusted_client((bytes % 3) as u8)),
                    _ => {
                        let before = reservations[which].held.get();
                        let is_covered = reservations[which].grow(bytes);
                        prop_assert_eq!(is_covered, reservations[which].held.get() >= bytes);
                        prop_assert!(is_covered || reservations[which].held.get() == before);
                    }
                }
                let all = || {
                    let now = reservations.iter().map(|reservation| (reservation.owner.borrow().clone(), reservation.held.get()));
                    now.chain(held.iter().map(|held: &DetachedReservation| (held.owner.clone(), held.bytes)))
                };
                let sum = |bytes: &mut dyn Iterator<Item = u64>| bytes.sum::<u64>();
                prop_assert_eq!(budget.used_bytes(), sum(&mut all().map(|(_, bytes)| bytes)));
                let untrusted = all().filter(|(owner, _)| matches!(owner, ReservationOwner::Untrusted(_)));
                prop_assert_eq!(budget.untrusted_bytes(), sum(&mut untrusted.map(|(_, bytes)| bytes)));
                prop_assert!(budget.used_bytes() <= 64 << 10 && budget.untrusted_bytes() <= 48 << 10);
            }
        }
    }
}
