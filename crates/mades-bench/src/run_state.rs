//! State that the tasks of a run share. All tasks are on one thread, so no lock is needed.
use super::acknowledgement::Acknowledgements;
use super::market::MarketShape;
use super::options::MadesOptions;
use super::pacer::LoadPacer;
use super::run_payloads::RunPayloads;
use super::shape_schedule::ShapeSchedule;
use super::shape_stats::ShapeStats;
use super::stages::MessageStage;
use super::tracker::{MessageTracker, ReceiveQueue};
use super::troubles::TroubleKind;
use mailrun_mades::api::RunMessageId;
use mailrun_mades::{PeerProduct, Uuid};
use mailrun_measurement::record::{MadesBroker, MadesNoCredit, MadesOutage};
use mailrun_measurement::seconds::DueSeconds;
use mailrun_measurement::threshold::Threshold;
use mailrun_measurement::{Latencies, RunId};
use mailrun_net::clock;
use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::{Notify, watch};

#[derive(Debug)]
pub(super) struct MadesRunState {
    pub(super) options: MadesOptions,
    pub(super) run: RunId,
    run_uuid: Uuid,
    pub(super) payloads: RunPayloads,
    pub(super) acknowledgements: Option<Acknowledgements>,
    pub(super) tracker: RefCell<MessageTracker>,
    pub(super) pacer: RefCell<LoadPacer>,
    /// Wakes the sender, which may be waiting for permission to create another message.
    pub(super) room_notify: Notify,
    /// Number of the message that is being sent. If the connection is lost, the bench sends this message again.
    pub(super) unsent: Cell<Option<u64>>,
    /// Delays from the due time to the creation of messages. A message counts only if the sender slept until the due
    /// time and woke up late. In all other cases, earlier messages or a limit have delayed the message.
    pub(super) lag: RefCell<Latencies>,
    /// For each second, the number of messages that were due in it. The monitor collects and clears these numbers.
    pub(super) due_seconds: RefCell<DueSeconds>,
    /// Number of due messages that had to wait because too many other messages were in flight or unconfirmed.
    pub(super) waited_for_room: Cell<u64>,
    pub(super) credit: RefCell<CreditWaits>,
    pub(super) outages: RefCell<Vec<MadesOutage>>,
    pub(super) brokers: RefCell<Vec<MadesBroker>>,
    /// The user's time-out, if the bench uses a longer one because a threshold allows messages more time. Otherwise
    /// `None`.
    pub(super) raised_from: Option<Duration>,
    pub(super) began: Duration,
    last_arrival: Cell<Duration>,
    given_up: OnceCell<String>,
    foreign: [Cell<u64>; 3],
    over: watch::Sender<bool>,
}

/// Times in which the sender could not send because the broker gave no credit.
#[derive(Debug, Default)]
pub(super) struct CreditWaits {
    first: Option<Duration>,
    total: Duration,
    since: Option<Duration>,
    /// Start of the latest series of consecutive waits for credit. Without credit, one message after another waits
    /// until its own time-out, so these waits count as a single wait.
    blocked_since: Duration,
    ended: Duration,
}

impl CreditWaits {
    /// If a wait for credit begins within this time after the last wait, both belong to the same series.
    const MAX_GAP: Duration = Duration::from_millis(50);

    pub(super) fn wait(&mut self, now: Duration) {
        if self.first.is_none() || now.saturating_sub(self.ended) > Self::MAX_GAP {
            self.blocked_since = now;
        }
        self.first.get_or_insert(now);
        self.since = Some(now);
    }

    pub(super) fn end(&mut self, now: Duration) {
        self.total += self.since.take().map_or(Duration::ZERO, |since| now.saturating_sub(since));
        self.ended = now;
    }

    /// Returns the time since which no message could be sent because the broker gave no credit, or `None` if no message
    /// waits for credit now.
    fn blocked_since(&self) -> Option<Duration> {
        self.since.map(|_| self.blocked_since)
    }

    /// Returns the waits for credit as a row of the record, or `None` if the sender never had to wait. `began` is the
    /// start of the run, from which the times count.
    pub(super) fn row(&self, began: Duration) -> Option<MadesNoCredit> {
        let first_s = self.first?.saturating_sub(began).as_secs_f64();
        Some(MadesNoCredit { first_s, total_s: self.total.as_secs_f64() })
    }
}

