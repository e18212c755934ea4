//! Turns each mistake on the command line into one plain sentence with the cause and, if known, the remedy.
use crate::help::other_names;
use crate::options::values::POSITIONAL;
use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use mailrun_text::words::is_misspelling;
use std::error::Error as _;
use std::ffi::OsString;

/// Arguments, and the error message to print if the argument is missing. clap's own message would not mention what the
/// user can type instead, for example `--broker` instead of `--embedded`.
const ALTERNATIVES: [(&str, &str); 5] = [
    ("--embedded", "--embedded or --broker <URL> is required"),
    ("--config <FILE>", "--config <FILE>, or --to <WHERE> and --spool <DIR>, is required"),
    ("<ID|all>...", "an id, all, or --hop <NAME> is required"),
    ("<RUN>...", "a run is required: a run directory, a run.json, or - for standard input"),
    ("<SERVER>", "a server is required: HOST or HOST:PORT"),
];

/// Describes a mistake on the command line in one sentence, without clap's line breaks and tips. `whole` must be the
/// command `mailrun` with all its subcommands, because the sentence may name another subcommand that has the option.
pub(crate) fn sentence(error: &clap::Error, typed: &[OsString], whole: &Command) -> String {
    if error.kind() == ErrorKind::Io {
        // Errors of kind `Io` are about scenario files. Their text already names the place of the mistake, so keep it.
        return crate::report::messages::without_error_numbers(&fallback(error));
    }
    let may_be_other = matches!(
        error.kind(),
        ErrorKind::UnknownArgument
            | ErrorKind::ValueValidation
            | ErrorKind::InvalidValue
            | ErrorKind::ArgumentConflict
            | ErrorKind::DisplayHelp
    );
    let advice = may_be_other.then(|| other_options(typed, whole)).flatten();
    let text = advice.or_else(|| match error.kind() {
        ErrorKind::InvalidSubcommand => unknown_command(error),
        ErrorKind::UnknownArgument => unknown_argument(error, typed, whole),
        ErrorKind::ValueValidation => invalid_value(error, typed),
        ErrorKind::InvalidValue => impossible_value(error),
        ErrorKind::MissingRequiredArgument => missing(error),
        ErrorKind::ArgumentConflict => conflict(error),
        ErrorKind::TooManyValues => argument(error).map(|name| format!("{name} takes no value")),
        ErrorKind::NoEquals => {
            argument(error).map(|name| format!("the value of {name} needs an equal sign, without blanks"))
        }
        ErrorKind::MissingSubcommand => {
            one(error, ContextKind::ValidSubcommand).map(|known| format!("a command is required: {known}"))
        }
        _ => None,
    });
    ended(text.unwrap_or_else(|| fallback(error)))
}

fn ended(text: String) -> String {
    if text.ends_with('?') { text } else { format!("{}. See --help.", text.trim_end_matches('.')) }
}

fn fallback(error: &clap::Error) -> String {
    let text = error.to_string();
    let what = text.strip_prefix("error: ").unwrap_or(&text);
    let what = what.split("\n\nUsage:").next().unwrap_or(what).split("\n\nFor more").next().unwrap_or(what);
    crate::report::messages::one_line(what.split("\n\n").next().unwrap_or(what))
}

fn unknown_command(error: &clap::Error) -> Option<String> {
    let name = one(error, ContextKind::InvalidSubcommand)?;
    if let Some(ours) = other_names::our_command(&name) {
        return Some(format!("unknown command {name:?}; use {ours}"));
    }
    let all = list(error, ContextKind::SuggestedSubcommand);
    let known = all.iter().rfind(|known| is_misspelling(&name, known));
    Some(with_suggestion(format!("unknown command {name:?}"), &name, known.map(String::as_str)))
}

