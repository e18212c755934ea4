//! The option for the start of TLS, which sources and sinks share.

/// The point of a session at which TLS begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum TlsMode {
    /// No TLS
    #[default]
    None,
    /// After STARTTLS
    #[value(name = "starttls")]
    StartTls,
    /// Before the greeting
    Implicit,
}
