//! Wrong inputs of bench and its scenarios, source, sink, install-links and the drop-ins: each ends before any load, with
//! its exit status and one line on standard error that names the cause and what to type.
use crate::party::{Ended, mailrun};
use crate::rows::{all_hold, is_refusal};
use std::fs;
use std::path::Path;

/// What is typed, blanks between the words (`␣` is one within a word, DIR a directory with the files of [`files`]), and
/// what the line must contain, pieces between bars.
type Row = (&'static str, &'static str);

const SERVERS: &[Row] = &[
    ("source", "a server is required: HOST or HOST:PORT"),
    ("source --to 127.0.0.1:25", "the server is positional: mailrun source HOST:PORT"),
    ("source --to localhost", "the server is positional: mailrun source HOST:PORT"),
    ("bench --to 127.0.0.1:25", "the server is positional: mailrun bench HOST:PORT"),
    ("bench --to [::1]:25", "the server is positional: mailrun bench HOST:PORT"),
    ("bench nosuch.invalid:25", "mailrun: unknown host \"nosuch.invalid\""),
    ("source nosuch.invalid", "mailrun: unknown host \"nosuch.invalid\""),
    ("bench 127.0.0.1:smtp", "mailrun: \"127.0.0.1:smtp\": the port must be a number"),
    ("source smtps://a:b", "the port must be a number"),
    ("source 127.0.0.1:0", "the port must be a number from 1 to 65535, not \"0\""),
    ("source 127.0.0.1:70000", "the port must be a number from 1 to 65535, not \"70000\""),
    ("source http://127.0.0.1:25", "unknown scheme \"http\"; use smtp://, smtps:// or lmtp://"),
    ("source smtp://", "\"smtp://\" has no host"),
    ("source :25", "\":25\" has no host; use something like 127.0.0.1:25"),
    ("source [::1", "\"[::1\" is not an IPv6 address in brackets, such as [::1]:25"),
    ("source a:b:c", "\"a:b:c\" is not a server; use HOST, HOST:PORT"),
    ("source ann@mx.example", "the recipient is --to, the login --user"),
    ("source unix:", "a socket path must have 1 to 107 bytes"),
    ("source unix:DIR/none", "cannot reach unix:"),
    ("source 8.8.8.8", "8.8.8.8 is a public address|--allow-public"),
    ("bench 8.8.8.8:25", "8.8.8.8 is a public address|--allow-public"),
    ("source 127.0.0.1:1", "cannot reach 127.0.0.1:1: Connection refused. Check that a server listens there."),
    ("source 127.0.0.1:1 127.0.0.1:2", "unexpected argument \"127.0.0.1:2\""),
    ("bench 127.0.0.1:1 127.0.0.1:2", "unexpected argument \"127.0.0.1:2\""),
    ("bench relay-4000", "unknown host \"relay-4000\"; did you mean the scenario \"relay-400\"?"),
    ("bench mine.toml", "mailrun: cannot read mine.toml: No such file or directory"),
    ("bench --messages 5 relay-400", "options of relay-400 must follow it: write mailrun bench relay-400 first"),
    ("bnech", "unknown command \"bnech\"; did you mean \"bench\"?"),
    ("sorce 127.0.0.1:1", "unknown command \"sorce\"; did you mean \"source\"?"),
    ("frobnicate", "unknown command \"frobnicate\". See --help."),
    ("bench 127.0.0.1:1 --sink 127.0.0.1:1", "no mailrun sink answers at 127.0.0.1:1|mailrun sink --http 127.0.0.1:1"),
    ("bench 127.0.0.1:1 --sink ftp://a", "use http://HOST:PORT"),
    ("bench 127.0.0.1:1 --sink-listen here", "--sink-listen: \"here\" has no port"),
    ("bench 127.0.0.1:1 --sink http://127.0.0.1:1 --sink-listen 127.0.0.1:0", "--sink|--sink-listen"),
    ("bench --sink http://127.0.0.1:1", "a server is required"),
    ("bench 127.0.0.1:1 --relay none", "SERVER cannot be used together with --relay"),
    ("source 127.0.0.1:1 --cpus a", "--cpus: \"a\": use numbers of processors and ranges, such as 0,1 or 0-3"),
    ("source 127.0.0.1:1 --cpus 1023", "mailrun: --cpus: processor 1023 is not available; available: "),
    ("sink --cpus 0-1023", "mailrun: --cpus: processor |is not available; available: "),
    ("relay --to discard --spool DIR/s --cpus 1023", "mailrun: --cpus: processor 1023 is not available; available: "),
    ("bench --relay none --sink-cpus 1023", "mailrun: --sink-cpus: processor 1023 is not available; available: "),
    ("bench --relay none --relay-cpus 0", "--relay-cpus requires a relay that mailrun starts"),
    ("bench 127.0.0.1:1 --sink-cpus 0", "--sink-cpus requires the bench's own sink"),
    ("bench --relay sendmail", "sendmail is not one of mailrun|{to}"),
    ("bench --relay mailrun:never", "never is not one of sync, write, memory"),
];

