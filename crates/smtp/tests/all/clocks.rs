//! Tests of time-outs, and of waiting for the application's answers. Times are only numbers here,
//! so no test waits.
use mailrun_smtp::client::{Client, PipelineMode};
use mailrun_smtp::envelope::Envelope;
use mailrun_smtp::limits::Limits;
use mailrun_smtp::reply::Reply;
use mailrun_smtp::reply_reason::ReplyReason;
use mailrun_smtp::server::{Event, Server, ServerSettings};
use std::sync::Arc;
use std::time::Duration;

const IDLE: Duration = Duration::from_secs(300);
const MESSAGE: Duration = Duration::from_secs(1000);

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn silent_server() -> Server {
    let limits = Limits { idle_timeout: IDLE, message_timeout: MESSAGE, ..Limits::default() };
    Server::new(Arc::new(ServerSettings::new("test", limits)), at(0))
}

fn server() -> (Server, Vec<u8>) {
    let mut server = silent_server();
    let mut out = Vec::new();
    server.grant(at(0), &mut out);
    (server, out)
}

/// Passes the bytes to the server, and answers each of its questions with yes.
fn feed(server: &mut Server, bytes: &[u8], now: Duration, out: &mut Vec<u8>) {
    let mut input = bytes;
    while let Some(event) = server.next_event(&mut input, now, out) {
        if event.asks() {
            server.grant(now, out);
        }
    }
}

fn text(out: &[u8]) -> String {
    String::from_utf8_lossy(out).into_owned()
}

const TO_DATA: &[u8] = b"EHLO a\r\nMAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nDATA\r\n";

#[test]
fn a_silent_session_ends_with_421_at_its_deadline_and_not_before() {
    let (mut server, mut out) = server();
    assert_eq!(server.deadline(), Some(IDLE));
    out.clear();
    server.tick(IDLE - Duration::from_nanos(1), &mut out);
    assert!(out.is_empty() && !server.is_closed());
    server.tick(IDLE, &mut out);
    assert_eq!(text(&out), "421 4.4.2 Timeout\r\n");
    assert!(server.is_closed());
    assert_eq!(server.deadline(), None);
    server.tick(IDLE * 2, &mut out);
    feed(&mut server, b"NOOP\r\n", IDLE, &mut out);
    assert_eq!(text(&out), "421 4.4.2 Timeout\r\n", "nothing is said after the last word");
}

#[test]
fn a_whole_command_moves_the_deadline_and_a_dripping_one_does_not() {
    let (mut server, mut out) = server();
    feed(&mut server, b"EHLO a\r\n", at(10), &mut out);
    assert_eq!(server.deadline(), Some(at(10) + IDLE));
    for (second, byte) in b"NOOP and much more".chunks(1).enumerate() {
        feed(&mut server, byte, at(11 + second as u64), &mut out);
        assert_eq!(server.deadline(), Some(at(10) + IDLE));
    }
    feed(&mut server, b"\r\n", at(200), &mut out);
    assert_eq!(server.deadline(), Some(at(200) + IDLE));
    feed(&mut server, b"WHAT\r\n", at(250), &mut out);
    assert_eq!(server.deadline(), Some(at(250) + IDLE), "a refused command is a sign of life too");
}

#[test]
fn a_message_may_take_its_time_but_not_for_ever() {
    let (mut server, mut out) = server();
    feed(&mut server, TO_DATA, at(100), &mut out);
    assert_eq!(server.deadline(), Some(at(100) + IDLE));
    for second in (200..1000).step_by(100) {
        feed(&mut server, b"x", at(second), &mut out);
        assert_eq!(server.deadline(), Some((at(second) + IDLE).min(at(100) + MESSAGE)));
    }
    out.clear();
    feed(&mut server, b"x", at(1099), &mut out);
    server.tick(at(1100), &mut out);
    assert_eq!(text(&out), "421 4.4.2 Timeout\r\n");
    assert!(server.is_closed());
}

