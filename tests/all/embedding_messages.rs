//! Handlers of whole messages in another program: which messages they get, which they never get, and how much memory
//! that takes.
use crate::party::wait_until;
use crate::wire::Wire;
use mailrun_net::{
    Answer, BufferBudget, Certificate, Client, ClientTls, Handler, MessageHandler, MessageService, ReceivedMessage,
    RunningServer, Server, ServerSecurity, ServerTls, SessionResumption, Trust,
};
use mailrun_smtp::client::GaveUp;
use mailrun_smtp::sasl::{Credentials, Mechanism, Mechanisms};
use mailrun_smtp::{Envelope, Limits, Path};
use proptest::prelude::*;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(30);

/// Size limit for messages, which some of the attempts exceed.
const MESSAGE_BYTES: u64 = 10_000;

/// A handler that keeps every message and knows one user. It refuses some recipients and delays others.
#[derive(Clone)]
struct KeepingHandler(Sender<ReceivedMessage>);

impl MessageHandler for KeepingHandler {
    fn handle_message(&mut self, message: ReceivedMessage) -> Answer {
        // Ignore the error, because the test may have stopped listening.
        let _ = self.0.send(message);
        Answer::Yes
    }

    fn handle_recipient(&mut self, message: &ReceivedMessage, recipient: &Path<'_>) -> Answer {
        assert!(message.content.is_empty() && !message.hello.is_empty());
        let later = |code| async move {
            mailrun_net::sleep(Duration::from_millis(5)).await;
            Some(mailrun_smtp::Reply::new(code, "after a while"))
        };
        match recipient.local_part() {
            b"nobody" => Answer::reply(550, "5.1.1 Nobody lives here"),
            b"slow" => Answer::later(later(250)),
            b"slow.nobody" => Answer::later(later(550)),
            _ => Answer::Yes,
        }
    }

    fn handle_login(&mut self, name: &str, password: &[u8]) -> Answer {
        match (name, password) {
            ("ann", b"secret") => Answer::Yes,
            _ => Answer::reply(535, "5.7.8 Wrong"),
        }
    }
}

fn limits() -> Limits {
    let limits =
        Limits { message_bytes: MESSAGE_BYTES, errors: u32::MAX, junk_commands: u32::MAX, ..Limits::default() };
    Limits { idle_commands: u32::MAX, ..limits }
}

/// A server whose handler keeps messages, within a memory budget.
fn start(budget: &BufferBudget) -> (RunningServer, Receiver<ReceivedMessage>) {
    let (give, kept) = channel();
    let budget = budget.clone();
    let server = Server::new(move || MessageService::new(KeepingHandler(give.clone()), budget.clone()));
    (server.limits(limits()).start(([127, 0, 0, 1], 0).into()).unwrap(), kept)
}

fn greeted(address: SocketAddr) -> Wire {
    let mut wire = Wire::greeted(address);
    assert!(wire.say("EHLO client.example").starts_with("250"));
    wire
}