fn unknown_argument(error: &clap::Error, typed: &[OsString], whole: &Command) -> Option<String> {
    let name = argument(error)?;
    let path = path(error);
    if let Some(advice) = other_names::advice_on(whole, &path, &name) {
        return Some(advice);
    }
    let is_number = name.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    if is_number {
        return Some(format!("{name:?}: a value must not be negative"));
    }
    if !name.starts_with('-') {
        let is_address = command(typed) == "sink" && name.contains(':');
        let hint = if is_address { format!("; write --listen {name}") } else { String::new() };
        return Some(format!("unexpected argument {name:?}{hint}"));
    }
    let known = one(error, ContextKind::SuggestedArg);
    match known.filter(|known| is_misspelling(&name, known)) {
        Some(known) => Some(format!("unknown option {name:?}; did you mean {known:?}?")),
        None => match other_names::commands_with(whole, &name) {
            Some(commands) => Some(format!("unknown option {name:?} here; {commands}")),
            None => Some(format!("unknown option {name:?}")),
        },
    }
}

/// Returns advice about all options on the command line that the command does not have, or `None` if no advice is
/// known. clap's own error is not enough, because clap stops at the first unknown option. clap also reads a long option
/// with a single dash, such as swaks' `-li` or Go's `-rate`, as several short options.
fn other_options(typed: &[OsString], whole: &Command) -> Option<String> {
    let words: Vec<&str> =
        typed.iter().skip(1).map_while(|word| word.to_str()).take_while(|word| *word != "--").collect();
    let (path, arguments) = split_path(&words, whole);
    let names = arguments.iter().map(|word| word.split('=').next().unwrap_or(word));
    let mut advice: Vec<String> = Vec::new();
    for name in names.filter(|name| is_other(whole, &path, name)) {
        let long = format!("-{name}");
        let known = [name, &long].into_iter().find_map(|name| other_names::advice_on(whole, &path, name));
        let as_long = || other_names::has(whole, &path, &long).then(|| format!("unknown option {name:?}; use {long}"));
        let text = known.or_else(as_long);
        advice.extend(text.filter(|text| !advice.contains(text)));
    }
    if path == "bench" && arguments.first().is_some_and(|word| other_names::GENERATOR_COMMANDS.contains(word)) {
        advice.push(format!("leave {:?} out: mailrun bench SERVER, or mailrun bench FILE.toml", arguments[0]));
    }
    (!advice.is_empty()).then(|| advice.join("; "))
}

/// Returns true for a word that is written like an option but is unknown to this command.
fn is_other(whole: &Command, path: &str, name: &str) -> bool {
    let Some(rest) = name.strip_prefix('-').filter(|rest| !rest.is_empty()) else { return false };
    let is_number = rest.starts_with(|c: char| c.is_ascii_digit());
    !is_number && !["-h", "--help", "-V", "--version"].contains(&name) && !other_names::has(whole, path, name)
}

/// Splits the words of a command line into the command, for example `bench mades`, and its arguments.
fn split_path<'a, 'b>(words: &'a [&'b str], whole: &Command) -> (String, &'a [&'b str]) {
    let mut command = whole;
    let is_command = |word: &&&str| match command.find_subcommand(word) {
        Some(inner) => {
            command = inner;
            true
        }
        None => false,
    };
    let count = words.iter().take_while(is_command).count();
    (words[..count].join(" "), &words[count..])
}

/// Returns the error message for a word such as `-ha`, which clap would take for `-h` and answer with the help.
pub(crate) fn mistaken_help(error: &clap::Error, typed: &[OsString], whole: &Command) -> Option<String> {
    let is_mistaken =
        |word: &OsString| word.to_str().and_then(|word| word.strip_prefix("-h")).is_some_and(|rest| !rest.is_empty());
    let is_help = error.kind() == ErrorKind::DisplayHelp && typed.iter().any(is_mistaken);
    other_options(typed, whole).filter(|_| is_help).map(ended)
}

fn command(typed: &[OsString]) -> String {
    typed.get(1).map_or_else(String::new, |word| word.to_string_lossy().into_owned())
}

