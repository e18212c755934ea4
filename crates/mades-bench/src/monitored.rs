//! Reports a run to its monitor, which shows and records the figures. Also tells the monitor when the run is over.
use super::pacer::PacerAction;
use super::report::workload;
use super::run_state::MadesRunState;
use super::stages::{MadesFate, MessageStage, RunView};
use super::tracker::MessageTracker;
use mailrun_dashboard::RunSnapshot;
use mailrun_dashboard::live_figures::{mades_figures, party_load, threshold_states};
use mailrun_dashboard::monitor::{Monitor, MonitoredLoad, MonitoredRun, TICK};
use mailrun_dashboard::progress_output::ProgressOutput;
use mailrun_measurement::record::StallRow;
use mailrun_measurement::stalls::{StallDetector, Tick};
use mailrun_measurement::threshold::{MetricSource, RunningFigures, RunningStage};
use mailrun_measurement::{Latencies, Series, Stage};
use mailrun_net::clock;
use mailrun_process::interrupt::{Interrupt, StopRequest};
use mailrun_process::live::{LiveProgress, LiveTimes};
use mailrun_process::live_line::LiveLine;
use mailrun_process::usage_sampler::UsageSampler;
use mailrun_report::load_in_short;
use std::rc::Rc;
use std::time::Duration;

/// Interval at which the bench gives up messages that have timed out, and updates the monitor.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// A gap between two deliveries counts as a stall only if it lasts at least this many seconds.
const MIN_STALL_S: f64 = 1.0;
/// A gap between two deliveries counts as a stall only if it is at least this many times as long as the mean gap.
/// Shorter gaps are usual, because deliveries come at irregular intervals.
const MAX_USUAL_GAPS: f64 = 10.0;

pub(super) struct MadesLoad {
    state: Rc<MadesRunState>,
    pub(super) usage_sampler: UsageSampler,
    accepting: StallDetector,
    delivering: StallDetector,
    /// Time at which the bench noticed that it will create no more messages, or `None` during the load.
    all_created_at: Option<Duration>,
}

/// Gives up messages that have timed out, and updates the monitor, until the run is over.
pub(super) async fn follow(monitor: &mut Monitor<MadesLoad>, interrupt: &Interrupt) {
    let state = Rc::clone(&monitor.run.state);
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        let now = clock::now();
        state.tracker.borrow_mut().expire(now);
        state.give_up_if_silent(now);
        // Wake the sender, because there may be room for another message now, or the load may be over.
        state.room_notify.notify_one();
        if monitor.poll(now, requested_stop(&state, interrupt.requested(), now)) {
            return;
        }
    }
}

impl MadesLoad {
    pub(super) fn new(state: &Rc<MadesRunState>) -> Self {
        let began = state.began;
        Self {
            state: Rc::clone(state),
            usage_sampler: UsageSampler::of_own_process(began),
            accepting: StallDetector::new(Stage::Accepted, began, began),
            delivering: StallDetector::new(Stage::Delivered, began, began),
            all_created_at: None,
        }
    }

    /// Returns the stalls: periods in which messages waited while the broker accepted none or the
    /// endpoint delivered none.
    pub(super) fn stalls(&self) -> Vec<StallRow> {
        let tracker = self.state.tracker.borrow();
        let arrived = tracker.waterfall.count(tracker.mode().arrival());
        let offered_s = self.state.offered().unwrap_or_default().as_secs_f64();
        let usual_s = MAX_USUAL_GAPS * offered_s / arrived.max(1) as f64;
        // The time until the first delivery is the latency of the route and not a stall.
        let is_stall = |row: &StallRow| row.from_s > 0.0 && row.to_s - row.from_s >= usual_s.max(MIN_STALL_S);
        // After the end of the load, waiting for a lost message does not count as a stall.
        let within_offer = |row: StallRow| match row.to_the_end {
            true => StallRow { to_s: row.to_s.min(offered_s), ..row },
            false => row,
        };
        let mut rows = self.accepting.rows();
        rows.extend(self.delivering.rows().into_iter().map(within_offer).filter(is_stall));
        rows
    }

    fn record_stalls(&mut self, now: Duration) {
        let mut tracker = self.state.tracker.borrow_mut();
        // The sender is held up if a message is due and the limit of messages in flight is not reached. The cause is a
        // lost connection or missing credit.
        let is_held_up = tracker.has_room() && matches!(self.state.pacer.borrow().next(now), PacerAction::Create(_));
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
}

impl MonitoredRun for MadesLoad {
    const DONE: fn(&LiveProgress) -> u64 = |progress| progress.delivered;
    const LINE: fn(&LiveProgress, f64) -> LiveLine = LiveLine::of_mades;

