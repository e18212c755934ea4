//! TLS in the crates: our server and client with each other, with independent clients, and with peers that misbehave
//! before or during the handshake.
use crate::party::{peer, run};
use crate::wire::Wire;
use mailrun_net::{
    Answer, Certificate, ClientSecurity, ClientSession, ClientTls, Handler, Handshake, MessageSource, NextAction,
    Outbox, RunningServer, Server, ServerSecurity, ServerTls, SessionEnd, SessionResumption, Socket, Timer, Trust,
    WorkerBuffers, clock,
};
use mailrun_smtp::Envelope;
use mailrun_smtp::client::{Client, Event, Options, Outcome, StartTls, Verb};
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, PartialEq, Eq)]
enum Heard {
    Handshake { version: String, resumed: bool },
    NoHandshake(String),
    Message(usize, u32),
}

struct Ear {
    octets: Vec<u8>,
    tell: Sender<Heard>,
}

impl Ear {
    fn tell(&self, heard: Heard) {
        // Ignore the error, because the test may have stopped listening.
        let _ = self.tell.send(heard);
    }
}

impl Handler for Ear {
    fn tls_established(&mut self, handshake: &Handshake) {
        assert!(!handshake.cipher.is_empty() && handshake.took > Duration::ZERO);
        self.tell(Heard::Handshake { version: handshake.version.clone(), resumed: handshake.resumed });
    }

    fn tls_failed(&mut self, why: &std::io::Error) {
        self.tell(Heard::NoHandshake(why.to_string()));
    }

    fn block(&mut self, block: &[u8]) {
        self.octets.extend_from_slice(block);
    }

    fn message(&mut self, bytes: u64, _now: Duration) -> Answer {
        let octets = std::mem::take(&mut self.octets);
        assert_eq!(bytes, octets.len() as u64);
        self.tell(Heard::Message(octets.len(), mailrun_measurement::trace::checksum(&octets)));
        Answer::Yes
    }
}

/// A server, its certificate (PEM), and the channel on which it reports what it hears.
struct Host {
    server: RunningServer,
    certificate: String,
    heard: Receiver<Heard>,
}

fn host(secure: impl FnOnce(ServerTls) -> ServerSecurity, resumption: SessionResumption) -> Host {
    let (tell, heard) = channel();
    let certificate = Certificate::self_signed(&["localhost", "127.0.0.1"]).unwrap();
    let pem = certificate.to_pem();
    let setup = ServerTls::new(certificate, None, resumption).unwrap();
    let make = move || {
        let tell = tell.clone();
        move |_peer| Ear { octets: Vec::new(), tell: tell.clone() }
    };
    let server = Server::new(make).security(secure(setup)).start(([127, 0, 0, 1], 0).into()).unwrap();
    Host { server, certificate: pem, heard }
}

/// Sends messages with this body one after another.
struct Courier {
    body: Arc<[u8]>,
    left: u32,
    accepted: u32,
    handshakes: Vec<Handshake>,
}

impl MessageSource for Courier {
    fn poll_next(&mut self, _cx: &mut Context<'_>, _client: &Client, _early: bool, _now: Duration) -> Poll<NextAction> {
        if self.left == 0 {
            return Poll::Ready(NextAction::Quit);
        }
        self.left -= 1;
        Poll::Ready(NextAction::Transaction(Arc::new(Envelope::new("a@example.com", "", ["b@example.com"]).unwrap())))
    }

    fn render(&mut self, outbox: &mut Outbox) {
        outbox.append_shared(&self.body);
        outbox.bytes().extend_from_slice(mailrun_smtp::data::END_OF_DATA);
    }

    fn written(&mut self, _now: Duration) {}

    fn replied(&mut self, event: &Event<'_>, _now: Duration) {
        self.accepted += u32::from(event.to == Verb::Message && event.ends == Some(Outcome::Accepted));
    }

    fn tls_established(&mut self, handshake: &Handshake) {
        self.handshakes.push(handshake.clone());
    }
}

async fn converse(
    address: SocketAddr,
    security: ClientSecurity,
    desk: WorkerBuffers,
    mut courier: Courier,
) -> (Courier, SessionEnd) {
    let tls = if matches!(security, ClientSecurity::OnDemand(_)) { StartTls::Required } else { StartTls::Never };
    let options = Arc::new(Options { tls, ..Options::default() });
    let socket = Socket::connect(address).await.unwrap();
    let client = Client::with_options("client.example".into(), options, None, clock::now());
    let mut alarm = Timer::default();
    let talk =
        ClientSession::new(socket, client, &mut courier, &mut alarm, PATIENCE, desk).with_security(Some(security));
    let ended = talk.run().await;
    (courier, ended)
}

