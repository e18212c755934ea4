//! Sees to the time: gives up on messages that are overdue, tells how far the run is, and knows when it is over.
use super::books::Books;
use super::stages::Stage;
use super::watcher::View;
use crate::interrupt::{Asked, Interrupt};
use crate::live::{Event, Progress};
use crate::party::{Chronicle, Telling};
use anyhow::Result;
use journey::Latencies;
use journey::record::Ending;
use net::clock;
use std::time::Duration;

/// How often it is looked whether a message is overdue.
const LOOK: Duration = Duration::from_millis(20);
/// How often progress is told.
const TICK: Duration = Duration::from_millis(250);
/// After the end was asked for, how long answers are still waited for.
const GRACE: Duration = Duration::from_secs(3);

/// The run as it is known so far.
pub(super) struct Collector {
    pub(super) chronicle: Chronicle,
    telling: Telling,
    recent: Latencies,
    next_tick: Duration,
    grace_ends: Option<Duration>,
}

impl Collector {
    pub(super) fn begin(books: &Books, chronicle: Chronicle) -> Self {
        let telling = Telling::new(books.options.live);
        let next_tick = books.began + TICK;
        Self { chronicle, telling, recent: Latencies::default(), next_tick, grace_ends: None }
    }

    /// Follows the run to its end.
    ///
    /// # Errors
    /// If the interval log cannot be written.
    pub(super) async fn follow(&mut self, books: &Books, interrupt: &Interrupt) -> Result<Ending> {
        loop {
            tokio::time::sleep(LOOK).await;
            let now = clock::now();
            books.account.borrow_mut().expire(now);
            // Places may be free again, and the time for new messages over.
            books.room.notify_one();
            if now >= self.next_tick {
                self.next_tick = now + TICK;
                self.tick(books, now)?;
            }
            if let Some(ending) = self.ending(books, interrupt, now) {
                return Ok(ending);
            }
        }
    }

    /// The last words.
    ///
    /// # Errors
    /// If the interval log cannot be written.
    pub(super) fn finish(&mut self, books: &Books) -> Result<()> {
        let now = clock::now();
        self.tick(books, now)?;
        self.chronicle.finish(now)
    }

    /// The files are written.
    pub(super) fn done(&self) {
        self.telling.event(&Event::Done);
    }

    fn tick(&mut self, books: &Books, now: Duration) -> Result<()> {
        let mut account = books.account.borrow_mut();
        account.waterfall.take_recent(&mut self.recent);
        let reached = |stage| account.waterfall.count(stage);
        let arrived = reached(account.mode().arrival());
        let (sent, settled, troubles) = (reached(Stage::Sent), reached(Stage::Settled), account.troubles.total());
        self.chronicle.series.add(now, sent, settled, arrived, troubles, &self.recent);
        self.chronicle.log(now, &self.recent)?;
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
        };
        drop(account);
        self.telling.progress(progress, || live_line(&progress));
        self.recent.clear();
        Ok(())
    }

    /// How the run has ended, if it has.
    fn ending(&mut self, books: &Books, interrupt: &Interrupt, now: Duration) -> Option<Ending> {
        let asked = asked(books, interrupt.asked(), now);
        if asked != Asked::Nothing {
            books.pace.borrow_mut().stop();
        }
        let is_done = books.pace.borrow().is_over(now) && books.account.borrow().in_transit() == 0;
        let is_quiet = is_done && now.saturating_sub(books.heard()) >= books.options.linger;
        match asked {
            Asked::Nothing => is_quiet.then_some(Ending::Complete),
            Asked::Stop => {
                let grace_ends = *self.grace_ends.get_or_insert(now + GRACE);
                (is_quiet || now >= grace_ends).then_some(Ending::Interrupted)
            }
            Asked::StopNow => Some(Ending::Interrupted),
        }
    }
}

/// What the user asks for, or who looks on.
fn asked(books: &Books, by_user: Asked, now: Duration) -> Asked {
    let Some(watcher) = &books.options.watcher else { return by_user };
    let view = View { now, began: books.began, heard: books.heard(), asked: by_user };
    by_user.max(watcher.look(&view))
}

/// The line a terminal shows meanwhile.
fn live_line(progress: &Progress) -> String {
    format!(
        "{:.0} s  {} created, {} arrived, {:.0} msg/s, {} in transit  p50 {:.2} ms  p99 {:.2} ms  {} errors",
        progress.elapsed_s,
        progress.created,
        progress.delivered,
        progress.delivered as f64 / progress.elapsed_s.max(0.001),
        progress.sessions,
        progress.p50_ms,
        progress.p99_ms,
        progress.errors
    )
}
