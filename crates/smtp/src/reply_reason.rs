//! Table of all replies that a server session sends by itself, with their texts.
use crate::reply::{Reply, say};

/// Reasons for a reply that a server session gives without asking the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReplyReason {
    /// NOOP.
    Noop,
    /// RSET.
    Reset,
    /// QUIT.
    Quit,
    /// HELP.
    Help,
    /// An unknown verb.
    UnknownCommand,
    /// A verb that is known but not offered here.
    NotImplemented,
    /// Arguments that do not follow the grammar.
    Syntax,
    /// A command line, or a line of the message, above its limit.
    LineTooLong,
    /// A command that ended in a bare `<LF>`, or holds CR or NUL.
    BareLineFeed,
    /// EHLO or HELO without a name.
    HelloNeedsName,
    /// MAIL before EHLO.
    HelloFirst,
    /// MAIL within a transaction.
    NestedMail,
    /// RCPT without MAIL.
    MailFirst,
    /// DATA without RCPT.
    RecipientFirst,
    /// DATA where every RCPT was refused.
    NoValidRecipients,
    /// MAIL with an invalid path.
    BadSender,
    /// RCPT with an invalid path.
    BadRecipient,
    /// A path, local part or domain above its limit.
    PathTooLong,
    /// An unknown parameter.
    UnknownParameter,
    /// A parameter whose value is wrong.
    BadParameter,
    /// A UTF-8 address without SMTPUTF8.
    NeedsSmtpUtf8,
    /// RCPT beyond the limit.
    TooManyRecipients,
    /// A message, or its announced SIZE, beyond the limit.
    MessageTooBig,
    /// A message so far beyond the limit that the session does not wait for its end.
    MessageEndless,
    /// CR or LF alone, or NUL, in the message.
    BareLineEnding,
    /// A line of another protocol.
    OtherProtocol,
    /// Too many refused commands, or commands that bring no mail.
    TooManyCommands,
    /// Nothing was received for too long.
    Timeout,
    /// No message for too long.
    TooLongWithoutMessage,
    /// Too many failed logins.
    TooManyLogins,
    /// The server ends.
    ShuttingDown,
    /// A command other than QUIT after a greeting that was a refusal.
    NoService,
    /// More sessions than allowed.
    TooManySessions,
    /// EHLO or HELO to an LMTP server.
    NeedsLhlo,
    /// LHLO to an SMTP server.
    NeedsEhlo,
    /// A command that is not allowed in the middle of a message sent by BDAT.
    MessageBegun,
    /// DATA for a message that is declared as binary.
    BinaryNeedsChunks,
    /// BDAT without a size: its end is unknown, and so is everything after it.
    BadChunk,
    /// A chunk was accepted.
    ChunkAccepted,
    /// STARTTLS where TLS is on.
    TlsActive,
    /// A command that needs TLS first.
    NeedsTls,
    /// AUTH that needs TLS first.
    AuthNeedsTls,
    /// AUTH by a mechanism that is not offered.
    UnknownMechanism,
    /// A second AUTH.
    AlreadyAuthenticated,
    /// A command that needs AUTH first.
    NeedsAuth,
    /// AUTH succeeded.
    Authenticated,
    /// AUTH failed.
    NotAuthenticated,
    /// AUTH could not be decided.
    AuthUnavailable,
    /// The client gave up with `*`.
    AuthCancelled,
    /// A response that is not base64, or does not belong to its mechanism.
    BadResponse,
    /// A response above the limit.
    ResponseTooLong,
    /// XCLIENT from a client that the application has not permitted it.
    XclientNotPermitted,
}

