//! Certificates that change while a server runs. New sessions get a renewed certificate, a broken one is ignored, and
//! running sessions go on.
use crate::party::{Process, Sink, SourceRun, accepted, ended_so, source, wait_until};
use crate::relay::{Den, MAILRUN, QUICK, Relay, await_recipients, metric};
use crate::secured::{Files, handshakes_in_all};
use mailrun_measurement::record::Record;
use std::fs;

enum Host {
    Relay {
        relay: Relay,
        /// Directory of the relay's files. It is kept here because the files are deleted when it is dropped.
        _den: Den,
    },
    Sink(Sink),
}

impl Host {
    fn address(&self) -> String {
        match self {
            Self::Relay { relay, .. } => relay.address(),
            Self::Sink(sink) => sink.address(),
        }
    }

    fn process(&self) -> &Process {
        match self {
            Self::Relay { relay, .. } => &relay.process,
            Self::Sink(sink) => &sink.process,
        }
    }

    fn stop(self) {
        match self {
            Self::Relay { relay, .. } => drop(relay.stop()),
            Self::Sink(sink) => drop(sink.stop()),
        }
    }

    /// Reports whether a client that trusts only the certificate in the file `ca` can deliver mail to the server.
    fn is_trusted_by(&self, ca: &str) -> bool {
        let ours = self.hears(&["--cacert", ca, "--tls-name", "localhost", "--messages", "1"]);
        accepted(&ours.record) == 1
    }

    fn hears(&self, words: &[&str]) -> SourceRun {
        source(&self.address(), &[&["--tls", "starttls"], words].concat())
    }

    /// Waits until the server presents the new certificate and no longer the old one.
    fn await_shown(&self, ca: &str, old: &str) {
        wait_until("the renewed certificate", || self.is_trusted_by(ca).then_some(()));
        assert!(!self.is_trusted_by(old));
    }
}

fn hosts() -> Vec<(Host, Files)> {
    let files = Files::new();
    let [certificate, key] = files.certificate("live", &["localhost"]);
    let text = format!("tls.cert = \"{certificate}\"\ntls.key = \"{key}\"\n[[route]]\nto = \"*\"\ndiscard = true\n");
    let den = Den::new(&text);
    let relay = Host::Relay { relay: den.open(), _den: den };
    let sink_files = Files::new();
    let [certificate, key] = sink_files.certificate("live", &["localhost"]);
    let sink = Host::Sink(Sink::start(&["--tls", "starttls", "--tls-cert", &certificate, "--tls-key", &key]));
    vec![(relay, files), (sink, sink_files)]
}

/// Renames a new certificate and key to the server's files, as certbot does. Returns the path of a copy of the
/// certificate, for clients that trust it.
fn rotate(files: &Files, number: usize) -> String {
    let name = format!("renewed-{number}");
    let [certificate, key] = files.certificate(&name, &["localhost"]);
    let ca = files.keep(&format!("{name}.ca"), &fs::read_to_string(&certificate).unwrap());
    fs::rename(certificate, files.path("live.pem")).unwrap();
    fs::rename(key, files.path("live.key")).unwrap();
    ca
}

fn copy_of_live(files: &Files) -> String {
    files.keep("first.ca", &fs::read_to_string(files.path("live.pem")).unwrap())
}

/// Returns how often the server has written the text `what` to standard error.
fn said(host: &Host, what: &str) -> usize {
    host.process().complained().matches(what).count()
}

#[test]
fn a_renewed_certificate_is_shown_without_a_signal_and_a_broken_one_changes_nothing() {
    for (host, files) in hosts() {
        let first = copy_of_live(&files);
        assert!(host.is_trusted_by(&first));
        let second = rotate(&files, 2);
        host.await_shown(&second, &first);
        // First install a key that does not match the certificate. Then replace the certificate by garbage. The server
        // must report each of these faults once, and keep its certificate.
        let key = fs::read(files.path("live.key")).unwrap();
        let [_, other] = files.certificate("other", &["localhost"]);
        fs::rename(other, files.path("live.key")).unwrap();
        wait_until("a complaint", || (said(&host, "stays in use") == 1).then_some(()));
        assert!(host.is_trusted_by(&second));
        fs::write(files.path("live.pem"), "garbage").unwrap();
        wait_until("another complaint", || (said(&host, "stays in use") == 2).then_some(()));
        assert!(host.is_trusted_by(&second));
        fs::write(files.path("live.key"), key).unwrap();
        let third = rotate(&files, 3);
        host.await_shown(&third, &second);
        host.stop();
    }
}

