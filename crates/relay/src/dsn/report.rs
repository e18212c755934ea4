//! Composes a DSN: header, boundary and parts (RFC 3461, RFC 3464).
//!
//! ```text
//! multipart/report                          report.rs: decides which recipients it reports
//! ├─ text/plain                            explanation.rs: for people
//! ├─ message/delivery-status               status.rs: for programs
//! └─ message/rfc822 | text/rfc822-headers  returned.rs: the message, or its header
//! ```
//! It does no I/O: times are arguments, and the boundary comes from the queue id. Whatever the next hop's texts were,
//! lines end in CRLF, have at most 998 octets, and contain no bare CR or LF and no NUL. The DSN is ASCII, so that no
//! server on the way back can reject it for its bytes: other text is encoded. Only a non-ASCII address of the sender is
//! written into the header as it is, and needs SMTPUTF8 (RFC 6531).
//!
//! A DSN has the null reverse-path, and `NOTIFY=NEVER` (RFC 3461 §6.1) if the next hop supports NOTIFY, so that nothing
//! ever answers it.
use super::facts::{DsnAction, DsnFacts, DsnRecipient};
use super::part::boundary;
use super::returned::Returned;
use super::text::{self, Charset};
use super::{explanation, status};
use crate::message::received;
use jiff::Timestamp;
use mailrun_smtp::dsn::Notify;
use std::fmt::Write;

/// A DSN, to be sent with the null reverse-path.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Dsn {
    pub(crate) recipient: Vec<u8>,
    /// Set if the DSN needs SMTPUTF8 (RFC 6533), and with it 8BITMIME. Otherwise it is ASCII.
    pub(crate) smtp_utf8: bool,
    /// The message with CRLF, dots not stuffed.
    pub(crate) message: Vec<u8>,
}

/// Reports whether a DSN is due (RFC 3461 §4.1, §5.2). Without NOTIFY, failures and delays are reported.
pub(crate) fn is_due(addressee: &[u8], notify: Option<Notify>, action: DsnAction) -> bool {
    let asked = action.notify_value();
    !addressee.is_empty() && notify.map_or(asked != Notify::SUCCESS, |notify| notify.wants(asked))
}

/// Builds the DSN about these recipients, if one is due for any of them. A message of more than `whole_bytes` is not
/// returned whole.
pub(crate) fn compose(
    facts: &DsnFacts<'_>,
    recipients: &[DsnRecipient<'_>],
    whole_bytes: usize,
    now: Timestamp,
) -> Option<Dsn> {
    let is_reported = |recipient: &&DsnRecipient<'_>| is_due(facts.addressee, recipient.notify, recipient.action);
    let mut reported: Vec<DsnRecipient<'_>> = recipients.iter().filter(is_reported).copied().collect();
    // A stable sort keeps recipients with the same action in the envelope's order.
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

/// Chooses UTF-8 if the sender's mail supports it and something needs it (RFC 6533 §1). The parts are encoded, so
/// servers on the way back need not support it.
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
    // A queue id belongs to one message, which may have several DSNs at different times.
    add("Message-ID", &format!("<notice.{}.{}@{host}>", text::sanitize_token(facts.id), now.as_nanosecond()));
    // RFC 3834 §5: automatic responders must not answer this.
    add("Auto-Submitted", "auto-replied");
    add("MIME-Version", "1.0");
    add("Content-Type", &format!("multipart/report; report-type=delivery-status;\r\n boundary=\"{boundary}\""));
    add("Content-Transfer-Encoding", "7bit");
    header.push_str("\r\nThis is a notification in MIME format.\r\n\r\n");
    header
}
