//! CRAM-MD5 (RFC 2195). The client proves that it knows the secret: it sends a digest of the secret and the server's
//! challenge, which is new in each exchange.
use hmac::{Hmac, KeyInit, Mac};
use md5::Md5;

/// Makes the challenge from a nonce and the server's name, in the form of a message-id.
pub(crate) fn challenge(nonce: &str, host: &str) -> String {
    format!("<{nonce}@{host}>")
}

/// Returns the client's response: the name, a space, and the digest.
pub(crate) fn response(name: &str, secret: &str, challenge: &[u8]) -> String {
    format!("{name} {}", digest(secret, challenge))
}

/// Computes the digest: HMAC-MD5 of the challenge with the secret as the key, in lower-case
/// hexadecimal.
pub(crate) fn digest(secret: &str, challenge: &[u8]) -> String {
    use std::fmt::Write;
    let mut mac = Hmac::<Md5>::new_from_slice(secret.as_bytes()).expect("HMAC takes a key of any length");
    mac.update(challenge);
    mac.finalize().into_bytes().iter().fold(String::with_capacity(32), |mut text, octet| {
        write!(text, "{octet:02x}").expect("a String takes any text");
        text
    })
}

/// Splits a response into name and digest at the last space, because the name may contain spaces.
pub(crate) fn parse(response: &[u8]) -> Option<(&str, &[u8])> {
    let text = std::str::from_utf8(response).ok()?;
    let (name, digest) = text.rsplit_once(' ')?;
    (!name.is_empty() && digest.len() == 32).then_some((name, digest.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_rfc_2195() {
        let challenge = b"<1896.697170952@postoffice.reston.mci.net>";
        let answer = response("tim", "tanstaaftanstaaf", challenge);
        assert_eq!(answer, "tim b913a602c7eda7a495b4e6e7334d3890");
        assert_eq!(crate::encode(answer.as_bytes()), "dGltIGI5MTNhNjAyYzdlZGE3YTQ5NWI0ZTZlNzMzNGQzODkw");
    }

    #[test]
    fn a_name_may_hold_blanks_and_a_digest_has_32_digits() {
        let digest = "d".repeat(32);
        assert_eq!(parse(format!("a b {digest}").as_bytes()), Some(("a b", digest.as_bytes())));
        for response in [digest.clone(), format!(" {digest}"), format!("a {digest}d"), String::new(), "a ".to_owned()] {
            assert_eq!(parse(response.as_bytes()), None, "{response}");
        }
        assert_eq!(parse(b"\xff d"), None);
    }
}
