//! What a sink offers before there is mail: TLS, AUTH, LMTP.
use crate::tls_mode::TlsMode;
use crate::users::Users;
use anyhow::{Context, Result};
use net::{Certificate, Proxied, Security, ServerTls, SessionResumption, TlsFiles, TlsWatch};
use smtp::sasl::{Mechanism, Mechanisms};
use smtp::server::{Offer, Protocol};
use smtp::xclient::Attributes;
use std::fs;
use std::path::{Path, PathBuf};

/// What is told of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct WelcomeOptions {
    pub(crate) tls: TlsMode,
    /// Certificate chain and key; without them the sink makes its own.
    pub(crate) certificate: Option<(PathBuf, PathBuf)>,
    /// Where its own certificate is written for those who are to trust it.
    pub(crate) certificate_to: Option<PathBuf>,
    /// Clients must show a certificate that one of these signed.
    pub(crate) client_ca: Option<PathBuf>,
    pub(crate) resumption: SessionResumption,
    pub(crate) login: Login,
    /// AUTH before MAIL.
    pub(crate) requires_auth: bool,
    pub(crate) protocol: Protocol,
    /// Each connection begins with a PROXY header.
    pub(crate) proxied: Proxied,
    /// XCLIENT is offered: the client is who it says it is.
    pub(crate) xclient: Attributes,
}

/// Who may log in.
#[derive(Clone, Debug, Default)]
pub(crate) enum Login {
    /// AUTH is not offered.
    #[default]
    Off,
    /// Anybody, with any password.
    Anybody,
    /// Those of a file: `name:password`, one a line.
    Users(PathBuf),
}

impl WelcomeOptions {
    /// The server's side of TLS, and a watch on its files. A certificate of its own is for `name` and for loopback.
    pub(super) fn security(&self, name: &str) -> Result<(Security, Option<TlsWatch>)> {
        if self.tls == TlsMode::None {
            return Ok((Security::None, None));
        }
        let (setup, watch) = match &self.certificate {
            Some((chain, key)) => self.setup_from_files(chain, key)?,
            None => (self.own_setup(name)?, None),
        };
        Ok((if self.tls == TlsMode::StartTls { Security::Offered(setup) } else { Security::Implicit(setup) }, watch))
    }

    fn setup_from_files(&self, chain: &Path, key: &Path) -> Result<(ServerTls, Option<TlsWatch>)> {
        let files = TlsFiles {
            certificate: chain.to_owned(),
            key: key.to_owned(),
            client_roots: self.client_ca.clone(),
            resumption: self.resumption,
        };
        let setup = files.load().context("cannot set up TLS with these options")?;
        if let Some(path) = &self.certificate_to {
            let certificate = Certificate::from_pem(&read(chain)?, &read(key)?)?;
            fs::write(path, certificate.to_pem()).with_context(|| format!("cannot write {}", path.display()))?;
        }
        let watch = TlsWatch::new(files, setup.clone());
        Ok((setup, Some(watch)))
    }

    fn own_setup(&self, name: &str) -> Result<ServerTls> {
        let certificate = Certificate::self_signed(&[name, "localhost", "127.0.0.1", "::1"])?;
        if let Some(path) = &self.certificate_to {
            fs::write(path, certificate.to_pem()).with_context(|| format!("cannot write {}", path.display()))?;
        }
        let roots = self.client_ca.as_deref().map(read).transpose()?;
        ServerTls::new(certificate, roots.as_deref(), self.resumption).context("cannot set up TLS with these options")
    }

    /// Who may log in.
    pub(super) fn users(&self) -> Result<Option<Users>> {
        match &self.login {
            Login::Off => Ok(None),
            Login::Anybody => Ok(Some(Users::Anybody)),
            Login::Users(path) => Ok(Some(Users::read(path)?)),
        }
    }

    /// What EHLO offers, and what is insisted on.
    pub(super) fn change(&self, offer: &mut Offer) {
        offer.protocol = self.protocol;
        offer.extensions.auth = match self.login {
            Login::Off => Mechanisms::NONE,
            // The server too has to prove something in SCRAM, which it cannot without the password.
            Login::Anybody => Mechanisms::ALL.without(Mechanism::ScramSha256),
            Login::Users(_) => Mechanisms::ALL,
        };
        offer.requires.auth = self.requires_auth;
        offer.extensions.xclient = self.xclient;
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}
