use super::figures::Section;
use super::{audit, fates, freshness, mades, parties, relay, seconds, server, stages, workload};
use mailrun_measurement::record::{Mades, Record};

/// Returns every section for which this record has figures, in reading order. `room` is the maximum number of bars per
/// line in the section that shows the run over time.
pub(crate) fn sections(record: &Record, room: usize) -> Vec<Section> {
    if let Some(mades) = &record.mades {
        return mades_sections(record, mades, room);
    }
    let parts = [
        workload::offered(record),
        audit::faults(record),
        audit::losses(record),
        stages::reached(record),
        server::under_test(record),
        relay::between(record),
        stages::latencies(record),
        stages::of_load(record),
        seconds::over_time(record, room),
        stages::phases(record),
        parties::handshakes(record),
        fates::ledger(record),
        fates::rewrites(record),
        fates::errors(record),
        fates::thresholds(record),
        freshness::windows(record),
        parties::costs(record),
        workload::surroundings(record),
    ];
    parts.into_iter().flatten().collect()
}

/// Returns the sections of a MADES run, whose messages pass through other stages than mail does.
fn mades_sections(record: &Record, own: &Mades, room: usize) -> Vec<Section> {
    let parts = [
        mades::offered(record, own),
        stages::reached(record),
        stages::latencies(record),
        mades::waterfall(own),
        mades::shapes(own),
        mades::windows(own),
        mades::truth_counts(own),
        mades::truth_times(own),
        seconds::over_time(record, room),
        fates::ledger(record),
        mades::troubles(record, own),
        mades::outages(own),
        fates::thresholds(record),
        freshness::windows(record),
        parties::costs(record),
        workload::surroundings(record),
    ];
    parts.into_iter().flatten().collect()
}
