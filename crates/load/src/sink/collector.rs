//! Collects the workers' counts, and computes from them the totals, the figures per second, the
//! live line, the status over HTTP and, at the end, the record.
use super::mailboxes::WatchCounts;
use super::options::SinkOptions;
use super::report::SinkReport;
use super::status::StatusServer;
use super::worker_state::{SinkContext, TallyTransfer};
use anyhow::Result;
use mailrun_dashboard::monitor::{Monitor, MonitoredRun};
use mailrun_dashboard::progress_output::ProgressOutput;
use mailrun_lock::lock;
use mailrun_measurement::{Latencies, Series};
use mailrun_net::{TlsWatch, clock};
use mailrun_process::http_server::HostNames;
use mailrun_process::interrupt::{Interrupt, SighupWatch, StopRequest};
use mailrun_process::live::{LiveEvent, LiveProgress, LiveTimes};
use mailrun_process::live_line::{LiveLine, NonTerminalOutput};
use mailrun_process::outputs::{FinishedRun, IntervalRecorder};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Interval at which the collector checks whether the run should end, for example because the user
/// has stopped it.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

pub(super) struct SinkCollector {
    monitor: Monitor<SinkRun>,
    /// HTTP server of the sink's status, or `None` without `--http`. It serves until the process ends.
    _status: Option<StatusServer>,
}

/// Where the sink gets its mail: an address on which it listens, or mailboxes that it watches.
pub(super) struct SinkPlace {
    /// Verb for the first line of output: `listening on` or `watching`.
    pub(super) does: &'static str,
    pub(super) name: String,
    pub(super) watched: Option<Arc<WatchCounts>>,
}

struct SinkRun {
    report: Arc<Mutex<SinkReport>>,
    context: Arc<SinkContext>,
}

impl SinkCollector {
    /// Starts the collector, and prints where the sink listens or which mailboxes it watches.
    pub(super) fn begin(
        options: SinkOptions,
        place: SinkPlace,
        http: Option<SocketAddr>,
        shared: &Arc<SinkContext>,
    ) -> Result<Self> {
        let now = clock::now();
        let recorder = IntervalRecorder::begin(now, "delivered", options.outputs.hlog.as_deref())?;
        let output = ProgressOutput::new(options.outputs.live, NonTerminalOutput::Nothing);
        let typed = options.http.as_deref().and_then(|http| http.rsplit_once(':')).map(|(host, _)| host);
        let names = HostNames::new([options.hello.as_str()].into_iter().chain(typed));
        let view = Arc::new(Mutex::new(SinkReport::new(
            options,
            place.name.clone(),
            place.watched,
            Arc::clone(&shared.active_rules),
            now,
        )));
        let status = http.map(|http| StatusServer::serve(http, names, Arc::clone(&view))).transpose()?;
        let http = status.as_ref().map(|status| status.address().to_string());
        output.events().event(&LiveEvent::Listening { smtp: vec![place.name.clone()], http: http.clone() });
        match http {
            Some(http) => {
                mailrun_process::tell!("mailrun sink: {} {}, status on http://{http}/", place.does, place.name)
            }
            None => mailrun_process::tell!("mailrun sink: {} {}", place.does, place.name),
        }
        let run = SinkRun { report: view, context: Arc::clone(shared) };
        Ok(Self { monitor: Monitor::new(run, recorder, output, now), _status: status })
    }

