//! Checks host names and addresses in the same way as Postfix, with the same error texts.
use super::stderr::printable;

/// Maximum length of a label of a name (RFC 1035 §2.3.4).
const MAX_LABEL_BYTES: usize = 63;
/// Maximum length of a name (RFC 1035 §2.3.4).
const MAX_NAME_BYTES: usize = 255;
/// Maximum length of an address as text, including the final NUL that Postfix's C code needs.
const MAX_ADDRESS_BYTES: usize = 46;
/// Maximum number of bytes of a bad name that an error text quotes.
const MAX_QUOTED_BYTES: usize = 100;

fn excerpt(text: &str) -> String {
    printable(&text.as_bytes()[..text.len().min(MAX_QUOTED_BYTES)])
}

/// Checks the syntax of a host name, without a lookup. Labels may contain letters, digits, `_` and `-`, but may not
/// begin or end with `-`. Underscores are not legal, but accepted, because hosts with such names exist. A name must not
/// consist only of digits and dots.
pub(super) fn check_name(name: &str) -> Result<(), String> {
    let fault = |what: String| Err(format!("valid_hostname: {what}: {}", excerpt(name)));
    if name.is_empty() {
        return Err("valid_hostname: empty hostname".to_owned());
    }
    let labels: Vec<&str> = name.split('.').collect();
    for (number, label) in labels.iter().enumerate() {
        for (at, byte) in label.bytes().enumerate() {
            match byte {
                b'-' if at == 0 || at + 1 == label.len() => return fault("misplaced hyphen".to_owned()),
                b'-' => {}
                _ if !byte.is_ascii_alphanumeric() && byte != b'_' => {
                    return fault(format!("invalid character {byte}(decimal)"));
                }
                _ if at >= MAX_LABEL_BYTES => return fault("hostname label too long".to_owned()),
                _ => {}
            }
        }
        let is_dot_last = number + 2 == labels.len() && labels[number + 1].is_empty();
        if number + 1 < labels.len() && (label.is_empty() || is_dot_last) {
            return fault("misplaced delimiter".to_owned());
        }
    }
    if name.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return fault("numeric hostname".to_owned());
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(format!("valid_hostname: bad length {} for {}...", name.len(), excerpt(name)));
    }
    Ok(())
}

/// Checks an IPv4 address: four decimal octets. As in Postfix, the first octet may be zero only in `0.0.0.0`.
pub(super) fn check_ipv4(text: &str) -> Result<(), String> {
    let fault = |what: &str| Err(format!("valid_ipv4_hostaddr: {what}: {}", excerpt(text)));
    let parts: Vec<&str> = text.split('.').collect();
    for (number, part) in parts.iter().enumerate() {
        let mut value = 0;
        for byte in part.bytes() {
            if !byte.is_ascii_digit() {
                return fault(&format!("invalid character {byte}(decimal)"));
            }
            value = value * 10 + u32::from(byte - b'0');
            if value > 255 {
                return fault("invalid octet value");
            }
        }
        let is_dot_last = number + 2 == parts.len() && parts[number + 1].is_empty();
        if number + 1 < parts.len() && (part.is_empty() || is_dot_last) {
            return fault("misplaced dot");
        }
        if number == 0 && parts.len() > 1 && value == 0 && text.bytes().any(|byte| byte != b'0' && byte != b'.') {
            return fault("bad initial octet value");
        }
    }
    let octets = parts.iter().filter(|part| !part.is_empty()).count();
    if octets == 4 { Ok(()) } else { fault("invalid octet count") }
}

/// Checks an IPv6 address without the tag `IPv6:`: eight hexadecimal fields. `::` may replace several of them, and an
/// IPv4 address may replace the last two.
pub(super) fn check_ipv6(text: &str) -> Result<(), String> {
    let fault = |what: &str| Err(format!("valid_ipv6_hostaddr: {what}: {}", excerpt(text)));
    let fields: Vec<&str> = text.split(':').collect();
    let last = fields.len() - 1;
    // `gap` is the index of the empty field in `::`, or 0 if there has been no `::` so far.
    let mut gap = 0;
    let mut start = 0;
    for (number, field) in fields.iter().enumerate() {
        if number == 1 && fields[0].is_empty() && field.starts_with(|c: char| c.is_ascii_alphanumeric()) {
            return fault("bad null first field in IPv6 address");
        }
        if number > 7 {
            return fault("too many `:' in IPv6 address");
        }
        if field.is_empty() && number > 0 && number < last {
            if gap > 0 {
                return fault("too many `::' in IPv6 address");
            }
            gap = number;
        }
        let digits = field.bytes().take_while(u8::is_ascii_hexdigit).count();
        match field.as_bytes().get(digits) {
            _ if digits > 4 => return fault("malformed IPv6 address"),
            None => {}
            Some(b'.') if (2..=6).contains(&number) => return check_ipv4(&text[start..]),
            Some(b'.') => return fault("malformed IPv4-in-IPv6 address"),
            Some(byte) => return fault(&format!("invalid character {byte}(decimal) in IPv6 address")),
        }
        start += field.len() + 1;
    }
    if last < 2 {
        return fault("too few `:' in IPv6 address");
    }
    if fields[last].is_empty() && gap != last - 1 {
        return fault("bad null last field in IPv6 address");
    }
    Ok(())
}

pub(super) fn is_address(text: &str) -> bool {
    if text.contains(':') { check_ipv6(text) } else { check_ipv4(text) }.is_ok()
}

/// Returns the text after the tag `IPv6:` (RFC 5321 §4.1.3), or `None` if the text does not begin with the tag. Case
/// does not matter.
pub(super) fn after_ipv6_tag(text: &str) -> Option<&str> {
    let (tag, rest) = text.split_at_checked("IPv6:".len())?;
    tag.eq_ignore_ascii_case("IPv6:").then_some(rest)
}

