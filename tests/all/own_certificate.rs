//! A certificate made by `openssl req -x509`, which is marked as the certificate of an authority (CA). A client that
//! trusts exactly this certificate must accept it as the server's own certificate, if name and dates match.
use crate::party::{Ended, Sink, mailrun, peer, run, wait_until};
use crate::relay::{Den, QUICK, await_recipients};
use crate::secured::Files;
use crate::stand_in_endpoint::Endpoint;
use std::fs;
use std::path::Path;

/// Options of `openssl req` for a certificate for localhost, with a key that has no password.
const REQUEST: &str = "-newkey rsa:2048 -nodes -subj /CN=localhost -addext subjectAltName=DNS:localhost";

struct Pair {
    certificate: String,
    key: String,
}

impl Pair {
    fn of(files: &Files, name: &str, command: &str) -> Self {
        let [certificate, key] = ["pem", "key"].map(|ending| files.path(&format!("{name}.{ending}")));
        let command = command.replace("CERTIFICATE", &certificate).replace("KEY", &key);
        let made = run("sh", &["-ec", &format!("cd {}\n{command}", files.path(""))]);
        assert_eq!(made.code, Some(0), "{made:?}");
        Self { certificate, key }
    }

    /// A certificate without key usage extensions.
    fn plain(files: &Files, name: &str) -> Self {
        Self::of(files, name, &format!("openssl req -x509 -days 30 {REQUEST} -keyout KEY -out CERTIFICATE"))
    }

    /// Makes an expired certificate with `openssl ca`, because `openssl req` can set dates only from version 3.4 on.
    fn expired(files: &Files) -> Self {
        files.keep("index.txt", "");
        files.keep(
            "ca.cnf",
            "[ca]\ndefault_ca = own\n[own]\ndatabase = index.txt\nnew_certs_dir = .\nrand_serial = yes\n\
             default_md = sha256\npolicy = any\ncopy_extensions = copy\nx509_extensions = marks\n\
             [any]\ncommonName = supplied\n[marks]\nbasicConstraints = critical,CA:TRUE\n",
        );
        let request = format!("openssl req -new {REQUEST} -keyout KEY -out request.pem");
        let sign = "openssl ca -selfsign -batch -notext -config ca.cnf -in request.pem -keyfile KEY \
                    -startdate 20200101000000Z -enddate 20210101000000Z -out CERTIFICATE";
        Self::of(files, "expired", &format!("{request}\n{sign}"))
    }

    fn sink(&self) -> Sink {
        Sink::start(&["--tls", "starttls", "--tls-cert", &self.certificate, "--tls-key", &self.key])
    }

    fn endpoint(&self) -> (Endpoint, String) {
        let endpoint = Endpoint::embedded(&["--tls-cert", &self.certificate, "--tls-key", &self.key]);
        let url = endpoint.url.replace("amqp://127.0.0.1", "amqps://localhost");
        (endpoint, url)
    }
}

fn as_localhost(address: &str) -> String {
    address.replace("127.0.0.1", "localhost")
}

