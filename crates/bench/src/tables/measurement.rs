//! Figures of one run of a table: the costs, and whether all messages arrived.
use crate::engine::Costs;
use mailrun_text::numbers::count;

#[derive(Clone, Debug)]
pub(super) struct TableMeasurement {
    pub(super) source: Costs,
    pub(super) sink: Costs,
    /// Messages by the sink's own count. smtp-sink has none.
    pub(super) arrived: Option<u64>,
}

impl TableMeasurement {
    /// Reports missing messages, if the sink has a count of its own.
    pub(super) fn shortfall(&self, messages: u64) -> Option<String> {
        let arrived = self.arrived?;
        (arrived != messages).then(|| format!("the sink has {} of {} messages", count(arrived), count(messages)))
    }
}
