//! Independent clients and servers over TLS, AUTH and LMTP. The counts must agree at both ends.
use crate::party::{
    Ended, Process, Sink, SourceRun, accepted, errors, low_port, numbers, peer, run, source, took, wait_until,
};
use crate::postfix::{Deliver, Postfix, tls_options};
use crate::secured::{Files, MODES, PASSWORD, Secured, USER, handshakes_in_all};
use mailrun_measurement::Phase;
use std::fs;
use std::net::TcpStream;

const MESSAGE: &str = "Subject: over TLS\r\n\r\n.dots\r\n..\r\nlast\r\n";

/// A sink with TLS that requires its only user to log in.
fn with_users(mode: &str) -> Secured {
    let files = Files::new();
    let users = files.users();
    Secured::start_with(files, mode, &["--auth-users", &users, "--auth-required"])
}

/// Ends the sink. It must have counted `messages` messages and `refused` refused logins, each on its own connection
/// with its own handshake.
fn has_heard(host: Secured, messages: u64, refused: u64) {
    let theirs = host.sink.stop();
    let counts = [took(&theirs).messages, errors(&theirs, Phase::Auth, 535), handshakes_in_all(&theirs)];
    assert_eq!(counts, [messages, refused, messages + refused], "{:?}", theirs.errors);
    assert_eq!((took(&theirs).recipients, took(&theirs).connections), (messages, messages + refused));
    assert_eq!(theirs.errors.iter().map(|row| row.count).sum::<u64>(), refused, "{:?}", theirs.errors);
}

fn ends_with(code: i32, ended: &Ended) {
    assert_eq!(ended.code, Some(code), "{ended:?}");
}

#[test]
fn swaks_logs_in_over_tls() {
    let Some(program) = peer("swaks") else { return };
    for mode in MODES {
        let host = with_users(mode);
        let port = host.sink.smtp.port().to_string();
        let tls = if mode == "implicit" { "--tls-on-connect" } else { "--tls" };
        let place = ["--server", "127.0.0.1", "--port", &port, tls, "--tls-verify", "--tls-ca-path", &host.ca];
        let envelope = ["--from", "a@example.com", "--to", "b@example.com", "--auth-user", USER, "--auth-password"];
        for mechanism in ["PLAIN", "LOGIN", "CRAM-MD5"] {
            let says =
                |password| run(&program, &[place.as_slice(), &["--auth", mechanism], &envelope, &[password]].concat());
            ends_with(0, &says(PASSWORD));
            // swaks exits with status 28 if the login is refused.
            ends_with(28, &says("wrong"));
        }
        has_heard(host, 3, 3);
    }
}

#[test]
fn curl_logs_in_over_tls() {
    let Some(program) = peer("curl") else { return };
    for mode in MODES {
        let host = with_users(mode);
        let message = host.files.keep("message", MESSAGE);
        let scheme = if mode == "implicit" { "smtps" } else { "smtp" };
        let url = format!("{scheme}://localhost:{}/client.example", host.sink.smtp.port());
        let place = ["-sS", "--noproxy", "*", "--ipv4", "--ssl-reqd", "--cacert", &host.ca, "--url", &url];
        let envelope = ["--mail-from", "a@example.com", "--mail-rcpt", "b@example.com", "-T", &message];
        for mechanism in ["PLAIN", "LOGIN", "CRAM-MD5"] {
            let says = |password| {
                let login = [format!("AUTH={mechanism}"), format!("{USER}:{password}")];
                let login = ["--login-options", &login[0], "--user", &login[1]];
                run(&program, &[place.as_slice(), &envelope, &login].concat())
            };
            ends_with(0, &says(PASSWORD));
            // If the login is refused, curl exits with status 67 (CURLE_LOGIN_DENIED).
            ends_with(67, &says("wrong"));
        }
        let token = ["--oauth2-bearer", PASSWORD, "--login-options", "AUTH=XOAUTH2", "--user", USER];
        ends_with(0, &run(&program, &[place.as_slice(), &envelope, &token].concat()));
        has_heard(host, 4, 3);
    }
}

