//! Finds out which extensions a message requires of the next server, and how to send the message to a server without
//! these extensions. For a server without 8BITMIME, parts with 8-bit bytes are encoded (RFC 6152 §3). For a server
//! without SMTPUTF8, recipients that need it are left out (RFC 6531 §3.2). A message that cannot be sent in any form
//! bounces.
use crate::message::Message;
use crate::message::envelope::{DeliveryRefusal, MessageEnvelope};
use mailrun_smtp::command::BodyType;
use mailrun_smtp::reply::EnhancedStatusCode;
use mailrun_smtp::{Domain, Extensions, Path};
use std::sync::Arc;

#[derive(Debug, Default)]
pub(crate) struct DeliveryForm {
    /// The converted message, if the original cannot be sent unchanged.
    pub(crate) converted: Option<Message>,
    /// Numbers of the recipients that are left out because the server does not accept their addresses. At least one
    /// other recipient remains.
    pub(crate) left_out: Vec<u16>,
}

/// Maximum size, in bytes, of a message that a worker converts on its own event loop. Such a conversion delays the
/// worker's sessions by up to about a millisecond. Another thread converts longer messages.
const MAX_INLINE_BYTES: usize = 32 << 10;

/// Returns true if [`check`] may take so long that a worker must not call it.
pub(crate) fn is_long_conversion(message: &Message, extensions: &Extensions) -> bool {
    message.body.len() > MAX_INLINE_BYTES && may_need_conversion(message, extensions)
}

/// Chooses the form in which a server with these extensions gets the message for these recipients. If the message is
/// converted, its header names `host` as the converting host.
///
/// # Errors
/// Fails if there is no such form, or if all recipients would be left out. The refusal tells the sender which extension
/// is missing.
pub(crate) fn check(
    message: &Message,
    recipients: impl Iterator<Item = u16>,
    extensions: &Extensions,
    host: &str,
) -> Result<DeliveryForm, DeliveryRefusal> {
    let left_out = left_out(message, recipients, extensions)?;
    let mut converted = converted(message, extensions, host)?;
    if let Some(envelope) = envelope_for(&message.envelope, extensions) {
        converted.get_or_insert_with(|| message.clone()).envelope = Arc::new(envelope);
    }
    Ok(DeliveryForm { converted, left_out })
}

/// Returns the envelope for a server with these extensions, if it differs from the original. A
/// server without SMTPUTF8 gets A-labels in addresses whose local parts are ASCII. For a server
/// with SMTPUTF8, the envelope declares SMTPUTF8 if an address needs it, because an alias may have
/// added that address.
fn envelope_for(envelope: &MessageEnvelope, extensions: &Extensions) -> Option<MessageEnvelope> {
    let recipients = envelope.recipients.iter().map(|recipient| &recipient.address);
    let mut addresses = recipients.chain([&envelope.sender]).filter(|address| !address.is_ascii()).peekable();
    if addresses.peek().is_none() || envelope.smtp_utf8 && extensions.smtp_utf8 {
        return None;
    }
    let mut envelope_for = envelope.clone();
    if extensions.smtp_utf8 && addresses.any(|address| needs_smtputf8(address)) {
        envelope_for.smtp_utf8 = true;
        return Some(envelope_for);
    }
    let recipients = envelope_for.recipients.iter_mut().map(|recipient| &mut recipient.address);
    for address in recipients.chain([&mut envelope_for.sender]).filter(|address| !needs_smtputf8(address)) {
        let path = Path::checked_before(address);
        if let Some(domain) = path.domain().filter(|domain| !domain.is_ascii()).map(Domain::new) {
            *address = [path.local_part(), b"@", domain.as_bytes()].concat();
        }
    }
    Some(envelope_for)
}

pub(crate) fn smtputf8_missing() -> DeliveryRefusal {
    missing_extension(553, EnhancedStatusCode(5, 6, 7), "the next hop does not offer SMTPUTF8")
}

