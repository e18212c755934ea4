//! Addresses to which load may be sent without explicit permission: the addresses of this host and
//! of private networks. Also finds out whether a server is on this host.
use mailrun_net::Endpoint;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

/// Returns true for an address that is unspecified, loopback, private, link-local, shared (RFC
/// 6598), or reserved for documentation or, in IPv4, for benchmarks.
pub fn is_local_address(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let [a, b, ..] = address.octets();
            address.is_loopback()
                || address.is_private()
                || address.is_link_local()
                || address.is_documentation()
                || address.is_unspecified()
                || (a == 100 && (64..128).contains(&b))
                || (a == 198 && (18..20).contains(&b))
        }
        IpAddr::V6(address) => match address.to_ipv4_mapped() {
            Some(mapped) => is_local_address(mapped.into()),
            None => {
                address.is_loopback()
                    || address.is_unique_local()
                    || address.is_unicast_link_local()
                    || address.is_unspecified()
                    || address.segments()[..2] == [0x2001, 0xdb8]
            }
        },
    }
}

/// Returns true if the server has a loopback address or a unix-domain socket. It then runs on this host, so nobody can
/// intercept the connection, and the server uses the same clock as this process.
pub fn is_loopback(server: &Endpoint) -> bool {
    server.ip().is_none_or(|address| address.to_canonical().is_loopback())
}

/// Returns true if an interface of this host has the address. Asks the kernel which source address it would use to send
/// to `ip`. For an address of this host, that is `ip` itself. Binding a socket to `ip` would prove nothing, because
/// with the sysctl `ip_nonlocal_bind` this succeeds for any address.
pub fn is_of_this_host(ip: IpAddr) -> bool {
    let from = |any: IpAddr| {
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect((ip, 9))?;
        socket.local_addr()
    };
    let any = if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    ip.is_loopback() || from(any).is_ok_and(|local| local.ip() == ip)
}

/// Returns true if a server is on this host. `server` is HOST:PORT or unix:PATH. A server whose name cannot be looked
/// up counts as being on this host. A container with its own address counts as another host.
pub fn is_on_this_host(server: &str) -> bool {
    match Endpoint::resolve(server) {
        Ok(Endpoint::Tcp(address)) => address.ip().is_unspecified() || is_of_this_host(address.ip().to_canonical()),
        Ok(Endpoint::Unix(_)) | Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_local_and_what_is_not() {
        for local in
            ["127.0.0.1", "::1", "10.1.2.3", "192.168.0.1", "172.16.0.1", "100.64.0.1", "fd00::1", "198.18.0.1"]
        {
            assert!(is_local_address(local.parse().unwrap()), "{local}");
        }
        for public in ["8.8.8.8", "172.32.0.1", "2600::1", "::ffff:8.8.8.8", "100.128.0.1", "198.20.0.1"] {
            assert!(!is_local_address(public.parse().unwrap()), "{public}");
        }
    }

    #[test]
    fn a_loopback_address_may_be_written_as_ipv6() {
        for (server, expected) in [
            ("127.8.9.1:25", true),
            ("[::1]:25", true),
            ("[::ffff:127.0.0.1]:25", true),
            ("unix:/run/lmtp", true),
            ("10.1.2.3:25", false),
            ("[::ffff:10.1.2.3]:25", false),
        ] {
            assert_eq!(is_loopback(&Endpoint::resolve(server).unwrap()), expected, "{server}");
        }
    }

    #[test]
    fn a_server_is_on_this_host_unless_its_address_is_another_hosts() {
        for here in ["127.0.0.1:25", "127.8.9.1:25", "[::1]:25", "[::ffff:127.0.0.1]:25", "0.0.0.0:25", "localhost:25"]
        {
            assert!(is_on_this_host(here), "{here}");
        }
        for here in ["unix:/run/lmtp", "nowhere.invalid:25"] {
            assert!(is_on_this_host(here), "{here}");
        }
        for elsewhere in ["192.0.2.1:25", "198.51.100.7:25", "[2001:db8::1]:25"] {
            assert!(!is_on_this_host(elsewhere), "{elsewhere}");
        }
    }
}
