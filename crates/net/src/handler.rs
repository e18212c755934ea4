//! What a program that embeds the server answers: one handler a session, every method with a default that says
//! yes.
use smtp::Path;
use smtp::command::{Hello, Mail};
use smtp::reply::Reply;
use smtp::verdict::Verdict;
use std::fmt;
use std::future::Future;
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
    /// A reply, or the usual one for `None`, when the future is done. The session reads nothing meanwhile.
    Later(Pin<Box<dyn Future<Output = Option<Reply>>>>),
}

impl Answer {
    /// An answer that takes time: after a disk, a directory, a policy has been asked. The worker polls it, which is no
    /// tokio runtime: what needs one is spawned there, and its handle awaited here.
    pub fn later(answer: impl Future<Output = Option<Reply>> + 'static) -> Self {
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

    /// DATA.
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

    /// VRFY.
    fn verify(&mut self, who: &[u8]) -> Answer {
        let _ = who;
        Answer::Yes
    }

    /// The transaction is over without a message: RSET, EHLO, or the message broke a rule and was refused.
    fn reset(&mut self, why: Option<Verdict>) {
        let _ = why;
    }

    /// The session is over.
    fn disconnect(&mut self, parting: Parting) {
        let _ = parting;
    }
}