const NUMBERS: &[Row] = &[
    ("bench --messages -1", "--messages: \"-1\": must be positive"),
    ("bench -n -1", "--messages: \"-1\": must be positive"),
    ("bench --messages 0", "--messages: \"0\": must be more than zero"),
    ("bench --messages 1e6", "--messages: \"1e6\": write 1000000 or 1M"),
    ("bench --messages 1,000", "--messages: \"1,000\": write 1000 or 1k"),
    ("bench --messages 10x", "--messages: \"10x\" is not a valid count; use something like 500, 10k or 1M"),
    ("bench --messages 1.5", "--messages: \"1.5\" is not a whole number"),
    ("bench --messages 99999999999999999999", "is too large; at most 1000000000000000"),
    ("bench --messages", "--messages <N> needs a value"),
    ("source 127.0.0.1:1 -m 5 --messages 6", "--messages <N> must not be given more than once"),
    ("bench -s 0", "--sessions: \"0\": must be more than zero"),
    ("bench -c 2M", "--sessions: \"2M\" is too large; at most 1000000"),
    ("source 127.0.0.1:1 --workers 2k", "--workers: \"2k\" is too large; at most 1024"),
    ("source 127.0.0.1:1 --seed x", "--seed: \"x\" is not a valid seed"),
    ("source 127.0.0.1:1 --seed -1", "--seed: \"-1\" is not a valid seed"),
    ("bench --reuse -5", "--reuse: \"-5\": must be positive"),
    ("bench --reuse 0..5", "must be more than zero"),
    ("bench 127.0.0.1:1 --reuse five", "unexpected argument \"five\""),
    ("bench --recipients 0", "--recipients: \"0\": must be more than zero"),
    ("bench --recipients 1001", "--recipients: \"1001\" is too large; at most 1000"),
    ("bench --recipients 5:0", "\"0\" is not a weight"),
    ("bench -l -1", "--message-size: \"-1\": must be positive"),
    ("bench -l 0", "--message-size: \"0\": must be more than zero"),
    ("bench -l 5x", "\"5x\" is not a valid size; use something like 400, 64k or 10M"),
    ("bench -l 3G", "a message can have at most 2G"),
    ("bench -l 9..4", "write the smaller value first"),
    ("bench -l 10..400", "--message-size 10..400 is too small"),
    ("bench -l lognormal:4k", "use something like lognormal:4k,1.2"),
    ("bench --duration 99999999999999h", "--duration: \"99999999999999h\" is too large; at most 10000d"),
    ("bench --duration -1s", "--duration: \"-1s\": must be positive"),
    ("bench -d 0", "--duration: \"0\": must be more than zero"),
    ("bench -d soon", "\"soon\" is not a valid time; use something like 250ms, 10s or 1m"),
    ("bench -d 1e3", "--duration: \"1e3\": write 1000s"),
    ("source 127.0.0.1:1 --timeout 0", "--timeout: \"0\": must be more than zero"),
    ("source 127.0.0.1:1 --think-time 2d", "--think-time: \"2d\" is too large; at most a day"),
    ("source 127.0.0.1:1 --think-time -1s", "--think-time: \"-1s\": must not be negative"),
    ("bench --rate 0", "--rate: \"0\": must be more than zero"),
    ("bench --rate -1", "--rate: \"-1\": must be positive"),
    ("bench --rate fast", "\"fast\" is not a valid rate; use something like 500, 500/s, 500/m or 30k/h"),
    ("bench --rate 20M", "--rate: \"20M\" is too large; at most 10M/s"),
    ("bench --rate 1e3", "--rate: \"1e3\": write 1000"),
    ("bench --stage 10s", "--stage: \"10s\" is not a valid stage; use something like 10s:100/s"),
    ("bench --stage 10s:fast", "\"fast\" is not a valid rate"),
    ("bench --stage 10s:0/s", "these stages offer no messages"),
    ("bench --stage 10s:5/s --rate 5", "--stage <TIME:RATE> cannot be used together with --rate"),
    ("bench --arrival poisson", "--arrival requires --rate or --stage"),
    ("bench --arrival weekly --rate 5", "--arrival: \"weekly\" is not one of constant, poisson"),
    ("source 127.0.0.1:1 --warm-up 10s --duration 5s", "--warm-up 10s leaves nothing of 5s to measure"),
    ("bench --warm-up 10s --duration 5s", "--warm-up 10s leaves nothing of 5s to measure"),
    ("bench --rate 10 --messages 100 --warm-up 100s", "--warm-up 100s leaves nothing of 10s to measure"),
];

