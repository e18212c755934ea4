//! `mailrun send` as a user types it: what arrives, and with which line and status it ends.
use crate::party::{MAILRUN, Process, Sink, mailrun, run, source, wait_until};
use std::fs;
use std::path::Path;

/// Runs `mailrun send` with the usual recipient. Returns the exit status and the output.
fn send(server: &str, words: &[&str]) -> (i32, String) {
    let usual = ["send", server, "--to", "ann@a.example", "--timeout", "20s"];
    let ended = mailrun(&[&usual[..], words].concat());
    assert_eq!(ended.err, "", "{words:?}");
    (ended.code.unwrap(), ended.out)
}

fn last_line(out: &str) -> &str {
    out.lines().last().unwrap_or_default()
}

/// Contents of all files in the directory to which a sink writes its messages.
fn kept(directory: &Path) -> Vec<String> {
    let files = fs::read_dir(directory).into_iter().flatten().flatten();
    files.map(|file| fs::read_to_string(file.path()).unwrap()).collect()
}

#[test]
fn the_bytes_that_are_sent_arrive() {
    let place = tempfile::tempdir().unwrap();
    let kept_in = place.path().join("kept");
    fs::create_dir(&kept_in).unwrap();
    let sink = Sink::start(&["--dump-dir", kept_in.to_str().unwrap()]);
    let file = place.path().join("a.eml");
    fs::write(&file, "Subject: old\nFrom: <x@y>\n\n.dot\n..\nlast\n").unwrap();
    let words = ["--file", file.to_str().unwrap(), "--subject", "new", "--from", "<>"];
    for (more, expected) in [
        (&[][..], "accepted: 250 2.0.0 Ok"),
        (
            &["--chunking", "--pipelining", "group", "--to", "bob@a.example"],
            "accepted for 2 of 2 recipients: 250 2.0.0 Ok",
        ),
    ] {
        let (status, out) = send(&sink.address(), &[&words[..], more].concat());
        assert_eq!(status, 0, "{out}");
        assert!(last_line(&out).starts_with(expected), "{out}");
        assert!(out.contains(" -> MAIL FROM:<> SIZE="), "{out}");
        assert_eq!(out.contains(" -> ..dot\n"), more.is_empty(), "DATA needs dot-stuffing, and BDAT has none: {out}");
        let messages = kept(&kept_in);
        assert_eq!(messages, ["Subject: new\r\nFrom: <x@y>\r\n\r\n.dot\r\n..\r\nlast\r\n"]);
        fs::remove_dir_all(&kept_in).unwrap();
        fs::create_dir(&kept_in).unwrap();
    }
    let (status, dumped) = send(&sink.address(), &["--from", "<>", "--body", "hello", "--dump"]);
    assert_eq!(status, 0);
    assert!(
        dumped.contains("From: Mail Delivery System <MAILER-DAEMON@") && dumped.ends_with("\r\n\r\nhello\r\n"),
        "{dumped}"
    );
    assert_eq!(sink.took().messages, 2, "--dump has sent nothing");
}

#[test]
fn the_status_names_the_place_where_it_ended() {
    const NO_RULE: &str = "vrfy: hard reject";
    let rows: &[(&str, &[&str], i32, &str)] = &[
        ("connect: hard reject", &[], 21, "rejected at banner: 554 "),
        ("connect: hang up", &[], 6, "failed at connection: the server closed the connection before the greeting"),
        ("ehlo helo: hard reject", &[], 22, "rejected at ehlo: 554 "),
        ("mail: soft reject", &[], 23, "rejected at mail: 450 4.3.0 "),
        ("rcpt: soft reject", &["--pipelining", "group"], 24, "rejected at rcpt: 450 4.3.0 "),
        ("rcpt to bob@: hard reject", &["--to", "bob@b.example"], 1, "accepted for 1 of 2 recipients: 250 "),
        ("data: hard reject", &[], 25, "rejected at data: 554 "),
        (".: hard reject", &[], 26, "rejected at message: 554 "),
        (
            ".: lose reply",
            &[],
            6,
            "failed at connection: the server closed the connection before the reply to the message",
        ),
        ("quit: hard reject", &[], 0, "accepted: 250 "),
        (NO_RULE, &["--tls", "starttls"], 29, "failed at tls: the server does not offer STARTTLS"),
        (NO_RULE, &["--quit-after", "ehlo"], 0, "stopped after ehlo, as asked"),
        (NO_RULE, &["--quit-after", "connect"], 0, "stopped after connect, as asked"),
        (NO_RULE, &["--quit-after", "data"], 0, "stopped after data, as asked"),
        ("mail: hard reject", &["--quit-after", "rcpt"], 23, "rejected at mail: 554 "),
        (NO_RULE, &["--raw", "--from", "<a b@@>"], 23, "rejected at mail: 501 "),
    ];
    for (rule, words, status, line) in rows {
        let sink = Sink::start(&["--fault", rule]);
        let (ended, out) = send(&sink.address(), words);
        assert_eq!(ended, *status, "{rule} {words:?}: {out}");
        assert!(last_line(&out).starts_with(line), "{rule} {words:?}: {out}");
        let (_, quiet) = send(&sink.address(), &[words, &["--quiet"][..]].concat());
        assert_eq!(quiet.lines().count(), 1, "{quiet}");
    }
    let (status, out) = send("127.0.0.1:1", &[]);
    assert_eq!((status, last_line(&out).starts_with("failed at connect: 127.0.0.1:1: ")), (2, true), "{out}");
}

