//! Parses any text as an address with a port. The text must be rejected, or its parts must make the
//! same address again.
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
