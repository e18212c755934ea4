//! Tests authentication and encryption: SASL mechanisms, TLS with trusted and untrusted certificates, and clients whose
//! settings do not match the peer's, for example a client without TLS at a TLS port.
use crate::peer::{broker, limited, listener, serve, start, start_with};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fe2o3_amqp::acceptor::sasl_acceptor::SaslServerFrame;
use fe2o3_amqp::acceptor::scram::SingleScramCredential;
use fe2o3_amqp::acceptor::{SaslAcceptor, SaslAnonymousMechanism, SaslPlainMechanism};
use fe2o3_amqp::auth::scram::{ScramAuthenticator, ScramVersion};
use fe2o3_amqp_types::primitives::{Array, Symbol};
use fe2o3_amqp_types::sasl::{SaslCode, SaslInit, SaslOutcome, SaslResponse};
use mailrun_mades::{
    Broker, BrokerSecurity, Connection, Disposition, Error, SaslMechanism, SenderOptions, TlsSetup, Uuid, Verification,
};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use std::path::PathBuf;
use std::sync::Arc;
use tempfile::TempDir;
use tokio_rustls::TlsAcceptor;

fn as_user(port: u16, login: &str, mechanism: Option<SaslMechanism>) -> Broker {
    let url = format!("amqp://{login}@127.0.0.1:{port}").parse().unwrap();
    Broker { url, security: BrokerSecurity { mechanism, ..BrokerSecurity::default() }, ..broker(port) }
}

#[test]
fn the_right_password_opens_and_the_wrong_one_is_named_without_being_shown() {
    limited(async {
        let port = start_with(SaslPlainMechanism::new("endpoint", "right word")).await;
        Connection::open(&as_user(port, "endpoint:right%20word", None)).await.unwrap();
        let error = Connection::open(&as_user(port, "endpoint:wrongword", None)).await.unwrap_err();
        assert!(matches!(error, Error::WrongCredentials { .. }), "{error:?}");
        let text = format!("{error} {error:?}");
        assert!(text.contains("endpoint") && !text.contains("wrongword"), "{text}");
        // The peer does not offer ANONYMOUS, so a client without a password must be told to log in.
        let error = Connection::open(&broker(port)).await.unwrap_err();
        assert_eq!(error.to_string(), format!("127.0.0.1:{port}: the broker requires a login: use --user"));
    });
}

#[test]
fn a_password_is_proven_by_each_scram() {
    limited(async {
        for (version, mechanism) in [
            (ScramVersion::Sha1, SaslMechanism::ScramSha1),
            (ScramVersion::Sha256, SaslMechanism::ScramSha256),
            (ScramVersion::Sha512, SaslMechanism::ScramSha512),
        ] {
            let credential = SingleScramCredential::new("user", "password", version).unwrap();
            let port = start_with(ScramAuthenticator::new(Arc::new(credential))).await;
            Connection::open(&as_user(port, "user:password", Some(mechanism))).await.unwrap();
            let error = Connection::open(&as_user(port, "user:other", Some(mechanism))).await.unwrap_err();
            assert!(matches!(error, Error::WrongCredentials { .. }), "{error:?}");
            let error = Connection::open(&as_user(port, "user:password", None)).await.unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("127.0.0.1:{port} does not offer SASL PLAIN: choose another mechanism")
            );
        }
    });
}

/// The peer's side of SASL EXTERNAL. It accepts every client, because TLS has already checked the client's certificate.
#[derive(Clone)]
struct External;

impl SaslAcceptor for External {
    fn mechanisms(&self) -> Array<Symbol> {
        Array(vec![Symbol::from("EXTERNAL")])
    }

    fn on_init(&mut self, init: SaslInit) -> SaslServerFrame {
        let is_meant = init.mechanism == Symbol::from("EXTERNAL") && init.initial_response.is_some();
        let code = if is_meant { SaslCode::Ok } else { SaslCode::Auth };
        SaslServerFrame::Outcome(SaslOutcome { code, additional_data: None })
    }

    fn on_response(&mut self, _: SaslResponse) -> SaslServerFrame {
        SaslServerFrame::Outcome(SaslOutcome { code: SaslCode::Sys, additional_data: None })
    }
}

/// Says whether a server requires client certificates.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ClientAuth {
    Anybody,
    Certified,
}

fn pem(label: &str, der: &[u8]) -> String {
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", STANDARD.encode(der))
}

/// A self-signed certificate with its key. Both are in memory for rustls, and also in files for the client's options.
struct TestCertificate {
    directory: TempDir,
    certificate: rcgen::CertifiedKey<rcgen::KeyPair>,
}

