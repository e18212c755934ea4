//! `mailrun compare` of stored runs, and `mailrun baseline`, on records that the tests write.
use crate::party::{Ended, MAILRUN, mailrun, run};
use mailrun_measurement::record::{KeepAwake, LatencyMs, Outcome, Record};
use serde_json::Value;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// Six rates of one program on a host with half a percent of noise.
const EQUAL: [f64; 6] = [1000.0, 1004.0, 997.0, 1002.0, 999.0, 1005.0];

struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    /// Writes one run for each rate in `rates`. If `side` is `a`, the directories of the runs are `a/0`, `a/1` and so
    /// on. `change` edits each record.
    fn side(&self, side: &str, rates: &[f64], change: impl Fn(usize, &mut Record)) -> Vec<String> {
        let run = |(number, per_s): (usize, &f64)| {
            let mut record = mailrun_report::sample::held();
            record.run_id = format!("{side}-{number}");
            for row in &mut record.stages {
                row.rate_per_s = Some(*per_s);
            }
            change(number, &mut record);
            let path = self.path(&format!("{side}/{number}"));
            fs::create_dir_all(&path).unwrap();
            fs::write(Path::new(&path).join("run.json"), record.to_json().unwrap()).unwrap();
            path
        };
        rates.iter().enumerate().map(run).collect()
    }

    /// Runs `mailrun compare B --against A` with more arguments.
    fn compare(&self, words: &[&str]) -> Ended {
        mailrun(&[&["compare", &self.path("b"), "--against", &self.path("a")], words].concat())
    }
}

fn unchanged(_: usize, _: &mut Record) {}

fn slower(by: f64) -> [f64; 6] {
    EQUAL.map(|per_s| per_s * by)
}

fn ended(ended: &Ended, code: i32) {
    assert_eq!((ended.code, ended.err.as_str()), (Some(code), ""), "{ended:?}");
}

fn json(ended: &Ended) -> Value {
    serde_json::from_str(&ended.out).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
}

#[test]
fn equal_runs_are_the_same_and_pass() {
    let place = Place::new();
    place.side("a", &EQUAL, unchanged);
    place.side("b", &EQUAL, unchanged);
    let all = place.compare(&["--fail-on-regression", "5%"]);
    ended(&all, 0);
    assert!(all.out.starts_with("stored runs: 6, against 6\n"), "{}", all.out);
    assert!(all.out.lines().any(|line| line.contains("delivered, msg/s") && line.ends_with("same, within 2 %")));
    assert!(all.out.ends_with("PASS no figure is worse by 5 % or more\n"), "{}", all.out);
    // Noise makes the runs differ by half a percent. A margin of 0.1 % is narrower, so the result is undecided.
    let narrow = place.compare(&["--margin", "0.1%"]);
    ended(&narrow, 0);
    assert!(narrow.out.contains("undecided: about "), "{}", narrow.out);
}

#[test]
fn a_slower_side_is_found_and_fails_the_guard() {
    let place = Place::new();
    place.side("a", &EQUAL, unchanged);
    place.side("b", &slower(0.9), unchanged);
    let found = place.compare(&["--fail-on-regression", "5%"]);
    ended(&found, 1);
    assert!(found.out.ends_with("FAIL worse by 5 % or more: delivered, msg/s\n"), "{}", found.out);
    ended(&place.compare(&["--fail-on-regression", "20%"]), 0);
    ended(&place.compare(&[]), 0);
    let value = json(&place.compare(&["--json", "-"]));
    let row = &value["metrics"][0];
    assert_eq!((row["name"].as_str(), row["verdict"].as_str()), (Some("delivered, msg/s"), Some("worse")));
    assert!((row["ratio"].as_f64().unwrap() - 0.9).abs() < 0.01, "{row}");
    assert_eq!((row["against_values"][1].as_f64(), row["values"].as_array().unwrap().len()), (Some(1004.0), 6));
}

#[test]
fn what_cannot_be_decided_is_a_status_of_its_own() {
    let place = Place::new();
    place.side("a", &EQUAL[..4], unchanged);
    place.side("b", &EQUAL[..4], unchanged);
    let few = place.compare(&["--fail-on-regression", "5%"]);
    ended(&few, 3);
    assert!(few.out.contains("too few runs") && few.out.contains("INCONCLUSIVE a figure may be worse by 5 %"));
    ended(&place.compare(&[]), 0);
    let strict = place.compare(&["--strict"]);
    ended(&strict, 3);
    assert!(strict.out.lines().last().unwrap().starts_with("INCONCLUSIVE "), "{}", strict.out);
}

