//! Source and sink as processes over TLS, AUTH and LMTP. Both records agree, refusals are counted by reason, and no
//! password is written anywhere.
use crate::party::{Sink, SourceRun, accepted, errors, run, skip, source, took};
use mailrun_measurement::Phase;
use mailrun_measurement::record::Record;
use mailrun_net::Certificate;
use std::fs;
use std::net::TcpListener;
use tempfile::TempDir;

pub(crate) const MODES: [&str; 2] = ["starttls", "implicit"];

pub(crate) const USER: &str = "ann";
pub(crate) const PASSWORD: &str = "s3cr3t-h0rse";
const WRONG: &str = "wr0ng-battery";
/// The two passwords, each followed by its three base64 forms on the wire: alone, behind `\0ann\0`, and in XOAUTH2.
const SECRETS: [&str; 8] = [
    PASSWORD,
    "czNjcjN0LWgwcnNl",
    "AGFubgBzM2NyM3QtaDByc2U=",
    "dXNlcj1hbm4BYXV0aD1CZWFyZXIgczNjcjN0LWgwcnNlAQE=",
    WRONG,
    "d3IwbmctYmF0dGVyeQ==",
    "AGFubgB3cjBuZy1iYXR0ZXJ5",
    "dXNlcj1hbm4BYXV0aD1CZWFyZXIgd3IwbmctYmF0dGVyeQEB",
];

#[derive(Debug)]
pub(crate) struct Files(TempDir);

impl Files {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn keep(&self, name: &str, text: &str) -> String {
        fs::write(self.path(name), text).unwrap();
        self.path(name)
    }

    pub(crate) fn certificate(&self, name: &str, names: &[&str]) -> [String; 2] {
        let made = Certificate::self_signed(names).unwrap();
        [self.keep(&format!("{name}.pem"), &made.to_pem()), self.keep(&format!("{name}.key"), &made.key_to_pem())]
    }

    /// The sink's file of users, with one user.
    pub(crate) fn users(&self) -> String {
        self.keep("users", &format!("# who may\n{USER}:{PASSWORD}\n"))
    }
}

/// A sink with TLS, and its certificate.
pub(crate) struct Secured {
    pub(crate) sink: Sink,
    pub(crate) ca: String,
    pub(crate) files: Files,
}

impl Secured {
    pub(crate) fn start(mode: &str, words: &[&str]) -> Self {
        Self::start_with(Files::new(), mode, words)
    }

    pub(crate) fn start_with(files: Files, mode: &str, words: &[&str]) -> Self {
        let ca = files.path("ca.pem");
        let sink = Sink::start(&[&["--tls", mode, "--tls-write-cert", &ca], words].concat());
        Self { sink, ca, files }
    }

    fn hears(&self, words: &[&str]) -> SourceRun {
        source(&self.sink.address(), words)
    }
}

/// Handshakes in a record: version, cipher suite, total, resumed.
fn handshakes(record: &Record) -> Vec<(&str, &str, u64, u64)> {
    record.tls.iter().map(|row| (&*row.version, &*row.cipher, row.handshakes, row.resumed)).collect()
}

pub(crate) fn handshakes_in_all(record: &Record) -> u64 {
    record.tls.iter().map(|row| row.handshakes).sum()
}

fn timed(record: &Record, phase: Phase) -> u64 {
    record.phases.iter().find(|row| row.name == phase).map_or(0, |row| row.count)
}

fn said(record: &Record, phase: Phase) -> &str {
    record.errors.iter().find(|row| row.phase == phase).map_or("", |row| &row.text)
}

fn went_through(ours: &SourceRun, messages: u64) {
    let code = ours.ended.code;
    assert_eq!((code, accepted(&ours.record)), (Some(0), messages), "{:?} {:?}", ours.ended.err, ours.record.errors);
    assert!(ours.record.errors.is_empty(), "{:?}", ours.record.errors);
}

