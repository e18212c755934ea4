//! Collects the workers' counts and produces the totals, the figures per second, the live line and,
//! at the end, the record.
use super::context::SourceContext;
use super::live_figures::with_figures;
use super::options::SourceOptions;
use super::report;
use super::worker::SourceWorkers;
use super::worker_state::TALLY_INTERVAL;
use anyhow::{Result, bail};
use mailrun_dashboard::RunSnapshot;
use mailrun_dashboard::live_figures::{load_figures, party_load, threshold_state};
use mailrun_dashboard::progress_output::ProgressOutput;
use mailrun_journey::record::{Ending, ThresholdRow};
use mailrun_journey::stalls::{StallDetector, Tick};
use mailrun_journey::threshold::RunningFigures;
use mailrun_journey::{Latencies, RunId, SourceTally};
use mailrun_net::clock;
use mailrun_party::host_sampler::HostSampler;
use mailrun_party::host_watch::{HostWatch, Parties};
use mailrun_party::interrupt::{Interrupt, StopRequest};
use mailrun_party::live::{LiveEvent, LiveMode, LiveProgress, LiveTimes};
use mailrun_party::live_line::{LiveLine, NonTerminalOutput};
use mailrun_party::outputs::{FinishedRun, IntervalRecorder};
use mailrun_party::usage_sampler::UsageSampler;
use mailrun_report::load_in_short;
use mailrun_workload::pacing::ArrivalSchedule;
use mailrun_workload::run_events::RunCourse;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

/// How long the source waits for replies after the user asked it to stop.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);

/// A message that was due this shortly before the end and has not begun does not prove that the
/// source was late.
const LAST_MOMENTS: Duration = Duration::from_millis(100);

/// A threshold can end the run only after this time, because a rate takes some time to settle.
const ABORT_DELAY: Duration = Duration::from_secs(1);

pub(super) struct SourceCollector {
    context: Arc<SourceContext>,
    run: RunId,
    started_at: jiff::Timestamp,
    began: Duration,
    total: SourceTally,
    interval_recorder: IntervalRecorder,
    host_sampler: HostSampler,
    /// `None` if the bench watches the host, or if nothing is required of the run.
    host_watch: Option<HostWatch>,
    usage_sampler: UsageSampler,
    progress_output: ProgressOutput,
    recent: Latencies,
    /// Times at which the first and the last message since the last tick were accepted.
    reply_span: Option<(Duration, Duration)>,
    /// Time at which the first message since the last tick was due.
    first_due: Option<Duration>,
    stalls: StallDetector,
    next_tick: Duration,
    /// Schedules of all workers and, below, the number of their messages that have become due.
    schedules: Vec<ArrivalSchedule>,
    due_so_far: u64,
    drain_deadline: Option<Duration>,
    end: LoadEnd,
    missed_threshold: Option<ThresholdRow>,
}

/// How the load has ended, or will end if nothing happens.
#[derive(Clone, Copy, Debug)]
struct LoadEnd {
    ending: Ending,
    /// Time at which the plan stopped giving out messages, if that was before all messages were
    /// offered.
    stopped_at: Option<Duration>,
    /// Set if sessions were abandoned before their end.
    is_abandoned: bool,
}

impl SourceCollector {
    pub(super) fn begin(
        setting: &Arc<SourceContext>,
        run: RunId,
        started_at: jiff::Timestamp,
        now: Duration,
        host_watch: Option<HostWatch>,
    ) -> Result<Self> {
        let outputs = &setting.options.outputs;
        Ok(Self {
            context: Arc::clone(setting),
            run,
            started_at,
            began: now,
            total: SourceTally::default(),
            interval_recorder: IntervalRecorder::begin(setting.zero, "accepted", outputs.hlog.as_deref())?
                .excluding_before(setting.warm_up_until),
            host_sampler: HostSampler::start(),
            host_watch,
            usage_sampler: UsageSampler::of_own_process(now),
            progress_output: ProgressOutput::new(outputs.live, NonTerminalOutput::Lines).with_metrics(outputs.http)?,
            recent: Latencies::default(),
            reply_span: None,
            first_due: None,
            stalls: StallDetector::new(mailrun_journey::Stage::Accepted, setting.zero, now),
            next_tick: now + TALLY_INTERVAL,
            drain_deadline: None,
            end: LoadEnd { ending: Ending::Complete, stopped_at: None, is_abandoned: false },
            missed_threshold: None,
            schedules: setting.options.schedules(now),
            due_so_far: 0,
        })
    }

