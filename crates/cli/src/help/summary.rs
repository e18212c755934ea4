//! The text of `-h`: the common options of a command on one screen. `--help` shows all options.
use crate::help::man::visible_commands;
use clap::{Arg, Command};
use mailrun_text::wrap::wrapped;
use std::fmt::Write as _;

const WIDTH: usize = 80;
/// Column at which the description of an option begins.
const TEXT_COLUMN: usize = 28;

/// A command that has so many options that `-h` shows only the usual ones.
struct Usual {
    command: &'static str,
    /// Long names of the usual options, separated by blanks, in the order in which they are shown.
    options: &'static str,
    examples: &'static [&'static str],
}

const USUAL: [Usual; 6] = [
    Usual {
        command: "bench",
        options: "messages duration sessions message-size rate reuse to from sink sink-listen relay tls \
                  user threshold out json quiet",
        examples: &[
            "mailrun bench mx.example --to ann@mx.example",
            "mailrun bench 127.0.0.1:25 --sink http://127.0.0.1:8025 -m 10000 -s 50",
            "mailrun bench 127.0.0.1:25 --rate 100 -d 10s --threshold 'accepted.p99 < 1s'",
        ],
    },
    Usual {
        command: "source",
        options: "messages duration sessions message-size corpus rate reuse pipelining to from recipients \
                  tls cacert insecure user threshold out json quiet",
        examples: &[
            "mailrun source 127.0.0.1:2525 -m 1000 -s 10",
            "mailrun source smtps://mx.example --rate 500/m --threshold 'accepted.p99 < 1s'",
        ],
    },
    Usual {
        command: "send",
        options: "to from header subject body attach file dump quit-after show-cert tls cacert insecure user lmtp pipe \
                  raw quiet",
        examples: &[
            "mailrun send 127.0.0.1:2525 --to ann@a.example --subject hello --body text",
            "mailrun send ann@a.example --quit-after rcpt",
            "mailrun send smtps://mx.example --show-cert --quit-after tls",
        ],
    },
    Usual {
        command: "sink",
        options: "listen http max-messages max-message-size tls tls-cert tls-key tls-write-cert auth-any \
                  auth-users lmtp fault dialogue dialogue-of maildir dump-dir out json quiet",
        examples: &["mailrun sink --listen 127.0.0.1:2525 --http 127.0.0.1:8025"],
    },
    Usual {
        command: "capacity",
        options: "goal quick rfc2544 min-rate max-rate trial max-time confirm peak messages-per-user \
                  sessions message-size reuse sink sink-listen relay out json quiet",
        examples: &["mailrun capacity 127.0.0.1:25 --sink-listen :2526 --goal 'delivered.p99 < 1s'"],
    },
    Usual {
        command: "locust worker",
        options: "master-host master-port master-timeout allow-target max-sessions drain message-size \
                  corpus reuse pipelining think-time to from recipients tls cacert insecure user",
        examples: &["mailrun locust worker mx.example --master-host 192.0.2.1"],
    },
];

/// Returns the `-h` text of a command. `words` are the name of the command, for example `bench` and `relay-400`.
pub(crate) fn of(command: &mut Command, words: &[&str]) -> String {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let usage = command.render_usage().to_string();
    let mut text = format!("{}\n{usage}\n\n", wrapped(&about, "", "", WIDTH).join("\n"));
    if let Some(usual) = USUAL.iter().find(|usual| usual.command == words.join(" ")) {
        push_command_names(&mut text, command);
        let positional = command.get_arguments().filter(|option| option.is_positional());
        let named = usual
            .options
            .split(' ')
            .filter_map(|name| command.get_arguments().find(|option| option.get_long() == Some(name)));
        push_options(&mut text, positional.chain(named));
        text.push('\n');
        for example in usual.examples {
            let _ = writeln!(text, "  {example}");
        }
    } else {
        push_commands(&mut text, command);
        let is_shown = |option: &&Arg| !option.is_hide_set() && !option.is_hide_short_help_set();
        push_options(&mut text, command.get_arguments().filter(is_shown));
        text.push('\n');
    }
    let _ = writeln!(text, "All options, with examples: mailrun {} --help", words.join(" "));
    text
}

fn push_command_names(text: &mut String, command: &Command) {
    let names: Vec<&str> = visible_commands(command).map(Command::get_name).collect();
    if !names.is_empty() {
        let heading = command.get_subcommand_help_heading().unwrap_or("Commands");
        let indent = " ".repeat(heading.len() + 2);
        let _ = writeln!(text, "{}", wrapped(&names.join(" "), &format!("{heading}: "), &indent, WIDTH).join("\n"));
    }
}

fn push_commands(text: &mut String, command: &Command) {
    for inner in visible_commands(command) {
        let about = inner.get_about().map(ToString::to_string).unwrap_or_default();
        push_row(text, &format!("  {}", inner.get_name()), &about);
    }
    if command.has_subcommands() {
        text.push('\n');
    }
}

fn push_options<'a>(text: &mut String, options: impl Iterator<Item = &'a Arg>) {
    for option in options {
        let help = option.get_help().map(ToString::to_string).unwrap_or_default();
        push_row(text, &format!("  {}", name_and_value(option)), &(first_sentence(&help) + &default(option)));
    }
}

/// Formats the names of an option, for example `-m, -n, --messages N`, or `SERVER` for a positional argument.
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

/// Adds a row of help: a name and its description, which begins on the next line if the name is too long.
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

fn default(option: &Arg) -> String {
    let values: Vec<_> = option.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    let is_plain = values.is_empty() || !option.get_action().takes_values();
    if is_plain { String::new() } else { format!(" [{}]", values.join(",")) }
}

/// Returns the first sentence or, if it is long, only the part before its first colon or semicolon.
fn first_sentence(text: &str) -> String {
    let sentence = text.split(". ").next().unwrap_or(text).trim_end_matches('.');
    let is_long = sentence.chars().count() > 2 * (WIDTH - TEXT_COLUMN);
    let end = sentence.find([';', ':']).filter(|_| is_long).unwrap_or(sentence.len());
    sentence[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;

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
        let whole = Cli::all_commands();
        for words in all(&whole, &[]).into_iter().filter(|words| !words.is_empty()) {
            if words.last().is_some_and(|word| word.starts_with("mades")) {
                continue;
            }
            let names: Vec<&str> = words.iter().map(String::as_str).collect();
            let text = of(found(&mut whole.clone(), &words), &names);
            assert!(text.lines().count() <= 42, "{names:?}: {} lines\n{text}", text.lines().count());
            assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{names:?}\n{text}");
        }
    }

    #[test]
    fn a_summary_names_options_that_exist() {
        for usual in &USUAL {
            let words: Vec<String> = usual.command.split(' ').map(str::to_owned).collect();
            let mut whole = Cli::all_commands();
            let command = found(&mut whole, &words);
            for name in usual.options.split(' ') {
                assert!(
                    command.get_arguments().any(|known| known.get_long() == Some(name)),
                    "{}: {name}",
                    usual.command
                );
            }
        }
    }
}
