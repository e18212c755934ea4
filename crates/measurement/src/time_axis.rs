//! Converts the times of one record to the clock of another record. If both records come from the same boot of a host,
//! they share a monotonic clock, and the conversion is exact. Otherwise the conversion uses Unix time, so its error is
//! the difference between the hosts' clocks.
use crate::record::Record;

const NS_PER_S: i128 = 1_000_000_000;

/// Returns the time from second 0 of the record `one` to second 0 of the record `other`, rounded to whole seconds. The
/// result is negative if `other` begins earlier.
pub(crate) fn seconds_between(one: &Record, other: &Record) -> i128 {
    let between = i128::from(other.origin_ns) - i128::from(one.origin_ns);
    let between = match (&one.clock, &other.clock) {
        (Some(ours), Some(theirs)) if ours.boot != theirs.boot => {
            between + i128::from(theirs.unix_offset_ns) - i128::from(ours.unix_offset_ns)
        }
        _ => between,
    };
    (between + NS_PER_S / 2).div_euclid(NS_PER_S)
}

/// Converts `origin_ns`, the time when second 0 of a record begins, to the monotonic clock of the host that recorded
/// `to`. Both origins then differ by whole seconds, so that the rows of both records cover the same seconds. Does
/// nothing if both records come from the same boot of a host, because they then use the same clock.
pub(crate) fn align(record: &mut Record, to: &Record) {
    let (Some(ours), Some(theirs)) = (&to.clock, &record.clock) else { return };
    if ours.boot != theirs.boot {
        let origin = i128::from(to.origin_ns) + seconds_between(to, record) * NS_PER_S;
        record.origin_ns = u64::try_from(origin).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::ClockRow;

    fn record(origin_s: u64, boot: &str, unix_s: u64) -> Record {
        let clock = Some(ClockRow { boot: boot.to_owned(), unix_offset_ns: unix_s * 1_000_000_000, sinks: Vec::new() });
        Record { origin_ns: origin_s * 1_000_000_000, clock, ..Record::empty() }
    }

    #[test]
    fn another_host_s_origin_is_found_by_unix_time_and_the_own_one_kept() {
        let run = record(100, "a", 1_000);
        let moved = |mut other: Record| {
            align(&mut other, &run);
            other.origin_ns / 1_000_000_000
        };
        assert_eq!(moved(record(40, "a", 5_000)), 40);
        assert_eq!(moved(record(7, "b", 1_096)), 103);
        assert_eq!(moved(Record { clock: None, ..record(40, "a", 0) }), 40, "an older record");
        assert_eq!(moved(record(0, "b", 0)), 0, "long before");
    }
}
