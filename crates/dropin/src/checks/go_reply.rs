//! Any octets as replies to go-smtp-source, whole and cut: it hears the same, in bounded memory.
use crate::go_smtp_source::reply::{self, ParsedReply};
use crate::reply_reader::{MAX_REPLY_BYTES, ReplyReader};

fn heard<'a>(blocks: impl Iterator<Item = &'a [u8]>) -> Vec<String> {
    let mut reader = ReplyReader::default();
    let mut told = Vec::new();
    for block in blocks {
        let mut input = block;
        loop {
            match reader.next(&mut input, reply::is_last_line) {
                Ok(Some(wire)) => {
                    assert!(wire.len() <= MAX_REPLY_BYTES);
                    let reply = ParsedReply::parse(wire);
                    assert!(!matches!(reply, ParsedReply::Reply(code, _) if !(100..1000).contains(&code)));
                    told.push(reply.error_text());
                }
                Ok(None) => break,
                Err(_) => {
                    told.push("endless".to_owned());
                    return told;
                }
            }
        }
        assert!(input.is_empty(), "a block is read to its end");
    }
    told
}

pub fn check(data: &[u8]) {
    let Some((&size, bytes)) = data.split_last() else { return };
    let whole = heard([bytes].into_iter());
    assert_eq!(heard(bytes.chunks(1)), whole);
    assert_eq!(heard(bytes.chunks(usize::from(size).max(1))), whole);
}
