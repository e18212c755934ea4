//! Any bytes as a segment file of a spool: it is opened or refused, and the same bytes always alike; never a panic.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    // As they are; and with checksums made right, so that what is behind them is reached.
    for octets in [data.to_vec(), mailrun_spool::with_checksums(data)] {
        let first = mailrun_spool::try_octets(&octets);
        let again = mailrun_spool::try_octets(&octets);
        assert_eq!(format!("{first:?}"), format!("{again:?}"));
    }
});
