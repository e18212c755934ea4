//! What the program says on standard error, in the way of Go's log package: date, time, text.
use super::flags::BadFlag;
use crate::personality::date;
use std::io::{self, Write};
use std::process::ExitCode;

/// What Go exits with after a bad flag, and after a panic.
pub(crate) const MISUSED: u8 = 2;

/// What ends the program with status 1.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Fatal(pub(crate) String);

/// Says a line.
pub(crate) fn log(text: &str) {
    let line = format!("{} {}", date::now("%Y/%m/%d %H:%M:%S"), printable(text));
    say(line.trim_end_matches('\n'));
}

/// Says a line as it is.
pub(crate) fn say(text: &str) {
    // Without a standard error there is nobody to tell.
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// Says what is wrong with the command line, if anything is, and how the program is used.
pub(crate) fn explain(bad: &BadFlag, usage: &str) -> ExitCode {
    let is_help = *bad == BadFlag::Help;
    if !is_help {
        say(&bad.to_string());
    }
    say(usage.trim_end());
    if is_help { ExitCode::SUCCESS } else { ExitCode::from(MISUSED) }
}

/// Says something on standard output, at once.
pub(crate) fn tell(text: &str) {
    let mut out = io::stdout().lock();
    // A reader that went away has read enough.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// One `?` for each control character but the line feed, which a file's name may have.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_word_steers_a_terminal() {
        assert_eq!(printable("550 a\u{1b}[2J\r\nbé\u{9b}"), "550 a?[2J?\nbé?");
    }
}
