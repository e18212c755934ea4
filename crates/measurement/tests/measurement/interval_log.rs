//! HdrHistogram's own reader must understand the interval logs that mailrun writes.
use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
use mailrun_measurement::{IntervalLog, Latencies};
use std::time::{Duration, SystemTime};

#[test]
fn every_interval_is_read_back() {
    let started = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let mut latencies = Latencies::default();
    latencies.record(Duration::from_millis(20));
    let mut log = IntervalLog::begin(Vec::new(), started).unwrap();
    log.write("accepted", Duration::ZERO, Duration::from_secs(1), &latencies).unwrap();
    log.write("a, b", Duration::from_secs(1), Duration::from_secs(1), &Latencies::default()).unwrap();
    let bytes = log.finish().unwrap();

    let text = String::from_utf8(bytes.clone()).unwrap();
    assert!(text.starts_with("#[Histogram log format version 1.3]\n"), "{text}");
    let entries: Vec<_> = IntervalLogIterator::new(&bytes).map(Result::unwrap).collect();
    let intervals: Vec<_> = entries
        .iter()
        .filter_map(|entry| match entry {
            LogEntry::Interval(interval) => Some((interval.tag().unwrap().as_str(), interval.start_timestamp())),
            LogEntry::StartTime(time) | LogEntry::BaseTime(time) => {
                assert_eq!(time.as_secs(), 1_700_000_000);
                None
            }
        })
        .collect();
    assert_eq!(intervals, [("accepted", Duration::ZERO), ("a__b", Duration::from_secs(1))]);
}
