//! Adds up the counts that all workers of a load report. From these sums, the collector makes the totals, the figures
//! per second, the live line and, at the end, the record.
use super::context::SourceContext;
use super::options::SourceOptions;
use super::report;
use super::worker::SourceWorkers;
use super::worker_state::TALLY_INTERVAL;
use anyhow::{Result, bail};
use mailrun_dashboard::RunSnapshot;
use mailrun_dashboard::live_figures::{load_figures, party_load, threshold_states};
use mailrun_dashboard::monitor::{LoadHost, Monitor, MonitoredLoad, MonitoredRun};
use mailrun_dashboard::progress_output::ProgressOutput;
use mailrun_measurement::record::{Ending, LedgerRow};
use mailrun_measurement::stalls::{StallDetector, Tick};
use mailrun_measurement::threshold::{MetricSource, RunningFigures, RunningStage};
use mailrun_measurement::{Latencies, RunId, Series, SourceTally, Stage};
use mailrun_net::clock;
use mailrun_process::interrupt::{Interrupt, StopRequest};
use mailrun_process::live::{LiveEvent, LiveMode, LiveProgress, LiveTimes};
use mailrun_process::live_line::{LiveLine, NonTerminalOutput};
use mailrun_process::live_metrics::MeasuredParty;
use mailrun_process::outputs::{FinishedRun, IntervalRecorder};
use mailrun_process::usage_sampler::UsageSampler;
use mailrun_report::load_in_short;
use mailrun_schedule::pacing::ArrivalSchedule;
use mailrun_schedule::run_events::RunCourse;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

/// If all unsent messages were due within this time before the end of the load, the source does not count as late. The
/// load may have ended before the source could send these messages.
const LAST_MOMENTS: Duration = Duration::from_millis(100);

pub(super) struct SourceCollector {
    run: RunId,
    started_at: jiff::Timestamp,
    monitor: Monitor<SourceLoad>,
    /// True if sessions were abandoned before their end, so that some messages may be unfinished.
    is_abandoned: bool,
}

struct SourceLoad {
    context: Arc<SourceContext>,
    total: SourceTally,
    usage_sampler: UsageSampler,
    /// Times at which the first and the last message since the last tick were accepted. `None` if no message was
    /// accepted.
    reply_span: Option<(Duration, Duration)>,
    /// Earliest due time (open loop) or creation time (closed loop) of the messages created since the last tick.
    first_due: Option<Duration>,
    stalls: StallDetector,
    schedules: Vec<ArrivalSchedule>,
    due_so_far: u64,
    stopped_at: Option<Duration>,
}

impl SourceCollector {
    pub(super) fn begin(
        setting: &Arc<SourceContext>,
        run: RunId,
        started_at: jiff::Timestamp,
        host: LoadHost,
    ) -> Result<Self> {
        let outputs = &setting.options.outputs;
        let now = setting.began;
        let recorder = IntervalRecorder::begin(setting.zero, "accepted", outputs.hlog.as_deref())?
            .excluding_before(setting.warm_up_until);
        let party = MeasuredParty { name: "source", prefix: "mailrun_source_", stage: "accepted" };
        let output = ProgressOutput::new(outputs.live, NonTerminalOutput::Lines).with_metrics(outputs.http, party)?;
        let load = SourceLoad {
            context: Arc::clone(setting),
            total: SourceTally::default(),
            usage_sampler: UsageSampler::of_own_process(now),
            reply_span: None,
            first_due: None,
            stalls: StallDetector::new(mailrun_measurement::Stage::Accepted, setting.zero, now),
            schedules: setting.options.schedules(now),
            due_so_far: 0,
            stopped_at: None,
        };
        let monitor = Monitor::new(load, recorder, output, now);
        let monitor = monitor.of_load(host, &setting.options.abort_on, now.max(setting.warm_up_until));
        Ok(Self { run, started_at, monitor, is_abandoned: false })
    }

