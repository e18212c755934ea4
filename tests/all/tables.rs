//! The published tables as a user runs them. Every row that can be run exists, losses are detected, and a hanging
//! program is named.
use crate::party::{Ended, Process, mailrun, peer, wait_until};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

/// The rows of a table, cell by cell.
fn rows(ended: &Ended) -> Vec<Vec<String>> {
    let lines = ended.out.lines().skip_while(|line| !line.contains('─')).skip(1);
    let cells =
        |line: &str| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect();
    lines.take_while(|line| !line.is_empty()).map(cells).collect()
}

/// Sources and sinks that are installed.
fn present() -> (Vec<&'static str>, Vec<&'static str>) {
    let is_there = |name: &&str| name.starts_with("mailrun") || peer(name).is_some();
    let there = |names: [&'static str; 2]| names.into_iter().filter(is_there);
    // Leave out go-smtp-source, because the scenario may find it in places where this test does not look. `expect_rows`
    // recognizes its rows by their first cell.
    (there(["smtp-source", "mailrun"]).collect(), there(["smtp-sink", "mailrun"]).collect())
}

/// Asserts that there are `each` rows for every pair of an installed source and an installed sink.
fn expect_rows(rows: &[Vec<String>], more: &[&'static str], each: usize) {
    let (mut tools, sinks) = present();
    tools.extend(more);
    for tool in &tools {
        for sink in &sinks {
            let of_pair = rows.iter().filter(|row| row[..2] == [*tool, *sink]).count();
            assert_eq!(of_pair, each, "{tool} → {sink}: {rows:#?}");
        }
    }
    let go = rows.iter().filter(|row| row[0] == "go-smtp-source").count();
    assert!(go == 0 || go == each * sinks.len(), "{rows:#?}");
    assert_eq!(rows.len(), go + each * tools.len() * sinks.len(), "{rows:#?}");
}

#[test]
fn the_table_has_a_row_for_each_combination() {
    let ended = mailrun(&["bench", "smtp-source-table", "--messages", "50", "--sessions", "1,5", "--rounds", "2"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.out.starts_with("smtp-source-table: 50 messages per run, medians of 2 rounds"), "{}", ended.out);
    let rows = rows(&ended);
    expect_rows(&rows, &["mailrun-busy-poll"], 4);
    for row in &rows {
        // A row may have one cell less, because a narrow report leaves out the column for storage.
        assert!([14, 15].contains(&row.len()), "{row:?}");
        // Drop the range that follows a ratio, as in "1.20 (1.10–1.30)".
        let first = |at: usize| row[at].split(' ').next().unwrap_or_default().replace(',', "");
        let number = |at: usize| first(at).parse::<f64>().unwrap_or_else(|_| panic!("{row:?}"));
        let [elapsed_s, cpu_percent, rate_per_s, sink_s] = [6, 7, 9, 12].map(number);
        assert!(number(4) + number(5) > 0.0 && sink_s > 0.0 && row[8].ends_with("iB"), "{row:?}");
        assert!(number(13) > 10.0, "page faults: {row:?}");
        assert!(elapsed_s > 0.0 && cpu_percent >= 0.0 && rate_per_s >= 50.0 / 60.0, "{row:?}");
        match row[0].as_str() {
            "smtp-source" => assert_eq!(row[10..12], ["1.00", "1.00"], "it is the measure"),
            _ if peer("smtp-source").is_some() => assert!(number(10) > 0.0 && number(11) > 0.0, "{row:?}"),
            _ => assert_eq!(row[10..12], ["–", "–"]),
        }
    }
}

#[test]
fn a_peer_that_hangs_or_fails_is_named_and_the_run_goes_on() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("smtp-source");
    // The program hangs in its first run and fails in the others.
    let script = "#!/bin/sh\nmkdir \"$0.hung\" && while :; do sleep 0.05; done\necho 'fatal: no' >&2; exit 3\n";
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    // 6 s are long enough for programs that do not hang, even on a busy machine.
    let words = ["--messages", "20", "--sessions", "1", "--rounds", "1", "--max-time", "6s"];
    let ended = with_path(place.path(), &words);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    for named in ["it did not end within 6.00 s and was killed", "it ended with exit status: 3: fatal: no"] {
        assert!(ended.out.contains(named), "{}", ended.out);
    }
    let rows = rows(&ended);
    let (failed, ran): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row[0] == "smtp-source");
    assert!(!failed.is_empty() && failed.iter().all(|row| row[4] == "–"), "{rows:#?}");
    assert!(ran.iter().any(|row| row[0] == "mailrun") && ran.iter().all(|row| row[4] != "–"), "{rows:#?}");
}

#[test]
fn our_own_links_are_no_peers() {
    let place = tempfile::tempdir().unwrap();
    symlink(env!("CARGO_BIN_EXE_mailrun"), place.path().join("smtp-source")).unwrap();
    let ended = with_path(place.path(), &["--messages", "5", "--sessions", "1"]);
    let is_there = peer("smtp-source").is_some();
    assert_eq!(ended.out.contains("not installed: smtp-source"), !is_there, "{}", ended.out);
}

/// Runs the table with `first` at the front of PATH.
fn with_path(first: &std::path::Path, words: &[&str]) -> Ended {
    let path = std::env::join_paths(
        std::iter::once(first.to_owned()).chain(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())),
    );
    let output = Command::new(env!("CARGO_BIN_EXE_mailrun"))
        .args(["bench", "smtp-source-table"])
        .args(words)
        .env("PATH", path.unwrap())
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ended { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

#[test]
fn ctrl_c_ends_it_with_the_table_of_what_was_run() {
    let words = ["bench", "smtp-source-table", "--messages", "2000", "--sessions", "1", "--rounds", "1000"];
    let process = Process::start(env!("CARGO_BIN_EXE_mailrun"), &words);
    wait_until("a run to be told", || process.complained().contains(" left").then_some(()));
    process.interrupt_group();
    let ended = process.finish();
    assert_eq!(ended.code, Some(130), "{ended:?}");
    assert!(ended.out.contains("Stopped after ") && !rows(&ended).is_empty(), "{}", ended.out);
    assert!(ended.err.contains("mailrun: run "), "{}", ended.err);
}