#[test]
fn the_time_of_a_message_ends_with_it() {
    let (mut server, mut out) = server();
    feed(&mut server, TO_DATA, at(100), &mut out);
    feed(&mut server, b"x\r\n.\r\n", at(350), &mut out);
    assert_eq!(server.deadline(), Some(at(350) + IDLE));
}

#[test]
fn while_the_application_thinks_the_peer_is_not_to_blame() {
    let mut server = silent_server();
    assert!(server.awaits_answer());
    assert_eq!(server.deadline(), None, "the greeting is awaited");
    let mut out = Vec::new();
    server.grant(at(1), &mut out);
    let mut input = b"EHLO a\r\n".as_slice();
    assert!(server.next_event(&mut input, at(2), &mut out).is_some_and(|event| event.asks()));
    assert_eq!(server.deadline(), None);
    out.clear();
    server.tick(at(1_000_000), &mut out);
    assert!(out.is_empty() && !server.is_closed());
    server.grant(at(1_000_000), &mut out);
    assert_eq!(server.deadline(), Some(at(1_000_000) + IDLE));
}

#[test]
fn a_late_answer_does_not_reopen_a_session_that_was_closed() {
    for line in ["EHLO a", "MAIL FROM:<a@b>"] {
        let (mut server, mut out) = server();
        feed(&mut server, b"EHLO a\r\n", at(1), &mut out);
        let line = format!("{line}\r\n");
        let mut input = line.as_bytes();
        assert!(server.next_event(&mut input, at(2), &mut out).is_some());
        out.clear();
        server.close(ReplyReason::ShuttingDown, &mut out);
        server.grant(at(3), &mut out);
        server.close(ReplyReason::ShuttingDown, &mut out);
        assert_eq!(text(&out), "421 4.3.2 Shutting down\r\n", "one last word");
        assert!(server.is_closed() && !server.awaits_answer());
    }
}

#[test]
fn commands_wait_behind_an_open_question() {
    let (mut server, mut out) = server();
    out.clear();
    let mut input = b"EHLO a\r\nNOOP\r\nWHAT\r\n".as_slice();
    assert!(matches!(server.next_event(&mut input, at(1), &mut out), Some(Event::Hello(..))));
    assert_eq!(server.next_event(&mut input, at(1), &mut out), None);
    assert_eq!(input, b"NOOP\r\nWHAT\r\n", "what follows is left for later");
    assert!(out.is_empty());
    server.answer(&Reply::new(250, "slow"), at(2), &mut out);
    assert_eq!(server.next_event(&mut input, at(2), &mut out), Some(Event::Noop));
    server.grant(at(2), &mut out);
    assert_eq!(server.next_event(&mut input, at(2), &mut out), Some(Event::Answered));
    assert_eq!(text(&out), "250 slow\r\n250 2.0.0 Ok\r\n500 5.5.1 Unknown command\r\n");
}

#[test]
fn a_refused_side_command_changes_nothing() {
    let (mut server, mut out) = server();
    let no = Reply::new(450, "4.3.0 no");
    let mut input = b"EHLO a\r\nMAIL FROM:<a@b>\r\nRSET\r\nNOOP\r\nQUIT\r\nRCPT TO:<c@d>\r\nQUIT\r\n".as_slice();
    let mut answers = [None, None, Some(&no), Some(&no), Some(&no), None, None].into_iter();
    out.clear();
    while let Some(event) = server.next_event(&mut input, at(1), &mut out) {
        assert!(event.asks() && !server.has_quit());
        match answers.next().flatten() {
            Some(refusal) => server.answer(refusal, at(1), &mut out),
            None => server.grant(at(1), &mut out),
        }
    }
    let codes: Vec<String> = text(&out).split("\r\n").map(|line| line.chars().take(3).collect()).collect();
    assert!(codes.join(" ").ends_with("250 450 450 450 250 221 "), "{codes:?}");
    assert!(server.is_closed() && server.has_quit());
}

