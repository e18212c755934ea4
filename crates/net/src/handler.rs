//! [`Handler`], the trait with which an embedding program answers the commands of clients. Each session has its own
//! handler. By default, every command is accepted and nobody can log in (AUTH, XCLIENT). Only the answer to a message
//! has no default, because it decides who is responsible for the message.
use crate::tls::Handshake;
use mailrun_smtp::Path;
use mailrun_smtp::command::{Hello, Mail, Recipient};
use mailrun_smtp::login::Auth;
use mailrun_smtp::proxy::ProxyHeader;
use mailrun_smtp::reply::Reply;
use mailrun_smtp::reply_reason::ReplyReason;
use mailrun_smtp::sasl::Secret;
use mailrun_smtp::xclient::Xclient;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::time::Duration;
use std::{fmt, io};

/// The client of a session, as the server knows it when the session begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Address of the client's end of the connection. It is `0.0.0.0:0` for a unix-domain socket.
    pub address: SocketAddr,
}

/// A handler's answer to a command or a message.
pub enum Answer {
    /// Accept with the usual positive reply, for example 250 to a message.
    Yes,
    /// Send this reply. 4xx and 5xx refuse, and 421 ends the session.
    Reply(Reply),
    /// Use the answer that this future returns. The session reads nothing from the client until the future is ready.
    Later(Pin<Box<dyn Future<Output = Answer>>>),
    /// The answer of [`Handler::look_up`]: the user's secret, or `None` if the user name is unknown. If another method
    /// of the handler returns this, the server closes the connection.
    Secret(Option<Secret>),
    /// Close the connection after this last reply, or without a reply, to simulate a failing server.
    HangUp(Option<Reply>),
    /// Reset the connection (RST) without a reply.
    Reset,
}

/// Amount of input that a session reads next. With a small amount or a delay, a handler slows its client down.
#[derive(Debug)]
pub enum ReadLimit {
    /// Read as much as the buffer has room for.
    All,
    /// Read at most this number of bytes. Zero counts as one.
    AtMost(usize),
    /// Read nothing before this time. This slows the client down, because the buffers of the connection fill up.
    NotBefore(Duration),
    /// Read nothing more, and end the session with this answer: [`Answer::HangUp`], or [`Answer::Reset`] to reset the
    /// connection. Any other answer counts as [`Answer::HangUp`] without a reply.
    Close(Answer),
}

impl Answer {
    /// Makes an [`Answer::Later`], for a decision that needs a disk, a directory or a policy service. The future
    /// returns `None` for the usual reply. The worker polls the future outside of any tokio runtime. Work that needs
    /// tokio must therefore be spawned on a tokio runtime, and the future can await the handle of the spawned task.
    pub fn later(answer: impl Future<Output = Option<Reply>> + 'static) -> Self {
        Self::eventually(async { answer.await.map_or(Self::Yes, Self::Reply) })
    }

    /// Makes an [`Answer::Later`] from a future that returns any answer, such as [`Answer::Reset`], and not only a
    /// [`Reply`].
    pub fn eventually(answer: impl Future<Output = Self> + 'static) -> Self {
        Self::Later(Box::pin(answer))
    }

    /// Makes an answer from a code and a text, for example 452 and `4.3.1 Nothing can be stored here`.
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

/// Reason why a server session ended, for [`Handler::disconnect`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The client sent QUIT, which the handler accepted.
    Quit,
    /// The client closed the connection without QUIT, or the connection broke.
    Lost,
    /// The client was silent for too long, sent no message for too long, or sent a message too slowly.
    Timeout,
    /// This side ended the session, for example with 421 or after too many errors.
    HungUp,
    /// The server is stopping, so it has ended all sessions.
    ShuttingDown,
}

/// Result of an AUTH exchange, which a handler may count or log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginOutcome {
    /// The client has proved its identity.
    Succeeded,
    /// The client did not prove its identity, or cancelled AUTH.
    Failed,
}

