//! Any octets to a listener of AMQP, whole and cut: it hears and says the same, bounded by what it was told, and no message
//! is lost. The last octet of the input chooses who may come in, and the cut.
use crate::{FuzzConnection, FuzzOutcome, ListenerAuth, Password, PlainCredentials};

/// Octets said before anything is heard, and for each octet that is heard. The dearest is a flow of 20 octets, which is
/// answered and lets a message of 600 go.
const SAID_BYTES: usize = 1024;
const SAID_FOR_EACH: usize = 64;
/// The largest message.
const MOST_BYTES: u64 = 1000;

fn mechanisms(choice: u8) -> ListenerAuth {
    match choice & 1 {
        0 => ListenerAuth::Any,
        _ => ListenerAuth::Plain(PlainCredentials { user: "endpoint".to_owned(), password: Password::new("password") }),
    }
}

/// Plays a listener to its end.
pub(crate) fn heard<'a>(pieces: impl Iterator<Item = &'a [u8]>, auth: ListenerAuth) -> FuzzOutcome {
    let mut rehearsal = FuzzConnection::new(auth, MOST_BYTES);
    for piece in pieces {
        rehearsal.feed(piece);
        // What is one too much ends its link, and is not kept.
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
