use mailrun_mailbox::MailboxUrl;
use mailrun_measurement::{Ledger, RunId};
use mailrun_net::Endpoint;
use mailrun_process::local_address::is_loopback;
use mailrun_smtp::sasl::Credentials;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct MailboxOptions {
    /// Mailboxes to watch, of which there must be at least one.
    pub mailboxes: Vec<WatchedMailbox>,
    /// Interval at which to ask for new mail. If set, even servers that report it by themselves (IDLE) are asked.
    pub poll: Option<Duration>,
    /// True if the sink also counts messages that were in a mailbox before it was first opened.
    pub existing: bool,
    /// True if messages are fetched whole, so that their bodies can be checked.
    pub whole: bool,
    /// Run whose messages are deleted after they were counted, or `None` to keep all messages.
    pub deletes: Option<RunId>,
    /// Messages that a probe has already found, so that they do not count again. A probe deletes a message only when it
    /// has recorded the arrival and then finds the message once more. If the probe is killed before that, its next
    /// process still finds the message.
    pub probe_mail: Option<Arc<Mutex<ProbeMail>>>,
    pub tls: MailboxTls,
}

/// Messages of a probe's run that were found in its mailboxes. The probe keeps this list when it opens the mailboxes
/// again, so that each message counts once.
#[derive(Debug, Default)]
pub struct ProbeMail {
    /// Numbers of the messages whose arrival the probe has recorded.
    recorded: Ledger,
    /// Messages that were found. Each key is the mailbox and the identity of the message in this mailbox, for example
    /// its UID. A second copy of a message has its own identity.
    found: HashMap<(String, Vec<u8>), FoundMessage>,
}

#[derive(Debug)]
struct FoundMessage {
    number: u64,
    is_deleted: bool,
    /// True if the message was found since the last call of [`ProbeMail::forget_deleted`].
    is_there: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    New,
    /// The message was found before, and its arrival is not recorded yet.
    Again,
    /// The message was found before, and its arrival is recorded.
    Recorded,
}

impl ProbeMail {
    /// Remembers that the probe has recorded the arrival of the message with this number.
    pub(crate) fn record(&mut self, number: u64) {
        self.recorded.mark(number, 0);
    }

    /// Records that the message was found, and tells whether it was known. If `deletes` is set, the caller deletes the
    /// message when the result is [`Finding::Recorded`].
    pub(super) fn find(&mut self, mailbox: &str, id: &[u8], number: u64, deletes: bool) -> Finding {
        let is_recorded = self.recorded.contains(number, 0);
        match self.found.entry((mailbox.to_owned(), id.to_owned())) {
            // Compare the message number as well, because a server may reuse the `id` after the mailbox was deleted and
            // created again. If the number differs, the message is new.
            Entry::Occupied(mut known) if known.get().number == number => {
                let known = known.get_mut();
                (known.is_there, known.is_deleted) = (true, deletes && is_recorded);
                if is_recorded { Finding::Recorded } else { Finding::Again }
            }
            entry => {
                entry.insert_entry(FoundMessage { number, is_deleted: false, is_there: true });
                Finding::New
            }
        }
    }

    /// Forgets deleted messages that the last listing of these mailboxes did not contain. The caller must list the
    /// mailboxes before each call. A message that is still listed stays known, so that it does not count as a copy.
    pub(crate) fn forget_deleted(&mut self, mailboxes: &[WatchedMailbox]) {
        let names: Vec<String> = mailboxes.iter().map(|mailbox| mailbox.url.to_string()).collect();
        self.found.retain(|(mailbox, _), found| {
            !names.contains(mailbox) || std::mem::take(&mut found.is_there) || !found.is_deleted
        });
    }
}

#[derive(Clone, Debug)]
pub struct WatchedMailbox {
    pub url: MailboxUrl,
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
    pub(super) fn allows_plain_login(&self, endpoint: &Endpoint) -> bool {
        self.tls.insecure || is_loopback(endpoint)
    }

    /// Returns the protocol of the first mailbox, for the sink's record.
    pub(crate) fn protocol(&self) -> &'static str {
        match self.mailboxes.first().map(|mailbox| &mailbox.url) {
            Some(MailboxUrl::Server { scheme, .. }) if scheme.is_imap() => "imap",
            Some(MailboxUrl::Server { .. }) => "pop3",
            Some(MailboxUrl::Maildir(_)) | None => "maildir",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_in_a_mailbox_is_new_once_and_its_copies_are_new_too() {
        let mailbox = WatchedMailbox {
            url: "maildir:/a".parse().unwrap(),
            address: String::new(),
            credentials: None,
            server: None,
        };
        let name = mailbox.url.to_string();
        let mailboxes = [mailbox];
        let mut mail = ProbeMail::default();
        let find = |mail: &mut ProbeMail, id: &str, number| mail.find(&name, id.as_bytes(), number, true);
        assert_eq!(find(&mut mail, "x", 5), Finding::New);
        assert_eq!(find(&mut mail, "x", 5), Finding::Again, "its arrival is not recorded yet");
        mail.record(5);
        assert_eq!(find(&mut mail, "copy", 5), Finding::New);
        assert_eq!(find(&mut mail, "x", 5), Finding::Recorded);
        assert_eq!(find(&mut mail, "x", 6), Finding::New, "the mailbox was made anew");
        assert_eq!(mail.find("elsewhere", b"x", 5, true), Finding::New);
        mail.record(6);
        assert_eq!(find(&mut mail, "x", 6), Finding::Recorded, "it should be deleted now");
        mail.forget_deleted(&mailboxes);
        assert_eq!(find(&mut mail, "x", 6), Finding::Recorded, "its deletion has failed");
        mail.forget_deleted(&mailboxes);
        mail.forget_deleted(&mailboxes);
        let known =
            mail.found.keys().map(|(_, id)| String::from_utf8_lossy(id)).collect::<std::collections::BTreeSet<_>>();
        assert_eq!(known.len(), 2, "only a message that was deleted is forgotten: {known:?}");
        assert_eq!((find(&mut mail, "x", 6), find(&mut mail, "copy", 5)), (Finding::New, Finding::Recorded));
    }
}
