//! Finds our option for an option that a user knows from another tool (swaks, smtp-source, smtp-sink, wrk, oha, ab, k6,
//! vegeta, curl) or from another of our commands. The parameter `whole` of the functions is clap's command `mailrun`,
//! with all its subcommands.
use clap::{Arg, Command};

/// Names that an option has in other tools, and our option that does the same. Our option is suggested only if the
/// command that the user typed has it.
type OptionAlias = (&'static [&'static str], &'static str);

const MADES_COMMANDS: [&str; 4] = ["mades", "mades-endpoint", "bench mades", "bench mades-compare"];

/// Options of tools that send mail, each with the option that does the same in our commands that send mail.
const SENDER_NAMES: &[OptionAlias] = &[
    (&["--connections", "--concurrency", "--vus", "--parallel", "--users", "--max-workers"], "--sessions"),
    (&["-u"], "--sessions (as in k6 and Locust) or --user (as in curl)"),
    (&["--requests", "--iterations", "-i", "--count"], "--messages"),
    (&["-z", "--time", "--max-time", "--run-time"], "--duration"),
    (&["-k"], "--insecure (as in curl) or --reuse (as in ab)"),
    (&["--keepalive", "--keep-alive"], "--reuse, without which each message has its own connection"),
    (&["--qps", "--rps"], "--rate"),
    (&["--ramp-up"], "--stage"),
    (&["-w"], "--think-time"),
    (&["-R"], "--think-time 0s..TIME"),
    (&["-t"], "--to, or --duration (as in Locust)"),
    (&["--recipient", "--rcpt-to", "--mail-rcpt"], "--to"),
    (&["-f"], "--from, or FILE.toml without an option (as in Locust)"),
    (&["--config"], "FILE.toml without an option"),
    (&["--sender", "--mail-from"], "--from"),
    (&["-r"], "--recipients (as in smtp-source); without Locust's spawn rate all sessions start at once"),
    (&["--rcpt-count"], "--recipients"),
    (&["-e", "--env"], "--to and the other options in place of variables"),
    (&["-S"], "--subject"),
    (&["-M", "--helo", "--lhlo", "-h-from"], "--ehlo"),
    (
        &["-F", "--body", "--data", "--header", "--h-Subject", "--attach", "--eml", "--upload-file"],
        "--file MESSAGE.EML, or mailrun send, which has --header, --body and --attach",
    ),
    (&["--size", "--length", "--body-size"], "--message-size"),
    (&["-L"], "--lmtp"),
    (
        &["--protocol"],
        "--lmtp, --tls starttls (ESMTPS), --tls implicit (SSMTP), or none of these for SMTP, which always begins with EHLO",
    ),
    (&["--server", "--host", "-H", "--target", "--targets", "--url"], "SERVER without an option"),
    (&["-p", "--port"], "HOST:PORT as SERVER"),
    (&["--tls-on-connect", "-tlsc", "--tlsc", "--ssl"], "--tls implicit"),
    (&["--starttls", "-tls", "--ssl-reqd"], "--tls starttls"),
    (&["--tls-ca-path", "--cafile", "--ca-file", "--capath"], "--cacert"),
    (&["--server-name", "--tls-sni"], "--tls-name"),
    (&["--insecure-skip-tls-verify"], "--insecure"),
    (&["--cert"], "--tls-cert"),
    (&["--key"], "--tls-key"),
    (&["-au", "--au", "--auth-user", "--username", "--login"], "--user"),
    (
        &["-ap", "--ap", "-P", "--auth-password", "--pass"],
        "--password-file FILE or the environment variable MAILRUN_PASSWORD",
    ),
    (&["-a", "--auth", "--sasl"], "--auth-mechanism NAME, with --user NAME"),
    (&["--auth-optional", "-ao"], "--user NAME; a login that the server does not offer is an error"),
    (&["-li", "--local-interface", "--interface", "--source-address"], "--bind"),
    (&["--threads", "-T"], "--workers"),
    (&["-o", "--output"], "--out"),
    (&["--hlog", "--ledger"], "--out DIR, which has them"),
    (&["--summary-export"], "--json"),
    (&["--name", "--tag"], "--label"),
    (&["--csv", "--csv-full-history"], "--export csv=FILE"),
    (&["--html"], "--export html=FILE"),
    (&["--no-summary"], "--report none"),
    (&["--silent"], "--quiet"),
    (&["--fail-on", "--assert"], "--threshold"),
    (
        &["--compare"],
        "--relay NAME for one of them, mailrun bench relay-400 --compare mailrun,postfix, or for servers of your own \
         mailrun compare --contestant NAME=HOST:PORT",
    ),
];

