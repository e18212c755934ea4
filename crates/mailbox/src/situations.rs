//! Tests of sessions with scripted servers. Each script comes with the expected events and errors.
use crate::checks::{Played, imap, options, pop};
use crate::imap::Position;
use crate::pop::Listing;
use crate::{Announced, Event, Message, SessionError, Step, WatchOptions};
use std::sync::Arc;
use std::time::Duration;

const GREETING: &str = "* OK [CAPABILITY IMAP4rev1 SASL-IR IDLE UIDPLUS AUTH=PLAIN] ready\r\n";
const LOGGED_IN: &str = "m1 OK [CAPABILITY IMAP4rev1 IDLE UIDPLUS] in\r\n";
const OPENED: &str = "* 3 EXISTS\r\n* OK [UIDVALIDITY 7] v\r\n* OK [UIDNEXT 12] n\r\nm2 OK [READ-ONLY] open\r\n";
const NEWS: &str = "+ idling\r\n* 4 EXISTS\r\nm3 OK idle ended\r\n";
const FETCHED: &str =
    "* 4 FETCH (UID 12 RFC822.SIZE 500 BODY[HEADER.FIELDS (X-Mailrun)] {17}\r\nX-Mailrun: v1\r\n\r\n)\r\n";

fn events(played: &Played) -> String {
    let name = |event: &Event| match event {
        Event::StartTls => "tls".to_owned(),
        Event::Watching { idle } => if *idle { "idle" } else { "poll" }.to_owned(),
        Event::Message(message) => format!("{}:{}", message.uid, message.bytes),
        Event::Deleted(count) => format!("deleted {count}"),
        Event::NotDeleted(error) => format!("not deleted: {error}"),
        Event::NotFetched(error) => format!("not fetched: {error}"),
        Event::Done => "done".to_owned(),
    };
    let error = played.error.as_ref().map(|error| format!("! {error}"));
    played.events.iter().map(name).chain(error).collect::<Vec<_>>().join(" ")
}

/// Feeds `script` to one session in one piece, and to another session byte by byte. Both sessions must do the same,
/// because TCP may divide the server's output anywhere.
fn play_imap(options: WatchOptions, position: Option<Position>, script: &str) -> (Played, Option<Position>) {
    let options = Arc::new(options);
    let whole = imap(&options, position.clone(), &mut std::iter::once(script.as_bytes()));
    let cut = imap(&options, position, &mut script.as_bytes().chunks(1));
    assert_eq!(events(&whole.0), events(&cut.0), "cut at every byte: {script}");
    assert_eq!((&whole.0.sent, &whole.1), (&cut.0.sent, &cut.1), "cut at every byte: {script}");
    whole
}

#[test]
fn a_session_reports_what_is_new() {
    let good = [GREETING, LOGGED_IN, OPENED, NEWS, FETCHED, "m4 OK fetched\r\n+ idling\r\n"].concat();
    let (played, position) = play_imap(options(), None, &good);
    let announced = Announced::At(Duration::from_secs(1000));
    let content = b"X-Mailrun: v1\r\n\r\n".to_vec();
    let message = Message { uid: 12, id: b"12".to_vec(), announced, bytes: 500, content };
    assert_eq!(played.events, [Event::Watching { idle: true }, Event::Message(message)]);
    assert_eq!(played.error, None);
    assert_eq!(position, Some(Position::new(7, 13)));
    assert_eq!(
        played.sent,
        "m1 AUTHENTICATE PLAIN AHVzZXIAcGVuY2ls\r\nm2 SELECT INBOX\r\nm3 IDLE\r\nDONE\r\n\
         m4 UID FETCH 12:* (UID RFC822.SIZE BODY.PEEK[HEADER.FIELDS (X-Mailrun)])\r\nm5 IDLE\r\n"
    );
}

