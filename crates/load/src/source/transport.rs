//! Options for the connections of a load: source address, PROXY header, TLS, login and protocol.
use anyhow::{Result, anyhow, bail};
use mailrun_measurement::record::Pipelining;
use mailrun_net::{
    Certificate, CertificateRecorder, ClientSecurity, ClientTls, Endpoint, SessionResumption, Socket, Timer,
    TlsSetupError, Trust, clock,
};
use mailrun_process::local_address::is_loopback;
use mailrun_process::tls_mode::TlsMode;
use mailrun_smtp::client::{
    BurstSize, Chunking, Notifications, Options, PipelineMode as Commands, StartTls, StopPoint,
};
use mailrun_smtp::proxy::{ProxyHeader, render_v1, render_v2};
use mailrun_smtp::sasl::{Credentials, Mechanism, Mechanisms};
use mailrun_smtp::server::Protocol;
use mailrun_smtp::xclient::XclientRequest;
use mailrun_tls_verify::Remedies;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Options that error messages suggest if the server cannot be verified.
pub(super) const REMEDIES: Remedies =
    Remedies { trust: "--cacert FILE", name: "--tls-name NAME", insecure: "--insecure" };

#[derive(Clone, Debug, Default)]
pub struct TransportOptions {
    pub tls: TlsMode,
    pub tls_insecure: bool,
    /// File with trusted certificates. Without it, the certificates of the system are trusted.
    pub ca: Option<PathBuf>,
    /// Name that the server's certificate must have, also sent as SNI. By default, this is the host
    /// of the address, or `localhost` for a unix-domain socket.
    pub server_name: Option<String>,
    /// Client certificate and its key, if the server asks for one.
    pub certificate: Option<(PathBuf, PathBuf)>,
    pub resumption: SessionResumption,
    pub credentials: Option<Credentials>,
    pub protocol: Protocol,
    pub chunking: Chunking,
    /// Maximum number of bytes in one write of a long message. By default, each write has as many
    /// bytes as the connection accepts.
    pub write_size: Option<NonZeroUsize>,
    /// Local addresses from which connections are made. By default, the kernel chooses an address.
    pub bind: Option<AddressRange>,
    /// Version of the PROXY header that each connection begins with, or `None` to send none.
    pub proxy: Option<ProxyVersion>,
    /// Attributes that are sent with XCLIENT, or `None` to send no XCLIENT.
    pub introduction: Option<XclientRequest>,
}

impl TransportOptions {
    /// Fails if a password would be sent to another host without encryption.
    pub(crate) fn check_password(&self, server: &Endpoint) -> Result<()> {
        if self.exposes_password() && !is_loopback(server) {
            bail!(
                "--user: the password would be sent unencrypted to {server}; use --tls, or --auth-mechanism scram-sha-256 \
                 or cram-md5"
            );
        }
        Ok(())
    }

    /// Returns true if an eavesdropper could read the password, because there is no TLS and the
    /// login may use PLAIN, LOGIN or XOAUTH2.
    fn exposes_password(&self) -> bool {
        const SHOWING: [Mechanism; 3] = [Mechanism::Plain, Mechanism::Login, Mechanism::Xoauth2];
        let mechanisms = self.credentials.as_ref().map_or(Mechanisms::NONE, |credentials| credentials.mechanisms);
        self.tls == TlsMode::None && SHOWING.into_iter().any(|mechanism| mechanisms.has(mechanism))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ProxyVersion {
    /// Text
    V1,
    /// Binary
    V2,
}

/// Range of source addresses that are used in turn, because a single address may run out of ports if each message has
/// its own connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange {
    first: u32,
    count: u32,
}

impl AddressRange {
    /// Parses an IPv4 address `A`, or a range `A-B` of at most 65,536 addresses.
    pub fn parse(text: &str) -> Result<Self, String> {
        let error = || format!("{text} is not an IPv4 address or a range such as 127.0.0.2-127.0.0.50");
        let read = |text: &str| text.parse::<Ipv4Addr>().map(u32::from).map_err(|_| error());
        let (first, last) = match text.split_once('-') {
            None => (read(text)?, read(text)?),
            Some((first, last)) => (read(first)?, read(last)?),
        };
        match last.checked_sub(first) {
            Some(more) if more < 1 << 16 => Ok(Self { first, count: more + 1 }),
            Some(_) => Err(format!("{text} is more than 65,536 addresses")),
            None => Err(error()),
        }
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, last] = [self.first, self.first + (self.count - 1)].map(Ipv4Addr::from);
        write!(f, "{first}-{last}")
    }
}

