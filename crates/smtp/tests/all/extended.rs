//! Tests of extensions in cases that dialog files cannot express: answers of the application, time-outs and dropped
//! bytes.
use mailrun_smtp::limits::Limits;
use mailrun_smtp::login::Proof;
use mailrun_smtp::reply::Reply;
use mailrun_smtp::reply_reason::ReplyReason;
use mailrun_smtp::sasl::{Mechanism, Mechanisms, Secret};
use mailrun_smtp::server::{Event, Offer, Protocol, Server, ServerSettings};
use mailrun_smtp::xclient::{Attributes, ClientAddress};
use std::sync::Arc;
use std::time::Duration;

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn server(protocol: Protocol, limits: Limits) -> Server {
    let mut offer = Offer::new(&limits);
    offer.protocol = protocol;
    offer.extensions.starttls = true;
    offer.extensions.auth = Mechanisms::ALL;
    offer.extensions.xclient = Attributes::ALL;
    let mut server = Server::new(Arc::new(ServerSettings::with_offer("test", limits, offer)), at(0));
    server.grant(at(0), &mut Vec::new());
    let hello: &[u8] = if protocol == Protocol::Lmtp { b"LHLO a\r\n" } else { b"EHLO a\r\n" };
    say(&mut server, hello, &[]);
    server
}

fn smtp() -> Server {
    server(Protocol::Smtp, Limits::default())
}

/// Sends the bytes and returns the replies. Answers the server's questions with `answers`, in order, and all further
/// questions with yes. `None` means yes as well.
fn say(server: &mut Server, bytes: &[u8], answers: &[Option<&Reply>]) -> String {
    let mut input = bytes;
    let mut out = Vec::new();
    let mut answers = answers.iter();
    while let Some(event) = server.next_event(&mut input, at(1), &mut out) {
        if event.asks() {
            match answers.next().copied().flatten() {
                Some(reply) => server.answer(reply, at(1), &mut out),
                None => server.grant(at(1), &mut out),
            }
        }
    }
    String::from_utf8(out).unwrap()
}

/// Returns the events that the bytes cause. Each question is answered with yes.
fn events(server: &mut Server, bytes: &[u8]) -> Vec<String> {
    let mut input = bytes;
    let mut out = Vec::new();
    let mut seen = Vec::new();
    while let Some(event) = server.next_event(&mut input, at(1), &mut out) {
        let asks = event.asks();
        seen.push(format!("{event:?}"));
        if asks {
            server.grant(at(1), &mut out);
        }
    }
    seen
}

const TO_RCPT: &[u8] = b"MAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nRCPT TO:<e@f>\r\n";

#[test]
fn what_comes_in_the_clear_behind_starttls_is_dropped_and_counted() {
    for blocks in [[b"STARTTLS\r\nRSET\r\n".as_slice(), b"EHLO x\r\n"], [b"STARTTLS\r\n", b"RSET\r\nEHLO x\r\n"]] {
        let mut server = smtp();
        let output: String = blocks.iter().map(|block| say(&mut server, block, &[])).collect();
        assert_eq!(output, "220 2.0.0 Ready to start TLS\r\n");
        assert_eq!((server.wants_tls(), server.injected_bytes()), (true, 14));
        server.tls_started(at(2));
        assert!(server.is_over_tls() && !server.wants_tls());
        assert_eq!(
            say(&mut server, b"RSET\r\nMAIL FROM:<a@b>\r\n", &[]),
            "250 2.0.0 Ok\r\n503 5.5.1 Send EHLO first\r\n"
        );
        assert!(!say(&mut server, b"EHLO a\r\n", &[]).contains("STARTTLS"));
    }
}

#[test]
fn starttls_that_is_put_off_changes_nothing() {
    let mut server = smtp();
    let no = Reply::new(454, "4.7.0 not now");
    let output = say(&mut server, b"STARTTLS\r\nNOOP\r\n", &[Some(&no)]);
    assert_eq!(output, "454 4.7.0 not now\r\n250 2.0.0 Ok\r\n");
    assert_eq!((server.wants_tls(), server.injected_bytes()), (false, 0));
    server.tls_started(at(1));
    assert!(!server.is_over_tls(), "it was not wanted");
    assert_eq!(say(&mut server, b"MAIL FROM:<a@b>\r\n", &[]), "250 2.1.0 Ok\r\n");
}

