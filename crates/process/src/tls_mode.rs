//! The option that says when a session starts TLS. Sources and sinks share this option.

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum TlsMode {
    /// No TLS
    #[default]
    None,
    /// TLS starts after STARTTLS
    #[value(name = "starttls")]
    StartTls,
    /// TLS starts before the greeting
    Implicit,
}
