//! Settings of each side for a TLS handshake: certificates, keys and trusted roots.
use mailrun_lock::{lock, unpoisoned};
use mailrun_tls_verify::CertificateRecorder;
use rustls::client::danger::ServerCertVerifier;
use rustls::client::{
    ClientSessionStore, Resumption, Tls12ClientSessionValue, Tls13ClientSessionValue, WebPkiServerVerifier,
};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, NamedGroup, RootCertStore, ServerConfig, SupportedProtocolVersion};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, RwLock};

/// Maximum number of TLS 1.3 tickets that a client keeps. A ticket resumes only one session, so parallel sessions need
/// a ticket each. rustls' own store keeps only eight per server.
const MAX_TICKETS: usize = 1024;

/// Reason why a certificate, a key, a trusted root or a server's name cannot be used for TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsSetupError {
    /// The PEM text contains no certificate, for example because it holds only a key.
    #[error("no certificate in PEM form")]
    NoCertificate,
    /// The PEM text is damaged, so that a certificate in it cannot be read.
    #[error("a certificate in PEM form cannot be read: {0}")]
    BadPem(String),
    /// The PEM text contains no private key, for example because it holds only certificates.
    #[error("no private key in PEM form")]
    NoKey,
    /// The server's name is neither a host name nor an IP address.
    #[error("{0} is not a valid server name")]
    BadName(String),
    /// The system has no certificates to trust, so no server could be verified.
    #[error("this system has no trusted certificates")]
    NoSystemRoots,
    /// rustls refuses the certificates or the key.
    #[error(transparent)]
    Refused(#[from] rustls::Error),
    /// A self-signed certificate could not be made, for example because a name is invalid.
    #[error("cannot make a certificate: {0}")]
    Unmade(#[from] rcgen::Error),
    /// Client certificates cannot be verified with the given roots.
    #[error("cannot verify clients: {0}")]
    NoVerifier(#[from] rustls::server::VerifierBuilderError),
}

/// Tells whether earlier TLS sessions may be resumed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SessionResumption {
    /// A handshake may resume an earlier session, which costs both sides less.
    #[default]
    On,
    /// Every handshake is a full handshake, even if the client has connected before.
    Off,
}

/// Versions of TLS that a client offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsVersions {
    /// The client offers TLS 1.3 and TLS 1.2, between which the server chooses.
    #[default]
    All,
    /// The client offers only TLS 1.2.
    Only12,
    /// The client offers only TLS 1.3.
    Only13,
}

impl TlsVersions {
    fn supported(self) -> &'static [&'static SupportedProtocolVersion] {
        static ONLY_12: [&SupportedProtocolVersion; 1] = [&TLS12];
        static ONLY_13: [&SupportedProtocolVersion; 1] = [&TLS13];
        match self {
            Self::All => rustls::DEFAULT_VERSIONS,
            Self::Only12 => &ONLY_12,
            Self::Only13 => &ONLY_13,
        }
    }
}

/// A certificate chain and its private key.
#[derive(Debug)]
pub struct Certificate {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Certificate {
    /// Parses a certificate chain and a key in PEM format.
    ///
    /// # Errors
    /// Fails if there is no certificate or no key.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<Self, TlsSetupError> {
        let chain = certificates_from(chain)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| TlsSetupError::NoKey)?;
        Ok(Self { chain, key })
    }

    /// Creates a self-signed certificate for these host names and IP addresses.
    ///
    /// # Errors
    /// Fails if a name is invalid.
    pub fn self_signed(names: &[&str]) -> Result<Self, TlsSetupError> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let made = rcgen::generate_simple_self_signed(names)?;
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        Ok(Self { chain: vec![made.cert.der().clone()], key: key.into() })
    }

    /// Returns the first certificate in PEM format, for clients that should trust it.
    pub fn to_pem(&self) -> String {
        pem("CERTIFICATE", self.chain.first().map(|first| first.as_ref()).unwrap_or_default())
    }

    /// Returns the private key in PEM format, for programs that read it from a file.
    pub fn key_to_pem(&self) -> String {
        let label = match &self.key {
            PrivateKeyDer::Pkcs1(_) => "RSA PRIVATE KEY",
            PrivateKeyDer::Sec1(_) => "EC PRIVATE KEY",
            _ => "PRIVATE KEY",
        };
        pem(label, self.key.secret_der())
    }
}