#[test]
fn a_session_forgets_what_it_knew_when_tls_begins() {
    let mut server = smtp();
    say(&mut server, b"AUTH PLAIN AGEAYg==\r\nSTARTTLS\r\n", &[]);
    assert!(server.is_authenticated() && server.wants_tls());
    server.tls_started(at(1));
    assert!(!server.is_authenticated());
}

#[test]
fn tls_may_be_on_before_the_greeting() {
    let limits = Limits::default();
    let mut offer = Offer::new(&limits);
    offer.extensions.starttls = true;
    offer.requires.tls = true;
    let mut server = Server::new(Arc::new(ServerSettings::with_offer("test", limits, offer)), at(0));
    server.tls_started(at(1));
    let mut out = Vec::new();
    server.grant(at(1), &mut out);
    assert_eq!(out, b"220 test ESMTP mailrun\r\n");
    let output = say(&mut server, b"EHLO a\r\nSTARTTLS\r\nMAIL FROM:<a@b>\r\n", &[]);
    assert!(output.ends_with("503 5.5.1 TLS is on\r\n250 2.1.0 Ok\r\n") && !output.contains("STARTTLS"), "{output}");
}

#[test]
fn a_required_login_is_asked_for_before_the_hello_too() {
    let limits = Limits::default();
    let mut offer = Offer::new(&limits);
    offer.requires.auth = true;
    let mut server = Server::new(Arc::new(ServerSettings::with_offer("test", limits, offer)), at(0));
    server.grant(at(1), &mut Vec::new());
    let codes = |output: String| output.lines().map(|line| line[..3].to_owned()).collect::<Vec<_>>().join(" ");
    let commands = b"VRFY tim\r\nHELP\r\nMAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nDATA\r\nNOOP\r\nRSET\r\n";
    assert_eq!(codes(say(&mut server, commands, &[])), "530 530 503 503 503 250 250");
    say(&mut server, b"EHLO a\r\n", &[]);
    assert_eq!(codes(say(&mut server, commands, &[])), "530 530 530 530 530 250 250");
}

#[test]
fn who_logs_in_is_told_with_the_secret_or_asks_for_it() {
    let mut server = smtp();
    let mut input = b"AUTH PLAIN AHRpbQB0YW4=\r\n".as_slice();
    let mut out = Vec::new();
    assert_eq!(server.next_event(&mut input, at(1), &mut out), Some(Event::Answered));
    let Some(Event::Auth(auth)) = server.next_event(&mut input, at(1), &mut out) else { panic!("it asks") };
    assert_eq!((auth.mechanism, auth.name), (Mechanism::Plain, "tim"));
    assert!(auth.proof == Proof::Shown(b"tan") && !auth.is_lookup());
    assert!(!format!("{auth:?}").contains("tan"), "secrets are not printed");
    server.answer(&Reply::new(454, "4.7.0 the directory is down"), at(1), &mut out);
    assert_eq!(server.next_event(&mut input, at(1), &mut out), Some(Event::NotAuthenticated));
    assert_eq!(out, b"454 4.7.0 the directory is down\r\n");
    let mut input = b"AUTH CRAM-MD5\r\nNOOP\r\n".as_slice();
    assert_eq!(server.next_event(&mut input, at(1), &mut out), Some(Event::Nonce));
    assert_eq!(server.next_event(&mut input, at(1), &mut out), None);
    out.clear();
    server.grant(at(1), &mut out);
    assert_eq!(out, b"454 4.7.0 Temporary authentication failure\r\n", "there is no nonce");
    assert_eq!(server.next_event(&mut input, at(1), &mut out), Some(Event::NotAuthenticated));
    assert_eq!(server.next_event(&mut input, at(1), &mut out), Some(Event::Noop));
}