impl ReplyReason {
    /// The reply with its text.
    pub fn reply(self) -> &'static Reply {
        match self {
            Self::Noop => say!("250 2.0.0 Ok"),
            Self::Reset => say!("250 2.0.0 Ok"),
            Self::Quit => say!("221 2.0.0 Bye"),
            Self::Help => say!("214 2.0.0 EHLO HELO MAIL RCPT DATA BDAT RSET NOOP VRFY HELP QUIT"),
            Self::UnknownCommand => say!("500 5.5.1 Unknown command"),
            Self::NotImplemented => say!("502 5.5.1 Command not implemented"),
            Self::Syntax => say!("501 5.5.4 Syntax error in parameters or arguments"),
            Self::LineTooLong => say!("500 5.5.2 Line too long"),
            Self::BareLineFeed => say!("500 5.5.2 A command ends in CRLF and holds neither CR, LF nor NUL"),
            Self::HelloNeedsName => say!("501 5.5.4 Say your name"),
            Self::HelloFirst => say!("503 5.5.1 Send EHLO first"),
            Self::NestedMail => say!("503 5.5.1 A transaction is open already"),
            Self::MailFirst => say!("503 5.5.1 Send MAIL first"),
            Self::RecipientFirst => say!("503 5.5.1 Send RCPT first"),
            Self::NoValidRecipients => say!("554 5.5.1 No valid recipients"),
            Self::BadSender => say!("501 5.1.7 Bad sender address syntax"),
            Self::BadRecipient => say!("501 5.1.3 Bad recipient address syntax"),
            Self::PathTooLong => say!("501 5.1.0 Path too long"),
            Self::UnknownParameter => say!("555 5.5.4 Parameter not recognized or not implemented"),
            Self::BadParameter => say!("501 5.5.4 Bad parameter value"),
            Self::NeedsSmtpUtf8 => say!("553 5.6.7 The address needs SMTPUTF8"),
            Self::TooManyRecipients => say!("452 4.5.3 Too many recipients"),
            Self::MessageTooBig => say!("552 5.3.4 Message too big"),
            Self::MessageEndless => say!("421 4.3.4 Message far too big"),
            Self::OtherProtocol => say!("421 4.7.0 This is SMTP, and that was not"),
            Self::BareLineEnding => say!("550 5.5.2 The message holds a bare CR, a bare LF or a NUL"),
            Self::TooManyCommands => say!("421 4.7.0 Too many commands without mail"),
            Self::Timeout => say!("421 4.4.2 Timeout"),
            Self::TooLongWithoutMessage => say!("421 4.7.0 Too long without a message"),
            Self::TooManyLogins => say!("421 4.7.0 Too many failed logins"),
            Self::ShuttingDown => say!("421 4.3.2 Shutting down"),
            Self::NoService => say!("503 5.5.1 No service here: send QUIT"),
            Self::TooManySessions => say!("421 4.3.2 Too many sessions, try again later"),
            Self::NeedsLhlo => say!("500 5.5.1 This is LMTP: say LHLO"),
            Self::NeedsEhlo => say!("500 5.5.1 This is SMTP: say EHLO"),
            Self::MessageBegun => say!("503 5.5.1 The message has begun: send BDAT or RSET"),
            Self::BinaryNeedsChunks => say!("503 5.5.1 A binary message is sent by BDAT"),
            Self::BadChunk => say!("421 4.5.2 BDAT needs a size: what follows cannot be told from commands"),
            Self::ChunkAccepted => say!("250 2.0.0 Ok"),
            Self::TlsActive => say!("503 5.5.1 TLS is on"),
            Self::NeedsTls => say!("530 5.7.0 Must issue a STARTTLS command first"),
            Self::AuthNeedsTls => say!("538 5.7.11 Encryption required for requested authentication mechanism"),
            Self::UnknownMechanism => say!("504 5.5.4 Unrecognized authentication mechanism"),
            Self::AlreadyAuthenticated => say!("503 5.5.1 Authenticated already"),
            Self::NeedsAuth => say!("530 5.7.0 Authentication required"),
            Self::Authenticated => say!("235 2.7.0 Authentication successful"),
            Self::NotAuthenticated => say!("535 5.7.8 Authentication credentials invalid"),
            Self::AuthUnavailable => say!("454 4.7.0 Temporary authentication failure"),
            Self::AuthCancelled => say!("501 5.7.0 Authentication cancelled"),
            Self::BadResponse => say!("501 5.5.2 Cannot decode the response"),
            Self::XclientNotPermitted => say!("550 5.7.0 This client may not use XCLIENT"),
            Self::ResponseTooLong => say!("500 5.5.6 Authentication exchange line is too long"),
        }
    }
}
