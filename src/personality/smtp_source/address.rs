//! Where mail goes: `unix:PATH`, or `[inet:]HOST[:PORT]` as Postfix's host_port(3) reads it.
use super::complaints::Fatal;
use super::hostname;
use super::options::{Family, strtol};
use crate::reach;
use std::fs;
use std::net::{SocketAddr, ToSocketAddrs};

/// The service whose port is meant where none is given, and that port where the host does not know the service.
const SERVICE: (&str, u16) = ("smtp", 25);
/// The longest path of a unix-domain socket.
const PATH_BYTES: usize = 107;

/// A server's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Inet(SocketAddr),
    /// A unix-domain socket's path.
    Unix(String),
}

/// Reads an address and looks its names up; public addresses only where that is `allowed`.
pub(super) fn resolve(typed: &str, family: Family, allowed: Public) -> Result<Target, Fatal> {
    if let Some(path) = typed.strip_prefix("unix:") {
        return if path.len() > PATH_BYTES {
            Err(Fatal(format!("unix-domain name too long: {path}")))
        } else {
            Ok(Target::Unix(path.to_owned()))
        };
    }
    let typed = typed.strip_prefix("inet:").unwrap_or(typed);
    let blame = |what: &str| Fatal(format!("{typed}: {what}"));
    let (host, service) = split(typed).map_err(blame)?;
    let address = look_up(host, service, family).map_err(|what| blame(&what))?;
    if allowed == Public::Refused && !reach::is_local(address.ip()) {
        return Err(blame(
            "public address: load goes to loopback and private addresses only; if the server is yours, set MAILRUN_ALLOW_PUBLIC=1",
        ));
    }
    Ok(Target::Inet(address))
}

/// Whether load may go to public addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::personality) enum Public {
    Allowed,
    Refused,
}

/// Host and service.
fn split(typed: &str) -> Result<(&str, &str), &'static str> {
    let (host, service) = match typed.strip_prefix('[') {
        Some(bracketed) => split_bracketed(bracketed)?,
        None => typed.rsplit_once(':').unwrap_or((typed, "")),
    };
    let is_bare = !typed.starts_with('[');
    if is_bare && host.is_empty() {
        return Err("missing host information");
    }
    if hostname::check_name(host).is_err() && !hostname::is_address(host) {
        return Err("valid hostname or network address required");
    }
    if service.starts_with(|c: char| c.is_ascii_digit()) && !service.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("garbage after numerical service");
    }
    Ok((host, if service.is_empty() { SERVICE.0 } else { service }))
}

fn split_bracketed(bracketed: &str) -> Result<(&str, &str), &'static str> {
    let tagged = hostname::after_ipv6_tag(bracketed);
    let (host, rest) = tagged.unwrap_or(bracketed).split_once(']').ok_or("missing \"]\"")?;
    let service = match rest.strip_prefix(':') {
        Some(service) => service,
        None if rest.is_empty() => rest,
        None => return Err("garbage after \"]\""),
    };
    if tagged.is_some() && hostname::check_ipv6(host).is_err() {
        return Err("malformed IPv6 address");
    }
    Ok((host, service))
}

/// The first address of the host that the family allows, as getaddrinfo(3) orders and complains.
fn look_up(host: &str, service: &str, family: Family) -> Result<SocketAddr, String> {
    let port = port_of(service).ok_or("Servname not supported for ai_socktype")?;
    let addresses = (host, port).to_socket_addrs().map_err(|error| {
        let text = error.to_string();
        text.strip_prefix("failed to lookup address information: ").unwrap_or(&text).to_owned()
    })?;
    let fits = |address: &SocketAddr| match family {
        Family::Any => true,
        Family::V4 => address.is_ipv4(),
        Family::V6 => address.is_ipv6(),
    };
    let unfit = if hostname::is_address(host) {
        "Address family for hostname not supported"
    } else {
        "Name or service not known"
    };
    addresses.into_iter().find(fits).ok_or_else(|| unfit.to_owned())
}

/// A number, or a name from the host's list of services.
fn port_of(service: &str) -> Option<u16> {
    match strtol(service) {
        (port, "") if !service.is_empty() && port >= 0 => u16::try_from(port).ok(),
        _ => port_in(&fs::read_to_string("/etc/services").unwrap_or_default(), service)
            .or_else(|| (service == SERVICE.0).then_some(SERVICE.1)),
    }
}

