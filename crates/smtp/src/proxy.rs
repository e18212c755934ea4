//! The PROXY protocol, versions 1 and 2 (haproxy, proxy-protocol.txt). Before the first byte of a session, the proxy
//! sends a header that names the client whose connection it passes on.
//!
//! ```text
//! v1   PROXY TCP4 192.0.2.1 198.51.100.7 56324 25<CRLF>          at most 107 octets
//! v2   12 octets of signature | version, command | family | length | addresses | extensions
//! ```
//! A server must accept the header only from a trusted proxy. If a header violates the grammar, the server must end the
//! connection.
use crc_fast::{CrcAlgorithm, Digest};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Maximum length of a version 1 header in bytes, including `<CRLF>`.
pub const MAX_V1_BYTES: usize = 107;
/// Maximum length of a version 2 header that names a client. The addresses of UNIX sockets need 216
/// bytes, and 16 KB are left for extensions, one of which may be a client's certificate. The
/// protocol would allow 64 KB.
const MAX_PROXIED_BYTES: usize = V2_HEAD_BYTES + 216 + (16 << 10);
/// Maximum length in bytes of a version 2 header, as its 16-bit length field limits it. Only a header whose content is
/// skipped, such as LOCAL, may be this long.
pub const MAX_V2_BYTES: usize = V2_HEAD_BYTES + u16::MAX as usize;

const V1: &[u8] = b"PROXY ";
const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
const V2_HEAD_BYTES: usize = 16;
/// Thirteenth byte of a version 2 header with the command LOCAL (proxy-protocol.txt, §2.2).
const LOCAL: u8 = 0x20;
/// Thirteenth byte of a version 2 header with the command PROXY (proxy-protocol.txt, §2.2).
const PROXY: u8 = 0x21;
/// Value of the family and protocol byte for a header without addresses (AF_UNSPEC).
const UNSPECIFIED: u8 = 0x00;

/// Content of a PROXY header, which a proxy sends before the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyHeader {
    /// The proxy speaks for itself, probably for a health check, or does not know the client. The header names no
    /// client, so the server must use the addresses of the connection itself.
    Local,
    /// The proxy has connected on behalf of a client, whose addresses the header contains.
    Proxied {
        /// Address of the client, which the proxy has seen.
        source: SocketAddr,
        /// The address that the client connected to.
        destination: SocketAddr,
    },
    /// The client has connected to the proxy through a UNIX socket, so it has no IP address.
    Unix,
}

/// Reason why a PROXY header is invalid. The server must then end the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyHeaderError {
    /// The connection does not begin with a PROXY header.
    #[error("the connection does not begin with a PROXY header")]
    Absent,
    /// The header violates the grammar, for example with an IPv6 address after TCP4.
    #[error("the PROXY header is malformed")]
    Malformed,
    /// A version 1 header is longer than the protocol allows, or a version 2 header is longer than this crate accepts.
    #[error("the PROXY header is too long")]
    TooLong,
    /// The header contains a CRC32c checksum, and the checksum is wrong.
    #[error("the checksum of the PROXY header is wrong")]
    Checksum,
}

/// Parses the header at the start of `bytes`, of either version. Returns the header and its length,
/// or `None` if more bytes are needed.
///
/// # Errors
/// Returns a [`ProxyHeaderError`] as soon as the header is certain to be invalid, without waiting
/// for more bytes.
pub fn parse(bytes: &[u8]) -> Result<Option<(ProxyHeader, usize)>, ProxyHeaderError> {
    let Some(length) = length(bytes)? else { return Ok(None) };
    let Some(whole) = bytes.get(..length) else { return Ok(None) };
    let header = if whole.starts_with(V2) { parse_v2(whole)? } else { parse_v1(whole)? };
    Ok(Some((header, length)))
}

