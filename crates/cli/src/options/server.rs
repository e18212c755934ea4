//! The argument SERVER: a host with or without a port, a URL, or a unix-domain socket.
use mailrun_net::Endpoint;
use std::net::Ipv6Addr;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerArg {
    /// `unix:PATH`, or `HOST:PORT` with the default port of the scheme if the user named no port.
    address: String,
    scheme: Scheme,
    /// Set if the user named no port, so that `send --port` may replace the default port in `address`.
    is_port_assumed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// The user typed no scheme, or `smtp://`. Other options can still turn on TLS or LMTP.
    Smtp,
    /// The user typed `smtps://`: SMTP with TLS before the greeting (RFC 8314).
    Smtps,
    /// The user typed `lmtp://`, or `lmtp:` as the relay writes it: LMTP (RFC 2033).
    Lmtp,
}

impl Scheme {
    fn default_port(self) -> u16 {
        match self {
            Self::Smtp => 25,
            Self::Smtps => 465,
            Self::Lmtp => 24,
        }
    }
}

impl ServerArg {
    /// Parses `HOST`, `HOST:PORT`, `[::1]:25`, `smtp://HOST`, `smtps://HOST`, `lmtp://HOST`,
    /// `unix:PATH` or `lmtp:unix:PATH`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (scheme, rest) = split_scheme(text)?;
        if rest.starts_with("unix:") {
            return Ok(Self { address: rest.to_owned(), scheme, is_port_assumed: false });
        }
        let (host, port) = split_port(rest)?;
        check_host(text, host)?;
        let is_port_assumed = port.is_none();
        let port = port.map_or_else(|| Ok(scheme.default_port()), read_port)?;
        let is_ipv6 = host.parse::<Ipv6Addr>().is_ok();
        let address = if is_ipv6 { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        Ok(Self { address, scheme, is_port_assumed })
    }

    /// Returns the same host with another port. Returns `None` if SERVER already names a port or is a unix-domain
    /// socket.
    pub(crate) fn at_port(&self, port: u16) -> Option<Self> {
        let host = self.address.rsplit_once(':').map(|(host, _)| host).filter(|_| self.is_port_assumed)?;
        Some(Self { address: format!("{host}:{port}"), is_port_assumed: false, ..self.clone() })
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Returns a text that [`Self::parse`] reads as the same server. For TLS or LMTP, it begins with the scheme,
    /// because an address alone means SMTP without TLS.
    pub(crate) fn url(&self) -> String {
        let scheme = match self.scheme {
            Scheme::Smtp => return self.address.clone(),
            Scheme::Smtps => "smtps:",
            Scheme::Lmtp => "lmtp:",
        };
        let slashes = if self.address.starts_with("unix:") { "" } else { "//" };
        format!("{scheme}{slashes}{}", self.address)
    }
}

/// Splits SERVER into its scheme and its address, without the trailing slash of a URL.
fn split_scheme(text: &str) -> Result<(Scheme, &str), String> {
    if text.starts_with("unix:") {
        return Ok((Scheme::Smtp, text));
    }
    let without_slash = |rest: &'_ str| rest.len() - usize::from(rest.ends_with('/'));
    for (prefix, scheme) in [("smtp:", Scheme::Smtp), ("smtps:", Scheme::Smtps), ("lmtp:", Scheme::Lmtp)] {
        let Some(rest) = strip_prefix(text, prefix) else { continue };
        let Some(rest) = rest.strip_prefix("//") else {
            // Accept `lmtp:unix:PATH` and `lmtp:HOST:PORT` as LMTP, because the relay writes its next hops in these
            // forms. If only a port follows, as in `lmtp:25`, `lmtp` is the name of a host.
            let is_port = rest.bytes().all(|byte| byte.is_ascii_digit());
            let is_host_and_port = is_port || scheme != Scheme::Lmtp && !rest.starts_with("unix:");
            return Ok(if is_host_and_port { (Scheme::Smtp, text) } else { (scheme, rest) });
        };
        return Ok((scheme, &rest[..without_slash(rest)]));
    }
    match text.split_once("://") {
        Some((scheme, _)) => Err(format!("{text:?}: unknown scheme {scheme:?}; use smtp://, smtps:// or lmtp://")),
        None => Ok((Scheme::Smtp, text)),
    }
}

/// Removes the prefix, such as `smtp:`, in upper or lower case (RFC 3986 §3.1). Returns `None` if the text does not
/// begin with it.
fn strip_prefix<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    let head = text.get(..prefix.len())?;
    head.eq_ignore_ascii_case(prefix).then(|| &text[prefix.len()..])
}

