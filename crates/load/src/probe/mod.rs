//! The probe continuously sends a light load, and keeps an account of what became of each message.
//!
//! ```text
//! options ─▶ this file: a loop ─┬─ pacer: when to send, what is overdue ──▶ events ─▶ account: what became of each message
//!                               ├─ journal: the events on disk, before a message leaves
//!                               ├─ message, send: a thread for each message, one at a time for each route
//!                               ├─ watch: a thread for each sink and each mailbox
//!                               ├─ report: run.json and report.md of a day that is over
//!                               └─ metrics: GET /metrics
//! ```
mod account;
mod journal;
mod message;
mod metrics;
mod options;
mod pacer;
mod report;
#[cfg(test)]
mod simulation;
mod watch;

use crate::send::{SendEnd, SendOptions, SendReport, send, targets_of};
use crate::sink::ProbeMail;
use account::{Account, Answer, Event, Ns, ns, route_of, unix_ns};
use anyhow::{Context, Result, anyhow, bail};
use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use journal::{FileStorage, Journal};
use mailrun_lock::lock;
use mailrun_measurement::RunId;
use mailrun_measurement::record::Pipelining;
use mailrun_net::{Endpoint, clock};
use mailrun_process::http_server::{self, HostNames};
use mailrun_process::interrupt::{Interrupt, SighupWatch, StopRequest};
use mailrun_process::local_address::is_loopback;
use mailrun_process::outputs::{monotonic_clock, new_run_id, wall_clock};
use mailrun_process::reason::reason;
use mailrun_process::{live_metrics, tell};
use mailrun_text::printable::printable;
use mailrun_text::words::counted;
use message::Creation;
use metrics::{JournalState, Shared};
pub use options::{ProbeOptions, Reload, RouteOptions, Watch};
use pacer::{Due, Pace, Probe, Witness};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use watch::{Found, Report, WatchThread};

/// Maximum time between two checks of signals, clocks and overdue messages.
const TICK: Duration = Duration::from_millis(250);
/// How long an ending probe waits for the server's answers to messages that are being sent.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a failed attempt to write a daily report.
const REPORT_RETRY: Duration = Duration::from_secs(600);

enum Input {
    Answered { number: u64, outcome: Outcome },
    Watched { routes: Vec<u16>, report: Report },
}

struct Outcome {
    answer: Answer,
    took: Duration,
    line: String,
    certificate_ends: Option<i64>,
}

/// Sends messages and watches for their arrival until SIGINT or SIGTERM.
///
/// # Errors
///
/// Fails if the directory `state` cannot be used, if the first line of the journal in this directory is damaged, if
/// there are too many routes, or if the HTTP server cannot listen.
pub fn run(options: ProbeOptions) -> Result<()> {
    let ProbeOptions { routes, state, http, http_name, mut reload } = options;
    // SIGHUP reloads the configuration if the caller has passed `reload`. Otherwise, SIGHUP ends the probe.
    let interrupt = if reload.is_some() { Interrupt::watch_without_hangup()? } else { Interrupt::watch()? };
    let hangups = reload.as_ref().map(|_| SighupWatch::watch()).transpose()?;
    let unusable = |reason: String| anyhow!("cannot use the directory {} (--state): {reason}", state.display());
    let storage = FileStorage::open(&state).map_err(|error| unusable(reason(&error)))?;
    let mut journal = Journal::new(storage);
    let account = match journal.recover().map_err(unusable)? {
        Some(recovered) => {
            if recovered.damaged > 0 {
                tell!("mailrun probe: {} of the account cannot be read", counted(recovered.damaged, "line"));
            }
            recovered.account
        }
        None => Account::new(new_run_id()?.to_string()),
    };
    let run = account.run.parse::<RunId>().map_err(|error| unusable(error.to_string()))?;
    let (probe, doubts) = Probe::new(account);
    if !doubts.is_empty() {
        tell!(
            "mailrun probe: the answer to {} was not heard before the restart",
            counted(doubts.len() as u64, "message")
        );
    }
    let shared = Arc::new(Mutex::new(Shared {
        probe,
        journal: JournalState::default(),
        certificates: HashMap::new(),
        watches: HashMap::new(),
        reloaded_ns: unix_ns(),
        is_reload_good: true,
    }));
    let (input_tx, input) = channel();
    let mut shell = Shell {
        run,
        shared,
        journal,
        routes: Vec::new(),
        watches: Vec::new(),
        mail: Arc::default(),
        unrecorded: Vec::new(),
        input_tx,
        was_writable: true,
        reports: state.join("reports"),
        report_from: Duration::ZERO,
    };
    shell.set_routes(routes)?;
    let served = Router::new().route("/", get(serve_metrics)).route("/metrics", get(serve_metrics));
    let served = served.with_state(Arc::clone(&shell.shared));
    let address = http_server::serve(http, HostNames::new([http_name.as_str()]), &Arc::default(), served);
    let address = address.with_context(|| format!("cannot listen on {http} (--http)"))?;
    tell!("mailrun probe: {}, metrics on http://{address}/metrics", counted(shell.routes.len() as u64, "route"));
    while interrupt.requested() == StopRequest::Nothing {
        if let (Some(hangups), Some(reload)) = (&hangups, &mut reload)
            && hangups.take_received()
        {
            shell.reload(reload);
        }
        let pause = shell.turn();
        shell.take_input(&input, pause);
    }
    shell.finish(&input);
    Ok(())
}