/// A server's TLS settings, which all clones share, so that [renewing](ServerTls::renew) one clone renews all.
#[derive(Clone, Debug)]
pub struct ServerTls(Arc<RwLock<Arc<ServerConfig>>>);

impl ServerTls {
    /// Creates the TLS settings of a server that shows this certificate to its clients. If `client_roots` (PEM) are
    /// given, clients must show a certificate that is signed by one of them.
    ///
    /// # Errors
    /// Returns a [`TlsSetupError`] if rustls rejects the certificate, the key or `client_roots`.
    pub fn new(
        certificate: Certificate,
        client_roots: Option<&[u8]>,
        resumption: SessionResumption,
    ) -> Result<Self, TlsSetupError> {
        let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
        let builder = match client_roots {
            None => builder.with_no_client_auth(),
            Some(roots) => {
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots_from(roots)?), provider()).build()?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder.with_single_cert(certificate.chain, certificate.key)?;
        match resumption {
            SessionResumption::On => {
                config.ticketer = rustls::crypto::ring::Ticketer::new()?;
                // Send one ticket instead of two. One ticket is enough, because each resumed handshake brings a new
                // ticket. Each ticket costs both sides a key derivation, an encryption and a record.
                config.send_tls13_tickets = 1;
            }
            SessionResumption::Off => {
                config.session_storage = Arc::new(NoServerSessionStorage {});
                config.send_tls13_tickets = 0;
            }
        }
        Ok(Self(Arc::new(RwLock::new(Arc::new(config)))))
    }

    /// Uses the settings of `other` for new sessions, while existing sessions keep their settings.
    pub fn renew(&self, other: &Self) {
        let config = other.config();
        *unpoisoned(self.0.write()) = config;
    }

    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        let config = unpoisoned(self.0.read());
        Arc::clone(&config)
    }
}

/// Tells whether a server uses TLS, and when it begins.
#[derive(Clone, Debug, Default)]
pub enum ServerSecurity {
    /// The server has no TLS, and does not offer STARTTLS.
    #[default]
    None,
    /// The server begins TLS after a client has sent STARTTLS (RFC 3207).
    Offered(ServerTls),
    /// The server begins TLS before the greeting (RFC 8314).
    Implicit(ServerTls),
}

/// Certificates that a client trusts when it verifies a server.
#[derive(Clone, Debug)]
pub enum Trust {
    /// The certificates that the system trusts.
    System,
    /// The certificates in this PEM text, which may be authorities or certificates of servers.
    Roots(Vec<u8>),
    /// Any certificate, for any name. Only the signatures of the handshake are verified.
    Anybody,
}

/// A client's TLS settings for one server.
#[derive(Clone, Debug)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl ClientTls {
    /// Creates settings for a server with this host name or IP address, which is also sent in SNI if it is a host name.
    ///
    /// # Errors
    /// Returns a [`TlsSetupError`] if the name or the certificates cannot be used.
    pub fn new(
        name: &str,
        trust: &Trust,
        certificate: Option<Certificate>,
        resumption: SessionResumption,
    ) -> Result<Self, TlsSetupError> {
        Self::with_versions(TlsVersions::All, name, trust, certificate, resumption)
    }

    /// Creates settings for a server with this name. The system must trust the server's certificate.
    ///
    /// # Errors
    /// Returns a [`TlsSetupError`] if the name is invalid or the system has no certificates.
    pub fn verified(name: &str) -> Result<Self, TlsSetupError> {
        Self::new(name, &Trust::System, None, SessionResumption::On)
    }

    /// Like [`ClientTls::new`], but offers only these versions of TLS.
    ///
    /// # Errors
    /// Returns a [`TlsSetupError`] if the name or the certificates cannot be used.
    pub fn with_versions(
        versions: TlsVersions,
        name: &str,
        trust: &Trust,
        certificate: Option<Certificate>,
        resumption: SessionResumption,
    ) -> Result<Self, TlsSetupError> {
        let name = ServerName::try_from(name.to_owned()).map_err(|_| TlsSetupError::BadName(name.to_owned()))?;
        let builder = ClientConfig::builder_with_provider(provider()).with_protocol_versions(versions.supported())?;
        let builder = builder.dangerous().with_custom_certificate_verifier(verifier_of(trust)?);
        let mut config = match certificate {
            None => builder.with_no_client_auth(),
            Some(Certificate { chain, key }) => builder.with_client_auth_cert(chain, key)?,
        };
        config.resumption = match resumption {
            SessionResumption::On => Resumption::store(Arc::new(SessionStore::default())),
            SessionResumption::Off => Resumption::disabled(),
        };
        Ok(Self { config: Arc::new(config), name })
    }

    /// Records the certificates that the server shows, and whether `judge` would trust them. Only `trust` decides
    /// whether the client accepts the server, so a connection succeeds even if `judge` does not trust the server.
    ///
    /// # Errors
    /// Returns a [`TlsSetupError`] if the certificates of `trust` cannot be used.
    pub fn record_certificates(
        &mut self,
        trust: &Trust,
        judge: &Trust,
    ) -> Result<Arc<CertificateRecorder>, TlsSetupError> {
        // Do not fail if the certificates of `judge` cannot be used, for example because the system has none. The
        // recorder then reports this error instead of a verdict about the server.
        let judge = verifier_of(judge).map_err(|error| error.to_string());
        let recorder = Arc::new(CertificateRecorder::new(verifier_of(trust)?, judge));
        let verifier: Arc<dyn ServerCertVerifier> = Arc::clone(&recorder) as _;
        Arc::make_mut(&mut self.config).dangerous().set_certificate_verifier(verifier);
        Ok(recorder)
    }

    pub(crate) fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.config)
    }

    pub(crate) fn name(&self) -> ServerName<'static> {
        self.name.clone()
    }
}

