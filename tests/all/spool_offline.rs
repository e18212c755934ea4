//! `mailrun spool` checks, salvages and exports a spool that no relay has open, intact or damaged, and never changes
//! it.
use crate::party::{Ended, MAILRUN, Sink, low_port, mailrun, peer, run, skip, wait_until};
use crate::relay::{Den, QUICK, Relay, await_recipients, expect, introduced, kept, mailbox, submit};
use crate::secured::Files;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

struct Stopped {
    den: Den,
    next_hop: String,
    /// The spool's files by name, to check that they never change.
    before: BTreeMap<String, Vec<u8>>,
}

const BUSY: &str = "rcpt to @busy.example: soft reject \"450 4.2.0 Come again\"";
/// Rule that defers notices as well, because a rule concerns mail from `<>` only if it says so.
const BUSY_FOR_NOTICES: &str = "rcpt from <>: soft reject \"450 4.2.0 Come again\"";

impl Stopped {
    /// Makes the spool of a stopped relay with three messages, numbered in their subjects. The first was delivered to
    /// one of its two recipients.
    fn new() -> Self {
        let next_hop = format!("127.0.0.1:{}", low_port());
        let sink = Sink::start_at(&next_hop, &["--fault", BUSY, "--fault", BUSY_FOR_NOTICES]);
        let den = Den::to(&sink.address(), "retry.first = \"1h\"\n");
        let relay = den.open();
        send(
            &relay,
            "<a@b.example> ENVID=my-id RET=HDRS",
            &["<has@it.example>", "<one@busy.example> NOTIFY=FAILURE"],
            1,
        );
        send(&relay, "<>", &["<two@busy.example>"], 2);
        send(&relay, "<a@b.example>", &["<three@busy.example>"], 3);
        let queue = || mailrun(&["queue", "--spool", &den.path("spool"), "--json", "list", "--state", "deferred"]);
        wait_until("three that are put off", || (queue().out.lines().count() == 3).then_some(()));
        await_recipients(&sink, 1);
        relay.stop();
        drop(sink);
        Self { before: files(&den), den, next_hop }
    }

    fn spool(&self, words: &[&str]) -> Ended {
        let directory = self.den.path("spool");
        mailrun(&[&["spool", words[0], &directory], &words[1..]].concat())
    }

    /// Runs a command that must end with this status and change no file, and returns its JSON.
    fn asked(&self, words: &[&str], code: i32) -> Value {
        let ended = self.spool(&[words, &["--json"]].concat());
        assert_eq!(ended.code, Some(code), "{words:?}: {ended:?}");
        assert_eq!(files(&self.den), self.before, "{words:?} changes nothing");
        serde_json::from_str(&ended.out).unwrap()
    }

    /// The segment that contains these bytes, and their offset.
    fn place_of(&self, mark: &str) -> (PathBuf, u64) {
        let found = self.before.iter().find_map(|(name, octets)| {
            let at = octets.windows(mark.len()).position(|window| window == mark.as_bytes())?;
            Some((PathBuf::from(self.den.path("spool")).join(name), at as u64))
        });
        found.unwrap_or_else(|| panic!("{mark} stands nowhere"))
    }

    fn flip(&mut self, (path, at): &(PathBuf, u64)) {
        let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        let mut octet = [0];
        file.read_exact_at(&mut octet, *at).unwrap();
        file.write_all_at(&[octet[0] ^ 1], *at).unwrap();
        self.before = files(&self.den);
    }
}

fn send(relay: &Relay, from: &str, to: &[&str], number: u32) {
    let text = format!("Subject: number {number}\r\n\r\nthe text of number {number}\r\n");
    let reply = submit(&mut introduced(relay), from, to, text);
    assert!(reply.starts_with("250"), "{reply}");
}

