//! Makes each message from a number. A received message is recognised by this number, and checked to the last byte.
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::fmt::Write;

const FIELD: &str = "X-Number: ";

/// Chooses the number of lines of a message. Most messages are small, some fill several blocks, and a few need a
/// segment of their own.
fn lines(chance: &mut StdRng) -> usize {
    match chance.random_range(0..200) {
        0 => chance.random_range(4_000..12_000),
        1..=30 => chance.random_range(60..600),
        _ => chance.random_range(1..60),
    }
}

pub(crate) fn text(number: u64) -> String {
    let mut chance = StdRng::seed_from_u64(number);
    let mut text = format!("{FIELD}{number}\r\n\r\n");
    for _ in 0..lines(&mut chance) {
        let [a, b, c, d]: [u64; 4] = chance.random();
        // Ignore the result, because writing to a String cannot fail.
        _ = write!(text, "{a:016x}{b:016x}{c:016x}{d:016x}\r\n");
    }
    text
}

pub(crate) fn recipients(number: u64) -> u8 {
    1 + u8::from(number.is_multiple_of(5)) + u8::from(number.is_multiple_of(10))
}

/// The number of a message that came through a relay, or an error if the message was changed.
pub(crate) fn recognise(received: &[u8]) -> Result<u64, String> {
    let received = String::from_utf8_lossy(received);
    let at = received.find(FIELD).ok_or("a message without a number")?;
    let sent = &received[at..];
    let digits = sent[FIELD.len()..].split("\r\n").next().unwrap_or_default();
    let number = digits.parse().map_err(|_| format!("a message with the number {digits:?}"))?;
    if sent == text(number) { Ok(number) } else { Err(format!("message {number} is not as it was sent")) }
}

#[test]
fn a_message_is_known_again_and_a_changed_one_is_not() {
    let relayed = |text: String| format!("Received: from a by b\r\n{text}").into_bytes();
    for number in 0..300 {
        assert_eq!(recognise(&relayed(text(number))), Ok(number));
        let mut changed = relayed(text(number));
        *changed.last_mut().unwrap() ^= 1;
        assert!(recognise(&changed).is_err());
    }
}