/// Returns the recipients whose addresses need SMTPUTF8, if the server does not offer it. Only
/// these recipients fail, even if the client has declared SMTPUTF8, because many clients always
/// declare it, although they should not (RFC 6531 §3.2).
fn left_out(
    message: &Message,
    recipients: impl Iterator<Item = u16>,
    extensions: &Extensions,
) -> Result<Vec<u16>, DeliveryRefusal> {
    let envelope = &message.envelope;
    if extensions.smtp_utf8 {
        return Ok(Vec::new());
    }
    if envelope.smtp_utf8 && (needs_smtputf8(&envelope.sender) || !header(&message.body).is_ascii()) {
        return Err(smtputf8_missing());
    }
    let (left_out, others): (Vec<u16>, Vec<u16>) =
        recipients.partition(|number| needs_smtputf8(&envelope.recipients[usize::from(*number)].address));
    if others.is_empty() && !left_out.is_empty() { Err(smtputf8_missing()) } else { Ok(left_out) }
}

/// Returns the message encoded without 8-bit bytes, or `None` if the message is sent unchanged.
fn converted(message: &Message, extensions: &Extensions, host: &str) -> Result<Option<Message>, DeliveryRefusal> {
    if !may_need_conversion(message, extensions) {
        return Ok(None);
    }
    match (mailrun_mime::to_seven_bit(&message.body, host), message.envelope.body) {
        (Ok(converted), _) => Ok(converted.map(|body| Message { body: Arc::from(body), ..message.clone() })),
        // The message cannot be converted, but its client has not declared 8-bit content. Send the message unchanged,
        // as all servers do. The client may not know 8BITMIME, so a bounce about it would not help.
        (Err(_), BodyType::SevenBit) => Ok(None),
        (Err(error), BodyType::EightBitMime) => {
            let text = format!("the next hop does not offer 8BITMIME, and the message cannot be converted: {error}");
            Err(missing_extension(554, EnhancedStatusCode(5, 6, 3), &text))
        }
        // This version offers no BINARYMIME to clients, so another version of mailrun has stored this message.
        (Err(error), BodyType::Binary) => Err(missing_extension(
            554,
            EnhancedStatusCode(5, 6, 1),
            &format!("a binary message cannot be converted: {error}"),
        )),
    }
}

fn may_need_conversion(message: &Message, extensions: &Extensions) -> bool {
    let envelope = &message.envelope;
    // A server with SMTPUTF8 must also accept 8BITMIME (RFC 6531 §3.1), so a message with SMTPUTF8 may contain 8-bit
    // bytes even if the server does not offer 8BITMIME.
    let takes_eight_bits = extensions.eight_bit_mime || (envelope.smtp_utf8 && extensions.smtp_utf8);
    // Most messages that declare 8BITMIME are ASCII and need no conversion. So scan the body for other bytes, but only
    // if the server lacks 8BITMIME.
    envelope.body == BodyType::Binary || !(takes_eight_bits || message.body.is_ascii())
}

fn missing_extension(code: u16, enhanced: EnhancedStatusCode, text: &str) -> DeliveryRefusal {
    DeliveryRefusal::new(code, Some(enhanced), text, "")
}

/// Returns true if an address needs SMTPUTF8, that is, if its local part is not ASCII. A domain can be sent as A-labels
/// instead, and an ORCPT has an ASCII form (RFC 6533 §3).
fn needs_smtputf8(address: &[u8]) -> bool {
    !Path::checked_before(address).local_part().is_ascii()
}

