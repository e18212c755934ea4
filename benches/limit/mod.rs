//! The limit: the same SMTP bytes over raw epoll with no accounting at all; what source and sink are held against.
//!
//! One thread a side, one `recv` and one `send` a turn, no clock, no ledger, no checksum, no check of what was
//! typed. What a real source and sink lose against this pair is the price of measuring. The pair is the bench's
//! own binary started again under another name:
//!
//! ```text
//! side_by_side limit-sink                                          prints the listening line, then serves until killed
//! side_by_side limit-source PORT MESSAGES SESSIONS OCTETS MODE     prints what it did and ends
//! ```
//! With `--spin` as the last word a side never sleeps: with one session most of a round trip is else the waking of idle
//! processors.

mod plan;
mod sink;
mod sockets;
mod source;

use std::ffi::OsString;

pub(crate) use sockets::Waiting;

/// What ends a message: the last line's CRLF, a dot, CRLF (RFC 5321 §4.1.1.4).
const END_OF_DATA: &[u8] = b"\r\n.\r\n";

/// Plays one side of the pair if the command line names one; `None` means that this process is the bench itself.
pub(crate) fn play(arguments: &[OsString]) -> Option<anyhow::Result<()>> {
    let words: Vec<&str> = arguments.iter().skip(1).filter_map(|word| word.to_str()).collect();
    let (words, waiting) = match words.as_slice() {
        [words @ .., "--spin"] => (words, Waiting::Spins),
        words => (words, Waiting::Sleeps),
    };
    match words {
        ["limit-sink"] => Some(sink::run(waiting)),
        ["limit-source", rest @ ..] => Some(plan::Plan::from_words(rest).and_then(|plan| source::run(&plan, waiting))),
        _ => None,
    }
}