/// Describes a value that its parser rejected. The value is left out if the parser's text already contains it.
fn invalid_value(error: &clap::Error, typed: &[OsString]) -> Option<String> {
    let name = argument(error)?;
    let name = name.split([' ', '[', '<']).next().unwrap_or(&name);
    let value = one(error, ContextKind::InvalidValue)?;
    let reason = error.source()?.to_string();
    if reason == POSITIONAL {
        return Some(reason.replace("COMMAND", &command(typed)));
    }
    let is_said = reason.contains(&value) || value.is_empty();
    Some(match (name, is_said) {
        // A positional argument has no option name, so the error message begins with the rejected value. If the reason
        // already contains the value, the message is only the reason.
        ("", true) => reason,
        ("", false) => format!("{value:?}: {reason}"),
        (name, true) => format!("{name}: {reason}"),
        (name, false) => format!("{name} {value:?}: {reason}"),
    })
}

fn impossible_value(error: &clap::Error) -> Option<String> {
    let name = argument(error)?;
    let value = one(error, ContextKind::InvalidValue).unwrap_or_default();
    if value.is_empty() {
        let known = list(error, ContextKind::ValidValue);
        let values = if known.is_empty() { String::new() } else { format!(": {}", known.join(", ")) };
        return Some(format!("{name} needs a value{values}"));
    }
    let name = name.split([' ', '[']).next().unwrap_or(&name);
    let known = list(error, ContextKind::ValidValue);
    let text = format!("{name}: {value:?} is not one of {}", known.join(", "));
    Some(with_suggestion(text, &value, known.iter().find(|known| is_misspelling(&value, known)).map(String::as_str)))
}

fn missing(error: &clap::Error) -> Option<String> {
    let names = list(error, ContextKind::InvalidArg);
    if let [name] = names.as_slice()
        && let Some((_, text)) = ALTERNATIVES.iter().find(|(known, _)| known == name)
    {
        return Some((*text).to_owned());
    }
    let verb = if names.len() == 1 { "is" } else { "are" };
    (!names.is_empty()).then(|| format!("{} {verb} required", names.join(" and ")))
}

fn conflict(error: &clap::Error) -> Option<String> {
    let others = list(error, ContextKind::PriorArg);
    if let Some(word) = one(error, ContextKind::InvalidSubcommand) {
        return Some(match crate::bench::is_scenario(&word) {
            true => format!("options of {word} must follow it: write {word} first"),
            false => format!("unexpected argument {word:?}; one server is measured at a time"),
        });
    }
    let name = argument(error)?;
    if others.is_empty() {
        return Some(format!("{name} must stand alone"));
    }
    if others.iter().all(|other| *other == name) {
        return Some(format!("{name} must not be given more than once"));
    }
    let others: Vec<&str> = others.iter().map(|other| unbracketed(other)).collect();
    Some(format!("{} cannot be used together with {}", unbracketed(&name), others.join(" and ")))
}

/// Removes the brackets around the name of an optional positional argument, as in `[SERVER]`.
fn unbracketed(name: &str) -> &str {
    name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name)
}

/// Appends "did you mean NAME?" if the known name is similar to the typed one.
fn with_suggestion(text: String, name: &str, known: Option<&str>) -> String {
    match known.filter(|known| is_misspelling(name, known)) {
        Some(known) => format!("{text}; did you mean {known:?}?"),
        None => text,
    }
}

/// Returns the name of the subcommand with the mistake. clap gives this name only in the usage line of its error. For
/// example, returns `bench mades` for `Usage: mailrun bench mades [OPTIONS]`.
fn path(error: &clap::Error) -> String {
    let usage = error.get(ContextKind::Usage).map(ToString::to_string).unwrap_or_default();
    let words = usage.split_whitespace().skip_while(|word| *word != "mailrun").skip(1);
    words.take_while(|word| !word.starts_with(['-', '[', '<'])).collect::<Vec<_>>().join(" ")
}

fn argument(error: &clap::Error) -> Option<String> {
    one(error, ContextKind::InvalidArg)
}

fn one(error: &clap::Error, kind: ContextKind) -> Option<String> {
    let all = list(error, kind);
    (!all.is_empty()).then(|| all.join(", "))
}

