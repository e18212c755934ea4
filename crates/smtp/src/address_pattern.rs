//! Patterns that match addresses by local part, by domain, or by both.
use crate::address::Path;
use crate::domain::Domain;

/// Pattern for addresses, such as `@example.com`, which matches any local part. Case does not matter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressPattern {
    local_part: Option<String>,
    domain: Option<Domain<'static>>,
}

impl AddressPattern {
    /// Parses `user@domain`, `@domain`, `user@`, or `*` for all addresses. Returns `None` for any
    /// other text, such as `user` or `@`.
    pub fn parse(text: &str) -> Option<Self> {
        if text == "*" {
            return Some(Self { local_part: None, domain: None });
        }
        let (local_part, domain) = text.rsplit_once('@')?;
        let pattern = Self {
            local_part: (!local_part.is_empty()).then(|| local_part.to_owned()),
            domain: (!domain.is_empty()).then(|| Domain::new(domain).into_owned()),
        };
        (pattern.local_part.is_some() || pattern.domain.is_some()).then_some(pattern)
    }

    /// Returns true if the address matches the pattern. A pattern without a local part matches any local part, and a
    /// pattern without a domain any domain. Domains are compared in normal form, so `BÜCHER.example` matches
    /// `xn--bcher-kva.example`.
    pub fn matches(&self, address: &Path<'_>) -> bool {
        let wants_local_part = |wanted: &String| address.local_part().eq_ignore_ascii_case(wanted.as_bytes());
        let wants_domain = |wanted: &Domain<'_>| address.domain().is_some_and(|domain| Domain::new(domain) == *wanted);
        self.local_part.as_ref().is_none_or(wants_local_part) && self.domain.as_ref().is_none_or(wants_domain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_any_spelling_of_a_domain() {
        let matches = |pattern: &str, address: &str| {
            AddressPattern::parse(pattern)
                .expect("a pattern")
                .matches(&Path::mailbox(address.as_bytes()).expect("an address"))
        };
        for (pattern, address, expected) in [
            ("@bücher.example", "a@xn--bcher-kva.example", true),
            ("@xn--bcher-kva.example", "a@BÜCHER.example", true),
            ("A@b.example", "a@B.example", true),
            ("@[IPv6:::1]", "a@[IPv6:0:0:0:0:0:0:0:1]", true),
            ("@bucher.example", "a@bücher.example", false),
        ] {
            assert_eq!(matches(pattern, address), expected, "{pattern} {address}");
        }
    }
}
