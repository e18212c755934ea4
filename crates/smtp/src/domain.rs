//! Normal form of domains, in which all spellings of a domain are equal.
use crate::address::{address_literal, literal};
use std::borrow::{Borrow, Cow};
use std::fmt;
use std::ops::Deref;

/// A domain in a form that is the same for all spellings: lower case and A-labels (UTS 46). For
/// example, `BÜCHER.example` and `xn--bcher-kva.example` are equal. An address literal is reduced
/// to its shortest form, for example `[ipv6:::1]`.
///
/// A name that cannot be converted to A-labels is only converted to lower case.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Domain<'a>(Cow<'a, str>);

impl<'a> Domain<'a> {
    /// Converts a domain name to lower case and A-labels, and shortens an address literal. Most domains are already in
    /// this form, so they need no allocation.
    pub fn new<T: AsRef<[u8]> + ?Sized>(domain: &'a T) -> Self {
        let domain = domain.as_ref();
        let is_plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-_".contains(byte);
        if let Ok(text) = str::from_utf8(domain)
            && domain.iter().all(is_plain)
            && !text.contains("xn--")
        {
            return Self(Cow::Borrowed(text));
        }
        if let Some(address) = address_literal(domain) {
            return Self(Cow::Owned(literal(address).to_lowercase()));
        }
        Self(match idna::domain_to_ascii_cow(domain, idna::AsciiDenyList::EMPTY) {
            Ok(ascii) => ascii,
            Err(_) => String::from_utf8_lossy(domain).to_lowercase().into(),
        })
    }

    /// Returns a domain that owns its text, so that it can outlive the text from which it was made.
    pub fn into_owned(self) -> Domain<'static> {
        Domain(Cow::Owned(self.0.into_owned()))
    }
}

impl Deref for Domain<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Domain<'_> {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Domain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn all_spellings_of_a_domain_are_equal() {
        let rows: [&[&str]; 7] = [
            &["a.example", "A.Example"],
            &[
                "xn--bcher-kva.example",
                "bücher.example",
                "BÜCHER.Example",
                "XN--BCHER-KVA.example",
                "bu\u{308}cher.example",
            ],
            &["xn--strae-oqa.example", "straße.example"],
            &["xn--fsqu00a.xn--0zwm56d", "例子.测试", "例子。测试"],
            &["a_b.example", "A_B.example"],
            &["[ipv6:::1]", "[IPv6:0:0:0:0:0:0:0:1]", "[IPv6:::1]"],
            &["[127.0.0.1]", "[127.000.0.01]"],
        ];
        for row in rows {
            for spelling in row {
                assert_eq!(&*Domain::new(*spelling), row[0], "{spelling}");
            }
        }
    }

    #[test]
    fn names_without_a_labels_are_in_lower_case() {
        for (name, expected) in [("XN--A.example", "xn--a.example"), ("[X]", "[x]"), ("", ""), ("*", "*")] {
            assert_eq!(&*Domain::new(name), expected);
        }
    }

    proptest! {
        #[test]
        fn the_form_of_a_form_is_itself(text in "[a-zA-Zäößß例。.-]{0,20}|\\PC{0,20}") {
            let domain = Domain::new(&text);
            prop_assert_eq!(Domain::new(&*domain), domain.clone());
        }
    }
}
