//! Fuzz check that parses arbitrary text as the stages of an offered rate, one stage per line. The parser must either
//! report a mistake, or return stages in which no message is due earlier than the message before it.
use crate::offered_rate::{OfferedRate, RateStage};

pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut read = Vec::new();
    for line in text.lines().take(20) {
        match RateStage::parse(line) {
            Ok(stage) => {
                assert_eq!(RateStage::parse(&stage.expression()), Ok(stage.clone()));
                read.push(stage);
            }
            Err(error) => assert!(!error.is_empty()),
        }
    }
    let offer = OfferedRate::Stages(read);
    let end_s = offer.length().expect("stages have an end").as_secs_f64();
    let mut earlier_s = 0.0;
    for position in (0..60).chain((6..50).map(|power| 1_u64 << power)) {
        let due_s = offer.due_s(position as f64);
        assert!(due_s >= earlier_s - 1e-9 * end_s && due_s <= end_s * (1.0 + 1e-9), "{position}: {due_s} of {end_s}");
        earlier_s = due_s;
    }
    for from_s in [0.0, end_s / 3.0, end_s] {
        let mean = offer.mean_per_s(from_s);
        assert!((-1.0..=1.01e7).contains(&mean), "{mean}");
    }
}
