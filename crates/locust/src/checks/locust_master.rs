//! Feeds arbitrary bytes to the parsers of a Locust master's messages: as a single message, at the start of a
//! connection, and after a valid greeting. After the greeting, pieces of 3 bytes must give the same messages as all
//! bytes at once.
use crate::{DealerConnection, MasterCommand};

const READY: &[u8] = b"\x04\x29\x05READY\x0bSocket-Type\0\0\0\x06ROUTER\x08Identity\0\0\0\0";

fn messages(data: &[u8], step: usize) -> Option<Vec<Vec<u8>>> {
    let mut greeting = vec![0; 64];
    greeting[0] = 0xFF;
    greeting[9] = 0x7F;
    greeting[10] = 3;
    greeting[12..16].copy_from_slice(b"NULL");
    greeting.extend_from_slice(READY);
    greeting.extend_from_slice(data);
    let mut dealer = DealerConnection::new("host_1");
    for piece in greeting.chunks(step) {
        dealer.receive(piece).ok()?;
    }
    Some(std::iter::from_fn(|| dealer.next_message()).collect())
}

pub fn check(data: &[u8]) {
    let _ = MasterCommand::decode(data);
    let _ = DealerConnection::new("host_1").receive(data);
    let whole = messages(data, usize::MAX);
    assert_eq!(messages(data, 3), whole, "pieces make no difference");
    for message in whole.into_iter().flatten() {
        if let Some(MasterCommand::Spawn(target)) = MasterCommand::decode(&message) {
            assert!(target.timestamp.is_finite() && target.classes.len() <= 64);
        }
    }
}