/// State of the probe's main loop, which makes all decisions. Other threads only send messages or watch for arrivals.
struct Shell {
    run: RunId,
    shared: Arc<Mutex<Shared>>,
    journal: Journal<FileStorage>,
    routes: Vec<Arc<RouteOptions>>,
    watches: Vec<WatchThread>,
    /// Messages that the watch threads have found in mailboxes. These threads delete a message only after its arrival
    /// was recorded in the journal.
    mail: Arc<Mutex<ProbeMail>>,
    /// Numbers of messages whose arrival is not recorded yet, because the journal cannot be written.
    unrecorded: Vec<u64>,
    input_tx: Sender<Input>,
    /// True if the last write of the account succeeded. The user is told only when this changes.
    was_writable: bool,
    reports: PathBuf,
    /// Time on the monotonic clock before which no report is written, because the last attempt failed.
    report_from: Duration,
}

impl Shell {
    fn set_routes(&mut self, routes: Vec<RouteOptions>) -> Result<()> {
        for (place, route) in routes.iter().enumerate() {
            if routes[..place].iter().any(|other| other.name == route.name) {
                bail!("two routes have the name {:?}", route.name);
            }
        }
        let paces = routes.iter().map(|route| Pace {
            name: route.name.clone(),
            interval_ns: ns(route.interval),
            lost_after_ns: ns(route.lost_after),
            is_watched: !matches!(route.watch, Watch::Nothing),
        });
        let shared = Arc::clone(&self.shared);
        let mut shared = lock(&shared);
        let now_ns = self.wall_ns(&mut shared);
        if !shared.probe.set_routes(paces.collect(), now_ns) {
            bail!("there are too many routes: at most {} in the life of an account", account::MAX_ROUTES);
        }
        // Write a snapshot first, because only a snapshot contains the names of the routes. The events that follow
        // contain only their numbers.
        let written = self.journal.compact(&shared.probe.account);
        self.tell_written(&written, &mut shared);
        shared.watches.clear();
        let numbers: Vec<u16> = shared.probe.routes.iter().map(|route| route.number).collect();
        drop(shared);
        self.routes = routes.into_iter().map(Arc::new).collect();
        self.watches = self.start_watches(&numbers)?;
        Ok(())
    }

    fn start_watches(&self, numbers: &[u16]) -> Result<Vec<WatchThread>> {
        let mut groups: Vec<(String, Watch, Vec<u16>)> = Vec::new();
        for (route, number) in self.routes.iter().zip(numbers) {
            let Some(name) = watch::name_of(&route.watch) else { continue };
            match groups.iter_mut().find(|(known, ..)| *known == name) {
                Some((_, watch, routes)) => {
                    watch::join(watch, &route.watch);
                    routes.push(*number);
                }
                None => groups.push((name, route.watch.clone(), vec![*number])),
            }
        }
        let mut threads = Vec::new();
        for (_, watch, routes) in groups {
            let input = self.input_tx.clone();
            let send = move |report| input.send(Input::Watched { routes: routes.clone(), report }).is_ok();
            threads.extend(WatchThread::start(&watch, self.run, &self.mail, send)?);
        }
        Ok(threads)
    }

