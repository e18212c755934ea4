//! The trait that an embedding program implements. Each session has its own handler. By default every command is
//! accepted, and nobody is let in (AUTH, XCLIENT). Only the answer to a message has no default, because it decides who
//! is responsible for the message.
use crate::tls::Handshake;
use mailrun_smtp::Path;
use mailrun_smtp::command::{Hello, Mail, Recipient};
use mailrun_smtp::login::Auth;
use mailrun_smtp::proxy::ProxyHeader;
use mailrun_smtp::reply::Reply;
use mailrun_smtp::reply_reason::ReplyReason;
use mailrun_smtp::sasl::Secret;
use mailrun_smtp::xclient::Xclient;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

/// The other end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
}

/// An answer to a command or a message.
pub enum Answer {
    /// The usual positive reply.
    Yes,
    /// This reply. 4xx and 5xx refuse; 421 ends the session.
    Reply(Reply),
    /// The answer that the future returns. Until then, the session reads nothing.
    Later(Pin<Box<dyn Future<Output = Answer>>>),
    /// The secret that [`Handler::look_up`] was asked for; `None` if the name is unknown. It is no answer to any other
    /// question: the connection is then closed.
    Secret(Option<Secret>),
    /// The connection is closed, after this last reply if there is one: simulates a failing server.
    HangUp(Option<Reply>),
    /// The connection is reset (RST), without a reply.
    Reset,
}

/// How much input a session reads next.
#[derive(Debug)]
pub enum ReadLimit {
    /// All that there is space for.
    All,
    /// At most that many bytes, which must be at least one.
    AtMost(usize),
    /// Nothing before that time: the peer eventually finds the connection full.
    NotBefore(Duration),
    /// Nothing more: the answer must be an [`Answer::HangUp`] or [`Answer::Reset`] that does not answer a command.
    /// Other answers count as [`Answer::HangUp`] without a reply.
    Close(Answer),
}

impl Answer {
    /// An answer that takes time, for example after a query to a disk, a directory or a policy service. The worker
    /// polls the future. It is no tokio runtime: work that needs one is spawned there, and its handle awaited here.
    /// `None` is the usual reply.
    pub fn later(answer: impl Future<Output = Option<Reply>> + 'static) -> Self {
        Self::eventually(async { answer.await.map_or(Self::Yes, Self::Reply) })
    }

    /// Like [`Answer::later`], but for an answer of any kind.
    pub fn eventually(answer: impl Future<Output = Self> + 'static) -> Self {
        Self::Later(Box::pin(answer))
    }

    /// A reply with that code and text.
    pub fn reply(code: u16, text: &str) -> Self {
        Self::Reply(Reply::new(code, text))
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Yes => f.write_str("Yes"),
            Self::Reply(reply) => write!(f, "Reply({})", reply.code()),
            Self::Later(_) => f.write_str("Later"),
            Self::Secret(_) => f.write_str("Secret"),
            Self::HangUp(_) => f.write_str("HangUp"),
            Self::Reset => f.write_str("Reset"),
        }
    }
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// QUIT.
    Quit,
    /// The peer closed or cut the connection.
    Lost,
    /// The peer was silent, or slow, for too long.
    Timeout,
    /// This side ended the session: 421, too many errors.
    HungUp,
    /// The server is stopping.
    ShuttingDown,
}

/// Results of AUTH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginOutcome {
    /// The client proved its identity.
    Succeeded,
    /// The client did not, or gave up.
    Failed,
}

