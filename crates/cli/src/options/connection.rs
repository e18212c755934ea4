//! Options for a source's connection to the server, such as TLS, AUTH and the PROXY protocol. A bench starts its relay
//! and sink with matching options, so that they accept the source's connections.
use crate::options::server::{Scheme, ServerArg};
use anyhow::{Context, Result, bail};
use clap::Args;
use mailrun_bench::relay::{ListenerOptions, OwnCertificate, RelayLogin};
use mailrun_load::source::{AddressRange, BodyParameter, ProxyVersion, TransportOptions};
use mailrun_net::SessionResumption;
use mailrun_process::party_options::{PartyOptions, value_name};
use mailrun_process::tls_mode::TlsMode;
use mailrun_process::users;
use mailrun_process::users::PASSWORD_VARIABLE;
use mailrun_smtp::client::Chunking;
use mailrun_smtp::sasl::{Credentials, Mechanism, Mechanisms};
use mailrun_smtp::server::Protocol;
use mailrun_smtp::xclient::{Attribute, XclientRequest};
use std::num::NonZeroUsize;
use std::path::PathBuf;

/// Options for TLS, login and addresses of a source's connections.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct ConnectionArgs {
    /// When to start TLS; the server's certificate is then verified [default: none].
    #[arg(long, value_enum)]
    tls: Option<TlsMode>,
    /// Trust the certificates in this PEM file instead of the system's.
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    cacert: Option<PathBuf>,
    /// Accept any certificate of the server.
    #[arg(long)]
    insecure: bool,
    /// Name to expect in the certificate and to send as SNI [default: the host of SERVER; localhost for unix:PATH].
    #[arg(long, value_name = "NAME")]
    tls_name: Option<String>,
    /// Client certificate (PEM), sent if the server asks for one.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key of the client certificate (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Do not resume TLS sessions: every handshake is a full one.
    #[arg(long)]
    no_tls_resumption: bool,
    /// Log in as this user, with the password from --password-file or the environment variable MAILRUN_PASSWORD.
    /// Without TLS, mechanisms that reveal the password are used with loopback addresses only.
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// File with the password in its first line.
    #[arg(long, value_name = "FILE", requires = "user")]
    password_file: Option<PathBuf>,
    /// Authentication mechanism: plain, login, cram-md5, scram-sha-256, xoauth2 [default: the strongest one offered].
    #[arg(long, value_name = "NAME", requires = "user", value_parser = str::parse::<Mechanism>)]
    auth_mechanism: Option<Mechanism>,
    /// Use LMTP (RFC 2033) instead of SMTP.
    #[arg(long)]
    lmtp: bool,
    /// Send messages with BDAT if the server offers CHUNKING (RFC 3030).
    #[arg(long)]
    chunking: bool,
    /// Declare messages as binary (BODY=BINARYMIME) if the server offers BINARYMIME.
    #[arg(long, requires = "chunking")]
    binarymime: bool,
    /// Maximum bytes per write in messages of more than 16 KiB: 4k shows what small buffers cost [default: as much as
    /// the connection takes].
    #[arg(long, value_name = "BYTES", value_parser = crate::options::values::write_size)]
    write_size: Option<NonZeroUsize>,
    /// Source addresses of connections, used in turn: 127.0.0.2-127.0.0.50.
    #[arg(long, value_name = "A[-B]", value_parser = AddressRange::parse)]
    bind: Option<AddressRange>,
    /// Send a PROXY header of this version at the start of each connection, as a proxy does.
    #[arg(long, value_enum, value_name = "VERSION")]
    proxy_protocol: Option<ProxyVersion>,
    /// Attribute to send with XCLIENT if the server offers it, repeatable: NAME=…, ADDR=…, PORT=…, PROTO=…, HELO=…,
    /// LOGIN=….
    #[arg(long, value_name = "NAME=VALUE", value_parser = attribute)]
    xclient: Vec<(Attribute, String)>,
}

fn attribute(text: &str) -> Result<(Attribute, String), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| format!("{text} must have the form NAME=VALUE"))?;
    let known = Attribute::ALL.into_iter().find(|attribute| attribute.name().eq_ignore_ascii_case(name));
    let names = || Attribute::ALL.map(Attribute::name).join(", ");
    known.map(|known| (known, value.to_owned())).ok_or_else(|| format!("{name} is not one of {}", names()))
}

