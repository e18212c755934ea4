//! Runs every command with outputs that cannot be written, readers that go away, and arguments that are not UTF-8. The
//! command must end with one of its own exit statuses, and never with a panic (101).
use crate::party::{MAILRUN, Sink, mailrun, run};
use crate::rows::each;
use std::path::Path;

/// Shell commands that run "$@" with its output on a full device, with a reader that goes away, or with closed
/// descriptors.
const WAYS: [&str; 9] = [
    "\"$@\" > /dev/full",
    "\"$@\" 2> /dev/full",
    "\"$@\" > /dev/full 2>&1",
    "\"$@\" | head -n 1",
    "\"$@\" 2>&1 | head -n 1",
    "\"$@\" >&-",
    "\"$@\" 2>&-",
    "\"$@\" >&- 2>&-",
    "\"$@\" <&-",
];

/// Ways for most commands: a full disk, a reader that goes away, closed output.
const FEW_WAYS: [&str; 3] = ["\"$@\" > /dev/full 2>&1", "\"$@\" 2>&1 | head -n 1", "\"$@\" >&- 2>&-"];

/// Commands that end at once. The first eight run in all `WAYS`, the others only in `FEW_WAYS`. `{sink}` is the address
/// of a sink, and `{}` a directory of the run.
const COMMANDS: [&str; 25] = [
    "",
    "--help",
    "--version",
    "bnech",
    "bench --help",
    "source --help",
    "source {sink} --messages 5 --sessions 1",
    "source {sink} --messages 5 --sessions 1 --live json",
    "source 127.0.0.1:1 --messages 5",
    "sink --rules {}/none",
    "relay --config {}/none --check",
    "relay --help",
    "queue list --spool {}/none",
    "queue stats --spool {}/none",
    "spool check {}/none",
    "mades --broker amqp://127.0.0.1:1 --messages 5",
    "mades-endpoint --embedded --drop 2",
    "install-links {}/links",
    "man",
    "man {}/pages",
    "completions zsh",
    "smtp-source -m 5 -s 1 {sink}",
    "smtp-sink -x",
    "go-smtp-source -n 5 {sink}",
    "go-mades-bench -h",
];

/// Benches, each of which starts other processes.
const RUNS: [&str; 9] = [
    "bench --relay none --messages 20 --sessions 2 --out {}/out",
    "bench --messages 20 --sessions 2 --out {}/out",
    "bench {sink} --no-preflight --messages 20 --sessions 2 --report full --json - --out {}/out",
    "bench mades --messages 20 --preset ideal --max-in-transit 5 --out {}/out",
    "bench smtp-source-table --messages 5 --sessions 1 --rounds 1",
    "bench relay-400 --messages 20 --sessions 2 --rounds 1 --out {}/out",
    "bench relay-soak --messages 20 --sessions 2 --out {}/out",
    "bench sizes --messages 5 --warm-up 0s --sessions 1 --rounds 1 --out {}/out",
    "bench large-message --body-sizes 1k --volume 1k --rounds 1 --out {}/out",
];

/// Servers, which run until they are stopped.
const SERVERS: [&str; 5] = [
    "sink --listen 127.0.0.1:0 --http 127.0.0.1:0",
    "relay --listen 127.0.0.1:0 --to 127.0.0.1:1 --spool {}/spool --log debug",
    "relay --listen 127.0.0.1:0 --to 127.0.0.1:1 --spool {}/spool --live json",
    "mades-endpoint --embedded --listen 127.0.0.1:0",
    "smtp-sink -c 127.0.0.1:0 10",
];

/// Runs a command with the shell command `way`. If the command is a server, stops it after a second. Returns the exit
/// status.
fn status(way: &str, command: &str, sink: &str, directory: &Path) -> i32 {
    let file = directory.join("status");
    let script = way.replacen("\"$@\"", &format!("{{ \"$@\"; echo $? > {}; }}", file.display()), 1);
    let directory = directory.to_str().unwrap();
    let filled = command.replace("{sink}", sink).replace("{}", directory);
    let server: &[&str] = if SERVERS.contains(&command) { &["timeout", "--preserve-status", "1"] } else { &[] };
    let words: Vec<&str> = ["-c", &script, "sh"].into_iter().chain(server.iter().copied()).collect();
    let words: Vec<&str> = words.into_iter().chain([MAILRUN]).chain(filled.split_whitespace()).collect();
    let ended = run("/bin/sh", &words);
    let text = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(!ended.err.contains("panicked"), "{command} {way}: {ended:?}");
    text.trim().parse().unwrap_or_else(|_| panic!("{command} {way}: no status: {ended:?}"))
}

