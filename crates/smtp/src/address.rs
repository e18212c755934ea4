//! Paths and mailboxes, such as `<local@domain>` in MAIL and RCPT (RFC 5321 §4.1.2), which may
//! contain UTF-8 (RFC 6531 §3.3).
//!
//! ```text
//! <@a,@b:local@domain>   source route passed over (RFC 5321 §4.1.1.3, appendix C)
//! <"quoted local"@[127.0.0.1]>
//! <>                     the null reverse-path
//! <Postmaster>           the one mailbox that needs no domain
//! ```
use crate::limits::{MAX_DOMAIN_BYTES, MAX_LOCAL_PART_BYTES, MAX_PATH_BYTES};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Maximum length of a label, which is a part of a domain between dots (RFC 1035 §2.3.4).
const MAX_LABEL_BYTES: usize = 63;

/// A path with valid syntax, whose bytes are borrowed from the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path<'a> {
    mailbox: &'a [u8],
    at: Option<usize>,
}

/// Reason why a path is invalid. A server sends a different reply for each reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// The path does not follow the grammar of RFC 5321 §4.1.2.
    #[error("the address is not of the form <local-part@domain>")]
    Syntax,
    /// The path has more than 256 bytes, its local part more than 64, or its domain more than 255.
    #[error("the address is too long")]
    TooLong,
}

impl<'a> Path<'a> {
    /// Parses a path at the start of `text`. Returns the path and the rest of the text.
    ///
    /// # Errors
    /// Returns a [`PathError`] if the path violates the grammar or the lengths of RFC 5321.
    pub fn parse(text: &'a [u8]) -> Result<(Self, &'a [u8]), PathError> {
        let inner = text.strip_prefix(b"<").ok_or(PathError::Syntax)?;
        let end = closing_bracket(inner).ok_or(PathError::Syntax)?;
        if end + 2 > MAX_PATH_BYTES {
            return Err(PathError::TooLong);
        }
        let mailbox = without_route(&inner[..end])?;
        Ok((Self::mailbox(mailbox)?, &inner[end + 1..]))
    }

    /// Checks a bare mailbox as a user types it: `local@domain`, or an empty text for the null
    /// path.
    ///
    /// # Errors
    /// Returns a [`PathError`] if the mailbox violates the grammar or the lengths of RFC 5321.
    pub fn mailbox(mailbox: &'a [u8]) -> Result<Self, PathError> {
        if mailbox.is_empty() {
            return Ok(Self { mailbox, at: None });
        }
        let length = local_part_length(mailbox).ok_or(PathError::Syntax)?;
        if length > MAX_LOCAL_PART_BYTES || mailbox.len() + "<>".len() > MAX_PATH_BYTES {
            return Err(PathError::TooLong);
        }
        match &mailbox[length..] {
            [] if mailbox.eq_ignore_ascii_case(b"postmaster") => Ok(Self { mailbox, at: None }),
            [b'@', domain @ ..] if domain.len() > MAX_DOMAIN_BYTES => Err(PathError::TooLong),
            [b'@', domain @ ..] if is_domain(domain) => Ok(Self { mailbox, at: Some(length) }),
            _ => Err(PathError::Syntax),
        }
    }

    /// Makes a path from bytes that [`Self::as_bytes`] of a parsed path returned, without checking the grammar again.
    /// If the bytes come from elsewhere, the path may have a wrong local part and domain.
    pub fn checked_before(mailbox: &'a [u8]) -> Self {
        let is_quoted = mailbox.first() == Some(&b'"');
        // Skip a quoted local part when looking for the @, because it may contain another @.
        let at = if is_quoted { quoted_length(mailbox) } else { memchr::memchr(b'@', mailbox) };
        Self { mailbox, at }
    }