impl TestCertificate {
    fn new() -> Self {
        let certificate = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let public = certificate.cert.der();
        let secret = certificate.signing_key.serialize_der();
        std::fs::write(directory.path().join("certificate.pem"), pem("CERTIFICATE", public)).unwrap();
        std::fs::write(directory.path().join("key.pem"), pem("PRIVATE KEY", &secret)).unwrap();
        Self { directory, certificate }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Starts a TLS peer with this certificate. Returns the port of the peer.
    async fn start<S: SaslAcceptor + Send + Sync + 'static>(&self, client_auth: ClientAuth, sasl: S) -> u16 {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap();
        let der = self.certificate.cert.der().clone();
        let builder = match client_auth {
            ClientAuth::Anybody => builder.with_no_client_auth(),
            ClientAuth::Certified => {
                let mut roots = rustls::RootCertStore::empty();
                roots.add(der.clone()).unwrap();
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
                builder.with_client_cert_verifier(verifier)
            }
        };
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(self.certificate.signing_key.serialize_der()));
        let acceptor = TlsAcceptor::from(Arc::new(builder.with_single_cert(vec![der], key).unwrap()));
        let (listener, port) = listener().await;
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                let sasl = sasl.clone();
                tokio::spawn(async move {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        serve(stream, sasl).await;
                    }
                });
            }
        });
        port
    }
}

fn under_tls(port: u16, host: &str, security: BrokerSecurity) -> Broker {
    Broker { url: format!("amqps://{host}:{port}").parse().unwrap(), security, ..broker(port) }
}

fn trusting(certificate: &TestCertificate) -> TlsSetup {
    TlsSetup { authority: Some(certificate.path("certificate.pem")), ..TlsSetup::default() }
}

#[test]
fn a_broker_is_trusted_for_its_certificate_and_name_or_if_we_are_told_to() {
    limited(async {
        let certificate = TestCertificate::new();
        let port = certificate.start(ClientAuth::Anybody, SaslAnonymousMechanism::new()).await;
        let open = |host: &'static str, tls| async move {
            Connection::open(&under_tls(port, host, BrokerSecurity { tls, ..BrokerSecurity::default() })).await
        };
        let mut connection = open("localhost", trusting(&certificate)).await.unwrap();
        let mut outlet = connection.attach_sender(&SenderOptions::new("accept", 8)).await.unwrap();
        let mut template = mailrun_mades::api::OutgoingProperties::new("receiver", "TYPE")
            .template(Uuid::from_u128(1), mailrun_mades::api::payload(vec![7; 200_000]));
        let settling = outlet.send(template.fill(0, 0)).await.unwrap();
        assert_eq!(settling.await.unwrap(), Disposition::Accepted);

        let other = TestCertificate::new();
        let rows = [
            (
                "localhost",
                trusting(&other),
                "of localhost is not trusted: --cacert FILE with its issuer's certificate, or --insecure",
            ),
            ("127.0.0.1", trusting(&certificate), "is for localhost, not for 127.0.0.1: --tls-name localhost"),
        ];
        for (host, tls, reason) in rows {
            let error = open(host, tls).await.unwrap_err();
            assert!(matches!(error, Error::Untrusted { .. }), "{error:?}");
            assert_eq!(error.to_string(), format!("{host}:{port}: the certificate {reason}"));
        }
        let named = TlsSetup { server_name: Some("localhost".to_owned()), ..trusting(&certificate) };
        open("127.0.0.1", named).await.unwrap();
        let careless = TlsSetup { verification: Verification::Off, ..TlsSetup::default() };
        open("127.0.0.1", careless).await.unwrap();
    });
}

#[test]
fn plain_against_tls_and_the_reverse_are_told_apart() {
    limited(async {
        let certificate = TestCertificate::new();
        let port = certificate.start(ClientAuth::Anybody, SaslAnonymousMechanism::new()).await;
        let error = Connection::open(&broker(port)).await.unwrap_err();
        assert!(matches!(error, Error::TlsPeer { .. }), "{error:?}");
        assert!(error.to_string().contains("use amqps://"), "{error}");

        let port = start().await;
        let careless = TlsSetup { verification: Verification::Off, ..TlsSetup::default() };
        let error = Connection::open(&under_tls(
            port,
            "localhost",
            BrokerSecurity { tls: careless, ..BrokerSecurity::default() },
        ))
        .await;
        let error = error.unwrap_err();
        assert!(matches!(error, Error::PlainPeer { .. }), "{error:?}");
        assert!(error.to_string().contains("use amqp://"), "{error}");
    });
}

#[test]
fn a_certificate_lets_us_in_and_none_does_not() {
    limited(async {
        let certificate = TestCertificate::new();
        let port = certificate.start(ClientAuth::Certified, External).await;
        let certified = TlsSetup {
            identity: Some((certificate.path("certificate.pem"), certificate.path("key.pem"))),
            ..trusting(&certificate)
        };
        let external = |tls| BrokerSecurity { mechanism: Some(SaslMechanism::External), tls };
        let mut connection =
            Connection::open(&under_tls(port, "localhost", external(certified.clone()))).await.unwrap();
        connection.attach_sender(&SenderOptions::new("accept", 8)).await.unwrap();
        let error =
            Connection::open(&under_tls(port, "localhost", external(trusting(&certificate)))).await.unwrap_err();
        assert!(matches!(error, Error::NotTrusted { .. } | Error::Lost { .. }), "{error:?}");
        let anonymous = BrokerSecurity { mechanism: None, tls: certified };
        let error = Connection::open(&under_tls(port, "localhost", anonymous)).await.unwrap_err();
        assert!(matches!(error, Error::LoginRequired { .. }), "{error:?}");
    });
}
