//! The server's address, `host:port`, which is split and looked up as Go's net package does.
use crate::go::reason;
use crate::host_port::{PublicTargets, port_in};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::{fs, io};
use tokio::sync::oneshot;

/// Ports of mail services, for hosts whose list of services (/etc/services) does not contain them.
const KNOWN_PORTS: [(&str, u16); 4] = [("smtp", 25), ("smtps", 465), ("submission", 587), ("submissions", 465)];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DialTarget {
    pub(super) host: String,
    pub(super) port: String,
    /// Address of the host, if `-resolve-once` has looked it up before the first connection.
    address: Option<IpAddr>,
    allowed: PublicTargets,
}

impl DialTarget {
    /// Splits `HOST:PORT` without looking up the host. On failure, returns the error text of Go's net package.
    pub(super) fn parse(typed: &str, allowed: PublicTargets) -> Result<Self, String> {
        let (host, port) = split(typed).map_err(|what| format!("address {typed}: {what}"))?;
        Ok(Self { host: host.to_owned(), port: port.to_owned(), address: None, allowed })
    }

    /// Implements `-resolve-once`: looks up the host, and uses its first address for all connections. If the lookup
    /// fails, the error text is Go's.
    pub(super) fn resolve(self) -> Result<Self, String> {
        let first = if self.host.is_empty() { None } else { look_up(&self.host)?.first().copied() };
        let address = Some(first.ok_or_else(|| format!("lookup {}: no such host", self.host))?);
        Ok(Self { address, ..self })
    }

    /// Returns the addresses to connect to, in the order of the attempts. Without `-resolve-once`, the name is looked
    /// up again for each connection.
    ///
    /// # Errors
    ///
    /// Fails with Go's error text if the lookup fails. Also fails if an address is public and public addresses are not
    /// allowed.
    pub(super) async fn addresses(&self) -> Result<Vec<SocketAddr>, String> {
        let port = port_of(&self.port)?;
        let addresses = match (self.address, self.host.parse()) {
            (Some(address), _) | (None, Ok(address)) => vec![address],
            (None, Err(_)) if self.host.is_empty() => {
                vec![IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()]
            }
            (None, Err(_)) => look_up_on_thread(self.host.clone()).await?,
        };
        addresses.iter().try_for_each(|address| self.allowed.check(*address, address))?;
        Ok(addresses.into_iter().map(|address| SocketAddr::new(address, port)).collect())
    }

    /// Returns the address for error texts, or only `:PORT` if the user gave no host.
    pub(super) fn display_name(&self, address: SocketAddr) -> String {
        if self.host.is_empty() { format!(":{}", address.port()) } else { address.to_string() }
    }
}

/// Splits an address into host and port. Fails if it has no port. A host that contains colons must be in brackets.
fn split(typed: &str) -> Result<(&str, &str), &'static str> {
    let Some((before, port)) = typed.rsplit_once(':') else { return Err("missing port in address") };
    let host = match typed.strip_prefix('[') {
        Some(bracketed) => {
            let (host, rest) = bracketed.split_once(']').ok_or("missing ']' in address")?;
            match rest.strip_prefix(':') {
                Some(_) if host.len() + 2 == before.len() => host,
                Some(_) => return Err("too many colons in address"),
                None => return Err("missing port in address"),
            }
        }
        None if before.contains(':') => return Err("too many colons in address"),
        None => before,
    };
    if host.contains('[') || port.contains('[') {
        return Err("unexpected '[' in address");
    }
    if host.contains(']') || port.contains(']') {
        return Err("unexpected ']' in address");
    }
    Ok((host, port))
}

/// Returns the port for a number or for the name of a service. As in Go, an empty text means port 0.
fn port_of(port: &str) -> Result<u16, String> {
    let digits = port.strip_prefix(['+', '-']).unwrap_or(port);
    if port.is_empty() {
        return Ok(0);
    }
    if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return port.parse().map_err(|_| format!("address {port}: invalid port"));
    }
    let name = port.to_ascii_lowercase();
    let listed = port_in(&fs::read_to_string("/etc/services").unwrap_or_default(), &name);
    let known = KNOWN_PORTS.iter().find(|(known, _)| *known == name).map(|(_, port)| *port);
    listed.or(known).ok_or_else(|| format!("lookup tcp/{port}: unknown port"))
}

fn look_up(host: &str) -> Result<Vec<IpAddr>, String> {
    let sockets =
        (host, 0).to_socket_addrs().map_err(|error| format!("lookup {host}: {}", lookup_error_text(&error)))?;
    let mut addresses: Vec<IpAddr> = Vec::new();
    for address in sockets.map(|address| address.ip()) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    Ok(addresses)
}

