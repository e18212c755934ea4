//! Periodic work of a run: gives up on overdue messages, reports progress, and decides when the run is over.
use super::books::Books;
use super::figures::LiveFigures;
use super::pace::Next;
use super::stages::Stage;
use super::watcher::View;
use crate::interrupt::{Asked, Interrupt};
use crate::live::{Event, Progress};
use crate::live_line::{Elsewhere, Line};
use crate::party::{Chronicle, Telling};
use journey::Latencies;
use journey::record::{Ending, Record, StallRow, ThresholdRow};
use journey::stalls::{Stalls, Tick};
use net::clock;
use std::time::Duration;

/// Interval at which overdue messages are looked for.
const LOOK: Duration = Duration::from_millis(20);
/// Interval of progress reports.
const TICK: Duration = Duration::from_millis(250);
/// Time for which answers are still waited for after the user asked for the end.
const GRACE: Duration = Duration::from_secs(3);
/// Least age of a run before a threshold may end it: a rate needs some time to settle.
const ABORT_DELAY: Duration = Duration::from_secs(1);
/// Shortest time without deliveries that counts as a stall.
const SHORTEST_STALL_S: f64 = 1.0;
/// Deliveries come at uneven distances: a gap of up to this many mean distances is no stall.
const USUAL_GAPS: f64 = 10.0;

/// The state of the run so far.
pub(super) struct Collector {
    pub(super) chronicle: Chronicle,
    telling: Telling,
    recent: Latencies,
    next_tick: Duration,
    grace_ends: Option<Duration>,
    /// Time at which thresholds are checked next.
    next_look: Duration,
    accepting: Stalls,
    delivering: Stalls,
    /// The threshold that ended the run.
    pub(super) missed: Option<ThresholdRow>,
    /// Time at which it was first seen that no more messages are created.
    all_created: Option<Duration>,
}

impl Collector {
    pub(super) fn begin(books: &Books, chronicle: Chronicle) -> Self {
        let telling = Telling::new(books.options.live, Elsewhere::Lines);
        let next_tick = books.began + TICK;
        Self {
            chronicle,
            telling,
            recent: Latencies::default(),
            next_tick,
            grace_ends: None,
            next_look: next_tick,
            accepting: Stalls::new(journey::Stage::Accepted, books.began),
            delivering: Stalls::new(journey::Stage::Delivered, books.began),
            missed: None,
            all_created: None,
        }
    }

    /// Follows the run to its end.
    pub(super) async fn follow(&mut self, books: &Books, interrupt: &Interrupt) -> Ending {
        loop {
            tokio::time::sleep(LOOK).await;
            let now = clock::now();
            books.account.borrow_mut().expire(now);
            // There may be room again, and the time for new messages may be over.
            books.room.notify_one();
            if now >= self.next_tick {
                self.next_tick = now + TICK;
                self.tick(books, now);
            }
            if let Some(ending) = self.ending(books, interrupt, now) {
                return ending;
            }
        }
    }

    /// Finishes the interval log; returns the error that kept it from being whole.
    pub(super) fn finish(&mut self, books: &Books) -> Option<anyhow::Error> {
        let now = clock::now();
        self.tick(books, now);
        self.chronicle.finish(now)
    }

    /// Reports the record to the listeners, after the files are written or have failed.
    pub(super) fn done(&self, record: &Record, unwritten: Option<&anyhow::Error>) {
        if unwritten.is_some() {
            self.telling.event(&Event::Unwritten { record: Box::new(record.clone()) });
        }
        self.telling.event(&Event::Done);
    }

    /// Times in which messages waited while the broker accepted none or the endpoint delivered none.
    pub(super) fn stalls(&self, books: &Books) -> Vec<StallRow> {
        let account = books.account.borrow();
        let arrived = account.waterfall.count(account.mode().arrival());
        let offered_s = books.offered().unwrap_or_default().as_secs_f64();
        let usual_s = USUAL_GAPS * offered_s / arrived.max(1) as f64;
        // The time to the first delivery is the length of the path, not a stall.
        let is_stall = |row: &StallRow| row.from_s > 0.0 && row.to_s - row.from_s >= usual_s.max(SHORTEST_STALL_S);
        // After the offer has ended, waiting for a lost message is no stall.
        let within_offer = |row: StallRow| match row.to_the_end {
            true => StallRow { to_s: row.to_s.min(offered_s), ..row },
            false => row,
        };
        let mut rows = self.accepting.rows();
        rows.extend(self.delivering.rows().into_iter().map(within_offer).filter(is_stall));
        rows
    }

