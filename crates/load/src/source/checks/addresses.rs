//! Checks the parsers of address patterns and text patterns with arbitrary input. Each parser must either report a
//! mistake, or return a pattern that produces only well-formed addresses or, for a text pattern, only permitted texts.
use crate::source::addresses::{AddressPattern, RecipientTag};
use mailrun_schedule::distribution::{RandomStream, SeededRng};
use mailrun_smtp::Path;

fn write_addresses(pattern: &AddressPattern) {
    for tag in [RecipientTag::Bare, pattern.tag()] {
        if let Err(error) = pattern.check(tag) {
            assert!(!error.is_empty());
            continue;
        }
        for (number, place) in [(1, 0), (2, 1), (3, 1_023)] {
            let mut address = Vec::new();
            pattern.write(&mut SeededRng::new(7, RandomStream::Recipient, number), tag, place, &mut address);
            assert!(Path::mailbox(&address).is_ok(), "{}", address.escape_ascii());
            let literal = pattern.literal().filter(|_| tag == RecipientTag::Bare);
            assert!(literal.is_none_or(|literal| address == literal.as_bytes()));
        }
    }
    for place in [0, pattern.count() / 2, pattern.count() - 1] {
        let mut address = Vec::new();
        pattern.write_at(place, &mut address);
        assert!(Path::mailbox(&address).is_ok(), "{}", address.escape_ascii());
    }
}

pub fn check(data: &[u8]) {
    let Ok(typed) = std::str::from_utf8(data) else { return };
    match AddressPattern::parse(typed) {
        Ok(pattern) => {
            assert_eq!(pattern.expression(), typed);
            write_addresses(&pattern);
        }
        Err(error) => assert!(!error.is_empty()),
    }
    let is_short = |text: &[u8]| if text.len() <= 100 { Ok(()) } else { Err("it is too long".to_owned()) };
    if let Ok(pattern) = AddressPattern::text(typed, is_short) {
        let mut text = Vec::new();
        pattern.write_text(&mut SeededRng::new(7, RandomStream::EnvelopeId, 1), u64::MAX, &mut text);
        assert!(is_short(&text).is_ok(), "{}", text.escape_ascii());
    }
}