/// Checks an address literal of SMTP, such as `[127.0.0.1]` or `[IPv6:::1]`.
pub(super) fn check_literal(text: &str) -> Result<(), String> {
    let fault = |what: &str| Err(format!("valid_mailhost_literal: {what}: {}", excerpt(text)));
    let inner = text.strip_prefix('[').unwrap_or(text);
    let Some((inner, rest)) = inner.split_once(']') else { return fault("']' expected at end") };
    if !rest.is_empty() {
        return fault("unexpected text after ']'");
    }
    if inner.len() >= MAX_ADDRESS_BYTES {
        return fault("too much text");
    }
    after_ipv6_tag(inner).map_or_else(|| check_ipv4(inner), check_ipv6)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Each row holds a bad name and the error text that Debian's smtp-source 3.7.11 printed for it with `-M`.
    #[test]
    fn names_and_what_postfix_says_of_bad_ones() {
        for good in ["a", "a_b", "1-2", "a.b", "1a", "x.1"] {
            assert_eq!(check_name(good), Ok(()), "{good}");
        }
        let bad = [
            ("", "empty hostname"),
            ("-foo", "misplaced hyphen: -foo"),
            ("a-.b", "misplaced hyphen: a-.b"),
            ("a..b", "misplaced delimiter: a..b"),
            ("a.", "misplaced delimiter: a."),
            (".a", "misplaced delimiter: .a"),
            ("123", "numeric hostname: 123"),
            ("1.2.3.4", "numeric hostname: 1.2.3.4"),
            ("ä", "invalid character 195(decimal): ??"),
        ];
        for (name, expected) in bad {
            assert_eq!(check_name(name), Err(format!("valid_hostname: {expected}")));
        }
        assert!(check_name(&"a".repeat(64)).unwrap_err().contains("hostname label too long"));
        let long = format!("{}x", "abcd.".repeat(60));
        assert_eq!(check_name(&long), Err(format!("valid_hostname: bad length 301 for {}...", &long[..100])));
    }

    #[test]
    fn literals_and_what_postfix_says_of_bad_ones() {
        for good in ["[1.2.3.4]", "[0.0.0.0]", "[IPv6:::1]", "[ipv6:::]", "[ipv6:::1.2.3.4]", "[IPV6:1:2:3:4:5:6:7:8]"]
        {
            assert_eq!(check_literal(good), Ok(()), "{good}");
        }
        let bad = [
            ("[1.2.3]", "valid_ipv4_hostaddr: invalid octet count: 1.2.3"),
            ("[1.2.3.4]x", "valid_mailhost_literal: unexpected text after ']': [1.2.3.4]x"),
            ("[1.2.3.4", "valid_mailhost_literal: ']' expected at end: [1.2.3.4"),
            ("[]", "valid_ipv4_hostaddr: invalid octet count: "),
            ("[foo]", "valid_ipv4_hostaddr: invalid character 102(decimal): foo"),
            ("[0.1.2.3]", "valid_ipv4_hostaddr: bad initial octet value: 0.1.2.3"),
            ("[1..3.4]", "valid_ipv4_hostaddr: misplaced dot: 1..3.4"),
            ("[1.2.3.256]", "valid_ipv4_hostaddr: invalid octet value: 1.2.3.256"),
            ("[ipv6:1:2]", "valid_ipv6_hostaddr: too few `:' in IPv6 address: 1:2"),
            ("[ipv6::::]", "valid_ipv6_hostaddr: too many `::' in IPv6 address: :::"),
            ("[ipv6:1::2::3]", "valid_ipv6_hostaddr: too many `::' in IPv6 address: 1::2::3"),
            ("[ipv6:1:2:3:4:5:6:7:8:9]", "valid_ipv6_hostaddr: too many `:' in IPv6 address: 1:2:3:4:5:6:7:8:9"),
            ("[ipv6:12345::1]", "valid_ipv6_hostaddr: malformed IPv6 address: 12345::1"),
            ("[ipv6:1:2.3.4.5]", "valid_ipv6_hostaddr: malformed IPv4-in-IPv6 address: 1:2.3.4.5"),
            ("[ipv6:1:2:3:]", "valid_ipv6_hostaddr: bad null last field in IPv6 address: 1:2:3:"),
            ("[ipv6::1:2:3]", "valid_ipv6_hostaddr: bad null first field in IPv6 address: :1:2:3"),
            ("[ipv6:::1g]", "valid_ipv6_hostaddr: invalid character 103(decimal) in IPv6 address: ::1g"),
            ("[ipv6:zz]", "valid_ipv6_hostaddr: invalid character 122(decimal) in IPv6 address: zz"),
        ];
        for (literal, expected) in bad {
            assert_eq!(check_literal(literal), Err(expected.to_owned()));
        }
        assert!(check_literal(&format!("[{}]", "1".repeat(46))).unwrap_err().contains("too much text"));
    }

    proptest! {
        /// Every address that the standard library can write must be accepted.
        #[test]
        fn written_addresses_are_taken(four: [u8; 4], six: [u16; 8], zero_from in 0usize..8) {
            let mut six = six;
            six[zero_from..].iter_mut().take(3).for_each(|field| *field = 0);
            prop_assert!(is_address(&std::net::Ipv6Addr::from(six).to_string()));
            prop_assert!(four[0] == 0 || is_address(&std::net::Ipv4Addr::from(four).to_string()));
        }

        #[test]
        fn any_text_is_checked(text in "[0-9a-fA-F:.g\\[\\]_é-]{0,80}") {
            crate::checks::host_port::check(text.as_bytes());
        }
    }
}
