//! The command XCLIENT (Postfix, XCLIENT_README), with which a proxy tells a server about the client behind the proxy.
use crate::limits::MAX_COMMAND_LINE_BYTES;
use crate::xtext::{self, Xtext};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Attribute of a client that a proxy can pass on with XCLIENT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Attribute {
    /// Host name of the client (NAME).
    Name,
    /// IP address of the client (ADDR).
    Address,
    /// Port from which the client has connected (PORT).
    Port,
    /// Protocol that the client speaks, SMTP or ESMTP (PROTO).
    Protocol,
    /// Name that the client gave in its greeting (HELO).
    Helo,
    /// Name with which the client has logged in (LOGIN).
    Login,
    /// IP address that the client connected to (DESTADDR).
    DestinationAddress,
    /// Port that the client connected to (DESTPORT).
    DestinationPort,
}

impl Attribute {
    /// All attributes, in the order in which a server offers them.
    pub const ALL: [Self; 8] = [
        Self::Name,
        Self::Address,
        Self::Port,
        Self::Protocol,
        Self::Helo,
        Self::Login,
        Self::DestinationAddress,
        Self::DestinationPort,
    ];

    /// Returns the attribute's name in an XCLIENT command, for example `ADDR`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Name => "NAME",
            Self::Address => "ADDR",
            Self::Port => "PORT",
            Self::Protocol => "PROTO",
            Self::Helo => "HELO",
            Self::Login => "LOGIN",
            Self::DestinationAddress => "DESTADDR",
            Self::DestinationPort => "DESTPORT",
        }
    }

    fn parse(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|attribute| name.eq_ignore_ascii_case(attribute.name().as_bytes()))
    }

    /// Returns true if `value` is valid for the attribute. The caller must decode the value from xtext first.
    fn takes(self, value: &[u8]) -> bool {
        match self {
            Self::Address | Self::DestinationAddress => address(value).is_some(),
            Self::Port | Self::DestinationPort => port(value).is_some(),
            Self::Protocol => value.eq_ignore_ascii_case(b"SMTP") || value.eq_ignore_ascii_case(b"ESMTP"),
            Self::Name | Self::Helo => !value.is_empty() && value.iter().all(u8::is_ascii_graphic),
            Self::Login => !value.is_empty() && !value.iter().any(u8::is_ascii_control),
        }
    }
}

/// Set of XCLIENT attributes, for example the attributes that a server offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes(u8);

impl Attributes {
    /// The empty set, for a server that does not offer XCLIENT.
    pub const NONE: Self = Self(0);
    /// All eight attributes that Postfix defines for XCLIENT, such as NAME and ADDR.
    pub const ALL: Self = Self(u8::MAX);

    /// Returns a copy of the set that also contains `attribute`.
    #[must_use]
    pub fn with(self, attribute: Attribute) -> Self {
        Self(self.0 | 1 << attribute as u8)
    }

    /// Returns true if the set contains `attribute`. If the set is a server's offer, a client may send the attribute.
    pub fn has(self, attribute: Attribute) -> bool {
        self.0 & (1 << attribute as u8) != 0
    }

    /// Returns true if the set is empty. A server with an empty set does not offer XCLIENT.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Parses the names after XCLIENT in a reply to EHLO. Skips unknown names, because a newer
    /// server may offer more attributes.
    pub(crate) fn parse(names: &[u8]) -> Self {
        let names = names.split(|octet| *octet == b' ').filter_map(Attribute::parse);
        names.fold(Self::NONE, Self::with)
    }

    pub(crate) fn render(self) -> String {
        let names = Attribute::ALL.into_iter().filter(|attribute| self.has(*attribute));
        names.fold("XCLIENT".to_owned(), |line, attribute| line + " " + attribute.name())
    }
}

/// Value of an XCLIENT attribute, as the proxy sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttributeValue<'a> {
    /// Value of the attribute, for example the name of the client. It is still encoded as xtext, and [`Xtext::decode`]
    /// decodes it.
    Value(Xtext<'a>),
    /// The proxy does not know the value (`[UNAVAILABLE]`).
    Unavailable,
    /// The proxy could not determine the value at the moment (`[TEMPUNAVAIL]`).
    TemporarilyUnavailable,
}

impl<'a> AttributeValue<'a> {
    fn parse(value: &'a [u8]) -> Option<Self> {
        match value {
            _ if value.eq_ignore_ascii_case(b"[UNAVAILABLE]") => Some(Self::Unavailable),
            _ if value.eq_ignore_ascii_case(b"[TEMPUNAVAIL]") => Some(Self::TemporarilyUnavailable),
            _ => Xtext::parse(value).map(Self::Value),
        }
    }
}

/// Address of the client, as an XCLIENT command gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAddress {
    /// IP address of the client, as the proxy has sent it. The server must use it instead of the proxy's own address.
    Known(IpAddr),
    /// The proxy does not know the address (`[UNAVAILABLE]` or `[TEMPUNAVAIL]`). The server must not give this client
    /// the rights of the proxy's own address, or of the previous client.
    Unknown,
}

