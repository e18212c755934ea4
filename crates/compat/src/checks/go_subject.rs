//! Formats go-smtp-source's subject. The first eight bytes of the input are the number, and the rest is the format. The
//! subject must not be longer than the widths in the format allow, and a format without a percent sign must not change.
use crate::go_smtp_source::subject::subject;

pub fn check(data: &[u8]) {
    let Some((number, format)) = data.split_first_chunk() else { return };
    // Cut the format at 60 bytes, because each verb may produce ten million characters. Go compares a width with its
    // limit of one million before it adds the last digit.
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
