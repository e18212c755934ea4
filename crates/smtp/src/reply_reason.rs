//! Table of all replies that a server session can send without asking the application, with their texts.
use crate::reply::{Reply, say};

/// Reason for a reply that a server session gives without asking the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReplyReason {
    /// The application granted NOOP without a reply of its own, so the session sends 250.
    Noop,
    /// The application granted RSET without a reply of its own, so the session sends 250.
    Reset,
    /// The application granted QUIT without a reply of its own, so the session sends 221.
    Quit,
    /// The client sent HELP. The reply lists the verbs.
    Help,
    /// The server does not know the verb (500).
    UnknownCommand,
    /// The server knows the verb, but does not offer the command (502).
    NotImplemented,
    /// The arguments of the command violate the grammar (501).
    Syntax,
    /// A command line, or a line of the message, exceeds its limit.
    LineTooLong,
    /// A command line ended in a bare `<LF>`, or contains CR or NUL.
    BareLineFeed,
    /// The client sent EHLO, HELO or LHLO without its name.
    HelloNeedsName,
    /// The client sent a command that needs EHLO first (503).
    HelloFirst,
    /// The command, such as a second MAIL or STARTTLS, is not allowed during a transaction.
    NestedMail,
    /// The client sent a command that needs MAIL first, such as RCPT (503).
    MailFirst,
    /// The client sent DATA or BDAT before any RCPT was accepted (503).
    RecipientFirst,
    /// The client sent DATA or BDAT although every RCPT was refused (554).
    NoValidRecipients,
    /// The path of MAIL violates the grammar (501).
    BadSender,
    /// The path of RCPT violates the grammar (501).
    BadRecipient,
    /// A path, local part or domain is longer than RFC 5321 §4.5.3.1 allows (501).
    PathTooLong,
    /// MAIL or RCPT has a parameter that the server does not know or does not offer (555).
    UnknownParameter,
    /// A parameter of MAIL or RCPT has an invalid value, or occurs twice (501).
    BadParameter,
    /// An address contains UTF-8, but MAIL did not have SMTPUTF8 (553).
    NeedsSmtpUtf8,
    /// RCPT came after the message already had the maximum number of recipients.
    TooManyRecipients,
    /// The message, or its announced SIZE, exceeds the limit (552).
    MessageTooBig,
    /// The message exceeds the limit so far that the session ends with 421 before the end of the
    /// message.
    MessageEndless,
    /// The message contains CR without LF, LF without CR, or NUL.
    BareLineEnding,
    /// The client speaks another protocol, such as HTTP. The session ends with 421.
    OtherProtocol,
    /// The client sent too many invalid commands, or too many commands without a message. The session ends with 421.
    TooManyCommands,
    /// The client was silent for too long, or its message is too slow. The session ends with 421.
    Timeout,
    /// The client sent no message for too long. The session ends with 421.
    TooLongWithoutMessage,
    /// The client failed to log in too often, so the session ends with 421.
    TooManyLogins,
    /// The server shuts down, so the session ends with 421.
    ShuttingDown,
    /// The client sent a command other than QUIT although the greeting refused service (503).
    NoService,
    /// The server has its maximum number of sessions. The client gets 421, and may try again later.
    TooManySessions,
    /// The client sent EHLO or HELO to an LMTP server.
    NeedsLhlo,
    /// The client sent LHLO to an SMTP server.
    NeedsEhlo,
    /// The command is not allowed in the middle of a message sent with BDAT.
    MessageBegun,
    /// DATA cannot transfer a message that is declared as binary.
    BinaryNeedsChunks,
    /// BDAT has no valid size, so the server cannot tell where the chunk ends. The session ends with 421.
    BadChunk,
    /// The server received a chunk that is not the last chunk of its message (250).
    ChunkAccepted,
    /// STARTTLS is not allowed because TLS is already active.
    TlsActive,
    /// The client sent a command that the server accepts only over TLS (530).
    NeedsTls,
    /// The server offers this mechanism of AUTH only over TLS (538).
    AuthNeedsTls,
    /// The server does not offer this mechanism of AUTH.
    UnknownMechanism,
    /// The client sent AUTH although it is already logged in (503).
    AlreadyAuthenticated,
    /// The client sent a command that needs a login first (530).
    NeedsAuth,
    /// The client has logged in (235).
    Authenticated,
    /// The login failed because the client's proof is wrong (535).
    NotAuthenticated,
    /// The server cannot decide about the login now, so the client may try again later (454).
    AuthUnavailable,
    /// The client cancelled AUTH by sending `*` instead of a response (501).
    AuthCancelled,
    /// The client's response in AUTH is not valid base64, or does not fit the mechanism (501).
    BadResponse,
    /// The client's response in AUTH is longer than the session accepts (500).
    ResponseTooLong,
    /// The application does not permit this client to use XCLIENT.
    XclientNotPermitted,
}

impl ReplyReason {
    /// Returns the fixed reply that the session sends for this reason.
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