#[test]
fn anybody_is_let_in_where_any_proof_will_do() {
    let answer = b"dGltIGI5MTNhNjAyYzdlZGE3YTQ5NWI0ZTZlNzMzNGQzODkw\r\n";
    for secret in [Some(Secret::Any), None] {
        let mut server = smtp();
        let mut out = Vec::new();
        assert_eq!(server.next_event(&mut b"AUTH CRAM-MD5\r\n".as_slice(), at(1), &mut out), Some(Event::Nonce));
        server.answer_nonce(&[1; 18], at(1), &mut out);
        let mut input = answer.as_slice();
        assert_eq!(server.next_event(&mut input, at(1), &mut out), Some(Event::Answered));
        let question = server.next_event(&mut input, at(1), &mut out);
        assert!(matches!(question, Some(Event::Auth(auth)) if auth.is_lookup() && auth.name == "tim"));
        out.clear();
        server.answer_secret(secret.as_ref(), at(1), &mut out);
        let (expected, event) = match secret {
            Some(_) => ("235 2.7.0 Authentication successful\r\n", Event::Authenticated),
            None => ("535 5.7.8 Authentication credentials invalid\r\n", Event::NotAuthenticated),
        };
        assert_eq!(String::from_utf8(out.clone()).unwrap(), expected);
        assert_eq!(server.next_event(&mut input, at(1), &mut out), Some(event));
    }
}

#[test]
fn an_application_that_implements_nothing_refuses_everything() {
    let to_message = [TO_RCPT, b"DATA\r\n"].concat();
    let refused: [(&[u8], &[u8]); 13] = [
        (b"", b"AUTH PLAIN AHRpbQB0YW4=\r\n"),
        (b"", b"AUTH LOGIN dGlt\r\ndGFu\r\n"),
        (b"", b"AUTH XOAUTH2 dXNlcj1hAWF1dGg9QmVhcmVyIGIBAQ==\r\n\r\n"),
        (b"", b"AUTH CRAM-MD5\r\ndGltIGI5MTNhNjAyYzdlZGE3YTQ5NWI0ZTZlNzMzNGQzODkw\r\n"),
        (b"", b"AUTH SCRAM-SHA-256 biwsbj10aW0scj1hYmNkZWZnaGlqa2xtbm9w\r\n"),
        (b"", b"XCLIENT LOGIN=tim\r\n"),
        (b"", b"STARTTLS\r\n"),
        (b"", b"VRFY tim\r\n"),
        (b"", b"MAIL FROM:<a@b>\r\n"),
        (b"MAIL FROM:<a@b>\r\n", b"RCPT TO:<c@d>\r\n"),
        (TO_RCPT, b"DATA\r\n"),
        (TO_RCPT, b"BDAT 3 LAST\r\na\r\n"),
        (&to_message, b"x\r\n.\r\n"),
    ];
    for (before, lines) in refused {
        let mut server = smtp();
        say(&mut server, before, &[]);
        let mut input = lines;
        let mut out = Vec::new();
        while let Some(event) = server.next_event(&mut input, at(1), &mut out) {
            match event {
                Event::Nonce => server.answer_nonce(b"eighteen octets ok", at(1), &mut out),
                event if event.asks() => server.answer(ReplyReason::NotImplemented.reply(), at(1), &mut out),
                _ => {}
            }
        }
        let text = String::from_utf8(out).unwrap();
        assert!(text.ends_with("502 5.5.1 Command not implemented\r\n") && !text.contains("\n2"), "{lines:?}: {text}");
        assert!(!text.starts_with('2') && !server.is_authenticated() && !server.wants_tls(), "{lines:?}: {text}");
    }
}

