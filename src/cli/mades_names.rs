//! Options that the MADES commands had under other names, or that other commands have: what is said of them.
use clap::CommandFactory;

/// Commands that this is about.
const COMMANDS: [&str; 4] = ["mades", "mades-endpoint", "bench mades", "bench mades-compare"];

/// Old names and names of other tools, and today's. A row counts where the command has the new name.
const RENAMED: [(&str, &str); 38] = [
    ("--outbox-url", "--broker"),
    ("--inbox-url", "--inbox-broker"),
    ("--url", "--broker"),
    ("--server", "--broker"),
    ("--size", "--payload-size"),
    ("--message-size", "--payload-size"),
    ("--window", "--max-unsettled"),
    ("--timeout", "--message-timeout"),
    ("--linger", "--linger-time"),
    ("--reconnect", "--reconnect-timeout"),
    ("--name", "--label"),
    ("--limit", "--max-time"),
    ("--truth", "--log-messages"),
    ("--totals", "--summary"),
    ("--gmb-compat", "--go-mades-bench-compat"),
    ("--loss", "--drop"),
    ("--corruption", "--corrupt"),
    ("--error", "--reject"),
    ("--error-code", "--reject-code"),
    ("--error-message", "--reject-message"),
    ("--failure", "--fail"),
    ("--payload-limit", "--max-payload-size"),
    ("--queue-messages", "--max-queue-messages"),
    ("--queue-bytes", "--max-queue-size"),
    ("--store-messages", "--max-stored-messages"),
    ("--store-bytes", "--max-stored-size"),
    ("--sasl", "--auth-mechanism"),
    ("--auth", "--user"),
    ("--ca", "--cacert"),
    ("--cert", "--tls-cert"),
    ("--key", "--tls-key"),
    ("--server-name", "--tls-name"),
    ("--sni", "--tls-name"),
    ("--tls-insecure", "--insecure"),
    ("-k", "--insecure"),
    ("-u", "--user"),
    ("-o", "--out"),
    ("-z", "--duration"),
];

/// Options that mean nothing over AMQP, and what does the job. A row counts where the command has the option that its
/// text begins to explain.
const EXPLAINED: [(&[&str], &str, &str); 8] = [
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

/// What is said of an option that a command does not have; `usage` is how clap says that the command is used.
pub(super) fn refused(usage: &str, name: &str) -> Option<String> {
    let command = command(usage);
    if !COMMANDS.contains(&command.as_str()) {
        return None;
    }
    if !name.starts_with('-') {
        let is_broker = name.contains([':', '.']) && has(&command, "--broker");
        return is_broker.then(|| "the broker is an option: --broker URL".to_owned());
    }
    let renamed = RENAMED.iter().find(|(old, new)| *old == name && has(&command, new));
    let renamed = renamed.map(|(old, new)| format!("unknown option {old:?}; use {new}"));
    renamed.or_else(|| {
        let row = EXPLAINED.iter().find(|(names, instead, _)| names.contains(&name) && has(&command, instead));
        row.map(|(_, _, said)| (*said).to_owned())
    })
}

/// `Usage: mailrun bench mades [OPTIONS]` → `bench mades`.
fn command(usage: &str) -> String {
    let words = usage.split_whitespace().skip_while(|word| *word != "mailrun").skip(1);
    words.take_while(|word| !word.starts_with(['-', '[', '<'])).collect::<Vec<_>>().join(" ")
}

/// Tells whether a command has that option.
fn has(command: &str, option: &str) -> bool {
    let whole = super::Typed::command();
    let mut found = &whole;
    for name in command.split(' ') {
        let Some(inner) = found.find_subcommand(name) else { return false };
        found = inner;
    }
    found.get_arguments().any(|arg| arg.get_long().is_some_and(|long| option.strip_prefix("--") == Some(long)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_answered_where_the_new_one_is_known() {
        for (command, name, said) in [
            ("mades", "--outbox-url", Some("unknown option \"--outbox-url\"; use --broker")),
            ("mades-endpoint", "--gmb-compat", Some("unknown option \"--gmb-compat\"; use --go-mades-bench-compat")),
            ("bench mades", "--loss", Some("unknown option \"--loss\"; use --drop")),
            ("bench mades-compare", "--limit", Some("unknown option \"--limit\"; use --max-time")),
            ("mades", "--loss", None),
            ("source", "--size", None),
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
            let usage = format!("Usage: mailrun {command} [OPTIONS]");
            assert_eq!(refused(&usage, name).as_deref(), said, "{command} {name}");
        }
    }

    #[test]
    fn every_row_is_of_use() {
        for (old, new) in RENAMED {
            assert!(COMMANDS.iter().any(|command| has(command, new) && !has(command, old)), "{old} {new}");
        }
        for (names, instead, _) in EXPLAINED {
            assert!(COMMANDS.iter().any(|command| has(command, instead) && !has(command, names[0])), "{names:?}");
        }
    }
}
