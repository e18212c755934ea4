//! Malformed input to our sink over TCP. The sink must answer it or close the connection, go on serving other clients,
//! and count exactly the messages that got a 250.
use crate::party::{LIMIT, Sink, accepted, errors, source, took, wait_until};
use crate::secured::Secured;
use crate::wire::Wire;
use mailrun_measurement::Phase;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

const HELLO: &str = "EHLO client.example\r\n";
const ENVELOPE: &str = "MAIL FROM:<a@example.com>\r\nRCPT TO:<b@example.com>\r\nDATA\r\n";
const MESSAGE: &str = "Subject: x\r\n\r\nHello.\r\n..\r\n.\r\n";

/// Limit for the sink's peak memory. It is more than the program needs, and less than an endless client sends.
const MEMORY_BYTES: u64 = 48 << 20;

/// Sends a message on a new connection, to check that the sink still works.
fn deliver(sink: &Sink) {
    let mut wire = Wire::greeted(sink.smtp);
    wire.send([HELLO, ENVELOPE, MESSAGE, "QUIT\r\n"].concat());
    let codes: Vec<String> = wire.replies().iter().map(|reply| reply[..3].to_owned()).collect();
    assert_eq!(codes, ["250", "250", "250", "354", "250", "221"]);
}

fn begin(sink: &Sink) -> Wire {
    let mut wire = Wire::greeted(sink.smtp);
    wire.send([HELLO, ENVELOPE].concat());
    for code in ["250", "250", "250", "354"] {
        assert!(wire.reply().unwrap().starts_with(code));
    }
    wire
}

#[test]
fn a_client_may_be_cut_off_at_every_byte() {
    let sink = Sink::start(&[]);
    let whole = [HELLO, ENVELOPE, MESSAGE, ENVELOPE, MESSAGE, "QUIT\r\n"].concat();
    let mut answered = 0;
    for end in 0..=whole.len() {
        let mut wire = Wire::connect(sink.smtp);
        wire.send(&whole[..end]);
        wire.half_close();
        let replies = wire.replies();
        assert!(replies[0].starts_with("220"), "cut at {end}");
        // Replies 5 and 9 say whether the messages were accepted. Replies 1 to 10 are to EHLO, MAIL, RCPT, DATA,
        // message, MAIL, RCPT, DATA, message and QUIT.
        answered += [5, 9].iter().filter(|place| replies.get(**place).is_some_and(|it| it.starts_with("250"))).count();
    }
    let first = [HELLO, ENVELOPE, MESSAGE].concat().len();
    let second = [HELLO, ENVELOPE, MESSAGE, ENVELOPE, MESSAGE].concat().len();
    assert_eq!(answered, 2 * whole.len() + 2 - first - second, "a whole message is answered, whatever comes after it");
    assert_eq!(sink.took().messages, answered as u64);
}

#[test]
fn a_client_may_reset_at_every_byte() {
    let sink = Sink::start(&[]);
    let whole = [HELLO, ENVELOPE, MESSAGE].concat();
    for end in 0..whole.len() {
        let mut wire = Wire::greeted(sink.smtp);
        wire.send(&whole[..end]);
        wire.reset();
    }
    deliver(&sink);
    let took = sink.took();
    assert_eq!((took.messages, took.connections), (1, whole.len() as u64 + 1), "no half message counts");
}

#[test]
fn a_transaction_may_come_in_one_segment_or_byte_by_byte() {
    let sink = Sink::start(&[]);
    let mut wire = Wire::connect(sink.smtp);
    wire.send([HELLO, &[ENVELOPE, MESSAGE].concat().repeat(50), "QUIT\r\n"].concat());
    assert_eq!(wire.replies().len(), 2 + 50 * 4 + 1);
    let mut wire = Wire::greeted(sink.smtp);
    for byte in [HELLO, ENVELOPE, MESSAGE, "QUIT\r\n"].concat().as_bytes() {
        wire.send([*byte]);
    }
    assert_eq!(wire.replies().len(), 6);
    assert_eq!(sink.took().messages, 51);
}

#[test]
fn a_client_that_says_no_more_still_gets_its_answers() {
    let sink = Sink::start(&["--fault", "delay 50ms"]);
    let mut wire = Wire::connect(sink.smtp);
    wire.send([HELLO, ENVELOPE, MESSAGE, ENVELOPE, MESSAGE].concat());
    wire.half_close();
    let replies = wire.replies();
    assert_eq!(replies.iter().filter(|reply| reply.starts_with("250 2.0.0")).count(), 2, "{replies:?}");
    assert_eq!(sink.took().messages, 2);
}