    fn collect(&mut self, now: Duration, series: &mut Series, recent: &mut Latencies) {
        self.record_stalls(now);
        self.usage_sampler.sample_own(now);
        series.reach(now);
        let mut tracker = self.state.tracker.borrow_mut();
        let waterfall = &mut tracker.waterfall;
        waterfall.take_recent(recent);
        waterfall.seconds.iter().for_each(|second| series.add(second));
        waterfall.seconds.clear();
        self.state.due_seconds.borrow_mut().drain().for_each(|(begin, messages)| series.add_created(begin, messages));
    }

    fn progress(&mut self, now: Duration, recent: &Latencies) -> LiveProgress {
        let state = &self.state;
        let tracker = state.tracker.borrow();
        let reached = |stage| tracker.waterfall.count(stage);
        let arrived = reached(tracker.mode().arrival());
        LiveProgress {
            elapsed_s: now.saturating_sub(state.began).as_secs_f64(),
            due: state.pacer.borrow_mut().due(now.saturating_sub(TICK)),
            created: tracker.created(),
            sent: reached(MessageStage::Sent),
            accepted: reached(MessageStage::Settled),
            delivered: arrived,
            delivered_per_s: tracker.waterfall.rate_per_s(tracker.mode().arrival()).unwrap_or_default(),
            recipients: arrived,
            settled: arrived,
            bytes: (arrived as f64 * state.payloads.mean_size()) as u64,
            errors: tracker.troubles.total(),
            sessions: tracker.in_transit() as u64,
            goal_messages: state.options.messages.unwrap_or_default(),
            goal_s: state.options.limit().unwrap_or_default().as_secs_f64(),
            open: tracker.in_transit() as u64,
            rejected: tracker.ended(MadesFate::Rejected),
            failed: tracker.ended_without_delivery() - tracker.ended(MadesFate::Rejected),
            now: LiveTimes::of(recent),
            run: LiveTimes::of(tracker.waterfall.latency(tracker.mode().arrival())),
            ..LiveProgress::default()
        }
    }

    fn latest_error(&self) -> Option<String> {
        self.state.tracker.borrow().troubles.latest()
    }

    fn show_figures(&self, now: Duration, progress: &LiveProgress, output: &mut ProgressOutput) {
        let options = &self.state.options;
        output.figures(|| RunSnapshot {
            title: "mades".to_owned(),
            subject: format!("{} · {}", options.outbox.url, load_in_short(&workload(&self.state))),
            thresholds: self.with_figures(now, |figures| threshold_states(&options.thresholds, figures)),
            parties: party_load("mades", &self.usage_sampler).into_iter().collect(),
            ..mades_figures(progress)
        });
    }

    fn waits_until(&mut self, now: Duration) -> Option<Duration> {
        if !self.is_load_over(now) {
            return None;
        }
        let all_created_at = *self.all_created_at.get_or_insert(now);
        let options = &self.state.options;
        Some(match self.state.tracker.borrow().in_transit() {
            0 => self.state.last_arrival() + options.linger,
            _ => all_created_at + options.timeout,
        })
    }
}

impl MonitoredLoad for MadesLoad {
    fn stop(&mut self, now: Duration) {
        self.state.pacer.borrow_mut().stop(now);
    }

    fn is_load_over(&self, now: Duration) -> bool {
        self.state.pacer.borrow().is_over(now)
    }

    fn is_done(&self, now: Duration) -> bool {
        let has_all = self.is_load_over(now) && self.state.tracker.borrow().in_transit() == 0;
        has_all && now.saturating_sub(self.state.last_arrival()) >= self.state.options.linger
    }

    fn with_figures<T>(&self, now: Duration, use_figures: impl FnOnce(&RunningFigures<'_>) -> T) -> T {
        let tracker = self.state.tracker.borrow();
        use_figures(&RunningFigures {
            stages: &|of| stage(&tracker, now, of),
            // Do not count messages in flight, because it is not known yet whether they will be late.
            finished: tracker.created().saturating_sub(tracker.in_transit() as u64),
            created_units: tracker.created(),
            ledger: &|| tracker.final_ledger().ledger,
        })
    }
}

fn stage(tracker: &MessageTracker, now: Duration, of: MetricSource) -> Option<RunningStage> {
    let MetricSource::Stage(of) = of else { return None };
    let stage = tracker.path().find(of)?;
    let waterfall = &tracker.waterfall;
    let count = waterfall.count(stage);
    let elapsed_s = now.saturating_sub(waterfall.began().unwrap_or(now)).as_secs_f64();
    let rate_per_s = (elapsed_s > 0.0).then(|| count as f64 / elapsed_s);
    Some(RunningStage { count, rate_per_s, times: Some(waterfall.latency(stage).clone()), summary: None })
}

/// Returns the request of the user or of the observer to end the run, whichever is more urgent.
fn requested_stop(run_state: &MadesRunState, by_user: StopRequest, now: Duration) -> StopRequest {
    let Some(observer) = &run_state.options.observer else { return by_user };
    let view = RunView { now, began: run_state.began, last_arrival: run_state.last_arrival(), asked: by_user };
    by_user.max(observer.poll(&view))
}
