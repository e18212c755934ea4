//! Prints the texts of commands on standard output, and formats their errors.
use crate::report::results::write_all;
use anyhow::Result;
use mailrun_text::printable::printable;
use std::io;

/// Maximum number of error lines to print. A faulty configuration file may cause many.
const MAX_ERROR_LINES: usize = 5;

/// Prints a result or a report on standard output.
///
/// # Errors
///
/// Returns an error if standard output cannot be written. If the reader closes the pipe, this is not an error.
pub(crate) fn say(text: &str) -> Result<()> {
    write_all(&mut io::stdout().lock(), text)
}

/// Formats the error of a command that could not run. Each problem that the error lists gets a line of its own.
pub(crate) fn failure(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    let lines = text.lines().map(|line| without_error_numbers(&one_line(line)));
    let lines: Vec<String> = lines.filter(|line| !line.is_empty()).collect();
    let shown =
        lines.iter().take(MAX_ERROR_LINES).map(|line| printable(line).into_owned()).collect::<Vec<_>>().join("\n");
    let more = match lines.len().saturating_sub(MAX_ERROR_LINES) {
        0 => String::new(),
        more => format!("and {more} more\n"),
    };
    format!("mailrun: {shown}\n{more}")
}

/// Removes the numbers of system errors, which mean nothing to users. For example, `No such file or directory (os error
/// 2)` becomes `No such file or directory`.
pub(crate) fn without_error_numbers(line: &str) -> String {
    let mut parts = line.split(" (os error ");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(')') {
            Some((number, rest)) if number.bytes().all(|letter| letter.is_ascii_digit()) => plain.push_str(rest),
            _ => plain = format!("{plain} (os error {part}"),
        }
    }
    plain
}

pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
