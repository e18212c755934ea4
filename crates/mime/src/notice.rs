//! Reads notifications about mail that a server could not deliver: `multipart/report` (RFC 3464), and
//! the plain text of Exim, qmail and sendmail.
//!
//! ```text
//! Header ─empty line─▶ Text (plain)
//!    └──▶ Gap ─delimiter─▶ PartHeader ─empty line─▶ Report │ Returned ─delimiter─▶ PartHeader …
//! ```
//! The memory for a notification is bounded, however long it is. Lines and fields that are too long are cut, and
//! recipients after the first 1,024 are left out.
mod plain;
mod recipient;

use super::decode::Decoder;
use super::encode::Encoding;
use super::field::{self, MediaType, TransferEncodingKind};
use plain::Section;
use recipient::mailbox;
pub use recipient::{NoticeAction, NoticeRecipient};

const MAX_RECIPIENTS: usize = 1024;
/// Maximum length of a line without its end (RFC 5322 §2.1.1). The rest of a longer line is ignored.
const MAX_LINE_BYTES: usize = 998;
/// Maximum length of a field after its lines have been joined. The rest of a longer field is ignored.
const MAX_FIELD_BYTES: usize = 4 << 10;
/// Maximum depth of nested multiparts. A multipart that is nested more deeply is not divided into its parts.
const MAX_DEPTH: usize = 8;

/// A notification about mail that a server could not deliver, or has not delivered yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notice {
    /// ENVID of the message that the notification is about, or an empty text if the sender sent none.
    pub envelope_id: String,
    /// The field that [`NoticeReader::new`] was told to look for in the returned message, with its folded lines joined.
    /// `None` if the returned message lacks this field.
    pub returned_field: Option<Vec<u8>>,
    /// The recipients that the notification names. There is at least one.
    pub recipients: Vec<NoticeRecipient>,
}

/// Reads a message that may be a notification, in blocks of any size.
#[derive(Clone, Debug)]
pub struct NoticeReader {
    wanted: &'static [u8],
    lines: LineSplitter,
    /// Decodes the current part and splits the result into lines. `None` if the part is not encoded.
    decoded: Option<(Decoder, LineSplitter)>,
    state: State,
    field: JoinedField,
    boundaries: Vec<Vec<u8>>,
    content: PartContent,
    encoding: Option<Encoding>,
    /// Recipient whose group of fields in the report is being read.
    group: NoticeRecipient,
    /// Recipients in Exim's header field X-Failed-Recipients, which is there even if an administrator has changed the
    /// texts of Exim's notifications.
    failed: Vec<NoticeRecipient>,
    returned: JoinedField,
    notice: Notice,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Header,
    Gap,
    PartHeader,
    Report,
    /// A part other than the report, such as the returned message, which is searched for the field `wanted`.
    Other,
    Plain(Section),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum PartContent {
    #[default]
    Other,
    Report,
    Multipart,
}

impl NoticeReader {
    /// Creates a reader that also looks for a header field in the returned message. `wanted` is the field's name with a
    /// colon, such as `X-Mailrun:`.
    pub fn new(wanted: &'static [u8]) -> Self {
        Self {
            wanted,
            lines: LineSplitter::default(),
            decoded: None,
            state: State::Header,
            field: JoinedField::default(),
            boundaries: Vec::new(),
            content: PartContent::Other,
            encoding: None,
            group: NoticeRecipient::default(),
            failed: Vec::new(),
            returned: JoinedField::default(),
            notice: Notice::default(),
        }
    }

    /// Takes the next block of the message, without dot-stuffing.
    pub fn receive(&mut self, block: &[u8]) {
        let mut lines = std::mem::take(&mut self.lines);
        lines.split(block, |line| self.line(line));
        self.lines = lines;
    }

    /// Ends the message, and returns what it says. Returns `None` if the message is not a notification, or names no
    /// recipient.
    pub fn finish(mut self) -> Option<Notice> {
        let rest = std::mem::take(&mut self.lines).rest;
        if !rest.is_empty() {
            self.line(&rest);
        }
        self.end_part();
        let mut notice = self.notice;
        if notice.recipients.is_empty() {
            notice.recipients = self.failed;
        }
        notice.recipients.iter_mut().for_each(NoticeRecipient::complete);
        (!notice.recipients.is_empty()).then_some(notice)
    }

