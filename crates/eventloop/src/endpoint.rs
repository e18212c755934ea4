//! Addresses at which a server listens and to which a client connects: a TCP address, or a socket
//! in the file system.
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

const UNIX: &str = "unix:";
/// Maximum size of a socket's path in bytes, including the zero byte at its end (unix(7)).
const MAX_PATH_BYTES: usize = 108;

/// Address at which a server listens, and to which its clients connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// An IP address with a TCP port.
    Tcp(SocketAddr),
    /// Path of a unix-domain socket in the file system.
    Unix(PathBuf),
}

impl Endpoint {
    /// Parses `HOST:PORT` or `unix:PATH`. A host name is looked up, and its first address is
    /// returned.
    ///
    /// # Errors
    /// Fails if the text is neither `HOST:PORT` nor `unix:PATH`, or if the host name has no address.
    pub fn resolve(text: &str) -> io::Result<Self> {
        Self::resolve_all(text).map(|mut all| all.swap_remove(0))
    }

    /// Parses the same forms as [`resolve`](Self::resolve), but returns all addresses of the name, at least one, in the
    /// order of the system's resolver.
    ///
    /// # Errors
    /// Fails if the text is neither `HOST:PORT` nor `unix:PATH`, or if the host name has no address.
    pub fn resolve_all(text: &str) -> io::Result<Vec<Self>> {
        if let Some(path) = text.strip_prefix(UNIX) {
            if path.is_empty() || path.len() >= MAX_PATH_BYTES {
                return Err(invalid("a socket path must have 1 to 107 bytes".to_owned()));
            }
            return Ok(vec![Self::Unix(path.into())]);
        }
        let (host, port) = Self::host_and_port(text).map_err(invalid)?;
        if host.is_empty() {
            return Err(invalid(format!("{text:?} has no host; write 127.0.0.1:{port} for this one")));
        }
        let unknown = |detail: &str| io::Error::new(io::ErrorKind::NotFound, format!("unknown host {host:?}{detail}"));
        let addresses = (host, port).to_socket_addrs().map_err(|error| match error.raw_os_error() {
            // A system error, such as too many open files, does not mean that the host is unknown,
            // so report the error itself.
            Some(_) => error,
            None => unknown(""),
        })?;
        let all: Vec<Self> = addresses.map(Self::Tcp).collect();
        if all.is_empty() { Err(unknown(": it has no address")) } else { Ok(all) }
    }