#[derive(Clone, Debug)]
enum Attempt {
    /// The client sends a valid message by DATA or BDAT, which is accepted if any of its recipients was accepted.
    Sent { recipients: Vec<&'static str>, length: usize, is_chunked: bool },
    /// The message has a bare line feed or is too large, so it is refused.
    Broken { length: usize },
    /// The client sends RSET between chunks, or EHLO before the message.
    Abandoned { length: usize, end: &'static str },
    /// No recipient was accepted.
    Unwanted,
}

fn attempts() -> impl Strategy<Value = Attempt> {
    let names = prop_oneof![Just("ann"), Just("bob"), Just("nobody"), Just("slow"), Just("slow.nobody")];
    prop_oneof![
        (prop::collection::vec(names, 1..5), 0..9_000_usize, any::<bool>())
            .prop_map(|(recipients, length, is_chunked)| Attempt::Sent { recipients, length, is_chunked }),
        prop_oneof![0..9_000_usize, 10_001..20_000_usize].prop_map(|length| Attempt::Broken { length }),
        (0..9_000_usize, prop_oneof![Just("RSET"), Just("EHLO b")])
            .prop_map(|(length, end)| Attempt::Abandoned { length, end }),
        Just(Attempt::Unwanted),
    ]
}

/// Content of at least `length` bytes that names its attempt.
fn content(number: usize, length: usize) -> String {
    let line = format!("attempt {number}\r\n");
    line.repeat(length.div_ceil(line.len()).max(1))
}

/// Makes an attempt to send a message. Returns the recipients and the content that the handler must get, or `None` if
/// it must get no message.
fn attempt(wire: &mut Wire, number: usize, attempt: &Attempt) -> Option<(Vec<String>, String)> {
    let mail = wire.say(&format!("MAIL FROM:<sender-{number}@example.com>"));
    assert!(mail.starts_with("250"), "{mail}");
    let recipient = |name: &str| format!("{name}@example.com");
    match attempt {
        Attempt::Sent { recipients, length, is_chunked } => {
            let mut accepted = Vec::new();
            for name in recipients {
                if wire.say(&format!("RCPT TO:<{}>", recipient(name))).starts_with("250") {
                    accepted.push(recipient(name));
                }
            }
            if accepted.is_empty() {
                wire.say("RSET");
                return None;
            }
            let text = content(number, *length);
            send_content(wire, &text, *is_chunked);
            assert!(wire.reply().is_some_and(|reply| reply.starts_with("250")));
            Some((accepted, text))
        }
        Attempt::Broken { length } => {
            wire.say("RCPT TO:<ann@example.com>");
            assert!(wire.say("DATA").starts_with("354"));
            wire.send(format!("broken\nline\r\n{}.\r\n", content(number, *length)));
            assert!(wire.reply().is_some_and(|reply| reply.starts_with("55")));
            None
        }
        Attempt::Abandoned { length, end } => {
            wire.say("RCPT TO:<ann@example.com>");
            if *end == "RSET" {
                let text = content(number, *length);
                wire.send(format!("BDAT {}\r\n{text}", text.len()));
                assert!(wire.reply().is_some_and(|reply| reply.starts_with("250")));
            }
            assert!(wire.say(end).starts_with("250"));
            None
        }
        Attempt::Unwanted => {
            assert!(wire.say("RCPT TO:<nobody@example.com>").starts_with("550"));
            assert!(wire.say("DATA").starts_with("554"));
            wire.say("RSET");
            None
        }
    }
}

fn send_content(wire: &mut Wire, text: &str, is_chunked: bool) {
    if is_chunked {
        let (first, last) = text.split_at(text.len() / 2);
        wire.send(format!("BDAT {}\r\n{first}", first.len()));
        assert!(wire.reply().is_some_and(|reply| reply.starts_with("250")));
        wire.send(format!("BDAT {} LAST\r\n{last}", last.len()));
    } else {
        assert!(wire.say("DATA").starts_with("354"));
        wire.send(format!("{text}.\r\n"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// A handler must get exactly the messages that got a 250, each with its own sender, recipients and bytes, whatever
    /// was abandoned in between. No memory may stay in use.
    #[test]
    fn what_is_refused_or_abandoned_is_never_part_of_another_message(
        list in prop::collection::vec(attempts(), 1..12)
    ) {
        let budget = BufferBudget::default();
        let (server, kept) = start(&budget);
        let mut wire = greeted(server.address());
        for (number, one) in list.iter().enumerate() {
            if let Some((recipients, text)) = attempt(&mut wire, number, one) {
                let message = kept.recv_timeout(PATIENCE).expect("it was answered 250");
                prop_assert_eq!(&message.sender, &format!("sender-{number}@example.com"));
                prop_assert_eq!(message.recipients, recipients);
                prop_assert_eq!(String::from_utf8(message.content).unwrap(), text);
            }
            prop_assert!(kept.try_recv().is_err(), "{:?}", one);
        }
        drop(wire);
        server.stop();
        prop_assert_eq!(budget.used(), 0);
    }
}

#[test]
fn a_message_that_is_too_large_is_refused_and_takes_no_more_than_the_limit() {
    let budget = BufferBudget::default();
    let (server, kept) = start(&budget);
    let mut wire = greeted(server.address());
    let mail = format!("MAIL FROM:<a@example.com> SIZE={}", MESSAGE_BYTES + 1);
    assert!(wire.say(&mail).starts_with("552"), "it was announced");
    wire.say("MAIL FROM:<a@example.com>");
    wire.say("RCPT TO:<ann@example.com>");
    wire.say("DATA");
    for _ in 0..20 {
        wire.send("0123456789\r\n".repeat(100));
        assert!(budget.used() as u64 <= 2 * MESSAGE_BYTES, "{}", budget.used());
    }
    wire.send(".\r\n");
    assert!(wire.reply().is_some_and(|reply| reply.starts_with("552")));
    wait_until("the memory to be free", || (budget.used() == 0).then_some(()));
    assert!(kept.try_recv().is_err());
    let mut endless = greeted(server.address());
    for line in ["MAIL FROM:<a@example.com>", "RCPT TO:<ann@example.com>", "DATA"] {
        endless.say(line);
    }
    // The server closes the connection when the message has reached a few times the size limit.
    while endless.try_send("0123456789\r\n".repeat(1000)).is_ok() {}
    server.stop();
    assert!(kept.recv().is_err() && budget.used() == 0);
}

#[test]
fn a_message_that_is_cut_off_is_not_handed_over() {
    let budget = BufferBudget::default();
    let (server, kept) = start(&budget);
    for tail in ["", ".", ".\r", "\r\n.\n", "BDAT"] {
        let mut wire = greeted(server.address());
        wire.say("MAIL FROM:<a@example.com>");
        wire.say("RCPT TO:<ann@example.com>");
        if tail == "BDAT" {
            wire.send("BDAT 100 LAST\r\nhalf of it");
        } else {
            wire.say("DATA");
            wire.send(format!("half of it\r\n{tail}"));
        }
        wait_until("the beginning to arrive", || (budget.used() > 0).then_some(()));
        drop(wire);
        wait_until("the memory to be free", || (budget.used() == 0).then_some(()));
    }
    server.stop();
    assert!(kept.recv().is_err());
}

#[test]
fn messages_that_find_no_memory_are_asked_for_again_later() {
    let budget = BufferBudget::new(12_000);
    let (server, kept) = start(&budget);
    let mut one = greeted(server.address());
    let mut other = greeted(server.address());
    for wire in [&mut one, &mut other] {
        wire.say("MAIL FROM:<a@example.com>");
        wire.say("RCPT TO:<ann@example.com>");
        wire.say("DATA");
    }
    one.send(content(1, 7_000));
    wait_until("the first to be in memory", || (budget.used() >= 7_000).then_some(()));
    other.send(content(2, 7_000));
    other.send(".\r\n");
    assert!(other.reply().is_some_and(|reply| reply.starts_with("452 4.3.1")));
    one.send(".\r\n");
    assert!(one.reply().is_some_and(|reply| reply.starts_with("250")));
    assert_eq!(kept.recv_timeout(PATIENCE).unwrap().content, content(1, 7_000).into_bytes());
    one.say("NOOP");
    one.say("RSET");
    assert!(
        attempt(&mut other, 3, &Attempt::Sent { recipients: vec!["ann"], length: 7_000, is_chunked: false }).is_some()
    );
    server.stop();
    assert_eq!(budget.used(), 0);
}

/// A handler that implements neither AUTH nor XCLIENT.
#[derive(Clone)]
struct OpenHandler;

impl Handler for OpenHandler {
    fn message(&mut self, _bytes: u64, _now: Duration) -> Answer {
        Answer::Yes
    }
}

fn tls() -> (ServerSecurity, ClientTls) {
    let certificate = Certificate::self_signed(&["localhost"]).unwrap();
    let roots = Trust::Roots(certificate.to_pem().into_bytes());
    let client = ClientTls::new("localhost", &roots, None, SessionResumption::Off).unwrap();
    (ServerSecurity::Offered(ServerTls::new(certificate, None, SessionResumption::Off).unwrap()), client)
}

#[test]
fn auth_that_is_offered_and_not_implemented_lets_nobody_in() {
    let (security, tls) = tls();
    let whole = Server::for_messages(|_: ReceivedMessage| Answer::Yes).auth(Mechanisms::ALL).security(security.clone());
    let streamed = Server::new(|| |_peer| OpenHandler).auth(Mechanisms::ALL).security(security);
    let servers =
        [whole.start(([127, 0, 0, 1], 0).into()).unwrap(), streamed.start(([127, 0, 0, 1], 0).into()).unwrap()];
    for server in servers {
        for mechanism in Mechanism::ALL {
            let credentials = Credentials::new("ann", "secret").by(Mechanisms::NONE.with(mechanism));
            let client = Client::builder("client.example").starttls(tls.clone()).login(credentials);
            match client.connect(server.address()) {
                Err(mailrun_net::Error::GaveUp(GaveUp::NotAuthenticated, last)) => {
                    assert!(last.starts_with("535 5.7.8"), "{mechanism:?}: {last}");
                }
                other => panic!("{mechanism:?}: {other:?}"),
            }
        }
        let mut wire = greeted(server.address());
        assert!(wire.say("AUTH PLAIN AGFubgBzZWNyZXQ=").starts_with("538"), "not in the clear");
        server.stop();
    }
}

#[test]
fn xclient_that_is_offered_and_not_implemented_is_refused() {
    let server = Server::new(|| |_peer| OpenHandler)
        .offer(|offer| offer.extensions.xclient = mailrun_smtp::xclient::Attributes::ALL);
    let server = server.start(([127, 0, 0, 1], 0).into()).unwrap();
    let mut wire = greeted(server.address());
    assert!(wire.say("XCLIENT LOGIN=ann").starts_with("550 5.7.0"));
    server.stop();
}

/// A TLS server that knows one user and does not require authentication.
fn start_with_users(security: ServerSecurity) -> (RunningServer, Receiver<ReceivedMessage>) {
    let (give, kept) = channel();
    let server = Server::for_messages(KeepingHandler(give)).security(security).auth(Mechanisms::PASSWORD);
    // Do not offer CRAM-MD5. With CRAM-MD5, a client sends no password that the handler could check.
    let server =
        server.offer(|offer| offer.extensions.auth = Mechanisms::NONE.with(Mechanism::Plain).with(Mechanism::Login));
    (server.start(([127, 0, 0, 1], 0).into()).unwrap(), kept)
}

#[test]
fn a_client_logs_in_over_tls_and_the_handler_knows_who_it_is() {
    let (security, tls) = tls();
    let ServerSecurity::Offered(setup) = &security else { panic!("it is offered") };
    let implicit = ServerSecurity::Implicit(setup.clone());
    let right = Credentials::new("ann", "secret");
    for (security, is_implicit) in [(security, false), (implicit, true)] {
        let (server, kept) = start_with_users(security);
        let builder = Client::builder("client.example").timeout(PATIENCE);
        let secured = if is_implicit { builder.implicit_tls(tls.clone()) } else { builder.starttls(tls.clone()) };
        let mut client = secured.clone().login(right.clone()).connect(server.address()).unwrap();
        assert!(client.is_encrypted());
        let envelope = Arc::new(Envelope::new("ann@example.com", "", ["bob@example.com"]).unwrap());
        let long = "Subject: long\r\n\r\n".to_owned() + &".0123456789\r\n".repeat(200_000);
        assert!(client.send(&envelope, long.as_bytes()).unwrap().accepted);
        client.quit().unwrap();
        let message = kept.recv_timeout(PATIENCE).unwrap();
        assert_eq!((message.user.as_deref(), message.hello.as_str()), (Some("ann"), "client.example"));
        assert!(message.handshake.is_some() && message.content == long.as_bytes());
        let wrong = secured.login(Credentials::new("ann", "wrong")).connect(server.address());
        assert!(
            matches!(&wrong, Err(mailrun_net::Error::GaveUp(GaveUp::NotAuthenticated, last)) if last.starts_with("535")),
            "{wrong:?}"
        );
        server.stop();
    }
}

#[test]
fn a_client_sends_no_password_in_the_clear_and_nothing_to_a_stranger() {
    let (_, tls) = tls();
    let (give, _kept) = channel();
    let server = Server::for_messages(KeepingHandler(give)).offer(|offer| offer.extensions.auth = Mechanisms::PASSWORD);
    let server =
        server.offer(|offer| offer.extensions.auth = Mechanisms::NONE.with(Mechanism::Plain).with(Mechanism::Login));
    let server = server.start(([127, 0, 0, 1], 0).into()).unwrap();
    let builder = Client::builder("client.example").timeout(PATIENCE).login(Credentials::new("ann", "secret"));
    let plain = builder.connect(server.address());
    assert!(matches!(plain, Err(mailrun_net::Error::GaveUp(GaveUp::NoMechanism, _))), "{plain:?}");
    let no_tls = builder.clone().starttls(tls.clone()).connect(server.address());
    assert!(matches!(no_tls, Err(mailrun_net::Error::GaveUp(GaveUp::NoTls, _))), "{no_tls:?}");
    let not_tls = builder.clone().implicit_tls(tls).connect(server.address());
    assert!(matches!(not_tls, Err(mailrun_net::Error::Tls(_))), "{not_tls:?}");
    server.stop();
    let (security, _) = self::tls();
    let (server, _kept) = start_with_users(security);
    let (_, of_another) = self::tls();
    match builder.starttls(of_another).connect(server.address()) {
        Err(mailrun_net::Error::Tls(error)) => assert!(error.to_string().contains("is not trusted"), "{error}"),
        other => panic!("{other:?}"),
    }
    server.stop();
}