const MAIL: &[Row] = &[
    ("bench --to a@b --to c@d --recipients 2", "--recipients counts copies of one --to pattern"),
    ("bench --to u{0..9@b", "has an unpaired \"{\"; write a literal brace twice"),
    ("bench --to u{9..0}@b", "write the smaller value first"),
    ("source 127.0.0.1:1 --to=", "a message must have a recipient"),
    ("bench --from a␣b␣c", "--from: \"a b c\""),
    ("bench --from <x", "--from: \"<x\""),
    ("bench --corpus /nowhere", "--corpus /nowhere: cannot be read: No such file or directory"),
    ("bench --corpus /dev/null", "--corpus /dev/null is neither a file nor a directory"),
    ("bench --corpus x --mime", "--corpus <PATH> cannot be used together with --mime"),
    ("bench --corpus-skip-bad", "--corpus <PATH> is required"),
    ("bench --max-corpus-size 1G", "--corpus <PATH> is required"),
    ("source 127.0.0.1:1 --corpus DIR/empty", "is not an mbox, which begins with a line \"From SENDER WEEKDAY"),
    ("source 127.0.0.1:1 --file /dev/null", "--file /dev/null: the message is empty"),
    ("source 127.0.0.1:1 --file DIR/marked", "line 1 begins with a byte order mark; remove it"),
    ("source 127.0.0.1:1 --file /nowhere.eml", "cannot read /nowhere.eml: No such file or directory"),
    ("source 127.0.0.1:1 --file x -l 400", "--file <MESSAGE.EML> cannot be used together with --message-size"),
    ("source 127.0.0.1:1 --subject a --corpus x", "--subject <TEXT> cannot be used together with --corpus"),
    ("source 127.0.0.1:1 --ehlo=", "--ehlo: the name must not be empty"),
    ("source 127.0.0.1:1 --pipelining fast", "--pipelining: \"fast\" is not one of off, group, stream"),
    ("source 127.0.0.1:1 --bind here", "here is not an IPv4 address or a range such as 127.0.0.2-127.0.0.50"),
    ("source [::1]:1 --bind 127.0.0.2", "--bind has IPv4 addresses, but [::1]:1 is not an IPv4 address"),
    ("source 127.0.0.1:1 --proxy-protocol v3", "--proxy-protocol: \"v3\" is not one of v1, v2"),
    ("source 127.0.0.1:1 --xclient FOO=1", "FOO is not one of NAME, ADDR"),
    ("source 127.0.0.1:1 --binarymime", "--chunking is required"),
    ("source 127.0.0.1:1 --dsn-notify sometimes", "must be never, or a list of success,failure,delay"),
    ("bench --no-trace", "--no-trace cannot be used with a sink"),
];

