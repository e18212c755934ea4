use crate::error::{Error, REMEDIES};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaslMechanism {
    /// Sends the user and the password in the clear (RFC 4616), so the connection should use TLS.
    Plain,
    /// Sends no identity, so the broker must allow clients without a login (RFC 4505).
    Anonymous,
    /// Uses the identity in the TLS certificate of the client (RFC 4422 appendix A).
    External,
    /// Sends a proof with SHA-1 that the client knows the password, instead of the password itself (RFC 5802).
    ScramSha1,
    /// Sends a proof with SHA-256 that the client knows the password, instead of the password itself (RFC 7677).
    ScramSha256,
    ScramSha512,
}

impl SaslMechanism {
    pub const ALL: [Self; 6] =
        [Self::Plain, Self::Anonymous, Self::External, Self::ScramSha1, Self::ScramSha256, Self::ScramSha512];

    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::Anonymous => "ANONYMOUS",
            Self::External => "EXTERNAL",
            Self::ScramSha1 => "SCRAM-SHA-1",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
        }
    }

    pub fn takes_password(self) -> bool {
        !matches!(self, Self::Anonymous | Self::External)
    }
}

impl FromStr for SaslMechanism {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let mechanism = Self::ALL.into_iter().find(|mechanism| mechanism.name().eq_ignore_ascii_case(text));
        mechanism.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            Error::Misuse(format!("{text} is not a supported SASL mechanism; use one of {names}"))
        })
    }
}

impl fmt::Display for SaslMechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verification {
    #[default]
    On,
    /// Accepts any certificate. This is meant for tests with a self-signed certificate.
    Off,
}

/// Settings for TLS 1.2 and 1.3 on the client's side.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsSetup {
    /// A PEM file with the certificates that the client trusts instead of the system's
    /// certificates. They may be CAs or the broker's own certificate.
    pub authority: Option<PathBuf>,
    /// PEM files with the client's own certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    pub verification: Verification,
    /// The name that the broker's certificate must have, or `None` for the host's name.
    pub server_name: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BrokerSecurity {
    /// SASL mechanism of the login. `None` chooses PLAIN if the URL has a user, and otherwise ANONYMOUS.
    pub mechanism: Option<SaslMechanism>,
    /// TLS settings, which apply to `amqps` URLs.
    pub tls: TlsSetup,
}

impl TlsSetup {
    pub(crate) fn config(&self) -> Result<Arc<ClientConfig>, Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::Misuse(format!("TLS cannot be set up: {error}")))?;
        let builder = match (self.verification, &self.authority) {
            (Verification::On, None) => builder.with_root_certificates(system_roots()?),
            (Verification::On, Some(path)) => {
                let verifier = mailrun_tls_verify::servers_of(certificates(path)?, &provider);
                let verifier = verifier.map_err(|error| Error::Misuse(format!("{}: {error}", path.display())))?;
                builder.dangerous().with_custom_certificate_verifier(verifier)
            }
            (Verification::Off, _) => {
                builder.dangerous().with_custom_certificate_verifier(mailrun_tls_verify::any_server(&provider))
            }
        };
        let Some((chain, key)) = &self.identity else {
            return Ok(Arc::new(builder.with_no_client_auth()));
        };
        let key_octets = read(key)?;
        let key_der = PrivateKeyDer::from_pem_slice(&key_octets)
            .map_err(|_| Error::Misuse(format!("{} contains no private key in PEM form", key.display())))?;
        let config = builder.with_client_auth_cert(certificates(chain)?, key_der);
        let config = config.map_err(|error| Error::Misuse(format!("{} and its key: {error}", chain.display())))?;
        Ok(Arc::new(config))
    }

    pub(crate) fn name(&self, host: &str) -> Result<ServerName<'static>, Error> {
        let name = self.server_name.as_deref().unwrap_or(host);
        ServerName::try_from(name.to_owned())
            .map_err(|_| Error::Misuse(format!("{name} is not a valid server name for TLS")))
    }
}

fn system_roots() -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(Error::Misuse(format!("this system has no trusted certificates; {}", REMEDIES.without_roots())));
    }
    Ok(roots)
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|error| Error::Misuse(format!("cannot read {}: {error}", path.display())))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    mailrun_net::certificates_from(&read(path)?).map_err(|error| Error::Misuse(format!("{}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mechanisms_are_read_by_their_names() {
        for mechanism in SaslMechanism::ALL {
            assert_eq!(mechanism.name().to_lowercase().parse(), Ok(mechanism));
        }
        let error = "GSSAPI".parse::<SaslMechanism>().unwrap_err().to_string();
        assert!(
            error.contains("GSSAPI is not a supported SASL mechanism") && error.contains("SCRAM-SHA-256"),
            "{error}"
        );
    }

    #[test]
    fn files_that_are_not_what_they_should_be_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nothing.pem");
        std::fs::write(&path, "nothing").unwrap();
        let missing = directory.path().join("missing.pem");
        let setups = [
            TlsSetup { authority: Some(path.clone()), ..TlsSetup::default() },
            TlsSetup { authority: Some(missing.clone()), ..TlsSetup::default() },
            TlsSetup { identity: Some((path.clone(), path)), verification: Verification::Off, ..TlsSetup::default() },
        ];
        for (setup, name) in setups.into_iter().zip(["nothing.pem", "missing.pem", "nothing.pem"]) {
            let error = setup.config().unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }
}