fn verifier_of(trust: &Trust) -> Result<Arc<dyn ServerCertVerifier>, TlsSetupError> {
    Ok(match trust {
        Trust::System => {
            let verifier = WebPkiServerVerifier::builder_with_provider(system_roots()?, provider()).build();
            verifier.map_err(|error| rustls::Error::General(error.to_string()))?
        }
        Trust::Roots(pem) => mailrun_tls_verify::servers_of(certificates_from(pem)?, &provider())?,
        Trust::Anybody => mailrun_tls_verify::any_server(&provider()),
    })
}

/// Stores the TLS sessions and tickets with which a client can resume a session. A client connects to only one server,
/// so the store ignores the servers' names.
#[derive(Default)]
struct SessionStore(Mutex<StoredSessions>);

#[derive(Default)]
struct StoredSessions {
    group: Option<NamedGroup>,
    session: Option<Tls12ClientSessionValue>,
    /// TLS 1.3 tickets, each of which resumes one session. The newest is the last, and is used first.
    tickets: Vec<Tls13ClientSessionValue>,
}

impl SessionStore {
    fn lock(&self) -> MutexGuard<'_, StoredSessions> {
        // Each value is changed in a single step, so all are valid even if a thread has panicked with the lock held.
        lock(&self.0)
    }
}

impl fmt::Debug for SessionStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Print only the number of tickets, because tickets and sessions contain secret keys.
        f.debug_struct("SessionStore").field("tickets", &self.lock().tickets.len()).finish_non_exhaustive()
    }
}

impl ClientSessionStore for SessionStore {
    fn set_kx_hint(&self, _: ServerName<'static>, group: NamedGroup) {
        self.lock().group = Some(group);
    }

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        self.lock().group
    }

    fn set_tls12_session(&self, _: ServerName<'static>, session: Tls12ClientSessionValue) {
        self.lock().session = Some(session);
    }

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.lock().session.clone()
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {
        self.lock().session = None;
    }

    fn insert_tls13_ticket(&self, _: ServerName<'static>, ticket: Tls13ClientSessionValue) {
        let tickets = &mut self.lock().tickets;
        // If the store is full, drop the new ticket. The stored tickets are just as good, because the server sent them
        // all during this run, and decides itself how long they are valid.
        if tickets.len() < MAX_TICKETS {
            tickets.push(ticket);
        }
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.lock().tickets.pop()
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

pub(crate) fn roots_from(pem: &[u8]) -> Result<RootCertStore, TlsSetupError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates_from(pem)? {
        roots.add(certificate)?;
    }
    Ok(roots)
}

/// Reads all certificates of a PEM text. A certificate that cannot be read is an error, because without it, a chain or
/// a list of authorities would be incomplete.
///
/// # Errors
/// Fails if there is no certificate, or if one cannot be read.
pub fn certificates_from(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsSetupError> {
    // Remove a byte order mark, because the first line would not be recognised after it.
    let pem = pem.strip_prefix(b"\xef\xbb\xbf").unwrap_or(pem);
    let certificates = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|error| TlsSetupError::BadPem(error.to_string()))?;
    if certificates.is_empty() { Err(TlsSetupError::NoCertificate) } else { Ok(certificates) }
}

