//! Verifies a server's certificate against a list of trusted certificates, or accepts any certificate.
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use std::sync::Arc;

/// Returns a verifier that trusts a server's certificate if it is one of `trusted`, or is signed by one of them. Name
/// and validity period are checked in either case.
///
/// # Errors
/// Fails if a certificate cannot be read, or if `trusted` is empty.
pub fn servers_of(
    trusted: Vec<CertificateDer<'static>>,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ServerCertVerifier>, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in &trusted {
        roots.add(certificate.clone())?;
    }
    let roots = Arc::new(roots);
    let ordinary = WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(provider)).build();
    let ordinary = ordinary.map_err(|error| Error::General(error.to_string()))?;
    let algorithms = provider.signature_verification_algorithms;
    Ok(Arc::new(TrustedServers { ordinary, roots, trusted, algorithms }))
}

/// Returns a verifier that accepts any certificate and any name. The signatures of the handshake are still verified, so
/// the server proves that it has the key of its certificate.
pub fn any_server(provider: &Arc<CryptoProvider>) -> Arc<dyn ServerCertVerifier> {
    Arc::new(AnyServer(provider.signature_verification_algorithms))
}

/// Verifies as rustls does, except that a trusted certificate may itself be the certificate of the server.
///
/// `openssl req -x509` marks its certificates as certificates of an authority (CA:TRUE), and webpki refuses such a
/// certificate if a server shows it as its own, whoever has signed it. But a user who names exactly this certificate
/// wants to trust this server. The exception helps no attacker, because whoever has the key of a trusted certificate
/// could sign any other certificate with it.
#[derive(Debug)]
struct TrustedServers {
    ordinary: Arc<WebPkiServerVerifier>,
    roots: Arc<RootCertStore>,
    /// Certificates that a server may show as its own. They are compared byte for byte.
    trusted: Vec<CertificateDer<'static>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl TrustedServers {
    /// Returns true if the certificate is valid at `now`. webpki has no function for this, but it checks the dates
    /// first, so an error about the issuer or the signature means that the dates are valid.
    fn is_in_date(&self, certificate: &ParsedCertificate<'_>, now: UnixTime) -> bool {
        let verified =
            verify_server_cert_signed_by_trust_anchor(certificate, &self.roots, &[], now, self.algorithms.all);
        match verified {
            Ok(())
            | Err(Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature)) => true,
            Err(error) => is_marked_as_authority(&error),
        }
    }
}

/// Returns true if a certificate was refused because it is marked as the certificate of an authority (CA:TRUE).
pub(crate) fn is_marked_as_authority(error: &Error) -> bool {
    let Error::InvalidCertificate(CertificateError::Other(other)) = error else { return false };
    matches!(other.0.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity))
}

impl ServerCertVerifier for TrustedServers {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.trusted.iter().any(|trusted| trusted == end_entity) {
            let certificate = ParsedCertificate::try_from(end_entity)?;
            if self.is_in_date(&certificate, now) {
                verify_server_name(&certificate, server_name)?;
                return Ok(ServerCertVerified::assertion());
            }
        }
        self.ordinary.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.ordinary.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.ordinary.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.ordinary.supported_verify_schemes()
    }
}

