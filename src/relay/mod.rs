//! Store and forward: takes mail, keeps it, and hands every message on until it is delivered or its sender told.
//!
//! | module | what it is |
//! |---|---|
//! | `aliases` | who is meant by a name of a local domain |
//! | `bounce` | what became of a message, told to its sender |
//! | `census` | what has been done, in numbers |
//! | `config` | what a relay is told |
//! | `courier` | connections to next hops, and deliveries on this host |
//! | `envelope` | what the spool keeps beside a body, and the notes of what has been done since |
//! | `hops` | the hops that a worker knows, by number |
//! | `labour` | threads for work that blocks |
//! | `letter` | a message in memory |
//! | `maildir` | delivery into a Maildir |
//! | `queue` | who may be delivered now: pure, one a worker |
//! | `office` | a worker's queue, and what reception and couriers share |
//! | `reception` | sessions that bring mail |
//! | `received` | the trace that a message carries: written and counted |
//! | `resolver` | which servers take a domain's mail, and their addresses |
//! | `restart` | what a former run has left |
//! | `retry` | how long until the next try |
//! | `routing` | who may send to whom, and where it goes |
pub(crate) mod aliases;
pub(crate) mod bounce;
mod census;
pub(crate) mod config;
mod courier;
pub(crate) mod envelope;
mod hops;
mod labour;
mod letter;
pub(crate) mod maildir;
mod office;
pub(crate) mod queue;
pub(crate) mod received;
mod reception;
pub(crate) mod resolver;
mod restart;
pub(crate) mod retry;
pub(crate) mod routing;
mod setting;
mod telling;

use crate::interrupt::{Asked, Interrupt};
use crate::live::Event;
use crate::party::{Live, Telling};
use crate::reason::reason;
use anyhow::{Context, Result, anyhow, bail};
use config::{Config, Durability};
use labour::Labour;
use net::{Endpoint, Running, Security, Server, Service};
use office::Office;
use reception::Reception;
use resolver::Resolver;
use setting::Setting;
use smtp::sasl::Mechanisms;
use spool::{RealDisk, Spool};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// How often it is looked whether somebody asks for the end.
const LOOK: Duration = Duration::from_millis(20);
/// How long couriers may take to bring what they carry when the relay stops; what they do not bring stays in the spool.
const LAST_WAYS: Duration = Duration::from_secs(10);
/// Descriptors that are neither sessions nor couriers.
const SPARE_FILES: u64 = 128;

/// What a relay is told besides its configuration.
pub(crate) struct Orders {
    /// The file that the configuration is from, to be read again on SIGHUP.
    pub(crate) file: Option<PathBuf>,
    pub(crate) live: Live,
}

/// What a relay has done, for its report.
pub(crate) struct Done {
    setting: Arc<Setting>,
    pub(crate) durability: Durability,
}

impl Done {
    /// The numbers by name, with what they are.
    pub(crate) fn rows(&self) -> Vec<(&'static str, &'static str, u64)> {
        let usage = self.setting.spool.usage();
        let mut rows: Vec<_> = self.setting.census.rows().into();
        rows.push(("spool_messages", "messages left in the spool", usage.messages));
        rows.push(("spool_syncs", "syncs of the spool", usage.syncs));
        rows
    }
}

/// Relays until SIGINT or SIGTERM, or until the spool fails.
///
/// # Errors
/// If it could not run, or the spool failed.
pub(crate) fn run(config: Config, orders: &Orders) -> Result<Done> {
    let interrupt = Interrupt::watch()?;
    let couriers = u64::from(config.delivery.overall);
    net::open_files::raise(config.limits.sessions as u64 + couriers + SPARE_FILES);
    let durability = config.spool.durability;
    let setting = Arc::new(setting(config)?);
    let running = listen(&setting)?;
    let telling = Telling::new(orders.live);
    let smtp = running.iter().map(|running| running.endpoint().to_string()).collect();
    telling.event(&Event::Listening { smtp, http: None });
    while interrupt.asked() == Asked::Nothing && !setting.has_failed() {
        std::thread::sleep(LOOK);
    }
    running.into_iter().for_each(Running::stop);
    setting.spool.clone().close();
    telling.event(&Event::Done);
    if setting.has_failed() {
        bail!(
            "the spool's disk has failed: nothing is taken any more. What was answered 250 and is on it is delivered after a restart."
        );
    }
    Ok(Done { setting, durability })
}

