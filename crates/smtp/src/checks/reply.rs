//! Fuzz check that reads arbitrary bytes as a server's replies. Up to the first invalid line, the result must not
//! depend on how the bytes are cut into blocks. The last byte of the input is the seed of the random block sizes.
use super::SplitMix64;
use crate::extensions::Extensions;
use crate::reply::{EnhancedStatusCode, MAX_REPLY_BYTES, Reply, ReplyError, ReplyReader};

type Told = (Vec<(u16, String, Option<EnhancedStatusCode>)>, Option<ReplyError>);

fn read(blocks: &[&[u8]]) -> Told {
    let mut reader = ReplyReader::default();
    let mut replies = Vec::new();
    for block in blocks {
        let mut input = *block;
        loop {
            match reader.next(&mut input) {
                Ok(Some(reply)) => {
                    assert!((200..600).contains(&reply.code()));
                    let _ = Extensions::parse(reply.lines());
                    replies.push((reply.code(), reply.text(), reply.enhanced()));
                }
                Ok(None) => break,
                Err(error) => return (replies, Some(error)),
            }
        }
        assert!(input.is_empty(), "a block is read to its end");
    }
    (replies, None)
}

pub fn check(data: &[u8]) {
    let Some((&choice, bytes)) = data.split_last() else { return };
    let whole = read(&[bytes]);
    assert_eq!(read(&bytes.chunks(1).collect::<Vec<_>>()), whole);
    assert_eq!(read(&SplitMix64(u64::from(choice)).cut(bytes)), whole);
    // A client must never read a reply as two replies, whatever its text contains.
    let text = String::from_utf8_lossy(bytes);
    let reply = Reply::new(u16::from(choice) * 4, &text);
    if reply.wire().len() <= MAX_REPLY_BYTES {
        let mut reader = ReplyReader::default();
        let mut input = reply.wire();
        let received = reader.next(&mut input).expect("it is a reply").expect("it is whole");
        assert_eq!((received.code(), received.is_positive()), (reply.code(), reply.is_positive()));
        assert_eq!(received.lines().count(), text.lines().count().max(1));
        assert!(input.is_empty());
    }
}