/// Translates an error of getaddrinfo(3) into the words that Go uses.
fn lookup_error_text(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.strip_prefix("failed to lookup address information: ").unwrap_or(&text);
    match text {
        "Name or service not known" | "No address associated with hostname" => "no such host".to_owned(),
        _ => reason(&io::Error::other(text.to_owned())),
    }
}

/// Looks up a name on a separate thread. A slow name server would otherwise block the thread on which all sessions run.
async fn look_up_on_thread(host: String) -> Result<Vec<IpAddr>, String> {
    let (result, answer) = oneshot::channel();
    let started = std::thread::Builder::new().name("look-up".to_owned()).spawn(move || {
        // Ignore the error, because it only means that the session that asked has ended.
        let _ = result.send(look_up(&host));
    });
    started.map_err(|error| format!("lookup: {}", reason(&error)))?;
    answer.await.unwrap_or_else(|_| Err("lookup: the thread ended without an answer".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn addresses(typed: &str, allowed: PublicTargets) -> Result<Vec<SocketAddr>, String> {
        let target = DialTarget::parse(typed, allowed).unwrap();
        mailrun_net::worker::run(|_| async move { target.addresses().await }).unwrap()
    }

    #[test]
    fn hosts_and_ports() {
        let good = [
            ("a:1", ("a", "1")),
            (":1", ("", "1")),
            ("a:", ("a", "")),
            ("[::1]:1", ("::1", "1")),
            ("[a]:b", ("a", "b")),
        ];
        for (typed, parts) in good {
            assert_eq!(split(typed), Ok(parts), "{typed}");
        }
        let bad = [
            ("", "missing port in address"),
            ("a", "missing port in address"),
            ("[::1]", "missing port in address"),
            ("[a]b:1", "missing port in address"),
            ("a:b:c", "too many colons in address"),
            ("[a]:1:2", "too many colons in address"),
            ("::1", "too many colons in address"),
            ("[::1", "missing ']' in address"),
            ("a[b:1", "unexpected '[' in address"),
            ("a]b:1", "unexpected ']' in address"),
        ];
        for (typed, expected) in bad {
            assert_eq!(split(typed), Err(expected), "{typed}");
        }
    }

    #[test]
    fn ports_by_number_and_name() {
        assert_eq!((port_of(""), port_of("+25"), port_of("SMTP")), (Ok(0), Ok(25), Ok(25)));
        assert_eq!(port_of("zz"), Err("lookup tcp/zz: unknown port".to_owned()));
        assert_eq!(port_of("65536"), Err("address 65536: invalid port".to_owned()));
        assert_eq!(port_of("-1"), Err("address -1: invalid port".to_owned()));
    }

    #[test]
    fn where_a_target_is() {
        let at = |addresses: &[&str]| Ok(addresses.iter().map(|address| address.parse().unwrap()).collect());
        assert_eq!(addresses("127.0.0.1:1", PublicTargets::Refused), at(&["127.0.0.1:1"]));
        assert_eq!(addresses("[::1]:1", PublicTargets::Refused), at(&["[::1]:1"]));
        assert_eq!(addresses(":1", PublicTargets::Refused), at(&["127.0.0.1:1", "[::1]:1"]));
        assert!(
            addresses("localhost:1", PublicTargets::Refused).unwrap().iter().all(|address| address.ip().is_loopback())
        );
        assert!(addresses("8.8.8.8:25", PublicTargets::Refused).unwrap_err().contains("MAILRUN_ALLOW_PUBLIC=1"));
        assert_eq!(addresses("8.8.8.8:25", PublicTargets::Allowed), at(&["8.8.8.8:25"]));
        let once = DialTarget::parse("localhost:1", PublicTargets::Refused).unwrap().resolve().unwrap();
        assert!(once.address.unwrap().is_loopback());
        let nobody = DialTarget::parse(":1", PublicTargets::Refused).unwrap().resolve();
        assert_eq!(nobody, Err("lookup : no such host".to_owned()));
    }

    proptest! {
        #[test]
        fn any_address_is_split_or_refused(typed in "[a:\\[\\]1]{0,12}") {
            if let Ok((host, port)) = split(&typed) {
                let is_whole = typed == format!("{host}:{port}") || typed == format!("[{host}]:{port}");
                prop_assert!(is_whole, "{} {}", host, port);
            }
        }
    }
}
