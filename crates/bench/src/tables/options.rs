//! What a published table measures.
use crate::scenario::{RoundOrder, SinkTool, SourceTool};
use mailrun_party::live::LiveMode;
use mailrun_party::party_options::PartyOptions;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryCheck {
    /// No checks, because the sink's work for them would be measured as well.
    None,
    /// Checks that every recipient received every message once.
    EveryDelivery,
}

#[derive(Clone, Debug)]
pub struct TableOptions {
    pub messages: u64,
    /// Sources. Those that are not installed are left out.
    pub tools: Vec<SourceTool>,
    pub receivers: Vec<SinkTool>,
    /// Runs of each row. The figures are the medians of the runs.
    pub rounds: u32,
    pub order: RoundOrder,
    /// Numbers of sessions. Each number has its own group of rows.
    pub sessions: Vec<u32>,
    /// Numbers of recipients per message. Each number has its own group of rows.
    pub recipients: Vec<u32>,
    pub check: DeliveryCheck,
    /// Time limit for each run.
    pub limit: Duration,
    /// Additional options for mailrun's sink.
    pub sink_options: PartyOptions,
    pub live: LiveMode,
}
