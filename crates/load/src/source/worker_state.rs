//! State that the sessions of a worker share: the schedule, the list of sessions that wait for a
//! message, and the tally (counts and times), which goes to the collector four times per second.
use super::context::SourceContext;
use super::control::{NUMBERS_LOG2, UserTarget};
use super::reply_log::ReplyLog;
use crate::tally_exchange::{TallySender, TallyTransfer};
use mailrun_lock::lock;
use mailrun_measurement::reply_text::ReplyText;
use mailrun_measurement::trace::sequence_of;
use mailrun_measurement::{LatencyKind, SourceTally};
use mailrun_net::clock;
use mailrun_schedule::offered_rate::OfferedRate;
use mailrun_schedule::pacing::ArrivalSchedule;
use mailrun_smtp::ReceivedReply;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

pub(super) const TALLY_INTERVAL: Duration = Duration::from_millis(250);

/// Interval at which a worker measures how late it wakes up. 50 samples per second are enough for a
/// percentile, and cost next to nothing.
const WAKE_UP_INTERVAL: Duration = Duration::from_millis(20);

/// Interval at which a worker that waits for a due time checks whether a controller has changed the number of users.
const CONTROL_INTERVAL: Duration = Duration::from_millis(20);
const GOLDEN_RATIO: f64 = 0.618_033_988_749_894_9;

#[derive(Clone, Copy, Debug)]
pub(super) struct ClaimedMessage {
    /// Number of the message in the run, from 0. It determines the random choices for the message.
    pub(super) number: u64,
    /// Time at which the message was due (open loop) or claimed (closed loop).
    pub(super) since: Duration,
    pub(super) began: Duration,
    pub(super) recipients: u32,
    /// True if the message was created during the warm-up, so that it is accounted for but not timed.
    pub(super) is_warm_up: bool,
    /// Number of the load stage in which the message was due, from 1, or 0 if the load has no stages.
    pub(super) load_stage: u8,
    /// Sequence number in the trace header: message number, load stage and warm-up mark, packed into one integer.
    pub(super) sequence: u64,
}

pub(super) struct SourceWorkerArgs {
    pub(super) number: usize,
    pub(super) workers: usize,
    pub(super) context: Arc<SourceContext>,
    pub(super) tally_tx: Sender<TallyTransfer<SourceTally>>,
}

impl SourceWorkerArgs {
    /// Returns the schedule of the times at which this worker's messages are due. If a controller sets the number of
    /// users, the rate in the options is the rate of a single user.
    fn schedule(&self, offer: OfferedRate, users: Option<UserTarget>) -> ArrivalSchedule {
        let options = &self.context.options;
        let Some(target) = users else { return options.schedule(offer, self.context.began, self.number, self.workers) };
        let part = options.part();
        let position = part.position(self.number as u64) as usize;
        let workers = self.workers * part.count() as usize;
        let offer = match offer {
            OfferedRate::Constant(per_user) => OfferedRate::Constant(per_user * f64::from(target.users)),
            stages @ OfferedRate::Stages(_) => stages,
        };
        // Hosts that share a load have the same seed and begin at the same time, but their messages must not be due at
        // the same moments. Only the first message number differs between the hosts, so derive seed and phase from it.
        let first = options.control.as_ref().map_or(0, |control| control.first_message());
        let seed = options.seed.wrapping_add(first);
        let phase = ((first >> NUMBERS_LOG2) as f64 * GOLDEN_RATIO).fract();
        ArrivalSchedule::new(options.arrival, offer, self.context.began, position, workers, seed).with_phase(phase)
    }
}