    fn reload(&mut self, reload: &mut Reload) {
        let result = reload().and_then(|routes| self.set_routes(routes));
        let mut shared = lock(&self.shared);
        shared.is_reload_good = result.is_ok();
        match result {
            Ok(()) => {
                shared.reloaded_ns = unix_ns();
                tell!(
                    "mailrun probe: the configuration was read again, {}",
                    counted(self.routes.len() as u64, "route")
                );
            }
            Err(error) => tell!("mailrun probe: the old routes stay: {}", printable(&format!("{error:#}"))),
        }
    }

    /// Returns the wall-clock time. If the clock was set since the last call, first shifts the schedules and the due
    /// times of messages in flight by the same amount. Without this shift, messages might seem overdue.
    fn wall_ns(&mut self, shared: &mut Shared) -> Ns {
        let now_ns = unix_ns();
        if let Some(event) = shared.probe.compare_clocks(now_ns, ns(clock::now())) {
            self.record(shared, &[event]);
            tell!("mailrun probe: the clock of this host was set");
        }
        now_ns
    }

    /// Sends the messages that are due, records overdue messages, and writes the reports of finished days. Returns the
    /// time until the next message is due, but at most `TICK`.
    fn turn(&mut self) -> Duration {
        let shared = Arc::clone(&self.shared);
        let mut shared = lock(&shared);
        let now_ns = self.wall_ns(&mut shared);
        self.mark_recorded();
        for due in shared.probe.due(now_ns) {
            let event = shared.probe.created(&due);
            // Write the event to disk before the message is sent, so that the probe knows about the message even if it
            // is killed and restarted.
            let written = self.journal.append(&[event], &shared.probe.account, true);
            self.tell_written(&written, &mut shared);
            match written {
                Ok(()) => {
                    shared.probe.began(&event);
                    self.send(&shared, due, now_ns);
                }
                Err(_) => shared.probe.skipped(due.number),
            }
        }
        let overdue = shared.probe.overdue();
        self.record(&mut shared, &overdue);
        for event in overdue {
            if let Event::Overdue { number, looked: true } = event
                && let Some(route) = shared.probe.route(number)
            {
                let after = Duration::from_nanos(route.pace.lost_after_ns);
                tell!(
                    "mailrun probe: {}: message {number} has not arrived within {after:?}",
                    printable(&route.pace.name)
                );
            }
        }
        self.report_days(&mut shared, now_ns);
        let next_ns = shared.probe.next_due_ns().unwrap_or(Ns::MAX);
        Duration::from_nanos(next_ns.saturating_sub(unix_ns())).min(TICK)
    }

    /// Writes the reports of days that are over. If a report cannot be written, tries again after `REPORT_RETRY`.
    fn report_days(&mut self, shared: &mut Shared, now_ns: Ns) {
        if clock::now() < self.report_from {
            return;
        }
        for (number, day) in shared.probe.finished_days(now_ns) {
            let Some(account) = shared.probe.account.routes.get(&number) else { continue };
            let Some(figures) = account.days.get(&day) else { continue };
            let route = self.routes.iter().find(|route| route.name == account.name).map(Arc::as_ref);
            match report::write(&self.reports, (&account.name, route), self.run, (day, figures)) {
                Ok(_) => self.record(shared, &[Event::Reported { route: number, day }]),
                Err(error) => {
                    tell!("mailrun probe: the report of a day is not written: {}", printable(&format!("{error:#}")));
                    self.report_from = clock::now() + REPORT_RETRY;
                    return;
                }
            }
        }
    }

