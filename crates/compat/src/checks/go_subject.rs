//! Formats go-smtp-source's subject with an arbitrary format and number. The subject must not be longer than the widths
//! in the format allow, and a format without a percent sign must not change. The first eight bytes of the input are the
//! number.
use crate::go_smtp_source::subject::subject;

pub fn check(data: &[u8]) {
    let Some((number, format)) = data.split_first_chunk() else { return };
    // Each verb may be ten million characters wide, because Go checks the limit of the width before it adds the last
    // digit. Cut the format at 60 bytes, because more verbs would only add more blanks.
    let Ok(format) = std::str::from_utf8(&format[..format.len().min(60)]) else { return };
    let number = i64::from_le_bytes(*number);
    let text = subject(format, number);
    let verbs = format.matches('%').count();
    assert!(text.len() <= format.len() * 4 + verbs * 10_000_100, "{} octets of {format}", text.len());
    if verbs == 0 {
        assert_eq!(text, format.split("%!(EXTRA").next().unwrap_or_default().as_bytes());
    }
    assert_eq!(subject("%d", number), number.to_string().as_bytes());
}
