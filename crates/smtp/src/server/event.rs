//! Events of a server session.
use crate::command::{Hello, Mail, Recipient};
use crate::login::Auth;
use crate::reply_reason::ReplyReason;
use crate::xclient::Xclient;

/// Events of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// Asks: EHLO, HELO or LHLO, with the client's own name.
    Hello(Hello, &'a [u8]),
    /// Asks: MAIL.
    Mail(Mail<'a>),
    /// Asks: RCPT.
    Recipient(Recipient<'a>),
    /// Asks: DATA, or the first BDAT: a message begins. The usual answer to DATA is 354; for a BDAT a positive answer
    /// is not sent, and any other is sent after its bytes have been read.
    Data,
    /// Bytes of the message, unstuffed.
    Block(&'a [u8]),
    /// Asks: the message is complete; a positive answer takes responsibility for it (RFC 5321 §6.1). In LMTP a reply is
    /// repeated for each recipient; after [`Server::grant`](super::Server::grant) [`Event::Delivery`] follows.
    Message {
        /// Bytes of the message, unstuffed.
        bytes: u64,
    },
    /// Asks, in LMTP: the result of the message for the recipient of that number, from 0, counted over the accepted
    /// ones.
    Delivery {
        /// The recipient's number.
        recipient: u32,
    },
    /// The message ended and was refused; the transaction is over.
    Discarded(ReplyReason),
    /// Asks: RSET; if granted, the transaction, if there was one, is over. (A granted [`Event::Hello`] ends it too.)
    Reset,
    /// Asks: NOOP.
    Noop,
    /// Asks: QUIT; if granted, the session ends.
    Quit,
    /// Asks: VRFY; the usual answer is 252.
    Verify(&'a [u8]),
    /// Asks: STARTTLS. If granted, the session [wants TLS](super::Server::wants_tls).
    StartTls,
    /// Asks: AUTH by a mechanism that needs a nonce: [`Server::answer_nonce`](super::Server::answer_nonce). Any other answer refuses.
    Nonce,
    /// Asks: whether name and secret belong together, or for the secret; see [`Auth::proof`].
    Auth(Auth<'a>),
    /// Asks, if a secret was looked up before the client's proof came: whether the proof may be checked. Any refusal
    /// ends the exchange, and does not reveal whether the proof was right.
    Proof(Auth<'a>),
    /// AUTH succeeded: the client proved its identity.
    Authenticated,
    /// AUTH failed.
    NotAuthenticated,
    /// Asks: XCLIENT, which names the real client. If granted, the session begins anew with
    /// a greeting.
    Xclient(Xclient<'a>),
    /// The session took a step by itself, and answered if that was a command.
    Answered,
}

impl Event<'_> {
    /// Reports whether it waits for [`Server::grant`](super::Server::grant) or [`Server::answer`](super::Server::answer).
    pub fn asks(&self) -> bool {
        !matches!(
            self,
            Self::Block(_) | Self::Discarded(_) | Self::Answered | Self::Authenticated | Self::NotAuthenticated
        )
    }
}
