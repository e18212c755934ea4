//! The limit: a source and a sink that exchange the same SMTP bytes over raw epoll and keep no
//! accounts. Mailrun's source and sink are compared with this pair.
//!
//! Each side has one thread, makes one `recv` and one `send` a turn, and has no clock, no ledger,
//! no checksum and no check of the input. The difference to a real source and sink is the price of
//! measuring. The pair is the bench's own binary, started again under another name:
//!
//! ```text
//! side_by_side limit-sink                                          prints the listening line, then serves until killed
//! side_by_side limit-source PORT MESSAGES SESSIONS OCTETS MODE     prints what it did and ends
//! ```
//! With `--spin` as the last word, a side never sleeps. With one session, most of a round trip is
//! otherwise the time to wake idle processors.

mod plan;
mod sink;
mod sockets;
mod source;

use std::ffi::OsString;

pub(crate) use sockets::Waiting;

/// End of a message: the last line's CRLF, a dot, CRLF (RFC 5321 §4.1.1.4).
const END_OF_DATA: &[u8] = b"\r\n.\r\n";

/// Plays one side of the pair if the command line names a side. Returns `None` if this process is
/// the bench itself.
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
