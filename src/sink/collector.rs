//! Collects the workers' counts: the totals, the seconds, the live line, the status over HTTP, and at the end the
//! record.
use super::SinkOptions;
use super::certificates::Certificates;
use super::inbox::{Parcel, Shared};
use super::report::View;
use super::status::Status;
use crate::http_server::HostNames;
use crate::interrupt::{Asked, Interrupt};
use crate::live::{Event, Progress};
use crate::live_line::{Elsewhere, Line};
use crate::party::{Chronicle, Finished, Telling};
use anyhow::Result;
use journey::{Latencies, SinkTally};
use net::{Endpoint, clock};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Interval of progress reports.
const TICK: Duration = Duration::from_millis(250);
/// Interval at which the end of the run is looked for, after the last message or a signal.
const LOOK: Duration = Duration::from_millis(10);

/// The sink's counts so far.
pub(super) struct Collector {
    view: Arc<Mutex<View>>,
    chronicle_log: Chronicle,
    telling: Telling,
    /// Latencies since the last progress report.
    recent: Latencies,
    next_tick: Duration,
    /// Serves the status as long as this exists.
    _status: Option<Status>,
}

impl Collector {
    /// Starts, and prints the addresses that it listens on.
    pub(super) fn begin(
        options: SinkOptions,
        endpoint: &Endpoint,
        http: Option<SocketAddr>,
        shared: &Shared,
    ) -> Result<Self> {
        let now = clock::now();
        let chronicle_log = Chronicle::begin(now, "delivered", options.outputs.hlog.as_deref())?;
        let telling = Telling::new(options.outputs.live, Elsewhere::Nothing);
        let typed = options.http.as_deref().and_then(|http| http.rsplit_once(':')).map(|(host, _)| host);
        let names = HostNames::new([options.hello.as_str()].into_iter().chain(typed));
        let view = Arc::new(Mutex::new(View::new(options, endpoint.clone(), Arc::clone(&shared.control), now)));
        let status = http.map(|http| Status::serve(http, names, Arc::clone(&view))).transpose()?;
        let http = status.as_ref().map(|status| status.address().to_string());
        telling.event(&Event::Listening { smtp: vec![endpoint.to_string()], http: http.clone() });
        match http {
            Some(http) => tell!("mailrun sink: listening on {endpoint}, status on http://{http}/"),
            None => tell!("mailrun sink: listening on {endpoint}"),
        }
        Ok(Self { view, chronicle_log, telling, recent: Latencies::default(), next_tick: now + TICK, _status: status })
    }

    /// Collects until the sink has received enough.
    pub(super) fn follow(
        &mut self,
        tallies: &Receiver<Parcel>,
        shared: &Shared,
        interrupt: &Interrupt,
        certificates: &mut Option<Certificates>,
    ) {
        while interrupt.asked() == Asked::Nothing && !shared.is_full() {
            if let Some(certificates) = certificates {
                certificates.look();
            }
            match tallies.recv_timeout(LOOK) {
                Ok(parcel) => self.merge(parcel),
                Err(RecvTimeoutError::Timeout) if clock::now() >= self.next_tick => self.tick(),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
    }

    /// Finishes: collects the workers' last counts, and writes the record to files if that was asked for.
    pub(super) fn finish(mut self, tallies: &Receiver<Parcel>) -> Finished {
        while let Ok(parcel) = tallies.try_recv() {
            self.merge(parcel);
        }
        self.tick();
        let unlogged = self.chronicle_log.finish(clock::now());
        let view = lock(&self.view);
        let run = view.chosen_run();
        let record = view.record(run);
        let none = journey::Ledger::default();
        let units = run.and_then(|run| view.total.runs.find(run)).map_or(&none, |tally| &tally.units);
        let unwritten = view.options.outputs.keep(&record, units, &self.telling);
        drop(view);
        self.telling.event(&Event::Done);
        Finished { record, unwritten: unwritten.or(unlogged) }
    }

    fn merge(&mut self, (mut tally, back): Parcel) {
        for (_, run) in tally.runs.iter() {
            self.recent.merge(&run.delivered);
        }
        lock(&self.view).merge(&tally);
        tally.clear();
        // A worker that has ended takes nothing back.
        let _ = back.try_send(tally);
    }

    /// Work that is due four times per second.
    fn tick(&mut self) {
        let now = clock::now();
        self.next_tick = now + TICK;
        let mut view = lock(&self.view);
        view.tick(now, &self.recent);
        let progress = progress(&view.total, &self.recent, now - view.began);
        drop(view);
        self.chronicle_log.log(now, &self.recent);
        self.telling.progress(&progress, progress.delivered, live_line);
        self.recent.clear();
    }
}

fn progress(total: &SinkTally, recent: &Latencies, elapsed: Duration) -> Progress {
    Progress {
        elapsed_s: elapsed.as_secs_f64(),
        delivered: total.messages,
        recipients: total.recipients,
        bytes: total.bytes,
        errors: total.errors.total(),
        p50_ms: recent.quantile_ms(0.5),
        p99_ms: recent.quantile_ms(0.99),
        ..Progress::default()
    }
}

/// The progress; recipients if there are more of them than messages.
fn live_line(progress: &Progress, rate_per_s: f64) -> Line {
    let copies = if progress.recipients > progress.delivered { progress.recipients } else { 0 };
    Line::of(progress, progress.delivered, "received", rate_per_s).with_detail(copies, "recipients")
}

/// Locks the counts for a moment.
pub(super) fn lock(view: &Mutex<View>) -> MutexGuard<'_, View> {
    view.lock().expect("nobody panics holding it")
}
