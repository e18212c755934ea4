//! Reasons why a handshake with a server failed, in plain words, with their remedies.
use crate::verifier::is_marked_as_authority;
use rustls::pki_types::UnixTime;
use rustls::{CertificateError, Error, InvalidMessage};

/// If a certificate is for other names, the message lists at most this many of them, because there may be hundreds.
const MAX_NAMES: usize = 3;
const HOUR_SECONDS: u64 = 3600;
const DAY_SECONDS: u64 = 24 * HOUR_SECONDS;

/// Reason why a handshake with a server failed, if the user can do something about it. `server` is the name that the
/// client asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeFault {
    /// The server's certificate is neither trusted itself nor signed by a trusted certificate.
    #[error("the certificate of {server} is not trusted")]
    Untrusted { server: String },
    /// The certificate is for other names, or for no name at all.
    #[error("the certificate {} for {server}", of_names(names))]
    OtherName {
        server: String,
        /// Names that the certificate is for: at most three, all printable, because an untrusted server chooses them.
        names: Vec<String>,
    },
    #[error("the certificate of {server} expired{since}")]
    Expired {
        server: String,
        /// Text that follows "expired", such as ` 3 days ago`. It is empty if the time is not known.
        since: String,
    },
    #[error("the certificate of {server} is not valid yet{until}")]
    NotYetValid {
        server: String,
        /// Words that follow "not valid yet" in the message, such as `, but in 3 days`. Empty if the time is not known.
        until: String,
    },
    #[error("the server does not speak TLS on this port")]
    NotTls,
}

/// Command-line options that [`HandshakeFault::with_remedy`] recommends, because they can make the handshake succeed.
#[derive(Clone, Copy, Debug)]
pub struct Remedies {
    /// Option that trusts more certificates, such as `--cacert FILE`.
    pub trust: &'static str,
    /// Option that sets the name for which the certificate must be valid, such as `--tls-name NAME`. Messages show a
    /// name from the certificate in place of NAME.
    pub name: &'static str,
    /// Option that accepts any certificate, such as `--insecure`.
    pub insecure: &'static str,
}

impl Remedies {
    /// Says what the user can do if the system has no trusted certificates.
    pub fn without_roots(&self) -> String {
        format!("use {} (PEM) for the trusted certificates, or {} to accept any", self.trust, self.insecure)
    }
}

impl HandshakeFault {
    /// Returns the reason why a handshake with `server` failed. Returns `None` if the user can do nothing about it.
    pub fn of(error: &Error, server: &str) -> Option<Self> {
        let server = server.to_owned();
        if is_marked_as_authority(error) {
            return Some(Self::Untrusted { server });
        }
        let certificate = match error {
            Error::InvalidMessage(InvalidMessage::InvalidContentType) => return Some(Self::NotTls),
            Error::InvalidCertificate(certificate) => certificate,
            _ => return None,
        };
        Some(match certificate {
            // rustls reports `BadSignature` if the issuer has the same name as a trusted certificate, but another key.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => Self::Untrusted { server },
            CertificateError::NotValidForNameContext { presented, .. } => {
                let names = presented.iter().filter_map(|name| plain_name(name)).take(MAX_NAMES).collect();
                Self::OtherName { server, names }
            }
            CertificateError::Expired => Self::Expired { server, since: String::new() },
            CertificateError::ExpiredContext { time, not_after } => {
                Self::Expired { server, since: format!(" {} ago", between(*not_after, *time)) }
            }
            CertificateError::NotValidYet => Self::NotYetValid { server, until: String::new() },
            CertificateError::NotValidYetContext { time, not_before } => {
                Self::NotYetValid { server, until: format!(", but in {}", between(*time, *not_before)) }
            }
            _ => return None,
        })
    }

    /// Describes the fault and what the user can do about it, for example which option of `remedies` helps.
    pub fn with_remedy(&self, remedies: &Remedies) -> String {
        let Remedies { trust, name, insecure } = remedies;
        match self {
            Self::Untrusted { .. } => format!("{self}: {trust} with its issuer's certificate, or {insecure}"),
            Self::OtherName { server, names } if names.is_empty() => {
                format!("{self}: create one with subjectAltName={}:{server}, or {insecure}", kind_of(server))
            }
            Self::OtherName { names, .. } => {
                // A client must ask for a complete name, so do not suggest a pattern such as `*.example.com`.
                let server_name = names.iter().find(|name| !name.contains('*')).map_or("NAME", String::as_str);
                format!("{self}: {}", name.replace("NAME", server_name))
            }
            Self::Expired { .. } => format!("{self}: renew it, or {insecure}"),
            Self::NotYetValid { .. } => format!("{self}: check the clocks, or {insecure}"),
            Self::NotTls => self.to_string(),
        }
    }
}

