//! The sink's offers before there is mail: TLS, AUTH, LMTP.
use anyhow::{Context, Result};
use mailrun_net::{Certificate, Proxied, ServerSecurity, ServerTls, SessionResumption, TlsFiles, TlsWatch};
use mailrun_party::tls_mode::TlsMode;
use mailrun_party::users::Users;
use mailrun_smtp::sasl::{Mechanism, Mechanisms};
use mailrun_smtp::server::{Offer, Protocol};
use mailrun_smtp::xclient::Attributes;
use std::fs;
use std::path::{Path, PathBuf};

/// Options of these offers.
#[derive(Clone, Debug, Default)]
pub struct CapabilityOptions {
    /// Start of TLS.
    pub tls: TlsMode,
    /// Certificate chain and key; without them the sink creates its own.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// File to which the sink's own certificate is written, so that clients can trust it.
    pub certificate_output: Option<PathBuf>,
    /// CA certificates: clients must show a certificate that one of these signed.
    pub client_ca: Option<PathBuf>,
    /// Resumption of TLS sessions.
    pub resumption: SessionResumption,
    /// Users that may log in.
    pub login: LoginPolicy,
    /// Set if AUTH is required before MAIL.
    pub requires_auth: bool,
    /// SMTP or LMTP.
    pub protocol: Protocol,
    /// PROXY header at the beginning of each connection.
    pub proxy_header: Proxied,
    /// XCLIENT attributes that are offered: the client's claims about itself are accepted.
    pub xclient: Attributes,
}

#[derive(Clone, Debug, Default)]
pub enum LoginPolicy {
    /// AUTH is not offered.
    #[default]
    Off,
    /// Any user, with any password.
    Anybody,
    /// Users of a file: `name:password`, one per line.
    Users(PathBuf),
}

impl CapabilityOptions {
    /// Returns the server's side of TLS, and a watch on its files. A certificate that the sink creates is valid for
    /// `name` and for loopback addresses.
    pub(super) fn security(&self, name: &str) -> Result<(ServerSecurity, Option<TlsWatch>)> {
        if self.tls == TlsMode::None {
            return Ok((ServerSecurity::None, None));
        }
        let (setup, watch) = match &self.certificate {
            Some((chain, key)) => self.setup_from_files(chain, key)?,
            None => (self.self_signed_setup(name)?, None),
        };
        Ok((
            if self.tls == TlsMode::StartTls {
                ServerSecurity::Offered(setup)
            } else {
                ServerSecurity::Implicit(setup)
            },
            watch,
        ))
    }

    fn setup_from_files(&self, chain: &Path, key: &Path) -> Result<(ServerTls, Option<TlsWatch>)> {
        let files = TlsFiles {
            certificate: chain.to_owned(),
            key: key.to_owned(),
            client_roots: self.client_ca.clone(),
            resumption: self.resumption,
        };
        let setup = files.load().context("cannot set up TLS with these options")?;
        if let Some(path) = &self.certificate_output {
            let certificate = Certificate::read(chain, key)?;
            fs::write(path, certificate.to_pem()).with_context(|| format!("cannot write {}", path.display()))?;
        }
        let watch = TlsWatch::new(files, setup.clone());
        Ok((setup, Some(watch)))
    }

    fn self_signed_setup(&self, name: &str) -> Result<ServerTls> {
        let certificate = Certificate::self_signed(&[name, "localhost", "127.0.0.1", "::1"])?;
        if let Some(path) = &self.certificate_output {
            fs::write(path, certificate.to_pem()).with_context(|| format!("cannot write {}", path.display()))?;
        }
        let roots = self.client_ca.as_deref().map(mailrun_net::read_roots).transpose()?;
        ServerTls::new(certificate, roots.as_deref(), self.resumption).context("cannot set up TLS with these options")
    }

    pub(super) fn users(&self) -> Result<Option<Users>> {
        match &self.login {
            LoginPolicy::Off => Ok(None),
            LoginPolicy::Anybody => Ok(Some(Users::Anybody)),
            LoginPolicy::Users(path) => Ok(Some(Users::read(path)?)),
        }
    }

    /// Sets the offers of EHLO, and the requirements.
    pub(super) fn apply(&self, offer: &mut Offer) {
        offer.protocol = self.protocol;
        offer.extensions.auth = match self.login {
            LoginPolicy::Off => Mechanisms::NONE,
            // SCRAM needs the password, because the server must prove that it knows it.
            LoginPolicy::Anybody => Mechanisms::ALL.without(Mechanism::ScramSha256),
            LoginPolicy::Users(_) => Mechanisms::ALL,
        };
        offer.requires.auth = self.requires_auth;
        offer.extensions.xclient = self.xclient;
    }
}
