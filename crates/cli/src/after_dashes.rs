//! Options of the source that `bench` and `capacity` take after `--`, for example
//! `mailrun bench SERVER -- --dsn-notify never`.
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use mailrun_report::quoted;
use mailrun_text::wrap::wrapped;
use std::ffi::{OsStr, OsString};

/// Commands that take options of the source after `--`.
pub(super) const COMMANDS: [&str; 2] = ["bench", "capacity"];

/// Source options that must follow `--`. `--workers` and `--busy-poll` apply to every party, the
/// others only to the source.
pub(super) const OPTIONS: [&str; 17] = [
    "arrival",
    "bind",
    "binarymime",
    "busy-poll",
    "connect-timeout",
    "dsn-envid",
    "dsn-notify",
    "dsn-orcpt",
    "dsn-ret",
    "max-corpus-size",
    "no-tls-resumption",
    "proxy-protocol",
    "run-id",
    "subject",
    "workers",
    "write-size",
    "xclient",
];

/// Width of the help text in columns. clap does not wrap this text itself.
const HELP_WIDTH: usize = 80;

/// Load options that `capacity` refuses, because the search chooses rates and durations itself.
const NOT_OF_A_SEARCH: [&str; 10] = [
    "abort-on",
    "duration",
    "messages",
    "no-preflight",
    "rate",
    "stage",
    "strict",
    "think-time",
    "threshold",
    "warm-up",
];

/// Returns the help text that lists these options, followed by the command's examples. `missing` is
/// an option that the command does not have.
pub(super) fn help(missing: &str, examples: &str) -> String {
    let names = OPTIONS.iter().filter(|name| **name != missing).map(|name| format!("--{name}"));
    let about = format!(
        "Options after --, as mailrun source --help explains them; --workers and --busy-poll apply to every party: {}.",
        names.collect::<Vec<_>>().join(", ")
    );
    format!("{}\n\n{examples}", wrapped(&about, "", "  ", HELP_WIDTH).join("\n"))
}

/// Hides an option from `bench --help` if the option must follow `--`.
pub(super) fn hide(argument: Arg) -> Arg {
    let is_moved = is_moved(&argument);
    if is_moved { argument.hide(true) } else { argument }
}

/// Like `hide`, but also hides the options that a capacity search refuses.
pub(super) fn hide_for_capacity(argument: Arg) -> Arg {
    let is_refused = argument.get_long().is_some_and(|long| NOT_OF_A_SEARCH.contains(&long));
    if is_refused { argument.hide(true) } else { hide(argument) }
}

fn is_moved(argument: &Arg) -> bool {
    argument.get_long().is_some_and(|long| OPTIONS.contains(&long))
}

/// Parses a command line, including the source options after `--`.
///
/// # Errors
///
/// clap's own errors, and an option on the wrong side of `--`.
pub(super) fn matches(commands: Command, words: &[OsString]) -> Result<ArgMatches, clap::Error> {
    let name = words.get(1).and_then(|word| word.to_str()).filter(|name| COMMANDS.contains(name));
    let Some(name) = name else { return commands.try_get_matches_from(words) };
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let before = commands.clone().try_get_matches_from(&words[..end])?;
    let Some(typed) = before.subcommand_matches(name) else { return Ok(before) };
    if typed.subcommand_name().is_some() {
        return if end == words.len() {
            Ok(before)
        } else {
            Err(error(format!("{} takes nothing after --", first_words(words))))
        };
    }
    let command = commands.find_subcommand(name).expect("it was found before");
    let misplaced: Vec<&Arg> = command.get_arguments().filter(|one| is_moved(one) && count(typed, one) > 0).collect();
    let after = words.get(end + 1..).unwrap_or_default();
    if let Some(first) = misplaced.first() {
        let line = corrected_line(&words[..end], after, &misplaced);
        return Err(error(format!("{} must follow --: {line}", option(first))));
    }
    let all = commands.clone().try_get_matches_from(words[..end].iter().chain(after))?;
    let late = all.subcommand_matches(name).expect("it was found before");
    match command.get_arguments().find(|one| !is_moved(one) && count(late, one) > count(typed, one)) {
        Some(one) => Err(error(format!("write {} before --", option(one)))),
        None => Ok(all),
    }
}

