use crate::source::{DsnParameters, TransportOptions};
use clap::ValueEnum;
use mailrun_measurement::record::Pipelining;
use mailrun_net::Endpoint;
use mailrun_process::tls_mode::TlsMode;
use mailrun_smtp::client::StopPoint;
use std::time::Duration;

#[derive(Debug)]
pub struct SendOptions {
    /// Servers in the order in which they are tried, until one accepts the connection.
    pub targets: Vec<SendTarget>,
    pub hello: String,
    /// Sender of the envelope, or empty for the null sender of notifications.
    pub from: String,
    pub to: Vec<String>,
    /// True if `from` and `to` are sent exactly as they are (`--raw`), and not as `<address>`.
    pub is_verbatim: bool,
    /// The message, in which each line ends in `<CRLF>`.
    pub message: Vec<u8>,
    pub transport: TransportOptions,
    pub pipelining: Pipelining,
    pub dsn_parameters: DsnParameters,
    pub quit_after: Option<QuitAfter>,
    pub connect_timeout: Duration,
    pub timeout: Duration,
    pub shows_certificate: bool,
    /// True if the report should contain the date on which the server's certificate expires.
    pub keeps_certificate: bool,
    /// True if the SMTP dialogue is printed on standard output.
    pub shows_dialogue: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendTarget {
    Server {
        /// Host name for which the server's certificate must be valid.
        name: String,
        endpoint: Endpoint,
    },
    /// A shell command that speaks SMTP on its standard input and output, in place of a server.
    Command(String),
}

impl SendTarget {
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Server { endpoint, .. } => endpoint.to_string(),
            Self::Command(command) => format!("the command {command}"),
        }
    }

    pub(super) fn host(&self) -> &str {
        match self {
            Self::Server { name, .. } => name,
            Self::Command(_) => "localhost",
        }
    }
}

/// Point of the SMTP session after which the client ends the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum QuitAfter {
    /// The connection; the client sends no command
    Connect,
    /// The greeting
    Banner,
    /// The reply to the first EHLO
    Ehlo,
    /// The TLS handshake; needs --tls
    Tls,
    /// The login or, without one, the last step before MAIL
    Auth,
    Mail,
    Rcpt,
    /// The reply to DATA; the connection is closed without QUIT, so that nothing is delivered
    Data,
}

impl QuitAfter {
    pub(super) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Returns the step after which the SMTP client must end the session early. Returns `None` for `Connect`, because
    /// then no SMTP client is started, and for `Auth`, because a session without a message ends by itself.
    pub(super) fn stop_point(self, tls: TlsMode) -> Option<StopPoint> {
        match self {
            Self::Connect | Self::Auth => None,
            // With implicit TLS, the handshake comes before the SMTP session, so the first point at which the SMTP
            // client can stop is the greeting.
            Self::Tls if tls == TlsMode::Implicit => Some(StopPoint::Greeting),
            Self::Tls => Some(StopPoint::Tls),
            Self::Banner => Some(StopPoint::Greeting),
            Self::Ehlo => Some(StopPoint::Hello),
            Self::Mail => Some(StopPoint::Mail),
            Self::Rcpt => Some(StopPoint::Recipients),
            Self::Data => Some(StopPoint::Data),
        }
    }
}
