//! The addresses on which this relay listens. The relay must not deliver to them, because the mail
//! would come back.
use mailrun_net::Endpoint;
use mailrun_process::local_address::is_of_this_host;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::OnceLock;

#[derive(Debug, Default)]
pub(crate) struct OwnAddresses {
    configured: Vec<Endpoint>,
    /// Addresses of the started listeners, with the ports that the kernel chose for port 0.
    bound: OnceLock<Vec<Endpoint>>,
}

impl OwnAddresses {
    pub(crate) fn new<'a>(listeners: impl Iterator<Item = &'a Endpoint>) -> Self {
        Self { configured: listeners.cloned().collect(), bound: OnceLock::new() }
    }

    pub(crate) fn set_bound(&self, listeners: Vec<Endpoint>) {
        let _ = self.bound.set(listeners);
    }

    /// Returns true if a connection to this endpoint would reach this relay.
    pub(crate) fn contains(&self, endpoint: &Endpoint) -> bool {
        self.configured.iter().chain(self.bound.get().into_iter().flatten()).any(|listener| {
            match (listener, endpoint) {
                (Endpoint::Tcp(listener), Endpoint::Tcp(to)) => {
                    listener.port() == to.port() && is_same_host(*listener, *to)
                }
                _ => listener == endpoint,
            }
        })
    }

    /// Returns true if a connection to this host and port would certainly reach this relay. Only `localhost` and IP
    /// addresses are recognised, because the check does not ask DNS.
    pub(crate) fn contains_host(&self, name: &str, port: u16) -> bool {
        let is_localhost = name == "localhost" || name.ends_with(".localhost");
        let ips = match name.parse::<IpAddr>() {
            Ok(ip) => vec![ip],
            Err(_) if is_localhost => vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
            Err(_) => Vec::new(),
        };
        ips.into_iter().any(|ip| self.contains(&Endpoint::Tcp(SocketAddr::new(ip, port))))
    }
}

fn is_same_host(listener: SocketAddr, to: SocketAddr) -> bool {
    let to = match to.ip().to_canonical() {
        // A connection to 0.0.0.0 or :: reaches this host, so treat it like a connection to the
        // loopback address.
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    match listener.ip().to_canonical() {
        // A socket that is bound to `::` accepts IPv4 connections as well, so any address of this
        // host reaches it.
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => is_of_this_host(to),
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => to.is_ipv4() && is_of_this_host(to),
        ip => ip == to,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_addresses() {
        let rows = [
            ("127.0.0.1:25", "127.0.0.1:25", true),
            ("127.0.0.1:25", "127.0.0.1:26", false),
            ("127.0.0.1:25", "127.0.0.2:25", false),
            ("127.0.0.1:25", "0.0.0.0:25", true),
            ("127.0.0.1:25", "[::ffff:127.0.0.1]:25", true),
            ("127.0.0.1:25", "[::1]:25", false),
            ("0.0.0.0:25", "127.8.9.1:25", true),
            ("0.0.0.0:25", "[::1]:25", false),
            ("0.0.0.0:25", "192.0.2.1:25", false),
            ("[::]:25", "127.0.0.1:25", true),
            ("[::]:25", "[::1]:25", true),
            ("[::]:25", "[2001:db8::1]:25", false),
            ("unix:/run/a", "unix:/run/a", true),
            ("unix:/run/a", "unix:/run/b", false),
        ];
        for (listener, to, expected) in rows {
            let endpoint = |text: &str| text.parse().map_or_else(|_| Endpoint::resolve(text).unwrap(), Endpoint::Tcp);
            let own = OwnAddresses::new([endpoint(listener)].iter());
            assert_eq!(own.contains(&endpoint(to)), expected, "{to} at {listener}");
        }
        let own = OwnAddresses::new([Endpoint::Tcp("[::1]:25".parse().unwrap())].iter());
        assert!(
            own.contains_host("localhost", 25) && own.contains_host("::1", 25) && own.contains_host("a.localhost", 25)
        );
        assert!(!own.contains_host("localhost", 26) && !own.contains_host("relay.example", 25));
    }
}