/// Returns the length of the header at the start of `bytes`, which need not contain the whole
/// header. The first [`MAX_V1_BYTES`] bytes of any header are enough. Returns `None` if more bytes
/// are needed.
///
/// # Errors
/// Returns the same errors as [`parse`].
pub fn length(bytes: &[u8]) -> Result<Option<usize>, ProxyHeaderError> {
    let begins = |whole: &[u8]| whole.starts_with(&bytes[..bytes.len().min(whole.len())]);
    match () {
        () if bytes.starts_with(V2) => length_v2(bytes),
        () if bytes.starts_with(V1) => length_v1(bytes),
        () if begins(V1) || begins(V2) => Ok(None),
        () => Err(ProxyHeaderError::Absent),
    }
}

fn length_v1(bytes: &[u8]) -> Result<Option<usize>, ProxyHeaderError> {
    let window = &bytes[..bytes.len().min(MAX_V1_BYTES)];
    match memchr::memchr(b'\n', window) {
        Some(end) => Ok(Some(end + 1)),
        None if window.len() < MAX_V1_BYTES => Ok(None),
        None => Err(ProxyHeaderError::TooLong),
    }
}

fn parse_v1(whole: &[u8]) -> Result<ProxyHeader, ProxyHeaderError> {
    let line = whole.strip_suffix(b"\r\n").ok_or(ProxyHeaderError::Malformed)?;
    let text = std::str::from_utf8(&line[V1.len()..]).map_err(|_| ProxyHeaderError::Malformed)?;
    v1_header(text).ok_or(ProxyHeaderError::Malformed)
}

fn v1_header(text: &str) -> Option<ProxyHeader> {
    // The receiver must ignore anything that follows UNKNOWN (PROXY protocol, §2.1).
    if text == "UNKNOWN" || text.starts_with("UNKNOWN ") {
        return Some(ProxyHeader::Local);
    }
    let mut words = text.split(' ');
    let family = words.next()?;
    let source = words.next()?;
    let destination = words.next()?;
    let source_port = port(words.next()?)?;
    let destination_port = port(words.next()?)?;
    let address = |text: &str| match family {
        "TCP4" => text.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
        "TCP6" => text.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        _ => None,
    };
    let source = SocketAddr::new(address(source)?, source_port);
    let destination = SocketAddr::new(address(destination)?, destination_port);
    words.next().is_none().then_some(ProxyHeader::Proxied { source, destination })
}

/// Parses a port number, and rejects a sign or leading zeros.
fn port(text: &str) -> Option<u16> {
    let is_plain = text.bytes().all(|octet| octet.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| is_plain)
}

fn length_v2(bytes: &[u8]) -> Result<Option<usize>, ProxyHeaderError> {
    let Some(head) = bytes.get(..V2_HEAD_BYTES) else {
        // Check version and command as soon as they are there, so that a wrong header is reported
        // without waiting for the rest.
        return bytes.get(12).map_or(Ok(None), |command| is_command(*command).map(|()| None));
    };
    is_command(head[12])?;
    let length = V2_HEAD_BYTES + usize::from(u16::from_be_bytes([head[14], head[15]]));
    let longest = if is_skipped(head) { MAX_V2_BYTES } else { MAX_PROXIED_BYTES };
    if length <= longest { Ok(Some(length)) } else { Err(ProxyHeaderError::TooLong) }
}

fn parse_v2(whole: &[u8]) -> Result<ProxyHeader, ProxyHeaderError> {
    let (head, body) = whole.split_at(V2_HEAD_BYTES);
    if is_skipped(head) {
        return Ok(ProxyHeader::Local);
    }
    let (header, extensions) = v2_header(head[13], body).ok_or(ProxyHeaderError::Malformed)?;
    check_extensions(extensions, whole)?;
    Ok(header)
}

/// Checks that the byte for version and command stands for version 2 with the command LOCAL or PROXY.
fn is_command(octet: u8) -> Result<(), ProxyHeaderError> {
    if matches!(octet, LOCAL | PROXY) { Ok(()) } else { Err(ProxyHeaderError::Malformed) }
}

/// Returns true if the server must ignore the content of a version 2 header after the first 16 bytes
/// (proxy-protocol.txt, §2.2). This applies to LOCAL connections, and to proxied connections of an unspecified family.
fn is_skipped(head: &[u8]) -> bool {
    head[12] == LOCAL || head[13] == UNSPECIFIED
}

