//! The parts of a report, in the order they are read.
use super::table::Table;
use super::{encryption, fates, parties, relay, seconds, stages, workload};
use journey::record::Record;

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
    /// A sentence.
    Sentence(String),
}

/// Every section that this record can fill; `room` is how many bars a sparkline may have.
pub(crate) fn sections(record: &Record, room: usize) -> Vec<Section> {
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
