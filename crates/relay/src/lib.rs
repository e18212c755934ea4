//! A mail relay, which accepts mail, stores it, and tries to deliver each message until the message is delivered or its
//! sender has been notified.
//!
//! | module | what it does | Postfix |
//! |---|---|---|
//! | `smtpd` | receives mail: sessions, logins, limits | smtpd(8), anvil(8) |
//! | `routing` | decides who may send to whom, and a recipient's next hop | trivial-rewrite(8), aliases(5), transport(5) |
//! | `message` | a message, its envelope and its `Received:` fields | cleanup(8) |
//! | `qmgr` | decides which message is delivered next: retries, holds, expiry | qmgr(8) |
//! | `delivery` | delivers by SMTP, by LMTP and into Maildirs | smtp(8), lmtp(8), local(8), discard(8) |
//! | `dsn` | notifies senders of failures, delays and successes | bounce(8) |
//! | `worker` | executes what `qmgr` decides, with one worker on each thread | master(8) |
//! | `worker_share` | divides the configured limits between the workers | |
//! | `worker_calls` | lets other threads call the workers | |
//! | `recovery` | queues what a former run has left in the spool | qmgr(8) at its start |
//! | `control` | serves `mailrun queue`, and metrics and health over HTTP | postqueue(1), postsuper(1) |
//! | `offline` | checks, salvages and exports the spool of a stopped relay | postcat(1), postsuper(1) |
//! | `config` | reads relay.toml | main.cf, postconf(1) |
//! | `reload` | reads relay.toml again on SIGHUP | postfix(1) reload |
//! | `context` | state that all workers share | |
//! | `delivery_log` | logs each delivery without delaying the workers | maillog |
//! | `counters` | counters of mail, connections and logins since the relay started | |
//! | `fault_log` | logs frequent faults once, and afterwards only their number | |
//! | `own_addresses` | recognises the relay's own addresses, to which it must not deliver | |
//! | `record` | the record of a run, with samples of the counters | |
//! | `blocking_pool` | threads for work that blocks | |
//! | `descriptors` | computes the descriptors that the relay needs, and which limits apply if it gets fewer | |
//! | `service_manager` | tells systemd that the relay is ready, reloads, stops or is alive | |
//! | `inherited_sockets` | uses sockets that systemd has opened | |
//! | `disk_test` | measures the message rate that a disk permits | |
//! | `spool_directory` | checks the owner and the permissions of the spool's directory | |
#![allow(missing_docs)] // only crates that other programs embed document every public item

mod blocking_pool;
#[cfg(any(test, feature = "checks"))]
#[doc(hidden)]
pub mod checks;
pub mod config;
mod context;
pub mod control;
mod counters;
mod delivery;
mod delivery_log;
mod descriptors;
pub mod disk_test;
mod dsn;
mod fault_log;
mod inherited_sockets;
mod message;
pub mod offline;
mod own_addresses;
mod qmgr;
mod record;
mod recovery;
mod reload;
mod routing;
mod service_manager;
mod smtpd;
mod spool_directory;
mod worker;
mod worker_calls;
mod worker_share;

use anyhow::{Context, Result, anyhow, bail};
use blocking_pool::BlockingPool;
use config::Config;
use context::RelayContext;
use control::server::ControlSocket;
use delivery::resolver::Resolver;
pub use delivery::resolver::mail_servers;
use delivery_log::DeliveryLogWriter;
use descriptors::GrantedLimits;
use fault_log::{CommonFault, LOG_TARGET};
use inherited_sockets::InheritedSockets;
use mailrun_net::{Endpoint, Proxied, RunningServer, Server, ServerSecurity, Service, clock};
use mailrun_process::dialogue_output::{DialogueOptions, DialogueOutput};
use mailrun_process::event_output::EventOutput;
use mailrun_process::interrupt::{Interrupt, StopRequest};
use mailrun_process::live::{LiveEvent, LiveMode};
use mailrun_process::live_line::ServerLiveLine;
use mailrun_process::log_writer::LogWriter;
use mailrun_process::outputs::Outputs;
use mailrun_process::reason::reason;
use mailrun_smtp::sasl::Mechanisms;
use mailrun_smtp::server::Protocol;
use mailrun_smtp::xclient::Attributes;
use mailrun_spool::{RealDisk, Spool};
use own_addresses::OwnAddresses;
use record::RunRecorder;
pub use reload::ConfigLoader;
use smtpd::session::SmtpdSession;
use smtpd::{certificates, login};
pub use spool_directory::can_create as can_store_in;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use worker::RelayWorker;
use worker_calls::{RunningRelay, WorkerCalls};
use worker_share::WorkerShares;