    /// Parses an address to listen at. In addition to the forms of [`resolve`](Self::resolve),
    /// `:PORT` means all addresses of this host, IPv6 and IPv4.
    ///
    /// # Errors
    /// Returns the same errors as [`resolve`](Self::resolve).
    pub fn listening(text: &str) -> io::Result<Self> {
        match Self::host_and_port(text) {
            Ok(("", port)) => Ok(Self::Tcp(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port))),
            _ => Self::resolve(text),
        }
    }

    /// Splits off the port, if there is one. The text may be `HOST`, `HOST:PORT`, `::1`, `[::1]` or `[::1]:PORT`. The
    /// returned host has no brackets. The host and the port may still be invalid. Returns `None` if a bracket is
    /// missing, or if something other than a port follows the brackets.
    pub fn split_port(text: &str) -> Option<(&str, Option<&str>)> {
        if text.parse::<Ipv6Addr>().is_ok() {
            return Some((text, None));
        }
        let Some(bracketed) = text.strip_prefix('[') else {
            return Some(text.rsplit_once(':').map_or((text, None), |(host, port)| (host, Some(port))));
        };
        let (host, rest) = bracketed.split_once(']')?;
        match rest.strip_prefix(':') {
            Some(port) => Some((host, Some(port))),
            None => rest.is_empty().then_some((host, None)),
        }
    }

    /// Splits `HOST:PORT`, `ADDRESS:PORT`, `[ADDRESS]:PORT` or `:PORT`. The host of the last form
    /// is empty.
    ///
    /// # Errors
    /// Fails if the text has none of these forms, or if the port is not a number up to 65535.
    pub fn host_and_port(text: &str) -> Result<(&str, u16), String> {
        const EXAMPLE: &str = "use something like 127.0.0.1:2525";
        if text.parse::<Ipv6Addr>().is_ok() {
            return Err(format!("{text:?} has no port; write [{text}]:25 for port 25"));
        }
        if !text.contains(':') {
            return Err(format!("{text:?} has no port; {EXAMPLE}"));
        }
        let error = || format!("{text:?} is not a valid HOST:PORT; {EXAMPLE}");
        let Some((host, Some(port))) = Self::split_port(text) else { return Err(error()) };
        if host.ends_with(':') || host.contains("//") {
            return Err(error());
        }
        let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let Some(port) = port.parse().ok().filter(|_| is_number) else {
            let limit = if is_number { " of at most 65535" } else { "" };
            return Err(format!("{text:?}: the port must be a number{limit}; {EXAMPLE}"));
        };
        match (text.starts_with('['), host.parse::<Ipv6Addr>().is_ok()) {
            (true, true) => Ok((host, port)),
            (true, false) => Err(error()),
            (false, true) => Err(format!("{text:?}: write an IPv6 address in brackets: [{host}]:{port}")),
            (false, false) if host.contains(['[', ']', ':', '/']) || host.contains(char::is_whitespace) => Err(error()),
            (false, false) => Ok((host, port)),
        }
    }

    /// Returns the IP address and the port. For a unix-domain socket, returns the placeholder `0.0.0.0:0`.
    pub fn address(&self) -> SocketAddr {
        match self {
            Self::Tcp(address) => *address,
            Self::Unix(_) => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
        }
    }

    /// Returns the IP address, or `None` for a unix-domain socket.
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(address) => Some(address.ip()),
            Self::Unix(_) => None,
        }
    }
}

fn invalid(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, reason)
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
    use proptest::prelude::*;

    #[test]
    fn both_kinds_are_read_and_written() {
        for text in ["127.0.0.1:25", "[::1]:2525", "unix:/run/sink", "unix:sink"] {
            assert_eq!(Endpoint::resolve(text).unwrap().to_string(), text);
        }
        for text in ["127.0.0.1", "unix:", "nonsense", ":25", &format!("unix:/{}", "x".repeat(107))] {
            assert!(Endpoint::resolve(text).is_err(), "{text}");
        }
        assert_eq!(Endpoint::listening(":2525").unwrap().to_string(), "[::]:2525");
        assert_eq!(Endpoint::listening("127.0.0.1:0").unwrap().to_string(), "127.0.0.1:0");
        assert!(Endpoint::listening("unix:").is_err());
    }

    #[test]
    fn each_mistake_has_one_cause() {
        for (text, cause) in [
            ("", "has no port"),
            ("127.0.0.1", "has no port"),
            ("::1", "has no port; write [::1]:25"),
            (":smtp", "the port must be a number; use"),
            ("a:", "the port must be a number; use"),
            ("a:+5", "the port must be a number; use"),
            ("a:65536", "the port must be a number of at most 65535"),
            ("a:b:25", "is not a valid HOST:PORT"),
            ("[a]:25", "is not a valid HOST:PORT"),
            ("a b:25", "is not a valid HOST:PORT"),
            ("smtp://a:25", "is not a valid HOST:PORT"),
            ("1:2:3:4:5:6:7:8:25", "write an IPv6 address in brackets"),
        ] {
            let error = Endpoint::host_and_port(text).expect_err(text);
            assert!(error.contains(cause), "{text}: {error}");
        }
        let error = Endpoint::resolve("nosuch.invalid:25").unwrap_err().to_string();
        assert_eq!(error, "unknown host \"nosuch.invalid\"");
    }

    proptest! {
        #[test]
        fn what_is_split_is_put_together_again(text in "[a-z0-9:.\\[\\]/ +-]{0,20}") {
            crate::checks::endpoint::check(text.as_bytes());
        }
    }
}