#[test]
fn a_certificate_is_shown_whether_or_not_it_is_trusted() {
    let place = tempfile::tempdir().unwrap();
    let ca = place.path().join("ca.pem");
    let ca = ca.to_str().unwrap();
    let sink = Sink::start(&["--tls", "starttls", "--tls-write-cert", ca]);
    for (words, status, verdict) in [
        (&["--cacert", ca][..], 0, "=== the certificate is trusted"),
        (&["--insecure"], 0, "=== the certificate is not trusted: "),
        (
            &["--cacert", ca, "--tls-name", "x.example"],
            29,
            "=== the certificate is not trusted: the certificate is for ",
        ),
    ] {
        let usual = ["--tls", "starttls", "--show-cert", "--quit-after", "tls"];
        let (ended, out) = send(&sink.address(), &[&usual[..], words].concat());
        assert_eq!(ended, status, "{out}");
        for expected in ["=== certificate 1 of 1: ", "===   SHA-256: ", "===   names: ", verdict] {
            assert!(out.contains(expected), "{expected}: {out}");
        }
    }
    sink.stop();
}

#[test]
fn a_socket_and_a_command_are_servers_too() {
    let place = tempfile::tempdir().unwrap();
    let socket = format!("unix:{}", place.path().join("smtp.sock").display());
    let json = place.path().join("sink.json");
    let sink = Process::start(MAILRUN, &["sink", "--listen", &socket, "-m", "1", "--json", json.to_str().unwrap()]);
    wait_until("the sink to listen", || sink.complained().contains("listening").then_some(()));
    let (status, out) = send(&socket, &[]);
    assert_eq!(status, 0, "{out}");
    assert_eq!(sink.finish().code, Some(0));
    const SERVER: &str = "printf '220 me\\r\\n'; while read -r line; do case $line in \
        EHLO*|MAIL*|RCPT*) printf '250 ok\\r\\n';; DATA*) printf '354 go\\r\\n';; .?) printf '250 kept\\r\\n';; \
        QUIT*) printf '221 bye\\r\\n'; exit;; esac; done";
    let command = ["send", "--to", "ann@a.example", "--header", "Subject:x", "--pipe"];
    let ended = run(MAILRUN, &[&command[..], &["exit 3"]].concat());
    assert_eq!((ended.code, last_line(&ended.out).starts_with("failed at pipe: ")), (Some(5), true), "{}", ended.out);
    let ended = run(MAILRUN, &[&command[..], &[SERVER]].concat());
    assert_eq!((ended.code, last_line(&ended.out).starts_with("accepted: 250 kept")), (Some(0), true), "{}", ended.out);
}

#[test]
fn a_source_without_a_sender_writes_a_lawful_header() {
    let place = tempfile::tempdir().unwrap();
    let kept_in = place.path().to_str().unwrap();
    let sink = Sink::start(&["--dump-dir", kept_in]);
    for words in [&[][..], &["--mime"]] {
        source(&sink.address(), &[&["-m", "1", "--from", "<>"], words].concat());
    }
    sink.stop();
    let messages = kept(place.path());
    assert_eq!(messages.len(), 2);
    for message in messages {
        assert!(
            message.contains("\r\nFrom: Mail Delivery System <MAILER-DAEMON@mailrun.example.com>\r\n"),
            "{message}"
        );
    }
}
