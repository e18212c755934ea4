use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use mail_builder::MessageBuilder;
use mail_builder::headers::Header;
use mail_builder::headers::content_type::ContentType;
use mail_builder::headers::raw::Raw;
use mail_builder::headers::text::Text;
use std::str::FromStr;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    pub name: String,
    /// Media type of the file, for example `application/pdf`.
    pub media_type: String,
    pub content: Vec<u8>,
}

/// A header field that replaces all fields of the same name in a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderField {
    name: String,
    value: String,
}

impl HeaderField {
    /// Makes a field, and removes white space around its value.
    ///
    /// # Errors
    ///
    /// Fails if the name is not valid for a header field, or if the value contains a line end or
    /// NUL.
    pub fn new(name: &str, value: &str) -> Result<Self, String> {
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':') {
            return Err(format!("{name:?} is not the name of a header field"));
        }
        if value.contains(['\r', '\n', '\0']) {
            return Err(format!("the value of {name} contains a line end"));
        }
        Ok(Self { name: name.to_owned(), value: value.trim().to_owned() })
    }
}

impl FromStr for HeaderField {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once(':').ok_or_else(|| format!("{text:?} must have the form 'Name: value'"))?;
        Self::new(name, value)
    }
}

#[derive(Clone, Debug)]
pub struct MessageParts<'a> {
    /// Sender of the envelope, without angle brackets.
    pub from: &'a str,
    /// Recipients of the envelope, without angle brackets.
    pub to: &'a [String],
    /// Name of this host, which becomes part of the Message-ID.
    pub host: &'a str,
    pub body: &'a str,
    pub attachments: &'a [Attachment],
    pub now: Timestamp,
    /// Unique number of the message, from which its Message-ID is made.
    pub id: u128,
}

/// Text of a message that was sent without `--body`.
pub const DEFAULT_BODY: &str = "This is a test message of mailrun.\n";

/// Composes a message from its parts, in which each line ends in `<CRLF>`.
///
/// # Errors
///
/// Fails if `parts.now` cannot be written as a date, or if the message contains a NUL byte.
pub fn compose(parts: &MessageParts<'_>) -> Result<Vec<u8>> {
    let date = crate::source::date_field(parts.now)?;
    let to: Vec<String> = parts.to.iter().map(|to| format!("<{to}>")).collect();
    let id = format!("<{:032x}@{}>", parts.id, parts.host);
    // Use raw headers, so that the builder writes these fields exactly as they are.
    let builder = MessageBuilder::new()
        .header("Date", Raw::new(date.as_str()))
        .header("From", Raw::new(crate::source::from_field(parts.from, parts.host)))
        .header("To", Raw::new(to.join(",\r\n\t")))
        .header("Subject", Raw::new(format!("test {date}")))
        .header("Message-ID", Raw::new(id))
        .text_body(parts.body);
    let builder = parts.attachments.iter().fold(builder, |builder, attachment| {
        builder.attachment(
            ContentType::new(attachment.media_type.as_str()),
            attachment.name.clone(),
            attachment.content.clone(),
        )
    });
    let text = builder.write_to_vec().context("a message is written to memory")?;
    with_crlf(&text)
}

/// Converts all line ends to `<CRLF>`, and adds one to the last line if it has none.
///
/// # Errors
///
/// Fails if the text contains a NUL byte, which no mail may contain (RFC 5322 §4).
pub fn with_crlf(text: &[u8]) -> Result<Vec<u8>> {
    let mut lines = Vec::with_capacity(text.len() + text.len() / 32 + 2);
    let mut rest = text;
    while let Some(at) = memchr::memchr3(b'\r', b'\n', b'\0', rest) {
        lines.extend_from_slice(&rest[..at]);
        let end = match &rest[at..] {
            [b'\r', b'\n', ..] => 2,
            [b'\0', ..] => bail!("the message has a NUL byte, which mail cannot have"),
            _ => 1,
        };
        lines.extend_from_slice(b"\r\n");
        rest = &rest[at + end..];
    }
    lines.extend_from_slice(rest);
    if !lines.is_empty() && !lines.ends_with(b"\r\n") {
        lines.extend_from_slice(b"\r\n");
    }
    Ok(lines)
}

