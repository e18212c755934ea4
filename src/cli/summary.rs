//! `-h`: the common options of a command on one screen. `--help` shows all options.
use clap::{Arg, Command};
use mailrun_report::wrap::wrapped;
use std::fmt::Write as _;

const WIDTH: usize = 80;
/// Column at which the text about an option begins.
const TEXT_COLUMN: usize = 28;

/// Returns the `-h` text of a command. `words` name the command, for example `bench relay-400`.
pub(super) fn of(command: &mut Command, words: &[&str]) -> String {
    match words {
        ["bench"] => return BENCH.to_owned(),
        ["source"] => return SOURCE.to_owned(),
        ["sink"] => return SINK.to_owned(),
        ["capacity"] => return CAPACITY.to_owned(),
        ["locust", "worker"] => return WORKER.to_owned(),
        _ => {}
    }
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let usage = command.render_usage().to_string();
    let mut text = format!("{}\n{usage}\n\n", wrapped(&about, "", "", WIDTH).join("\n"));
    push_commands(&mut text, command);
    push_options(&mut text, command);
    let _ = writeln!(text, "\nAll options, with examples: mailrun {} --help", words.join(" "));
    text
}

fn push_commands(text: &mut String, command: &Command) {
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set() && inner.get_name() != "help") {
        let about = inner.get_about().map(ToString::to_string).unwrap_or_default();
        push_row(text, &format!("  {}", inner.get_name()), &about);
    }
    if command.has_subcommands() {
        text.push('\n');
    }
}

fn push_options(text: &mut String, command: &Command) {
    for option in command.get_arguments().filter(|option| !option.is_hide_set() && !option.is_hide_short_help_set()) {
        let help = option.get_help().map(ToString::to_string).unwrap_or_default();
        push_row(text, &format!("  {}", name_and_value(option)), &(first_sentence(&help) + &default(option)));
    }
}

/// Formats an option as `-m, -n, --messages N`, and a positional argument as `SERVER`.
fn name_and_value(option: &Arg) -> String {
    let Some(long) = option.get_long() else { return option.to_string() };
    let shorts = option.get_short_and_visible_aliases().unwrap_or_default();
    let names: String = shorts.into_iter().map(|short| format!("-{short}, ")).collect();
    let values = option.get_value_names().filter(|_| option.get_action().takes_values()).unwrap_or_default();
    let values: Vec<&str> = values.iter().map(|value| value.as_str()).collect();
    let is_optional = option.get_num_args().is_some_and(|number| number.min_values() == 0);
    match values.join(" ") {
        values if values.is_empty() => format!("{names}--{long}"),
        values if is_optional => format!("{names}--{long} [{values}]"),
        values => format!("{names}--{long} {values}"),
    }
}

/// Adds a name with its text beside it, or below it if the name is long.
fn push_row(text: &mut String, name: &str, about: &str) {
    let indent = " ".repeat(TEXT_COLUMN);
    let is_long = name.chars().count() + 2 > TEXT_COLUMN;
    if is_long {
        let _ = writeln!(text, "{name}");
    }
    let first = if is_long { indent.clone() } else { format!("{name:TEXT_COLUMN$}") };
    for line in wrapped(about, &first, &indent, WIDTH) {
        let _ = writeln!(text, "{line}");
    }
}

/// Formats the default value as ` [VALUE]`. Returns an empty string if there is none.
fn default(option: &Arg) -> String {
    let values: Vec<_> = option.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    let is_plain = values.is_empty() || !option.get_action().takes_values();
    if is_plain { String::new() } else { format!(" [{}]", values.join(",")) }
}

/// Returns the first sentence of a help text. If that sentence is long, returns only the part
/// before its first colon or semicolon.
fn first_sentence(text: &str) -> String {
    let sentence = text.split(". ").next().unwrap_or(text).trim_end_matches('.');
    let is_long = sentence.chars().count() > 2 * (WIDTH - TEXT_COLUMN);
    let end = sentence.find([';', ':']).filter(|_| is_long).unwrap_or(sentence.len());
    sentence[..end].to_owned()
}

const BENCH: &str = "\
Measures a mail server. Without a server: a demonstration, source -> mailrun
relay -> sink on this host.