/// Records whether a session is in the list of sessions that wait for a message, so that a session that asks for a
/// message twice is listed only once.
#[derive(Debug, Default)]
pub(super) struct ParkEntry(Rc<Cell<ParkState>>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ParkState {
    #[default]
    Running,
    Parked,
    Woken,
    /// The session took a message before it was woken, so its entry is still in the list of waiting sessions.
    BusyListed,
    /// The session was told to end, because the load now needs fewer sessions.
    Surplus,
}

struct ParkedSession {
    waker: Waker,
    state: Rc<Cell<ParkState>>,
}

impl ParkEntry {
    /// Records that the session waits for a message to send. Returns true if the caller must add the session to the
    /// list of waiting sessions, because it is not on the list yet.
    fn park(&self) -> bool {
        !matches!(self.0.replace(ParkState::Parked), ParkState::Parked | ParkState::BusyListed)
    }

    /// Records that the session has taken a message to send. Returns true if the session was waiting for the message,
    /// and false if it was busy until now. In the second case, the server and not the source has delayed the message.
    fn claim(&self) -> bool {
        let (was_waiting, state) = match self.0.get() {
            ParkState::Parked => (true, ParkState::BusyListed),
            ParkState::Woken => (true, ParkState::Running),
            state => (false, state),
        };
        self.0.set(state);
        was_waiting
    }
}

impl ParkedSession {
    fn wake(self) {
        self.state.set(match self.state.get() {
            ParkState::Parked => ParkState::Woken,
            ParkState::BusyListed => ParkState::Running,
            state => state,
        });
        self.waker.wake();
    }
}

pub(super) struct SourceWorkerState {
    args: SourceWorkerArgs,
    name: Arc<str>,
    tally: RefCell<Box<SourceTally>>,
    tally_sender: TallySender<SourceTally>,
    replies: RefCell<ReplyLog>,
    /// Schedule that says when messages are due in an open loop, or `None` in a closed loop.
    schedule: Option<RefCell<ArrivalSchedule>>,
    /// Number of users for which the schedule was last computed, or `None` if no controller sets this number.
    scheduled_users: Cell<Option<UserTarget>>,
    parked: RefCell<VecDeque<ParkedSession>>,
    /// A waker for each session that pauses between messages, so that the end of the run can wake the session.
    pausing: RefCell<Vec<Waker>>,
    /// Number of sessions that were started and have not been told to end.
    live_sessions: Cell<usize>,
}

impl SourceWorkerState {
    pub(super) fn new(post: SourceWorkerArgs) -> Self {
        let options = &post.context.options;
        let users = options.control.as_ref().map(|control| control.users());
        Self {
            name: options.hello.as_str().into(),
            tally: RefCell::default(),
            tally_sender: TallySender::new(post.tally_tx.clone(), Box::default()),
            replies: RefCell::default(),
            schedule: options.offered_rate.clone().map(|offer| RefCell::new(post.schedule(offer, users))),
            scheduled_users: Cell::new(users),
            parked: RefCell::default(),
            pausing: RefCell::default(),
            live_sessions: Cell::new(0),
            args: post,
        }
    }

    pub(super) fn context(&self) -> &Arc<SourceContext> {
        &self.args.context
    }

    pub(super) fn hello_name(&self) -> &Arc<str> {
        &self.name
    }

    pub(super) fn record_reply(&self, sequence: u64, now: Duration, reply: &ReceivedReply<'_>) {
        self.replies.borrow_mut().record(sequence, now, reply);
    }

    /// Returns the last reply to a message, unless newer replies have overwritten it.
    pub(super) fn find_reply(&self, sequence: u64) -> Option<ReplyText> {
        self.replies.borrow().find(sequence)
    }

    pub(super) fn send_replies(&self) {
        lock(&self.args.context.replies).push(self.replies.take());
    }

    pub(super) fn update_tally(&self, count: impl FnOnce(&mut SourceTally)) {
        count(&mut self.tally.borrow_mut());
    }

    fn session_share(&self) -> usize {
        let options = &self.args.context.options;
        let control = options.control.as_ref().filter(|_| self.schedule.is_none());
        let all = control.map_or(options.sessions, |control| control.sessions()) as usize;
        let workers = self.args.workers;
        all / workers + usize::from(self.args.number < all % workers)
    }

    /// Returns the number of sessions that the caller must start now, and counts them as live from now on.
    pub(super) fn missing_sessions(&self) -> usize {
        let missing = self.session_share().saturating_sub(self.live_sessions.get());
        self.live_sessions.update(|live| live + missing);
        missing
    }

    /// Wakes all waiting sessions if the load now needs fewer sessions. A woken session asks for a message again, and
    /// only then learns whether it is surplus and must end.
    pub(super) fn wake_surplus(&self) {
        if self.live_sessions.get() > self.session_share() {
            self.parked.borrow_mut().drain(..).for_each(ParkedSession::wake);
        }
    }

    /// Returns true if the session must end because there are more sessions than the load needs now. Once it has
    /// returned true for a session, all later calls for that session return true as well.
    fn is_surplus(&self, entry: &ParkEntry) -> bool {
        let is_told = entry.0.get() == ParkState::Surplus;
        if !is_told && self.args.context.options.control.is_some() && self.live_sessions.get() > self.session_share() {
            entry.0.set(ParkState::Surplus);
            self.live_sessions.update(|live| live - 1);
            return true;
        }
        is_told
    }

    pub(super) fn session_ended(&self, entry: &ParkEntry) {
        if entry.0.get() != ParkState::Surplus {
            self.live_sessions.update(|live| live.saturating_sub(1));
        }
    }

    /// Returns the next message for a session: at once in a closed loop, and when the message is due in an open loop.
    /// `None` means that the session must end, because there are no more messages or too many sessions.
    pub(super) fn poll_claim(
        &self,
        cx: &mut Context<'_>,
        entry: &ParkEntry,
        now: Duration,
    ) -> Poll<Option<ClaimedMessage>> {
        if self.is_surplus(entry) {
            return Poll::Ready(None);
        }
        let plan = &self.args.context.plan;
        // In an open loop, latency counts from the time at which the message was due, even if all sessions were busy.
        let since = match &self.schedule {
            None => now,
            Some(_) if plan.is_over(now) => return Poll::Ready(None),
            Some(schedule) => {
                let due = schedule.borrow().due();
                if due > now {
                    self.park(cx, entry);
                    return Poll::Pending;
                }
                due
            }
        };
        let Some(number) = plan.claim(now) else { return Poll::Ready(None) };
        let setting = &self.args.context;
        let is_warm_up = since < setting.warm_up_until;
        let load_stage = setting.load_stage(since);
        let claim = ClaimedMessage {
            number,
            since,
            began: now,
            recipients: setting.options.recipients(number),
            is_warm_up,
            load_stage,
            sequence: sequence_of(number, load_stage, is_warm_up),
        };
        self.count_created(entry, &claim, now);
        Poll::Ready(Some(claim))
    }

    fn count_created(&self, entry: &ParkEntry, claim: &ClaimedMessage, now: Duration) {
        let since = claim.since;
        let was_waiting = entry.claim();
        self.update_tally(|tally| {
            tally.created += 1;
            tally.recipients_created += u64::from(claim.recipients);
            tally.first_due.get_or_insert(since);
            if let Some(stage) = tally.of_load_stage(claim.load_stage) {
                count_created_in_stage(stage, claim, now);
            }
            if claim.is_warm_up {
                tally.warm_up.created += 1;
                return;
            }
            tally.first_created.get_or_insert(since);
            tally.created_times.record(now, since);
            tally.due_seconds.add(since, self.args.context.zero);
            if self.schedule.is_some() {
                tally.time(LatencyKind::Slip, now - since);
            }
            if was_waiting {
                tally.time(LatencyKind::Lag, now - since);
            }
        });
        if let Some(schedule) = &self.schedule {
            schedule.borrow_mut().advance();
        }
    }

    /// Registers a session that will pause between messages, so that the end of the run can wake
    /// it. Each session must call this only once.
    pub(super) fn register_pause(&self, cx: &mut Context<'_>) {
        self.pausing.borrow_mut().push(cx.waker().clone());
    }

    fn park(&self, cx: &mut Context<'_>, entry: &ParkEntry) {
        if entry.park() {
            let place = Rc::clone(&entry.0);
            self.parked.borrow_mut().push_back(ParkedSession { waker: cx.waker().clone(), state: place });
        }
    }

    pub(super) async fn wake_on_schedule(&self) {
        let Some(schedule) = &self.schedule else { return std::future::pending().await };
        loop {
            let due = self.due_as_controlled(schedule);
            let looks_again = clock::now() + CONTROL_INTERVAL;
            if self.scheduled_users.get().is_some() && due > looks_again {
                mailrun_net::sleep_until(looks_again).await;
                continue;
            }
            mailrun_net::sleep_until(due).await;
            let session = self.parked.borrow_mut().pop_front();
            match session {
                Some(session) => session.wake(),
                // All sessions are busy. A session that finishes its message asks for the next message itself, so it
                // need not be woken.
                None => mailrun_net::sleep(Duration::from_millis(1)).await,
            }
            poll_fn(yield_once()).await;
        }
    }

    /// Returns the time at which the next message is due. First adjusts the schedule if the number
    /// of users has changed.
    fn due_as_controlled(&self, schedule: &RefCell<ArrivalSchedule>) -> Duration {
        let options = &self.args.context.options;
        let wanted = options.control.as_ref().map(|control| control.users());
        if let (Some(target), Some(OfferedRate::Constant(per_user))) = (wanted, &options.offered_rate)
            && self.scheduled_users.replace(wanted) != wanted
        {
            schedule.borrow_mut().change(target.since, OfferedRate::Constant(per_user * f64::from(target.users)));
        }
        schedule.borrow().due()
    }

    /// Sends the tally to the collector periodically, unless the collector is behind. Once the run
    /// is over, also wakes waiting and pausing sessions, so that they end.
    pub(super) async fn tick(&self) {
        loop {
            mailrun_net::sleep(TALLY_INTERVAL).await;
            self.send_tally();
            if self.args.context.plan.is_over(clock::now()) {
                self.parked.borrow_mut().drain(..).for_each(ParkedSession::wake);
                self.pausing.borrow().iter().for_each(Waker::wake_by_ref);
            }
        }
    }

    /// Measures how late the worker wakes up after a timer, whose due time is known exactly. The worker notices replies
    /// equally late, because it waits for timers and replies with the same epoll.
    pub(super) async fn measure_wake_ups(&self) {
        loop {
            let deadline = clock::now() + WAKE_UP_INTERVAL;
            mailrun_net::sleep_until(deadline).await;
            let late = clock::now().saturating_sub(deadline);
            self.tally.borrow_mut().wake_ups.record(late);
        }
    }

    fn send_tally(&self) {
        if let Some(empty) = self.tally_sender.take_empty() {
            self.replace_tally(empty);
        }
    }

    /// Sends the last tally, even if the collector has not returned an earlier one yet.
    pub(super) fn send_last_tally(&self) {
        self.replace_tally(Box::default());
    }

    fn replace_tally(&self, empty: Box<SourceTally>) {
        let mut full = self.tally.replace(empty);
        full.flush_times();
        self.tally_sender.send(full);
    }
}

#[cold]
fn count_created_in_stage(stage: &mut SourceTally, claim: &ClaimedMessage, now: Duration) {
    let since = claim.since;
    stage.created += 1;
    stage.recipients_created += u64::from(claim.recipients);
    if claim.is_warm_up {
        stage.warm_up.created += 1;
        return;
    }
    stage.first_created.get_or_insert(since);
    stage.created_times.record(now, since);
    stage.slip.record(now.saturating_sub(since));
}

/// Yields once, so that the woken session takes its message before the schedule is checked again.
fn yield_once() -> impl FnMut(&mut Context<'_>) -> Poll<()> {
    let mut yielded = false;
    move |cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn park(entry: &ParkEntry, list: &mut Vec<ParkedSession>) {
        if entry.park() {
            list.push(ParkedSession { waker: Waker::noop().clone(), state: Rc::clone(&entry.0) });
        }
    }

    #[test]
    fn a_session_waits_only_until_it_claims_a_message() {
        let entry = ParkEntry::default();
        let mut list = Vec::new();
        assert!(!entry.claim(), "it has never waited");
        park(&entry, &mut list);
        list.pop().unwrap().wake();
        assert!(entry.claim());
        assert!(!entry.claim(), "it was busy with the message before");
        // This session takes a message before the list wakes it, so it stays on the list. When the session waits again,
        // it must not be added to the list a second time.
        park(&entry, &mut list);
        assert!(entry.claim());
        assert!(!entry.claim(), "it was busy with the message before");
        park(&entry, &mut list);
        assert_eq!(list.len(), 1, "it is on the list only once");
        assert!(entry.claim());
        list.pop().unwrap().wake();
        assert!(!entry.claim(), "it was busy when the list woke it");
        park(&entry, &mut list);
        assert_eq!(list.len(), 1, "it is no longer on the list, so it was put there again");
    }

    #[test]
    fn a_session_that_must_end_is_not_counted_twice() {
        let entry = ParkEntry::default();
        let mut list = Vec::new();
        park(&entry, &mut list);
        entry.0.set(ParkState::Surplus);
        list.pop().unwrap().wake();
        assert_eq!(entry.0.get(), ParkState::Surplus);
    }
}