#[test]
fn messages_that_are_already_there_are_reported_if_that_is_asked_for() {
    let existing = WatchOptions { existing: true, ..options() };
    let fetched = FETCHED.replace("* 4 FETCH (UID 12", "* 1 FETCH (UID 4");
    let script = [GREETING, LOGGED_IN, OPENED, &fetched, "m3 OK fetched\r\n"].concat();
    let (played, position) = play_imap(existing.clone(), None, &script);
    assert_eq!(events(&played), "idle 4:500");
    assert!(played.sent.contains("UID FETCH 1:* "), "{}", played.sent);
    assert!(position.is_some(), "the next session goes on from here");
    let rest = ["+OK\r\n1 a\r\n.\r\n", "+OK 1 500\r\n", "+OK\r\nX-Mailrun: v1\r\n\r\n.\r\n"];
    assert!(events(&play_pop(existing, false, false, &rest)).contains("1:500"));
}

#[test]
fn what_servers_say_has_these_results() {
    let opened = [GREETING, LOGGED_IN, OPENED].concat();
    let fetching = [GREETING, LOGGED_IN, OPENED, NEWS].concat();
    for (what, script, expected) in [
        // These responses are unusual but valid, so the session must accept them.
        ("a flag changed", opened.clone() + "+ idling\r\n* 1 FETCH (FLAGS (\\Seen))\r\n", "idle"),
        ("a response of an extension", opened.clone() + "* VANISHED (EARLIER) 1:5\r\n+ idling\r\n", "idle"),
        ("the last message is not new", fetching.clone() + "* 3 FETCH (UID 11 BODY[] {1}\r\nx)\r\nm4 OK done\r\n", "idle"),
        ("a message twice", fetching.clone() + FETCHED + FETCHED + "m4 OK done\r\n", "idle 12:500"),
        ("EXISTS before +", opened.clone() + "* 4 EXISTS\r\n+ idling\r\nm3 OK ended\r\n" + FETCHED, "idle 12:500"),
        ("no content", fetching.clone() + "* 4 FETCH (UID 12 BODY[HEADER.FIELDS (X-Mailrun)] NIL)\r\n", "idle 12:0"),
        (
            "a deletion, and as many as before",
            opened.clone() + "+ idling\r\n* 1 EXPUNGE\r\n* 3 EXISTS\r\nm3 OK ended\r\n* 3 FETCH (UID 12 BODY[] \"x\")\r\n",
            "idle 12:1",
        ),
        (
            "an unknown capability, and LOGIN",
            "* OK hello\r\n* CAPABILITY IMAP4rev1 XYZ\r\nm1 OK done\r\nm2 OK in\r\n* CAPABILITY IMAP4rev1\r\nm3 OK done\r\n\
             * 0 EXISTS\r\n* OK [UIDVALIDITY 1] v\r\n* OK [UIDNEXT 1] n\r\nm4 OK open\r\n"
                .to_owned(),
            "poll",
        ),
        // These servers refuse a step of the session. The error must name the step in parentheses, such as `(login)`.
        ("a full server", "* BYE too many\r\n".to_owned(), "! the server closed the session (greeting): too many"),
        (
            "a wrong password",
            GREETING.to_owned() + "m1 NO [AUTHENTICATIONFAILED] no\r\n",
            "! the server refused (login): no",
        ),
        (
            "no such mailbox",
            [GREETING, LOGGED_IN, "m2 NO no mailbox\r\n"].concat(),
            "! the server refused (opening the mailbox): no mailbox",
        ),
        (
            "no mechanism",
            "* OK [CAPABILITY IMAP4rev1 LOGINDISABLED AUTH=GSSAPI] hello\r\n".to_owned(),
            "! cannot log in: the server offers no mechanism that can be used",
        ),
        ("BYE", opened.clone() + "+ idling\r\n* BYE down\r\n", "idle ! the server closed the session (waiting for mail): down"),
        ("BYE", fetching.clone() + "* BYE down\r\n", "idle ! the server closed the session (fetching): down"),
        ("NO", fetching.clone() + "m4 NO [SERVERBUG] oops\r\n", "idle ! the server refused (fetching): oops"),
        // These servers break the protocol. The error must name the step, such as `(fetching)`, and the fault.
        (
            "a wrong tag",
            fetching.clone() + "m3 OK fetched\r\n",
            "idle ! the server broke the protocol (fetching): a result has the tag \"m3\" instead of \"m4\"",
        ),
        (
            "a result of nothing",
            opened.clone() + "m3 OK idle ended\r\n",
            "idle ! the server broke the protocol (waiting for mail): it ended IDLE by itself",
        ),
        (
            "EXISTS shrinks",
            opened.clone() + "+ idling\r\n* 2 EXISTS\r\n",
            "idle ! the server broke the protocol (waiting for mail): 2 messages exist after 3, and it told of no deletion",
        ),
        (
            "a deletion of nothing",
            opened.clone() + "* 9 EXPUNGE\r\n",
            "idle ! the server broke the protocol (waiting for mail): message 9 of 3 was deleted",
        ),
        (
            "no UIDNEXT",
            [GREETING, LOGGED_IN, "* 3 EXISTS\r\nm2 OK open\r\n"].concat(),
            "! the server broke the protocol (opening the mailbox): it did not tell both UIDNEXT and UIDVALIDITY",
        ),
        (
            "another protocol",
            "220 mail ESMTP\r\n".to_owned(),
            "! the server broke the protocol (greeting): a response cannot be read: \"220 mail ESMTP\"",
        ),
        (
            "LF alone",
            "* OK ready\n".to_owned(),
            "! the server broke the protocol (greeting): a line ends with LF alone: \"* OK ready\"",
        ),
        (
            "a literal of 10 GB",
            fetching.clone() + "* 4 FETCH (UID 12 BODY[] {10000000000}\r\n",
            "idle ! the server broke the protocol (fetching): a response cannot be read: \
             \"* 4 FETCH (UID 12 BODY[] {10000000000}\"",
        ),
        (
            "a + too many",
            opened.clone() + "+ idling\r\n+ idling\r\n",
            "idle ! the server broke the protocol (waiting for mail): it asks to continue where nothing is to continue",
        ),
    ] {
        let (played, _) = play_imap(options(), None, &script);
        assert_eq!(events(&played), expected, "{what}: {script}");
    }
}