/// Advice for options of swaks that our command `send` lacks. Options that `SENDER_NAMES` already covers are not
/// repeated here.
const SEND_NAMES: &[OptionAlias] = &[
    (&["-s"], "SERVER without an option"),
    (&["-t"], "--to"),
    (&["-f"], "--from"),
    (&["-u"], "--user"),
    (&["-H"], "--header 'NAME: VALUE'"),
    (&["-F", "--h-From"], "--header 'From: ADDRESS'"),
    (&["--h-Subject", "--h-subject"], "--subject TEXT"),
    (&["--h-To", "--h", "--add-header", "-ah", "--header-X"], "--header 'NAME: VALUE'"),
    (
        &["-d", "--data", "--dab", "--stdin"],
        "--file FILE (- is standard input) for a whole message, or --body TEXT; \\n and %TO_ADDRESS% are not replaced",
    ),
    (&["--attach-body", "--body-file"], "--body @FILE"),
    (&["--attach-type"], "--attach 'FILE;TYPE'"),
    (&["--attach-name"], "--attach FILE, which is named like the file"),
    (&["--quit"], "--quit-after WHERE"),
    (&["--drop-after", "--da", "-da", "--drop-after-send"], "--quit-after WHERE, which says QUIT where it can"),
    (
        &[
            "--silent",
            "-hr",
            "-ht",
            "-ha",
            "--hide-all",
            "--hide-receive",
            "--hide-send",
            "--hide-informational",
            "--suppress-data",
            "-n",
        ],
        "--quiet",
    ),
    (&["--tls-get-peer-cert", "--tls-show-cert", "--get-peer-cert", "--cert-info"], "--show-cert"),
    (&["--socket"], "unix:PATH as SERVER, without an option"),
    (&["--copy-routing", "--mx"], "--to ADDRESS without a SERVER"),
    (&["--tls-verify", "--tls-verify-ca", "-tlsv"], "--tls starttls, which verifies unless --insecure is given"),
    (&["--xclient-addr", "--xclient-name", "--xclient-helo", "--xclient-login"], "--xclient NAME=VALUE"),
    (
        &["--proxy", "--proxy-version", "--proxy-family", "--proxy-source", "--proxy-source-port", "--proxy-dest"],
        "--proxy-protocol VERSION, which names the addresses of the connection itself",
    ),
    (&["--cc", "--bcc"], "--to ADDRESS again, and for a copy that is shown --header 'Cc: ADDRESS'"),
    (&["--output-file", "--output"], "> FILE after all options: the dialogue goes to standard output"),
    (&["--tls-optional", "-tlso"], "--tls starttls; a server without it is an error"),
    (&["--prdr", "--dsn"], "--dsn-notify WHEN"),
    (&["--auth-hide-password", "--protect-prompt"], "--user, whose login data is never shown"),
    (&["--pipeline"], "--pipelining group"),
    (&["--local-port", "-lp"], "--bind ADDRESS"),
    (&["--from-raw", "--malformed"], "--raw"),
];

/// Options of other tools that receive mail, each with the option of our sink that does the same.
const SINK_NAMES: &[OptionAlias] = &[
    (&["-p", "--port", "--address", "--bind", "--host"], "--listen HOST:PORT"),
    (&["--sessions", "--connections", "--concurrency", "--max-connections"], "--max-sessions"),
    (&["--messages", "-M", "--exit-after", "--count"], "--max-messages"),
    (&["-L"], "--lmtp"),
    (&["-d"], "--dump-dir"),
    (&["-D"], "--dump-file"),
    (&["-t", "--timeout"], "--idle-timeout"),
    (&["-w"], "--fault 'delay TIME'"),
    (&["-f", "-r", "-Q"], "--fault"),
    (&["-o", "--output"], "--out"),
    (&["--cert"], "--tls-cert"),
    (&["--key"], "--tls-key"),
    (&["--silent"], "--quiet"),
];

/// Options for faults, each with the value of `--fault` that causes the same fault. Most of these options belong to
/// `mades-endpoint`, but users may try them with the sink or with commands that send mail, which have only `--fault`.
const FAULT_NAMES: &[OptionAlias] = &[
    (&["--drop"], "--fault 'drop 1%'"),
    (&["--duplicate"], "--fault 'duplicate 1%'"),
    (&["--corrupt"], "--fault 'corrupt 1%'"),
    (&["--reject"], "--fault 'reject 1%'"),
    (&["--fail"], "--fault 'fail 1%'"),
    (&["--delay"], "--fault 'delay 20ms'"),
    (&["--stall"], "--fault 'stall 2s..5s'"),
    (&["--directed"], "--fault directed"),
];