    /// Returns the mailbox without brackets and source route. It is empty for the null path.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.mailbox
    }

    /// Returns the part before the `@`, including quotes. It is empty for the null path.
    pub fn local_part(&self) -> &'a [u8] {
        &self.mailbox[..self.at.unwrap_or(self.mailbox.len())]
    }

    /// Returns the part after the `@`, or `None` for the null path and for `Postmaster` without a domain.
    pub fn domain(&self) -> Option<&'a [u8]> {
        self.at.map(|at| &self.mailbox[at + 1..])
    }

    /// Returns true if the path is `<>`, which is the sender of notifications.
    pub fn is_null(&self) -> bool {
        self.mailbox.is_empty()
    }

    /// Returns true if the path needs SMTPUTF8 (RFC 6531 §3.2).
    pub fn is_internationalized(&self) -> bool {
        !self.mailbox.is_ascii()
    }
}

/// Finds the first `>` that is not in a quoted string.
fn closing_bracket(text: &[u8]) -> Option<usize> {
    if let Some(end) = memchr::memchr2(b'>', b'"', text)
        && text[end] == b'>'
    {
        return Some(end);
    }
    let mut quoted = false;
    let mut escaped = false;
    text.iter().position(|&byte| {
        let is_end = byte == b'>' && !quoted;
        quoted ^= byte == b'"' && !escaped;
        escaped = quoted && byte == b'\\' && !escaped;
        is_end
    })
}

/// Removes a source route, such as `@a,@b:`, which RFC 5321 §4.1.1.3 tells servers to ignore.
fn without_route(path: &[u8]) -> Result<&[u8], PathError> {
    if path.first() != Some(&b'@') {
        return Ok(path);
    }
    let colon = memchr::memchr(b':', path).ok_or(PathError::Syntax)?;
    let hops_are_domains = path[..colon].split(|&byte| byte == b',').all(|hop| match hop {
        [b'@', domain @ ..] => is_domain(domain),
        _ => false,
    });
    if hops_are_domains && colon + 1 < path.len() { Ok(&path[colon + 1..]) } else { Err(PathError::Syntax) }
}

/// Returns the length of the dot-string or quoted string at the start of `mailbox`.
fn local_part_length(mailbox: &[u8]) -> Option<usize> {
    if mailbox.first() == Some(&b'"') {
        return quoted_length(mailbox);
    }
    let mut before = b'.';
    let mut seen = 0;
    for (at, &byte) in mailbox.iter().enumerate() {
        let class = CLASSES[usize::from(byte)];
        if byte == b'@' {
            return (before != b'.' && is_utf8(&mailbox[..at], seen)).then_some(at);
        }
        if class & ATEXT == 0 && (byte != b'.' || before == b'.') {
            return None;
        }
        seen |= class;
        before = byte;
    }
    (before != b'.' && is_utf8(mailbox, seen)).then_some(mailbox.len())
}

/// Returns the length of a quoted string, including its quotes. It may contain printable ASCII, and
/// UTF-8 (RFC 6531 §3.3).
fn quoted_length(mailbox: &[u8]) -> Option<usize> {
    let mut escaped = false;
    for (at, &byte) in mailbox.iter().enumerate().skip(1) {
        match byte {
            _ if byte < b' ' || byte == 0x7f => return None,
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return is_utf8(&mailbox[..at], HIGH).then_some(at + 1),
            _ => {}
        }
    }
    None
}

/// Class of bytes that are allowed in a dot-string (RFC 5322 §3.2.3, and RFC 6531 §3.3 for
/// characters above ASCII).
const ATEXT: u8 = 1;
/// Class of bytes that are allowed in a label of a domain. They include underscores, which RFC 1123 forbids, because
/// real host names contain them.
const LABEL: u8 = 2;
/// Class of bytes from 0x80 on, which are not ASCII. A text that contains such bytes must also be valid UTF-8.
const HIGH: u8 = 4;

/// Character classes of each byte, as a bit set. The table makes the check fast, because it needs only one look-up per
/// byte, and every address of every message is checked.
static CLASSES: [u8; 256] = {
    let mut classes = [0; 256];
    let mut octet = 0;
    while octet < 256 {
        let byte = octet as u8;
        if byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_' {
            classes[octet] = ATEXT | LABEL;
        } else if byte >= 0x80 {
            classes[octet] = ATEXT | LABEL | HIGH;
        }
        octet += 1;
    }
    let special = b"!#$%&'*+/=?^`{|}~";
    let mut at = 0;
    while at < special.len() {
        classes[special[at] as usize] = ATEXT;
        at += 1;
    }
    classes
};