fn files(den: &Den) -> BTreeMap<String, Vec<u8>> {
    let all = fs::read_dir(den.path("spool")).unwrap().flatten().filter(|file| file.path().is_file());
    all.map(|file| (file.file_name().into_string().unwrap(), fs::read(file.path()).unwrap())).collect()
}

#[test]
fn a_sound_spool_is_told_what_it_holds() {
    let stopped = Stopped::new();
    let report = stopped.asked(&["check"], 0);
    assert_eq!(
        (&report["sound"], &report["messages"], &report["held"]),
        (&true.into(), &3.into(), &0.into()),
        "{report}"
    );
    assert_eq!(report["recipients"], serde_json::json!({"to_deliver": 3, "to_tell": 0, "done": 1}), "{report}");
    assert!(report["damage"].as_array().unwrap().is_empty(), "{report}");
    let used = report["segments"].as_array().unwrap().iter().filter(|segment| segment["state"] == "used");
    assert_eq!(used.map(|segment| segment["messages"].as_u64().unwrap()).sum::<u64>(), 3, "{report}");
    let text = stopped.spool(&["check"]);
    assert_eq!(text.code, Some(0), "{text:?}");
    assert!(
        text.out.contains(": sound\n") && text.out.contains("3 not delivered") && text.out.contains("none"),
        "{text:?}"
    );
}

#[test]
fn a_damaged_message_is_named_and_the_others_are_salvaged() {
    let mut stopped = Stopped::new();
    let place = stopped.place_of("the text of number 2");
    stopped.flip(&place);
    let report = stopped.asked(&["check"], 1);
    assert_eq!((&report["sound"], &report["damaged_messages"]), (&false.into(), &1.into()), "{report}");
    let damage = &report["damage"][0];
    assert_eq!(damage["segment"], place.0.file_name().unwrap().to_str().unwrap(), "{report}");
    let from = damage["offset"].as_u64().unwrap();
    let bytes = damage["bytes"].as_u64().unwrap();
    assert!((from..from + bytes).contains(&place.1), "{damage}: {place:?}");
    let id = damage["messages"][0].as_str().unwrap().to_owned();
    let text = stopped.spool(&["check"]);
    assert!(text.out.contains("DAMAGED") && text.out.contains(&id) && text.out.contains("salvage"), "{text:?}");
    let out = stopped.den.path("salvaged");
    let salvaged = stopped.asked(&["salvage", "--out", &format!("spool:{out}")], 1);
    assert_eq!((&salvaged["messages"], &salvaged["left_out"][0]["id"]), (&2.into(), &id.clone().into()), "{salvaged}");
    assert_eq!(salvaged["left_out"][0]["recipients"][0], "two@busy.example", "{salvaged}");
    let out = stopped.den.path("exported");
    let exported = stopped.asked(&["export", "--out", &out], 1);
    assert_eq!((&exported["messages"], &exported["damaged"][0]["id"]), (&3.into(), &id.clone().into()), "{exported}");
    let envelope: Value = serde_json::from_slice(&fs::read(format!("{out}/{id}.json")).unwrap()).unwrap();
    assert_eq!(envelope["content_is_sound"], false, "{envelope}");
}

#[test]
fn what_stands_behind_a_damaged_header_is_found() {
    let mut stopped = Stopped::new();
    let (segment, _) = stopped.place_of("the text of number 1");
    // The spool writes the headers of a segment to two places in turn. Damage both of them.
    for at in [0, 4096] {
        stopped.flip(&(segment.clone(), at + 20));
    }
    let report = stopped.asked(&["check"], 1);
    assert_eq!((&report["messages"], &report["complete"]), (&3.into(), &true.into()), "{report}");
    assert!(report["damage"].as_array().unwrap().iter().any(|one| one["what"].as_str().unwrap().contains("header")));
    let out = stopped.den.path("salvaged");
    let salvaged = stopped.asked(&["salvage", "--out", &format!("spool:{out}")], 0);
    assert_eq!(salvaged["messages"], 3, "nothing is lost: {salvaged}");
}