/// Opens connections one after another on one worker, and sends two messages over each of them.
fn deliver(address: SocketAddr, security: &ClientSecurity, body: &[u8], connections: u32) -> Vec<(Courier, String)> {
    let security = security.clone();
    let body = Arc::<[u8]>::from(body);
    mailrun_net::worker::run(async move |desk: WorkerBuffers| {
        let mut done = Vec::new();
        for _ in 0..connections {
            let courier = Courier { body: Arc::clone(&body), left: 2, accepted: 0, handshakes: Vec::new() };
            let (courier, ended) = converse(address, security.clone(), desk.clone(), courier).await;
            done.push((courier, format!("{ended:?}")));
        }
        done
    })
    .unwrap()
}

fn trusting(host: &Host, resumption: SessionResumption) -> ClientTls {
    let trust = Trust::Roots(host.certificate.clone().into_bytes());
    ClientTls::new("localhost", &trust, None, resumption).unwrap()
}

fn text(lines: usize) -> Vec<u8> {
    let mut text = b"Subject: under TLS\r\n\r\n".to_vec();
    for line in 0..lines {
        write!(text, "{line:076}\r\n").unwrap();
    }
    text
}

type Secured = (fn(ServerTls) -> ServerSecurity, fn(ClientTls) -> ClientSecurity);

const BOTH: [Secured; 2] =
    [(ServerSecurity::Offered, ClientSecurity::OnDemand), (ServerSecurity::Implicit, ClientSecurity::Implicit)];

#[test]
fn messages_of_all_sizes_go_through_as_they_are() {
    for (server, client) in BOTH {
        for lines in [1, 200, 1_000, 140_000] {
            let host = host(server, SessionResumption::On);
            let body = text(lines);
            let security = client(trusting(&host, SessionResumption::On));
            let done = deliver(host.server.address(), &security, &body, 1);
            let (courier, ended) = &done[0];
            assert_eq!((courier.accepted, courier.handshakes.len()), (2, 1), "{ended}");
            assert_eq!(courier.handshakes[0].version, "TLSv1.3");
            host.server.stop();
            let message = || Heard::Message(body.len(), mailrun_measurement::trace::checksum(&body));
            let first = Heard::Handshake { version: "TLSv1.3".to_owned(), resumed: false };
            assert_eq!(host.heard.iter().collect::<Vec<_>>(), [first, message(), message()]);
        }
    }
}

#[test]
fn sessions_are_resumed_where_both_ends_want_it() {
    let on = SessionResumption::On;
    let off = SessionResumption::Off;
    for (server, client, expected) in
        [(on, on, [false, true, true]), (on, off, [false; 3]), (off, on, [false; 3]), (off, off, [false; 3])]
    {
        let host = host(ServerSecurity::Offered, server);
        let security = ClientSecurity::OnDemand(trusting(&host, client));
        let done = deliver(host.server.address(), &security, &text(1), 3);
        let resumed: Vec<bool> = done.iter().map(|(courier, _)| courier.handshakes[0].resumed).collect();
        assert_eq!(resumed, expected, "server {server:?}, client {client:?}");
        host.server.stop();
        let heard = host.heard.iter().filter(|heard| matches!(heard, Heard::Handshake { resumed: true, .. })).count();
        assert_eq!(heard, expected.iter().filter(|resumed| **resumed).count());
    }
}

#[test]
fn a_server_that_is_not_trusted_gets_no_mail() {
    let host = host(ServerSecurity::Offered, SessionResumption::On);
    let stranger = Certificate::self_signed(&["localhost"]).unwrap().to_pem();
    let other_name = ClientTls::new(
        "elsewhere.example",
        &Trust::Roots(host.certificate.clone().into_bytes()),
        None,
        SessionResumption::On,
    );
    let other_root = ClientTls::new("localhost", &Trust::Roots(stranger.into_bytes()), None, SessionResumption::On);
    for (setup, fault) in [(other_name.unwrap(), "OtherName"), (other_root.unwrap(), "Untrusted")] {
        let done = deliver(host.server.address(), &ClientSecurity::OnDemand(setup), &text(1), 1);
        assert_eq!(done[0].0.accepted, 0);
        assert!(done[0].1.contains("TlsFailed") && done[0].1.contains(fault), "{}", done[0].1);
        let heard = host.heard.recv_timeout(PATIENCE).unwrap();
        assert!(matches!(&heard, Heard::NoHandshake(why) if why.contains("alert")), "{heard:?}");
    }
    let anybody = ClientTls::new("elsewhere.example", &Trust::Anybody, None, SessionResumption::On).unwrap();
    let done = deliver(host.server.address(), &ClientSecurity::OnDemand(anybody), &text(1), 1);
    assert_eq!(done[0].0.accepted, 2);
}

