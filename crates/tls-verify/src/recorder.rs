//! Records the certificates that a server has shown, so that a user can look at them.
use crate::fault::HandshakeFault;
use mailrun_lock::lock;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, Error, SignatureScheme};
use std::sync::{Arc, Mutex};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShownCertificates {
    /// The chain in DER form, which begins with the server's own certificate. The chain is empty if
    /// the handshake failed before the server sent its certificates.
    pub chain: Vec<Vec<u8>>,
    /// Reason why the certificates are not trusted, or `None` if they are.
    pub fault: Option<String>,
}

/// A verifier that records the server's certificates. `enforced` decides whether the handshake continues. `judge` only
/// decides whether the record calls the certificates trusted. For example, the client may accept any certificate, but
/// the user may still want to know whether this one can be trusted.
#[derive(Debug)]
pub struct CertificateRecorder {
    enforced: Arc<dyn ServerCertVerifier>,
    /// Verifier whose verdict is recorded but has no effect. If there is no verifier, for example
    /// because the system has no trusted certificates, the error is recorded instead.
    judge: Result<Arc<dyn ServerCertVerifier>, String>,
    shown: Mutex<ShownCertificates>,
}

impl CertificateRecorder {
    pub fn new(enforced: Arc<dyn ServerCertVerifier>, judge: Result<Arc<dyn ServerCertVerifier>, String>) -> Self {
        Self { enforced, judge, shown: Mutex::default() }
    }

    /// Returns the certificates of the last handshake. The chain is empty before the first
    /// handshake.
    pub fn certificates(&self) -> ShownCertificates {
        lock(&self.shown).clone()
    }
}

impl ServerCertVerifier for CertificateRecorder {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verify = |by: &Arc<dyn ServerCertVerifier>| {
            by.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
        };
        let explain = |error: Error| {
            let explained = HandshakeFault::of(&error, &server_name.to_str());
            explained.map_or_else(|| error.to_string(), |fault| fault.to_string())
        };
        let fault = match &self.judge {
            Ok(judge) => verify(judge).err().map(explain),
            Err(reason) => Some(reason.clone()),
        };
        let chain = std::iter::once(end_entity).chain(intermediates).map(|certificate| certificate.to_vec()).collect();
        *lock(&self.shown) = ShownCertificates { chain, fault };
        verify(&self.enforced)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.enforced.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.enforced.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.enforced.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{any_server, servers_of};

    #[test]
    fn what_is_accepted_is_judged_nevertheless() {
        let made = rcgen::generate_simple_self_signed(vec!["mail.example".to_owned()]).expect("a certificate");
        let own = made.cert.der().clone();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let trusted = servers_of(vec![own.clone()], &provider).expect("a verifier");
        let verify = |recorder: &CertificateRecorder, name: &'static str| {
            let name = ServerName::try_from(name).expect("a name");
            recorder.verify_server_cert(&own, std::slice::from_ref(&own), &name, &[], UnixTime::now()).is_ok()
        };
        let recorder = CertificateRecorder::new(any_server(&provider), Ok(Arc::clone(&trusted)));
        assert_eq!(recorder.certificates(), ShownCertificates::default());
        assert!(verify(&recorder, "mail.example"));
        assert_eq!(recorder.certificates(), ShownCertificates { chain: vec![own.to_vec(); 2], fault: None });
        assert!(verify(&recorder, "mx.example"), "any certificate is accepted");
        let fault = "the certificate is for mail.example, not for mx.example";
        assert_eq!(recorder.certificates().fault.as_deref(), Some(fault));
        let strict = CertificateRecorder::new(Arc::clone(&trusted), Ok(trusted));
        assert!(!verify(&strict, "mx.example"));
        assert_eq!(strict.certificates().fault.as_deref(), Some(fault));
    }
}
