//! The differences between smtp-source and go-smtp-source: the bytes that they send, the order of their steps, and
//! their texts.
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
    /// Number of the message, counted from 1. In smtp-source, which does not number its messages, it is always 0.
    pub(crate) number: i64,
    /// Time at which a session took up the message, or `None` if neither traces nor the report need the time.
    pub(crate) began: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DialogueState {
    Greeting,
    Hello,
    /// The server did not understand EHLO, so the client has greeted again with HELO.
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

/// The server's SMTP extensions that affect which parameters the client adds to MAIL.
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
    pub(crate) local: Option<SocketAddr>,
    pub(crate) peer: Option<SocketAddr>,
}

#[derive(Debug)]
pub(crate) enum FailureCause {
    /// The server sent an unexpected reply, or a command was not sent because an address in it contained a line break.
    /// The text describes the error.
    Refused(String),
    EndlessReply,
    End,
    /// The name of the system call that failed, and its error.
    Io(&'static str, io::Error),
    Timeout,
}

pub(crate) trait Dialect: Sized + 'static {
    fn shared(&self) -> &SharedState;

    fn reason(error: &io::Error) -> String;

    async fn first_message(&self) -> Option<MessageTask>;

    /// Takes up the next message for a session, after the pause that the options demand. Returns `None` if no message
    /// is left.
    async fn next_message(&self) -> Option<MessageTask>;

    fn take_message(&self) -> Option<MessageTask>;

    /// Returns true if sessions pause between messages. If they do not, the session adds the first command of the next
    /// message to the output that it is about to write, which saves a system call.
    fn waits_between_messages(&self) -> bool;

    fn keeps_connection(&self) -> bool;

    fn recipients_each(&self) -> i64;

    /// Returns true if the server replies to the end of data once for each accepted recipient, as in LMTP (RFC 2033
    /// §4.2).
    fn speaks_lmtp(&self) -> bool {
        false
    }

    /// Returns the number of failed attempts to connect after which a session ends the run. [`Dialect::connect`] counts
    /// these attempts.
    fn connect_attempts(&self) -> u32 {
        1
    }

    /// Opens a connection for a message. Returns `None` to give up the message, and an error if the whole run must end.
    async fn connect(
        &self,
        session: u64,
        task: MessageTask,
        attempts: &mut u32,
    ) -> Result<Option<OpenConnection>, FatalError>;

    fn connection_closed(&self, _task: MessageTask) {}

    /// Called when a session's connection has failed. Returns an error if the whole run must end. Otherwise the session
    /// continues with its next message.
    fn handle_failure(&self, failure: Failure) -> Result<(), FatalError>;

    /// Writes the client's greeting, such as EHLO, without its line end. Returns false if the dialect sends no greeting
    /// in this state of the dialogue.
    fn write_hello(&self, state: DialogueState, out: &mut Vec<u8>) -> bool;

    fn write_sender(&self, extensions: Extensions, out: &mut Vec<u8>) -> Result<(), String>;

    /// Writes RCPT without its line end. `sent` is the number of RCPT commands that the client has already written for
    /// this message. Returns the number in the recipient's address, if it has one.
    ///
    /// # Errors
    ///
    /// Fails if the recipient's address contains a line break, which would end the command too early.
    fn write_recipient(&self, task: MessageTask, sent: i64, out: &mut Vec<u8>) -> Result<Option<u32>, String>;

    fn write_message(&self, place: RenderContext, out: &mut Outbox);

    /// Called with each command that was written, without its line end. The end of a message counts as the command `.`.
    fn command_written(&self, _line: &[u8], _diagnostics: &mut Vec<Diagnostic>) {}

    /// Called when `count` messages have been written. Their replies have not arrived yet.
    fn messages_sent(&self, _count: u32) {}

    /// Returns true if `line` ends the reply whose first line is `first`. Both contain their line ends.
    fn is_last_line(first: &[u8], line: &[u8]) -> bool;

    /// Decides how the dialogue continues after a reply. Returns the text of an error if the connection must end.
    fn judge(&self, state: DialogueState, reply: &[u8], diagnostics: &mut Vec<Diagnostic>) -> Result<Verdict, String>;

    fn extensions(&self, _reply: &[u8]) -> Extensions {
        Extensions::default()
    }

    fn print(&self, _diagnostic: &Diagnostic) {}
}

/// Maximum number of bytes per read. More are not needed, because replies are short.
const READ_BYTES: usize = 16 * 1024;

#[derive(Debug)]
pub(crate) struct SharedState {
    /// Lets only one session connect at a time, in the order in which they ask, as the imitated programs do. Many
    /// connections at once would overflow the server's listen queue. The kernel would then wait for seconds before it
    /// tries again, which would spoil the measurement.
    pub(crate) connect_semaphore: Semaphore,
    /// Read buffer that all sessions share. Before a session waits, it must copy the bytes that it still needs.
    pub(crate) input: RefCell<Vec<u8>>,
    /// Write buffer that all sessions share. Before a session waits, it must empty the buffer.
    pub(crate) outbox: RefCell<Outbox>,
    pub(crate) timing: Timing,
    pub(crate) timeout: Duration,
    pub(crate) tls: Option<ClientTls>,
}

impl SharedState {
    /// Creates the state, and begins to measure the duration of the run.
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