    pub(super) fn collect(
        &mut self,
        tallies: &Receiver<TallyTransfer>,
        shared: &SinkContext,
        interrupt: &Interrupt,
        certificates: &mut Option<SinkCertificates>,
    ) {
        while interrupt.requested() == StopRequest::Nothing && !shared.has_enough() {
            if let Some(certificates) = certificates {
                certificates.reload_if_changed();
            }
            match tallies.recv_timeout(POLL_INTERVAL) {
                Ok(transfer) => self.merge(transfer),
                Err(RecvTimeoutError::Timeout) => {
                    let now = clock::now();
                    if now >= self.monitor.next_tick() {
                        self.monitor.tick(now);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
    }

    /// Collects the workers' last counts, and makes the run record. Writes the record to files if
    /// the options ask for that.
    pub(super) fn finish(mut self, tallies: &Receiver<TallyTransfer>) -> FinishedRun {
        while let Ok(transfer) = tallies.try_recv() {
            self.merge(transfer);
        }
        let unlogged = self.monitor.finish(clock::now());
        let output = self.monitor.output.events();
        let mut view = lock(&self.monitor.run.report);
        let run = view.chosen_run();
        let record = view.record(run);
        let none = mailrun_measurement::Ledger::default();
        let tally = run.and_then(|run| view.total.runs.find(run));
        let units = tally.map_or([&none; 3], |tally| [&tally.units, &tally.bounces.units, &tally.rewrites.units]);
        let unwritten = view.options.outputs.write_or_report(&record, &units, output);
        drop(view);
        output.event(&LiveEvent::Done);
        FinishedRun { record, write_error: unwritten.or(unlogged) }
    }

    fn merge(&mut self, mut transfer: TallyTransfer) {
        for (_, run) in transfer.tally.runs.iter() {
            self.monitor.recent.merge(&run.delivered);
        }
        lock(&self.monitor.run.report).merge(&transfer.tally);
        transfer.tally.clear();
        transfer.give_back();
    }
}

impl MonitoredRun for SinkRun {
    const DONE: fn(&LiveProgress) -> u64 = |progress| progress.delivered;
    const LINE: fn(&LiveProgress, f64) -> LiveLine = live_line;

    fn collect(&mut self, now: Duration, _series: &mut Series, _recent: &mut Latencies) {
        lock(&self.report).tick(now, self.context.first_connection.get().copied());
    }

    fn progress(&mut self, now: Duration, recent: &Latencies) -> LiveProgress {
        let view = lock(&self.report);
        let total = &view.total;
        let run = view.chosen_run().and_then(|run| total.runs.find(run));
        LiveProgress {
            elapsed_s: (now - view.began).as_secs_f64(),
            delivered: total.messages,
            delivered_per_s: run.and_then(|run| run.delivered_times.per_s()).unwrap_or_default(),
            recipients: total.recipients,
            settled: run.map_or(0, |run| run.units.count() + run.bounces.units.count_without(&run.units)),
            closed: view.closed_mailboxes(),
            bytes: total.bytes,
            errors: total.errors.total(),
            ordered: total.errors.ordered(),
            now: LiveTimes::of(recent),
            run: run.map(|run| LiveTimes::of(&run.delivered)).unwrap_or_default(),
            ..LiveProgress::default()
        }
    }

    fn latest_error(&self) -> Option<String> {
        lock(&self.report).total.errors.latest()
    }
}

/// Makes the progress line for the terminal. The line shows the number of recipients only if it exceeds the number of
/// messages.
fn live_line(progress: &LiveProgress, rate_per_s: f64) -> LiveLine {
    let copies = if progress.recipients > progress.delivered { progress.recipients } else { 0 };
    LiveLine::of(progress, progress.delivered, "received", rate_per_s).with_detail(copies, "recipients")
}

pub(super) struct SinkCertificates {
    watch: TlsWatch,
    sighup: SighupWatch,
}

impl SinkCertificates {
    /// Starts to watch for SIGHUP, so that the signal makes the sink read the certificate files again.
    ///
    /// # Errors
    ///
    /// Fails if the process cannot watch for SIGHUP.
    pub(super) fn watch(watch: TlsWatch) -> Result<Self> {
        Ok(Self { watch, sighup: SighupWatch::watch()? })
    }

    /// Reads the certificate files again if they have changed or SIGHUP has arrived, and logs the
    /// result.
    pub(super) fn reload_if_changed(&mut self) {
        let outcome = match self.sighup.take_received() {
            true => Some(self.watch.reload()),
            false => self.watch.check(clock::now()),
        };
        match outcome {
            None => {}
            Some(Ok(())) => mailrun_process::tell!("mailrun sink: the certificate was reloaded"),
            Some(Err(reason)) => mailrun_process::tell!("mailrun sink: {reason}; the old certificate stays in use"),
        }
    }
}
