//! Collects the workers' counts: the totals, the seconds, the live line, and at the end the record.
use super::live_figures::LiveFigures;
use super::worker::{TICK, Workers};
use super::{Setting, report};
use crate::interrupt::{Asked, Interrupt};
use crate::live::{Event, Progress};
use crate::live_line::{Elsewhere, Line};
use crate::party::{Chronicle, Finished, Telling};
use crate::surroundings::Sight;
use anyhow::{Result, bail};
use journey::record::{Ending, ThresholdRow};
use journey::stalls::{Stalls, Tick};
use journey::{Latencies, RunId, SourceTally};
use net::clock;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

/// Time for which replies are still waited for after the user asked for the end.
const GRACE: Duration = Duration::from_secs(3);

/// Least age of a run before a threshold may end it: a rate needs some time to settle.
const ABORT_DELAY: Duration = Duration::from_secs(1);

/// The state of the run so far.
pub(super) struct Collector {
    setting: Arc<Setting>,
    run: RunId,
    started_at: jiff::Timestamp,
    began: Duration,
    total: SourceTally,
    chronicle: Chronicle,
    sight: Sight,
    telling: Telling,
    /// Latencies since the last progress report.
    recent: Latencies,
    /// Times at which the first and the last message since the last tick were accepted.
    replies: Option<(Duration, Duration)>,
    stalls: Stalls,
    next_tick: Duration,
    grace_ends: Option<Duration>,
    end: End,
    /// The threshold that ended the run.
    missed: Option<ThresholdRow>,
}

/// End of the load.
#[derive(Clone, Copy, Debug)]
struct End {
    ending: Ending,
    /// Time at which messages stopped being given out, if that was before all were offered.
    at: Option<Duration>,
    /// Set if sessions were abandoned before their end.
    is_abandoned: bool,
}

impl Collector {
    pub(super) fn begin(
        setting: &Arc<Setting>,
        run: RunId,
        started_at: jiff::Timestamp,
        now: Duration,
    ) -> Result<Self> {
        let outputs = &setting.options.outputs;
        Ok(Self {
            setting: Arc::clone(setting),
            run,
            started_at,
            began: now,
            total: SourceTally::default(),
            chronicle: Chronicle::begin(now, "accepted", outputs.hlog.as_deref())?
                .leaving_out_before(setting.warm_until),
            sight: Sight::now(),
            telling: Telling::new(outputs.live, Elsewhere::Lines),
            recent: Latencies::default(),
            replies: None,
            stalls: Stalls::new(journey::Stage::Accepted, now),
            next_tick: now + TICK,
            grace_ends: None,
            end: End { ending: Ending::Complete, at: None, is_abandoned: false },
            missed: None,
        })
    }

    /// Collects until the workers have ended, or are given up after the user asked for the end.
    pub(super) fn follow(&mut self, workers: Workers, interrupt: &Interrupt) -> Result<()> {
        loop {
            let wait = self.next_tick.saturating_sub(clock::now());
            match workers.tallies.recv_timeout(wait) {
                Ok((worker, mut tally)) => {
                    self.merge(&tally);
                    tally.clear();
                    // A worker that has ended takes nothing back.
                    let _ = workers.emptied[worker].send(tally);
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.tick();
                    if self.is_enough(interrupt) {
                        self.end.is_abandoned = true;
                        break;
                    }
                }
                Err(RecvTimeoutError::Disconnected) => {
                    workers.join();
                    break;
                }
            }
        }
        match self.setting.plan.hopeless() {
            Some(why) => bail!("cannot reach {}: {why}", self.setting.options.to),
            None => Ok(()),
        }
    }

    /// Finishes: writes the record to files if that was asked for.
    pub(super) fn finish(mut self) -> Finished {
        let now = clock::now();
        self.tick();
        let unlogged = self.chronicle.finish(now);
        let series = &self.chronicle.series;
        let around = self.sight.until_now();
        let known = report::Known {
            tally: &self.total,
            series,
            stalls: self.stalls.rows(),
            ending: self.end.ending,
            offered: self.offered(now),
            is_abandoned: self.end.is_abandoned,
            missed: self.missed.take(),
        };
        let record = report::record(&self.setting, self.run, self.started_at, &known, around);
        let unwritten = self.setting.options.outputs.keep(&record, &self.total.accepted_units, &self.telling);
        self.telling.event(&Event::Done);
        Finished { record, unwritten: unwritten.or(unlogged) }
    }

    fn merge(&mut self, tally: &SourceTally) {
        self.recent.merge(&tally.accepted_latency);
        if let Some((first, last)) = tally.first_reply.zip(tally.last_reply) {
            let (known_first, known_last) = self.replies.unwrap_or((first, last));
            self.replies = Some((first.min(known_first), last.max(known_last)));
        }
        self.total.merge(tally);
    }

