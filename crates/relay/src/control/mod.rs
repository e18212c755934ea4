//! The interfaces for operators: `mailrun queue` over the control socket, and metrics and health
//! over HTTP.
pub mod client;
pub(crate) mod http;
mod metrics;
pub mod protocol;
mod queue_stats;
pub(crate) mod server;
mod socket;