/// Asserts that no message was accepted. Each must have been rejected by a reply or have failed
/// without a reply, exactly once and all for the same reason.
fn failed(ours: &SourceRun, messages: u64, phase: Phase, code: u16) {
    let record = &ours.record;
    let fate = if code > 0 { record.ledger.rejected } else { record.ledger.failed };
    let counts = (ours.ended.code, accepted(record), fate, errors(record, phase, code));
    assert_eq!(counts, (Some(1), 0, Some(messages), messages), "{:?}", record.errors);
    assert_eq!(record.errors.iter().map(|row| row.count).sum::<u64>(), messages, "{:?}", record.errors);
}

#[test]
fn both_parties_count_the_same_handshakes() {
    let off = ["--no-tls-resumption"].as_slice();
    let rows: [(&[&str], &[&str], u64); 4] = [(&[], &[], 11), (&[], off, 0), (off, &[], 0), (off, off, 0)];
    for mode in MODES {
        for (server, client, resumed) in rows {
            let host = Secured::start(mode, server);
            let words = ["--tls", mode, "--cacert", &host.ca, "--messages", "12", "--sessions", "1"];
            let ours = host.hears(&[words.as_slice(), client].concat());
            went_through(&ours, 12);
            assert_eq!(timed(&ours.record, Phase::Tls), 12);
            let theirs = host.sink.stop();
            assert_eq!(handshakes(&ours.record), handshakes(&theirs), "{mode} {server:?} {client:?}");
            let [(version, _, all, again)] = handshakes(&theirs)[..] else { panic!("{:?}", theirs.tls) };
            assert_eq!((version, all, again), ("TLSv1.3", 12, resumed), "{mode} {server:?} {client:?}");
            assert_eq!([&ours.record, &theirs].map(|record| record.workload.tls.as_str()), [mode; 2]);
            assert_eq!((took(&theirs).messages, took(&theirs).connections), (12, 12));
            assert!(theirs.errors.is_empty(), "{:?}", theirs.errors);
        }
    }
}

#[test]
fn what_goes_through_tls_arrives_whole() {
    for mode in MODES {
        for (pipelining, size) in [("off", "400"), ("group", "200k"), ("stream", "70k")] {
            let files = Files::new();
            let sent = files.path("sent");
            let arrived = files.path("arrived");
            let host = Secured::start_with(files, mode, &["--ledger", &arrived]);
            let load =
                ["--messages", "40", "--sessions", "4", "--reuse", "--message-size", size, "--pipelining", pipelining];
            let ours =
                host.hears(&[["--tls", mode, "--cacert", &host.ca, "--ledger", &sent].as_slice(), &load].concat());
            went_through(&ours, 40);
            let theirs = host.sink.stop();
            let ledger = &theirs.ledger;
            assert_eq!([ledger.delivered, ledger.corrupt, ledger.duplicates], [Some(40), Some(0), Some(0)]);
            assert_eq!([&ours.record, &theirs].map(handshakes_in_all), [4, 4], "a handshake a connection");
            assert_eq!(fs::read(&sent).unwrap(), fs::read(&arrived).unwrap(), "the same units at both ends");
        }
    }
}

#[test]
fn a_certificate_is_believed_only_for_its_name() {
    let files = Files::new();
    let [chain, key] = files.certificate("server", &["mail.example"]);
    let [stranger, _] = files.certificate("stranger", &["mail.example"]);
    for mode in MODES {
        let host = Secured::start(mode, &["--tls-cert", &chain, "--tls-key", &key]);
        assert_eq!(fs::read(&host.ca).unwrap(), fs::read(&chain).unwrap());
        let load = ["--tls", mode, "--messages", "6", "--sessions", "2"];
        let good: [&[&str]; 3] = [
            &["--cacert", &chain, "--tls-name", "mail.example"],
            &["--insecure"],
            &["--insecure", "--tls-name", "x.example"],
        ];
        for words in good {
            went_through(&host.hears(&[&load, words].concat()), 6);
        }
        let bad: [(&[&str], &str); 4] = [
            (&["--cacert", &chain], "the certificate is for mail.example, not for 127.0.0.1"),
            (
                &["--cacert", &chain, "--tls-name", "x.example"],
                "the certificate is for mail.example, not for x.example",
            ),
            (&["--cacert", &stranger, "--tls-name", "mail.example"], "the certificate of mail.example is not trusted"),
            (&["--tls-name", "mail.example"], "the certificate of mail.example is not trusted"),
        ];
        for (words, why) in bad {
            let ours = host.hears(&[&load, words].concat());
            failed(&ours, 6, Phase::Tls, 0);
            assert!(said(&ours.record, Phase::Tls).contains(why), "{words:?}: {:?}", ours.record.errors);
            assert_eq!((handshakes_in_all(&ours.record), timed(&ours.record, Phase::Tls)), (0, 0));
        }
        let theirs = host.sink.stop();
        let counts = (took(&theirs).messages, handshakes_in_all(&theirs), errors(&theirs, Phase::Tls, 0));
        assert_eq!(counts, (18, 18, 24), "{mode}: {:?}", theirs.errors);
    }
}