fn is_domain(domain: &[u8]) -> bool {
    if domain.first() == Some(&b'[') {
        return address_literal(domain).is_some();
    }
    let mut label_at = 0;
    let mut seen = 0;
    for (at, &byte) in domain.iter().enumerate() {
        let class = CLASSES[usize::from(byte)];
        seen |= class;
        if class & LABEL == 0 {
            if byte != b'.' || !is_label(&domain[label_at..at]) {
                return false;
            }
            label_at = at + 1;
        }
    }
    is_label(&domain[label_at..]) && is_utf8(domain, seen)
}

/// Formats an IP address as an address literal, such as `[192.0.2.1]` or `[IPv6:2001:db8::1]` (RFC
/// 5321 §4.1.3).
pub fn literal(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => format!("[{address}]"),
        IpAddr::V6(address) => format!("[IPv6:{address}]"),
    }
}

/// Parses an address literal with its brackets, such as `[192.0.2.1]` or `[IPv6:2001:db8::1]` (RFC
/// 5321 §4.1.3). The grammar allows other tags than `IPv6`, but none has been registered, so they
/// are rejected.
pub fn address_literal(domain: &[u8]) -> Option<IpAddr> {
    let text = domain.strip_prefix(b"[")?.strip_suffix(b"]")?;
    match text.split_first_chunk::<5>() {
        Some((tag, address)) if tag.eq_ignore_ascii_case(b"IPv6:") => ipv6(address).map(IpAddr::from),
        _ => ipv4(text).map(IpAddr::from),
    }
}

/// Parses an IPv4 address of four decimal numbers with one to three digits each. The grammar allows leading zeros, but
/// they do not make a number octal.
fn ipv4(text: &[u8]) -> Option<Ipv4Addr> {
    let mut octets = [0; 4];
    let mut numbers = text.split(|byte| *byte == b'.');
    for octet in &mut octets {
        let digits = numbers.next().filter(|digits| (1..=3).contains(&digits.len()))?;
        *octet = std::str::from_utf8(digits).ok().filter(|_| digits.iter().all(u8::is_ascii_digit))?.parse().ok()?;
    }
    numbers.next().is_none().then(|| octets.into())
}

/// Parses an IPv6 address: eight groups of 16 bits, or at most six groups and a `::`, which stands for at least two
/// zero groups. The last two groups may be written as an IPv4 address.
fn ipv6(text: &[u8]) -> Option<Ipv6Addr> {
    let Some(at) = memchr::memmem::find(text, b"::") else {
        let (groups, count) = groups(text)?;
        return (count == 8).then(|| groups.into());
    };
    let before = &text[..at];
    let after = &text[at + 2..];
    let (mut all, begin) = groups(before).filter(|_| !before.contains(&b'.'))?;
    let (rest, end) = groups(after)?;
    all[8 - end..].copy_from_slice(&rest[..end]);
    (begin + end <= 6).then(|| all.into())
}

/// Parses the groups before or after the `::` of an IPv6 address, or all groups of an address without `::`. Returns the
/// groups and their number.
fn groups(text: &[u8]) -> Option<([u16; 8], usize)> {
    let mut groups = [0; 8];
    let mut count = 0;
    if text.is_empty() {
        return Some((groups, 0));
    }
    let mut parts = text.split(|byte| *byte == b':').peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() && part.contains(&b'.') {
            let [a, b, c, d] = ipv4(part)?.octets();
            groups
                .get_mut(count..count + 2)?
                .copy_from_slice(&[u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])]);
            count += 2;
        } else {
            let digits = std::str::from_utf8(part).ok().filter(|_| part.iter().all(u8::is_ascii_hexdigit))?;
            let group = (1..=4).contains(&digits.len()).then(|| u16::from_str_radix(digits, 16).ok())??;
            *groups.get_mut(count)? = group;
            count += 1;
        }
    }
    Some((groups, count))
}

