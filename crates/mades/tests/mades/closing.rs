//! Tests how connections end. With every broker, an orderly close must not be an error, and any other end must be
//! reported in time.
use crate::peer::{broker, limited, our_own, start};
use crate::script::{Then, attach, begin, detach, handshake, say, say_and};
use fe2o3_amqp_types::definitions::{AmqpError, Role};
use mailrun_mades::api::{OutgoingProperties, OutgoingTemplate, payload};
use mailrun_mades::{Broker, Connection, Disposition, Error, IncomingDelivery, ReceiverOptions, SenderOptions, Uuid};
use mailrun_mades_simulator::embedded::QueueLimits;
use std::time::Duration;

const SHORT_TIMEOUT: Duration = Duration::from_millis(300);

fn template() -> OutgoingTemplate {
    OutgoingProperties::new("receiver", "TYPE").template(Uuid::from_u128(1), payload("octets"))
}

/// Sends a message to a queue, receives it, and closes at once without waiting for anything in
/// transit.
async fn visit(broker: &Broker, queue: &str) {
    let mut connection = Connection::open(broker).await.unwrap();
    let mut sender = connection.attach_sender(&SenderOptions::new(queue, 8)).await.unwrap();
    let mut receiver = connection.attach_receiver(&ReceiverOptions::new(queue, 8)).await.unwrap();
    let settled = sender.send(template().fill(0, 0)).await.unwrap().await.unwrap();
    assert_eq!(settled, Disposition::Accepted);
    let IncomingDelivery::Delivery(delivery) = receiver.next().await.unwrap() else { panic!("it can be read") };
    receiver.accept(delivery.handle).unwrap();
    assert_eq!(sender.close().await, Ok(()));
    assert_eq!(receiver.close().await, Ok(()));
    assert_eq!(connection.close().await, Ok(()));
}

#[test]
fn an_orderly_farewell_is_no_error() {
    limited(async {
        let (port, _queues) = our_own(QueueLimits::default()).await;
        for _ in 0..20 {
            visit(&broker(port), "q").await;
        }
        // Links and connections to another implementation, fe2o3-amqp, must also close without an error.
        let port = start().await;
        for _ in 0..5 {
            let mut connection = Connection::open(&broker(port)).await.unwrap();
            let sender = connection.attach_sender(&SenderOptions::new("accept", 8)).await.unwrap();
            assert_eq!(sender.close().await, Ok(()));
            assert_eq!(connection.close().await, Ok(()));
        }
    });
}

/// Before this test, the user must start the brokers RabbitMQ and Artemis, and set the variable MAILRUN_TEST_BROKERS to
/// their URLs, each with a queue as its path.
#[test]
#[ignore = "needs brokers: MAILRUN_TEST_BROKERS=\"amqp://user:password@host:port/queue …\""]
fn nor_at_brokers() {
    limited(async {
        let urls = std::env::var("MAILRUN_TEST_BROKERS").unwrap();
        for url in urls.split_whitespace() {
            let (url, queue) = url.rsplit_once('/').unwrap();
            for _ in 0..20 {
                visit(&Broker::new(url.parse().unwrap(), "test"), queue).await;
            }
        }
    });
}

#[test]
fn a_link_that_the_broker_has_ended_says_why_when_we_end_it() {
    limited(async {
        for role in [Role::Receiver, Role::Sender] {
            let link = [attach("test:q:1", role.clone(), Some("q")), detach(AmqpError::ResourceLocked)].concat();
            let port = say(vec![handshake(), begin(), link], Then::Stay).await;
            let mut connection = Connection::open(&broker(port)).await.unwrap();
            let closed = match role {
                Role::Receiver => match connection.attach_sender(&SenderOptions::new("q", 8)).await {
                    Ok(outlet) => outlet.close().await,
                    Err(error) => Err(error),
                },
                Role::Sender => match connection.attach_receiver(&ReceiverOptions::new("q", 8)).await {
                    Ok(inlet) => inlet.close().await,
                    Err(error) => Err(error),
                },
            };
            assert!(matches!(closed, Err(Error::QueueHeld { .. })), "{closed:?}");
        }
    });
}

#[test]
fn who_answers_no_farewell_is_left_in_time() {
    limited(async {
        let link = attach("test:q:1", Role::Sender, Some("q"));
        let port = say(vec![handshake(), begin(), link], Then::Stay).await;
        let mut connection = Connection::open(&Broker { step_timeout: SHORT_TIMEOUT, ..broker(port) }).await.unwrap();
        let receiver = connection.attach_receiver(&ReceiverOptions::new("q", 8)).await.unwrap();
        let error = receiver.close().await.unwrap_err();
        assert_eq!(error, Error::Lost { why: "the broker does not answer close".to_owned() });
        let error = connection.close().await.unwrap_err();
        assert!(matches!(error, Error::TimedOut { what: "closing the connection", .. }), "{error:?}");
    });
}

#[test]
fn who_hangs_up_in_place_of_a_farewell_is_lost() {
    limited(async {
        let port = say_and(vec![handshake()], |stream| async move {
            // This peer waits for the client's close, and then disconnects without an answer.
            let _ = stream.readable().await;
        })
        .await;
        let connection = Connection::open(&broker(port)).await.unwrap();
        let error = connection.close().await.unwrap_err();
        assert!(matches!(error, Error::Lost { .. }), "{error:?}");
        // This peer disconnects before the client calls `close`.
        let port = say(vec![handshake()], Then::HangUp).await;
        let mut connection = Connection::open(&broker(port)).await.unwrap();
        connection.closed().await;
        let error = connection.close().await.unwrap_err();
        assert_eq!(error, Error::Lost { why: "it had already ended".to_owned() });
    });
}
