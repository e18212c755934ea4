//! How much of anything a server takes: the sizes of RFC 5321 §4.5.3.1 and the times of §4.5.3.2.
use std::time::Duration;

/// A command line, `<CRLF>` included (RFC 5321 §4.5.3.1.4).
pub const COMMAND_LINE_BYTES: usize = 512;
/// What extensions add to MAIL: SIZE 26 (RFC 1870 §3), BODY 17 (RFC 6152 §2), SMTPUTF8 10 (RFC 6531 §3.1), RET 9 and
/// ENVID 107 (RFC 3461 §4.3, §4.4), AUTH 500 (RFC 4954 §3).
pub const MAIL_PARAMETER_BYTES: usize = 26 + 17 + 10 + 9 + 107 + 500;
/// What extensions add to RCPT: NOTIFY 29 and ORCPT 507 (RFC 3461 §4.1, §4.2).
pub const RCPT_PARAMETER_BYTES: usize = 29 + 507;
/// A path with its brackets and any source route (RFC 5321 §4.5.3.1.3).
pub const PATH_BYTES: usize = 256;
/// A local part (RFC 5321 §4.5.3.1.1).
pub const LOCAL_PART_BYTES: usize = 64;
/// A domain (RFC 5321 §4.5.3.1.2).
pub const DOMAIN_BYTES: usize = 255;

/// What a session may ask of the server. The sizes are the least that RFC 5321 lets a server offer, save where
/// a larger one costs nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// A line of text, `<CRLF>` included, before dot-stuffing (RFC 5321 §4.5.3.1.6).
    pub text_line_bytes: usize,
    /// Recipients of one message (RFC 5321 §4.5.3.1.8: at least 100).
    pub recipients: usize,
    /// Octets of a message; what SIZE announces (RFC 1870).
    pub message_bytes: u64,
    /// How many times `message_bytes` are read of a message that is too long. Its client hears 552 at its end only, and
    /// one that is cut off before would send it again; beyond this the session ends with 421.
    pub oversize_factor: u64,
    /// Refused commands with no message between them, after which the session ends. Recipients beyond the limit are
    /// not counted here.
    pub errors: u32,
    /// Unknown commands before EHLO, after which the session ends: the client may speak something else.
    pub unknown_before_hello: u32,
    /// Commands with no message between them, accepted recipients not counted, after which the session ends.
    pub idle_commands: u32,
    /// Commands that have nothing to do with mail (NOOP, VRFY, HELP, a greeting, RSET where there is nothing to reset) with
    /// no message between them, after which the session ends. As Postfix's `smtpd_junk_command_limit`.
    pub junk_commands: u32,
    /// From one complete command, or block of a message, to the next (RFC 5321 §4.5.3.2.7: at least 5 minutes).
    pub idle: Duration,
    /// From DATA to the end of the message: a sender that drips one byte at a time is not idle.
    pub message_time: Duration,
    /// From the greeting, or the last message, to the next: a session that keeps itself alive by NOOP is not idle. A
    /// message that has begun is not counted here.
    pub without_message: Duration,
    /// Failed logins of one session, after which it ends.
    pub login_failures: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            text_line_bytes: 1000,
            recipients: 1000,
            message_bytes: 1 << 30,
            oversize_factor: 3,
            errors: 20,
            unknown_before_hello: 3,
            idle_commands: 1000,
            junk_commands: 100,
            idle: Duration::from_secs(300),
            message_time: Duration::from_secs(3600),
            without_message: Duration::from_secs(1800),
            login_failures: 5,
        }
    }
}
