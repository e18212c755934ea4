//! Says in plain words why the certificate of a TLS server is not accepted, and what to do.
//!
//! Usage: `cargo run -p mailrun-tls-verify --example check -- mail.example.com 465 trusted.pem`
#![allow(clippy::print_stdout, reason = "an example shows what it does")]
use mailrun_tls_verify::{HandshakeFault, Remedies};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection};
use std::error::Error;
use std::net::TcpStream;
use std::sync::Arc;

const REMEDIES: Remedies = Remedies {
    trust: "add its authority to the file of trusted certificates",
    name: "ask for NAME",
    insecure: "do without verification",
};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [host, port, trusted] = arguments.as_slice() else { return Err("check HOST PORT TRUSTED.pem".into()) };
    let trusted = CertificateDer::pem_file_iter(trusted)?.collect::<Result<Vec<_>, _>>()?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = mailrun_tls_verify::servers_of(trusted, &provider)?;
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let config = config.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
    let mut connection = ClientConnection::new(Arc::new(config), host.clone().try_into()?)?;
    let mut socket = TcpStream::connect((host.as_str(), port.parse()?))?;
    while connection.is_handshaking() {
        if let Err(error) = connection.complete_io(&mut socket) {
            let fault = error.get_ref().and_then(|inner| inner.downcast_ref());
            match fault.and_then(|fault| HandshakeFault::of(fault, host)) {
                Some(fault) => println!("{}", fault.with_remedy(&REMEDIES)),
                None => println!("{error}"),
            }
            return Ok(());
        }
    }
    println!("{host} is trusted");
    Ok(())
}