#[test]
fn a_session_may_be_hung_up_on_at_any_question() {
    for last_word in [None, Some(&Reply::new(250, "Ok"))] {
        let (mut server, mut out) = server();
        out.clear();
        let mut input = b"EHLO a\r\nNOOP\r\n".as_slice();
        assert!(server.next_event(&mut input, at(1), &mut out).is_some());
        server.hang_up(last_word, &mut out);
        assert!(server.is_closed() && !server.has_quit() && !server.awaits_answer());
        assert_eq!(server.next_event(&mut input, at(1), &mut out), None);
        server.grant(at(1), &mut out);
        assert_eq!(text(&out), last_word.map_or("", |_| "250 Ok\r\n"));
    }
}

#[test]
fn an_answer_to_no_question_is_not_said() {
    let (mut server, mut out) = server();
    out.clear();
    server.answer(&Reply::new(250, "what?"), at(1), &mut out);
    assert!(out.is_empty());
}

/// Input after which the server asks its questions, in the order of a session. The first question is whether to greet
/// the client, and needs no input.
const QUESTIONS: [&[u8]; 6] =
    [b"", b"EHLO a\r\n", b"MAIL FROM:<a@b>\r\n", b"RCPT TO:<c@d>\r\n", b"DATA\r\n", b"x\r\n.\r\n"];

/// Creates a session that waits for the answer to the question after `QUESTIONS[question]`.
fn server_asking(question: usize, out: &mut Vec<u8>) -> Server {
    let mut server = silent_server();
    for bytes in &QUESTIONS[1..=question] {
        server.grant(at(1), out);
        let mut input = *bytes;
        while !server.awaits_answer() {
            server.next_event(&mut input, at(1), out).expect("it asks");
        }
        assert!(input.is_empty());
    }
    out.clear();
    server
}

#[test]
fn a_421_ends_the_session_whatever_it_answers() {
    for question in 0..QUESTIONS.len() {
        let mut out = Vec::new();
        let mut server = server_asking(question, &mut out);
        server.answer(&Reply::new(421, "enough"), at(2), &mut out);
        assert_eq!(text(&out), "421 enough\r\n");
        assert!(server.is_closed(), "question {question}");
    }
}

#[test]
fn a_refusal_leaves_the_session_where_it_was() {
    let rows = [
        (1, "MAIL FROM:<a@b>", "503 5.5.1 Send EHLO first\r\n"),
        (2, "RCPT TO:<c@d>", "503 5.5.1 Send MAIL first\r\n"),
        (3, "DATA", "554 5.5.1 No valid recipients\r\n"),
        (4, "RCPT TO:<e@f>", "250 2.1.5 Ok\r\n"),
        (5, "MAIL FROM:<a@b>", "250 2.1.0 Ok\r\n"),
    ];
    for (question, next, reply) in rows {
        let mut out = Vec::new();
        let mut server = server_asking(question, &mut out);
        server.answer(&Reply::new(451, "not now"), at(2), &mut out);
        assert_eq!(text(&out), "451 not now\r\n");
        out.clear();
        feed(&mut server, format!("{next}\r\n").as_bytes(), at(3), &mut out);
        assert_eq!(text(&out), reply, "after question {question}");
    }
}

