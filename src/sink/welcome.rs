//! What a sink offers before there is mail: TLS, AUTH, LMTP.
use crate::tls_mode::TlsMode;
use anyhow::{Context, Result, bail};
use net::{Certificate, Proxied, Security, ServerTls, SessionResumption};
use smtp::login::{Auth, Proof};
use smtp::sasl::{Mechanism, Mechanisms, Secret};
use smtp::server::{Offer, Protocol};
use smtp::xclient::Attributes;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Users that a file may name.
const MOST_USERS: usize = 1_000_000;

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

/// Who may log in, ready for use.
#[derive(Debug)]
pub(super) enum Users {
    Anybody,
    Known(HashMap<String, Secret>),
}

impl Users {
    /// Whether name and secret go together.
    pub(super) fn knows(&self, auth: &Auth<'_>) -> bool {
        match (self, auth.proof) {
            (Self::Anybody, _) => true,
            (Self::Known(users), Proof::Shown(shown)) => users.get(auth.name).is_some_and(|secret| secret.is(shown)),
            (Self::Known(_), Proof::Digest) => false,
        }
    }

    /// What to compare a digest with.
    pub(super) fn secret(&self, name: &str) -> Option<Secret> {
        match self {
            Self::Anybody => Some(Secret::Any),
            Self::Known(users) => users.get(name).cloned(),
        }
    }
}

impl WelcomeOptions {
    /// The server's side of TLS. A certificate of its own is for `name` and for loopback.
    pub(super) fn security(&self, name: &str) -> Result<Security> {
        if self.tls == TlsMode::None {
            return Ok(Security::None);
        }
        let certificate = match &self.certificate {
            Some((chain, key)) => Certificate::from_pem(&read(chain)?, &read(key)?)
                .with_context(|| format!("{} and {} are no certificate and its key", chain.display(), key.display()))?,
            None => Certificate::self_signed(&[name, "localhost", "127.0.0.1", "::1"])?,
        };
        if let Some(path) = &self.certificate_to {
            fs::write(path, certificate.to_pem()).with_context(|| format!("cannot write {}", path.display()))?;
        }
        let roots = self.client_ca.as_deref().map(read).transpose()?;
        let setup =
            ServerTls::new(certificate, roots.as_deref(), self.resumption).context("TLS cannot be set up so")?;
        Ok(if self.tls == TlsMode::StartTls { Security::Offered(setup) } else { Security::Implicit(setup) })
    }

    /// Who may log in.
    pub(super) fn users(&self) -> Result<Option<Users>> {
        match &self.login {
            Login::Off => Ok(None),
            Login::Anybody => Ok(Some(Users::Anybody)),
            Login::Users(path) => Ok(Some(Users::Known(read_users(path)?))),
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

/// `name:password`, one a line; empty lines and those that begin with `#` are passed over.
fn read_users(path: &Path) -> Result<HashMap<String, Secret>> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut users = HashMap::new();
    for (number, line) in text.lines().enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Some((name, password)) = line.split_once(':').filter(|(name, _)| !name.is_empty()) else {
            bail!("{}, line {}: not of the form name:password", path.display(), number + 1);
        };
        users.insert(name.to_owned(), Secret::Password(password.to_owned()));
        if users.len() > MOST_USERS {
            bail!("{} names more than {MOST_USERS} users", path.display());
        }
    }
    if users.is_empty() {
        bail!("{} names nobody: each line is name:password", path.display());
    }
    Ok(users)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users(text: &str) -> Result<HashMap<String, Secret>> {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("users");
        fs::write(&path, text).unwrap();
        read_users(&path)
    }

    #[test]
    fn a_file_of_users_is_read_or_its_line_named() {
        let known = Users::Known(users("# ours\n\nann:se:cret\nbob:\n").unwrap());
        let shown = |name, secret: &'static str| Auth {
            mechanism: Mechanism::Plain,
            name,
            proof: Proof::Shown(secret.as_bytes()),
        };
        assert!(known.knows(&shown("ann", "se:cret")) && known.knows(&shown("bob", "")));
        assert!(!known.knows(&shown("ann", "se")) && !known.knows(&shown("eve", "")));
        assert!(known.secret("eve").is_none());
        let error = users("ann:x\nnonsense\n").unwrap_err().to_string();
        assert!(error.contains("line 2"), "{error}");
        assert!(users("").is_err() && users(":x\n").is_err());
    }
}