/// Replaces the first header field of the same name with `field`, and removes further fields of this name. If the
/// message has no such field, adds `field` at the end of the header. Each line of the message must end in `<CRLF>`.
pub fn set_header(message: &[u8], field: &HeaderField) -> Vec<u8> {
    let HeaderField { name, value } = field;
    let value = match value.is_ascii() {
        true => value.clone(),
        // Encode a value that is not ASCII, because otherwise the whole message would need
        // SMTPUTF8.
        false => {
            let mut encoded = Vec::new();
            Text::new(value.as_str()).write_header(&mut encoded, name.len() + 2);
            String::from_utf8_lossy(&encoded).trim_end().to_owned()
        }
    };
    let line = format!("{name}: {value}\r\n");
    let header_end = match message {
        [b'\r', b'\n', ..] => 0,
        _ => memchr::memmem::find(message, b"\r\n\r\n").map_or(message.len(), |at| at + 2),
    };
    let (header, rest) = message.split_at(header_end);
    let mut changed = Vec::with_capacity(message.len() + line.len());
    let mut is_set = false;
    let mut is_replaced = false;
    for old in header.split_inclusive(|byte| *byte == b'\n') {
        if !old.starts_with(b" ") && !old.starts_with(b"\t") {
            let old_name = old.split(|byte| *byte == b':').next().unwrap_or_default();
            is_replaced = old.contains(&b':') && old_name.trim_ascii_end().eq_ignore_ascii_case(name.as_bytes());
        }
        if !is_replaced {
            changed.extend_from_slice(old);
        } else if !std::mem::replace(&mut is_set, true) {
            changed.extend_from_slice(line.as_bytes());
        }
    }
    if !is_set {
        changed.extend_from_slice(line.as_bytes());
    }
    if rest.is_empty() {
        changed.extend_from_slice(b"\r\n");
    }
    changed.extend_from_slice(rest);
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts<'a>(from: &'a str, to: &'a [String], body: &'a str, attachments: &'a [Attachment]) -> MessageParts<'a> {
        MessageParts { from, to, host: "me.example", body, attachments, now: Timestamp::UNIX_EPOCH, id: 7 }
    }

    fn header(message: &[u8]) -> Vec<String> {
        let text = String::from_utf8_lossy(message).into_owned();
        let (header, _) = text.split_once("\r\n\r\n").expect("a header");
        header.replace("\r\n\t", "").split("\r\n").map(str::to_owned).collect()
    }

    #[test]
    fn a_message_has_the_fields_that_mail_must_have() {
        let to = ["ann@a.example".to_owned(), "bob@b.example".to_owned()];
        for (from, field) in
            [("c@c.example", "From: <c@c.example>"), ("", "From: Mail Delivery System <MAILER-DAEMON@me.example>")]
        {
            let message = compose(&parts(from, &to, "hello\n", &[])).unwrap();
            let header = header(&message);
            for expected in [field, "To: <ann@a.example>,<bob@b.example>", "MIME-Version: 1.0"] {
                assert!(header.contains(&expected.to_owned()), "{expected}: {header:?}");
            }
            for name in ["Date", "From", "To", "Subject", "Message-ID"] {
                let count = header.iter().filter(|line| line.starts_with(&format!("{name}: "))).count();
                assert_eq!(count, 1, "{name}: {header:?}");
            }
            assert!(message.ends_with(b"\r\n\r\nhello\r\n"));
        }
    }

    #[test]
    fn an_attachment_is_what_it_was() {
        let content = (0..=255).collect::<Vec<u8>>();
        let attachments =
            [Attachment { name: "a b.bin".to_owned(), media_type: "application/x-test".to_owned(), content }];
        let message = compose(&parts("a@b", &["c@d".to_owned()], "schön\n", &attachments)).unwrap();
        assert!(message.is_ascii() && message.split(|byte| *byte == b'\n').all(|line| line.len() < 999));
        let text = String::from_utf8(message).unwrap();
        for expected in ["multipart/mixed", "application/x-test", "a b.bin", "AAECAwQF", "sch=C3=B6n"] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }

    #[test]
    fn lines_end_in_crlf() {
        for (text, expected) in [
            ("", ""),
            ("a\nb", "a\r\nb\r\n"),
            ("a\r\nb\r\n", "a\r\nb\r\n"),
            ("a\rb\n\n", "a\r\nb\r\n\r\n"),
            (".\n..\n", ".\r\n..\r\n"),
        ] {
            assert_eq!(String::from_utf8(with_crlf(text.as_bytes()).unwrap()).unwrap(), expected, "{text:?}");
        }
        assert!(with_crlf(b"a\0b").is_err());
    }

    #[test]
    fn a_header_field_replaces_all_of_its_name() {
        let rows = [
            ("Subject: x\r\n\r\nbody\r\n", "Subject: new", "Subject: new\r\n\r\nbody\r\n"),
            (
                "A: 1\r\nsubject : x\r\n y\r\nB: 2\r\nSUBJECT: z\r\n\r\n",
                "Subject:new ",
                "A: 1\r\nSubject: new\r\nB: 2\r\n\r\n",
            ),
            ("A: 1\r\n\r\nSubject: body\r\n", "Subject: new", "A: 1\r\nSubject: new\r\n\r\nSubject: body\r\n"),
            ("\r\nbody\r\n", "Subject: new", "Subject: new\r\n\r\nbody\r\n"),
            ("A: 1\r\n", "Subject: new", "A: 1\r\nSubject: new\r\n\r\n"),
            ("Subjects: 1\r\n\r\n", "Subject: ", "Subjects: 1\r\nSubject: \r\n\r\n"),
        ];
        for (message, field, expected) in rows {
            let field = field.parse().unwrap();
            assert_eq!(String::from_utf8(set_header(message.as_bytes(), &field)).unwrap(), expected, "{message:?}");
        }
        for text in ["Subject", ": x", "a b: x", "Subject: x\nBcc: y", "Sub\r: y", "ä: x"] {
            assert!(text.parse::<HeaderField>().is_err(), "{text:?}");
        }
    }
}
