//! Events with which a server session reports to its application and asks it for decisions.
use crate::command::{Hello, Mail, Recipient};
use crate::login::Auth;
use crate::reply_reason::ReplyReason;
use crate::xclient::Xclient;

/// Report or question of a server session to its application. After an event that
/// [asks](Event::asks), the session waits for the application's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// Asks whether to accept EHLO, HELO or LHLO. The bytes are the client's name for itself.
    Hello(Hello, &'a [u8]),
    /// Asks whether to accept the sender of MAIL.
    Mail(Mail<'a>),
    /// Asks whether to accept the recipient of RCPT.
    Recipient(Recipient<'a>),
    /// Asks whether a message may begin, after DATA or the first BDAT. If the application says yes,
    /// the client gets 354 to DATA, but no reply to BDAT yet. If it says no to BDAT, the client
    /// gets the refusal after the chunk's bytes have been read.
    Data,
    /// A block of the message, without dot-stuffing. Blocks come in order, and may end in the
    /// middle of a line.
    Block(&'a [u8]),
    /// The message is complete. Asks whether the application takes responsibility for it (RFC 5321 §6.1). In LMTP,
    /// [`Server::answer`](super::Server::answer) sends the same reply for each recipient. If the application calls
    /// [`Server::grant`](super::Server::grant) instead, the session asks for each recipient's result with an
    /// [`Event::Delivery`].
    Message {
        /// Size of the message in bytes, without dot-stuffing.
        bytes: u64,
    },
    /// Asks for the result of the message for one recipient. Only LMTP asks this.
    Delivery {
        /// The recipient's position among the accepted recipients, counted from 0.
        recipient: u32,
    },
    /// The session refused the message for this reason. This ended the transaction, so the client must begin another
    /// with MAIL.
    Discarded(ReplyReason),
    /// Asks whether to accept RSET. If RSET is granted, an open transaction ends. A granted [`Event::Hello`] ends the
    /// transaction as well.
    Reset,
    /// Asks whether to accept NOOP. Unless the answer is 421, the state of the session does not change.
    Noop,
    /// Asks whether to accept QUIT. If QUIT is granted, the session ends.
    Quit,
    /// Asks the application for the reply to VRFY. The bytes are the argument of VRFY. The usual reply is 252.
    Verify(&'a [u8]),
    /// Asks whether to accept STARTTLS. If STARTTLS is granted, the session [wants
    /// TLS](super::Server::wants_tls).
    StartTls,
    /// Asks for a nonce, which the mechanism of AUTH needs. The application must answer with
    /// [`Server::answer_nonce`](super::Server::answer_nonce). Any other answer refuses the login.
    Nonce,
    /// Asks for a decision on a login with AUTH, or for the user's secret. [`Auth::proof`] tells which of the two the
    /// application must do: check the client's name and secret, or look up the secret of this name.
    Auth(Auth<'a>),
    /// Asks whether the session may check the client's proof against the user's secret. Only
    /// [`Server::grant`](super::Server::grant) permits the check. This event follows [`Event::Auth`] if the mechanism,
    /// such as SCRAM, needs the secret before the client sends its proof. A refusal ends the exchange and does not
    /// reveal whether the proof was right.
    Proof(Auth<'a>),
    /// AUTH succeeded, because the client has proved its identity. The session has sent the reply.
    Authenticated,
    /// AUTH failed, and the session has sent the refusal.
    NotAuthenticated,
    /// Asks whether to accept XCLIENT, which names the real client behind a proxy. If XCLIENT is
    /// granted, the session starts again with a greeting.
    Xclient(Xclient<'a>),
    /// The session proceeded without asking the application, for example because it answered HELP
    /// or refused a command by itself.
    Answered,
}

impl Event<'_> {
    /// Returns true if the session waits for [`Server::grant`](super::Server::grant) or
    /// [`Server::answer`](super::Server::answer) after this event.
    pub fn asks(&self) -> bool {
        !matches!(
            self,
            Self::Block(_) | Self::Discarded(_) | Self::Answered | Self::Authenticated | Self::NotAuthenticated
        )
    }
}
