//! Checks the DSNs about arbitrary messages and replies, for fuzz targets and property tests. Each DSN must consist of
//! valid lines, and must have the right number of MIME parts and report the right number of recipients.
use crate::dsn::facts::{DsnAction, DsnFacts, DsnRecipient};
use crate::dsn::report::{self, Dsn};
use crate::message::envelope::OriginalAddress;
use jiff::Timestamp;
use mailrun_mime::{Decoder, Encoding};

pub fn check(data: &[u8]) {
    let mut texts = data.splitn(6, |octet| *octet == 0xff);
    let mut next = || texts.next().unwrap_or_default();
    let sender = next();
    let address = next();
    let text = next();
    let mut original = next().splitn(2, |octet| *octet == b';').map(<[u8]>::to_vec);
    let id = next();
    let message = next();
    let now = Timestamp::UNIX_EPOCH;
    let facts = DsnFacts {
        id: "3e8",
        host: "relay.example",
        sender,
        addressee: if data.len().is_multiple_of(3) { b"postmaster@relay.example" } else { sender },
        envelope_id: Some(id),
        returns: None,
        smtp_utf8: data.len().is_multiple_of(2),
        received_at: now,
        message,
    };
    let original =
        OriginalAddress { kind: original.next().unwrap_or_default(), address: original.next().unwrap_or_default() };
    let recipient = DsnRecipient {
        address,
        original: Some(&original),
        notify: None,
        action: DsnAction::Failed,
        enhanced: None,
        code: Some(550),
        text,
        remote_mta: std::str::from_utf8(text).ok(),
        last_attempt: None,
    };
    let Some(dsn) = report::compose(&facts, &[recipient, recipient], 1000, now) else {
        assert!(facts.addressee.is_empty());
        return;
    };
    check_report(&dsn, if message.is_empty() { 2 } else { 3 }, 2);
}

/// Panics unless all lines of a DSN are valid, and the DSN has `parts` MIME parts and reports `recipients` recipients.
pub(crate) fn check_report(dsn: &Dsn, parts: usize, recipients: usize) {
    let text = dsn.message.strip_suffix(b"\r\n").expect("the last line ends");
    let lines: Vec<&[u8]> = text.split(|octet| *octet == b'\n').collect();
    for (at, line) in lines.iter().enumerate() {
        let text = line.strip_suffix(b"\r");
        assert!(text.is_some() || at + 1 == lines.len(), "a bare LF");
        let text = text.unwrap_or(line);
        assert!(text.len() <= 998 && !text.contains(&b'\r') && !text.contains(&0), "{}", text.escape_ascii());
    }
    let header = memchr::memmem::find(&dsn.message, b"\r\n\r\n").expect("it has a header");
    assert!(dsn.message[header..].is_ascii() && (dsn.smtp_utf8 || dsn.message.is_ascii()));
    let message = String::from_utf8_lossy(&dsn.message);
    let boundary = message.lines().next_back().and_then(|line| line.strip_suffix("--")).expect("it ends in a boundary");
    let delimiter = format!("\r\n{boundary}");
    assert_eq!(message.matches(&delimiter).count(), parts + 1, "before each part, and at the end");
    let status = message.split(&delimiter).nth(2).unwrap_or_default();
    assert_eq!(decoded(status).matches("\r\nAction: ").count(), recipients);
}

fn decoded(part: &str) -> String {
    let Some((head, body)) = part.split_once("\r\n\r\n") else { return part.to_owned() };
    let named = |name| head.contains(&format!("Content-Transfer-Encoding: {name}"));
    let encoding = match (named("quoted-printable"), named("base64")) {
        (true, _) => Encoding::QuotedPrintable,
        (_, true) => Encoding::Base64,
        _ => return part.to_owned(),
    };
    let mut decoder = Decoder::new(encoding);
    let mut content = Vec::new();
    decoder.decode(body.as_bytes(), &mut content);
    assert!(decoder.is_valid(), "{body}");
    String::from_utf8(content).expect("it is UTF-8")
}
