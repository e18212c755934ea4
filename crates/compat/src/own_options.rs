//! mailrun's own options, which it adds to the options of each program that it imitates. They must come first on the
//! command line, so that the rest can be parsed exactly as the imitated program does.
use mailrun_net::{BusyPoll, WorkerOptions};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OwnOptions {
    /// Set by `--trace`: a source adds a trace header to each message, and smtp-sink looks for it.
    pub(super) traces: bool,
    /// Set by `--report`: the program prints a line with the rates at the end.
    pub(super) reports: bool,
    /// `--busy-poll`: time for which the worker looks for events before it sleeps.
    pub(super) busy_poll: BusyPoll,
}

impl OwnOptions {
    /// Parses mailrun's own options at the start of a command line. Returns the remaining words, or an error text about
    /// a wrong value.
    pub(super) fn parse_front<'w>(&mut self, mut words: &'w [String]) -> Result<&'w [String], String> {
        while let [word, rest @ ..] = words {
            if self.parse_flag(word) {
                words = rest;
            } else if let Some((_, value, rest)) = split_option(words, &["--busy-poll"])? {
                self.busy_poll = value.parse().map_err(|error| format!("bad time of --busy-poll: {error}"))?;
                words = rest;
            } else {
                break;
            }
        }
        Ok(words)
    }

    pub(super) fn worker_options(self) -> WorkerOptions {
        WorkerOptions { busy_poll: self.busy_poll, ..WorkerOptions::default() }
    }

    /// Returns true if sessions must record the time at which they begin each message, for traces or the report.
    pub(super) fn needs_times(self) -> bool {
        self.traces || self.reports
    }

    fn parse_flag(&mut self, word: &str) -> bool {
        match word {
            "--trace" => self.traces = true,
            "--report" => self.reports = true,
            _ => return false,
        }
        true
    }
}

type TakenOption<'w> = (&'w str, &'w str, &'w [String]);

/// Takes an option and its value, written as `NAME VALUE` or `NAME=VALUE`, from the start of a command line. Returns
/// the name, the value and the remaining words, or `None` if the first word is not one of `names`.
///
/// # Errors
///
/// Fails if the option has no value.
pub(super) fn split_option<'w>(words: &'w [String], names: &[&str]) -> Result<Option<TakenOption<'w>>, String> {
    let [word, rest @ ..] = words else { return Ok(None) };
    let (name, joined) = word.split_once('=').map_or((word.as_str(), None), |(name, value)| (name, Some(value)));
    match (joined, rest) {
        _ if !names.contains(&name) => Ok(None),
        (Some(value), rest) => Ok(Some((name, value, rest))),
        (None, [value, rest @ ..]) => Ok(Some((name, value, rest))),
        (None, []) => Err(format!("{name} requires an argument")),
    }
}

/// Command line of an imitated program. `program` is the word by which the program was called. The program's messages
/// contain this word.
#[derive(Debug)]
pub(crate) struct Invocation {
    pub(crate) program: String,
    pub(crate) arguments: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn they_come_first() {
        let words = ["--report", "--trace", "-d", "--trace"].map(str::to_owned);
        let mut extras = OwnOptions::default();
        assert_eq!(extras.parse_front(&words), Ok(&words[2..]));
        assert_eq!(extras, OwnOptions { traces: true, reports: true, ..OwnOptions::default() });
        let mut none = OwnOptions::default();
        let other = ["--trace=on", "--report"].map(str::to_owned);
        assert_eq!(none.parse_front(&other), Ok(&other[..]));
        assert_eq!(none, OwnOptions::default());
    }

    #[test]
    fn busy_polling_has_a_value() {
        for words in [&["--busy-poll", "50us", "-d"][..], &["--busy-poll=50us", "-d"]] {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            let mut extras = OwnOptions::default();
            assert_eq!(extras.parse_front(&words).map(<[String]>::len), Ok(1));
            assert_eq!(extras.worker_options().busy_poll, BusyPoll::For(Duration::from_micros(50)));
        }
        for words in [&["--busy-poll"][..], &["--busy-poll=soon"], &["--busy-poll", "-d"]] {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            assert!(OwnOptions::default().parse_front(&words).is_err());
        }
    }
}