const STOP_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Time limit for deliveries in progress when the relay stops. Messages that are not delivered by
/// then stay in the spool.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
pub struct RelayOptions {
    pub reread: Option<ConfigLoader>,
    pub json: Option<PathBuf>,
    pub live: LiveMode,
    pub log: LogWriter,
    /// Where the SMTP dialogues with clients are shown, or `None` if they are not shown.
    pub dialogue: Option<DialogueOptions>,
}

pub struct RelayOutcome {
    context: Arc<RelayContext>,
    pub record_error: Option<anyhow::Error>,
}

impl RelayOutcome {
    pub fn rows(&self) -> Vec<(&'static str, &'static str, u64)> {
        let usage = self.context.spool.stats();
        let mut rows: Vec<_> = self.context.counters.rows().into();
        rows.push(("spool_messages", "messages left in the spool", usage.messages));
        rows.push(("spool_syncs", "syncs of the spool", usage.syncs));
        rows
    }
}

/// Runs the relay until SIGINT or SIGTERM arrives, or until the spool fails.
///
/// # Errors
/// Fails if the relay cannot start, or if the spool fails while the relay runs.
pub fn run(config: Config, options: RelayOptions) -> Result<RelayOutcome> {
    let interrupt = Interrupt::watch_without_hangup()?;
    let outputs = Outputs { json: options.json, live: options.live, ..Outputs::default() };
    outputs.check_writable()?;
    let (granted, warning) = descriptors::raise_limit(&config)?;
    if let Some(warning) = warning {
        tracing::warn!(target: LOG_TARGET, "{warning}");
    }
    config.warnings().iter().for_each(|warning| tracing::warn!(target: LOG_TARGET, "{warning}"));
    // `from_environment` removes environment variables, so call it before any worker thread starts
    // that could read the environment at the same time.
    let mut inherited = InheritedSockets::from_environment()?;
    let dialogue = options.dialogue.map(DialogueOutput::open).transpose()?;
    service_manager::notify_status("opening the spool");
    let context = Arc::new(build_context(config, granted, &options.log)?);
    let relay = Arc::new(RunningRelay { context: Arc::clone(&context), workers: WorkerCalls::default() });
    reload::watch(&context, options.reread)?;
    certificates::watch(&context)?;
    let control = control::server::open(&context.initial_config().control, &relay)?;
    let http = context.initial_config().http.map(|address| control::http::serve(address, &relay)).transpose()?;
    let running = listen(&relay, &mut inherited, dialogue.as_ref())?;
    inherited.refuse_unused()?;
    context.set_listening(running.iter().map(|running| running.endpoint().clone()).collect());
    service_manager::start_watchdog(&relay)?;
    let events = EventOutput::new(options.live).on_thread().context("cannot start a thread")?;
    let mut line = ServerLiveLine::new(options.live, &options.log);
    let mut report = RunRecorder::start();
    let smtp = running.iter().map(|running| running.endpoint().to_string()).collect();
    if options.live != LiveMode::Off {
        announce(&options.log, &events, smtp, http);
    }
    service_manager::notify_ready("takes mail");
    while interrupt.requested() == StopRequest::Nothing && !context.has_failed() {
        std::thread::sleep(STOP_POLL_INTERVAL);
        if let Some(progress) = report.sample(&context) {
            events.event(&LiveEvent::Progress(progress));
            line.show(&progress);
        }
    }
    drop(line);
    let failed = context.spool.failure();
    service_manager::notify_stopping();
    shut_down(&context, running, control);
    dialogue.iter().for_each(DialogueOutput::flush);
    let failed = failed.or_else(|| context.spool.failure());
    let unwritten = outputs.write_or_report(
        &report.record(&context, relay.workers.count()),
        &[&mailrun_measurement::Ledger::default()],
        &events,
    );
    events.event(&LiveEvent::Done);
    if let Some(failure) = failed {
        bail!("{failure}. All mail answered 250 will be delivered after a restart.");
    }
    Ok(RelayOutcome { context, record_error: unwritten })
}