#[test]
fn a_broken_connection_loses_and_repeats_nothing() {
    let again = |uid_next: u32, validity: u32| {
        let open =
            format!("* 6 EXISTS\r\n* OK [UIDVALIDITY {validity}] v\r\n* OK [UIDNEXT {uid_next}] n\r\nm2 OK open\r\n");
        [GREETING, LOGGED_IN, &open].concat()
    };
    let fetch = |uids: &[u32]| -> String {
        let line = |uid: &u32| format!("* {} FETCH (UID {uid} RFC822.SIZE 1 BODY[] \"x\")\r\n", uid - 8);
        uids.iter().map(line).collect()
    };
    // The first session reports messages 12 and 14, and then its connection breaks. The next session must report only
    // message 13.
    let first = [GREETING, LOGGED_IN, OPENED, NEWS, &fetch(&[12, 14])].concat();
    let (played, position) = play_imap(options(), None, &first);
    assert_eq!(events(&played), "idle 12:1 14:1");
    let second = again(15, 7) + &fetch(&[12, 13, 14]) + "m3 OK done\r\n";
    let (played, after) = play_imap(options(), position.clone(), &second);
    assert_eq!(events(&played), "idle 13:1");
    assert_eq!(after, Some(Position::new(7, 15)));
    let (played, unchanged) = play_imap(options(), after.clone(), &again(15, 7));
    assert_eq!((events(&played).as_str(), unchanged), ("idle", after), "nothing came meanwhile");
    assert!(played.sent.ends_with("m3 IDLE\r\n"), "{}", played.sent);
    let (played, renumbered) = play_imap(options(), position, &again(15, 8));
    assert!(events(&played).starts_with("! UIDVALIDITY changed from 7 to 8"), "{}", events(&played));
    assert_eq!(renumbered, Some(Position::new(8, 15)), "the next session watches the new mailbox");
}

#[test]
fn a_session_remembers_a_bounded_amount() {
    let endless_line = "* OK ".to_owned() + &"x".repeat(300_000);
    let endless_literal = [GREETING, LOGGED_IN, OPENED, NEWS, "* 4 FETCH (UID 12 BODY[] {4000000000}\r\n"].concat();
    let endless_literal = endless_literal + &"x".repeat(300_000);
    for script in [endless_line, endless_literal] {
        let (played, _) = imap(&Arc::new(options()), None, &mut script.as_bytes().chunks(1000));
        assert!(events(&played).ends_with("a response is longer than 65536 bytes"), "{}", events(&played));
    }
    let many: String = (12..200).map(|uid| format!("* 4 FETCH (UID {uid} BODY[] \"x\")\r\n")).collect();
    let (played, _) = play_imap(options(), None, &[GREETING, LOGGED_IN, OPENED, NEWS, &many].concat());
    assert!(events(&played).ends_with("more than 100 messages came at once"), "{}", events(&played));
}