const TLS_AND_LOGIN: &[Row] = &[
    ("bench --tls maybe", "--tls: \"maybe\" is not one of none, starttls, implicit"),
    ("source 127.0.0.1:1 --insecure", "--insecure requires --tls starttls or --tls implicit"),
    ("source 127.0.0.1:1 --cacert x", "--cacert requires --tls starttls or --tls implicit"),
    ("source 127.0.0.1:1 --tls-name x", "--tls-name requires --tls starttls or --tls implicit"),
    ("source 127.0.0.1:1 --no-tls-resumption", "--no-tls-resumption requires --tls starttls or --tls implicit"),
    ("source 127.0.0.1:1 --tls starttls --tls-cert x", "--tls-key <FILE> is required"),
    ("source 127.0.0.1:1 --tls starttls --insecure --cacert x", "--insecure cannot be used together with --cacert"),
    ("source 127.0.0.1:1 --tls starttls --cacert /nowhere", "cannot read /nowhere: No such file or directory"),
    ("source 127.0.0.1:1 --tls starttls --cacert DIR/empty", "/empty: no certificate in PEM form"),
    ("source 127.0.0.1:1 --tls starttls --cacert DIR/taken", "cannot read /|/taken: Is a directory"),
    (
        "source 127.0.0.1:1 --tls starttls --insecure --tls-cert DIR/empty --tls-key DIR/empty",
        "/empty: no certificate in PEM form",
    ),
    ("sink --tls starttls --tls-cert DIR/empty --tls-key DIR/empty", "/empty: no certificate in PEM form"),
    ("sink --tls starttls --tls-client-ca DIR/empty", "/empty: no certificate in PEM form"),
    ("source smtps://127.0.0.1:1 --tls none", "smtps:// means --tls implicit"),
    ("source 127.0.0.1:1 --user ann", "--user requires a password: use --password-file FILE, or set MAILRUN_PASSWORD"),
    ("source 127.0.0.1:1 --user ann --password-file /nowhere", "cannot read /nowhere"),
    ("source 127.0.0.1:1 --password-file x", "--user <NAME> is required"),
    ("source 127.0.0.1:1 --auth-mechanism plain", "--user <NAME> is required"),
    ("source 127.0.0.1:1 --user ann --auth-mechanism ntlm", "\"ntlm\" is not one of plain, login, cram-md5"),
    ("source 127.0.0.1:1 --password secret", "--password-file FILE|MAILRUN_PASSWORD"),
];

const THRESHOLDS_AND_RESULTS: &[Row] = &[
    ("source 127.0.0.1:1 --threshold accepted.p99", "it has no comparison"),
    ("source 127.0.0.1:1 --threshold acepted.p99<5ms", "did you mean \"accepted\"?"),
    ("source 127.0.0.1:1 --threshold accepted.p99<5", "\"5\" is not a valid time"),
    ("source 127.0.0.1:1 --threshold created.p99<5ms", "say --rate, or ask for sent"),
    ("source 127.0.0.1:1 --threshold rejected<200%", "\"200%\" is more than 100%"),
    ("source 127.0.0.1:1 --abort-on delivered.p99<5ms", "use --threshold"),
    ("source 127.0.0.1:1 --strict=yes", "--strict takes no value"),
    ("source 127.0.0.1:1 --report tiny", "--report: \"tiny\" is not one of short, full, none"),
    ("source 127.0.0.1:1 --quiet --verbose", "--quiet cannot be used together with --verbose"),
    ("source 127.0.0.1:1 --json /nowhere/x", "cannot write /nowhere/x: No such file or directory"),
    ("source 127.0.0.1:1 --ledger /nowhere/x", "cannot write /nowhere/x: No such file or directory"),
    ("source 127.0.0.1:1 --out DIR --ledger x", "--out <DIR> cannot be used together with --ledger"),
    ("bench --json /nowhere/x", "cannot write /nowhere/x: No such file or directory"),
    ("bench --out /dev/null/x", "cannot create the run directory /dev/null/x: Not a directory"),
];