Usage: mailrun bench [OPTIONS] [SERVER]   HOST[:25], smtp://, smtps://, lmtp://
       mailrun bench SCENARIO [OPTIONS]     relay-400 relay-64k relay-100k
         relay-latency relay-backlog relay-soak mades mades-compare
         smtp-source-table smtp-source-check kotlin-profile sizes
         large-message; your own: FILE.toml (--list)

  -m, -n, --messages N      number of messages    -s, -c, --sessions N  [100]
  -d, --duration TIME       length of the run   -l, --message-size BYTES [400]
      --rate N              open loop: N per second, or 500/m
      --reuse [N]           N messages per connection, without N no limit
      --to, --from ADDRESS  recipient and sender [to@example.com]
      --sink URL            mailrun sink that the server delivers to
      --sink-listen ADDR    the same, started by this bench
      --relay WHICH         without a server: mailrun, postfix, FILE.toml, none
      --tls WHEN            none, starttls, implicit; --cacert FILE, --insecure
      --user NAME           login; --password-file FILE or MAILRUN_PASSWORD
      --threshold EXPR      'accepted.p99 < 50ms', 'rejected <= 0.1%', ...
      --out DIR, --json FILE|-   results;  -q, --quiet   -v, --verbose

  mailrun bench mx.example --to ann@mx.example
  mailrun bench 127.0.0.1:25 --sink http://127.0.0.1:8025 -m 10000 -s 50
All options: mailrun bench --help, mailrun bench SCENARIO --help
";

const SOURCE: &str = "\
Sends mail and measures the latency of every phase.

Usage: mailrun source [OPTIONS] SERVER    HOST[:25], smtp://, smtps://, lmtp://,
                                          unix:PATH
  -m, -n, --messages N      number of messages [10000 without -d]
  -d, --duration TIME       length of the run
  -s, -c, --sessions N      parallel sessions [100]
  -l, --message-size BYTES  400, 64k, 400..64k, lognormal:4k,1.2 [400]
      --corpus PATH         mail from an mbox, a Maildir or .eml files
      --rate N              open loop: N per second, or 500/m
      --reuse [N]           N messages per connection, without N no limit
      --pipelining MODE     off, group, stream
      --to, --from ADDRESS  recipient and sender [to@example.com]
      --recipients N        recipients per message [1]
      --tls WHEN            none, starttls, implicit; --cacert FILE, --insecure
      --user NAME           login; --password-file FILE or MAILRUN_PASSWORD
      --threshold EXPR      'accepted.p99 < 50ms', 'rejected <= 0.1%', ...
      --out DIR, --json FILE|-   results;  -q, --quiet   -v, --verbose

  mailrun source 127.0.0.1:2525 -m 1000 -s 10
All options: mailrun source --help
";

const SINK: &str = "\
Accepts mail, checks the trace headers of mailrun source, counts every message.

Usage: mailrun sink [OPTIONS]

      --listen HOST:PORT    [127.0.0.1:2525]; also :2525, unix:PATH
      --http HOST:PORT      JSON: /status, /ledger, /rules
  -m, -n, --max-messages N  end after N messages
      --max-message-size BYTES  [1G]
      --tls WHEN            none, starttls, implicit; --tls-cert, --tls-key FILE
      --tls-write-cert FILE write the self-signed certificate
      --auth-any, --auth-users FILE   offer AUTH;  --auth-required
      --lmtp                LMTP instead of SMTP
      --fault RULE          'drop 1%', 'delay 20ms', 'rcpt: soft reject 1%', ...
      --dump-dir DIR, --dump-file FILE, --maildir DIR      store messages
      --out DIR, --json FILE|-   results;  -q, --quiet   -v, --verbose

  mailrun sink --listen 127.0.0.1:2525 --http 127.0.0.1:8025
All options and rules: mailrun sink --help
";

const WORKER: &str = "\
Sends mail for a Locust master: each user is a session.

