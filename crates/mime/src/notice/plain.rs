//! Reads the plain-text notifications of Exim, qmail and sendmail.
//!
//! ```text
//! Exim      … The following address(es) failed:           sendmail   ----- The following addresses had permanent fatal errors -----
//!                                                                    <to@example.com>
//!             to@example.com                                             (reason: 550 5.1.1 No such user)
//!               host 127.0.0.1 [127.0.0.1]
//!               SMTP error … RCPT TO:<to@example.com>:    qmail      Hi. This is the qmail-send program at …
//!               550 5.1.1 No such user
//!                                                                    <to@example.com>:
//!           ------ This is a copy of the message, …                  Remote host said: 550 5.1.1 No such user
//! ```
use super::recipient::{NoticeAction, NoticeRecipient, is_reply, mailbox};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Section {
    /// Text that belongs to none of the other sections, such as an introduction, and names no recipients.
    #[default]
    Text,
    /// Exim's list of recipients. Addresses are indented by two columns, and reasons for the failure by more.
    Exim(NoticeAction),
    /// sendmail's list of recipients. Addresses are not indented, and reasons for the failure are indented.
    Sendmail(NoticeAction),
    /// sendmail's transcript of the session with the next hop. It contains the replies that explain the failure.
    Transcript,
    /// qmail's text (QSBMF), in which the paragraph about a recipient begins with the address and a colon.
    Qmail,
    /// Copy of the undelivered message, up to the end of the notification. It is not searched for recipients.
    Returned,
}

impl Section {
    /// Reads a line of this section, without its line end, and adds the recipients that the line names, up to `limit`
    /// in total. Returns the section of the next line, which is another section if this line is a heading.
    pub(super) fn line(self, line: &[u8], recipients: &mut Vec<NoticeRecipient>, limit: usize) -> Self {
        if self == Self::Returned {
            return self;
        }
        if let Some(next) = self.heading(line) {
            return next;
        }
        let text = line.trim_ascii();
        let mut add = |address: &[u8], action| {
            let recipient = NoticeRecipient::to(address, action);
            if recipients.len() < limit && !recipient.address.is_empty() {
                recipients.push(recipient);
            }
        };
        let is_indented = line.starts_with(b" ") || line.starts_with(b"\t");
        match self {
            Self::Exim(_) | Self::Qmail if text.is_empty() => self,
            Self::Exim(action) if line.starts_with(b"  ") && !line[2..].starts_with(b" ") => {
                let end = text.iter().position(|byte| matches!(byte, b' ' | b':')).unwrap_or(text.len());
                add(&text[..end], action);
                self
            }
            Self::Exim(_) if is_indented => {
                explain(recipients.last_mut(), text, b"(generated from ");
                self
            }
            Self::Sendmail(_) if text.is_empty() => Self::Text,
            Self::Sendmail(_) if is_indented => {
                let reason = text.strip_prefix(b"(reason: ").map(|text| text.strip_suffix(b")").unwrap_or(text));
                explain(recipients.last_mut(), reason.unwrap_or(text), b"(expanded from: ");
                self
            }
            Self::Sendmail(action) => {
                let end = text.iter().position(u8::is_ascii_whitespace).unwrap_or(text.len());
                add(&text[..end], action);
                self
            }
            Self::Transcript => {
                let reply = text.strip_prefix(b"<<< ").unwrap_or(text);
                let unexplained = recipients.iter_mut().filter(|recipient| recipient.diagnostic.is_empty());
                unexplained.filter(|_| is_reply(reply)).for_each(|recipient| recipient.explain(reply));
                self
            }
            Self::Qmail => {
                match text.strip_suffix(b":").filter(|text| text.starts_with(b"<") && text.ends_with(b">")) {
                    Some(address) => add(address, NoticeAction::Failed),
                    None => {
                        let reply = text.strip_prefix(b"Remote host said: ").unwrap_or(text);
                        explain(recipients.last_mut(), reply, b"\0");
                    }
                }
                self
            }
            Self::Exim(_) | Self::Text | Self::Returned => Self::Text,
        }
    }

    /// Returns the section that begins with this line, or `None` if the line is no heading.
    fn heading(self, line: &[u8]) -> Option<Self> {
        let text = line.trim_ascii();
        let has = |words: &str| memchr::memmem::find(text, words.as_bytes()).is_some();
        if text.starts_with(b"-----") || self == Self::Qmail && line.starts_with(b"-") {
            return Some(match () {
                () if has("addresses had permanent") => Self::Sendmail(NoticeAction::Failed),
                () if has("addresses had transient") => Self::Sendmail(NoticeAction::Delayed),
                () if has("addresses had successful") => Self::Sendmail(NoticeAction::Other),
                () if has("Transcript of session") => Self::Transcript,
                () => Self::Returned,
            });
        }
        match () {
            () if text.ends_with(b"address(es) failed:") => Some(Self::Exim(NoticeAction::Failed)),
            () if has("not yet been delivered is:") || has("not yet been delivered are:") => {
                Some(Self::Exim(NoticeAction::Delayed))
            }
            () if line.starts_with(b"Hi. This is the ") => Some(Self::Qmail),
            () => None,
        }
    }
}

/// Adds a line to the reason why delivery to a recipient failed. If the line begins with `original`, for example with
/// `(generated from `, stores the rest of the line as the recipient's original address instead.
fn explain(recipient: Option<&mut NoticeRecipient>, line: &[u8], original: &[u8]) {
    let Some(recipient) = recipient else { return };
    match line.strip_prefix(original) {
        Some(rest) => recipient.original = mailbox(rest.strip_suffix(b")").unwrap_or(rest)),
        None => recipient.explain(line),
    }
}