const FAULTS: &[Row] = &[
    ("bench --drop 2", "--drop: \"2\" is not a valid probability; write 2% or 0.02"),
    ("bench --drop 101%", "--drop: \"101%\" is more than 100%"),
    ("bench --drop -1%", "--drop: \"-1%\": must not be negative"),
    ("sink --reject 5", "--reject: \"5\" is not a valid probability; write 5% or 0.05"),
    ("sink --fail often", "--fail: \"often\" is not a valid probability"),
    ("bench --duplicate 1,5%", "--duplicate: \"1,5%\" is not a valid share"),
    ("bench --delay -1", "--delay: \"-1\": must not be negative"),
    ("bench --stall 2s,1s", "--stall: \"2s,1s\": write 2s..3s"),
    ("sink --stall 2s", "--stall: \"2s\" is not a valid interval; use something like 10s..15s"),
    ("sink --stall 3s..2s", "--stall: \"3s..2s\": write the earlier time first"),
    ("sink --fault rcpt:␣soft␣rejct", "\"soft rejct\" is not an action; did you mean \"soft reject\"?"),
    ("sink --fault rctp:␣soft␣reject", "\"rctp\" is not a command of the sink; did you mean \"rcpt\"?"),
    ("sink --fault .:␣stall␣2s,1s", "\"2s,1s\": write 2s..3s"),
    ("sink --fault mail:␣limit␣fast", "\"fast\" is not a valid rate"),
    ("sink --fault rcpt", "write a rule as COMMAND: ACTION"),
    ("sink --rules /nowhere", "cannot read /nowhere: No such file or directory"),
    ("sink --rules DIR/rules.toml", "/rules.toml:2:12: \"soft rejct\" is not an action; did you mean \"soft reject\"?"),
    ("sink --rules DIR/broken.toml", "/broken.toml:1:8: "),
    ("bench 127.0.0.1:1 --drop 1%", "--drop applies to the bench's own sink"),
];

const SINK: &[Row] = &[
    ("sink 127.0.0.1:2525", "unexpected argument \"127.0.0.1:2525\"; write --listen 127.0.0.1:2525"),
    ("sink --listen here", "--listen: \"here\" has no port; use something like 127.0.0.1:2525"),
    ("sink --listen :smtp", "--listen: \":smtp\": the port must be a number"),
    ("sink --listen ::1", "--listen: \"::1\" has no port; write [::1]:25"),
    ("sink --listen nosuch.invalid:25", "--listen: unknown host \"nosuch.invalid\""),
    ("sink --listen 192.0.2.1:2525", "cannot listen on 192.0.2.1:2525: Cannot assign requested address"),
    ("sink --listen 127.0.0.1:0 --http :http", "--http: \":http\": the port must be a number"),
    ("sink --http unix:/x", "--http unix:/x must have the form HOST:PORT"),
    ("sink -m 0", "--max-messages: \"0\": must be more than zero"),
    ("sink --max-sessions 2M", "--max-sessions: \"2M\" is too large; at most 1000000"),
    ("sink --max-message-size 0", "--max-message-size: \"0\": must be more than zero"),
    ("sink --max-line-length -1", "--max-line-length: \"-1\": must be positive"),
    ("sink --max-recipients 1e3", "--max-recipients: \"1e3\": write 1000 or 1k"),
    ("sink --idle-timeout 0", "--idle-timeout: \"0\": must be more than zero"),
    ("sink --hostname=", "--hostname: the name must not be empty"),
    ("sink --dump-dir a --maildir b", "--dump-dir <DIR> cannot be used together with --maildir"),
    ("sink --dump-dir /dev/null/x", "cannot create /dev/null/x: Not a directory"),
    ("sink --tls-write-cert x", "--tls-write-cert requires --tls starttls or --tls implicit"),
    ("sink --auth-required", "--auth-required requires --auth-users FILE or --auth-any"),
    ("sink --auth-users DIR/empty", "contains no users; each line must be name:password"),
    ("sink --threshold rejected<1", "unknown option \"--threshold\" here; mailrun bench, source"),
];