Usage: mailrun locust worker [OPTIONS] SERVER    HOST[:25], smtp://, smtps://,
                                                 lmtp://, unix:PATH
      --master-host HOST    the Locust master [127.0.0.1];  --master-port [5557]
      --master-timeout TIME end if there is no master for this long [5m]
      --allow-target SERVER server that the master may name, besides SERVER
      --max-sessions N      most sessions that a master can ask for [1000]
      --drain TIME          time for messages under way at a stop [5s]
  -l, --message-size BYTES  400, 64k, 400..64k, lognormal:4k,1.2 [400]
      --corpus PATH         mail from an mbox, a Maildir or .eml files
      --reuse [N]           N messages per connection, without N no limit
      --pipelining MODE     off, group, stream
      --think-time TIME     pause of a session after each message
      --to, --from ADDRESS  recipient and sender [to@example.com]
      --recipients N        recipients per message [1]
      --tls WHEN            none, starttls, implicit; --cacert FILE, --insecure
      --user NAME           login; --password-file FILE or MAILRUN_PASSWORD

  mailrun locust worker mx.example --master-host 192.0.2.1
All options: mailrun locust worker --help
";

const CAPACITY: &str = "\
Finds the highest rate that a server takes and still meets its goals.

Usage: mailrun capacity [OPTIONS] [SERVER]    HOST[:25], smtp://, smtps://,
                                              lmtp://, unix:PATH
       mailrun capacity mades [OPTIONS]       a MADES endpoint
      --goal EXPR           'delivered.p99 < 1s', 'rejected <= 0.1%'; repeatable
      --quick               a fifth of the time: trials of 2 s, bounds of 5 %
      --rfc2544             one trial of 60 s for each rate; needs --max-rate
      --min-rate, --max-rate RATE   [10/s, 1M/s]
      --trial TIME          length of a trial [5s]
      --max-time TIME       longest time of all trials [20m]
      --confirm TIME        trials at 80, 100 and 120 % [60s]; 0s for none
      --peak RATE           plan: instances and headroom at --safety 0.6
      --messages-per-user N plan: users in the busy hour
  -s, -c, --sessions N      parallel sessions [100]
  -l, --message-size BYTES  [400]
      --reuse [N]           N messages per connection, without N no limit
      --sink URL            mailrun sink that the server delivers to
      --sink-listen ADDR    the same, started for each trial
      --relay WHICH         without a server: mailrun, postfix, a command [none]
      --out DIR, --json FILE|-   results;  -q, --quiet

  mailrun capacity 127.0.0.1:25 --sink-listen :2526 --goal 'delivered.p99 < 1s'
All options: mailrun capacity --help
";

#[cfg(test)]
mod tests {
    use super::super::Cli;
    use super::*;
    use clap::CommandFactory;

    /// Every command and subcommand, with the words that invoke it.
    fn all(command: &Command, words: &[String]) -> Vec<Vec<String>> {
        let inner = command.get_subcommands().filter(|inner| !inner.is_hide_set());
        let below = inner.flat_map(|inner| all(inner, &[words, &[inner.get_name().to_owned()]].concat()));
        std::iter::once(words.to_vec()).chain(below).collect()
    }

    fn found<'a>(command: &'a mut Command, words: &[String]) -> &'a mut Command {
        words.iter().fold(command, |command, word| command.find_subcommand_mut(word).unwrap())
    }

    #[test]
    fn a_summary_fits_a_screen() {
        let whole = Cli::command();
        for words in all(&whole, &[]).into_iter().filter(|words| !words.is_empty()) {
            if words.last().is_some_and(|word| word.starts_with("mades")) {
                continue;
            }
            let names: Vec<&str> = words.iter().map(String::as_str).collect();
            let text = of(found(&mut Cli::command(), &words), &names);
            assert!(text.lines().count() <= 42, "{names:?}: {} lines\n{text}", text.lines().count());
            assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{names:?}\n{text}");
        }
    }

    #[test]
    fn a_summary_names_options_that_exist() {
        for name in ["bench", "source", "sink", "capacity", "locust worker"] {
            let words: Vec<&str> = name.split(' ').collect();
            let mut whole = Cli::command();
            let command = words.iter().fold(&mut whole, |command, word| command.find_subcommand_mut(word).unwrap());
            let text = of(command, &words);
            let is_known = |option: &str| {
                let long = option.trim_start_matches("--");
                long == "help" || command.get_arguments().any(|known| known.get_long() == Some(long))
            };
            let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
            for option in words.filter(|word| word.starts_with("--")) {
                assert!(is_known(option), "{name}: {option}");
            }
        }
    }
}