/// Parses the addresses in a version 2 header, and returns them together with the extensions after them. Rejects
/// datagram families, because SMTP runs only over streams.
fn v2_header(family: u8, body: &[u8]) -> Option<(ProxyHeader, &[u8])> {
    let (header, length) = match family {
        0x11 => (proxied::<4>(body)?, 12),
        0x21 => (proxied::<16>(body)?, 36),
        0x31 if body.len() >= 216 => (ProxyHeader::Unix, 216),
        _ => return None,
    };
    Some((header, &body[length..]))
}

/// Parses the addresses of the client and the destination, and then their ports. Each address has `N` bytes.
fn proxied<const N: usize>(body: &[u8]) -> Option<ProxyHeader>
where
    IpAddr: From<[u8; N]>,
{
    let (source, rest) = body.split_first_chunk::<N>()?;
    let (destination, rest) = rest.split_first_chunk::<N>()?;
    let (ports, _) = rest.split_first_chunk::<4>()?;
    let port = |at: usize| u16::from_be_bytes([ports[at], ports[at + 1]]);
    let source = SocketAddr::new(IpAddr::from(*source), port(0));
    Some(ProxyHeader::Proxied { source, destination: SocketAddr::new(IpAddr::from(*destination), port(2)) })
}

/// Type of the extension with the CRC32c of the header (PP2_TYPE_CRC32C).
const CHECKSUM: u8 = 0x03;

/// Checks that each extension has its announced length, and that the checksum is right if there is
/// one.
fn check_extensions(extensions: &[u8], whole: &[u8]) -> Result<(), ProxyHeaderError> {
    let mut rest = extensions;
    while !rest.is_empty() {
        let [kind, high, low, after @ ..] = rest else { return Err(ProxyHeaderError::Malformed) };
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        let (value, after) = after.split_at_checked(length).ok_or(ProxyHeaderError::Malformed)?;
        if *kind == CHECKSUM {
            let claimed = u32::from_be_bytes(value.try_into().map_err(|_| ProxyHeaderError::Malformed)?);
            let at = whole.len() - after.len() - value.len();
            if checksum(&whole[..at], &whole[at + 4..]) != claimed {
                return Err(ProxyHeaderError::Checksum);
            }
        }
        rest = after;
    }
    Ok(())
}

/// Computes the CRC32c of a header, with zeros in place of the checksum.
fn checksum(before: &[u8], after: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(before);
    digest.update(&[0; 4]);
    digest.update(after);
    u32::try_from(digest.finalize()).expect("it has 32 bits")
}

/// Renders a PROXY header as the text line of version 1. If the two addresses have different families, both are written
/// as IPv6 addresses.
pub fn render_v1(header: &ProxyHeader) -> String {
    let ProxyHeader::Proxied { source, destination } = header else { return "PROXY UNKNOWN\r\n".to_owned() };
    let (from, to) = same_family(source.ip(), destination.ip());
    let family = if from.is_ipv4() { "TCP4" } else { "TCP6" };
    format!("PROXY {family} {from} {to} {} {}\r\n", source.port(), destination.port())
}

/// Renders a PROXY header in the binary form of version 2. If the two addresses have different families, both are
/// written as IPv6 addresses. The names of UNIX sockets are left empty.
pub fn render_v2(header: &ProxyHeader) -> Vec<u8> {
    let mut body = Vec::with_capacity(36);
    let (command, family) = match header {
        ProxyHeader::Local => (0x20, 0x00),
        ProxyHeader::Unix => {
            body.resize(216, 0);
            (0x21, 0x31)
        }
        ProxyHeader::Proxied { source, destination } => {
            let (from, to) = same_family(source.ip(), destination.ip());
            for address in [from, to] {
                match address {
                    IpAddr::V4(address) => body.extend_from_slice(&address.octets()),
                    IpAddr::V6(address) => body.extend_from_slice(&address.octets()),
                }
            }
            [source, destination].iter().for_each(|end| body.extend_from_slice(&end.port().to_be_bytes()));
            (0x21, if from.is_ipv4() { 0x11 } else { 0x21 })
        }
    };
    let length = u16::try_from(body.len()).expect("addresses are short").to_be_bytes();
    [V2, &[command, family], &length, &body].concat()
}

