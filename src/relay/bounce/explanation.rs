//! The part of a notice for people: what happened, to whom, what they may do, in that order.
use super::returned::Returned;
use super::words::{self, Letters};
use super::{Action, Facts, Part, Recipient, received, status};
use smtp::reply::Enhanced;
use std::borrow::Cow;

pub(super) fn part(facts: &Facts<'_>, told: &[Recipient<'_>], returned: &Returned<'_>) -> Part<'static> {
    let mut text = String::new();
    paragraph(&format!("This is the mail system at {}.", words::token(facts.host)), &mut text);
    for group in told.chunk_by(|one, next| one.action == next.action) {
        let (arrived, happened) = (received::date(facts.arrived), happened(group[0].action));
        paragraph(&format!("{}, which came here on {arrived}, {happened}:", which(facts)), &mut text);
        group.iter().for_each(|recipient| entry(recipient, &mut text));
        paragraph(&what_next(group[0].action), &mut text);
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
    let id = words::token(facts.id);
    paragraph(&format!("{below} Whoever you ask for help will need the number {id}."), &mut text);
    // The blank line behind the last paragraph is the one before the boundary.
    text.truncate(text.len() - "\r\n".len());
    let kind = if text.is_ascii() { "text/plain; charset=us-ascii" } else { "text/plain; charset=utf-8" };
    Part::new(kind, "Notification", Cow::Owned(text.into_bytes()))
}

/// Names the message that the notice is about, as a sentence begins.
fn which(facts: &Facts<'_>) -> String {
    match (facts.is_to_sender(), facts.sender) {
        (true, _) => "Your message".to_owned(),
        (false, b"") => "A notification".to_owned(),
        (false, sender) => format!("A message from <{}>", words::plain(sender, Letters::Utf8)),
    }
}

fn paragraph(text: &str, out: &mut String) {
    words::fold(text, "", "", out);
    out.push_str("\r\n");
}

fn happened(action: Action) -> &'static str {
    match action {
        Action::Failed => "could not be delivered to",
        Action::Delayed { .. } => "has not been delivered yet to",
        Action::Relayed => "was passed on to a system that does not report deliveries, for",
        Action::Expanded => "was passed on to the members of",
        Action::Delivered => "was delivered to",
    }
}

fn what_next(action: Action) -> Cow<'static, str> {
    match action {
        Action::Failed => "It will not be tried again.".into(),
        Action::Delayed { until } => {
            let until = received::date(until);
            format!("You need not do anything: delivery is retried until {until}. If it fails, you will be notified.")
                .into()
        }
        Action::Relayed => "You will be notified only if it cannot be delivered.".into(),
        Action::Expanded => "You will not be notified about each of them.".into(),
        Action::Delivered => "This does not mean that it has been read.".into(),
    }
}

/// Writes a recipient, the reply, and its meaning.
fn entry(recipient: &Recipient<'_>, out: &mut String) {
    let address = words::plain(recipient.address, Letters::Utf8);
    let written = written_to(recipient).map(|original| format!(" (you wrote to {original})"));
    words::fold(&format!("<{address}>{}", written.unwrap_or_default()), "  ", "    ", out);
    let said = words::plain(recipient.text, Letters::Utf8);
    match (recipient.remote_mta, recipient.code) {
        (Some(remote), Some(code)) => {
            words::fold(&format!("{} said: {code} {said}", words::token(remote)), "    ", "    ", out);
        }
        (None, Some(code)) => words::fold(&format!("The next system said: {code} {said}"), "    ", "    ", out),
        _ if said.is_empty() => {}
        _ => words::fold(&said, "    ", "    ", out),
    }
    let advice = if recipient.action <= Action::Relayed { advice(status::status(recipient)) } else { None };
    if let Some(advice) = advice {
        words::fold(advice, "    ", "    ", out);
    }
    out.push_str("\r\n");
}

/// The address that the sender wrote to, if it was another one.
fn written_to(recipient: &Recipient<'_>) -> Option<String> {
    let original = recipient.original?;
    let at = original.iter().position(|octet| *octet == b';')?;
    let address = status::decoded(&original[at + 1..]);
    let is_other = !address.eq_ignore_ascii_case(recipient.address) && original[..at].eq_ignore_ascii_case(b"rfc822");
    is_other.then(|| words::plain(&address, Letters::Ascii))
}

/// Explains a code to somebody who does not know mail systems (RFC 3463 §3).
fn advice(status: Enhanced) -> Option<&'static str> {
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
            (Enhanced(5, 1, 1), Some("no such address")),
            (Enhanced(5, 2, 2), Some("full")),
            (Enhanced(4, 2, 2), Some("full")),
            (Enhanced(5, 3, 4), Some("too large")),
            (Enhanced(4, 4, 7), Some("reached")),
            (Enhanced(5, 4, 6), Some("mail loop")),
            (Enhanced(5, 7, 1), Some("policy")),
            (Enhanced(5, 0, 0), None),
            (Enhanced(2, 1, 1), None),
        ];
        for (status, expected) in rows {
            let advice = advice(status);
            assert_eq!(advice.is_some(), expected.is_some(), "{status}");
            assert!(advice.unwrap_or_default().contains(expected.unwrap_or_default()), "{status}: {advice:?}");
        }
    }
}