#[test]
fn a_yes_is_no_answer_to_the_question_for_a_secret() {
    let rows: [&[u8]; 2] = [
        b"AUTH CRAM-MD5\r\ndGltIGI5MTNhNjAyYzdlZGE3YTQ5NWI0ZTZlNzMzNGQzODkw\r\n",
        b"AUTH SCRAM-SHA-256 biwsbj10aW0scj1hYmNkZWZnaGlqa2xtbm9w\r\n",
    ];
    for lines in rows {
        let mut server = smtp();
        let mut input = lines;
        let mut out = Vec::new();
        while let Some(event) = server.next_event(&mut input, at(1), &mut out) {
            match event {
                Event::Nonce => server.answer_nonce(b"eighteen octets ok", at(1), &mut out),
                Event::Authenticated => panic!("{lines:?}"),
                event if event.asks() => server.grant(at(1), &mut out),
                _ => {}
            }
        }
        let output = String::from_utf8(out).unwrap();
        assert!(output.lines().last().is_some_and(|last| last.starts_with("454 4.7.0")), "{lines:?}: {output}");
        assert!(!server.is_authenticated());
    }
}

#[test]
fn the_time_that_the_application_takes_for_a_login_does_not_count_against_the_client() {
    let limits = Limits { no_message_timeout: at(60), ..Limits::default() };
    let lines: &[u8] = b"AUTH CRAM-MD5\r\ndGltIGI5MTNhNjAyYzdlZGE3YTQ5NWI0ZTZlNzMzNGQzODkw\r\n";
    let mut server = server(Protocol::Smtp, limits);
    assert_eq!(server.deadline(), Some(at(60)));
    let mut input = lines;
    let mut out = Vec::new();
    let mut thinking = 0;
    while let Some(event) = server.next_event(&mut input, at(1 + thinking), &mut out) {
        thinking += if event.asks() { 40 } else { 0 };
        match event {
            Event::Nonce => server.answer_nonce(b"eighteen octets ok", at(1 + thinking), &mut out),
            event if event.asks() => server.answer_secret(None, at(1 + thinking), &mut out),
            _ => {}
        }
    }
    assert_eq!((thinking, server.deadline()), (80, Some(at(60 + 80))));
}

#[test]
fn the_parameters_of_an_extension_that_is_not_offered_are_unknown() {
    type TurnOff = fn(&mut Offer);
    let rows: [(TurnOff, &[u8]); 4] = [
        (|offer| offer.extensions.size = None, b"MAIL FROM:<a@b> SIZE=10\r\n"),
        (|offer| offer.extensions.smtp_utf8 = false, b"MAIL FROM:<a@b> SMTPUTF8\r\n"),
        (|offer| offer.extensions.eight_bit_mime = false, b"MAIL FROM:<a@b> BODY=8BITMIME\r\n"),
        (|offer| offer.extensions.dsn = false, b"MAIL FROM:<a@b> RET=HDRS\r\n"),
    ];
    for (turn_off, mail) in rows {
        let replies = [turn_off, |_: &mut Offer| {}].map(|change| {
            let limits = Limits::default();
            let mut offer = Offer::new(&limits);
            change(&mut offer);
            let mut server = Server::new(Arc::new(ServerSettings::with_offer("test", limits, offer)), at(0));
            server.grant(at(0), &mut Vec::new());
            say(&mut server, b"EHLO a\r\n", &[]);
            say(&mut server, mail, &[])
        });
        assert!(replies[0].starts_with("555 ") && replies[1].starts_with("250 "), "{mail:?}: {replies:?}");
    }
}

/// Inputs after which the server asks a question about an extension, such as STARTTLS or AUTH.
const QUESTIONS: [&[u8]; 8] = [
    b"STARTTLS\r\n",
    b"AUTH CRAM-MD5\r\n",
    b"AUTH PLAIN AGEAYg==\r\n",
    b"AUTH XOAUTH2 dXNlcj1hAWF1dGg9QmVhcmVyIGIBAQ==\r\n",
    b"XCLIENT NAME=a\r\n",
    b"MAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nBDAT 3\r\n",
    b"MAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nBDAT 3 LAST\r\nabc",
    b"AUTH LOGIN YQ==\r\nYg==\r\n",
];

/// Returns how many other questions, for example about MAIL and RCPT, the server asks before the question that
/// `QUESTIONS[question]` is about.
fn before(question: usize) -> usize {
    match question {
        5 => 2,
        6 => 3,
        _ => 0,
    }
}

