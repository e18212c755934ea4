//! How much mail may be on its way in at a time: what sessions hold of it until the spool has it.
//!
//! ```text
//! RCPT, octets ── cover ──▶ ┌───────── intake ─────────┐
//! DATA, BDAT   ── enter ──▶ │ used ▓▓▓▓▓▓▓▓▓░░░░░ most │ ── the receipt ──▶ given back
//!                  ▲        └──────────────────────────┘
//!                  └─ no room: 354 waits in line for a while, then 452 4.3.1
//! ```
//! New messages wait, those under way never do. If all who find no room waited, sessions with half a message each would
//! wait for each other until they time out. If all were refused, a burst of a tenth of a second would send clients away
//! for the minutes until their next try (RFC 5321 §4.5.4.1). So the 354 is held back, within the two minutes that a
//! client waits for it (§4.5.3.2.5); and a message that outgrows what is left gives up what it holds at once, is read to
//! its end and answered 452 (§4.2.2: insufficient system storage), and the others go on. Since the whole holds the
//! longest message, somebody always comes to the end.
use net::{Alarm, clock};
use std::cell::Cell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Claims grow by so much, so that a small message asks once.
const STEP: u64 = 4096;
/// How long a message waits for room: longer than any burst, shorter than the patience of clients that keep less of it
/// than RFC 5321 §4.5.3.2.5 wants.
const PATIENCE: Duration = Duration::from_secs(20);
/// What a message claims before its first octet if it has not said how long it is.
const UNKNOWN_BYTES: u64 = 16 << 10;
/// And what it claims then at most, as a part of the whole: who announces much and sends nothing must not keep all
/// others out.
const FIRST_SHARE: u64 = 8;

/// The octets that sessions may hold, of all workers.
#[derive(Debug)]
pub(super) struct Intake {
    most: u64,
    used: AtomicU64,
    line: Mutex<Line>,
    /// Whether somebody waits: to ask costs less than the lock.
    has_line: AtomicBool,
}

/// Those who wait to be let in, the first in front.
#[derive(Debug, Default)]
struct Line {
    waiting: VecDeque<(u64, Waker)>,
    numbers: u64,
}

impl Intake {
    pub(super) fn new(most_bytes: u64) -> Arc<Self> {
        let most = most_bytes.next_multiple_of(STEP);
        Arc::new(Self { most, used: AtomicU64::new(0), line: Mutex::default(), has_line: AtomicBool::new(false) })
    }

    /// What is held now.
    pub(super) fn used_bytes(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// What may be held.
    pub(super) fn most_bytes(&self) -> u64 {
        self.most
    }

    fn take(&self, bytes: u64) -> bool {
        let fits = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.most);
        self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fits).is_ok()
    }

    fn give(&self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        self.used.fetch_sub(bytes, Ordering::SeqCst);
        // Whoever joins the line says so before it looks for room, so one of both sees the other.
        if self.has_line.load(Ordering::SeqCst) {
            self.line().call_first();
        }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one out of the line, and lets the next look.
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

/// What one session holds. Given back when it is dropped.
#[derive(Debug)]
pub(super) struct Claim {
    intake: Arc<Intake>,
    held: Cell<u64>,
}

impl Claim {
    pub(super) fn new(intake: &Arc<Intake>) -> Rc<Self> {
        Rc::new(Self { intake: Arc::clone(intake), held: Cell::new(0) })
    }

    /// Sees to it that the session holds so much in all; whether there is room.
    pub(super) fn cover(&self, bytes: u64) -> bool {
        let held = self.held.get();
        if bytes <= held {
            return true;
        }
        let wanted = bytes.saturating_add(STEP - 1) / STEP * STEP;
        let has_room = self.intake.take(wanted - held);
        if has_room {
            self.held.set(wanted);
        }
        has_room
    }

    /// For a message that is about to begin, behind an envelope of that size: whether it may at once. If not, it is to
    /// wait for its [`Turn`].
    pub(super) fn enter(self: &Rc<Self>, envelope_bytes: u64, announced: Option<u64>) -> Result<(), Turn> {
        let first = announced.unwrap_or(UNKNOWN_BYTES).min(self.intake.most / FIRST_SHARE);
        let bytes = envelope_bytes.saturating_add(first);
        // Who comes later does not pass those who wait.
        if !self.intake.has_line.load(Ordering::SeqCst) && self.cover(bytes) {
            return Ok(());
        }
        let (until, alarm) = (clock::now() + PATIENCE, Alarm::default());
        Err(Turn { claim: Rc::clone(self), bytes, number: None, until, alarm })
    }

    /// Gives all of it back.
    pub(super) fn release(&self) {
        self.intake.give(self.held.take());
    }

    /// The session begins anew with nothing; what it held is held for its last message still.
    pub(super) fn hand_over(self: &Rc<Self>) -> Held {
        Held { bytes: self.held.take(), claim: Rc::clone(self) }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.release();
    }
}

/// What a message holds that waits for its receipt.
#[derive(Debug)]
pub(super) struct Held {
    claim: Rc<Claim>,
    bytes: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.claim.intake.give(self.bytes);
    }
}

