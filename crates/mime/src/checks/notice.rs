//! Parses arbitrary bytes as a delivery notification (RFC 3464). The parsed [`Notice`] must not depend on how the bytes
//! are divided into blocks, and its texts and its number of recipients must be bounded.
use crate::{Notice, NoticeReader};

fn read(message: &[u8], block: usize) -> Option<Notice> {
    let mut reader = NoticeReader::new(b"X-Mailrun:");
    message.chunks(block).for_each(|block| reader.receive(block));
    reader.finish()
}

pub fn check(data: &[u8]) {
    let Some((&block, message)) = data.split_first() else { return };
    let notice = read(message, usize::from(block) + 1);
    assert_eq!(notice, read(message, message.len().max(1)), "{}", message.escape_ascii());
    let Some(notice) = notice else { return };
    assert!((1..=1024).contains(&notice.recipients.len()));
    assert!(
        notice
            .returned_field
            .is_none_or(|field| field.len() <= 4096 && field[..10].eq_ignore_ascii_case(b"X-Mailrun:"))
    );
    for recipient in &notice.recipients {
        assert!(!recipient.known_as().is_empty(), "{recipient:?}");
        let longest = [&recipient.original, &recipient.address, &recipient.status, &recipient.diagnostic];
        assert!(longest.iter().all(|text| text.chars().count() <= 512 && !text.contains(char::is_control)));
    }
}
