//! When TLS begins: the word that sources and sinks share.

/// When TLS begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum TlsMode {
    /// Not at all.
    #[default]
    None,
    /// When STARTTLS is said (RFC 3207).
    StartTls,
    /// Before the greeting (RFC 8314).
    Implicit,
}

impl TlsMode {
    /// In the words of the run record.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::StartTls => "starttls",
            Self::Implicit => "implicit",
        }
    }
}
