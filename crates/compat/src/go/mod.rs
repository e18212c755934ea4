//! The behaviour that all programs written in Go share: command lines, numbers, durations and log lines.
pub(crate) mod duration;
pub(crate) mod flags;
pub(crate) mod numbers;
use super::timing;
use flags::BadFlag;
use std::io::{self, Write};
use std::process::ExitCode;

/// Exit status with which Go programs end after a bad flag or a panic.
pub(crate) const EXIT_BAD_FLAG: u8 = 2;

pub(crate) fn log(text: &str) {
    let line = format!("{} {}", timing::local_time("%Y/%m/%d %H:%M:%S"), printable(text));
    print_error_line(line.trim_end_matches('\n'));
}

pub(crate) fn print_error_line(text: &str) {
    // Ignore the error, because there is no other place to report that standard error cannot be written.
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}

pub(crate) fn report_bad_flag(error: &BadFlag, usage: &str) -> ExitCode {
    let is_help = *error == BadFlag::Help;
    if !is_help {
        print_error_line(&error.to_string());
    }
    print_error_line(usage.trim_end());
    if is_help { ExitCode::SUCCESS } else { ExitCode::from(EXIT_BAD_FLAG) }
}

pub(crate) fn print(text: &str) {
    let mut out = io::stdout().lock();
    // Ignore the error, because a reader that has closed the pipe does not want the rest.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Replaces each control character with `?`, so that a peer cannot control the terminal. Line feeds stay, because they
/// may be part of a file name.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '?' } else { c }).collect()
}

/// Returns Go's text for a system error: the text of strerror(3) with a lower-case first letter.
pub(crate) fn reason(error: &io::Error) -> String {
    let text = mailrun_process::reason::reason(error);
    let mut chars = text.chars();
    chars.next().map(|first| first.to_lowercase().chain(chars).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_word_steers_a_terminal() {
        assert_eq!(printable("550 a\u{1b}[2J\r\nbé\u{9b}"), "550 a?[2J?\nbé?");
    }
}
