//! Our source against servers that misbehave. The source must count the errors by phase and code, and go on.
use crate::party::{SourceRun, accepted, errors, source};
use crate::stand_in::{Act, At, Delivery, StandIn};
use mailrun_measurement::{Phase, Stage};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

const POINTS: [(At, Phase); 8] = [
    (At::Greeting, Phase::Banner),
    (At::Hello, Phase::Ehlo),
    (At::Mail, Phase::Mail),
    (At::Recipient, Phase::Rcpt),
    (At::Data, Phase::Data),
    (At::Body, Phase::Reply),
    (At::Message, Phase::Reply),
    (At::Quit, Phase::Quit),
];
const MODES: [&str; 3] = ["off", "group", "stream"];

fn send(server: &StandIn, words: &[&str]) -> SourceRun {
    source(&server.address(), &[&["--sessions", "1"], words].concat())
}

fn outcome(run: &SourceRun) -> (u64, u64) {
    let ledger = &run.record.ledger;
    let not_accepted = ledger.rejected.unwrap() + broken(run);
    assert_eq!(ledger.accepted.unwrap() + not_accepted, ledger.created.unwrap(), "{ledger:?}");
    assert_eq!(ledger.accepted, Some(accepted(&run.record)));
    assert_eq!(run.ended.code, Some(i32::from(not_accepted > 0)), "{:?}", run.record.verdict);
    (accepted(&run.record), not_accepted)
}

/// Number of messages without a reply, because the connection broke before or after the end of the message.
fn broken(run: &SourceRun) -> u64 {
    run.record.ledger.failed.unwrap() + run.record.ledger.in_doubt.unwrap()
}

/// For each point of the dialogue in `POINTS`, the server misbehaves at this point of the second connection. All
/// messages on other connections must arrive.
fn one_connection_fails(act: Act, words: &[&str]) {
    // Run the cases in parallel, because each case with a silent server takes seconds.
    thread::scope(|scope| POINTS.iter().for_each(|at| drop(scope.spawn(|| one_connection_fails_at(at, act, words)))));
}

fn one_connection_fails_at(&(point, phase): &(At, Phase), act: Act, words: &[&str]) {
    let server = StandIn::start(move |now| (now.connection == 1 && now.at == point).then_some(act));
    let run = send(&server, &[&["--messages", "5"], words].concat());
    let lost = u64::from(point != At::Quit);
    assert_eq!(outcome(&run), (5 - lost, lost), "{act:?} at {point:?}: {:?}", run.record.errors);
    assert_eq!(broken(&run), lost, "the server said no to nothing: {act:?} at {point:?}");
    // After sending the last byte, the source cannot know whether the server has accepted the message. The messages
    // here are short, so the source has sent the whole message before the server reads the first byte.
    let in_doubt = if matches!(point, At::Body | At::Message) { lost } else { 0 };
    assert_eq!(run.record.ledger.in_doubt, Some(in_doubt), "{act:?} at {point:?}");
    assert_eq!(server.taken(), 5 - lost, "{act:?} at {point:?}");
    // If the server resets a connection at once, the source may count this as a failure to connect.
    let early = if point == At::Greeting { errors(&run.record, Phase::Connect, 0) } else { 0 };
    assert_eq!(errors(&run.record, phase, 0) + early, lost, "{act:?} at {point:?}: {:?}", run.record.errors);
}

#[test]
fn a_server_that_closes_costs_a_message() {
    one_connection_fails(Act::Close, &[]);
}

#[test]
fn a_server_that_resets_costs_a_message() {
    one_connection_fails(Act::Reset, &[]);
}

#[test]
fn a_server_that_falls_silent_is_given_up() {
    // The timeout is long enough that a busy machine does not cause further time-outs.
    one_connection_fails(Act::Silence, &["--timeout", "5s"]);
}