#[test]
fn what_cannot_be_used_for_tls_is_said_before_anything_is_sent() {
    let files = Files::new();
    let junk = files.keep("junk", "no PEM\n");
    let none = files.path("none");
    let [chain, key] = files.certificate("client", &["client.example"]);
    let base = ["source", "127.0.0.1:9", "--messages", "1", "--tls", "starttls"];
    let rows: [&[&str]; 5] = [
        &["--cacert", &junk],
        &["--cacert", &none],
        &["--insecure", "--tls-cert", &junk, "--tls-key", &key],
        &["--insecure", "--tls-cert", &chain, "--tls-key", &junk],
        &["--insecure", "--tls-name", "no name"],
    ];
    for words in rows {
        let ended = crate::party::mailrun(&[&base, words].concat());
        let lines = ended.err.lines().count();
        assert!(ended.code == Some(2) && lines == 1 && ended.err.starts_with("mailrun: "), "{words:?}: {ended:?}");
    }
    for words in [["--tls-client-ca", &junk], ["--tls-write-cert", "/dev/null/ca.pem"]] {
        let base = ["sink", "--listen", "127.0.0.1:0", "--tls", "implicit"];
        let ended = crate::party::mailrun(&[base.as_slice(), &words].concat());
        assert!(ended.code == Some(2) && ended.err.lines().count() == 1, "{words:?}: {ended:?}");
    }
}

#[test]
fn a_client_shows_its_certificate_where_it_must() {
    let files = Files::new();
    let [chain, key] = files.certificate("client", &["client.example"]);
    let [other_chain, other_key] = files.certificate("other", &["client.example"]);
    for mode in MODES {
        let host = Secured::start(mode, &["--tls-client-ca", &chain]);
        let load = ["--tls", mode, "--cacert", &host.ca, "--messages", "5", "--sessions", "1"];
        went_through(&host.hears(&[load.as_slice(), &["--tls-cert", &chain, "--tls-key", &key]].concat()), 5);
        for words in [["--tls-cert", &other_chain, "--tls-key", &other_key].as_slice(), &[]] {
            let ours = host.hears(&[&load, words].concat());
            // In TLS 1.3, the client ends its handshake before the server checks the client's certificate. So the
            // client learns of the refusal only at its next read.
            failed(&ours, 5, Phase::Tls, 0);
            let said = said(&ours.record, Phase::Tls);
            assert!(said.contains("rejects the certificate of this side"), "{words:?}: {said}");
        }
        let theirs = host.sink.stop();
        let counts = (took(&theirs).messages, handshakes(&theirs)[0].2, errors(&theirs, Phase::Tls, 0));
        assert_eq!(counts, (5, 5, 10), "{mode}: {:?}", theirs.errors);
    }
}

#[test]
fn tls_and_auth_over_ipv6() {
    if TcpListener::bind("[::1]:0").is_err() {
        return skip("ipv6", "this machine has none");
    }
    for mode in MODES {
        let files = Files::new();
        let ca = files.path("ca.pem");
        let users = files.users();
        let password = files.keep("password", PASSWORD);
        let sink = Sink::start_at("[::1]:0", &["--tls", mode, "--tls-write-cert", &ca, "--auth-users", &users]);
        let load = ["--messages", "8", "--sessions", "2", "--user", USER, "--password-file", &password];
        let ours = source(&sink.address(), &[["--tls", mode, "--cacert", &ca].as_slice(), &load].concat());
        went_through(&ours, 8);
        assert!(ours.record.workload.target.starts_with("[::1]:"), "{}", ours.record.workload.target);
        let theirs = sink.stop();
        assert_eq!((took(&theirs).messages, handshakes(&theirs)), (8, handshakes(&ours.record)));
    }
}

