//! Parses the values of keys: words, numbers, times, networks and addresses. Each error message suggests a valid value.
use crate::routing::is_domain;
use ipnet::IpNet;
use mailrun_net::Endpoint;
use mailrun_smtp::{Domain, Path as Address};
use mailrun_text::quantities::{count_up_to, duration};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

const DAY: Duration = Duration::from_secs(86_400);

pub(super) fn keyword<T: Copy>(all: &[(T, &str)], text: &str) -> Result<T, String> {
    let value = all.iter().find(|(_, word)| *word == text).map(|(meaning, _)| *meaning);
    value.ok_or_else(|| {
        let words: Vec<&str> = all.iter().map(|(_, word)| *word).collect();
        format!("{text:?} is not one of {}", words.join(", "))
    })
}

/// Parses a positive number such as `500` or `"10k"`.
pub(super) fn count(text: &str, max: u64) -> Result<u64, String> {
    count_up_to(text, max).map_err(|_| format!("{text:?} is not a number from 1 to {max}"))
}

/// Parses a positive number, or "unlimited", which is returned as `None`.
pub(super) fn optional_limit(text: &str) -> Result<Option<u32>, String> {
    if text == "unlimited" {
        return Ok(None);
    }
    let number =
        count(text, 1_000_000).map_err(|_| format!("{text:?} is not a number from 1 to 1000000 or \"unlimited\""))?;
    Ok(Some(number as u32))
}

pub(super) fn failure_limit(text: &str) -> Result<u32, String> {
    count(text, 1_000_000).map(|number| number as u32)
}

pub(super) fn connection_limit(text: &str) -> Result<u32, String> {
    count(text, 100_000).map(|number| number as u32)
}

/// Parses a time above zero. In addition to the usual units, days are allowed, for example `5d`.
pub(super) fn positive_duration(text: &str) -> Result<Duration, String> {
    let days = text.strip_suffix('d').and_then(|days| days.parse::<u32>().ok()).filter(|days| *days <= 10_000);
    match days.map_or_else(|| duration(text), |days| Ok(DAY * days)) {
        Ok(Duration::ZERO) => Err(format!("{text:?}: must be more than zero")),
        Ok(time) => Ok(time),
        Err(_) => Err(format!("{text:?} is not a valid time; use something like 30s, 5m, 4h or 5d")),
    }
}

pub(super) fn host_name(text: &str) -> Result<String, String> {
    // Refuse a name that ends in a number, such as `10.1`, because it is an incomplete IP address (RFC 1123 §2.1).
    let is_number = text.rsplit('.').next().is_some_and(|label| label.bytes().all(|byte| byte.is_ascii_digit()));
    if is_domain(text) && !is_number {
        return Ok(if text.is_ascii() { text.to_owned() } else { Domain::new(text).to_string() });
    }
    Err(format!("{text:?} is not a valid host name; use something like relay.example.com"))
}

pub(super) fn mailbox(text: &str) -> Result<String, String> {
    match Address::mailbox(text.as_bytes()) {
        Ok(_) if text.contains('@') => Ok(text.to_owned()),
        _ => Err(format!("{text:?} is not a valid address; use something like postmaster@example.com")),
    }
}

pub(super) fn network(text: &str) -> Result<IpNet, String> {
    let host = text.parse::<IpAddr>().map(IpNet::from);
    let network = host.or_else(|_| text.parse::<IpNet>());
    let network = network
        .map_err(|_| format!("{text:?} is not a valid network; use something like 10.0.0.0/8 or 2001:db8::/32"))?;
    if network.prefix_len() == 0 {
        return Err(format!("{text:?} is everyone: that would be an open relay; use only your own networks"));
    }
    let is_mapped = |address: IpAddr| matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
    if is_mapped(network.network()) {
        return Err(format!("{text:?}: write it as an IPv4 network; addresses are compared without ::ffff:"));
    }
    Ok(network.trunc())
}

/// If the trusted networks contain more addresses than any single owner has, returns a description of them, because the
/// relay would be open to strangers. The limits are half of all IPv4 addresses and half of the allocated IPv6 addresses
/// (2000::/3). Networks that contain 64:ff9b::/96 are also too large, because a NAT64 translator maps all IPv4
/// addresses to this prefix (RFC 6052 §2.1).
pub(super) fn is_open_relay(networks: &[IpNet]) -> Option<&'static str> {
    let all = IpNet::aggregate(&networks.to_vec());
    let hosts_v4 = |network: &IpNet| match network {
        IpNet::V4(network) => 1_u64 << (32 - network.prefix_len()),
        IpNet::V6(_) => 0,
    };
    // Count IPv6 in units of /64, the smallest network that a site is assigned. A smaller network adds 0 to the sum.
    let subnets_v6 = |network: &IpNet| match network {
        IpNet::V6(network) if network.prefix_len() < 64 => 1_u128 << (64 - network.prefix_len()),
        _ => 0,
    };
    let translated: IpNet = "64:ff9b::/96".parse().expect("it is a network");
    if all.iter().map(hosts_v4).sum::<u64>() >= 1 << 31 {
        return Some("half of all IPv4 addresses or more");
    }
    if all.iter().map(subnets_v6).sum::<u128>() >= 1 << 60 {
        return Some("half of all public IPv6 addresses or more");
    }
    all.iter().any(|network| network.contains(&translated)).then_some("all IPv4 addresses behind a NAT64 translator")
}

pub(super) fn endpoint(text: &str) -> Result<Endpoint, String> {
    Endpoint::listening(text).map_err(|error| error.to_string())
}

pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    match Endpoint::listening(text) {
        Ok(Endpoint::Tcp(address)) => Ok(address),
        Err(error) => Err(error.to_string()),
        Ok(Endpoint::Unix(_)) => Err(format!("{text:?} is not a valid HOST:PORT; use something like 127.0.0.1:8025")),
    }
}

pub(super) fn name_in(text: &str) -> Option<String> {
    let (host, _) = text.rsplit_once(':')?;
    let is_name = is_domain(host) && !host.starts_with('[') && host.parse::<IpAddr>().is_err();
    is_name.then(|| host.to_owned())
}

pub(super) fn name_server(text: &str) -> Result<SocketAddr, String> {
    let bare = text.parse::<IpAddr>().map(|address| SocketAddr::new(address, 53));
    bare.or_else(|_| text.parse())
        .map_err(|_| format!("{text:?} is not a valid address; use something like 127.0.0.1 or [::1]:53"))
}