    /// Collects counts until the workers have ended. If the load is stopped, workers that end too late are abandoned.
    pub(super) fn collect(&mut self, workers: SourceWorkers, interrupt: &Interrupt) -> Result<()> {
        loop {
            let wait = self.monitor.next_tick().saturating_sub(clock::now());
            match workers.tallies.recv_timeout(wait) {
                Ok(mut transfer) => {
                    self.merge(&transfer.tally);
                    transfer.tally.clear();
                    transfer.give_back();
                }
                Err(RecvTimeoutError::Timeout) if self.should_abandon(interrupt) => {
                    self.is_abandoned = true;
                    break;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    workers.join();
                    break;
                }
            }
        }
        let context = &self.monitor.run.context;
        match context.plan.failure() {
            Some(reason) => bail!("cannot reach {}: {reason}", context.options.to),
            None => Ok(()),
        }
    }

    fn merge(&mut self, tally: &SourceTally) {
        let Monitor { run: load, recorder, recent, .. } = &mut self.monitor;
        if let Some(control) = &load.context.options.control {
            control.add(tally);
        }
        recent.merge(&tally.accepted_latency);
        if let Some((first, last)) = tally.first_reply.zip(tally.last_reply) {
            let (known_first, known_last) = load.reply_span.unwrap_or((first, last));
            load.reply_span = Some((first.min(known_first), last.max(known_last)));
        }
        load.first_due = load.first_due.into_iter().chain(tally.first_due).min();
        let series = &mut recorder.series;
        tally.due_seconds.iter().for_each(|(begin, messages)| series.add_created(begin, messages));
        tally.seconds.iter().for_each(|second| series.add(second));
        load.total.merge(tally);
    }

    /// Returns true if the collector should no longer wait for the workers, because the load was stopped and they have
    /// had time to finish.
    fn should_abandon(&mut self, interrupt: &Interrupt) -> bool {
        let now = clock::now();
        let control = self.monitor.run.context.options.control.clone();
        if let Some(deadline) = control.as_ref().and_then(|control| control.drain_deadline()) {
            self.monitor.stop(Ending::Complete, now, deadline.saturating_sub(now));
        }
        self.monitor.poll(
            now,
            match interrupt.requested() {
                // Ignore a request to stop if the load has a controller, such as a Locust master, because the
                // controller handles the request itself and then ends the load.
                StopRequest::Stop if control.is_some() => StopRequest::Nothing,
                request => request,
            },
        )
    }

    /// Makes the record and writes the requested files. Returns the record even if a file cannot be written.
    pub(super) fn finish(self) -> FinishedRun {
        let Self { run, started_at, mut monitor, is_abandoned } = self;
        let now = clock::now();
        let unlogged = monitor.finish(now);
        let surroundings = monitor.host.finish();
        let load = &monitor.run;
        let series = &monitor.recorder.series;
        let ending = monitor.ending();
        let stalls = load.stalls.rows();
        let known = report::SourceResults {
            tally: &load.total,
            series,
            now,
            offered_time: load.offered_time(now),
            due: load.due(ending),
            due_by_stage: load.due_by_stage(ending),
            is_abandoned,
            course: RunCourse {
                origin: series.zero(),
                began: load.context.began,
                ended: load.total.created_times.last().unwrap_or(now),
                stalls: &stalls,
                ending,
                stopped_at: load.stopped_at,
                missed_threshold: monitor.missed_threshold(),
            },
            usage: &load.usage_sampler,
        };
        let record = report::record(&load.context, run, started_at, &known, surroundings);
        let outputs = &load.context.options.outputs;
        let unwritten = outputs.write_or_report(&record, &[&load.total.accepted_units], monitor.output.events());
        monitor.output.events().event(&LiveEvent::Done);
        FinishedRun { record, write_error: unwritten.or(unlogged) }
    }
}

impl SourceLoad {
    /// Returns how long load was offered, from the first message on. In a closed loop, this time ends when the last
    /// message is accepted, rejected or given up. In an open loop of which all messages were taken up, it ends when one
    /// more message would have been due or, if later, when the last message was taken up. In an open loop with messages
    /// left, it ends at the planned end, or earlier if the load is stopped.
    fn offered_time(&self, now: Duration) -> Option<Duration> {
        let total = &self.total;
        let options = &self.context.options;
        let first = total.first_created?;
        let end = match &options.offered_rate {
            None => total.last_ended,
            Some(_) if self.stopped_at.is_none() && self.context.plan.is_exhausted() => {
                let due = options.messages.map(|messages| options.due_after(messages));
                total.created_times.last().max(due.map(|due| self.context.began + due))
            }
            Some(_) => Some(self.context.plan.until().unwrap_or(now).min(self.stopped_at.unwrap_or(now))),
        };
        end.map(|end| end.saturating_sub(first))
    }

