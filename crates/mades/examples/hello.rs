//! Sends a message to a queue and receives it again. The listener with the queue is in the same
//! program. To run the example: `cargo run -p mailrun-mades --example hello`.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]
use mailrun_mades::api::{OutgoingProperties, Submission, payload};
use mailrun_mades::{Broker, Connection, IncomingDelivery, ReceiverOptions, SenderOptions, Uuid};
use mailrun_mades_simulator::embedded::{self, ListenOptions, ListenerAuth, MemoryQueues, QueueLimits};
use std::error::Error;
use tokio::net::TcpListener;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    let queues = MemoryQueues::new(QueueLimits::default());
    tokio::spawn(embedded::serve(listener, queues, ListenOptions::new(ListenerAuth::Any), Default::default()));

    let broker = Broker::new(format!("amqp://127.0.0.1:{port}").parse()?, "hello");
    let mut connection = Connection::open(&broker).await?;
    let mut sender = connection.attach_sender(&SenderOptions::new("outbox", 8)).await?;
    let mut receiver = connection.attach_receiver(&ReceiverOptions::new("outbox", 8)).await?;
    let mut template =
        OutgoingProperties::new("10V000000000001X", "HELLO").template(Uuid::nil(), payload(b"hi".to_vec()));
    let disposition = sender.send(template.fill(0, 0)).await?;
    match receiver.next().await? {
        IncomingDelivery::Delivery(delivery) => {
            println!("for {:?}", Submission::read(&delivery.message).receiver_code);
            receiver.accept(delivery.handle)?;
        }
        IncomingDelivery::Undecodable { handle, why } => {
            receiver.reject(handle, "amqp:decode-error", &why)?;
        }
    }
    println!("{:?}", disposition.await?);
    connection.close().await?;
    Ok(())
}