/// Accepts or refuses the commands and messages of one session. The argument `now` is the time
/// ([`crate::clock::now`]) of the read that brought the command.
pub trait Handler: 'static {
    /// Accepts or refuses a new connection. The server sends the answer as its greeting.
    fn connect(&mut self, now: Duration) -> Answer {
        let _ = now;
        Answer::Yes
    }

    /// Accepts or refuses EHLO, HELO or LHLO, in which the client calls itself `name`.
    fn hello(&mut self, hello: Hello, name: &[u8]) -> Answer {
        let _ = (hello, name);
        Answer::Yes
    }

    /// Accepts or refuses MAIL, which names the sender and begins a transaction.
    fn mail(&mut self, mail: &Mail<'_>) -> Answer {
        let _ = mail;
        Answer::Yes
    }

    /// Accepts or refuses RCPT, which names a recipient of the message.
    fn recipient(&mut self, recipient: &Path<'_>) -> Answer {
        let _ = recipient;
        Answer::Yes
    }

    /// Accepts or refuses the recipient of an RCPT. A handler implements this method instead of [`Handler::recipient`]
    /// if it needs the sender's requests for notifications (RFC 3461).
    fn recipient_with(&mut self, recipient: &Recipient<'_>) -> Answer {
        self.recipient(&recipient.path)
    }

    /// Accepts or refuses DATA or the first BDAT, with which the content of the message begins.
    fn data(&mut self) -> Answer {
        Answer::Yes
    }

    /// Receives bytes of the message in the order of their arrival, without dot-stuffing.
    fn block(&mut self, block: &[u8]) {
        let _ = block;
    }

    /// Accepts or refuses a complete message, whose content had `bytes` bytes. A positive answer takes responsibility
    /// for the message (RFC 5321 §6.1). For this reason there is no default: a handler that keeps no messages must say
    /// so.
    fn message(&mut self, bytes: u64, now: Duration) -> Answer;

    /// Returns the result of the message for one recipient in LMTP. `recipient` counts the accepted recipients from 0.
    /// Called only if [`Handler::message`] answered [`Answer::Yes`]. After any other answer, the session sends the same
    /// reply for each recipient.
    fn delivery(&mut self, recipient: u32, now: Duration) -> Answer {
        let _ = (recipient, now);
        Answer::Yes
    }

    /// Accepts or refuses STARTTLS. Called only if the server offers STARTTLS.
    fn start_tls(&mut self) -> Answer {
        Answer::Yes
    }

    /// Receives the PROXY header of the connection, which names the real client.
    fn proxy_header(&mut self, header: &ProxyHeader) {
        let _ = header;
    }

    /// Reports that a connection from the proxy did not begin with a valid PROXY header. This ends the session.
    fn proxy_header_missing(&mut self, error: &io::Error) {
        let _ = error;
    }

    /// Accepts or refuses a TLS handshake before it begins. [`Answer::HangUp`] and [`Answer::Reset`] refuse the
    /// handshake, and any other answer lets it begin.
    fn handshake(&mut self) -> Answer {
        Answer::Yes
    }

    /// Reports that the TLS handshake is complete, with the parameters that it agreed on.
    fn tls_established(&mut self, handshake: &Handshake) {
        let _ = handshake;
    }

    /// Reports that the TLS handshake failed, which ends the session.
    fn tls_failed(&mut self, error: &io::Error) {
        let _ = error;
    }

    /// Decides whether the client's name and secret belong together. Called for mechanisms of AUTH that send the secret
    /// itself, such as PLAIN. The default refuses everybody with 535.
    fn login(&mut self, auth: &Auth<'_>) -> Answer {
        let _ = auth;
        Answer::Reply(ReplyReason::NotAuthenticated.reply().clone())
    }

    /// Returns the secret of a user, for mechanisms of AUTH that do not send it, such as CRAM-MD5. `None` means that
    /// the name is unknown. With SCRAM-SHA-256, the reply tells the client that a name is unknown. To hide this, return
    /// [made-up keys](mailrun_smtp::sasl::DecoySecrets). The default knows nobody, so every login gets 535.
    fn secret(&mut self, auth: &Auth<'_>) -> Option<Secret> {
        let _ = auth;
        None
    }

    /// Looks up the secret of a user. A handler implements this instead of [`Handler::secret`] if the look-up takes
    /// time, or may reject the login. The answer is [`Answer::Secret`] or any reply. After [`Answer::Yes`], which
    /// contains no secret, the client gets 454.
    fn look_up(&mut self, auth: &Auth<'_>) -> Answer {
        Answer::Secret(self.secret(auth))
    }

    /// Decides whether the session checks the client's proof of identity, or rejects the login with the returned reply.
    /// Called only for SCRAM-SHA-256, in which the proof arrives after [`Handler::look_up`] has answered. With other
    /// mechanisms, the proof is checked as soon as [`Handler::login`] or [`Handler::look_up`] has answered.
    fn proof(&mut self, auth: &Auth<'_>) -> Answer {
        let _ = auth;
        Answer::Yes
    }

    /// Reports the result of an AUTH exchange. The session has already sent the final reply.
    fn login_ended(&mut self, outcome: LoginOutcome) {
        let _ = outcome;
    }

    /// Accepts or refuses XCLIENT, with which a proxy names the real client, and may say that this client has logged
    /// in. Called only if the server offers XCLIENT. By default, XCLIENT is refused with 550.
    fn xclient(&mut self, xclient: &Xclient<'_>) -> Answer {
        let _ = xclient;
        Answer::Reply(ReplyReason::XclientNotPermitted.reply().clone())
    }

    /// Answers VRFY, with which the client asks whether the address or user `who` exists. The usual reply is 252, which
    /// neither confirms nor denies that.
    fn verify(&mut self, who: &[u8]) -> Answer {
        let _ = who;
        Answer::Yes
    }

    /// Accepts or refuses RSET, which ends the transaction. If RSET is accepted, the session calls [`Handler::reset`].
    fn rset(&mut self) -> Answer {
        Answer::Yes
    }

    /// Answers NOOP, a command that has no effect other than its reply.
    fn noop(&mut self) -> Answer {
        Answer::Yes
    }

    /// Accepts or refuses QUIT, which ends the session if it is accepted.
    fn quit(&mut self) -> Answer {
        Answer::Yes
    }

    /// Returns how much the session may read next. The session asks before each read, so a server whose disk or next
    /// hop is slow can slow its clients down here.
    fn read_limit(&mut self) -> ReadLimit {
        ReadLimit::All
    }

    /// Reports that the transaction ended without a message. `reason` is `None` after RSET or EHLO, and otherwise tells
    /// why the session rejected the message.
    fn reset(&mut self, reason: Option<ReplyReason>) {
        let _ = reason;
    }

    /// Reports that the server gave up on the client, for example because the client spoke another protocol, made too
    /// many errors, or sent too many commands without mail. Only [`Handler::disconnect`] is called after this.
    fn gave_up(&mut self, reason: ReplyReason) {
        let _ = reason;
    }

    /// Reports that the session is over, and why. No other method is called after this.
    fn disconnect(&mut self, reason: CloseReason) {
        let _ = reason;
    }
}

