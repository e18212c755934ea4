//! Runs the source as a worker of a Locust master. For each test that the master starts, the source offers a load. A
//! closed loop has one session per user. In an open loop, the rate grows with the number of users.
//!
//! ```text
//! thread "locust": master ⇄ mailrun_locust::LocustWorker ─ an order per test ─→ main thread: source::run
//!                     ▲ counts, four times per second ── LoadControl ◄─────┘ sessions, drain
//! ```
//! The link has its own thread, so that a load never delays a heartbeat.
mod connection;
mod link;
mod stats;

use crate::source::{self, SourceOptions};
use anyhow::{Result, anyhow};
use link::{LoadOrder, MasterLink};
use mailrun_locust::{WorkerExit, WorkerLimits};
use mailrun_measurement::record::Ending;
use mailrun_process::interrupt::Interrupt;
use std::sync::mpsc::channel;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct LocustWorkerOptions {
    /// Address of the master, as `HOST:PORT`.
    pub master: String,
    /// Maximum number of users that the worker accepts. If the master asks for more, the worker starts only this many.
    pub max_sessions: u32,
    /// Names of the servers to which a master may direct load, in the form that `server_name` returns.
    pub targets: Vec<String>,
    /// Function that converts any way to write a server to the form used in `targets` ([`WorkerLimits::server_name`]).
    pub server_name: fn(&str) -> Option<String>,
    /// Time that messages in transit have to finish when the load is stopped.
    pub drain: Duration,
    /// Time without a master after which the worker ends with an error.
    pub master_timeout: Duration,
}

/// Works for a master until the master says `quit`, or until SIGINT or SIGTERM. For each test, `load_for` returns the
/// options of the load. Its argument is the server that the master has named, or `None` for the worker's own server.
///
/// # Errors
///
/// Fails if the worker has had no connection to a master for `master_timeout`.
pub fn run(options: &LocustWorkerOptions, load_for: impl Fn(Option<&str>) -> Result<SourceOptions>) -> Result<()> {
    let interrupt = Interrupt::watch()?;
    let (orders, received) = channel::<LoadOrder>();
    let limits = WorkerLimits {
        max_sessions: options.max_sessions,
        targets: options.targets.clone(),
        server_name: options.server_name,
        drain: options.drain,
        master_timeout: options.master_timeout,
    };
    let link = MasterLink::new(options.master.clone(), limits, orders, interrupt)?;
    let link = std::thread::Builder::new().name("locust".to_owned()).spawn(move || link.run())?;
    for order in received {
        order.finish(carry_out(&order, &load_for));
    }
    match link.join() {
        Ok(WorkerExit::Quit | WorkerExit::Terminated) => Ok(()),
        Ok(WorkerExit::NoMaster) => Err(anyhow!(
            "no Locust master at {} within {:?}; check --master-host and --master-port",
            options.master,
            options.master_timeout
        )),
        Err(_) => Err(anyhow!("the connection to the master ended by a defect of mailrun")),
    }
}

/// Runs a load until it ends or is stopped. If the load ended by itself, returns the reason.
fn carry_out(order: &LoadOrder, load_for: &impl Fn(Option<&str>) -> Result<SourceOptions>) -> Option<String> {
    let options = load_for(order.host.as_deref()).and_then(|mut options| {
        options.control = Some(order.control());
        options.run = match &order.run_id {
            Some(id) => {
                Some(id.parse().map_err(|_| anyhow!("the master's run id {id:?} is not 32 hexadecimal digits"))?)
            }
            None => None,
        };
        Ok(options)
    });
    match options.and_then(source::run) {
        Ok(finished) if finished.record.ending == Some(Ending::GaveUp) => {
            Some("the server accepted nothing for the time of --give-up".to_owned())
        }
        Ok(_) => None,
        Err(error) => Some(format!("{error:#}")),
    }
}