/// Decisions about one session. `now` is [`crate::clock::now`] at the read that brought the command.
pub trait Handler: 'static {
    /// A client has connected: the greeting.
    fn connect(&mut self, now: Duration) -> Answer {
        let _ = now;
        Answer::Yes
    }

    /// EHLO or HELO.
    fn hello(&mut self, hello: Hello, name: &[u8]) -> Answer {
        let _ = (hello, name);
        Answer::Yes
    }

    /// MAIL: a transaction begins.
    fn mail(&mut self, mail: &Mail<'_>) -> Answer {
        let _ = mail;
        Answer::Yes
    }

    /// RCPT.
    fn recipient(&mut self, recipient: &Path<'_>) -> Answer {
        let _ = recipient;
        Answer::Yes
    }

    /// RCPT with the sender's requests for notifications (RFC 3461), for a handler that needs more than
    /// [`Handler::recipient`].
    fn recipient_with(&mut self, recipient: &Recipient<'_>) -> Answer {
        self.recipient(&recipient.path)
    }

    /// DATA, or the first BDAT.
    fn data(&mut self) -> Answer {
        Answer::Yes
    }

    /// Bytes of the message, dot-unstuffed, as they come.
    fn block(&mut self, block: &[u8]) {
        let _ = block;
    }

    /// The message is complete; `bytes` is its size. A positive answer takes responsibility (RFC 5321 §6.1), so there is no
    /// default: a handler that keeps no message must say so.
    fn message(&mut self, bytes: u64, now: Duration) -> Answer;

    /// LMTP: result of the message for the recipient of that number, counted over the accepted ones. Asked after
    /// [`Handler::message`] answered yes; any other answer to that is sent for each recipient.
    fn delivery(&mut self, recipient: u32, now: Duration) -> Answer {
        let _ = (recipient, now);
        Answer::Yes
    }

    /// STARTTLS, if it is offered.
    fn start_tls(&mut self) -> Answer {
        Answer::Yes
    }

    /// The connection began with a PROXY header, which names the real client.
    fn proxy_header(&mut self, header: &ProxyHeader) {
        let _ = header;
    }

    /// The connection should have begun with a PROXY header, and did not; the session is over.
    fn proxy_header_missing(&mut self, why: &io::Error) {
        let _ = why;
    }

    /// A TLS handshake is about to begin: [`Answer::HangUp`] and [`Answer::Reset`] refuse it.
    fn handshake(&mut self) -> Answer {
        Answer::Yes
    }

    /// TLS has begun.
    fn tls_established(&mut self, handshake: &Handshake) {
        let _ = handshake;
    }

    /// The TLS handshake failed; the session is over.
    fn tls_failed(&mut self, why: &io::Error) {
        let _ = why;
    }

    /// AUTH, if it is offered, by a mechanism that shows the secret: decides whether name and secret belong together.
    /// The default refuses everybody: 535.
    fn login(&mut self, auth: &Auth<'_>) -> Answer {
        let _ = auth;
        Answer::Reply(ReplyReason::NotAuthenticated.reply().clone())
    }

    /// AUTH by a mechanism that does not show the secret: returns the secret, or `None` if the name is unknown. The
    /// reply to SCRAM-SHA-256 reveals that; to hide it, return [made-up keys](mailrun_smtp::sasl::DecoySecrets). The default
    /// knows nobody: 535.
    fn secret(&mut self, auth: &Auth<'_>) -> Option<Secret> {
        let _ = auth;
        None
    }

    /// Like [`Handler::secret`], for a handler that needs time or rejects the login. The answer is [`Answer::Secret`]
    /// or any reply. [`Answer::Yes`] does not answer this question, so the client gets 454.
    fn look_up(&mut self, auth: &Auth<'_>) -> Answer {
        Answer::Secret(self.secret(auth))
    }

    /// The proof has come, where the secret was looked up before it (SCRAM-SHA-256): decides whether the proof may be
    /// checked. The other mechanisms are checked as soon as [`Handler::login`] or [`Handler::look_up`] has answered.
    fn proof(&mut self, auth: &Auth<'_>) -> Answer {
        let _ = auth;
        Answer::Yes
    }

    /// AUTH has ended.
    fn login_ended(&mut self, outcome: LoginOutcome) {
        let _ = outcome;
    }

    /// XCLIENT, if it is offered: names the real client, and may say that it has logged in. The default refuses: 550.
    fn xclient(&mut self, xclient: &Xclient<'_>) -> Answer {
        let _ = xclient;
        Answer::Reply(ReplyReason::XclientNotPermitted.reply().clone())
    }

    /// VRFY.
    fn verify(&mut self, who: &[u8]) -> Answer {
        let _ = who;
        Answer::Yes
    }

    /// RSET; if it is accepted, [`Handler::reset`] follows.
    fn rset(&mut self) -> Answer {
        Answer::Yes
    }

    /// NOOP.
    fn noop(&mut self) -> Answer {
        Answer::Yes
    }

    /// QUIT.
    fn quit(&mut self) -> Answer {
        Answer::Yes
    }

    /// Asked before each read: the amount to read. A server whose disk or next hop is slow slows its clients down here.
    fn read_limit(&mut self) -> ReadLimit {
        ReadLimit::All
    }

    /// The transaction ended without a message: RSET, EHLO, or the message broke a rule and was rejected.
    fn reset(&mut self, why: Option<ReplyReason>) {
        let _ = why;
    }

    /// The session has given the client up: another protocol, too many errors, too many commands without mail. Only
    /// [`Handler::disconnect`] is called after this.
    fn gave_up(&mut self, why: ReplyReason) {
        let _ = why;
    }

    /// The session is over.
    fn disconnect(&mut self, reason: CloseReason) {
        let _ = reason;
    }
}