fn of_names(names: &[String]) -> String {
    match names {
        [] => "has no host name (subjectAltName), so it is not".to_owned(),
        names => format!("is for {}, not", names.join(" and ")),
    }
}

/// Extracts the name from webpki's notation, `DnsName("mx.example")` or `IpAddress(127.0.0.1)`. Returns `None` if the
/// name is not printable, because it comes from the server and is shown to the user.
fn plain_name(words: &str) -> Option<String> {
    let dns = words.strip_prefix("DnsName(\"").and_then(|rest| rest.strip_suffix("\")"));
    let address = || words.strip_prefix("IpAddress(").and_then(|rest| rest.strip_suffix(')'));
    let name = dns.or_else(address)?;
    let is_printable = |byte: u8| byte.is_ascii_alphanumeric() || b".-_*:".contains(&byte);
    (!name.is_empty() && name.len() < 256 && name.bytes().all(is_printable)).then(|| name.to_owned())
}

fn kind_of(server: &str) -> &'static str {
    if server.parse::<std::net::IpAddr>().is_ok() { "IP" } else { "DNS" }
}

fn between(earlier: UnixTime, later: UnixTime) -> String {
    let seconds = later.as_secs().saturating_sub(earlier.as_secs());
    match seconds {
        0..HOUR_SECONDS => format!("{} minutes", seconds / 60),
        HOUR_SECONDS..=172_799 => format!("{} hours", seconds / HOUR_SECONDS),
        _ => format!("{} days", seconds / DAY_SECONDS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rustls::pki_types::ServerName;
    use std::time::Duration;

    const REMEDIES: Remedies = Remedies { trust: "--cacert FILE", name: "--tls-name NAME", insecure: "--insecure" };

    fn told(error: impl Into<Error>) -> String {
        HandshakeFault::of(&error.into(), "mail.example").unwrap().with_remedy(&REMEDIES)
    }

    fn other_name(presented: &[&str]) -> CertificateError {
        CertificateError::NotValidForNameContext {
            expected: ServerName::try_from("mail.example").unwrap(),
            presented: presented.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    #[test]
    fn each_fault_says_what_to_do() {
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let expired = |time| CertificateError::ExpiredContext { time: at(time), not_after: at(1000) };
        let early = CertificateError::NotValidYetContext { time: at(0), not_before: at(259_200) };
        let dns = "DnsName(\"mx.example\")";
        let rows = [
            (
                CertificateError::UnknownIssuer,
                "of mail.example is not trusted: --cacert FILE with its issuer's certificate, or --insecure",
            ),
            (other_name(&[dns]), "is for mx.example, not for mail.example: --tls-name mx.example"),
            (
                other_name(&["DnsName(\"*.x.example\")", "IpAddress(127.0.0.1)"]),
                "is for *.x.example and 127.0.0.1, not for mail.example: --tls-name 127.0.0.1",
            ),
            (other_name(&["DnsName(\"*.x.example\")"]), "is for *.x.example, not for mail.example: --tls-name NAME"),
            (
                other_name(&[]),
                "has no host name (subjectAltName), so it is not for mail.example: create one with subjectAltName=DNS:mail.example, \
                 or --insecure",
            ),
            (CertificateError::Expired, "of mail.example expired: renew it, or --insecure"),
            (expired(1120), "of mail.example expired 2 minutes ago: renew it, or --insecure"),
            (expired(8200), "of mail.example expired 2 hours ago: renew it, or --insecure"),
            (early, "of mail.example is not valid yet, but in 3 days: check the clocks, or --insecure"),
        ];
        for (error, words) in rows {
            assert_eq!(told(error), format!("the certificate {words}"));
        }
        assert_eq!(told(InvalidMessage::InvalidContentType), "the server does not speak TLS on this port");
        assert_eq!(HandshakeFault::of(&Error::DecryptError, "mail.example"), None);
    }

    proptest! {
        #[test]
        fn names_that_a_server_makes_up_are_printable(names in prop::collection::vec(".{0,300}", 0..6)) {
            let presented: Vec<String> = names.iter().map(|name| format!("DnsName(\"{name}\")")).collect();
            let presented: Vec<&str> = presented.iter().map(String::as_str).collect();
            let text = told(other_name(&presented));
            prop_assert!(text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()), "{text:?}");
            prop_assert!(text.len() < 1100, "{}", text.len());
        }
    }
}
