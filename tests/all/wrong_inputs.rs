//! Wrong command lines: each command ends before any load, with its exit status and one line on standard error.
//! `cli/src/wrong_inputs/mod.rs` tests all other wrong command lines, which need no process. The drop-ins (mailrun
//! under the names of other programs) are tested here because each of them has the exit statuses of its original.
use crate::party::{Ended, mailrun};
use crate::rows::{all_hold, is_refusal};
use crate::secured::Files;

/// Command lines with a mistake, each with part of the expected error. The parser finds some of the mistakes. Only a
/// running server or bench finds the others.
const REFUSALS: [(&str, &str); 19] = [
    ("bnech", "unknown command \"bnech\"; did you mean \"bench\"?"),
    ("bench --messages 0", "--messages: \"0\": must be more than zero"),
    ("bench 127.0.0.1:1", "cannot reach 127.0.0.1:1: Connection refused. Check that a server listens there."),
    ("bench relay-400 --compare mailrun,qmail", "qmail is not one of mailrun"),
    ("source 8.8.8.8", "8.8.8.8 is a public address"),
    ("bench --corpus /nowhere", "--corpus /nowhere: cannot be read: No such file or directory"),
    ("bench --corpus /dev/null", "--corpus /dev/null is neither a file nor a directory"),
    ("bench -l 10..400", "--message-size 10..400 is too small"),
    ("sink --rules /nowhere", "cannot read /nowhere: No such file or directory"),
    ("relay --config /nowhere", "/nowhere:1:1: it cannot be read: No such file or directory"),
    ("relay --to discard --spool s --listen 192.0.2.77:0", "cannot listen on 192.0.2.77:0"),
    ("relay --to discard --spool /proc/nope", "cannot open the spool /proc/nope"),
    ("relay --to discard --spool /dev/null", "cannot open the spool"),
    ("relay --to discard --spool s --control /nowhere/c.sock", "cannot create the control socket"),
    ("relay --to discard --spool s --json /dev/null/run.json", "cannot write"),
    ("relay --to discard --spool s --cpus 1023", "--cpus: processor 1023 is not available; available: "),
    ("queue show 12 --spool /nowhere", "\"12\" is not a queue id"),
    ("mades --broker amqp://127.0.0.1:1", "nothing listens at 127.0.0.1:1"),
    ("mades-endpoint", "--embedded or --broker <URL> is required"),
];

fn typed(line: &str) -> Ended {
    mailrun(&line.split(' ').collect::<Vec<_>>())
}

#[test]
fn a_wrong_input_ends_with_2_and_one_line() {
    all_hold(&REFUSALS, |(line, text)| {
        let ended = typed(line);
        (!is_refusal(&ended, [*text])).then(|| format!("{line}\n    {ended:?}"))
    });
}

/// Wrong command lines of the drop-ins: arguments, status, and the original's message.
const DROP_INS: &[(&str, i32, &str)] = &[
    ("smtp-source", 1, "smtp-source: fatal: usage: smtp-source"),
    ("smtp-source -x", 1, "smtp-source: invalid option -- 'x'"),
    ("smtp-source -c --help", 1, "smtp-source: invalid option -- '-'"),
    ("smtp-source -m 0 127.0.0.1:1", 1, "fatal: bad message count: 0"),
    ("smtp-source -s x 127.0.0.1:1", 1, "fatal: bad session count: x"),
    ("smtp-source --dialect 3.7 127.0.0.1:1", 1, "bad dialect: 3.7: use 3.8"),
    ("smtp-source --timeout 0 127.0.0.1:1", 1, "bad timeout: 0: use a number of seconds above 0"),
    ("smtp-source 8.8.8.8:25", 1, "public address|MAILRUN_ALLOW_PUBLIC=1"),
    ("smtp-source 127.0.0.1:1", 1, "fatal: connect|Connection refused"),
    ("smtp-sink", 1, "smtp-sink: fatal: usage: smtp-sink"),
    ("smtp-sink -x", 1, "smtp-sink: invalid option -- 'x'"),
    ("smtp-sink -h", 1, "option requires an argument -- 'h'"),
    ("smtp-sink -f foo 127.0.0.1:0 10", 1, "fatal: unknown command: foo"),
    ("go-smtp-source", 1, "host is missing"),
    ("go-smtp-source -x", 2, "flag provided but not defined: -x|Usage of go-smtp-source:"),
    ("go-smtp-source -m -1 127.0.0.1:1", 2, "invalid value \"-1\" for flag -m: must not be negative"),
    ("go-smtp-source -m x 127.0.0.1:1", 2, "invalid value \"x\" for flag -m: parse error"),
    ("go-smtp-source -h", 0, "Usage of go-smtp-source:"),
    ("go-mades-bench -x", 2, "flag provided but not defined: -x|Usage of go-mades-bench:"),
    ("go-mades-bench --timeout 0", 2, "invalid value \"0\" for flag -timeout: must be above 0"),
    ("go-mades-bench -mode foo", 2, "unknown mode \"foo\": endpoint, toolbox, amqp or tracing"),
    ("go-mades-bench -h", 0, "Usage of go-mades-bench:"),
];