#[test]
fn what_comes_in_the_clear_behind_starttls_is_dropped() {
    let host = host(ServerSecurity::Offered, SessionResumption::On);
    let mut wire = Wire::greeted(host.server.address());
    assert!(wire.say("EHLO client.example").contains("STARTTLS"));
    wire.send("STARTTLS\r\nMAIL FROM:<evil@example.com>\r\nRCPT TO:<b@example.com>\r\n");
    assert!(wire.reply().unwrap().starts_with("220 "));
    // The injected commands must get no reply, so the server's next bytes must belong to a handshake or an alert.
    wire.send([0x16, 3, 1, 0, 5, 1, 0, 0, 1, 0]);
    let rest = wire.replies();
    assert!(rest.iter().all(|reply| !reply.starts_with('2')), "{rest:?}");
    assert!(matches!(host.heard.recv_timeout(PATIENCE), Ok(Heard::NoHandshake(_))));
}

#[test]
fn garbage_in_a_handshake_ends_the_session_and_nothing_else() {
    for garbage in [b"EHLO client.example\r\n".to_vec(), vec![0; 70_000], vec![0x16; 300], vec![0xff; 100_000]] {
        let host = host(ServerSecurity::Implicit, SessionResumption::On);
        let mut wire = Wire::connect(host.server.address());
        // Ignore the error, because the server may close the connection before it has read everything.
        let _ = wire.try_send(&garbage);
        wire.replies();
        assert!(matches!(host.heard.recv_timeout(PATIENCE), Ok(Heard::NoHandshake(_))));
        let security = ClientSecurity::Implicit(trusting(&host, SessionResumption::On));
        assert_eq!(deliver(host.server.address(), &security, &text(1), 1)[0].0.accepted, 2);
    }
}

#[test]
fn a_client_that_is_cut_off_in_the_handshake_is_noticed() {
    let host = host(ServerSecurity::Implicit, SessionResumption::On);
    drop(Wire::connect(host.server.address()));
    let heard = host.heard.recv_timeout(PATIENCE).unwrap();
    assert!(matches!(&heard, Heard::NoHandshake(why) if why.contains("closed during")), "{heard:?}");
}

/// Writes the certificate to a file, for programs that read it from there.
fn file_of(host: &Host, place: &tempfile::TempDir) -> PathBuf {
    let path = place.path().join("ca.pem");
    std::fs::write(&path, &host.certificate).unwrap();
    path
}

#[test]
fn swaks_curl_and_python_speak_tls_to_our_server() {
    let place = tempfile::tempdir().unwrap();
    for (server, implicit) in
        [(ServerSecurity::Offered as fn(ServerTls) -> ServerSecurity, false), (ServerSecurity::Implicit, true)]
    {
        let host = host(server, SessionResumption::On);
        let ca = file_of(&host, &place).to_string_lossy().into_owned();
        let port = host.server.address().port().to_string();
        let mut sent = 0;
        if let Some(program) = peer("swaks") {
            let tls = if implicit { "--tls-on-connect" } else { "--tls" };
            let words = ["--server", "127.0.0.1", "--port", &port, "--to", "b@example.com", "--from", "a@example.com"];
            let ended = run(&program, &[&words[..], &[tls]].concat());
            assert_eq!(ended.code, Some(0), "{ended:?}");
            sent += 1;
        }
        if let Some(program) = peer("curl") {
            let message = place.path().join("message");
            std::fs::write(&message, "Subject: curl\r\n\r\nhello\r\n").unwrap();
            let url = format!("{}://localhost:{port}", if implicit { "smtps" } else { "smtp" });
            let message = message.to_string_lossy().into_owned();
            let words = ["-sS", "--ssl-reqd", "--cacert", &ca, "--url", &url, "--mail-from", "a@example.com"];
            let ended = run(&program, &[&words[..], &["--mail-rcpt", "b@example.com", "-T", &message]].concat());
            assert_eq!(ended.code, Some(0), "{ended:?}");
            sent += 1;
        }
        if let Some(program) = peer("python3") {
            let begin = if implicit {
                format!("s = smtplib.SMTP_SSL('localhost', {port}, context=c)")
            } else {
                format!("s = smtplib.SMTP('localhost', {port}); s.starttls(context=c)")
            };
            let script = format!(
                "import smtplib, ssl; c = ssl.create_default_context(cafile='{ca}'); {begin}; \
                 s.sendmail('a@example.com', ['b@example.com'], 'Subject: x\\r\\n\\r\\n' + 'y' * 70 + '\\r\\n'); s.quit()"
            );
            let ended = run(&program, &["-c", &script]);
            assert_eq!(ended.code, Some(0), "{ended:?}");
            sent += 1;
        }
        host.server.stop();
        let messages = host.heard.iter().filter(|heard| matches!(heard, Heard::Message(..))).count();
        assert_eq!(messages, sent);
    }
}
