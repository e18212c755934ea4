//! Options of the source that the help of `bench` and `capacity` mentions only by name, because few runs need them. An
//! example is `--dsn-notify`.
use clap::Arg;
use mailrun_text::wrap::wrapped;
use std::ffi::OsString;

/// Source options that the help of `bench` and `capacity` lists without an explanation. `--workers` and `--busy-poll`
/// apply to every process of a bench, and the others to the source.
const OPTIONS: [&str; 17] = [
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

/// Width in columns to which `help` wraps its text, because clap does not wrap it.
const HELP_WIDTH: usize = 80;

/// Options of the load that `capacity` refuses, because the search chooses rates and durations itself.
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

/// Returns the text at the end of a command's help: the names of all `OPTIONS`, and the command's examples. Leaves out
/// the option with the name `missing`, because the command does not have it.
pub(crate) fn help(missing: &str, examples: &str) -> String {
    let names = OPTIONS.iter().filter(|name| **name != missing).map(|name| format!("--{name}"));
    let about = format!(
        "More options, which mailrun source --help explains; --workers and --busy-poll apply to every party: {}.",
        names.collect::<Vec<_>>().join(", ")
    );
    format!("{}\n\n{examples}", wrapped(&about, "", "  ", HELP_WIDTH).join("\n"))
}

pub(crate) fn hide(argument: Arg) -> Arg {
    let is_rare = argument.get_long().is_some_and(|long| OPTIONS.contains(&long));
    if is_rare { argument.hide(true) } else { argument }
}

/// Hides an option from the help of `capacity` if it is in `OPTIONS`, or if a capacity search refuses it.
pub(crate) fn hide_for_capacity(argument: Arg) -> Arg {
    let is_refused = argument.get_long().is_some_and(|long| NOT_OF_A_SEARCH.contains(&long));
    if is_refused { argument.hide(true) } else { hide(argument) }
}

/// Removes `--` from a command line of `bench` or `capacity`, so that old scripts still work. Options of the source
/// once had to follow `--`.
pub(crate) fn without_dashes(mut words: Vec<OsString>) -> Vec<OsString> {
    if words.get(1).is_some_and(|command| command == "bench" || command == "capacity")
        && let Some(at) = words.iter().position(|word| word == "--")
    {
        words.remove(at);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;
    use crate::help::misuse;
    use clap::CommandFactory;

    fn answer(line: &str) -> String {
        let words: Vec<OsString> = std::iter::once("mailrun").chain(line.split(' ')).map(OsString::from).collect();
        Cli::parse_words(&words)
            .map_or_else(|error| misuse::sentence(&error, &words, &Cli::all_commands()), |_| String::new())
    }

    #[test]
    fn options_of_the_source_stand_anywhere_and_may_follow_dashes() {
        for line in [
            "bench a:1 --dsn-notify never -m 5",
            "bench a:1 -- --dsn-notify never",
            "bench --no-tls-resumption --tls starttls --workers=2 a:1 -- --bind 127.0.0.2",
            "bench -m 5 -- --workers 2 --busy-poll 50us --run-id 0123456789abcdef0123456789abcdef",
            "bench a:1 --rate 5 -- --arrival=poisson",
            "bench a:1 --binarymime --chunking",
            "bench a:1 --",
            "capacity --arrival poisson a:1",
            "capacity a:1 -- --arrival poisson --xclient NAME=a --xclient ADDR=192.0.2.1",
            "source a:1 --dsn-notify never --workers 2",
        ] {
            assert_eq!(answer(line), "", "{line}");
        }
    }

    #[test]
    fn a_mistake_is_the_same_before_and_after_dashes() {
        for (line, expected) in [
            ("bench a:1 {}--frobnicate", "unknown option \"--frobnicate\". See --help."),
            ("bench a:1 {}--binarymime", "--chunking is required. See --help."),
            ("bench a:1 --seed 1 {}--seed 2", "--seed <N> must not be given more than once. See --help."),
            ("bench a:1 {}b:1", "unexpected argument \"b:1\"; one server is measured at a time. See --help."),
        ] {
            for dashes in ["", "-- "] {
                assert_eq!(answer(&line.replace("{}", dashes)), expected, "{line} {dashes}");
            }
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
