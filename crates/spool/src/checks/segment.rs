//! Opens any bytes as a segment file of a spool. The spool must open or refuse them without a
//! panic, and must always give the same result.
use crate::recovery;

pub fn check(data: &[u8]) {
    // Try the bytes as they are, and then with corrected checksums to reach the code behind the
    // checks.
    for octets in [data.to_vec(), recovery::with_checksums(data)] {
        let first = recovery::try_octets(&octets);
        let again = recovery::try_octets(&octets);
        assert_eq!(format!("{first:?}"), format!("{again:?}"));
    }
}
