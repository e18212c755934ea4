//! The two ends of a measurement over SMTP: the load source and the sink. The source can also take its orders from a
//! Locust master. A third part, the probe, tests servers continuously with a light load.

#![allow(missing_docs)] // only crates that other programs embed document every public item

pub mod locust_worker;
pub mod mailboxes;
pub mod probe;
pub mod send;
pub mod sink;
pub mod source;
mod tally_exchange;