#[test]
fn parties_that_do_not_agree_on_tls_say_so_and_do_not_hang() {
    let load = ["--messages", "3", "--sessions", "1", "--insecure"];
    let offered = Secured::start("starttls", &[]);
    let ours = offered.hears(&[load.as_slice(), &["--tls", "implicit"]].concat());
    failed(&ours, 3, Phase::Tls, 0);
    assert!(said(&ours.record, Phase::Tls).contains("does not speak TLS on this port"), "{:?}", ours.record.errors);
    assert_eq!(offered.sink.took().messages, 0);

    // Neither side begins: the server waits for a ClientHello, and the client for a greeting.
    let implicit = Secured::start("implicit", &[]);
    let ours = implicit.hears(&[load.as_slice(), &["--tls", "starttls", "--timeout", "300ms"]].concat());
    failed(&ours, 3, Phase::Banner, 0);
    assert!(said(&ours.record, Phase::Banner).contains("no reply within"), "{:?}", ours.record.errors);
    let theirs = implicit.sink.stop();
    assert_eq!((took(&theirs).messages, errors(&theirs, Phase::Tls, 0)), (0, 3), "{:?}", theirs.errors);

    let plain = Sink::start(&[]);
    let ours = source(&plain.address(), &[load.as_slice(), &["--tls", "starttls"]].concat());
    failed(&ours, 3, Phase::Tls, 0);
    assert_eq!(said(&ours.record, Phase::Tls), "the server does not offer STARTTLS");
    assert_eq!(plain.took().messages, 0);

    let refuses = Secured::start("starttls", &["--fault", "starttls: soft reject \"454 4.7.0 Not now\""]);
    let ours = refuses.hears(&[load.as_slice(), &["--tls", "starttls"]].concat());
    failed(&ours, 3, Phase::Tls, 454);
    assert_eq!(refuses.sink.took().messages, 0);
}

/// Returns the numbers of accepted and failed messages, after checking that both records agree on them.
fn shares(ours: &SourceRun, theirs: &Record, phase: Phase, code: u16) -> [u64; 2] {
    let failed = errors(theirs, phase, code);
    let lost: u64 = ours.record.errors.iter().map(|row| row.count).sum();
    let fate = if code > 0 { ours.record.ledger.rejected } else { ours.record.ledger.failed };
    assert_eq!((lost, fate), (failed, Some(failed)), "{:?}", ours.record.errors);
    assert_eq!(took(theirs).messages, accepted(&ours.record));
    [accepted(&ours.record), failed]
}

#[test]
fn a_sink_breaks_handshakes_and_logins_as_often_as_it_is_told() {
    let files = Files::new();
    let users = files.users();
    let password = files.keep("password", PASSWORD);
    let login = ["--user", USER, "--password-file", &password, "--messages", "60", "--sessions", "3"];
    let faults = [
        ("tls: hang up 0.3", Phase::Tls, 0),
        ("tls: reset 0.3", Phase::Tls, 0),
        ("auth: soft reject 0.3 ", Phase::Auth, 450),
        ("auth: hang up 0.3", Phase::Auth, 0),
    ];
    for mode in MODES {
        for (fault, phase, code) in faults {
            let host = Secured::start(mode, &["--auth-users", &users, "--auth-required", "--fault", fault]);
            let tls = ["--tls", mode, "--cacert", &host.ca, "--auth-mechanism", "plain"];
            let ours = host.hears(&[tls.as_slice(), &login].concat());
            let theirs = host.sink.stop();
            let [well, ill] = shares(&ours, &theirs, phase, code);
            assert!(well + ill == 60 && (6..=36).contains(&ill), "{mode} {fault}: {ill}");
        }
    }
}

const MECHANISMS: [&str; 5] = ["plain", "login", "cram-md5", "scram-sha-256", "xoauth2"];

/// Asserts that neither output nor record contains a secret.
fn keeps_secrets(texts: &[&str], record: &Record) {
    let record = serde_json::to_string(record).unwrap();
    for text in texts.iter().chain([&record.as_str()]) {
        for secret in SECRETS {
            assert!(!text.contains(secret), "{secret} is in {text}");
        }
    }
}

