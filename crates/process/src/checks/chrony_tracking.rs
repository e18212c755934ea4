//! Checks the parser of the output of `chronyc -c tracking` with arbitrary bytes. If the parser finds a bound, the
//! report must have 14 fields, and the bound must agree with the fields that determine it.
use crate::chrony::parse_tracking;
use std::time::Duration;

pub fn check(data: &[u8]) {
    let Ok(report) = std::str::from_utf8(data) else { return };
    let Some(bound) = parse_tracking(report) else { return };
    let fields: Vec<f64> = report.trim_end().split(',').map(|field| field.parse().unwrap_or(f64::NAN)).collect();
    assert_eq!(fields.len(), 14);
    let parts = fields[4].abs().max(fields[10] / 2.0).max(fields[11]);
    let sum = fields[4].abs() + fields[10] / 2.0 + fields[11];
    assert!((parts - 1e-6..=sum + 1e-6).contains(&bound.as_secs_f64()), "{report}: {bound:?}");
    assert!(bound <= Duration::from_secs(1_000_000), "{report}: {bound:?}");
}
