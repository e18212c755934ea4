//! Options for what a sink offers before a client sends mail: its greeting, TLS, AUTH, XCLIENT and the PROXY protocol.
use anyhow::{Result, bail};
use clap::Args;
use mailrun_load::sink::{CapabilityOptions, LoginPolicy};
use mailrun_net::{Proxied, SessionResumption};
use mailrun_process::tls_mode::TlsMode;
use mailrun_smtp::server::Protocol;
use mailrun_smtp::xclient::Attributes;
use std::path::PathBuf;

/// Options for TLS, AUTH and the protocol of a sink.
#[derive(Debug, Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct CapabilityArgs {
    /// Use of TLS. Without --tls-cert the sink makes a self-signed certificate.
    #[arg(long, value_enum, default_value = "none")]
    tls: TlsMode,
    /// Certificate chain (PEM), read again when it changes and on SIGHUP.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Write the certificate to this file, for --cacert of a client.
    #[arg(long, value_name = "FILE")]
    tls_write_cert: Option<PathBuf>,
    /// Require a client certificate signed by one of the authorities in this PEM file.
    #[arg(long, value_name = "FILE")]
    tls_client_ca: Option<PathBuf>,
    /// Do not resume TLS sessions: every handshake is a full one.
    #[arg(long)]
    no_tls_resumption: bool,
    /// Offer AUTH, and accept any user and password.
    #[arg(long, conflicts_with = "auth_users")]
    auth_any: bool,
    /// Offer AUTH to the users in this file, one name:password per line. Failed logins are neither delayed nor limited;
    /// `mailrun relay` does both.
    #[arg(long, value_name = "FILE")]
    auth_users: Option<PathBuf>,
    /// Reject mail without AUTH; requires --auth-any or --auth-users.
    #[arg(long)]
    auth_required: bool,
    /// Use LMTP (RFC 2033) instead of SMTP: one reply per recipient.
    #[arg(long)]
    lmtp: bool,
    /// Require a PROXY header (version 1 or 2) on each connection, and trust it.
    #[arg(long)]
    proxy_protocol: bool,
    /// Offer XCLIENT, and trust what clients send with it.
    #[arg(long)]
    xclient: bool,
}

impl CapabilityArgs {
    /// # Errors
    ///
    /// Returns an error if a TLS option is given without `--tls`, or `--auth-required` without users.
    pub(crate) fn options(&self) -> Result<CapabilityOptions> {
        if let Some(option) = self.option_without_effect() {
            bail!("{option} requires --tls starttls or --tls implicit");
        }
        if self.auth_required && !self.auth_any && self.auth_users.is_none() {
            bail!("--auth-required requires --auth-users FILE or --auth-any");
        }
        let login = match (&self.auth_users, self.auth_any) {
            (Some(path), _) => LoginPolicy::Users(path.clone()),
            (None, true) => LoginPolicy::Anybody,
            (None, false) => LoginPolicy::Off,
        };
        Ok(CapabilityOptions {
            tls: self.tls,
            certificate: self.tls_cert.clone().zip(self.tls_key.clone()),
            certificate_output: self.tls_write_cert.clone(),
            client_ca: self.tls_client_ca.clone(),
            resumption: if self.no_tls_resumption { SessionResumption::Off } else { SessionResumption::On },
            login,
            requires_auth: self.auth_required,
            protocol: if self.lmtp { Protocol::Lmtp } else { Protocol::Smtp },
            proxy_header: if self.proxy_protocol { Proxied::Yes } else { Proxied::No },
            xclient: if self.xclient { Attributes::ALL } else { Attributes::NONE },
        })
    }

    /// Returns an option for TLS that the user gave without turning TLS on. Such an option must be refused, because the
    /// user believes that mail arrives encrypted.
    fn option_without_effect(&self) -> Option<&'static str> {
        let options = [
            (self.tls_cert.is_some(), "--tls-cert"),
            (self.tls_write_cert.is_some(), "--tls-write-cert"),
            (self.tls_client_ca.is_some(), "--tls-client-ca"),
            (self.no_tls_resumption, "--no-tls-resumption"),
        ];
        let is_plain = self.tls == TlsMode::None;
        options.into_iter().find(|(is_set, _)| is_plain && *is_set).map(|(_, option)| option)
    }
}
