//! The crates as another program embeds them: a server with its own handler and a client, in one process.
use crate::party::{Sink, wait_until};
use crate::stand_in::{Act, At, StandIn};
use crate::wire::Wire;
use mailrun_net::{Answer, Client, ClientLimits, CloseReason, Handler, Peer, Proxied, RunningServer, Server, Service};
use mailrun_smtp::command::{Hello, Mail};
use mailrun_smtp::{Envelope, Limits, Path};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(30);

/// A handler that reports every call of its functions to the test, as a line of text.
struct Diary {
    peer: Peer,
    message: Vec<u8>,
    lines: Sender<String>,
}

impl Diary {
    fn write(&self, line: String) {
        // Ignore the error, because the test may have stopped listening.
        let _ = self.lines.send(line);
    }
}

impl Handler for Diary {
    fn connect(&mut self, _now: Duration) -> Answer {
        assert!(self.peer.address.ip().is_loopback());
        self.write("connect".to_owned());
        Answer::Yes
    }

    fn hello(&mut self, hello: Hello, name: &[u8]) -> Answer {
        self.write(format!("{hello:?} {}", String::from_utf8_lossy(name)));
        Answer::Yes
    }

    fn mail(&mut self, mail: &Mail<'_>) -> Answer {
        match mail.sender.as_bytes() {
            b"spam@example.com" => Answer::reply(550, "5.7.1 Not from you"),
            sender => {
                self.write(format!("from {}", String::from_utf8_lossy(sender)));
                Answer::Yes
            }
        }
    }

    fn recipient(&mut self, recipient: &Path<'_>) -> Answer {
        let address = String::from_utf8_lossy(recipient.as_bytes()).into_owned();
        match recipient.local_part() {
            b"nobody" => Answer::reply(550, "5.1.1 Nobody lives here"),
            b"slow" => Answer::later(async move {
                mailrun_net::sleep(Duration::from_millis(30)).await;
                None
            }),
            _ => {
                self.write(format!("to {address}"));
                Answer::Yes
            }
        }
    }

    fn block(&mut self, block: &[u8]) {
        self.message.extend_from_slice(block);
    }

    fn message(&mut self, bytes: u64, _now: Duration) -> Answer {
        let message = std::mem::take(&mut self.message);
        assert_eq!(bytes, message.len() as u64);
        let text = String::from_utf8_lossy(&message).into_owned();
        if text.contains("virus") {
            return Answer::later(async { Some(mailrun_smtp::Reply::new(554, "5.7.1 Ill")) });
        }
        self.write(format!("message {text}"));
        Answer::Yes
    }

    fn disconnect(&mut self, parting: CloseReason) {
        self.write(format!("{parting:?}"));
    }
}

fn start(limits: Limits) -> (RunningServer, Receiver<String>) {
    let (lines, diary) = channel();
    let make = move || {
        let lines = lines.clone();
        move |peer| Diary { peer, message: Vec::new(), lines: lines.clone() }
    };
    (Server::new(make).name("embedded.example").limits(limits).start(([127, 0, 0, 1], 0).into()).unwrap(), diary)
}

fn envelope(sender: &str, recipients: &[&str]) -> Arc<Envelope> {
    Arc::new(Envelope::new(sender, "", recipients.iter().copied()).unwrap())
}