#[test]
fn a_server_that_closes_in_mid_session_costs_no_more_than_what_was_under_way() {
    for mode in MODES {
        // If the server closes after MAIL, the source sends the message on its next connection, so no message is lost.
        for (point, lost) in [(At::Mail, 0), (At::Data, 1), (At::Message, 1)] {
            let server = StandIn::start(move |now| {
                (now.connection == 0 && now.at == point && now.before == 3).then_some(Act::Close)
            });
            let run = send(&server, &["--messages", "20", "--reuse", "--pipelining", mode]);
            assert_eq!(outcome(&run), (20 - lost, lost), "{mode} {point:?}");
            let in_doubt = if point == At::Message { lost } else { 0 };
            assert_eq!((server.taken(), broken(&run)), (20 - lost, lost), "{mode} {point:?}");
            assert_eq!(run.record.ledger.in_doubt, Some(in_doubt), "{mode} {point:?}");
        }
    }
}

#[test]
fn refusals_are_counted_by_phase_and_code_and_the_run_goes_on() {
    let table =
        [(At::Mail, Phase::Mail), (At::Recipient, Phase::Rcpt), (At::Data, Phase::Data), (At::Message, Phase::Reply)];
    for (point, phase) in table {
        for (reply, code) in [("451 4.3.0 Later", 451), ("554-5.7.1 Never\r\n554 5.7.1 at all", 554)] {
            for mode in MODES {
                let server =
                    StandIn::start(move |now| (now.at == point && now.before % 2 == 0).then_some(Act::Say(reply)));
                let run = send(&server, &["--messages", "10", "--reuse", "--pipelining", mode]);
                let case = format!("{reply} to {point:?}, {mode}: {:?}", run.record.errors);
                assert_eq!(outcome(&run), (5, 5), "{case}");
                assert_eq!(errors(&run.record, phase, code), 5, "{case}");
                assert_eq!((run.record.ledger.rejected, run.record.ledger.failed), (Some(5), Some(0)), "{case}");
                assert!(run.record.errors.iter().any(|row| row.text.contains(&reply[4..9])), "{case}");
            }
        }
    }
}

#[test]
fn a_server_that_refuses_everything_makes_the_run_fail() {
    for (point, phase) in [(At::Greeting, Phase::Banner), (At::Hello, Phase::Ehlo), (At::Mail, Phase::Mail)] {
        for (reply, code) in [("421 4.3.2 Closed", 421), ("554 5.7.1 No", 554)] {
            let server = StandIn::start(move |now| (now.at == point).then_some(Act::Say(reply)));
            let run = send(&server, &["--messages", "4"]);
            assert_eq!((run.ended.code, outcome(&run)), (Some(1), (0, 4)), "{reply} to {point:?}");
            let counted = errors(&run.record, phase, code);
            // If the server refuses EHLO, the source tries HELO. The server refuses HELO as well, so each of the four
            // sessions may count two refusals.
            assert!(counted == 4 || (point == At::Hello && counted == 8), "{reply} to {point:?}: {counted}");
        }
    }
}

#[test]
fn a_server_that_refuses_to_greet_hears_quit() {
    for (reply, is_said) in [("554 5.3.2 No service", 1), ("421 4.3.2 Closed", 0)] {
        let quits = Arc::new(AtomicU64::new(0));
        let heard = Arc::clone(&quits);
        let server = StandIn::start(move |now| {
            heard.fetch_add(u64::from(now.at == At::Quit), Ordering::SeqCst);
            (now.at == At::Greeting).then_some(Act::Say(reply))
        });
        let run = send(&server, &["--messages", "4"]);
        assert_eq!((run.ended.code, outcome(&run)), (Some(1), (0, 4)), "{reply}");
        assert_eq!(quits.load(Ordering::SeqCst), 4 * is_said, "{reply} (RFC 5321 §3.1, §3.8)");
        assert_eq!(run.record.errors.iter().map(|row| row.count).sum::<u64>(), 4, "{reply}: {:?}", run.record.errors);
    }
}

#[test]
fn a_server_that_goes_ahead_with_a_mail_it_refused_takes_nothing() {
    for mode in ["group", "stream"] {
        let server = StandIn::start(|now| match now.at {
            At::Mail => Some(Act::Say("550 5.7.1 Not from you")),
            // The server has refused MAIL, but accepts RCPT and DATA. It closes after the final dot.
            At::Other => Some(Act::Say(["250 2.1.5 Ok", "354 Go on"][now.before as usize % 2])),
            _ => None,
        });
        let run = send(&server, &["--messages", "6", "--reuse", "--pipelining", mode]);
        assert_eq!((run.ended.code, accepted(&run.record)), (Some(1), 0), "{mode}");
        assert_eq!(server.strays(), 2 * 6, "{mode}: nothing of a message but its end (RFC 2920 §3.1)");
        assert_eq!(errors(&run.record, Phase::Mail, 550), 6, "{mode}: {:?}", run.record.errors);
    }
}

