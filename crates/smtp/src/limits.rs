//! Limits of a server: the sizes of RFC 5321 §4.5.3.1 and the times of §4.5.3.2.
use std::time::Duration;

/// Longest command line, `<CRLF>` included (RFC 5321 §4.5.3.1.4).
pub const MAX_COMMAND_LINE_BYTES: usize = 512;
/// Length that extensions add to MAIL: SIZE 26 (RFC 1870 §3), BODY 17 (RFC 6152 §2), SMTPUTF8 10 (RFC 6531 §3.1), RET 9
/// and ENVID 107 (RFC 3461 §4.3, §4.4), AUTH 500 (RFC 4954 §3).
pub const MAX_MAIL_PARAMETER_BYTES: usize = 26 + 17 + 10 + 9 + 107 + 500;
/// Length that extensions add to RCPT: NOTIFY 29 and ORCPT 507 (RFC 3461 §4.1, §4.2).
pub const MAX_RCPT_PARAMETER_BYTES: usize = 29 + 507;
/// Longest path, with its brackets and any source route (RFC 5321 §4.5.3.1.3).
pub const MAX_PATH_BYTES: usize = 256;
/// Longest local part (RFC 5321 §4.5.3.1.1).
pub const MAX_LOCAL_PART_BYTES: usize = 64;
/// Longest domain (RFC 5321 §4.5.3.1.2).
pub const MAX_DOMAIN_BYTES: usize = 255;

/// Limits of a session. The sizes are the smallest that RFC 5321 allows a server, except where a larger one costs
/// nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest line of text, `<CRLF>` included, before dot-stuffing (RFC 5321 §4.5.3.1.6).
    pub text_line_bytes: usize,
    /// Recipients of one message (RFC 5321 §4.5.3.1.8: at least 100).
    pub recipients: usize,
    /// Bytes of a message; SIZE announces this (RFC 1870).
    pub message_bytes: u64,
    /// Multiple of `message_bytes` up to which an oversized message is still read. The client gets 552 only at the end,
    /// and would send the message again if it were cut off earlier. Beyond this, the session ends with 421.
    pub oversize_factor: u64,
    /// Number of rejected commands without a message between them after which the session ends. Recipients beyond the
    /// limit do not count.
    pub errors: u32,
    /// Number of unknown commands before EHLO after which the session ends, because the client may speak another
    /// protocol.
    pub unknown_before_hello: u32,
    /// Number of commands without a message between them after which the session ends. Accepted recipients do not
    /// count.
    pub idle_commands: u32,
    /// Commands that have nothing to do with mail (NOOP, VRFY, HELP, a greeting, RSET with nothing to reset) without a
    /// message between them, after which the session ends. As Postfix's `smtpd_junk_command_limit`.
    pub junk_commands: u32,
    /// Longest time from one complete command, or block of a message, to the next (RFC 5321 §4.5.3.2.7: at least 5
    /// minutes).
    pub idle_timeout: Duration,
    /// Longest time from DATA to the end of the message.
    pub message_timeout: Duration,
    /// Bytes per second that a message under way must bring, averaged over `idle_timeout`, or the session ends: a sender
    /// that sends one byte at a time is not idle. As Postfix's `smtpd_min_data_rate`. 0: no minimum.
    pub min_data_rate: u64,
    /// Longest time from the greeting, or the last message, to the next: a session that keeps itself alive by NOOP is
    /// not idle. A message that has begun is not counted here.
    pub no_message_timeout: Duration,
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
            idle_timeout: Duration::from_secs(300),
            message_timeout: Duration::from_secs(3600),
            min_data_rate: 0,
            no_message_timeout: Duration::from_secs(1800),
            login_failures: 5,
        }
    }
}