#[test]
fn a_refused_greeting_waits_for_quit_and_not_for_ever() {
    let turned_away = || {
        let mut server = silent_server();
        let mut out = Vec::new();
        server.answer(&Reply::new(554, "no"), at(1), &mut out);
        assert_eq!(text(&out), "554 no\r\n");
        assert!(!server.is_closed());
        (server, Vec::new())
    };
    let (mut server, mut out) = turned_away();
    feed(&mut server, b"EHLO a\r\nQUIT\r\n", at(2), &mut out);
    assert_eq!(text(&out), "503 5.5.1 No service here: send QUIT\r\n221 2.0.0 Bye\r\n");
    assert!(server.is_closed() && server.has_quit());

    let (mut server, mut out) = turned_away();
    assert_eq!(server.deadline(), Some(at(1) + IDLE));
    server.tick(at(1) + IDLE, &mut out);
    assert_eq!(text(&out), "421 4.4.2 Timeout\r\n");
    assert!(server.is_closed() && !server.has_quit());

    let (mut server, mut out) = turned_away();
    feed(&mut server, &b"NOOP\r\n".repeat(100), at(2), &mut out);
    let errors = Limits::default().errors as usize;
    assert_eq!(text(&out).matches("503 ").count(), errors);
    assert!(text(&out).ends_with("421 4.7.0 Too many commands without mail\r\n") && server.is_closed());
}

#[test]
fn a_client_that_is_turned_away_may_be_refused_its_quit_and_stays_turned_away() {
    let mut server = silent_server();
    let mut out = Vec::new();
    server.answer(&Reply::new(554, "no"), at(1), &mut out);
    let mut input = b"QUIT\r\nMAIL FROM:<a@b>\r\n".as_slice();
    out.clear();
    assert_eq!(server.next_event(&mut input, at(2), &mut out), Some(Event::Quit));
    server.answer(&Reply::new(450, "stay"), at(2), &mut out);
    assert_eq!(server.next_event(&mut input, at(2), &mut out), Some(Event::Answered));
    assert_eq!(text(&out), "450 stay\r\n503 5.5.1 No service here: send QUIT\r\n");
}

#[test]
fn a_client_waits_for_replies_and_not_for_its_caller() {
    let patience = at(30);
    let mut client = Client::new("me".into(), PipelineMode::Off, at(5));
    let mut out = Vec::new();
    assert_eq!(client.deadline(patience), Some(at(35)), "the greeting");
    let mut input = b"220 hi\r\n".as_slice();
    client.next_event(&mut input, at(6), &mut out).unwrap();
    assert_eq!(client.deadline(patience), Some(at(36)), "EHLO");
    let mut input = b"250 hi\r\n".as_slice();
    client.next_event(&mut input, at(7), &mut out).unwrap();
    assert_eq!(client.deadline(patience), None, "nothing is asked");
    client.begin(Arc::new(Envelope::new("a@b", "", ["c@d"]).unwrap()), at(100), &mut out);
    assert_eq!(client.deadline(patience), Some(at(130)), "MAIL");
    let mut input = b"250 ok\r\n250 ok\r\n354 go\r\n".as_slice();
    while client.next_event(&mut input, at(101), &mut out).unwrap().is_some() {}
    assert_eq!(client.deadline(patience), None, "the message is the caller's");
    client.message_sent(at(200));
    assert_eq!(client.deadline(patience), Some(at(230)), "the final dot");
    client.progressed(at(220));
    assert_eq!(client.deadline(patience), Some(at(250)), "the peer still takes bytes");
}

#[test]
fn a_session_that_brings_no_message_ends_however_busy_it_is() {
    let limits = Limits { no_message_timeout: at(600), idle_commands: u32::MAX, ..Limits::default() };
    let mut server = Server::new(Arc::new(ServerSettings::new("test", limits)), at(0));
    let mut out = Vec::new();
    server.grant(at(0), &mut out);
    feed(&mut server, b"EHLO a\r\n", at(1), &mut out);
    let mut last_message = at(0);
    for second in (10..2000).step_by(10) {
        // The message at 1000 s has a bare LF. The session refuses this message, but counts it. A transaction that RSET
        // ends does not count as a message.
        let block: &[u8] = match second {
            500 => b"MAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nDATA\r\nx\r\n.\r\n",
            1000 => b"MAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nDATA\r\nx\ny\r\n.\r\n",
            _ => b"NOOP\r\nMAIL FROM:<a@b>\r\nRSET\r\n",
        };
        feed(&mut server, block, at(second), &mut out);
        if second == 500 || second == 1000 {
            last_message = at(second);
        }
        assert_eq!(server.deadline(), Some((at(second) + IDLE).min(last_message + at(600))));
        if server.deadline().unwrap() <= at(second + 10) {
            server.tick(at(second + 10), &mut out);
            assert!(text(&out).ends_with("421 4.7.0 Too long without a message\r\n") && server.is_closed());
            assert_eq!(second, 1590);
            return;
        }
    }
    panic!("the session never ended");
}

