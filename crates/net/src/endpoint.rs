//! Where a server listens and a client connects to: a TCP address, or a socket in the file system.
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

/// What stands before a path.
const UNIX: &str = "unix:";
/// The longest path that a socket may have (unix(7)), its end included.
const LONGEST_PATH_BYTES: usize = 108;

/// One end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// An address and a port.
    Tcp(SocketAddr),
    /// A unix-domain socket.
    Unix(PathBuf),
}

impl Endpoint {
    /// Reads `HOST:PORT`, whose name is looked up, or `unix:PATH`.
    ///
    /// # Errors
    /// If the name has no address, or it is neither.
    pub fn resolve(text: &str) -> io::Result<Self> {
        if let Some(path) = text.strip_prefix(UNIX) {
            if path.is_empty() || path.len() >= LONGEST_PATH_BYTES {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "a socket path must have 1 to 107 bytes"));
            }
            return Ok(Self::Unix(path.into()));
        }
        let address = text.to_socket_addrs()?.next();
        address.map(Self::Tcp).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the name has no address"))
    }

    /// Its address; that of a unix-domain socket is `0.0.0.0:0`.
    pub fn address(&self) -> SocketAddr {
        match self {
            Self::Tcp(address) => *address,
            Self::Unix(_) => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
        }
    }

    /// The address without its port, where it has one.
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(address) => Some(address.ip()),
            Self::Unix(_) => None,
        }
    }
}

impl From<SocketAddr> for Endpoint {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_are_read_and_written() {
        for text in ["127.0.0.1:25", "[::1]:2525", "unix:/run/sink", "unix:sink"] {
            assert_eq!(Endpoint::resolve(text).unwrap().to_string(), text);
        }
        for text in ["127.0.0.1", "unix:", "nonsense", &format!("unix:/{}", "x".repeat(107))] {
            assert!(Endpoint::resolve(text).is_err(), "{text}");
        }
    }
}