#[test]
fn a_server_that_says_go_ahead_to_nobody_takes_nothing() {
    for mode in ["group", "stream"] {
        let server = StandIn::start(|now| match now.at {
            At::Recipient => Some(Act::Say("550 5.1.1 Nobody")),
            At::Data => Some(Act::Say("354 Go on all the same")),
            _ => None,
        });
        let run = send(&server, &["--messages", "6", "--recipients", "2", "--reuse", "--pipelining", mode]);
        assert_eq!((run.ended.code, accepted(&run.record)), (Some(1), 0), "{mode}");
        assert_eq!(run.record.ledger.rejected, Some(12), "{mode}");
        assert_eq!(errors(&run.record, Phase::Rcpt, 550), 12, "{mode}");
    }
}

#[test]
fn some_recipients_may_be_refused() {
    for mode in MODES {
        let server = StandIn::start(|now| {
            (now.at == At::Recipient && now.before % 3 == 1).then_some(Act::Say("550 5.1.1 Nobody"))
        });
        let run = send(&server, &["--messages", "10", "--recipients", "3", "--reuse", "--pipelining", mode]);
        assert_eq!((run.ended.code, accepted(&run.record), server.taken()), (Some(1), 10, 10), "{mode}");
        assert_eq!((run.record.ledger.accepted, run.record.ledger.rejected), (Some(20), Some(10)), "{mode}");
        assert_eq!(errors(&run.record, Phase::Rcpt, 550), 10, "{mode}");
    }
}

#[test]
fn a_421_in_mid_session_moves_the_run_to_a_new_connection() {
    for point in [At::Mail, At::Recipient, At::Data, At::Message] {
        let server = StandIn::start(move |now| {
            (now.connection == 0 && now.at == point && now.before == 4).then_some(Act::Say("421 4.3.2 Restarting"))
        });
        let run = send(&server, &["--messages", "10", "--reuse"]);
        assert_eq!((run.record.ledger.rejected, outcome(&run)), (Some(1), (9, 1)), "{point:?}");
        assert_eq!(
            run.record.errors.iter().map(|row| (row.code, row.count)).collect::<Vec<_>>(),
            [(421, 1)],
            "{point:?}"
        );
        let connections = run.record.phases.iter().find(|row| row.name == Phase::Connect).unwrap().count;
        assert_eq!(connections, 2, "{point:?}");
    }
}

#[test]
fn a_message_that_may_have_been_accepted_before_a_421_is_in_doubt() {
    // The server's 250 has no enhanced status code, so the source cannot see that this reply belongs to the message.
    for protocol in [&[][..], &["--lmtp"]] {
        let server = StandIn::start(|now| match (now.connection, now.at) {
            (_, At::Message) => Some(Act::Say("250 OK id=1")),
            (0, At::Mail) if now.before == 4 => Some(Act::Say("421 4.3.2 Restarting")),
            (0, At::Other) => Some(Act::Close),
            _ => None,
        });
        let words = ["--messages", "10", "--reuse", "--pipelining", "stream"];
        let run = send(&server, &[&words, protocol].concat());
        let ledger = &run.record.ledger;
        assert_eq!((ledger.rejected, ledger.in_doubt, outcome(&run)), (Some(1), Some(1), (8, 2)), "{protocol:?}");
    }
}

#[test]
fn a_session_of_which_the_server_has_lost_track_is_replaced() {
    for mode in MODES {
        let server = StandIn::start(|now| match now.at {
            At::Recipient if now.connection == 0 && now.before == 0 => Some(Act::Say("550 5.1.1 Nobody")),
            At::Reset => Some(Act::Say("503 5.5.1 Bad sequence")),
            At::Mail if now.connection == 0 && now.before > 0 => Some(Act::Say("503 5.5.1 Bad sequence")),
            _ => None,
        });
        let run = send(&server, &["--messages", "20", "--reuse", "--pipelining", mode]);
        assert_eq!((run.record.ledger.rejected, outcome(&run)), (Some(1), (19, 1)), "{mode}");
    }
}

