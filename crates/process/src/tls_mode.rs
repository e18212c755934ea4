//! The option that says when a session starts TLS. Sources and sinks share this option.

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