fn went_well(ended: &Ended) {
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

/// Asserts that a command sent nothing, and ended with a single line that says why.
fn refused(ended: &Ended, why: &str) {
    assert_eq!((ended.code, ended.err.lines().count(), ended.out.as_str()), (Some(2), 1, ""), "{why}: {ended:?}");
    assert!(ended.err.trim_end().ends_with(why), "{why}: {ended:?}");
}

fn loads(to: &str, words: &[&str], check: impl Fn(&Ended)) {
    for command in ["source", "bench"] {
        check(&mailrun(&[&[command, to, "--messages", "10"], words].concat()));
    }
}

fn mades(url: &str, words: &[&str]) -> Ended {
    mailrun(&[&["mades", "--broker", url, "--messages", "5"], words].concat())
}

/// A relay whose only route leads to `server`. `security` contains the TLS settings of this route.
fn relay_to(server: &str, security: &str) -> Den {
    Den::new(&format!("{QUICK}[[route]]\nto = \"*\"\nsmtp = \"{server}\"\n{security}"))
}

/// Asserts that the relay says why it cannot deliver, and that nothing is delivered.
fn relay_refuses(sink: &Sink, server: &str, security: &str, why: &str) {
    let den = relay_to(server, security);
    let relay = den.open();
    went_well(&mailrun(&["source", &relay.address(), "--messages", "1"]));
    wait_until(why, || relay.process.complained().contains(why).then_some(()));
    relay.stop();
    assert_eq!(sink.ask("/status")["recipients"], 0);
}

#[test]
fn a_plain_certificate_is_a_servers_own() {
    if peer("openssl").is_none() {
        return;
    }
    let files = Files::new();
    let pair = Pair::plain(&files, "server");
    let sink = pair.sink();
    let to = as_localhost(&sink.address());
    loads(&to, &["--tls", "starttls", "--cacert", &pair.certificate], went_well);
    await_recipients(&sink, 20);
    let ca = &pair.certificate;
    let relay = relay_to(&to, &format!("tls = \"required\"\ncacert = \"{ca}\"\n")).open();
    went_well(&mailrun(&["source", &relay.address(), "--messages", "5"]));
    await_recipients(&sink, 25);
    relay.stop();
    let (endpoint, url) = pair.endpoint();
    went_well(&mades(&url, &["--cacert", ca]));
    endpoint.stop();
}

#[test]
fn a_plain_certificate_is_refused_under_another_name() {
    if peer("openssl").is_none() {
        return;
    }
    let files = Files::new();
    let pair = Pair::plain(&files, "server");
    let sink = pair.sink();
    let ca = &pair.certificate;
    let why = "the certificate is for localhost, not for 127.0.0.1";
    loads(&sink.address(), &["--tls", "starttls", "--cacert", ca], |ended| {
        refused(ended, &format!("{why}: --tls-name localhost"))
    });
    let (endpoint, url) = pair.endpoint();
    let ended = mades(&url.replace("localhost", "127.0.0.1"), &["--cacert", ca]);
    refused(&ended, &format!("{why}: --tls-name localhost"));
    endpoint.stop();
    let security = format!("tls = \"required\"\ncacert = \"{ca}\"\n");
    relay_refuses(&sink, &sink.address(), &security, &format!("{why}: tls_name = localhost"));
}

#[test]
fn another_servers_plain_certificate_is_refused() {
    if peer("openssl").is_none() {
        return;
    }
    let files = Files::new();
    let pair = Pair::plain(&files, "server");
    let other = Pair::plain(&files, "other");
    let sink = pair.sink();
    let ca = &other.certificate;
    let to = as_localhost(&sink.address());
    let why = "the certificate of localhost is not trusted: ";
    for words in [["--tls", "starttls"].as_slice(), &["--tls", "starttls", "--cacert", ca]] {
        loads(&to, words, |ended| {
            refused(ended, &format!("{why}--cacert FILE with its issuer's certificate, or --insecure"))
        });
    }
    let (endpoint, url) = pair.endpoint();
    refused(
        &mades(&url, &["--cacert", ca]),
        &format!("{why}--cacert FILE with its issuer's certificate, or --insecure"),
    );
    endpoint.stop();
    let security = format!("tls = \"required\"\ncacert = \"{ca}\"\ntls_name = \"localhost\"\n");
    relay_refuses(
        &sink,
        &sink.address(),
        &security,
        &format!("{why}cacert = FILE with its issuer's certificate, or insecure = true"),
    );
}

#[test]
fn an_expired_plain_certificate_is_refused() {
    if peer("openssl").is_none() {
        return;
    }
    let files = Files::new();
    let pair = Pair::expired(&files);
    let sink = pair.sink();
    let ca = &pair.certificate;
    let to = as_localhost(&sink.address());
    let why = " days ago: renew it, or ";
    loads(&to, &["--tls", "starttls", "--cacert", ca], |ended| {
        refused(ended, &format!("{why}--insecure"));
        assert!(ended.err.contains("the certificate of localhost expired "), "{ended:?}");
    });
    let (endpoint, url) = pair.endpoint();
    refused(&mades(&url, &["--cacert", ca]), &format!("{why}--insecure"));
    endpoint.stop();
    let security = format!("tls = \"required\"\ncacert = \"{ca}\"\ntls_name = \"localhost\"\n");
    relay_refuses(&sink, &sink.address(), &security, &format!("{why}insecure = true"));
}

#[test]
fn a_port_that_does_not_speak_tls_is_named() {
    let sink = Sink::start(&[]);
    let to = sink.address();
    let (_, port) = to.rsplit_once(':').unwrap();
    let why = format!("port {port} does not speak TLS: --tls starttls?");
    loads(&to, &["--tls", "implicit", "--insecure"], |ended| refused(ended, &why));
    let endpoint = Endpoint::embedded(&[]);
    let ended = mades(&endpoint.url.replace("amqp:", "amqps:"), &["--insecure"]);
    refused(&ended, "does not use TLS; use amqp://, or the TLS port of the broker (what it says is not TLS)");
    endpoint.stop();
    let why = "the server does not speak TLS on this port: check tls and the port of the route";
    relay_refuses(&sink, &to, "tls = \"implicit\"\n", why);
}

/// Returns the command with which a page of the manual creates a certificate.
fn command_of(page: &str) -> String {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(page)).unwrap();
    let mut command = String::new();
    for line in text.lines().skip_while(|line| !line.trim_start().starts_with("openssl req -x509")) {
        command.push_str(line);
        command.push('\n');
        if !line.ends_with('\\') {
            break;
        }
    }
    command
}

#[test]
fn the_manuals_certificates_are_accepted() {
    if peer("openssl").is_none() {
        return;
    }
    let files = Files::new();
    for (page, name) in [("docs/relay.md", "certificate.pem"), ("docs/mades.md", "cert.pem")] {
        let made = run("sh", &["-ec", &format!("cd {}\n{}", files.path(""), command_of(page))]);
        assert_eq!(made.code, Some(0), "{page}: {made:?}");
        let pair = Pair { certificate: files.path(name), key: files.path("key.pem") };
        let sink = pair.sink();
        let to = as_localhost(&sink.address());
        loads(&to, &["--tls", "starttls", "--cacert", &pair.certificate], went_well);
        let (endpoint, url) = pair.endpoint();
        went_well(&mades(&url, &["--cacert", &pair.certificate]));
        endpoint.stop();
    }
}
