//! What a sender wants to be told of its message: the parameters of RFC 3461, RET and ENVID on MAIL, NOTIFY and ORCPT
//! on RCPT.
use crate::xtext::{self, Xtext};

/// What a notification returns of the message (RFC 3461 §4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Return {
    /// FULL: all of it.
    Full,
    /// HDRS: its header.
    Header,
}

impl Return {
    /// The value of RET.
    pub fn keyword(self) -> &'static str {
        match self {
            Self::Full => "FULL",
            Self::Header => "HDRS",
        }
    }

    /// Reads the value of RET.
    pub fn parse(value: &[u8]) -> Option<Self> {
        match value {
            _ if value.eq_ignore_ascii_case(b"FULL") => Some(Self::Full),
            _ if value.eq_ignore_ascii_case(b"HDRS") => Some(Self::Header),
            _ => None,
        }
    }
}

/// When a sender wants a notification for a recipient (RFC 3461 §4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notify(u8);

impl Notify {
    /// NEVER, which stands alone.
    pub const NEVER: Self = Self(0);
    /// When it is delivered.
    pub const SUCCESS: Self = Self(1);
    /// When it cannot be.
    pub const FAILURE: Self = Self(2);
    /// When it takes longer than usual.
    pub const DELAY: Self = Self(4);

    /// This and `other`.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` is wanted; nothing is where NEVER was said.
    pub fn wants(self, other: Self) -> bool {
        other.0 != 0 && self.0 & other.0 == other.0
    }

    /// The value of NOTIFY.
    pub fn render(self) -> String {
        let words = [(Self::SUCCESS, "SUCCESS"), (Self::FAILURE, "FAILURE"), (Self::DELAY, "DELAY")];
        let wanted: Vec<&str> = words.iter().filter(|(word, _)| self.wants(*word)).map(|(_, name)| *name).collect();
        if wanted.is_empty() { "NEVER".to_owned() } else { wanted.join(",") }
    }

    /// Reads the value of NOTIFY: NEVER, or some of the others, each once.
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

/// The recipient as the sender first named it (RFC 3461 §4.2): the kind of address, and the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OriginalRecipient<'a> {
    /// `rfc822`, `utf-8`, `x400`.
    pub kind: &'a [u8],
    /// The address; [`Xtext::decode`] gives what it stands for.
    pub address: Xtext<'a>,
}

/// The longest value of ORCPT (RFC 3461 §4.2).
const ORIGINAL_RECIPIENT_BYTES: usize = 500;
/// The longest ENVID (RFC 3461 §4.4).
const ENVELOPE_ID_BYTES: usize = 100;

impl<'a> OriginalRecipient<'a> {
    /// Reads the value of ORCPT.
    pub(crate) fn parse(value: &'a [u8]) -> Option<Self> {
        let at = memchr::memchr(b';', value)?;
        let (kind, address) = (&value[..at], Xtext::parse(&value[at + 1..])?);
        let is_atom = !kind.is_empty() && kind.iter().all(|octet| octet.is_ascii_alphanumeric() || *octet == b'-');
        let fits = value.len() <= ORIGINAL_RECIPIENT_BYTES && !address.as_bytes().is_empty();
        (is_atom && fits && address.is_printable()).then_some(Self { kind, address })
    }
}

/// The value of ORCPT for that mailbox: `rfc822;a+2Bb@c`, or, where it is no ASCII, `utf-8;` and an escape for each
/// character that is none (RFC 6533 §3). `None` where that is longer than a value may be.
pub fn render_original_recipient(mailbox: &str) -> Option<String> {
    let (kind, address) = match mailbox.is_ascii() {
        true => ("rfc822;", xtext::encode(mailbox.as_bytes())),
        false => ("utf-8;", mailbox.chars().map(escaped).collect()),
    };
    let value = kind.to_owned() + &address;
    (value.len() <= ORIGINAL_RECIPIENT_BYTES).then_some(value)
}

fn escaped(character: char) -> String {
    match character {
        '+' | '=' | '\\' => format!("\\x{{{:02X}}}", u32::from(character)),
        '!'..='~' => character.to_string(),
        _ => format!("\\x{{{:02X}}}", u32::from(character)),
    }
}

/// Reads the value of ENVID: 1 to 100 octets of [`crate::xtext`].
pub fn envelope_id(value: &[u8]) -> Option<Xtext<'_>> {
    let id = Xtext::parse(value)?;
    (!value.is_empty() && value.len() <= ENVELOPE_ID_BYTES && id.is_printable()).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let read = |value: &'static [u8]| {
            OriginalRecipient::parse(value).map(|it| (it.kind, it.address.decode().into_owned()))
        };
        assert_eq!(read(b"rfc822;a+2Bb@c"), Some((b"rfc822".as_slice(), b"a+b@c".to_vec())));
        assert_eq!(read(b"utf-8;\\x{E9}@c"), Some((b"utf-8".as_slice(), b"\\x{E9}@c".to_vec())));
        for value in
            [b"rfc822".as_slice(), b";a@b", b"rfc822;", b"rfc822;a=b", b"rfc822;a+0Ab", b"a b;c", b"", b"x;a b"]
        {
            assert_eq!(OriginalRecipient::parse(value), None, "{}", String::from_utf8_lossy(value));
        }
        let long = |length: usize| [b"rfc822;".as_slice(), &vec![b'x'; length - 7]].concat();
        assert!(OriginalRecipient::parse(&long(500)).is_some() && OriginalRecipient::parse(&long(501)).is_none());
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
        assert!(envelope_id(b"").is_none() && envelope_id(b"a+0Db").is_none() && envelope_id(b"a+20b").is_some());
        assert_eq!(Return::parse(b"hdrs"), Some(Return::Header));
        assert_eq!((Return::parse(b"FULL"), Return::parse(b"")), (Some(Return::Full), None));
    }
}
