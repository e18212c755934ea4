//! Parses arbitrary bytes as replies to go-smtp-source. The replies must not depend on how the bytes are cut into
//! blocks, and memory must stay bounded.
use super::check_replies;
use crate::go_smtp_source::reply::{self, ParsedReply};

pub fn check(data: &[u8]) {
    check_replies(data, reply::is_last_line, |wire| {
        let reply = ParsedReply::parse(wire);
        assert!(!matches!(reply, ParsedReply::Reply(code, _) if !(100..1000).contains(&code)));
        reply.error_text()
    });
}
