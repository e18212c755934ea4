//! The source: offers load, measures the time of every phase and stage, and accounts for every
//! message.
//!
//! ```text
//! plan (how many, until when) ─→ worker × n ─ session × m ─ connection ─→ the server under test
//!   pacing (when)                    │ a tally, four times a second
//!   message, envelopes (what)        ▼
//!                                collector ─→ live line, series, interval log, record
//! ```
mod addresses;
#[cfg(any(test, feature = "checks"))]
#[doc(hidden)]
pub mod checks;
mod collector;
mod context;
mod control;
mod corpus;
mod domains;
mod dsn_parameters;
mod envelopes;
mod file_lines;
mod load_session;
mod message;
mod message_set;
mod mime;
mod options;
mod plan;
mod preflight;
mod recipients;
mod reply_log;
mod report;
mod session_loop;
mod shard_start;
mod transport;
mod worker;
mod worker_state;

pub use addresses::AddressPattern;
pub(crate) use control::NUMBERS_LOG2;
pub use control::{LoadControl, LoadCounts};
pub use corpus::{CorpusOptions, InvalidMessagePolicy};
pub use dsn_parameters::DsnParameters;
pub(crate) use load_session::DialoguePrinter;
pub use mailrun_schedule::distribution::Distribution;
pub use mailrun_schedule::offered_rate::{OfferedRate, RateStage};
pub use mailrun_schedule::shard::{PlanHash, Shard};
pub(crate) use message::{date as date_field, from_field};
pub use options::{AllowedTargets, BodyParameter, DialogueOutput, Preflight, SourceOptions, TraceHeaders};
pub use recipients::{RecipientTags, check_recipients};
pub use shard_start::SourceShard;
pub(crate) use transport::Transport;
pub use transport::{AddressRange, ProxyVersion, TransportOptions};

use anyhow::{Context, Result, anyhow, bail};
use collector::SourceCollector;
use context::SourceContext;
use domains::RecipientDomains;
use envelopes::Envelopes;
use mailrun_lock::lock;
use mailrun_net::{Endpoint, clock};
use mailrun_process::interrupt::Interrupt;
use mailrun_process::local_address::{is_local_address, is_loopback};
use mailrun_process::output_file;
use mailrun_process::outputs::FinishedRun;
use mailrun_process::reason::reason;
use mailrun_process::start_wait::StartWait;
use mailrun_smtp::dsn::Notify;
use message::TraceStamp;
use message_set::PreparedMessages;
use plan::LoadPlan;
use preflight::PreflightCheck;
use recipients::Recipients;
use report::RESERVED_DESCRIPTORS;
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Time that each address of a server has to accept a connection before the next address is tried.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// The start of the load is planned this long in advance, so that the collector is ready by then.
const SETUP_TIME: Duration = Duration::from_millis(2);

/// Offers the load to its end, or until SIGINT or SIGTERM. Returns a record in either case.
///
/// # Errors
///
/// Fails if the load could not run, for example because nothing listens, a file cannot be read, or
/// options contradict each other.
pub fn run(options: SourceOptions) -> Result<FinishedRun> {
    let numbers = match &options.control {
        Some(control) => control.message_numbers(),
        None => options.part().numbers(options.messages),
    };
    let options = options.divided()?;
    let run = options.run.map_or_else(mailrun_process::outputs::new_run_id, Ok)?;
    let start_wait = match options.preflight {
        Preflight::On => StartWait::begin(),
        Preflight::Off => StartWait::none(),
    };
    let server = resolve(&options.to, options.allowed_targets, start_wait)?;
    options.check(&server)?;
    options.outputs.check_writable()?;
    mailrun_net::open_files::raise(u64::from(options.sessions) + RESERVED_DESCRIPTORS);
    let started_at = jiff::Timestamp::now();
    let recipients = Recipients::new(&options.recipient_patterns, options.recipients.max(), options.recipient_tags)?;
    let asks_never = options.dsn_parameters.notify == Some(Notify::NEVER);
    let numbering = recipients.numbering();
    let numbering = if asks_never { numbering.asking_never() } else { numbering };
    let stamp = TraceStamp::new(run, options.trace_headers, clock_for(&server), numbering)
        .auto_submitted(options.auto_submitted);
    let PreparedMessages { messages: mail, summary: about } = PreparedMessages::new(&options, stamp, run, started_at)?;
    let envelopes = Envelopes::new(&options, run, recipients, &mail);
    let interrupt = match &options.control {
        Some(control) => control.interrupt(),
        None => Interrupt::watch()?,
    };
    let approach = Transport::new(&options.transport, options.pipelining, host_name(&options.to))?;
    let approach = approach.with_notifications(options.dsn_parameters.notifications());
    let trial = Arc::new(PreflightCheck { options, server, transport: approach, messages: mail, envelopes });
    let introduction = match trial.options.preflight {
        Preflight::On => trial.check(&interrupt, start_wait)?,
        Preflight::Off => None,
    };
    let PreflightCheck { options, server, transport: approach, messages: mut mail, envelopes } =
        Arc::into_inner(trial).context("the test connection has not ended")?;
    let shard_start = options.shard.as_ref().map(|shard| shard.wait(&interrupt)).transpose()?;
    let host = collector::observe_host(&options);
    let now = shard_start.map_or_else(|| stamp.next_zero(clock::now() + SETUP_TIME), |start| start.began);
    let zero = shard_start.map_or(now, |start| stamp.last_zero(start.planned()));
    mail.set_zero(zero);
    let plan = Arc::new(LoadPlan::new(numbers, options.time_limit().map(|limit| now + limit)));
    let warm_until = options.warm_up.map_or(Duration::ZERO, |length| now + length);
    let domains = RecipientDomains::of(&options.recipient_patterns);
    let load_stage_ends = options.offered_rate.as_ref().map(|offer| offer.stage_ends(now)).unwrap_or_default();
    let setting = Arc::new(SourceContext {
        options,
        server,
        transport: approach,
        messages: mail,
        summary: about,
        envelopes,
        domains,
        plan,
        shard_start,
        began: now,
        zero,
        warm_up_until: warm_until,
        load_stage_ends,
        introduction,
        replies: Mutex::default(),
    });
    if let Some(control) = &setting.options.control {
        control.attach(&setting.plan);
    }
    let mut collector = SourceCollector::begin(&setting, run, started_at, host)?;
    let workers = worker::start(&setting)?;
    collector.collect(workers, &interrupt)?;
    let ledger = setting.options.outputs.ledger.as_deref().filter(|ledger| output_file::is_file(ledger));
    if let Some(ledger) = ledger {
        // Ignore an error, because without this file, reports only lack the server's replies.
        let recipients = |number| setting.named_recipients(number, setting.options.recipients(number));
        let _ = reply_log::write(&lock(&setting.replies), recipients, &ledger.with_extension("replies"));
    }
    Ok(collector.finish())
}