/// A TCP service in the text of `/etc/services`: name, `port/tcp`, aliases.
pub(in crate::personality) fn port_in(services: &str, name: &str) -> Option<u16> {
    services.lines().find_map(|line| {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let official = words.next()?;
        let port = words.next()?.strip_suffix("/tcp")?;
        if official == name || words.any(|alias| alias == name) { port.parse().ok() } else { None }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_table_of_addresses() {
        let good = [
            ("localhost", ("localhost", "smtp")),
            ("localhost:", ("localhost", "smtp")),
            ("localhost:2525", ("localhost", "2525")),
            ("127.0.0.1:http", ("127.0.0.1", "http")),
            ("[127.0.0.1]", ("127.0.0.1", "smtp")),
            ("[::1]:", ("::1", "smtp")),
            ("[IPV6:::1]:25", ("::1", "25")),
            ("[a.b]:+1", ("a.b", "+1")),
        ];
        for (typed, parts) in good {
            assert_eq!(split(typed), Ok(parts), "{typed}");
        }
        let required = "valid hostname or network address required";
        let bad = [
            ("", "missing host information"),
            (":25", "missing host information"),
            ("::1", required),
            ("[]:1", required),
            ("12345", required),
            ("256.1.1.1:1", required),
            ("a:b:c", required),
            ("[::1", "missing \"]\""),
            ("[::1]x", "garbage after \"]\""),
            ("[ipv6:zz]", "malformed IPv6 address"),
            ("[IPv6:1.2.3.4]:1", "malformed IPv6 address"),
            ("h:1x", "garbage after numerical service"),
        ];
        for (typed, said) in bad {
            assert_eq!(split(typed), Err(said), "{typed}");
        }
    }

    #[test]
    fn addresses_of_either_family() {
        let inet = |typed: &str, family| resolve(typed, family, Public::Refused);
        let said = |text: &str| Err(Fatal(text.to_owned()));
        let at = |address: &str| Ok(Target::Inet(address.parse().unwrap()));
        assert_eq!(inet("inet:127.0.0.1:1", Family::Any), at("127.0.0.1:1"));
        assert_eq!(inet("[::1]:0001", Family::V6), at("[::1]:1"));
        assert_eq!(inet("127.0.0.01:1", Family::V4), at("127.0.0.1:1"), "as inet_aton(3) reads it");
        assert_eq!(inet("[::1]:1", Family::V4), said("[::1]:1: Address family for hostname not supported"));
        assert_eq!(inet("127.0.0.1:-1", Family::Any), said("127.0.0.1:-1: Servname not supported for ai_socktype"));
        assert_eq!(
            inet("127.0.0.1:65536", Family::Any),
            said("127.0.0.1:65536: Servname not supported for ai_socktype")
        );
        assert_eq!(inet("unix:/x", Family::V4), Ok(Target::Unix("/x".to_owned())));
        let long = "x".repeat(108);
        assert_eq!(inet(&format!("unix:{long}"), Family::V4), said(&format!("unix-domain name too long: {long}")));
    }

    #[test]
    fn public_addresses_are_refused_unless_allowed() {
        let refused = resolve("8.8.8.8:25", Family::Any, Public::Refused).unwrap_err().to_string();
        assert!(refused.contains("MAILRUN_ALLOW_PUBLIC=1"), "{refused}");
        assert!(resolve("8.8.8.8:25", Family::Any, Public::Allowed).is_ok());
    }

    #[test]
    fn services_by_name() {
        let list = "# c\nsmtp\t\t25/tcp\t\tmail # x\ntime 37/udp\nsubmission 587/tcp msa\nodd 99999/tcp\n";
        let rows =
            [("smtp", Some(25)), ("mail", Some(25)), ("time", None), ("msa", Some(587)), ("SMTP", None), ("odd", None)];
        for (name, port) in rows {
            assert_eq!(port_in(list, name), port, "{name}");
        }
        assert_eq!(port_of("smtp"), Some(25), "whatever the host knows");
        assert_eq!(port_of(""), None);
    }

    proptest! {
        #[test]
        fn any_address_is_split_or_refused(typed in "[a-z0-9:.\\[\\]é -]{0,40}") {
            if let Ok((host, service)) = split(&typed) {
                prop_assert!(!host.is_empty() && !service.is_empty());
                prop_assert!(typed.contains(host));
            }
        }
    }
}
