//! Watches a mailbox over IMAP or POP3. All I/O is left to a driver, which passes in the server's bytes and the time,
//! and gets new messages and the bytes to send. The crate uses no socket, no clock and no source of randomness.
//!
//! | file | what it does |
//! |---|---|
//! | `url` | the URLs of mailboxes: RFC 5092 for IMAP, RFC 2384 for POP3, and `maildir:DIR` |
//! | `session` | what both protocols share: options, events, errors and the choice of a login |
//! | `imap` | a session of IMAP4rev1 (RFC 3501) that waits with IDLE (RFC 2177) or NOOP |
//! | `pop` | a short session of POP3 (RFC 1939) that lists what is new and ends |
//!
//! Unless a session is told to delete messages of a run, it does not change the mailbox: it opens the mailbox with
//! EXAMINE and fetches with BODY.PEEK, so no flag is set. A [`Position`](imap::Position) or a [`Listing`](pop::Listing)
//! records which messages a session has reported. If the connection breaks, the next session continues from this
//! record.
//!
//! A hostile server cannot use up memory: a line, a response, a message and a list of messages have size limits. If the
//! server exceeds a limit, the session ends with a [`SessionError`].
#[cfg(any(test, feature = "checks"))]
#[doc(hidden)]
pub mod checks;
pub mod imap;
pub mod pop;
mod session;
#[cfg(test)]
mod situations;
pub mod url;

pub use session::{Announced, Event, Message, SessionError, Step, WatchOptions};
pub use url::{MailboxUrl, ParseMailboxError, Scheme};
