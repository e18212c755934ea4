//! Configures the listener of the relay that the bench starts. The bench writes a relay.toml with the features that the
//! load needs, such as TLS, and the files that this relay.toml names.
use crate::directory::RunDirectory;
use anyhow::{Context, Result};
use mailrun_process::tls_mode::TlsMode;
use std::fmt;
use std::fs::OpenOptions;
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListenerOptions {
    pub tls: TlsMode,
    /// Certificate for TLS, made for this run.
    pub certificate: Option<OwnCertificate>,
    pub login: Option<RelayLogin>,
    pub speaks_lmtp: bool,
    /// Set if each connection begins with a PROXY header.
    pub proxy_protocol: bool,
    pub xclient: bool,
    /// Client addresses that the load announces by XCLIENT. The relay must accept mail from these addresses for any
    /// recipient.
    pub clients: Vec<IpAddr>,
}

/// Certificate chain and private key, both in PEM format.
#[derive(Clone, PartialEq, Eq)]
pub struct OwnCertificate {
    pub chain: String,
    pub key: String,
}

impl fmt::Debug for OwnCertificate {
    /// Omits the private key, so that it cannot get into a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnCertificate(…)")
    }
}

#[derive(Clone, PartialEq, Eq)]
pub struct RelayLogin {
    pub name: String,
    pub password: String,
}

impl fmt::Debug for RelayLogin {
    /// Omits the password, so that it cannot get into a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Login({:?}, …)", self.name)
    }
}

/// Name of the certificate's file in the run directory. The source reads the file, because it trusts only this
/// certificate.
pub(crate) const CERTIFICATE_FILE: &str = "relay-certificate.pem";
const KEY_FILE: &str = "relay-key.pem";
const USERS_FILE: &str = "relay-users";
const CONFIGURATION_FILE: &str = "relay.toml";

impl ListenerOptions {
    pub(crate) fn is_plain(&self) -> bool {
        *self == Self::default()
    }

    /// Writes relay.toml and the files that it names into the run directory. Returns the path of relay.toml.
    pub(crate) fn write(&self, directory: &RunDirectory, sink: &str) -> Result<String> {
        let secret = |name: &str, text: &str| {
            let path = directory.path().join(name);
            let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path);
            let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
            written.with_context(|| format!("cannot write {}", path.display()))
        };
        if let Some(OwnCertificate { chain, key }) = &self.certificate {
            directory.write(CERTIFICATE_FILE, chain)?;
            secret(KEY_FILE, key)?;
        }
        if let Some(RelayLogin { name, password }) = &self.login {
            secret(USERS_FILE, &format!("{name}:{password}\n"))?;
        }
        directory.write(CONFIGURATION_FILE, &self.configuration(sink))?;
        Ok(directory.path().join(CONFIGURATION_FILE).to_string_lossy().into_owned())
    }

    /// Deletes the files with secrets, which the relay reads only when it starts.
    pub(crate) fn remove_secrets(&self, directory: &RunDirectory) {
        for name in [KEY_FILE, USERS_FILE] {
            // Ignore errors, because there is a key file only with TLS, and a users file only with a login.
            let _ = std::fs::remove_file(directory.path().join(name));
        }
    }

    fn configuration(&self, sink: &str) -> String {
        let listen = match (self.speaks_lmtp, self.tls) {
            (true, _) => "listen = []\nlisten_lmtp = \"127.0.0.1:0\"\n",
            (false, TlsMode::Implicit) => "listen = []\nlisten_tls = \"127.0.0.1:0\"\n",
            (false, TlsMode::None | TlsMode::StartTls) => "listen = \"127.0.0.1:0\"\n",
        };
        let clients: String = self.clients.iter().map(|client| format!(", \"{client}\"")).collect();
        let mut text = format!("{listen}log = \"warn\"\nnetworks = [\"127.0.0.0/8\", \"::1\"{clients}]\n");
        let parts = [
            (self.proxy_protocol, "proxy_protocol = true\n".to_owned()),
            (self.xclient, "xclient = [\"127.0.0.0/8\", \"::1\"]\n".to_owned()),
            (self.certificate.is_some(), format!("\n[tls]\ncert = \"{CERTIFICATE_FILE}\"\nkey = \"{KEY_FILE}\"\n")),
            (self.login.is_some(), format!("\n[auth]\nusers = \"{USERS_FILE}\"\n")),
        ];
        text.extend(parts.into_iter().filter(|(is_set, _)| *is_set).map(|(_, part)| part));
        text + &format!(
            "\n[spool]\ndirectory = \"relay.spool\"\n\n[[route]]\nto = \"*\"\n\
             smtp = \"{sink}\"\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_load_needs_is_configured() {
        let all = ListenerOptions {
            proxy_protocol: true,
            xclient: true,
            clients: vec!["192.0.2.1".parse().unwrap()],
            ..ListenerOptions::default()
        };
        assert!(!all.is_plain() && ListenerOptions::default().is_plain());
        let text = all.configuration("127.0.0.1:9");
        for line in ["proxy_protocol = true", "xclient = [\"127.0.0.0/8\", \"::1\"]", "smtp = \"127.0.0.1:9\""] {
            assert!(text.lines().any(|one| one == line), "{text}");
        }
        assert!(text.contains("\"192.0.2.1\"]"), "{text}");
        let lmtp = ListenerOptions { speaks_lmtp: true, ..ListenerOptions::default() };
        assert!(lmtp.configuration("127.0.0.1:9").starts_with("listen = []\nlisten_lmtp = "));
    }
}
