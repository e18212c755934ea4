//! Observes a run: counts the messages that reach each stage, records their latencies, prints a report every two
//! seconds, and decides when to give up.
use super::latency::LatencyHistogram;
use super::options::Options;
use super::report::{GoBenchReport, StageLine};
use super::stages::{self, ReportedStage};
use crate::go;
use jiff::Zoned;
use jiff::tz::TimeZone;
use mailrun_mades_bench::{MadesMode, MessageStage, RunObserver, RunView};
use mailrun_process::interrupt::StopRequest;
use std::cell::RefCell;
use std::time::{Duration, SystemTime};

const REPORT_INTERVAL: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct BenchObserver {
    payload_bytes: u64,
    /// Number of messages to send, or 0 if there is no limit.
    limit: u64,
    progress_timeout: Duration,
    state: RefCell<ObserverState>,
}

#[derive(Debug)]
struct ObserverState {
    stages: Vec<StageProgress>,
    times: Option<RunTimes>,
    now: Duration,
    outcome: RunOutcome,
    reports: u32,
}

#[derive(Debug)]
struct StageProgress {
    reported: ReportedStage,
    latencies: LatencyHistogram,
    /// Time at which the last message of the run reached this stage, or `None` if some messages have not reached it.
    completed: Option<Duration>,
}

#[derive(Clone, Debug)]
struct RunTimes {
    began: Duration,
    started: Zoned,
    ended: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunOutcome {
    Completed,
    Interrupted,
    GivenUp,
}

impl BenchObserver {
    pub(super) fn new(options: &Options, mode: MadesMode) -> Self {
        let follow = |reported| StageProgress { reported, latencies: LatencyHistogram::default(), completed: None };
        let stages = stages::of(mode).into_iter().map(follow).collect();
        let state =
            ObserverState { stages, times: None, now: Duration::ZERO, outcome: RunOutcome::Completed, reports: 0 };
        Self {
            payload_bytes: options.payload_bytes,
            limit: options.messages,
            progress_timeout: options.progress_timeout,
            state: RefCell::new(state),
        }
    }

    pub(super) fn outcome(&self) -> RunOutcome {
        self.state.borrow().outcome
    }

    pub(super) fn report(&self) -> String {
        let state = self.state.borrow();
        let Some(times) = &state.times else { return String::new() };
        let until = times.ended.unwrap_or(state.now);
        let stages = state.stages.iter().map(|progress| StageLine {
            name: progress.reported.name,
            latencies: &progress.latencies,
            limit: self.limit,
            event_bytes: progress.reported.event_bytes(self.payload_bytes),
            duration: progress.completed.unwrap_or(until).saturating_sub(times.began),
        });
        let duration = until.saturating_sub(times.began);
        let report = GoBenchReport {
            started: times.started.clone(),
            ended: times.ended.map(|_| &times.started + duration),
            duration,
            message_bytes: self.payload_bytes,
            stages: stages.collect(),
        };
        report.to_string()
    }

    pub(super) fn end(&self) {
        let mut state = self.state.borrow_mut();
        let now = state.now;
        let is_interrupted = state.outcome == RunOutcome::Interrupted;
        if let Some(times) = state.times.as_mut().filter(|_| !is_interrupted) {
            times.ended.get_or_insert(now);
        }
    }

    /// Returns the name of each stage that some messages have not reached, with the number of these messages.
    pub(super) fn missing(&self) -> Vec<(&'static str, u64)> {
        let state = self.state.borrow();
        let missing =
            |progress: &StageProgress| (progress.reported.name, self.limit.saturating_sub(progress.latencies.count()));
        state.stages.iter().map(missing).filter(|(_, count)| *count > 0).collect()
    }

    fn due_report(&self) -> Option<u32> {
        let mut state = self.state.borrow_mut();
        let times = state.times.as_ref().filter(|times| times.ended.is_none())?;
        let is_due = state.now.saturating_sub(times.began) >= REPORT_INTERVAL * state.reports;
        state.reports += u32::from(is_due);
        is_due.then_some(state.reports)
    }
}

impl RunObserver for BenchObserver {
    fn stage_reached(&self, stage: MessageStage, latency: Duration, now: Duration) {
        let mut state = self.state.borrow_mut();
        let Some(progress) = state.stages.iter_mut().find(|progress| progress.reported.stage == stage) else { return };
        progress.latencies.record(latency);
        if progress.latencies.count() == self.limit {
            progress.completed = Some(now);
        }
    }