#[test]
fn a_handler_hears_what_a_client_says() {
    let (server, diary) = start(Limits::default());
    let address = server.address();
    let deliveries = {
        let mut client = Client::connect(address, "client.example", PATIENCE).unwrap();
        let two = envelope("me@example.com", &["you@example.com", "nobody@example.com", "slow@example.com"]);
        let dotted = client.send(&two, b"Subject: a\r\n\r\n.\r\n..\r\n").unwrap();
        let ill = client.send(&envelope("", &["you@example.com"]), b"\r\na virus\r\n").unwrap();
        let spam = client.send(&envelope("spam@example.com", &["you@example.com"]), b"\r\n").unwrap();
        let nobody = client.send(&envelope("me@example.com", &["nobody@example.com"]), b"\r\n").unwrap();
        let last = client.send(&envelope("me@example.com", &["you@example.com"]), b"\r\nbye\r\n").unwrap();
        client.quit().unwrap();
        [dotted, ill, spam, nobody, last]
    };
    assert_eq!(deliveries.each_ref().map(|it| it.accepted), [true, false, false, false, true]);
    assert_eq!(deliveries[0].refused.iter().map(|(place, code, _)| (*place, *code)).collect::<Vec<_>>(), [(1, 550)]);
    assert_eq!((deliveries[1].code, deliveries[2].code), (554, 550));
    assert!(deliveries[2].text.contains("Not from you"), "{:?}", deliveries[2]);
    server.stop();
    let heard: Vec<String> = diary.iter().collect();
    let expected = [
        "connect",
        "Extended client.example",
        "from me@example.com",
        "to you@example.com",
        "message Subject: a\r\n\r\n.\r\n..\r\n",
        "from ",
        "to you@example.com",
        "from me@example.com",
        "from me@example.com",
        "to you@example.com",
        "message \r\nbye\r\n",
        "Quit",
    ];
    assert_eq!(heard, expected);
}

#[test]
fn a_client_whose_messages_fail_may_say_rset_after_each() {
    let (server, _diary) = start(Limits::default());
    let mut client = Client::connect(server.address(), "client.example", PATIENCE).unwrap();
    let nobody = envelope("me@example.com", &["nobody@example.com"]);
    for number in 0..2 * Limits::default().junk_commands {
        let delivery = client.send(&nobody, b"\r\n").unwrap();
        assert_eq!(delivery.code, 554, "message {number}");
    }
    client.quit().unwrap();
}

