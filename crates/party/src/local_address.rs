//! Addresses that load may go to without explicit permission: those of this host or of a private network.
use std::net::IpAddr;

/// Reports whether it is a loopback, private, link-local, shared (RFC 6598), documentation or benchmarking address.
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
}
