//! Any octets as replies to go-smtp-source, whole and cut: it hears the same, in bounded memory.
#![no_main]
#[path = "../../crates/dropin/src/go/flags.rs"]
#[allow(dead_code)] // a part of it is the personality's
mod flags;
#[path = "../../crates/dropin/src/go/numbers.rs"]
#[allow(dead_code)] // likewise
mod numbers;
#[path = "../../crates/dropin/src/go_smtp_source/reply.rs"]
mod reply;

use libfuzzer_sys::fuzz_target;
use reply::{GoReplyReader, MAX_REPLY_BYTES, ParsedReply};

fn heard<'a>(blocks: impl Iterator<Item = &'a [u8]>) -> Vec<String> {
    let mut reader = GoReplyReader::default();
    let mut told = Vec::new();
    for block in blocks {
        let mut input = block;
        while let Some(heard) = reader.next(&mut input) {
            match heard {
                ParsedReply::Reply(code, text) => assert!((100..1000).contains(&code) && text.len() <= MAX_REPLY_BYTES),
                ParsedReply::TooShort(line) | ParsedReply::BadCode(line) => assert!(line.len() <= MAX_REPLY_BYTES),
                ParsedReply::TooLong => {
                    told.push("endless".to_owned());
                    return told;
                }
            }
            told.push(heard.error_text());
        }
        assert!(input.is_empty(), "a block is read to its end");
    }
    told
}

fuzz_target!(|data: &[u8]| {
    let Some((&size, bytes)) = data.split_last() else { return };
    let whole = heard([bytes].into_iter());
    assert_eq!(heard(bytes.chunks(1)), whole);
    assert_eq!(heard(bytes.chunks(usize::from(size).max(1))), whole);
});