#[test]
fn a_421_ends_the_session_whatever_it_answers() {
    let enough = Reply::new(421, "enough");
    for (number, bytes) in QUESTIONS.iter().enumerate() {
        let mut server = smtp();
        let answers = [vec![None; before(number)], vec![Some(&enough)]].concat();
        let output = say(&mut server, bytes, &answers);
        assert!(output.ends_with("421 enough\r\n") && server.is_closed(), "{number}: {output}");
        assert_eq!(output.matches("421").count(), 1);
    }
}

#[test]
fn a_refusal_leaves_the_session_fit_for_the_next_transaction() {
    let no = Reply::new(451, "no");
    for (number, bytes) in QUESTIONS.iter().enumerate() {
        let mut server = smtp();
        let answers = [vec![None; before(number)], vec![Some(&no)]].concat();
        // In case 3 (XOAUTH2), the server first sends the reason, and the client answers with an empty line. In case 5
        // (BDAT), the client must send the chunk even if it is refused.
        let rest: &[u8] = if number == 3 {
            b"\r\n"
        } else if number == 5 {
            b"abc"
        } else {
            b""
        };
        let output = say(&mut server, &[bytes, rest].concat(), &answers);
        assert!(output.ends_with("451 no\r\n") && !server.is_closed(), "{number}: {output}");
        assert!(!server.wants_tls() && !server.is_authenticated());
        assert_eq!(say(&mut server, b"MAIL FROM:<a@b>\r\n", &[]), "250 2.1.0 Ok\r\n", "{number}");
    }
}

#[test]
fn a_message_that_the_application_will_not_have_is_read_and_refused_in_its_place() {
    let no = Reply::new(450, "4.2.0 not now");
    let mut server = smtp();
    let output = say(
        &mut server,
        &[TO_RCPT, b"BDAT 6\r\nQUIT\r\nBDAT 6 LAST\r\nQUIT\r\nNOOP\r\n"].concat(),
        &[None, None, None, Some(&no)],
    );
    assert!(output.ends_with("450 4.2.0 not now\r\n503 5.5.1 Send MAIL first\r\n250 2.0.0 Ok\r\n"), "{output}");
    let mut lmtp = self::server(Protocol::Lmtp, Limits::default());
    let output = say(&mut lmtp, &[TO_RCPT, b"BDAT 6 LAST\r\nQUIT\r\n"].concat(), &[None, None, None, Some(&no)]);
    assert!(output.ends_with("250 2.1.5 Ok\r\n450 4.2.0 not now\r\n450 4.2.0 not now\r\n"), "{output}");
}

#[test]
fn messages_in_the_pipeline_behind_a_refusal_are_no_errors() {
    let no = Reply::new(550, "5.1.1 no");
    let begins: [&[u8]; 2] = [b"BDAT 1\r\nx", b"DATA\r\n"];
    for (protocol, begin) in [Protocol::Smtp, Protocol::Lmtp].iter().flat_map(|one| begins.map(|begin| (*one, begin))) {
        let mut server = server(protocol, Limits { errors: 2, ..Limits::default() });
        let group = [b"MAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\n".to_vec(), begin.repeat(30)].concat();
        let reply = say(&mut server, &[&group, b"BDAT 0 LAST\r\nRSET\r\n".as_slice()].concat(), &[None, Some(&no)]);
        assert!(
            reply.ends_with("recipients\r\n250 2.0.0 Ok\r\n") || reply.ends_with("RCPT first\r\n250 2.0.0 Ok\r\n"),
            "{protocol:?}: {reply}"
        );
        assert_eq!(reply.lines().count(), 2 + 31 + 1);
        let refused = say(&mut server, &[&b"MAIL FROM:<a@\r\n"[..], &begin.repeat(30)].concat(), &[]);
        assert_eq!(refused.matches("503 5.5.1 Send MAIL first").count(), 30);
        say(&mut server, &begin.repeat(3), &[]);
        say(&mut server, b"MAIL FROM:<a@b>\r\n", &[]);
        say(&mut server, &begin.repeat(3), &[]);
        assert!(server.is_closed(), "without any RCPT they are");
    }
}

