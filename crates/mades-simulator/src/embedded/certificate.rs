use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::path::Path;
use std::sync::Arc;

/// Returns a TLS configuration (TLS 1.2 and 1.3) with the certificate chain and the key in these
/// files. Clients need no certificate.
///
/// # Errors
/// Names the file that cannot be read or is invalid.
pub fn tls_from_pem(chain: &Path, key: &Path) -> Result<Arc<ServerConfig>, String> {
    let failure = |path: &Path, reason: &dyn std::fmt::Display| format!("{}: {reason}", path.display());
    let certificates: Vec<CertificateDer<'static>> =
        CertificateDer::pem_file_iter(chain).and_then(Iterator::collect).map_err(|error| failure(chain, &error))?;
    if certificates.is_empty() {
        return Err(failure(chain, &"it contains no certificate"));
    }
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| failure(key, &error))?;
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has suites for both versions");
    let config = builder.with_no_client_auth().with_single_cert(certificates, secret);
    config.map(Arc::new).map_err(|error| failure(key, &error))
}