/// Arguments of an XCLIENT command, whose syntax and values have been checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Xclient<'a> {
    arguments: &'a [u8],
}

impl<'a> Xclient<'a> {
    /// Parses the arguments of XCLIENT. There must be at least one attribute. Each attribute may
    /// occur only once, and its value must be valid.
    pub(crate) fn parse(arguments: &'a [u8]) -> Option<Self> {
        let mut seen = Attributes::NONE;
        for word in words(arguments) {
            let (attribute, value) = pair(word)?;
            let fits = match value {
                AttributeValue::Value(value) => attribute.takes(&value.decode()),
                AttributeValue::Unavailable | AttributeValue::TemporarilyUnavailable => true,
            };
            if !fits || seen.has(attribute) {
                return None;
            }
            seen = seen.with(attribute);
        }
        (!seen.is_empty()).then_some(Self { arguments })
    }

    /// Returns all attributes with their values, in the order of the command.
    pub fn attributes(&self) -> impl Iterator<Item = (Attribute, AttributeValue<'a>)> + use<'a> {
        words(self.arguments).filter_map(pair)
    }

    /// Returns the value of an attribute, if the command contains the attribute.
    pub fn value(&self, wanted: Attribute) -> Option<AttributeValue<'a>> {
        self.attributes().find(|(attribute, _)| *attribute == wanted).map(|(_, value)| value)
    }

    /// Returns the client's address. `None` means that the command does not contain ADDR, so the
    /// address known so far still applies.
    pub fn address(&self) -> Option<ClientAddress> {
        Some(match self.value(Attribute::Address)? {
            AttributeValue::Value(value) => {
                address(&value.decode()).map_or(ClientAddress::Unknown, ClientAddress::Known)
            }
            AttributeValue::Unavailable | AttributeValue::TemporarilyUnavailable => ClientAddress::Unknown,
        })
    }

    pub(crate) fn is_logged_in(&self) -> bool {
        matches!(self.value(Attribute::Login), Some(AttributeValue::Value(_)))
    }
}

fn words(arguments: &[u8]) -> impl Iterator<Item = &[u8]> {
    arguments.split(|octet| *octet == b' ').filter(|word| !word.is_empty())
}

fn pair(word: &[u8]) -> Option<(Attribute, AttributeValue<'_>)> {
    let at = memchr::memchr(b'=', word)?;
    Some((Attribute::parse(&word[..at])?, AttributeValue::parse(&word[at + 1..])?))
}

/// Parses an address such as `127.0.0.1` or `IPV6:::1`.
fn address(value: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(value).ok()?;
    match text.get(..5) {
        Some(prefix) if prefix.eq_ignore_ascii_case("IPV6:") => text[5..].parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        _ => text.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
    }
}

fn port(value: &[u8]) -> Option<u16> {
    let digits = std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|octet| octet.is_ascii_digit()))?;
    digits.parse().ok()
}

/// Attributes of a client that a proxy sends with XCLIENT. Each attribute occurs at most once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XclientRequest {
    attributes: Vec<(Attribute, String)>,
}

/// Error for a value that is not valid for its attribute, or for an attribute that already has a
/// value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("XCLIENT cannot set {} to {value:?}", .attribute.name())]
pub struct XclientError {
    attribute: Attribute,
    value: String,
}

impl XclientRequest {
    /// Adds an attribute, and encodes its value as xtext. `[UNAVAILABLE]` and `[TEMPUNAVAIL]` are
    /// valid values of any attribute. An IPv6 address is written like `IPV6:::1`.
    ///
    /// # Errors
    /// Returns an [`XclientError`] if the value is invalid for this attribute, if it does not fit
    /// into a command line, or if the attribute already has a value.
    pub fn with_attribute(mut self, attribute: Attribute, value: &str) -> Result<Self, XclientError> {
        let rendered = match AttributeValue::parse(value.as_bytes()) {
            Some(AttributeValue::Unavailable | AttributeValue::TemporarilyUnavailable) => value.to_owned(),
            _ => xtext::encode(value.as_bytes()),
        };
        let word = format!("{}={rendered}", attribute.name());
        let is_new = self.attributes.iter().all(|(known, _)| *known != attribute);
        if !is_new
            || Xclient::parse(word.as_bytes()).is_none()
            || "XCLIENT \r\n".len() + word.len() > MAX_COMMAND_LINE_BYTES
        {
            return Err(XclientError { attribute, value: value.to_owned() });
        }
        self.attributes.push((attribute, word));
        Ok(self)
    }

