//! Damage to the spool while the relay is down. The relay recovers the intact messages and reports the damaged ones;
//! with `--refuse-damage`, it does not start.
use crate::party::{Sink, wait_until};
use crate::relay::{Den, Relay, all_to, introduced, kept, metric, submit};
use crate::secured::Files;
use std::fs;
use std::path::PathBuf;

const WAITING: &str = "http = \"127.0.0.1:0\"\nretry.first = \"1h\"\n";

/// A spool with five undelivered messages, and the segment that holds them.
fn with_waiting_mail(next_hop: &str) -> (Den, PathBuf) {
    let den = Den::new(&format!("{WAITING}{}", all_to(next_hop)));
    let relay = den.open();
    let mut wire = introduced(&relay);
    for number in 0..5 {
        let reply =
            submit(&mut wire, "<a@b.example>", &["<c@d.example>"], format!("Subject: number {number}\r\n\r\nx\r\n"));
        assert!(reply.starts_with("250 2.0.0"), "{reply}");
    }
    drop(wire);
    relay.stop();
    let segments = fs::read_dir(den.path("spool")).unwrap().map(|entry| entry.unwrap().path());
    let holds = |path: &PathBuf| path.is_file() && found(&fs::read(path).unwrap(), b"Subject: number 3").is_some();
    let segment = segments.into_iter().find(holds).unwrap();
    (den, segment)
}

fn found(octets: &[u8], text: &[u8]) -> Option<usize> {
    octets.windows(text.len()).position(|window| window == text)
}

fn flip(segment: &PathBuf, at: impl FnOnce(&[u8]) -> usize) {
    let mut octets = fs::read(segment).unwrap();
    let at = at(&octets);
    octets[at] ^= 1;
    fs::write(segment, octets).unwrap();
}

fn delivered(dump: &str) -> Vec<String> {
    let mut all: Vec<String> =
        kept(dump).iter().filter_map(|one| Some(one.text().split("Subject: ").nth(1)?[..8].into())).collect();
    all.sort();
    all
}

fn contents(den: &Den) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = fs::read_dir(den.path("spool")).unwrap().map(|entry| entry.unwrap().path());
    let mut all: Vec<_> =
        entries.filter(|path| path.is_file()).map(|path| (path.clone(), fs::read(&path).unwrap())).collect();
    all.sort();
    all
}

fn said(relay: &Relay) -> String {
    relay.process.complained()
}

#[test]
fn a_relay_starts_with_what_is_sound_and_names_what_is_not() {
    let next_hop = format!("127.0.0.1:{}", crate::party::low_port());
    let (den, segment) = with_waiting_mail(&next_hop);
    // Damage the envelope of the fourth message, which is stored before its content.
    flip(&segment, |octets| {
        let before = &octets[..found(octets, b"Subject: number 3").unwrap()];
        before.windows(11).rposition(|window| window == b"a@b.example").unwrap()
    });
    let before = contents(&den);
    let refused = den.fails(&["--refuse-damage"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    let words = ["it is damaged, and nothing was changed", "0000000000000004", "--refuse-damage", "spool check"];
    assert!(words.iter().all(|word| refused.err.contains(word)), "{}", refused.err);
    assert_eq!(before, contents(&den), "nothing is changed");
    let files = Files::new();
    let dump = files.path("dump");
    let _sink = Sink::start_at(&next_hop, &["--dump-file", &dump]);
    let relay = den.open();
    assert_eq!((metric(&relay, "spool_damaged"), metric(&relay, "spool_lost_messages")), (1, 1));
    let name = segment.file_name().unwrap().to_str().unwrap();
    wait_until("the warning", || {
        said(&relay)
            .lines()
            .any(|line| line.contains("WARN") && line.contains(name) && line.contains("0000000000000004"))
            .then_some(())
    });
    let retried =
        crate::party::run(crate::relay::MAILRUN, &["queue", "retry", "all", "--config", &den.path("relay.toml")]);
    assert_eq!(retried.code, Some(0), "{retried:?}");
    wait_until("the other four", || (delivered(&dump).len() == 4).then_some(()));
    assert_eq!(delivered(&dump), ["number 0", "number 1", "number 2", "number 4"]);
    relay.stop();
    assert_eq!(fs::read_dir(den.path("spool/quarantine")).unwrap().count(), 1);
    // Damage that was already reported and set aside does not prevent a start.
    den.open_with(&["--refuse-damage"]).stop();
}

#[test]
fn a_flipped_bit_in_a_header_costs_no_mail() {
    let next_hop = format!("127.0.0.1:{}", crate::party::low_port());
    let files = Files::new();
    let dump = files.path("dump");
    let (den, segment) = with_waiting_mail(&next_hop);
    flip(&segment, |_| 4096 + 30);
    let _sink = Sink::start_at(&next_hop, &["--dump-file", &dump]);
    let relay = den.open_with(&["--refuse-damage"]);
    let reply = submit(&mut introduced(&relay), "<a@b.example>", &["<c@d.example>"], "Subject: number 5\r\n\r\nx\r\n");
    assert!(reply.contains("queued as 0000000000000006"), "numbers go on: {reply}");
    let retried =
        crate::party::run(crate::relay::MAILRUN, &["queue", "retry", "all", "--config", &den.path("relay.toml")]);
    assert_eq!(retried.code, Some(0), "{retried:?}");
    wait_until("all six", || (delivered(&dump).len() == 6).then_some(()));
    relay.stop();
}
