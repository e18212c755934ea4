//! Limits of a server: the sizes of RFC 5321 §4.5.3.1 and the times of §4.5.3.2.
use std::time::Duration;

/// Maximum length of a command line in bytes, including `<CRLF>` (RFC 5321 §4.5.3.1.4).
pub const MAX_COMMAND_LINE_BYTES: usize = 512;
/// Number of bytes by which extensions may lengthen MAIL: SIZE 26 (RFC 1870 §3), BODY 17 (RFC 6152 §2),
/// SMTPUTF8 10 (RFC 6531 §3.1), RET 9 and ENVID 107 (RFC 3461 §4.3, §4.4), AUTH 500 (RFC 4954 §3).
pub const MAX_MAIL_PARAMETER_BYTES: usize = 26 + 17 + 10 + 9 + 107 + 500;
/// Number of bytes by which extensions may lengthen RCPT: NOTIFY 29 and ORCPT 507 (RFC 3461 §4.1, §4.2).
pub const MAX_RCPT_PARAMETER_BYTES: usize = 29 + 507;
/// Maximum length of a path in bytes, including its brackets and a source route (RFC 5321 §4.5.3.1.3).
pub const MAX_PATH_BYTES: usize = 256;
/// Maximum length of a local part, the text before the `@`, in bytes (RFC 5321 §4.5.3.1.1).
pub const MAX_LOCAL_PART_BYTES: usize = 64;
/// Maximum length of a domain, the text after the `@`, in bytes (RFC 5321 §4.5.3.1.2).
pub const MAX_DOMAIN_BYTES: usize = 255;

/// Limits that a server session enforces. The default sizes are the minimum that RFC 5321 requires
/// of a server, or more if a larger size costs nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum length of a line of text in bytes, including `<CRLF>`, before dot-stuffing (RFC 5321
    /// §4.5.3.1.6).
    pub text_line_bytes: usize,
    /// Maximum number of recipients of a message. RFC 5321 §4.5.3.1.8 requires at least 100.
    pub recipients: usize,
    /// Maximum size of a message in bytes, which the SIZE extension announces to clients (RFC 1870).
    pub message_bytes: u64,
    /// Multiple of `message_bytes` up to which an oversized message is still read. The client gets 552 only at the end
    /// of the message, because it would send the message again if it were cut off earlier. A message beyond the
    /// multiple ends the session, with 421 during DATA or 552 to BDAT.
    pub oversize_factor: u64,
    /// Maximum number of rejected commands without a message in between. The next rejected command ends the session.
    /// Recipients beyond the limit of `recipients` do not count. RCPT, DATA or BDAT after a refused MAIL, and DATA or
    /// BDAT after all recipients were refused, do not count either, because a pipelining client sends them before it
    /// knows of the refusal.
    pub errors: u32,
    /// Maximum number of unknown commands before EHLO. A client that sends more may speak another
    /// protocol.
    pub unknown_before_hello: u32,
    /// Maximum number of commands without a message in between. The next command ends the session. RCPT commands whose
    /// recipient is accepted are exempt. If a recipient was accepted, later 4yz refusals of other recipients are exempt
    /// as well, because ending the session would keep the message from the accepted recipients.
    pub idle_commands: u32,
    /// Maximum number of commands that do not help to send mail, without a message in between: NOOP, VRFY, HELP, EHLO,
    /// HELO, LHLO, and RSET outside a transaction. Postfix has the same limit as `smtpd_junk_command_limit`.
    pub junk_commands: u32,
    /// Longest time between two complete commands, or two blocks of a message. RFC 5321 §4.5.3.2.7
    /// requires at least 5 minutes.
    pub idle_timeout: Duration,
    /// Longest time from DATA, or the first BDAT, to the end of the message.
    pub message_timeout: Duration,
    /// Minimum data rate of a message in bytes per second, averaged over `idle_timeout`. Slower sessions end, because
    /// `idle_timeout` does not stop a client that sends a single byte now and then. Postfix has the same limit as
    /// `smtpd_min_data_rate`. 0 means no minimum.
    pub min_data_rate: u64,
    /// Longest time from the greeting, or from the last message, to the next message. This limit ends sessions that
    /// clients keep alive with NOOP. It never ends a session during a message.
    pub no_message_timeout: Duration,
    /// Number of failed logins after which the session ends.
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