/// A message in line: ready when it is let in (`true`), or has waited long enough.
#[must_use = "who does not wait is not let in"]
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
    /// Whether it is the first of the line, which it joins.
    fn is_first(&mut self, waker: &Waker) -> bool {
        let intake = &self.claim.intake;
        let mut line = intake.line();
        let number = *self.number.get_or_insert_with(|| {
            line.numbers += 1;
            let number = line.numbers;
            line.waiting.push_back((number, waker.clone()));
            number
        });
        intake.has_line.store(true, Ordering::SeqCst);
        if let Some((_, known)) = line.waiting.iter_mut().find(|(other, _)| *other == number) {
            known.clone_from(waker);
        }
        line.waiting.front().is_some_and(|(first, _)| *first == number)
    }
}

impl Future for Turn {
    type Output = bool;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<bool> {
        let turn = &mut *self;
        if turn.is_first(cx.waker()) && turn.claim.cover(turn.bytes) {
            return Poll::Ready(true);
        }
        turn.alarm.poll_due(Some(turn.until), clock::now()).map(|()| false)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.claim.intake.leave_line(number);
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

    /// A session that tries to begin a message, and what it was told.
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
            self.turn = self.claim.enter(0, announced).err();
            self.turn.is_none() || self.is_let_in()
        }

        fn is_let_in(&mut self) -> bool {
            let waker = Waker::from(Arc::clone(&self.bell));
            let turn = self.turn.as_mut().expect("it waits");
            // Before its time is up a turn is not asked for its alarm in these tests: the line says no, or room is there.
            let is_in = turn.is_first(&waker) && turn.claim.cover(turn.bytes);
            if is_in {
                self.turn = None;
            }
            is_in
        }

        fn was_woken(&self) -> bool {
            self.bell.0.swap(0, Ordering::SeqCst) > 0
        }
    }

    #[test]
    fn a_session_holds_what_it_covers_until_it_gives_it_back() {
        let intake = Intake::new(10 * STEP);
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
        let intake = Intake::new(8 * STEP);
        let full = Claim::new(&intake);
        assert!(full.cover(8 * STEP));
        let [mut first, mut second, mut third] = [(); 3].map(|()| Session::new(&intake));
        assert!(!first.enters(Some(STEP)) && !second.enters(Some(STEP)));
        full.release();
        assert!(first.was_woken() && !second.was_woken());
        assert!(!third.enters(Some(1)), "there is room, and there are others");
        assert!(!second.is_let_in() && first.is_let_in());
        assert!(second.was_woken() && second.is_let_in());
        // One that goes away keeps nobody.
        assert!(third.was_woken());
        third.turn = None;
        assert!(Session::new(&intake).enters(Some(1)));
    }

    #[test]
    fn who_announces_much_does_not_keep_others_out() {
        let intake = Intake::new(80 * STEP);
        let mut sessions: Vec<Session> = (0..8).map(|_| Session::new(&intake)).collect();
        for session in &mut sessions {
            assert!(session.enters(Some(u64::MAX)));
        }
        assert_eq!(intake.used_bytes(), 80 * STEP);
        assert!(!Session::new(&intake).enters(None));
    }

    proptest! {
        /// However sessions grow, give up and come again: no more is held than may be, and what is held is what they say.
        #[test]
        fn books_are_kept(steps in prop::collection::vec((0..6_usize, 0..5_u8, 0..20_000_u64), 0..200)) {
            let intake = Intake::new(64 << 10);
            let claims: Vec<_> = (0..6).map(|_| Claim::new(&intake)).collect();
            let mut held = Vec::new();
            for (which, what, bytes) in steps {
                match what {
                    0 => claims[which].release(),
                    1 => held.push(claims[which].hand_over()),
                    2 => drop(held.pop()),
                    _ => {
                        let before = claims[which].held.get();
                        let is_covered = claims[which].cover(bytes);
                        prop_assert_eq!(is_covered, claims[which].held.get() >= bytes);
                        prop_assert!(is_covered || claims[which].held.get() == before);
                    }
                }
                let sum: u64 = claims.iter().map(|claim| claim.held.get()).chain(held.iter().map(|held| held.bytes)).sum();
                prop_assert_eq!(intake.used_bytes(), sum);
                prop_assert!(sum <= 64 << 10);
            }
        }
    }
}
