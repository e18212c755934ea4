//! Profiles of a server, as the Kotlin SMTP guide publishes them: rate and latency at several
//! sizes, and large messages on one connection.
//!
//! ```text
//! message_file ─→ (engine::run_all) ─→ runs ──────→ measurement ─┬→ profile         kotlin-profile, sizes
//!  (the bodies)                         a bench each              └→ large_message   MB/s, and what each cost adds
//! ```
//! The server is mailrun's sink, a relay in front of that sink, or any server that is already
//! running.
mod large_message;
mod measurement;
mod message_file;
mod profile;
mod runs;
mod smtplib;

pub use large_message::{LargeMessageOptions, MessageCost, run as run_large_message};
pub use profile::{ProfileOptions, run as run_profile};
pub use runs::ProfiledServer;
