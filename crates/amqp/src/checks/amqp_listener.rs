//! Feeds arbitrary bytes to an AMQP listener as a client's output. The result must not depend on how the bytes are
//! split into reads. The listener must stay within its limits and lose no message. The last byte is not fed: it selects
//! which logins the listener accepts, and the size of the reads for the bytes before it.
use crate::{FuzzConnection, FuzzOutcome, ListenerAuth, Password, PlainCredentials};

/// Limits the listener's output to this many bytes, plus `SAID_FOR_EACH` bytes for each byte of input. A flow frame of
/// 20 bytes causes the most output, because it makes the listener answer and send a message of 600 bytes.
const SAID_BYTES: usize = 1024;
const SAID_FOR_EACH: usize = 64;
const MOST_BYTES: u64 = 1000;

fn mechanisms(choice: u8) -> ListenerAuth {
    match choice & 1 {
        0 => ListenerAuth::Any,
        _ => ListenerAuth::Plain(PlainCredentials { user: "endpoint".to_owned(), password: Password::new("password") }),
    }
}

pub(crate) fn heard<'a>(pieces: impl Iterator<Item = &'a [u8]>, auth: ListenerAuth) -> FuzzOutcome {
    let mut rehearsal = FuzzConnection::server(auth, MOST_BYTES);
    for piece in pieces {
        rehearsal.feed(piece);
        // The listener must drop a message that is too long. Otherwise, a peer could make it use all memory.
        assert!(rehearsal.incomplete_bytes() <= 2 * MOST_BYTES);
    }
    rehearsal.finish()
}

pub fn check(data: &[u8]) {
    let Some((&choice, octets)) = data.split_last() else { return };
    let whole = heard(std::iter::once(octets), mechanisms(choice));
    assert_eq!(whole.lost, 0);
    assert!(whole.output.len() <= SAID_BYTES + SAID_FOR_EACH * octets.len());
    assert_eq!(heard(octets.chunks(1), mechanisms(choice)), whole);
    assert_eq!(heard(octets.chunks(usize::from(choice >> 1) + 2), mechanisms(choice)), whole);
}