    fn line(&mut self, line: &[u8]) {
        if line.starts_with(b"--") && self.delimiter(line) {
            return;
        }
        match &mut self.decoded {
            None => self.content_line(line),
            Some((decoder, lines)) => {
                let mut text = Vec::new();
                decoder.decode(line, &mut text);
                // `line` has no line end. In quoted-printable, the line end is part of the text, so decode it as well.
                decoder.decode(b"\r\n", &mut text);
                let mut lines = std::mem::take(lines);
                lines.split(&text, |line| self.content_line(line));
                if let Some((_, kept)) = &mut self.decoded {
                    *kept = lines;
                }
            }
        }
    }

    /// Returns true if the line is a delimiter of an open multipart. The next lines then belong to another part.
    fn delimiter(&mut self, line: &[u8]) -> bool {
        let text = line[2..].trim_ascii_end();
        let Some((depth, is_last)) = self.boundaries.iter().enumerate().rev().find_map(|(depth, boundary)| {
            let after = text.strip_prefix(boundary.as_slice())?;
            matches!(after, b"" | b"--").then_some((depth, after == b"--"))
        }) else {
            return false;
        };
        self.end_part();
        self.boundaries.truncate(if is_last { depth } else { depth + 1 });
        self.state = if is_last { State::Gap } else { State::PartHeader };
        (self.content, self.encoding) = (PartContent::Other, None);
        true
    }

    fn end_part(&mut self) {
        if let Some((_, lines)) = self.decoded.take()
            && !lines.rest.is_empty()
        {
            self.content_line(&lines.rest);
        }
        if let Some(field) = self.field.take() {
            self.end_field(&field);
        }
        self.end_group();
        self.end_returned();
    }

    fn content_line(&mut self, line: &[u8]) {
        match &mut self.state {
            State::Header | State::PartHeader if line.is_empty() => self.end_header(),
            State::Report if line.is_empty() => {
                if let Some(field) = self.field.take() {
                    self.end_field(&field);
                }
                self.end_group();
            }
            State::Header | State::PartHeader | State::Report => {
                if let Some(field) = self.field.line(line) {
                    self.end_field(&field);
                }
            }
            State::Plain(section) => {
                *section = section.line(line, &mut self.notice.recipients, MAX_RECIPIENTS);
                self.search(line);
            }
            State::Other => self.search(line),
            State::Gap => {}
        }
    }

    /// Looks for the field `wanted` in the next line of a returned message. If there are several such fields, only the
    /// first one counts.
    fn search(&mut self, line: &[u8]) {
        let begins = self.notice.returned_field.is_none()
            && self.returned.text.is_empty()
            && line.get(..self.wanted.len()).is_some_and(|name| name.eq_ignore_ascii_case(self.wanted));
        if begins || is_continued(line) && !self.returned.text.is_empty() {
            self.returned.line(line);
            if let State::Plain(section) = &mut self.state {
                *section = Section::Returned;
            }
        } else {
            self.end_returned();
        }
    }

    fn end_returned(&mut self) {
        if let Some(field) = self.returned.take() {
            self.notice.returned_field.get_or_insert(field);
        }
    }

    fn end_header(&mut self) {
        if let Some(field) = self.field.take() {
            self.end_field(&field);
        }
        let encoding = self.encoding.take().filter(|_| self.content != PartContent::Multipart);
        self.decoded = encoding.map(|encoding| (Decoder::new(encoding), LineSplitter::default()));
        self.state = match self.content {
            PartContent::Multipart => State::Gap,
            PartContent::Report => State::Report,
            PartContent::Other if self.state == State::Header => State::Plain(Section::Text),
            PartContent::Other => State::Other,
        };
    }

