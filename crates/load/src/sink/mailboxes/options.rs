//! Options of a sink that watches mailboxes.
use mailrun_lock::lock;
use mailrun_mailbox::MailboxUrl;
use mailrun_measurement::{Ledger, RunId};
use mailrun_net::Endpoint;
use mailrun_process::local_address::is_loopback;
use mailrun_smtp::sasl::Credentials;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct MailboxOptions {
    /// Mailboxes to watch, of which there must be at least one.
    pub mailboxes: Vec<WatchedMailbox>,
    /// Interval at which to ask for new mail. If it is set, even servers that would report new mail by themselves
    /// (IDLE) are asked.
    pub poll: Option<Duration>,
    /// True if messages count that are already there when a mailbox is first opened.
    pub existing: bool,
    /// True if messages are fetched whole, so that their bodies can be checked.
    pub whole: bool,
    /// Run whose messages are deleted after they were counted, or `None` to keep all messages.
    pub deletes: Option<RunId>,
    /// Messages whose arrival a probe has recorded. If this is set, only these messages are deleted, when they are seen
    /// again, and they do not count a second time. If the probe is killed before it records an arrival, the message is
    /// therefore still in the mailbox.
    pub settled: Option<Arc<Mutex<Ledger>>>,
    pub tls: MailboxTls,
}

/// A mailbox to watch, the recipient whose mail it holds, and the login for its server.
#[derive(Clone, Debug)]
pub struct WatchedMailbox {
    pub url: MailboxUrl,
    /// Address of the recipient whose mail arrives in this mailbox.
    pub address: String,
    /// User and password for the server, or `None` for a Maildir.
    pub credentials: Option<Credentials>,
    /// Address of the mailbox's server, or `None` for a Maildir.
    pub server: Option<Endpoint>,
}

#[derive(Clone, Debug, Default)]
pub struct MailboxTls {
    /// True if any certificate is accepted, and passwords may be sent without TLS even to another host.
    pub insecure: bool,
    /// File with trusted certificates. By default, the certificates of the system are trusted.
    pub ca: Option<PathBuf>,
}

impl MailboxOptions {
    /// Returns true if the arrival of the message with this number is recorded.
    pub(super) fn is_settled(&self, number: u64) -> bool {
        let settled = self.settled.as_ref();
        settled.is_some_and(|settled| lock(settled).contains(number, 0))
    }

    /// Returns true if passwords may be sent to this server without TLS.
    pub(super) fn allows_plain_login(&self, endpoint: &Endpoint) -> bool {
        self.tls.insecure || is_loopback(endpoint)
    }

    /// Returns the protocol of the first mailbox, which the record names.
    pub(crate) fn protocol(&self) -> &'static str {
        match self.mailboxes.first().map(|mailbox| &mailbox.url) {
            Some(MailboxUrl::Server { scheme, .. }) if scheme.is_imap() => "imap",
            Some(MailboxUrl::Server { .. }) => "pop3",
            Some(MailboxUrl::Maildir(_)) | None => "maildir",
        }
    }
}