/// Options of go-mades-bench and other tools, each with the option that does the same in our commands that speak AMQP.
const MADES_NAMES: &[OptionAlias] = &[
    (&["--outbox-url", "--url", "--server"], "--broker"),
    (&["--inbox-url"], "--inbox-broker"),
    (&["--size", "--message-size"], "--payload-size"),
    (&["--timeout"], "--message-timeout"),
    (&["--sasl"], "--auth-mechanism"),
    (&["--auth", "-u", "--outbox-user"], "--user"),
    (&["--pass", "--outbox-pass"], "--password-file FILE or the environment variable MAILRUN_PASSWORD"),
    (&["--inbox-pass"], "--inbox-password-file FILE or the environment variable MAILRUN_INBOX_PASSWORD"),
    (&["--goroutines"], "--max-unsettled"),
    (&["--cert"], "--tls-cert"),
    (&["--key"], "--tls-key"),
    (&["--server-name"], "--tls-name"),
    (&["--tls-insecure", "-k"], "--insecure"),
    (&["-o"], "--out"),
    (&["-z"], "--duration"),
];

const REPORT_NAMES: &[OptionAlias] = &[(&["--type"], "--format")];

const RELAY_NAMES: &[OptionAlias] = &[(&["--relayhost"], "--to")];

/// Options of other tools, each with the option that does the same in several of our commands.
const COMMON_NAMES: &[OptionAlias] = &[
    (&["--ca"], "--cacert"),
    (&["--sni"], "--tls-name"),
    (&["--password"], "--password-file FILE or the environment variable MAILRUN_PASSWORD"),
];

/// Advice on options that our commands for AMQP do not have. Each row has the options that a user may try, one of our
/// own options, and the advice. The advice is given only for commands that have our option.
const EXPLANATIONS: &[(&[&str], &str, &str)] = &[
    (
        &["-s", "-c", "--sessions", "--connections", "--concurrency"],
        "--max-in-transit",
        "MADES has no sessions; --max-in-transit N limits the messages in transit",
    ),
    (
        &["--password"],
        "--password-file",
        "a password on the command line can be seen by others; use --password-file FILE or MAILRUN_PASSWORD",
    ),
    (
        &["--inbox-password"],
        "--inbox-password-file",
        "a password on the command line can be seen by others; use --inbox-password-file FILE or MAILRUN_INBOX_PASSWORD",
    ),
    (
        &["--tls"],
        "--embedded",
        "--tls is not used here: with --embedded, --tls-cert and --tls-key; at a broker, --broker amqps://HOST",
    ),
    (&["--tls"], "--broker", "--tls is not used here: the URL selects TLS, --broker amqps://HOST"),
    (&["--tls"], "--preset", "--tls is not used here: bench mades and its endpoint are on this host, without TLS"),
    (
        &["--broker", "--inbox-broker"],
        "--preset",
        "bench mades has a broker of its own; for yours use mailrun mades --broker URL",
    ),
    (&["--to", "--rcpt"], "--receiver", "messages have a receiver, --receiver CODE; the broker is --broker URL"),
];

/// Options of other tools that users can leave out when they send mail with our commands, each with the reason.
const NEEDLESS: &[(&[&str], &str)] = &[
    (&["--headless", "--only-summary", "--autostart"], "the report is printed in the terminal"),
    (&["--spawn-rate"], "all sessions start at once"),
    (&["--loglevel", "--logfile"], "errors are in the report"),
    (&["--exit-code-on-error"], "lost, rejected or failed mail and missed thresholds end with status 1"),
    (&["--stop-timeout"], "messages that were begun are waited for"),
    (&["--no-thresholds"], "without --threshold nothing is judged but the fate of the mail"),
    (&["--summary-trend-stats"], "the report has all of these figures"),
    (&["--tls-protocol", "-tlsp"], "TLS 1.3 is used, or 1.2 where the server has no other"),
    (&["--show-time-lapse", "-stl"], "the time of the whole session is in the last line"),
    (&["--no-strip-from", "-nsf", "--force-getpwuid"], "nothing is changed"),
];