    /// Time for which load was offered. Open loop: from the time when the first message was due until no more were, or
    /// the last was taken up. Closed loop: from the first message to the end of the last attempt.
    fn offered(&self, now: Duration) -> Option<Duration> {
        let total = &self.total;
        let options = &self.setting.options;
        let first = total.first_created?;
        let end = match &options.offer {
            None => total.last_ended,
            Some(_) if self.end.at.is_none() && self.setting.plan.is_given_out() => {
                let due = options.messages.map(|messages| options.due_after(messages));
                total.last_created.max(due.map(|due| self.began + due))
            }
            Some(_) => Some(self.setting.plan.until().unwrap_or(now).min(self.end.at.unwrap_or(now))),
        };
        end.map(|end| end.saturating_sub(first))
    }

    /// Work that is due four times per second.
    fn tick(&mut self) {
        let now = clock::now();
        self.next_tick = now + TICK;
        let total = &self.total;
        let warm_up = &self.total.warm_up;
        let sent = total.sent - warm_up.sent;
        let accepted = total.accepted - warm_up.accepted;
        self.chronicle.series.add(now, sent, accepted, 0, total.errors.total(), &self.recent);
        let (first, last) = self.replies.take().unzip();
        self.stalls.add(Tick {
            now,
            first,
            last,
            open: total.open_messages(),
            rejected: total.rejected,
            failed: total.failed,
        });
        self.chronicle.log(now, &self.recent);
        let progress = self.progress(now);
        let line = |progress: &Progress, rate| Line::of(progress, progress.accepted, "accepted", rate);
        self.telling.progress(&progress, progress.accepted, line);
        self.recent.clear();
    }

    fn progress(&self, now: Duration) -> Progress {
        Progress {
            elapsed_s: (now - self.began).as_secs_f64(),
            created: self.total.created,
            sent: self.total.sent,
            accepted: self.total.accepted,
            delivered: 0,
            recipients: self.total.recipients_accepted,
            bytes: self.total.bytes_accepted,
            errors: self.total.errors.total(),
            sessions: u64::from(self.setting.options.sessions),
            p50_ms: self.recent.quantile_ms(0.5),
            p99_ms: self.recent.quantile_ms(0.99),
            goal_messages: self.setting.options.messages.unwrap_or_default(),
            goal_s: self.setting.options.limit().unwrap_or_default().as_secs_f64(),
            open: self.total.open_messages(),
            waits_s: self.waits(now).as_secs_f64(),
        }
    }

    /// Time for which replies are still waited for if none comes, once no more messages are given out.
    fn waits(&self, now: Duration) -> Duration {
        let total = &self.total;
        if total.open_messages() == 0 || !self.setting.plan.is_over(now) {
            return Duration::ZERO;
        }
        let last = total.last_created.max(total.last_reply).unwrap_or(self.began);
        let ends = self.grace_ends.unwrap_or(last + self.setting.options.timeout);
        ends.saturating_sub(now)
    }

    /// Reports whether the workers need not be waited for any longer.
    fn is_enough(&mut self, interrupt: &Interrupt) -> bool {
        let now = clock::now();
        match interrupt.asked() {
            Asked::Nothing => self.end_early(now),
            Asked::Stop => self.stop(Ending::Interrupted, now),
            Asked::StopNow | Asked::Quit => {
                self.stop(Ending::Interrupted, now);
                return true;
            }
        }
        self.grace_ends.is_some_and(|ends| now >= ends)
    }

    /// Ends a run whose server is gone, or that has missed a threshold of `--abort-on`.
    fn end_early(&mut self, now: Duration) {
        let options = &self.setting.options;
        let stall = self.stalls.present();
        let is_gone = stall.failed > 0 && stall.rejected == 0;
        if is_gone && stall.to_s - stall.from_s >= options.give_up.as_secs_f64() {
            return self.stop(Ending::GaveUp, now);
        }
        let begins = self.began.max(self.setting.warm_until) + ABORT_DELAY;
        if self.missed.is_none() && now >= begins {
            let figures = LiveFigures { tally: &self.total, now };
            let rows = options.abort_on.iter().map(|threshold| threshold.evaluate(&figures));
            self.missed = rows.into_iter().find(|row| row.value.is_some() && !row.passed);
            if self.missed.is_some() {
                self.stop(Ending::Aborted, now);
            }
        }
    }

    /// Stops giving out messages, if any are left.
    fn stop(&mut self, ending: Ending, now: Duration) {
        if self.end.at.is_none() {
            self.end = End { ending, at: Some(now), ..self.end };
            self.grace_ends = Some(now + GRACE);
        }
        self.setting.plan.stop();
    }
}
