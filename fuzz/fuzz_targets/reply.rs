//! Any bytes as replies: cut or whole they read the same, up to the first line that is none. The last octet of the
//! input chooses the cuts.
#![no_main]
#[path = "../../crates/smtp/tests/all/host.rs"]
mod host;

use host::SplitMix64;
use libfuzzer_sys::fuzz_target;
use mailrun_smtp::extensions::Extensions;
use mailrun_smtp::reply::{EnhancedStatusCode, Reply, ReplyError, ReplyReader};

type Told = (Vec<(u16, String, Option<EnhancedStatusCode>)>, Option<ReplyError>);

fn read(blocks: &[&[u8]]) -> Told {
    let mut reader = ReplyReader::default();
    let mut told = Vec::new();
    for block in blocks {
        let mut input = *block;
        loop {
            match reader.next(&mut input) {
                Ok(Some(reply)) => {
                    assert!((200..600).contains(&reply.code()));
                    let _ = Extensions::parse(reply.lines());
                    told.push((reply.code(), reply.text(), reply.enhanced()));
                }
                Ok(None) => break,
                Err(why) => return (told, Some(why)),
            }
        }
        assert!(input.is_empty(), "a block is read to its end");
    }
    (told, None)
}

fuzz_target!(|data: &[u8]| {
    let Some((&choice, bytes)) = data.split_last() else { return };
    let whole = read(&[bytes]);
    assert_eq!(read(&bytes.chunks(1).collect::<Vec<_>>()), whole);
    assert_eq!(read(&SplitMix64(u64::from(choice)).cut(bytes)), whole);
    // No text makes a reply that is read as two.
    let reply = Reply::new(250, &String::from_utf8_lossy(bytes));
    if reply.wire().len() <= mailrun_smtp::reply::MAX_REPLY_BYTES {
        let (told, why) = read(&[reply.wire()]);
        assert_eq!((told.len(), why), (1, None));
    }
});