#[test]
fn an_endless_line_costs_no_memory() {
    let sink = Sink::start(&[]);
    for start in ["", HELLO, &[HELLO, "NOOP "].concat(), &[HELLO, "MAIL FROM:<"].concat(), &[HELLO, ENVELOPE].concat()]
    {
        let mut wire = Wire::greeted(sink.smtp);
        wire.send(start);
        let block = vec![b'x'; 1 << 20];
        // The sink may close the connection, after which the kernel refuses further writes.
        let _ = (0..64).try_for_each(|_| wire.try_send(&block));
    }
    assert!(sink.process.peak_bytes() < MEMORY_BYTES, "{}", sink.process.peak_bytes());
    deliver(&sink);
    assert_eq!(sink.took().messages, 1);
}

#[test]
fn an_endless_message_is_ended() {
    let sink = Sink::start(&["--max-message-size", "1M"]);
    let mut wire = begin(&sink);
    let block = "0123456789\r\n".repeat(10_000);
    let sent = (0..1000).take_while(|_| wire.try_send(&block).is_ok()).count();
    assert!(sent < 1000, "the connection was closed on it");
    let mut wire = begin(&sink);
    wire.send(block.repeat(10));
    wire.send(".\r\n");
    assert!(wire.reply().unwrap().starts_with("552 5.3.4"));
    wire.send([ENVELOPE, MESSAGE].concat());
    assert!(wire.reply().unwrap().starts_with("250"), "the session goes on");
    assert!(sink.process.peak_bytes() < MEMORY_BYTES, "{}", sink.process.peak_bytes());
    deliver(&sink);
    assert!(sink.took().messages >= 1);
}

#[test]
fn a_message_that_is_too_long_is_answered_at_its_end_and_one_that_does_not_end_is_told_so() {
    let sink = Sink::start(&["--max-message-size", "64k"]);
    let block = "0123456789abcd\r\n".repeat(4096);
    let mut wire = begin(&sink);
    wire.send(block.repeat(2));
    wire.send(".\r\n");
    assert!(wire.reply().unwrap().starts_with("552 5.3.4"), "twice the limit");
    wire.send([ENVELOPE, &block.repeat(3), ".\r\n"].concat());
    assert_eq!((0..4).map(|_| wire.reply().unwrap()[..3].to_owned()).collect::<Vec<_>>(), ["250", "250", "354", "552"]);
    // The client can still read the reply, because the sink does not reset a connection with unread input.
    let mut wire = begin(&sink);
    wire.send(block.repeat(32));
    assert_eq!(wire.replies(), ["421 4.3.4 Message far too big\r\n"]);
    assert!(!wire.was_reset(), "it ends in order");
    deliver(&sink);
    let record = sink.stop();
    let counts = [552, 421].map(|code| errors(&record, Phase::Reply, code));
    assert_eq!((counts, took(&record).messages), ([2, 1], 1));
}