/// Returns the command and the scenario, for example `bench relay-400`.
fn first_words(words: &[OsString]) -> String {
    words.iter().skip(1).take(2).map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Returns how often the argument was given on the command line.
fn count(matches: &ArgMatches, argument: &Arg) -> usize {
    let id = argument.get_id().as_str();
    match matches.value_source(id) {
        Some(ValueSource::CommandLine) => matches.indices_of(id).map_or(0, Iterator::count),
        _ => 0,
    }
}

fn option(argument: &Arg) -> String {
    argument.get_long().map_or_else(|| argument.get_id().to_string().to_uppercase(), |long| format!("--{long}"))
}

/// Returns the corrected command line, with the misplaced options moved behind `--`.
fn corrected_line(before: &[OsString], after: &[OsString], misplaced: &[&Arg]) -> String {
    let mut kept = vec![OsStr::new("mailrun")];
    let mut moved = Vec::new();
    let mut rest = before[1..].iter();
    while let Some(word) = rest.next() {
        let text = word.to_string_lossy();
        let (name, has_value) = text.split_once('=').map_or((&*text, false), |(name, _)| (name, true));
        match misplaced.iter().find(|one| option(one) == name) {
            None => kept.push(word),
            Some(one) => {
                moved.push(word.as_os_str());
                if !has_value && one.get_action().takes_values() {
                    moved.extend(rest.next().map(OsString::as_os_str));
                }
            }
        }
    }
    kept.push(OsStr::new("--"));
    let line = kept.into_iter().chain(moved).chain(after.iter().map(OsString::as_os_str));
    quoted(&line.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>())
}

fn error(text: String) -> clap::Error {
    clap::Error::raw(ErrorKind::ArgumentConflict, text)
}

#[cfg(test)]
mod tests {
    use super::super::{Cli, misuse};
    use super::*;
    use clap::CommandFactory;

    fn answer(line: &str) -> String {
        let words: Vec<OsString> = std::iter::once("mailrun").chain(line.split(' ')).map(OsString::from).collect();
        Cli::parse_words(&words).map_or_else(|error| misuse::sentence(&error, &words), |_| String::new())
    }

    #[test]
    fn options_of_the_source_follow_dashes() {
        for line in [
            "bench a:1 -- --dsn-notify never",
            "bench -m 5 -- --workers 2 --busy-poll 50us --run-id 0123456789abcdef0123456789abcdef",
            "bench a:1 --rate 5 -- --arrival=poisson",
            "bench a:1 --chunking -- --binarymime",
            "bench a:1 --",
            "capacity a:1 -- --arrival poisson --xclient NAME=a --xclient ADDR=192.0.2.1",
            "source a:1 --dsn-notify never --workers 2",
        ] {
            assert_eq!(answer(line), "", "{line}");
        }
    }

    #[test]
    fn an_option_on_the_wrong_side_is_answered_with_the_line_to_type() {
        for (line, expected) in [
            (
                "bench a:1 --dsn-notify never -m 5",
                "--dsn-notify must follow --: mailrun bench a:1 -m 5 -- --dsn-notify never. See --help.",
            ),
            (
                "bench --no-tls-resumption --tls starttls --workers=2 a:1 -- --bind 127.0.0.2",
                "--workers must follow --: mailrun bench --tls starttls a:1 -- --no-tls-resumption --workers=2 \
                 --bind 127.0.0.2. See --help.",
            ),
            (
                "capacity --arrival poisson",
                "--arrival must follow --: mailrun capacity -- --arrival poisson. See --help.",
            ),
            ("bench a:1 -- --rate 5", "write --rate before --. See --help."),
            ("bench a:1 --to b@c -- --to b@d", "write --to before --. See --help."),
            ("bench -- a:1", "write SERVER before --. See --help."),
            ("bench relay-400 -- --workers 2", "bench relay-400 takes nothing after --. See --help."),
            ("bench a:1 -- --frobnicate", "unknown option \"--frobnicate\". See --help."),
            ("bench a:1 -- --binarymime", "--chunking is required. See --help."),
        ] {
            assert_eq!(answer(line), expected, "{line}");
        }
    }

    #[test]
    fn each_of_them_is_an_option_of_the_source_and_not_in_the_lists() {
        let whole = Cli::command();
        for name in OPTIONS {
            let of = |command: &str| {
                let mut all = whole.find_subcommand(command).unwrap().get_arguments();
                all.find(|one| one.get_long() == Some(name)).unwrap()
            };
            assert!(name == "run-id" || !of("source").is_hide_set(), "{name}");
            assert!(of("bench").is_hide_set(), "{name}");
        }
    }
}