#[test]
fn what_precedes_tls_is_forgotten() {
    let options = WatchOptions { starts_tls: true, allows_plain_login: false, ..options() };
    let script = "* OK [CAPABILITY IMAP4rev1 STARTTLS AUTH=PLAIN] ready\r\nm1 OK go\r\n* CAPABILITY IMAP4rev1 AUTH=LOGIN\r\nm2 OK done\r\n";
    let (played, _) = imap(&Arc::new(options.clone()), None, &mut std::iter::once(script.as_bytes()));
    assert_eq!(
        (played.sent.as_str(), played.error),
        ("m1 STARTTLS\r\nm2 CAPABILITY\r\n", None),
        "injected input counts for nothing"
    );
    for (greeting, expected) in [
        (
            "* OK [CAPABILITY IMAP4rev1 AUTH=PLAIN] ready\r\n",
            "! the server refused (STARTTLS): the server does not offer STARTTLS",
        ),
        (
            "* PREAUTH [CAPABILITY IMAP4rev1] ready\r\n",
            "! the server broke the protocol (greeting): it has logged the session in",
        ),
    ] {
        let (played, _) = play_imap(options.clone(), None, greeting);
        assert!(events(&played).starts_with(expected), "{}", events(&played));
    }
    let clear = WatchOptions { starts_tls: false, ..options };
    for offered in ["AUTH=PLAIN AUTH=LOGIN", "XYZ"] {
        let (played, _) = play_imap(clear.clone(), None, &format!("* OK [CAPABILITY IMAP4rev1 {offered}] ready\r\n"));
        assert!(events(&played).contains("reveal the password"), "{}", events(&played));
        assert_eq!(played.sent, "", "the password is not sent");
    }
}

#[test]
fn before_a_mailbox_is_open_nothing_arrives() {
    let start = Duration::from_secs(1000);
    let later = Duration::from_secs(1010);
    let position = Some(Position::new(7, 12));
    let identity = crate::checks::identity();
    let mut session =
        crate::imap::ImapSession::new(Arc::new(options()), identity, "INBOX", position, false, false, start);
    let (mut out, mut events) = (Vec::new(), Vec::new());
    let opened = [GREETING, "* 60 EXISTS\r\n", LOGGED_IN, OPENED].concat();
    session.receive(opened.as_bytes(), start, &mut out, &mut events).unwrap();
    let news = [NEWS, FETCHED, "m4 OK fetched\r\n"].concat();
    session.receive(news.as_bytes(), later, &mut out, &mut events).unwrap();
    let Some(Event::Message(message)) = events.last() else { panic!("{events:?}") };
    assert_eq!(message.announced, Announced::At(later), "not when the server spoke of 60 messages");
}

#[test]
fn a_silent_server_is_left_and_one_in_idle_is_asked_now_and_then() {
    let options = Arc::new(options());
    let identity = crate::checks::identity();
    let start = Duration::from_secs(1000);
    let new =
        || crate::imap::ImapSession::new(Arc::clone(&options), identity.clone(), "INBOX", None, false, false, start);
    let (mut out, mut events) = (Vec::new(), Vec::new());
    let mut silent = new();
    assert_eq!(silent.tick(start + Duration::from_secs(59), &mut out, &mut events), Ok(()));
    let error = silent.tick(start + Duration::from_secs(60), &mut out, &mut events).unwrap_err();
    assert_eq!(error.to_string(), "no reply within 60s (greeting)");
    let mut idle = new();
    let script = [GREETING, LOGGED_IN, OPENED, "+ idling\r\n"].concat();
    idle.receive(script.as_bytes(), start, &mut out, &mut events).unwrap();
    assert!(String::from_utf8_lossy(&out).contains("EXAMINE INBOX"), "nothing is changed unless it is asked for");
    out.clear();
    let check = idle.deadline();
    assert_eq!(check, start + Duration::from_secs(5), "a bench waits longer for missing mail");
    idle.tick(check, &mut out, &mut events).unwrap();
    idle.receive(b"m3 OK ended\r\nm4 OK nothing\r\n+ idling\r\n", check, &mut out, &mut events).unwrap();
    assert_eq!(String::from_utf8_lossy(&out), "DONE\r\nm4 NOOP\r\nm5 IDLE\r\n");
    // Cyrus does not always announce the last message during IDLE, so the session also asks for it with NOOP.
    out.clear();
    let check = idle.deadline();
    idle.tick(check, &mut out, &mut events).unwrap();
    idle.receive(b"m5 OK ended\r\n* 4 EXISTS\r\nm6 OK news\r\n", check, &mut out, &mut events).unwrap();
    assert!(out.starts_with(b"DONE\r\nm6 NOOP\r\nm7 UID FETCH 12:*"), "{}", String::from_utf8_lossy(&out));
}

