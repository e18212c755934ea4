//! The state that a whole run shares.
use super::domains::RecipientDomains;
use super::envelopes::Envelopes;
use super::message_set::{MessageSet, MessageSetSummary};
use super::options::SourceOptions;
use super::plan::LoadPlan;
use super::reply_log::ReplyLog;
use super::shard_start::ShardStart;
use super::transport::Transport;
use mailrun_journey::record::{MAX_SLOW_RECIPIENTS, ServerRow};
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
    /// The server's description of itself in the reply to the trial connection.
    pub(super) introduction: Option<ServerRow>,
    /// Replies kept by workers that have ended.
    pub(super) replies: Mutex<Vec<ReplyLog>>,
}

impl SourceContext {
    /// Returns the recipients that lists of messages name, which may be only some of the message's
    /// recipients.
    pub(super) fn named_recipients(&self, number: u64, recipients: u32) -> Vec<String> {
        let mut recipients = self.envelopes.recipients_of(number, recipients);
        recipients.truncate(MAX_SLOW_RECIPIENTS);
        recipients
    }
}
