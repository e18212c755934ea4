//! The state that a whole run shares.
use super::domains::RecipientDomains;
use super::envelopes::Envelopes;
use super::message_set::{MessageSet, MessageSetSummary};
use super::options::SourceOptions;
use super::plan::LoadPlan;
use super::reply_log::ReplyLog;
use super::shard_start::ShardStart;
use super::transport::Transport;
use mailrun_measurement::record::{MAX_SLOW_RECIPIENTS, ServerRow};
use mailrun_measurement::trace::MAX_LOAD_STAGES;
use mailrun_net::Endpoint;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// State that a whole run shares. The workers only read it.
#[derive(Debug)]
pub(super) struct SourceContext {
    pub(super) options: SourceOptions,
    pub(super) server: Endpoint,
    pub(super) transport: Transport,
    pub(super) messages: MessageSet,
    pub(super) summary: MessageSetSummary,
    pub(super) envelopes: Envelopes,
    /// Domains of the recipients, or `None` if there is only one.
    pub(super) domains: Option<RecipientDomains>,
    pub(super) plan: Arc<LoadPlan>,
    /// Set if this load is a part of a divided load.
    pub(super) shard_start: Option<ShardStart>,
    pub(super) began: Duration,
    /// Time of second 0 in the record: when the load began or, for a shard, when all shards were to
    /// begin.
    pub(super) zero: Duration,
    /// Messages created before this time are accounted for, but not timed.
    pub(super) warm_up_until: Duration,
    /// Time at which each stage of the load ends. Empty if the load has no stages.
    pub(super) load_stage_ends: Vec<Duration>,
    /// The server's description of itself in the reply to the trial connection.
    pub(super) introduction: Option<ServerRow>,
    /// Replies kept by workers that have ended.
    pub(super) replies: Mutex<Vec<ReplyLog>>,
}

impl SourceContext {
    /// Returns the number of the stage of the load in which a message is due, counted from 1. It is 0
    /// without stages, and for stages that have no figures of their own.
    #[inline]
    pub(super) fn load_stage(&self, due: Duration) -> u8 {
        if self.load_stage_ends.is_empty() { 0 } else { load_stage(&self.load_stage_ends, due) }
    }

    /// Returns the recipients that lists of messages name, which may be only some of the message's
    /// recipients.
    pub(super) fn named_recipients(&self, number: u64, recipients: u32) -> Vec<String> {
        let mut recipients = self.envelopes.recipients_of(number, recipients);
        recipients.truncate(MAX_SLOW_RECIPIENTS);
        recipients
    }
}

#[cold]
fn load_stage(ends: &[Duration], due: Duration) -> u8 {
    // A message that is due at the end of the last stage belongs to it.
    let place = ends.partition_point(|end| *end <= due).min(ends.len() - 1);
    if place < MAX_LOAD_STAGES { place as u8 + 1 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_belongs_to_the_stage_in_which_it_is_due() {
        let second = Duration::from_secs;
        let ends = [second(10), second(15), second(30)];
        let stages = [0, 9, 10, 14, 15, 29, 30, 99].map(|due| load_stage(&ends, second(due)));
        assert_eq!(stages, [1, 1, 2, 2, 3, 3, 3, 3]);
        let many: Vec<Duration> = (1..=70).map(second).collect();
        assert_eq!([0, 62, 63, 69].map(|due| load_stage(&many, second(due))), [1, 63, 0, 0]);
    }
}
