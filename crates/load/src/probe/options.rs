//! Options of a probe.
use crate::sink::MailboxOptions;
use crate::source::{AllowedTargets, TransportOptions};
use anyhow::Result;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Where the mail of a route arrives.
#[derive(Clone, Debug)]
pub enum Watch {
    /// Nobody looks: the account ends with the server's answer.
    Nothing,
    /// HTTP interface of a mailrun sink.
    Sink(String),
    /// A mailbox. `keep` leaves its mail there; otherwise the probe deletes its own.
    Mailbox { mailbox: Box<MailboxOptions>, keep: bool },
}

/// A server, and the mail that is sent to it.
#[derive(Clone, Debug)]
pub struct RouteOptions {
    pub name: String,
    /// `HOST:PORT` or `unix:PATH`.
    pub server: String,
    pub transport: TransportOptions,
    pub allowed: AllowedTargets,
    pub hello: String,
    pub from: String,
    pub to: String,
    /// Time between two messages.
    pub interval: Duration,
    /// Time after which a message that has not arrived is lost.
    pub lost_after: Duration,
    /// Time limit for a connection and for each reply.
    pub timeout: Duration,
    pub watch: Watch,
}

/// Reads the routes again.
pub type Reload = Box<dyn FnMut() -> Result<Vec<RouteOptions>>>;

pub struct ProbeOptions {
    pub routes: Vec<RouteOptions>,
    /// Directory of the account.
    pub state: PathBuf,
    /// Address of `/metrics`.
    pub http: SocketAddr,
    /// The host as it was typed in that address.
    pub http_name: String,
    /// Called at SIGHUP. Without it, SIGHUP ends the probe.
    pub reload: Option<Reload>,
}

#[cfg(test)]
impl RouteOptions {
    pub(super) fn example() -> Self {
        Self {
            name: "a".to_owned(),
            server: "127.0.0.1:25".to_owned(),
            transport: TransportOptions::default(),
            allowed: AllowedTargets::Local,
            hello: "me.example".to_owned(),
            from: "from@example.com".to_owned(),
            to: "to@example.com".to_owned(),
            interval: Duration::from_secs(10),
            lost_after: Duration::from_secs(60),
            timeout: Duration::from_secs(5),
            watch: Watch::Nothing,
        }
    }
}
