//! What a message demands of the server that is to take it: extensions without which it must not be sent there. Nothing is
//! converted on the way; what cannot be sent as it is goes back to its sender (RFC 6152 §3, RFC 6531 §3.2).
use super::envelope::{Envelope, Refusal};
use super::letter::Letter;
use smtp::Extensions;
use smtp::command::BodyType;
use smtp::reply::Enhanced;

/// Whether a server with those extensions may have the message for these recipients, by their numbers.
///
/// # Errors
/// What it lacks, as the sender is told.
pub(super) fn meet(
    letter: &Letter,
    recipients: impl Iterator<Item = u16>,
    extensions: &Extensions,
) -> Result<(), Refusal> {
    let envelope = &letter.envelope;
    if envelope.smtp_utf8 && !extensions.smtp_utf8 && needs_utf8(letter, recipients) {
        return Err(lacks(553, Enhanced(5, 6, 7), "the next hop does not offer SMTPUTF8"));
    }
    match envelope.body {
        // What was not declared is passed on as it came, like everybody does: whoever sends 8-bit octets without saying
        // so relies on it, and would not understand why they come back.
        BodyType::SevenBit => Ok(()),
        // Looked for only here, where the server does not take them: most that is declared 8BITMIME is ASCII.
        BodyType::EightBitMime if !extensions.eight_bit_mime && !letter.body.is_ascii() => {
            Err(lacks(554, Enhanced(5, 6, 3), "the message has 8-bit octets, and the next hop does not offer 8BITMIME"))
        }
        BodyType::EightBitMime => Ok(()),
        // It is not offered, and so not taken: only a spool of another version may hold one. Lines of a binary message
        // cannot be told, so there is no way to send it but by BDAT as it came (RFC 3030 §3).
        BodyType::Binary => Err(lacks(554, Enhanced(5, 6, 1), "binary messages are not handed on")),
    }
}

fn lacks(code: u16, enhanced: Enhanced, text: &str) -> Refusal {
    Refusal::new(code, Some(enhanced), text, "")
}

/// Whether there is anything in it that only SMTPUTF8 allows: many a client says it always (RFC 6531 §3.2: one that
/// does not need it should not).
fn needs_utf8(letter: &Letter, mut recipients: impl Iterator<Item = u16>) -> bool {
    let envelope = &letter.envelope;
    !envelope.sender.is_ascii()
        || recipients.any(|number| is_utf8(envelope, number))
        || !header(&letter.body).is_ascii()
}

/// An ORCPT in UTF-8 does not count: it has a form in ASCII (RFC 6533 §3).
fn is_utf8(envelope: &Envelope, number: u16) -> bool {
    !envelope.recipients[usize::from(number)].address.is_ascii()
}

fn header(message: &[u8]) -> &[u8] {
    &message[..memchr::memmem::find(message, b"\r\n\r\n").unwrap_or(message.len())]
}

#[cfg(test)]
mod tests {
    use super::super::envelope::{Original, Recipient};
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;
    use std::time::Duration;

    fn letter(smtp_utf8: bool, body: BodyType, sender: &str, to: &[&str], message: &[u8]) -> Letter {
        let recipient =
            |address: &&str| Recipient { address: address.as_bytes().to_vec(), original: None, notify: None };
        let envelope = Envelope {
            smtp_utf8,
            body,
            ..Envelope::local(sender.as_bytes(), to.iter().map(recipient).collect::<Vec<_>>())
        };
        Letter { envelope: Arc::new(envelope), body: message.into(), received: Duration::ZERO }
    }

    fn lacking(letter: &Letter, eight_bit_mime: bool, smtp_utf8: bool) -> Option<Enhanced> {
        let extensions = Extensions { eight_bit_mime, smtp_utf8, ..Extensions::default() };
        let all = 0..letter.envelope.recipients.len() as u16;
        meet(letter, all, &extensions).err().map(|refusal| refusal.enhanced.unwrap())
    }