fn setting(config: Config) -> Result<Setting> {
    let kept = &config.spool;
    let options = spool::Options {
        most_bytes: kept.most_bytes,
        most_message_bytes: config.limits.message_bytes + (1 << 20),
        durability: match kept.durability {
            Durability::Sync => spool::Durability::Sync,
            Durability::Write => spool::Durability::Write,
            Durability::Memory => spool::Durability::Memory,
        },
        ..spool::Options::default()
    };
    let cannot = |error: &dyn std::fmt::Display| anyhow!("cannot open the spool {}: {error}", kept.directory.display());
    let disk = RealDisk::new(&kept.directory).map_err(|error| cannot(&reason(&error)))?;
    let opened = Spool::open(Arc::new(disk), options).map_err(|error| cannot(&error))?;
    let resolver = Resolver::start(&config.dns, &config.hostname, config.reach).context("cannot start a thread")?;
    let labour = Labour::start().context("cannot start a thread")?;
    let seed = net::clock::wall().as_nanos() as u64;
    Ok(Setting::new(config, opened, resolver, labour, seed))
}

/// A server for each address, each with its workers.
fn listen(setting: &Arc<Setting>) -> Result<Vec<Running>> {
    let config = setting.config();
    let offered = config.tls.clone().map_or(Security::None, Security::Offered);
    let implicit = config.tls.clone().map_or(Security::None, Security::Implicit);
    let plain = config.listen.iter().map(|endpoint| (endpoint, &offered));
    let all = plain.chain(config.listen_tls.iter().map(|endpoint| (endpoint, &implicit)));
    all.map(|(endpoint, security)| serve(setting, &config, endpoint, security.clone())).collect()
}

fn serve(setting: &Arc<Setting>, config: &Config, endpoint: &Endpoint, security: Security) -> Result<Running> {
    let make = {
        let setting = Arc::clone(setting);
        move || Post::begin(Arc::clone(&setting))
    };
    let has_users = config.users.is_some();
    Server::new(make)
        .name(&config.hostname)
        .limits(config.limits.of_session())
        .sessions(config.limits.sessions)
        .workers(config.workers.unwrap_or_else(net::worker::default_count))
        .security(security)
        .offering(move |offer| {
            // A next hop may not take it, and it cannot be made into lines.
            offer.extensions.binary_mime = false;
            offer.extensions.auth = if has_users { Mechanisms::ALL } else { Mechanisms::NONE };
        })
        .start_at(endpoint)
        .map_err(|error| anyhow!("cannot listen on {endpoint}: {}", reason(&error)))
}

/// A worker's place: its office, to which sessions bring mail.
struct Post(Rc<Office>);

impl Post {
    fn begin(setting: Arc<Setting>) -> Self {
        let office = Office::open(setting);
        net::worker::spawn_local(restart::take_up(Rc::clone(&office)));
        Self(office)
    }
}

impl Service for Post {
    type Handler = Reception;

    fn session(&self, peer: net::Peer) -> Reception {
        Reception::new(&self.0, peer)
    }

    fn not_accepted(&self, why: &std::io::Error) {
        tracing::error!(%why, "a client could not be accepted");
    }

    fn tick(&self, _now: Duration) {
        self.0.tick();
    }

    async fn wind_up(&self) {
        self.0.close();
        let latest = net::clock::now() + LAST_WAYS;
        while self.0.couriers() > 0 && net::clock::now() < latest {
            net::sleep(Duration::from_millis(5)).await;
        }
    }
}
