//! Checks the conversion for servers without 8BITMIME with arbitrary bytes as a message. A 7-bit message must be left
//! alone, and any other message must be converted or refused. Restoring a converted message must return the original
//! body.
use crate::{MARKER, Restorer};

fn body(message: &[u8]) -> &[u8] {
    if message.starts_with(b"\r\n") {
        return &message[2..];
    }
    &message[memchr::memmem::find(message, b"\r\n\r\n").map_or(message.len(), |at| at + 4)..]
}

pub fn check(data: &[u8]) {
    let Some((&block, message)) = data.split_first() else { return };
    // Restoring arbitrary bytes must not panic or return much more than the input.
    let mut restorer = Restorer::new();
    let mut bytes = 0;
    message.chunks(usize::from(block) + 1).for_each(|block| restorer.receive(block, |text| bytes += text.len()));
    restorer.finish(|text| bytes += text.len());
    assert!(bytes <= 2 * message.len() + 2);
    match crate::to_seven_bit(message, "relay.example") {
        Ok(Some(converted)) => {
            assert!(converted.len() <= 4 * message.len() + (65 << 10));
            // The conversion marks a message with the field `X-MIME-Autoconverted`. If the original message already has
            // this field, the restored body may differ, so do not compare it.
            if memchr::memmem::find(message, MARKER).is_none() {
                check_restored(message, &converted, usize::from(block) + 1);
            }
        }
        Ok(None) => assert!(crate::is_seven_bit(message)),
        Err(_) => assert!(!crate::is_seven_bit(message)),
    }
}

pub(crate) fn check_restored(message: &[u8], converted: &[u8], block: usize) {
    assert!(crate::is_seven_bit(converted) && converted.starts_with(MARKER), "{}", converted.escape_ascii());
    let top = memchr::memchr(b'\n', converted).map_or(0, |end| end + 1);
    let mut restorer = Restorer::new();
    let mut restored = Vec::new();
    for block in converted[top..].chunks(block) {
        restorer.receive(block, |text| restored.extend_from_slice(text));
    }
    restorer.finish(|text| restored.extend_from_slice(text));
    assert!(restorer.is_valid(), "{}", converted.escape_ascii());
    assert_eq!(restored.escape_ascii().to_string(), body(message).escape_ascii().to_string());
}