#[test]
fn lost_mail_fails_the_guard() {
    let place = Place::new();
    place.side("a", &EQUAL, unchanged);
    place.side("b", &EQUAL, |number, record| {
        if number == 2 {
            record.ledger.lost = Some(3);
        }
    });
    let lost = place.compare(&["--fail-on-regression", "50%"]);
    ended(&lost, 1);
    assert!(lost.out.contains("b/2: 3 lost\n"), "{}", lost.out);
    assert!(lost.out.ends_with("FAIL 1 of the runs lost, duplicated or corrupted mail\n"), "{}", lost.out);
    ended(&place.compare(&[]), 0);
}

#[test]
fn runs_that_reject_mail_as_none_did_before_fail_the_guard() {
    let place = Place::new();
    place.side("a", &EQUAL, unchanged);
    place.side("b", &EQUAL, |_, record| record.ledger.rejected = Some(7));
    let rejected = place.compare(&["--fail-on-regression", "50%"]);
    ended(&rejected, 1);
    assert!(rejected.out.contains("b/0: 7 rejected; "), "{}", rejected.out);
    ended(&place.compare(&[]), 0);
}

#[test]
fn runs_that_all_lost_mail_fail_the_guard() {
    let place = Place::new();
    place.side("a", &EQUAL, unchanged);
    place.side("b", &EQUAL, |_, record| record.ledger.lost = Some(1));
    let lost = place.compare(&["--fail-on-regression", "50%"]);
    ended(&lost, 1);
    assert!(lost.out.ends_with("FAIL 6 of the runs lost, duplicated or corrupted mail\n"), "{}", lost.out);
    let unasked = place.compare(&[]);
    assert!(unasked.code == Some(2) && unasked.err.contains("no run of RUN can be used"), "{unasked:?}");
}

#[test]
fn the_fields_of_the_json_are_those_of_the_manual() {
    let place = Place::new();
    place.side("a", &EQUAL, unchanged);
    place.side("b", &EQUAL, unchanged);
    let file = place.path("out.json");
    let shown = place.compare(&["--json", &file]);
    ended(&shown, 0);
    let value: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let page = crate::manual::page("docs/compare.md").text;
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    for key in keys(&value).iter().chain(&keys(&value["metrics"][0])) {
        assert!(page.contains(&format!("`{key}`")), "docs/compare.md lacks {key}");
    }
    assert_eq!((value["format"].as_str(), value["paired"].as_bool()), (Some("mailrun-compare/1"), Some(false)));
    assert!(shown.out.contains("stored runs"), "the text is printed as well");
}

/// Each run that cannot be read or compared is reported in one line. The others are compared, and the status is 2.
#[test]
fn each_bad_run_is_a_line_and_the_others_are_compared() {
    let place = Place::new();
    place.side("a", &EQUAL, unchanged);
    let good = place.side("b", &EQUAL, unchanged);
    let change =
        |name: &str, change: fn(&mut Record)| place.side(name, &EQUAL[..1], |_, record| change(record)).remove(0);
    let json = fs::read_to_string(format!("{}/run.json", good[0])).unwrap();
    let file = |name: &str, text: &str| {
        fs::write(place.path(name), text).unwrap();
        place.path(name)
    };
    let mades = |record: &mut Record| *record = Record { run_id: "m".to_owned(), ..mailrun_report::sample::mades() };
    let bad = [
        (file("empty", ""), "is no run record of mailrun"),
        (file("cut", &json[..json.len() / 2]), "is no run record of mailrun"),
        (file("foreign", "{\"format\": \"k6\"}"), "is no run record of mailrun"),
        (file("newer", "{\"format\": \"mailrun-run/9\", \"version\": \"9\\u001b[2J\"}"), "use a newer mailrun"),
        (file("binary", "\u{0}\u{1}\u{202e}"), "is no run record of mailrun"),
        (place.path("nowhere"), "No such file or directory"),
        (change("protocol", mades), "the protocol of "),
        (change("host", |record| record.host.cores = 99), "the number of cores of "),
        (change("processor", |record| record.host.cpu_model = "Z80".to_owned()), "the processor of "),
        (change("awake", |record| record.host.keep_awake = Some(KeepAwake::On)), "the --keep-awake of "),
        (change("sessions", |record| record.workload.sessions = 7), "the number of sessions of "),
        (change("size", |record| record.workload.message_bytes = 7), "the message size of "),
        (good[3].clone(), "is the same run as "),
    ];
    for (path, words) in &bad {
        let all = place.compare(&["--fail-on-regression", "5%", path]);
        // The bad run must cause the same error on each side: among the judged runs, and after `--against`.
        let judged = mailrun(&["compare", &place.path("b"), path, "--against", &place.path("a")]);
        for all in [all, judged] {
            assert_eq!(all.code, Some(2), "{path}: {all:?}");
            assert_eq!(all.err.lines().count(), 1, "{path}: {}", all.err);
            assert!(all.err.starts_with("mailrun: ") && all.err.contains(words), "{path}: {}", all.err);
            assert!(!all.err.contains(['\u{1b}', '\u{202e}']), "{path}: {:?}", all.err);
            assert!(
                all.out.starts_with("stored runs: 6, against 6\n") && all.out.contains("same, within 2 %"),
                "{all:?}"
            );
        }
    }
    // Leave out the last path. It is a good run, and was refused only because it was named twice.
    let bad = &bad[..bad.len() - 1];
    let paths: Vec<&str> = bad.iter().map(|(path, _)| path.as_str()).collect();
    let every = place.compare(&[&paths[..], &["--json", "-"]].concat());
    assert_eq!((every.code, every.err.lines().count()), (Some(2), bad.len()), "{every:?}");
    let value = self::json(&every);
    assert_eq!((value["runs"].as_u64(), value["against"].as_u64()), (Some(6), Some(6)));
    assert_eq!(value["refused"].as_array().unwrap().len(), bad.len());
}