impl ConnectionArgs {
    /// Returns these arguments together with the options that the scheme of the server's URL implies: TLS before the
    /// greeting for `smtps`, and LMTP for `lmtp`.
    ///
    /// # Errors
    ///
    /// Returns an error if an option contradicts the URL.
    pub(crate) fn for_server(&self, server: &ServerArg) -> Result<Self> {
        let mut approach = self.clone();
        match server.scheme() {
            Scheme::Smtp => {}
            Scheme::Lmtp => approach.lmtp = true,
            Scheme::Smtps => {
                if self.lmtp {
                    let address = server.address();
                    bail!("--lmtp cannot be used with smtps://; write lmtp://{address} and --tls implicit");
                }
                if self.tls.is_some_and(|tls| tls != TlsMode::Implicit) {
                    let address = server.address();
                    bail!("smtps:// means --tls implicit; write smtp://{address} for another use of TLS");
                }
                approach.tls = Some(TlsMode::Implicit);
            }
        }
        Ok(approach)
    }

    fn tls_mode(&self) -> TlsMode {
        self.tls.unwrap_or_default()
    }

    /// Converts the arguments into the options of the source.
    ///
    /// # Errors
    ///
    /// Returns an error if the password is missing or cannot be read, or if a TLS option is given without `--tls`.
    pub(crate) fn options(&self) -> Result<TransportOptions> {
        if let Some(option) = self.option_without_effect() {
            bail!("{option} requires --tls starttls or --tls implicit");
        }
        Ok(TransportOptions {
            tls: self.tls_mode(),
            tls_insecure: self.insecure,
            ca: self.cacert.clone(),
            server_name: self.tls_name.clone(),
            certificate: self.tls_cert.clone().zip(self.tls_key.clone()),
            resumption: if self.no_tls_resumption { SessionResumption::Off } else { SessionResumption::On },
            credentials: self.credentials()?,
            protocol: if self.lmtp { Protocol::Lmtp } else { Protocol::Smtp },
            chunking: if self.chunking { Chunking::IfOffered } else { Chunking::Never },
            write_size: self.write_size,
            bind: self.bind,
            proxy: self.proxy_protocol,
            introduction: self.introduction()?,
        })
    }

