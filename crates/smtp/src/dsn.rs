//! Requests for delivery status notifications (RFC 3461): the parameters RET and ENVID of MAIL, and
//! NOTIFY and ORCPT of RCPT. Addresses may be UTF-8 (RFC 6533 §3).
use crate::xtext::{self, Xtext};
use std::borrow::Cow;
use std::fmt;

/// Part of the message that a notification should return (RFC 3461 §4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Return {
    /// The notification should return the whole message (FULL).
    Full,
    /// The notification should return only the header (HDRS).
    Header,
}

impl Return {
    /// Returns the value of RET for this part: `FULL` or `HDRS`.
    pub fn keyword(self) -> &'static str {
        match self {
            Self::Full => "FULL",
            Self::Header => "HDRS",
        }
    }

    /// Parses the value of RET without regard to case. Returns `None` if the value is unknown.
    pub fn parse(value: &[u8]) -> Option<Self> {
        match value {
            _ if value.eq_ignore_ascii_case(b"FULL") => Some(Self::Full),
            _ if value.eq_ignore_ascii_case(b"HDRS") => Some(Self::Header),
            _ => None,
        }
    }
}

/// Events that a sender wants to be notified of, for one recipient (RFC 3461 §4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notify(u8);

impl Notify {
    /// The sender wants no notification at all (NEVER, which cannot be combined with other events).
    pub const NEVER: Self = Self(0);
    /// The sender wants to know that the message was delivered (SUCCESS).
    pub const SUCCESS: Self = Self(1);
    /// The sender wants to know that the message could not be delivered (FAILURE).
    pub const FAILURE: Self = Self(2);
    /// The sender wants to know that the message could not be delivered yet, and that the server is
    /// still trying (DELAY).
    pub const DELAY: Self = Self(4);

    /// Returns the union of two sets of events. NEVER is the empty set, so it adds nothing.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns true if the sender wants to be notified of all events in `other`. Returns false if `other` is NEVER,
    /// which contains no event.
    pub fn wants(self, other: Self) -> bool {
        other.0 != 0 && self.0 & other.0 == other.0
    }

    /// Returns the value of NOTIFY, for example `SUCCESS,DELAY`, or `NEVER` for the empty set.
    pub fn render(self) -> String {
        let words = [(Self::SUCCESS, "SUCCESS"), (Self::FAILURE, "FAILURE"), (Self::DELAY, "DELAY")];
        let wanted: Vec<&str> = words.iter().filter(|(word, _)| self.wants(*word)).map(|(_, name)| *name).collect();
        if wanted.is_empty() { "NEVER".to_owned() } else { wanted.join(",") }
    }

    /// Parses the value of NOTIFY: NEVER, or a list of SUCCESS, FAILURE and DELAY without repetition.
    pub fn parse(value: &[u8]) -> Option<Self> {
        if value.eq_ignore_ascii_case(b"NEVER") {
            return Some(Self::NEVER);
        }
        value.split(|octet| *octet == b',').try_fold(Self(0), |sum, word| {
            let word = match word {
                _ if word.eq_ignore_ascii_case(b"SUCCESS") => Self::SUCCESS,
                _ if word.eq_ignore_ascii_case(b"FAILURE") => Self::FAILURE,
                _ if word.eq_ignore_ascii_case(b"DELAY") => Self::DELAY,
                _ => return None,
            };
            (sum.0 & word.0 == 0).then_some(sum.and(word))
        })
    }
}

/// The recipient's address as the original sender gave it, before any forwarding (RFC 3461 §4.2).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct OriginalRecipient<'a> {
    /// Kind of the address, such as `rfc822`, `utf-8` or `x400`.
    pub kind: &'a [u8],
    /// Address in the encoded form that RCPT contains. The encoding is xtext ([`crate::xtext`]) or, if `kind` is
    /// `utf-8`, one of the forms of RFC 6533 §3.
    pub address: &'a [u8],
}

/// Maximum length in bytes of the value of ORCPT, RCPT's parameter with the original recipient (RFC 3461 §4.2).
const MAX_ORIGINAL_RECIPIENT_BYTES: usize = 500;
/// Maximum length in bytes of the value of ENVID, MAIL's parameter with the envelope ID (RFC 3461 §4.4).
const MAX_ENVELOPE_ID_BYTES: usize = 100;

