//! The names of a comparison's queues, and the options that tell the programs these names.
use super::options::CompareMode;
use super::options::CompareOptions;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CompareQueues {
    pub(super) outbox: String,
    pub(super) reply: String,
    pub(super) event: String,
    pub(super) inbox: String,
}

impl CompareQueues {
    pub(super) fn of(options: &CompareOptions) -> Self {
        let name = |rest: &str| format!("{}.{rest}", options.prefix);
        let reply = if options.mode == CompareMode::Toolbox { "reply" } else { "outbox.reply" };
        Self { outbox: name("outbox"), reply: name(reply), event: name("send.event"), inbox: name("inbox") }
    }

    /// Returns options for the queues that a mode uses. `mailrun mades` and the stand-in understand
    /// the same ones.
    pub(super) fn arguments(&self, way: CompareMode) -> Vec<&str> {
        let outbox = ["--outbox", &self.outbox, "--outbox-reply", &self.reply];
        let event = ["--send-event", &self.event];
        let inbox = ["--inbox", &self.inbox];
        match way {
            CompareMode::Amqp => inbox.to_vec(),
            CompareMode::Endpoint => [outbox.as_slice(), &event, &inbox].concat(),
            CompareMode::Toolbox => [outbox.as_slice(), &inbox].concat(),
            CompareMode::Tracing => [outbox.as_slice(), &event].concat(),
        }
    }
}
