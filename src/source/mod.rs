//! The source: offers load, times every phase and stage of it, and accounts for every message.
//!
//! ```text
//! plan (how many, until when) ─→ worker × n ─ session × m ─ connection ─→ the server under test
//!   pacing (when)                    │ a tally, four times a second
//!   message, envelopes (what)        ▼
//!                                collector ─→ live line, series, interval log, record
//! ```
mod collector;
mod envelopes;
mod message;
mod pacing;
mod plan;
mod report;
mod sender;
mod session;
mod worker;

use crate::interrupt::Interrupt;
use crate::party::Outputs;
use anyhow::{Context, Result, bail};
use collector::Collector;
use envelopes::Envelopes;
use journey::RunId;
use journey::record::{Arrival, Pipelining, Record, Workload};
use message::Template;
use net::clock;
use plan::Plan;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Descriptors that are not sessions.
const SPARE_FILES: u64 = 64;

/// Everything a source is told.
#[derive(Clone, Debug)]
pub(crate) struct SourceOptions {
    pub(crate) name: String,
    /// HOST:PORT.
    pub(crate) to: String,
    pub(crate) messages: Option<u64>,
    pub(crate) duration: Option<Duration>,
    pub(crate) sessions: u32,
    pub(crate) workers: usize,
    /// Octets of a message; ignored with `file`.
    pub(crate) size: u64,
    pub(crate) recipients: u32,
    /// Messages a connection carries; `None` for as many as there are.
    pub(crate) reuse: Option<u64>,
    pub(crate) pipelining: Pipelining,
    pub(crate) from: String,
    pub(crate) recipient: String,
    pub(crate) subject: Option<String>,
    pub(crate) file: Option<PathBuf>,
    pub(crate) rate_per_s: Option<f64>,
    pub(crate) arrival: Arrival,
    pub(crate) connect_timeout: Duration,
    pub(crate) timeout: Duration,
    pub(crate) seed: u64,
    pub(crate) hello: String,
    pub(crate) trace: Trace,
    pub(crate) run: Option<RunId>,
    pub(crate) reach: Reach,
    pub(crate) outputs: Outputs,
}

/// Whether messages carry a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trace {
    /// They do.
    On,
    /// They do not: nobody can tell what became of them.
    Off,
}

/// Where load may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Loopback, private and reserved addresses.
    Local,
    /// Anywhere: the user has said that the target is theirs.
    Public,
}

/// What a whole run shares; the workers read it.
#[derive(Debug)]
struct Setting {
    options: SourceOptions,
    address: SocketAddr,
    template: Template,
    envelopes: Envelopes,
    plan: Plan,
}

/// Offers the load to its end, or until SIGINT or SIGTERM; either way there is a record.
///
/// # Errors
/// If it could not run: nothing listens, a file cannot be read, the arguments contradict each other.
pub(crate) fn run(options: SourceOptions) -> Result<Record> {
    let run = options.run.map_or_else(crate::party::fresh_run_id, Ok)?;
    let address = resolve(&options.to, options.reach)?;
    net::open_files::raise(u64::from(options.sessions) + SPARE_FILES);
    let started_at = jiff::Timestamp::now();
    let template = Template::new(&options, run, started_at, clock_for(address))?;
    let envelopes = Envelopes::new(&options, &template)?;
    let interrupt = Interrupt::watch()?;
    let now = clock::now();
    let plan = Plan::new(options.messages, options.duration.map(|limit| now + limit));
    let setting = Arc::new(Setting { options, address, template, envelopes, plan });
    let mut collector = Collector::begin(&setting, run, started_at, now)?;
    let workers = worker::start(&setting)?;
    collector.follow(workers, &interrupt)?;
    collector.finish()
}

/// Traces carry CLOCK_MONOTONIC where the sink can be expected on this host, and Unix time elsewhere.
fn clock_for(address: SocketAddr) -> message::Clock {
    if address.ip().is_loopback() { message::Clock::Monotonic } else { message::Clock::Wall }
}

fn resolve(to: &str, reach: Reach) -> Result<SocketAddr> {
    let mut addresses =
        to.to_socket_addrs().with_context(|| format!("--to {to} is not an address of the form HOST:PORT"))?;
    let address = addresses.next().with_context(|| format!("--to {to}: the name has no address"))?;
    if reach == Reach::Local && !is_local(address.ip()) {
        bail!(
            "{} is a public address: load goes to loopback and private addresses only. If the server is yours, say --allow-public",
            address.ip()
        );
    }
    Ok(address)
}

/// Loopback, private, link-local, shared (RFC 6598), documentation and benchmarking addresses.
fn is_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let [a, b, ..] = address.octets();
            address.is_loopback()
                || address.is_private()
                || address.is_link_local()
                || address.is_documentation()
                || address.is_unspecified()
                || (a == 100 && (64..128).contains(&b))
                || (a == 198 && (18..20).contains(&b))
        }
        IpAddr::V6(address) => match address.to_ipv4_mapped() {
            Some(mapped) => is_local(mapped.into()),
            None => {
                address.is_loopback()
                    || address.is_unique_local()
                    || address.is_unicast_link_local()
                    || address.is_unspecified()
                    || address.segments()[..2] == [0x2001, 0xdb8]
            }
        },
    }
}

impl SourceOptions {
    /// The load as the record has it.
    fn workload(&self, message_bytes: u64) -> Workload {
        Workload {
            messages: self.messages,
            duration_limit_s: self.duration.map(|limit| limit.as_secs_f64()),
            recipients: self.recipients,
            sessions: self.sessions,
            message_bytes,
            reuse: self.reuse,
            pipelining: self.pipelining,
            chunking: false,
            tls: "none".to_owned(),
            arrival: self.arrival,
            rate_per_s: self.rate_per_s,
            protocol: "smtp".to_owned(),
            target: self.to.clone(),
            seed: self.seed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_stays_at_home_unless_told() {
        for local in
            ["127.0.0.1", "::1", "10.1.2.3", "192.168.0.1", "172.16.0.1", "100.64.0.1", "fd00::1", "198.18.0.1"]
        {
            assert!(is_local(local.parse().unwrap()), "{local}");
        }
        for public in ["8.8.8.8", "172.32.0.1", "2600::1", "::ffff:8.8.8.8", "100.128.0.1", "198.20.0.1"] {
            assert!(!is_local(public.parse().unwrap()), "{public}");
        }
        assert!(resolve("8.8.8.8:25", Reach::Local).is_err());
        assert!(resolve("8.8.8.8:25", Reach::Public).is_ok());
        assert!(resolve("nonsense", Reach::Local).is_err());
    }
}