    fn send(&self, shared: &Shared, due: Due, now_ns: Ns) {
        let place = shared.probe.routes.iter().position(|route| route.number == route_of(due.number));
        let Some(route) = place.and_then(|place| self.routes.get(place)).cloned() else { return };
        let (run, input) = (self.run, self.input_tx.clone());
        let age = Duration::from_nanos(now_ns.saturating_sub(due.due_ns));
        // Convert the due time to the monotonic clock, on which latency is measured.
        let due_at = clock::now().saturating_sub(age);
        let number = due.number;
        let work = move || {
            let outcome = deliver(&route, run, number, due_at);
            // Ignore the error: it only means that the main loop has ended, so nobody needs the outcome.
            let _ = input.send(Input::Answered { number, outcome });
        };
        if let Err(error) = std::thread::Builder::new().name("send".to_owned()).spawn(work) {
            let line = format!("cannot start a thread: {}", reason(&error));
            let outcome = Outcome { answer: Answer::Failed, took: age, line, certificate_ends: None };
            let _ = self.input_tx.send(Input::Answered { number, outcome });
        }
    }

    /// Waits up to `pause` for another thread to report a server's answer or arrived messages, and handles all reports
    /// that have come.
    fn take_input(&mut self, input: &Receiver<Input>, pause: Duration) {
        let mut next = input.recv_timeout(pause).ok();
        while let Some(one) = next {
            match one {
                Input::Answered { number, outcome } => self.answered(number, &outcome),
                Input::Watched { routes, report } => self.watched(&routes, report),
            }
            next = input.try_recv().ok();
        }
    }

    fn answered(&mut self, number: u64, outcome: &Outcome) {
        let shared = Arc::clone(&self.shared);
        let mut shared = lock(&shared);
        let was_up = shared.probe.route(number).and_then(|route| route.is_up);
        let now_ns = self.wall_ns(&mut shared);
        let event = shared.probe.answered(number, outcome.answer, ns(outcome.took), now_ns);
        self.record(&mut shared, &[event]);
        if let Some(end) = outcome.certificate_ends {
            shared.certificates.insert(route_of(number), end);
        }
        let Some(route) = shared.probe.route(number) else { return };
        let name = printable(&route.pace.name);
        // Tell the user only about changes, so that a server that is down causes a single line.
        match (was_up, route.is_up) {
            (Some(false), Some(true)) => tell!("mailrun probe: {name}: the server accepts mail again"),
            (None | Some(true), Some(false)) => tell!("mailrun probe: {name}: {}", printable(&outcome.line)),
            _ => {}
        }
    }

    fn watched(&mut self, routes: &[u16], Report { found, seen_until }: Report) {
        let shared = Arc::clone(&self.shared);
        let mut shared = lock(&shared);
        let now_ns = self.wall_ns(&mut shared);
        if let (Err(reason), true) = (&seen_until, routes.iter().any(|route| shared.watches.get(route) != Some(&false)))
        {
            tell!("mailrun probe: cannot see what arrives: {}", printable(reason));
        }
        shared.watches.extend(routes.iter().map(|route| (*route, seen_until.is_ok())));
        let (witness, arrivals) = match found {
            Found::Nothing => return,
            Found::AtSink(sink, list) => {
                let news = shared.probe.listed(&sink, list);
                if news.forgotten > 0 {
                    tell!(
                        "mailrun probe: the sink {sink} no longer lists {} that the probe has not seen; messages that \
                         are missing now count as in doubt, and not as lost",
                        counted(news.forgotten, "arrival")
                    );
                    shared.probe.missed(routes, ns(clock::now()));
                }
                (news.witness, news.arrivals)
            }
            Found::InMailbox(arrivals) => (Witness::Mailbox { first_route: routes[0] }, arrivals),
        };
        for arrival in arrivals {
            if let Some(event) = shared.probe.arrived(&arrival, witness, now_ns) {
                self.record(&mut shared, &[event]);
            }
            self.unrecorded.push(arrival.number);
        }
        self.mark_recorded();
        if let Ok(Some(until)) = seen_until {
            shared.probe.seen(routes, ns(until));
        }
    }

    /// Lets the watch threads delete received messages from mailboxes, once the journal has recorded their arrival.
    fn mark_recorded(&mut self) {
        if self.journal.is_writable() && !self.unrecorded.is_empty() {
            let mut mail = lock(&self.mail);
            self.unrecorded.drain(..).for_each(|number| mail.record(number));
        }
    }

