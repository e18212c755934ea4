/// Names of the queues between an application and its endpoint. The prefix lets several endpoints share one broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointQueueNames {
    pub outbox: String,
    pub reply: String,
    pub inbox: String,
    /// Queue in which the endpoint reports the states of sent messages. An EDX toolbox has no such queue, and reports
    /// the state of a message in its reply instead.
    pub send_event: Option<String>,
}

pub const ECP_PREFIX: &str = "ecp.endpoint";
pub const EDX_PREFIX: &str = "edx.endpoint";

impl EndpointQueueNames {
    pub fn ecp(prefix: &str) -> Self {
        Self {
            outbox: format!("{prefix}.outbox"),
            reply: format!("{prefix}.outbox.reply"),
            inbox: format!("{prefix}.inbox"),
            send_event: Some(format!("{prefix}.send.event")),
        }
    }

    /// Returns the queue names of an EDX toolbox, to which an application can connect instead of an ECP endpoint.
    /// Unlike an ECP endpoint, a toolbox replies in `{prefix}.reply` and not in `{prefix}.outbox.reply`.
    pub fn edx(prefix: &str) -> Self {
        Self {
            outbox: format!("{prefix}.outbox"),
            reply: format!("{prefix}.reply"),
            inbox: format!("{prefix}.inbox"),
            send_event: None,
        }
    }
}

impl Default for EndpointQueueNames {
    fn default() -> Self {
        Self::ecp(ECP_PREFIX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_those_of_an_installed_endpoint() {
        let ecp = EndpointQueueNames::default();
        assert_eq!(
            [&ecp.outbox, &ecp.reply, &ecp.inbox, ecp.send_event.as_ref().unwrap()],
            ["ecp.endpoint.outbox", "ecp.endpoint.outbox.reply", "ecp.endpoint.inbox", "ecp.endpoint.send.event"]
        );
        let edx = EndpointQueueNames::edx(EDX_PREFIX);
        assert_eq!(
            [&edx.outbox, &edx.reply, &edx.inbox],
            ["edx.endpoint.outbox", "edx.endpoint.reply", "edx.endpoint.inbox"]
        );
        assert_eq!(edx.send_event, None);
    }
}