#[test]
fn recipients_that_are_put_off_do_not_end_a_session_whose_message_has_others() {
    let full = Reply::new(452, "4.5.3 too many");
    let later = Reply::new(450, "4.7.0 too fast");
    let limits = Limits { recipients: 2, idle_commands: 10, ..Limits::default() };
    let list = [TO_RCPT, &b"RCPT TO:<g@h>\r\n".repeat(20), b"DATA\r\n"].concat();
    for (refusal, code) in [(None, "452 4.5.3"), (Some(&full), "452 4.5.3"), (Some(&later), "450 4.7.0")] {
        // In the first case, the session refuses recipients beyond its own limit. In the other cases, the application
        // refuses them.
        let recipients = if refusal.is_some() { 1000 } else { 2 };
        let mut server = server(Protocol::Smtp, Limits { recipients, ..limits.clone() });
        let answers = [&[None; 3][..], &[refusal; 20]].concat();
        let output = say(&mut server, &list, &answers);
        assert_eq!(output.matches(code).count(), 20, "{output}");
        assert!(output.ends_with("354 End data with <CR><LF>.<CR><LF>\r\n"), "{output}");
    }
    let mut server = server(Protocol::Smtp, limits);
    say(&mut server, b"MAIL FROM:<a@b>\r\n", &[]);
    say(&mut server, &b"RCPT TO:<c@d>\r\n".repeat(20), &[Some(&full); 20]);
    assert!(server.is_closed(), "without an accepted recipient, there is no message to lose");
}

#[test]
fn lmtp_answers_for_all_at_once_or_for_each() {
    let no = Reply::new(452, "4.2.2 full");
    let message = [TO_RCPT, b"DATA\r\nx\r\n.\r\n"].concat();
    let rows: [(&[Option<&Reply>], &str); 3] = [
        (&[None, None, None, None, Some(&no)], "452 4.2.2 full\r\n452 4.2.2 full\r\n"),
        (&[None, None, None, None, None, Some(&no)], "452 4.2.2 full\r\n250 2.0.0 Ok\r\n"),
        (&[], "250 2.0.0 Ok\r\n250 2.0.0 Ok\r\n"),
    ];
    for (answers, expected) in rows {
        let mut server = server(Protocol::Lmtp, Limits::default());
        let output = say(&mut server, &message, answers);
        assert!(output.ends_with(&format!("354 End data with <CR><LF>.<CR><LF>\r\n{expected}")), "{output}");
        assert_eq!(say(&mut server, b"MAIL FROM:<a@b>\r\n", &[]), "250 2.1.0 Ok\r\n");
    }
    let seen = events(&mut server(Protocol::Lmtp, Limits::default()), &message);
    let tail = ["Message { bytes: 3 }", "Delivery { recipient: 0 }", "Delivery { recipient: 1 }"];
    assert_eq!(seen[seen.len() - 3..], tail);
}

#[test]
fn what_follows_a_chunk_that_cannot_be_measured_is_neither_message_nor_commands() {
    for line in ["BDAT LAST", "BDAT -6", "BDAT 6 LAST NOW", "BDAT 18446744073709551615", "BDAT 99999999999999999999"] {
        let mut server = smtp();
        let bytes = [TO_RCPT, line.as_bytes(), b"\r\nRSET\r\nMAIL FROM:<x@y>\r\n"].concat();
        let seen = events(&mut server, &bytes);
        assert_eq!(seen.len(), 4, "{line}: {seen:?}");
        assert!(server.is_closed());
    }
}

