//! A connection to a broker. It opens within a time limit, and its errors say what to do.
use crate::broker::Broker;
use crate::client_state::SharedClient;
use crate::driver;
use crate::error::Error;
use crate::receiver::{ReceiverLink, ReceiverOptions};
use crate::sender::{SenderLink, SenderOptions};
use crate::stream;
use crate::stream_stats::StreamStats;
use mailrun_amqp::PeerProduct;
use std::sync::Arc;

/// An open connection. Dropping it closes it without waiting for the broker's answer.
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
    /// Connects, starts TLS if the URL asks for it, authenticates, and opens the connection. It must be called on a
    /// tokio runtime with IO and time, where a task drives the connection.
    ///
    /// # Errors
    /// The reason why the connection failed. No error contains the URL's password.
    pub async fn open(broker: &Broker) -> Result<Self, Error> {
        let broker = Arc::new(broker.clone());
        let login = broker.login()?;
        let stream = stream::open(&broker).await?;
        let client = SharedClient::new(Arc::clone(&broker), login);
        tokio::spawn(driver::drive(Arc::clone(&client), stream, broker.idle_timeout));
        let connection = Self { client, broker, links: 0 };
        let opened = tokio::time::timeout(connection.broker.step_timeout, connection.client.opened()).await;
        match opened {
            Ok(opened) => opened.map(|()| connection),
            Err(_) => Err(connection.client.time_out_open(connection.broker.timed_out("the AMQP handshake"))),
        }
    }

    pub fn stats(&self) -> &StreamStats {
        &self.client.stats
    }

    /// The broker's product, as named in its open frame.
    pub fn peer_product(&self) -> PeerProduct {
        self.client.state().amqp().peer_product().clone()
    }

    /// Attaches to a queue in order to send to it.
    ///
    /// # Errors
    /// If the queue does not exist, if access is denied, or if the broker does not answer in time.
    pub async fn attach_sender(&mut self, plan: &SenderOptions) -> Result<SenderLink, Error> {
        let name = self.link_name(&plan.queue);
        let attach = SenderLink::attach(Arc::clone(&self.client), Arc::clone(&self.broker), plan, &name);
        self.broker.with_step_timeout("attaching to the queue", attach).await
    }

    /// Attaches to a queue in order to receive from it.
    ///
    /// # Errors
    /// As for a sender link, and if another consumer holds the queue exclusively.
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

    /// Sends a close and waits for the answer, for at most 5 s and no longer than any other step.
    ///
    /// # Errors
    /// If the connection was already lost, or is not closed in time.
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
            Ok(why) => Err(why),
            Err(_) => Err(Error::TimedOut {
                address: self.broker.url.address(),
                what: "closing the connection",
                after: limit,
            }),
        }
    }

    /// A link name that is unique within the container.
    fn link_name(&mut self, queue: &str) -> String {
        self.links += 1;
        format!("{}:{queue}:{}", self.broker.container, self.links)
    }
}
