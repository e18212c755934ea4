//! Feeds arbitrary bytes to an AMQP client as a server's output. The result must not depend on how the bytes are split
//! into reads. The client's output must stay in proportion to the input, and no message that the client has sent may be
//! lost. The last byte only selects the client's login, and how many of the other bytes the client reads at once.
use crate::{ClientLogin, FuzzConnection, FuzzOutcome, Password, ScramHash};

/// Limits the client's output to this many bytes, plus `SAID_FOR_EACH` bytes for each byte of input. A flow frame of 20
/// bytes causes the most output, because it makes the client answer and send a message of 600 bytes.
const SAID_BYTES: usize = 2048;
const SAID_FOR_EACH: usize = 64;
const MOST_BYTES: u64 = 1000;

pub fn login(choice: u8) -> ClientLogin {
    let password = || Password::new("pencil");
    match choice & 3 {
        0 => ClientLogin::Anonymous,
        1 => ClientLogin::Plain { user: "user".to_owned(), password: password() },
        2 => ClientLogin::External,
        _ => ClientLogin::Scram {
            hash: ScramHash::Sha256,
            user: "user".to_owned(),
            password: password(),
            nonce: "rOprNGfwEbeRWgbNEkqO".to_owned(),
        },
    }
}

pub(crate) fn heard<'a>(pieces: impl Iterator<Item = &'a [u8]>, login: ClientLogin) -> FuzzOutcome {
    let mut rehearsal = FuzzConnection::client(login, MOST_BYTES);
    for piece in pieces {
        rehearsal.feed(piece);
        assert!(rehearsal.incomplete_bytes() <= 2 * MOST_BYTES);
    }
    rehearsal.finish()
}

/// Returns true if the input may contain a SCRAM challenge with 10,000 or more iterations, which would make the check
/// too slow. The tests of `mailrun_sasl` check how a client limits the number of iterations.
fn is_costly(octets: &[u8]) -> bool {
    let asks = |at: usize| octets[at..].starts_with(b"i=") && octets.get(at + 6).is_some_and(u8::is_ascii_digit);
    (0..octets.len()).any(asks)
}

pub fn check(data: &[u8]) {
    let Some((&choice, octets)) = data.split_last() else { return };
    if is_costly(octets) {
        return;
    }
    let whole = heard(std::iter::once(octets), login(choice));
    assert_eq!(whole.lost, 0);
    assert!(whole.output.len() <= SAID_BYTES + SAID_FOR_EACH * octets.len());
    assert_eq!(heard(octets.chunks(1), login(choice)), whole);
    assert_eq!(heard(octets.chunks(usize::from(choice >> 2) + 2), login(choice)), whole);
}