/// Asserts that no child process has panicked. The files `*.stderr` below this directory have their standard error.
fn assert_no_panic_in(directory: &Path, what: &str) {
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            assert_no_panic_in(&path, what);
        } else if path.extension().is_some_and(|kind| kind == "stderr") {
            let said = std::fs::read(&path).unwrap();
            assert!(!String::from_utf8_lossy(&said).contains("panicked"), "{what}: {}", path.display());
        }
    }
}

/// Runs each command in each way, several commands at a time.
fn go_through(commands: &[&str], ways: &[&str]) {
    let sink = Sink::start(&[]);
    let address = sink.address();
    let rows: Vec<(&str, &str)> = commands.iter().flat_map(|command| ways.iter().map(|way| (*command, *way))).collect();
    each(&rows, |(command, way)| {
        let place = tempfile::tempdir().unwrap();
        let status = status(way, command, &address, place.path());
        assert!(![101, 134, 139].contains(&status), "{command} {way}: {status}");
        assert_no_panic_in(place.path(), command);
    });
}

#[test]
fn no_command_panics_where_its_output_takes_nothing() {
    let (thorough, others) = COMMANDS.split_at(8);
    go_through(thorough, &WAYS);
    go_through(&[others, &RUNS].concat(), &FEW_WAYS);
}

#[test]
fn no_server_panics_where_its_output_takes_nothing() {
    go_through(&SERVERS, &FEW_WAYS);
}

#[test]
fn no_command_panics_at_words_that_are_not_utf_8() {
    let place = tempfile::tempdir().unwrap();
    let script = "cd \"$1\" && shift && exec \"$@\" $(printf '\\377')";
    let commands = [
        "",
        "bench --relay none --messages 5 --sessions 1 --out",
        "bench --relay none --messages 5 --corpus",
        "bench --rules",
        "bench 127.0.0.1:1 --tls starttls --cacert",
        "bench --label",
        "bench --to",
        "bench mades --messages 5 --preset ideal --max-in-transit 5 --out",
        "bench mades --plan",
        "bench relay-400 --messages 5 --sessions 1 --rounds 1 --out",
        "bench smtp-source-table --sessions",
        "source 127.0.0.1:1 --messages 5 --json",
        "source 127.0.0.1:1 --messages 5 --file",
        "source --to",
        "sink --rules",
        "sink --listen",
        "relay --config",
        "relay --to 127.0.0.1:1 --listen nowhere --spool",
        "queue list --spool",
        "queue show --spool none",
        "spool check",
        "mades --broker",
        "mades --broker amqp://127.0.0.1:1 --out",
        "mades-endpoint --embedded --plan",
        "install-links",
        "man",
        "completions",
        "smtp-source",
        "smtp-source -m 1 -f",
        "smtp-sink",
        "go-smtp-source",
        "go-smtp-source -from",
        "go-mades-bench",
        "go-mades-bench -mode",
    ];
    for command in commands {
        let words = ["-c", script, "sh", place.path().to_str().unwrap(), "timeout", "20", MAILRUN];
        let ended = run("/bin/sh", &words.into_iter().chain(command.split_whitespace()).collect::<Vec<_>>());
        assert!(ended.code.is_some_and(|code| ![101, 134, 139, 124].contains(&code)), "{command}: {ended:?}");
        assert!(!ended.err.contains("panicked"), "{command}: {ended:?}");
        assert_no_panic_in(place.path(), command);
    }
}

#[test]
fn a_full_standard_output_is_named() {
    let words = ["-c", "exec \"$@\" > /dev/full", "sh", MAILRUN];
    let sink = Sink::start(&[]);
    let to = sink.address();
    let ended = run("/bin/sh", &[words.as_slice(), &["source", &to, "--messages", "5"]].concat());
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert_eq!(ended.err, "mailrun: cannot write standard output: No space left on device\n");
    assert_eq!(mailrun(&["--version"]).code, Some(0));
}
