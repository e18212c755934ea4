//! The examples of the embeddable server and client do what they say.
use crate::party::wait_until;
use crate::wire::Wire;
use mailrun_net::{
    Answer, Certificate, Client, ClientTls, Endpoint, MessageHandler, ReceivedMessage, SendOutcome, Server,
    ServerSecurity, ServerTls, SessionResumption, Trust,
};
use mailrun_smtp::Envelope;
use mailrun_smtp::sasl::{Credentials, Mechanism, Mechanisms};
use mailrun_spool::faulty::FaultyDisk;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

#[path = "../../crates/net/examples/forward.rs"]
#[allow(dead_code, reason = "its main is for the command line")]
mod forward;
#[path = "../../crates/net/examples/print.rs"]
#[allow(dead_code, reason = "its main is for the command line")]
mod print;
#[path = "../../crates/net/examples/send.rs"]
#[allow(dead_code, reason = "its main is for the command line")]
mod send;
#[path = "../../crates/smtp/examples/stdio.rs"]
#[allow(dead_code, reason = "its main is for the command line")]
mod stdio;
#[path = "../../crates/net/examples/store.rs"]
#[allow(dead_code, reason = "its main is for the command line")]
mod store;
#[path = "../../crates/net/examples/stream.rs"]
#[allow(dead_code, reason = "its main is for the command line")]
mod stream;

const PATIENCE: Duration = Duration::from_secs(30);

fn anywhere() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

fn deliver(server: SocketAddr, recipient: &str) -> SendOutcome {
    let mut client = Client::connect(server, "client.example", PATIENCE).unwrap();
    let envelope = Arc::new(Envelope::new("a@example.com", "", [recipient]).unwrap());
    let outcome = client.send(&envelope, b"Subject: a\r\n\r\none\r\ntwo\r\n").unwrap();
    client.quit().unwrap();
    outcome
}

#[test]
fn it_speaks_smtp_on_standard_input_and_output() {
    let transaction = "MAIL FROM:<a@example.com>\r\nRCPT TO:<b@example.com>\r\nDATA\r\n";
    let session = format!("EHLO a\r\n{transaction}bare\nline\r\n.\r\n{transaction}whole\r\n.\r\nQUIT\r\n");
    let mut output = Vec::new();
    let messages = stdio::serve(session.as_bytes(), &mut output).unwrap();
    assert_eq!(messages, [b"whole\r\n"], "the bytes of the refused message are in none");
    let said = String::from_utf8(output).unwrap();
    assert!(said.starts_with("220 stdio.example") && said.ends_with("221 2.0.0 Bye\r\n"), "{said}");
}

#[test]
fn it_prints_a_message() {
    let server = print::serve(anywhere()).unwrap();
    let outcome = deliver(server.address(), "you@example.com");
    assert!(outcome.accepted && outcome.code == 250, "{outcome:?}");
    server.stop();
}

#[test]
fn it_counts_as_the_bytes_come_and_begins_anew_after_a_refusal() {
    let server = stream::serve(anywhere()).unwrap();
    let mut wire = Wire::greeted(server.address());
    for line in ["EHLO a", "MAIL FROM:<a@example.com>", "RCPT TO:<b@example.com>", "DATA"] {
        wire.say(line);
    }
    wire.send("one\ntwo\nthree\r\n.\r\n");
    assert!(wire.reply().is_some_and(|reply| reply.starts_with("550")));
    assert_eq!(deliver(server.address(), "you@example.com").text, "2.0.0 4 lines");
    for line in ["MAIL FROM:<a@example.com>", "RCPT TO:<b@example.com>", "DATA"] {
        wire.say(line);
    }
    assert_eq!(wire.say("one\r\n."), "250 2.0.0 1 lines\r\n");
    assert!(!deliver(server.address(), "nobody@example.com").accepted);
    server.stop();
}

