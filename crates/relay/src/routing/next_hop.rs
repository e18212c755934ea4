//! The next hop of a message, and how to connect to it. Messages with equal next hops share
//! connections.
use crate::qmgr::DestinationOrigin;
use mailrun_net::{ClientSecurity, ClientTls, Endpoint, SessionResumption, TlsSetupError, Trust};
use mailrun_smtp::client::StartTls;
use mailrun_smtp::sasl::Credentials;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The server or mailbox to which a message goes next. A clone only increments a reference count.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum NextHop {
    Discard,
    Maildir(Arc<Path>),
    /// A server that delivers the mail to its mailboxes and speaks LMTP (RFC 2033).
    Lmtp(Arc<Lmtp>),
    Smtp(Arc<Smtp>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lmtp {
    pub(crate) endpoint: Endpoint,
    /// Maximum number of connections to this next hop, or `None` for the general limit, `delivery.per_destination`.
    pub(crate) connections: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Smtp {
    pub(crate) target: SmtpTarget,
    pub(crate) security: NextHopTls,
    pub(crate) credentials: Option<Credentials>,
    /// Maximum number of connections to this next hop, or `None` for the general limit, `delivery.per_destination`.
    pub(crate) connections: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum SmtpTarget {
    /// Servers that the configuration names, in the order in which the relay tries them.
    Hosts(Box<[TargetHost]>),
    /// The mail exchangers of a domain, or the address in an address literal (RFC 5321 §5.1).
    Domain { name: Box<str>, port: u16 },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TargetHost {
    /// A host name, or an IP address without brackets.
    pub(crate) name: Box<str>,
    pub(crate) port: u16,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NextHopTls {
    pub(crate) policy: TlsPolicy,
    pub(crate) insecure: bool,
    /// CA certificates to trust instead of the system's CA certificates.
    pub(crate) ca_file: Option<Arc<CaFile>>,
    /// Name that the server's certificate must have. The client also sends it as SNI. The default is the host's name.
    pub(crate) server_name: Option<Box<str>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum TlsPolicy {
    None,
    /// TLS if the server offers it, without verification. This protects against passive
    /// eavesdroppers (RFC 7435).
    #[default]
    Opportunistic,
    /// STARTTLS, with verification of the server unless `insecure` is set. If STARTTLS or the verification fails, no
    /// mail is sent.
    Required,
    /// TLS before the greeting (RFC 8314), with verification of the server unless `insecure` is set.
    Implicit,
}

impl TlsPolicy {
    pub(crate) const ALL: [(Self, &'static str); 4] = [
        (Self::None, "none"),
        (Self::Opportunistic, "opportunistic"),
        (Self::Required, "required"),
        (Self::Implicit, "implicit"),
    ];

    pub(crate) fn is_required(self) -> bool {
        matches!(self, Self::Required | Self::Implicit)
    }
}

/// CA certificates from a file. Two values with the same path are equal even if their contents differ, because the
/// relay rereads the file when it changes.
#[derive(Debug)]
pub(crate) struct CaFile {
    pub(crate) path: PathBuf,
    /// Content of the file when the configuration was read. The file may have changed since then.
    pub(crate) pem: Vec<u8>,
}

impl PartialEq for CaFile {
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path
    }
}

impl Eq for CaFile {}

impl NextHopTls {
    pub(crate) fn is_verified(&self) -> bool {
        self.policy.is_required() && !self.insecure
    }

    pub(crate) fn start_tls(&self) -> StartTls {
        match self.policy {
            TlsPolicy::None | TlsPolicy::Implicit => StartTls::Never,
            TlsPolicy::Opportunistic => StartTls::IfOffered,
            TlsPolicy::Required => StartTls::Required,
        }
    }

    /// Returns the TLS settings for a host, or `None` if the policy is to use no TLS. This parses certificates, so it
    /// should be called once per next hop and host, and not for each connection.
    ///
    /// # Errors
    /// Fails if the CA certificates cannot be used, or if the host's name is not valid for a TLS certificate.
    pub(crate) fn client(&self, host: &str) -> Result<Option<ClientSecurity>, TlsSetupError> {
        self.client_trusting(host, self.ca_file.as_ref().map(|authority| authority.pem.clone()))
    }

    /// Returns the same settings as `client`, but with `pem` as the content of the CA file, which may have changed
    /// since the configuration was read.
    ///
    /// # Errors
    /// Fails if the CA certificates cannot be used, or if the host's name is not valid for a TLS certificate.
    pub(crate) fn client_trusting(
        &self,
        host: &str,
        pem: Option<Vec<u8>>,
    ) -> Result<Option<ClientSecurity>, TlsSetupError> {
        let trust = match (pem, self.is_verified()) {
            (_, false) => Trust::Anybody,
            (None, true) => Trust::System,
            (Some(pem), true) => Trust::Roots(pem),
        };
        let name = self.server_name.as_deref().unwrap_or(host);
        let setup = || ClientTls::new(name, &trust, None, SessionResumption::On);
        Ok(match self.policy {
            TlsPolicy::None => None,
            TlsPolicy::Opportunistic | TlsPolicy::Required => Some(ClientSecurity::OnDemand(setup()?)),
            TlsPolicy::Implicit => Some(ClientSecurity::Implicit(setup()?)),
        })
    }
}

impl NextHop {
    /// Returns a next hop for recovered mail that the present configuration can no longer route. Its domain, `invalid`,
    /// does not exist (RFC 2606 §2), so delivery fails and the sender is notified.
    pub(crate) fn unroutable() -> Self {
        let to = SmtpTarget::Domain { name: "invalid".into(), port: 25 };
        Self::Smtp(Arc::new(Smtp { target: to, security: NextHopTls::default(), credentials: None, connections: None }))
    }

    pub(crate) fn origin(&self) -> DestinationOrigin {
        match self {
            Self::Discard | Self::Maildir(_) => DestinationOrigin::Local,
            Self::Smtp(smtp) if matches!(smtp.target, SmtpTarget::Domain { .. }) => DestinationOrigin::Domain,
            Self::Lmtp(_) | Self::Smtp(_) => DestinationOrigin::Configured,
        }
    }

    /// Returns the path if the next hop is a Maildir. All recipients with this next hop then share
    /// one mailbox, so a message is delivered there only once.
    pub(crate) fn mailbox(&self) -> Option<&Path> {
        match self {
            Self::Maildir(path) => Some(path),
            _ => None,
        }
    }

    pub(crate) fn connections(&self) -> Option<u32> {
        match self {
            Self::Discard | Self::Maildir(_) => None,
            Self::Lmtp(lmtp) => lmtp.connections,
            Self::Smtp(smtp) => smtp.connections,
        }
    }
}

impl Hash for Lmtp {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match &self.endpoint {
            Endpoint::Tcp(address) => address.hash(state),
            Endpoint::Unix(path) => path.hash(state),
        }
    }
}

impl Hash for Smtp {
    /// Hashes only the target and the TLS policy, which distinguish nearly all next hops. Comparison for equality uses
    /// all fields.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.target.hash(state);
        self.security.policy.hash(state);
    }
}

impl fmt::Display for NextHop {
    /// Formats the next hop for logs, metrics and `mailrun queue`, without secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Discard => f.write_str("discard"),
            Self::Maildir(path) => write!(f, "maildir:{}", path.display()),
            Self::Lmtp(lmtp) => write!(f, "lmtp:{}", lmtp.endpoint),
            Self::Smtp(smtp) => smtp.target.fmt(f),
        }
    }
}

impl fmt::Display for SmtpTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Domain { name, .. } => write!(f, "mx:{name}"),
            Self::Hosts(hosts) => {
                f.write_str("smtp:")?;
                for (number, host) in hosts.iter().enumerate() {
                    let comma = if number == 0 { "" } else { "," };
                    write!(f, "{comma}{host}")?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for TargetHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, port } = self;
        if name.contains(':') { write!(f, "[{name}]:{port}") } else { write!(f, "{name}:{port}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn smarthost(password: &str, policy: TlsPolicy) -> NextHop {
        NextHop::Smtp(Arc::new(Smtp {
            target: SmtpTarget::Hosts(Box::new([TargetHost { name: "a.example".into(), port: 25 }])),
            security: NextHopTls { policy, ..Default::default() },
            credentials: Some(Credentials::new("me", password)),
            connections: None,
        }))
    }

    #[test]
    fn equal_hops_are_one_and_a_secret_tells_others_apart() {
        let next_hops = [
            smarthost("x", TlsPolicy::Required),
            smarthost("x", TlsPolicy::Required),
            smarthost("y", TlsPolicy::Required),
            smarthost("x", TlsPolicy::Implicit),
            NextHop::Discard,
            NextHop::Maildir(Path::new("/a").into()),
            NextHop::Maildir(Path::new("/a").into()),
        ];
        assert_eq!(next_hops.iter().collect::<HashSet<_>>().len(), 5);
    }

    #[test]
    fn nothing_secret_is_printed() {
        let next_hop = smarthost("s3cret", TlsPolicy::Required);
        assert_eq!(next_hop.to_string(), "smtp:a.example:25");
        assert!(!format!("{next_hop:?}").contains("s3cret"));
    }

    #[test]
    fn each_policy_is_what_the_session_is_told() {
        let security = |policy| NextHopTls { policy, ..Default::default() };
        assert!(security(TlsPolicy::None).client("a.example").unwrap().is_none());
        let opportunistic = security(TlsPolicy::Opportunistic);
        assert_eq!(opportunistic.start_tls(), StartTls::IfOffered);
        assert!(matches!(opportunistic.client("a.example"), Ok(Some(ClientSecurity::OnDemand(_)))));
        let certificate = mailrun_net::Certificate::self_signed(&["a.example"]).unwrap();
        let authority = CaFile { path: "ca.pem".into(), pem: certificate.to_pem().into_bytes() };
        let implicit = NextHopTls { ca_file: Some(Arc::new(authority)), ..security(TlsPolicy::Implicit) };
        assert!(matches!(implicit.client("192.0.2.1"), Ok(Some(ClientSecurity::Implicit(_)))));
        assert!(implicit.client("not a name").is_err());
        assert_eq!(security(TlsPolicy::Required).start_tls(), StartTls::Required);
    }
}