    /// Returns a TLS option that the user gave without turning TLS on. Such an option must be refused, because the user
    /// believes that mail and password are encrypted.
    fn option_without_effect(&self) -> Option<&'static str> {
        let options = [
            (self.insecure, "--insecure"),
            (self.cacert.is_some(), "--cacert"),
            (self.tls_name.is_some(), "--tls-name"),
            (self.tls_cert.is_some(), "--tls-cert"),
            (self.no_tls_resumption, "--no-tls-resumption"),
        ];
        let is_plain = self.tls_mode() == TlsMode::None;
        options.into_iter().find(|(is_set, _)| is_plain && *is_set).map(|(_, option)| option)
    }

    /// Returns true if TLS is on, but neither `--cacert` nor `--insecure` is given. A bench must then tell the source
    /// to trust the self-signed certificate of the sink or relay that the bench starts.
    pub(crate) fn needs_trust(&self) -> bool {
        self.tls_mode() != TlsMode::None && self.cacert.is_none() && !self.insecure
    }

    /// Returns the first option that the user gave and that works only if the server supports it, such as `--lmtp`.
    pub(crate) fn negotiated_option(&self) -> Option<&'static str> {
        let options = [
            (self.tls_mode() != TlsMode::None, "--tls"),
            (self.lmtp, "--lmtp"),
            (self.user.is_some(), "--user"),
            (self.proxy_protocol.is_some(), "--proxy-protocol"),
            (!self.xclient.is_empty(), "--xclient"),
            (self.binarymime, "--binarymime"),
        ];
        options.into_iter().find(|(is_set, _)| *is_set).map(|(_, option)| option)
    }

    /// Returns `--tls` and `--lmtp`, which the scheme of the server's URL may imply. A bench must pass these options to
    /// its source, because the source gets only the address of the server, without the scheme.
    pub(crate) fn of_url(&self) -> PartyOptions {
        PartyOptions::default().with("tls", value_name(self.tls_mode())).flag("lmtp", self.lmtp)
    }

    pub(crate) fn declaration(&self) -> BodyParameter {
        if self.binarymime { BodyParameter::Binary } else { BodyParameter::Automatic }
    }

    /// Returns the reason why the relay that a bench starts does not support a given option, or `None` if it supports
    /// all.
    pub(crate) fn unsupported_by_relay(&self) -> Option<&'static str> {
        let reasons = [
            (self.binarymime, "--binarymime: the relay that bench starts takes no binary messages"),
            (self.cacert.is_some(), "--cacert has no effect: the relay that bench starts has a certificate of its own"),
            (
                self.lmtp && self.tls_mode() == TlsMode::Implicit,
                "--lmtp cannot be used with --tls implicit: the relay that bench starts offers STARTTLS with LMTP",
            ),
        ];
        reasons.into_iter().find(|(is_set, _)| *is_set).map(|(_, reason)| reason)
    }

    /// Returns what a relay that the bench starts must offer to the source, such as TLS or AUTH. With TLS, this
    /// includes a new self-signed certificate.
    ///
    /// # Errors
    ///
    /// Returns an error if the password is missing, or if the certificate cannot be made.
    pub(crate) fn listener(&self) -> Result<ListenerOptions> {
        let tls = self.tls_mode();
        let names = ["localhost", "127.0.0.1", "::1"].into_iter().chain(self.tls_name.as_deref());
        let certificate = || -> Result<OwnCertificate> {
            let own = mailrun_net::Certificate::self_signed(&names.collect::<Vec<_>>()).context("--tls-name")?;
            Ok(OwnCertificate { chain: own.to_pem(), key: own.key_to_pem() })
        };
        let client = |(attribute, value): &(Attribute, String)| {
            let value = value.strip_prefix("IPV6:").unwrap_or(value);
            (*attribute == Attribute::Address).then(|| value.parse().ok()).flatten()
        };
        Ok(ListenerOptions {
            tls,
            certificate: (tls != TlsMode::None).then(certificate).transpose()?,
            login: self.credentials()?.map(|own| RelayLogin { name: own.name, password: own.secret }),
            speaks_lmtp: self.lmtp,
            proxy_protocol: self.proxy_protocol.is_some(),
            xclient: !self.xclient.is_empty(),
            clients: self.xclient.iter().filter_map(client).collect(),
        })
    }

    /// Returns the options that the bench's sink needs to accept the source's connections, such as `--proxy-protocol`.
    pub(crate) fn sink_options(&self) -> PartyOptions {
        PartyOptions::default()
            .with("tls", value_name(self.tls_mode()))
            .flag("no-tls-resumption", self.no_tls_resumption)
            .flag("lmtp", self.lmtp)
            .flag("auth-any", self.user.is_some())
            .flag("proxy-protocol", self.proxy_protocol.is_some())
            .flag("xclient", !self.xclient.is_empty())
    }

    fn introduction(&self) -> Result<Option<XclientRequest>> {
        if self.xclient.is_empty() {
            return Ok(None);
        }
        let mut introduction = XclientRequest::default();
        for (attribute, value) in &self.xclient {
            let hint = if value.contains('=') { "--xclient once for each NAME=VALUE" } else { "--xclient" };
            introduction = introduction.with_attribute(*attribute, value).context(hint)?;
        }
        Ok(Some(introduction))
    }

    fn credentials(&self) -> Result<Option<Credentials>> {
        let Some(user) = &self.user else { return Ok(None) };
        let credentials = Credentials::new(user, &self.password()?);
        Ok(Some(match self.auth_mechanism {
            Some(mechanism) => credentials.by(Mechanisms::NONE.with(mechanism)),
            None => credentials,
        }))
    }

    fn password(&self) -> Result<String> {
        if let Some(path) = &self.password_file {
            return users::read_password(path).with_context(|| format!("cannot read {}", path.display()));
        }
        match std::env::var(PASSWORD_VARIABLE) {
            Ok(password) => Ok(password),
            Err(_) => bail!("--user requires a password: use --password-file FILE, or set {PASSWORD_VARIABLE}"),
        }
    }
}
