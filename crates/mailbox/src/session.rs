//! The parts that IMAP and POP3 sessions share: options, events, errors, and the choice of a login mechanism.
use mailrun_sasl::client::ExchangeError;
use mailrun_sasl::{Credentials, Mechanism, Mechanisms, Nonce};
use std::time::Duration;

/// Maximum length in bytes of a response without the content of a message. The longest responses in practice list a
/// server's capabilities or flags.
pub(crate) const MAX_RESPONSE_BYTES: usize = 64 << 10;
const MAX_TEXT_CHARS: usize = 200;
/// Mechanisms that do not reveal the password to an eavesdropper.
const HIDING_MECHANISMS: Mechanisms = Mechanisms::NONE.with(Mechanism::ScramSha256).with(Mechanism::CramMd5);

/// Options for watching a mailbox, which all sessions of a program share.
#[derive(Clone, Debug)]
pub struct WatchOptions {
    /// Set if the session must start TLS with STARTTLS or STLS before it logs in.
    pub starts_tls: bool,
    /// Set if the password may be sent without TLS, for example because the server is on this host.
    pub allows_plain_login: bool,
    /// Set if whole messages are fetched. Otherwise a session fetches only the header field that carries the trace, or
    /// the whole header over POP3, which cannot fetch a single field.
    pub whole: bool,
    /// Set if the first session also reports the messages that are already there, instead of skipping them.
    pub existing: bool,
    /// Interval at which a session asks for new messages instead of using IDLE, or `None` to use IDLE if the server
    /// offers it.
    pub poll: Option<Duration>,
    /// Interval at which a session asks a server without IDLE for new messages, if `poll` is not set.
    pub default_poll: Duration,
    /// Name of the header field that carries the trace, by which a run recognises its messages.
    pub trace_field: &'static str,
    /// Maximum size in bytes of a message that is fetched whole, beyond which the session ends with an error.
    pub message_bytes: usize,
    /// Maximum number of messages that a session remembers, beyond which it ends with an error.
    pub messages: usize,
    /// Time limit for each reply of the server, after which the session ends with an error.
    pub reply_timeout: Duration,
    /// Time after which a deletion that the server has refused is tried again.
    pub deletion_retry: Duration,
    /// Time without news after which a session interrupts IDLE, and asks for messages that the server has not
    /// announced. This time must be shorter than a run's wait for missing mail, so that unannounced messages are found
    /// in time. RFC 2177 wants IDLE to be renewed within 29 minutes.
    pub idle_check: Duration,
}

impl WatchOptions {
    /// Returns the default options of a session that looks for the header field `trace_field`. They permit a login that
    /// reveals the password, so the connection must be protected against eavesdropping.
    pub fn new(trace_field: &'static str) -> Self {
        Self {
            starts_tls: false,
            allows_plain_login: true,
            whole: false,
            existing: false,
            poll: None,
            default_poll: Duration::from_secs(1),
            trace_field,
            message_bytes: 64 << 20,
            messages: 1 << 20,
            reply_timeout: Duration::from_secs(60),
            deletion_retry: Duration::from_secs(1),
            idle_check: Duration::from_secs(5),
        }
    }

    /// Maximum number of bytes that a session reads before a response is complete.
    pub(crate) fn response_bytes(&self) -> usize {
        if self.whole { self.message_bytes.saturating_add(MAX_RESPONSE_BYTES) } else { MAX_RESPONSE_BYTES }
    }
}

/// Something that a session reports to its driver, for example a new message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The driver must start TLS and call `tls_started`. Unprotected input from before TLS is discarded.
    StartTls,
    /// The mailbox is open, and messages that arrive from now on are reported.
    Watching {
        /// Set if the server announces new messages by itself. Otherwise the session asks for them at an interval.
        idle: bool,
    },
    /// The session has fetched a new message: the whole message or, depending on the options, only a part of it.
    Message(Message),
    /// The server has deleted this many of the messages that the driver wanted to delete.
    Deleted(u64),
    /// The server refused to delete messages, for the reason in the error. The session (IMAP) or the next session
    /// (POP3) will try again.
    NotDeleted(SessionError),
    /// POP3: the last session could not fetch a message that is still in the mailbox, for the reason in the error. This
    /// session tries again. In IMAP, a message that cannot be fetched ends the session with an error.
    NotFetched(SessionError),
    /// POP3: the session has ended, and the driver should close the connection.
    Done,
}

/// Time at which the server announced a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announced {
    /// The server announced the message at this time, by itself or in answer to a command.
    At(Duration),
    /// The time is unknown, because too many announcements came at once.
    Unknown,
}

/// A message that a session reports as new in the mailbox.
#[derive(Clone, PartialEq, Eq)]
pub struct Message {
    /// UID (IMAP), with which the driver can ask for the deletion of the message, or message number (POP3).
    pub uid: u32,
    /// Identity of the message in its mailbox, which is the same in each session: the UID (IMAP) or the unique
    /// identifier (POP3).
    pub id: Vec<u8>,
    /// Time at which the server announced the message.
    pub announced: Announced,
    /// Size of the whole message in bytes, even if only a part of it was fetched.
    pub bytes: u64,
    /// The whole message if it was fetched whole, and otherwise the trace field (IMAP) or the header (POP3).
    pub content: Vec<u8>,
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let content = String::from_utf8_lossy(&self.content);
        write!(f, "Message({}, {:?}, {} bytes, {content:?})", self.uid, self.announced, self.bytes)
    }
}

