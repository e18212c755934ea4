//! Feeds any bytes to sessions of IMAP and POP3. An IMAP session must report the same events whether the bytes arrive
//! all at once or one at a time, and no session may report a message that exceeds its size limit.
use crate::imap::{ImapSession, Position};
use crate::pop::{Listing, PopSession};
use crate::{Event, MailboxUrl, SessionError, WatchOptions};
use mailrun_sasl::{Credentials, Mechanism, Mechanisms};
use std::sync::Arc;
use std::time::Duration;

/// Current time that the checks pass to every method of a session. It never advances, so that no timeout expires.
const NOW: Duration = Duration::from_secs(1000);

/// Everything that a session did with its input, so that two sessions can be compared.
#[derive(Debug, PartialEq, Eq)]
pub struct Played {
    /// Events that the session reported to its driver, in order.
    pub events: Vec<Event>,
    /// Bytes that the session sent.
    pub sent: String,
    /// Error that ended the session before the end of the input, if there was one.
    pub error: Option<SessionError>,
}

/// Returns options with limits that are so small that test inputs reach them.
pub fn options() -> WatchOptions {
    WatchOptions { messages: 100, message_bytes: 1 << 16, ..WatchOptions::new("X-Mailrun") }
}

/// Returns credentials for every password mechanism except SCRAM. In SCRAM, the server chooses the number of hash
/// iterations. Fuzz input, which acts as the server, could therefore demand any amount of work.
pub fn identity() -> (Credentials, mailrun_sasl::Nonce) {
    let simple = Mechanisms::NONE.with(Mechanism::Plain).with(Mechanism::Login).with(Mechanism::CramMd5);
    (Credentials::new("user", "pencil").by(simple), [7; 18])
}

/// Feeds input to an IMAP session. Returns what the session did, and the position at which the next session would
/// continue.
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

/// Feeds input to a POP3 session. Asks for the deletion of every reported message if `deletes` is set.
pub fn pop(
    options: &Arc<WatchOptions>,
    listing: Option<Listing>,
    deletes: bool,
    chunks: &mut dyn Iterator<Item = &[u8]>,
) -> (Played, Option<Listing>) {
    let mut session = PopSession::new(Arc::clone(options), identity(), listing, false, NOW);
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
                    session.handled(deletes, NOW, &mut out);
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

fn check_url(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Ok(url) = text.parse::<MailboxUrl>() else { return };
    let written = url.to_string();
    assert_eq!(written.parse(), Ok(url), "{written}");
}

/// Passes the bytes of a fuzz target to the URL parser, to IMAP sessions or to POP3 sessions. The first byte selects
/// one of these three and its options. The other bytes are its input.
pub fn check(data: &[u8]) {
    let Some((&choice, input)) = data.split_first() else { return };
    if choice & 16 > 0 {
        return check_url(input);
    }
    let options = WatchOptions { whole: choice & 1 > 0, starts_tls: choice & 2 > 0, ..options() };
    let options = Arc::new(options);
    if choice & 4 > 0 {
        // Pass the input line by line. After each message that a session reports, `pop` must call `handled` before it
        // passes more input.
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
    // The results must not depend on whether the input comes in one piece or byte by byte. STARTTLS is an exception,
    // because the session discards bytes that come in the same piece as the permission to start TLS.
    let whole = imap(&options, position.clone(), &mut std::iter::once(input));
    let cut = imap(&options, position, &mut input.chunks(1));
    if !options.starts_tls {
        assert_eq!(whole.0.events, cut.0.events);
        assert_eq!(whole.1, cut.1);
        assert_eq!(whole.0.error.is_some(), cut.0.error.is_some());
    }
}
