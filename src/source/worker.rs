//! A worker thread of the source: its share of the sessions, its own schedule and its own tally, handed to the
//! collector four times per second.
use super::Setting;
use super::pacing::Schedule;
use super::session;
use crate::reason::reason;
use anyhow::{Context as _, Result, bail};
use journey::{SourceTally, Timed};
use net::{Desk, Files, clock};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::mpsc;

/// Interval at which a worker hands over its tally.
pub(super) const TICK: Duration = Duration::from_millis(250);

/// A message that a session has taken up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    /// Its number in the run, from 0, which random choices depend on.
    pub(super) number: u64,
    /// Time at which it was due, or at closed loop was claimed.
    pub(super) since: Duration,
    pub(super) recipients: u32,
    /// Set if it was created during the warm-up: it is accounted for, and not timed.
    pub(super) is_warm_up: bool,
}

/// The collector's ends of the workers' channels.
pub(super) struct Workers {
    /// Receives tallies; it closes when the last worker has ended.
    pub(super) tallies: Receiver<(usize, Box<SourceTally>)>,
    /// Returns emptied tallies to their worker.
    pub(super) emptied: Vec<Sender<Box<SourceTally>>>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl Workers {
    /// Waits for the threads, after the last tally.
    pub(super) fn join(self) {
        for thread in self.threads {
            // A thread that panicked has reported it on standard error.
            let _ = thread.join();
        }
    }
}

/// Starts the workers.
///
/// # Errors
/// If one could not start, because descriptors have run out. The others end with the process.
pub(super) fn start(setting: &Arc<Setting>) -> Result<Workers> {
    let workers = setting.options.workers.min(setting.options.sessions as usize).max(1);
    let (full, tallies) = channel();
    let began = clock::now();
    let started = (0..workers)
        .map(|number| {
            let (give, emptied) = channel();
            let (begun, begins) = channel();
            let post = Post { number, workers, began, setting: Arc::clone(setting), full: full.clone(), emptied };
            let work = move |desk| async move {
                // The starter waits for it.
                let _ = begun.send(());
                post.work(desk).await;
            };
            let thread = net::worker::spawn(&format!("load-{number}"), Files::Private, work);
            Ok((give, thread.context("cannot start a thread")?, begins))
        })
        .collect::<Result<Vec<_>>>()?;
    let mut emptied = Vec::new();
    let mut threads = Vec::new();
    for (give, thread, begins) in started {
        threads.push(begun(thread, &begins)?);
        emptied.push(give);
    }
    Ok(Workers { tallies, emptied, threads })
}

/// Waits until a worker has its event loop.
fn begun(thread: JoinHandle<io::Result<()>>, begins: &Receiver<()>) -> Result<JoinHandle<io::Result<()>>> {
    if begins.recv().is_ok() {
        return Ok(thread);
    }
    match thread.join() {
        Ok(Err(error)) => {
            bail!("a worker could not start: {}. Raise `ulimit -n`, or use fewer --workers.", reason(&error))
        }
        _ => bail!("a worker could not start"),
    }
}

/// A worker's number, channels and shared state.
struct Post {
    number: usize,
    workers: usize,
    began: Duration,
    setting: Arc<Setting>,
    full: Sender<(usize, Box<SourceTally>)>,
    emptied: Receiver<Box<SourceTally>>,
}

impl Post {
    async fn work(self, desk: Desk) {
        let recorder = Rc::new(Recorder::new(self));
        // Each session holds a sender; when the last is dropped, all sessions are over.
        let (presence, mut everybody) = mpsc::channel::<()>(1);
        for _ in 0..recorder.share() {
            let setting = Arc::clone(&recorder.post.setting);
            let recorder = Rc::clone(&recorder);
            let desk = desk.clone();
            let presence = presence.clone();
            net::worker::spawn_local(async move {
                session::run(setting, recorder, desk).await;
                drop(presence);
            });
        }
        drop(presence);
        tokio::select! {
            _ = everybody.recv() => {}
            () = recorder.tick() => {}
            () = recorder.wake_in_time() => {}
        }
        recorder.hand_over();
    }
}

/// A session's entry among those that wait until a message is due: it is listed once, however often it asks.
#[derive(Debug, Default)]
pub(super) struct Ticket(Rc<Cell<Place>>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// Working on a message.
    #[default]
    Away,
    /// Waiting for one.
    Listed,
    /// Woken for one.
    Called,
}

/// A session that waits.
struct Waiting {
    waker: Waker,
    place: Rc<Cell<Place>>,
}

impl Waiting {
    fn wake(self) {
        self.place.set(Place::Called);
        self.waker.wake();
    }
}

/// State that the sessions of a worker share.
pub(super) struct Recorder {
    post: Post,
    name: Arc<str>,
    tally: RefCell<Box<SourceTally>>,
    /// The schedule, at open loop only.
    schedule: Option<RefCell<Schedule>>,
    waiting: RefCell<VecDeque<Waiting>>,
    /// Sessions that pause between messages; each is in it once.
    resting: RefCell<Vec<Waker>>,
}

impl Recorder {
    fn new(post: Post) -> Self {
        let options = &post.setting.options;
        let schedule = options.offer.clone().map(|offer| {
            RefCell::new(Schedule::new(options.arrival, offer, post.began, post.number, post.workers, options.seed))
        });
        Self {
            name: options.hello.as_str().into(),
            tally: RefCell::default(),
            schedule,
            waiting: RefCell::default(),
            resting: RefCell::default(),
            post,
        }
    }