    fn poll(&self, view: &RunView) -> StopRequest {
        let request = self.state.borrow_mut().update(view, self.progress_timeout);
        if let Some(number) = self.due_report() {
            go::log(&format!("Intermediate Report #{number}"));
            go::print(&self.report());
        }
        request
    }
}

impl ObserverState {
    fn update(&mut self, view: &RunView, timeout: Duration) -> StopRequest {
        self.now = view.now;
        let is_first = self.times.is_none();
        let times = self.times.get_or_insert_with(|| RunTimes {
            began: view.began,
            started: local_now() - view.now.saturating_sub(view.began),
            ended: None,
        });
        if view.asked != StopRequest::Nothing {
            self.outcome = RunOutcome::Interrupted;
            return StopRequest::StopNow;
        }
        // Do not end the run in the first poll, so that even the shortest run prints an intermediate report. After the
        // end of the run, `due_report` prints no more reports.
        let completed = self.stages.last().and_then(|last| last.completed).filter(|_| !is_first);
        if let (None, Some(completed)) = (times.ended, completed) {
            times.ended = Some(completed);
            go::log("waiting a second for any out of order messages...");
        }
        if view.now.saturating_sub(view.last_arrival) >= timeout {
            self.outcome = RunOutcome::GivenUp;
            return StopRequest::StopNow;
        }
        StopRequest::Nothing
    }
}

fn local_now() -> Zoned {
    let zone = TimeZone::system();
    let zone = if zone.is_unknown() { TimeZone::UTC } else { zone };
    let now = jiff::Timestamp::try_from(SystemTime::now()).unwrap_or_default();
    now.to_zoned(zone)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    fn view(now_ms: u64, heard_ms: u64) -> RunView {
        RunView { now: ms(now_ms), began: ms(1_000), last_arrival: ms(heard_ms), asked: StopRequest::Nothing }
    }

    fn observer(words: &str, mode: MadesMode) -> BenchObserver {
        let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        BenchObserver::new(&Options::parse(&words).unwrap(), mode)
    }

    fn lines(observer: &BenchObserver) -> Vec<String> {
        observer.report().lines().filter(|line| line.contains("msgs/s")).map(str::to_owned).collect()
    }

    #[test]
    fn each_stage_counts_for_itself_and_stops_its_own_clock() {
        let observer = observer("-n 2 -size 1000", MadesMode::Amqp);
        assert_eq!(observer.poll(&view(1_020, 1_000)), StopRequest::Nothing);
        for (number, now) in [(1, 1_500), (3, 2_000)] {
            observer.stage_reached(MessageStage::Created, ms(0), ms(now));
            observer.stage_reached(MessageStage::Settled, ms(number), ms(now));
        }
        observer.stage_reached(MessageStage::Inbox, ms(9), ms(3_000));
        assert_eq!(observer.poll(&view(5_000, 3_000)), StopRequest::Nothing);
        let sent = "Sent to outbox    : 2.000 msgs/s     0.002 mb/s  2/2 msgs            duration: 1s        \
                    flight time: 0.002s (avg) 0.002s (median)";
        let inbox = "Received in inbox : 0.250 msgs/s     0.000 mb/s  1/2 msgs            duration: 4s        \
                     flight time: 0.009s (avg) 0.009s (median)";
        assert_eq!(lines(&observer), [sent, inbox]);
        assert_eq!(observer.missing(), [("Received in inbox", 1)]);
        observer.stage_reached(MessageStage::Inbox, ms(9), ms(6_000));
        assert_eq!(observer.poll(&view(6_500, 6_000)), StopRequest::Nothing);
        observer.end();
        assert!(observer.report().contains("\nDuration         : 5s\n") && observer.report().contains("\nEnded at "));
        assert_eq!((observer.missing(), observer.outcome()), (vec![], RunOutcome::Completed));
    }

    #[test]
    fn what_never_comes_is_not_waited_for_for_ever() {
        // go-mades-bench waits forever for a message that never comes, but this program stops when no message has
        // arrived for 3 s.
        let observer = observer("--timeout 3 -n 2", MadesMode::Amqp);
        assert_eq!(observer.poll(&view(1_020, 1_000)), StopRequest::Nothing);
        observer.stage_reached(MessageStage::Inbox, ms(9), ms(2_000));
        assert_eq!(observer.poll(&view(4_999, 2_000)), StopRequest::Nothing);
        assert_eq!(observer.poll(&view(5_000, 2_000)), StopRequest::StopNow);
        observer.end();
        assert_eq!(observer.outcome(), RunOutcome::GivenUp);
        assert_eq!(observer.missing(), [("Sent to outbox", 2), ("Received in inbox", 1)]);
        assert!(observer.report().contains("\nDuration         : 4s\n"), "{}", observer.report());
    }

    #[test]
    fn an_interrupted_run_has_no_end() {
        let observer = observer("-n 0", MadesMode::Amqp);
        let interrupted = RunView { asked: StopRequest::Stop, ..view(1_500, 1_500) };
        observer.stage_reached(MessageStage::Inbox, ms(9), ms(1_200));
        assert_eq!(observer.poll(&interrupted), StopRequest::StopNow);
        observer.end();
        assert_eq!(observer.outcome(), RunOutcome::Interrupted);
        assert!(!observer.report().contains("Ended at"));
        assert!(
            observer.missing().is_empty() && lines(&observer)[1].contains(" 1/0 msgs "),
            "without end: none is missing"
        );
    }

    #[test]
    fn it_says_how_it_stands_every_two_seconds() {
        let observer = observer("-n 9", MadesMode::Toolbox);
        let mut reports = Vec::new();
        for now in (1_000..8_000).step_by(20) {
            observer.state.borrow_mut().update(&view(now, now), ms(60_000));
            reports.extend(observer.due_report().map(|number| (number, now)));
        }
        assert_eq!(reports, [(1, 1_000), (2, 3_000), (3, 5_000), (4, 7_000)]);
    }
}
