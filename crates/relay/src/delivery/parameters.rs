use crate::message::Message;
use crate::message::envelope::{DeliveryRefusal, EnvelopeRecipient};
use mailrun_smtp::Extensions;
use mailrun_smtp::command::BodyType;
use mailrun_smtp::dsn;
use mailrun_smtp::reply::EnhancedStatusCode;
use std::fmt::{self, Write};

pub(crate) fn mail_parameters(message: &Message, extensions: &Extensions) -> Result<String, DeliveryRefusal> {
    let envelope = &message.envelope;
    let mut words = String::with_capacity(64);
    let mut say = |word: fmt::Arguments<'_>| {
        let blank = if words.is_empty() { "" } else { " " };
        write!(words, "{blank}{word}").expect("a String takes any text");
    };
    if let Some(limit) = extensions.size {
        let bytes = message.body.len() as u64;
        // Do not try to send a message that exceeds the limit that the server has announced, because the server would
        // refuse it. A limit of 0 means that there is no fixed limit.
        if limit > 0 && bytes > limit {
            return Err(DeliveryRefusal::new(
                552,
                Some(EnhancedStatusCode(5, 3, 4)),
                "the message is larger than the next hop accepts",
                "",
            ));
        }
        say(format_args!("SIZE={bytes}"));
    }
    if envelope.body == BodyType::EightBitMime && extensions.eight_bit_mime {
        say(format_args!("BODY=8BITMIME"));
    }
    if envelope.smtp_utf8 && extensions.smtp_utf8 {
        say(format_args!("SMTPUTF8"));
    }
    if extensions.dsn {
        if let Some(returns) = envelope.returns {
            say(format_args!("RET={}", returns.keyword()));
        }
        if let Some(id) = envelope.envelope_id.as_deref() {
            say(format_args!("ENVID={}", String::from_utf8_lossy(id)));
        }
    }
    Ok(words)
}

/// Returns the DSN parameters NOTIFY and ORCPT for a RCPT command, or an empty text if none is needed. `smtp_utf8` is
/// true if the message's envelope declares SMTPUTF8.
pub(crate) fn recipient_parameters(recipient: &EnvelopeRecipient, smtp_utf8: bool, extensions: &Extensions) -> String {
    if !extensions.dsn || (recipient.notify.is_none() && recipient.original.is_none()) {
        return String::new();
    }
    let notify = recipient.notify.map(|notify| format!("NOTIFY={}", notify.render()));
    let original = recipient.original.as_ref().and_then(|original| {
        let may_be_utf8 = smtp_utf8 && extensions.smtp_utf8;
        let value = dsn::forwarded_original_recipient(&original.kind, &original.address, may_be_utf8)?;
        Some(format!("ORCPT={value}"))
    });
    let words: Vec<String> = notify.into_iter().chain(original).collect();
    words.join(" ")
}