#[test]
fn each_mechanism_lets_the_right_one_in_and_keeps_the_secret() {
    let files = Files::new();
    let users = files.users();
    let right = files.keep("right", PASSWORD);
    let wrong = files.keep("wrong", WRONG);
    let sink = Sink::start(&["--auth-users", &users, "--auth-required"]);
    let load = ["--messages", "4", "--sessions", "2"];
    for mechanism in MECHANISMS {
        let hears = |user: &str, password: &str| {
            let words = ["--user", user, "--auth-mechanism", mechanism, "--password-file", password];
            let ours = source(&sink.address(), &[load.as_slice(), &words].concat());
            keeps_secrets(&[&ours.ended.out, &ours.ended.err], &ours.record);
            ours
        };
        let ours = hears(USER, &right);
        went_through(&ours, 4);
        assert_eq!(
            timed(&ours.record, Phase::Auth),
            4,
            "{mechanism}: a login a connection, however many replies it has"
        );
        for (user, password) in [(USER, &wrong), ("nobody", &right)] {
            let ours = hears(user, password);
            failed(&ours, 4, Phase::Auth, 535);
        }
    }
    let said = [sink.process.said(), sink.process.complained()];
    let theirs = sink.stop();
    keeps_secrets(&[&said[0], &said[1]], &theirs);
    let counts = (took(&theirs).messages, errors(&theirs, Phase::Auth, 535), took(&theirs).connections);
    assert_eq!(counts, (5 * 4, 5 * 8, 5 * 12), "{:?}", theirs.errors);
}

#[test]
fn without_a_login_there_is_no_mail_where_one_is_required() {
    let files = Files::new();
    let sink = Sink::start(&["--auth-users", &files.users(), "--auth-required"]);
    let ours = source(&sink.address(), &["--messages", "6", "--sessions", "2"]);
    failed(&ours, 6, Phase::Mail, 530);
    assert_eq!(sink.took().messages, 0);
}

#[test]
fn the_strongest_mechanism_is_chosen_over_tls_and_the_environment_knows_the_password() {
    let files = Files::new();
    let users = files.users();
    let host = Secured::start_with(files, "starttls", &["--auth-users", &users, "--auth-required"]);
    let json = host.files.path("source.json");
    let address = host.sink.address();
    let words = ["source", &address, "--messages", "6", "--sessions", "2", "--json", &json, "--user", USER];
    let tls = ["--tls", "starttls", "--cacert", &host.ca];
    let secret = format!("MAILRUN_PASSWORD={PASSWORD}");
    let ended = run("env", &[[&secret, env!("CARGO_BIN_EXE_mailrun")].as_slice(), &words, &tls].concat());
    let record: Record = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    keeps_secrets(&[&ended.out, &ended.err], &record);
    went_through(&SourceRun { ended, record }, 6);
    assert_eq!(host.sink.took().messages, 6);
}

#[test]
fn anybody_may_come_in_and_what_is_not_offered_is_said() {
    let files = Files::new();
    let password = files.keep("any", "any");
    let anybody = Sink::start(&["--auth-any", "--auth-required"]);
    let closed = Sink::start(&[]);
    let load = ["--messages", "3", "--sessions", "1", "--user", "whoever", "--password-file", &password];
    for mechanism in ["plain", "login", "cram-md5", "xoauth2"] {
        went_through(&source(&anybody.address(), &[load.as_slice(), &["--auth-mechanism", mechanism]].concat()), 3);
    }
    for (sink, mechanism) in [(&anybody, "scram-sha-256"), (&closed, "plain")] {
        let ours = source(&sink.address(), &[load.as_slice(), &["--auth-mechanism", mechanism]].concat());
        failed(&ours, 3, Phase::Auth, 0);
        assert_eq!(said(&ours.record, Phase::Auth), "the server offers no usable AUTH mechanism");
    }
    assert_eq!((anybody.took().messages, closed.took().messages), (12, 0));
}