#[test]
fn a_message_that_has_begun_has_a_time_of_its_own() {
    let limits = Limits { no_message_timeout: at(600), message_timeout: MESSAGE, ..Limits::default() };
    let mut server = Server::new(Arc::new(ServerSettings::new("test", limits)), at(0));
    let mut out = Vec::new();
    server.grant(at(0), &mut out);
    feed(&mut server, TO_DATA, at(590), &mut out);
    assert_eq!(server.deadline(), Some(at(890)), "it may be silent for five minutes");
    feed(&mut server, b"x\r\n.\r\n", at(880), &mut out);
    assert_eq!(server.deadline(), Some(at(880) + IDLE), "and from its end the time begins anew");
}

/// Feeds the beginning of a message (`head`), and then a piece of its content after each pause of the length `step`.
/// Stops after `seconds` seconds, or with an error if the session ends earlier. The error is the time of its end.
fn feed_slowly(head: &[u8], piece: &[u8], step: Duration, rate: u64, seconds: u64) -> Result<(), Duration> {
    let limits = Limits { idle_timeout: at(60), message_timeout: MESSAGE, min_data_rate: rate, ..Limits::default() };
    let mut server = Server::new(Arc::new(ServerSettings::new("test", limits)), at(0));
    let mut out = Vec::new();
    server.grant(at(0), &mut out);
    feed(&mut server, head, at(0), &mut out);
    let mut now = at(0);
    while now < at(seconds) {
        now += step;
        server.tick(now, &mut out);
        if server.is_closed() {
            assert!(out.ends_with(b"421 4.4.2 Timeout\r\n"), "{}", text(&out));
            return Err(now);
        }
        feed(&mut server, piece, now, &mut out);
    }
    Ok(())
}

#[test]
fn a_message_that_comes_too_slowly_ends_the_session() {
    let to_rcpt = &TO_DATA[..TO_DATA.len() - 6];
    let chunk: &[u8] = b"BDAT 9999999\r\n";
    let refused_chunk = [b"EHLO a\r\n", chunk].concat();
    let second = at(1);
    for head in [TO_DATA.to_vec(), [to_rcpt, chunk].concat(), refused_chunk] {
        let head = head.as_slice();
        assert_eq!(feed_slowly(head, b"x", at(1) * 4 / 5, 500, 900), Err(Duration::from_millis(60_800)));
        assert_eq!(feed_slowly(head, &[b'x'; 499], second, 500, 900), Ok(()), "a minute is lost in 500");
        assert_eq!(feed_slowly(head, &[b'x'; 250], second, 500, 900), Err(at(119)), "half of it");
        // This client may pause for 50 s, because the idle timeout is 60 s. It then sends enough bytes to catch up.
        assert_eq!(feed_slowly(head, &[b'x'; 25_500], at(50), 500, 900), Ok(()));
        assert_eq!(feed_slowly(head, b"x", second, 0, 900), Ok(()), "no minimum");
        assert_eq!(feed_slowly(head, b"x", second, 0, 2000), Err(MESSAGE), "the whole time has a limit nevertheless");
    }
    // Many tiny chunks are too slow as well, because only the content of the chunks counts as progress.
    assert_eq!(feed_slowly(to_rcpt, b"BDAT 1\r\nx", second, 500, 900), Err(at(62)));
    assert_eq!(feed_slowly(to_rcpt, b"BDAT 0\r\n", second, 500, 900), Err(at(61)));
}