/// Returns true if the text has a valid length for a label, and no hyphen at either end. The caller
/// must have checked the characters.
fn is_label(text: &[u8]) -> bool {
    (1..=MAX_LABEL_BYTES).contains(&text.len()) && !text.starts_with(b"-") && !text.ends_with(b"-")
}

/// Returns true if the text is UTF-8. `seen` is the union of the character classes of its bytes, which already shows
/// whether the text is ASCII. Most addresses are ASCII, and need no further check.
fn is_utf8(text: &[u8], seen: u8) -> bool {
    seen & HIGH == 0 || std::str::from_utf8(text).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_table_of_paths() {
        type PathCase<'a> = (&'a [u8], &'a [u8], Option<&'a [u8]>, &'a [u8]);
        let good: &[PathCase<'_>] = &[
            (b"<a@b>", b"a", Some(b"b"), b""),
            (b"<>", b"", None, b""),
            (b"<a.b+3@example.com> SIZE=1", b"a.b+3", Some(b"example.com"), b" SIZE=1"),
            (b"<@x,@y.z:a@b>", b"a", Some(b"b"), b""),
            (b"<\"a b>\\\"c\"@b>", b"\"a b>\\\"c\"", Some(b"b"), b""),
            (b"<a@[127.0.0.1]>", b"a", Some(b"[127.0.0.1]"), b""),
            (b"<a@[IPv6:::1]>", b"a", Some(b"[IPv6:::1]"), b""),
            (b"<\"a@b\"@[ipv6:A::]>", b"\"a@b\"", Some(b"[ipv6:A::]"), b""),
            (b"<@[127.0.0.1]:a@b>", b"a", Some(b"b"), b""),
            (b"<postMaster>", b"postMaster", None, b""),
            ("<jürgen@exämple.org>".as_bytes(), "jürgen".as_bytes(), Some("exämple.org".as_bytes()), b""),
        ];
        for (text, local, domain, rest) in good {
            let (path, after) = Path::parse(text).expect("a good path");
            assert_eq!((path.local_part(), path.domain(), after), (*local, *domain, *rest));
            assert_eq!(Path::checked_before(path.as_bytes()), path);
        }
        let bad: &[&[u8]] = &[
            b"a@b",
            b"<a@b",
            b"<a>",
            b"<@b>",
            b"<a@>",
            b"<a b@c>",
            b"<a..b@c>",
            b"<.a@c>",
            b"<a.@c>",
            b"<a@b..c>",
            b"<a@-b>",
            b"<a@b@c>",
            b"<\"a@b>",
            b"<@x:>",
            b"<@x>",
            b"<a@[]>",
            b"<a@[x>y]>",
            b"<a@[999.1.1.1]>",
            b"<a@[foo]>",
            b"<a@[x:c]>",
            b"<a@[x:c@d]>",
            b"<a@[127.0.0.1>",
            b"<@[foo]:a@b>",
            b"<a@[x:\"]>",
            b"<a\0@b>",
            b"<\"\x01\"@b>",
            b"<a\xff@b>",
            b"< a@b>",
            b"<a@b c>",
        ];
        for text in bad {
            assert_eq!(Path::parse(text), Err(PathError::Syntax), "{}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn a_table_of_address_literals() {
        let good = [
            ("[127.0.0.1]", "127.0.0.1"),
            ("[0.0.0.0]", "0.0.0.0"),
            ("[255.255.255.255]", "255.255.255.255"),
            ("[127.000.000.001]", "127.0.0.1"),
            ("[010.1.1.1]", "10.1.1.1"),
            ("[IPv6:::]", "::"),
            ("[IPv6:::1]", "::1"),
            ("[ipv6:2001:DB8::1]", "2001:db8::1"),
            ("[IPv6:1:2:3:4:5:6:7:8]", "1:2:3:4:5:6:7:8"),
            ("[IPv6:0001:2:3:4:5:6::]", "1:2:3:4:5:6::"),
            ("[IPv6:::3:4:5:6:7:8]", "::3:4:5:6:7:8"),
            ("[IPv6:1:2:3:4:5:6:127.0.0.1]", "1:2:3:4:5:6:7f00:1"),
            ("[IPv6:::ffff:192.0.2.001]", "::ffff:192.0.2.1"),
            ("[IPv6:1:2::3:4:192.0.2.1]", "1:2::3:4:192.0.2.1"),
        ];
        for (literal, address) in good {
            assert_eq!(address_literal(literal.as_bytes()), Some(address.parse().unwrap()), "{literal}");
        }
        let bad = [
            "127.0.0.1",
            "[127.0.0.1",
            "[]",
            "[ 127.0.0.1]",
            "[999.1.1.1]",
            "[256.1.1.1]",
            "[1.1.1]",
            "[1.1.1.1.1]",
            "[1.1.1.]",
            "[1.1.1.0001]",
            "[+1.1.1.1]",
            "[1.1.1.1a]",
            "[foo]",
            "[::1]",
            "[IPv6:]",
            "[IPv6:zz]",
            "[IPv6:127.0.0.1]",
            "[IPv6::1]",
            "[IPv6::::1]",
            "[IPv6:1::2::3]",
            "[IPv6:1:2:3:4:5:6:7]",
            "[IPv6:1:2:3:4:5:6:7:8:9]",
            "[IPv6:1:2:3:4:5:6:7::]",
            "[IPv6:1:2:3::4:5:6:7]",
            "[IPv6:00001::]",
            "[IPv6:+1::]",
            "[IPv6:::1%lo]",
            "[IPv6:::127.0.0.1:1]",
            "[IPv6:127.0.0.1::]",
            "[IPv6:1:2:3:4:5:6:7:127.0.0.1]",
            "[IPv6:1:2:3::4:5:127.0.0.1]",
            "[IPv4:127.0.0.1]",
            "[X400:c=de]",
        ];
        for literal in bad {
            assert_eq!(address_literal(literal.as_bytes()), None, "{literal}");
        }
    }

    proptest! {
        #[test]
        fn every_address_has_a_literal(address: IpAddr) {
            prop_assert_eq!(address_literal(literal(address).as_bytes()), Some(address));
        }

        #[test]
        fn what_is_read_as_an_address_is_one_for_others_too(text in "[0-9a-f:.]{1,24}") {
            // Skip addresses with leading zeros in decimal numbers, such as `::192.0.2.01`. SMTP permits such zeros
            // (RFC 5321 §4.1.3), but Rust's parser, which checks the result, rejects them.
            let plain = text.split('.').all(|part| part.rsplit(':').next().is_some_and(|it| it == "0" || !it.starts_with('0')));
            if plain && let Some(address) = address_literal(format!("[IPv6:{text}]").as_bytes()) {
                prop_assert_eq!(text.parse::<IpAddr>().ok(), Some(address));
            }
        }
    }

    #[test]
    fn lengths_are_those_of_the_rfc() {
        let path = |local: usize, domain: usize| {
            let labels = "d".repeat(domain).as_bytes().chunks(63).map(<[u8]>::to_vec).collect::<Vec<_>>().join(&b'.');
            [b"<".as_slice(), "l".repeat(local).as_bytes(), b"@", &labels, b">"].concat()
        };
        assert!(Path::parse(&path(64, 100)).is_ok());
        assert_eq!(Path::parse(&path(65, 100)), Err(PathError::TooLong));
        assert!(Path::parse(&path(64, 186)).is_ok());
        assert_eq!(Path::parse(&path(64, 200)), Err(PathError::TooLong));
        for (local, domain, fits) in [(64, 187, true), (64, 188, false), (1, 249, true), (1, 250, false)] {
            let path = path(local, domain);
            assert_eq!(Path::parse(&path).is_ok(), fits, "<{local}@{domain}>");
            assert_eq!(Path::mailbox(&path[1..path.len() - 1]).is_ok(), fits, "{local}@{domain} bare");
        }
    }
}