/// HTTP and other protocols that reach the wrong port, each followed by a mail transaction.
pub(crate) fn other_protocols() -> Vec<Vec<u8>> {
    let mail = [HELLO, ENVELOPE, MESSAGE, "QUIT\r\n"].concat();
    let fields = format!("Host: 127.0.0.1:25\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n", mail.len());
    let requests = ["GET /", "POST /", "PUT /a", "HEAD /", "OPTIONS *", "CONNECT 127.0.0.1:25", "PROPFIND /"];
    let mut all: Vec<Vec<u8>> =
        requests.iter().map(|request| format!("{request} HTTP/1.1\r\n{fields}{mail}").into_bytes()).collect();
    all.push(format!("POST /{} HTTP/1.1\r\n{fields}{mail}", "x".repeat(5000)).into_bytes());
    all.push(format!("POST / HTTP/1.0\n{}\n{mail}", fields.replace('\r', "")).into_bytes());
    all.push(format!("{fields}{mail}").into_bytes());
    all.push(format!("SSH-2.0-OpenSSH_9.9\r\n{mail}").into_bytes());
    all.push(format!("OPTIONS sip:nm SIP/2.0\r\n{mail}").into_bytes());
    // This is a ClientHello whose session id contains SMTP commands.
    all.push([b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n", mail.as_bytes()].concat());
    all.push(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec());
    all.push(format!("A\r\nB\r\nC\r\nD\r\n{mail}").into_bytes());
    all
}

/// Sends `said` in one piece after the greeting. All replies must be refusals (4yz or 5yz), and the last must be 421.
pub(crate) fn is_hung_up_on(address: SocketAddr, said: &[u8]) {
    let mut wire = Wire::greeted(address);
    wire.send(said);
    let replies = wire.replies();
    let text = String::from_utf8_lossy(&said[..said.len().min(60)]).into_owned();
    assert!(replies.last().is_some_and(|last| last.starts_with("421 4.7.0 ")), "{text:?}: {replies:?}");
    assert!(replies.iter().all(|reply| reply.starts_with(['4', '5'])), "{text:?}: {replies:?}");
    assert!(!wire.was_reset(), "{text:?}: the reply can be read");
}

#[test]
fn other_protocols_are_hung_up_on() {
    let sink = Sink::start(&[]);
    let all = other_protocols();
    all.iter().for_each(|said| is_hung_up_on(sink.smtp, said));
    // This sink offers STARTTLS, but must not accept a ClientHello without that command.
    let secured = Secured::start("starttls", &[]);
    all.iter().for_each(|said| is_hung_up_on(secured.sink.smtp, said));
    deliver(&sink);
    let record = sink.stop();
    assert_eq!(took(&record).messages, 1, "nothing else was taken");
    assert_eq!(errors(&record, Phase::Reply, 421), all.len() as u64);
}

#[test]
fn garbage_is_refused_or_closed_on() {
    let sink = Sink::start(&[]);
    let all_octets: Vec<u8> = (0..=255).cycle().take(20_000).collect();
    let garbage: [&[u8]; 7] = [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\0\0\0\0\r\n",
        b"\r\n\r\n\r\n\n\n\n\r\r\r",
        &all_octets,
        &b"QUIT \r\nRCPT\r\n".repeat(1000),
        &b"\xff\xfe\xfd\r\n".repeat(5000),
    ];
    for bytes in garbage {
        let mut wire = Wire::greeted(sink.smtp);
        // Ignore errors, because the sink may close the connection before it has read everything.
        let _ = wire.try_send(bytes).and_then(|()| wire.try_send("\r\nQUIT\r\n"));
        wire.half_close();
        for reply in wire.replies() {
            assert!(reply.starts_with(['4', '5']) || reply.starts_with("221"), "{reply}");
        }
    }
    deliver(&sink);
    assert_eq!(sink.took().messages, 1);
}

#[test]
fn a_client_that_only_fails_is_hung_up_on() {
    let sink = Sink::start(&[]);
    let mut wire = Wire::greeted(sink.smtp);
    wire.send("WHAT\r\n".repeat(100));
    let replies = wire.replies();
    assert!(replies.len() < 30 && replies.last().unwrap().starts_with("421"), "{replies:?}");
}

#[test]
fn a_silent_client_is_told_and_left() {
    let sink = Sink::start(&["--idle-timeout", "3s"]);
    let mut wires = [Wire::greeted(sink.smtp), begin(&sink)];
    wires[1].send("Subject: never finished\r\n");
    for wire in &mut wires {
        assert_eq!(wire.replies(), ["421 4.4.2 Timeout\r\n"]);
    }
    let record = sink.stop();
    assert_eq!(errors(&record, Phase::Reply, 421), 2);
}

#[test]
fn a_dripped_command_does_not_keep_a_session() {
    let sink = Sink::start(&["--idle-timeout", "3s"]);
    let mut wire = Wire::greeted(sink.smtp);
    let dripped = (0..600).take_while(|_| wire.try_send("x").is_ok() && !wire.hears_within(Duration::from_millis(100)));
    let count = dripped.count();
    assert!((3..600).contains(&count), "after three seconds, not at once and not never: {count}");
    assert_eq!(wire.replies(), ["421 4.4.2 Timeout\r\n"]);
}

#[test]
fn a_client_that_reads_nothing_is_left() {
    let sink = Sink::start(&["--idle-timeout", "3s"]);
    let mut wire = Wire::greeted(sink.smtp);
    wire.send(HELLO);
    // The client reads no replies. They pile up until the sink stops reading and finally closes.
    let group = [ENVELOPE, MESSAGE].concat().repeat(1000);
    wait_until("the connection to be closed on", || wire.try_send(&group).err());
    assert!(sink.process.peak_bytes() < MEMORY_BYTES, "{}", sink.process.peak_bytes());
    deliver(&sink);
}

#[test]
fn smuggled_endings_end_no_message() {
    let endings = [
        "\n.\n",
        "\r.\r",
        "\r.\n",
        "\n.\r",
        "\n.\r\n",
        "\r\n.\n",
        "\r.\r\n",
        "\r\n.\r",
        "\r\n.\r\r\n",
        "\r\r\n.\r\r\n",
        "\r\n\0.\r\n",
        "\r\n.\0\r\n",
    ];
    let sink = Sink::start(&[]);
    for ending in endings {
        let smuggled = [ENVELOPE, MESSAGE].concat();
        let mut wire = begin(&sink);
        wire.send(["Subject: bait\r\n\r\nHello.", ending, &smuggled].concat());
        let reply = wire.reply().unwrap();
        assert!(reply.starts_with("550 5.5.2"), "{ending:?}: {reply}");
        assert!(wire.say("NOOP").starts_with("250"), "{ending:?}: one message, one answer");
    }
    deliver(&sink);
    assert_eq!(sink.took().messages, 1);
}

#[test]
fn sessions_beyond_the_limit_are_told_to_come_later() {
    let sink = Sink::start(&["--max-sessions", "2", "--workers", "1"]);
    let held = [Wire::greeted(sink.smtp), Wire::greeted(sink.smtp)];
    assert_eq!(Wire::connect(sink.smtp).replies(), ["421 4.3.2 Too many sessions, try again later\r\n"]);
    drop(held);
    wait_until("there to be room again", || {
        Wire::connect(sink.smtp).reply().filter(|greeting| greeting.starts_with("220"))
    });
}

#[test]
fn the_session_limit_holds_over_all_workers() {
    let sink = Sink::start(&["--max-sessions", "5", "--workers", "4"]);
    let mut wires: Vec<Wire> = (0..20).map(|_| Wire::connect(sink.smtp)).collect();
    let taken = wires.iter_mut().filter_map(Wire::reply).filter(|greeting| greeting.starts_with("220")).count();
    assert_eq!(taken, 5);
}

#[test]
fn a_sink_ends_by_itself_and_the_last_client_has_its_answer() {
    let sink = Sink::start(&["--max-messages", "3"]);
    let mut wire = begin(&sink);
    wire.send([MESSAGE, ENVELOPE, MESSAGE, ENVELOPE, MESSAGE].concat());
    let replies = wire.replies();
    assert_eq!(replies.iter().filter(|reply| reply.starts_with("250 2.0.0")).count(), 3, "{replies:?}");
    assert_eq!(took(&sink.end()).messages, 3);
}

#[test]
fn a_sink_that_has_enough_counts_what_it_answers() {
    for words in [["--reuse", "--pipelining=off"], ["--reuse=3", "--pipelining=stream"]] {
        let sink = Sink::start(&["--max-messages", "500"]);
        let ours = source(&sink.address(), &[words.as_slice(), &["--messages", "600", "--sessions", "20"]].concat());
        let took = took(&sink.end());
        assert!(took.messages >= 500, "{words:?}");
        assert_eq!(accepted(&ours.record), took.messages, "{words:?}: each that heard 250 is counted, and no other");
    }
}

#[test]
fn a_sink_that_is_stopped_counts_what_it_answered() {
    let sink = Sink::start(&[]);
    let address = sink.address();
    let sender = thread::spawn(move || source(&address, &["--duration", "3s", "--sessions", "20", "--reuse"]));
    wait_until("messages to arrive", || (sink.ask("/status")["messages"].as_u64()? > 0).then_some(()));
    let took = sink.took();
    let ours = sender.join().unwrap();
    assert!(took.messages > 0);
    assert_eq!(accepted(&ours.record), took.messages);
}

#[test]
fn many_clients_at_once_are_all_served() {
    let sink = Sink::start(&[]);
    let mut wires: Vec<Wire> = (0..500).map(|_| Wire::connect(sink.smtp)).collect();
    for wire in &mut wires {
        wire.send([HELLO, ENVELOPE, MESSAGE].concat());
    }
    for wire in &mut wires {
        assert_eq!((0..6).filter_map(|_| wire.reply()).count(), 6, "within {LIMIT:?}");
    }
    assert_eq!(sink.took().messages, 500);
}