fn same_family(source: IpAddr, destination: IpAddr) -> (IpAddr, IpAddr) {
    let wide = |address| match address {
        IpAddr::V4(address) => IpAddr::V6(address.to_ipv6_mapped()),
        IpAddr::V6(_) => address,
    };
    if source.is_ipv4() == destination.is_ipv4() { (source, destination) } else { (wide(source), wide(destination)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::proxy::check;
    use proptest::prelude::*;

    fn proxied(source: &str, destination: &str) -> ProxyHeader {
        ProxyHeader::Proxied { source: source.parse().unwrap(), destination: destination.parse().unwrap() }
    }

    /// Parses a header, and checks that the result is the same if the header arrives byte by byte or if more bytes
    /// follow it.
    fn read(bytes: &[u8]) -> Result<Option<(ProxyHeader, usize)>, ProxyHeaderError> {
        check(bytes);
        check(&[bytes, b"EHLO a\r\n".as_slice()].concat());
        parse(bytes)
    }

    #[test]
    fn a_table_of_version_1() {
        let longest = "PROXY TCP6 ffff:f000:ffff:ffff:ffff:ffff:ffff:ffff ffff:f000:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\n";
        let end = "[ffff:f000:ffff:ffff:ffff:ffff:ffff:ffff]:65535";
        let good = [
            ("PROXY TCP4 192.0.2.1 198.51.100.7 56324 25\r\n", proxied("192.0.2.1:56324", "198.51.100.7:25")),
            ("PROXY TCP4 0.0.0.0 255.255.255.255 0 65535\r\n", proxied("0.0.0.0:0", "255.255.255.255:65535")),
            ("PROXY TCP6 2001:db8::1 ::1 56324 25\r\n", proxied("[2001:db8::1]:56324", "[::1]:25")),
            (longest, proxied(end, end)),
            ("PROXY UNKNOWN\r\n", ProxyHeader::Local),
            ("PROXY UNKNOWN ffff::1 anything at all\r\n", ProxyHeader::Local),
        ];
        for (text, header) in good {
            assert_eq!(read(text.as_bytes()), Ok(Some((header, text.len()))), "{text}");
        }
        let malformed = [
            "PROXY TCP4 192.0.2.1 198.51.100.7 56324 25\n",
            "PROXY TCP4 192.0.2.1 198.51.100.7 56324\r\n",
            "PROXY TCP4 192.0.2.1 198.51.100.7 56324 25 \r\n",
            "PROXY TCP4 192.0.2.1 198.51.100.7 56324 25 x\r\n",
            "PROXY TCP4  192.0.2.1 198.51.100.7 56324 25\r\n",
            "PROXY TCP4 192.0.2.1 198.51.100.7 056324 25\r\n",
            "PROXY TCP4 192.0.2.1 198.51.100.7 +5632 25\r\n",
            "PROXY TCP4 192.0.2.1 198.51.100.7 65536 25\r\n",
            "PROXY TCP4 192.0.2.01 198.51.100.7 5 25\r\n",
            "PROXY TCP4 192.0.2 198.51.100.7 5 25\r\n",
            "PROXY TCP4 ::1 ::1 5 25\r\n",
            "PROXY TCP6 192.0.2.1 198.51.100.7 5 25\r\n",
            "PROXY TCP6 ::1%lo ::1 5 25\r\n",
            "PROXY UDP4 192.0.2.1 198.51.100.7 5 25\r\n",
            "PROXY tcp4 192.0.2.1 198.51.100.7 5 25\r\n",
            "PROXY UNKNOWNS\r\n",
            "PROXY \r\n",
            "PROXY TCP4 192.0.2.1\r 198.51.100.7 5 25\r\n",
        ];
        for text in malformed {
            assert_eq!(read(text.as_bytes()), Err(ProxyHeaderError::Malformed), "{text:?}");
        }
        assert_eq!(read(b"PROXY TCP4 \xff\r\n"), Err(ProxyHeaderError::Malformed));
        assert_eq!(read(format!("PROXY UNKNOWN {}\r\n", "x".repeat(91)).as_bytes()).map(|it| it.is_some()), Ok(true));
        assert_eq!(read(format!("PROXY UNKNOWN {}\r\n", "x".repeat(92)).as_bytes()), Err(ProxyHeaderError::TooLong));
        assert_eq!(read(format!("PROXY {}", "x".repeat(1000)).as_bytes()), Err(ProxyHeaderError::TooLong));
    }

    #[test]
    fn what_is_no_header_is_told_at_its_first_octet_that_is_not() {
        for text in ["EHLO a\r\n", "proxy TCP4", "PROXYTCP4", "\r\nQUIT\r\n", "\x16\x03\x01", "PROXX"] {
            assert_eq!(read(text.as_bytes()), Err(ProxyHeaderError::Absent), "{text:?}");
        }
        assert_eq!((read(b""), read(b"PROX"), read(b"\r\n\r\n\0")), (Ok(None), Ok(None), Ok(None)));
    }

    fn v2(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
        [V2, &[command, family], &u16::try_from(body.len()).unwrap().to_be_bytes(), body].concat()
    }

    const FOUR: [u8; 12] = [192, 0, 2, 1, 198, 51, 100, 7, 0xdc, 0x04, 0, 25];

    #[test]
    fn a_table_of_version_2() {
        let four = proxied("192.0.2.1:56324", "198.51.100.7:25");
        let with = |extensions: &[u8]| [FOUR.as_slice(), extensions].concat();
        let good = [
            (v2(0x21, 0x11, &FOUR), four),
            (v2(0x20, 0x11, &FOUR), ProxyHeader::Local),
            (v2(0x20, 0x00, b""), ProxyHeader::Local),
            // In a header with the command LOCAL, the receiver must ignore family, addresses and checksum (PROXY
            // protocol, §2.2). The parser must accept such headers even if only their length is right.
            (v2(0x20, 0x12, &FOUR), ProxyHeader::Local),
            (v2(0x20, 0xff, b"anything"), ProxyHeader::Local),
            (v2(0x20, 0x11, &FOUR[..11]), ProxyHeader::Local),
            (v2(0x20, 0x11, b""), ProxyHeader::Local),
            (v2(0x20, 0x21, b"\x03\0\x04\0\0\0\0"), ProxyHeader::Local),
            (v2(0x20, 0x31, &[b'x'; 215]), ProxyHeader::Local),
            (v2(0x20, 0x11, &with(b"\x03\0\x04\0\0\0\0")), ProxyHeader::Local),
            (v2(0x20, 0x00, &[0; 40_000]), ProxyHeader::Local),
            (v2(0x21, 0x00, &[0; 40_000]), ProxyHeader::Local),
            (v2(0x21, 0x00, b"\x03\0\x04\0\0\0\0"), ProxyHeader::Local),
            (v2(0x21, 0x31, &[[b'x'; 216].as_slice(), b"\x04\0\x01x"].concat()), ProxyHeader::Unix),
            // The parser must accept large extensions, because an extension may contain the client's certificate.
            (v2(0x21, 0x11, &with(&[&[0x20, 0x10, 0], [0; 4096].as_slice()].concat())), four),
            (v2(0x21, 0x00, b"anything"), ProxyHeader::Local),
            (v2(0x21, 0x31, &[b'x'; 216]), ProxyHeader::Unix),
            (v2(0x21, 0x11, &with(b"\x04\0\x02xx\x05\0\0")), four),
            (v2(0x21, 0x11, &with(&[&[4, 8, 0], [0; 2048].as_slice()].concat())), four),
        ];
        for (bytes, header) in good {
            assert_eq!(read(&bytes), Ok(Some((header, bytes.len()))), "{bytes:?}");
        }
        let malformed = [
            v2(0x11, 0x11, &FOUR),
            v2(0x22, 0x11, &FOUR),
            v2(0x21, 0x12, &FOUR),
            v2(0x21, 0x22, &[0; 36]),
            v2(0x21, 0x41, &FOUR),
            v2(0x21, 0x11, &FOUR[..11]),
            v2(0x21, 0x11, b""),
            v2(0x21, 0x01, &FOUR),
            v2(0x21, 0x10, &FOUR),
            v2(0x21, 0x32, &[0; 216]),
            v2(0x21, 0x31, &[[b'x'; 216].as_slice(), b"\x04"].concat()),
            v2(0x21, 0x21, &[0; 35]),
            v2(0x21, 0x31, &[0; 215]),
            v2(0x21, 0x11, &with(b"\x04")),
            v2(0x21, 0x11, &with(b"\x04\0\x03xx")),
            v2(0x21, 0x11, &with(b"\x03\0\x03xxx")),
        ];
        for bytes in malformed {
            assert_eq!(read(&bytes), Err(ProxyHeaderError::Malformed), "{bytes:?}");
        }
        assert_eq!(read(&v2(0x21, 0x11, &[0; MAX_PROXIED_BYTES])), Err(ProxyHeaderError::TooLong));
        let longest = v2(0x20, 0x11, &[0xff; u16::MAX as usize]);
        assert_eq!(longest.len(), MAX_V2_BYTES);
        assert_eq!(parse(&longest), Ok(Some((ProxyHeader::Local, MAX_V2_BYTES))));
        assert_eq!(parse(&longest[..MAX_V2_BYTES - 1]), Ok(None));
        assert_eq!(length(&longest[..V2_HEAD_BYTES]), Ok(Some(MAX_V2_BYTES)));
        assert_eq!(read(&v2(0x21, 0x11, &FOUR)[..27]), Ok(None));
    }

    #[test]
    fn a_checksum_must_be_right() {
        let mut bytes = v2(0x21, 0x11, &[FOUR.as_slice(), b"\x03\0\x04\0\0\0\0\x04\0\0"].concat());
        assert_eq!(parse(&bytes), Err(ProxyHeaderError::Checksum));
        let at = bytes.len() - 7;
        // Compute the checksum bit by bit from the polynomial (RFC 3720 §12.1), independently of
        // the code under test.
        let mut crc = u32::MAX;
        for octet in &bytes {
            crc ^= u32::from(*octet);
            (0..8).for_each(|_| crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 });
        }
        bytes[at..at + 4].copy_from_slice(&(!crc).to_be_bytes());
        assert_eq!(parse(&bytes), Ok(Some((proxied("192.0.2.1:56324", "198.51.100.7:25"), bytes.len()))));
        bytes[at - 8] ^= 1;
        assert_eq!(parse(&bytes), Err(ProxyHeaderError::Checksum));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(source in any::<(IpAddr, u16)>(), destination in any::<(IpAddr, u16)>()) {
            let (from, to) = same_family(source.0, destination.0);
            let header = ProxyHeader::Proxied { source: source.into(), destination: destination.into() };
            let expected = ProxyHeader::Proxied { source: (from, source.1).into(), destination: (to, destination.1).into() };
            let v1 = render_v1(&header);
            prop_assert_eq!(read(v1.as_bytes()), Ok(Some((expected, v1.len()))));
            let v2 = render_v2(&header);
            prop_assert_eq!(read(&v2), Ok(Some((expected, v2.len()))));
        }

        #[test]
        fn no_bytes_do_harm(head in 0usize..3, bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            check(&[[b"".as_slice(), V1, V2][head], &bytes].concat());
        }
    }

    #[test]
    fn those_that_tell_of_nobody_are_read_back_too() {
        for header in [ProxyHeader::Local, ProxyHeader::Unix] {
            let bytes = render_v2(&header);
            assert_eq!(read(&bytes), Ok(Some((header, bytes.len()))));
            assert_eq!(read(render_v1(&header).as_bytes()).unwrap().unwrap().0, ProxyHeader::Local);
        }
    }
}
