//! Verifies the certificates of TLS servers for a client, and explains in plain words why a handshake failed.
//!
//! ```
//! use rustls::pki_types::UnixTime;
//! use std::sync::Arc;
//! use mailrun_tls_verify::HandshakeFault;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let made = rcgen::generate_simple_self_signed(vec!["mail.example".to_owned()])?;
//! # let certificate = made.cert.der().clone();
//!
//! let provider = Arc::new(rustls::crypto::ring::default_provider());
//! let verifier = mailrun_tls_verify::servers_of(vec![certificate.clone()], &provider)?;
//! let verify = |name: &'static str| {
//!     verifier.verify_server_cert(&certificate, &[], &name.try_into().unwrap(), &[], UnixTime::now())
//! };
//! assert!(verify("mail.example").is_ok());
//! let fault = HandshakeFault::of(&verify("mx.example").unwrap_err(), "mx.example").expect("a fault to remedy");
//! assert_eq!(fault.to_string(), "the certificate is for mail.example, not for mx.example");
//! # Ok(())
//! # }
//! ```
//!
//! | file | what it does |
//! |---|---|
//! | `fault` | reasons why a handshake with a server failed, with their remedies |
//! | `recorder` | remembers the certificates that a server has shown |
//! | `verifier` | verification by trusted certificates, or no verification at all |
#![allow(missing_docs)] // only crates that other programs embed document every public item
mod fault;
mod recorder;
mod verifier;

pub use fault::{HandshakeFault, Remedies};
pub use recorder::{CertificateRecorder, ShownCertificates};
pub use verifier::{any_server, servers_of};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