/// Returns advice about a word that a command does not accept, usually an option, or `None` if no advice is known.
/// `path` is the command, for example `bench mades`.
pub(crate) fn advice_on(whole: &Command, path: &str, typed: &str) -> Option<String> {
    let typed = typed.split('=').next().unwrap_or(typed);
    let is_mades = MADES_COMMANDS.contains(&path);
    if is_mades && !typed.starts_with('-') {
        let is_broker = typed.contains([':', '.']) && has(whole, path, "--broker");
        return is_broker.then(|| "the broker is an option: --broker URL".to_owned());
    }
    let explained = || {
        let row = EXPLANATIONS.iter().find(|(names, instead, _)| names.contains(&typed) && has(whole, path, instead));
        row.filter(|_| is_mades).map(|(_, _, advice)| (*advice).to_owned())
    };
    let needless = || {
        let (_, reason) = NEEDLESS.iter().find(|(names, _)| names.contains(&typed) && sends_mail(path))?;
        Some(format!("unknown option {typed:?}; leave it out: {reason}"))
    };
    let renamed = || our_name(whole, path, typed).map(|ours| format!("unknown option {typed:?}; use {ours}"));
    explained().or_else(renamed).or_else(needless)
}

/// Returns the option of our command `path` that corresponds to an option of another tool. `typed` must be the whole
/// word, such as `-au`, although clap reads only `-a` of it.
pub(crate) fn our_name(whole: &Command, path: &str, typed: &str) -> Option<&'static str> {
    let row = tables(path)
        .iter()
        .copied()
        .flatten()
        .find(|(names, ours)| names.contains(&typed) && is_applicable(whole, path, ours));
    row.map(|(_, ours)| *ours)
}

/// Returns what to type instead of a command of another tool, such as `attack`, or instead of a command that has moved
/// to `mailrun locust`, such as `worker`.
pub(crate) fn our_command(typed: &str) -> Option<&'static str> {
    match typed {
        "worker" => Some("mailrun locust worker"),
        "master" => Some("mailrun locust master"),
        "locustfile" => Some("mailrun locust file"),
        word if GENERATOR_COMMANDS.contains(&word) => {
            Some("mailrun bench SERVER, or mailrun bench FILE.toml for a scenario")
        }
        _ => None,
    }
}

/// Commands with which k6 and vegeta start a load.
pub(crate) const GENERATOR_COMMANDS: [&str; 3] = ["run", "attack", "load"];

fn sends_mail(path: &str) -> bool {
    let is_bench = path.starts_with("bench") && !MADES_COMMANDS.contains(&path);
    is_bench || ["send", "source", "capacity"].contains(&path)
}

/// Returns the tables in which to look up an option that the command `path` lacks. If several tables have the option,
/// the first of them decides.
fn tables(path: &str) -> &'static [&'static [OptionAlias]] {
    match path {
        path if MADES_COMMANDS.contains(&path) => &[MADES_NAMES, COMMON_NAMES],
        "send" => &[SEND_NAMES, SENDER_NAMES, COMMON_NAMES],
        "sink" => &[SINK_NAMES, FAULT_NAMES, COMMON_NAMES],
        path if sends_mail(path) => &[SENDER_NAMES, FAULT_NAMES, COMMON_NAMES],
        "relay" => &[RELAY_NAMES, COMMON_NAMES],
        "report" => &[REPORT_NAMES],
        _ => &[COMMON_NAMES],
    }
}

/// Returns true if the command `path` has the first option that the advice names. Advice that names no option, such as
/// "SERVER without an option", always applies.
fn is_applicable(whole: &Command, path: &str, advice: &str) -> bool {
    let option = advice.split([' ', ',']).find(|word| word.starts_with("--"));
    option.is_none_or(|option| has(whole, path, option))
}

pub(crate) fn has(whole: &Command, path: &str, option: &str) -> bool {
    let subcommand = path.split(' ').try_fold(whole, |command, name| command.find_subcommand(name));
    let is_meant = |argument: &Arg| match option.strip_prefix("--") {
        Some(long) => {
            let aliases = argument.get_all_aliases().unwrap_or_default();
            argument.get_long() == Some(long) || aliases.contains(&long)
        }
        None => argument.get_short().is_some_and(|short| option == format!("-{short}")),
    };
    subcommand.is_some_and(|command| command.get_arguments().any(is_meant))
}

