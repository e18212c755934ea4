//! Tests of the help texts: the program must accept each example, and `-h` must fit a screen.
use crate::Cli;
use crate::help::summary;
use clap::Command;

/// Maximum number of lines of a help text. A terminal of 24 lines shows this many lines above the prompt.
const SCREEN_LINES: usize = 23;

const SHORT_HELP_COMMANDS: [&str; 3] = ["relay", "queue", "spool"];

fn walk(command: &Command, path: &[String], each: &mut impl FnMut(&[String], &Command)) {
    each(path, command);
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        walk(inner, &[path, &[inner.get_name().to_owned()]].concat(), each);
    }
}

fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quote = None;
    let mut spaces = 0;
    for letter in line.chars() {
        match (quote, letter) {
            (Some(open), _) if letter == open => quote = None,
            (None, '\'' | '"') => quote = Some(letter),
            (None, ' ') => {
                spaces += 1;
                if spaces == 1 {
                    words.push(String::new());
                }
                continue;
            }
            // Stop at two or more blanks, because they separate an example's command from a remark about it.
            (None, _) if spaces > 1 => break,
            (None, '|' | '>' | '&' | '#') if words.last().is_some_and(String::is_empty) => break,
            _ => words.last_mut().expect("there is one").push(letter),
        }
        spaces = 0;
    }
    words.retain(|word| !word.is_empty());
    words
}

fn examples(command: &Command) -> Vec<String> {
    let short = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let long = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    let help = format!("{short}\n{long}").replace("Example: mailrun", "mailrun");
    help.lines().map(str::trim).filter(|line| line.starts_with("mailrun ")).map(str::to_owned).collect()
}

#[test]
fn a_line_is_divided_as_a_shell_does() {
    for (line, expected) in [
        ("mailrun bench  the default", vec!["mailrun", "bench"]),
        ("mailrun bench --threshold 'a < b' x | jq .y", vec!["mailrun", "bench", "--threshold", "a < b", "x"]),
        ("mailrun sink &", vec!["mailrun", "sink"]),
    ] {
        assert_eq!(words(line), expected, "{line}");
    }
}

#[test]
fn every_example_is_accepted() {
    let mut faults = Vec::new();
    let mut count = 0;
    walk(&Cli::all_commands(), &[], &mut |path, command| {
        let is_held = path.first().is_some_and(|first| SHORT_HELP_COMMANDS.contains(&first.as_str()));
        let all = examples(command);
        if is_held && all.is_empty() {
            faults.push(format!("{path:?} has no example"));
        }
        for line in all {
            count += 1;
            if let Err(error) = Cli::parse_words(words(&line)) {
                faults
                    .push(format!("{line}\n    {}", crate::help::misuse::sentence(&error, &[], &Cli::all_commands())));
            }
        }
    });
    assert!(faults.is_empty() && count > 20, "{count} examples\n{}", faults.join("\n"));
}

#[test]
fn short_help_fits_a_screen() {
    for name in SHORT_HELP_COMMANDS {
        let mut command = Cli::all_commands();
        let help = summary::of(command.find_subcommand_mut(name).expect("it is a command"), &[name]);
        let lines = help.trim_end().lines().count();
        let widest = help.lines().map(|line| line.chars().count()).max().unwrap_or_default();
        assert!(lines <= SCREEN_LINES && widest <= 80, "{name}: {lines} lines, {widest} columns\n{help}");
    }
}