/// What a session is doing, for messages to the user and for statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The session waits for the first line of the server.
    Greeting,
    /// The session asks for the server's capabilities.
    Capability,
    /// The session asks for TLS, or waits until the driver has started it.
    StartTls,
    /// The session logs in, for example with AUTHENTICATE (IMAP) or AUTH (POP3).
    Login,
    /// The session opens the mailbox (IMAP) or lists it (POP3).
    Open,
    /// The session waits for new messages, with IDLE or NOOP (IMAP).
    Watch,
    /// The session fetches new messages, with UID FETCH (IMAP), TOP or RETR (POP3).
    Fetch,
    /// The session deletes messages because the driver has asked for it.
    Delete,
    /// The POP3 session ends with QUIT, at which the server deletes the marked messages.
    Quit,
}

impl Step {
    /// Returns the name of the step, as messages to the user show it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Greeting => "greeting",
            Self::Capability => "capabilities",
            Self::StartTls => "STARTTLS",
            Self::Login => "login",
            Self::Open => "opening the mailbox",
            Self::Watch => "waiting for mail",
            Self::Fetch => "fetching",
            Self::Delete => "deleting",
            Self::Quit => "quitting",
        }
    }
}

/// Reason why a session cannot continue. The driver must then close the connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// The server ended the session, for example with BYE.
    #[error("the server closed the session ({}): {text}", step.name())]
    Closed {
        /// What the session was doing when the server closed it.
        step: Step,
        /// The server's explanation, without control characters and cut to 200 characters.
        text: String,
    },
    /// The server refused a command, for example the login because of a wrong password.
    #[error("the server refused ({}): {text}", step.name())]
    Refused {
        /// What the refused command was for, for example the login.
        step: Step,
        /// The server's explanation, without control characters and cut to 200 characters.
        text: String,
    },
    /// The server does not speak the protocol, or exceeds a limit.
    #[error("the server broke the protocol ({}): {text}", step.name())]
    Violation {
        /// What the session was doing when the server made the mistake.
        step: Step,
        /// Description of the mistake, for the user.
        text: String,
    },
    /// The server did not answer within the time limit for a reply.
    #[error("no reply within {after:?} ({})", step.name())]
    Timeout {
        /// What the session was doing when the time limit passed.
        step: Step,
        /// Time limit that has passed ([`WatchOptions::reply_timeout`]).
        after: Duration,
    },
    /// No login is possible, for example because every mechanism would reveal the password without TLS.
    #[error("cannot log in: {0}")]
    Login(&'static str),
    /// The mailbox was renumbered, so it is unknown which of its messages are new.
    #[error("UIDVALIDITY changed from {before} to {now}: messages that came meanwhile cannot be told from others")]
    Renumbered {
        /// UIDVALIDITY of the mailbox in the last session.
        before: u32,
        /// UIDVALIDITY of the mailbox in this session.
        now: u32,
    },
}

impl SessionError {
    /// Returns what the session was doing when it failed.
    pub fn step(&self) -> Step {
        match self {
            Self::Closed { step, .. }
            | Self::Refused { step, .. }
            | Self::Violation { step, .. }
            | Self::Timeout { step, .. } => *step,
            Self::Login(_) => Step::Login,
            Self::Renumbered { .. } => Step::Open,
        }
    }
}

/// Returns a server's text without control characters and of limited length.
pub(crate) fn printable(text: &str) -> String {
    text.trim().chars().filter(|letter| !letter.is_control()).take(MAX_TEXT_CHARS).collect()
}

/// Chooses the strongest mechanism for the login. Mechanisms that reveal the password are permitted only if
/// `may_reveal` is set. Returns `None` if the server offers no mechanism that the credentials permit.
///
/// # Errors
/// Fails if every mechanism that both sides permit would reveal the password, and `may_reveal` is not set.
pub(crate) fn mechanism(
    offered: Mechanisms,
    credentials: &Credentials,
    may_reveal: bool,
) -> Result<Option<Mechanism>, SessionError> {
    let wanted = offered.and(credentials.mechanisms);
    let usable = if may_reveal { wanted } else { wanted.and(HIDING_MECHANISMS) };
    match usable.strongest() {
        None if !wanted.is_empty() => Err(PLAIN_LOGIN),
        chosen => Ok(chosen),
    }
}

pub(crate) const PLAIN_LOGIN: SessionError =
    SessionError::Login("the server offers only mechanisms that reveal the password, and the connection has no TLS");
pub(crate) const NO_MECHANISM: SessionError = SessionError::Login("the server offers no mechanism that can be used");

pub(crate) fn exchange_error(error: ExchangeError) -> SessionError {
    match error {
        ExchangeError::Credentials => {
            SessionError::Login("the user or the password has characters that the mechanism forbids")
        }
        ExchangeError::Challenge | ExchangeError::ServerUnverified => {
            SessionError::Violation { step: Step::Login, text: error.to_string() }
        }
    }
}

/// Credentials and nonce of a session's login. The driver provides the nonce, because this crate has no random source.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) credentials: Credentials,
    pub(crate) nonce: Nonce,
}
