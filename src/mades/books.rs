//! State that the tasks of a run share: all of them are on one thread, so nothing needs a lock.
use super::account::{Account, Queue};
use super::options::MadesOptions;
use super::pace::Pace;
use super::payload::Payloads;
use super::stages::Stage;
use super::troubles::Trouble;
use ::mades::Uuid;
use ::mades::api::Identity;
use journey::record::MadesOutage;
use journey::{Latencies, RunId};
use std::cell::{Cell, RefCell};
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// State that a run's tasks share.
#[derive(Debug)]
pub(super) struct Books {
    pub(super) options: MadesOptions,
    pub(super) run: RunId,
    run_uuid: Uuid,
    pub(super) payloads: Payloads,
    pub(super) account: RefCell<Account>,
    pub(super) pace: RefCell<Pace>,
    /// Notifies a task that wants to create a message that something has changed.
    pub(super) room: Notify,
    /// The message that is being handed over; after a lost connection it is handed over again.
    pub(super) in_hand: Cell<Option<u64>>,
    /// Lag of messages that were waited for: the time from due to taken up.
    pub(super) lag: RefCell<Latencies>,
    /// Messages that had to wait for room.
    pub(super) waited_for_room: Cell<u64>,
    pub(super) outages: RefCell<Vec<MadesOutage>>,
    /// Time at which the run began.
    pub(super) began: Duration,
    /// Time at which a message of this run last came.
    heard: Cell<Duration>,
    /// Set when a connection was given up.
    pub(super) is_given_up: Cell<bool>,
    foreign: [Cell<u64>; 3],
    over: watch::Sender<bool>,
}

/// Largest number of outages in the list; further ones are only counted as trouble.
const MOST_OUTAGES: usize = 100;

/// End of a time without a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutageEnd {
    /// The connection was established again.
    Reconnected,
    /// The run ended first, or the connection was given up.
    Never,
}

impl Books {
    pub(super) fn new(options: MadesOptions, run: RunId, payloads: Payloads, now: Duration) -> Self {
        let mut account = Account::new(options.mode, options.max_in_transit, options.timeout);
        account.waterfall.watcher.clone_from(&options.watcher);
        Self {
            run,
            run_uuid: Uuid::from_bytes(run.0),
            payloads,
            account: RefCell::new(account),
            pace: RefCell::new(Pace::new(&options, now)),
            room: Notify::new(),
            in_hand: Cell::new(None),
            lag: RefCell::default(),
            waited_for_room: Cell::new(0),
            outages: RefCell::default(),
            began: now,
            heard: Cell::new(now),
            is_given_up: Cell::new(false),
            foreign: Default::default(),
            over: watch::Sender::new(false),
            options,
        }
    }

    pub(super) fn uuid(&self) -> Uuid {
        self.run_uuid
    }

    /// The number of a message of this run; `None` if it belongs to another application.
    pub(super) fn own(&self, identity: Option<Identity>) -> Option<u64> {
        let identity = identity.filter(|identity| identity.run == self.run_uuid)?;
        let sequence = identity.sequence.checked_sub(self.options.first_number);
        sequence.filter(|sequence| self.account.borrow().is_known(*sequence))
    }

    /// Notes that a message of this run came.
    pub(super) fn hear(&self, now: Duration) {
        self.heard.set(now);
        self.room.notify_one();
    }

    /// Time at which a message of this run last came.
    pub(super) fn heard(&self) -> Duration {
        self.heard.get()
    }

    /// Counts a message that belongs to another application.
    pub(super) fn count_foreign(&self, queue: Queue) {
        let count = &self.foreign[queue as usize];
        count.set(count.get() + 1);
    }

    pub(super) fn foreign(&self, queue: Queue) -> u64 {
        self.foreign[queue as usize].get()
    }

    pub(super) fn trouble(&self, trouble: Trouble, code: &str, text: &str) {
        self.account.borrow_mut().troubles.add(trouble, code, text);
    }

    /// Time for which load was offered; `None` if none was.
    pub(super) fn offered(&self) -> Option<Duration> {
        let account = self.account.borrow();
        let began = account.waterfall.began()?;
        let last_created = account.waterfall.last(Stage::Created)?;
        let last_heard = account.waterfall.last_of_all().unwrap_or(last_created);
        let until = self.pace.borrow().offered_until(last_created, last_heard)?;
        Some(until.saturating_sub(began)).filter(|offered| !offered.is_zero())
    }

    /// Records an outage: its beginning, its length, and whether the connection was established again.
    pub(super) fn note_outage(&self, side: &str, began: Duration, until: Duration, end: OutageEnd, why: &str) {
        let mut outages = self.outages.borrow_mut();
        if outages.len() < MOST_OUTAGES {
            outages.push(MadesOutage {
                side: side.to_owned(),
                began_s: began.saturating_sub(self.began).as_secs_f64(),
                lasted_s: until.saturating_sub(began).as_secs_f64(),
                to_the_end: end == OutageEnd::Never,
                why: why.to_owned(),
            });
        }
    }

    /// Ends the run: all tasks stop.
    pub(super) fn end(&self) {
        self.over.send_replace(true);
    }

    pub(super) fn is_over(&self) -> bool {
        *self.over.borrow()
    }

    /// Waits for the end of the run.
    pub(super) async fn ended(&self) {
        // This object owns the sender, so the channel cannot be closed.
        let _ = self.over.subscribe().wait_for(|over| *over).await;
    }
}
