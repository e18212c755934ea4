//! Feeds arbitrary bytes as a message to the counter of `Received:` fields, once in one piece and once in several
//! pieces. Both counts must be equal, and no larger than the number of fields that fit into the maximum size of a
//! header. Whatever the client's name contains, the relay must write exactly one `Received:` field.
use crate::message::envelope::WithProtocol;
use crate::message::received::{HeaderProgress, ReceivedCount, ReceivedField};

const DATE: &str = "Sat, 21 Nov 2026 09:30:00 +0000";

/// Feeds the message to the counter of `Received:` fields in blocks of `block` bytes. Returns the number of fields, and
/// whether the header has ended or is too large.
pub(crate) fn counted(message: &[u8], block: usize, limit: usize) -> (u32, HeaderProgress) {
    let mut hops = ReceivedCount::new(limit);
    message.chunks(block.max(1)).for_each(|block| hops.feed(block));
    (hops.count(), hops.header())
}

pub fn check(data: &[u8]) {
    let [block, limit, message @ ..] = data else { return };
    let limit = usize::from(*limit) * 16;
    let whole = counted(message, message.len(), limit);
    assert_eq!(counted(message, usize::from(*block), limit), whole);
    if whole.1 != HeaderProgress::TooLarge {
        assert_eq!(counted(message, 1, message.len()), whole);
    }
    assert!(whole.0 as usize * "received:".len() <= message.len().min(limit));

    let middle = message.len() / 2;
    let stamp = ReceivedField {
        name: &message[..middle],
        client: "[127.0.0.1]",
        host: "relay.example",
        with: WithProtocol::Esmtp,
        smtp_utf8: block % 2 == 0,
        tls: None,
        id: b"1",
        recipient: Some(&message[middle..]),
    };
    let mut field = Vec::new();
    stamp.write(DATE, &mut field);
    let text = field.strip_suffix(b"\r\n").expect("it ends in a line end");
    assert!(text.split(|octet| *octet == b'\n').all(|line| line.len() <= 999));
    let plain = String::from_utf8_lossy(text).replace("\r\n\t", " ");
    assert!(!plain.contains(['\r', '\n', '\0', '\t']), "{plain}");
    assert!(plain.contains(" by relay.example "), "{plain}");
    assert!(plain.ends_with(&format!("; {DATE}")), "{plain}");
    field.extend_from_slice(b"\r\n");
    assert_eq!(counted(&field, 7, field.len()), (1, HeaderProgress::Ended));
}