impl<'a> OriginalRecipient<'a> {
    /// Parses the value of RCPT's parameter ORCPT, such as `rfc822;user@example.com`. Any xtext is accepted, whatever
    /// it decodes to, because the value is passed on unchanged. If the kind is `utf-8`, the value may also contain
    /// characters above ASCII.
    pub(crate) fn parse(value: &'a [u8]) -> Option<Self> {
        let at = memchr::memchr(b';', value)?;
        let kind = &value[..at];
        let address = &value[at + 1..];
        let is_atom = !kind.is_empty() && kind.iter().all(|octet| octet.is_ascii_alphanumeric() || *octet == b'-');
        let fits = value.len() <= MAX_ORIGINAL_RECIPIENT_BYTES && !address.is_empty();
        let is_address = Xtext::parse(address).is_some() || is_utf8(kind) && is_unitext(address);
        (is_atom && fits && is_address).then_some(Self { kind, address })
    }

    /// Returns the decoded address, as it would stand in RCPT. Returns `None` if the kind is
    /// neither `rfc822` nor `utf-8`, or if the address is malformed.
    pub fn mailbox(&self) -> Option<Cow<'a, [u8]>> {
        if self.kind.eq_ignore_ascii_case(b"rfc822") {
            return Xtext::parse(self.address).map(|address| address.decode());
        }
        is_utf8(self.kind).then(|| unescaped(self.address).map(Cow::Owned))?
    }
}

impl fmt::Debug for OriginalRecipient<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{};{}", String::from_utf8_lossy(self.kind), String::from_utf8_lossy(self.address))
    }
}

/// Returns true for an address that may contain characters above ASCII (utf-8-addr-unitext in RFC 6533 §3). Its ASCII
/// characters must be xtext.
fn is_unitext(address: &[u8]) -> bool {
    std::str::from_utf8(address).is_ok_and(|text| {
        let ascii: Vec<u8> = text.chars().map(|letter| if letter.is_ascii() { letter as u8 } else { b'~' }).collect();
        Xtext::parse(&ascii).is_some() && !text.contains(char::is_control)
    })
}

/// Returns true for the kind `utf-8`, whose addresses may contain characters above ASCII (RFC 6533 §3).
pub fn is_utf8(kind: &[u8]) -> bool {
    kind.eq_ignore_ascii_case(b"utf-8")
}

/// Converts the address of an ORCPT of the kind `utf-8` to ASCII (utf-8-addr-xtext in RFC 6533 §3),
/// which all servers accept. Bytes that are not UTF-8 become U+FFFD.
pub fn ascii_form(address: &[u8]) -> Cow<'_, [u8]> {
    if address.is_ascii() {
        return Cow::Borrowed(address);
    }
    let text = String::from_utf8_lossy(address);
    let written = text.chars().map(|character| match character.is_ascii() {
        true => character.to_string(),
        false => escaped(character),
    });
    Cow::Owned(written.collect::<String>().into_bytes())
}

/// Returns the value of ORCPT with which a message is forwarded. The value is ASCII unless `may_be_utf8` is set. The
/// caller must set it only if the next server offers SMTPUTF8 and the message uses it. Returns `None` if the value
/// would be too long. The caller then sends the message without ORCPT, because losing the message would be worse.
pub fn forwarded_original_recipient(kind: &[u8], address: &[u8], may_be_utf8: bool) -> Option<String> {
    let address = if may_be_utf8 || !is_utf8(kind) { Cow::Borrowed(address) } else { ascii_form(address) };
    let value = format!("{};{}", String::from_utf8_lossy(kind), String::from_utf8_lossy(&address));
    (value.len() <= MAX_ORIGINAL_RECIPIENT_BYTES).then_some(value)
}

/// Returns the value of ORCPT for this mailbox, such as `rfc822;a+2Bb@c`. If the mailbox is not ASCII, the kind is
/// `utf-8`, and all characters above ASCII are escaped (RFC 6533 §3). Returns `None` if the value would be too long.
pub fn render_original_recipient(mailbox: &str) -> Option<String> {
    let (kind, address) = match mailbox.is_ascii() {
        true => ("rfc822;", xtext::encode(mailbox.as_bytes())),
        false => ("utf-8;", mailbox.chars().map(escaped).collect()),
    };
    let value = kind.to_owned() + &address;
    (value.len() <= MAX_ORIGINAL_RECIPIENT_BYTES).then_some(value)
}

