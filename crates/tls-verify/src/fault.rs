//! Reasons why a handshake with a server failed, in plain words, with their remedies.
use crate::verifier::is_marked_as_authority;
use rustls::pki_types::UnixTime;
use rustls::{CertificateError, Error, InvalidMessage};

/// Largest number of a certificate's names that are reported. There may be hundreds.
const MAX_NAMES: usize = 3;
const HOUR_SECONDS: u64 = 3600;
const DAY_SECONDS: u64 = 24 * HOUR_SECONDS;

/// Reasons why a handshake with a server failed that the user can remove. `server` is the name that was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeFault {
    /// No trusted certificate is the server's, or has signed it.
    #[error("the certificate of {server} is not trusted")]
    Untrusted {
        /// The name asked for.
        server: String,
    },
    /// The certificate is for other names, or for none.
    #[error("the certificate {} for {server}", of_names(names))]
    OtherName {
        /// The name asked for.
        server: String,
        /// Names that it is for: printable, some of them.
        names: Vec<String>,
    },
    /// The certificate has expired.
    #[error("the certificate of {server} expired{since}")]
    Expired {
        /// The name asked for.
        server: String,
        /// ` 3 days ago`, or empty.
        since: String,
    },
    /// The certificate is not valid yet.
    #[error("the certificate of {server} is not valid yet{until}")]
    NotYetValid {
        /// The name asked for.
        server: String,
        /// `, but in 3 days`, or empty.
        until: String,
    },
    /// The answer is not TLS.
    #[error("the server does not speak TLS on this port")]
    NotTls,
}

/// Options that remove a fault, as the user writes them.
#[derive(Clone, Copy, Debug)]
pub struct Remedies {
    /// Trusts more certificates: `--cacert FILE`.
    pub trust: &'static str,
    /// Asks for another name, which stands in it as NAME: `--tls-name NAME`.
    pub name: &'static str,
    /// Accepts any certificate: `--insecure`.
    pub insecure: &'static str,
}

impl HandshakeFault {
    /// Returns the fault behind the error of a handshake with `server`, or `None` if the server is not at fault.
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
            // Signed by an authority with the same name as a trusted certificate.
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

    /// Describes the fault, with the remedy if `remedies` has one for it.
    pub fn with_remedy(&self, remedies: &Remedies) -> String {
        let Remedies { trust, name, insecure } = remedies;
        match self {
            Self::Untrusted { .. } => format!("{self}: {trust} with its issuer's certificate, or {insecure}"),
            Self::OtherName { server, names } if names.is_empty() => {
                format!("{self}: create one with subjectAltName={}:{server}, or {insecure}", kind_of(server))
            }
            Self::OtherName { names, .. } => {
                // A pattern cannot be asked for.
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

/// Returns the name in webpki's notation, `DnsName("mx.example")` or `IpAddress(127.0.0.1)`. It comes from the server,
/// so a name that is not printable is left out.
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