    fn end_field(&mut self, field: &[u8]) {
        let Some(colon) = memchr::memchr(b':', field) else { return };
        let name = field[..colon].trim_ascii().to_ascii_lowercase();
        let value = field[colon + 1..].trim_ascii();
        if self.state == State::Report {
            return self.report_field(&name, value);
        }
        match name.as_slice() {
            b"content-type" => self.content_type(value),
            b"content-transfer-encoding" => {
                self.encoding = match field::transfer_encoding(value).map(|encoding| encoding.kind) {
                    Ok(TransferEncodingKind::Base64) => Some(Encoding::Base64),
                    Ok(TransferEncodingKind::QuotedPrintable) => Some(Encoding::QuotedPrintable),
                    _ => None,
                };
            }
            b"x-failed-recipients" if self.state == State::Header => {
                let addresses = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
                let failed = addresses.filter(|address| !address.is_empty());
                let room = MAX_RECIPIENTS - self.failed.len();
                let failed = failed.map(|address| NoticeRecipient::to(address, NoticeAction::Failed));
                self.failed.extend(failed.take(room));
            }
            _ => {}
        }
    }

    fn content_type(&mut self, value: &[u8]) {
        let end = value.iter().position(|byte| matches!(byte, b';' | b' ' | b'\t' | b'(')).unwrap_or(value.len());
        self.content = match value[..end].to_ascii_lowercase().as_slice() {
            b"message/delivery-status" | b"message/global-delivery-status" => PartContent::Report,
            _ => match field::media_type(value) {
                Ok(MediaType::Multipart { boundary, .. }) if self.boundaries.len() < MAX_DEPTH => {
                    self.boundaries.push(boundary);
                    PartContent::Multipart
                }
                _ => PartContent::Other,
            },
        };
    }

    /// Reads a field about the message or a recipient (RFC 3464 §2.2, §2.3).
    fn report_field(&mut self, name: &[u8], value: &[u8]) {
        // Remove the type before the value, for example `rfc822;` from `rfc822; to@example.com`.
        let untyped = memchr::memchr(b';', value).map_or(value, |at| value[at + 1..].trim_ascii());
        match name {
            b"original-envelope-id" => self.notice.envelope_id = mailbox(value),
            b"original-recipient" => self.group.original = mailbox(&unescaped(untyped)),
            b"final-recipient" => self.group.address = mailbox(&unescaped(untyped)),
            b"action" => {
                self.group.action = match value.to_ascii_lowercase().as_slice() {
                    value if value.starts_with(b"failed") => NoticeAction::Failed,
                    value if value.starts_with(b"delayed") => NoticeAction::Delayed,
                    _ => NoticeAction::Other,
                }
            }
            b"status" => self.group.status = recipient::status(value).unwrap_or_default(),
            b"diagnostic-code" => {
                self.group.diagnostic.clear();
                self.group.explain(untyped);
            }
            _ => {}
        }
    }

    fn end_group(&mut self) {
        let group = std::mem::take(&mut self.group);
        if !group.known_as().is_empty() && self.notice.recipients.len() < MAX_RECIPIENTS {
            self.notice.recipients.push(group);
        }
    }
}

/// Returns an address without the escapes of xtext (RFC 3461 §4) that some servers leave in it. Only
/// the characters that xtext must escape are replaced, because an address may contain `+` itself.
fn unescaped(address: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    let mut rest = address;
    while let Some((first, after)) = rest.split_first() {
        let (byte, after) = match rest {
            [b'+', b'2', b'B', after @ ..] => (b'+', after),
            [b'+', b'3', b'D', after @ ..] => (b'=', after),
            [b'+', b'2', b'0', after @ ..] => (b' ', after),
            _ => (*first, after),
        };
        text.push(byte);
        rest = after;
    }
    text
}

fn is_continued(line: &[u8]) -> bool {
    matches!(line, [b' ' | b'\t', ..])
}

#[derive(Clone, Debug, Default)]
struct JoinedField {
    text: Vec<u8>,
}

impl JoinedField {
    /// Takes the next line. If the line begins another field, returns the previous field, which is now complete.
    fn line(&mut self, line: &[u8]) -> Option<Vec<u8>> {
        if !is_continued(line) || self.text.is_empty() {
            let complete = self.take();
            self.text = line.to_vec();
            return complete;
        }
        let room = MAX_FIELD_BYTES.saturating_sub(self.text.len());
        let line = line.trim_ascii_start();
        self.text.extend(std::iter::once(b' ').chain(line.iter().copied()).take(room));
        None
    }

