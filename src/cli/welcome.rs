//! What a sink offers before there is mail: what was typed, to what it means.
use super::approach::TlsTyped;
use crate::sink::{Login, WelcomeOptions};
use crate::tls_mode::TlsMode;
use anyhow::{Result, bail};
use clap::Args;
use net::{Proxied, SessionResumption};
use smtp::server::Protocol;
use smtp::xclient::Attributes;
use std::path::PathBuf;

/// TLS, AUTH and protocol of a sink.
#[derive(Debug, Args)]
#[command(next_help_heading = "Connection")]
pub(super) struct WelcomeTyped {
    /// TLS. Without --tls-cert the sink makes a certificate of its own.
    #[arg(long, value_enum, default_value = "none")]
    tls: TlsTyped,
    /// The certificate chain (PEM). Read again when it changes, and on SIGHUP.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Its key (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Write the certificate here, for a client's --ca.
    #[arg(long, value_name = "FILE")]
    tls_cert_to: Option<PathBuf>,
    /// Clients must show a certificate that one of these (PEM) signed.
    #[arg(long, value_name = "FILE")]
    tls_client_ca: Option<PathBuf>,
    /// Make every handshake a full one.
    #[arg(long)]
    no_tls_resumption: bool,
    /// Offer AUTH and let anybody in, with any password.
    #[arg(long, conflicts_with = "auth_users")]
    auth_any: bool,
    /// Offer AUTH to the users of this file: name:password, one a line. Nobody is slowed or locked out, however many logins
    /// fail: a relay does that.
    #[arg(long, value_name = "FILE")]
    auth_users: Option<PathBuf>,
    /// Take no mail without AUTH.
    #[arg(long)]
    auth_required: bool,
    /// Speak LMTP (RFC 2033): an answer for each recipient.
    #[arg(long)]
    lmtp: bool,
    /// Believe the PROXY header (version 1 or 2) that each connection must begin with.
    #[arg(long)]
    proxy: bool,
    /// Offer XCLIENT, and believe what it says.
    #[arg(long)]
    xclient: bool,
}

impl WelcomeTyped {
    /// What is meant.
    ///
    /// # Errors
    /// If there is an option for TLS and no TLS.
    pub(super) fn options(&self) -> Result<WelcomeOptions> {
        if let Some(option) = self.idle_option() {
            bail!("{option} is for TLS: say --tls starttls or --tls implicit too");
        }
        let login = match (&self.auth_users, self.auth_any || self.auth_required) {
            (Some(path), _) => Login::Users(path.clone()),
            (None, true) => Login::Anybody,
            (None, false) => Login::Off,
        };
        Ok(WelcomeOptions {
            tls: self.tls.into(),
            certificate: self.tls_cert.clone().zip(self.tls_key.clone()),
            certificate_to: self.tls_cert_to.clone(),
            client_ca: self.tls_client_ca.clone(),
            resumption: if self.no_tls_resumption { SessionResumption::Off } else { SessionResumption::On },
            login,
            requires_auth: self.auth_required,
            protocol: if self.lmtp { Protocol::Lmtp } else { Protocol::Smtp },
            proxied: if self.proxy { Proxied::Yes } else { Proxied::No },
            xclient: if self.xclient { Attributes::ALL } else { Attributes::NONE },
        })
    }

    /// An option that would do nothing for want of TLS: who gave it believes that mail comes encrypted.
    fn idle_option(&self) -> Option<&'static str> {
        let options = [
            (self.tls_cert.is_some(), "--tls-cert"),
            (self.tls_cert_to.is_some(), "--tls-cert-to"),
            (self.tls_client_ca.is_some(), "--tls-client-ca"),
            (self.no_tls_resumption, "--no-tls-resumption"),
        ];
        let is_plain = TlsMode::from(self.tls) == TlsMode::None;
        options.into_iter().find(|(is_set, _)| is_plain && *is_set).map(|(_, option)| option)
    }
}