/// Scenario files: the line that is put in place of a line of a file that is right.
const SCENARIO_FILES: &[(&str, &str, &str)] = &[
    ("measure = \"throughput\"", "measure = \"speed\"", ":1:11: \"speed\" is not one of throughput, latency, backlog"),
    ("measure = \"throughput\"", "", "the key \"measure\" is missing"),
    ("parties = [\"mailrun\"]", "parties = []", ":2:11: the list must have at least one value"),
    ("parties = [\"mailrun\"]", "", "the key \"parties\" is missing"),
    ("parties = [\"mailrun\"]", "parties = [\"mailrun\", \"exim\"]", ":2:11: exim is not one of mailrun"),
    ("rounds = 1", "rounds = 1001", ":3:10: \"1001\" is too large; at most 1000"),
    ("rounds = 1", "rounds = \"many\"", ":3:10: \"many\" is not a valid count"),
    ("rounds = 1", "round = 1", ":3:1: unknown key \"round\"; did you mean \"rounds\"?"),
    ("rounds = 1", "order = \"random\"", ":3:9: \"random\" is not one of alternating, fixed"),
    ("rounds = 1", "thresholds = [\"fast\"]", ":3:14: "),
    ("messages = 10", "messages = 0", ":5:12: \"0\": must be more than zero"),
    ("messages = 10", "messages = [10]", ":5:12: invalid type: sequence, expected a number or a text"),
    ("messages = 10", "burst = 10", ":5:1: unknown key \"burst\" here; the keys are messages, "),
    ("message_size = \"1k\"", "message_size = \"3\"", ":6:16: \"3\": the size must be between 300 bytes and 64M"),
    ("[workload]", "[workload", ":4:"),
];

#[test]
fn a_wrong_scenario_file_is_answered_with_one_cause_and_its_place() {
    let right = "measure = \"throughput\"\nparties = [\"mailrun\"]\nrounds = 1\n[workload]\nmessages = 10\n\
                 message_size = \"1k\"\n";
    all_hold(SCENARIO_FILES, |(from, to, said)| {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("my.toml");
        assert!(right.contains(from), "{from}");
        fs::write(&file, right.replace(from, to)).unwrap();
        let ended = mailrun(&["bench", file.to_str().unwrap()]);
        misses(to, &ended, &format!("my.toml:|{said}"))
    });
}

const SCENARIOS: &[Row] = &[
    ("bench --quiet my.toml", "options of my.toml must follow it: write mailrun bench my.toml first"),
    ("bench DIR/rules.toml", "rules.toml:|the key \"measure\" is missing"),
    ("bench --list --quiet", "--list must stand alone"),
    ("scenario show relay-40", "unknown scenario \"relay-40\"; did you mean \"relay-400\"?"),
    ("scenario show fnord", "unknown scenario \"fnord\"; mailrun bench --list lists them"),
    ("bench relay-400 --rounds 0", "--rounds: \"0\": must be more than zero"),
    ("bench relay-400 --rounds 1001", "--rounds: \"1001\" is too large; at most 1000"),
    ("bench relay-400 --messages 1e6", "--messages: \"1e6\": write 1000000 or 1M"),
    ("bench relay-400 --full --messages 5", "--full cannot be used together with --messages"),
    ("bench relay-400 --compare mailrun,exim", "exim is not one of mailrun"),
    ("bench relay-400 127.0.0.1:1", "--sink-listen <HOST:PORT> is required"),
    ("bench relay-latency --steps 101", "--steps: \"101\" is too large; at most 100"),
    ("bench relay-latency --message-size 3", "the size must be between 300 bytes and 64M"),
    ("bench relay-backlog --messages 200M", "--messages: \"200M\" is too large; at most 100000000"),
    ("bench relay-backlog --threshold rejected<1", "this scenario has no runs that a threshold could be asked of"),
    ("bench relay-soak --rate -1", "--rate: \"-1\": must be positive"),
    ("bench sizes --body-sizes 256,1", "--body-sizes: \"1\": the size of a body must be between 2 bytes and 256M"),
    ("bench large-message --costs dot", "--costs: \"dot\" is not one of chunking, dots, short-lines"),
    ("bench --write-size 0", "--write-size: \"0\": must be more than zero"),
    ("bench smtp-source-table --sessions 1,x", "--sessions: \"x\" is not a valid count"),
    ("bench smtp-source-check --recipients 2k", "--recipients: \"2k\" is too large; at most 1000"),
    ("bench relay-latency --size 400", "unknown option \"--size\"; use --message-size"),
    ("bench smtp-source-table --limit 5s", "unknown option \"--limit\"; use --max-time"),
    ("install-links", "<DIR> is required"),
    ("install-links a b", "unexpected argument \"b\""),
    ("install-links /dev/null/x", "cannot create /dev/null/x: Not a directory"),
    ("install-links DIR/taken", "smtp-source exists and is not a symbolic link"),
];

