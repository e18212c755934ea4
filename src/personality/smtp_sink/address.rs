//! Where to listen: `unix:path`, `[inet:]host:port`, `[host]:port`, `:port`, or a bare port.
use super::numbers::is_all_digits;
use super::options::Family;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

/// The longest path that a socket address holds.
const PATH_BYTES: usize = 107;
/// RFC 1035 §2.3.4.
const LABEL_BYTES: usize = 63;
const HOSTNAME_BYTES: usize = 255;

const NO_SERVICE: &str = "Servname not supported for ai_socktype";

/// A place to listen at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Unix(String),
    Inet(SocketAddr),
}

impl Place {
    /// Reads it; the first address that the name stands for is the one.
    pub(super) fn read(text: &str, family: Family) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            if path.len() > PATH_BYTES {
                return Err(format!("unix-domain name too long: {path}"));
            }
            return Ok(Self::Unix(path.to_owned()));
        }
        let text = text.strip_prefix("inet:").unwrap_or(text);
        let resolved = host_and_port(text).map_err(str::to_owned).and_then(|(host, port)| {
            let port = port_of(port).ok_or_else(|| NO_SERVICE.to_owned())?;
            resolve(host, port, family)
        });
        resolved.map(Self::Inet).map_err(|why| format!("{text}: {why}"))
    }
}

/// The two parts; no host is every address there is.
fn host_and_port(text: &str) -> Result<(Option<&str>, &str), &'static str> {
    let (host, port) = match text.strip_prefix('[') {
        Some(inner) => {
            let (host, port) = in_brackets(inner)?;
            (Some(host), port)
        }
        None => {
            let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
            ((!host.is_empty()).then_some(host), port)
        }
    };
    if port.is_empty() {
        return Err("missing service information");
    }
    if host.is_some_and(|host| !is_hostname(host) && !is_address(host)) {
        return Err("valid hostname or network address required");
    }
    if port.starts_with(|c: char| c.is_ascii_digit()) && !is_all_digits(port) {
        return Err("garbage after numerical service");
    }
    Ok((host, port))
}

/// `host]:port`, where host may be marked as in an address literal (RFC 5321 §4.1.3).
fn in_brackets(inner: &str) -> Result<(&str, &str), &'static str> {
    const MARK: &str = "ipv6:";
    let is_marked = inner.get(..MARK.len()).is_some_and(|start| start.eq_ignore_ascii_case(MARK));
    let inner = if is_marked { &inner[MARK.len()..] } else { inner };
    let (host, after) = inner.split_once(']').ok_or("missing \"]\"")?;
    let port = after.strip_prefix(':').or(after.is_empty().then_some("")).ok_or("garbage after \"]\"")?;
    if is_marked && host.parse::<Ipv6Addr>().is_err() {
        return Err("malformed IPv6 address");
    }
    Ok((host, port))
}

/// Letters, digits, hyphens and underscores in labels, not all of them numbers.
fn is_hostname(name: &str) -> bool {
    let is_label = |label: &str| {
        let has_good_ends = !label.starts_with('-') && !label.ends_with('-');
        let is_word = label.bytes().all(|octet| octet.is_ascii_alphanumeric() || matches!(octet, b'_' | b'-'));
        (1..=LABEL_BYTES).contains(&label.len()) && has_good_ends && is_word
    };
    let is_numeric = name.bytes().all(|octet| octet.is_ascii_digit() || octet == b'.');
    name.len() <= HOSTNAME_BYTES && !is_numeric && name.split('.').all(is_label)
}

fn is_address(text: &str) -> bool {
    ipv4(text).is_some() || text.parse::<Ipv6Addr>().is_ok()
}

/// Four decimal numbers, leading zeros allowed; a network of zero only as the address that stands for all.
fn ipv4(text: &str) -> Option<Ipv4Addr> {
    let parts: Vec<&str> = text.split('.').collect();
    let octets: [&str; 4] = parts.try_into().ok()?;
    let octet = |digits: &str| if is_all_digits(digits) { digits.parse::<u8>().ok() } else { None };
    let address = Ipv4Addr::new(octet(octets[0])?, octet(octets[1])?, octet(octets[2])?, octet(octets[3])?);
    (address.octets()[0] != 0 || address.is_unspecified()).then_some(address)
}

