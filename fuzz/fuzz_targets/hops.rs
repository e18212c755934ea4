//! Any octets as a message, whole and cut: the same hops are counted, those of the header alone; and any client's name in the field that is written: it is one field.
#![no_main]
#[path = "../../crates/relay/src/message/received.rs"]
#[allow(dead_code)] // a part of it is the relay's
mod received;

use libfuzzer_sys::fuzz_target;
use mailrun_smtp::command::Hello;
use received::{HeaderProgress, ReceivedCount, ReceivedField};

fn counted(message: &[u8], block: usize, limit: usize) -> (u32, HeaderProgress) {
    let mut hops = ReceivedCount::new(limit);
    message.chunks(block).for_each(|block| hops.feed(block));
    (hops.count(), hops.header())
}

fuzz_target!(|data: &[u8]| {
    let [block, limit, message @ ..] = data else { return };
    let limit = usize::from(*limit) * 16;
    let whole = counted(message, message.len().max(1), limit);
    assert_eq!(counted(message, usize::from(*block).max(1), limit), whole);
    if whole.1 != HeaderProgress::TooLarge {
        assert_eq!(counted(message, 1, message.len()), whole);
    }
    assert!(whole.0 as usize * "received:".len() <= message.len().min(limit));

    let middle = message.len() / 2;
    let stamp = ReceivedField {
        name: &message[..middle],
        client: "[127.0.0.1]",
        host: "relay.example",
        hello: Hello::Extended,
        smtp_utf8: block % 2 == 0,
        tls: None,
        authenticated: false,
        id: b"1",
        recipient: Some(&message[middle..]),
    };
    let mut field = Vec::new();
    stamp.write("Sat, 21 Nov 2026 09:30:00 +0000", &mut field);
    assert!(field.split(|octet| *octet == b'\n').all(|line| line.len() <= 1000));
    let fields = field.windows(3).filter(|three| three.starts_with(b"\r\n") && three[2] != b'\t').count();
    assert_eq!(fields, 0, "{}", String::from_utf8_lossy(&field));
    field.extend_from_slice(b"\r\n");
    assert_eq!(counted(&field, 7, field.len()), (1, HeaderProgress::Ended));
});