/// Verifies only the signatures of the handshake.
#[derive(Debug)]
struct AnyServer(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HandshakeFault;
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
    use std::time::Duration;

    fn params(names: &[&str], is_ca: IsCa, years: [i32; 2]) -> CertificateParams {
        let mut params =
            CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap();
        // Give the issuer a name, as `openssl req -x509 -subj /CN=…` does for a self-signed
        // certificate.
        params.distinguished_name.push(DnType::CommonName, "localhost");
        params.is_ca = is_ca;
        [params.not_before, params.not_after] = years.map(|year| date_time_ymd(year, 1, 1));
        params
    }

    fn own(names: &[&str], is_ca: IsCa, years: [i32; 2]) -> CertificateDer<'static> {
        params(names, is_ca, years).self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    fn authority() -> IsCa {
        IsCa::Ca(BasicConstraints::Unconstrained)
    }

    fn provider() -> Arc<CryptoProvider> {
        Arc::new(rustls::crypto::ring::default_provider())
    }

    fn now() -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs(1_909_000_000))
    }

    fn verify(trusted: &[CertificateDer<'static>], shown: &CertificateDer<'static>, name: &str) -> Result<(), Error> {
        let verifier = servers_of(trusted.to_vec(), &provider()).unwrap();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        verifier.verify_server_cert(shown, &[], &name, &[], now()).map(|_| ())
    }

    fn fault(trusted: &[CertificateDer<'static>], shown: &CertificateDer<'static>, name: &str) -> String {
        HandshakeFault::of(&verify(trusted, shown, name).unwrap_err(), name).unwrap().to_string()
    }

    #[test]
    fn a_trusted_certificate_is_a_servers_own() {
        for is_ca in [authority(), IsCa::ExplicitNoCa, IsCa::NoCa] {
            let server = own(&["mx.example", "127.0.0.1"], is_ca, [2029, 2032]);
            let other = own(&["other.example"], authority(), [2029, 2032]);
            for name in ["mx.example", "127.0.0.1"] {
                verify(&[other.clone(), server.clone()], &server, name).unwrap();
            }
        }
    }

    #[test]
    fn a_certificate_that_an_authority_has_signed_can_be_trusted_itself() {
        let issuer =
            CertifiedIssuer::self_signed(params(&[], authority(), [2029, 2032]), KeyPair::generate().unwrap()).unwrap();
        let mut leaf = params(&["mx.example"], IsCa::NoCa, [2029, 2032]);
        leaf.distinguished_name.push(DnType::CommonName, "mx");
        let issuer_name: &Issuer<'_, KeyPair> = &issuer;
        let leaf = leaf.signed_by(&KeyPair::generate().unwrap(), issuer_name).unwrap().der().clone();
        verify(std::slice::from_ref(&leaf), &leaf, "mx.example").unwrap();
        verify(&[issuer.der().clone()], &leaf, "mx.example").unwrap();
        assert!(verify(&[leaf], &issuer.der().clone(), "mx.example").is_err());
    }

    #[test]
    fn a_trusted_certificate_holds_for_its_names_and_dates() {
        for is_ca in [authority(), IsCa::ExplicitNoCa, IsCa::NoCa] {
            let server = own(&["mx.example"], is_ca, [2029, 2032]);
            let words = "the certificate is for mx.example, not for other.example";
            assert_eq!(fault(std::slice::from_ref(&server), &server, "other.example"), words);
            let nameless = own(&[], is_ca, [2029, 2032]);
            let words = "the certificate has no host name (subjectAltName), so it is not for localhost";
            assert_eq!(fault(std::slice::from_ref(&nameless), &nameless, "localhost"), words);
            let expired = own(&["mx.example"], is_ca, [2027, 2030]);
            let words = "the certificate of mx.example expired 179 days ago";
            assert_eq!(fault(std::slice::from_ref(&expired), &expired, "mx.example"), words);
            let early = own(&["mx.example"], is_ca, [2031, 2032]);
            let words = "the certificate of mx.example is not valid yet, but in 185 days";
            assert_eq!(fault(std::slice::from_ref(&early), &early, "mx.example"), words);
        }
    }

    #[test]
    fn another_certificate_of_the_same_name_is_not_trusted() {
        for is_ca in [authority(), IsCa::NoCa] {
            let [server, other] = [(), ()].map(|()| own(&["mx.example"], is_ca, [2029, 2032]));
            assert_eq!(fault(&[other], &server, "mx.example"), "the certificate of mx.example is not trusted");
        }
    }

    #[test]
    fn without_trusted_certificates_there_is_no_verifier() {
        assert!(servers_of(Vec::new(), &provider()).is_err());
        assert!(servers_of(vec![CertificateDer::from(vec![1, 2, 3])], &provider()).is_err());
    }
}
