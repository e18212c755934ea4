//! Settings of a session that apply before its first command: TLS, logins, LMTP, PROXY and XCLIENT.
use anyhow::{Context, Result};
use mailrun_net::{Certificate, Proxied, ServerSecurity, ServerTls, SessionResumption, TlsFiles, TlsWatch};
use mailrun_process::output_file;
use mailrun_process::tls_mode::TlsMode;
use mailrun_process::users::Users;
use mailrun_smtp::sasl::{Mechanism, Mechanisms};
use mailrun_smtp::server::{Offer, Protocol};
use mailrun_smtp::xclient::Attributes;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct CapabilityOptions {
    pub tls: TlsMode,
    /// Files with the certificate chain and its key. Without them, the sink creates its own
    /// certificate.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// File to which the sink writes its own certificate, so that clients can trust the sink.
    pub certificate_output: Option<PathBuf>,
    /// File with CA certificates. Clients must present a certificate that one of these CAs has
    /// signed.
    pub client_ca: Option<PathBuf>,
    pub resumption: SessionResumption,
    pub login: LoginPolicy,
    /// True if clients must log in before MAIL. Otherwise, the login is optional.
    pub requires_auth: bool,
    pub protocol: Protocol,
    pub proxy_header: Proxied,
    /// XCLIENT attributes that the sink offers, and accepts from any client.
    pub xclient: Attributes,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub enum LoginPolicy {
    #[default]
    Off,
    /// Any user may log in with any password, for load without real accounts.
    Anybody,
    /// Only users in this file may log in. Each line of the file has the form `name:password`.
    Users(PathBuf),
}

impl CapabilityOptions {
    /// Returns true if an option differs from its default, for example if the user asks for TLS, logins or LMTP.
    pub fn is_used(&self) -> bool {
        *self != Self::default()
    }

    /// Returns the TLS settings of the server, and a watch that notices changes of the certificate files. A certificate
    /// that the sink creates itself is valid for `name` and for loopback addresses.
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
        if self.certificate_output.is_some() {
            self.write_certificate(&Certificate::read(chain, key)?)?;
        }
        let watch = TlsWatch::new(files, setup.clone());
        Ok((setup, Some(watch)))
    }

    fn self_signed_setup(&self, name: &str) -> Result<ServerTls> {
        let certificate = Certificate::self_signed(&[name, "localhost", "127.0.0.1", "::1"])?;
        self.write_certificate(&certificate)?;
        let roots = self.client_ca.as_deref().map(mailrun_net::read_roots).transpose()?;
        ServerTls::new(certificate, roots.as_deref(), self.resumption).context("cannot set up TLS with these options")
    }

    fn write_certificate(&self, certificate: &Certificate) -> Result<()> {
        let Some(path) = &self.certificate_output else { return Ok(()) };
        output_file::check(path)?;
        output_file::write(path, certificate.to_pem())
    }

    pub(super) fn users(&self) -> Result<Option<Users>> {
        match &self.login {
            LoginPolicy::Off => Ok(None),
            LoginPolicy::Anybody => Ok(Some(Users::Anybody)),
            LoginPolicy::Users(path) => Ok(Some(Users::read(path)?)),
        }
    }

    pub(super) fn apply(&self, offer: &mut Offer) {
        offer.protocol = self.protocol;
        offer.extensions.auth = match self.login {
            LoginPolicy::Off => Mechanisms::NONE,
            // If any password is accepted, SCRAM is impossible, because in SCRAM the server must
            // prove that it knows the password.
            LoginPolicy::Anybody => Mechanisms::ALL.without(Mechanism::ScramSha256),
            LoginPolicy::Users(_) => Mechanisms::ALL,
        };
        offer.requires.auth = self.requires_auth;
        offer.requires.valid_parameters = true;
        offer.extensions.xclient = self.xclient;
    }
}
