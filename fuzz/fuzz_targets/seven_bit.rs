//! Any bytes as a message for a server without 8BITMIME: left, refused, or made 7-bit, and restored as it was however it is cut.
#![no_main]
use libfuzzer_sys::fuzz_target;
use mailrun_mime::{MARKER, Restorer};

fn body(message: &[u8]) -> &[u8] {
    if message.starts_with(b"\r\n") {
        return &message[2..];
    }
    &message[memchr::memmem::find(message, b"\r\n\r\n").map_or(message.len(), |at| at + 4)..]
}

fuzz_target!(|data: &[u8]| {
    let Some((&block, message)) = data.split_first() else { return };
    // As restored it is whatever it is; but it is nothing that panics or grows.
    let mut restorer = Restorer::new();
    let mut bytes = 0;
    message.chunks(usize::from(block) + 1).for_each(|block| restorer.receive(block, |text| bytes += text.len()));
    restorer.finish(|text| bytes += text.len());
    assert!(bytes <= 2 * message.len() + 2);
    let Ok(Some(converted)) = mailrun_mime::to_seven_bit(message, "relay.example") else { return };
    assert!(mailrun_mime::is_seven_bit(&converted) && converted.len() <= 4 * message.len() + (65 << 10));
    if memchr::memmem::find(message, MARKER).is_some() {
        return;
    }
    let top = memchr::memchr(b'\n', &converted).unwrap() + 1;
    let mut restorer = Restorer::new();
    let mut restored = Vec::new();
    for block in converted[top..].chunks(usize::from(block) + 1) {
        restorer.receive(block, |text| restored.extend_from_slice(text));
    }
    restorer.finish(|text| restored.extend_from_slice(text));
    assert!(restorer.is_valid());
    assert_eq!(restored, body(message));
});
