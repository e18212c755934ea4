//! Options of other tools (swaks, smtp-source, smtp-sink, wrk, oha, ab, k6, vegeta, curl) and of our other commands:
//! ours in their place.
use clap::CommandFactory;

/// Options of other tools, and what does the same here.
type Row = (&'static [&'static str], &'static str);

/// Commands that send mail.
const SENDERS: [&str; 2] = ["bench", "source"];

const OF_SENDERS: &[Row] = &[
    (&["--connections", "--concurrency", "--vus", "--parallel", "--users"], "--sessions"),
    (&["--requests", "--iterations", "--count"], "--messages"),
    (&["-z", "--time"], "--duration"),
    (&["-k"], "--insecure (as in curl) or --reuse (as in ab)"),
    (&["--keepalive", "--keep-alive"], "--reuse"),
    (&["--qps", "--rps"], "--rate"),
    (&["--ramp-up"], "--stage"),
    (&["-w"], "--think-time"),
    (&["-R"], "--think-time 0s..TIME"),
    (&["-t", "--recipient", "--rcpt-to"], "--to"),
    (&["-f", "--sender", "--mail-from"], "--from"),
    (&["-r", "--rcpt-count"], "--recipients"),
    (&["-S"], "--subject"),
    (&["-M", "--helo", "--lhlo", "-h-from"], "--ehlo"),
    (&["-F", "--body", "--data", "--header", "--h-Subject", "--attach", "--eml"], "--file MESSAGE.EML"),
    (&["--length", "--body-size"], "--message-size"),
    (&["-L"], "--lmtp"),
    (&["--protocol"], "--lmtp, --tls implicit or a URL as SERVER: lmtp://HOST, smtps://HOST"),
    (&["--server", "--host", "--target", "--url"], "SERVER without an option"),
    (&["-p", "--port"], "HOST:PORT as SERVER"),
    (&["--tls-on-connect", "-tlsc", "--ssl"], "--tls implicit"),
    (&["--starttls", "-tls"], "--tls starttls"),
    (&["--tls-ca-path", "--cafile", "--ca-file", "--capath"], "--cacert"),
    (&["--server-name"], "--tls-name"),
    (&["--cert"], "--tls-cert"),
    (&["--key"], "--tls-key"),
    (&["-au", "-u", "--auth-user", "--username", "--login"], "--user"),
    (&["-ap", "-P", "--auth-password", "--pass"], "--password-file FILE or the environment variable MAILRUN_PASSWORD"),
    (&["-a", "--sasl"], "--auth-mechanism"),
    (&["-li", "--local-interface", "--interface", "--source-address"], "--bind"),
    (&["--threads", "-T"], "--workers"),
    (&["-o", "--output"], "--out"),
    (&["--silent"], "--quiet"),
    (&["--fail-on", "--assert"], "--threshold"),
];

const OF_SINK: &[Row] = &[
    (&["-p", "--port", "--address", "--bind", "--host"], "--listen HOST:PORT"),
    (&["--connections", "--concurrency", "--max-connections"], "--max-sessions"),
    (&["-M", "--exit-after", "--count"], "--max-messages"),
    (&["-L"], "--lmtp"),
    (&["-d"], "--dump-dir"),
    (&["-D"], "--dump-file"),
    (&["-t", "--timeout"], "--idle-timeout"),
    (&["-w"], "--delay"),
    (&["-f", "-r", "-Q"], "--fault"),
    (&["-o", "--output"], "--out"),
    (&["--cert"], "--tls-cert"),
    (&["--key"], "--tls-key"),
    (&["--silent"], "--quiet"),
];

/// Faults, as the sink and the endpoint of MADES called them once.
const OF_FAULTS: &[Row] = &[
    (&["--loss"], "--drop"),
    (&["--corruption"], "--corrupt"),
    (&["--error"], "--reject"),
    (&["--failure"], "--fail"),
];

/// The option of a command that does what one of another tool does; of `-au`, which is read as `-a`, it is asked whole.
pub(super) fn our_name(command: &str, typed: &str) -> Option<&'static str> {
    let tables: &[&[Row]] = match command {
        "bench" => &[OF_SENDERS, OF_FAULTS],
        "sink" => &[OF_SINK, OF_FAULTS],
        command if SENDERS.contains(&command) => &[OF_SENDERS],
        _ => &[],
    };
    let rows = || tables.iter().copied().flatten();
    rows().find(|(names, _)| names.contains(&typed)).map(|(_, ours)| *ours)
}

/// Our commands that have an option of that name, in words.
pub(super) fn commands_with(typed: &str) -> Option<String> {
    let name = typed.split('=').next()?.strip_prefix("--")?;
    let whole = super::Typed::command();
    let has = |command: &&clap::Command| {
        command.get_arguments().any(|argument| argument.get_long() == Some(name) && !argument.is_hide_set())
    };
    let names: Vec<&str> = whole.get_subcommands().filter(has).map(clap::Command::get_name).collect();
    match names.as_slice() {
        [] => None,
        [name] => Some(format!("mailrun {name} has it")),
        [first @ .., last] => Some(format!("mailrun {} and {last} have it", first.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_names_an_option_that_the_command_has_and_none_that_it_has() {
        let whole = super::super::Typed::command();
        for (command, tables) in
            [("bench", &[OF_SENDERS, OF_FAULTS][..]), ("source", &[OF_SENDERS]), ("sink", &[OF_SINK, OF_FAULTS])]
        {
            let options = whole.find_subcommand(command).expect("it is one");
            let has = |name: &str| match name.strip_prefix("--") {
                Some(long) => options.get_arguments().any(|argument| argument.get_long() == Some(long)),
                None => name.chars().nth(1).is_some_and(|letter| {
                    name.len() == 2
                        && options.get_arguments().any(|argument| {
                            let shorts = argument.get_short_and_visible_aliases().unwrap_or_default();
                            shorts.contains(&letter)
                        })
                }),
            };
            for (typed, ours) in tables.iter().copied().flatten() {
                assert!(!ours.starts_with("--") || has(ours.split([' ', ',']).next().unwrap()), "{command}: {ours}");
                for name in *typed {
                    assert!(!has(name), "{command} has {name}");
                }
            }
        }
    }

    #[test]
    fn an_option_of_another_command_is_told() {
        assert_eq!(commands_with("--sink").as_deref(), Some("mailrun bench has it"));
        assert_eq!(commands_with("--recipients=5").as_deref(), Some("mailrun bench and source have it"));
        assert_eq!((commands_with("--frobnicate"), commands_with("-x")), (None, None));
    }
}
