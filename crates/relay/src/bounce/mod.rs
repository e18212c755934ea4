//! Notifications to senders about their messages, as RFC 3461 asks and RFC 3464 writes them.
//!
//! ```text
//! multipart/report                          mod.rs: decides who receives which notice
//!  ├─ text/plain                            explanation.rs: for people
//!  ├─ message/delivery-status               status.rs: for programs
//!  └─ message/rfc822 | text/rfc822-headers  returned.rs: the message, or its header
//! ```
//! Pure: facts in, a message out; the times are arguments, and the boundary comes from the queue id. Whatever the next
//! hop's texts were, lines end in CRLF, are not longer than 998 octets, and hold no bare CR or LF and no NUL. The
//! notification is ASCII, so that no server on the way back can reject it for its bytes: other text is encoded. Only
//! the address of a sender that is not ASCII is written into the header as it is, and needs SMTPUTF8 (RFC 6531).
//!
//! A notification has the null reverse-path, and `NOTIFY=NEVER` (RFC 3461 §6.1) if the next hop takes NOTIFY: nothing
//! ever answers it.
mod explanation;
mod returned;
mod status;
mod words;

use super::received;
use jiff::Timestamp;
use returned::Returned;
use smtp::dsn::{Notify, Return};
use smtp::reply::EnhancedStatusCode;
use std::borrow::Cow;
use std::fmt::Write;
use words::Charset;

/// Facts about the message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DsnFacts<'a> {
    /// The queue id; of letters and digits.
    pub(crate) id: &'a str,
    /// Name of this relay.
    pub(crate) host: &'a str,
    /// The reverse-path; empty for notifications.
    pub(crate) sender: &'a [u8],
    /// Address that receives the notice: the sender, or somebody in its place. Empty if nobody receives it.
    pub(crate) addressee: &'a [u8],
    /// ENVID as it came: xtext.
    pub(crate) envelope_id: Option<&'a [u8]>,
    /// RET.
    pub(crate) returns: Option<Return>,
    /// Tells whether MAIL had SMTPUTF8.
    pub(crate) smtp_utf8: bool,
    pub(crate) received_at: Timestamp,
    /// The message, CRLF, dots unstuffed; empty if it can no longer be read, and so does not come back.
    pub(crate) message: &'a [u8],
}

impl DsnFacts<'_> {
    /// Reports whether the notice goes to the sender.
    fn is_to_sender(&self) -> bool {
        self.sender == self.addressee
    }
}

/// The outcome for a recipient.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DsnRecipient<'a> {
    pub(crate) address: &'a [u8],
    /// ORCPT as it came: `rfc822;` and xtext.
    pub(crate) original: Option<&'a [u8]>,
    /// NOTIFY.
    pub(crate) notify: Option<Notify>,
    pub(crate) action: DsnAction,
    pub(crate) enhanced: Option<EnhancedStatusCode>,
    /// The code of the reply that `text` is from; `None` if `text` is this relay's own.
    pub(crate) code: Option<u16>,
    /// Text of the reply, any bytes; empty if there was none.
    pub(crate) text: &'a [u8],
    /// The next hop that the reply is from.
    pub(crate) remote_mta: Option<&'a str>,
    pub(crate) last_attempt: Option<Timestamp>,
}

/// Actions of RFC 3464 §2.3.3, in the order in which a person reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DsnAction {
    /// It will not be delivered.
    Failed,
    /// It has not been delivered yet; it is tried until then.
    Delayed { until: Timestamp },
    /// A next hop has it that does not notify (RFC 3461 §5.2.2).
    Relayed,
    /// The message went on to the members of an alias, and there will be no more notices (RFC 3461 §5.2.7).
    Expanded,
    /// It is in the mailbox.
    Delivered,
}

impl DsnAction {
    /// The NOTIFY value by which a sender asks for notices of this action.
    fn notify_value(self) -> Notify {
        match self {
            Self::Failed => Notify::FAILURE,
            Self::Delayed { .. } => Notify::DELAY,
            Self::Relayed | Self::Expanded | Self::Delivered => Notify::SUCCESS,
        }
    }

    fn subject(self, is_to_sender: bool) -> String {
        let whose = if is_to_sender { "your" } else { "a" };
        match self {
            Self::Failed => format!("Undelivered mail: {whose} message could not be delivered"),
            Self::Delayed { .. } => format!("Delayed mail: {whose} message has not been delivered yet"),
            Self::Relayed => format!("Relayed mail: {whose} message was passed on"),
            Self::Expanded => format!("Relayed mail: {whose} message was passed on to several recipients"),
            Self::Delivered => format!("Delivered mail: {whose} message was delivered"),
        }
    }
}

/// A notification, to be sent with the null reverse-path.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Dsn {
    /// Recipient of the notice.
    pub(crate) recipient: Vec<u8>,
    /// Tells whether the notice needs SMTPUTF8 (RFC 6533), and with it 8BITMIME; it is ASCII otherwise.
    pub(crate) smtp_utf8: bool,
    /// The message, CRLF, dots not stuffed.
    pub(crate) message: Vec<u8>,
}

/// Reports whether a notice is due (RFC 3461 §4.1, §5.2). Without NOTIFY, failures and delays are reported.
pub(crate) fn is_due(addressee: &[u8], notify: Option<Notify>, action: DsnAction) -> bool {
    let asked = action.notify_value();
    !addressee.is_empty() && notify.map_or(asked != Notify::SUCCESS, |notify| notify.wants(asked))
}