#[test]
fn messages_are_deleted_by_their_uids() {
    let options = Arc::new(options());
    let now = Duration::from_secs(1000);
    let mut session =
        crate::imap::ImapSession::new(options, crate::checks::identity(), "INBOX", None, true, false, now);
    let (mut out, mut events) = (Vec::new(), Vec::new());
    let script = [GREETING, LOGGED_IN, OPENED, NEWS, FETCHED].concat();
    session.receive(script.as_bytes(), now, &mut out, &mut events).unwrap();
    session.delete(12);
    out.clear();
    let script = b"m4 OK done\r\nm5 OK stored\r\n* 4 EXPUNGE\r\nm6 OK gone\r\n+ idling\r\n";
    session.receive(script, now, &mut out, &mut events).unwrap();
    assert_eq!(
        String::from_utf8_lossy(&out),
        "m5 UID STORE 12 +FLAGS.SILENT (\\Deleted)\r\nm6 UID EXPUNGE 12\r\nm7 IDLE\r\n"
    );
    assert_eq!(events.last(), Some(&Event::Deleted(1)));
    // To delete a message, the session must end IDLE at once. If it waited until new mail ends IDLE, it would never
    // delete the last message of a run.
    out.clear();
    let more = "* 4 EXISTS\r\nm7 OK ended\r\n* 4 FETCH (UID 13 BODY[] \"x\")\r\nm8 OK done\r\n+ idling\r\n";
    session.receive(more.as_bytes(), now, &mut out, &mut events).unwrap();
    session.delete(13);
    assert!(session.deadline() <= now, "it does not wait for mail");
    session.tick(now, &mut out, &mut events).unwrap();
    session.receive(b"m9 OK ended\r\nm10 OK stored\r\nm11 OK gone\r\n", now, &mut out, &mut events).unwrap();
    let sent = String::from_utf8_lossy(&out);
    assert!(
        sent.ends_with("DONE\r\nm10 UID STORE 13 +FLAGS.SILENT (\\Deleted)\r\nm11 UID EXPUNGE 13\r\nm12 IDLE\r\n"),
        "{sent}"
    );
    assert_eq!(events.last(), Some(&Event::Deleted(1)));
}

