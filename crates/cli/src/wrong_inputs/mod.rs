//! Tests that bench and its scenarios, source, sink, capacity, compare and install-links refuse wrong options, values
//! and files. Each command line must be refused before any load is sent, with one line that names the cause and what to
//! type.
mod mades;
mod relay;

use crate::Cli;
use crate::help::misuse;
use crate::report::messages::failure;
use crate::run;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

/// Returns the error that `mailrun` prints for a command line, without starting a process. If the
/// command line is accepted by mistake, the command runs inside the test, and the test then fails.
pub(crate) fn refusal(words: &[String]) -> String {
    let words: Vec<OsString> =
        std::iter::once("mailrun").chain(words.iter().map(String::as_str)).map(OsString::from).collect();
    match Cli::parse_words(&words) {
        Err(error) => format!("mailrun: {}\n", misuse::sentence(&error, &words, &Cli::all_commands())),
        Ok(cli) => run(cli.command).map_or_else(|error| failure(&error), |_| "it ran".to_owned()),
    }
}

/// Returns true if the text is one line that contains all of `words`, but no error number (`os error`) and no
/// password.
pub(crate) fn is_refusal<'a>(text: &str, words: impl IntoIterator<Item = &'a str>) -> bool {
    let is_line = text.starts_with("mailrun: ") && text.lines().count() == 1;
    let is_plain = ["os error", "mailrun: :", "secret@"].iter().all(|odd| !text.contains(odd));
    is_line && is_plain && words.into_iter().all(|words| text.contains(words))
}