    /// Returns the XCLIENT commands for those attributes that the server offers. There are several commands if the
    /// attributes do not fit into one command line.
    pub(crate) fn lines(&self, offered: Attributes) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        for (_, word) in self.attributes.iter().filter(|(attribute, _)| offered.has(*attribute)) {
            match lines.last_mut() {
                Some(line) if line.len() + 1 + word.len() + 2 <= MAX_COMMAND_LINE_BYTES => *line += &format!(" {word}"),
                _ => lines.push(format!("XCLIENT {word}")),
            }
        }
        lines.iter_mut().for_each(|line| line.push_str("\r\n"));
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_arguments() {
        let good: [&[u8]; 9] = [
            b"NAME=spike.porcupine.org ADDR=168.100.189.2",
            b"name=[UNAVAILABLE] addr=[tempunavail]",
            b"ADDR=IPV6:::1 PORT=65535 DESTADDR=127.0.0.1 DESTPORT=25",
            b"ADDR=ipv6:2001:db8::1",
            b"PROTO=ESMTP HELO=a+2Bb",
            b"LOGIN=j+20doe",
            b"PORT=0",
            b"  NAME=a   ADDR=127.0.0.1 ",
            b"HELO=[127.0.0.1]",
        ];
        for arguments in good {
            assert!(Xclient::parse(arguments).is_some(), "{}", String::from_utf8_lossy(arguments));
        }
        let bad: [&[u8]; 18] = [
            b"",
            b" ",
            b"NAME",
            b"NAME=",
            b"NAME=a NAME=b",
            b"SHOE=42",
            b"ADDR=spike",
            b"ADDR=1.2.3",
            b"ADDR=::1",
            b"ADDR=IPV6:1.2.3.4",
            b"ADDR=01.2.3.4",
            b"PORT=65536",
            b"PORT=+1",
            b"PORT=-1",
            b"PROTO=HTTP",
            b"HELO=a+20b",
            b"NAME=a+0Db",
            b"LOGIN=a+00b",
        ];
        for arguments in bad {
            assert!(Xclient::parse(arguments).is_none(), "{}", String::from_utf8_lossy(arguments));
        }
    }

    #[test]
    fn what_was_told_is_told_on() {
        let xclient = Xclient::parse(b"ADDR=IPV6:::1 LOGIN=a+2Bb NAME=[UNAVAILABLE]").unwrap();
        assert_eq!(xclient.address(), Some(ClientAddress::Known("::1".parse().unwrap())));
        assert_eq!(xclient.value(Attribute::Name), Some(AttributeValue::Unavailable));
        assert_eq!(xclient.value(Attribute::Port), None);
        let Some(AttributeValue::Value(login)) = xclient.value(Attribute::Login) else { panic!("LOGIN was told") };
        assert_eq!(login.decode().as_ref(), b"a+b");
        assert!(xclient.is_logged_in());
        assert_eq!(xclient.attributes().count(), 3);
        for (arguments, address) in [
            ("ADDR=[UNAVAILABLE]", Some(ClientAddress::Unknown)),
            ("ADDR=[tempunavail]", Some(ClientAddress::Unknown)),
            ("LOGIN=a", None),
        ] {
            assert_eq!(Xclient::parse(arguments.as_bytes()).unwrap().address(), address, "{arguments}");
        }
    }

    #[test]
    fn a_client_tells_what_the_peer_takes_in_lines_of_512_octets() {
        let introduction = XclientRequest::default()
            .with_attribute(Attribute::Name, &"n".repeat(250))
            .and_then(|it| it.with_attribute(Attribute::Helo, &"h".repeat(250)))
            .and_then(|it| it.with_attribute(Attribute::Login, "a b+c"))
            .and_then(|it| it.with_attribute(Attribute::Address, "[UNAVAILABLE]"))
            .unwrap();
        let lines = introduction.lines(Attributes::ALL);
        assert_eq!(lines.len(), 2);
        assert!(lines.iter().all(|line| line.len() <= MAX_COMMAND_LINE_BYTES && line.ends_with("\r\n")));
        assert!(lines[1].ends_with(" LOGIN=a+20b+2Bc ADDR=[UNAVAILABLE]\r\n"), "{lines:?}");
        assert_eq!(introduction.lines(Attributes::NONE.with(Attribute::Address)), ["XCLIENT ADDR=[UNAVAILABLE]\r\n"]);
        assert!(introduction.lines(Attributes::NONE).is_empty());
        assert!(introduction.clone().with_attribute(Attribute::Login, "again").is_err());
        assert!(introduction.with_attribute(Attribute::Port, "x").is_err());
        assert!(XclientRequest::default().with_attribute(Attribute::Name, "a\r\nQUIT").is_err());
        assert!(XclientRequest::default().with_attribute(Attribute::Login, &"+".repeat(200)).is_err());
    }

    #[test]
    fn attributes_are_rendered_and_read_back() {
        for bits in 0..=u8::MAX {
            let line = Attributes(bits).render();
            assert_eq!(Attributes::parse(line.strip_prefix("XCLIENT").unwrap().as_bytes()), Attributes(bits));
        }
    }
}
