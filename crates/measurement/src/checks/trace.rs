//! Reads arbitrary bytes as a trace line. If they are accepted, writing the trace must give the same line, except for
//! upper and lower case.
use crate::trace::{MAX_RECIPIENTS, RecipientId, RecipientNumbering, RunId, Trace};

pub fn check(data: &[u8]) {
    if let Some(trace) = Trace::parse(data) {
        let mut header = [0; Trace::HEADER_BYTES];
        trace.write(&mut header);
        let line = &header[..Trace::HEADER_BYTES - 2];
        assert!(data.len() >= line.len() && line.eq_ignore_ascii_case(&data[..line.len()]));
        assert_eq!(Trace::parse(&header), Some(trace));
    }
    assert!(RecipientNumbering::TAG.number(RecipientId::new(data)) < MAX_RECIPIENTS);
    if let Some(run) = std::str::from_utf8(data).ok().and_then(|text| text.parse::<RunId>().ok()) {
        assert!(run.to_string().as_bytes().eq_ignore_ascii_case(data));
    }
}
