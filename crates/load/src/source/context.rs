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

/// State that all workers share. They change only the plan, from which they claim messages, and the list of replies.
#[derive(Debug)]
pub(super) struct SourceContext {
    pub(super) options: SourceOptions,
    pub(super) server: Endpoint,
    pub(super) transport: Transport,
    pub(super) messages: MessageSet,
    pub(super) summary: MessageSetSummary,
    pub(super) envelopes: Envelopes,
    /// Domains of the recipients, or `None` if there is only one domain.
    pub(super) domains: Option<RecipientDomains>,
    pub(super) plan: Arc<LoadPlan>,
    /// Planned and actual start of this part of the load, or `None` if the load is not divided into parts.
    pub(super) shard_start: Option<ShardStart>,
    pub(super) began: Duration,
    /// Start of second 0 of the record: the beginning of the load or, if the load is divided into parts, the beginning
    /// that is planned for all parts.
    pub(super) zero: Duration,
    /// Monotonic time at which the warm-up ends. Messages that were created earlier are counted, but not timed.
    pub(super) warm_up_until: Duration,
    /// Times at which the stages of the load end; empty if the load has no stages.
    pub(super) load_stage_ends: Vec<Duration>,
    /// The server's greeting and extensions on the trial connection, or `None` if there was no trial before the load.
    pub(super) introduction: Option<ServerRow>,
    /// The server's replies to the last messages of each worker. Each worker adds its own replies when it ends.
    pub(super) replies: Mutex<Vec<ReplyLog>>,
}

impl SourceContext {
    /// Returns the number of the stage of the load in which a message is due, counted from 1. Returns 0 if the load has
    /// no stages, or if the stage comes after the first `MAX_LOAD_STAGES`, because such a stage has no figures of its
    /// own.
    #[inline]
    pub(super) fn load_stage(&self, due: Duration) -> u8 {
        if self.load_stage_ends.is_empty() { 0 } else { load_stage(&self.load_stage_ends, due) }
    }

    /// Returns the recipients of a message, for the lists of slow and missing messages. The result has at most the
    /// first [`MAX_SLOW_RECIPIENTS`] recipients.
    pub(super) fn named_recipients(&self, number: u64, recipients: u32) -> Vec<String> {
        let mut recipients = self.envelopes.recipients_of(number, recipients);
        recipients.truncate(MAX_SLOW_RECIPIENTS);
        recipients
    }
}

#[cold]
fn load_stage(ends: &[Duration], due: Duration) -> u8 {
    // A message that is due when a stage ends belongs to the next stage or, if there is none, to the last one.
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
