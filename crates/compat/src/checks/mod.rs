//! The properties that each parser must have for any input. The property tests and the fuzz targets call these
//! functions, which panic if a property is violated.
pub mod dump_name;
pub mod go_flags;
pub mod go_reply;
pub mod go_subject;
pub mod host_port;
pub mod source_reply;

use crate::reply_reader::{MAX_REPLY_BYTES, ReplyReader};
use std::fmt::Debug;

/// Checks that the replies in `data` do not depend on how they are cut into blocks, and that no reply is too long. The
/// last byte of `data` selects the length of the blocks.
fn check_replies<T: PartialEq + Debug>(
    data: &[u8],
    is_last: impl Fn(&[u8], &[u8]) -> bool,
    parse: impl Fn(&[u8]) -> T,
) {
    let Some((&size, bytes)) = data.split_last() else { return };
    let whole = replies([bytes].into_iter(), &is_last, &parse);
    assert_eq!(replies(bytes.chunks(1), &is_last, &parse), whole);
    assert_eq!(replies(bytes.chunks(usize::from(size).max(1)), &is_last, &parse), whole);
}

/// Returns all complete replies in `blocks`. A reply that is too long becomes `None` and ends the list.
fn replies<'a, T>(
    blocks: impl Iterator<Item = &'a [u8]>,
    is_last: impl Fn(&[u8], &[u8]) -> bool,
    parse: impl Fn(&[u8]) -> T,
) -> Vec<Option<T>> {
    let mut reader = ReplyReader::default();
    let mut replies = Vec::new();
    for block in blocks {
        let mut input = block;
        loop {
            match reader.next(&mut input, &is_last) {
                Ok(Some(wire)) => {
                    assert!(wire.len() <= MAX_REPLY_BYTES);
                    replies.push(Some(parse(wire)));
                }
                Ok(None) => break,
                Err(_) => {
                    replies.push(None);
                    return replies;
                }
            }
        }
        assert!(input.is_empty(), "a block is read to its end");
    }
    replies
}