/// Chooses the clock for the times in traces. If the server is on this host, the sink probably is
/// on this host as well and can read the same CLOCK_MONOTONIC. Otherwise, traces use Unix time.
fn clock_for(server: &Endpoint) -> message::TraceClock {
    if is_loopback(server) { message::TraceClock::Monotonic } else { message::TraceClock::Wall }
}

/// Returns the name for which the server's certificate must be valid: the host of the address or, for a unix-domain
/// socket, `localhost`.
pub(crate) fn host_name(to: &str) -> &str {
    match Endpoint::split_port(to) {
        Some((host, _)) if !to.starts_with("unix:") => host,
        _ => "localhost",
    }
}

/// Looks up the server of a source, and chooses the first of its addresses that accepts a
/// connection. For example, `localhost` has two addresses, and a server may listen on one of them
/// only.
fn resolve(to: &str, reach: AllowedTargets, wait: StartWait) -> Result<Endpoint> {
    look_up(to, reach).map(|endpoints| first_reachable(endpoints, wait))
}

/// Returns the addresses of a server to which load may be sent. There is at least one.
///
/// # Errors
///
/// Fails if the server's name cannot be resolved, or if all its addresses are public and `reach` does not allow public
/// addresses.
pub fn look_up(to: &str, reach: AllowedTargets) -> Result<Vec<Endpoint>> {
    let endpoints = Endpoint::resolve_all(to).map_err(|error| match to.starts_with("unix:") {
        true => anyhow!("{to}: {}", reason(&error)),
        false => anyhow!("{}", reason(&error)),
    })?;
    let is_allowed =
        |endpoint: &Endpoint| reach == AllowedTargets::Public || endpoint.ip().is_none_or(is_local_address);
    if let (false, Some(address)) = (endpoints.iter().any(is_allowed), endpoints[0].ip()) {
        bail!(
            "{address} is a public address; only loopback and private addresses are allowed by default. If the server \
             is yours, add --allow-public"
        );
    }
    Ok(endpoints.into_iter().filter(is_allowed).collect())
}

/// Returns the first address that accepts a connection, or the first of the list if none does before `wait` is over. A
/// single address is returned without a test.
fn first_reachable(mut endpoints: Vec<Endpoint>, wait: StartWait) -> Endpoint {
    let answers = |endpoint: &Endpoint| match endpoint {
        Endpoint::Tcp(address) => TcpStream::connect_timeout(address, PROBE_TIMEOUT).is_ok(),
        Endpoint::Unix(_) => true,
    };
    let mut position = None;
    while endpoints.len() > 1 && position.is_none() {
        position = endpoints.iter().position(answers);
        if position.is_none() && !wait.pause() {
            break;
        }
    }
    endpoints.swap_remove(position.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_stays_at_home_unless_told() {
        assert!(resolve("8.8.8.8:25", AllowedTargets::Local, StartWait::none()).is_err());
        assert!(resolve("8.8.8.8:25", AllowedTargets::Public, StartWait::none()).is_ok());
        assert!(resolve("nonsense", AllowedTargets::Local, StartWait::none()).is_err());
    }

    #[test]
    fn a_certificate_must_be_valid_for_the_host() {
        for (to, host) in [
            ("mx.a.example:25", "mx.a.example"),
            ("192.0.2.1:25", "192.0.2.1"),
            ("[2001:db8::1]:25", "2001:db8::1"),
            ("unix:/run/s", "localhost"),
            ("unix:s:25", "localhost"),
        ] {
            assert_eq!(host_name(to), host, "{to}");
        }
    }

    #[test]
    fn of_several_addresses_one_that_answers_is_taken() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let there = listener.local_addr().unwrap();
        let silent: std::net::SocketAddr = (std::net::Ipv6Addr::LOCALHOST, there.port()).into();
        let endpoints = [silent, there].map(Endpoint::Tcp);
        assert_eq!(first_reachable(endpoints.to_vec(), StartWait::none()), endpoints[1]);
        drop(listener);
        assert_eq!(
            first_reachable(endpoints.to_vec(), StartWait::none()),
            endpoints[0],
            "nobody answers: the first is tried again"
        );
    }
}
