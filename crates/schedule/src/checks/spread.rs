//! Fuzz check that parses arbitrary text as a distribution. The parser must either report a mistake, or return a
//! distribution from which only numbers within its bounds are drawn.
use crate::distribution::{Distribution, RandomStream};

pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let spread = match Distribution::parse(text, mailrun_text::quantities::bytes) {
        Ok(spread) => spread,
        Err(error) => return assert!(!error.is_empty()),
    };
    let bounds = spread.min()..=spread.max();
    assert!(!bounds.is_empty() && spread.expression() == text);
    assert!((0..20).all(|number| bounds.contains(&spread.sample(1, RandomStream::Message, number))));
    let quantiles: Vec<u64> = spread.quantiles(50).collect();
    assert!(quantiles.iter().all(|number| bounds.contains(number)), "{quantiles:?} in {bounds:?}");
    // The mean is computed from rounded numbers, so it may lie slightly outside the bounds.
    let mean = spread.mean();
    let room = 1e-9 * spread.max() as f64;
    assert!((spread.min() as f64 - room..=spread.max() as f64 + room).contains(&mean), "{mean} in {bounds:?}");
    assert_eq!(spread.summary().is_none(), spread.as_constant().is_some());
    assert_eq!(Distribution::parse(spread.expression(), mailrun_text::quantities::bytes), Ok(spread));
}