#[test]
fn a_deletion_that_fails_is_tried_again() {
    let options = Arc::new(options());
    let start = Duration::from_secs(1000);
    let new = |position| {
        let identity = crate::checks::identity();
        crate::imap::ImapSession::new(Arc::clone(&options), identity, "INBOX", position, true, false, start)
    };
    let (mut out, mut events) = (Vec::new(), Vec::new());
    let mut session = new(None);
    session
        .receive([GREETING, LOGGED_IN, OPENED, NEWS, FETCHED].concat().as_bytes(), start, &mut out, &mut events)
        .unwrap();
    session.delete(12);
    out.clear();
    let refused = b"m4 OK done\r\nm5 OK stored\r\nm6 NO [INUSE] locked\r\n+ idling\r\n";
    session.receive(refused, start, &mut out, &mut events).unwrap();
    let refusal = SessionError::Refused { step: Step::Delete, text: "locked".to_owned() };
    assert_eq!(events.last(), Some(&Event::NotDeleted(refusal)), "the session goes on");
    assert!(out.ends_with(b"m6 UID EXPUNGE 12\r\nm7 IDLE\r\n"), "{}", String::from_utf8_lossy(&out));
    // The session retries the deletion a second later, and watches for mail meanwhile.
    let retry = session.deadline();
    assert_eq!(retry, start + Duration::from_secs(1));
    out.clear();
    session.tick(retry, &mut out, &mut events).unwrap();
    session.receive(b"m7 OK ended\r\n", retry, &mut out, &mut events).unwrap();
    assert_eq!(String::from_utf8_lossy(&out), "DONE\r\nm8 UID STORE 12 +FLAGS.SILENT (\\Deleted)\r\n");
    // If the connection breaks before the server has deleted the message, the next session must delete it.
    let mut next = new(session.into_position());
    let opened = OPENED.replace("UIDNEXT 12", "UIDNEXT 13");
    out.clear();
    let script =
        [GREETING, LOGGED_IN, &opened, "+ idling\r\nm3 OK ended\r\nm4 OK stored\r\nm5 OK gone\r\n+ idling\r\n"];
    next.receive(script.concat().as_bytes(), start, &mut out, &mut events).unwrap();
    assert!(
        out.ends_with(b"m4 UID STORE 12 +FLAGS.SILENT (\\Deleted)\r\nm5 UID EXPUNGE 12\r\nm6 IDLE\r\n"),
        "{}",
        String::from_utf8_lossy(&out)
    );
    assert_eq!(events.last(), Some(&Event::Deleted(1)));
    assert_eq!(next.into_position(), Some(Position::new(7, 13)), "nothing is left to delete");
    // Without UIDPLUS (RFC 4315), a session cannot expunge a single message, so it only sets the flag \Deleted.
    let plain = |text: &str| text.replace(" UIDPLUS", "");
    let mut marking = new(None);
    let script = [&plain(GREETING), &plain(LOGGED_IN), OPENED, NEWS, FETCHED].concat();
    marking.receive(script.as_bytes(), start, &mut out, &mut events).unwrap();
    marking.delete(12);
    out.clear();
    marking.receive(b"m4 OK done\r\nm5 OK stored\r\n+ idling\r\n", start, &mut out, &mut events).unwrap();
    assert!(out.ends_with(b"(\\Deleted)\r\nm6 IDLE\r\n"), "{}", String::from_utf8_lossy(&out));
}

const POP: &[&str] = &["+OK hello\r\n", "+OK\r\nSASL PLAIN\r\nUIDL\r\nTOP\r\n.\r\n", "+OK in\r\n"];

fn play_pop(options: WatchOptions, known: bool, deletes: bool, rest: &[&str]) -> Played {
    play_pop_with(options, known.then(Listing::default), deletes, rest).0
}

/// Runs a POP3 session with the server's usual replies up to the login and then the replies in `rest`. `listing` comes
/// from the session before, and is `None` for a first session.
fn play_pop_with(
    options: WatchOptions,
    listing: Option<Listing>,
    deletes: bool,
    rest: &[&str],
) -> (Played, Option<Listing>) {
    let options = Arc::new(options);
    let script: Vec<&[u8]> = POP.iter().chain(rest).map(|text| text.as_bytes()).collect();
    let whole = pop(&options, listing.clone(), deletes, &mut script.iter().copied());
    let cut = pop(&options, listing, deletes, &mut script.iter().flat_map(|text| text.chunks(1)));
    assert_eq!(whole, cut, "cut at every byte");
    whole
}

