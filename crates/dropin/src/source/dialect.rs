//! What the two sources do differently: their bytes, their order and their words.
use super::shared_state::SharedState;
use crate::fatal_error::FatalError;
use mailrun_net::{Outbox, Stream};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageTask {
    /// Number of the message, from 1. smtp-source does not count them in this way: its number is always 0.
    pub(crate) number: i64,
    /// Time at which it was taken up, if that is needed.
    pub(crate) began: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DialogueState {
    Greeting,
    Hello,
    /// The client repeats its greeting because the server did not understand the first.
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

/// What a reply means for the dialogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Accepted,
    Rejected,
    Closing,
}

/// The extensions of a server that MAIL makes use of.
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
    /// Addresses of both ends, as far as they are known.
    pub(crate) local: Option<SocketAddr>,
    pub(crate) peer: Option<SocketAddr>,
}

#[derive(Debug)]
pub(crate) enum FailureCause {
    /// An unexpected reply, or a command that cannot be sent: the text.
    Refused(String),
    /// A reply above the limit.
    EndlessReply,
    End,
    /// A failed system call, and its name.
    Io(&'static str, io::Error),
    Timeout,
}

pub(crate) trait Dialect: Sized + 'static {
    fn shared(&self) -> &SharedState;

    fn reason(error: &io::Error) -> String;

    async fn first_message(&self) -> Option<MessageTask>;

    /// Waits as long as the options demand, then takes up the next message for a session, if one is
    /// left.
    async fn next_message(&self) -> Option<MessageTask>;

    fn take_message(&self) -> Option<MessageTask>;

    /// Reports whether sessions wait between messages. If not, the next message begins in the same write.
    fn waits_between_messages(&self) -> bool;

    /// Reports whether the session keeps its connection for another message.
    fn keeps_connection(&self) -> bool;

    fn recipients_each(&self) -> i64;

    /// Reports whether the server replies to the end of data for each accepted recipient (RFC 2033 §4.2).
    fn speaks_lmtp(&self) -> bool {
        false
    }

    /// Number of attempts to connect, which [`Dialect::connect`] counts down over the whole life of a session.
    fn connect_attempts(&self) -> u32 {
        1
    }

    /// Connects for a message. Returns `None` to give the message up.
    ///
    /// # Errors
    ///
    /// If the run must end.
    async fn connect(
        &self,
        session: u64,
        task: MessageTask,
        attempts: &mut u32,
    ) -> Result<Option<OpenConnection>, FatalError>;

    fn connection_closed(&self, _task: MessageTask) {}

    /// Decides what a failure means.
    ///
    /// # Errors
    /// If the run must end. Otherwise the session goes on with its next message.
    fn handle_failure(&self, failure: Failure) -> Result<(), FatalError>;

    /// Writes the client's greeting for that state, without its line end; returns false if there is none.
    fn write_hello(&self, state: DialogueState, out: &mut Vec<u8>) -> bool;

    fn write_sender(&self, extensions: Extensions, out: &mut Vec<u8>) -> Result<(), String>;

    /// Writes RCPT without its line end, after `sent` others of the same message; returns the number in its address.
    ///
    /// # Errors
    /// If the recipient cannot be sent.
    fn write_recipient(&self, task: MessageTask, sent: i64, out: &mut Vec<u8>) -> Result<Option<u32>, String>;

    fn write_message(&self, place: RenderContext, out: &mut Outbox);

    /// Called with each command, and with `.` for a message.
    fn command_written(&self, _line: &[u8], _diagnostics: &mut Vec<Diagnostic>) {}

    /// Called when messages have been written, before their replies.
    fn messages_sent(&self, _count: u32) {}

    /// Reports whether a line ends the reply that begins with the line `first`. Both have their line ends.
    fn is_last_line(first: &[u8], line: &[u8]) -> bool;

    /// Judges a reply.
    ///
    /// # Errors
    /// If the connection must end: the text of the failure.
    fn judge(&self, state: DialogueState, reply: &[u8], diagnostics: &mut Vec<Diagnostic>) -> Result<Verdict, String>;

    fn extensions(&self, _reply: &[u8]) -> Extensions {
        Extensions::default()
    }

    fn print(&self, _diagnostic: &Diagnostic) {}
}
