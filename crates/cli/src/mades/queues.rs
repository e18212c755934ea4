//! Options for the names of the queues between an application and its endpoint. Both the commands that send messages
//! and the simulated endpoint have these options.
use crate::options;
use anyhow::Result;
use clap::Args;
use mailrun_mades::api::EndpointQueueNames;
use mailrun_mades::api::queues::{ECP_PREFIX, EDX_PREFIX};
use mailrun_mades_bench::MadesMode;
use mailrun_text::words::listed;

#[derive(Debug, Args)]
#[command(next_help_heading = "Queue names")]
pub(crate) struct QueueNameArgs {
    /// Prefix of the names of all queues
    ///
    /// An endpoint sets this prefix with its property internalBroker.baQueuePrefix [default: ecp.endpoint; in mode
    /// toolbox edx.endpoint].
    #[arg(long, value_name = "TEXT")]
    prefix: Option<String>,
    /// Queue of outgoing messages [default: PREFIX.outbox].
    #[arg(long, value_name = "QUEUE", hide_short_help = true)]
    outbox: Option<String>,
    /// Queue of replies to outgoing messages [default: PREFIX.outbox.reply; in mode toolbox PREFIX.reply].
    #[arg(long, value_name = "QUEUE", hide_short_help = true)]
    outbox_reply: Option<String>,
    /// Queue of events about outgoing messages [default: PREFIX.send.event].
    #[arg(long, value_name = "QUEUE", hide_short_help = true)]
    send_event: Option<String>,
    /// Queue of incoming messages [default: PREFIX.inbox].
    #[arg(long, value_name = "QUEUE", hide_short_help = true)]
    inbox: Option<String>,
}

impl QueueNameArgs {
    /// Returns an error if the user named a queue that this mode does not use, because the option would have no effect.
    pub(crate) fn check_effects(&self, mode: MadesMode) -> Result<()> {
        let used: &[&str] = match mode {
            MadesMode::Endpoint => &["--outbox", "--outbox-reply", "--send-event", "--inbox"],
            MadesMode::Toolbox => &["--outbox", "--outbox-reply", "--inbox"],
            MadesMode::Amqp => &["--inbox"],
            MadesMode::Tracing => &["--outbox", "--outbox-reply", "--send-event"],
        };
        let options = [
            ("--outbox", &self.outbox),
            ("--outbox-reply", &self.outbox_reply),
            ("--send-event", &self.send_event),
            ("--inbox", &self.inbox),
        ];
        let idle = options.map(|(name, queue)| (name, queue.is_some() && !used.contains(&name)));
        let used: Vec<String> = used.iter().map(|name| (*name).to_owned()).collect();
        options::refuse_without_effect(&idle, &format!("in mode {}, which uses {}", mode.name(), listed(&used)))
    }

    /// Returns the names of all queues. A queue that the user did not name gets its default name, which begins with the
    /// prefix.
    pub(crate) fn names(&self, mode: MadesMode) -> EndpointQueueNames {
        let customary = match mode {
            MadesMode::Toolbox => EndpointQueueNames::edx(self.prefix.as_deref().unwrap_or(EDX_PREFIX)),
            _ => EndpointQueueNames::ecp(self.prefix.as_deref().unwrap_or(ECP_PREFIX)),
        };
        EndpointQueueNames {
            outbox: self.outbox.clone().unwrap_or(customary.outbox),
            reply: self.outbox_reply.clone().unwrap_or(customary.reply),
            inbox: self.inbox.clone().unwrap_or(customary.inbox),
            send_event: self.send_event.clone().or(customary.send_event),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct QueueNameTestCli {
        #[command(flatten)]
        queues: QueueNameArgs,
    }

    fn names(line: &str, mode: MadesMode) -> EndpointQueueNames {
        QueueNameTestCli::try_parse_from(std::iter::once("mailrun").chain(line.split_whitespace()))
            .unwrap()
            .queues
            .names(mode)
    }

    #[test]
    fn what_is_not_given_is_as_is_the_custom_and_what_is_given_stays() {
        assert_eq!(names("", MadesMode::Endpoint), EndpointQueueNames::ecp("ecp.endpoint"));
        assert_eq!(names("", MadesMode::Toolbox), EndpointQueueNames::edx("edx.endpoint"));
        assert_eq!(names("--prefix a", MadesMode::Toolbox), EndpointQueueNames::edx("a"));
        let some = names("--prefix a --inbox b --send-event c", MadesMode::Toolbox);
        assert_eq!(
            some,
            EndpointQueueNames {
                inbox: "b".to_owned(),
                send_event: Some("c".to_owned()),
                ..EndpointQueueNames::edx("a")
            }
        );
        let others = names("--outbox d --outbox-reply e", MadesMode::Endpoint);
        let expected = EndpointQueueNames {
            outbox: "d".to_owned(),
            reply: "e".to_owned(),
            ..EndpointQueueNames::ecp("ecp.endpoint")
        };
        assert_eq!(others, expected);
    }
}
