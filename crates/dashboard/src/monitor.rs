//! The monitor reports the progress of a run four times per second. It ends a load that the user has stopped, that has
//! missed a threshold, or whose server is gone.
//!
//! The monitor neither waits nor reads a clock. Its caller waits and passes the time, so that a thread can use the
//! monitor as well as an async task.
use crate::progress_output::ProgressOutput;
use mailrun_measurement::record::{Ending, Surroundings, ThresholdRow};
use mailrun_measurement::threshold::{RunningFigures, Threshold};
use mailrun_measurement::{Latencies, Series};
use mailrun_process::host_sampler::HostSampler;
use mailrun_process::host_watch::{HostWatch, Parties};
use mailrun_process::interrupt::StopRequest;
use mailrun_process::live::LiveProgress;
use mailrun_process::live_line::LiveLine;
use mailrun_process::outputs::IntervalRecorder;
use std::time::Duration;

/// Interval at which the monitor takes the new counts of the run and reports them.
pub const TICK: Duration = Duration::from_millis(250);
/// Maximum time for which a stopped load waits for messages in transit.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);
/// Time after the warm-up in which no threshold can end the run, because a rate takes some time to settle.
const ABORT_DELAY: Duration = Duration::from_secs(1);

/// A run whose counts the monitor collects and reports four times per second.
pub trait MonitoredRun {
    /// Returns the count of messages from which the rate in the progress line is computed: the accepted messages of a
    /// source, or the delivered messages of a sink or a MADES bench.
    const DONE: fn(&LiveProgress) -> u64;
    const LINE: fn(&LiveProgress, f64) -> LiveLine;

    /// Adds the run's counts since the last tick to `series`, and its latencies to `recent`. A run may instead add both
    /// as soon as it measures them, and must then not add them here again.
    fn collect(&mut self, now: Duration, series: &mut Series, recent: &mut Latencies);

    /// Returns the figures of the run so far. The field `waits_s` can have any value, because the monitor replaces it.
    fn progress(&mut self, now: Duration, recent: &Latencies) -> LiveProgress;

    fn latest_error(&self) -> Option<String>;

    /// Shows the progress on the dashboard of `output`. The default does nothing, for runs without a dashboard.
    fn show_figures(&self, _now: Duration, _progress: &LiveProgress, _output: &mut ProgressOutput) {}

    /// Returns the time at which the run stops waiting for messages in transit. Returns `None` while it creates
    /// messages, or if it does not wait at all.
    fn waits_until(&mut self, _now: Duration) -> Option<Duration> {
        None
    }
}

/// A run that creates messages. The monitor can stop such a run early, for example if a threshold is missed.
pub trait MonitoredLoad: MonitoredRun {
    /// Stops creating messages. The monitor may call this several times.
    fn stop(&mut self, now: Duration);

    fn is_load_over(&self, now: Duration) -> bool;

    /// Returns true if the run can end, because no message is in transit and no more will be created.
    fn is_done(&self, _now: Duration) -> bool {
        false
    }

    /// Returns true if the server has been unreachable for so long that the run should give up.
    fn is_server_gone(&self) -> bool {
        false
    }

