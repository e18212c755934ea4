//! The periodic work of a run. The supervisor gives up overdue messages, reports progress, and
//! decides when the run is over.
use super::figures::with_figures;
use super::observer::RunView;
use super::pacer::PacerAction;
use super::run_state::MadesRunState;
use super::stages::{MadesFate, MessageStage};
use mailrun_dashboard::RunSnapshot;
use mailrun_dashboard::live_figures::{mades_figures, party_load, threshold_state};
use mailrun_dashboard::progress_output::ProgressOutput;
use mailrun_journey::Latencies;
use mailrun_journey::record::{Ending, Record, StallRow, ThresholdRow};
use mailrun_journey::stalls::{StallDetector, Tick};
use mailrun_journey::threshold::RunningFigures;
use mailrun_net::clock;
use mailrun_party::host_watch::HostWatch;
use mailrun_party::interrupt::{Interrupt, StopRequest};
use mailrun_party::live::{LiveEvent, LiveProgress, LiveTimes};
use mailrun_party::live_line::{LiveLine, NonTerminalOutput};
use mailrun_party::outputs::IntervalRecorder;
use mailrun_party::usage_sampler::UsageSampler;
use mailrun_report::load_in_short;
use std::time::Duration;

/// Interval at which the supervisor looks for overdue messages.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);
/// Time for which the bench still waits for answers after the user has asked it to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);
/// Minimum age of a run before a threshold may end it, because a rate takes some time to become
/// steady.
const ABORT_DELAY: Duration = Duration::from_secs(1);
/// Shortest time in seconds without deliveries that counts as a stall.
const MIN_STALL_S: f64 = 1.0;
/// A gap must last this many mean intervals between deliveries to count as a stall. Shorter gaps are usual, because
/// deliveries come at irregular intervals.
const MAX_USUAL_GAPS: f64 = 10.0;

pub(super) struct RunSupervisor {
    pub(super) interval_recorder: IntervalRecorder,
    progress_output: ProgressOutput,
    pub(super) usage_sampler: UsageSampler,
    recent: Latencies,
    next_progress: Duration,
    stop_deadline: Option<Duration>,
    next_threshold_check: Duration,
    accepting: StallDetector,
    delivering: StallDetector,
    pub(super) missed_threshold: Option<ThresholdRow>,
    /// Time at which the supervisor noticed that creation has ended.
    all_created_at: Option<Duration>,
}

impl RunSupervisor {
    pub(super) fn begin(run_state: &MadesRunState, recorder: IntervalRecorder) -> Self {
        let output = ProgressOutput::new(run_state.options.live, NonTerminalOutput::Lines);
        let next_tick = run_state.began + PROGRESS_INTERVAL;
        Self {
            interval_recorder: recorder,
            progress_output: output,
            usage_sampler: UsageSampler::of_own_process(run_state.began),
            recent: Latencies::default(),
            next_progress: next_tick,
            stop_deadline: None,
            next_threshold_check: next_tick,
            accepting: StallDetector::new(mailrun_journey::Stage::Accepted, run_state.began, run_state.began),
            delivering: StallDetector::new(mailrun_journey::Stage::Delivered, run_state.began, run_state.began),
            missed_threshold: None,
            all_created_at: None,
        }
    }

