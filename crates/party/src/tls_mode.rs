//! The start of TLS: an option that sources and sinks share.

/// The start of TLS.
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

impl TlsMode {
    /// The name in the run record.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::StartTls => "starttls",
            Self::Implicit => "implicit",
        }
    }
}