#[test]
fn a_wrong_input_of_a_drop_in_is_answered_as_by_the_original() {
    all_hold(DROP_INS, |(line, code, pieces)| {
        let ended = typed(line);
        let is_right = ended.code == Some(*code) && pieces.split('|').all(|piece| ended.err.contains(piece));
        (!is_right).then(|| format!("{line}\n    {ended:?}"))
    });
}

#[test]
fn a_drop_in_helps_with_its_own_options_and_those_of_the_original() {
    for (name, own, original) in [
        ("smtp-source", ["--trace", "--dialect"], "-4 -A -c -C -d -f -F -l -L -m -M -N -o -r -R -s -S -t -T -v -w"),
        (
            "smtp-sink",
            ["--trace", "--report"],
            "-4 -8 -a -A -b -B -c -C -d -D -e -E -f -F -h -H -L -m -M -n -N -p -P -q -Q -r -R -s -S -t -T -u -v -w -W",
        ),
        ("go-smtp-source", ["--trace", "--report"], "-d -f -F -l -m -q -r -resolve-once -s -S -t -tls -v"),
        (
            "go-mades-bench",
            ["--timeout", "--help"],
            "-durable -goroutines -inbox -inbox-addr -inbox-user -inbox-pass -max-in-transit -message-type -mode -n -outbox \
             -outbox-addr -outbox-user -outbox-pass -outbox-reply -outbox-send-event -receiver -size -v",
        ),
    ] {
        let help = mailrun(&[name, "--help"]);
        assert_eq!((help.code, help.err.as_str()), (Some(0), ""), "{name}");
        for option in own.into_iter().chain(original.split_whitespace()) {
            let is_option = |line: &str| {
                let typed = line.strip_prefix("  ").filter(|rest| rest.starts_with(option));
                typed.is_some_and(|rest| rest[option.len()..].starts_with([' ', ',', '=']))
            };
            assert!(help.out.lines().any(is_option), "{name}: {option}: {}", help.out);
        }
        assert!(help.out.contains(&format!("\n  mailrun {name} ")) && help.out.lines().count() <= 70, "{name}");
    }
    assert_eq!(mailrun(&["smtp-source", "--trace", "--help"]).code, Some(0));
}

#[test]
fn several_mistakes_have_a_line_each_and_five_at_most() {
    let files = Files::new();
    let text: String = (0..9).map(|number| format!("foo{number} = 1\n")).collect();
    let file = files.keep("relay.toml", &format!("spool.directory = \"s\"\n{text}"));
    let ended = mailrun(&["relay", "--config", &file]);
    assert_eq!((ended.code, ended.err.lines().count()), (Some(2), 6), "{ended:?}");
    assert!(ended.err.ends_with("and 4 more\n"), "{ended:?}");
    let checked = mailrun(&["relay", "--config", &file, "--check"]);
    assert_eq!((checked.code, checked.out.lines().count()), (Some(2), 10), "all of them: {checked:?}");
}

#[test]
fn a_spool_that_cannot_be_made_is_found_by_check() {
    let files = Files::new();
    let file = files.keep("relay.toml", "hostname = \"mx.example\"\n[spool]\ndirectory = \"/proc/nope\"\n");
    let ended = mailrun(&["relay", "--config", &file, "--check"]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.out.contains("relay.toml:3:13: cannot create a directory in /proc"), "{ended:?}");
}
