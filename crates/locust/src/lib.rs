//! A worker for a stock Locust master, as a state machine without sockets, clocks and threads.
//!
//! ```text
//! bytes of the master ─→ dealer (ZMTP 3) ─→ command (msgpack, hostile) ─→ worker ─→ actions: sessions, stop, reconnect
//!   the load's counts ─→ message (only what a master survives) ◄───────────┘
//! ```
//! Decision 0021 (docs/decisions/0021-a-locust-worker-of-our-own.md) says why we implement ZeroMQ's frames ourselves.
#![allow(missing_docs)] // only crates that other programs embed document every public item
#![forbid(unsafe_code)]
#[cfg(any(test, feature = "checks"))]
#[doc(hidden)]
pub mod checks;
mod clock_exchange;
mod command;
mod dealer;
mod message;
mod worker;

pub use clock_exchange::{MasterClockExchange, MasterClockOffset};
pub use command::{MasterCommand, SpawnTarget};
pub use dealer::{DealerConnection, DealerFault};
pub use message::{
    ClassCounts, ErrorEntry, ExactHistogram, Percent, StatsEntry, StatsReport, UserState, WorkerMessage,
};
pub use worker::{DRAIN_AT_QUIT, LoadStatus, LocustWorker, WorkerAction, WorkerExit, WorkerLimits};

/// The locustfile that the master must run to drive these workers.
pub const LOCUSTFILE: &str = include_str!("locustfile.py");