/// Builds the notification about these recipients, if a notice is due for any of them. A message of more than
/// `whole_bytes` does not come back whole.
pub(crate) fn compose(
    facts: &DsnFacts<'_>,
    recipients: &[DsnRecipient<'_>],
    whole_bytes: usize,
    now: Timestamp,
) -> Option<Dsn> {
    let is_told = |recipient: &&DsnRecipient<'_>| is_due(facts.addressee, recipient.notify, recipient.action);
    let mut told: Vec<DsnRecipient<'_>> = recipients.iter().filter(is_told).copied().collect();
    // Stable: of one action they stay in the order of the envelope.
    told.sort_by_key(|recipient| recipient.action);
    let gravest = told.first()?.action;
    let returned = Returned::choose(facts, gravest, whole_bytes);
    let letters = choose_charset(facts, &told, &returned);
    let mut parts = vec![explanation::part(facts, &told, &returned), status::part(facts, &told, letters)];
    parts.extend(returned.part(letters));
    let boundary = boundary(facts.id, &parts);
    let mut message = header(facts, gravest, &boundary, now).into_bytes();
    parts.iter().for_each(|part| part.write(&boundary, &mut message));
    message.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
    Some(Dsn { recipient: facts.addressee.to_vec(), smtp_utf8: !facts.addressee.is_ascii(), message })
}

/// Chooses UTF-8 if the sender's mail can take it and something needs it (RFC 6533 §1). It is in encoded parts, so that
/// no server on the way back has to support it.
fn choose_charset(facts: &DsnFacts<'_>, told: &[DsnRecipient<'_>], returned: &Returned<'_>) -> Charset {
    let is_needed = || told.iter().any(|told| !told.address.is_ascii()) || !returned.header_is_ascii();
    let utf8 = !facts.addressee.is_ascii() || (facts.smtp_utf8 && is_needed());
    if utf8 { Charset::Utf8 } else { Charset::Ascii }
}

/// A part of the report, as it is written.
#[derive(Debug)]
struct DsnPart<'a> {
    kind: &'static str,
    description: &'static str,
    encoding: &'static str,
    body: Cow<'a, [u8]>,
}

impl<'a> DsnPart<'a> {
    /// Encodes a body that is not 7-bit: this is lawful for text, and for all parts of RFC 6533. Others are 7-bit
    /// anyway.
    fn new(kind: &'static str, description: &'static str, body: Cow<'a, [u8]>) -> Self {
        if mime::is_seven_bit(&body) {
            return Self { kind, description, encoding: "7bit", body };
        }
        let encoding = mime::Encoding::for_text(&body);
        let mut encoded = Vec::new();
        encoding.encode(&body, &mut encoded);
        Self { kind, description, encoding: encoding.word(), body: Cow::Owned(encoded) }
    }

    fn write(&self, boundary: &str, out: &mut Vec<u8>) {
        let Self { kind, description, encoding, .. } = self;
        let header = format!(
            "--{boundary}\r\nContent-Type: {kind}\r\nContent-Description: {description}\r\nContent-Transfer-Encoding: \
             {encoding}\r\n\r\n"
        );
        out.extend_from_slice(header.as_bytes());
        out.extend_from_slice(&self.body);
        // This line end is the boundary's, not the body's (RFC 2046 §5.1.1).
        out.extend_from_slice(b"\r\n");
    }
}

fn header(facts: &DsnFacts<'_>, gravest: DsnAction, boundary: &str, now: Timestamp) -> String {
    let host = words::sanitize_token(facts.host);
    let mut header = String::new();
    let mut add = |name: &str, value: &str| {
        write!(header, "{name}: {value}\r\n").expect("a String takes any text");
    };
    add("From", &format!("Mail Delivery System <MAILER-DAEMON@{host}>"));
    add("To", &format!("<{}>", words::sanitize(facts.addressee, Charset::Utf8)));
    add("Subject", &gravest.subject(facts.is_to_sender()));
    add("Date", &received::date(now));
    // A queue id belongs to one message, and a message has several notices at different times.
    add("Message-ID", &format!("<notice.{}.{}@{host}>", words::sanitize_token(facts.id), now.as_nanosecond()));
    // RFC 3834 §5: nothing that answers by itself answers this.
    add("Auto-Submitted", "auto-replied");
    add("MIME-Version", "1.0");
    add("Content-Type", &format!("multipart/report; report-type=delivery-status;\r\n boundary=\"{boundary}\""));
    add("Content-Transfer-Encoding", "7bit");
    header.push_str("\r\nThis is a notification in MIME format.\r\n\r\n");
    header
}

/// A boundary of the queue id, and a number that the parts do not have behind it. All such boundaries are of one
/// length, so that none begins with another.
fn boundary(id: &str, parts: &[DsnPart<'_>]) -> String {
    const DIGITS: usize = 8;
    let prefix = format!("=_{}_", words::sanitize_token(id));
    let finder = memchr::memmem::Finder::new(&prefix);
    let mut used: Vec<u32> = Vec::new();
    for part in parts {
        let numbers = finder.find_iter(&part.body).filter_map(|at| {
            let digits = part.body.get(at + prefix.len()..at + prefix.len() + DIGITS)?;
            u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
        });
        used.extend(numbers);
    }
    used.sort_unstable();
    used.dedup();
    // The first gap: found in one pass, even in a message whose author has guessed the id.
    let free = used.iter().zip(0_u32..).take_while(|(used, number)| **used == *number).count();
    format!("{prefix}{free:0DIGITS$x}")
}

#[cfg(test)]
mod read_back;
