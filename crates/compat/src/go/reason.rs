//! Reasons of failed system calls, in Go's words.
use std::io;

/// Returns Go's text for a system error: the text of strerror(3) with a lower-case first letter.
pub(crate) fn reason(error: &io::Error) -> String {
    let text = mailrun_process::reason::reason(error);
    let mut chars = text.chars();
    chars.next().map(|first| first.to_lowercase().chain(chars).collect()).unwrap_or_default()
}
