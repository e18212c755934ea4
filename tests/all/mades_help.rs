//! The help of the MADES commands: `-h` fits on one screen, `--help` has everything, and the plan file in it works when
//! copied.
use crate::party::{MAILRUN, run};
use crate::stand_in_endpoint::Endpoint;
use std::fs;
use std::process::Command;

const COMMANDS: [&[&str]; 4] = [&["mades"], &["mades-endpoint"], &["bench", "mades"], &["bench", "mades-compare"]];
const LINES: usize = 40;

/// Returns the help that a command prints with `option` (`-h` or `--help`) on a terminal with `columns` columns.
fn help(command: &[&str], option: &str, columns: usize) -> String {
    let ended = Command::new(MAILRUN).args(command).arg(option).env("COLUMNS", columns.to_string()).output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    String::from_utf8(ended.stdout).unwrap()
}

/// Returns the long options in those lines of a help text that begin with an option.
fn options(help: &str) -> Vec<&str> {
    let named = |line: &'_ str| line.trim_start().starts_with('-');
    let words = help.lines().filter(|line| named(line)).flat_map(str::split_whitespace);
    words.filter(|word| word.starts_with("--")).map(|word| word.split(['=', '[']).next().unwrap()).collect()
}

#[test]
fn the_short_help_fits_a_screen_and_the_long_one_has_everything() {
    for command in COMMANDS {
        let short = help(command, "-h", 80);
        assert!(short.lines().count() <= LINES, "{command:?}: {} lines\n{short}", short.lines().count());
        assert!(short.lines().all(|line| line.chars().count() <= 80), "{command:?}\n{short}");
        let long = help(command, "--help", 80);
        for option in options(&short) {
            assert!(options(&long).contains(&option), "{command:?}: {option}");
        }
        assert!(options(&long).len() > options(&short).len(), "{command:?}");
        for heading in ["Examples:", "Results:"] {
            assert!(long.contains(heading), "{command:?}: {heading}\n{long}");
        }
    }
}

#[test]
fn the_plan_in_the_help_can_be_copied() {
    let place = tempfile::tempdir().unwrap();
    for columns in [80, 100] {
        let long = help(&["mades-endpoint"], "--help", columns);
        let begin = long.find("\nmode = ").unwrap();
        let plan = place.path().join("plan.toml");
        fs::write(&plan, &long[begin..]).unwrap();
        let endpoint = Endpoint::embedded(&["--plan", plan.to_str().unwrap()]);
        assert_eq!(endpoint.stop().code, Some(0));
        let broken = long[begin..].replacen("mode = ", "modes = ", 1);
        fs::write(&plan, broken).unwrap();
        let ended = run(MAILRUN, &["mades-endpoint", "--embedded", "--plan", plan.to_str().unwrap()]);
        let said = format!("{}:2:1: unknown key \"modes\"; did you mean \"mode\"?", plan.display());
        assert!(ended.code == Some(2) && ended.err.contains(&said), "{ended:?}");
    }
}