#[test]
fn pop_sessions_report_what_is_new_and_end() {
    let list = "+OK\r\n1 a\r\n2 b\r\n.\r\n";
    let fetch = ["+OK 1 500\r\n", "+OK\r\nX-Mailrun: v1\r\n..dot\r\n\r\n.\r\n"];
    let played = play_pop(options(), false, false, &[list, "+OK bye\r\n"]);
    assert_eq!(events(&played), "poll done", "what was there before is skipped");
    let rest = [list, fetch[0], fetch[1], "-ERR no such message\r\n", "+OK bye\r\n"];
    let (played, listing) = play_pop_with(options(), Some(Listing::default()), false, &rest);
    assert_eq!(events(&played), "poll 1:500 done", "the second may have been deleted meanwhile");
    let (next, _) = play_pop_with(options(), listing.clone(), false, &["+OK\r\n1 a\r\n.\r\n", "+OK bye\r\n"]);
    assert_eq!(events(&next), "poll done", "the second was deleted meanwhile");
    let rest = [list, "+OK 2 600\r\n", fetch[1], "+OK bye\r\n"];
    let (next, listing) = play_pop_with(options(), listing, false, &rest);
    let refusal = "not fetched: the server refused (fetching): no such message";
    assert_eq!(events(&next), format!("poll {refusal} 2:600 done"), "the second is there, but was refused");
    let (last, _) = play_pop_with(options(), listing, false, &[list, "+OK bye\r\n"]);
    assert_eq!(events(&last), "poll done", "a refusal is reported once");
    let Event::Message(message) = &played.events[1] else { panic!("{:?}", played.events) };
    assert_eq!(message.content, b"X-Mailrun: v1\r\n.dot\r\n\r\n");
    assert_eq!(played.sent, "CAPA\r\nAUTH PLAIN AHVzZXIAcGVuY2ls\r\nUIDL\r\nLIST 1\r\nTOP 1 0\r\nLIST 2\r\nQUIT\r\n");
    let rest = ["+OK\r\n1 a\r\n.\r\n", fetch[0], fetch[1], "+OK deleted\r\n", "+OK bye\r\n"];
    let played = play_pop(WatchOptions { whole: true, ..options() }, true, true, &rest);
    assert_eq!(events(&played), "poll 1:500 deleted 1 done");
    assert!(played.sent.ends_with("LIST 1\r\nRETR 1\r\nDELE 1\r\nQUIT\r\n"), "{}", played.sent);
}

#[test]
fn a_deletion_that_fails_is_tried_again_by_the_next_session_of_pop() {
    let one = "+OK\r\n1 a\r\n.\r\n";
    let both = "+OK\r\n1 a\r\n2 b\r\n.\r\n";
    let fetch = ["+OK 1 500\r\n", "+OK\r\nX-Mailrun: v1\r\n\r\n.\r\n"];
    let play = |listing, rest: &[&str]| {
        let (played, listing) = play_pop_with(options(), listing, true, rest);
        let sent = played.sent.split_once("UIDL\r\n").map(|(_, sent)| sent.replace("\r\n", " "));
        (events(&played), sent.unwrap_or_default(), listing)
    };
    let known = Some(Listing::default());
    // The answer to QUIT is lost, so it is unknown whether the server deleted the message. If the next session still
    // finds the message, the session must delete the message. Otherwise, it must report the message as deleted.
    let (played, _, listing) = play(known.clone(), &[one, fetch[0], fetch[1], "+OK marked\r\n"]);
    assert_eq!(played, "poll 1:500");
    let (played, sent, after) = play(listing.clone(), &[one, "+OK marked\r\n", "+OK bye\r\n"]);
    assert_eq!((played.as_str(), sent.as_str()), ("poll deleted 1 done", "DELE 1 QUIT "));
    let (played, sent, _) = play(after, &["+OK\r\n.\r\n", "+OK bye\r\n"]);
    assert_eq!((played.as_str(), sent.as_str()), ("poll done", "QUIT "), "nothing is left to delete");
    let (played, sent, _) = play(listing, &["+OK\r\n.\r\n", "+OK bye\r\n"]);
    assert_eq!((played.as_str(), sent.as_str()), ("poll deleted 1 done", "QUIT "));
    // Even if the server refuses to delete message 1, the session must send QUIT, so that message 2 is deleted.
    let rest = [both, fetch[0], fetch[1], "-ERR locked\r\n", fetch[0], fetch[1], "+OK marked\r\n", "+OK bye\r\n"];
    let (played, sent, listing) = play(known, &rest);
    assert_eq!(played, "poll 1:500 not deleted: the server refused (deleting): locked 2:500 deleted 1 done");
    assert_eq!(sent, "LIST 1 TOP 1 0 DELE 1 LIST 2 TOP 2 0 DELE 2 QUIT ");
    let (played, sent, _) = play(listing, &[one, "+OK marked\r\n", "+OK bye\r\n"]);
    assert_eq!((played.as_str(), sent.as_str()), ("poll deleted 1 done", "DELE 1 QUIT "));
}