#[test]
fn msmtp_logs_in_over_tls() {
    let Some(program) = peer("msmtp") else { return };
    for mode in MODES {
        let host = with_users(mode);
        let message = host.files.keep("message", MESSAGE);
        let right = host.files.keep("right", PASSWORD);
        let wrong = host.files.keep("wrong", "wrong");
        let [from, trust] = [format!("exec \"$0\" \"$@\" < '{message}'"), format!("--tls-trust-file={}", host.ca)];
        let port = format!("--port={}", host.sink.smtp.port());
        let starttls = if mode == "implicit" { "--tls-starttls=off" } else { "--tls-starttls=on" };
        let place = ["-c", &from, &program, "--host=localhost", &port, "--tls=on", starttls, &trust];
        for mechanism in ["plain", "login", "cram-md5", "scram-sha-256", "xoauth2"] {
            let says = |password: &str| {
                let login = [format!("--auth={mechanism}"), format!("--passwordeval=cat '{password}'")];
                let user = format!("--user={USER}");
                let words = [&login[0], &login[1], &user, "--from=a@example.com", "b@example.com"];
                run("sh", &[place.as_slice(), &words].concat())
            };
            ends_with(0, &says(&right));
            // If the login is refused, msmtp exits with status 77 (EX_NOPERM).
            ends_with(77, &says(&wrong));
        }
        has_heard(host, 5, 5);
    }
}

const SMTPLIB: &str = r#"
import smtplib, ssl, sys
mode, port, ca, user, right = sys.argv[1:]
context = ssl.create_default_context(cafile=ca)
def connect():
    if mode == "implicit":
        return smtplib.SMTP_SSL("localhost", int(port), timeout=50, context=context)
    smtp = smtplib.SMTP("localhost", int(port), timeout=50)
    assert smtp.starttls(context=context)[0] == 220
    return smtp
sent = 0
for mechanism in ["plain", "login", "cram_md5"]:
    for password in [right, "wrong"]:
        with connect() as smtp:
            smtp.ehlo()
            assert mechanism.replace("_", "-").upper() in smtp.esmtp_features["auth"], smtp.esmtp_features
            smtp.user, smtp.password = user, password
            try:
                smtp.auth(mechanism.replace("_", "-").upper(), getattr(smtp, "auth_" + mechanism))
            except smtplib.SMTPAuthenticationError as error:
                assert password != right and error.smtp_code == 535, error
                assert smtp.mail("a@example.com")[0] == 530
                continue
            assert password == right
            smtp.sendmail("a@example.com", ["b@example.com"], b"Subject: x\r\n\r\n.\r\n" + b"y" * 900 + b"\r\n")
            sent += 1
print(sent)
"#;

#[test]
fn smtplib_logs_in_over_tls() {
    let Some(program) = peer("python3") else { return };
    for mode in MODES {
        let host = with_users(mode);
        let port = host.sink.smtp.port().to_string();
        let ended = run(&program, &["-c", SMTPLIB, mode, &port, &host.ca, USER, PASSWORD]);
        assert_eq!((ended.code, ended.out.trim()), (Some(0), "3"), "{}", ended.err);
        has_heard(host, 3, 3);
    }
}

/// A client that speaks only TLS 1.2. Its second and third connection resume the session of the first.
const OLD_TLS: &str = r#"
import socket, ssl, sys
context = ssl.create_default_context(cafile=sys.argv[2])
context.maximum_version = ssl.TLSVersion.TLSv1_2
session = None
for number in range(3):
    plain = socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=30)
    secure = context.wrap_socket(plain, server_hostname="localhost", session=session)
    reader = secure.makefile("rb")
    assert reader.readline().startswith(b"220 ")
    secure.sendall(b"QUIT\r\n")
    assert reader.readline().startswith(b"221 ")
    assert secure.session_reused == (number > 0 and sys.argv[3] == "on"), number
    session = secure.session
    print(secure.version())
