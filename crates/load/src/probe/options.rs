use crate::sink::MailboxOptions;
use crate::source::{AllowedTargets, TransportOptions};
use anyhow::Result;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Where the probe looks for the arrival of its messages.
#[derive(Clone, Debug)]
pub enum Watch {
    /// The probe does not look for arrivals, so it knows only the server's answer to each message.
    Nothing,
    /// A mailrun sink, given by the address of its HTTP interface.
    Sink(String),
    /// A mailbox. Unless `keep` is set, the probe deletes its own messages from the mailbox once it has counted them.
    Mailbox { mailbox: Box<MailboxOptions>, keep: bool },
}

/// A server to which the probe sends messages, and the place where they should arrive.
#[derive(Clone, Debug)]
pub struct RouteOptions {
    pub name: String,
    /// Address of the server, as `HOST:PORT` or `unix:PATH`.
    pub server: String,
    pub transport: TransportOptions,
    pub allowed: AllowedTargets,
    pub hello: String,
    pub from: String,
    pub to: String,
    pub interval: Duration,
    /// A message that has not arrived this long after it was due counts as lost.
    pub lost_after: Duration,
    /// Time limit for a connection and for each reply.
    pub timeout: Duration,
    pub watch: Watch,
}

/// Reads the configuration again and returns its routes. The probe calls this at SIGHUP.
pub type Reload = Box<dyn FnMut() -> Result<Vec<RouteOptions>>>;

pub struct ProbeOptions {
    pub routes: Vec<RouteOptions>,
    /// Directory of the journal and of the daily reports.
    pub state: PathBuf,
    /// Address on which `/metrics` is served.
    pub http: SocketAddr,
    /// Host part of `http` as the user typed it. The server accepts HTTP requests with this name in `Host`.
    pub http_name: String,
    /// Called at SIGHUP to read the configuration again. Without it, SIGHUP ends the probe.
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