    /// The host name for EHLO.
    pub(super) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Changes the tally.
    pub(super) fn tally(&self, count: impl FnOnce(&mut SourceTally)) {
        count(&mut self.tally.borrow_mut());
    }

    /// This worker's share of all sessions.
    fn share(&self) -> usize {
        let all = self.post.setting.options.sessions as usize;
        let workers = self.post.workers;
        all / workers + usize::from(self.post.number < all % workers)
    }

    /// The next message for a session: at once at closed loop, when it is due at open loop; `None` if there are no
    /// more.
    pub(super) fn poll_claim(&self, cx: &mut Context<'_>, ticket: &Ticket, now: Duration) -> Poll<Option<Claim>> {
        let plan = &self.post.setting.plan;
        let since = match &self.schedule {
            None => now,
            Some(_) if plan.is_over(now) => return Poll::Ready(None),
            Some(schedule) => {
                let due = schedule.borrow().due();
                if due > now {
                    self.wait(cx, ticket);
                    return Poll::Pending;
                }
                due
            }
        };
        let Some(number) = plan.claim(now) else { return Poll::Ready(None) };
        let setting = &self.post.setting;
        let is_warm_up = since < setting.warm_until;
        let claim = Claim { number, since, recipients: setting.options.recipients(number), is_warm_up };
        self.created(ticket, &claim, now);
        Poll::Ready(Some(claim))
    }

    fn created(&self, ticket: &Ticket, claim: &Claim, now: Duration) {
        let since = claim.since;
        self.tally(|tally| {
            tally.created += 1;
            tally.recipients_created += u64::from(claim.recipients);
            if claim.is_warm_up {
                tally.warm_up.created += 1;
                return;
            }
            tally.first_created.get_or_insert(since);
            tally.last_created = Some(now);
            if self.schedule.is_some() {
                tally.time(Timed::Slip, now - since);
            }
            if ticket.0.get() != Place::Away {
                tally.time(Timed::Lag, now - since);
            }
        });
        // A session that is still listed keeps its place: something other than the schedule has woken it.
        if ticket.0.get() == Place::Called {
            ticket.0.set(Place::Away);
        }
        if let Some(schedule) = &self.schedule {
            schedule.borrow_mut().advance();
        }
    }

    /// Registers a session that will pause, so that it learns of the end of the run even then. Call it once for each
    /// session.
    pub(super) fn will_rest(&self, cx: &mut Context<'_>) {
        self.resting.borrow_mut().push(cx.waker().clone());
    }

    /// Lists the session for waking, once.
    fn wait(&self, cx: &mut Context<'_>, ticket: &Ticket) {
        if ticket.0.replace(Place::Listed) != Place::Listed {
            let place = Rc::clone(&ticket.0);
            self.waiting.borrow_mut().push_back(Waiting { waker: cx.waker().clone(), place });
        }
    }

    /// Open loop: wakes a session for each message that becomes due.
    async fn wake_in_time(&self) {
        let Some(schedule) = &self.schedule else { return std::future::pending().await };
        loop {
            let due = schedule.borrow().due();
            net::sleep_until(due).await;
            let session = self.waiting.borrow_mut().pop_front();
            match session {
                Some(session) => session.wake(),
                // All sessions are busy: they look at the schedule themselves when they finish.
                None => net::sleep(Duration::from_millis(1)).await,
            }
            poll_fn(yield_once()).await;
        }
    }

    /// Hands the tally over periodically, and wakes waiting sessions at the end.
    async fn tick(&self) {
        loop {
            net::sleep(TICK).await;
            self.hand_over();
            if self.post.setting.plan.is_over(clock::now()) {
                self.waiting.borrow_mut().drain(..).for_each(Waiting::wake);
                self.resting.borrow().iter().for_each(Waker::wake_by_ref);
            }
        }
    }

    /// Gives the tally to the collector and continues with an empty one.
    fn hand_over(&self) {
        let empty = self.post.emptied.try_recv().unwrap_or_default();
        let mut full = std::mem::replace(&mut *self.tally.borrow_mut(), empty);
        full.settle();
        // The collector outlives the workers; without one the tally cannot be sent.
        let _ = self.post.full.send((self.post.number, full));
    }
}

/// Pending once: lets the session that was woken take its message before the schedule is looked at again.
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