    /// Calls `use_figures` with the figures so far, for example to evaluate thresholds. The figures cannot be returned,
    /// because they borrow from the run.
    fn with_figures<T>(&self, now: Duration, use_figures: impl FnOnce(&RunningFigures<'_>) -> T) -> T;
}

/// Observes how busy the host is during a load. If other processes keep the host busy, the results are doubtful.
#[derive(Debug, Default)]
pub struct LoadHost {
    sampler: HostSampler,
    watch: Option<HostWatch>,
}

impl LoadHost {
    /// Begins to measure how busy the host is. Other processes are watched only if the run has a rate or a threshold,
    /// because only then can they influence whether the run passes. `servers` are the addresses of the servers through
    /// which the mail passes. If another process already watches the host, the caller passes an empty list to prevent a
    /// second watch.
    pub fn observe(has_rate: bool, thresholds: &[&[Threshold]], servers: &[String]) -> Self {
        let is_judged = has_rate || thresholds.iter().any(|list| !list.is_empty());
        let is_watched = is_judged && !servers.is_empty();
        // Start the watch before the load, because starting it takes milliseconds, which must not be part of the load.
        let watch = is_watched.then(|| HostWatch::start(Parties::ThisProcess, servers));
        Self { sampler: HostSampler::start(), watch }
    }

    pub fn finish(&mut self) -> Surroundings {
        let mut surroundings = self.sampler.finish();
        if let Some(watch) = self.watch.take() {
            watch.finish().fill(&mut surroundings);
        }
        surroundings
    }
}

#[derive(Clone, Copy, Debug)]
struct LoadStop {
    ending: Ending,
    drain_deadline: Duration,
}

pub struct Monitor<R> {
    pub run: R,
    pub recorder: IntervalRecorder,
    pub output: ProgressOutput,
    pub host: LoadHost,
    /// Thresholds that end the run early if they are missed. They are evaluated only from `abort_from` on.
    abort_on: Vec<Threshold>,
    abort_from: Duration,
    /// Latencies measured since the last tick. Each tick reports them, and then clears them.
    pub recent: Latencies,
    next_tick: Duration,
    stop: Option<LoadStop>,
    missed_threshold: Option<ThresholdRow>,
}

impl<R: MonitoredRun> Monitor<R> {
    pub fn new(run: R, recorder: IntervalRecorder, output: ProgressOutput, now: Duration) -> Self {
        Self {
            run,
            recorder,
            output,
            host: LoadHost::default(),
            abort_on: Vec::new(),
            abort_from: now,
            recent: Latencies::default(),
            next_tick: now + TICK,
            stop: None,
            missed_threshold: None,
        }
    }

    pub fn next_tick(&self) -> Duration {
        self.next_tick
    }

    /// Collects the counts since the last tick, and reports the progress on the display, as an event and as metrics.
    pub fn tick(&mut self, now: Duration) {
        self.next_tick = now + TICK;
        self.run.collect(now, &mut self.recorder.series, &mut self.recent);
        self.recorder.log(now, &self.recent);
        let waits_until = self.run.waits_until(now).map(|usual| self.stop.map_or(usual, |stop| stop.drain_deadline));
        let waits_s = waits_until.map_or(0.0, |until| until.saturating_sub(now).as_secs_f64());
        let progress = LiveProgress { waits_s, ..self.run.progress(now, &self.recent) };
        self.output.latest_error(self.run.latest_error());
        self.run.show_figures(now, &progress, &mut self.output);
        self.output.metrics(&progress, &self.recent);
        self.output.progress(&progress, (R::DONE)(&progress), R::LINE);
        self.recent.clear();
    }

    /// Reports the run's counts for the last time, and finishes the interval log. Returns the first error that occurred
    /// while the log was written, if any.
    pub fn finish(&mut self, now: Duration) -> Option<anyhow::Error> {
        self.tick(now);
        self.recorder.finish(now)
    }
}

impl<R: MonitoredLoad> Monitor<R> {
    /// Makes the monitor also observe the host, and end the run when it misses one of the thresholds. `counts_from` is
    /// the time at which the warm-up ends and messages begin to count. Thresholds are first checked one second later.
    pub fn of_load(self, host: LoadHost, abort_on: &[Threshold], counts_from: Duration) -> Self {
        Self { host, abort_on: abort_on.to_vec(), abort_from: counts_from + ABORT_DELAY, ..self }
    }

    /// Calls [`Self::tick`] if it is due. Stops the load if `request` asks for it, if a threshold is missed, or if the
    /// server is gone. Returns true if the run must end now.
    pub fn poll(&mut self, now: Duration, request: StopRequest) -> bool {
        let is_tick = now >= self.next_tick;
        if is_tick {
            self.tick(now);
        }
        if let Some(watch) = self.host.watch.as_ref().filter(|_| self.run.is_load_over(now)) {
            watch.load_ended();
        }
        if request != StopRequest::Nothing {
            self.stop(Ending::Interrupted, now, DRAIN_TIMEOUT);
        } else if is_tick {
            self.stop_early(now);
        }
        let is_drained = self.stop.is_some_and(|stop| now >= stop.drain_deadline);
        request >= StopRequest::StopNow || is_drained || self.run.is_done(now)
    }

    /// Stops the load, and waits at most `drain` for messages in transit. If the load was already stopped, the first
    /// reason stays, and the wait can only become shorter, for example because a Locust master asks for that.
    pub fn stop(&mut self, ending: Ending, now: Duration, drain: Duration) {
        let drain_deadline = now + drain;
        let stop = self.stop.get_or_insert(LoadStop { ending, drain_deadline });
        stop.drain_deadline = stop.drain_deadline.min(drain_deadline);
        self.run.stop(now);
    }

    fn stop_early(&mut self, now: Duration) {
        if self.run.is_server_gone() {
            return self.stop(Ending::GaveUp, now, DRAIN_TIMEOUT);
        }
        if self.missed_threshold.is_none() && now >= self.abort_from {
            self.missed_threshold = self.run.with_figures(now, |figures| {
                self.abort_on.iter().map(|threshold| threshold.evaluate(figures)).find(|row| row.missed)
            });
            if self.missed_threshold.is_some() {
                self.stop(Ending::Aborted, now, DRAIN_TIMEOUT);
            }
        }
    }

    /// Returns how the load has ended, which is `Complete` unless the monitor has stopped the load.
    pub fn ending(&self) -> Ending {
        self.stop.map_or(Ending::Complete, |stop| stop.ending)
    }

    /// Returns the threshold that ended the run, with its value at that time, or `None` if no threshold ended it.
    pub fn missed_threshold(&self) -> Option<&ThresholdRow> {
        self.missed_threshold.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mailrun_measurement::record::LedgerRow;
    use mailrun_measurement::threshold::RunProtocol;
    use mailrun_process::live::LiveMode;
    use mailrun_process::live_line::NonTerminalOutput;

    #[derive(Default)]
    struct Load {
        abort_on: Vec<Threshold>,
        counts_from: Duration,
        rejects_from: Option<Duration>,
        gone_from: Option<Duration>,
        done_at: Option<Duration>,
        now: Duration,
        stopped_at: Option<Duration>,
        ticks: u32,
    }

    impl Load {
        fn is_past(&self, from: Option<Duration>) -> bool {
            from.is_some_and(|from| self.now >= from)
        }
    }

    impl MonitoredRun for Load {
        const DONE: fn(&LiveProgress) -> u64 = |progress| progress.accepted;
        const LINE: fn(&LiveProgress, f64) -> LiveLine = LiveLine::of_mades;

        fn collect(&mut self, now: Duration, _series: &mut Series, recent: &mut Latencies) {
            assert_eq!(recent.count(), 0, "the latencies of the last tick are gone");
            recent.record(ms(7));
            (self.now, self.ticks) = (now, self.ticks + 1);
        }

        fn progress(&mut self, _now: Duration, recent: &Latencies) -> LiveProgress {
            assert_eq!(recent.count(), 1);
            LiveProgress::default()
        }

        fn latest_error(&self) -> Option<String> {
            None
        }
    }

    impl MonitoredLoad for Load {
        fn stop(&mut self, now: Duration) {
            self.stopped_at.get_or_insert(now);
        }

        fn is_load_over(&self, _now: Duration) -> bool {
            self.stopped_at.is_some()
        }

        fn is_done(&self, now: Duration) -> bool {
            self.done_at.is_some_and(|at| now >= at)
        }

        fn is_server_gone(&self) -> bool {
            self.is_past(self.gone_from)
        }

        fn with_figures<T>(&self, _now: Duration, use_figures: impl FnOnce(&RunningFigures<'_>) -> T) -> T {
            let rejected = u64::from(self.is_past(self.rejects_from));
            let ledger = || LedgerRow { rejected: Some(rejected), ..LedgerRow::default() };
            use_figures(&RunningFigures { stages: &|_| None, finished: 1, created_units: 1, ledger: &ledger })
        }
    }

    fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    fn monitored(load: Load) -> Monitor<Load> {
        let recorder = IntervalRecorder::begin(Duration::ZERO, "accepted", None).unwrap();
        let output = ProgressOutput::new(LiveMode::Off, NonTerminalOutput::Nothing);
        let (abort_on, counts_from) = (load.abort_on.clone(), load.counts_from);
        let monitor = Monitor::new(load, recorder, output, Duration::ZERO);
        monitor.of_load(LoadHost::default(), &abort_on, counts_from)
    }

    #[test]
    fn a_second_stop_keeps_the_reason_and_can_only_shorten_the_drain() {
        for (second_drain_ms, ended_ms) in [(60_000, 5_000), (300, 400)] {
            let mut monitor = monitored(Load::default());
            monitor.stop(Ending::Complete, ms(0), ms(5_000));
            monitor.stop(Ending::Aborted, ms(100), ms(second_drain_ms));
            let ended = (10..1_000).map(|poll| ms(10 * poll)).find(|now| monitor.poll(*now, StopRequest::Nothing));
            assert_eq!((monitor.ending(), ended), (Ending::Complete, Some(ms(ended_ms))), "{second_drain_ms}");
        }
    }

    #[test]
    fn each_load_ends_when_it_must() {
        use StopRequest::{Nothing, Quit, Stop, StopNow};
        let limits = || vec![Threshold::parse("rejected <= 0", RunProtocol::Smtp).unwrap()];
        let plain = Load::default;
        let rejecting = |from| Load { abort_on: limits(), rejects_from: Some(ms(from)), ..Load::default() };
        // Each row ends with the expected ending, and the times in ms at which the load stops and the run is over.
        for (situation, load, signals, ending, stopped_ms, ended_ms) in [
            ("nobody stops it", plain(), vec![], Ending::Complete, None, None),
            ("it is done", Load { done_at: Some(ms(700)), ..plain() }, vec![], Ending::Complete, None, Some(700)),
            ("a signal", plain(), vec![(1_020, Stop)], Ending::Interrupted, Some(1_020), Some(4_020)),
            (
                "a signal, and the last reply",
                Load { done_at: Some(ms(1_500)), ..plain() },
                vec![(1_020, Stop)],
                Ending::Interrupted,
                Some(1_020),
                Some(1_500),
            ),
            (
                "a second signal",
                plain(),
                vec![(1_020, Stop), (2_000, StopNow)],
                Ending::Interrupted,
                Some(1_020),
                Some(2_000),
            ),
            ("a third signal", plain(), vec![(40, Quit)], Ending::Interrupted, Some(40), Some(40)),
            ("a missed threshold", rejecting(3_600), vec![], Ending::Aborted, Some(3_750), Some(6_750)),
            ("no threshold ends the first second", rejecting(0), vec![], Ending::Aborted, Some(1_000), Some(4_000)),
            (
                "nor the warm-up",
                Load { counts_from: ms(2_000), ..rejecting(0) },
                vec![],
                Ending::Aborted,
                Some(3_000),
                Some(6_000),
            ),
            (
                "the server is gone",
                Load { gone_from: Some(ms(400)), ..plain() },
                vec![],
                Ending::GaveUp,
                Some(500),
                Some(3_500),
            ),
            ("the first reason counts", rejecting(0), vec![(1_500, Stop)], Ending::Aborted, Some(1_000), Some(4_000)),
        ] {
            let mut monitor = monitored(load);
            let request = |now: Duration| {
                signals.iter().filter(|(at, _)| now >= ms(*at)).map(|(_, request)| *request).max().unwrap_or(Nothing)
            };
            let ended = (1..1_000).map(|poll| ms(10 * poll)).find(|now| monitor.poll(*now, request(*now)));
            let found = (monitor.ending(), monitor.run.stopped_at, ended);
            assert_eq!(found, (ending, stopped_ms.map(ms), ended_ms.map(ms)), "{situation}");
            assert_eq!(monitor.missed_threshold().is_some(), ending == Ending::Aborted, "{situation}");
        }
    }

    #[test]
    fn the_host_is_watched_only_for_a_verdict() {
        let limits = [Threshold::parse("rejected <= 0", RunProtocol::Smtp).unwrap()];
        let servers = ["127.0.0.1:1".to_owned()];
        for (has_rate, thresholds, servers, is_watched) in [
            (false, &limits[..0], &servers[..], false),
            (true, &limits[..0], &servers[..], true),
            (false, &limits[..], &servers[..], true),
            // An empty list of servers means that another process, such as the bench, already watches the host.
            (true, &limits[..], &servers[..0], false),
        ] {
            let surroundings = LoadHost::observe(has_rate, &[&[], thresholds], servers).finish();
            assert_eq!(surroundings.foreign.is_some(), is_watched, "{has_rate} {} {servers:?}", thresholds.len());
        }
    }
}