    /// Records events that have happened, first in the journal file and then in the account in memory.
    fn record(&mut self, shared: &mut Shared, events: &[Event]) {
        if events.is_empty() {
            return;
        }
        // Apply the events even if this write fails, because the next write then begins with a snapshot of the account.
        let written = self.journal.append(events, &shared.probe.account, false);
        events.iter().for_each(|event| shared.probe.account.apply(event));
        self.tell_written(&written, shared);
    }

    fn tell_written(&mut self, written: &Result<(), String>, shared: &mut Shared) {
        match written {
            Err(reason) if self.was_writable => {
                tell!("mailrun probe: nothing is sent until the account can be written: {reason}");
            }
            Ok(()) if !self.was_writable => tell!("mailrun probe: the account can be written again"),
            _ => {}
        }
        self.was_writable = written.is_ok();
        shared.journal = JournalState {
            is_writable: self.journal.is_writable(),
            bytes: self.journal.bytes(),
            failures: self.journal.failures,
        };
    }

    /// Waits up to `END_TIMEOUT` for the answers to messages that are being sent, and then writes a snapshot of the
    /// account.
    fn finish(mut self, input: &Receiver<Input>) {
        let limit = clock::now() + END_TIMEOUT;
        while clock::now() < limit && !lock(&self.shared).probe.account.unanswered().is_empty() {
            self.take_input(input, Duration::from_millis(50));
        }
        let shared = Arc::clone(&self.shared);
        let mut shared = lock(&shared);
        let written = self.journal.compact(&shared.probe.account);
        self.tell_written(&written, &mut shared);
    }
}

/// Sends a message, and returns the outcome. An error, such as a server without an address, counts as a failure.
fn deliver(route: &RouteOptions, run: RunId, number: u64, due_at: Duration) -> Outcome {
    let failed =
        |line: String| Outcome { answer: Answer::Failed, took: clock::now() - due_at, line, certificate_ends: None };
    match try_deliver(route, run, number, due_at) {
        Ok(report) => {
            let answer = match &report.end {
                SendEnd::Accepted { .. } => Answer::Accepted,
                SendEnd::Rejected(..) => Answer::Rejected,
                SendEnd::Failed(..) | SendEnd::Stopped(_) if report.is_in_doubt => Answer::Unknown,
                SendEnd::Failed(..) | SendEnd::Stopped(_) => Answer::Failed,
            };
            let took = report.answered_at.unwrap_or_else(clock::now).saturating_sub(due_at);
            Outcome { answer, took, line: report.line(), certificate_ends: report.certificate_ends }
        }
        Err(error) => failed(format!("{error:#}")),
    }
}

fn try_deliver(route: &RouteOptions, run: RunId, number: u64, due_at: Duration) -> Result<SendReport> {
    let targets = targets_of(&route.server, route.allowed)?;
    let is_near = Endpoint::resolve_all(&route.server).is_ok_and(|endpoints| endpoints.iter().all(is_loopback));
    let created = match is_near {
        true => Creation { time: due_at, clock: monotonic_clock() },
        // The server is on another host, and only wall clocks can be compared between hosts.
        false => Creation { time: clock::wall().saturating_sub(clock::now() - due_at), clock: wall_clock() },
    };
    let message = message::render(route, run, number, created, jiff::Timestamp::now())?;
    send(SendOptions {
        targets,
        hello: route.hello.clone(),
        from: route.from.clone(),
        to: vec![route.to.clone()],
        is_verbatim: false,
        message,
        transport: route.transport.clone(),
        pipelining: Pipelining::Off,
        dsn_parameters: crate::source::DsnParameters::default(),
        quit_after: None,
        connect_timeout: route.timeout,
        timeout: route.timeout,
        shows_certificate: false,
        keeps_certificate: true,
        shows_dialogue: false,
    })
}

async fn serve_metrics(State(shared): State<Arc<Mutex<Shared>>>) -> Response {
    live_metrics::response(metrics::text(&lock(&shared), unix_ns()))
}
