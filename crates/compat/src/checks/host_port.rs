//! Parses arbitrary text as an address, like Postfix's host_port(3), and as a number, like strtol(3). The numbers must
//! agree with Rust's own parser. Texts with host names are left out, because the test must not ask a name server.
use crate::host_port::{EndpointAddress, Family, OptionalPart, port_in};
use crate::hostname;
use crate::numbers;
use std::net::IpAddr;

/// Returns true if the text, or its host part, could be a name that needs a lookup.
fn has_name(typed: &str) -> bool {
    let typed = typed.strip_prefix("inet:").unwrap_or(typed);
    let bracketed = typed.strip_prefix('[').map(|inside| hostname::after_ipv6_tag(inside).unwrap_or(inside));
    let hosts = [
        Some(typed),
        typed.rsplit_once(':').map(|(host, _)| host),
        bracketed.and_then(|inside| inside.split_once(']')).map(|(host, _)| host),
    ];
    // Count a text such as `1.2.3.08` as a name, because Rust does not accept it as an address, and getaddrinfo(3)
    // would look it up.
    let is_name = |host: &str| {
        hostname::check_name(host).is_ok() || hostname::is_address(host) && host.parse::<IpAddr>().is_err()
    };
    hosts.into_iter().flatten().any(is_name)
}

fn check_numbers(text: &str) {
    let (number, rest) = numbers::strtol(text);
    assert!(text.ends_with(rest));
    let digits = text[..text.len() - rest.len()].trim_start_matches([' ', '\t', '\n', '\u{b}', '\u{c}', '\r']);
    match digits.parse::<i64>() {
        Ok(by_hand) => assert_eq!(number, by_hand),
        // strtol(3) replaces a number outside the range of i64 by the nearest end of the range.
        Err(_) if !digits.is_empty() => assert!(number == i64::MIN || number == i64::MAX),
        Err(_) => assert_eq!((number, rest), (0, text)),
    }
    assert_eq!(numbers::positive(text).map(i64::from), Some(i64::from(numbers::atoi(text))).filter(|n| *n > 0));
    assert!(!numbers::is_all_digits(text) || rest.is_empty());
}

pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    check_numbers(text);
    if let Some((name, services)) = text.split_once('\n') {
        let port = port_in(services, name);
        assert!(port.is_none() || services.contains(name));
    }
    let _ = (hostname::check_literal(text), hostname::check_ipv6(text));
    if hostname::check_name(text).is_ok() {
        assert!(text.bytes().all(|octet| octet.is_ascii_alphanumeric() || b"-_.".contains(&octet)));
    }
    if hostname::is_address(text) {
        assert!(text.bytes().all(|octet| octet.is_ascii_hexdigit() || b":.".contains(&octet)));
    }
    if hostname::check_ipv4(text).is_ok() {
        assert!(text.bytes().all(|octet| octet.is_ascii_digit() || octet == b'.'));
    }
    if has_name(text) {
        return;
    }
    for optional in [OptionalPart::Host, OptionalPart::Port] {
        for family in [Family::Any, Family::V4, Family::V6] {
            match (EndpointAddress::parse(text, optional, family), family) {
                (Ok(EndpointAddress::Unix(path)), _) => assert_eq!(text.strip_prefix("unix:"), Some(path.as_str())),
                (Ok(EndpointAddress::Inet(address)), Family::V4) => assert!(address.is_ipv4()),
                (Ok(EndpointAddress::Inet(address)), Family::V6) => assert!(address.is_ipv6()),
                (Ok(EndpointAddress::Inet(_)), Family::Any) => {}
                (Err(error), _) => assert!(!error.is_empty()),
            }
        }
    }
}