#[test]
fn a_segment_that_was_cut_is_damaged_and_what_is_before_the_cut_is_salvaged() {
    let mut stopped = Stopped::new();
    let (segment, at) = stopped.place_of("the text of number 3");
    fs::OpenOptions::new().write(true).open(segment).unwrap().set_len(at).unwrap();
    stopped.before = files(&stopped.den);
    let report = stopped.asked(&["check"], 1);
    assert_eq!(report["sound"], false, "{report}");
    let out = stopped.den.path("salvaged");
    stopped.asked(&["salvage", "--out", &format!("maildir:{out}")], 1);
    let all = mailbox(&out).concat();
    assert!(all.contains("number 1") && all.contains("number 2") && !all.contains("the text of number 3"), "{all}");
}

#[test]
fn a_maildir_has_what_somebody_does_not_have() {
    let stopped = Stopped::new();
    let out = stopped.den.path("salvaged");
    let salvaged = stopped.asked(&["salvage", "--out", &format!("maildir:{out}")], 0);
    assert_eq!((&salvaged["messages"], &salvaged["recipients"]), (&3.into(), &3.into()), "{salvaged}");
    let all = mailbox(&out);
    assert_eq!(all.len(), 3);
    let first = all.iter().find(|text| text.contains("Subject: number 1")).unwrap();
    let head = "Return-Path: <a@b.example>\nDelivered-To: one@busy.example\nX-Mailrun-Queue-Id: ";
    assert!(first.starts_with(head) && first.ends_with("the text of number 1\n"), "{first}");
    assert!(!first.contains("has@it.example"), "{first}");
}

#[test]
fn a_salvage_on_a_full_disk_names_the_place_and_what_to_do() {
    let Some(unshare) = peer("unshare") else { return };
    let stopped = Stopped::new();
    let disk = stopped.den.path("disk");
    fs::create_dir(&disk).unwrap();
    let spool = stopped.den.path("spool");
    for words in ["salvage {spool} --out spool:", "salvage {spool} --out maildir:", "export {spool} --out "] {
        let words = words.replace("{spool}", &spool);
        let script = format!(
            "mount -t tmpfs -o size=64k tmpfs {disk} && cat /dev/zero 2>/dev/null > {disk}/fill; echo begun; \
             exec {MAILRUN} spool {words}{disk}/new"
        );
        let ended = run(&unshare, &["--user", "--map-root-user", "--mount", "sh", "-c", &script]);
        if !ended.out.contains("begun") {
            return skip("a mount namespace", ended.err.trim());
        }
        assert_eq!(ended.code, Some(2), "{ended:?}");
        let named = [format!("{disk}/new"), format!("remove {disk}/new.partial")];
        assert!(named.iter().all(|words| ended.err.contains(words)), "{words}: {}", ended.err);
    }
    assert_eq!(files(&stopped.den), stopped.before, "the old spool is unchanged");
}