    fn take(&mut self) -> Option<Vec<u8>> {
        let text = std::mem::take(&mut self.text);
        (!text.is_empty()).then_some(text)
    }
}

/// Divides blocks of any size into lines, and truncates lines that are longer than `MAX_LINE_BYTES`.
#[derive(Clone, Debug, Default)]
struct LineSplitter {
    rest: Vec<u8>,
}

impl LineSplitter {
    fn split(&mut self, block: &[u8], mut take: impl FnMut(&[u8])) {
        let mut block = block;
        while let Some(end) = memchr::memchr(b'\n', block) {
            self.keep(&block[..end]);
            let line = self.rest.strip_suffix(b"\r").unwrap_or(&self.rest);
            take(line);
            self.rest.clear();
            block = &block[end + 1..];
        }
        self.keep(block);
    }

    fn keep(&mut self, part: &[u8]) {
        // The CR of a line end is removed only when the LF arrives. Until then, keep one byte more than the maximum.
        let room = (MAX_LINE_BYTES + 1).saturating_sub(self.rest.len());
        self.rest.extend_from_slice(&part[..part.len().min(room)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TRACE: &str = "X-Mailrun: v1 0123 4567";

    fn read(message: &str) -> Option<Notice> {
        let message = message.replace("\r\n", "\n").replace('\n', "\r\n");
        crate::checks::notice::check(format!("\x04{message}").as_bytes());
        let mut reader = NoticeReader::new(b"X-Mailrun:");
        reader.receive(message.as_bytes());
        reader.finish()
    }

    /// Returns a bounce. `groups` has the report's fields for each recipient, and `returned` is the part with the
    /// returned message.
    fn report(groups: &str, returned: &str) -> String {
        format!(
            "From: MAILER-DAEMON@server.example (Mail Delivery System)\nMIME-Version: 1.0\n\
             Content-Type: multipart/report; report-type=delivery-status;\n\tboundary=\"D1/server.example\"\n\n\
             This is a MIME-encapsulated message.\n\n--D1/server.example\nContent-Description: Notification\n\
             Content-Type: text/plain; charset=us-ascii\n\n<to@example.com>: host 127.0.0.1 said: 550 5.1.1 No\n\n\
             --D1/server.example\nContent-Type: message/delivery-status\n\nReporting-MTA: dns; server.example\n\
             X-Postfix-Queue-ID: D1\nArrival-Date: Sat, 28 Nov 2026 10:00:00 +0000 (UTC)\n{groups}\n\
             --D1/server.example\n{returned}\n--D1/server.example--\n"
        )
    }

    const RETURNED: &str = "Content-Description: Undelivered Message\nContent-Type: message/rfc822\n\nReturn-Path: <a@b>\n\
                            Received: by server.example\nX-Mailrun: v1 0123 4567\nSubject: x\n\nX-Mailrun: of the body\n";

    const POSTFIX: &str = "\nFinal-Recipient: rfc822; new@example.com\nOriginal-Recipient: rfc822;to+2Bx@example.com\n\
                           Action: failed\nStatus: 5.1.1\nRemote-MTA: dns; 127.0.0.1\n\
                           Diagnostic-Code: smtp; 550 5.1.1 <new@example.com>: Recipient\n    address rejected\n\n\
                           Final-Recipient: rfc822; late@example.com\nAction: delayed\nStatus: 4.4.1\n\
                           Diagnostic-Code: X-Postfix; connect: Connection refused\nWill-Retry-Until: Sun\n";

    fn recipient(texts: [&str; 4], action: NoticeAction) -> NoticeRecipient {
        let [original, address, status, diagnostic] = texts.map(str::to_owned);
        NoticeRecipient { original, address, action, status, diagnostic }
    }

    #[test]
    fn a_report_says_what_became_of_each_recipient() {
        let expected = [
            recipient(
                [
                    "to+x@example.com",
                    "new@example.com",
                    "5.1.1",
                    "550 5.1.1 <new@example.com>: Recipient address rejected",
                ],
                NoticeAction::Failed,
            ),
            recipient(["", "late@example.com", "4.4.1", "connect: Connection refused"], NoticeAction::Delayed),
        ];
        let headers = RETURNED.replace("message/rfc822", "text/rfc822-headers");
        let folded = RETURNED.replace("v1 0123 4567", "v1 0123\n\t4567");
        let base64 = "Content-Type: message/global\nContent-Transfer-Encoding: base64\n\n\
                      WC1NYWlscnVuOiB2MSAwMTIzIDQ1NjcNClN1YmplY3Q6IHgNCg==\n";
        let quoted = RETURNED
            .replace("rfc822\n", "global\nContent-Transfer-Encoding: quoted-printable\n")
            .replace("v1 0123 4567", "v1 0=\n123 =34567");
        for returned in [RETURNED, &headers, &folded, base64, &quoted] {
            let notice = read(&report(POSTFIX, returned)).expect(returned);
            assert_eq!(notice.recipients, expected, "{returned}");
            assert_eq!(notice.returned_field.as_deref(), Some(TRACE.as_bytes()), "{returned}");
        }
        // The returned message has lost its `X-Mailrun` field. The reader must still find the envelope id.
        let groups = format!("Original-Envelope-Id: run-7\n{POSTFIX}");
        let notice = read(&report(&groups, "Content-Type: text/rfc822-headers\n\nSubject: x\n")).unwrap();
        assert_eq!((notice.envelope_id.as_str(), notice.returned_field), ("run-7", None));
        // The reader must understand a report that a gateway has wrapped in another multipart to add a footer.
        let wrapped = format!(
            "Content-Type: multipart/mixed; boundary=out\n\n--out\n{}\n--out\n\nA footer.\n--out--\n",
            report(POSTFIX, RETURNED)
        );
        assert_eq!(read(&wrapped).unwrap().recipients, expected);
    }

    const EXIM: &str = "X-Failed-Recipients: to@example.com, b@example.com\nSubject: Mail delivery failed\n\n\
        This message was created automatically by mail delivery software.\n\n\
        A message that you sent could not be delivered to one or more of its\n\
        recipients. This is a permanent error. The following address(es) failed:\n\n\
        \x20 new@example.com\n    (generated from to@example.com)\n    host 127.0.0.1 [127.0.0.1]\n\
        \x20   SMTP error from remote mail server after RCPT TO:<new@example.com>:\n    550 5.1.1 No such user\n\
        \x20 b@example.com\n    retry timeout exceeded\n\n\
        ------ This is a copy of the message, including all the headers. ------\n\n\
        Return-path: <a@b.example>\nX-Mailrun: v1 0123 4567\n\n  no@example.com\n";

    const QMAIL: &str = "From: MAILER-DAEMON@server.example\n\nHi. This is the qmail-send program at server.example.\n\
        I'm afraid I wasn't able to deliver your message to the following addresses.\n\
        This is a permanent error; I've given up. Sorry it didn't work out.\n\n\
        <to@example.com>:\n127.0.0.1 does not like recipient.\nRemote host said: 550 5.1.1 No such user\n\
        Giving up on 127.0.0.1.\n\n<b@example.com>:\nSorry, no mailbox here by that name. (#5.1.1)\n\n\
        --- Below this line is a copy of the message.\n\nReturn-Path: <a@b>\nX-Mailrun: v1 0123 4567\n\n<no@example.com>:\n";

    const SENDMAIL: &str = "Subject: Returned mail\n\nThe original message was received at Sat, 28 Nov 2026\n\n\
        \x20  ----- The following addresses had permanent fatal errors -----\n<to@example.com>\n\
        \x20   (reason: 550 5.1.1 No such user)\nb@example.com\n\n\
        \x20  ----- Transcript of session follows -----\n... while talking to [127.0.0.1]:\n>>> RCPT To:<b@example.com>\n\
        <<< 554 5.7.1 Denied\n550 5.1.1 <b@example.com>... User unknown\n\n\
        \x20  ----- Original message follows -----\n\nReturn-Path: <a@b>\nX-Mailrun: v1 0123 4567\n\n<no@example.com>\n";

    #[test]
    fn plain_notifications_say_the_same() {
        let no_such_user = "550 5.1.1 No such user";
        for (message, expected) in [
            (
                EXIM,
                [
                    ["to@example.com", "new@example.com", "5.1.1", no_such_user],
                    ["", "b@example.com", "", "retry timeout exceeded"],
                ],
            ),
            (
                QMAIL,
                [
                    ["", "to@example.com", "5.1.1", "550 5.1.1 No such user Giving up on 127.0.0.1."],
                    ["", "b@example.com", "", "Sorry, no mailbox here by that name. (#5.1.1)"],
                ],
            ),
            (
                SENDMAIL,
                [["", "to@example.com", "5.1.1", no_such_user], ["", "b@example.com", "5.7.1", "554 5.7.1 Denied"]],
            ),
        ] {
            let notice = read(message).expect(message);
            assert_eq!(notice.recipients, expected.map(|texts| recipient(texts, NoticeAction::Failed)), "{message}");
            assert_eq!(notice.returned_field.as_deref(), Some(TRACE.as_bytes()), "{message}");
        }
        let delayed = EXIM.replace("X-Failed-Recipients: to@example.com, b@example.com\n", "").replace(
            "The following address(es) failed:",
            "The address to which the message has not yet been delivered is:",
        );
        assert_eq!(read(&delayed).unwrap().recipients[0].action, NoticeAction::Delayed);
        let warning = SENDMAIL.replace("permanent fatal", "transient non-fatal");
        assert!(read(&warning).unwrap().recipients.iter().all(|one| one.action == NoticeAction::Delayed));
        // Administrators can change the texts of Exim but not its header field, so read the recipients from the field.
        let translated = EXIM.replace("The following address(es) failed:", "Diese Adressen sind unbekannt:");
        let notice = read(&translated).unwrap();
        let failed: Vec<_> = notice.recipients.iter().map(NoticeRecipient::known_as).collect();
        assert_eq!(failed, ["to@example.com", "b@example.com"]);
        assert_eq!(notice.returned_field.as_deref(), Some(TRACE.as_bytes()));
    }

    #[test]
    fn other_mail_is_no_notification() {
        let out_of_office =
            "Subject: I am away\nAuto-Submitted: auto-replied\n\nBack on Monday.\n\n> X-Mailrun: v1 0 0\n";
        let receipt = report(&POSTFIX.replace("failed", "delivered").replace("delayed", "relayed"), RETURNED);
        assert!(read(&receipt).unwrap().recipients.iter().all(|one| one.action == NoticeAction::Other));
        let no_group = report("", RETURNED);
        for message in ["", "\n", "Subject: x\n", out_of_office, &no_group, "Content-Type: multipart/report\n\nx\n"] {
            assert_eq!(read(message), None, "{message}");
        }
    }

    #[test]
    fn an_endless_notification_takes_little_memory() {
        let group = "\nFinal-Recipient: rfc822; a@b\nAction: failed\nStatus: 5.0.0\n";
        let notice = read(&report(&group.repeat(5_000), RETURNED)).unwrap();
        assert_eq!((notice.recipients.len(), notice.returned_field.is_some()), (MAX_RECIPIENTS, true));
        let long = format!("\nFinal-Recipient: rfc822; a@b\nDiagnostic-Code: smtp; 550 {}\n", "x\n ".repeat(100_000));
        assert!(read(&report(&long, RETURNED)).unwrap().recipients[0].diagnostic.len() <= 510);
        let line = format!("\nFinal-Recipient: rfc822; {}\n", "a".repeat(1_000_000));
        assert!(read(&report(&line, RETURNED)).unwrap().recipients[0].address.len() <= 320);
    }

    proptest! {
        #[test]
        fn any_text_is_read_in_any_blocks(
            block in any::<u8>(),
            pieces in prop::collection::vec(prop_oneof![
                Just("\r\n"), Just("--b"), Just("--b--\r\n"), Just("Content-Type: multipart/report; boundary=b\r\n"),
                Just("Content-Type: message/delivery-status\r\n\r\n"), Just("Final-Recipient: rfc822; a@b\r\n"),
                Just("Content-Transfer-Encoding: base64\r\n"), Just("X-Mailrun: v1"), Just(" \r\n"), Just("<a@b>:\r\n"),
                Just("Hi. This is the x\r\n"), Just("----- addresses had permanent\r\n"), Just("  a@b\r\n"),
                Just("address(es) failed:\r\n"), Just("Action: delayed\r\n"), Just("QUJD"), Just("\n"), Just("é:"),
            ], 0..40)
        ) {
            crate::checks::notice::check(&[&[block], pieces.concat().as_bytes()].concat());
        }
    }
}