    pub(super) async fn run(
        &mut self,
        run_state: &MadesRunState,
        interrupt: &Interrupt,
        host_watch: &HostWatch,
    ) -> Ending {
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            let now = clock::now();
            run_state.tracker.borrow_mut().expire(now);
            run_state.give_up_if_silent(now);
            // There may be room for another message now, or creation may be over.
            run_state.room_notify.notify_one();
            if now >= self.next_progress {
                self.next_progress = now + PROGRESS_INTERVAL;
                self.tick(run_state, now);
            }
            if run_state.pacer.borrow().is_over(now) {
                host_watch.load_ended();
            }
            if let Some(ending) = self.ending(run_state, interrupt, now) {
                return ending;
            }
        }
    }

    /// Finishes the interval log. Returns the first error that occurred while writing it.
    pub(super) fn finish(&mut self, run_state: &MadesRunState) -> Option<anyhow::Error> {
        let now = clock::now();
        self.tick(run_state, now);
        self.interval_recorder.finish(now)
    }

    /// Reports the end of the run to live listeners, after the files were written. `unwritten` is
    /// the error if they could not be written.
    pub(super) fn publish(&self, record: &Record, unwritten: Option<&anyhow::Error>) {
        if unwritten.is_some() {
            self.progress_output.events().unwritten(record);
        }
        self.progress_output.events().event(&LiveEvent::Done);
    }

    /// Returns the stalls: periods in which messages waited while the broker accepted none or the
    /// endpoint delivered none.
    pub(super) fn stalls(&self, run_state: &MadesRunState) -> Vec<StallRow> {
        let tracker = run_state.tracker.borrow();
        let arrived = tracker.waterfall.count(tracker.mode().arrival());
        let offered_s = run_state.offered().unwrap_or_default().as_secs_f64();
        let usual_s = MAX_USUAL_GAPS * offered_s / arrived.max(1) as f64;
        // The time until the first delivery is the length of the route, and no stall.
        let is_stall = |row: &StallRow| row.from_s > 0.0 && row.to_s - row.from_s >= usual_s.max(MIN_STALL_S);
        // After the end of the load, waiting for a lost message is no stall.
        let within_offer = |row: StallRow| match row.to_the_end {
            true => StallRow { to_s: row.to_s.min(offered_s), ..row },
            false => row,
        };
        let mut rows = self.accepting.rows();
        rows.extend(self.delivering.rows().into_iter().map(within_offer).filter(is_stall));
        rows
    }

    fn record_stalls(&mut self, run_state: &MadesRunState, now: Duration) {
        let mut tracker = run_state.tracker.borrow_mut();
        // A message that is due and has room but is not created waits for a connection or for
        // credit.
        let is_held_up = tracker.has_room() && matches!(run_state.pacer.borrow().next(now), PacerAction::Create(_));
        let first_open = tracker.waterfall.take_span(MessageStage::Created).map(|(first, _)| first);
        let (first, last) = tracker.waterfall.take_span(MessageStage::Settled).unzip();
        let open = tracker.unsettled() as u64 + u64::from(is_held_up);
        let failed = tracker.unanswered();
        self.accepting.add(Tick { now, first, last, first_open, open, rejected: 0, failed });
        let arrival = tracker.mode().arrival();
        let (first, last) = tracker.waterfall.take_span(arrival).unzip();
        let open = u64::from(tracker.awaits_arrival());
        self.delivering.add(Tick { now, first, last, first_open, open, rejected: 0, failed: 0 });
    }

    fn tick(&mut self, run_state: &MadesRunState, now: Duration) {
        self.record_stalls(run_state, now);
        let mut tracker = run_state.tracker.borrow_mut();
        tracker.waterfall.take_recent(&mut self.recent);
        let reached = |stage| tracker.waterfall.count(stage);
        let arrived = reached(tracker.mode().arrival());
        let sent = reached(MessageStage::Sent);
        let settled = reached(MessageStage::Settled);
        let troubles = tracker.troubles.total();
        let series = &mut self.interval_recorder.series;
        series.reach(now);
        tracker.waterfall.seconds.iter().for_each(|second| series.add(second));
        tracker.waterfall.seconds.clear();
        run_state.due_seconds.borrow_mut().drain().for_each(|(begin, messages)| series.add_created(begin, messages));
        self.usage_sampler.sample_own(now);
        self.interval_recorder.log(now, &self.recent);
        let progress = LiveProgress {
            elapsed_s: now.saturating_sub(run_state.began).as_secs_f64(),
            due: run_state.pacer.borrow_mut().due(now.saturating_sub(PROGRESS_INTERVAL)),
            created: tracker.created(),
            sent,
            accepted: settled,
            delivered: arrived,
            recipients: arrived,
            bytes: (arrived as f64 * run_state.payloads.mean_size()) as u64,
            errors: troubles,
            sessions: tracker.in_transit() as u64,
            goal_messages: run_state.options.messages.unwrap_or_default(),
            goal_s: run_state.options.limit().unwrap_or_default().as_secs_f64(),
            open: tracker.in_transit() as u64,
            waits_s: 0.0,
            rejected: tracker.ended(MadesFate::Rejected),
            failed: tracker.ended_without_delivery() - tracker.ended(MadesFate::Rejected),
            now: LiveTimes::of(&self.recent),
            run: LiveTimes::of(tracker.waterfall.latency(tracker.mode().arrival())),
        };
        self.progress_output.latest_error(tracker.troubles.latest());
        drop(tracker);
        let progress = LiveProgress { waits_s: self.remaining_wait(run_state, now).as_secs_f64(), ..progress };
        let usage = &self.usage_sampler;
        let tracker = run_state.tracker.borrow();
        let states = |figures: &RunningFigures<'_>| {
            run_state.options.thresholds.iter().map(|one| threshold_state(one, figures)).collect()
        };
        self.progress_output.figures(|| RunSnapshot {
            title: "mades".to_owned(),
            subject: format!(
                "{} · {}",
                run_state.options.outbox.url,
                load_in_short(&super::report::workload(run_state))
            ),
            thresholds: with_figures(&tracker, now, states),
            parties: party_load("mades", usage).into_iter().collect(),
            ..mades_figures(&progress)
        });
        self.progress_output.progress(&progress, progress.delivered, LiveLine::of_mades);
        self.recent.clear();
    }

    /// Returns how long the bench still waits for answers. Zero until creation has ended.
    fn remaining_wait(&mut self, run_state: &MadesRunState, now: Duration) -> Duration {
        let pacer = run_state.pacer.borrow();
        let open = run_state.tracker.borrow().in_transit();
        if !pacer.is_over(now) {
            return Duration::ZERO;
        }
        let options = &run_state.options;
        let all_created = *self.all_created_at.get_or_insert(now);
        let ends = match self.stop_deadline {
            Some(grace_ends) => grace_ends,
            None if open > 0 => all_created + options.timeout,
            None => run_state.last_arrival() + options.linger,
        };
        ends.saturating_sub(now)
    }

    fn ending(&mut self, run_state: &MadesRunState, interrupt: &Interrupt, now: Duration) -> Option<Ending> {
        let request = requested_stop(run_state, interrupt.requested(), now);
        if request != StopRequest::Nothing || self.misses_threshold(run_state, now) {
            run_state.pacer.borrow_mut().stop(now);
        }
        let is_done = run_state.pacer.borrow().is_over(now) && run_state.tracker.borrow().in_transit() == 0;
        let is_quiet = is_done && now.saturating_sub(run_state.last_arrival()) >= run_state.options.linger;
        match request {
            StopRequest::Nothing if self.missed_threshold.is_some() => {
                self.is_wait_over(is_quiet, now).then_some(Ending::Aborted)
            }
            StopRequest::Nothing if run_state.is_given_up.get() => is_quiet.then_some(Ending::GaveUp),
            StopRequest::Nothing => is_quiet.then_some(Ending::Complete),
            StopRequest::Stop => self.is_wait_over(is_quiet, now).then_some(Ending::Interrupted),
            StopRequest::StopNow | StopRequest::Quit => Some(Ending::Interrupted),
        }
    }

    /// Returns true if a run that is being stopped has waited long enough.
    fn is_wait_over(&mut self, is_quiet: bool, now: Duration) -> bool {
        let grace_ends = *self.stop_deadline.get_or_insert(now + STOP_TIMEOUT);
        is_quiet || now >= grace_ends
    }

    fn misses_threshold(&mut self, run_state: &MadesRunState, now: Duration) -> bool {
        let is_time = now >= run_state.began + ABORT_DELAY && now >= self.next_threshold_check;
        if self.missed_threshold.is_none() && is_time && !run_state.options.abort_on.is_empty() {
            self.next_threshold_check = now + PROGRESS_INTERVAL;
            let tracker = run_state.tracker.borrow();
            self.missed_threshold = with_figures(&tracker, now, |figures| {
                let mut rows = run_state.options.abort_on.iter().map(|threshold| threshold.evaluate(figures));
                rows.find(|row| row.missed)
            });
        }
        self.missed_threshold.is_some()
    }
}

/// Returns the user's or the observer's request to end the run, whichever is more urgent.
fn requested_stop(run_state: &MadesRunState, by_user: StopRequest, now: Duration) -> StopRequest {
    let Some(observer) = &run_state.options.observer else { return by_user };
    let view = RunView { now, began: run_state.began, last_arrival: run_state.last_arrival(), asked: by_user };
    by_user.max(observer.poll(&view))
}