pub(crate) fn assert_refused<'a>(rows: impl IntoIterator<Item = (Vec<String>, Vec<&'a str>)>) {
    let mut faults = Vec::new();
    for (typed, words) in rows {
        let text = refusal(&typed);
        if !is_refusal(&text, words.iter().copied()) {
            faults.push(format!("{}\n    {text:?}\n    is to contain: {words:?}", typed.join(" ")));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// A command line, and the texts that its error message must contain, separated by `|`. Blanks separate the words of
/// the command line, and `␣` stands for a blank within a word. `DIR` stands for a directory with the files of
/// [`files`], and `AT` for a `--start-at` option with a time.
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
    ("bench postfix", "unknown host \"postfix\"; a server that mailrun starts is --relay postfix"),
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
    ("bench --relay none --sink-cpus 1023", "mailrun: --sink-cpus: processor 1023 is not available; available: "),
    ("bench --relay none --relay-cpus 0", "--relay-cpus requires a relay that mailrun starts"),
    ("bench 127.0.0.1:1 --sink-cpus 0", "--sink-cpus requires the bench's own sink"),
    ("bench --relay qmail", "qmail is not one of mailrun|{to}"),
    ("bench --relay mailrun:never", "never is not one of sync, write, memory"),
    ("source nonsense", "nonsense"),
    ("source 127.0.0.1:99999", "99999"),
    ("source unix:/nowhere --bind 127.0.0.2", "--bind has IPv4 addresses"),
    ("source [2606:4700::1111]:25", "public address"),
    ("bench 172.32.0.1:25", "public address"),
    ("bench --mailbox maildir:/a", "--mailbox requires the server that delivers to it"),
    ("sink --mailbox http://a@b", "a mailbox begins with imap://"),
    ("sink --mailbox maildir:/a --expunge", "--expunge deletes only mail of one run"),
    ("sink --mailbox maildir:/a --listen 127.0.0.1:0", "--listen|--mailbox"),
    ("sink --mailbox maildir:/a --fault drop", "is no server"),
    ("sink --mailbox maildir:/a --proxy-protocol", "is no server"),
    ("sink --mailbox maildir:/a --xclient", "is no server"),
    ("sink --rules-like yaho", "unknown receiver \"yaho\"; did you mean \"yahoo\"?"),
    ("sink --rules-like gmail --rules FILE", "--rules-like|--rules"),
    ("sink --whole", "--whole requires --mailbox"),
    ("bench --poll 1s", "--poll requires mailboxes: --mailbox URL, or a --relay"),
    ("bench --relay dovecot --to ann@a", "--to cannot be used with --relay dovecot"),
    ("bench --relay dovecot --fault drop", "dovecot delivers to mailboxes"),
    ("audit dovecot", "dovecot delivers to mailboxes"),
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
    ("bench --rate fast", "\"fast\" is not a valid rate; use something like 500, 500/s, 500/m, 30k/h or 1/10s"),
    ("bench --rate 20M", "--rate: \"20M\" is too large; at most 10M/s"),
    ("bench --rate 1e3", "--rate: \"1e3\": write 1000"),
    ("bench --stage 10s", "--stage: \"10s\" is not a valid stage; use something like 10s:100/s"),
    ("bench --stage 10s:fast", "\"fast\" is not a valid rate"),
    ("bench --stage 10s:0/s", "these stages offer no messages"),
    ("bench --stage a=5s:5/s --stage a=5s:9/s", "two stages are named a: give each a name of its own"),
    ("bench --stage 5=5s:5/s", "\"5\" is not a name of a stage"),
    ("bench --threshold stage␣peak:␣accepted.p99<1s", "the load has no stages: use --stage peak=TIME:RATE"),
    ("bench --stage a=5s:5/s --stage 5s:5/s --threshold stage␣b:␣lost<=0", "the load has no stage b; it has a and 2"),
    (
        "source 127.0.0.1:1 --stage a=5s:5/s --abort-on stage␣a:␣accepted.p99<1s",
        "only at the end of the run; use --threshold",
    ),
    ("capacity 127.0.0.1:1 --goal stage␣a:␣accepted.p99<1s", "a goal is a percentile, max or within()"),
    ("mades --threshold stage␣a:␣settled.p99<1s", "over MADES stages of the load have no figures"),
    ("bench --stage 10s:5/s --rate 5", "--stage <TIME:RATE> cannot be used together with --rate"),
    ("bench -- --arrival poisson", "--arrival requires --rate or --stage"),
    ("bench --rate 5 -- --arrival weekly", "--arrival: \"weekly\" is not one of constant, poisson"),
    ("source 127.0.0.1:1 --warm-up 10s --duration 5s", "--warm-up 10s leaves nothing of 5s to measure"),
    ("bench --warm-up 10s --duration 5s", "--warm-up 10s leaves nothing of 5s to measure"),
    ("bench --rate 10 --messages 100 --warm-up 100s", "--warm-up 100s leaves nothing of 10s to measure"),
    ("bench extra", "extra"),
    ("bench --messages many", "many"),
    ("bench --messages 1 --messages 2", "--messages"),
    ("bench --sessions 0", "0"),
    ("bench --sessions 2000000", "2000000"),
    ("bench --message-size 5x", "5x"),
    ("bench --rate nan", "nan"),
    ("bench -- --arrival weekly", "weekly"),
    ("bench --pipelining fast", "fast"),
    ("bench --reuse five", "unknown host \"five\""),
    ("bench --duration 0s", "0s"),
    ("bench --duration soon", "soon"),
    ("bench --fault stall␣2s", "2s"),
    ("bench 127.0.0.1:1 --fault drop", "--fault"),
    ("bench 127.0.0.1:1 --relay postfix", "--relay"),
    ("bench --relay postfix --tls starttls", "--tls"),
    ("bench relay-64k --compare mailrun,postfix --relay none", "--relay"),
    ("bench relay-64k --full --messages 5", "--messages"),
    ("bench --insecure", "--insecure requires --tls"),
];

const MAIL: &[Row] = &[
    ("bench --to a@b --to c@d --recipients 2", "--recipients counts copies of one --to pattern"),
    ("bench --to u{0..9@b", "has an unpaired \"{\"; write a literal brace twice"),
    ("bench --to u{9..0}@b", "write the smaller value first"),
    ("source 127.0.0.1:1 --to=", "a message must have a recipient"),
    ("bench --from a␣b␣c", "--from: \"a b c\""),
    ("bench --from <x", "--from: \"<x\""),
    ("bench --corpus x --mime", "--corpus <PATH> cannot be used together with --mime"),
    ("bench --corpus-skip-bad", "--corpus <PATH> is required"),
    ("bench -- --max-corpus-size 1G", "--corpus <PATH> is required"),
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
    ("source 127.0.0.1:1 --cacert ca.pem", "--cacert requires --tls"),
    ("source 127.0.0.1:1 --ehlo a\r\nNOOP", "--ehlo"),
    ("source 127.0.0.1:1 --binarymime --reuse", "--chunking"),
    ("source 127.0.0.1:1 --bind 192.0.2.1", "--bind"),
    ("source 127.0.0.1:1 --subject a\r\nBcc:␣all@example.com", "--subject"),
    ("source 127.0.0.1:1 --from a␣b␣c", "a b c"),
    ("source 127.0.0.1:1 --to <x>", "<x>"),
    ("source 127.0.0.1:1 --message-size 0", "\"0\""),
    ("source 127.0.0.1:1 --arrival poisson", "--rate or --stage"),
    ("source 127.0.0.1:1 --dsn-notify never,success", "must be never, or"),
    ("bench --messages 5 -- --dsn-notify never,success", "must be never, or"),
    ("source 127.0.0.1:1 --dsn-notify failure,failure", "must be never, or"),
    ("bench --messages 5 -- --dsn-notify failure,failure", "must be never, or"),
    ("source 127.0.0.1:1 --dsn-ret half", "half"),
    ("bench --messages 5 -- --dsn-ret half", "half"),
    ("source 127.0.0.1:1 --dsn-envid grün", "1 to 100"),
    ("bench --messages 5 -- --dsn-envid grün", "1 to 100"),
    ("source 127.0.0.1:1 --message-size 9..4", "smaller value first"),
    ("source 127.0.0.1:1 --message-size 10..400", "is too small"),
    ("source 127.0.0.1:1 --message-size 400:0", "weight"),
    ("bench --messages 5 --message-size 400:0", "weight"),
    ("source 127.0.0.1:1 --message-size lognormal:4k", "lognormal"),
    ("source 127.0.0.1:1 --message-size 1..3G", "2G"),
    ("bench --messages 5 --message-size 1..3G", "2G"),
    ("source 127.0.0.1:1 --corpus /nowhere/at/all", "/nowhere/at/all"),
    ("source 127.0.0.1:1 --corpus /dev/null", "/dev/null"),
    ("source 127.0.0.1:1 --corpus x --message-size 400", "--message-size"),
    ("bench --messages 5 --corpus x --message-size 400", "--message-size"),
    ("source 127.0.0.1:1 --corpus x --mime", "--mime"),
    ("source 127.0.0.1:1 --corpus-skip-bad", "--corpus"),
    ("source 127.0.0.1:1 --max-corpus-size 1G", "--corpus"),
    ("source 127.0.0.1:1 --to u{0..9@b", "has an unpaired"),
    ("source 127.0.0.1:1 --to u{9..0}@b", "smaller value first"),
    ("bench --messages 5 --to=", "a message must have a recipient"),
    ("source 127.0.0.1:1 --to a@b --to c@d --recipients 2", "--recipients counts copies of one --to pattern"),
    (
        "source 127.0.0.1:1 --to a@b --recipients 2",
        "use a pattern such as --to 'user{0..1}@b', or add --tag-recipients",
    ),
    (
        "bench --messages 5 --to a@b --recipients 2",
        "use a pattern such as --to 'user{0..1}@b', or add --tag-recipients",
    ),
    ("source 127.0.0.1:1 --to a@b --to A@b", "a message cannot go to one address twice"),
    ("bench --messages 5 --to a@b --to A@b", "a message cannot go to one address twice"),
    ("source 127.0.0.1:1 --from u@{a:x,b}", "weight"),
    ("bench --messages 5 --from u@{a:x,b}", "weight"),
    ("source 127.0.0.1:1 --recipients 0..5", "must be more than zero"),
    ("bench --messages 5 --recipients 0..5", "must be more than zero"),
    ("source 127.0.0.1:1 --reuse=0..5", "must be more than zero"),
    ("bench --messages 5 --reuse=0..5", "must be more than zero"),
    ("source 127.0.0.1:1 --think-time soon", "soon"),
    ("bench --messages 5 --think-time soon", "soon"),
    ("source 127.0.0.1:1 --stage 10s", "10s:100/s"),
    ("source 127.0.0.1:1 --stage 10s:0/s", "offer no messages"),
    ("source 127.0.0.1:1 --stage 10s:5/s --rate 5", "--rate"),
    ("source 127.0.0.1:1 --warm-up 0s", "0s"),
    ("bench --messages 5 --warm-up 0s", "0s"),
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
    ("source 127.0.0.1:1 --json /dev/null/x", "cannot write /dev/null/x: Not a directory"),
    ("source 127.0.0.1:1 --ledger /dev/null/x", "cannot write /dev/null/x: Not a directory"),
    ("source 127.0.0.1:1 --out DIR --ledger x", "--out <DIR> cannot be used together with --ledger"),
    ("bench --json /dev/null/x", "cannot write /dev/null/x: Not a directory"),
    ("bench --out /dev/null/x", "cannot create the run directory /dev/null/x: Not a directory"),
    ("bench --threshold notified.p99<1s", "unknown stage, phase or fate"),
    ("source 127.0.0.1:1 --threshold notified.p99<1s", "unknown stage, phase or fate"),
    ("bench --threshold rcpt.rate>5/s", "only stages have a rate"),
    ("source 127.0.0.1:1 --threshold rcpt.rate>5/s", "only stages have a rate"),
    ("bench --threshold created.p99<1s", "in a closed loop a message is due when it is created"),
    ("source 127.0.0.1:1 --threshold created.p99<1s", "in a closed loop a message is due when it is created"),
    ("bench --abort-on created.within(1s)>5%", "in a closed loop a message is due when it is created"),
    ("source 127.0.0.1:1 --abort-on created.within(1s)>5%", "in a closed loop a message is due when it is created"),
    ("bench mades --threshold connect.p99<1s", "unknown stage, phase or fate"),
    ("mades --threshold connect.p99<1s", "unknown stage, phase or fate"),
    ("bench mades --threshold recieved-event.p99<1s", "did you mean \"received-event\"?"),
    ("mades --threshold recieved-event.p99<1s", "did you mean \"received-event\"?"),
    ("bench mades --abort-on inbox.count>5", "use --threshold"),
    ("mades --abort-on inbox.count>5", "use --threshold"),
    ("bench mades --max-in-transit 5 --threshold created.p99<1s", "closed loop"),
    ("bench backlog --relay none", "a backlog needs a relay"),
    ("bench backlog --compare mailrun,none", "a backlog needs a relay"),
    ("bench backlog --receiver like:yaho", "did you mean \"yahoo\"?"),
    ("bench backlog --relay mailrun:memory", "so that the restart would lose it"),
    ("bench backlog --threshold delivered.p99<1s", "no runs that a threshold could be asked of"),
    ("bench smtp-source-table --threshold delivered.p99<1s", "no runs that a threshold could be asked of"),
    ("bench smtp-source-table --threshold delivered.p99<1s", "no runs that a threshold could be asked of"),
    ("bench mades-compare --threshold delivered.p99<1s", "no runs that a threshold could be asked of"),
    (
        "bench mades --mode endpoint --rate 100 --threshold tracing.p99<5s",
        "mode endpoint has no such stage; it has created, sent, settled",
    ),
    (
        "bench mades --mode toolbox --rate 100 --threshold delivered-event.p99<5s",
        "mode toolbox has no such stage; it has created, sent, settled",
    ),
    (
        "bench mades --mode toolbox --rate 100 --threshold received-event.p99<5s",
        "mode toolbox has no such stage; it has created, sent, settled",
    ),
    (
        "bench mades --mode toolbox --rate 100 --threshold tracing.p99<5s",
        "mode toolbox has no such stage; it has created, sent, settled",
    ),
    (
        "bench mades --mode amqp --rate 100 --threshold notified.p99<5s",
        "mode amqp has no such stage; it has created, sent, settled",
    ),
    (
        "bench mades --mode amqp --rate 100 --threshold replied.p99<5s",
        "mode amqp has no such stage; it has created, sent, settled",
    ),
    (
        "bench mades --mode amqp --rate 100 --threshold delivered-event.p99<5s",
        "mode amqp has no such stage; it has created, sent, settled",
    ),
    (
        "bench mades --mode amqp --rate 100 --threshold received-event.p99<5s",
        "mode amqp has no such stage; it has created, sent, settled",
    ),
    (
        "bench mades --mode amqp --rate 100 --threshold tracing.p99<5s",
        "mode amqp has no such stage; it has created, sent, settled",
    ),
    (
        "bench mades --mode tracing --rate 100 --threshold notified.p99<5s",
        "mode tracing has no such stage; it has created, sent, settled",
    ),
    (
        "bench mades --mode tracing --rate 100 --threshold inbox.p99<5s",
        "mode tracing has no such stage; it has created, sent, settled",
    ),
    (
        "bench mades --mode tracing --rate 100 --threshold delivered-event.p99<5s",
        "mode tracing has no such stage; it has created, sent, settled",
    ),
    (
        "bench mades --mode tracing --rate 100 --threshold received-event.p99<5s",
        "mode tracing has no such stage; it has created, sent, settled",
    ),
    ("bench --threshold rejceted<1", "did you mean \"rejected\"?"),
    ("bench --abort-on accepted.count>5", "use --threshold"),
    ("bench --give-up 0s", "--give-up"),
];

/// Command lines that users of k6, Locust, vegeta, swaks or our other commands may type out of habit. Habits that
/// mailrun accepts, such as `accepted.med` and `5us`, are tested elsewhere.
const HABITS: &[Row] = &[
    ("bench --threshold accepted.p(99)<500ms", "unknown figure \"p(99)\"; use p99"),
    (
        "bench --threshold p(99)<500",
        "\"p(99)\" is a figure; name its stage or phase and the unit: accepted.p99 < 500ms",
    ),
    ("bench --threshold med<500", "accepted.med < 500ms"),
    (
        "bench --threshold rate>0.99",
        "accepted.rate > 100/s; the share of messages in time is accepted.within(1s) >= 99%",
    ),
    ("bench --threshold rejected␣==␣0", "use 'rejected <= 0'"),
    ("bench --threshold accepted.p99<500m", "use 500ms"),
    ("bench --out json=out.json", "it is a directory; for a file use --json out.json"),
    ("bench 127.0.0.1:1 -u 5", "use --sessions (as in k6 and Locust) or --user (as in curl)"),
    (
        "bench --headless --users 10 --spawn-rate 5 --run-time 3s --host 127.0.0.1:1",
        "--headless\"; leave it out|--users\"; use --sessions|--spawn-rate\"; leave it out|--run-time\"; use --duration|\
         --host\"; use SERVER without an option",
    ),
    ("bench -rate=50 -max-workers=8 -targets=t 127.0.0.1:1", "use --rate|use --sessions|use SERVER"),
    ("bench 127.0.0.1:1 -header x:␣1", "or mailrun send, which has --header"),
    ("bench run load.toml", "leave \"run\" out: mailrun bench SERVER, or mailrun bench FILE.toml"),
    ("send 127.0.0.1:1 --to a@a -ha -n", "unknown option \"-ha\"; use --quiet|\"-n\"; use --quiet"),
    (
        "send -t a@a -s 127.0.0.1 -p 25 --au bob --ap secret --auth PLAIN",
        "use --to|use SERVER|HOST:PORT|use --user|use --password-file|--auth-mechanism NAME, with --user NAME",
    ),
    ("send 127.0.0.1:1 --to a@a --xclient ADDR=192.0.2.7␣NAME=mx", "--xclient once for each NAME=VALUE"),
    ("bench --keepalive=false", "without which each message has its own connection"),
    ("send 127.0.0.1:1 --to a@a,b@b", "<a@a,b@b> is not an address; write --to once for each recipient"),
    ("send 127.0.0.1:1 --to a@a --port 2", "--port 2: 127.0.0.1:1 says where to connect; leave --port out"),
    ("send 127.0.0.1:1 --to a@a --raw --dsn-notify never", "--raw|--dsn-notify"),
    ("send 127.0.0.1:1 --to a@a --raw --dsn-ret hdrs", "--raw|--dsn-ret"),
    ("send 127.0.0.1:1 --to a@a --raw --dsn-envid x", "--raw|--dsn-envid"),
    ("send 127.0.0.1:1 --to a@a --raw --dsn-orcpt", "--raw|--dsn-orcpt"),
    ("send --pipe cat --to a@a --port 25", "--pipe|--port"),
    ("send --pipe cat --to a@a --bind 127.0.0.2", "--pipe|--bind"),
    ("send --pipe cat --to a@a --proxy-protocol v1", "--pipe|--proxy-protocol"),
    ("send --pipe cat --to a@a --connect-timeout 1s", "--pipe|--connect-timeout"),
    ("send 127.0.0.1:1 --to a@a --cc b@b --tls-sni x", "--cc\"; use --to ADDRESS again|use --tls-name"),
    ("source 127.0.0.1:1 --file -", "mailrun send --file - reads standard input"),
    ("bench --compare postfix", "--relay NAME|mailrun bench relay-400 --compare mailrun,postfix"),
    ("bench 127.0.0.1:1 --compare postfix", "mailrun compare --contestant NAME=HOST:PORT"),
    (
        "compare --contestant a=amqp://127.0.0.1:1 --contestant b=127.0.0.1:1",
        "a: a comparison in rounds speaks SMTP|mailrun mades --broker amqp://127.0.0.1:1 --out DIR",
    ),
    ("mades -size 3000", "use --payload-size"),
    ("mades --goroutines 5", "use --max-unsettled"),
    ("mades --pass x", "use --password-file FILE"),
];

const FAULTS: &[Row] = &[
    ("bench --fault drop␣2", "\"2\" is not a valid probability; write 2% or 0.02"),
    ("sink --fault duplicate␣1,5%", "unexpected \"5%\" after the end of the rule"),
    ("sink --fault rcpt:␣soft␣rejct", "\"soft rejct\" is not an action; did you mean \"soft reject\"?"),
    ("sink --fault rctp:␣soft␣reject", "\"rctp\" is not a command of the sink; did you mean \"rcpt\"?"),
    ("sink --fault .:␣stall␣2s,1s", "\"2s,1s\": write 2s..3s"),
    ("sink --fault mail:␣limit␣fast", "\"fast\" is not a valid rate"),
    ("sink --fault rcpt", "write a rule as COMMAND: ACTION"),
    ("sink --rules /nowhere", "cannot read /nowhere: No such file or directory"),
    ("sink --rules DIR/rules.toml", "/rules.toml:2:12: \"soft rejct\" is not an action; did you mean \"soft reject\"?"),
    ("sink --rules DIR/broken.toml", "/broken.toml:1:8: "),
    ("bench 127.0.0.1:1 --fault drop␣1%", "--fault applies to the bench's own sink"),
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
    ("sink --threshold rejected<1", "unknown option \"--threshold\" here; mailrun bench, audit, source"),
    ("sink --listen nonsense", "nonsense"),
    ("sink --max-messages 0", "0"),
    ("sink --max-message-size lots", "lots"),
    ("sink --max-line-length 0", "--max-line-length"),
    ("sink --hostname a\r\n250␣b", "--hostname"),
    ("sink --tls-client-ca ca.pem", "--tls-client-ca requires --tls"),
    ("sink --tls-write-cert cert.pem", "--tls-write-cert requires --tls"),
];

/// Faulty scenario files: a line of a valid file, the line that replaces it, and text that the
/// error must contain.
const SCENARIO_FILES: &[(&str, &str, &str)] = &[
    ("measure = \"throughput\"", "measure = \"speed\"", ":1:11: \"speed\" is not one of throughput, latency, backlog"),
    ("measure = \"throughput\"", "", "the key \"measure\" is missing"),
    ("parties = [\"mailrun\"]", "parties = []", ":2:11: the list must have at least one value"),
    ("parties = [\"mailrun\"]", "", "the key \"parties\" is missing"),
    ("parties = [\"mailrun\"]", "parties = [\"mailrun\", \"qmail\"]", ":2:23: qmail is not one of mailrun"),
    ("rounds = 1", "rounds = 1001", ":3:10: \"1001\" is too large; at most 1000"),
    ("rounds = 1", "rounds = \"many\"", ":3:10: \"many\" is not a valid count"),
    ("rounds = 1", "round = 1", ":3:1: unknown key \"round\"; did you mean \"rounds\"?"),
    ("rounds = 1", "order = \"random\"", ":3:9: \"random\" is not one of alternating, fixed"),
    ("rounds = 1", "thresholds = [\"fast\"]", ":3:15: "),
    ("messages = 10", "messages = 0", ":5:12: \"0\": must be more than zero"),
    ("messages = 10", "messages = [10]", ":5:13: messages is one value, not a list"),
    ("messages = 10", "burst = 10", ":5:1: unknown key \"burst\"; known keys: parties, messages, "),
    ("message_size = \"1k\"", "message_size = \"3\"", ":6:16: \"3\": the size must be between 300 bytes and 64M"),
    ("messages = 10\n", "", ":1:1: the key \"messages\" is missing"),
    ("messages = 10", "full = \"yes\"", ":5:8: \"yes\" is not one of true, false"),
    ("messages = 10", "allow_public = true", ":5:1: unknown key \"allow_public\""),
    ("parties = [\"mailrun\"]", "parties = [\"a {to},b\"]", ":2:12: \"a {to},b\" must not contain a comma"),
    ("[workload]", "[workload", ":4:"),
];

const SCENARIOS: &[Row] = &[
    ("bench --quiet my.toml", "options of my.toml must follow it: write mailrun bench my.toml first"),
    ("bench DIR/rules.toml", "rules.toml:2:5: rules is one value, not a list"),
    ("bench --list --quiet", "--list"),
    ("bench --list --sessions 5", "--list"),
    ("scenario show relay-40", "unknown scenario \"relay-40\"; did you mean \"relay-400\"?"),
    ("recipe show postfx", "unknown recipe \"postfx\"; did you mean \"postfix\"?"),
    (
        "recipe show fnord",
        "unknown recipe \"fnord\"; built in are chasquid, courier, cyrus, dovecot, dovecot-debian, exim, haraka, \
         mailrun, nullmailer, opensmtpd, postfix, postfix-debian, sendmail; the name of a file ends in .toml",
    ),
    ("scenario show fnord", "unknown scenario \"fnord\"; mailrun bench --list lists them"),
    ("bench relay-400 --order random", "--order: \"random\" is not one of alternating, fixed"),
    ("bench relay-400 --rounds 0", "--rounds: \"0\": must be more than zero"),
    ("bench relay-400 --rounds 1001", "--rounds: \"1001\" is too large; at most 1000"),
    ("bench relay-400 --messages 1e6", "--messages: \"1e6\": write 1000000 or 1M"),
    ("bench relay-400 --full --messages 5", "--full cannot be used together with --messages"),
    ("bench relay-400 --compare mailrun,qmail", "qmail is not one of mailrun"),
    ("bench relay-400 127.0.0.1:1", "--sink-listen <HOST:PORT> is required"),
    ("bench relay-latency --steps 101", "--steps: \"101\" is too large; at most 100"),
    ("bench relay-latency --message-size 3", "the size must be between 300 bytes and 64M"),
    ("bench backlog --messages 200M", "--messages: \"200M\" is too large; at most 100000000"),
    ("bench backlog --threshold rejected<1", "this scenario has no runs that a threshold could be asked of"),
    ("bench relay-soak --rate -1", "--rate: \"-1\": must be positive"),
    ("bench sizes --body-sizes 256,1", "--body-sizes: \"1\": the size of a body must be between 2 bytes and 256M"),
    ("bench large-message --costs dot", "--costs: \"dot\" is not one of chunking, dots, short-lines"),
    ("bench -- --write-size 0", "--write-size: \"0\": must be more than zero"),
    ("bench smtp-source-table --sessions 1,x", "--sessions: \"x\" is not a valid count"),
    ("bench smtp-source-table --recipients 2k", "--recipients: \"2k\" is too large; at most 1000"),
    ("bench relay-latency --size 400", "unknown option \"--size\"; use --message-size"),
    ("install-links", "<DIR> is required"),
    ("install-links a b", "unexpected argument \"b\""),
    ("install-links /dev/null/x", "cannot create /dev/null/x: Not a directory"),
    ("install-links DIR/taken", "smtp-source exists and is not a symbolic link"),
    ("bench smtp-source-table --messages 0", "\"0\""),
    ("bench smtp-source-table --fault drop", "--fault"),
    ("bench smtp-source-table --messages 99999999999", "99999999999"),
    ("bench smtp-source-table --max-time 0s", "0s"),
    ("bench --sessions 5 smtp-source-table", "smtp-source-table"),
];

const COMPARE: &[Row] = &[
    ("compare --contestant a=x␣{port}␣{messages}", "needs two contestants"),
    ("compare --contestant a=x␣{port}␣{messages} --contestant a=y␣{port}␣{messages}", "two contestants are named a"),
    ("compare --contestant a=x", "a: the command has no {port}"),
    ("compare --contestant a='x", "quotation mark"),
    (
        "compare --contestant a=x␣{port}␣{messages} --contestant c=y␣{port}␣{messages} --reference b",
        "--reference \"b\" is not the name",
    ),
    ("compare --self --contestant a=x␣{port}␣{messages} --contestant b=y␣{port}␣{messages}", "--self takes one"),
    ("compare r --against s --rounds 7", "--rounds has no effect on stored runs"),
    ("compare --contestant a=x␣{port}␣{messages} --contestant b=127.0.0.1:25", "contestants must be of one kind"),
    (
        "compare --contestant a=x␣{port}␣{messages} --contestant b=y␣{port}␣{messages} --to x@y.example",
        "are for contestants",
    ),
    ("compare --contestant a=relay-400 --contestant b=relay-64k --sessions 5", "no effect on scenarios"),
    ("compare r --contestant a=x␣{port}␣{messages}", "cannot be used together with"),
];

const CAPACITY: &[Row] = &[
    ("capacity --rate 100/s", "--rate has no effect on a search"),
    ("capacity --duration 5s", "--duration has no effect on a search"),
    ("capacity --lost-after 5s", "--lost-after requires a server whose deliveries are seen"),
    ("capacity --goal delivered.rate>5/s", "a goal is a percentile, max or within()"),
    ("capacity 127.0.0.1:1 --goal delivered.p99<1s", "nobody sees deliveries"),
    ("capacity --rfc2544", "--max-rate"),
    ("capacity --min-rate 50/s --max-rate 50/s", "--min-rate must be below --max-rate"),
    ("capacity --quick --rfc2544 --max-rate 9/s", "cannot be used"),
    ("capacity --peak 1/s --safety 0", "--safety must be above zero"),
    ("capacity 127.0.0.1:1 --server-cores 1", "--server-cores requires a server that mailrun starts"),
    ("capacity --server-cores 1,100000", "--server-cores 100000: only "),
    ("capacity --server-cores 0", "must be more than zero"),
    ("capacity mades --rate 100/s", "--rate has no effect on a search"),
    ("capacity mades --threshold delivered.p99<1s", "--threshold, --abort-on or --strict has no effect on a search"),
    ("capacity mades --goal accepted.rate>5/s", "a goal is a percentile, max or within()"),
    ("capacity mades --mode toolbox --goal received-event.p99<1s", "mode toolbox has no such stage"),
    ("capacity mades --user ann", "--user has no effect without --broker"),
    ("capacity mades --connect-timeout 1s", "--connect-timeout has no effect without --broker"),
    ("capacity mades --prefix x", "--prefix has no effect without --broker"),
    ("capacity mades --broker amqp://127.0.0.1:1 --preset ideal", "--preset has no effect with --broker"),
    ("capacity mades --broker amqp://a:secret@127.0.0.1:1", "use --password-file"),
];

const SHARDS: &[Row] = &[
    ("bench 127.0.0.1:2 --shard=0/2", "--start-at"),
    ("bench 127.0.0.1:2 --shard=2/2 AT", "the last of 2 is 1/2"),
    ("bench 127.0.0.1:2 --shard=0/2 --start-at=noon", "RFC 3339"),
    ("bench --shard=0/2 AT", "--shard requires a server"),
    ("bench 127.0.0.1:2 --shard=0/2 AT --sink-listen=127.0.0.1:3", "mailrun merge"),
    ("bench 127.0.0.1:2 --shard=0/2 AT --abort-on=rejected<=1", "--abort-on"),
    ("bench 127.0.0.1:2 --sink=http://127.0.0.1:3 --sink=http://127.0.0.1:4", "add --shard 0/1"),
    ("source 127.0.0.1:2 --shard=0/2 AT --no-trace", "trace"),
    ("source 127.0.0.1:2 --shard=0/200 AT --sessions=100", "too few for 200 parts"),
    ("source 127.0.0.1:2 --shard=0/9 AT --messages=5 --sessions=9", "too few for 9 parts"),
];

/// Options that mailrun lacks, for example because they belong to another tool. Each row has the name of the option,
/// the commands that the test runs with it, and a text that the error must contain. Usually, the text is the name of
/// our option.
const NAMES: &[(&str, &[&str], &str)] = &[
    ("--size", &["source 127.0.0.1:1", "bench"], "--message-size"),
    ("--auth", &["source 127.0.0.1:1", "bench"], "--user"),
    ("--ca", &["source 127.0.0.1:1", "bench"], "--cacert"),
    ("--sni", &["source 127.0.0.1:1", "bench"], "--tls-name"),
    ("--server-name", &["source 127.0.0.1:1", "bench"], "--tls-name"),
    ("--sessions", &["sink"], "--max-sessions"),
    ("--messages", &["sink"], "--max-messages"),
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
    ("--sink", &["source 127.0.0.1:1"], "mailrun bench, probe, merge, compare and capacity have it"),
    ("--drop", &["source 127.0.0.1:1"], "mailrun mades-endpoint has it"),
    ("--drop", &["bench", "sink"], "unknown option \"--drop\"; use --fault 'drop 1%'"),
    ("--sessoins", &["bench"], "did you mean \"--sessions\"?"),
    ("--frobnicate", &["bench", "source 127.0.0.1:1", "sink", "install-links"], "unknown option \"--frobnicate\""),
];

fn files(place: &Path) {
    fs::write(place.join("empty"), "\n").unwrap();
    fs::write(place.join("marked"), "\u{feff}Subject: x\n").unwrap();
    fs::write(place.join("rules.toml"), "rules = [\n    'rcpt: soft rejct',\n]\n").unwrap();
    fs::write(place.join("broken.toml"), "seed = x\n").unwrap();
    fs::create_dir(place.join("taken")).unwrap();
    fs::write(place.join("taken/smtp-source"), "a tool").unwrap();
}

/// Splits a command line into words. Replaces `AT` with a `--start-at` option, `DIR` with `place`, and `␣` with a
/// blank.
fn words(line: &str, place: &Path) -> Vec<String> {
    let place = place.to_str().unwrap();
    let word = |word: &str| match word {
        "AT" => "--start-at=2026-11-23T12:00:00Z".to_owned(),
        _ => word.replace('␣', " ").replace("DIR", place),
    };
    line.split(' ').map(word).collect()
}

#[test]
fn a_wrong_input_is_answered_with_one_cause() {
    let place = tempfile::tempdir().unwrap();
    files(place.path());
    let tables = [
        SERVERS,
        NUMBERS,
        MAIL,
        TLS_AND_LOGIN,
        THRESHOLDS_AND_RESULTS,
        HABITS,
        FAULTS,
        SINK,
        SCENARIOS,
        COMPARE,
        CAPACITY,
        SHARDS,
    ];
    let rows = tables.concat();
    assert_refused(rows.iter().map(|(line, pieces)| (words(line, place.path()), pieces.split('|').collect())));
}

#[test]
fn an_option_of_another_name_is_answered_with_ours() {
    let place = tempfile::tempdir().unwrap();
    let lines = NAMES.iter().flat_map(|(typed, commands, ours)| {
        commands.iter().map(move |command| (format!("{command} {typed} 5"), vec!["unknown option", ours]))
    });
    assert_refused(lines.map(|(line, pieces)| (words(&line, place.path()), pieces)));
}

#[test]
fn a_wrong_scenario_file_is_answered_with_one_cause_and_its_place() {
    let right = "measure = \"throughput\"\nparties = [\"mailrun\"]\nrounds = 1\n[workload]\nmessages = 10\n\
                 message_size = \"1k\"\n";
    let place = tempfile::tempdir().unwrap();
    assert_refused(SCENARIO_FILES.iter().enumerate().map(|(number, (from, to, expected))| {
        let directory = place.path().join(number.to_string());
        fs::create_dir(&directory).unwrap();
        assert!(right.contains(from), "{from}");
        fs::write(directory.join("my.toml"), right.replace(from, to)).unwrap();
        (words("bench DIR/my.toml", &directory), vec!["my.toml:", expected])
    }));
}
