//! Checks the parsers of quantities with arbitrary text. A parser must either refuse the text with
//! an error of one line, or return a value within its limits. If such a value is displayed and
//! parsed again, the result must be equal to the value.
use crate::quantities::{
    MAX_BYTES, MAX_COUNT, MAX_DURATION, MAX_RATE_PER_S, bytes, count, count_up_to, duration, interval, positive,
    probability, rate,
};

pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let values =
        [count(text).err(), bytes(text).err(), duration(text).err(), rate(text).err(), probability(text).err()];
    let others = [interval(text).err(), count_up_to(text, 1_000).err()];
    let signs = [positive(text, duration).err(), positive(text, rate).err()];
    let refusals = values.into_iter().chain(others).chain(signs).flatten();
    refusals.for_each(|error| assert!(!error.is_empty() && !error.contains('\n'), "{text:?}: {error:?}"));
    if let Ok(number) = count(text) {
        assert!(number <= MAX_COUNT && count(&number.to_string()) == Ok(number));
        assert_eq!(positive(text, count).is_ok(), number > 0);
    }
    if let Ok(number) = bytes(text) {
        assert!(number <= MAX_BYTES && bytes(&number.to_string()) == Ok(number));
    }
    if let Ok(time) = duration(text) {
        assert!(time <= MAX_DURATION && duration(&format!("{time:?}")) == Ok(time));
    }
    if let Ok(per_s) = rate(text) {
        assert!((0.0..=MAX_RATE_PER_S).contains(&per_s) && rate(&per_s.to_string()) == Ok(per_s));
    }
    if let Ok(share) = probability(text) {
        assert!((0.0..=1.0).contains(&share) && probability(&share.to_string()) == Ok(share));
    }
    if let Ok((from, to)) = interval(text) {
        assert!(from < to && interval(&format!("{from:?}..{to:?}")) == Ok((from, to)));
    }
}
