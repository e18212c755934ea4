//! Connections through a proxy: the PROXY header and XCLIENT, honest and forged.
use crate::party::{Sink, run, wait_until};
use crate::wire::Wire;
use mailrun_net::{Answer, Handler, Proxied, RunningServer, Server};
use mailrun_smtp::proxy::{ProxyHeader, render_v1, render_v2};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, PartialEq, Eq)]
enum Learned {
    Header(ProxyHeader),
    Nothing(String),
}

struct Listener(Sender<Learned>);

impl Handler for Listener {
    fn proxy_header(&mut self, header: &ProxyHeader) {
        self.0.send(Learned::Header(*header)).unwrap();
    }

    fn proxy_header_missing(&mut self, why: &std::io::Error) {
        self.0.send(Learned::Nothing(why.to_string())).unwrap();
    }

    fn message(&mut self, _bytes: u64, _now: Duration) -> Answer {
        Answer::Yes
    }
}

fn server() -> (RunningServer, Receiver<Learned>) {
    let (tell, learned) = channel();
    let make = move || {
        let tell = tell.clone();
        move |_peer| Listener(tell.clone())
    };
    (Server::new(make).proxied(Proxied::Yes).start(([127, 0, 0, 1], 0).into()).unwrap(), learned)
}

fn header() -> ProxyHeader {
    let source: SocketAddr = "192.0.2.7:4242".parse().unwrap();
    ProxyHeader::Proxied { source, destination: "198.51.100.1:25".parse().unwrap() }
}

#[test]
fn a_header_is_taken_however_it_comes_and_the_session_goes_on_behind_it() {
    for rendered in [render_v1(&header()).into_bytes(), render_v2(&header())] {
        let (server, learned) = server();
        let mut whole = Wire::connect(server.address());
        whole.send([&rendered[..], b"EHLO client.example\r\n"].concat());
        assert!(whole.reply().unwrap().starts_with("220 ") && whole.reply().unwrap().starts_with("250-"));
        let mut dripping = Wire::connect(server.address());
        for octet in &rendered {
            dripping.send([*octet]);
        }
        assert!(dripping.reply().unwrap().starts_with("220 "));
        assert!(dripping.say("EHLO client.example").starts_with("250-"));
        for _ in 0..2 {
            assert_eq!(learned.recv_timeout(PATIENCE), Ok(Learned::Header(header())));
        }
    }
}

#[test]
fn what_is_no_header_is_not_answered() {
    let lies: [&[u8]; 5] = [
        b"EHLO client.example\r\n",
        b"PROXY TCP4 192.0.2.7\r\n",
        b"PROXY TCP4 999.0.2.7 198.51.100.1 1 25\r\n",
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff",
        &[0; 4000],
    ];
    for lie in lies {
        let (server, learned) = server();
        let mut wire = Wire::connect(server.address());
        // Ignore the error, because the server may close the connection before it has read everything.
        let _ = wire.try_send(lie);
        assert_eq!(wire.replies(), Vec::<String>::new(), "{lie:?}");
        assert!(matches!(learned.recv_timeout(PATIENCE), Ok(Learned::Nothing(_))), "{lie:?}");
    }
}

#[test]
fn the_block_of_a_local_connection_is_skipped_whatever_it_says() {
    let blocks: [&[u8]; 6] =
        [b"", b"half an address", &[0xff; 216], b"QUIT\r\nHELO a\r\n", &[0x03; 7], &[b'\n'; u16::MAX as usize]];
    for (family, block) in [0x00, 0x11, 0x12, 0x21, 0x31, 0xff].into_iter().zip(blocks) {
        let (server, learned) = server();
        let length = u16::try_from(block.len()).unwrap().to_be_bytes();
        let header = [b"\r\n\r\n\0\r\nQUIT\n\x20", [family].as_slice(), &length, block].concat();
        let mut wire = Wire::connect(server.address());
        wire.send([&header, b"EHLO client.example\r\n".as_slice()].concat());
        assert!(wire.reply().unwrap().starts_with("220 "), "family {family:#x}");
        assert!(wire.reply().unwrap().starts_with("250-"), "family {family:#x}");
        assert_eq!(learned.recv_timeout(PATIENCE), Ok(Learned::Header(ProxyHeader::Local)), "family {family:#x}");
    }
}

#[test]
fn half_a_header_and_the_end_is_noticed() {
    let (server, learned) = server();
    let mut wire = Wire::connect(server.address());
    wire.send(b"PROXY TCP4 192.0.2.7 198.");
    drop(wire);
    assert!(matches!(learned.recv_timeout(PATIENCE), Ok(Learned::Nothing(_))));
}

#[test]
fn the_source_introduces_others_and_the_sink_believes_it() {
    let table: [(&[&str], &[&str]); 3] = [
        (&["--proxy-protocol"], &["--proxy-protocol", "v1"]),
        (&["--proxy-protocol", "--tls", "implicit"], &["--proxy-protocol", "v2", "--tls", "implicit", "--insecure"]),
        (&["--xclient"], &["--xclient", "ADDR=192.0.2.7", "--xclient", "NAME=client.example", "--reuse"]),
    ];
    for (sink_words, source_words) in table {
        let sink = Sink::start(sink_words);
        let to = sink.address();
        let base = ["source", &to, "--messages", "20", "--sessions", "3", "--live", "off"];
        let ended = run(env!("CARGO_BIN_EXE_mailrun"), &[&base, source_words].concat());
        assert_eq!(ended.code, Some(0), "{source_words:?}: {ended:?}");
        assert_eq!(sink.took().messages, 20, "{source_words:?}");
    }
}

#[test]
fn a_unix_domain_socket_carries_mail_and_is_gone_afterwards() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("sink");
    let name = format!("unix:{}", path.display());
    // A killed server may leave its socket file behind; a new server must still be able to listen there.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let record = place.path().join("sink.json").display().to_string();
    let words = ["sink", "--listen", &name, "--max-messages", "50", "--live", "off", "--json", &record];
    let mut sink = std::process::Command::new(env!("CARGO_BIN_EXE_mailrun"))
        .args(words)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    wait_until("the sink listens", || std::os::unix::net::UnixStream::connect(&path).ok());
    let source = ["source", &name, "--messages", "50", "--sessions", "7", "--live", "off"];
    let ended = run(env!("CARGO_BIN_EXE_mailrun"), &source);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(sink.wait().unwrap().success());
    assert!(std::fs::read_to_string(&record).unwrap().contains("\"delivered\": 50"), "{record}");
    assert!(!path.exists());
}