fn header(message: &[u8]) -> &[u8] {
    &message[..memchr::memmem::find(message, b"\r\n\r\n").unwrap_or(message.len())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::envelope::{EnvelopeRecipient, OriginalAddress};
    use proptest::prelude::*;
    use std::sync::Arc;
    use std::time::Duration;

    fn test_message(smtp_utf8: bool, body: BodyType, sender: &str, to: &[&str], content: &[u8]) -> Message {
        let recipient =
            |address: &&str| EnvelopeRecipient { address: address.as_bytes().to_vec(), original: None, notify: None };
        let envelope = MessageEnvelope {
            smtp_utf8,
            body,
            ..MessageEnvelope::local(sender.as_bytes(), to.iter().map(recipient).collect::<Vec<_>>())
        };
        Message { envelope: Arc::new(envelope), body: content.into(), received: Duration::ZERO }
    }

    fn form(message: &Message, eight_bit_mime: bool, smtp_utf8: bool) -> Result<DeliveryForm, DeliveryRefusal> {
        let extensions = Extensions { eight_bit_mime, smtp_utf8, ..Extensions::default() };
        let all = 0..message.envelope.recipients.len() as u16;
        check(message, all, &extensions, "relay.example")
    }

    fn missing_code(message: &Message, eight_bit_mime: bool, smtp_utf8: bool) -> Option<EnhancedStatusCode> {
        form(message, eight_bit_mime, smtp_utf8).err().map(|refusal| refusal.enhanced.unwrap())
    }

    const PLAIN: &[u8] = b"Subject: x\r\n\r\nx\r\n";
    const IN_BODY: &[u8] = b"Subject: x\r\n\r\n\xc3\xa4\r\n";
    const SIGNED: &[u8] = b"DKIM-Signature: v=1\r\n\r\n\xc3\xa4\r\n";
    const IN_HEADER: &[u8] = b"Subject: \xc3\xa4\r\n\r\nx\r\n";

    #[test]
    fn eight_bits_are_converted_where_they_are_not_taken() {
        let as_it_is = Ok(false);
        let converted = Ok(true);
        let refused = |detail| Err(Some(EnhancedStatusCode(5, 6, detail)));
        let rows = [
            (BodyType::SevenBit, PLAIN, as_it_is),
            (BodyType::SevenBit, IN_BODY, converted),
            (BodyType::SevenBit, IN_HEADER, as_it_is),
            (BodyType::SevenBit, SIGNED, as_it_is),
            (BodyType::EightBitMime, PLAIN, as_it_is),
            (BodyType::EightBitMime, IN_BODY, converted),
            (BodyType::EightBitMime, IN_HEADER, refused(3)),
            (BodyType::EightBitMime, SIGNED, refused(3)),
            (BodyType::Binary, PLAIN, as_it_is),
            (BodyType::Binary, IN_BODY, converted),
            (BodyType::Binary, SIGNED, refused(1)),
        ];
        for (body, content, expected) in rows {
            let message = test_message(false, body, "a@b.example", &["c@d.example"], content);
            let requirement = |eight_bit_mime| {
                let form = form(&message, eight_bit_mime, false);
                form.map(|form| form.converted.is_some()).map_err(|refusal| refusal.enhanced)
            };
            assert_eq!(requirement(false), expected, "{body:?} {content:?}");
            let offered = if body == BodyType::Binary { expected } else { as_it_is };
            assert_eq!(requirement(true), offered, "{body:?} {content:?}, offered");
        }
        let eight = test_message(false, BodyType::EightBitMime, "a@b.example", &["c@d.example"], IN_BODY);
        let converted = form(&eight, false, false).unwrap().converted.unwrap();
        assert!(mailrun_mime::is_seven_bit(&converted.body) && converted.envelope == eight.envelope);
        let signed = test_message(false, BodyType::EightBitMime, "a@b.example", &["c@d.example"], SIGNED);
        let missing = form(&signed, false, false).unwrap_err();
        assert!(missing.text.contains("8BITMIME") && missing.text.contains("signed"), "{}", missing.text);
    }

    #[test]
    fn smtputf8_is_checked_only_where_it_was_declared() {
        let needed = Some(EnhancedStatusCode(5, 6, 7));
        let rows: [(&str, &[&str], &[u8], _); 5] = [
            ("a@b.example", &["c@d.example"], PLAIN, None),
            ("jürgen@b.example", &["c@d.example"], PLAIN, needed),
            ("a@b.example", &["pelé@d.example", "josé@d.example"], PLAIN, needed),
            ("a@b.example", &["c@d.example"], IN_HEADER, needed),
            // SMTPUTF8 is needed only for addresses and header fields, but not for bytes above 127 in the body.
            ("a@b.example", &["c@d.example"], IN_BODY, None),
        ];
        for (sender, to, content, expected) in rows {
            let message = test_message(true, BodyType::SevenBit, sender, to, content);
            assert_eq!(missing_code(&message, true, false), expected, "{sender} {to:?} {content:?}");
            assert_eq!(missing_code(&message, true, true), None, "{sender} {to:?} {content:?}, offered");
        }
        let mut original = test_message(true, BodyType::SevenBit, "a@b.example", &["c@d.example"], PLAIN);
        let envelope = Arc::get_mut(&mut original.envelope).unwrap();
        envelope.recipients[0].original =
            Some(Arc::new(OriginalAddress { kind: b"utf-8".to_vec(), address: "pelé@d.example".as_bytes().to_vec() }));
        assert_eq!(missing_code(&original, true, false), None, "ORCPT is passed on in ASCII");
    }

    #[test]
    fn only_recipients_that_need_smtputf8_are_left_out() {
        let to = ["c@d.example", "pelé@d.example", "e@d.example"];
        let all = test_message(true, BodyType::SevenBit, "a@b.example", &to, PLAIN);
        assert_eq!(form(&all, true, false).unwrap().left_out, [1]);
        assert!(form(&all, true, true).unwrap().left_out.is_empty());
        let meets = |numbers: std::ops::Range<u16>| check(&all, numbers, &Extensions::default(), "relay.example");
        assert!(meets(0..1).unwrap().left_out.is_empty());
        assert_eq!(meets(1..2).unwrap_err(), smtputf8_missing());
    }

    #[test]
    fn a_domain_in_utf8_has_a_labels_where_smtputf8_is_not_told() {
        let to = ["c@bücher.example", "\"@ c\"@b.example", "e@BÜCHER.example", "ö@bücher.example"];
        let a_labels = ["c@xn--bcher-kva.example", to[1], "e@xn--bcher-kva.example", to[3]];
        // A message without SMTPUTF8 can still get UTF-8 recipients, because an alias may name them.
        for (declared, offered) in [(true, false), (true, true), (false, true), (false, false)] {
            let message = test_message(declared, BodyType::SevenBit, "a@bücher.example", &to, PLAIN);
            let form = form(&message, true, offered).unwrap();
            assert_eq!(form.left_out, if offered { vec![] } else { vec![3] });
            assert_eq!(form.converted.is_some(), declared != offered || !declared);
            let sent = form.converted.unwrap_or(message).envelope;
            let addresses = sent.recipients.iter().map(|recipient| str::from_utf8(&recipient.address).unwrap());
            assert_eq!(addresses.collect::<Vec<_>>(), if offered { to } else { a_labels });
            let sender = if offered { "a@bücher.example" } else { "a@xn--bcher-kva.example" };
            assert_eq!(sent.sender, sender.as_bytes());
            assert_eq!(sent.smtp_utf8, declared || offered);
        }
        let two = test_message(false, BodyType::SevenBit, "a@b.example", &["c@bücher.example"], PLAIN);
        let form =
            |offered| form(&two, true, offered).unwrap().converted.unwrap().envelope.recipients[0].address.clone();
        assert_eq!(
            (form(true), form(false)),
            (b"c@xn--bcher-kva.example".to_vec(), b"c@xn--bcher-kva.example".to_vec())
        );
    }

    proptest! {
        /// The relay must be able to send an ASCII message to every server, even if the client declared SMTPUTF8 or
        /// 8BITMIME. It must be able to send every message to a server that offers both extensions.
        #[test]
        fn ascii_goes_everywhere(content in "[ -~\r\n]{0,200}", utf8: bool, eight: bool, other: Vec<u8>) {
            let body = if eight { BodyType::EightBitMime } else { BodyType::SevenBit };
            let ascii = test_message(utf8, body, "a@b.example", &["c@d.example"], content.as_bytes());
            prop_assert_eq!(missing_code(&ascii, false, false), None);
            let any = test_message(utf8, body, "a@b.example", &["c@d.example"], &other);
            prop_assert_eq!(missing_code(&any, true, true), None);
            // This message does not declare SMTPUTF8, and the server does not offer 8BITMIME. If the message declares
            // 8BITMIME, is not ASCII and cannot be converted, the relay must refuse it.
            let any = test_message(false, body, "a@b.example", &["c@d.example"], &other);
            let is_stuck = !other.is_ascii() && eight && mailrun_mime::to_seven_bit(&other, "x").is_err();
            prop_assert_eq!(missing_code(&any, false, true).is_some(), is_stuck);
        }
    }
}
