//! A connection to a broker. It must open within a time limit, and its errors say what the user can do.
use crate::broker::Broker;
use crate::client_state::SharedClient;
use crate::driver;
use crate::error::Error;
use crate::receiver::{ReceiverLink, ReceiverOptions};
use crate::sender::{SenderLink, SenderOptions};
use crate::stream;
use mailrun_amqp::PeerProduct;
use std::sync::Arc;

/// An open connection. Dropping it closes the connection without waiting for the broker's answer.
#[derive(Debug)]
pub struct Connection {
    client: Arc<SharedClient>,
    broker: Arc<Broker>,
    links: u32,
}

impl Drop for Connection {
    fn drop(&mut self) {
        let _ = self.client.close();
    }
}

impl Connection {
    /// Connects, starts TLS if the URL asks for it, authenticates, and opens the connection. The caller must be on a
    /// tokio runtime with IO and time, because a task on it drives the connection.
    ///
    /// # Errors
    /// Fails if connecting, TLS, login or opening fails or takes too long. No error contains the password of the URL.
    pub async fn open(broker: &Broker) -> Result<Self, Error> {
        let broker = Arc::new(broker.clone());
        let login = broker.login()?;
        let stream = stream::open(&broker).await?;
        let client = SharedClient::new(Arc::clone(&broker), login);
        tokio::spawn(driver::drive(Arc::clone(&client), stream, broker.idle_timeout));
        let connection = Self { client, broker, links: 0 };
        let result = tokio::time::timeout(connection.broker.step_timeout, connection.client.opened()).await;
        match result {
            Ok(result) => result.map(|()| connection),
            Err(_) => Err(connection.client.time_out_open(connection.broker.timed_out("the AMQP handshake"))),
        }
    }

    pub fn peer_product(&self) -> PeerProduct {
        self.client.state().amqp().peer_product().clone()
    }

    /// Opens a link that sends messages to a queue, in a session of its own.
    ///
    /// # Errors
    /// Fails if the queue does not exist, if access is denied, or if the broker does not answer in time.
    pub async fn attach_sender(&mut self, plan: &SenderOptions) -> Result<SenderLink, Error> {
        let name = self.link_name(&plan.queue);
        let attach = SenderLink::attach(Arc::clone(&self.client), Arc::clone(&self.broker), plan, &name);
        self.broker.with_step_timeout("attaching to the queue", attach).await
    }

    /// Opens a link that receives messages from a queue, in a session of its own. The broker begins to send at once.
    ///
    /// # Errors
    /// Fails in the same cases as [`attach_sender`](Self::attach_sender), and if another consumer
    /// holds the queue exclusively.
    pub async fn attach_receiver(&mut self, plan: &ReceiverOptions) -> Result<ReceiverLink, Error> {
        let name = self.link_name(&plan.queue);
        let attach = ReceiverLink::attach(Arc::clone(&self.client), Arc::clone(&self.broker), plan, &name);
        self.broker.with_step_timeout("attaching to the queue", attach).await
    }

    pub async fn closed(&mut self) -> Error {
        self.client.ended().await
    }

    pub fn is_closed(&self) -> bool {
        self.client.state().is_over()
    }

    /// Sends a close frame, and waits for the broker's answer for at most 5 s, or for [`Broker::step_timeout`] if that
    /// is shorter.
    ///
    /// # Errors
    /// Fails if the connection had already ended, or if the broker does not confirm the end in time and without an
    /// error.
    pub async fn close(self) -> Result<(), Error> {
        if let Err(end) = self.client.close() {
            return Err(match end {
                Error::PeerMisbehaved { .. } => end,
                _ => Error::Lost { why: "it had already ended".to_owned() },
            });
        }
        let limit = self.broker.close_timeout();
        match tokio::time::timeout(limit, self.client.ended()).await {
            Ok(_) if self.client.is_close_answered() => Ok(()),
            Ok(error) => Err(error),
            Err(_) => Err(Error::TimedOut {
                address: self.broker.url.address(),
                what: "closing the connection",
                after: limit,
            }),
        }
    }

    /// Returns a name for a link that is unique within the container.
    fn link_name(&mut self, queue: &str) -> String {
        self.links += 1;
        format!("{}:{queue}:{}", self.broker.container, self.links)
    }
}
