//! Which mailboxes are watched, and how.
use mailrun_lock::lock;
use mailrun_mailbox::MailboxUrl;
use mailrun_measurement::{Ledger, RunId};
use mailrun_net::Endpoint;
use mailrun_process::local_address::is_loopback;
use mailrun_smtp::sasl::Credentials;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Mailboxes to watch, and how.
#[derive(Clone, Debug)]
pub struct MailboxOptions {
    /// The mailboxes, at least one.
    pub mailboxes: Vec<WatchedMailbox>,
    /// Interval at which to ask for new mail, also servers that would tell by themselves.
    pub poll: Option<Duration>,
    /// Count the messages that are already there when a mailbox is opened first, too.
    pub existing: bool,
    /// Fetch whole messages and check their bodies.
    pub whole: bool,
    /// Delete messages of `run` after they were counted.
    pub deletes: Option<RunId>,
    /// Messages whose arrival somebody has written down. If this is set, only these are deleted, when
    /// they are seen the next time, and they are not counted again.
    pub settled: Option<Arc<Mutex<Ledger>>>,
    /// TLS of connections to servers.
    pub tls: MailboxTls,
}

/// A mailbox, whose mail it has, and who logs in.
#[derive(Clone, Debug)]
pub struct WatchedMailbox {
    pub url: MailboxUrl,
    /// Address of the recipient whose mail is in this mailbox.
    pub address: String,
    /// Who logs in. A Maildir needs nobody.
    pub credentials: Option<Credentials>,
    /// Server of the mailbox. A Maildir has none.
    pub server: Option<Endpoint>,
}

/// TLS settings of connections to servers.
#[derive(Clone, Debug, Default)]
pub struct MailboxTls {
    /// Accept any certificate, and send passwords without TLS.
    pub insecure: bool,
    /// Trusted certificates. By default, the system's certificates are trusted.
    pub ca: Option<PathBuf>,
}

impl MailboxOptions {
    /// True if the arrival of the message has been written down.
    pub(super) fn is_settled(&self, number: u64) -> bool {
        let settled = self.settled.as_ref();
        settled.is_some_and(|settled| lock(settled).contains(number, 0))
    }

    /// True if a password may be sent to this server without TLS.
    pub(super) fn allows_plain_login(&self, endpoint: &Endpoint) -> bool {
        self.tls.insecure || is_loopback(endpoint)
    }

    /// Name of the protocol in the record.
    pub(crate) fn protocol(&self) -> &'static str {
        match self.mailboxes.first().map(|mailbox| &mailbox.url) {
            Some(MailboxUrl::Server { scheme, .. }) if scheme.is_imap() => "imap",
            Some(MailboxUrl::Server { .. }) => "pop3",
            Some(MailboxUrl::Maildir(_)) | None => "maildir",
        }
    }
}