/// Connection options that all sessions of a load share, with the certificate files already read.
#[derive(Debug)]
pub(crate) struct Transport {
    pub(crate) security: Option<ClientSecurity>,
    pub(crate) options: Arc<Options>,
    proxy: Option<ProxyVersion>,
    bind: Option<AddressRange>,
    next_source: AtomicU32,
}

impl Transport {
    /// Converts the connection options to options of the SMTP client, and reads the certificate files. `host` is the
    /// part of the server's address before the port.
    pub(crate) fn new(options: &TransportOptions, pipelining: Pipelining, host: &str) -> Result<Self> {
        let client_options = Options {
            protocol: options.protocol,
            pipelining: match pipelining {
                Pipelining::Off => Commands::Off,
                Pipelining::Group | Pipelining::Stream => Commands::Group,
            },
            tls: if options.tls == TlsMode::StartTls { StartTls::Required } else { StartTls::Never },
            credentials: options.credentials.clone(),
            chunking: options.chunking,
            xclient: options.introduction.clone(),
            notifications: Notifications::Unasked,
            burst: BurstSize::NONE,
            quit_timeout: None,
            refuses_own_name: false,
            greeting_timeout: None,
            message_timeout: None,
            stop_after: None,
        };
        let security = match options.tls {
            TlsMode::None => None,
            TlsMode::StartTls => Some(ClientSecurity::OnDemand(client_tls(options, host)?)),
            TlsMode::Implicit => Some(ClientSecurity::Implicit(client_tls(options, host)?)),
        };
        Ok(Self {
            security,
            options: Arc::new(client_options),
            proxy: options.proxy,
            bind: options.bind,
            next_source: AtomicU32::new(0),
        })
    }

    pub(crate) fn with_notifications(self, notifications: Notifications) -> Self {
        let options = Options { notifications, ..Options::clone(&self.options) };
        Self { options: Arc::new(options), ..self }
    }

    /// Makes sessions end after the SMTP step `point`, before a message is sent. With `None`, sessions send their
    /// messages.
    pub(crate) fn stopping_after(self, point: Option<StopPoint>) -> Self {
        let options = Options { stop_after: point, ..Options::clone(&self.options) };
        Self { options: Arc::new(options), ..self }
    }

    /// Makes connections record which certificates the server presents, and whether they are trusted, even if
    /// `--insecure` accepts any certificate. Fails without TLS, because then there are no certificates.
    pub(crate) fn record_certificates(&mut self, options: &TransportOptions) -> Result<Arc<CertificateRecorder>> {
        let Some(ClientSecurity::Implicit(tls) | ClientSecurity::OnDemand(tls)) = &mut self.security else {
            bail!("--show-cert requires --tls starttls or --tls implicit");
        };
        let judge = trust(&TransportOptions { tls_insecure: false, ..options.clone() })?;
        let recorder = tls.record_certificates(&trust(options)?, &judge);
        recorder.map_err(|error| anyhow!("--show-cert: {error}"))
    }

