//! Files, sockets and pipes on which reads or writes block. The relay must still accept and deliver mail, serve its
//! metrics, and stop.
use crate::party::{Sink, accepted, run, source, wait_until};
use crate::relay::{Den, MAILRUN, QUICK, Relay, await_recipients, introduced, metric, submit};
use crate::secured::Files;
use std::fs;
use std::io::{PipeReader, Write, pipe};
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};

/// Replaces a file by a FIFO without a writer, so that opening it to read blocks.
fn replace_by_fifo(path: &str) {
    let fifo = format!("{path}.fifo");
    assert_eq!(run("mkfifo", &[&fifo]).code, Some(0));
    fs::rename(&fifo, path).unwrap();
}

#[test]
fn files_that_become_fifos_delay_no_mail() {
    let files = Files::new();
    let [certificate, key] = files.certificate("live", &["localhost"]);
    let secured = Sink::start(&["--tls", "starttls", "--tls-cert", &certificate, "--tls-key", &key]);
    let plain = Sink::start(&[]);
    let ca = files.keep("ca.pem", &fs::read_to_string(&certificate).unwrap());
    let [own, own_key] = files.certificate("own", &["localhost"]);
    let den = Den::new(&format!(
        "http = \"127.0.0.1:0\"\nworkers = 1\n{QUICK}tls.cert = \"{own}\"\ntls.key = \"{own_key}\"\n\
         [[route]]\nto = \"secured.example\"\nsmtp = \"{}\"\ntls = \"required\"\ncacert = \"{ca}\"\n\
         tls_name = \"localhost\"\n[[route]]\nto = \"*\"\nsmtp = \"{}\"\n",
        secured.address(),
        plain.address()
    ));
    let relay = den.open();
    let mut wire = introduced(&relay);
    let mut send = |to: &str| assert!(submit(&mut wire, "<a@b.example>", &[to], "x\r\n").starts_with("250"));
    send("<c@secured.example>");
    await_recipients(&secured, 1);
    wait_until("no connection", || (metric(&relay, "couriers") == 0).then_some(()));
    replace_by_fifo(&ca);
    replace_by_fifo(&own);
    // The certificate files are FIFOs now, from which nothing can be read. The relay must keep using the certificates
    // that it has already read.
    for number in 1..=2 {
        send("<c@secured.example>");
        send("<c@plain.example>");
        await_recipients(&plain, number);
        await_recipients(&secured, number + 1);
        wait_until("no connection", || (metric(&relay, "couriers") == 0).then_some(()));
    }
    let words = ["--tls", "starttls", "--insecure", "--messages", "1"];
    assert_eq!(accepted(&source(&relay.address(), &words).record), 1);
    wait_until("both to be logged", || {
        let log = relay.process.complained();
        (log.contains("cannot be used") && log.contains("the certificates read before stay in use")).then_some(())
    });
    relay.stop();
}

#[test]
fn a_manager_that_does_not_read_delays_neither_start_nor_stop() {
    let den = Den::new("[[route]]\nto = \"*\"\nsmtp = \"127.0.0.1:1\"\n");
    let path = den.path("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    let other = UnixDatagram::unbound().unwrap();
    other.set_nonblocking(true).unwrap();
    while other.send_to(b"x", &path).is_ok() {}
    let config = den.path("relay.toml");
    let environment = format!("NOTIFY_SOCKET={path}");
    let words = [&environment, MAILRUN, "relay", "--config", &config, "--live", "json"];
    let relay = Relay::listening(crate::party::Process::start("env", &words));
    manager.set_nonblocking(true).unwrap();
    // When the manager reads again, it must get the messages that it has missed.
    wait_until("READY=1", || {
        let mut bytes = [0; 512];
        let read = manager.recv(&mut bytes).ok()?;
        String::from_utf8_lossy(&bytes[..read]).contains("READY=1").then_some(())
    });
    while other.send_to(b"x", &path).is_ok() {}
    relay.stop();
}

#[test]
fn a_number_of_sockets_that_cannot_be_ends_the_start() {
    let den = Den::new("[[route]]\nto = \"*\"\nsmtp = \"127.0.0.1:1\"\n");
    let config = den.path("relay.toml");
    for count in ["2000000000", "18446744073709551615"] {
        let ended = run("env", &[&format!("LISTEN_FDS={count}"), MAILRUN, "relay", "--config", &config]);
        assert_eq!(ended.code, Some(2), "{}", ended.err);
        assert!(ended.err.contains(&format!("LISTEN_FDS={count} is more than")), "{}", ended.err);
    }
}

/// Returns both ends of a pipe that has no room for a line, so that writing one blocks.
fn full_pipe() -> (Stdio, PipeReader) {
    let (reader, mut writer) = pipe().unwrap();
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    while writer.write(&[b'x'; 64]).is_ok() {}
    rustix::io::ioctl_fionbio(&writer, false).unwrap();
    (writer.into(), reader)
}

#[test]
fn output_that_nobody_reads_does_not_keep_the_relay_from_stopping() {
    let den = Den::new("[[route]]\nto = \"*\"\nsmtp = \"127.0.0.1:1\"\n");
    let (stdout, _reader) = full_pipe();
    let (stderr, _other_reader) = full_pipe();
    let mut child = Command::new(MAILRUN)
        .args(["relay", "--config", &den.path("relay.toml"), "--live", "json"])
        .stdout(stdout)
        .stderr(stderr)
        .spawn()
        .unwrap();
    wait_until("the relay to answer", || {
        run(MAILRUN, &["queue", "stats", "--spool", &den.path("spool")]).code.filter(|code| *code == 0)
    });
    // The relay writes its progress every second. Wait until it tries to write to the full pipe. Even then, it must
    // notice the signal.
    std::thread::sleep(std::time::Duration::from_secs(2));
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM).unwrap();
    let code = wait_until("the relay to end", || child.try_wait().unwrap().map(|status| status.code()));
    assert_eq!(code, Some(0));
}
