//! The part of a DSN for programs: `message/delivery-status` (RFC 3464 §2), or its UTF-8 form (RFC
//! 6533 §4).
use super::facts::{DsnAction, DsnFacts, DsnRecipient};
use super::part::DsnPart;
use super::text::{self, Charset};
use crate::message::envelope::OriginalAddress;
use crate::message::received;
use mailrun_smtp::address::literal;
use mailrun_smtp::dsn;
use mailrun_smtp::reply::EnhancedStatusCode;
use mailrun_smtp::xtext::Xtext;
use std::borrow::Cow;
use std::net::SocketAddr;

pub(crate) fn part(facts: &DsnFacts<'_>, reported: &[DsnRecipient<'_>], charset: Charset) -> DsnPart<'static> {
    let mut body = message_fields(facts);
    for recipient in reported {
        body.push_str("\r\n");
        body.push_str(&recipient_fields(recipient, charset));
    }
    let kind = match charset {
        Charset::Ascii => "message/delivery-status",
        Charset::Utf8 => "message/global-delivery-status",
    };
    DsnPart::new(kind, "Delivery report", Cow::Owned(body.into_bytes()))
}

/// Writes the per-message fields of a `message/delivery-status` part (RFC 3464 §2.2).
fn message_fields(facts: &DsnFacts<'_>) -> String {
    let mut out = String::new();
    let mut field = |name: &str, value: &str| text::fold(value, &format!("{name}: "), " ", &mut out);
    if let Some(id) = facts.envelope_id {
        field("Original-Envelope-Id", &text::sanitize(&decoded(id), Charset::Ascii));
    }
    field("Reporting-MTA", &format!("dns; {}", text::sanitize_token(facts.host)));
    field("Arrival-Date", &received::date(facts.received_at));
    field("X-Mailrun-Queue-Id", &text::sanitize_token(facts.id));
    out
}

/// Writes the per-recipient fields of a `message/delivery-status` part (RFC 3464 §2.3).
fn recipient_fields(recipient: &DsnRecipient<'_>, charset: Charset) -> String {
    let mut out = String::new();
    let mut field = |name: &str, value: &str| text::fold(value, &format!("{name}: "), " ", &mut out);
    // The DSN must have this field if the client sent ORCPT, and must not have it otherwise (RFC 3461 §6.3).
    if let Some(original) = recipient.original {
        field("Original-Recipient", &original_recipient(original));
    }
    field("Final-Recipient", &final_recipient(recipient.address, charset));
    field("Action", action_word(recipient.action));
    field("Status", &status(recipient).to_string());
    if let Some(remote) = recipient.remote_mta {
        field("Remote-MTA", &remote_mta(remote));
    }
    if let Some(diagnostic) = diagnostic(recipient, charset) {
        field("Diagnostic-Code", &diagnostic);
    }
    if let Some(at) = recipient.last_attempt {
        field("Last-Attempt-Date", &received::date(at));
    }
    if let DsnAction::Delayed { until } = recipient.action {
        field("Will-Retry-Until", &received::date(until));
    }
    out
}

/// Decodes xtext, and returns any other text unchanged.
pub(crate) fn decoded(text: &[u8]) -> Cow<'_, [u8]> {
    Xtext::parse(text).map_or(Cow::Borrowed(text), |xtext| xtext.decode())
}

/// Formats the value of ORCPT with its address decoded (RFC 3461 §6.3). A `utf-8` address has an
/// ASCII encoding of its own, which is valid in both forms of the report (RFC 6533 §3).
fn original_recipient(OriginalAddress { kind, address }: &OriginalAddress) -> String {
    let address = if dsn::is_utf8(kind) { dsn::ascii_form(address) } else { decoded(address) };
    format!("{}; {}", text::sanitize_token(&String::from_utf8_lossy(kind)), text::sanitize(&address, Charset::Ascii))
}

fn final_recipient(address: &[u8], charset: Charset) -> String {
    match charset {
        _ if address.is_ascii() => format!("rfc822; {}", text::sanitize(address, charset)),
        Charset::Utf8 => format!("utf-8; {}", text::sanitize(address, charset)),
        Charset::Ascii => format!("utf-8; {}", text::sanitize(text::ascii_address(address).as_bytes(), charset)),
    }
}

fn action_word(action: DsnAction) -> &'static str {
    match action {
        DsnAction::Failed => "failed",
        DsnAction::Delayed { .. } => "delayed",
        DsnAction::Relayed => "relayed",
        DsnAction::Expanded => "expanded",
        DsnAction::Delivered => "delivered",
    }
}

/// Returns the recipient's enhanced status code if its class fits the action, such as 5 for a failure (RFC 3464
/// §2.3.4). Otherwise returns the general code of the right class, such as 5.0.0, because a next hop may send any code
/// or none.
pub(crate) fn status(recipient: &DsnRecipient<'_>) -> EnhancedStatusCode {
    let class = match recipient.action {
        DsnAction::Failed => 5,
        DsnAction::Delayed { .. } => 4,
        DsnAction::Relayed | DsnAction::Expanded | DsnAction::Delivered => 2,
    };
    recipient.enhanced.filter(|enhanced| enhanced.0 == class).unwrap_or(EnhancedStatusCode(class, 0, 0))
}

/// Formats the next hop as a `mta-name` (RFC 3464 §2.3.5). An IP address is written as an address literal (RFC 5321
/// §4.1.3). A Unix-domain socket has no DNS name, so it gets the type `x-unix-socket` instead of `dns`.
fn remote_mta(remote: &str) -> String {
    if let Some(path) = remote.strip_prefix("unix:") {
        return format!("x-unix-socket; {}", text::sanitize(path.as_bytes(), Charset::Ascii));
    }
    let bare = remote.trim_start_matches('[').trim_end_matches(']');
    let address = bare.parse().or_else(|_| remote.parse().map(|at: SocketAddr| at.ip()));
    match address {
        Ok(address) => format!("dns; {}", literal(address)),
        Err(_) => format!("dns; {}", text::sanitize_token(remote)),
    }
}

/// Returns the value of the field `Diagnostic-Code`, the reason for the outcome (RFC 3464 §2.3.6). A server's reply has
/// the type `smtp`, and this relay's own text has a private type.
fn diagnostic(recipient: &DsnRecipient<'_>, charset: Charset) -> Option<String> {
    let text = text::sanitize(recipient.text, charset);
    match recipient.code {
        Some(code) => Some(format!("smtp; {code} {text}").trim_end().to_owned()),
        None if text.is_empty() => None,
        None => Some(format!("x-mailrun; {text}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_next_hop_is_named_by_its_type() {
        let rows = [
            ("mx.b.example", "dns; mx.b.example"),
            ("127.0.0.1", "dns; [127.0.0.1]"),
            ("127.0.0.1:2526", "dns; [127.0.0.1]"),
            ("[192.0.2.1]", "dns; [192.0.2.1]"),
            ("2001:db8::1", "dns; [IPv6:2001:db8::1]"),
            ("[2001:db8::1]:24", "dns; [IPv6:2001:db8::1]"),
            ("unix:/run/lists.sock", "x-unix-socket; /run/lists.sock"),
            ("mx\r\nAction: x", "dns; mx__Action:_x"),
        ];
        for (remote, expected) in rows {
            assert_eq!(remote_mta(remote), expected, "{remote}");
        }
    }
}