#[test]
fn a_server_of_pop_without_top_is_refused_unless_whole_messages_are_fetched() {
    let play = |whole, capabilities| {
        let options = Arc::new(WatchOptions { whole, ..options() });
        let script = ["+OK hello\r\n", capabilities, "+OK\r\n", "+OK\r\n", "+OK\r\n.\r\n", "+OK bye\r\n"];
        events(&pop(&options, None, false, &mut script.into_iter().map(str::as_bytes)).0)
    };
    let without = "+OK\r\nUSER\r\nUIDL\r\n.\r\n";
    let error = play(false, without);
    assert!(error.starts_with("! the server refused (capabilities): the server does not offer TOP"), "{error}");
    assert!(error.contains("--whole"), "{error}");
    for (whole, capabilities) in [(true, without), (false, "+OK\r\nUSER\r\nTOP\r\n.\r\n"), (false, "-ERR what\r\n")] {
        assert_eq!(play(whole, capabilities), "poll done", "{capabilities}");
    }
}

#[test]
fn servers_of_pop_are_bounded_and_may_refuse() {
    let long_list = (1..200).map(|number| format!("{number} id{number}\r\n")).collect::<String>();
    let long_list = format!("+OK\r\n{long_list}.\r\n");
    let long_line = format!("+OK {}", "x".repeat(70_000));
    let long_message = format!("+OK\r\n{}", format!("{}\r\n", "x".repeat(60)).repeat(2000));
    let new = "+OK\r\n1 a\r\n.\r\n";
    for (rest, expected) in [
        (vec!["-ERR locked\r\n"], "! the server refused (opening the mailbox): locked"),
        (vec!["* OK\r\n"], "! the server broke the protocol (opening the mailbox): \"* OK\" is neither +OK nor -ERR"),
        (vec!["+OK\r\nx\r\n"], "its list is no number with an identifier"),
        (vec![long_list.as_str()], "the mailbox has more than 100 messages"),
        (vec![long_line.as_str()], "a line is longer than 65536 bytes"),
        (vec![new, "+OK\r\n"], "it did not tell the size of a message"),
        (vec![new, "+OK 1 9999\r\n", long_message.as_str()], "a message is longer than 65536 bytes"),
    ] {
        let options = WatchOptions { whole: true, ..options() };
        let script: Vec<&[u8]> = POP.iter().chain(&rest).map(|text| text.as_bytes()).collect();
        let (played, _) = pop(&Arc::new(options), Some(Default::default()), false, &mut script.into_iter());
        assert!(events(&played).ends_with(expected), "{} for {rest:.100?}", events(&played));
    }
}

proptest::proptest! {
    #[test]
    fn any_input_is_bounded_and_cuts_do_not_matter(
        choice: u8,
        words in proptest::collection::vec(proptest::sample::select(WORDS), 0..40),
        noise in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..20),
    ) {
        let good = if choice & 32 > 0 { [GREETING, LOGGED_IN, OPENED, NEWS].concat() } else { String::new() };
        crate::checks::check(&[&[choice], good.as_bytes(), words.concat().as_bytes(), &noise].concat());
    }
}

const WORDS: &[&str] = &[
    GREETING,
    LOGGED_IN,
    OPENED,
    NEWS,
    FETCHED,
    "* ",
    "m3 OK x\r\n",
    "m4 OK x\r\n",
    "m4 NO x\r\n",
    "m5 OK x\r\n",
    "+ idling\r\n",
    "+ \r\n",
    "* BYE x\r\n",
    "* 5 EXISTS\r\n",
    "* 1 EXPUNGE\r\n",
    "* 3 FETCH (UID 13 BODY[] {3}\r\nabc)\r\n",
    "{5}\r\n",
    "\r\n",
    "\n",
    "\"",
    "(",
    ")",
    "+OK\r\n",
    "+OK 1 2\r\n",
    "-ERR x\r\n",
    ".\r\n",
    "1 a\r\n",
    "2 b\r\n",
    "SASL PLAIN\r\n",
    "TOP\r\n",
    "imaps://",
    "a@",
    "h",
    ":1",
    "/",
    "%41",
    "maildir:",
];