#[test]
fn replies_may_come_byte_by_byte() {
    for mode in MODES {
        let server = StandIn::with(Delivery::ByteByByte, |_| None);
        let run = send(&server, &["--messages", "20", "--reuse", "--pipelining", mode]);
        assert_eq!((run.ended.code, outcome(&run), server.taken()), (Some(0), (20, 0), 20), "{mode}");
    }
}

#[test]
fn endless_replies_are_cut_off() {
    let floods: [&[u8]; 4] = [b"250-and on\r\n", b"2", b"250 x", b"\r\n"];
    for flood in floods {
        for point in [At::Greeting, At::Hello, At::Mail] {
            let server =
                StandIn::start(move |now| (now.connection == 0 && now.at == point).then_some(Act::Flood(flood)));
            let run = send(&server, &["--messages", "3"]);
            let case = format!("{:?} at {point:?}: {:?}", String::from_utf8_lossy(flood), run.record.errors);
            assert_eq!((run.record.ledger.failed, outcome(&run)), (Some(1), (2, 1)), "{case}");
            assert_eq!(run.record.errors.len(), 1, "{case}");
            let memory = run.record.parties[0].max_rss_bytes.unwrap();
            assert!(memory < 48 << 20, "{case}: {memory} bytes");
        }
    }
}

#[test]
fn what_is_no_reply_ends_the_connection_and_not_the_run() {
    for garbage in
        ["HTTP/1.1 400 Bad Request", "\u{16}\u{3}\u{1}", " ", "2x0 hm", "25", "999 what", "250 a\r\n250 b\r\n250 c"]
    {
        for point in [At::Greeting, At::Mail, At::Message] {
            let server =
                StandIn::start(move |now| (now.connection == 0 && now.at == point).then_some(Act::Say(garbage)));
            let run = send(&server, &["--messages", "4", "--timeout", "10s"]);
            let case = format!("{garbage:?} at {point:?}: {:?}", run.record.errors);
            let (accepted, rejected) = outcome(&run);
            assert!(accepted >= 3 && accepted + rejected == 4, "{case}");
        }
    }
}

#[test]
fn large_messages_to_a_server_that_cuts_them_off_are_counted_once() {
    let server = StandIn::start(|now| (now.connection == 0 && now.at == At::Body).then_some(Act::Reset));
    let run = send(&server, &["--messages", "3", "--message-size", "20M"]);
    assert_eq!(
        (run.record.ledger.failed, outcome(&run), server.taken()),
        (Some(1), (2, 1), 2),
        "{:?}",
        run.record.errors
    );
    let row = run.record.stage(Stage::Accepted).unwrap();
    assert_eq!(row.bytes, 2 * (20 << 20));
}

#[test]
fn a_server_that_speaks_before_a_large_message_ends_is_heard() {
    let server = StandIn::start(|now| (now.at == At::Body).then_some(Act::Say("552 5.3.4 Too big")));
    let run = send(&server, &["--messages", "2", "--message-size", "5M", "--reuse"]);
    assert_eq!((run.ended.code, accepted(&run.record)), (Some(1), 0), "{:?}", run.record.errors);
    assert_eq!(errors(&run.record, Phase::Reply, 552), 2, "{:?}", run.record.errors);
}

#[test]
fn what_was_left_of_a_cut_connection_goes_to_no_other() {
    for mode in MODES {
        let server = StandIn::start(|now| (now.connection % 3 == 0 && now.at == At::Body).then_some(Act::Reset));
        let words =
            ["--messages", "60", "--sessions", "6", "--workers", "1", "--message-size", "1M", "--pipelining", mode];
        let run = source(&server.address(), &[words.as_slice(), &["--reuse=2"]].concat());
        let (accepted, rejected) = outcome(&run);
        assert_eq!((server.strays(), server.taken(), accepted + rejected), (0, accepted, 60), "{mode}");
        assert!(rejected > 0, "{mode}: {:?}", run.ended);
    }
}
