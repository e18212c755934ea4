//! Differences between the two sources: their bytes, their order and their texts.
use crate::stderr::FatalError;
use crate::timing::Timing;
use mailrun_net::{ClientTls, Outbox, Stream};
use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::sync::Semaphore;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageTask {
    /// Number of the message, counted from 1. In smtp-source, which does not number its messages
    /// this way, it is always 0.
    pub(crate) number: i64,
    /// Time at which the session took up the message, if it is needed.
    pub(crate) began: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DialogueState {
    Greeting,
    Hello,
    /// The client repeats its greeting with HELO because the server did not understand EHLO.
    OldHello,
    StartTls,
    SecureHello,
    Mail,
    Recipient,
    Data,
    EndOfData,
    Reset,
    Quit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Accepted,
    Rejected,
    Closing,
}

/// Extensions of a server that matter for MAIL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extensions {
    pub(crate) takes_8bit: bool,
    pub(crate) takes_utf8: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Diagnostic {
    Info(String),
    Warning(String),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct RenderContext {
    pub(crate) task: MessageTask,
    pub(crate) descriptor: i32,
    pub(crate) recipient_number: Option<u32>,
}

pub(crate) struct OpenConnection {
    pub(crate) stream: Stream,
    pub(crate) peer: Option<SocketAddr>,
}

pub(crate) struct Failure {
    pub(crate) task: MessageTask,
    pub(crate) state: DialogueState,
    pub(crate) cause: FailureCause,
    /// Addresses of both ends, if known.
    pub(crate) local: Option<SocketAddr>,
    pub(crate) peer: Option<SocketAddr>,
}

#[derive(Debug)]
pub(crate) enum FailureCause {
    /// The server sent an unexpected reply, or a command cannot be sent. The text explains it.
    Refused(String),
    EndlessReply,
    End,
    /// Name and error of a failed system call.
    Io(&'static str, io::Error),
    Timeout,
}

pub(crate) trait Dialect: Sized + 'static {
    fn shared(&self) -> &SharedState;

    fn reason(error: &io::Error) -> String;

    async fn first_message(&self) -> Option<MessageTask>;

    /// Waits as long as the options demand. Then takes up the next message for a session, if one is
    /// left.
    async fn next_message(&self) -> Option<MessageTask>;

    fn take_message(&self) -> Option<MessageTask>;

    /// True if sessions wait between messages. If they do not, the next message begins in the same
    /// write.
    fn waits_between_messages(&self) -> bool;

    /// True if the session keeps its connection for another message.
    fn keeps_connection(&self) -> bool;

    fn recipients_each(&self) -> i64;

    /// True if the server replies to the end of data once for each accepted recipient (RFC 2033
    /// §4.2).
    fn speaks_lmtp(&self) -> bool {
        false
    }

    /// Number of attempts to connect. [`Dialect::connect`] counts it down over the whole life of a
    /// session.
    fn connect_attempts(&self) -> u32 {
        1
    }

    /// Connects for a message. Returns `None` to give the message up, and an error if the run must
    /// end.
    async fn connect(
        &self,
        session: u64,
        task: MessageTask,
        attempts: &mut u32,
    ) -> Result<Option<OpenConnection>, FatalError>;

    fn connection_closed(&self, _task: MessageTask) {}

    /// Decides what a failure means. Returns an error if the run must end. Otherwise the session
    /// goes on with its next message.
    fn handle_failure(&self, failure: Failure) -> Result<(), FatalError>;

    /// Writes the client's greeting for this state, without its line end. Returns false if there is
    /// none.
    fn write_hello(&self, state: DialogueState, out: &mut Vec<u8>) -> bool;

    fn write_sender(&self, extensions: Extensions, out: &mut Vec<u8>) -> Result<(), String>;

    /// Writes RCPT without its line end, after `sent` other recipients of the message. Returns the
    /// number in the address.
    ///
    /// # Errors
    ///
    /// If the recipient cannot be sent.
    fn write_recipient(&self, task: MessageTask, sent: i64, out: &mut Vec<u8>) -> Result<Option<u32>, String>;

    fn write_message(&self, place: RenderContext, out: &mut Outbox);

    /// Called for each command, and with `.` for a message.
    fn command_written(&self, _line: &[u8], _diagnostics: &mut Vec<Diagnostic>) {}

    /// Called when messages have been written, before their replies arrive.
    fn messages_sent(&self, _count: u32) {}

    /// True if `line` ends the reply that begins with `first`. Both include their line ends.
    fn is_last_line(first: &[u8], line: &[u8]) -> bool;

    /// Judges a reply. Returns the text of the failure if the connection must end.
    fn judge(&self, state: DialogueState, reply: &[u8], diagnostics: &mut Vec<Diagnostic>) -> Result<Verdict, String>;

    fn extensions(&self, _reply: &[u8]) -> Extensions {
        Extensions::default()
    }

    fn print(&self, _diagnostic: &Diagnostic) {}
}

/// Maximum number of bytes per read. Replies are short.
const READ_BYTES: usize = 16 * 1024;

#[derive(Debug)]
pub(crate) struct SharedState {
    /// Lets one session connect at a time, in the order in which they asked, as in the original.
    /// Many connections at once would overflow the server's listen queue. The kernel's back-off,
    /// which takes seconds, would then spoil the measurement.
    pub(crate) connect_semaphore: Semaphore,
    /// Read buffer. A session uses it only during its turn.
    pub(crate) input: RefCell<Vec<u8>>,
    /// Write buffer. A session uses it only during its turn.
    pub(crate) outbox: RefCell<Outbox>,
    pub(crate) timing: Timing,
    pub(crate) timeout: Duration,
    pub(crate) tls: Option<ClientTls>,
}

impl SharedState {
    /// Creates the state and starts the clock of the run.
    pub(crate) fn new(timeout: Duration, tls: Option<ClientTls>) -> Self {
        Self {
            connect_semaphore: Semaphore::new(1),
            input: RefCell::new(vec![0; READ_BYTES]),
            outbox: RefCell::default(),
            timing: Timing::begin(),
            timeout,
            tls,
        }
    }
}