#[test]
fn chunks_are_handed_on_as_they_lie_and_end_with_one_message() {
    let mut server = smtp();
    let seen = events(&mut server, &[TO_RCPT, b"BDAT 3\r\na\r\nBDAT 0 LAST\r\n"].concat());
    let tail: Vec<&str> = seen.iter().map(String::as_str).skip(3).collect();
    assert_eq!(tail, ["Data", "Block([97, 13, 10])", "Answered", "Answered", "Message { bytes: 3 }"]);
    let block = b"BDAT 5 LAST\r\nhello";
    say(&mut server, TO_RCPT, &[]);
    let mut input = block.as_slice();
    let mut out = Vec::new();
    assert_eq!(server.next_event(&mut input, at(1), &mut out), Some(Event::Data));
    server.grant(at(1), &mut out);
    let Some(Event::Block(content)) = server.next_event(&mut input, at(1), &mut out) else { panic!("a block") };
    assert!(std::ptr::eq(content, &block[13..]), "not copied");
}

#[test]
fn a_message_in_chunks_may_take_its_time_but_not_for_ever() {
    let limits = Limits { idle_timeout: at(300), message_timeout: at(1000), ..Limits::default() };
    let refused: &[u8] = b"BDAT 100\r\n";
    for (head, is_chunk) in [([TO_RCPT, refused].concat(), true), (refused.to_vec(), false)] {
        let mut server = server(Protocol::Smtp, limits.clone());
        say(&mut server, &head, &[]);
        let mut out = Vec::new();
        assert_eq!(server.deadline(), Some(at(301)), "{is_chunk}");
        for second in (200..1000).step_by(100) {
            let mut input = b"x".as_slice();
            let event = server.next_event(&mut input, at(second), &mut out);
            assert_eq!((event.is_some(), input.is_empty()), (is_chunk, true));
            assert_eq!(server.deadline(), Some((at(second) + at(300)).min(at(1001))));
        }
        server.tick(at(1001), &mut out);
        assert!(server.is_closed() && out.ends_with(ReplyReason::Timeout.reply().wire()));
    }
}

#[test]
fn who_the_client_is_said_to_be_is_told() {
    let mut server = smtp();
    let mut input = b"XCLIENT ADDR=192.0.2.1 LOGIN=tim\r\nAUTH LOGIN\r\n".as_slice();
    let mut out = Vec::new();
    let Some(Event::Xclient(xclient)) = server.next_event(&mut input, at(1), &mut out) else { panic!("it asks") };
    assert_eq!(xclient.address(), Some(ClientAddress::Known("192.0.2.1".parse().unwrap())));
    server.answer(&Reply::new(550, "5.7.1 not you"), at(1), &mut out);
    assert!(!server.is_authenticated());
    assert!(say(&mut server, b"XCLIENT LOGIN=tim\r\n", &[]).starts_with("220 test ESMTP"));
    assert!(server.is_authenticated(), "the proxy vouches for it");
    assert!(say(&mut server, b"XCLIENT LOGIN=[UNAVAILABLE]\r\n", &[]).starts_with("220 test ESMTP"));
    assert!(!server.is_authenticated());
}

#[test]
fn failed_logins_are_errors_and_there_may_not_be_many() {
    let mut server = server(Protocol::Smtp, Limits { errors: 3, ..Limits::default() });
    let output = say(&mut server, &b"AUTH PLAIN\r\n*\r\n".repeat(5), &[]);
    assert_eq!(output.matches("501 5.7.0").count(), 3);
    assert!(output.ends_with("421 4.7.0 Too many commands without mail\r\n") && server.is_closed());
}

#[test]
fn logins_that_the_application_refuses_are_errors_too_and_the_last_is_told() {
    let no = Reply::new(535, "5.7.8 No");
    for login in ["AUTH PLAIN AGEAYg==\r\n", "AUTH XOAUTH2 dXNlcj1hAWF1dGg9QmVhcmVyIGIBAQ==\r\n\r\n"] {
        let mut server = server(Protocol::Smtp, Limits { errors: 3, ..Limits::default() });
        let lines = login.repeat(6);
        let mut out = Vec::new();
        let mut ended = 0;
        let mut input = lines.as_bytes();
        while let Some(event) = server.next_event(&mut input, at(1), &mut out) {
            ended += u32::from(matches!(event, Event::NotAuthenticated));
            match event {
                Event::Auth(_) => server.answer(&no, at(1), &mut out),
                event if event.asks() => server.grant(at(1), &mut out),
                _ => {}
            }
        }
        let output = String::from_utf8(out).unwrap();
        assert_eq!((output.matches("535 5.7.8 No").count(), ended), (4, 4), "{output}");
        assert!(output.ends_with("421 4.7.0 Too many commands without mail\r\n") && server.is_closed(), "{output}");
    }
}