#[test]
fn it_stores_a_message_before_it_says_250_and_says_451_if_it_cannot() {
    let disk = FaultyDisk::new();
    let server = store::serve(anywhere(), Arc::new(disk.clone())).unwrap();
    assert!(!deliver(server.address(), "you@example.org").accepted, "another domain");
    assert!(deliver(server.address(), "you@example.com").accepted);
    // A power loss discards everything that was not synced, so the message must have been synced before its 250.
    let again = Arc::new(disk.after_power_loss(1));
    let (kept, backlog) = mailrun_spool::Spool::open(again, mailrun_spool::Options::default()).unwrap();
    assert_eq!(backlog.len(), 1);
    kept.close();
    disk.freeze();
    let outcome = deliver(server.address(), "you@example.com");
    assert!(!outcome.accepted && outcome.code == 451, "{outcome:?}");
    server.stop();
}

/// A server that refuses only the recipient `nobody`, and hands messages to the test.
#[derive(Clone)]
struct NextServer(Sender<ReceivedMessage>);

impl MessageHandler for NextServer {
    fn handle_recipient(&mut self, _: &ReceivedMessage, recipient: &mailrun_smtp::Path<'_>) -> Answer {
        match recipient.local_part() {
            b"nobody" => Answer::reply(550, "5.1.1 Nobody lives there"),
            _ => Answer::Yes,
        }
    }

    fn handle_message(&mut self, message: ReceivedMessage) -> Answer {
        // Ignore the error, because the test may have stopped listening.
        let _ = self.0.send(message);
        Answer::reply(250, "2.0.0 Kept there")
    }

    fn handle_login(&mut self, name: &str, password: &[u8]) -> Answer {
        match (name, password) {
            ("ann@example.com", b"secret") => Answer::Yes,
            _ => Answer::reply(535, "5.7.8 Wrong"),
        }
    }
}

#[test]
fn it_forwards_a_message_and_answers_as_the_next_server_does() {
    let (give, kept) = channel();
    let next = Server::for_messages(NextServer(give)).start(anywhere()).unwrap();
    let server = forward::serve(anywhere(), Endpoint::Tcp(next.address())).unwrap();
    let outcome = deliver(server.address(), "you@example.com");
    assert_eq!((outcome.accepted, outcome.text.as_str()), (true, "2.0.0 Kept there"));
    let message = kept.recv_timeout(PATIENCE).unwrap();
    assert_eq!((message.sender.as_str(), message.recipients), ("a@example.com", vec!["you@example.com".to_owned()]));
    assert_eq!(message.content, b"Subject: a\r\n\r\none\r\ntwo\r\n");
    let refused = deliver(server.address(), "nobody@example.com");
    assert!(!refused.accepted && (500..600).contains(&refused.code), "{refused:?}");
    next.stop();
    wait_until("the next server to be gone", || {
        (deliver(server.address(), "you@example.com").code == 451).then_some(())
    });
    server.stop();
}

#[test]
fn it_sends_a_message_with_starttls_and_auth() {
    let certificate = Certificate::self_signed(&["localhost"]).unwrap();
    let roots = Trust::Roots(certificate.to_pem().into_bytes());
    let tls = ClientTls::new("localhost", &roots, None, SessionResumption::Off).unwrap();
    let setup = ServerTls::new(certificate, None, SessionResumption::Off).unwrap();
    let (give, kept) = channel();
    let server = Server::for_messages(NextServer(give))
        .security(ServerSecurity::Offered(setup))
        .auth(Mechanisms::NONE.with(Mechanism::Plain))
        .offer(|offer| offer.requires.auth = true)
        .start(anywhere())
        .unwrap();
    let right = Credentials::new("ann@example.com", "secret");
    let outcome = send::send(server.address(), tls.clone(), right, "ann@example.com", "bob@example.com").unwrap();
    assert!(outcome.accepted, "{outcome:?}");
    let message = kept.recv_timeout(PATIENCE).unwrap();
    assert_eq!(message.user.as_deref(), Some("ann@example.com"));
    assert!(message.content.ends_with(b"\r\n\r\n.dots are stuffed on the way\r\n"));
    let wrong = Credentials::new("ann@example.com", "guess");
    assert!(send::send(server.address(), tls, wrong, "ann@example.com", "bob@example.com").is_err());
    server.stop();
}