/// Error code that is recorded when the bench gives up a run.
pub(super) const GIVEN_UP: &str = "given up";

/// Maximum length of the list of outages. Further outages are only counted as errors.
const MAX_OUTAGES: usize = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutageEnd {
    Reconnected,
    /// The connection was not restored before the run ended or the bench gave up.
    Never,
}

impl MadesRunState {
    pub(super) fn new(mut options: MadesOptions, run: RunId, mut payloads: RunPayloads, now: Duration) -> Self {
        // Raise the time-out to the longest time in a threshold. The bench records no latency for a message that
        // arrives after the time-out, so it could not check a longer threshold.
        let shapes = options.market.iter().flat_map(|market| &market.shapes).flat_map(MarketShape::thresholds);
        let asked = options.thresholds.iter().chain(&options.abort_on).chain(shapes);
        let longest = asked.filter_map(Threshold::within).max().unwrap_or_default();
        let raised_from = (longest > options.timeout).then(|| std::mem::replace(&mut options.timeout, longest));
        let mut tracker = MessageTracker::new(options.path(), options.max_in_transit, options.timeout);
        tracker.waterfall.observer.clone_from(&options.observer);
        let schedule = options.market.as_ref().map(|load| Rc::new(ShapeSchedule::new(load, jiff::Timestamp::now())));
        payloads.schedule.clone_from(&schedule);
        tracker.waterfall.shapes =
            options.market.as_ref().zip(schedule.clone()).map(|(load, schedule)| ShapeStats::new(load, schedule));
        let pacer = LoadPacer::new(&options, now, schedule);
        tracker.waterfall.is_open_loop = pacer.is_open_loop();
        tracker.waterfall.zero = now;
        let run_uuid = Uuid::from_bytes(run.0);
        let acknowledgements = options.acknowledgement.clone().map(|acknowledgement| {
            Acknowledgements::new(acknowledgement, &options.receiver, run_uuid, jiff::Timestamp::now())
        });
        Self {
            run,
            run_uuid,
            payloads,
            acknowledgements,
            tracker: RefCell::new(tracker),
            pacer: RefCell::new(pacer),
            room_notify: Notify::new(),
            unsent: Cell::new(None),
            lag: RefCell::default(),
            due_seconds: RefCell::default(),
            waited_for_room: Cell::new(0),
            credit: RefCell::default(),
            outages: RefCell::default(),
            brokers: RefCell::default(),
            raised_from,
            began: now,
            last_arrival: Cell::new(now),
            given_up: OnceCell::new(),
            foreign: Default::default(),
            over: watch::Sender::new(false),
            options,
        }
    }

    pub(super) fn uuid(&self) -> Uuid {
        self.run_uuid
    }

    /// Returns the number of the message with this identity, counted from 0, or `None` if this run has no such message.
    pub(super) fn own_sequence(&self, identity: Option<RunMessageId>) -> Option<u64> {
        let identity = identity.filter(|identity| identity.run == self.run_uuid)?;
        let sequence = identity.sequence.checked_sub(self.options.first_number);
        sequence.filter(|sequence| self.tracker.borrow().is_known(*sequence))
    }

    /// Returns the number of the message that the acknowledgement document with this identity is about. `None` if the
    /// bench sent no such document in this run.
    pub(super) fn own_acknowledgement(&self, identity: Option<RunMessageId>) -> Option<(&Acknowledgements, u64)> {
        let acknowledgements = self.acknowledgements.as_ref()?;
        let identity = identity.filter(|identity| identity.run == acknowledgements.run())?;
        let sequence = identity.sequence.checked_sub(self.options.first_number);
        let sequence = sequence.filter(|sequence| self.tracker.borrow().is_known(*sequence))?;
        Some((acknowledgements, sequence))
    }

    pub(super) fn record_arrival(&self, now: Duration) {
        self.last_arrival.set(now);
        self.room_notify.notify_one();
    }

    pub(super) fn last_arrival(&self) -> Duration {
        self.last_arrival.get()
    }

    pub(super) fn count_foreign(&self, queue: ReceiveQueue) {
        let count = &self.foreign[queue as usize];
        count.set(count.get() + 1);
    }

