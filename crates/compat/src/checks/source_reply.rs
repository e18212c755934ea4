//! Parses arbitrary bytes as replies to smtp-source. The replies must not depend on how the bytes are cut into blocks,
//! and memory must stay bounded.
use super::check_replies;
use crate::smtp_source::reply::{self, Reply};

pub fn check(data: &[u8]) {
    check_replies(
        data,
        |_, line| reply::is_last_line(line),
        |wire| {
            let reply = Reply { wire };
            assert!(reply.code() < 1000 && reply.lines().next().is_some());
            let lines: Vec<Vec<u8>> = reply.lines().map(<[u8]>::to_vec).collect();
            (reply.code(), lines, reply.text())
        },
    );
}
