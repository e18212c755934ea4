//! Parses addresses as Postfix's host_port(3) does: `unix:PATH` or `[inet:][HOST]:PORT`. Looks them up as
//! getaddrinfo(3) does.
use super::hostname;
use super::numbers::{is_all_digits, strtol};
use mailrun_process::local_address;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

/// Service that is used if the user names none. Its port is used if the host's list of services (/etc/services) does
/// not contain the name.
const DEFAULT_SERVICE: (&str, u16) = ("smtp", 25);
/// Maximum length of the path of a unix-domain socket. The kernel has 108 bytes for it, including a final NUL.
const MAX_PATH_BYTES: usize = 107;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Family {
    #[default]
    Any,
    V4,
    V6,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OptionalPart {
    /// The host may be left out of the address of a listening socket. The sink then listens on all addresses.
    Host,
    /// The port may be left out of the address that a client connects to. The client then uses the port of SMTP.
    Port,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EndpointAddress {
    Inet(SocketAddr),
    Unix(String),
}

impl EndpointAddress {
    pub(super) fn parse(typed: &str, optional: OptionalPart, family: Family) -> Result<Self, String> {
        if let Some(path) = typed.strip_prefix("unix:") {
            return if path.len() > MAX_PATH_BYTES {
                Err(format!("unix-domain name too long: {path}"))
            } else {
                Ok(Self::Unix(path.to_owned()))
            };
        }
        let typed = typed.strip_prefix("inet:").unwrap_or(typed);
        let resolved =
            split(typed, optional).map_err(str::to_owned).and_then(|(host, service)| look_up(host, service, family));
        resolved.map(Self::Inet).map_err(|what| format!("{typed}: {what}"))
    }
}

fn split(typed: &str, optional: OptionalPart) -> Result<(Option<&str>, &str), &'static str> {
    let alone = if optional == OptionalPart::Host { ("", typed) } else { (typed, "") };
    let (host, service) = match typed.strip_prefix('[') {
        Some(bracketed) => split_bracketed(bracketed).map(|(host, service)| (Some(host), service))?,
        None => {
            let (host, service) = typed.rsplit_once(':').unwrap_or(alone);
            (Some(host).filter(|host| !host.is_empty()), service)
        }
    };
    match optional {
        OptionalPart::Port if host.is_none() => return Err("missing host information"),
        OptionalPart::Host if service.is_empty() => return Err("missing service information"),
        _ => {}
    }
    if host.is_some_and(|host| hostname::check_name(host).is_err() && !hostname::is_address(host)) {
        return Err("valid hostname or network address required");
    }
    if service.starts_with(|c: char| c.is_ascii_digit()) && !is_all_digits(service) {
        return Err("garbage after numerical service");
    }
    Ok((host, if service.is_empty() { DEFAULT_SERVICE.0 } else { service }))
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

/// Returns the first address of the host that belongs to `family`. The addresses have the order of getaddrinfo(3), and
/// the errors have its texts.
fn look_up(host: Option<&str>, service: &str, family: Family) -> Result<SocketAddr, String> {
    let port = port_of(service).ok_or("Servname not supported for ai_socktype")?;
    let Some(host) = host else {
        let any = if family == Family::V6 { IpAddr::from(Ipv6Addr::UNSPECIFIED) } else { Ipv4Addr::UNSPECIFIED.into() };
        return Ok(SocketAddr::new(any, port));
    };
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

/// Returns the port for a number, or for a name in the host's list of services.
fn port_of(service: &str) -> Option<u16> {
    match strtol(service) {
        (port, "") if !service.is_empty() && port >= 0 => u16::try_from(port).ok(),
        _ => port_in(&fs::read_to_string("/etc/services").unwrap_or_default(), service)
            .or_else(|| (service == DEFAULT_SERVICE.0).then_some(DEFAULT_SERVICE.1)),
    }
}

/// Looks up a TCP service in the text of `/etc/services`. Each line there has a name, `port/tcp` and aliases.
pub(super) fn port_in(services: &str, name: &str) -> Option<u16> {
    services.lines().find_map(|line| {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let official = words.next()?;
        let port = words.next()?.strip_suffix("/tcp")?;
        if official == name || words.any(|alias| alias == name) { port.parse().ok() } else { None }
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PublicTargets {
    Allowed,
    Refused,
}

impl PublicTargets {
    /// Reads the environment variable `MAILRUN_ALLOW_PUBLIC`, as `mailrun source` does. Public addresses are refused if
    /// it is unset, empty or a word such as `no` or `0`.
    pub(super) fn from_environment() -> Self {
        let value = std::env::var("MAILRUN_ALLOW_PUBLIC").unwrap_or_default();
        let is_no = ["", "0", "n", "no", "f", "false", "off"].contains(&value.to_ascii_lowercase().as_str());
        if is_no { Self::Refused } else { Self::Allowed }
    }

    /// Checks that load may be sent to this address. If not, the error begins with `named`, which is the address in the
    /// user's words, and advises what to do.
    pub(super) fn check(self, address: IpAddr, named: impl std::fmt::Display) -> Result<(), String> {
        if self == Self::Allowed || local_address::is_local_address(address) {
            return Ok(());
        }
        Err(format!(
            "{named}: public address: only loopback and private addresses are allowed; if the server is yours, set \
             MAILRUN_ALLOW_PUBLIC=1"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn hosts_to_connect_to() {
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
            assert_eq!(split(typed, OptionalPart::Port), Ok((Some(parts.0), parts.1)), "{typed}");
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
        for (typed, expected) in bad {
            assert_eq!(split(typed, OptionalPart::Port), Err(expected), "{typed}");
        }
    }

    #[test]
    fn addresses_of_either_family() {
        let inet = |typed: &str, family| EndpointAddress::parse(typed, OptionalPart::Port, family);
        let error = |text: &str| Err(text.to_owned());
        let at = |address: &str| Ok(EndpointAddress::Inet(address.parse().unwrap()));
        assert_eq!(inet("inet:127.0.0.1:1", Family::Any), at("127.0.0.1:1"));
        assert_eq!(inet("[::1]:0001", Family::V6), at("[::1]:1"));
        assert_eq!(inet("127.0.0.01:1", Family::V4), at("127.0.0.1:1"), "as inet_aton(3) reads it");
        assert_eq!(inet("[::1]:1", Family::V4), error("[::1]:1: Address family for hostname not supported"));
        assert_eq!(inet("127.0.0.1:-1", Family::Any), error("127.0.0.1:-1: Servname not supported for ai_socktype"));
        assert_eq!(
            inet("127.0.0.1:65536", Family::Any),
            error("127.0.0.1:65536: Servname not supported for ai_socktype")
        );
        assert_eq!(inet("unix:/x", Family::V4), Ok(EndpointAddress::Unix("/x".to_owned())));
        let long = "x".repeat(108);
        assert_eq!(inet(&format!("unix:{long}"), Family::V4), error(&format!("unix-domain name too long: {long}")));
    }

    #[test]
    fn places_to_listen_at() {
        let rows = [
            ("2525", "0.0.0.0:2525"),
            (":2525", "0.0.0.0:2525"),
            ("inet::2525", "0.0.0.0:2525"),
            ("127.0.0.1:2525", "127.0.0.1:2525"),
            ("inet:127.0.0.01:+2525", "127.0.0.1:2525"),
            ("[127.0.0.1]:002525", "127.0.0.1:2525"),
            ("[IPv6:::1]:25", "[::1]:25"),
            ("::1:25", "[::1]:25"),
            ("127.0.0.1:-0", "127.0.0.1:0"),
        ];
        for (text, expected) in rows {
            let expected = EndpointAddress::Inet(expected.parse().unwrap());
            assert_eq!(EndpointAddress::parse(text, OptionalPart::Host, Family::Any), Ok(expected), "{text}");
        }
        assert_eq!(
            EndpointAddress::parse("unix:/a", OptionalPart::Host, Family::Any),
            Ok(EndpointAddress::Unix("/a".to_owned()))
        );
        assert_eq!(
            EndpointAddress::parse(":25", OptionalPart::Host, Family::V6),
            Ok(EndpointAddress::Inet("[::]:25".parse().unwrap()))
        );
    }

    #[test]
    fn what_is_no_place_to_listen_at() {
        let required = "valid hostname or network address required";
        let rows = [
            ("", "missing service information"),
            ("22:", "missing service information"),
            ("[127.0.0.1]", "missing service information"),
            ("[127.0.0.1", "missing \"]\""),
            ("[127.0.0.1]25", "garbage after \"]\""),
            ("[ipv6:127.0.0.1]:25", "malformed IPv6 address"),
            ("[]:25", required),
            ("1.2.3:25", required),
            ("0.1.2.3:25", required),
            ("a..b:25", required),
            ("-a:25", required),
            ("[fe80::1%lo]:25", required),
            ("127.0.0.1", "garbage after numerical service"),
            ("127.0.0.1:25x", "garbage after numerical service"),
            ("127.0.0.1:-5", "Servname not supported for ai_socktype"),
            ("127.0.0.1:99999", "Servname not supported for ai_socktype"),
            ("unix:/x", "Servname not supported for ai_socktype"),
        ];
        for (text, expected) in rows {
            let full = format!("{text}: {expected}");
            let text = format!("inet:{text}");
            assert_eq!(EndpointAddress::parse(&text, OptionalPart::Host, Family::Any), Err(full));
        }
        let long = "x".repeat(108);
        let refused = EndpointAddress::parse(&format!("unix:{long}"), OptionalPart::Host, Family::Any);
        assert_eq!(refused, Err(format!("unix-domain name too long: {long}")));
        let error = EndpointAddress::parse("[::1]:25", OptionalPart::Host, Family::V4).unwrap_err();
        assert_eq!(error, "[::1]:25: Address family for hostname not supported");
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
        fn any_address_is_split_or_refused(typed in "[a-z0-9:.\\[\\]%é -]{0,40}") {
            crate::checks::host_port::check(typed.as_bytes());
            for optional in [OptionalPart::Host, OptionalPart::Port] {
                if let Ok((host, service)) = split(&typed, optional) {
                    prop_assert!(!service.is_empty() && host.is_none_or(|host| !host.is_empty() && typed.contains(host)));
                }
            }
        }

        #[test]
        fn what_is_written_is_read(octets: [u8; 4], port in 1u16..) {
            prop_assume!(octets[0] != 0);
            let address = SocketAddr::from((octets, port));
            for optional in [OptionalPart::Host, OptionalPart::Port] {
                let read = EndpointAddress::parse(&address.to_string(), optional, Family::Any);
                prop_assert_eq!(read, Ok(EndpointAddress::Inet(address)));
            }
        }
    }

    #[test]
    fn public_addresses_are_refused_unless_allowed() {
        let check = |public: PublicTargets, address: &str| public.check(address.parse().unwrap(), "h:25");
        let refused = check(PublicTargets::Refused, "8.8.8.8").unwrap_err();
        assert!(
            refused.starts_with("h:25: public address") && refused.ends_with("set MAILRUN_ALLOW_PUBLIC=1"),
            "{refused}"
        );
        assert_eq!(check(PublicTargets::Allowed, "8.8.8.8"), Ok(()));
        assert_eq!(check(PublicTargets::Refused, "127.0.0.1"), Ok(()));
    }
}