fn list(error: &clap::Error, kind: ContextKind) -> Vec<String> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.clone()],
        Some(ContextValue::Strings(all)) => all.clone(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;

    fn message(line: &str) -> String {
        let words: Vec<OsString> = std::iter::once("mailrun").chain(line.split(' ')).map(OsString::from).collect();
        sentence(&Cli::parse_words(&words).unwrap_err(), &words, &Cli::all_commands())
    }

    #[test]
    fn mistakes_are_one_plain_sentence() {
        for (line, text) in [
            ("bnech", "unknown command \"bnech\"; did you mean \"bench\"?"),
            ("fnord", "unknown command \"fnord\". See --help."),
            ("worker a:1", "unknown command \"worker\"; use mailrun locust worker. See --help."),
            ("bench --sessoins 4", "unknown option \"--sessoins\"; did you mean \"--sessions\"?"),
            ("source a:1 --time 4s", "unknown option \"--time\"; use --duration. See --help."),
            ("source a:1 b:1", "unexpected argument \"b:1\". See --help."),
            ("bench --message-size -1", "--message-size: \"-1\": must be positive. See --help."),
            ("bench --messages -1", "--messages: \"-1\": must be positive. See --help."),
            ("bench --think-time -1", "--think-time: \"-1\": must not be negative. See --help."),
            ("bench --messages -1k", "--messages: \"-1k\": must be positive. See --help."),
            ("bench -d -1s", "--duration: \"-1s\": must be positive. See --help."),
            ("bench --reuse -5", "--reuse: \"-5\": must be positive. See --help."),
            ("bench --reuse 0..5", "--reuse \"0..5\": \"0\": must be more than zero. See --help."),
            (
                "run load.js",
                "unknown command \"run\"; use mailrun bench SERVER, or mailrun bench FILE.toml for a scenario. See --help.",
            ),
            (
                "bench a:1 -rate 5 -duration=5s",
                "unknown option \"-rate\"; use --rate; unknown option \"-duration\"; use --duration. See --help.",
            ),
            ("bench a:1 -duration=5s", "unknown option \"-duration\"; use --duration. See --help."),
            ("bench a:1 -li 127.0.0.2", "unknown option \"-li\"; use --bind. See --help."),
            ("bench a:1 --tls", "--tls <TLS> needs a value: none, starttls, implicit. See --help."),
            ("bench a:1 b:1", "unexpected argument \"b:1\"; one server is measured at a time. See --help."),
            (
                "source a:1 --sink http://a:1",
                "unknown option \"--sink\" here; mailrun bench, probe, merge, compare and capacity have it. See --help.",
            ),
            ("source a:1 --strict=yes", "--strict takes no value. See --help."),
            ("sink -1", "\"-1\": a value must not be negative. See --help."),
            ("bench --seed 1 --seed 2", "--seed <N> must not be given more than once. See --help."),
            ("bench --tls maybe", "--tls: \"maybe\" is not one of none, starttls, implicit. See --help."),
            ("bench --rate", "--rate <PER SECOND> needs a value. See --help."),
            ("bench a:1 --relay none", "SERVER cannot be used together with --relay <WHICH>. See --help."),
            ("source", "a server is required: HOST or HOST:PORT. See --help."),
            ("source a:x", "\"a:x\": the port must be a number from 1 to 65535, not \"x\". See --help."),
            ("relay", "--config <FILE>, or --to <WHERE> and --spool <DIR>, is required. See --help."),
            ("mades-endpoint", "--embedded or --broker <URL> is required. See --help."),
            ("report", "a run is required: a run directory, a run.json, or - for standard input. See --help."),
            ("report r --format juint", "--format \"juint\": unknown format; did you mean junit?"),
            (
                "report r --share --format md",
                "--share[=<short>] cannot be used together with --format <FORMAT>. See --help.",
            ),
            ("bench --export junit", "--export: must be FORMAT=FILE, such as junit=mailrun.xml. See --help."),
            ("queue retry --spool d", "an id, all, or --hop <NAME> is required. See --help."),
        ] {
            assert_eq!(message(line), text, "{line}");
        }
    }

    #[test]
    fn a_value_is_said_once() {
        let text = message("bench --rate fast");
        assert!(text.starts_with("--rate: \"fast\" ") && text.matches("fast").count() == 1, "{text}");
    }
}