#[test]
fn nothing_to_compare_is_one_line() {
    let place = Place::new();
    place.side("a", &EQUAL, unchanged);
    place.side("b", &EQUAL, |_, record| record.host.cpu_model = "Z80".to_owned());
    let empty = place.path("none");
    fs::create_dir(&empty).unwrap();
    let itself = mailrun(&["compare", &place.path("a"), "--against", &place.path("a")]);
    let none = mailrun(&["compare", &empty, "--against", &place.path("a")]);
    for (all, words) in [
        (place.compare(&[]), "no run of RUN is like one of --against"),
        (itself, "is the same run as"),
        (none, "has no run.json"),
    ] {
        assert_eq!((all.code, all.out.as_str(), all.err.lines().count()), (Some(2), "", 1), "{all:?}");
        assert!(all.err.contains(words), "{}", all.err);
    }
}

#[test]
fn the_page_of_a_comparison_has_its_verdicts() {
    let place = Place::new();
    place.side("a", &EQUAL, unchanged);
    place.side("b", &slower(0.9), |_, record| record.name = "<img src=x onerror=alert(1)>".to_owned());
    let file = place.path("compared.html");
    ended(&place.compare(&["--html", &file]), 0);
    let page = fs::read_to_string(&file).unwrap();
    for words in ["COMPARED</strong>", "<bdi>worse</bdi>", "delivered, msg/s", "id=\"runs\"", "id=\"method\""] {
        assert!(page.contains(words), "{words}");
    }
    assert!(!page.contains("<img") && !page.contains("<script"));
    for (path, words) in [(place.path("compared.html/x.html").as_str(), "cannot write"), ("-", "name a file")] {
        let nowhere = place.compare(&["--html", path]);
        assert_eq!((nowhere.code, nowhere.out.as_str(), nowhere.err.lines().count()), (Some(2), "", 1), "{nowhere:?}");
        assert!(nowhere.err.contains(words), "{nowhere:?}");
    }
}

#[test]
fn a_baseline_keeps_runs_that_others_are_compared_with() {
    let place = Place::new();
    let runs = place.side("a", &EQUAL, unchanged);
    place.side("b", &slower(0.9), unchanged);
    let dir = place.path("kept");
    let baseline = |words: &[&str]| mailrun(&[&["baseline"], words, &["--dir", &dir]].concat());
    let saved = baseline(&["save", "main", &place.path("a")]);
    ended(&saved, 0);
    for words in
        ["baseline main: 6 runs", "measured", "host", "load", "delivered, msg/s", "--baseline main --baseline-dir"]
    {
        assert!(saved.out.contains(words), "{words}: {}", saved.out);
    }
    let compare = |words: &[&str]| {
        let own = ["--baseline", "main", "--baseline-dir", &dir];
        mailrun(&[&["compare"], words, &own].concat())
    };
    let found = compare(&[&place.path("b"), "--fail-on-regression", "5%"]);
    ended(&found, 1);
    assert!(found.out.starts_with("stored runs: 6, against 6\n"), "{}", found.out);
    let itself = compare(&[&runs[0]]);
    assert!(itself.code == Some(2) && itself.err.contains("is the same run as"), "{itself:?}");
    place.side("c", &EQUAL, |_, record| record.workload.sessions = 7);
    let foreign = compare(&[&place.path("c")]);
    assert!(foreign.code == Some(2) && foreign.err.contains("is like one of baseline main"), "{foreign:?}");
    let listed = baseline(&["list"]);
    ended(&listed, 0);
    assert!(listed.out.lines().any(|line| line.trim_start().starts_with("main ")), "{}", listed.out);
    let shown = baseline(&["show", "main"]);
    ended(&shown, 0);
    assert!(shown.out.contains("baseline main: 6 runs"), "{}", shown.out);
    ended(&baseline(&["remove", "main"]), 0);
    let gone = compare(&[&place.path("b")]);
    assert!(gone.code == Some(2) && gone.err.lines().count() == 1 && gone.err.contains("has no baselines"), "{gone:?}");
}