/// A number, as strtoul(3) reads it, or a name of services(5). The original takes a number beyond 65535 for its
/// lowest 16 bits.
fn port_of(text: &str) -> Option<u16> {
    let number = text.trim_start().trim_start_matches('+');
    if number.trim_start_matches('-').bytes().all(|octet| octet == b'0')
        && is_all_digits(number.trim_start_matches('-'))
    {
        return Some(0);
    }
    if is_all_digits(number) {
        return number.parse().ok();
    }
    named_port(text, &fs::read_to_string("/etc/services").unwrap_or_default())
}

/// The TCP port of a service, by its name or another name for it.
fn named_port(name: &str, services: &str) -> Option<u16> {
    services.lines().find_map(|line| {
        let mut words = line.split('#').next()?.split_ascii_whitespace();
        let (official, port) = (words.next()?, words.next()?.strip_suffix("/tcp")?);
        (official == name || words.any(|other| other == name)).then(|| port.parse().ok())?
    })
}

fn resolve(host: Option<&str>, port: u16, family: Family) -> Result<SocketAddr, String> {
    let fits = |address: &SocketAddr| match family {
        Family::Any => true,
        Family::V4 => address.is_ipv4(),
        Family::V6 => address.is_ipv6(),
    };
    let Some(host) = host else {
        let any: IpAddr =
            if family == Family::V6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        return Ok(SocketAddr::new(any, port));
    };
    let literal = ipv4(host).map(IpAddr::from).or(host.parse().ok());
    if let Some(literal) = literal {
        let address = Some(SocketAddr::new(literal, port)).filter(fits);
        return address.ok_or_else(|| "Address family for hostname not supported".to_owned());
    }
    let unknown = "Name or service not known";
    let mut addresses = (host, port).to_socket_addrs().map_err(|error| lookup_reason(&error.to_string()))?;
    addresses.find(fits).ok_or_else(|| unknown.to_owned())
}

/// What the resolver said, without what Rust puts in front of it.
fn lookup_reason(text: &str) -> String {
    text.rsplit_once("information: ").map_or(text, |(_, reason)| reason).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_table_of_addresses() {
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
            let expected = Place::Inet(expected.parse().unwrap());
            assert_eq!(Place::read(text, Family::Any), Ok(expected), "{text}");
        }
        assert_eq!(Place::read("unix:/a", Family::Any), Ok(Place::Unix("/a".to_owned())));
        assert_eq!(Place::read(":25", Family::V6), Ok(Place::Inet("[::]:25".parse().unwrap())));
    }

    #[test]
    fn a_table_of_what_is_none() {
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
            ("127.0.0.1:-5", NO_SERVICE),
            ("127.0.0.1:99999", NO_SERVICE),
            ("unix:/x", NO_SERVICE),
        ];
        for (text, expected) in rows {
            let (text, full) = (format!("inet:{text}"), format!("{text}: {expected}"));
            assert_eq!(Place::read(&text, Family::Any), Err(full));
        }
        let long = "x".repeat(108);
        let refused = Place::read(&format!("unix:{long}"), Family::Any);
        assert_eq!(refused, Err(format!("unix-domain name too long: {long}")));
        let wrong = Place::read("[::1]:25", Family::V4).unwrap_err();
        assert_eq!(wrong, "[::1]:25: Address family for hostname not supported");
    }

    #[test]
    fn services_have_several_names() {
        let services = "# x\nsmtp\t25/tcp\tmail # Simple\ndomain 53/udp\nsubmission 587/tcp\n";
        assert_eq!(named_port("smtp", services), Some(25));
        assert_eq!(named_port("mail", services), Some(25));
        assert_eq!(named_port("domain", services), None);
        assert_eq!(named_port("SMTP", services), None);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[\\[\\]a-z0-9:.%-]{0,24}") {
            if let Ok((host, port)) = host_and_port(&text) {
                prop_assert!(!port.is_empty() && host.is_none_or(|host| !host.is_empty()));
            }
        }

        #[test]
        fn what_is_written_is_read(octets: [u8; 4], port in 1u16..) {
            prop_assume!(octets[0] != 0);
            let address = SocketAddr::from((octets, port));
            prop_assert_eq!(Place::read(&address.to_string(), Family::Any), Ok(Place::Inet(address)));
        }
    }
}