/// Splits an address into its host and its port. Removes the brackets around an IPv6 address. The port is `None` if the
/// address has none.
fn split_port(text: &str) -> Result<(&str, Option<&str>), String> {
    let is_right = |host: &str| !text.starts_with('[') || host.parse::<Ipv6Addr>().is_ok();
    Endpoint::split_port(text)
        .filter(|(host, _)| is_right(host))
        .ok_or_else(|| format!("{text:?} is not an IPv6 address in brackets, such as [::1]:25"))
}

fn check_host(text: &str, host: &str) -> Result<(), String> {
    if host.is_empty() {
        return Err(format!("{text:?} has no host; use something like 127.0.0.1:25 or mx.example"));
    }
    if host.contains('@') {
        return Err(format!("{text:?} is not a server; the recipient is --to, the login --user"));
    }
    let is_strange = |c: char| c.is_whitespace() || c.is_control() || "/?#[]:,\"'\\".contains(c);
    if host.parse::<Ipv6Addr>().is_err() && host.contains(is_strange) {
        return Err(format!(
            "{text:?} is not a server; use HOST, HOST:PORT, smtp://HOST, smtps://HOST, lmtp://HOST or unix:PATH"
        ));
    }
    Ok(())
}

fn read_port(port: &str) -> Result<u16, String> {
    match port.parse::<u16>() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(format!("the port must be a number from 1 to 65535, not {port:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<(String, Scheme), String> {
        ServerArg::parse(text).map(|server| (server.address().to_owned(), server.scheme()))
    }

    #[test]
    fn a_port_beside_a_server_is_of_a_server_without_one() {
        let at = |text: &str| Some(ServerArg::parse(text).unwrap().at_port(2525)?.address().to_owned());
        assert_eq!(at("mx.example").as_deref(), Some("mx.example:2525"));
        assert_eq!(at("smtps://[::1]").as_deref(), Some("[::1]:2525"));
        assert_eq!((at("mx.example:25"), at("unix:/run/smtp.sock")), (None, None));
    }

    #[test]
    fn hosts_and_urls_are_read() {
        for (text, address, scheme) in [
            ("mx.example", "mx.example:25", Scheme::Smtp),
            ("127.0.0.1:2525", "127.0.0.1:2525", Scheme::Smtp),
            ("::1", "[::1]:25", Scheme::Smtp),
            ("[::1]", "[::1]:25", Scheme::Smtp),
            ("[::1]:2525", "[::1]:2525", Scheme::Smtp),
            ("smtp://mx.example", "mx.example:25", Scheme::Smtp),
            ("SMTP://mx.example:587/", "mx.example:587", Scheme::Smtp),
            ("smtps://mx.example", "mx.example:465", Scheme::Smtps),
            ("smtps://[::1]:2465", "[::1]:2465", Scheme::Smtps),
            ("lmtp://localhost", "localhost:24", Scheme::Lmtp),
            ("lmtp:127.0.0.1:2424", "127.0.0.1:2424", Scheme::Lmtp),
            ("lmtp:unix:/run/lmtp.sock", "unix:/run/lmtp.sock", Scheme::Lmtp),
            ("unix:/run/smtp.sock", "unix:/run/smtp.sock", Scheme::Smtp),
            ("unix:/a://b", "unix:/a://b", Scheme::Smtp),
            ("lmtp", "lmtp:25", Scheme::Smtp),
            ("lmtp:25", "lmtp:25", Scheme::Smtp),
        ] {
            assert_eq!(read(text), Ok((address.to_owned(), scheme)), "{text}");
            let url = ServerArg::parse(text).unwrap().url();
            assert_eq!(read(&url), Ok((address.to_owned(), scheme)), "{text} is the same server as {url}");
        }
    }

    #[test]
    fn each_mistake_has_one_cause() {
        for (text, cause) in [
            ("", "no host"),
            (":25", "no host"),
            ("smtp://", "no host"),
            ("mx.example:smtp", "port must be a number"),
            ("mx.example:0", "port must be a number"),
            ("mx.example:70000", "port must be a number"),
            ("http://mx.example", "unknown scheme \"http\""),
            ("ann@mx.example", "the recipient is --to"),
            ("smtp://mx.example/path", "is not a server"),
            ("[::1", "brackets"),
            ("[mx.example]:25", "brackets"),
            ("[::1]25", "brackets"),
            ("a b", "is not a server"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(cause), "{text}: {error}");
        }
    }
}