#[test]
fn a_hang_up_reads_the_certificate_at_once_and_refuses_a_broken_one() {
    for (host, files) in hosts() {
        let first = copy_of_live(&files);
        let second = rotate(&files, 2);
        host.process().hang_up();
        host.await_shown(&second, &first);
        fs::write(files.path("live.pem"), "garbage").unwrap();
        host.process().hang_up();
        let words = match host {
            Host::Relay { .. } => "the configuration is unchanged",
            Host::Sink(_) => "stays in use",
        };
        wait_until("a complaint", || (said(&host, words) == 1).then_some(()));
        assert!(host.is_trusted_by(&second));
        host.stop();
    }
}

#[test]
fn under_load_nobody_notices_that_a_certificate_is_renewed() {
    for (host, files) in hosts() {
        let record = files.path("reused.json");
        let to = host.address();
        let tls = ["--tls", "starttls", "--insecure", &to];
        let base = [&["source"], tls.as_slice()].concat();
        // The first source sends all messages in one long session. The other source opens a session for each message.
        let lasting = ["--sessions", "1", "--reuse", "--messages", "40", "--think-time", "100ms", "--json", &record];
        let lasting = Process::start(MAILRUN, &[&base, lasting.as_slice()].concat());
        let brief_record = files.path("brief.json");
        let brief = ["--rate", "50", "--duration", "4s", "--sessions", "8", "--json", &brief_record];
        let brief = Process::start(MAILRUN, &[&base, brief.as_slice()].concat());
        let mut shown = copy_of_live(&files);
        for number in 2..4 {
            let renewed = rotate(&files, number);
            host.await_shown(&renewed, &shown);
            shown = renewed;
        }
        for (process, record, sessions) in [(lasting, record, Some(1)), (brief, brief_record, None)] {
            let ended = process.finish();
            let record: Record = serde_json::from_str(&fs::read_to_string(record).unwrap()).unwrap();
            assert!(ended_so(ended.code, 0, &record) && record.errors.is_empty(), "{:?} {}", record.errors, ended.err);
            assert!(sessions.is_none_or(|sessions| handshakes_in_all(&record) == sessions));
        }
        host.stop();
    }
}

#[test]
fn whom_a_relay_trusts_is_read_again_when_it_changes() {
    let files = Files::new();
    let [certificate, key] = files.certificate("live", &["localhost"]);
    let sink = Sink::start(&["--tls", "starttls", "--tls-cert", &certificate, "--tls-key", &key]);
    let ca = files.keep("ca.pem", &fs::read_to_string(&certificate).unwrap());
    let route = format!(
        "[[route]]\nto = \"*\"\nsmtp = \"{}\"\ntls = \"required\"\ncacert = \"{ca}\"\ntls_name = \"localhost\"\n",
        sink.address()
    );
    let den = Den::new(&format!("http = \"127.0.0.1:0\"\n{QUICK}{route}"));
    let relay = den.open();
    let submit = || assert_eq!(accepted(&source(&relay.address(), &["--messages", "1"]).record), 1);
    submit();
    await_recipients(&sink, 1);
    // Renew the next hop's certificate. The relay must keep mail until its file `ca.pem` has the new certificate.
    let renewed = rotate(&files, 2);
    wait_until("the renewed certificate", || {
        let words = ["--tls", "starttls", "--cacert", &renewed, "--tls-name", "localhost", "--messages", "1"];
        (accepted(&source(&sink.address(), &words).record) == 1).then_some(())
    });
    // Wait until the relay has closed its connection. It would reuse an open connection without a new handshake.
    wait_until("no connection", || (metric(&relay, "couriers") == 0).then_some(()));
    submit();
    // Two messages go through the relay, and the test sent one message to the next hop directly.
    let sent = 3;
    wait_until("a refusal to trust it", || (metric(&relay, "unreachable_total") > 0).then_some(()));
    assert!(sink.ask("/status")["recipients"].as_u64().unwrap() < sent);
    fs::rename(&renewed, &ca).unwrap();
    await_recipients(&sink, sent);
    relay.stop();
    sink.stop();
}