#[test]
fn a_session_has_so_many_failed_logins_and_then_none() {
    let mut server = server(Protocol::Smtp, Limits { login_failures: 3, ..Limits::default() });
    let no = Reply::new(535, "5.7.8 No");
    let output = say(&mut server, &b"AUTH PLAIN AGEAYg==\r\n".repeat(6), &[Some(&no); 6]);
    assert_eq!(output.matches("535 5.7.8 No").count(), 3, "{output}");
    assert!(output.ends_with("421 4.7.0 Too many failed logins\r\n") && server.is_closed(), "{output}");
}

#[test]
fn a_login_that_the_application_could_not_check_has_not_failed() {
    let mut server = server(Protocol::Smtp, Limits { login_failures: 3, errors: 9, ..Limits::default() });
    let busy = Reply::new(454, "4.7.0 Too many logins at the same time");
    let output = say(&mut server, &b"AUTH PLAIN AGEAYg==\r\n".repeat(6), &[Some(&busy); 6]);
    assert_eq!(output.matches("454 4.7.0").count(), 6, "{output}");
    assert!(!output.contains("421") && !server.is_closed(), "{output}");
}

#[test]
fn a_proof_by_scram_is_not_checked_before_the_application_says_so() {
    use mailrun_smtp::sasl::{Credentials, Mechanism, client};
    let late = Reply::new(421, "4.7.0 Too many failed logins");
    let busy = Reply::new(454, "4.7.0 Not now");
    for answer in [None, Some(&busy), Some(&late)] {
        let mut server = smtp();
        let mut out = Vec::new();
        let credentials = Credentials::new("user", "pencil");
        let client = client::ClientExchange::new(Mechanism::ScramSha256, &credentials, Some(&[7; 18])).unwrap();
        let send = |server: &mut mailrun_smtp::Server, line: &str, out: &mut Vec<u8>| {
            let line = format!("{line}\r\n");
            let mut input = line.as_bytes();
            loop {
                match server.next_event(&mut input, at(1), out) {
                    Some(Event::Nonce) => server.answer_nonce(&[3; 18], at(1), out),
                    Some(Event::Auth(_)) => {
                        server.answer_secret(Some(&Secret::Password("pencil".to_owned())), at(1), out);
                    }
                    Some(Event::Proof(auth)) => {
                        assert!(auth.name == "user" && auth.mechanism == Mechanism::ScramSha256);
                        return true;
                    }
                    Some(_) => {}
                    None => return false,
                }
            }
        };
        let first = client.initial().expect("SCRAM speaks first").to_vec();
        let client = client.initial_sent();
        assert!(!send(&mut server, &format!("AUTH SCRAM-SHA-256 {}", base64(&first)), &mut out));
        let challenge = unbase64(&out[4..out.len() - 2]);
        let (proof, _) = client.respond(&challenge).unwrap();
        out.clear();
        assert!(send(&mut server, &base64(&proof), &mut out) && out.is_empty(), "nothing is said yet");
        match answer {
            Some(reply) => server.answer(reply, at(1), &mut out),
            None => server.grant(at(1), &mut out),
        }
        match answer {
            None => assert!(out.starts_with(b"334 ")),
            Some(reply) => {
                assert_eq!(out, reply.wire());
                assert_eq!(server.is_closed(), reply.code() == 421);
                assert!(!server.is_authenticated());
            }
        }
    }
}

fn base64(octets: &[u8]) -> String {
    base64::Engine::encode(&base64::engine::general_purpose::STANDARD, octets)
}

fn unbase64(text: &[u8]) -> Vec<u8> {
    base64::Engine::decode(&base64::engine::general_purpose::STANDARD, text).unwrap()
}