/// Returns a sentence that tells the user which of our commands have the option `typed`. Subcommands, such as `bench
/// backlog`, are named only if no other command has the option.
pub(crate) fn commands_with(whole: &Command, typed: &str) -> Option<String> {
    let name = typed.split('=').next()?.strip_prefix("--")?;
    let has = |command: &&Command| {
        command.get_arguments().any(|argument| argument.get_long() == Some(name) && !argument.is_hide_set())
    };
    let mut names: Vec<String> = whole.get_subcommands().filter(has).map(|command| command.get_name().into()).collect();
    if names.is_empty() {
        let below = |command: &Command| {
            let found = command.get_subcommands().filter(has);
            found.map(|inner| format!("{} {}", command.get_name(), inner.get_name())).collect::<Vec<_>>()
        };
        names = whole.get_subcommands().flat_map(below).collect();
    }
    match names.as_slice() {
        [] => None,
        [name] => Some(format!("mailrun {name} has it")),
        [first @ .., last] => Some(format!("mailrun {} and {last} have it", first.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;

    const PATHS: [&str; 13] = [
        "send",
        "capacity",
        "report",
        "bench",
        "bench relay-400",
        "bench smtp-source-table",
        "source",
        "sink",
        "queue list",
        "relay",
        "mades",
        "mades-endpoint",
        "bench mades",
    ];

    #[test]
    fn every_row_is_of_use_somewhere_and_never_hides_an_option() {
        let whole = Cli::all_commands();
        for table in
            [SENDER_NAMES, SEND_NAMES, SINK_NAMES, FAULT_NAMES, MADES_NAMES, RELAY_NAMES, REPORT_NAMES, COMMON_NAMES]
        {
            for (typed, ours) in table {
                let paths = PATHS.iter().chain(&["bench mades-compare"]);
                let mut useful =
                    paths.filter(|path| tables(path).contains(&table) && is_applicable(&whole, path, ours));
                assert!(useful.any(|path| !has(&whole, path, typed[0])), "{typed:?} {ours}");
            }
        }
        for (names, instead, _) in EXPLANATIONS {
            assert!(
                MADES_COMMANDS.iter().any(|path| has(&whole, path, instead) && !has(&whole, path, names[0])),
                "{names:?}"
            );
        }
    }

    #[test]
    fn a_name_is_answered_where_the_new_one_is_known() {
        let whole = Cli::all_commands();
        for (path, name, expected) in [
            ("mades", "--outbox-url", Some("unknown option \"--outbox-url\"; use --broker")),
            ("bench mades", "--size", Some("unknown option \"--size\"; use --payload-size")),
            ("source", "--size=5", Some("unknown option \"--size\"; use --message-size")),
            ("bench relay-latency", "--size", Some("unknown option \"--size\"; use --message-size")),
            ("bench relay-400", "--auth", None),
            ("bench", "--threads", Some("unknown option \"--threads\"; use --workers")),
            ("source", "--threads", Some("unknown option \"--threads\"; use --workers")),
            ("send", "--tlsc", Some("unknown option \"--tlsc\"; use --tls implicit")),
            ("send", "-tlsc", Some("unknown option \"-tlsc\"; use --tls implicit")),
            ("send", "-tls", Some("unknown option \"-tls\"; use --tls starttls")),
            (
                "send",
                "--data",
                Some(
                    "unknown option \"--data\"; use --file FILE (- is standard input) for a whole message, or --body TEXT; \
                     \\n and %TO_ADDRESS% are not replaced",
                ),
            ),
            (
                "bench",
                "--spawn-rate=5",
                Some("unknown option \"--spawn-rate\"; leave it out: all sessions start at once"),
            ),
            ("sink", "--spawn-rate", None),
            (
                "send",
                "-ap",
                Some("unknown option \"-ap\"; use --password-file FILE or the environment variable MAILRUN_PASSWORD"),
            ),
            ("sink", "--count", Some("unknown option \"--count\"; use --max-messages")),
            ("bench mades", "--frobnicate", None),
            ("mades", "amqp://u:secret@h", Some("the broker is an option: --broker URL")),
            ("bench mades", "amqp://u:secret@h", None),
            ("mades", "now", None),
            (
                "bench mades",
                "--broker",
                Some("bench mades has a broker of its own; for yours use mailrun mades --broker URL"),
            ),
        ] {
            assert_eq!(advice_on(&whole, path, name).as_deref(), expected, "{path} {name}");
        }
    }

    #[test]
    fn an_option_of_another_command_is_told() {
        let whole = Cli::all_commands();
        assert_eq!(
            commands_with(&whole, "--sink").as_deref(),
            Some("mailrun bench, probe, merge, compare and capacity have it")
        );
        assert_eq!(
            commands_with(&whole, "--recipients=5").as_deref(),
            Some("mailrun bench, source and capacity have it")
        );
        let compare = "mailrun bench relay-400, bench relay-64k, bench relay-100k, bench backlog, bench mailbox, bench filter and bench mades-compare have it";
        assert_eq!(commands_with(&whole, "--compare").as_deref(), Some(compare));
        assert_eq!((commands_with(&whole, "--frobnicate"), commands_with(&whole, "-x")), (None, None));
    }
}
