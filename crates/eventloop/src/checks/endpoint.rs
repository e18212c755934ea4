//! Parses any text as an address with a port. If the parser accepts the text, an address made from the parsed host and
//! port must parse to the same host and port.
use crate::Endpoint;

pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Endpoint::host_and_port(text) {
        Ok((host, port)) => {
            let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
            let again = format!("{host}:{port}");
            assert_eq!(Endpoint::host_and_port(&again), Endpoint::host_and_port(text));
        }
        Err(error) => assert!(!error.is_empty() && !error.contains('\n')),
    }
}