    /// Returns the number of messages that were due after the warm-up, or `None` in a closed loop. If the server went
    /// away, this includes the messages that were due until the planned end. If all messages that were not created were
    /// due within `LAST_MOMENTS` before the end, returns the number of created messages instead, because the load ended
    /// before the source could create the rest.
    fn due(&self, ending: Ending) -> Option<u64> {
        let options = &self.context.options;
        let created = self.total.created - self.total.warm_up.created;
        let end = match ending {
            Ending::Interrupted | Ending::Aborted => self.stopped_at,
            _ => self.context.plan.until(),
        };
        let end = end.map(|end| end.saturating_sub(self.context.began));
        let warm_up = options.warm_up.map_or(Some(0), |length| options.due_within(Some(length)))?;
        let until = |end: Option<Duration>| Some(options.due_within(end)?.saturating_sub(warm_up));
        let is_behind = until(end.map(|end| end.saturating_sub(LAST_MOMENTS)))? > created;
        Some(if is_behind { until(end)? } else { created })
    }

    /// For each stage of the load, returns the number of messages that were due after the warm-up. Returns an empty
    /// list if all due messages were created, because the record can then use the numbers of created messages instead.
    fn due_by_stage(&self, ending: Ending) -> Vec<u64> {
        let context = &self.context;
        let created = self.total.created - self.total.warm_up.created;
        if self.due(ending).is_none_or(|due| due <= created) {
            return Vec::new();
        }
        let stopped = match ending {
            Ending::Interrupted | Ending::Aborted => self.stopped_at,
            _ => context.plan.until(),
        };
        let last = stopped.unwrap_or(Duration::MAX);
        let due_by = |time: Duration| {
            let time = time.min(last).max(context.warm_up_until).saturating_sub(context.began);
            context.options.due_within(Some(time)).unwrap_or_default()
        };
        let begins = std::iter::once(context.began).chain(context.load_stage_ends.iter().copied());
        begins.zip(&context.load_stage_ends).map(|(begin, end)| due_by(*end).saturating_sub(due_by(begin))).collect()
    }

    /// Counts the messages that have become due so far. Leaves out the last two report intervals, because the workers
    /// may not have reported the messages of these intervals yet.
    fn count_due(&mut self, now: Duration) {
        let now = now.saturating_sub(2 * TALLY_INTERVAL);
        let until = self.stopped_at.into_iter().chain(self.context.plan.until()).fold(now, Duration::min);
        let message_limit = self.context.options.messages.unwrap_or(u64::MAX);
        for schedule in &mut self.schedules {
            while schedule.due() < until && self.due_so_far < message_limit {
                schedule.advance();
                self.due_so_far += 1;
            }
        }
    }
}

impl MonitoredRun for SourceLoad {
    const DONE: fn(&LiveProgress) -> u64 = |progress| progress.accepted;
    const LINE: fn(&LiveProgress, f64) -> LiveLine =
        |progress, rate_per_s| LiveLine::of(progress, progress.accepted, "accepted", rate_per_s);

    fn collect(&mut self, now: Duration, series: &mut Series, _recent: &mut Latencies) {
        series.reach(now);
        self.usage_sampler.sample_own(now);
        let total = &self.total;
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
        self.count_due(now);
    }

    fn progress(&mut self, now: Duration, recent: &Latencies) -> LiveProgress {
        let SourceContext { options, began, .. } = &*self.context;
        LiveProgress {
            elapsed_s: now.saturating_sub(*began).as_secs_f64(),
            due: self.due_so_far,
            created: self.total.created,
            sent: self.total.sent,
            accepted: self.total.accepted,
            sent_per_s: self.total.sent_times.per_s().unwrap_or_default(),
            accepted_per_s: self.total.accepted_times.per_s().unwrap_or_default(),
            recipients: self.total.recipients_accepted,
            settled: 0,
            bytes: self.total.bytes_accepted,
            errors: self.total.errors.total(),
            sessions: u64::from(options.sessions),
            rejected: self.total.rejected,
            failed: self.total.failed,
            now: LiveTimes::of(recent),
            run: LiveTimes::of(&self.total.accepted_latency),
            goal_messages: options.messages.unwrap_or_default(),
            goal_s: options.time_limit().unwrap_or_default().as_secs_f64(),
            open: self.total.open_messages(),
            ..LiveProgress::default()
        }
    }

