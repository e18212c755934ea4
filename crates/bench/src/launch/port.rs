//! Finds a port for a server that cannot listen on port 0.
use anyhow::{Result, bail};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// First port of the range that is searched for a free port. The whole range is below the kernel's range for outgoing
/// connections (32768 and up), so that no outgoing connection of the load can take a port of the range.
const FIRST_PORT: u32 = 20_000;
const PORT_COUNT: u32 = 12_000;

/// Returns an address with a port on which no process listens now. The first port to try depends on
/// the process ID, so that two benches that start together try different ports.
pub(crate) fn free() -> Result<SocketAddr> {
    static NEXT_OFFSET: AtomicU32 = AtomicU32::new(0);
    for _ in 0..PORT_COUNT {
        let offset = NEXT_OFFSET.fetch_add(1, Ordering::Relaxed);
        let port = FIRST_PORT + std::process::id().wrapping_mul(613).wrapping_add(offset.wrapping_mul(7)) % PORT_COUNT;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, u16::try_from(port).unwrap_or(u16::MAX)));
        if TcpListener::bind(address).is_ok() {
            return Ok(address);
        }
    }
    bail!("no port between {FIRST_PORT} and {} is free on 127.0.0.1", FIRST_PORT + PORT_COUNT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_low_and_not_given_twice() {
        let one = free().unwrap();
        let other = free().unwrap();
        assert_ne!(one, other);
        assert!((20_000..32_000).contains(&one.port()) && TcpListener::bind(one).is_ok());
    }
}
