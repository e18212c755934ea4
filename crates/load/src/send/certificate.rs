use jiff::Timestamp;
use mailrun_net::ShownCertificates;
use sha2::{Digest, Sha256};
use std::net::IpAddr;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

/// Returns lines that describe the server's chain of certificates, beginning with the server's own certificate. The
/// last line says whether the chain is trusted.
pub(super) fn describe(shown: &ShownCertificates, now: Timestamp) -> Vec<String> {
    let count = shown.chain.len();
    let mut lines = Vec::new();
    for (number, certificate) in shown.chain.iter().enumerate() {
        let place = format!("certificate {} of {count}", number + 1);
        match X509Certificate::from_der(certificate) {
            Ok((_, parsed)) => {
                lines.push(format!("{place}: {}", parsed.subject()));
                lines.push(format!("  names: {}", names(&parsed)));
                lines.push(format!("  issuer: {}", parsed.issuer()));
                lines.push(format!("  valid: {}", validity(&parsed, now)));
            }
            Err(error) => lines.push(format!("{place} cannot be read: {error}")),
        }
        lines.push(format!("  SHA-256: {}", fingerprint(certificate)));
    }
    lines.push(match &shown.fault {
        _ if count == 0 => "the server has shown no certificate".to_owned(),
        None => "the certificate is trusted".to_owned(),
        Some(fault) => format!("the certificate is not trusted: {fault}"),
    });
    lines
}

/// Returns the time at which the server's own certificate expires, in seconds since 1970. `None` if
/// the server presented no readable certificate.
pub(super) fn end(shown: &ShownCertificates) -> Option<i64> {
    let (_, parsed) = X509Certificate::from_der(shown.chain.first()?).ok()?;
    Some(parsed.validity().not_after.timestamp())
}

fn names(certificate: &X509Certificate<'_>) -> String {
    let extension = certificate.subject_alternative_name().ok().flatten();
    let names = extension.iter().flat_map(|extension| &extension.value.general_names).map(|name| match name {
        GeneralName::DNSName(name) => (*name).to_owned(),
        GeneralName::IPAddress(octets) => address(octets).map_or_else(|| name.to_string(), |ip| ip.to_string()),
        other => other.to_string(),
    });
    let names: Vec<String> = names.collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

fn address(octets: &[u8]) -> Option<IpAddr> {
    let v4 = || <[u8; 4]>::try_from(octets).ok().map(IpAddr::from);
    v4().or_else(|| <[u8; 16]>::try_from(octets).ok().map(IpAddr::from))
}

fn validity(certificate: &X509Certificate<'_>, now: Timestamp) -> String {
    let validity = certificate.validity();
    let date = |seconds: i64| {
        Timestamp::from_second(seconds).map_or_else(|_| "?".to_owned(), |date| date.strftime("%F").to_string())
    };
    let (from, until) = (validity.not_before.timestamp(), validity.not_after.timestamp());
    let state = match now.as_second() {
        now if now < from => "not yet valid".to_owned(),
        now if now > until => "expired".to_owned(),
        now => format!("{} days left", (until - now) / 86_400),
    };
    format!("{} to {} ({state})", date(from), date(until))
}

/// Returns the SHA-256 fingerprint of a certificate in the form that openssl prints.
fn fingerprint(certificate: &[u8]) -> String {
    let digits: Vec<String> = Sha256::digest(certificate).iter().map(|byte| format!("{byte:02X}")).collect();
    digits.join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(names: &[&str]) -> ShownCertificates {
        let pem = mailrun_net::Certificate::self_signed(names).unwrap().to_pem();
        let chain = mailrun_net::certificates_from(pem.as_bytes()).unwrap();
        ShownCertificates { chain: chain.iter().map(|one| one.to_vec()).collect(), fault: Some("no".to_owned()) }
    }

    #[test]
    fn a_chain_is_described() {
        let shown = shown(&["mail.example", "127.0.0.1", "::1"]);
        let lines = describe(&shown, "2026-11-28T00:00:00Z".parse().unwrap());
        assert!(lines[0].starts_with("certificate 1 of 1: CN="), "{lines:?}");
        assert_eq!(lines[1], "  names: mail.example, 127.0.0.1, ::1");
        assert!(lines[2].starts_with("  issuer: CN="), "{lines:?}");
        assert!(
            lines[3].starts_with("  valid: 1975-01-01 to 4096-01-01 (") && lines[3].ends_with(" days left)"),
            "{lines:?}"
        );
        assert!(lines[4].starts_with("  SHA-256: ") && lines[4].len() == 11 + 95, "{lines:?}");
        assert_eq!(lines[5], "the certificate is not trusted: no");
        assert_eq!(end(&shown), Some(67_090_118_400), "1 January 4096");
        let past = describe(&shown, "1974-01-01T00:00:00Z".parse().unwrap());
        assert!(past[3].ends_with("(not yet valid)"), "{past:?}");
    }

    #[test]
    fn what_is_no_certificate_is_said() {
        let lines = describe(&ShownCertificates { chain: vec![vec![1, 2]], fault: None }, Timestamp::UNIX_EPOCH);
        assert!(lines[0].starts_with("certificate 1 of 1 cannot be read"), "{lines:?}");
        let lines = describe(&ShownCertificates::default(), Timestamp::UNIX_EPOCH);
        assert_eq!(lines, ["the server has shown no certificate"]);
        assert_eq!(end(&ShownCertificates::default()), None);
    }
}
