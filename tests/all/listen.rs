//! `--listen :PORT` listens on every address of this host. Each kind of wrong address has its own error.
use crate::party::{MAILRUN, Process, Sink, mailrun, wait_until};
use serde_json::Value;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};

fn is_everywhere(address: &str) {
    let address: SocketAddr = address.parse().unwrap();
    assert!(address.ip().is_unspecified() && address.port() > 0, "{address}");
    assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, address.port())).is_ok(), "{address}");
    let has_ipv6 = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok();
    assert_eq!(TcpStream::connect((Ipv6Addr::LOCALHOST, address.port())).is_ok(), has_ipv6, "{address}");
}

fn first_event(process: &Process) -> Value {
    wait_until("it to listen", || {
        let said = process.said();
        said.lines().next().filter(|_| said.contains('\n')).map(|line| serde_json::from_str(line).unwrap())
    })
}

#[test]
fn a_port_alone_is_every_address_of_this_host() {
    let sink = Sink::start_at(":0", &[]);
    is_everywhere(&sink.address());
    sink.stop();
    let relay = Process::start(
        MAILRUN,
        &["relay", "--listen", ":0", "--http", ":0", "--to", "discard", "--spool", "spool", "--live", "json"],
    );
    let event = first_event(&relay);
    is_everywhere(event["smtp"][0].as_str().unwrap());
    is_everywhere(event["http"].as_str().unwrap());
    relay.terminate();
    relay.finish();
    let endpoint = Process::start(MAILRUN, &["mades-endpoint", "--embedded", "--listen", ":0", "--live", "json"]);
    let said = first_event(&endpoint).to_string();
    let at = said.find("[::]:").unwrap_or_else(|| panic!("{said}"));
    is_everywhere(said[at..].split(['"', '/', ',']).next().unwrap());
    endpoint.terminate();
    endpoint.finish();
}

#[test]
fn an_address_that_is_none_has_one_cause() {
    for option in ["--listen", "--http"] {
        for (typed, cause) in [
            (":smtp", "the port must be a number"),
            ("127.0.0.1:70000", "the port must be a number of at most 65535"),
            ("127.0.0.1", "has no port; use something like 127.0.0.1:2525"),
            ("::1", "has no port; write [::1]:25"),
            ("nosuch.invalid:2525", "unknown host \"nosuch.invalid\""),
        ] {
            for command in [&["sink"][..], &["relay", "--to", "discard", "--spool", "spool"]] {
                let ended = mailrun(&[command, &[option, typed]].concat());
                assert_eq!(ended.code, Some(2), "{command:?} {option} {typed}: {ended:?}");
                assert!(ended.err.contains(cause) && ended.err.lines().count() == 1, "{option} {typed}: {}", ended.err);
            }
        }
    }
}
