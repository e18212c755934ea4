//! What a program that embeds the server answers: one handler a session, every method with a default that says
//! yes.
use crate::tls::Handshake;
use smtp::Path;
use smtp::command::{Hello, Mail, Recipient};
use smtp::login::Auth;
use smtp::proxy::Header;
use smtp::reply::Reply;
use smtp::sasl::Secret;
use smtp::verdict::Verdict;
use smtp::xclient::Xclient;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

/// Who is at the other end.
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
    /// The answer that the future ends with. The session reads nothing meanwhile.
    Later(Pin<Box<dyn Future<Output = Answer>>>),
    /// What [`Handler::look_up`] asked for; `None` if there is nobody of that name. To any other question it is none, and
    /// the connection is closed.
    Secret(Option<Secret>),
    /// The connection is closed, after this last word where there is one: a server that falters on purpose.
    HangUp(Option<Reply>),
    /// The connection is reset (RST), without a word.
    Reset,
}

/// How much of what has come a session reads next.
#[derive(Debug)]
pub enum Appetite {
    /// All there is room for.
    All,
    /// That many octets at most, at least one.
    AtMost(usize),
    /// Nothing until then: the peer finds the connection full in the end.
    NotBefore(Duration),
    /// Nothing any more: a [`Answer::HangUp`] or [`Answer::Reset`] that no command asked for. Other answers are
    /// taken for [`Answer::HangUp`] without a word.
    Nothing(Answer),
}

impl Answer {
    /// An answer that takes time: after a disk, a directory, a policy has been asked. The worker polls it, which is no
    /// tokio runtime: what needs one is spawned there, and its handle awaited here. `None` is the usual reply.
    pub fn later(answer: impl Future<Output = Option<Reply>> + 'static) -> Self {
        Self::eventually(async { answer.await.map_or(Self::Yes, Self::Reply) })
    }

    /// Likewise, an answer of any kind.
    pub fn eventually(answer: impl Future<Output = Self> + 'static) -> Self {
        Self::Later(Box::pin(answer))
    }

    /// A reply of that code and text.
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

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parting {
    /// QUIT.
    Quit,
    /// The peer closed or cut the connection.
    Lost,
    /// It was silent, or slow, for too long.
    Timeout,
    /// This side ended it: 421, too many errors.
    HungUp,
    /// The server stops.
    ShuttingDown,
}

/// How AUTH ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginOutcome {
    /// The client is who it said it was.
    Proved,
    /// It is not, or gave up.
    NotProved,
}

/// One session's decisions. `now` is [`crate::clock::now`] at the read that brought the command.
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

    /// RCPT with what the sender wants to be told (RFC 3461), for a handler that needs more than
    /// [`Handler::recipient`].
    fn recipient_with(&mut self, recipient: &Recipient<'_>) -> Answer {
        self.recipient(&recipient.path)
    }

    /// DATA, or the first BDAT.
    fn data(&mut self) -> Answer {
        Answer::Yes
    }

    /// Octets of the message, dot-unstuffed, as they come.
    fn block(&mut self, block: &[u8]) {
        let _ = block;
    }

    /// The message is whole; its size in octets. A positive answer takes responsibility (RFC 5321 §6.1).
    fn message(&mut self, bytes: u64, now: Duration) -> Answer {
        let _ = (bytes, now);
        Answer::Yes
    }

    /// LMTP: what becomes of the message for the recipient of that number, of those that were taken. Asked after
    /// [`Handler::message`] said yes; any other answer of that is said for each recipient.
    fn delivery(&mut self, recipient: u32, now: Duration) -> Answer {
        let _ = (recipient, now);
        Answer::Yes
    }

    /// STARTTLS, where it is offered.
    fn start_tls(&mut self) -> Answer {
        Answer::Yes
    }

    /// The connection began with a PROXY header: whose it really is.
    fn proxied(&mut self, header: &Header) {
        let _ = header;
    }

    /// It should have begun with a PROXY header, and did not; the session is over.
    fn not_proxied(&mut self, why: &io::Error) {
        let _ = why;
    }

    /// A TLS handshake is about to begin: [`Answer::HangUp`] and [`Answer::Reset`] refuse it.
    fn handshake(&mut self) -> Answer {
        Answer::Yes
    }

    /// TLS is on.
    fn encrypted(&mut self, handshake: &Handshake) {
        let _ = handshake;
    }

    /// The TLS handshake failed; the session is over.
    fn not_encrypted(&mut self, why: &io::Error) {
        let _ = why;
    }

    /// AUTH, where it is offered, by a mechanism that shows the secret: whether name and secret go together.
    fn login(&mut self, auth: &Auth<'_>) -> Answer {
        let _ = auth;
        Answer::Yes
    }

    /// AUTH by one that does not: the secret, or `None` if there is nobody of that name. That is told by the reply to
    /// SCRAM-SHA-256: who does not want to tell gives [made-up keys](smtp::sasl::MadeUp).
    fn secret(&mut self, auth: &Auth<'_>) -> Option<Secret> {
        let _ = auth;
        Some(Secret::Any)
    }

    /// The same, for a handler that needs time, or refuses: [`Answer::Secret`], or any reply. [`Answer::Yes`] lets anybody
    /// in.
    fn look_up(&mut self, auth: &Auth<'_>) -> Answer {
        Answer::Secret(self.secret(auth))
    }

    /// Where the secret was looked up before the proof came (SCRAM-SHA-256), the proof is here: whether it may be
    /// checked. The other mechanisms are checked as soon as [`Handler::login`] or [`Handler::look_up`] has answered.
    fn proof(&mut self, auth: &Auth<'_>) -> Answer {
        let _ = auth;
        Answer::Yes
    }

    /// AUTH came to its end.
    fn login_ended(&mut self, outcome: LoginOutcome) {
        let _ = outcome;
    }

    /// XCLIENT, where it is offered: who the client really is.
    fn xclient(&mut self, xclient: &Xclient<'_>) -> Answer {
        let _ = xclient;
        Answer::Yes
    }

    /// VRFY.
    fn verify(&mut self, who: &[u8]) -> Answer {
        let _ = who;
        Answer::Yes
    }

    /// RSET; where it is granted, [`Handler::reset`] follows.
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

    /// Asked before each read: how much of it. A server whose disk or next hop is slow passes that on here.
    fn appetite(&mut self) -> Appetite {
        Appetite::All
    }

    /// The transaction is over without a message: RSET, EHLO, or the message broke a rule and was refused.
    fn reset(&mut self, why: Option<Verdict>) {
        let _ = why;
    }

    /// The session has given the client up: another protocol, too many errors, too many commands without mail. It is
    /// told nothing else before [`Handler::disconnect`].
    fn gave_up(&mut self, why: Verdict) {
        let _ = why;
    }

    /// The session is over.
    fn disconnect(&mut self, parting: Parting) {
        let _ = parting;
    }
}
