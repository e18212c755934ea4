//! Checks the code that formats the subject line of go-smtp-source. The first eight bytes of the test input are the
//! message number, and the rest is the format string. The result must not be longer than the widths in the format
//! allow. A format string without a percent sign must stay unchanged.
use crate::go_smtp_source::subject::subject;

pub fn check(data: &[u8]) {
    let Some((number, format)) = data.split_first_chunk() else { return };
    // Cut the format string at 60 bytes, because each verb may produce almost ten million characters, for example
    // `%9999999d`. Go limits a width to one million, but checks the width only before it reads each further digit. So
    // the last digit may exceed the limit.
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
