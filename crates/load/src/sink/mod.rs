//! The sink: receives mail at full speed, verifies the traces, and keeps a ledger of the messages that have arrived.
//!
//! ```text
//! mailrun_net::Server ─ session ─ handler ─ worker_state (a worker's tally) ─→ collector ─→ live line, HTTP, record
//!                            ├ session_rules: the effect of the rules on a command
//!                            │   active_rules: the rules in force ← rulebook (TOML, JSON) ← rules (the language)
//!                            │   receivers: rules like those that large receivers document
//!                            │   policies: the memory of rules
//!                            ├ lmtp_replies: the end of a message with a result for each recipient
//!                            └ dump: messages stored as they came
//! mailboxes ─ sessions of mailrun_mailbox ─ worker_state, as above
//! ```
mod active_rules;
pub(crate) mod arrivals;
mod capabilities;
#[cfg(any(test, feature = "checks"))]
#[doc(hidden)]
pub mod checks;
mod collector;
mod dump;
mod handler;
mod lmtp_replies;
mod mailboxes;
mod options;
mod policies;
mod receivers;
mod report;
mod rulebook;
mod rules;
mod session_rules;
mod status;
mod worker_state;

use active_rules::ActiveRules;
use anyhow::{Context, Result, anyhow, bail};
pub use capabilities::{CapabilityOptions, LoginPolicy};
use collector::{SinkCertificates, SinkCollector, SinkPlace};
pub use dump::DumpTarget;
use dump::MessageDump;
use handler::SinkService;
pub(crate) use mailboxes::MailboxWatch;
use mailboxes::Watchers;
pub use mailboxes::{MailboxOptions, MailboxTls, ProbeMail, WatchedMailbox};
use mailrun_net::{Endpoint, FdTable, ResourceExhausted, Server};
use mailrun_process::dialogue_output::DialogueOutput;
use mailrun_process::http_server;
use mailrun_process::interrupt::{Interrupt, StopRequest};
use mailrun_process::outputs::FinishedRun;
use mailrun_process::reason::reason;
use mailrun_smtp::server::Protocol;
use options::RESERVED_DESCRIPTORS;
pub use options::SinkOptions;
pub use receivers::Receiver;
pub use rulebook::Rulebook;
pub use rules::Rule;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::channel;
use worker_state::SinkContext;

/// Receives mail until the requested number of messages has arrived, or until SIGINT or SIGTERM. Returns a record in
/// either case.
///
/// # Errors
///
/// Fails if the sink could not run, for example because its address is in use or a file cannot be written.
pub fn run(options: SinkOptions) -> Result<FinishedRun> {
    options.outputs.check_writable()?;
    if options.mailboxes.is_some() {
        return watch(options);
    }
    let endpoint = Endpoint::listening(&options.listen).context("--listen")?;
    let http = options.http.as_deref().map(|http| resolve("--http", http)).transpose()?;
    mailrun_net::open_files::raise(
        options.sessions as u64 + http_server::CONNECTION_LIMIT as u64 + RESERVED_DESCRIPTORS,
    );
    let (full, tallies) = channel();
    let control = ActiveRules::new(options.rules.clone(), options.seed);
    let dump = options.dump.clone().map(MessageDump::open).transpose()?;
    let dialogue = options.dialogue.clone().map(DialogueOutput::open).transpose()?;
    let users = options.capabilities.users()?;
    let protocol = options.capabilities.protocol;
    let shared = Arc::new(SinkContext::new(control, dump, users, options.messages, options.run, protocol));
    let make = {
        let shared = Arc::clone(&shared);
        move || SinkService::new(Arc::clone(&shared), full.clone())
    };
    let capabilities = options.capabilities.clone();
    let (security, watch) = capabilities.security(&options.hello)?;
    // If the sink has certificate files, SIGHUP makes it read them again. Otherwise, SIGHUP ends the sink.
    let interrupt = if watch.is_some() { Interrupt::watch_without_hangup()? } else { Interrupt::watch()? };
    let mut certificates = watch.map(SinkCertificates::watch).transpose()?;
    let server = Server::new(make)
        .name(&options.hello)
        .security(security)
        .proxied(capabilities.proxy_header)
        .fd_table(FdTable::Private)
        .busy_poll(options.busy_poll)
        .dialogue(dialogue.as_ref().map(DialogueOutput::log))
        .offer(move |offer| capabilities.apply(offer))
        .limits(options.limits.clone())
        .workers(options.workers)
        .sessions(options.sessions)
        .start_at(&endpoint)
        .map_err(|error| cannot_listen(&endpoint, &error))?;
    let place = SinkPlace { does: "listening on", name: server.endpoint().to_string(), watched: None };
    let mut collector = SinkCollector::begin(options, place, http, &shared)?;
    collector.collect(&tallies, &shared, &interrupt, &mut certificates);
    server.stop();
    dialogue.iter().for_each(DialogueOutput::flush);
    Ok(collector.finish(&tallies))
}

/// Does the work of [`run`] for a sink that watches mailboxes instead of listening.
fn watch(options: SinkOptions) -> Result<FinishedRun> {
    let Some(mailboxes) = options.mailboxes.clone() else { bail!("there are no mailboxes") };
    let http = options.http.as_deref().map(|http| resolve("--http", http)).transpose()?;
    mailrun_net::open_files::raise(
        mailboxes.mailboxes.len() as u64 + http_server::CONNECTION_LIMIT as u64 + RESERVED_DESCRIPTORS,
    );
    let (full, tallies) = channel();
    let control = ActiveRules::new(options.rules.clone(), options.seed);
    let shared = Arc::new(SinkContext::new(control, None, None, options.messages, options.run, Protocol::Smtp));
    let interrupt = Interrupt::watch()?;
    let watchers = Watchers::start(mailboxes, &shared, full, &|| interrupt.requested() != StopRequest::Nothing)?;
    let place = SinkPlace { does: "watching", name: watchers.name(), watched: Some(watchers.counts()) };
    let mut collector = SinkCollector::begin(options, place, http, &shared)?;
    collector.collect(&tallies, &shared, &interrupt, &mut None);
    watchers.stop();
    Ok(collector.finish(&tallies))
}

fn cannot_listen(endpoint: &Endpoint, error: &io::Error) -> anyhow::Error {
    let cause = reason(error);
    match ResourceExhausted::from_error(error, true) {
        Some(ResourceExhausted::Descriptors) => {
            anyhow!("cannot listen on {endpoint}: {cause}. Raise `ulimit -n`, or use fewer --workers.")
        }
        Some(ResourceExhausted::HostDescriptors) => {
            anyhow!("cannot listen on {endpoint}: {cause}. Raise the sysctl fs.file-max.")
        }
        Some(ResourceExhausted::Ports) | None => anyhow!("cannot listen on {endpoint}: {cause}"),
    }
}

fn resolve(option: &'static str, address: &str) -> Result<SocketAddr> {
    match Endpoint::listening(address).context(option)? {
        Endpoint::Tcp(address) => Ok(address),
        Endpoint::Unix(_) => bail!("{option} {address} must have the form HOST:PORT"),
    }
}