fn announce(log: &LogWriter, events: &EventOutput, smtp: Vec<String>, http: Option<SocketAddr>) {
    let http = http.map(|address| address.to_string());
    let metrics = http.as_ref().map(|http| format!(", metrics on http://{http}/metrics")).unwrap_or_default();
    log.write_line(format!("mailrun relay: listening on {}{metrics}\n", smtp.join(", ")).as_bytes());
    events.event(&LiveEvent::Listening { smtp, http });
}

/// Stops accepting mail at all listeners, gives deliveries in progress [`DRAIN_TIMEOUT`] to finish,
/// and closes the delivery log and the spool.
fn shut_down(context: &RelayContext, running: Vec<RunningServer>, control: ControlSocket) {
    drop(control);
    running.iter().for_each(RunningServer::begin_stop);
    running.into_iter().for_each(RunningServer::stop);
    context.delivery_log_writer.flush();
    context.spool.clone().close();
}

fn build_context(config: Config, granted: GrantedLimits, log: &LogWriter) -> Result<RelayContext> {
    let spool = &config.spool;
    let options = mailrun_spool::Options {
        // Allow 1 MiB more than clients may send, because each stored body begins with this relay's `Received:` field,
        // which is always much shorter than that.
        max_message_bytes: config.limits.message_bytes + (1 << 20),
        ..spool.options()
    };
    let cannot =
        |error: &dyn std::fmt::Display| anyhow!("cannot open the spool {}: {error}", spool.directory.display());
    let disk = RealDisk::new(&spool.directory).map_err(|error| cannot(&reason(&error)))?;
    if let Some(warning) = spool_directory::check(&spool.directory).map_err(|reason| cannot(&reason))? {
        tracing::warn!(target: LOG_TARGET, "{warning}");
    }
    let opened =
        Spool::open(Arc::new(disk), options).map_err(|error| cannot(&explain_damage(error, &spool.directory)))?;
    recovery::log_damage(opened.0.damage(), &spool.directory);
    let own = Arc::new(OwnAddresses::new(config.listeners()));
    let resolver = Resolver::start(&config.dns, &config.hostname, own);
    let resolver = resolver.context("cannot start a thread")?;
    let pool = |name, threads| BlockingPool::start(name, threads).context("cannot start a thread");
    // One reader thread is as fast as four, and needs less memory, because malloc keeps freed memory for each thread.
    // Only two threads convert 8-bit messages, because each conversion occupies a processor and needs twice the memory
    // of its message.
    let pools = (pool("reader", 1)?, pool("maildir", 4)?, pool("converter", 2)?);
    let delivery_log = DeliveryLogWriter::start(log.clone()).context("cannot start a thread")?;
    let seed = mailrun_net::clock::wall().as_nanos() as u64;
    let shares = WorkerShares::new(&config, granted);
    Ok(RelayContext::new(config, shares, opened, resolver, pools, (delivery_log, log.clone()), seed))
}

/// Explains why the spool was not opened. If the spool was refused because it is damaged, lists each damaged place on
/// its own line and says what the operator can do.
fn explain_damage(error: mailrun_spool::Error, directory: &std::path::Path) -> String {
    let mailrun_spool::Error::DamageRefused(damage) = &error else { return error.to_string() };
    let lines: String = damage.iter().map(|one| format!("\n  {one}")).collect();
    let at = directory.display();
    format!(
        "it is damaged, and nothing was changed. `mailrun spool check {at}` lists the damage. A start without \
         --refuse-damage (refuse_damage in the file) uses what is undamaged, and copies the rest to \
         {at}/quarantine.{lines}"
    )
}