"#;

#[test]
fn tls_1_2_is_spoken_too_and_counted_apart() {
    let Some(program) = peer("python3") else { return };
    for (words, resumption, resumed) in [([].as_slice(), "on", 2), (&["--no-tls-resumption"], "off", 0)] {
        let host = Secured::start("implicit", words);
        let ended = run(&program, &["-c", OLD_TLS, &host.sink.smtp.port().to_string(), &host.ca, resumption]);
        assert_eq!((ended.code, ended.out.as_str()), (Some(0), "TLSv1.2\nTLSv1.2\nTLSv1.2\n"), "{}", ended.err);
        let ours = source(&host.sink.address(), &["--tls", "implicit", "--cacert", &host.ca, "--messages", "1"]);
        assert_eq!(ours.ended.code, Some(0));
        let theirs = host.sink.stop();
        let rows: Vec<_> = theirs.tls.iter().map(|row| (&*row.version, row.handshakes, row.resumed)).collect();
        assert_eq!(rows, [("TLSv1.2", 3, resumed), ("TLSv1.3", 1, 0)], "{:?}", theirs.errors);
        assert!(theirs.errors.is_empty(), "{:?}", theirs.errors);
    }
}

/// An LMTP server sends a reply for each accepted recipient after the dot. smtplib reads only the first of them, so the
/// script reads the other itself.
const LMTPLIB: &str = r#"
import smtplib, sys
with smtplib.LMTP("localhost", int(sys.argv[1]), timeout=50) as lmtp:
    for number in range(3):
        refused = lmtp.sendmail("a@example.com", ["b@example.com", "no@example.com", "c@example.com"], "Subject: x\r\n\r\ny\r\n")
        assert list(refused) == ["no@example.com"] and refused["no@example.com"][0] == 550, refused
        assert lmtp.getreply()[0] == 250
    assert lmtp.noop()[0] == 250
"#;

#[test]
fn lmtp_clients_hear_an_answer_for_each_recipient() {
    let sink = Sink::start(&["--lmtp", "--fault", "rcpt to no@example.com: hard reject \"550 5.1.1 Nobody\""]);
    let port = sink.smtp.port().to_string();
    let files = Files::new();
    let mut messages = 0;
    let mut recipients = 0;
    let mut connections = 0;
    let mut add = |more: [u64; 3]| {
        messages += more[0];
        recipients += more[1];
        connections += more[2];
    };
    if let Some(program) = peer("swaks") {
        let words = ["--protocol", "LMTP", "--server", "127.0.0.1", "--port", &port, "--from", "a@example.com"];
        ends_with(
            0,
            &run(&program, &[words.as_slice(), &["--to", "b@example.com,c@example.com,d@example.com"]].concat()),
        );
        add([1, 3, 1]);
    }
    if let Some(program) = peer("python3") {
        ends_with(0, &run(&program, &["-c", LMTPLIB, &port]));
        add([3, 6, 1]);
    }
    if let Some(program) = peer("msmtp") {
        let from = format!("exec \"$0\" \"$@\" < '{}'", files.keep("message", MESSAGE));
        let port = format!("--port={port}");
        let place = ["-c", &from, &program, "--protocol=lmtp", "--host=127.0.0.1", &port, "--from=a@example.com"];
        ends_with(0, &run("sh", &[place.as_slice(), &["b@example.com", "c@example.com"]].concat()));
        add([1, 2, 1]);
    }
    let took = sink.took();
    assert_eq!([took.messages, took.recipients, took.connections], [messages, recipients, connections]);
}