#[test]
fn a_relay_delivers_a_salvaged_spool_to_whoever_does_not_have_it_yet() {
    let stopped = Stopped::new();
    let out = stopped.den.path("salvaged");
    let salvaged = stopped.asked(&["salvage", "--out", &format!("spool:{out}")], 0);
    assert_eq!((&salvaged["messages"], &salvaged["recipients"]), (&3.into(), &3.into()), "{salvaged}");
    assert_eq!(salvaged["renamed"].as_array().unwrap().len(), 3, "{salvaged}");
    let checked = mailrun(&["spool", "check", &out, "--json"]);
    let report: Value = serde_json::from_str(&checked.out).unwrap();
    assert_eq!(report["recipients"], serde_json::json!({"to_deliver": 3, "to_tell": 0, "done": 1}), "{report}");
    // Salvaged messages must keep their times of arrival and the times until which they are deferred. Exports contain
    // these times, so compare an export of each spool.
    let [before, after] = [stopped.den.path("before"), stopped.den.path("after")];
    stopped.asked(&["export", "--out", &before], 0);
    assert_eq!(mailrun(&["spool", "export", &out, "--out", &after]).code, Some(0));
    for renamed in salvaged["renamed"].as_array().unwrap() {
        let read = |directory: &str, which: &str| {
            let path = format!("{directory}/{}", renamed[which].as_str().unwrap());
            let mut row: Value = serde_json::from_slice(&fs::read(format!("{path}.json")).unwrap()).unwrap();
            row["id"] = Value::Null;
            (row, fs::read(format!("{path}.eml")).unwrap())
        };
        assert_eq!(read(&before, "was"), read(&after, "is"));
    }
    let files = Files::new();
    let dump = files.path("dump");
    let sink = Sink::start_at(&stopped.next_hop, &["--dump-file", &dump]);
    let config = fs::read_to_string(stopped.den.path("relay.toml")).unwrap();
    stopped.den.files.keep("relay.toml", &config.replace("\"spool\"", &format!("{out:?}")));
    let relay = stopped.den.open();
    // Do not check the result, because the relay may have delivered all mail by now.
    mailrun(&["queue", "--spool", &out, "retry", "all"]);
    await_recipients(&sink, 3);
    relay.stop();
    let mut all: Vec<String> = kept(&dump).into_iter().flat_map(|one| one.recipients).collect();
    all.sort();
    assert_eq!(all, ["one@busy.example", "three@busy.example", "two@busy.example"]);
}

#[test]
fn an_export_has_each_message_with_its_envelope() {
    let stopped = Stopped::new();
    let out = stopped.den.path("exported");
    let exported = stopped.asked(&["export", "--out", &out], 0);
    assert_eq!(exported["messages"], 3, "{exported}");
    let mut rows: Vec<Value> = Vec::new();
    for file in fs::read_dir(&out).unwrap().flatten().filter(|file| file.path().extension().unwrap() == "json") {
        let row: Value = serde_json::from_slice(&fs::read(file.path()).unwrap()).unwrap();
        let text = fs::read(file.path().with_extension("eml")).unwrap();
        assert_eq!(row["bytes"], text.len(), "{row}");
        assert!(text.starts_with(b"Received: ") && text.ends_with(b"\r\n"));
        rows.push(row);
    }
    rows.sort_by_key(|row| row["id"].as_str().unwrap().to_owned());
    assert_eq!((&rows[0]["sender"], &rows[1]["sender"]), (&"a@b.example".into(), &"".into()));
    assert_eq!(
        (&rows[0]["envid"], &rows[0]["ret"], &rows[0]["with"]),
        (&"my-id".into(), &"HDRS".into(), &"ESMTP".into())
    );
    let recipients = rows[0]["recipients"].as_array().unwrap();
    assert_eq!((&recipients[0]["address"], &recipients[0]["state"]), (&"has@it.example".into(), &"delivered".into()));
    assert_eq!((&recipients[1]["state"], &recipients[1]["attempts"]), (&"waiting".into(), &1.into()));
    assert_eq!((&recipients[1]["notify"], &recipients[1]["refusal"]["code"]), (&"FAILURE".into(), &450.into()));
}

#[test]
fn a_spool_that_a_relay_has_open_is_refused() {
    let den = Den::to(&format!("127.0.0.1:{}", low_port()), QUICK);
    let relay = den.open();
    let directory = den.path("spool");
    let out = den.path("out");
    let maildir = format!("maildir:{out}");
    let spool = format!("spool:{out}");
    for words in [
        &["check", &directory][..],
        &["salvage", &directory, "--out", &maildir],
        &["salvage", &directory, "--out", &spool],
        &["export", &directory, "--out", &out],
    ] {
        let ended = mailrun(&[&["spool"], words].concat());
        assert_eq!((ended.code, ended.err.lines().count()), (Some(2), 1), "{words:?}: {ended:?}");
        assert!(ended.err.contains("a relay is using it"), "{ended:?}");
    }
    assert!(!fs::exists(&out).unwrap());
    expect(&mut relay.greeted(), "NOOP", "250");
    relay.stop();
}

