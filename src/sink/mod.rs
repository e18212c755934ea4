//! The sink: swallows mail at full speed, verifies traces and keeps the ledger of what arrived.
//!
//! ```text
//! net::Server ─ session ─ Inbox (a handler) ─ Till (a worker's tally) ─→ collector ─→ live line, HTTP, record
//!                            └ faults: what it was told to do wrong
//! ```
mod collector;
mod faults;
mod inbox;
mod report;
mod status;

use crate::interrupt::Interrupt;
use crate::party::Outputs;
use anyhow::{Context, Result};
use collector::Collector;
pub(crate) use faults::{Faults, Stall};
use inbox::{Shared, Till};
use journey::RunId;
use journey::record::Record;
use net::Server;
use smtp::Limits;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::channel;

/// Descriptors that are not sessions.
const SPARE_FILES: u64 = 64;

/// Everything a sink is told.
#[derive(Clone, Debug)]
pub(crate) struct SinkOptions {
    pub(crate) name: String,
    /// HOST:PORT.
    pub(crate) listen: String,
    /// HOST:PORT of the status.
    pub(crate) http: Option<String>,
    /// Ends after that many messages.
    pub(crate) messages: Option<u64>,
    pub(crate) workers: usize,
    /// Sessions at a time.
    pub(crate) sessions: usize,
    pub(crate) limits: Limits,
    /// The name it gives itself.
    pub(crate) hello: String,
    pub(crate) faults: Faults,
    /// The run whose messages are expected; all else is foreign.
    pub(crate) run: Option<RunId>,
    pub(crate) outputs: Outputs,
}

/// Takes mail until it has had enough messages, or until SIGINT or SIGTERM; either way there is a record.
///
/// # Errors
/// If it could not run: the address is taken, a file cannot be written.
pub(crate) fn run(options: SinkOptions) -> Result<Record> {
    let address = resolve("--listen", &options.listen)?;
    let http = options.http.as_deref().map(|http| resolve("--http", http)).transpose()?;
    net::open_files::raise(options.sessions as u64 + SPARE_FILES);
    let interrupt = Interrupt::watch()?;
    let (full, tallies) = channel();
    let shared = Arc::new(Shared::new(options.faults.clone(), options.messages));
    let make = {
        let shared = Arc::clone(&shared);
        move || Till::new(Arc::clone(&shared), full.clone())
    };
    let server = Server::new(make)
        .name(&options.hello)
        .limits(options.limits.clone())
        .workers(options.workers)
        .sessions(options.sessions)
        .start(address)
        .with_context(|| format!("cannot listen on {address}"))?;
    let mut collector = Collector::begin(options, server.address(), http)?;
    collector.follow(&tallies, &shared, &interrupt)?;
    server.stop();
    collector.finish(&tallies)
}

fn resolve(option: &str, address: &str) -> Result<SocketAddr> {
    let mut addresses = address
        .to_socket_addrs()
        .with_context(|| format!("{option} {address} is not an address of the form HOST:PORT"))?;
    addresses.next().with_context(|| format!("{option} {address}: the name has no address"))
}
