//! Damage to the spool while the relay is down. The relay recovers the intact messages and reports the damaged ones;
//! with `--refuse-damage`, it does not start.
use crate::party::{MAILRUN, Sink, mailrun, run, wait_until};
use crate::relay::{Den, Relay, all_to, http, introduced, kept, metric, submit};
use crate::secured::Files;
use mailrun_text::words::counted;
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
    // Damage the envelope of the fourth message. Search backwards from the message's content, because the spool stores
    // the envelope before the content.
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
    let retried = run(MAILRUN, &["queue", "retry", "all", "--config", &den.path("relay.toml")]);
    assert_eq!(retried.code, Some(0), "{retried:?}");
    wait_until("the other four", || (delivered(&dump).len() == 4).then_some(()));
    assert_eq!(delivered(&dump), ["number 0", "number 1", "number 2", "number 4"]);
    relay.stop();
    assert_eq!(fs::read_dir(den.path("spool/quarantine")).unwrap().count(), 1);
    // Damage that was already reported and quarantined must not prevent a start.
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
    let retried = run(MAILRUN, &["queue", "retry", "all", "--config", &den.path("relay.toml")]);
    assert_eq!(retried.code, Some(0), "{retried:?}");
    wait_until("all six", || (delivered(&dump).len() == 6).then_some(()));
    relay.stop();
}

/// Makes a spool of at least four segments, in which ten messages wait. Returns the segments from the oldest to the
/// newest.
fn with_several_segments() -> (Den, Vec<PathBuf>) {
    let next_hop = format!("127.0.0.1:{}", crate::party::low_port());
    let den = Den::new(&format!("{WAITING}spool.max_size = \"4M\"\n{}", all_to(&next_hop)));
    let relay = den.open();
    let mut wire = introduced(&relay);
    for number in 0..10 {
        let text = format!("Subject: number {number}\r\n\r\n{}", "A line of a long message.\r\n".repeat(6000));
        let reply = submit(&mut wire, "<a@b.example>", &["<c@d.example>"], text);
        assert!(reply.starts_with("250 2.0.0"), "{reply}");
    }
    drop(wire);
    relay.stop();
    let segments = fs::read_dir(den.path("spool")).unwrap().map(|entry| entry.unwrap().path());
    let first = |path: &PathBuf| path.is_file().then(|| found(&fs::read(path).unwrap(), b"Subject: number ")).flatten();
    let numbered = |path: PathBuf| Some((fs::read(&path).unwrap()[first(&path)? + 16], path));
    let mut used: Vec<(u8, PathBuf)> = segments.filter_map(numbered).collect();
    used.sort();
    assert!(used.len() >= 4, "{used:?}");
    (den, used.into_iter().map(|(_, path)| path).collect())
}

#[test]
fn the_relay_the_check_and_the_metrics_say_the_same_of_a_segment_that_is_not_what_it_was() {
    type Change = fn(&[PathBuf]);
    let changes: [(&str, Change); 4] = [
        ("the oldest is deleted", |segments| fs::remove_file(&segments[0]).unwrap()),
        ("the oldest is empty", |segments| fs::write(&segments[0], "").unwrap()),
        ("the second is shortened", |segments| {
            fs::File::options().write(true).open(&segments[1]).unwrap().set_len(200 << 10).unwrap();
        }),
        ("the second is a copy of the oldest", |segments| _ = fs::copy(&segments[0], &segments[1]).unwrap()),
    ];
    for (what, change) in changes {
        let (den, segments) = with_several_segments();
        change(&segments);
        let refused = den.fails(&["--refuse-damage"]);
        assert!(refused.code == Some(2) && refused.err.contains("it is damaged"), "{what}: {refused:?}");
        let checked = mailrun(&["spool", "check", &den.path("spool")]);
        assert!(checked.code == Some(1) && checked.out.contains("DAMAGED\n"), "{what}: {checked:?}");
        let relay = den.open();
        let (damaged, lost) = (metric(&relay, "spool_damaged"), metric(&relay, "spool_lost_messages"));
        assert!(damaged > 0 && lost > 0, "{what}: {damaged} places, {lost} messages");
        let (places, were) = (counted(damaged, "place"), if lost == 1 { "was" } else { "were" });
        let lost = counted(lost, "message");
        let health = format!("ok, but the spool was damaged at {places}, and {lost} {were} lost\n");
        assert_eq!(http(&relay, "/health"), (200, health), "{what}");
        wait_until("the warning", || said(&relay).contains("the spool is damaged").then_some(()));
        relay.stop();
    }
}

#[test]
fn a_directory_with_the_name_of_a_segment_is_named() {
    let (den, _) = with_waiting_mail(&format!("127.0.0.1:{}", crate::party::low_port()));
    fs::create_dir(den.path("spool/segment-0000abcd")).unwrap();
    let refused = den.fails(&[]);
    let checked = mailrun(&["spool", "check", &den.path("spool")]);
    for ended in [refused, checked] {
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.err.contains(&den.path("spool")) && ended.err.contains("segment-0000abcd"), "{}", ended.err);
    }
}
