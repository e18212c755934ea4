//! Any texts of a next hop and any message in a notification: its lines are sound, and its parts and groups as many as there should be.
#![no_main]
#[path = "../../crates/relay/src/dsn/explanation.rs"]
mod explanation;
#[path = "../../crates/relay/src/dsn/facts.rs"]
#[allow(dead_code)] // a part of it is the relay's
mod facts;
#[path = "../../crates/relay/src/dsn/part.rs"]
mod part;
#[path = "../../crates/relay/src/message/received.rs"]
#[allow(dead_code)] // likewise
pub(crate) mod received;
#[path = "../../crates/relay/src/dsn/report.rs"]
#[allow(dead_code)] // likewise
mod report;
#[path = "../../crates/relay/src/dsn/returned.rs"]
mod returned;
#[path = "../../crates/relay/src/dsn/status.rs"]
mod status;
#[path = "../../crates/relay/src/dsn/text.rs"]
mod text;

/// The same place under the name that it has in the program.
pub(crate) mod message {
    pub(crate) use super::received;
}

use base64::Engine;
use facts::{DsnAction, DsnFacts, DsnRecipient};
use jiff::Timestamp;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut texts = data.splitn(6, |octet| *octet == 0xff);
    let mut next = || texts.next().unwrap_or_default();
    let sender = next();
    let address = next();
    let text = next();
    let original = next();
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
    let recipient = DsnRecipient {
        address,
        original: Some(original),
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
    let lines: Vec<&[u8]> = dsn.message.strip_suffix(b"\r\n").unwrap().split(|octet| *octet == b'\n').collect();
    for (at, line) in lines.iter().enumerate() {
        let text = line.strip_suffix(b"\r");
        assert!(text.is_some() || at + 1 == lines.len(), "a bare LF");
        let text = text.unwrap_or(line);
        assert!(text.len() <= 998 && !text.contains(&b'\r') && !text.contains(&0));
    }
    let message = String::from_utf8_lossy(&dsn.message);
    let boundary = message.lines().next_back().and_then(|line| line.strip_suffix("--")).unwrap();
    let delimiter = format!("\r\n{boundary}");
    let parts = if facts.message.is_empty() { 2 } else { 3 };
    assert_eq!(message.matches(&delimiter).count(), parts + 1, "before each part, and at the end");
    let status = message.split(&delimiter).nth(2).unwrap();
    assert_eq!(decoded(status).matches("\r\nAction: ").count(), 2);
    assert!(dsn.smtp_utf8 || dsn.message.is_ascii());
});

/// The lines of a part, which is in base64 where that is shorter than quoted-printable.
fn decoded(part: &str) -> String {
    let Some((head, body)) = part.split_once("\r\n\r\n") else { return part.to_owned() };
    if head.contains("Content-Transfer-Encoding: quoted-printable") {
        // A line of the text may go on in the next line.
        return body.replace("=\r\n", "");
    }
    if !head.contains("Content-Transfer-Encoding: base64") {
        return part.to_owned();
    }
    let bytes = base64::engine::general_purpose::STANDARD.decode(body.replace("\r\n", ""));
    String::from_utf8(bytes.expect("it is base64")).expect("it is UTF-8")
}