    fn latest_error(&self) -> Option<String> {
        self.total.errors.latest()
    }

    fn show_figures(&self, now: Duration, progress: &LiveProgress, output: &mut ProgressOutput) {
        let SourceContext { options, summary, .. } = &*self.context;
        let name = &options.name;
        output.figures(|| RunSnapshot {
            title: if name == "source" { name.clone() } else { format!("source · {name}") },
            subject: format!("{} · {}", options.to, load_in_short(&options.workload(summary))),
            thresholds: self.with_figures(now, |figures| threshold_states(&options.thresholds, figures)),
            parties: party_load("source", &self.usage_sampler).into_iter().collect(),
            ..load_figures(progress, None)
        });
    }

    fn waits_until(&mut self, now: Duration) -> Option<Duration> {
        let total = &self.total;
        if total.open_messages() == 0 || !self.is_load_over(now) {
            return None;
        }
        let last = total.created_times.last().max(total.last_reply).unwrap_or(self.context.began);
        Some(last + self.context.options.timeout)
    }
}

impl MonitoredLoad for SourceLoad {
    fn stop(&mut self, now: Duration) {
        self.stopped_at.get_or_insert(now);
        self.context.plan.stop();
    }

    fn is_load_over(&self, now: Duration) -> bool {
        self.context.plan.is_over(now)
    }

    fn is_server_gone(&self) -> bool {
        let stall = self.stalls.current();
        let is_gone = stall.failed > 0 && stall.rejected == 0;
        is_gone && stall.to_s - stall.from_s >= self.context.options.give_up_timeout.as_secs_f64()
    }

    fn with_figures<T>(&self, now: Duration, use_figures: impl FnOnce(&RunningFigures<'_>) -> T) -> T {
        let total = &self.total;
        let ledger = || LedgerRow {
            rejected: Some(total.recipients_rejected),
            failed: Some(total.recipients_failed),
            in_doubt: Some(total.recipients_in_doubt),
            ..LedgerRow::default()
        };
        use_figures(&RunningFigures {
            stages: &|of| stage(total, now, of),
            // Do not count messages in transit as finished, because nobody knows yet whether they will be late.
            finished: (total.created - total.warm_up.created).saturating_sub(total.open_messages()),
            created_units: total.recipients_created,
            ledger: &ledger,
        })
    }
}

/// Begins to record how busy this host is, and which other processes are busy. Leaves out the other processes if the
/// source belongs to a bench, is controlled by another program, or sends only a part of a load, because another process
/// may already watch them.
pub(super) fn observe_host(options: &SourceOptions) -> LoadHost {
    let is_alone = options.outputs.live != LiveMode::Json && options.control.is_none() && options.shard.is_none();
    let servers = if is_alone { std::slice::from_ref(&options.to) } else { &[] };
    LoadHost::observe(options.offered_rate.is_some(), &[&options.thresholds, &options.abort_on], servers)
}

pub(super) fn stage(tally: &SourceTally, now: Duration, of: MetricSource) -> Option<RunningStage> {
    let warm_up = &tally.warm_up;
    let (count, times) = match of {
        MetricSource::Stage(Stage::Created) => (tally.created - warm_up.created, &tally.slip),
        MetricSource::Stage(Stage::Sent) => (tally.sent - warm_up.sent, &tally.sent_latency),
        MetricSource::Stage(Stage::Accepted) => (tally.accepted - warm_up.accepted, &tally.accepted_latency),
        MetricSource::Phase(phase) => {
            let times = &tally.phases.0[phase as usize];
            (times.count(), times)
        }
        MetricSource::Stage(_) => return None,
    };
    let elapsed_s = now.saturating_sub(tally.first_created.unwrap_or(now)).as_secs_f64();
    let rate_per_s = (elapsed_s > 0.0).then(|| count as f64 / elapsed_s);
    Some(RunningStage { count, rate_per_s, times: Some(times.clone()), summary: None })
}
