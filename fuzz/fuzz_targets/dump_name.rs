//! Any text as smtp-sink's template of a dump file's name: it is expanded, and as it stands where it has no percent sign.
#![no_main]
#[path = "../../crates/dropin/src/smtp_sink/template.rs"]
mod template;

use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use libfuzzer_sys::fuzz_target;
use template::expand;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    for second in [0, 1_795_253_400] {
        let time = Zoned::new(Timestamp::from_second(second).expect("a time of ours"), TimeZone::UTC);
        let name = expand(text, &time);
        assert!(text.contains('%') || name == text);
        assert!(name.len() <= text.len() * 300, "{} octets of {}", name.len(), text.len());
    }
});