fn listen(
    relay: &Arc<RunningRelay>,
    inherited: &mut InheritedSockets,
    dialogue: Option<&DialogueOutput>,
) -> Result<Vec<RunningServer>> {
    let config = relay.context.config();
    let tls = config.tls.as_ref().map(|tls| tls.setup.clone());
    let offered = tls.clone().map_or(ServerSecurity::None, ServerSecurity::Offered);
    let implicit = tls.map_or(ServerSecurity::None, ServerSecurity::Implicit);
    let plain = config.listen.iter().map(|endpoint| (endpoint, &offered, Protocol::Smtp));
    let encrypted = config.listen_tls.iter().map(|endpoint| (endpoint, &implicit, Protocol::Smtp));
    let lmtp = config.listen_lmtp.iter().map(|endpoint| (endpoint, &offered, Protocol::Lmtp));
    let all = plain.chain(encrypted).chain(lmtp);
    all.map(|(endpoint, security, protocol)| {
        let server = server(relay, &config, endpoint, security.clone(), protocol);
        let server = server.dialogue(dialogue.map(DialogueOutput::log));
        let started = match inherited.take(endpoint) {
            Some(socket) => server.start_on(socket, endpoint.clone()),
            None => server.start_at(endpoint),
        };
        started.map_err(|error| anyhow!("cannot listen on {endpoint}: {}", reason(&error)))
    })
    .collect()
}

fn server(
    relay: &Arc<RunningRelay>,
    config: &Config,
    endpoint: &Endpoint,
    security: ServerSecurity,
    protocol: Protocol,
) -> Server<WorkerService, impl Fn() -> WorkerService + Clone + Send + 'static> {
    let make = {
        let relay = Arc::clone(relay);
        move || WorkerService::start(&relay)
    };
    let has_users = config.users.is_some();
    let xclient = if config.xclient.0.is_empty() { Attributes::NONE } else { Attributes::ALL };
    // Logins without TLS are permitted only on the loopback interface, because a cleartext password
    // must not leave this host.
    let is_inside = endpoint.ip().is_none_or(|ip| ip.is_loopback());
    Server::new(make)
        .name(&config.hostname)
        .limits(config.limits.session_limits())
        .sessions(relay.context.shares.granted.sessions)
        .clients(Arc::clone(&relay.context.clients))
        .workers(relay.context.shares.workers_per_listener)
        .busy_poll(config.busy_poll)
        .security(security)
        .proxied(if config.proxy_protocol { Proxied::Yes } else { Proxied::No })
        .offer(move |offer| {
            offer.protocol = protocol;
            offer.extensions.xclient = xclient;
            // Do not offer BINARYMIME. A next hop may not support it, and binary content cannot be
            // converted into lines for such a next hop.
            offer.extensions.binary_mime = false;
            offer.extensions.auth = if has_users { Mechanisms::ALL } else { Mechanisms::NONE };
            offer.requires.tls_for_auth = has_users && !is_inside;
        })
}

struct WorkerService(Rc<RelayWorker>);

impl WorkerService {
    fn start(relay: &RunningRelay) -> Self {
        let (worker, tasks) = RelayWorker::start(Arc::clone(&relay.context));
        mailrun_net::worker::spawn_local(delivery::serve(Rc::clone(&worker), tasks));
        mailrun_net::worker::spawn_local(recovery::requeue(Rc::clone(&worker)));
        mailrun_net::worker::spawn_local(worker_calls::serve_calls(Rc::clone(&worker), relay.workers.register()));
        Self(worker)
    }
}

impl Service for WorkerService {
    type Handler = SmtpdSession;

    fn session(&self, peer: mailrun_net::Peer) -> SmtpdSession {
        SmtpdSession::new(&self.0, peer)
    }

    fn is_exempt(&self, client: std::net::IpAddr) -> bool {
        self.0.config().networks.contain(client)
    }

    fn accept_failed(&self, why: &std::io::Error) {
        if self.0.context.fault_log.is_first(CommonFault::Accept, clock::now()) {
            tracing::error!(target: LOG_TARGET, %why, "a client could not be accepted");
        }
    }

    fn tick(&self, _now: Duration) {
        login::log_summaries(&self.0.context);
        self.0.context.log_fault_summaries();
        self.0.tick();
    }

    async fn drain(&self) {
        self.0.close();
        let latest = mailrun_net::clock::now() + DRAIN_TIMEOUT;
        while self.0.open_connections() > 0 && mailrun_net::clock::now() < latest {
            mailrun_net::sleep(Duration::from_millis(5)).await;
        }
        self.0.flush_log();
    }
}
