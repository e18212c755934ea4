//! Finds the mail servers of a domain as the relay does, for a program that sends a single message.
use crate::config::{DeliveryScope, DnsConfig};
use crate::delivery::resolver::{Resolver, Unroutable};
use crate::own_addresses::OwnAddresses;
use crate::routing::SmtpTarget;
use anyhow::{Context, Result, anyhow};
use std::net::SocketAddr;
use std::sync::Arc;

/// Returns the names and addresses of a domain's servers in the order in which they should be tried,
/// at least one. The domain may be an address literal (`[192.0.2.1]`). `seed` decides the order
/// among equals.
///
/// # Errors
/// Fails if there is no server, or only one at a public address that `scope` excludes.
pub fn mail_servers(domain: &str, port: u16, scope: DeliveryScope, seed: u64) -> Result<Vec<(String, SocketAddr)>> {
    let own = Arc::new(OwnAddresses::new([].iter()));
    // No server is left out because it has the name of this host: nothing is relayed.
    let resolver = Resolver::start(&DnsConfig::default(), "", own, scope).context("cannot start a thread")?;
    let target = SmtpTarget::Domain { name: domain.into(), port };
    let found = mailrun_net::worker::run(move |_| async move { resolver.resolve(&target, seed).await })
        .context("cannot start an event loop")?;
    let servers = found.map_err(|error| match error {
        Unroutable::Public(address) => anyhow!(
            "{address} is a public address; only loopback and private addresses are allowed by default. If the server \
             is yours, add --allow-public"
        ),
        error => anyhow!("{error}"),
    })?;
    Ok(servers.into_iter().map(|server| (server.name.to_string(), server.address)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_literal_needs_no_dns_and_a_public_one_needs_permission() {
        let local = DeliveryScope::Local;
        let found = mail_servers("[127.0.0.1]", 2525, local, 1).unwrap();
        assert_eq!(found, [("127.0.0.1".to_owned(), "127.0.0.1:2525".parse().unwrap())]);
        let refused = mail_servers("[8.8.8.8]", 25, local, 1).unwrap_err().to_string();
        assert!(refused.contains("--allow-public"), "{refused}");
        assert!(mail_servers("[8.8.8.8]", 25, DeliveryScope::Anywhere, 1).is_ok());
        assert!(mail_servers("[8.8.8]", 25, local, 1).is_err());
    }
}