/// Asserts that our source counted `messages` accepted messages, `handshakes` TLS handshakes, and no errors.
fn went_through(ours: &SourceRun, messages: u64, handshakes: u64) {
    let record = &ours.record;
    let counts = (ours.ended.code, accepted(record), handshakes_in_all(record));
    assert_eq!(counts, (Some(0), messages, handshakes), "{:?} {:?}", ours.ended.err, record.errors);
    assert!(record.errors.is_empty(), "{:?}", record.errors);
}

#[test]
fn postfix_takes_our_mail_over_tls() {
    let files = Files::new();
    let [chain, key] = files.certificate("postfix", &["postfix.example"]);
    let old = vec!["smtpd_tls_mandatory_protocols=TLSv1.2".to_owned()];
    let old = [tls_options(false, &chain, &key), old].concat();
    let services = [tls_options(false, &chain, &key), tls_options(true, &chain, &key), old];
    let Some(postfix) = Postfix::start(Deliver::Discard, &services) else { return };
    let mut units = 0;
    let mut handshakes = 0;
    for ((mode, version), address) in
        [("starttls", "TLSv1.3"), ("implicit", "TLSv1.3"), ("starttls", "TLSv1.2")].iter().zip(&postfix.listening)
    {
        let base = [
            "--tls",
            mode,
            "--cacert",
            &chain,
            "--tls-name",
            "postfix.example",
            "--recipients",
            "2",
            "--sessions",
            "3",
        ];
        for (words, messages, connections) in [
            (["--reuse", "--pipelining", "group", "--messages", "60"].as_slice(), 60, 3),
            (&["--pipelining", "off", "--message-size", "30k", "--messages", "30"], 30, 30),
            (&["--no-tls-resumption", "--messages", "12"], 12, 12),
        ] {
            let ours = source(&address.to_string(), &[&base, words].concat());
            went_through(&ours, messages, connections);
            assert!(ours.record.tls.iter().all(|row| row.version == *version), "{:?}", ours.record.tls);
            let resumed: u64 = ours.record.tls.iter().map(|row| row.resumed).sum();
            assert!(resumed == 0 || !words.contains(&"--no-tls-resumption"), "{:?}", ours.record.tls);
            units += 2 * messages;
            handshakes += connections;
        }
        let stranger =
            source(&address.to_string(), &["--tls", mode, "--messages", "2", "--tls-name", "postfix.example"]);
        assert_eq!((stranger.ended.code, errors(&stranger.record, Phase::Tls, 0)), (Some(1), 2));
        let plain = ["--messages", "2", "--timeout", "2s"];
        let plain = source(&address.to_string(), &plain);
        assert_eq!((plain.ended.code, accepted(&plain.record)), (Some(1), 0), "it insists on TLS");
    }
    wait_until("Postfix to have delivered them", || (postfix.sent() >= units).then_some(()));
    wait_until("Postfix to have logged them", || {
        (postfix.logged("TLS connection established") >= handshakes).then_some(())
    });
    assert_eq!((postfix.sent(), postfix.logged("TLS connection established")), (units, handshakes));
}

/// A server that prints its counts so far after each message.
const AIOSMTPD: &str = r#"
import ssl, sys, threading
from aiosmtpd.controller import Controller
from aiosmtpd.lmtp import LMTP
from aiosmtpd.smtp import AuthResult
mode, port, chain, key, user, password = sys.argv[1:]
class Box:
    messages = recipients = octets = 0
    async def handle_DATA(self, server, session, envelope):
        self.messages += 1
        self.recipients += len(envelope.rcpt_tos)
        self.octets += len(envelope.original_content)
        print(self.messages, self.recipients, self.octets, flush=True)
        if mode != "lmtp":
            return "250 2.0.0 Ok"
        full = [recipient.startswith("to1@") for recipient in envelope.rcpt_tos]
        return "\r\n".join("552 5.2.2 Full" if is_full else "250 2.0.0 Ok" for is_full in full)
class Place(Controller):
    def factory(self):
        return LMTP(self.handler, **self.SMTP_kwargs) if mode == "lmtp" else super().factory()