/// Runs an LMTP source against an LMTP sink. Returns their records, and whether their ledgers are identical.
fn lmtp(server: &[&str], client: &[&str]) -> (SourceRun, Record, bool) {
    let files = Files::new();
    let sent = files.path("sent");
    let arrived = files.path("arrived");
    let sink = Sink::start(&[&["--lmtp", "--ledger", &arrived], server].concat());
    let ours = source(&sink.address(), &[&["--lmtp", "--ledger", &sent], client].concat());
    let theirs = sink.stop();
    let is_same = fs::read(&sent).unwrap() == fs::read(&arrived).unwrap();
    (ours, theirs, is_same)
}

#[test]
fn lmtp_answers_for_each_recipient_and_the_ledgers_agree() {
    for pipelining in ["off", "group", "stream"] {
        let load = ["--messages", "20", "--sessions", "3", "--recipients", "5", "--reuse", "--pipelining", pipelining];
        let (ours, theirs, is_same) = lmtp(&[], &load);
        went_through(&ours, 20);
        assert_eq!([ours.record.ledger.accepted, theirs.ledger.delivered], [Some(100); 2], "{pipelining}");
        assert_eq!(timed(&ours.record, Phase::Reply), 100, "an answer for each recipient");
        assert_eq!([&ours.record, &theirs].map(|record| record.workload.protocol.as_str()), ["lmtp"; 2]);
        assert!(is_same);

        let (ours, theirs, is_same) = lmtp(&["--fault", "rcpt to to1@: hard reject"], &load);
        assert_eq!((ours.ended.code, accepted(&ours.record)), (Some(1), 20), "{:?}", ours.record.errors);
        assert_eq!(errors(&ours.record, Phase::Rcpt, 554), 20);
        assert_eq!((ours.record.ledger.accepted, ours.record.ledger.rejected), (Some(80), Some(20)), "{pipelining}");
        assert_eq!((theirs.ledger.delivered, theirs.ledger.duplicates), (Some(80), Some(0)));
        assert!(is_same, "{pipelining}");
    }
}

#[test]
fn a_message_that_lmtp_refuses_after_the_dot_is_refused_for_each_recipient() {
    let load = ["--messages", "40", "--sessions", "2", "--recipients", "3", "--reuse"];
    let (ours, theirs, is_same) = lmtp(&["--fault", ".: soft reject 0.5"], &load);
    let refused = errors(&theirs, Phase::Reply, 450);
    assert!(refused > 0 && refused < 40, "{:?}", theirs.errors);
    assert_eq!(errors(&ours.record, Phase::Reply, 450), 3 * refused);
    let units = 3 * (40 - refused);
    assert_eq!((ours.record.ledger.accepted, theirs.ledger.delivered), (Some(units), Some(units)));
    assert_eq!((ours.ended.code, ours.record.ledger.rejected, is_same), (Some(1), Some(3 * refused), true));
}

#[test]
fn recipients_that_lmtp_refuses_after_the_dot_are_in_neither_ledger() {
    for (pipelining, chunking) in [("off", None), ("group", None), ("stream", None), ("stream", Some("--chunking"))] {
        let load = ["--messages", "40", "--sessions", "2", "--recipients", "5", "--reuse", "--pipelining", pipelining];
        let load: Vec<&str> = load.into_iter().chain(chunking).collect();
        let rules = ["--fault", ". to to1@: hard reject", "--fault", ". to *: soft reject 0.3"];
        let (ours, theirs, is_same) = lmtp(&rules, &load);
        let soft = errors(&theirs, Phase::Reply, 450);
        assert!((20..80).contains(&soft), "{:?}", theirs.errors);
        let refused = soft + 40;
        assert_eq!((errors(&ours.record, Phase::Reply, 554), errors(&ours.record, Phase::Reply, 450)), (40, soft));
        assert_eq!(ours.record.ledger.accepted, Some(200 - refused), "{pipelining}");
        assert_eq!((theirs.ledger.delivered, theirs.ledger.duplicates), (Some(200 - refused), Some(0)));
        assert_eq!((ours.ended.code, ours.record.ledger.rejected, is_same), (Some(1), Some(refused), true));
        assert_eq!(theirs.ledger.delivered, Some(sum_of_recipients(&theirs)));
    }
}