/// Old names and names of other tools, with the commands that answer them, and ours.
const NAMES: &[(&str, &[&str], &str)] = &[
    ("--size", &["source 127.0.0.1:1", "bench"], "--message-size"),
    ("--think", &["source 127.0.0.1:1", "bench"], "--think-time"),
    ("--hello", &["source 127.0.0.1:1", "bench"], "--ehlo"),
    ("--hello", &["sink"], "--hostname"),
    ("--corpus-limit", &["source 127.0.0.1:1", "bench"], "--max-corpus-size"),
    ("--ramp", &["source 127.0.0.1:1", "bench"], "--stage"),
    ("--auth", &["source 127.0.0.1:1", "bench"], "--user"),
    ("--name", &["source 127.0.0.1:1", "bench", "sink"], "--label"),
    ("--proxy", &["source 127.0.0.1:1", "bench", "sink"], "--proxy-protocol"),
    ("--no-relay", &["bench", "bench relay-400"], "--relay none"),
    ("--relay-address", &["bench", "bench relay-400"], "SERVER --sink-listen"),
    ("--tls-insecure", &["source 127.0.0.1:1", "bench"], "--insecure"),
    ("--ca", &["source 127.0.0.1:1", "bench"], "--cacert"),
    ("--sni", &["source 127.0.0.1:1", "bench"], "--tls-name"),
    ("--server-name", &["source 127.0.0.1:1", "bench"], "--tls-name"),
    ("--sessions", &["sink"], "--max-sessions"),
    ("--messages", &["sink"], "--max-messages"),
    ("--message-limit", &["sink"], "--max-message-size"),
    ("--line-limit", &["sink"], "--max-line-length"),
    ("--recipient-limit", &["sink"], "--max-recipients"),
    ("--idle", &["sink"], "--idle-timeout"),
    ("--dump", &["sink"], "--dump-dir"),
    ("--tls-cert-to", &["sink"], "--tls-write-cert"),
    ("--loss", &["sink", "bench"], "--drop"),
    ("--corruption", &["sink", "bench"], "--corrupt"),
    ("--error", &["sink", "bench"], "--reject"),
    ("--failure", &["sink", "bench"], "--fail"),
    ("--connections", &["source 127.0.0.1:1", "bench"], "--sessions"),
    ("--concurrency", &["source 127.0.0.1:1", "bench"], "--sessions"),
    ("--vus", &["source 127.0.0.1:1", "bench"], "--sessions"),
    ("--requests", &["source 127.0.0.1:1"], "--messages"),
    ("--iterations", &["source 127.0.0.1:1"], "--messages"),
    ("-z", &["source 127.0.0.1:1", "bench"], "--duration"),
    ("-k", &["source 127.0.0.1:1", "bench"], "--insecure"),
    ("--helo", &["source 127.0.0.1:1", "bench"], "--ehlo"),
    ("-t", &["source 127.0.0.1:1", "bench"], "--to"),
    ("-f", &["source 127.0.0.1:1", "bench"], "--from"),
    ("-r", &["source 127.0.0.1:1"], "--recipients"),
    ("-S", &["source 127.0.0.1:1"], "--subject"),
    ("-L", &["source 127.0.0.1:1", "sink"], "--lmtp"),
    ("-M", &["source 127.0.0.1:1"], "--ehlo"),
    ("-w", &["source 127.0.0.1:1"], "--think-time"),
    ("--body", &["source 127.0.0.1:1", "bench"], "--file MESSAGE.EML"),
    ("--header", &["source 127.0.0.1:1"], "--file MESSAGE.EML"),
    ("-o", &["source 127.0.0.1:1", "bench", "sink"], "--out"),
    ("--server", &["source 127.0.0.1:1", "bench"], "SERVER"),
    ("--port", &["source 127.0.0.1:1", "bench"], "HOST:PORT as SERVER"),
    ("--port", &["sink"], "--listen HOST:PORT"),
    ("--tls-on-connect", &["source 127.0.0.1:1", "bench"], "--tls implicit"),
    ("-tlsc", &["source 127.0.0.1:1"], "--tls implicit"),
    ("-tls", &["source 127.0.0.1:1"], "--tls starttls"),
    ("--starttls", &["source 127.0.0.1:1"], "--tls starttls"),
    ("-au", &["source 127.0.0.1:1", "bench"], "--user"),
    ("-ap", &["source 127.0.0.1:1"], "MAILRUN_PASSWORD"),
    ("--auth-user", &["source 127.0.0.1:1"], "--user"),
    ("--auth-password", &["source 127.0.0.1:1"], "MAILRUN_PASSWORD"),
    ("--protocol", &["source 127.0.0.1:1"], "--lmtp"),
    ("--threads", &["source 127.0.0.1:1", "bench"], "--workers"),
    ("--keepalive", &["source 127.0.0.1:1", "bench"], "--reuse"),
    ("--local-interface", &["source 127.0.0.1:1"], "--bind"),
    ("--rps", &["source 127.0.0.1:1"], "--rate"),
    ("--mail-from", &["source 127.0.0.1:1"], "--from"),
    ("--rcpt-to", &["source 127.0.0.1:1"], "--to"),
    ("--sink", &["source 127.0.0.1:1"], "mailrun bench, merge, compare and capacity have it"),
    ("--drop", &["source 127.0.0.1:1"], "mailrun bench, sink"),
    ("--sessoins", &["bench"], "did you mean \"--sessions\"?"),
    ("--frobnicate", &["bench", "source 127.0.0.1:1", "sink", "install-links"], "unknown option \"--frobnicate\""),
];