    const PLAIN: &[u8] = b"Subject: x\r\n\r\nx\r\n";
    const IN_BODY: &[u8] = b"Subject: x\r\n\r\n\xc3\xa4\r\n";
    const IN_HEADER: &[u8] = b"Subject: \xc3\xa4\r\n\r\nx\r\n";

    #[test]
    fn eight_bits_are_looked_for_where_they_were_declared() {
        let rows = [
            (BodyType::SevenBit, PLAIN, None),
            (BodyType::SevenBit, IN_BODY, None),
            (BodyType::EightBitMime, PLAIN, None),
            (BodyType::EightBitMime, IN_BODY, Some(Enhanced(5, 6, 3))),
            (BodyType::EightBitMime, IN_HEADER, Some(Enhanced(5, 6, 3))),
            (BodyType::Binary, PLAIN, Some(Enhanced(5, 6, 1))),
        ];
        for (body, message, expected) in rows {
            let letter = letter(false, body, "a@b.example", &["c@d.example"], message);
            assert_eq!(lacking(&letter, false, false), expected, "{body:?} {message:?}");
            let offered = expected.filter(|code| *code == Enhanced(5, 6, 1));
            assert_eq!(lacking(&letter, true, false), offered, "{body:?} {message:?}, offered");
        }
    }

    #[test]
    fn utf8_is_looked_for_where_it_was_declared() {
        let needed = Some(Enhanced(5, 6, 7));
        let rows: [(&str, &[&str], &[u8], _); 5] = [
            ("a@b.example", &["c@d.example"], PLAIN, None),
            ("jürgen@b.example", &["c@d.example"], PLAIN, needed),
            ("a@b.example", &["c@d.example", "pelé@d.example"], PLAIN, needed),
            ("a@b.example", &["c@d.example"], IN_HEADER, needed),
            // Only 8BITMIME is needed for that, and was not declared.
            ("a@b.example", &["c@d.example"], IN_BODY, None),
        ];
        for (sender, to, message, expected) in rows {
            let letter = letter(true, BodyType::SevenBit, sender, to, message);
            assert_eq!(lacking(&letter, true, false), expected, "{sender} {to:?} {message:?}");
            assert_eq!(lacking(&letter, true, true), None, "{sender} {to:?} {message:?}, offered");
        }
        let mut original = letter(true, BodyType::SevenBit, "a@b.example", &["c@d.example"], PLAIN);
        let envelope = Arc::get_mut(&mut original.envelope).unwrap();
        envelope.recipients[0].original =
            Some(Original { kind: b"utf-8".to_vec(), address: "pelé@d.example".as_bytes().to_vec() });
        assert_eq!(lacking(&original, true, false), None, "ORCPT is passed on in ASCII");
    }

    #[test]
    fn only_these_recipients_count() {
        let both = letter(true, BodyType::SevenBit, "a@b.example", &["c@d.example", "pelé@d.example"], PLAIN);
        assert!(meet(&both, 0..1, &Extensions::default()).is_ok());
        assert!(meet(&both, 1..2, &Extensions::default()).is_err());
    }

    proptest! {
        /// What is ASCII goes everywhere, whatever was declared; what a server offers, it takes.
        #[test]
        fn ascii_goes_everywhere(message in "[ -~\r\n]{0,200}", utf8: bool, eight: bool, other: Vec<u8>) {
            let body = if eight { BodyType::EightBitMime } else { BodyType::SevenBit };
            let ascii = letter(utf8, body, "a@b.example", &["c@d.example"], message.as_bytes());
            prop_assert_eq!(lacking(&ascii, false, false), None);
            let any = letter(utf8, body, "a@b.example", &["c@d.example"], &other);
            prop_assert_eq!(lacking(&any, true, true), None);
            prop_assert!(other.is_ascii() || !eight || lacking(&any, false, true).is_some());
        }
    }
}