#[test]
fn an_output_that_is_there_or_would_change_the_spool_is_refused() {
    let stopped = Stopped::new();
    stopped.den.files.keep("there", "mine");
    let there = stopped.den.path("there");
    let within = format!("{}/within", stopped.den.path("spool"));
    for (out, why) in [(&there, "already exists"), (&within, "inside the spool")] {
        for words in [
            &["salvage", "--out", &format!("maildir:{out}")][..],
            &["salvage", "--out", &format!("spool:{out}")],
            &["export", "--out", out],
        ] {
            let ended = stopped.spool(words);
            assert_eq!((ended.code, ended.err.lines().count()), (Some(2), 1), "{words:?}: {ended:?}");
            assert!(ended.err.contains(why), "{ended:?}");
        }
    }
    assert_eq!(fs::read_to_string(there).unwrap(), "mine");
    assert_eq!(files(&stopped.den), stopped.before);
}

#[test]
fn what_a_later_version_has_written_is_refused_untouched() {
    let mut stopped = Stopped::new();
    let (segment, _) = stopped.place_of("the text of number 1");
    let file = fs::OpenOptions::new().write(true).open(segment).unwrap();
    for at in [8, 4096 + 8] {
        file.write_all_at(&99_u32.to_le_bytes(), at).unwrap();
    }
    stopped.before = files(&stopped.den);
    let out = stopped.den.path("out");
    for words in [&["check"][..], &["salvage", "--out", &format!("spool:{out}")], &["export", "--out", &out]] {
        let ended = stopped.spool(words);
        assert_eq!((ended.code, ended.err.lines().count()), (Some(2), 1), "{words:?}: {ended:?}");
        assert!(ended.err.contains("later version"), "{ended:?}");
    }
    assert!(!fs::exists(&out).unwrap());
    assert_eq!(files(&stopped.den), stopped.before);
}

#[test]
fn what_is_no_spool_cannot_be_read() {
    let files = Files::new();
    let file = files.keep("file", "no directory");
    for directory in [files.path("nowhere"), file] {
        let ended = mailrun(&["spool", "check", &directory]);
        assert_eq!((ended.code, ended.err.lines().count()), (Some(2), 1), "{ended:?}");
        assert!(ended.err.contains(&directory), "{ended:?}");
    }
    let ended = mailrun(&["spool", "salvage", &files.path("nowhere"), "--out", "elsewhere"]);
    assert!(ended.code == Some(2) && ended.err.contains("maildir:DIR or spool:DIR"), "{ended:?}");
}

#[test]
fn a_newest_segment_that_was_deleted_is_missed() {
    let mut stopped = Stopped::new();
    let (segment, _) = stopped.place_of("the text of number 3");
    fs::remove_file(&segment).unwrap();
    stopped.before = files(&stopped.den);
    let report = stopped.asked(&["check"], 1);
    assert_eq!((&report["sound"], &report["messages"]), (&false.into(), &0.into()), "{report}");
    let damage = &report["damage"][0];
    assert_eq!(damage["segment"], segment.file_name().unwrap().to_str().unwrap(), "{report}");
    assert_eq!(damage["what"], "this segment, the newest, is missing", "{report}");
    assert_eq!(damage["messages"].as_array().unwrap().len(), 3, "{report}");
    // The relay must report the damage only at its first start, and accept mail each time.
    for is_first in [true, false] {
        let relay = stopped.den.open();
        send(&relay, "<a@b.example>", &["<four@busy.example>"], 4);
        let ended = relay.stop();
        assert_eq!(ended.err.contains("this segment, the newest, is missing"), is_first, "{}", ended.err);
    }
}