    pub(super) fn foreign(&self, queue: ReceiveQueue) -> u64 {
        self.foreign[queue as usize].get()
    }

    pub(super) fn record_trouble(&self, trouble: TroubleKind, code: &str, text: &str) {
        self.tracker.borrow_mut().troubles.add(trouble, code, text);
    }

    /// Gives up the run: records the reason, and stops creating messages, because new messages could not arrive. A task
    /// that cannot go on must call this method and not stop the pacer itself. Otherwise the load would count as
    /// complete, and the run could pass. `kind` must be one of `TroubleKind::OWN_CODES`, because the verdict looks for
    /// the reason only in errors of these kinds.
    pub(super) fn give_up(&self, kind: TroubleKind, reason: &str) {
        self.record_trouble(kind, GIVEN_UP, reason);
        self.pacer.borrow_mut().stop(clock::now());
        // Ignore the error of a second call. Only the first reason is kept, because a later reason may be its result.
        let _ = self.given_up.set(reason.to_owned());
    }

    pub(super) fn is_given_up(&self) -> bool {
        self.given_up.get().is_some()
    }

    pub(super) fn give_up_reason(&self) -> Option<&str> {
        self.given_up.get().map(String::as_str)
    }

    /// Gives up the run if it has no time limit and the endpoint has not answered for too long. Otherwise, a run of
    /// many messages would wait for the time-out of one message after another.
    pub(super) fn give_up_if_silent(&self, now: Duration) {
        let is_limited = self.options.observer.is_some() || self.pacer.borrow().is_limited(now);
        let tracker = self.tracker.borrow();
        let Some(silent) = tracker.silent_for(now) else { return };
        if is_limited || silent < self.options.reconnect.max(self.options.timeout) {
            return;
        }
        let last_sent = tracker.waterfall.last(MessageStage::Sent);
        let is_taken = last_sent.is_some_and(|sent| now.saturating_sub(sent) < self.options.timeout * 3 / 2);
        drop(tracker);
        let silent_s = silent.as_secs_f64();
        let reason = match is_taken {
            true => format!("no message was answered for {silent_s:.0} s"),
            false => {
                let blocked = self.credit.borrow().blocked_since();
                let since = blocked.unwrap_or(now - silent);
                format!(
                    "the broker gave no credit for {:.0} s, since {:.1} s: is its disk or the queue full?",
                    now.saturating_sub(since).as_secs_f64(),
                    since.saturating_sub(self.began).as_secs_f64()
                )
            }
        };
        self.give_up(TroubleKind::Connection, &reason);
    }

    /// Returns the duration of the offered load, or `None` if nothing was created.
    pub(super) fn offered(&self) -> Option<Duration> {
        let tracker = self.tracker.borrow();
        let start = tracker.waterfall.began()?;
        let last_created = tracker.waterfall.last(MessageStage::Created)?;
        let last_heard = tracker.waterfall.last_overall().unwrap_or(last_created);
        let until = self.pacer.borrow().offered_until(last_created, last_heard)?;
        Some(until.saturating_sub(start)).filter(|offered| !offered.is_zero())
    }

    pub(super) fn record_broker(&self, side: &str, product: PeerProduct) {
        let PeerProduct { container, name, version } = product;
        self.brokers.borrow_mut().push(MadesBroker { side: side.to_owned(), container, product: name, version });
    }

    pub(super) fn record_outage(&self, side: &str, began: Duration, until: Duration, end: OutageEnd, reason: &str) {
        let mut outages = self.outages.borrow_mut();
        if outages.len() < MAX_OUTAGES {
            outages.push(MadesOutage {
                side: side.to_owned(),
                began_s: began.saturating_sub(self.began).as_secs_f64(),
                lasted_s: until.saturating_sub(began).as_secs_f64(),
                to_the_end: end == OutageEnd::Never,
                why: reason.to_owned(),
            });
        }
    }

    pub(super) fn end(&self) {
        self.over.send_replace(true);
    }

    pub(super) fn is_over(&self) -> bool {
        *self.over.borrow()
    }

    pub(super) async fn ended(&self) {
        // The wait fails only if the channel is closed. This cannot happen here, because `self` owns the sender.
        let _ = self.over.subscribe().wait_for(|over| *over).await;
    }
}