/// The certificates that the system trusts, or `None` until they are first needed.
static SYSTEM_ROOTS: Mutex<Option<Arc<RootCertStore>>> = Mutex::new(None);

/// Reads the certificates that the system trusts. All clients with [`Trust::System`] that are
/// created from then on use them. A program that creates clients on an event loop should call this
/// first, because otherwise the first client blocks the loop while it reads the files.
pub fn load_system_roots() {
    read_system_roots();
}

fn read_system_roots() -> Arc<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let roots = Arc::new(roots);
    *lock(&SYSTEM_ROOTS) = Some(Arc::clone(&roots));
    roots
}

fn system_roots() -> Result<Arc<RootCertStore>, TlsSetupError> {
    let cached_roots = lock(&SYSTEM_ROOTS).clone();
    let roots = cached_roots.unwrap_or_else(read_system_roots);
    if roots.is_empty() { Err(TlsSetupError::NoSystemRoots) } else { Ok(roots) }
}

fn pem(label: &str, octets: &[u8]) -> String {
    format!("-----BEGIN {label}-----\n{}-----END {label}-----\n", base64_lines(octets))
}

fn base64_lines(octets: &[u8]) -> String {
    use base64::Engine;
    let text = base64::engine::general_purpose::STANDARD.encode(octets);
    let lines = text.as_bytes().chunks(64).map(|line| String::from_utf8_lossy(line).into_owned() + "\n");
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::{ClientConnection, HandshakeKind, ProtocolVersion, ServerConnection};

    fn client_of(versions: TlsVersions) -> ClientTls {
        ClientTls::with_versions(versions, "localhost", &Trust::Anybody, None, SessionResumption::On).unwrap()
    }

    fn server() -> ServerTls {
        ServerTls::new(Certificate::self_signed(&["localhost"]).unwrap(), None, SessionResumption::On).unwrap()
    }

    fn shake(client: &mut ClientConnection, server: &mut ServerConnection) {
        while client.is_handshaking() || server.is_handshaking() || server.wants_write() {
            let mut wire = Vec::new();
            client.write_tls(&mut wire).unwrap();
            server.read_tls(&mut wire.as_slice()).unwrap();
            server.process_new_packets().unwrap();
            wire.clear();
            server.write_tls(&mut wire).unwrap();
            client.read_tls(&mut wire.as_slice()).unwrap();
            client.process_new_packets().unwrap();
        }
    }

    fn ends(client: &ClientTls, server: &ServerTls) -> (ClientConnection, ServerConnection) {
        let client = ClientConnection::new(client.config(), client.name()).unwrap();
        (client, ServerConnection::new(server.config()).unwrap())
    }

    #[test]
    fn as_many_sessions_are_resumed_at_a_time_as_there_were_before() {
        for versions in [TlsVersions::Only13, TlsVersions::Only12] {
            let client = client_of(versions);
            let server = server();
            let mut kinds = Vec::new();
            for _ in 0..3 {
                // Begin all 40 handshakes before the first handshake has ended, as parallel sessions do. No handshake
                // can then use a ticket of another handshake.
                let mut pairs: Vec<_> = (0..40).map(|_| ends(&client, &server)).collect();
                pairs.iter_mut().for_each(|(client, server)| shake(client, server));
                kinds
                    .push(pairs.iter().filter(|(_, end)| end.handshake_kind() == Some(HandshakeKind::Resumed)).count());
            }
            assert_eq!(kinds, [0, 40, 40], "{versions:?}");
        }
    }

    #[test]
    fn a_client_offers_the_versions_that_it_is_told() {
        let server = server();
        let rows = [
            (TlsVersions::All, ProtocolVersion::TLSv1_3),
            (TlsVersions::Only13, ProtocolVersion::TLSv1_3),
            (TlsVersions::Only12, ProtocolVersion::TLSv1_2),
        ];
        for (versions, agreed) in rows {
            let (mut client, mut server) = ends(&client_of(versions), &server);
            shake(&mut client, &mut server);
            assert_eq!(client.protocol_version(), Some(agreed));
        }
    }
}
