//! Checks that neither the parser of thresholds nor the decoder of histograms panics on an arbitrary text. A text that
//! is refused as a threshold must give an error message. An accepted threshold must stay the same when its expression
//! is read again, and evaluating it must not panic.
use crate::Latencies;
use crate::record::Record;
use crate::threshold::{RunProtocol, Threshold, fate_of};

pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    for protocol in [RunProtocol::Smtp, RunProtocol::Mades] {
        match Threshold::parse(text, protocol) {
            Ok(threshold) => {
                assert_eq!(Threshold::parse(threshold.expression(), protocol).as_ref(), Ok(&threshold));
                let _ = (threshold.is_of_delivery(), threshold.needs_the_end(), threshold.is_of_time());
                let goal = threshold.loss_goal();
                assert!(goal.is_none_or(|goal| (0.0..1.0).contains(&goal.loss_ratio())));
                let is_fresh = threshold.expression().starts_with("fresh");
                assert_eq!(threshold.source().is_none(), fate_of(threshold.expression()).is_some() || is_fresh);
                let _ = threshold.evaluate(&Record::empty());
            }
            Err(error) => assert!(!error.is_empty()),
        }
    }
    if let Some(times) = Latencies::decode(text) {
        assert!(times.quantile_ms(0.5) <= times.quantile_ms(1.0));
    }
}
