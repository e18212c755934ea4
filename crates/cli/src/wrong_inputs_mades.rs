//! Tests of wrong inputs to the MADES commands, with words that the one-line answer must contain.
//!
//! Blanks separate the words of a command line. `~` stands for a blank within a word, and `{}` for
//! a directory with the files of [`FILES`].
use super::wrong_inputs::assert_refused;
use std::fs;

/// Names and contents of the files that rows name.
const FILES: [(&str, &str); 7] = [
    ("password", "secret\n"),
    ("payload.xml", "<a/>\n"),
    ("mode.toml", "mode = 'endpont'\n"),
    ("key.toml", "seed = 1\nlisten = 'x'\n"),
    ("grammar.toml", "seed = \n"),
    ("times.toml", "receive = 'file:/nowhere/times'\n"),
    ("work.toml", "[accept.capacity]\nwork = '20ms'\n"),
];

/// A command line, and words that its answer must contain.
type Row = (&'static str, &'static [&'static str]);

const MADES: &[Row] = &[
    ("--outbox-url amqp://127.0.0.1", &["\"--outbox-url\"", "use --broker"]),
    ("--outbox-url=amqp://u:secret@127.0.0.1", &["use --broker"]),
    ("--inbox-url amqp://127.0.0.1", &["use --inbox-broker"]),
    ("--size 10", &["use --payload-size"]),
    ("--message-size 10", &["use --payload-size"]),
    ("--timeout 5s", &["use --message-timeout"]),
    ("--ca f", &["use --cacert"]),
    ("--cert f", &["use --tls-cert"]),
    ("--key f", &["use --tls-key"]),
    ("--server-name x", &["use --tls-name"]),
    ("--sni x", &["use --tls-name"]),
    ("--sasl PLAIN", &["use --auth-mechanism"]),
    ("--auth u", &["use --user"]),
    ("--password secret", &["--password-file", "MAILRUN_PASSWORD"]),
    ("--password=secret", &["--password-file", "MAILRUN_PASSWORD"]),
    ("--inbox-password secret", &["--inbox-password-file", "MAILRUN_INBOX_PASSWORD"]),
    ("--tls starttls", &["--tls", "amqps://"]),
    ("-s 5", &["no sessions", "--max-in-transit"]),
    ("-c 5", &["no sessions", "--max-in-transit"]),
    ("--sessions 5", &["no sessions", "--max-in-transit"]),
    ("--concurrency 5", &["no sessions", "--max-in-transit"]),
    ("--to a@b.example", &["--receiver"]),
    ("--payloadsize 5", &["did you mean \"--payload-size\"?"]),
    ("--frobnicate", &["unknown option \"--frobnicate\""]),
    ("amqp://u:secret@127.0.0.1", &["--broker URL"]),
    ("127.0.0.1:5672", &["--broker URL"]),
    ("--broker http://127.0.0.1", &["--broker", "amqp:// or amqps://"]),
    ("--broker 127.0.0.1", &["--broker", "amqp://user:password@host:5672"]),
    ("--broker amqp://127.0.0.1:99999", &["--broker", "not a broker URL"]),
    ("--broker amqp://127.0.0.1/queue", &["--broker", "must end after the port"]),
    ("--broker amqp://:secret@127.0.0.1", &["--broker", "password but no user"]),
    ("--broker amqp://8.8.8.8", &["8.8.8.8 is a public address", "--allow-public"]),
    ("--inbox-broker amqp://8.8.8.8", &["8.8.8.8 is a public address", "--allow-public"]),
    ("--broker amqp://127.0.0.1:1", &["nothing listens at 127.0.0.1:1"]),
    ("--messages 0", &["--messages", "\"0\""]),
    ("-n many", &["--messages", "\"many\""]),
    ("-m -1", &["-1"]),
    ("-d 0s", &["--duration", "more than zero"]),
    ("-d 10x", &["--duration", "\"10x\" is not a valid time"]),
    ("-l 3G", &["--payload-size", "2G"]),
    ("-l big", &["--payload-size", "\"big\""]),
    ("--rate 0", &["--rate", "\"0\""]),
    ("--rate fast", &["--rate", "\"fast\""]),
    ("--stage 10s", &["--stage", "\"10s\""]),
    ("--stage 1s:0/s", &["--stage", "no messages"]),
    ("--rate 5 --stage 1s:5/s", &["--rate", "--stage", "cannot be used"]),
    ("--arrival poisson", &["--arrival has no effect without --rate or --stage"]),
    ("--payload /nowhere/at/all", &["/nowhere/at/all", "No such file"]),
    ("--payload {}/payload.xml -l 10", &["--payload-size has no effect", "FILE"]),
    ("--mode endpont", &["--mode", "did you mean \"endpoint\"?"]),
    ("--mode smtp", &["--mode", "endpoint, toolbox, amqp, tracing"]),
    ("--max-in-transit 0", &["--max-in-transit", "\"0\""]),
    ("--max-unsettled 0", &["--max-unsettled", "\"0\""]),
    ("--credit none", &["--credit", "\"none\""]),
    ("--message-timeout 0s", &["--message-timeout", "more than zero"]),
    ("--durable=maybe", &["--durable", "true, false"]),
    ("--threshold delivered.p99", &["--threshold", "delivered.p99"]),
    ("--mode tracing --threshold inbox.p99<1s", &["mode tracing has no such stage", "replied"]),
    ("--abort-on inbox.count>5", &["--abort-on", "use --threshold"]),
    ("--user u --password-file /nowhere/at/all", &["/nowhere/at/all: No such file or directory"]),
    ("--user u", &["the user u requires a password", "--password-file"]),
    ("--password-file {}/password", &["--password-file has no effect without a user"]),
    ("--inbox-password-file {}/password", &["--inbox-password-file has no effect without"]),
    ("--user a --broker amqp://b@127.0.0.1", &["--user has no effect", "--broker names the user b"]),
    ("--cacert {}/payload.xml", &["--cacert has no effect without TLS", "amqps://"]),
    ("--insecure", &["--insecure has no effect without TLS", "amqps://"]),
    ("--tls-name a --insecure", &["--insecure and --tls-name have no effect without TLS", "amqps://"]),
    ("--tls-cert a", &["--tls-key <FILE> is required"]),
    ("--broker amqps://127.0.0.1 --cacert /nowhere/ca", &["/nowhere/ca"]),
    ("--broker amqps://127.0.0.1 --cacert a --insecure", &["cannot be used together"]),
    ("--auth-mechanism KERBEROS", &["--auth-mechanism", "KERBEROS"]),
    ("--mode amqp --outbox x", &["--outbox has no effect in mode amqp"]),
    ("--mode toolbox --send-event x", &["--send-event has no effect in mode toolbox"]),
    ("--mode tracing --inbox-broker amqp://127.0.0.1", &["--inbox-broker has no effect in mode tracing"]),
    ("--out /dev/null/x", &["/dev/null/x"]),
    ("--json /dev/null/x", &["cannot write /dev/null/x"]),
    ("--seed -1", &["-1"]),
    ("--shape every~24h -d 1ms", &["no message is due within 0.001 s"]),
];

const ENDPOINT: &[Row] = &[
    ("", &["--embedded or --broker <URL> is required"]),
    ("--embedded --broker amqp://127.0.0.1", &["cannot be used together"]),
    ("--embedded --password secret", &["--password-file", "MAILRUN_PASSWORD"]),
    ("--embedded --tls implicit", &["--tls-cert and --tls-key"]),
    ("--embedded --drop 2", &["--drop", "\"2\""]),
    ("--embedded --drop 101%", &["--drop", "\"101%\""]),
    ("--embedded --corrupt some", &["--corrupt", "\"some\""]),
    ("--embedded --network-delay exp:x", &["--network-delay", "not a valid time"]),
    ("--embedded --network-delay uniform:1s", &["\"uniform\" is not a distribution"]),
    ("--embedded --receive-delay file:/nowhere/times", &["/nowhere/times: No such file or directory"]),
    ("--embedded --outage C.down~1s..2s", &["--outage", "not a valid outage"]),
    ("--embedded --outage A.down~5s", &["--outage", "10s..15s"]),
    ("--embedded --preset ecp-2020", &["--preset", "did you mean \"ecp-2022\"?"]),
    ("--embedded --plan /nowhere/plan", &["/nowhere/plan: No such file or directory"]),
    ("--embedded --plan {}/mode.toml", &["mode.toml:1:8: ", "did you mean \"endpoint\"?"]),
    ("--embedded --plan {}/key.toml", &["key.toml:2:1: unknown key \"listen\"; known keys: mode"]),
    ("--embedded --plan {}/grammar.toml", &["grammar.toml:1:", "not valid TOML"]),
    ("--embedded --plan {}/times.toml", &["/nowhere/times: No such file or directory"]),
    ("--embedded --plan {}/work.toml", &["accept: work requires workers"]),
    ("--embedded --listen 127.0.0.1", &["--listen", "has no port"]),
    ("--embedded --listen 127.0.0.1:amqp", &["--listen", "port must be a number"]),
    ("--embedded --listen 8.8.8.8:1", &["public address", "--allow-public"]),
    ("--broker amqp://127.0.0.1 --listen 127.0.0.1:0", &["--listen has no effect without --embedded"]),
    ("--broker amqp://127.0.0.1 --max-queue-messages 5", &["--max-queue-messages has no effect without --embedded"]),
    ("--broker amqp://127.0.0.1 --max-queue-size 5k", &["--max-queue-size has no effect without --embedded"]),
    ("--broker amqp://127.0.0.1 --received-on consume", &["received-on consume requires --embedded"]),
    ("--broker amqp://127.0.0.1 --tls-name a", &["--tls-name has no effect without TLS", "amqps://"]),
    ("--broker http://127.0.0.1", &["--broker", "amqp:// or amqps://"]),
    ("--broker amqp://127.0.0.1:1", &["nothing listens at 127.0.0.1:1"]),
    ("--embedded --inbox-broker amqp://127.0.0.1", &["--inbox-broker has no effect without --broker"]),
    ("--embedded --cacert f", &["--cacert has no effect without --broker"]),
    ("--embedded --insecure", &["--insecure has no effect without --broker"]),
    ("--embedded --tls-name a", &["--tls-name has no effect without --broker"]),
    ("--embedded --auth-mechanism PLAIN", &["--auth-mechanism has no effect without --broker"]),
    ("--embedded --user u", &["--user", "--password-file"]),
    ("--embedded --password-file {}/password", &["--password-file has no effect without", "--user"]),
    ("--embedded --go-mades-bench-compat", &["--go-mades-bench-compat has no effect without --mode tracing"]),
    ("--embedded --reject-code E-1", &["--reject-code has no effect without --reject"]),
    ("--embedded --reject-message no", &["--reject-message has no effect without --reject"]),
    ("--embedded --reorder-by 5ms", &["--reorder-by has no effect without --reorder"]),
    ("--embedded --accept-workers 3", &["--accept-workers has no effect without --accept-work"]),
    ("--embedded --accept-work 3ms", &["--accept-work has no effect without --accept-workers"]),
    ("--embedded --mode toolbox --receive-delay 5ms", &["--receive-delay has no effect in mode toolbox"]),
    ("--embedded --mode tracing --duplicate 5%", &["--duplicate has no effect in mode tracing"]),
    ("--embedded --mode toolbox --send-event x", &["--send-event has no effect in mode toolbox"]),
    ("--embedded --mode amqp", &["--mode", "endpoint, toolbox, tracing"]),
    ("--embedded --tls-cert /nowhere/c --tls-key /nowhere/k", &["/nowhere/"]),
    ("--embedded --log-messages /dev/null/x", &["cannot write /dev/null/x: Not a directory"]),
    ("--embedded --summary /dev/null/x", &["cannot write /dev/null/x: Not a directory"]),
];

const BENCH: &[Row] = &[
    ("--timeout 5s", &["use --message-timeout"]),
    ("--broker amqp://127.0.0.1", &["mailrun mades --broker URL"]),
    ("--tls starttls", &["--tls"]),
    ("-s 5", &["--max-in-transit"]),
    ("--drop 1..2", &["--drop", "\"1..2\""]),
    ("--mode amqp --drop 1%", &["--drop has no effect in mode amqp"]),
    ("--mode amqp --network-delay 5ms", &["--network-delay has no effect in mode amqp"]),
    ("--mode amqp --preset ideal", &["--preset has no effect in mode amqp"]),
    ("--plan {}/mode.toml", &["mode.toml:1:8: ", "did you mean \"endpoint\"?"]),
    ("--reject-code E-1", &["--reject-code has no effect without --reject"]),
    ("--arrival poisson -m 5 --max-in-transit 5", &["--arrival has no effect without --rate or --stage"]),
    ("--seed 18446744073709551615", &["--seed"]),
    ("--out /dev/null/x", &["/dev/null/x"]),
    ("--shape tides", &["is not a shape; use quarter-hour"]),
    ("--shape every~7m", &["does not divide a day"]),
    ("--shape every~10s --rate 5", &["cannot be used together with"]),
    ("--shape every~10s --stage 1s:5/s", &["cannot be used together with"]),
    ("--shape every~10s --payload-size 5k", &["cannot be used together with"]),
    ("--shape every~10s;~tracing.p99~<~1s", &["mode endpoint has no such stage"]),
    ("--accelerate 60", &["--shape"]),
    ("--time-zone UTC", &["--shape"]),
    ("--shape every~10s --time-zone Europe/Atlantis", &["use something like Europe/Oslo"]),
    ("--shape every~10s --accelerate 1001", &["1..=1000"]),
];

const COMPARE: &[Row] = &[
    ("--size 5", &["use --payload-size"]),
    ("--ca f", &["use --cacert"]),
    ("--password p", &["--password-file", "MAILRUN_PASSWORD"]),
    ("--drop 10%", &["--drop has no effect in mode amqp"]),
    ("--broker amqp://8.8.8.8", &["public address", "--allow-public"]),
    ("--broker foo://127.0.0.1", &["--broker", "amqp:// or amqps://"]),
    ("--user u", &["--user has no effect without --broker"]),
    ("--password-file f", &["--password-file has no effect without --broker"]),
    ("--cacert f", &["--cacert has no effect without --broker"]),
    ("--broker amqp://127.0.0.1 --cacert f", &["--cacert has no effect without TLS", "amqps://"]),
    ("--windows 0", &["--windows", "\"0\""]),
    ("--windows defaults --max-in-transit 5", &["--max-in-transit has no effect"]),
    ("--rounds 0", &["--rounds"]),
    ("--json f", &["--json"]),
    ("--threshold delivered.p99<1s", &["no runs that a threshold could be asked of"]),
];

#[test]
fn each_wrong_input_has_its_line() {
    let place = tempfile::tempdir().unwrap();
    for (name, text) in FILES {
        fs::write(place.path().join(name), text).unwrap();
    }
    let directory = place.path().to_str().unwrap();
    let commands = [
        (&["mades"][..], MADES),
        (&["mades-endpoint"], ENDPOINT),
        (&["bench", "mades"], BENCH),
        (&["bench", "mades-compare"], COMPARE),
    ];
    for (command, rows) in commands {
        let words = |typed: &str| {
            let typed = typed.split_whitespace().map(|word| word.replace('~', " ").replace("{}", directory));
            command.iter().map(|word| (*word).to_owned()).chain(typed).collect()
        };
        assert_refused(rows.iter().map(|(typed, pieces)| (words(typed), pieces.to_vec())));
    }
}