/// Creates a handler for each session of a worker, and holds the worker's state. Each worker makes its service on its
/// own thread, so the service needs no locks.
pub trait Service: 'static {
    /// Type of the handlers that [`Service::session`] makes.
    type Handler: Handler;
    /// Makes the handler for a client that has connected.
    fn session(&self, peer: Peer) -> Self::Handler;
    /// Returns true if a client is exempt from [`Server::client_limits`](super::Server::client_limits), and may use the
    /// quarter of [`Server::sessions`](super::Server::sessions) that is reserved for such clients. Called once per
    /// connection, and again for each client that a PROXY header or XCLIENT names. By default, clients on this host are
    /// exempt.
    fn is_exempt(&self, client: IpAddr) -> bool {
        client.to_canonical().is_loopback()
    }
    /// Reports that a client could not be accepted, because no file descriptor is free ([`super::ResourceExhausted`])
    /// or because the client has already disconnected.
    fn accept_failed(&self, error: &io::Error) {
        let _ = error;
    }
    /// Does periodic work, such as writing counters to a log, about every 250 ms, and once more when the worker ends.
    fn tick(&self, now: Duration) {
        let _ = now;
    }
    /// Called when the server stops, for work that must be done before the worker ends. The worker's tasks run until
    /// this future is ready, so the future can wait for them.
    fn drain(&self) -> impl Future<Output = ()> {
        std::future::ready(())
    }
}

impl<H: Handler, F: Fn(Peer) -> H + 'static> Service for F {
    type Handler = H;
    fn session(&self, peer: Peer) -> H {
        self(peer)
    }
}
