//! The parts of a report, in the order they are read.
use super::table::Table;
use super::{encryption, fates, mades, parties, relay, seconds, stages, workload};
use journey::record::{Mades, Record};

/// A titled part.
#[derive(Clone, Debug)]
pub(crate) struct Section {
    /// A word or three.
    pub(crate) title: &'static str,
    /// What the reader must know to read it right.
    pub(crate) note: Option<String>,
    /// What it says.
    pub(crate) body: Body,
}

/// What a section holds.
#[derive(Clone, Debug)]
pub(crate) enum Body {
    /// Figures.
    Figures(Table),
    /// Names and what there is to say of each.
    Facts(Vec<(&'static str, String)>),
}

/// Every section that this record can fill; `room` is how many bars a sparkline may have.
pub(crate) fn sections(record: &Record, room: usize) -> Vec<Section> {
    if let Some(mades) = &record.mades {
        return mades_sections(record, mades, room);
    }
    let parts = [
        workload::offered(record),
        stages::reached(record),
        relay::between(record),
        stages::latencies(record),
        seconds::course(record, room),
        stages::phases(record),
        encryption::handshakes(record),
        fates::ledger(record),
        fates::errors(record),
        fates::thresholds(record),
        parties::costs(record),
        workload::surroundings(record),
    ];
    parts.into_iter().flatten().collect()
}

/// Those of a run over MADES, which has stages of its own.
fn mades_sections(record: &Record, own: &Mades, room: usize) -> Vec<Section> {
    let parts = [
        mades::offered(record, own),
        mades::stages(own),
        mades::latencies(record, own),
        mades::waterfall(own),
        mades::truth_counts(own),
        mades::truth_times(own),
        seconds::course(record, room),
        fates::ledger(record),
        mades::troubles(record, own),
        mades::outages(own),
        fates::thresholds(record),
        parties::costs(record),
        workload::surroundings(record),
    ];
    parts.into_iter().flatten().collect()
}