#[test]
fn a_baseline_has_no_runs_that_failed_and_no_name_that_leads_elsewhere() {
    let place = Place::new();
    place.side("a", &EQUAL, |number, record| {
        if number == 4 {
            (record.verdict.valid, record.verdict.outcome) = (false, Some(Outcome::Invalid));
        }
    });
    let mixed = place.side("mixed", &EQUAL[..1], |_, record| record.workload.sessions = 7);
    let dir = place.path("kept");
    let refused = |words: &[&str], why: &str| {
        let all = mailrun(&[&["baseline"], words, &["--dir", &dir]].concat());
        assert_eq!((all.code, all.out.as_str(), all.err.lines().count()), (Some(2), "", 1), "{words:?}: {all:?}");
        assert!(all.err.contains(why), "{words:?}: {}", all.err);
        assert!(!Path::new(&dir).exists(), "{words:?}: nothing is saved");
    };
    let a = place.path("a");
    refused(&["save", "main", &a], "a/4 was INVALID: nothing was saved; --allow-failed");
    let late = place.side("late", &EQUAL[..1], |_, record| {
        record.workload.arrival = mailrun_measurement::record::Arrival::Constant;
        record.lag_ms = Some(LatencyMs { p99: 50.0, ..LatencyMs::default() });
    });
    refused(&["save", "main", &late[0]], "would not count (The source fell behind its schedule");
    refused(&["save", "main", &format!("{a}/0"), &mixed[0]], "a baseline is of one load and one host");
    refused(&["save", "main", &format!("{a}/0"), &format!("{a}/0")], "is the same run as");
    refused(&["save", "main", &place.path("nowhere")], "No such file");
    refused(&["save", "main", "-"], "is copied from files");
    refused(&["show", "main"], "has no baselines");
    refused(&["remove", "main"], "has no baselines");
    for name in ["../main", "a/b", "..", ".main", "", "a b", "main\u{202e}"] {
        refused(&["save", name, &a], "a name has at most 64 letters");
        refused(&["remove", name], "a name has at most 64 letters");
    }
    ended(&mailrun(&["baseline", "save", "main", &a, "--allow-failed", "--dir", &dir]), 0);
    let again = mailrun(&["baseline", "save", "main", &a, "--allow-failed", "--dir", &dir]);
    assert!(again.code == Some(2) && again.err.contains("--replace puts the new one in its place"), "{again:?}");
    ended(&mailrun(&["baseline", "save", "main", &format!("{a}/0"), "--replace", "--dir", &dir]), 0);
    assert_eq!(fs::read_dir(Path::new(&dir).join("main")).unwrap().count(), 1);
    let newest = mailrun(&["baseline", "save", "other", "--dir", &dir]);
    assert!(newest.code == Some(2) && newest.err.contains("mailrun-results has no run"), "{newest:?}");
}

#[test]
fn a_baseline_of_no_named_run_has_the_newest() {
    let place = Place::new();
    for (time, side) in [("20261121T030012Z", "old"), ("20261123T030012Z", "new"), ("20261122T030012Z", "middle")] {
        let run = place.side(side, &EQUAL[..1], unchanged).remove(0);
        let results = place.path("mailrun-results");
        fs::create_dir_all(&results).unwrap();
        fs::rename(run, format!("{results}/{time}-quick")).unwrap();
    }
    let command =
        format!("cd '{}' && '{MAILRUN}' baseline save main && cat mailrun-baselines/main/*/run.json", place.path("."));
    let saved = run("sh", &["-c", &command]);
    ended(&saved, 0);
    assert!(saved.out.contains("baseline main: 1 run\n") && saved.out.contains("\"new-0\""), "{}", saved.out);
    assert!(saved.out.contains("A verdict takes 5 runs a side: this has 1."), "{}", saved.out);
}