#[test]
fn a_client_that_is_turned_away_says_why_whether_or_not_the_server_waits_for_quit() {
    let patient = StandIn::start(|now| (now.at == At::Greeting).then_some(Act::Say("554 5.3.2 Not today")));
    let sink = Sink::start(&["--fault", "connect: hard reject \"554 5.3.2 Not today\""]);
    for address in [patient.address, sink.smtp] {
        match Client::connect(address, "client.example", PATIENCE) {
            Err(mailrun_net::Error::Closed(last)) => assert_eq!(last, "554 5.3.2 Not today"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_large_message_goes_through_as_it_is() {
    let (server, diary) = start(Limits::default());
    let address = server.address();
    let text = format!("Subject: large\r\n\r\n{}", ".0123456789\r\n".repeat(200_000));
    let delivery = {
        let mut client = Client::connect(address, "client.example", PATIENCE).unwrap();
        client.send(&envelope("a@example.com", &["b@example.com"]), text.as_bytes()).unwrap()
    };
    assert!(delivery.accepted, "{delivery:?}");
    server.stop();
    assert!(diary.iter().any(|line| line.strip_prefix("message ") == Some(&text)));
}

#[test]
fn a_server_that_stops_says_so() {
    let (server, diary) = start(Limits::default());
    let mut wire = crate::wire::Wire::greeted(server.address());
    server.stop();
    assert_eq!(wire.replies(), ["421 4.3.2 Shutting down\r\n"]);
    assert_eq!(diary.iter().collect::<Vec<_>>(), ["connect", "ShuttingDown"]);
}

/// A handler that tells the test that a message has arrived, and accepts the message only after a second, as if storing
/// it took so long.
struct Slow(Sender<()>);

impl Handler for Slow {
    fn message(&mut self, _bytes: u64, _now: Duration) -> Answer {
        self.0.send(()).unwrap();
        Answer::later(async {
            mailrun_net::sleep(Duration::from_secs(1)).await;
            None
        })
    }
}

#[test]
fn a_server_that_stops_answers_the_messages_that_it_is_storing() {
    let (begun, storing) = channel();
    let make = move || {
        let begun = begun.clone();
        move |_peer| Slow(begun.clone())
    };
    let server = Server::new(make).workers(1).start(([127, 0, 0, 1], 0).into()).unwrap();
    let mut idle = Wire::greeted(server.address());
    let mut busy = Wire::greeted(server.address());
    busy.say("EHLO client.example");
    // The client sends two messages at once. The server stops while it stores the first message, so it must answer the
    // other message with 421 and not store it.
    let message = "MAIL FROM:<a@b.example>\r\nRCPT TO:<c@d.example>\r\nBDAT 6 LAST\r\n\r\nhi\r\n";
    busy.send([message, message].concat());
    storing.recv_timeout(PATIENCE).unwrap();
    server.stop();
    let stopped = "421 4.3.2 Shutting down\r\n";
    assert_eq!(busy.replies(), ["250 2.1.0 Ok\r\n", "250 2.1.5 Ok\r\n", "250 2.0.0 Ok\r\n", stopped]);
    assert_eq!(idle.replies(), [stopped]);
    assert_eq!(storing.try_iter().count(), 0);
}

#[test]
fn a_client_learns_why_it_cannot_go_on() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let error = Client::connect(address, "client.example", Duration::from_millis(500));
    assert!(matches!(error, Err(mailrun_net::Error::Timeout(_))), "{error:?}");
    // The idle timeout is 3 s, because a client on a busy machine needs time to send EHLO.
    let (server, diary) = start(Limits { idle_timeout: Duration::from_secs(3), ..Limits::default() });
    let address = server.address();
    let error = {
        let mut client = Client::connect(address, "client.example", PATIENCE).unwrap();
        let has_ended = |line: String| line == "Timeout";
        while !has_ended(diary.recv_timeout(PATIENCE).expect("the server ends it")) {}
        client.send(&envelope("a@example.com", &["b@example.com"]), b"\r\n")
    };
    assert!(matches!(error, Err(mailrun_net::Error::Closed(_) | mailrun_net::Error::Network(_))), "{error:?}");
}

/// A handler that panics on one message.
struct Faulty;

impl Handler for Faulty {
    fn message(&mut self, bytes: u64, _now: Duration) -> Answer {
        assert_ne!(bytes, 13, "the bug");
        Answer::Yes
    }
}

#[test]
fn a_handler_that_panics_ends_its_session_and_no_other() {
    let server = Server::new(|| |_peer| Faulty).workers(1).start(([127, 0, 0, 1], 0).into()).unwrap();
    let mut bystander = Client::connect(server.address(), "bystander.example", PATIENCE).unwrap();
    let mut unlucky = Client::connect(server.address(), "unlucky.example", PATIENCE).unwrap();
    let to = envelope("a@example.com", &["b@example.com"]);
    let delivery = unlucky.send(&to, b"\r\n.........\r\n").unwrap();
    assert_eq!((delivery.accepted, delivery.code), (false, 421), "{delivery:?}");
    assert!(bystander.send(&to, b"\r\nfine\r\n").unwrap().accepted);
    // When the handler panics, the server has not yet written its replies to MAIL and RCPT. It must not send them to
    // the client of another session.
    let mut unlucky = Wire::greeted(server.address());
    assert!(unlucky.say("EHLO unlucky.example").starts_with("250"));
    let mut bystander = Wire::greeted(server.address());
    unlucky.send("MAIL FROM:<a@b.example>\r\nRCPT TO:<c@d.example>\r\nBDAT 13 LAST\r\n\r\n.........\r\n");
    assert_eq!(unlucky.replies(), ["421 4.3.2 Shutting down\r\n"]);
    assert!(bystander.say("VRFY a").starts_with("252 "));
    assert_eq!(bystander.say("QUIT"), "221 2.0.0 Bye\r\n");
}

#[test]
fn a_handler_that_panics_gives_its_place_back() {
    let server = Server::new(|| |_peer| Faulty).workers(1).sessions(2).start(([127, 0, 0, 1], 0).into()).unwrap();
    let to = envelope("a@example.com", &["b@example.com"]);
    for _ in 0..3 {
        let mut unlucky = Client::connect(server.address(), "unlucky.example", PATIENCE).unwrap();
        assert_eq!(unlucky.send(&to, b"\r\n.........\r\n").unwrap().code, 421);
    }
    let mut lucky = Client::connect(server.address(), "lucky.example", PATIENCE).unwrap();
    assert!(lucky.send(&to, b"\r\nfine\r\n").unwrap().accepted);
}

/// A service that exempts no client from its limits, not even clients on this host.
struct Limited;

impl Service for Limited {
    type Handler = Faceless;

    fn session(&self, _peer: Peer) -> Faceless {
        Faceless
    }

    fn is_exempt(&self, _client: IpAddr) -> bool {
        false
    }
}

struct Faceless;

impl Handler for Faceless {
    fn message(&mut self, _bytes: u64, _now: Duration) -> Answer {
        Answer::Yes
    }
}

/// Sends `before` on a new connection, without waiting for the greeting. Returns the connection and the first reply,
/// which is the greeting or a refusal.
fn first_reply(address: SocketAddr, before: &str) -> (Wire, String) {
    let mut wire = Wire::connect(address);
    wire.send(before);
    let reply = wire.reply().expect("a greeting, or why there is none");
    (wire, reply)
}

#[test]
fn each_client_address_has_limits_unless_the_program_says_otherwise() {
    let limits = ClientLimits { connections: Some(2), ..ClientLimits::default() };
    let server = Server::new(|| Limited).client_limits(limits).start(([127, 0, 0, 1], 0).into()).unwrap();
    let mut held: Vec<_> = (0..2).map(|_| first_reply(server.address(), "")).collect();
    assert!(held.iter().all(|(_, greeting)| greeting.starts_with("220")));
    let (_, refusal) = first_reply(server.address(), "");
    assert!(refusal.starts_with("421 4.7.0 Too many connections from your address"), "{refusal}");
    held.pop();
    wait_until("a place", || first_reply(server.address(), "").1.starts_with("220").then_some(()));
    server.stop();
    // By default, each client address may open 50 connections, but clients on this host are exempt from limits. The
    // service `Limited` exempts nobody.
    let [strict, own] = [
        Server::new(|| Limited).start(([127, 0, 0, 1], 0).into()).unwrap(),
        Server::new(|| |_peer| Faceless).start(([127, 0, 0, 1], 0).into()).unwrap(),
    ];
    for (server, expected) in [(&strict, 50), (&own, 60)] {
        let all: Vec<_> = (0..60).map(|_| first_reply(server.address(), "")).collect();
        assert_eq!(all.iter().filter(|(_, greeting)| greeting.starts_with("220")).count(), expected);
    }
    strict.stop();
    own.stop();
}

#[test]
fn behind_a_proxy_it_is_the_clients_address_that_counts() {
    let limits = ClientLimits { connections: Some(2), ..ClientLimits::default() };
    let server = Server::new(|| Limited).client_limits(limits).proxied(Proxied::Yes);
    let server = server.start(([127, 0, 0, 1], 0).into()).unwrap();
    let from = |client: &str| first_reply(server.address(), &format!("PROXY TCP4 {client} 192.0.2.25 1025 25\r\n"));
    let held: Vec<_> = ["192.0.2.1", "192.0.2.1", "192.0.2.2"].map(from).into();
    assert!(held.iter().all(|(_, greeting)| greeting.starts_with("220")));
    let (mut wire, refusal) = from("192.0.2.1");
    assert!(refusal.starts_with("421 4.7.0") && wire.reply().is_none(), "{refusal}");
    assert!(from("192.0.2.2").1.starts_with("220"));
    server.stop();
}
