//! Any octets as replies to smtp-source, whole and cut: it hears the same, in bounded memory.
use crate::reply_reader::{MAX_REPLY_BYTES, ReplyReader};
use crate::smtp_source::reply::{self, Reply};

/// Code, lines and text of each; `None` of an endless one.
type Told = Vec<Option<(u16, Vec<Vec<u8>>, Vec<u8>)>>;

fn heard<'a>(blocks: impl Iterator<Item = &'a [u8]>) -> Told {
    let mut reader = ReplyReader::default();
    let mut told = Vec::new();
    for block in blocks {
        let mut input = block;
        loop {
            match reader.next(&mut input, |_, line| reply::is_last_line(line)) {
                Ok(Some(wire)) => {
                    let reply = Reply { wire };
                    assert!(reply.code() < 1000);
                    let lines: Vec<Vec<u8>> = reply.lines().map(<[u8]>::to_vec).collect();
                    assert!(!lines.is_empty() && lines.iter().map(Vec::len).sum::<usize>() <= MAX_REPLY_BYTES);
                    told.push(Some((reply.code(), lines, reply.text())));
                }
                Ok(None) => break,
                Err(_) => {
                    told.push(None);
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