    fn note_stalls(&mut self, books: &Books, now: Duration) {
        let mut account = books.account.borrow_mut();
        // A message that is due, has room, and is not created waits for a connection or for the broker's credit.
        let is_held_up = account.has_room() && matches!(books.pace.borrow().next(now), Next::Create(_));
        let (first, last) = account.waterfall.take_span(Stage::Settled).unzip();
        let open = account.unsettled() as u64 + u64::from(is_held_up);
        let failed = account.unanswered();
        self.accepting.add(Tick { now, first, last, open, rejected: 0, failed });
        let arrival = account.mode().arrival();
        let (first, last) = account.waterfall.take_span(arrival).unzip();
        let open = u64::from(first.is_none() && account.awaits_arrival());
        self.delivering.add(Tick { now, first, last, open, rejected: 0, failed: 0 });
    }

    fn tick(&mut self, books: &Books, now: Duration) {
        self.note_stalls(books, now);
        let mut account = books.account.borrow_mut();
        account.waterfall.take_recent(&mut self.recent);
        let reached = |stage| account.waterfall.count(stage);
        let arrived = reached(account.mode().arrival());
        let sent = reached(Stage::Sent);
        let settled = reached(Stage::Settled);
        let troubles = account.troubles.total();
        self.chronicle.series.add(now, sent, settled, arrived, troubles, &self.recent);
        self.chronicle.log(now, &self.recent);
        let progress = Progress {
            elapsed_s: now.saturating_sub(books.began).as_secs_f64(),
            created: account.created(),
            sent,
            accepted: settled,
            delivered: arrived,
            recipients: arrived,
            bytes: (arrived as f64 * books.payloads.mean_size()) as u64,
            errors: troubles,
            sessions: account.in_transit() as u64,
            p50_ms: self.recent.quantile_ms(0.5),
            p99_ms: self.recent.quantile_ms(0.99),
            goal_messages: books.options.messages.unwrap_or_default(),
            goal_s: books.options.limit().unwrap_or_default().as_secs_f64(),
            open: account.in_transit() as u64,
            waits_s: 0.0,
        };
        drop(account);
        let progress = Progress { waits_s: self.waits(books, now).as_secs_f64(), ..progress };
        self.telling.progress(&progress, progress.delivered, Line::of_mades);
        self.recent.clear();
    }

    /// Time for which answers are still waited for if none comes, once no more messages are created.
    fn waits(&mut self, books: &Books, now: Duration) -> Duration {
        let pace = books.pace.borrow();
        let open = books.account.borrow().in_transit();
        if !pace.is_over(now) {
            return Duration::ZERO;
        }
        let options = &books.options;
        let all_created = *self.all_created.get_or_insert(now);
        let ends = match self.grace_ends {
            Some(grace_ends) => grace_ends,
            None if open > 0 => all_created + options.timeout,
            None => books.heard() + options.linger,
        };
        ends.saturating_sub(now)
    }

    /// The ending of the run, if it has ended.
    fn ending(&mut self, books: &Books, interrupt: &Interrupt, now: Duration) -> Option<Ending> {
        let asked = asked(books, interrupt.asked(), now);
        if asked != Asked::Nothing || self.misses(books, now) {
            books.pace.borrow_mut().stop(now);
        }
        let is_done = books.pace.borrow().is_over(now) && books.account.borrow().in_transit() == 0;
        let is_quiet = is_done && now.saturating_sub(books.heard()) >= books.options.linger;
        match asked {
            Asked::Nothing if self.missed.is_some() => self.is_enough(is_quiet, now).then_some(Ending::Aborted),
            Asked::Nothing if books.is_given_up.get() => is_quiet.then_some(Ending::GaveUp),
            Asked::Nothing => is_quiet.then_some(Ending::Complete),
            Asked::Stop => self.is_enough(is_quiet, now).then_some(Ending::Interrupted),
            Asked::StopNow | Asked::Quit => Some(Ending::Interrupted),
        }
    }

    /// Reports whether a run that is to end has been waited for long enough.
    fn is_enough(&mut self, is_quiet: bool, now: Duration) -> bool {
        let grace_ends = *self.grace_ends.get_or_insert(now + GRACE);
        is_quiet || now >= grace_ends
    }

    /// Reports whether a threshold of `--abort-on` is missed.
    fn misses(&mut self, books: &Books, now: Duration) -> bool {
        let is_time = now >= books.began + ABORT_DELAY && now >= self.next_look;
        if self.missed.is_none() && is_time && !books.options.abort_on.is_empty() {
            self.next_look = now + TICK;
            let account = books.account.borrow();
            let figures = LiveFigures { account: &account, now };
            let rows = books.options.abort_on.iter().map(|threshold| threshold.evaluate(&figures));
            self.missed = rows.into_iter().find(|row| row.value.is_some() && !row.passed);
        }
        self.missed.is_some()
    }
}

/// Request of the user or the watcher to end the run.
fn asked(books: &Books, by_user: Asked, now: Duration) -> Asked {
    let Some(watcher) = &books.options.watcher else { return by_user };
    let view = View { now, began: books.began, heard: books.heard(), asked: by_user };
    by_user.max(watcher.look(&view))
}
