//! Collects the workers' counts and produces the totals, the figures per second, the live line, the
//! status over HTTP and, at the end, the record.
use super::certificates::SinkCertificates;
use super::options::SinkOptions;
use super::report::{SinkReport, lock};
use super::status::StatusServer;
use super::worker_state::{SinkContext, TallyTransfer};
use anyhow::Result;
use mailrun_dashboard::progress_output::ProgressOutput;
use mailrun_journey::Latencies;
use mailrun_net::{Endpoint, clock};
use mailrun_party::http_server::HostNames;
use mailrun_party::interrupt::{Interrupt, StopRequest};
use mailrun_party::live::{LiveEvent, LiveProgress, LiveTimes};
use mailrun_party::live_line::{LiveLine, NonTerminalOutput};
use mailrun_party::outputs::{FinishedRun, IntervalRecorder};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);
/// Interval at which the collector checks whether the run should end.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

pub(super) struct SinkCollector {
    report: Arc<Mutex<SinkReport>>,
    interval_recorder: IntervalRecorder,
    progress_output: ProgressOutput,
    recent: Latencies,
    next_tick: Duration,
    context: Arc<SinkContext>,
    /// The status is served for as long as this value exists.
    _status: Option<StatusServer>,
}

impl SinkCollector {
    /// Starts the collector, and prints the addresses on which the sink listens.
    pub(super) fn begin(
        options: SinkOptions,
        endpoint: &Endpoint,
        http: Option<SocketAddr>,
        shared: &Arc<SinkContext>,
    ) -> Result<Self> {
        let now = clock::now();
        let chronicle_log = IntervalRecorder::begin(now, "delivered", options.outputs.hlog.as_deref())?;
        let output = ProgressOutput::new(options.outputs.live, NonTerminalOutput::Nothing);
        let typed = options.http.as_deref().and_then(|http| http.rsplit_once(':')).map(|(host, _)| host);
        let names = HostNames::new([options.hello.as_str()].into_iter().chain(typed));
        let view =
            Arc::new(Mutex::new(SinkReport::new(options, endpoint.clone(), Arc::clone(&shared.active_rules), now)));
        let status = http.map(|http| StatusServer::serve(http, names, Arc::clone(&view))).transpose()?;
        let http = status.as_ref().map(|status| status.address().to_string());
        output.events().event(&LiveEvent::Listening { smtp: vec![endpoint.to_string()], http: http.clone() });
        match http {
            Some(http) => mailrun_party::tell!("mailrun sink: listening on {endpoint}, status on http://{http}/"),
            None => mailrun_party::tell!("mailrun sink: listening on {endpoint}"),
        }
        Ok(Self {
            report: view,
            interval_recorder: chronicle_log,
            progress_output: output,
            recent: Latencies::default(),
            next_tick: now + PROGRESS_INTERVAL,
            context: Arc::clone(shared),
            _status: status,
        })
    }

    /// Collects until the sink has received enough or is asked to stop.
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
                Err(RecvTimeoutError::Timeout) if clock::now() >= self.next_tick => self.tick(),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
    }

    /// Collects the workers' last counts, and writes the record to files if that was asked for.
    pub(super) fn finish(mut self, tallies: &Receiver<TallyTransfer>) -> FinishedRun {
        while let Ok(transfer) = tallies.try_recv() {
            self.merge(transfer);
        }
        self.tick();
        let unlogged = self.interval_recorder.finish(clock::now());
        let mut view = lock(&self.report);
        let run = view.chosen_run();
        let record = view.record(run);
        let none = mailrun_journey::Ledger::default();
        let tally = run.and_then(|run| view.total.runs.find(run));
        let units = tally.map_or([&none; 2], |tally| [&tally.units, &tally.bounces.units]);
        let unwritten = view.options.outputs.write_or_report(&record, &units, self.progress_output.events());
        drop(view);
        self.progress_output.events().event(&LiveEvent::Done);
        FinishedRun { record, write_error: unwritten.or(unlogged) }
    }

    fn merge(&mut self, (mut tally, back): TallyTransfer) {
        for (_, run) in tally.runs.iter() {
            self.recent.merge(&run.delivered);
        }
        lock(&self.report).merge(&tally);
        tally.clear();
        // Ignore the error: a worker that has ended needs no empty tally.
        let _ = back.try_send(tally);
    }

    fn tick(&mut self) {
        let now = clock::now();
        self.next_tick = now + PROGRESS_INTERVAL;
        let mut view = lock(&self.report);
        view.tick(now, self.context.first_connection.get().copied());
        let progress = progress(&view, &self.recent, now);
        self.progress_output.latest_error(view.total.errors.latest());
        drop(view);
        self.interval_recorder.log(now, &self.recent);
        self.progress_output.progress(&progress, progress.delivered, live_line);
        self.recent.clear();
    }
}

fn progress(view: &SinkReport, recent: &Latencies, now: Duration) -> LiveProgress {
    let total = &view.total;
    let run = view.chosen_run().and_then(|run| total.runs.find(run));
    LiveProgress {
        elapsed_s: (now - view.began).as_secs_f64(),
        delivered: total.messages,
        recipients: total.recipients,
        bytes: total.bytes,
        errors: total.errors.total(),
        now: LiveTimes::of(recent),
        run: run.map(|run| LiveTimes::of(&run.delivered)).unwrap_or_default(),
        ..LiveProgress::default()
    }
}

/// Builds the progress line. It shows recipients only if there are more recipients than messages.
fn live_line(progress: &LiveProgress, rate_per_s: f64) -> LiveLine {
    let copies = if progress.recipients > progress.delivered { progress.recipients } else { 0 };
    LiveLine::of(progress, progress.delivered, "received", rate_per_s).with_detail(copies, "recipients")
}
