//! Attaches and ends links, in the same way for senders and receivers. Each link has its own session, which ends with
//! the link.
use crate::broker::Broker;
use crate::client_state::{LinkPlan, SharedClient};
use crate::error::Error;
use mailrun_amqp::{LinkId, SessionId};
use std::sync::Arc;

/// Node capabilities that the client requests when it attaches a link, as go-mades-bench does. They are the "QPID
/// broker capabilities" of older ECP versions.
pub(crate) const CAPABILITIES: [&str; 4] = ["create-on-demand", "durable", "shared", "queue"];

#[derive(Debug)]
pub(crate) struct ClientLink {
    pub(crate) client: Arc<SharedClient>,
    pub(crate) broker: Arc<Broker>,
    pub(crate) id: LinkId,
    session: SessionId,
}

impl Drop for ClientLink {
    fn drop(&mut self) {
        self.client.forget(self.session, self.id);
    }
}

impl ClientLink {
    /// Attaches a link, and also returns the size in bytes of the largest message that the broker accepts.
    ///
    /// # Errors
    /// Fails if the broker refuses the link, or if the connection ends.
    pub(crate) async fn attach(
        client: Arc<SharedClient>,
        broker: Arc<Broker>,
        plan: &LinkPlan<'_>,
    ) -> Result<(Self, Option<u64>), Error> {
        let (session, id) = client.attach(plan)?;
        let link = Self { client, broker, id, session };
        let max_message_bytes = std::future::poll_fn(|context| link.client.poll_attached(id, context)).await?;
        Ok((link, max_message_bytes))
    }

    pub(crate) async fn detached(&self) -> Error {
        std::future::poll_fn(|context| self.client.poll_detached(self.id, context)).await
    }

    /// Ends the link, and waits for the broker's answer for at most 5 s, or for
    /// [`Broker::step_timeout`] if that is shorter.
    ///
    /// # Errors
    /// Fails if the broker does not answer, or if it has already ended the link.
    pub(crate) async fn close(self) -> Result<(), Error> {
        self.client.check(self.id)?;
        self.client.detach(self.id);
        match tokio::time::timeout(self.broker.close_timeout(), self.detached()).await {
            Ok(_) if self.client.is_detached_as_asked(self.id) => Ok(()),
            Ok(error) => Err(error),
            Err(_) => Err(Error::Lost { why: "the broker does not answer close".to_owned() }),
        }
    }
}