/// Wrong inputs of the drop-ins: what is typed, the status, and what is said, in the words of the originals.
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

/// Files that rows name.
fn files(place: &Path) {
    fs::write(place.join("empty"), "\n").unwrap();
    fs::write(place.join("marked"), "\u{feff}Subject: x\n").unwrap();
    fs::write(place.join("rules.toml"), "rules = [\n    'rcpt: soft rejct',\n]\n").unwrap();
    fs::write(place.join("broken.toml"), "seed = x\n").unwrap();
    fs::create_dir(place.join("taken")).unwrap();
    fs::write(place.join("taken/smtp-source"), "a tool").unwrap();
}

fn run_row(line: &str, place: &Path) -> Ended {
    let place = place.to_str().unwrap();
    let words: Vec<String> = line.split(' ').map(|word| word.replace('␣', " ").replace("DIR", place)).collect();
    mailrun(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

/// What is wrong with the end of a command that could not run.
fn misses(line: &str, ended: &Ended, pieces: &str) -> Option<String> {
    let is_right = is_refusal(ended, pieces.split('|'));
    (!is_right).then(|| format!("{line}\n    {ended:?}\n    is to contain: {pieces}"))
}

#[test]
fn a_wrong_input_is_answered_with_one_cause() {
    let place = tempfile::tempdir().unwrap();
    files(place.path());
    let tables = [SERVERS, NUMBERS, MAIL, TLS_AND_LOGIN, THRESHOLDS_AND_RESULTS, FAULTS, SINK, SCENARIOS];
    let rows = tables.concat();
    assert!(rows.len() >= 150, "{} rows", rows.len());
    // On a busy host the progress of a start may come before the error of a party.
    all_hold(&rows, |(line, pieces)| {
        let look = || misses(line, &run_row(line, place.path()), pieces);
        look().and_then(|_| look()).and_then(|_| look())
    });
}

#[test]
fn an_option_of_another_name_is_answered_with_ours() {
    let place = tempfile::tempdir().unwrap();
    let rows: Vec<(String, &str)> = NAMES
        .iter()
        .flat_map(|(typed, commands, ours)| commands.iter().map(move |command| (format!("{command} {typed} 5"), *ours)))
        .collect();
    all_hold(&rows, |(line, ours)| {
        let ended = run_row(line, place.path());
        let is_named = ended.err.contains("unknown option");
        misses(line, &ended, ours).or_else(|| (!is_named).then(|| format!("{line}\n    {ended:?}")))
    });
}

#[test]
fn a_wrong_input_of_a_drop_in_is_answered_as_by_the_original() {
    let place = tempfile::tempdir().unwrap();
    all_hold(DROP_INS, |(line, code, pieces)| {
        let ended = run_row(line, place.path());
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