def knows(server, session, envelope, mechanism, shown):
    is_right = (shown.login, shown.password) == (user.encode(), password.encode())
    return AuthResult(success=is_right, handled=False)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(chain, key)
login = {"authenticator": knows, "auth_required": True}
options = {
    "starttls": {"tls_context": context, "require_starttls": True, **login},
    "implicit": {"ssl_context": context, "auth_require_tls": False, **login},
    "lmtp": {},
}
place = Place(Box(), hostname="127.0.0.1", port=int(port), **options[mode])
place.start()
print("listening", flush=True)
threading.Event().wait()
"#;

/// The Python interpreter in the first line of the aiosmtpd program.
fn interpreter() -> Option<Vec<String>> {
    let program = fs::read_to_string(peer("aiosmtpd")?).unwrap();
    let words = program.lines().next().unwrap().trim_start_matches("#!").split_whitespace();
    Some(words.map(str::to_owned).collect())
}

fn aiosmtpd(interpreter: &[String], mode: &str, certificate: &[String; 2]) -> (Process, String) {
    let port = low_port().to_string();
    let words = ["-c", AIOSMTPD, mode, &port, &certificate[0], &certificate[1], USER, PASSWORD];
    let before: Vec<&str> = interpreter[1..].iter().map(String::as_str).collect();
    let server = Process::start(&interpreter[0], &[before.as_slice(), &words].concat());
    let address = format!("127.0.0.1:{port}");
    wait_until("aiosmtpd to listen", || {
        (server.said().contains("listening") && TcpStream::connect(&address).is_ok()).then_some(())
    });
    (server, address)
}

/// Messages, recipients and bytes that the server reports.
fn had(server: &Process) -> Vec<u64> {
    server.said().lines().last().map(numbers).unwrap_or_default()
}

#[test]
fn aiosmtpd_takes_our_mail_over_tls_and_auth_and_lmtp() {
    let Some(interpreter) = interpreter() else { return };
    let files = Files::new();
    let certificate = files.certificate("aiosmtpd", &["localhost", "127.0.0.1"]);
    let right = files.keep("right", PASSWORD);
    let wrong = files.keep("wrong", "wrong");
    for mode in MODES {
        let (server, address) = aiosmtpd(&interpreter, mode, &certificate);
        let base = ["--tls", mode, "--cacert", &certificate[0], "--user", USER, "--messages", "20", "--sessions", "2"];
        let login = |mechanism, password| ["--auth-mechanism", mechanism, "--password-file", password];
        let ours = source(&address, &[base.as_slice(), &login("plain", &right)].concat());
        went_through(&ours, 20, 20);
        let ours =
            source(&address, &[base.as_slice(), &login("login", &right), &["--reuse", "--recipients", "2"]].concat());
        went_through(&ours, 20, 2);
        let refused = source(&address, &[base.as_slice(), &login("plain", &wrong)].concat());
        let counts = (refused.ended.code, accepted(&refused.record), errors(&refused.record, Phase::Auth, 535));
        assert_eq!(counts, (Some(1), 0, 20), "{:?}", refused.record.errors);
        assert_eq!(had(&server), [40, 60, 40 * 400], "{mode}");
    }
    let (server, address) = aiosmtpd(&interpreter, "lmtp", &certificate);
    let ours = source(&address, &["--lmtp", "--messages", "20", "--sessions", "2", "--recipients", "3", "--reuse"]);
    // The server refuses one of the three recipients after the dot, and accepts the other two.
    let ledger = &ours.record.ledger;
    assert_eq!(
        (ours.ended.code, accepted(&ours.record), ledger.accepted, ledger.rejected),
        (Some(1), 20, Some(40), Some(20))
    );
    assert_eq!(errors(&ours.record, Phase::Reply, 552), 20, "{:?}", ours.record.errors);
    assert_eq!(had(&server), [20, 60, 20 * 400]);
}
