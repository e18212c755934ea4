//! Composes a DSN from its header, boundary and parts (RFC 3461, RFC 3464).
//!
//! ```text
//! multipart/report                          report.rs: decides which recipients it reports
//! ├─ text/plain                            explanation.rs: for people
//! ├─ message/delivery-status               status.rs: for programs
//! └─ message/rfc822 | text/rfc822-headers  returned.rs: the message, or its header
//! ```
//! This module does no I/O. Times are arguments, and the boundary comes from the queue id, so the same input always
//! gives the same DSN. Whatever a next hop's text contains, lines of the DSN end in CRLF, have at most 998 bytes, and
//! contain no bare CR or LF and no NUL. Non-ASCII text is encoded as ASCII, so that no server on the way back rejects
//! the DSN because of its bytes. The only exception is a non-ASCII address of the DSN's recipient: the header contains
//! it unchanged, and the DSN then needs SMTPUTF8 (RFC 6531).
//!
//! A DSN has an empty sender address and, if the next hop supports NOTIFY, `NOTIFY=NEVER` (RFC 3461 §6.1), so that no
//! server ever sends a DSN about it.
use super::facts::{DsnAction, DsnFacts, DsnRecipient};
use super::part::boundary;
use super::returned::Returned;
use super::text::{self, Charset};
use super::{explanation, status};
use crate::message::received;
use jiff::Timestamp;
use mailrun_smtp::dsn::Notify;
use std::fmt::Write;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Dsn {
    pub(crate) recipient: Vec<u8>,
    /// Set if the DSN must be sent with SMTPUTF8, and so with 8BITMIME (RFC 6533). Otherwise the
    /// DSN is ASCII.
    pub(crate) smtp_utf8: bool,
    /// The DSN as a message with CRLF, without dot-stuffing.
    pub(crate) message: Vec<u8>,
}

/// Returns true if there is an addressee, and the recipient's NOTIFY asks for a DSN about this action (RFC 3461 §4.1,
/// §5.2). Without NOTIFY, failures and delays are reported.
pub(crate) fn is_due(addressee: &[u8], notify: Option<Notify>, action: DsnAction) -> bool {
    let condition = action.notify_value();
    !addressee.is_empty() && notify.map_or(condition != Notify::SUCCESS, |notify| notify.wants(condition))
}

/// Composes the DSN about these recipients, if a DSN is due for any of them. If the message is longer than
/// `whole_bytes`, the DSN returns only its header.
pub(crate) fn compose(
    facts: &DsnFacts<'_>,
    recipients: &[DsnRecipient<'_>],
    whole_bytes: usize,
    now: Timestamp,
) -> Option<Dsn> {
    let is_reported = |recipient: &&DsnRecipient<'_>| is_due(facts.addressee, recipient.notify, recipient.action);
    let mut reported: Vec<DsnRecipient<'_>> = recipients.iter().filter(is_reported).copied().collect();
    // Put failures first, because the reader may have to act on them. The sort is stable, so
    // recipients with the same action stay in the order of the envelope.
    reported.sort_by_key(|recipient| recipient.action);
    let gravest = reported.first()?.action;
    let returned = Returned::choose(facts, gravest, whole_bytes);
    let charset = choose_charset(facts, &reported, &returned);
    let mut parts = vec![explanation::part(facts, &reported, &returned), status::part(facts, &reported, charset)];
    parts.extend(returned.part(charset));
    let boundary = boundary(facts.id, &parts);
    let mut message = header(facts, gravest, &boundary, now).into_bytes();
    parts.iter().for_each(|part| part.write(&boundary, &mut message));
    message.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
    Some(Dsn { recipient: facts.addressee.to_vec(), smtp_utf8: !facts.addressee.is_ascii(), message })
}

/// Chooses UTF-8 if the addressee needs it, or if the message was sent with SMTPUTF8 and its header or a reported
/// address is not ASCII (RFC 6533 §1). UTF-8 in the parts does not require servers with SMTPUTF8 on the way back,
/// because the parts are encoded in ASCII.
fn choose_charset(facts: &DsnFacts<'_>, reported: &[DsnRecipient<'_>], returned: &Returned<'_>) -> Charset {
    let is_needed = || reported.iter().any(|reported| !reported.address.is_ascii()) || !returned.header_is_ascii();
    let utf8 = !facts.addressee.is_ascii() || (facts.smtp_utf8 && is_needed());
    if utf8 { Charset::Utf8 } else { Charset::Ascii }
}

fn header(facts: &DsnFacts<'_>, gravest: DsnAction, boundary: &str, now: Timestamp) -> String {
    let host = text::sanitize_token(facts.host);
    let mut header = String::new();
    let mut add = |name: &str, value: &str| {
        write!(header, "{name}: {value}\r\n").expect("a String takes any text");
    };
    add("From", &format!("Mail Delivery System <MAILER-DAEMON@{host}>"));
    add("To", &format!("<{}>", text::sanitize(facts.addressee, Charset::Utf8)));
    add("Subject", &gravest.subject(facts.is_to_sender()));
    add("Date", &received::date(now));
    // Besides the queue id, the Message-ID contains the time, because several DSNs may be about the same message.
    add("Message-ID", &format!("<notice.{}.{}@{host}>", text::sanitize_token(facts.id), now.as_nanosecond()));
    // Automatic responders must not answer this message (RFC 3834 §5).
    add("Auto-Submitted", "auto-replied");
    add("MIME-Version", "1.0");
    add("Content-Type", &format!("multipart/report; report-type=delivery-status;\r\n boundary=\"{boundary}\""));
    add("Content-Transfer-Encoding", "7bit");
    header.push_str("\r\nThis is a notification in MIME format.\r\n\r\n");
    header
}