    /// Connects to the server, and sends the PROXY header if the options ask for one.
    pub(crate) async fn connect(&self, server: &Endpoint, timeout: Duration, timer: &mut Timer) -> io::Result<Socket> {
        let connecting = async {
            let socket = Socket::connect_to(self.next_source_address(), server).await?;
            if let Some(version) = self.proxy {
                socket.write_all(&proxy_header(version, socket.local_address(), server.address())).await?;
            }
            Ok(socket)
        };
        match timer.timeout_at(clock::now() + timeout, Box::pin(connecting)).await {
            Some(outcome) => outcome,
            None => Err(io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {timeout:?}"))),
        }
    }

    pub(super) fn is_bound(&self) -> bool {
        self.bind.is_some()
    }

    /// Returns the source address of the next connection, or `None` if the kernel should choose it.
    fn next_source_address(&self) -> Option<IpAddr> {
        let AddressRange { first, count } = self.bind?;
        let turn = self.next_source.fetch_add(1, Ordering::Relaxed);
        Some(Ipv4Addr::from(first + turn % count).into())
    }
}

fn proxy_header(version: ProxyVersion, source: Option<SocketAddr>, destination: SocketAddr) -> Vec<u8> {
    let header = match source {
        Some(source) => ProxyHeader::Proxied { source, destination },
        None => ProxyHeader::Local,
    };
    match version {
        ProxyVersion::V1 => render_v1(&header).into_bytes(),
        ProxyVersion::V2 => render_v2(&header),
    }
}

fn trust(options: &TransportOptions) -> Result<Trust> {
    Ok(match (&options.ca, options.tls_insecure) {
        (_, true) => Trust::Anybody,
        (Some(path), false) => Trust::read(path)?,
        (None, false) => Trust::System,
    })
}

fn client_tls(options: &TransportOptions, host: &str) -> Result<ClientTls> {
    let trust = trust(options)?;
    let certificate = match &options.certificate {
        Some((chain, key)) => Some(Certificate::read(chain, key)?),
        None => None,
    };
    let name = options.server_name.as_deref().unwrap_or(host);
    if name.is_empty() {
        bail!("--tls: the server has no name to verify; use --tls-name NAME, or --insecure");
    }
    ClientTls::new(name, &trust, certificate, options.resumption).map_err(|error| {
        match (&error, &options.certificate) {
            (TlsSetupError::NoSystemRoots, _) => anyhow!("{error}; {}", REMEDIES.without_roots()),
            (TlsSetupError::Refused(_), Some((chain, key))) => {
                anyhow!("{} and {} cannot be used: {error}", chain.display(), key.display())
            }
            _ => anyhow!("--tls: {error}"),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_in_turn() {
        let bind = Some(AddressRange::parse("127.0.0.2-127.0.0.4").unwrap());
        let approach = Transport::new(&TransportOptions { bind, ..Default::default() }, Pipelining::Off, "").unwrap();
        let addresses: Vec<String> = (0..4).map(|_| approach.next_source_address().unwrap().to_string()).collect();
        assert_eq!(addresses, ["127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.2"]);
        let none = Transport::new(&TransportOptions::default(), Pipelining::Off, "").unwrap();
        assert_eq!(none.next_source_address(), None);
    }

    #[test]
    fn a_password_in_the_clear_is_known_for_one() {
        let credentials = Credentials::new("u", "p");
        let by = |mechanism| Some(credentials.clone().by(Mechanisms::NONE.with(mechanism)));
        for (credentials, tls, shows) in [
            (None, TlsMode::None, false),
            (Some(credentials.clone()), TlsMode::None, true),
            (Some(credentials.clone()), TlsMode::StartTls, false),
            (Some(credentials.clone()), TlsMode::Implicit, false),
            (by(Mechanism::Login), TlsMode::None, true),
            (by(Mechanism::Xoauth2), TlsMode::None, true),
            (by(Mechanism::CramMd5), TlsMode::None, false),
            (by(Mechanism::ScramSha256), TlsMode::None, false),
        ] {
            assert_eq!(TransportOptions { credentials, tls, ..Default::default() }.exposes_password(), shows);
        }
    }

    #[test]
    fn what_is_no_range_is_refused() {
        for text in ["", "127.0.0.9-127.0.0.2", "::1", "127.0.0.2-", "10.0.0.0-10.255.255.255", "a-b"] {
            assert!(AddressRange::parse(text).is_err(), "{text}");
        }
    }
}
