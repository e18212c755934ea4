//! Writes the part of a DSN that people read. It says what happened, for which recipients, and what the reader can do,
//! in this order.
use super::facts::{DsnAction, DsnFacts, DsnRecipient};
use super::part::DsnPart;
use super::returned::Returned;
use super::status;
use super::text::{self, Charset};
use crate::message::received;
use mailrun_smtp::reply::EnhancedStatusCode;
use std::borrow::Cow;

pub(crate) fn part(facts: &DsnFacts<'_>, reported: &[DsnRecipient<'_>], returned: &Returned<'_>) -> DsnPart<'static> {
    let mut text = String::new();
    paragraph(&format!("This is the mail system at {}.", text::sanitize_token(facts.host)), &mut text);
    for group in reported.chunk_by(|one, next| one.action == next.action) {
        let arrived = received::date(facts.received_at);
        let happened = describe_action(group[0].action);
        paragraph(&format!("{}, which came here on {arrived}, {happened}:", describe_message(facts)), &mut text);
        group.iter().for_each(|recipient| write_recipient(recipient, &mut text));
        paragraph(&describe_next_step(group[0].action), &mut text);
    }
    let message = if facts.is_to_sender() { "your message" } else { "the message" };
    let below = match returned {
        Returned::Whole(_) => format!("Below are the same in a form for programs, and {message}."),
        Returned::Header(_) => format!("Below are the same in a form for programs, and the header of {message}."),
        Returned::Nothing => {
            let the = if facts.is_to_sender() { "Your" } else { "The" };
            format!(
                "Below is the same in a form for programs. {the} message cannot be returned: this system can no longer \
                 read it from its disk."
            )
        }
    };
    let id = text::sanitize_token(facts.id);
    paragraph(&format!("{below} Whoever you ask for help will need the number {id}."), &mut text);
    // Remove the blank line at the end of the text, because the next MIME boundary adds a line end of its own.
    text.truncate(text.len() - "\r\n".len());
    let kind = if text.is_ascii() { "text/plain; charset=us-ascii" } else { "text/plain; charset=utf-8" };
    DsnPart::new(kind, "Notification", Cow::Owned(text.into_bytes()))
}

/// Returns the first words of a sentence about the original message, for example `Your message`.
fn describe_message(facts: &DsnFacts<'_>) -> String {
    match (facts.is_to_sender(), facts.sender) {
        (true, _) => "Your message".to_owned(),
        (false, b"") => "A notification".to_owned(),
        (false, sender) => format!("A message from <{}>", text::sanitize(sender, Charset::Utf8)),
    }
}

fn paragraph(text: &str, out: &mut String) {
    text::fold(text, "", "", out);
    out.push_str("\r\n");
}

fn describe_action(action: DsnAction) -> &'static str {
    match action {
        DsnAction::Failed => "could not be delivered to",
        DsnAction::Delayed { .. } => "has not been delivered yet to",
        DsnAction::Relayed => "was passed on to a system that does not report deliveries, for",
        DsnAction::Expanded => "was passed on to the members of",
        DsnAction::Delivered => "was delivered to",
    }
}

fn describe_next_step(action: DsnAction) -> Cow<'static, str> {
    match action {
        DsnAction::Failed => "It will not be tried again.".into(),
        DsnAction::Delayed { until } => {
            let until = received::date(until);
            format!("You need not do anything: delivery is retried until {until}. If it fails, you will be notified.")
                .into()
        }
        DsnAction::Relayed => "You will be notified only if it cannot be delivered.".into(),
        DsnAction::Expanded => "You will not be notified about each of them.".into(),
        DsnAction::Delivered => "This does not mean that it has been read.".into(),
    }
}

fn write_recipient(recipient: &DsnRecipient<'_>, out: &mut String) {
    let address = text::sanitize(recipient.address, Charset::Utf8);
    let note = original_address(recipient).map(|original| format!(" (you wrote to {original})"));
    text::fold(&format!("<{address}>{}", note.unwrap_or_default()), "  ", "    ", out);
    let text = text::sanitize(recipient.text, Charset::Utf8);
    match (recipient.remote_mta, recipient.code) {
        (Some(remote), Some(code)) => {
            text::fold(&format!("{} said: {code} {text}", text::sanitize_token(remote)), "    ", "    ", out);
        }
        _ if text.is_empty() => {}
        _ => text::fold(&text, "    ", "    ", out),
    }
    let advice = if recipient.action <= DsnAction::Relayed { advice(status::status(recipient)) } else { None };
    if let Some(advice) = advice {
        text::fold(advice, "    ", "    ", out);
    }
    out.push_str("\r\n");
}

/// Returns the address that the sender used, if it differs from the recipient's address.
fn original_address(recipient: &DsnRecipient<'_>) -> Option<String> {
    let original = recipient.original?;
    let address = status::decoded(&original.address);
    let is_other = !address.eq_ignore_ascii_case(recipient.address) && original.kind.eq_ignore_ascii_case(b"rfc822");
    is_other.then(|| text::sanitize(&address, Charset::Ascii))
}

/// Explains an enhanced status code (RFC 3463 §3) to a person who does not know mail systems.
fn advice(status: EnhancedStatusCode) -> Option<&'static str> {
    let advice = match (status.0, status.1, status.2) {
        (2, ..) => return None,
        (_, 1, 0..=3) => "There is no such address. Please check how it is written.",
        (_, 1, 10) => "That domain accepts no mail. Please check how it is written.",
        (_, 2, 2) => "The mailbox is full. Its owner has to make room.",
        (_, 2, 1) => "The mailbox is not in use at present.",
        (_, 2, 3) | (_, 3, 4) => "The message is too large for this mailbox. Please send a smaller one.",
        (_, 4, 6) => "The message was in a mail loop: a system on its way is configured wrongly.",
        (_, 4, _) => "The mail server of this address could not be reached.",
        (_, 6, 7..=9) => "The address has characters that a system on the way does not support.",
        (_, 7, _) => "The system there rejects this message because of its policy. Please ask its operator.",
        _ => return None,
    };
    Some(advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_put_in_plain_words() {
        let rows = [
            (EnhancedStatusCode(5, 1, 1), Some("no such address")),
            (EnhancedStatusCode(5, 2, 2), Some("full")),
            (EnhancedStatusCode(4, 2, 2), Some("full")),
            (EnhancedStatusCode(5, 3, 4), Some("too large")),
            (EnhancedStatusCode(4, 4, 7), Some("reached")),
            (EnhancedStatusCode(5, 4, 6), Some("mail loop")),
            (EnhancedStatusCode(5, 7, 1), Some("policy")),
            (EnhancedStatusCode(5, 0, 0), None),
            (EnhancedStatusCode(2, 1, 1), None),
        ];
        for (status, expected) in rows {
            let advice = advice(status);
            assert_eq!(advice.is_some(), expected.is_some(), "{status}");
            assert!(advice.unwrap_or_default().contains(expected.unwrap_or_default()), "{status}: {advice:?}");
        }
    }
}
