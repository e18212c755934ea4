//! Any bytes as a segment file of a spool: it is opened or refused, and the same bytes always alike; never a panic.
use crate::recovery;

pub fn check(data: &[u8]) {
    // As they are; and with checksums made right, so that what is behind them is reached.
    for octets in [data.to_vec(), recovery::with_checksums(data)] {
        let first = recovery::try_octets(&octets);
        let again = recovery::try_octets(&octets);
        assert_eq!(format!("{first:?}"), format!("{again:?}"));
    }
}
