//! The limit, also called the raw pair: a source and a sink that exchange the same SMTP bytes as mailrun's source and
//! sink, but over raw epoll and without measuring anything. Mailrun is compared with this pair.
//!
//! Each side has one thread, which calls `recv` once for each readable socket and usually answers with one `send`. It
//! reads no clock per message, keeps no ledger, computes no checksum and hardly checks its input. If mailrun is slower,
//! the difference is therefore the price of measuring. Each side is the bench's own binary, started again with other
//! arguments:
//!
//! ```text
//! side_by_side limit-sink                                          prints the listening line, then serves until killed
//! side_by_side limit-source PORT MESSAGES SESSIONS OCTETS MODE     prints what it did and ends
//! ```
//! With `--spin` as the last argument, a side polls its sockets instead of sleeping. Without this option, most of the
//! round trip of a single session is the time that idle processors need to wake up.

mod plan;
mod sink;
mod sockets;
mod source;

use std::ffi::OsString;

pub(crate) use sockets::Waiting;

/// End of a message: the last line's CRLF, a dot, CRLF (RFC 5321 §4.1.1.4).
const END_OF_DATA: &[u8] = b"\r\n.\r\n";

/// Runs the raw sink or the raw source if the command line asks for one of them. Returns `None` if it asks for neither,
/// because this process is then the bench itself.
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