    /// Collects until the workers have ended, or until they are abandoned because they do not end
    /// after the load was stopped.
    pub(super) fn collect(&mut self, workers: SourceWorkers, interrupt: &Interrupt) -> Result<()> {
        loop {
            let wait = self.next_tick.saturating_sub(clock::now());
            match workers.tallies.recv_timeout(wait) {
                Ok((worker, mut tally)) => {
                    self.merge(&tally);
                    tally.clear();
                    // Ignore the error: a worker that has ended needs no empty tally.
                    let _ = workers.empty_tallies[worker].send(tally);
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.tick();
                    if self.should_abandon(interrupt) {
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
        match self.context.plan.failure() {
            Some(reason) => bail!("cannot reach {}: {reason}", self.context.options.to),
            None => Ok(()),
        }
    }

    /// Makes the record, and writes it to files if that was asked for.
    pub(super) fn finish(mut self) -> FinishedRun {
        let now = clock::now();
        self.tick();
        let unlogged = self.interval_recorder.finish(now);
        let series = &self.interval_recorder.series;
        let mut surroundings = self.host_sampler.finish();
        if let Some(watch) = self.host_watch.take() {
            watch.finish().fill(&mut surroundings);
        }
        let stalls = self.stalls.rows();
        let known = report::SourceResults {
            tally: &self.total,
            series,
            now,
            ending: self.end.ending,
            offered_time: self.offered_time(now),
            due: self.due(),
            is_abandoned: self.end.is_abandoned,
            course: RunCourse {
                origin: series.zero(),
                began: self.began,
                ended: self.total.created_times.last().unwrap_or(now),
                stalls: &stalls,
                ending: self.end.ending,
                stopped_at: self.end.stopped_at,
                missed_threshold: self.missed_threshold.as_ref(),
            },
            usage: &self.usage_sampler,
            missed_threshold: self.missed_threshold.as_ref(),
        };
        let record = report::record(&self.context, self.run, self.started_at, &known, surroundings);
        let unwritten = self.context.options.outputs.write_or_report(
            &record,
            &[&self.total.accepted_units],
            self.progress_output.events(),
        );
        self.progress_output.events().event(&LiveEvent::Done);
        FinishedRun { record, write_error: unwritten.or(unlogged) }
    }

    fn merge(&mut self, tally: &SourceTally) {
        if let Some(control) = &self.context.options.control {
            control.add(tally);
        }
        self.recent.merge(&tally.accepted_latency);
        if let Some((first, last)) = tally.first_reply.zip(tally.last_reply) {
            let (known_first, known_last) = self.reply_span.unwrap_or((first, last));
            self.reply_span = Some((first.min(known_first), last.max(known_last)));
        }
        self.first_due = self.first_due.into_iter().chain(tally.first_due).min();
        let series = &mut self.interval_recorder.series;
        tally.due_seconds.iter().for_each(|(begin, messages)| series.add_created(begin, messages));
        tally.seconds.iter().for_each(|second| series.add(second));
        self.total.merge(tally);
    }

    /// Returns how long load was offered. In an open loop, this is the time from when the first
    /// message was due until no more messages were due or the last message was taken up. In a
    /// closed loop, it is the time from the first message to the end of the last attempt.
    fn offered_time(&self, now: Duration) -> Option<Duration> {
        let total = &self.total;
        let options = &self.context.options;
        let first = total.first_created?;
        let end = match &options.offered_rate {
            None => total.last_ended,
            Some(_) if self.end.stopped_at.is_none() && self.context.plan.is_exhausted() => {
                let due = options.messages.map(|messages| options.due_after(messages));
                total.created_times.last().max(due.map(|due| self.began + due))
            }
            Some(_) => Some(self.context.plan.until().unwrap_or(now).min(self.end.stopped_at.unwrap_or(now))),
        };
        end.map(|end| end.saturating_sub(first))
    }

    /// Returns the number of messages that were due after the warm-up in an open loop. If the
    /// server went away, this includes the messages that were still to come. Messages of the last
    /// moments do not count as unsent, because the load ended before they could be late.
    fn due(&self) -> Option<u64> {
        let options = &self.context.options;
        let created = self.total.created - self.total.warm_up.created;
        let end = match self.end.ending {
            Ending::Interrupted | Ending::Aborted => self.end.stopped_at,
            _ => self.context.plan.until(),
        };
        let end = end.map(|end| end.saturating_sub(self.began));
        let warm_up = options.warm_up.map_or(Some(0), |length| options.due_within(Some(length)))?;
        let until = |end: Option<Duration>| Some(options.due_within(end)?.saturating_sub(warm_up));
        let is_behind = until(end.map(|end| end.saturating_sub(LAST_MOMENTS)))? > created;
        Some(if is_behind { until(end)? } else { created })
    }

    /// Counts the messages that have become due. The last moments are left out, because the
    /// workers' counts of them have not arrived yet.
    fn count_due(&mut self, now: Duration) {
        let now = now.saturating_sub(2 * TALLY_INTERVAL);
        let until = self.end.stopped_at.into_iter().chain(self.context.plan.until()).fold(now, Duration::min);
        let message_limit = self.context.options.messages.unwrap_or(u64::MAX);
        for schedule in &mut self.schedules {
            while schedule.due() < until && self.due_so_far < message_limit {
                schedule.advance();
                self.due_so_far += 1;
            }
        }
    }

    fn tick(&mut self) {
        let now = clock::now();
        self.next_tick = now + TALLY_INTERVAL;
        let total = &self.total;
        self.interval_recorder.series.reach(now);
        self.usage_sampler.sample_own(now);
        self.progress_output.latest_error(total.errors.latest());
        let (first, last) = self.reply_span.take().unzip();
        self.stalls.add(Tick {
            now,
            first,
            last,
            first_open: self.first_due.take(),
            open: total.open_messages(),
            rejected: total.rejected,
            failed: total.failed,
        });
        self.interval_recorder.log(now, &self.recent);
        self.count_due(now);
        let progress = self.progress(now);
        let usage = &self.usage_sampler;
        let context = &self.context;
        let total = &self.total;
        let states = |figures: &RunningFigures<'_>| {
            context.options.thresholds.iter().map(|one| threshold_state(one, figures)).collect()
        };
        let name = &self.context.options.name;
        self.progress_output.figures(|| RunSnapshot {
            title: if name == "source" { name.clone() } else { format!("source · {name}") },
            subject: format!("{} · {}", context.options.to, load_in_short(&context.options.workload(&context.summary))),
            thresholds: with_figures(total, now, states),
            parties: party_load("source", usage).into_iter().collect(),
            ..load_figures(&progress, None)
        });
        let line = |progress: &LiveProgress, rate| LiveLine::of(progress, progress.accepted, "accepted", rate);
        self.progress_output.progress(&progress, progress.accepted, line);
        self.recent.clear();
    }

    fn progress(&self, now: Duration) -> LiveProgress {
        LiveProgress {
            elapsed_s: now.saturating_sub(self.began).as_secs_f64(),
            due: self.due_so_far,
            created: self.total.created,
            sent: self.total.sent,
            accepted: self.total.accepted,
            delivered: 0,
            recipients: self.total.recipients_accepted,
            bytes: self.total.bytes_accepted,
            errors: self.total.errors.total(),
            sessions: u64::from(self.context.options.sessions),
            rejected: self.total.rejected,
            failed: self.total.failed,
            now: LiveTimes::of(&self.recent),
            run: LiveTimes::of(&self.total.accepted_latency),
            goal_messages: self.context.options.messages.unwrap_or_default(),
            goal_s: self.context.options.time_limit().unwrap_or_default().as_secs_f64(),
            open: self.total.open_messages(),
            waits_s: self.remaining_wait(now).as_secs_f64(),
        }
    }

    /// Returns how long to wait for the next reply after the last message has been given out.
    fn remaining_wait(&self, now: Duration) -> Duration {
        let total = &self.total;
        if total.open_messages() == 0 || !self.context.plan.is_over(now) {
            return Duration::ZERO;
        }
        let last = total.created_times.last().max(total.last_reply).unwrap_or(self.began);
        let ends = self.drain_deadline.unwrap_or(last + self.context.options.timeout);
        ends.saturating_sub(now)
    }

    /// True if the workers need not be awaited any longer.
    fn should_abandon(&mut self, interrupt: &Interrupt) -> bool {
        let now = clock::now();
        let control = self.context.options.control.clone();
        if let Some(limit) = control.as_ref().and_then(|control| control.drain_limit()) {
            self.stop(Ending::Complete, now, limit);
        }
        match interrupt.requested() {
            // Whoever controls the load decides when it ends.
            StopRequest::Stop if control.is_some() => {}
            StopRequest::Nothing => self.end_early(now),
            StopRequest::Stop => self.stop(Ending::Interrupted, now, DRAIN_TIMEOUT),
            StopRequest::StopNow | StopRequest::Quit => {
                self.stop(Ending::Interrupted, now, DRAIN_TIMEOUT);
                return true;
            }
        }
        self.drain_deadline.is_some_and(|ends| now >= ends)
    }

    /// Ends a run whose server is gone, or that has missed a threshold of `--abort-on`.
    fn end_early(&mut self, now: Duration) {
        let options = &self.context.options;
        let stall = self.stalls.current();
        let is_gone = stall.failed > 0 && stall.rejected == 0;
        if is_gone && stall.to_s - stall.from_s >= options.give_up_timeout.as_secs_f64() {
            return self.stop(Ending::GaveUp, now, DRAIN_TIMEOUT);
        }
        let begins = self.began.max(self.context.warm_up_until) + ABORT_DELAY;
        if self.missed_threshold.is_none() && now >= begins {
            self.missed_threshold = with_figures(&self.total, now, |figures| {
                options.abort_on.iter().map(|threshold| threshold.evaluate(figures)).find(|row| row.missed)
            });
            if self.missed_threshold.is_some() {
                self.stop(Ending::Aborted, now, DRAIN_TIMEOUT);
            }
        }
    }

    /// Stops giving out messages. Waits at most `drain` for messages in transit.
    fn stop(&mut self, ending: Ending, now: Duration, drain: Duration) {
        if self.end.stopped_at.is_none() {
            self.end = LoadEnd { ending, stopped_at: Some(now), ..self.end };
            self.drain_deadline = Some(now + drain);
        }
        self.context.plan.stop();
    }
}

/// Begins to watch the host, if something is required of the run. Below the bench, the bench does
/// that for all parties.
pub(super) fn watch_host(options: &SourceOptions) -> Option<HostWatch> {
    let is_judged = options.offered_rate.is_some() || !options.thresholds.is_empty() || !options.abort_on.is_empty();
    let is_alone = options.outputs.live != LiveMode::Json && options.control.is_none() && options.shard.is_none();
    (is_judged && is_alone).then(|| HostWatch::start(Parties::ThisProcess, std::slice::from_ref(&options.to)))
}