#[test]
fn recipients_that_lmtp_answered_before_the_session_ended_were_accepted() {
    let to = ["a@one.example", "b@two.example", "c@three.example"].into_iter().flat_map(|to| ["--to", to]);
    let load: Vec<&str> = ["--messages", "5", "--sessions", "1"].into_iter().chain(to).collect();
    for (rule, rejected, in_doubt) in [(". to b@: hang up", 0, 2), (". to b@: soft reject \"421 4.3.2 Enough\"", 2, 0)]
    {
        let (ours, theirs, is_same) = lmtp(&["--fault", rule], &load);
        let ledger = &ours.record.ledger;
        assert_eq!([ledger.accepted, theirs.ledger.delivered], [Some(5); 2], "{rule}: {ledger:?}");
        assert_eq!((ledger.rejected, ledger.in_doubt), (Some(5 * rejected), Some(5 * in_doubt)), "{rule}");
        assert_eq!(ledger.failed, Some(0), "the message was sent as a whole: {rule}");
        assert_eq!((ours.ended.code, is_same), (Some(1), true), "{rule}: {:?}", ours.record.verdict);
        let fates: Vec<_> = ours
            .record
            .domains
            .iter()
            .map(|row| (row.accepted, row.rejected / 5, row.in_doubt / 5, row.failed))
            .collect();
        let others = (0, rejected / 2, in_doubt / 2, 0);
        assert_eq!(fates, [(5, 0, 0, 0), others, others], "{rule}");
    }
}

#[test]
fn handshakes_of_the_warm_up_are_counted_and_not_timed() {
    let sink = Sink::start(&["--tls", "starttls"]);
    let load = ["--tls", "starttls", "--insecure", "--messages", "10", "--warm-up", "1h"];
    let ours = source(&sink.address(), &load);
    assert!(handshakes_in_all(&ours.record) >= 10, "{:?}", ours.record.tls);
    assert_eq!((timed(&ours.record, Phase::Tls), timed(&ours.record, Phase::Connect)), (0, 0));
}

#[test]
fn messages_that_are_said_to_be_binary_arrive_unchanged() {
    for pipelining in ["off", "group", "stream"] {
        let sink = Sink::start(&[]);
        let load = ["--messages", "40", "--sessions", "2", "--reuse", "--pipelining", pipelining];
        let ours = source(&sink.address(), &[load.as_slice(), &["--chunking", "--binarymime"]].concat());
        let theirs = sink.stop();
        assert_eq!((ours.ended.code, accepted(&ours.record), &ours.record.errors), (Some(0), 40, &Vec::new()));
        assert_eq!((theirs.ledger.delivered, theirs.ledger.corrupt), (Some(40), Some(0)), "{pipelining}");
    }
}

fn sum_of_recipients(record: &Record) -> u64 {
    crate::party::took(record).recipients
}

#[test]
fn lmtp_over_tls_with_a_login() {
    let files = Files::new();
    let users = files.users();
    let password = files.keep("password", PASSWORD);
    for mode in MODES {
        let words = ["--tls", mode, "--auth-users", &users, "--auth-required"];
        let login = ["--tls", mode, "--insecure", "--user", USER, "--password-file", &password];
        let load = ["--messages", "10", "--sessions", "2", "--recipients", "4"];
        let (ours, theirs, is_same) = lmtp(&words, &[login.as_slice(), &load].concat());
        went_through(&ours, 10);
        assert_eq!((theirs.ledger.delivered, is_same), (Some(40), true));
        assert_eq!(handshakes(&ours.record), handshakes(&theirs));
    }
}

#[test]
fn who_speaks_the_wrong_protocol_is_told() {
    for (server, client) in [(["--lmtp"].as_slice(), [].as_slice()), (&[], &["--lmtp"])] {
        let sink = Sink::start(server);
        let ours = source(&sink.address(), &[&["--messages", "3", "--sessions", "1"], client].concat());
        assert_eq!((ours.ended.code, accepted(&ours.record)), (Some(1), 0), "{server:?}: {:?}", ours.record.errors);
        assert_eq!(ours.record.ledger.rejected, Some(3));
        assert!(errors(&ours.record, Phase::Ehlo, 500) >= 3, "{:?}", ours.record.errors);
        assert_eq!(sink.took().messages, 0);
    }
}
