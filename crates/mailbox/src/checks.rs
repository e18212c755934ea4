//! Plays any bytes against sessions of IMAP and POP3, whole and one at a time. Both must report the same,
//! and a session must not remember more than its limits allow.
use crate::imap::{ImapSession, Position};
use crate::pop::{Listing, PopSession};
use crate::{Event, MailboxUrl, SessionError, WatchOptions};
use mailrun_sasl::{Credentials, Mechanism, Mechanisms};
use std::sync::Arc;
use std::time::Duration;

/// Time of the session. The checks need no clock.
const NOW: Duration = Duration::from_secs(1000);

/// The course of a session: its events, its output, and the error with which it ended.
#[derive(Debug, PartialEq, Eq)]
pub struct Played {
    /// Events that the session reported.
    pub events: Vec<Event>,
    /// Bytes that the session sent.
    pub sent: String,
    /// Error that ended the session. `None` if the session could go on.
    pub error: Option<SessionError>,
}

/// Returns options with small limits, so that inputs reach them.
pub fn options() -> WatchOptions {
    WatchOptions { messages: 100, message_bytes: 1 << 16, ..WatchOptions::new("X-Mailrun") }
}

/// Returns credentials for every mechanism with a password except SCRAM, with which the input would
/// choose the amount of work.
pub fn identity() -> (Credentials, mailrun_sasl::Nonce) {
    let simple = Mechanisms::NONE.with(Mechanism::Plain).with(Mechanism::Login).with(Mechanism::CramMd5);
    (Credentials::new("user", "pencil").by(simple), [7; 18])
}

/// Plays input against a session of IMAP. Returns also where the next session would continue.
pub fn imap(
    options: &Arc<WatchOptions>,
    position: Option<Position>,
    chunks: &mut dyn Iterator<Item = &[u8]>,
) -> (Played, Option<Position>) {
    let mut session = ImapSession::new(Arc::clone(options), identity(), "INBOX", position, true, false, NOW);
    let mut played = Played { events: Vec::new(), sent: String::new(), error: None };
    for chunk in chunks {
        let mut out = Vec::new();
        let mut events = Vec::new();
        let mut result = session.receive(chunk, NOW, &mut out, &mut events);
        if result.is_ok() && events.contains(&Event::StartTls) {
            result = session.tls_started(NOW, &mut out, &mut events);
        }
        for event in &events {
            if let Event::Message(message) = event {
                assert!(message.content.len() <= options.response_bytes(), "a message exceeds the limit");
            }
        }
        played.events.append(&mut events);
        played.sent += &String::from_utf8_lossy(&out);
        if let Err(error) = result {
            played.error = Some(error);
            break;
        }
    }
    (played, session.into_position())
}

/// Plays input against a session of POP3. Deletes every message if `deletes` is set.
pub fn pop(
    options: &Arc<WatchOptions>,
    known: Option<Listing>,
    deletes: bool,
    chunks: &mut dyn Iterator<Item = &[u8]>,
) -> (Played, Option<Listing>) {
    let mut session = PopSession::new(Arc::clone(options), identity(), known, false, NOW);
    let mut played = Played { events: Vec::new(), sent: String::new(), error: None };
    for chunk in chunks {
        let mut out = Vec::new();
        let mut events = Vec::new();
        let result = session.receive(chunk, NOW, &mut out, &mut events);
        for event in &events {
            match event {
                Event::StartTls => session.tls_started(NOW, &mut out),
                Event::Message(message) => {
                    assert!(message.content.len() <= options.response_bytes(), "a message exceeds the limit");
                    if deletes {
                        session.delete(message.uid);
                    }
                    session.handled(NOW, &mut out);
                }
                _ => {}
            }
        }
        played.events.append(&mut events);
        played.sent += &String::from_utf8_lossy(&out);
        if let Err(error) = result {
            played.error = Some(error);
            break;
        }
    }
    (played, session.into_listing())
}

/// Checks that a URL is written as it was read, and that it has no password.
fn check_url(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Ok(url) = text.parse::<MailboxUrl>() else { return };
    let written = url.to_string();
    assert_eq!(written.parse(), Ok(url), "{written}");
}

/// Checks any bytes. The first byte selects the protocol and the options.
pub fn check(data: &[u8]) {
    let Some((&choice, input)) = data.split_first() else { return };
    if choice & 16 > 0 {
        return check_url(input);
    }
    let options = WatchOptions { whole: choice & 1 > 0, starts_tls: choice & 2 > 0, ..options() };
    let options = Arc::new(options);
    if choice & 4 > 0 {
        // POP3 has a driver that answers each line, so input is cut at the ends of lines.
        let _ = pop(
            &options,
            Some(Listing::default()),
            choice & 8 > 0,
            &mut input.split_inclusive(|octet| *octet == b'\n'),
        );
        let _ = pop(&options, None, false, &mut input.chunks(1));
        return;
    }
    let position = (choice & 8 > 0).then(|| Position::new(7, 12));
    // Bytes after a permission to start TLS are discarded. How many these are depends on where the
    // input was divided.
    let whole = imap(&options, position.clone(), &mut std::iter::once(input));
    let cut = imap(&options, position, &mut input.chunks(1));
    if !options.starts_tls {
        assert_eq!(whole.0.events, cut.0.events);
        assert_eq!(whole.1, cut.1);
        assert_eq!(whole.0.error.is_some(), cut.0.error.is_some());
    }
}
