//! Uses arbitrary text as the template for the names of smtp-sink's dump files. The expansion must not panic, and a
//! text without a percent sign must not change.
use crate::smtp_sink::template::expand;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    for second in [0, 1_795_253_400] {
        let time = Zoned::new(Timestamp::from_second(second).expect("a time of ours"), TimeZone::UTC);
        let name = expand(text, &time);
        assert!(text.contains('%') || name == text);
        assert!(name.len() <= text.len() * 300, "{} octets of {}", name.len(), text.len());
    }
}