/// Decodes the escapes of RFC 6533 §3, for example `\x{E9}`. Returns `None` if an escape is
/// malformed.
fn unescaped(address: &[u8]) -> Option<Vec<u8>> {
    let mut parts = std::str::from_utf8(address).ok()?.split("\\x{");
    let mut decoded = parts.next()?.to_owned();
    for part in parts {
        let (digits, rest) =
            part.split_once('}').filter(|(digits, _)| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
        decoded.push(char::from_u32(u32::from_str_radix(digits, 16).ok()?)?);
        decoded.push_str(rest);
    }
    Some(decoded.into_bytes())
}

fn escaped(character: char) -> String {
    match character {
        '+' | '=' | '\\' => format!("\\x{{{:02X}}}", u32::from(character)),
        '!'..='~' => character.to_string(),
        _ => format!("\\x{{{:02X}}}", u32::from(character)),
    }
}

/// Parses an ENVID: 1 to 100 bytes of [`crate::xtext`]. The decoded bytes are not checked.
pub fn envelope_id(value: &[u8]) -> Option<Xtext<'_>> {
    Xtext::parse(value).filter(|_| (1..=MAX_ENVELOPE_ID_BYTES).contains(&value.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn notify_is_never_alone_or_some_of_the_others_once() {
        let all = Notify(7);
        let rows: [(&[u8], Option<Notify>); 10] = [
            (b"NEVER", Some(Notify::NEVER)),
            (b"never", Some(Notify::NEVER)),
            (b"SUCCESS", Some(Notify::SUCCESS)),
            (b"delay,Failure,success", Some(all)),
            (b"NEVER,DELAY", None),
            (b"DELAY,NEVER", None),
            (b"DELAY,DELAY", None),
            (b"DELAY,", None),
            (b"", None),
            (b"SOMETIMES", None),
        ];
        for (value, expected) in rows {
            assert_eq!(Notify::parse(value), expected, "{}", String::from_utf8_lossy(value));
        }
        assert!(all.wants(Notify::DELAY) && !Notify::NEVER.wants(Notify::FAILURE) && !all.wants(Notify::NEVER));
        assert!(!Notify::DELAY.wants(Notify::FAILURE));
    }

    #[test]
    fn an_original_recipient_is_a_kind_and_an_address() {
        let read = |value: &'static [u8]| OriginalRecipient::parse(value).map(|it| (it.kind, it.address));
        assert_eq!(read(b"rfc822;a+2Bb@c"), Some((b"rfc822".as_slice(), b"a+2Bb@c".as_slice())));
        assert_eq!(read(b"utf-8;\\x{E9}@c"), Some((b"utf-8".as_slice(), b"\\x{E9}@c".as_slice())));
        for value in [
            "rfc822;b+C3+B6b@b.example",
            "x-any;a+FFb",
            "utf-8;b+C3+B6b",
            "rfc822;a+0Ab",
            "utf-8;a\\x{GG}",
            "utf-8;a\\x{+41}",
        ] {
            assert!(OriginalRecipient::parse(value.as_bytes()).is_some(), "{value}: its escapes are legal");
        }
        for value in
            [b"rfc822".as_slice(), b";a@b", b"rfc822;", b"rfc822;a=b", b"rfc822;a+0ab", b"a b;c", b"", b"x;a b"]
        {
            assert_eq!(OriginalRecipient::parse(value), None, "{}", String::from_utf8_lossy(value));
        }
        let long = |length: usize| [b"rfc822;".as_slice(), &vec![b'x'; length - 7]].concat();
        assert!(OriginalRecipient::parse(&long(500)).is_some() && OriginalRecipient::parse(&long(501)).is_none());
    }

    #[test]
    fn an_original_recipient_of_utf8_has_three_forms() {
        let good = [
            ("b@c", "b@c"),
            ("böb@b.example", "b\\x{F6}b@b.example"),
            ("b\\x{F6}b@b.example", "b\\x{F6}b@b.example"),
            ("b\\x{f6}b@bücher.example", "b\\x{f6}b@b\\x{FC}cher.example"),
            ("\\x{20}\\x{2B}\\x{3D}\\x{5C}", "\\x{20}\\x{2B}\\x{3D}\\x{5C}"),
            ("\\x{D7FF}\\x{E000}\\x{10FFFF}\u{10ffff}", "\\x{D7FF}\\x{E000}\\x{10FFFF}\\x{10FFFF}"),
            ("用户@例え.example", "\\x{7528}\\x{6237}@\\x{4F8B}\\x{3048}.example"),
            ("a+2Bb@c", "a+2Bb@c"),
        ];
        for (address, ascii) in good {
            let value = format!("UTF-8;{address}");
            let original = OriginalRecipient::parse(value.as_bytes());
            assert_eq!(original.map(|it| it.address), Some(address.as_bytes()), "{address}");
            assert_eq!(ascii_form(address.as_bytes()), ascii.as_bytes(), "{address}");
            assert!(OriginalRecipient::parse(format!("utf-8;{ascii}").as_bytes()).is_some(), "{address}");
        }
        let bad: [&[u8]; 8] = [b"", b"a b", b"a=b", b"a+b", b"a+2b", "a+ö2".as_bytes(), b"b\xf6b@c", b"\xc2\x85@c"];
        for address in bad {
            let value = [b"utf-8;".as_slice(), address].concat();
            assert_eq!(OriginalRecipient::parse(&value), None, "{}", String::from_utf8_lossy(&value));
        }
        assert_eq!(OriginalRecipient::parse("rfc822;böb@c".as_bytes()), None, "xtext is ASCII");
    }

    #[test]
    fn what_is_passed_on_is_in_ascii_where_it_must_be() {
        let passed = |kind: &str, address: &str, may_be_utf8| {
            forwarded_original_recipient(kind.as_bytes(), address.as_bytes(), may_be_utf8)
        };
        assert_eq!(passed("utf-8", "böb@c", true).as_deref(), Some("utf-8;böb@c"));
        assert_eq!(passed("utf-8", "böb@c", false).as_deref(), Some("utf-8;b\\x{F6}b@c"));
        assert_eq!(passed("rfc822", "a+2Bb@c", false).as_deref(), Some("rfc822;a+2Bb@c"));
        let long = "ö".repeat(100);
        assert_eq!(passed("utf-8", &long, false), None, "606 octets");
        assert!(passed("utf-8", &long, true).is_some());
    }

    proptest! {
        #[test]
        fn any_address_that_is_taken_is_passed_on_as_one_that_is(address in "[a-zöü用\u{10ffff}@.+=\\\\{}x0-9A-F]{1,20}") {
            let value = format!("utf-8;{address}");
            if OriginalRecipient::parse(value.as_bytes()).is_some() {
                let passed = forwarded_original_recipient(b"utf-8", address.as_bytes(), false).expect("it is short");
                prop_assert!(passed.is_ascii());
                prop_assert!(OriginalRecipient::parse(passed.as_bytes()).is_some(), "{}", passed);
            }
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        for bits in 0..8 {
            assert_eq!(Notify::parse(Notify(bits).render().as_bytes()), Some(Notify(bits)));
        }
        for returns in [Return::Full, Return::Header] {
            assert_eq!(Return::parse(returns.keyword().as_bytes()), Some(returns));
        }
        for (mailbox, expected) in [
            ("b@example.com", Some("rfc822;b@example.com")),
            ("a+b=c@d", Some("rfc822;a+2Bb+3Dc@d")),
            ("\"a b\"@c", Some("rfc822;\"a+20b\"@c")),
            ("jürgen+x@d", Some("utf-8;j\\x{FC}rgen\\x{2B}x@d")),
        ] {
            let value = render_original_recipient(mailbox);
            assert_eq!(value.as_deref(), expected);
            assert!(OriginalRecipient::parse(value.unwrap().as_bytes()).is_some(), "{mailbox}");
        }
        assert_eq!(render_original_recipient(&"ü".repeat(100)), None, "607 octets");
    }

    #[test]
    fn an_envelope_id_is_a_hundred_printable_octets() {
        assert!(envelope_id(&[b'x'; 100]).is_some() && envelope_id(&[b'x'; 101]).is_none());
        assert!(envelope_id(b"").is_none() && envelope_id(b"a+0d").is_none() && envelope_id(b"a+0Db").is_some());
        assert_eq!(Return::parse(b"hdrs"), Some(Return::Header));
        assert_eq!((Return::parse(b"FULL"), Return::parse(b"")), (Some(Return::Full), None));
    }
}
